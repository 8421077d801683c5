//! What the watchdogs do for a hold that a majority keeps: each renews its node's share, or asks for it again if the node
//! has lost it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::LossReason;
use crate::hold::Renewable as _;
use crate::net::call::Call;
use crate::protocol::script::Renewed;
use crate::quorum::hold::node_hold::{Keeper, NodeHold};
use crate::quorum::hold::{QuorumHold, Share, Stage, State, heal_after};
use crate::quorum::keeping;
use crate::quorum::nodes::pause;
use crate::report::report;

/// Up to so many shares are each attended to after a [`pause`] where that is urgent. With more of them the pauses are
/// longer, so that the rate of requests is bounded.
const AT_ONCE: usize = 64;

/// If a connection has owed a reply for longer than this, the reply to an acquire is not waited for.
const PROMPT: Duration = Duration::from_millis(50);

impl QuorumHold {
    /// Puts every node's share on the schedule of its watchdog.
    pub(super) fn arm(&self, state: &State) {
        let now = Instant::now();
        for (node, at) in self.nodes.list.iter().enumerate() {
            let share = &state.shares[node];
            if !share.left_out {
                at.session
                    .watchdog
                    .arm(&share.hold, self.due(state, node, now));
            }
        }
    }

    /// When the watchdog has to attend to a node.
    pub(super) fn due(&self, state: &State, node: usize, now: Instant) -> Instant {
        let (share, watchdog) = (&state.shares[node], &self.nodes.list[node].session.watchdog);
        let (lease, renewed) = (share.hold.lease(), share.is_renewed());
        let bare = state.bare.is_some();
        let soon = || {
            let crowd = u32::try_from(watchdog.node_holds() / AT_ONCE).unwrap_or(u32::MAX);
            now + pause()
                .saturating_mul(crowd.saturating_add(1))
                .min(lease / 3)
        };
        match share.stage {
            Stage::Kept if bare || state.is_unconfirmed(node) => soon(),
            Stage::Kept if renewed => share.kept.confirmed_at().unwrap_or(now) + lease / 3,
            Stage::Asked { since, .. } if bare || now < since + 10 * PROMPT => soon(),
            Stage::Fresh if bare && renewed && !share.rests => soon(),
            _ if renewed => now + heal_after(lease),
            // A fixed lease: scheduled only so that closing its client finds it.
            _ => now + lease,
        }
    }

    /// Reads the replies to acquires, which otherwise may stay unread for a while.
    fn read_answers(&self) {
        let asked = |(node, share): (usize, &Share)| match &share.stage {
            Stage::Asked { call, .. } if call.outcome().is_none() => Some((node, Arc::clone(call))),
            _ => None,
        };
        let state = self.state.lock();
        let calls: Vec<_> = state.shares.iter().enumerate().filter_map(asked).collect();
        drop(state);
        for (node, call) in calls {
            let connection = &self.nodes.list[node].session.connection;
            if connection.responds(PROMPT) {
                connection.wait(&call, Instant::now(), &|| false).ok();
            }
        }
    }

    /// Asks a node for its share. Sent over the client's connection, after the undos of acquires of unknown outcome, and so
    /// that any release comes after it.
    fn heal(&self, state: &mut State, node: usize, now: Instant) {
        let connection = &self.nodes.list[node].session.connection;
        let share = &mut state.shares[node];
        if state.let_go
            || share.left_out
            || !matches!(share.stage, Stage::Fresh)
            || !share.is_renewed()
        {
            return;
        }
        if !connection.responds(Duration::MAX) {
            return connection.want();
        }
        for attempt in &share.doubtful {
            connection.submit(&Call::deferred(attempt.release(true)));
        }
        let call = Call::unattended(self.ask_for(node, &share.hold));
        if share.by_text {
            call.by_text_from_now();
        }
        if connection.submit(&call).is_some() {
            share.stage = Stage::Asked { call, since: now };
        }
    }
}

impl Keeper for QuorumHold {
    fn is_held(&self) -> bool {
        self.get_hold().is_some_and(|hold| hold.is_held())
    }

    fn count(&self) -> u32 {
        let hold = self.get_hold();
        hold.map_or(1, |hold| hold.count.load(Ordering::Relaxed))
    }

    fn renewal_has_failed(&self) {
        if let Some(hold) = self.get_hold() {
            hold.could_not_be_renewed();
        }
    }

    /// Asks the node for its share if it does not keep it.
    fn attend(&self, node: usize, node_hold: &Arc<NodeHold>) -> bool {
        let session = &self.nodes.list[node].session;
        self.read_answers();
        let mut state = self.state.lock();
        let now = Instant::now();
        self.look(&mut state);
        self.heal(&mut state, node, now);
        let verdict = self.judge(&mut state, LossReason::Forced);
        let share = &state.shares[node];
        let renews = share.is_kept()
            && Arc::ptr_eq(&share.hold, node_hold)
            && !state.let_go
            && (state.bare.is_some()
                || state.is_unconfirmed(node)
                || share.is_renewed()
                    && share
                        .kept
                        .confirmed_at()
                        .is_none_or(|at| now >= at + share.hold.lease() / 6));
        let asks = matches!(share.stage, Stage::Asked { .. });
        if !renews && !state.let_go && !share.left_out {
            let due = self.due(&state, node, now);
            session.watchdog.arm(&share.hold, due);
        }
        drop(state);
        if asks {
            session.connection.flush(false);
            session.watchdog.housekeep_soon();
        }
        self.act(verdict);
        renews
    }

    fn settle(&self, node: usize, node_hold: &Arc<NodeHold>, renewed: Renewed, at: Instant) {
        let session = &self.nodes.list[node].session;
        let (n, name) = (self.nodes.list.len(), node_hold.entry().name());
        let mut state = self.state.lock();
        self.look(&mut state);
        let share = &state.shares[node];
        if state.let_go || !share.is_kept_as(node_hold) {
            // It says nothing about the owner id that is used now.
            return;
        }
        let now = Instant::now();
        let was_certain = share.kept.is_certain(now);
        let verdict = match renewed {
            Renewed::Yes => {
                if share.is_renewed() {
                    session.counters.renewals.add(1);
                    node_hold.was_renewed(at);
                }
                self.is_kept(&mut state, node, at);
                let verdict = self.judge(&mut state, LossReason::Forced);
                session.watchdog.arm(node_hold, self.due(&state, node, now));
                verdict
            }
            Renewed::Gone => self.is_missing(&mut state, node, LossReason::Forced, now),
            Renewed::Taken => self.is_missing(&mut state, node, LossReason::TakenOver, now),
        };
        if renewed != Renewed::Yes {
            // Asked for again at once.
            session.watchdog.arm(&state.shares[node].hold, now);
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

    fn node_closes(&self, node: usize) {
        let mut state = self.state.lock();
        let Some(hold) = self.get_hold().filter(|_| !state.let_go) else {
            return;
        };
        self.look(&mut state);
        let share = &mut state.shares[node];
        share.left_out = true;
        share.kept.miss(Instant::now());
        // First checks whether the others are still a majority.
        let until = keeping::certain_until(self.nodes.majority, state.kept(), Instant::now());
        if until.is_some_and(|until| self.count_on(&hold, until)) {
            self.release_share(&mut state, node, true);
        } else {
            drop(state);
            self.home().lose(&hold, LossReason::Closed);
            self.home().give_back(&hold);
        }
    }
}
