use super::*;

use crate::local::cohort::GAP;
use crate::search::{Digest, asked_for};

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

const TENURE: Duration = Duration::from_millis(6);
/// As long as the tenure, so that a hold can be too old to be passed on within one.
const LEASE: Duration = Duration::from_millis(6);

/// Half a lease, so that two or three of them meet every limit exactly or just miss it.
const HALF: Duration = Duration::from_millis(3);
/// Exactly the part of a fixed lease that may have passed at a hand-over.
const TENTH: Duration = Duration::from_micros(600);
/// Past every limit.
const LONG: Duration = Duration::from_millis(9);

const RENEWED: LeasePolicy = LeasePolicy::Renewed { max_hold: None };
const FIXED: LeasePolicy = LeasePolicy::Fixed(LEASE);
const LIMITED: LeasePolicy = LeasePolicy::Renewed {
    max_hold: Some(LEASE),
};

/// A hold, as the local lock sees it.
#[derive(Debug, Clone, Copy)]
struct Grant {
    number: u64,
    until: Instant,
    may_change_threads: bool,
}

impl PartialEq for Grant {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Holding for Grant {
    fn validity(&self) -> Validity {
        Validity {
            until: self.until,
            lease: LEASE,
            may_change_threads: self.may_change_threads,
        }
    }
}

/// A waiter is the number of its thread, a release that of its making.
type TestLock = LocalLock<usize, Grant, u64>;

/// The steps of a schedule; `t` is a thread, other numbers are holds.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Wants the lock, willing to wait or not; a holder wants one more hold, or a shared one below.
    Enter(usize, Mode, LeasePolicy, bool),
    /// Redis grants the lock to a thread that asks, with or without a token to spare.
    Granted(usize, bool),
    /// Redis replies that another process has the lock.
    Refused,
    /// A thread that asks gives up.
    GiveUp(usize),
    /// A queued thread gives up, or one that was woken and does not know it yet.
    Withdraw(usize),
    /// A guard is dropped: of a present hold, or of one that was lost.
    Leave(usize, Mode),
    LeaveStale(usize),
    /// A hold is found lost.
    Lost(u64),
    /// A hold that is long gone is found lost.
    LostStale(usize),
    /// The watchdog has renewed a hold.
    Renewed(u64),
    /// A thread that asks finds Redis unreachable for as long as the threads with odd numbers allow: these leave the
    /// queue.
    Dismiss,
    Pass(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    Asking(Mode),
    Queued(Mode),
}

#[derive(Debug, Clone)]
struct Thread {
    doing: Doing,
    lease: LeasePolicy,
    /// Kept for as long as the thread may not know that it was woken.
    ticket: Option<u64>,
    /// Holds of guards that were lost under it.
    stale: Vec<Grant>,
}

/// A hold, and how many guards of it each thread has.
#[derive(Debug, Clone)]
struct Hold {
    grant: Grant,
    mode: Mode,
    lease: LeasePolicy,
    /// When it was granted; others may join for a tenure.
    since: Instant,
    guards: Vec<(usize, u32)>,
}

impl Hold {
    fn guards_of(&self, t: usize) -> Option<u32> {
        let own_guards = self.guards.iter().find(|(thread, _)| *thread == t);
        own_guards.map(|(_, guards)| *guards)
    }

    /// Whether others may still join it.
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.since) <= TENURE
    }

    /// Whether it is young enough, and of a kind, to go to a thread that comes with `lease`.
    fn suits(&self, lease: LeasePolicy, now: Instant) -> bool {
        let lease_left = self.grant.until.saturating_duration_since(now);
        let spare = match lease {
            LeasePolicy::Renewed { max_hold: None } => lease_left >= LEASE / 2,
            LeasePolicy::Renewed { max_hold: Some(_) } => false,
            LeasePolicy::Fixed(lease) => lease_left >= lease * 9 / 10,
        };
        self.lease == lease && spare
    }
}

/// The expected turn of a thread that enters, or is first in the queue.
#[derive(Debug, PartialEq, Eq)]
enum ExpectedTurn {
    Join,
    Ask,
    Wait,
    /// The thread has such a hold already, has an exclusive one above it, or shares one that would block it without
    /// end.
    Again,
    Below,
    Never,
}

/// The lock, and next to it what must be true of it.
#[derive(Debug, Clone)]
struct Model {
    lock: TestLock,
    threads: Vec<Thread>,
    holds: Vec<Hold>,
    queue: VecDeque<usize>,
    tenure_since: Option<Instant>,
    released: Option<(Instant, u64)>,
    now: Instant,
    next: u64,
    steps: Vec<Step>,
    /// How often what happened, for the schedules to show that they got everywhere.
    coverage: Seen,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    passed: u32,
    yielded: u32,
    joined: u32,
    joined_from_queue: u32,
    below: u32,
    beside: u32,
    replaced: u32,
}

impl Model {
    fn new(order: Order, threads: usize, now: Instant) -> Self {
        let thread = Thread {
            doing: Doing::Nothing,
            lease: RENEWED,
            ticket: None,
            stale: Vec::new(),
        };
        Self {
            lock: LocalLock::new(order, TENURE),
            threads: vec![thread; threads],
            holds: Vec::new(),
            queue: VecDeque::new(),
            tenure_since: None,
            released: None,
            now,
            next: 0,
            steps: Vec::new(),
            coverage: Seen::default(),
        }
    }

