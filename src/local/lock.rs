//! The local lock: which threads of this process hold a lock, which wait, and which one asks Redis for it.
//!
//! The state machine does no I/O and has no clock: methods are given `now` if they need it, and return what to do next. As
//! a rule one thread, the *contender*, asks Redis; the others wait in the queue and cost the server nothing. Exceptions
//! are the threads that want a fair lock, a reader that asks beside another ([`enter`](LocalLock::enter)), and a thread
//! that adopts a hold.
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
//! A *tenure* is the time for which this process may hand the lock over among its threads (see `cohort`). After a tenure,
//! the next contender checks whether the last release has notified other processes (`yields_after`), and if so lets them
//! go first. Without this rule, this process would win again and again.
//!
//! **Shared holds.** Readers of a process share holds. A reader joins an existing shared hold if all of this is true:
//!
//! - No thread of this process holds the lock exclusively or asks Redis for that.
//! - No more than a tenure has passed since that hold was granted.
//! - Enough of the lease is left, the reader wants the same lease, and that lease may be shared.
//! - No thread is queued. A reader that does not wait, or has the option `readers_first`, may pass queued readers, but
//!   never a queued writer.
//!
//! If only the tenure or the lease keeps a reader from joining, the reader asks Redis for a hold of its own. If another
//! reader asks already, the new one is queued instead (exceptions at [`enter`](LocalLock::enter)). Redis decides whether
//! writers of other processes go first. A thread that holds exclusively may take a shared hold as well, and keep it when
//! it releases the exclusive one.
//!
//! When Redis grants a shared hold, the queued readers join it in their order. The first reader that cannot join becomes
//! the contender. A second reader that cannot join, or a writer, has to wait, and so does every thread behind it.
//!
//! **Queue in Redis.** For a fair lock Redis keeps the queue ([`Order::Server`]): every thread is a contender, and only
//! Redis hands the lock over.

use std::time::{Duration, Instant};

use crate::local::cohort::Cohort;
use crate::local::queue::WaitQueue;

/// How the lease of a hold behaves. A hold is handed over only to a thread that wants the same policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeasePolicy {
    /// Renewed by the watchdog until released, at most until `max_hold` after it was granted.
    Renewed { max_hold: Option<Duration> },
    /// The hold ends after this time and is not renewed.
    Fixed(Duration),
}

impl LeasePolicy {
    /// Whether a hold with this lease may be handed over to a thread that wants the same. A hold with a `max_hold` may
    /// not: the limit counts from the grant, and would cut the new thread's time.
    fn passable(self) -> bool {
        !matches!(self, Self::Renewed { max_hold: Some(_) })
    }

    /// Whether a hold with this lease may be shared with a thread that wants the same. A fixed lease may not: locking
    /// again changes that lease, which must not affect other threads.
    fn shareable(self) -> bool {
        self == Self::Renewed { max_hold: None }
    }
}

/// Whether a hold excludes everybody else, or only exclusive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// Where the queue of waiting threads is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Local,
    Server,
}

/// How long a hold is valid, and whether it may change threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) until: Instant,
    pub(crate) lease: Duration,
    /// False if something other than the lease forbids a hand-over. That is: no token is left for the next thread (a
    /// fenced lock draws tokens in advance), the name stays taken after the release (`keep_until`), or a guarded command
    /// may still run.
    pub(crate) may_change_threads: bool,
}

impl Validity {
    /// Whether the hold may be handed over: it [may change threads](Self::may_change_threads), and enough of the lease is
    /// left.
    fn may_pass(self, lease: LeasePolicy, now: Instant) -> bool {
        self.may_change_threads && self.to_spare(lease, now)
    }

    /// Whether enough of the lease is left for another thread: a half of a renewed lease, nine tenths of a fixed one.
    fn to_spare(self, lease: LeasePolicy, now: Instant) -> bool {
        let needed = match lease {
            LeasePolicy::Renewed { .. } => self.lease / 2,
            LeasePolicy::Fixed(lease) => lease - lease / 10,
        };
        self.until.saturating_duration_since(now) >= needed
    }
}

/// A hold, as far as the local lock has to know it. Two holds are equal if they are the same acquisition.
pub(crate) trait Holding: Clone + PartialEq {
    fn validity(&self) -> Validity;
}

/// The thread that holds the lock exclusively.
#[derive(Debug, Clone)]
struct ExclusiveHolder<H> {
    hold: H,
    thread: u64,
    count: u32,
    lease: LeasePolicy,
}

