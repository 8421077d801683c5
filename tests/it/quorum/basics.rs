//! The red lock on five independent masters while all is well, and how it is set up.
//!
//! Failing servers and networks are tested in `faults`.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, LossReason, RedLock, ReentrantLock, ReentrantLockGuard};

use crate::support::quorum::{
    LEASE, all_keep, keepers, masters, nothing_is_left, open, open_with, red, take,
};
use crate::support::{
    LONG, Proxy, Server, alone, eventually, loosely, ms, scoped, threads_named, timed, unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// Exclusion
// ---------------------------------------------------------------------------------------------------------------------

fn take_plain(lock: &ReentrantLock) -> ReentrantLockGuard {
    lock.try_lock_for(LONG).unwrap().expect("it is free")
}

#[test]
fn a_plain_lock_on_a_majority_keeps_it_out_and_one_on_a_minority_does_not() {
    let servers = masters(5);
    let name = unique("plain");
    let (ours, theirs) = (open(&servers), open(&servers));
    let lock = red(&ours, &name);
    let plain = |node: usize| theirs[node].reentrant_lock(&name);
    let mut held: Vec<_> = (0..3).map(|node| plain(node).lock().unwrap()).collect();

    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.try_lock_for(ms(60)).unwrap().is_none());
    assert!(lock.is_locked().unwrap());
    eventually("what it was granted is given back", || {
        servers[3..].iter().all(|server| server.dbsize() == 0)
    });

    held.pop().unwrap().unlock().unwrap();
    let guard = take(&lock);
    assert_eq!(keepers(&servers, &name, guard.owner()), [2, 3, 4]);
    assert_eq!(guard.nodes_held(), 3);
    assert!(plain(2).try_lock().unwrap().is_none());
    drop(held);
    // Masters that did not take part in the grant do not join later.
    let theirs: Vec<_> = (0..2).map(|node| take_plain(&plain(node))).collect();
    assert!((2..5).all(|node| plain(node).try_lock().unwrap().is_none()));
    assert!(guard.is_valid() && guard.nodes_held() == 3);
    drop(theirs);
    guard.unlock().unwrap();
    nothing_is_left(&servers);
}