    /// A hash of everything that decides about the future: moments by how long ago they were, and no numbers that are
    /// only names.
    fn fingerprint(&self) -> u64 {
        let ago = |at: Instant| self.now.saturating_duration_since(at).min(LONG);
        let kind = |lease| match lease {
            LeasePolicy::Renewed { max_hold } => (true, max_hold),
            LeasePolicy::Fixed(lease) => (false, Some(lease)),
        };
        let mut print = Digest::default();
        for thread in &self.threads {
            let wants = (thread.doing != Doing::Nothing).then(|| kind(thread.lease));
            (thread.doing, wants, thread.ticket.is_some()).hash(&mut print);
            thread.stale.len().hash(&mut print);
        }
        for hold in &self.holds {
            let lease_left = hold.grant.until.saturating_duration_since(self.now);
            (hold.mode, kind(hold.lease), &hold.guards).hash(&mut print);
            (hold.mode == Mode::Shared)
                .then(|| ago(hold.since))
                .hash(&mut print);
            (lease_left, hold.grant.may_change_threads).hash(&mut print);
        }
        self.queue.hash(&mut print);
        self.tenure_since.map(ago).hash(&mut print);
        self.released.map(|(at, _)| ago(at)).hash(&mut print);
        print.finish()
    }

    #[track_caller]
    fn check(&self, truth: bool, message: impl Debug) {
        assert!(
            truth,
            "{message:?} after {:?}, in {:?}",
            self.steps, self.lock
        );
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_local(&self) -> bool {
        self.lock.order == Order::Local
    }

    fn asking(&self, mode: Mode) -> usize {
        let asks = |thread: &&Thread| thread.doing == Doing::Asking(mode);
        self.threads.iter().filter(asks).count()
    }

    fn writer(&self) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.mode == Mode::Exclusive)
    }

    /// The hold that a thread has in this mode.
    fn own(&self, t: usize, mode: Mode) -> Option<&Hold> {
        let is_own = |hold: &&Hold| hold.mode == mode && hold.guards_of(t).is_some();
        self.holds.iter().find(is_own)
    }

    fn turn_of_comer(
        &self,
        t: usize,
        mode: Mode,
        lease: LeasePolicy,
        patient: bool,
    ) -> ExpectedTurn {
        let has = |mode| self.own(t, mode).is_some();
        match (mode, has(Mode::Exclusive), has(Mode::Shared)) {
            (Mode::Exclusive, true, _) | (Mode::Shared, _, true) => ExpectedTurn::Again,
            (Mode::Shared, true, false) => ExpectedTurn::Below,
            (Mode::Exclusive, false, true) => ExpectedTurn::Never,
            (_, false, false) if self.queue.is_empty() => self.turn(mode, lease, patient),
            // A thread that does not wait is not held up by readers that do.
            (Mode::Shared, ..) if !patient && !self.writers_queued() => {
                self.turn(mode, lease, patient)
            }
            (_, false, false) => ExpectedTurn::Wait,
        }
    }

    /// The turn of a thread that holds nothing, when nobody is queued before it.
    fn turn(&self, mode: Mode, lease: LeasePolicy, patient: bool) -> ExpectedTurn {
        if !self.is_local() {
            return ExpectedTurn::Ask;
        }
        let writers = self.writer().is_some() || self.asking(Mode::Exclusive) > 0;
        let readers_ask = self.asking(Mode::Shared) > 0;
        // Locking again changes a fixed lease, so a hold with one is not shared.
        let shares = lease == RENEWED;
        let fits = |hold: &Hold| shares && hold.is_open(self.now) && hold.suits(lease, self.now);
        match mode {
            _ if writers => ExpectedTurn::Wait,
            Mode::Shared if self.holds.iter().any(fits) => ExpectedTurn::Join,
            Mode::Shared if !readers_ask || !patient => ExpectedTurn::Ask,
            Mode::Exclusive if !readers_ask && self.holds.is_empty() => ExpectedTurn::Ask,
            _ => ExpectedTurn::Wait,
        }
    }

    fn writers_queued(&self) -> bool {
        let writes = |&&t: &&usize| matches!(self.threads[t].doing, Doing::Queued(Mode::Exclusive));
        self.queue.iter().any(|t| writes(&t))
    }

    fn turn_of_first(&self) -> Option<(usize, ExpectedTurn)> {
        let &t = self.queue.front()?;
        let Doing::Queued(mode) = self.threads[t].doing else {
            return None;
        };
        Some((t, self.turn(mode, self.threads[t].lease, true)))
    }

    fn is_young(&self) -> bool {
        self.tenure_since
            .is_some_and(|since| self.now.duration_since(since) < TENURE)
    }

    /// How a thread that contends from now on has to begin.
    fn expected_start(&mut self) -> Option<u64> {
        let (at, release) = self.released?;
        let gap = self.now.duration_since(at);
        if gap <= TENURE.max(GAP) && self.is_young() {
            return None;
        }
        (self.tenure_since, self.released) = (None, None);
        if gap > TENURE.max(GAP) {
            None
        } else {
            self.coverage.yielded += 1;
            Some(release)
        }
    }

    fn contends(&mut self, t: usize, mode: Mode, start: &Option<u64>) {
        self.threads[t].doing = Doing::Asking(mode);
        let expected = match self.is_local() {
            true => self.expected_start(),
            false => None,
        };
        self.check(*start == expected, ("start", start, expected));
    }

    /// `t` shares this hold now: it must be one that takes it.
    fn joins(&mut self, t: usize, grant: Grant, lease: LeasePolicy) {
        let now = self.now;
        let place = self.holds.iter().position(|hold| hold.grant == grant);
        self.check(place.is_some(), ("a hold that is there", grant));
        let hold = &mut self.holds[place.unwrap_or(0)];
        let fits = hold.mode == Mode::Shared && hold.is_open(now) && hold.suits(lease, now);
        hold.guards.push((t, 1));
        self.check(fits, ("a hold that takes more", grant));
        self.threads[t].doing = Doing::Nothing;
    }

    /// These threads were woken: they must have been first in the queue, in this order, and each does what it may do. A
    /// thread that is left in the queue must have somebody to wait for.
    fn woken(&mut self, wakeups: Wakeups<usize, Grant>) {
        let mut joined = wakeups.joined.into_iter().peekable();
        let mut contend = wakeups.contend;
        while let Some(&first) = self.queue.front() {
            let turn = self.turn_of_first();
            if let Some((t, grant)) = joined.next_if(|(t, _)| *t == first) {
                self.check(turn == Some((t, ExpectedTurn::Join)), ("joins", t));
                self.coverage.joined_from_queue += 1;
                self.joins(t, grant, self.threads[t].lease);
            } else if let Some(t) = contend.take_if(|t| *t == first) {
                self.check(turn == Some((t, ExpectedTurn::Ask)), ("asks", t));
                let start = self.lock.cohort.yield_after(self.now);
                if let Doing::Queued(mode) = self.threads[t].doing {
                    self.contends(t, mode, &start);
                }
            } else {
                self.check(
                    turn == Some((first, ExpectedTurn::Wait)),
                    ("not woken", turn),
                );
                break;
            }
            self.queue.pop_front();
        }
        let all = joined.next().is_none() && contend.is_none();
        self.check(all, "somebody is woken out of turn");
    }

    fn take(&mut self, step: Step) {
        self.steps.push(step);
        match step {
            Step::Enter(t, mode, lease, waits) => self.enter(t, mode, lease, waits),
            Step::Granted(t, may_change_threads) => self.granted(t, may_change_threads),
            Step::Refused => {
                self.lock.record_refusal();
                (self.tenure_since, self.released) = (None, None);
            }
            Step::GiveUp(t) => {
                if let Doing::Asking(mode) = self.threads[t].doing {
                    self.threads[t].doing = Doing::Nothing;
                    self.threads[t].ticket = None;
                    let wakeups = self.lock.withdraw_contender(mode, self.now);
                    self.woken(wakeups);
                }
            }
            Step::Withdraw(t) => {
                let queued = matches!(self.threads[t].doing, Doing::Queued(_));
                if let Some(ticket) = self.threads[t].ticket.take() {
                    let wakeups = self.lock.withdraw(ticket, self.now);
                    self.check(wakeups.is_some() == queued, "queued or woken, not both");
                    if queued {
                        self.threads[t].doing = Doing::Nothing;
                        self.queue.retain(|&other| other != t);
                    }
                    if let Some(wakeups) = wakeups {
                        self.woken(wakeups);
                    }
                }
            }
            Step::Leave(t, mode) => self.leave(t, mode),
            Step::LeaveStale(t) => {
                if let Some(grant) = self.threads[t].stale.pop() {
                    let (outcome, released) = self.leave_hold(t, grant);
                    self.check(
                        matches!(outcome, LeaveOutcome::Gone) && released.is_none(),
                        outcome,
                    );
                }
            }
            Step::Lost(number) => self.lost(number),
            Step::LostStale(t) => {
                if let Some(grant) = self.threads[t].stale.last() {
                    let wakeups = self.lock.lost(grant, self.now);
                    let nobody = wakeups.joined.is_empty() && wakeups.contend.is_none();
                    self.check(nobody, "nobody is woken twice");
                }
            }
            Step::Renewed(number) => {
                let until = self.now + LEASE;
                let holder = self
                    .lock
                    .exclusive
                    .iter_mut()
                    .map(|holder| &mut holder.hold);
                let groups = self.lock.shared.iter_mut().map(|group| &mut group.hold);
                let model_holds = self.holds.iter_mut().map(|hold| &mut hold.grant);
                for grant in holder.chain(groups).chain(model_holds) {
                    if grant.number == number {
                        grant.until = until;
                    }
                }
            }
            Step::Dismiss => {
                let dismissed = self.lock.dismiss(|t| t % 2 == 1);
                let is_dismissed = |t: &usize| t % 2 == 1 && self.lock.exclusive.is_none();
                let (odd, rest): (VecDeque<_>, _) = self.queue.drain(..).partition(is_dismissed);
                self.queue = rest;
                self.check(odd == dismissed, ("those with odd numbers", &dismissed));
                for t in odd {
                    self.threads[t].doing = Doing::Nothing;
                    self.threads[t].ticket = None;
                }
            }
            Step::Pass(time) => self.now += time,
        }
        self.check_all();
    }

    fn enter(&mut self, t: usize, mode: Mode, lease: LeasePolicy, waits: bool) {
        let turn = self.turn_of_comer(t, mode, lease, waits);
        let queue = || t;
        let queue: Option<&dyn Fn() -> usize> = if waits { Some(&queue) } else { None };
        let entered = self
            .lock
            .enter(t as u64, mode, lease, self.now, queue, false);
        self.threads[t].ticket = None;
        self.threads[t].lease = lease;
        match entered {
            Entered::Mine {
                hold,
                count,
                lease: held_lease,
            } => {
                self.check(turn == ExpectedTurn::Again, turn);
                self.enters_again(t, mode, lease, (hold, count, held_lease));
            }
            Entered::Contend {
                yields_after: start,
                under: Some(hold),
            } => {
                let above = self.own(t, Mode::Exclusive).map(|hold| hold.grant);
                self.check(
                    turn == ExpectedTurn::Below && above == Some(hold),
                    (turn, hold),
                );
                self.check(start.is_none(), start);
                self.coverage.below += 1;
                self.threads[t].doing = Doing::Asking(mode);
            }
            Entered::Contend {
                yields_after: start,
                under: None,
            } => {
                self.check(turn == ExpectedTurn::Ask, turn);
                self.coverage.beside += u32::from(self.is_local() && self.asking(mode) > 0);
                self.contends(t, mode, &start);
            }
            Entered::Joined(hold) => {
                self.check(turn == ExpectedTurn::Join, turn);
                self.coverage.joined += 1;
                self.joins(t, hold, lease);
            }
            Entered::Queued(ticket) => {
                self.check(turn == ExpectedTurn::Wait && waits, turn);
                self.threads[t].doing = Doing::Queued(mode);
                self.threads[t].ticket = Some(ticket);
                self.queue.push_back(t);
            }
            Entered::Busy => self.check(turn == ExpectedTurn::Wait && !waits, turn),
            Entered::Deadlock(_) => self.check(turn == ExpectedTurn::Never, turn),
        }
    }

    /// The thread has such a hold, and takes one more of it.
    fn enters_again(
        &mut self,
        t: usize,
        mode: Mode,
        wanted: LeasePolicy,
        found: (Grant, u32, LeasePolicy),
    ) {
        let is_own = |hold: &&mut Hold| hold.mode == mode && hold.guards_of(t).is_some();
        let Some(hold) = self.holds.iter_mut().find(is_own) else {
            return;
        };
        let has = (hold.grant, hold.guards_of(t).unwrap_or(0), hold.lease);
        // A renewed hold stays renewed; a fixed lease becomes the lease that is wanted now.
        if matches!(hold.lease, LeasePolicy::Fixed(_)) {
            hold.lease = wanted;
        }
        for (thread, guards) in &mut hold.guards {
            *guards += u32::from(*thread == t);
        }
        let (thread, lease) = (t as u64, hold.lease);
        let strange = Grant {
            number: has.0.number + 1_000_000,
            ..has.0
        };
        let bogus = self.lock.reenter(thread, &strange, lease)
            || self.lock.reenter(thread + 100, &has.0, lease);
        let reentered = self.lock.reenter(thread, &has.0, lease);
        self.check(found == has, ("its own", found, has));
        self.check(reentered && !bogus, "a holder may, others may not");
    }

    fn granted(&mut self, t: usize, may_change_threads: bool) {
        let Doing::Asking(mode) = self.threads[t].doing else {
            return;
        };
        let grant = Grant {
            number: self.number(),
            until: self.now + LEASE,
            may_change_threads,
        };
        let lease = self.threads[t].lease;
        let wakeups = self
            .lock
            .granted(t as u64, mode, grant, lease, false, self.now);
        self.threads[t].doing = Doing::Nothing;
        self.threads[t].ticket = None;
        if mode == Mode::Exclusive {
            if let Some(number) = self.writer().map(|hold| hold.grant.number) {
                // The earlier hold's lease was over in Redis, although this process did not know.
                self.check(!self.is_local(), "two writers");
                self.coverage.replaced += 1;
                self.forget(number);
            }
            self.tenure_since.get_or_insert(self.now);
        }
        self.holds.push(Hold {
            grant,
            mode,
            lease,
            since: self.now,
            guards: vec![(t, 1)],
        });
        self.woken(wakeups);
    }

    /// The hold is gone, and its guards do not know that yet.
    fn forget(&mut self, number: u64) -> Option<Hold> {
        let place = self
            .holds
            .iter()
            .position(|hold| hold.grant.number == number)?;
        let hold = self.holds.remove(place);
        for &(t, guards) in &hold.guards {
            let stale = (0..guards).map(|_| hold.grant);
            self.threads[t].stale.extend(stale);
            self.threads[t].ticket = None;
        }
        Some(hold)
    }

    fn lost(&mut self, number: u64) {
        if let Some(hold) = self.forget(number) {
            if hold.mode == Mode::Exclusive {
                (self.tenure_since, self.released) = (None, None);
            }
            let wakeups = self.lock.lost(&hold.grant, self.now);
            self.woken(wakeups);
        }
    }

    /// Releases the hold; returns the outcome and the release that was made.
    fn leave_hold(&mut self, t: usize, grant: Grant) -> (LeaveOutcome<usize, Grant>, Option<u64>) {
        let number = self.number();
        let made = Cell::new(None);
        let release = || {
            assert!(made.replace(Some(number)).is_none(), "released twice");
            number
        };
        let outcome = self.lock.leave(t as u64, &grant, self.now, &release);
        (outcome, made.get())
    }

    fn leave(&mut self, t: usize, mode: Mode) {
        let is_own = |hold: &Hold| hold.mode == mode && hold.guards_of(t).is_some();
        let Some(place) = self.holds.iter().position(is_own) else {
            return;
        };
        let hold = self.holds[place].clone();
        let guards = hold.guards_of(t).unwrap_or(0);
        // The conditions under which the hold may change threads.
        let first = self.queue.front().copied();
        let same = first.is_some_and(|first| {
            let first = &self.threads[first];
            first.doing == Doing::Queued(mode) && hold.suits(first.lease, self.now)
        });
        let only = self.holds.len() == 1;
        let passes = mode == Mode::Exclusive
            && same
            && only
            && self.is_young()
            && hold.grant.may_change_threads;
        self.threads[t].ticket = None;

        let (outcome, _) = self.leave_hold(t + 100, hold.grant);
        self.check(
            matches!(outcome, LeaveOutcome::Gone),
            "others have nothing to leave",
        );
        let (outcome, release) = self.leave_hold(t, hold.grant);
        let ends = matches!(outcome, LeaveOutcome::Release { .. });
        self.check(release.is_some() == ends, "released or not");
        match outcome {
            LeaveOutcome::Nested { count } => {
                self.check(count + 1 == guards && count > 0, count);
                for (thread, guards) in &mut self.holds[place].guards {
                    *guards -= u32::from(*thread == t);
                }
            }
            LeaveOutcome::Shared => {
                let others = mode == Mode::Shared && hold.guards.len() > 1;
                self.check(others && guards == 1, "others share it");
                self.holds[place].guards.retain(|(thread, _)| *thread != t);
            }
            LeaveOutcome::Passed { waiter } => {
                self.check(guards == 1 && passes, "passed on against the rules");
                self.check(Some(waiter) == first, "first in the queue");
                self.coverage.passed += 1;
                self.queue.pop_front();
                self.threads[waiter].doing = Doing::Nothing;
                self.holds[place].guards = vec![(waiter, 1)];
            }
            LeaveOutcome::Release { next } => {
                let last = guards == 1 && hold.guards.len() == 1;
                self.check(last && !passes, "somebody could have had it");
                self.holds.remove(place);
                let goes_on = self.tenure_since.is_some() && self.writer().is_none();
                if mode == Mode::Exclusive || goes_on {
                    self.released = release.map(|release| (self.now, release));
                }
                self.woken(next);
            }
            LeaveOutcome::Gone => self.check(false, "it is there"),
        }
    }

    /// Checks the rules that hold after every step.
    fn check_all(&self) {
        let lock = &self.lock;
        let (writing, reading) = (self.asking(Mode::Exclusive), self.asking(Mode::Shared));
        self.check(
            (lock.asking_exclusive as usize, lock.asking_shared as usize) == (writing, reading),
            "asking",
        );
        let free = self.holds.is_empty() && writing + reading == 0;
        self.check(lock.is_free() == free, "free");
        self.check(!free || self.queue.is_empty(), "somebody is forgotten");
        self.check(
            lock.waiters().eq(self.queue.iter()),
            "the queue is in order",
        );

        let is_known = |hold: &Grant| self.holds.iter().any(|held| held.grant == *hold);
        self.check(lock.holds().all(is_known), "holds");
        self.check(lock.holds().count() == self.holds.len(), "holds");
        for t in 0..self.threads.len() {
            for mode in [Mode::Exclusive, Mode::Shared] {
                let has = self
                    .own(t, mode)
                    .map(|hold| (&hold.grant, hold.guards_of(t).unwrap_or(0)));
                self.check(lock.count(t as u64, mode) == has, ("count", t, mode));
            }
        }

        if self.is_local() {
            self.check(
                writing == 0 || (writing == 1 && self.holds.is_empty() && reading == 0),
                "a writer that asks is alone",
            );
            if let Some(writer) = self.writer() {
                // The writer may have a shared hold of its own.
                let others = |t: usize| writer.guards_of(t).is_none();
                let asks = |t: usize| matches!(self.threads[t].doing, Doing::Asking(_));
                let shares = |t: usize| self.own(t, Mode::Shared).is_some();
                let meets = (0..self.threads.len()).any(|t| others(t) && (asks(t) || shares(t)));
                self.check(!meets && self.holds.len() <= 2, "a writer is alone");
            }
            let tenure = lock.cohort.parts();
            self.check(tenure == (self.tenure_since, self.released), tenure);
        } else {
            self.check(self.queue.is_empty(), "the server keeps the queue");
        }
        // A hold that has been renewed takes those in the queue once somebody is woken.
        if let Some((t, turn)) = self.turn_of_first() {
            let later = turn == ExpectedTurn::Join && reading > 0;
            self.check(turn == ExpectedTurn::Wait || later, ("forgotten", t, turn));
        }

        let gap = |at| self.now.duration_since(at);
        let remembers = self
            .released
            .is_some_and(|(at, _)| gap(at) <= TENURE.max(GAP));
        self.check(lock.is_idle(self.now) == (free && !remembers), "idle");
        let later = self.now + Duration::from_secs(1);
        self.check(lock.is_idle(later) == free, "idle in the end");
    }

    /// Everything that may happen next; `wants` is what threads come for, `times` what may pass.
    fn possible<'w>(
        &self,
        wants: &dyn Fn(usize) -> &'w [(Mode, LeasePolicy)],
        times: &[Duration],
        steps: &mut Vec<Step>,
    ) {
        steps.clear();
        for (t, thread) in self.threads.iter().enumerate() {
            match thread.doing {
                Doing::Nothing => {
                    let mut holds = false;
                    for mode in [Mode::Exclusive, Mode::Shared] {
                        if self.own(t, mode).is_some() {
                            holds = true;
                            steps.push(Step::Leave(t, mode));
                        }
                    }
                    for &(mode, lease) in wants(t) {
                        steps.push(Step::Enter(t, mode, lease, true));
                        if !holds {
                            steps.push(Step::Enter(t, mode, lease, false));
                        }
                    }
                }
                Doing::Asking(mode) => {
                    steps.extend([Step::Granted(t, true), Step::Refused, Step::GiveUp(t)]);
                    if mode == Mode::Exclusive {
                        steps.push(Step::Granted(t, false));
                    }
                }
                Doing::Queued(_) => {}
            }
            if thread.ticket.is_some() {
                steps.push(Step::Withdraw(t));
            }
            if !thread.stale.is_empty() {
                steps.extend([Step::LeaveStale(t), Step::LostStale(t)]);
            }
        }
        for hold in &self.holds {
            steps.extend([
                Step::Lost(hold.grant.number),
                Step::Renewed(hold.grant.number),
            ]);
        }
        // A thread that asks finds that, and gives up afterwards: threads that stay in the queue need that wake-up.
        let asks = |thread: &Thread| matches!(thread.doing, Doing::Asking(_));
        if !self.queue.is_empty() && self.threads.iter().any(asks) {
            steps.push(Step::Dismiss);
        }
        steps.extend(times.iter().map(|&time| Step::Pass(time)));
    }

    /// Lets all threads finish, with the lock or without: no thread is left behind, and the lock can be forgotten.
    fn finish(&mut self, with: bool) {
        for _ in 0..200 {
            let asks = |thread: &Thread| matches!(thread.doing, Doing::Asking(_));
            let step = if let Some(t) = self.threads.iter().position(asks) {
                if with {
                    Step::Granted(t, true)
                } else {
                    Step::GiveUp(t)
                }
            } else if let Some(hold) = self.holds.first() {
                if with {
                    Step::Leave(hold.guards[0].0, hold.mode)
                } else {
                    Step::Lost(hold.grant.number)
                }
            } else {
                break;
            };
            self.take(step);
        }
        self.take(Step::Pass(Duration::from_secs(1)));
        let over = |thread: &Thread| thread.doing == Doing::Nothing;
        self.check(self.threads.iter().all(over), "somebody still waits");
        self.check(self.lock.is_idle(self.now), "idle");
    }
}

