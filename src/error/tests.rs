use super::*;
use crate::verdict::{RequestFacts, Verdict, verdict};
use redis::ServerErrorKind;
use std::error::Error as _;

#[test]
fn a_loss_has_the_text_of_its_error() {
    let (name, reason) = (String::from("a"), LossReason::Closed);
    let lost = Error::Lost {
        name: name.clone(),
        reason,
    };
    let loss = Loss {
        name,
        owner: String::new(),
        reason,
    };
    let text = "`a` is no longer held: the client was closed";
    assert_eq!((&*loss.to_string(), &*lost.to_string()), (text, text));
}

#[test]
fn the_text_says_what_was_tried_and_where_and_why() {
    let refused = || RedisError::from(std::io::Error::other("connection refused"));
    let err = Error::redis("connecting", refused()).at(&"127.0.0.1:6379");
    assert_eq!(
        err.to_string(),
        "cannot connect to redis at 127.0.0.1:6379: connection refused"
    );
    let err = Error::redis("acquiring the lock", refused());
    let err = err.at(&"10.0.0.1:7000").at(&"elsewhere");
    assert_eq!(
        err.to_string(),
        "acquiring the lock failed at redis, 10.0.0.1:7000: connection refused"
    );
    assert!(err.as_redis().is_some() && err.is_retryable());
    assert_eq!(
        err.about("orders").to_string(),
        "acquiring the lock failed for `orders` at redis, 10.0.0.1:7000: connection refused"
    );
    assert_eq!(
        Error::Closed.at(&"7").to_string(),
        Error::Closed.to_string()
    );
}

