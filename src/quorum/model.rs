//! The protocol of a lock on three masters, as a model: a client A that asks all of them, holds, renews, heals and
//! releases, and a client B that asks, holds and releases meanwhile; masters that restart empty, and a network that loses,
//! delays and doubles. Searched exhaustively, see [`search`](crate::search).
//!
//! What the nodes are known to keep, what a majority makes of it, when a round ends and how long the hold is certain is
//! asked of the library: [`Keeping`], [`keeping`], [`Majority`], [`Goal`] and [`Lease`]. What is around them in `hold` is
//! bound to connections and threads, and restated: the stages of a node, owner ids, the verdict, undoing, the release.
//!
//! Time passes in ticks of two milliseconds, up to the limit of a [`Scene`]. A renewal, and its reply, take no time: one
//! that takes longer, or gets lost, only makes A less certain. A node out of reach is one that executes nothing.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use crate::hold::validity::{Lease, RenewedBy};
use crate::local::lock::LeasePolicy;
use crate::quorum::keeping::{self, Keeping, ReleaseTally};
use crate::quorum::tally::{self, Majority, Progress, Tally};
use crate::search::{self, Model};
use crate::time;

const RENEWED: LeasePolicy = LeasePolicy::Renewed { max_hold: None };

const TICK: Duration = Duration::from_millis(2);

/// In ticks. The margin takes a little more than one, so a hold is certain at the ages 0 to 2.
const LEASE: u8 = 4;

/// How much sooner a lease may end by a node's clock than by the client's, in ticks: within the margin.
const DRIFT: u8 = 1;

const NODES: usize = 3;

/// The number of A's owner id. One is used again once nothing refers to it any more.
type Number = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    A(Number),
    B,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Stage {
    #[default]
    Fresh,
    /// When, if for a hold that exists, and whether it was granted, once it is executed.
    Asked {
        at: u8,
        heals: bool,
        granted: Option<bool>,
    },
    Kept,
}

/// What a connection that was lost still carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Late {
    number: Number,
    /// The acquire; behind it there may be what undoes it.
    acquires: bool,
    heals: bool,
    undoes: bool,
}

/// What B knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Asked {
    #[default]
    No,
    Sent,
    Granted,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    owner: Option<Owner>,
    ttl: u8,
    /// For so many ticks it takes no part, since it was restarted.
    rests: u8,
    // What A knows of it.
    stage: Stage,
    number: Number,
    keeping: Keeping,
    /// An acquire of unknown outcome.
    doubtful: Option<Number>,
    late: Option<Late>,
    // What B knows of it.
    b: Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Doing {
    #[default]
    Nothing,
    /// Since when.
    Asks(u8),
    /// The same.
    Holds(u8),
    Done,
}

#[derive(Debug, Clone)]
struct State {
    nodes: [Node; NODES],
    a: Doing,
    /// Of A's hold.
    lease: Option<Lease>,
    b: Doing,
    time: u8,
    left: Left,
    /// A majority of nodes was without A's hold at one time.
    lacked: bool,
    /// B held it while A's time was over, and A did not know yet.
    succeeded: bool,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The nodes are alike, so it does not matter which is which. Nor do numbers, as long as the same ones are the same.
        let mut nodes = self.nodes.map(|mut node| {
            let mut names = [0; 4];
            let mut named = 0;
            let mut rename = |number: &mut Number| {
                let known = names[..named].iter().position(|its| its == number);
                let at = known.unwrap_or_else(|| {
                    names[named] = *number;
                    named += 1;
                    named - 1
                });
                *number = u8::try_from(at).unwrap_or(u8::MAX);
            };
            rename(&mut node.number);
            if let Some(Owner::A(number)) = &mut node.owner {
                rename(number);
            }
            if let Some(late) = &mut node.late {
                rename(&mut late.number);
            }
            if let Some(number) = &mut node.doubtful {
                rename(number);
            }
            search::digest(&node)
        });
        nodes.sort_unstable();
        nodes.hash(state);
        (self.a, self.b, self.time, self.left).hash(state);
        self.lease.as_ref().map(Lease::until).hash(state);
        (self.lacked, self.succeeded).hash(state);
    }
}

