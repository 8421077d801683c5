//! Renewing in a cluster: over a connection to each master, those of one batch at the same time.
//!
//! A node that is away delays the renewals of its own holds, not those of others. They are sent to the new master once
//! there is one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisError;

use super::{BACK_OFF, BATCH, SLICE, Settled, WatchdogThread, settle};
use crate::error::is_redirection;
use crate::hold::Renewable;
use crate::net::call::{Answer, Call};
use crate::net::cluster::Cluster;
use crate::net::route::{self, Next, Route};
use crate::report::report;

/// How long the holds of other nodes wait while a connection to one is made; it is gone on with the next time.
const CONNECTING: Duration = Duration::from_millis(50);

/// The pause after a renewal that nobody has answered; a tenth of the lease if that is shorter.
const PAUSE: Duration = Duration::from_millis(100);

/// How long no connection is made, and nothing sent, to a node that was away: otherwise the holds there, which end first and
/// so come first, would take the time in which those of other nodes are renewed.
const AWAY: Duration = Duration::from_millis(250);

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

impl WatchdogThread {
    /// Sends a batch of the queued renewals, each to the master of its key, and waits for the answers.
    pub(super) fn renew_in_cluster(&mut self, cluster: &Cluster) {
        let task = Arc::clone(&self.task);
        while self.sent.len() < BATCH.0
            && let Some(hold) = task.watchdog.take_renewal()
        {
            self.sent.push_back(hold);
        }
        let mut pending = Vec::with_capacity(self.sent.len());
        for hold in self.sent.clone() {
            let call = Call::question(hold.request());
            if self.submit(cluster, &call) {
                pending.push((call, hold));
            } else {
                self.postpone(&hold, BACK_OFF.1);
            }
        }
        cluster.flush(true);
        let given_up_at = Instant::now() + (task.lease / 4).min(task.response_timeout);
        for _ in 0..REDIRECTIONS {
            pending = self.answers(cluster, pending, given_up_at);
            pending.retain(|(call, hold)| {
                let goes_on = self.submit(cluster, call);
                if !goes_on {
                    self.postpone(hold, BACK_OFF.1);
                }
                goes_on
            });
            if pending.is_empty() {
                return;
            }
            cluster.flush(true);
        }
        for (_, hold) in pending {
            self.postpone(&hold, PAUSE);
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
        mut pending: Vec<(Arc<Call>, Arc<dyn Renewable>)>,
        given_up_at: Instant,
    ) -> Vec<(Arc<Call>, Arc<dyn Renewable>)> {
        let mut elsewhere = Vec::new();
        loop {
            // The last of each node: whoever waits for that reads the answers to the others.
            let mut nodes = Vec::new();
            for (call, _) in pending.iter().rev() {
                let node = call.node();
                if !nodes.contains(&node) {
                    nodes.push(node);
                    let until = given_up_at.min(Instant::now() + SLICE);
                    // What came of it, each call knows itself.
                    route::wait(cluster, call, until, &|| false).ok();
                }
            }
            let mut unanswered = Vec::new();
            for (call, hold) in pending {
                match call.outcome() {
                    None => unanswered.push((call, hold)),
                    Some(outcome) => {
                        if self.answered(cluster, &call, &hold, outcome) {
                            elsewhere.push((call, hold));
                        }
                    }
                }
            }
            pending = unanswered;
            if pending.is_empty() {
                return elsewhere;
            }
            if !self.dispatcher.dispatch(Duration::ZERO) || Instant::now() >= given_up_at {
                for (call, hold) in pending {
                    self.absent.add(Some(call.node()), Instant::now());
                    self.postpone(&hold, BACK_OFF.1);
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
        if let Err(err) = value.clone().extract_error()
            && is_redirection(&err)
        {
            let from = cluster.at(call);
            let generation = from.generation().unwrap_or_default();
            return cluster.refused(&from, generation, call, &err) == Next::Elsewhere;
        }
        let settled = settle(&self.task, hold, value, sent_at);
        self.is_settled(hold);
        match settled {
            Settled::Done => {}
            // The next renewal is another call, whose connection has learnt by then that the script is not known.
            Settled::Unknown => self.task.watchdog.put(Arc::clone(hold), Instant::now()),
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
