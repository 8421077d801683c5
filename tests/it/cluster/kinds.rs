//! Every kind of lock in a cluster, with names at every master.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;
use redlatch::{Client, Error, ReplicaAck, Result};

use crate::support::cluster::Cluster;
use crate::support::{
    BY_MESSAGE, Crew, FENCED_LOCK, KINDS, Kind, LONG, MUTEX, Notified, REENTRANT_LOCK, WRITING,
    always, beside, eventually, for_each_kind, loosely, scoped, timed,
};

fn threads_and_clients_exclude_each_other(kind: Kind, cluster: &Cluster) {
    const ROUNDS: usize = 8;
    let clients = [cluster.open(), cluster.open()];
    scoped(|scope| {
        for master in 0..3 {
            let name = cluster.name_at(master, "excl");
            let clients = &clients;
            scope.spawn(move || {
                let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let last_token = AtomicU64::new(0);
                scoped(|scope| {
                    for thread in 0..4 {
                        let lock = kind.of(&clients[thread % 2], &name);
                        let (inside, turns, last_token) = (&inside, &turns, &last_token);
                        scope.spawn(move || {
                            for round in 0..ROUNDS {
                                let guard = match (thread + round) % 2 {
                                    0 => lock.lock().unwrap(),
                                    _ => lock.try_lock_for(LONG).unwrap().unwrap(),
                                };
                                let inside_before = inside.fetch_add(1, Ordering::SeqCst);
                                always(inside_before == 0, "two are inside");
                                let token_before = last_token.swap(guard.token(), Ordering::SeqCst);
                                always(
                                    !kind.tokens || guard.token() > token_before,
                                    "a token again",
                                );
                                thread::yield_now();
                                inside.fetch_sub(1, Ordering::SeqCst);
                                turns.fetch_add(1, Ordering::SeqCst);
                                if round % 2 == 0 {
                                    guard.unlock().unwrap();
                                }
                            }
                        });
                    }
                });
                assert_eq!(turns.load(Ordering::SeqCst), 4 * ROUNDS);
                eventually("it is free", || !cluster.exists(&name));
            });
        }
    });
    for client in clients {
        let stats = client.stats();
        let wrong = (stats.lost, stats.releases_failed, stats.releases_of_lost);
        assert_eq!(wrong, (0, 0, 0), "{stats:?}");
        client.close(LONG).unwrap();
    }
}

/// A client waits with `wait` for what `held` keeps from it, and is granted it because of a message.
fn is_woken<H, T>(
    name: &str,
    waiter: &Client,
    is_waiting: impl Fn() -> bool,
    held: H,
    wait: impl FnOnce(&Client, &str) -> Result<T> + Send + 'static,
) {
    let wakes = waiter.stats().wakes;
    let mut crew = Crew::new();
    let (client, own_name, (got, has)) = (waiter.clone(), name.to_owned(), bounded(1));
    crew.spawn(move || {
        drop(wait(&client, &own_name).unwrap());
        got.send(Instant::now()).unwrap();
    });
    eventually("it listens", is_waiting);
    crew.all_parked();
    let freed = Instant::now();
    drop(held);
    crew.join();
    let took = has.recv().unwrap().saturating_duration_since(freed);
    assert!(took < loosely(BY_MESSAGE), "{name} took {took:?}");
    let stats = waiter.stats();
    assert!(stats.wakes > wakes, "{name}: {stats:?}");
    assert_eq!(stats.missed_messages, 0, "{name}: {stats:?}");
}

fn a_waiter_is_woken(kind: Kind, cluster: &Cluster) {
    let Notified::All(prefix, _) = kind.notified else {
        return;
    };
    let [holder, waiter] = [cluster.open(), cluster.open()];
    for master in 0..3 {
        let name = cluster.name_at(master, "woken");
        let channel = beside(prefix, &name);
        let held = kind.of(&holder, &name).lock().unwrap();
        is_woken(
            &name,
            &waiter,
            || cluster.listeners(&name, &channel) == 1,
            held,
            move |client, name| kind.of(client, name).lock().map(drop),
        );
    }
}

timed!(locks_exclude_wherever_their_names_are);
fn locks_exclude_wherever_their_names_are() {
    let cluster = Cluster::shared();
    let exclusive: Vec<_> = KINDS
        .into_iter()
        .filter(|kind| kind.foe.is_none())
        .collect();
    for_each_kind(&exclusive, |kind| {
        threads_and_clients_exclude_each_other(kind, cluster)
    });
}

timed!(waiters_are_woken_wherever_their_names_are);
fn waiters_are_woken_wherever_their_names_are() {
    let cluster = Cluster::shared();
    for_each_kind(&[REENTRANT_LOCK, MUTEX, FENCED_LOCK, WRITING], |kind| {
        a_waiter_is_woken(kind, cluster)
    });
}

