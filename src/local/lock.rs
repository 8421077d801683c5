//! One lock inside this process: who asks Redis, who holds, who waits.
//!
//! A state machine without I/O and without a clock of its own: every method takes `now` and says what to do next. At
//! most one thread asks Redis for all that wait, the *contender*; the others are queued and cost the server nothing.
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
//! A *tenure* is the time for which this process keeps handing the lock over among its threads. Its age survives short
//! gaps without a holder. Once it is over, the next contender first asks whether other processes heard the release
//! ([`Start::YieldAfter`]) and, if so, lets them go first; otherwise the thread that released would win again and
//! again.
//!
//! **Shared holds.** The readers of a read-write lock share one hold of this process: whoever comes while nobody waits
//! joins it, and when a reader is granted, all readers up to the first writer in the queue join at once. A thread that
//! holds exclusively may take a shared hold below it, which then outlives the exclusive one. Readers that cannot join,
//! because of another lease or because the hold was closed, have holds of their own beside it.
//!
//! **Order of the server.** Where Redis keeps the queue (the fair lock), nobody waits here: every thread contends for
//! itself, and nothing is handed over.

use std::time::{Duration, Instant};

use crate::local::cohort::Cohort;
use crate::local::preference::Prefer;
use crate::local::queue::WaitQueue;

/// How the lease of a hold behaves, and what must be equal for a hold to change threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeasePolicy {
    /// Renewed by the watchdog until released, at most until `max_hold` after it was granted.
    Renewed { max_hold: Option<Duration> },
    /// Ends by itself.
    Fixed(Duration),
}

impl LeasePolicy {
    /// Whether a hold taken with this lease may be handed over to a thread that wants the same.
    ///
    /// A limit on the whole hold begins again for each, so such holds are not handed over.
    fn passable(self) -> bool {
        !matches!(self, Self::Renewed { max_hold: Some(_) })
    }

    /// Whether it may be shared with one.
    ///
    /// A thread that takes one more hold of a fixed lease changes it, which must not concern the others.
    fn shareable(self) -> bool {
        self == Self::Renewed { max_hold: None }
    }
}

/// Whether a hold keeps everybody else out, or only those that do.
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

/// What decides whether a hold may be handed over: how long it is valid, out of which lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) until: Instant,
    pub(crate) lease: Duration,
    /// Whether there is what the next thread needs besides time: a token of its own.
    pub(crate) complete: bool,
}

impl Validity {
    /// Renewed holds need half their lease, since renewal goes on; fixed ones nine tenths, since it does not.
    fn to_spare(self, lease: LeasePolicy, now: Instant) -> bool {
        let needed = match lease {
            LeasePolicy::Renewed { .. } => self.lease / 2,
            LeasePolicy::Fixed(lease) => lease - lease / 10,
        };
        self.until.saturating_duration_since(now) >= needed
    }
}

/// A hold, as far as the local lock is concerned.
pub(crate) trait Holding: Clone + PartialEq {
    fn validity(&self) -> Validity;
}

/// One thread, alone.
#[derive(Debug, Clone)]
struct Holder<H> {
    hold: H,
    thread: u64,
    count: u32,
    lease: LeasePolicy,
}

/// Threads that share a hold.
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

/// How a contender has to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start<R> {
    /// Ask at once.
    Ask,
    /// Our tenure is over: learn from this release whether others heard it, and let them go first.
    YieldAfter(R),
}

/// What became of a thread that came in.
#[derive(Debug)]
pub(crate) enum Entered<H, R> {
    /// It is a contender now, perhaps for a shared hold `under` its exclusive one.
    Contend { start: Start<R>, under: Option<H> },
    /// It shares this hold now.
    Joined(H),
    /// It is queued under this ticket.
    Queued(u64),
    /// It holds the lock already; nothing was changed.
    Mine {
        hold: H,
        count: u32,
        lease: LeasePolicy,
    },
    /// Somebody is before it, and it did not want to wait.
    Busy,
    /// It would wait for itself: it shares this hold, and wants to be alone.
    Deadlock(H),
}

/// Queued threads whose turn it is now; the caller has to wake them.
#[derive(Debug)]
#[must_use = "these threads have to be woken"]
pub(crate) struct Wakeups<W, H> {
    /// They share this hold now.
    pub(crate) joined: Vec<(W, H)>,
    /// It contends now.
    pub(crate) contend: Option<W>,
}

/// What becomes of the hold that a thread released.
#[derive(Debug)]
pub(crate) enum Left<W, H> {
    /// The thread has `count` holds left.
    Nested { count: u32 },
    /// Other threads still have it.
    Shared,
    /// The hold belongs to this waiter's thread now: wake it.
    Passed { waiter: W, hold: H },
    /// Release the hold on the server, and wake those whose turn it is.
    Release { next: Wakeups<W, H> },
    /// The hold was not this thread's any more.
    Gone,
}

