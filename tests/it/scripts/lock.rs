//! The scripts of the plain lock, and what each file in `lua/` says in its header.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use redis::Connection;

use crate::support::scripts::{LEASE, NAMES, RENEW, THEM, US, channel, run};
use crate::support::table::{Call, Stage, Table};
use crate::support::{Server, lua, timed};

const CALLS: &[Call] = &[
    ("acquire", lua::LOCK_ACQUIRE, "lock", "$1 $2:30s"),
    ("release", lua::LOCK_RELEASE, "lock channel", "$1"),
    ("renew", lua::LOCK_RENEW, "lock", "$1 $2:30s $3:1"),
    ("keep", lua::LOCK_KEEP, "lock channel", "$1 $2:30s lock"),
    ("force", lua::LOCK_FORCE, "lock $1 channel", "30s"),
    ("adopt", lua::LOCK_ADOPT, "lock", "$1 $2 $3:30s 0"),
    // A call without a channel publishes nothing.
    ("release_quietly", lua::LOCK_RELEASE, "lock", "$1"),
    ("force_quietly", lua::LOCK_FORCE, "lock $1", "30s"),
];

/// `a` and `a2` are two owners of a client, `b` is an owner of another; `r1` and `r2` are requests to force the lock
/// open.
fn stage<'a>(server: &'a Server, listener: &'a mut Connection, name: &str) -> Stage<'a> {
    let words = [
        ("lock", name),
        ("channel", &channel(name)),
        ("a", US),
        ("a2", &US.replace(":1", ":12")),
        ("b", THEM),
    ];
    Stage::new(
        server,
        listener,
        CALLS,
        words.map(|(word, text)| (word, text.as_bytes().to_vec())),
    )
}

