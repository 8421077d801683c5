//! The semaphores for which Redis was found to have no number of permits, so that each is logged once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::hold::entry::EntryKey;

/// How many semaphores are remembered. At one more, all are forgotten, and may be logged again.
const MOST: usize = 1024;

#[derive(Default)]
pub(crate) struct UnsetSemaphores {
    known: Mutex<HashSet<EntryKey>>,
    /// Whether `known` has any. A grant reads this first, and normally locks no mutex.
    are_some: AtomicBool,
}

impl UnsetSemaphores {
    /// Records that Redis has no number for this semaphore. Returns whether that is new.
    pub(crate) fn record_unset(&self, semaphore: &EntryKey) -> bool {
        let mut known = self.known.lock();
        if known.contains(semaphore) {
            return false;
        }
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(semaphore.clone());
        self.are_some.store(true, Ordering::Relaxed);
        true
    }

    /// Records that Redis has a number for this semaphore.
    ///
    /// If `record_unset` runs at the same time, the semaphore may stay in `known`. If its number then goes missing again,
    /// nothing is logged.
    pub(crate) fn record_set(&self, semaphore: &EntryKey) {
        if self.are_some.load(Ordering::Relaxed) {
            let mut known = self.known.lock();
            known.remove(semaphore);
            self.are_some.store(!known.is_empty(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::protocol::semaphore;

    #[test]
    fn a_missing_number_is_new_once_until_it_is_set_and_few_are_remembered() {
        let (unset, kind) = (UnsetSemaphores::default(), &semaphore::KIND);
        let key = |n: usize| EntryKey {
            kind,
            id: n.to_string().into(),
        };
        unset.record_set(&key(0));
        assert!(unset.record_unset(&key(0)) && !unset.record_unset(&key(0)));
        unset.record_set(&key(0));
        assert!(unset.record_unset(&key(0)), "it was set in between");
        assert!((1..=MOST).all(|n| unset.record_unset(&key(n))));
        assert!(unset.known.lock().len() <= MOST);
    }
}
