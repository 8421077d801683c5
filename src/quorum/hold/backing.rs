//! What a guard asks of several masters that keep its hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::{LossReason, Result};
use crate::hold::{Backing, Hold, NotRenewed};
use crate::local::lock::{LeasePolicy, Mode};
use crate::net::call::{Attempt, Call, Fault};
use crate::protocol::script::Renewed;
use crate::quorum::failure::Failure;
use crate::quorum::hold::{QuorumHold, Verdict};
use crate::quorum::round::{NodeReply, RoundRequest};
use crate::quorum::tally::{Goal, Tally};
use crate::time::Unanswered as _;

impl QuorumHold {
    /// Locks again with a fixed lease: asks all nodes, and needs a majority.
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
        let shares: Vec<_> = state
            .shares
            .iter()
            .map(|share| Arc::clone(&share.hold))
            .collect();
        drop(state);
        for share in &shares {
            share.may_last(ttl);
        }
        let mut renew = |node: usize| Attempt {
            request: nodes.list[node].entry.protocol.renew(
                Mode::Exclusive,
                &shares[node].owner,
                ttl,
                count,
            ),
            undo: None,
        };
        let kept = |value: &Value| matches!(value, Value::Int(1));
        let not_ours = |value: &Value| matches!(value, Value::Int(0 | -1));
        let round = nodes.round_twice(&mut RoundRequest {
            goal: Goal::Majority,
            lease: ttl,
            until,
            stop,
            make: &mut renew,
            counts: &kept,
        });
        let mut state = self.state.lock();
        self.look(&mut state);
        if state.let_go {
            return Ok((Renewed::Gone, sent_at));
        }
        let mut agreed = 0;
        let mut verdict = Verdict::Held;
        for (node, reply) in round.replies.iter().enumerate() {
            let NodeReply::Came(answer) = reply else {
                continue;
            };
            // A node not known to keep it may still receive an undo that was sent before.
            if !state.shares[node].is_kept_as(&shares[node]) {
                continue;
            }
            if kept(&answer.value) {
                agreed += 1;
                shares[node].extend(answer.sent_at, ttl);
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
            for share in &state.shares {
                share.hold.change_lease(lease, ttl);
            }
            // Under the mutex, since what is learned next may make it shorter again.
            if let Some(hold) = self.get_hold() {
                hold.change_lease(lease, ttl);
                hold.extend(sent_at, ttl);
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
}

impl Backing for QuorumHold {
    fn release(&self, _hold: &Hold, _undo: bool, _now: Instant) -> Arc<Call> {
        self.let_go(false).0
    }

    fn deliver(&self, _release: &Call) {
        self.nodes.deliver();
    }

    fn give_back(&self, _hold: &Hold) {
        drop(self.let_go(false));
        self.nodes.flush();
        self.nodes.housekeep_soon();
    }

    fn housekeep_soon(&self) {
        self.nodes.housekeep_soon();
    }

    fn released(
        &self,
        hold: &Hold,
        _release: &Arc<Call>,
        in_time: bool,
        until: Instant,
    ) -> Result<Option<LossReason>> {
        let released = self.wait_for_release(until, in_time);
        released.map_err(|short| short.into_error(hold.entry().name()))
    }

    fn renew(
        &self,
        hold: &Hold,
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
                let error = failure.into_error("renewing the lock", hold.entry().name());
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
