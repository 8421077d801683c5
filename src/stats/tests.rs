use super::*;

#[test]
fn a_delay_is_forgotten_within_a_minute() {
    let recent = Recent::default();
    // From the beginning of a half on.
    let begin = time::instant(100 * Recent::HALF);
    let at = |secs| begin + std::time::Duration::from_secs(secs);
    assert_eq!(recent.longest(at(0)), 0);
    recent.add(7, at(0));
    recent.add(3, at(29));
    assert_eq!(recent.longest(at(29)), 7);
    recent.add(2, at(31));
    assert_eq!(recent.longest(at(40)), 7, "of the half before");
    assert_eq!(recent.longest(at(62)), 2);
    assert_eq!(recent.longest(at(100)), 0);
}

#[test]
fn every_number_has_a_name() {
    let stats = Counters::default().read();
    let names: Vec<_> = stats.iter().map(|(name, _, _)| name).collect();
    assert!(names.contains(&"acquired") && names.contains(&"waiting"));
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len());
}
