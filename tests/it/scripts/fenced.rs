//! The acquire script of the fenced lock: the tokens, and the keys and times to live that it leaves.

use redis::{Connection, RedisResult, Value};

use crate::support::scripts::{
    LEASE, NAMES, RELEASE, THEM, US, assert_left, channel, listen_to_all, messages, run,
};
use crate::support::table::{Call, Stage, Table};
use crate::support::{Server, lua, timed};

const ACQUIRE: &str = lua::FENCED_ACQUIRE;

const HOUR_MS: i64 = 3_600_000;

fn counter(name: &str) -> String {
    channel(name).replacen("redisson_lock__channel", "redisson_lock_token", 1)
}

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// Acquired; the first and the last of the tokens.
    Tokens(i64, i64),
    /// The time to live of another owner's lock.
    Busy(i64),
}

/// Acquires and draws up to `count` tokens; the counter gets this time to live.
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
        Value::Int(lease_left) => Ok(Reply::Busy(lease_left)),
        other => panic!("{other:?}"),
    }
}

/// Draws up to `count` tokens from a counter without a time to live; returns the first and the last.
#[track_caller]
fn draw_many(con: &mut Connection, name: &str, owner: &str, count: i64) -> (i64, i64) {
    match acquire(con, name, owner, LEASE, count, 0).unwrap() {
        Reply::Tokens(first, last) => (first, last),
        Reply::Busy(lease_left) => panic!("busy for {lease_left} ms"),
    }
}

/// Draws a token.
#[track_caller]
fn draw(con: &mut Connection, name: &str, owner: &str) -> i64 {
    draw_many(con, name, owner, 1).0
}

fn release(con: &mut Connection, name: &str, owner: &str) -> i64 {
    run(con, RELEASE, &[name, &channel(name)], &[owner]).unwrap()
}

/// The server's clock, in microseconds.
fn micros(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = server.ask(&["TIME"]);
    seconds * 1_000_000 + micros
}

/// Checks that the server has only the lock, held by `owner`, and its counter with the value `token`.
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
        let clock_before = micros(&server);
        let token = draw(&mut con, name, US);
        assert!((clock_before..=micros(&server)).contains(&token), "{token}");
        assert_held(&server, name, US, token);
        assert_eq!(server.pttl(&counter(name)), -1);
        let () = server.ask(&["DEL", name, &counter(name)]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
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
    // A batch of a million equals a second of the clock, so the next batches continue from the counter.
    for count in [1, 7, 1_000_000, 1, 250_000, 3, 1].repeat(5) {
        let (first, token) = draw_many(&mut con, "orders", US, count);
        assert!(first > last, "{first}..={token} after {last}");
        assert_eq!(server.get_int(&counter("orders")), token);
        last = token;
    }
}

// If the counter is lost, tokens fall back to the clock, so the lead over the clock must be small.
#[test]
fn tokens_are_ahead_of_the_clock_by_less_than_may_be_drawn_at_once() {
    let server = Server::start();
    let mut con = server.connection();
    let mut most = 0;
    for _ in 0..500 {
        let clock_before = micros(&server);
        let (first, last) = draw_many(&mut con, "orders", US, 5000);
        assert!(last - micros(&server) < 5000, "{first}..={last}");
        assert!(first >= clock_before, "{first}..={last}");
        most = most.max(last - first + 1);
    }
    assert_eq!(most, 5000, "whoever comes after a while gets all");
}

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
        let clock_before = micros(&server);
        let (first, token) = draw_many(&mut con, "orders", US, 5);
        assert!((clock_before..=micros(&server)).contains(&first), "{first}");
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
        // As Redisson draws a token.
        let next: i64 = server.ask(&["INCR", &counter("orders")]);
        ahead += 1;
        assert_eq!(next, ahead);
        assert_eq!(draw(&mut con, "orders", US), ahead + 1);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// How long the counter lives
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_counters_ttl_is_set_or_cleared_by_every_acquire() {
    let server = Server::start();
    let mut con = server.connection();
    for (ttl, ttl_left) in [(HOUR_MS, HOUR_MS), (0, -1), (2 * HOUR_MS, 2 * HOUR_MS)] {
        for _ in 0..2 {
            acquire(&mut con, "orders", US, LEASE, 1, ttl).unwrap();
            match ttl_left {
                -1 => assert_eq!(server.pttl(&counter("orders")), -1),
                most => assert_left(server.pttl(&counter("orders")), most),
            }
        }
    }
    // Redisson's `expire()` of a fenced lock.
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
    let ttl_left = server.pttl(&counter("orders"));
    // The counter must not expire before the clock has reached the token.
    assert_left(ttl_left, lead + 2);
    assert!(micros(&server) + ttl_left * 1000 >= ahead);
}

