//! The behaviour of every exclusive lock, whatever its kind. A kind is added at the end of this file, and its
//! differences are described in `support/kinds.rs`.

mod bad_input;
mod chapter;
mod kinds;
mod read;
mod red;
mod strangers;

use std::collections::HashSet;
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use redlatch::{CancelToken, Client, Error, Loss, LossReason, Result};

use crate::support::{
    AnyGuard, BY_MESSAGE, Crew, Kind, LONG, Messages, Mode, Notified, Proxy, Queue, REENTRANT_LOCK,
    Server, Target, always, beside, by_now, delete, elsewhere, eventually, everywhere,
    hold_by_stranger, in_line, increment, is_gone, is_held_by_stranger, line, loosely, lose, ms,
    nothing_is_left_of, open, open_with_lease, scoped, settings, settings_by, short_lived, shown,
    stranger_holds, stranger_releases, stranger_takes, unique, unless_late, waited_for_by,
};

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// The messages of one release, if no waiter is in a queue that Redis keeps.
fn told_by(kind: Kind, name: &str) -> Vec<(String, String)> {
    match kind.notified {
        Notified::All(prefix, payload) => {
            let names = kind.names(name).into_iter();
            names
                .map(|name| (beside(prefix, &name), payload.to_owned()))
                .collect()
        }
        Notified::First | Notified::Nobody => Vec::new(),
    }
}

#[track_caller]
fn assert_lost<T: Debug>(kind: Kind, result: Result<T>, name: &str, reason: LossReason) {
    let name = &*shown(kind, name);
    match result {
        Err(Error::Lost {
            name: named,
            reason: why,
            ..
        }) => {
            assert_eq!((named.as_str(), why), (name, reason));
        }
        other => panic!("not lost: {other:?}"),
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Exclusion
// ---------------------------------------------------------------------------------------------------------------------

fn threads_and_clients_exclude_each_other(kind: Kind) {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let (name, counter) = (unique("excl"), unique("counter"));
    let clients = [open(&server), open(&server), open(&server)];
    let (inside, last_token) = (AtomicUsize::new(0), AtomicU64::new(0));
    scoped(|scope| {
        for client in &clients {
            for thread in 0..4 {
                let (lock, counter) = (kind.of(client, &name), &counter);
                let (inside, last_token) = (&inside, &last_token);
                let mut con = server.connection();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let guard = match (thread + round) % 3 {
                            0 => lock.lock().unwrap(),
                            1 => lock.try_lock_for(LONG).unwrap().unwrap(),
                            _ => loop {
                                if let Some(guard) = lock.try_lock().unwrap() {
                                    break guard;
                                }
                                thread::yield_now();
                            },
                        };
                        always(inside.fetch_add(1, Ordering::SeqCst) == 0, "two are inside");
                        let token_before = last_token.swap(guard.token(), Ordering::SeqCst);
                        always(
                            !kind.tokens || guard.token() > token_before,
                            "a token again",
                        );
                        increment(&mut con, counter);
                        always(
                            inside.fetch_sub(1, Ordering::SeqCst) == 1,
                            "two were inside",
                        );
                        if round % 2 == 0 {
                            guard.unlock().unwrap();
                        }
                    }
                });
            }
        }
    });
    always(server.get_int(&counter) == 3 * 4 * 40, "a turn is lost");
    server.cli(&["DEL", &counter]);
    eventually("the lock is free", || nothing_is_left_of(kind, &server));
}

fn busy_is_none(kind: Kind) {
    keeps_out(kind.foe(), kind);
    keeps_out(kind, kind.foe());
}

fn keeps_out(holder: Kind, kind: Kind) {
    let server = Server::start();
    let name = unique("busy");
    let (ours, theirs) = (open(&server), open(&server));
    let guard = holder.of(&ours, &name).lock().unwrap();
    assert!(kind.of(&theirs, &name).try_lock().unwrap().is_none());
    // Reentrancy does not extend to another thread.
    elsewhere(|| {
        assert!(kind.of(&ours, &name).try_lock().unwrap().is_none());
        assert!(
            kind.of(&ours, &name)
                .try_lock_for(ms(30))
                .unwrap()
                .is_none()
        );
    });
    guard.unlock().unwrap();
    let theirs = kind.of(&theirs, &name).try_lock().unwrap();
    assert!(theirs.is_some_and(|guard| guard.is_valid()));
    elsewhere(|| {
        // The release of the dropped guard may still be on its way on another connection.
        assert!(kind.of(&ours, &name).try_lock_for(LONG).unwrap().is_some());
    });
}

fn a_limited_wait_takes_its_time_and_gives_none(kind: Kind) {
    const WAIT: Duration = ms(150);
    let server = Server::start();
    let name = unique("limit");
    let (holder, client) = (open(&server), open(&server));
    let guard = kind.foe().of(&holder, &name).lock().unwrap();
    let lock = kind.of(&client, &name);
    // A thread that asks Redis, and a thread in the queue of the holder's own process.
    for lock in [lock, kind.of(&holder, &name)] {
        elsewhere(|| {
            let begun = Instant::now();
            assert!(lock.try_lock_for(WAIT).unwrap().is_none());
            let took = begun.elapsed();
            assert!(
                took >= WAIT && took < WAIT + loosely(BY_MESSAGE),
                "{took:?}"
            );

            let until = Instant::now() + WAIT;
            assert!(lock.try_lock_until(until).unwrap().is_none());
            let late = Instant::now().saturating_duration_since(until);
            assert!(
                Instant::now() >= until && late < loosely(BY_MESSAGE),
                "{late:?}"
            );
        });
    }
    waited_for_by(kind, &server, 0);
    eventually("the queue is empty", || line(&server, &name).is_empty());
    guard.unlock().unwrap();
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
}

fn no_wait_is_one_attempt(kind: Kind) {
    let server = Server::start();
    let name = unique("once");
    let client = open(&server);
    drop(kind.of(&client, &unique("warm")).lock().unwrap());
    stranger_holds(kind.foe(), &server, &name, 60_000);
    let lock = kind.of(&client, &name);
    let past = Instant::now();
    let calls_before = server.calls("evalsha");
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(server.calls("evalsha") - calls_before, 1);
    assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
    assert_eq!(server.calls("evalsha") - calls_before, 2);
    assert!(lock.try_lock_until(past).unwrap().is_none());
    assert_eq!(server.calls("evalsha") - calls_before, 3);
    assert!(
        server.clients_named("subscriber").is_empty(),
        "no waiter subscribed"
    );
    assert!(line(&server, &name).is_empty(), "the queue is empty");
    delete(kind.foe(), &server, &name);
    assert!(lock.try_lock().unwrap().is_some());
    let zero = kind.of(&client, &unique("zero"));
    assert!(zero.try_lock_for(Duration::ZERO).unwrap().is_some());
    let past_one = kind.of(&client, &unique("past"));
    assert!(past_one.try_lock_until(past).unwrap().is_some());
}

fn an_endless_wait_ends_with_the_lock(kind: Kind) {
    let server = Server::start();
    let name = unique("endless");
    let (holder, client) = (open(&server), open(&server));
    let guard = kind.foe().of(&holder, &name).lock().unwrap();
    let mut crew = Crew::new();
    let lock = kind.of(&client, &name);
    crew.spawn(move || {
        assert!(lock.try_lock_for(Duration::MAX).unwrap().is_some());
    });
    waited_for_by(kind, &server, 1);
    crew.all_parked();
    assert!(!crew.is_finished());
    drop(guard);
    crew.join();
}