const TABLE: &[Table] = &[
    (
        "it is taken by one at a time, and released to those who listen",
        &[
            "acquire a | nil | lock{a:1}@30s",
            "acquire b | 30s",
            "acquire b | 30s",
            "release b | -2",
            "release a | 1   | nothing | 0",
            "release a | -1  | = | 0",
            "listen",
            "acquire a | nil | lock{a:1}@30s",
            "release a | 2   | nothing | 0",
            "listen",
            "acquire a | nil | lock{a:1}@30s",
            "release a | 3   | nothing | 0",
        ],
    ),
    (
        "who takes it twice only makes it live longer",
        &[
            "acquire a     | nil | lock{a:1}@30s",
            "acquire a 60s | nil | lock{a:1}@60s",
            "PERSIST lock  |     | lock{a:1}",
            "acquire a     | nil | lock{a:1}@30s",
            "acquire b     | 30s",
            "PERSIST lock  |     | lock{a:1}",
            "acquire b     | -1",
            "acquire b     | -1",
        ],
    ),
    (
        "a lock that ran out is free",
        &[
            "acquire b | nil | lock{b:1}@30s",
            "pass 30s  |     | nothing",
            "acquire a | nil | lock{a:1}@30s",
        ],
    ),
    (
        "the numbers of one client are different owners",
        &[
            "acquire a  | nil | lock{a:1}@30s",
            "acquire a2 | 30s",
            "release a2 | -2",
            "renew a2   | -1",
        ],
    ),
    (
        "releasing ends every level of a hold, and keeps other owners",
        &[
            "HINCRBY lock a 3 |    | lock{a:3}",
            "PEXPIRE lock 30s |    | lock{a:3}@30s",
            "release a        | 1  | nothing | 0",
            "HINCRBY lock b 2 |    | lock{b:2}",
            "HINCRBY lock a 1 |    | lock{a:1 b:2}",
            "PEXPIRE lock 30s |    | lock{a:1 b:2}@30s",
            "release a        | 0  | lock{b:2}@30s",
            "release a        | -2",
        ],
    ),
    (
        "renewing extends and never shortens, restores an end and never creates",
        &[
            "renew a       | 0",
            "renew a       | 0",
            "acquire a     | nil | lock{a:1}@30s",
            "renew a 90s   | 1   | lock{a:1}@90s",
            "calls pexpire | 2",
            "renew a       | 1",
            "renew a       | 1",
            "calls pexpire | 2",
            "PERSIST lock  |     | lock{a:1}",
            "renew a       | 1   | lock{a:1}@30s",
            "calls hset    | 1",
            "renew a 30s 3 | 1   | lock{a:3}@30s",
            "renew a 30s 3 | 1",
            "calls hset    | 2",
            "renew a 30s 2 | 1   | lock{a:2}@30s",
            "calls hset    | 3",
            "renew b 90s 5 | -1",
            "renew b 90s 5 | -1",
        ],
    ),
    (
        "a kept hold ends by itself, whichever renewals of it are still to come",
        &[
            "keep a        | -1",
            "acquire a     | nil | lock{a:1}@30s",
            "keep b 10s    | -2",
            "keep a 10s    | 0   | lock{a:0}@10s | 0",
            "renew a       | -1",
            "renew a 90s 2 | -1",
            "acquire b     | 10s",
            "keep a 20s    | 0   | lock{a:0}@10s",
            "renew a       | -1",
            "pass 10s      |     | nothing",
            "renew a       | 0",
            "acquire b     | nil | lock{b:1}@30s",
        ],
    ),
    (
        "forcing frees it, of several owners and without an end too, and a request counts once",
        &[
            "force r1          | 0   | r1=0@30s",
            "DEL r1            |     | nothing",
            "acquire b         | nil | lock{b:1}@30s",
            "force r1          | 1   | r1=1@30s | 0",
            "acquire b         | nil | lock{b:1}@30s r1=1@30s",
            "force r1          | 1",
            "force r2          | 1   | r1=1@30s r2=1@30s | 0",
            "DEL r2            |     | r1=1@30s",
            "HSET lock a 2 b 1 |     | lock{a:2 b:1} r1=1@30s",
            "force r2          | 1   | r1=1@30s r2=1@30s | 0",
        ],
    ),
    (
        "without a channel nobody is notified",
        &[
            "HSET lock a 2     |     | lock{a:2}",
            "PEXPIRE lock 30s  |     | lock{a:2}@30s",
            "release_quietly b | -2",
            "release_quietly a | 0   | nothing",
            "release_quietly a | -1",
            "acquire b         | nil | lock{b:1}@30s",
            "force_quietly r1  | 1   | r1=1@30s",
            "force_quietly r1  | 1",
            "force_quietly r2  | 0   | r1=1@30s r2=0@30s",
        ],
    ),
    (
        "a lock of Redisson's blocks and is left alone",
        &[
            "HINCRBY lock b 1 |     | lock{b:1}",
            "PEXPIRE lock 30s |     | lock{b:1}@30s",
            "acquire a 60s    | 30s",
            "release a        | -2",
            "renew a 60s      | -1",
            "force r1         | 1   | r1=1@30s | 0",
        ],
    ),
    (
        "a user without rights on the channel still releases",
        &[
            "deaf",
            "acquire a | nil | lock{a:1}@30s",
            "renew a   | 1",
            "release a | 0   | nothing",
            "release a | -1",
            "acquire a | nil | lock{a:1}@30s",
            "force r1  | 1   | r1=1@30s",
        ],
    ),
    (
        "a lock that cannot be given an end is not taken",
        &[
            "acquire a 9223372036854775807 | refused",
            "forbid pexpire",
            "acquire a                     | refused",
        ],
    ),
    (
        "out of memory nobody acquires, and holders renew and release",
        &[
            "acquire a     | nil | lock{a:1}@30s",
            "full",
            "renew a 60s   | 1   | lock{a:1}@60s",
            "renew a 90s 2 | 1   | lock{a:2}@90s",
            "acquire b     | 90s",
            "release a     | 1   | nothing | 0",
            "acquire a     | OOM",
        ],
    ),
    (
        "a hold is adopted once, under another owner and for its lease",
        &[
            "acquire a       | nil | lock{a:1}@30s",
            "keep a 90s      | 0   | lock{a:0}@90s",
            "adopt a b 60s   | 1   | lock{b:1}@60s",
            "adopt a b       | 1   | lock{b:1}@60s",
            "adopt a b 80s   | 1   | lock{b:1}@80s",
            "adopt a a2      | -1",
            "keep b 90s      | 0   | lock{b:0}@90s",
            "adopt a b       | -1",
            "adopt b c 60s   | 1   | lock{c:1}@60s",
            "adopt c b       | 1   | lock{b:1}@30s",
            "release a       | -2",
            "renew a         | -1",
            "release b       | 1   | nothing | 0",
            "adopt a b       | 0",
            "adopt b a       | 0",
        ],
    ),
    (
        "out of memory a hold is adopted all the same; one that cannot be given an end is not",
        &[
            "acquire a                       | nil | lock{a:1}@30s",
            "full",
            "adopt a b 60s                   | 1   | lock{b:1}@60s",
            "adopt b a 9223372036854775807   | refused",
            "forbid pexpire",
            "adopt b a                       | refused",
        ],
    ),
    (
        "out of memory it can be forced, and that counts once",
        &[
            "acquire a | nil | lock{a:1}@30s",
            "full",
            "force r1  | 1   | r1=1@30s | 0",
            "force r1  | 1",
            "force r2  | 0   | r1=1@30s r2=0@30s",
        ],
    ),
];

