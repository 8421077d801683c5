//! The connection to one node for one role (commands, guarded commands, or renewals), which all threads of a client share.
//!
//! Writing and waiting are separate. A command is *submitted*: its bytes are queued and its reply is expected. Submitting
//! does no I/O, so it may be done with the mutex of a lock's local entry held. Then the command is *flushed*, and a thread
//! may *wait* for its reply. The reply to a *deferred* command (a release or an undo) is handled by the thread that reads
//! the reply. The [pipeline](crate::net::pipeline) decides what is sent when and which reply belongs to which command;
//! this module has the socket, the threads and the clock.
//!
//! One thread reads for all, the *leader*. The first thread that waits takes the [`Reader`] and hands every reply to its call
//! until its own has arrived; then it puts the reader back and appoints another waiting thread. All others *follow*: they wait
//! without a limit unless their time is nearly up, so from time to time the leader wakes all of them, and each checks whether
//! it has to stop. Before it blocks, the leader writes what all threads have queued; another thread writes if nobody leads, or
//! [if that is worth it](InFlight::is_worth_a_write).
//!
//! A leader that steps down wakes first the threads whose replies it has read, and last the next leader. As a rule those
//! threads have queued their next commands by the time the next leader runs, and it writes these together. Until the next
//! leader has taken the reader, no other waiting thread may lead. Otherwise the old leader would lead again with its next
//! command, and block before the others have queued theirs (bench: 8 and 64 threads on as many locks). Three others may
//! take the reader although a thread is appointed: a thread whose time is up reads once more, housekeeping reads briefly,
//! and a thread that finds the connection idle checks it. Each of the three appoints again when it puts the reader back.
//!
//! ```text
//!            somebody needs it      greeted               I/O or parse error, silence,
//!    down ─────────────────► attempts ─────────► up ◄─┐   no master any more
//!     ▲     a thread starts      │               │    │ reply
//!     │                          │ failed        ├────┘
//!     ├──────────────────────────┘               │
//!     └──────────────────────────────────────────┘        close, from anywhere ──► closed
//! ```
//!
//! The states of the reader, while the connection is up:
//!
//! | state | ends when | next state |
//! | --- | --- | --- |
//! | free | a thread waits for a reply | led by that thread |
//! | led | the leader has its reply, or its slice is over | a following thread is appointed; free if none follows |
//! | a thread is appointed | that thread is awake and takes the reader | led by that thread |
//! | a thread is appointed | that thread leaves without its reply | another is appointed; free if none follows |
//!
//! If the login of a connection is old, a successor is made while the connection goes on working. It takes over once all
//! that was written is answered; what is still queued goes out over the successor. Nothing is lost, sent twice, or undone.
//!
//! No thread waits until a full socket has space. (On systems that have no write which returns at once, each write blocks
//! for at most a `GLANCE`.) The rest is written by housekeeping, and by the leader between two reads.
//!
//! Mutexes are locked in this order: `state`, the ledger's, a call's. None is held during I/O. `submit` alone may be
//! called with the mutex of a lock's entry held.

mod housekeeping;
mod leadership;
mod leading;
mod lifecycle;
mod writing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::RedisError;

use self::leadership::ReadLeadership;
use crate::error::is_transient;
use crate::net::back_off::NextTry;
use crate::net::call::{Call, Fault, OnReply};
use crate::net::dialling::Succession;
use crate::net::ledger::Ledger;
use crate::net::masters::Masters;
use crate::net::pipeline::{InFlight, Pipeline};
use crate::net::request::Request;
use crate::net::socket::{self, DialProgress, Duplex, Endpoint, GLANCE, Reader, SLICE, Socket};
use crate::stats::Counters;

/// Why there is no connection, and how one is made.
struct Down {
    next: NextTry,
    why: Option<RedisError>,
    /// The threads that try to make a connection, at most two. A second one begins if the only one takes long, and gets a
    /// shorter timeout.
    attempts: Vec<Arc<DialProgress>>,
}

enum Phase {
    Down(Down),
    Up(Box<Up>),
    Closed,
}

/// The socket of a connection, and which threads use it.
struct Up {
    writer: Arc<Socket>,
    /// Whether a thread writes, or checks the socket before it writes. Meanwhile the others leave their bytes to it.
    writing: bool,
    leadership: ReadLeadership<Reader>,
    /// When all followers were last woken to check their deadlines.
    all_looked_at: Instant,
    /// How long the greeting took: a round trip or longer.
    greeted_in: Duration,
    succession: Succession,
    /// The successor takes over once all commands written over this connection are answered. Until then commands are
    /// queued, and no thread begins to write. But while the socket is full, writing goes on: part of a command may have
    /// been sent, and its rest has to follow.
    successor: Option<Duplex>,
}

