//! Locks of different kinds under one name. Kinds that use the same key in the same way exclude each other; all others
//! report an error.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use redlatch::{Client, Error, LossReason, RwLock};

use crate::support::{
    Crew, FAIR_LOCK, FAIR_MUTEX, FENCED_LOCK, KINDS, Kind, LONG, MUTEX, Queue, READING,
    REENTRANT_LOCK, SPIN_LOCK, Server, WRITING, always, elsewhere, eventually, for_each,
    for_each_kind, increment, is_held_by_stranger, line, loosely, ms, nothing_is_left_of, open,
    open_with_lease, scoped, stranger_holds, timed, unique, verdicts, waited_for_by,
};

/// A waiter that gets no message polls at least once a second.
const BY_ASKING: Duration = ms(2_500);

/// The lease of holds that are lost: long enough for a busy machine to renew.
const LEASE: Duration = ms(900);

/// The kinds that share one key.
const ALIKE: [Kind; 4] = [REENTRANT_LOCK, FAIR_LOCK, FENCED_LOCK, SPIN_LOCK];

/// Runs a test for every ordered pair of kinds that share one key, a few pairs at a time.
#[track_caller]
fn for_each_pair(test: fn(Kind, Kind)) {
    for_each_kind(&ALIKE, |one| {
        for other in ALIKE {
            eprintln!("{} beside {}", one.title, other.title);
            test(one, other);
        }
    });
}

fn are_one_kind(a: Kind, b: Kind) -> bool {
    a.title == b.title
}

/// Whether only those keys are left that stay after either kind.
fn no_trace(a: Kind, b: Kind, server: &Server) -> bool {
    let keys = server.keys_but_requests();
    keys.iter().all(|key| a.stays(key) || b.stays(key))
}

// ---------------------------------------------------------------------------------------------------------------------
// One key
// ---------------------------------------------------------------------------------------------------------------------

fn one_keeps_the_other_out(a: Kind, b: Kind) {
    let server = Server::start();
    let (name, ours, theirs) = (unique("pair"), open(&server), open(&server));
    let held = a.of(&ours, &name).lock().unwrap();
    let fields = a.fields(held.owner(), 1);
    // A handle of another process, and one of this process that does not know that its thread holds the lock under the
    // other kind.
    for other in [b.of(&theirs, &name), b.of(&ours, &name)] {
        if are_one_kind(a, b) && other.is_owned_by_current_thread() {
            continue;
        }
        assert!(other.try_lock().unwrap().is_none());
        eventually("the lock is not granted", || {
            match other.try_lock_for(ms(40)) {
                Ok(guard) => {
                    assert!(guard.is_none());
                    true
                }
                // The holding thread would wait for itself.
                Err(Error::WouldDeadlock { .. }) => true,
                Err(err) => !err.is_retryable(), // a busy machine may need longer for a round trip
            }
        });
        assert!(other.is_locked().unwrap() && other.remaining_lease().unwrap().is_some());
        assert!(!other.is_owned_by_current_thread() && other.hold_count() == 0);
    }
    assert_eq!(server.hgetall(&name), fields);
    eventually("the queue is empty", || line(&server, &name).is_empty());
    assert!(held.is_valid() && held.hold_count() == 1);

    // Waiters of the other kind are granted the lock after the release, by a message or by polling.
    let (sender, received) = unbounded();
    let mut crew = Crew::new();
    for client in [&ours, &theirs] {
        let (lock, sender) = (b.of(client, &name), sender.clone());
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            sender.send((Instant::now(), guard.token())).unwrap();
            guard.unlock().unwrap();
        });
    }
    let asks = if are_one_kind(a, b) && b.queue == Queue::Process {
        1
    } else {
        2
    };
    waited_for_by(b, &server, asks);
    crew.all_parked();
    let (freed, token_before) = (Instant::now(), held.token());
    held.unlock().unwrap();
    for _ in 0..2 {
        let (granted, token) = received.recv_timeout(LONG).unwrap();
        assert!(
            granted - freed < loosely(BY_ASKING),
            "{:?}",
            granted - freed
        );
        assert!(!b.tokens || token > token_before);
    }
    crew.join();
    eventually("nothing is left", || no_trace(a, b, &server));
    assert_eq!(ours.stats().lost + theirs.stats().lost, 0);
    eventually("no entry is left", || {
        ours.stats().names + theirs.stats().names == 0
    });
}

