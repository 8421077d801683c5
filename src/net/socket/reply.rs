//! Reads replies: RESP2, within limits. Memory only, apart from the `Read` that it is given.
//!
//! The server may be no Redis, a broken one, or hostile, so it may announce and send anything. Nothing is allocated for what is
//! only announced, an array is charged with all of its elements before the first has come, and nesting does not use the stack.
//!
//! A parser that has failed stays where it is: its connection has to be dropped.

use std::borrow::Cow;
use std::io::{self, Read};

use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::error::printable;

/// How many bytes a reply may have, but for the slots of a cluster. In memory it may take up to 19 times as much, since the
/// shortest element has three bytes.
///
/// The largest reply of our own requests names a thousand replicas (`ROLE`), or a channel of 64 KiB.
pub(crate) const LARGEST: usize = 1024 * 1024;

/// The limit for the answer to `CLUSTER SLOTS`. With every slot a range of its own, two replicas for each, and announced
/// names, that has 8 MiB.
pub(crate) const LARGEST_MAP: usize = 32 * 1024 * 1024;

/// How many bytes of a reply beyond a limit are skipped, so that its connection can be kept.
const MOST_SKIPPED: usize = 64 * 1024 * 1024;

/// The code of the error that takes the place of a reply that was skipped. The control character tells it from the code of
/// a server's error, of which [`text_of`] leaves none: a user's script may return any code.
pub(crate) const TOO_LARGE: &str = "\u{1}TOOLARGE";

/// How deeply arrays may be nested. The deepest of our own requests has four levels (`CLUSTER SLOTS`).
const DEEPEST: usize = 8;

/// The fewest bytes that an element of an array has: `+`, and the end of the line.
const SHORTEST: usize = 3;

/// The most bytes of a line that holds a number of 64 bits.
const NUMBER: usize = 32;

/// How many bytes are read at once at first.
const CHUNK: usize = 8 * 1024;

/// Above this size an empty buffer is freed.
const SPARE: usize = 64 * 1024;

/// Makes replies from what a server sends, however it is cut into pieces.
pub(super) struct Parser {
    /// The bytes that were read lie between `start` and `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How many of these bytes were searched for the end of a line.
    searched: usize,
    /// The arrays that are not complete, each an element of the one before.
    open: Vec<Open>,
    /// How many bytes of the reply were taken.
    taken: usize,
    limit: usize,
    /// A reply beyond a limit is skipped, and an error takes its place. If this is not set, the connection fails instead.
    skips: bool,
    skipping: Option<Skipping>,
}

struct Open {
    elements: Vec<Value>,
    left: usize,
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
    /// How many tokens are still to come: the end of the reply needs no record of its arrays.
    tokens: usize,
    /// How many bytes of a string are still to come.
    bytes: usize,
    /// The beginning of a line of text has been skipped.
    in_line: bool,
}

/// Why a token is not taken.
enum Refused {
    /// The reply exceeds a limit.
    TooLarge(String),
    Broken(RedisError),
}

impl From<RedisError> for Refused {
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

    /// Has replies beyond a limit skipped: each becomes an error with the code [`TOO_LARGE`].
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