/// How often what else may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Left {
    /// A connection of A is lost.
    losses: u8,
    /// A node restarts empty.
    restarts: u8,
}

#[derive(Debug, Clone, Copy, Default)]
struct Scene {
    /// So many ticks pass.
    ticks: u8,
    left: Left,
    /// A restarted node takes no part for as long as a lease.
    rests: bool,
    /// Rounds are repeated until they succeed.
    repeats: bool,
    /// A asks before any time has passed; nodes restart while A holds, and B asks after that.
    early: bool,
    /// There is no B.
    alone: bool,
    variant: Variant,
}

/// The library as it is, or with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Variant {
    #[default]
    AsItIs,
    /// Half of the nodes are enough.
    HalfIsEnough,
    /// Validity counts from the grant, not from the start of the round.
    CountsFromGrant,
    /// A round that took longer than the lease is granted all the same.
    GrantedTooLate,
    /// The clocks differ by more than the margin.
    ClocksBeyondMargin,
    /// A node is asked again under the owner id of the hold.
    SameOwnerAgain,
    /// Nothing is written any more to a connection that is given up.
    NoLastWords,
    /// A round without a majority is not undone.
    NoUndo,
    /// A hold whose time is over may become valid again.
    RisesAgain,
    /// A node without a part in the grant has no gap.
    NoGapAtGrant,
    /// What a node has been without is not remembered.
    NoGaps,
    /// A release asks how many nodes had it, and not since when.
    ReleaseCounts,
    /// A node that was restarted takes part at once.
    NoRest,
    /// A node that was restarted lets the holder take its part again at once.
    HealsAtOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Start,
    Run(usize),
    Read(usize),
    Grant,
    EndRound,
    Heal(usize),
    Renew(usize),
    Break(usize),
    RunLate(usize),
    Notice,
    Release,
    StartB,
    RunB(usize),
    GrantB,
    EndRoundB,
    ReleaseB,
    Restart(usize),
    Expire(usize),
    Tick,
}

