//! What the servers of a quorum keep of one hold: a *whole* of *parts*, one a node.
//!
//! ```text
//!              a majority granted          renewed: certain for as long as the majority's last part is
//!   (asked) ─────────────────────► held ──┐
//!                                   │  ▲ ◄┘
//!                                   │  └─ a node that has forgotten its part, or had none, takes it again
//!                                   ├────► released: wherever a part may be
//!                                   └────► lost: time over, a majority with others, or forgotten by one at the same time
//! ```
//!
//! The whole sits in the room and makes the guard. The parts are on the agendas of their own clients while the whole is
//! held: each watchdog renews its part, and where the node does not keep it, has the link ask for it again. Only links
//! create anything, so that nothing can be carried out behind the release that would undo it.
//!
//! The mutex of a [`Grip`] may be taken with a room's held, and agendas' and links' may be taken with it held. No I/O.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::{RedisError, Value};

use crate::call::{Answer, Attempt, Call, CallPhase, Fault, Undo};
use crate::client::Engine;
use crate::gate::Gate;
use crate::handle::Terms;
use crate::hold::{Hold, LossReason, Role};
use crate::link::WaitFault;
use crate::quorum::{Goal, Node, Nodes, Reply, SLICE, Short};
use crate::room::{Lease, Mode};
use crate::script::{self, Acquired, Released, Renewed};
use crate::wire::{Ask, Family, Place, Stood};

/// How often in a row a node has to say that somebody else has the lock before it counts as theirs: one who only tries for
/// it may have been there for a moment.
const REFUSALS: u32 = 2;

/// How soon a node that does not keep its part is asked about it again: a share of the lease, and within which limits.
const HEAL: (u32, Duration, Duration) = (30, Duration::from_millis(5), Duration::from_secs(1));

fn heal_after(lease: Duration) -> Duration {
    (lease / HEAL.0).clamp(HEAL.1, HEAL.2)
}

/// What the nodes keep of one hold.
pub(crate) struct Grip {
    nodes: Arc<Nodes>,
    owner: String,
    parts: Vec<Arc<Hold>>,
    whole: OnceLock<Weak<Hold>>,
    state: Mutex<State>,
}

struct State {
    parts: Vec<Part>,
    /// The whole is over, or never was.
    let_go: bool,
    releases: Vec<Option<Arc<Call>>>,
    /// It has been said that the majority is a bare one.
    bare: bool,
    /// A node has forgotten the hold or has it again: the sooner the others say that they have it, the better they are
    /// known not to have forgotten it at the same time.
    unsure: bool,
}

/// What is known of one node.
#[derive(Default)]
struct Part {
    /// The acquire whose answer nobody has looked at yet.
    asked: Option<Arc<Call>>,
    /// Something was sent that it may have carried out.
    touched: bool,
    /// It keeps the hold for certain until then.
    until: Option<Instant>,
    /// When that was asked which it has confirmed last.
    confirmed_at: Option<Instant>,
    /// It has forgotten the hold at some time after the first of these, and had it again by the second.
    gap: Option<(Instant, Option<Instant>)>,
    /// How often in a row it has said that somebody else has the lock.
    refusals: u32,
}

impl Part {
    /// It keeps the hold. Says whether it has it again.
    fn is_confirmed(&mut self, asked_at: Instant, until: Instant) -> bool {
        self.until = Some(until);
        self.confirmed_at = Some(asked_at);
        self.refusals = 0;
        let open = self.gap.as_mut().filter(|(_, to)| to.is_none());
        open.is_some_and(|(_, to)| to.replace(Instant::now()).is_none())
    }

    /// It does not keep the hold. Says since when, if it should.
    fn is_missing(&mut self) -> Option<Instant> {
        let until = self.until.take()?;
        let from = self.confirmed_at.filter(|_| Instant::now() < until)?;
        self.gap = Some((from, None));
        Some(from)
    }
}

