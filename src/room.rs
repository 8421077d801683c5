//! The process-local gate of one lock: who of this process asks Redis, who holds, who stands in line.
//!
//! A state machine without I/O and without a clock of its own: every verb takes `now` and says what to do next. At
//! most one thread of a room talks to Redis, the *contender*; the others stand in line and cost the server nothing.
//!
//! ```text
//!              enter (nobody here)            granted
//!      FREE ─────────────────────► CONTENDING ───────► HELD ──┐ enter by the holder: count + 1
//!        ▲                          │    ▲  │            │ ▲ ◄┘ leave, count > 1: count - 1
//!        │   withdraw, nobody waits │    │  │ withdraw:  │ │
//!        ├──────────────────────────┘    │  │ next in    │ │ leave, next wants the same, the tenure is young and
//!        │                               │  └─line       │ └─the hold has validity to spare: the hold changes threads
//!        │   leave or lost, nobody waits │               │
//!        ├───────────────────────────────┼───────────────┤
//!        │                               └───────────────┘
//!                                   leave or lost: the next in line contends
//! ```
//!
//! A *tenure* is the time for which this process keeps passing the lock round. Its age survives short gaps without a
//! holder; once it is over, the next contender first learns whether other processes heard the release
//! ([`Start::Offer`]) and, if so, holds back, or the thread that released would win again and again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A gap without a holder that is longer than this, and than the tenure, starts a new tenure.
const GAP: Duration = Duration::from_millis(5);

/// How the lease of a hold behaves, and what must be equal for a hold to change threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Renewed by the watchdog until released, at most until `max_hold` after it was granted.
    Renewed { max_hold: Option<Duration> },
    /// Ends by itself.
    Fixed(Duration),
}

impl Lease {
    /// Whether a hold taken with this lease may be passed to a thread that wants the same.
    ///
    /// A limit on the whole hold starts anew for each, so such holds are not passed.
    fn passable(self) -> bool {
        !matches!(self, Self::Renewed { max_hold: Some(_) })
    }
}

/// What the gate has to know of the hold it is about to pass: how long it is valid, out of which lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) until: Instant,
    pub(crate) lease: Duration,
}

impl Validity {
    /// Renewed holds need half their lease, since renewal goes on; fixed ones nine tenths, since it does not.
    fn to_spare(self, lease: Lease, now: Instant) -> bool {
        let needed = match lease {
            Lease::Renewed { .. } => self.lease / 2,
            Lease::Fixed(lease) => lease - lease / 10,
        };
        self.until.saturating_duration_since(now) >= needed
    }
}

#[derive(Debug)]
enum Seat<H> {
    Free,
    /// One thread of ours talks to Redis about this lock.
    Contending,
    Held {
        hold: H,
        thread: u64,
        count: u32,
        lease: Lease,
    },
}

/// One who stands in line. `W` is how to reach its thread.
#[derive(Debug)]
struct Waiting<W> {
    ticket: u64,
    thread: u64,
    lease: Lease,
    waiter: W,
}

/// How a contender has to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start<R> {
    /// Ask at once.
    Ask,
    /// Our tenure is over: learn from this release whether others heard it, and let them go first.
    Offer(R),
}

/// What became of a thread that came in.
#[derive(Debug)]
pub(crate) enum Entered<H, R> {
    /// It is the contender now.
    Contend(Start<R>),
    /// It stands in line under this ticket.
    Queued(u64),
    /// It holds the lock already; nothing was changed.
    Mine { hold: H, count: u32, lease: Lease },
    /// Somebody is before it, and it did not want to wait.
    Busy,
}

/// What becomes of the hold that a thread let go.
#[derive(Debug)]
pub(crate) enum Left<W, H> {
    /// The thread has `count` holds left.
    Nested { count: u32 },
    /// The hold belongs to this waiter's thread now: tell it.
    Passed { waiter: W, hold: H },
    /// Release the hold on the server; if somebody is in line, it contends next: tell it.
    Release { next: Option<W> },
    /// The hold was not this thread's any more.
    Gone,
}

/// The gate of one lock. `W` reaches a waiting thread, `H` is a hold, `R` a release under way.
#[derive(Debug)]
pub(crate) struct Room<W, H, R> {
    seat: Seat<H>,
    queue: VecDeque<Waiting<W>>,
    next_ticket: u64,
    tenure: Duration,
    tenure_since: Option<Instant>,
    last_release: Option<(Instant, R)>,
}

