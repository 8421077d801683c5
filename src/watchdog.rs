//! The renewing thread: one for all holds of a client, on a connection of its own.
//!
//! The [`Agenda`] says when each hold has to be looked at next: to renew it, because a fixed lease ends, because its
//! `max_hold` does. The thread sleeps until the first of these moments, takes all that is due, and sends the renewals
//! pipelined. It never blocks for longer than [`SLICE`] without looking at the agenda again, whatever the server
//! does, so a loss is told in time even while Redis is frozen.
//!
//! ```text
//!   armed ──due──► in hand ──confirmed──► armed (a third of the lease later)
//!     │               ├─────refused────► lost: Forced, TakenOver
//!     │               ├─────no answer──► armed (after a pause) … until its validity is over ► lost: Unreachable
//!     └──disarmed     └─────let go meanwhile: dropped
//! ```
//!
//! What one of several servers keeps of a quorum's hold is armed like a hold; [`grip::settle`] says what its renewal
//! means for the whole, which is on the agenda of one client only to be told lost in time.
//!
//! A hold is armed before its guard exists, and disarmed before its release is sent.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::client::Engine;
use crate::grip;
use crate::hold::{Duty, Hold, LossReason};
use crate::report::report;
use crate::script::{self, Renewed};
use crate::stats::Counters;
use crate::stream::{self, Connection};
use crate::wait;

/// How long the thread waits for bytes before it looks at the agenda again.
const SLICE: Duration = Duration::from_millis(5);

/// How many renewals go out before their replies are read.
const BATCH: usize = 256;

/// How soon unfinished business is looked after: replies that nobody reads, idle rooms.
const TEND: Duration = Duration::from_millis(100);

/// The pause after the first failure, doubled for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// When each hold has to be looked at.
pub(crate) struct Agenda {
    state: Mutex<AgendaState>,
    turned: Condvar,
    /// Somebody has asked for [`Work::tend`]; read without the mutex by those who would ask again.
    tending: AtomicBool,
    counters: Arc<Counters>,
}

struct AgendaState {
    /// By moment (of `wait::nanos`) and number.
    due: BTreeMap<(u64, u64), Arc<Hold>>,
    /// How many of them are parts of others.
    parts: usize,
    tend_at: Option<u64>,
    /// Until when the thread sleeps; zero while it is awake.
    wakes_at: u64,
    stopped: bool,
}

/// What the thread has to do now.
struct Work {
    holds: Vec<Arc<Hold>>,
    tend: bool,
}

impl Agenda {
    pub(crate) fn new(counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            counters,
            state: Mutex::new(AgendaState {
                due: BTreeMap::new(),
                parts: 0,
                tend_at: None,
                wakes_at: 0,
                stopped: false,
            }),
            turned: Condvar::new(),
            tending: AtomicBool::new(false),
        })
    }

    /// Has `hold` looked at `due`, unless it is over.
    pub(crate) fn arm(&self, hold: &Arc<Hold>, due: Instant) {
        let due = wait::nanos(due).max(1);
        let mut state = self.state.lock();
        state.remove(hold);
        if !hold.is_held() {
            return;
        }
        hold.due.store(due, Ordering::Relaxed);
        state.due.insert((due, hold.number.0), Arc::clone(hold));
        state.parts += usize::from(hold.is_part());
        if due < state.wakes_at {
            state.wakes_at = due;
            drop(state);
            self.turned.notify_one();
        }
    }

    /// Forgets `hold`, which must be over, or the thread may put it back.
    pub(crate) fn disarm(&self, hold: &Hold) {
        self.state.lock().remove(hold);
    }

    /// Has the thread look after unfinished business shortly.
    pub(crate) fn tend_soon(&self) {
        if self.tending.swap(true, Ordering::AcqRel) {
            return;
        }
        let at = wait::nanos(Instant::now() + TEND);
        let mut state = self.state.lock();
        state.tend_at = Some(at);
        if at < state.wakes_at {
            state.wakes_at = at;
            drop(state);
            self.turned.notify_one();
        }
    }

    /// How many holds are armed; the parts of one do not count.
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.due.len() - state.parts
    }

    /// Ends the thread, as soon as it looks.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.turned.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Takes every hold off.
    pub(crate) fn take_all(&self) -> Vec<Arc<Hold>> {
        let mut state = self.state.lock();
        let holds: Vec<_> = std::mem::take(&mut state.due).into_values().collect();
        state.parts = 0;
        for hold in &holds {
            hold.due.store(0, Ordering::Relaxed);
        }
        holds
    }

    /// Sleeps until something is due; `None` once stopped.
    ///
    /// Renewals that are due within `early` come along, so that holds taken one after another are renewed together.
    fn next(&self, early: Duration) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let first = state.due.first_key_value().map(|((due, _), _)| *due);
            let next = first.into_iter().chain(state.tend_at).min();
            match next {
                Some(at) if at <= wait::nanos(now) => {
                    let tend = state.tend_at.is_some_and(|at| at <= wait::nanos(now));
                    if tend {
                        state.tend_at = None;
                        self.tending.store(false, Ordering::Release);
                    }
                    self.counters
                        .renewal_lateness_max_us
                        .max(state.lateness(now) / 1000);
                    let holds = state.take_due(now, early);
                    state.wakes_at = 0;
                    return Some(Work { holds, tend });
                }
                Some(at) => {
                    state.wakes_at = at;
                    self.turned.wait_until(&mut state, wait::instant(at));
                }
                None => {
                    state.wakes_at = u64::MAX;
                    self.turned.wait(&mut state);
                }
            }
        }
    }

    fn take_due(&self, now: Instant) -> Vec<Arc<Hold>> {
        self.state.lock().take_due(now, Duration::ZERO)
    }
}