/// One lock inside this process. `W` reaches a waiting thread, `H` is a hold, `R` a release under way.
#[derive(Debug, Clone)]
pub(crate) struct LocalLock<W, H, R> {
    order: Order,
    exclusive: Option<Holder<H>>,
    shared: Vec<SharedHolders<H>>,
    /// Threads of ours that talk to Redis about this lock, by what they want.
    asking_exclusive: usize,
    asking_shared: usize,
    queue: WaitQueue<Waiting<W>>,
    cohort: Cohort<R>,
}

impl<W, H: Holding, R> LocalLock<W, H, R> {
    pub(crate) fn new(order: Order, tenure: Duration) -> Self {
        Self {
            order,
            exclusive: None,
            shared: Vec::new(),
            asking_exclusive: 0,
            asking_shared: 0,
            queue: WaitQueue::new(),
            cohort: Cohort::new(tenure),
        }
    }

    /// A thread wants the lock; `queue` makes its waiter if it is willing to wait. If it prefers writers, it does not ask
    /// beside a reader that asks already: that one may be yielding to a writer of another process.
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
                let beside = queue.is_none() || prefer == Prefer::Readers;
                let admitted = self.exclusive.is_none()
                    && self.asking_exclusive == 0
                    && !self.queue.iter().any(writes)
                    && (beside || self.queue.is_empty());
                if admitted && let Some(group) = self.joinable(lease, now) {
                    group.threads.push((thread, 1));
                    return Entered::Joined(group.hold.clone());
                }
                // A reader that does not want to wait behind another may ask beside it.
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
            Some(waiter) => Entered::Queued(self.queue.push(Waiting {
                thread,
                mode,
                lease,
                waiter: waiter(),
            })),
        }
    }

    /// What follows for a thread from what it holds.
    fn has_already(&mut self, thread: u64, mode: Mode) -> Option<Entered<H, R>> {
        let alone = self
            .exclusive
            .as_ref()
            .filter(|holder| holder.thread == thread);
        let shares = self
            .shared
            .iter()
            .find_map(|group| group.index_of(thread).map(|index| (group, index)));
        match (mode, alone, shares) {
            (Mode::Exclusive, Some(holder), _) => Some(Entered::Mine {
                hold: holder.hold.clone(),
                count: holder.count,
                lease: holder.lease,
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

    fn asking(&mut self, mode: Mode) -> &mut usize {
        match mode {
            Mode::Exclusive => &mut self.asking_exclusive,
            Mode::Shared => &mut self.asking_shared,
        }
    }

    /// A shared hold that one more thread may have.
    fn joinable(&mut self, lease: LeasePolicy, now: Instant) -> Option<&mut SharedHolders<H>> {
        self.shared.iter_mut().find(|group| {
            group.open
                && group.lease == lease
                && lease.shareable()
                && group.hold.validity().to_spare(lease, now)
        })
    }

    /// How the thread that contends now has to begin.
    pub(crate) fn start(&mut self, now: Instant) -> Start<R> {
        self.cohort
            .yield_after(now)
            .map_or(Start::Ask, Start::YieldAfter)
    }

    /// Somebody else has the lock, the contender found: our tenure is over.
    pub(crate) fn refused(&mut self) {
        self.cohort.end();
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
                self.cohort.granted(now);
                self.exclusive = Some(Holder {
                    hold,
                    thread,
                    count: 1,
                    lease,
                });
            }
            Mode::Shared => self.shared.push(SharedHolders {
                hold,
                lease,
                open: true,
                threads: vec![(thread, 1)],
            }),
        }
        self.call_next(now)
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
            holder.lease = lease;
            return true;
        }
        for group in &mut self.shared {
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

    /// How many holds the thread has, and of which hold.
    pub(crate) fn count(&self, thread: u64, mode: Mode) -> Option<(&H, u32)> {
        match mode {
            Mode::Exclusive => self
                .exclusive
                .as_ref()
                .filter(|holder| holder.thread == thread)
                .map(|holder| (&holder.hold, holder.count)),
            Mode::Shared => self.shared.iter().find_map(|group| {
                let index = group.index_of(thread)?;
                Some((&group.hold, group.threads[index].1))
            }),
        }
    }

    /// The holds of this process, whoever's they are.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &H> {
        let exclusive = self.exclusive.iter().map(|holder| &holder.hold);
        exclusive.chain(self.shared.iter().map(|group| &group.hold))
    }

    /// Shared holds take no more threads, since a writer of another process waits.
    pub(crate) fn close_shared(&mut self) {
        for group in &mut self.shared {
            group.open = false;
        }
    }

    /// A thread releases one hold. `release` is made if that ends in [`Left::Release`], before anybody is woken.
    pub(crate) fn leave(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        release: &dyn Fn() -> R,
    ) -> Left<W, H> {
        let Some(holder) = self
            .exclusive
            .as_mut()
            .filter(|holder| holder.thread == thread && holder.hold == *hold)
        else {
            return self.leave_shared(thread, hold, now, release);
        };
        if holder.count > 1 {
            holder.count -= 1;
            return Left::Nested {
                count: holder.count,
            };
        }
        let lease = holder.lease;
        let validity = hold.validity();
        let same = |next: &Waiting<W>| next.mode == Mode::Exclusive && next.lease == lease;
        if self.shared.is_empty()
            && lease.passable()
            && self.cohort.is_young(now)
            && validity.complete
            && validity.to_spare(lease, now)
            && let Some(next) = self.queue.pop_if(same)
        {
            holder.thread = next.thread;
            return Left::Passed {
                waiter: next.waiter,
                hold: holder.hold.clone(),
            };
        }
        self.exclusive = None;
        let release = release();
        if self.order == Order::Local {
            self.cohort.released(release, now);
        }
        Left::Release {
            next: self.call_next(now),
        }
    }

    fn leave_shared(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        release: &dyn Fn() -> R,
    ) -> Left<W, H> {
        let Some((at, index)) = self
            .shared
            .iter()
            .enumerate()
            .filter(|(_, group)| group.hold == *hold)
            .find_map(|(at, group)| group.index_of(thread).map(|index| (at, index)))
        else {
            return Left::Gone;
        };
        let group = &mut self.shared[at];
        let count = &mut group.threads[index].1;
        if *count > 1 {
            *count -= 1;
            return Left::Nested { count: *count };
        }
        group.threads.swap_remove(index);
        if !group.threads.is_empty() {
            return Left::Shared;
        }
        self.shared.swap_remove(at);
        let release = release();
        // A tenure that began with a writer goes on while its process reads.
        if self.order == Order::Local && self.cohort.has_started() && self.exclusive.is_none() {
            self.cohort.released(release, now);
        }
        Left::Release {
            next: self.call_next(now),
        }
    }

    /// The hold is lost, whatever its threads think.
    pub(crate) fn lost(&mut self, hold: &H, now: Instant) -> Wakeups<W, H> {
        if self
            .exclusive
            .as_ref()
            .is_some_and(|holder| holder.hold == *hold)
        {
            self.exclusive = None;
            self.cohort.end();
        } else if let Some(at) = self.shared.iter().position(|group| group.hold == *hold) {
            self.shared.swap_remove(at);
        } else {
            return Wakeups {
                joined: Vec::new(),
                contend: None,
            };
        }
        self.call_next(now)
    }

    /// A contender gives up.
    pub(crate) fn withdraw_contender(&mut self, mode: Mode, now: Instant) -> Wakeups<W, H> {
        self.asked(mode);
        self.call_next(now)
    }

    /// A queued thread gives up; `None` if its turn had come before.
    pub(crate) fn withdraw(&mut self, ticket: u64, now: Instant) -> Option<Wakeups<W, H>> {
        self.queue.remove(ticket)?;
        // It may have been what kept readers from joining.
        Some(self.call_next(now))
    }

    /// Whose turn it is in the queue: readers that can join, and one contender if nobody else is ahead of it.
    fn call_next(&mut self, now: Instant) -> Wakeups<W, H> {
        let mut calls = Wakeups {
            joined: Vec::new(),
            contend: None,
        };
        if self.exclusive.is_some() {
            return calls;
        }
        while let Some(first) = self.queue.front() {
            let (thread, mode, lease) = (first.thread, first.mode, first.lease);
            match mode {
                Mode::Shared if self.asking_exclusive > 0 => break,
                Mode::Shared => {
                    if let Some(group) = self.joinable(lease, now) {
                        group.threads.push((thread, 1));
                        let hold = group.hold.clone();
                        calls
                            .joined
                            .extend(self.queue.pop().map(|first| (first.waiter, hold)));
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
            calls.contend = self.queue.pop().map(|first| first.waiter);
        }
        calls
    }

    /// Empties the queue, for news that concern everybody in it.
    pub(crate) fn dismiss(&mut self) -> Vec<W> {
        self.queue.drain().map(|waiting| waiting.waiter).collect()
    }

    /// Everybody in the queue.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        self.queue.iter().map(|waiting| &waiting.waiter)
    }

    /// Whether nobody is here.
    pub(crate) fn is_free(&self) -> bool {
        self.exclusive.is_none()
            && self.shared.is_empty()
            && self.asking_exclusive == 0
            && self.asking_shared == 0
    }

    /// Whether nothing would be forgotten with this lock.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.is_free() && self.cohort.is_forgettable(now)
    }
}

#[cfg(test)]
mod tests;
