//! The semaphore whose permits have no owner: a number.
//!
//! A release that arrives twice looks like two releases. So every request that changes the number counts once: see
//! [`idempotency`](crate::protocol::idempotency).

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use crate::net::text::Digits;
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::keys;
use crate::protocol::kind::{Kind, Protocol};
use crate::protocol::script::{self, Request, Script, Unexpected, lease_ms};

pub(crate) static KIND: Kind = Kind {
    channel: keys::semaphore_channel,
    ..Kind::base("semaphore")
};

/// A request that counts once; `announces` if it may notify waiters.
fn request(
    of: &Protocol,
    keys: &RequestKeys,
    announces: bool,
    (doing, script): (&'static str, &'static LazyLock<Script>),
    args: &[&str],
) -> Request {
    let (key, channel) = (of.key(), of.channel());
    let object_keys: &[&str] = if announces { &[key, &channel] } else { &[key] };
    Request::script(doing, script, &keys.after(object_keys), args)
}

/// Acquires permits, all or none.
pub(crate) fn acquire(of: &Protocol, keys: &RequestKeys, permits: u32) -> Request {
    let action = ("acquiring permits", &script::SEMAPHORE_ACQUIRE);
    let args = [&*Digits::of(permits), &keys.keep_ms];
    request(of, keys, false, action, &args)
}

/// Undoes an acquire of unknown outcome.
pub(crate) fn undo(of: &Protocol, keys: &RequestKeys) -> Request {
    Request::script(
        "undoing an acquire",
        &script::SEMAPHORE_UNDO,
        &[of.key(), &of.channel(), keys.own()],
        &[&keys.keep_ms],
    )
}

/// Returns permits if a semaphore of this name exists, even if it was created after these permits were acquired.
pub(crate) fn release(of: &Protocol, keys: &RequestKeys, permits: u64) -> Request {
    let action = ("releasing permits", &script::SEMAPHORE_RELEASE);
    let args = [&*Digits::of(permits), &keys.keep_ms, "0"];
    request(of, keys, true, action, &args)
}

/// Changes the number of available permits, creating the semaphore if it does not exist.
pub(crate) fn add(of: &Protocol, keys: &RequestKeys, permits: i64) -> Request {
    let action = ("adding permits", &script::SEMAPHORE_RELEASE);
    let args = [&*Digits::of(permits), &keys.keep_ms, "1"];
    request(of, keys, true, action, &args)
}

/// Creates the semaphore if it does not exist. If `ttl` is not zero, the semaphore expires after that time.
pub(crate) fn set(of: &Protocol, keys: &RequestKeys, permits: u32, ttl: Duration) -> Request {
    let (permits, ttl) = (Digits::of(permits), Digits::of(lease_ms(ttl)));
    let action = ("setting permits", &script::SEMAPHORE_SET);
    request(of, keys, true, action, &[&*permits, &keys.keep_ms, &*ttl])
}

/// Deletes the semaphore.
pub(crate) fn delete(of: &Protocol, keys: &RequestKeys) -> Request {
    let action = ("deleting a semaphore", &script::SEMAPHORE_DELETE);
    request(of, keys, false, action, &[&keys.keep_ms])
}

/// Takes all available permits.
pub(crate) fn drain(of: &Protocol, keys: &RequestKeys) -> Request {
    let action = ("draining permits", &script::SEMAPHORE_DRAIN);
    request(of, keys, false, action, &[&keys.keep_ms])
}

/// Asks how many permits are available.
pub(crate) fn available(of: &Protocol) -> Request {
    Request::command("asking for permits", &["GET", of.key()])
}

/// Reads the reply to [`available`]; `None` if the key holds a string that is no number.
pub(crate) fn read_available(reply: Value) -> Result<Option<i64>, Unexpected> {
    match reply {
        Value::Nil => Ok(Some(0)),
        Value::BulkString(digits) => {
            let n = std::str::from_utf8(&digits)
                .ok()
                .and_then(|digits| digits.parse().ok());
            Ok(n.filter(|n: &i64| n.to_string().as_bytes() == digits))
        }
        other => Err(Unexpected(other)),
    }
}
