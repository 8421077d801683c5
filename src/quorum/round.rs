//! A lock that a majority of independent masters keeps: asking them all at once, and what each keeps of a hold.
//!
//! ```text
//!            acquire: every node that responds, at once      a majority granted, in time
//!   (free) ────────────────────────────────────► asking ───────────────────────────────► held
//!      ▲                                           │ no majority to be had, or too late    │
//!      ├─── given back where it may be kept ◄──────┘                                       │
//!      └─── given back where it may be kept ◄── released, or lost ─────────────────────────┘
//! ```
//!
//! Who has found it busy lately looks first, and acquires only what a majority of nodes says is free: an attempt that
//! takes a minority for a moment would keep the holder from taking its own parts again.
//!
//! What the nodes keep of a hold is in `hold`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::spec::Terms;
use crate::error::{Error, Result, is_transient, is_unknown_script};
use crate::hold::Hold;
use crate::local::registry::Entry;
use crate::net::call::{Answer, Attempt, Call, Fault};
use crate::net::connection::WaitFault;
use crate::protocol::keys;
use crate::protocol::kind::Protocol;
use crate::protocol::red;
use crate::protocol::script::Request;
use crate::quorum::hold::QuorumHold;
use crate::quorum::identity::Masters;
use crate::quorum::tally::{Goal, Majority, Progress, Step, Tally};
use crate::session::{Session, SharedSession};
use crate::time::{self, Unanswered};

/// How long one node is waited for, as a share of the lease, and within which limits.
///
/// Source: the Redlock description in the Redis documentation asks for a time small against the lease, 5 to 50 ms of
/// 10 s. Nobody waits for a node that is not needed, so this is longer: a busy machine answers late.
const PATIENCE: (u32, Duration, Duration) =
    (20, Duration::from_millis(50), Duration::from_millis(500));

/// The random pause before a majority is asked for again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// The first and the longest time for which one node is waited for while others may have answered.
pub(crate) const SLICE: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(16));

/// For how long a lock that was found with others is thought to be busy.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// A random pause, so that those who split the nodes between them do not meet again.
pub(crate) fn pause() -> Duration {
    time::between(PAUSE.0, PAUSE.1)
}

pub(crate) fn patience(lease: Duration) -> Duration {
    (lease / PATIENCE.0)
        .clamp(PATIENCE.1, PATIENCE.2)
        .min(lease / 4)
}

/// One of the servers: its client, and the lock's names there.
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) entry: Arc<Entry>,
}

pub(crate) struct Nodes {
    pub(crate) list: Vec<Node>,
    pub(crate) majority: Majority,
    /// With which node the next round begins: reading from each in turn leaves none unread for long.
    turn: AtomicUsize,
}

/// The servers of one lock, and their clients.
pub(crate) struct Quorum {
    nodes: Arc<Nodes>,
    clients: Vec<Arc<SharedSession>>,
    pub(crate) masters: Masters,
    /// When others were last found to have it, of `time::nanos`; zero if it was ours since.
    busy_at: AtomicU64,
    /// How long the last grant took, in nanoseconds.
    granted_in: AtomicU64,
}

/// What a majority of servers has said to an acquire.
pub(crate) enum Asked {
    Taken {
        whole: Arc<Hold>,
        sent_at: Instant,
    },
    /// So many answered that it is others who have it.
    Busy,
    /// Granted, with no time left to use it.
    TooLate,
    TooFew(Short),
}

/// Too few servers agreed.
#[derive(Debug, Clone)]
pub(crate) struct Short {
    pub(crate) majority: Majority,
    pub(crate) agreed: usize,
    /// By position, for the others that did not say that somebody else has the lock.
    pub(crate) failures: Vec<(usize, Fault)>,
}

/// Why one server, or several, gave no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    One(Fault),
    Several(Short),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::One(fault)
    }
}

impl From<Short> for Failure {
    fn from(short: Short) -> Self {
        Self::Several(short)
    }
}