fn with_holds_the_lock_for_as_long_as_it_runs(kind: Kind) {
    let server = Server::start();
    let name = unique("with");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    let owner = lock.with(|guard| {
        assert!(guard.is_valid());
        guard.settle();
        assert_eq!(server.hgetall(&name), kind.fields(guard.owner(), 1));
        guard.owner().to_owned()
    });
    assert!(owner.unwrap().contains(':'));
    eventually("with releases the lock", || {
        nothing_is_left_of(kind, &server)
    });
    // An error would claim that the work did not run.
    let done = lock.with(|guard| {
        guard.settle();
        lose(kind, &server, &name);
        7
    });
    assert_eq!(done.unwrap(), 7);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        lock.with(|_| panic!("on purpose")).unwrap_or(())
    }));
    assert!(panicked.is_err());
    eventually("a panic releases the lock", || !server.exists(&name));
}

// ---------------------------------------------------------------------------------------------------------------------
// Waking
// ---------------------------------------------------------------------------------------------------------------------

fn a_drop_wakes_a_waiter_of_another_client_by_message(kind: Kind) {
    let server = Server::start();
    let name = unique("wake");
    let (holder, client) = (open(&server), open(&server));
    for round in 1..=3 {
        let guard = kind.foe().of(&holder, &name).lock().unwrap();
        let (sender, received) = unbounded();
        let mut crew = Crew::new();
        let lock = kind.of(&client, &name);
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            sender.send(Instant::now()).unwrap();
            guard.unlock().unwrap();
        });
        waited_for_by(kind, &server, 1);
        crew.all_parked();
        let dropped = Instant::now();
        drop(guard);
        let granted = received.recv_timeout(LONG).unwrap();
        assert!(
            granted - dropped < loosely(BY_MESSAGE),
            "{:?}",
            granted - dropped
        );
        crew.join();
        if kind.listens == 0 {
            assert_eq!(
                client.stats().wakes,
                0,
                "a kind without messages has no wake-ups"
            );
        } else {
            assert!(client.stats().wakes >= round, "{:?}", client.stats());
        }
        waited_for_by(kind, &server, 0);
    }
    assert_eq!(client.stats().missed_messages, 0);
}

fn a_release_publishes_redissons_message(kind: Kind) {
    let server = Server::start();
    let client = open(&server);
    let mut messages = Messages::of(&server);
    for name in ["plain", "tag{ged}"] {
        // The release of a lock for which no thread waits.
        let received = told_by(kind, name);
        for waits in [true, false] {
            let guard = kind.of(&client, name).lock().unwrap();
            assert!(messages.published(&server).is_empty());
            if waits {
                guard.unlock().unwrap();
            } else {
                drop(guard);
                eventually("the release ran", || !server.exists(name));
            }
            assert_eq!(messages.published(&server), received);
        }
        let guard = kind.of(&client, name).lock().unwrap();
        elsewhere(|| assert!(kind.of(&client, name).force_unlock().unwrap()));
        drop(guard);
        // This request follows a release that the drop may have sent on the same connection.
        assert!(!kind.of(&client, name).is_locked().unwrap());
        let heard = messages.published(&server);
        assert_eq!(heard, received);
    }

    // With two waiters in processes of their own.
    let name = unique("two");
    let guard = kind.of(&client, &name).lock().unwrap();
    let (sender, received) = unbounded();
    let (go, gone) = bounded::<()>(0);
    let mut crew = Crew::new();
    for n in 1..=2 {
        let lock = kind.foe().of(&open(&server), &name);
        let (sender, gone) = (sender.clone(), gone.clone());
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            sender.send(()).unwrap();
            gone.recv().unwrap();
            guard.unlock().unwrap();
        });
        waited_for_by(kind.foe(), &server, n);
        in_line(
            kind.foe(),
            &server,
            &name,
            &crew,
            usize::try_from(n).unwrap(),
        );
    }
    assert!(messages.published(&server).is_empty());
    let foe = (kind.foe().notified, told_by(kind.foe(), &name));
    let mut releases = vec![(kind.notified, told_by(kind, &name)), foe.clone(), foe];
    let mut guard = Some(guard);
    for waiters in [2, 1, 0] {
        let line = line(&server, &name);
        match guard.take() {
            Some(guard) => drop(guard),
            None => go.send(()).unwrap(),
        }
        if waiters > 0 {
            received.recv_timeout(LONG).unwrap();
        } else {
            eventually("the last release ran", || !server.exists(&name));
        }
        let heard = messages.published(&server);
        match releases.remove(0) {
            (Notified::All(..), received) => assert_eq!(heard, received),
            (Notified::First, _) => {
                assert_eq!(line.len(), waiters);
                assert_eq!(heard.is_empty(), waiters == 0);
                // When the other waiter polls and finds the lock free, it may notify the first waiter a second time.
                for (channel, payload) in heard {
                    let channel_key = beside("redisson_lock__channel", &name);
                    assert_eq!(channel, format!("{channel_key}:{}", line[0]));
                    assert_eq!(payload, "0");
                }
            }
            (Notified::Nobody, _) => assert!(heard.is_empty(), "{heard:?}"),
        }
    }
    crew.join();
}

fn a_strangers_lock_is_waited_for(kind: Kind) {
    let server = Server::start();
    let client = open(&server);
    // A client of another kind publishes to the common channel, which waiters in the queue do not subscribe to.
    for alike in [true, false] {
        if !alike && kind.notified != Notified::First {
            continue;
        }
        let name = unique("stranger");
        stranger_holds(kind.foe(), &server, &name, 60_000);
        let lock = kind.of(&client, &name);
        assert!(lock.try_lock().unwrap().is_none());
        assert!(kind.foe().of(&client, &name).is_locked().unwrap());
        assert!(!lock.is_owned_by_current_thread());
        let (sender, received) = unbounded();
        let mut crew = Crew::new();
        crew.spawn(move || {
            let _guard = lock.lock().unwrap();
            sender.send(Instant::now()).unwrap();
        });
        waited_for_by(kind, &server, 1);
        crew.all_parked();
        assert!(
            is_held_by_stranger(kind.foe(), &server, &name),
            "the stranger's hold is unchanged"
        );
        let stats_before = client.stats();
        let freed = Instant::now();
        if alike {
            stranger_releases(kind.foe(), &server, &name);
        } else {
            stranger_releases(REENTRANT_LOCK, &server, &name);
        }
        let granted = received.recv_timeout(LONG).unwrap();
        let (took, after) = (granted - freed, client.stats());
        crew.join();
        if alike {
            assert!(took < loosely(BY_MESSAGE), "{took:?}");
            assert_eq!(after.wakes > stats_before.wakes, kind.listens > 0);
        } else {
            assert!(
                took < loosely(ms(2500)),
                "waiters poll once a second: {took:?}"
            );
            assert_eq!(after.wakes, stats_before.wakes);
            assert_eq!(after.missed_messages, stats_before.missed_messages + 1);
        }
        waited_for_by(kind, &server, 0);
    }
}

// Any one of several names may be locked by somebody else on its own.
fn each_of_several_names_is_waited_for(kind: Kind) {
    let server = Server::start();
    let client = open(&server);
    let name = unique("each");
    for taken in kind.names(&name) {
        hold_by_stranger(&server, &taken, 60_000);
        let lock = kind.of(&client, &name);
        assert!(lock.try_lock().unwrap().is_none());
        assert_eq!(server.keys(), [&*taken], "no other name stays locked");
        let (sender, received) = unbounded();
        let mut crew = Crew::new();
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            sender.send(Instant::now()).unwrap();
            guard.unlock().unwrap();
        });
        waited_for_by(kind, &server, 1);
        crew.all_parked();
        assert_eq!(server.keys(), [&*taken]);
        let freed = Instant::now();
        stranger_releases(REENTRANT_LOCK, &server, &taken);
        let granted = received.recv_timeout(LONG).unwrap();
        assert!(
            granted - freed < loosely(BY_MESSAGE),
            "{:?}",
            granted - freed
        );
        crew.join();
        waited_for_by(kind, &server, 0);
    }
    assert_eq!(client.stats().missed_messages, 0);
}

