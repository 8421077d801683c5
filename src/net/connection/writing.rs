//! Queueing commands and writing their bytes.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::{Connection, ConnectionState, Phase, Up, Wrote, wake};
use crate::net::call::Call;
use crate::net::pipeline::InFlight;
use crate::net::write_queue::write_turn;

impl Connection {
    /// Queues a call behind all that were submitted before it. Memory only: no I/O, never blocks.
    ///
    /// Returns the connection's number, or `None` if the call was not queued. Then a deferred call is in the ledger,
    /// unless the client is closed. Any other call has to be submitted again once there is a connection. If the call can
    /// be undone, its thread first [waits](Self::wait_for_backlog) for the backlog.
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        Some(self.queue(call)?.generation)
    }

    /// Queues a call as [`submit`](Self::submit) does, and [writes](Self::flush).
    pub(crate) fn send(&self, call: &Arc<Call>) -> Option<u64> {
        let state = self.queue(call)?;
        let generation = state.generation;
        self.write_queued(state, false);
        Some(generation)
    }

    fn queue(&self, call: &Arc<Call>) -> Option<MutexGuard<'_, ConnectionState>> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            return None;
        }
        // The validity of a hold counts from this moment. No byte of the call is written before it: the bytes are queued
        // with this mutex locked, and a thread that writes takes them under this mutex.
        if !state.pipeline.submit(call, Instant::now()) {
            return None;
        }
        self.settings.counters.commands.add(1);
        Some(state)
    }

    /// Writes what is queued, unless another thread writes, or a leader will soon write for all. With `all`, nothing is left to
    /// the leader. The states and who writes in each: [`write_queue`](crate::net::write_queue).
    pub(crate) fn flush(&self, all: bool) {
        self.write_out(all);
    }

    /// Writes queued releases as far as the socket takes them, and never waits. If the connection is down, it is made in
    /// the background, and then sends what the ledger has.
    pub(crate) fn deliver(self: &Arc<Self>) {
        if self.write_out(false) == Wrote::Down && self.is_missed() {
            self.want();
        }
    }

    pub(super) fn write_out(&self, all: bool) -> Wrote {
        self.write_queued(self.state.lock(), all)
    }

    /// Checks whether the server has closed the connection, and drops it if so. Returns `None` if it is dropped.
    ///
    /// The check makes the socket non-blocking for a moment, so this thread takes the reader and sets `writing`: until both are
    /// put back, other threads follow, and leave their bytes to this one. So the caller has to write afterwards.
    pub(super) fn drop_if_ended<'a>(
        &'a self,
        mut state: MutexGuard<'a, ConnectionState>,
        generation: u64,
    ) -> Option<MutexGuard<'a, ConnectionState>> {
        let (up, in_flight) = state.up(generation)?;
        in_flight.check_before_write = false;
        // The socket is not checked while another thread writes or checks: a check would make it non-blocking under that
        // thread. The price: a thread that writes goes on over an unchecked connection. If the server has closed it, the
        // outcome of the thread's commands is unknown.
        if up.writing {
            return Some(state);
        }
        // If another thread has the reader, that thread finds by reading whether the server has closed the connection.
        let Some(reader) = up.leadership.take_from_anyone() else {
            return Some(state);
        };
        up.writing = true;
        let (reader, ended) = MutexGuard::unlocked(&mut state, || {
            let ended = reader.has_ended();
            (reader, ended)
        });
        // While the mutex was released, another thread may have dropped the connection, or closed the client.
        let (up, in_flight) = state.up(generation)?;
        up.writing = false;
        if ended {
            drop(state);
            let why = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
            self.fail(generation, &why.into(), false);
            return None;
        }
        wake(up.leadership.put_back(reader, in_flight));
        Some(state)
    }

    /// Writes what is queued over the connection, or over its successor once that has taken over.
    ///
    /// While a [successor](Up::successor) waits, a thread that would write, or has written, lets it take over and repeats
    /// the loop. If the successor cannot take over yet, the bytes stay queued. Each hand-over uses up the successor, so
    /// the loop ends.
    pub(super) fn write_queued<'a>(
        &'a self,
        mut state: MutexGuard<'a, ConnectionState>,
        all: bool,
    ) -> Wrote {
        loop {
            let generation = state.generation;
            let Some((up, in_flight)) = state.up(generation) else {
                return Wrote::Down;
            };
            // No hand-over while the socket is full: the rest of a command has to follow over it.
            if up.successor.is_some() && !in_flight.unwritten.is_full() {
                match self.hand_over(&mut state) {
                    true => continue,
                    false => return Wrote::Done,
                }
            }
            if is_left_to_another(up, in_flight, all) {
                return Wrote::Done;
            }
            // After an idle time the server may have closed the connection, and a command that is written then has an
            // unknown outcome.
            if in_flight.check_before_write {
                let Some(still) = self.drop_if_ended(state, generation) else {
                    return Wrote::Down;
                };
                // The check has released the mutex: another thread may write by now, or a successor may wait.
                state = still;
                continue;
            }
            up.writing = true;
            let (writer, was_full) = (Arc::clone(&up.writer), in_flight.unwritten.is_full());
            let wrote = write_turn(&mut state, &writer, |state| {
                Some(&mut state.up(generation)?.1.unwritten)
            });
            let wrote = match wrote {
                Ok(Some(written)) => self.end_write(&mut state, was_full, written),
                // The connection was taken down during the write.
                Ok(None) => Wrote::Down,
                Err(err) => {
                    drop(state);
                    self.fail(generation, &err.into(), false);
                    return Wrote::Down;
                }
            };
            // The last reply may have come while this thread wrote. `writing` kept other threads from handing over then.
            let has_successor =
                (state.up(generation)).is_some_and(|(up, _)| up.successor.is_some());
            if wrote != Wrote::Done || !has_successor {
                return wrote;
            }
        }
    }

    /// This thread stops writing, after `written` bytes over the current connection. Wakes housekeeping if perhaps no
    /// other thread writes or sends what is left.
    fn end_write(&self, state: &mut ConnectionState, was_full: bool, written: usize) -> Wrote {
        let Some((up, in_flight)) = state.up(state.generation) else {
            return Wrote::Down;
        };
        up.writing = false;
        if was_full && written > 0 {
            // A full socket has taken bytes, so the server reads. Without this, a server that needs long for a large command
            // would count as silent.
            in_flight.last_heard = Instant::now();
        }
        let is_full = in_flight.unwritten.is_full();
        // This thread stops after a few writes (`TURNS` of `write_queue`). The threads that queued the rest left it to
        // this one.
        let is_left = in_flight.has_bytes() && !is_full && !up.leadership.is_led();
        // Releases that were submitted while the socket was full went to the ledger. No thread waits for these, so
        // housekeeping takes them now that the socket has space.
        let was_kept = was_full && !is_full && state.pipeline.owes();
        if is_left || was_kept || is_full && !was_full {
            self.settings.housekeeper.housekeep_now();
        }
        match is_full {
            true if written > 0 => Wrote::Part,
            true => Wrote::Full,
            false => Wrote::Done,
        }
    }
}

/// Whether there is nothing to write, or another thread will write it.
fn is_left_to_another(up: &Up, in_flight: &InFlight, all: bool) -> bool {
    // A thread that writes goes on until nothing is queued, or passes the rest on: see `end_write`.
    if up.writing || !in_flight.has_bytes() {
        return true;
    }
    // A leader, or an appointed thread, writes before it blocks. A leader that is blocked writes these bytes after the
    // next reply. If `is_worth_a_write` is false, that reply comes soon, since more than two thirds of the calls in flight
    // are written. If it is true, this thread writes the bytes.
    let leader_will_write = up.leadership.is_led() && !in_flight.is_worth_a_write();
    // Without `all`, a full socket is left to the leader and housekeeping.
    !all && (leader_will_write || in_flight.unwritten.is_full())
}

#[cfg(all(test, unix))]
pub(super) mod tests;
