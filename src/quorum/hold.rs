//! A hold that a majority of independent masters keeps: a [`QuorumHold`] that consists of *parts*, one ordinary [`Hold`]
//! for each node.
//!
//! A diagram in [`parts`](crate::quorum::parts) shows which parts count, and for how long. Each part is on the schedule of
//! its node's watchdog, which renews it as any other hold, and reports the outcome here ([`Several`]).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::Value;

use crate::error::{LossReason, RELEASING, Result};
use crate::hold::{Entry, Hold, NotRenewed, Reentry, Several, lost_before};
use crate::local::lock::{LeasePolicy, Mode};
use crate::net::call::{Answer, Attempt, Call, Undo};
use crate::protocol::kind::{AcquireArgs, RENEWING};
use crate::protocol::red;
use crate::protocol::script::{self, Renewed, renewed};
use crate::quorum::failure::Short;
use crate::quorum::nodes::{Node, QuorumNodes};
use crate::quorum::parts::{Part, Parts};
use crate::quorum::round::{NodeReply, Round, RoundRequest};
use crate::quorum::tally::Goal;
use crate::report::report;
use crate::session::Session;

/// A hold that several nodes keep.
///
/// [`ask`](crate::quorum::ask) and [`parts`](crate::quorum::parts) follow these rules as well. The tests in `model` search
/// for a way to break these rules.
///
/// 1. Each round of acquires has a number of its own, and asks each node once. So no late undo or release of another round
///    can remove a part of this one, and a renewal that finds the number proves that the node kept its part all the time.
/// 2. An acquire of unknown outcome is undone, and its part is out. A part that is out never counts again.
/// 3. A round ends once a majority has granted it. Nodes that have not answered by then get no release before the hold
///    ends. A grant that arrives later counts, with a lease that began when the request to that node was sent. If late
///    grants did not count, every hold would rest on a bare majority.
/// 4. Each part counts towards the majority until its own validity ends. With fewer than a majority the hold is lost, at
///    once and for good.
/// 5. Mutexes are taken in this order: an entry's, `state`, a schedule's, a hold's, a connection's. With `state` locked no
///    I/O is done, and no loss of the whole is reported.
pub(crate) struct QuorumHold {
    nodes: Arc<QuorumNodes>,
    /// For how long a node must have been up to take part; zero for any time.
    up_for: Duration,
    /// The hold as the local lock and the guard have it.
    whole: Weak<Hold>,
    /// The parts, by node.
    parts: Vec<Arc<Hold>>,
    state: Mutex<QuorumState>,
}

struct QuorumState {
    parts: Parts,
    asked: Vec<NodeRequests>,
    /// The hold is over, or was never granted.
    let_go: bool,
    /// The release for each node, if there is one.
    releases: Vec<Option<Arc<Call>>>,
}

/// The requests to a node.
#[derive(Clone, Default)]
struct NodeRequests {
    /// The request whose answer is due: the acquire, or a renewal of a part that is kept.
    call: Option<Arc<Call>>,
    /// The lease that the request asks for.
    ttl: Duration,
    /// The node may keep something under the hold's number.
    may_be_kept: bool,
}

/// The lease of a part. Only the whole has a `max_hold`: the parts are renewed for as long as the whole is held.
fn without_max(lease: LeasePolicy) -> LeasePolicy {
    match lease {
        LeasePolicy::Renewed { .. } => LeasePolicy::Renewed { max_hold: None },
        fixed => fixed,
    }
}

