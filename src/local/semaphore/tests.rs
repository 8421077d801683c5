use super::*;

const TENURE: Duration = Duration::from_millis(5);
const STEP: Duration = Duration::from_millis(2);

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// Queued under this ticket; `asks`: its request is at Redis, which has granted it or not.
    Waits {
        ticket: u64,
        asks: Option<bool>,
    },
    /// Handed permits while it was queued; its request, if any, has yet to be answered.
    Given {
        since: Instant,
        asks: Option<bool>,
    },
    Has {
        since: Instant,
    },
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Enter(usize),
    /// The request reaches Redis.
    Ask(usize),
    /// The reply reaches the thread.
    Hear(usize),
    Leave(usize),
    Give(usize),
    Forget(usize),
    /// A permit is taken by another process, or given back.
    Elsewhere(i64),
    Tick,
    Close,
}

/// Threads, the local semaphore they wait at, and Redis.
#[derive(Clone)]
struct World {
    local_semaphore: LocalSemaphore<usize, u64>,
    needs: Vec<u32>,
    doing: Vec<Doing>,
    /// At Redis, elsewhere, and kept for good.
    server: i64,
    elsewhere: i64,
    forgotten: i64,
    total: i64,
    now: Instant,
    closed: bool,
}

impl World {
    fn new(needs: &[u32], total: i64, now: Instant) -> Self {
        Self {
            local_semaphore: LocalSemaphore::new(TENURE),
            needs: needs.to_vec(),
            doing: vec![Doing::Nothing; needs.len()],
            server: total,
            elsewhere: 0,
            forgotten: 0,
            total,
            now,
            closed: false,
        }
    }

    fn queue(&self) -> Vec<usize> {
        let mut queue: Vec<_> = (0..self.needs.len())
            .filter_map(|t| match self.doing[t] {
                Doing::Waits { ticket, .. } => Some((ticket, t)),
                _ => None,
            })
            .collect();
        queue.sort_unstable();
        queue.into_iter().map(|(_, t)| t).collect()
    }

    fn take_back(&mut self, permits: u32, since: Instant) {
        let queue = self.queue();
        let young = self.now - since < TENURE;
        let given = self.local_semaphore.give(permits, since, self.now);
        if self.closed {
            assert_eq!(
                (given.receivers, given.back),
                (vec![], 0),
                "given back when closed"
            );
            return;
        }
        // Within the tenure, and while the permits are enough, the first in the queue comes first.
        let mut permits_left = permits;
        let mut expected = Vec::new();
        for &t in queue.iter().take_while(|_| young) {
            if self.needs[t] > permits_left {
                break;
            }
            permits_left -= self.needs[t];
            expected.push(t);
        }
        assert_eq!(given.receivers, expected);
        assert_eq!(given.back, permits_left);
        let first = queue.get(expected.len()).copied();
        assert_eq!(
            given.first, first,
            "somebody else is first, or may ask again"
        );
        for t in given.receivers {
            let Doing::Waits { asks, .. } = self.doing[t] else {
                panic!("{t} does not wait");
            };
            self.doing[t] = Doing::Given { since, asks };
        }
        self.server += i64::from(given.back);
    }

    fn ask(&mut self, t: usize) -> bool {
        let need = i64::from(self.needs[t]);
        let has = self.server >= need;
        if has {
            self.server -= need;
        }
        has
    }

    fn hear(&mut self, t: usize, was_granted: bool) {
        let need = self.needs[t];
        if !was_granted {
            // A thread that was handed permits is no longer queued, and has no ticket in the model.
            let ticket = match self.doing[t] {
                Doing::Waits { ticket, .. } => ticket,
                _ => u64::MAX,
            };
            self.local_semaphore.record_refusal(ticket, true);
            match &mut self.doing[t] {
                Doing::Waits { asks, .. } | Doing::Given { asks, .. } => *asks = None,
                _ => unreachable!(),
            }
            return;
        }
        let queue = self.queue();
        match (
            self.doing[t],
            self.local_semaphore
                .granted(Some(self.ticket(t)), need, self.now),
        ) {
            (_, Granted::Closed) => {
                assert!(self.closed);
                self.server += i64::from(need);
                match &mut self.doing[t] {
                    Doing::Waits { asks, .. } | Doing::Given { asks, .. } => *asks = None,
                    _ => unreachable!(),
                }
            }
            (Doing::Waits { .. }, Granted::Kept { first }) => {
                assert_eq!(queue.first(), Some(&t), "only the first asks");
                assert_eq!(first, queue.get(1).copied());
                self.doing[t] = Doing::Has { since: self.now };
            }
            (Doing::Given { since, .. }, Granted::Surplus) => {
                self.doing[t] = Doing::Given { since, asks: None };
                self.take_back(need, self.now);
            }
            (doing, granted) => panic!("{doing:?}: {granted:?}"),
        }
    }

    fn ticket(&self, t: usize) -> u64 {
        match self.doing[t] {
            Doing::Waits { ticket, .. } => ticket,
            _ => u64::MAX,
        }
    }

