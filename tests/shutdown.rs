//! The end of a client: by `close`, by its last handle, by the end of the process. The tests run one at a time, since
//! they count the threads of the whole process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "it/support/bare/mod.rs"]
mod support;

use std::any::Any;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use redlatch::{Client, Config, Error, LossReason, MultiLock, Result};

use support::{
    Mode, Proxy, Server, Target, eventually, given, loosely, ms, rerun, threads_named, timed,
    unique,
};

const LONG: Duration = Duration::from_secs(10);

/// A limit for calls that wait for nobody.
const PROMPT: Duration = ms(1000);

/// Keeps the other tests out, and waits until no thread of an earlier one is left.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    eventually("no thread of an earlier test is left", || {
        threads_named("redlatch") == 0
    });
    turn
}

fn open(server: &Server) -> Client {
    Client::open(server.url()).unwrap()
}

/// Makes the server know every script.
fn warm(server: &Server) {
    let client = open(server);
    drop(client.mutex("warm").lock().unwrap());
    eventually("released", || server.dbsize() == 0);
}

/// Acquires a lock, and keeps it as long as the returned value lives.
type Take = fn(&Client, &str) -> Result<Box<dyn Any>>;

fn boxed<G: Any>(guard: Result<G>) -> Result<Box<dyn Any>> {
    guard.map(|guard| Box::new(guard) as Box<dyn Any>)
}

