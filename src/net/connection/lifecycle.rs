//! Making the connection, and giving it up.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;
use redis::{RedisError, RedisResult};

use super::leadership::ReadLeadership;
use super::{Connection, ConnectionState, Down, Phase, SLICE, Up};
use crate::error::is_transient;
use crate::net::back_off::NextTry;
use crate::net::call::Fault;
use crate::net::dialling::{self, Succession};
use crate::net::pipeline::InFlight;
use crate::net::socket::dial::SHARE;
use crate::net::socket::{self, DialProgress, Duplex};
use crate::report::report;
use crate::verdict::{self, Reach};

impl Down {
    /// The state after a connection was lost, or before the first.
    pub(super) fn new(why: Option<RedisError>) -> Self {
        let mut next = NextTry::at_once();
        // Electing another master takes a while.
        if (why.as_ref()).is_some_and(|why| verdict::reach(why) == Reach::Master) {
            next = next.after_failure(Instant::now());
        }
        Self {
            next,
            why,
            attempts: Vec::new(),
        }
    }

    /// An attempt that began at `began` has failed.
    fn fail(&mut self, began: Instant, why: RedisError) {
        self.next = match is_transient(&why) {
            true => self.next.after_failure(began),
            false => NextTry::after_refusal(),
        };
        // A timeout does not replace an error that does not pass by itself.
        if !(why.is_timeout() && self.is_final()) {
            self.why = Some(why);
        }
    }

    /// Whether the last attempt that had an answer was refused for a reason that does not pass by itself.
    fn is_final(&self) -> bool {
        self.why.as_ref().is_some_and(|why| !is_transient(why))
    }

    /// No attempt is needed any more.
    fn give_up(&self) {
        self.attempts.iter().for_each(|attempt| attempt.give_up());
    }

    /// Why there is no connection. The error of an earlier attempt says more than the progress of the present one.
    pub(super) fn reason(&self) -> RedisError {
        let why = self.why.as_ref();
        let answer = why.filter(|why| self.next.has_failed() && !why.is_timeout());
        match (answer, self.attempts.last()) {
            (None, Some(last)) => last.reason(),
            (answer, _) => answer.or(why).cloned().unwrap_or_else(no_connection),
        }
    }
}

fn no_connection() -> RedisError {
    socket::timed_out("no connection to redis in time")
}

impl Up {
    /// Whether a successor may take over: all that was written is answered, and no thread writes.
    pub(super) fn can_hand_over(&self, in_flight: &InFlight) -> bool {
        self.successor.is_some() && !self.writing && in_flight.is_answered()
    }
}

impl Connection {
    /// Makes the first connection. Waits for one attempt to connect, which waits for a server that is starting up, but not
    /// for one that cannot be reached.
    pub(crate) fn open(self: &Arc<Self>, until: Instant) -> Result<(), RedisError> {
        let mut state = self.state.lock();
        self.dial(&mut state);
        loop {
            match &state.phase {
                Phase::Up(_) => return Ok(()),
                Phase::Down(down) if down.attempts.is_empty() || Instant::now() >= until => {
                    return Err(down.reason());
                }
                Phase::Down(_) => {}
                Phase::Closed => return Err(socket::timed_out("closed")),
            }
            self.changed.wait_until(&mut state, until);
        }
    }

    /// Waits until there is a connection. `stop` is called at least once in a [`SLICE`], without the mutex.
    pub(crate) fn up(
        self: &Arc<Self>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let mut state = self.state.lock();
        loop {
            let down = match &state.phase {
                // If this connection is lost before the caller uses it, `submit` queues nothing and returns `None`.
                Phase::Up(_) => return Ok(()),
                Phase::Closed => return Err(Fault::Closed),
                Phase::Down(down) => down,
            };
            let (now, again_at) = (Instant::now(), down.next.due(true));
            // A refusal ends the wait even beside an attempt that takes long: the refusal is the server's latest answer.
            if down.is_final() && now < again_at {
                return Err(Fault::Refused(down.reason()));
            }
            let is_needed = match &down.attempts[..] {
                [] => true,
                [only] => only.is_stale(),
                _ => false,
            };
            // All waiting threads come here. The first one dials, and the others then find an attempt under way.
            if is_needed && now >= again_at {
                // If no thread can be started, the next attempt is due later, so this loop does not spin.
                self.dial(&mut state);
                continue;
            }
            if now >= until {
                let why = down.reason();
                drop(state);
                return Err(self.unreachable(why));
            }
            let look_at = match is_needed {
                true => again_at.min(now + SLICE),
                false => now + SLICE,
            };
            // `stop` may lock a call and the slot table (see `Nodes::up`), so it runs without this mutex.
            self.changed.wait_until(&mut state, until.min(look_at));
            if MutexGuard::unlocked(&mut state, stop) {
                return Err(Fault::Stopped);
            }
        }
    }

