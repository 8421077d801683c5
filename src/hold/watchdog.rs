//! The renewing thread: one for all holds of a client, on a connection of its own.
//!
//! The [`Watchdog`] says when each hold has to be looked at next: to renew it, because a fixed lease ends, because its
//! `max_hold` does. The thread sleeps until the first of these moments, takes what is due, and sends the renewals
//! pipelined, that of the hold which ends first in front. It never blocks for longer than [`SLICE`] without looking at
//! the watchdog again, whatever the server does, so a loss is reported in time even while Redis is frozen.
//!
//! ```text
//!   armed ──due──► queues ──sent──► on its way ──confirmed──► armed (a third of the lease later)
//!     │              │  ▲               ├───────refused─────► lost: Forced, TakenOver
//!     │              │  └───────────────┴───────no answer     (sent again after a pause)
//!     └──disarmed    └─ its validity is over before it is confirmed: lost, Unreachable
//! ```
//!
//! What a renewal asks for, and what its reply means, is up to each [`Renewable`]. What the thread does for its client
//! besides is its [`Housekeeping`].
//!
//! A hold is armed before its guard exists, and disarmed before its release is sent.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::hold::schedule::Schedule;
use crate::hold::validity::Duty;
use crate::hold::{LossSink, Next, Renewable};
use crate::net::connection::Housekeeper;
use crate::net::socket::{self, Duplex, Endpoint, Meanwhile};
use crate::report::report;
use crate::stats::Counters;
use crate::time;

/// How long the thread waits for bytes before it looks at the watchdog again.
const SLICE: Duration = Duration::from_millis(5);

/// How many renewals go out before their replies are read, and about how many bytes: no more than the socket takes at once
/// from one who may not block, also if the server reads nothing.
const BATCH: (usize, usize) = (256, 48 * 1024);

/// How many holds are looked at in one go: in between renewals are sent.
const PORTION: usize = 4096;

/// How long after it was asked for housekeeping runs: reading replies that nobody waits for, dropping idle entries.
const HOUSEKEEP_AFTER: Duration = Duration::from_millis(100);

/// The pause after the first failure, doubled for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A client, as far as its watchdog's thread works for it.
pub(crate) trait Housekeeping: LossSink {
    /// Something is to be renewed, so its release will need a connection.
    fn look_after_connection(&self);

