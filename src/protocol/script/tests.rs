use super::*;

use proptest::prelude::*;

use crate::net::strange;

#[test]
fn replies_become_enums() {
    let taken = |tokens| {
        Some(AcquireReply::Taken {
            tokens,
            ttl_left: None,
        })
    };
    let tokens = |of: &[&str]| {
        let of = of.iter().map(|token| Value::BulkString((*token).into()));
        acquired(Value::Array(of.collect()), true).ok()
    };
    assert_eq!(acquired(Value::Nil, false).ok(), taken(None));
    let most = u64::MAX / 2;
    assert_eq!(
        tokens(&["7", "9223372036854775807"]),
        taken(Some((7, most)))
    );
    assert_eq!(tokens(&["7", "7"]), taken(Some((7, 7))));
    for odd in [
        &["8", "7"][..],
        &["0", "7"],
        &["-1", "7"],
        &["7", ""],
        &["7"],
        &[],
    ] {
        assert_eq!(tokens(odd), None, "{odd:?}");
    }
    let seven_ms = Some(Duration::from_millis(7));
    assert_eq!(
        acquired(Value::Int(7), false).ok(),
        Some(AcquireReply::Busy {
            retry_after: seven_ms,
            behind: None
        })
    );
    assert_eq!(
        acquired(Value::Int(-1), true).ok(),
        Some(AcquireReply::Busy {
            retry_after: None,
            behind: None
        })
    );
    assert!(acquired(Value::Okay, false).is_err());
    assert!(acquired(Value::Nil, true).is_err());
    let two = vec![Value::BulkString("7".into()), Value::BulkString("7".into())];
    assert!(acquired(Value::Array(two), false).is_err());
    assert!(acquired(PLACE_LOST, false).is_err());
    assert_eq!(released(&Value::Int(2)).ok(), Some(Ok(2)));
    assert_eq!(
        released(&Value::Int(-1)).ok(),
        Some(Err(LossReason::Forced))
    );
    assert_eq!(
        released(&Value::Int(-2)).ok(),
        Some(Err(LossReason::TakenOver))
    );
    assert!(released(&Value::Int(-3)).is_err());
    let in_turn = |taken, ms, behind: &str| {
        let behind = Value::BulkString(behind.into());
        acquired_in_turn(Value::Array(vec![
            Value::Int(taken),
            Value::Int(ms),
            behind,
        ]))
        .ok()
    };
    let taken = |ttl_left| {
        Some(AcquireReply::Taken {
            tokens: None,
            ttl_left,
        })
    };
    let busy = |retry_after, behind: &str| {
        let behind = Some(behind.to_owned());
        Some(AcquireReply::Busy {
            retry_after,
            behind,
        })
    };
    assert_eq!(in_turn(1, 7, ""), taken(seven_ms));
    assert_eq!(in_turn(1, -2, ""), taken(None));
    assert_eq!(in_turn(0, 7, "u:3"), busy(seven_ms, "u:3"));
    assert_eq!(in_turn(0, -1, ""), busy(None, ""));
    assert_eq!(in_turn(2, 7, ""), None);
    assert!(acquired_in_turn(Value::Nil).is_err());
    assert_eq!(renewed(&Value::Int(7)).ok(), Some(Ok(())));
    assert_eq!(shortened_to(&Value::Int(7)), seven_ms);
    assert_eq!(shortened_to(&Value::Int(1)), None);
    assert_eq!(renewed(&Value::Int(0)).ok(), Some(Err(LossReason::Forced)));
    assert_eq!(
        renewed(&Value::Int(-1)).ok(),
        Some(Err(LossReason::TakenOver))
    );
    assert_eq!(
        permits_acquired(Value::Array(vec![Value::Int(7)])).ok(),
        Some(PermitsAcquired::Taken { ends_at: 7 })
    );
    for (reply, is_set) in [(-1, true), (-2, false)] {
        let too_few = PermitsAcquired::TooFew {
            retry_after: None,
            is_set,
        };
        assert_eq!(permits_acquired(Value::Int(reply)).ok(), Some(too_few));
    }
    assert!(permits_acquired(Value::Nil).is_err());
    assert!(permits_acquired(Value::Array(Vec::new())).is_err());
}

