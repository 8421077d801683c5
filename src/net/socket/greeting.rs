//! The first commands on a connection: logging in, selecting the database, saying who this is.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::{CONNECT_SLICE, Duplex, Endpoint, Meanwhile, Reader, Socket, WRITE_SLICE, unasked};
use crate::config::replicas::ReplicaAck;
use crate::config::server::Login;
use crate::error::{is_crowded, is_transient};
use crate::net::request::Request;
use crate::report::report;

/// How long to wait before greeting a server again that is not ready, over the same connection.
const GREET_AGAIN: Duration = Duration::from_millis(50);

/// One command of the greeting.
struct Step {
    what: &'static str,
    request: Request,
}

impl Step {
    fn new(what: &'static str, args: &[&str]) -> Self {
        Self {
            what,
            request: Request::command("greeting redis", &[&[what], args].concat()),
        }
    }
}

/// A connection whose first commands have been sent.
pub(super) struct Greeting {
    pub(super) connection: Duplex,
    /// What has not been answered.
    due: VecDeque<Step>,
    /// What the server was not ready for, to be sent again.
    postponed: VecDeque<Step>,
    greet_again_at: Instant,
    pub(super) why: Option<RedisError>,
    /// The server has answered something.
    heard: bool,
}

impl Greeting {
    pub(super) fn new(
        endpoint: &Endpoint,
        role: &str,
        login: &Login,
        stream: Socket,
    ) -> RedisResult<Self> {
        stream.set_write_timeout(WRITE_SLICE)?;
        let writer = Arc::new(stream);
        let reader = Reader::new(Arc::clone(&writer));
        let db = endpoint.server.db.to_string();
        let mut name = format!("redlatch-{role}");
        if !endpoint.server.label.is_empty() {
            name = format!("{name}:{}", endpoint.server.label);
        }
        let auth = login.auth().map(|request| Step {
            what: "AUTH",
            request,
        });
        let mut steps = VecDeque::from_iter(auth);
        if endpoint.server.db != 0 {
            steps.push_back(Step::new("SELECT", &[&db]));
        }
        steps.push_back(Step::new("CLIENT", &["SETNAME", &name]));
        steps.push_back(Step::new("PING", &[]));
        let replica_ack = endpoint.server.replica_ack;
        if endpoint.proves_master || replica_ack == ReplicaAck::Majority {
            steps.push_back(Step::new("ROLE", &[]));
        }
        if replica_ack != ReplicaAck::None {
            // For no replica it waits for nothing.
            steps.push_back(Step::new("WAIT", &["0", "1"]));
        }
        if endpoint.asks_for_eviction(role) {
            steps.push_back(Step::new("INFO", &["memory"]));
        }
        let mut greeting = Self {
            connection: Duplex {
                writer,
                reader,
                since: Instant::now(),
            },
            due: VecDeque::new(),
            postponed: steps,
            greet_again_at: Instant::now(),
            why: None,
            heard: false,
        };
        greeting.send()?;
        Ok(greeting)
    }

    fn send(&mut self) -> RedisResult<()> {
        let mut bytes = Vec::new();
        for step in &self.postponed {
            step.request.write(&mut bytes, false);
        }
        self.due.append(&mut self.postponed);
        let Err(err) = self.connection.writer.write_all(&bytes) else {
            return Ok(());
        };
        // What the server said before it closed the connection says more.
        let reader = &mut self.connection.reader;
        match reader.read(Duration::from_millis(1)) {
            Ok(Some(reply)) => Err(reply.extract_error().err().unwrap_or_else(|| err.into())),
            Ok(None) => Err(err.into()),
            Err(said) if said.is_connection_dropped() => Err(err.into()),
            Err(said) => Err(said),
        }
    }