timed!(the_table_of_the_lock);
fn the_table_of_the_lock() {
    let server = Server::start();
    for name in NAMES {
        stage(&server, &mut server.connection(), name).play_all(TABLE);
    }
}

#[test]
fn what_is_no_lock_is_refused_and_kept() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut stage = stage(&server, &mut listener, "orders");
    let all = [
        "acquire a",
        "renew a",
        "release a",
        "force r1",
        "force_quietly r1",
        "adopt b a",
    ];
    stage.refuses(
        &[
            &["SET", "lock", "v"],
            &["RPUSH", "lock", "v"],
            &["SADD", "lock", "a"],
            &["ZADD", "lock", "1", "a"],
            &["XADD", "lock", "1-1", "a", "1"],
        ],
        &all,
    );
    // Read-write locks, of which the second has an owner that ends like a writer's field.
    stage.refuses(
        &[
            &["HSET", "lock", "b", "1", "mode", "read"],
            &["HSET", "lock", "b+:write", "1", "mode", "write"],
            &["HSET", "lock", "mode", "read"],
        ],
        &["acquire a", "acquire a 60s", "adopt a a2"],
    );
    for field in [
        "price",
        "1",
        "''",
        ":1",
        "a-b-c-d-e",
        "not-a-uuid-at-all:1",
        "0b7e1c52:6f0a:1",
    ] {
        stage.refuses(
            &[&["HSET", "lock", "b", "1", field, "1"]],
            &["force r1", "force_quietly r1"],
        );
    }
}