/// A kind of lock: its name, how it is acquired, how a lock that excludes it is acquired, and on how many channels a
/// process with `n` waiting threads listens.
type Kind = (&'static str, Take, Take, fn(u64) -> u64);

const KINDS: [Kind; 9] = [
    ("reentrant", reentrant, reentrant, |_| 1),
    ("mutex", |c, n| boxed(c.mutex(n).lock()), reentrant, |_| 1),
    ("fair", fair, fair, |n| n),
    (
        "fair-mutex",
        |c, n| boxed(c.fair_mutex(n).lock()),
        fair,
        |n| n,
    ),
    ("fenced", fenced, fenced, |_| 1),
    ("spin", spin, spin, |_| 0),
    ("write", write, write, |_| 1),
    ("read", |c, n| boxed(c.rw_lock(n).read()), write, |_| 1),
    (
        "several",
        |c, n| boxed(c.multi_lock([n, &format!("{n}:2")]).lock()),
        reentrant,
        |_| 1,
    ),
];

fn reentrant(client: &Client, name: &str) -> Result<Box<dyn Any>> {
    boxed(client.reentrant_lock(name).lock())
}

fn fair(client: &Client, name: &str) -> Result<Box<dyn Any>> {
    boxed(client.fair_lock(name).lock())
}

fn fenced(client: &Client, name: &str) -> Result<Box<dyn Any>> {
    boxed(client.fenced_lock(name).lock())
}

fn spin(client: &Client, name: &str) -> Result<Box<dyn Any>> {
    boxed(client.spin_lock(name).lock())
}

fn write(client: &Client, name: &str) -> Result<Box<dyn Any>> {
    boxed(client.rw_lock(name).write())
}

/// Two locks acquired as one.
fn members(client: &Client, name: &str) -> Result<Box<dyn Any>> {
    let part = |which: &str| Box::new(client.mutex(format!("{name}:{which}")));
    boxed(MultiLock::new(vec![part("1"), part("2")]).lock())
}

/// Every key, sorted, except token counters, which stay.
fn locks(server: &Server) -> Vec<String> {
    let mut keys = server.keys();
    keys.retain(|key| !key.starts_with("redisson_lock_token:"));
    keys
}

/// Waits until clients of this crate have `n` subscriptions at the server.
fn subscribed(server: &Server, n: u64) {
    eventually("the waiting clients are subscribed", || {
        let clients = server.clients_named("subscriber");
        clients
            .iter()
            .map(|client| client.subscriptions)
            .sum::<u64>()
            == n
    });
}

timed!(closing_wakes_releases_and_joins);
fn closing_wakes_releases_and_joins() {
    let _turn = turn();
    let server = Server::start();
    let client = open(&server);
    let (busy, held) = (unique("busy"), unique("held"));
    let other = open(&server);
    let theirs = other.mutex(&busy).lock().unwrap();
    let guards: Vec<_> = (0..50)
        .map(|i| client.reentrant_lock(format!("{held}:{i}")).lock().unwrap())
        .collect();
    let nested = client.reentrant_lock(format!("{held}:0")).lock().unwrap();

    // Some threads wait for Redis, some in the queue behind such a thread, some in the queue behind a guard of this
    // client.
    let (sender, received) = unbounded();
    let mut waiting = Vec::new();
    for i in 0..12 {
        let (client, sender) = (client.clone(), sender.clone());
        let name = if i % 2 == 0 {
            busy.clone()
        } else {
            format!("{held}:1")
        };
        waiting.push(thread::spawn(move || {
            let outcome = match i % 3 {
                0 => client.reentrant_lock(&name).lock().map(drop),
                1 => client.mutex(&name).try_lock_for(LONG * 6).map(drop),
                _ => client.mutex(&name).with(|_| ()),
            };
            sender.send((outcome, Instant::now())).unwrap();
        }));
    }
    subscribed(&server, 1);
    thread::sleep(ms(50)); // queued threads are there, or come too late and are notified just the same
    assert!(received.is_empty());

    let begun = Instant::now();
    client.close(Duration::from_secs(5)).unwrap();
    let took = begun.elapsed();
    // A waiter that was not woken would stay parked for 750 ms at least.
    assert!(took < loosely(ms(400)), "{took:?}");
    assert_eq!(
        threads_named("redlatch-watch"),
        1,
        "that of the other client"
    );
    assert_eq!(threads_named("redlatch-subsc"), 0);
    assert_eq!(server.keys(), [busy.as_str()], "all of ours is given back");
    for _ in 0..12 {
        let (outcome, at) = received.recv_timeout(LONG).unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        assert!(at - begun < loosely(PROMPT));
    }
    for thread in waiting {
        thread.join().unwrap();
    }
    for guard in &guards {
        let loss = guard.lost().recv_timeout(loosely(PROMPT)).unwrap();
        assert_eq!(loss.reason, LossReason::Closed);
        assert!(!guard.is_valid() && guard.hold_count() == 0);
    }
    eventually("its connections are closed", || {
        server.clients_named("").len() == 2 // link and watchdog of the other client at most
            || server.clients_named("").len() == 1
    });

    // `close` can be called again, and every call fails with `Closed`.
    client.close(Duration::ZERO).unwrap();
    let lock = client.reentrant_lock(&held);
    assert!(matches!(lock.lock(), Err(Error::Closed)));
    assert!(matches!(lock.try_lock(), Err(Error::Closed)));
    assert!(matches!(lock.try_lock_for(LONG), Err(Error::Closed)));
    assert!(matches!(lock.is_locked(), Err(Error::Closed)));
    assert!(matches!(lock.remaining_lease(), Err(Error::Closed)));
    assert!(matches!(lock.force_unlock(), Err(Error::Closed)));
    assert!(!Error::Closed.is_retryable());
    assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
    let stats = client.stats();
    assert_eq!((stats.holds, stats.subscriptions), (0, 0));

    // The guards of the closed client do not release the next owner's hold.
    let again = other.reentrant_lock(format!("{held}:0")).lock().unwrap();
    assert!(matches!(
        nested.unlock(),
        Err(Error::Lost { .. } | Error::Closed)
    ));
    let mut guards = guards.into_iter();
    let first = guards.next().unwrap();
    assert!(matches!(
        first.unlock(),
        Err(Error::Lost {
            reason: LossReason::Closed,
            ..
        })
    ));
    drop(guards);
    assert!(again.is_valid());
    assert_eq!(server.hgetall(again.name())[0].0, again.owner());
    again.unlock().unwrap();
    theirs.unlock().unwrap();
    drop(other);
    assert_eq!(threads_named("redlatch"), 0);
    assert_eq!(server.dbsize(), 0);
}

// Closing wakes all waiters, and leaves no hold, place in a queue, or subscription, for every kind.
timed!(closing_wakes_and_gives_back_whatever_the_kind);
fn closing_wakes_and_gives_back_whatever_the_kind() {
    const WAITERS: u64 = 3;
    let _turn = turn();
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let (sender, received) = unbounded();
    let (mut theirs, mut our_guards, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut listened = 0;
    for (kind, take, keep_out, listens) in KINDS {
        let busy = format!("busy:{kind}");
        theirs.push(keep_out(&other, &busy).unwrap());
        our_guards.push(take(&client, &format!("held:{kind}")).unwrap());
        for _ in 0..WAITERS {
            let (client, busy, sender) = (client.clone(), busy.clone(), sender.clone());
            waiting.push(thread::spawn(move || {
                let outcome = take(&client, &busy).map(drop);
                sender.send((kind, outcome, Instant::now())).unwrap();
            }));
        }
        listened += listens(WAITERS);
    }
    subscribed(&server, listened);
    thread::sleep(ms(50)); // queued threads are there, or come too late and are notified just the same
    assert!(received.is_empty());
    let begun = Instant::now();
    client.close(Duration::from_secs(5)).unwrap();
    let took = begun.elapsed();
    assert!(took < loosely(ms(700)), "{took:?}");
    for _ in &waiting {
        let (kind, outcome, at) = received.recv_timeout(LONG).unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{kind}: {outcome:?}");
        assert!(at - begun < loosely(PROMPT), "{kind}");
    }
    for thread in waiting {
        thread.join().unwrap();
    }
    let mut busy: Vec<_> = KINDS.map(|kind| format!("busy:{}", kind.0)).to_vec();
    busy.sort();
    assert_eq!(locks(&server), busy, "all of ours is given back");
    assert_eq!(threads_named("redlatch-subsc"), 0);
    let stats = client.stats();
    assert_eq!((stats.holds, stats.subscriptions), (0, 0));
    for (kind, take, ..) in KINDS {
        let late = take(&client, kind).map(drop);
        assert!(matches!(late, Err(Error::Closed)), "{kind}: {late:?}");
    }
    // The guards of the closed client do not release the next owner's holds.
    let again = KINDS.map(|(kind, take, ..)| take(&other, &format!("held:{kind}")).unwrap());
    let held = locks(&server);
    drop(our_guards);
    assert_eq!(locks(&server), held);
    drop((again, theirs));
    drop(other);
    assert_eq!(threads_named("redlatch"), 0);
    assert!(locks(&server).is_empty());
}

// A thread may end the process after `close`, so `close` must not return before the releases are done.
timed!(a_thread_that_closes_second_waits_for_the_first);
fn a_thread_that_closes_second_waits_for_the_first() {
    let _turn = turn();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(proxy.url()).unwrap();
    let guard = client.reentrant_lock("held").lock().unwrap();
    proxy.set(Target::All, Mode::Stall);
    let (sender, received) = unbounded();
    let close = |limit: Duration| {
        let (client, sender) = (client.clone(), sender.clone());
        thread::spawn(move || sender.send(client.close(limit)).unwrap())
    };
    let first = close(LONG);
    // From here on the first call waits for the reply to its release.
    guard.lost().recv_timeout(LONG).unwrap();
    let late = client.close(ms(30));
    assert!(matches!(late, Err(Error::Redis { .. })), "{late:?}");
    let second = close(LONG);
    assert!(
        received.recv_timeout(ms(100)).is_err(),
        "it is not released"
    );
    proxy.pass();
    for _ in 0..2 {
        received.recv_timeout(LONG).unwrap().unwrap();
        assert!(!server.exists("held"));
    }
    for thread in [first, second] {
        thread.join().unwrap();
    }
    client.close(Duration::ZERO).unwrap();

    // Every later call returns the error of the first.
    let proxy = Proxy::start(server.addr());
    let client = Client::open(proxy.url()).unwrap();
    let guard = client.reentrant_lock("held").lock().unwrap();
    proxy.set(Target::All, Mode::Stall);
    let failed = client.close(ms(100)).unwrap_err().to_string();
    assert_eq!(client.close(LONG).unwrap_err().to_string(), failed);
    drop(guard);
    proxy.pass();
}

timed!(the_last_handle_closes);
fn the_last_handle_closes() {
    let _turn = turn();
    let server = Server::start();
    for last in ["client", "clone", "lock", "guard"] {
        let client = open(&server);
        let (clone, lock) = (client.clone(), client.reentrant_lock("last"));
        let guard = lock.lock().unwrap();
        eventually("the watchdog runs", || threads_named("redlatch") == 1);
        let begun = Instant::now();
        match last {
            "client" => {
                drop((guard, clone, lock));
                assert_eq!(threads_named("redlatch"), 1);
                drop(client);
            }
            "clone" => {
                drop((client, guard, lock));
                assert!(clone.mutex("other").try_lock().unwrap().is_some());
                drop(clone);
            }
            "lock" => {
                drop((client, clone, guard));
                assert!(lock.try_lock_for(LONG).unwrap().is_some());
                drop(lock);
            }
            _ => {
                drop((client, clone, lock));
                assert!(guard.is_valid() && server.exists("last"));
                drop(guard);
            }
        }
        assert!(
            begun.elapsed() < loosely(PROMPT),
            "{last}: {:?}",
            begun.elapsed()
        );
        assert_eq!(threads_named("redlatch"), 0, "{last}");
        assert_eq!(server.dbsize(), 0, "{last}");
        eventually("its connections are closed", || {
            server.clients_named("").is_empty()
        });
    }
}

timed!(a_client_that_has_listened_ends_as_soon);
fn a_client_that_has_listened_ends_as_soon() {
    let _turn = turn();
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let theirs = other.mutex("shared").lock().unwrap();
    assert!(
        client
            .mutex("shared")
            .try_lock_for(ms(50))
            .unwrap()
            .is_none()
    );
    assert!(threads_named("redlatch-subsc") >= 1);
    drop(theirs);
    let begun = Instant::now();
    drop(client);
    drop(other);
    assert!(begun.elapsed() < loosely(PROMPT), "{:?}", begun.elapsed());
    assert_eq!(threads_named("redlatch"), 0);
}

timed!(closing_takes_no_longer_than_it_may_when_redis_is_frozen);
fn closing_takes_no_longer_than_it_may_when_redis_is_frozen() {
    let _turn = turn();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    warm(&server);
    let client = Client::open(proxy.url()).unwrap();
    let name = unique("frozen");
    let guard = client.reentrant_lock(&name).lock().unwrap();
    let (sender, received) = bounded(1);
    let waiting = thread::spawn({
        let lock = client.mutex(&name);
        move || sender.send(lock.lock().map(drop)).unwrap()
    });
    thread::sleep(ms(30));
    proxy.set(Target::All, Mode::Stall);
    let begun = Instant::now();
    let closed = client.close(ms(300));
    let took = begun.elapsed();
    assert!(took < loosely(ms(300)) + loosely(PROMPT), "{took:?}");
    let err = closed.unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err:?}");
    assert!(matches!(
        received.recv_timeout(loosely(PROMPT)).unwrap(),
        Err(Error::Closed)
    ));
    waiting.join().unwrap();
    assert_eq!(
        guard.lost().recv_timeout(loosely(PROMPT)).unwrap().reason,
        LossReason::Closed
    );
    let begun = Instant::now();
    drop(guard);
    drop(client);
    assert!(begun.elapsed() < loosely(PROMPT));
    eventually("the threads end", || threads_named("redlatch") == 0);
    // Redis executes the release that was sent before.
    proxy.pass();
    eventually("it is given back", || !server.exists(&name));
}

// Redis executes what was sent before, so the waiters leave no place in the queue.
timed!(closing_leaves_no_place_in_a_frozen_line);
fn closing_leaves_no_place_in_a_frozen_line() {
    let _turn = turn();
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    for (kind, take, keep_out, listens) in KINDS {
        let client = Client::open(proxy.url()).unwrap();
        drop(take(&client, "warm").unwrap());
        eventually("released", || locks(&server).is_empty());
        let guard = keep_out(&client, kind).unwrap();
        let waiting = [(); 2].map(|()| {
            let client = client.clone();
            thread::spawn(move || take(&client, kind).map(drop))
        });
        if listens(2) == 2 && kind.starts_with("fair") {
            subscribed(&server, 2);
        } else {
            thread::sleep(ms(30));
        }
        proxy.set(Target::All, Mode::Stall);
        let begun = Instant::now();
        let closed = client.close(ms(150));
        assert!(begun.elapsed() < loosely(ms(150)) + loosely(PROMPT));
        assert!(matches!(closed, Err(Error::Redis { .. })), "{closed:?}");
        for thread in waiting {
            let outcome = thread.join().unwrap();
            assert!(matches!(outcome, Err(Error::Closed)), "{kind}: {outcome:?}");
        }
        drop((guard, client));
        proxy.pass();
        eventually("it is given back", || locks(&server).is_empty());
        eventually("the threads end", || threads_named("redlatch") == 0);
    }
}

timed!(closing_races_with_those_who_lock);
fn closing_races_with_those_who_lock() {
    closing_races(15, 12, |i| (reentrant, format!("race:{}", i % 3)));
}

timed!(closing_races_with_those_who_lock_whatever_the_kind);
fn closing_races_with_those_who_lock_whatever_the_kind() {
    // Two threads of each kind.
    closing_races(10, 14, |i| (KINDS[i % 7 + 2].1, format!("race:{}", i % 7)));
}

timed!(closing_races_with_those_who_lock_several_at_once);
fn closing_races_with_those_who_lock_several_at_once() {
    closing_races(30, 12, |i| (members, format!("race:{}", i % 6)));
}

fn closing_races(rounds: u64, threads: usize, what: fn(usize) -> (Take, String)) {
    let _turn = turn();
    let server = Server::start();
    for round in 0..rounds {
        let client = Client::open(Config::new(server.url()).lease(ms(200))).unwrap();
        let threads: Vec<_> = (0..threads)
            .map(|i| {
                let client = client.clone();
                thread::spawn(move || {
                    let (take, name) = what(i);
                    let mut rounds = 0;
                    loop {
                        match take(&client, &name) {
                            Ok(guard) => {
                                rounds += 1;
                                drop(guard);
                            }
                            Err(Error::Closed) => return rounds,
                            // On a busy machine the lease of the first lock may expire before the last of several is
                            // granted.
                            Err(Error::Lost {
                                reason: LossReason::Expired,
                                ..
                            }) => {}
                            Err(err) => panic!("{err:?}"),
                        }
                    }
                })
            })
            .collect();
        thread::sleep(ms(5 + round));
        client.close(Duration::from_secs(5)).unwrap();
        assert_eq!(threads_named("redlatch"), 0);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(locks(&server), [] as [String; 0], "round {round}");
    }
}

// A listener that panics or blocks affects neither other losses nor renewals.
timed!(a_listener_that_misbehaves_harms_nobody);
fn a_listener_that_misbehaves_harms_nobody() {
    let _turn = turn();
    let server = Server::start();
    let (gate, opened) = bounded::<()>(0);
    let calls = Arc::new(AtomicUsize::new(0));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let config = Config::new(server.url()).lease(ms(300)).on_lost({
        let (calls, heard) = (Arc::clone(&calls), Arc::clone(&heard));
        move |loss| {
            match calls.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("on purpose"),
                1 => {
                    opened.recv().ok();
                }
                _ => {}
            }
            heard.lock().unwrap().push((loss.name.clone(), loss.reason));
        }
    });
    let client = Client::open(config).unwrap();
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let lost: Vec<_> = (0..4)
        .map(|i| client.reentrant_lock(format!("lost:{i}")).lock().unwrap())
        .collect();
    for guard in &lost {
        server.cli(&["DEL", guard.name()]);
        let loss = guard.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Forced);
    }
    eventually("the second call blocks", || {
        calls.load(Ordering::SeqCst) == 2
    });
    let begun = Instant::now();
    while begun.elapsed() < ms(700) {
        assert!(kept.is_valid(), "renewals go on");
        thread::sleep(ms(5));
    }
    assert_eq!(client.stats().lost, 4);
    assert!(heard.lock().unwrap().is_empty());
    drop(gate);
    eventually("the others are told, in order", || {
        let heard = heard.lock().unwrap();
        let names: Vec<_> = heard.iter().map(|(name, _)| name.as_str()).collect();
        names == ["lost:1", "lost:2", "lost:3"]
    });
    kept.unlock().unwrap();
    drop(lost);
    let begun = Instant::now();
    drop(client);
    assert!(begun.elapsed() < loosely(PROMPT));
    eventually("the threads end", || threads_named("redlatch") == 0);
}

