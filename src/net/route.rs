//! A command until it is answered: over which connection it goes, when it is sent again, and what takes it back.
//!
//! ```text
//!           a connection stands        reply
//!    made ───────────────────► sent ───────────► answered, or refused for good
//!     ▲ ▲                       │ │
//!     │ └── refused for now ────┘ │              after a pause, or at once where another node has to be asked
//!     └── connection lost ────────┘              the first is taken back, since it may have run
//! ```
//!
//! To one server all commands go over one connection. To a cluster they go over that to the master of their keys, which
//! may be another at each sending; a [`Route`] says which.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::{is_redirection, is_transient, is_unknown_script, not_followed};
use crate::net::call::{Answer, Attempt, Call, CallPhase, Deferred, Fault};
use crate::net::connection::{BACK_OFF, Connection, SLICE, WaitFault};
use crate::net::socket::{self, Meanwhile};
use crate::report::report;

/// How often a command follows where nodes send it before it takes a rest: two may send it to each other.
#[cfg(feature = "cluster")]
const REDIRECTIONS: u32 = 4;

/// Which connection a call goes over.
pub(crate) trait Route {
    type To<'a>: Deref<Target = Connection>
    where
        Self: 'a;

    /// The connection over which a call was sent last.
    fn at(&self, call: &Call) -> Self::To<'_>;

    /// Whether a call is still where [`at`](Self::at) was when it said `to`. Takes no mutex.
    fn is_at(&self, call: &Call, to: &Connection) -> bool;

    /// The connection over which a call has to be sent now, once it stands.
    fn up(
        &self,
        call: &Call,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Self::To<'_>, Fault>;

    /// Queues a call for where it belongs; see [`Connection::submit`].
    fn submit(&self, call: &Arc<Call>) -> Option<u64>;

    /// What follows from an error that the connection of this `generation` has brought.
    fn refused(&self, to: &Connection, generation: u64, call: &Call, err: &RedisError) -> Retry;

    /// An error that is final, as the caller sees it.
    fn refusal(&self, err: RedisError) -> Fault {
        Fault::Refused(err)
    }

    /// The connection was lost with the call under way.
    fn lost(&self, call: &Call);

    /// Sends an unacknowledged call before all others, if its connection stands.
    fn bring(&self, call: &Arc<Call>) {
        self.at(call).bring(call);
    }

    /// Writes what is queued for where the call was submitted to.
    fn flush(&self, call: &Call) {
        self.at(call).flush(false);
    }

    /// Writes a release at once where it was submitted to; see [`Connection::deliver`].
    fn deliver(&self, release: &Call) {
        self.at(release).deliver();
    }

    /// Submits and flushes a deferred call.
    fn send_deferred(&self, deferred: Deferred) {
        let call = Call::deferred(deferred);
        self.submit(&call);
        self.flush(&call);
        self.at(&call).housekeep_soon();
    }
}

/// When a call that was answered with an error is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Another node is asked, at once.
    #[cfg(feature = "cluster")]
    Elsewhere,
    /// It may pass.
    Later,
    Never,
}

/// To one server.
impl Route for Connection {
    type To<'a> = &'a Self;

    fn at(&self, _: &Call) -> &Self {
        self
    }

    fn is_at(&self, _: &Call, _: &Self) -> bool {
        true
    }

    fn up(&self, _: &Call, until: Instant, meanwhile: Meanwhile<'_>) -> Result<&Self, Fault> {
        self.up(until, meanwhile).map(|()| self)
    }

    fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        self.submit(call)
    }

    fn refused(&self, _: &Self, generation: u64, _: &Call, err: &RedisError) -> Retry {
        if !is_transient(err) {
            return Retry::Never;
        }
        // If the server has become a replica, another connection is needed.
        if err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
            self.leave(generation, err);
        }
        Retry::Later
    }

    fn refusal(&self, err: RedisError) -> Fault {
        Fault::Refused(match is_redirection(&err) {
            true => not_followed(&err),
            false => err,
        })
    }

    fn lost(&self, _: &Call) {}
}

/// A command that was sent, and the number of its connection.
pub(crate) struct Ahead {
    call: Arc<Call>,
    generation: u64,
}

/// Sends a command whose reply is waited for later, if there is a connection.
pub(crate) fn send_ahead(route: &impl Route, attempt: Attempt) -> Option<Ahead> {
    let ahead = submit_ahead(route, attempt)?;
    route.flush(&ahead.call);
    Some(ahead)
}

/// The same for one that is only queued. Without I/O, so that mutexes may be held.
pub(crate) fn submit_ahead(route: &impl Route, attempt: Attempt) -> Option<Ahead> {
    let call = Call::attempt(attempt);
    let generation = route.submit(&call)?;
    Some(Ahead { call, generation })
}

/// Undoes what was sent ahead and will not be waited for.
pub(crate) fn abandon(route: &impl Route, ahead: &Ahead) {
    if let Some(undo) = ahead.call.undo() {
        route.send_deferred(undo);
    }
    route.at(&ahead.call).housekeep_soon();
}

