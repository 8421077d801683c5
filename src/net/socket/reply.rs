//! Reads replies: RESP2, within limits. Does no I/O of its own: bytes come from the `Read` that it is given.
//!
//! The server may be no Redis, a broken one, or hostile, so it may announce and send anything. So what is only announced
//! takes hardly any memory (room for 16 elements of an array). An array exceeds the limit as soon as it is announced if
//! even the shortest elements would not fit. Nesting does not use the stack.
//!
//! After an error the connection has to be dropped. The only exception is an error of the source that passes by itself,
//! such as a timeout.

use std::borrow::Cow;
use std::io::{self, Read};

use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::error::printable;

/// How many bytes a reply may have, except where [`LARGEST_MAP`] applies. In memory it may take up to 19 times as much: an
/// element of three bytes becomes a whole `Value`.
///
/// Apart from the replies to users' guarded commands, the largest under this limit are the answer to `ROLE` with a
/// thousand replicas, and a message on a channel whose name has 64 KiB.
pub(crate) const LARGEST: usize = 1024 * 1024;

/// The limit for the answer to `CLUSTER SLOTS`, and for operators' questions. `CLUSTER SLOTS` answers with 8 MiB if every
/// slot is a range of its own with two replicas, and the nodes announce host names.
pub(crate) const LARGEST_MAP: usize = 32 * 1024 * 1024;

/// The most bytes that a skipped reply may have, counted from its beginning. If it has more, the connection is closed.
const MOST_SKIPPED: usize = 64 * 1024 * 1024;

/// The code of the error that takes the place of a reply that was skipped. No error of a server or of a user's script has
/// this code, since [`text_of`] replaces control characters.
pub(crate) const TOO_LARGE: &str = "\u{1}TOOLARGE";

/// How deeply arrays may be nested. Of the replies to our own requests, the deepest has four levels (`CLUSTER SLOTS`).
const DEEPEST: usize = 8;

/// The fewest bytes that an element of an array has: `+`, and the end of the line.
const SHORTEST: usize = 3;

/// The most bytes of a line that holds a number of 64 bits.
const NUMBER: usize = 32;

/// The first size of the buffer, and so the most bytes of the first read.
const CHUNK: usize = 8 * 1024;

/// Above this size an empty buffer is freed.
const SPARE: usize = 64 * 1024;

/// Makes replies from what a server sends, however it is cut into pieces.
pub(super) struct Parser {
    /// The bytes that were read and not yet consumed lie between `start` and `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How many bytes, from `start` on, were searched for the end of a line without success.
    searched: usize,
    /// The arrays that are not complete, each an element of the one before.
    open: Vec<Open>,
    /// How many bytes of the reply were taken.
    taken: usize,
    limit: usize,
    /// Whether a reply beyond a limit is skipped, and an error takes its place. If not, the connection fails.
    skips: bool,
    skipping: Option<Skipping>,
}

struct Open {
    elements: Vec<Value>,
    missing: usize,
}

enum Token {
    Value(Value),
    /// An array of so many elements begins.
    Array(usize),
}

/// The rest of a reply that is skipped.
struct Skipping {
    /// Which limit it exceeds.
    why: String,
    /// How many tokens are still to come: with this count, the end of the reply is found without a list of open arrays.
    tokens: usize,
    /// How many bytes of a string are still to come.
    bytes: usize,
    /// The beginning of a line of text has been skipped.
    in_line: bool,
}

/// Why a token is not taken.
enum TokenError {
    /// The reply exceeds a limit.
    TooLarge(String),
    Broken(RedisError),
}

impl From<RedisError> for TokenError {
    fn from(err: RedisError) -> Self {
        Self::Broken(err)
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            searched: 0,
            open: Vec::new(),
            taken: 0,
            limit: LARGEST,
            skips: false,
            skipping: None,
        }
    }
}

impl Parser {
    /// Sets how many bytes a reply may have from now on.
    pub(super) fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Skips replies beyond a limit: each becomes an error with the code [`TOO_LARGE`].
    pub(super) fn skip_too_large(&mut self) {
        self.skips = true;
    }

    pub(super) fn is_skipping(&self) -> bool {
        self.skipping.is_some()
    }

    /// Whether bytes were read that belong to no reply yet.
    pub(super) fn has_unread(&self) -> bool {
        self.start < self.end
    }

