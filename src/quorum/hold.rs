//! What the servers of a quorum keep of one hold: a *whole* of *parts*, one a node.
//!
//! ```text
//! whole    a majority granted            confirmed: certain for as long as the majority's last part is
//! (asked) ─────────────────────► held ──┐
//!                                 │ ▲ ◄─┘
//!                                 ├──► released: all numbers that a node may have
//!                                 └──► lost for good: time over, fewer than a majority certain, or gaps of a majority
//!                                      at what may have been the same time
//!
//! part       acquire sent                 taken
//! fresh ─────────────────► asked ──────────────────────► kept ──┐
//!  ▲ ▲ ▲                    │ │                           │ ▲ ◄─┘ renewed
//!  │ │ └─ busy, refused ────┘ └─ no connection any more:  │
//!  │ └─── its number is doubtful from now on              │
//!  └───── a gap begins ◄─ forgotten, or with somebody else┘
//! ```
//!
//! *Numbers.* Every acquire has an owner that was never sent to that node before: the round uses one number for all nodes,
//! whoever becomes fresh again draws a new one. What is known of a number is therefore final: once it is *kept* nothing of
//! ours that is still on its way can take it away, a renewal that finds it proves that the node kept it all the time, and
//! one that does not find it ends it for good. Only *doubtful* numbers are undone. They are never used again, and may be
//! carried out late, so they are undone in front of each later acquire and with the release.
//!
//! *Gaps.* A node that does not keep its part may have given it to others, from the last moment at which it is known to
//! have kept it until it keeps it again. If a majority has gaps at the same time, somebody else may have had the lock: it
//! is lost, even if a majority keeps it now. Nodes that were not part of the grant have a gap since then; those whose
//! part has run out have one too. Whenever a gap begins or ends the others are asked at once, and while the majority is a
//! bare one, again and again.
//!
//! The whole sits in the lock and makes the guard. The parts are on the agendas of their own clients while the whole is
//! held: each watchdog attends to its node. Only links create anything, so that nothing can be carried out behind the
//! release that would undo it.
//!
//! The mutex of a [`QuorumHold`] may be taken with a lock's held, and agendas' and links' may be taken with it held. No I/O while
//! it is held.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{RedisError, Value};

use crate::acquire::spec::Terms;
use crate::error::{LossReason, Result, is_unknown_script};
use crate::hold::schedule::{Place as OnSchedule, Scheduled};
use crate::hold::watchdog::{Next, Renewable};
use crate::hold::{Backing, Duty, Hold, LossSink, NotRenewed};
use crate::local::lock::{LeasePolicy, Mode};
use crate::local::registry::Entry;
use crate::net::call::{Answer, Attempt, Call, CallPhase, Deferred, Fault, Undo};
use crate::net::connection::WaitFault;
use crate::net::request::Request;
use crate::protocol::kind::{AcquireArgs, Place, PlaceState};
use crate::protocol::red;
use crate::protocol::script::{self, Released, Renewed};
use crate::quorum::keeping::{self, Keeping, ReleaseTally};
use crate::quorum::round::{self, Failure, Node, Nodes, Reply, SLICE, Short};
use crate::quorum::tally::{Goal, Tally};
use crate::report::report;
use crate::session::Session;
use crate::time::Unanswered as _;

/// How soon a node that does not keep its part is asked about it again while there is more than a bare majority: a share
/// of the lease, and within which limits.
const HEAL: (u32, Duration, Duration) = (30, Duration::from_millis(5), Duration::from_secs(1));

/// For so many parts a client looks after each as often as [`round::pause`] says, where that is called for; of more, less
/// often, so that what it asks for in a second is bounded.
const AT_ONCE: usize = 64;

/// How long a connection may owe an older reply for a look whether an acquire has been answered.
const PROMPT: Duration = Duration::from_millis(50);

/// How many doubtful numbers of a node are remembered. There is one for each connection that broke with an acquire under
/// way.
const DOUBTFUL: usize = 16;

fn heal_after(lease: Duration) -> Duration {
    (lease / HEAL.0).clamp(HEAL.1, HEAL.2)
}

/// What the nodes keep of one hold.
pub(crate) struct QuorumHold {
    nodes: Arc<Nodes>,
    /// That of the round, under which most nodes keep it.
    owner: String,
    whole: OnceLock<Weak<Hold>>,
    state: Mutex<State>,
    me: Weak<Self>,
}

