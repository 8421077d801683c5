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
        // Electing another master takes a while, so the next attempt is not made at once.
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
        // A permanent error is kept if a mere timeout follows.
        if !(why.is_timeout() && self.is_final()) {
            self.why = Some(why);
        }
    }

    /// Whether the last failure was one that does not pass by itself. Timeouts that followed such a failure do not count.
    fn is_final(&self) -> bool {
        self.why.as_ref().is_some_and(|why| !is_transient(why))
    }

    /// Tells all attempts to end: none is needed any more.
    fn give_up(&self) {
        self.attempts.iter().for_each(|attempt| attempt.give_up());
    }

    /// Why there is no connection. An earlier attempt's error, unless it is a timeout, says more than the progress of the
    /// present attempt.
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
    /// Makes the first connection. Waits for one attempt to connect. The attempt waits for a server that is starting up,
    /// but fails if the server cannot be reached.
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
            // A refusal ends the wait even if another attempt is still under way: the refusal is the server's latest
            // answer.
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

    /// Starts a thread that makes a connection, while there is none. An attempt that takes long may simply need that long,
    /// so it goes on. Or it may be stuck, since the server was unreachable when the attempt began, so short attempts are
    /// made beside it, one after the other. The first that succeeds wins.
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
                // Any other attempt is told to end at its next step. If it connects all the same while this connection is
                // up, it finds no `Phase::Down` above, and its connection is dropped. The attempt that has just succeeded
                // may itself have begun in an earlier outage, but its connection is as good as any. If its server is no
                // longer the master, `Masters` cuts the connection once a Sentinel has named a later master. In a cluster,
                // the node redirects what it does not serve.
                down.give_up();
                self.install(&mut state, connection);
                drop(state);
                // The releases of the ledger are written before the waiting threads are woken: a process may wait for
                // nothing but this connection, and then end at once.
                self.flush(true);
                // The ledger's releases go out in batches, each once the one before is answered; housekeeping reads those
                // answers.
                self.settings.housekeeper.housekeep_now();
            }
            // This attempt began in an earlier outage, which is over, so its failure says nothing about now.
            Err(_) if !is_known => return,
            Err(err) => {
                // While another attempt is still running, a timeout says nothing.
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

    /// One step towards a successor of a connection whose login is old: starts to make it, or puts it into place.
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
    /// While a successor waits, no thread begins to write over the old connection, unless its socket is full
    /// ([`Up::successor`]). So once all replies that are due have come, nothing more is to be done over the old
    /// connection, and it can be shut down. Every thread that would write comes here instead, and so does a leader that
    /// steps down. The generation stays the same: no command is lost, so threads that wait for replies need not know.
    pub(super) fn hand_over(&self, state: &mut MutexGuard<'_, ConnectionState>) -> bool {
        let generation = state.generation;
        let Some((up, in_flight)) = state.up(generation) else {
            return false;
        };
        // A thread that has the reader still reads the old socket.
        let takes_over = up.can_hand_over(in_flight) && up.leadership.reader().is_some();
        let Some(successor) = up.successor.take_if(|_| takes_over) else {
            // Replies are due, a thread writes, or a thread has the reader. A thread that writes hands over when it has
            // written, and a leader when it steps down. Without a leader, perhaps no thread reads these replies soon,
            // while the queued commands wait for that. So housekeeping reads the replies now.
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
        // A socket that works stays open until another connection is finished in its turn: see `finished`.
        let finished = match socket_works {
            true => state.finished.replace(Arc::clone(&up.writer)),
            false => None,
        };
        // From here on another connection may take deferred calls from the ledger, and send them before their threads are
        // woken below. A new sending begins without followers, so the other connection appoints no thread that followed
        // the lost sending.
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
        // The logger may block, so this comes last: all waiting threads are woken by now.
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
mod tests;
