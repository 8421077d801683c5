//! The scripts of locks that are more than one, several names or several servers, by bare EVALSHA on a real server: the
//! reply, and the fields, TTLs and messages left behind.

use std::collections::BTreeMap;

use redis::{Connection, FromRedisValue, PubSub, RedisResult, Value};

use crate::support::scripts;
use crate::support::scripts::{
    LEASE, NAMES, REQUEST, THEM, US, as_redisson, assert_left, channel, forbid, forbid_channels,
    listen_to_all, messages, out_of_memory, run,
};
use crate::support::{Server, eventually, is_redis_6, lua, skipped};

const ACQUIRE: &str = lua::MULTI_ACQUIRE;
const RELEASE: &str = lua::MULTI_RELEASE;
const RENEW: &str = lua::MULTI_RENEW;
const FORCE: &str = lua::MULTI_FORCE;
const STATE: &str = lua::MULTI_STATE;
const RED_ACQUIRE: &str = lua::RED_ACQUIRE;

/// The names that most tests take.
const THREE: [&str; 3] = ["first", "middle", "last"];

/// Which of the names is not free, and for how long; `None` if all were taken.
fn acquire(
    con: &mut Connection,
    names: &[&str],
    owner: &str,
    lease: &str,
) -> RedisResult<Option<(usize, i64)>> {
    run(con, ACQUIRE, names, &[owner, lease])
}

/// Takes them by hand, and does not take no for an answer.
#[track_caller]
fn take(con: &mut Connection, names: &[&str], owner: &str, lease: i64) {
    let taken = acquire(con, names, owner, &lease.to_string());
    assert_eq!(taken.unwrap(), None, "{names:?}");
}

fn with_channels(names: &[&str]) -> Vec<String> {
    let keys = names.iter().map(|&name| name.to_owned());
    keys.chain(names.iter().map(|name| channel(name))).collect()
}

fn release(con: &mut Connection, names: &[&str], owner: &str) -> RedisResult<i64> {
    let keys = with_channels(names);
    let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
    run(con, RELEASE, &keys, &[owner])
}

fn renew(
    con: &mut Connection,
    names: &[&str],
    owner: &str,
    lease: i64,
    count: i64,
) -> RedisResult<i64> {
    let args = [owner, &lease.to_string(), &count.to_string()];
    run(con, RENEW, names, &args)
}

fn force(con: &mut Connection, names: &[&str]) -> RedisResult<i64> {
    force_for(con, names)
}

fn force_for<T: FromRedisValue>(con: &mut Connection, names: &[&str]) -> RedisResult<T> {
    let keys = with_channels(names);
    let keys = keys.iter().map(|key| &**key).chain([REQUEST]);
    scripts::force(con, FORCE, &keys.collect::<Vec<_>>())
}

fn state(con: &mut Connection, names: &[&str]) -> RedisResult<i64> {
    run(con, STATE, names, &[])
}

/// Tells the milliseconds until somebody else's lease runs out.
fn red_acquire(
    con: &mut Connection,
    name: &str,
    owner: &str,
    lease: &str,
    up_s: &str,
) -> RedisResult<Option<i64>> {
    red_acquire_as(con, name, owner, lease, up_s, "")
}

/// The same from the server with this `run_id` alone.
fn red_acquire_as(
    con: &mut Connection,
    name: &str,
    owner: &str,
    lease: &str,
    up_s: &str,
    run_id: &str,
) -> RedisResult<Option<i64>> {
    run(con, RED_ACQUIRE, &[name], &[owner, lease, up_s, run_id])
}

/// One run of each script on these names, by us; of those for one name on each of them.
fn run_each(con: &mut Connection, names: &[&str]) -> Vec<(&'static str, RedisResult<Value>)> {
    let (lease, keys) = (LEASE.to_string(), with_channels(names));
    let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
    vec![
        ("acquire", run(con, ACQUIRE, names, &[US, &lease])),
        ("renew", run(con, RENEW, names, &[US, &lease, "1"])),
        ("release", run(con, RELEASE, &keys, &[US])),
        ("force", force_for(con, names)),
        ("state", run(con, STATE, names, &[])),
    ]
}

/// The messages of one release each.
fn announced(names: &[&str]) -> Vec<(String, String)> {
    let message = |name: &&str| (channel(name), "0".to_owned());
    names.iter().map(message).collect()
}

/// Everything on the server, byte for byte, with whether it has a TTL.
fn dump(server: &Server) -> Vec<(String, Vec<u8>, bool)> {
    let of = |key: String| {
        let (value, lives) = (server.ask(&["DUMP", &key]), server.pttl(&key) != -1);
        (key, value, lives)
    };
    server.keys().into_iter().map(of).collect()
}

