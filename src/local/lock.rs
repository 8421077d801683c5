//! One lock inside this process: who asks Redis, who holds, who waits.
//!
//! A state machine without I/O and without a clock of its own: every method takes `now` and returns what to do next. At
//! most one thread, the *contender*, asks Redis; the others wait in the queue and cost the server nothing.
//!
//! ```text
//!              enter (nobody here)            granted
//!      FREE ─────────────────────► CONTENDING ───────► HELD ──┐ enter by the holder: count + 1
//!        ▲                          │    ▲  │            │ ▲ ◄┘ leave, count > 1: count - 1
//!        │   withdraw, nobody waits │    │  │ withdraw:  │ │
//!        ├──────────────────────────┘    │  │ next in    │ │ leave, next wants the same, the tenure is young and
//!        │                               │  └─queue      │ └─the hold has validity to spare: the hold changes threads
//!        │   leave or lost, nobody waits │               │
//!        ├───────────────────────────────┼───────────────┤
//!        │                               └───────────────┘
//!                                   leave or lost: the next in the queue contends
//! ```
//!
//! A *tenure* is the time for which this process hands the lock over among its threads. Short gaps without a holder do
//! not end it. After it, the next contender first checks whether other processes were notified of the release
//! ([`Start::YieldAfter`]), and lets them go first if so. Otherwise this process would win again and again.
//!
//! **Shared holds.** The readers of a process share one hold. A reader that comes while nobody waits joins it, and with
//! the grant to a reader all readers in front of the first queued writer join. A thread that holds exclusively may take a
//! shared hold as well, and keep it when it releases the exclusive one. A reader that cannot join, because its lease
//! differs or no more readers may join, gets a hold of its own.
//!
//! **Queue in Redis.** For a fair lock Redis keeps the queue ([`Order::Server`]), and every thread is a contender. The lock
//! is handed over to a thread that is known to be the next in that queue, and to nobody else: see
//! [`run`](crate::local::run).

use std::time::{Duration, Instant};

use crate::local::cohort::Cohort;
use crate::local::preference::Prefer;
use crate::local::queue::WaitQueue;
use crate::local::run::{Ahead, Run, Then};
use crate::time::Moment;

/// How the lease of a hold behaves. A hold is handed over only to a thread that wants the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeasePolicy {
    /// Renewed by the watchdog until released, at most until `max_hold` after it was granted.
    Renewed { max_hold: Option<Duration> },
    /// Not renewed.
    Fixed(Duration),
}

impl LeasePolicy {
    /// Whether a hold with this lease may be handed over to a thread that wants the same. Not with a `max_hold`, which
    /// would have to begin again for the new thread.
    fn passable(self) -> bool {
        !matches!(self, Self::Renewed { max_hold: Some(_) })
    }

    /// Whether it may be shared with a thread that wants the same. Not a fixed lease: locking again changes it, which must
    /// not affect other threads.
    fn shareable(self) -> bool {
        self == Self::Renewed { max_hold: None }
    }
}

/// A [`LeasePolicy`] in eight bytes, for what is kept once for each lock: twice the nanoseconds, plus one if they are a
/// fixed lease; zero for a renewed one without `max_hold`. Longer spans count as 292 years.
#[derive(Debug, Clone, Copy)]
struct PackedPolicy(u64);

impl From<LeasePolicy> for PackedPolicy {
    fn from(policy: LeasePolicy) -> Self {
        let (span, fixed) = match policy {
            LeasePolicy::Renewed { max_hold: None } => return Self(0),
            // Zero would mean that there is none.
            LeasePolicy::Renewed {
                max_hold: Some(max),
            } => (max.max(Duration::from_nanos(1)), 0),
            LeasePolicy::Fixed(lease) => (lease, 1),
        };
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(nanos.min(u64::MAX >> 1) << 1 | fixed)
    }
}

