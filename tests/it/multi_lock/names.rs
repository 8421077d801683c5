//! Several names of one client as one lock: all of them are held or none, whatever goes wrong.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use redlatch::{CancelToken, Client, Config, Error, LossReason, MultiLockGuard, Result};

use crate::support::multi_lock::{LEASE, left, open, verdicts};
use crate::support::scripts::sha;
use crate::support::{
    BY_MESSAGE, Crew, LONG, Messages, Mode, Proxy, RESPONSE, STRANGER, Server, Target, elsewhere,
    eventually, hold_by_stranger, loosely, lua, ms, scoped, subscribed, timed, unique,
};

/// Long enough for a reply of Redis.
const SHORT_WAIT: Duration = ms(150);

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// Three names, in sorted order.
fn three() -> [String; 3] {
    ["a", "b", "c"].map(unique)
}

/// Asserts that each name is held `count` times, by its owner in the guard.
#[track_caller]
fn held_by(server: &Server, names: &[String], guard: &MultiLockGuard, count: u32) {
    for (name, owner) in names.iter().zip(guard.owner().split(", ")) {
        let hash = server.hgetall(name);
        assert_eq!(hash, [(owner.to_owned(), count.to_string())], "{name}");
    }
}

/// A thread that takes a lock, reports the grant, and keeps the lock until [`leaves`](Self::leaves) or until this is
/// dropped.
struct Other {
    granted: Receiver<()>,
    go: crossbeam_channel::Sender<()>,
    crew: Crew,
}

impl Other {
    fn takes<G>(take: impl FnOnce() -> Result<G> + Send + 'static) -> Self {
        let (sender, granted) = bounded(1);
        let (go, gone) = bounded(0);
        let mut crew = Crew::new();
        crew.spawn(move || {
            let guard = take().unwrap();
            sender.send(()).unwrap();
            gone.recv().unwrap_or_default();
            drop(guard);
        });
        Self { granted, go, crew }
    }

    fn leaves(self) {
        drop(self.go);
        self.crew.join();
    }
}

