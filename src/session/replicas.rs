//! How long to wait for replicas to acknowledge a client's acquire.
//!
//! `WAIT` blocks the connection that all commands of the client share, so the waits of several acquires would add up.
//! Therefore, once a `WAIT` gets the full time, any other that is sent within that time gets an eighth of it ([`SHARE`]).
//! While the replicas are known to be unreachable, no `WAIT` takes long ([`AWAY`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::net::call::Call;
use crate::net::socket::Endpoint;

/// A `WAIT` soon after one with the full time gets the full time divided by this.
const SHARE: u32 = 8;

/// The longest time of a `WAIT` if too few replicas acknowledged the last acquire.
const AWAY: Duration = Duration::from_millis(20);

/// State of the replicas of one client's server, as far as known.
#[derive(Default)]
pub(crate) struct Replicas(Mutex<ReplicaState>);

#[derive(Default)]
struct ReplicaState {
    /// When a `WAIT` last got the full time.
    full_time_at: Option<Instant>,
    are_away: bool,
    /// The last `ROLE` request, until its reply is read.
    asked: Option<Arc<Call>>,
}

impl Replicas {
    /// How long the next `WAIT` may take: `full`; less if another `WAIT` got `full` and that time is not over yet, or
    /// while the replicas are away.
    pub(crate) fn timeout(&self, full: Duration, now: Instant) -> Duration {
        let mut state = self.0.lock();
        if state.are_away {
            return AWAY.min(full);
        }
        let recently = |at: Instant| now.saturating_duration_since(at) < full;
        if state.full_time_at.is_some_and(recently) {
            return full / SHARE;
        }
        state.full_time_at = Some(now);
        full
    }

    /// Asks how many replicas there are, unless such a request is under way. `submit` only queues it.
    pub(crate) fn ask(&self, endpoint: &Endpoint, submit: impl FnOnce() -> Option<Arc<Call>>) {
        self.learn(endpoint);
        let mut state = self.0.lock();
        if state.asked.is_none() {
            state.asked = submit();
        }
    }

    /// Reads the reply to the last `ROLE` request, if it has arrived.
    pub(crate) fn learn(&self, endpoint: &Endpoint) {
        let mut state = self.0.lock();
        let outcome = state.asked.as_ref().and_then(|asked| asked.outcome());
        if let Some(outcome) = outcome {
            state.asked = None;
            if let Ok(answer) = outcome {
                endpoint.learn_role(&answer.value);
            }
        }
    }

    /// Records whether enough replicas acknowledged an acquire.
    pub(crate) fn answered(&self, enough: bool) {
        self.0.lock().are_away = !enough;
    }
}

#[cfg(test)]
mod tests;
