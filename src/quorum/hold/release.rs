//! The release of a hold that a majority keeps.
//!
//! Each node is sent a release if it keeps its share, and an undo if an acquire may still be executed. Confirmations of a
//! majority are enough, unless the replies still missing could show that a majority was without the hold at some time.

use std::sync::Arc;
use std::time::Instant;

use redis::{RedisError, Value};

use crate::error::LossReason;
use crate::net::call::{Call, Fault};
use crate::net::connection::WaitFault;
use crate::protocol::script::{self, Released};
use crate::quorum::ask::GivenBack;
use crate::quorum::failure::Short;
use crate::quorum::hold::{QuorumHold, Releasing, Share, Stage, State};
use crate::quorum::keeping::ReleaseTally;
use crate::quorum::nodes::{Gather, Nodes, Visit, Visits, node_timeout};
use crate::quorum::tally::Tally;

impl QuorumHold {
    /// Ends all shares and queues their releases, which have to be flushed. `comes_again`: it was not granted, and whoever
    /// has asked for it asks again shortly.
    pub(crate) fn let_go(&self, comes_again: bool) -> (Arc<Call>, GivenBack) {
        let mut state = self.state.lock();
        let mut given_back = GivenBack::Nothing;
        if !std::mem::replace(&mut state.let_go, true) {
            self.look(&mut state);
            let kept = state.shares.iter().filter(|share| share.may_be_kept());
            let was_held = state.granted || self.nodes.majority.has(kept.count());
            // Somebody else may have seen that a majority of nodes was taken, by this attempt and perhaps by others, and wait
            // for the announcement. Whoever comes again takes the lock, or loses it to somebody who announces its release.
            let announces = was_held || !comes_again;
            if state.shares.iter().any(Share::may_be_kept) {
                given_back = match announces {
                    true => GivenBack::Announced,
                    false => GivenBack::Silently,
                };
            }
            let releases = (0..state.shares.len()).map(|node| Releasing {
                kept: state.shares[node].kept,
                call: self.release_share(&mut state, node, announces),
            });
            let releases = releases.collect();
            state.releases = releases;
            if was_held {
                let calls = state.releases.iter();
                self.nodes
                    .was_released(calls.filter_map(|its| its.call.clone()));
            }
        }
        let release = state.releases.iter().find_map(|its| its.call.clone());
        // If there is nothing to release, a call that was never sent.
        let release = release.unwrap_or_else(|| Call::deferred(state.shares[0].hold.release(true)));
        (release, given_back)
    }

    /// Ends the share of one node and queues the release of everything that may be there.
    pub(super) fn release_share(
        &self,
        state: &mut State,
        node: usize,
        announces: bool,
    ) -> Option<Arc<Call>> {
        let session = &self.nodes.list[node].session;
        let share = &mut state.shares[node];
        share.hold.end();
        session.watchdog.disarm(&share.hold);
        for attempt in share.doubtful.drain(..) {
            session
                .connection
                .submit(&Call::deferred(attempt.undoing(announces)));
        }
        let mut release = match std::mem::replace(&mut share.stage, Stage::Fresh) {
            Stage::Fresh => return None,
            Stage::Asked { .. } | Stage::Kept => share.hold.release(!announces),
        };
        // It is normal that a node has lost it: the majority counts.
        release.info.undo = true;
        let call = Call::deferred(release);
        session.connection.submit(&call);
        Some(call)
    }

    /// Waits until a majority has confirmed the release, and for other replies as long as they could show that the lock was
    /// not held all the time. Returns why it was lost, if so.
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
            let began = Instant::now();
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
                // Releases that wait for a connection do not block.
                Visits::rest_since(began);
            }
        }
    }
}

/// The replies of the nodes to the release of one hold.
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
    fn pending(&self, node: usize) -> Option<(Arc<Call>, Option<Instant>)> {
        Some((self.calls[node].clone()?, None))
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
            // It was sent twice, and the first time has released it.
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

    /// A node that failed counts as unknown: it may have had it.
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
