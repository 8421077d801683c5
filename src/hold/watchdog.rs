//! The watchdog: one thread that renews all holds of a client, over connections of its own, or over the connections for
//! commands while its own cannot be made.
//!
//! The [`Watchdog`] keeps the moment at which each hold needs attention next: when its renewal is due, its fixed lease
//! ends, or its `max_hold` ends. The thread sleeps until the first of these moments and [sends](renewing) the renewals
//! that are due, in the order in which the holds would end. The thread waits for one master for about [`SLICE`] at a time,
//! to connect or to read. Between two checks of what is due it may spend such a slice on each master. So the report of a
//! loss is late by a few slices for each master at most, even while Redis is frozen.
//!
//! ```text
//!   armed ──due──► queued ──sent──► on its way ──confirmed──► armed (a third of the lease later)
//!     │              │  ▲               ├──────not found────► lost: Forced, TakenOver
//!     │              │  └───────────────┴───────no answer     (sent again after a pause)
//!     └──disarmed    └─ its validity is over before it is confirmed: lost, Unreachable
//! ```
//!
//! Each [`Renewable`] makes its request and reads the reply. [`Housekeeping`] is the other work of the thread for its
//! client.
//!
//! When a hold is armed and disarmed: rule 4 at [`Hold`].

mod renewing;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::LossReason;
use crate::hold::Hold;
use crate::hold::renewal::Renewable;
use crate::hold::schedule::Schedule;
use crate::hold::validity::Duty;
use crate::net::connection::{Housekeeper, WorkLeft};
use crate::net::nodes::Nodes;
use crate::report::report;
use crate::stats::Counters;
use crate::time;

/// The longest wait of the thread for the bytes of one connection, or for a connection to one master.
const SLICE: Duration = Duration::from_millis(5);

/// How many entries one call of `dispatch` handles at most. If more are due, renewals are sent between two calls.
const PORTION: usize = 4096;

/// Housekeeping begins this long after the first request for it, so that one run serves many requests. A run lasts no
/// longer than this. Housekeeping reads replies for which no thread waits, and drops idle entries.
const HOUSEKEEP_AFTER: Duration = Duration::from_millis(100);

/// A small part of the lease: `lease / SLACK.0`, but at most `SLACK.1`.
///
/// - Renewals that are due within the span are sent together with those that are due now.
/// - The thread waits about this long for the answers to a batch, so a slow master delays the others by about this much at
///   most.
/// - A renewal that failed is sent again after the span.
const SLACK: (u32, Duration) = (60, Duration::from_millis(500));

/// The work besides renewals that the thread does for its client.
pub(crate) trait Housekeeping: Send + Sync {
    /// `hold` is lost for this reason, unless it was over before. Notifies its listeners, the counters and the local
    /// lock.
    fn lose(&self, hold: &Arc<Hold>, reason: LossReason);

    /// A renewal of `hold` failed; the hold is still valid for `valid_for`.
    fn renewal_failed(&self, hold: &Hold, valid_for: Duration);

    /// Called when something is renewed: checks the connection over which the release will have to be sent.
    fn look_after_connection(&self);

    /// Does one step of the housekeeping, a few milliseconds long.
    fn housekeep(&self) -> WorkLeft;
}

/// The schedule of the watchdog's thread, shared with the threads that acquire and release.
pub(crate) struct Watchdog {
    state: Mutex<WatchdogState>,
    changed: Condvar,
    /// Whether [`Watchdog::housekeep_soon`] was called since the last housekeeping. Not under the mutex, since every
    /// release calls that method.
    housekeeping_asked: AtomicBool,
}

struct WatchdogState {
    schedule: Schedule<Renewable>,
    housekeep_at: Option<u64>,
    /// Whether the connection for renewals was asked for. Until then each new hold makes housekeeping run soon. The
    /// housekeeping asks for the connection only if anything is still held when it runs, because most holds of a
    /// short-lived process need no renewal.
    is_prepared: bool,
    /// Housekeeping runs this often even if no thread asks for it.
    housekeep_every: Option<Duration>,
    /// Until when the thread sleeps; zero while it is awake.
    wakes_at: u64,
    stopped: bool,
}