    /// Starts an attempt to connect in the background, unless there is a connection or no attempt is due.
    pub(crate) fn want(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if let Phase::Down(down) = &state.phase
            && down.attempts.is_empty()
            && Instant::now() >= down.next.due(false)
        {
            self.dial(&mut state);
        }
    }

    /// Starts a thread that makes a connection, while there is none. An attempt that takes long may be stuck at a server that
    /// was unreachable when it began, or may need that long. So it goes on, while short attempts are made beside it, one after
    /// the other. The first that succeeds wins.
    fn dial(self: &Arc<Self>, state: &mut ConnectionState) {
        let Phase::Down(down) = &mut state.phase else {
            return;
        };
        let this = Arc::downgrade(self);
        let done = move |made, attempt: &Arc<DialProgress>| {
            if let Some(this) = this.upgrade() {
                this.dialled(made, attempt);
            }
        };
        let timeout = match down.attempts.is_empty() {
            true => self.settings.connect_timeout,
            false => self.settings.connect_timeout.min(SHARE),
        };
        match dialling::start(&self.masters, self.node, self.role, timeout, done) {
            Ok(attempt) => down.attempts.push(attempt),
            Err(err) => down.fail(Instant::now(), err),
        }
    }

    /// Handles the end of an attempt, on its thread. A failure ends only this attempt: another may still succeed.
    fn dialled(&self, made: RedisResult<Duplex>, by: &Arc<DialProgress>) {
        let mut state = self.state.lock();
        // Another attempt was faster, or the client is closed: drop the connection.
        let Phase::Down(down) = &mut state.phase else {
            return;
        };
        let is_known = down
            .attempts
            .extract_if(.., |attempt| Arc::ptr_eq(attempt, by))
            .count()
            > 0;
        match made {
            Ok(connection) => {
                // An attempt beside this one ends at its next step. If it succeeds while this connection is up, it finds
                // `Up` above, and drops its own.
                // An attempt of an earlier outage is as good as any: a connection to a replaced master is cut by
                // `Masters`.
                down.give_up();
                self.install(&mut state, connection);
                drop(state);
                // The releases of the ledger are written before the waiting threads are woken: a process may wait for nothing
                // but this connection, and end right after it.
                self.flush(true);
                // Releases of the ledger go out in batches, each behind the replies to the one before.
                self.settings.housekeeper.housekeep_now();
            }
            // This attempt began in an earlier outage, which is over, so its failure says nothing about now.
            Err(_) if !is_known => return,
            Err(err) => {
                // While a long attempt is still running, the timeout of a short one says nothing.
                if down.attempts.is_empty() || !err.is_timeout() {
                    down.fail(by.began, err);
                }
                drop(state);
                self.settings.housekeeper.housekeep_soon();
            }
        }
        self.changed.notify_all();
    }

    /// Puts a connection into use, where there was none.
    pub(super) fn install(&self, state: &mut ConnectionState, connection: Duplex) {
        state.generation += 1;
        self.settings
            .counters
            .reconnects
            .add(u64::from(state.generation > 1));
        state.pipeline.connected(Instant::now());
        state.phase = Phase::Up(Box::new(self.up_over(connection)));
    }

    fn up_over(&self, mut connection: Duplex) -> Up {
        if self.role == socket::GUARDED {
            connection.reader.skip_too_large();
        }
        Up {
            succession: Succession::of(&connection, &self.endpoint),
            successor: None,
            writer: connection.writer,
            writing: false,
            leadership: ReadLeadership::new(connection.reader),
            all_looked_at: connection.since,
            greeted_in: connection.greeted_in,
        }
    }