impl AgendaState {
    fn remove(&mut self, hold: &Hold) {
        let due = hold.due.swap(0, Ordering::Relaxed);
        if due != 0 && self.due.remove(&(due, hold.number.0)).is_some() {
            self.parts -= usize::from(hold.is_part());
        }
    }

    /// For how long the first hold that is to be renewed has been due, in nanoseconds.
    fn lateness(&self, now: Instant) -> u64 {
        match self.due.first_key_value() {
            Some(((due, _), hold)) if hold.duty(now) == Duty::Renew => {
                wait::nanos(now).saturating_sub(*due)
            }
            _ => 0,
        }
    }

    fn take_due(&mut self, now: Instant, early: Duration) -> Vec<Arc<Hold>> {
        let (at, soon) = (wait::nanos(now), wait::nanos(now + early));
        let mut taken = Vec::new();
        while let Some(entry) = self.due.first_entry() {
            let due = entry.key().0;
            if due > at && (due > soon || entry.get().duty(now) != Duty::Renew) {
                break;
            }
            let hold = entry.remove();
            hold.due.store(0, Ordering::Relaxed);
            self.parts -= usize::from(hold.is_part());
            taken.push(hold);
        }
        taken
    }
}

/// The thread itself.
struct Watchdog {
    engine: Arc<Engine>,
    connection: Option<Connection>,
    /// Taken off the agenda, to be looked at.
    due: Vec<Arc<Hold>>,
    /// To be renewed now.
    in_hand: Vec<Arc<Hold>>,
    /// Sent, and not answered yet.
    sent: Vec<Arc<Hold>>,
    back_off: Duration,
    /// The server did not know the script.
    whole: bool,
}

/// What the watchdog thread runs.
pub(crate) fn run(engine: Arc<Engine>) {
    let mut watchdog = Watchdog {
        engine,
        connection: None,
        due: Vec::new(),
        in_hand: Vec::new(),
        sent: Vec::new(),
        back_off: BACK_OFF.0,
        whole: false,
    };
    loop {
        // Nothing here should panic; if something does, the holds must not be forgotten over it.
        match std::panic::catch_unwind(AssertUnwindSafe(|| watchdog.round())) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                report!(Error, "the watchdog panicked and goes on");
                watchdog.connection = None;
                watchdog.retry_later();
                watchdog.engine.agenda.tend_soon();
            }
        }
    }
    watchdog.retry_later();
}

