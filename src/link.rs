//! The command path: one connection that all threads of a client share.
//!
//! Writing and waiting are apart. A command is *submitted* (its bytes are queued and its place among the replies is
//! taken, in memory only, so it may be done under a room's mutex), then *flushed*, then *waited* for, or not: a
//! deferred command is settled by whoever reads next.
//!
//! Only reading is led. The first thread that waits takes the [`Reader`] and hands every reply to its owner until its
//! own has come; then it puts the reader back and appoints another waiting thread. Bytes are written at once by the
//! thread that queued them while fewer than [`EAGER`] replies are outstanding; above that the leader writes
//! everybody's bytes in one go before it may block.
//!
//! ```text
//!            submit                      reply                      
//!    idle ───────────► awaiting ───────────────────► done
//!                        │  ▲  leader leaves: an awaiting call whose thread follows becomes leader
//!                        │  └──────────────────────
//!                        │ any I/O or parse error, or no byte for `patience`: the connection is dropped
//!                        ├─► broken  (a thread waits: it decides whether to send again)
//!                        └─► parked  (deferred: sent first on the next connection, until it is of no use any more)
//! ```
//!
//! Mutexes: `state`, then a call's own. Neither is held while doing I/O; `submit` alone is called with a room's mutex
//! held.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::call::{
    Answer, Attempt, Call, CallPhase, Deferred, DeferredTerms, Fault, is_transient,
    is_unknown_script,
};
use crate::report::report;
use crate::script::{self, Released, Script};
use crate::stats::Counters;
use crate::stream::{self, Endpoint, Meanwhile, Reader, Stream};
use crate::watchdog::Agenda;

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

/// The pause after the first failed connection, doubled up to the second for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

enum Phase {
    Down {
        retry_at: Instant,
        back_off: Duration,
        why: Option<RedisError>,
    },
    Connecting,
    Up(Box<Up>),
    Closed,
}

struct Up {
    writer: Arc<Stream>,
    writing: bool,
    outbox: Vec<u8>,
    spare: Vec<u8>,
    /// Here while nobody leads.
    reader: Option<Reader>,
    awaiting: VecDeque<Arc<Call>>,
    last_heard: Instant,
    /// When somebody last read and there was nothing to be read.
    quiet_at: Instant,
    /// Scripts of unattended calls that the server has run on this connection. Until then they go whole, since nobody may
    /// come to read that the server did not know the script.
    known: Vec<&'static Script>,
    /// Why the connection is given up as soon as all replies have come: the server is no master any more.
    leaving: Option<RedisError>,
}

struct State {
    phase: Phase,
    generation: u64,
    /// Deferred calls that no connection has acknowledged; sent first on the next one.
    parked: VecDeque<Arc<Call>>,
    /// Somebody needed a connection and had no time to make one.
    wanted: bool,
}

impl State {
    fn up(&mut self, generation: u64) -> Option<&mut Up> {
        match &mut self.phase {
            Phase::Up(up) if self.generation == generation => Some(up),
            _ => None,
        }
    }
}

/// The shared connection for the commands of all locks of a client.
pub(crate) struct Link {
    endpoint: Endpoint,
    connect_timeout: Duration,
    /// How long a connection may be silent with a reply due.
    patience: Duration,
    state: Mutex<State>,
    turned: Condvar,
    counters: Arc<Counters>,
    agenda: Arc<Agenda>,
}