/// Walks through everything that threads with these wishes can do in `depth` steps; returns the number of states.
fn walk(order: Order, wants: &[&[(Mode, LeasePolicy)]], times: &[Duration], depth: usize) -> usize {
    let mut seen_states = HashSet::new();
    let mut frontier = vec![Model::new(order, wants.len(), Instant::now())];
    let mut steps = Vec::new();
    for _ in 0..depth {
        let mut next = Vec::new();
        for model in frontier {
            model.possible(&|t| wants[t], times, &mut steps);
            for &step in &steps {
                let mut model = model.clone();
                model.take(step);
                if seen_states.insert(model.fingerprint()) {
                    next.push(model);
                }
            }
        }
        frontier = next;
    }
    // From every state all threads can finish.
    for (i, mut model) in frontier.into_iter().step_by(7).enumerate() {
        model.finish(i % 2 == 0);
    }
    seen_states.len()
}

/// Three threads that want to be alone, two of them with the same lease.
#[test]
fn every_short_schedule_of_writers_keeps_the_rules() {
    let (renewed, fixed) = ((Mode::Exclusive, RENEWED), (Mode::Exclusive, FIXED));
    let wants: [&[_]; 3] = [&[renewed], &[renewed], &[fixed]];
    let states = walk(Order::Local, &wants, &[HALF, LONG], 10);
    assert!(states > 10_000, "{states} states");
}