impl From<PackedPolicy> for LeasePolicy {
    fn from(PackedPolicy(packed): PackedPolicy) -> Self {
        let span = Duration::from_nanos(packed >> 1);
        match packed {
            0 => Self::Renewed { max_hold: None },
            _ if packed & 1 == 1 => Self::Fixed(span),
            _ => Self::Renewed {
                max_hold: Some(span),
            },
        }
    }
}

/// Whether a hold excludes everybody else, or only exclusive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// Who keeps the queue of waiting threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Local,
    Server,
}

/// How long a hold is valid, which decides whether it may be handed over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) until: Moment,
    pub(crate) lease: Duration,
    /// Whether there is a token for the next thread, if the lock has tokens.
    pub(crate) complete: bool,
}

impl Validity {
    /// Whether the hold may be handed over: there is a token for another thread, and validity to spare.
    fn may_pass(self, lease: LeasePolicy, now: impl Into<Moment>) -> bool {
        self.complete && self.to_spare(lease, now)
    }

    /// Whether enough of the lease is left for another thread: a half if it is renewed, nine tenths if not.
    fn to_spare(self, lease: LeasePolicy, now: impl Into<Moment>) -> bool {
        let needed = match lease {
            LeasePolicy::Renewed { .. } => self.lease / 2,
            LeasePolicy::Fixed(lease) => lease - lease / 10,
        };
        Duration::from_nanos(self.until.nanos_since(now.into())) >= needed
    }
}

/// What the local lock has to know of a hold.
pub(crate) trait Holding: Clone + PartialEq {
    fn validity(&self) -> Validity;
}

/// The thread that holds the lock exclusively.
#[derive(Debug, Clone)]
struct Holder<H> {
    hold: H,
    thread: u64,
    count: u32,
    lease: PackedPolicy,
}

/// The threads that share a hold.
#[derive(Debug, Clone)]
struct SharedHolders<H> {
    hold: H,
    lease: LeasePolicy,
    /// Whether more threads may join.
    open: bool,
    /// Each with its count.
    threads: Vec<(u64, u32)>,
}

impl<H> SharedHolders<H> {
    fn index_of(&self, thread: u64) -> Option<usize> {
        self.threads.iter().position(|(other, _)| *other == thread)
    }
}

/// A thread in the queue. `W` is how to reach it.
#[derive(Debug, Clone)]
struct Waiting<W> {
    thread: u64,
    mode: Mode,
    lease: LeasePolicy,
    waiter: W,
}

/// A contender that parks in its place in the queue that Redis keeps.
#[derive(Debug, Clone)]
pub(crate) struct Parked<W> {
    pub(crate) thread: u64,
    pub(crate) lease: LeasePolicy,
    pub(crate) waiter: W,
}

/// How a contender has to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start<R> {
    /// Ask at once.
    Ask,
    /// The tenure is over: let other processes go first, if this release notified any.
    YieldAfter(R),
}

/// What a thread that wants the lock gets.
#[derive(Debug)]
pub(crate) enum Entered<H, R> {
    /// It is a contender now; `under` is its exclusive hold, if it takes a shared one as well.
    Contend { start: Start<R>, under: Option<H> },
    /// It shares this hold now.
    Joined(H),
    /// It is queued under this ticket.
    Queued(u64),
    /// It holds the lock already; nothing has changed yet.
    Mine {
        hold: H,
        count: u32,
        lease: LeasePolicy,
    },
    /// Another thread is ahead, and this one does not want to wait.
    Busy,
    /// It would wait for itself: it shares this hold and wants an exclusive one.
    Deadlock(H),
}

/// Queued threads whose turn it is; the caller has to wake them.
#[derive(Debug)]
#[must_use = "these threads have to be woken"]
pub(crate) struct Wakeups<W, H> {
    /// They share this hold now.
    pub(crate) joined: Vec<(W, H)>,
    /// It contends now.
    pub(crate) contend: Option<W>,
}