#[test]
fn a_name_in_a_text_stays_on_its_line_and_commands_no_terminal() {
    let name = || "a\x1b[2J\nb".to_owned();
    let failure = || Error::redis("acquiring the lock", std::io::Error::other(name()));
    let reason = LossReason::Expired;
    for err in [
        failure().about(&name()),
        Error::Lost {
            name: name(),
            reason,
        },
        Error::Members {
            failures: vec![(name(), failure())],
        },
        Error::WrongType {
            name: name(),
            found: Some(name()),
        },
    ] {
        let text = err.to_string();
        assert!(text.contains(r"a\u{1b}[2J\nb"), "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn the_text_of_a_server_is_one_line_and_not_a_long_one() {
    assert!(matches!(excerpt("noeviction"), Cow::Borrowed("noeviction")));
    assert_eq!(
        excerpt("a\x1b[2J\nb\u{9b}c"),
        "a\u{fffd}[2J\u{fffd}b\u{fffd}c"
    );
    let long = "é".repeat(MOST_SHOWN);
    assert_eq!(excerpt(&long), long);
    assert_eq!(excerpt(&format!("{long}x")), format!("{long}…"));
}

/// The error of a user's function.
#[derive(Debug)]
struct Outer(std::num::ParseIntError);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vault is sealed")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn a_server_without_lua_is_told_what_it_lacks() {
    let line = b"-ERR Could not find scripting engine 'lua'\r\n";
    let reply = redis::parse_redis_value(line).expect("a reply");
    let err = reply.extract_error().expect_err("an error");
    let text = Error::redis("acquiring the lock", err).to_string();
    assert!(text.contains("load Valkey's Lua module"), "{text}");
}

#[test]
fn no_text_is_told_twice_on_the_way_to_the_source() {
    let refused = |line: &str| {
        let reply = redis::parse_redis_value(line.as_bytes()).expect("a reply");
        Error::redis("acquiring the lock", reply.extract_error().expect_err(line)).about("a")
    };
    let io = |kind| RedisError::from(std::io::Error::from(kind));
    let sealed = || std::io::Error::other(Outer("x".parse::<u8>().expect_err("no number")));
    let name = || "orders".to_owned();
    let moved = redis::parse_redis_value(b"-MOVED 7 h:1\r\n").expect("a reply");
    let Verdict::Never(misconfigured) = verdict(moved, || RequestFacts::question(false)) else {
        panic!("a single server redirects");
    };
    let mut all = vec![
        refused("-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        refused("-ERR unknown command 'EVALSHA'\r\n"),
        refused("-ERR Could not find scripting engine 'lua'\r\n"),
        refused("-READONLY You can't write against a read only replica.\r\n"),
        refused("-OOM\r\n"),
        Error::redis("connecting", io(std::io::ErrorKind::ConnectionRefused)).at(&"h:1"),
        Error::redis("connecting", io(std::io::ErrorKind::NotFound)).at(&"/s.sock"),
        Error::redis("connecting", lasting("no TLS there".into())),
        Error::redis("connecting", RedisError::from(sealed())),
        Error::redis("closing", sealed()),
        Error::redis("acquiring the lock", misconfigured),
        Error::Cancelled,
        Error::Closed,
        Error::setting("tenure is zero".into()),
    ];
    all.extend(LossReason::ALL.map(|reason| Error::Lost {
        name: name(),
        reason,
    }));
    use DeadlockReason::{NotReentrant, OtherKind, Reading};
    let deadlock = |reason| Error::WouldDeadlock {
        name: name(),
        reason,
    };
    all.extend([NotReentrant, OtherKind, Reading].map(deadlock));
    let found = ["the key `orders` holds a list".to_owned()];
    all.extend(
        [None, found.into_iter().next()].map(|found| Error::WrongType {
            name: name(),
            found,
        }),
    );
    let failures = || vec![(0, refused("-OOM no memory\r\n")), (1, Error::Closed)];
    let members = failures()
        .into_iter()
        .map(|(_, err)| (name(), err))
        .collect();
    all.extend([
        Error::Members { failures: members },
        Error::NoQuorum {
            name: name(),
            nodes: 3,
            needed: 2,
            agreed: 1,
            failures: failures(),
        },
        Error::NotReplicated {
            acked: 0,
            needed: 1,
        },
        Error::InvalidName {
            reason: "it is empty",
        },
        Error::Spawn {
            thread: "redlatch-watchdog",
            source: sealed(),
        },
    ]);
    let mut depths = 0;
    for err in &all {
        let mut told: Vec<String> = vec![err.to_string()];
        let mut next = err.source();
        while let Some(err) = next {
            told.push(err.to_string());
            next = err.source();
        }
        for (at, text) in told.iter().enumerate() {
            let plain = text.replace(['"', ':'], "");
            let others = told.iter().enumerate().filter(|(other, _)| *other != at);
            let mut others = others.map(|(_, other)| other.replace(['"', ':'], ""));
            assert!(!others.any(|other| other.contains(&plain)), "{told:?}");
        }
        assert!(
            !told[0].ends_with('.') && !told[0].ends_with(' '),
            "{told:?}"
        );
        assert!(told[0].starts_with(|c: char| !c.is_uppercase()), "{told:?}");
        depths += told.len() - 1;
        // The name is shown once, however deep the error is.
        if matches!(err, Error::Members { .. } | Error::NoQuorum { .. }) {
            assert!(!told[0].contains("for `a`"), "{told:?}");
        }
    }
    assert_eq!(depths, 3, "what is below a failed function");
}

#[test]
fn what_follows_the_work_is_no_reason_to_repeat_it() {
    for reason in LossReason::ALL {
        let lost = Error::Lost {
            name: String::new(),
            reason,
        };
        assert!(!lost.is_retryable());
    }
    let away = || Error::redis("asking a node", std::io::Error::other("unreachable"));
    let no_quorum = || Error::NoQuorum {
        name: String::new(),
        nodes: 3,
        needed: 2,
        agreed: 1,
        failures: vec![(0, away()), (2, away())],
    };
    let members = || Error::Members {
        failures: vec![("a".into(), away())],
    };
    let spawn = || Error::Spawn {
        thread: "redlatch-connect",
        source: std::io::ErrorKind::WouldBlock.into(),
    };
    let parts = || Error::Members {
        failures: vec![("a".into(), spawn())],
    };
    // One says that it never had the hold, which is no failure.
    let one_away = || Error::NoQuorum {
        name: String::new(),
        nodes: 3,
        needed: 2,
        agreed: 1,
        failures: vec![(0, away())],
    };
    for err in [away(), no_quorum(), one_away(), members(), spawn(), parts()] {
        assert!(err.is_retryable() && !err.after_work().is_retryable());
    }
}

#[test]
fn wrong_credentials_are_no_reason_to_try_again_wherever_they_were_refused() {
    let denied = RedisError::from((ErrorKind::Server(ServerErrorKind::ExecAbort), "WRONGPASS"));
    assert!(
        !Error::redis("connecting", denied)
            .at(&"127.0.0.1:6379")
            .is_retryable()
    );
}

#[test]
#[cfg(feature = "tls")]
fn what_only_a_setting_can_change_is_no_reason_to_try_again() {
    let err = lasting("wrong name".into());
    assert_eq!(err.to_string(), "wrong name");
    assert!(!Error::redis("connecting", err).is_retryable());
    let other = std::io::Error::other("something");
    assert!(Error::redis("connecting", RedisError::from(other)).is_retryable());
}

#[test]
fn an_error_of_a_connection_names_its_server_and_stays_what_it_is() {
    let timeout = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
    let broken = RedisError::from((ErrorKind::Parse, "odd"));
    let other = RedisError::from(std::io::Error::other("reset"));
    for err in [timeout, broken, other, lasting("no".into())] {
        let reworded = named(&"10.0.0.1:1", err.clone());
        assert_eq!(reworded.to_string(), format!("10.0.0.1:1: {err}"));
        assert_eq!(is_transient(&reworded), is_transient(&err), "{err}");
        assert_eq!(reworded.is_timeout(), err.is_timeout(), "{err}");
    }
    let said = RedisError::from((ErrorKind::Server(ServerErrorKind::NoPerm), "no"));
    assert_eq!(named(&"10.0.0.1:1", said.clone()).kind(), said.kind());
}

#[test]
fn a_majority_that_cannot_agree_is_not_worth_a_retry() {
    let dead = || {
        Error::redis(
            "asking a node",
            redis::RedisError::from(std::io::Error::other("")),
        )
    };
    let short = |nodes: usize, lasting: usize, passing: usize| Error::NoQuorum {
        name: "orders".into(),
        nodes,
        needed: nodes / 2 + 1,
        agreed: 0,
        failures: (0..lasting)
            .map(|node| (node, Error::Closed))
            .chain((lasting..lasting + passing).map(|node| (node, dead())))
            .collect(),
    };
    for nodes in 2..=7 {
        let most = nodes - (nodes / 2 + 1);
        for lasting in 0..=nodes {
            for passing in 0..=nodes - lasting {
                let retryable = short(nodes, lasting, passing).is_retryable();
                assert_eq!(retryable, lasting <= most, "{lasting} of {nodes}");
            }
        }
    }
}

#[cfg(feature = "serde")]
#[test]
fn a_loss_is_serialized_with_its_reason_as_a_word() {
    let words = LossReason::ALL.map(|reason| serde_json::to_value(reason).expect("JSON"));
    let expected = [
        "expired",
        "forced",
        "taken_over",
        "unreachable",
        "max_hold",
        "closed",
    ];
    assert_eq!(words, expected);
    #[cfg(feature = "metrics")]
    assert_eq!(words, LossReason::ALL.map(LossReason::word));
    let loss = Loss {
        name: "report".into(),
        owner: "u:7".into(),
        reason: LossReason::MaxHold,
    };
    let json = serde_json::json!({"name": "report", "owner": "u:7", "reason": "max_hold"});
    assert_eq!(serde_json::to_value(loss).expect("JSON"), json);
}