/// Two threads that share or want to be alone, and may do both, and one that shares with another lease.
#[test]
fn every_short_schedule_of_a_mixed_crowd_keeps_the_rules() {
    let (alone, shared) = ((Mode::Exclusive, RENEWED), (Mode::Shared, RENEWED));
    let wants: [&[_]; 3] = [&[alone, shared], &[alone, shared], &[(Mode::Shared, FIXED)]];
    let states = walk(Order::Local, &wants, &[HALF], 9);
    assert!(states > 30_000, "{states} states");
}

/// Three threads that share, and one that keeps them waiting.
#[test]
fn every_short_schedule_of_readers_keeps_the_rules() {
    let (alone, shared) = ((Mode::Exclusive, RENEWED), (Mode::Shared, RENEWED));
    let wants: [&[_]; 4] = [&[alone], &[shared], &[shared], &[shared]];
    let states = walk(Order::Local, &wants, &[], 8);
    assert!(states > 10_000, "{states} states");
}

#[test]
fn every_short_schedule_in_the_order_of_the_server_keeps_the_rules() {
    let (renewed, fixed) = ((Mode::Exclusive, RENEWED), (Mode::Exclusive, FIXED));
    let wants: [&[_]; 3] = [&[renewed], &[renewed], &[fixed]];
    let states = walk(Order::Server, &wants, &[HALF], 8);
    assert!(states > 3_000, "{states} states");
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
    let leases = [RENEWED, RENEWED, RENEWED, FIXED, LIMITED];
    let now = Instant::now();
    let mut steps = Vec::new();
    let mut coverage = Seen::default();
    let schedules = if asked_for("deep") { 100_000 } else { 20_000 };
    for i in 0..schedules {
        let order = if draw(8) > 0 {
            Order::Local
        } else {
            Order::Server
        };
        let mut model = Model::new(order, 2 + draw(4), now);
        model.coverage = coverage;
        for _ in 0..6 + draw(14) {
            let lease = leases[draw(leases.len())];
            let wants = [(Mode::Exclusive, lease), (Mode::Shared, lease)];
            // The fair lock is never shared.
            let wants = if model.is_local() {
                &wants
            } else {
                &wants[..1]
            };
            model.possible(&|_| wants, &[TENTH, HALF, LONG], &mut steps);
            model.take(steps[draw(steps.len())]);
        }
        model.finish(i % 2 == 0);
        coverage = model.coverage;
    }
    let everything = [
        coverage.passed,
        coverage.yielded,
        coverage.joined,
        coverage.joined_from_queue,
        coverage.below,
        coverage.beside,
        coverage.replaced,
    ];
    assert!(everything.iter().all(|&times| times > 100), "{coverage:?}");
}