const EXCLUSION: &str = "two hold it";
const KEPT: &str = "a hold that counts as valid is kept by a majority";
const RISEN: &str = "what somebody else has had since never becomes valid again";
const FOUND_OUT: &str = "a release reports that a majority was without the hold at one time";
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

    /// When something was asked for in that tick.
    fn at(&self, tick: u8) -> Instant {
        self.begin + TICK * u32::from(tick)
    }

    /// When anything else happened: a reply is later than its request.
    fn now(&self, tick: u8) -> Instant {
        self.at(tick) + TICK / 2
    }

    /// The lease of what was asked for then.
    fn lease(&self, asked_at: u8, by: RenewedBy) -> Lease {
        let mut lease = Lease::new(RENEWED, TICK * LEASE.into()).renewed_by(by);
        lease.grant(self.at(asked_at), self.at(asked_at));
        lease
    }

    fn has_majority(&self, nodes: usize) -> bool {
        match self.scene.variant {
            Variant::HalfIsEnough => nodes >= NODES / 2,
            _ => self.majority.has(nodes),
        }
    }

    fn is_valid(&self, lease: &Lease, tick: u8) -> bool {
        time::nanos(self.now(tick)) < lease.until()
    }

    fn a_holds(&self, state: &State) -> bool {
        let valid = |lease| self.is_valid(lease, state.time);
        matches!(state.a, Doing::Holds(_)) && state.lease.as_ref().is_some_and(valid)
    }

    fn b_holds(&self, state: &State) -> bool {
        let lease = |since| self.lease(since, RenewedBy::Nodes);
        matches!(state.b, Doing::Holds(since) if self.is_valid(&lease(since), state.time))
    }

    /// A number that nothing refers to on this node.
    fn fresh(node: &Node) -> Number {
        let owner = match node.owner {
            Some(Owner::A(number)) => Some(number),
            _ => None,
        };
        let late = node.late.map(|late| late.number);
        let mut used = 1_u32;
        for number in [Some(node.number), owner, late, node.doubtful] {
            used |= number.map_or(0, |number| 1 << number);
        }
        u8::try_from(used.trailing_ones()).unwrap_or(u8::MAX)
    }

    fn asks(&self, state: &mut State) {
        for node in &mut state.nodes {
            node.number = Self::fresh(node);
            node.keeping = Keeping::default();
            node.stage = Stage::Asked {
                at: state.time,
                heals: false,
                granted: None,
            };
        }
        state.a = Doing::Asks(state.time);
    }

    /// The owner id is used up: the next acquire needs another.
    fn changes_owner(&self, state: &mut State, node: usize) {
        state.nodes[node].stage = Stage::Fresh;
        if !self.is(Variant::SameOwnerAgain) {
            state.nodes[node].number = 0;
        }
    }

    fn keepings(state: &State) -> impl Iterator<Item = &Keeping> {
        state.nodes.iter().map(|node| &node.keeping)
    }

    fn loses(&self, state: &mut State) {
        self.lets_go(state);
        state.a = Doing::Done;
    }

    /// What every node may have of it is released. The releases are carried out at once where nothing is under way.
    fn lets_go(&self, state: &mut State) {
        for node in &mut state.nodes {
            let released = [Some(node.number), node.doubtful];
            if let Stage::Asked {
                granted: None,
                heals,
                ..
            } = node.stage
            {
                // Behind the acquire, over the same connection.
                node.late = node.late.or(Some(Late {
                    number: node.number,
                    acquires: true,
                    heals,
                    undoes: !self.is(Variant::NoUndo),
                }));
            } else if let Some(Owner::A(number)) = node.owner
                && released.contains(&Some(number))
                && !self.is(Variant::NoUndo)
            {
                (node.owner, node.ttl) = (None, 0);
            }
            (node.stage, node.number) = (Stage::Fresh, 0);
            (node.keeping, node.doubtful) = (Keeping::default(), None);
        }
        state.lease = None;
    }

    fn confirms(&self, state: &mut State, node: usize, asked_at: u8) {
        let (now, lease) = (
            self.now(state.time),
            self.lease(asked_at, RenewedBy::Watchdog),
        );
        let node = &mut state.nodes[node];
        node.stage = Stage::Kept;
        let until = time::instant(lease.until());
        node.keeping.confirm(self.at(asked_at), until, now);
    }

    /// What is known of the nodes decides what becomes of the hold.
    fn judges(&self, state: &mut State) {
        let now = self.now(state.time);
        let until = keeping::certain_until(self.majority, Self::keepings(state), now);
        let Some(lease) = &mut state.lease else {
            return;
        };
        let held = match until {
            Some(until) if self.is(Variant::RisesAgain) => {
                let asked_at = self.at(state.time);
                *lease = Lease::new(RENEWED, TICK * LEASE.into()).renewed_by(RenewedBy::Nodes);
                lease.grant(asked_at, asked_at);
                lease.majority_keeps_until(until, now)
            }
            Some(until) => lease.majority_keeps_until(until, now),
            None => self.is(Variant::HalfIsEnough),
        };
        if !held {
            self.loses(state);
        }
    }

    fn read(&self, state: &mut State, node: usize) {
        let Stage::Asked {
            at,
            granted: Some(granted),
            ..
        } = state.nodes[node].stage
        else {
            return;
        };
        if granted {
            self.confirms(state, node, at);
        } else {
            self.changes_owner(state, node);
        }
        if matches!(state.a, Doing::Holds(_)) {
            self.judges(state);
        }
    }

    fn renews(&self, state: &mut State, node: usize) {
        let (now, time) = (self.now(state.time), state.time);
        let its = &mut state.nodes[node];
        if its.owner == Some(Owner::A(its.number)) {
            its.ttl = LEASE;
            self.confirms(state, node, time);
            return self.judges(state);
        }
        let from = its.keeping.miss(now);
        self.changes_owner(state, node);
        let lacked =
            keeping::majority_may_have_lacked(self.majority, Self::keepings(state), from, now);
        if lacked && !self.is(Variant::NoGaps) {
            return self.loses(state);
        }
        self.judges(state);
    }

    /// Whether the release finds that it was held all the time, if all nodes answer.
    fn released_as_held(&self, state: &State) -> bool {
        let now = self.now(state.time);
        let kept = Self::keepings(state).copied();
        let mut tally = ReleaseTally::new(self.majority, kept, now);
        let (mut no, mut held) = (0, true);
        for (at, node) in state.nodes.iter().enumerate() {
            if node.stage == Stage::Fresh {
                no += 1;
                continue;
            }
            let had_it = node.owner == Some(Owner::A(node.number));
            no += usize::from(!had_it);
            held &= tally.answered(at, had_it) || self.is(Variant::ReleaseCounts);
        }
        held && self.majority.tally(tally.yes(), no) == Tally::Won
    }

    /// A node executes an acquire.
    fn executes(&self, node: &mut Node, owner: Owner, heals: bool) -> bool {
        // Also under its own id: then two nodes would be one server.
        let is_free = node.owner.is_none();
        let at_once = heals && self.is(Variant::HealsAtOnce);
        let rests = node.rests > 0 && !at_once && !self.is(Variant::NoRest);
        if is_free && !rests {
            (node.owner, node.ttl) = (Some(owner), LEASE);
        }
        is_free && !rests
    }

    fn steps_of_a(&self, state: &State, add: &mut dyn FnMut(Step, State)) {
        let mut take = |step: Step, change: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            change(&mut after);
            add(step, after);
        };
        let kept = state.nodes.iter().filter(|node| node.stage == Stage::Kept);
        let kept = kept.count();
        match state.a {
            Doing::Nothing if self.scene.early && state.time > 0 => {}
            Doing::Nothing => take(Step::Start, &|state| self.asks(state)),
            Doing::Asks(since) => {
                let from_grant = self.is(Variant::CountsFromGrant);
                let counted = if from_grant { state.time } else { since };
                let mut lease = self.lease(counted, RenewedBy::Nodes);
                let in_time = self.is_valid(&lease, state.time);
                if !in_time && self.is(Variant::GrantedTooLate) {
                    lease = self.lease(state.time, RenewedBy::Nodes);
                }
                let is_granted = in_time || self.is(Variant::GrantedTooLate);
                if self.has_majority(kept) && is_granted {
                    take(Step::Grant, &|state| {
                        state.a = Doing::Holds(0);
                        state.lease = Some(lease.clone());
                        for node in &mut state.nodes {
                            if node.stage != Stage::Kept && !self.is(Variant::NoGapAtGrant) {
                                node.keeping.has_no_part_in_grant(self.at(since));
                            }
                        }
                        if !self.is(Variant::CountsFromGrant) && in_time {
                            self.judges(state);
                        }
                    });
                }
                take(Step::EndRound, &|state| {
                    self.lets_go(state);
                    let repeats = self.scene.repeats;
                    state.a = if repeats { Doing::Nothing } else { Doing::Done };
                });
            }
            Doing::Holds(_) => {
                if self.a_holds(state) {
                    take(Step::Release, &|state| self.loses(state));
                } else {
                    take(Step::Notice, &|state| self.loses(state));
                }
            }
            Doing::Done => {}
        }
        for (at, node) in state.nodes.iter().enumerate() {
            let holds = matches!(state.a, Doing::Holds(_));
            match node.stage {
                Stage::Asked {
                    granted: None,
                    heals,
                    ..
                } => take(Step::Run(at), &|state| {
                    let node = &mut state.nodes[at];
                    let granted = self.executes(node, Owner::A(node.number), heals);
                    if let Stage::Asked { granted: its, .. } = &mut node.stage {
                        *its = Some(granted);
                    }
                }),
                Stage::Asked { .. } => take(Step::Read(at), &|state| self.read(state, at)),
                Stage::Fresh if holds => take(Step::Heal(at), &|state| {
                    let mut number = Self::fresh(&state.nodes[at]);
                    if self.is(Variant::SameOwnerAgain) {
                        number = state.nodes[at].number;
                    }
                    let node = &mut state.nodes[at];
                    // What may have been taken is undone first.
                    if let Some(doubtful) = node.doubtful
                        && node.owner == Some(Owner::A(doubtful))
                    {
                        (node.owner, node.ttl) = (None, 0);
                    }
                    node.number = number;
                    node.stage = Stage::Asked {
                        at: state.time,
                        heals: true,
                        granted: None,
                    };
                }),
                Stage::Kept if holds => {
                    let now = Some(self.at(state.time));
                    let is_kept = node.owner == Some(Owner::A(node.number));
                    // Otherwise it says nothing new.
                    if !is_kept || node.keeping.confirmed_at() != now {
                        take(Step::Renew(at), &|state| self.renews(state, at));
                    }
                }
                Stage::Fresh | Stage::Kept => {}
            }
            if state.left.losses > 0 && node.late.is_none() && node.doubtful.is_none() {
                let Stage::Asked { heals, granted, .. } = node.stage else {
                    continue;
                };
                take(Step::Break(at), &|state| {
                    state.left.losses -= 1;
                    self.breaks(state, at, heals, granted.is_some());
                });
            }
        }
    }

    /// The connection to a node is lost while an acquire is under way.
    fn breaks(&self, state: &mut State, node: usize, heals: bool, executed: bool) {
        let its = &mut state.nodes[node];
        its.late = Some(Late {
            number: its.number,
            acquires: !executed,
            heals,
            undoes: !self.is(Variant::NoLastWords),
        });
        its.doubtful = Some(its.number);
        self.changes_owner(state, node);
    }

    fn steps_of_b(&self, state: &State, add: &mut dyn FnMut(Step, State)) {
        let mut take = |step: Step, change: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            change(&mut after);
            add(step, after);
        };
        let of = |what| move |node: &&Node| node.b == what;
        let count = |what| state.nodes.iter().filter(of(what)).count();
        let gives_back = |state: &mut State| {
            for node in &mut state.nodes {
                if node.owner == Some(Owner::B) {
                    (node.owner, node.ttl) = (None, 0);
                }
                node.b = Asked::No;
            }
        };
        match state.b {
            Doing::Nothing if self.scene.alone || !self.is_late_enough_for_b(state) => {}
            Doing::Nothing => take(Step::StartB, &|state| {
                state.b = Doing::Asks(state.time);
                for node in &mut state.nodes {
                    node.b = Asked::Sent;
                }
            }),
            Doing::Asks(since) => {
                let granted = count(Asked::Granted);
                let lease = self.lease(since, RenewedBy::Nodes);
                if self.has_majority(granted) && self.is_valid(&lease, state.time) {
                    take(Step::GrantB, &|state| {
                        state.b = Doing::Holds(since);
                        for node in &mut state.nodes {
                            node.b = Asked::No;
                        }
                    });
                }
                let seen = Progress {
                    yes: granted,
                    answered: granted + count(Asked::Refused),
                    pending: count(Asked::Sent),
                    untried: 0,
                };
                let ends = tally::Goal::Majority.next(self.majority, seen) == tally::Step::Finish;
                // Where it does not repeat, nothing more comes of a round without a majority.
                if self.scene.repeats && ends {
                    take(Step::EndRoundB, &|state| {
                        gives_back(state);
                        state.b = Doing::Nothing;
                    });
                }
            }
            Doing::Holds(_) => take(Step::ReleaseB, &|state| {
                gives_back(state);
                state.b = Doing::Done;
            }),
            Doing::Done => {}
        }
        for (at, node) in state.nodes.iter().enumerate() {
            if node.b == Asked::Sent {
                take(Step::RunB(at), &|state| {
                    let node = &mut state.nodes[at];
                    let granted = self.executes(node, Owner::B, false);
                    node.b = if granted {
                        Asked::Granted
                    } else {
                        Asked::Refused
                    };
                });
            }
        }
    }

    fn steps_of_nodes(&self, state: &State, add: &mut dyn FnMut(Step, State)) {
        let mut take = |step: Step, change: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            change(&mut after);
            add(step, after);
        };
        for (at, node) in state.nodes.iter().enumerate() {
            if let Some(late) = node.late {
                take(Step::RunLate(at), &|state| {
                    let node = &mut state.nodes[at];
                    if late.acquires {
                        self.executes(node, Owner::A(late.number), late.heals);
                    } else if late.undoes && node.owner == Some(Owner::A(late.number)) {
                        (node.owner, node.ttl) = (None, 0);
                    }
                    let rest = Late {
                        acquires: false,
                        ..late
                    };
                    node.late = (late.acquires && late.undoes).then_some(rest);
                });
            }
            if state.left.restarts > 0 && node.owner.is_some() && self.is_late_enough(state) {
                take(Step::Restart(at), &|state| {
                    state.left.restarts -= 1;
                    let rests = if self.scene.rests { LEASE } else { 0 };
                    let node = &mut state.nodes[at];
                    (node.owner, node.ttl, node.rests) = (None, 0, rests);
                    node.late = None;
                    if node.b == Asked::Sent {
                        node.b = Asked::No;
                    }
                    if matches!(node.stage, Stage::Asked { granted: None, .. }) {
                        self.changes_owner(state, at);
                    }
                });
            }
            let beyond = u8::from(self.is(Variant::ClocksBeyondMargin));
            if self.scene.ticks > 0 && node.owner.is_some() && node.ttl <= DRIFT + beyond {
                take(Step::Expire(at), &|state| {
                    let node = &mut state.nodes[at];
                    (node.owner, node.ttl) = (None, 0);
                });
            }
        }
        if state.time < self.scene.ticks {
            take(Step::Tick, &|state| {
                state.time += 1;
                for node in &mut state.nodes {
                    node.rests = node.rests.saturating_sub(1);
                    node.ttl = node.ttl.saturating_sub(1);
                    if node.ttl == 0 {
                        node.owner = None;
                    }
                }
            });
        }
    }

    fn is_late_enough(&self, state: &State) -> bool {
        !self.scene.early || matches!(state.a, Doing::Holds(_))
    }

    /// The later B has asked, the longer its hold is valid.
    fn is_late_enough_for_b(&self, state: &State) -> bool {
        !self.scene.early || self.is_late_enough(state) && state.left.restarts == 0
    }

    /// Nothing more can come of it.
    fn is_over(&self, state: &State) -> bool {
        let over = |doing| matches!(doing, Doing::Done);
        !self.scene.repeats && over(state.a)
    }
}