impl Failure {
    pub(crate) fn into_error(self, doing: &'static str, name: &str) -> Error {
        match self {
            Self::One(fault) => fault.into_error(doing, name),
            Self::Several(short) => short.into_error(name),
        }
    }
}

impl Unanswered for Failure {
    fn is_late(&self) -> bool {
        match self {
            Self::One(fault) => fault.is_late(),
            Self::Several(short) => !short.is_away(),
        }
    }

    fn is_unanswered(&self) -> bool {
        match self {
            Self::One(fault) => fault.is_unanswered(),
            Self::Several(_) => true,
        }
    }
}

impl Short {
    pub(crate) fn into_error(self, name: &str) -> Error {
        let wrong_type =
            |fault: &Fault| matches!(fault, Fault::Refused(err) if err.code() == Some("WRONGTYPE"));
        if self.too_many(wrong_type) {
            return Error::WrongType { name: name.into() };
        }
        let failures = self.failures.into_iter().map(|(node, fault)| {
            let err = match fault {
                fault if wrong_type(&fault) => Error::WrongType { name: name.into() },
                Fault::Refused(err) | Fault::Unreachable(err) | Fault::Late(err) => {
                    Error::redis("asking a node", err)
                }
                _ => Error::Closed,
            };
            (node, err)
        });
        Error::NoQuorum {
            name: name.into(),
            nodes: self.majority.nodes(),
            needed: self.majority.needed(),
            agreed: self.agreed,
            failures: failures.collect(),
        }
    }

    /// Whether it will not pass by itself.
    pub(crate) fn is_final(&self) -> bool {
        self.too_many(|fault| !matches!(fault, Fault::Unreachable(_) | Fault::Late(_)))
    }

    /// Whether so many are known to be away, or refuse, that a majority is not to be had.
    pub(crate) fn is_away(&self) -> bool {
        self.too_many(|fault| !matches!(fault, Fault::Late(_)))
    }

    fn too_many(&self, counts: impl Fn(&Fault) -> bool) -> bool {
        let failures = self.failures.iter();
        let out = failures.filter(|(_, fault)| counts(fault)).count();
        self.majority.tally(0, out) == Tally::Lost
    }
}

impl Quorum {
    /// Checks that the clients are those of different masters, as far as these can be asked now.
    pub(crate) fn new(
        clients: Vec<Arc<SharedSession>>,
        name: &str,
    ) -> Result<(Arc<Self>, Arc<str>)> {
        if clients.len() < 2 {
            return Err(Error::Config(format!(
                "a RedLock over {} masters; it takes at least two, and is of use from three on",
                clients.len()
            )));
        }
        let sessions: Vec<_> = clients.iter().map(|client| &client.session).collect();
        let mut ids: Vec<&str> = sessions
            .iter()
            .map(|session| session.owners.client())
            .collect();
        ids.sort_unstable();
        let id: Arc<str> = keys::list([name].into_iter().chain(ids)).into();
        let node = |session: &&Arc<Session>| {
            Ok(Node {
                session: Arc::clone(session),
                entry: session.registry.apart(&red::KIND, &id)?,
            })
        };
        let list = sessions.iter().map(node).collect::<Result<Vec<_>>>()?;
        for session in &sessions {
            session.check_open()?;
        }
        let response_timeout = clients[0].session.response_timeout;
        let masters = Masters::new(sessions.into_iter().cloned().collect(), response_timeout)?;
        let nodes = Arc::new(Nodes {
            majority: Majority::of(list.len()),
            list,
            turn: AtomicUsize::new(0),
        });
        let quorum = Self {
            nodes,
            clients,
            masters,
            busy_at: AtomicU64::new(0),
            granted_in: AtomicU64::new(0),
        };
        Ok((Arc::new(quorum), id))
    }

    /// The client that keeps the lock and has the settings: the first.
    pub(crate) fn home(&self) -> &Arc<SharedSession> {
        &self.clients[0]
    }

