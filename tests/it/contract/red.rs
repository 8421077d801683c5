//! Where a lock over several masters behaves like any other lock, and where it differs.
//!
//! The suite runs with the test's own server, whose client is the first of three, and two companion servers that all
//! tests share. Names are unique, so the tests do not disturb each other.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Error, LossReason, RedLock, RedLockGuard};

use crate::support::{
    Crew, Deployment, Guard, Kind, LONG, Messages, Mode, Proxy, REENTRANT_LOCK, Server, Target,
    beside, delete, deployment, elsewhere, eventually, is_gone, loosely, lua, ms,
    nothing_is_left_of, open, open_with_lease, settings, settings_by, skipped, stranger_holds,
    timed, unique,
};

/// A lock over three masters, of which the test knows the first. The clients of the other two live as long as the lock,
/// and other locks of the same client use them too.
#[derive(Clone, Debug)]
struct Red(RedLock, Arc<[Client; 2]>);

/// The companion servers, which live as long as a test needs them.
static SERVERS: Mutex<Weak<Vec<Server>>> = Mutex::new(Weak::new());

fn companions() -> Arc<Vec<Server>> {
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    servers.upgrade().unwrap_or_else(|| {
        let started = Arc::new(vec![Server::start(), Server::start()]);
        *servers = Arc::downgrade(&started);
        started
    })
}

/// The clients of the companions that belong to a client of a test. Each client always gets the same pair, so that
/// its locks of one name are the same lock.
fn clients_for(client: &Client) -> Arc<[Client; 2]> {
    static CLIENTS: Mutex<Option<HashMap<String, Weak<[Client; 2]>>>> = Mutex::new(None);
    let client_id = loop {
        // A client with a short lease may lose the hold before the reply, so retry.
        if let Ok(guard) = client.mutex(unique("who")).fixed_lease(LONG).lock() {
            let uuid = guard.owner().split(':').next().unwrap().to_owned();
            guard.unlock().unwrap();
            break uuid;
        }
    };
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let clients = clients.get_or_insert_default();
    clients.retain(|_, pair| pair.strong_count() > 0);
    let known = clients.get(&client_id).and_then(Weak::upgrade);
    known.unwrap_or_else(|| {
        let servers = companions();
        let pair = Arc::new([open(&servers[0]), open(&servers[1])]);
        clients.insert(client_id, Arc::downgrade(&pair));
        pair
    })
}

crate::support::guard!(RedLockGuard {
    fn settle(&self) {
        eventually("all three keep it", || self.nodes_held() == 3);
    }
});

crate::support::lock! {
    Red: |this| this.0, |copy| Red(copy, Arc::clone(&this.1)), this.0.is_owned_by_current_thread();
    lock try_lock try_lock_for try_lock_until with is_locked hold_count
}

impl Red {
    fn of(client: &Client, name: &str) -> Self {
        let pair = clients_for(client);
        let lock = RedLock::new([client].into_iter().chain(&*pair), name).unwrap();
        Self(lock, pair)
    }
}

impl Deref for Red {
    type Target = RedLock;

    fn deref(&self) -> &RedLock {
        &self.0
    }
}

const RED: Kind = Kind {
    title: "RedLock",
    handle: |client, name| Red::of(client, name).into(),
    acquire: lua::RED_ACQUIRE,
    others: || Some(companions()),
    ..REENTRANT_LOCK
};

/// A `RedLock` rejects clients of a cluster, so there is nothing to test.
fn is_refused() -> bool {
    let refused = deployment() == Deployment::Cluster;
    if refused {
        skipped("a RedLock", "it takes no client of a cluster");
    }
    refused
}

/// Runs a test with companions that live at least as long.
fn with_companions(test: &dyn Fn()) {
    if is_refused() {
        return;
    }
    let _companions = companions();
    test();
}

