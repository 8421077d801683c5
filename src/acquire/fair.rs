//! Waiting where Redis keeps the queue: the fair lock.
//!
//! The first request takes a place in the queue, each further one keeps it, and a thread that gives up leaves the queue.

use std::time::Duration;

use crate::protocol::fair;
use crate::protocol::kind::{Place, PlaceState};
use crate::protocol::owner::OwnerNumber;
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
}

impl Queued {
    pub(crate) fn new(session: &Session) -> Self {
        let number = session.owners.draw();
        Self {
            number,
            ticket: session.owners.id(number).to_string(),
            is_spent: false,
            state: PlaceState::Unknown,
            is_doubtful: false,
            may_have_grace: false,
        }
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

    pub(crate) fn place(&self, waiter_lease: Duration) -> Place<'_> {
        Place {
            ticket: &self.ticket,
            keep: waiter_lease,
            state: self.state,
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
