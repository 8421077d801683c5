//! A connection to one address in the making, stage by stage.

use std::time::Instant;

use redis::{RedisError, RedisResult};

use super::greeting::Greeting;
use super::opening::{self, Opening};
use super::resolve::resolve;
#[cfg(feature = "tls")]
use super::tls::Securing;
use super::{Duplex, Endpoint, Meanwhile, Socket, timed_out};
use crate::config::server::{Address, Login};

/// A connection to one address in the making.
pub(crate) struct Dial {
    role: &'static str,
    /// When it has taken so long that it has failed.
    ends: Instant,
    stage: Stage,
}

enum Stage {
    Resolving,
    Opening(Box<Opening>),
    #[cfg(feature = "tls")]
    Securing(Box<Securing>),
    /// Asking how to log in: not before the server is there.
    LoggingIn(Socket),
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
            stage: Stage::Resolving,
        }
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
                            self.stage = Stage::Opening(Box::new(Opening::new(addrs)));
                            continue;
                        }
                        timed_out("looking up the host took too long")
                    }
                    #[cfg(unix)]
                    Address::Unix(path) => {
                        if let Some(stream) = opening::open_unix(path, by, meanwhile)? {
                            self.log_in(endpoint, Socket::Unix(stream))?;
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
                        #[cfg(feature = "tls")]
                        if let (Some(settings), Address::Tcp(host, _)) =
                            (&endpoint.server.tls, endpoint.address()?)
                        {
                            let securing = Securing::new(settings, host, stream)?;
                            self.stage = Stage::Securing(Box::new(securing));
                            continue;
                        }
                        self.log_in(endpoint, Socket::Tcp(stream))?;
                        continue;
                    }
                    timed_out("connecting took too long")
                }
                #[cfg(feature = "tls")]
                Stage::Securing(securing) => {
                    if securing.advance(by, meanwhile)? {
                        let done = std::mem::replace(&mut self.stage, Stage::Resolving);
                        if let Stage::Securing(securing) = done {
                            let stream = Box::new(securing.done());
                            self.log_in(endpoint, Socket::Tls(stream))?;
                        }
                        continue;
                    }
                    securing.waits_for()
                }
                Stage::LoggingIn(_) => {
                    if let Some(login) = endpoint.login(by, meanwhile)? {
                        let done = std::mem::replace(&mut self.stage, Stage::Resolving);
                        if let Stage::LoggingIn(stream) = done {
                            self.greet(endpoint, &login, stream)?;
                        }
                        continue;
                    }
                    timed_out("the function given to Config::credentials has not returned in time")
                }
                Stage::Greeting(greeting) => {
                    if greeting.advance(endpoint, by, meanwhile)? {
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

    fn log_in(&mut self, endpoint: &Endpoint, stream: Socket) -> RedisResult<()> {
        if endpoint.asks_for_login() {
            self.stage = Stage::LoggingIn(stream);
            return Ok(());
        }
        self.greet(endpoint, &endpoint.server.login, stream)
    }

    fn greet(&mut self, endpoint: &Endpoint, login: &Login, stream: Socket) -> RedisResult<()> {
        let greeting = Greeting::new(endpoint, self.role, login, stream)?;
        self.stage = Stage::Greeting(Box::new(greeting));
        Ok(())
    }
}