struct ConnectionState {
    phase: Phase,
    /// The number of the current connection; a successor keeps it. A thread that released the mutex compares the number
    /// before it uses the connection again: see [`up`](Self::up).
    generation: u64,
    pipeline: Pipeline,
    /// Set when a connection is dropped for its silence: the moment at which that silence reaches `max_silence`. A
    /// connection in doubt is dropped earlier, so the moment may still be ahead. Until then, a timeout does not prove that
    /// the server is unreachable.
    doubted_until: Instant,
    /// The last connection that was [finished](Socket::finish). The socket stays open until the next one is finished: a closed
    /// socket answers the server with a reset, at which the server may drop commands that it has not read.
    finished: Option<Arc<Socket>>,
}

/// The result of a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrote {
    /// Nothing is left for this thread: all is written, or left to another thread.
    Done,
    /// The socket has taken a part and is full. The leader and housekeeping try again; other threads only with `all`.
    Part,
    /// The socket is full and has taken nothing. The same threads try again.
    Full,
    /// There is no connection.
    Down,
}

impl ConnectionState {
    /// The connection with this number, unless it was dropped or replaced.
    fn up(&mut self, generation: u64) -> Option<(&mut Up, &mut InFlight)> {
        match &mut self.phase {
            Phase::Up(up) if self.generation == generation => {
                Some((up, self.pipeline.in_flight()?))
            }
            _ => None,
        }
    }
}

/// What remains to be done after a step of housekeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkLeft {
    Nothing,
    /// Work that has to wait for a while.
    Later,
    /// Work that takes a few milliseconds if the server reads and answers.
    Soon,
    /// Work that can be done at once.
    More,
}

impl WorkLeft {
    /// `Later` if anything is left, else `Nothing`.
    pub(crate) fn later(is_left: bool) -> Self {
        match is_left {
            true => Self::Later,
            false => Self::Nothing,
        }
    }
}

/// Wakes the thread that calls [`Connection::housekeep`]. The methods may be called with the connection's mutex held: an
/// implementation must be cheap and must not lock that mutex.
pub(crate) trait Housekeeper: Send + Sync {
    /// Housekeeping is needed soon.
    fn housekeep_soon(&self);

    /// Housekeeping is needed at once: there is something to write or to read, and perhaps no other thread does it.
    fn housekeep_now(&self);
}

/// What the connections of a role have in common.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) housekeeper: Arc<dyn Housekeeper>,
    pub(crate) on_reply: Arc<dyn OnReply>,
}

/// The connection to one node for one role, shared by all locks of a client.
pub(crate) struct Connection {
    masters: Arc<Masters>,
    endpoint: Endpoint,
    /// The name of the connection in `CLIENT LIST`.
    role: &'static str,
    /// Which node it leads to.
    pub(crate) node: usize,
    settings: Settings,
    /// How long a connection may be silent with a reply due.
    max_silence: Duration,
    state: Mutex<ConnectionState>,
    changed: Condvar,
}