impl Model for Masters {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        State {
            nodes: [Node::default(); NODES],
            a: Doing::Nothing,
            lease: None,
            b: Doing::Nothing,
            time: 0,
            left: self.scene.left,
            lacked: false,
            succeeded: false,
        }
    }

    fn next(&self, state: &State, to: &mut Vec<(Step, State)>) {
        if self.is_over(state) {
            return;
        }
        let mut add = |step: Step, mut after: State| {
            let (a, b) = (self.a_holds(&after), self.b_holds(&after));
            let keeps = |node: &&Node| matches!(node.owner, Some(Owner::A(_)));
            let kept = after.nodes.iter().filter(keeps).count();
            after.lacked |= a && !self.majority.has(kept);
            after.succeeded |= b && !a && matches!(after.a, Doing::Holds(_));
            to.push((step, after));
        };
        self.steps_of_a(state, &mut add);
        self.steps_of_b(state, &mut add);
        self.steps_of_nodes(state, &mut add);
    }

    fn broken(&self, before: &State, step: Step, after: &State) -> Option<&'static str> {
        let holds = self.a_holds(after);
        let forgets = self.scene.left.restarts > 0;
        let told = self.scene.rests || !forgets;
        if holds && self.b_holds(after) && told {
            return Some(EXCLUSION);
        }
        let keeps = |node: &&Node| matches!(node.owner, Some(Owner::A(_)));
        if holds && !forgets && !self.majority.has(after.nodes.iter().filter(keeps).count()) {
            return Some(KEPT);
        }
        if holds && before.succeeded && !forgets {
            return Some(RISEN);
        }
        if step == Step::Release && before.lacked && self.released_as_held(before) {
            return Some(FOUND_OUT);
        }
        None
    }

    fn goals(&self) -> Vec<&'static str> {
        match self.scene.repeats {
            true => vec![REACHED, REACHED, UNDONE],
            false => Vec::new(),
        }
    }

    fn lacks(&self, goal: usize, state: &State) -> bool {
        match goal {
            0 => matches!(state.a, Doing::Asks(_)),
            1 => matches!(state.b, Doing::Asks(_)),
            _ => state.nodes.iter().any(|node| match node.owner {
                Some(Owner::A(number)) => number != node.number || node.stage == Stage::Fresh,
                _ => false,
            }),
        }
    }

    fn is_due(&self, goal: usize, step: Step) -> bool {
        match step {
            // A round that is not successful is repeated.
            Step::Start | Step::EndRound | Step::StartB | Step::EndRoundB => goal < 2,
            Step::Break(_) | Step::Restart(_) | Step::Expire(_) | Step::Tick => false,
            _ => true,
        }
    }

    fn words(&self, before: &State, step: Step, after: &State) -> String {
        let of = |node: usize| node + 1;
        match step {
            Step::Start => "A asks all nodes".to_owned(),
            Step::Run(at) => {
                let granted = matches!(
                    after.nodes[at].stage,
                    Stage::Asked {
                        granted: Some(true),
                        ..
                    }
                );
                let says = if granted { "granted" } else { "refused" };
                format!("node {} executes A's acquire: {says}", of(at))
            }
            Step::Read(at) => format!("A reads the reply of node {}", of(at)),
            Step::Grant => "A counts a majority, and holds it".to_owned(),
            Step::EndRound => "A ends its round without a majority, and undoes it".to_owned(),
            Step::Heal(at) => format!("A asks node {} again", of(at)),
            Step::Renew(at) => {
                let found = after.nodes[at].stage == Stage::Kept;
                let says = if found { "found" } else { "not found" };
                format!("A renews on node {}: {says}", of(at))
            }
            Step::Break(at) => format!(
                "A's connection to node {} is given up; what it carries may be executed late",
                of(at)
            ),
            Step::RunLate(at) => {
                let acquires = before.nodes[at].late.is_some_and(|late| late.acquires);
                let what = if acquires { "acquire" } else { "undo" };
                format!("node {} executes a late {what} of A", of(at))
            }
            Step::Notice => "A's hold is reported lost: its time is over".to_owned(),
            Step::Release => "A releases it".to_owned(),
            Step::StartB => "B asks all nodes".to_owned(),
            Step::RunB(at) => {
                let granted = after.nodes[at].b == Asked::Granted;
                let says = if granted { "granted" } else { "refused" };
                format!("node {} executes B's acquire: {says}", of(at))
            }
            Step::GrantB => "B counts a majority, and holds it".to_owned(),
            Step::EndRoundB => "B ends its round without a majority, and undoes it".to_owned(),
            Step::ReleaseB => "B releases it".to_owned(),
            Step::Restart(at) => format!("node {} restarts, empty", of(at)),
            Step::Expire(at) => format!("the lease on node {} ends by its clock", of(at)),
            Step::Tick => "a tick".to_owned(),
        }
    }
}

