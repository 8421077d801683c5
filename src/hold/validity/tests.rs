use super::*;

use std::collections::VecDeque;

use proptest::prelude::*;

const RENEWED: LeasePolicy = LeasePolicy::Renewed { max_hold: None };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn what_a_majority_keeps_ends_when_the_majority_does() {
    let ttl = Duration::from_secs(60);
    let mut lease = Lease::new(LeasePolicy::Fixed(ttl), ttl);
    lease.set_has_parts();
    let begin = Instant::now();
    lease.grant(begin, begin);
    for secs in [70, 50] {
        let until = begin + Duration::from_secs(secs);
        lease.set_certain_until(until);
        assert_eq!(lease.until(), time::nanos(until));
        let duty = lease.duty(until, Mode::Exclusive);
        assert!(matches!(duty, Duty::Wait(_)), "its parts are lost");
    }
}

#[test]
fn a_limit_on_the_whole_hold_ends_it_although_it_is_renewed() {
    let policy = LeasePolicy::Renewed {
        max_hold: Some(ms(500)),
    };
    let begin = Instant::now();
    for has_parts in [false, true] {
        let mut lease = Lease::new(policy, ms(300));
        lease.has_parts = has_parts;
        lease.grant(begin, begin + ms(10));
        lease.confirm_renewal(begin + ms(250), ms(300));
        let duty = |at| lease.duty(begin + ms(at), Mode::Exclusive);
        assert!(!matches!(duty(509), Duty::Lose(_)));
        assert_eq!(duty(510), Duty::Lose(LossReason::MaxHold));
        let looks = lease.look_again(time::nanos(begin + ms(9_000)));
        assert_eq!(looks, time::nanos(begin + ms(510)));
    }
}

#[test]
fn a_renewal_that_failed_is_why_a_hold_is_lost_until_one_is_confirmed() {
    let begin = Instant::now();
    let mut lease = Lease::new(RENEWED, ms(300));
    lease.grant(begin, begin);
    lease.record_renewal_due();
    let failed = |lease: &mut Lease, at| lease.record_renewal_failed(begin + ms(at));
    assert_eq!(lease.unconfirmed_for(begin + ms(100)), Some(ms(100)));
    assert_eq!(failed(&mut lease, 100), Some(ms(195)));
    assert_eq!(failed(&mut lease, 110), None, "it is reported once");
    let over = |lease: &Lease| lease.duty(begin + ms(2_000), Mode::Exclusive);
    assert_eq!(over(&lease), Duty::Lose(LossReason::Unreachable));
    lease.confirm_renewal(begin + ms(100), ms(300));
    assert_eq!(over(&lease), Duty::Lose(LossReason::Expired));
    assert_eq!(lease.unconfirmed_for(begin + ms(150)), None);
    assert_eq!(
        failed(&mut lease, 150),
        Some(ms(245)),
        "once for each outage"
    );
    assert_eq!(failed(&mut lease, 2_000), None, "it is lost by then");
}

#[test]
fn a_renewal_that_ends_before_an_earlier_longer_lease_is_confirmed_as_well() {
    let begin = Instant::now();
    let mut lease = Lease::new(LeasePolicy::Fixed(ms(60_000)), ms(60_000));
    lease.grant(begin, begin);
    let until = lease.until();
    lease.set_policy(RENEWED, ms(300), begin);
    lease.record_renewal_due();
    let failed = |lease: &mut Lease, at| lease.record_renewal_failed(begin + ms(at));
    assert!(failed(&mut lease, 90).is_some());
    lease.confirm_renewal(begin + ms(100), ms(300));
    assert_eq!(lease.until(), until);
    assert_eq!(lease.unconfirmed_for(begin + ms(110)), None);
    assert!(failed(&mut lease, 120).is_some(), "the first since then");
}

#[test]
fn a_lease_of_another_length_counts_from_when_it_was_asked_for() {
    let begin = Instant::now();
    let mut lease = Lease::new(RENEWED, ms(10_000));
    lease.grant(begin, begin);
    let until_before = lease.until();
    // The request for a longer lease may not arrive, and that for a shorter one may.
    lease.announce_fixed(begin + ms(100), ms(20_000));
    assert_eq!(lease.until(), until_before);
    lease.announce_fixed(begin + ms(100), ms(1_000));
    assert_eq!(lease.until(), time::nanos(begin + ms(100 + 1_000 - 12)));
    assert_eq!(lease.longest(), ms(20_000));
    assert_eq!(lease.policy(), LeasePolicy::Fixed(ms(1_000)));
    // A renewal that was built before does not count.
    lease.confirm_renewal(begin + ms(90), ms(10_000));
    assert_eq!(lease.until(), time::nanos(begin + ms(1_088)));
    // Nor does its lease count if the hold is renewed again by then: Redis may have executed it before the others.
    lease.set_policy(RENEWED, ms(1_000), begin);
    lease.confirm_renewal(begin + ms(150), ms(10_000));
    assert_eq!(lease.until(), time::nanos(begin + ms(1_138)));
    lease.replace(begin + ms(100), ms(20_000));
    assert_eq!(lease.until(), time::nanos(begin + ms(19_898)));
}

