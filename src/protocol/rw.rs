//! The read-write lock: one hash for the writer and all readers, and a key beside it for each read hold's lease.

use crate::local::lock::Mode;
use crate::net::text::Digits;
use crate::protocol::keys;
use crate::protocol::kind::{
    ACQUIRING, AcquireArgs, Evidence, FORCING, Kind, Protocol, RELEASING, RENEWING, RenewalArgs,
    keep_field, renew_field,
};
use crate::protocol::script::{self, Request, lease_ms};

pub(crate) static KIND: Kind = Kind {
    has_notes: true,
    channel: keys::rw_channel,
    acquire,
    release: |of, mode, owner| release(of, mode, owner, None),
    undo: |of, mode, owner| release(of, mode, owner, Some(&keys::rw_note(of.key(), mode))),
    renew,
    keep: |of, mode, owner, span| match mode {
        Mode::Exclusive => keep_field(of, "write", None, &write_field(owner), span),
        Mode::Shared => keep_field(of, "read", Some(&hold_key(of, owner)), owner, span),
    },
    force: |of, request, keep_ms| {
        let keys = [of.key(), &of.channel(), request];
        Request::script(FORCING, &script::RW_FORCE, &keys, &[keep_ms])
    },
    state: |of| state(of, "asking for the lock", "who"),
    remaining: |of| state(of, "asking for the lease", "left"),
    is_locked: |mode, state| match mode {
        Mode::Shared => state == 1 || state == 3,
        Mode::Exclusive => state >= 2,
    },
    // A lost write hold that Redis may still keep is released, because its thread may also read: the renewals of the read
    // hold extend the common key, so the write hold would live on.
    is_given_back_when_lost: |mode, reason| mode == Mode::Exclusive && reason.may_still_be_held(),
    evidence: |of, mode, owner| match mode {
        Mode::Exclusive => Evidence::field(of, &write_field(owner)),
        Mode::Shared => Evidence {
            life: Some(hold_key(of, owner)),
            ..Evidence::field(of, owner)
        },
    },
    ..Kind::base("read-write")
};

fn state(of: &Protocol, doing: &'static str, query: &str) -> Request {
    Request::script(doing, &script::RW_STATE, &[of.key()], &[query])
}

/// The key that lives for as long as a read hold. It ends in `1` because each owner of this crate has only one read hold.
fn hold_key(of: &Protocol, owner: &[u8]) -> String {
    let owner = String::from_utf8_lossy(owner);
    format!("{}{owner}:rwlock_timeout:1", keys::rw_holds(of.key()))
}

/// The hash field of a write hold.
fn write_field(owner: &[u8]) -> Vec<u8> {
    [owner, b":write"].concat()
}

fn acquire(of: &Protocol, args: &AcquireArgs<'_>) -> Request {
    // A noted waiter asks at least every third of the waiter lease, so that it does not count as gone.
    let spans = [args.note.lives, of.waiter_lease() / 3, args.lease];
    let [lives, every, lease] = spans.map(|span| Digits::from(lease_ms(span)));
    let [read, write] = [Mode::Shared, Mode::Exclusive].map(|mode| keys::rw_note(of.key(), mode));
    let (key, note) = (of.key(), &args.note);
    let behind = note.behind.as_bytes();
    let (lives, every, lease) = (lives.as_bytes(), every.as_bytes(), lease.as_bytes());
    match args.mode {
        Mode::Exclusive => {
            let field = write_field(args.owner);
            let args = [&*field, behind, lives, every, lease];
            let keys = [key, &write, &read];
            Request::script(ACQUIRING, &script::RW_WRITE_ACQUIRE, &keys, &args)
        }
        Mode::Shared => {
            let (hold, owner) = (hold_key(of, args.owner), args.owner);
            let under = args.under.map(|under| write_field(under.as_bytes()));
            let under = under.unwrap_or_default();
            let args = [owner, behind, lives, every, lease, &under];
            let keys = [key, &read, &write, &hold];
            Request::script(ACQUIRING, &script::RW_READ_ACQUIRE, &keys, &args)
        }
    }
}

/// Releases a hold. If `note` is given (the key of the note of the hold's side), the request undoes an acquire: it also
/// removes this owner's note.
fn release(of: &Protocol, mode: Mode, owner: &[u8], note: Option<&str>) -> Request {
    let channel = of.channel();
    let keys = [of.key(), &channel].into_iter();
    match mode {
        Mode::Exclusive => {
            let (keys, field): (Vec<_>, _) = (keys.chain(note).collect(), write_field(owner));
            Request::script(RELEASING, &script::RW_WRITE_RELEASE, &keys, &[&field])
        }
        Mode::Shared => {
            let hold = hold_key(of, owner);
            let keys: Vec<_> = keys.chain([&*hold]).chain(note).collect();
            let holds = keys::rw_holds(of.key());
            let args = [owner, holds.as_bytes()];
            Request::script(RELEASING, &script::RW_READ_RELEASE, &keys, &args)
        }
    }
}

fn renew(of: &Protocol, renewal: &RenewalArgs<'_>) -> Request {
    let (key, owner) = (of.key(), renewal.owner);
    match renewal.mode {
        Mode::Exclusive => renew_field(key, &write_field(owner), renewal),
        Mode::Shared => {
            let keys = [key, &of.channel(), &hold_key(of, owner)];
            let lease = Digits::from(lease_ms(renewal.lease));
            let args = [owner, lease.as_bytes()];
            Request::script(RENEWING, &script::RW_READ_RENEW, &keys, &args)
        }
    }
}