/// Both repeat their rounds until they hold it. No time passes.
const ROUNDS: Scene = Scene {
    ticks: 0,
    left: Left {
        losses: 0,
        restarts: 0,
    },
    rests: false,
    repeats: true,
    early: false,
    alone: false,
    variant: Variant::AsItIs,
};

/// Leases run out, and are renewed.
const LEASES: Scene = Scene {
    ticks: 3,
    repeats: false,
    early: true,
    ..ROUNDS
};

fn with(losses: u8, restarts: u8, scene: Scene) -> Scene {
    let left = Left { losses, restarts };
    Scene { left, ..scene }
}

fn keeps(name: &str, scene: Scene) -> usize {
    search::keeps(name, &Masters::new(scene)).states
}

#[test]
fn whoever_asks_gets_it_and_leaves_nothing_behind() {
    let mut states = keeps("rounds", ROUNDS);
    states += keeps("rounds, and a lost connection", with(1, 0, ROUNDS));
    assert!(states > 1_000, "{states}");
}

#[test]
fn two_never_hold_it_while_no_node_forgets() {
    let mut states = keeps("leases on three nodes", LEASES);
    let shorter = Scene {
        ticks: 2,
        ..with(1, 0, LEASES)
    };
    states += keeps("leases, and a lost connection", shorter);
    if search::asked_for("deep") {
        let long = Scene {
            early: false,
            ticks: 4,
            ..LEASES
        };
        keeps("leases, for longer", long);
        keeps(
            "leases, for longer, and a lost connection",
            with(1, 0, LEASES),
        );
    }
    assert!(states > 10_000, "{states}");
}

