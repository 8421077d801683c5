//! The meaning of an error in a script, whichever server reports it.
//!
//! | | the reply to a script whose `redis.call` was refused for lack of memory |
//! | --- | --- |
//! | 6.2 | `ERR Error running script (call to f_…): @user_script:24: @user_script: 24: -OOM command not allowed …` |
//! | 6.2, if the script returns the error that `redis.pcall` gave it | `@user_script: 24: -OOM command not allowed …` |
//! | 7.0 and later, Valkey 8 | `OOM command not allowed … script: 7dcc…, on @user_script:24.` |
//! | Valkey 9.1 | `OOM command not allowed … script: on @user_script:24.` |
//!
//! If the user lacks the right to run a command of the script, every server says `ERR` instead of `NOPERM`.

use redis::{ServerError, Value};

/// The error with the code and the text that it has outside of scripts.
pub(super) fn plain(err: ServerError) -> ServerError {
    let Some((code, text)) = meaning(err.code(), err.details().unwrap_or_default()) else {
        return err;
    };
    // The parser of the client crate is the only way to make such an error.
    match redis::parse_redis_value(format!("-{code} {text}\r\n").as_bytes()) {
        Ok(Value::ServerError(plain)) => plain,
        _ => err,
    }
}

/// The code and the text inside a server's wrapping; `None` if the error is not wrapped.
fn meaning<'a>(code: &'a str, detail: &'a str) -> Option<(&'a str, &'a str)> {
    let inner = match code {
        "ERR" => detail
            .strip_prefix("Error running script (call to ")
            .and_then(|rest| rest.split_once("): @user_script:"))
            .and_then(|(_, rest)| behind_line(rest))
            .map(|rest| match rest.strip_prefix("@user_script: ") {
                Some(rest) => behind_line(rest).unwrap_or(rest),
                None => rest,
            }),
        "@user_script:" => behind_line(detail),
        _ => None,
    };
    let (code, text) = match inner {
        Some(inner) => coded(inner.strip_prefix('-').unwrap_or(inner)),
        // If the user lacks a right, `redis.pcall` gives the script an error that the script may return. Its text names no
        // place in the script, so `before_script` finds none.
        None => match before_script(detail) {
            None if is_denied(code, detail) => (code, detail),
            text => (code, text?),
        },
    };
    if is_denied(code, text) {
        return Some(("NOPERM", text));
    }
    Some((code, text))
}

/// Whether the user lacks a right.
fn is_denied(code: &str, text: &str) -> bool {
    let denied = [
        "The user executing the script can't ",
        "ACL failure in script: ",
    ];
    code == "ERR" && denied.iter().any(|denied| text.starts_with(denied))
}

/// The text after a line number and `: `, if `text` begins with these.
fn behind_line(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.strip_prefix(": ").filter(|_| rest.len() < text.len())
}

/// Splits a text into its code and the rest. A code is a first word of two or more capitals; without one, the code is
/// `ERR`.
fn coded(text: &str) -> (&str, &str) {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    if first.len() > 1 && first.bytes().all(|byte| byte.is_ascii_uppercase()) {
        (first, rest)
    } else {
        ("ERR", text)
    }
}

