//! The scripts about permits with a lease each, by bare EVALSHA: replies, and the keys, scores, TTLs and messages left.

use redis::{Connection, FromRedisValue, RedisResult, Value};

use crate::support::permits::{
    ACQUIRE, ADD, NEVER, RELEASE, RELEASE_IDS, RENEW, SET, STATE, TRY_SET, UPDATE, as_redisson,
    channel, id, now, out, suffixed, timeouts,
};
use crate::support::scripts::{
    LEASE, NAMES, assert_left, forbid, forbid_channels, out_of_memory, plain,
};
use crate::support::{Messages, Server, eventually, lua};

const OF_ONE: &str = lua::PERMIT_LEASE;

const KEEP: &str = "60000";

fn ids(of: &[u8]) -> Vec<u8> {
    of.iter().flat_map(|n| id(*n)).collect()
}

fn request(name: &str) -> String {
    suffixed(name, "request:7")
}

fn run<T: FromRedisValue>(
    con: &mut Connection,
    script: &str,
    name: &str,
    remembers: bool,
    args: &[&[u8]],
) -> RedisResult<T> {
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(con)?;
    let mut keys = vec![name.to_owned(), timeouts(name), channel(name)];
    if remembers {
        keys.push(request(name));
    }
    if script == RENEW {
        keys = vec![timeouts(name)];
    }
    redis::cmd("EVALSHA")
        .arg(sha)
        .arg(keys.len())
        .arg(keys)
        .arg(args)
        .query(con)
        .map_err(plain)
}

/// `None` once they are taken, or for how long it may be worth waiting.
fn acquire(con: &mut Connection, name: &str, of: &[u8], lease: i64) -> RedisResult<Option<i64>> {
    acquire_raw(con, name, &ids(of), lease)
}

fn acquire_raw(
    con: &mut Connection,
    name: &str,
    ids: &[u8],
    lease: i64,
) -> RedisResult<Option<i64>> {
    let lease = lease.to_string();
    match run(con, ACQUIRE, name, false, &[lease.as_bytes(), ids])? {
        Value::Int(left) => Ok(Some(left)),
        Value::Array(taken) => {
            assert!(matches!(taken.as_slice(), [Value::Int(1..)]), "{taken:?}");
            Ok(None)
        }
        other => panic!("{other:?}"),
    }
}

fn release(con: &mut Connection, name: &str, of: &[u8]) -> RedisResult<i64> {
    run(con, RELEASE, name, false, &[&ids(of)])
}

fn release_ids(con: &mut Connection, name: &str, of: &[u8]) -> RedisResult<String> {
    run(con, RELEASE_IDS, name, true, &[&ids(of), KEEP.as_bytes()])
}

/// By one who believes that it is over at `ends_at`.
fn renew(con: &mut Connection, name: &str, of: u8, lease: i64, ends_at: i64) -> RedisResult<i64> {
    let (lease, ends_at) = (lease.to_string(), ends_at.to_string());
    let args: [&[u8]; 3] = [&id(of), lease.as_bytes(), ends_at.as_bytes()];
    run(con, RENEW, name, false, &args)
}

/// When a permit is over; 0 if it is not out.
fn ends_at(con: &mut Connection, name: &str, of: u8) -> i64 {
    let score: Option<i64> = redis::cmd("ZSCORE")
        .arg(timeouts(name))
        .arg(id(of))
        .query(con)
        .unwrap();
    score.unwrap_or(0)
}

fn update(con: &mut Connection, name: &str, of: u8, lease: i64) -> RedisResult<i64> {
    let lease = lease.to_string();
    run(con, UPDATE, name, false, &[&id(of), lease.as_bytes()])
}

fn lease_of(con: &mut Connection, name: &str, of: u8) -> RedisResult<i64> {
    run(con, OF_ONE, name, false, &[&id(of)])
}

fn state(con: &mut Connection, name: &str) -> RedisResult<(i64, i64, i64)> {
    run(con, STATE, name, false, &[])
}

/// One of the scripts that say how many there are.
fn sender(con: &mut Connection, script: &str, name: &str, n: i64) -> RedisResult<i64> {
    let n = n.to_string();
    run(con, script, name, true, &[n.as_bytes(), KEEP.as_bytes()])
}

/// The same, as a request that was never made before.
fn tell_anew(con: &mut Connection, script: &str, name: &str, n: i64) -> i64 {
    let () = redis::cmd("DEL").arg(request(name)).query(con).unwrap();
    sender(con, script, name, n).unwrap()
}

