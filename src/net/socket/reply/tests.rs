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
    let (replies, _) = read(
        b"-ERR unknown command 'EVALSHA', with args beginning with: 'l\xc3\r\n-\x1b[2J\r\n-\r\n",
    );
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
