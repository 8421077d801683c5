//! How long to wait for replicas to acknowledge what a client has written.
//!
//! `WAIT` blocks the connection that all commands of the client share. One of them may take its time. Those sent at about
//! the same time follow it on the wire and are answered when it is, so they need little more; and with replicas that are
//! known to be away nobody waits for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::net::call::Call;
use crate::net::socket::Endpoint;

/// The part of the full time that the others get.
const SHARE: u32 = 8;

/// With replicas that did not acknowledge the last time.
const AWAY: Duration = Duration::from_millis(20);

/// What is known of the replicas of one client's server.
#[derive(Default)]
pub(crate) struct Replicas(Mutex<State>);

#[derive(Default)]
struct State {
    /// When one last got the full time.
    full_time_at: Option<Instant>,
    are_away: bool,
    /// The last question how many there are, until its answer is learned.
    asked: Option<Arc<Call>>,
}

impl Replicas {
    /// How long one more `WAIT` may take, of which the first may take `full`.
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

    /// Asks how many there are, unless that is under way. `submit` only queues the question.
    pub(crate) fn ask(&self, endpoint: &Endpoint, submit: impl FnOnce() -> Option<Arc<Call>>) {
        self.learn(endpoint);
        let mut state = self.0.lock();
        if state.asked.is_none() {
            state.asked = submit();
        }
    }

    /// Learns what was answered.
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

    /// One was answered.
    pub(crate) fn answered(&self, enough: bool) {
        self.0.lock().are_away = !enough;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_of_many_waits_for_long_and_none_for_replicas_that_are_away() {
        let (replicas, full) = (Replicas::default(), Duration::from_millis(800));
        let begin = Instant::now();
        let timeout = |ms| replicas.timeout(full, begin + Duration::from_millis(ms));
        assert_eq!(timeout(0), full);
        assert_eq!(timeout(1), full / SHARE);
        assert_eq!(timeout(799), full / SHARE);
        assert_eq!(timeout(800), full);
        replicas.answered(false);
        assert_eq!(timeout(1_700), AWAY);
        replicas.answered(true);
        assert_eq!(timeout(1_701), full);
    }
}
