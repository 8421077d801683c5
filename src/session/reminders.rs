//! Has threads that wait without a deadline look from time to time how long they have waited.
//!
//! A wait with a deadline costs the system half a microsecond more, a tenth of a hand-over among eight threads on one lock.
//! So the watchdog wakes those threads, and sleeps until it has to do so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::local::waiter::CancelToken;

/// How often a thread looks until it has waited for so long that this is logged.
const LOOKS: u32 = 4;

pub(super) struct Reminders {
    every: Duration,
    /// When the threads are reminded next, once that is known.
    next_at: Mutex<Option<Instant>>,
    /// Threads may wait, and are reminded until there are none.
    are_on: AtomicBool,
}

impl Reminders {
    /// `after`: when a wait is logged; never if that is zero.
    pub(super) fn new(after: Duration) -> Self {
        Self {
            every: after / LOOKS,
            next_at: Mutex::default(),
            are_on: AtomicBool::new(false),
        }
    }

    /// A thread begins to wait; `true` if [`remind`](Self::remind) has to be called for it.
    pub(super) fn begin(&self) -> bool {
        // Only a read for all but the first: threads that hand a lock over come here each time.
        let are_on = self.every.is_zero() || self.are_on.load(Ordering::SeqCst);
        !are_on && !self.are_on.swap(true, Ordering::SeqCst)
    }

    /// Reminds the threads that `all` knows of, when it is time. Returns when to call this again, if any may wait.
    pub(super) fn remind(&self, all: &CancelToken, now: Instant) -> Option<Instant> {
        let mut next_at = self.next_at.lock();
        let at = match self.are_on.load(Ordering::SeqCst) {
            true => *next_at.get_or_insert(now + self.every),
            false => return None,
        };
        if now < at {
            return Some(at);
        }
        // Before looking: a thread that comes now is seen here, or finds them off and asks for the next time.
        self.are_on.store(false, Ordering::SeqCst);
        *next_at = None;
        if all.look_again() {
            self.are_on.store(true, Ordering::SeqCst);
            *next_at = Some(now + self.every);
        }
        *next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::local::waiter::Waiter;

    #[test]
    fn those_who_wait_are_reminded_until_there_are_none() {
        let (reminders, all) = (Reminders::new(Duration::from_secs(4)), CancelToken::new());
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert_eq!(reminders.remind(&all, at(0)), None, "nobody has asked");
        let waiter = Waiter::<()>::new();
        all.watch(&waiter);
        assert!(reminders.begin() && !reminders.begin(), "one asks for all");
        assert_eq!(reminders.remind(&all, at(0)), Some(at(1)));
        assert_eq!(reminders.remind(&all, at(0)), Some(at(1)), "not yet");
        assert_eq!(reminders.remind(&all, at(1)), Some(at(2)));
        assert!(!reminders.begin());
        drop(waiter);
        assert_eq!(reminders.remind(&all, at(1)), Some(at(2)));
        assert_eq!(reminders.remind(&all, at(2)), None);
        assert!(reminders.begin(), "the next one asks again");
        let never = Reminders::new(Duration::ZERO);
        assert!(!never.begin() && never.remind(&all, at(9)).is_none());
    }
}