impl Watchdog {
    /// Housekeeping runs when it is asked for and, if `every` is given, that often.
    pub(crate) fn new(every: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WatchdogState {
                schedule: Schedule::new(),
                housekeep_at: every.map(|every| time::nanos(Instant::now() + every)),
                is_prepared: false,
                housekeep_every: every,
                wakes_at: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
            housekeeping_asked: AtomicBool::new(false),
        })
    }

    /// Schedules a hold, or places, for `due` (in [`time::nanos`]), unless the hold is over.
    pub(crate) fn arm(&self, renewal: impl Into<Renewable>, due: u64) {
        let renewal = renewal.into();
        let mut state = self.state.lock();
        // Checked with the mutex held: a thread that ends a hold changes the hold's state first and then takes this mutex
        // to disarm the hold. So either the end is seen here, or that thread removes what is added here.
        if !renewal.is_held() {
            return state.schedule.disarm(&renewal);
        }
        // The holder may have shortened the lease, and armed the hold for the earlier end, since `due` was computed.
        // Without this line, `due` would replace the earlier end, and the loss would be reported late.
        let due = renewal.look_again(due);
        state.schedule.arm(renewal, due);
        let is_prepared = state.is_prepared;
        self.wake_at(state, due);
        if !is_prepared {
            self.housekeep_soon();
        }
    }

    /// Queues `renewal`, unless it is over, and schedules it for its end.
    fn queue(&self, renewal: &Renewable, now: Instant) {
        let mut state = self.state.lock();
        match renewal.is_held() {
            // The end is read with the mutex held, as in `arm`.
            true => state.schedule.queue(renewal, renewal.ends(now)),
            false => state.schedule.disarm(renewal),
        }
    }

    /// Ends a hold and takes it off the schedule, in this order: rule 4 at [`Hold`]. `false` if it was lost before.
    pub(crate) fn end(&self, hold: &Arc<Hold>) -> bool {
        let has_ended = hold.end();
        self.disarm(hold);
        has_ended
    }

    /// Takes a hold, or places, off the schedule. The hold must be over, or the watchdog's thread may put it back: rule
    /// 4 at [`Hold`].
    pub(crate) fn disarm(&self, renewal: impl Into<Renewable>) {
        self.state.lock().schedule.disarm(&renewal.into());
    }

    /// Makes the thread run the housekeeping shortly.
    pub(crate) fn housekeep_soon(&self) {
        // Of many releases only the first takes the mutex. A thread that finds the flag set relies on the next run. `next`
        // clears the flag before that run, so the run sees all work that preceded this call.
        if !self.housekeeping_asked.swap(true, Ordering::AcqRel) {
            self.housekeep_by(Instant::now() + HOUSEKEEP_AFTER);
        }
    }

    /// Makes the thread run the housekeeping by `at`.
    pub(crate) fn housekeep_by(&self, at: Instant) {
        let at = time::nanos(at);
        let mut state = self.state.lock();
        state.housekeep_at = Some(state.housekeep_at.map_or(at, |planned| planned.min(at)));
        self.wake_at(state, at);
    }

    /// Wakes the thread if it would sleep for longer than until `at`.
    fn wake_at(&self, mut state: parking_lot::MutexGuard<'_, WatchdogState>, at: u64) {
        // `wakes_at` is zero while the thread is awake. Then it is not notified: it looks at the schedule with the mutex
        // held before it sleeps.
        if at < state.wakes_at {
            state.wakes_at = at;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// How many holds are armed; a hold that several nodes keep counts once.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().schedule.len()
    }

    /// The hold whose renewal has been unconfirmed for the largest part of its lease, and for how long. A renewal that is not
    /// due yet does not count.
    pub(crate) fn unconfirmed(&self) -> Option<(Arc<Hold>, Duration)> {
        let all = self.state.lock().schedule.all();
        let now = Instant::now();
        let holds = all.into_iter().filter_map(|renewal| match renewal {
            Renewable::Hold(hold) => {
                let (span, lease) =
                    hold.with_lease(|lease| (lease.unconfirmed_for(now), lease.ttl()));
                Some((span?.as_secs_f64() / lease.as_secs_f64(), span?, hold))
            }
            Renewable::Places(_) => None,
        });
        let (_, span, hold) =
            holds.max_by(|(fraction, ..), (other, ..)| fraction.total_cmp(other))?;
        Some((hold, span))
    }

    /// Makes the thread end.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Takes everything off the schedule, and returns the holds.
    pub(crate) fn take_all(&self) -> Vec<Arc<Hold>> {
        let all = self.state.lock().schedule.take_all();
        let holds = all.into_iter().filter_map(|renewal| match renewal {
            Renewable::Hold(hold) => Some(hold),
            Renewable::Places(_) => None,
        });
        holds.collect()
    }

    /// Sleeps until there is something to do; `true` if housekeeping is due, `None` once stopped.
    fn next(&self) -> Option<bool> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = time::nanos(Instant::now());
            match state.next_at() {
                Some(at) if at <= now => {
                    let housekeep = state.housekeep_at.is_some_and(|at| at <= now);
                    if housekeep {
                        let every = state.housekeep_every;
                        state.housekeep_at = every.map(|every| time::nanos(Instant::now() + every));
                        // Cleared before the run, not after it: work that is queued during the run asks for another.
                        self.housekeeping_asked.store(false, Ordering::Release);
                    }
                    state.wakes_at = 0;
                    return Some(housekeep);
                }
                Some(at) => {
                    // If an earlier moment is armed during the wait, `wake_at` compares it with this one and ends the
                    // wait.
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

    /// Takes the entry that is due first, with the moment at which it is due. Renewals due within `early` count as due,
    /// so that holds acquired shortly after one another are renewed together.
    fn take_due(&self, now: Instant, early: Duration) -> Option<(Instant, Renewable)> {
        let mut state = self.state.lock();
        let (due, first) = state.schedule.first_due()?;
        let soon = || due <= time::nanos(now + early) && first.may_be_early(now);
        // Only renewals may be early: a loss reported early would be false.
        if due > time::nanos(now) && !soon() {
            return None;
        }
        Some((time::instant(due), state.schedule.take_due()?))
    }

    /// Whether anything is scheduled, so that the connection for renewals is needed. If so, holds that are armed from now
    /// on do not ask for housekeeping.
    fn record_prepared(&self) -> bool {
        let mut state = self.state.lock();
        let holds = state.schedule.first_due().is_some();
        state.is_prepared |= holds;
        holds
    }

    /// How many renewals are queued.
    fn queued(&self) -> usize {
        self.state.lock().schedule.queued()
    }
}

impl Housekeeper for Watchdog {
    fn housekeep_soon(&self) {
        Self::housekeep_soon(self);
    }

    fn housekeep_now(&self) {
        self.housekeep_by(Instant::now());
    }
}

impl WatchdogState {
    /// When the thread has work next, if ever. Queued renewals are due at once.
    fn next_at(&self) -> Option<u64> {
        let due = self.schedule.first_due().map(|(due, _)| due);
        let queued = (self.schedule.queued() > 0).then_some(0);
        let moments = [due, queued, self.housekeep_at];
        moments.into_iter().flatten().min()
    }
}

/// The environment with which the thread is started.
pub(crate) struct Task {
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) client: Arc<dyn Housekeeping>,
    pub(crate) counters: Arc<Counters>,
    /// The connections for renewals.
    pub(crate) nodes: Arc<Nodes>,
    /// The connections for commands, over which renewals go while their own cannot be made.
    pub(crate) commands: Arc<Nodes>,
    pub(crate) lease: Duration,
}

/// The state of the thread.
struct WatchdogThread {
    task: Arc<Task>,
    /// The entry that was taken off the schedule and is being handled; after a panic it is put back.
    in_hand: Option<Renewable>,
    /// Renewals that were sent and not answered yet.
    under_way: renewing::UnderWay,
    /// The masters to which no connection for renewals could be made in this round. Further renewals for them do not wait
    /// for a connection again. `None` stands for slots that no master serves.
    away: Vec<Option<usize>>,
}

/// The thread's main function.
pub(crate) fn run(task: Task) {
    let task = Arc::new(task);
    let mut thread = WatchdogThread {
        task: Arc::clone(&task),
        in_hand: None,
        under_way: renewing::UnderWay::default(),
        away: Vec::new(),
    };
    loop {
        // A panic here would be a bug, but the holds must be renewed all the same.
        match std::panic::catch_unwind(AssertUnwindSafe(|| thread.round())) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                // The entry in hand may be neither on the schedule nor in `under_way`, and would never be renewed again.
                // Renewals that `batch` had taken but not sent stay armed for their ends, so a loss of their holds is
                // reported.
                if let Some(renewal) = thread.in_hand.take() {
                    task.watchdog
                        .arm(renewal, time::nanos(Instant::now() + SLICE));
                }
                task.watchdog.housekeep_soon();
                report!(
                    Error,
                    "the watchdog panicked, and continues; please report this"
                );
            }
        }
    }
    task.nodes.close();
}

