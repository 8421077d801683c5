//! Every sequence of steps of a few threads here and one elsewhere, up to a length, beside the queue that Redis keeps.

use std::collections::HashSet;

use super::*;

/// Whether a thread can be handed the lock: one of them wants another lease.
fn same(thread: &u64) -> bool {
    *thread != 3
}

/// How many places are taken, here and elsewhere.
const OWN: u64 = 4;
const FOREIGN: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ticket {
    Own(u64),
    Foreign(u64),
}

/// Who has the lock in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Nobody,
    /// A thread here.
    Us,
    /// A thread here had it, and has lost it.
    Lost,
    Them,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Enqueue,
    /// The reply to that comes to the thread, at some time.
    Reply(u64),
    ForeignEnqueues,
    ForeignLeaves(u64),
    Leave(u64),
    /// Before its reply has come.
    LeaveEarly(u64),
    Ask(u64),
    ForeignTakes,
    ForeignReleases,
    /// The thread that was handed the lock wakes.
    Wakes,
    Leaves,
    /// The lease of the hold ends, which nobody here knows.
    Expires,
    /// The hold is known to be lost; a thread that was handed it and sleeps asks Redis after all.
    Loses,
    /// The places of those that were served are removed by a request of their own.
    Clears,
}

#[derive(Debug, Clone)]
struct Model {
    run: Run<u64>,
    queue: Vec<Ticket>,
    holder: Holder,
    /// A thread here has the lock as far as is known here.
    is_held: bool,
    /// The thread that was handed it and sleeps.
    sleeps: Option<u64>,
    /// Own places whose first reply is on its way: who was ahead, and which served places the request removed.
    replies: Vec<(u64, Ahead, Vec<u64>)>,
    parked: Vec<u64>,
    /// Those of them that do not listen, nor were woken to ask; and those that have not listened before.
    wait: Vec<u64>,
    have_waited: Vec<u64>,
    /// Those that were woken to ask.
    to_ask: Vec<u64>,
    /// After how many releases each asked.
    asked_after: Vec<u64>,
    own: u64,
    foreign: u64,
    passed: usize,
    steps: Vec<Step>,
}

impl Model {
    fn new() -> Self {
        Self {
            run: Run::default(),
            queue: Vec::new(),
            holder: Holder::Nobody,
            is_held: false,
            sleeps: None,
            replies: Vec::new(),
            parked: Vec::new(),
            wait: Vec::new(),
            have_waited: Vec::new(),
            to_ask: Vec::new(),
            asked_after: vec![0],
            own: 0,
            foreign: 0,
            passed: 0,
            steps: Vec::new(),
        }
    }

    /// The first of the queue. Nobody else can take the lock while it is free.
    fn head(&self) -> Option<Ticket> {
        self.queue.first().copied()
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.own < OWN {
            steps.push(Step::Enqueue);
        }
        if self.foreign < FOREIGN {
            steps.push(Step::ForeignEnqueues);
        }
        for (n, ..) in &self.replies {
            steps.extend([Step::Reply(*n), Step::LeaveEarly(*n)]);
        }
        steps.extend(self.parked.iter().map(|n| Step::Leave(*n)));
        steps.extend(self.parked.iter().map(|n| Step::Ask(*n)));
        for ticket in &self.queue {
            if let Ticket::Foreign(n) = ticket {
                steps.push(Step::ForeignLeaves(*n));
            }
        }
        if self.sleeps.is_some() {
            steps.push(Step::Wakes);
        } else if self.is_held {
            steps.push(Step::Leaves);
        }
        if self.is_held {
            steps.push(Step::Loses);
            if !self.run.served.is_empty() {
                steps.push(Step::Clears);
            }
        }
        match self.holder {
            Holder::Us | Holder::Lost => steps.push(Step::Expires),
            Holder::Them => steps.push(Step::ForeignReleases),
            Holder::Nobody if matches!(self.head(), Some(Ticket::Foreign(_))) => {
                steps.push(Step::ForeignTakes);
            }
            Holder::Nobody => {}
        }
        steps
    }

    fn remove(&mut self, places: &[u64]) {
        self.queue
            .retain(|ticket| !places.iter().any(|n| *ticket == Ticket::Own(*n)));
    }

    /// Who ends the row of places that it is directly behind, as far as is known here: `None` if nobody of this process.
    fn row(&self, mut n: u64) -> Option<u64> {
        while let Some(place) = self.run.places.iter().find(|place| place.number == n) {
            match place.ahead {
                Ahead::Own(own) if self.run.holder == Some(own) => return None,
                Ahead::Own(own) => n = own,
                _ => return None,
            }
        }
        Some(n)
    }

