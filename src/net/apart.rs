//! A separate connection for the questions of operators: the answers may be long, and no lock must wait behind them. The
//! connection is made when it is needed, and closed when it is dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};

use crate::net::dialling::Dialling;
use crate::net::masters::Masters;
use crate::net::request::{Request, Script};
use crate::net::socket::{self, Duplex, LARGEST_MAP};

/// The name of the connection in `CLIENT LIST`.
const ROLE: &str = "operations";

/// How many questions are written before their answers are read: so few that the socket takes them without waiting.
const AT_ONCE: usize = 64;

pub(crate) struct Apart {
    connection: Duplex,
    /// The scripts whose text was sent over this connection.
    introduced: Vec<&'static Script>,
}

impl Apart {
    pub(super) fn connect(
        masters: &Arc<Masters>,
        node: usize,
        timeout: Duration,
        until: Instant,
    ) -> RedisResult<Self> {
        let dialling = Dialling::start(masters, node, ROLE, timeout, false)?;
        let time_left = until.saturating_duration_since(Instant::now());
        let made = dialling.wait(time_left);
        let mut connection = made.unwrap_or_else(|| Err(dialling.reason()))?;
        connection.reader.limit(LARGEST_MAP);
        Ok(Self {
            connection,
            introduced: Vec::new(),
        })
    }

    /// Asks all questions, and returns the answers in their order; a refusal is an answer too.
    pub(crate) fn ask(&mut self, questions: &[Request], until: Instant) -> RedisResult<Vec<Value>> {
        let mut answers = Vec::with_capacity(questions.len());
        for some in questions.chunks(AT_ONCE) {
            let mut bytes = Vec::new();
            for question in some {
                let is_new = |script: &&'static Script| {
                    !self
                        .introduced
                        .iter()
                        .any(|known| std::ptr::eq(*known, *script))
                };
                let new = question.our_script().filter(is_new);
                self.introduced.extend(new);
                question.write(&mut bytes, new.is_some());
            }
            self.connection.writer.write_all(&bytes)?;
            for _ in some {
                answers.push(self.read(until)?);
            }
        }
        Ok(answers)
    }

    fn read(&mut self, until: Instant) -> RedisResult<Value> {
        loop {
            let time_left = until.saturating_duration_since(Instant::now());
            if let Some(reply) = self.connection.reader.read(time_left)? {
                return Ok(reply);
            }
            if time_left.is_zero() {
                return Err(socket::timed_out("redis did not answer in time"));
            }
        }
    }
}