    /// Returns the next reply, reading as often as it takes. After an error of `source` that passes, the next call goes on.
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
                Err(Refused::Broken(err)) => return Err(err),
                Err(Refused::TooLarge(why)) if !self.skips => return Err(too_large(why)),
                Err(Refused::TooLarge(why)) => {
                    let others = self.open.drain(..).map(|open| open.left - 1);
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

    fn take_whole(&mut self) -> Result<Option<Value>, Refused> {
        while let Some((token, len)) = self.token()? {
            if let Token::Array(1..) = token
                && self.open.len() == DEEPEST
            {
                return Err(Refused::TooLarge(format!(
                    "a reply is nested deeper than {DEEPEST} levels, the most that is read"
                )));
            }
            self.consume(len);
            let mut value = match token {
                Token::Value(value) => value,
                Token::Array(0) => Value::Array(Vec::new()),
                Token::Array(left) => {
                    let elements = Vec::with_capacity(left.min(16));
                    self.open.push(Open { elements, left });
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
                open.left -= 1;
                if open.left > 0 {
                    break;
                }
                value = Value::Array(std::mem::take(&mut open.elements));
                self.open.pop();
            }
        }
        Ok(None)
    }

    /// Skips the bytes that have come of a reply beyond a limit; returns the error that takes its place at its end.
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
    fn token(&mut self) -> Result<Option<(Token, usize)>, Refused> {
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

    /// Whether the reply may have so many bytes more.
    fn check(&self, bytes: usize) -> Result<(), Refused> {
        if bytes <= self.limit.saturating_sub(self.taken) {
            return Ok(());
        }
        Err(Refused::TooLarge(format!(
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

/// An announced size as a size in memory, where it may not fit; `None` if it is negative.
fn size(announced: i64) -> Option<usize> {
    let announced = u64::try_from(announced).ok()?;
    Some(usize::try_from(announced).unwrap_or(usize::MAX))
}

/// A line as text. Servers quote commands in errors, and may cut them within a character.
fn text_of(line: &[u8]) -> Cow<'_, str> {
    printable(String::from_utf8_lossy(line))
}

fn error_of(text: &str) -> RedisResult<Value> {
    // The parser of the client crate is the only way to make an error. A text that it does not parse as an error must not pass
    // for another answer.
    let line = format!("-{text}\r\n");
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(error @ Value::ServerError(_)) => Ok(error),
        _ => Err(no_reply("it is an error without a text".into())),
    }
}

fn unknown_kind(kind: u8) -> RedisError {
    no_reply(format!("it begins with {:?}", char::from(kind)))
}

/// The bytes are not RESP2.
fn no_reply(why: String) -> RedisError {
    (ErrorKind::Parse, "what came is no reply of redis", why).into()
}

fn too_large(what: String) -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::net::strange;

    /// Hands out pieces of these sizes, then an error that passes, as a socket with a timeout does.
    struct Pieces<'a> {
        bytes: &'a [u8],
        sizes: &'a [usize],
        next: usize,
        may_rest: bool,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.may_rest = !self.may_rest;
            if self.may_rest {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let size = self.sizes.get(self.next % self.sizes.len().max(1));
            self.next += 1;
            let n = size.copied().unwrap_or(usize::MAX);
            let n = n.clamp(1, buf.len()).min(self.bytes.len());
            buf[..n].copy_from_slice(&self.bytes[..n]);
            self.bytes = &self.bytes[n..];
            Ok(n)
        }
    }

    /// All replies up to the first error, and that.
    fn read_all(parser: &mut Parser, bytes: &[u8], sizes: &[usize]) -> (Vec<Value>, RedisError) {
        let mut source = Pieces {
            bytes,
            sizes,
            next: 0,
            may_rest: false,
        };
        let mut replies = Vec::new();
        loop {
            match parser.next(&mut source) {
                Ok(reply) => replies.push(reply),
                Err(err) if err.is_timeout() => {}
                Err(err) => return (replies, err),
            }
        }
    }

    fn read(bytes: &[u8]) -> (Vec<Value>, RedisError) {
        read_all(&mut Parser::default(), bytes, &[])
    }

    /// However few bytes have come, more are needed.
    #[track_caller]
    fn cut_everywhere(bytes: &[u8]) {
        for end in 0..bytes.len() {
            let (replies, err) = read(&bytes[..end]);
            let shown = String::from_utf8_lossy(&bytes[..end]);
            assert!(replies.is_empty(), "{shown:?}: {replies:?}");
            assert!(is_at_the_end(&err), "{shown:?}: {err}");
        }
        let (replies, err) = read(bytes);
        assert!(
            replies.len() == 1 && is_at_the_end(&err),
            "{replies:?} {err}"
        );
    }

    fn is_at_the_end(err: &RedisError) -> bool {
        err.is_connection_dropped()
    }

    #[track_caller]
    fn is_beyond_a_limit(err: &RedisError) -> bool {
        let said = err.to_string();
        assert_eq!(
            said.contains("the most that is read"),
            !is_at_the_end(err) && err.kind() == ErrorKind::Io,
            "{said}"
        );
        said.contains("the most that is read")
    }

    fn is_skipped(reply: &Value) -> bool {
        matches!(reply, Value::ServerError(err) if err.code() == TOO_LARGE)
    }

    proptest! {
        #![proptest_config(strange::cases(256))]

        #[test]
        fn replies_are_read_however_they_are_cut(
            replies in prop::collection::vec(strange::resp2(), 1..4),
            sizes in prop::collection::vec(1..40_usize, 1..6),
        ) {
            let mut bytes = Vec::new();
            for reply in &replies {
                strange::encode(reply, &mut bytes);
            }
            let (read, err) = read_all(&mut Parser::default(), &bytes, &sizes);
            prop_assert_eq!(read, replies);
            prop_assert!(is_at_the_end(&err), "{}", err);
        }

        #[test]
        fn a_reply_beyond_a_limit_is_skipped_however_it_is_cut(
            replies in prop::collection::vec(strange::resp2(), 1..6),
            sizes in prop::collection::vec(1..40_usize, 1..6),
            limit in 1..100_usize,
        ) {
            let (mut bytes, mut due) = (Vec::new(), Vec::new());
            for reply in &replies {
                let begin = bytes.len();
                strange::encode(reply, &mut bytes);
                due.push(Some(reply).filter(|_| bytes.len() - begin <= limit));
            }
            let mut parser = Parser { limit, ..Parser::default() };
            parser.skip_too_large();
            let (read, err) = read_all(&mut parser, &bytes, &sizes);
            let read: Vec<_> = read.iter().map(|reply| Some(reply).filter(|reply| !is_skipped(reply))).collect();
            prop_assert_eq!(read, due);
            prop_assert!(is_at_the_end(&err), "{}", err);
        }

        #[test]
        fn a_reply_that_is_cut_at_any_byte_is_not_complete(reply in strange::resp2()) {
            let mut bytes = Vec::new();
            strange::encode(&reply, &mut bytes);
            cut_everywhere(&bytes);
        }

        #[test]
        fn whatever_follows_a_minus_is_an_error(
            line in prop::collection::vec(any::<u8>().prop_filter("an end", |byte| *byte != b'\n'), 0..200),
        ) {
            let bytes = [b"-", &line[..], b"\r\n+OK\r\n"].concat();
            let (replies, _) = read(&bytes);
            prop_assert!(
                matches!(&replies[..], [Value::ServerError(_), Value::Okay]),
                "{:?}", replies
            );
        }

        /// Within the limits and without types of RESP3, both parsers return the same.
        #[test]
        fn what_is_nearly_a_reply_is_read_like_by_others(bytes in strange::nearly_replies()) {
            let (read, err) = read_all(&mut Parser::default(), &bytes, &[3, 50]);
            let mut source = &bytes[..];
            let mut other = redis::Parser::new();
            for reply in &read {
                // Bytes that are no text are shown as such here, and rejected by the other parser.
                if format!("{reply:?}").contains(char::REPLACEMENT_CHARACTER) {
                    return Ok(());
                }
                let others = other.parse_value(&mut source).ok();
                prop_assert_eq!(Some(reply), others.as_ref());
            }
            let others = other.parse_value(&mut source);
            if is_at_the_end(&err) {
                prop_assert!(others.is_err(), "{:?}", others);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            first in prop::sample::select(&b"+-:$*"[..]),
            sizes in prop::collection::vec(1..40_usize, 1..6),
        ) {
            read_all(&mut Parser::default(), &[&[first], &bytes[..]].concat(), &sizes);
            read_all(&mut Parser::default(), &bytes, &sizes);
        }

        /// Nothing is allocated for what is only announced.
        #[test]
        fn memory_is_bounded_by_what_has_come(
            announced in prop::collection::vec((prop::sample::select(&b"$*"[..]), prop_oneof![any::<i64>(), 0..20_000_i64]), 1..12),
            rest in strange::nearly_replies(),
        ) {
            let announced = announced.iter().map(|(kind, n)| format!("{}{n}\r\n", char::from(*kind)));
            let bytes = [announced.collect::<String>().as_bytes(), &rest].concat();
            let mut parser = Parser::default();
            read_all(&mut parser, &bytes, &[1000]);
            prop_assert!(parser.buffer.capacity() <= CHUNK + 2 * bytes.len());
            let kept: usize = parser.open.iter().map(|open| open.elements.capacity()).sum();
            prop_assert!(kept <= 16 * DEEPEST + 2 * bytes.len());
        }
    }

    #[test]
    fn what_is_larger_than_any_reply_is_refused_as_soon_as_it_is_announced() {
        let nested = "*1\r\n".repeat(DEEPEST + 1);
        let many = format!("*{}\r\n", LARGEST / SHORTEST);
        let two = format!("*2\r\n*{}\r\n", LARGEST / SHORTEST - 3);
        for bytes in [
            "$999999999999\r\n",
            "*999999999999\r\n",
            &format!("${}\r\n", i64::MAX),
            &format!("*{}\r\n", i64::MAX),
            &format!("${LARGEST}\r\n"),
            &format!("*2\r\n${}\r\n", LARGEST - 15),
            &many,
            &two,
            &nested,
            &nested.repeat(100_000),
            &format!("-{}", "a".repeat(LARGEST + 1)),
        ] {
            let (replies, err) = read(bytes.as_bytes());
            let begin: String = bytes.chars().take(40).collect();
            assert!(replies.is_empty(), "{begin}");
            assert!(is_beyond_a_limit(&err), "{begin}: {err}");
        }
    }

    #[test]
    fn what_is_within_the_limits_is_read() {
        let deep = [&"*1\r\n".repeat(DEEPEST), ":7\r\n"].concat();
        let size = LARGEST - 20;
        let large = format!("${size}\r\n{}\r\n", "x".repeat(size));
        let long = format!("+{}\r\n", "x".repeat(LARGEST - 3));
        let elements = LARGEST / 5 - 2;
        let many = format!("*{elements}\r\n{}", ":17\r\n".repeat(elements));
        assert!(size_of::<Value>() <= 19 * SHORTEST);
        for bytes in [
            &deep,
            &large,
            &long,
            &many,
            &large.repeat(3),
            &deep.repeat(1000),
        ] {
            let (replies, err) = read(bytes.as_bytes());
            assert!(is_at_the_end(&err), "{err}");
            assert!([1, 3, 1000].contains(&replies.len()), "{}", replies.len());
        }
        let mut parser = Parser::default();
        read_all(&mut parser, large.as_bytes(), &[]);
        assert!(parser.buffer.capacity() <= SPARE, "it was freed");
        parser.limit(100);
        let (_, err) = read_all(
            &mut Parser {
                limit: 100,
                ..parser
            },
            large.as_bytes(),
            &[],
        );
        assert!(is_beyond_a_limit(&err), "{err}");
    }

    #[test]
    fn what_is_too_large_or_too_deep_is_skipped_up_to_a_limit() {
        let size = 3 * LARGEST;
        let large = format!("${size}\r\n{}\r\n", "x".repeat(size));
        let line = format!("-{}\r\n", "x".repeat(size));
        let deep = [&"*2\r\n:1\r\n".repeat(2 * DEEPEST), "+OK\r\n"].concat();
        let many = format!("*{0}\r\n{1}", LARGEST / 2, ":1\r\n".repeat(LARGEST / 2));
        let empty = format!("*2\r\n*0\r\n{}*-1\r\n", "*1\r\n".repeat(DEEPEST));
        let mut parser = Parser::default();
        parser.skip_too_large();
        for bytes in [&large, &line, &deep, &many, &empty] {
            let (replies, err) = read_all(&mut parser, [bytes, ":7\r\n"].concat().as_bytes(), &[]);
            assert!(
                matches!(&replies[..], [error, Value::Int(7)] if is_skipped(error)),
                "{}",
                replies.len()
            );
            assert!(is_at_the_end(&err) && !parser.is_skipping());
            assert!(
                parser.buffer.capacity() <= SPARE,
                "only what is kept takes memory"
            );
        }
        for bytes in [
            &*format!("${MOST_SKIPPED}\r\n"),
            &format!("*{MOST_SKIPPED}\r\n"),
            &format!("*{}\r\n", i64::MAX),
            &format!(
                "*2\r\n${0}\r\n{1}\r\n${MOST_SKIPPED}\r\n",
                2 * LARGEST,
                "x".repeat(2 * LARGEST)
            ),
        ] {
            let mut parser = Parser::default();
            parser.skip_too_large();
            let (replies, err) = read_all(&mut parser, bytes.as_bytes(), &[]);
            assert!(replies.is_empty() && is_beyond_a_limit(&err), "{err}");
            assert!(
                err.to_string().contains("its connection was closed"),
                "{err}"
            );
        }
    }

    #[test]
    fn replies_of_redis_that_are_cut_at_any_byte_are_not_complete() {
        for reply in [
            "+OK\r\n",
            "+PONG\r\n",
            "+\r\n",
            ":0\r\n",
            ":-9223372036854775808\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$7\r\na\r\nb\r\n\r\r\n",
            "*-1\r\n",
            "*0\r\n",
            "-ERR unknown command 'EVALSHA', with args beginning with: 'l\u{fffd}\r\n",
            "-MOVED 3999 127.0.0.1:6381\r\n",
            "-NOSCRIPT No matching script. Please use EVAL.\r\n",
            "-\r\n",
            "*3\r\n$9\r\nsubscribe\r\n$26\r\nredisson_lock__channel:{a}\r\n:1\r\n",
            "*3\r\n$6\r\nmaster\r\n:3129659\r\n*1\r\n*3\r\n$9\r\n127.0.0.1\r\n$4\r\n9001\r\n$7\r\n3129242\r\n",
            "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:30001\r\n$2\r\nid\r\n*2\r\n$8\r\nhostname\r\n$6\r\nhost-1\r\n",
            "*2\r\n$1\r\n0\r\n*4\r\n$4\r\nmode\r\n$4\r\nread\r\n$3\r\na:1\r\n$1\r\n1\r\n",
        ] {
            cut_everywhere(reply.as_bytes());
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bytes in [
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "H",
            "\r\n",
            "_\r\n",
            ">3\r\n+message\r\n+a\r\n+b\r\n",
            "%1\r\n+a\r\n+b\r\n",
            "~1\r\n+a\r\n",
            "|1\r\n+a\r\n+b\r\n+c\r\n",
            ",1.5\r\n",
            "#t\r\n",
            "(1\r\n",
            "!5\r\nERR a\r\n",
            "=6\r\ntxt:ab\r\n",
            ":\r\n",
            ":1a\r\n",
            ": 1\r\n",
            ":9223372036854775808\r\n",
            "$-2\r\n",
            "*-2\r\n",
            "$1\r\nab\r\n",
            "*1\r\n_\r\n",
            "*x\r\n",
        ] {
            let (replies, err) = read(bytes.as_bytes());
            assert!(replies.is_empty(), "{bytes:?}: {replies:?}");
            assert_eq!(err.kind(), ErrorKind::Parse, "{bytes:?}: {err}");
        }
    }

    #[test]
    fn an_error_that_is_no_text_is_an_error_all_the_same() {
        // As a server does that quotes a name in part.
        let (replies, _) = read(b"-ERR unknown command 'EVALSHA', with args beginning with: 'l\xc3\r\n-\x1b[2J\r\n-\r\n");
        let [unknown, escape, Value::ServerError(_)] = &replies[..] else {
            panic!("{replies:?}");
        };
        let (Value::ServerError(unknown), Value::ServerError(escape)) = (unknown, escape) else {
            panic!("{replies:?}");
        };
        assert_eq!(unknown.code(), "ERR");
        assert!(
            unknown
                .details()
                .is_some_and(|text| text.ends_with("'l\u{fffd}"))
        );
        assert_eq!(escape.code(), "\u{fffd}[2J");
    }
}
