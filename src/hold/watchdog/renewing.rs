//! Sending renewals. Each master has a connection, and all masters are asked at the same time. Where possible, one request
//! renews several locks.
//!
//! An unreachable or slow master delays only the renewals of its own holds. These renewals go to the new master once there
//! is one.
//!
//! A client that can acquire one lock can renew the others: if the connection for renewals cannot be made (too many
//! clients, a new password, no file descriptor), renewals use the connection for commands.
//!
//! ```text
//!    queued ──sent──► under way ──answered──► armed, or lost
//!      ▲                 │ ▲
//!      │                 ▼ │ unanswered, looked at again
//!      │               behind
//!      │                 │ its connection is lost, or was silent for too long
//!      └──── pause ◄─────┘
//! ```
//!
//! A connection for renewals counts as silent for too long if a reply is due, and none was completed for a quarter of the
//! lease, or for half the command timeout if that is shorter.
//!
//! The thread waits for the answers to a batch only for a while. A request without an answer by then is *behind*. Queued
//! renewals for a master pause while a request to it is behind, or while both its connections (for renewals and for
//! commands) are down.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::{SLICE, Watchdog, WatchdogThread};
use crate::hold::renewal::{Next, Renewable};
use crate::net::call::Call;
use crate::net::nodes::Nodes;
use crate::net::request::Request;
use crate::net::slot::slot_of;
use crate::protocol::script;
use crate::report::report;
use crate::time;
use crate::verdict::{Reach, RequestKind, Verdict, reach};

/// The most renewals, and about the most bytes, that are sent before their replies are read.
const BATCH: (usize, usize) = (256, 48 * 1024);

/// The most renewals that one script does. The server does nothing else in that time, some 0.3 ms.
const TOGETHER: usize = 100;

/// A hold, and the lease that a request carries for it.
type AskedFor = (Renewable, Duration);

/// The requests that were sent, in their order.
pub(super) type UnderWay = VecDeque<SentRenewal>;

/// A request that renews one hold, or several. When this value is dropped, the holds still in it (their answer was not
/// handled) are due again at once.
pub(super) struct SentRenewal {
    watchdog: Arc<Watchdog>,
    call: Arc<Call>,
    holds: Vec<AskedFor>,
    /// When its batch was begun.
    begun: Instant,
    /// The request was sent over one of these connections.
    over: Arc<Nodes>,
}

impl Drop for SentRenewal {
    fn drop(&mut self) {
        for (hold, _) in self.holds.drain(..) {
            self.watchdog.arm(hold, time::nanos(Instant::now()));
        }
    }
}

impl WatchdogThread {
    /// Sends the queued renewals in batches, and waits a short time ([`SLACK`](super::SLACK)) for the answers to each
    /// batch, so a slow master delays the others only by that.
    ///
    /// The number of batches is fixed at the start, so a renewal that is queued later waits for the next call. Otherwise
    /// a stream of new renewals would keep the thread from its other work.
    pub(super) fn renew(&mut self) {
        // Answers to an earlier batch may have arrived since, and decide whether their masters take more requests now.
        if !self.under_way.is_empty() {
            let now = Instant::now();
            self.settle_all(now, now);
        }
        self.away.clear();
        for _ in 0..self.task.watchdog.queued().div_ceil(BATCH.0) {
            if !self.dispatch(Duration::ZERO) {
                return;
            }
            let begun = Instant::now();
            for (requests, holds) in self.batch() {
                self.send(requests, holds, begun);
            }
            let patience = self.task.little().max(SLICE);
            self.settle_all(begun, Instant::now() + patience);
        }
    }

    /// Takes a batch of the queued renewals.
    fn batch(&self) -> Vec<(Vec<Request>, Vec<AskedFor>)> {
        let mut groups: Vec<(Vec<Request>, Vec<AskedFor>)> = Vec::new();
        let (mut count, mut size) = (0, 0);
        while count < BATCH.0 && size < BATCH.1 {
            let Some(hold) = self.task.watchdog.state.lock().schedule.take_renewal() else {
                break;
            };
            // The entry stays armed for its end, so a loss is reported even if the answer never comes.
            let (request, ttl) = hold.request();
            (count, size) = (count + 1, size + request.joined_len());
            match groups.last_mut() {
                Some((requests, holds))
                    if requests.len() < TOGETHER && self.can_join(&requests[0], &request) =>
                {
                    requests.push(request);
                    holds.push((hold, ttl));
                }
                _ => groups.push((vec![request], vec![(hold, ttl)])),
            }
        }
        groups
    }