    /// Runs the housekeeping, and says whether some is left. `meanwhile` is called every few milliseconds.
    fn housekeep(&self, meanwhile: Meanwhile<'_>) -> bool;
}

/// When each hold has to be looked at.
pub(crate) struct Watchdog {
    state: Mutex<WatchdogState>,
    changed: Condvar,
    /// Whether [`Watchdog::housekeep_soon`] was called since the last housekeeping. Read without the mutex, since it is
    /// called after every release.
    housekeeping_asked: AtomicBool,
}

struct WatchdogState {
    schedule: Schedule<dyn Renewable>,
    /// How many of them are parts of others.
    parts: usize,
    housekeep_at: Option<u64>,
    /// Until when the thread sleeps; zero while it is awake.
    wakes_at: u64,
    stopped: bool,
}

impl Watchdog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WatchdogState {
                schedule: Schedule::new(),
                parts: 0,
                housekeep_at: None,
                wakes_at: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
            housekeeping_asked: AtomicBool::new(false),
        })
    }

    /// Has `hold` looked at `due`, unless it is over.
    pub(crate) fn arm<T: Renewable + 'static>(&self, hold: &Arc<T>, due: Instant) {
        self.put(Arc::clone(hold) as Arc<dyn Renewable>, due);
    }

    fn put(&self, hold: Arc<dyn Renewable>, due: Instant) {
        let due = time::nanos(due).max(1);
        let mut state = self.state.lock();
        state.remove(&*hold);
        if !hold.is_held() {
            return;
        }
        state.parts += usize::from(hold.is_part());
        state.schedule.arm(hold, due);
        if due < state.wakes_at {
            state.wakes_at = due;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Has `hold` renewed when its turn comes, unless it is over, and looked at when it is.
    fn queue(&self, hold: &Arc<dyn Renewable>, now: Instant) {
        let ends = time::nanos(hold.ends());
        let due = time::nanos(hold.look_again(now + hold.lease()));
        let mut state = self.state.lock();
        state.remove(&**hold);
        if hold.is_held() {
            state.parts += usize::from(hold.is_part());
            state.schedule.queue(hold, ends, due);
        }
    }

    /// Forgets `hold`, which must be over, or the thread may put it back.
    pub(crate) fn disarm<T: Renewable + 'static>(&self, hold: &Arc<T>) {
        self.state.lock().remove(&**hold);
    }

    /// Has the thread run the housekeeping shortly.
    pub(crate) fn housekeep_soon(&self) {
        if self.housekeeping_asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let at = time::nanos(Instant::now() + HOUSEKEEP_AFTER);
        let mut state = self.state.lock();
        state.housekeep_at = Some(at);
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
    pub(crate) fn take_all(&self) -> Vec<Arc<dyn Renewable>> {
        let mut state = self.state.lock();
        state.parts = 0;
        state.schedule.take_all()
    }

    /// Sleeps until there is something to do, for which what queues is not counted before `retry_at`; says whether
    /// housekeeping is due. `None` once stopped.
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
            let next = [due, retry_at, state.housekeep_at]
                .into_iter()
                .flatten()
                .min();
            match next {
                Some(at) if at <= now => {
                    let housekeep = state.housekeep_at.is_some_and(|at| at <= now);
                    if housekeep {
                        state.housekeep_at = None;
                        self.housekeeping_asked.store(false, Ordering::Release);
                    }
                    state.wakes_at = 0;
                    return Some(housekeep);
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
    fn take_due(&self, now: Instant, early: Duration) -> Option<(Instant, Arc<dyn Renewable>)> {
        let mut state = self.state.lock();
        let (due, hold) = state.schedule.first_due()?;
        let soon = || due <= time::nanos(now + early) && hold.may_be_early(now);
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

    fn take_renewal(&self) -> Option<Arc<dyn Renewable>> {
        self.state.lock().schedule.take_renewal()
    }

    /// The parts of others among those that queue.
    fn parts_to_renew(&self) -> Vec<Arc<dyn Renewable>> {
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
    fn remove(&mut self, hold: &(dyn Renewable + 'static)) {
        if self.schedule.disarm(hold) {
            self.parts -= usize::from(hold.is_part());
        }
    }
}

/// What the thread is started with.
pub(crate) struct Task {
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) client: Arc<dyn Housekeeping>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) endpoint: Endpoint,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

/// The thread itself.
struct WatchdogThread {
    task: Arc<Task>,
    connection: Option<Duplex>,
    lookout: Lookout,
    /// Their renewals are on their way, in this order.
    sent: VecDeque<Arc<dyn Renewable>>,
    /// No renewal is sent before.
    retry_at: Instant,
    back_off: Duration,
    /// The server did not know the script.
    whole: bool,
}

/// What looks at the watchdog, also while the thread waits for something else.
struct Lookout {
    task: Arc<Task>,
    /// Taken off the watchdog, and not back on it or done with.
    looking_at: Option<Arc<dyn Renewable>>,
}

/// What the watchdog thread runs.
pub(crate) fn run(task: Task) {
    let task = Arc::new(task);
    let mut thread = WatchdogThread {
        lookout: Lookout {
            task: Arc::clone(&task),
            looking_at: None,
        },
        task,
        connection: None,
        sent: VecDeque::new(),
        retry_at: Instant::now(),
        back_off: BACK_OFF.0,
        whole: false,
    };
    loop {
        // Nothing here should panic; if something does, the holds must not be forgotten over it.
        match std::panic::catch_unwind(AssertUnwindSafe(|| thread.round())) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                thread.retry_later();
                thread.task.watchdog.housekeep_soon();
                report!(Error, "the watchdog panicked and goes on");
            }
        }
    }
}

impl WatchdogThread {
    /// One sleep and what was due after it; `false` once stopped.
    fn round(&mut self) -> bool {
        let task = Arc::clone(&self.task);
        let early = (task.lease / 60).min(Duration::from_millis(250));
        let Some(housekeep) = task.watchdog.next(self.retry_at) else {
            return false;
        };
        self.lookout.look(early);
        let keeps = task.watchdog.has_renewals();
        self.renew();
        if keeps {
            task.client.look_after_connection();
        }
        if housekeep {
            let lookout = &mut self.lookout;
            if task.client.housekeep(&mut || lookout.look(Duration::ZERO)) {
                task.watchdog.housekeep_soon();
            }
            self.renew();
        }
        true
    }

    /// Renews what queues, until nothing does or the server does not answer.
    fn renew(&mut self) {
        while self.task.watchdog.has_renewals()
            && Instant::now() >= self.retry_at
            && self.lookout.look(Duration::ZERO)
        {
            match self.renew_batch() {
                Ok(()) => self.back_off = BACK_OFF.0,
                Err(err) => {
                    report!(Debug, "renewing: {err}");
                    let parts = self.task.watchdog.parts_to_renew();
                    for hold in self.sent.iter().chain(&parts) {
                        hold.could_not_be_renewed();
                    }
                    self.retry_later();
                    self.back_off = (self.back_off * 2)
                        .min(BACK_OFF.1)
                        .min(self.task.lease / 10);
                }
            }
        }
    }

    /// Puts what is in hand back on the watchdog, and sends nothing for a while.
    fn retry_later(&mut self) {
        self.connection = None;
        let now = Instant::now();
        let pause = self.back_off.min(self.task.lease / 10);
        self.retry_at = now + pause.max(Duration::from_millis(1));
        if let Some(hold) = self.lookout.looking_at.take() {
            let again = hold.look_again(self.retry_at);
            self.task.watchdog.put(hold, again);
        }
        for hold in self.sent.drain(..) {
            self.task.watchdog.put(hold, now);
        }
    }

    fn renew_batch(&mut self) -> Result<(), RedisError> {
        let task = &*self.task;
        let lookout = &mut self.lookout;
        // If this connection does not answer, there must be time for another within the lease.
        let budget = task.lease / 4;
        if self.connection.is_none() {
            let deadline = Instant::now() + budget.min(task.connect_timeout);
            let made = socket::connect(&task.endpoint, "watchdog", deadline, &mut || {
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
            && let Some(hold) = task.watchdog.take_renewal()
        {
            hold.request().write(&mut bytes, self.whole);
            self.sent.push_back(hold);
        }
        let whole = std::mem::take(&mut self.whole);
        let given_up_at = sent_at + budget.min(task.response_timeout);
        let mut looked_at = sent_at;
        connection.writer.write_all(&bytes)?;
        while let Some(hold) = self.sent.front() {
            if let Some(reply) = connection.reader.read(SLICE, &mut || {})? {
                let settled = settle(task, hold, reply, sent_at);
                let hold = self.sent.pop_front();
                match settled {
                    Settled::Done => {}
                    Settled::Unknown => {
                        self.whole = true;
                        if let Some(hold) = hold {
                            task.watchdog.put(hold, Instant::now());
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
        let Task {
            watchdog, client, ..
        } = &*self.task;
        let now = Instant::now();
        for _ in 0..PORTION {
            let Some((due, hold)) = watchdog.take_due(now, early) else {
                break;
            };
            let hold = self.looking_at.insert(hold);
            match Arc::clone(hold).attend(now) {
                Duty::Nothing => {}
                Duty::Wait(until) => watchdog.put(Arc::clone(hold), until),
                Duty::Renew => {
                    let late = now.saturating_duration_since(due).as_micros();
                    let lateness = &self.task.counters.renewal_lateness_max_us;
                    lateness.max(u64::try_from(late).unwrap_or(u64::MAX));
                    watchdog.queue(hold, now);
                }
                Duty::Lose(reason) => {
                    if let Some(again) = Arc::clone(hold).lose(&**client, reason) {
                        // A renewal or another answer came first.
                        watchdog.put(Arc::clone(hold), again);
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

fn settle(task: &Task, hold: &Arc<dyn Renewable>, reply: Value, sent_at: Instant) -> Settled {
    let watchdog = &task.watchdog;
    let its = Arc::clone(hold);
    let next = match reply.extract_error() {
        Ok(reply) => its.complete(reply, sent_at),
        Err(err) if err.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            return Settled::Unknown;
        }
        Err(err) if err.code() == Some("WRONGTYPE") => its.was_overwritten(sent_at),
        Err(err) => {
            report!(Debug, "renewing `{}`: {err}", hold.name());
            hold.could_not_be_renewed();
            let again = Instant::now() + BACK_OFF.1.min(task.lease / 10);
            watchdog.put(its, hold.look_again(again));
            return if err.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
                Settled::Elsewhere(err)
            } else {
                Settled::Done
            };
        }
    };
    match next {
        Next::Nothing => {}
        Next::Renewed(due) => {
            task.counters.renewals.add(1);
            watchdog.put(Arc::clone(hold), due);
        }
        Next::Look(due) => watchdog.put(Arc::clone(hold), due),
        Next::Lost(reason) => {
            Arc::clone(hold).lose(&*task.client, reason);
        }
    }
    Settled::Done
}
