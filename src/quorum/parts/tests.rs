use std::time::Duration;

use super::*;

fn at(begin: Instant, ms: u64) -> Instant {
    begin + Duration::from_millis(ms)
}

/// Three of five have granted it: two until 100 ms, one until 80 ms.
fn granted(begin: Instant) -> Parts {
    let mut parts = Parts::new(Majority::of(5));
    for (node, until) in [100, 100, 80].into_iter().enumerate() {
        assert!(parts.keep(node, at(begin, until), at(begin, 1)));
    }
    assert_eq!(parts.grant(at(begin, 2)), Some(at(begin, 80)));
    parts
}

#[test]
fn each_part_counts_for_its_own_time_and_a_late_grant_as_well() {
    let begin = Instant::now();
    let mut parts = granted(begin);
    assert!(parts.keep(3, at(begin, 90), at(begin, 70)));
    assert_eq!(parts.certain_until(at(begin, 71)), Some(at(begin, 90)));
    assert!(parts.keep(0, at(begin, 200), at(begin, 75)));
    // The time of the third part is over, and its renewal arrives too late.
    assert_eq!(parts.certain(at(begin, 80)), 3);
    assert!(!parts.keep(2, at(begin, 200), at(begin, 81)));
    assert_eq!(parts.certain_until(at(begin, 82)), Some(at(begin, 90)));
    assert_eq!((parts.part(2), parts.part(4)), (Part::Out, Part::Asked));
    // The time of a grant is over when it arrives.
    assert!(!parts.keep(4, at(begin, 85), at(begin, 86)));
    assert_eq!(parts.part(4), Part::Out);
}

#[test]
fn with_fewer_than_a_majority_it_is_lost_for_good() {
    let begin = Instant::now();
    for late in [false, true] {
        let mut parts = granted(begin);
        let now = match late {
            false => {
                parts.lose(1);
                at(begin, 10)
            }
            true => at(begin, 80),
        };
        // No late grant and no renewal makes the hold count again.
        assert!(!parts.keep(3, at(begin, 300), now));
        assert!(!parts.keep(0, at(begin, 300), now));
        assert_eq!((parts.certain(now), parts.certain_until(now)), (0, None));
    }
}

#[test]
fn a_round_without_a_majority_grants_nothing() {
    let begin = Instant::now();
    let mut parts = Parts::new(Majority::of(3));
    parts.keep(0, at(begin, 100), begin);
    parts.keep(1, at(begin, 50), begin);
    parts.lose(2);
    assert_eq!(parts.grant(at(begin, 50)), None);
    assert!(!parts.is_granted());
}