fn a_vanished_lock_is_noticed_without_a_message(kind: Kind) {
    let server = Server::start();
    let client = open(&server);
    // A deleted lock is noticed by polling, an expired one at the end of the lease that the waiter knows.
    for deleted in [true, false] {
        let name = unique("vanish");
        let lease = if deleted { 6 * LONG } else { loosely(ms(400)) };
        let lease_ms = u64::try_from(lease.as_millis()).unwrap();
        stranger_holds(kind.foe(), &server, &name, lease_ms);
        let begun = Instant::now();
        let asked = client.stats().commands;
        let (sender, received) = unbounded();
        let mut crew = Crew::new();
        let lock = kind.of(&client, &name);
        crew.spawn(move || {
            let _guard = lock.lock().unwrap();
            sender.send(Instant::now()).unwrap();
        });
        waited_for_by(kind, &server, 1);
        // Wait for the second request, which the waiter sends once its subscription is confirmed: if that request found
        // the lock free, no message would count as missed.
        eventually("it has asked twice", || {
            client.stats().commands >= asked + 2
        });
        crew.all_parked();
        if deleted {
            delete(kind.foe(), &server, &name);
        }
        let granted = received.recv_timeout(LONG).unwrap();
        let took = granted - begun;
        if deleted {
            assert!(
                took < loosely(ms(2500)),
                "waiters poll once a second: {took:?}"
            );
        } else {
            assert!(took < lease + loosely(BY_MESSAGE), "{took:?}");
        }
        crew.join();
        waited_for_by(kind, &server, 0);
    }
    let rescues = client.stats().missed_messages;
    if kind.listens == 0 {
        assert_eq!(rescues, 0, "no message was missed");
    } else {
        assert!(rescues >= 2, "{:?}", client.stats());
    }
}

fn passing_it_on_inside_the_process_sends_nothing(kind: Kind) {
    // If Redis keeps the queue, every hand-over needs Redis.
    if kind.queue == Queue::Redis {
        return;
    }
    const THREADS: u64 = 16;
    let server = Server::start();
    let name = unique("pass");
    let client = Client::open(settings(&server).tenure(Duration::from_secs(1))).unwrap();
    drop(kind.of(&client, &unique("warm")).lock().unwrap());
    eventually("Redis knows the scripts", || {
        nothing_is_left_of(kind, &server)
    });
    let lock = kind.of(&client, &name);
    let guard = lock.lock().unwrap();
    let holds = Arc::new(Mutex::new(vec![(guard.owner().to_owned(), guard.token())]));
    let mut crew = Crew::new();
    for _ in 0..THREADS {
        let (lock, holds) = (lock.clone(), Arc::clone(&holds));
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            assert!(guard.is_valid() && guard.hold_count() == 1);
            let hold = (guard.owner().to_owned(), guard.token());
            holds.lock().unwrap().push(hold);
            guard.unlock().unwrap();
        });
    }
    crew.all_parked();
    let stats_before = client.stats();
    let (scripts, commands) = (server.calls("evalsha"), server.command_total());
    guard.unlock().unwrap();
    crew.join();
    let after = client.stats();
    // The totals also match because waiters poll from time to time.
    assert_eq!(after.commands, server.calls("evalsha"));
    let scripts = server.calls("evalsha") - scripts;
    // The first token was drawn for one thread, since nobody waited then. The next acquire draws tokens for all waiters
    // at once, so there is one more grant.
    let grants = u64::from(kind.tokens);
    let granted = after.acquired - stats_before.acquired;
    assert_eq!(
        after.local_handoffs - stats_before.local_handoffs,
        THREADS - granted
    );
    assert_eq!(granted, grants);
    assert_eq!(scripts, 2 * grants + 1, "the release of the last");
    if grants == 0 {
        // The commands that the server itself counts.
        assert_eq!(server.command_total() - commands, kind.release);
    }
    assert!(nothing_is_left_of(kind, &server));
    let holds = holds.lock().unwrap();
    let owners: HashSet<_> = holds.iter().map(|(owner, _)| owner).collect();
    assert_eq!(owners.len() as u64, 1 + grants, "one tenure, one owner");
    assert!(!kind.tokens || holds.is_sorted_by(|one, next| one.1 < next.1));
}

fn threads_of_a_process_are_served_in_order(kind: Kind) {
    let server = Server::start();
    for tenure in [ms(0), ms(5), ms(1000)] {
        let name = unique("fifo");
        let client = Client::open(settings(&server).tenure(tenure)).unwrap();
        let lock = kind.of(&client, &name);
        let guard = lock.lock().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut crew = Crew::new();
        for i in 0..8 {
            let (lock, order) = (lock.clone(), Arc::clone(&order));
            crew.spawn(move || {
                let _guard = lock.lock().unwrap();
                order.lock().unwrap().push(i);
            });
            in_line(kind, &server, &name, &crew, i + 1);
        }
        drop(guard);
        crew.join();
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }
}

fn threads_of_several_processes_are_served_in_the_order_their_kind_promises(kind: Kind) {
    const THREADS: usize = 9;
    let server = Server::start();
    let name = unique("order");
    let clients = [open(&server), open(&server), open(&server)];
    let guard = kind.of(&clients[0], &name).lock().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut crew = Crew::new();
    for i in 0..THREADS {
        let (lock, order) = (kind.of(&clients[i % 3], &name), Arc::clone(&order));
        crew.spawn(move || {
            let _guard = lock.lock().unwrap();
            order.lock().unwrap().push(i);
        });
        in_line(kind, &server, &name, &crew, i + 1);
    }
    drop(guard);
    crew.join();
    let order = order.lock().unwrap().clone();
    match kind.queue {
        Queue::Redis => assert_eq!(order, (0..THREADS).collect::<Vec<_>>()),
        Queue::Process => {
            // The order among processes is not defined; within each process it is.
            for process in 0..3 {
                let of = |i: &usize| *i % 3 == process;
                let theirs: Vec<_> = order.iter().copied().filter(of).collect();
                assert_eq!(theirs, (0..THREADS).filter(of).collect::<Vec<_>>());
            }
        }
    }
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
}

fn one_who_leaves_the_queue_does_not_hold_it_up(kind: Kind) {
    let server = Server::start();
    let name = unique("leaver");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    let guard = kind.foe().of(&client, &name).lock().unwrap();
    let (mut crew, mut impatient) = (Crew::new(), Crew::new());
    for _ in 0..3 {
        let [one, other] = [(); 2].map(|()| lock.clone());
        impatient.spawn(move || assert!(one.try_lock_for(ms(100)).unwrap().is_none()));
        crew.spawn(move || other.lock().unwrap().unlock().unwrap());
    }
    impatient.join();
    crew.all_parked();
    if kind.queue == Queue::Redis {
        eventually("the impatient waiters have left the queue", || {
            line(&server, &name).len() == 3
        });
    }
    drop(guard);
    crew.join();
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys in Redis
// ---------------------------------------------------------------------------------------------------------------------

fn redis_holds_what_redisson_would_write(kind: Kind) {
    let server = Server::start();
    let name = unique("wire");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    assert_eq!(server.dbsize(), 0, "a handle sends nothing");
    let lives = |guard: &AnyGuard, from: i64, max_ttl: i64| {
        guard.settle();
        assert_eq!(
            server.keys(),
            kind.keys(&name, guard.owner()),
            "these keys and no others"
        );
        for key in server.keys() {
            let ttl = server.pttl(&key);
            if kind.stays(&key) {
                assert_eq!(ttl, -1, "{key}");
            } else {
                assert!((from..=max_ttl).contains(&ttl), "{key}: {ttl}");
            }
        }
    };
    let guard = lock.lock().unwrap();
    guard.settle();
    for name in kind.names(&name) {
        assert_eq!(server.ask::<String>(&["TYPE", &name]), "hash");
        assert_eq!(server.hgetall(&name), kind.fields(guard.owner(), 1));
    }
    let (uuid, number) = guard.owner().split_once(':').unwrap();
    assert_eq!(uuid.len(), 36);
    assert!(uuid.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()));
    assert!(number.parse::<u64>().is_ok());
    lives(&guard, 25_000, 30_000);
    if kind.tokens {
        let counter = beside("redisson_lock_token", &name);
        assert_eq!(server.ask::<u64>(&["GET", &counter]), guard.token());
    }
    guard.unlock().unwrap();
    by_now(kind, "nothing is left", || {
        nothing_is_left_of(kind, &server)
    });

    let guard = lock.lease(Duration::from_secs(7)).lock().unwrap();
    lives(&guard, 2_000, 7_000);
    drop(guard);
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
}