mod as_any_other {
    crate::contract::held_to! { super::RED, super::with_companions:
        threads_and_clients_exclude_each_other,
        busy_is_none,
        a_limited_wait_takes_its_time_and_gives_none,
        an_endless_wait_ends_with_the_lock,
        with_holds_the_lock_for_as_long_as_it_runs,
        a_drop_wakes_a_waiter_of_another_client_by_message,
        a_strangers_lock_is_waited_for,
        a_vanished_lock_is_noticed_without_a_message,
        threads_of_a_process_are_served_in_order,
        threads_of_several_processes_are_served_in_the_order_their_kind_promises,
        one_who_leaves_the_queue_does_not_hold_it_up,
        redis_holds_what_redisson_would_write,
        owners_never_repeat,
        a_pair_of_lock_and_drop_is_two_commands,
        nothing_is_renewed_after_its_release,
        a_hold_is_renewed_for_as_long_as_it_is_wanted,
        a_fixed_lease_ends_and_its_holder_is_notified,
        max_hold_ends_renewal_and_frees_the_lock,
        a_forgotten_guard_with_max_hold_frees_the_lock,
        leases_do_not_interfere,
        cancelling_ends_waits_and_the_queue_goes_on,
        force_unlock_notifies_everybody_concerned,
        forcing_does_not_mistake_a_later_hold,
        unlock_says_how_it_was_lost,
        dropping_a_lost_guard_harms_nobody,
        a_lost_lock_is_free_for_threads_of_the_same_process,
        questions_are_answered_truly,
        reentry_is_for_the_holding_thread,
        reentry_renews_a_fixed_lease,
        a_panic_gives_the_lock_back,
        a_guard_owns_what_it_needs,
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Tests of the suite that count requests or disturb a connection, rewritten for three servers
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn no_wait_is_one_attempt() {
    if is_refused() {
        return;
    }
    let (server, _companions) = (Server::start(), companions());
    let name = unique("once");
    let client = open(&server);
    drop(Red::of(&client, &unique("warm")).lock().unwrap());
    stranger_holds(RED, &server, &name, 60_000);
    let lock = Red::of(&client, &name);
    let past = Instant::now();
    // `PTTL` runs once in a rejected acquire, and once in the check that replaces an acquire which was rejected shortly
    // before.
    let calls_before = server.calls("pttl");
    let asked = |n: u64| {
        eventually("the server was asked", || {
            server.calls("pttl") >= calls_before + n
        });
        assert_eq!(server.calls("pttl"), calls_before + n);
    };
    assert!(lock.try_lock().unwrap().is_none());
    asked(1);
    assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
    asked(2);
    assert!(lock.try_lock_until(past).unwrap().is_none());
    asked(3);
    delete(RED, &server, &name);
    assert!(lock.try_lock().unwrap().is_some());
    let past_one = Red::of(&client, &unique("past"));
    assert!(past_one.try_lock_until(past).unwrap().is_some());
    assert!(server.clients_named("subscriber").is_empty());
}

// Each server publishes the message of a plain lock, so waiters for the plain lock of that name are notified too.
#[test]
fn a_release_publishes_redissons_message_on_each_server() {
    if is_refused() {
        return;
    }
    let (server, companions) = (Server::start(), companions());
    let name = unique("tell");
    let client = open(&server);
    let servers = [&server, &companions[0], &companions[1]];
    let mut listeners = servers.map(Messages::of);
    let lock = Red::of(&client, &name);
    for how in ["unlocked", "dropped", "forced"] {
        let guard = lock.lock().unwrap();
        guard.settle();
        match how {
            "unlocked" => guard.unlock().unwrap(),
            "dropped" => drop(guard),
            _ => elsewhere(|| assert!(lock.force_unlock().unwrap())),
        }
        eventually("the lock is released", || is_gone(RED, &server, &name));
        for (server, messages) in servers.iter().zip(&mut listeners) {
            let mut heard = messages.published(server);
            heard.retain(|(channel, _)| channel.contains(&name));
            if how == "forced" {
                // After a forced release, the holder also releases what is not taken by others, which publishes the
                // message twice.
                heard.dedup();
            }
            let received = (beside("redisson_lock__channel", &name), "0".to_owned());
            assert_eq!(heard, [received], "{how}");
        }
    }
}

timed!(passing_it_on_inside_the_process_asks_nobody);
fn passing_it_on_inside_the_process_asks_nobody() {
    if is_refused() {
        return;
    }
    const THREADS: u64 = 16;
    let (server, _companions) = (Server::start(), companions());
    let name = unique("pass");
    let client = Client::open(settings(&server).tenure(Duration::from_secs(1))).unwrap();
    let lock = Red::of(&client, &name);
    let guard = lock.lock().unwrap();
    guard.settle();
    let owners = Arc::new(Mutex::new(HashSet::from([guard.owner().to_owned()])));
    let mut crew = Crew::new();
    for _ in 0..THREADS {
        let (lock, owners) = (lock.clone(), Arc::clone(&owners));
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            assert_eq!((guard.nodes_held(), guard.hold_count()), (3, 1));
            owners.lock().unwrap().insert(guard.owner().to_owned());
            guard.unlock().unwrap();
        });
    }
    crew.all_parked();
    let (stats_before, asked) = (client.stats(), server.calls("hexists"));
    guard.unlock().unwrap();
    crew.join();
    let after = client.stats();
    assert_eq!(after.acquired, stats_before.acquired);
    assert_eq!(after.local_handoffs - stats_before.local_handoffs, THREADS);
    assert_eq!(server.calls("hexists"), asked);
    assert_eq!(owners.lock().unwrap().len(), 1, "one tenure, one owner");
    eventually("the last has released", || is_gone(RED, &server, &name));
}