#[track_caller]
fn lost<T: std::fmt::Debug>(result: Result<T>, reason: LossReason) {
    let is_lost =
        |err: &Error| matches!(err, Error::Lost { reason: found, .. } if *found == reason);
    match result {
        Err(Error::Members { failures, .. }) if failures.iter().all(|(_, err)| is_lost(err)) => {}
        Err(err) if is_lost(&err) => {}
        other => panic!("not lost: {other:?}"),
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Names
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn names_are_a_set() {
    let server = Server::start();
    let client = open(&server.url());
    let names = three();
    let [a, b, c] = &names;
    let lock = client.multi_lock([c, a, b, a, c]);
    assert_eq!(lock.name(), format!("{a}, {b}, {c}"));
    let guard = lock.lock().unwrap();
    assert_eq!(guard.name(), lock.name());
    left(&server, &[a, b, c]);
    held_by(&server, &names, &guard, 1);
    // A lock over the same names adds a hold of each, without any request.
    let (same, commands) = (client.multi_lock([b, c, a]), client.stats().commands);
    assert!(same.is_owned_by_current_thread());
    let again = same.lock().unwrap();
    assert_eq!((again.owner(), again.hold_count()), (guard.owner(), 2));
    assert_eq!(client.stats().commands, commands);
    again.unlock().unwrap();
    assert_eq!(lock.hold_count(), 1);
    drop(guard);
    left(&server, &[]);
}

timed!(however_many_names_they_are_one_write_each_way);
fn however_many_names_they_are_one_write_each_way() {
    let server = Server::start();
    let client = open(&server.url());
    // The connection for renewals opens shortly after the first hold, and its greeting counts as a read, so wait for
    // it.
    let guard = client.multi_lock(["warm", "up"]).lock().unwrap();
    eventually("all connections are open", || {
        !server.clients_named("watchdog").is_empty()
    });
    guard.unlock().unwrap();
    let reads = || -> i64 {
        let stats: String = server.ask(&["INFO", "stats"]);
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_reads_processed:"));
        line.unwrap().parse().unwrap()
    };
    // Up to the number of names whose requests fit into a single read of the server, about 16 kB.
    for n in [1, 2, 20, 80] {
        let names: Vec<_> = (0..n).map(|_| unique("n")).collect();
        let lock = client.multi_lock(&names);
        let asking = reads();
        let asked = reads();
        let guard = lock.lock().unwrap();
        let held = reads();
        assert_eq!(server.dbsize(), n);
        let holding = reads();
        guard.unlock().unwrap();
        let released = reads();
        let question = asked - asking;
        assert_eq!(held - asked - question, 1, "{n} names");
        assert_eq!(released - holding - question, 1, "{n} names");
        assert_eq!(server.dbsize(), 0);
        let guard = lock.lock().unwrap();
        let held = reads();
        drop(guard);
        eventually("all are released", || server.dbsize() == 0);
        let released = reads();
        assert!(released > held);
    }
}

#[test]
fn names_that_look_like_lists_are_kept_apart() {
    let server = Server::start();
    let client = open(&server.url());
    let odd = ["1:a", "a, b", "b", ":", "\0", "日本", "{x}y", "x}", " "];
    let guard = client.multi_lock(odd).lock().unwrap();
    let mut wanted = odd.map(str::to_owned);
    wanted.sort();
    assert_eq!(server.keys(), wanted);
    assert!(
        client
            .multi_lock(["a", "1:b"])
            .try_lock()
            .unwrap()
            .is_some()
    );
    guard.unlock().unwrap();
    left(&server, &[]);
}

#[test]
fn a_prefix_is_before_each_name() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).key_prefix("app:")).unwrap();
    let guard = client.multi_lock(["a", "b"]).lock().unwrap();
    assert_eq!(server.keys(), ["app:a", "app:b"]);
    assert_eq!(guard.name(), "a, b");
    guard.unlock().unwrap();
    left(&server, &[]);
}

timed!(names_of_several_slots_of_a_cluster_are_all_held_or_none);
fn names_of_several_slots_of_a_cluster_are_all_held_or_none() {
    let server = Server::start_cluster();
    // The node has all slots, so a client that takes the node for a single server can use it.
    let lazy = || Client::open(Config::new(server.url()).lease(LEASE).lazy()).unwrap();
    let (client, other) = (lazy(), lazy());
    let [a, b, c] = &three();
    let lock = client.multi_lock([c, a, b]);
    assert!(!lock.is_locked().unwrap());
    let guard = lock.lock().unwrap();
    assert_eq!(guard.name(), format!("{a}, {b}, {c}"));
    left(&server, &[a, b, c]);
    assert!(other.multi_lock([b, "z"]).try_lock().unwrap().is_none());
    let again = client.multi_lock([a, b, c]).lock().unwrap();
    assert_eq!((again.hold_count(), lock.hold_count()), (2, 2));
    drop(again);
    guard.unlock().unwrap();
    left(&server, &[]);
    // No member is held while the caller waits for one of them.
    let busy = other.mutex(b).lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.try_lock_for(SHORT_WAIT).unwrap().is_none());
    left(&server, &[b]);
    let waits = Other::takes(move || lock.lock());
    subscribed(&server, 1);
    waits.crew.all_parked();
    left(&server, &[b]);
    drop(busy);
    assert_eq!(waits.granted.recv_timeout(loosely(BY_MESSAGE)), Ok(()));
    waits.leaves();
}