/// The only things on the server are these locks, with that one owner each.
#[track_caller]
fn assert_held(server: &Server, held: &[(&str, &str, &str)]) {
    let mut names: Vec<_> = held.iter().map(|(name, ..)| *name).collect();
    names.sort_unstable();
    assert_eq!(server.keys(), names);
    for (name, owner, count) in held {
        let wanted = [((*owner).to_owned(), (*count).to_owned())];
        assert_eq!(server.hgetall(name), wanted, "{name}");
    }
}

#[track_caller]
fn assert_wrong_type<T: std::fmt::Debug>(outcome: RedisResult<T>, what: &str) {
    let err = outcome.unwrap_err();
    assert_eq!(err.code(), Some("WRONGTYPE"), "{what}: {err}");
}

/// Locks in which nothing can be taken: a string, and read-write locks that somebody reads and writes.
fn misplace(server: &Server, name: &str, what: usize) {
    match what {
        0 => server.cli(&["SET", name, "precious"]),
        1 => server.cli(&["HSET", name, "mode", "read", THEM, "1"]),
        _ => server.cli(&["HSET", name, "mode", "write", &format!("{THEM}:write"), "1"]),
    };
}

// ---------------------------------------------------------------------------------------------------------------------
// multi_acquire
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn acquiring_takes_all_whatever_their_names() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    take(&mut con, &NAMES, US, LEASE);
    assert_held(&server, &NAMES.map(|name| (name, US, "1")));
    for name in NAMES {
        assert_left(server.pttl(name), LEASE);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
    // One is written, the others are copies of it; without the right to copy all are written.
    assert_eq!((server.calls("hset"), server.calls("copy")), (1, 8));
    assert_eq!(force(&mut con, &NAMES).unwrap(), 1);
    assert_eq!(messages(&server, &mut pubsub), announced(&NAMES));
    forbid(&server, &mut con, "copy");
    take(&mut con, &NAMES, US, LEASE);
    assert_held(&server, &NAMES.map(|name| (name, US, "1")));
    for name in NAMES {
        assert_left(server.pttl(name), LEASE);
    }
    assert_eq!((server.calls("hset"), server.calls("copy")), (10, 8));
    assert_eq!(release(&mut con, &NAMES, US).unwrap(), 9);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(messages(&server, &mut pubsub), announced(&NAMES));
}

#[test]
fn one_name_and_the_most_that_are_possible_make_one_lock() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for n in [1, 256] {
        let names: Vec<String> = (0..n).map(|i| format!("name:{i:03}")).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let all = |owner, count| {
            let held: Vec<_> = names.iter().map(|name| (*name, owner, count)).collect();
            assert_held(&server, &held);
        };
        take(&mut con, &names, US, LEASE);
        all(US, "1");
        assert_eq!(renew(&mut con, &names, US, 3 * LEASE, 2).unwrap(), 1);
        all(US, "2");
        for name in [names[0], names[n - 1]] {
            assert_left(server.pttl(name), 3 * LEASE);
        }
        assert_left(state(&mut con, &names).unwrap(), 3 * LEASE);
        let (at, left) = acquire(&mut con, &names, THEM, "1000").unwrap().unwrap();
        assert_eq!(at, 1);
        assert_left(left, 3 * LEASE);
        assert_eq!(release(&mut con, &names, US).unwrap(), n as i64);
        assert_eq!(messages(&server, &mut pubsub), announced(&names));
        assert_eq!(server.dbsize(), 0);
        take(&mut con, &names, THEM, LEASE);
        assert_eq!(force(&mut con, &names).unwrap(), 1);
        assert_eq!(messages(&server, &mut pubsub), announced(&names));
        assert_eq!(server.dbsize(), 0);
        assert_eq!(state(&mut con, &names).unwrap(), -2);
    }
}

// I3
#[test]
fn acquiring_again_is_as_if_only_the_second_had_run() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    take(&mut con, &THREE, US, LEASE);
    take(&mut con, &THREE, US, 3 * LEASE);
    // Also after what a renewal and a stranger have made of some of them.
    renew(&mut con, &THREE, US, LEASE, 4).unwrap();
    server.cli(&["DEL", "first"]);
    server.cli(&["PERSIST", "last"]);
    take(&mut con, &THREE, US, 2 * LEASE);
    assert_held(&server, &THREE.map(|name| (name, US, "1")));
    for name in THREE {
        assert_left(server.pttl(name), 2 * LEASE);
    }
    // In another order, and a part of it.
    take(&mut con, &["last", "first"], US, LEASE);
    assert_left(server.pttl("first"), LEASE);
    assert_eq!(messages(&server, &mut pubsub), []);
}

