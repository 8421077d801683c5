//! Logging in again on a living connection, before the server ends it for an old login.
//!
//! ```text
//!                 its time                    the function returns            +OK
//!    logged in ────────────► asking the user ──────────────────────► AUTH ──────────► logged in
//!       ▲                         │ it fails                          │ refused
//!       └──── tried again later ──┴───────────────────────────────────┘
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisError;

use super::{Connection, Phase};
use crate::net::call::Call;
use crate::net::socket::Meanwhile;
use crate::report::report;

/// The longest wait for the user's function at a time.
const TURN: Duration = Duration::from_millis(20);

impl Connection {
    /// Logs in again if it is time; whether something is left to be done soon.
    pub(super) fn stay_logged_in(&self, meanwhile: Meanwhile<'_>) -> bool {
        let mut state = self.state.lock();
        let generation = state.generation;
        let Phase::Up(up) = &mut state.phase else {
            return false;
        };
        if let Some(call) = &up.logging_in {
            let Some(outcome) = call.outcome() else {
                return true;
            };
            up.logging_in = None;
            drop(state);
            let answer = outcome.and_then(|answer| {
                let sent_at = answer.sent_at;
                answer.value.extract_error().map(|_| sent_at)
            });
            match answer {
                Ok(sent_at) => self.log_in_at(generation, self.endpoint.log_in_again_at(sent_at)),
                Err(err) => self.not_logged_in(generation, &err),
            }
            return false;
        }
        if up.log_in_at.is_none_or(|at| Instant::now() < at) {
            return false;
        }
        drop(state);
        match self.endpoint.login(Instant::now() + TURN, meanwhile) {
            Ok(Some(login)) => {
                if let Some(auth) = login.auth() {
                    self.log_in(generation, &Call::question(auth));
                }
                true
            }
            Ok(None) => true,
            Err(err) => {
                self.not_logged_in(generation, &err);
                false
            }
        }
    }

    /// Sends the command, behind all that is under way.
    fn log_in(&self, generation: u64, auth: &Arc<Call>) {
        let mut state = self.state.lock();
        let Some((up, in_flight)) = state.up(generation) else {
            return;
        };
        up.logging_in = Some(Arc::clone(auth));
        in_flight.enqueue(auth, Instant::now());
        drop(state);
        self.flush(false);
    }

    fn not_logged_in(&self, generation: u64, err: &RedisError) {
        report!(
            Warn,
            "logging in at redis, {}, again failed: {err}; the connection is used as long as it lasts",
            self.endpoint
        );
        let period = self.endpoint.log_in_period();
        self.log_in_at(generation, period.map(|period| Instant::now() + period));
    }

    fn log_in_at(&self, generation: u64, at: Option<Instant>) {
        if let Some((up, _)) = self.state.lock().up(generation) {
            up.log_in_at = at;
        }
    }
}
