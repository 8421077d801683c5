use super::*;

use proptest::prelude::*;

use crate::net::strange;

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab{}:0-9]{0,8}", any::<String>()]
}

proptest! {
    #![proptest_config(strange::cases(512))]

    #[test]
    fn whatever_a_name_is_its_keys_are_told_apart(prefix in name(), name in name(), other in name()) {
        let [name, other]: [Arc<str>; 2] = [name.into(), other.into()];
        let (Ok(key), Ok(others)) = (key(&prefix, &name), key(&prefix, &other)) else {
            prop_assert!(name.is_empty() || other.is_empty());
            return Ok(());
        };
        let of = |key: &str| {
            [
                lock_channel(key).concat(), fair_queue(key), fair_timeouts(key), fair_alive(key), fenced_token(key), rw_channel(key),
                semaphore_channel(key), permit_timeouts(key), latch_channel(key), latch_round(key),
            ]
        };
        let (all, all_others) = (of(&key), of(&others));
        for (n, derived) in all.iter().enumerate() {
            prop_assert!(derived.contains(&*key));
            // Redisson's names for `a` are those for `{a}`.
            let braced = |key: &str, other: &str| !key.contains('{') && other == format!("{{{key}}}");
            let is_braced = braced(&key, &others) || braced(&others, &key);
            prop_assert!(derived != &all_others[n] || name == other || is_braced);
            prop_assert!(!all[..n].contains(derived));
        }
        if in_one_slot(&key).is_ok() {
            let slot = slot_of(key.as_bytes());
            prop_assert!(all[..8].iter().all(|derived| slot_of(derived.as_bytes()) == slot));
        }
    }

    #[test]
    fn whatever_names_there_are_the_first_is_found(all in prop::collection::vec(name(), 0..5), other in name()) {
        let list = list(all.iter().map(String::as_str));
        prop_assert_eq!(first_name(&list), all.first().map(String::as_str));
        first_name(&other);
    }
}

#[test]
fn the_first_name_of_a_list_is_found() {
    for odd in [
        &[][..],
        &[""],
        &["a"],
        &["a", "b"],
        &["1:a", "", ":", "12:"],
        &["日本", "\0", "a b"],
    ] {
        assert_eq!(first_name(&list(odd.iter().copied())), odd.first().copied());
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
