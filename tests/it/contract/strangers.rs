//! A key that the application uses for something else: every operation of every kind reports that, and changes nothing.

use std::time::Duration;

use redlatch::{CancelToken, Client, Error, RedLock, Result};

use crate::support::{
    KINDS, LONG, MUTEX, READING, STRANGER, Server, WRITING, ms, open, scoped, timed, unique,
    verdicts,
};

/// An operation and its result.
type Verb = (&'static str, Result<()>);

/// Values that are not a lock of some kind: a title, and the commands that create the value.
type Strangers = &'static [(&'static str, &'static [&'static [&'static str]])];

/// Values that are neither a lock nor a number.
const OF_ANY: Strangers = &[
    ("a text", &[&["SET", "KEY", "hello"]]),
    ("a list", &[&["RPUSH", "KEY", "a", "b"]]),
    ("a set", &[&["SADD", "KEY", "a"]]),
    ("a sorted set", &[&["ZADD", "KEY", "1", "a"]]),
    ("a stream", &[&["XADD", "KEY", "1-1", "field", "value"]]),
    (
        "a record",
        &[&["HSET", "KEY", "name", "Ann", "mail", "ann@example"]],
    ),
    (
        "a session",
        &[
            &["HSET", "KEY", "user", "17", "role", "admin"],
            &["PEXPIRE", "KEY", "600000"],
        ],
    ),
];

/// The value of a semaphore or a latch.
const NUMBER: Strangers = &[("a number", &[&["SET", "KEY", "1"]])];

/// Values that resemble a lock.
const OF_LOCKS: Strangers = &[
    (
        "a record with a mode",
        &[&["HSET", "KEY", "name", "Ann", "mode", "dark"]],
    ),
    (
        "one that reads",
        &[
            &["HSET", "KEY", "path", "1", "mode", "read"],
            &["PEXPIRE", "KEY", "600000"],
        ],
    ),
    (
        "one that writes",
        &[
            &["HSET", "KEY", "path", "1", "mode", "write"],
            &["PEXPIRE", "KEY", "600000"],
        ],
    ),
    ("nothing but a mode", &[&["HSET", "KEY", "mode", "read"]]),
    (
        "carts",
        &[
            &[
                "HSET",
                "KEY",
                "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b5c6d:cart",
                "1",
            ],
            &["PEXPIRE", "KEY", "600000"],
        ],
    ),
    (
        "texts by what might be owners",
        &[
            &["HSET", "KEY", STRANGER, "ten"],
            &["PEXPIRE", "KEY", "600000"],
        ],
    ),
];

const READ: Strangers = &[(
    "a read-write lock",
    &[
        &["HSET", "KEY", "mode", "read", STRANGER, "1"],
        &["PEXPIRE", "KEY", "600000"],
    ],
)];

const PLAIN: Strangers = &[(
    "a plain lock",
    &[
        &["HSET", "KEY", STRANGER, "1"],
        &["PEXPIRE", "KEY", "600000"],
    ],
)];

/// Empty for deployments with clusters, which a `RedLock` rejects.
fn red_lock(clients: &[Client; 2], name: &str) -> Vec<Verb> {
    match RedLock::new(clients, name) {
        Ok(lock) => verdicts(&lock.into()),
        Err(Error::InvalidSetting { reason: what, .. }) if what.contains("over the cluster") => {
            Vec::new()
        }
        Err(err) => panic!("{err}"),
    }
}

fn semaphore([client, _]: &[Client; 2], name: &str) -> Vec<Verb> {
    let semaphore = client.semaphore(name);
    vec![
        ("acquire", semaphore.acquire().map(drop)),
        ("try_acquire", semaphore.try_acquire().map(drop)),
        ("try_acquire_for", semaphore.try_acquire_for(LONG).map(drop)),
        ("try_set_permits", semaphore.try_set_permits(1).map(drop)),
        ("add_permits", semaphore.add_permits(1)),
        ("drain_permits", semaphore.drain_permits().map(drop)),
        ("available_permits", semaphore.available_permits().map(drop)),
        (
            "add_permits_if_exists",
            semaphore.add_permits_if_exists(1).map(drop),
        ),
        ("delete", semaphore.delete().map(drop)),
    ]
}

fn expirable_semaphore([client, _]: &[Client; 2], name: &str) -> Vec<Verb> {
    let expirable = client.expirable_semaphore(name);
    let id = "0".repeat(32);
    vec![
        ("acquire", expirable.acquire().map(drop)),
        ("try_acquire", expirable.try_acquire().map(drop)),
        ("try_acquire_for", expirable.try_acquire_for(LONG).map(drop)),
        ("try_set_permits", expirable.try_set_permits(1).map(drop)),
        ("set_permits", expirable.set_permits(1)),
        ("add_permits", expirable.add_permits(1)),
        ("permits", expirable.permits().map(drop)),
        ("release_id", expirable.release_id(&id).map(drop)),
        ("release_ids", expirable.release_ids(&[&id]).map(drop)),
        (
            "remaining_lease_of",
            expirable.remaining_lease_of(&id).map(drop),
        ),
        ("delete", expirable.delete().map(drop)),
    ]
}

fn latch([client, _]: &[Client; 2], name: &str) -> Vec<Verb> {
    let latch = client.latch(name);
    vec![
        ("try_set_count", latch.try_set_count(1).map(drop)),
        ("count_down", latch.count_down()),
        ("count", latch.count().map(drop)),
        ("wait", latch.wait()),
        ("wait_for", latch.wait_for(LONG).map(drop)),
        ("delete", latch.delete().map(drop)),
    ]
}

/// Operations that belong to no kind.
fn any([client, _]: &[Client; 2], name: &str) -> Vec<Verb> {
    vec![
        ("inspect", client.inspect(name).map(drop)),
        (
            "force_unlock_owner",
            client.force_unlock_owner(name, STRANGER).map(drop),
        ),
    ]
}

/// Whether the result is `WrongType` for `name`, or a failure of members that all have this error.
fn is_wrong_type(verdict: &Result<()>, name: &str) -> bool {
    match verdict {
        Err(Error::WrongType { name: named, .. }) => named == name,
        Err(Error::Members { failures, .. }) => failures
            .iter()
            .all(|(_, err)| matches!(err, Error::WrongType { name: named, .. } if named == name)),
        _ => false,
    }
}

/// Calls `verbs` while each of these values is stored at the key of the name, or at the key that `key` returns.
fn are_told(
    kind: &str,
    strangers: &[Strangers],
    key: fn(&str) -> String,
    verbs: &dyn Fn(&[Client; 2], &str) -> Vec<Verb>,
) {
    let servers = [(); 2].map(|()| Server::start());
    let clients = [open(&servers[0]), open(&servers[1])];
    for (title, commands) in strangers.iter().copied().flatten() {
        let name = unique("record");
        let key = key(&name);
        for command in *commands {
            let words = command.iter().map(|word| match *word {
                "KEY" => &*key,
                word => word,
            });
            let command: Vec<_> = words.collect();
            servers.iter().for_each(|server| drop(server.cli(&command)));
        }
        let content = || {
            let of = |server: &Server| (server.ask(&["DUMP", &key]), server.pttl(&key) > 0);
            servers.each_ref().map(of)
        };
        let content_before: [(Vec<u8>, bool); 2] = content();
        for (verb, verdict) in verbs(&clients, &name) {
            assert!(
                is_wrong_type(&verdict, &name),
                "{kind}, {verb} of {title}: {verdict:?}"
            );
            assert_eq!(content(), content_before, "{kind}, {verb} of {title}");
        }
        for server in &servers {
            let keys = server.keys_but_requests();
            assert_eq!(keys, [&*key], "{kind} of {title} left something behind");
            server.cli(&["FLUSHALL"]);
        }
    }
    assert_eq!(clients[0].stats().holds, 0);
}

fn itself(name: &str) -> String {
    name.to_owned()
}

timed!(every_verb_of_every_kind_says_that_a_key_is_no_such_lock);
fn every_verb_of_every_kind_says_that_a_key_is_no_such_lock() {
    let plain = &[OF_ANY, OF_LOCKS, NUMBER, READ];
    scoped(|scope| {
        for kind in KINDS {
            let strangers = match kind.mode {
                Some(_) => &[OF_ANY, OF_LOCKS, NUMBER, PLAIN],
                None => plain,
            };
            scope.spawn(move || {
                are_told(kind.title, strangers, itself, &|[client, _], name| {
                    verdicts(&kind.of(client, name))
                });
            });
        }
        macro_rules! told {
            ($($kind:literal: $strangers:expr, $verbs:expr;)+) => {
                $(scope.spawn(|| are_told($kind, $strangers, itself, &$verbs));)+
            };
        }
        told! {
            "multi-lock": plain, |[client, _], name| {
                verdicts(&client.multi_lock([name, "other"]).into())
            };
            "RedLock": plain, red_lock;
            "semaphore": &[OF_ANY, PLAIN], semaphore;
            "expirable semaphore": &[OF_ANY, PLAIN], expirable_semaphore;
            "latch": &[OF_ANY, PLAIN], latch;
            "any": &[OF_ANY, OF_LOCKS], any;
        }
        // Permits are kept in a key of their own, from which an acquire removes the expired ones.
        scope.spawn(|| {
            are_told(
                "permits",
                &[&[("scores", &[&["ZADD", "KEY", "1", "Ann", "2", "Bob"]])]],
                |name| format!("{{{name}}}:timeout"),
                &expirable_semaphore,
            );
        });
    });
}

timed!(of_a_large_hash_only_a_part_is_looked_at);
fn of_a_large_hash_only_a_part_is_looked_at() {
    let server = Server::start();
    let client = open(&server);
    let fields: Vec<String> = (0..100_000).map(|n| format!("field {n}")).collect();
    for chunk in fields.chunks(1_000) {
        let values = chunk.iter().flat_map(|field| [field, "value"]);
        let command: Vec<_> = ["HSET", "large"].into_iter().chain(values).collect();
        server.cli(&command);
    }
    server.cli(&["SLOWLOG", "RESET"]);
    server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "50000"]);
    for kind in [MUTEX, READING, WRITING] {
        for (verb, verdict) in verdicts(&kind.of(&client, "large")) {
            assert!(is_wrong_type(&verdict, "large"), "{verb}: {verdict:?}");
        }
    }
    assert_eq!(server.ask::<u64>(&["SLOWLOG", "LEN"]), 0);
    assert_eq!(server.ask::<u64>(&["HLEN", "large"]), 100_000);
}