timed!(the_first_in_line_is_woken_on_a_channel_of_its_own);
fn the_first_in_line_is_woken_on_a_channel_of_its_own() {
    let cluster = Cluster::shared();
    let [holder, waiter] = [cluster.open(), cluster.open()];
    for master in 0..3 {
        let name = cluster.name_at(master, "fair");
        let held = holder.fair_lock(&name).lock().unwrap();
        is_woken(
            &name,
            &waiter,
            || {
                waiter.stats().subscriptions == 1 && {
                    let queue = beside("redisson_lock_queue", &name);
                    let line: Vec<String> = cluster.ask(&name, &["LRANGE", &queue, "0", "-1"]);
                    let channel = |owner: &String| {
                        format!("{}:{owner}", beside("redisson_lock__channel", &name))
                    };
                    line.first()
                        .is_some_and(|first| cluster.listeners(&name, &channel(first)) == 1)
                }
            },
            held,
            |client, name| client.fair_lock(name).lock().map(drop),
        );
    }
}

timed!(readers_share_and_writers_wait);
fn readers_share_and_writers_wait() {
    let cluster = Cluster::shared();
    let [client, other] = [cluster.open(), cluster.open()];
    for master in 0..3 {
        let name = cluster.name_at(master, "rw");
        let (one, two) = (client.rw_lock(&name).read().unwrap(), other.rw_lock(&name));
        let shared = two.try_read().unwrap().unwrap();
        shared.unlock().unwrap();
        assert!(two.try_write().unwrap().is_none());
        let channel = beside("redisson_rwlock", &name);
        is_woken(
            &name,
            &other,
            || cluster.listeners(&name, &channel) == 1,
            one,
            |client, name| client.rw_lock(name).write().map(drop),
        );
    }
}

timed!(permits_come_back_and_latches_open);
fn permits_come_back_and_latches_open() {
    let cluster = Cluster::shared();
    let [client, other] = [cluster.open(), cluster.open()];
    for master in 0..3 {
        let name = cluster.name_at(master, "permits");
        let semaphore = client.semaphore(&name);
        assert!(semaphore.try_set_permits(1).unwrap());
        let channel = beside("redisson_sc", &name);
        is_woken(
            &name,
            &other,
            || cluster.listeners(&name, &channel) == 1,
            semaphore.acquire().unwrap(),
            |client, name| client.semaphore(name).acquire().map(drop),
        );
        let name = cluster.name_at(master, "leased");
        let semaphore = client.expirable_semaphore(&name);
        assert!(semaphore.try_set_permits(1).unwrap());
        let channel = beside("redisson_sc", &name);
        is_woken(
            &name,
            &other,
            || cluster.listeners(&name, &channel) == 1,
            semaphore.acquire().unwrap(),
            |client, name| client.expirable_semaphore(name).acquire().map(drop),
        );
        let name = cluster.name_at(master, "latch");
        let latch = client.latch(&name);
        assert!(latch.try_set_count(1).unwrap());
        let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
        struct Counts<'a>(&'a redlatch::Latch);
        impl Drop for Counts<'_> {
            fn drop(&mut self) {
                self.0.count_down().unwrap();
            }
        }
        is_woken(
            &name,
            &other,
            || cluster.listeners(&name, &channel) == 1,
            Counts(&latch),
            |client, name| client.latch(name).wait(),
        );
    }
}

timed!(names_of_different_masters_are_locked_together);
fn names_of_different_masters_are_locked_together() {
    let cluster = Cluster::shared();
    let [client, other] = [cluster.open(), cluster.open()];
    let names = [0, 1, 2].map(|master| cluster.name_at(master, "multi"));
    let both = client.multi_lock(&names);
    for _ in 0..2 {
        let guard = both.lock().unwrap();
        for name in &names {
            assert!(other.mutex(name).try_lock().unwrap().is_none(), "{name}");
        }
        scoped(|scope| {
            let waiting = scope.spawn(|| other.multi_lock(&names).lock().map(drop));
            eventually("it listens", || other.stats().subscriptions > 0);
            guard.unlock().unwrap();
            waiting.join().unwrap().unwrap();
        });
        for name in &names {
            eventually("it is free", || !cluster.exists(name));
        }
    }
}

timed!(the_replicas_of_each_master_acknowledge);
fn the_replicas_of_each_master_acknowledge() {
    let cluster = Cluster::shared();
    let open = |ack| Client::open(cluster.config().replica_ack(ack)).unwrap();
    let (one, two) = (open(ReplicaAck::AtLeast(1)), open(ReplicaAck::AtLeast(2)));
    for master in 0..3 {
        let name = cluster.name_at(master, "ack");
        one.mutex(&name).lock().unwrap().unlock().unwrap();
        match two.mutex(&name).lock() {
            Err(Error::NotReplicated { acked, needed, .. }) => assert_eq!((acked, needed), (1, 2)),
            other => panic!("{other:?}"),
        }
        eventually("it is undone", || !cluster.exists(&name));
    }
}

timed!(holds_at_every_master_are_renewed_and_given_back_at_the_end);
fn holds_at_every_master_are_renewed_and_given_back_at_the_end() {
    let cluster = Cluster::shared();
    let lease = std::time::Duration::from_millis(900);
    let client = Client::open(cluster.config().lease(lease)).unwrap();
    let names: Vec<_> = (0..9).map(|n| cluster.name_at(n % 3, "kept")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| client.mutex(name).lock().unwrap())
        .collect();
    eventually("each is renewed", || client.stats().renewals >= 27);
    assert!(
        held.iter().all(|guard| guard.is_valid()),
        "{:?}",
        client.stats()
    );
    assert_eq!(client.stats().lost, 0);
    client.close(LONG).unwrap();
    for name in &names {
        assert!(!cluster.exists(name), "{name}");
    }
}
