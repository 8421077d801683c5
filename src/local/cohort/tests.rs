use super::*;

const TENURE: Duration = Duration::from_millis(8);
const TICK: Duration = Duration::from_nanos(1);

fn started(tenure: Duration, now: Instant) -> Cohort<u8> {
    let mut cohort = Cohort::new(tenure);
    cohort.granted(now);
    cohort
}

#[test]
fn the_tenure_counts_from_the_first_grant() {
    let now = Instant::now();
    let mut cohort: Cohort<u8> = Cohort::new(TENURE);
    assert!(!cohort.is_young(now) && !cohort.has_started());
    cohort.granted(now);
    cohort.granted(now + TENURE - TICK);
    assert!(cohort.is_young(now + TENURE - TICK));
    assert!(!cohort.is_young(now + TENURE));
    assert!(cohort.has_started());
}

#[test]
fn it_yields_once_after_a_whole_tenure() {
    let now = Instant::now();
    let mut cohort = started(TENURE, now);
    cohort.released(1, now + TENURE - TICK);
    assert_eq!(cohort.yield_after(now + TENURE - TICK), None);
    assert_eq!(cohort.yield_after(now + TENURE), Some(1));
    assert_eq!(cohort.yield_after(now + TENURE), None);
    assert!(!cohort.has_started());
}

#[test]
fn a_gap_longer_than_the_tenure_and_the_limit_ends_it() {
    for tenure in [Duration::ZERO, GAP / 2, TENURE] {
        let now = Instant::now();
        let longest = tenure.max(GAP);
        let mut cohort = started(tenure, now);
        cohort.released(1, now);
        assert!(!cohort.is_forgettable(now + longest));
        assert_eq!(cohort.clone().yield_after(now + longest), Some(1));
        assert!(cohort.is_forgettable(now + longest + TICK));
        assert_eq!(cohort.yield_after(now + longest + TICK), None);
        assert!(!cohort.has_started());
    }
}

#[test]
fn it_does_not_yield_if_nobody_was_notified_within_the_last_tenure() {
    let now = Instant::now();
    let ends = now + TENURE;
    let mut cohort = started(TENURE, now);
    cohort.record_alone(now);
    cohort.released(1, now + TICK);
    assert_eq!(
        cohort.clone().yield_after(ends),
        Some(1),
        "nothing is known"
    );
    // The reply arrives a whole tenure after its release was sent.
    cohort.granted(now + TENURE + TICK);
    cohort.record_alone(now + TENURE + TICK);
    let ends = ends + TENURE;
    cohort.released(2, ends);
    assert_eq!(
        cohort.clone().yield_after(ends + TICK),
        Some(2),
        "too long ago"
    );
    let mut notified = cohort.clone();
    notified.granted(ends);
    assert_eq!(notified.yield_after(ends), Some(2));
    let mut alone = cohort.clone();
    assert_eq!(alone.yield_after(ends), None);
    // The next tenure begins with the next grant; replies to releases of this one do not count for it.
    assert!(!alone.has_started());
    alone.granted(ends);
    alone.released(3, ends + TENURE);
    assert_eq!(alone.yield_after(ends + TENURE), Some(3));
}

#[test]
fn without_a_tenure_it_yields_after_each_release() {
    let now = Instant::now();
    let mut cohort = started(Duration::ZERO, now);
    cohort.released(1, now);
    cohort.record_alone(now);
    cohort.released(2, now);
    assert_eq!(cohort.yield_after(now), Some(2));
}

#[test]
fn others_ask_first_for_a_tenure_at_a_time_until_each_may_have_had_one() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let mut cohort: Cohort<u8> = Cohort::new(TENURE);
    assert_eq!(cohort.owes(now), None);
    for others in [4, 200] {
        let ends = u64::from(others) * 8;
        cohort.owe(others, now);
        for ms in 0..ends - 8 {
            // The lock is held by another process, or the call is over.
            cohort.end();
            assert_eq!(cohort.owes(at(ms)), Some(TENURE), "{others} {ms}");
        }
        assert!(!cohort.is_forgettable(at(ends - 1)));
        let last = Some(Duration::from_millis(1));
        assert_eq!(cohort.owes(at(ends - 1)), last, "the debt ends");
        assert_eq!(cohort.owes(at(ends)), None);
        assert!(cohort.is_forgettable(at(ends)));
    }
}

#[test]
fn nothing_is_owed_to_one_other_nor_after_a_grant() {
    let now = Instant::now();
    let mut cohort: Cohort<u8> = Cohort::new(TENURE);
    cohort.owe(1, now);
    assert_eq!(cohort.owes(now), None);
    cohort.owe(2, now);
    assert_eq!(cohort.owes(now), Some(TENURE));
    cohort.granted(now);
    assert_eq!(cohort.owes(now), None);
    cohort.owe(2, now);
    assert_eq!(
        cohort.owes(now),
        None,
        "it was granted before the reply came"
    );
}

#[test]
fn without_a_release_a_question_ends_nothing() {
    let now = Instant::now();
    let mut cohort = started(TENURE, now);
    assert_eq!(cohort.yield_after(now + 9 * TENURE), None);
    assert!(cohort.has_started());
}