// A reply after the node's timeout does not count, and a grant by a minority is released again.
timed!(a_grant_that_comes_too_late_is_not_one);
fn a_grant_that_comes_too_late_is_not_one() {
    if is_refused() {
        return;
    }
    let (server, companions) = (Server::start(), companions());
    let name = unique("late");
    let proxies = [0, 1].map(|n| Proxy::before(&companions[n]));
    let by = |n: usize| Client::open(settings_by(&companions[n], proxies[n].addr())).unwrap();
    let clients = [open(&server), by(0), by(1)];
    let lock = RedLock::new(&clients, &name).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    for proxy in &proxies {
        proxy.set(Target::Link, Mode::Delay(ms(400)));
    }
    let late = lock.clone().fixed_lease(ms(200)).try_lock();
    match late.unwrap_err() {
        Error::NoQuorum {
            name: named,
            nodes: 3,
            needed,
            agreed,
            failures,
            ..
        } => {
            let nodes: Vec<_> = failures.iter().map(|(node, _)| *node).collect();
            assert_eq!(
                (named, needed, agreed, nodes),
                (name.clone(), 2, 1, vec![1, 2])
            );
        }
        other => panic!("{other:?}"),
    }
    for proxy in &proxies {
        proxy.pass();
    }
    eventually("the late grants are undone", || {
        is_gone(RED, &server, &name)
    });
    assert_eq!(clients[0].stats().holds, 0);
    assert!(lock.try_lock_for(LONG).unwrap().is_some());
}

