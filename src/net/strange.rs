//! Replies that no server in its right mind sends, for tests.

use proptest::prelude::*;
use proptest::test_runner::Config;
use redis::{PushKind, Value, VerbatimFormat};

/// How many cases a test tries: so many, or `FUZZ_CASES`.
pub(crate) fn cases(cases: u32) -> Config {
    let asked = std::env::var("FUZZ_CASES").ok();
    Config {
        failure_persistence: None,
        ..Config::with_cases(asked.and_then(|n| n.parse().ok()).unwrap_or(cases))
    }
}

/// Numbers at all edges.
pub(crate) fn number() -> impl Strategy<Value = i64> {
    let edges = [
        i64::MIN,
        -3,
        -2,
        -1,
        0,
        1,
        2,
        16_383,
        16_384,
        65_535,
        65_536,
        i64::MAX,
    ];
    prop_oneof![
        4 => prop::sample::select(edges.to_vec()),
        1 => any::<i64>(),
    ]
}

/// Words that replies consist of, numbers as text, and anything else.
pub(crate) fn word() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: [&str; 24] = [
        "",
        "?",
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "OK",
        "master",
        "slave",
        "message",
        "smessage",
        "subscribe",
        "unsubscribe",
        "sunsubscribe",
        "pong",
        "hostname",
        "ip",
        "127.0.0.1",
        "::1",
        "a:b",
        "# Server\r\nrun_id:\r\nrun_id:x\r\nuptime_in_seconds:99999999999999999999\r\n",
        "run_id:",
        "é",
    ];
    prop_oneof![
        6 => prop::sample::select(WORDS.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        2 => number().prop_map(|n| n.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,20}".prop_filter("a value of its own", |line| line != "OK"),
        "MOVED [0-9]{1,6} [a-z.:?\\[\\]]{0,9}:[0-9]{0,6}",
        "(ERR|ASK|MOVED|NOSCRIPT|OOM|BUSY|@user_script:) [ -~]{0,30}",
        "ERR Error running script \\(call to [a-f_]{0,4}\\): @user_script:[0-9]{0,2}: [ -~]{0,20}",
        "[A-Z]{0,5} [a-z]{0,5} script: [a-f0-9]{0,4}, on @user_script:[0-9]{0,2}\\.",
    ]
}

fn error() -> impl Strategy<Value = Value> {
    let parsed = |line: String| redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
    line().prop_map(move |line| parsed(line).expect("an error"))
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        4 => number().prop_map(Value::Int),
        4 => word().prop_map(Value::BulkString),
        1 => line().prop_filter("a value of its own", |line| line != "OK").prop_map(Value::SimpleString),
        1 => error(),
    ]
}

/// Any value of RESP2, within the limits.
pub(crate) fn resp2() -> impl Strategy<Value = Value> + Clone {
    let array = |inner| prop::collection::vec(inner, 0..6).prop_map(Value::Array);
    leaf().prop_recursive(5, 40, 6, array).boxed()
}

/// Any value of the client crate.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        6 => leaf(),
        1 => any::<f64>().prop_map(Value::Double),
        1 => any::<bool>().prop_map(Value::Boolean),
        1 => word().prop_map(Value::BigNumber),
        1 => line().prop_map(|text| Value::VerbatimString { format: VerbatimFormat::Text, text }),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        let several = prop::collection::vec(inner.clone(), 0..5);
        let pairs = prop::collection::vec((inner.clone(), inner), 0..3);
        prop_oneof![
            4 => several.clone().prop_map(Value::Array),
            1 => several.clone().prop_map(Value::Set),
            1 => several.prop_map(|data| Value::Push { kind: PushKind::Message, data }),
            1 => pairs.prop_map(Value::Map),
        ]
    })
}

/// The bytes of what RESP2 can say.
pub(crate) fn encode(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Nil => bytes.extend(b"$-1\r\n"),
        Value::Okay => bytes.extend(b"+OK\r\n"),
        Value::Int(n) => bytes.extend(format!(":{n}\r\n").bytes()),
        Value::SimpleString(text) => bytes.extend(format!("+{text}\r\n").bytes()),
        Value::BulkString(text) => {
            bytes.extend(format!("${}\r\n", text.len()).bytes());
            bytes.extend(text);
            bytes.extend(b"\r\n");
        }
        Value::ServerError(err) => {
            let detail = err.details().map(|detail| format!(" {detail}"));
            bytes.extend(format!("-{}{}\r\n", err.code(), detail.unwrap_or_default()).bytes());
        }
        Value::Array(values) => {
            bytes.extend(format!("*{}\r\n", values.len()).bytes());
            for value in values {
                encode(value, bytes);
            }
        }
        other => panic!("not in RESP2: {other:?}"),
    }
}

/// Replies with some bytes changed, left out, or cut off.
pub(crate) fn nearly_replies() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec(resp2(), 1..4).prop_map(|replies| {
        let mut bytes = Vec::new();
        for reply in &replies {
            encode(reply, &mut bytes);
        }
        bytes
    });
    let spoiled = (
        any::<prop::sample::Index>(),
        prop::sample::select(&b"+-:$*\r\n019 "[..]),
        0..3_u8,
    );
    (bytes, prop::collection::vec(spoiled, 0..4)).prop_map(|(mut bytes, spoiled)| {
        for (at, byte, how) in spoiled {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}
