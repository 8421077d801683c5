//! The plain semaphore: who gets permits and when, and that faults neither lose nor create permits.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use redlatch::{CancelToken, Client, Config, Error, Semaphore, SemaphorePermit};

use crate::support::scripts::{cannot_save, listen_to_all, out_of_memory};
use crate::support::semaphore::{CHANNEL, published_counts};
use crate::support::{
    BY_MESSAGE, Crew, LONG, Mode, Proxy, Server, Target, Trap, eventually, logs, loosely, ms,
    scoped, timed, unique, within,
};

fn open(server: &Server) -> Client {
    Client::open(server.url()).unwrap()
}

/// A semaphore with `n` permits, on a server of its own.
fn semaphore(n: u32) -> (Server, Client, Semaphore) {
    let server = Server::start();
    let client = open(&server);
    let semaphore = client.semaphore("s");
    assert!(semaphore.try_set_permits(n).unwrap());
    (server, client, semaphore)
}

/// Waits until the server has this many free permits.
#[track_caller]
fn settles(server: &Server, available: i64) {
    eventually(&format!("{available} are to be had"), || {
        server.get_int("s") == available
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad input
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_key_that_holds_something_else_is_left_as_it_was() {
    let server = Server::start();
    let client = open(&server);
    let semaphore = client.semaphore("s");
    let mut con = server.connection();
    for make in [
        &["HSET", "s", "a", "1"][..],
        &["SET", "s", "ten"],
        &["SET", "s", "1e3"],
        &["SET", "s", " 5"],
        &["SET", "s", "5.0"],
        &["SET", "s", "007"],
        &["RPUSH", "s", "1"],
    ] {
        server.cli(&["FLUSHALL"]);
        server.cli(make);
        let dump_before: Vec<u8> = redis::cmd("DUMP").arg("s").query(&mut con).unwrap();
        let refused = |what: &str, error: Option<Error>| {
            assert!(
                matches!(&error, Some(Error::WrongType { name, .. }) if name == "s"),
                "{make:?}, {what}: {error:?}"
            );
        };
        refused("acquire", semaphore.acquire().err());
        refused("try_acquire", semaphore.try_acquire().err());
        refused("more", semaphore.add_permits_if_exists(1).err());
        refused("add", semaphore.add_permits(-1).err());
        refused("drain", semaphore.drain_permits().err());
        refused("set", semaphore.try_set_permits(1).err());
        refused("available", semaphore.available_permits().err());
        let after: Vec<u8> = redis::cmd("DUMP").arg("s").query(&mut con).unwrap();
        assert_eq!(dump_before, after, "{make:?}");
        assert_eq!(server.dbsize(), 1, "{make:?}");
    }
}

timed!(numbers_that_make_no_sense_are_refused_before_anything_is_sent);
fn numbers_that_make_no_sense_are_refused_before_anything_is_sent() {
    let (server, client, semaphore) = semaphore(1);
    let sent = client.stats().commands;
    let too_many = u32::MAX / 2 + 1;
    for bad in [0, too_many, u32::MAX] {
        let config = |error: Option<Error>| {
            assert!(
                matches!(error, Some(Error::InvalidSetting { .. })),
                "{error:?}"
            )
        };
        config(semaphore.acquire_many(bad).err());
        config(semaphore.try_acquire_many(bad).err());
        config(semaphore.try_acquire_many_for(bad, ms(1)).err());
        config(semaphore.try_acquire_many_until(bad, Instant::now()).err());
        config(semaphore.add_permits_if_exists(bad).err());
        if bad > 0 {
            config(semaphore.try_set_permits(bad).err());
            config(semaphore.add_permits(i64::from(bad)).err());
            config(semaphore.add_permits(-i64::from(bad)).err());
        }
    }
    semaphore.add_permits(0).unwrap();
    let unnamed = client.semaphore("");
    assert!(matches!(unnamed.acquire(), Err(Error::InvalidName { .. })));
    assert!(matches!(
        unnamed.available_permits(),
        Err(Error::InvalidName { .. })
    ));
    assert_eq!(client.stats().commands, sent);
    assert!(
        semaphore
            .try_acquire_many(i32::MAX.unsigned_abs())
            .unwrap()
            .is_none()
    );
    assert!(!semaphore.try_set_permits(0).unwrap());
    assert_eq!(server.get_int("s"), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Redisson's verbs
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_verbs_do_and_tell_what_redissons_do() {
    let server = Server::start();
    let client = open(&server);
    let semaphore = client.semaphore("s");
    let mut listening = server.connection();
    let mut pubsub = listen_to_all(&mut listening);
    assert_eq!(semaphore.name(), "s");
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert_eq!(semaphore.drain_permits().unwrap(), 0);
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(!server.exists(semaphore.name()));
    assert_eq!(published_counts(&server, &mut pubsub), [""; 0]);

    assert!(semaphore.try_set_permits(5).unwrap());
    assert!(!semaphore.try_set_permits(7).unwrap());
    assert_eq!(published_counts(&server, &mut pubsub), ["5"]);
    assert_eq!(server.ask::<String>(&["GET", "s"]), "5");
    assert_eq!(server.pttl("s"), -1);

    let permits = semaphore.try_acquire_many(5).unwrap().unwrap();
    assert_eq!((permits.permits(), permits.name()), (5, "s"));
    assert!(
        !semaphore.try_set_permits(5).unwrap(),
        "taken is not absent"
    );
    assert_eq!(server.get_int("s"), 0);
    assert_eq!(published_counts(&server, &mut pubsub), [""; 0]);
    permits.release().unwrap();
    assert_eq!(published_counts(&server, &mut pubsub), ["5"]);

    semaphore.add_permits(2).unwrap();
    semaphore.add_permits(3).unwrap();
    semaphore.add_permits(-12).unwrap();
    // A number below zero is not published: Java clients cannot read it, and no waiter could use it.
    assert_eq!(published_counts(&server, &mut pubsub), ["7", "10"]);
    assert_eq!(semaphore.available_permits().unwrap(), -2);
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert_eq!(semaphore.drain_permits().unwrap(), -2);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    semaphore.add_permits(4).unwrap();
    assert_eq!(semaphore.drain_permits().unwrap(), 4);
    assert_eq!(published_counts(&server, &mut pubsub), ["4"]);

    server.cli(&["DEL", "s"]);
    semaphore.add_permits(2).unwrap();
    assert_eq!(server.get_int("s"), 2);
    server.cli(&["DEL", "s"]);
    semaphore.add_permits(-3).unwrap();
    assert_eq!(server.get_int("s"), -3);
    assert_eq!(published_counts(&server, &mut pubsub), ["2"]);
}

#[test]
fn no_verb_changes_a_time_to_live() {
    let (server, _client, semaphore) = semaphore(5);
    server.cli(&["PEXPIRE", "s", "60000"]);
    let permit = semaphore.acquire_many(2).unwrap();
    permit.release().unwrap();
    drop(semaphore.acquire().unwrap());
    semaphore.acquire().unwrap().forget();
    semaphore.add_permits(2).unwrap();
    semaphore.add_permits(-1).unwrap();
    semaphore.add_permits(1).unwrap();
    assert_eq!(semaphore.drain_permits().unwrap(), 6);
    assert!((50_000..=60_000).contains(&server.pttl("s")));
}

#[test]
fn a_permit_of_a_semaphore_that_is_gone_does_not_make_it_again() {
    let (server, client, semaphore) = semaphore(2);
    let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    server.cli(&["DEL", "s"]);
    drop(dropped);
    let lost = released.release().unwrap_err();
    assert!(
        matches!(&lost, Error::Lost { name, .. } if name == "s"),
        "{lost:?}"
    );
    eventually("the release is answered", || {
        client.stats().releases_of_lost == 2
    });
    assert!(!server.exists("s"));
}

timed!(a_semaphore_that_was_never_set_is_logged_once);
fn a_semaphore_that_was_never_set_is_logged_once() {
    let (server, logs, name) = (Server::start(), logs(), unique("unset"));
    let client = open(&server);
    let warned = || logs.count(log::Level::Warn, &format!("`{name}`"));
    let (plain, leased) = (client.semaphore(&name), client.expirable_semaphore(&name));
    let plain_tries = || assert!(plain.try_acquire().unwrap().is_none());
    let plain_waits = || assert!(plain.try_acquire_for(ms(100)).unwrap().is_none());
    let leased_tries = || assert!(leased.try_acquire().unwrap().is_none());
    let leased_waits = || assert!(leased.try_acquire_for(ms(100)).unwrap().is_none());
    let kinds: [[&(dyn Fn() + Sync); 2]; 2] =
        [[&plain_tries, &plain_waits], [&leased_tries, &leased_waits]];
    for [tries, waits] in kinds {
        let warned_before = warned();
        tries();
        assert_eq!(warned(), warned_before + 1, "a call that does not wait");
        scoped(|scope| {
            scope.spawn(waits);
            scope.spawn(waits);
        });
        eventually("the client forgets the name", || client.stats().names == 0);
        tries();
        waits();
        assert_eq!(warned(), warned_before + 1, "only once");
    }
    // A taken permit is no reason to log. After a grant, a number that is missing again is logged again.
    plain.try_set_permits(1).unwrap();
    let permit = plain.acquire().unwrap();
    let warned_before = warned();
    plain_waits();
    leased_waits();
    assert_eq!(warned(), warned_before, "all permits are taken");
    server.cli(&["DEL", &name]);
    permit.forget();
    plain_tries();
    plain_waits();
    assert_eq!(warned(), warned_before + 1, "the key is gone");
}

#[test]
fn requests_leave_next_to_nothing_behind() {
    let (server, client, semaphore) = semaphore(3);
    for _ in 0..500 {
        drop(semaphore.acquire().unwrap());
        semaphore.acquire_many(2).unwrap().release().unwrap();
        semaphore.add_permits(1).unwrap();
        semaphore.add_permits(-1).unwrap();
    }
    settles(&server, 3);
    let keys = server.keys();
    assert!(keys.len() <= 8, "{keys:?}");
    for key in keys.iter().filter(|key| *key != "s") {
        assert!(key.starts_with("{s}:request:"), "{key}");
        assert!((1..=120_000).contains(&server.pttl(key)));
    }
    // The process forgets the name as well.
    eventually("the room is gone", || client.stats().names == 0);
    let permit = semaphore.acquire().unwrap();
    assert_eq!(client.stats().names, 1);
    permit.forget();
    eventually("the room is gone again", || client.stats().names == 0);
    assert_eq!(server.get_int("s"), 2);
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting
// ---------------------------------------------------------------------------------------------------------------------

/// Whether threads of `client` wait: it has asked again since, and some client has subscribed.
fn waits(client: &Client, since: u64, server: &Server) -> bool {
    let heard: Vec<Value> = server.ask(&["PUBSUB", "NUMSUB", CHANNEL]);
    client.stats().commands > since && matches!(heard[1], Value::Int(1..))
}

timed!(a_release_of_many_wakes_as_many_as_it_serves);
fn a_release_of_many_wakes_as_many_as_it_serves() {
    let (server, _client, releaser) = semaphore(0);
    let clients: Vec<_> = (0..2).map(|_| open(&server)).collect();
    let served = AtomicUsize::new(0);
    scoped(|scope| {
        for client in &clients {
            for _ in 0..4 {
                let served = &served;
                scope.spawn(move || {
                    client.semaphore("s").acquire().unwrap().forget();
                    served.fetch_add(1, Ordering::SeqCst);
                });
            }
        }
        eventually("both processes listen", || {
            let heard: (String, i64) = server.ask(&["PUBSUB", "NUMSUB", CHANNEL]);
            heard.1 == 2
        });
        let began = Instant::now();
        releaser.add_permits(5).unwrap();
        eventually("five are served", || served.load(Ordering::SeqCst) == 5);
        assert!(
            began.elapsed() < loosely(ms(700)),
            "{:?}: by a poll",
            began.elapsed()
        );
        assert_eq!(server.get_int("s"), 0);
        releaser.add_permits(3).unwrap();
    });
    assert_eq!(served.load(Ordering::SeqCst), 8);
    let woken: u64 = clients.iter().map(|client| client.stats().wakes).sum();
    assert!(woken <= 12, "{woken} wakes: a herd");
}

timed!(single_permits_add_up_for_one_who_wants_many);
fn single_permits_add_up_for_one_who_wants_many() {
    let (server, client, semaphore) = semaphore(2);
    let other = open(&server);
    let other = other.semaphore("s");
    scoped(|scope| {
        let wants = |n| {
            let (sent, semaphore) = (client.stats().commands, &semaphore);
            let waiting = scope.spawn(move || {
                let permits = semaphore.try_acquire_many_for(n, LONG).unwrap();
                permits.expect("in time").forget();
                Instant::now()
            });
            eventually("it waits", || waits(&client, sent, &server));
            waiting
        };
        let four = wants(4);
        other.add_permits(1).unwrap();
        assert_eq!(server.get_int("s"), 3, "no part of them is taken");
        let released = Instant::now();
        other.add_permits(1).unwrap();
        let waited = four.join().unwrap() - released;
        assert!(waited < loosely(BY_MESSAGE), "{waited:?}");
        settles(&server, 0);
        // A permit that comes and goes is not enough for two, but an added one is.
        let two = wants(2);
        other.add_permits(1).unwrap();
        other.try_acquire().unwrap().unwrap().release().unwrap();
        assert_eq!(server.get_int("s"), 1);
        let added = Instant::now();
        other.add_permits(1).unwrap();
        let waited = two.join().unwrap() - added;
        assert!(waited < loosely(BY_MESSAGE), "{waited:?}");
    });
    settles(&server, 0);
}

timed!(the_greatest_number_of_permits_is_taken_by_turns_with_a_single_one);
fn the_greatest_number_of_permits_is_taken_by_turns_with_a_single_one() {
    const ALL: u32 = i32::MAX.unsigned_abs();
    let (server, _client, _) = semaphore(ALL);
    let clients = [(); 3].map(|()| open(&server));
    let inside = AtomicI64::new(0);
    scoped(|scope| {
        for (n, client) in clients.iter().enumerate() {
            let inside = &inside;
            scope.spawn(move || {
                for round in 0..6 {
                    let want = if (n + round) % 2 == 0 { ALL } else { 1 };
                    let permits = client.semaphore("s").try_acquire_many_for(want, LONG);
                    let permits = permits.unwrap().expect("in time");
                    let all = inside.fetch_add(i64::from(want), Ordering::SeqCst);
                    assert!(all + i64::from(want) <= i64::from(ALL), "{all} and {want}");
                    thread::yield_now();
                    inside.fetch_sub(i64::from(want), Ordering::SeqCst);
                    permits.release().unwrap();
                }
            });
        }
    });
    settles(&server, i64::from(ALL));
}

#[test]
fn five_hundred_waiters_are_served_and_never_more_than_five_at_once() {
    let (server, _client, _) = semaphore(5);
    let clients: Vec<_> = (0..3).map(|_| open(&server)).collect();
    let (inside, most, served) = (AtomicI64::new(0), AtomicI64::new(0), AtomicUsize::new(0));
    scoped(|scope| {
        for n in 0..500 {
            let (client, inside, most, served) = (&clients[n % 3], &inside, &most, &served);
            scope.spawn(move || {
                let permit = client.semaphore("s").acquire().unwrap();
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                served.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            });
        }
    });
    assert_eq!(served.load(Ordering::SeqCst), 500);
    assert!((1..=5).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    settles(&server, 5);
    let stats: Vec<_> = clients.iter().map(Client::stats).collect();
    let granted: u64 = stats
        .iter()
        .map(|stats| stats.acquired + stats.local_handoffs)
        .sum();
    assert!((500..1000).contains(&granted), "{stats:?}");
}

#[test]
fn what_requests_leave_behind_does_not_grow_with_their_number() {
    let server = Server::start();
    let client = open(&server);
    type Requests = fn(&Client, &str);
    let requests: [(&str, Requests); 7] = [
        ("set", |client, name| {
            client.semaphore(name).try_set_permits(3).unwrap();
        }),
        ("drain", |client, name| {
            client.semaphore(name).drain_permits().unwrap();
        }),
        ("permit", |client, name| {
            let semaphore = client.semaphore(name);
            semaphore.add_permits(1).unwrap();
            drop(semaphore.acquire().unwrap());
        }),
        ("debt", |client, name| {
            let semaphore = client.semaphore(name);
            semaphore.add_permits(1).unwrap();
            let permit = semaphore.acquire().unwrap();
            semaphore.add_permits(-1).unwrap();
            permit.release().unwrap();
        }),
        ("leased", |client, name| {
            let semaphore = client.expirable_semaphore(name);
            semaphore.try_set_permits(3).unwrap();
            semaphore.add_permits(1).unwrap();
        }),
        ("back", |client, name| {
            let semaphore = client.expirable_semaphore(name);
            semaphore.set_permits(3).unwrap();
            let permit = semaphore.acquire().unwrap();
            assert!(semaphore.release_id(permit.id()).unwrap());
        }),
        ("latch", |client, name| {
            let latch = client.latch(name);
            latch.try_set_count(2).unwrap();
            latch.try_set_count(2).unwrap();
            latch.count_down().unwrap();
            latch.delete().unwrap();
        }),
    ];
    let is_few = |name: &str| {
        let (keys, prefix) = (server.keys(), format!("{{{name}}}:request:"));
        let keys_left = keys.iter().filter(|key| key.starts_with(&prefix)).count();
        assert!(keys_left < 10, "{name}: {keys_left}");
    };
    for (name, request) in requests {
        (0..300).for_each(|_| request(&client, name));
        is_few(name);
    }
    // Keys do not add up either if the client forgets the name between two requests.
    let (client, slowly) = (open(&server), "slowly");
    for _ in 0..10 {
        let semaphore = client.semaphore(slowly);
        semaphore.add_permits(1).unwrap();
        drop(semaphore.acquire().unwrap());
        eventually("the room is gone", || client.stats().names == 0);
    }
    is_few(slowly);
}

timed!(a_big_request_is_not_starved_by_small_ones_of_its_process);
fn a_big_request_is_not_starved_by_small_ones_of_its_process() {
    let (server, client, semaphore) = semaphore(4);
    let stop = AtomicUsize::new(0);
    scoped(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while stop.load(Ordering::SeqCst) == 0 {
                    let _permit = semaphore.acquire().unwrap();
                    thread::sleep(ms(1));
                }
            });
        }
        eventually("the small ones are at it", || client.stats().acquired > 20);
        for _ in 0..5 {
            let all = semaphore
                .try_acquire_many_for(4, Duration::from_secs(5))
                .unwrap();
            assert!(all.is_some(), "starved");
        }
        stop.store(1, Ordering::SeqCst);
    });
    settles(&server, 4);
}

#[test]
fn who_does_not_wait_is_not_let_past_those_who_do() {
    let (server, client, semaphore) = semaphore(2);
    let one = semaphore.acquire().unwrap();
    scoped(|scope| {
        let sent = client.stats().commands;
        let big = scope.spawn(|| semaphore.acquire_many(2).unwrap().permits());
        eventually("the big one waits", || waits(&client, sent, &server));
        assert!(semaphore.try_acquire().unwrap().is_none());
        // Another process does not know this process's queue.
        let other = open(&server).semaphore("s").try_acquire().unwrap().unwrap();
        other.release().unwrap();
        one.release().unwrap();
        assert_eq!(big.join().unwrap(), 2);
    });
    settles(&server, 2);
}

#[test]
fn one_who_asks_and_need_not_wait_is_in_nobodys_way() {
    let (server, _client, semaphore) = semaphore(8);
    let done = AtomicUsize::new(0);
    scoped(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) == 0 {
                drop(semaphore.acquire().unwrap());
            }
        });
        let refused = (0..300).find(|_| semaphore.try_acquire().unwrap().is_none());
        done.store(1, Ordering::Relaxed);
        assert_eq!(refused, None);
    });
    settles(&server, 8);
}

