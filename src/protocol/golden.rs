//! Compares every request of every kind, byte for byte, with `golden.txt`.
//!
//! Other clients, also of other versions, work on the same keys, so a request must not change by accident. After an
//! intended change, run this test and copy what it prints.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::local::lock::Mode;
use crate::protocol::idempotency::{IdempotencyKeys, RequestKeys};
use crate::protocol::keys;
use crate::protocol::kind::{AcquireArgs, Id, Keyspace, Note, Place, Protocol, RenewalArgs};
use crate::protocol::owner::{OwnerNumber, Owners, PermitId};
use crate::protocol::script::Request;
use crate::protocol::{
    adopt, fair, fenced, latch, lua, permits, red, reentrant, rw, semaphore, spin,
};

const LEASE: Duration = Duration::from_micros(1_499_001);

const PERMIT: &[u8] = b"000102030405060708090a0b0c0d0eff";

/// The file of each script, by its hash.
fn files() -> HashMap<String, &'static str> {
    lua::ALL
        .iter()
        .map(|(file, text)| (redis::Script::new(text).get_hash().to_owned(), *file))
        .collect()
}

/// The parts of a command. Panics unless the command is packed correctly, to the last byte.
fn parts(request: &Request) -> Vec<Vec<u8>> {
    fn line<'a>(rest: &mut &'a [u8], kind: u8) -> &'a str {
        let end = rest.windows(2).position(|two| two == b"\r\n");
        let end = end.expect("a whole line");
        let (head, tail) = rest.split_at(end);
        assert_eq!(head[0], kind);
        *rest = &tail[2..];
        std::str::from_utf8(&head[1..]).expect("digits")
    }
    let mut packed = Vec::new();
    request.write(&mut packed, false);
    let mut rest = packed.as_slice();
    let count: usize = line(&mut rest, b'*').parse().expect("a number");
    let mut parts = Vec::new();
    for _ in 0..count {
        let len: usize = line(&mut rest, b'$').parse().expect("a number");
        parts.push(rest[..len].to_vec());
        assert_eq!(&rest[len..len + 2], b"\r\n");
        rest = &rest[len + 2..];
    }
    assert!(rest.is_empty(), "{rest:?}");
    parts
}

/// The keys of the third request of a client, after two that were answered.
fn request_keys(protocol: &Protocol) -> RequestKeys {
    let owners = Owners::of("u");
    let (key, known) = (protocol.key(), IdempotencyKeys::default());
    let draw = || RequestKeys::new(&owners, key, "120000".to_owned(), &known.take(key, 2));
    for _ in 0..2 {
        known.answered(key, draw().number);
    }
    draw()
}

struct Golden {
    files: HashMap<String, &'static str>,
    text: String,
}

impl Golden {
    fn heading(&mut self, kind: &str, names: &str) {
        writeln!(self.text, "\n{kind} {names}").expect("text");
    }

    fn fact(&mut self, label: &str, fact: &str) {
        writeln!(self.text, "  {label} = {fact}").expect("text");
    }

    fn request(&mut self, label: &str, request: &Request) {
        write!(self.text, "  {label} [{}]:", request.doing).expect("text");
        let mut parts = parts(request).into_iter();
        let mut command = String::from_utf8(parts.next().expect("a command")).expect("text");
        if command == "EVALSHA" {
            let hash = String::from_utf8(parts.next().expect("a hash")).expect("text");
            command = format!("{}.lua", self.files[&hash]);
        }
        write!(self.text, " {command}").expect("text");
        for part in parts {
            write!(self.text, " \"{}\"", part.escape_ascii()).expect("text");
        }
        self.text.push('\n');
    }

    fn lock(&mut self, protocol: &Protocol, modes: &[Mode]) {
        self.fact("key", protocol.key());
        self.fact("channel", &protocol.channel());
        for &mode in modes {
            let plain = AcquireArgs {
                mode,
                ..AcquireArgs::plain("u:7", LEASE)
            };
            let whole = AcquireArgs {
                under: Some("u:5"),
                note: Note {
                    behind: "u:3",
                    lives: Duration::from_secs(2),
                },
                place: Place::Has,
                tokens: 1024,
                token_ttl: Duration::from_secs(3600),
                up_for: Duration::from_millis(2_500),
                run_id: "abc",
                ..plain
            };
            self.request(&format!("acquire {mode:?}"), &protocol.acquire(&plain));
            self.request(&format!("acquire {mode:?}"), &protocol.acquire(&whole));
            self.request(
                &format!("release {mode:?}"),
                &protocol.release(mode, b"u:7"),
            );
            self.request(
                &format!("undo {mode:?}"),
                &(protocol.kind().undo)(protocol, mode, b"u:7"),
            );
            let renewal = protocol.renew(&RenewalArgs {
                mode,
                owner: b"u:7",
                lease: LEASE,
                count: 3,
                ends_at: 0,
            });
            self.request(&format!("renew {mode:?}"), &renewal);
            let locked: Vec<_> = (-2..=4)
                .filter(|state| (protocol.kind().is_locked)(mode, *state))
                .collect();
            self.fact(&format!("locked {mode:?}"), &format!("{locked:?}"));
        }
        if protocol.kind().shares_plain_key {
            let args = AcquireArgs::plain("u:7", LEASE);
            self.request("adopt", &adopt::adopt(protocol, "v:3", &args));
        }
        if protocol.kind().has_tokens {
            self.request("holder", &fenced::holder(protocol));
            self.request("last token", &fenced::last_token(protocol));
        }
        let force = (protocol.kind().force)(protocol, request_keys(protocol).own(), "120000");
        self.request("force", &force);
        self.request("state", &(protocol.kind().state)(protocol));
        self.request("remaining", &(protocol.kind().remaining)(protocol));
        let tickets = [6, 8].map(|n| Owners::of("u").id(OwnerNumber(n)));
        if let Some(refresh) = protocol.kind().refresh {
            let new = AcquireArgs {
                place: Place::New,
                ..AcquireArgs::plain("u:8", LEASE)
            };
            self.request("acquire, new place", &protocol.acquire(&new));
            self.request("refresh", &refresh(protocol, &tickets));
            self.fact("channel of u:6", &protocol.channel_of("u:6"));
        }
    }

