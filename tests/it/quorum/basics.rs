//! The lock over five independent masters: what it does while all is well, and what it is made of.
//!
//! What it does when servers or networks fail is in `faults`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Config, Error, LossReason, RedLock};

use crate::support::quorum::{
    LEASE, all_keep, keepers, kept_for, masters, nothing_is_left, open, open_with, red, take,
};
use crate::support::{
    Crew, LONG, Proxy, Server, alone, elsewhere, eventually, loosely, ms, threads_named, timed,
    unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// Exclusion
// ---------------------------------------------------------------------------------------------------------------------

timed!(two_sets_of_clients_exclude_each_other);
fn two_sets_of_clients_exclude_each_other() {
    let servers = masters(5);
    let name = unique("red");
    let (ours, theirs) = (open(&servers), open(&servers));
    let (one, other) = (red(&ours, &name), red(&theirs, &name));

    let guard = one.lock().unwrap();
    assert!(guard.nodes_held() >= 3, "{}", guard.nodes_held());
    assert!(guard.is_valid());
    assert!(other.try_lock().unwrap().is_none());
    let asked = Instant::now();
    assert!(other.try_lock_for(ms(120)).unwrap().is_none());
    assert!(asked.elapsed() >= ms(120));
    all_keep(&guard, 5);
    let owner = guard.owner().to_owned();
    for server in &servers {
        assert_eq!(server.hgetall(&name), [(owner.clone(), "1".to_owned())]);
        assert_eq!(server.keys(), [&*name]);
        assert!((1..=1500).contains(&server.pttl(&name)));
    }
    assert_eq!((guard.name(), one.name()), (&*name, &*name));
    assert_eq!(
        format!("{one:?}"),
        format!("RedLock {{ name: {name:?}, .. }}")
    );
    assert_eq!(
        format!("{guard:?}"),
        format!("RedLockGuard {{ name: {name:?}, owner: {owner:?}, valid: true, .. }}")
    );

    // Who waits gets it without being notified of the release.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock().unwrap().owner().to_owned());
        guard.unlock().unwrap();
        assert_ne!(waiting.join().unwrap(), owner);
    });
    nothing_is_left(&servers);
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
    // The parts of the others follow while it is held.
    all_keep(&guard, 5);
    assert!((0..5).all(|node| plain(node).try_lock().unwrap().is_none()));
    guard.unlock().unwrap();
    nothing_is_left(&servers);
}

