//! The connection that all threads of a client share for their commands.
//!
//! Writing and waiting are separate. A command is *submitted*: its bytes are queued and its reply is expected. That is no
//! I/O, so it may be done under a lock's mutex. Then it is *flushed*, and its reply may be *waited* for; the reply to a
//! deferred command is handled by whoever reads it. The [pipeline](crate::net::pipeline) decides what is sent when and
//! which reply belongs to which command; this module has the socket, the threads and the clock.
//!
//! One thread reads for all, the *leader*. The first thread that waits takes the [`Reader`] and hands every reply to its
//! call until its own has come; then it puts the reader back and wakes another waiting thread. While fewer than `EAGER`
//! replies are outstanding, each thread writes its own bytes at once; above that, the leader writes those of all threads
//! together before it may block.
//!
//! ```text
//!            connect             greeted               I/O or parse error, silence,
//!    down ───────────► connecting ───────► up ◄─┐      no master any more
//!     ▲                    │               │    │ reply
//!     │  failed            │               ├────┘
//!     ├────────────────────┘               │
//!     └────────────────────────────────────┘          close, from anywhere ──► closed
//!
//!    the reader, while up:   free ──a thread waits──► led ──its reply, its time──► free, and another thread is woken
//! ```
//!
//! Nobody blocks on a full socket: what it does not take at once, the leader writes between two reads.
//!
//! Mutexes: first `state`, then a call's own. Neither is held during I/O. Only `submit` is called with a lock's mutex held.

mod dialing;
mod housekeeping;
mod leading;
mod writing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::{is_transient, is_unknown_script};
use crate::net::call::{Answer, Attempt, Call, CallPhase, Fault, OnReply};
use crate::net::pipeline::{InFlight, Pipeline};
use crate::net::socket::{self, Connecting, Endpoint, Reader, Socket};
use crate::report::report;
use crate::stats::Counters;

/// The longest a thread waits before it checks its deadline, its cancel token and the client's state.
const SLICE: Duration = Duration::from_millis(64);

/// How long to read when only checking whether a reply has come.
const GLANCE: Duration = Duration::from_millis(1);

/// The pause after the first failed connection, doubled up to the second for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

enum Phase {
    Down {
        retry_at: Instant,
        back_off: Duration,
        why: Option<RedisError>,
        /// A connection in the making that nobody has had the time to finish.
        dial: Option<Connecting>,
    },
    Connecting,
    Up(Box<Up>),
    Closed,
}

/// The socket of a connection.
struct Up {
    writer: Arc<Socket>,
    writing: bool,
    /// `None` while a thread leads.
    reader: Option<Reader>,
}

struct State {
    phase: Phase,
    generation: u64,
    pipeline: Pipeline,
    /// Somebody needed a connection and had no time to make one.
    wanted: bool,
}

/// The result of a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrote {
    Yes,
    /// The socket is full; the leader writes the rest.
    Behind,
    /// There is no connection.
    Down,
}

impl State {
    fn up(&mut self, generation: u64) -> Option<(&mut Up, &mut InFlight)> {
        match &mut self.phase {
            Phase::Up(up) if self.generation == generation => {
                Some((up, self.pipeline.in_flight()?))
            }
            _ => None,
        }
    }
}

/// Whoever calls [`Connection::housekeep`] from time to time.
pub(crate) trait Housekeeper: Send + Sync {
    /// Housekeeping is needed soon. Cheap, and called with mutexes held.
    fn housekeep_soon(&self);
}

/// The shared connection for the commands of all locks of a client.
pub(crate) struct Connection {
    endpoint: Endpoint,
    connect_timeout: Duration,
    /// How long a connection may be silent with a reply due.
    max_silence: Duration,
    state: Mutex<State>,
    changed: Condvar,
    counters: Arc<Counters>,
    housekeeper: Arc<dyn Housekeeper>,
    on_reply: Box<dyn OnReply>,
}

impl Connection {
    pub(crate) fn new(
        endpoint: Endpoint,
        connect_timeout: Duration,
        response_timeout: Duration,
        counters: Arc<Counters>,
        housekeeper: Arc<dyn Housekeeper>,
        on_reply: Box<dyn OnReply>,
    ) -> Self {
        Self {
            endpoint,
            connect_timeout,
            max_silence: response_timeout / 2,
            state: Mutex::new(State {
                phase: Phase::Down {
                    retry_at: Instant::now(),
                    back_off: BACK_OFF.0,
                    why: None,
                    dial: None,
                },
                generation: 0,
                pipeline: Pipeline::default(),
                wanted: false,
            }),
            changed: Condvar::new(),
            counters,
            housekeeper,
            on_reply,
        }
    }

    /// Sends a command whose reply is waited for later, if there is a connection.
    pub(crate) fn send_ahead(&self, attempt: Attempt) -> Option<Ahead> {
        let call = Call::attempt(attempt);
        let generation = self.submit(&call)?;
        self.flush(false);
        Some(Ahead { call, generation })
    }

    /// Undoes what was sent ahead and will not be waited for.
    pub(crate) fn abandon(&self, ahead: Ahead) {
        if let Some(undo) = ahead.call.undo() {
            self.send_deferred(undo);
        }
        self.housekeeper.housekeep_soon();
    }