/// The threads that share a hold.
#[derive(Debug, Clone)]
struct SharedHolders<H> {
    hold: H,
    lease: LeasePolicy,
    /// When Redis granted it. More threads may join for a tenure.
    since: Instant,
    /// The threads, each with its count.
    threads: Vec<(u64, u32)>,
}

impl<H> SharedHolders<H> {
    fn index_of(&self, thread: u64) -> Option<usize> {
        self.threads.iter().position(|(other, _)| *other == thread)
    }
}

/// A thread in the queue. `W` is how to reach it.
#[derive(Debug, Clone)]
struct QueuedThread<W> {
    thread: u64,
    mode: Mode,
    lease: LeasePolicy,
    waiter: W,
}

/// The result of entering the lock.
#[derive(Debug)]
pub(crate) enum Entered<H, R> {
    /// The thread is a contender now. `yields_after`: if the tenure is over, the last release. If it has notified other
    /// processes, the thread lets them go first. `under`: the exclusive hold of a thread that asks for a shared one as
    /// well.
    Contend {
        yields_after: Option<R>,
        under: Option<H>,
    },
    /// The thread shares this hold now.
    Joined(H),
    /// The thread is queued under this ticket.
    Queued(u64),
    /// The thread holds the lock already; nothing has changed yet.
    Mine {
        hold: H,
        count: u32,
        lease: LeasePolicy,
    },
    /// The thread is not next, and does not want to wait.
    Busy,
    /// The thread shares this hold and wants an exclusive one, so it would wait for itself.
    Deadlock(H),
}

/// A thread whose turn it is.
enum Admitted<H> {
    /// The thread shares this hold now.
    Shares(H),
    /// The thread is a contender now.
    Contends,
}

/// Queued threads whose turn it is; the caller has to wake them.
#[derive(Debug)]
#[must_use = "these threads have to be woken"]
pub(crate) struct Wakeups<W, H> {
    /// These threads share a hold now.
    pub(crate) joined: Vec<(W, H)>,
    /// This thread contends now.
    pub(crate) contend: Option<W>,
}

/// The fate of a hold when a thread releases it.
#[derive(Debug)]
pub(crate) enum LeaveOutcome<W, H> {
    /// The thread has `count` holds left.
    Nested { count: u32 },
    /// Other threads still share the hold.
    Shared,
    /// The hold was handed over to the thread of this waiter, which has to be woken.
    Passed { waiter: W },
    /// The hold has to be released in Redis, and the threads whose turn it is have to be woken.
    Release { next: Wakeups<W, H> },
    /// The thread no longer had the hold.
    Gone,
}

/// A lock inside this process. `W` reaches a waiting thread, `H` is a hold, `R` a release under way.
///
/// Rules on which the callers rely; the tests walk through all short schedules and check them:
///
/// 1. With [`Order::Local`], while a thread asks for an exclusive hold, no other thread of the process asks or holds. An
///    adopter may ask beside it ([`begin_adopting`](Self::begin_adopting)).
/// 2. A queued thread leaves the queue once: with `withdraw`, or because another call returns its waiter. In that case the
///    caller stores a wakeup before releasing the mutex of the entry. So a thread whose `withdraw` finds nothing has a
///    wakeup.
/// 3. While the queue is not empty, the lock has a holder or a contender. Every call that removes a holder or a contender
///    returns the waiters whose turn it is, so no queued thread is forgotten.
/// 4. `leave`, `lost` and `reenter` change nothing unless the lock has exactly that hold, so a late call about an
///    earlier hold does no harm.
#[derive(Debug, Clone)]
pub(crate) struct LocalLock<W, H, R> {
    order: Order,
    exclusive: Option<ExclusiveHolder<H>>,
    shared: Vec<SharedHolders<H>>,
    queue: WaitQueue<QueuedThread<W>>,
    /// How many threads of this process ask Redis for an exclusive hold, and for a shared one.
    asking_exclusive: u32,
    asking_shared: u32,
    /// According to the last reply from Redis, somebody else has the lock: another process, or with [`Order::Server`]
    /// perhaps another thread of this process.
    is_refused: bool,
    pub(crate) cohort: Cohort<R>,
}

impl<W: Clone, H: Holding, R> LocalLock<W, H, R> {
    pub(crate) fn new(order: Order, tenure: Duration) -> Self {
        Self {
            order,
            exclusive: None,
            shared: Vec::new(),
            queue: WaitQueue::new(),
            asking_exclusive: 0,
            asking_shared: 0,
            is_refused: false,
            cohort: Cohort::new(tenure),
        }
    }

