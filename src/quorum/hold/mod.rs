//! A hold that a majority of independent masters keeps: a [`QuorumHold`] of one [`NodeHold`] for each node.
//!
//! ```text
//! the hold   a majority granted           confirmed: certain for as long as a majority's last node is
//! (asked) ─────────────────────► held ──┐
//!                                 │ ▲ ◄─┘
//!                                 ├──► released: everything that a node may have of it
//!                                 └──► lost for good: time over, fewer than a majority certain, or a majority that may
//!                                      have been without it at the same time
//!
//! one node   acquire sent                 granted
//! fresh ─────────────────► asked ──────────────────────► kept ──┐
//!  ▲ ▲ ▲                    │ │                           │ ▲ ◄─┘ renewed
//!  │ │ └─ busy, refused ────┘ └─ connection lost: whether   │
//!  │ └─── it was carried out is unknown from now on         │
//!  └───── a gap begins ◄─ forgotten, or somebody else's ────┘
//! ```
//!
//! **Owner ids.** A node keeps a lock under an owner id, and every acquire uses one that this node was never sent before:
//! the first round uses one id for all nodes, and a node that is fresh again gets a new one. So nothing about an id has to
//! be revised. Once a node has granted it, no request of ours that is still under way can take it away; a renewal that
//! finds it proves that the node kept it all the time; and a renewal that does not find it ends that id for good. Only an
//! acquire whose outcome is unknown has to be undone. It may be carried out late, so the undo is sent again in front of
//! each later acquire and with the release.
//!
//! **Gaps.** See [`keeping`]. A node without a part in the grant has a gap from then on. When a gap begins or ends, the other
//! nodes are asked at once, and while the majority is a bare one, again and again.
//!
//! **Threads.** While it is held, each node's [`NodeHold`] is on the schedule of that node's watchdog (`upkeep`). Acquires
//! are only sent over the client's connection, so the release that would undo one always follows it.
//!
//! **Mutexes.** That of a [`QuorumHold`] may be taken with a local lock's held, and those of schedules and connections with
//! it held. No I/O while it is held.

mod backing;
mod node_hold;
mod release;
mod upkeep;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;

use crate::error::{LossReason, is_unknown_script};
use crate::hold::validity::Duty;
use crate::hold::{Backing, Entry, Hold};
use crate::local::lock::{LeasePolicy, Mode};
use crate::net::call::{Answer, Attempt, Call, Undo};
use crate::protocol::kind::{AcquireArgs, Place, PlaceState};
use crate::protocol::owner::OwnerId;
use crate::protocol::red;
use crate::quorum::hold::node_hold::{Keeper, NodeHold};
use crate::quorum::keeping::{self, Keeping};
use crate::quorum::nodes::{Node, Nodes};
use crate::report::report;
use crate::session::Session;

/// How soon a node that has lost its share is asked for it again while more than a bare majority keeps the hold: this part
/// of the lease, within these limits.
const HEAL: (u32, Duration, Duration) = (30, Duration::from_millis(5), Duration::from_secs(1));

/// How many acquires of unknown outcome are remembered for each node: one for each connection lost with an acquire under
/// way.
const DOUBTFUL: usize = 16;

fn heal_after(lease: Duration) -> Duration {
    (lease / HEAL.0).clamp(HEAL.1, HEAL.2)
}

/// What the nodes keep of one hold.
pub(crate) struct QuorumHold {
    nodes: Arc<Nodes>,
    /// The owner id of the first round, under which most nodes keep it.
    owner: OwnerId,
    /// For how long a node has to have been up to take part; zero for any.
    up_for: Duration,
    /// The hold as the local lock and the guard have it.
    hold: OnceLock<Weak<Hold>>,
    state: Mutex<State>,
    me: Weak<Self>,
}

struct State {
    shares: Vec<Share>,
    /// A majority has granted it.
    granted: bool,
    /// The hold is over, or never was.
    let_go: bool,
    releases: Vec<Releasing>,
    /// Since when only a bare majority is certain, and whether that was logged.
    bare: Option<(Instant, bool)>,
    /// When a gap last began or ended. Nodes have to confirm again since: the more recently each has confirmed, the less can
    /// have been lost at the same time.
    changed_at: Option<Instant>,
    /// The value of `changed_at` for which they were last asked.
    called_at: Option<Instant>,
    /// Why it is lost. The first watchdog to find out decides.
    lost: Option<LossReason>,
}