    fn possible(&self) -> Vec<Step> {
        let mut steps = vec![Step::Tick];
        let first = self.queue().first().copied();
        for (t, doing) in self.doing.iter().enumerate() {
            match *doing {
                Doing::Nothing if !self.closed => steps.push(Step::Enter(t)),
                Doing::Nothing => {}
                Doing::Waits { asks: None, .. } => {
                    if first == Some(t) && !self.closed {
                        steps.push(Step::Ask(t));
                    }
                    steps.push(Step::Leave(t));
                }
                Doing::Waits { asks: Some(_), .. } | Doing::Given { asks: Some(_), .. } => {
                    steps.push(Step::Hear(t));
                }
                Doing::Given { asks: None, .. } => steps.extend([Step::Hear(t), Step::Leave(t)]),
                Doing::Has { .. } => steps.extend([Step::Give(t), Step::Forget(t)]),
            }
        }
        if self.server > 0 {
            steps.push(Step::Elsewhere(1));
        }
        if self.elsewhere > 0 {
            steps.push(Step::Elsewhere(-1));
        }
        if !self.closed {
            steps.push(Step::Close);
        }
        steps
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Tick => self.now += STEP,
            Step::Enter(t) => {
                let queued = self.queue().len();
                let (ticket, first) = self.local_semaphore.enter(self.needs[t], t);
                assert_eq!(first, queued == 0);
                self.doing[t] = Doing::Waits { ticket, asks: None };
            }
            Step::Ask(t) => {
                let asked = Some(self.ask(t));
                match &mut self.doing[t] {
                    Doing::Waits { asks, .. } => *asks = asked,
                    _ => unreachable!(),
                }
            }
            Step::Hear(t) => match self.doing[t] {
                Doing::Waits {
                    asks: Some(had), ..
                }
                | Doing::Given {
                    asks: Some(had), ..
                } => {
                    self.hear(t, had);
                }
                Doing::Given { since, asks: None } => self.doing[t] = Doing::Has { since },
                _ => unreachable!(),
            },
            Step::Leave(t) => {
                let queue = self.queue();
                let withdrawn = self.local_semaphore.withdraw(self.ticket(t));
                match std::mem::replace(&mut self.doing[t], Doing::Nothing) {
                    Doing::Waits { .. } => {
                        let next = queue.get(1).copied().filter(|_| queue[0] == t);
                        assert_eq!(withdrawn, Some(next));
                    }
                    Doing::Given { since, .. } => {
                        assert_eq!(withdrawn, None);
                        self.take_back(self.needs[t], since);
                    }
                    _ => unreachable!(),
                }
            }
            Step::Give(t) => {
                let Doing::Has { since } = std::mem::replace(&mut self.doing[t], Doing::Nothing)
                else {
                    unreachable!()
                };
                self.take_back(self.needs[t], since);
            }
            Step::Forget(t) => {
                self.doing[t] = Doing::Nothing;
                self.local_semaphore.forget(self.needs[t]);
                // Permits that closing has given back are not kept.
                if !self.closed {
                    self.forgotten += i64::from(self.needs[t]);
                }
            }
            Step::Elsewhere(n) => {
                self.server -= n;
                self.elsewhere += n;
            }
            Step::Close => {
                self.server += i64::try_from(self.local_semaphore.close()).expect("few");
                self.closed = true;
            }
        }
    }

    /// No permit is lost, and none is invented.
    fn check(&self) {
        let of = |t: usize| i64::from(self.needs[t]);
        let mut out = 0;
        let mut on_the_way = 0;
        for (t, doing) in self.doing.iter().enumerate() {
            if matches!(doing, Doing::Has { .. } | Doing::Given { .. }) && !self.closed {
                out += of(t);
            }
            if let Doing::Waits {
                asks: Some(true), ..
            }
            | Doing::Given {
                asks: Some(true), ..
            } = doing
            {
                on_the_way += of(t);
            }
        }
        assert_eq!(i64::try_from(self.local_semaphore.out).expect("few"), out);
        assert_eq!(
            self.server + self.elsewhere + self.forgotten + out + on_the_way,
            self.total
        );
        let free = self.queue().is_empty() && out == 0;
        assert_eq!(self.local_semaphore.is_free(), free);
        match self.queue().len() {
            0 => assert!(!self.local_semaphore.has_waiters()),
            1 => {} // it may be asking for the first time
            _ => assert!(self.local_semaphore.has_waiters()),
        }
    }
}

/// Every schedule of so many steps; how many there were.
fn walk(world: &World, depth: usize) -> usize {
    if depth == 0 {
        return 1;
    }
    let mut walked = 0;
    for step in world.possible() {
        let mut next = world.clone();
        next.step(step);
        next.check();
        walked += walk(&next, depth - 1);
    }
    walked
}

#[test]
fn every_short_schedule_of_two_keeps_the_sum_and_the_order() {
    let now = Instant::now();
    for (needs, total) in [([1, 1], 1), ([2, 1], 2), ([1, 2], 3)] {
        assert!(walk(&World::new(&needs, total, now), 7) > 5_000);
    }
}