/// `t` comes, willing to wait.
fn come(lock: &mut TestLock, t: usize, mode: Mode, lease: LeasePolicy, now: Instant) -> String {
    described(lock.enter(t as u64, mode, lease, now, Some(&|| t), false))
}

/// `t` comes, and would rather go than wait.
fn try_to(lock: &mut TestLock, t: usize, mode: Mode, now: Instant) -> String {
    described(lock.enter(t as u64, mode, RENEWED, now, None, false))
}

fn described(entered: Entered<Grant, u64>) -> String {
    match entered {
        Entered::Contend {
            yields_after,
            under,
        } => {
            let after = |release| format!("YieldAfter({release})");
            let start = yields_after.map_or_else(|| "Ask".to_owned(), after);
            match under {
                Some(hold) => format!("{start} under {}", hold.number),
                None => start,
            }
        }
        Entered::Joined(hold) => format!("Joined {}", hold.number),
        Entered::Mine { hold, count, .. } => format!("Mine {} x {count}", hold.number),
        Entered::Queued(_) => "Queued".to_owned(),
        Entered::Deadlock(_) => "Deadlock".to_owned(),
        other => format!("{other:?}"),
    }
}

fn grant(number: u64, now: Instant) -> Grant {
    Grant {
        number,
        until: now + LEASE,
        may_change_threads: true,
    }
}