/// The text in front of the place in the script, if the text ends with such a place.
fn before_script(text: &str) -> Option<&str> {
    let (text_before, place) = text.rsplit_once(" script: ")?;
    let line = match place.split_once(", ") {
        Some((sha, line)) if sha.bytes().all(|byte| byte.is_ascii_hexdigit()) => line,
        Some(_) => return None,
        None => place,
    };
    let line = line.strip_prefix("on @user_script:")?.strip_suffix('.')?;
    let number = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    number.then_some(text_before)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_an_error_says_it_stays_one(
            line in "(-|ERR |NOPERM )?(Error running script \\(call to f_[a-f]?\\): |)(@user_script: ?[0-9]{0,2}: |){0,2}-?[A-Za-zé ]{0,9}( script: [a-f0-9 ]{0,3}, on @user_script:[0-9]{0,2}\\.|)",
        ) {
            let err = error(&line);
            let meant = plain(err.clone());
            prop_assert!(meant == err || line.contains("script"), "{:?}", meant);
            // A plain error stays plain, unless its text looks like an error of a script.
            if !meant.details().unwrap_or_default().contains("script") {
                prop_assert_eq!(plain(meant.clone()), meant);
            }
        }
    }

    fn error(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(err)) => err,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// As the servers sent them: 6.2.11, 7.0.15 and 7.2.4 (7.4.1, 8.2.3, Valkey 8.0.1 and 8.1.8 say the same), and Valkey 9.1.2.
    #[test]
    fn a_refusal_in_a_script_means_the_same_on_every_server() {
        let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
        let no_memory = "OOM command not allowed when used memory > 'maxmemory'.";
        let read_only = "READONLY You can't write against a read only replica.";
        let replicas = "NOREPLICAS Not enough good replicas to write.";
        let integer = "ERR value is not an integer or out of range";
        let lua = "ERR user_script:1: attempt to compare nil with number";
        let custom = "ERR user_script:1: WRONGTYPE mine";
        let f = "ERR Error running script (call to f_7dcc94f6fb7cf5c84cc5640af5c4f8c6a1276d34):";
        let on = "script: 7dcc94f6fb7cf5c84cc5640af5c4f8c6a1276d34, on @user_script:24.";
        let on_9 = "script: on @user_script:24.";
        let mut table = Vec::new();
        for (direct, refused) in [
            (wrong_type, false),
            (integer, false),
            (no_memory, true),
            (read_only, true),
            (replicas, true),
        ] {
            // A command that failed, and one that the server refused to run.
            table.push(if refused {
                (
                    format!("{f} @user_script:24: @user_script: 24: -{direct}"),
                    direct,
                )
            } else {
                (format!("{f} @user_script:17: {direct}"), direct)
            });
            if refused {
                table.push((format!("@user_script: 24: -{direct}"), direct));
            }
            table.push((format!("{direct} {on}"), direct));
            table.push((format!("{direct} {on_9}"), direct));
        }
        for direct in [lua, custom] {
            let text = &direct["ERR ".len()..];
            table.push((format!("{f} @user_script:1: {text}"), direct));
            table.push((format!("{direct} {on}"), direct));
            table.push((format!("{direct} {on_9}"), direct));
        }
        let misconf = "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.";
        table.push((
            format!("{f} @user_script:24: @user_script: 24: -{misconf}"),
            misconf,
        ));
        table.push((
            format!(
                "{f} @user_script:1: @user_script: 1: Unknown Redis command called from Lua script"
            ),
            "ERR Unknown Redis command called from Lua script",
        ));
        for (text, direct) in table {
            assert_eq!(plain(error(&text)), error(direct), "{text}");
        }
        let denied = |said: String, text: &str| {
            let denied = error(&format!("NOPERM {text}"));
            assert_eq!(plain(error(&said)), denied, "{said}");
        };
        for action in [
            "run this command or subcommand",
            "access at least one of the keys mentioned in the command arguments",
            "publish to the channel mentioned in the command",
        ] {
            let text = format!("The user executing the script can't {action}");
            denied(
                format!("{f} @user_script:24: @user_script: 24: {text}"),
                &text,
            );
            denied(format!("ERR {text} {on}"), &text);
            denied(format!("ERR {text}"), &text);
        }
        for message in [
            "User u has no permissions to run the 'hset' command",
            "No permissions to access a key",
            "No permissions to access a channel",
        ] {
            let text = format!("ACL failure in script: {message}");
            denied(format!("ERR {text} {on}"), &text);
            denied(format!("ERR {text} {on_9}"), &text);
        }
    }

    #[test]
    fn other_errors_stay_as_they_are() {
        for line in [
            "WRONGTYPE the key holds a read-write lock",
            "ERR value is not an integer or out of range",
            "ERR max number of clients reached",
            "ERR Error compiling script (new function): user_script:1: unexpected symbol near 'return'",
            "ERR Error running script (call to f_f909): @err_handler_def:9: err_handler_def:9: attempt to concatenate",
            "ERR Error running script (call to f_f909): @user_script: no line",
            "ERR wrong script: 7dcc, on @user_script:.",
            "ERR wrong script: of mine, on @user_script:7.",
            "ERR wrong script: on @user_script:7",
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOSCRIPT No matching script. Please use EVAL.",
            "NOSCRIPT No matching script.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "BUSY",
            "@user_script:",
        ] {
            assert_eq!(plain(error(line)), error(line));
        }
    }
}