// ---------------------------------------------------------------------------------------------------------------------
// The table, with a counter that the clock never reaches
// ---------------------------------------------------------------------------------------------------------------------

/// `acquire`: the second word is the number of tokens, the third the counter's time to live.
const CALLS: &[Call] = &[
    ("acquire", ACQUIRE, "lock counter", "$1 $4:30s $2:1 $3:0"),
    ("renew", lua::LOCK_RENEW, "lock", "$1 $2:30s 1"),
    ("release", RELEASE, "lock channel", "$1"),
    (
        "adopt",
        lua::LOCK_ADOPT,
        "lock counter",
        "$1 $2 $3:30s $4:0",
    ),
    ("holder", lua::FENCED_HOLDER, "lock counter", ""),
];

fn stage<'a>(server: &'a Server, listener: &'a mut Connection, name: &str) -> Stage<'a> {
    let words = [
        ("lock", name.to_owned()),
        ("counter", counter(name)),
        ("channel", channel(name)),
        ("a", US.to_owned()),
        ("b", THEM.to_owned()),
        ("a2", US.replace(":1", ":12")),
    ];
    // From 2^53 on, doubles skip integers.
    let big = ["big", "big+1", "big+2", "big+3"].into_iter();
    let big = big.zip((1_i64 << 53..).map(|n| n.to_string()));
    Stage::new(server, listener, CALLS, words.into_iter().chain(big))
}

