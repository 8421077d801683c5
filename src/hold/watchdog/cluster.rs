//! Renewing in a cluster: over a connection to each master, those of one batch at the same time.
//!
//! A node that is away, or slow, delays the renewals of its own holds, not those of others. They are sent to the new
//! master once there is one.
//!
//! ```text
//!    queued ──sent──► under way ──answered──► armed
//!      ▲                 │   ▲
//!      │                 ▼   │ asked for time and again
//!      │                behind ──no answer for a quarter of the lease──► its node is away
//!      └── after a pause, while others of its node are behind, or the node is away
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisError;

use super::batch::BATCH;
use super::{BACK_OFF, SLICE, Settled, WatchdogThread, settle};
use crate::error::is_redirection;
use crate::hold::Renewable;
use crate::net::call::{Answer, Call};
use crate::net::cluster::Cluster;
use crate::net::route::{self, Retry, Route};
use crate::report::report;

/// How long the holds of other nodes wait while a connection to one is made; it is gone on with the next time.
const CONNECTING: Duration = Duration::from_millis(50);

/// The pause after a renewal that nobody has answered; a tenth of the lease if that is shorter.
const PAUSE: Duration = Duration::from_millis(100);

/// How long no connection is made, and nothing sent, to a node that was away: otherwise the holds there, which end first and
/// so come first, would take the time in which those of other nodes are renewed.
const AWAY: Duration = Duration::from_millis(250);

/// The part of the lease for which the holds of other nodes wait for the answers of one.
const ANSWERS_WITHIN: u32 = 60;

/// How often a renewal follows where nodes send it before it takes a rest.
const REDIRECTIONS: usize = 4;

/// The nodes that are away, and until when that is assumed. `None` is the master of slots that nobody has.
#[derive(Default)]
pub(super) struct Absent(Vec<(Option<usize>, Instant)>);

impl Absent {
    fn add(&mut self, node: Option<usize>, now: Instant) {
        self.0.retain(|(its, _)| *its != node);
        self.0.push((node, now + AWAY));
    }

    fn has(&mut self, node: Option<usize>, now: Instant) -> bool {
        self.0.retain(|(_, until)| now < *until);
        self.0.iter().any(|(its, _)| *its == node)
    }
}

/// A renewal that is under way.
pub(super) struct UnderWay {
    call: Arc<Call>,
    hold: Arc<dyn Renewable>,
    /// When it counts as failed.
    given_up_at: Instant,
}

impl WatchdogThread {
    /// Sends a batch of the queued renewals, each to the master of its key, and waits for the answers, but not for long
    /// for those of a node that is slow.
    pub(super) fn renew_in_cluster(&mut self, cluster: &Cluster) {
        let task = Arc::clone(&self.task);
        let mut batch = Vec::new();
        while batch.len() < BATCH.0
            && let Some(hold) = task.watchdog.take_renewal()
        {
            self.sent.push_back(Arc::clone(&hold));
            batch.push(hold);
        }
        let given_up_at = Instant::now() + (task.lease / 4).min(task.response_timeout);
        let mut pending = Vec::with_capacity(batch.len());
        for hold in batch {
            let call = Call::question(hold.request());
            let master = cluster.destination(&call);
            if self
                .behind
                .iter()
                .any(|its| Some(its.call.node()) == master)
            {
                self.postpone(&hold, PAUSE);
            } else if self.submit(cluster, &call) {
                pending.push(UnderWay {
                    call,
                    hold,
                    given_up_at,
                });
            } else {
                self.postpone(&hold, BACK_OFF.1);
            }
        }
        cluster.flush(true);
        let until = Instant::now() + task.lease / ANSWERS_WITHIN;
        self.see_through(cluster, pending, until);
    }

    /// Reads the answers of nodes that were slow.
    pub(super) fn catch_up_in(&mut self, cluster: &Cluster) {
        let behind = std::mem::take(&mut self.behind);
        if !behind.is_empty() {
            self.see_through(cluster, behind, Instant::now());
        }
    }

    /// Waits for answers, and sends on what other nodes have to answer. What has no answer by then is behind.
    fn see_through(&mut self, cluster: &Cluster, mut pending: Vec<UnderWay>, until: Instant) {
        for _ in 0..REDIRECTIONS {
            pending = self.answers(cluster, pending, until);
            pending.retain(|its| {
                let goes_on = self.submit(cluster, &its.call);
                if !goes_on {
                    self.postpone(&its.hold, BACK_OFF.1);
                }
                goes_on
            });
            if pending.is_empty() {
                return;
            }
            cluster.flush(true);
        }
        for its in pending {
            self.postpone(&its.hold, PAUSE);
        }
    }

