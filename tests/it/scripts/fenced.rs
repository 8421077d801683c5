//! The script of the fenced lock by bare EVALSHA on a real server: the tokens, and the keys and TTLs left behind.

use redis::{Connection, RedisResult, Value};

use crate::support::scripts::{
    LEASE, NAMES, RELEASE, RENEW, THEM, US, as_redisson, assert_left, channel, forbid,
    listen_to_all, messages, out_of_memory, run,
};
use crate::support::{Server, lua};

const ACQUIRE: &str = lua::FENCED_ACQUIRE;

/// From here on doubles leave integers out.
const INEXACT: i64 = 1 << 53;

const HOUR_MS: i64 = 3_600_000;

fn counter(name: &str) -> String {
    channel(name).replacen("redisson_lock__channel", "redisson_lock_token", 1)
}

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// Taken; the first and the last token drawn.
    Tokens(i64, i64),
    /// Somebody else's TTL.
    Busy(i64),
}

/// Draws up to `count` tokens into a counter with that TTL.
fn acquire(
    con: &mut Connection,
    name: &str,
    owner: &str,
    lease: i64,
    count: i64,
    token_ttl: i64,
) -> RedisResult<Reply> {
    let most = count;
    let [lease, count, ttl] = [lease, count, token_ttl].map(|n| n.to_string());
    let args = [owner, &lease, &count, &ttl];
    match run(con, ACQUIRE, &[name, &counter(name)], &args)? {
        Value::Array(tokens) => {
            let [first, last]: [String; 2] = redis::from_redis_value(Value::Array(tokens)).unwrap();
            let (first, last) = (first.parse().unwrap(), last.parse().unwrap());
            assert!(first <= last && last - first < most, "{first}..={last}");
            Ok(Reply::Tokens(first, last))
        }
        Value::Int(left) => Ok(Reply::Busy(left)),
        other => panic!("{other:?}"),
    }
}

/// The first and the last of up to `count` tokens, drawn into a counter without a TTL.
#[track_caller]
fn draw_many(con: &mut Connection, name: &str, owner: &str, count: i64) -> (i64, i64) {
    match acquire(con, name, owner, LEASE, count, 0).unwrap() {
        Reply::Tokens(first, last) => (first, last),
        Reply::Busy(left) => panic!("busy for {left} ms"),
    }
}

/// One token.
#[track_caller]
fn draw(con: &mut Connection, name: &str, owner: &str) -> i64 {
    draw_many(con, name, owner, 1).0
}

fn release(con: &mut Connection, name: &str, owner: &str) -> i64 {
    run(con, RELEASE, &[name, &channel(name)], &[owner]).unwrap()
}

/// The server's clock.
fn micros(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = server.ask(&["TIME"]);
    seconds * 1_000_000 + micros
}

/// Nothing is on the server but the lock, `owner`'s alone, and its counter, which stands at `token`.
#[track_caller]
fn assert_held(server: &Server, name: &str, owner: &str, token: i64) {
    let mut keys = [name.to_owned(), counter(name)];
    keys.sort();
    assert_eq!(server.keys(), keys);
    assert_eq!(server.hgetall(name), [(owner.to_owned(), "1".to_owned())]);
    assert_left(server.pttl(name), LEASE);
    assert_eq!(server.get_int(&counter(name)), token);
}

