//! A connection in the making, stage by stage.

use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult};

use super::greeting::Greeting;
use super::opening::{self, Opening};
use super::resolve::resolve;
use super::{Duplex, Endpoint, Meanwhile, Socket, timed_out};
use crate::config::server::Address;

/// How old a connection in the making is when those that have time for it begin another.
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
    match Dial::new(role, deadline).advance(endpoint, deadline, meanwhile)? {
        Dialled::Made(connection) => Ok(connection),
        Dialled::Unfinished(why) => Err(why),
    }
}

/// A connection in the making. What one thread has no time to finish the next goes on with, so that callers in a hurry
/// do not make a connection each while the server is slow.
pub(crate) struct Dial {
    role: &'static str,
    /// When it has taken so long that it has failed.
    ends: Instant,
    began: Instant,
    stage: Stage,
}

enum Stage {
    Resolving,
    Opening(Opening),
    Greeting(Box<Greeting>),
}

/// How far a connection has got.
pub(crate) enum Dialled {
    Made(Duplex),
    /// Not done by then; what it still waits for.
    Unfinished(RedisError),
}

impl Dial {
    pub(crate) fn new(role: &'static str, ends: Instant) -> Self {
        Self {
            role,
            ends,
            began: Instant::now(),
            stage: Stage::Resolving,
        }
    }

    /// Whether a caller with this deadline should begin a new connection: the server may have been away when this one was
    /// begun. Callers without time for that go on with this one, so that there are never many.
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
        let by = until.min(self.ends);
        loop {
            let waits_for = match &mut self.stage {
                Stage::Resolving => match endpoint.address()? {
                    Address::Tcp(host, port) => {
                        if let Some(addrs) = resolve(endpoint, host, *port, by, meanwhile)? {
                            self.stage = Stage::Opening(Opening::new(addrs));
                            continue;
                        }
                        timed_out("looking up the host took too long")
                    }
                    #[cfg(unix)]
                    Address::Unix(path) => {
                        if let Some(stream) = opening::open_unix(path, by, meanwhile)? {
                            self.greet(endpoint, Socket::Unix(stream))?;
                            continue;
                        }
                        timed_out("connecting took too long")
                    }
                    #[cfg(not(unix))]
                    Address::Unix(_) => {
                        return Err(std::io::Error::from(std::io::ErrorKind::Unsupported).into());
                    }
                },
                Stage::Opening(opening) => {
                    if let Some(stream) = opening.advance(self.ends, by, meanwhile)? {
                        self.greet(endpoint, Socket::Tcp(stream))?;
                        continue;
                    }
                    timed_out("connecting took too long")
                }
                Stage::Greeting(greeting) => {
                    if greeting.advance(by, meanwhile)? {
                        let done = std::mem::replace(&mut self.stage, Stage::Resolving);
                        let Stage::Greeting(greeting) = done else {
                            continue;
                        };
                        return Ok(Dialled::Made(greeting.connection));
                    }
                    let why = greeting.why.clone();
                    why.unwrap_or_else(|| timed_out("redis did not answer the greeting in time"))
                }
            };
            return if Instant::now() < self.ends {
                Ok(Dialled::Unfinished(waits_for))
            } else {
                Err(waits_for)
            };
        }
    }

    fn greet(&mut self, endpoint: &Endpoint, stream: Socket) -> RedisResult<()> {
        let greeting = Greeting::new(endpoint, self.role, stream)?;
        self.stage = Stage::Greeting(Box::new(greeting));
        Ok(())
    }
}
