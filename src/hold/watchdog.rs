//! The renewing thread: one for all holds of a client, on a connection of its own.
//!
//! The [`Watchdog`] says when each hold has to be looked at next: to renew it, because a fixed lease ends, because its
//! `max_hold` does. The thread sleeps until the first of these moments, takes what is due, and sends the renewals
//! pipelined, that of the hold which ends first in front. It never blocks for longer than [`SLICE`] without looking at
//! the watchdog again, whatever the server does, so a loss is told in time even while Redis is frozen.
//!
//! ```text
//!   armed ──due──► queues ──sent──► on its way ──confirmed──► armed (a third of the lease later)
//!     │              │  ▲               ├───────refused─────► lost: Forced, TakenOver
//!     │              │  └───────────────┴───────no answer     (sent again after a pause)
//!     └──disarmed    └─ its validity is over before it is confirmed: lost, Unreachable
//! ```
//!
//! What one of several servers keeps of a quorum's hold is armed like a hold; [`quorum_hold::settle`] says what its renewal
//! means for the whole, which is on the watchdog of one client only to be told lost in time.
//!
//! A hold is armed before its guard exists, and disarmed before its release is sent.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::LossReason;
use crate::hold::schedule::{Place, Schedule, Scheduled};
use crate::hold::{Duty, Hold};
use crate::net::connection::Housekeeper;
use crate::net::socket::{self, Duplex};
use crate::protocol::script::{self, Renewed};
use crate::quorum::hold as quorum_hold;
use crate::report::report;
use crate::session::Session;
use crate::time;

/// How long the thread waits for bytes before it looks at the watchdog again.
const SLICE: Duration = Duration::from_millis(5);

/// How many renewals go out before their replies are read, and about how many bytes: no more than the socket takes at once
/// from one who may not block, also if the server reads nothing.
const BATCH: (usize, usize) = (256, 48 * 1024);

/// How many holds are looked at in one go: in between renewals are sent.
const PORTION: usize = 4096;

/// How soon unfinished business is looked after: replies that nobody reads, idle rooms.
const TEND: Duration = Duration::from_millis(100);

/// The pause after the first failure, doubled for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// When each hold has to be looked at.
pub(crate) struct Watchdog {
    state: Mutex<WatchdogState>,
    changed: Condvar,
    /// Somebody has asked for [`Watchdog::housekeep_soon`]; read without the mutex by those who would ask again.
    tending: AtomicBool,
}

struct WatchdogState {
    schedule: Schedule<Hold>,
    /// How many of them are parts of others.
    parts: usize,
    tend_at: Option<u64>,
    /// Until when the thread sleeps; zero while it is awake.
    wakes_at: u64,
    stopped: bool,
}