timed!(permits_change_threads_without_a_round_trip_and_come_back_after_a_tenure);
fn permits_change_threads_without_a_round_trip_and_come_back_after_a_tenure() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).tenure(Duration::from_secs(1))).unwrap();
    let semaphore = client.semaphore("s");
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut crew = Crew::new();
    for n in 0..8 {
        let sent = client.stats().commands;
        let (semaphore, order) = (semaphore.clone(), Arc::clone(&order));
        crew.spawn(move || {
            let _permit = semaphore.acquire().unwrap();
            order.lock().unwrap().push(n);
        });
        if n == 0 {
            eventually("the first asks and listens", || {
                waits(&client, sent, &server)
            });
        }
        crew.all_parked();
    }
    let (sent, calls) = (client.stats().commands, server.calls("publish"));
    drop(permit);
    crew.join();
    eventually("the last gave it back", || server.get_int("s") == 1);
    assert_eq!(server.calls("publish") - calls, 1);
    let sent = client.stats().commands - sent;
    assert!(sent <= 2, "{sent} commands for eight hand-overs");
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    let stats = client.stats();
    assert_eq!((stats.local_handoffs, stats.acquired), (8, 1));
}

timed!(another_process_gets_its_turn_while_threads_pass_permits_round);
fn another_process_gets_its_turn_while_threads_pass_permits_round() {
    let (server, client, semaphore) = semaphore(2);
    let stop = AtomicUsize::new(0);
    scoped(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while stop.load(Ordering::SeqCst) == 0 {
                    drop(semaphore.acquire().unwrap());
                }
            });
        }
        eventually("they pass them round", || {
            client.stats().local_handoffs > 100
        });
        let other = open(&server);
        let other = other.semaphore("s");
        let mut longest = Duration::ZERO;
        // Turns may come by chance, so wait until the client has yielded at least once.
        let is_offered = || client.stats().yields > 0;
        for turn in 0..1000 {
            if turn >= 10 && is_offered() {
                break;
            }
            let began = Instant::now();
            let permit = other.try_acquire_for(Duration::from_secs(5)).unwrap();
            permit
                .expect("starved by another process")
                .release()
                .unwrap();
            longest = longest.max(began.elapsed());
        }
        stop.store(1, Ordering::SeqCst);
        assert!(longest < loosely(ms(900)), "{longest:?}");
        assert!(is_offered(), "nobody was let go first");
    });
    settles(&server, 2);
}

