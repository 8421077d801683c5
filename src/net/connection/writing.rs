//! Queueing commands and writing their bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::{BACK_OFF, Connection, Phase, State, Wrote, wake_leader};
use crate::net::call::Call;
use crate::net::write_queue::write_turn;
use crate::report::report;

/// From how many outstanding replies on the leader writes for all threads, unless so many are unwritten
/// that it [is worth a write](InFlight::is_worth_a_write).
///
/// Measured: writing at once is best for few threads, writing together from about this many on. 32 is as good for many
/// threads, but 12 is faster by a tenth with 8 threads and by a fifth with 16.
const EAGER: usize = 12;

/// How long releasing may block to make a connection first.
const DELIVER: Duration = Duration::from_millis(100);

impl Connection {
    /// Queues a call behind all that were submitted before it. Memory only: no I/O, never blocks.
    ///
    /// Returns the connection's number. Without one a deferred call is sent later, and any other is refused.
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            return None;
        }
        // The time is taken under the mutex, so that it is before the bytes are written.
        if !state.pipeline.submit(call, Instant::now()) {
            return None;
        }
        self.counters.commands.add(1);
        Some(state.generation)
    }

    /// Writes what is queued, unless another thread is writing or the leader will write it. With `all`, nothing is left to
    /// the leader.
    pub(crate) fn flush(&self, all: bool) {
        self.write_out(all);
    }

    /// Writes queued releases, over a new connection if the server has closed the old one. Done at once, since the process
    /// may be about to end.
    pub(crate) fn deliver(&self) {
        if self.endpoint.has_sentinels() {
            let idle = self.state.lock().pipeline.idle_for(Instant::now());
            if idle.is_some_and(|idle| self.endpoint.follows_master_after(idle)) {
                let until = Instant::now() + DELIVER;
                self.endpoint.follow_master_first(until, &mut || true);
            }
        }
        if self.write_out(false) != Wrote::Down {
            return;
        }
        let state = self.state.lock();
        let untried = match &state.phase {
            Phase::Down { back_off, dial, .. } => {
                *back_off == BACK_OFF.0 && dial.is_none() && state.pipeline.has_unacknowledged()
            }
            _ => false,
        };
        if untried {
            let (state, made) = self.connect(state, Instant::now() + DELIVER, &mut || true);
            drop(state);
            if let Err(fault) = made {
                report!(Debug, "connecting for a release: {fault:?}");
            }
        }
    }

    pub(super) fn write_out(&self, all: bool) -> Wrote {
        self.endpoint.follow_master();
        let mut state = self.state.lock();
        let generation = state.generation;
        let Some((up, in_flight)) = state.up(generation) else {
            return Wrote::Down;
        };
        let led = up.reader.is_none();
        if up.writing
            || !in_flight.has_bytes()
            || (!all
                && (in_flight.unwritten.is_behind()
                    || led && in_flight.due() >= EAGER && !in_flight.is_worth_a_write()))
        {
            return Wrote::Yes;
        }
        if in_flight.doubtful.is_some() {
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
        let idle = in_flight.doubtful.take();
        if up.writing {
            return Some(state);
        }
        let is_old = idle.is_some_and(|idle| self.endpoint.is_to_be_found_again(idle));
        // The leader finds out by reading.
        let Some(reader) = up.reader.take() else {
            return Some(state);
        };
        up.writing = true;
        let (reader, ended) = MutexGuard::unlocked(&mut state, || {
            let ended = is_old || reader.has_ended();
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
        wake_leader(in_flight.first_following());
        Some(state)
    }
}
