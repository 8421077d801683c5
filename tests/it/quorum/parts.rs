//! The parts of a red lock: what each master keeps of a hold, which parts count, and how waiting processes stay out of
//! the holder's way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error};

use crate::support::quorum;
use crate::support::quorum::{all_keep, masters, nothing_is_left, open_with, red, take_from_all};
use crate::support::{
    LONG, Mode, Proxy, STRANGER, Server, Target, eventually, loosely, ms, scoped, timed, unique,
};

/// A third of this lease is longer than any test, so no renewal is due.
const LEASE: Duration = ms(60_000);

fn open(servers: &[Server]) -> Vec<Client> {
    open_with(servers, |config| config.lease(LEASE))
}

/// A client for each server; the servers in `through` are reached by a proxy.
fn open_through(
    servers: &[Server],
    through: &[usize],
    set: impl Fn(Config) -> Config,
) -> (Vec<Client>, Vec<Proxy>) {
    let mut proxies = Vec::new();
    let clients = servers.iter().enumerate().map(|(node, server)| {
        let url = if through.contains(&node) {
            proxies.push(Proxy::start(server.addr()));
            proxies[proxies.len() - 1].url()
        } else {
            server.url()
        };
        Client::open(set(Config::new(url))).unwrap()
    });
    (clients.collect(), proxies)
}

fn a_stranger_has(servers: &[Server], name: &str) {
    for server in servers {
        server.cli(&["HSET", name, STRANGER, "1"]);
    }
}

fn the_stranger_leaves(servers: &[Server], name: &str) {
    for server in servers {
        server.cli(&["HDEL", name, STRANGER]);
    }
}

/// The owner for whom a server keeps `name`.
fn owner(server: &Server, name: &str) -> Option<String> {
    let owners: Vec<String> = server.ask(&["HKEYS", name]);
    assert!(owners.len() <= 1, "{owners:?}");
    owners.into_iter().next()
}

// ---------------------------------------------------------------------------------------------------------------------
// Numbers
// ---------------------------------------------------------------------------------------------------------------------

// The undo of an acquire may be the last request on an abandoned connection, and arrive at any time later.
timed!(an_undo_that_arrives_late_takes_nothing_that_is_held);
fn an_undo_that_arrives_late_takes_nothing_that_is_held() {
    let servers = masters(3);
    for _ in 0..10 {
        let (clients, proxies) = open_through(&servers, &[1, 2], |config| {
            let config = config.lease(ms(10_000)).connect_timeout(ms(300));
            config.command_timeout(ms(900))
        });
        let [first, second] = &proxies[..] else {
            unreachable!("two of them")
        };
        let name = unique("undo");
        let lock = red(&clients, &name);
        // The client knows that the first of the two is unreachable.
        first.set(Target::Link, Mode::Refuse);
        first.cut(Target::Link);
        lock.is_locked().unwrap();
        // Requests to the second arrive late, and a new connection to it is useless.
        second.stall_present(Target::Link);
        second.set(Target::All, Mode::BlackHole);
        let granted = scoped(|scope| {
            scope.spawn(|| {
                eventually("the connection is given up", || {
                    second.connections(Target::Link) == 0
                });
                first.pass();
            });
            lock.lock()
        });
        let Ok(guard) = granted else {
            // The machine was too slow to reconnect to the first within the time limit.
            continue;
        };
        second.set(Target::All, Mode::Pass);
        let undone = servers[2].calls("hdel");
        second.pass();
        eventually("the undo has arrived", || servers[2].calls("hdel") > undone);
        // The late acquire that precedes the undo does not count.
        assert!(guard.is_valid() && guard.nodes_held() == 2);
        assert_eq!(owner(&servers[0], &name).as_deref(), Some(guard.owner()));
        guard.unlock().unwrap();
        return nothing_is_left(&servers);
    }
    panic!("it was never granted");
}

// A further hold needs a majority. A node whose grant was not heard does not count, because an undo of that grant may
// be under way.
timed!(a_number_that_may_be_undone_does_not_count_for_one_more_hold);
fn a_number_that_may_be_undone_does_not_count_for_one_more_hold() {
    let servers = masters(3);
    let (clients, proxies) = open_through(&servers, &[1, 2], |config| {
        config.lease(LEASE).command_timeout(ms(900))
    });
    let [second, third] = &proxies[..] else {
        unreachable!("two of them")
    };
    let name = unique("counts");
    let lock = red(&clients, &name).fixed_lease(LEASE);
    let grant = third.swallow_reply_to(&name);
    let guard = lock.lock().unwrap();
    eventually("it is granted", || servers[2].exists(&name));
    assert!(grant.fired());
    // The last requests on that connection arrive late, and the next connection works.
    third.stall_present(Target::Link);
    second.set(Target::All, Mode::Refuse);
    second.cut(Target::All);
    let until = guard.valid_until();
    thread::sleep(ms(100));
    let again = lock.lock();
    assert!(
        matches!(&again, Err(Error::NoQuorum { agreed: 1, .. })),
        "{again:?}"
    );
    // The validity extends to that of the second master's part at most, which was asked for a moment after the first.
    assert!(guard.valid_until() < until + ms(100));
    assert_eq!(guard.hold_count(), 1);
    second.pass();
    third.pass();
    drop(guard);
    nothing_is_left(&servers);
}