// M1
#[test]
fn acquiring_tells_the_first_that_is_not_free_and_takes_none() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for (busy, first) in [
        (&["first"][..], 1),
        (&["middle"], 2),
        (&["last"], 3),
        (&["middle", "last"], 2),
        (&["first", "last"], 1),
        (&THREE, 1),
    ] {
        for (at, name) in (1..).zip(busy) {
            as_redisson(&server, name, THEM, "2", (at + 1) * LEASE);
        }
        // The same for one who has a name of theirs already, and no name twice.
        for ours in [None, THREE.iter().find(|name| !busy.contains(name))] {
            if let Some(ours) = ours {
                take(&mut con, &[ours], US, LEASE);
            }
            let before = dump(&server);
            for _ in 0..2 {
                let (at, left) = acquire(&mut con, &THREE, US, "90000").unwrap().unwrap();
                assert_eq!(at, first, "{busy:?}");
                assert_left(left, 2 * LEASE);
            }
            assert_eq!(dump(&server), before);
            assert_left(server.pttl(busy[0]), 2 * LEASE);
            if let Some(ours) = ours {
                assert_left(server.pttl(ours), LEASE);
            }
        }
        server.cli(&["FLUSHALL"]);
    }
    server.cli(&["HSET", "last", THEM, "1"]);
    let busy = acquire(&mut con, &THREE, US, "1000").unwrap();
    assert_eq!(busy, Some((3, -1)), "theirs has no end");
    assert_held(&server, &[("last", THEM, "1")]);
    assert_eq!(server.pttl("last"), -1);
    assert_eq!(messages(&server, &mut pubsub), []);
}

// I11
#[test]
fn acquiring_refuses_a_key_of_another_type_wherever_it_stands_and_takes_none() {
    let server = Server::start();
    let mut con = server.connection();
    for odd in THREE {
        for what in 0..3 {
            // Among free ones, with one of theirs before or behind it, and with one that is ours.
            for with in [None, Some(THEM), Some(US)] {
                misplace(&server, odd, what);
                for name in THREE.iter().filter(|name| **name != odd) {
                    if let Some(owner) = with {
                        as_redisson(&server, name, owner, "2", LEASE);
                    }
                }
                let before = dump(&server);
                for _ in 0..2 {
                    let outcome = acquire(&mut con, &THREE, US, "90000");
                    assert_wrong_type(outcome, &format!("{odd} {what} {with:?}"));
                }
                assert_eq!(dump(&server), before, "{odd} {what} {with:?}");
                for name in server.keys() {
                    assert!(server.pttl(&name) <= LEASE);
                }
                server.cli(&["FLUSHALL"]);
            }
        }
    }
}

