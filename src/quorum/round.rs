//! A request to all nodes at the same time.
//!
//! A thread that waits for a reply reads the socket itself, and cannot block on several sockets. So it blocks on the
//! nearest node that has not answered, for a moment at a time, and in between reads the replies of the others without
//! waiting. A reader thread for each connection would cost a thread switch per server, and a condition variable for all
//! replies would need such threads.
//!
//! The request to one node:
//!
//! | from | event | to |
//! | --- | --- | --- |
//! | unsent | its connection is up | pending |
//! | unsent | the node's client is closed, the node rejects the connection, or the connection is lost at once | failed |
//! | pending | the node answers | came |
//! | pending | the connection is lost, and the request may be sent twice | unsent; a release: pending |
//! | pending | the connection is lost otherwise, the node rejects the request, or its client is closed | failed |

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::net::call::{Attempt, Call, Fault};
use crate::net::connection::WaitFault;
use crate::quorum::failure::Short;
use crate::quorum::nodes::{PAUSE, QuorumNodes, node_timeout};
use crate::quorum::tally::{Goal, RoundProgress, RoundStep};
use crate::verdict::{RequestKind, Verdict, verdict};

/// The state of the request to one node.
pub(crate) enum NodeReply {
    /// The request is not sent: there is no connection, or too many earlier requests are unanswered there. Has the last
    /// fault of this node in the round, if there was one.
    Unsent(Option<Fault>),
    Pending,
    Came(Value),
    Failed(Fault),
}

impl NodeReply {
    pub(crate) fn value(&self) -> Option<&Value> {
        match self {
            Self::Came(value) => Some(value),
            _ => None,
        }
    }
}

/// A round: the calls to all nodes, and their replies so far.
pub(crate) struct Round {
    pub(crate) replies: Vec<NodeReply>,
    /// The calls that were sent, by node.
    pub(crate) calls: Vec<Option<Arc<Call>>>,
}

/// What a round sends to all nodes, and what it waits for.
pub(crate) struct RoundRequest<'a> {
    pub(crate) goal: Goal,
    /// The lease of the hold, which limits how long the nodes may take.
    pub(crate) lease: Duration,
    pub(crate) until: Instant,
    pub(crate) stop: &'a dyn Fn() -> bool,
    /// Makes the command for a node; `None` if all commands are on their way.
    pub(crate) make: Option<&'a dyn Fn(usize) -> Attempt>,
    /// Whether a command may be sent again if its connection is lost.
    pub(crate) may_repeat: bool,
    /// Which replies count towards the goal, by node.
    pub(crate) counts: &'a dyn Fn(usize, &Value) -> bool,
}

impl Round {
    /// The replies that have arrived, by node.
    pub(crate) fn values(&self) -> impl Iterator<Item = (usize, &Value)> {
        let replies = self.replies.iter().enumerate();
        replies.filter_map(|(node, reply)| Some((node, reply.value()?)))
    }

    pub(crate) fn count(&self, counts: &dyn Fn(usize, &Value) -> bool) -> usize {
        self.values()
            .filter(|(node, reply)| counts(*node, reply))
            .count()
    }

    fn progress(&self, counts: &dyn Fn(usize, &Value) -> bool) -> RoundProgress {
        let are =
            |is: fn(&NodeReply) -> bool| self.replies.iter().filter(|reply| is(reply)).count();
        RoundProgress {
            yes: self.count(counts),
            answered: self.values().count(),
            pending: are(|reply| matches!(reply, NodeReply::Pending)),
            unsent: are(|reply| matches!(reply, NodeReply::Unsent(_))),
        }
    }
}