/// What becomes of a hold when a thread releases it.
#[derive(Debug)]
pub(crate) enum Left<W, H> {
    /// The thread has `count` holds left.
    Nested { count: u32 },
    /// Other threads still share it.
    Shared,
    /// It was handed over to the thread of this waiter, which has to be woken.
    Passed { waiter: W, hold: H },
    /// It has to be released in Redis, and the threads whose turn it is have to be woken.
    Release { next: Wakeups<W, H> },
    /// The thread no longer had it.
    Gone,
}

/// One lock inside this process. `W` reaches a waiting thread, `H` is a hold, `R` a release under way, `X` what else is
/// kept once more than one thread at a time wanted it.
#[derive(Debug, Clone)]
pub(crate) struct LocalLock<W, H, R, X = ()> {
    order: Order,
    exclusive: Option<Holder<H>>,
    /// How many threads of this process ask Redis for an exclusive hold, and for a shared one.
    asking_exclusive: u32,
    asking_shared: u32,
    cohort: Cohort<R>,
    /// Made when the first of them comes: most locks are held by one thread after another, and nobody waits.
    crowd: Option<Box<Crowd<W, H, X>>>,
}

/// Those that share the lock, and those that wait for it.
#[derive(Debug, Clone)]
struct Crowd<W, H, X> {
    shared: Vec<SharedHolders<H>>,
    queue: WaitQueue<Waiting<W>>,
    more: X,
    /// Those with places in the queue that Redis keeps, if it keeps one.
    run: Option<Box<Run<Parked<W>>>>,
}

impl<W, H, X: Default> Default for Crowd<W, H, X> {
    fn default() -> Self {
        Self {
            shared: Vec::new(),
            queue: WaitQueue::new(),
            more: X::default(),
            run: None,
        }
    }
}

fn waiters<W>(parked: Vec<Parked<W>>) -> Vec<W> {
    parked.into_iter().map(|parked| parked.waiter).collect()
}

/// What has to be said besides when a hold is over, where Redis keeps the queue.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// The places of those who were served in memory.
    pub(crate) places: Vec<u64>,
    /// The next is a thread of this process, and asks at once.
    pub(crate) next_asks: bool,
}

#[cfg(test)]
impl<W: Clone, H: Holding, R> LocalLock<W, H, R> {
    pub(crate) fn new(order: Order, tenure: Duration) -> Self {
        Self::with_more(order, tenure)
    }
}

impl<W: Clone, H: Holding, R, X: Default> LocalLock<W, H, R, X> {
    /// One with which something else is kept.
    pub(crate) fn with_more(order: Order, tenure: Duration) -> Self {
        Self {
            order,
            exclusive: None,
            asking_exclusive: 0,
            asking_shared: 0,
            cohort: Cohort::new(tenure),
            crowd: None,
        }
    }

    pub(crate) fn tenure(&self) -> Duration {
        self.cohort.tenure()
    }

    /// What else is kept, if anything is yet.
    pub(crate) fn more(&self) -> Option<&X> {
        self.crowd.as_ref().map(|crowd| &crowd.more)
    }

    pub(crate) fn more_if_any(&mut self) -> Option<&mut X> {
        self.crowd.as_mut().map(|crowd| &mut crowd.more)
    }

    pub(crate) fn more_mut(&mut self) -> &mut X {
        &mut self.crowd().more
    }

    fn crowd(&mut self) -> &mut Crowd<W, H, X> {
        self.crowd.get_or_insert_default()
    }

    fn shared(&self) -> &[SharedHolders<H>] {
        self.crowd.as_ref().map_or(&[], |crowd| &crowd.shared)
    }

    fn shared_mut(&mut self) -> &mut [SharedHolders<H>] {
        self.crowd
            .as_mut()
            .map_or(&mut [], |crowd| &mut crowd.shared)
    }

    fn queue(&self) -> impl Iterator<Item = &Waiting<W>> {
        self.crowd.iter().flat_map(|crowd| crowd.queue.iter())
    }

    fn first_in_queue(&self) -> Option<&Waiting<W>> {
        self.crowd.as_ref()?.queue.front()
    }

