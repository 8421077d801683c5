//! Each file in `lua/` by bare EVALSHA on a real server: the reply, and the fields, TTLs and messages left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use redis::{Connection, RedisResult};

use crate::support::scripts;
use crate::support::scripts::{
    LEASE, NAMES, RELEASE, RENEW, REQUEST, THEM, US, as_redisson, assert_left, channel, forbid,
    forbid_channels, listen_to_all, messages, out_of_memory, run,
};
use crate::support::{Server, lua};

const ACQUIRE: &str = lua::LOCK_ACQUIRE;
const FORCE: &str = lua::LOCK_FORCE;

fn acquire(con: &mut Connection, name: &str, owner: &str, lease: i64) -> RedisResult<Option<i64>> {
    run(con, ACQUIRE, &[name], &[owner, &lease.to_string()])
}

fn release(con: &mut Connection, name: &str, owner: &str) -> RedisResult<i64> {
    run(con, RELEASE, &[name, &channel(name)], &[owner])
}

fn renew(
    con: &mut Connection,
    name: &str,
    owner: &str,
    lease: i64,
    count: i64,
) -> RedisResult<i64> {
    let args = [owner, &lease.to_string(), &count.to_string()];
    run(con, RENEW, &[name], &args)
}

fn force(con: &mut Connection, name: &str) -> RedisResult<i64> {
    scripts::force(con, FORCE, &[name, REQUEST, &channel(name)])
}

/// One run of each script on `name`, by us.
fn run_each(con: &mut Connection, name: &str) -> [(&'static str, RedisResult<()>); 4] {
    [
        ("acquire", acquire(con, name, US, LEASE).map(drop)),
        ("renew", renew(con, name, US, LEASE, 1).map(drop)),
        ("release", release(con, name, US).map(drop)),
        ("force", force(con, name).map(drop)),
    ]
}

/// The only thing on the server is this lock with these fields.
#[track_caller]
fn assert_fields(server: &Server, name: &str, fields: &[(&str, &str)]) {
    assert_eq!(server.keys(), [name]);
    let mut wanted: Vec<(String, String)> = fields
        .iter()
        .map(|&(owner, count)| (owner.into(), count.into()))
        .collect();
    wanted.sort();
    assert_eq!(server.hgetall(name), wanted);
}

/// The message of one release.
fn announced(name: &str) -> (String, String) {
    (channel(name), "0".into())
}

// ---------------------------------------------------------------------------------------------------------------------
// lock_acquire
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn acquiring_leaves_one_field_and_a_ttl_whatever_the_name() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        assert_eq!(
            acquire(&mut con, name, US, LEASE).unwrap(),
            None,
            "{name:?}"
        );
        assert_fields(&server, name, &[(US, "1")]);
        assert_left(server.pttl(name), LEASE);
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["DEL", name]);
    }
}

#[test]
fn acquiring_twice_changes_nothing_but_the_ttl() {
    let server = Server::start();
    let mut con = server.connection();
    assert_eq!(acquire(&mut con, "orders", US, LEASE).unwrap(), None);
    assert_eq!(acquire(&mut con, "orders", US, 2 * LEASE).unwrap(), None);
    assert_fields(&server, "orders", &[(US, "1")]);
    assert_left(server.pttl("orders"), 2 * LEASE);
}

#[test]
fn acquiring_again_restores_a_missing_ttl() {
    let server = Server::start();
    let mut con = server.connection();
    acquire(&mut con, "orders", US, LEASE).unwrap();
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(acquire(&mut con, "orders", US, LEASE).unwrap(), None);
    assert_left(server.pttl("orders"), LEASE);
}

#[test]
fn acquiring_what_somebody_holds_tells_their_ttl_and_changes_nothing() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        acquire(&mut con, name, THEM, 2 * LEASE).unwrap();
        for _ in 0..2 {
            let left = acquire(&mut con, name, US, LEASE).unwrap().unwrap();
            assert_left(left, 2 * LEASE);
            assert_fields(&server, name, &[(THEM, "1")]);
            let after = server.pttl(name);
            assert!(after <= left && after > LEASE, "{after} ms left of {left}");
        }
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["DEL", name]);
    }
}