timed!(kinds_with_one_key_keep_each_other_out);
fn kinds_with_one_key_keep_each_other_out() {
    for_each_pair(one_keeps_the_other_out);
}

/// A thread that holds the lock as `a` and waits for it as `b`.
fn one_waits_for_no_hold_of_its_own(a: Kind, b: Kind) {
    if are_one_kind(a, b) {
        return;
    }
    let server = Server::start();
    let (name, client) = (unique("own"), open(&server));
    let (held, other) = (a.of(&client, &name).lock().unwrap(), b.of(&client, &name));
    for verdict in [
        other.try_lock_for(LONG).map(drop),
        other.try_lock_until(Instant::now() + LONG).map(drop),
        other.lock().map(drop),
        other.with(|_| ()),
    ] {
        let received =
            matches!(&verdict, Err(Error::WouldDeadlock { name: named, .. }) if *named == name);
        assert!(received, "{verdict:?}");
    }
    // A single attempt does not wait, so it cannot wait for itself.
    assert!(other.try_lock().unwrap().is_none());
    assert!(held.is_valid() && held.hold_count() == 1);
    eventually("the queue is empty", || line(&server, &name).is_empty());
    // A different thread may wait, even while the holder's own attempt fails.
    let (sender, received) = unbounded();
    let mut crew = Crew::new();
    crew.spawn({
        let other = other.clone();
        move || sender.send(other.lock().map(drop)).unwrap()
    });
    waited_for_by(b, &server, 1);
    assert!(matches!(other.lock(), Err(Error::WouldDeadlock { .. })));
    held.unlock().unwrap();
    received.recv_timeout(LONG).unwrap().unwrap();
    crew.join();
    // A hold that was lost does not count as the thread's own any more.
    let lost = a.of(&client, &name).lease(loosely(ms(200))).lock().unwrap();
    eventually("the lease ends", || !lost.is_valid());
    drop(other.try_lock_for(LONG).unwrap().unwrap());
    drop(lost);
    eventually("nothing is left", || no_trace(a, b, &server));
}

timed!(a_thread_that_has_it_as_another_kind_would_wait_for_itself);
fn a_thread_that_has_it_as_another_kind_would_wait_for_itself() {
    for_each_pair(one_waits_for_no_hold_of_its_own);
}