    /// Whether one request can renew both. A node of a cluster takes only keys of one slot in a request.
    fn can_join(&self, request: &Request, other: &Request) -> bool {
        let slot = |request: &Request| request.first_key().map(slot_of);
        request.can_join(other, &script::LOCK_RENEW)
            && (self.task.nodes.are_one() || slot(request) == slot(other))
    }

    /// Sends one request that renews all of `holds`.
    fn send(&mut self, requests: Vec<Request>, holds: Vec<AskedFor>, begun: Instant) {
        self.submit(SentRenewal {
            watchdog: Arc::clone(&self.task.watchdog),
            call: Call::question(Request::together(requests)),
            holds,
            begun,
            over: Arc::clone(&self.task.nodes),
        });
    }

    /// Postpones a request if its master has not answered an earlier batch. Otherwise it is queued on the connection for
    /// renewals or, if that cannot be made quickly, on the connection for commands.
    fn submit(&mut self, mut sent: SentRenewal) {
        let task = Arc::clone(&self.task);
        let master = task.nodes.destination(&sent.call);
        let is_behind =
            |other: &SentRenewal| Some(other.call.node()) == master && other.begun < sent.begun;
        // The master is slow. More requests would only wait behind the earlier ones. If the connection is then given up,
        // all of them would have to be sent again.
        if self.under_way.iter().any(is_behind) {
            return self.postpone(sent);
        }
        let queue = |sent: &SentRenewal| sent.over.submit(&sent.call).is_some();
        sent.over = Arc::clone(&task.nodes);
        let mut is_queued = queue(&sent);
        if !is_queued && !self.away.contains(&master) {
            let until = Instant::now() + SLICE;
            // A master without a connection goes into `away`, so the next requests of this round do not wait for it.
            is_queued = sent.over.up(&sent.call, until, &|| false).is_ok() && queue(&sent);
            if !is_queued {
                self.away.push(master);
            }
        }
        if !is_queued {
            sent.over = Arc::clone(&task.commands);
            is_queued = queue(&sent);
        }
        match is_queued {
            true => self.under_way.push_back(sent),
            false => self.postpone(sent),
        }
    }

    /// Waits until `until` for the answers to the requests sent since `begun`. A request without an answer is behind:
    /// it is looked at again with the next batch, but not waited for.
    fn settle_all(&mut self, begun: Instant, until: Instant) {
        loop {
            for sent in &self.under_way {
                sent.over.at(&sent.call).flush(true);
            }
            self.read(begun, until);
            for _ in 0..self.under_way.len() {
                if let Some(sent) = self.under_way.pop_front() {
                    self.settle(sent);
                }
            }
            // While this thread waits for answers, a lease may end.
            let goes_on = self.dispatch(Duration::ZERO);
            let is_left = self.under_way.iter().any(|sent| sent.begun >= begun);
            if !is_left || !goes_on || Instant::now() >= until {
                break;
            }
        }
        // Perhaps nothing else wakes the thread before these answers arrive, so it looks for them with the housekeeping.
        if !self.under_way.is_empty() {
            self.task.watchdog.housekeep_soon();
        }
    }

    /// Reads the answers that have arrived. For answers to requests sent since `begun`, waits up to [`SLICE`] at each
    /// connection in turn, but not past `until`.
    fn read(&self, begun: Instant, until: Instant) {
        // Waiting for the last request of each node reads the answers to the earlier ones as well.
        let mut nodes = Vec::new();
        for sent in self.under_way.iter().rev() {
            let connection = sent.over.at(&sent.call);
            if !nodes.iter().any(|node| Arc::ptr_eq(node, connection)) {
                nodes.push(Arc::clone(connection));
                let now = Instant::now();
                let slice = match sent.begun >= begun {
                    true => until.min(now + SLICE),
                    false => now,
                };
                connection.wait_a_slice(&sent.call, slice);
            }
        }
    }

