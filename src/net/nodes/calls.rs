//! A command until it is answered: over which connection it goes, when it is sent again, and what takes it back.
//!
//! ```text
//!           a connection is up         reply
//!    made ───────────────────► sent ───────────► answered, or refused for good
//!     ▲ ▲                       │ │
//!     │ └── refused for now ────┘ │
//!     └── connection lost ────────┘              the lost one is undone, since it may have run
//! ```
//!
//! Each repetition follows a pause, except the first repetition, a repetition at another node, and a repetition that sends
//! the script by its text.
//!
//! The command goes over the connection to the master of its keys, which may be another at each sending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use super::Nodes;
use crate::error::{excerpt, is_wrong_operation, reword_server_error};
use crate::net::back_off::BackOff;
use crate::net::call::{Answer, Attempt, Call, CallPhase, Fault};
use crate::net::connection::{Connection, WaitFault};
use crate::net::request::Request;
use crate::net::socket;
use crate::report::report;
use crate::time;
use crate::verdict::Verdict;

/// If a key has the wrong type, at most this many keys are asked for their type.
const TYPES: usize = 4;

/// A command that was sent, and the number of its connection.
pub(crate) struct Ahead {
    call: Arc<Call>,
    generation: u64,
}

impl Nodes {
    /// Queues a command whose reply is waited for later, if there is a connection. This is memory only.
    pub(crate) fn submit_ahead(&self, attempt: Attempt) -> Option<Ahead> {
        let call = Call::attempt(attempt);
        let generation = self.submit(&call)?;
        Some(Ahead { call, generation })
    }

    /// Writes what was queued ahead.
    pub(crate) fn flush_ahead(&self, ahead: &Ahead) {
        self.at(&ahead.call).flush(false);
    }

    /// Undoes what was sent ahead and will not be waited for.
    pub(crate) fn abandon(&self, ahead: &Ahead) {
        if let Some(undo) = ahead.call.undo() {
            self.send_deferred(undo);
        }
        self.at(&ahead.call).housekeep_soon();
    }

    /// Sends a command until it has a reply, the deadline has passed, or an error is final. Begins with the one sent
    /// `ahead`, if there is one.
    ///
    /// `attempt` makes the command. After an unknown outcome the command is undone, and a new one is made. A request that
    /// Redis applies once has no undo: each sending carries the same idempotency keys. If a sending has no reply and no
    /// later one succeeds, the outcome is unknown.
    pub(crate) fn call(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
    ) -> Result<Answer, Fault> {
        let mut may_have_counted = false;
        let answer = self.answer(until, stop, ahead, attempt, &mut may_have_counted);
        answer.map_err(|fault| match may_have_counted {
            true => fault.into_unknown(),
            false => fault,
        })
    }

