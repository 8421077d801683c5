//! Waiting where Redis keeps the queue: the fair lock.
//!
//! The first question takes a place in the queue, every further one keeps the place alive, and whoever leaves without
//! the lock gives the place up.

use std::time::Duration;

use crate::protocol::kind::{Place, PlaceState};
use crate::protocol::owner::OwnerNumber;
use crate::session::Session;

/// A place in the queue that Redis keeps.
pub(crate) struct Queued {
    number: OwnerNumber,
    /// The name of the place: the owner of the first question. Later ones have other owners if need be.
    pub(crate) ticket: String,
    /// A request with `number` is on its way, or may have been executed without an answer.
    is_spent: bool,
    state: PlaceState,
    /// A request may have been executed without an answer, and another was sent.
    is_doubtful: bool,
}

impl Queued {
    pub(crate) fn new(session: &Session) -> Self {
        let number = session.owners.draw();
        Self {
            number,
            ticket: session.owners.id(number),
            is_spent: false,
            state: PlaceState::Unknown,
            is_doubtful: false,
        }
    }

    /// The owner of the next question.
    pub(crate) fn next_number(&mut self, session: &Session) -> OwnerNumber {
        if self.is_spent {
            self.is_doubtful = true;
            self.number = session.owners.draw();
        }
        self.is_spent = true;
        self.number
    }

    pub(crate) fn place(&self, waiter_lease: Duration) -> Place<'_> {
        Place {
            ticket: &self.ticket,
            keep: waiter_lease,
            state: self.state,
        }
    }

    /// The last question has no answer.
    pub(crate) fn is_unanswered(&mut self, may_have_run: bool) {
        self.is_spent = may_have_run;
    }

    /// The last question was answered, and no request with its number is on its way any more.
    pub(crate) fn is_answered(&mut self, state: PlaceState) {
        self.state = state;
        self.is_spent = false;
    }

    /// Whether there may be a place to be given up.
    pub(crate) fn may_have_place(&self, granted: bool) -> bool {
        if granted {
            // The grant has removed the place, unless Redis executes an earlier request later on.
            return self.is_doubtful;
        }
        // Without a connection a request is built but not sent.
        self.state != PlaceState::Unknown || self.is_spent || self.is_doubtful
    }
}
