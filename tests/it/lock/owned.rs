//! Guards of a mutex that belong to no thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{DeadlockReason, Error, LossReason, OwnedMutexGuard};

use crate::support::{
    Crew, LONG, Server, always, eventually, gets_nothing, ms, open, timed, unique,
};

timed!(it_is_dropped_on_another_thread_and_the_next_gets_it);
fn it_is_dropped_on_another_thread_and_the_next_gets_it() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("moves");
    let guard = client.mutex(&name).lock_owned().unwrap();
    let owner = guard.owner().to_owned();
    assert_eq!(server.hgetall(&name), [(owner, "1".to_owned())]);
    // Of its own process and of another one, one after the other.
    let mut crew = Crew::new();
    let (n, mutex) = (name.clone(), client.mutex(&name));
    crew.spawn(move || drop(mutex.lock().unwrap()));
    crew.spawn(move || drop(other.fair_lock(&n).lock().unwrap()));
    crew.all_parked();
    thread::spawn(move || drop(guard)).join().unwrap();
    crew.join();
    eventually("it is free", || !server.exists(&name));
    let stats = client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0));
}

timed!(a_thread_that_has_it_waits_for_it_like_any_other);
fn a_thread_that_has_it_waits_for_it_like_any_other() {
    let server = Server::start();
    let client = open(&server);
    let mutex = client.mutex(unique("again"));
    let guard = mutex.lock_owned().unwrap();
    assert!(mutex.try_lock_owned().unwrap().is_none());
    assert!(mutex.try_lock().unwrap().is_none());
    gets_nothing("an owned one", ms(100), || {
        mutex.try_lock_owned_for(ms(100))
    });
    gets_nothing("another", ms(100), || mutex.try_lock_for(ms(100)));
    let until = Instant::now() + ms(50);
    assert!(mutex.try_lock_owned_until(until).unwrap().is_none());
    assert!(Instant::now() >= until);
    assert_eq!((mutex.hold_count(), guard.hold_count()), (0, 1));
    // It waits until another thread drops the one that it had.
    let (sender, receiver) = channel::<OwnedMutexGuard>();
    sender.send(guard).unwrap();
    let mut crew = Crew::new();
    let waits = mutex.clone();
    crew.spawn(move || waits.lock_owned().unwrap().unlock().unwrap());
    crew.all_parked();
    thread::spawn(move || drop(receiver.recv().unwrap()));
    crew.join();
    assert!(mutex.try_lock_for(LONG).unwrap().is_some());
}

timed!(whoever_has_it_bound_would_wait_for_itself);
fn whoever_has_it_bound_would_wait_for_itself() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("bound");
    let mutex = client.mutex(&name);
    let bound = mutex.lock().unwrap();
    assert!(mutex.try_lock_owned().unwrap().is_none());
    let err = mutex.lock_owned().unwrap_err();
    assert!(
        matches!(
            err,
            Error::WouldDeadlock {
                reason: DeadlockReason::NotReentrant,
                ..
            }
        ),
        "{err}"
    );
    drop(bound);
    let fair = client.fair_lock(&name).lock().unwrap();
    let err = mutex.lock_owned().unwrap_err();
    assert!(
        matches!(
            err,
            Error::WouldDeadlock {
                reason: DeadlockReason::OtherKind,
                ..
            }
        ),
        "{err}"
    );
    drop(fair);
    drop(mutex.lock_owned().unwrap());
}

timed!(threads_of_a_pool_exclude_each_other_whoever_drops);
fn threads_of_a_pool_exclude_each_other_whoever_drops() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let clients = [open(&server), open(&server)];
    let name = unique("pool");
    let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (sender, receiver) = crossbeam_channel::unbounded::<OwnedMutexGuard>();
    thread::scope(|scope| {
        for n in 0..6 {
            let (mutex, sender) = (clients[n % 2].mutex(&name), sender.clone());
            let (inside, turns) = (&inside, &turns);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let take = || match (n + round) % 3 {
                        0 => mutex.try_lock_owned_for(LONG).unwrap().unwrap(),
                        _ => mutex.lock_owned().unwrap(),
                    };
                    let guard = take();
                    always(inside.fetch_add(1, Ordering::SeqCst) == 0, "two are inside");
                    turns.fetch_add(1, Ordering::SeqCst);
                    sender.send(guard).unwrap();
                }
            });
        }
        drop(sender);
        for _ in 0..2 {
            let (receiver, inside) = (receiver.clone(), &inside);
            scope.spawn(move || {
                for guard in receiver {
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(turns.load(Ordering::SeqCst), 6 * ROUNDS);
    eventually("it is free", || !server.exists(&name));
}

timed!(it_is_renewed_lost_and_closed_like_any_hold);
fn it_is_renewed_lost_and_closed_like_any_hold() {
    let server = Server::start();
    let client = open(&server);
    let (kept, lost, name) = (unique("kept"), unique("lost"), unique("closed"));
    let guards = [&kept, &lost, &name].map(|name| client.mutex(name).lock_owned().unwrap());
    let [kept, lost, closed] = guards;
    assert!(client.mutex(lost.name()).force_unlock().unwrap());
    let loss = lost.lost().recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    assert!(matches!(lost.unlock(), Err(Error::Lost { .. })));
    kept.unlock().unwrap();
    client.close(Duration::from_secs(5)).unwrap();
    let loss = closed.lost().recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(loss.reason, LossReason::Closed);
    assert!(!closed.is_valid() && !server.exists(&name));
}