fn owners_never_repeat(kind: Kind) {
    let server = Server::start();
    let name = unique("owner");
    let clients = [open(&server), open(&server)];
    let mut owners = HashSet::new();
    for round in 0..200 {
        let lock = kind.of(&clients[round % 2], &name);
        let guard = lock.try_lock_for(LONG).unwrap().unwrap();
        assert!(owners.insert(guard.owner().to_owned()), "{}", guard.owner());
    }
}

fn a_pair_of_lock_and_drop_is_two_commands(kind: Kind) {
    const PAIRS: u64 = 100;
    let server = Server::start();
    let name = unique("cost");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    drop(lock.lock().unwrap());
    eventually("the first release ran", || !server.exists(&name));
    let (calls_before, commands) = (server.calls("evalsha"), client.stats().commands);
    let loads = server.calls("script|load");
    for _ in 0..PAIRS {
        drop(lock.lock().unwrap());
    }
    eventually("the last release ran", || !server.exists(&name));
    assert_eq!(server.calls("evalsha") - calls_before, 2 * PAIRS);
    assert_eq!(client.stats().commands - commands, 2 * PAIRS);
    assert_eq!(server.calls("script|load"), loads);

    let guard = lock.lock().unwrap();
    guard.settle();
    // On several servers the last confirmation of the grant may still arrive once.
    eventually("one hold more sends nothing", || {
        let commands = server.command_total();
        if kind.reentrant {
            for n in 2..=PAIRS {
                let again = lock.lock().unwrap();
                assert_eq!(u64::from(again.hold_count()), 2, "{n}");
            }
        } else {
            assert!(matches!(lock.lock(), Err(Error::WouldDeadlock { .. })));
        }
        server.command_total() == commands
    });
    drop(guard);
}

