use super::*;

#[test]
fn pointers_to_a_lock_of_any_kind_are_locks_and_are_shown() {
    fn hold(lock: impl Lock) -> String {
        let guard = lock.try_lock_for(Duration::ZERO).expect("no error");
        let owned = lock.lock_owned().expect("no error");
        format!("{lock:?} {guard:?} {}", owned.name())
    }
    let lock = FakeLock::new("report");
    let expected = "FakeLock { name: \"report\", .. } Some(FakeGuard { name: \"report\", valid: true, .. }) report";
    assert_eq!(hold(Box::new(lock.clone()) as Box<dyn Lock>), expected);
    assert_eq!(hold(Arc::new(lock) as Arc<dyn Lock>), expected);
}