#[test]
fn acquiring_what_never_expires_tells_minus_one() {
    let server = Server::start();
    let mut con = server.connection();
    let () = server.ask(&["HSET", "orders", THEM, "1"]);
    assert_eq!(acquire(&mut con, "orders", US, LEASE).unwrap(), Some(-1));
    assert_fields(&server, "orders", &[(THEM, "1")]);
    assert_eq!(server.pttl("orders"), -1);
}

#[test]
fn a_lock_that_ran_out_is_free() {
    let server = Server::start();
    let mut con = server.connection();
    acquire(&mut con, "orders", THEM, 1).unwrap();
    crate::support::eventually("the lease is over", || !server.exists("orders"));
    assert_eq!(acquire(&mut con, "orders", US, LEASE).unwrap(), None);
    assert_fields(&server, "orders", &[(US, "1")]);
}

#[test]
fn one_clients_numbers_are_different_owners() {
    let server = Server::start();
    let mut con = server.connection();
    let (first, second) = (US, US.replace(":1", ":12"));
    acquire(&mut con, "orders", first, LEASE).unwrap();
    assert!(
        acquire(&mut con, "orders", &second, LEASE)
            .unwrap()
            .is_some()
    );
    assert_eq!(release(&mut con, "orders", &second).unwrap(), -2);
    assert_eq!(renew(&mut con, "orders", &second, LEASE, 1).unwrap(), -1);
}

#[test]
fn a_read_write_lock_is_refused_and_kept() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let writer = format!("{THEM}:write");
    for [mode, field] in [["read", THEM], ["write", &writer], ["read", "mode"]] {
        let () = server.ask(&["HSET", "orders", field, "1", "mode", mode]);
        let () = server.ask(&["PEXPIRE", "orders", &LEASE.to_string()]);
        let before = server.hgetall("orders");
        for _ in 0..2 {
            let err = acquire(&mut con, "orders", US, 2 * LEASE).unwrap_err();
            assert_eq!(err.code(), Some("WRONGTYPE"), "{before:?}: {err}");
        }
        assert_eq!(server.hgetall("orders"), before);
        assert_left(server.pttl("orders"), LEASE);
        assert_eq!(server.dbsize(), 1);
        let () = server.ask(&["DEL", "orders"]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// lock_release
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn releasing_frees_the_lock_and_tells_on_its_channel_whatever_the_name() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        acquire(&mut con, name, US, LEASE).unwrap();
        assert_eq!(release(&mut con, name, US).unwrap(), 1, "{name:?}");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), [announced(name)]);
    }
}

#[test]
fn releasing_counts_who_listened() {
    let server = Server::start();
    let mut con = server.connection();
    let mut cons = [server.connection(), server.connection()];
    acquire(&mut con, "orders", US, LEASE).unwrap();
    assert_eq!(release(&mut con, "orders", US).unwrap(), 0);
    let mut open = Vec::new();
    for (pubsub_con, listeners) in cons.iter_mut().zip(1..) {
        let mut pubsub = pubsub_con.as_pubsub();
        pubsub.subscribe(channel("orders")).unwrap();
        open.push(pubsub);
        acquire(&mut con, "orders", US, LEASE).unwrap();
        assert_eq!(release(&mut con, "orders", US).unwrap(), listeners);
    }
}

#[test]
fn releasing_ends_every_level_of_a_hold() {
    let server = Server::start();
    let mut con = server.connection();
    as_redisson(&server, "orders", US, "3", LEASE);
    assert_eq!(release(&mut con, "orders", US).unwrap(), 0);
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn releasing_twice_finds_nothing_and_tells_again() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    acquire(&mut con, "orders", US, LEASE).unwrap();
    assert_eq!(release(&mut con, "orders", US).unwrap(), 1);
    assert_eq!(release(&mut con, "orders", US).unwrap(), -1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(
        messages(&server, &mut pubsub),
        [announced("orders"), announced("orders")]
    );
}

#[test]
fn releasing_what_somebody_else_holds_changes_and_tells_nothing() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        acquire(&mut con, name, THEM, LEASE).unwrap();
        for _ in 0..2 {
            assert_eq!(release(&mut con, name, US).unwrap(), -2);
        }
        assert_fields(&server, name, &[(THEM, "1")]);
        assert_left(server.pttl(name), LEASE);
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["DEL", name]);
    }
}