// L6
#[test]
fn acquiring_takes_none_if_one_cannot_be_given_a_ttl() {
    let server = Server::start();
    let mut con = server.connection();
    for lease in ["0", "-1", "", "soon", "1.5", "9223372036854775807"] {
        let outcome = acquire(&mut con, &THREE, US, lease);
        // What has no time left is gone at once.
        assert_eq!(
            outcome.is_ok(),
            ["0", "-1"].contains(&lease),
            "{lease:?}: {outcome:?}"
        );
        assert_eq!(server.dbsize(), 0, "{lease:?}");
    }
    // Each in turn is the one that may not have one.
    let spared = [
        (0, "~last ~middle"),
        (1, "~first ~last"),
        (2, "~first ~middle"),
    ];
    let spared = if is_redis_6() {
        skipped(
            "a TTL refused for one of several keys",
            "no selectors before 7.0",
        );
        &[]
    } else {
        &spared[..]
    };
    for &(at, spared) in spared {
        let user = format!("hasty{at}");
        let selector = format!("(+pexpire {spared})");
        server.cli(&[
            "ACL", "SETUSER", &user, "on", ">pw", "~*", "&*", "+@all", "-copy", "-pexpire",
            &selector,
        ]);
        let mut con = server.connection();
        let () = redis::cmd("AUTH")
            .arg(&user)
            .arg("pw")
            .query(&mut con)
            .unwrap();
        let before = server.calls("pexpire");
        assert!(acquire(&mut con, &THREE, US, "30000").is_err());
        assert_eq!(server.calls("pexpire") - before, at, "so many had one");
        assert_eq!(server.dbsize(), 0, "{spared}");
    }
    forbid(&server, &mut con, "pexpire");
    assert!(acquire(&mut con, &THREE, US, "30000").is_err());
    assert_eq!(server.dbsize(), 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// multi_release
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn releasing_counts_who_listened_to_any_of_them() {
    let server = Server::start();
    let mut con = server.connection();
    let mut cons = [(); 3].map(|()| server.connection());
    let mut listeners: Vec<PubSub<'_>> = cons.iter_mut().map(Connection::as_pubsub).collect();
    for (listeners, (pubsub, name)) in
        (0..).zip(listeners.iter_mut().zip(["last", "first", "last"]))
    {
        take(&mut con, &THREE, US, LEASE);
        assert_eq!(release(&mut con, &THREE, US).unwrap(), listeners);
        pubsub.subscribe(channel(name)).unwrap();
    }
    renewed_twice(&server, &mut con);
    assert_eq!(release(&mut con, &THREE, US).unwrap(), 3);
    assert_eq!(server.dbsize(), 0);
}

/// All three, with a count of three each.
fn renewed_twice(server: &Server, con: &mut Connection) {
    take(con, &THREE, US, LEASE);
    renew(con, &THREE, US, LEASE, 3).unwrap();
    assert_held(server, &THREE.map(|name| (name, US, "3")));
}

#[test]
fn releasing_twice_removes_nothing_and_tells_again() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    renewed_twice(&server, &mut con);
    for reply in [3, -1, -1] {
        assert_eq!(release(&mut con, &THREE, US).unwrap(), reply);
        assert_eq!(server.dbsize(), 0);
        assert_eq!(
            messages(&server, &mut pubsub),
            announced(&THREE),
            "each once"
        );
    }
    // By the time of the replay somebody else has one of them.
    take(&mut con, &["middle"], THEM, LEASE);
    assert_eq!(release(&mut con, &THREE, US).unwrap(), -2);
    assert_held(&server, &[("middle", THEM, "1")]);
    assert_eq!(
        messages(&server, &mut pubsub),
        announced(&["first", "last"])
    );
}

#[test]
fn releasing_what_is_lost_in_part_frees_the_rest_and_tells_of_all_that_is_free() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for lost in THREE {
        let rest: Vec<_> = THREE.into_iter().filter(|name| *name != lost).collect();
        take(&mut con, &THREE, US, LEASE);
        server.cli(&["DEL", lost]);
        assert_eq!(release(&mut con, &THREE, US).unwrap(), -1, "{lost} is gone");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), announced(&THREE));

        take(&mut con, &THREE, US, LEASE);
        server.cli(&["DEL", lost]);
        as_redisson(&server, lost, THEM, "2", LEASE);
        for _ in 0..2 {
            assert_eq!(
                release(&mut con, &THREE, US).unwrap(),
                -2,
                "{lost} is theirs"
            );
            assert_held(&server, &[(lost, THEM, "2")]);
            assert_left(server.pttl(lost), LEASE);
            assert_eq!(
                messages(&server, &mut pubsub),
                announced(&rest),
                "and not of {lost}"
            );
        }
        server.cli(&["DEL", lost]);

        // Whatever has become of one key, the others are released.
        for what in 0..3 {
            take(&mut con, &THREE, US, LEASE);
            server.cli(&["DEL", lost]);
            misplace(&server, lost, what);
            let misplaced: Vec<u8> = server.ask(&["DUMP", lost]);
            assert_eq!(release(&mut con, &THREE, US).unwrap(), -2, "{lost}: {what}");
            assert_eq!(server.keys(), [lost]);
            assert_eq!(server.ask::<Vec<u8>>(&["DUMP", lost]), misplaced);
            assert_eq!(messages(&server, &mut pubsub), announced(&rest));
            server.cli(&["DEL", lost]);
        }
    }
}

#[test]
fn releasing_keeps_the_fields_of_others_and_does_not_call_that_lock_free() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    take(&mut con, &THREE, US, LEASE);
    let twin = US.replace(":1", ":12");
    server.cli(&["HSET", "first", THEM, "2"]);
    server.cli(&["HSET", "last", &twin, "1"]);
    assert_eq!(release(&mut con, &THREE, US).unwrap(), -2);
    assert_held(&server, &[("first", THEM, "2"), ("last", &twin, "1")]);
    assert_left(server.pttl("first"), LEASE);
    assert_eq!(messages(&server, &mut pubsub), announced(&["middle"]));
}