impl Watchdog {
    /// One sleep and what was due after it; `false` once stopped.
    fn round(&mut self) -> bool {
        let lease = self.engine.lease;
        let early = (lease / 60).min(Duration::from_millis(250));
        let Some(work) = self.engine.agenda.next(early) else {
            return false;
        };
        let engine = Arc::clone(&self.engine);
        let now = Instant::now();
        self.due = work.holds;
        while let Some(hold) = self.due.last() {
            look_at(&engine, hold, now, &mut self.in_hand);
            self.due.pop();
        }
        let keeps = !self.in_hand.is_empty();
        self.renew();
        if keeps {
            engine.link.look_after();
        }
        if work.tend {
            let in_hand = &mut self.in_hand;
            let releases = engine.link.tend(
                Instant::now() + engine.connect_timeout.min(lease / 10),
                &mut || look_around(&engine, in_hand),
            );
            engine.end_lingering();
            let rooms = engine.gates.sweep(Instant::now()).left;
            if releases || rooms {
                engine.agenda.tend_soon();
            }
            self.renew();
        }
        true
    }

    /// Sends what is in hand, until nothing is or the server does not answer.
    fn renew(&mut self) {
        while !self.in_hand.is_empty() && look_around(&self.engine, &mut self.in_hand) {
            match self.renew_batch() {
                Ok(()) => self.back_off = BACK_OFF.0,
                Err(err) => {
                    report!(Debug, "renewing: {err}");
                    self.connection = None;
                    for hold in &self.in_hand {
                        hold.renewal_has_failed();
                    }
                    self.retry_later();
                    self.back_off = (self.back_off * 2)
                        .min(BACK_OFF.1)
                        .min(self.engine.lease / 10);
                }
            }
        }
    }

    /// Puts what is in hand back on the agenda, to be tried again after a pause or told lost in time.
    fn retry_later(&mut self) {
        let again = Instant::now()
            + self
                .back_off
                .min(self.engine.lease / 10)
                .max(Duration::from_millis(1));
        for hold in self
            .due
            .drain(..)
            .chain(self.in_hand.drain(..))
            .chain(self.sent.drain(..))
        {
            self.engine.agenda.arm(&hold, hold.look_again(again));
        }
    }

    fn renew_batch(&mut self) -> Result<(), RedisError> {
        let engine = Arc::clone(&self.engine);
        // A connection that does not answer must leave time for another within the lease.
        let patience = engine.lease / 4;
        if self.connection.is_none() {
            let deadline = Instant::now() + patience.min(engine.connect_timeout);
            let in_hand = &mut self.in_hand;
            let made = stream::connect(&engine.endpoint, "watchdog", deadline, &mut || {
                look_around(&engine, in_hand)
            });
            self.connection = Some(made?);
        }
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };

        let sent_at = Instant::now();
        self.in_hand.retain(|hold| hold.is_held());
        self.sent = self
            .in_hand
            .drain(..self.in_hand.len().min(BATCH))
            .collect();
        let mut bytes = Vec::with_capacity(256 * self.sent.len());
        for hold in &self.sent {
            hold.renew_request().write(&mut bytes, self.whole);
        }
        let whole = std::mem::take(&mut self.whole);
        let given_up_at = sent_at + patience.min(engine.response_timeout);
        let mut looked_at = sent_at;
        let mut answered = 0;
        let mut failure = connection
            .writer
            .write_all(&bytes)
            .err()
            .map(RedisError::from);
        while failure.is_none() && answered < self.sent.len() {
            match connection.reader.read(SLICE, &mut || {}) {
                Ok(Some(reply)) => {
                    let settled = settle(&engine, &self.sent[answered], reply, sent_at);
                    answered += 1;
                    match settled {
                        Settled::Done => {}
                        Settled::Unknown if !whole => {
                            self.whole = true;
                            self.in_hand.push(Arc::clone(&self.sent[answered - 1]));
                        }
                        Settled::Unknown => {
                            self.in_hand.push(Arc::clone(&self.sent[answered - 1]));
                            failure = Some(stream::timed_out("redis forgets scripts at once"));
                        }
                        // The rest of the batch is answered alike; the master is elsewhere.
                        Settled::Elsewhere(err) => failure = Some(err),
                    }
                }
                Ok(None) => {}
                Err(err) => failure = Some(err),
            }
            // Whatever the server does, every few milliseconds something else may be due.
            let now = Instant::now();
            if now >= looked_at + SLICE {
                looked_at = now;
                for hold in &self.sent[answered..] {
                    tell_if_over(&engine, hold, now);
                }
                if !look_around(&engine, &mut self.in_hand) || now >= given_up_at {
                    failure.get_or_insert_with(|| {
                        stream::timed_out("redis did not answer a renewal in time")
                    });
                }
            }
        }
        self.in_hand.extend(self.sent.drain(..).skip(answered));
        failure.map_or(Ok(()), Err)
    }
}

