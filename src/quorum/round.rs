//! One request to all nodes at the same time. How its replies are waited for: [nodes](crate::quorum::nodes).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::{is_transient, is_unknown_script};
use crate::net::call::{Answer, Attempt, Call, Fault};
use crate::net::connection::WaitFault;
use crate::quorum::failure::Short;
use crate::quorum::nodes::{Gather, Node, Nodes, Visit, Visits, node_timeout};
use crate::quorum::tally::{Goal, Progress, Step};

/// The state of the request to one node.
pub(crate) enum NodeReply {
    Unasked,
    Pending { until: Instant },
    Came(Answer),
    Failed(Fault),
}

/// The requests to all nodes.
pub(crate) struct Round {
    pub(crate) replies: Vec<NodeReply>,
    /// What was sent, by node.
    pub(crate) calls: Vec<Option<Arc<Call>>>,
}

/// What all nodes are asked.
pub(crate) struct RoundRequest<'a> {
    pub(crate) goal: Goal,
    /// Of the hold in question. How long a node may take follows from it.
    pub(crate) lease: Duration,
    pub(crate) until: Instant,
    pub(crate) stop: &'a dyn Fn() -> bool,
    /// The command for a node.
    pub(crate) make: &'a mut dyn FnMut(usize) -> Attempt,
    /// Which replies count towards the goal.
    pub(crate) counts: &'a dyn Fn(&Value) -> bool,
}

impl RoundRequest<'_> {
    fn is_over(&self) -> bool {
        (self.stop)() || Instant::now() >= self.until
    }
}

/// A round under way.
struct Asking<'a, 'b> {
    nodes: &'a Nodes,
    round: Round,
    request: &'a mut RoundRequest<'b>,
    /// How many replies have to count.
    wanted: usize,
    node_timeout: Duration,
}

impl Gather for Asking<'_, '_> {
    fn pending(&self, node: usize) -> Option<(Arc<Call>, Option<Instant>)> {
        match self.round.replies[node] {
            NodeReply::Pending { until } => Some((self.round.calls[node].clone()?, Some(until))),
            _ => None,
        }
    }

    fn visited(
        &mut self,
        node: usize,
        call: &Arc<Call>,
        outcome: std::result::Result<(Value, Instant), WaitFault>,
    ) -> Visit {
        if let Some(reply) = self.read(node, call, outcome) {
            self.round.replies[node] = reply;
            if self.round.count(self.request.counts) >= self.wanted {
                return Visit::Enough;
            }
            return Visit::News;
        }
        if let NodeReply::Pending { until } = self.round.replies[node]
            && Instant::now() >= self.request.until.min(until)
        {
            self.round.replies[node] = NodeReply::Failed(self.nodes.unanswered(node));
        }
        Visit::Nothing
    }
}

impl Asking<'_, '_> {
    /// What a reply means; `None` if it is still to come.
    fn read(
        &self,
        node: usize,
        call: &Arc<Call>,
        outcome: std::result::Result<(Value, Instant), WaitFault>,
    ) -> Option<NodeReply> {
        let connection = &self.nodes.list[node].session.connection;
        match outcome {
            Ok((value, sent_at)) => match value.extract_error() {
                Ok(value) => Some(NodeReply::Came(Answer {
                    value,
                    sent_at,
                    acknowledged: call.acknowledged(),
                })),
                Err(err) if is_unknown_script(&err) && !call.by_text_from_now() => {
                    if connection.submit(call).is_none() {
                        return Some(NodeReply::Failed(Fault::Unreachable(err)));
                    }
                    connection.flush(false);
                    None
                }
                Err(err) if is_transient(&err) => Some(NodeReply::Failed(Fault::Unreachable(err))),
                Err(err) => Some(NodeReply::Failed(Fault::Refused(err))),
            },
            Err(WaitFault::Broken(err)) => Some(NodeReply::Failed(Fault::Unreachable(err))),
            Err(WaitFault::Closed) => Some(NodeReply::Failed(Fault::Closed)),
            Err(WaitFault::TimedOut | WaitFault::Stopped) => None,
        }
    }

    /// Sends the request to a node, if there is a connection.
    fn send(&mut self, node: usize) -> bool {
        let connection = &self.nodes.list[node].session.connection;
        // Once a majority has answered, the other replies may never be read, so a NOSCRIPT would go unnoticed.
        let call = Call::unattended((self.request.make)(node));
        if connection.submit(&call).is_none() {
            return false;
        }
        self.round.calls[node] = Some(call);
        self.round.replies[node] = NodeReply::Pending {
            until: Instant::now() + self.node_timeout,
        };
        connection.flush(false);
        true
    }

    /// The same, after an attempt to connect to it.
    fn send_if(&mut self, node: usize, connected: std::result::Result<(), Fault>) {
        match connected {
            Ok(()) if self.send(node) => {}
            Ok(()) => self.round.replies[node] = NodeReply::Failed(self.nodes.unanswered(node)),
            Err(fault) => self.round.replies[node] = NodeReply::Failed(fault),
        }
    }