impl QuorumHold {
    /// A hold that is about to be requested, as two values: one with the parts, and one for the local lock and the guard.
    pub(crate) fn new(
        nodes: &Arc<QuorumNodes>,
        entry: &Arc<Entry>,
        lease: LeasePolicy,
        ttl: Duration,
        up_for: Duration,
    ) -> (Arc<Self>, Arc<Hold>) {
        debug_assert!(*entry.protocol.kind() == red::KIND);
        let owners = &nodes.home().owners;
        let number = owners.draw();
        let mut made = None;
        let hold = Arc::new_cyclic(|whole| {
            let part = |(index, node): (usize, &Node)| {
                // Each watchdog orders its schedule by numbers that its own client has drawn. In Redis every part has the
                // number of the whole.
                let schedule_number = node.session.owners.draw();
                let entry = Arc::clone(&node.entry);
                let lease = without_max(lease);
                let part = Hold::new(entry, Mode::Exclusive, schedule_number, lease, ttl);
                let part = part.known_as(owners.id(number));
                Arc::new(part.part_of(Weak::clone(whole), index))
            };
            let n = nodes.list.len();
            let quorum_hold = made.insert(Arc::new(Self {
                nodes: Arc::clone(nodes),
                up_for,
                whole: Weak::clone(whole),
                parts: nodes.list.iter().enumerate().map(part).collect(),
                state: Mutex::new(QuorumState {
                    parts: Parts::new(nodes.majority),
                    asked: vec![NodeRequests::default(); n],
                    let_go: false,
                    releases: vec![None; n],
                }),
            }));
            let hold = Hold::new(Arc::clone(entry), Mode::Exclusive, number, lease, ttl);
            hold.kept_by(Arc::clone(quorum_hold) as Arc<dyn Several>)
        });
        (made.expect("made with the hold"), hold)
    }

    /// The acquire for a node, which is sent once: rule 1.
    pub(crate) fn acquire(&self, node: usize) -> Attempt {
        let (part, server) = (&self.parts[node], &self.nodes.list[node].session.server);
        let run_id = match self.up_for.is_zero() {
            true => "".into(),
            false => server.required_run_id(self.up_for, Instant::now()),
        };
        let owner = part.owner();
        Attempt {
            request: part.entry().protocol.acquire(&AcquireArgs {
                up_for: self.up_for,
                run_id: &run_id,
                ..AcquireArgs::plain(&owner, part.lease())
            }),
            undo: Some(Arc::clone(part) as Arc<dyn Undo>),
        }
    }

    /// Ends the round that began at `sent_at` and has sent these `calls`. If a majority has granted the lock, and for
    /// long enough to be useful, it is held from now on, and the watchdogs renew the parts.
    pub(crate) fn decide(
        &self,
        hold: &Hold,
        calls: Vec<Option<Arc<Call>>>,
        sent_at: Instant,
    ) -> bool {
        let mut state = self.state.lock();
        for (node, call) in calls.into_iter().enumerate() {
            if call.is_none() {
                // The node was not asked in this round, and is not asked later: rule 1.
                state.parts.lose(node);
            }
            state.asked[node] = NodeRequests {
                may_be_kept: call.is_some(),
                ttl: hold.lease(),
                call,
            };
        }
        self.read(&mut state);
        let now = Instant::now();
        let until = state.parts.grant(now);
        let Some(until) = until.filter(|until| *until >= now + hold.lease() / 10) else {
            // `state.parts` may count the hold as granted here, although too little of the lease is left. The caller goes
            // on with `let_go()`, which sets `state.let_go` before it reads late grants. `arm` checks that flag, so no
            // part of this hold is scheduled.
            return false;
        };
        hold.grant(sent_at);
        hold.change(|lease| lease.set_certain_until(until));
        // Still with the mutex held: a watchdog that handles a part at once cannot report here before all are armed.
        for node in 0..self.parts.len() {
            self.arm(&state, node);
        }
        true
    }

    /// Puts a part on the schedule of its node's watchdog, if the hold is held and the part kept.
    fn arm(&self, state: &QuorumState, node: usize) {
        if state.parts.is_granted() && !state.let_go && state.parts.is_kept(node) {
            let (part, session) = (&self.parts[node], &self.nodes.list[node].session);
            session.watchdog.arm(part, part.due_after(part.asked_at()));
        }
    }

