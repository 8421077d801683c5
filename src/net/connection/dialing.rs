//! Having the connection made, and giving it up.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};

use super::{Connection, Down, Phase, SLICE, State, Up};
use crate::error::is_transient;
use crate::net::back_off::BackOff;
use crate::net::call::Fault;
use crate::net::socket::dial::SHARE;
use crate::net::socket::{self, Duplex, Progress};
use crate::report::report;

impl Down {
    /// After a connection that was lost, or before the first.
    pub(super) fn new(why: Option<RedisError>) -> Self {
        let (now, back_off) = (Instant::now(), BackOff::new());
        // It takes a while until another master is elected.
        let read_only = ErrorKind::Server(ServerErrorKind::ReadOnly);
        let rests = why.as_ref().is_some_and(|why| why.kind() == read_only);
        Self {
            back_off: match rests {
                true => back_off.failed(now),
                false => back_off,
            },
            why,
        }
    }

    /// After one that could not be made.
    fn failed(&self, tried_at: Instant, why: RedisError) -> Self {
        let is_final = !is_transient(&why);
        Self {
            back_off: match is_final {
                true => BackOff::failed_for_good(),
                false => self.back_off.failed(tried_at),
            },
            why: match &self.why {
                // Silence does not contradict what the server has said.
                Some(refusal) if why.is_timeout() && self.is_final() => Some(refusal.clone()),
                _ => Some(why),
            },
        }
    }

    /// Whether the last attempt that had an answer was refused for a reason that does not pass by itself.
    fn is_final(&self) -> bool {
        self.why.as_ref().is_some_and(|why| !is_transient(why))
    }

    /// Whether it was refused so lately that it is not tried again yet.
    fn is_refused(&self, now: Instant) -> bool {
        self.is_final() && now < self.back_off.ends(true)
    }

    /// Why there is no connection. The answer to an earlier attempt says more than how far the present one has got.
    pub(super) fn reason(&self, attempts: &[Arc<Progress>]) -> RedisError {
        let was_tried = !self.back_off.is_untried();
        let why = self.why.as_ref();
        let answer = why.filter(|why| was_tried && !why.is_timeout());
        match (answer, attempts.last()) {
            (None, Some(last)) => last.waits_for(),
            (answer, _) => answer.or(why).cloned().unwrap_or_else(no_connection),
        }
    }
}

fn no_connection() -> RedisError {
    socket::timed_out("no connection to redis in time")
}

impl Connection {
    /// Makes the first connection. Waits for a server that is starting up, but not for one that cannot be reached.
    pub(crate) fn open(self: &Arc<Self>, until: Instant) -> Result<(), RedisError> {
        let mut state = self.state.lock();
        self.dial(&mut state);
        loop {
            match &state.phase {
                Phase::Up(_) => return Ok(()),
                Phase::Connecting(before, attempts) if Instant::now() >= until => {
                    return Err(before.reason(attempts));
                }
                Phase::Connecting(..) => {}
                Phase::Down(down) => return Err(down.reason(&[])),
                Phase::Closed => return Err(socket::timed_out("closed")),
            }
            self.changed.wait_until(&mut state, until);
        }
    }