// A round ends with the second of three grants; a later grant still counts.
timed!(a_grant_that_comes_after_the_round_counts_all_the_same);
fn a_grant_that_comes_after_the_round_counts_all_the_same() {
    let servers = masters(3);
    let (clients, proxies) = open_through(&servers, &[2], |config| config.lease(ms(3000)));
    let name = unique("late");
    let lock = red(&clients, &name);
    drop(lock.lock().unwrap());
    proxies[0].set(Target::Link, Mode::Delay(ms(300)));
    let guard = lock.lock().unwrap();
    let granted = Instant::now();
    assert_eq!(guard.nodes_held(), 2);
    all_keep(&guard, 3);
    assert!(granted.elapsed() >= ms(250));
    // The late part and either of the others are a majority.
    servers[0].cli(&["DEL", &name]);
    all_keep(&guard, 2);
    assert!(guard.is_valid() && guard.lost().try_recv().is_err());
    proxies[0].pass();
    guard.unlock().unwrap();
    nothing_is_left(&servers);
}

// A distant master moves back in the order in which masters are asked, even if it is first in the list and its reply
// was once the third.
timed!(two_that_are_far_away_are_not_waited_for_as_long_as_three_are_near);
fn two_that_are_far_away_are_not_waited_for_as_long_as_three_are_near() {
    const ROUND_TRIP: Duration = ms(10);
    let servers = masters(5);
    let (clients, proxies) = open_through(&servers, &[0, 1, 2, 3, 4], |config| config);
    let lock = red(&clients, &unique("near"));
    for proxy in [&proxies[0], &proxies[2]] {
        proxy.set(Target::Link, Mode::DelayBoth(ROUND_TRIP / 2));
    }
    // The first rounds measure the distances.
    let mut times: Vec<_> = (0..30)
        .map(|_| {
            let began = Instant::now();
            drop(lock.lock().unwrap());
            began.elapsed()
        })
        .collect();
    times[10..].sort_unstable();
    assert!(times[20] < loosely(ROUND_TRIP / 2), "{times:?}");
    nothing_is_left(&servers);
    // Drop the clients while the proxies still run, since closing waits for an unreachable server.
    drop((lock, clients));
}

// All masters may reply while the thread waits for the first.
timed!(a_majority_has_granted_it_as_soon_as_the_near_ones_have_answered);
fn a_majority_has_granted_it_as_soon_as_the_near_ones_have_answered() {
    let servers = masters(5);
    // A long tenure, so that the client does not yield to others.
    let (clients, proxies) = open_through(&servers, &[0, 1, 2, 3, 4], |config| {
        config.tenure(ms(1_000))
    });
    for delays in [&[11, 80, 11, 80, 11][..], &[11, 11, 80], &[80, 11, 11]] {
        for (proxy, delay) in proxies.iter().zip(delays) {
            proxy.set(Target::All, Mode::Delay(ms(*delay)));
            // Each connection is greeted again and learns its present distance.
            proxy.cut(Target::All);
        }
        let lock = red(&clients[..delays.len()], &unique("uneven"));
        drop(take_from_all(&lock, delays.len()));
        let times = (0..30).map(|_| {
            let began = Instant::now();
            drop(lock.lock().unwrap());
            began.elapsed()
        });
        // A thread that looked at the near masters only every 5 ms would need 15 ms every time.
        let least = times.min().unwrap();
        assert!(least < ms(14), "{least:?} with {delays:?}");
    }
    nothing_is_left(&servers);
    // Drop the clients while the proxies still run, since closing waits for an unreachable server.
    drop(clients);
}

// A distant master is fast enough to keep the place of a near one that was late once.
timed!(a_near_master_that_was_late_once_is_waited_for_again);
fn a_near_master_that_was_late_once_is_waited_for_again() {
    const ROUND_TRIP: Duration = ms(4);
    let servers = masters(5);
    let (clients, proxies) = open_through(&servers, &[0, 1, 2, 3, 4], |config| config);
    for proxy in [&proxies[0], &proxies[2]] {
        proxy.set(Target::All, Mode::DelayBoth(ROUND_TRIP / 2));
    }
    let lock = red(&clients, &unique("again"));
    let three_near_are_enough = || {
        let began = Instant::now();
        lock.lock().is_ok_and(|guard| {
            let took = began.elapsed();
            drop(guard);
            took < ROUND_TRIP
        })
    };
    // Reconnect, so that each greeting measures the present distance; on a busy machine a near master may seem distant.
    eventually("they are known", || {
        for proxy in &proxies {
            proxy.cut(Target::All);
        }
        (0..9).any(|_| three_near_are_enough())
    });
    proxies[1].set(Target::Link, Mode::DelayBoth(5 * ROUND_TRIP));
    let late = lock.lock().unwrap();
    assert!(late.is_valid());
    drop(late);
    proxies[1].pass();
    eventually("it has another chance", three_near_are_enough);
    nothing_is_left(&servers);
    // Drop the clients while the proxies still run, since closing waits for an unreachable server.
    drop((lock, clients));
}