// Short leases make renewals and releases cross all the time; no released lock may come back.
fn nothing_is_renewed_after_its_release(kind: Kind) {
    let server = Server::start();
    let client = open_with_lease(&server, ms(30));
    let until = Instant::now() + ms(300);
    let mut rounds = 0_u64;
    // On a late machine continue until at least one renewal was sent.
    while Instant::now() < until || (client.stats().renewals == 0 && rounds < 10_000) {
        rounds += 1;
        let lock = kind.of(&client, &format!("w4:{}", rounds % 5));
        // Hold for about a third of the lease, the moment of the renewal.
        if let Ok(guard) = lock.lock() {
            let linger = ms(9) + Duration::from_micros(rounds * 137 % 2000);
            thread::sleep(linger);
            drop(guard);
        }
    }
    assert!(client.stats().renewals > 0, "{:?}", client.stats());
    eventually("all are released", || nothing_is_left_of(kind, &server));
    thread::sleep(loosely(ms(60))); // two leases, in which a late reply to a renewal is read
    let (renewals, calls) = (client.stats().renewals, server.calls("evalsha"));
    thread::sleep(ms(60)); // no renewal in two more leases
    assert_eq!(client.stats().renewals, renewals);
    assert_eq!(
        server.calls("evalsha"),
        calls,
        "no traffic without a holder"
    );
    assert!(nothing_is_left_of(kind, &server));
    assert_eq!(client.stats().holds, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Time
// ---------------------------------------------------------------------------------------------------------------------

fn a_hold_is_renewed_for_as_long_as_it_is_wanted(kind: Kind) {
    let lease = loosely(ms(300));
    let server = Server::start();
    let name = unique("renew");
    let client = open_with_lease(&server, lease);
    let guard = kind.of(&client, &name).lock().unwrap();
    guard.settle();
    let first = guard.valid_until();
    let begun = Instant::now();
    while begun.elapsed() < 2 * lease {
        assert!(guard.is_valid());
        assert_eq!(server.keys(), kind.keys(&name, guard.owner()));
        thread::sleep(ms(10));
    }
    assert!(guard.valid_until() >= first + lease);
    assert!(client.stats().renewals >= 3, "{:?}", client.stats());
    assert!(guard.lost().try_recv().is_err());
    guard.unlock().unwrap();
}

// Levels that a thread left and a hold that it lost do not end the renewal of the next hold, which another thread has.
fn a_hold_is_renewed_whatever_became_of_those_before_it(kind: Kind) {
    let lease = loosely(ms(300));
    let server = Server::start();
    let name = unique("next");
    let client = open_with_lease(&server, lease);
    let lock = kind.of(&client, &name);
    let outer = lock.lock().unwrap();
    drop(lock.lock().unwrap());
    outer.unlock().unwrap();
    let lost = lock.lock().unwrap();
    lose(kind, &server, &name);
    let loss = lost.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    assert_lost(kind, lost.unlock(), &name, LossReason::Forced);
    elsewhere(|| {
        let next = lock.lock().unwrap();
        let until = Instant::now() + 2 * lease;
        while Instant::now() < until {
            assert!(next.is_valid() && server.exists(&name));
            thread::sleep(ms(10));
        }
        assert!(next.lost().try_recv().is_err());
        next.unlock().unwrap();
    });
}

fn a_fixed_lease_ends_and_its_holder_is_notified(kind: Kind) {
    let lease = loosely(ms(300));
    let server = Server::start();
    let name = unique("fixed");
    let client = open_with_lease(&server, ms(60));
    let lock = kind.of(&client, &name).lease(lease);
    let started_at = Instant::now();
    let guard = lock.lock().unwrap();
    let after = Instant::now();
    let until = guard.valid_until();
    let margin = lease / 100 + ms(2);
    assert!(until >= started_at + lease - margin && until < after + lease);
    assert!(guard.is_valid() && guard.hold_count() == 1);
    assert!(lock.is_owned_by_current_thread());

    let loss = guard.lost().recv_timeout(LONG).unwrap();
    let received = Instant::now();
    assert_eq!(loss.reason, LossReason::Expired);
    assert_eq!(
        (loss.name.as_str(), loss.owner.as_str()),
        (&*shown(kind, &name), guard.owner())
    );
    assert!(received >= until && received < until + loosely(BY_MESSAGE));
    assert_eq!(guard.valid_until(), until, "not renewed");
    assert!(!guard.is_valid() && guard.hold_count() == 0);
    assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
    eventually("the key is gone", || !server.exists(&name));
    assert_eq!(client.stats().renewals, 0);
    eventually("the loss is counted", || {
        (client.stats().lost, client.stats().holds) == (1, 0)
    });
    assert_lost(kind, guard.unlock(), &name, LossReason::Expired);
}

fn max_hold_ends_renewal_and_frees_the_lock(kind: Kind) {
    let (lease, max) = (loosely(ms(300)), loosely(ms(500)));
    let server = Server::start();
    let name = unique("wedged");
    let (client, other) = (open_with_lease(&server, lease), open(&server));
    let asked = Instant::now();
    let guard = kind.of(&client, &name).max_hold(max).lock().unwrap();
    let granted = Instant::now();
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    let received = Instant::now();
    assert_eq!(loss.reason, LossReason::MaxHold);
    // The limit counts from the grant, which happened between `asked` and `granted`.
    assert!(
        received >= asked + max && received < granted + max + loosely(BY_MESSAGE),
        "{:?}",
        received - granted
    );
    assert!(!guard.is_valid());
    elsewhere(|| {
        let theirs = kind.foe().of(&other, &name).try_lock_for(LONG).unwrap();
        assert!(theirs.is_some());
    });
    assert!(granted.elapsed() < max + lease + loosely(BY_MESSAGE));
    assert_lost(kind, guard.unlock(), &name, LossReason::MaxHold);
}

fn a_forgotten_guard_with_max_hold_frees_the_lock(kind: Kind) {
    let server = Server::start();
    let name = unique("forgot");
    let (client, other) = (open_with_lease(&server, loosely(ms(200))), open(&server));
    let max = loosely(ms(300));
    let guard = kind.of(&client, &name).max_hold(max).lock().unwrap();
    let _leaked = ManuallyDrop::new(guard);
    let theirs = kind.foe().of(&other, &name);
    assert!(theirs.try_lock().unwrap().is_none());
    let theirs = theirs.try_lock_for(max + LONG).unwrap();
    assert!(theirs.is_some());
    assert_eq!(client.stats().holds, 0);
}

fn leases_do_not_interfere(kind: Kind) {
    let (lease, short) = (loosely(ms(240)), loosely(ms(200)));
    let server = Server::start();
    let name = unique("leases");
    let client = open_with_lease(&server, lease);
    let renewed = kind.of(&client, &name);
    let fixed = renewed.lease(short);

    let guard = renewed.lock().unwrap();
    let mut crew = Crew::new();
    let (sender, received) = unbounded();
    crew.spawn({
        let fixed = fixed.clone();
        move || {
            let guard = fixed.lock().unwrap();
            sender
                .send(
                    guard
                        .valid_until()
                        .saturating_duration_since(Instant::now()),
                )
                .unwrap();
            let loss = guard.lost().recv_timeout(LONG).unwrap();
            assert_eq!(loss.reason, LossReason::Expired, "never renewed");
        }
    });
    crew.all_parked();
    let begun = Instant::now();
    while begun.elapsed() < 3 * lease / 2 {
        assert!(guard.is_valid(), "renewed while a waiter has a fixed lease");
        thread::sleep(ms(5));
    }
    drop(guard);
    let lease_left = received.recv_timeout(LONG).unwrap();
    assert!(
        lease_left > short - ms(100) && lease_left <= short,
        "the waiter's own lease: {lease_left:?}"
    );
    crew.join();

    let guard = renewed.lock().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 3 * lease / 2 {
        assert!(guard.is_valid(), "renewed after a fixed one");
        thread::sleep(ms(5));
    }
    guard.unlock().unwrap();
}

fn a_grant_that_comes_too_late_is_not_one(kind: Kind) {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let name = unique("late");
    let client = Client::open(settings_by(&server, proxy.addr())).unwrap();
    let lock = kind.of(&client, &name);
    lock.lock().unwrap().unlock().unwrap();
    proxy.set(Target::Link, Mode::Delay(ms(400)));
    let late = lock.lease(ms(200)).lock().map(drop);
    let is_retryable = matches!(&late, Err(err @ Error::Redis { .. }) if err.is_retryable());
    assert!(is_retryable, "the error is retryable: {late:?}");
    proxy.pass();
    assert_eq!(client.stats().holds, 0);
    assert!(
        lock.try_lock().unwrap().is_some(),
        "the late grant was undone"
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancelling
// ---------------------------------------------------------------------------------------------------------------------

fn cancelling_ends_waits_and_the_queue_goes_on(kind: Kind) {
    let server = Server::start();
    let name = unique("cancel");
    let (holder, client) = (open(&server), open(&server));
    let guard = kind.foe().of(&holder, &name).lock().unwrap();
    let token = CancelToken::new();
    let lock = kind.of(&client, &name);
    let mut cancelled = Crew::new();
    let mut patient = Crew::new();
    // The first thread asks Redis, the others queue behind it.
    for place in 0..4 {
        let lock = lock.clone();
        if place == 2 {
            patient.spawn(move || lock.lock().unwrap().unlock().unwrap());
            patient.all_parked();
        } else {
            let lock = lock.cancel_on(&token);
            cancelled.spawn(move || {
                assert!(matches!(lock.lock(), Err(Error::Cancelled)));
            });
            cancelled.all_parked();
        }
    }
    let begun = Instant::now();
    token.cancel();
    cancelled.join();
    let took = begun.elapsed();
    assert!(took < loosely(ms(1000)), "{took:?}");
    assert!(!patient.is_finished());
    if kind.queue == Queue::Redis {
        eventually("one waiter is left in the queue", || {
            line(&server, &name).len() == 1
        });
    }
    drop(guard);
    patient.join();

    let lock = lock.cancel_on(&token);
    // Each would be granted otherwise, a single attempt included.
    for verdict in [
        lock.lock().map(Some),
        lock.try_lock_for(LONG),
        lock.try_lock_for(Duration::ZERO),
        lock.try_lock(),
    ] {
        assert!(matches!(verdict, Err(Error::Cancelled)), "{verdict:?}");
    }
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
}

fn an_acquire_whose_caller_was_cancelled_is_undone(kind: Kind) {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let name = unique("undo");
    let client = Client::open(settings_by(&server, proxy.addr())).unwrap();
    drop(kind.of(&client, &unique("warm")).lock().unwrap());
    eventually("warm", || nothing_is_left_of(kind, &server));
    for mode in [Mode::Stall, Mode::Delay(ms(300))] {
        proxy.set(Target::Link, mode);
        let token = CancelToken::new();
        let lock = kind.of(&client, &name).cancel_on(&token);
        let mut crew = Crew::new();
        crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Cancelled))));
        eventually("the acquire is under way", || proxy.held() > 0);
        let begun = Instant::now();
        token.cancel();
        crew.join();
        assert!(begun.elapsed() < loosely(ms(1000)));
        proxy.pass();
        eventually("the grant is undone", || nothing_is_left_of(kind, &server));
        assert_eq!(client.stats().holds, 0);
        assert!(
            kind.of(&client, &name)
                .try_lock_for(LONG)
                .unwrap()
                .is_some()
        );
        eventually("free", || nothing_is_left_of(kind, &server));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Loss
// ---------------------------------------------------------------------------------------------------------------------

fn force_unlock_notifies_everybody_concerned(kind: Kind) {
    let server = Server::start();
    let name = unique("force");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    assert!(!lock.force_unlock().unwrap(), "a free lock is not forced");

    // A holder of the same client is notified at once.
    let guard = lock.lock().unwrap();
    elsewhere(|| assert!(lock.force_unlock().unwrap()));
    let loss = guard.lost().recv_timeout(loosely(BY_MESSAGE)).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    assert!(!guard.is_valid());
    for name in kind.names(&name) {
        assert!(!server.exists(&name));
    }
    assert_lost(kind, guard.unlock(), &name, LossReason::Forced);

    // A holder of another client is notified at its next renewal; a waiter is granted the lock at once.
    let holder = open_with_lease(&server, loosely(ms(600)));
    let guard = kind.of(&holder, &name).lock().unwrap();
    let other = open(&server);
    let mut crew = Crew::new();
    let (sender, received) = unbounded();
    let waiting = kind.foe().of(&other, &name);
    crew.spawn(move || {
        let _guard = waiting.lock().unwrap();
        sender.send(Instant::now()).unwrap();
    });
    waited_for_by(kind.foe(), &server, 1);
    crew.all_parked();
    let forced = Instant::now();
    assert!(lock.force_unlock().unwrap());
    let granted = received.recv_timeout(LONG).unwrap();
    assert!(granted - forced < loosely(BY_MESSAGE));
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert!(
        matches!(loss.reason, LossReason::Forced | LossReason::TakenOver),
        "{loss:?}"
    );
    crew.join();
}

// A forced release must not mark a hold as lost that was granted after the release.
fn forcing_does_not_mistake_a_later_hold(kind: Kind) {
    let server = Server::start();
    let name = unique("mistake");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    let done = AtomicBool::new(false);
    let mut con = server.connection();
    scoped(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                lock.force_unlock().unwrap();
            }
        });
        let until = Instant::now() + ms(300);
        let mut mistaken = 0;
        while Instant::now() < until {
            // Release at once, so that a release, a grant and the reply to the forced release coincide.
            drop(lock.lock().unwrap());
            let guard = lock.lock().unwrap();
            let lost = guard
                .lost()
                .recv_timeout(Duration::from_micros(300))
                .is_ok();
            if lost {
                let still: bool = redis::cmd("HEXISTS")
                    .arg(&name)
                    .arg(kind.field(guard.owner()))
                    .query(&mut con)
                    .unwrap();
                mistaken += u32::from(still);
            }
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(
            mistaken, 0,
            "reported as lost although Redis keeps the hold"
        );
    });
}

