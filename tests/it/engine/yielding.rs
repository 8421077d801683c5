//! A process that wants a lock again and again, and others that are slower.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config};

use crate::support::scripts::channel;
use crate::support::{Server, eventually, hold_by_stranger, timed, unique};

/// For how long a process steps aside.
const ASIDE: Duration = Duration::from_micros(1_500);

/// In how many of `rounds`, or until it was `enough`, a process stepped aside that was refused the lock and then notified
/// of its release, where `others` listen as well.
fn times_aside(others: usize, rounds: u32, enough: u32) -> u32 {
    let server = Server::start();
    let name = unique("aside");
    let client = Client::open(Config::new(server.url()).tenure(Duration::ZERO)).unwrap();
    let lock = client.reentrant_lock(&name);
    let mut cons: Vec<_> = (0..others).map(|_| server.connection()).collect();
    let mut listening = Vec::new();
    for con in &mut cons {
        let mut pubsub = con.as_pubsub();
        pubsub.subscribe(channel(&name)).unwrap();
        listening.push(pubsub);
    }
    lock.lock().unwrap().unlock().unwrap();
    let announced = channel(&name);
    let everybody_listens = || {
        let (_, n): (String, usize) = server.ask(&["PUBSUB", "NUMSUB", &announced]);
        n == others + 1
    };
    let mut aside = 0;
    for _ in 0..rounds {
        hold_by_stranger(&server, &name, 30_000);
        let (before, asked) = (client.stats().held_back, server.calls("evalsha"));
        let (guard, took) = thread::scope(|scope| {
            let release = scope.spawn(|| {
                // It asks again when it hears that it listens, and must not find the lock free then: it would not have
                // been notified.
                let (mut calls, mut looks) = (asked, 0);
                eventually("it is refused, and listens", || {
                    let before = std::mem::replace(&mut calls, server.calls("evalsha"));
                    let waits = before == calls && calls > asked && everybody_listens();
                    looks = if waits { looks + 1 } else { 0 };
                    looks > 2
                });
                let released = Instant::now();
                let () = redis::pipe()
                    .atomic()
                    .del(&name)
                    .publish(&announced, "0")
                    .query(&mut server.connection())
                    .unwrap();
                released
            });
            let guard = lock.lock().unwrap();
            let granted = Instant::now();
            (guard, granted.duration_since(release.join().unwrap()))
        });
        // Once is after its last hold, before it asked.
        let yielded = client.stats().held_back - before;
        if yielded > 1 {
            assert_eq!(yielded, 2);
            assert!(took >= ASIDE, "{took:?}");
            aside += 1;
        }
        guard.unlock().unwrap();
        if aside == enough {
            break;
        }
    }
    aside
}

// Java processes need a millisecond to ask: of three that want a lock, two that are faster would pass it to and fro.
timed!(of_several_others_a_slow_one_has_time_to_come_first_now_and_then);
fn of_several_others_a_slow_one_has_time_to_come_first_now_and_then() {
    assert_eq!(times_aside(2, 400, 3), 3);
    // With a single other one they take turns in any case.
    assert_eq!(times_aside(1, 40, 1), 0);
}