#[test]
fn a_latch_without_anything_left_is_open() {
    let state = |count: &str, round: &str| {
        let parts = [count, round].map(|part| Value::BulkString(part.into()));
        latch_state(Value::Array(parts.into())).ok()
    };
    let closed = |count, round: &str| {
        let round = round.into();
        Some(LatchState::Closed { count, round })
    };
    assert_eq!(latch_state(Value::Nil).ok(), Some(LatchState::Open));
    assert_eq!(state("0", "u:7"), Some(LatchState::Open));
    assert_eq!(state("-3", ""), Some(LatchState::Open));
    assert_eq!(state("3", "u:7"), closed(3, "u:7"));
    let most = i64::MAX.unsigned_abs();
    assert_eq!(state("9223372036854775807", ""), closed(most, ""));
    assert_eq!(state("three", ""), None);
    assert!(latch_state(Value::Int(3)).is_err());
    assert!(latch_state(Value::Array(Vec::new())).is_err());
}

#[test]
fn a_lease_is_rounded_up_to_milliseconds() {
    assert_eq!(lease_ms(Duration::from_micros(10_001)), 11);
    assert_eq!(lease_ms(Duration::from_millis(10)), 10);
    // `lua/lock_keep.lua` with 0 would keep the lock without a TTL.
    assert_eq!(lease_ms(Duration::from_nanos(1)), 1);
    assert_eq!(lease_ms(Duration::from_nanos(10_000_001)), 11);
    assert_eq!(lease_ms(Duration::ZERO), 0);
    assert_eq!(lease_ms(Duration::MAX), u64::MAX);
}

#[test]
fn with_sharded_channels_no_script_publishes_to_plain_ones() {
    let mut publishing = 0;
    for (file, text) in lua::ALL {
        let sharded = Script::new(text).sharded_text();
        let calls = text.matches("'publish'").count();
        assert_eq!(sharded.matches("'spublish'").count(), calls, "{file}");
        assert!(!sharded.contains("'publish'"), "{file}");
        publishing += usize::from(calls > 0);
    }
    assert!(publishing > 20, "{publishing}");
}

proptest! {
    #![proptest_config(strange::cases(512))]

    #[test]
    fn whatever_a_server_answers_it_is_understood_or_an_error(reply in strange::value()) {
        for has_tokens in [false, true] {
            match acquired(reply.clone(), has_tokens) {
                Ok(AcquireReply::Taken { tokens, .. }) => prop_assert_eq!(tokens.is_some(), has_tokens),
                Ok(AcquireReply::Busy { .. }) => prop_assert_ne!(&reply, &PLACE_LOST),
                Err(unexpected) => {
                    prop_assert!(unexpected.to_string().chars().count() <= 220);
                }
            }
        }
        let nil = matches!(reply, Value::Nil);
        let int = matches!(reply, Value::Int(_));
        let array = matches!(reply, Value::Array(_));
        prop_assert!(acquired_in_turn(reply.clone()).is_err() || array);
        prop_assert!(permits_acquired(reply.clone()).is_err() || array || int);
        prop_assert!(released(&reply).is_err() || int);
        prop_assert!(renewed(&reply).is_err() || int);
        prop_assert!(shortened_to(&reply).is_none() || int);
        prop_assert!(latch_state(reply.clone()).is_err() || array || nil);
        prop_assert!(integer(reply.clone()).is_err() || int);
    }

    #[test]
    fn a_lease_is_never_rounded_down_to_nothing(secs in any::<u64>(), nanos in 0..1_000_000_000_u32) {
        for lease in [
            Duration::new(secs, nanos),
            Duration::new(0, nanos),
            Duration::from_millis(secs),
            Duration::from_nanos(secs),
        ] {
            let ms = lease_ms(lease);
            prop_assert!(u128::from(ms) >= lease.as_millis() || ms == u64::MAX);
            prop_assert!(u128::from(ms) <= lease.as_millis() + 1);
            prop_assert!(lease <= Duration::from_millis(ms) || ms == u64::MAX);
            prop_assert_eq!(lease.is_zero(), ms == 0);
        }
    }
}