#[test]
fn releasing_keeps_the_fields_of_others_and_tells_nobody() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    as_redisson(&server, "orders", THEM, "2", LEASE);
    as_redisson(&server, "orders", US, "1", LEASE);
    assert_eq!(release(&mut con, "orders", US).unwrap(), 0);
    assert_fields(&server, "orders", &[(THEM, "2")]);
    assert_left(server.pttl("orders"), LEASE);
    assert_eq!(release(&mut con, "orders", US).unwrap(), -2);
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// lock_renew
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn renewing_extends_the_lease_whatever_the_name() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        acquire(&mut con, name, US, LEASE).unwrap();
        for _ in 0..2 {
            assert_eq!(renew(&mut con, name, US, 3 * LEASE, 1).unwrap(), 1);
            assert_fields(&server, name, &[(US, "1")]);
            assert_left(server.pttl(name), 3 * LEASE);
        }
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["DEL", name]);
    }
}

#[test]
fn renewing_never_creates() {
    let server = Server::start();
    let mut con = server.connection();
    for name in NAMES {
        for _ in 0..2 {
            assert_eq!(renew(&mut con, name, US, LEASE, 1).unwrap(), 0);
            assert_eq!(server.dbsize(), 0);
        }
    }
}

#[test]
fn renewing_never_shortens() {
    let server = Server::start();
    let mut con = server.connection();
    acquire(&mut con, "orders", US, 3 * LEASE).unwrap();
    for _ in 0..2 {
        assert_eq!(renew(&mut con, "orders", US, LEASE, 1).unwrap(), 1);
        assert_left(server.pttl("orders"), 3 * LEASE);
    }
    assert_eq!(server.calls("pexpire"), 1); // that of acquiring
}

#[test]
fn renewing_restores_a_missing_ttl() {
    let server = Server::start();
    let mut con = server.connection();
    acquire(&mut con, "orders", US, LEASE).unwrap();
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(renew(&mut con, "orders", US, LEASE, 1).unwrap(), 1);
    assert_left(server.pttl("orders"), LEASE);
}

#[test]
fn renewing_what_somebody_else_holds_changes_nothing() {
    let server = Server::start();
    let mut con = server.connection();
    for name in NAMES {
        acquire(&mut con, name, THEM, LEASE).unwrap();
        for _ in 0..2 {
            assert_eq!(renew(&mut con, name, US, 3 * LEASE, 5).unwrap(), -1);
        }
        assert_fields(&server, name, &[(THEM, "1")]);
        assert_left(server.pttl(name), LEASE);
        let () = server.ask(&["DEL", name]);
    }
}