    fn home(&self) -> &Arc<Session> {
        self.nodes.home()
    }

    /// Handles the answers that have arrived. Every method that decides whether the hold is held begins with this, so that
    /// late grants and renewals count: rule 3.
    fn read(&self, state: &mut QuorumState) {
        let now = Instant::now();
        for node in 0..self.parts.len() {
            let call = state.asked[node].call.as_ref();
            let Some(outcome) = call.and_then(|call| call.outcome()) else {
                continue;
            };
            state.asked[node].call = None;
            let part = &self.parts[node];
            match (state.parts.part(node), outcome) {
                (Part::Asked, Ok(answer)) => self.read_acquire(state, node, answer, now),
                // The outcome of the acquire is unknown, so the part is out (rule 2). If a connection is dropped because
                // the server is silent, the undo is still written to its socket, behind the acquire, as far as the socket
                // takes it. In any case the release of the whole hold goes to this node too.
                (Part::Asked, Err(_)) => state.parts.lose(node),
                (Part::Kept(_), Ok(answer)) => match renewed(&answer.value) {
                    Ok(Ok(())) => {
                        let ttl = state.asked[node].ttl;
                        // The node kept the part all the time, or it would not have found the number: rule 1.
                        part.change(|lease| lease.prolong(answer.sent_at, ttl));
                        state.parts.keep(node, part.valid_until(), now);
                    }
                    Ok(Err(why)) => {
                        self.lose_part(state, node, why);
                    }
                    Err(_) => {}
                },
                // A renewal without an answer leaves the part as it was, and a part that is out stays out.
                (Part::Kept(_), Err(_)) | (Part::Out, _) => {}
            }
        }
    }

    fn read_acquire(&self, state: &mut QuorumState, node: usize, answer: Answer, now: Instant) {
        let part = &self.parts[node];
        if matches!(answer.value, Value::Nil) {
            part.grant(answer.sent_at);
            // A grant whose time is over already, or whose hold is lost, does not count and is not renewed. The release
            // removes it.
            if state.parts.keep(node, part.valid_until(), now) {
                self.arm(state, node);
            }
            return;
        }
        if let Err(refused) = answer.value.extract_error() {
            self.nodes.list[node].session.server.learn(&refused);
        }
        // The node keeps nothing under this number, so it gets no release.
        state.parts.lose(node);
        state.asked[node].may_be_kept = false;
    }

    /// Marks a part as lost; `false` if it was over before, or has just been renewed.
    fn lose_part(&self, state: &mut QuorumState, node: usize, why: LossReason) -> bool {
        let is_lost = self.parts[node].lose(why).is_some();
        if is_lost {
            self.nodes.list[node]
                .session
                .watchdog
                .disarm(&self.parts[node]);
            state.parts.lose(node);
        }
        is_lost
    }

    /// Stores until when the hold is certain, after its parts have changed. Returns `false` if too few parts are left: the
    /// caller has to report the loss. `true` also for a hold that is not granted yet, or has ended.
    fn update_validity(&self, state: &mut QuorumState) -> bool {
        let hold = self.whole.upgrade().filter(|hold| hold.is_held());
        let Some(hold) = hold.filter(|_| state.parts.is_granted() && !state.let_go) else {
            return true;
        };
        let now = Instant::now();
        let until = state.parts.certain_until(now);
        // Without a majority nothing is certain from now on. If the stored moment stayed in the future, `lose` would take the
        // hold for valid and do nothing.
        let certain_until = until.unwrap_or_else(|| now.min(hold.valid_until()));
        hold.change(|lease| lease.set_certain_until(certain_until));
        until.is_some()
    }