/// The threads that joined, and the thread that contends.
fn woken(wakeups: &Wakeups<usize, Grant>) -> (Vec<usize>, Option<usize>) {
    let joined = wakeups.joined.iter().map(|(t, _)| *t).collect();
    (joined, wakeups.contend)
}

/// The hold is released, and these are the threads woken.
fn released(outcome: &LeaveOutcome<usize, Grant>) -> Option<(Vec<usize>, Option<usize>)> {
    match outcome {
        LeaveOutcome::Release { next } => Some(woken(next)),
        _ => None,
    }
}

#[test]
fn readers_come_in_together_up_to_the_first_writer() {
    let now = Instant::now();
    let mut lock = LocalLock::new(Order::Local, TENURE);
    assert_eq!(come(&mut lock, 1, Mode::Shared, RENEWED, now), "Ask");
    for t in [2, 3] {
        assert_eq!(come(&mut lock, t, Mode::Shared, RENEWED, now), "Queued");
    }
    let writer = lock.enter(4, Mode::Exclusive, RENEWED, now, Some(&|| 4), false);
    let Entered::Queued(ticket) = writer else {
        panic!("{writer:?}");
    };
    assert_eq!(come(&mut lock, 5, Mode::Shared, RENEWED, now), "Queued");
    let wakeups = lock.granted(1, Mode::Shared, grant(1, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![2, 3], None));
    // The writer is overtaken only by threads that hold the lock already.
    assert_eq!(try_to(&mut lock, 6, Mode::Shared, now), "Busy");
    assert_eq!(try_to(&mut lock, 2, Mode::Shared, now), "Mine 1 x 1");
    assert_eq!(try_to(&mut lock, 2, Mode::Exclusive, now), "Deadlock");
    // The writer kept one reader from joining. After it has left, the reader joins.
    let wakeups = lock.withdraw(ticket, now).map(|wakeups| woken(&wakeups));
    assert_eq!(wakeups, Some((vec![5], None)));
    assert_eq!(try_to(&mut lock, 6, Mode::Shared, now), "Joined 1");
    // The writer's turn comes when the last reader has left.
    assert_eq!(come(&mut lock, 4, Mode::Exclusive, RENEWED, now), "Queued");
    for t in [1, 2, 3, 5] {
        let outcome = lock.leave(t, &grant(1, now), now, &|| 1);
        assert!(matches!(outcome, LeaveOutcome::Shared), "{outcome:?}");
    }
    let outcome = lock.leave(6, &grant(1, now), now, &|| 1);
    assert_eq!(released(&outcome), Some((vec![], Some(4))));
}