impl Scheduled for Hold {
    fn number(&self) -> u64 {
        self.number.0
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

impl Watchdog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WatchdogState {
                schedule: Schedule::new(),
                parts: 0,
                tend_at: None,
                wakes_at: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
            tending: AtomicBool::new(false),
        })
    }

    /// Has `hold` looked at `due`, unless it is over.
    pub(crate) fn arm(&self, hold: &Arc<Hold>, due: Instant) {
        let due = time::nanos(due).max(1);
        let mut state = self.state.lock();
        state.remove(hold);
        if !hold.is_held() {
            return;
        }
        state.schedule.arm(hold, due);
        state.added(hold);
        if due < state.wakes_at {
            state.wakes_at = due;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Has `hold` renewed when its turn comes, unless it is over, and looked at when it is.
    fn queue(&self, hold: &Arc<Hold>, now: Instant) {
        let ends = time::nanos(hold.valid_until());
        let due = time::nanos(hold.look_again(now + hold.lease()));
        let mut state = self.state.lock();
        state.remove(hold);
        if hold.is_held() {
            state.schedule.queue(hold, ends, due);
            state.added(hold);
        }
    }

    /// Forgets `hold`, which must be over, or the thread may put it back.
    pub(crate) fn disarm(&self, hold: &Hold) {
        self.state.lock().remove(hold);
    }

    /// Has the thread look after unfinished business shortly.
    pub(crate) fn housekeep_soon(&self) {
        if self.tending.swap(true, Ordering::AcqRel) {
            return;
        }
        let at = time::nanos(Instant::now() + TEND);
        let mut state = self.state.lock();
        state.tend_at = Some(at);
        if at < state.wakes_at {
            state.wakes_at = at;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// How many holds are armed; the parts of one do not count.
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.schedule.len() - state.parts
    }

    /// How many of the armed holds are parts of others.
    pub(crate) fn parts(&self) -> usize {
        self.state.lock().parts
    }

    /// Ends the thread, as soon as it looks.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Takes every hold off.
    pub(crate) fn take_all(&self) -> Vec<Arc<Hold>> {
        let mut state = self.state.lock();
        state.parts = 0;
        state.schedule.take_all()
    }

    /// Sleeps until there is something to do, for which what queues is not counted before `retry_at`; says whether
    /// unfinished business is to be looked after. `None` once stopped.
    fn next(&self, retry_at: Instant) -> Option<bool> {
        let retry_at = time::nanos(retry_at);
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = time::nanos(Instant::now());
            let due = state.schedule.first_due().map(|(due, _)| due);
            let retry_at = state.schedule.has_renewals().then_some(retry_at);
            let next = [due, retry_at, state.tend_at].into_iter().flatten().min();
            match next {
                Some(at) if at <= now => {
                    let tend = state.tend_at.is_some_and(|at| at <= now);
                    if tend {
                        state.tend_at = None;
                        self.tending.store(false, Ordering::Release);
                    }
                    state.wakes_at = 0;
                    return Some(tend);
                }
                Some(at) => {
                    state.wakes_at = at;
                    self.changed.wait_until(&mut state, time::instant(at));
                }
                None => {
                    state.wakes_at = u64::MAX;
                    self.changed.wait(&mut state);
                }
            }
        }
    }

    /// Takes off what is due first, and when that is. What is to be renewed within `early` counts as due, so that holds
    /// taken one after another are renewed together.
    fn take_due(&self, now: Instant, early: Duration) -> Option<(Instant, Arc<Hold>)> {
        let mut state = self.state.lock();
        let (due, hold) = state.schedule.first_due()?;
        // What is done about a part is not always a renewal, and may be due again within that time.
        let may_be_early = due <= time::nanos(now + early) && !hold.is_part();
        let soon = || may_be_early && hold.duty(now) == Duty::Renew;
        if due > time::nanos(now) && !soon() {
            return None;
        }
        let hold = state.schedule.take_due()?;
        state.parts -= usize::from(hold.is_part());
        Some((time::instant(due), hold))
    }

    fn has_renewals(&self) -> bool {
        self.state.lock().schedule.has_renewals()
    }

    fn take_renewal(&self) -> Option<Arc<Hold>> {
        self.state.lock().schedule.take_renewal()
    }

    /// The parts of others among those that queue.
    fn parts_to_renew(&self) -> Vec<Arc<Hold>> {
        let state = self.state.lock();
        if state.parts == 0 {
            return Vec::new();
        }
        let parts = state.schedule.renewals().filter(|hold| hold.is_part());
        parts.cloned().collect()
    }
}

impl Housekeeper for Watchdog {
    fn housekeep_soon(&self) {
        Self::housekeep_soon(self);
    }
}

impl WatchdogState {
    fn added(&mut self, hold: &Hold) {
        self.parts += usize::from(hold.is_part());
    }

    fn remove(&mut self, hold: &Hold) {
        if self.schedule.disarm(hold) {
            self.parts -= usize::from(hold.is_part());
        }
    }
}

/// The thread itself.
struct WatchdogThread {
    session: Arc<Session>,
    connection: Option<Duplex>,
    lookout: Lookout,
    /// Their renewals are on their way, in this order.
    sent: VecDeque<Arc<Hold>>,
    /// No renewal is sent before.
    retry_at: Instant,
    back_off: Duration,
    /// The server did not know the script.
    whole: bool,
}

/// What looks at the watchdog, also while the thread waits for something else.
struct Lookout {
    session: Arc<Session>,
    /// Taken off the watchdog, and not back on it or done with.
    looking_at: Option<Arc<Hold>>,
}

/// What the watchdog thread runs.
pub(crate) fn run(session: Arc<Session>) {
    let mut watchdog = WatchdogThread {
        lookout: Lookout {
            session: Arc::clone(&session),
            looking_at: None,
        },
        session,
        connection: None,
        sent: VecDeque::new(),
        retry_at: Instant::now(),
        back_off: BACK_OFF.0,
        whole: false,
    };
    loop {
        // Nothing here should panic; if something does, the holds must not be forgotten over it.
        match std::panic::catch_unwind(AssertUnwindSafe(|| watchdog.round())) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                watchdog.retry_later();
                watchdog.session.watchdog.housekeep_soon();
                report!(Error, "the watchdog panicked and goes on");
            }
        }
    }
}