impl Connection {
    pub(crate) fn new(
        role: &'static str,
        node: usize,
        settings: Settings,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            endpoint: ledger.map.endpoint(node),
            masters: Arc::clone(&ledger.map),
            role,
            node,
            max_silence: settings.command_timeout / 2,
            settings,
            state: Mutex::new(ConnectionState {
                phase: Phase::Down(Down::new(None)),
                generation: 0,
                pipeline: Pipeline::new(node, ledger),
                doubted_until: Instant::now(),
                finished: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// While the result lives, other threads that use the connection have to wait.
    #[cfg(test)]
    pub(crate) fn while_used(&self) -> impl Sized {
        self.state.lock()
    }

    /// Whether this was ever up.
    pub(crate) fn was_used(&self) -> bool {
        self.state.lock().generation > 0
    }

    /// Whether this is down although the ledger has something for the node.
    pub(crate) fn is_missed(&self) -> bool {
        let state = self.state.lock();
        matches!(state.phase, Phase::Down(_)) && state.pipeline.owes()
    }

    /// The node is not a master any more: its connection is dropped once no reply is due.
    pub(crate) fn retire(&self) {
        if let Some(generation) = self.generation() {
            let why = socket::timed_out("the node is no longer a master");
            self.leave_when_answered(generation, &why);
        }
    }

    /// Whether this is up, and either no reply is due or the server has not been seen silent for `max_silence`.
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

    /// How long the connection may be silent before a caller gives it up. That is `max_silence`, unless the connection is
    /// in doubt.
    ///
    /// If the connection is in doubt and `sent_at` is given, the patience is a third of the time from `sent_at` to
    /// `until`, so that enough is left for another connection; but no less than a working server may need (`least`), and
    /// no more than `max_silence`.
    fn patience(
        &self,
        up: &Up,
        in_flight: &InFlight,
        sent_at: Option<Instant>,
        until: Instant,
    ) -> Duration {
        let Some(sent_at) = sent_at.filter(|_| in_flight.is_in_doubt) else {
            return self.max_silence;
        };
        let share = until.saturating_duration_since(sent_at) / 3;
        let least = SLICE.max(3 * up.greeted_in);
        share.max(least).min(self.max_silence)
    }

    /// A caller has timed out. If the server was silent, the connection is in doubt for the next callers.
    pub(crate) fn doubt(&self) {
        if let Some(in_flight) = self.state.lock().pipeline.in_flight() {
            in_flight.is_in_doubt |= in_flight.is_silent(Duration::ZERO);
        }
    }

    /// How long the greeting took: a round trip or longer; `Duration::MAX` without a connection.
    pub(crate) fn greeted_in(&self) -> Duration {
        match &self.state.lock().phase {
            Phase::Up(up) => up.greeted_in,
            _ => Duration::MAX,
        }
    }

    /// Whether a wait for a reply may end at once: bytes have come that are not yet read as a reply, the server has ended
    /// the connection, or this is not up. Never waits.
    pub(crate) fn has_news(&self) -> bool {
        let socket = match &self.state.lock().phase {
            Phase::Up(up) if up.leadership.reader().is_some_and(Reader::has_unread) => return true,
            Phase::Up(up) => Arc::clone(&up.writer),
            _ => return true,
        };
        socket.has_come()
    }

    /// The fault of a caller whose time is up and that has no reply.
    pub(crate) fn no_answer(&self) -> Fault {
        let silent = socket::timed_out("redis did not answer in time");
        if self.responds(self.max_silence) {
            return Fault::Late(silent);
        }
        let why = match &self.state.lock().phase {
            Phase::Up(_) => silent,
            Phase::Down(down) => down.reason(),
            Phase::Closed => socket::timed_out("the client is closed"),
        };
        self.unreachable(why)
    }

    #[cfg(test)]
    pub(crate) fn set_doubted_until(&self, until: Instant) {
        self.state.lock().doubted_until = until;
    }

    /// The fault of a caller that got no connection in time. Until `doubted_until`, a timeout counts as late and not as
    /// unreachable: the server may merely have been slow when its connection was given up.
    pub(crate) fn unreachable(&self, why: RedisError) -> Fault {
        match why.is_timeout() && Instant::now() < self.state.lock().doubted_until {
            true => Fault::Late(why),
            false if is_transient(&why) => Fault::Unreachable(why),
            false => Fault::Refused(why),
        }
    }

    /// See [`Housekeeper::housekeep_soon`].
    pub(crate) fn housekeep_soon(&self) {
        self.settings.housekeeper.housekeep_soon();
    }

    /// The number of the current connection, if there is one.
    pub(crate) fn generation(&self) -> Option<u64> {
        let state = self.state.lock();
        matches!(state.phase, Phase::Up(_)).then_some(state.generation)
    }

    /// Sends what the ledger has about the keys of a request, if the connection is up and does not
    /// [rest](Pipeline::rests_until).
    pub(crate) fn bring(&self, about: &Request) {
        let mut state = self.state.lock();
        state.pipeline.bring(about, Instant::now());
        self.write_queued(state, false);
    }
}

/// Why a wait ended without a reply.
#[derive(Debug)]
pub(crate) enum WaitFault {
    /// No reply comes over this connection: the connection was lost, the server rejected the call for now, or the call has
    /// moved to another node or was given up. A deferred call that is `CallPhase::Idle` is sent again, one that is
    /// `CallPhase::Broken` was given up.
    NoReply(RedisError),
    TimedOut,
    /// The caller has to stop.
    Stopped,
    Closed,
}

/// Wakes the thread that leads next, if there is one.
fn wake(appointed: Option<Arc<Call>>) {
    if let Some(call) = appointed {
        call.wake();
    }
}
