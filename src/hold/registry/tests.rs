use super::*;

use crate::hold::entry::wake;
use crate::local::lock::Mode;
use crate::net::call::Call;
use crate::net::request::Request;
use crate::protocol::reentrant;

const LATER: Duration = Duration::from_millis(100);

fn registry() -> Registry {
    Registry::new("".into(), false, GAP, GAP, &Arc::new(Owners::of("u")))
}

fn key(n: usize) -> EntryKey {
    EntryKey {
        kind: &reentrant::KIND,
        id: n.to_string().into(),
    }
}

fn names(registry: &Registry, n: usize) -> Vec<Arc<Entry>> {
    let get = |n| registry.get(&key(n)).expect("a good name");
    (0..n).map(get).collect()
}

fn enter(entry: &Entry) {
    entry.lock().lock.begin_adopting(Mode::Exclusive);
}

fn leave(entry: &Entry) {
    let now = Instant::now();
    wake(entry.lock().lock.withdraw_contender(Mode::Exclusive, now));
}

/// Sweeps until there is nothing left to come back for, but no more than `most` times.
fn sweeps(registry: &Registry, most: usize) -> usize {
    let mut now = Instant::now();
    let sweep = |n: &usize| {
        now += LATER;
        assert!(*n < most, "{most} sweeps are not enough");
        registry.sweep(now)
    };
    (0..).take_while(sweep).count() + 1
}

#[test]
fn entries_in_use_are_not_looked_at_again() {
    let registry = registry();
    let mut known = names(&registry, 1_000);
    known.iter().for_each(|entry| enter(entry));
    let now = Instant::now();
    // Every entry is checked once, since it was listed when it was made.
    assert!(!registry.sweep(now + LATER));
    // Of the thousand entries one becomes free, and only that one is listed.
    leave(&known.pop().expect("a thousand"));
    assert_eq!(registry.all.free.lock().len(), 1);
    assert!(!registry.sweep(now + 3 * LATER));
    assert_eq!(registry.len(), 999);
    known.iter().for_each(|entry| leave(entry));
    drop(known);
    assert_eq!(sweeps(&registry, 2), 1);
    assert_eq!(registry.len(), 0);
}

#[test]
fn an_entry_that_threads_come_to_and_leave_is_listed_once() {
    let registry = registry();
    let entry = names(&registry, 1).remove(0);
    for _ in 0..100 {
        enter(&entry);
        leave(&entry);
    }
    assert_eq!(registry.all.free.lock().len(), 1);
    enter(&entry);
    assert_eq!(sweeps(&registry, 1), 1);
    assert_eq!(registry.all.free.lock().len(), 0);
    leave(&entry);
    for _ in 0..100 {
        enter(&entry);
        leave(&entry);
    }
    assert_eq!(registry.all.free.lock().len(), 1);
    drop(entry);
    assert_eq!(sweeps(&registry, 1), 1);
    assert_eq!(registry.len(), 0);
}

#[test]
fn an_entry_is_kept_for_the_tenure_of_its_semaphore() {
    let entry = names(&registry(), 1).remove(0);
    let (mut state, now) = (entry.lock(), Instant::now());
    let cohort = &mut state.local_semaphore().cohort;
    cohort.released(Call::question(Request::command("a test", &["PING"])), now);
    assert!(state.is_free() && !state.is_idle(now));
    assert!(state.is_idle(now + 2 * GAP));
}

#[test]
fn entries_that_threads_are_about_to_use_stay() {
    let registry = registry();
    let known = names(&registry, 5_000);
    let mut now = Instant::now();
    for _ in 0..20 {
        now += LATER;
        assert!(registry.sweep(now));
    }
    assert_eq!(registry.len(), 5_000);
    drop(known);
    assert!(sweeps(&registry, 30) >= 2, "bounded work in one sweep");
    assert_eq!(registry.len(), 0);
}

#[test]
fn an_unregistered_entry_is_not_listed() {
    let registry = registry();
    let entry = registry.unregistered(&key(0)).expect("a good name");
    enter(&entry);
    leave(&entry);
    assert!(!registry.sweep(Instant::now() + LATER));
}
