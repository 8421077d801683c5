//! The connection that all threads of a client share for their commands.
//!
//! Writing and waiting are apart. A command is *submitted* (its bytes are queued and its place among the replies is
//! taken, in memory only, so it may be done under a lock's mutex), then *flushed*, then *waited* for, or not: a
//! deferred command is settled by whoever reads next. What is sent when, and which reply belongs to which command, is
//! the [pipeline](crate::net::pipeline)'s business; here are the socket, the threads, and the clock.
//!
//! Only reading is led. The first thread that waits takes the [`Reader`] and hands every reply to its owner until its
//! own has come; then it puts the reader back and appoints another waiting thread. Bytes are written at once by the
//! thread that queued them while fewer than [`EAGER`] replies are outstanding; above that the leader writes
//! everybody's bytes in one go before it may block.
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
//! Nobody waits until the socket takes more: what it does not take at once is left to whoever reads, and is written
//! between two looks for replies.
//!
//! Mutexes: `state`, then a call's own. Neither is held while doing I/O; `submit` alone is called with a lock's mutex
//! held.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::{is_transient, is_unknown_script};
use crate::net::call::{Answer, Attempt, Call, CallPhase, Deferred, Fault, OnReply};
use crate::net::pipeline::{IDLE, InFlight, Pipeline};
use crate::net::request::Request;
use crate::net::socket::{self, Dial, Dialled, Endpoint, Meanwhile, Reader, Socket};
use crate::report::report;
use crate::stats::Counters;

/// Outstanding replies from which on the leader writes for everybody.
///
/// Measured: writing at once is best for few threads, combined writing from about this many on. Against 32, which is
/// as good for many threads, 12 gains a tenth at 8 threads and a fifth at 16.
const EAGER: usize = 12;

/// The longest a thread waits without looking at its deadline, its cancel token and the client's state.
const SLICE: Duration = Duration::from_millis(64);

/// How long somebody reads who only looks whether there is anything.
const GLANCE: Duration = Duration::from_millis(1);

/// How old the oldest outstanding command is before somebody else than its thread reads the reply.
const UNREAD: Duration = Duration::from_millis(20);

/// How long somebody reads who looks whether there is anything while bytes of ours wait for lock in the socket.
const BEHIND: Duration = Duration::from_millis(4);

/// How many unacknowledged calls are given up before others get at the mutex.
const AT_ONCE: usize = 256;

/// For how long [`Connection::tend`] goes on with unacknowledged calls, or with a connection.
const TEND_TURN: Duration = Duration::from_millis(100);

/// After how long without a command the server is asked for a sign of life while anything is held.
const PING_AFTER: Duration = Duration::from_secs(2);

/// How long a release that nobody waits for may be held up by a connection that has to be made first.
const DELIVER: Duration = Duration::from_millis(100);

/// For how long a thread writes what others have queued while it wrote.
const WRITE_TURN: Duration = Duration::from_millis(5);

/// The name of these connections.
const ROLE: &str = "link";

/// The pause after the first failed connection, doubled up to the second for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

enum Phase {
    Down {
        retry_at: Instant,
        back_off: Duration,
        why: Option<RedisError>,
        /// What somebody had no time to finish.
        dial: Option<Dial>,
    },
    Connecting,
    Up(Box<Up>),
    Closed,
}

/// The socket of a connection. What is on its way over it is the pipeline's.
struct Up {
    writer: Arc<Socket>,
    writing: bool,
    /// Here while nobody leads.
    reader: Option<Reader>,
}

struct State {
    phase: Phase,
    generation: u64,
    pipeline: Pipeline,
    /// Somebody needed a connection and had no time to make one.
    wanted: bool,
}

/// What a flush has come upon.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrote {
    Yes,
    /// Some is left, for whoever reads.
    Behind,
    /// Nothing, since there is no connection, or no more.
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

/// Whoever calls [`Connection::tend`] from time to time.
pub(crate) trait Housekeeper: Send + Sync {
    /// Something is left to be looked after shortly. Cheap, and called with mutexes held.
    fn housekeep_soon(&self);
}

/// The shared connection for the commands of all locks of a client.
pub(crate) struct Connection {
    endpoint: Endpoint,
    connect_timeout: Duration,
    /// How long a connection may be silent with a reply due.
    patience: Duration,
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
            patience: response_timeout / 2,
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

