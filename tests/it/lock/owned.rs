//! Guards that belong to no thread, for every kind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use redlatch::kinds::{AnyKind, Read, Write};
use redlatch::{
    Client, DeadlockReason, Error, Guard, Handle, LossReason, OwnedGuard, OwnedMutexGuard, RedLock,
    Result, RwLock,
};

use crate::support::{
    Crew, Deployment, LONG, Server, always, deployment, elsewhere, eventually, gets_nothing, ms,
    open, scoped, timed, unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// Every kind
// ---------------------------------------------------------------------------------------------------------------------

/// A lock of any kind, or one side of a read-write lock.
trait Lock: Clone + Send + Sync + 'static {
    type Kind: AnyKind;

    /// The lock that a hold excludes: the lock itself, unless it can be shared.
    type Foe: Lock;

    /// The reason why a thread with a bound guard would wait for itself.
    const WOULD_WAIT: DeadlockReason = DeadlockReason::NotReentrant;

    fn foe(&self) -> Self::Foe;
    fn lock(&self) -> Result<Guard<Self::Kind>>;
    fn try_lock(&self) -> Result<Option<Guard<Self::Kind>>>;
    fn lock_owned(&self) -> Result<OwnedGuard<Self::Kind>>;
    fn try_lock_owned(&self) -> Result<Option<OwnedGuard<Self::Kind>>>;
    fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard<Self::Kind>>>;
    fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<OwnedGuard<Self::Kind>>>;
}

impl<K: AnyKind> Lock for Handle<K> {
    type Kind = K;
    type Foe = Self;

    fn foe(&self) -> Self {
        self.clone()
    }
    fn lock(&self) -> Result<Guard<K>> {
        self.lock()
    }
    fn try_lock(&self) -> Result<Option<Guard<K>>> {
        self.try_lock()
    }
    fn lock_owned(&self) -> Result<OwnedGuard<K>> {
        self.lock_owned()
    }
    fn try_lock_owned(&self) -> Result<Option<OwnedGuard<K>>> {
        self.try_lock_owned()
    }
    fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard<K>>> {
        self.try_lock_owned_for(wait)
    }
    fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<OwnedGuard<K>>> {
        self.try_lock_owned_until(instant)
    }
}

#[derive(Clone)]
struct Reading(RwLock);

#[derive(Clone)]
struct Writing(RwLock);

macro_rules! side {
    ($side:ident, $kind:ident, $would_wait:ident: $lock:ident $try:ident $owned:ident $try_owned:ident $owned_for:ident $owned_until:ident) => {
        impl Lock for $side {
            type Kind = $kind;
            type Foe = Writing;

            const WOULD_WAIT: DeadlockReason = DeadlockReason::$would_wait;

            fn foe(&self) -> Writing {
                Writing(self.0.clone())
            }
            fn lock(&self) -> Result<Guard<$kind>> {
                self.0.$lock()
            }
            fn try_lock(&self) -> Result<Option<Guard<$kind>>> {
                self.0.$try()
            }
            fn lock_owned(&self) -> Result<OwnedGuard<$kind>> {
                self.0.$owned()
            }
            fn try_lock_owned(&self) -> Result<Option<OwnedGuard<$kind>>> {
                self.0.$try_owned()
            }
            fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard<$kind>>> {
                self.0.$owned_for(wait)
            }
            fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<OwnedGuard<$kind>>> {
                self.0.$owned_until(instant)
            }
        }
    };
}

side!(Reading, Read, Reading: read try_read read_owned try_read_owned try_read_owned_for try_read_owned_until);

side!(Writing, Write, NotReentrant: write try_write write_owned try_write_owned try_write_owned_for try_write_owned_until);

/// Three servers and two processes, each with a client for every server. All kinds except `RedLock` use the first
/// server.
struct World {
    _servers: Vec<Server>,
    ours: Vec<Client>,
    theirs: Vec<Client>,
}

impl World {
    fn new() -> Self {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        Self {
            ours: servers.iter().map(open).collect(),
            theirs: servers.iter().map(open).collect(),
            _servers: servers,
        }
    }

    fn nothing_went_wrong(&self) {
        for client in self.ours.iter().chain(&self.theirs) {
            let stats = client.stats();
            assert_eq!((stats.lost, stats.releases_failed), (0, 0));
        }
    }
}