impl Grip {
    pub(crate) fn new(nodes: &Arc<Nodes>, gate: &Arc<Gate>, terms: Terms) -> Arc<Self> {
        let home = nodes.home();
        debug_assert!(gate.wire.family == Family::Quorum);
        let owner = home.owners.id(home.owners.draw());
        Arc::new_cyclic(|grip: &Weak<Self>| {
            let part = |(node, at): (usize, &Node)| {
                let gate = Arc::clone(&at.gate);
                let number = at.engine.owners.draw();
                let role = Role::Part {
                    grip: Weak::clone(grip),
                    node,
                };
                let owner = owner.clone();
                let part = Hold::new(
                    gate,
                    Mode::Exclusive,
                    number,
                    owner,
                    terms.lease,
                    terms.lease_time,
                );
                Arc::new(part.with_role(role))
            };
            Self {
                nodes: Arc::clone(nodes),
                parts: nodes.list.iter().enumerate().map(part).collect(),
                owner,
                whole: OnceLock::new(),
                state: Mutex::new(State {
                    parts: nodes.list.iter().map(|_| Part::default()).collect(),
                    let_go: false,
                    releases: Vec::new(),
                    bare: false,
                    unsure: false,
                }),
            }
        })
    }

    /// Takes over what a round has sent.
    pub(crate) fn begin(&self, calls: Vec<Option<Arc<Call>>>) {
        let mut state = self.state.lock();
        for (part, call) in state.parts.iter_mut().zip(calls) {
            part.touched = call.is_some();
            part.asked = call;
        }
        self.look(&mut state);
    }

    pub(crate) fn whole(self: &Arc<Self>, gate: &Arc<Gate>, terms: Terms) -> Arc<Hold> {
        let gate = Arc::clone(gate);
        let number = self.home().owners.draw();
        let whole = Arc::new(
            Hold::new(
                gate,
                Mode::Exclusive,
                number,
                self.owner.clone(),
                terms.lease,
                terms.lease_time,
            )
            .with_role(Role::Whole(Arc::clone(self))),
        );
        self.whole.get_or_init(|| Arc::downgrade(&whole));
        whole
    }

    fn home(&self) -> &Arc<Engine> {
        self.nodes.home()
    }

    fn get_whole(&self) -> Option<Arc<Hold>> {
        self.whole.get().and_then(Weak::upgrade)
    }

    /// Looks at the answers that have come since the majority had granted.
    fn look(&self, state: &mut State) {
        for (part, hold) in state.parts.iter_mut().zip(&self.parts) {
            let Some(outcome) = part.asked.as_ref().and_then(|call| call.outcome()) else {
                continue;
            };
            part.asked = None;
            let Ok(Answer { value, sent_at }) = outcome else {
                continue;
            };
            match script::acquired(value) {
                Ok(Acquired::Taken { .. }) => {
                    hold.grant(sent_at);
                    state.unsure |= part.is_confirmed(sent_at, hold.valid_until());
                }
                Ok(Acquired::Busy { .. }) => part.refusals += 1,
                // An error; those are the watchdog's to tell of.
                Err(_) => {}
            }
        }
    }

