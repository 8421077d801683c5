//! The watchdog: one thread that renews all holds of a client, on a connection of its own.
//!
//! The [`Watchdog`] keeps the moment at which each hold needs attention next: its renewal is due, its fixed lease ends, or
//! its `max_hold` does. The thread sleeps until the first of these moments and sends the renewals that are due in one
//! pipeline, in the order in which the holds would end. Whatever the server does, it never blocks for longer than
//! [`SLICE`] before it checks what is due, so a loss is reported in time even while Redis is frozen.
//!
//! ```text
//!   armed ──due──► queues ──sent──► on its way ──confirmed──► armed (a third of the lease later)
//!     │              │  ▲               ├───────refused─────► lost: Forced, TakenOver
//!     │              │  └───────────────┴───────no answer     (sent again after a pause)
//!     └──disarmed    └─ its validity is over before it is confirmed: lost, Unreachable
//! ```
//!
//! Each [`Renewable`] says what to send to renew it and what the reply means. [`Housekeeping`] is what the thread also does
//! for its client.
//!
//! A hold is armed before its guard exists, and disarmed before its release is sent.

mod batch;
#[cfg(feature = "cluster")]
mod cluster;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::error::is_unknown_script;
use crate::hold::schedule::Schedule;
use crate::hold::validity::Duty;
use crate::hold::watchdog::batch::{BATCH, Batch, TOGETHER};
use crate::hold::{Armed, Hold, LossSink, Next, Renewable};
#[cfg(feature = "cluster")]
use crate::net::cluster::Cluster;
use crate::net::connection::Housekeeper;
use crate::net::socket::{self, Duplex, Endpoint, Meanwhile, Successor};
use crate::report::report;
use crate::stats::Counters;
use crate::time;

/// The longest wait for bytes before the thread checks again what is due.
const SLICE: Duration = Duration::from_millis(5);

/// How long locks are renewed one by one after the server has refused to renew several together.
const ONE_BY_ONE: Duration = Duration::from_secs(60);

/// The most holds handled in one go, so that with very many of them renewals are sent in between.
const PORTION: usize = 4096;

/// How long after it was asked for housekeeping runs: reading replies that nobody waits for, dropping idle entries.
const HOUSEKEEP_AFTER: Duration = Duration::from_millis(100);

/// For how long after that the thread wakes as often by itself. A process that releases something several times a second
/// then does not have to wake it each time.
const STAYS_AWAKE: Duration = Duration::from_secs(1);

/// The pause after the first failure, doubled for each further one.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The work besides renewals that the thread does for its client.
pub(crate) trait Housekeeping: LossSink {
    /// Called when something is renewed: checks the connection over which its release will have to go.
    fn look_after_connection(&self);

    /// Runs the housekeeping; `true` if some is left. Calls `meanwhile` every few milliseconds.
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
    holds: Schedule<Hold>,
    /// What single nodes keep of holds.
    node_holds: Schedule<dyn Renewable>,
    housekeep_at: Option<u64>,
    /// Until when the thread wakes at least as often as housekeeping may be asked for.
    awake_until: u64,
    /// Housekeeping runs this often even if nobody asks for it.
    housekeep_every: Option<Duration>,
    /// Until when the thread sleeps; zero while it is awake.
    wakes_at: u64,
    stopped: bool,
}