    /// Handles the answer, if there is one.
    fn settle(&mut self, sent: SentRenewal) {
        match sent.call.outcome() {
            // The request went over the connection for commands and has no answer yet, and the connection for renewals is up
            // again. Dropping `sent` makes the holds due again: see `SentRenewal`. A late answer is not needed.
            None if Arc::ptr_eq(&sent.over, &self.task.commands)
                && sent.begun + 2 * SLICE < Instant::now()
                && self.task.nodes.at(&sent.call).generation().is_some() => {}
            None => self.under_way.push_back(sent),
            Some(Err(err)) => {
                report!(Debug, "renewing {} locks failed: {err}", sent.holds.len());
                // The outcome is unknown, but repeating a renewal is harmless: a renewal sets the time to live and adds
                // nothing.
                sent.over.map.doubt();
                self.postpone(sent);
            }
            Some(Ok(answer)) => self.judge(sent, answer.value, answer.sent_at),
        }
    }

    /// The server has answered a request.
    fn judge(&mut self, mut sent: SentRenewal, reply: Value, sent_at: Instant) {
        // Several replies in one: each hold reads its own, which may be an error.
        if matches!(reply, Value::Array(_)) {
            return self.answered(sent, reply, sent_at);
        }
        let from = sent.over.at(&sent.call);
        let generation = from.generation().unwrap_or_default();
        let over = &sent.over;
        let err = match over.verdict(reply, &sent.call, RequestKind::Kept, from, generation) {
            Verdict::Answer(value) => return self.answered(sent, value, sent_at),
            // `verdict` has prepared the call for its next sending.
            Verdict::SendText | Verdict::Elsewhere(_) => return self.submit(sent),
            // A node from which a slot is moving away rejects a request for several keys if it no longer has all of
            // them, but serves each key that it still has. After that error each hold is renewed by a request of its
            // own, below. After any other temporary error all holds are retried together.
            Verdict::Later(err) if sent.holds.len() > 1 && reach(&err) != Reach::Keys => {
                report!(Debug, "renewing {} locks failed: {err}", sent.holds.len());
                return self.postpone(sent);
            }
            Verdict::Later(err) | Verdict::Never(err) => err,
        };
        if sent.holds.len() > 1 {
            return self.one_by_one(sent, &err);
        }
        for (hold, ttl) in sent.holds.drain(..) {
            let next = hold.answered(Err(err.clone()), sent_at, ttl);
            self.done(hold, next);
        }
    }

    /// Renews each hold by a separate request, so that an error about one hold, such as a missing permission for its key,
    /// does not fail the others.
    fn one_by_one(&mut self, mut sent: SentRenewal, why: &dyn std::fmt::Debug) {
        report!(
            Debug,
            "renewing several locks in one request failed: {why:?}; renewing each alone"
        );
        for (hold, _) in sent.holds.drain(..) {
            let (request, ttl) = hold.request();
            self.send(vec![request], vec![(hold, ttl)], sent.begun);
        }
    }

    /// Hands each hold its part of the reply.
    fn answered(&mut self, mut sent: SentRenewal, value: Value, sent_at: Instant) {
        let replies = match value {
            value if sent.holds.len() == 1 => vec![value],
            Value::Array(replies) if replies.len() == sent.holds.len() => replies,
            // The number of replies is wrong, so they cannot be matched with the holds.
            odd => return self.one_by_one(sent, &odd),
        };
        sent.holds.reverse();
        for reply in replies {
            if let Some((hold, ttl)) = sent.holds.pop() {
                let next = hold.answered(reply.extract_error(), sent_at, ttl);
                self.done(hold, next);
            }
        }
    }

    fn done(&self, hold: Renewable, next: Next) {
        match next {
            Next::Renewed(due) => {
                self.task.counters.renewals.add(1);
                self.task.watchdog.arm(hold, due);
            }
            Next::DueAgain(due) => self.task.watchdog.arm(hold, due),
            Next::Lost(reason) => self.task.lose(&hold, reason),
            Next::Refused(err) => {
                report!(Debug, "renewing `{}` failed: {err}", hold.name());
                self.rest(hold);
            }
        }
    }

    /// Renews these holds again after a pause.
    fn postpone(&self, mut sent: SentRenewal) {
        for (hold, _) in sent.holds.drain(..) {
            self.rest(hold);
        }
        self.task.watchdog.housekeep_soon();
    }

    fn rest(&self, hold: Renewable) {
        if let Some((hold, valid_for)) = hold.record_failed(Instant::now()) {
            self.task.client.renewal_failed(hold, valid_for);
        }
        let again = time::nanos(Instant::now() + self.task.little());
        self.task.watchdog.arm(hold, again);
    }
}