// Two processes that ask at the same moment may each be granted some of the masters. Both must give these back and get
// a turn.
timed!(those_who_always_collide_all_get_on);
fn those_who_always_collide_all_get_on() {
    const TURNS: usize = 12;
    let servers = masters(5);
    let name = unique("collide");
    let sets = [(); 2].map(|()| open_with(&servers, |config| config.tenure(Duration::ZERO)));
    let started = Barrier::new(2);
    let begun = Instant::now();
    let met = AtomicUsize::new(0);
    scoped(|scope| {
        for clients in &sets {
            scope.spawn(|| {
                let lock = red(clients, &name);
                for _ in 0..TURNS {
                    // Both ask at the same moment, each time.
                    started.wait();
                    let guard = take(&lock);
                    assert_eq!(met.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(guard.is_valid());
                    met.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert!(begun.elapsed() < loosely(2 * LONG), "{:?}", begun.elapsed());
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Leases
// ---------------------------------------------------------------------------------------------------------------------

// The lease counts from before the first byte of the request was sent.
timed!(it_is_renewed_for_as_long_as_it_is_wanted_and_by_the_first_clients_lease);
fn it_is_renewed_for_as_long_as_it_is_wanted_and_by_the_first_clients_lease() {
    let servers = masters(5);
    let name = unique("renew");
    let clients: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(node, server)| {
            let config = Config::new(server.url()).key_prefix(format!("{node}:"));
            let config = if node == 0 {
                config.lease(ms(900))
            } else {
                config
            };
            Client::open(config).unwrap()
        })
        .collect();
    let lock = red(&clients, &name);
    let started_at = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(guard.valid_until() <= Instant::now() + ms(900));
    assert!(guard.valid_until() >= started_at + ms(900) - ms(11));
    eventually("each has its own prefix", || {
        let has = |(node, server): (usize, &Server)| server.exists(&format!("{node}:{name}"));
        servers.iter().enumerate().all(has)
    });
    let first = guard.valid_until();
    while Instant::now() < first + ms(900) {
        assert!(guard.is_valid());
        for (node, server) in servers.iter().enumerate() {
            assert!(server.pttl(&format!("{node}:{name}")) <= 900);
        }
        thread::sleep(ms(20));
    }
    assert!(guard.valid_until() > first + ms(800));
    assert!(guard.lost().try_recv().is_err());
    guard.unlock().unwrap();
    nothing_is_left(&servers);
    let sent: Vec<u64> = servers
        .iter()
        .map(|server| server.calls("evalsha"))
        .collect();
    thread::sleep(ms(700));
    let after: Vec<u64> = servers
        .iter()
        .map(|server| server.calls("evalsha"))
        .collect();
    assert_eq!(sent, after, "something is renewed that was given back");
}

timed!(reentering_a_fixed_lease_renews_it_on_a_majority);
fn reentering_a_fixed_lease_renews_it_on_a_majority() {
    let mut servers = masters(5);
    let name = unique("reenter");
    let clients = open_with(&servers, |config| {
        config.lease(LEASE).command_timeout(ms(600))
    });
    let lock = red(&clients, &name).fixed_lease(ms(4000));
    let one = lock.lock().unwrap();
    thread::sleep(ms(300));
    let first = one.valid_until();
    let two = lock.lock().unwrap();
    assert!(one.valid_until() >= first + ms(300));
    assert_eq!(one.hold_count(), 2);
    eventually("the servers know of it", || {
        let renewed = |server: &&Server| server.pttl(&name) > 3700;
        servers.iter().filter(renewed).count() >= 3
    });
    servers[1].kill();
    servers[3].kill();
    let second = one.valid_until();
    thread::sleep(ms(20));
    let three = lock.try_lock().unwrap().unwrap();
    assert!(one.valid_until() > second);
    drop(three);
    servers[0].kill();
    let third = one.valid_until();
    let short = lock.lock();
    assert!(
        matches!(&short, Err(Error::NoQuorum { needed: 3, .. })),
        "{short:?}"
    );
    assert_eq!((one.valid_until(), one.hold_count()), (third, 2));
    for node in [0, 1, 3] {
        servers[node].restart();
    }
    drop(two);
    drop(one);
    nothing_is_left(&servers);

    // A hold that a majority has forgotten is lost.
    let one = lock.lock().unwrap();
    for server in &servers[..3] {
        server.cli(&["FLUSHALL"]);
    }
    let two = lock.lock().unwrap();
    assert_eq!(
        one.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Forced
    );
    assert_ne!(one.owner(), two.owner());
    drop(one);
    assert!(two.is_valid());
    two.unlock().unwrap();
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Questions
// ---------------------------------------------------------------------------------------------------------------------

// The wait for masters that do not reply is limited.
timed!(questions_are_answered_by_a_majority);
fn questions_are_answered_by_a_majority() {
    let mut servers = masters(5);
    let (ours, theirs) = (open(&servers), open(&servers));
    for dead in 0..3 {
        let name = unique("ask");
        let (lock, other) = (red(&ours, &name), red(&theirs, &name));
        assert!(!lock.is_locked().unwrap());
        assert_eq!(lock.remaining_lease().unwrap(), None);
        assert!(!lock.force_unlock().unwrap());
        let guard = take(&lock);
        all_keep(&guard, 5 - dead);
        for lock in [&lock, &other] {
            assert!(lock.is_locked().unwrap());
            let lease_left = lock.remaining_lease().unwrap().unwrap();
            assert!(
                lease_left <= LEASE && lease_left > Duration::ZERO,
                "{lease_left:?}"
            );
        }
        assert!(other.force_unlock().unwrap());
        let loss = guard.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Forced, "{dead} dead");
        eventually("what the others keep is given back", || {
            !other.is_locked().unwrap()
        });
        drop(guard);
        // Within this process the loss is known at once.
        let guard = take(&lock);
        assert!(lock.force_unlock().unwrap());
        assert_eq!(guard.lost().try_recv().unwrap().reason, LossReason::Forced);
        drop(guard);
        servers[dead * 2].kill();
    }
    let name = unique("ask");
    let lock = red(&ours, &name);
    let asked = Instant::now();
    // The two that answered have released the lock, and others may have it at the next call.
    for (short, may_be_repeated) in [
        (lock.is_locked().map(drop), true),
        (lock.remaining_lease().map(drop), true),
        (lock.force_unlock().map(drop), false),
    ] {
        let is_retryable = short.as_ref().is_err_and(Error::is_retryable);
        assert_eq!(is_retryable, may_be_repeated, "{short:?}");
        match short {
            Err(Error::NoQuorum {
                needed,
                agreed,
                failures,
                ..
            }) => {
                let failed: Vec<usize> = failures.iter().map(|(node, _)| *node).collect();
                assert_eq!((needed, agreed, &*failed), (3, 2, &[0, 2, 4][..]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(asked.elapsed() < loosely(LONG));
    for node in [0, 2, 4] {
        servers[node].restart();
    }
    nothing_is_left(&servers);
    eventually("they are asked again", || {
        matches!(lock.is_locked(), Ok(false))
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// What it is made of
// ---------------------------------------------------------------------------------------------------------------------

#[track_caller]
fn refused(clients: &[&Client]) -> String {
    match RedLock::new(clients.iter().copied(), "refused") {
        Err(Error::InvalidSetting { reason: what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn servers_that_are_not_independent_masters_are_refused() {
    let servers = masters(3);
    let clients = open(&servers);
    let [a, b, c] = &clients[..] else {
        unreachable!("three of them")
    };
    assert!(refused(&[]).contains("given 0"));
    assert!(refused(&[a]).contains("given 1"));
    for name in ["", &"x".repeat(1 << 20), "a\0b{"] {
        let made = RedLock::new(&clients, name);
        let plain = a.reentrant_lock(name).try_lock();
        assert_eq!(
            matches!(made, Err(Error::InvalidName { .. })),
            matches!(plain, Err(Error::InvalidName { .. })),
            "{made:?}"
        );
    }
    // An invalid name is rejected before anything is sent.
    assert!(matches!(
        RedLock::new(&clients, ""),
        Err(Error::InvalidName { .. })
    ));

    assert!(refused(&[a, a]).contains("clients 0 and 1"));
    assert!(refused(&[a, b, c, b]).contains("clients 1 and 3"));
    let again = Client::open(servers[1].url()).unwrap();
    assert!(refused(&[a, b, &again]).contains("clients 1 and 2"));
    let proxy = Proxy::start(servers[0].addr());
    for url in [
        proxy.url(),
        format!("{}5", servers[0].url()),
        servers[0].unix_url(),
    ] {
        let other = Client::open(url).unwrap();
        assert!(refused(&[a, b, &other]).contains("clients 0 and 2"));
        assert!(refused(&[&other, b, a]).contains("clients 0 and 2"));
    }

    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &servers[0].port().to_string()]);
    let of_replica = Client::open(Config::new(replica.url()).lazy()).unwrap();
    assert!(refused(&[b, c, &of_replica]).contains("not a master"));
    assert!(refused(&[a, b, &of_replica]).contains("not a master"));
    // The replica may have been promoted since; its role is asked again.
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let four = RedLock::new([a, b, c, &of_replica], unique("four")).unwrap();
    drop(four.lock().unwrap());

    let closed = Client::open(servers[2].url()).unwrap();
    closed.close(LONG).unwrap();
    for order in [[a, b, &closed], [&closed, a, b]] {
        let made = RedLock::new(order, "closed");
        assert!(matches!(made, Err(Error::Closed)), "{made:?}");
    }
    for server in servers.iter().chain([&replica]) {
        eventually("nothing is left", || server.dbsize() == 0);
    }
}

timed!(what_is_refused_sends_nothing);
fn what_is_refused_sends_nothing() {
    let servers = masters(3);
    let clients = open(&servers);
    let sent = || -> u64 { servers.iter().map(Server::command_total).sum() };
    let sent_before = sent();
    refused(&[]);
    refused(&[&clients[0]]);
    RedLock::new(&clients, "").unwrap_err();
    assert_eq!(sent(), sent_before);
    let lock = red(&clients, &unique("settings"));
    let sent_before = sent();
    for wrong in [
        lock.clone().fixed_lease(ms(9)),
        lock.clone().fixed_lease(Duration::MAX),
        lock.clone().max_hold(Duration::ZERO),
        lock.clone().fixed_lease(LEASE).max_hold(LEASE),
        lock.clone().min_uptime(ms(9)),
        lock.clone().min_uptime(Duration::MAX),
    ] {
        assert!(
            matches!(wrong.lock(), Err(Error::InvalidSetting { .. })),
            "{wrong:?}"
        );
        assert!(
            matches!(wrong.try_lock(), Err(Error::InvalidSetting { .. })),
            "{wrong:?}"
        );
    }
    assert_eq!(sent(), sent_before);
    // Creating a handle sends nothing; the servers' identities were asked once, by `red` above.
    drop(red(&clients, &unique("settings")).fixed_lease(LEASE));
    assert_eq!(sent(), sent_before);
}

timed!(a_majority_is_more_than_half);
fn a_majority_is_more_than_half() {
    let half = |n: usize, needed: usize| {
        let mut servers = masters(n);
        let name = unique("half");
        let set = |config: Config| config.lease(LEASE).command_timeout(ms(300));
        let (ours, theirs) = (open_with(&servers, set), open_with(&servers, set));
        let (lock, other) = (red(&ours, &name), red(&theirs, &name));
        let guard = lock.lock().unwrap();
        assert!(other.try_lock().unwrap().is_none());
        all_keep(&guard, n);
        drop(guard);
        // Half of an even number is no majority.
        for server in &mut servers[needed..] {
            server.kill();
        }
        let guard = take(&lock);
        assert_eq!(guard.nodes_held(), needed);
        assert!(other.try_lock().unwrap().is_none());
        guard.unlock().unwrap();
        servers[needed - 1].kill();
        let short = lock.try_lock();
        match short {
            Err(Error::NoQuorum {
                needed: reported,
                agreed,
                ..
            }) => {
                assert_eq!((reported, agreed), (needed, needed - 1), "of {n}");
            }
            other => panic!("{other:?}"),
        }
    };
    scoped(|scope| {
        for (n, needed) in [(2, 2), (3, 2), (4, 3)] {
            scope.spawn(move || half(n, needed));
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Closing and dropping
// ---------------------------------------------------------------------------------------------------------------------

timed!(closing_one_of_the_clients_gives_its_part_back_and_the_hold_goes_on);
fn closing_one_of_the_clients_gives_its_part_back_and_the_hold_goes_on() {
    let servers = masters(5);
    for lease in [None, Some(ms(60_000))] {
        let name = unique("leave");
        let (ours, theirs) = (open(&servers), open(&servers));
        let (lock, other) = (red(&ours, &name), red(&theirs, &name));
        let lock = match lease {
            None => lock,
            Some(lease) => lock.fixed_lease(lease),
        };
        let guard = lock.lock().unwrap();
        all_keep(&guard, 5);
        ours[4].close(LONG).unwrap();
        eventually("its part is given back", || !servers[4].exists(&name));
        assert_eq!(guard.nodes_held(), 4, "{lease:?}");
        thread::sleep(LEASE / 2);
        assert!(!servers[4].exists(&name));
        assert!(guard.is_valid());
        assert!(guard.lost().try_recv().is_err());
        assert!(other.try_lock().unwrap().is_none());
        guard.unlock().unwrap();
        nothing_is_left(&servers);
        // Four, and then three masters suffice.
        let guard = lock.lock().unwrap();
        all_keep(&guard, 4);
        ours[1].close(LONG).unwrap();
        assert_eq!(guard.nodes_held(), 3);
        guard.unlock().unwrap();
        drop(lock.lock().unwrap());
        ours[2].close(LONG).unwrap();
        match lock.lock() {
            Err(Error::NoQuorum {
                agreed: 2,
                failures,
                ..
            }) => {
                let failed: Vec<usize> = failures.iter().map(|(node, _)| *node).collect();
                assert_eq!(failed, [1, 2, 4]);
                assert!(failures.iter().all(|(_, err)| matches!(err, Error::Closed)));
            }
            other => panic!("{other:?}"),
        }
        nothing_is_left(&servers);
    }
}

// The last of client, lock and guard to be dropped ends the threads.
#[test]
fn dropping_everything_in_any_order_leaves_neither_keys_nor_threads() {
    let this = dropping_everything_in_any_order_leaves_neither_keys_nor_threads;
    alone(this, drop_everything_in_any_order);
}

fn drop_everything_in_any_order() {
    let servers = masters(5);
    for order in ["clg", "cgl", "lcg", "lgc", "gcl", "glc"] {
        for all in [false, true] {
            let mut clients = Some(open(&servers));
            let name = unique(order);
            let mut lock = Some(red(clients.as_ref().unwrap(), &name));
            let mut guard = Some(lock.as_ref().unwrap().lock().unwrap());
            if all {
                all_keep(guard.as_ref().unwrap(), 5);
            }
            for (place, letter) in order.chars().enumerate() {
                if place > 0
                    && let Some(guard) = &guard
                {
                    assert!(guard.is_valid(), "{order}");
                    assert!(keepers(&servers, &name, guard.owner()).len() >= 3);
                }
                match letter {
                    'c' => drop(clients.take()),
                    'l' => drop(lock.take()),
                    _ => drop(guard.take()),
                }
            }
            assert_eq!(threads_named("redlatch"), 0, "{order}");
            for server in &servers {
                assert_eq!(server.keys(), Vec::<String>::new(), "{order}");
                eventually("it is not connected any more", || {
                    server.clients_named("").is_empty()
                });
            }
        }
    }
}
