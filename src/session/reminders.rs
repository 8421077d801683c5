//! Has threads that wait without a deadline look from time to time how long they have waited.
//!
//! A wait with a deadline costs the system half a microsecond more, a tenth of a hand-over among eight threads on one lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::local::waiter::CancelToken;

/// How often a thread looks until it has waited for so long that this is logged.
const LOOKS: u32 = 4;

pub(super) struct Reminders {
    every: Duration,
    /// When the threads looked last, while there are any.
    at: Mutex<Option<Instant>>,
    /// They are reminded until there are none.
    are_on: AtomicBool,
}

impl Reminders {
    /// `after`: when a wait is logged; never if that is zero.
    pub(super) fn new(after: Duration) -> Self {
        Self {
            every: after / LOOKS,
            at: Mutex::default(),
            are_on: AtomicBool::new(false),
        }
    }

    /// Whether a thread that begins to wait is going to be reminded without asking for it.
    pub(super) fn are_on(&self) -> bool {
        self.are_on.load(Ordering::SeqCst)
    }

    /// Reminds those that `all` knows of, when it is time; `true` while there may be any.
    pub(super) fn remind(&self, all: &CancelToken, now: Instant) -> bool {
        let mut at = self.at.lock();
        if now.saturating_duration_since(*at.get_or_insert(now)) < self.every {
            return true;
        }
        // Before looking, so that whoever comes now is seen here or asks for the next time.
        self.are_on.store(false, Ordering::SeqCst);
        let are_some = !self.every.is_zero() && all.look_again();
        self.are_on.store(are_some, Ordering::SeqCst);
        *at = are_some.then_some(now);
        are_some
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
        let waiter = Waiter::<()>::new();
        all.watch(&waiter);
        assert!(reminders.remind(&all, at(0)) && !reminders.are_on());
        assert!(reminders.remind(&all, at(1)) && reminders.are_on());
        assert!(reminders.remind(&all, at(2)) && reminders.are_on());
        drop(waiter);
        assert!(!reminders.remind(&all, at(3)) && !reminders.are_on());
        assert!(
            !Reminders::new(Duration::ZERO).remind(&all, at(0)),
            "nothing is logged"
        );
    }
}
