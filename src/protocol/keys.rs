//! Every key and channel that this crate uses, built by Redisson's rules for names.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::local::lock::Mode;
use crate::net::slot::slot_of;

/// The length limit of a key in bytes, prefix included.
const MAX_KEY_LEN: usize = 64 * 1024;

/// The key of a lock: the client's prefix and the name, or the name itself if there is no prefix.
///
/// # Errors
///
/// [`Error::InvalidName`] for an empty name, and for a key over 64 KiB.
pub(crate) fn key(prefix: &str, name: &Arc<str>) -> Result<Arc<str>> {
    if name.is_empty() {
        return Err(Error::InvalidName {
            reason: "it is empty",
        });
    }
    if prefix.len() + name.len() > MAX_KEY_LEN {
        return Err(Error::InvalidName {
            reason: "it is longer than 64 KiB, key prefix included",
        });
    }
    Ok(if prefix.is_empty() {
        Arc::clone(name)
    } else {
        format!("{prefix}{name}").into()
    })
}

/// Checks that the names that Redisson derives from `key` are in the slot of `key`. (The channel of a latch is checked in
/// `Protocol::new`.)
///
/// # Errors
///
/// [`Error::InvalidName`] if they are not, since no script could use them together.
pub(crate) fn in_one_slot(key: &str) -> Result<()> {
    of_one_slot(key, &prefixed("p", key))?;
    of_one_slot(key, &suffixed(key, "s"))
}

/// Checks that two names are in one slot.
///
/// # Errors
///
/// [`Error::InvalidName`] if they are not.
pub(crate) fn of_one_slot(key: &str, other: &str) -> Result<()> {
    if slot_of(key.as_bytes()) == slot_of(other.as_bytes()) {
        return Ok(());
    }
    Err(Error::InvalidName {
        reason: "its braces put the key and its channel into different slots of the cluster; use no braces, or one pair with text inside",
    })
}

/// The channel on which releases of the lock at `key` are announced, in parts, so that a release needs no allocation
/// for it.
pub(crate) fn lock_channel(key: &str) -> [&str; 3] {
    if key.contains('{') {
        ["redisson_lock__channel:", key, ""]
    } else {
        ["redisson_lock__channel:{", key, "}"]
    }
}

/// The queue of the fair lock at `key`, first come first.
pub(crate) fn fair_queue(key: &str) -> String {
    prefixed("redisson_lock_queue", key)
}

/// The key of the moments from which the waiters in the queue count as dead for Redisson.
pub(crate) fn fair_timeouts(key: &str) -> String {
    prefixed("redisson_lock_timeout", key)
}

/// The moments until which the waiters of this crate count as alive. Redisson does not know this key.
pub(crate) fn fair_alive(key: &str) -> String {
    prefixed("redisson_lock_alive", key)
}

/// The token counter of the fenced lock at `key`.
pub(crate) fn fenced_token(key: &str) -> String {
    prefixed("redisson_lock_token", key)
}

/// The channel on which releases of the read-write lock at `key` are announced.
pub(crate) fn rw_channel(key: &str) -> String {
    prefixed("redisson_rwlock", key)
}

/// The key that notes a waiting reader or writer of the read-write lock at `key`: see `lua/prelude/notes.lua`. Redisson
/// does not know this key.
pub(crate) fn rw_note(key: &str, mode: Mode) -> String {
    let side = match mode {
        Mode::Shared => "reader",
        Mode::Exclusive => "writer",
    };
    format!("{}:{side}", rw_channel(key))
}

/// The prefix of the keys of all read holds of the lock at `key`.
pub(crate) fn rw_holds(key: &str) -> String {
    suffixed(key, "")
}

/// The channel on which it is announced that permits of the semaphore at `key` are available again.
pub(crate) fn semaphore_channel(key: &str) -> String {
    prefixed("redisson_sc", key)
}

/// The taken permits of the expirable semaphore at `key`, and when each expires.
pub(crate) fn permit_timeouts(key: &str) -> String {
    suffixed(key, "timeout")
}

/// The channel on which it is announced that the latch at `key` was opened or set.
///
/// Source: `RedissonCountDownLatch`. In contrast to other names, this one gets braces even if the key contains braces.
pub(crate) fn latch_channel(key: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{key}}}")
}

/// The round of the latch at `key`.
pub(crate) fn latch_round(key: &str) -> String {
    suffixed(key, "round")
}

/// The key that remembers the result of one request about `key`.
pub(crate) fn request(key: &str, id: &str) -> String {
    suffixed(key, &format!("request:{id}"))
}

/// `{key}:suffix`, or `key:suffix` if the key has an opening brace anywhere.
///
/// Source: `RedissonObject.suffixName`.
fn suffixed(key: &str, suffix: &str) -> String {
    if key.contains('{') {
        format!("{key}:{suffix}")
    } else {
        format!("{{{key}}}:{suffix}")
    }
}

/// `prefix:{key}`, or `prefix:key` if the key has an opening brace anywhere.
///
/// Source: `RedissonObject.prefixName`, which tests for the brace alone, not for a complete hash tag.
fn prefixed(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
}

/// Joins names into one text; no two lists of names give the same text. [`first_name`] finds the first.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut list = String::new();
    for name in names {
        list.push_str(&name.len().to_string());
        list.push(':');
        list.push_str(name);
    }
    list
}

/// The first name of a [`list`].
pub(crate) fn first_name(list: &str) -> Option<&str> {
    let (len, rest) = list.split_once(':')?;
    rest.get(..len.parse().ok()?)
}

#[cfg(test)]
mod tests;