#[test]
fn of_several_locks_each_is_renewed_for_itself() {
    // The `redis` crate turns an array that contains an error into an error.
    let renew = format!(
        "local function renew()
           {RENEW}
         end
         local replies = renew()
         for i, reply in ipairs(replies) do
           replies[i] = type(reply) == 'table' and reply.err or tostring(reply)
         end
         return replies"
    );
    let server = Server::start();
    let mut listener = server.connection();
    let mut stage = stage(&server, &mut listener, "orders");
    for name in ["first", "taken", "last"] {
        let owner = if name == "taken" { "b" } else { "a" };
        stage.play(name, &[]);
        server.cli(&["HSET", name, if owner == "b" { THEM } else { US }, "1"]);
        server.cli(&["PEXPIRE", name, &LEASE.to_string()]);
    }
    server.cli(&["SET", "string", "v"]);
    let long = [US, &(3 * LEASE).to_string(), "1"];
    let short = [US, &(LEASE / 2).to_string(), "5"];
    for _ in 0..2 {
        let keys = ["first", "gone", "string", "taken", "last"];
        let args = [long, long, long, long, short].concat();
        let replies: Vec<String> = run(&mut stage.con, &renew, &keys, &args).unwrap();
        assert!(replies[2].starts_with("WRONGTYPE "), "{replies:?}");
        assert_eq!(
            [0, 1, 3, 4].map(|n| replies[n].as_str()),
            ["1", "0", "-1", "1"]
        );
        let state = "first{a:1}@90s last{a:5}@30s string=v taken{b:1}@30s";
        assert_eq!(stage.state(), state);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Headers
// ---------------------------------------------------------------------------------------------------------------------

/// The `KEYS[n]` and `ARGV[n]` that a text contains.
fn mentioned(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for table in ["KEYS[", "ARGV["] {
        for (at, _) in text.match_indices(table) {
            let end = text[at..].find(']').unwrap();
            found.insert(text[at..=at + end].to_owned());
        }
    }
    found
}

/// How a header names all keys, all arguments, and the second half of the keys.
const ALL_KEYS: &str = "KEYS[1…n]";
const ALL_ARGS: &str = "ARGV[1…3n]";
const SECOND_HALF: &str = "KEYS[n+1…2n]";

/// How a header names the key that follows two halves.
const BEHIND_HALVES: &str = "KEYS[2n+1]";

/// Whether a header names a single key or argument by its number.
fn is_numbered(name: &str) -> bool {
    !name.contains('…') && name != BEHIND_HALVES
}

/// The keys and arguments that the code reads, in the words of a header.
fn read_by(code: &str) -> BTreeSet<String> {
    let mut read: BTreeSet<String> = mentioned(code)
        .into_iter()
        .map(|one| {
            let place = &one[5..one.len() - 1];
            if place.bytes().all(|b| b.is_ascii_digit()) {
                one
            } else if one.starts_with("ARGV") {
                ALL_ARGS.to_owned()
            } else if place.starts_with("n + ") {
                SECOND_HALF.to_owned()
            } else if place == "#KEYS" {
                BEHIND_HALVES.to_owned()
            } else {
                ALL_KEYS.to_owned()
            }
        })
        .collect();
    for part in code.split("(KEYS").skip(1) {
        // `ipairs` or `unpack` of all keys, or of those from a number on.
        let from = part
            .strip_prefix(", ")
            .and_then(|rest| rest.split_once(')'));
        read.insert(match from.and_then(|(from, _)| from.parse::<u32>().ok()) {
            Some(from) => format!("KEYS[{from}…n]"),
            None => ALL_KEYS.to_owned(),
        });
    }
    for part in code.split("(ARGV, ").skip(1) {
        let from = part.split_once(')').unwrap().0;
        read.insert(format!("ARGV[{from}…n]"));
    }
    if code.contains("ipairs(ARGV)") {
        // All arguments except the first, which is named by its number.
        read.insert("ARGV[2…n]".to_owned());
    }
    if read.contains(ALL_KEYS) {
        // Numbered keys are part of all keys.
        read.retain(|one| one.starts_with("ARGV") || !is_numbered(one));
    }
    read
}

#[test]
fn every_header_tells_what_its_body_reads() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut read = 0;
    for (stem, whole) in lua::ALL {
        let text = fs::read_to_string(dir.join(stem).with_extension("lua")).unwrap();
        let prelude = whole.strip_suffix(text.as_str()).unwrap();
        let (header, body): (Vec<&str>, Vec<&str>) = {
            let end = text
                .lines()
                .take_while(|line| line.starts_with("--"))
                .count();
            let lines: Vec<&str> = text.lines().collect();
            (lines[..end].to_vec(), lines[end..].to_vec())
        };
        let first = format!("-- {stem}: ");
        assert!(header[0].starts_with(&first), "{stem}: {}", header[0]);
        for word in ["Returns", "Keeps"] {
            let starts = format!("-- {word} ");
            assert!(
                header.iter().any(|line| line.starts_with(&starts)),
                "{stem}: no {word}"
            );
        }
        let named: BTreeSet<String> = header
            .iter()
            .filter_map(|line| line.strip_prefix("-- "))
            .filter(|line| line.starts_with("KEYS[") || line.starts_with("ARGV["))
            .flat_map(|line| mentioned(line.split_once(' ').unwrap().0))
            .collect();
        let code: String = prelude
            .lines()
            .chain(body)
            .map(|line| line.split("--").next().unwrap_or_default().to_owned() + "\n")
            .collect();
        assert_eq!(named, read_by(&code), "{stem}");
        assert_eq!(
            named.contains(SECOND_HALF),
            code.contains("local n = #KEYS / 2\n") || code.contains("local n = (#KEYS - 1) / 2\n"),
            "{stem}: which half is which"
        );
        assert_eq!(
            named.contains(BEHIND_HALVES),
            code.contains("(#KEYS - 1) / 2"),
            "{stem}: which is the last"
        );
        if named.contains(ALL_KEYS) {
            let keys = named.iter().filter(|name| name.starts_with("KEYS"));
            let keys = keys.filter(|name| is_numbered(name));
            assert_eq!(keys.count(), 0, "{stem}: no key has a number");
        }
        for table in ["KEYS", "ARGV"] {
            let numbered = |name: &&String| name.starts_with(table) && is_numbered(name);
            let count = named.iter().filter(numbered).count();
            for n in 1..=count {
                assert!(
                    named.contains(&format!("{table}[{n}]")),
                    "{stem}: {table}[{n}]"
                );
            }
        }
        read += 1;
    }
    assert!(read >= 9, "{read} scripts");
}