    fn park(&mut self, n: u64, ahead: Option<Ahead>) -> Then {
        let asked_after = self.asked_after[usize::try_from(n).unwrap_or(0)];
        let may_wait = !self.have_waited.contains(&n);
        let then = self
            .run
            .park(n, ahead, asked_after, self.is_held, may_wait, n);
        if then == Then::WaitsHere {
            self.have_waited.push(n);
            self.wait.push(n);
        }
        if then == Then::Listens {
            let stranded = self.run.stranded_behind(n);
            self.is_woken(&stranded);
        }
        then
    }

    /// It asks, or has the lock, or has left.
    fn is_awake(&mut self, n: u64) {
        self.wait.retain(|other| *other != n);
        self.to_ask.retain(|other| *other != n);
    }

    /// These ask at some time, or subscribe.
    fn is_woken(&mut self, ask: &[u64]) {
        self.wait.retain(|n| !ask.contains(n));
        self.to_ask.retain(|n| !ask.contains(n));
        self.to_ask.extend(ask);
    }

    fn granted(&mut self, n: u64) {
        self.queue.retain(|ticket| *ticket != Ticket::Own(n));
        self.holder = Holder::Us;
        self.is_held = true;
        self.run.granted(Some(n));
        // If it had not been known here yet that the last hold was over.
        self.contends_again();
    }

    /// It asks in its place, which it gets back at the front if it is lost.
    fn ask(&mut self, n: u64) {
        self.is_awake(n);
        if !self.queue.contains(&Ticket::Own(n)) {
            let stranded = self.run.place_lost();
            self.is_woken(&stranded);
            let before = |it: &&Ticket| matches!(it, Ticket::Own(own) if *own < n);
            let at = self.queue.iter().take_while(before).count();
            self.queue.insert(at, Ticket::Own(n));
        }
        if self.holder == Holder::Nobody && self.head() == Some(Ticket::Own(n)) {
            self.parked.retain(|other| *other != n);
            self.granted(n);
        } else {
            self.run.refused(n);
            self.park(n, None);
            if !self.parked.contains(&n) {
                self.parked.push(n);
            }
        }
    }

    /// The hold was lost before the thread that was handed it woke.
    fn contends_again(&mut self) {
        if let Some(n) = self.sleeps.take() {
            self.run.is_not_served(n);
            self.ask(n);
        }
    }