timed!(who_waits_is_told_when_the_key_becomes_a_record);
fn who_waits_is_told_when_the_key_becomes_a_record() {
    let server = Server::start();
    let (holder, client) = (open(&server), open(&server));
    let name = unique("becomes");
    let token = CancelToken::new();
    for limited in [false, true] {
        let guard = holder.mutex(&name).fixed_lease(ms(900)).lock().unwrap();
        let waits = client.mutex(&name).cancel_on(&token);
        let waiting = std::thread::spawn(move || waits.lock().map(drop));
        let mut pipe = redis::pipe();
        pipe.atomic().del(&name).hset(&name, "name", "Ann");
        if limited {
            pipe.pexpire(&name, 600_000);
        }
        let () = pipe.query(&mut server.connection()).unwrap();
        let dump_before: Vec<u8> = server.ask(&["DUMP", &name]);
        let verdict = waiting.join().unwrap();
        assert!(is_wrong_type(&verdict, &name), "{verdict:?}");
        assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", &name]), dump_before);
        assert_eq!(server.pttl(&name) > 0, limited);
        server.cli(&["DEL", &name]);
    }
}

// Locks in every form that Redisson and this crate create must be recognized as locks.
timed!(a_lock_of_others_is_waited_for_whatever_it_looks_like);
fn a_lock_of_others_is_waited_for_whatever_it_looks_like() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("theirs");
    let negative = STRANGER.replace(":57", ":-8812345678901234567");
    // The owner of a lock in a transaction.
    let number = "0123456789abcdef0123456789abcdef";
    let transaction = format!("{STRANGER}:{number}");
    for (owner, limited) in [
        (STRANGER, true),
        (&negative, true),
        (STRANGER, false),
        (&transaction, true),
    ] {
        let write = match owner.strip_suffix(number) {
            Some(begins) => format!("{begins}write:{number}"),
            None => format!("{owner}:write"),
        };
        for fields in [
            &[owner, "3"][..],
            &["mode", "read", owner, "2"],
            &["mode", "write", &write, "1"],
            &["mode", "write", &write, "1", owner, "1"],
        ] {
            let command = [&["HSET", &name], fields].concat();
            server.cli(&command);
            // The reader's own key, without which the reader counts as dead.
            let hold = format!("{{{name}}}:{owner}:rwlock_timeout:1");
            server.cli(&["SET", &hold, "1"]);
            if limited {
                server.cli(&["PEXPIRE", &name, "600000"]);
            }
            let busy = ms(20);
            if fields[0] == "mode" {
                let lock = client.rw_lock(&name);
                assert!(lock.try_write_for(busy).unwrap().is_none(), "{fields:?}");
                assert!(lock.is_read_locked().unwrap() || lock.is_write_locked().unwrap());
            } else {
                assert!(client.mutex(&name).try_lock_for(busy).unwrap().is_none());
                assert!(
                    client
                        .fair_lock(&name)
                        .try_lock_for(busy)
                        .unwrap()
                        .is_none()
                );
                assert!(client.fenced_lock(&name).try_lock().unwrap().is_none());
                assert!(client.spin_lock(&name).try_lock().unwrap().is_none());
                let lease_left = client.mutex(&name).remaining_lease().unwrap().unwrap();
                assert_eq!(lease_left == Duration::MAX, !limited);
            }
            assert!(client.inspect(&name).unwrap().held > 0);
            server.cli(&["FLUSHALL"]);
        }
    }
}
