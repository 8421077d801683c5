//! From time to time wakes the threads that wait without a deadline, so that they can log how long they have waited.
//!
//! A wait with a deadline takes half a microsecond longer in the operating system. With eight threads on one lock that is
//! a tenth of the time of a hand-over. So such threads park without a deadline, and the watchdog wakes them when one may
//! have something to log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::local::waiter::CancelToken;

/// How many times a thread is woken within the time after which its wait is logged.
const LOOKS: u32 = 4;

pub(super) struct Reminders {
    every: Duration,
    /// When the threads are woken next, once that is known.
    next_at: Mutex<Option<Instant>>,
    /// Whether there may be threads that wait. `remind` clears this when it finds none.
    are_on: AtomicBool,
}

impl Reminders {
    /// A wait is logged once it has lasted for `after`; never if that is zero.
    pub(super) fn new(after: Duration) -> Self {
        Self {
            every: after / LOOKS,
            next_at: Mutex::default(),
            are_on: AtomicBool::new(false),
        }
    }

    /// Registers a thread that begins to wait; `true` if [`remind`](Self::remind) must be called for it.
    pub(super) fn begin(&self) -> bool {
        // Threads come here often, at each wait. So all but the first only read.
        let are_on = self.every.is_zero() || self.are_on.load(Ordering::SeqCst);
        !are_on && !self.are_on.swap(true, Ordering::SeqCst)
    }

    /// If it is time, wakes the threads that wait; all of them are registered at `waiters`. Returns when to call this
    /// method again, if any thread may wait.
    pub(super) fn remind(&self, waiters: &CancelToken, now: Instant) -> Option<Instant> {
        let mut next_at = self.next_at.lock();
        let at = match self.are_on.load(Ordering::SeqCst) {
            true => *next_at.get_or_insert(now + self.every),
            false => return None,
        };
        if now < at {
            return Some(at);
        }
        // `are_on` is cleared first: a thread that arrives from now on is seen by `look_again`, or finds `are_on` false
        // and asks for another run.
        self.are_on.store(false, Ordering::SeqCst);
        *next_at = None;
        if waiters.look_again() {
            self.are_on.store(true, Ordering::SeqCst);
            *next_at = Some(now + self.every);
        }
        *next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::local::waiter::WaitingThread;

    #[test]
    fn those_who_wait_are_reminded_until_there_are_none() {
        let (reminders, waiters) = (Reminders::new(Duration::from_secs(4)), CancelToken::new());
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert_eq!(reminders.remind(&waiters, at(0)), None, "nobody has asked");
        let waiter = WaitingThread::<()>::new(Duration::ZERO);
        waiters.watch(&waiter);
        assert!(reminders.begin() && !reminders.begin(), "one asks for all");
        assert_eq!(reminders.remind(&waiters, at(0)), Some(at(1)));
        assert_eq!(reminders.remind(&waiters, at(0)), Some(at(1)), "not yet");
        assert_eq!(reminders.remind(&waiters, at(1)), Some(at(2)));
        assert!(!reminders.begin());
        drop(waiter);
        assert_eq!(reminders.remind(&waiters, at(1)), Some(at(2)));
        assert_eq!(reminders.remind(&waiters, at(2)), None);
        assert!(reminders.begin(), "the next one asks again");
        let never = Reminders::new(Duration::ZERO);
        assert!(!never.begin() && never.remind(&waiters, at(9)).is_none());
    }
}
