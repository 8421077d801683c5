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
    /// unless the client is closed; any other call has to be submitted again once there is a connection. An attempt that
    /// can be undone also [waits](Self::wait_for_backlog) for the backlog first.
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
        // The validity of a hold counts from this moment. No other thread can write the bytes earlier: that takes the mutex.
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

    /// Writes queued releases as far as the socket takes them, and never waits. Without a connection, one is made in the
    /// background and sends them.
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
        // While another thread writes, the check is left out, since it makes the socket non-blocking. That thread then
        // writes commands over an unchecked connection: if the server has closed it, their outcome is unknown.
        if up.writing {
            return Some(state);
        }
        // The thread that leads finds out by reading.
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
    /// While a successor waits, no thread begins to write over the old connection, unless its socket is full. So a thread
    /// that would write, and one that has written, lets the successor take over if that is possible, and then begins
    /// again. Each hand-over uses up the successor, so the loop ends.
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
            // Not while the socket is full: the rest of a command has to follow.
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
            // The last reply may have come while this thread wrote, when no other thread could hand over.
            let has_successor =
                (state.up(generation)).is_some_and(|(up, _)| up.successor.is_some());
            if wrote != Wrote::Done || !has_successor {
                return wrote;
            }
        }
    }

    /// This thread stops writing, after `written` bytes over the current connection. Wakes housekeeping for what perhaps
    /// no other thread writes or sends.
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
        // This thread stops after its turns. The threads that queued the rest found it writing, and have gone on.
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
    // A thread that writes stops only once nothing is queued, or passes the rest on: see `end_write`.
    if up.writing || !in_flight.has_bytes() {
        return true;
    }
    // A leader, or an appointed thread, writes before it blocks. A leader that is blocked writes these bytes after the
    // next reply. That reply comes soon, because most commands in flight are written already; otherwise `is_worth_a_write`
    // holds.
    let leader_will_write = up.leadership.is_led() && !in_flight.is_worth_a_write();
    // A full socket is left to the leader and housekeeping.
    !all && (leader_will_write || in_flight.unwritten.is_full())
}

#[cfg(all(test, unix))]
pub(super) mod tests {
    use super::*;

    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::super::housekeeping::tests::undo;
    use super::super::leading::appointments::{GENEROUS, led};
    use crate::net::connection::{Housekeeper, WorkLeft};
    use crate::net::request::Request;

    /// More than a socket takes.
    const MUCH: usize = 16 * 1024 * 1024;

    /// How often housekeeping was woken at once.
    #[derive(Default)]
    pub(in crate::net::connection) struct Woken(AtomicUsize);

    impl Housekeeper for Woken {
        fn housekeep_soon(&self) {}

        fn housekeep_now(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Woken {
        pub(in crate::net::connection) fn take(&self) -> usize {
            self.0.swap(0, Ordering::SeqCst)
        }
    }

    /// A connection on which no thread leads.
    pub(in crate::net::connection) fn unled() -> (Arc<Connection>, UnixStream, Arc<Woken>) {
        let (mut connection, reader, server) = led();
        let woken = Arc::new(Woken::default());
        connection.settings.housekeeper = Arc::clone(&woken) as _;
        connection.max_silence = GENEROUS;
        let (up, in_flight) = connection.state.get_mut().up(1).expect("it is up");
        assert!(up.leadership.put_back(reader, in_flight).is_none());
        (Arc::new(connection), server, woken)
    }

    fn ping() -> Arc<Call> {
        Call::question(Request::command("asking", &["PING"]))
    }

    /// A command that is more than the socket takes.
    pub(in crate::net::connection) fn large() -> Arc<Call> {
        Call::question(Request::command("asking", &["ECHO", &"x".repeat(MUCH)]))
    }

    fn unwritten(connection: &Connection) -> usize {
        let mut state = connection.state.lock();
        state.up(1).expect("it is up").1.unwritten.bytes.len()
    }

    #[test]
    fn housekeeping_is_woken_for_bytes_that_no_thread_goes_on_to_write() {
        let (connection, mut server, woken) = unled();
        let connection = &connection;
        let (mut bytes_left, mut was_woken) = (0, false);
        thread::scope(|scope| {
            scope.spawn(move || while server.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {});
            for _ in 0..500 {
                thread::scope(|scope| {
                    let send = || {
                        for _ in 0..200 {
                            connection.send(&ping());
                        }
                    };
                    for _ in 0..3 {
                        scope.spawn(send);
                    }
                });
                (bytes_left, was_woken) = (unwritten(connection), woken.take() > 0);
                if bytes_left > 0 {
                    break;
                }
            }
            connection.close();
        });
        // On one core there may be nothing left in any round.
        assert!(
            bytes_left == 0 || was_woken,
            "{bytes_left} bytes are left to nobody"
        );
    }

    #[test]
    fn housekeeping_writes_once_a_full_socket_takes_bytes_again() {
        let (connection, mut server, woken) = unled();
        assert!(connection.send(&large()).is_some());
        assert_eq!(woken.take(), 1, "no other thread writes the rest");
        assert_eq!(connection.housekeep(), WorkLeft::Soon);
        let useful_until = Instant::now() + GENEROUS;
        let kept = undo(&"name".into(), useful_until);
        assert!(connection.send(&kept).is_none() && woken.take() == 0);
        let connection = &connection;
        thread::scope(|scope| {
            scope.spawn(move || while server.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {});
            while unwritten(connection) > 0 && Instant::now() < useful_until {
                assert!(connection.housekeep() >= WorkLeft::Soon);
            }
            // The thread that writes the rest does not send the release.
            let was_woken = woken.take() > 0;
            connection.housekeep();
            let is_kept = connection.state.lock().pipeline.owes();
            let bytes_left = unwritten(connection);
            connection.close();
            assert!(
                was_woken && !is_kept && bytes_left == 0,
                "{was_woken} {is_kept} {bytes_left}"
            );
        });
    }

    #[test]
    fn a_leader_that_fills_the_socket_looks_soon_whether_a_silent_server_reads_again() {
        let (connection, mut server, _) = unled();
        assert!(connection.submit(&large()).is_some());
        let all = unwritten(&connection);
        let reader = connection
            .state
            .lock()
            .up(1)
            .and_then(|(up, _)| up.leadership.take_from_anyone());
        let (reader, connection) = (reader.expect("nobody leads"), &connection);
        thread::scope(|scope| {
            let now = Instant::now();
            scope.spawn(move || connection.lead(reader, 1, None, now, now + 2 * GENEROUS));
            let is_full = || {
                connection
                    .state
                    .lock()
                    .up(1)
                    .is_none_or(|(_, in_flight)| in_flight.unwritten.is_full())
            };
            while !is_full() {
                thread::yield_now();
            }
            // The server reads, and answers nothing.
            let read = server.read_exact(&mut vec![0; all]);
            connection.close();
            drop(server);
            assert!(read.is_ok(), "{read:?}");
        });
    }
}
