//! The release of a hold that a majority keeps.
//!
//! Every node is sent what may be needed: its release if it keeps its share, an undo if an acquire may still be carried
//! out. A majority that confirms is enough, unless nodes that have not answered may show that a majority has been without
//! the hold at some time.

use std::sync::Arc;
use std::time::Instant;

use redis::{RedisError, Value};

use crate::error::LossReason;
use crate::net::call::{Call, Fault};
use crate::net::connection::WaitFault;
use crate::protocol::script::{self, Released};
use crate::quorum::failure::Short;
use crate::quorum::hold::{QuorumHold, Releasing, Stage, State};
use crate::quorum::keeping::ReleaseTally;
use crate::quorum::nodes::{Gather, Nodes, Visit, Visits, node_timeout};
use crate::quorum::tally::Tally;

impl QuorumHold {
    /// Ends all shares, and has them released wherever they may be. In memory only; it has to be delivered.
    pub(crate) fn let_go(&self) -> Arc<Call> {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.let_go, true) {
            self.look(&mut state);
            let releases = (0..state.shares.len()).map(|node| Releasing {
                kept: state.shares[node].kept,
                call: self.release_share(&mut state, node),
            });
            let releases = releases.collect();
            state.releases = releases;
        }
        let release = state.releases.iter().find_map(|its| its.call.clone());
        // Without any, one that says that it never was sent.
        release.unwrap_or_else(|| Call::deferred(state.shares[0].hold.release(true)))
    }

    /// Ends the share of one node, and has everything released that may be there.
    pub(super) fn release_share(&self, state: &mut State, node: usize) -> Option<Arc<Call>> {
        let session = &self.nodes.list[node].session;
        let granted = state.granted;
        let share = &mut state.shares[node];
        share.hold.end();
        session.watchdog.disarm(&share.hold);
        for attempt in share.doubtful.drain(..) {
            session
                .connection
                .submit(&Call::deferred(attempt.release(true)));
        }
        let mut release = match std::mem::replace(&mut share.stage, Stage::Fresh) {
            Stage::Fresh => return None,
            Stage::Asked { .. } => share.hold.release(true),
            // That an attempt which has failed was released concerns nobody.
            Stage::Kept => share.hold.release(!granted),
        };
        // A node that has forgotten it is no news: the majority is what counts.
        release.info.undo = true;
        let call = Call::deferred(release);
        session.connection.submit(&call);
        Some(call)
    }

    /// Waits until a majority has confirmed the release, and for the others as long as they may show that the lock was not
    /// held all the time; why it was not, if so.
    pub(super) fn wait_for_release(
        &self,
        until: Instant,
        in_time: bool,
    ) -> std::result::Result<Option<LossReason>, Short> {
        let nodes = &*self.nodes;
        let state = self.state.lock();
        let releases = state.releases.iter();
        let kept = releases.clone().map(|its| its.kept);
        let mut answers = Answers {
            calls: releases.clone().map(|its| its.call.clone()).collect(),
            tally: ReleaseTally::new(nodes.majority, kept, Instant::now()),
            failures: Vec::new(),
            reason: LossReason::Forced,
            in_time,
        };
        let node_timeout = node_timeout(state.shares[0].hold.lease());
        drop(state);
        let mut visits = Visits::new(nodes, 0);
        let mut majority_at = None;
        loop {
            let visit = visits.visit_all(&mut answers, until, &|| false);
            if visit == Visit::Enough {
                return Ok(Some(answers.lost()));
            }
            let now = Instant::now();
            let outcome = answers.outcome(nodes);
            if outcome == Tally::Won {
                let waits_until = *majority_at.get_or_insert(now) + node_timeout;
                if !answers.tally.is_open() || now >= waits_until.min(until) {
                    return Ok(None);
                }
            }
            if outcome == Tally::Lost {
                return Ok(Some(answers.lost()));
            }
            if answers.pending().next().is_none() || now >= until {
                if outcome == Tally::Won {
                    return Ok(None);
                }
                return Err(answers.too_few(nodes));
            }
            if visit == Visit::Nothing {
                // A visit to a release that waits for a connection comes back at once.
                Visits::rest();
            }
        }
    }
}

/// What the nodes have answered to the release of one hold.
struct Answers {
    /// By node: what was sent, until it is answered.
    calls: Vec<Option<Arc<Call>>>,
    tally: ReleaseTally,
    failures: Vec<(usize, Fault)>,
    reason: LossReason,
    /// The hold was certain when it was released.
    in_time: bool,
}

impl Gather for Answers {
    fn pending(&self, node: usize) -> Option<Arc<Call>> {
        self.calls[node].clone()
    }

    fn visited(
        &mut self,
        node: usize,
        call: &Arc<Call>,
        outcome: std::result::Result<(Value, Instant), WaitFault>,
    ) -> Visit {
        let value = match outcome {
            Ok((value, _)) => value,
            Err(WaitFault::Closed) => return self.failed(node, Fault::Closed),
            Err(WaitFault::Broken(err)) if matches!(call.outcome(), Some(Err(_))) => {
                return self.failed(node, Fault::Refused(err));
            }
            // It waits for a connection.
            Err(WaitFault::Broken(_)) => return Visit::Nothing,
            Err(WaitFault::TimedOut | WaitFault::Stopped) => return Visit::Nothing,
        };
        let replayed = call.state.lock().sendings > 1;
        let had_it = match script::released(&value) {
            Ok(Released::Yes { .. }) => true,
            // An earlier sending has done it.
            Ok(_) if replayed && self.in_time => true,
            Ok(Released::Taken) => {
                self.reason = LossReason::TakenOver;
                false
            }
            Ok(Released::Gone) => false,
            Err(unexpected) => {
                let err = RedisError::from(std::io::Error::other(unexpected));
                return self.failed(node, Fault::Refused(err));
            }
        };
        self.calls[node] = None;
        if self.tally.answered(node, had_it) {
            Visit::News
        } else {
            Visit::Enough
        }
    }
}

impl Answers {
    fn failed(&mut self, node: usize, fault: Fault) -> Visit {
        self.calls[node] = None;
        self.failures.push((node, fault));
        Visit::News
    }

    fn pending(&self) -> impl Iterator<Item = usize> {
        let calls = self.calls.iter().enumerate();
        calls.filter_map(|(node, call)| call.as_ref().map(|_| node))
    }

    /// A node that has failed may have had it.
    fn outcome(&self, nodes: &Nodes) -> Tally {
        let (yes, n) = (self.tally.yes(), nodes.list.len());
        let no = n - yes - self.failures.len() - self.pending().count();
        nodes.majority.tally(yes, no)
    }

    fn lost(&self) -> LossReason {
        if self.in_time {
            self.reason
        } else {
            LossReason::Expired
        }
    }

    fn too_few(mut self, nodes: &Nodes) -> Short {
        let silent: Vec<_> = self.pending().collect();
        let silent = silent
            .into_iter()
            .map(|node| (node, nodes.unanswered(node)));
        self.failures.extend(silent);
        Short {
            majority: nodes.majority,
            servers: nodes.addresses(),
            agreed: self.tally.yes(),
            failures: self.failures,
        }
    }
}
