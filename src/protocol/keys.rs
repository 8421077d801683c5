//! Every key and channel that this crate uses, named as Redisson names them.

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
        return Err(Error::InvalidName { why: "it is empty" });
    }
    if prefix.len() + name.len() > MAX_KEY_LEN {
        return Err(Error::InvalidName {
            why: "it is longer than 64 KiB, key prefix included",
        });
    }
    Ok(if prefix.is_empty() {
        Arc::clone(name)
    } else {
        format!("{prefix}{name}").into()
    })
}

/// Checks that all of Redisson's names derived from `key` are in the slot of `key`.
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
        why: "its braces put the key and the channel that Redisson gives it into different slots of the cluster",
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

/// When each waiter in the queue counts as dead for Redisson.
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

/// The note of a waiting reader or writer of the read-write lock at `key`. Redisson does not know this key.
pub(crate) fn rw_note(key: &str, mode: Mode) -> String {
    let side = match mode {
        Mode::Shared => "reader",
        Mode::Exclusive => "writer",
    };
    format!("{}:{side}", rw_channel(key))
}

/// The start of the keys of all read holds of the lock at `key`.
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
/// Source: `RedissonCountDownLatch`. In contrast to other names, this one has braces even if the key has some.
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

/// Joins names into one text, from which [`names`] restores them, whatever characters they have.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut list = String::new();
    for name in names {
        list.push_str(&name.len().to_string());
        list.push(':');
        list.push_str(name);
    }
    list
}

/// The names of a [`list`].
pub(crate) fn names(list: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = list;
    while let Some((len, tail)) = rest.split_once(':') {
        let Some((name, tail)) = len.parse().ok().and_then(|len| tail.split_at_checked(len)) else {
            break;
        };
        names.push(name);
        rest = tail;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::net::strange;

    fn name() -> impl Strategy<Value = String> {
        prop_oneof!["[ab{}:0-9]{0,8}", any::<String>()]
    }

    proptest! {
        #![proptest_config(strange::cases(512))]

        #[test]
        fn whatever_a_name_is_its_keys_are_told_apart(prefix in name(), one in name(), other in name()) {
            let [one, other]: [Arc<str>; 2] = [one.into(), other.into()];
            let (Ok(key), Ok(others)) = (key(&prefix, &one), key(&prefix, &other)) else {
                prop_assert!(one.is_empty() || other.is_empty());
                return Ok(());
            };
            let of = |key: &str| {
                [
                    lock_channel(key).concat(), fair_queue(key), fair_timeouts(key), fair_alive(key), fenced_token(key), rw_channel(key),
                    semaphore_channel(key), permit_timeouts(key), latch_channel(key), latch_round(key),
                ]
            };
            let (all, all_others) = (of(&key), of(&others));
            for (n, its) in all.iter().enumerate() {
                prop_assert!(its.contains(&*key));
                // Redisson's names for `a` are those for `{a}`.
                let braced = |key: &str, other: &str| !key.contains('{') && other == format!("{{{key}}}");
                let is_braced = braced(&key, &others) || braced(&others, &key);
                prop_assert!(its != &all_others[n] || one == other || is_braced);
                prop_assert!(!all[..n].contains(its));
            }
            if in_one_slot(&key).is_ok() {
                let slot = slot_of(key.as_bytes());
                prop_assert!(all[..8].iter().all(|its| slot_of(its.as_bytes()) == slot));
            }
        }

        #[test]
        fn whatever_names_there_are_a_list_has_them(all in prop::collection::vec(name(), 0..5), other in name()) {
            let list = list(all.iter().map(String::as_str));
            prop_assert_eq!(names(&list), all);
            names(&other);
        }
    }

    #[test]
    fn a_list_is_taken_apart_as_it_was_put_together() {
        for odd in [
            &[][..],
            &[""],
            &["a"],
            &["a", "b"],
            &["1:a", "", ":", "12:"],
            &["日本", "\0", "a b"],
        ] {
            assert_eq!(names(&list(odd.iter().copied())), odd);
        }
        assert_ne!(list(["a", "b"]), list(["ab"]));
        assert_ne!(list(["1", "a"]), list(["1:a"]));
    }

    #[test]
    fn channels_are_redissons() {
        for (key, channel) in [
            ("stock:42", "redisson_lock__channel:{stock:42}"),
            ("a{b}c", "redisson_lock__channel:a{b}c"),
            ("a{", "redisson_lock__channel:a{"),
            ("a}b", "redisson_lock__channel:{a}b}"),
            (" ", "redisson_lock__channel:{ }"),
            ("ł\n\0", "redisson_lock__channel:{ł\n\0}"),
        ] {
            assert_eq!(lock_channel(key).concat(), channel);
        }
    }

    #[test]
    fn names_whose_channels_leave_the_slot_are_known() {
        for (key, locks, latches) in [
            ("plain", true, true),
            ("foo{bar}", true, false),
            ("x{y}{z}", true, false),
            ("foo{", false, true),
            ("a}b", false, false),
            ("{}x", false, false),
        ] {
            assert_eq!(in_one_slot(key).is_ok(), locks, "{key}");
            let latch = of_one_slot(key, &latch_channel(key));
            assert_eq!(latch.is_ok(), latches, "{key}");
        }
    }

    #[test]
    fn other_keys_are_redissons() {
        assert_eq!(fair_queue("a"), "redisson_lock_queue:{a}");
        assert_eq!(fair_timeouts("a{b}"), "redisson_lock_timeout:a{b}");
        assert_eq!(fair_alive("a"), "redisson_lock_alive:{a}");
        assert_eq!(fenced_token("a"), "redisson_lock_token:{a}");
        assert_eq!(rw_channel("a"), "redisson_rwlock:{a}");
        assert_eq!(rw_holds("a"), "{a}:");
        assert_eq!(rw_holds("a{b}"), "a{b}:");
        assert_eq!(semaphore_channel("a"), "redisson_sc:{a}");
        assert_eq!(permit_timeouts("a"), "{a}:timeout");
        assert_eq!(permit_timeouts("a{b}"), "a{b}:timeout");
        let channel = latch_channel("a{b}");
        assert_eq!(channel, "redisson_countdownlatch__channel__{a{b}}");
        assert_eq!(latch_round("a"), "{a}:round");
        assert_eq!(request("a", "u:7"), "{a}:request:u:7");
    }

    #[test]
    fn only_empty_and_overlong_names_are_refused() {
        let key = |prefix: &str, name: &str| key(prefix, &name.into()).map(|key| key.to_string());
        assert!(matches!(key("app:", ""), Err(Error::InvalidName { .. })));
        assert!(matches!(
            key("p", &"x".repeat(MAX_KEY_LEN)),
            Err(Error::InvalidName { .. })
        ));
        assert_eq!(
            key("", &"x".repeat(MAX_KEY_LEN)).map(|k| k.len()).ok(),
            Some(MAX_KEY_LEN)
        );
        for odd in [
            " ", "\0", "a b", "a\nb", "{}", "}{", "日本", "*", "\u{feff}",
        ] {
            assert_eq!(key("app:", odd).ok(), Some(format!("app:{odd}")));
        }
    }
}