#[test]
fn a_lock_that_somebody_keeps_shortening_is_seen_to_in_time_whenever_they_die() {
    // A Redisson client shortens the key to `to_live` every third of that; all in milliseconds.
    for to_live in [90_u64, 900, 4_000, 9_999, 30_000] {
        for phase in (0..100).map(|part| to_live / 3 * part / 100) {
            let shortened = |n: u64| n * to_live / 3;
            // This client's renewal comes `phase` after one of these rounds.
            let (mut now, mut pause) = (shortened(1) + phase, KEEP_LOCK);
            let mut found = Some(Duration::from_millis(to_live - phase));
            for _ in 0..50 {
                pause = keep_lock_again(pause, found);
                let last_renewal = now;
                now += u64::try_from(pause.as_millis()).expect("short");
                let mut rounds = (1..).map(shortened).skip_while(|at| *at <= last_renewal);
                let first = rounds.next().expect("endless");
                if first > now {
                    found = None;
                    continue;
                }
                assert!(now < first + to_live, "{to_live} {phase}: {pause:?}");
                let last = rounds.take_while(|at| *at <= now).last();
                let ago = now - last.unwrap_or(first);
                found = Some(Duration::from_millis(to_live - ago));
            }
        }
    }
    // The Redisson client has stopped shortening the key.
    let mut pause = keep_lock_again(KEEP_LOCK, Some(Duration::ZERO));
    assert!(pause > Duration::ZERO);
    for _ in 0..20 {
        pause = keep_lock_again(pause, None);
    }
    assert_eq!(pause, KEEP_LOCK);
}

#[derive(Debug, Clone)]
enum Step {
    /// The watchdog builds a renewal.
    Begin,
    /// The oldest renewal is sent and confirmed.
    Renewed {
        sent: u64,
    },
    AskFor {
        ttl: u64,
    },
    WasSet {
        ttl: u64,
    },
    Change {
        ttl: u64,
        is_renewed: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let ttl = || 10..5_000_u64;
    let step = prop_oneof![
        Just(Step::Begin),
        (0..40_u64).prop_map(|sent| Step::Renewed { sent }),
        ttl().prop_map(|ttl| Step::AskFor { ttl }),
        ttl().prop_map(|ttl| Step::WasSet { ttl }),
        (ttl(), any::<bool>()).prop_map(|(ttl, is_renewed)| Step::Change { ttl, is_renewed }),
    ];
    prop::collection::vec((1..200_u64, step), 1..40)
}

proptest! {
    /// The hold is never certain for longer than the requests allow that Redis has executed, each counted from when
    /// it was sent. Every lease that may have arrived is within `longest`.
    #[test]
    fn a_hold_is_never_certain_for_longer_than_what_was_sent(steps in steps()) {
        let begin = Instant::now();
        let mut lease = Lease::new(RENEWED, ms(1_000));
        lease.grant(begin, begin);
        let (mut now, mut longest, mut renewals) = (begin, 1_000, VecDeque::new());
        // When the hold ends in Redis.
        let mut ends = begin + ms(1_000);
        for (pause, step) in steps {
            now += ms(pause);
            let until_before = lease.until();
            match step {
                Step::Begin => renewals.push_back(lease.renewal_ttl()),
                Step::Renewed { sent } => {
                    let Some(carried) = renewals.pop_front() else {
                        continue;
                    };
                    let sent_at = now - ms(sent.min(pause));
                    ends = ends.max(sent_at + carried);
                    lease.confirm_renewal(sent_at, carried);
                    prop_assert!(lease.until() >= until_before);
                }
                Step::AskFor { ttl } => {
                    longest = longest.max(ttl);
                    lease.announce_fixed(now, ms(ttl));
                    // Redis may execute the request or not.
                    ends = ends.min(now + ms(ttl));
                    prop_assert!(lease.until() <= until_before);
                    prop_assert!(lease.until() <= end_of(now, span(ms(ttl))));
                }
                Step::WasSet { ttl } => {
                    longest = longest.max(ttl);
                    lease.record_request(ms(ttl));
                    lease.replace(now, ms(ttl));
                    ends = now + ms(ttl);
                    prop_assert_eq!(lease.until(), end_of(now, span(ms(ttl))));
                }
                Step::Change { ttl, is_renewed } => {
                    longest = longest.max(ttl);
                    let policy = if is_renewed { RENEWED } else { LeasePolicy::Fixed(ms(ttl)) };
                    lease.set_policy(policy, ms(ttl), now);
                    ends = ends.max(now + ms(ttl));
                    prop_assert_eq!(lease.until(), until_before);
                    prop_assert_eq!(lease.policy(), policy);
                }
            }
            prop_assert_eq!(lease.longest(), ms(longest));
            prop_assert!(lease.until() <= time::nanos(ends));
            prop_assert!(lease.until() <= end_of(now, span(ms(longest))));
            prop_assert!(lease.due_after(now, Mode::Exclusive) <= lease.until());
            match lease.duty(now, Mode::Exclusive) {
                Duty::Lose(_) => prop_assert!(time::nanos(now) >= lease.until()),
                _ => prop_assert!(time::nanos(now) < lease.until()),
            }
        }
    }
}