// The reply to a forced release is lost, and another client acquires the lock before the request is sent again. The
// repetition must return the first result and leave the new hold alone.
fn a_force_that_is_sent_twice_counts_once(kind: Kind) {
    let server = Server::start();
    let proxy = Proxy::start(server.client_addr());
    let first = open(&server);
    let ours = Client::open(settings_by(&server, proxy.addr()).command_timeout(LONG)).unwrap();
    kind.of(&ours, &unique("warm")).force_unlock().unwrap();
    server.cli(&["FLUSHALL"]);
    for held in [true, false] {
        let name = unique("twice");
        let lost = held.then(|| kind.of(&first, &name).lock().unwrap());
        proxy.swallow_present(Target::All);
        let mut crew = Crew::new();
        let (sender, received) = bounded(1);
        let lock = kind.of(&ours, &name);
        crew.spawn(move || sender.send(lock.force_unlock()).unwrap());
        eventually("the first request was executed", || match held {
            true => !server.exists(&kind.names(&name)[0]),
            false => server.keys() != server.keys_but_requests(),
        });
        let second = open(&server);
        let guard = kind.of(&second, &name).lock().unwrap();
        assert!(received.is_empty(), "the caller still waits");
        proxy.cut(Target::All);
        let forced = received.recv_timeout(LONG).unwrap();
        assert_eq!(forced.unwrap(), held, "the result of the first request");
        guard.unlock().unwrap();
        drop(lost);
        crew.join();
        server.cli(&["FLUSHALL"]);
    }
}

fn unlock_says_how_it_was_lost(kind: Kind) {
    let server = Server::start();
    let client = open(&server);

    let name = unique("deleted");
    let guard = kind.of(&client, &name).lock().unwrap();
    guard.settle();
    lose(kind, &server, &name);
    assert_lost(kind, guard.unlock(), &name, LossReason::Forced);

    let name = unique("taken");
    let guard = kind.of(&client, &name).lock().unwrap();
    guard.settle();
    stranger_takes(kind, &server, &name, 60_000);
    assert_lost(kind, guard.unlock(), &name, LossReason::TakenOver);
    assert!(is_held_by_stranger(kind.foe(), &server, &name));
    assert!(server.pttl(&name) > 30_000);

    let name = unique("expired");
    let guard = short_lived(|lease| kind.of(&client, &name).lease(lease).lock());
    eventually("it expires", || !guard.is_valid() && !server.exists(&name));
    stranger_holds(kind.foe(), &server, &name, 60_000);
    assert_lost(kind, guard.unlock(), &name, LossReason::Expired);
    assert!(is_held_by_stranger(kind.foe(), &server, &name));

    // The key is not a lock any more.
    let name = unique("string");
    let guard = kind.of(&client, &name).lock().unwrap();
    guard.settle();
    everywhere(kind, &server, &name, |server, keys| {
        server.cli(&["SET", &keys[0], "precious"]);
    });
    let err = guard.unlock().unwrap_err();
    assert!(!err.is_retryable(), "{err:?}");
    everywhere(kind, &server, &name, |server, keys| {
        assert_eq!(server.ask::<String>(&["GET", &keys[0]]), "precious");
    });
}

fn dropping_a_lost_guard_harms_nobody(kind: Kind) {
    let server = Server::start();
    let name = unique("stale");
    let (sender, losses) = unbounded();
    let listens = move |loss: &Loss| sender.send(loss.clone()).unwrap_or_default();
    let client = Client::open(settings(&server).on_lost(listens)).unwrap();
    let other = open(&server);
    let lock = kind.of(&client, &name);

    // The holder does not know of its loss, so its release finds a stranger's hold.
    let guard = lock.lock().unwrap();
    guard.settle();
    stranger_takes(kind, &server, &name, 60_000);
    let owner = guard.owner().to_owned();
    drop(guard);
    if kind.others().is_none() {
        let loss = losses.recv_timeout(LONG).unwrap();
        assert_eq!((loss.name, loss.owner), (name.clone(), owner));
        assert_ne!(loss.reason, LossReason::Expired);
        let stats = client.stats();
        assert_eq!((stats.lost, stats.releases_of_lost), (1, 1));
    }
    // This question follows the release on the same connection. For a lock on several servers the replies to a dropped
    // guard's release are not counted, so wait for nothing there.
    assert!(kind.foe().of(&client, &name).is_locked().unwrap());
    assert!(is_held_by_stranger(kind.foe(), &server, &name));
    delete(kind.foe(), &server, &name);

    // The holder knows of its loss: an old guard next to a new one of the same thread.
    let old = short_lived(|lease| lock.lease(lease).lock());
    assert_eq!(
        old.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Expired
    );
    // The client counts the lease as over slightly before Redis does. A server that still keeps the old hold would
    // reject the new one and could be added to it later, with another owner.
    eventually("it has expired", || is_gone(kind, &server, &name));
    let new = lock.try_lock_for(LONG).unwrap().unwrap();
    assert_ne!(old.owner(), new.owner());
    assert_eq!((new.hold_count(), lock.hold_count()), (1, 1));
    assert_eq!(old.hold_count(), 0, "zero once it is lost");
    assert!(!old.is_valid() && new.is_valid());
    drop(old);
    assert!(new.is_valid() && lock.is_owned_by_current_thread());
    new.settle();
    assert_eq!(server.hgetall(&name), kind.fields(new.owner(), 1));
    assert!(kind.foe().of(&other, &name).try_lock().unwrap().is_none());
    new.unlock().unwrap();

    // An old guard next to a new one of another client.
    let known = client.stats().lost;
    let old = short_lived(|lease| lock.lease(lease).lock());
    let theirs = kind.foe().of(&other, &name);
    let new = theirs.try_lock_for(LONG).unwrap().unwrap();
    eventually("the loss is reported", || client.stats().lost > known);
    drop(old);
    new.settle();
    assert_eq!(server.hgetall(&name), kind.foe().fields(new.owner(), 1));
    new.unlock().unwrap();
}

