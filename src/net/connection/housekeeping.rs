//! Background work: reading replies for which no thread waits, sending releases again, checking idle connections,
//! replacing connections whose login is old, and closing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Connection, GLANCE, Phase, WorkLeft};
use crate::net::call::Call;
use crate::net::pipeline::{IDLE, PING_AFTER};
use crate::net::request::Request;
use crate::net::socket;

/// Housekeeping leaves a reply to other threads until the oldest unanswered command is this old, unless something is
/// urgent.
const UNREAD: Duration = Duration::from_millis(20);

impl Connection {
    /// Checks a connection that is idle, and connects again if it is down. Called when the watchdog renews something,
    /// since the release will need a connection.
    pub(crate) fn look_after(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let generation = state.generation;
        if let Some((_, in_flight)) = state.up(generation) {
            let now = Instant::now();
            let idle_for = now.saturating_duration_since(in_flight.last_heard);
            if in_flight.due() > 0 || idle_for < IDLE {
                return;
            }
            if idle_for >= PING_AFTER {
                let ping = Request::command("checking the connection", &["PING"]);
                // No thread waits for the PONG. Housekeeping reads it, and drops a connection that stays silent.
                in_flight.enqueue(&Call::question(ping), now);
                drop(state);
                self.write_out(false);
                self.settings.housekeeper.housekeep_soon();
            } else {
                drop(self.drop_if_ended(state, generation));
                // Other threads may have left bytes to this one.
                self.write_out(true);
            }
        } else {
            drop(state);
        }
        self.want();
    }

    /// Does one step of housekeeping, a few milliseconds long: reads replies that nobody waits for, sends what the ledger has,
    /// and replaces a connection whose login is old.
    pub(crate) fn housekeep(self: &Arc<Self>) -> WorkLeft {
        let work_left = self.housekeep_step(UNREAD);
        self.renew_login();
        work_left
    }

    /// A step of [`housekeep`](Self::housekeep) while the client is being closed: no other thread reads, so the replies to
    /// commands sent just now are read as well.
    pub(crate) fn drain_some(self: &Arc<Self>) -> WorkLeft {
        self.housekeep_step(Duration::ZERO)
    }

    fn housekeep_step(self: &Arc<Self>, unread_for: Duration) -> WorkLeft {
        let mut state = self.state.lock();
        let generation = state.generation;
        match &state.phase {
            Phase::Closed => return WorkLeft::Nothing,
            Phase::Down(_) => {
                let owes = state.pipeline.owes();
                // `want` locks the mutex itself. If another thread dials in between, `want` does nothing.
                drop(state);
                if owes {
                    self.want();
                }
                return WorkLeft::later(owes);
            }
            Phase::Up(_) => {}
        }
        // As a rule the next batch from the ledger is taken when a reply comes. After a rest (`rests_until`), or once a
        // full socket has space, perhaps no reply is due, so `feed` is called here.
        state.pipeline.feed(Instant::now());
        let more = state.pipeline.owes();
        let Some((up, in_flight)) = state.up(generation) else {
            return WorkLeft::Later;
        };
        let Some(sent_at) = in_flight.due_since() else {
            return WorkLeft::later(more);
        };
        let heard_at = in_flight.last_heard;
        let now = Instant::now();
        // If the oldest command was sent just now, the thread that waits for its reply is about to read. Housekeeping
        // stays out of its way. A silent connection is read all the same, so that it can be found silent below.
        let fresh = now.saturating_duration_since(sent_at) < unread_for
            && now < heard_at + self.max_silence;
        // A waiting successor takes over only once the replies that are due have been read. Until then no thread begins to
        // write what is queued.
        let is_urgent = more || in_flight.unwritten.is_full() || up.successor.is_some();
        // Taking the reader ends an appointment. The appointed thread was woken, finds the reader gone, and follows until
        // `step_down` appoints again.
        let reader = match fresh && !is_urgent {
            true => None,
            false => up.leadership.take_from_anyone(),
        };
        drop(state);
        let Some(reader) = reader else {
            self.flush(true);
            // `flush` does not say whether anything is left.
            let mut state = self.state.lock();
            let is_full = state
                .up(generation)
                .is_some_and(|(_, in_flight)| in_flight.unwritten.is_full());
            return match state.pipeline.owes() || is_full {
                true => WorkLeft::Soon,
                false => WorkLeft::Later,
            };
        };
        self.lead(reader, generation, None, now, now + GLANCE);
        // Checked only after the read, which has taken any reply that lay in the socket.
        if self.is_silent(generation) {
            self.fail_silent(generation);
            return WorkLeft::Later;
        }
        // A reply may have let `feed` queue the next batch, which can be written at once.
        match self.state.lock().up(generation) {
            Some((_, in_flight)) if in_flight.last_heard > heard_at => WorkLeft::More,
            Some((_, in_flight)) if is_urgent || in_flight.unwritten.is_full() => WorkLeft::Soon,
            _ => WorkLeft::Later,
        }
    }

    /// Closes the connection for good. Unanswered calls that are not deferred are settled as lost; threads that wait for a
    /// deferred call, and later calls, fail with `Closed`. Deferred calls without a reply go to the ledger.
    pub(crate) fn close(&self) {
        self.take_down(
            self.state.lock(),
            Phase::Closed,
            &socket::timed_out("the client is closed"),
            true,
        );
        self.changed.notify_all();
    }
}

#[cfg(test)]
pub(super) mod tests;