impl Watchdog {
    /// Housekeeping runs when it is asked for, and `every` so often, if that is given.
    pub(crate) fn new(every: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WatchdogState {
                holds: Schedule::new(),
                node_holds: Schedule::new(),
                housekeep_at: every.map(|every| time::nanos(Instant::now() + every)),
                awake_until: 0,
                housekeep_every: every,
                wakes_at: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
            housekeeping_asked: AtomicBool::new(false),
        })
    }

    /// Schedules `hold` for `due`, unless it is over.
    pub(crate) fn arm<T: Renewable + 'static>(&self, hold: &Arc<T>, due: Instant) {
        self.put_armed(Arc::clone(hold).armed(), due);
    }

    fn put(&self, hold: Arc<dyn Renewable>, due: Instant) {
        self.put_armed(hold.armed(), due);
    }

    fn put_armed(&self, hold: Armed, due: Instant) {
        let due = time::nanos(due).max(1);
        let mut state = self.state.lock();
        state.remove(&hold);
        if !hold.is_held() {
            return;
        }
        state.arm(hold, due);
        if due < state.wakes_at {
            state.wakes_at = due;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Queues `hold` for renewal, unless it is over, and schedules it for its end.
    fn queue(&self, hold: &Arc<dyn Renewable>, now: Instant) {
        let ends = time::nanos(hold.ends());
        let due = time::nanos(hold.look_again(now + hold.lease()));
        let hold = Arc::clone(hold).armed();
        let mut state = self.state.lock();
        state.remove(&hold);
        if hold.is_held() {
            state.queue(&hold, ends, due);
        }
    }

    /// Takes `hold` off the schedule. It must be over, or the thread may put it back.
    pub(crate) fn disarm<T: Renewable + 'static>(&self, hold: &Arc<T>) {
        let hold = Arc::clone(hold).armed();
        self.state.lock().remove(&hold);
    }

    /// Has the thread run the housekeeping shortly.
    pub(crate) fn housekeep_soon(&self) {
        if self.housekeeping_asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let now = Instant::now();
        let at = time::nanos(now + HOUSEKEEP_AFTER);
        let mut state = self.state.lock();
        state.awake_until = time::nanos(now + STAYS_AWAKE);
        state.housekeep_at = Some(state.housekeep_at.map_or(at, |before| before.min(at)));
        if at < state.wakes_at {
            state.wakes_at = at;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// How many holds are armed; a hold that several nodes keep counts once.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().holds.len()
    }

    /// How many of the armed holds are what one node keeps of a hold.
    pub(crate) fn node_holds(&self) -> usize {
        self.state.lock().node_holds.len()
    }

    /// Has the thread end.
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
        let holds = state.holds.take_all();
        let holds = holds.into_iter().map(|hold| hold as Arc<dyn Renewable>);
        holds.chain(state.node_holds.take_all()).collect()
    }

    /// Sleeps until there is something to do; `true` if housekeeping is due, `None` once stopped. Queued renewals count as
    /// something to do from `retry_at` on.
    fn next(&self, retry_at: Instant) -> Option<bool> {
        let retry_at = time::nanos(retry_at);
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let moment = Instant::now();
            let now = time::nanos(moment);
            match state.next_at(moment, retry_at) {
                Some(at) if at <= now => {
                    let housekeep = state.housekeep_at.is_some_and(|at| at <= now);
                    if housekeep {
                        let every = state.housekeep_every;
                        state.housekeep_at = every.map(|every| time::nanos(Instant::now() + every));
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

    /// Takes off the hold that is due first, with the moment at which it is due. Renewals due within `early` count as due,
    /// so that holds acquired shortly after one another are renewed together.
    fn take_due(&self, now: Instant, early: Duration) -> Option<(Instant, Arc<dyn Renewable>)> {
        let mut state = self.state.lock();
        let (due, hold) = state.first_due()?;
        let soon = || due <= time::nanos(now + early) && hold.may_be_early(now);
        if due > time::nanos(now) && !soon() {
            return None;
        }
        let hold = state.take_due()?;
        Some((time::instant(due), hold))
    }

    fn has_renewals(&self) -> bool {
        self.state.lock().has_renewals()
    }

    /// How many renewals are queued.
    fn renewals(&self) -> usize {
        let state = self.state.lock();
        state.holds.queued() + state.node_holds.queued()
    }

    fn take_renewal(&self) -> Option<Arc<dyn Renewable>> {
        self.state.lock().take_renewal()
    }

    /// What single nodes keep, of the holds that queue for renewal.
    fn node_holds_to_renew(&self) -> Vec<Arc<dyn Renewable>> {
        let state = self.state.lock();
        state.node_holds.renewals().cloned().collect()
    }
}

impl Housekeeper for Watchdog {
    fn housekeep_soon(&self) {
        Self::housekeep_soon(self);
    }
}

impl WatchdogState {
    /// When the thread has to look next what there is to do, if ever.
    fn next_at(&self, now: Instant, retry_at: u64) -> Option<u64> {
        let due = self.first_due().map(|(due, _)| due);
        let retry_at = self.has_renewals().then_some(retry_at);
        let is_awake = time::nanos(now) < self.awake_until;
        let anyway = is_awake.then(|| time::nanos(now + HOUSEKEEP_AFTER));
        [due, retry_at, self.housekeep_at, anyway]
            .into_iter()
            .flatten()
            .min()
    }

    fn remove(&mut self, hold: &Armed) {
        match hold {
            Armed::Hold(hold) => self.holds.disarm(hold),
            Armed::Node(hold) => self.node_holds.disarm(hold),
        };
    }

    fn arm(&mut self, hold: Armed, due: u64) {
        match hold {
            Armed::Hold(hold) => self.holds.arm(hold, due),
            Armed::Node(hold) => self.node_holds.arm(hold, due),
        }
    }

    fn queue(&mut self, hold: &Armed, ends: u64, due: u64) {
        match hold {
            Armed::Hold(hold) => self.holds.queue(hold, ends, due),
            Armed::Node(hold) => self.node_holds.queue(hold, ends, due),
        }
    }

    /// What is due first, and when.
    fn first_due(&self) -> Option<(u64, &dyn Renewable)> {
        let (hold, node_hold) = (self.holds.first_due(), self.node_holds.first_due());
        match First::of(hold.map(at), node_hold.map(at))? {
            First::Hold => hold.map(|(due, hold)| (due, &**hold as &dyn Renewable)),
            First::NodeHold => node_hold.map(|(due, hold)| (due, &**hold)),
        }
    }

    fn take_due(&mut self) -> Option<Arc<dyn Renewable>> {
        let (hold, node_hold) = (self.holds.first_due(), self.node_holds.first_due());
        match First::of(hold.map(at), node_hold.map(at))? {
            First::Hold => Some(self.holds.take_due()?),
            First::NodeHold => self.node_holds.take_due(),
        }
    }

    fn has_renewals(&self) -> bool {
        self.holds.has_renewals() || self.node_holds.has_renewals()
    }

    /// Takes what ends first of that which is queued for renewal.
    fn take_renewal(&mut self) -> Option<Arc<dyn Renewable>> {
        match First::of(self.holds.first_end(), self.node_holds.first_end())? {
            First::Hold => Some(self.holds.take_renewal()?),
            First::NodeHold => self.node_holds.take_renewal(),
        }
    }
}

/// Which of the two schedules comes first.
enum First {
    Hold,
    NodeHold,
}

impl First {
    /// By the first moment of each; the holds if both are the same.
    fn of(hold: Option<u64>, node_hold: Option<u64>) -> Option<Self> {
        match (hold, node_hold) {
            (None, None) => None,
            (None, Some(_)) => Some(Self::NodeHold),
            (Some(hold), Some(node_hold)) if node_hold < hold => Some(Self::NodeHold),
            (Some(_), _) => Some(Self::Hold),
        }
    }
}

fn at<T: ?Sized>((at, _): (u64, &Arc<T>)) -> u64 {
    at
}

impl Armed {
    fn is_held(&self) -> bool {
        match self {
            Self::Hold(hold) => hold.is_held(),
            Self::Node(hold) => hold.is_held(),
        }
    }
}

/// What renewals go over.
pub(crate) enum Over {
    /// A connection of the thread's own.
    Server(Endpoint),
    /// One to each master.
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
}

/// What the thread is started with.
pub(crate) struct Task {
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) client: Arc<dyn Housekeeping>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) over: Over,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

/// The state of the thread.
struct WatchdogThread {
    task: Arc<Task>,
    connection: Option<Duplex>,
    /// When the server last answered over it.
    answered_at: Instant,
    /// What replaces it before its login is too old.
    successor: Successor,
    dispatcher: Dispatcher,
    /// The holds whose renewals were sent and not answered, in this order.
    sent: VecDeque<Arc<dyn Renewable>>,
    /// No renewal is sent before.
    retry_at: Instant,
    back_off: Duration,
    /// Whether to send the text of scripts (`EVAL`) next time: the server did not know one.
    by_text: bool,
    /// Until when each lock is renewed by a request of its own: the server has refused one for several. A node of a cluster
    /// does, and any server where the user has lost the right to one of them.
    one_by_one_until: Instant,
    #[cfg(feature = "cluster")]
    absent: cluster::Absent,
    /// Renewals that a slow node has not answered yet.
    #[cfg(feature = "cluster")]
    behind: Vec<cluster::UnderWay>,
}

/// Handles the holds that are due. The thread also calls it while it waits for something else, so that no loss is
/// reported late.
struct Dispatcher {
    task: Arc<Task>,
    /// The hold that was taken off the schedule and is being handled: after a panic it is put back.
    in_hand: Option<Arc<dyn Renewable>>,
}

/// The thread's main function.
pub(crate) fn run(task: Task) {
    let task = Arc::new(task);
    let mut thread = WatchdogThread {
        dispatcher: Dispatcher {
            task: Arc::clone(&task),
            in_hand: None,
        },
        task,
        connection: None,
        answered_at: Instant::now(),
        successor: Successor::default(),
        sent: VecDeque::new(),
        retry_at: Instant::now(),
        back_off: BACK_OFF.0,
        by_text: false,
        one_by_one_until: Instant::now(),
        #[cfg(feature = "cluster")]
        absent: cluster::Absent::default(),
        #[cfg(feature = "cluster")]
        behind: Vec::new(),
    };
    loop {
        // Nothing here should panic; if something does, the holds must still be renewed.
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
    /// Sleeps, and does what is due then; `false` once stopped.
    fn round(&mut self) -> bool {
        let task = Arc::clone(&self.task);
        let early = (task.lease / 60).min(Duration::from_millis(250));
        let Some(housekeep) = task.watchdog.next(self.retry_at) else {
            return false;
        };
        self.dispatcher.dispatch(early);
        let keeps = task.watchdog.has_renewals();
        self.catch_up();
        self.renew();
        if keeps {
            task.client.look_after_connection();
        }
        if housekeep {
            let dispatcher = &mut self.dispatcher;
            if task
                .client
                .housekeep(&mut || dispatcher.dispatch(Duration::ZERO))
            {
                task.watchdog.housekeep_soon();
            }
            self.stay_logged_in();
            #[cfg(feature = "cluster")]
            if let Over::Cluster(cluster) = &task.over {
                let dispatcher = &mut self.dispatcher;
                cluster.housekeep_connections(Instant::now() + SLICE, &mut || {
                    dispatcher.dispatch(Duration::ZERO)
                });
                if cluster.retire_others() {
                    task.watchdog.housekeep_soon();
                }
            }
            self.catch_up();
            self.renew();
        }
        true
    }

    /// Replaces the connection before its login is too old. It is used until there is another.
    fn stay_logged_in(&mut self) {
        let task = Arc::clone(&self.task);
        let endpoint = match &task.over {
            Over::Server(endpoint) if self.connection.is_some() => endpoint,
            _ => return,
        };
        let dispatcher = &mut self.dispatcher;
        let until = Instant::now() + SLICE;
        let timeout = task.connect_timeout;
        let made = self
            .successor
            .advance(endpoint, "watchdog", timeout, until, &mut || {
                dispatcher.dispatch(Duration::ZERO)
            });
        if made.is_some() {
            self.connection = made;
        } else if self.successor.is_under_way() {
            task.watchdog.housekeep_soon();
        }
    }

    /// Sends the renewals that are queued by now, unless the server does not answer. What is queued meanwhile waits for the
    /// next time, so that the thread gets to its other work.
    fn renew(&mut self) {
        let batches = self.task.watchdog.renewals().div_ceil(BATCH.0);
        for _ in 0..batches {
            if Instant::now() < self.retry_at
                || !self.dispatcher.dispatch(Duration::ZERO)
                || !self.task.watchdog.has_renewals()
            {
                return;
            }
            match self.renew_batch() {
                Ok(()) => self.back_off = BACK_OFF.0,
                Err(err) => {
                    report!(Debug, "renewing: {err}");
                    let node_holds = self.task.watchdog.node_holds_to_renew();
                    for hold in self.sent.iter().chain(&node_holds) {
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

    /// Reads answers that were not waited for.
    fn catch_up(&mut self) {
        #[cfg(feature = "cluster")]
        if let Over::Cluster(cluster) = &Arc::clone(&self.task).over {
            self.catch_up_in(cluster);
        }
    }

    /// Puts unfinished holds back on the schedule, and sends nothing for a while.
    fn retry_later(&mut self) {
        self.connection = None;
        #[cfg(feature = "cluster")]
        self.behind.clear();
        let now = Instant::now();
        let pause = self.back_off.min(self.task.lease / 10);
        self.retry_at = now + pause.max(Duration::from_millis(1));
        if let Some(hold) = self.dispatcher.in_hand.take() {
            let again = hold.look_again(self.retry_at);
            self.task.watchdog.put(hold, again);
        }
        for hold in self.sent.drain(..) {
            self.task.watchdog.put(hold, now);
        }
    }

    fn renew_batch(&mut self) -> Result<(), RedisError> {
        let task = Arc::clone(&self.task);
        match &task.over {
            Over::Server(endpoint) => self.renew_at(endpoint),
            #[cfg(feature = "cluster")]
            Over::Cluster(cluster) => {
                self.renew_in_cluster(cluster);
                Ok(())
            }
        }
    }

    fn renew_at(&mut self, endpoint: &Endpoint) -> Result<(), RedisError> {
        let task = &*self.task;
        let dispatcher = &mut self.dispatcher;
        // If this connection does not answer, there must be time for another within the lease.
        let budget = task.lease / 4;
        let unused_for = self.answered_at.elapsed();
        if endpoint.is_to_be_found_again(unused_for) {
            self.connection = None;
        }
        if let Some(connection) = &self.connection
            && endpoint.follows_master_after(unused_for)
        {
            endpoint.follow_master_first(Instant::now() + budget, &mut || {
                dispatcher.dispatch(Duration::ZERO)
            });
            if connection.reader.has_ended() {
                self.connection = None;
            }
        } else {
            endpoint.follow_master();
        }
        if self.connection.is_none() {
            let deadline = Instant::now() + budget.min(task.connect_timeout);
            let made = socket::connect(endpoint, "watchdog", deadline, &mut || {
                dispatcher.dispatch(Duration::ZERO)
            });
            let made = made?;
            self.successor = Successor::of(endpoint, &made);
            self.connection = Some(made);
            self.answered_at = Instant::now();
        }
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };

        let sent_at = Instant::now();
        let most = match sent_at < self.one_by_one_until {
            true => 1,
            false => TOGETHER,
        };
        let mut batch = Batch::new(most, self.by_text);
        while !batch.is_full()
            && let Some(hold) = task.watchdog.take_renewal()
        {
            batch.push(hold.request());
            self.sent.push_back(hold);
        }
        let (bytes, mut requests) = batch.finish();
        let sent_text = std::mem::take(&mut self.by_text);
        let given_up_at = sent_at + budget.min(task.response_timeout);
        let mut dispatched_at = sent_at;
        connection.writer.write_all(&bytes)?;
        while !self.sent.is_empty() {
            if let Some(reply) = connection.reader.read(SLICE)? {
                self.answered_at = Instant::now();
                let count = requests.pop_front().unwrap_or(1);
                for reply in batch::answers(reply, count) {
                    let Some(hold) = self.sent.front() else {
                        break;
                    };
                    let settled = match reply {
                        Some(reply) => settle(task, hold, reply, sent_at),
                        None => Settled::OneByOne,
                    };
                    let hold = self.sent.pop_front();
                    match settled {
                        Settled::Done => {}
                        Settled::OneByOne => {
                            self.one_by_one_until = Instant::now() + ONE_BY_ONE;
                            if let Some(hold) = hold {
                                task.watchdog.put(hold, Instant::now());
                            }
                        }
                        Settled::Unknown => {
                            self.by_text = true;
                            if let Some(hold) = hold {
                                task.watchdog.put(hold, Instant::now());
                            }
                            if sent_text {
                                return Err(socket::timed_out("redis forgets scripts at once"));
                            }
                        }
                        // The server is a replica now: it refuses the rest of the batch as well.
                        Settled::Elsewhere(err) => return Err(err),
                    }
                }
            }
            // Whatever the server does, other holds may be due every few milliseconds.
            let now = Instant::now();
            if now >= dispatched_at + SLICE {
                dispatched_at = now;
                if !dispatcher.dispatch(Duration::ZERO) || now >= given_up_at {
                    return Err(socket::timed_out("redis did not answer a renewal in time"));
                }
            }
        }
        match connection.reader.has_unread() {
            true => Err(socket::unasked()),
            false => Ok(()),
        }
    }
}

impl Dispatcher {
    /// Handles what is due, and renewals that are due within `early`; `false` once the thread has to stop.
    fn dispatch(&mut self, early: Duration) -> bool {
        let Task {
            watchdog, client, ..
        } = &*self.task;
        let now = Instant::now();
        for _ in 0..PORTION {
            let Some((due, hold)) = watchdog.take_due(now, early) else {
                break;
            };
            let hold = self.in_hand.insert(hold);
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
                        // A renewal was confirmed just before.
                        watchdog.put(Arc::clone(hold), again);
                    }
                }
            }
        }
        self.in_hand = None;
        !watchdog.is_stopped()
    }
}

/// What a reply to a renewal leaves to be done.
enum Settled {
    Done,
    /// The server did not know the script.
    Unknown,
    /// It has to be renewed by a request of its own.
    OneByOne,
    /// The server is no master any more.
    Elsewhere(RedisError),
}

fn settle(
    task: &Task,
    hold: &Arc<dyn Renewable>,
    reply: RedisResult<Value>,
    sent_at: Instant,
) -> Settled {
    let watchdog = &task.watchdog;
    let its = Arc::clone(hold);
    let next = match reply {
        Ok(reply) => its.complete(reply, sent_at),
        Err(err) if is_unknown_script(&err) => return Settled::Unknown,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_releases_now_and_then_does_not_wake_the_thread_each_time() {
        let watchdog = Watchdog::new(None);
        let (now, never) = (Instant::now(), u64::MAX);
        assert_eq!(watchdog.state.lock().next_at(now, never), None);
        watchdog.housekeep_soon();
        let mut state = watchdog.state.lock();
        assert!(
            state
                .next_at(now, never)
                .is_some_and(|at| at <= time::nanos(Instant::now() + HOUSEKEEP_AFTER))
        );
        // It has run, and nothing is left to do.
        state.housekeep_at = None;
        let asked_at = time::instant(state.awake_until) - STAYS_AWAKE;
        for ms in [100, 500, 999] {
            let now = asked_at + Duration::from_millis(ms);
            // What is asked for now does not have to wake it.
            assert_eq!(
                state.next_at(now, never),
                Some(time::nanos(now + HOUSEKEEP_AFTER))
            );
        }
        assert_eq!(state.next_at(asked_at + STAYS_AWAKE, never), None);
    }
}
