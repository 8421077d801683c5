use super::*;

#[test]
fn pauses_double_up_to_the_longest() {
    let pauses = |rule: BackOff| {
        let pauses = (0..8).map(|failures| rule.after(failures).as_millis());
        pauses.collect::<Vec<_>>()
    };
    assert_eq!(pauses(BackOff::SERVER), [0, 10, 20, 40, 80, 160, 250, 250]);
    assert_eq!(
        pauses(BackOff::POLL),
        [0, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000]
    );
    for rule in [BackOff::SERVER, BackOff::BACKGROUND, BackOff::POLL] {
        assert_eq!(rule.after(u32::MAX), rule.longest);
    }
    assert_eq!(pauses(BackOff::REFUSED)[1..], [1_000; 7]);
}

#[test]
fn an_attempt_is_due_sooner_while_a_thread_waits_for_it() {
    let mut next = NextTry::at_once();
    assert!(next.due(false) <= Instant::now() && !next.has_failed());
    let pauses = |next: &NextTry| [true, false].map(|waits| next.due(waits) - next.since);
    for failures in 1..20 {
        next = next.after_failure(next.since);
        let expected = [BackOff::SERVER, BackOff::BACKGROUND];
        assert_eq!(pauses(&next), expected.map(|rule| rule.after(failures)));
    }
    // The first failure in a while.
    next = next.after_failure(next.since + 5 * BackOff::BACKGROUND.longest);
    assert_eq!(pauses(&next), [BackOff::SERVER.first; 2]);
    assert!(next.has_failed());
    let refused = NextTry::after_refusal();
    assert_eq!(pauses(&refused), [BackOff::REFUSED.first; 2]);
}