struct State {
    parts: Vec<Part>,
    /// A majority has granted it.
    granted: bool,
    /// The whole is over, or never was.
    let_go: bool,
    releases: Vec<Releasing>,
    /// Since when no more than a majority is certain, and whether that was logged.
    bare: Option<(Instant, bool)>,
    /// When a gap began or ended last. Parts that were confirmed before have to be confirmed again: the later they are
    /// known not to have forgotten it, the fewer gaps can have been at the same time.
    changed_at: Option<Instant>,
    /// The last of these moments for which they were asked.
    called_at: Option<Instant>,
    /// Why it is lost, as whoever found out first says: several watchdogs may find it at once.
    lost: Option<LossReason>,
}

/// One node.
struct Part {
    /// The hold under the number that the node keeps, was asked for, or will be asked for next.
    hold: Arc<NodeHold>,
    stage: Stage,
    kept: Keeping,
    /// Numbers that were sent, are not used, and may be carried out yet.
    doubtful: VecDeque<Arc<NodeHold>>,
    /// The node did not know the script of the last acquire.
    by_text: bool,
    /// Its client is closed.
    left_out: bool,
}

enum Stage {
    /// Nothing was sent under the number.
    Fresh,
    Asked {
        call: Arc<Call>,
        since: Instant,
    },
    Kept,
}

/// A release on its way, or that there is none, and what was known of the node when it was let go.
#[derive(Clone)]
struct Releasing {
    call: Option<Arc<Call>>,
    kept: Keeping,
}

/// What is known of the whole, to be acted on once the mutex has been let go.
enum Verdict {
    Held,
    /// By no more than so many nodes, for a while.
    Bare(usize),
    Lost(LossReason),
}

impl Part {
    fn is_kept(&self) -> bool {
        matches!(self.stage, Stage::Kept)
    }

    /// Whether the node keeps it under the number of `hold`, and is still asked about it.
    fn is_kept_as(&self, hold: &Arc<NodeHold>) -> bool {
        self.is_kept() && !self.left_out && Arc::ptr_eq(&self.hold, hold)
    }

    fn is_renewed(&self) -> bool {
        matches!(self.hold.terms(), LeasePolicy::Renewed { .. })
    }
}

impl State {
    fn kept(&self) -> impl Iterator<Item = &Keeping> {
        self.parts.iter().map(|part| &part.kept)
    }

    /// Whether a node has to confirm its part although it is not to be renewed yet.
    fn is_unconfirmed(&self, node: usize) -> bool {
        self.changed_at > self.parts[node].kept.confirmed_at()
    }

    fn lost(&mut self, why: LossReason) -> Verdict {
        Verdict::Lost(*self.lost.get_or_insert(why))
    }
}