const TABLE: &[Table] = &[
    (
        "the plain scripts renew and release it, and leave the counter",
        &[
            "SET counter big | | counter=big",
            "acquire a   | big+1 big+1 | counter=big+1 lock{a:1}@30s",
            "renew a 60s | 1           | counter=big+1 lock{a:1}@60s",
            "release a   | 1           | counter=big+1 | 0",
        ],
    ),
    (
        "what somebody holds draws nothing",
        &[
            "SET counter big   | | counter=big",
            "acquire b         | big+1 big+1 | counter=big+1 lock{b:1}@30s",
            "acquire a 3 3600s | 30s",
            "acquire a 3 3600s | 30s",
            "PERSIST lock      | | counter=big+1 lock{b:1}",
            "acquire a         | -1",
        ],
    ),
    (
        "a plain lock of Redisson's blocks, and no counter appears",
        &[
            "HSET lock b 2    | | lock{b:2}",
            "PEXPIRE lock 30s | | lock{b:2}@30s",
            "acquire a        | 30s",
        ],
    ),
    (
        "a replay draws anew, and is otherwise as if only it had run",
        &[
            "SET counter big  | | counter=big",
            "acquire a 2      | big+1 big+1 | counter=big+1 lock{a:1}@30s",
            "HSET lock a 4    | | counter=big+1 lock{a:4}@30s",
            "PEXPIRE lock 60s | | counter=big+1 lock{a:4}@60s",
            "acquire a 2      | big+2 big+2 | counter=big+2 lock{a:1}@30s",
        ],
    ),
    (
        "tokens beyond what doubles tell apart are exact, and drawn one at a time",
        &[
            "SET counter 9007199254740990 | | counter=9007199254740990",
            "acquire a   | 9007199254740991 9007199254740991 | counter=9007199254740991 lock{a:1}@30s",
            "acquire a 3 | big big     | counter=big lock{a:1}@30s",
            "acquire a 4 | big+1 big+1 | counter=big+1 lock{a:1}@30s",
            "acquire a   | big+2 big+2 | counter=big+2 lock{a:1}@30s",
            "acquire a 3 | big+3 big+3 | counter=big+3 lock{a:1}@30s",
            "SET counter 18014398509481985 | | counter=18014398509481985 lock{a:1}@30s",
            "acquire a 3 | 18014398509481986 18014398509481986 | counter=18014398509481986 lock{a:1}@30s",
            "SET counter 9223372036854775799 | | counter=9223372036854775799 lock{a:1}@30s",
            "acquire a 4 | 9223372036854775800 9223372036854775800 | counter=9223372036854775800 lock{a:1}@30s",
        ],
    ),
    (
        "a counter at its end gives no token and no lock",
        &[
            "SET counter 9223372036854775807 PX 3600s | | counter=9223372036854775807@3600s",
            "acquire a   | refused",
            "acquire a 3 | refused",
            "SET counter 9223372036854775808 | | counter=9223372036854775808",
            "acquire a   | refused",
            "SET counter 100000000000000000000 | | counter=100000000000000000000",
            "acquire a   | refused",
        ],
    ),
    (
        "a counter that the clock never reaches is kept for ever",
        &[
            "SET counter big PX 60s | | counter=big@60s",
            "acquire a              | big+1 big+1 | counter=big+1 lock{a:1}@30s",
            "PEXPIRE counter 60s    | | counter=big+1@60s lock{a:1}@30s",
            "acquire a 1 3600s      | big+2 big+2 | counter=big+2 lock{a:1}@30s",
        ],
    ),
    (
        "a lock that cannot be given an end is not taken",
        &[
            "SET counter big | | counter=big",
            "acquire a 1 0 9223372036854775807 | refused | counter=big+1",
            "forbid pexpire",
            "acquire a       | refused | counter=big+2",
        ],
    ),
    (
        "a hold that is adopted draws a token, and without one it stays",
        &[
            "holder            | nil",
            "SET counter big   | | counter=big",
            "acquire a         | big+1 big+1 | counter=big+1 lock{a:1}@30s",
            "holder            | a big+1 1",
            "adopt a b 60s     | big+2 big+2 | counter=big+2 lock{b:1}@60s",
            "holder            | b big+2 1",
            "adopt a a2        | -1",
            "SET counter x     | | counter=x lock{b:1}@60s",
            "adopt b a         | WRONGTYPE",
            "SET counter big+2 | | counter=big+2 lock{b:1}@60s",
            "full",
            "adopt b a         | OOM",
            "release b         | 1           | counter=big+2 | 0",
            "adopt b a         | 0",
            "holder            | nil",
        ],
    ),
    (
        "nobody holds it without a token",
        &[
            "acquire a 1 9223372036854775807 | refused",
            "forbid set",
            "acquire a                       | refused",
        ],
    ),
    (
        "out of memory nothing is drawn",
        &["full", "acquire a | OOM"],
    ),
    (
        "out of memory nothing is drawn or taken, and what is held is given back",
        &[
            "SET counter big | | counter=big",
            "acquire b       | big+1 big+1 | counter=big+1 lock{b:1}@30s",
            "full",
            "acquire b       | OOM",
            "acquire a       | 30s",
            "release b       | 1   | counter=big+1 | 0",
            "acquire a       | OOM",
        ],
    ),
];

timed!(the_table_of_the_fenced_lock);
fn the_table_of_the_fenced_lock() {
    let server = Server::start();
    for name in NAMES {
        stage(&server, &mut server.connection(), name).play_all(TABLE);
    }
}

#[test]
fn what_is_no_counter_or_no_lock_is_refused_and_kept() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut stage = stage(&server, &mut listener, "orders");
    let calls = ["acquire a", "acquire a 1 3600s"];
    for value in [
        "", " ", "abc", "1.5", "1e3", "007", "-0", "+5", " 1", "1\n", "0x10", "nan", "inf", "1 2",
    ] {
        stage.refuses(&[&["SET", "counter", value, "PX", "3600000"]], &calls);
    }
    let others: [&[&str]; 7] = [
        &["SET", "lock", "v"],
        &["RPUSH", "lock", "v"],
        &["ZADD", "lock", "1", "a"],
        &["HSET", "lock", "b", "1", "mode", "read"],
        &["HSET", "counter", "a", "1"],
        &["RPUSH", "counter", "1"],
        &["ZADD", "counter", "1", "1"],
    ];
    stage.refuses(&others, &calls);
}