/// Runs a generic test for every kind at the same time, with a name and the lock of that name in each process.
macro_rules! for_each_kind {
    ($test:ident) => {
        let world = World::new();
        scoped(|scope| {
            for_each_kind!(scope, world, $test, reentrant_lock);
            for_each_kind!(scope, world, $test, mutex);
            for_each_kind!(scope, world, $test, fair_lock);
            for_each_kind!(scope, world, $test, fair_mutex);
            for_each_kind!(scope, world, $test, fenced_lock);
            for_each_kind!(scope, world, $test, spin_lock);
            for_each_kind!(
                scope,
                world,
                $test,
                "several",
                |clients: &[Client], name: &str| {
                    clients[0].multi_lock([format!("{name}:a"), format!("{name}:b")])
                }
            );
            for_each_kind!(
                scope,
                world,
                $test,
                "reading",
                |clients: &[Client], name: &str| { Reading(clients[0].rw_lock(name)) }
            );
            for_each_kind!(
                scope,
                world,
                $test,
                "writing",
                |clients: &[Client], name: &str| { Writing(clients[0].rw_lock(name)) }
            );
            if deployment() != Deployment::Cluster {
                for_each_kind!(
                    scope,
                    world,
                    $test,
                    "red",
                    |clients: &[Client], name: &str| { RedLock::new(clients, name).unwrap() }
                );
            }
        });
        world.nothing_went_wrong();
    };
    ($scope:ident, $world:ident, $test:ident, $maker:ident) => {
        for_each_kind!(
            $scope,
            $world,
            $test,
            stringify!($maker),
            |clients: &[Client], name: &str| { clients[0].$maker(name) }
        );
    };
    ($scope:ident, $world:ident, $test:ident, $kind:expr, $make:expr) => {
        let (world, make) = (&$world, $make);
        $scope.spawn(move || {
            let name = unique($kind);
            $test(
                [make(&world.ours, &name), make(&world.theirs, &name)],
                &name,
            );
        });
    };
}

fn is_released<L: Lock>(locks: [L; 2], what: &str) {
    let [ours, theirs] = &locks;
    for waits_for_redis in [false, true] {
        let guard = ours.lock_owned().unwrap();
        assert!(guard.is_valid() && guard.hold_count() == 1, "{what}");
        // A waiter in the same process and one in another process.
        let mut crew = Crew::new();
        for foe in [ours.foe(), theirs.foe()] {
            assert!(foe.try_lock_owned().unwrap().is_none(), "{what}");
            crew.spawn(move || drop(foe.lock_owned().unwrap()));
        }
        crew.all_parked();
        elsewhere(move || match waits_for_redis {
            true => guard.unlock().unwrap(),
            false => drop(guard),
        });
        crew.join();
    }
    eventually("it is free", || theirs.foe().try_lock().unwrap().is_some());
}

timed!(it_is_released_on_another_thread_and_the_next_gets_it);
fn it_is_released_on_another_thread_and_the_next_gets_it() {
    for_each_kind!(is_released);
}

fn waits_like_any_other<L: Lock>([lock, _]: [L; 2], what: &str) {
    let (guard, foe) = (lock.lock_owned().unwrap(), lock.foe());
    assert!(foe.try_lock_owned().unwrap().is_none(), "{what}");
    assert!(foe.try_lock().unwrap().is_none(), "{what}");
    gets_nothing(what, ms(100), || foe.try_lock_owned_for(ms(100)));
    let until = Instant::now() + ms(50);
    gets_nothing(what, ms(50), || foe.try_lock_owned_until(until));
    assert!(Instant::now() >= until);
    // The waiter holds the lock itself, and waits until another thread drops that guard.
    let (sender, receiver) = unbounded();
    let mut crew = Crew::new();
    crew.spawn(move || {
        sender.send(guard).unwrap();
        foe.lock_owned().unwrap().unlock().unwrap();
    });
    let guard = receiver.recv().unwrap();
    crew.all_parked();
    drop(guard);
    crew.join();
    assert!(lock.try_lock_owned_for(LONG).unwrap().is_some(), "{what}");
}

timed!(a_thread_that_has_it_waits_for_it_like_any_other);
fn a_thread_that_has_it_waits_for_it_like_any_other() {
    for_each_kind!(waits_like_any_other);
}

#[track_caller]
fn would_deadlock<T: std::fmt::Debug>(got: Result<T>, expected: DeadlockReason) {
    match got {
        Err(Error::WouldDeadlock { reason, .. }) => assert_eq!(reason, expected),
        other => panic!("{other:?}"),
    }
}

fn bound_would_wait_for_itself<L: Lock>([lock, _]: [L; 2], what: &str) {
    let (bound, foe) = (lock.lock().unwrap(), lock.foe());
    assert!(foe.try_lock_owned().unwrap().is_none(), "{what}");
    would_deadlock(foe.try_lock_owned_for(LONG), L::WOULD_WAIT);
    would_deadlock(foe.lock_owned(), L::WOULD_WAIT);
    drop(bound);
    eventually("it is free", || foe.try_lock_owned().unwrap().is_some());
}

timed!(a_thread_that_has_it_bound_would_wait_for_itself);
fn a_thread_that_has_it_bound_would_wait_for_itself() {
    for_each_kind!(bound_would_wait_for_itself);
}

// ---------------------------------------------------------------------------------------------------------------------
// One kind
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_thread_that_has_another_kind_would_wait_for_itself);
fn a_thread_that_has_another_kind_would_wait_for_itself() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("other");
    let fair = client.fair_lock(&name).lock().unwrap();
    let mutex = client.mutex(&name);
    would_deadlock(mutex.try_lock_owned_for(LONG), DeadlockReason::OtherKind);
    drop(fair);
    // An owned hold belongs to no thread, so the thread waits for it.
    let fair = client.fair_lock(&name).lock_owned().unwrap();
    assert!(mutex.try_lock_owned_for(ms(50)).unwrap().is_none());
    drop(fair);
    drop(mutex.lock_owned().unwrap());
}

