//! Making the connection, and giving it up.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::{BACK_OFF, Connection, Phase, SLICE, State, Up};
use crate::error::is_transient;
use crate::net::call::Fault;
use crate::net::socket::{self, Connecting, Dialled, Meanwhile};
use crate::report::report;

impl Connection {
    /// Makes the first connection. Waits for a server that is starting up, but not for one that cannot be reached.
    pub(crate) fn open(&self, until: Instant) -> Result<(), RedisError> {
        let connection = socket::connect(&self.endpoint, self.role, until, &mut || true)?;
        self.start(&mut self.state.lock(), connection);
        Ok(())
    }

    /// Waits until there is a connection, and makes it unless another thread does.
    pub(crate) fn up(&self, until: Instant, meanwhile: Meanwhile<'_>) -> Result<(), Fault> {
        let mut state = self.state.lock();
        loop {
            if matches!(state.phase, Phase::Up(_)) && !self.endpoint.has_sentinels() {
                return Ok(());
            }
            let now = Instant::now();
            let (turn_at, why) = match &state.phase {
                Phase::Up(_) => {
                    let idle = state.pipeline.idle_for(now);
                    drop(state);
                    if idle.is_some_and(|idle| self.endpoint.follows_master_after(idle)) {
                        self.endpoint.follow_master_first(until, meanwhile);
                    }
                    return Ok(());
                }
                Phase::Closed => return Err(Fault::Closed),
                Phase::Connecting => (now + SLICE, None),
                Phase::Down { retry_at, why, .. }
                    if now < *retry_at && why.as_ref().is_none_or(is_transient) =>
                {
                    (*retry_at, why.clone())
                }
                Phase::Down { .. } => {
                    let made;
                    (state, made) = self.connect(state, until, meanwhile);
                    match made {
                        Err(Fault::Unreachable(_)) if Instant::now() < until => (now, None),
                        made => return made,
                    }
                }
            };
            if now >= until {
                return Err(Fault::Unreachable(why.unwrap_or_else(|| {
                    socket::timed_out("no connection to redis in time")
                })));
            }
            if turn_at > now {
                self.changed
                    .wait_until(&mut state, until.min(turn_at).min(now + SLICE));
            }
            if !MutexGuard::unlocked(&mut state, &mut *meanwhile) {
                return Err(Fault::Stopped);
            }
        }
    }

    /// Makes a connection while there is none.
    pub(super) fn connect<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> (MutexGuard<'a, State>, Result<(), Fault>) {
        let (back_off, dial) = match std::mem::replace(&mut state.phase, Phase::Connecting) {
            Phase::Down { back_off, dial, .. } => (back_off, dial),
            _ => (BACK_OFF.0, None),
        };
        let mut dial = dial
            .filter(|dial| !dial.is_stale(until))
            .unwrap_or_else(|| {
                let ends = Instant::now() + self.connect_timeout;
                Box::new(Connecting::new(self.role, ends))
            });
        let made = MutexGuard::unlocked(&mut state, || {
            std::panic::catch_unwind(AssertUnwindSafe(|| {
                dial.advance(&self.endpoint, until, meanwhile)
            }))
        });
        self.changed.notify_all();
        let made = match made {
            Ok(made) => made,
            Err(panic) => {
                if !matches!(state.phase, Phase::Closed) {
                    state.phase = Phase::Down {
                        retry_at: Instant::now(),
                        back_off,
                        why: None,
                        dial: None,
                    };
                }
                drop(state);
                std::panic::resume_unwind(panic);
            }
        };
        if matches!(state.phase, Phase::Closed) {
            return (state, Err(Fault::Closed));
        }
        match made {
            Ok(Dialled::Made(connection)) => {
                self.start(&mut state, connection);
                MutexGuard::unlocked(&mut state, || self.flush(true));
                (state, Ok(()))
            }
            Ok(Dialled::Unfinished(why)) => {
                // The caller ran out of time or had to stop, which says nothing about the server.
                state.wanted = true;
                state.phase = Phase::Down {
                    retry_at: Instant::now(),
                    back_off,
                    why: Some(why.clone()),
                    dial: Some(dial),
                };
                self.housekeeper.housekeep_soon();
                (state, Err(Fault::Unreachable(why)))
            }
            Err(err) => {
                report!(Debug, "connecting to {:?}: {err}", self.endpoint);
                // With bad credentials every caller gets that error at once; only the sending of releases is delayed.
                let fatal = !is_transient(&err);
                let now = Instant::now();
                state.phase = Phase::Down {
                    retry_at: now + back_off,
                    back_off: (back_off * 2).min(BACK_OFF.1),
                    why: Some(err.clone()),
                    dial: None,
                };
                (
                    state,
                    Err(if fatal {
                        Fault::Refused(err)
                    } else {
                        Fault::Unreachable(err)
                    }),
                )
            }
        }
    }

    pub(super) fn start(&self, state: &mut State, connection: socket::Duplex) {
        state.generation += 1;
        state.wanted = false;
        if state.generation > 1 {
            self.counters.reconnects.add(1);
        }
        state.phase = Phase::Up(Box::new(Up {
            writer: connection.writer,
            writing: false,
            reader: Some(connection.reader),
            log_in_at: self.endpoint.log_in_again_at(connection.since),
            logging_in: None,
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
            // It takes a while until another master is elected.
            let read_only = why.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
            let pause = if read_only {
                BACK_OFF.0 * 5
            } else {
                Duration::ZERO
            };
            let next = Phase::Down {
                retry_at: Instant::now() + pause,
                back_off: BACK_OFF.0,
                why: Some(why.clone()),
                dial: None,
            };
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
        let Phase::Up(up) = std::mem::replace(&mut state.phase, next) else {
            return;
        };
        let Some(lost) = state.pipeline.lost(why) else {
            return;
        };
        let unacknowledged = state.pipeline.has_unacknowledged();
        drop(state);
        report!(Debug, "connection to {:?} dropped: {why}", self.endpoint);
        if sound
            && !up.writing
            && !lost.torn
            && let Err(err) = up.writer.write_last(&lost.undoing)
        {
            report!(Trace, "undoing over a dropped connection: {err}");
        }
        up.writer.shut_down();
        self.changed.notify_all();
        for call in lost.calls {
            call.changed.notify_all();
        }
        if unacknowledged {
            self.housekeeper.housekeep_soon();
        }
    }
}