timed!(waits_end_in_time_or_when_cancelled);
fn waits_end_in_time_or_when_cancelled() {
    let (server, client, semaphore) = semaphore(1);
    let permit = semaphore.acquire().unwrap();
    for first in [true, false] {
        // First without, then with a thread ahead in the queue.
        let token = CancelToken::new();
        scoped(|scope| {
            let sent = client.stats().commands;
            let ahead =
                (!first).then(|| scope.spawn(|| semaphore.clone().cancel_on(&token).acquire()));
            if !first {
                eventually("one is ahead", || waits(&client, sent, &server));
            }
            let began = Instant::now();
            assert!(semaphore.try_acquire_for(ms(60)).unwrap().is_none());
            let took = began.elapsed();
            assert!(took >= ms(60) && took < loosely(ms(1500)), "{took:?}");
            let until = Instant::now() + ms(40);
            assert!(
                semaphore
                    .try_acquire_many_until(1, until)
                    .unwrap()
                    .is_none()
            );
            assert!(Instant::now() >= until);
            assert!(semaphore.try_acquire_until(until).unwrap().is_none());
            assert!(semaphore.try_acquire_for(Duration::ZERO).unwrap().is_none());
            let waiting = scope.spawn(|| semaphore.clone().cancel_on(&token).acquire());
            thread::sleep(ms(30));
            token.cancel();
            assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
            if let Some(ahead) = ahead {
                assert!(matches!(ahead.join().unwrap(), Err(Error::Cancelled)));
            }
            let late = semaphore.clone().cancel_on(&token);
            assert!(matches!(late.try_acquire_for(ms(1)), Err(Error::Cancelled)));
            assert!(matches!(late.try_acquire(), Err(Error::Cancelled)));
            // Other calls ignore the token, whether they send anything or not.
            assert_eq!(late.available_permits().unwrap(), 0);
            late.add_permits(0).unwrap();
        });
    }
    drop(permit);
    settles(&server, 1);
    eventually("nothing is left", || {
        let stats = client.stats();
        (stats.names, stats.subscriptions) == (0, 0)
    });
}