// ---------------------------------------------------------------------------------------------------------------------
// Those who wait
// ---------------------------------------------------------------------------------------------------------------------

timed!(whoever_waits_takes_no_part_of_what_others_have_and_tells_nobody_of_it);
fn whoever_waits_takes_no_part_of_what_others_have_and_tells_nobody_of_it() {
    let servers = masters(5);
    let clients = open(&servers);
    let name = unique("wait");
    a_stranger_has(&servers[..3], &name);
    let looks = || -> u64 { servers[3..].iter().map(|server| server.calls("pttl")).sum() };
    scoped(|scope| {
        let waiting = scope.spawn(|| drop(quorum::take(&red(&clients, &name))));
        // The waiter looks after the attempt, after the subscription, and after a pause.
        eventually("it looks again", || looks() >= 6);
        for server in &servers[..3] {
            // The holders' masters only got the request that they refused, so there was nothing to release.
            assert_eq!((server.calls("hlen"), server.calls("hdel")), (1, 0));
        }
        for server in &servers[3..] {
            // On the other masters the first attempt was granted and undone; later the waiter only looks.
            assert_eq!((server.calls("hset"), server.calls("hdel")), (1, 1));
        }
        for server in &servers {
            assert_eq!(server.calls("publish"), 0);
        }
        the_stranger_leaves(&servers[..3], &name);
        waiting.join().unwrap();
    });
    nothing_is_left(&servers);
}

// A distant process needs a round trip between its look and its request, and the holders ask again at once.
timed!(after_its_turn_a_process_lets_those_go_first_who_look_from_afar);
fn after_its_turn_a_process_lets_those_go_first_who_look_from_afar() {
    let servers = masters(3);
    let name = unique("afar");
    let (ours, our_way) = open_through(&servers, &[0, 1, 2], |config| config);
    let (theirs, their_way) = open_through(&servers, &[0, 1, 2], |config| config);
    for proxy in our_way.iter().chain(&their_way) {
        proxy.set(Target::Link, Mode::DelayBoth(ms(3)));
    }
    let done = AtomicBool::new(false);
    scoped(|scope| {
        scope.spawn(|| {
            let lock = red(&theirs, &name);
            while !done.load(Ordering::SeqCst) {
                drop(lock.lock().unwrap());
            }
        });
        eventually("they have it all the time", || {
            servers[0].calls("hset") > 10
        });
        let lock = red(&ours, &name);
        let turn = |_| lock.try_lock_for(LONG).map(|guard| guard.is_some());
        let turns: Result<Vec<_>, _> = (0..3).map(turn).collect();
        done.store(true, Ordering::SeqCst);
        assert_eq!(turns.unwrap(), [true; 3]);
    });
    nothing_is_left(&servers);
    // Drop the clients while the proxies still run, since closing waits for an unreachable server.
    drop((ours, theirs));
}

// ---------------------------------------------------------------------------------------------------------------------
// Questions
// ---------------------------------------------------------------------------------------------------------------------

timed!(questions_wait_for_all_servers_that_are_away_at_the_same_time);
fn questions_wait_for_all_servers_that_are_away_at_the_same_time() {
    let servers = masters(5);
    let (clients, proxies) = open_through(&servers, &[1, 3], |config| config);
    let lock = red(&clients, &unique("away"));
    let asks: [&dyn Fn() -> redlatch::Result<()>; 3] = [
        &|| lock.is_locked().map(drop),
        &|| lock.remaining_lease().map(drop),
        &|| lock.force_unlock().map(drop),
    ];
    for ask in asks {
        for proxy in &proxies {
            proxy.set(Target::All, Mode::BlackHole);
            proxy.cut(Target::All);
        }
        // By this call the client learns that the connections have ended.
        ask().unwrap();
        let (done, both) = (AtomicBool::new(false), AtomicBool::new(false));
        scoped(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let dialled = |proxy: &Proxy| proxy.connections(Target::All) > 0;
                    both.fetch_or(proxies.iter().all(dialled), Ordering::SeqCst);
                    thread::sleep(ms(2));
                }
            });
            ask().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        assert!(both.into_inner(), "one was waited for after the other");
        for proxy in &proxies {
            proxy.pass();
        }
        ask().unwrap();
    }
}
