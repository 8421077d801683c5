//! Queueing commands and writing their bytes.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::{Connection, Phase, State, TURN, Wrote, wake};
use crate::net::call::Call;
use crate::net::write_queue::write_turn;

impl Connection {
    /// Queues a call behind all that were submitted before it. Memory only: no I/O, never blocks.
    ///
    /// Returns the connection's number. Without one a deferred call is sent later, and any other is refused; so is an attempt
    /// that has to [wait](Self::wait_for_owed) first.
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        Some(self.queue(call)?.generation)
    }

    /// The same, and [writes](Self::flush).
    pub(crate) fn send(&self, call: &Arc<Call>) -> Option<u64> {
        let state = self.queue(call)?;
        let generation = state.generation;
        self.write_queued(state, false);
        Some(generation)
    }

    fn queue(&self, call: &Arc<Call>) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            return None;
        }
        // The time is taken under the mutex, so that it is before the bytes are written.
        if !state.pipeline.submit(call, Instant::now()) {
            return None;
        }
        self.counters.commands.add(1);
        Some(state)
    }

    /// Writes what is queued, unless another thread writes, or leads or is about to and will soon write for all. With `all`,
    /// nothing is left to the leader.
    pub(crate) fn flush(&self, all: bool) {
        self.write_out(all);
    }

    /// Writes queued releases, over a new connection if the server has closed the old one. Done at once, since the process
    /// may be about to end, unless another thread leads and writes them by its next reply.
    pub(crate) fn deliver(self: &Arc<Self>) {
        if self.write_out(false) != Wrote::Down {
            return;
        }
        let state = self.state.lock();
        let untried = match &state.phase {
            Phase::Down(before) | Phase::Connecting(before, _) => before.back_off.is_untried(),
            Phase::Up(_) | Phase::Closed => false,
        };
        let untried = untried && state.pipeline.has_unacknowledged();
        drop(state);
        if untried {
            // Without a connection it is sent later.
            self.up(Instant::now() + TURN, &|| false).ok();
        }
    }

    pub(super) fn write_out(&self, all: bool) -> Wrote {
        self.write_queued(self.state.lock(), all)
    }

    pub(super) fn write_queued<'a>(&'a self, mut state: MutexGuard<'a, State>, all: bool) -> Wrote {
        let generation = state.generation;
        let Some((up, in_flight)) = state.up(generation) else {
            return Wrote::Down;
        };
        let is_led = up.is_led() && !in_flight.is_worth_a_write();
        if up.writing
            || !in_flight.has_bytes()
            || !all && (is_led || in_flight.unwritten.is_behind())
        {
            return Wrote::Yes;
        }
        if in_flight.doubtful {
            let Some(still) = self.has_ended(state, generation) else {
                return Wrote::Down;
            };
            state = still;
        }
        let Some((up, in_flight)) = state.up(generation) else {
            return Wrote::Down;
        };
        if std::mem::replace(&mut up.writing, true) {
            return Wrote::Yes;
        }
        let (writer, was_behind) = (Arc::clone(&up.writer), in_flight.unwritten.is_behind());
        let wrote = write_turn(&mut state, &writer, |state| {
            Some(&mut state.up(generation)?.1.unwritten)
        });
        let written = match wrote {
            Ok(written) => written,
            Err(err) => {
                drop(state);
                self.fail(generation, &err.into(), false);
                return Wrote::Down;
            }
        };
        let (Some(written), Some((up, in_flight))) = (written, state.up(generation)) else {
            return Wrote::Down;
        };
        up.writing = false;
        if was_behind && written > 0 {
            // A full socket takes bytes again, so the server is reading: that counts as a sign of life.
            in_flight.last_heard = Instant::now();
        }
        match in_flight.unwritten.is_behind() {
            true => Wrote::Behind,
            false => Wrote::Yes,
        }
    }

    /// Checks whether the server has closed the connection, and drops it if so. No other thread may use it meanwhile.
    pub(super) fn has_ended<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        generation: u64,
    ) -> Option<MutexGuard<'a, State>> {
        let (up, in_flight) = state.up(generation)?;
        in_flight.doubtful = false;
        if up.writing {
            return Some(state);
        }
        // The leader finds out by reading.
        let Some(reader) = up.take_reader() else {
            return Some(state);
        };
        up.writing = true;
        let (reader, ended) = MutexGuard::unlocked(&mut state, || {
            let ended = reader.has_ended();
            (reader, ended)
        });
        let (up, in_flight) = state.up(generation)?;
        up.writing = false;
        if ended {
            drop(state);
            let why = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
            self.fail(generation, &why.into(), false);
            return None;
        }
        up.reader = Some(reader);
        wake(up.appoint(in_flight));
        Some(state)
    }
}