timed!(deadlines_and_cancels_that_race_with_hand_overs_lose_and_make_nothing);
fn deadlines_and_cancels_that_race_with_hand_overs_lose_and_make_nothing() {
    let (server, client, semaphore) = semaphore(4);
    let begun = Instant::now();
    let have_raced = || {
        let stats = client.stats();
        stats.local_handoffs > 20 && stats.acquired > 20
    };
    scoped(|scope| {
        for n in 0..12_u64 {
            let (semaphore, have_raced) = (&semaphore, &have_raced);
            scope.spawn(move || {
                let mut round = n;
                while begun.elapsed() < ms(800) || begun.elapsed() < LONG && !have_raced() {
                    round += 7;
                    let want = u32::try_from(round % 3 + 1).unwrap();
                    let wait = Duration::from_micros(round % 23 * 40);
                    let token = CancelToken::new();
                    let waits = semaphore.clone().cancel_on(&token);
                    let got = scoped(|scope| {
                        if round % 5 == 0 {
                            scope.spawn(move || {
                                thread::sleep(wait / 2);
                                token.cancel();
                            });
                        }
                        waits.try_acquire_many_for(want, wait)
                    });
                    if let Ok(Some(permits)) = got {
                        thread::sleep(wait / 4);
                        drop(permits);
                    }
                }
            });
        }
    });
    settles(&server, 4);
    eventually("nobody waits or has any", || client.stats().names == 0);
    assert!(have_raced(), "{:?}", client.stats());
    drop((client, semaphore));
    assert_eq!(server.get_int("s"), 4);
}

