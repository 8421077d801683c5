//! The questions of people: who holds a lock, which locks there are, and whether a server is fit for them. Most are asked
//! over a connection of their own, so that no lock waits behind a long answer. `release` ends holds; the others change
//! nothing but keys that only `check` uses.

pub(crate) mod check;
pub(crate) mod health;
pub(crate) mod inspect;
pub(crate) mod leader;
pub(crate) mod list;
pub(crate) mod processes;
pub(crate) mod release;
#[cfg(feature = "serde")]
mod serialized;
mod trial;

use std::time::Instant;

use redis::{RedisError, Value};

use crate::error::{Error, Result};
use crate::net::apart::Apart;
use crate::net::back_off::BackOff;
use crate::net::request::Request;
use crate::session::Session;
use crate::verdict::{RequestFacts, Verdict, verdict};

/// Asks the master of a key until `until`, and follows the key to another node. An error reply is an answer too.
fn ask_master_of(
    session: &Session,
    name: &str,
    key: &str,
    questions: &[Request],
    until: Instant,
) -> Result<Vec<Value>> {
    session.check_open()?;
    let (nodes, doing) = (&session.connection, questions[0].doing);
    let failed = |err: RedisError| session.error(doing, name, err);
    let is_clustered = !nodes.are_one();
    let (mut asked, mut pauses) = (RequestFacts::question(is_clustered), 0);
    loop {
        let node = nodes.master_of(key, until).map_err(failed)?;
        let mut apart = nodes.apart(node, until).map_err(failed)?;
        let answers = apart.ask(questions, until).map_err(failed)?;
        let pause = BackOff::SERVER.after(pauses + 1);
        let may_repeat = is_clustered && Instant::now() + pause < until;
        match verdict(answers[0].clone(), || asked) {
            Verdict::Elsewhere(target) if may_repeat && !target.is_asking => {
                asked.redirected += 1;
                nodes.map.redirected(node, &target);
            }
            // While a slot moves, neither its old node nor its new one answers a question if it lacks one of the keys.
            // `inspect` asks about the keys of all kinds of locks, and no lock has all of them. So following an `ASK`
            // would not help. The question is asked again after a pause, when the slot may have moved.
            Verdict::Elsewhere(_) | Verdict::Later(_) if may_repeat => {
                asked.redirected = 0;
                pauses += 1;
                std::thread::sleep(pause);
            }
            _ => return Ok(answers),
        }
    }
}

/// A connection to one of the masters, for somebody who asks several times.
fn apart(session: &Session, doing: &'static str, node: usize, until: Instant) -> Result<Apart> {
    session.check_open()?;
    let apart = session.connection.apart(node, until);
    apart.map_err(|err| Error::redis(doing, err).at(&session.endpoint))
}

/// The text of an answer.
fn text(answer: Value) -> std::result::Result<String, RedisError> {
    match answer.extract_error()? {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Ok(text),
        other => Ok(format!("{other:?}")),
    }
}