/// Nodes that were restarted take no part for as long as a lease.
const RESTS: Scene = Scene {
    rests: true,
    ..LEASES
};

const ALONE: Scene = Scene {
    alone: true,
    ..LEASES
};

#[test]
fn two_never_hold_it_if_nodes_that_forget_rest_for_a_lease() {
    let states = keeps("restarts, and a rest", with(0, 1, RESTS));
    if search::asked_for("deep") {
        keeps("two restarts, and rests", with(0, 2, RESTS));
        let at_any_time = Scene {
            early: false,
            ..with(0, 1, RESTS)
        };
        keeps("heals what has rested", at_any_time);
        // A node grants it to B and forgets that, and A takes it at once. With it A has a majority although its lease ends
        // on a node that it cannot reach; and with that node so has B, if its round has lasted until then.
        let at_once = Scene {
            variant: Variant::HealsAtOnce,
            ..at_any_time
        };
        search::breaks("heals at once", &Masters::new(at_once), EXCLUSION);
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn a_release_reports_that_a_majority_was_without_the_hold() {
    let mut states = keeps("restarts", with(0, 1, ALONE));
    states += keeps("two restarts", with(0, 2, ALONE));
    if search::asked_for("deep") {
        keeps("two restarts, and a lost connection", with(1, 2, ALONE));
        let long = Scene { ticks: 5, ..ALONE };
        keeps("three restarts, for longer", with(0, 3, long));
        keeps("a restart beside B", with(0, 1, LEASES));
    }
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_fault_of_the_protocol_on_several_masters_is_found() {
    let faults = [
        (Variant::HalfIsEnough, LEASES, KEPT),
        (Variant::CountsFromGrant, LEASES, KEPT),
        (Variant::GrantedTooLate, LEASES, KEPT),
        (Variant::ClocksBeyondMargin, LEASES, KEPT),
        (Variant::SameOwnerAgain, with(1, 0, ALONE), KEPT),
        (Variant::NoLastWords, with(1, 0, ROUNDS), UNDONE),
        (Variant::NoUndo, ROUNDS, UNDONE),
        (Variant::RisesAgain, LEASES, RISEN),
        (Variant::NoGapAtGrant, with(0, 1, ALONE), FOUND_OUT),
        (Variant::NoGaps, with(0, 1, ALONE), FOUND_OUT),
        (Variant::ReleaseCounts, with(0, 1, ALONE), FOUND_OUT),
        (Variant::NoRest, with(0, 1, RESTS), EXCLUSION),
    ];
    for (variant, scene, rule) in faults {
        let scene = Scene { variant, ..scene };
        search::breaks(&format!("{variant:?}"), &Masters::new(scene), rule);
    }
}