    /// Without them nobody would bring a node what it could not be told at once.
    pub(crate) fn start_watchdogs(&self) -> Result<()> {
        let mut nodes = self.nodes.list.iter();
        nodes.try_for_each(|node| node.session.start_watchdog())
    }

    /// Asks all nodes once, and takes back what came of it unless it is a hold. `goes_on`: if others have it, it will ask
    /// again.
    pub(crate) fn ask(
        &self,
        entry: &Arc<Entry>,
        terms: Terms,
        up_for: Duration,
        goes_on: bool,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Asked {
        let nodes = &self.nodes;
        // A client that is closed meanwhile gives back what it may have been granted.
        let sessions = nodes.list.iter().map(|node| &node.session);
        let _contending: Vec<_> = sessions.map(|session| session.contending()).collect();
        let found_busy = self.busy_at.load(Ordering::Relaxed);
        let lately = Instant::now().saturating_duration_since(time::instant(found_busy)) < BUSY_FOR;
        if found_busy != 0 && lately && self.is_busy(terms.ttl, until, stop) {
            return self.busy();
        }
        let quorum_hold = QuorumHold::new(nodes, entry, terms);
        let run_ids = self.run_ids(up_for);
        let mut acquire = |node: usize| quorum_hold.acquire(node, up_for, &run_ids[node]);
        let sent_at = Instant::now();
        let taken = |value: &Value| matches!(value, Value::Nil);
        let round = nodes.round(
            if goes_on {
                Goal::MajoritySoon
            } else {
                Goal::Majority
            },
            terms.ttl,
            until,
            stop,
            &mut acquire,
            &taken,
        );
        let granted = round.count(&taken);
        quorum_hold.begin(round.calls);
        let whole = quorum_hold.whole(entry, terms);
        if nodes.majority.has(granted) {
            whole.grant(sent_at);
            let left = whole
                .valid_until()
                .saturating_duration_since(Instant::now());
            // What is nearly over when it comes is of no use.
            if left >= terms.ttl / 10 {
                self.busy_at.store(0, Ordering::Relaxed);
                let took = u64::try_from(sent_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.granted_in.store(took, Ordering::Relaxed);
                quorum_hold.is_granted(sent_at);
                quorum_hold.tend();
                return Asked::Taken { whole, sent_at };
            }
        }
        drop(quorum_hold.let_go());
        quorum_hold.flush();
        let busy = |value: &Value| matches!(value, Value::Int(_));
        if nodes.majority.has(granted) {
            Asked::TooLate
        } else if nodes
            .majority
            .has(granted + Round::count_in(&round.replies, &busy))
        {
            self.busy()
        } else {
            Asked::TooFew(nodes.short(granted, round.replies))
        }
    }

    /// How long a process that has had its turn lets others go first, but not less than `shortest`.
    ///
    /// Whoever comes back after a pause looks first and then asks, which takes two round trips. For both to fall into this
    /// pause it has to be longer.
    pub(crate) fn yield_for(&self, shortest: Duration) -> Duration {
        let round_trip = Duration::from_nanos(self.granted_in.load(Ordering::Relaxed));
        round_trip.saturating_mul(4).clamp(shortest, PAUSE.1)
    }

    fn busy(&self) -> Asked {
        let now = time::nanos(Instant::now()).max(1);
        self.busy_at.store(now, Ordering::Relaxed);
        Asked::Busy
    }

    /// Whether so many nodes answer that no majority of them is free; takes nothing.
    fn is_busy(&self, lease: Duration, until: Instant, stop: &dyn Fn() -> bool) -> bool {
        let nodes = &self.nodes;
        let mut look = |node: usize| Attempt {
            request: nodes.list[node].entry.protocol.remaining(),
            undo: None,
        };
        let free = |value: &Value| matches!(value, Value::Int(-2));
        let round = nodes.round(Goal::MajoritySoon, lease, until, stop, &mut look, &free);
        let answered = round.count(&|value| matches!(value, Value::Int(_)));
        nodes.majority.has(answered) && !nodes.majority.has(round.count(&free))
    }

    /// As which `run_id` each server counts for those who keep out whoever is new within `span`; empty for any.
    fn run_ids(&self, span: Duration) -> Vec<String> {
        let (nodes, now) = (&self.nodes.list, Instant::now());
        if span.is_zero() {
            return vec![String::new(); nodes.len()];
        }
        nodes
            .iter()
            .map(|node| node.session.server.seniority.counts_as(span, now))
            .collect()
    }

    /// Asks every node a question, and wants a number from a majority.
    fn survey(
        &self,
        until: Instant,
        question: impl Fn(&dyn Protocol) -> Request,
    ) -> std::result::Result<Vec<i64>, Short> {
        let nodes = &self.nodes;
        let mut ask = |node: usize| Attempt {
            request: question(&*nodes.list[node].entry.protocol),
            undo: None,
        };
        let home = nodes.home();
        let number = |value: &Value| matches!(value, Value::Int(_));
        let stop = || home.is_closed();
        let round = nodes.round_twice(Goal::All, home.lease, until, &stop, &mut ask, &number);
        let numbers: Vec<_> = round
            .replies
            .iter()
            .filter_map(|reply| match reply {
                Reply::Pending(Answer {
                    value: Value::Int(n),
                    ..
                }) => Some(*n),
                _ => None,
            })
            .collect();
        if nodes.majority.has(numbers.len()) {
            return Ok(numbers);
        }
        Err(nodes.short(numbers.len(), round.replies))
    }

    /// Whether a majority is not to be had.
    pub(crate) fn is_locked(&self, until: Instant) -> std::result::Result<bool, Short> {
        let fields = self.survey(until, |protocol| protocol.state())?;
        let free = fields.iter().filter(|fields| **fields == 0).count();
        Ok(!self.nodes.majority.has(free))
    }

    /// In how many milliseconds a majority is to be had if nobody renews; -1 for never, -2 for now.
    pub(crate) fn remaining(&self, until: Instant) -> std::result::Result<i64, Short> {
        let left = self.survey(until, |protocol| protocol.remaining())?;
        let never = |ms| if ms == -1 { i64::MAX } else { ms };
        let bound = self.nodes.majority.bound(left.into_iter().map(never));
        Ok(bound.filter(|ms| *ms != i64::MAX).unwrap_or(-1))
    }

    /// Takes the lock away on every node; whether anybody had it on any.
    pub(crate) fn force(&self, until: Instant) -> std::result::Result<bool, Short> {
        Ok(self
            .survey(until, |protocol| protocol.force())?
            .contains(&1))
    }
}

/// What one node has said.
pub(crate) enum Reply {
    Unasked,
    Due { until: Instant },
    Pending(Answer),
    Failed(Fault),
}

/// One question to all nodes.
pub(crate) struct Round {
    pub(crate) replies: Vec<Reply>,
    /// What was sent, to whom anything was.
    pub(crate) calls: Vec<Option<Arc<Call>>>,
}

impl Round {
    pub(crate) fn count(&self, counts: &dyn Fn(&Value) -> bool) -> usize {
        Self::count_in(&self.replies, counts)
    }

    fn count_in(replies: &[Reply], counts: &dyn Fn(&Value) -> bool) -> usize {
        let came =
            |reply: &&Reply| matches!(reply, Reply::Pending(answer) if counts(&answer.value));
        replies.iter().filter(came).count()
    }

    fn is_due(&self, node: usize) -> bool {
        matches!(self.replies[node], Reply::Due { .. })
    }
}

impl Nodes {
    /// The client that keeps the lock and has the settings.
    pub(crate) fn home(&self) -> &Arc<Session> {
        &self.list[0].session
    }

    /// So few agreed, and the others answered this.
    pub(crate) fn short(&self, agreed: usize, replies: Vec<Reply>) -> Short {
        Short {
            majority: self.majority,
            agreed,
            failures: self.failures(replies),
        }
    }

    /// Why nodes did not answer, by position.
    fn failures(&self, replies: Vec<Reply>) -> Vec<(usize, Fault)> {
        let failure = |(node, reply)| match reply {
            Reply::Failed(fault) => Some((node, fault)),
            Reply::Due { .. } | Reply::Unasked => Some((node, self.unanswered(node))),
            Reply::Pending(_) => None,
        };
        replies
            .into_iter()
            .enumerate()
            .filter_map(failure)
            .collect()
    }

    /// Why a node has not answered although its time is up.
    pub(crate) fn unanswered(&self, node: usize) -> Fault {
        self.list[node].session.connection.no_answer()
    }

    /// A [`round`](Self::round), and another if so few answered because of connections that changed out to be of no use:
    /// they may have been idle for too long. For what may be sent twice.
    pub(crate) fn round_twice(
        &self,
        goal: Goal,
        lease: Duration,
        until: Instant,
        stop: &dyn Fn() -> bool,
        make: &mut dyn FnMut(usize) -> Attempt,
        counts: &dyn Fn(&Value) -> bool,
    ) -> Round {
        let round = self.round(goal, lease, until, stop, make, counts);
        let broke = |call: &Option<Arc<Call>>| {
            let outcome = call.as_ref().and_then(|call| call.outcome());
            matches!(outcome, Some(Err(_)))
        };
        if self.majority.has(round.count(&|_| true))
            || !round.calls.iter().any(broke)
            || stop()
            || Instant::now() >= until
        {
            return round;
        }
        self.round(goal, lease, until, stop, make, counts)
    }

    /// Asks all nodes that respond at once; others only if it takes them to reach the goal. Ends when that is reached,
    /// or a majority has answered and it cannot be any more, and at the latest when the last node's time is up.
    ///
    /// A node that is not connected, or owes an older reply for too long, costs nothing as long as the others are
    /// enough; it is connected again in the background. Where all are asked, all connections that are missing are made at
    /// the same time.
    fn round(
        &self,
        goal: Goal,
        lease: Duration,
        until: Instant,
        stop: &dyn Fn() -> bool,
        make: &mut dyn FnMut(usize) -> Attempt,
        counts: &dyn Fn(&Value) -> bool,
    ) -> Round {
        let n = self.list.len();
        let wanted = goal.wanted(self.majority);
        let patience = patience(lease);
        let mut round = Round {
            replies: (0..n).map(|_| Reply::Unasked).collect(),
            calls: vec![None; n],
        };
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let order: Vec<usize> = (0..n).map(|node| (turn.wrapping_add(node)) % n).collect();
        let mut untried = Vec::new();
        for node in &order {
            let Node { session, .. } = &self.list[*node];
            let connection = &session.connection;
            if session.is_closed() {
                round.replies[*node] = Reply::Failed(Fault::Closed);
            } else if !connection.responds(patience)
                || !self.send(&mut round, *node, make, patience)
            {
                untried.push(*node);
                connection.want();
            }
        }
        if goal == Goal::All {
            for (node, made) in self.connect(&untried, until.min(Instant::now() + patience)) {
                match made {
                    Ok(()) if self.send(&mut round, node, make, patience) => {}
                    Ok(()) => round.replies[node] = Reply::Failed(self.unanswered(node)),
                    Err(fault) => round.replies[node] = Reply::Failed(fault),
                }
            }
            untried.clear();
        }
        untried.reverse();
        let mut slice = SLICE.0;
        loop {
            let mut came = false;
            for node in &order {
                let Reply::Due { until: its } = round.replies[*node] else {
                    continue;
                };
                // However late it is, what has come by now counts.
                let now = Instant::now();
                let by = (now + slice).min(until.max(now + SLICE.0));
                if let Some(reply) = self.wait(&round, *node, by, stop) {
                    round.replies[*node] = reply;
                    came = true;
                    if round.count(counts) >= wanted {
                        return round;
                    }
                } else if Instant::now() >= until.min(its) {
                    round.replies[*node] = Reply::Failed(self.unanswered(*node));
                }
            }
            if !came {
                slice = (slice * 2).min(SLICE.1);
            }
            let step = goal.next(
                self.majority,
                Progress {
                    yes: round.count(counts),
                    answered: round.count(&|_| true),
                    pending: (0..n).filter(|node| round.is_due(*node)).count(),
                    untried: untried.len(),
                },
            );
            if step == Step::Finish || stop() || Instant::now() >= until {
                return round;
            }
            if step == Step::AskAnother
                && let Some(node) = untried.pop()
            {
                let connection = &self.list[node].session.connection;
                let by = until.min(Instant::now() + patience);
                match connection.up(by, &mut || !stop()) {
                    Ok(()) if self.send(&mut round, node, make, patience) => {}
                    Ok(()) => round.replies[node] = Reply::Failed(self.unanswered(node)),
                    Err(fault) => round.replies[node] = Reply::Failed(fault),
                }
            }
        }
    }

    /// Makes the connections that are missing, all at the same time.
    fn connect(
        &self,
        missing: &[usize],
        until: Instant,
    ) -> Vec<(usize, std::result::Result<(), Fault>)> {
        let home = self.home();
        let connect = |node: usize| {
            let connection = &self.list[node].session.connection;
            (node, connection.up(until, &mut || !home.is_closed()))
        };
        let Some((first, others)) = missing.split_first() else {
            return Vec::new();
        };
        std::thread::scope(|scope| {
            let connect = &connect;
            let spawned: Vec<_> = others
                .iter()
                .map(|node| {
                    let thread = std::thread::Builder::new().name("redlatch-connect".into());
                    (*node, thread.spawn_scoped(scope, || connect(*node)))
                })
                .collect();
            let mut made = vec![connect(*first)];
            made.extend(spawned.into_iter().map(|(node, thread)| {
                let joined = thread.ok().and_then(|thread| thread.join().ok());
                joined.unwrap_or_else(|| (node, Err(self.unanswered(node))))
            }));
            made
        })
    }

    /// Sends a node its question, if there is a connection.
    fn send(
        &self,
        round: &mut Round,
        node: usize,
        make: &mut dyn FnMut(usize) -> Attempt,
        patience: Duration,
    ) -> bool {
        let connection = &self.list[node].session.connection;
        // Once a majority has answered nobody comes to read that this node did not know the script.
        let call = Call::unattended(make(node));
        if connection.submit(&call).is_none() {
            return false;
        }
        round.calls[node] = Some(call);
        round.replies[node] = Reply::Due {
            until: Instant::now() + patience,
        };
        connection.flush(false);
        true
    }

    /// Waits for the reply of one node; `None` if it is still to come.
    fn wait(
        &self,
        round: &Round,
        node: usize,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Option<Reply> {
        let (connection, call) = (
            &self.list[node].session.connection,
            round.calls[node].as_ref()?,
        );
        match connection.wait(call, until, stop) {
            Ok((value, sent_at)) => match value.extract_error() {
                Ok(value) => Some(Reply::Pending(Answer { value, sent_at })),
                Err(err) if is_unknown_script(&err) && !call.by_text_from_now() => {
                    if connection.submit(call).is_none() {
                        return Some(Reply::Failed(Fault::Unreachable(err)));
                    }
                    connection.flush(false);
                    None
                }
                Err(err) if is_transient(&err) => Some(Reply::Failed(Fault::Unreachable(err))),
                Err(err) => Some(Reply::Failed(Fault::Refused(err))),
            },
            Err(WaitFault::Broken(err)) => Some(Reply::Failed(Fault::Unreachable(err))),
            Err(WaitFault::Closed) => Some(Reply::Failed(Fault::Closed)),
            Err(WaitFault::TimedOut | WaitFault::Stopped) => None,
        }
    }
}
