//! The first commands on a connection: they log in, select the database, name the connection and check the server.

use std::io;
use std::time::Instant;

use redis::{ErrorKind, RedisError, RedisResult, Value};

use super::dial::Dial;
use super::{Duplex, Endpoint, GLANCE, Socket, unasked};
use crate::config::replicas::ReplicaAck;
use crate::config::server::Login;
use crate::error::{excerpt, is_transient, printable, reword_server_error};
use crate::net::back_off::BackOff;
use crate::net::request::Request;
use crate::report::report;
use crate::verdict::{self, Reach, is_crowded};

/// A command of the greeting.
struct GreetingStep {
    command: &'static str,
    request: Request,
}

impl GreetingStep {
    fn new(command: &'static str, args: &[&str]) -> Self {
        Self {
            command,
            request: Request::command("greeting redis", &[&[command], args].concat()),
        }
    }

    /// Whether Redis answers this command with such a reply. Any other answer comes from a server of another protocol.
    fn is_answered_by(&self, reply: &Value) -> bool {
        match self.command {
            "PING" => matches!(reply, Value::SimpleString(pong) if pong == "PONG"),
            "HELLO" | "ROLE" => matches!(reply, Value::Array(_)),
            "WAIT" => matches!(reply, Value::Int(_)),
            "INFO" => matches!(reply, Value::BulkString(_)),
            _ => matches!(reply, Value::Okay),
        }
    }
}

/// Sends the first commands over a new socket, and reads the answers.
pub(super) fn greet(
    endpoint: &Endpoint,
    dial: &Dial,
    login: &Login,
    stream: Socket,
) -> RedisResult<Duplex> {
    stream.plain().set_write_timeout(Some(GLANCE))?;
    let mut connection = Duplex::over(stream);
    let mut due = steps(endpoint, dial.role, login);
    let mut has_heard = connection.writer.is_encrypted();
    loop {
        let asked_at = Instant::now();
        send(&mut connection, &due)?;
        let mut again = Vec::new();
        for step in due {
            let reply = connection.read(dial);
            let reply = reply.map_err(|err| if has_heard { err } else { explained(err) })?;
            has_heard = true;
            match reply.extract_error() {
                Ok(reply) if step.is_answered_by(&reply) => step.answered(endpoint, &reply)?,
                Ok(reply) => return Err(strange(step.command, &reply)),
                Err(err) if step.needs_time(&err) => {
                    again.push(step);
                    dial.record_not_ready(err);
                }
                Err(err) => step.refused(endpoint, login, err)?,
            }
        }
        if again.is_empty() {
            connection.greeted_in = asked_at.elapsed();
            break;
        }
        // The server is not ready, and another connection would not help.
        std::thread::sleep(dial.left()?.min(BackOff::SERVER.longest));
        due = again;
    }
    match connection.reader.has_unread() {
        // Surplus bytes would be taken for the reply to the first command.
        true => Err(unasked()),
        false => Ok(connection),
    }
}

fn send(connection: &mut Duplex, steps: &[GreetingStep]) -> RedisResult<()> {
    let mut bytes = Vec::new();
    for step in steps {
        step.request.write(&mut bytes, false);
    }
    connection.writer.write_all(&bytes).map_err(|err| {
        // An error that the server sent before it closed the connection says more.
        match connection.reader.read(GLANCE) {
            Ok(Some(reply)) => reply.extract_error().err().unwrap_or_else(|| err.into()),
            Err(said) if !said.is_connection_dropped() => said,
            _ => err.into(),
        }
    })
}

fn steps(endpoint: &Endpoint, role: &str, login: &Login) -> Vec<GreetingStep> {
    let server = &endpoint.server;
    let name = format!("{}:{role}", server.names);
    let auth = login.auth().map(|request| GreetingStep {
        command: "AUTH",
        request,
    });
    let mut steps = Vec::from_iter(auth);
    let asks_what_it_is = endpoint.asks_what_it_is(role);
    if asks_what_it_is || needs_role(endpoint) {
        steps.push(GreetingStep::new("ROLE", &[]));
    }
    if asks_what_it_is {
        steps.push(GreetingStep::new("HELLO", &[]));
    }
    if server.db != 0 {
        steps.push(GreetingStep::new("SELECT", &[&server.db.to_string()]));
    }
    steps.push(GreetingStep::new("CLIENT", &["SETNAME", &name]));
    steps.push(GreetingStep::new("PING", &[]));
    if server.replica_ack != ReplicaAck::None {
        // Only shows whether `WAIT` is allowed: waiting for 0 replicas returns at once.
        steps.push(GreetingStep::new("WAIT", &["0", "1"]));
    }
    if endpoint.asks_about_eviction(role) {
        steps.push(GreetingStep::new("INFO", &["memory"]));
    }
    steps
}