#[test]
fn every_short_schedule_of_three_keeps_the_sum_and_the_order() {
    let now = Instant::now();
    for (needs, total) in [([1, 1, 1], 1), ([3, 1, 1], 3), ([1, 2, 1], 3)] {
        let mut world = World::new(&needs, total, now);
        for t in 0..3 {
            world.step(Step::Enter(t));
        }
        assert!(walk(&world, 6) > 2_000);
    }
}

#[test]
fn long_random_schedules_keep_the_sum_and_the_order() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..300 {
        let mut world = World::new(&[1, 3, 2, 1, 5], 6, Instant::now());
        for _ in 0..300 {
            let mut steps = world.possible();
            if round % 3 > 0 {
                steps.retain(|step| !matches!(step, Step::Close | Step::Forget(_)));
            }
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let chosen = usize::try_from(seed >> 40).expect("24 bits") % steps.len();
            world.step(steps[chosen]);
            world.check();
        }
    }
}

#[test]
fn what_is_left_over_goes_to_the_next_and_then_back() {
    let now = Instant::now();
    let mut local_semaphore: LocalSemaphore<&str, ()> = LocalSemaphore::new(TENURE);
    assert_eq!(
        local_semaphore.granted(None, 6, now),
        Granted::Kept { first: None }
    );
    for (need, waiter) in [(3, "a"), (2, "b"), (4, "c")] {
        let _place = local_semaphore.enter(need, waiter);
    }
    let given = local_semaphore.give(6, now, now + STEP);
    let expected = Given {
        receivers: vec!["a", "b"],
        first: Some("c"),
        back: 1,
    };
    assert_eq!(given, expected);
}

#[test]
fn after_a_tenure_permits_go_back_and_others_go_first() {
    let now = Instant::now();
    let mut local_semaphore: LocalSemaphore<&str, u8> = LocalSemaphore::new(TENURE);
    assert_eq!(
        local_semaphore.granted(None, 1, now),
        Granted::Kept { first: None }
    );
    let _place = local_semaphore.enter(1, "a");
    let given = local_semaphore.give(1, now, now + TENURE);
    let expected = Given {
        receivers: vec![],
        first: Some("a"),
        back: 1,
    };
    assert_eq!(given, expected);
    local_semaphore.cohort.released(7, now + TENURE);
    assert_eq!(local_semaphore.cohort.yield_after(now + TENURE), Some(7));
    assert_eq!(local_semaphore.cohort.yield_after(now + TENURE), None);
    // A cohort that has just started does not yield, nor does one that is long over.
    assert_eq!(
        local_semaphore.granted(None, 1, now),
        Granted::Kept { first: None }
    );
    local_semaphore.cohort.released(8, now + STEP);
    assert_eq!(local_semaphore.cohort.yield_after(now + STEP), None);
    assert_eq!(local_semaphore.cohort.yield_after(now + 9 * STEP), None);
}

#[test]
fn the_first_in_the_queue_waits_once_there_is_too_little_for_it() {
    let now = Instant::now();
    let mut local_semaphore: LocalSemaphore<&str, ()> = LocalSemaphore::new(TENURE);
    assert_eq!(
        local_semaphore.granted(None, 1, now),
        Granted::Kept { first: None }
    );
    let (first, _) = local_semaphore.enter(2, "a");
    assert!(!local_semaphore.has_waiters());
    local_semaphore.record_refusal(first, true);
    assert!(local_semaphore.has_waiters());
    let (second, _) = local_semaphore.enter(2, "b");
    assert_eq!(local_semaphore.withdraw(first), Some(Some("b")));
    assert!(!local_semaphore.has_waiters());
    // A thread behind the first counts as waiting at once.
    let (third, _) = local_semaphore.enter(1, "c");
    assert!(local_semaphore.has_waiters());
    assert_eq!(local_semaphore.withdraw(third), Some(None));
    assert!(!local_semaphore.has_waiters());
    assert_eq!(local_semaphore.withdraw(second), Some(None));
    assert!(!local_semaphore.has_waiters());
}

#[test]
fn a_refusal_does_not_count_for_the_thread_that_is_first_since() {
    let now = Instant::now();
    let mut local_semaphore: LocalSemaphore<&str, ()> = LocalSemaphore::new(TENURE);
    assert_eq!(
        local_semaphore.granted(None, 1, now),
        Granted::Kept { first: None }
    );
    let (asks, _) = local_semaphore.enter(1, "a");
    local_semaphore.enter(1, "b");
    // Handed over while the request of `a` is on its way.
    assert_eq!(local_semaphore.give(1, now, now).receivers, ["a"]);
    local_semaphore.record_refusal(asks, true);
    assert!(!local_semaphore.has_waiters(), "`b` was not refused");
}

#[test]
fn without_a_tenure_nothing_changes_threads() {
    let now = Instant::now();
    let mut local_semaphore: LocalSemaphore<&str, ()> = LocalSemaphore::new(Duration::ZERO);
    assert_eq!(
        local_semaphore.granted(None, 1, now),
        Granted::Kept { first: None }
    );
    let _place = local_semaphore.enter(1, "a");
    assert_eq!(local_semaphore.give(1, now, now).back, 1);
}