    /// A thread wants the lock; `queue` makes its waiter if the thread is willing to wait. A new reader may ask Redis
    /// although another reader of this process asks already, if the new one does not wait or is `readers_first`. The
    /// reader that asks already may wait for a writer of another process, and a queued reader would wait with it. A reader
    /// that does not wait asks by itself, since it needs its answer at once. A reader with `readers_first` asks by itself,
    /// since it passes waiting writers.
    pub(crate) fn enter(
        &mut self,
        thread: u64,
        mode: Mode,
        lease: LeasePolicy,
        now: Instant,
        queue: Option<&dyn Fn() -> W>,
        readers_first: bool,
    ) -> Entered<H, R> {
        if let Some(has) = self.has_already(thread, mode) {
            return has;
        }
        if self.order == Order::Server {
            // Redis keeps the queue: every thread is a contender, with a place of its own there.
            *self.askers(mode) += 1;
            return Entered::Contend {
                yields_after: None,
                under: None,
            };
        }
        let asks_beside = mode == Mode::Shared && (queue.is_none() || readers_first);
        let writes = |waiting: &QueuedThread<W>| waiting.mode == Mode::Exclusive;
        // The readers in the queue wait for the reader that asks; a reader that asks beside it passes them. Queued
        // writers keep every new reader out, or they could starve.
        let is_next = match asks_beside {
            true => !self.queue.iter().any(writes),
            false => self.queue.is_empty(),
        };
        let admitted = match is_next {
            true => self.admit(thread, mode, lease, now, asks_beside),
            false => None,
        };
        match (admitted, queue) {
            (Some(Admitted::Shares(hold)), _) => Entered::Joined(hold),
            (Some(Admitted::Contends), _) => Entered::Contend {
                yields_after: self.cohort.yield_after(now),
                under: None,
            },
            (None, None) => Entered::Busy,
            (None, Some(waiter)) => Entered::Queued(self.queue.push(QueuedThread {
                thread,
                mode,
                lease,
                waiter: waiter(),
            })),
        }
    }

    /// A thread asks Redis for the hold of another process, to adopt it. Other threads may ask at the same time: Redis
    /// refuses them, since the other process has the lock. If the adoption fails, the adopting thread has to call
    /// [`withdraw_contender`](Self::withdraw_contender).
    pub(crate) fn begin_adopting(&mut self, mode: Mode) {
        *self.askers(mode) += 1;
    }

    /// Admits a thread that holds nothing, if the lock allows it; `None` if the thread has to wait. The caller has checked
    /// the queue. `asks_beside`: the thread is a reader that may ask while others do.
    fn admit(
        &mut self,
        thread: u64,
        mode: Mode,
        lease: LeasePolicy,
        now: Instant,
        asks_beside: bool,
    ) -> Option<Admitted<H>> {
        // Rule 1. The thread is woken when the writer leaves, loses the lock or gives up: all three end in `take_next`.
        if self.exclusive.is_some() || self.asking_exclusive > 0 {
            return None;
        }
        if mode == Mode::Shared
            && let Some(group) = self.joinable(lease, now)
        {
            group.threads.push((thread, 1));
            return Some(Admitted::Shares(group.hold.clone()));
        }
        // One reader asks on behalf of all queued readers: at its grant, those with the same lease join.
        let may_ask = match mode {
            Mode::Exclusive => self.is_free(),
            Mode::Shared => self.asking_shared == 0 || asks_beside,
        };
        may_ask.then(|| {
            *self.askers(mode) += 1;
            Admitted::Contends
        })
    }