impl<W: Clone, H: Clone + PartialEq, R: Clone> Room<W, H, R> {
    pub(crate) fn new(tenure: Duration) -> Self {
        Self {
            seat: Seat::Free,
            queue: VecDeque::new(),
            next_ticket: 0,
            tenure,
            tenure_since: None,
            last_release: None,
        }
    }

    /// A thread wants the lock; `queue` makes its waiter if it is willing to stand in line.
    pub(crate) fn enter(
        &mut self,
        thread: u64,
        lease: Lease,
        now: Instant,
        queue: Option<&dyn Fn() -> W>,
    ) -> Entered<H, R> {
        match &self.seat {
            Seat::Held {
                hold,
                thread: holder,
                count,
                lease,
            } if *holder == thread => Entered::Mine {
                hold: hold.clone(),
                count: *count,
                lease: *lease,
            },
            Seat::Free => {
                self.seat = Seat::Contending;
                Entered::Contend(self.start(now))
            }
            _ => match queue {
                None => Entered::Busy,
                Some(waiter) => {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    self.queue.push_back(Waiting {
                        ticket,
                        thread,
                        lease,
                        waiter: waiter(),
                    });
                    Entered::Queued(ticket)
                }
            },
        }
    }

    /// How the thread that contends now has to begin.
    pub(crate) fn start(&mut self, now: Instant) -> Start<R> {
        let Some((released_at, release)) = &self.last_release else {
            return Start::Ask;
        };
        if now.saturating_duration_since(*released_at) > self.tenure.max(GAP) {
            self.forget_tenure();
            return Start::Ask;
        }
        if self.tenure_is_young(now) {
            return Start::Ask;
        }
        let start = Start::Offer(release.clone());
        self.forget_tenure();
        start
    }

    fn tenure_is_young(&self, now: Instant) -> bool {
        self.tenure_since
            .is_some_and(|since| now.saturating_duration_since(since) < self.tenure)
    }

    fn forget_tenure(&mut self) {
        self.tenure_since = None;
        self.last_release = None;
    }

    /// The contender found the lock with somebody else: our tenure is over.
    pub(crate) fn refused(&mut self) {
        self.forget_tenure();
    }

    /// The contender was granted the lock by Redis.
    pub(crate) fn granted(&mut self, thread: u64, hold: H, lease: Lease, now: Instant) {
        debug_assert!(matches!(self.seat, Seat::Contending));
        self.tenure_since.get_or_insert(now);
        self.seat = Seat::Held {
            hold,
            thread,
            count: 1,
            lease,
        };
    }

    /// The holding thread takes one more hold, possibly with another lease; `false` if it does not hold any more.
    pub(crate) fn reenter(&mut self, thread: u64, hold: &H, lease: Lease) -> bool {
        match &mut self.seat {
            Seat::Held {
                hold: held,
                thread: holder,
                count,
                lease: its,
            } if *holder == thread && held == hold => {
                *count += 1;
                *its = lease;
                true
            }
            _ => false,
        }
    }

    /// How many holds the thread has.
    pub(crate) fn count(&self, thread: u64) -> u32 {
        match &self.seat {
            Seat::Held {
                thread: holder,
                count,
                ..
            } if *holder == thread => *count,
            _ => 0,
        }
    }

    /// The hold of this process, whoever's it is.
    pub(crate) fn held(&self) -> Option<&H> {
        match &self.seat {
            Seat::Held { hold, .. } => Some(hold),
            _ => None,
        }
    }

    /// A thread lets one hold go. `release` is recorded if that ends in [`Left::Release`].
    pub(crate) fn leave(
        &mut self,
        thread: u64,
        hold: &H,
        validity: Validity,
        now: Instant,
        release: &dyn Fn() -> R,
    ) -> Left<W, H> {
        let tenure_is_young = self.tenure_is_young(now);
        let Seat::Held {
            hold: held,
            thread: holder,
            count,
            lease,
        } = &mut self.seat
        else {
            return Left::Gone;
        };
        if *holder != thread || held != hold {
            return Left::Gone;
        }
        if *count > 1 {
            *count -= 1;
            return Left::Nested { count: *count };
        }
        let lease = *lease;
        let same = self.queue.front().is_some_and(|next| next.lease == lease);
        if same
            && lease.passable()
            && tenure_is_young
            && validity.to_spare(lease, now)
            && let Some(next) = self.queue.pop_front()
        {
            *holder = next.thread;
            return Left::Passed {
                waiter: next.waiter,
                hold: held.clone(),
            };
        }
        self.last_release = Some((now, release()));
        Left::Release {
            next: self.call_next(),
        }
    }

