//! Renewal of many holds: several in one request, and one by one where a renewal fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redlatch::{Client, LossReason};

use crate::support::{
    LONG, Losses, Proxy, Server, Target, config, eventually, loosely, ms, scoped, timed,
};

const MANY: usize = 300;

fn name(n: usize) -> String {
    format!("kept:{n}")
}

/// The client's renewals so far, and the scripts that the server ran.
fn so_far(client: &Client, server: &Server) -> (u64, u64) {
    (client.stats().renewals, server.calls("evalsha"))
}

timed!(many_holds_are_renewed_by_few_requests_and_lost_each_for_itself);
fn many_holds_are_renewed_by_few_requests_and_lost_each_for_itself() {
    let server = Server::start();
    let received = Losses::default();
    let config = config(&server.url()).lease(loosely(ms(2_000)));
    let client = Client::open(config.on_lost(received.listener())).unwrap();
    let guards: Vec<_> = (0..MANY)
        .map(|n| client.reentrant_lock(name(n)).lock().unwrap())
        .collect();
    let rounds = |n: u64| {
        let begin = so_far(&client, &server);
        let enough = begin.0 + n * MANY as u64;
        eventually("all are renewed", || client.stats().renewals >= enough);
        let end = so_far(&client, &server);
        (end.0 - begin.0, end.1 - begin.1)
    };
    rounds(1);
    let (renewed, scripts) = rounds(3);
    assert!(10 * scripts <= renewed, "{scripts} scripts for {renewed}");

    let [gone, taken, other] = [7, 77, 277].map(name);
    let () = server.ask(&["DEL", &gone]);
    server.cli(&[
        "EVAL",
        "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], 'somebody', 1)",
        "1",
        &taken,
    ]);
    server.cli(&["SET", &other, "a value"]);
    let reason = |name: &str| received.reasons(name);
    eventually("the losses are reported", || {
        [&gone, &taken, &other]
            .iter()
            .all(|name| !reason(name).is_empty())
    });
    assert_eq!(reason(&gone), [LossReason::Forced]);
    assert_eq!(reason(&taken), [LossReason::TakenOver]);
    assert_eq!(reason(&other), [LossReason::TakenOver]);
    rounds(2);
    assert_eq!(
        guards.iter().filter(|guard| guard.is_valid()).count(),
        MANY - 3
    );
    drop(guards);
    eventually("the other holds are released", || server.dbsize() == 2);
}

timed!(a_user_who_loses_the_right_to_some_keys_loses_the_locks_there_alone);
fn a_user_who_loses_the_right_to_some_keys_loses_the_locks_there_alone() {
    let server = Server::start();
    server.cli(&[
        "ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all",
    ]);
    let received = Losses::default();
    let url = server.url().replace("redis://", "redis://locker:secret@");
    let config = config(&url).lease(loosely(ms(2_000)));
    let client = Client::open(config.on_lost(received.listener())).unwrap();
    let lock = |name: String| client.reentrant_lock(name).lock().unwrap();
    let kept: Vec<_> = (0..20).map(|n| lock(name(n))).collect();
    let gone: Vec<_> = (0..3).map(|n| lock(format!("gone:{n}"))).collect();
    let renewals = client.stats().renewals;
    eventually("all are renewed", || {
        client.stats().renewals >= renewals + 23
    });
    server.cli(&["ACL", "SETUSER", "locker", "resetkeys", "~*kept*"]);
    for n in 0..3 {
        let name = format!("gone:{n}");
        eventually("the loss is reported", || {
            !received.reasons(&name).is_empty()
        });
        assert_eq!(received.reasons(&name), [LossReason::Unreachable]);
    }
    let renewals = client.stats().renewals;
    eventually("the others are renewed", || {
        client.stats().renewals >= renewals + 60
    });
    assert!(kept.iter().all(|guard| guard.is_valid()));
    assert!(!gone.iter().any(|guard| guard.is_valid()));
}

timed!(a_server_that_is_busy_for_a_moment_renews_many_by_one_request_again);
fn a_server_that_is_busy_for_a_moment_renews_many_by_one_request_again() {
    const FEW: usize = 40;
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let lease = loosely(ms(2_000));
    let client = Client::open(config(&proxy.url()).lease(lease)).unwrap();
    let lock = |n| client.reentrant_lock(name(n)).lock().unwrap();
    let guards: Vec<_> = (0..FEW).map(lock).collect();
    let is_renewed = |times: u64| {
        let enough = client.stats().renewals + times * FEW as u64;
        eventually("all are renewed", || client.stats().renewals >= enough);
    };
    is_renewed(1);
    for refusal in ["BUSY a script is running", "LOADING the dataset"] {
        let refused = Arc::new(AtomicU64::new(0));
        let refused_there = Arc::clone(&refused);
        proxy.rewrite_replies(Target::Watchdog, move |replies| {
            // Replaces the reply to the first request that renews several holds.
            match replies.starts_with(b"*") && refused_there.fetch_add(1, Ordering::SeqCst) == 0 {
                true => format!("-{refusal}\r\n").into_bytes(),
                false => replies.to_vec(),
            }
        });
        eventually("the request is rejected", || {
            refused.load(Ordering::SeqCst) > 0
        });
        is_renewed(1);
        let begin = so_far(&client, &server);
        is_renewed(3);
        let end = so_far(&client, &server);
        let (renewed, scripts) = (end.0 - begin.0, end.1 - begin.1);
        assert!(5 * scripts <= renewed, "{scripts} scripts for {renewed}");
        proxy.pass();
    }
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

// Each hold has its own entry, so the release of one hold does not remove the next one of the same name.
timed!(the_watchdog_knows_every_hold_of_threads_that_try_all_the_time);
fn the_watchdog_knows_every_hold_of_threads_that_try_all_the_time() {
    const HOLDS: u64 = 500;
    let server = Server::start();
    let client = Client::open(config(&server.url())).unwrap();
    let lock = client.reentrant_lock("tried");
    let (held, until) = (AtomicU64::new(0), Instant::now() + LONG);
    scoped(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while held.load(Ordering::SeqCst) < HOLDS && Instant::now() < until {
                    let Some(guard) = lock.try_lock().unwrap() else {
                        continue;
                    };
                    assert!(client.stats().holds == 1 && guard.is_valid());
                    held.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(held.into_inner() >= HOLDS);
    eventually("no hold is left to renew", || client.stats().holds == 0);
    assert_eq!(client.stats().lost, 0);
}