    /// What is sent when the hold is over here. Returns who asks next.
    fn ended(&mut self) -> Option<u64> {
        let woken = self.run.ended();
        self.is_woken(woken.as_slice());
        let served = self.run.take_served();
        self.remove(&served);
        self.is_held = false;
        woken
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
        match step {
            Step::Enqueue => {
                self.own += 1;
                self.asked_after.push(self.run.releases());
                let removes = self.run.begin_removal();
                self.remove(&removes);
                if self.holder == Holder::Nobody && self.head().is_none() {
                    self.run.end_removal(&removes, true);
                    return self.granted(self.own);
                }
                let ahead = match self.queue.last() {
                    None => Ahead::Nobody,
                    Some(Ticket::Own(n)) => Ahead::Own(*n),
                    Some(Ticket::Foreign(_)) => Ahead::Other,
                };
                self.queue.push(Ticket::Own(self.own));
                self.replies.push((self.own, ahead, removes));
            }
            Step::Reply(n) => {
                let at = self.replies.iter().position(|reply| reply.0 == n);
                let (_, ahead, removed) = self.replies.remove(at.expect("a reply"));
                self.run.end_removal(&removed, true);
                let then = self.park(n, Some(ahead));
                if then == Then::WaitsHere {
                    let ahead = self.queue.iter().take_while(|it| **it != Ticket::Own(n));
                    let foreign = ahead.filter(|it| matches!(it, Ticket::Foreign(_))).count();
                    match self.row(n) {
                        // One that has left will never hand the lock over.
                        Some(last) => {
                            let is_to_come = self.replies.iter().any(|(own, ..)| *own == last);
                            assert!(is_to_come, "it waits for nobody: {self:?}");
                        }
                        None if self.is_held => {
                            assert_eq!(foreign, 0, "it does not subscribe: {self:?}");
                        }
                        None => {}
                    }
                }
                self.parked.push(n);
            }
            Step::ForeignEnqueues => {
                self.foreign += 1;
                self.queue.push(Ticket::Foreign(self.foreign));
            }
            Step::ForeignLeaves(n) => self.queue.retain(|it| *it != Ticket::Foreign(n)),
            Step::Leave(n) => {
                self.queue.retain(|it| *it != Ticket::Own(n));
                self.parked.retain(|other| *other != n);
                let ask = self.run.leave(n);
                self.is_awake(n);
                self.is_woken(&ask);
            }
            Step::LeaveEarly(n) => {
                let at = self.replies.iter().position(|reply| reply.0 == n);
                let (.., removed) = self.replies.remove(at.expect("a reply"));
                self.queue.retain(|it| *it != Ticket::Own(n));
                self.run.end_removal(&removed, false);
                let ask = self.run.leave(n);
                self.is_woken(&ask);
            }
            Step::Ask(n) => {
                self.run.asks(n);
                self.ask(n);
            }
            Step::ForeignTakes => {
                let head = self.head();
                self.queue.retain(|ticket| Some(*ticket) != head);
                self.holder = Holder::Them;
            }
            Step::ForeignReleases => self.holder = Holder::Nobody,
            Step::Clears => {
                let served = self.run.clear_served();
                self.remove(&served);
            }
            Step::Wakes => self.sleeps = None,
            Step::Expires => self.holder = Holder::Nobody,
            Step::Leaves => match self.run.pass(same) {
                Some(n) => {
                    self.passed += 1;
                    self.sleeps = Some(n);
                    self.is_awake(n);
                    self.parked.retain(|other| *other != n);
                    let served = |it: &Ticket| {
                        let mut served = self.run.served.iter();
                        served.any(|s| s.number != n && *it == Ticket::Own(s.number))
                    };
                    let next = self.queue.iter().find(|it| !served(it));
                    assert_eq!(next, Some(&Ticket::Own(n)), "{self:?}");
                }
                None => {
                    let was_held = self.holder == Holder::Us;
                    let woken = self.ended();
                    if was_held {
                        self.holder = Holder::Nobody;
                        if let Some(n) = woken {
                            assert_eq!(self.head(), Some(Ticket::Own(n)), "{self:?}");
                        }
                    }
                }
            },
            Step::Loses => {
                if self.holder == Holder::Us {
                    self.holder = Holder::Lost;
                }
                self.ended();
                self.contends_again();
            }
        }
        self.check();
    }

    /// Whether somebody of another process is ahead of a place, as far as is known here, and nobody of this one is about to
    /// find that out.
    fn is_behind_others(&self, mut n: u64) -> bool {
        while let Some(place) = self.run.places.iter().find(|place| place.number == n) {
            if self.to_ask.contains(&n) {
                return false;
            }
            match place.ahead {
                Ahead::Own(own) if self.run.holder == Some(own) => return false,
                Ahead::Own(own) => n = own,
                Ahead::Nobody => return false,
                Ahead::Other => return true,
            }
        }
        false
    }