    /// Waits until there is a connection. `stop` is asked every few dozen milliseconds.
    pub(crate) fn up(
        self: &Arc<Self>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Up(_)) {
            return Ok(());
        }
        loop {
            let now = Instant::now();
            let (down, attempts) = match &state.phase {
                Phase::Up(_) => return Ok(()),
                Phase::Closed => return Err(Fault::Closed),
                Phase::Down(down) => (down, &[][..]),
                Phase::Connecting(before, attempts) => (before, &attempts[..]),
            };
            // Also beside an attempt that takes long: the refusal is of the one begun after it.
            if down.is_refused(now) {
                return Err(Fault::Refused(down.reason(&[])));
            }
            let again_at = down.back_off.ends(true);
            let is_needed = match attempts {
                [] => true,
                [only] => only.is_stale(),
                _ => false,
            };
            if is_needed && now >= again_at {
                self.dial(&mut state);
                continue;
            }
            if now >= until {
                let why = down.reason(attempts);
                drop(state);
                return Err(self.unreachable(why));
            }
            let look_at = match is_needed {
                true => again_at,
                false => now + SLICE,
            };
            self.changed
                .wait_until(&mut state, until.min(look_at).min(now + SLICE));
            if MutexGuard::unlocked(&mut state, stop) {
                return Err(Fault::Stopped);
            }
        }
    }

    /// Has a connection made in the background, unless there is one, or none is due.
    pub(crate) fn want(self: &Arc<Self>) {
        let mut state = self.state.lock();
        match &state.phase {
            Phase::Down(down) if Instant::now() >= down.back_off.ends(false) => {
                self.dial(&mut state)
            }
            _ => {}
        }
    }

    /// Starts a thread that makes a connection, while there is none. An attempt that takes long may be stuck with a server that
    /// was away then, or may need that long: it goes on, beside short ones that begin one after the other.
    pub(super) fn dial(self: &Arc<Self>, state: &mut State) {
        if !matches!(state.phase, Phase::Down(_) | Phase::Connecting(..)) {
            return;
        }
        let this = Arc::downgrade(self);
        let done = move |made, progress: &Arc<Progress>| {
            if let Some(this) = this.upgrade() {
                this.dialled(made, progress);
            }
        };
        let timeout = match state.phase {
            Phase::Connecting(..) => self.connect_timeout.min(SHARE),
            _ => self.connect_timeout,
        };
        let started = socket::start(&self.endpoint, self.role, timeout, done);
        match (&mut state.phase, started) {
            (Phase::Down(before), Ok(attempt)) => {
                state.phase = Phase::Connecting(before.clone(), vec![attempt]);
            }
            (Phase::Connecting(_, attempts), Ok(attempt)) => attempts.push(attempt),
            (Phase::Down(before) | Phase::Connecting(before, _), Err(err)) => {
                *before = before.failed(Instant::now(), err);
            }
            (Phase::Up(_) | Phase::Closed, _) => {}
        }
    }

    /// Handles the end of an attempt. A failure ends only that one: another under way may still succeed.
    fn dialled(&self, made: RedisResult<Duplex>, by: &Arc<Progress>) {
        let mut state = self.state.lock();
        let Phase::Connecting(before, attempts) = &mut state.phase else {
            return;
        };
        let is_known = attempts.extract_if(.., |its| Arc::ptr_eq(its, by)).count() > 0;
        match made {
            Ok(connection) => {
                for other in attempts {
                    other.give_up();
                }
                self.start(&mut state, connection);
                drop(state);
                // Before anybody goes on: a process that only waits for this may end right after it.
                self.flush(true);
                // Kept releases go out in portions, each behind the replies to the one before.
                self.housekeeper.housekeep_now();
            }
            // An attempt of an earlier outage.
            Err(_) if !is_known => return,
            Err(err) => {
                // A short attempt that ran out of time says no more than the long one beside it.
                if attempts.is_empty() || !err.is_timeout() {
                    *before = before.failed(by.began, err);
                }
                if attempts.is_empty() {
                    state.phase = Phase::Down(before.clone());
                }
                drop(state);
                self.housekeeper.housekeep_soon();
            }
        }
        self.changed.notify_all();
    }

    pub(super) fn start(&self, state: &mut State, mut connection: socket::Duplex) {
        if self.role == socket::GUARDED {
            connection.reader.skip_too_large();
        }
        state.generation += 1;
        if state.generation > 1 {
            self.counters.reconnects.add(1);
        }
        state.phase = Phase::Up(Box::new(Up {
            writer: connection.writer,
            writing: false,
            reader: Some(connection.reader),
            appointed: None,
            all_looked_at: connection.since,
            greeted_in: connection.greeted_in,
            log_in_at: self.endpoint.log_in_again_at(connection.since),
        }));
        state.pipeline.connected(Instant::now());
    }

    /// Drops a connection once all outstanding replies have come.
    pub(crate) fn leave(&self, generation: u64, why: &RedisError) {
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

    /// Drops a connection for good.
    ///
    /// `sound`: no command was written in part, so the commands that undo acquires can still be written. An acquire may lie
    /// unread in the buffer of a frozen server, and would be executed when it resumes, long after anybody wants it.
    pub(super) fn fail(&self, generation: u64, why: &RedisError, sound: bool) {
        let mut state = self.state.lock();
        if state.up(generation).is_some() {
            let next = Phase::Down(Down::new(Some(why.clone())));
            self.take_down(state, next, why, sound);
        }
    }

    pub(super) fn take_down(
        &self,
        mut state: MutexGuard<'_, State>,
        next: Phase,
        why: &RedisError,
        sound: bool,
    ) {
        let up = match std::mem::replace(&mut state.phase, next) {
            Phase::Up(up) => up,
            Phase::Connecting(_, attempts) => {
                return attempts.iter().for_each(|attempt| attempt.give_up());
            }
            Phase::Down(_) | Phase::Closed => return,
        };
        let Some(lost) = state.pipeline.lost(why) else {
            return;
        };
        let unacknowledged = state.pipeline.has_unacknowledged();
        let finished = match sound {
            true => state.finished.replace(Arc::clone(&up.writer)),
            false => None,
        };
        drop(state);
        drop(finished);
        report!(Debug, "connection to {:?} dropped: {why}", self.endpoint);
        if sound
            && !up.writing
            && !lost.torn
            && let Err(err) = up.writer.write_last(&lost.undoing)
        {
            report!(Trace, "undoing over a dropped connection: {err}");
        }
        match sound {
            true => up.writer.finish(),
            false => up.writer.shut_down(),
        }
        self.changed.notify_all();
        for call in lost.calls {
            // Most of them may be releases that nobody waits for, and to wake nobody costs a system call.
            let is_followed = call.state.lock().following > 0;
            if is_followed {
                call.wake();
            }
        }
        if unacknowledged {
            self.housekeeper.housekeep_soon();
        }
    }
}