    fn names(&mut self, protocol: &Protocol) {
        self.fact("key", protocol.key());
        self.fact("channel", &protocol.channel());
    }

    fn latch(&mut self, protocol: &Protocol) {
        self.names(protocol);
        for change in [
            latch::LatchChange::Set(3),
            latch::LatchChange::CountDown,
            latch::LatchChange::Delete,
        ] {
            let request = latch::change(protocol, &request_keys(protocol), change);
            self.request(&format!("{change:?}"), &request);
        }
        self.request("state", &latch::state(protocol));
    }

    fn semaphore(&mut self, protocol: &Protocol) {
        self.names(protocol);
        let keys = &request_keys(protocol);
        let acquire = semaphore::acquire(protocol, keys, 3);
        self.request("acquire", &acquire);
        self.request("undo", &semaphore::undo(protocol, keys));
        let release = semaphore::release(protocol, keys, 3);
        self.request("release", &release);
        let add = semaphore::add(protocol, keys, -3);
        self.request("add", &add);
        for ttl in [Duration::ZERO, LEASE] {
            self.request("set", &semaphore::set(protocol, keys, 3, ttl));
        }
        self.request("delete", &semaphore::delete(protocol, keys));
        self.request("drain", &semaphore::drain(protocol, keys));
        self.request("available", &semaphore::available(protocol));
    }

    fn permits(&mut self, protocol: &Protocol) {
        self.names(protocol);
        let release = protocol.release(Mode::Exclusive, PERMIT);
        self.request("release", &release);
        self.request(
            "undo",
            &(protocol.kind().undo)(protocol, Mode::Exclusive, PERMIT),
        );
        let renewal = protocol.renew(&RenewalArgs {
            mode: Mode::Exclusive,
            owner: PERMIT,
            lease: LEASE,
            count: 1,
            ends_at: 1_700_000_000_123,
        });
        self.request("renew", &renewal);
        let keys = &request_keys(protocol);
        let ids = [PermitId([7; 16]), PermitId([8; 16])];
        self.request("acquire", &permits::acquire(protocol, &ids, LEASE));
        self.request("release", &permits::release(protocol, &ids));
        for all_or_none in [false, true] {
            let release = permits::release_ids(protocol, keys, &ids, all_or_none);
            self.request("release ids", &release);
        }
        self.request("update", &permits::update(protocol, keys, ids[0], LEASE));
        let adopt = permits::adopt(protocol, ids[0], ids[1], LEASE);
        self.request("adopt", &adopt);
        self.request("lease of", &permits::lease_of(protocol, ids[0]));
        for change in [
            permits::PermitChange::TrySet(3),
            permits::PermitChange::Set(3),
            permits::PermitChange::Add(-3),
            permits::PermitChange::Delete,
        ] {
            let request = permits::change(protocol, keys, change);
            self.request(&format!("{change:?}"), &request);
        }
        self.request("state", &permits::state(protocol));
    }
}

#[test]
fn every_request_is_what_it_was() {
    let mut golden = Golden {
        files: files(),
        text: String::new(),
    };
    let exclusive = &[Mode::Exclusive][..];
    let both = &[Mode::Exclusive, Mode::Shared][..];
    for (name, kind, modes) in [
        ("reentrant", &reentrant::KIND, exclusive),
        ("spin", &spin::KIND, exclusive),
        ("fair", &fair::KIND, exclusive),
        ("fenced", &fenced::KIND, exclusive),
        ("rw", &rw::KIND, both),
        ("red", &red::KIND, exclusive),
        ("semaphore", &semaphore::KIND, &[]),
        ("permits", &permits::KIND, &[]),
        ("latch", &latch::KIND, &[]),
    ] {
        for names in [["a", "b"], ["a{b}", "č d"]] {
            let id: Arc<str> = match kind.id {
                Id::Name => names[0].into(),
                Id::NameAndNodes => keys::list(names).into(),
            };
            let keyspace = Keyspace {
                prefix: "p:",
                is_cluster: false,
                waiter_lease: LEASE,
            };
            let protocol = Protocol::new(kind, keyspace, &id).expect("a name");
            golden.heading(name, &kind.shown(&id));
            match name {
                "permits" => golden.permits(&protocol),
                "semaphore" => golden.semaphore(&protocol),
                "latch" => golden.latch(&protocol),
                _ => golden.lock(&protocol, modes),
            }
        }
    }
    let text = golden.text.trim_start();
    assert!(text == include_str!("golden.txt"), "{text}");
}

#[test]
fn a_flag_for_dragonfly_is_at_the_beginning_where_it_looks_for_it() {
    let flagged = lua::ALL.iter().filter(|(_, text)| text.contains("--!df"));
    let files: Vec<_> = flagged.clone().map(|(file, _)| *file).collect();
    assert_eq!(files, ["rw_read_release"]);
    for (file, text) in flagged {
        assert!(text.starts_with("--!df"), "{file}");
    }
}