/// One run of each.
fn run_each(con: &mut Connection, name: &str) -> [(&'static str, RedisResult<()>); 10] {
    [
        ("try_set", sender(con, TRY_SET, name, 3).map(drop)),
        ("set", sender(con, SET, name, 3).map(drop)),
        ("add", sender(con, ADD, name, 3).map(drop)),
        ("acquire", acquire(con, name, &[1], LEASE).map(drop)),
        ("renew", renew(con, name, 1, LEASE, 1).map(drop)),
        ("update", update(con, name, 1, LEASE).map(drop)),
        ("lease", lease_of(con, name, 1).map(drop)),
        ("state", state(con, name).map(drop)),
        ("release", release(con, name, &[1]).map(drop)),
        ("release_ids", release_ids(con, name, &[1]).map(drop)),
    ]
}

fn announced(name: &str, payload: i64) -> (String, String) {
    (channel(name), payload.to_string())
}

// ---------------------------------------------------------------------------------------------------------------------
// The table
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn whatever_the_name_the_keys_and_messages_are_redissons() {
    let server = Server::start();
    let mut con = server.connection();
    let mut messages = Messages::of(&server);
    for name in NAMES {
        assert_eq!(sender(&mut con, TRY_SET, name, 3).unwrap(), 1);
        assert_eq!(server.get_int(name), 3);
        assert_eq!(messages.published(&server), [announced(name, 3)]);
        assert_left(server.pttl(&request(name)), 60_000);
        let before = now(&server);
        assert_eq!(acquire(&mut con, name, &[7, 9], LEASE).unwrap(), None);
        let after = now(&server);
        assert_eq!(server.get_int(name), 1);
        let until = out(&server, name);
        assert_eq!(until.len(), 2);
        for (n, (member, score)) in [7, 9].into_iter().zip(until) {
            assert_eq!(member, id(n));
            assert!((before + LEASE..=after + LEASE).contains(&score), "{score}");
        }
        assert_eq!(server.pttl(&timeouts(name)), -1);
        assert_eq!(messages.published(&server), []);
        assert_eq!(release(&mut con, name, &[7]).unwrap(), 1);
        assert_eq!(messages.published(&server), [announced(name, 2)]);
        server.cli(&["DEL", &request(name)]);
        assert_eq!(release_ids(&mut con, name, &[9]).unwrap(), "1");
        assert_eq!(messages.published(&server), [announced(name, 3)]);
        let mut left = vec![name.to_owned(), request(name)];
        left.sort();
        assert_eq!(server.keys(), left);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn permits_that_java_clients_took_are_counted_and_those_that_are_over_given_back() {
    let server = Server::start();
    let mut con = server.connection();
    let mut messages = Messages::of(&server);
    let fill = |server: &Server| {
        server.cli(&["FLUSHALL"]);
        server.cli(&["SET", "x", "0"]);
        let now = now(server);
        as_redisson(server, "x", &id(1), NEVER);
        as_redisson(server, "x", &id(2), now + 60_000);
        as_redisson(server, "x", &id(3), now - 1);
        as_redisson(server, "x", &id(4), 1);
        as_redisson(server, "x", &id(5), 0);
    };
    // R28: whatever is asked for, all that is over is given back, and published.
    fill(&server);
    assert_eq!(acquire(&mut con, "x", &[9], LEASE).unwrap(), None);
    assert_eq!(server.get_int("x"), 2);
    assert_eq!(messages.published(&server), [announced("x", 3)]);
    assert_eq!(state(&mut con, "x").unwrap(), (2, 3, 5));
    assert_eq!(lease_of(&mut con, "x", 1).unwrap(), -1);
    assert_left(lease_of(&mut con, "x", 2).unwrap(), 60_000);
    assert_eq!(lease_of(&mut con, "x", 3).unwrap(), -2);
    assert_left(lease_of(&mut con, "x", 9).unwrap(), LEASE);
    assert_eq!(release_ids(&mut con, "x", &[1, 3, 2, 1]).unwrap(), "1010");
    assert_eq!(messages.published(&server), [announced("x", 4)]);
    assert_eq!(state(&mut con, "x").unwrap(), (4, 1, 5));

    fill(&server);
    assert_eq!(state(&mut con, "x").unwrap(), (3, 2, 5));
    assert_eq!(messages.published(&server), [announced("x", 3)]);
    fill(&server);
    assert_eq!(lease_of(&mut con, "x", 3).unwrap(), -2);
    assert_eq!(messages.published(&server), [announced("x", 3)]);
    fill(&server);
    assert_eq!(update(&mut con, "x", 3, LEASE).unwrap(), 0);
    assert_eq!(messages.published(&server), [announced("x", 3)]);
    // Over is over, but what it took is there again.
    fill(&server);
    assert_eq!(release(&mut con, "x", &[3]).unwrap(), -1);
    assert_eq!(messages.published(&server), [announced("x", 3)]);
    assert_eq!(server.get_int("x"), 3);
    fill(&server);
    assert_eq!(release(&mut con, "x", &[2, 3]).unwrap(), 1);
    assert_eq!(messages.published(&server), [announced("x", 4)]);
    fill(&server);
    assert_eq!(release_ids(&mut con, "x", &[3]).unwrap(), "0");
    assert_eq!(messages.published(&server), [announced("x", 3)]);
    assert!(!server.exists(&request("x")));
    fill(&server);
    let over = ends_at(&mut con, "x", 3);
    assert_eq!(renew(&mut con, "x", 3, LEASE, over).unwrap(), 0);
    assert_eq!(out(&server, "x").len(), 5, "for others to give back");
    fill(&server);
    assert_eq!(sender(&mut con, ADD, "x", 2).unwrap(), 1);
    assert_eq!(messages.published(&server), [announced("x", 5)]);
    assert_eq!(state(&mut con, "x").unwrap(), (5, 2, 7));
    fill(&server);
    assert_eq!(sender(&mut con, SET, "x", 3).unwrap(), 1);
    assert_eq!(messages.published(&server), [announced("x", 1)]);
    assert_eq!(state(&mut con, "x").unwrap(), (1, 2, 3));
    fill(&server);
    assert_eq!(sender(&mut con, TRY_SET, "x", 9).unwrap(), 0);
    assert_eq!(server.get_int("x"), 0);
}

#[test]
fn a_lease_is_renewed_and_never_shortened_and_an_update_does_either() {
    let server = Server::start();
    let mut con = server.connection();
    sender(&mut con, TRY_SET, "x", 3).unwrap();
    acquire(&mut con, "x", &[1], LEASE).unwrap();
    let first = ends_at(&mut con, "x", 1);
    let second = renew(&mut con, "x", 1, 2 * LEASE, first).unwrap();
    assert_eq!(second, ends_at(&mut con, "x", 1), "it says when it ends");
    assert_left(lease_of(&mut con, "x", 1).unwrap(), 2 * LEASE);
    assert_eq!(renew(&mut con, "x", 1, 1, second).unwrap(), second);
    assert_left(lease_of(&mut con, "x", 1).unwrap(), 2 * LEASE);
    assert_eq!(renew(&mut con, "x", 2, LEASE, second).unwrap(), 0);
    assert_eq!(update(&mut con, "x", 2, LEASE).unwrap(), 0);
    assert_eq!(update(&mut con, "x", 1, LEASE).unwrap(), 1);
    assert_left(lease_of(&mut con, "x", 1).unwrap(), LEASE);
    assert_eq!(update(&mut con, "x", 1, 3 * LEASE).unwrap(), 1);
    assert_left(lease_of(&mut con, "x", 1).unwrap(), 3 * LEASE);
    let century = 100 * 365 * 24 * 3_600_000;
    assert_eq!(update(&mut con, "x", 1, century).unwrap(), 1);
    assert_left(lease_of(&mut con, "x", 1).unwrap(), century);
    assert_eq!(out(&server, "x").len(), 1);
    // Java clients take such.
    as_redisson(&server, "x", &id(8), NEVER);
    assert_eq!(renew(&mut con, "x", 8, LEASE, 1).unwrap(), NEVER);
    assert_eq!(lease_of(&mut con, "x", 8).unwrap(), -1);
    assert_eq!(update(&mut con, "x", 8, LEASE).unwrap(), 1);
    assert_left(lease_of(&mut con, "x", 8).unwrap(), LEASE);
    assert_eq!(update(&mut con, "x", 1, 20).unwrap(), 1);
    eventually("it is over", || lease_of(&mut con, "x", 1).unwrap() == -2);
    assert_eq!(state(&mut con, "x").unwrap(), (3, 1, 4));
}

#[test]
fn one_who_finds_too_few_is_told_when_enough_may_be_over() {
    let server = Server::start();
    let mut con = server.connection();
    let acquire = &mut |of: &[u8]| acquire(&mut con, "x", of, LEASE).unwrap();
    // Nobody has said how many there are.
    assert_eq!(acquire(&[1]), Some(-1));
    assert_eq!(server.dbsize(), 0);
    server.cli(&["SET", "x", "1"]);
    assert_eq!(acquire(&[1, 2]), Some(-1));
    let now = now(&server);
    for (n, span) in [(11, 10_000), (12, 20_000), (13, 30_000)] {
        as_redisson(&server, "x", &id(n), now + span);
    }
    as_redisson(&server, "x", &id(14), NEVER);
    // Below zero there is nothing that comes to an end.
    as_redisson(&server, "x", &id(15), -5);
    for (wanted, least) in [(2, 10_000), (3, 20_000), (4, 30_000)] {
        let of: Vec<u8> = (1..=wanted).collect();
        assert_left(acquire(&of).unwrap(), least);
    }
    assert_eq!(acquire(&[1, 2, 3, 4, 5]), Some(-1));
    server.cli(&["SET", "x", "-2"]);
    assert_left(acquire(&[1]).unwrap(), 30_000);
    assert_eq!(acquire(&[1, 2]), Some(-1));
    assert_eq!(server.get_int("x"), -2);
    assert_eq!(out(&server, "x").len(), 5);
}

#[test]
fn the_number_is_set_once_changed_at_will_and_keeps_its_limit() {
    let server = Server::start();
    let mut con = server.connection();
    let mut messages = Messages::of(&server);
    assert_eq!(sender(&mut con, TRY_SET, "x", 0).unwrap(), 1);
    assert_eq!(messages.published(&server), []);
    assert_eq!(server.ask::<String>(&["GET", "x"]), "0");
    // H2: none to be had is not unset.
    assert_eq!(tell_anew(&mut con, TRY_SET, "x", 5), 0);
    assert_eq!(tell_anew(&mut con, SET, "x", 4), 1);
    assert_eq!(messages.published(&server), [announced("x", 4)]);
    acquire(&mut con, "x", &[1, 2, 3], LEASE).unwrap();
    server.cli(&["PEXPIRE", "x", "600000"]);
    for (script, n, after, message) in [
        (SET, 4, (1, 3, 4), None),
        (SET, 2, (-1, 3, 2), None),
        (SET, 3, (0, 3, 3), None),
        (ADD, 2, (2, 3, 5), Some(2)),
        (ADD, -1, (1, 3, 4), None),
        (ADD, -3, (-2, 3, 1), None),
        (ADD, 1, (-1, 3, 2), None),
        (SET, 9, (6, 3, 9), Some(6)),
        (SET, 0, (-3, 3, 0), None),
        (
            SET,
            2_147_483_647,
            (2_147_483_644, 3, 2_147_483_647),
            Some(2_147_483_644),
        ),
        (
            ADD,
            5,
            (2_147_483_649, 3, 2_147_483_652),
            Some(2_147_483_647),
        ),
    ] {
        assert_eq!(tell_anew(&mut con, script, "x", n), 1);
        assert_eq!(state(&mut con, "x").unwrap(), after, "{n}");
        let expected: Vec<_> = message.map(|n| announced("x", n)).into_iter().collect();
        assert_eq!(messages.published(&server), expected, "{n}");
    }
    assert_eq!(release(&mut con, "x", &[1]).unwrap(), 1);
    assert_eq!(messages.published(&server), [announced("x", 2_147_483_647)]);
    // R21
    assert_left(server.pttl("x"), 600_000);
    assert_eq!(server.pttl(&timeouts("x")), -1);
    acquire(&mut con, "x", &[9], LEASE).unwrap();
    assert_left(server.pttl(&timeouts("x")), 600_000);
    server.cli(&["FLUSHALL"]);
    assert_eq!(sender(&mut con, ADD, "x", 2).unwrap(), 1);
    assert_eq!(state(&mut con, "x").unwrap(), (2, 0, 2));
    server.cli(&["FLUSHALL"]);
    assert_eq!(sender(&mut con, SET, "x", 0).unwrap(), 1);
    assert_eq!(server.ask::<String>(&["GET", "x"]), "0");
}

#[test]
fn permits_that_are_out_although_the_number_was_deleted_belong_to_the_new_one() {
    let server = Server::start();
    let mut con = server.connection();
    for (script, what) in [(TRY_SET, "try_set"), (SET, "set")] {
        server.cli(&["FLUSHALL"]);
        let now = now(&server);
        as_redisson(&server, "x", &id(1), now - 1);
        as_redisson(&server, "x", &id(2), now + 60_000);
        assert_eq!(sender(&mut con, script, "x", 5).unwrap(), 1, "{what}");
        assert_eq!(state(&mut con, "x").unwrap(), (4, 1, 5), "{what}");
    }
}

#[test]
fn permits_that_come_back_do_not_make_a_number_that_is_gone() {
    type Back = fn(&mut Connection);
    let server = Server::start();
    let mut con = server.connection();
    let ways: [(&str, Back); 6] = [
        ("release", |con| {
            assert_eq!(release(con, "x", &[1]).unwrap(), 0);
        }),
        ("release_ids", |con| {
            assert_eq!(release_ids(con, "x", &[1]).unwrap(), "1");
        }),
        ("state", |con| {
            assert_eq!(state(con, "x").unwrap(), (0, 2, 0));
        }),
        ("acquire", |con| {
            // What comes to its end is to nobody's use.
            assert_eq!(acquire(con, "x", &[7], LEASE).unwrap(), Some(-1));
        }),
        ("update", |con| {
            assert_eq!(update(con, "x", 1, LEASE).unwrap(), 1);
        }),
        ("lease", |con| {
            assert_left(lease_of(con, "x", 1).unwrap(), LEASE);
        }),
    ];
    for (what, back) in ways {
        server.cli(&["FLUSHALL"]);
        assert_eq!(sender(&mut con, TRY_SET, "x", 5).unwrap(), 1);
        acquire(&mut con, "x", &[1, 2], LEASE).unwrap();
        server.cli(&["DEL", "x"]);
        as_redisson(&server, "x", &id(3), 1);
        back(&mut con);
        assert!(!server.exists("x"), "{what}");
        assert_eq!(tell_anew(&mut con, TRY_SET, "x", 5), 1, "{what}");
        release(&mut con, "x", &[1, 2]).unwrap();
        assert_eq!(state(&mut con, "x").unwrap(), (5, 0, 5), "{what}");
    }
    // Somebody wants more than an unknown number: what is over by then counts for nothing, however much of it there is.
    server.cli(&["FLUSHALL"]);
    fill_with_over(&server, "x", 1_500);
    as_redisson(&server, "x", &id(1), NEVER);
    assert_eq!(sender(&mut con, ADD, "x", 3).unwrap(), 1);
    assert_eq!(state(&mut con, "x").unwrap(), (3, 1, 4));
}

// ---------------------------------------------------------------------------------------------------------------------
// Twice
// ---------------------------------------------------------------------------------------------------------------------

// I3
#[test]
fn a_request_that_comes_twice_counts_once() {
    let server = Server::start();
    let mut con = server.connection();
    assert_eq!(sender(&mut con, TRY_SET, "x", 2).unwrap(), 1);
    assert_eq!(sender(&mut con, TRY_SET, "x", 2).unwrap(), 1, "as before");
    assert_eq!(tell_anew(&mut con, ADD, "x", 2), 1);
    assert_eq!(sender(&mut con, ADD, "x", 2).unwrap(), 1);
    assert_eq!(server.get_int("x"), 4);
    assert_eq!(tell_anew(&mut con, SET, "x", 3), 1);
    server.cli(&["SET", "x", "1"]);
    assert_eq!(sender(&mut con, SET, "x", 3).unwrap(), 1);
    assert_eq!(server.get_int("x"), 1, "somebody has said something else");

    assert_eq!(acquire(&mut con, "x", &[1], LEASE).unwrap(), None);
    assert_eq!(acquire(&mut con, "x", &[1], LEASE).unwrap(), None);
    assert_eq!(state(&mut con, "x").unwrap(), (0, 1, 1));
    assert_eq!(release(&mut con, "x", &[1]).unwrap(), 0);
    assert_eq!(release(&mut con, "x", &[1]).unwrap(), -1);
    assert_eq!(state(&mut con, "x").unwrap(), (1, 0, 1));

    server.cli(&["SET", "x", "3"]);
    acquire(&mut con, "x", &[1, 2, 3], LEASE).unwrap();
    server.cli(&["DEL", &request("x")]);
    assert_eq!(release_ids(&mut con, "x", &[1, 9, 2, 1]).unwrap(), "1010");
    assert_eq!(release_ids(&mut con, "x", &[1, 9, 2, 1]).unwrap(), "1010");
    assert_eq!(state(&mut con, "x").unwrap(), (2, 1, 3));
    assert_left(server.pttl(&request("x")), 60_000);
    assert_eq!(release_ids(&mut con, "y", &[]).unwrap(), "");
}

#[test]
fn an_acquire_that_comes_again_changes_nothing_while_one_of_its_permits_is_out() {
    let server = Server::start();
    let mut con = server.connection();
    assert_eq!(sender(&mut con, TRY_SET, "x", 5).unwrap(), 1);
    for left in [3, 2, 1] {
        assert_eq!(acquire(&mut con, "x", &[1, 2, 3], LEASE).unwrap(), None);
        release(&mut con, "x", &ids_but(left)).unwrap();
        let before = out(&server, "x");
        assert_eq!(before.len(), 1);
        assert_eq!(acquire(&mut con, "x", &[1, 2, 3], LEASE).unwrap(), None);
        assert_eq!(out(&server, "x"), before);
        assert_eq!(state(&mut con, "x").unwrap(), (4, 1, 5));
        // Also when there would be too few for it.
        assert_eq!(acquire(&mut con, "x", &[7, 8, 9], LEASE).unwrap(), None);
        assert_eq!(acquire(&mut con, "x", &[1, 2, 3], LEASE).unwrap(), None);
        release(&mut con, "x", &[7, 8, 9, left]).unwrap();
        assert_eq!(state(&mut con, "x").unwrap(), (5, 0, 5));
    }
}

/// Of the first three, all but one.
fn ids_but(left: u8) -> Vec<u8> {
    (1..=3).filter(|n| *n != left).collect()
}

#[test]
fn that_the_number_had_been_said_before_is_remembered() {
    let server = Server::start();
    let mut con = server.connection();
    server.cli(&["SET", "x", "2"]);
    assert_eq!(sender(&mut con, TRY_SET, "x", 5).unwrap(), 0);
    server.cli(&["DEL", "x"]);
    assert_eq!(sender(&mut con, TRY_SET, "x", 5).unwrap(), 0, "as before");
    assert!(!server.exists("x"));
    assert_left(server.pttl(&request("x")), 60_000);
}

#[test]
fn a_renewal_that_comes_late_does_not_undo_an_update() {
    let server = Server::start();
    let mut con = server.connection();
    sender(&mut con, TRY_SET, "x", 1).unwrap();
    acquire(&mut con, "x", &[1], LEASE).unwrap();
    let believed = ends_at(&mut con, "x", 1);
    for lease in [LEASE / 2, LEASE + 5_000] {
        assert_eq!(update(&mut con, "x", 1, lease).unwrap(), 1);
        let updated = ends_at(&mut con, "x", 1);
        assert_eq!(
            renew(&mut con, "x", 1, 2 * LEASE, believed).unwrap(),
            -updated,
            "it says when it ends"
        );
        assert_eq!(ends_at(&mut con, "x", 1), updated);
    }
    // Who knows that may renew it, also if it is not a whole number.
    redis::cmd("ZINCRBY")
        .arg(timeouts("x"))
        .arg("0.25")
        .arg(id(1))
        .exec(&mut con)
        .unwrap();
    let learnt = -renew(&mut con, "x", 1, 2 * LEASE, believed).unwrap();
    let renewed = renew(&mut con, "x", 1, 2 * LEASE, learnt).unwrap();
    assert_eq!(renewed, ends_at(&mut con, "x", 1));
    assert_left(lease_of(&mut con, "x", 1).unwrap(), 2 * LEASE);
}

/// As many permits that are over, of 16 bytes each.
fn fill_with_over(server: &Server, name: &str, n: i64) {
    let fill = "
for i = 1, ARGV[1] do
  redis.call('zadd', KEYS[1], i, string.format('%016d', i))
end";
    server.cli(&["EVAL", fill, "1", &timeouts(name), &n.to_string()]);
}

/// An id that [`fill_with_over`] has made.
fn over_id(n: i64) -> Vec<u8> {
    format!("{n:016}").into_bytes()
}

#[test]
fn no_call_gives_back_more_than_a_thousand_and_all_count_as_if_it_did() {
    type Call = fn(&mut Connection);
    const OVER: i64 = 5_000;
    let last = || over_id(OVER);
    let calls: [(&str, (i64, i64, i64), Call); 9] = [
        ("state", (OVER, 1, OVER + 1), |con| {
            assert_eq!(state(con, "x").unwrap(), (OVER, 1, OVER + 1));
        }),
        ("acquire", (OVER - 200, 201, OVER + 1), |con| {
            let many: Vec<u8> = (50..250).collect();
            assert_eq!(acquire(con, "x", &many, LEASE).unwrap(), None);
        }),
        ("acquire again", (OVER, 1, OVER + 1), |con| {
            // There are enough, but not yet given back.
            let very_many: Vec<u8> = (1..=2_000).flat_map(|n| over_id(-n)).collect();
            let left = acquire_raw(con, "x", &very_many, LEASE).unwrap();
            assert_eq!(left, Some(1));
        }),
        ("release", (OVER + 1, 0, OVER + 1), |con| {
            let both = [id(7), over_id(OVER)].concat();
            let released: i64 = run(con, RELEASE, "x", false, &[&both]).unwrap();
            assert_eq!(released, 0);
            let released: i64 = run(con, RELEASE, "x", false, &[&over_id(OVER)]).unwrap();
            assert_eq!(released, -1, "it was over");
        }),
        ("release_ids", (OVER + 1, 0, OVER + 1), |con| {
            let both = [over_id(OVER), id(7)].concat();
            let args: [&[u8]; 2] = [&both, KEEP.as_bytes()];
            let released: String = run(con, RELEASE_IDS, "x", true, &args).unwrap();
            assert_eq!(released, "01", "one was over");
        }),
        ("update", (OVER, 1, OVER + 1), |con| {
            let args: [&[u8]; 2] = [&over_id(OVER), b"60000"];
            let updated: i64 = run(con, UPDATE, "x", false, &args).unwrap();
            assert_eq!(updated, 0, "it was over");
        }),
        ("lease", (OVER, 1, OVER + 1), |con| {
            let left: i64 = run(con, OF_ONE, "x", false, &[&over_id(OVER)]).unwrap();
            assert_eq!(left, -2, "it was over");
        }),
        ("set", (8, 1, 9), |con| {
            assert_eq!(tell_anew(con, SET, "x", 9), 1);
        }),
        ("add", (OVER + 2, 1, OVER + 3), |con| {
            assert_eq!(tell_anew(con, ADD, "x", 2), 1);
        }),
    ];
    let server = Server::start();
    let mut con = server.connection();
    let listed = |server: &Server| server.ask::<i64>(&["ZCOUNT", &timeouts("x"), "0", "1e9"]);
    for (what, after, call) in calls {
        server.cli(&["FLUSHALL"]);
        server.cli(&["SET", "x", "0"]);
        fill_with_over(&server, "x", OVER);
        as_redisson(&server, "x", &id(7), NEVER);
        let before = server.calls("evalsha");
        call(&mut con);
        let calls = i64::try_from(server.calls("evalsha") - before).unwrap();
        let left = listed(&server);
        assert_eq!(left, OVER - 1_000 * calls, "{what}");
        let score: Option<f64> = redis::cmd("ZSCORE")
            .arg(timeouts("x"))
            .arg(last())
            .query(&mut con)
            .unwrap();
        assert_eq!(score, Some(5_000.0), "{what}: left for later");
        assert_eq!(state(&mut con, "x").unwrap(), after, "{what}");
        eventually("all are given back", || {
            assert_eq!(state(&mut con, "x").unwrap(), after, "{what}");
            listed(&server) == 0
        });
        assert_eq!(server.get_int("x"), after.0, "{what}");
    }
    // The first word about the number, too.
    server.cli(&["FLUSHALL"]);
    fill_with_over(&server, "x", OVER);
    as_redisson(&server, "x", &id(7), NEVER);
    assert_eq!(sender(&mut con, TRY_SET, "x", 9).unwrap(), 1);
    assert_eq!(listed(&server), OVER - 1_000);
    assert_eq!(state(&mut con, "x").unwrap(), (8, 1, 9));
}

#[test]
fn a_thousand_are_taken_and_given_back_at_once() {
    let server = Server::start();
    let mut con = server.connection();
    assert_eq!(sender(&mut con, TRY_SET, "x", 1_500).unwrap(), 1);
    let of = |from: i64| (from..from + 1_000).flat_map(over_id).collect::<Vec<_>>();
    assert_eq!(acquire_raw(&mut con, "x", &of(0), LEASE).unwrap(), None);
    assert_eq!(acquire_raw(&mut con, "x", &of(0), LEASE).unwrap(), None);
    assert_eq!(state(&mut con, "x").unwrap(), (500, 1_000, 1_500));
    let left = acquire_raw(&mut con, "x", &of(5_000), LEASE).unwrap();
    assert_left(left.unwrap(), LEASE);
    let args: [&[u8]; 2] = [&of(0), KEEP.as_bytes()];
    server.cli(&["DEL", &request("x")]);
    let released: String = run(&mut con, RELEASE_IDS, "x", true, &args).unwrap();
    assert_eq!(released, "1".repeat(1_000));
    assert_eq!(state(&mut con, "x").unwrap(), (1_500, 0, 1_500));
}

// H6: whoever's clock says what, the server's counts.
#[test]
fn a_permit_ends_by_the_servers_clock() {
    let server = Server::start();
    let mut con = server.connection();
    sender(&mut con, TRY_SET, "x", 1).unwrap();
    acquire(&mut con, "x", &[1], 150).unwrap();
    let over_at = out(&server, "x")[0].1;
    let mut asked = 0;
    while acquire(&mut con, "x", &[2], LEASE).unwrap().is_some() {
        assert!(now(&server) <= over_at + 5_000);
        asked += 1;
    }
    assert!(now(&server) >= over_at && asked > 0);
    assert_eq!(renew(&mut con, "x", 1, LEASE, over_at).unwrap(), 0);
    assert_eq!(release(&mut con, "x", &[1]).unwrap(), -1);
    assert_eq!(state(&mut con, "x").unwrap(), (0, 1, 1));
}

// ---------------------------------------------------------------------------------------------------------------------
// Strangers' keys, rights and memory
// ---------------------------------------------------------------------------------------------------------------------

// I11
#[test]
fn keys_of_another_type_are_refused_and_left_alone() {
    let server = Server::start();
    let mut con = server.connection();
    let dump = |key: &str| server.ask::<Value>(&["DUMP", key]);
    for (key, make) in [
        ("x", &["HSET", "x", "a", "1"][..]),
        ("x", &["RPUSH", "x", "a"]),
        ("x", &["ZADD", "x", "1", "a"]),
        ("x", &["SET", "x", "many"]),
        ("x", &["SET", "x", ""]),
        ("x", &["SET", "x", "1.5"]),
        ("x", &["SET", "x", "1e3"]),
        ("x", &["SET", "x", "0x10"]),
        ("x", &["SET", "x", " 7"]),
        ("x", &["SET", "x", "007"]),
        ("x", &["SET", "x", "-0"]),
        ("x", &["SET", "x", "7\n"]),
        ("x", &["SET", "x", "9223372036854775807"]),
        ("{x}:timeout", &["SET", "{x}:timeout", "7"]),
        ("{x}:timeout", &["HSET", "{x}:timeout", "a", "1"]),
    ] {
        server.cli(&["FLUSHALL"]);
        server.cli(make);
        // Something to be given back, if it came to that.
        if key == "x" {
            as_redisson(&server, "x", &id(1), 1);
        } else {
            server.cli(&["SET", "x", "1"]);
        }
        let (keys, before) = (server.keys(), dump(key));
        for (script, result) in run_each(&mut con, "x") {
            if script == "renew" && key == "x" {
                // It has nothing to do with this one.
                assert!(result.is_ok());
                continue;
            }
            let err = result.expect_err(script);
            assert_eq!(err.code(), Some("WRONGTYPE"), "{script} {make:?}: {err}");
        }
        assert_eq!((server.keys(), dump(key)), (keys, before), "{make:?}");
    }
}

#[test]
fn without_the_right_to_publish_permits_are_given_back_all_the_same() {
    let server = Server::start();
    let mut con = server.connection();
    server.cli(&["SET", "x", "1"]);
    as_redisson(&server, "x", &id(1), 1);
    forbid_channels(&server, &mut con);
    acquire(&mut con, "x", &[2, 3], LEASE).unwrap();
    assert_eq!(release(&mut con, "x", &[2]).unwrap(), 0);
    assert_eq!(release_ids(&mut con, "x", &[3]).unwrap(), "1");
    assert_eq!(tell_anew(&mut con, SET, "x", 3), 1);
    assert_eq!(tell_anew(&mut con, ADD, "x", 3), 1);
    assert_eq!(state(&mut con, "x").unwrap(), (6, 0, 6));
}

#[test]
fn a_permit_that_cannot_be_counted_is_not_taken() {
    let server = Server::start();
    for command in ["decrby", "zadd"] {
        let mut con = server.connection();
        server.cli(&["SET", "x", "5"]);
        forbid(&server, &mut con, command);
        assert!(acquire(&mut con, "x", &[1, 2], LEASE).is_err(), "{command}");
        assert_eq!(server.keys(), ["x"]);
        assert_eq!(server.get_int("x"), 5);
    }
}

#[test]
fn out_of_memory_nothing_is_taken_and_everything_given_back() {
    let server = Server::start();
    let mut con = server.connection();
    sender(&mut con, TRY_SET, "x", 4).unwrap();
    acquire(&mut con, "x", &[1, 2, 3], LEASE).unwrap();
    out_of_memory(&server);
    let oom = |result: RedisResult<()>| assert_eq!(result.unwrap_err().code(), Some("OOM"));
    oom(acquire(&mut con, "x", &[4], LEASE).map(drop));
    server.cli(&["DEL", &request("x")]);
    oom(sender(&mut con, ADD, "x", 1).map(drop));
    oom(sender(&mut con, SET, "x", 9).map(drop));
    oom(sender(&mut con, TRY_SET, "y", 9).map(drop));
    assert_eq!(state(&mut con, "x").unwrap(), (1, 3, 4));
    assert_eq!(release(&mut con, "x", &[1]).unwrap(), 0);
    assert_eq!(release_ids(&mut con, "x", &[2]).unwrap(), "1");
    assert!(!server.exists("y"));
    assert_eq!(state(&mut con, "x").unwrap(), (3, 1, 4));
}