impl WatchdogThread {
    /// Sleeps until something is due, and does it; `false` once stopped.
    fn round(&mut self) -> bool {
        let task = Arc::clone(&self.task);
        let Some(housekeep) = task.watchdog.next() else {
            return false;
        };
        self.dispatch(task.little());
        let has_renewals = task.watchdog.queued() > 0;
        self.renew();
        if has_renewals {
            task.client.look_after_connection();
        }
        if housekeep {
            // A hold that has lasted until now may need a renewal, for which the connection is made early.
            if task.watchdog.record_prepared() {
                task.nodes.keep_up_with(&task.commands);
            }
            let ends = Instant::now() + HOUSEKEEP_AFTER;
            let work_left = loop {
                let work_left = task.client.housekeep().max(task.nodes.housekeep());
                // A backlog of housekeeping must delay neither a renewal nor the report of a loss.
                if work_left != WorkLeft::More
                    || !self.dispatch(Duration::ZERO)
                    || Instant::now() >= ends
                {
                    break work_left;
                }
            };
            match work_left {
                WorkLeft::Nothing => {}
                WorkLeft::Later => task.watchdog.housekeep_soon(),
                WorkLeft::Soon => task.watchdog.housekeep_by(Instant::now() + 2 * SLICE),
                WorkLeft::More => task.watchdog.housekeep_now(),
            }
            self.renew();
        }
        true
    }