fn a_lost_lock_is_free_for_threads_of_the_same_process(kind: Kind) {
    let server = Server::start();
    let name = unique("again");
    let lease = loosely(ms(300));
    let client = open_with_lease(&server, lease);
    let lock = kind.of(&client, &name);
    let guard = lock.lock().unwrap();
    let mut crew = Crew::new();
    for _ in 0..3 {
        let lock = kind.foe().of(&client, &name);
        crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    }
    crew.all_parked();
    guard.settle();
    lose(kind, &server, &name);
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    // Waiters in Redis's queue poll, so one may take the lock before the next renewal notices the loss.
    let may_be_taken = kind.queue == Queue::Redis;
    assert!(
        loss.reason == LossReason::Forced || may_be_taken && loss.reason == LossReason::TakenOver,
        "{loss:?}"
    );
    crew.join();
    drop(guard);
    assert!(lock.try_lock().unwrap().is_some());
}

// ---------------------------------------------------------------------------------------------------------------------
// Guards and questions
// ---------------------------------------------------------------------------------------------------------------------

fn questions_are_answered_truly(kind: Kind) {
    let server = Server::start();
    let name = unique("ask");
    let (client, other) = (open(&server), open(&server));
    let (lock, theirs) = (kind.of(&client, &name), kind.of(&other, &name));
    for lock in [&lock, &theirs] {
        assert_eq!(lock.name(), shown(kind, &name));
        assert!(!lock.is_locked().unwrap() && lock.remaining_lease().unwrap().is_none());
        assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
    }
    let guard = lock.lock().unwrap();
    assert_eq!(
        (guard.name(), guard.hold_count()),
        (&*shown(kind, &name), 1)
    );
    for lock in [&lock, &theirs] {
        assert!(lock.is_locked().unwrap());
        let lease_left = lock.remaining_lease().unwrap().unwrap();
        assert!(
            lease_left > ms(25_000) && lease_left <= ms(30_000),
            "{lease_left:?}"
        );
    }
    assert!(lock.is_owned_by_current_thread() && lock.hold_count() == 1);
    assert!(kind.of(&client, &name).is_owned_by_current_thread());
    assert!(!theirs.is_owned_by_current_thread() && theirs.hold_count() == 0);
    elsewhere(|| {
        assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
        assert!(lock.is_locked().unwrap());
    });
    assert!(format!("{guard:?}{lock:?}").contains(&shown(kind, &name)));
    guard.unlock().unwrap();
    by_now(kind, "it is free", || !lock.is_locked().unwrap());
    assert!(!lock.is_owned_by_current_thread());

    stranger_holds(kind, &server, &name, 60_000);
    everywhere(kind, &server, &name, |server, keys| {
        server.cli(&["PERSIST", &keys[0]]);
    });
    assert_eq!(lock.remaining_lease().unwrap(), Some(Duration::MAX));
    assert!(lock.is_locked().unwrap() && !lock.is_owned_by_current_thread());
}

fn reentry_is_for_the_holding_thread(kind: Kind) {
    let server = Server::start();
    let name = unique("reenter");
    let client = open_with_lease(&server, loosely(ms(300)));
    let lock = kind.of(&client, &name);
    let theirs = kind.foe().of(&client, &name);
    let first = lock.lock().unwrap();
    elsewhere(|| assert!(theirs.try_lock().unwrap().is_none()));
    if !kind.reentrant {
        for verdict in [
            lock.lock().map(Some),
            lock.try_lock(),
            lock.try_lock_for(LONG),
            lock.try_lock_until(Instant::now() + LONG),
            lock.with(|_| ()).map(|()| None),
        ] {
            assert!(
                matches!(&verdict, Err(Error::WouldDeadlock { name: named, .. }) if *named == shown(kind, &name)),
                "{verdict:?}"
            );
        }
        assert!(first.is_valid() && first.hold_count() == 1);
        first.unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        return;
    }
    drop(first);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        // Use another handle, and a different verb each time.
        let again = kind.of(&client, &name);
        let first = lock.lock().unwrap();
        first.settle();
        let mut guards = [
            Some(first),
            again.try_lock().unwrap(),
            again.try_lock_for(ms(1)).unwrap(),
        ];
        for (holds_left, place) in [3, 2, 1].into_iter().zip(order) {
            assert_eq!(lock.hold_count(), holds_left);
            let guard = guards[place].take().unwrap();
            assert_eq!(guard.hold_count(), holds_left);
            assert!(server.exists(&name));
            elsewhere(|| assert!(theirs.try_lock().unwrap().is_none()));
            guard.unlock().unwrap();
        }
        by_now(kind, "it is free", || !server.exists(&name));
        assert_eq!(lock.hold_count(), 0);
    }
    // Redis has the same count as Redisson would, at least from the next renewal on, and the count falls again.
    let one = lock.lock().unwrap();
    let two = lock.lock().unwrap();
    assert_eq!(two.token(), one.token(), "one hold, one token");
    let renewed = client.stats().renewals;
    eventually("it is renewed", || client.stats().renewals > renewed + 1);
    let received = |n| {
        let fields = kind.fields(one.owner(), n);
        let names = kind.names(&name);
        names.iter().all(|name| server.hgetall(name) == fields)
    };
    eventually("Redis knows of two holds", || {
        received(if kind.counted { 2 } else { 1 })
    });
    drop(two);
    eventually("Redis knows of one hold", || received(1));
    drop(one);
    eventually("no hold is left to renew", || client.stats().holds == 0);
}

// A fixed lease starts again with every reentry, and is never shortened.
fn reentry_renews_a_fixed_lease(kind: Kind) {
    if !kind.reentrant {
        return;
    }
    let server = Server::start();
    let name = unique("refix");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    let one = lock.lease(loosely(ms(300))).lock().unwrap();
    let first = one.valid_until();
    let two = lock.lease(Duration::from_secs(20)).lock().unwrap();
    assert!(one.valid_until() > first && one.valid_until() == two.valid_until());
    by_now(kind, "the lease is extended", || {
        server.pttl(&name) > 10_000
    });
    let three = lock.lease(ms(50)).lock().unwrap();
    assert!(server.pttl(&name) > 10_000, "never shortened");
    assert_eq!(three.hold_count(), 3);
    drop((one, two));
    assert!(server.exists(&name));
    three.unlock().unwrap();
    by_now(kind, "it is free", || !server.exists(&name));
}

// Leaving an inner level does not change the lease, and the next hold has the lease of its own handle.
fn leaving_an_inner_level_keeps_the_lease(kind: Kind) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let server = Server::start();
    let name = unique("levels");
    let client = open(&server);
    let lock = kind.of(&client, &name);
    let lease_left = || lock.remaining_lease().unwrap();
    let long = lock.lease(HOUR);
    let outer = long.lock().unwrap();
    let inner = [(); 2].map(|()| long.lock().unwrap());
    for guard in inner {
        guard.unlock().unwrap();
        assert!(
            lease_left() > Some(HOUR - ms(60_000)) && lease_left() <= Some(HOUR),
            "{:?}",
            lease_left()
        );
    }
    assert!(outer.is_valid() && outer.hold_count() == 1);
    outer.unlock().unwrap();
    assert_eq!(lease_left(), None);
    let next = lock.lock().unwrap();
    assert!(
        lease_left() > Some(ms(25_000)) && lease_left() <= Some(ms(30_000)),
        "{:?}",
        lease_left()
    );
    next.unlock().unwrap();
}

fn a_panic_gives_the_lock_back(kind: Kind) {
    let server = Server::start();
    let name = unique("panic");
    let (client, other) = (open(&server), open(&server));
    let lock = kind.of(&client, &name);
    let panicked = thread::spawn({
        let lock = lock.clone();
        move || {
            let _guard = lock.lock().unwrap();
            assert!(lock.name().is_empty(), "on purpose");
        }
    });
    assert!(panicked.join().is_err());
    let theirs = kind.foe().of(&other, &name).try_lock_for(LONG).unwrap();
    assert!(theirs.is_some());
    drop(theirs);
    assert!(lock.try_lock_for(LONG).unwrap().is_some());
    assert_eq!(client.stats().lost, 0);
}