    /// Reads the answer to `ROLE`.
    fn learn_role(endpoint: &Endpoint, role: &Value) -> io::Result<()> {
        let parts = match role {
            Value::Array(parts) => parts.as_slice(),
            _ => &[],
        };
        let is_master = matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master");
        if endpoint.proves_master && !is_master {
            return Err(io::Error::other("it was named the master and is a replica"));
        }
        if let (true, Some(Value::Array(replicas))) = (is_master, parts.get(2)) {
            let replicas = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
            endpoint.replicas.fetch_max(replicas, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads answers; whether all have come.
    pub(super) fn advance(
        &mut self,
        endpoint: &Endpoint,
        by: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> RedisResult<bool> {
        loop {
            let now = Instant::now();
            if self.due.is_empty() {
                if self.postponed.is_empty() {
                    // It would be taken for the reply to the first command.
                    return match self.connection.reader.has_unread() {
                        true => Err(unasked()),
                        false => Ok(true),
                    };
                }
                if now >= self.greet_again_at {
                    self.send()?;
                }
            }
            let left = by.saturating_duration_since(now);
            if left.is_zero() || !meanwhile() {
                return Ok(false);
            }
            let slice = left.min(CONNECT_SLICE);
            if self.due.is_empty() {
                std::thread::sleep(slice);
                continue;
            }
            let read = self.connection.reader.read(slice);
            let Some(reply) = read.map_err(|err| self.explain(err))? else {
                continue;
            };
            self.heard = true;
            let Some(step) = self.due.pop_front() else {
                continue;
            };
            let err = match reply.extract_error() {
                Ok(role) if step.what == "ROLE" => {
                    Self::learn_role(endpoint, &role)?;
                    continue;
                }
                Ok(info) if step.what == "INFO" => {
                    endpoint.answered_for_eviction(Some(&info));
                    continue;
                }
                Ok(_) => continue,
                Err(err) => err,
            };
            match step.what {
                // Said to nobody in particular, before the end.
                _ if is_crowded(&err) || err.code() == Some("DENIED") => return Err(err),
                "WAIT" if !is_transient(&err) => return Err(without_wait(&err)),
                // It may be asked again by a later connection, unless that is not allowed.
                "INFO" if is_transient(&err) => {}
                "INFO" => endpoint.answered_for_eviction(None),
                // Only operators need the name, so a user that may not set it can still lock.
                "CLIENT" => report!(Debug, "naming a connection: {err}"),
                // The connection is usable all the same: a user without PING, a server that cannot write to its disk.
                "PING" if !keeps_out(&err) => {}
                // A server that is not ready needs time. Another connection would not help.
                _ if is_transient(&err) => {
                    self.greet_again_at = Instant::now() + GREET_AGAIN;
                    self.postponed.push_back(step);
                    self.why = Some(err);
                }
                _ => return Err(err),
            }
        }
    }
}

/// What `WAIT` is refused with. A replica does not know it, but its successor may.
fn without_wait(err: &RedisError) -> RedisError {
    let said = err.to_string();
    if said.contains("replica") {
        return io::Error::other(said).into();
    }
    let what = "replica_ack needs WAIT, which the server refuses";
    (ErrorKind::InvalidClientConfig, what, said).into()
}

impl Greeting {
    /// An end where the first answer was due may mean that the server wants to be spoken to otherwise.
    fn explain(&self, err: RedisError) -> RedisError {
        if self.heard || self.connection.writer.is_encrypted() {
            return err;
        }
        let what = match err.kind() {
            ErrorKind::Parse => "what answers there does not speak the protocol of redis",
            _ if err.is_connection_dropped() => "the server closed the connection when greeted",
            _ => return err,
        };
        io::Error::new(
            io::ErrorKind::ConnectionAborted,
            format!("{what}; if it speaks TLS, the URL begins with `rediss`"),
        )
        .into()
    }
}

/// Whether a server that answers like this refuses all other commands, too.
fn keeps_out(err: &RedisError) -> bool {
    let starting = matches!(
        err.kind(),
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown)
    );
    starting || err.code() == Some("NOAUTH") || err.kind() == ErrorKind::AuthenticationFailed
}
