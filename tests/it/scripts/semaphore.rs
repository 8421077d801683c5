//! The scripts of the plain semaphore, by bare EVAL: what counts once, and what is given back.

use redis::{Connection, RedisResult};

use crate::support::scripts::listen_to_all;
use crate::support::semaphore::{ACQUIRE, CHANNEL, DRAIN, RELEASE, SET, UNDO, published_counts};
use crate::support::{Server, timed};

fn eval(con: &mut Connection, script: &str, keys: &[&str], args: &[&str]) -> RedisResult<i64> {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(script).arg(keys.len()).arg(keys).arg(args);
    cmd.query(con)
}

#[test]
fn an_acquire_takes_all_or_nothing_and_its_undo_gives_back_once() {
    let server = Server::start();
    let mut con = server.connection();
    let mut listening = server.connection();
    let mut pubsub = listen_to_all(&mut listening);
    let keep = "120000";
    assert_eq!(eval(&mut con, ACQUIRE, &["s", "q1"], &["1", keep]), Ok(0));
    assert!(server.keys().is_empty(), "a refused acquire leaves nothing");
    server.cli(&["SET", "s", "3", "PX", "60000"]);
    assert_eq!(eval(&mut con, ACQUIRE, &["s", "q1"], &["4", keep]), Ok(0));
    assert_eq!(eval(&mut con, ACQUIRE, &["s", "q1"], &["2", keep]), Ok(1));
    assert_eq!((server.get_int("s"), server.get_int("q1")), (1, 2));
    assert!((110_000..=120_000).contains(&server.pttl("q1")));
    // Late and twice: the number is spent.
    assert_eq!(eval(&mut con, ACQUIRE, &["s", "q1"], &["1", keep]), Ok(0));
    assert_eq!(published_counts(&server, &mut pubsub), [""; 0]);
    for _ in 0..2 {
        let heard = eval(&mut con, UNDO, &["s", CHANNEL, "q1"], &[keep]).unwrap();
        assert!(heard >= 0);
        assert_eq!(server.get_int("s"), 3);
    }
    assert_eq!(published_counts(&server, &mut pubsub), ["3"]);
    // Undone before it came.
    assert_eq!(eval(&mut con, UNDO, &["s", CHANNEL, "q2"], &[keep]), Ok(0));
    assert_eq!(eval(&mut con, ACQUIRE, &["s", "q2"], &["1", keep]), Ok(0));
    assert_eq!(server.get_int("s"), 3);
    assert!((1..=60_000).contains(&server.pttl("s")), "the TTL is kept");
    // Those that were answered go with the next.
    let keys = ["s", "q3", "q1", "q2"];
    assert_eq!(eval(&mut con, ACQUIRE, &keys, &["3", keep]), Ok(1));
    assert_eq!(server.keys(), ["q3", "s"]);
    // What is undone of a semaphore that is gone does not make it again.
    server.cli(&["DEL", "s"]);
    assert_eq!(eval(&mut con, UNDO, &["s", CHANNEL, "q3"], &[keep]), Ok(0));
    assert!(!server.exists("s"));
}

timed!(a_release_a_set_and_a_drain_count_once);
fn a_release_a_set_and_a_drain_count_once() {
    let server = Server::start();
    let mut con = server.connection();
    let mut listening = server.connection();
    let mut pubsub = listen_to_all(&mut listening);
    let keep = "120000";
    for _ in 0..2 {
        let made = eval(&mut con, SET, &["s", CHANNEL, "q1"], &["3", keep]);
        assert_eq!(made, Ok(1), "whoever asks again hears the same");
    }
    assert_eq!(
        eval(&mut con, SET, &["s", CHANNEL, "q2"], &["9", keep]),
        Ok(0)
    );
    server.cli(&["PEXPIRE", "s", "60000"]);
    for expected in [1, 0] {
        let keys = ["s", CHANNEL, "q3", "q1"];
        let heard = eval(&mut con, RELEASE, &keys, &["2", keep, "1"]);
        assert_eq!(heard, Ok(expected));
        assert_eq!(server.get_int("s"), 5);
    }
    assert_eq!(server.keys(), ["q2", "q3", "s"]);
    for _ in 0..2 {
        assert_eq!(eval(&mut con, DRAIN, &["s", "q4", "q3"], &[keep]), Ok(5));
        assert_eq!(server.get_int("s"), 0);
    }
    for _ in 0..2 {
        eval(&mut con, RELEASE, &["s", CHANNEL, "q5"], &["-4", keep, "1"]).unwrap();
        assert_eq!(server.get_int("s"), -4);
    }
    assert_eq!(eval(&mut con, DRAIN, &["s", "q6"], &[keep]), Ok(-4));
    assert_eq!(eval(&mut con, DRAIN, &["s", "q7"], &[keep]), Ok(0));
    assert_eq!(server.get_int("s"), 0);
    assert!((1..=60_000).contains(&server.pttl("s")), "the TTL is kept");
    assert_eq!(published_counts(&server, &mut pubsub), ["3", "5"]);
    server.cli(&["DEL", "s"]);
    let gone = eval(&mut con, RELEASE, &["s", CHANNEL, "q8"], &["1", keep, "0"]);
    assert_eq!(gone, Ok(-1));
    assert!(!server.exists("s") && !server.exists("q8"));
    assert_eq!(eval(&mut con, DRAIN, &["s", "q9"], &[keep]), Ok(0));
    eval(&mut con, RELEASE, &["s", CHANNEL, "q8"], &["1", keep, "1"]).unwrap();
    assert_eq!(server.get_int("s"), 1);
}
