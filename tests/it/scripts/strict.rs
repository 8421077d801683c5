//! Some services read a script before they run it, and reject scripts whose commands or keys are not literal.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::lua;

/// Keys that are not written as `KEYS[n]`: the script or prelude, the expression, and the reason.
const NOT_LITERAL: [(&str, &str, &str); 8] = [
    (
        "fair",
        "KEYS[5] .. ':' .. head",
        "a channel for each waiter",
    ),
    (
        "lock_keep",
        "KEYS[2] .. ':' .. ticket",
        "a channel for each waiter",
    ),
    (
        "inspect",
        "holds .. field .. ':rwlock_timeout:' .. n",
        "Redisson's keys: only the hash names them",
    ),
    (
        "lock_renew",
        "KEYS[i]",
        "as many keys as there are locks to renew",
    ),
    (
        "readers",
        "prefix .. reader .. ':rwlock_timeout:' .. i",
        "Redisson's keys: only the hash names them",
    ),
    (
        "semaphore_*",
        "unpack(KEYS, 3)",
        "up to four requests are forgotten at once",
    ),
    (
        "semaphore_*",
        "unpack(KEYS, 4)",
        "up to four requests are forgotten at once",
    ),
    (
        "permit_*",
        "unpack(KEYS, 5)",
        "up to four requests are forgotten at once",
    ),
];

/// A script without comments.
fn code(text: &str) -> String {
    let line = |line: &str| line.split("--").next().unwrap_or_default().to_owned() + "\n";
    text.lines().map(line).collect()
}

/// The arguments of a call; `rest` begins after the parenthesis.
fn arguments(rest: &str) -> Vec<&str> {
    let (mut found, mut depth, mut quoted, mut from) = (Vec::new(), 0, false, 0);
    for (at, c) in rest.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push(rest[from..at].trim());
                return found;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(rest[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    panic!("a call without an end: {rest}");
}

/// The calls of commands, each with the command's name and its arguments.
fn calls(code: &str) -> Vec<Vec<&str>> {
    ["redis.call", "redis.pcall"]
        .iter()
        .flat_map(|call| code.split(call).skip(1))
        .map(|rest| arguments(rest.strip_prefix('(').expect("called, not passed on")))
        .collect()
}

/// The arguments of a call that are keys or channels.
fn keys<'a>(call: &[&'a str]) -> Vec<&'a str> {
    let args = &call[1..];
    match call[0] {
        "'time'" | "'info'" => Vec::new(),
        "'del'" | "'exists'" => args.to_vec(),
        "'copy'" => args[..2].to_vec(),
        "'pubsub'" => args[1..].to_vec(),
        _ => args[..1].to_vec(),
    }
}

fn is_literal_command(arg: &str) -> bool {
    let name = arg
        .strip_prefix('\'')
        .and_then(|arg| arg.strip_suffix('\''));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase()))
}

fn is_literal_key(arg: &str) -> bool {
    let number = arg
        .strip_prefix("KEYS[")
        .and_then(|arg| arg.strip_suffix(']'));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Every file in `lua`, by its stem.
fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    [folder.join("prelude"), folder]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| {
            let stem = path.file_stem().unwrap().to_str().unwrap();
            (stem.to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect()
}

#[test]
fn every_command_and_every_key_is_written_out() {
    let (mut key_count, mut used) = (0, BTreeSet::new());
    for (file, text) in files() {
        for call in calls(&code(&text)) {
            if (&*file, &*call) == ("guarded_call", &["unpack(ARGV, 3)"]) {
                // The user's command.
                continue;
            }
            assert!(is_literal_command(call[0]), "{file}: {call:?}");
            for key in keys(&call) {
                key_count += 1;
                if is_literal_key(key) {
                    continue;
                }
                let known = NOT_LITERAL.iter().position(|(name, expression, _)| {
                    let prefix = name.strip_suffix('*').unwrap_or(name);
                    file.starts_with(prefix) && *expression == key
                });
                assert!(known.is_some(), "{file}: `{key}` in {call:?}");
                used.extend(known);
            }
        }
    }
    assert!(key_count > 200, "only {key_count} keys");
    assert_eq!(used.len(), NOT_LITERAL.len(), "one is not needed any more");
}

#[test]
fn the_search_finds_what_is_not_written_out() {
    let code = code(
        "local l = KEYS[1] -- redis.call(x)\nredis.pcall('hset', l, f(a, ')'), 1)\nredis.call(c, KEYS[n], {1, 2})",
    );
    let mut found = calls(&code);
    found.sort();
    assert_eq!(
        found,
        [
            vec!["'hset'", "l", "f(a, ')')", "1"],
            vec!["c", "KEYS[n]", "{1, 2}"]
        ]
    );
    assert!(is_literal_command("'hset'") && !is_literal_command("c"));
    assert!(is_literal_key("KEYS[12]"));
    for key in ["l", "KEYS[n]", "KEYS[]", "KEYS[1] .. l", "unpack(KEYS)"] {
        assert!(!is_literal_key(key), "{key}");
    }
}

/// A prelude only stands in front of scripts, and names the same keys.
#[test]
fn every_file_is_part_of_a_script() {
    let files = files();
    let keys_of = |text: &str| -> BTreeSet<String> {
        text.lines()
            .take_while(|line| line.starts_with("--"))
            .filter_map(|line| line.strip_prefix("-- KEYS["))
            .map(|line| {
                line.split_whitespace()
                    .take(2)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    };
    let mut used = BTreeSet::new();
    for (name, whole) in lua::ALL {
        let parts = files
            .iter()
            .filter(|(_, text)| whole.contains(text.as_str()));
        let parts: Vec<_> = parts.collect();
        let own_part = parts.iter().find(|(file, _)| file == name).unwrap();
        let length: usize = parts.iter().map(|(_, text)| text.len()).sum();
        assert_eq!(length, whole.len(), "{name}");
        for (file, text) in &parts {
            let named = keys_of(&own_part.1);
            assert!(keys_of(text).is_subset(&named), "{file} in front of {name}");
            used.insert(file.clone());
        }
    }
    assert_eq!(used.len(), files.len(), "a file in no script");
}
