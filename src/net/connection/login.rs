//! Logging in again on a living connection, before the server ends it for an old login.
//!
//! ```text
//!                 its time           the function returns, and AUTH is accepted
//!    logged in ────────────► a thread ──────────────────────────────────────────► logged in
//!       ▲                       │ one of them fails
//!       └── tried again later ──┘
//! ```

use std::sync::Arc;
use std::time::Instant;

use redis::RedisResult;

use super::{Connection, WaitFault};
use crate::config::server::Login;
use crate::net::call::Call;
use crate::net::socket;
use crate::report::report;

impl Connection {
    /// Logs in again if it is time.
    pub(super) fn stay_logged_in(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let generation = state.generation;
        let Some((up, _)) = state.up(generation) else {
            return;
        };
        if up.log_in_at.take_if(|at| *at <= Instant::now()).is_none() {
            return;
        }
        drop(state);
        // The function may take as long as it likes.
        let (this, endpoint) = (Arc::downgrade(self), self.endpoint.clone());
        let thread = std::thread::Builder::new().name("redlatch-credentials".into());
        let started = thread.spawn(move || {
            let login = endpoint.login();
            if let Some(this) = this.upgrade() {
                let again_at = login.and_then(|login| this.log_in(generation, &login));
                this.logged_in(generation, again_at);
            }
        });
        if let Err(err) = started {
            self.logged_in(generation, Err(err.into()));
        }
    }

    /// Sends the command, behind all that is under way; returns when it has to be sent again.
    fn log_in(&self, generation: u64, login: &Login) -> RedisResult<Option<Instant>> {
        let lost = || socket::timed_out("the connection was lost");
        let Some(auth) = login.auth().map(Call::question) else {
            return Ok(None);
        };
        let mut state = self.state.lock();
        let (_, in_flight) = state.up(generation).ok_or_else(lost)?;
        in_flight.enqueue(&auth, Instant::now());
        drop(state);
        self.flush(false);
        match self.wait(&auth, Instant::now() + 2 * self.max_silence, &|| false) {
            Ok((value, sent_at)) => {
                value.extract_error()?;
                Ok(self.endpoint.log_in_again_at(sent_at))
            }
            Err(WaitFault::Broken(err)) => Err(err),
            Err(_) => Err(lost()),
        }
    }

    fn logged_in(&self, generation: u64, again_at: RedisResult<Option<Instant>>) {
        let mut state = self.state.lock();
        let Some((up, _)) = state.up(generation) else {
            return;
        };
        let period = self.endpoint.log_in_period();
        let later = || period.map(|period| Instant::now() + period);
        up.log_in_at = again_at.as_ref().map_or_else(|_| later(), |at| *at);
        drop(state);
        if let Err(err) = again_at {
            report!(
                Warn,
                "logging in at redis, {}, again failed: {err}; the connection is used as long as it lasts",
                self.endpoint
            );
        }
    }
}