timed!(what_cannot_be_is_refused_before_anything_is_sent);
fn what_cannot_be_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let client = open(&server.url());
    let asked = server.command_total();
    let none: &[&str] = &[];
    let lock = client.multi_lock(none);
    for verdict in verdicts(&lock) {
        assert!(
            matches!(verdict, Err(Error::InvalidSetting { .. })),
            "{verdict:?}"
        );
    }
    assert_eq!(lock.hold_count(), 0);
    let long = "x".repeat(64 * 1024 + 1);
    for names in [["a", "", "b"], ["", "", ""], ["a", &long, "b"]] {
        for verdict in verdicts(&client.multi_lock(names)) {
            let refused = matches!(verdict, Err(Error::InvalidName { .. }));
            assert!(refused, "{verdict:?}");
        }
    }
    let unable = [
        client.multi_lock(["a", "b"]).fixed_lease(Duration::ZERO),
        client.multi_lock(["a", "b"]).max_hold(Duration::ZERO),
        client
            .multi_lock(["a", "b"])
            .fixed_lease(LEASE)
            .max_hold(LEASE),
    ];
    for lock in unable {
        let verdict = lock.lock();
        assert!(
            matches!(verdict, Err(Error::InvalidSetting { .. })),
            "{verdict:?}"
        );
    }
    assert_eq!(client.stats().commands, 0);
    assert_eq!(server.command_total(), asked);
}

// ---------------------------------------------------------------------------------------------------------------------
// Exclusion
// ---------------------------------------------------------------------------------------------------------------------

/// The result of a single attempt by every other kind of lock on the key of `name`; the guards are kept.
fn others(client: &Client, name: &str) -> Vec<(&'static str, Option<Box<dyn std::any::Any>>)> {
    fn kept<G: 'static>(guard: Result<Option<G>>) -> Option<Box<dyn std::any::Any>> {
        guard.unwrap().map(|guard| Box::new(guard) as _)
    }
    // Stop at the first success, since the kinds exclude each other.
    let mut all: Vec<(&'static str, Option<Box<dyn std::any::Any>>)> = Vec::new();
    let mut one = |kind, guard: Option<Box<dyn std::any::Any>>| {
        let kept = guard.is_some();
        all.push((kind, guard));
        kept
    };
    let _ = one("reentrant", kept(client.reentrant_lock(name).try_lock()))
        || one("mutex", kept(client.mutex(name).try_lock()))
        || one("fair", kept(client.fair_lock(name).try_lock()))
        || one("fenced", kept(client.fenced_lock(name).try_lock()))
        || one("spin", kept(client.spin_lock(name).try_lock()))
        || one("set", kept(client.multi_lock([name, "?"]).try_lock()));
    all
}

#[test]
fn a_set_keeps_every_lock_of_its_names_out() {
    let server = Server::start();
    let (client, other) = (open(&server.url()), open(&server.url()));
    let names = three();
    let guard = client.multi_lock(&names).lock().unwrap();
    for name in &names {
        for (kind, taken) in others(&other, name) {
            assert!(taken.is_none(), "{kind} took {name}");
        }
        // The holding client is no exception, in whatever thread.
        assert!(elsewhere(|| others(&client, name)
            .iter()
            .all(|(_, taken)| taken.is_none())));
    }
    guard.unlock().unwrap();
    assert!(others(&other, &names[1])[0].1.is_some());
}

timed!(every_lock_of_one_of_its_names_keeps_a_set_out_and_nothing_is_taken);
fn every_lock_of_one_of_its_names_keeps_a_set_out_and_nothing_is_taken() {
    let server = Server::start();
    let (client, other) = (open(&server.url()), open(&server.url()));
    for place in 0..3 {
        for kind in 0..7 {
            let names = three();
            let name = &names[place];
            let held: Box<dyn std::any::Any> = match kind {
                0 => Box::new(other.reentrant_lock(name).lock().unwrap()),
                1 => Box::new(other.mutex(name).lock().unwrap()),
                2 => Box::new(other.fair_lock(name).lock().unwrap()),
                3 => Box::new(other.fenced_lock(name).lock().unwrap()),
                4 => Box::new(other.spin_lock(name).lock().unwrap()),
                5 => Box::new(other.multi_lock([name]).lock().unwrap()),
                _ => {
                    hold_by_stranger(&server, name, 60_000);
                    Box::new(())
                }
            };
            let keys_before = server.keys();
            let lock = client.multi_lock(&names);
            assert!(lock.try_lock().unwrap().is_none(), "{kind} at {place}");
            assert_eq!(server.keys(), keys_before, "{kind} at {place}");
            assert!(lock.is_locked().unwrap() && lock.remaining_lease().unwrap() > Some(LEASE / 2));
            drop(held);
            if kind == 6 {
                server.cli(&["DEL", name]);
            }
            eventually("it is free", || lock.try_lock().unwrap().is_some());
        }
    }
    eventually("no lock is left", || {
        let keys = server.keys();
        keys.iter()
            .all(|key| key.starts_with("redisson_lock_token:"))
    });
}

