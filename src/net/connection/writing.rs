//! Queueing commands and writing their bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::{BACK_OFF, Connection, Phase, State, Wrote, wake_leader};
use crate::net::call::Call;
use crate::report::report;

/// From how many outstanding replies on the leader writes for all threads.
///
/// Measured: writing at once is best for few threads, writing together from about this many on. 32 is as good for many
/// threads, but 12 is faster by a tenth with 8 threads and by a fifth with 16.
const EAGER: usize = 12;

/// How long releasing may block to make a connection first.
const DELIVER: Duration = Duration::from_millis(100);

/// For how long a thread writes what others have queued while it wrote.
const WRITE_TURN: Duration = Duration::from_millis(5);

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
        let mut state = self.state.lock();
        let generation = state.generation;
        let Some((up, in_flight)) = state.up(generation) else {
            return Wrote::Down;
        };
        let led = up.reader.is_none();
        if up.writing
            || !in_flight.has_bytes()
            || (!all && (in_flight.behind || led && in_flight.due() >= EAGER))
        {
            return Wrote::Yes;
        }
        if in_flight.doubtful.is_some() {
            let Some(still) = self.has_ended(state, generation) else {
                return Wrote::Down;
            };
            state = still;
        }
        let Some((up, _)) = state.up(generation) else {
            return Wrote::Down;
        };
        if std::mem::replace(&mut up.writing, true) {
            return Wrote::Yes;
        }
        // Goes on until nothing is left: other threads may have left their bytes to this one.
        let mut turn_ends = None;
        loop {
            let Some((up, in_flight)) = state.up(generation) else {
                return Wrote::Down;
            };
            if !in_flight.has_bytes() {
                up.writing = false;
                return Wrote::Yes;
            }
            let bytes = in_flight.take_bytes();
            let writer = Arc::clone(&up.writer);
            let wrote = MutexGuard::unlocked(&mut state, || writer.write_some(&bytes));
            let written = match wrote {
                Ok(written) => written,
                Err(err) => {
                    drop(state);
                    self.fail(generation, &err.into(), false);
                    return Wrote::Down;
                }
            };
            let Some((_, in_flight)) = state.up(generation) else {
                return Wrote::Down;
            };
            if written > 0 && in_flight.behind {
                // A full socket takes bytes again, so the server is reading: that counts as a sign of life.
                in_flight.last_heard = Instant::now();
            }
            in_flight.wrote(bytes, written);
            if in_flight.behind {
                break;
            }
            // Reads the clock only if others have queued more in the meantime.
            if in_flight.has_bytes() {
                let now = Instant::now();
                if now >= *turn_ends.get_or_insert(now + WRITE_TURN) {
                    break;
                }
            }
        }
        match state.up(generation) {
            Some((up, in_flight)) => {
                up.writing = false;
                in_flight.behind = in_flight.has_bytes();
                if in_flight.behind {
                    Wrote::Behind
                } else {
                    Wrote::Yes
                }
            }
            None => Wrote::Down,
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
