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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Nobody,
    /// A thread here.
    Us,
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
    Ask(u64),
    ForeignTakes,
    ForeignReleases,
    Leaves,
    Loses,
}

#[derive(Debug, Clone)]
struct Model {
    run: Run<u64>,
    queue: Vec<Ticket>,
    holder: Holder,
    /// Own places whose first reply is on its way: who was ahead, and which served places the request removed.
    replies: Vec<(u64, Ahead, Vec<u64>)>,
    parked: Vec<u64>,
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
            replies: Vec::new(),
            parked: Vec::new(),
            asked_after: vec![0],
            own: 0,
            foreign: 0,
            passed: 0,
            steps: Vec::new(),
        }
    }

    fn served(&self) -> impl Iterator<Item = u64> + '_ {
        self.run.served.iter().map(|served| served.number)
    }

    /// The first of the queue that waits.
    fn head(&self) -> Option<Ticket> {
        let is_served = |ticket: &&Ticket| self.served().any(|n| **ticket == Ticket::Own(n));
        self.queue.iter().find(|ticket| !is_served(ticket)).copied()
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.own < OWN {
            steps.push(Step::Enqueue);
        }
        if self.foreign < FOREIGN {
            steps.push(Step::ForeignEnqueues);
        }
        steps.extend(self.replies.iter().map(|(n, ..)| Step::Reply(*n)));
        steps.extend(self.parked.iter().map(|n| Step::Leave(*n)));
        steps.extend(self.parked.iter().map(|n| Step::Ask(*n)));
        for ticket in &self.queue {
            if let Ticket::Foreign(n) = ticket {
                steps.push(Step::ForeignLeaves(*n));
            }
        }
        match self.holder {
            Holder::Us => steps.extend([Step::Leaves, Step::Loses]),
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

    /// Whether all those ahead of it have read their replies, and wait.
    fn is_known(&self, mut n: u64) -> bool {
        while let Some(place) = self.run.places.iter().find(|place| place.number == n) {
            match place.ahead {
                Ahead::Own(own) if self.run.holder == Some(own) => return true,
                Ahead::Own(own) => n = own,
                _ => return true,
            }
        }
        false
    }

    fn park(&mut self, n: u64, ahead: Option<Ahead>) -> Then {
        let asked_after = self.asked_after[usize::try_from(n).unwrap_or(0)];
        let is_held = self.holder == Holder::Us;
        self.run.park(n, ahead, asked_after, is_held, n)
    }

    fn granted(&mut self, n: u64) {
        self.queue.retain(|ticket| *ticket != Ticket::Own(n));
        self.holder = Holder::Us;
        self.run.granted(Some(n));
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
        match step {
            Step::Enqueue => {
                self.own += 1;
                self.asked_after.push(self.run.releases());
                let removes = self.run.send_served();
                self.remove(&removes);
                if self.holder == Holder::Nobody && self.head().is_none() {
                    self.run.sent_served(&removes, true);
                    self.granted(self.own);
                    return;
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
                self.run.sent_served(&removed, true);
                let then = self.park(n, Some(ahead));
                if then == Then::WaitsHere && self.holder == Holder::Us && self.is_known(n) {
                    let ahead = self.queue.iter().take_while(|it| **it != Ticket::Own(n));
                    let foreign = ahead.filter(|it| matches!(it, Ticket::Foreign(_))).count();
                    assert_eq!(foreign, 0, "it does not subscribe: {self:?}");
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
                self.run.leave(n);
            }
            Step::Ask(n) => {
                self.run.asks(n);
                if self.holder == Holder::Nobody && self.head() == Some(Ticket::Own(n)) {
                    self.parked.retain(|other| *other != n);
                    self.granted(n);
                } else {
                    self.run.refused(n);
                    self.park(n, None);
                }
            }
            Step::ForeignTakes => {
                let head = self.head();
                self.queue.retain(|ticket| Some(*ticket) != head);
                self.holder = Holder::Them;
            }
            Step::ForeignReleases => self.holder = Holder::Nobody,
            Step::Leaves => match self.run.pass(same) {
                Some(next) => {
                    self.passed += 1;
                    let n = next;
                    self.parked.retain(|other| *other != n);
                    let served: Vec<_> = self.served().collect();
                    let mut waits = self
                        .queue
                        .iter()
                        .filter(|it| !served.iter().any(|s| *s != n && **it == Ticket::Own(*s)));
                    assert_eq!(waits.next(), Some(&Ticket::Own(n)), "{self:?}");
                }
                None => {
                    let woken = self.run.ended();
                    let served = self.run.take_served();
                    self.remove(&served);
                    self.holder = Holder::Nobody;
                    if let Some(n) = woken {
                        assert_eq!(self.head(), Some(Ticket::Own(n)), "{self:?}");
                    }
                }
            },
            Step::Loses => {
                self.run.ended();
                self.holder = Holder::Nobody;
            }
        }
        for served in &self.run.served {
            assert!(
                !self.parked.contains(&served.number),
                "served twice: {self:?}"
            );
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
                    "{:?}{:?}{:?}{:?}{:?}{}{}",
                    model.run,
                    model.queue,
                    model.holder,
                    model.replies,
                    model.parked,
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
    run.park(n, ahead, asked_after, true, n)
}

#[test]
fn a_run_is_served_in_its_order_however_late_the_replies_are() {
    let mut run = Run::default();
    run.granted(Some(1));
    park(&mut run, 12, Some(Ahead::Own(11)));
    park(&mut run, 11, Some(Ahead::Own(10)));
    assert!(run.pass(same).is_none());
    assert_eq!(park(&mut run, 10, Some(Ahead::Own(1))), Then::WaitsHere);
    for n in [10, 11, 12] {
        assert_eq!(run.pass(same), Some(n));
    }
    assert!(run.pass(same).is_none());
    assert_eq!(run.send_served(), [10, 11, 12]);
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
    let then = run.park(2, Some(Ahead::Own(1)), 0, false, 2);
    assert_eq!(then, Then::AsksAgain);
    // The one behind it waits for it.
    let then = run.park(4, Some(Ahead::Own(2)), 0, false, 4);
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
    assert_eq!(run.leave(2), None);
    assert_eq!(run.ended(), Some(1));
    assert_eq!(run.woken, Some(1));
    assert_eq!(run.leave(1), Some(4));
    run.refused(4);
    assert_eq!(run.woken, None);
    assert_eq!(run.leave(4), None);
}

#[test]
fn after_a_place_was_lost_nobody_is_known_to_be_next() {
    let mut run = Run::default();
    run.granted(None);
    for (n, ahead) in [(1, Ahead::Nobody), (2, Ahead::Own(1))] {
        park(&mut run, n, Some(ahead));
    }
    run.asks(1);
    run.place_lost();
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
    let sent = run.send_served();
    assert!(run.pass(same).is_none(), "not removed yet");
    run.sent_served(&sent[..1], false);
    assert_eq!(run.send_served(), sent[..1]);
    run.sent_served(&sent, true);
    assert!(run.pass(same).is_some());
    assert!(run.pass(|_| false).is_none());
}