/// Whether a connection is of no use without the answer to `ROLE`.
fn needs_role(endpoint: &Endpoint) -> bool {
    endpoint.proves_master || endpoint.server.replica_ack == ReplicaAck::Majority
}

impl GreetingStep {
    fn answered(&self, endpoint: &Endpoint, reply: &Value) -> RedisResult<()> {
        match self.command {
            "ROLE" if !endpoint.learn_role(reply) && endpoint.proves_master => Err(
                io::Error::other("a Sentinel named it as the master, but it is a replica").into(),
            ),
            "ROLE" => endpoint.record_role(reply),
            "HELLO" => endpoint.record_hello(Some(reply)),
            "INFO" => {
                endpoint.record_eviction(Some(reply));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the command, rejected with `err`, is sent again over this connection, since the server is not ready.
    fn needs_time(&self, err: &RedisError) -> bool {
        let is_optional = match self.command {
            "CLIENT" | "INFO" | "HELLO" => true,
            "PING" => !keeps_out(err),
            _ => false,
        };
        is_transient(err) && !is_optional && !is_crowded(err) && err.code() != Some("DENIED")
    }

    /// The command was rejected with `err`: returns an error if the connection is of no use then.
    fn refused(&self, endpoint: &Endpoint, login: &Login, err: RedisError) -> RedisResult<()> {
        match self.command {
            // With this error the server turns the client away, whatever it has asked, and closes the connection.
            _ if is_crowded(&err) || err.code() == Some("DENIED") => Err(err),
            // Only operators need the name, so a user that may not set it can still lock.
            "CLIENT" => {
                report!(Debug, "naming a connection failed: {err}");
                Ok(())
            }
            // A replica is then noticed later, when it rejects commands.
            "ROLE" if !needs_role(endpoint) => Ok(()),
            "HELLO" => endpoint.record_hello(None),
            // The user has no right to PING, or the server rejects it because it cannot write to its disk: the connection
            // is usable.
            "PING" if !keeps_out(&err) => Ok(()),
            // The server is not ready to say; a later connection asks again.
            "INFO" if is_transient(&err) => Ok(()),
            "INFO" => {
                endpoint.record_eviction(None);
                Ok(())
            }
            "WAIT" => Err(without_wait(&err)),
            "AUTH" => {
                let user = login.username.as_deref().unwrap_or("default");
                let user = printable(user);
                Err(adding(&err, &format!("the user is `{user}`")))
            }
            "SELECT" => {
                let db = endpoint.server.db;
                Err(adding(&err, &format!("the URL asks for database {db}")))
            }
            _ => Err(err),
        }
    }
}

fn strange(command: &str, reply: &Value) -> RedisError {
    let reply = format!("{reply:?}");
    let said = format!(
        "unexpected reply to {command}: {}; is this a Redis server?",
        excerpt(&reply)
    );
    io::Error::new(io::ErrorKind::ConnectionAborted, said).into()
}

/// Adds to a refusal what was asked for.
fn adding(err: &RedisError, hint: &str) -> RedisError {
    let detail = err.detail().unwrap_or_default().trim_end_matches('.');
    reword_server_error(err, &format!("{detail}; {hint}"))
}

/// The error for a rejected `WAIT`. If its text mentions replicas, the server is probably a replica, which may be
/// promoted: transient.
fn without_wait(err: &RedisError) -> RedisError {
    let said = err.to_string();
    if said.contains("replica") {
        return io::Error::other(said).into();
    }
    let description = "replica_ack needs WAIT, which the server rejects";
    (ErrorKind::InvalidClientConfig, description, said).into()
}

/// If the connection ended or the reply was no RESP, replaces the error by a hint: the server may speak TLS or another
/// protocol.
fn explained(err: RedisError) -> RedisError {
    let hint = match err.kind() {
        ErrorKind::Parse => "the server does not speak the protocol of redis; is the port right?",
        _ if err.is_connection_dropped() => "the server closed the connection during the greeting",
        _ => return err,
    };
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        format!("{hint}; if it speaks TLS, use rediss://"),
    )
    .into()
}

/// Whether a server that answers like this refuses all other commands, too.
fn keeps_out(err: &RedisError) -> bool {
    verdict::reach(err) == Reach::Everything
        || err.code() == Some("NOAUTH")
        || err.kind() == ErrorKind::AuthenticationFailed
}