/// What to do about a hold that was taken off the agenda.
fn look_at(engine: &Arc<Engine>, hold: &Arc<Hold>, now: Instant, in_hand: &mut Vec<Arc<Hold>>) {
    match hold.duty(now) {
        Duty::Nothing => {}
        Duty::Wait(until) => engine.agenda.arm(hold, until),
        Duty::Renew if grip::heal(engine, hold) => {}
        Duty::Renew => in_hand.push(Arc::clone(hold)),
        Duty::Tell(reason) => engine.lose(hold, reason),
    }
}

fn tell_if_over(engine: &Arc<Engine>, hold: &Arc<Hold>, now: Instant) {
    if let Duty::Tell(reason) = hold.duty(now) {
        hold.renewal_has_failed();
        let reason = if reason == LossReason::Expired {
            LossReason::Unreachable
        } else {
            reason
        };
        engine.lose(hold, reason);
    }
}

/// The other duties, while the thread waits for the server; `false` once it has to stop.
fn look_around(engine: &Arc<Engine>, in_hand: &mut Vec<Arc<Hold>>) -> bool {
    let now = Instant::now();
    for hold in in_hand.iter() {
        tell_if_over(engine, hold, now);
    }
    for hold in engine.agenda.take_due(now) {
        look_at(engine, &hold, now, in_hand);
    }
    !engine.agenda.is_stopped()
}

/// What a reply to a renewal leaves to be done.
enum Settled {
    Done,
    /// The server did not know the script.
    Unknown,
    /// The server is no master any more.
    Elsewhere(RedisError),
}

fn settle(engine: &Arc<Engine>, hold: &Arc<Hold>, reply: Value, sent_at: Instant) -> Settled {
    let reply = match reply.extract_error() {
        Ok(reply) => reply,
        Err(err) if err.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            return Settled::Unknown;
        }
        Err(err) if err.code() == Some("WRONGTYPE") => {
            if hold.is_part() {
                grip::settle(engine, hold, Renewed::Taken, sent_at);
            } else {
                engine.lose(hold, LossReason::TakenOver);
            }
            return Settled::Done;
        }
        Err(err) => {
            report!(Debug, "renewing `{}`: {err}", hold.gate.name);
            hold.renewal_has_failed();
            let again = Instant::now() + BACK_OFF.1.min(engine.lease / 10);
            engine.agenda.arm(hold, hold.look_again(again));
            return if err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
                Settled::Elsewhere(err)
            } else {
                Settled::Done
            };
        }
    };
    let shortened_to = script::shortened_to(&reply);
    let Some(renewed) = hold.renewal(reply).transpose() else {
        engine.agenda.arm(hold, Instant::now());
        return Settled::Done;
    };
    if hold.is_part() {
        let renewed = renewed.unwrap_or_else(|unexpected| {
            report!(Warn, "renewing `{}`: {unexpected}", hold.gate.name);
            Renewed::Taken
        });
        grip::settle(engine, hold, renewed, sent_at);
        return Settled::Done;
    }
    let now = Instant::now();
    // Past its time the key may well be gone: nobody took it away.
    let in_time = now < hold.valid_until();
    match renewed {
        Ok(Renewed::Yes) => {
            engine.counters.renewals.add(1);
            hold.was_renewed(sent_at);
            hold.lock_was_shortened(shortened_to);
            engine.agenda.arm(hold, hold.due_after(sent_at));
        }
        Ok(Renewed::Gone) => engine.lose(
            hold,
            if in_time {
                LossReason::Forced
            } else {
                LossReason::Expired
            },
        ),
        Ok(Renewed::Taken) => engine.lose(
            hold,
            if in_time {
                LossReason::TakenOver
            } else {
                LossReason::Expired
            },
        ),
        Err(unexpected) => {
            report!(Warn, "renewing `{}`: {unexpected}", hold.gate.name);
            engine.lose(hold, LossReason::TakenOver);
        }
    }
    Settled::Done
}