timed!(a_lost_message_costs_no_more_than_the_poll_cap);
fn a_lost_message_costs_no_more_than_the_poll_cap() {
    let (server, _client, releaser) = semaphore(0);
    let proxy = Proxy::start(server.addr());
    let client = Client::open(proxy.url()).unwrap();
    // Each attempt reads the number of permits once, as `try_set_permits` has done.
    let asked = server.calls("get");
    scoped(|scope| {
        let sent = client.stats().commands;
        let waiting = scope.spawn(|| client.semaphore("s").acquire().unwrap().forget());
        eventually("it listens, and has asked again", || {
            waits(&client, sent, &server) && server.calls("get") >= asked + 2
        });
        proxy.set(Target::Subscriber, Mode::SwallowReplies);
        releaser.add_permits(1).unwrap();
        let began = Instant::now();
        waiting.join().unwrap();
        assert!(began.elapsed() < loosely(Duration::from_secs(4)));
    });
    assert_eq!(client.stats().missed_messages, 1);
}

timed!(a_rescue_counts_although_a_thread_of_the_process_hands_over_a_permit_meanwhile);
fn a_rescue_counts_although_a_thread_of_the_process_hands_over_a_permit_meanwhile() {
    let (server, _client, releaser) = semaphore(1);
    let proxy = Proxy::start(server.addr());
    let config = Config::new(proxy.url()).tenure(Duration::from_secs(1));
    let client = Client::open(config).unwrap();
    let semaphore = client.semaphore("s");
    for turn in 1.. {
        assert!(turn < 10, "never handed over in time");
        let held = semaphore.acquire().unwrap();
        let stats_before = client.stats();
        scoped(|scope| {
            let waiting = scope.spawn(|| semaphore.acquire().unwrap());
            eventually("it listens, and has asked again", || {
                waits(&client, stats_before.commands + 1, &server)
            });
            proxy.set(Target::Subscriber, Mode::SwallowReplies);
            proxy.set(Target::Link, Mode::Delay(ms(40)));
            releaser.add_permits(1).unwrap();
            // The waiting thread's poll acquires a permit; before the reply arrives, another thread hands a permit over
            // to it.
            eventually("it has one", || server.get_int("s") == 0);
            drop(held);
            drop(waiting.join().unwrap());
        });
        proxy.pass();
        let after = client.stats();
        let granted = after.acquired - stats_before.acquired;
        assert_eq!(
            after.missed_messages,
            stats_before.missed_messages + granted
        );
        if granted == 1 && after.local_handoffs > stats_before.local_handoffs {
            break;
        }
        // The release has added a permit; take it away again.
        eventually("all are back", || server.get_int("s") == 2);
        assert!(
            releaser
                .try_acquire()
                .unwrap()
                .map(SemaphorePermit::forget)
                .is_some()
        );
        proxy.cut(Target::Subscriber);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Faults
// ---------------------------------------------------------------------------------------------------------------------

fn behind(proxy: &Proxy) -> Client {
    Client::open(Config::new(proxy.url()).command_timeout(ms(1400))).unwrap()
}

/// A call that changes the count: its name, the call, the change, and a text that only its request contains.
type Verb = (&'static str, fn(&Semaphore), i64, &'static str);

const VERBS: [Verb; 8] = [
    (
        "acquire",
        |s| s.acquire().unwrap().forget(),
        -1,
        "{s}:request",
    ),
    (
        "acquire_many",
        |s| s.acquire_many(3).unwrap().forget(),
        -3,
        "{s}:request",
    ),
    (
        "try_acquire",
        |s| s.try_acquire().unwrap().unwrap().forget(),
        -1,
        "{s}:request",
    ),
    ("more", |s| s.add_permits(2).unwrap(), 2, "{s}:request"),
    ("less", |s| s.add_permits(-4).unwrap(), -4, "{s}:request"),
    (
        "drop",
        |s| drop(s.acquire_many(2).unwrap()),
        0,
        "redisson_sc",
    ),
    (
        "unlock",
        |s| s.acquire_many(2).unwrap().release().unwrap(),
        0,
        "redisson_sc",
    ),
    (
        "drain",
        |s| assert_eq!(s.drain_permits().unwrap(), 10),
        -10,
        "{s}:request",
    ),
];

fn one_verb(fault_name: &str, fault: fn(&Proxy, &str) -> Trap, one: Verb) {
    let (name, verb, change, needle) = one;
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = behind(&proxy);
    let semaphore = client.semaphore("s");
    server.cli(&["SET", "s", "10"]);
    // The connection is open and has no request under way.
    semaphore.available_permits().unwrap();
    let trap = fault(&proxy, needle);
    verb(&semaphore);
    eventually("the trap was sprung", || trap.fired());
    // After a drop, the client's own threads repeat the release.
    eventually(&format!("{name}, {fault_name}"), || {
        server.get_int("s") == 10 + change
    });
    semaphore.available_permits().unwrap();
    assert_eq!(server.get_int("s"), 10 + change, "{name}, {fault_name}");
    assert_eq!(client.stats().releases_failed, 0);
}

/// Runs each call with a fault that hits its request.
fn all_verbs(fault_name: &str, fault: fn(&Proxy, &str) -> Trap) {
    scoped(|scope| {
        for one in VERBS {
            scope.spawn(move || one_verb(fault_name, fault, one));
        }
    });
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = behind(&proxy);
    let semaphore = client.semaphore("s");
    semaphore.available_permits().unwrap();
    let trap = fault(&proxy, "{s}:request");
    assert!(semaphore.try_set_permits(4).unwrap(), "this call made it");
    assert!(trap.fired());
    assert_eq!(server.get_int("s"), 4);
}

timed!(a_request_whose_reply_is_lost_counts_once);
fn a_request_whose_reply_is_lost_counts_once() {
    all_verbs("its reply is lost", |proxy, needle| {
        proxy.swallow_reply_to(needle)
    });
}

timed!(a_request_that_is_lost_counts_once);
fn a_request_that_is_lost_counts_once() {
    all_verbs("it is lost", |proxy, needle| {
        proxy.black_hole_request(needle)
    });
}

timed!(connections_that_are_cut_all_the_time_cost_and_make_no_permits);
fn connections_that_are_cut_all_the_time_cost_and_make_no_permits() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let clients: Vec<_> = (0..2).map(|_| behind(&proxy)).collect();
    server.cli(&["SET", "s", "6"]);
    let (inside, ran) = (AtomicI64::new(0), AtomicUsize::new(0));
    let begun = Instant::now();
    // A busy machine needs longer for as many.
    let goes_on = || {
        let enough = ran.load(Ordering::SeqCst) > 20;
        begun.elapsed() < ms(1500) || !enough && begun.elapsed() < LONG
    };
    scoped(|scope| {
        for n in 0..8_u32 {
            let (client, inside, ran, goes_on) =
                (&clients[n as usize % 2], &inside, &ran, &goes_on);
            scope.spawn(move || {
                let semaphore = client.semaphore("s");
                let want = n % 3 + 1;
                while goes_on() {
                    let Ok(Some(permits)) = semaphore.try_acquire_many_for(want, ms(400)) else {
                        continue;
                    };
                    let taken =
                        inside.fetch_add(i64::from(want), Ordering::SeqCst) + i64::from(want);
                    assert!(taken <= 6, "{taken} of 6");
                    thread::sleep(ms(1));
                    inside.fetch_sub(i64::from(want), Ordering::SeqCst);
                    ran.fetch_add(1, Ordering::SeqCst);
                    match n % 2 {
                        0 => drop(permits),
                        _ => drop(permits.release()),
                    }
                }
            });
        }
        while goes_on() {
            thread::sleep(ms(13));
            proxy.cut(Target::All);
        }
    });
    assert!(ran.load(Ordering::SeqCst) > 20, "{ran:?}");
    for client in &clients {
        client.semaphore("s").available_permits().unwrap();
    }
    settles(&server, 6);
    drop(clients);
    assert_eq!(server.get_int("s"), 6);
}

timed!(a_server_that_freezes_delays_nobody_beyond_the_limit_and_loses_nothing);
fn a_server_that_freezes_delays_nobody_beyond_the_limit_and_loses_nothing() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).command_timeout(ms(400))).unwrap();
    let semaphore = client.semaphore("s");
    semaphore.try_set_permits(5).unwrap();
    let held = semaphore.acquire_many(2).unwrap();
    server.freeze();
    let began = Instant::now();
    let late = |error: Error| assert!(matches!(error, Error::Redis { .. }), "{error:?}");
    match semaphore.try_acquire_for(ms(100)) {
        Ok(got) => assert!(got.is_none()),
        // Half of the `command_timeout` has passed without a reply.
        Err(err) if began.elapsed() >= ms(200) => late(err),
        Err(err) => panic!("{err:?}"),
    }
    assert!(began.elapsed() >= ms(100) && began.elapsed() < loosely(ms(1000)));
    scoped(|scope| {
        // All threads in the queue fail at the same time, not one after another.
        let began = Instant::now();
        let waiting: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| semaphore.acquire()))
            .collect();
        for waiting in waiting {
            late(waiting.join().unwrap().unwrap_err());
        }
        assert!(began.elapsed() < loosely(ms(2500)), "{:?}", began.elapsed());
    });
    late(semaphore.add_permits(1).unwrap_err());
    let began = Instant::now();
    drop(held);
    assert!(began.elapsed() < loosely(ms(200)), "dropping does not wait");
    server.thaw();
    // Permits that were granted late are returned. The release without a reply ran once, if it was sent.
    let given_back = || (5..=6).contains(&server.get_int("s"));
    eventually("all is given back", given_back);
    let now = semaphore.available_permits().unwrap();
    drop((semaphore, client));
    assert_eq!(server.get_int("s"), now);
    assert!(given_back());
}

