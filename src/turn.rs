//! Taking turns at asking Redis: where several may hold, threads of one process that wait still ask one after another,
//! first come first, so that one of them listens for all and a big request is not starved by small ones.

use std::sync::Arc;
use std::time::Instant;

use crate::client::{Contending, Engine};
use crate::error::Result;
use crate::gate::{Gate, wake};
use crate::handle::{Handle, Patience};
use crate::owner;
use crate::room::{Entered, Lease, Mode};
use crate::wait::{Called, Deadline, Waiter};

/// A thread whose turn it is. When this goes it is the next one's.
pub(crate) struct Turn<'a> {
    engine: &'a Engine,
    gate: Arc<Gate>,
    /// Whom messages wake; others of this process reach the thread by it, too.
    pub(crate) waiter: Arc<Waiter>,
    _contending: Contending<'a>,
}

impl<'a> Turn<'a> {
    /// Waits for the calling thread's turn; `None` if it did not come in time.
    pub(crate) fn wait(handle: &'a Handle, deadline: Deadline) -> Result<Option<Self>> {
        let patience = Patience::Until(deadline);
        let gate = handle.gate()?;
        handle.check_going(patience)?;
        let waiter = Waiter::new();
        let queue = || Arc::clone(&waiter);
        let lease = Lease::Renewed { max_hold: None };
        let now = Instant::now();
        let mut inside = gate.lock();
        let entered = inside.room.enter(
            owner::this_thread(),
            Mode::Exclusive,
            lease,
            now,
            Some(&queue),
            false,
        );
        drop(inside);
        match entered {
            Entered::Contend { .. } => {}
            Entered::Queued(ticket) => {
                match handle.stand_in_line(&gate, ticket, &waiter, deadline)? {
                    Some(Called::Contend(_)) => {}
                    Some(Called::Failed(fault)) => {
                        return Err(handle.error("acquiring permits", fault));
                    }
                    Some(Called::Granted(_)) | None => return Ok(None),
                }
            }
            // Nobody sits in this room.
            _ => return Ok(None),
        }
        Ok(Some(Self {
            engine: handle.engine(),
            gate,
            waiter,
            _contending: handle.engine().contending(),
        }))
    }

    /// Whether a thread of this process waits: one whose turn has not come, or that was refused.
    pub(crate) fn is_waited_for(handle: &Handle) -> bool {
        let gate = handle.known_gate();
        gate.is_some_and(|gate| gate.lock().is_waited_for())
    }

    /// The thread was refused, and waits from now on.
    pub(crate) fn was_refused(&self) {
        let mut inside = self.gate.lock();
        inside.forget_contender(Some(&self.waiter));
        inside.contenders.push(Arc::clone(&self.waiter));
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut inside = self.gate.lock();
        inside.forget_contender(Some(&self.waiter));
        let next = inside
            .room
            .withdraw_contender(Mode::Exclusive, Instant::now());
        inside.tell(&next);
        drop(inside);
        wake(next);
        self.engine.agenda.tend_soon();
    }
}