impl QuorumNodes {
    /// Asks all responding nodes at once. Begins to connect to the others in the background, and waits for them only if
    /// the goal needs them. Ends when the goal is reached, when a majority has answered and the goal (except `All`) cannot
    /// be reached, when no node is left to wait for, when `stop` returns true, or when the time is up.
    pub(crate) fn round(&self, request: &RoundRequest<'_>) -> Round {
        let (n, timeout) = (self.list.len(), node_timeout(request.lease));
        let until = request.until.min(Instant::now() + timeout);
        let mut round = Round {
            replies: (0..n).map(|_| NodeReply::Unsent(None)).collect(),
            calls: vec![None; n],
        };
        // Callers that were given the nodes in the same order ask in that order. If several ask at the same time, the
        // first at one node is likely to be the first at every node, so the nodes are not split between them.
        for node in 0..n {
            let session = &self.list[node].session;
            if session.is_closed() {
                round.replies[node] = NodeReply::Failed(Fault::Closed);
                continue;
            }
            let connection = session.connection.first();
            // Rounds end with a majority, so replies to earlier rounds may be unread. If many are unread, those that have
            // arrived are read first; a node whose replies are still due is not asked now.
            let is_asked = connection.responds(timeout)
                && connection
                    .wait_for_backlog(Instant::now(), request.stop)
                    .is_ok()
                && self.send(&mut round, request, node);
            if !is_asked {
                connection.want();
            }
        }
        self.wait(&mut round, request, until);
        round
    }

    /// Waits until the round is over.
    pub(crate) fn wait(&self, round: &mut Round, request: &RoundRequest<'_>, until: Instant) {
        let (nodes, begun) = (self.by_distance(), Instant::now());
        let mut turns = nodes.iter().cycle();
        loop {
            // Read even if the time is up, since a reply that has arrived counts.
            for (_, node) in &nodes {
                self.read(round, request, *node, Instant::now());
            }
            let (step, now) = (self.next(round, request), Instant::now());
            if step == RoundStep::Finish || now >= until || (request.stop)() {
                return;
            }
            if step == RoundStep::Connect {
                let is_unsent = |node: usize| matches!(round.replies[node], NodeReply::Unsent(_));
                // The next unsent node each time, so that an unreachable node does not take all of the time.
                if let Some((_, node)) = turns.find(|(_, node)| is_unsent(*node)) {
                    self.connect(round, request, *node, until);
                }
                continue;
            }
            let is_pending = |node: usize| matches!(round.replies[node], NodeReply::Pending);
            if let Some((distance, node)) = nodes.iter().find(|(_, node)| is_pending(*node)) {
                // The thread blocks on this connection until the reply is expected. If the reply is overdue, the thread
                // blocks for an eighth of the time waited so far. The others are read after 1 to 5 ms in any case.
                let waited = now - begun;
                let rest = distance.checked_sub(waited).unwrap_or(waited / 8);
                let by = now + rest.clamp(PAUSE.0 / 5, PAUSE.0);
                self.read(round, request, *node, until.min(by));
            }
        }
    }

    fn next(&self, round: &Round, request: &RoundRequest<'_>) -> RoundStep {
        let progress = round.progress(request.counts);
        request.goal.next(self.majority, progress)
    }

    /// Sends the request to a node, if there is a connection. The caller must have waited for the backlog there: see
    /// `wait_for_backlog`.
    fn send(&self, round: &mut Round, request: &RoundRequest<'_>, node: usize) -> bool {
        let Some(make) = request.make else {
            return false;
        };
        let connection = &self.list[node].session.connection;
        // The reply may never be read, since the round ends with a majority. So the call is unattended: the connection
        // must not rely on this thread to read the reply.
        let call = Call::unattended(make(node));
        call.record_waited();
        if connection.submit(&call).is_none() {
            return false;
        }
        round.calls[node] = Some(call);
        round.replies[node] = NodeReply::Pending;
        connection.flush(false);
        true
    }

