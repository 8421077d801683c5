//! Having the connection made, and giving it up.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};

use super::{Connection, Down, Phase, SLICE, State, Up};
use crate::error::is_transient;
use crate::net::back_off::BackOff;
use crate::net::call::Fault;
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
            tried_at: now,
            why,
        }
    }

    /// After one that could not be made.
    fn failed(&self, tried_at: Instant, why: RedisError) -> Self {
        Self {
            back_off: match is_transient(&why) {
                true => self.back_off.failed(tried_at),
                false => BackOff::failed_for_good(),
            },
            tried_at,
            why: Some(why),
        }
    }

    fn is_final(&self) -> bool {
        self.why.as_ref().is_some_and(|why| !is_transient(why))
    }

    fn why(&self) -> RedisError {
        let why = self.why.clone();
        why.unwrap_or_else(|| socket::timed_out("no connection to redis in time"))
    }
}

impl Connection {
    /// Makes the first connection. Waits for a server that is starting up, but not for one that cannot be reached.
    pub(crate) fn open(self: &Arc<Self>, until: Instant) -> Result<(), RedisError> {
        let mut state = self.state.lock();
        self.dial(&mut state);
        loop {
            match &state.phase {
                Phase::Up(_) => return Ok(()),
                Phase::Connecting(_, progress) if Instant::now() >= until => {
                    return Err(progress.waits_for());
                }
                Phase::Connecting(..) => {}
                Phase::Down(Down { why: Some(why), .. }) => return Err(why.clone()),
                Phase::Down(_) | Phase::Closed => return Err(socket::timed_out("closed")),
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
        let began = Instant::now();
        loop {
            let now = Instant::now();
            let (look_at, why) = match &state.phase {
                Phase::Up(_) => return Ok(()),
                Phase::Closed => return Err(Fault::Closed),
                Phase::Connecting(_, progress) if progress.is_stale() => {
                    self.dial(&mut state);
                    continue;
                }
                Phase::Connecting(_, progress) => (now + SLICE, progress.waits_for()),
                Phase::Down(down) if down.is_final() && down.tried_at >= began => {
                    return Err(Fault::Refused(down.why()));
                }
                Phase::Down(down) if now >= down.back_off.ends(true) => {
                    self.dial(&mut state);
                    continue;
                }
                Phase::Down(down) => (down.back_off.ends(true), down.why()),
            };
            if now >= until {
                drop(state);
                return Err(self.unreachable(why));
            }
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

    /// Starts a thread that makes a connection, while there is none. One that takes long may be stuck with a server that was
    /// away then: it goes on, and the first that is there is used.
    pub(super) fn dial(self: &Arc<Self>, state: &mut State) {
        let (Phase::Down(before) | Phase::Connecting(before, _)) = &state.phase else {
            return;
        };
        let this = Arc::downgrade(self);
        let done = move |made, progress: &Arc<Progress>| {
            if let Some(this) = this.upgrade() {
                this.dialled(made, progress);
            }
        };
        let started = socket::start(&self.endpoint, self.role, self.connect_timeout, done);
        state.phase = match started {
            Ok(progress) => Phase::Connecting(before.clone(), progress),
            Err(err) => Phase::Down(before.failed(Instant::now(), err)),
        };
    }

    /// What came of it.
    fn dialled(&self, made: RedisResult<Duplex>, by: &Arc<Progress>) {
        let mut state = self.state.lock();
        let Phase::Connecting(before, last) = &state.phase else {
            return;
        };
        if made.is_err() && !Arc::ptr_eq(by, last) {
            return;
        }
        match made {
            Ok(connection) => {
                self.start(&mut state, connection);
                drop(state);
                // Before anybody goes on: a process that only waits for this may end right after it.
                self.flush(true);
                self.changed.notify_all();
            }
            Err(err) => {
                state.phase = Phase::Down(before.failed(by.began, err.clone()));
                drop(state);
                self.changed.notify_all();
            }
        }
        self.housekeeper.housekeep_soon();
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
            Phase::Connecting(_, progress) => return progress.give_up(),
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