timed!(an_acquire_whose_caller_was_cancelled_is_undone);
fn an_acquire_whose_caller_was_cancelled_is_undone() {
    if is_refused() {
        return;
    }
    let (server, companions) = (Server::start(), companions());
    let name = unique("undo");
    let proxies = [0, 1].map(|n| Proxy::before(&companions[n]));
    let by = |n: usize| Client::open(settings_by(&companions[n], proxies[n].addr())).unwrap();
    let clients = [open(&server), by(0), by(1)];
    let lock = RedLock::new(&clients, &name).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    eventually("warm", || is_gone(RED, &server, &name));
    for mode in [Mode::Stall, Mode::Delay(ms(300))] {
        for proxy in &proxies {
            proxy.set(Target::Link, mode);
        }
        let token = CancelToken::new();
        let waiting = lock.clone().cancel_on(&token);
        let mut crew = Crew::new();
        crew.spawn(move || assert!(matches!(waiting.lock(), Err(Error::Cancelled))));
        eventually("the acquire is under way", || {
            proxies.iter().all(|proxy| proxy.held() > 0)
        });
        let begun = Instant::now();
        token.cancel();
        crew.join();
        assert!(begun.elapsed() < loosely(ms(1000)));
        for proxy in &proxies {
            proxy.pass();
        }
        eventually("the grants are undone", || is_gone(RED, &server, &name));
        assert_eq!(clients[0].stats().holds, 0);
        assert!(lock.try_lock_for(LONG).unwrap().is_some());
        eventually("free", || is_gone(RED, &server, &name));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Faults that lose every other lock
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_server_that_forgets_or_dies_does_not_lose_the_lock);
fn a_server_that_forgets_or_dies_does_not_lose_the_lock() {
    if is_refused() {
        return;
    }
    let (mut server, _companions) = (Server::start(), companions());
    let name = unique("one");
    let lease = loosely(ms(300));
    let (client, other) = (open_with_lease(&server, lease), open(&server));
    let (lock, theirs) = (Red::of(&client, &name), Red::of(&other, &name));
    for dies in [false, true] {
        let guard = lock.lock().unwrap();
        guard.settle();
        if dies {
            server.kill();
        } else {
            server.cli(&["FLUSHALL"]);
        }
        eventually("two servers keep the hold", || guard.nodes_held() == 2);
        let begun = Instant::now();
        while begun.elapsed() < 3 * lease / 2 {
            assert!(guard.is_valid(), "renewed by a majority");
            assert!(theirs.try_lock().unwrap().is_none());
            thread::sleep(ms(20));
        }
        assert!(guard.lost().try_recv().is_err() && lock.is_locked().unwrap());
        assert_eq!(guard.nodes_held(), 2);
        guard.unlock().unwrap();
        let next = theirs.try_lock_for(LONG).unwrap();
        next.unwrap().unlock().unwrap();
    }
    server.restart();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(client.stats().lost, 0);
    eventually("nothing is left", || nothing_is_left_of(RED, &server));
}

timed!(two_servers_that_forget_lose_the_lock);
fn two_servers_that_forget_lose_the_lock() {
    if is_refused() {
        return;
    }
    let (server, companions) = (Server::start(), companions());
    let client = open_with_lease(&server, loosely(ms(600)));
    // With the default lease no renewal restores the lock on the first server before the second one loses it.
    let unaware = open(&server);
    let servers = [&server, &companions[0], &companions[1]];
    let mut connections = servers.map(Server::connection);
    for kept in 0..3 {
        let name = unique("two");
        let mut forget = || {
            for (node, con) in connections.iter_mut().enumerate() {
                if node != kept {
                    redis::cmd("DEL").arg(&name).exec(con).unwrap();
                }
            }
        };
        let guard = Red::of(&client, &name).lock().unwrap();
        guard.settle();
        forget();
        let loss = guard.lost().recv_timeout(LONG).unwrap();
        assert_eq!((loss.reason, loss.name), (LossReason::Forced, name.clone()));
        assert!(!guard.is_valid() && guard.nodes_held() == 0);
        eventually("the third server's hold is released", || {
            is_gone(RED, &server, &name)
        });
        assert!(guard.unlock().is_err());

        // A loss that the unlock notices instead of a renewal.
        let guard = Red::of(&unaware, &name).lock().unwrap();
        guard.settle();
        forget();
        let lost = guard.unlock().unwrap_err();
        assert!(
            matches!(&lost, Error::Lost { name: named, reason: LossReason::Forced, .. } if *named == name),
            "{lost:?}"
        );
        eventually("nothing is left", || is_gone(RED, &server, &name));
    }
}

#[test]
fn closing_the_first_client_wakes_and_gives_back_on_every_server() {
    if is_refused() {
        return;
    }
    let (server, _companions) = (Server::start(), companions());
    let (held, busy) = (unique("held"), unique("busy"));
    let (client, other) = (open(&server), open(&server));
    let guard = Red::of(&client, &held).lock().unwrap();
    guard.settle();
    let theirs = Red::of(&other, &busy).lock().unwrap();
    let mut crew = Crew::new();
    for _ in 0..3 {
        let lock = Red::of(&client, &busy);
        crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Closed))));
    }
    crew.all_parked();
    client.close(Duration::from_secs(5)).unwrap();
    crew.join();
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Closed);
    eventually("the hold is released", || is_gone(RED, &server, &held));
    drop(guard);
    assert!(theirs.is_valid() && !is_gone(RED, &server, &busy));
}
