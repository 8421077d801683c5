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
//! A repetition that follows a redirection, or that sends the script's text, is sent at once. Of all others, the first is
//! sent at once too, and each later one after a pause.
//!
//! The command goes to the master of its keys; that may be another node at each sending.

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

/// If a key has the wrong type, the server is asked for the types of at most this many keys.
const TYPES: usize = 4;

/// A command that was queued before anybody waits for its reply, and the generation of its connection.
pub(crate) struct Ahead {
    call: Arc<Call>,
    generation: u64,
}

impl Nodes {
    /// If there is a connection, queues a command whose reply is waited for later. No I/O.
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
    /// Redis applies once however often it is sent (`applies_once`) has no undo, and each sending carries the same
    /// idempotency keys. If one of its sendings had no reply and none succeeds, its outcome is unknown.
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

    /// Like [`call`](Self::call), with the same `request` at each sending and no undo.
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
        // There is no pause before the first repetition: perhaps the connection was lost merely because it was idle for
        // too long.
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
                    // The server may have executed the call, or may still do so. The undo has this attempt's number and
                    // the next attempt has another, so the undo can remove nothing else.
                    *may_have_counted |= call.request.applies_once && call.was_sent();
                    if let Some(undo) = call.undo() {
                        self.send_deferred(undo);
                    }
                    let why = self.unanswered(connection, fault, refused_for_now.take())?;
                    // The undo was queued first, so the new attempt goes behind it.
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
            // `send` has queued nothing: there is no connection, or the attempt has to wait for the backlog first
            // (`Pipeline::backlog_end`).
            connection = self.up(call, until, stop)?;
            connection.wait_for_backlog(until, stop)?;
            call.record_waited();
        }
    }

    /// `Ok` with the reason for the lack of a reply if another attempt may follow, otherwise the fault.
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
                // The reply may still be due. Housekeeping reads the reply, or drops a connection that stays silent.
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

    /// The fault of a command that was sent but not answered: the command may have been executed, or may be executed
    /// later.
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
                    // By now the release is in the ledger or on a connection again, perhaps to another node. `bring` sends
                    // it if it is in the ledger.
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

/// If the type of a key is the reason for the refusal, adds what the first keys hold, since the server does not name the
/// key.
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
            // If the user may not ask, or the time is up, no further type is asked for.
            _ => break,
        }
    }
    match found.is_empty() {
        true => err,
        false => reword_server_error(&err, &found.join(", ")),
    }
}