// M1, D1: a set of servers that is split between several is nobody's, and all of them go on.
timed!(those_who_always_collide_all_get_on);
fn those_who_always_collide_all_get_on() {
    const TURNS: usize = 12;
    let servers = masters(5);
    let name = unique("collide");
    let sets = [(); 2].map(|()| open_with(&servers, |config| config.tenure(Duration::ZERO)));
    let started = Barrier::new(2);
    let begun = Instant::now();
    let met = AtomicUsize::new(0);
    thread::scope(|scope| {
        for clients in &sets {
            scope.spawn(|| {
                let lock = red(clients, &name);
                for _ in 0..TURNS {
                    // At the same moment, each time.
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

#[test]
fn many_threads_of_several_processes_never_hold_it_at_once() {
    history(4, 2, 12);
}

#[test]
#[ignore = "takes half a minute"]
fn many_threads_of_several_processes_never_hold_it_at_once_for_long() {
    history(5, 4, 120);
}

/// `processes` × `threads` take the lock `turns` times each, and what they saw is looked through.
fn history(processes: usize, threads: usize, turns: usize) {
    let servers = masters(5);
    let name = unique("history");
    let sets: Vec<_> = (0..processes).map(|_| open(&servers)).collect();
    let counter = Mutex::new(0_usize);
    let mut spans: Vec<(Instant, Instant, String)> = thread::scope(|scope| {
        let workers: Vec<_> = sets
            .iter()
            .flat_map(|clients| (0..threads).map(move |_| clients))
            .map(|clients| {
                scope.spawn(|| {
                    let lock = red(clients, &name);
                    let mut spans = Vec::new();
                    for turn in 0..turns {
                        let guard = lock.lock().unwrap();
                        let granted = Instant::now();
                        let seen = *counter.lock().unwrap();
                        if turn % 3 == 0 {
                            thread::yield_now();
                        }
                        *counter.lock().unwrap() = seen + 1;
                        assert!(guard.is_valid());
                        spans.push((granted, Instant::now(), guard.owner().to_owned()));
                        drop(guard);
                    }
                    spans
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    assert_eq!(spans.len(), processes * threads * turns);
    assert_eq!(*counter.lock().unwrap(), spans.len());
    spans.sort_by_key(|(granted, ..)| *granted);
    for pair in spans.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?}");
    }
    let acquired: u64 = sets.iter().map(|clients| clients[0].stats().acquired).sum();
    let passed: u64 = sets.iter().map(|clients| clients[0].stats().passed).sum();
    assert_eq!(acquired + passed, spans.len() as u64);
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Threads of one process
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_thread_that_holds_it_may_take_it_again() {
    let servers = masters(5);
    let name = unique("again");
    let clients = open(&servers);
    let lock = red(&clients, &name);
    let one = lock.lock().unwrap();
    assert_eq!((one.hold_count(), lock.hold_count()), (1, 1));
    assert!(lock.is_owned_by_current_thread());
    all_keep(&one, 5);
    let calls: Vec<u64> = servers.iter().map(|server| server.calls("hset")).collect();
    // Another handle of the same name and clients is the same lock.
    let two = red(&clients, &name).try_lock().unwrap().unwrap();
    let three = lock.try_lock_for(ms(50)).unwrap().unwrap();
    assert_eq!(three.owner(), one.owner());
    assert_eq!((three.hold_count(), lock.hold_count()), (3, 3));
    elsewhere(|| {
        assert!(!lock.is_owned_by_current_thread());
        assert_eq!(lock.hold_count(), 0);
        assert!(lock.try_lock().unwrap().is_none());
    });
    // Renewals show to whoever looks into Redis.
    eventually("the count is known everywhere", || {
        servers.iter().zip(&calls).all(|(server, calls)| {
            server.hgetall(&name)[0].1 == "3" && server.calls("hset") == calls + 1
        })
    });
    assert_eq!(clients[0].stats().reentered, 2);
    drop(one);
    three.unlock().unwrap();
    assert_eq!(lock.hold_count(), 1);
    assert!(two.is_valid());
    assert_eq!(kept_for(&servers, &name, two.owner()), [0, 1, 2, 3, 4]);
    two.unlock().unwrap();
    assert_eq!(lock.hold_count(), 0);
    nothing_is_left(&servers);
}

timed!(threads_of_a_process_pass_it_on_and_no_server_hears_of_it);
fn threads_of_a_process_pass_it_on_and_no_server_hears_of_it() {
    const THREADS: usize = 5;
    let servers = masters(5);
    let name = unique("pass");
    // The longest tenure there is; a loaded machine may need several to see one that nothing has ended.
    let clients = open_with(&servers, |config| config.tenure(ms(1000)));
    let lock = red(&clients, &name);
    let acquired = || clients[0].stats().acquired;
    let granted = || -> Vec<u64> { servers.iter().map(|server| server.calls("hset")).collect() };
    for _ in 0..20 {
        let guard = lock.lock().unwrap();
        let owner = guard.owner().to_owned();
        all_keep(&guard, 5);
        let before = (acquired(), granted());
        let passed = clients[0].stats().passed;
        let mut crew = Crew::new();
        let owners = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..THREADS {
            let (lock, owners) = (lock.clone(), Arc::clone(&owners));
            crew.spawn(move || {
                let guard = lock.lock().unwrap();
                assert_eq!((guard.hold_count(), lock.hold_count()), (1, 1));
                owners.lock().unwrap().push(guard.owner().to_owned());
            });
        }
        crew.all_parked();
        drop(guard);
        crew.join();
        nothing_is_left(&servers);
        if acquired() == before.0 {
            assert_eq!(clients[0].stats().passed, passed + THREADS as u64);
            assert_eq!(granted(), before.1);
            assert_eq!(*owners.lock().unwrap(), vec![owner; THREADS]);
            return;
        }
    }
    panic!("it never stayed in the process");
}

#[test]
fn with_holds_it_for_as_long_as_it_runs() {
    let servers = masters(3);
    let name = unique("with");
    let (ours, theirs) = (open(&servers), open(&servers));
    let (lock, other) = (red(&ours, &name), red(&theirs, &name));
    let done = lock.with(|guard| {
        assert!(other.try_lock().unwrap().is_none());
        guard.owner().to_owned()
    });
    assert!(!done.unwrap().is_empty());
    // Its release has been waited for: a majority is free.
    assert!(other.try_lock().unwrap().is_some());
    let lost = lock.with(|_| assert!(other.force_unlock().unwrap()));
    assert!(
        matches!(
            &lost,
            Err(Error::Lost {
                reason: LossReason::Forced,
                ..
            })
        ),
        "{lost:?}"
    );
    let panicked = thread::scope(|scope| scope.spawn(|| lock.with(|_| panic!("oh"))).join());
    panicked.unwrap_err();
    nothing_is_left(&servers);
}

#[test]
fn a_wait_that_is_cancelled_leaves_nothing_behind() {
    let servers = masters(5);
    let name = unique("cancel");
    let (ours, theirs) = (open(&servers), open(&servers));
    let token = CancelToken::new();
    let lock = red(&ours, &name).cancel_on(&token);
    let other = red(&theirs, &name);
    let guard = other.lock().unwrap();
    // The first asks the servers, the other queues behind it.
    let mut crew = Crew::new();
    for _ in 0..2 {
        let lock = lock.clone();
        crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Cancelled))));
    }
    crew.all_parked();
    token.cancel();
    crew.join();
    assert!(matches!(lock.lock(), Err(Error::Cancelled)));
    // One attempt is no wait.
    assert!(lock.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    nothing_is_left(&servers);
    assert!(lock.try_lock().unwrap().is_some());
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Leases
// ---------------------------------------------------------------------------------------------------------------------

// W11: the lease counts from before the first byte was sent.
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
    let before = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(guard.valid_until() <= Instant::now() + ms(900));
    assert!(guard.valid_until() >= before + ms(900) - ms(11));
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
    assert!(guard.lost().is_empty());
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

timed!(a_fixed_lease_ends_and_its_holder_is_notified);
fn a_fixed_lease_ends_and_its_holder_is_notified() {
    let servers = masters(5);
    let name = unique("fixed");
    let (ours, theirs) = (open(&servers), open(&servers));
    let lock = red(&ours, &name).lease(ms(900));
    let other = red(&theirs, &name);
    let guard = lock.lock().unwrap();
    let until = guard.valid_until();
    // What came later than a majority is known too.
    all_keep(&guard, 5);
    assert_eq!(kept_for(&servers, &name, guard.owner()).len(), 5);
    assert!(other.try_lock().unwrap().is_none());
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert!(Instant::now() >= until);
    assert_eq!((loss.reason, &*loss.name), (LossReason::Expired, &*name));
    assert_eq!((guard.valid_until(), guard.nodes_held()), (until, 0));
    assert!(!guard.is_valid());
    assert_eq!((guard.hold_count(), lock.hold_count()), (0, 0));
    drop(take(&other));
    let lost = guard.unlock();
    assert!(
        matches!(
            &lost,
            Err(Error::Lost {
                reason: LossReason::Expired,
                ..
            })
        ),
        "{lost:?}"
    );
    nothing_is_left(&servers);
}

timed!(reentering_a_fixed_lease_renews_it_on_a_majority);
fn reentering_a_fixed_lease_renews_it_on_a_majority() {
    let mut servers = masters(5);
    let name = unique("reenter");
    let clients = open_with(&servers, |config| {
        config.lease(LEASE).response_timeout(ms(600))
    });
    let lock = red(&clients, &name).lease(ms(4000));
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

    // A majority that does not know it any more has lost it.
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

timed!(max_hold_ends_renewal_and_frees_the_lock);
fn max_hold_ends_renewal_and_frees_the_lock() {
    let servers = masters(5);
    let name = unique("max");
    let clients = open_with(&servers, |config| config.lease(ms(900)));
    let theirs = open(&servers);
    let lock = red(&clients, &name).max_hold(ms(400));
    let granted = Instant::now();
    let guard = lock.lock().unwrap();
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert!(granted.elapsed() >= ms(400));
    assert_eq!(loss.reason, LossReason::MaxHold);
    assert!(!guard.is_valid());
    // The guard is still there.
    drop(take(&red(&theirs, &name)));
    let lost = guard.unlock();
    assert!(
        matches!(
            &lost,
            Err(Error::Lost {
                reason: LossReason::MaxHold,
                ..
            })
        ),
        "{lost:?}"
    );
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// Questions
// ---------------------------------------------------------------------------------------------------------------------

// M7: what a minority does not say is not waited for beyond its time.
timed!(questions_are_answered_by_a_majority);
fn questions_are_answered_by_a_majority() {
    let mut servers = masters(5);
    let (ours, theirs) = (open(&servers), open(&servers));
    for dead in 0..3 {
        let name = unique("ask");
        let (lock, other) = (red(&ours, &name), red(&theirs, &name));
        assert!(!lock.is_locked().unwrap());
        assert_eq!(lock.remaining().unwrap(), None);
        assert!(!lock.force_unlock().unwrap());
        let guard = take(&lock);
        all_keep(&guard, 5 - dead);
        for lock in [&lock, &other] {
            assert!(lock.is_locked().unwrap());
            let left = lock.remaining().unwrap().unwrap();
            assert!(left <= LEASE && left > Duration::ZERO, "{left:?}");
        }
        assert!(other.force_unlock().unwrap());
        let loss = guard.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Forced, "{dead} dead");
        eventually("what was taken again is given back", || {
            !other.is_locked().unwrap()
        });
        drop(guard);
        // In this process it is known at once.
        let guard = take(&lock);
        assert!(lock.force_unlock().unwrap());
        assert_eq!(guard.lost().try_recv().unwrap().reason, LossReason::Forced);
        drop(guard);
        servers[dead * 2].kill();
    }
    let name = unique("ask");
    let lock = red(&ours, &name);
    let asked = Instant::now();
    for short in [
        lock.is_locked().map(drop),
        lock.remaining().map(drop),
        lock.force_unlock().map(drop),
    ] {
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
        Err(Error::Config(why)) => why,
        other => panic!("{other:?}"),
    }
}

// M6
#[test]
fn servers_that_are_not_independent_masters_are_refused() {
    let servers = masters(3);
    let clients = open(&servers);
    let [a, b, c] = &clients[..] else {
        unreachable!("three of them")
    };
    assert!(refused(&[]).contains("0 masters"));
    assert!(refused(&[a]).contains("1 masters"));
    for name in ["", &"x".repeat(1 << 20), "a\0b{"] {
        let made = RedLock::new(&clients, name);
        let plain = a.reentrant_lock(name).try_lock();
        assert_eq!(
            matches!(made, Err(Error::InvalidName { .. })),
            matches!(plain, Err(Error::InvalidName { .. })),
            "{made:?}"
        );
    }
    // Whether they may or not is known before anything is sent.
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
    let of_replica = Client::open(replica.url()).unwrap();
    assert!(refused(&[b, c, &of_replica]).contains("no master"));
    assert!(refused(&[a, b, &of_replica]).contains("no master"));
    // It may have been made a master since.
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
    let before = sent();
    refused(&[]);
    refused(&[&clients[0]]);
    RedLock::new(&clients, "").unwrap_err();
    assert_eq!(sent(), before);
    let lock = red(&clients, &unique("settings"));
    let before = sent();
    for wrong in [
        lock.clone().lease(ms(9)),
        lock.clone().lease(Duration::MAX),
        lock.clone().max_hold(Duration::ZERO),
        lock.clone().lease(LEASE).max_hold(LEASE),
        lock.clone().keep_out_restarted(ms(9)),
        lock.clone().keep_out_restarted(Duration::MAX),
    ] {
        assert!(matches!(wrong.lock(), Err(Error::Config(_))), "{wrong:?}");
        assert!(
            matches!(wrong.try_lock(), Err(Error::Config(_))),
            "{wrong:?}"
        );
    }
    assert_eq!(sent(), before);
    // A handle sends nothing, and who the servers are was asked once.
    let asked: u64 = servers.iter().map(|server| server.calls("role")).sum();
    drop(red(&clients, &unique("settings")).lease(LEASE));
    assert_eq!(sent(), before);
    let now: u64 = servers.iter().map(|server| server.calls("role")).sum();
    assert_eq!((asked, now), (3, 3));
}

timed!(a_majority_is_more_than_half);
fn a_majority_is_more_than_half() {
    let half = |n: usize, needed: usize| {
        let mut servers = masters(n);
        let name = unique("half");
        let set = |config: Config| config.lease(LEASE).response_timeout(ms(300));
        let (ours, theirs) = (open_with(&servers, set), open_with(&servers, set));
        let (lock, other) = (red(&ours, &name), red(&theirs, &name));
        let guard = lock.lock().unwrap();
        assert!(other.try_lock().unwrap().is_none());
        all_keep(&guard, n);
        drop(guard);
        // Half of an even number is not enough.
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
                needed: its,
                agreed,
                ..
            }) => {
                assert_eq!((its, agreed), (needed, needed - 1), "of {n}");
            }
            other => panic!("{other:?}"),
        }
    };
    thread::scope(|scope| {
        for (n, needed) in [(2, 2), (3, 2), (4, 3)] {
            scope.spawn(move || half(n, needed));
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Closing and dropping
// ---------------------------------------------------------------------------------------------------------------------

// D2
timed!(closing_one_of_the_clients_gives_its_part_back_and_the_hold_goes_on);
fn closing_one_of_the_clients_gives_its_part_back_and_the_hold_goes_on() {
    let servers = masters(5);
    for lease in [None, Some(ms(60_000))] {
        let name = unique("leave");
        let (ours, theirs) = (open(&servers), open(&servers));
        let (lock, other) = (red(&ours, &name), red(&theirs, &name));
        let lock = match lease {
            None => lock,
            Some(lease) => lock.lease(lease),
        };
        let guard = lock.lock().unwrap();
        all_keep(&guard, 5);
        ours[4].close(LONG).unwrap();
        eventually("its part is given back", || !servers[4].exists(&name));
        assert_eq!(guard.nodes_held(), 4, "{lease:?}");
        thread::sleep(LEASE / 2);
        assert!(!servers[4].exists(&name));
        assert!(guard.is_valid());
        assert!(guard.lost().is_empty());
        assert!(other.try_lock().unwrap().is_none());
        guard.unlock().unwrap();
        nothing_is_left(&servers);
        // The others are enough for a while.
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

// D2
#[test]
fn closing_the_first_client_gives_everything_back() {
    let servers = masters(5);
    for lease in [None, Some(ms(60_000))] {
        let name = unique("first");
        let ours = open(&servers);
        let lock = red(&ours, &name);
        let lock = match lease {
            None => lock,
            Some(lease) => lock.lease(lease),
        };
        let guard = lock.lock().unwrap();
        all_keep(&guard, 5);
        let mut crew = Crew::new();
        for _ in 0..2 {
            let lock = lock.clone();
            crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Closed))));
        }
        crew.all_parked();
        ours[0].close(LONG).unwrap();
        crew.join();
        assert_eq!(
            guard.lost().recv_timeout(LONG).unwrap().reason,
            LossReason::Closed
        );
        assert!(!guard.is_valid());
        nothing_is_left(&servers);
        assert!(matches!(lock.try_lock(), Err(Error::Closed)));
        let lost = guard.unlock();
        assert!(
            matches!(
                &lost,
                Err(Error::Lost {
                    reason: LossReason::Closed,
                    ..
                })
            ),
            "{lost:?}"
        );
    }
}

// D2: whatever goes last takes the threads along.
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
            for (place, what) in order.chars().enumerate() {
                if place > 0
                    && let Some(guard) = &guard
                {
                    assert!(guard.is_valid(), "{order}");
                    assert!(kept_for(&servers, &name, guard.owner()).len() >= 3);
                }
                match what {
                    'c' => drop(clients.take()),
                    'l' => drop(lock.take()),
                    _ => drop(guard.take()),
                }
            }
            assert_eq!(threads_named("redlatch"), 0, "{order}");
            for server in &servers {
                assert_eq!(server.keys(), Vec::<String>::new(), "{order}");
                eventually("it is not connected any more", || {
                    server.clients_named("redlatch").is_empty()
                });
            }
        }
    }
}