// ---------------------------------------------------------------------------------------------------------------------
// Taking
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_first_token_is_the_servers_clock_whatever_the_name() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let before = micros(&server);
        let token = draw(&mut con, name, US);
        assert!((before..=micros(&server)).contains(&token), "{token}");
        assert_held(&server, name, US, token);
        assert_eq!(server.pttl(&counter(name)), -1);
        let () = server.ask(&["DEL", name, &counter(name)]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

#[test]
fn the_plain_scripts_renew_and_release_it_and_leave_the_counter() {
    let server = Server::start();
    let mut con = server.connection();
    let token = draw(&mut con, "orders", US);
    let args = [US, &(2 * LEASE).to_string(), "1"];
    assert_eq!(run::<i64>(&mut con, RENEW, &["orders"], &args).unwrap(), 1);
    assert_left(server.pttl("orders"), 2 * LEASE);
    assert_eq!(release(&mut con, "orders", US), 0);
    assert_eq!(server.keys(), [counter("orders")]);
    assert_eq!(server.get_int(&counter("orders")), token);
}

#[test]
fn what_somebody_holds_draws_nothing() {
    let server = Server::start();
    let mut con = server.connection();
    let token = draw(&mut con, "orders", THEM);
    for _ in 0..2 {
        let Reply::Busy(left) = acquire(&mut con, "orders", US, 2 * LEASE, 3, HOUR_MS).unwrap()
        else {
            panic!("taken");
        };
        assert_left(left, LEASE);
        assert_held(&server, "orders", THEM, token);
        assert_eq!(server.pttl(&counter("orders")), -1);
    }
    let () = server.ask(&["PERSIST", "orders"]);
    let busy = acquire(&mut con, "orders", US, LEASE, 1, 0).unwrap();
    assert_eq!(busy, Reply::Busy(-1));
    assert_eq!(server.get_int(&counter("orders")), token);
}

#[test]
fn a_plain_lock_of_redisson_blocks_and_no_counter_appears() {
    let server = Server::start();
    let mut con = server.connection();
    as_redisson(&server, "orders", THEM, "2", LEASE);
    let Reply::Busy(left) = acquire(&mut con, "orders", US, LEASE, 1, 0).unwrap() else {
        panic!("taken");
    };
    assert_left(left, LEASE);
    assert_eq!(server.keys(), ["orders"]);
    assert_eq!(server.hgetall("orders"), [(THEM.into(), "2".into())]);
}

#[test]
fn a_replay_draws_anew_and_is_otherwise_as_if_only_it_had_run() {
    let server = Server::start();
    let mut con = server.connection();
    let (_, first) = draw_many(&mut con, "orders", US, 2);
    as_redisson(&server, "orders", US, "4", 2 * LEASE);
    let (second, last) = draw_many(&mut con, "orders", US, 2);
    assert!(second > first, "{second} after {first}");
    assert_held(&server, "orders", US, last);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tokens
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn tokens_only_increase() {
    let server = Server::start();
    let mut con = server.connection();
    let mut last = 0;
    for n in 0..1000 {
        let owner = [US, THEM][n % 2];
        let token = draw(&mut con, "orders", owner);
        assert!(token > last, "{token} after {last}");
        last = token;
        release(&mut con, "orders", owner);
    }
}

#[test]
fn batches_do_not_overlap() {
    let server = Server::start();
    let mut con = server.connection();
    let mut last = 0;
    // A batch of a million is a second of the clock: those behind it follow it, not the clock.
    for count in [1, 7, 1_000_000, 1, 250_000, 3, 1].repeat(5) {
        let (first, token) = draw_many(&mut con, "orders", US, count);
        assert!(first > last, "{first}..={token} after {last}");
        assert_eq!(server.get_int(&counter("orders")), token);
        last = token;
    }
}

// What tokens are ahead of the clock, they go back when the counter is lost.
#[test]
fn tokens_are_ahead_of_the_clock_by_less_than_may_be_drawn_at_once() {
    let server = Server::start();
    let mut con = server.connection();
    let mut most = 0;
    for _ in 0..500 {
        let before = micros(&server);
        let (first, last) = draw_many(&mut con, "orders", US, 5000);
        assert!(last - micros(&server) < 5000, "{first}..={last}");
        assert!(first >= before, "{first}..={last}");
        most = most.max(last - first + 1);
    }
    assert_eq!(most, 5000, "whoever comes after a while gets all");
}

// A9
#[test]
fn tokens_increase_although_the_counter_is_gone() {
    let server = Server::start();
    let mut con = server.connection();
    let mut last = 0;
    for _ in 0..100 {
        let token = draw(&mut con, "orders", US);
        assert!(token > last, "{token} after {last}");
        last = token;
        let () = server.ask(&["DEL", "orders", &counter("orders")]);
    }
}

#[test]
fn a_counter_behind_the_clock_goes_on_with_the_clock() {
    let server = Server::start();
    let mut con = server.connection();
    for old in ["0", "1", "42", "-7", "-9223372036854775808"] {
        let () = server.ask(&["SET", &counter("orders"), old]);
        let before = micros(&server);
        let (first, token) = draw_many(&mut con, "orders", US, 5);
        assert!((before..=micros(&server)).contains(&first), "{first}");
        assert_eq!(token, first + 4);
        assert_held(&server, "orders", US, token);
    }
}

#[test]
fn a_counter_ahead_of_the_clock_is_followed() {
    let server = Server::start();
    let mut con = server.connection();
    let mut ahead = micros(&server) + 3_600_000_000;
    for count in [1, 10, 1] {
        let () = server.ask(&["SET", &counter("orders"), &ahead.to_string()]);
        ahead += 1;
        let drawn = draw_many(&mut con, "orders", US, count);
        assert_eq!(drawn, (ahead, ahead), "one at a time");
        assert_held(&server, "orders", US, ahead);
        // As Redisson does.
        let next: i64 = server.ask(&["INCR", &counter("orders")]);
        ahead += 1;
        assert_eq!(next, ahead);
        assert_eq!(draw(&mut con, "orders", US), ahead + 1);
    }
}

#[test]
fn tokens_beyond_what_doubles_tell_apart_are_exact() {
    let server = Server::start();
    let mut con = server.connection();
    for old in [
        INEXACT - 2,
        INEXACT - 1,
        INEXACT,
        INEXACT + 1,
        2 * INEXACT + 1,
        i64::MAX - 8,
    ] {
        let () = server.ask(&["SET", &counter("orders"), &old.to_string()]);
        for (count, token) in [(1, old + 1), (3, old + 2), (4, old + 3)] {
            let drawn = draw_many(&mut con, "orders", US, count);
            assert_eq!(drawn, (token, token));
            assert_held(&server, "orders", US, token);
        }
    }
}

#[test]
fn a_counter_at_its_end_gives_no_token_and_no_lock() {
    let server = Server::start();
    let mut con = server.connection();
    for (old, count) in [
        ("9223372036854775807", 1),
        ("9223372036854775807", 3),
        ("9223372036854775808", 1),
        ("100000000000000000000", 1),
    ] {
        let () = server.ask(&["SET", &counter("orders"), old, "PX", "3600000"]);
        let err = acquire(&mut con, "orders", US, LEASE, count, 0).unwrap_err();
        assert_eq!(err.code(), Some("ERR"), "{old}: {err}");
        assert_eq!(server.keys(), [counter("orders")]);
        assert_eq!(server.ask::<String>(&["GET", &counter("orders")]), old);
        assert_left(server.pttl(&counter("orders")), HOUR_MS);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// How long the counter lives
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_counters_ttl_is_set_or_cleared_by_every_acquire() {
    let server = Server::start();
    let mut con = server.connection();
    for (ttl, left) in [(HOUR_MS, HOUR_MS), (0, -1), (2 * HOUR_MS, 2 * HOUR_MS)] {
        for _ in 0..2 {
            acquire(&mut con, "orders", US, LEASE, 1, ttl).unwrap();
            match left {
                -1 => assert_eq!(server.pttl(&counter("orders")), -1),
                most => assert_left(server.pttl(&counter("orders")), most),
            }
        }
    }
    // Redisson's expire() of a fenced lock.
    let () = server.ask(&["PEXPIRE", &counter("orders"), "5000"]);
    draw(&mut con, "orders", US);
    assert_eq!(server.pttl(&counter("orders")), -1);
}

#[test]
fn a_counter_outlives_its_lead_over_the_clock() {
    let server = Server::start();
    let mut con = server.connection();
    let lead = 3 * HOUR_MS;
    let ahead = micros(&server) + lead * 1000;
    let () = server.ask(&["SET", &counter("orders"), &ahead.to_string()]);
    acquire(&mut con, "orders", US, LEASE, 1, HOUR_MS).unwrap();
    let left = server.pttl(&counter("orders"));
    // Never over before the clock has come to the token.
    assert_left(left, lead + 2);
    assert!(micros(&server) + left * 1000 >= ahead);
}

#[test]
fn a_counter_that_the_clock_never_reaches_is_kept_for_ever() {
    let server = Server::start();
    let mut con = server.connection();
    for ttl in [0, HOUR_MS] {
        let () = server.ask(&[
            "SET",
            &counter("orders"),
            &INEXACT.to_string(),
            "PX",
            "60000",
        ]);
        let reply = acquire(&mut con, "orders", US, LEASE, 1, ttl).unwrap();
        assert_eq!(reply, Reply::Tokens(INEXACT + 1, INEXACT + 1));
        assert_eq!(server.pttl(&counter("orders")), -1);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Refusals
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_counter_that_is_no_integer_is_refused_and_kept() {
    let server = Server::start();
    let mut con = server.connection();
    let counter = counter("orders");
    for value in [
        "", " ", "abc", "1.5", "1e3", "007", "-0", "+5", " 1", "1\n", "0x10", "nan", "inf", "1 2",
    ] {
        let () = server.ask(&["SET", &counter, value, "PX", "3600000"]);
        let err = acquire(&mut con, "orders", US, LEASE, 1, 0).unwrap_err();
        assert_eq!(err.code(), Some("WRONGTYPE"), "{value:?}: {err}");
        assert_eq!(server.keys(), [counter.as_str()]);
        assert_eq!(server.ask::<String>(&["GET", &counter]), value);
        assert_left(server.pttl(&counter), HOUR_MS);
    }
}

#[test]
fn keys_of_another_type_are_refused_and_kept() {
    let server = Server::start();
    let mut con = server.connection();
    let counter = counter("orders");
    for make in [
        ["SET", "orders", "v"].as_slice(),
        &["RPUSH", "orders", "v"],
        &["ZADD", "orders", "1", US],
        &["HSET", "orders", THEM, "1", "mode", "read"],
        &["HSET", &counter, US, "1"],
        &["RPUSH", &counter, "1"],
        &["ZADD", &counter, "1", "1"],
    ] {
        server.cli(make);
        let before: Vec<u8> = server.ask(&["DUMP", make[1]]);
        let err = acquire(&mut con, "orders", US, LEASE, 1, HOUR_MS).unwrap_err();
        assert_eq!(err.code(), Some("WRONGTYPE"), "{make:?}: {err}");
        assert_eq!(server.keys(), [make[1]]);
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", make[1]]), before);
        assert_eq!(server.pttl(make[1]), -1);
        let () = server.ask(&["DEL", make[1]]);
    }
}

#[test]
fn a_lock_that_cannot_be_given_a_ttl_is_not_taken() {
    let server = Server::start();
    let mut con = server.connection();
    assert!(acquire(&mut con, "orders", US, i64::MAX, 1, 0).is_err());
    assert!(!server.exists("orders"));
    forbid(&server, &mut con, "pexpire");
    assert!(acquire(&mut con, "orders", US, LEASE, 1, HOUR_MS).is_err());
    assert!(!server.exists("orders"));
}

#[test]
fn nobody_holds_it_without_a_token() {
    let server = Server::start();
    let mut con = server.connection();
    assert!(acquire(&mut con, "orders", US, LEASE, 1, i64::MAX).is_err());
    assert_eq!(server.dbsize(), 0);
    forbid(&server, &mut con, "set");
    assert!(acquire(&mut con, "orders", US, LEASE, 1, 0).is_err());
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn out_of_memory_nothing_is_drawn_or_taken() {
    let server = Server::start();
    let mut con = server.connection();
    let token = draw(&mut con, "orders", US);
    let () = server.ask(&["SET", &counter("big"), &INEXACT.to_string()]);
    out_of_memory(&server);
    for name in ["free", "big", "orders"] {
        let err = acquire(&mut con, name, US, LEASE, 1, 0).unwrap_err();
        assert_eq!(err.code(), Some("OOM"), "{name}: {err}");
    }
    let mut keys = ["orders".to_owned(), counter("orders"), counter("big")];
    keys.sort();
    assert_eq!(server.keys(), keys);
    assert_eq!(server.get_int(&counter("orders")), token);
    assert_eq!(server.get_int(&counter("big")), INEXACT);
    assert!(matches!(
        acquire(&mut con, "orders", THEM, LEASE, 1, 0),
        Ok(Reply::Busy(_))
    ));
    assert_eq!(release(&mut con, "orders", US), 0);
    assert!(!server.exists("orders"));
}