    /// Queues a renewal, if there is a connection to its master, or one can be made.
    fn submit(&mut self, cluster: &Cluster, call: &Arc<Call>) -> bool {
        let master = cluster.destination(call);
        if self.absent.has(master, Instant::now()) {
            return false;
        }
        if cluster.submit(call).is_some() {
            return true;
        }
        let dispatcher = &mut self.dispatcher;
        let made = cluster.up(call, Instant::now() + CONNECTING, &mut || {
            dispatcher.dispatch(Duration::ZERO)
        });
        if let Err(fault) = &made {
            report!(Debug, "connecting for renewals: {fault:?}");
        }
        let goes = made.is_ok() && cluster.submit(call).is_some();
        if !goes {
            self.absent.add(master, Instant::now());
        }
        goes
    }

    /// Waits for the answers, and returns those renewals that have to be sent to another node.
    fn answers(
        &mut self,
        cluster: &Cluster,
        mut pending: Vec<UnderWay>,
        until: Instant,
    ) -> Vec<UnderWay> {
        let mut elsewhere = Vec::new();
        loop {
            // The last of each node: whoever waits for that reads the answers to the others.
            let mut nodes = Vec::new();
            for UnderWay { call, .. } in pending.iter().rev() {
                let node = call.node();
                if !nodes.contains(&node) {
                    nodes.push(node);
                    let slice = until.min(Instant::now() + SLICE);
                    // What came of it, each call knows itself.
                    route::wait(cluster, call, slice, &|| false).ok();
                }
            }
            let mut unanswered = Vec::new();
            for its in pending {
                match its.call.outcome() {
                    None => unanswered.push(its),
                    Some(outcome) => {
                        if self.answered(cluster, &its.call, &its.hold, outcome) {
                            elsewhere.push(its);
                        }
                    }
                }
            }
            pending = unanswered;
            if pending.is_empty() {
                return elsewhere;
            }
            let goes_on = self.dispatcher.dispatch(Duration::ZERO);
            let now = Instant::now();
            if !goes_on || now >= until {
                for its in pending {
                    if goes_on && now < its.given_up_at {
                        self.behind.push(its);
                        self.task.watchdog.housekeep_soon();
                    } else {
                        self.absent.add(Some(its.call.node()), now);
                        self.postpone(&its.hold, BACK_OFF.1);
                    }
                }
                return elsewhere;
            }
        }
    }

    /// Whether a renewal has to be sent to another node; otherwise it is done with.
    fn answered(
        &mut self,
        cluster: &Cluster,
        call: &Call,
        hold: &Arc<dyn Renewable>,
        outcome: Result<Answer, RedisError>,
    ) -> bool {
        let Answer { value, sent_at, .. } = match outcome {
            Ok(answer) => answer,
            Err(err) => {
                report!(Debug, "renewing `{}`: {err}", hold.name());
                cluster.lost(call);
                self.postpone(hold, PAUSE);
                return false;
            }
        };
        let reply = value.extract_error();
        if let Err(err) = &reply
            && is_redirection(err)
        {
            let from = cluster.at(call);
            let generation = from.generation().unwrap_or_default();
            if cluster.refused(&from, generation, call, err) == Retry::Elsewhere {
                return true;
            }
            report!(Debug, "renewing `{}`: {err}", hold.name());
            self.postpone(hold, BACK_OFF.1);
            return false;
        }
        let settled = settle(&self.task, hold, reply, sent_at);
        self.is_settled(hold);
        match settled {
            Settled::Done => {}
            // The next renewal is another call, whose connection has learnt by then that the script is not known.
            Settled::Unknown => self.task.watchdog.put(Arc::clone(hold), Instant::now()),
            Settled::OneByOne => {}
            Settled::Elsewhere(_) => cluster.lost(call),
        }
        false
    }

    /// Has a hold renewed after a pause: nobody has answered.
    fn postpone(&mut self, hold: &Arc<dyn Renewable>, pause: Duration) {
        let task = &self.task;
        hold.could_not_be_renewed();
        let again = Instant::now() + pause.min(task.lease / 10);
        task.watchdog.put(Arc::clone(hold), hold.look_again(again));
        task.watchdog.housekeep_soon();
        self.is_settled(hold);
    }

    /// Its renewal is not under way any more.
    fn is_settled(&mut self, hold: &Arc<dyn Renewable>) {
        self.sent.retain(|its| !Arc::ptr_eq(its, hold));
    }
}