    /// Updates the validity, and reports the loss for this reason if the hold is lost.
    fn update_or_lose(&self, mut state: MutexGuard<'_, QuorumState>, why: LossReason) -> bool {
        let keeps_majority = self.update_validity(&mut state);
        // Rule 5: a loss takes the mutex of the entry and tells the observer. If a guard releases the hold in between,
        // `lose` does nothing.
        drop(state);
        if !keeps_majority {
            self.lose(why);
        }
        keeps_majority
    }

    fn lose(&self, why: LossReason) {
        let Some(hold) = self.whole.upgrade() else {
            return;
        };
        self.home().lose(&hold, why);
        // The majority is lost because a client is being closed. The parts that are left are released instead of kept
        // until their leases end.
        if why == LossReason::Closed {
            self.home().give_back(&hold);
        }
    }

    fn name(&self) -> &str {
        self.parts[0].entry().name()
    }

    /// Locks a hold of fixed lease again: asks all nodes, and needs a majority of the parts.
    fn renew_all(
        &self,
        again: &Reentry<'_>,
    ) -> std::result::Result<(Renewed, Instant), NotRenewed> {
        let (nodes, sent_at) = (&self.nodes, Instant::now());
        let round = self.ask_again(again);
        let mut state = self.state.lock();
        self.read_renewals(&mut state, &round, again.ttl);
        // `read_renewals` has read these replies for the parts. Here they count as votes for the new lease.
        let agrees = |(node, reply): &(usize, &Value)| {
            state.parts.is_kept(*node) && matches!(renewed(reply), Ok(Ok(())))
        };
        let agreed = round.values().filter(agrees).count();
        let is_renewed = nodes.majority.has(agreed);
        let valid_until = self.whole.upgrade().map(|hold| hold.valid_until());
        // During the round the majority may have been lost, or a client may have been closed and all parts released. If
        // another thread has marked the hold as lost, for example because `max_hold` elapsed, `has_ended` stays false: the
        // caller finds the loss, and gives the hold back.
        let has_ended = !self.update_validity(&mut state) || state.let_go;
        if is_renewed && !has_ended {
            self.set_policy(&state, again);
        }
        drop(state);
        if has_ended {
            let is_taken = |value| matches!(renewed(value), Ok(Err(LossReason::TakenOver)));
            // If the hold was over already, `lose` ignores this reason.
            let lost = match round.values().any(|(_, value)| is_taken(value)) {
                true => LossReason::TakenOver,
                false => LossReason::Forced,
            }
            .or_expired(valid_until.is_some_and(|until| Instant::now() < until));
            self.lose(lost);
            Ok((Err(lost), sent_at))
        } else if is_renewed {
            nodes.housekeep_soon();
            Ok((Ok(()), sent_at))
        } else if (again.stop)() {
            Err(NotRenewed::Stopped)
        } else {
            let short = nodes.short(agreed, round.replies);
            let cannot_agree = short.cannot_agree();
            let error = short.into_error(RENEWING, self.name());
            Err(match cannot_agree {
                true => NotRenewed::Failed(error),
                false => NotRenewed::Late(error),
            })
        }
    }

    /// Reads the earlier replies, then those of this round of renewals; a later `read` reads the rest.
    ///
    /// Only calls for kept parts are stored. While the acquire of a part has no answer, its connection may still be lost.
    /// Then the acquire is undone (rule 2), and the undo may run after a renewal that found the number. So until that
    /// acquire is answered, a renewal proves nothing.
    ///
    /// A stored call of an earlier round is overwritten, because this round asks the same question again. If the
    /// overwritten call would have reported a loss, and this round's call gets no answer, the watchdog's next renewal
    /// finds the loss, or the part's validity ends.
    fn read_renewals(&self, state: &mut QuorumState, round: &Round, ttl: Duration) {
        self.read(state);
        for (node, call) in round.calls.iter().enumerate() {
            if state.parts.is_kept(node) {
                state.asked[node].call.clone_from(call);
                state.asked[node].ttl = ttl;
            }
        }
        self.read(state);
    }

