//! The protocol of a lock on three masters, as a model. A client A asks all of them, holds, renews and releases; a
//! client B asks and holds at the same time. Masters restart empty, and the network loses and delays requests, and
//! delivers them in any order. Searched exhaustively, see [`search`](crate::search).
//!
//! The model asks the library which parts count, and for how long: [`Parts`] and [`Lease`]. The code around them in
//! `hold` and `ask` is bound to connections and threads, and is restated: numbers, undos, the release.
//!
//! Time passes in ticks of two milliseconds, up to the limit of a [`Scene`]. Any step may be late.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use crate::hold::validity::Lease;
use crate::local::lock::LeasePolicy;
use crate::quorum::parts::{Part, Parts};
use crate::quorum::tally::Majority;
use crate::search::{self, Model};
use crate::time;

const TICK: Duration = Duration::from_millis(2);

/// The lease, in ticks. The margin takes a little more than one, so a part is certain at the ages 0 and 1.
const LEASE: u8 = 3;

/// How much sooner a lease may end by a node's clock than by the client's, in ticks: within the margin.
const DRIFT: u8 = 1;

const NODES: usize = 3;

/// How many requests of A may be under way to a node.
const UNDER_WAY: usize = 4;

/// The number of one of A's rounds, which is used again once nothing refers to it.
type Number = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    A(Number),
    B,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Acquire,
    Renew,
    Undo,
}

/// A request of A, until A has read the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SentRequest {
    action: Action,
    number: Number,
    at: u8,
    /// The node's answer, once it has executed the request.
    answer: Option<bool>,
}

/// The state of B's request to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum AskedByB {
    #[default]
    No,
    Sent,
    Granted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    owner: Option<Owner>,
    ttl: u8,
    /// For how many ticks the node takes no part, since it was restarted.
    rests: u8,
    sent: [Option<SentRequest>; UNDER_WAY],
    b: AskedByB,
}

impl Node {
    /// Sends a request; `false` if too many are under way.
    fn send(&mut self, action: Action, number: Number, at: u8) -> bool {
        let free = self.sent.iter_mut().find(|sent| sent.is_none());
        let sent = SentRequest {
            action,
            number,
            at,
            answer: None,
        };
        free.map(|place| *place = Some(sent)).is_some()
    }

    fn done(&mut self, slot: usize) {
        self.sent[slot..].rotate_left(1);
        self.sent[UNDER_WAY - 1] = None;
    }