timed!(a_blocked_listener_does_not_hold_up_the_end);
fn a_blocked_listener_does_not_hold_up_the_end() {
    let _turn = turn();
    let server = Server::start();
    let (gate, opened) = bounded::<()>(0);
    let (sender, received) = unbounded();
    let client = Client::open(Config::new(server.url()).on_lost(move |loss| {
        sender.send(loss.reason).unwrap();
        opened.recv().ok();
    }))
    .unwrap();
    let guard = client.reentrant_lock("one").lock().unwrap();
    assert!(client.reentrant_lock("one").force_unlock().unwrap());
    assert_eq!(received.recv_timeout(LONG).unwrap(), LossReason::Forced);
    let begun = Instant::now();
    client.close(Duration::from_secs(5)).unwrap();
    drop((guard, client));
    assert!(begun.elapsed() < loosely(PROMPT), "{:?}", begun.elapsed());
    drop(gate);
}

#[test]
fn a_process_that_ends_right_after_a_drop_has_released() {
    let _turn = turn();
    let server = Server::start();
    warm(&server);
    for how in ["exit", "return", "leak"] {
        ends(&server, how, KINDS[0].0);
    }
    for (kind, ..) in KINDS {
        ends(&server, "exit", kind);
    }
}

// The server does not know the release script here.
#[test]
fn a_process_that_ends_right_after_the_first_drop_of_all_has_released() {
    let _turn = turn();
    let server = Server::start();
    for how in ["exit", "return", "leak"] {
        server.cli(&["SCRIPT", "FLUSH"]);
        ends(&server, how, KINDS[0].0);
    }
}

