//! The right to ask Redis for leased permits. Threads of one process take turns, first come, first served: one of them
//! listens for all, and a request for many permits is not starved by requests for few.
//!
//! The queue is that of a local lock whose contender is the thread that asks. Nobody ever holds that lock.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::Result;
use crate::hold::entry::wake;
use crate::hold::{Entry, Waiter, Wakeup};
use crate::local::lock::{Entered, LeasePolicy, Mode};
use crate::protocol::owner;
use crate::quorum::failure::Failure;
use crate::time::Deadline;

/// A thread that may ask. When this is dropped the next thread may.
pub(crate) struct PermitContender<'a> {
    spec: &'a LockSpec,
    entry: Arc<Entry>,
    /// Wakes the thread.
    waiter: Arc<Waiter>,
    was_queued: bool,
}

impl<'a> PermitContender<'a> {
    /// Waits until the calling thread may ask; `None` if that was not in time.
    pub(crate) fn wait(spec: &'a LockSpec, deadline: Deadline) -> Result<Option<Self>> {
        let entry = spec.entry()?;
        spec.check_going(WaitMode::Until(deadline))?;
        let waiter = Waiter::new();
        let queue = || Arc::clone(&waiter);
        let (thread, lease) = (
            owner::this_thread(),
            LeasePolicy::Renewed { max_hold: None },
        );
        let mut state = entry.lock();
        let entered = state.lock.enter(
            thread,
            Mode::Exclusive,
            lease,
            Instant::now(),
            Some(&queue),
            spec.prefer,
        );
        drop(state);
        let was_queued = match entered {
            Entered::Contend { .. } => false,
            Entered::Queued(ticket) => {
                spec.watch(&waiter);
                match spec.wait_in_queue(&entry, ticket, &waiter, deadline)? {
                    Some(Wakeup::Contend(_)) => true,
                    Some(Wakeup::Failed(error)) => return Err(error()),
                    Some(Wakeup::Granted(_)) | None => return Ok(None),
                }
            }
            // Nobody holds this lock.
            _ => return Ok(None),
        };
        Ok(Some(Self {
            spec,
            entry,
            waiter,
            was_queued,
        }))
    }

    /// Whether a thread of this process waits: in the queue, or because Redis had too few.
    pub(crate) fn is_waited_for(spec: &LockSpec) -> bool {
        let entry = spec.known_entry();
        entry.is_some_and(|entry| entry.lock().is_waited_for())
    }

    pub(crate) fn listening(&self) -> Listening {
        let waiter = Arc::clone(&self.waiter);
        if self.was_queued {
            Listening::queued(waiter)
        } else {
            Listening::of(waiter)
        }
    }

    /// Redis had too few: the thread waits from now on.
    pub(crate) fn was_refused(&self) {
        let mut state = self.entry.lock();
        state.forget_contender(Some(&self.waiter));
        state.add_contender(&self.waiter);
    }

    /// Redis is unreachable: the queued threads get the error now.
    pub(crate) fn dismiss_others(&self, doing: &'static str, failure: &Failure) {
        self.spec.dismiss(&self.entry, doing, failure.clone());
    }
}

impl Drop for PermitContender<'_> {
    fn drop(&mut self) {
        let mut state = self.entry.lock();
        state.forget_contender(Some(&self.waiter));
        let next = state
            .lock
            .withdraw_contender(Mode::Exclusive, Instant::now());
        state.notify(&next);
        drop(state);
        wake(next);
        self.spec.session().watchdog.housekeep_soon();
    }
}