    /// Calls with the same `request` at each sending, and without an undo.
    pub(crate) fn ask(
        &self,
        request: &Request,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<Answer, Fault> {
        let mut attempt = || Attempt::without_undo(request.clone());
        self.call(until, stop, None, &mut attempt)
    }

    fn answer(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
        may_have_counted: &mut bool,
    ) -> Result<Answer, Fault> {
        // Why the last sending was refused for now.
        let mut refused_for_now = None;
        // The first repetition follows without a pause: the connection may only have been idle for too long.
        let mut failures = 0;
        let (mut call, mut sent) = match ahead {
            Some(ahead) => (ahead.call, Some(ahead.generation)),
            None => (Call::attempt(attempt()), None),
        };
        loop {
            let (connection, generation) = match sent.take() {
                Some(generation) => (self.at(&call), generation),
                None => self.send(&call, until, stop)?,
            };
            let answered = connection.wait(&call, until, stop);
            let why = match answered {
                Ok((reply, sent_at)) => {
                    let kind = call.request.kind();
                    match self.verdict(reply, &call, kind, connection, generation) {
                        Verdict::Answer(value) => {
                            return Ok(Answer {
                                value,
                                sent_at,
                                acknowledged: call.acknowledged(),
                            });
                        }
                        // The server has not run the call, so there is nothing to undo, and the same call is sent again.
                        Verdict::SendText | Verdict::Elsewhere(_) => {
                            refused_for_now = None;
                            continue;
                        }
                        Verdict::Later(err) => refused_for_now.insert(err).clone(),
                        Verdict::Never(err) => {
                            return Err(Fault::Refused(with_types(
                                connection, &call, until, stop, err,
                            )));
                        }
                    }
                }
                // A guarded command may have run, and must not run twice, so its caller gets an error.
                Err(fault) if call.request.is_sent_once && call.was_sent() => {
                    return Err(self.unknown(connection, fault, refused_for_now.take()));
                }
                Err(fault) => {
                    // The server may have executed the call, or may still do so. The undo has the number of this attempt, and
                    // the next attempt draws another, so the undo can remove nothing else.
                    *may_have_counted |= call.request.applies_once && call.was_sent();
                    if let Some(undo) = call.undo() {
                        self.send_deferred(undo);
                    }
                    let why = self.unanswered(connection, fault, refused_for_now.take())?;
                    // The undo is queued first, so the new attempt, which has a new number, goes behind it.
                    call = Call::attempt(attempt());
                    why
                }
            };
            let (doing, pause) = (call.request.doing, BackOff::SERVER.after(failures));
            Self::rest(connection, doing, why, pause, until, stop)?;
            failures += 1;
        }
    }

    /// A pause before a command is sent again. `from`: the connection over which it was sent last.
    fn rest(
        from: &Connection,
        doing: &str,
        why: RedisError,
        pause: Duration,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        report!(Debug, "{doing} failed: {why}; retrying");
        if Instant::now() + pause >= until {
            return Err(from.unreachable(why));
        }
        time::sleep_unless(pause, stop);
        match stop() {
            true => Err(Fault::Stopped),
            false => Ok(()),
        }
    }

    /// Sends a command where it belongs, once there is a connection.
    fn send(
        &self,
        call: &Arc<Call>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(&Arc<Connection>, u64), Fault> {
        let known = self.destination(call).map(|node| self.connection(node));
        let mut connection = match known {
            Some(known) => known,
            None => self.up(call, until, stop)?,
        };
        loop {
            if let Some(generation) = connection.send(call) {
                return Ok((connection, generation));
            }
            // `send` queues nothing without a connection, nor an attempt that has to wait for the backlog first.
            connection = self.up(call, until, stop)?;
            connection.wait_for_backlog(until, stop)?;
            call.record_waited();
        }
    }

    /// `Ok(why)` if another attempt is worth it, otherwise the fault.
    fn unanswered(
        &self,
        connection: &Connection,
        fault: WaitFault,
        refused_for_now: Option<RedisError>,
    ) -> Result<RedisError, Fault> {
        match fault {
            WaitFault::NoReply(err) => {
                self.map.doubt();
                Ok(err)
            }
            WaitFault::TimedOut => {
                // The reply may still be due. Housekeeping reads it, or finds the connection silent and drops it.
                connection.doubt();
                connection.housekeep_soon();
                Err(match (connection.no_answer(), refused_for_now) {
                    (Fault::Late(_), Some(why)) => Fault::Unreachable(why),
                    (fault, _) => fault,
                })
            }
            WaitFault::Stopped => {
                connection.housekeep_soon();
                Err(Fault::Stopped)
            }
            WaitFault::Closed => Err(Fault::Closed),
        }
    }

    /// Why there is no answer to a command that was sent, and may have been executed or still may.
    fn unknown(
        &self,
        connection: &Connection,
        fault: WaitFault,
        refused_for_now: Option<RedisError>,
    ) -> Fault {
        match self.unanswered(connection, fault, refused_for_now) {
            Ok(why) => Fault::Unknown(why),
            Err(fault) => fault.into_unknown(),
        }
    }

    /// Waits for the reply to a deferred call, reconnecting if necessary. Also returns whether the call was sent more than
    /// once, in which case an earlier sending may have been executed as well.
    pub(crate) fn settled(&self, call: &Arc<Call>, until: Instant) -> Result<(Value, bool), Fault> {
        loop {
            match self.at(call).wait(call, until, &|| false) {
                Ok((value, _)) => return Ok((value, call.state.lock().sendings > 1)),
                Err(WaitFault::NoReply(err)) => {
                    if matches!(call.state.lock().phase, CallPhase::Broken(_)) {
                        return Err(Fault::Refused(err));
                    }
                    if Instant::now() + BackOff::SERVER.first >= until {
                        return Err(Fault::Unreachable(err));
                    }
                    // The release is in the ledger, or on the connection to another node by now. `bring` sends it if it is in
                    // the ledger.
                    let connection = self.up(call, until, &|| false)?;
                    connection.bring(&call.request);
                    if matches!(call.state.lock().phase, CallPhase::Idle(_)) {
                        std::thread::sleep(BackOff::SERVER.first);
                    }
                }
                Err(WaitFault::TimedOut) => {
                    return Err(Fault::Unreachable(socket::timed_out(
                        "redis did not answer in time",
                    )));
                }
                Err(WaitFault::Stopped) => return Err(Fault::Stopped),
                Err(WaitFault::Closed) => return Err(Fault::Closed),
            }
        }
    }
}

/// Adds what the first keys hold to a refusal whose reason is the type of a key, since the server does not name the key.
fn with_types(
    connection: &Connection,
    refused: &Call,
    until: Instant,
    stop: &dyn Fn() -> bool,
    err: RedisError,
) -> RedisError {
    if !is_wrong_operation(err.detail().unwrap_or_default()) {
        return err;
    }
    let mut found = Vec::new();
    for key in refused.request.asked_keys().take(TYPES) {
        let key = String::from_utf8_lossy(key);
        let request = Request::command("asking what a key holds", &["TYPE", &key]);
        let asking = Call::question(request);
        if connection.send(&asking).is_none() {
            break;
        }
        match connection.wait(&asking, until, stop) {
            Ok((Value::SimpleString(kind), _)) if kind == "none" => {}
            Ok((Value::SimpleString(kind), _)) => {
                found.push(format!("the key `{}` holds a {kind}", excerpt(&key)));
            }
            // If the user may not ask, or the time is up, no further key is asked. Without any type found, the error stays
            // unchanged.
            _ => break,
        }
    }
    match found.is_empty() {
        true => err,
        false => reword_server_error(&err, &found.join(", ")),
    }
}
