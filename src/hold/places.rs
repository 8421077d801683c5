//! Places in the queue of a fair lock, and the signs of life that keep them.
//!
//! ```text
//!                granted
//!           ┌───────────────────────────────────────────────┐
//!           │                                               ▼
//!   new ──► asks for a place ──busy──► has a place ─granted─► holds
//!    ▲ ▲        │                        │  │  ▲ │
//!    │ │        │ no answer              │  │  └─┘ busy, or no answer: it asks again with the same number
//!    │ └────────┘ (it is undone)         │  │
//!    └───────────── its place is lost ───┘  └─ gives up: one release undoes the place, and a hold that came too late
//! ```
//!
//! A contender's number identifies both its place and, once granted, its hold. The first request with a number is sent
//! once, since a late copy would make a place again. If it has no answer it is undone, and the next attempt uses a new
//! number. Later requests with the same number may arrive late or twice without harm: if the place is gone, they neither
//! join the queue nor take the lock.
//!
//! The watchdog shows a sign of life for all places of a name together, every third of the `waiter_lease`, for as long
//! as there are any. If the lock is free, that command also removes dead waiters and notifies the next living one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::hold::Entry;
use crate::hold::schedule::Times;
use crate::hold::validity::Duty;
use crate::net::channels::Listener;
use crate::net::request::Request;
use crate::protocol::owner::OwnerNumber;
use crate::report::report;
use crate::time;

/// The places of one client in one queue.
pub(crate) struct Places {
    pub(super) entry: Arc<Entry>,
    pub(super) number: u64,
    pub(super) times: Times,
    pub(super) waiter_lease: Duration,
}

impl Places {
    pub(crate) fn of(entry: &Arc<Entry>, number: OwnerNumber, waiter_lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            entry: Arc::clone(entry),
            number: number.0,
            times: Times::default(),
            waiter_lease,
        })
    }

    /// When the next sign of life is due, in [`time::nanos`], if the last was shown at `shown_at`.
    pub(crate) fn due_after(&self, shown_at: Instant) -> u64 {
        time::nanos(shown_at + self.waiter_lease / 3)
    }

    pub(super) fn attend(&self) -> Duty {
        // If there is no place, `update_keeps_places` clears `keeps_places`, so the thread that adds a place later arms
        // another `Places`.
        match self.entry.lock().update_keeps_places() {
            true => Duty::Renew,
            false => Duty::Nothing,
        }
    }

    /// The request that shows the sign of life.
    pub(super) fn request(&self) -> Request {
        let (state, owners) = (self.entry.lock(), self.entry.owners());
        let tickets = state.places().map(|(_, place)| owners.id(*place));
        let tickets: Vec<_> = tickets.collect();
        // A place that is given up from here on may still get this sign of life. That does no harm: the script never makes
        // a place.
        drop(state);
        let protocol = &self.entry.protocol;
        let refresh = protocol.kind().refresh.expect("Redis keeps the queue");
        refresh(protocol, &tickets)
    }

    /// The reply to a sign of life; returns when the next is due. A thread whose place is lost is woken to ask for
    /// another.
    pub(super) fn record_shown(&self, reply: Value, sent_at: Instant) -> u64 {
        match redis::from_redis_value::<Vec<String>>(reply) {
            Ok(lost) if lost.is_empty() => {}
            Ok(lost) => {
                let (state, owners) = (self.entry.lock(), self.entry.owners());
                // A place that was given up or replaced while the request was on its way is not found here, and its
                // loss does not matter.
                for (waiter, place) in state.places() {
                    if lost.iter().any(|lost| **lost == *owners.id(*place)) {
                        waiter.message();
                    }
                }
            }
            Err(err) => report!(
                Warn,
                "keeping the places of waiting threads for `{}` failed: {err}",
                self.entry.name()
            ),
        }
        self.due_after(sent_at)
    }
}

#[cfg(test)]
mod model;