/// One node.
struct Share {
    /// The hold under the owner id that the node keeps, or was asked or will be asked to keep.
    hold: Arc<NodeHold>,
    stage: Stage,
    kept: Keeping,
    /// Acquires of unknown outcome, which may still be executed.
    doubtful: VecDeque<Arc<NodeHold>>,
    /// The node did not know the script of the last acquire.
    by_text: bool,
    /// The node has refused the last acquire, since it has not been up for long enough.
    rests: bool,
    /// Its client is closed.
    left_out: bool,
}

enum Stage {
    /// Nothing was sent under its owner id.
    Fresh,
    Asked {
        call: Arc<Call>,
        since: Instant,
    },
    Kept,
}

/// The release for one node, if there is one, and what was known of the node at that moment.
#[derive(Clone)]
struct Releasing {
    call: Option<Arc<Call>>,
    kept: Keeping,
}

/// What is known of the hold; to be acted on once the mutex is released.
enum Verdict {
    Held,
    /// Held by only so many nodes, a bare majority, for a while.
    Bare(usize),
    Lost(LossReason),
}

impl Share {
    fn is_kept(&self) -> bool {
        matches!(self.stage, Stage::Kept)
    }

    /// Whether the node keeps its share, or may do so: its reply was not read.
    fn may_be_kept(&self) -> bool {
        !matches!(self.stage, Stage::Fresh) || !self.doubtful.is_empty()
    }

    /// Whether the node keeps its share as this `node_hold`.
    fn is_kept_as(&self, node_hold: &Arc<NodeHold>) -> bool {
        self.is_kept() && !self.left_out && Arc::ptr_eq(&self.hold, node_hold)
    }

    fn is_renewed(&self) -> bool {
        matches!(self.hold.lease_policy(), LeasePolicy::Renewed { .. })
    }
}

impl State {
    fn kept(&self) -> impl Iterator<Item = &Keeping> {
        self.shares.iter().map(|share| &share.kept)
    }

    /// Whether a node has to confirm its share before the next renewal is due.
    fn is_unconfirmed(&self, node: usize) -> bool {
        self.changed_at > self.shares[node].kept.confirmed_at()
    }

    fn lost(&mut self, why: LossReason) -> Verdict {
        Verdict::Lost(*self.lost.get_or_insert(why))
    }
}

impl QuorumHold {
    pub(crate) fn new(
        nodes: &Arc<Nodes>,
        lease: LeasePolicy,
        ttl: Duration,
        up_for: Duration,
    ) -> Arc<Self> {
        let home = nodes.home();
        let owner = home.owners.id(home.owners.draw());
        Arc::new_cyclic(|me: &Weak<Self>| {
            let share = |(node, at): (usize, &Node)| Share {
                hold: Self::draw(me, at, node, owner.clone(), lease, ttl),
                stage: Stage::Fresh,
                kept: Keeping::default(),
                doubtful: VecDeque::new(),
                by_text: false,
                rests: false,
                left_out: false,
            };
            let shares = nodes.list.iter().enumerate().map(share).collect();
            Self {
                nodes: Arc::clone(nodes),
                owner,
                up_for,
                hold: OnceLock::new(),
                state: Mutex::new(State {
                    shares,
                    granted: false,
                    let_go: false,
                    releases: Vec::new(),
                    bare: None,
                    changed_at: None,
                    called_at: None,
                    lost: None,
                }),
                me: Weak::clone(me),
            }
        })
    }

    /// A node's hold under an owner id that it was never sent.
    fn draw(
        me: &Weak<Self>,
        at: &Node,
        node: usize,
        owner: OwnerId,
        lease: LeasePolicy,
        ttl: Duration,
    ) -> Arc<NodeHold> {
        let (entry, number) = (Arc::clone(&at.entry), at.session.owners.draw());
        let hold = Hold::new(entry, Mode::Exclusive, number, lease, ttl);
        let keeper = Weak::clone(me) as Weak<dyn Keeper>;
        NodeHold::new(hold, owner, keeper, node)
    }

    /// The acquire for a node in the first round. To be sent only once, as any acquire.
    pub(crate) fn acquire(&self, node: usize) -> Attempt {
        self.ask_for(node, &self.state.lock().shares[node].hold)
    }

