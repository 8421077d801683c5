//! Taking turns at asking Redis: where several may hold, threads of one process that wait still ask one after another,
//! first come first, so that one of them listens for all and a big request is not starved by small ones.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::Result;
use crate::local::lock::{Entered, LeasePolicy, Mode};
use crate::local::registry::{Entry, wake};
use crate::local::waiter::{Waiter, Wakeup};
use crate::protocol::owner;
use crate::session::{Contending, Session};
use crate::time::Deadline;

/// A thread whose turn it is. When this goes it is the next one's.
pub(crate) struct Turn<'a> {
    session: &'a Session,
    entry: Arc<Entry>,
    /// Whom messages wake; others of this process reach the thread by it, too.
    pub(crate) waiter: Arc<Waiter>,
    _contending: Contending<'a>,
}

impl<'a> Turn<'a> {
    /// Waits for the calling thread's turn; `None` if it did not come in time.
    pub(crate) fn wait(handle: &'a LockSpec, deadline: Deadline) -> Result<Option<Self>> {
        let patience = WaitMode::Until(deadline);
        let entry = handle.entry()?;
        handle.check_going(patience)?;
        let waiter = Waiter::new();
        let queue = || Arc::clone(&waiter);
        let lease = LeasePolicy::Renewed { max_hold: None };
        let now = Instant::now();
        let mut state = entry.lock();
        let entered = state.lock.enter(
            owner::this_thread(),
            Mode::Exclusive,
            lease,
            now,
            Some(&queue),
            false,
        );
        drop(state);
        match entered {
            Entered::Contend { .. } => {}
            Entered::Queued(ticket) => {
                match handle.wait_in_queue(&entry, ticket, &waiter, deadline)? {
                    Some(Wakeup::Contend(_)) => {}
                    Some(Wakeup::Failed(error)) => return Err(error()),
                    Some(Wakeup::Granted(_)) | None => return Ok(None),
                }
            }
            // Nobody sits in this lock.
            _ => return Ok(None),
        }
        Ok(Some(Self {
            session: handle.session(),
            entry,
            waiter,
            _contending: handle.session().contending(),
        }))
    }

    /// Whether a thread of this process waits: one whose turn has not come, or that was refused.
    pub(crate) fn is_waited_for(handle: &LockSpec) -> bool {
        let entry = handle.known_entry();
        entry.is_some_and(|entry| entry.lock().is_waited_for())
    }

    /// The thread was refused, and waits from now on.
    pub(crate) fn was_refused(&self) {
        let mut state = self.entry.lock();
        state.forget_contender(Some(&self.waiter));
        state.contenders.push(Arc::clone(&self.waiter));
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.entry.lock();
        state.forget_contender(Some(&self.waiter));
        let next = state
            .lock
            .withdraw_contender(Mode::Exclusive, Instant::now());
        state.tell(&next);
        drop(state);
        wake(next);
        self.session.watchdog.housekeep_soon();
    }
}