timed!(closing_wakes_those_who_wait_and_gives_back_what_is_out);
fn closing_wakes_those_who_wait_and_gives_back_what_is_out() {
    let (server, client, semaphore) = semaphore(3);
    let (held, forgotten) = (
        semaphore.acquire_many(2).unwrap(),
        semaphore.acquire().unwrap(),
    );
    forgotten.forget();
    scoped(|scope| {
        let sent = client.stats().commands;
        let first = scope.spawn(|| semaphore.acquire());
        eventually("the first waits", || waits(&client, sent, &server));
        let behind = scope.spawn(|| semaphore.try_acquire_for(Duration::from_secs(60)).map(drop));
        thread::sleep(ms(20));
        let began = Instant::now();
        client.close(Duration::from_secs(5)).unwrap();
        assert!(matches!(first.join().unwrap(), Err(Error::Closed)));
        assert!(matches!(behind.join().unwrap(), Err(Error::Closed)));
        assert!(began.elapsed() < loosely(Duration::from_secs(3)));
    });
    assert_eq!(
        server.get_int("s"),
        2,
        "what is out, without what was kept for good"
    );
    assert!(matches!(held.release(), Err(Error::Closed)));
    assert!(matches!(semaphore.try_acquire(), Err(Error::Closed)));
    assert!(matches!(semaphore.add_permits(1), Err(Error::Closed)));
    assert!(matches!(semaphore.available_permits(), Err(Error::Closed)));
    assert_eq!(server.get_int("s"), 2, "once");
}