    /// Sends a command until it has a reply, the deadline has passed, or an error is final. Begins with the one sent
    /// `ahead`, if there is one.
    ///
    /// `attempt` makes the command. After an unknown outcome the command is undone, and a new one is made.
    pub(crate) fn call(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
    ) -> Result<Answer, Fault> {
        self.call_and_say(until, stop, ahead, attempt, &mut false)
    }

    /// The same. If there is no reply, `may_have_run` says whether the last command may have been executed, or still may.
    pub(crate) fn call_and_say(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
        may_have_run: &mut bool,
    ) -> Result<Answer, Fault> {
        *may_have_run = false;
        let mut pause = Duration::ZERO; // the first connection may just have been idle for too long
        let (mut call, mut sent) = match ahead {
            Some(ahead) => (ahead.call, Some(ahead.generation)),
            None => (Call::attempt(attempt()), None),
        };
        loop {
            let generation = match sent.take() {
                Some(generation) => generation,
                None => {
                    self.up(until, &mut || !stop())?;
                    let Some(generation) = self.submit(&call) else {
                        continue;
                    };
                    self.flush(false);
                    generation
                }
            };
            // A script that fails may have changed something before.
            *may_have_run = true;
            let why = match self.wait(&call, until, stop) {
                Ok((value, sent_at)) => match value.extract_error() {
                    Ok(value) => return Ok(Answer { value, sent_at }),
                    Err(err) if is_unknown_script(&err) && !call.by_text_from_now() => {
                        *may_have_run = false;
                        continue;
                    }
                    // Refused before it was executed. If the server has become a replica, another connection is needed.
                    Err(err) if is_transient(&err) => {
                        *may_have_run = false;
                        if err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
                            self.leave(generation, &err);
                        }
                        err
                    }
                    Err(err) => return Err(Fault::Refused(err)),
                },
                Err(fault) => {
                    // It may have been executed, or still may.
                    if let Some(undo) = call.undo() {
                        self.send_deferred(undo);
                    }
                    match fault {
                        WaitFault::Broken(err) => {
                            call = Call::attempt(attempt());
                            *may_have_run = false;
                            err
                        }
                        WaitFault::TimedOut => {
                            self.housekeeper.housekeep_soon();
                            return Err(self.no_answer());
                        }
                        WaitFault::Stopped => {
                            self.housekeeper.housekeep_soon();
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

    /// Whether there is a connection that is not known to have owed a reply for `max_silence` or longer.
    pub(crate) fn responds(&self, max_silence: Duration) -> bool {
        let mut state = self.state.lock();
        let in_flight = state.pipeline.in_flight();
        in_flight.is_some_and(|in_flight| {
            in_flight.due_since().is_none_or(|sent_at| {
                let due_since = sent_at.max(in_flight.last_heard);
                in_flight.quiet_at.saturating_duration_since(due_since) < max_silence
            })
        })
    }

    /// Why there is no reply although the time for it is up.
    pub(crate) fn no_answer(&self) -> Fault {
        let silent = socket::timed_out("redis did not answer in time");
        if self.responds(self.max_silence) {
            return Fault::Late(silent);
        }
        Fault::Unreachable(match &self.state.lock().phase {
            Phase::Up(_) => silent,
            Phase::Down { why: Some(why), .. } => why.clone(),
            _ => socket::timed_out("no connection to redis in time"),
        })
    }

    /// The number of the current connection, if there is one.
    pub(crate) fn generation(&self) -> Option<u64> {
        let state = self.state.lock();
        matches!(state.phase, Phase::Up(_)).then_some(state.generation)
    }

    /// Waits for the reply to a deferred call, reconnecting if necessary. Also returns whether it was sent more than once, so
    /// that an earlier one may have been executed as well.
    pub(crate) fn settled(&self, call: &Arc<Call>, until: Instant) -> Result<(Value, bool), Fault> {
        loop {
            match self.wait(call, until, &|| false) {
                Ok((value, _)) => return Ok((value, call.state.lock().sendings > 1)),
                Err(WaitFault::Broken(err)) => {
                    if matches!(call.state.lock().phase, CallPhase::Broken(_)) {
                        return Err(Fault::Refused(err));
                    }
                    if Instant::now() + BACK_OFF.0 >= until {
                        return Err(Fault::Unreachable(err));
                    }
                    // It is unacknowledged, so it is sent again.
                    self.up(until, &mut || true)?;
                    self.bring(call);
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

    /// Sends an unacknowledged call before all others, if there is a connection and the server serves.
    fn bring(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        if state.pipeline.bring(call, Instant::now()) {
            drop(state);
            self.flush(false);
        }
    }
}

/// A command that was sent, and the number of its connection.
pub(crate) struct Ahead {
    call: Arc<Call>,
    generation: u64,
}

/// Why a wait ended without a reply.
#[derive(Debug)]
pub(crate) enum WaitFault {
    Broken(RedisError),
    TimedOut,
    Stopped,
    Closed,
}

/// The first call whose thread can become the leader, if there is none.
fn next_leader(up: &Up, in_flight: &InFlight) -> Option<Arc<Call>> {
    up.reader.as_ref()?;
    in_flight.first_following()
}

/// Wakes the thread of a call to become the leader.
fn wake_leader(call: Option<Arc<Call>>) {
    if let Some(call) = call {
        call.changed.notify_all();
    }
}