timed!(a_token_crosses_threads_and_rises_with_each_hold);
fn a_token_crosses_threads_and_rises_with_each_hold() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("ledger");
    let mut last = 0;
    for n in 0..8 {
        let lock = [&client, &other][n % 2].fenced_lock(&name);
        let guard = lock.lock_owned().unwrap();
        let token = guard.token();
        let token_there = elsewhere(move || {
            let token_there = guard.token();
            assert!(guard.is_valid());
            guard.unlock().unwrap();
            token_there
        });
        assert_eq!(token, token_there);
        assert!(token_there > last, "{token_there} after {last}");
        last = token_there;
    }
    // Waiters of one process draw tokens in advance, a different one for each.
    let (sender, receiver) = unbounded();
    let mut crew = Crew::new();
    let held = client.fenced_lock(&name).lock_owned().unwrap();
    for _ in 0..6 {
        let (lock, sender) = (client.fenced_lock(&name), sender.clone());
        crew.spawn(move || sender.send(lock.lock_owned().unwrap()).unwrap());
    }
    drop(sender);
    crew.all_parked();
    let mut last = held.token();
    drop(held);
    let mut grants = 0;
    for guard in receiver {
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        grants += 1;
    }
    crew.join();
    assert_eq!(grants, 6);
}

timed!(a_write_guard_is_downgraded_on_another_thread);
fn a_write_guard_is_downgraded_on_another_thread() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("prices");
    let (ours, theirs) = (client.rw_lock(&name), other.rw_lock(&name));
    let writing = ours.write_owned().unwrap();
    assert!(theirs.try_read().unwrap().is_none());
    let reading = elsewhere(move || writing.downgrade().unwrap());
    assert!(!ours.is_write_locked().unwrap() && ours.is_read_locked().unwrap());
    assert!(theirs.try_read().unwrap().is_some());
    assert!(theirs.try_write_owned().unwrap().is_none());
    assert!(reading.is_valid() && reading.hold_count() == 1);
    assert_eq!(ours.read_hold_count(), 0, "it belongs to no thread");
    elsewhere(move || reading.unlock().unwrap());
    assert!(theirs.try_write_owned_for(LONG).unwrap().is_some());
    assert_eq!((client.stats().lost, other.stats().lost), (0, 0));
}

timed!(read_guards_share_a_hold_and_each_keeps_writers_out);
fn read_guards_share_a_hold_and_each_keeps_writers_out() {
    let server = Server::start();
    let client = Client::open(crate::support::settings(&server).tenure(ms(1_000))).unwrap();
    let name = unique("shared");
    let lock = client.rw_lock(&name);
    let first = lock.read_owned().unwrap();
    let second = lock.read_owned().unwrap();
    assert_eq!(first.owner(), second.owner());
    assert_eq!((first.hold_count(), second.hold_count()), (1, 1));
    elsewhere(move || drop(first));
    assert!(second.is_valid() && lock.try_write_owned().unwrap().is_none());
    elsewhere(move || drop(second));
    assert!(lock.try_write_owned_for(LONG).unwrap().is_some());
    eventually("nothing is left", || server.keys().is_empty());
}

// A waiting writer lets no new reader pass, and an owned hold always counts as new.
timed!(a_reader_that_wants_an_owned_hold_as_well_would_wait_for_itself);
fn a_reader_that_wants_an_owned_hold_as_well_would_wait_for_itself() {
    let server = Server::start();
    let client = open(&server);
    let lock = client.rw_lock(unique("behind"));
    let bound = lock.read().unwrap();
    drop(lock.read_owned().unwrap());
    let mut crew = Crew::new();
    let writer = lock.clone();
    crew.spawn(move || drop(writer.write_owned().unwrap()));
    crew.all_parked();
    assert!(lock.try_read_owned().unwrap().is_none());
    would_deadlock(lock.try_read_owned_for(LONG), DeadlockReason::NotReentrant);
    drop(bound);
    crew.join();
    // A thread that writes and wants to read with an owned guard.
    let bound = lock.write().unwrap();
    would_deadlock(lock.try_read_owned_for(LONG), DeadlockReason::NotReentrant);
    drop(bound);
    drop(lock.read_owned().unwrap());
}

timed!(threads_of_a_pool_exclude_each_other_whoever_drops);
fn threads_of_a_pool_exclude_each_other_whoever_drops() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let clients = [open(&server), open(&server)];
    let name = unique("pool");
    let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (sender, receiver) = unbounded::<OwnedMutexGuard>();
    scoped(|scope| {
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
    let owner = kept.owner().to_owned();
    assert_eq!(server.hgetall(kept.name()), [(owner, "1".to_owned())]);
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