    /// Starts making the successor of a connection whose login is old.
    pub(super) fn renew_login(&self) {
        let mut state = self.state.lock();
        let generation = state.generation;
        let mut succession = match state.up(generation) {
            Some((up, _)) if up.succession.at.is_some() => std::mem::take(&mut up.succession),
            _ => return,
        };
        drop(state);
        // Without the mutex: `advance` may start a thread and may log. If the connection is lost in the meantime, its
        // generation does not match any more, and the attempt is given up when `succession` is dropped.
        let (masters, timeout) = (&self.masters, self.settings.connect_timeout);
        let made = succession.advance(masters, self.node, self.role, timeout);
        let mut state = self.state.lock();
        // If the connection was lost, the next one has a new login anyway, and the outcome does not matter.
        let Some((up, _)) = state.up(generation) else {
            drop(state);
            return;
        };
        up.succession = succession;
        drop(state);
        match made {
            None => {}
            Some(Ok(successor)) => self.succeed(generation, successor),
            Some(Err(why)) => self.endpoint.log_login_kept(self.role, &why),
        }
    }

    /// Stores the successor, which takes over at once if nothing is under way. If the connection was lost, the successor is
    /// dropped: the next connection has a new login anyway.
    fn succeed(&self, generation: u64, successor: Duplex) {
        let mut state = self.state.lock();
        if let Some((up, _)) = state.up(generation) {
            up.successor = Some(successor);
            self.write_queued(state, true);
        }
    }

    /// Makes the successor take over if the old connection [can hand over](Up::can_hand_over), and returns whether it did.
    /// Then the caller writes what is queued.
    ///
    /// While a successor waits, no thread begins to write over the old connection, unless its socket is full. So the
    /// connection has no more to do after the replies that are due. Every thread that would write comes here instead, and
    /// so does a leader that steps down. The generation stays the same: no command is lost, so threads that wait for
    /// replies need not know.
    pub(super) fn hand_over(&self, state: &mut MutexGuard<'_, ConnectionState>) -> bool {
        let generation = state.generation;
        let Some((up, in_flight)) = state.up(generation) else {
            return false;
        };
        // A thread that has the reader still reads the old socket.
        let takes_over = up.can_hand_over(in_flight) && up.leadership.reader().is_some();
        let Some(successor) = up.successor.take_if(|_| takes_over) else {
            // Replies are due, or a thread has the reader. A leader hands over when it steps down. Without a leader perhaps
            // no thread reads these replies soon, and the queued commands would wait: housekeeping reads them now.
            if in_flight.has_bytes() && !up.leadership.is_led() {
                self.settings.housekeeper.housekeep_now();
            }
            return false;
        };
        // No thread reads or writes over the old socket: none is `writing`, and the reader is in its place.
        let mut old = std::mem::replace(up, self.up_over(successor));
        up.leadership.inherit(&mut old.leadership);
        // Calls that were queued by hash stay so: a server that does not know the script answers `NOSCRIPT`.
        in_flight.go_on(Instant::now());
        // The mutex is released: afterwards the successor may be led, written to or lost, so the caller looks again.
        MutexGuard::unlocked(state, || {
            old.writer.shut_down();
            drop(old);
        });
        true
    }

    /// Drops a connection as soon as no reply is due, perhaps now. Until then other threads may still send over it.
    pub(crate) fn leave_when_answered(&self, generation: u64, why: &RedisError) {
        let mut state = self.state.lock();
        let now = match state.up(generation) {
            Some((_, in_flight)) => {
                in_flight.leave_for(why.clone());
                in_flight.leave().is_some()
            }
            None => false,
        };
        drop(state);
        if now {
            self.fail(generation, why, false);
        }
    }

    /// Drops the connection with this number, unless it is down by now. Deferred calls go to the ledger, and all others are
    /// broken: the thread that waits decides whether to send again.
    ///
    /// `socket_works`: undos can still be written behind the acquires that have no reply. A frozen server may
    /// have such an acquire unread, and would execute it on resuming, long after the caller has given up. A socket that has failed,
    /// or that has taken only a part of a command, gets no undos.
    pub(super) fn fail(&self, generation: u64, why: &RedisError, socket_works: bool) {
        let mut state = self.state.lock();
        if state.up(generation).is_some() {
            let next = Phase::Down(Down::new(Some(why.clone())));
            self.take_down(state, next, why, socket_works);
        }
    }