    fn sent(&self) -> impl Iterator<Item = SentRequest> {
        self.sent.iter().flatten().copied()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Doing {
    #[default]
    Nothing,
    /// Has asked since this tick.
    Asks(u8),
    /// Has held since this tick.
    Holds(u8),
    Done,
}

#[derive(Debug, Clone)]
struct State {
    nodes: [Node; NODES],
    a: Doing,
    number: Number,
    parts: Parts,
    /// The end of the time for which A counts its hold as certain.
    until: Option<Instant>,
    b: Doing,
    time: u8,
    rounds: u8,
    restarts: u8,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The nodes are alike, so their order does not matter. Of numbers only equality matters.
        let mut nodes = [0; NODES];
        for (at, digest) in nodes.iter_mut().enumerate() {
            let mut node = self.nodes[at];
            let mut names = vec![self.number];
            let mut rename = |number: &mut Number| {
                let known = names.iter().position(|name| name == number);
                let name = known.unwrap_or_else(|| {
                    names.push(*number);
                    names.len() - 1
                });
                *number = u8::try_from(name).unwrap_or(u8::MAX);
            };
            if let Some(Owner::A(number)) = &mut node.owner {
                rename(number);
            }
            for sent in node.sent.iter_mut().flatten() {
                rename(&mut sent.number);
            }
            *digest = search::digest(&(node, self.parts.part(at)));
        }
        nodes.sort_unstable();
        nodes.hash(state);
        (self.a, self.b, self.time, self.until).hash(state);
        (self.rounds, self.restarts).hash(state);
    }
}

#[derive(Debug, Clone, Copy)]
struct Scene {
    /// How many ticks pass.
    ticks: u8,
    /// How many rounds A tries; `None` for as many as it takes. Then requests arrive in order, and B repeats its rounds
    /// as well.
    rounds: Option<u8>,
    /// How often a node restarts empty.
    restarts: u8,
    /// A restarted node takes no part for as long as a lease.
    rests: bool,
    variant: Variant,
}

/// The library as it is, or with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsItIs,
    /// Half of the nodes are enough.
    HalfIsEnough,
    /// A round has the number of the one before.
    SameNumberAgain,
    /// A grant in the round counts from when it is read.
    GrantFromArrival,
    /// A grant after the round counts from when it is read.
    LateGrantFromArrival,
    /// A renewal counts from when its answer is read.
    RenewalFromArrival,
    /// Once the hold is granted, nodes that have not answered get an undo, and their grants count all the same.
    UndoesUnanswered,
    /// The clocks differ by more than the margin.
    ClocksBeyondMargin,
    /// A round without a majority is not undone.
    NoUndo,
    /// A node that was restarted takes part at once.
    NoRest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Start,
    /// A request of A, by node and slot.
    Execute(usize, usize),
    Read(usize, usize),
    Grant,
    EndRound,
    Renew(usize),
    Release,
    StartB,
    ExecuteB(usize),
    GrantB,
    EndRoundB,
    ReleaseB,
    Restart(usize),
    Expire(usize),
    Tick,
}

const EXCLUSION: &str = "two hold it";
const KEPT: &str = "a hold that counts as valid is kept by a majority";
const REACHED: &str = "whoever asks comes to hold it";
const UNDONE: &str = "what nobody holds or asks for is released without waiting for the lease";

struct Masters {
    scene: Scene,
    begin: Instant,
    majority: Majority,
}

impl Masters {
    fn new(scene: Scene) -> Self {
        Self {
            scene,
            begin: Instant::now(),
            majority: Majority::of(NODES),
        }
    }

    fn is(&self, variant: Variant) -> bool {
        self.scene.variant == variant
    }

    fn repeats(&self) -> bool {
        self.scene.rounds.is_none()
    }

    /// The moment of a request in that tick.
    fn at(&self, tick: u8) -> Instant {
        self.begin + TICK * u32::from(tick)
    }

    /// The moment of any other event in that tick: a reply is later than its request.
    fn now(&self, tick: u8) -> Instant {
        self.at(tick) + TICK / 2
    }

    /// The certain end of a part that was requested in that tick.
    fn until(&self, asked_at: u8) -> Instant {
        let renewed = LeasePolicy::Renewed { max_hold: None };
        let mut lease = Lease::new(renewed, TICK * LEASE.into());
        lease.grant(self.at(asked_at), self.at(asked_at));
        time::instant(lease.until())
    }

    fn a_holds(&self, state: &State) -> bool {
        let now = self.now(state.time);
        matches!(state.a, Doing::Holds(_)) && state.until.is_some_and(|until| until > now)
    }

    fn b_holds(&self, state: &State) -> bool {
        matches!(state.b, Doing::Holds(since) if self.until(since) > self.now(state.time))
    }

    /// A number that nothing refers to.
    fn fresh(state: &State) -> Number {
        let mut used = 1 | 1_u32 << state.number;
        for node in &state.nodes {
            if let Some(Owner::A(number)) = node.owner {
                used |= 1 << number;
            }
            for sent in node.sent() {
                used |= 1 << sent.number;
            }
        }
        u8::try_from(used.trailing_ones()).unwrap_or(u8::MAX)
    }

    fn send_to_all(state: &mut State, action: Action) -> bool {
        let (number, at) = (state.number, state.time);
        let mut nodes = state.nodes.iter_mut();
        nodes.all(|node| node.send(action, number, at))
    }