    /// The hold is lost, whatever its thread thinks. Somebody in line contends next: tell it.
    pub(crate) fn lost(&mut self, hold: &H) -> Option<W> {
        if self.held() != Some(hold) {
            return None;
        }
        self.forget_tenure();
        self.call_next()
    }

    /// The contender gives up. Somebody in line contends next: tell it.
    pub(crate) fn withdraw_contender(&mut self) -> Option<W> {
        debug_assert!(matches!(self.seat, Seat::Contending));
        self.call_next()
    }

    /// A thread in line gives up; `false` if it had been called out of line before.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        let place = self
            .queue
            .iter()
            .position(|waiting| waiting.ticket == ticket);
        place.is_some_and(|place| self.queue.remove(place).is_some())
    }

    fn call_next(&mut self) -> Option<W> {
        match self.queue.pop_front() {
            None => {
                self.seat = Seat::Free;
                None
            }
            Some(next) => {
                self.seat = Seat::Contending;
                Some(next.waiter)
            }
        }
    }

    /// Empties the line, for news that concern everybody in it.
    pub(crate) fn dismiss(&mut self) -> Vec<W> {
        self.queue.drain(..).map(|waiting| waiting.waiter).collect()
    }

    /// Everybody in line.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        self.queue.iter().map(|waiting| &waiting.waiter)
    }

    /// Whether nobody is here.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.seat, Seat::Free)
    }

    /// Whether nothing would be forgotten with this room.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        matches!(self.seat, Seat::Free)
            && self.last_release.as_ref().is_none_or(|(released_at, _)| {
                now.saturating_duration_since(*released_at) > self.tenure.max(GAP)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::HashSet;
    use std::fmt::Debug;

    const TENURE: Duration = Duration::from_millis(5);
    /// About as long as the tenure, so that a hold can be too old to be passed on within one.
    const LEASE: Duration = Duration::from_millis(6);

    const RENEWED: Lease = Lease::Renewed { max_hold: None };

    /// What the schedules are made of; a number is a thread.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// Comes for the lock, willing to stand in line or not; a holder comes for one hold more.
        Enter(usize, Lease, bool),
        /// Redis grants the lock to the contender, or says that somebody else has it.
        Granted(usize),
        Refused,
        /// The contender gives up.
        GiveUp(usize),
        /// One in line gives up, or one who is there no more believes it still were.
        Withdraw(usize),
        /// A guard goes: of the present hold, or of one that was lost.
        Leave(usize),
        LeaveStale(usize),
        /// The hold is found lost.
        Lost(usize),
        /// A hold that is long gone is found lost.
        LostStale(usize),
        /// The watchdog has renewed the hold.
        Renewed,
        /// Redis is out of reach: everybody in line is told.
        Dismiss,
        Pass(u64),
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Doing {
        Nothing,
        Contending,
        InLine,
        Holding,
    }

    #[derive(Debug, Clone)]
    struct Thread {
        doing: Doing,
        lease: Lease,
        ticket: Option<u64>,
        /// Holds of guards that were lost under it.
        stale: Vec<u64>,
    }

    #[derive(Debug, Clone)]
    struct Holding {
        thread: usize,
        hold: u64,
        guards: u32,
        lease: Lease,
        until: Instant,
    }

    /// The room, and next to it what must be true of it.
    #[derive(Debug)]
    struct Model {
        room: Room<usize, u64, u64>,
        threads: Vec<Thread>,
        holding: Option<Holding>,
        line: VecDeque<usize>,
        tenure_since: Option<Instant>,
        released: Option<(Instant, u64)>,
        now: Instant,
        next: u64,
        steps: Vec<Step>,
    }

    impl Model {
        fn new(threads: usize, now: Instant) -> Self {
            let thread = Thread {
                doing: Doing::Nothing,
                lease: RENEWED,
                ticket: None,
                stale: Vec::new(),
            };
            Self {
                room: Room::new(TENURE),
                threads: vec![thread; threads],
                holding: None,
                line: VecDeque::new(),
                tenure_since: None,
                released: None,
                now,
                next: 0,
                steps: Vec::new(),
            }
        }

        fn copy(&self) -> Self {
            let seat = match &self.room.seat {
                Seat::Free => Seat::Free,
                Seat::Contending => Seat::Contending,
                Seat::Held {
                    hold,
                    thread,
                    count,
                    lease,
                } => Seat::Held {
                    hold: *hold,
                    thread: *thread,
                    count: *count,
                    lease: *lease,
                },
            };
            let queue = self.room.queue.iter().map(|waiting| Waiting {
                ticket: waiting.ticket,
                thread: waiting.thread,
                lease: waiting.lease,
                waiter: waiting.waiter,
            });
            Self {
                room: Room {
                    seat,
                    queue: queue.collect(),
                    next_ticket: self.room.next_ticket,
                    tenure: self.room.tenure,
                    tenure_since: self.room.tenure_since,
                    last_release: self.room.last_release,
                },
                threads: self.threads.clone(),
                holding: self.holding.clone(),
                line: self.line.clone(),
                steps: self.steps.clone(),
                ..*self
            }
        }

        /// What distinguishes this state from others, as far as the future goes: moments by how long ago they were,
        /// and no numbers that are only names.
        fn fingerprint(&self) -> String {
            let ago = |at: Instant| self.now.saturating_duration_since(at).as_millis();
            let threads: Vec<_> = self
                .threads
                .iter()
                .map(|thread| (thread.doing, thread.ticket.is_some(), thread.stale.len()))
                .collect();
            let holding = self.holding.as_ref().map(|held| {
                let left = held.until.saturating_duration_since(self.now);
                (held.thread, held.guards, held.lease, left.as_millis())
            });
            let line: Vec<_> = self
                .line
                .iter()
                .map(|&t| (t, self.threads[t].lease))
                .collect();
            format!(
                "{threads:?}{holding:?}{line:?}{:?}{:?}",
                self.tenure_since.map(ago),
                self.released.map(|(at, _)| ago(at)),
            )
        }

        #[track_caller]
        fn check(&self, truth: bool, what: impl Debug) {
            assert!(truth, "{what:?} after {:?}, in {:?}", self.steps, self.room);
        }

        fn number(&mut self) -> u64 {
            self.next += 1;
            self.next
        }

        fn contender(&self) -> Option<usize> {
            let contends = |thread: &Thread| thread.doing == Doing::Contending;
            self.threads.iter().position(contends)
        }

        fn is_young(&self) -> bool {
            self.tenure_since
                .is_some_and(|since| self.now.duration_since(since) < TENURE)
        }

        /// What a thread that contends from now on has to be told.
        fn expected_start(&mut self) -> Start<u64> {
            let Some((at, release)) = self.released else {
                return Start::Ask;
            };
            let gap = self.now.duration_since(at);
            if gap <= TENURE.max(GAP) && self.is_young() {
                return Start::Ask;
            }
            (self.tenure_since, self.released) = (None, None);
            if gap > TENURE.max(GAP) {
                Start::Ask
            } else {
                Start::Offer(release)
            }
        }

        /// `told` was called to contend: it must have been the first in line, and begins as it should.
        fn called(&mut self, told: Option<usize>) {
            let first = self.line.pop_front();
            self.check(told == first, ("first come, first called", told, first));
            if let Some(thread) = told {
                self.threads[thread].doing = Doing::Contending;
                let start = self.room.start(self.now);
                let expected = self.expected_start();
                self.check(start == expected, ("start", start.clone(), expected));
            }
        }

        fn take(&mut self, step: Step) {
            self.steps.push(step);
            match step {
                Step::Enter(t, lease, waits) => self.enter(t, lease, waits),
                Step::Granted(t) => {
                    let hold = self.number();
                    let lease = self.threads[t].lease;
                    self.room.granted(t as u64, hold, lease, self.now);
                    self.threads[t].doing = Doing::Holding;
                    self.tenure_since.get_or_insert(self.now);
                    self.holding = Some(Holding {
                        thread: t,
                        hold,
                        guards: 1,
                        lease,
                        until: self.now + LEASE,
                    });
                }
                Step::Refused => {
                    self.room.refused();
                    (self.tenure_since, self.released) = (None, None);
                }
                Step::GiveUp(t) => {
                    self.threads[t].doing = Doing::Nothing;
                    let next = self.room.withdraw_contender();
                    self.called(next);
                }
                Step::Withdraw(t) => {
                    let in_line = self.threads[t].doing == Doing::InLine;
                    if let Some(ticket) = self.threads[t].ticket.take() {
                        let left = self.room.withdraw(ticket);
                        self.check(left == in_line, "in line or called, not both");
                    }
                    if in_line {
                        self.threads[t].doing = Doing::Nothing;
                        self.line.retain(|&other| other != t);
                    }
                }
                Step::Leave(t) => self.leave(t),
                Step::LeaveStale(t) => {
                    if let Some(hold) = self.threads[t].stale.pop() {
                        let left = self.leave_room(t, hold, self.now + LEASE);
                        self.check(matches!(left, Left::Gone), left);
                    }
                }
                Step::Lost(t) => {
                    if let Some(held) = self.holding.take() {
                        self.threads[t].doing = Doing::Nothing;
                        let stale = &mut self.threads[t].stale;
                        stale.extend((0..held.guards).map(|_| held.hold));
                        (self.tenure_since, self.released) = (None, None);
                        let next = self.room.lost(&held.hold);
                        self.called(next);
                    }
                }
                Step::LostStale(t) => {
                    if let Some(hold) = self.threads[t].stale.last() {
                        let next = self.room.lost(hold);
                        self.check(next.is_none(), "nobody is called twice");
                    }
                }
                Step::Renewed => {
                    if let Some(held) = &mut self.holding {
                        held.until = self.now + LEASE;
                    }
                }
                Step::Dismiss => {
                    let told = self.room.dismiss();
                    self.check(self.line == told, ("all of the line", &told));
                    for thread in self.line.drain(..) {
                        self.threads[thread].doing = Doing::Nothing;
                    }
                }
                Step::Pass(ms) => self.now += Duration::from_millis(ms),
            }
            self.check_all();
        }

        fn enter(&mut self, t: usize, lease: Lease, waits: bool) {
            let queue = || t;
            let queue: Option<&dyn Fn() -> usize> = if waits { Some(&queue) } else { None };
            let entered = self.room.enter(t as u64, lease, self.now, queue);
            let held = self.holding.clone();
            match entered {
                Entered::Mine {
                    hold,
                    count,
                    lease: its,
                } => {
                    let Some(held) = held.filter(|held| held.thread == t) else {
                        return self.check(false, "not its own");
                    };
                    self.check(
                        (hold, count, its) == (held.hold, held.guards, held.lease),
                        (hold, count, its),
                    );
                    let reentered = self.room.reenter(t as u64, &hold, its);
                    self.check(reentered, "a holder may");
                    let bogus = self.room.reenter(t as u64, &(hold + 1_000_000), its)
                        || self.room.reenter(t as u64 + 1, &hold, its);
                    self.check(!bogus, "others may not");
                    if let Some(held) = &mut self.holding {
                        held.guards += 1;
                    }
                }
                Entered::Contend(start) => {
                    let free = held.is_none() && self.contender().is_none();
                    self.check(free && self.line.is_empty(), "nobody is overtaken");
                    self.threads[t].doing = Doing::Contending;
                    self.threads[t].lease = lease;
                    let expected = self.expected_start();
                    self.check(start == expected, ("start", start.clone(), expected));
                }
                Entered::Queued(ticket) => {
                    let taken = held.is_some_and(|held| held.thread != t);
                    self.check(waits && (taken || self.contender().is_some()), "it is free");
                    self.threads[t].doing = Doing::InLine;
                    self.threads[t].lease = lease;
                    self.threads[t].ticket = Some(ticket);
                    self.line.push_back(t);
                }
                Entered::Busy => {
                    let taken = held.is_some_and(|held| held.thread != t);
                    self.check(
                        !waits && (taken || self.contender().is_some()),
                        "it is free",
                    );
                }
            }
        }

        fn leave_room(&mut self, t: usize, hold: u64, until: Instant) -> Left<usize, u64> {
            let release = self.number();
            let validity = Validity {
                until,
                lease: LEASE,
            };
            self.room
                .leave(t as u64, &hold, validity, self.now, &|| release)
        }

        fn leave(&mut self, t: usize) {
            let Some(mut held) = self.holding.take() else {
                return;
            };
            // What must be true for the hold to change threads.
            let left = held.until.saturating_duration_since(self.now);
            let spare = match held.lease {
                Lease::Renewed { max_hold: None } => left >= LEASE / 2,
                Lease::Renewed { max_hold: Some(_) } => false,
                Lease::Fixed(lease) => left >= lease * 9 / 10,
            };
            let next = self.line.front().copied();
            let same = next.is_some_and(|next| self.threads[next].lease == held.lease);
            let passes = same && spare && self.is_young();

            match self.leave_room(t, held.hold, held.until) {
                Left::Nested { count } => {
                    held.guards -= 1;
                    self.check(count == held.guards && count > 0, count);
                    self.holding = Some(held);
                }
                Left::Passed { waiter, hold } => {
                    self.check(held.guards == 1 && passes, "passed on against the rules");
                    self.check(Some(waiter) == next && hold == held.hold, "first in line");
                    self.line.pop_front();
                    self.threads[t].doing = Doing::Nothing;
                    self.threads[waiter].doing = Doing::Holding;
                    held.thread = waiter;
                    self.holding = Some(held);
                }
                Left::Release { next } => {
                    self.check(held.guards == 1 && !passes, "could have been passed on");
                    self.threads[t].doing = Doing::Nothing;
                    self.released = Some((self.now, self.next));
                    self.called(next);
                }
                Left::Gone => self.check(false, "it is there"),
            }
        }

        /// What is true at any time.
        fn check_all(&self) {
            let count = |doing| {
                let same = |thread: &&Thread| thread.doing == doing;
                self.threads.iter().filter(same).count()
            };
            let (holders, contenders) = (count(Doing::Holding), count(Doing::Contending));
            self.check(holders + contenders <= 1, "one at most");
            self.check(
                holders + contenders == 1 || self.line.is_empty(),
                "somebody is forgotten",
            );
            self.check(
                self.room.waiters().eq(self.line.iter()),
                "the line is in order",
            );
            let held = self.holding.as_ref();
            self.check(self.room.held() == held.map(|held| &held.hold), "held");
            for t in 0..self.threads.len() {
                let guards = held.filter(|held| held.thread == t).map_or(0, |h| h.guards);
                self.check(self.room.count(t as u64) == guards, ("count", t));
            }
            if self.room.is_idle(self.now) {
                self.check(holders + contenders + self.line.len() == 0, "not idle");
            }
            let later = self.now + Duration::from_secs(1);
            let empty = holders + contenders == 0;
            self.check(self.room.is_idle(later) == empty, "idle in the end");
        }

        /// Everything that may happen next; `leases` are those that threads come with.
        fn possible(&self, leases: &dyn Fn(usize) -> Lease, steps: &mut Vec<Step>) {
            steps.clear();
            for (t, thread) in self.threads.iter().enumerate() {
                match thread.doing {
                    Doing::Nothing => {
                        steps.push(Step::Enter(t, leases(t), true));
                        steps.push(Step::Enter(t, leases(t), false));
                    }
                    Doing::Contending => {
                        steps.extend([Step::Granted(t), Step::Refused, Step::GiveUp(t)]);
                    }
                    Doing::InLine => {}
                    Doing::Holding => {
                        steps.extend([Step::Leave(t), Step::Lost(t), Step::Renewed]);
                        steps.push(Step::Enter(t, leases(t), true));
                    }
                }
                if thread.ticket.is_some() {
                    steps.push(Step::Withdraw(t));
                }
                if !thread.stale.is_empty() {
                    steps.extend([Step::LeaveStale(t), Step::LostStale(t)]);
                }
            }
            if !self.line.is_empty() {
                steps.push(Step::Dismiss);
            }
            steps.extend([Step::Pass(2), Step::Pass(6)]);
        }

        /// Lets everybody finish: no thread is left behind, and the room can be forgotten.
        fn finish(&mut self) {
            for _ in 0..100 {
                if let Some(t) = self.contender() {
                    self.take(Step::Granted(t));
                } else if let Some(t) = self.holding.as_ref().map(|held| held.thread) {
                    self.take(Step::Leave(t));
                } else {
                    self.take(Step::Pass(100));
                    let over = |thread: &Thread| thread.doing == Doing::Nothing;
                    self.check(self.threads.iter().all(over), "somebody still waits");
                    self.check(self.room.is_idle(self.now), "idle");
                    return;
                }
            }
            self.check(false, "it comes to an end");
        }
    }

    /// Three threads, two of which want the same lease, and everything that they can do in ten steps.
    #[test]
    fn every_short_schedule_keeps_the_rules() {
        let leases = |t| {
            if t < 2 { RENEWED } else { Lease::Fixed(LEASE) }
        };
        let mut seen = HashSet::new();
        let mut frontier = vec![Model::new(3, Instant::now())];
        let mut steps = Vec::new();
        for _ in 0..10 {
            let mut next = Vec::new();
            for model in frontier {
                model.possible(&leases, &mut steps);
                for &step in &steps {
                    let mut model = model.copy();
                    model.take(step);
                    if seen.insert(model.fingerprint()) {
                        next.push(model);
                    }
                }
            }
            frontier = next;
        }
        assert!(seen.len() > 10_000, "{} states", seen.len());
        // From anywhere everybody comes home.
        for mut model in frontier.into_iter().step_by(7) {
            model.finish();
        }
    }

    /// Longer schedules of more threads and all kinds of leases, drawn at random but the same in every run.
    #[test]
    fn random_schedules_keep_the_rules() {
        let mut dice = 0x9E37_79B9_7F4A_7C15_u64;
        let mut draw = move |n: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            usize::try_from(dice >> 33).unwrap_or(0) % n
        };
        let kinds = [
            RENEWED,
            RENEWED,
            RENEWED,
            Lease::Fixed(LEASE),
            Lease::Renewed {
                max_hold: Some(LEASE),
            },
        ];
        let now = Instant::now();
        let mut steps = Vec::new();
        let (mut passed, mut offered) = (0, 0);
        for _ in 0..100_000 {
            let mut model = Model::new(2 + draw(4), now);
            for _ in 0..8 + draw(16) {
                let lease = kinds[draw(kinds.len())];
                model.possible(&|_| lease, &mut steps);
                let step = steps[draw(steps.len())];
                let before = model.holding.as_ref().map(|held| (held.thread, held.hold));
                let tenure = model.released.is_some() && model.tenure_since.is_some();
                model.take(step);
                let after = model.holding.as_ref().map(|held| (held.thread, held.hold));
                if let (Some((one, hold)), Some((other, same))) = (before, after) {
                    passed += u32::from(one != other && hold == same);
                }
                offered += u32::from(tenure && model.tenure_since.is_none());
            }
            model.finish();
        }
        assert!(passed > 1000 && offered > 1000, "{passed} {offered}");
    }

    #[test]
    fn a_tenure_that_is_over_ends_with_an_offer() {
        let mut now = Instant::now();
        let mut room: Room<usize, u64, u64> = Room::new(TENURE);
        let validity = |now| Validity {
            until: now + LEASE,
            lease: LEASE,
        };
        // One thread alone, again and again: its own gaps do not end the tenure.
        for release in 1..=6 {
            let entered = room.enter(1, RENEWED, now, None);
            assert!(
                matches!(entered, Entered::Contend(Start::Ask)),
                "{entered:?}"
            );
            room.granted(1, release, RENEWED, now);
            now += Duration::from_micros(700);
            let left = room.leave(1, &release, validity(now), now, &|| release);
            assert!(matches!(left, Left::Release { next: None }), "{left:?}");
            now += Duration::from_micros(100);
        }
        now += Duration::from_millis(1);
        let entered = room.enter(1, RENEWED, now, None);
        assert!(
            matches!(entered, Entered::Contend(Start::Offer(6))),
            "{entered:?}"
        );
        // Offered once; what follows is a new tenure.
        room.granted(1, 7, RENEWED, now);
        let left = room.leave(1, &7, validity(now), now, &|| 7);
        assert!(matches!(left, Left::Release { next: None }));
        let entered = room.enter(1, RENEWED, now, None);
        assert!(matches!(entered, Entered::Contend(Start::Ask)));
    }

    #[test]
    fn without_a_tenure_nothing_is_passed_on() {
        let now = Instant::now();
        let mut room: Room<usize, u64, u64> = Room::new(Duration::ZERO);
        room.enter(1, RENEWED, now, None);
        room.granted(1, 1, RENEWED, now);
        assert!(matches!(
            room.enter(2, RENEWED, now, Some(&|| 2)),
            Entered::Queued(_)
        ));
        let validity = Validity {
            until: now + LEASE,
            lease: LEASE,
        };
        let left = room.leave(1, &1, validity, now, &|| 1);
        assert!(matches!(left, Left::Release { next: Some(2) }), "{left:?}");
        assert_eq!(room.start(now), Start::Offer(1));
    }
}