    /// Has the watchdogs look after the parts: renew them, unless the lease is fixed, and give them back when their client
    /// is closed. Those that no node has granted yet come soon.
    pub(crate) fn arm(&self, lease: Lease, sent_at: Instant) {
        let untils: Vec<_> = self
            .state
            .lock()
            .parts
            .iter()
            .map(|part| part.until)
            .collect();
        for ((node, part), until) in self.nodes.list.iter().zip(&self.parts).zip(untils) {
            let due = match (lease, until) {
                (Lease::Fixed(lease), _) => sent_at + lease,
                (Lease::Renewed { .. }, Some(_)) => sent_at + part.lease() / 3,
                (Lease::Renewed { .. }, None) => Instant::now() + heal_after(part.lease()),
            };
            node.engine.agenda.arm(part, due);
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
    pub(crate) fn nodes_held(&self) -> usize {
        let mut state = self.state.lock();
        self.look(&mut state);
        state.untils(Instant::now()).len()
    }

    /// The holder's count.
    pub(crate) fn count(&self) -> u32 {
        let whole = self.get_whole();
        whole.map_or(1, |whole| whole.count.load(Ordering::Relaxed))
    }

    /// What takes the part of a node, also again.
    pub(crate) fn acquire(&self, node: usize, up_for: Duration) -> Attempt {
        let part = &self.parts[node];
        Attempt {
            request: part.gate.wire.acquire(&Ask {
                owner: &self.owner,
                lease: part.lease(),
                mode: Mode::Exclusive,
                under: None,
                yields: None,
                place: Place {
                    ticket: &self.owner,
                    keep: Duration::ZERO,
                    stood: Stood::Never,
                },
                tokens: 1,
                token_ttl: Duration::ZERO,
                up_for,
            }),
            undo: Some(Arc::clone(part) as Arc<dyn Undo>),
        }
    }

    /// Has a node that does not keep its part take it again: over its link, in front of any release. `false` if it keeps it.
    fn heal(&self, node: usize) -> bool {
        let link = &self.nodes.list[node].engine.link;
        let mut state = self.state.lock();
        self.look(&mut state);
        if state.let_go || state.parts[node].until.is_some() {
            return false;
        }
        // One question at a time.
        if state.parts[node].asked.is_none() {
            let call = Call::unattended(self.acquire(node, Duration::ZERO));
            if link.submit(&call).is_some() {
                state.parts[node].touched = true;
                state.parts[node].asked = Some(call);
            }
        }
        self.judge(state);
        true
    }

    /// What the renewal of a node's part means for the whole.
    fn settle(&self, node: usize, renewed: Renewed, sent_at: Instant) {
        let (n, part) = (self.nodes.list.len(), &self.parts[node]);
        let mut state = self.state.lock();
        self.look(&mut state);
        let its = &mut state.parts[node];
        // What was answered before this says nothing any more.
        its.asked = None;
        if renewed == Renewed::Yes {
            part.extend(sent_at, part.lease());
            state.unsure |= its.is_confirmed(sent_at, part.valid_until());
        } else {
            its.refusals += u32::from(renewed == Renewed::Taken);
            if let Some(from) = its.is_missing() {
                let name = &part.gate.name;
                log::warn!("node {node} of {n} has forgotten `{name}`, which is held");
                state.unsure = true;
                let gaps = state.parts.iter().filter_map(|part| part.gap);
                let at_once = gaps.filter(|(_, to)| to.is_none_or(|to| to > from));
                if at_once.count() >= self.nodes.needed {
                    drop(state);
                    return self.lose(match renewed {
                        Renewed::Taken => LossReason::TakenOver,
                        // Others may have had a majority in between.
                        _ => LossReason::Forced,
                    });
                }
            }
        }
        self.judge(state);
    }

    /// Says what the parts mean for the whole.
    fn judge(&self, mut state: MutexGuard<'_, State>) {
        let Some(whole) = self.get_whole() else {
            return;
        };
        let (n, needed) = (self.nodes.list.len(), self.nodes.needed);
        let untils = state.untils(Instant::now());
        if let Some(until) = untils.get(needed - 1) {
            self.count_on(&whole, *until);
        }
        let refused = state.parts.iter().filter(|part| part.refusals >= REFUSALS);
        let taken_over = untils.len() < needed && n - refused.count() < needed;
        let is_bare = untils.len() <= needed && n > needed;
        let was_bare = std::mem::replace(&mut state.bare, is_bare);
        if std::mem::take(&mut state.unsure) {
            for (node, (part, its)) in self
                .nodes
                .list
                .iter()
                .zip(self.parts.iter().zip(&state.parts))
            {
                if its.until.is_some() {
                    node.engine.agenda.arm(part, Instant::now());
                }
            }
        }
        drop(state);
        if taken_over {
            self.lose(LossReason::TakenOver);
        } else if is_bare && !was_bare {
            log::warn!(
                "`{}` is held by no more than {} of {n} nodes",
                whole.gate.name,
                untils.len()
            );
        }
    }

    fn lose(&self, reason: LossReason) {
        if let Some(whole) = self.get_whole() {
            self.home().lose(&whole, reason);
        }
    }

    /// A majority keeps the whole until then; the watchdog has to know if that is sooner than it was.
    fn count_on(&self, whole: &Arc<Hold>, until: Instant) {
        let sooner = until < whole.valid_until();
        whole.certain_until(until);
        if sooner {
            self.home()
                .agenda
                .arm(whole, whole.due_after(Instant::now()));
        }
    }

    /// One more hold, for a fixed lease: asks all nodes, wants a majority.
    pub(crate) fn renew(
        &self,
        terms: Terms,
        count: u32,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<(Renewed, Instant), Fault> {
        let (nodes, sent_at) = (&self.nodes, Instant::now());
        let mut renew = |node: usize| Attempt {
            request: nodes.list[node].gate.wire.renew(
                Mode::Exclusive,
                &self.owner,
                terms.lease_time,
                count,
            ),
            undo: None,
        };
        let kept = |value: &Value| matches!(value, Value::Int(1));
        let lease = terms.lease_time;
        let round = nodes.round_twice(Goal::Majority, lease, until, stop, &mut renew, &kept);
        let agreed = round.count(&kept);
        if agreed >= nodes.needed {
            let mut state = self.state.lock();
            for ((reply, part), hold) in round.replies.iter().zip(&mut state.parts).zip(&self.parts)
            {
                hold.change_lease(terms.lease, terms.lease_time);
                if let Reply::Came(answer) = reply {
                    part.asked = None;
                    part.until = None;
                    if kept(&answer.value) {
                        hold.extend(answer.sent_at, terms.lease_time);
                        part.is_confirmed(answer.sent_at, hold.valid_until());
                    }
                }
            }
            drop(state);
            self.arm(terms.lease, sent_at);
            return Ok((Renewed::Yes, sent_at));
        }
        if stop() {
            return Err(Fault::Stopped);
        }
        let not_ours = |value: &Value| matches!(value, Value::Int(0 | -1));
        if nodes.list.len() - round.count(&not_ours) < nodes.needed {
            let others = |value: &Value| matches!(value, Value::Int(-1));
            let taken = round.count(&others) > 0;
            return Ok((if taken { Renewed::Taken } else { Renewed::Gone }, sent_at));
        }
        Err(Fault::NoQuorum(Short {
            nodes: nodes.list.len(),
            needed: nodes.needed,
            agreed,
            failures: nodes.failures(round.replies),
        }))
    }

    /// Ends all parts, and has them released wherever they may be. In memory only; [`Grip::flush`] has to follow.
    pub(crate) fn let_go(&self) -> Arc<Call> {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.let_go, true) {
            self.look(&mut state);
            let releases = (0..self.parts.len()).map(|node| self.release(&mut state, node));
            let releases = releases.collect();
            state.releases = releases;
        }
        let release = state.releases.iter().flatten().next().cloned();
        drop(state);
        // Without any, one that says that it never was sent.
        release.unwrap_or_else(|| Call::deferred(self.parts[0].release(true)))
    }

    /// Ends the part of one node, and has it released if it may be there.
    fn release(&self, state: &mut State, node: usize) -> Option<Arc<Call>> {
        let (engine, hold, part) = (
            &self.nodes.list[node].engine,
            &self.parts[node],
            &mut state.parts[node],
        );
        hold.end();
        engine.agenda.disarm(hold);
        if !std::mem::take(&mut part.touched) {
            return None;
        }
        let (until, asked) = (part.until.take(), part.asked.take());
        let known = until.is_some() && asked.is_none();
        let mut release = hold.release(!known);
        // A node that has forgotten it is no news: the majority is what counts.
        release.terms.undo = true;
        let call = Call::deferred(release);
        engine.link.submit(&call);
        Some(call)
    }

    /// Writes what [`Grip::let_go`] has queued.
    pub(crate) fn flush(&self) {
        for node in &self.nodes.list {
            node.engine.link.flush(false);
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
        state.parts[node].until = None;
        let untils = state.untils(Instant::now());
        // What is left is known before anything leaves.
        match untils.get(self.nodes.needed - 1) {
            Some(until) => {
                self.count_on(&whole, *until);
                self.release(&mut state, node);
            }
            None => {
                drop(state);
                self.home().lose(&whole, LossReason::Closed);
                self.home().give_back(&whole);
            }
        }
    }

    /// Has all clients bring to their nodes what is queued, and read what was not read.
    pub(crate) fn tend(&self) {
        for node in &self.nodes.list {
            node.engine.agenda.tend_soon();
        }
    }

    /// Waits until a majority has confirmed the release; why that is not to be had, if it was not ours.
    pub(crate) fn released(
        &self,
        until: Instant,
        in_time: bool,
    ) -> std::result::Result<Option<LossReason>, Short> {
        let nodes = &self.nodes;
        let mut reason = LossReason::Forced;
        let mut due = self.state.lock().releases.clone();
        let (mut yes, mut slice) = (0, SLICE.0);
        let mut failures = Vec::new();
        loop {
            let mut moved = false;
            for (node, place) in due.iter_mut().enumerate() {
                let Some(call) = place else {
                    continue;
                };
                let link = &nodes.list[node].engine.link;
                let value = match link.wait(call, until.min(Instant::now() + slice), &|| false) {
                    Ok((value, _)) => value,
                    Err(WaitFault::TimedOut | WaitFault::Stopped) => continue,
                    Err(WaitFault::Closed) => {
                        failures.push((node, Fault::Closed));
                        (*place, moved) = (None, true);
                        continue;
                    }
                    Err(WaitFault::Broken(err)) => {
                        let state = call.state.lock();
                        if matches!(state.phase, CallPhase::Broken(_)) {
                            drop(state);
                            failures.push((node, Fault::Refused(err)));
                            (*place, moved) = (None, true);
                        }
                        continue;
                    }
                };
                let replayed = call.state.lock().sendings > 1;
                match script::released(&value) {
                    Ok(Released::Yes { .. }) => yes += 1,
                    Ok(_) if replayed && in_time => yes += 1,
                    Ok(Released::Taken) => reason = LossReason::TakenOver,
                    Ok(Released::Gone) => {}
                    Err(unexpected) => {
                        let err = RedisError::from(std::io::Error::other(unexpected));
                        failures.push((node, Fault::Refused(err)));
                    }
                }
                (*place, moved) = (None, true);
            }
            if yes >= nodes.needed {
                return Ok(None);
            }
            let now = Instant::now();
            let left = due.iter().flatten().count();
            if yes + failures.len() + left < nodes.needed {
                return Ok(Some(if in_time { reason } else { LossReason::Expired }));
            }
            if left == 0 || now >= until {
                failures.extend(due.iter().enumerate().filter_map(|(node, call)| {
                    call.as_ref().map(|_| (node, nodes.unanswered(node)))
                }));
                return Err(Short {
                    nodes: nodes.list.len(),
                    needed: nodes.needed,
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

impl State {
    /// Until when each node that keeps the hold for certain does, the longest first.
    fn untils(&self, now: Instant) -> Vec<Instant> {
        let untils = self.parts.iter().filter_map(|part| part.until);
        let mut untils: Vec<_> = untils.filter(|until| *until > now).collect();
        untils.sort_unstable_by_key(|until| Reverse(*until));
        untils
    }
}

/// Asks a node that does not keep its part to take it again, instead of renewing it; `false` if it keeps it.
pub(crate) fn heal(engine: &Arc<Engine>, part: &Arc<Hold>) -> bool {
    let Some((Some(grip), node)) = part.as_part() else {
        return false;
    };
    if !grip.heal(node) {
        return false;
    }
    engine.link.want();
    engine.link.flush(false);
    engine.agenda.tend_soon();
    let again = Instant::now() + heal_after(part.lease());
    engine.agenda.arm(part, again);
    true
}

/// What a node has said to the renewal of its part.
pub(crate) fn settle(engine: &Arc<Engine>, part: &Arc<Hold>, renewed: Renewed, sent_at: Instant) {
    let Some((Some(grip), node)) = part.as_part() else {
        return;
    };
    grip.settle(node, renewed, sent_at);
    if renewed == Renewed::Yes {
        engine.counters.renewals.add(1);
        engine.agenda.arm(part, sent_at + part.lease() / 3);
    } else if !heal(engine, part) {
        engine.agenda.arm(part, Instant::now());
    }
}