    fn starts(&self, state: &mut State) -> bool {
        if !self.is(Variant::SameNumberAgain) || state.number == 0 {
            state.number = Self::fresh(state);
        }
        (state.parts, state.a) = (Parts::new(self.majority), Doing::Asks(state.time));
        state.rounds += u8::from(!self.repeats());
        Self::send_to_all(state, Action::Acquire)
    }

    /// Ends the round, or the hold: no answer counts any more, and everything is undone.
    fn lets_go(&self, state: &mut State) -> bool {
        (state.parts, state.until) = (Parts::new(self.majority), None);
        for node in &mut state.nodes {
            while let Some(slot) = node
                .sent
                .iter()
                .position(|sent| sent.is_some_and(|sent| sent.answer.is_some()))
            {
                node.done(slot);
            }
        }
        self.is(Variant::NoUndo) || Self::send_to_all(state, Action::Undo)
    }

    /// A reads an answer; `false` if that changes nothing.
    fn reads(&self, state: &mut State, node: usize, slot: usize) -> bool {
        let Some(sent) = state.nodes[node].sent[slot] else {
            return false;
        };
        state.nodes[node].done(slot);
        let holds = matches!(state.a, Doing::Holds(_));
        let from_arrival = match sent.action {
            Action::Acquire if holds => self.is(Variant::LateGrantFromArrival),
            Action::Acquire => self.is(Variant::GrantFromArrival),
            _ => self.is(Variant::RenewalFromArrival),
        };
        let from = if from_arrival { state.time } else { sent.at };
        let now = self.now(state.time);
        if sent.answer == Some(true) {
            state.parts.keep(node, self.until(from), now);
        } else {
            state.parts.lose(node);
        }
        if holds {
            state.until = state.parts.certain_until(now);
            if state.until.is_none() {
                state.a = Doing::Done;
                return self.lets_go(state);
            }
        }
        true
    }

    fn grants(&self, state: &mut State) -> bool {
        let now = self.now(state.time);
        state.until = match self.scene.variant {
            Variant::HalfIsEnough if state.parts.certain(now) > 0 => Some(self.until(state.time)),
            _ => state.parts.grant(now),
        };
        state.a = Doing::Holds(0);
        if self.is(Variant::UndoesUnanswered) {
            for (at, node) in state.nodes.iter_mut().enumerate() {
                if state.parts.part(at) == Part::Asked
                    && !node.send(Action::Undo, state.number, state.time)
                {
                    return false;
                }
            }
        }
        state.until.is_some()
    }

    /// A node executes a request of A; the answer stays there while A waits for it.
    fn executes(&self, state: &mut State, node: usize, slot: usize) -> bool {
        let Some(sent) = state.nodes[node].sent[slot] else {
            return false;
        };
        let node_state = &mut state.nodes[node];
        let is_mine = node_state.owner == Some(Owner::A(sent.number));
        let answer = match sent.action {
            Action::Acquire => self.takes(node_state, Owner::A(sent.number)),
            Action::Renew => {
                node_state.ttl = if is_mine { LEASE } else { node_state.ttl };
                is_mine
            }
            Action::Undo => {
                if is_mine {
                    (node_state.owner, node_state.ttl) = (None, 0);
                }
                is_mine
            }
        };
        let is_awaited = match state.a {
            Doing::Asks(_) => sent.action == Action::Acquire,
            Doing::Holds(_) => sent.action != Action::Undo,
            _ => false,
        };
        if is_awaited && sent.number == state.number && state.parts.part(node) != Part::Out {
            node_state.sent[slot] = Some(SentRequest {
                answer: Some(answer),
                ..sent
            });
        } else {
            node_state.done(slot);
        }
        true
    }

    fn takes(&self, node: &mut Node, owner: Owner) -> bool {
        let rests = node.rests > 0 && !self.is(Variant::NoRest);
        // An acquire succeeds on a node that an acquire with the same number has taken.
        let is_free = node.owner.is_none_or(|current| current == owner);
        if is_free && !rests {
            (node.owner, node.ttl) = (Some(owner), LEASE);
        }
        is_free && !rests
    }