#[test]
fn a_user_without_rights_on_the_channels_still_releases_and_forces() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    forbid_channels(&server, &mut con);
    take(&mut con, &THREE, US, LEASE);
    assert_eq!(renew(&mut con, &THREE, US, LEASE, 1).unwrap(), 1);
    for reply in [0, -1] {
        assert_eq!(release(&mut con, &THREE, US).unwrap(), reply);
        assert_eq!(server.dbsize(), 0);
    }
    take(&mut con, &THREE, THEM, LEASE);
    assert_eq!(force(&mut con, &THREE).unwrap(), 1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// multi_renew
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn renewing_extends_every_lease_shortens_none_and_restores_what_is_missing() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    take(&mut con, &THREE, US, LEASE);
    server.cli(&["PEXPIRE", "first", "200000"]);
    server.cli(&["PERSIST", "last"]);
    let extended = server.calls("pexpire");
    for _ in 0..2 {
        assert_eq!(renew(&mut con, &THREE, US, 3 * LEASE, 1).unwrap(), 1);
        assert_held(&server, &THREE.map(|name| (name, US, "1")));
        assert_left(server.pttl("first"), 200_000);
        assert_left(server.pttl("middle"), 3 * LEASE);
        assert_left(server.pttl("last"), 3 * LEASE);
        let calls = server.calls("pexpire") - extended;
        assert!((2..=4).contains(&calls), "never the longer one: {calls}");
    }
    // The count is written where it is another.
    let written = server.calls("hset");
    for (count, text, writes) in [(1, "1", 0), (2, "2", 3), (2, "2", 3), (1, "1", 6)] {
        assert_eq!(renew(&mut con, &THREE, US, 1000, count).unwrap(), 1);
        assert_held(&server, &THREE.map(|name| (name, US, text)));
        assert_eq!(server.calls("hset") - written, writes);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// W7
#[test]
fn renewing_what_is_lost_in_part_renews_none_and_creates_nothing() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in THREE {
        assert_eq!(renew(&mut con, &[name], US, LEASE, 1).unwrap(), 0);
    }
    assert_eq!(server.dbsize(), 0);
    for lost in THREE {
        let rest: Vec<_> = THREE.into_iter().filter(|name| *name != lost).collect();
        let mut refused = |because: &str, reply: i64| {
            let before = dump(&server);
            for _ in 0..2 {
                let renewed = renew(&mut con, &THREE, US, 9 * LEASE, 5).unwrap();
                assert_eq!(renewed, reply, "{lost} {because}");
            }
            assert_eq!(dump(&server), before, "{lost} {because}");
            for name in server.keys() {
                assert!(server.pttl(&name) <= LEASE, "{name}, {lost} {because}");
            }
        };
        for name in &rest {
            as_redisson(&server, name, US, "1", LEASE);
        }
        refused("is gone", 0);
        as_redisson(&server, lost, THEM, "1", LEASE);
        refused("is theirs", -1);
        server.cli(&["DEL", rest[0]]);
        refused("is theirs, and another is gone", -1);
        for what in 0..3 {
            server.cli(&["DEL", lost]);
            misplace(&server, lost, what);
            refused("is something else", -1);
        }
        server.cli(&["FLUSHALL"]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// multi_force
// ---------------------------------------------------------------------------------------------------------------------

// O7
#[test]
fn forcing_frees_all_and_tells_of_those_that_were_held() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    assert_eq!(force(&mut con, &NAMES).unwrap(), 0);
    assert_eq!(messages(&server, &mut pubsub), []);
    for held in [&NAMES[..], &NAMES[..1], &NAMES[4..6], &NAMES[8..]] {
        for name in held {
            as_redisson(&server, name, THEM, "2", LEASE);
        }
        // Of several owners by a bug, and without an end.
        server.cli(&["HSET", held[0], US, "1"]);
        server.cli(&["PERSIST", held[0]]);
        assert_eq!(force(&mut con, &NAMES).unwrap(), 1);
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), announced(held));
        assert_eq!(force(&mut con, &NAMES).unwrap(), 0);
        assert_eq!(messages(&server, &mut pubsub), []);
    }
}

// I11
#[test]
fn forcing_frees_none_if_one_is_not_a_lock() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for at in THREE {
        for field in ["price", "", ":1", "not-a-uuid-at-all:1", "mode"] {
            for name in THREE {
                as_redisson(&server, name, THEM, "1", LEASE);
            }
            server.cli(&["HSET", at, field, "1"]);
            let before = dump(&server);
            assert_wrong_type(force(&mut con, &THREE), field);
            assert_eq!(dump(&server), before, "{field:?}");
            server.cli(&["FLUSHALL"]);
        }
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// multi_state
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn asking_tells_when_the_last_lease_runs_out_and_changes_nothing() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    assert_eq!(state(&mut con, &THREE).unwrap(), -2);
    assert_eq!(server.dbsize(), 0);
    for long in THREE {
        let short = THREE.into_iter().find(|name| *name != long).unwrap();
        as_redisson(&server, short, US, "1", LEASE);
        assert_left(state(&mut con, &THREE).unwrap(), LEASE);
        as_redisson(&server, long, THEM, "1", 3 * LEASE);
        let before = dump(&server);
        assert_left(state(&mut con, &THREE).unwrap(), 3 * LEASE);
        assert_eq!(dump(&server), before);
        for eternal in [short, long] {
            server.cli(&["PERSIST", eternal]);
            assert_eq!(state(&mut con, &THREE).unwrap(), -1);
            server.cli(&["PEXPIRE", eternal, "1000"]);
        }
        server.cli(&["FLUSHALL"]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// All of several names
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_value_of_another_type_is_refused_and_kept() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for at in THREE {
        let rest: Vec<_> = THREE.into_iter().filter(|name| *name != at).collect();
        for make in [
            ["SET", at, "v"].as_slice(),
            &["RPUSH", at, "v"],
            &["SADD", at, US],
            &["ZADD", at, "1", US],
            &["XADD", at, "1-1", US, "1"],
        ] {
            server.cli(make);
            let before = dump(&server);
            for (script, outcome) in run_each(&mut con, &THREE) {
                match script {
                    // Theirs by now, and nothing of ours anywhere.
                    "renew" => assert_eq!(outcome.unwrap(), Value::Int(-1), "{make:?}"),
                    "release" => assert_eq!(outcome.unwrap(), Value::Int(-2), "{make:?}"),
                    _ => assert_wrong_type(outcome, &format!("{script} on {make:?}")),
                }
            }
            assert_eq!(dump(&server), before);
            assert_eq!(
                messages(&server, &mut pubsub),
                announced(&rest),
                "by the release"
            );
            server.cli(&["DEL", at]);
        }
    }
}

#[test]
fn out_of_memory_nobody_acquires_and_holders_renew_and_release() {
    let server = Server::start();
    let mut con = server.connection();
    take(&mut con, &THREE, US, LEASE);
    out_of_memory(&server);
    let err = acquire(&mut con, &["free", "too"], US, "1000").unwrap_err();
    assert_eq!(err.code(), Some("OOM"), "{err}");
    let err = red_acquire(&mut con, "free", US, "1000", "0").unwrap_err();
    assert_eq!(err.code(), Some("OOM"), "{err}");
    assert_eq!(server.dbsize(), 3);
    // A new count needs memory; the lease does not depend on it.
    for count in [1, 2] {
        let lease = 2 * count * LEASE;
        assert_eq!(renew(&mut con, &THREE, US, lease, count).unwrap(), 1);
        for name in THREE {
            assert_left(server.pttl(name), lease);
        }
    }
    assert!(acquire(&mut con, &THREE, THEM, "1000").unwrap().is_some());
    assert_eq!(release(&mut con, &THREE, US).unwrap(), 0);
    assert_eq!(force(&mut con, &["free", "middle"]).unwrap(), 0);
    assert_eq!(server.dbsize(), 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// red_acquire
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_node_grants_what_is_free_and_nothing_else() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let taken = red_acquire(&mut con, name, US, &LEASE.to_string(), "0");
        assert_eq!(taken.unwrap(), None);
        assert_held(&server, &[(name, US, "1")]);
        assert_left(server.pttl(name), LEASE);
        // The same number once more is that of another node, which is the same server.
        let left = red_acquire(&mut con, name, US, "90000", "0").unwrap();
        assert_left(left.unwrap(), LEASE);
        assert_held(&server, &[(name, US, "1")]);
        assert_left(server.pttl(name), LEASE);
        server.cli(&["DEL", name]);

        as_redisson(&server, name, THEM, "2", 2 * LEASE);
        for _ in 0..2 {
            let left = red_acquire(&mut con, name, US, "90000", "0").unwrap();
            assert_left(left.unwrap(), 2 * LEASE);
            assert_held(&server, &[(name, THEM, "2")]);
            assert_left(server.pttl(name), 2 * LEASE);
        }
        server.cli(&["PERSIST", name]);
        let left = red_acquire(&mut con, name, US, "90000", "0").unwrap();
        assert_eq!((left, server.pttl(name)), (Some(-1), -1));
        server.cli(&["DEL", name]);

        for what in 0..3 {
            misplace(&server, name, what);
            let before = dump(&server);
            let outcome = red_acquire(&mut con, name, US, "90000", "0");
            assert_wrong_type(outcome, name);
            assert_eq!(dump(&server), before);
            server.cli(&["DEL", name]);
        }
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// L6
#[test]
fn a_node_that_cannot_set_a_ttl_keeps_nothing() {
    let server = Server::start();
    let mut con = server.connection();
    for lease in ["0", "-1", "", "soon", "1.5", "9223372036854775807"] {
        let is_over = ["0", "-1"].contains(&lease);
        let outcome = red_acquire(&mut con, "lock", US, lease, "0");
        assert_eq!(outcome.is_ok(), is_over, "{lease:?}: {outcome:?}");
        assert_eq!(server.dbsize(), 0, "{lease:?}");
    }
    forbid(&server, &mut con, "pexpire");
    assert!(red_acquire(&mut con, "lock", US, "1000", "0").is_err());
    assert_eq!(server.dbsize(), 0);
}

// S5
#[test]
fn a_node_takes_no_part_until_it_has_been_up_for_long_enough() {
    let server = Server::start_with(&[]);
    let mut con = server.connection();
    let up = || {
        let info: String = server.ask(&["INFO", "server"]);
        let up = info.split("uptime_in_seconds:").nth(1).unwrap();
        up.lines().next().unwrap().trim().parse::<u64>().unwrap()
    };
    let err = red_acquire(&mut con, "lock", US, "30000", "3600").unwrap_err();
    assert_eq!(err.code(), Some("RESTARTED"), "{err}");
    assert!(err.to_string().contains("3600 s"), "{err}");
    assert_eq!(server.dbsize(), 0);
    // It still says whose it is, and what is no lock.
    as_redisson(&server, "lock", THEM, "1", LEASE);
    let left = red_acquire(&mut con, "lock", US, "30000", "3600").unwrap();
    assert_left(left.unwrap(), LEASE);
    misplace(&server, "odd", 0);
    assert_wrong_type(red_acquire(&mut con, "odd", US, "1000", "3600"), "odd");

    // A number, not a text: two is less than ten.
    eventually("it has been up for two seconds", || up() >= 2);
    let outcome = red_acquire(&mut con, "free", US, "30000", "10");
    assert!(outcome.is_err() || up() > 10);
    server.cli(&["DEL", "free"]);
    assert_eq!(
        red_acquire(&mut con, "free", US, "30000", "1").unwrap(),
        None
    );
    // Of so many whole seconds the last may not have been a whole one.
    let shown = up();
    let outcome = red_acquire(&mut con, "cut", US, "30000", &shown.to_string());
    assert!(outcome.is_err() || up() > shown, "{outcome:?}");
    server.cli(&["DEL", "cut"]);
    // Another server has another history, however long it has been up.
    let info: String = server.ask(&["INFO", "server"]);
    let run_id = info.split("run_id:").nth(1).unwrap().lines().next();
    let run_id = run_id.unwrap().trim();
    let other = "0".repeat(40);
    for id in [&*other, &run_id[1..], "-"] {
        let err = red_acquire_as(&mut con, "other", US, "30000", "1", id).unwrap_err();
        assert_eq!(err.code(), Some("RESTARTED"), "{err}");
        let detail = err.detail().unwrap();
        assert!(detail.starts_with(&format!("as {run_id}, ")), "{detail}");
        assert!(!server.exists("other"));
        let left = red_acquire_as(&mut con, "lock", US, "30000", "1", id).unwrap();
        assert_left(left.unwrap(), LEASE);
    }
    let taken = red_acquire_as(&mut con, "other", US, "30000", "1", run_id);
    assert_eq!(taken.unwrap(), None);
    server.cli(&["DEL", "other"]);
    server.cli(&["DEL", "odd"]);
    let left = [("free", US, "1"), ("lock", THEM, "1")];
    assert_held(&server, &left);

    // Whoever does not ask for it needs no right to ask.
    forbid(&server, &mut con, "info");
    assert!(red_acquire(&mut con, "bare", US, "30000", "1").is_err());
    assert!(!server.exists("bare"));
    assert_eq!(
        red_acquire(&mut con, "bare", US, "30000", "0").unwrap(),
        None
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Against a model
// ---------------------------------------------------------------------------------------------------------------------

/// What all names hold: owner, count and lease. Leases lie so far apart that time does not matter.
#[derive(Default)]
struct Model(BTreeMap<&'static str, (usize, i64, i64)>);

impl Model {
    fn is(&self, name: &str, owner: usize) -> bool {
        self.0.get(name).is_some_and(|(its, ..)| *its == owner)
    }

    fn is_free(&self, name: &str) -> bool {
        !self.0.contains_key(name)
    }
}

// M2, I3
#[test]
fn random_verbs_do_what_the_model_says() {
    const FIVE: [&str; 5] = ["a", "b", "c{d}", "e f", "g"];
    let owners = [US.to_owned(), THEM.to_owned(), US.replace(":1", ":12")];
    let server = Server::start();
    let (mut con, mut look, mut pubsub_con) = (
        server.connection(),
        server.connection(),
        server.connection(),
    );
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut model = Model::default();
    let seed = (u64::from(std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()) << 20) | 1;
    let mut last = seed;
    let mut random = |below: usize| {
        last ^= last << 13;
        last ^= last >> 7;
        last ^= last << 17;
        (last >> 20) as usize % below
    };
    for step in 0..500 {
        let mut names = FIVE.to_vec();
        for at in 0..5 {
            names.swap(at, random(5));
        }
        names.truncate(1 + random(4));
        let (who, verb) = (random(3), random(8));
        let owner = &*owners[who];
        let (lease, count) = (1_000_000 * (1 + random(9) as i64), 1 + random(3) as i64);
        let all_ours = names.iter().all(|name| model.is(name, who));
        let mut tells = Vec::new();
        let said = format!("seed {seed}, step {step}: {verb} of {names:?} by {who}, {lease}");
        match verb {
            0..=2 => {
                let busy = names
                    .iter()
                    .position(|name| !model.is_free(name) && !model.is(name, who));
                let reply = acquire(&mut con, &names, owner, &lease.to_string()).unwrap();
                assert_eq!(reply.map(|(at, _)| at - 1), busy, "{said}");
                match reply {
                    Some((at, left)) => {
                        let (.., its) = model.0[names[at - 1]];
                        assert!((its - 500_000..=its).contains(&left), "{said}: {left}");
                    }
                    None => {
                        for name in &names {
                            model.0.insert(name, (who, 1, lease));
                        }
                    }
                }
            }
            3 | 4 => {
                for name in &names {
                    if model.is(name, who) {
                        model.0.remove(name);
                    }
                }
                tells = names.clone();
                tells.retain(|name| model.is_free(name));
                let reply = if tells.len() < names.len() {
                    -2
                } else if !all_ours {
                    -1
                } else {
                    names.len() as i64
                };
                assert_eq!(release(&mut con, &names, owner).unwrap(), reply, "{said}");
            }
            5 | 6 => {
                let theirs = |name: &&str| !model.is_free(name) && !model.is(name, who);
                let reply = if names.iter().any(theirs) {
                    -1
                } else {
                    i64::from(all_ours)
                };
                let renewed = renew(&mut con, &names, owner, lease, count);
                assert_eq!(renewed.unwrap(), reply, "{said}");
                for name in names.iter().filter(|_| all_ours) {
                    let (.., its) = model.0[name];
                    model.0.insert(name, (who, count, its.max(lease)));
                }
            }
            _ => {
                tells = names.clone();
                tells.retain(|name| model.0.remove(name).is_some());
                let forced = i64::from(!tells.is_empty());
                assert_eq!(force(&mut con, &names).unwrap(), forced, "{said}");
            }
        }
        assert_eq!(messages(&server, &mut pubsub), announced(&tells), "{said}");
        let longest = names
            .iter()
            .filter_map(|name| model.0.get(name))
            .map(|its| its.2)
            .max();
        let left = state(&mut con, &names).unwrap();
        match longest {
            None => assert_eq!(left, -2, "{said}"),
            Some(longest) => assert!((longest - 500_000..=longest).contains(&left), "{said}"),
        }
        for name in FIVE {
            let (fields, left): (Vec<(String, i64)>, i64) = redis::pipe()
                .cmd("HGETALL")
                .arg(name)
                .cmd("PTTL")
                .arg(name)
                .query(&mut look)
                .unwrap();
            match model.0.get(name) {
                None => assert_eq!((fields.len(), left), (0, -2), "{said}: {name}"),
                Some((who, count, lease)) => {
                    assert_eq!(fields, [(owners[*who].clone(), *count)], "{said}: {name}");
                    assert!((lease - 500_000..=*lease).contains(&left), "{said}: {name}");
                }
            }
        }
    }
}
