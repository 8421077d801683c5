//! A connection that is to replace another one, made while that one is in use: its login grows old.
//!
//! For connections that one thread has for itself. That for commands logs in again instead, see
//! [`Connection`](crate::net::connection::Connection).

use std::time::{Duration, Instant};

use super::{Connecting, Dialled, Duplex, Endpoint, Meanwhile};
use crate::report::report;

/// The successor of a connection, if it has to have one.
#[derive(Default)]
pub(crate) struct Successor {
    /// When it is made.
    due: Option<Instant>,
    dial: Option<Box<Connecting>>,
}

impl Successor {
    /// That of a connection that was made just now.
    pub(crate) fn of(endpoint: &Endpoint, connection: &Duplex) -> Self {
        Self {
            due: endpoint.log_in_again_at(connection.since),
            dial: None,
        }
    }

    /// Whether there is something to be done about it.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| Instant::now() >= due)
    }

    /// How long nothing has to be done about it, not more than `most`.
    pub(crate) fn rests(&self, most: Duration) -> Duration {
        self.due.map_or(most, |due| {
            most.min(due.saturating_duration_since(Instant::now()))
        })
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.dial.is_some()
    }

    /// Goes on making it until `until`, once its time has come; `Some` when it is made.
    pub(crate) fn advance(
        &mut self,
        endpoint: &Endpoint,
        role: &'static str,
        connect_timeout: Duration,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> Option<Duplex> {
        if !self.is_due() {
            return None;
        }
        let now = Instant::now();
        let begin = || Box::new(Connecting::new(role, now + connect_timeout));
        let dial = self.dial.get_or_insert_with(begin);
        match dial.advance(endpoint, until, meanwhile) {
            Ok(Dialled::Made(connection)) => {
                report!(
                    Debug,
                    "a new {role} connection to {endpoint:?}: the login was old"
                );
                *self = Self::of(endpoint, &connection);
                Some(connection)
            }
            Ok(Dialled::Unfinished(_)) => None,
            Err(err) => {
                report!(
                    Warn,
                    "logging in at redis, {endpoint}, again ({role}) failed: {err}; the old connection is used as long as it lasts"
                );
                self.dial = None;
                self.due = endpoint.log_in_period().map(|period| now + period);
                None
            }
        }
    }
}