#[test]
fn readers_that_cannot_join_have_holds_of_their_own() {
    let now = Instant::now();
    let mut lock = LocalLock::new(Order::Local, TENURE);
    assert_eq!(come(&mut lock, 1, Mode::Shared, RENEWED, now), "Ask");
    assert_eq!(come(&mut lock, 2, Mode::Shared, FIXED, now), "Queued");
    assert_eq!(come(&mut lock, 3, Mode::Shared, RENEWED, now), "Queued");
    // Reader 2 asks, and reader 3 joins without waiting for that answer.
    let wakeups = lock.granted(1, Mode::Shared, grant(1, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![3], Some(2)));
    assert_eq!(come(&mut lock, 4, Mode::Shared, FIXED, now), "Queued");
    let wakeups = lock.granted(2, Mode::Shared, grant(2, now), FIXED, false, now);
    assert_eq!(woken(&wakeups), (vec![], Some(4)));
    let wakeups = lock.granted(4, Mode::Shared, grant(4, now), FIXED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    // When a tenure is over, a hold takes no new thread; a thread that has the hold may take it once more.
    let now = now + TENURE + Duration::from_nanos(1);
    assert_eq!(come(&mut lock, 5, Mode::Shared, RENEWED, now), "Ask");
    assert_eq!(try_to(&mut lock, 1, Mode::Shared, now), "Mine 1 x 1");
    let wakeups = lock.granted(5, Mode::Shared, grant(3, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    assert_eq!(try_to(&mut lock, 6, Mode::Shared, now), "Joined 3");
    // A hold with little validity left takes no new reader either.
    let late = now + HALF + Duration::from_nanos(1);
    assert_eq!(try_to(&mut lock, 7, Mode::Shared, late), "Ask");
}

#[test]
fn readers_that_pass_writers_ask_beside_one_that_does_not() {
    let now = Instant::now();
    let mut lock: TestLock = LocalLock::new(Order::Local, TENURE);
    let pass = |lock: &mut TestLock, t: usize| {
        let queue: Option<&dyn Fn() -> usize> = Some(&|| t);
        described(lock.enter(t as u64, Mode::Shared, RENEWED, now, queue, true))
    };
    assert_eq!(come(&mut lock, 1, Mode::Shared, RENEWED, now), "Ask");
    assert_eq!(come(&mut lock, 2, Mode::Shared, RENEWED, now), "Queued");
    assert_eq!(pass(&mut lock, 3), "Ask");
    // Queued readers join its hold, whatever the first reader waits for.
    let wakeups = lock.granted(3, Mode::Shared, grant(1, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![2], None));
    // Writers of this process go first as they do for every reader.
    assert_eq!(come(&mut lock, 4, Mode::Exclusive, RENEWED, now), "Queued");
    assert_eq!(pass(&mut lock, 5), "Queued");
}

#[test]
fn a_shared_hold_below_an_exclusive_one_outlives_it() {
    let now = Instant::now();
    let mut lock = LocalLock::new(Order::Local, TENURE);
    assert_eq!(come(&mut lock, 1, Mode::Exclusive, RENEWED, now), "Ask");
    let wakeups = lock.granted(1, Mode::Exclusive, grant(1, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    assert_eq!(come(&mut lock, 2, Mode::Exclusive, RENEWED, now), "Queued");
    assert_eq!(try_to(&mut lock, 1, Mode::Shared, now), "Ask under 1");
    let wakeups = lock.granted(1, Mode::Shared, grant(2, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    assert_eq!(try_to(&mut lock, 3, Mode::Shared, now), "Busy");
    // The hold is not passed on, since the next writer would not be alone.
    let outcome = lock.leave(1, &grant(1, now), now, &|| 1);
    assert_eq!(released(&outcome), Some((vec![], None)));
    let outcome = lock.leave(1, &grant(2, now), now, &|| 2);
    assert_eq!(released(&outcome), Some((vec![], Some(2))));

    let wakeups = lock.granted(2, Mode::Exclusive, grant(3, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    assert_eq!(try_to(&mut lock, 2, Mode::Shared, now), "Ask under 3");
    let wakeups = lock.granted(2, Mode::Shared, grant(4, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    // Readers behind a queued reader join with it.
    for t in [3, 4] {
        assert_eq!(come(&mut lock, t, Mode::Shared, RENEWED, now), "Queued");
    }
    let outcome = lock.leave(2, &grant(3, now), now, &|| 3);
    assert_eq!(released(&outcome), Some((vec![3, 4], None)));
}

#[test]
fn where_the_server_keeps_the_queue_everybody_asks() {
    let now = Instant::now();
    let mut lock = LocalLock::new(Order::Server, TENURE);
    for t in [1, 2, 3] {
        assert_eq!(come(&mut lock, t, Mode::Exclusive, RENEWED, now), "Ask");
    }
    for t in [1, 2] {
        let wakeups = lock.granted(t, Mode::Exclusive, grant(t, now), RENEWED, false, now);
        assert_eq!(woken(&wakeups), (vec![], None));
    }
    // Thread 1 has lost its hold, whether it knows that or not.
    assert_eq!(lock.count(1, Mode::Exclusive), None);
    let outcome = lock.leave(1, &grant(1, now), now, &|| 1);
    assert!(matches!(outcome, LeaveOutcome::Gone), "{outcome:?}");
    assert_eq!(lock.count(2, Mode::Exclusive), Some((&grant(2, now), 1)));
    let outcome = lock.leave(2, &grant(2, now), now, &|| 2);
    assert_eq!(released(&outcome), Some((vec![], None)));
    let wakeups = lock.withdraw_contender(Mode::Exclusive, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    // The thread does not yield, although the tenure is over.
    let late = now + TENURE;
    assert_eq!(come(&mut lock, 1, Mode::Exclusive, RENEWED, late), "Ask");
}

#[test]
fn a_hold_without_a_token_to_spare_is_not_passed_on() {
    for may_change_threads in [true, false] {
        let now = Instant::now();
        let mut lock = LocalLock::new(Order::Local, TENURE);
        assert_eq!(come(&mut lock, 1, Mode::Exclusive, RENEWED, now), "Ask");
        let hold = Grant {
            may_change_threads,
            ..grant(1, now)
        };
        let wakeups = lock.granted(1, Mode::Exclusive, hold, RENEWED, false, now);
        assert_eq!(woken(&wakeups), (vec![], None));
        assert_eq!(come(&mut lock, 2, Mode::Exclusive, RENEWED, now), "Queued");
        let outcome = lock.leave(1, &hold, now, &|| 1);
        let passed = matches!(outcome, LeaveOutcome::Passed { waiter: 2, .. });
        assert_eq!(passed, may_change_threads, "{outcome:?}");
        assert_eq!(
            released(&outcome).is_some(),
            !may_change_threads,
            "{outcome:?}"
        );
    }
}

#[test]
fn a_tenure_that_is_over_ends_with_yielding() {
    let mut now = Instant::now();
    let mut lock = LocalLock::new(Order::Local, TENURE);
    // A single thread takes the lock again and again: its own gaps do not end the tenure.
    for number in 1..=6 {
        assert_eq!(try_to(&mut lock, 1, Mode::Exclusive, now), "Ask");
        let wakeups = lock.granted(1, Mode::Exclusive, grant(number, now), RENEWED, false, now);
        assert_eq!(woken(&wakeups), (vec![], None));
        now += Duration::from_micros(900);
        let outcome = lock.leave(1, &grant(number, now), now, &|| number);
        assert_eq!(released(&outcome), Some((vec![], None)));
        now += Duration::from_micros(100);
    }
    assert_eq!(try_to(&mut lock, 1, Mode::Exclusive, now), "YieldAfter(6)");
    // The thread yields once; then a new tenure begins.
    let wakeups = lock.granted(1, Mode::Exclusive, grant(7, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    let outcome = lock.leave(1, &grant(7, now), now, &|| 7);
    assert_eq!(released(&outcome), Some((vec![], None)));
    assert_eq!(try_to(&mut lock, 1, Mode::Exclusive, now), "Ask");
}

#[test]
fn a_tenure_goes_on_below_a_writer_that_became_a_reader() {
    let mut now = Instant::now();
    let mut lock = LocalLock::new(Order::Local, TENURE);
    assert_eq!(come(&mut lock, 1, Mode::Exclusive, RENEWED, now), "Ask");
    let wakeups = lock.granted(1, Mode::Exclusive, grant(1, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    assert_eq!(try_to(&mut lock, 1, Mode::Shared, now), "Ask under 1");
    let wakeups = lock.granted(1, Mode::Shared, grant(2, now), RENEWED, false, now);
    assert_eq!(woken(&wakeups), (vec![], None));
    assert_eq!(come(&mut lock, 2, Mode::Exclusive, RENEWED, now), "Queued");
    let outcome = lock.leave(1, &grant(1, now), now, &|| 1);
    assert_eq!(released(&outcome), Some((vec![], None)));
    now += LONG;
    let outcome = lock.leave(1, &grant(2, now), now, &|| 2);
    assert_eq!(released(&outcome), Some((vec![], Some(2))));
    assert_eq!(lock.cohort.yield_after(now), Some(2));
}

#[test]
fn without_a_tenure_nothing_is_passed_on() {
    let now = Instant::now();
    for (gap, start) in [
        (Duration::ZERO, Some(1)),
        (GAP, Some(1)),
        (GAP + Duration::from_micros(1), None),
    ] {
        let mut lock = LocalLock::new(Order::Local, Duration::ZERO);
        assert_eq!(come(&mut lock, 1, Mode::Exclusive, RENEWED, now), "Ask");
        let wakeups = lock.granted(1, Mode::Exclusive, grant(1, now), RENEWED, false, now);
        assert_eq!(woken(&wakeups), (vec![], None));
        assert_eq!(come(&mut lock, 2, Mode::Exclusive, RENEWED, now), "Queued");
        let outcome = lock.leave(1, &grant(1, now), now, &|| 1);
        assert_eq!(released(&outcome), Some((vec![], Some(2))), "{outcome:?}");
        assert_eq!(lock.cohort.yield_after(now + gap), start);
        // The lock is kept for as long as its last release may matter.
        let wakeups = lock.granted(2, Mode::Exclusive, grant(2, now), RENEWED, false, now);
        assert_eq!(woken(&wakeups), (vec![], None));
        let outcome = lock.leave(2, &grant(2, now), now, &|| 2);
        assert_eq!(released(&outcome), Some((vec![], None)));
        assert_eq!(lock.is_idle(now + gap), gap > GAP);
    }
}
