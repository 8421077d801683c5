use super::*;

use std::sync::{Arc, LazyLock};

use crate::error::is_transient;
use crate::net::request::{Request, Script, ScriptRef};
use crate::net::slot::slot_of;

static OURS: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));

/// A verdict without its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Answer,
    Text,
    Moved,
    Asking,
    Later,
    Never,
}

impl Is {
    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Answer(_) => Self::Answer,
            Verdict::SendText => Self::Text,
            Verdict::Elsewhere(redirection) if redirection.is_asking => Self::Asking,
            Verdict::Elsewhere(_) => Self::Moved,
            Verdict::Later(_) => Self::Later,
            Verdict::Never(_) => Self::Never,
        }
    }
}

/// A request that a thread waits for, a request that is sent once, a user's script, and what is kept.
fn kinds() -> [RequestKind; 4] {
    let users = ScriptRef::Users(Arc::new(Script::new("return 2")));
    let keys: &[&[u8]] = &[b"k"];
    [
        Request::script("testing", &OURS, &["k"], &["o:1"]).kind(),
        Request::once("testing", ScriptRef::Ours(&OURS), keys, &[]).kind(),
        Request::once("testing", users, keys, &[]).kind(),
        RequestKind::Kept,
    ]
}

fn reply(line: &str) -> Value {
    redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("a reply")
}

fn error(line: &str) -> RedisError {
    reply(line).extract_error().expect_err(line)
}

/// By the reply: what it means for each of the [kinds] whose script was sent by its hash, in a cluster; and what
/// it says of others.
#[test]
fn every_code_means_the_same_to_everybody_who_asks() {
    use Is::{Answer, Asking, Later, Moved, Never, Text};
    let slot = slot_of(b"k");
    let other = slot + 1;
    let moved = format!("-MOVED {slot} 127.0.0.1:7001");
    let moved_other = format!("-MOVED {other} 127.0.0.1:7001");
    let ask = format!("-ASK {slot} 127.0.0.1:7001");
    let table: &[(&str, [Is; 4], Reach)] = &[
        (":1", [Answer; 4], Reach::Request),
        ("+OK", [Answer; 4], Reach::Request),
        ("$-1", [Answer; 4], Reach::Request),
        (
            "-NOSCRIPT No matching script. Please use EVAL.",
            [Text; 4],
            Reach::Request,
        ),
        ("-NOSCRIPT mine", [Text, Text, Never, Text], Reach::Request),
        (&moved, [Moved; 4], Reach::Request),
        (&moved_other, [Moved, Moved, Never, Moved], Reach::Request),
        (
            "-MOVED somewhere",
            [Never, Never, Never, Later],
            Reach::Request,
        ),
        ("-MOVED", [Never, Never, Never, Later], Reach::Request),
        (&ask, [Asking; 4], Reach::Request),
        (
            "-ASK 1 nowhere",
            [Never, Never, Never, Later],
            Reach::Request,
        ),
        (
            "-TRYAGAIN Multiple keys request",
            [Later, Later, Never, Later],
            Reach::Keys,
        ),
        (
            "-CLUSTERDOWN Hash slot not served",
            [Later, Later, Never, Later],
            Reach::Slots,
        ),
        (
            "-READONLY You can't write",
            [Later, Later, Never, Later],
            Reach::Master,
        ),
        (
            "-LOADING Redis is loading",
            [Later, Later, Never, Later],
            Reach::Everything,
        ),
        (
            "-MASTERDOWN Link is down",
            [Later, Later, Never, Later],
            Reach::Everything,
        ),
        (
            "-ERR max number of clients reached",
            [Later, Later, Never, Later],
            Reach::Everything,
        ),
        (
            "-BUSY Redis is busy",
            [Later, Later, Never, Later],
            Reach::Data,
        ),
        (
            "-NOREPLICAS Not enough",
            [Later, Later, Never, Later],
            Reach::Data,
        ),
        (
            "-RESTARTED 3 s ago",
            [Later, Later, Never, Later],
            Reach::Data,
        ),
        (
            "-MISCONF Errors writing",
            [Never, Never, Never, Later],
            Reach::Data,
        ),
        (
            "-OOM command not allowed",
            [Never, Never, Never, Later],
            Reach::Data,
        ),
        ("-WRONGTYPE Operation against", [Never; 4], Reach::Request),
        ("-NOPERM no", [Never; 4], Reach::Request),
        (
            "-NOAUTH Authentication required.",
            [Never; 4],
            Reach::Request,
        ),
        ("-CROSSSLOT Keys in request", [Never; 4], Reach::Request),
        (
            "-BUSYKEY Target key name already exists.",
            [Never; 4],
            Reach::Request,
        ),
        ("-ERR unknown command", [Never; 4], Reach::Request),
        ("-ODD", [Never; 4], Reach::Request),
    ];
    for (line, by_kind, said_of_others) in table {
        for (kind, expected) in kinds().into_iter().zip(by_kind) {
            for (by_text, is_clustered) in
                [(false, true), (false, false), (true, true), (true, false)]
            {
                for redirected in [0, REDIRECTIONS - 1, REDIRECTIONS] {
                    let asked = RequestFacts {
                        kind,
                        by_text,
                        redirected,
                        is_clustered,
                    };
                    let expected = match expected {
                        Text if by_text => Never,
                        Moved | Asking if !is_clustered => Never,
                        Moved | Asking if redirected == REDIRECTIONS => Later,
                        // Only in a cluster does a kept request wait for its slot to have a node.
                        Later if !is_clustered && line.starts_with("-MOVED") => Never,
                        Later if !is_clustered && line.starts_with("-ASK") => Never,
                        expected => *expected,
                    };
                    let found = Is::of(&verdict(reply(line), || asked));
                    assert_eq!(found, expected, "{line}: {asked:?}");
                }
            }
        }
        if line.starts_with('-') {
            assert_eq!(reach(&error(line)), *said_of_others, "{line}");
        }
    }
}

#[test]
fn a_request_that_nodes_send_to_each_other_may_be_sent_again_later() {
    let asked = RequestFacts {
        redirected: REDIRECTIONS,
        ..RequestFacts::question(true)
    };
    for line in ["-MOVED 7 127.0.0.1:7001", "-ASK 7 127.0.0.1:7001"] {
        let Verdict::Later(err) = verdict(reply(line), || asked) else {
            panic!("{line}");
        };
        assert!(
            is_transient(&err) && err.to_string().contains("7 127.0.0.1:7001"),
            "{err}"
        );
    }
}

#[test]
fn a_redirection_names_a_slot_and_a_node() {
    for (detail, expected) in [
        ("3999 127.0.0.1:6381", Some((3999, "127.0.0.1", 6381))),
        ("3999 ::1:6381", Some((3999, "::1", 6381))),
        ("3999 [::1]:6381", Some((3999, "::1", 6381))),
        ("3999 a.example:6381", Some((3999, "a.example", 6381))),
        ("3999 :6381", Some((3999, "", 6381))),
        ("65536 a:1", None),
        ("3999", None),
        ("x a:1", None),
        ("3999 a", None),
        ("3999 a:65536", None),
        ("", None),
    ] {
        let found = Redirection::of(&error(&format!("-MOVED {detail}")), false);
        let found = found
            .as_ref()
            .map(|redirection| (redirection.slot, &*redirection.host, redirection.port));
        assert_eq!(found, expected, "{detail}");
    }
}