impl Link {
    pub(crate) fn new(
        endpoint: Endpoint,
        connect_timeout: Duration,
        response_timeout: Duration,
        counters: Arc<Counters>,
        agenda: Arc<Agenda>,
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
                },
                generation: 0,
                parked: VecDeque::new(),
                wanted: false,
            }),
            turned: Condvar::new(),
            counters,
            agenda,
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
        self.agenda.tend_soon();
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
            let why = match self.wait(&call, until, stop) {
                Ok((value, sent_at)) => match value.extract_error() {
                    Ok(value) => return Ok(Answer { value, sent_at }),
                    Err(err) if is_unknown_script(&err) && !call.go_whole() => continue,
                    // Refused commands have not run. A replica wants another connection: its master is elsewhere.
                    Err(err) if is_transient(&err) => {
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
                            err
                        }
                        WaitFault::TimedOut => {
                            self.agenda.tend_soon();
                            return Err(self.no_answer());
                        }
                        WaitFault::Stopped => {
                            self.agenda.tend_soon();
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
        match &self.state.lock().phase {
            Phase::Up(up) => up.awaiting.front().is_none_or(|first| {
                let due_since = first.state.lock().sent_at.max(up.last_heard);
                up.quiet_at.saturating_duration_since(due_since) < patience
            }),
            _ => false,
        }
    }

    /// Why there is no answer although the time for it is up.
    pub(crate) fn no_answer(&self) -> Fault {
        let silent = stream::timed_out("redis did not answer in time");
        if self.responds(self.patience) {
            return Fault::Late(silent);
        }
        Fault::Unreachable(match &self.state.lock().phase {
            Phase::Up(_) => silent,
            Phase::Down { why: Some(why), .. } => why.clone(),
            _ => stream::timed_out("no connection to redis in time"),
        })
    }

    /// Has the watchdog make a connection, if there is none.
    pub(crate) fn want(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Down { .. }) {
            state.wanted = true;
            drop(state);
            self.agenda.tend_soon();
        }
    }

    /// Submits and flushes a deferred call.
    pub(crate) fn send_deferred(&self, deferred: Deferred) {
        self.submit(&Call::deferred(deferred));
        self.flush(false);
        self.agenda.tend_soon();
    }

    /// Queues a call behind all that were submitted before it. Memory only: no I/O, never blocks.
    ///
    /// Returns the connection's number. Without one a deferred call is parked, any other is refused.
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        let mut state = self.state.lock();
        let generation = state.generation;
        match &mut state.phase {
            Phase::Up(up) => {
                up.enqueue(call);
                self.counters.commands.add(1);
                Some(generation)
            }
            Phase::Closed => None,
            _ => {
                if call.deferred.is_some() {
                    state.parked.push_back(Arc::clone(call));
                }
                None
            }
        }
    }

    /// Writes what is queued, unless somebody is writing or the leader will; `all` leaves nothing to the leader.
    pub(crate) fn flush(&self, all: bool) {
        let mut state = self.state.lock();
        let generation = state.generation;
        let Some(up) = state.up(generation) else {
            return;
        };
        let led = up.reader.is_none();
        if up.writing || up.outbox.is_empty() || (!all && led && up.awaiting.len() >= EAGER) {
            return;
        }
        up.writing = true;
        // Whoever writes goes on until nothing is left: others may have left their bytes to it.
        loop {
            let Some(up) = state.up(generation) else {
                return;
            };
            if up.outbox.is_empty() {
                up.writing = false;
                return;
            }
            let spare = std::mem::take(&mut up.spare);
            let mut bytes = std::mem::replace(&mut up.outbox, spare);
            let writer = Arc::clone(&up.writer);
            let wrote = MutexGuard::unlocked(&mut state, || writer.write_all(&bytes));
            if let Err(err) = wrote {
                drop(state);
                self.fail(generation, &err.into(), false);
                return;
            }
            if let Some(up) = state.up(generation)
                && bytes.capacity() <= 64 * 1024
            {
                bytes.clear();
                up.spare = bytes;
            }
        }
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
                    return Err(WaitFault::Broken(stream::timed_out(
                        "the connection was lost",
                    )));
                }
                CallPhase::Awaiting => {}
            }
            let (now, generation) = (Instant::now(), state.generation);
            let Phase::Up(up) = &mut state.phase else {
                return Err(WaitFault::Closed);
            };
            let silent_at = up.last_heard + self.patience;
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
                let next = up.next_leader();
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
            call.turned.wait_until(&mut mine, slice_ends);
        }
    }

    /// Reads replies and hands them out, until that of `call` has come or `until`.
    fn lead(&self, mut reader: Reader, generation: u64, call: Option<&Arc<Call>>, until: Instant) {
        let mut slice = until.saturating_duration_since(Instant::now());
        // Threads are woken when nothing is left to be handed out, or each would take the processor from this one.
        let mut served = Served(Vec::new());
        loop {
            let read = reader.read(slice, &mut || {
                served.wake();
                self.flush(true);
            });
            let value = match read {
                Ok(Some(value)) => value,
                Ok(None) => {
                    slice = until.saturating_duration_since(Instant::now());
                    if slice.is_zero() {
                        if let Some(up) = self.state.lock().up(generation) {
                            up.quiet_at = Instant::now();
                        }
                        return self.step_down(reader, generation);
                    }
                    continue;
                }
                Err(err) => return self.fail(generation, &err, false),
            };
            let mut state = self.state.lock();
            let Some(up) = state.up(generation) else {
                return;
            };
            let now = Instant::now();
            up.last_heard = now;
            let Some(first) = up.awaiting.pop_front() else {
                drop(state);
                return self.fail(
                    generation,
                    &stream::timed_out("a reply that nobody asked for"),
                    false,
                );
            };
            if first.deferred.is_some() {
                let elsewhere = self.settle(&mut state, &first, value);
                if let (Some(err), Some(up)) = (elsewhere, state.up(generation)) {
                    up.leaving = Some(err);
                }
                let leaving = state.up(generation).and_then(Up::leave);
                drop(state);
                first.turned.notify_all();
                if let Some(err) = leaving {
                    return self.fail(generation, &err, false);
                }
            } else {
                if first.unattended && !matches!(value, Value::ServerError(_)) {
                    up.learn(first.request.script);
                }
                let mut its = first.state.lock();
                its.phase = CallPhase::Done(value);
                let following = its.following;
                drop(its);
                let leaving = state.up(generation).and_then(Up::leave);
                drop(state);
                if following {
                    served.0.push(Arc::clone(&first));
                }
                if let Some(err) = leaving {
                    return self.fail(generation, &err, false);
                }
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
        let Some(up) = state.up(generation) else {
            return;
        };
        up.reader = Some(reader);
        let next = up.next_leader();
        let unwritten = !up.outbox.is_empty();
        drop(state);
        if unwritten {
            self.flush(true);
        }
        appoint(next);
    }

    /// What a deferred call's reply means; it is never heard of again unless it has to be sent once more.
    fn settle(&self, state: &mut State, call: &Arc<Call>, value: Value) -> Option<RedisError> {
        let deferred = call.deferred.as_ref()?;
        let mut its = call.state.lock();
        let value = match value.extract_error() {
            Ok(value) => value,
            Err(err) => {
                let unknown = is_unknown_script(&err) && !its.whole;
                // A server that takes no writes now may take them later.
                let later = is_transient(&err)
                    || deferred.for_good && matches!(err.code(), Some("OOM" | "MISCONF"));
                if (unknown || later) && Instant::now() < deferred.useful_until {
                    its.whole |= unknown;
                    its.sendings -= 1; // it was refused before it ran
                    its.phase = CallPhase::Idle;
                    drop(its);
                    match &mut state.phase {
                        Phase::Up(up) if unknown => up.enqueue(call),
                        _ => state.parked.push_back(Arc::clone(call)),
                    }
                    if err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
                        return Some(err);
                    }
                } else {
                    its.phase = CallPhase::Broken(err.clone());
                    drop(its);
                    self.give_up(deferred, &err);
                }
                return None;
            }
        };
        if let Phase::Up(up) = &mut state.phase {
            up.learn(call.request.script);
        }
        match script::released(&value) {
            Ok(Released::Yes { .. }) => {}
            // Expected of an undo, and of a release that may have run before.
            Ok(Released::Gone | Released::Taken) if deferred.undo || its.sendings > 1 => {}
            Ok(gone) => {
                self.counters.releases_of_lost.add(1);
                report!(
                    Warn,
                    "releasing `{}`: it was no longer ours ({gone:?})",
                    deferred.name
                );
            }
            Err(unexpected) => {
                self.counters.releases_failed.add(1);
                report!(Warn, "releasing `{}`: {unexpected}", deferred.name);
            }
        }
        its.phase = CallPhase::Done(value);
        None
    }

    fn give_up(&self, deferred: &DeferredTerms, why: &RedisError) {
        if deferred.for_good {
            self.counters.releases_failed.add(1);
            report!(
                Warn,
                "giving back permits of `{}`: {why}; given up, and they count as taken for good",
                deferred.name
            );
            return;
        }
        if deferred.undo {
            report!(Debug, "undoing an acquire of `{}`: {why}", deferred.name);
            return;
        }
        self.counters.releases_failed.add(1);
        report!(
            Warn,
            "releasing `{}`: {why}; it frees itself when its lease runs out",
            deferred.name
        );
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
                    // It is parked: bring it to the server again.
                    self.up(until, &mut || true)?;
                    self.tend_unread_for(Duration::ZERO, until, &mut || true);
                    if matches!(call.state.lock().phase, CallPhase::Idle) {
                        std::thread::sleep(BACK_OFF.0);
                    }
                }
                Err(WaitFault::TimedOut) => {
                    return Err(Fault::Unreachable(stream::timed_out(
                        "redis did not answer in time",
                    )));
                }
                Err(WaitFault::Stopped) => return Err(Fault::Stopped),
                Err(WaitFault::Closed) => return Err(Fault::Closed),
            }
        }
    }

    /// Makes the first connection. A server that is not there is not waited for; one that is starting up is.
    pub(crate) fn open(&self, until: Instant) -> Result<(), RedisError> {
        loop {
            match self.dial(until, &mut || true) {
                Ok(connection) => {
                    self.start(&mut self.state.lock(), connection);
                    return Ok(());
                }
                Err(err) => {
                    let starting = is_transient(&err) && matches!(err.kind(), ErrorKind::Server(_));
                    if !starting || Instant::now() + BACK_OFF.1 >= until {
                        return Err(err);
                    }
                    report!(
                        Debug,
                        "connecting to {:?}: {err}; trying again",
                        self.endpoint
                    );
                    std::thread::sleep(BACK_OFF.1);
                }
            }
        }
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
                Phase::Down { retry_at, why, .. } if now < *retry_at => (*retry_at, why.clone()),
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
                    stream::timed_out("no connection to redis in time")
                })));
            }
            if turn_at > now {
                self.turned
                    .wait_until(&mut state, until.min(turn_at).min(now + SLICE));
            }
            if !MutexGuard::unlocked(&mut state, &mut *meanwhile) {
                return Err(Fault::Stopped);
            }
        }
    }

    /// Makes one connection, for a link that is down.
    fn connect<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> (MutexGuard<'a, State>, Result<(), Fault>) {
        let back_off = match std::mem::replace(&mut state.phase, Phase::Connecting) {
            Phase::Down { back_off, .. } => back_off,
            _ => BACK_OFF.0,
        };
        let deadline = until.min(Instant::now() + self.connect_timeout);
        let made = MutexGuard::unlocked(&mut state, || {
            std::panic::catch_unwind(AssertUnwindSafe(|| {
                let made = self.dial(deadline, meanwhile);
                let stopped = made.is_err() && !meanwhile();
                (made, stopped)
            }))
        });
        self.turned.notify_all();
        let (made, stopped) = match made {
            Ok(made) => made,
            Err(panic) => {
                if !matches!(state.phase, Phase::Closed) {
                    state.phase = Phase::Down {
                        retry_at: Instant::now(),
                        back_off,
                        why: None,
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
            Ok(connection) => {
                self.start(&mut state, connection);
                MutexGuard::unlocked(&mut state, || self.flush(true));
                (state, Ok(()))
            }
            Err(err) => {
                report!(Debug, "connecting to {:?}: {err}", self.endpoint);
                let fatal = !is_transient(&err);
                let now = Instant::now();
                // A caller without time is no proof against the server; one with bad credentials is told at once.
                // Nor is one that was told to stop.
                let hurried = now >= until || stopped;
                let at_once = fatal || hurried;
                state.wanted |= hurried;
                state.phase = Phase::Down {
                    retry_at: if at_once { now } else { now + back_off },
                    back_off: if at_once {
                        back_off
                    } else {
                        (back_off * 2).min(BACK_OFF.1)
                    },
                    why: Some(err.clone()),
                };
                if hurried {
                    self.agenda.tend_soon();
                }
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

    fn dial(
        &self,
        deadline: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> Result<stream::Connection, RedisError> {
        stream::connect(&self.endpoint, "link", deadline, meanwhile)
    }

    fn start(&self, state: &mut State, connection: stream::Connection) {
        state.generation += 1;
        state.wanted = false;
        if state.generation > 1 {
            self.counters.reconnects.add(1);
        }
        let mut up = Box::new(Up {
            writer: connection.writer,
            writing: false,
            outbox: Vec::with_capacity(1024),
            spare: Vec::with_capacity(1024),
            reader: Some(connection.reader),
            awaiting: VecDeque::new(),
            last_heard: Instant::now(),
            quiet_at: Instant::now(),
            known: Vec::new(),
            leaving: None,
        });
        self.requeue_parked(&mut state.parked, &mut up);
        state.phase = Phase::Up(up);
    }

    fn requeue_parked(&self, parked: &mut VecDeque<Arc<Call>>, up: &mut Up) {
        let now = Instant::now();
        for call in parked.drain(..) {
            match &call.deferred {
                Some(deferred) if now >= deferred.useful_until => {
                    self.give_up(
                        deferred,
                        &stream::timed_out("redis was out of reach until its lease was over"),
                    );
                }
                _ => up.enqueue(&call),
            }
        }
    }

    /// Gives a connection up once the replies that are outstanding have come.
    fn leave(&self, generation: u64, why: &RedisError) {
        let mut state = self.state.lock();
        let now = match state.up(generation) {
            Some(up) => {
                up.leaving = Some(why.clone());
                up.leave().is_some()
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
        let mut last_words = Vec::new();
        let mut broken = Vec::new();
        let mut unacknowledged = VecDeque::new();
        for call in up.awaiting {
            let mut its = call.state.lock();
            if call.deferred.is_some() {
                its.phase = CallPhase::Idle;
                drop(its);
                call.turned.notify_all();
                unacknowledged.push_back(call);
            } else {
                its.phase = CallPhase::Broken(why.clone());
                drop(its);
                if let Some(undo) = call.undo() {
                    // Whole: a server that has never seen the script could not be told its text.
                    undo.request.write(&mut last_words, true);
                }
                broken.push(call);
            }
        }
        unacknowledged.append(&mut state.parked);
        state.parked = unacknowledged;
        let restless = !state.parked.is_empty();
        drop(state);
        report!(Debug, "connection to {:?} dropped: {why}", self.endpoint);
        if sound
            && !up.writing
            && let Err(err) = up.writer.write_all(&last_words)
        {
            report!(Trace, "last words on a dropped connection: {err}");
        }
        up.writer.shut_down();
        self.turned.notify_all();
        for call in broken {
            call.turned.notify_all();
        }
        if restless {
            self.agenda.tend_soon();
        }
    }

    /// Reads replies that nobody came to read, and brings parked calls to the server again.
    ///
    /// Called by the watchdog a few times a second while it says `true`: something is still on its way.
    pub(crate) fn tend(&self, connect_until: Instant, meanwhile: Meanwhile<'_>) -> bool {
        self.tend_unread_for(UNREAD, connect_until, meanwhile)
    }

    fn tend_unread_for(
        &self,
        unread_for: Duration,
        connect_until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> bool {
        let mut state = self.state.lock();
        let (generation, needed) = (state.generation, state.wanted || !state.parked.is_empty());
        match &state.phase {
            Phase::Closed => return false,
            Phase::Connecting => return true,
            Phase::Down { .. } if !needed => return false,
            Phase::Down { retry_at, .. } if Instant::now() < *retry_at => return true,
            Phase::Down { .. } => {
                let (state, made) = self.connect(state, connect_until, meanwhile);
                drop(state);
                if let Err(fault) = made {
                    report!(Debug, "reconnecting for unacknowledged releases: {fault:?}");
                }
                return true;
            }
            Phase::Up(_) => {}
        }
        let mut parked = std::mem::take(&mut state.parked);
        let Some(up) = state.up(generation) else {
            return true;
        };
        self.requeue_parked(&mut parked, up);
        let Some(first) = up.awaiting.front() else {
            return false;
        };
        let sent_at = first.state.lock().sent_at;
        let due = up.last_heard + self.patience;
        let now = Instant::now();
        // Replies that were due only just now have threads that come to read them.
        if now.saturating_duration_since(sent_at) < unread_for && now < due {
            drop(state);
            self.flush(false);
            return true;
        }
        let reader = up.reader.take();
        drop(state);
        match reader {
            Some(reader) => {
                self.lead(reader, generation, None, now + GLANCE);
                // Only now is it known that there was nothing to be read.
                if self.is_silent(generation) {
                    self.fail_silent(generation);
                }
            }
            None => self.flush(true),
        }
        true
    }

    fn fail_silent(&self, generation: u64) {
        let why = stream::timed_out("redis was silent with a reply due");
        self.fail(generation, &why, true);
    }

    fn is_silent(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        let up = state.up(generation);
        up.is_some_and(|up| {
            !up.awaiting.is_empty() && Instant::now() >= up.last_heard + self.patience
        })
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

    /// Ends the connection; every waiting and every later call is answered `Closed`.
    pub(crate) fn close(&self) {
        self.take_down(
            self.state.lock(),
            Phase::Closed,
            &stream::timed_out("the client is closed"),
            true,
        );
        self.turned.notify_all();
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

impl Up {
    /// Why to leave now, if there is a reason and nothing is outstanding.
    fn leave(&mut self) -> Option<RedisError> {
        if self.awaiting.is_empty() {
            self.leaving.take()
        } else {
            None
        }
    }

    fn enqueue(&mut self, call: &Arc<Call>) {
        let mut its = call.state.lock();
        its.phase = CallPhase::Awaiting;
        its.sent_at = Instant::now();
        if self.awaiting.is_empty() {
            // Silence counts from when a reply became due, whoever waits for it.
            self.last_heard = its.sent_at;
        }
        its.sendings += 1;
        its.whole |= call.unattended
            && call
                .request
                .script
                .is_some_and(|script| !self.knows(script));
        call.request.write(&mut self.outbox, its.whole);
        drop(its);
        self.awaiting.push_back(Arc::clone(call));
    }

    /// The server has run this script.
    fn learn(&mut self, script: Option<&'static Script>) {
        if let Some(script) = script
            && !self.knows(script)
        {
            self.known.push(script);
        }
    }

    fn knows(&self, script: &'static Script) -> bool {
        self.known.iter().any(|known| std::ptr::eq(*known, script))
    }

    /// The first call whose thread waits in the queue, if nobody leads.
    fn next_leader(&self) -> Option<Arc<Call>> {
        self.reader.as_ref()?;
        self.awaiting
            .iter()
            .find(|call| call.state.lock().following)
            .cloned()
    }
}

/// Calls whose replies have been handed out and whose threads are still to be woken; at the latest when this goes.
struct Served(Vec<Arc<Call>>);

impl Served {
    fn wake(&mut self) {
        for call in self.0.drain(..) {
            call.turned.notify_all();
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
        call.turned.notify_all();
    }
}