#[test]
fn of_several_locks_each_is_renewed_for_itself() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in ["a", "taken", "b"] {
        let owner = if name == "taken" { THEM } else { US };
        acquire(&mut con, name, owner, LEASE).unwrap();
    }
    let () = server.ask(&["SET", "string", "v"]);
    let keys = ["a", "gone", "string", "taken", "b"];
    let long = (3 * LEASE).to_string();
    let short = (LEASE / 2).to_string();
    let args = [
        [US, &long, "1"],
        [US, &long, "1"],
        [US, &long, "1"],
        [US, &long, "1"],
        [US, &short, "5"],
    ];
    // The `redis` crate takes an array with an error in it for an error.
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
    for _ in 0..2 {
        let replies: Vec<String> = run(&mut con, &renew, &keys, &args.concat()).unwrap();
        assert!(replies[2].starts_with("WRONGTYPE "), "{replies:?}");
        let others = [0, 1, 3, 4].map(|n| replies[n].as_str());
        assert_eq!(others, ["1", "0", "-1", "1"]);
        for (name, owner, count) in [("a", US, "1"), ("b", US, "5"), ("taken", THEM, "1")] {
            let fields = [(owner.to_owned(), count.to_owned())];
            assert_eq!(server.hgetall(name), fields, "{name}");
        }
        assert_left(server.pttl("a"), 3 * LEASE);
        assert_left(server.pttl("b"), LEASE);
        assert_left(server.pttl("taken"), LEASE);
        assert_eq!(server.pttl("string"), -1);
        assert_eq!(server.dbsize(), 4);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

#[test]
fn renewing_writes_the_count_only_when_it_is_another() {
    let server = Server::start();
    let mut con = server.connection();
    acquire(&mut con, "orders", US, LEASE).unwrap();
    for (count, writes) in [(1, 1), (3, 2), (3, 2), (2, 3)] {
        assert_eq!(renew(&mut con, "orders", US, LEASE, count).unwrap(), 1);
        assert_fields(&server, "orders", &[(US, &count.to_string())]);
        assert_eq!(server.calls("hset"), writes);
    }
    assert_left(server.pttl("orders"), LEASE);
}

// ---------------------------------------------------------------------------------------------------------------------
// lock_force
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn forcing_frees_the_lock_and_tells_on_its_channel_whatever_the_name() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        acquire(&mut con, name, THEM, LEASE).unwrap();
        assert_eq!(force(&mut con, name).unwrap(), 1, "{name:?}");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), [announced(name)]);
        assert_eq!(force(&mut con, name).unwrap(), 0, "{name:?}");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), []);
    }
}