impl QuorumHold {
    pub(crate) fn new(nodes: &Arc<Nodes>, entry: &Arc<Entry>, terms: Terms) -> Arc<Self> {
        let home = nodes.home();
        debug_assert!(*entry.protocol.kind() == red::KIND);
        let owner = home.owners.id(home.owners.draw());
        Arc::new_cyclic(|me: &Weak<Self>| {
            let part = |(node, at): (usize, &Node)| Part {
                hold: Self::draw(me, at, node, owner.clone(), terms.lease, terms.ttl),
                stage: Stage::Fresh,
                kept: Keeping::default(),
                doubtful: VecDeque::new(),
                by_text: false,
                left_out: false,
            };
            let parts = nodes.list.iter().enumerate().map(part).collect();
            Self {
                nodes: Arc::clone(nodes),
                owner,
                whole: OnceLock::new(),
                state: Mutex::new(State {
                    parts,
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

    /// What a node will keep under a number that it was never sent.
    fn draw(
        me: &Weak<Self>,
        at: &Node,
        node: usize,
        owner: String,
        lease: LeasePolicy,
        ttl: Duration,
    ) -> Arc<NodeHold> {
        let (entry, number) = (Arc::clone(&at.entry), at.session.owners.draw());
        Arc::new(NodeHold {
            hold: Hold::new(entry, Mode::Exclusive, number, owner, lease, ttl),
            quorum_hold: Weak::clone(me),
            node,
        })
    }

    /// What takes a node's part in the round: once, since its number may be sent once.
    pub(crate) fn acquire(&self, node: usize, up_for: Duration, run_id: &str) -> Attempt {
        Self::ask_for(&self.state.lock().parts[node].hold, up_for, run_id)
    }

    fn ask_for(part: &Arc<NodeHold>, up_for: Duration, run_id: &str) -> Attempt {
        Attempt {
            request: part.entry.protocol.acquire(&AcquireArgs {
                owner: &part.owner,
                lease: part.lease(),
                mode: Mode::Exclusive,
                under: None,
                yields: None,
                place: Place {
                    ticket: &part.owner,
                    keep: Duration::ZERO,
                    stood: PlaceState::Never,
                },
                tokens: 1,
                token_ttl: Duration::ZERO,
                up_for,
                run_id,
            }),
            undo: Some(Arc::clone(part) as Arc<dyn Undo>),
        }
    }

    /// Takes over what a round has sent.
    pub(crate) fn begin(&self, calls: Vec<Option<Arc<Call>>>) {
        let mut state = self.state.lock();
        let since = Instant::now();
        for (part, call) in state.parts.iter_mut().zip(calls) {
            if let Some(call) = call {
                part.stage = Stage::Asked { call, since };
            }
        }
        self.look(&mut state);
    }

    pub(crate) fn whole(self: &Arc<Self>, entry: &Arc<Entry>, terms: Terms) -> Arc<Hold> {
        let entry = Arc::clone(entry);
        let number = self.home().owners.draw();
        let whole = Arc::new(
            Hold::new(
                entry,
                Mode::Exclusive,
                number,
                self.owner.clone(),
                terms.lease,
                terms.ttl,
            )
            .backed_by(Arc::clone(self) as Arc<dyn Backing>),
        );
        self.whole.get_or_init(|| Arc::downgrade(&whole));
        whole
    }

    /// A majority has granted it to the round that began at `sent_at`: from now on the watchdogs attend to the parts. They
    /// renew them, unless the lease is fixed, take those that are missing, and give them back when their client is closed.
    pub(crate) fn is_granted(&self, sent_at: Instant) {
        let mut state = self.state.lock();
        state.granted = true;
        for part in &mut state.parts {
            if !part.is_kept() {
                part.kept.has_no_part_in_grant(sent_at);
            }
        }
        // It is held, whatever else is known by now; time cannot be over.
        let verdict = self.judge(&mut state, LossReason::Expired);
        self.arm(&state);
        drop(state);
        self.act(verdict);
    }

    fn home(&self) -> &Arc<Session> {
        self.nodes.home()
    }

    fn get_whole(&self) -> Option<Arc<Hold>> {
        self.whole.get().and_then(Weak::upgrade)
    }

    /// Looks at the answers that have come.
    fn look(&self, state: &mut State) {
        for node in 0..state.parts.len() {
            let part = &mut state.parts[node];
            let Stage::Asked { call, .. } = &part.stage else {
                continue;
            };
            match call.outcome() {
                None => {}
                Some(Ok(Answer {
                    value: Value::Nil,
                    sent_at,
                })) => {
                    part.hold.grant(sent_at);
                    self.is_kept(state, node, sent_at);
                }
                Some(Ok(Answer {
                    value: Value::Int(_),
                    ..
                })) => self.renumber(state, node),
                Some(Ok(Answer { value, .. })) => match value.extract_error() {
                    // Refused before it had done anything.
                    Err(err) => {
                        part.by_text = is_unknown_script(&err);
                        self.nodes.list[node].session.server.seniority.learn(&err);
                        self.renumber(state, node);
                    }
                    Ok(_) => self.doubt(state, node),
                },
                Some(Err(_)) => self.doubt(state, node),
            }
        }
    }

    /// A node has confirmed its part, having been asked at `asked_at`.
    fn is_kept(&self, state: &mut State, node: usize, asked_at: Instant) {
        let (part, now) = (&mut state.parts[node], Instant::now());
        part.stage = Stage::Kept;
        if part.kept.confirm(asked_at, part.hold.valid_until(), now) {
            state.changed_at = Some(now);
        }
    }

    /// Nobody knows what became of the acquire, and it may be carried out yet.
    fn doubt(&self, state: &mut State, node: usize) {
        let part = &mut state.parts[node];
        part.doubtful.push_back(Arc::clone(&part.hold));
        if part.doubtful.len() > DOUBTFUL {
            part.doubtful.pop_front();
        }
        self.renumber(state, node);
    }

    /// The number is not used any more: the next acquire needs another.
    fn renumber(&self, state: &mut State, node: usize) {
        let at = &self.nodes.list[node];
        let part = &mut state.parts[node];
        part.hold.end();
        at.session.watchdog.disarm(&part.hold);
        let owners = &self.home().owners;
        part.hold = Self::draw(
            &self.me,
            at,
            node,
            owners.id(owners.draw()),
            part.hold.terms(),
            part.hold.lease(),
        );
        part.stage = Stage::Fresh;
        if state.granted && !state.let_go && !state.parts[node].left_out {
            let due = self.due(state, node, Instant::now());
            at.session.watchdog.arm(&state.parts[node].hold, due);
        }
    }

    /// Has the watchdogs look after all parts when that is due.
    fn arm(&self, state: &State) {
        let now = Instant::now();
        for (node, at) in self.nodes.list.iter().enumerate() {
            let part = &state.parts[node];
            if !part.left_out {
                at.session
                    .watchdog
                    .arm(&part.hold, self.due(state, node, now));
            }
        }
    }

    /// When the watchdog has to attend to a part.
    fn due(&self, state: &State, node: usize, now: Instant) -> Instant {
        let (part, watchdog) = (&state.parts[node], &self.nodes.list[node].session.watchdog);
        let (lease, renewed) = (part.hold.lease(), part.is_renewed());
        let bare = state.bare.is_some();
        let soon = || {
            let crowd = u32::try_from(watchdog.parts() / AT_ONCE).unwrap_or(u32::MAX);
            now + round::pause()
                .saturating_mul(crowd.saturating_add(1))
                .min(lease / 3)
        };
        match part.stage {
            Stage::Kept if bare || state.is_unconfirmed(node) => soon(),
            Stage::Kept if renewed => part.kept.confirmed_at().unwrap_or(now) + lease / 3,
            Stage::Asked { since, .. } if bare || now < since + 10 * PROMPT => soon(),
            Stage::Fresh if bare && renewed => soon(),
            _ if renewed => now + heal_after(lease),
            // It ends by itself; it is on the watchdog for its client to find it when that is closed.
            _ => now + lease,
        }
    }

    /// Whether the whole is held still.
    pub(crate) fn is_held(&self) -> bool {
        self.get_whole().is_some_and(|whole| whole.is_held())
    }

    pub(crate) fn renewal_has_failed(&self) {
        if let Some(whole) = self.get_whole() {
            whole.renewal_failed.store(true, Ordering::Relaxed);
        }
    }

    /// How many nodes keep the hold for certain.
    fn certain_nodes(&self) -> usize {
        let mut state = self.state.lock();
        self.look(&mut state);
        keeping::certain(state.kept(), Instant::now())
    }

    /// The holder's count.
    pub(crate) fn count(&self) -> u32 {
        let whole = self.get_whole();
        whole.map_or(1, |whole| whole.count.load(Ordering::Relaxed))
    }

    /// Reads what has come for parts that were asked for: nobody else may do so for a while.
    fn read_answers(&self) {
        let asked = |(node, part): (usize, &Part)| match &part.stage {
            Stage::Asked { call, .. } if call.outcome().is_none() => Some((node, Arc::clone(call))),
            _ => None,
        };
        let state = self.state.lock();
        let calls: Vec<_> = state.parts.iter().enumerate().filter_map(asked).collect();
        drop(state);
        for (node, call) in calls {
            let connection = &self.nodes.list[node].session.connection;
            if connection.responds(PROMPT) {
                connection.wait(&call, Instant::now(), &|| false).ok();
            }
        }
    }

    /// Asks a node for its part, over its connection, in front of any release, and behind what undoes the numbers that might
    /// be in the way.
    fn heal(&self, state: &mut State, node: usize, now: Instant) {
        let connection = &self.nodes.list[node].session.connection;
        let part = &mut state.parts[node];
        if state.let_go
            || part.left_out
            || !matches!(part.stage, Stage::Fresh)
            || !part.is_renewed()
        {
            return;
        }
        if !connection.responds(Duration::MAX) {
            return connection.want();
        }
        for number in &part.doubtful {
            connection.submit(&Call::deferred(number.release(true)));
        }
        let call = Call::unattended(Self::ask_for(&part.hold, Duration::ZERO, ""));
        if part.by_text {
            call.by_text_from_now();
        }
        if connection.submit(&call).is_some() {
            part.stage = Stage::Asked { call, since: now };
        }
    }

    /// Attends to a part that is `hold`: asks for it if the node does not keep it. `true` if it is not to be renewed now.
    fn attend(&self, node: usize, hold: &Arc<NodeHold>) -> bool {
        let session = &self.nodes.list[node].session;
        self.read_answers();
        let mut state = self.state.lock();
        let now = Instant::now();
        self.look(&mut state);
        self.heal(&mut state, node, now);
        let verdict = self.judge(&mut state, LossReason::Forced);
        let part = &state.parts[node];
        let renews = part.is_kept()
            && Arc::ptr_eq(&part.hold, hold)
            && !state.let_go
            && (state.bare.is_some()
                || state.is_unconfirmed(node)
                || part.is_renewed()
                    && part
                        .kept
                        .confirmed_at()
                        .is_none_or(|at| now >= at + part.hold.lease() / 6));
        let asks = matches!(part.stage, Stage::Asked { .. });
        if !renews && !state.let_go && !part.left_out {
            let due = self.due(&state, node, now);
            session.watchdog.arm(&part.hold, due);
        }
        drop(state);
        if asks {
            session.connection.flush(false);
            session.watchdog.housekeep_soon();
        }
        self.act(verdict);
        !renews
    }

    /// What the renewal of a part means for the whole.
    fn settle(&self, node: usize, hold: &Arc<NodeHold>, renewed: Renewed, at: Instant) {
        let session = &self.nodes.list[node].session;
        let (n, name) = (self.nodes.list.len(), &hold.entry.name);
        let mut state = self.state.lock();
        self.look(&mut state);
        let part = &state.parts[node];
        if state.let_go || !part.is_kept_as(hold) {
            // It says nothing of the number that is used now.
            return;
        }
        let now = Instant::now();
        let was_certain = part.kept.is_certain(now);
        let verdict = match renewed {
            Renewed::Yes => {
                if part.is_renewed() {
                    session.counters.renewals.add(1);
                    hold.was_renewed(at);
                }
                self.is_kept(&mut state, node, at);
                let verdict = self.judge(&mut state, LossReason::Forced);
                session.watchdog.arm(hold, self.due(&state, node, now));
                verdict
            }
            Renewed::Gone => self.is_missing(&mut state, node, LossReason::Forced, now),
            Renewed::Taken => self.is_missing(&mut state, node, LossReason::TakenOver, now),
        };
        if renewed != Renewed::Yes {
            // Asked for again at once.
            session.watchdog.arm(&state.parts[node].hold, now);
        }
        drop(state);
        if renewed != Renewed::Yes && was_certain {
            report!(
                Warn,
                "node {node} of {n} has forgotten `{name}`, which is held"
            );
        }
        self.act(verdict);
    }

    /// A node does not keep its part any more.
    fn is_missing(&self, state: &mut State, node: usize, why: LossReason, now: Instant) -> Verdict {
        let from = state.parts[node].kept.miss(now);
        state.changed_at = Some(now);
        self.renumber(state, node);
        if keeping::majority_may_have_lacked(self.nodes.majority, state.kept(), from, now) {
            // Others may have had a majority in between.
            return state.lost(why);
        }
        self.judge(state, why)
    }

    /// Says what the parts mean for the whole; `why` it is lost, if it is because of what is known, and not of time.
    fn judge(&self, state: &mut State, why: LossReason) -> Verdict {
        let whole = self.get_whole().filter(|whole| whole.is_held());
        let Some(whole) = whole.filter(|_| state.granted && !state.let_go) else {
            return Verdict::Held;
        };
        let (majority, now) = (self.nodes.majority, Instant::now());
        let until = keeping::certain_until(majority, state.kept(), now);
        if !until.is_some_and(|until| self.count_on(&whole, until)) {
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
                    if !*logged && now >= *since + heal_after(whole.lease()) {
                        *logged = true;
                        verdict = Verdict::Bare(certain);
                    }
                }
            }
        }
        if state.called_at < state.changed_at {
            state.called_at = state.changed_at;
            for (node, at) in self.nodes.list.iter().enumerate() {
                let part = &state.parts[node];
                if part.is_kept() && state.is_unconfirmed(node) {
                    at.session.watchdog.arm(&part.hold, now);
                }
            }
        }
        verdict
    }

    fn act(&self, verdict: Verdict) {
        let Some(whole) = self.get_whole() else {
            return;
        };
        match verdict {
            Verdict::Held => {}
            Verdict::Bare(nodes) => {
                let (n, name) = (self.nodes.list.len(), &whole.entry.name);
                report!(
                    Warn,
                    "`{name}` is held by no more than {nodes} of {n} nodes"
                );
            }
            Verdict::Lost(reason) => {
                let now = Instant::now();
                let reason = match whole.duty(now) {
                    // What is gone when its time is over was not taken away.
                    Duty::Lose(over) if now >= whole.valid_until() => over,
                    _ => reason,
                };
                self.home().lose(&whole, reason);
            }
        }
    }

    /// A majority keeps the whole until then; the watchdog has to know if that is sooner than it was. `false` if its time
    /// is over already.
    fn count_on(&self, whole: &Arc<Hold>, until: Instant) -> bool {
        let before = whole.valid_until();
        let until = match whole.terms() {
            LeasePolicy::Renewed { .. } => until,
            // What nobody has renewed does not become longer.
            LeasePolicy::Fixed(_) => until.min(before),
        };
        let sooner = until < before;
        if !whole.majority_keeps_until(until) {
            return false;
        }
        if sooner {
            self.home()
                .watchdog
                .arm(whole, whole.due_after(Instant::now()));
        }
        true
    }

    /// One more hold, for a fixed lease: asks all nodes, wants a majority.
    fn renew_all(
        &self,
        lease: LeasePolicy,
        ttl: Duration,
        count: u32,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<(Renewed, Instant), Failure> {
        let (nodes, sent_at) = (&self.nodes, Instant::now());
        let mut state = self.state.lock();
        self.look(&mut state);
        let parts: Vec<_> = state
            .parts
            .iter()
            .map(|part| Arc::clone(&part.hold))
            .collect();
        drop(state);
        for part in &parts {
            part.may_last(ttl);
        }
        let mut renew = |node: usize| Attempt {
            request: nodes.list[node].entry.protocol.renew(
                Mode::Exclusive,
                &parts[node].owner,
                ttl,
                count,
            ),
            undo: None,
        };
        let kept = |value: &Value| matches!(value, Value::Int(1));
        let not_ours = |value: &Value| matches!(value, Value::Int(0 | -1));
        let round = nodes.round_twice(Goal::Majority, ttl, until, stop, &mut renew, &kept);
        let mut state = self.state.lock();
        self.look(&mut state);
        if state.let_go {
            return Ok((Renewed::Gone, sent_at));
        }
        let mut agreed = 0;
        let mut verdict = Verdict::Held;
        for (node, reply) in round.replies.iter().enumerate() {
            let Reply::Pending(answer) = reply else {
                continue;
            };
            // A number that is not kept for certain may be undone yet, also by what was sent before.
            if !state.parts[node].is_kept_as(&parts[node]) {
                continue;
            }
            if kept(&answer.value) {
                agreed += 1;
                parts[node].extend(answer.sent_at, ttl);
                self.is_kept(&mut state, node, answer.sent_at);
            } else if not_ours(&answer.value) && !matches!(verdict, Verdict::Lost(_)) {
                let why = match answer.value {
                    Value::Int(-1) => LossReason::TakenOver,
                    _ => LossReason::Forced,
                };
                verdict = self.is_missing(&mut state, node, why, Instant::now());
            }
        }
        let majority = nodes.majority;
        if majority.has(agreed) {
            for part in &state.parts {
                part.hold.change_lease(lease, ttl);
            }
            // Under the mutex: what is found out next may make it shorter again.
            if let Some(whole) = self.get_whole() {
                whole.change_lease(lease, ttl);
                whole.extend(sent_at, ttl);
            }
        }
        if !matches!(verdict, Verdict::Lost(_)) {
            verdict = self.judge(&mut state, LossReason::Forced);
            self.arm(&state);
        }
        drop(state);
        let lost = match verdict {
            Verdict::Lost(LossReason::TakenOver) => Some(Renewed::Taken),
            Verdict::Lost(_) => Some(Renewed::Gone),
            _ => None,
        };
        self.act(verdict);
        if let Some(lost) = lost {
            return Ok((lost, sent_at));
        }
        if majority.has(agreed) {
            return Ok((Renewed::Yes, sent_at));
        }
        if stop() {
            return Err(Fault::Stopped.into());
        }
        if majority.tally(agreed, round.count(&not_ours)) == Tally::Lost {
            let others = |value: &Value| matches!(value, Value::Int(-1));
            let taken = round.count(&others) > 0;
            return Ok((if taken { Renewed::Taken } else { Renewed::Gone }, sent_at));
        }
        Err(nodes.short(agreed, round.replies).into())
    }

    /// Ends all parts, and has them released wherever they may be. In memory only; [`QuorumHold::flush`] has to follow.
    pub(crate) fn let_go(&self) -> Arc<Call> {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.let_go, true) {
            self.look(&mut state);
            let releases = (0..state.parts.len()).map(|node| Releasing {
                kept: state.parts[node].kept,
                call: self.release(&mut state, node),
            });
            let releases = releases.collect();
            state.releases = releases;
        }
        let release = state.releases.iter().find_map(|its| its.call.clone());
        // Without any, one that says that it never was sent.
        release.unwrap_or_else(|| Call::deferred(state.parts[0].hold.release(true)))
    }

    /// Ends the part of one node, and has everything released that may be there.
    fn release(&self, state: &mut State, node: usize) -> Option<Arc<Call>> {
        let session = &self.nodes.list[node].session;
        let granted = state.granted;
        let part = &mut state.parts[node];
        part.hold.end();
        session.watchdog.disarm(&part.hold);
        for number in part.doubtful.drain(..) {
            session
                .connection
                .submit(&Call::deferred(number.release(true)));
        }
        let mut release = match std::mem::replace(&mut part.stage, Stage::Fresh) {
            Stage::Fresh => return None,
            Stage::Asked { .. } => part.hold.release(true),
            // Of an attempt that has failed nobody is told.
            Stage::Kept => part.hold.release(!granted),
        };
        // A node that has forgotten it is no news: the majority is what counts.
        release.terms.undo = true;
        let call = Call::deferred(release);
        session.connection.submit(&call);
        Some(call)
    }

    /// Writes what [`QuorumHold::let_go`] has queued, and has what is left looked after.
    pub(crate) fn flush(&self) {
        for node in &self.nodes.list {
            node.session.connection.flush(false);
        }
        self.tend();
    }

    /// The client of a node is being closed.
    pub(crate) fn leave_out(&self, node: usize) {
        let mut state = self.state.lock();
        let Some(whole) = self.get_whole().filter(|_| !state.let_go) else {
            return;
        };
        self.look(&mut state);
        let part = &mut state.parts[node];
        part.left_out = true;
        part.kept.miss(Instant::now());
        // What is left is known before anything leaves.
        let until = keeping::certain_until(self.nodes.majority, state.kept(), Instant::now());
        if until.is_some_and(|until| self.count_on(&whole, until)) {
            self.release(&mut state, node);
        } else {
            drop(state);
            self.home().lose(&whole, LossReason::Closed);
            self.home().give_back(&whole);
        }
    }

    /// Has all clients bring to their nodes what is queued, and read what was not read.
    pub(crate) fn tend(&self) {
        for node in &self.nodes.list {
            node.session.watchdog.housekeep_soon();
        }
    }

    /// Waits until a majority has confirmed the release, and the others if that it was held all the time depends on them;
    /// why it was not, if so.
    fn wait_for_release(
        &self,
        until: Instant,
        in_time: bool,
    ) -> std::result::Result<Option<LossReason>, Short> {
        let nodes = &self.nodes;
        let mut reason = LossReason::Forced;
        let state = self.state.lock();
        let mut parts = state.releases.clone();
        let patience = round::patience(state.parts[0].hold.lease());
        drop(state);
        let kept = parts.iter().map(|its| its.kept);
        let mut tally = ReleaseTally::new(nodes.majority, kept, Instant::now());
        let lost = |reason| Ok(Some(if in_time { reason } else { LossReason::Expired }));
        let mut slice = SLICE.0;
        let mut majority_at = None;
        let mut failures = Vec::new();
        loop {
            let mut moved = false;
            for (node, its) in parts.iter_mut().enumerate() {
                let Some(call) = its.call.clone() else {
                    continue;
                };
                let connection = &nodes.list[node].session.connection;
                let value =
                    match connection.wait(&call, until.min(Instant::now() + slice), &|| false) {
                        Ok((value, _)) => value,
                        Err(WaitFault::TimedOut | WaitFault::Stopped) => continue,
                        Err(WaitFault::Closed) => {
                            failures.push((node, Fault::Closed));
                            (its.call, moved) = (None, true);
                            continue;
                        }
                        Err(WaitFault::Broken(err)) => {
                            let state = call.state.lock();
                            if matches!(state.phase, CallPhase::Broken(_)) {
                                drop(state);
                                failures.push((node, Fault::Refused(err)));
                                (its.call, moved) = (None, true);
                            }
                            continue;
                        }
                    };
                (its.call, moved) = (None, true);
                let replayed = call.state.lock().sendings > 1;
                let had_it = match script::released(&value) {
                    Ok(Released::Yes { .. }) => true,
                    // An earlier sending has done it.
                    Ok(_) if replayed && in_time => true,
                    Ok(not_ours) => {
                        if not_ours == Released::Taken {
                            reason = LossReason::TakenOver;
                        }
                        false
                    }
                    Err(unexpected) => {
                        let err = RedisError::from(std::io::Error::other(unexpected));
                        failures.push((node, Fault::Refused(err)));
                        continue;
                    }
                };
                if !tally.answered(node, had_it) {
                    return lost(reason);
                }
            }
            let now = Instant::now();
            let yes = tally.yes();
            let left = parts.iter().filter(|its| its.call.is_some()).count();
            let no = parts.len() - yes - failures.len() - left;
            let outcome = nodes.majority.tally(yes, no);
            if outcome == Tally::Won {
                let waits_until = *majority_at.get_or_insert(now) + patience;
                if !tally.is_open() || now >= waits_until.min(until) {
                    return Ok(None);
                }
            }
            if outcome == Tally::Lost {
                return lost(reason);
            }
            if left == 0 || now >= until {
                if outcome == Tally::Won {
                    return Ok(None);
                }
                let left = parts.iter().enumerate();
                let left = left.filter(|(_, its)| its.call.is_some());
                failures.extend(left.map(|(node, _)| (node, nodes.unanswered(node))));
                return Err(Short {
                    majority: nodes.majority,
                    agreed: yes,
                    failures,
                });
            }
            if !moved {
                // Those that wait for a connection come back at once.
                std::thread::sleep(SLICE.0);
                slice = (slice * 2).min(SLICE.1);
            }
        }
    }
}

impl Backing for QuorumHold {
    fn release(&self, _whole: &Hold, _undo: bool) -> Arc<Call> {
        self.let_go()
    }

    fn deliver(&self) {
        for node in &self.nodes.list {
            node.session.connection.deliver();
        }
    }

    fn give_back(&self, _whole: &Hold) {
        drop(self.let_go());
        self.flush();
    }

    fn housekeep_soon(&self) {
        self.tend();
    }

    fn released(
        &self,
        whole: &Hold,
        _release: &Arc<Call>,
        in_time: bool,
        until: Instant,
    ) -> Result<Option<LossReason>> {
        let released = self.wait_for_release(until, in_time);
        released.map_err(|short| short.into_error(&whole.entry.name))
    }

    fn renew(
        &self,
        whole: &Hold,
        lease: LeasePolicy,
        ttl: Duration,
        count: u32,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<(Renewed, Instant), NotRenewed> {
        let renewed = self.renew_all(lease, ttl, count, until, stop);
        renewed.map_err(|failure| match failure {
            Failure::One(Fault::Stopped) => NotRenewed::Stopped,
            failure => {
                let is_late = failure.is_late();
                let error = failure.into_error("renewing the lock", &whole.entry.name);
                if is_late {
                    NotRenewed::Late(error)
                } else {
                    NotRenewed::Failed(error)
                }
            }
        })
    }

    fn nodes_held(&self) -> usize {
        self.certain_nodes()
    }
}

/// What one node keeps of a quorum's hold, or is asked to, under one number: over when the whole is.
struct NodeHold {
    hold: Hold,
    quorum_hold: Weak<QuorumHold>,
    node: usize,
}

impl NodeHold {
    /// The whole's, unless it or this part is over.
    fn quorum_hold(&self) -> Option<Arc<QuorumHold>> {
        let quorum_hold = self.quorum_hold.upgrade();
        quorum_hold.filter(|quorum_hold| quorum_hold.is_held() && self.hold.is_held())
    }
}

impl Deref for NodeHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Undo for NodeHold {
    fn undo(&self) -> Option<Deferred> {
        Some(self.hold.release(true))
    }
}

impl Scheduled for NodeHold {
    fn number(&self) -> u64 {
        self.hold.number()
    }

    fn place(&self) -> &OnSchedule {
        self.hold.place()
    }
}

impl Renewable for NodeHold {
    fn name(&self) -> &str {
        &self.hold.entry.name
    }

    fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    fn is_part(&self) -> bool {
        true
    }

    fn attend(self: Arc<Self>, _now: Instant) -> Duty {
        match self.quorum_hold() {
            Some(quorum_hold) if !quorum_hold.attend(self.node, &self) => Duty::Renew,
            _ => Duty::Nothing,
        }
    }

    /// What is done about a part is not always a renewal, and may soon be due again.
    fn may_be_early(&self, _now: Instant) -> bool {
        false
    }

    fn ends(&self) -> Instant {
        self.hold.valid_until()
    }

    fn lease(&self) -> Duration {
        self.hold.lease()
    }

    fn look_again(&self, at: Instant) -> Instant {
        let until = self.hold.valid_until();
        if until > Instant::now() {
            // When its time is over it may leave the others a bare majority.
            at.min(until)
        } else {
            at
        }
    }

    fn request(&self) -> Request {
        let count = self.quorum_hold().map_or(1, |whole| whole.count());
        let protocol = &self.hold.entry.protocol;
        protocol.renew(
            self.hold.mode,
            &self.hold.owner,
            self.hold.renewal_lease(),
            count,
        )
    }

    fn complete(self: Arc<Self>, reply: Value, sent_at: Instant) -> Next {
        let renewed = script::renewed(reply).unwrap_or_else(|unexpected| {
            report!(Warn, "renewing `{}`: {unexpected}", self.hold.entry.name);
            Renewed::Taken
        });
        if let Some(quorum_hold) = self.quorum_hold() {
            quorum_hold.settle(self.node, &self, renewed, sent_at);
        }
        Next::Nothing
    }

    fn was_overwritten(self: Arc<Self>, sent_at: Instant) -> Next {
        if let Some(quorum_hold) = self.quorum_hold() {
            quorum_hold.settle(self.node, &self, Renewed::Taken, sent_at);
        }
        Next::Nothing
    }

    fn could_not_be_renewed(&self) {
        if let Some(quorum_hold) = self.quorum_hold() {
            quorum_hold.renewal_has_failed();
        }
    }

    /// A part is never lost by itself.
    fn lose(self: Arc<Self>, _sink: &dyn LossSink, _reason: LossReason) -> Option<Instant> {
        None
    }

    /// Others keep the rest of it.
    fn close(self: Arc<Self>, _sink: &dyn LossSink) {
        if let Some(quorum_hold) = self.quorum_hold() {
            quorum_hold.leave_out(self.node);
        }
    }
}