    fn progress(&self, untried: usize) -> Progress {
        let nodes = 0..self.nodes.list.len();
        Progress {
            yes: self.round.count(self.request.counts),
            answered: self.round.count(&|_| true),
            pending: nodes.filter(|node| self.round.is_pending(*node)).count(),
            untried,
        }
    }
}

impl Round {
    pub(crate) fn count(&self, counts: &dyn Fn(&Value) -> bool) -> usize {
        let came =
            |reply: &&NodeReply| matches!(reply, NodeReply::Came(answer) if counts(&answer.value));
        self.replies.iter().filter(came).count()
    }

    fn is_pending(&self, node: usize) -> bool {
        matches!(self.replies[node], NodeReply::Pending { .. })
    }
}

impl Nodes {
    /// The failure for a round in which too few agreed.
    pub(crate) fn short(&self, agreed: usize, replies: Vec<NodeReply>) -> Short {
        Short {
            majority: self.majority,
            servers: self.addresses(),
            agreed,
            failures: self.failures(replies),
        }
    }

    /// Why nodes did not answer, by position.
    fn failures(&self, replies: Vec<NodeReply>) -> Vec<(usize, Fault)> {
        let failure = |(node, reply)| match reply {
            NodeReply::Failed(fault) => Some((node, fault)),
            NodeReply::Pending { .. } | NodeReply::Unasked => Some((node, self.unanswered(node))),
            NodeReply::Came(_) => None,
        };
        replies
            .into_iter()
            .enumerate()
            .filter_map(failure)
            .collect()
    }

    /// A [`round`](Self::round), and another one among those that did not answer if too few agreed and connections were lost:
    /// they may only have been idle for too long. For requests that may be sent twice.
    pub(crate) fn round_twice(&self, request: &mut RoundRequest<'_>) -> Round {
        let round = self.round(request);
        let broke = |call: &Option<Arc<Call>>| {
            let outcome = call.as_ref().and_then(|call| call.outcome());
            matches!(outcome, Some(Err(_)))
        };
        let agreed = round.count(request.counts);
        let may_agree = agreed + self.list.len() - round.count(&|_| true);
        if self.majority.has(agreed)
            || !self.majority.has(may_agree)
            || !round.calls.iter().any(broke)
            || request.is_over()
        {
            return round;
        }
        // Whoever has answered is not asked again: what the first request has changed, the second would not find.
        self.ask_others(round, request)
    }

    /// Asks all nodes that respond at the same time, and others only if they are needed for the goal. Ends when the goal is
    /// reached, when a majority has answered and the goal cannot be reached any more, or when all nodes have run out of time.
    ///
    /// A node without a connection, or one that has owed a reply for too long, takes no time as long as the others are
    /// enough; the watchdog connects to it. If all have to be asked, missing connections are made at the same time.
    pub(crate) fn round(&self, request: &mut RoundRequest<'_>) -> Round {
        let n = self.list.len();
        let round = Round {
            replies: (0..n).map(|_| NodeReply::Unasked).collect(),
            calls: vec![None; n],
        };
        self.ask_others(round, request)
    }

    /// The round, among the nodes that have not answered in `round`.
    fn ask_others(&self, mut round: Round, request: &mut RoundRequest<'_>) -> Round {
        for reply in &mut round.replies {
            if !matches!(reply, NodeReply::Came(_)) {
                *reply = NodeReply::Unasked;
            }
        }
        let (n, node_timeout) = (self.list.len(), node_timeout(request.lease));
        let (goal, until, stop) = (request.goal, request.until, request.stop);
        let mut asking = Asking {
            nodes: self,
            round,
            request,
            wanted: goal.wanted(self.majority),
            node_timeout,
        };
        let first = self.visit_first.fetch_add(1, Ordering::Relaxed);
        let mut untried = Vec::new();
        // Always in the same order: of several who ask at the same time the first then is first everywhere, so that nodes
        // are not split between them.
        for node in 0..n {
            let Node { session, .. } = &self.list[node];
            let connection = &session.connection;
            if matches!(asking.round.replies[node], NodeReply::Came(_)) {
                continue;
            }
            if session.is_closed() {
                asking.round.replies[node] = NodeReply::Failed(Fault::Closed);
            } else if !connection.responds(node_timeout) || !asking.send(node) {
                untried.push(node);
                connection.want();
            }
        }
        if goal == Goal::All {
            for (node, connected) in
                self.connect(&untried, until.min(Instant::now() + node_timeout))
            {
                asking.send_if(node, connected);
            }
            untried.clear();
        }
        // Whichever of them is away, the others come first another time.
        untried.sort_by_key(|node| (node + n - first % n) % n);
        untried.reverse();
        let mut visits = Visits::new(self, first);
        loop {
            if visits.visit_all(&mut asking, until, stop) == Visit::Enough {
                return asking.round;
            }
            let step = goal.next(self.majority, asking.progress(untried.len()));
            if step == Step::Finish || asking.request.is_over() {
                return asking.round;
            }
            if step == Step::AskAnother
                && let Some(node) = untried.pop()
            {
                let connection = &self.list[node].session.connection;
                let by = until.min(Instant::now() + node_timeout);
                let connected = connection.up(by, &mut || !stop());
                asking.send_if(node, connected);
            }
        }
    }
}