#[test]
fn forcing_frees_a_lock_of_several_owners_and_without_a_ttl() {
    let server = Server::start();
    let mut con = server.connection();
    let () = server.ask(&["HSET", "orders", US, "2", THEM, "1"]);
    assert_eq!(force(&mut con, "orders").unwrap(), 1);
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn forcing_refuses_a_hash_that_is_not_a_lock() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for field in [
        "price",
        "1",
        "",
        ":1",
        "a-b-c-d-e",
        "not-a-uuid-at-all:1",
        "0b7e1c52:6f0a:1",
    ] {
        let () = server.ask(&["HSET", "orders", THEM, "1", field, "1"]);
        let err = force(&mut con, "orders").unwrap_err();
        assert_eq!(err.code(), Some("WRONGTYPE"), "{field:?}: {err}");
        assert_fields(&server, "orders", &[(THEM, "1"), (field, "1")]);
        let () = server.ask(&["HDEL", "orders", field]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// Without a channel
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn without_a_channel_releasing_and_forcing_tell_nobody() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut release = |owner: &str| run::<i64>(&mut con, RELEASE, &[name], &[owner]).unwrap();
        as_redisson(&server, name, US, "2", LEASE);
        assert_eq!(release(THEM), -2, "{name:?}");
        assert_fields(&server, name, &[(US, "2")]);
        assert_left(server.pttl(name), LEASE);
        assert_eq!(release(US), 0);
        assert_eq!(release(US), -1);
        assert_eq!(server.dbsize(), 0);
        as_redisson(&server, name, THEM, "1", LEASE);
        for held in [1, 0] {
            let keys = [name, REQUEST];
            let forced = scripts::force::<i64>(&mut con, FORCE, &keys);
            assert_eq!(forced.unwrap(), held);
            assert_eq!(server.dbsize(), 0);
        }
    }
    let () = server.ask(&["HSET", "orders", "price", "1"]);
    let forced = scripts::force::<i64>(&mut con, FORCE, &["orders", REQUEST]);
    let err = forced.unwrap_err();
    assert_eq!(err.code(), Some("WRONGTYPE"), "{err}");
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// All of them
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_value_of_another_type_is_refused_and_kept() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for make in [
        ["SET", "orders", "v"].as_slice(),
        &["RPUSH", "orders", "v"],
        &["SADD", "orders", US],
        &["ZADD", "orders", "1", US],
        &["XADD", "orders", "1-1", US, "1"],
    ] {
        server.cli(make);
        let before: Vec<u8> = server.ask(&["DUMP", "orders"]);
        for (script, outcome) in run_each(&mut con, "orders") {
            let err = outcome.unwrap_err();
            assert_eq!(err.code(), Some("WRONGTYPE"), "{script} on {make:?}: {err}");
        }
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "orders"]), before);
        assert_eq!(server.pttl("orders"), -1);
        let () = server.ask(&["DEL", "orders"]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

#[test]
fn a_lock_of_redisson_blocks_and_is_left_alone() {
    let server = Server::start();
    let mut con = server.connection();
    as_redisson(&server, "orders", THEM, "1", LEASE);
    let left = acquire(&mut con, "orders", US, 2 * LEASE).unwrap().unwrap();
    assert_left(left, LEASE);
    assert_eq!(release(&mut con, "orders", US).unwrap(), -2);
    assert_eq!(renew(&mut con, "orders", US, 2 * LEASE, 1).unwrap(), -1);
    assert_fields(&server, "orders", &[(THEM, "1")]);
    assert_left(server.pttl("orders"), LEASE);
    assert_eq!(force(&mut con, "orders").unwrap(), 1);
}

#[test]
fn a_user_without_rights_on_the_channel_still_releases() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    forbid_channels(&server, &mut con);
    assert_eq!(acquire(&mut con, "orders", US, LEASE).unwrap(), None);
    assert_eq!(renew(&mut con, "orders", US, LEASE, 1).unwrap(), 1);
    assert_eq!(release(&mut con, "orders", US).unwrap(), 0);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(release(&mut con, "orders", US).unwrap(), -1);
    acquire(&mut con, "orders", US, LEASE).unwrap();
    assert_eq!(force(&mut con, "orders").unwrap(), 1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(messages(&server, &mut pubsub), []);
}

// L6
#[test]
fn a_lock_that_cannot_be_given_a_ttl_is_not_taken() {
    let server = Server::start();
    let mut con = server.connection();
    assert!(acquire(&mut con, "orders", US, i64::MAX).is_err());
    assert_eq!(server.dbsize(), 0);
    forbid(&server, &mut con, "pexpire");
    assert!(acquire(&mut con, "orders", US, LEASE).is_err());
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn out_of_memory_nobody_acquires_and_holders_renew_and_release() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in ["orders", "stock"] {
        acquire(&mut con, name, US, LEASE).unwrap();
    }
    out_of_memory(&server);
    let err = acquire(&mut con, "free", US, LEASE).unwrap_err();
    assert_eq!(err.code(), Some("OOM"), "{err}");
    assert!(!server.exists("free"));
    assert_eq!(renew(&mut con, "orders", US, 2 * LEASE, 1).unwrap(), 1);
    assert_left(server.pttl("orders"), 2 * LEASE);
    // A new count needs memory; the lease does not depend on it.
    assert_eq!(renew(&mut con, "orders", US, 3 * LEASE, 2).unwrap(), 1);
    assert_left(server.pttl("orders"), 3 * LEASE);
    assert!(acquire(&mut con, "orders", THEM, LEASE).unwrap().is_some());
    assert_eq!(release(&mut con, "orders", US).unwrap(), 1);
    assert_eq!(force(&mut con, "stock").unwrap(), 1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(
        messages(&server, &mut pubsub),
        [announced("orders"), announced("stock")]
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Their text
// ---------------------------------------------------------------------------------------------------------------------

/// The `KEYS[n]` and `ARGV[n]` in a text.
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

/// What a header has to name for all keys, and for their second half.
const ALL_KEYS: &str = "KEYS[1…n]";
const ALL_ARGS: &str = "ARGV[1…3n]";
const SECOND_HALF: &str = "KEYS[n+1…2n]";

/// The last key, behind two halves.
const BEHIND_HALVES: &str = "KEYS[2n+1]";

/// Whether a header names one key or argument by its number.
fn is_numbered(name: &str) -> bool {
    !name.contains('…') && name != BEHIND_HALVES
}

/// What the code reads, as a header names it: keys by number, or any number of them.
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
        // All of them by `ipairs` or `unpack`, or those from one on.
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
    if read.contains(ALL_KEYS) {
        // One of all.
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