    /// Takes back what was sent ahead and will not be waited for.
    pub(crate) fn abandon(&self, ahead: Ahead) {
        if let Some(undo) = ahead.call.undo() {
            self.send_deferred(undo);
        }
        self.housekeeper.housekeep_soon();
    }

    /// Sends until there is a reply, the deadline, or an error that will not pass; begins with what was sent `ahead`.
    ///
    /// `attempt` makes the command, anew for every sending after one whose outcome is unknown; that one is undone.
    pub(crate) fn call(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
    ) -> Result<Answer, Fault> {
        self.call_and_say(until, stop, ahead, attempt, &mut false)
    }

    /// The same; without an answer it says whether the last command that was made `may_have_run`, or may yet run.
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
            // A script that ends with an error may have got some way.
            *may_have_run = true;
            let why = match self.wait(&call, until, stop) {
                Ok((value, sent_at)) => match value.extract_error() {
                    Ok(value) => return Ok(Answer { value, sent_at }),
                    Err(err) if is_unknown_script(&err) && !call.by_text_from_now() => {
                        *may_have_run = false;
                        continue;
                    }
                    // Refused commands have not run. A replica wants another connection: its master is elsewhere.
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
                    // It may have run, or may yet run.
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

    /// Whether there is a connection, and no reply is known to have been due on it for `patience`.
    pub(crate) fn responds(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let in_flight = state.pipeline.in_flight();
        in_flight.is_some_and(|in_flight| {
            in_flight.due_since().is_none_or(|sent_at| {
                let due_since = sent_at.max(in_flight.last_heard);
                in_flight.quiet_at.saturating_duration_since(due_since) < patience
            })
        })
    }

    /// Why there is no answer although the time for it is up.
    pub(crate) fn no_answer(&self) -> Fault {
        let silent = socket::timed_out("redis did not answer in time");
        if self.responds(self.patience) {
            return Fault::Late(silent);
        }
        Fault::Unreachable(match &self.state.lock().phase {
            Phase::Up(_) => silent,
            Phase::Down { why: Some(why), .. } => why.clone(),
            _ => socket::timed_out("no connection to redis in time"),
        })
    }

    /// The number of the present connection, if there is one.
    pub(crate) fn generation(&self) -> Option<u64> {
        let state = self.state.lock();
        matches!(state.phase, Phase::Up(_)).then_some(state.generation)
    }

    /// Has the watchdog make a connection, if there is none.
    pub(crate) fn want(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Down { .. }) {
            state.wanted = true;
            drop(state);
            self.housekeeper.housekeep_soon();
        }
    }

    /// Looks whether the connection still stands, and has the watchdog make another if not. For a client that holds
    /// something, so that its release will find one.
    pub(crate) fn look_after(&self) {
        let mut state = self.state.lock();
        let generation = state.generation;
        if let Some((_, in_flight)) = state.up(generation) {
            let now = Instant::now();
            let idle_for = now.saturating_duration_since(in_flight.last_heard);
            if in_flight.due() > 0 || idle_for < IDLE {
                return;
            }
            if idle_for >= PING_AFTER {
                let ping = Request::command("looking around", &["PING"]);
                in_flight.enqueue(&Call::question(ping), now);
                drop(state);
                self.write_out(false);
                self.housekeeper.housekeep_soon();
            } else {
                drop(self.has_ended(state, generation));
                // Others may have left their bytes to this thread meanwhile.
                self.write_out(true);
            }
        } else {
            drop(state);
        }
        self.want();
    }

    /// Writes releases that nobody waits for, over a new connection if the server has closed the last one: the process
    /// may end before anybody else could do so.
    pub(crate) fn deliver(&self) {
        if self.write_out(false) != Wrote::Down {
            return;
        }
        let state = self.state.lock();
        let untried = match &state.phase {
            Phase::Down { back_off, dial, .. } => *back_off == BACK_OFF.0 && dial.is_none(),
            _ => false,
        };
        if untried {
            let (state, made) = self.connect(state, Instant::now() + DELIVER, &mut || true);
            drop(state);
            if let Err(fault) = made {
                report!(Debug, "connecting for a release: {fault:?}");
            }
        }
    }

    /// Submits and flushes a deferred call.
    pub(crate) fn send_deferred(&self, deferred: Deferred) {
        self.submit(&Call::deferred(deferred));
        self.flush(false);
        self.housekeeper.housekeep_soon();
    }

    /// Queues a call behind all that were submitted before it. Memory only: no I/O, never blocks.
    ///
    /// Returns the connection's number. Without one a deferred call is sent later, and any other is refused.
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            return None;
        }
        // Under the mutex: whatever is sent now is sent later than this.
        if !state.pipeline.submit(call, Instant::now()) {
            return None;
        }
        self.counters.commands.add(1);
        Some(state.generation)
    }

    /// Writes what is queued, unless somebody is writing or the leader will; `all` leaves nothing to the leader.
    pub(crate) fn flush(&self, all: bool) {
        self.write_out(all);
    }

    fn write_out(&self, all: bool) -> Wrote {
        let mut state = self.state.lock();
        let generation = state.generation;
        let Some((up, in_flight)) = state.up(generation) else {
            return Wrote::Down;
        };
        let led = up.reader.is_none();
        if up.writing
            || !in_flight.has_bytes()
            || (!all && (in_flight.behind || led && in_flight.due() >= EAGER))
        {
            return Wrote::Yes;
        }
        if in_flight.doubtful {
            let Some(still) = self.has_ended(state, generation) else {
                return Wrote::Down;
            };
            state = still;
        }
        let Some((up, _)) = state.up(generation) else {
            return Wrote::Down;
        };
        if std::mem::replace(&mut up.writing, true) {
            return Wrote::Yes;
        }
        // Whoever writes goes on until nothing is left, if it can: others may have left their bytes to it.
        let mut turn_ends = None;
        loop {
            let Some((up, in_flight)) = state.up(generation) else {
                return Wrote::Down;
            };
            if !in_flight.has_bytes() {
                up.writing = false;
                return Wrote::Yes;
            }
            let bytes = in_flight.take_bytes();
            let writer = Arc::clone(&up.writer);
            let wrote = MutexGuard::unlocked(&mut state, || writer.write_some(&bytes));
            let written = match wrote {
                Ok(written) => written,
                Err(err) => {
                    drop(state);
                    self.fail(generation, &err.into(), false);
                    return Wrote::Down;
                }
            };
            let Some((_, in_flight)) = state.up(generation) else {
                return Wrote::Down;
            };
            if written > 0 && in_flight.behind {
                // A socket that was full takes bytes again: somebody reads at the other end.
                in_flight.last_heard = Instant::now();
            }
            in_flight.wrote(bytes, written);
            if in_flight.behind {
                break;
            }
            // The clock is looked at only when others have queued more meanwhile.
            if in_flight.has_bytes() {
                let now = Instant::now();
                if now >= *turn_ends.get_or_insert(now + WRITE_TURN) {
                    break;
                }
            }
        }
        match state.up(generation) {
            Some((up, in_flight)) => {
                up.writing = false;
                in_flight.behind = in_flight.has_bytes();
                if in_flight.behind {
                    Wrote::Behind
                } else {
                    Wrote::Yes
                }
            }
            None => Wrote::Down,
        }
    }

    /// Looks whether the server has closed the connection, which is then given up; nobody else may use it meanwhile.
    fn has_ended<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        generation: u64,
    ) -> Option<MutexGuard<'a, State>> {
        let (up, in_flight) = state.up(generation)?;
        in_flight.doubtful = false;
        if up.writing {
            return Some(state);
        }
        // Whoever leads finds out by reading.
        let Some(reader) = up.reader.take() else {
            return Some(state);
        };
        up.writing = true;
        let (reader, ended) = MutexGuard::unlocked(&mut state, || {
            let ended = reader.has_ended();
            (reader, ended)
        });
        let (up, in_flight) = state.up(generation)?;
        up.writing = false;
        if ended {
            drop(state);
            let why = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
            self.fail(generation, &why.into(), false);
            return None;
        }
        up.reader = Some(reader);
        appoint(in_flight.first_following());
        Some(state)
    }

    /// Waits for the reply to a submitted call, leading or following.
    pub(crate) fn wait(
        &self,
        call: &Arc<Call>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Value, Instant), WaitFault> {
        let mut has_read = false;
        loop {
            let mut state = self.state.lock();
            let mut mine = call.state.lock();
            mine.following = false;
            match &mine.phase {
                CallPhase::Done(value) => return Ok((value.clone(), mine.sent_at)),
                CallPhase::Broken(err) => return Err(WaitFault::Broken(err.clone())),
                CallPhase::Idle if matches!(state.phase, Phase::Closed) => {
                    return Err(WaitFault::Closed);
                }
                CallPhase::Idle => {
                    return Err(WaitFault::Broken(socket::timed_out(
                        "the connection was lost",
                    )));
                }
                CallPhase::Awaiting => {}
            }
            let (now, generation) = (Instant::now(), state.generation);
            let Some((up, in_flight)) = state.up(generation) else {
                return Err(WaitFault::Closed);
            };
            let silent_at = in_flight.last_heard + self.patience;
            if now >= until || stop() {
                drop(mine);
                if let Some(reader) = up.reader.take_if(|_| !has_read && !stop()) {
                    drop(state);
                    // What has come by now counts, even if nobody had time to read it.
                    has_read = true;
                    self.lead(reader, generation, Some(call), now + GLANCE);
                    continue;
                }
                // This thread may have been appointed leader in the meantime.
                let next = next_leader(up, in_flight);
                drop(state);
                appoint(next);
                return Err(if now >= until {
                    WaitFault::TimedOut
                } else {
                    WaitFault::Stopped
                });
            }
            if now >= silent_at {
                drop(mine);
                let unread = up.reader.take_if(|_| !has_read);
                drop(state);
                if let Some(reader) = unread {
                    // It may be that nobody has read.
                    has_read = true;
                    self.lead(reader, generation, Some(call), now + GLANCE);
                    continue;
                }
                self.fail_silent(generation);
                continue;
            }
            let slice_ends = until.min(silent_at).min(now + SLICE);
            if let Some(reader) = up.reader.take() {
                drop(mine);
                drop(state);
                has_read = true;
                self.lead(reader, generation, Some(call), slice_ends);
                continue;
            }
            mine.following = true;
            drop(state);
            call.changed.wait_until(&mut mine, slice_ends);
        }
    }

    /// Reads replies and hands them out, until that of `call` has come or `until`.
    fn lead(&self, mut reader: Reader, generation: u64, call: Option<&Arc<Call>>, until: Instant) {
        let mut slice = until.saturating_duration_since(Instant::now());
        // Threads are woken when nothing is left to be handed out, or each would take the processor from this one.
        let mut served = Served(Vec::new());
        loop {
            let mut wrote = Wrote::Yes;
            let read = reader.read(slice, &mut || {
                served.wake();
                wrote = self.write_out(true);
            });
            let value = match read {
                Ok(Some(value)) => value,
                Ok(None) => {
                    slice = until.saturating_duration_since(Instant::now());
                    if wrote == Wrote::Behind {
                        slice = slice.min(BEHIND);
                    }
                    if slice.is_zero() {
                        if let Some((_, in_flight)) = self.state.lock().up(generation) {
                            in_flight.quiet_at = Instant::now();
                        }
                        return self.step_down(reader, generation);
                    }
                    continue;
                }
                Err(err) => return self.fail(generation, &err, false),
            };
            let mut state = self.state.lock();
            if state.up(generation).is_none() {
                return;
            }
            let now = Instant::now();
            let Some(replied) = state.pipeline.reply(value, now, &*self.on_reply) else {
                drop(state);
                let why = socket::timed_out("a reply that nobody asked for");
                return self.fail(generation, &why, false);
            };
            drop(state);
            let first = replied.call;
            if first.deferred.is_some() {
                first.changed.notify_all();
            } else if replied.following {
                served.0.push(Arc::clone(&first));
            }
            if let Some(err) = replied.leaving {
                return self.fail(generation, &err, false);
            }
            // The leader goes in time, however many replies come that are not its own.
            if now >= until || call.is_some_and(|call| Arc::ptr_eq(call, &first)) {
                return self.step_down(reader, generation);
            }
        }
    }

    /// Gives the reader back, with nothing left unwritten, and wakes the next leader.
    fn step_down(&self, reader: Reader, generation: u64) {
        let mut state = self.state.lock();
        let Some((up, in_flight)) = state.up(generation) else {
            return;
        };
        up.reader = Some(reader);
        let next = in_flight.first_following();
        let unwritten = in_flight.has_bytes();
        drop(state);
        if unwritten {
            self.flush(true);
        }
        appoint(next);
    }

    /// Waits for a deferred call to be settled, reconnecting as need be; says with the reply whether an earlier sending
    /// may have run as well.
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
                    // It is unacknowledged: it is sent again.
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

    /// Sends an unacknowledged call before all others, if the server can be asked.
    fn bring(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        if state.pipeline.bring(call, Instant::now()) {
            drop(state);
            self.flush(false);
        }
    }

    /// Makes the first connection. A server that is not there is not waited for; one that is starting up is.
    pub(crate) fn open(&self, until: Instant) -> Result<(), RedisError> {
        let connection = socket::connect(&self.endpoint, ROLE, until, &mut || true)?;
        self.start(&mut self.state.lock(), connection);
        Ok(())
    }

    /// Makes sure that there is a connection, making one if nobody else does.
    pub(crate) fn up(&self, until: Instant, meanwhile: Meanwhile<'_>) -> Result<(), Fault> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let (turn_at, why) = match &state.phase {
                Phase::Up(_) => return Ok(()),
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

    /// Makes one connection, for a connection that is down.
    fn connect<'a>(
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
            .unwrap_or_else(|| Dial::new(ROLE, Instant::now() + self.connect_timeout));
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
                // A caller without time, or one that was told to stop, is no proof against the server.
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
                // One with bad credentials is told so at once, each time; the pause is for those who bring releases.
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

    fn start(&self, state: &mut State, connection: socket::Duplex) {
        state.generation += 1;
        state.wanted = false;
        if state.generation > 1 {
            self.counters.reconnects.add(1);
        }
        state.phase = Phase::Up(Box::new(Up {
            writer: connection.writer,
            writing: false,
            reader: Some(connection.reader),
        }));
        state.pipeline.connected(Instant::now());
    }

    /// Gives up unacknowledged calls that are of no use any more, wherever the server is; looks after other duties in
    /// between, since there may be as many as an outage has left.
    fn give_up_ended(&self, meanwhile: Meanwhile<'_>) {
        let why = socket::timed_out("redis was out of reach until its lease was over");
        loop {
            let mut state = self.state.lock();
            let ended = state.pipeline.take_ended(Instant::now(), AT_ONCE, &why);
            drop(state);
            if ended.is_empty() {
                return;
            }
            for deferred in ended.iter().filter_map(|call| call.deferred.as_ref()) {
                self.on_reply.given_up(deferred, &why);
            }
            if !meanwhile() {
                return;
            }
        }
    }

    /// Gives a connection up once the replies that are outstanding have come.
    fn leave(&self, generation: u64, why: &RedisError) {
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

    /// Drops a connection: it is never used again, whatever was wrong with it.
    ///
    /// `sound`: everything written so far was written whole, so undoing commands may follow as the last words. They
    /// meet an acquire that lies unread in the server's buffer, and would be carried out when a new owner has long
    /// been and gone.
    fn fail(&self, generation: u64, why: &RedisError, sound: bool) {
        let mut state = self.state.lock();
        if state.up(generation).is_some() {
            // A master is not elected in a moment.
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

    fn take_down(
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
            && let Err(err) = up.writer.write_some(&lost.undoing)
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

    /// Reads replies that nobody came to read, and sends unacknowledged calls again.
    ///
    /// Called by the [`Housekeeper`] a few times a second while it says `true`: something is still on its way.
    pub(crate) fn tend(&self, until: Instant, meanwhile: Meanwhile<'_>) -> bool {
        self.tend_unread_for(UNREAD, until, meanwhile)
    }

    fn tend_unread_for(
        &self,
        unread_for: Duration,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> bool {
        self.give_up_ended(meanwhile);
        let mut state = self.state.lock();
        let generation = state.generation;
        let needed = state.wanted || state.pipeline.has_unacknowledged();
        match &state.phase {
            Phase::Closed => return false,
            Phase::Connecting => return true,
            Phase::Down { .. } if !needed => return false,
            Phase::Down { retry_at, .. } if Instant::now() < *retry_at => return true,
            Phase::Down { .. } => {
                // It goes on the next time.
                let until = until.min(Instant::now() + TEND_TURN);
                let (state, made) = self.connect(state, until, meanwhile);
                drop(state);
                if let Err(fault) = made {
                    report!(Debug, "reconnecting for unacknowledged releases: {fault:?}");
                }
                return true;
            }
            Phase::Up(_) => {}
        }
        let turn_ends = until.min(Instant::now() + TEND_TURN);
        loop {
            state.pipeline.feed(Instant::now());
            let more = state.pipeline.has_unacknowledged();
            let Some((up, in_flight)) = state.up(generation) else {
                return true;
            };
            let Some(sent_at) = in_flight.due_since() else {
                return more;
            };
            let heard_at = in_flight.last_heard;
            let now = Instant::now();
            // Replies that were due only just now have threads that come to read them.
            let fresh = now.saturating_duration_since(sent_at) < unread_for
                && now < heard_at + self.patience;
            let reader = up.reader.take_if(|_| !fresh || more);
            drop(state);
            let Some(reader) = reader else {
                self.flush(true);
                return true;
            };
            self.lead(reader, generation, None, now + GLANCE);
            // Only now is it known that there was nothing to be read.
            if self.is_silent(generation) {
                self.fail_silent(generation);
                return true;
            }
            // With much to be sent or read it goes on for a while: the next portion waits for the answer to this one.
            if Instant::now() >= turn_ends || !meanwhile() {
                return true;
            }
            state = self.state.lock();
            match state.up(generation) {
                Some((_, in_flight)) if more || in_flight.last_heard > heard_at => {}
                _ => return true,
            }
        }
    }

    fn fail_silent(&self, generation: u64) {
        let why = socket::timed_out("redis was silent with a reply due");
        self.fail(generation, &why, true);
    }

    fn is_silent(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        let up = state.up(generation);
        up.is_some_and(|(_, in_flight)| in_flight.is_silent(self.patience, Instant::now()))
    }

    /// Waits until every deferred call is acknowledged or `until`; says whether all are.
    pub(crate) fn drain(&self, until: Instant) -> bool {
        loop {
            // Nobody wants a connection for itself any more.
            self.state.lock().wanted = false;
            if !self.tend_unread_for(Duration::ZERO, until, &mut || true) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends the connection; every waiting and every later call is answered `Closed`. Says how many releases that nobody
    /// has acknowledged are given up, and how many undoings of acquires.
    pub(crate) fn close(&self) -> (u64, u64) {
        self.take_down(
            self.state.lock(),
            Phase::Closed,
            &socket::timed_out("the client is closed"),
            true,
        );
        self.changed.notify_all();
        let (releases, undos) = self.state.lock().pipeline.forget();
        self.counters.releases_failed.add(releases);
        (releases, undos)
    }
}

/// A command on its way, and the number of the connection that it went over.
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

/// The first call whose thread waits to be woken, if nobody leads.
fn next_leader(up: &Up, in_flight: &InFlight) -> Option<Arc<Call>> {
    up.reader.as_ref()?;
    in_flight.first_following()
}

/// Those whose replies have been handed out and whose threads are still to be woken; at the latest when this goes.
struct Served(Vec<Arc<Call>>);

impl Served {
    fn wake(&mut self) {
        for call in self.0.drain(..) {
            call.changed.notify_all();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Wakes the thread of a call, which finds the reader free and takes it.
fn appoint(call: Option<Arc<Call>>) {
    if let Some(call) = call {
        call.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::LazyLock;

    use redis::ConnectionAddr;

    use crate::config::Server;
    use crate::net::call::DeferredTerms;
    use crate::net::request::Script;

    static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

    struct Nobody;

    impl Housekeeper for Nobody {
        fn housekeep_soon(&self) {}
    }

    impl OnReply for Nobody {
        fn released(&self, _: &DeferredTerms, _: &Value, _: bool) {}

        fn given_up(&self, _: &DeferredTerms, _: &RedisError) {}
    }

    /// To a server that is away.
    fn connection() -> Connection {
        let endpoint = Endpoint::new(Server {
            addr: ConnectionAddr::Tcp("127.0.0.1".into(), 1),
            username: None,
            password: None,
            db: 0,
            label: String::new(),
        });
        let timeout = Duration::from_secs(1);
        let (housekeeper, on_reply) = (Arc::new(Nobody), Box::new(Nobody));
        Connection::new(
            endpoint,
            timeout,
            timeout,
            Arc::default(),
            housekeeper,
            on_reply,
        )
    }

    #[test]
    fn other_duties_are_looked_after_while_the_releases_of_an_outage_are_given_up() {
        let (connection, now) = (connection(), Instant::now());
        let name: Arc<str> = "name".into();
        for _ in 0..4 * AT_ONCE {
            let request = Request::script("releasing", &RELEASE, &[&name], &["o:1"]);
            let terms = DeferredTerms {
                name: Arc::clone(&name),
                useful_until: now,
                undo: true,
                for_good: false,
            };
            assert!(
                connection
                    .submit(&Call::deferred(Deferred { request, terms }))
                    .is_none()
            );
        }
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            true
        };
        assert!(
            !connection.tend(now, &mut look),
            "nothing is left to be sent"
        );
        assert!(looks >= 4, "{looks}");
    }
}