#[test]
fn overlapping_sets_of_one_process_keep_each_other_out() {
    const NAMES: usize = 5;
    let server = Server::start();
    let client = open(&server.url());
    let names: Vec<_> = (0..NAMES).map(|_| unique("n")).collect();
    let inside: Vec<_> = (0..NAMES).map(|_| AtomicBool::new(false)).collect();
    let rounds = AtomicU64::new(0);
    scoped(|scope| {
        for worker in 0..6 {
            let (client, names, inside, rounds) = (&client, &names, &inside, &rounds);
            scope.spawn(move || {
                for round in 0..25 {
                    // Two or three neighbours in a ring, in alternating directions.
                    let mut set: Vec<_> = (0..2 + round % 2)
                        .map(|next| (worker + round + next) % NAMES)
                        .collect();
                    if worker % 2 == 0 {
                        set.reverse();
                    }
                    let lock = client.multi_lock(set.iter().map(|&n| &names[n]));
                    let guard = lock.try_lock_for(LONG).unwrap().expect("progress");
                    for &n in &set {
                        assert!(!inside[n].swap(true, Ordering::SeqCst), "two hold {n}");
                    }
                    thread::yield_now();
                    for &n in &set {
                        inside[n].store(false, Ordering::SeqCst);
                    }
                    drop(guard);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 150);
    left(&server, &[]);
    eventually("no entry is left", || {
        let stats = client.stats();
        (stats.names, stats.holds) == (0, 0)
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// All or nothing
// ---------------------------------------------------------------------------------------------------------------------

timed!(whoever_comes_away_without_the_set_has_none_of_it);
fn whoever_comes_away_without_the_set_has_none_of_it() {
    let server = Server::start();
    let client = open(&server.url());
    for place in 0..3 {
        let names = three();
        let name = &names[place];
        hold_by_stranger(&server, name, 60_000);
        let token = CancelToken::new();
        let lock = client.multi_lock(&names);
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
        assert!(lock.try_lock_until(Instant::now()).unwrap().is_none());
        let begun = Instant::now();
        assert!(lock.try_lock_for(SHORT_WAIT).unwrap().is_none());
        assert!(begun.elapsed() >= SHORT_WAIT);
        let cancelled = scoped(|scope| {
            let lock = lock.clone().cancel_on(&token);
            let waits = scope.spawn(move || lock.try_lock_for(LONG).map(drop));
            subscribed(&server, 1);
            token.cancel();
            waits.join().unwrap()
        });
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
        left(&server, &[name]);
        assert_eq!(server.hgetall(name), [(STRANGER.into(), "1".into())]);

        // A key that is no lock is an error instead of a wait, and stays unchanged.
        for make in [
            &["SET", name, "text"][..],
            &["HSET", name, "mode", "read"],
            &["RPUSH", name, "one"],
        ] {
            server.cli(&["DEL", name]);
            server.cli(make);
            for verdict in [
                lock.lock().map(drop),
                lock.try_lock().map(drop),
                lock.try_lock_for(LONG).map(drop),
            ] {
                let received = matches!(&verdict, Err(Error::Members { failures, .. })
                    if matches!(&failures[..], [(named, Error::WrongType { .. })] if named == name));
                assert!(received, "{make:?}: {verdict:?}");
            }
            left(&server, &[name]);
        }
        assert!(matches!(lock.force_unlock(), Err(Error::WrongType { .. })));
        assert!(matches!(lock.is_locked(), Err(Error::WrongType { .. })));
        left(&server, &[name]);
        server.cli(&["DEL", name]);
        // A single attempt at free names succeeds, and so does a wait of zero.
        assert!(lock.try_lock().unwrap().is_some());
        assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_some());
        left(&server, &[]);
    }
}

timed!(an_acquire_of_unknown_outcome_is_undone);
fn an_acquire_of_unknown_outcome_is_undone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let config = Config::new(proxy.url()).lease(LEASE);
    let client = Client::open(config.command_timeout(RESPONSE)).unwrap();
    let names = three();
    let lock = client.multi_lock(&names);
    lock.lock().unwrap().unlock().unwrap();
    for delivers in [true, false] {
        for limit in [RESPONSE / 4, LONG] {
            // Load the scripts first, so that the trap recognizes the request by the script's hash.
            lock.lock().unwrap().unlock().unwrap();
            let asked = server.calls("evalsha");
            let trap = if delivers {
                proxy.swallow_reply_to(sha(lua::LOCK_ACQUIRE))
            } else {
                proxy.black_hole_request(sha(lua::LOCK_ACQUIRE))
            };
            let answer = lock.try_lock_for(limit);
            assert!(trap.fired());
            if limit < RESPONSE {
                // The limit is too short for a retry. If this thread was suspended, an error is possible too.
                let nothing = matches!(answer, Ok(None) | Err(Error::Redis { .. }));
                assert!(nothing, "{answer:?}");
            } else {
                // The retry uses another owner, and the grant of the first request is undone.
                let guard = answer.unwrap().unwrap();
                eventually("only that is left", || {
                    names.iter().all(|name| server.hgetall(name).len() == 1)
                });
                held_by(&server, &names, &guard, 1);
                drop(guard);
            }
            if delivers {
                eventually("it was executed", || server.calls("evalsha") > asked);
            }
            left(&server, &[]);
        }
    }
    // The connection is cut while the reply is on its way: the retry uses another owner, and the first grant is undone.
    lock.lock().unwrap().unlock().unwrap();
    proxy.set(Target::Link, Mode::Delay(RESPONSE / 2));
    scoped(|scope| {
        let taken = scope.spawn(|| {
            let guard = lock.lock().unwrap();
            held_by(&server, &names, &guard, 1);
        });
        eventually("Redis has granted it", || server.exists(&names[2]));
        proxy.cut(Target::Link);
        proxy.pass();
        taken.join().unwrap();
    });
    left(&server, &[]);
}

timed!(a_question_to_all_members_ends_with_the_timeout);
fn a_question_to_all_members_ends_with_the_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let lock = open(&proxy.url()).multi_lock(three());
    assert!(!lock.is_locked().unwrap());
    // Each member answers in time, all three do not.
    proxy.set(Target::Link, Mode::Delay(ms(250)));
    let lock = lock.command_timeout(ms(500));
    assert!(lock.is_locked().is_err());
    assert!(lock.remaining_lease().is_err());
    assert!(lock.force_unlock().is_err());
}

#[test]
fn a_cut_connection_or_forgotten_scripts_do_not_keep_a_set() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = open(&proxy.url());
    let names = three();
    let lock = client.multi_lock(&names);
    let guard = lock.lock().unwrap();
    proxy.cut(Target::All);
    drop(guard);
    left(&server, &[]);
    server.cli(&["SCRIPT", "FLUSH"]);
    let guard = lock.lock().unwrap();
    server.cli(&["SCRIPT", "FLUSH"]);
    guard.unlock().unwrap();
    left(&server, &[]);
    // The reply to the release is lost, so the client sends the request again.
    let guard = lock.lock().unwrap();
    let trap = proxy.swallow_reply_to(sha(lua::LOCK_RELEASE));
    drop(guard);
    eventually("it is sent", || trap.fired());
    proxy.cut(Target::Link);
    left(&server, &[]);
    lock.lock().unwrap().unlock().unwrap();
    left(&server, &[]);
}

#[test]
fn closing_gives_back_what_is_held_and_ends_what_waits() {
    let server = Server::start();
    let client = open(&server.url());
    let names = three();
    let (lock, more) = (client.multi_lock(&names), unique("d"));
    let guard = lock.lock().unwrap();
    hold_by_stranger(&server, &more, 60_000);
    scoped(|scope| {
        let behind = scope.spawn(|| lock.try_lock_for(LONG).map(drop));
        let waits = scope.spawn(|| {
            client
                .multi_lock([&names[0], &more])
                .try_lock_for(LONG)
                .map(drop)
        });
        let parts = scope.spawn(|| client.multi_lock([&more, "e"]).try_lock_for(LONG).map(drop));
        // Only one thread subscribes, since the others wait for names that this process holds itself.
        subscribed(&server, 1);
        client.close(LONG).unwrap();
        for ended in [behind, waits, parts] {
            let ended = ended.join().unwrap();
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        }
    });
    assert!(!guard.is_valid());
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Closed);
    left(&server, &[&more]);
    for verdict in verdicts(&lock) {
        assert!(matches!(verdict, Err(Error::Closed)), "{verdict:?}");
    }
    left(&server, &[&more]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting
// ---------------------------------------------------------------------------------------------------------------------

timed!(while_it_waits_it_holds_nothing);
fn while_it_waits_it_holds_nothing() {
    let server = Server::start();
    let (client, holder, other) = (
        open(&server.url()),
        open(&server.url()),
        open(&server.url()),
    );
    for place in 0..3 {
        let names = three();
        let busy = holder.reentrant_lock(&names[place]).lock().unwrap();
        let lock = client.multi_lock(&names);
        let waits = Other::takes(move || lock.lock());
        subscribed(&server, 1);
        waits.crew.all_parked();
        for _ in 0..10 {
            assert_eq!(server.keys(), [names[place].clone()]);
            let rest = names.iter().enumerate().filter(|(n, _)| *n != place);
            for (_, name) in rest {
                let taken = other.reentrant_lock(name).try_lock().unwrap();
                taken.expect("a free name").unlock().unwrap();
            }
        }
        assert!(waits.granted.is_empty());
        drop(busy);
        assert_eq!(waits.granted.recv_timeout(loosely(BY_MESSAGE)), Ok(()));
        left(&server, &names.each_ref());
        waits.leaves();
        subscribed(&server, 0);
    }
    let stats = client.stats();
    assert_eq!(
        (stats.missed_messages, stats.subscriptions),
        (0, 0),
        "{stats:?}"
    );
    left(&server, &[]);
}

timed!(it_is_woken_by_one_busy_name_after_another);
fn it_is_woken_by_one_busy_name_after_another() {
    let server = Server::start();
    let (client, holder) = (open(&server.url()), open(&server.url()));
    // The orders in which the names become free.
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let names = three();
        let mut held: Vec<_> = names
            .iter()
            .map(|name| Some(holder.mutex(name).lock().unwrap()))
            .collect();
        let lock = client.multi_lock(&names);
        let waits = Other::takes(move || lock.lock());
        for (gone, place) in order.into_iter().enumerate() {
            subscribed(&server, 1);
            // The waiter subscribes to the first busy name.
            let first = names.iter().zip(&held).find(|(_, held)| held.is_some());
            let channel = format!("redisson_lock__channel:{{{}}}", first.unwrap().0);
            eventually("it listens to the first busy one", || {
                server.channels() == [channel.clone()]
            });
            waits.crew.all_parked();
            assert!(waits.granted.is_empty(), "{gone} of {order:?} are free");
            held[place].take().unwrap().unlock().unwrap();
        }
        assert_eq!(
            waits.granted.recv_timeout(loosely(BY_MESSAGE)),
            Ok(()),
            "{order:?}"
        );
        waits.leaves();
        subscribed(&server, 0);
    }
    assert_eq!(client.stats().missed_messages, 0);
    left(&server, &[]);
}

// A second name becomes busy while the waiter waits for the first.
timed!(a_name_taken_meanwhile_is_waited_for_next);
fn a_name_taken_meanwhile_is_waited_for_next() {
    let server = Server::start();
    let (client, holder) = (open(&server.url()), open(&server.url()));
    for (first, then) in [(0, 2), (2, 0)] {
        let names = three();
        let busy = holder.reentrant_lock(&names[first]).lock().unwrap();
        let lock = client.multi_lock(&names);
        let waits = Other::takes(move || lock.lock());
        subscribed(&server, 1);
        waits.crew.all_parked();
        let taken = holder.reentrant_lock(&names[then]).try_lock().unwrap();
        drop(busy);
        let channel = format!("redisson_lock__channel:{{{}}}", names[then]);
        eventually("it listens to the other", || {
            server.channels() == [channel.clone()]
        });
        waits.crew.all_parked();
        assert_eq!(server.keys(), [names[then].clone()]);
        drop(taken);
        assert_eq!(waits.granted.recv_timeout(loosely(BY_MESSAGE)), Ok(()));
        waits.leaves();
        subscribed(&server, 0);
    }
    assert_eq!(client.stats().missed_messages, 0);
    left(&server, &[]);
}

timed!(its_release_wakes_whoever_waits_for_one_of_its_names);
fn its_release_wakes_whoever_waits_for_one_of_its_names() {
    let server = Server::start();
    let (client, other) = (open(&server.url()), open(&server.url()));
    let names = three();
    let mut messages = Messages::of(&server);
    let guard = client.multi_lock(&names).lock().unwrap();
    let waiting = [
        Other::takes({
            let lock = other.reentrant_lock(&names[0]);
            move || lock.lock()
        }),
        Other::takes({
            let lock = other.fenced_lock(&names[1]);
            move || lock.lock()
        }),
        Other::takes({
            let lock = other.multi_lock([&*names[2], "z"]);
            move || lock.lock()
        }),
    ];
    subscribed(&server, 3);
    waiting.iter().for_each(|waits| waits.crew.all_parked());
    messages.published(&server);
    guard.unlock().unwrap();
    for waits in &waiting {
        assert_eq!(waits.granted.recv_timeout(loosely(BY_MESSAGE)), Ok(()));
    }
    let received: HashSet<_> = messages.published(&server).into_iter().collect();
    let wanted = |name| (format!("redisson_lock__channel:{{{name}}}"), "0".to_owned());
    assert_eq!(received, names.iter().map(wanted).collect());
    waiting.into_iter().for_each(Other::leaves);
    left(&server, &[&format!("redisson_lock_token:{{{}}}", names[1])]);
}

#[test]
fn a_thread_that_has_one_of_the_names_would_wait_for_itself() {
    let server = Server::start();
    let client = open(&server.url());
    for kind in 0..3 {
        let names = three();
        let lock = client.multi_lock(&names);
        let name = &names[2];
        let held: Box<dyn std::any::Any> = match kind {
            0 => Box::new(client.fair_lock(name).lock().unwrap()),
            1 => Box::new(client.fenced_lock(name).lock().unwrap()),
            _ => Box::new(client.spin_lock(name).lock().unwrap()),
        };
        let would_deadlock = |verdict: Result<()>| {
            let received =
                matches!(&verdict, Err(Error::WouldDeadlock { name: named, .. }) if named == name);
            assert!(received, "{kind}: {verdict:?}");
        };
        would_deadlock(lock.try_lock_for(LONG).map(drop));
        would_deadlock(lock.lock().map(drop));
        assert!(!server.exists(&names[1]));
        // The name is busy for another thread.
        assert!(elsewhere(|| lock.try_lock().unwrap().is_none()));
        drop(held);
        assert!(lock.try_lock_for(LONG).unwrap().is_some());
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Leases and losses
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_fixed_lease_and_a_longest_hold_are_those_of_every_name);
fn a_fixed_lease_and_a_longest_hold_are_those_of_every_name() {
    const SHORT: Duration = ms(600);
    let server = Server::start();
    let client = open(&server.url());
    let (fixed, limited) = (three(), three());
    let guard = client.multi_lock(&fixed).fixed_lease(SHORT).lock().unwrap();
    let other = client.multi_lock(&limited).max_hold(SHORT).lock().unwrap();
    for name in &fixed {
        let ttl_left = server.pttl(name);
        assert!((1..=600).contains(&ttl_left), "{ttl_left}");
    }
    assert!(limited.iter().all(|name| server.pttl(name) > 30_000));
    let begun = Instant::now();
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    let loss = other.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::MaxHold);
    assert!(begun.elapsed() >= SHORT / 2);
    left(&server, &limited.each_ref());
    lost(guard.unlock(), LossReason::Expired);
    lost(other.unlock(), LossReason::MaxHold);
    left(&server, &[]);
}

timed!(forcing_takes_every_name_from_whoever_holds_it);
fn forcing_takes_every_name_from_whoever_holds_it() {
    let server = Server::start();
    let (client, other) = (open(&server.url()), open(&server.url()));
    let names = three();
    let lock = client.multi_lock(&names);
    assert!(!lock.force_unlock().unwrap());
    let guard = lock.lock().unwrap();
    let waits = Other::takes({
        let lock = other.multi_lock(&names);
        move || lock.lock()
    });
    subscribed(&server, 1);
    waits.crew.all_parked();
    assert!(
        client
            .multi_lock(names.iter().rev())
            .force_unlock()
            .unwrap()
    );
    assert_eq!(waits.granted.recv_timeout(loosely(BY_MESSAGE)), Ok(()));
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    lost(guard.unlock(), LossReason::Forced);
    left(&server, &names.each_ref());
    waits.leaves();
    left(&server, &[]);
    // A single held name is enough for a result of true, and all names are free afterwards.
    hold_by_stranger(&server, &names[1], 60_000);
    assert!(lock.force_unlock().unwrap());
    left(&server, &[]);
}

timed!(questions_are_about_any_of_the_names);
fn questions_are_about_any_of_the_names() {
    let server = Server::start();
    let client = open(&server.url());
    let names = three();
    let lock = client.multi_lock(&names);
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), None);
    hold_by_stranger(&server, &names[2], 20_000);
    assert!(lock.is_locked().unwrap());
    let left_at_most = |most| {
        let lease_left = lock.remaining_lease().unwrap().unwrap();
        assert!(
            lease_left <= most && lease_left > most / 2,
            "{lease_left:?}"
        );
    };
    left_at_most(ms(20_000));
    hold_by_stranger(&server, &names[0], 50_000);
    left_at_most(ms(50_000));
    server.cli(&["PERSIST", &names[1]]);
    server.cli(&["HSET", &names[1], STRANGER, "1"]);
    assert_eq!(lock.remaining_lease().unwrap(), Some(Duration::MAX));
    server.cli(&["FLUSHALL"]);
    let said = lock.with(|guard| {
        assert_eq!((lock.hold_count(), guard.hold_count()), (1, 1));
        assert!(lock.is_owned_by_current_thread() && guard.is_valid());
        assert!(elsewhere(|| lock.hold_count() == 0));
        assert!(guard.valid_until() > Instant::now() + LEASE / 2);
        held_by(&server, &names, guard, 1);
        7
    });
    assert_eq!(said.unwrap(), 7);
    eventually("all are released", || {
        server.ask::<Vec<String>>(&["KEYS", "*"]).is_empty()
    });
    let guard = lock.lock().unwrap();
    server.cli(&["DEL", &names[1]]);
    lost(guard.unlock(), LossReason::Forced);
    left(&server, &[]);
}