    fn take_first_in_queue(&mut self) -> Option<Waiting<W>> {
        self.crowd.as_mut()?.queue.pop()
    }

    /// A thread wants the lock; `queue` makes its waiter if it is willing to wait. If it prefers writers, it does not ask
    /// beside a reader that asks already: that one may be yielding to a writer of another process. If it prefers all readers,
    /// it does not wait for writers of this process that only ask or wait.
    pub(crate) fn enter(
        &mut self,
        thread: u64,
        mode: Mode,
        lease: LeasePolicy,
        now: Instant,
        queue: Option<&dyn Fn() -> W>,
        prefer: Prefer,
    ) -> Entered<H, R> {
        if let Some(has) = self.has_already(thread, mode) {
            return has;
        }
        if self.order == Order::Server {
            *self.asking(mode) += 1;
            return Entered::Contend {
                start: Start::Ask,
                under: None,
            };
        }
        let contends = match mode {
            Mode::Exclusive => self.is_free(),
            Mode::Shared => {
                let writes = |waiting: &Waiting<W>| waiting.mode == Mode::Exclusive;
                let beside = queue.is_none() || prefer != Prefer::Writers;
                let passes = prefer == Prefer::AllReaders;
                let admitted = self.exclusive.is_none()
                    && (passes || self.asking_exclusive == 0 && !self.queue().any(writes))
                    && (beside || self.first_in_queue().is_none());
                if admitted && let Some(group) = self.joinable(lease, now) {
                    group.threads.push((thread, 1));
                    return Entered::Joined(group.hold.clone());
                }
                // Several readers may ask at the same time if they would not wait for one another.
                admitted && (self.asking_shared == 0 || beside)
            }
        };
        if contends {
            *self.asking(mode) += 1;
            return Entered::Contend {
                start: self.start(now),
                under: None,
            };
        }
        match queue {
            None => Entered::Busy,
            Some(waiter) => Entered::Queued(self.crowd().queue.push(Waiting {
                thread,
                mode,
                lease,
                waiter: waiter(),
            })),
        }
    }

    /// What a thread gets that holds the lock already.
    fn has_already(&mut self, thread: u64, mode: Mode) -> Option<Entered<H, R>> {
        let alone = self
            .exclusive
            .as_ref()
            .filter(|holder| holder.thread == thread);
        let shares = self
            .shared()
            .iter()
            .find_map(|group| group.index_of(thread).map(|index| (group, index)));
        match (mode, alone, shares) {
            (Mode::Exclusive, Some(holder), _) => Some(Entered::Mine {
                hold: holder.hold.clone(),
                count: holder.count,
                lease: holder.lease.into(),
            }),
            (Mode::Exclusive, None, Some((group, _))) => {
                Some(Entered::Deadlock(group.hold.clone()))
            }
            (Mode::Shared, _, Some((group, index))) => Some(Entered::Mine {
                hold: group.hold.clone(),
                count: group.threads[index].1,
                lease: group.lease,
            }),
            (Mode::Shared, Some(holder), None) => {
                let under = Some(holder.hold.clone());
                self.asking_shared += 1;
                Some(Entered::Contend {
                    start: Start::Ask,
                    under,
                })
            }
            (_, None, None) => None,
        }
    }