impl WatchdogThread {
    /// One sleep and what was due after it; `false` once stopped.
    fn round(&mut self) -> bool {
        let session = Arc::clone(&self.session);
        let lease = session.lease;
        let early = (lease / 60).min(Duration::from_millis(250));
        let Some(tend) = session.watchdog.next(self.retry_at) else {
            return false;
        };
        self.lookout.look(early);
        let keeps = session.watchdog.has_renewals();
        self.renew();
        if keeps {
            session.connection.look_after();
        }
        if tend {
            let releases = session.connection.tend(
                Instant::now() + session.connect_timeout.min(lease / 10),
                &mut || self.lookout.look(Duration::ZERO),
            );
            let rooms = session.registry.sweep(Instant::now()).left;
            if releases || rooms {
                session.watchdog.housekeep_soon();
            }
            self.renew();
        }
        true
    }

    /// Renews what queues, until nothing does or the server does not answer.
    fn renew(&mut self) {
        while self.session.watchdog.has_renewals()
            && Instant::now() >= self.retry_at
            && self.lookout.look(Duration::ZERO)
        {
            match self.renew_batch() {
                Ok(()) => self.back_off = BACK_OFF.0,
                Err(err) => {
                    report!(Debug, "renewing: {err}");
                    let parts = self.session.watchdog.parts_to_renew();
                    for hold in self.sent.iter().chain(&parts) {
                        hold.renewal_has_failed();
                    }
                    self.retry_later();
                    self.back_off = (self.back_off * 2)
                        .min(BACK_OFF.1)
                        .min(self.session.lease / 10);
                }
            }
        }
    }

    /// Puts what is in hand back on the watchdog, and sends nothing for a while.
    fn retry_later(&mut self) {
        self.connection = None;
        let now = Instant::now();
        let pause = self.back_off.min(self.session.lease / 10);
        self.retry_at = now + pause.max(Duration::from_millis(1));
        if let Some(hold) = self.lookout.looking_at.take() {
            let again = hold.look_again(self.retry_at);
            self.session.watchdog.arm(&hold, again);
        }
        for hold in self.sent.drain(..) {
            self.session.watchdog.arm(&hold, now);
        }
    }

    fn renew_batch(&mut self) -> Result<(), RedisError> {
        let session = Arc::clone(&self.session);
        let lookout = &mut self.lookout;
        // A connection that does not answer must leave time for another within the lease.
        let patience = session.lease / 4;
        if self.connection.is_none() {
            let deadline = Instant::now() + patience.min(session.connect_timeout);
            let made = socket::connect(&session.endpoint, "watchdog", deadline, &mut || {
                lookout.look(Duration::ZERO)
            });
            self.connection = Some(made?);
        }
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };

        let sent_at = Instant::now();
        let mut bytes = Vec::with_capacity(BATCH.1);
        while self.sent.len() < BATCH.0
            && bytes.len() < BATCH.1
            && let Some(hold) = session.watchdog.take_renewal()
        {
            hold.renew_request().write(&mut bytes, self.whole);
            self.sent.push_back(hold);
        }
        let whole = std::mem::take(&mut self.whole);
        let given_up_at = sent_at + patience.min(session.response_timeout);
        let mut looked_at = sent_at;
        connection.writer.write_all(&bytes)?;
        while let Some(hold) = self.sent.front() {
            if let Some(reply) = connection.reader.read(SLICE, &mut || {})? {
                let settled = settle(&session, hold, reply, sent_at);
                let hold = self.sent.pop_front();
                match settled {
                    Settled::Done => {}
                    Settled::Unknown => {
                        self.whole = true;
                        if let Some(hold) = hold {
                            session.watchdog.arm(&hold, Instant::now());
                        }
                        if whole {
                            return Err(socket::timed_out("redis forgets scripts at once"));
                        }
                    }
                    // The rest of the batch is answered alike; the master is elsewhere.
                    Settled::Elsewhere(err) => return Err(err),
                }
            }
            // Whatever the server does, every few milliseconds something else may be due.
            let now = Instant::now();
            if now >= looked_at + SLICE {
                looked_at = now;
                if !lookout.look(Duration::ZERO) || now >= given_up_at {
                    return Err(socket::timed_out("redis did not answer a renewal in time"));
                }
            }
        }
        Ok(())
    }
}