    /// Waits a short time for a connection, and sends the request.
    fn connect(&self, round: &mut Round, request: &RoundRequest<'_>, node: usize, until: Instant) {
        let connection = &self.list[node].session.connection;
        let by = until.min(Instant::now() + PAUSE.0);
        let connected = connection
            .first()
            .up(by, request.stop)
            .and_then(|()| connection.first().wait_for_backlog(by, request.stop));
        round.replies[node] = match connected {
            Ok(()) if self.send(round, request, node) => return,
            Ok(()) => NodeReply::Failed(self.unanswered(node)),
            Err(Fault::Stopped) => return,
            Err(fault @ (Fault::Unreachable(_) | Fault::Late(_))) => NodeReply::Unsent(Some(fault)),
            Err(fault) => NodeReply::Failed(fault),
        };
    }

    /// Reads the reply of a node, if it is pending and arrives by `by`.
    fn read(&self, round: &mut Round, request: &RoundRequest<'_>, node: usize, by: Instant) {
        let connection = &self.list[node].session.connection;
        let (NodeReply::Pending, Some(call)) = (&round.replies[node], &round.calls[node]) else {
            return;
        };
        // Even a read without any time left blocks for a millisecond or more (`GLANCE` in `net::socket`). So after `by`
        // the read is begun only if another thread has read the reply, or bytes have arrived.
        let waits = || Instant::now() < by;
        if !waits() && call.outcome().is_none() && !connection.first().has_news() {
            return;
        }
        round.replies[node] = match connection.at(call).wait(call, by, request.stop) {
            Ok((reply, _)) => match verdict(reply, || call.asked(RequestKind::Waited, false)) {
                Verdict::Answer(value) => NodeReply::Came(value),
                Verdict::SendText => {
                    // Until the round ends only this thread handles the call, so it may send the call again. A `NOSCRIPT`
                    // that arrives after the round counts as a refusal, since nothing was executed.
                    call.send_text();
                    if connection.submit(call).is_some() {
                        return connection.flush(false);
                    }
                    NodeReply::Failed(self.unanswered(node))
                }
                // The masters of a quorum are single servers, which redirect nobody.
                Verdict::Elsewhere(_) => NodeReply::Failed(self.unanswered(node)),
                Verdict::Later(err) => NodeReply::Failed(Fault::Unreachable(err)),
                Verdict::Never(err) => NodeReply::Failed(Fault::Refused(err)),
            },
            Err(WaitFault::NoReply(_)) if call.deferred.is_some() && call.outcome().is_none() => {
                // The connection sends a release again by itself once it is up, so the node stays pending.
                if waits() {
                    std::thread::sleep(PAUSE.0 / 5);
                }
                return;
            }
            Err(WaitFault::NoReply(err)) if call.deferred.is_some() => {
                NodeReply::Failed(Fault::Refused(err))
            }
            // A renewal, or a question, may be executed twice. An acquire may not: rule 1 at `QuorumHold`.
            Err(WaitFault::NoReply(err)) if request.may_repeat => {
                NodeReply::Unsent(Some(connection.first().unreachable(err)))
            }
            Err(WaitFault::NoReply(err)) => NodeReply::Failed(connection.first().unreachable(err)),
            Err(WaitFault::Closed) => NodeReply::Failed(Fault::Closed),
            // The time until `by` is over, not the round: the node stays pending.
            Err(WaitFault::TimedOut | WaitFault::Stopped) => return,
        };
    }

    /// The failure of a round in which too few nodes agreed.
    pub(crate) fn short(&self, agreed: usize, replies: Vec<NodeReply>) -> Short {
        let failure = |(node, reply)| match reply {
            NodeReply::Failed(fault) | NodeReply::Unsent(Some(fault)) => Some((node, fault)),
            NodeReply::Pending | NodeReply::Unsent(None) => Some((node, self.unanswered(node))),
            NodeReply::Came(_) => None,
        };
        let failures = replies.into_iter().enumerate().filter_map(failure);
        let servers = self.sessions().map(|session| session.endpoint.to_string());
        Short {
            majority: self.majority,
            servers: servers.collect(),
            agreed,
            failures: failures.collect(),
        }
    }
}