    fn check(&self) {
        let numbers: Vec<_> = self.run.places.iter().map(|place| place.number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{self:?}");
        for n in &self.wait {
            assert!(!self.is_behind_others(*n), "{n} is deaf: {self:?}");
        }
        let served = |n: &u64| self.run.is_served(*n);
        assert!(!self.parked.iter().any(served), "served twice: {self:?}");
        assert!(self.is_held || self.run.served.is_empty(), "{self:?}");
        // Whoever is in the queue waits, or is removed from it.
        for ticket in &self.queue {
            if let Ticket::Own(n) = ticket {
                let waits = self.parked.contains(n) || self.replies.iter().any(|it| it.0 == *n);
                assert!(waits || served(n), "{n} is left behind: {self:?}");
            }
        }
    }
}

#[test]
fn nobody_elsewhere_is_passed_by_in_any_sequence_of_steps() {
    let (mut level, mut seen) = (vec![Model::new()], HashSet::new());
    let (mut passed, mut states) = (0, 0);
    for _ in 0..11 {
        let mut next = Vec::new();
        for model in &level {
            for step in model.steps() {
                let mut model = model.clone();
                model.step(step);
                passed = passed.max(model.passed);
                let print = format!(
                    "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{}{}",
                    model.run,
                    model.queue,
                    model.holder,
                    model.is_held,
                    model.sleeps,
                    model.replies,
                    (
                        &model.parked,
                        &model.wait,
                        &model.have_waited,
                        &model.to_ask
                    ),
                    model.own,
                    model.foreign
                );
                if seen.insert(print) {
                    next.push(model);
                }
            }
        }
        states += next.len();
        level = next;
    }
    assert!(passed >= 2, "{passed}");
    assert!(states > 1_000, "{states}");
}

/// Parks while a thread of the process has the lock, and has had since it asked.
fn park(run: &mut Run<u64>, n: u64, ahead: Option<Ahead>) -> Then {
    let asked_after = run.releases();
    run.park(n, ahead, asked_after, true, true, n)
}

#[test]
fn a_run_is_served_in_its_order_however_late_the_replies_are() {
    let mut run = Run::default();
    run.granted(Some(1));
    park(&mut run, 12, Some(Ahead::Own(11)));
    park(&mut run, 11, Some(Ahead::Own(10)));
    assert!(run.pass(same).is_none());
    assert_eq!(park(&mut run, 10, Some(Ahead::Own(1))), Then::WaitsHere);
    // Nobody is handed it who may be granted it by Redis as well.
    run.asks(10);
    assert!(run.pass(same).is_none());
    assert_eq!(park(&mut run, 10, None), Then::WaitsHere);
    for n in [10, 11, 12] {
        assert_eq!(run.pass(same), Some(n));
    }
    assert!(run.pass(same).is_none());
    assert_eq!(run.begin_removal(), [10, 11, 12]);
    // One that has come since was behind the last of them.
    assert_eq!(park(&mut run, 13, Some(Ahead::Own(12))), Then::WaitsHere);
    assert_eq!(run.ended(), Some(13));
    // Sent, but not yet acknowledged.
    assert_eq!(run.take_served(), [10, 11, 12]);
}

#[test]
fn one_whose_reply_comes_after_the_release_is_the_first() {
    let mut run = Run::default();
    run.granted(Some(1));
    assert_eq!(run.ended(), None);
    let then = run.park(2, Some(Ahead::Own(1)), 0, false, true, 2);
    assert_eq!(then, Then::AsksAgain);
    // The one behind it waits for it.
    let then = run.park(4, Some(Ahead::Own(2)), 0, false, true, 4);
    assert_eq!(then, Then::WaitsHere);
    run.granted(None);
    assert_eq!(run.pass(same), Some(2));
}

#[test]
fn the_next_is_woken_instead_of_one_that_leaves() {
    let mut run = Run::default();
    run.granted(None);
    for (n, ahead) in [(1, Ahead::Nobody), (2, Ahead::Own(1)), (4, Ahead::Own(2))] {
        assert_eq!(park(&mut run, n, Some(ahead)), Then::WaitsHere);
    }
    assert_eq!(run.leave(2), []);
    assert_eq!(run.ended(), Some(1));
    assert_eq!(run.woken, Some(1));
    assert_eq!(run.leave(1), [4]);
    run.refused(4);
    assert_eq!(run.woken, None);
    assert_eq!(run.leave(4), []);
}

#[test]
fn after_a_place_was_lost_nobody_is_known_to_be_next() {
    let mut run = Run::default();
    run.granted(None);
    for (n, ahead) in [(1, Ahead::Nobody), (2, Ahead::Own(1))] {
        park(&mut run, n, Some(ahead));
    }
    run.asks(1);
    assert_eq!(run.place_lost(), [2]);
    assert_eq!(park(&mut run, 1, None), Then::Listens);
    assert!(run.pass(same).is_none());
    assert_eq!(run.ended(), None);
    // Whoever comes later is known to be behind them.
    run.granted(Some(1));
    assert_eq!(park(&mut run, 5, Some(Ahead::Own(2))), Then::Listens);
}

#[test]
fn no_more_are_served_than_one_request_can_remove() {
    let mut run = Run::default();
    run.granted(Some(100));
    for n in 101..=200 {
        park(&mut run, n, Some(Ahead::Own(n - 1)));
    }
    let served = (0..200).take_while(|_| run.pass(same).is_some()).count();
    assert_eq!(served, MOST_SERVED);
    let sent = run.begin_removal();
    assert!(run.pass(same).is_none(), "not removed yet");
    run.end_removal(&sent[..1], false);
    assert_eq!(run.begin_removal(), sent[..1]);
    run.end_removal(&sent, true);
    assert!(run.pass(same).is_some());
    assert!(run.pass(|_| false).is_none());
}

#[test]
fn whoever_was_behind_one_that_left_is_behind_the_one_ahead_of_that() {
    let mut run = Run::default();
    run.granted(Some(1));
    park(&mut run, 2, Some(Ahead::Own(1)));
    // One has read its reply, the other has not.
    assert_eq!((run.leave(2), run.leave(4)), (vec![], vec![]));
    assert_eq!(park(&mut run, 5, Some(Ahead::Own(2))), Then::WaitsHere);
    assert_eq!(park(&mut run, 7, Some(Ahead::Own(4))), Then::Listens);
    assert_eq!(run.pass(same), Some(5));
    // After the release there is nobody ahead.
    park(&mut run, 6, Some(Ahead::Own(5)));
    run.leave(6);
    assert_eq!(run.ended(), None);
    let then = run.park(8, Some(Ahead::Own(6)), 0, false, true, 8);
    assert_eq!(then, Then::AsksAgain);
    // It is not known any more once a place was lost.
    run.leave(8);
    assert_eq!(run.place_lost(), []);
    assert_eq!(park(&mut run, 9, Some(Ahead::Own(8))), Then::Listens);
}

#[test]
fn only_so_many_that_left_are_remembered() {
    let mut run = Run::<u64>::default();
    for n in 0..10 * MOST_LEFT as u64 {
        run.leave(n);
    }
    assert_eq!(run.left.len(), MOST_LEFT);
    run.forget_left();
    assert!(run.left.is_empty());
}

#[test]
fn what_was_served_is_cleared_once() {
    let mut run = Run::default();
    run.granted(Some(1));
    assert!(!run.asks_for_clearing(), "nobody was served");
    for n in [2, 4] {
        park(&mut run, n, Some(Ahead::Own(n / 2)));
        assert_eq!(run.pass(same), Some(n));
    }
    assert!(run.asks_for_clearing() && !run.asks_for_clearing());
    // Whoever has released it meanwhile need not notify anybody again.
    assert_eq!(run.ended(), None);
    assert_eq!(run.take_served(), [2, 4]);
    run.granted(Some(5));
    park(&mut run, 6, Some(Ahead::Own(5)));
    assert_eq!(run.pass(same), Some(6));
    assert!(!run.asks_for_clearing());
    assert_eq!(run.clear_served(), [6]);
    assert!(!run.asks_for_clearing(), "nothing is left");
}

#[test]
fn whoever_waits_for_threads_that_nobody_serves_here_is_woken_to_listen() {
    // The reply of the one ahead comes later, and says that it is behind others.
    let mut run = Run::default();
    run.granted(Some(1));
    for (n, ahead) in [(8, 7), (7, 6), (6, 5)] {
        let then = park(&mut run, n, Some(Ahead::Own(ahead)));
        assert_eq!(then, Then::WaitsHere);
    }
    assert_eq!(park(&mut run, 5, Some(Ahead::Other)), Then::Listens);
    assert_eq!(run.stranded_behind(5), [6, 7, 8]);
    assert_eq!(run.stranded_behind(5), [], "once");
    // It leaves instead.
    let mut run = Run::default();
    run.granted(Some(1));
    for (n, ahead) in [(7, 6), (6, 5), (11, 1), (12, 11)] {
        park(&mut run, n, Some(Ahead::Own(ahead)));
    }
    assert_eq!(run.leave(11), [], "the other is served here");
    assert_eq!(run.leave(5), [6, 7], "it had not read its reply");
    let mut run = Run::default();
    run.granted(Some(1));
    for (n, ahead) in [(7, Ahead::Own(6)), (6, Ahead::Own(5))] {
        park(&mut run, n, Some(ahead));
    }
    run.park(5, Some(Ahead::Other), 0, true, true, 5);
    assert_eq!(run.leave(5), [6, 7]);
    // One that does not wait here, since it asks or listens, is not woken.
    let mut run = Run::default();
    run.granted(Some(1));
    for (n, ahead) in [(7, 6), (6, 5)] {
        park(&mut run, n, Some(Ahead::Own(ahead)));
    }
    run.asks(6);
    let asked_after = run.releases();
    let then = run.park(6, None, asked_after, true, false, 6);
    assert_eq!(then, Then::Listens, "it has waited");
    assert_eq!(run.stranded_behind(6), [], "it is still served here");
    park(&mut run, 5, Some(Ahead::Other));
    assert_eq!(run.stranded_behind(5), [7]);
    assert_eq!(run.place_lost(), []);
}