    fn ask_for(&self, node: usize, node_hold: &Arc<NodeHold>) -> Attempt {
        let run_id = match self.up_for.is_zero() {
            true => String::new(),
            false => {
                let seniority = &self.nodes.list[node].session.server.seniority;
                seniority.counts_as(self.up_for, Instant::now())
            }
        };
        Attempt {
            request: node_hold.entry().protocol.acquire(&AcquireArgs {
                owner: &node_hold.owner,
                lease: node_hold.lease(),
                mode: Mode::Exclusive,
                under: None,
                ignored_writers: None,
                place: Place {
                    ticket: &node_hold.owner,
                    keep: Duration::ZERO,
                    state: PlaceState::Unknown,
                    served: &[],
                },
                tokens: 1,
                token_ttl: Duration::ZERO,
                up_for: self.up_for,
                run_id: &run_id,
            }),
            undo: Some(Arc::clone(node_hold) as Arc<dyn Undo>),
        }
    }

    /// Takes over what a round has sent.
    pub(crate) fn begin(&self, calls: Vec<Option<Arc<Call>>>) {
        let mut state = self.state.lock();
        let since = Instant::now();
        for (share, call) in state.shares.iter_mut().zip(calls) {
            if let Some(call) = call {
                share.stage = Stage::Asked { call, since };
            }
        }
        self.look(&mut state);
    }

    /// The hold as the local lock and the guard have it.
    pub(crate) fn hold(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        lease: LeasePolicy,
        ttl: Duration,
    ) -> Arc<Hold> {
        debug_assert!(*entry.protocol.kind() == red::KIND);
        let (entry, number) = (Arc::clone(entry), self.home().owners.draw());
        let hold = Hold::new(entry, Mode::Exclusive, number, lease, ttl);
        let hold = hold.known_as(self.owner.clone());
        let hold = Arc::new(hold.backed_by(Arc::clone(self) as Arc<dyn Backing>));
        self.hold.get_or_init(|| Arc::downgrade(&hold));
        hold
    }

    /// A majority has granted it to the round that began at `sent_at`: from now on the watchdogs attend to their nodes. They
    /// renew what these keep, unless the lease is fixed, ask for what is missing, and release it when their client is closed.
    pub(crate) fn is_granted(&self, sent_at: Instant) {
        let mut state = self.state.lock();
        state.granted = true;
        for share in &mut state.shares {
            if !share.is_kept() {
                share.kept.has_no_part_in_grant(sent_at);
            }
        }
        // A majority has just granted it, so this cannot find it lost.
        let verdict = self.judge(&mut state, LossReason::Expired);
        self.arm(&state);
        drop(state);
        self.act(verdict);
    }

    fn home(&self) -> &Arc<Session> {
        self.nodes.home()
    }

    fn get_hold(&self) -> Option<Arc<Hold>> {
        self.hold.get().and_then(Weak::upgrade)
    }

    /// Handles the replies that have come.
    fn look(&self, state: &mut State) {
        for node in 0..state.shares.len() {
            let share = &mut state.shares[node];
            let Stage::Asked { call, .. } = &share.stage else {
                continue;
            };
            match call.outcome() {
                None => {}
                Some(Ok(Answer {
                    value: Value::Nil,
                    sent_at,
                    ..
                })) => {
                    share.hold.grant(sent_at);
                    self.is_kept(state, node, sent_at);
                }
                Some(Ok(Answer {
                    value: Value::Int(_),
                    ..
                })) => {
                    share.rests = false;
                    self.change_owner(state, node);
                }
                Some(Ok(Answer { value, .. })) => match value.extract_error() {
                    // Refused before it was executed.
                    Err(err) => {
                        share.by_text = is_unknown_script(&err);
                        share.rests = self.nodes.list[node].session.server.seniority.learn(&err);
                        self.change_owner(state, node);
                    }
                    Ok(_) => self.doubt(state, node),
                },
                Some(Err(_)) => self.doubt(state, node),
            }
        }
    }

    /// A node has confirmed that it keeps its share to a request that was sent at `asked_at`.
    fn is_kept(&self, state: &mut State, node: usize, asked_at: Instant) {
        let (share, now) = (&mut state.shares[node], Instant::now());
        (share.stage, share.rests) = (Stage::Kept, false);
        if share.kept.confirm(asked_at, share.hold.valid_until(), now) {
            state.changed_at = Some(now);
        }
    }