    /// Handles the entries that are due, and renewals that are due within `early`; `false` once the thread has to stop.
    /// Also called while the thread waits for something else, so that no loss is reported late.
    fn dispatch(&mut self, early: Duration) -> bool {
        let Task { watchdog, .. } = &*self.task;
        let now = Instant::now();
        for _ in 0..PORTION {
            let Some((due, renewal)) = watchdog.take_due(now, early) else {
                break;
            };
            // Off the schedule from here until `arm` or `queue`. A thread that ends the hold in between finds nothing to
            // disarm; then `arm` or `queue` finds that the hold is over.
            let renewal = self.in_hand.insert(renewal);
            match renewal.attend(now) {
                // The entry needs the watchdog no longer, so it stays off the schedule.
                Duty::Nothing => {}
                Duty::Wait(until) => watchdog.arm(renewal.clone(), until),
                Duty::Renew => {
                    // Measured from when the renewal was due, so that a delay of this thread by the system counts as
                    // well.
                    let late = now.saturating_duration_since(due).as_micros();
                    let late = u64::try_from(late).unwrap_or(u64::MAX);
                    self.task.counters.renewal_lateness_max_us.max(late);
                    self.task.counters.lateness.add(late, now);
                    watchdog.queue(renewal, now);
                }
                Duty::Lose(reason) => self.task.lose(renewal, reason),
            }
        }
        self.in_hand = None;
        !watchdog.state.lock().stopped
    }
}

impl Task {
    /// See [`SLACK`].
    fn little(&self) -> Duration {
        (self.lease / SLACK.0).min(SLACK.1)
    }

    /// Reports the loss of a hold, unless a renewal has just been confirmed.
    fn lose(&self, renewal: &Renewable, reason: LossReason) {
        if let Renewable::Hold(hold) = renewal {
            self.client.lose(hold, reason);
            // If the hold is not lost after all, a renewal was confirmed in between, by the holder or by a thread that
            // read a part's answer. Then the entry goes back on the schedule.
            if hold.is_held() {
                self.watchdog.arm(hold, hold.due_after(Instant::now()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::hold::Registry;
    use crate::hold::entry::EntryKey;
    use crate::local::lock::{LeasePolicy, Mode};
    use crate::protocol::fenced;
    use crate::protocol::owner::Owners;

    #[test]
    fn a_hold_is_armed_for_its_end_even_if_it_was_due_later() {
        let (second, owners) = (Duration::from_secs(1), Arc::new(Owners::new()));
        let registry = Registry::new("".into(), false, second, second, &owners);
        let key = EntryKey {
            kind: &fenced::KIND,
            id: "name".into(),
        };
        let entry = registry.get(&key).expect("a good name");
        let policy = LeasePolicy::Renewed { max_hold: None };
        let hold = Hold::new(entry, Mode::Exclusive, owners.draw(), policy, 30 * second);
        let (hold, now) = (Arc::new(hold), Instant::now());
        hold.grant(now);
        // Computed by one thread, which comes to arm the hold only after another has shortened the lease.
        let due = hold.due_after(now);
        hold.change(|lease| lease.announce_fixed(now, second));
        let ends = time::nanos(hold.valid_until());
        assert!(ends < due);
        let watchdog = Watchdog::new(None);
        watchdog.arm(&hold, due);
        let first = |state: &WatchdogState| state.schedule.first_due().map(|(due, _)| due);
        assert_eq!(first(&watchdog.state.lock()), Some(ends));
    }
}