// No kind releases, renews or undoes a hold of another kind.
fn one_does_not_touch_what_is_the_others(a: Kind, b: Kind) {
    let server = Server::start();
    let (name, ours, theirs) = (unique("touch"), open(&server), open(&server));
    let (lock, other) = (a.of(&ours, &name), b.of(&theirs, &name));
    let lost = lock.lease(loosely(ms(300))).lock().unwrap();
    // The lease ends, and the other kind acquires the lock.
    let held = other.try_lock_for(LONG).unwrap().unwrap();
    let fields = b.fields(held.owner(), 1);
    assert!(!lost.is_valid());
    drop(lost);
    let lost = a.of(&ours, &unique("aside")).lock().unwrap();
    server.cli(&["DEL", lost.name()]);
    assert!(matches!(lost.unlock(), Err(Error::Lost { .. })));
    assert_eq!(server.hgetall(&name), fields);
    assert!(held.is_valid() && server.pttl(&name) > 20_000);
    // The holder does not know of its loss, so its release finds a hold of the other kind.
    held.unlock().unwrap();
    let unaware = a.of(&ours, &name).lock().unwrap();
    server.cli(&["DEL", &name]);
    let held = other.try_lock().unwrap().unwrap();
    let fields = b.fields(held.owner(), 1);
    match unaware.unlock() {
        Err(Error::Lost {
            reason: LossReason::TakenOver,
            ..
        }) => {}
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(server.hgetall(&name), fields);
    held.unlock().unwrap();
    assert!(no_trace(a, b, &server));
}

timed!(no_kind_touches_what_another_holds);
fn no_kind_touches_what_another_holds() {
    for_each_pair(one_does_not_touch_what_is_the_others);
}

fn one_is_forced_open_by_the_other(a: Kind, b: Kind) {
    let server = Server::start();
    let lease = loosely(LEASE);
    let (name, ours) = (unique("force"), open_with_lease(&server, lease));
    let guard = a.of(&ours, &name).lock().unwrap();
    assert!(b.of(&ours, &name).force_unlock().unwrap());
    assert!(!b.of(&ours, &name).force_unlock().unwrap());
    // At once or at the next renewal. Handles of different kinds share no state, even in one process.
    let loss = guard.lost().recv_timeout(lease).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    assert!(b.of(&ours, &name).try_lock().unwrap().is_some());
}

timed!(every_kind_can_be_forced_open_by_another);
fn every_kind_can_be_forced_open_by_another() {
    for_each_pair(one_is_forced_open_by_the_other);
}

/// The shared state of threads that lock one name as different kinds.
struct Count<'a> {
    server: &'a Server,
    name: String,
    counter: String,
    inside: AtomicUsize,
    grants: AtomicU64,
    last_token: AtomicU64,
    done: AtomicBool,
}