    /// Returns the next reply, reading as often as it takes. After a passing error of `source`, such as a timeout, the
    /// next call continues.
    ///
    /// # Errors
    ///
    /// Errors of `source`; `UnexpectedEof` at its end, `InvalidData` beyond a limit, [`ErrorKind::Parse`] for bytes that are no
    /// reply.
    pub(super) fn next(&mut self, source: &mut impl Read) -> RedisResult<Value> {
        loop {
            if let Some(value) = self.take()? {
                return Ok(value);
            }
            self.fill(source)?;
        }
    }

    fn fill(&mut self, source: &mut impl Read) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.end == self.buffer.len() {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            } else {
                self.buffer.resize((2 * self.end).max(CHUNK), 0);
            }
        }
        match source.read(&mut self.buffer[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.end += n;
                Ok(())
            }
        }
    }

    /// The next reply, if all of it has been read.
    ///
    /// # Errors
    ///
    /// Errors of [`next`](Self::next), except those of its source.
    pub(super) fn take(&mut self) -> RedisResult<Option<Value>> {
        if self.skipping.is_none() {
            match self.take_whole() {
                Ok(value) => return Ok(value),
                Err(TokenError::Broken(err)) => return Err(err),
                Err(TokenError::TooLarge(why)) if !self.skips => return Err(too_large(why)),
                Err(TokenError::TooLarge(why)) => {
                    // Each open array still counts the element that is under way.
                    let others = self.open.drain(..).map(|open| open.missing - 1);
                    self.skipping = Some(Skipping {
                        why,
                        tokens: 1 + others.sum::<usize>(),
                        bytes: 0,
                        in_line: false,
                    });
                    self.searched = 0;
                    self.buffer.resize(self.buffer.len().max(SPARE), 0);
                }
            }
        }
        self.skip()
    }

    fn take_whole(&mut self) -> Result<Option<Value>, TokenError> {
        while let Some((token, len)) = self.token()? {
            if let Token::Array(1..) = token
                && self.open.len() == DEEPEST
            {
                return Err(TokenError::TooLarge(format!(
                    "a reply is nested deeper than {DEEPEST} levels, the most that is read"
                )));
            }
            self.consume(len);
            let mut value = match token {
                Token::Value(value) => value,
                Token::Array(0) => Value::Array(Vec::new()),
                Token::Array(missing) => {
                    let elements = Vec::with_capacity(missing.min(16));
                    self.open.push(Open { elements, missing });
                    continue;
                }
            };
            // The value may complete its array, and that array the one around it.
            loop {
                let Some(open) = self.open.last_mut() else {
                    self.end_reply();
                    return Ok(Some(value));
                };
                open.elements.push(value);
                open.missing -= 1;
                if open.missing > 0 {
                    break;
                }
                value = Value::Array(std::mem::take(&mut open.elements));
                self.open.pop();
            }
        }
        Ok(None)
    }

    /// Skips what has come of a reply beyond a limit. At the end of the reply, returns the error that stands for it.
    fn skip(&mut self) -> RedisResult<Option<Value>> {
        let Some(mut skipping) = self.skipping.take() else {
            return Ok(None);
        };
        if self.skip_tokens(&mut skipping)? {
            self.end_reply();
            return error_of(&format!("{TOO_LARGE} {}", skipping.why)).map(Some);
        }
        self.skipping = Some(skipping);
        Ok(None)
    }

    /// Skips the tokens that have come; returns whether the reply ends with them.
    fn skip_tokens(&mut self, skipping: &mut Skipping) -> RedisResult<bool> {
        loop {
            let some = skipping.bytes.min(self.end - self.start);
            self.consume(some);
            skipping.bytes -= some;
            let announced = skipping.tokens.saturating_mul(SHORTEST);
            let announced = announced.saturating_add(skipping.bytes);
            if self.taken.saturating_add(announced) > MOST_SKIPPED {
                return Err(too_large(format!(
                    "{}, and the rest of it is too long to be skipped, so its connection was closed",
                    skipping.why
                )));
            }
            if skipping.bytes > 0 {
                return Ok(false);
            }
            if skipping.tokens == 0 {
                return Ok(true);
            }
            let bytes = &self.buffer[self.start..self.end];
            let Some(&kind) = bytes.first() else {
                return Ok(false);
            };
            let is_text = skipping.in_line || b"+-".contains(&kind);
            let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
                if !is_text && bytes.len() > NUMBER {
                    return Err(no_reply("a number is expected".into()));
                }
                if is_text {
                    // The last byte may be half of the line's end.
                    self.consume(bytes.len() - 1);
                    skipping.in_line = true;
                }
                return Ok(false);
            };
            skipping.tokens -= 1;
            match kind {
                _ if is_text => {}
                b':' => {}
                b'$' | b'*' => match (kind, size(number(&bytes[1..end])?)) {
                    (b'*', Some(elements)) => {
                        skipping.tokens = skipping.tokens.saturating_add(elements);
                    }
                    (_, Some(size)) => skipping.bytes = size.saturating_add(2),
                    (_, None) => {}
                },
                other => return Err(unknown_kind(other)),
            }
            skipping.in_line = false;
            self.consume(end + 2);
        }
    }

    /// The next token and its length, if all of it has been read.
    fn token(&mut self) -> Result<Option<(Token, usize)>, TokenError> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(&kind) = bytes.first() else {
            return Ok(None);
        };
        if !b"+-:$*".contains(&kind) {
            return Err(unknown_kind(kind).into());
        }
        let from = self.searched.max(1);
        let found = bytes[from..].windows(2).position(|two| two == b"\r\n");
        let Some(end) = found.map(|at| from + at) else {
            // The last byte may be half of the line's end.
            self.searched = bytes.len() - 1;
            self.check(self.searched)?;
            return Ok(None);
        };
        let line = &bytes[1..end];
        let mut len = end + 2;
        self.check(len)?;
        let token = match kind {
            b'+' if line == b"OK" => Token::Value(Value::Okay),
            b'+' => Token::Value(Value::SimpleString(text_of(line).into_owned())),
            b'-' => Token::Value(error_of(&text_of(line))?),
            b':' => Token::Value(Value::Int(number(line)?)),
            _ => match (kind, size(number(line)?)) {
                (b'*', Some(elements)) => {
                    // The elements are yet to come, and have to fit.
                    self.check(elements.saturating_mul(SHORTEST).saturating_add(len))?;
                    Token::Array(elements)
                }
                (_, Some(size)) => {
                    self.check(len.saturating_add(size).saturating_add(2))?;
                    let Some(text) = bytes.get(len..len + size + 2) else {
                        return Ok(None);
                    };
                    let Some(text) = text.strip_suffix(b"\r\n") else {
                        return Err(no_reply("a string is longer than announced".into()).into());
                    };
                    len += size + 2;
                    Token::Value(Value::BulkString(text.to_vec()))
                }
                (_, None) if line == b"-1" => Token::Value(Value::Nil),
                (_, None) => return Err(no_reply("a size is negative".into()).into()),
            },
        };
        Ok(Some((token, len)))
    }

    /// Removes `len` bytes of the reply from the front of the buffer.
    fn consume(&mut self, len: usize) {
        self.start += len;
        self.taken += len;
        self.searched = 0;
    }

    /// A reply is complete: the next one has limits of its own.
    fn end_reply(&mut self) {
        self.taken = 0;
        if self.start == self.end && self.buffer.len() > SPARE {
            self.buffer = Vec::new();
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns an error if `bytes` more bytes of the reply would exceed the limit.
    fn check(&self, bytes: usize) -> Result<(), TokenError> {
        if bytes <= self.limit.saturating_sub(self.taken) {
            return Ok(());
        }
        Err(TokenError::TooLarge(format!(
            "a reply has more than {} KiB, the most that is read",
            self.limit / 1024
        )))
    }
}

fn number(line: &[u8]) -> RedisResult<i64> {
    let number = std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.parse().ok());
    number.ok_or_else(|| no_reply("a number is expected".into()))
}

/// An announced size as a `usize`, or `usize::MAX` if it does not fit; `None` if it is negative.
fn size(announced: i64) -> Option<usize> {
    let announced = u64::try_from(announced).ok()?;
    Some(usize::try_from(announced).unwrap_or(usize::MAX))
}

/// A line as text. It may be no UTF-8: an error may quote a command and cut it within a character.
fn text_of(line: &[u8]) -> Cow<'_, str> {
    printable(String::from_utf8_lossy(line))
}

fn error_of(text: &str) -> RedisResult<Value> {
    // Only the parser of the `redis` crate can make a `Value::ServerError`. If it reads the text as anything else, that
    // must not pass for an answer.
    let line = format!("-{text}\r\n");
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(error @ Value::ServerError(_)) => Ok(error),
        _ => Err(no_reply("the error has no text".into())),
    }
}

fn unknown_kind(kind: u8) -> RedisError {
    no_reply(format!("it begins with {:?}", char::from(kind)))
}

/// The bytes are not RESP2.
fn no_reply(why: String) -> RedisError {
    (
        ErrorKind::Parse,
        "the bytes received are no reply of redis",
        why,
    )
        .into()
}

fn too_large(reason: String) -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, reason).into()
}

#[cfg(test)]
mod tests;
