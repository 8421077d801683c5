use super::*;

#[test]
fn an_endless_wait_has_no_deadline() {
    assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
    let far = Instant::now() + Duration::from_secs(5);
    assert_eq!(Deadline::NEVER.earliest(far), far);
    assert!(!Deadline::NEVER.has_passed(far));
    assert!(Deadline::after(Duration::ZERO).has_passed(Instant::now()));
}

#[test]
fn only_the_callers_time_can_have_been_too_short() {
    let (now, timeout) = (Instant::now(), Duration::from_secs(3));
    let short = Deadline::at(now + timeout / 2).budget(now, timeout);
    let whole = Deadline::at(now + timeout).budget(now, timeout);
    assert!(short.was_too_short(true) && !short.was_too_short(false));
    assert!(!whole.was_too_short(true) && !whole.was_too_short(false));
    let concerns = |budget: Budget, unanswered| budget.concerns_all(unanswered, timeout);
    assert!(concerns(whole, true) && !concerns(whole, false));
    assert!(!concerns(short, true) && !concerns(short, false));
    // One of several clients, with a shorter command timeout than the others, ends the request for itself.
    assert!(!short.within(now, timeout / 4).was_too_short(true));
    assert!(short.within(now, timeout).was_too_short(true));
    // A request that begins later has less time.
    assert!(concerns(whole.within(now + timeout / 9, timeout), true));
    let begins = |at| whole.rest_from(now + at);
    assert!(concerns(begins(timeout / 3), true) && !concerns(begins(timeout * 2 / 3), true));
    assert_eq!(whole.half_from(now), now + timeout / 2);
    assert_eq!(Deadline::NEVER.budget(now, timeout).until, now + timeout);
}

#[test]
fn jitter_stays_below_its_span() {
    let span = Duration::from_secs(1);
    for _ in 0..1000 {
        let jittered = jittered(span);
        assert!(jittered <= span && jittered >= span / 4 * 3, "{jittered:?}");
    }
    assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
}

#[test]
fn those_who_wait_for_long_wake_at_few_moments_and_hardly_too_early() {
    let begin = Instant::now();
    let ticks = [(512, 64), (1023, 64), (1500, 128), (3000, 256), (5000, 256)];
    for (span, tick) in ticks {
        let (span, most) = (Duration::from_millis(span), 1000 / tick + 2);
        let tick = Duration::from_millis(tick);
        assert!(tick <= span / 8);
        let mut moments = std::collections::BTreeSet::new();
        for n in 0..1000 {
            let now = begin + Duration::from_millis(n);
            let at = on_shared_tick(now, span);
            assert!(at <= now + span && at > now + span - tick, "{n}");
            moments.insert(at);
        }
        assert!(moments.len() as u64 <= most, "{span:?} {}", moments.len());
    }
    // A short pause is not cut.
    let short = TICK * 8 - Duration::from_nanos(1);
    assert_eq!(on_shared_tick(begin, short), begin + short);
}

#[test]
fn moments_survive_being_numbers() {
    let now = Instant::now();
    assert_eq!(instant(nanos(now)), now);
}