// A guard works after its handle and its client's handle were dropped.
fn a_guard_owns_what_it_needs(kind: Kind) {
    let server = Server::start();
    let name = unique("owns");
    let lease = loosely(ms(400));
    let guard = kind
        .of(&open_with_lease(&server, lease), &name)
        .lock()
        .unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 3 * lease / 2 {
        assert!(guard.is_valid(), "renewed though only the guard is left");
        thread::sleep(ms(5));
    }
    guard.settle();
    assert_eq!(server.hgetall(&name), kind.fields(guard.owner(), 1));
    guard.unlock().unwrap();
    by_now(kind, "nothing is left", || {
        nothing_is_left_of(kind, &server)
    });
}

/// Declares tests of this module for one kind of lock.
macro_rules! held_to {
    ($kind:path: $($test:ident,)+) => {
        crate::contract::held_to! { $kind, crate::support::as_it_is: $($test,)+ }
    };
    ($kind:path, $around:path: $($test:ident,)+) => {
        $(
            #[test]
            fn $test() {
                crate::contract::runs($kind, $around, crate::contract::$test);
            }
        )+
    };
}

pub(crate) use held_to;

fn runs(kind: Kind, around: fn(&dyn Fn()), test: fn(Kind)) {
    unless_late(&|| around(&|| test(kind)));
}

macro_rules! contract {
    ($($title:ident: $kind:ident,)+) => {
        $(mod $title {
            crate::contract::held_to! { crate::support::$kind:
                threads_and_clients_exclude_each_other,
                busy_is_none,
                a_limited_wait_takes_its_time_and_gives_none,
                no_wait_is_one_attempt,
                an_endless_wait_ends_with_the_lock,
                with_holds_the_lock_for_as_long_as_it_runs,
                a_drop_wakes_a_waiter_of_another_client_by_message,
                a_release_publishes_redissons_message,
                a_strangers_lock_is_waited_for,
                a_vanished_lock_is_noticed_without_a_message,
                passing_it_on_inside_the_process_sends_nothing,
                threads_of_a_process_are_served_in_order,
                threads_of_several_processes_are_served_in_the_order_their_kind_promises,
                one_who_leaves_the_queue_does_not_hold_it_up,
                redis_holds_what_redisson_would_write,
                owners_never_repeat,
                a_pair_of_lock_and_drop_is_two_commands,
                nothing_is_renewed_after_its_release,
                a_hold_is_renewed_for_as_long_as_it_is_wanted,
                a_hold_is_renewed_whatever_became_of_those_before_it,
                a_fixed_lease_ends_and_its_holder_is_notified,
                max_hold_ends_renewal_and_frees_the_lock,
                a_forgotten_guard_with_max_hold_frees_the_lock,
                leases_do_not_interfere,
                a_grant_that_comes_too_late_is_not_one,
                cancelling_ends_waits_and_the_queue_goes_on,
                an_acquire_whose_caller_was_cancelled_is_undone,
                force_unlock_notifies_everybody_concerned,
                forcing_does_not_mistake_a_later_hold,
                a_force_that_is_sent_twice_counts_once,
                unlock_says_how_it_was_lost,
                dropping_a_lost_guard_harms_nobody,
                a_lost_lock_is_free_for_threads_of_the_same_process,
                questions_are_answered_truly,
                reentry_is_for_the_holding_thread,
                reentry_renews_a_fixed_lease,
                leaving_an_inner_level_keeps_the_lease,
                a_panic_gives_the_lock_back,
                a_guard_owns_what_it_needs,
            }
        })+
    };
}

// ---------------------------------------------------------------------------------------------------------------------
// The kinds
// ---------------------------------------------------------------------------------------------------------------------

contract! {
    reentrant_lock: REENTRANT_LOCK,
    fair_lock: FAIR_LOCK,
    fenced_lock: FENCED_LOCK,
    spin_lock: SPIN_LOCK,
    rwlock_writing: WRITING,
}

/// A `Mutex` sends what a reentrant lock sends, and only refuses to enter twice.
macro_rules! not_reentrant {
    ($($title:ident: $kind:ident,)+) => {
        $(mod $title {
            crate::contract::held_to! { crate::support::$kind:
                threads_and_clients_exclude_each_other,
                threads_of_several_processes_are_served_in_the_order_their_kind_promises,
                redis_holds_what_redisson_would_write,
                unlock_says_how_it_was_lost,
                reentry_is_for_the_holding_thread,
                a_guard_owns_what_it_needs,
            }
        })+
    };
}

not_reentrant! {
    mutex: MUTEX,
    fair_mutex: FAIR_MUTEX,
}

/// The layers above the connection do not know of TLS, so tests that wait, subscribe, renew and time out are enough.
#[cfg(feature = "tls")]
mod over_tls {
    macro_rules! over_tls {
        ($($title:ident: $kind:ident,)+) => {
            $(mod $title {
                crate::contract::held_to! { crate::support::$kind, crate::support::over_tls:
                    threads_and_clients_exclude_each_other,
                    a_drop_wakes_a_waiter_of_another_client_by_message,
                    a_vanished_lock_is_noticed_without_a_message,
                    a_pair_of_lock_and_drop_is_two_commands,
                    a_hold_is_renewed_for_as_long_as_it_is_wanted,
                    cancelling_ends_waits_and_the_queue_goes_on,
                    an_acquire_whose_caller_was_cancelled_is_undone,
                    force_unlock_notifies_everybody_concerned,
                    unlock_says_how_it_was_lost,
                }
            })+
        };
    }

    over_tls! {
        reentrant_lock: REENTRANT_LOCK,
        fair_lock: FAIR_LOCK,
    }
}

/// `name` and a second name that has the same slot in a cluster.
fn two_names(name: &str) -> [String; 2] {
    let second = if name.contains('{') {
        format!("{name}:2")
    } else {
        format!("{{{name}}}:2")
    };
    [name.to_owned(), second]
}

/// A multi-lock over the name that the test asks for and a second one, which makes two holds.
const TWO_NAMES: Kind = Kind {
    title: "multi-lock",
    handle: |client, name| {
        // The names are given in the wrong order, and one of them twice.
        let [one, two] = two_names(name);
        client.multi_lock([&two, &one, &two]).into()
    },
    names: |name| two_names(name).to_vec(),
    ..REENTRANT_LOCK
};

mod multi_lock {
    // The list omits tests of a single hold. A multi-lock has twice the commands, owners and losses, each reported
    // under the name of its member; a waiter that holds one member releases it and starts again, so it has no place in
    // a queue; and a member that is not lost itself stays locked until the guard is dropped.
    crate::contract::held_to! { super::TWO_NAMES:
        each_of_several_names_is_waited_for,
        threads_and_clients_exclude_each_other,
        busy_is_none,
        a_limited_wait_takes_its_time_and_gives_none,
        an_endless_wait_ends_with_the_lock,
        a_drop_wakes_a_waiter_of_another_client_by_message,
        a_strangers_lock_is_waited_for,
        a_vanished_lock_is_noticed_without_a_message,
        one_who_leaves_the_queue_does_not_hold_it_up,
        owners_never_repeat,
        nothing_is_renewed_after_its_release,
        a_hold_is_renewed_for_as_long_as_it_is_wanted,
        a_forgotten_guard_with_max_hold_frees_the_lock,
        leases_do_not_interfere,
        cancelling_ends_waits_and_the_queue_goes_on,
        an_acquire_whose_caller_was_cancelled_is_undone,
        questions_are_answered_truly,
        reentry_renews_a_fixed_lease,
        a_panic_gives_the_lock_back,
    }
}