    /// The result for a thread that holds the lock already; `None` if it does not.
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
            // The thread's own exclusive hold keeps writers out, so this request need not respect the queue.
            (Mode::Shared, Some(holder), None) => {
                let under = Some(holder.hold.clone());
                self.asking_shared += 1;
                Some(Entered::Contend {
                    yields_after: None,
                    under,
                })
            }
            (_, None, None) => None,
        }
    }

    fn askers(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Exclusive => &mut self.asking_exclusive,
            Mode::Shared => &mut self.asking_shared,
        }
    }

    /// A shared hold that one more thread may join. After a tenure new readers ask Redis instead, so that writers of
    /// other processes get their turn.
    fn joinable(&mut self, lease: LeasePolicy, now: Instant) -> Option<&mut SharedHolders<H>> {
        let tenure = self.cohort.tenure();
        self.shared.iter_mut().find(|group| {
            now.saturating_duration_since(group.since) <= tenure
                && group.lease == lease
                && lease.shareable()
                && group.hold.validity().to_spare(lease, now)
        })
    }

    /// Redis has refused a contender: somebody else has the lock or goes first, so the tenure of this process is over.
    /// (With [`Order::Server`] that somebody may be a thread of this process, but then tenures do not matter.)
    pub(crate) fn record_refusal(&mut self) {
        self.is_refused = true;
        self.cohort.end();
    }

    /// Redis has granted something since, or does not answer, so the last refusal says nothing any more.
    pub(crate) fn forget_refusal(&mut self) {
        self.is_refused = false;
    }

    /// Whether anybody has the lock, as far as this process knows. A refusal counts until Redis grants something or does
    /// not answer.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_refused || self.holds().next().is_some()
    }

    /// A contender was granted the lock by Redis. `is_alone`: this process's last release is known to have notified no
    /// other process.
    pub(crate) fn granted(
        &mut self,
        thread: u64,
        mode: Mode,
        hold: H,
        lease: LeasePolicy,
        is_alone: bool,
        now: Instant,
    ) -> Wakeups<W, H> {
        self.end_asking(mode);
        self.forget_refusal();
        match mode {
            Mode::Exclusive => {
                self.cohort.granted(now);
                // By rule 1 there is no earlier holder, except with `Order::Server` or beside an adopter. Such a holder is
                // replaced: Redis granted the lock, so the lease of that holder is over. The caller reports the loss.
                self.exclusive = Some(ExclusiveHolder {
                    hold,
                    thread,
                    count: 1,
                    lease,
                });
            }
            Mode::Shared => {
                self.shared.push(SharedHolders {
                    hold,
                    lease,
                    since: now,
                    threads: vec![(thread, 1)],
                });
            }
        }
        if is_alone {
            self.cohort.record_alone(now);
        }
        self.take_next(now)
    }

    fn end_asking(&mut self, mode: Mode) {
        let askers = self.askers(mode);
        debug_assert!(*askers > 0);
        *askers = askers.saturating_sub(1);
    }

    /// The holding thread takes one more hold, possibly with another lease; `false` if the thread no longer has `hold`.
    pub(crate) fn reenter(&mut self, thread: u64, hold: &H, lease: LeasePolicy) -> bool {
        // If the caller had to renew a fixed lease, it has released the mutex since `enter`, and the hold may be lost by
        // now: rule 4.
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

    /// The hold of this thread, and how often the thread has it.
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

    /// The shared hold that the thread has, below an exclusive one or alone.
    pub(crate) fn shared_by(&self, thread: u64) -> Option<&H> {
        let mut shared = self.shared.iter();
        let shared = shared.find(|group| group.index_of(thread).is_some())?;
        Some(&shared.hold)
    }

    /// All holds of this process.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &H> {
        let exclusive = self.exclusive.iter().map(|holder| &holder.hold);
        exclusive.chain(self.shared.iter().map(|group| &group.hold))
    }

    fn holder(&mut self, thread: u64, hold: &H) -> Option<&mut ExclusiveHolder<H>> {
        let holder = self.exclusive.as_mut();
        holder.filter(|holder| holder.thread == thread && holder.hold == *hold)
    }

    /// Hands over an exclusive hold that its thread releases for the last time: to the next in the queue, if that thread
    /// wants the same lease, the tenure is not over and the hold has validity to spare.
    fn pass(&mut self, hold: &H, now: Instant) -> Option<W> {
        let holder = self.exclusive.as_mut()?;
        let lease = holder.lease;
        // If the leaving thread keeps a shared hold, the next thread would not be alone.
        let may = self.shared.is_empty() && self.cohort.is_young(now) && lease.passable();
        if !may || self.queue.is_empty() || !hold.validity().may_pass(lease, now) {
            return None;
        }
        // Only the first in the queue: a later one that wants the same lease must not overtake it.
        let same = |next: &QueuedThread<W>| next.mode == Mode::Exclusive && next.lease == lease;
        let next = self.queue.pop_if(same)?;
        // From here on the hold belongs to the next thread, which still sleeps. If the hold is lost before that thread
        // runs, it finds the loss when it takes its wakeup.
        holder.thread = next.thread;
        Some(next.waiter)
    }

    /// A thread releases the lock once. `release`, which queues the request, is called if that results in
    /// [`LeaveOutcome::Release`].
    pub(crate) fn leave(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        release: &dyn Fn() -> R,
    ) -> LeaveOutcome<W, H> {
        let Some(holder) = self.holder(thread, hold) else {
            return self.leave_shared(thread, hold, now, release);
        };
        if holder.count > 1 {
            holder.count -= 1;
            return LeaveOutcome::Nested {
                count: holder.count,
            };
        }
        if let Some(waiter) = self.pass(hold, now) {
            return LeaveOutcome::Passed { waiter };
        }
        self.exclusive = None;
        // `release` queues the command before `take_next` lets another thread ask, so on the connection the release
        // precedes that thread's request.
        self.cohort.released(release(), now);
        LeaveOutcome::Release {
            next: self.take_next(now),
        }
    }

    fn leave_shared(
        &mut self,
        thread: u64,
        hold: &H,
        now: Instant,
        release: &dyn Fn() -> R,
    ) -> LeaveOutcome<W, H> {
        let Some((at, index)) = self
            .shared
            .iter()
            .enumerate()
            .filter(|(_, group)| group.hold == *hold)
            .find_map(|(at, group)| group.index_of(thread).map(|index| (at, index)))
        else {
            return LeaveOutcome::Gone;
        };
        let group = &mut self.shared[at];
        let count = &mut group.threads[index].1;
        if *count > 1 {
            *count -= 1;
            return LeaveOutcome::Nested { count: *count };
        }
        // Threads of one hold are equal, so their order does not matter.
        group.threads.swap_remove(index);
        if !group.threads.is_empty() {
            return LeaveOutcome::Shared;
        }
        self.shared.swap_remove(at);
        let release = release();
        // If a writer's grant has started the cohort, the writer's tenure goes on while threads of this process read. So
        // if no thread here holds the lock exclusively now, this release counts as the last release of the tenure. But if
        // the writer still holds the lock, its own release follows, and counts instead.
        if self.cohort.has_started() && self.exclusive.is_none() {
            self.cohort.released(release, now);
        }
        LeaveOutcome::Release {
            next: self.take_next(now),
        }
    }

    /// The hold is lost, even if its threads do not know that yet.
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
            // Rule 4: the hold was released, or its loss was reported before.
            let (joined, contend) = (Vec::new(), None);
            return Wakeups { joined, contend };
        }
        self.take_next(now)
    }

    /// A contender gives up.
    pub(crate) fn withdraw_contender(&mut self, mode: Mode, now: Instant) -> Wakeups<W, H> {
        self.end_asking(mode);
        self.take_next(now)
    }

    /// A queued thread gives up; `None` if another call has taken the thread off the queue: rule 2.
    pub(crate) fn withdraw(&mut self, ticket: u64, now: Instant) -> Option<Wakeups<W, H>> {
        self.queue.remove(ticket)?;
        // If the thread was a writer, readers behind it may join now.
        Some(self.take_next(now))
    }

    /// Takes the threads off the queue whose turn it is: readers that can join, and one contender if nobody is ahead of
    /// it. Every call that may free the lock ends with this, for rule 3.
    fn take_next(&mut self, now: Instant) -> Wakeups<W, H> {
        let mut wakeups = Wakeups {
            joined: Vec::new(),
            contend: None,
        };
        while let Some(first) = self.queue.front() {
            let (thread, mode, lease) = (first.thread, first.mode, first.lease);
            // The loop stops at the first thread that has to wait: the queue is first come, first served. A contender
            // counts as asking once it is admitted, so the loop admits no second contender.
            let Some(admitted) = self.admit(thread, mode, lease, now, false) else {
                break;
            };
            let waiter = self.queue.pop().map(|first| first.waiter);
            match admitted {
                Admitted::Shares(hold) => {
                    wakeups.joined.extend(waiter.map(|waiter| (waiter, hold)))
                }
                Admitted::Contends => wakeups.contend = waiter,
            }
        }
        wakeups
    }

    /// Redis did not answer a request of this process. Takes those threads off the queue for which `concerns` is true, so
    /// that they fail now; the caller wakes them. Takes none if a thread of this process is the exclusive holder.
    pub(crate) fn dismiss(&mut self, concerns: impl Fn(&W) -> bool) -> Vec<W> {
        // The queued threads wait for that holder and not for Redis. The request was the holder's own, for example for a
        // read hold below its write hold.
        if self.exclusive.is_some() {
            return Vec::new();
        }
        let dismissed = self.queue.take_if(|waiting| concerns(&waiting.waiter));
        dismissed.map(|waiting| waiting.waiter).collect()
    }

    /// The waiters of all queued threads.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        self.queue.iter().map(|waiting| &waiting.waiter)
    }

    /// Whether no thread holds the lock or asks for it. By rule 3 none waits then.
    pub(crate) fn is_free(&self) -> bool {
        self.exclusive.is_none()
            && self.shared.is_empty()
            && self.asking_exclusive == 0
            && self.asking_shared == 0
    }

    /// Whether the lock can be dropped without forgetting anything.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.is_free() && self.cohort.is_forgettable(now)
    }
}

#[cfg(test)]
mod tests;