/// Sends a command until it has a reply, the deadline has passed, or an error is final. Begins with the one sent
/// `ahead`, if there is one.
///
/// `attempt` makes the command. After an unknown outcome the command is undone, and a new one is made. If there is no
/// reply, `may_have_run` says whether the last command may have been executed, or still may.
pub(crate) fn call(
    route: &impl Route,
    until: Instant,
    stop: &dyn Fn() -> bool,
    ahead: Option<Ahead>,
    attempt: &mut dyn FnMut() -> Attempt,
    may_have_run: &mut bool,
) -> Result<Answer, Fault> {
    *may_have_run = false;
    // Why the last sending was refused for now, and by which connection.
    let mut refused_for_now = None;
    let mut pause = Duration::ZERO; // the first connection may just have been idle for too long
    #[cfg(feature = "cluster")]
    let mut redirections = 0;
    let (mut call, mut sent) = match ahead {
        Some(ahead) => (ahead.call, Some(ahead.generation)),
        None => (Call::attempt(attempt()), None),
    };
    loop {
        let (to, generation) = match sent.take() {
            Some(generation) => (route.at(&call), generation),
            None => {
                let to = route.up(&call, until, &mut || !stop())?;
                let Some(generation) = to.submit(&call) else {
                    continue;
                };
                to.flush(false);
                (to, generation)
            }
        };
        // A script that fails may have changed something before.
        *may_have_run = true;
        let why = match to.wait(&call, until, stop) {
            Ok((value, sent_at)) => match value.extract_error() {
                Ok(value) => {
                    return Ok(Answer {
                        value,
                        sent_at,
                        acknowledged: call.acknowledged(),
                    });
                }
                Err(err) if is_unknown_script(&err) && !call.by_text_from_now() => {
                    *may_have_run = false;
                    refused_for_now = None;
                    continue;
                }
                Err(err) => match route.refused(&to, generation, &call, &err) {
                    Retry::Never => return Err(route.refusal(err)),
                    // Refused before it was executed.
                    #[cfg(feature = "cluster")]
                    Retry::Elsewhere => {
                        *may_have_run = false;
                        refused_for_now = None;
                        redirections += 1;
                        if redirections % REDIRECTIONS != 0 {
                            continue;
                        }
                        err
                    }
                    Retry::Later => {
                        *may_have_run = false;
                        refused_for_now = Some((to, generation, err.clone()));
                        err
                    }
                },
            },
            Err(fault) => {
                // It may have been executed, or still may.
                if let Some(undo) = call.undo() {
                    route.send_deferred(undo);
                }
                match fault {
                    WaitFault::Broken(err) => {
                        route.lost(&call);
                        call = Call::attempt(attempt());
                        *may_have_run = false;
                        err
                    }
                    WaitFault::TimedOut => {
                        to.housekeep_soon();
                        // Another connection may be to a server that serves.
                        let refused = refused_for_now.filter(|(by, its, _)| {
                            *its == generation && std::ptr::eq::<Connection>(&**by, &*to)
                        });
                        return Err(match (to.no_answer(), refused) {
                            (Fault::Late(_), Some((.., why))) => Fault::Unreachable(why),
                            (fault, _) => fault,
                        });
                    }
                    WaitFault::Stopped => {
                        to.housekeep_soon();
                        return Err(Fault::Stopped);
                    }
                    WaitFault::Closed => return Err(Fault::Closed),
                }
            }
        };
        report!(Debug, "{}: {why}; trying again", call.request.doing);
        let rested = Instant::now() + pause;
        if rested >= until {
            return Err(Fault::Unreachable(why));
        }
        if stop() {
            return Err(Fault::Stopped);
        }
        while Instant::now() < rested && !stop() {
            std::thread::sleep(rested.saturating_duration_since(Instant::now()).min(SLICE));
        }
        pause = (pause * 2).clamp(BACK_OFF.0, BACK_OFF.1);
    }
}

/// Waits for the reply to a submitted call, wherever it goes meanwhile.
pub(crate) fn wait(
    route: &impl Route,
    call: &Arc<Call>,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> Result<(Value, Instant), WaitFault> {
    loop {
        let to = route.at(call);
        let left = || !route.is_at(call, &to);
        match to.wait(call, until, &|| left() || stop()) {
            Err(WaitFault::Stopped) if left() && !stop() => {}
            waited => return waited,
        }
    }
}

/// Waits for the reply to a deferred call, reconnecting if necessary. Also returns whether it was sent more than once, so
/// that an earlier one may have been executed as well.
pub(crate) fn settled(
    route: &impl Route,
    call: &Arc<Call>,
    until: Instant,
) -> Result<(Value, bool), Fault> {
    loop {
        match wait(route, call, until, &|| false) {
            Ok((value, _)) => return Ok((value, call.state.lock().sendings > 1)),
            Err(WaitFault::Broken(err)) => {
                if matches!(call.state.lock().phase, CallPhase::Broken(_)) {
                    return Err(route.refusal(err));
                }
                if Instant::now() + BACK_OFF.0 >= until {
                    return Err(Fault::Unreachable(err));
                }
                // It is unacknowledged, so it is sent again.
                route.up(call, until, &mut || true)?;
                route.bring(call);
                if matches!(call.state.lock().phase, CallPhase::Idle) {
                    std::thread::sleep(BACK_OFF.0);
                }
            }
            Err(WaitFault::TimedOut) => {
                return Err(Fault::Unreachable(socket::timed_out(
                    "redis did not answer in time",
                )));
            }
            Err(WaitFault::Stopped) => return Err(Fault::Stopped),
            Err(WaitFault::Closed) => return Err(Fault::Closed),
        }
    }
}
