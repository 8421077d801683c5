//! The state of a client, for readiness probes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::net::call::Fault;
use crate::net::request::Request;
#[cfg(feature = "serde")]
use crate::operations::serialized;
use crate::session::Session;
use crate::shown::Shown;

const DOING: &str = "asking whether redis answers";

/// The result of a readiness check: see [`Client::health`](crate::Client::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// Whether the server answered.
    pub reachable: bool,
    /// How long [`reachable`](Self::reachable) has had this value, as seen by the checks: zero at the first check, and at
    /// each check at which the value changes.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "since_ms", serialize_with = "serialized::ms")
    )]
    pub since: Duration,
    /// Why the server did not answer.
    pub why: Option<String>,
    /// The hold that is closest to being lost: of all holds whose renewal is due, the one without a confirmation for the
    /// largest part of its lease. `None` if no renewal is due.
    pub renewal: Option<UnconfirmedRenewal>,
}

/// A renewal that is due and not confirmed: see [`Health::renewal`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct UnconfirmedRenewal {
    /// The name, as given to the client.
    pub name: String,
    /// How long ago Redis last confirmed the hold, by granting or renewing it.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "confirmed_ago_ms", serialize_with = "serialized::ms")
    )]
    pub confirmed_ago: Duration,
    /// The lease. If the hold is not confirmed again, it is lost when `confirmed_ago` reaches about this time.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lease_ms", serialize_with = "serialized::ms")
    )]
    pub lease: Duration,
}

impl Health {
    /// Returns whether the server answers, and no renewal is late.
    ///
    /// A renewal is due when a third of the lease has passed, for a read hold after 10 s at most. A renewal is late when two
    /// thirds of the lease have passed without a confirmation. Holds that are not renewed, such as those with a fixed lease,
    /// do not count.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert!(client.health().is_ready());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let is_late = |renewal: &UnconfirmedRenewal| renewal.confirmed_ago > renewal.lease * 2 / 3;
        self.reachable && !self.renewal.as_ref().is_some_and(is_late)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = match self.reachable {
            true => "been reachable",
            false => "not answered",
        };
        write!(f, "redis has {answers} for {} s", self.since.as_secs())?;
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if let Some(renewal) = &self.renewal {
            let [ago, lease] =
                [renewal.confirmed_ago, renewal.lease].map(|span| span.as_secs_f64());
            let name = Shown(&renewal.name);
            write!(
                f,
                "; the hold of {name} was last confirmed {ago:.1} s ago, with a lease of {lease:.1} s"
            )?;
        }
        Ok(())
    }
}

pub(crate) fn health(session: &Session) -> Health {
    let asked = ask(session);
    let (reachable, now) = (asked.is_ok(), Instant::now());
    let mut health = Health {
        reachable,
        since: Duration::ZERO,
        why: asked.err().map(|err| err.to_string()),
        renewal: None,
    };
    // In a forked process, a copy of the client must not lock the client's mutexes.
    if session.is_copy() {
        return health;
    }
    let mut reached = session.reached.lock();
    let unchanged = reached.filter(|(was, _)| *was == reachable);
    let (_, since) = *reached.insert(unchanged.unwrap_or((reachable, now)));
    drop(reached);
    health.since = now.saturating_duration_since(since);
    let renewal = session.watchdog.unconfirmed();
    health.renewal = renewal.map(|(hold, confirmed_ago)| UnconfirmedRenewal {
        name: hold.entry().name().to_string(),
        confirmed_ago,
        lease: hold.lease(),
    });
    health
}

fn ask(session: &Session) -> Result<()> {
    session.check_open()?;
    let until = Instant::now() + session.command_timeout;
    let (ping, stop) = (Request::command(DOING, &["PING"]), || session.is_closed());
    match session.connection.ask(&ping, until, &stop) {
        Ok(_) => Ok(()),
        Err(
            Fault::Refused(err) | Fault::Unreachable(err) | Fault::Late(err) | Fault::Unknown(err),
        ) => Err(Error::redis(DOING, err).at(&session.endpoint)),
        Err(Fault::Stopped | Fault::Closed) => Err(Error::Closed),
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests;