    /// Asks all nodes to renew their parts for a holder that locks again.
    fn ask_again(&self, again: &Reentry<'_>) -> Round {
        // Recorded before the requests are sent: each may be executed although its reply is lost.
        for part in &self.parts {
            part.change(|lease| lease.record_request(again.ttl));
        }
        let renew =
            |node: usize| Attempt::without_undo(self.parts[node].renew_for(again.ttl, again.count));
        self.nodes.round(&RoundRequest {
            goal: Goal::Majority,
            lease: again.ttl,
            until: again.until,
            stop: again.stop,
            make: Some(&renew),
            may_repeat: true,
            counts: &|_, value| matches!(renewed(value), Ok(Ok(()))),
        })
    }

    /// Gives the whole and its parts the lease that was requested.
    fn set_policy(&self, state: &QuorumState, again: &Reentry<'_>) {
        let (lease, ttl, now) = (again.lease, again.ttl, Instant::now());
        let Some(hold) = self.whole.upgrade() else {
            return;
        };
        hold.change(|validity| validity.set_policy(lease, ttl, now));
        for (node, part) in self.parts.iter().enumerate() {
            part.change(|validity| validity.set_policy(without_max(lease), ttl, now));
            self.arm(state, node);
        }
    }
}

/// The release: sent to every node that may keep a part, and confirmed by a majority.
impl QuorumHold {
    /// Ends all parts and queues their releases, which have to be [sent](Several::send). `asks_again`: the attempt
    /// failed, and its caller asks again after a pause.
    pub(crate) fn let_go(&self, asks_again: bool) -> Arc<Call> {
        let mut state = self.state.lock();
        // The guard, a loss and the closing of a client may all come here; the first queues the releases.
        if !std::mem::replace(&mut state.let_go, true) {
            self.read(&mut state);
            let kept = state.asked.iter().filter(|asked| asked.may_be_kept).count();
            let was_held = state.parts.is_granted() || self.nodes.majority.has(kept);
            // Not announced if the caller asks again and no majority can have kept the hold: see `ask`.
            let announces = was_held || !asks_again;
            for node in 0..self.parts.len() {
                let release = self.release_part(&state, node, announces);
                state.releases[node] = release;
            }
            if was_held {
                self.nodes
                    .record_release(state.releases.iter().flatten().map(Arc::clone));
            }
        }
        // If there is nothing to release, the caller gets a call that is never sent.
        let release = state.releases.iter().flatten().next().map(Arc::clone);
        release.unwrap_or_else(|| Call::deferred(self.parts[0].release(true, Instant::now())))
    }

    /// Ends a part and queues its release, behind all requests that were sent before.
    fn release_part(&self, state: &QuorumState, node: usize, announces: bool) -> Option<Arc<Call>> {
        let (part, session) = (&self.parts[node], &self.nodes.list[node].session);
        session.watchdog.end(part);
        if !state.asked[node].may_be_kept {
            // The node was not asked, or has refused.
            return None;
        }
        let mut release = part.release(!state.parts.is_kept(node), Instant::now());
        let (protocol, owner) = (&part.entry().protocol, part.owner());
        let whole = self.whole.upgrade();
        release.request = match whole.and_then(|hold| hold.kept_for(Instant::now)) {
            Some(kept_for) => {
                (protocol.kind().keep)(protocol, part.mode, owner.as_bytes(), kept_for)
            }
            None if announces => protocol.release(part.mode, owner.as_bytes()),
            None => (protocol.kind().undo)(protocol, part.mode, owner.as_bytes()),
        };
        // The release of a single part reports no loss: the replies of a majority decide (`wait_for_release`).
        release.info.undo = true;
        let call = Call::deferred(release);
        session.connection.submit(&call);
        Some(call)
    }