impl Count<'_> {
    fn up(&self, kind: Kind, client: &Client, wait: Option<Duration>) {
        let mut con = self.server.connection();
        let lock = kind.of(client, &self.name);
        while !self.done.load(Ordering::SeqCst) {
            let guard = match wait {
                Some(wait) => lock.try_lock_for(wait),
                None => lock.lock().map(Some),
            };
            let guard = match guard {
                Ok(Some(guard)) => guard,
                Ok(None) => continue,
                // On a busy machine a round trip may take longer than the wait.
                Err(err) if wait.is_some() && err.is_retryable() => continue,
                Err(err) => panic!("{err:?}"),
            };
            let inside = self.inside.fetch_add(1, Ordering::SeqCst);
            always(inside == 0, "two are inside");
            increment(&mut con, &self.counter);
            if kind.tokens {
                let last = self.last_token.swap(guard.token(), Ordering::SeqCst);
                always(guard.token() > last, "a token again");
            }
            self.grants.fetch_add(1, Ordering::SeqCst);
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

timed!(all_kinds_together_count_exactly);
fn all_kinds_together_count_exactly() {
    let server = Server::start();
    let clients = [open(&server), open(&server)];
    let count = Count {
        server: &server,
        name: unique("all"),
        counter: unique("counter"),
        inside: AtomicUsize::new(0),
        grants: AtomicU64::new(0),
        last_token: AtomicU64::new(0),
        done: AtomicBool::new(false),
    };
    scoped(|scope| {
        let count = &count;
        for client in &clients {
            for wait in [None, Some(ms(30))] {
                for kind in ALIKE {
                    scope.spawn(move || count.up(kind, client, wait));
                }
            }
        }
        // Do not wait until each thread has had a turn, since kinds with different queues promise no order among each
        // other.
        eventually("there were many turns", || {
            count.grants.load(Ordering::SeqCst) >= 200
        });
        count.done.store(true, Ordering::SeqCst);
    });
    let grants = count.grants.into_inner();
    always(
        server.ask::<u64>(&["GET", &count.counter]) == grants,
        "a turn is lost",
    );
    server.cli(&["DEL", &count.counter]);
    eventually("nothing is left", || {
        nothing_is_left_of(FENCED_LOCK, &server)
    });
    for client in &clients {
        let stats = client.stats();
        assert_eq!((stats.lost, stats.releases_failed), (0, 0));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The reentrant and the non-reentrant handle of one kind
// ---------------------------------------------------------------------------------------------------------------------

/// The reentrant and the non-reentrant handle of one family are the same lock, even for the thread that holds it.
fn are_one_lock(lock: Kind, mutex: Kind) {
    let server = Server::start();
    let client = open(&server);
    let name = unique("family");
    let (lock, mutex) = (lock.of(&client, &name), mutex.of(&client, &name));
    let held = lock.lock().unwrap();
    assert!(mutex.is_owned_by_current_thread() && mutex.hold_count() == 1);
    for verdict in [
        mutex.lock().map(Some),
        mutex.try_lock(),
        mutex.try_lock_for(LONG),
    ] {
        assert!(
            matches!(&verdict, Err(Error::WouldDeadlock { name: named, .. }) if *named == name),
            "{verdict:?}"
        );
    }
    elsewhere(|| assert!(mutex.try_lock().unwrap().is_none()));
    held.unlock().unwrap();
    let held = mutex.lock().unwrap();
    let again = lock.lock().unwrap();
    assert_eq!(again.owner(), held.owner());
    assert_eq!((lock.hold_count(), mutex.hold_count()), (2, 2));
    held.unlock().unwrap();
    assert!(server.exists(&name));
    again.unlock().unwrap();
    assert_eq!(client.stats().names, 1);
    assert_eq!(server.dbsize(), 0);
}

timed!(a_mutex_and_the_reentrant_lock_of_its_name_are_one_lock);
fn a_mutex_and_the_reentrant_lock_of_its_name_are_one_lock() {
    are_one_lock(REENTRANT_LOCK, MUTEX);
    are_one_lock(FAIR_LOCK, FAIR_MUTEX);
}

// ---------------------------------------------------------------------------------------------------------------------
// Read-write locks
// ---------------------------------------------------------------------------------------------------------------------

/// While `a` is held, every operation of `b` fails with `WrongType`, changes nothing and does not wait.
fn is_of_another_type_than(a: Kind, b: Kind) {
    let server = Server::start();
    let name = unique("type");
    let lease = loosely(LEASE);
    let (ours, theirs) = (open_with_lease(&server, lease), open(&server));
    let guard = a.of(&ours, &name).lock().unwrap();
    let fields = server.hgetall(&name);
    let begun = Instant::now();
    for other in [b.of(&theirs, &name), b.of(&ours, &name)] {
        for (verb, verdict) in verdicts(&other) {
            match verdict {
                Err(Error::WrongType { name: named, .. }) => assert_eq!(named, name),
                outcome => panic!("{verb} of {}: {outcome:?}", b.title),
            }
        }
        assert!(!other.is_owned_by_current_thread() && other.hold_count() == 0);
        assert!(
            ms(server.pttl(&name).unsigned_abs()) <= lease,
            "the lease was not extended"
        );
    }
    assert!(begun.elapsed() < loosely(LONG / 4), "{:?}", begun.elapsed());
    assert_eq!(server.hgetall(&name), fields);
    let mut keys = server.keys();
    keys.retain(|key| !a.stays(key));
    let mut expected = a.keys(&name, guard.owner());
    expected.retain(|key| !a.stays(key));
    assert_eq!(keys, expected, "no key was added");
    // The hold itself is not affected.
    let renewals = ours.stats().renewals;
    eventually("renewals go on", || ours.stats().renewals > renewals + 1);
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    assert!(nothing_is_left_of(a, &server));
    // After the release the name works for the other kind.
    b.of(&theirs, &name).lock().unwrap().unlock().unwrap();
}

timed!(a_read_write_lock_and_any_other_lock_are_of_different_types);
fn a_read_write_lock_and_any_other_lock_are_of_different_types() {
    let others: Vec<_> = KINDS
        .into_iter()
        .filter(|kind| kind.mode.is_none())
        .collect();
    for_each_kind(&others, |kind| {
        for side in [READING, WRITING] {
            is_of_another_type_than(kind, side);
            is_of_another_type_than(side, kind);
        }
    });
}

timed!(a_read_write_lock_says_so_when_asked_about_another);
fn a_read_write_lock_says_so_when_asked_about_another() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("ask");
    let guard = client.reentrant_lock(&name).lock().unwrap();
    let lock: RwLock = client.rw_lock(&name);
    for asked in [lock.is_read_locked(), lock.is_write_locked()] {
        assert!(matches!(asked, Err(Error::WrongType { .. })), "{asked:?}");
    }
    guard.unlock().unwrap();
    assert!(!lock.is_read_locked().unwrap() && !lock.is_write_locked().unwrap());
}

/// A kind of lock and the kind that its key turns into, for all kinds with scripts of their own.
const TURNS: [(Kind, Kind); 6] = [
    (REENTRANT_LOCK, WRITING),
    (FAIR_LOCK, READING),
    (FENCED_LOCK, READING),
    (SPIN_LOCK, WRITING),
    (WRITING, REENTRANT_LOCK),
    (READING, FAIR_LOCK),
];

/// Two threads wait for `a` when the key becomes a lock of the other type.
fn a_wait_ends_with_the_type(a: Kind, b: Kind) {
    let server = Server::start();
    let name = unique("turn");
    let (holder, client) = (open(&server), open(&server));
    let guard = a.foe().of(&holder, &name).lock().unwrap();
    let (sender, received) = unbounded();
    let mut crew = Crew::new();
    for _ in 0..2 {
        let (lock, sender) = (a.of(&client, &name), sender.clone());
        crew.spawn(move || sender.send(lock.lock().map(drop)).unwrap());
    }
    let asks = if a.queue == Queue::Redis { 2 } else { 1 };
    waited_for_by(a, &server, asks);
    crew.all_parked();
    stranger_holds(b, &server, &name, 60_000);
    // The contender asks first, then the next waiter.
    for _ in 0..2 {
        match received.recv_timeout(LONG).unwrap() {
            Err(Error::WrongType { name: named, .. }) => assert_eq!(named, name),
            outcome => panic!("{outcome:?}"),
        }
    }
    crew.join();
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert!(is_held_by_stranger(b, &server, &name));
    eventually("only the stranger's lock is left", || {
        let keys = server.keys();
        keys.iter().all(|key| *key == name || a.stays(key))
    });
    waited_for_by(a, &server, 0);
    assert_eq!(client.stats().holds, 0);
}

timed!(a_wait_ends_when_the_key_becomes_of_another_type);
fn a_wait_ends_when_the_key_becomes_of_another_type() {
    for_each(TURNS.map(|turn| (turn.0.title, turn)), |(a, b)| {
        a_wait_ends_with_the_type(a, b)
    });
}

/// A hold is lost when its key becomes a lock of the other type, which is left unchanged.
fn a_hold_ends_with_the_type(a: Kind, b: Kind) {
    let server = Server::start();
    let client: Client = open_with_lease(&server, LEASE);
    let name = unique("turned");
    for aware in [true, false] {
        let guard = a.of(&client, &name).lock().unwrap();
        stranger_holds(b, &server, &name, 60_000);
        if aware {
            let loss = guard.lost().recv_timeout(LONG).unwrap();
            assert_eq!(loss.reason, LossReason::TakenOver);
        }
        match guard.unlock() {
            Err(Error::Lost { reason, .. }) => assert_eq!(reason, LossReason::TakenOver),
            outcome => panic!("{outcome:?}"),
        }
        assert!(is_held_by_stranger(b, &server, &name));
        assert!(server.pttl(&name) > 30_000);
        server.cli(&["DEL", &name]);
    }
}

timed!(a_hold_is_lost_when_the_key_becomes_of_another_type);
fn a_hold_is_lost_when_the_key_becomes_of_another_type() {
    for_each(TURNS.map(|turn| (turn.0.title, turn)), |(a, b)| {
        a_hold_ends_with_the_type(a, b)
    });
}
