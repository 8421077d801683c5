use super::*;

#[test]
fn only_one_of_many_waits_for_long_and_none_for_replicas_that_are_away() {
    let (replicas, full) = (Replicas::default(), Duration::from_millis(800));
    let begin = Instant::now();
    let timeout = |ms| replicas.timeout(full, begin + Duration::from_millis(ms));
    assert_eq!(timeout(0), full);
    assert_eq!(timeout(1), full / SHARE);
    assert_eq!(timeout(799), full / SHARE);
    assert_eq!(timeout(800), full);
    replicas.answered(false);
    assert_eq!(timeout(1_700), AWAY);
    replicas.answered(true);
    assert_eq!(timeout(1_701), full);
}
