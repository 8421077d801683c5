//! Waiting where Redis keeps the queue: the fair lock.
//!
//! The first request takes a place in the queue, each further one keeps it, and a thread that gives up leaves the queue.
//! The reply to the first says who is ahead: where that is a thread of this process, it may hand the lock over in memory.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::Result;
use crate::hold::{Hold, Waiter, Wakeup};
use crate::local::run::{Ahead, Then};
use crate::protocol::fair;
use crate::protocol::kind::{Place, PlaceState};
use crate::protocol::owner::{OwnerId, OwnerNumber};
use crate::session::Session;

/// A place in the queue that Redis keeps.
pub(crate) struct Queued {
    number: OwnerNumber,
    /// Identifies the place: the owner id of the first request. Later requests may need other owner ids.
    pub(crate) ticket: String,
    /// A request with `number` may have been executed, and its reply is not known.
    is_spent: bool,
    state: PlaceState,
    /// That has happened, and a request with another number was sent.
    is_doubtful: bool,
    /// By the last answer a grace may be running.
    may_have_grace: bool,
    /// The number in the ticket.
    pub(crate) place: u64,
    /// Places to be removed by the requests of this thread: those of others that were served in memory.
    pub(crate) served: Vec<u64>,
    /// It is known to the local lock.
    pub(crate) is_known: bool,
    /// How often its process had released the lock when it asked.
    pub(crate) asked_after: u64,
    /// What it does next, if it was refused just now.
    pub(crate) then: Then,
    /// It has waited for a thread of its process.
    pub(crate) has_waited: bool,
}

impl Queued {
    pub(crate) fn new(session: &Session) -> Self {
        let number = session.owners.draw();
        Self::of(number, session.owners.id(number).to_string())
    }

    fn of(number: OwnerNumber, ticket: String) -> Self {
        Self {
            number,
            ticket,
            is_spent: false,
            state: PlaceState::Unknown,
            is_doubtful: false,
            may_have_grace: false,
            place: number.0,
            served: Vec::new(),
            is_known: false,
            asked_after: 0,
            then: Then::Listens,
            has_waited: false,
        }
    }

    /// What another thread of this process has handed over to the thread of `waiter` while it parked, or why that failed.
    ///
    /// It may have been woken to ask instead, which is what it does next. Nobody wakes it once more, so it must not wait here
    /// before it has asked.
    pub(crate) fn handed_over(&mut self, waiter: &Waiter) -> Result<Option<Arc<Hold>>> {
        match waiter.take_wakeup() {
            Some(Wakeup::Granted(hold)) => Ok(Some(hold)),
            Some(Wakeup::Failed(error)) => Err(error()),
            Some(Wakeup::Contend(_)) => {
                self.then = Then::Listens;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Whether it waits now for a thread of its process, before it asks again.
    pub(crate) fn begins_to_wait_here(&mut self) -> bool {
        std::mem::replace(&mut self.then, Then::Listens) == Then::WaitsHere
    }

    /// Takes out of a reply who is directly ahead, which only the reply to the first request says.
    pub(crate) fn split(session: &Session, reply: &mut Value) -> Option<Ahead> {
        let Value::Array(parts) = reply else {
            return None;
        };
        let [left @ Value::Int(_), Value::BulkString(ticket)] = parts.as_slice() else {
            return None;
        };
        let (left, ahead) = (left.clone(), ahead(session, ticket));
        *reply = left;
        Some(ahead)
    }

    /// Whether nothing that was sent for it may be executed later on.
    pub(crate) fn is_certain(&self) -> bool {
        !self.is_spent && !self.is_doubtful
    }

    /// The number in the owner id of the next request.
    pub(crate) fn next_number(&mut self, session: &Session) -> OwnerNumber {
        if self.is_spent {
            self.is_doubtful = true;
            self.number = session.owners.draw();
        }
        self.is_spent = true;
        self.number
    }

    pub(crate) fn place<'a>(&'a self, waiter_lease: Duration, served: &'a [OwnerId]) -> Place<'a> {
        Place {
            ticket: &self.ticket,
            keep: waiter_lease,
            state: self.state,
            served,
        }
    }

    /// The last request has no reply.
    pub(crate) fn is_unanswered(&mut self, may_have_run: bool) {
        self.is_spent = may_have_run;
    }

    /// The last request was answered, so its number can be used again.
    pub(crate) fn is_answered(&mut self, state: PlaceState) {
        self.state = state;
        self.is_spent = false;
    }

    /// It is not its turn, for so long.
    pub(crate) fn is_refused(&mut self, left: Option<Duration>) {
        self.is_answered(PlaceState::Kept);
        self.may_have_grace = left.is_some_and(|left| left <= fair::GRACE);
    }

    /// How long to park: a third of the waiter lease at most, since asking again keeps the place. While those who did not
    /// listen have a grace, one that does not listen either asks within half of it.
    pub(crate) fn pause(&self, cap: Duration, waiter_lease: Duration, listens: bool) -> Duration {
        let cap = cap.min(waiter_lease / 3);
        if self.may_have_grace && !listens {
            cap.min(fair::GRACE / 2)
        } else {
            cap
        }
    }

    /// Whether an answer may be that the place is lost: a request that says so itself gets it back.
    pub(crate) fn can_lose_its_place(&self) -> bool {
        self.state != PlaceState::Lost
    }

    /// Whether Redis may keep a place that has to be given up.
    pub(crate) fn may_have_place(&self, granted: bool) -> bool {
        if granted {
            // The grant has removed the place, unless Redis executes an earlier request later on.
            return self.is_doubtful;
        }
        // A request may have been made but not sent, without a connection.
        self.state != PlaceState::Unknown || self.is_spent || self.is_doubtful
    }
}

fn ahead(session: &Session, ticket: &[u8]) -> Ahead {
    if ticket.is_empty() {
        return Ahead::Nobody;
    }
    let own = || {
        let ticket = std::str::from_utf8(ticket).ok()?;
        let number = ticket.strip_prefix(session.owners.client())?;
        number.strip_prefix(':')?.parse().ok()
    };
    own().map_or(Ahead::Other, Ahead::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::local::lock::Start;

    #[test]
    fn one_that_is_woken_to_ask_waits_for_no_other_wakeup() {
        for is_late in [false, true] {
            let waiter = Waiter::new();
            let mut queued = Queued::of(OwnerNumber(1), "u:1".to_owned());
            let wakes = || waiter.store(Wakeup::Contend(Start::Ask));
            // It was refused, and lets go of the mutex of the entry; from now on others may wake it.
            queued.then = Then::WaitsHere;
            if !is_late {
                wakes();
            }
            assert!(matches!(queued.handed_over(&waiter), Ok(None)));
            if is_late {
                wakes();
            }
            let waits = queued.begins_to_wait_here();
            assert_eq!((waits, waiter.has_wakeup()), (is_late, is_late));
            // Then it asks.
            assert!(matches!(queued.handed_over(&waiter), Ok(None)));
            assert!(!queued.begins_to_wait_here());
        }
    }
}
