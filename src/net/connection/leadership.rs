//! Which thread reads a connection for all: the leader.

use std::sync::Arc;

use crate::net::call::Call;
use crate::net::pipeline::InFlight;

/// The reader of a connection, and which thread takes it next.
///
/// While the connection is up, a thread that locks its mutex finds:
///
/// 1. The reader is in its place, or one thread has it: the leader, housekeeping, or a thread that checks an idle
///    connection.
/// 2. A call is appointed only while the reader is in its place, and only if a thread follows the call over this
///    connection. That thread has been woken, or the appointing thread is about to wake it.
/// 3. Taking the reader ends the appointment, whichever thread takes it.
/// 4. While the reader is in its place and no call is appointed, no thread follows. So a thread that puts the reader back
///    appoints the next one, and an appointed thread that leaves instead of leading passes the appointment on.
/// 5. A call has followers only while it awaits its reply, and all of them follow it over the connection that it was sent
///    over. Followers are counted per [sending](crate::net::call::CallState::begin_sending): the threads that followed an
///    earlier sending were woken, or are about to be, and look again.
/// 6. A thread that follows is woken when the call has its reply, goes to the ledger, or loses its connection.
///
/// Every schedule of three threads is searched in the tests.
pub(super) struct ReadLeadership<R> {
    reader: Option<R>,
    appointed: Option<Arc<Call>>,
}

impl<R> ReadLeadership<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader: Some(reader),
            appointed: None,
        }
    }

    /// The reader, if it is in its place.
    pub(super) fn reader(&self) -> Option<&R> {
        self.reader.as_ref()
    }

    /// Whether a thread leads, or is about to.
    pub(super) fn is_led(&self) -> bool {
        self.reader.is_none() || self.appointed.is_some()
    }

    /// Takes the reader, unless a thread has it. A thread that was appointed is not waited for.
    pub(super) fn take_from_anyone(&mut self) -> Option<R> {
        self.appointed = None;
        self.reader.take()
    }

    /// Takes the reader for a thread that waits for `call`, unless a thread has it or another call is appointed.
    pub(super) fn lead(&mut self, call: &Arc<Call>) -> Option<R> {
        match self.may_lead(call) {
            true => self.take_from_anyone(),
            false => None,
        }
    }

    fn may_lead(&self, call: &Arc<Call>) -> bool {
        let appointed = self.appointed.as_ref();
        appointed.is_none_or(|appointed| Arc::ptr_eq(appointed, call))
    }

    /// Puts the reader back. Returns the next leader's call, whose thread has to be woken.
    pub(super) fn put_back(&mut self, reader: R, in_flight: &InFlight) -> Option<Arc<Call>> {
        self.reader = Some(reader);
        self.appoint(in_flight)
    }

    /// The thread that waited for `call` leaves without its reply. If that thread was appointed, appoints the next leader
    /// and returns its call like [`put_back`](Self::put_back). Several threads may follow `call`, so the call that is
    /// appointed next may be the same one. If no call is appointed, `appoint` finds nothing to do: either a thread has the
    /// reader, or no thread follows (rule 4).
    pub(super) fn leave(&mut self, call: &Arc<Call>, in_flight: &InFlight) -> Option<Arc<Call>> {
        match self.may_lead(call) {
            true => self.appoint(in_flight),
            false => None,
        }
    }

    /// A successor takes over the appointment of `old`, whose reader is in its place. The appointed thread wakes up, and
    /// leads here.
    pub(super) fn inherit(&mut self, old: &mut Self) {
        self.appointed = old.appointed.take();
    }

    /// Appoints the oldest call with a follower, if the reader is in its place. Otherwise the thread that has the reader
    /// appoints when it puts the reader back.
    fn appoint(&mut self, in_flight: &InFlight) -> Option<Arc<Call>> {
        self.reader.as_ref()?;
        self.appointed = in_flight.followed_calls().next().cloned();
        self.appointed.clone()
    }
}

/// Every schedule of three waiting threads, and of housekeeping, around the connections to two nodes. The leader reads one
/// or several replies at once, deadlines pass, a release moves to the other node or is rejected for now, and a leader
/// panics.
#[cfg(test)]
mod schedules;