    fn steps_of_a(&self, state: &State, add: Add<'_>) {
        let may_start = self.scene.rounds.is_none_or(|rounds| state.rounds < rounds);
        match state.a {
            Doing::Nothing if may_start => take(state, add, Step::Start, |next| self.starts(next)),
            Doing::Asks(_) => {
                take(state, add, Step::Grant, |next| self.grants(next));
                take(state, add, Step::EndRound, |next| {
                    next.a = Doing::Nothing;
                    self.lets_go(next)
                });
            }
            Doing::Holds(_) => {
                take(state, add, Step::Release, |next| {
                    next.a = Doing::Done;
                    self.lets_go(next)
                });
            }
            _ => {}
        }
        for (at, node) in state.nodes.iter().enumerate() {
            let renewing = node.sent().any(|sent| sent.action == Action::Renew);
            let now = self.now(state.time);
            // In the tick of the grant a renewal confirms nothing new.
            if matches!(state.a, Doing::Holds(_))
                && state.parts.is_kept(at)
                && !renewing
                && state.parts.clone().certain_until(now).is_some()
                && self.scene.ticks > 0
            {
                take(state, add, Step::Renew(at), |next| {
                    next.nodes[at].send(Action::Renew, next.number, next.time)
                });
            }
            for slot in 0..UNDER_WAY {
                match node.sent[slot].map(|sent| sent.answer) {
                    None => break,
                    Some(Some(_)) => {
                        take(state, add, Step::Read(at, slot), |next| {
                            self.reads(next, at, slot)
                        });
                    }
                    Some(None) => {
                        take(state, add, Step::Execute(at, slot), |next| {
                            self.executes(next, at, slot)
                        });
                        if self.repeats() {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn steps_of_b(&self, state: &State, add: Add<'_>) {
        let gives_back = |state: &mut State| {
            for node in &mut state.nodes {
                if node.owner == Some(Owner::B) {
                    (node.owner, node.ttl) = (None, 0);
                }
                node.b = AskedByB::No;
            }
            true
        };
        match state.b {
            Doing::Nothing => take(state, add, Step::StartB, |next| {
                next.b = Doing::Asks(next.time);
                for node in &mut next.nodes {
                    node.b = AskedByB::Sent;
                }
                true
            }),
            Doing::Asks(since) => {
                let granted = |node: &&Node| node.b == AskedByB::Granted;
                let granted = state.nodes.iter().filter(granted).count();
                if self.majority.has(granted) && self.until(since) > self.now(state.time) {
                    take(state, add, Step::GrantB, |next| {
                        next.b = Doing::Holds(since);
                        true
                    });
                }
                if self.repeats() {
                    take(state, add, Step::EndRoundB, |next| {
                        next.b = Doing::Nothing;
                        gives_back(next)
                    });
                }
            }
            Doing::Holds(_) if self.repeats() => take(state, add, Step::ReleaseB, |next| {
                next.b = Doing::Done;
                gives_back(next)
            }),
            _ => {}
        }
        for (at, node) in state.nodes.iter().enumerate() {
            if node.b == AskedByB::Sent && matches!(state.b, Doing::Asks(_)) {
                take(state, add, Step::ExecuteB(at), |next| {
                    let node = &mut next.nodes[at];
                    let takes = self.takes(node, Owner::B);
                    if takes {
                        node.b = AskedByB::Granted;
                    }
                    // A refusal need not be modelled: the request may as well be late.
                    takes
                });
            }
        }
    }

    fn steps_of_nodes(&self, state: &State, add: Add<'_>) {
        let beyond = u8::from(self.is(Variant::ClocksBeyondMargin));
        for (at, node) in state.nodes.iter().enumerate() {
            if state.restarts < self.scene.restarts && node.owner.is_some() {
                take(state, add, Step::Restart(at), |next| {
                    next.restarts += 1;
                    let node = &mut next.nodes[at];
                    (node.owner, node.ttl) = (None, 0);
                    node.rests = if self.scene.rests { LEASE } else { 0 };
                    true
                });
            }
            if self.scene.ticks > 0 && node.owner.is_some() && node.ttl <= DRIFT + beyond {
                take(state, add, Step::Expire(at), |next| {
                    (next.nodes[at].owner, next.nodes[at].ttl) = (None, 0);
                    true
                });
            }
        }
        if state.time < self.scene.ticks {
            take(state, add, Step::Tick, |next| {
                next.time += 1;
                for node in &mut next.nodes {
                    node.rests = node.rests.saturating_sub(1);
                    node.ttl = node.ttl.saturating_sub(1);
                    node.owner = node.owner.filter(|_| node.ttl > 0);
                }
                true
            });
        }
    }
}

type Add<'a> = &'a mut dyn FnMut(Step, State);

/// Adds a step if it can be taken.
fn take(state: &State, add: Add<'_>, step: Step, change: impl FnOnce(&mut State) -> bool) {
    let mut after = state.clone();
    if change(&mut after) {
        add(step, after);
    }
}

impl Model for Masters {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        State {
            nodes: [Node::default(); NODES],
            a: Doing::Nothing,
            number: 0,
            parts: Parts::new(self.majority),
            until: None,
            b: Doing::Nothing,
            time: 0,
            rounds: 0,
            restarts: 0,
        }
    }

    fn next(&self, state: &State, successors: &mut Vec<(Step, State)>) {
        if !self.repeats() && matches!(state.a, Doing::Done) {
            return;
        }
        let mut add = |step: Step, after: State| successors.push((step, after));
        self.steps_of_a(state, &mut add);
        self.steps_of_b(state, &mut add);
        self.steps_of_nodes(state, &mut add);
    }

    fn broken(&self, _before: &State, _step: Step, after: &State) -> Option<&'static str> {
        let forgets = self.scene.restarts > 0;
        if !self.a_holds(after) || forgets && !self.scene.rests {
            return None;
        }
        if self.b_holds(after) {
            return Some(EXCLUSION);
        }
        // A variant is searched for two holders; that too few nodes keep the hold is found sooner, and proves less.
        let checks = self.is(Variant::AsItIs) && !forgets;
        let keeps = |node: &&Node| node.owner == Some(Owner::A(after.number));
        let kept = after.nodes.iter().filter(keeps).count();
        (checks && !self.majority.has(kept)).then_some(KEPT)
    }

    fn goals(&self) -> Vec<&'static str> {
        match self.repeats() {
            true => vec![REACHED, REACHED, UNDONE],
            false => Vec::new(),
        }
    }

    fn lacks(&self, goal: usize, state: &State) -> bool {
        match goal {
            0 => matches!(state.a, Doing::Asks(_)),
            1 => matches!(state.b, Doing::Asks(_)),
            _ => state.nodes.iter().any(|node| match node.owner {
                Some(Owner::A(number)) => {
                    number != state.number || matches!(state.a, Doing::Nothing | Doing::Done)
                }
                _ => false,
            }),
        }
    }

    fn is_due(&self, goal: usize, step: Step) -> bool {
        match step {
            // A round without success is repeated.
            Step::Start | Step::EndRound | Step::StartB | Step::EndRoundB => goal < 2,
            Step::Restart(_) | Step::Expire(_) | Step::Tick => false,
            _ => true,
        }
    }

    fn words(&self, before: &State, step: Step, after: &State) -> String {
        let of = |node: usize| node + 1;
        let sent = |node: usize, slot: usize| match before.nodes[node].sent[slot] {
            Some(sent) => format!("{:?} {}", sent.action, sent.number),
            None => String::new(),
        };
        match step {
            Step::Start => format!("A asks all nodes, with number {}", after.number),
            Step::Execute(at, slot) => format!(
                "node {} executes {} of A, and is {:?} then",
                of(at),
                sent(at, slot),
                after.nodes[at].owner
            ),
            Step::Read(at, slot) => format!("A reads node {}'s {}", of(at), sent(at, slot)),
            Step::Grant => "A counts a majority, and holds it".to_owned(),
            Step::EndRound => "A ends its round without a majority, and undoes it".to_owned(),
            Step::Renew(at) => format!("A renews on node {}", of(at)),
            Step::Release => "A releases it".to_owned(),
            Step::StartB => "B asks all nodes".to_owned(),
            Step::ExecuteB(at) => format!("node {} grants it to B", of(at)),
            Step::GrantB => "B counts a majority, and holds it".to_owned(),
            Step::EndRoundB => "B ends its round without a majority, and undoes it".to_owned(),
            Step::ReleaseB => "B releases it".to_owned(),
            Step::Restart(at) => format!("node {} restarts, empty", of(at)),
            Step::Expire(at) => format!("the lease on node {} ends by its clock", of(at)),
            Step::Tick => "a tick".to_owned(),
        }
    }
}

/// Both clients repeat their rounds until they hold the lock. No time passes.
const ROUNDS: Scene = Scene {
    ticks: 0,
    rounds: None,
    restarts: 0,
    rests: false,
    variant: Variant::AsItIs,
};

/// Leases run out, and are renewed.
const LEASES: Scene = Scene {
    ticks: 2,
    rounds: Some(1),
    ..ROUNDS
};

const TWO_ROUNDS: Scene = Scene {
    ticks: 0,
    rounds: Some(2),
    ..ROUNDS
};

/// Nodes that were restarted take no part for as long as a lease.
const RESTS: Scene = Scene {
    ticks: 1,
    restarts: 1,
    rests: true,
    ..LEASES
};

fn keeps(name: &str, scene: Scene) -> usize {
    search::keeps(name, &Masters::new(scene)).states
}

#[test]
fn whoever_asks_gets_it_and_leaves_nothing_behind() {
    let states = keeps("rounds", ROUNDS);
    assert!(states > 1_000, "{states}");
}

#[test]
fn two_never_hold_it_while_no_node_forgets() {
    let mut states = keeps("leases on three nodes", LEASES);
    states += keeps("two rounds", TWO_ROUNDS);
    if search::asked_for("deep") {
        keeps("leases, for longer", Scene { ticks: 3, ..LEASES });
        let longer = Scene {
            ticks: 1,
            ..TWO_ROUNDS
        };
        keeps("two rounds, for longer", longer);
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn two_never_hold_it_if_nodes_that_forget_rest_for_a_lease() {
    let states = keeps("a restart, and a rest", RESTS);
    if search::asked_for("deep") {
        let two = Scene {
            ticks: 2,
            restarts: 2,
            ..RESTS
        };
        keeps("two restarts, and rests", two);
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_fault_of_the_protocol_on_several_masters_is_found() {
    let faults = [
        (Variant::HalfIsEnough, LEASES, EXCLUSION),
        (Variant::SameNumberAgain, TWO_ROUNDS, EXCLUSION),
        (Variant::GrantFromArrival, LEASES, EXCLUSION),
        (Variant::LateGrantFromArrival, LEASES, EXCLUSION),
        (Variant::RenewalFromArrival, LEASES, EXCLUSION),
        (Variant::UndoesUnanswered, LEASES, EXCLUSION),
        (Variant::ClocksBeyondMargin, LEASES, EXCLUSION),
        (Variant::NoUndo, ROUNDS, UNDONE),
        (Variant::NoRest, RESTS, EXCLUSION),
    ];
    for (variant, scene, rule) in faults {
        let scene = Scene { variant, ..scene };
        search::breaks(&format!("{variant:?}"), &Masters::new(scene), rule);
    }
}