/// Starts a process that acquires a lock, drops the guard and ends in this way.
fn ends(server: &Server, how: &str, kind: &str) {
    let name = unique(how);
    let status = rerun(part_that_ends, &[&server.url(), &name, how, kind])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{how}");
    assert_eq!(server.get_int(&format!("{name}:held")), 1, "{how}");
    // The release arrives although nobody waited for its reply.
    eventually(how, || !server.exists(&name));
}

#[test]
#[ignore = "part of a_process_that_ends_right_after_a_drop_has_released"]
fn part_that_ends() {
    let Some([url, name, how, kind]) = given() else {
        return;
    };
    let (_, take, ..) = KINDS.into_iter().find(|entry| entry.0 == kind).unwrap();
    let mut con = support::connection_to(&url);
    let client = Client::open(url).unwrap();
    let guard = take(&client, &name).unwrap();
    let held: u64 = redis::cmd("EXISTS").arg(&name).query(&mut con).unwrap();
    let () = redis::cmd("SET")
        .arg(format!("{name}:held"))
        .arg(held)
        .query(&mut con)
        .unwrap();
    drop(guard);
    match &*how {
        "exit" => std::process::exit(0),
        "leak" => {
            let _leaked = std::mem::ManuallyDrop::new(client);
        }
        _ => {}
    }
}
