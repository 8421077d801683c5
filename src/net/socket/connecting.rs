//! A connection to the server that the deployment means, in the making.
//!
//! ```text
//!    one server:  dialling ──greeted──► made
//!
//!    sentinels:   asking who is master ──an address──► dialling ──greeted, and a master by ROLE──► made
//! ```

use std::io;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisResult};

use super::dial::{Dial, Dialled};
use super::sentinel::Discovery;
use super::{Duplex, Endpoint, Meanwhile, timed_out};
use crate::config::server::Deployment;
use crate::error::{is_transient, lasting};

/// After how long callers with enough time begin a new attempt rather than continue this one.
const STALE: Duration = Duration::from_millis(250);

/// Connects, authenticates, selects the database, says who this is and waits for PONG, all by `deadline`.
///
/// `role` is the connection's name in `CLIENT LIST`; `meanwhile` is called every few milliseconds.
pub(crate) fn connect(
    endpoint: &Endpoint,
    role: &'static str,
    deadline: Instant,
    meanwhile: Meanwhile<'_>,
) -> RedisResult<Duplex> {
    match Connecting::new(role, deadline).advance(endpoint, deadline, meanwhile)? {
        Dialled::Made(connection) => Ok(connection),
        Dialled::Unfinished(why) => Err(why),
    }
}

/// A connection in the making. If one thread has no time to finish it, the next continues it, so that callers with little
/// time do not each begin a connection while the server is slow.
pub(crate) struct Connecting {
    role: &'static str,
    /// When it has taken so long that it has failed.
    ends: Instant,
    began: Instant,
    stage: Stage,
}

enum Stage {
    Begun,
    Asking(Box<Discovery>),
    Dialling {
        /// The master that was named, and by which Sentinel.
        named: Option<Box<(Endpoint, usize)>>,
        dial: Dial,
    },
}

impl Connecting {
    pub(crate) fn new(role: &'static str, ends: Instant) -> Self {
        Self {
            role,
            ends,
            began: Instant::now(),
            stage: Stage::Begun,
        }
    }

    /// Whether a caller with this deadline should begin a new attempt: the server may have been unreachable when this one
    /// began. Callers with less time continue this one, so that there are never many.
    pub(crate) fn is_stale(&self, until: Instant) -> bool {
        self.began.elapsed() >= STALE && until.saturating_duration_since(Instant::now()) >= STALE
    }

    /// Goes on until there is a connection, `until`, or `meanwhile` says to stop. An error is final.
    pub(crate) fn advance(
        &mut self,
        endpoint: &Endpoint,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> RedisResult<Dialled> {
        loop {
            match &mut self.stage {
                Stage::Begun => {
                    self.stage = match &endpoint.server.deployment {
                        Deployment::Sentinel { .. } => {
                            Stage::Asking(Box::new(Discovery::new(&endpoint.first_sentinel)))
                        }
                        Deployment::Single(_) | Deployment::Cluster { .. } => Stage::Dialling {
                            named: None,
                            dial: Dial::new(self.role, self.ends),
                        },
                    };
                }
                Stage::Asking(discovery) => {
                    let by = until.min(self.ends);
                    let Some(address) = discovery.advance(endpoint, self.ends, by, meanwhile)?
                    else {
                        let why = timed_out("no sentinel has named the master in time");
                        return if Instant::now() < self.ends {
                            Ok(Dialled::Unfinished(why))
                        } else {
                            Err(why)
                        };
                    };
                    // It may be one that is gone, and has a successor before the time is up.
                    let its_end = Instant::now() + (self.ends - self.began) / 3;
                    let by = discovery.asked_at();
                    self.stage = Stage::Dialling {
                        named: Some(Box::new((endpoint.master(address), by))),
                        dial: Dial::new(self.role, its_end.min(self.ends)),
                    };
                }
                Stage::Dialling { named, dial } => {
                    let Some((master, by)) = named.as_deref() else {
                        return dial.advance(endpoint, until, meanwhile);
                    };
                    let dialled = dial.advance(master, until, meanwhile);
                    if let (Ok(Dialled::Made(connection)), Ok(address)) =
                        (&dialled, master.address())
                    {
                        endpoint.made(address, connection);
                    }
                    return dialled.map_err(|err| {
                        // The sentinel may be cut off from the others, and not know.
                        endpoint.first_sentinel.is_not(*by, by.wrapping_add(1));
                        match err.kind() {
                            ErrorKind::Io if is_transient(&err) => {
                                io::Error::other(format!("{master}: {err}")).into()
                            }
                            ErrorKind::Io => lasting(format!("{master}: {err}")),
                            _ => err,
                        }
                    });
                }
            }
        }
    }
}