#[test]
fn a_permit_may_go_to_another_thread_and_outlive_its_handle() {
    let (server, client, semaphore) = semaphore(1);
    let permit: SemaphorePermit = semaphore.acquire().unwrap();
    drop((client, semaphore));
    assert_eq!(server.get_int("s"), 0);
    thread::spawn(move || drop(permit)).join().unwrap();
    assert_eq!(
        server.get_int("s"),
        1,
        "dropping the last part of a client waits for Redis"
    );
    let client = open(&server);
    let panicked = scoped(|scope| {
        let thread = scope.spawn(|| {
            let _permit = client.semaphore("s").acquire().unwrap();
            panic!("on purpose");
        });
        thread.join().is_err()
    });
    assert!(panicked);
    settles(&server, 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Against a model
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn random_verbs_of_several_clients_do_what_the_model_does() {
    let server = Server::start();
    let clients: Vec<_> = (0..3).map(|_| open(&server)).collect();
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = |end: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % end
    };
    for _ in 0..12 {
        let name = unique("model");
        let semaphores: Vec<_> = clients
            .iter()
            .map(|client| client.semaphore(&name))
            .collect();
        let mut model: Option<i64> = None;
        let mut held: Vec<SemaphorePermit> = Vec::new();
        for _ in 0..80 {
            let semaphore = &semaphores[usize::try_from(random(3)).unwrap()];
            let n = u32::try_from(random(4) + 1).unwrap();
            let value = model.unwrap_or(0);
            match random(10) {
                0 => {
                    assert_eq!(semaphore.try_set_permits(n).unwrap(), model.is_none());
                    model.get_or_insert(n.into());
                }
                1 => {
                    semaphore.add_permits(n.into()).unwrap();
                    model = Some(value + i64::from(n));
                }
                2 => {
                    let by = i64::from(n) - 3;
                    semaphore.add_permits(by).unwrap();
                    if by != 0 {
                        model = Some(value + by);
                    }
                }
                3 if random(4) == 0 => {
                    assert_eq!(semaphore.drain_permits().unwrap(), value);
                    model = model.map(|_| 0);
                }
                4 | 5 if !held.is_empty() => {
                    let permits =
                        held.swap_remove(usize::try_from(random(held.len() as u64)).unwrap());
                    model = Some(value + i64::from(permits.permits()));
                    permits.release().unwrap();
                }
                6 if !held.is_empty() => held.pop().unwrap().forget(),
                _ => {
                    let got = match random(6) {
                        0 if value < n.into() => semaphore.try_acquire_many_for(n, ms(40)),
                        1 | 2 if value >= n.into() => {
                            semaphore.try_acquire_many_for(n, Duration::from_secs(5))
                        }
                        _ => semaphore.try_acquire_many(n),
                    };
                    let got = got.unwrap();
                    assert_eq!(got.is_some(), value >= n.into(), "{n} of {value}");
                    if let Some(permits) = got {
                        model = Some(value - i64::from(n));
                        held.push(permits);
                    }
                }
            }
            assert_eq!(server.get_int(&name), model.unwrap_or(0));
            assert_eq!(server.exists(&name), model.is_some());
        }
        let out: i64 = held
            .iter()
            .map(|permits| i64::from(permits.permits()))
            .sum();
        drop(held);
        let expected = model.unwrap_or(0) + out;
        assert!(within(Duration::from_secs(5), || server.get_int(&name) == expected));
    }
}

// A permit whose release is rejected for good would never come back.
#[test]
fn a_server_that_takes_no_writes_takes_permits_back_later() {
    let server = Server::start_with(&["--dbfilename", "no-such-name.rdb"]);
    let client = open(&server);
    let semaphore = client.semaphore("s");
    assert!(semaphore.try_set_permits(3).unwrap());
    let permits: Vec<_> = (0..3).map(|_| semaphore.acquire().unwrap()).collect();
    let mut permits = permits.into_iter();
    out_of_memory(&server);
    assert!(semaphore.try_acquire().unwrap().is_none());
    // Commands that need no memory run at once.
    drop(permits.next());
    eventually("it is back", || server.get_int("s") == 1);
    permits.next().unwrap().release().unwrap();
    assert_eq!(server.get_int("s"), 2);

    // After a failed snapshot, all writes are rejected.
    let () = server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    cannot_save(&server);
    let commands = client.stats().commands;
    drop(permits.next());
    eventually("it is tried again and again", || {
        client.stats().commands > commands || server.calls("evalsha") > 10
    });
    assert_eq!(server.get_int("s"), 2);
    let () = server.ask(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    eventually("it is back", || server.get_int("s") == 3);
    assert_eq!(client.stats().releases_failed, 0);
}