    pub(super) fn take_down(
        &self,
        mut state: MutexGuard<'_, ConnectionState>,
        next: Phase,
        why: &RedisError,
        socket_works: bool,
    ) {
        // Taking the phase out decides which thread takes the connection down: any other finds no `Up` of this generation.
        let up = match std::mem::replace(&mut state.phase, next) {
            Phase::Up(up) => up,
            // The client is closed while there is no connection. An attempt that still succeeds finds `Closed`, and is
            // dropped.
            Phase::Down(down) => return down.give_up(),
            Phase::Closed => return,
        };
        // `None` is not reached: the pipeline is in flight for as long as the phase is `Up`.
        let Some(lost) = state.pipeline.lost(why) else {
            return;
        };
        let owes = state.pipeline.owes();
        // A socket that works stays open until the next one is finished, so that the server reads all that was
        // written.
        let finished = match socket_works {
            true => state.finished.replace(Arc::clone(&up.writer)),
            false => None,
        };
        // From here on another connection may take deferred calls from the ledger, and send them before their threads are woken
        // below. Each sending counts its own followers, so the other connection appoints none of these threads.
        drop(state);
        drop(finished);
        // If a thread is writing, half a command may be written, and the server could not parse an undo behind it.
        let undone = match socket_works && !up.writing && !lost.torn {
            true => up.writer.write_last(&lost.undoing),
            false => Ok(()),
        };
        match socket_works {
            true => up.writer.finish(),
            false => up.writer.shut_down(),
        }
        // A leader that is blocked in a read is woken by `shut_down`, or returns at the end of its slice. Followers are
        // woken here. A follower whose call is already under way over another connection, or answered, finds that when it
        // looks at the call.
        self.changed.notify_all();
        for call in lost.followed {
            call.wake();
        }
        if owes {
            self.settings.housekeeper.housekeep_soon();
        }
        // The logger may block, so no thread waits for these records.
        report!(Debug, "connection to {:?} dropped: {why}", self.endpoint);
        if let Err(err) = undone {
            report!(
                Trace,
                "undoing acquires over a dropped connection failed: {err}"
            );
        }
    }
}

#[cfg(all(test, unix))]
mod successors {
    use super::*;

    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::super::housekeeping::tests::undo;
    use super::super::leading::appointments::{GENEROUS, led};
    use super::super::writing::tests::{large, unled};
    use crate::net::call::Call;
    use crate::net::request::Request;
    use crate::net::socket::Socket;

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

    fn ping(connection: &Connection) -> Arc<Call> {
        let call = Call::question(Request::command("asking", &["PING"]));
        assert!(connection.send(&call).is_some());
        connection.flush(true);
        call
    }

    fn is_pinged(server: &mut UnixStream) {
        let mut asked = [0; PING.len()];
        server.read_exact(&mut asked).expect("a command");
        assert_eq!(asked, PING);
    }

    /// A connection that was greeted, and the server's end of it.
    fn successor() -> (Duplex, UnixStream) {
        let (client, server) = UnixStream::pair().expect("a pair");
        server.set_read_timeout(Some(GENEROUS)).expect("a limit");
        (
            Duplex::over(Socket::Plain(OwnedFd::from(client).into())),
            server,
        )
    }

    fn has_taken_over(connection: &Connection) -> bool {
        let mut state = connection.state.lock();
        state.up(1).expect("it is up").0.successor.is_none()
    }