    fn asking(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Exclusive => &mut self.asking_exclusive,
            Mode::Shared => &mut self.asking_shared,
        }
    }

    /// A shared hold that one more thread may have.
    fn joinable(&mut self, lease: LeasePolicy, now: Instant) -> Option<&mut SharedHolders<H>> {
        self.shared_mut().iter_mut().find(|group| {
            group.open
                && group.lease == lease
                && lease.shareable()
                && group.hold.validity().to_spare(lease, now)
        })
    }

    /// How the thread that becomes a contender now has to start.
    pub(crate) fn start(&mut self, now: Instant) -> Start<R> {
        self.cohort
            .yield_after(now)
            .map_or(Start::Ask, Start::YieldAfter)
    }

    /// The last release of this process, as long as it matters.
    pub(crate) fn last_release(&self) -> Option<&R> {
        self.cohort.last_release()
    }

    /// Whether the last release is known to have notified nobody.
    pub(crate) fn was_alone(&mut self, alone: bool) {
        self.cohort.was_alone(alone);
    }

    /// The contender found the lock held by another process, so the tenure is over.
    pub(crate) fn refused(&mut self) {
        // Where Redis keeps the queue, it may well be another thread of this process that has the lock.
        if self.order == Order::Local {
            self.cohort.end();
        }
    }

    /// A contender was granted the lock by Redis.
    pub(crate) fn granted(
        &mut self,
        thread: u64,
        mode: Mode,
        hold: H,
        lease: LeasePolicy,
        now: Instant,
    ) -> Wakeups<W, H> {
        self.asked(mode);
        match mode {
            Mode::Exclusive => {
                match self.order {
                    Order::Local => self.cohort.granted(now),
                    // Each grant by Redis is another turn, which counts from the first hand-over: until then nobody else
                    // could have had the lock.
                    Order::Server => self.cohort.end(),
                }
                self.exclusive = Some(Holder {
                    hold,
                    thread,
                    count: 1,
                    lease: lease.into(),
                });
            }
            Mode::Shared => {
                let shared = &mut self.crowd().shared;
                if shared.capacity() == 0 {
                    // Most have one group.
                    shared.reserve_exact(1);
                }
                shared.push(SharedHolders {
                    hold,
                    lease,
                    open: true,
                    threads: vec![(thread, 1)],
                });
            }
        }
        self.take_next(now)
    }

    fn asked(&mut self, mode: Mode) {
        let asking = self.asking(mode);
        debug_assert!(*asking > 0);
        *asking = asking.saturating_sub(1);
    }

    /// The holding thread takes one more hold, possibly with another lease; `false` if it does not hold any more.
    pub(crate) fn reenter(&mut self, thread: u64, hold: &H, lease: LeasePolicy) -> bool {
        if let Some(holder) = &mut self.exclusive
            && holder.thread == thread
            && holder.hold == *hold
        {
            holder.count += 1;
            holder.lease = lease.into();
            return true;
        }
        for group in self.shared_mut() {
            if group.hold == *hold
                && let Some(index) = group.index_of(thread)
            {
                group.threads[index].1 += 1;
                group.lease = lease;
                return true;
            }
        }
        false
    }

    /// The hold of this thread, and how many times it has it.
    pub(crate) fn count(&self, thread: u64, mode: Mode) -> Option<(&H, u32)> {
        match mode {
            Mode::Exclusive => self
                .exclusive
                .as_ref()
                .filter(|holder| holder.thread == thread)
                .map(|holder| (&holder.hold, holder.count)),
            Mode::Shared => self.shared().iter().find_map(|group| {
                let index = group.index_of(thread)?;
                Some((&group.hold, group.threads[index].1))
            }),
        }
    }

    /// All holds of this process.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &H> {
        let exclusive = self.exclusive.iter().map(|holder| &holder.hold);
        exclusive.chain(self.shared().iter().map(|group| &group.hold))
    }

    /// No more threads may join the shared holds: a writer of another process waits.
    pub(crate) fn close_shared(&mut self) {
        for group in self.shared_mut() {
            group.open = false;
        }
    }

    /// A thread with a place in Redis's queue parks; `ahead` if the place is new. It asked after so many
    /// [`releases`](Self::releases). Returns also who has to ask, because it listens.
    pub(crate) fn park(
        &mut self,
        place: u64,
        ahead: Option<Ahead>,
        asked_after: u64,
        may_wait_here: bool,
        parked: Parked<W>,
    ) -> (Then, Vec<W>) {
        let is_held = self.exclusive.is_some();
        let run = self.crowd().run.get_or_insert_default();
        let then = run.park(place, ahead, asked_after, is_held, may_wait_here, parked);
        let stranded = match then {
            Then::Listens => run.stranded_behind(place),
            Then::WaitsHere | Then::AsksAgain => Vec::new(),
        };
        (then, waiters(stranded))
    }

    /// How often this process has released it, where Redis keeps the queue.
    pub(crate) fn releases(&self) -> u64 {
        self.run().map_or(0, Run::releases)
    }

    fn run(&self) -> Option<&Run<Parked<W>>> {
        self.crowd.as_ref()?.run.as_deref()
    }

    fn run_mut(&mut self) -> Option<&mut Run<Parked<W>>> {
        self.crowd.as_mut()?.run.as_deref_mut()
    }

    /// It asks Redis again.
    pub(crate) fn asks(&mut self, place: u64) {
        if let Some(run) = self.run_mut() {
            run.asks(place);
        }
    }

    /// Its place was lost. Returns who has to ask.
    pub(crate) fn place_lost(&mut self) -> Vec<W> {
        let stranded = self.run_mut().map(Run::place_lost);
        waiters(stranded.unwrap_or_default())
    }

    /// It has given up its place, and still counts as asking. Returns who has to ask.
    pub(crate) fn left_place(&mut self, place: u64) -> Vec<W> {
        let is_alone = self.asking_exclusive == 1;
        if is_alone && self.run().is_none() {
            return Vec::new();
        }
        let run = self.crowd().run.get_or_insert_default();
        let ask = run.leave(place);
        if is_alone {
            run.forget_left();
        }
        waiters(ask)
    }

    /// The thread with this place, if it had one, was granted the lock by Redis.
    pub(crate) fn granted_place(&mut self, place: Option<u64>) {
        if let Some(run) = self.run_mut() {
            run.granted(place);
        }
    }

    /// The thread with this place was refused.
    pub(crate) fn refused_place(&mut self, place: u64) {
        if let Some(run) = self.run_mut() {
            run.refused(place);
        }
    }

    /// A hold that was handed over was lost before its thread woke: that thread asks Redis after all.
    pub(crate) fn contends_again(&mut self, mode: Mode, place: u64) {
        *self.asking(mode) += 1;
        if let Some(run) = self.run_mut() {
            run.is_not_served(place);
        }
    }

    /// Whether the thread with this place was served in memory, and its place is still to be removed.
    pub(crate) fn is_served(&self, place: u64) -> bool {
        self.run().is_some_and(|run| run.is_served(place))
    }

    /// The places of those who were served in memory, for the next request to remove.
    pub(crate) fn begin_removal(&mut self) -> Vec<u64> {
        self.run_mut().map(Run::begin_removal).unwrap_or_default()
    }

    /// That request was answered, or has to be sent again.
    pub(crate) fn end_removal(&mut self, places: &[u64], answered: bool) {
        if let Some(run) = self.run_mut() {
            run.end_removal(places, answered);
        }
    }

    /// Whether somebody has to [clear](Self::clear_served) what was served soon, and nobody is to yet.
    pub(crate) fn asks_for_clearing(&mut self) -> bool {
        self.run_mut().is_some_and(Run::asks_for_clearing)
    }

    /// The places of those who were served in memory, for a request of their own, although the lock may still be held: it
    /// may have been lost without anybody here knowing.
    pub(crate) fn clear_served(&mut self) -> Served {
        Served {
            places: self.run_mut().map(Run::clear_served).unwrap_or_default(),
            next_asks: false,
        }
    }

    fn holder(&mut self, thread: u64, hold: &H) -> Option<&mut Holder<H>> {
        let holder = self.exclusive.as_mut();
        holder.filter(|holder| holder.thread == thread && holder.hold == *hold)
    }

    /// A thread releases the lock, and the next in the queue has it now: if it wants the same, the tenure is young and the
    /// hold has validity to spare. Otherwise nothing has changed.
    pub(crate) fn pass(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        validity: impl FnOnce() -> Option<Validity>,
    ) -> Option<W> {
        if self.first_in_queue().is_none() || !self.shared().is_empty() {
            return None;
        }
        let now = Moment::from(now);
        let is_young = self.cohort.is_young(now);
        let holder = self.holder(thread, hold)?;
        let lease = LeasePolicy::from(holder.lease);
        let may = is_young && holder.count == 1 && lease.passable();
        let validity = may.then(validity).flatten()?;
        if !validity.may_pass(lease, now) {
            return None;
        }
        let same = |next: &Waiting<W>| next.mode == Mode::Exclusive && next.lease == lease;
        let next = self.crowd.as_mut()?.queue.pop_if(same)?;
        self.exclusive.as_mut()?.thread = next.thread;
        Some(next.waiter)
    }

    /// A thread releases the lock once. `release` is called if that results in [`Left::Release`], before anybody is woken.
    pub(crate) fn leave(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        release: &dyn Fn(&Served) -> R,
    ) -> Left<W, H> {
        if let Some(waiter) = self.pass(thread, hold, now, || Some(hold.validity())) {
            let hold = hold.clone();
            return Left::Passed { waiter, hold };
        }
        let Some(holder) = self.holder(thread, hold) else {
            return self.leave_shared(thread, hold, now, release);
        };
        if holder.count > 1 {
            holder.count -= 1;
            return Left::Nested {
                count: holder.count,
            };
        }
        let lease = holder.lease.into();
        if self.order == Order::Server {
            let lasts = hold.validity().may_pass(lease, now);
            return self.leave_in_turn(lease, lasts, now, release);
        }
        self.exclusive = None;
        let release = release(&Served::default());
        self.cohort.released(release, now);
        Left::Release {
            next: self.take_next(now),
        }
    }

    /// The holder releases it where Redis keeps the queue.
    fn leave_in_turn(
        &mut self,
        lease: LeasePolicy,
        lasts: bool,
        now: Instant,
        release: &dyn Fn(&Served) -> R,
    ) -> Left<W, H> {
        self.cohort.granted(now);
        let may_pass = lasts && lease.shareable() && self.cohort.is_young(now);
        if may_pass
            && let Some(run) = self.crowd.as_mut().and_then(|crowd| crowd.run.as_mut())
            && let Some(holder) = &mut self.exclusive
            && let Some(next) = run.pass(|next| next.lease == lease)
        {
            holder.thread = next.thread;
            let hold = holder.hold.clone();
            self.asked(Mode::Exclusive);
            let waiter = next.waiter;
            return Left::Passed { waiter, hold };
        }
        self.exclusive = None;
        let (next, served) = self.ended_in_turn();
        release(&served);
        Left::Release { next }
    }

    /// The hold is over where Redis keeps the queue.
    fn ended_in_turn(&mut self) -> (Wakeups<W, H>, Served) {
        let (mut contend, mut served) = (None, Served::default());
        if let Some(run) = self.run_mut() {
            contend = run.ended().map(|next| next.waiter);
            served.places = run.take_served();
            served.next_asks = contend.is_some();
        }
        let joined = Vec::new();
        (Wakeups { joined, contend }, served)
    }

    fn leave_shared(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        release: &dyn Fn(&Served) -> R,
    ) -> Left<W, H> {
        let Some(crowd) = &mut self.crowd else {
            return Left::Gone;
        };
        let Some((at, index)) = crowd
            .shared
            .iter()
            .enumerate()
            .filter(|(_, group)| group.hold == *hold)
            .find_map(|(at, group)| group.index_of(thread).map(|index| (at, index)))
        else {
            return Left::Gone;
        };
        let group = &mut crowd.shared[at];
        let count = &mut group.threads[index].1;
        if *count > 1 {
            *count -= 1;
            return Left::Nested { count: *count };
        }
        group.threads.swap_remove(index);
        if !group.threads.is_empty() {
            return Left::Shared;
        }
        crowd.shared.swap_remove(at);
        let release = release(&Served::default());
        // A tenure that a writer has started goes on while threads of this process read.
        if self.order == Order::Local && self.cohort.has_started() && self.exclusive.is_none() {
            self.cohort.released(release, now);
        }
        Left::Release {
            next: self.take_next(now),
        }
    }

    /// The hold is lost, even if its threads do not know yet. The places of those that it served have to be removed before
    /// anybody is woken.
    pub(crate) fn lost(&mut self, hold: &H, now: Instant) -> (Wakeups<W, H>, Served) {
        if self
            .exclusive
            .as_ref()
            .is_some_and(|holder| holder.hold == *hold)
        {
            self.exclusive = None;
            self.cohort.end();
            if self.order == Order::Server {
                return self.ended_in_turn();
            }
        } else if let Some(at) = self.shared().iter().position(|group| group.hold == *hold) {
            self.crowd().shared.swap_remove(at);
        } else {
            // What the present one has served is removed with it.
            let (joined, contend) = (Vec::new(), None);
            return (Wakeups { joined, contend }, Served::default());
        }
        (self.take_next(now), Served::default())
    }

    /// A contender gives up.
    pub(crate) fn withdraw_contender(&mut self, mode: Mode, now: Instant) -> Wakeups<W, H> {
        self.asked(mode);
        self.take_next(now)
    }

    /// A queued thread gives up; `None` if its turn had come before.
    pub(crate) fn withdraw(&mut self, ticket: u64, now: Instant) -> Option<Wakeups<W, H>> {
        self.crowd.as_mut()?.queue.remove(ticket)?;
        // If it was a writer, readers behind it may join now.
        Some(self.take_next(now))
    }

    /// Takes the threads off the queue whose turn it is: readers that can join, and one contender if nobody is ahead of it.
    fn take_next(&mut self, now: Instant) -> Wakeups<W, H> {
        let mut wakeups = Wakeups {
            joined: Vec::new(),
            contend: None,
        };
        if self.exclusive.is_some() {
            return wakeups;
        }
        while let Some(first) = self.first_in_queue() {
            let (thread, mode, lease) = (first.thread, first.mode, first.lease);
            match mode {
                Mode::Shared if self.asking_exclusive > 0 => break,
                Mode::Shared => {
                    if let Some(group) = self.joinable(lease, now) {
                        group.threads.push((thread, 1));
                        let hold = group.hold.clone();
                        let first = self.take_first_in_queue();
                        wakeups
                            .joined
                            .extend(first.map(|first| (first.waiter, hold)));
                        continue;
                    }
                    if self.asking_shared > 0 {
                        break;
                    }
                }
                Mode::Exclusive => {
                    if !self.is_free() {
                        break;
                    }
                }
            }
            *self.asking(mode) += 1;
            wakeups.contend = self.take_first_in_queue().map(|first| first.waiter);
        }
        wakeups
    }

    /// Empties the queue, to notify everybody in it.
    pub(crate) fn dismiss(&mut self) -> Vec<W> {
        let queue = self.crowd.iter_mut().flat_map(|crowd| crowd.queue.drain());
        queue.map(|waiting| waiting.waiter).collect()
    }

    /// The waiters of all queued threads.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        let in_turn = self.run().into_iter().flat_map(Run::parked);
        let in_turn = in_turn.map(|parked| &parked.waiter);
        self.queue().map(|waiting| &waiting.waiter).chain(in_turn)
    }

    /// Whether a thread of this process has an exclusive hold.
    pub(crate) fn is_written(&self) -> bool {
        self.exclusive.is_some()
    }

    /// Whether a thread asks Redis for an exclusive hold.
    pub(crate) fn writer_asks(&self) -> bool {
        self.asking_exclusive > 0
    }

    /// Whether no thread holds it or asks for it, and so none waits.
    pub(crate) fn is_free(&self) -> bool {
        self.exclusive.is_none()
            && self.shared().is_empty()
            && self.asking_exclusive == 0
            && self.asking_shared == 0
    }

    /// Whether it can be dropped without forgetting anything.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.is_free() && self.cohort.is_forgettable(now)
    }
}

#[cfg(test)]
mod tests;