    /// Waits until a majority has confirmed the release. Returns why the hold was lost, if too many nodes no longer had
    /// their part.
    fn wait_for_release(
        &self,
        until: Instant,
        in_time: bool,
    ) -> std::result::Result<Option<LossReason>, Short> {
        let (nodes, state) = (&*self.nodes, self.state.lock());
        // By rule 2 a part that is out is never confirmed, whatever its node replies. Its node counts as one that no
        // longer had its part (`GONE`).
        let counted = |(node, call): (usize, &Option<Arc<Call>>)| match state.parts.part(node) {
            Part::Out => None,
            _ => call.clone(),
        };
        let calls: Vec<_> = state.releases.iter().enumerate().map(counted).collect();
        drop(state);
        let reply = |call: &Option<_>| match call {
            Some(_) => NodeReply::Pending,
            None => NodeReply::Came(GONE),
        };
        let mut round = Round {
            replies: calls.iter().map(reply).collect(),
            calls: calls.clone(),
        };
        let lost = |node: usize, value: &Value| {
            let sendings = calls[node].as_ref().map(|call| call.state.lock().sendings);
            let released = script::released(value).ok()?;
            Some(lost_before(released, sendings > Some(1), in_time))
        };
        let confirmed = |node: usize, value: &Value| matches!(lost(node, value), Some(None));
        let request = RoundRequest {
            goal: Goal::Majority,
            lease: Duration::ZERO,
            until,
            stop: &|| false,
            make: None,
            may_repeat: true,
            counts: &confirmed,
        };
        nodes.wait(&mut round, &request, until);
        let why: Vec<_> = round
            .values()
            .filter_map(|(n, reply)| lost(n, reply)?)
            .collect();
        let confirmed = round.count(&confirmed);
        if nodes.majority.has(confirmed) {
            Ok(None)
        } else if why.len() >= nodes.majority.blocking() {
            Ok(why
                .into_iter()
                .max_by_key(|why| *why == LossReason::TakenOver))
        } else {
            Err(nodes.short(confirmed, round.replies))
        }
    }
}

/// The reply to a release that finds no lock. This reply is also used for a node whose part does not count.
const GONE: Value = Value::Int(-1);

impl Several for QuorumHold {
    fn held(&self) -> usize {
        let mut state = self.state.lock();
        self.read(&mut state);
        let certain = state.parts.certain(Instant::now());
        self.update_or_lose(state, LossReason::Unreachable);
        certain
    }

    fn part_is_kept(&self, node: usize) {
        let mut state = self.state.lock();
        self.read(&mut state);
        let part = &self.parts[node];
        if !state.parts.keep(node, part.valid_until(), Instant::now()) {
            // The renewal was confirmed too late for the part, or the hold is lost. The watchdog is about to arm the part again,
            // which it does only with parts that are held, so the part is ended first.
            part.end();
        }
        self.update_or_lose(state, LossReason::Unreachable);
    }

    fn part_is_lost(&self, node: usize, why: LossReason) {
        let mut state = self.state.lock();
        self.read(&mut state);
        let is_lost = self.lose_part(&mut state, node, why);
        // Checked even if this part was out before: an answer that was just read may have taken the majority away.
        let is_held = self.update_or_lose(state, why);
        if is_lost && is_held && why != LossReason::Closed {
            let (n, name) = (self.parts.len(), self.name());
            report!(Warn, "node {node} of {n} no longer keeps `{name}`: {why}");
        }
    }

    fn release(&self) -> Arc<Call> {
        // The holder does not ask again.
        self.let_go(false)
    }

    fn send(&self) {
        for session in self.nodes.sessions() {
            session.connection.first().deliver();
        }
        self.nodes.housekeep_soon();
    }

    fn released(&self, in_time: bool, until: Instant) -> Result<Option<LossReason>> {
        let released = self.wait_for_release(until, in_time);
        released.map_err(|short| short.into_error(RELEASING, self.name()))
    }

    fn renew(&self, again: &Reentry<'_>) -> std::result::Result<(Renewed, Instant), NotRenewed> {
        self.renew_all(again)
    }
}