impl Lookout {
    /// Looks at what is due, or is to be renewed within `early`; `false` once the thread has to stop.
    fn look(&mut self, early: Duration) -> bool {
        let watchdog = &self.session.watchdog;
        let now = Instant::now();
        for _ in 0..PORTION {
            let Some((due, hold)) = watchdog.take_due(now, early) else {
                break;
            };
            let hold = self.looking_at.insert(hold);
            match hold.duty(now) {
                Duty::Nothing => {}
                Duty::Wait(until) => watchdog.arm(hold, until),
                Duty::Renew if quorum_hold::attend(&self.session, hold) => {}
                Duty::Renew => {
                    let late = now.saturating_duration_since(due).as_micros();
                    let lateness = &self.session.counters.renewal_lateness_max_us;
                    lateness.max(u64::try_from(late).unwrap_or(u64::MAX));
                    hold.renewal_is_due();
                    watchdog.queue(hold, now);
                }
                Duty::Tell(reason) => {
                    self.session.lose(hold, reason);
                    if hold.is_held() {
                        // A renewal or another answer came first.
                        watchdog.arm(hold, hold.due_after(now));
                    }
                }
            }
        }
        self.looking_at = None;
        !watchdog.is_stopped()
    }
}

/// What a reply to a renewal leaves to be done.
enum Settled {
    Done,
    /// The server did not know the script.
    Unknown,
    /// The server is no master any more.
    Elsewhere(RedisError),
}

fn settle(session: &Arc<Session>, hold: &Arc<Hold>, reply: Value, sent_at: Instant) -> Settled {
    let reply = match reply.extract_error() {
        Ok(reply) => reply,
        Err(err) if err.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            return Settled::Unknown;
        }
        Err(err) if err.code() == Some("WRONGTYPE") => {
            if hold.is_part() {
                quorum_hold::settle(session, hold, Renewed::Taken, sent_at);
            } else {
                session.lose(hold, LossReason::TakenOver);
            }
            return Settled::Done;
        }
        Err(err) => {
            report!(Debug, "renewing `{}`: {err}", hold.entry.name);
            hold.renewal_has_failed();
            let again = Instant::now() + BACK_OFF.1.min(session.lease / 10);
            session.watchdog.arm(hold, hold.look_again(again));
            return if err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
                Settled::Elsewhere(err)
            } else {
                Settled::Done
            };
        }
    };
    let shortened_to = script::shortened_to(&reply);
    let Some(renewed) = hold.renewal(reply).transpose() else {
        session.watchdog.arm(hold, Instant::now());
        return Settled::Done;
    };
    if hold.is_part() {
        let renewed = renewed.unwrap_or_else(|unexpected| {
            report!(Warn, "renewing `{}`: {unexpected}", hold.entry.name);
            Renewed::Taken
        });
        quorum_hold::settle(session, hold, renewed, sent_at);
        return Settled::Done;
    }
    let now = Instant::now();
    // Past its time the key may well be gone: nobody took it away.
    let in_time = now < hold.valid_until();
    match renewed {
        Ok(Renewed::Yes) => {
            session.counters.renewals.add(1);
            hold.was_renewed(sent_at);
            hold.lock_was_shortened(shortened_to);
            session.watchdog.arm(hold, hold.due_after(sent_at));
        }
        Ok(Renewed::Gone) => session.lose(
            hold,
            if in_time {
                LossReason::Forced
            } else {
                LossReason::Expired
            },
        ),
        Ok(Renewed::Taken) => session.lose(
            hold,
            if in_time {
                LossReason::TakenOver
            } else {
                LossReason::Expired
            },
        ),
        Err(unexpected) => {
            report!(Warn, "renewing `{}`: {unexpected}", hold.entry.name);
            session.lose(hold, LossReason::TakenOver);
        }
    }
    Settled::Done
}