    fn is_closed(mut server: UnixStream) {
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).expect("its end");
        assert!(rest.is_empty(), "{rest:?}");
    }

    #[test]
    fn a_successor_takes_over_between_two_replies_whichever_thread_reads_the_last() {
        for leads_for_first in [true, false] {
            let ((connection, reader, mut old), (next, mut new)) = (led(), successor());
            let first = ping(&connection);
            is_pinged(&mut old);
            connection.succeed(1, next);
            let second = ping(&connection);
            let leads_for = match leads_for_first {
                true => &first,
                false => &second,
            };
            let (connection, now) = (&connection, Instant::now());
            let until = now + GENEROUS;
            thread::scope(|scope| {
                scope.spawn(move || connection.lead(reader, 1, Some(leads_for), now, until));
                old.write_all(b"+PONG\r\n").expect("it is open");
                is_pinged(&mut new);
            });
            assert!(matches!(first.outcome(), Some(Ok(_))));
            new.write_all(b"+PONG\r\n").expect("it is open");
            let answered = connection.wait(&second, until, &|| false);
            assert!(answered.is_ok(), "{answered:?}");
            is_closed(old);
            assert_eq!(second.state.lock().sendings, 1);
        }
    }

    #[test]
    fn housekeeping_reads_what_is_due_before_a_successor_takes_over() {
        let (connection, mut old, woken) = unled();
        let (next, mut new) = successor();
        let useful_until = Instant::now() + GENEROUS;
        let release = || undo(&"name".into(), useful_until);
        assert!(connection.send(&release()).is_some());
        connection.succeed(1, next);
        woken.take();
        let second = release();
        assert!(connection.send(&second).is_some());
        assert!(woken.take() > 0, "no thread leads");
        old.write_all(b":0\r\n").expect("it is open");
        while !has_taken_over(&connection) && Instant::now() < useful_until {
            connection.housekeep();
        }
        new.write_all(b":0\r\n").expect("it is open");
        while second.outcome().is_none() && Instant::now() < useful_until {
            connection.housekeep();
        }
        assert!(matches!(second.outcome(), Some(Ok(_))));
    }

    #[test]
    fn a_successor_takes_over_at_once_from_a_connection_that_is_idle() {
        let ((connection, old, _), (next, mut new)) = (unled(), successor());
        // A thread that looks for news may still have the old socket.
        let writer = connection
            .state
            .lock()
            .up(1)
            .map(|(up, _)| Arc::clone(&up.writer));
        connection.succeed(1, next);
        is_closed(old);
        drop(writer);
        ping(&connection);
        is_pinged(&mut new);
        // A successor of a connection that was lost is not needed.
        connection.fail(1, &socket::timed_out("lost"), false);
        let (next, late) = successor();
        connection.succeed(1, next);
        is_closed(late);
        assert_eq!(connection.generation(), None);
    }

    #[test]
    fn a_command_that_waits_for_a_successor_is_sent_over_the_connection_that_its_sender_knows() {
        let ((connection, mut old, _), (next, mut new)) = (unled(), successor());
        let first = ping(&connection);
        is_pinged(&mut old);
        connection.succeed(1, next);
        let call = Call::question(Request::command("asking", &["PING"]));
        let sent = connection.send(&call).expect("a connection");
        old.write_all(b"+PONG\r\n").expect("it is open");
        let until = Instant::now() + GENEROUS;
        assert!(connection.wait(&first, until, &|| false).is_ok());
        is_pinged(&mut new);
        new.write_all(b"+PONG\r\n").expect("it is open");
        assert!(connection.wait(&call, until, &|| false).is_ok());
        // The reply says that its server is no master any more.
        connection.leave_when_answered(sent, &socket::timed_out("no master"));
        assert_eq!(connection.generation(), None);
        is_closed(new);
    }

    #[test]
    fn a_command_that_is_written_in_part_is_written_to_its_end_before_a_successor_takes_over() {
        let ((connection, mut old, _), (next, mut new)) = (unled(), successor());
        let call = large();
        let mut bytes = Vec::new();
        call.request.write(&mut bytes, false);
        assert!(connection.send(&call).is_some());
        connection.succeed(1, next);
        let (connection, until) = (&connection, Instant::now() + GENEROUS);
        thread::scope(|scope| {
            scope.spawn(move || {
                let read = old.read_exact(&mut bytes);
                old.write_all(b"+PONG\r\n").expect("it is open");
                read.expect("the whole command");
            });
            while !has_taken_over(connection) && Instant::now() < until {
                connection.housekeep();
            }
        });
        ping(connection);
        is_pinged(&mut new);
    }

    #[test]
    fn a_successor_is_sent_the_texts_of_scripts() {
        let ((connection, mut old, _), (next, mut new)) = (unled(), successor());
        let release = undo(&"name".into(), Instant::now() + GENEROUS);
        let says_eval = |server: &mut UnixStream| {
            let mut begins = [0; 14];
            server.read_exact(&mut begins).expect("a command");
            assert!(begins.ends_with(b"$4\r\nEVAL\r\n"), "{begins:?}");
        };
        assert!(connection.send(&release).is_some());
        says_eval(&mut old);
        old.write_all(b":0\r\n").expect("it is open");
        connection
            .wait(&release, Instant::now() + GENEROUS, &|| false)
            .expect("a reply");
        // With Sentinels the successor may lead to another server.
        connection.succeed(1, next);
        assert!(
            connection
                .send(&undo(&"name".into(), Instant::now() + GENEROUS))
                .is_some()
        );
        says_eval(&mut new);
    }
}