    /// The outcome of the acquire is unknown, and it may still be executed.
    fn doubt(&self, state: &mut State, node: usize) {
        let share = &mut state.shares[node];
        share.doubtful.push_back(Arc::clone(&share.hold));
        if share.doubtful.len() > DOUBTFUL {
            share.doubtful.pop_front();
        }
        self.change_owner(state, node);
    }

    /// The owner id is used up: the next acquire needs another.
    fn change_owner(&self, state: &mut State, node: usize) {
        let at = &self.nodes.list[node];
        let share = &mut state.shares[node];
        share.hold.end();
        at.session.watchdog.disarm(&share.hold);
        let owners = &self.home().owners;
        share.hold = Self::draw(
            &self.me,
            at,
            node,
            owners.id(owners.draw()),
            share.hold.lease_policy(),
            share.hold.lease(),
        );
        share.stage = Stage::Fresh;
        if state.granted && !state.let_go && !state.shares[node].left_out {
            let due = self.due(state, node, Instant::now());
            at.session.watchdog.arm(&state.shares[node].hold, due);
        }
    }

    /// How many nodes keep the hold for certain.
    fn certain_nodes(&self) -> usize {
        let mut state = self.state.lock();
        self.look(&mut state);
        keeping::certain(state.kept(), Instant::now())
    }

    /// A node does not keep its share any more.
    fn is_missing(&self, state: &mut State, node: usize, why: LossReason, now: Instant) -> Verdict {
        let from = state.shares[node].kept.miss(now);
        state.changed_at = Some(now);
        self.change_owner(state, node);
        if keeping::majority_may_have_lacked(self.nodes.majority, state.kept(), from, now) {
            // Others may have had a majority in the meantime.
            return state.lost(why);
        }
        self.judge(state, why)
    }

    /// What is known of the nodes decides what becomes of the hold; `why` it is lost, if time is not the reason.
    fn judge(&self, state: &mut State, why: LossReason) -> Verdict {
        let hold = self.get_hold().filter(|hold| hold.is_held());
        let Some(hold) = hold.filter(|_| state.granted && !state.let_go) else {
            return Verdict::Held;
        };
        let (majority, now) = (self.nodes.majority, Instant::now());
        let until = keeping::certain_until(majority, state.kept(), now);
        if !until.is_some_and(|until| self.count_on(&hold, until)) {
            return state.lost(why);
        }
        let mut verdict = Verdict::Held;
        let certain = keeping::certain(state.kept(), now);
        if !majority.is_bare(certain) {
            state.bare = None;
        } else {
            match &mut state.bare {
                None => {
                    state.bare = Some((now, false));
                    self.arm(state);
                }
                Some((since, logged)) => {
                    if !*logged && now >= *since + heal_after(hold.lease()) {
                        *logged = true;
                        verdict = Verdict::Bare(certain);
                    }
                }
            }
        }
        if state.called_at < state.changed_at {
            state.called_at = state.changed_at;
            for (node, at) in self.nodes.list.iter().enumerate() {
                let share = &state.shares[node];
                if share.is_kept() && state.is_unconfirmed(node) {
                    at.session.watchdog.arm(&share.hold, now);
                }
            }
        }
        verdict
    }

    fn act(&self, verdict: Verdict) {
        let Some(hold) = self.get_hold() else {
            return;
        };
        match verdict {
            Verdict::Held => {}
            Verdict::Bare(nodes) => {
                let (n, name) = (self.nodes.list.len(), hold.entry().name());
                report!(
                    Warn,
                    "`{name}` is held by no more than {nodes} of {n} nodes"
                );
            }
            Verdict::Lost(reason) => {
                let now = Instant::now();
                let reason = match hold.duty(now) {
                    // If its time is over, it has expired and was not removed.
                    Duty::Lose(over) if now >= hold.valid_until() => over,
                    _ => reason,
                };
                self.home().lose(&hold, reason);
            }
        }
    }

    /// A majority keeps the hold until then; the watchdog has to know if that is sooner than before. `false` if it is over.
    fn count_on(&self, hold: &Arc<Hold>, until: Instant) -> bool {
        let before = hold.valid_until();
        let until = match hold.lease_policy() {
            LeasePolicy::Renewed { .. } => until,
            // A fixed lease never becomes longer.
            LeasePolicy::Fixed(_) => until.min(before),
        };
        let sooner = until < before;
        if !hold.majority_keeps_until(until) {
            return false;
        }
        if sooner {
            self.home()
                .watchdog
                .arm(hold, hold.due_after(Instant::now()));
        }
        true
    }
}
