//! The read-write lock as users meet it: who may come in, what Redis holds meanwhile, and who hears of what.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, LossReason, Result, RwLockReadGuard, RwLockWriteGuard};

use crate::support::rwlock::{Actor, Desk, assert_lost, hash, hold_key};
use crate::support::{
    BY_MESSAGE, LONG, Server, Stops, elsewhere, eventually, loosely, ms, open, open_with_lease,
    timed, unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// Every message on the channel of `name`, in the order of their coming.
struct Messages(Receiver<String>);

impl Messages {
    fn of(server: &Server, channel_name: &str) -> Self {
        let (sender, received) = channel();
        let mut con = server.connection();
        let channel_name = channel_name.to_owned();
        let (ready, is_ready) = channel();
        thread::spawn(move || {
            let mut pubsub = con.as_pubsub();
            pubsub.subscribe(&channel_name).unwrap();
            pubsub.set_read_timeout(None).unwrap();
            ready.send(()).unwrap();
            while let Ok(message) = pubsub.get_message() {
                if sender.send(message.get_payload().unwrap()).is_err() {
                    return;
                }
            }
        });
        is_ready.recv_timeout(LONG).unwrap();
        Self(received)
    }

    /// The next one is `payload`, and it has come already or comes soon.
    #[track_caller]
    fn next(&self, payload: &str) {
        assert_eq!(self.0.recv_timeout(LONG).as_deref(), Ok(payload));
    }

    /// Nothing was said, as far as a message that is sent now overtakes nothing.
    #[track_caller]
    fn none(&self, server: &Server, channel_name: &str) {
        server.cli(&["PUBLISH", channel_name, "mark"]);
        self.next("mark");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What Redis holds
// ---------------------------------------------------------------------------------------------------------------------

timed!(redis_holds_and_hears_what_redisson_would_write);
fn redis_holds_and_hears_what_redisson_would_write() {
    const LEASE: i64 = 20_000;
    let server = Server::start();
    for (prefix, name, key, channel) in [
        ("", "plain", "plain", "redisson_rwlock:{plain}"),
        ("", "tag{ged}", "tag{ged}", "redisson_rwlock:tag{ged}"),
        ("app:", "a b\n", "app:a b\n", "redisson_rwlock:{app:a b\n}"),
    ] {
        let [ours, theirs] = [(); 2].map(|()| {
            let config = Config::new(server.url()).lease(ms(20_000));
            let client = Client::open(config.key_prefix(prefix)).unwrap();
            Actor::new(client.rwlock(name))
        });
        let messages = Messages::of(&server, channel);
        let fresh = |key: &str| {
            let left = server.pttl(key);
            assert!((LEASE - 5_000..=LEASE).contains(&left), "{key}: {left}");
        };
        let holds = |mode: &str, owners: &[&str]| {
            assert_eq!(server.hgetall(key), hash(mode, owners));
            fresh(key);
            let mut keys = vec![key.to_owned()];
            for owner in owners.iter().filter(|owner| !owner.ends_with(":write")) {
                let hold = hold_key(key, owner);
                assert_eq!(server.ask::<String>(&["GET", &hold]), "1");
                fresh(&hold);
                keys.push(hold);
            }
            keys.sort();
            assert_eq!(server.keys(), keys);
        };
        // Readers come and go, and only the last one says so.
        let one = ours.reads();
        holds("read", &[&one]);
        ours.reads();
        holds("read", &[&one]);
        let other = theirs.reads();
        holds("read", &[&one, &other]);
        let uuids = [&one, &other].map(|owner| owner.split_once(':').unwrap().0);
        assert!(uuids[0] != uuids[1] && uuids.iter().all(|uuid| uuid.len() == 36));
        ours.leaves();
        holds("read", &[&other]);
        messages.none(&server, channel);
        theirs.leaves();
        assert_eq!(server.keys(), Vec::<String>::new());
        messages.next("0");
        // A writer, twice over, who reads as well.
        let writer = format!("{}:write", ours.writes());
        holds("write", &[&writer]);
        ours.writes();
        let below = ours.reads();
        holds("write", &[&writer, &below]);
        ours.does(|desk| desk.writes.pop().unwrap().unlock().unwrap());
        holds("write", &[&writer, &below]);
        ours.does(|desk| desk.reads.pop().unwrap().unlock().unwrap());
        holds("write", &[&writer]);
        messages.none(&server, channel);
        let below = ours.reads();
        assert!(!theirs.does(|desk| desk.lock.try_read().unwrap().is_some()));
        ours.does(|desk| desk.writes.pop().unwrap().unlock().unwrap());
        holds("read", &[&below]);
        messages.next("1");
        let other = theirs.reads();
        holds("read", &[&below, &other]);
        theirs.leaves();
        messages.none(&server, channel);
        ours.leaves();
        messages.next("0");
        ours.writes();
        ours.leaves();
        messages.next("1");
        // Forcing takes it from everybody, and says to whom it may matter.
        ours.reads();
        assert!(theirs.does(|desk| desk.lock.force_unlock().unwrap()));
        messages.next("0");
        ours.does(|desk| desk.reads.clear());
        messages.next("0"); // it did not know yet, and Redisson says so too
        ours.does(|desk| assert!(!desk.lock.force_unlock().unwrap()));
        messages.none(&server, channel);
        theirs.writes();
        assert!(theirs.does(|desk| desk.lock.force_unlock().unwrap()));
        messages.next("1");
        theirs.does(|desk| desk.writes.clear());
        assert!(!server.exists(key));
        server.cli(&["FLUSHALL"]);
    }
}

// A lease of its own lives with each hold, and the lock as long as the longest.
#[test]
fn each_read_hold_has_its_own_lease() {
    let server = Server::start();
    let (name, client) = (unique("leases"), open(&server));
    let lock = client.rwlock(&name);
    let short = Actor::new(lock.clone().lease(ms(60_000)));
    let long = Actor::new(lock.clone().lease(ms(600_000)));
    let near = |key: &str, lease: i64| {
        let left = server.pttl(key);
        assert!((lease - 5_000..=lease).contains(&left), "{key}: {left}");
    };
    let (short_owner, long_owner) = (short.reads(), long.reads());
    near(&hold_key(&name, &short_owner), 60_000);
    near(&hold_key(&name, &long_owner), 600_000);
    near(&name, 600_000);
    let third = lock.read().unwrap();
    near(&name, 600_000);
    near(&hold_key(&name, third.owner()), 30_000);
    assert!(lock.remaining().unwrap().unwrap() > ms(590_000));
    long.leaves();
    near(&name, 60_000);
    short.leaves();
    near(&name, 30_000);
    third.unlock().unwrap();
    assert_eq!(lock.remaining().unwrap(), None);
    assert!(server.keys().is_empty());
}

// A lock of another kind under this name does not exclude, so it is refused.
#[test]
fn other_kinds_of_locks_are_refused() {
    let server = Server::start();
    let (name, client) = (unique("kinds"), open(&server));
    let (lock, plain) = (client.rwlock(&name), client.reentrant_lock(&name));
    let wrong = |result: Result<bool>| {
        assert!(matches!(result, Err(Error::WrongType { .. })), "{result:?}");
    };
    let guard = plain.lock().unwrap();
    let kept = server.hgetall(&name);
    wrong(lock.try_read().map(|guard| guard.is_some()));
    wrong(lock.try_write().map(|guard| guard.is_some()));
    wrong(lock.is_read_locked());
    wrong(lock.is_write_locked());
    wrong(lock.force_unlock());
    assert_eq!(server.hgetall(&name), kept);
    guard.unlock().unwrap();
    for reads in [true, false] {
        let _read = reads.then(|| lock.read().unwrap());
        let _write = (!reads).then(|| lock.write().unwrap());
        let kept = server.hgetall(&name);
        wrong(elsewhere(|| plain.try_lock().map(|guard| guard.is_some())));
        assert_eq!(server.hgetall(&name), kept);
    }
    assert_eq!(client.stats().lost, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// One thread, many holds
// ---------------------------------------------------------------------------------------------------------------------

// RW4: whatever the order in which they go, others are kept out by what is left.
#[test]
fn nested_guards_may_go_in_any_order() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("nested");
    let lock = ours.rwlock(&name);
    let they = Actor::new(theirs.rwlock(&name));
    let free = |reads: bool, writes: bool| {
        they.does(move |desk| {
            assert_eq!(desk.lock.try_read().unwrap().is_some(), reads);
            assert_eq!(desk.lock.try_write().unwrap().is_some(), writes);
        });
    };
    enum Guard {
        Read(RwLockReadGuard),
        Write(RwLockWriteGuard),
    }
    for order in permutations(4) {
        let mut guards = [
            Some(Guard::Write(lock.write().unwrap())),
            Some(Guard::Read(lock.read().unwrap())),
            Some(Guard::Write(lock.try_write().unwrap().unwrap())),
            Some(Guard::Read(lock.read().unwrap())),
        ];
        let (mut reads, mut writes) = (2, 2);
        for (turn, at) in order.into_iter().enumerate() {
            free(writes == 0, false);
            match guards[at].take().unwrap() {
                Guard::Read(guard) => {
                    assert_eq!(guard.hold_count(), reads);
                    reads -= 1;
                    guard.unlock().unwrap();
                }
                Guard::Write(guard) => {
                    assert_eq!(guard.hold_count(), writes);
                    writes -= 1;
                    if turn % 2 == 0 {
                        drop(guard);
                    } else {
                        guard.unlock().unwrap();
                    }
                }
            }
            assert_eq!(
                (lock.read_hold_count(), lock.write_hold_count()),
                (reads, writes)
            );
            assert_eq!(lock.is_owned_by_current_thread(), turn < 3);
            assert_eq!(lock.is_write_locked().unwrap(), writes > 0);
            assert_eq!(lock.is_read_locked().unwrap(), reads > 0);
        }
        free(true, true);
        they.does(|desk| assert!(!desk.lock.is_write_locked().unwrap()));
        assert!(server.keys().is_empty());
    }
    assert_eq!(ours.stats().lost + theirs.stats().lost, 0);
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for shorter in permutations(last) {
        for place in 0..n {
            let mut order = shorter.clone();
            order.insert(place, last);
            all.push(order);
        }
    }
    all
}

// RW5: it would wait for itself, also when the hold is another thread's that it shares.
timed!(who_reads_and_wants_to_write_is_told_at_once);
fn who_reads_and_wants_to_write_is_told_at_once() {
    let server = Server::start();
    let (name, client) = (unique("upgrade"), open(&server));
    let [first, second] = [(); 2].map(|()| Actor::new(client.rwlock(&name)));
    let owner = first.reads();
    assert_eq!(second.reads(), owner, "shared");
    let before = server.calls("evalsha");
    for actor in [&first, &second] {
        actor.does(|desk| {
            let begun = Instant::now();
            for result in [
                desk.lock.write().map(|_| true),
                desk.lock.try_write().map(|guard| guard.is_some()),
                desk.lock.try_write_for(LONG).map(|guard| guard.is_some()),
                desk.lock
                    .try_write_until(Instant::now() + LONG)
                    .map(|guard| guard.is_some()),
            ] {
                assert!(
                    matches!(result, Err(Error::WouldDeadlock { .. })),
                    "{result:?}"
                );
            }
            assert!(
                begun.elapsed() < loosely(BY_MESSAGE),
                "{:?}",
                begun.elapsed()
            );
            assert_eq!(desk.counts(), (1, 0));
        });
    }
    assert_eq!(server.calls("evalsha"), before, "nobody was asked");
    first.leaves();
    assert!(first.does(|desk| desk.lock.try_write().unwrap().is_none()));
    second.leaves();
    first.does(|desk| drop(desk.lock.try_write().unwrap().unwrap()));
}

// P1: what a pair of verbs costs.
#[test]
fn a_hold_is_two_commands_and_a_downgrade_two_more() {
    let server = Server::start();
    let (name, client) = (unique("cost"), open(&server));
    let lock = client.rwlock(&name);
    let cost = |what: &str, most: u64, verbs: &dyn Fn()| {
        verbs();
        let before = client.stats().commands;
        (0..50).for_each(|_| verbs());
        let sent = client.stats().commands - before;
        assert_eq!(sent, 50 * most, "{what}");
    };
    cost("read", 2, &|| lock.read().unwrap().unlock().unwrap());
    cost("write", 2, &|| lock.write().unwrap().unlock().unwrap());
    cost("downgrade", 4, &|| {
        let read = lock.write().unwrap().downgrade().unwrap();
        read.unlock().unwrap();
    });
    cost("nested", 4, &|| {
        let _write = (lock.write().unwrap(), lock.write().unwrap());
        let _read = (lock.read().unwrap(), lock.read().unwrap());
    });
    assert_eq!(server.clients_named("redlatch-subscriber").len(), 0);
}

// A write hold has no key of its own: the read hold below it keeps it in Redis until its guard has gone.
timed!(a_write_hold_that_ran_out_lets_readers_in_with_its_guard);
fn a_write_hold_that_ran_out_lets_readers_in_with_its_guard() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("ran_out");
    let lock = ours.rwlock(&name);
    let write = lock.clone().lease(ms(200)).write().unwrap();
    let read = lock.read().unwrap();
    let loss = write.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(read.is_valid() && lock.write_hold_count() == 0);
    assert!(matches!(lock.write(), Err(Error::WouldDeadlock { .. })));
    let they = Actor::new(theirs.rwlock(&name));
    assert!(they.does(|desk| desk.lock.try_read().unwrap().is_none()));
    drop(write);
    they.does(|desk| {
        assert!(
            desk.lock
                .try_read_for(loosely(BY_MESSAGE))
                .unwrap()
                .is_some()
        );
        assert!(desk.lock.try_write().unwrap().is_none());
    });
    read.unlock().unwrap();
    assert!(server.keys().is_empty());
}

// R2: the read hold's end is not the write hold's.
timed!(a_write_hold_is_renewed_whatever_was_read_below_it);
fn a_write_hold_is_renewed_whatever_was_read_below_it() {
    const LEASE: Duration = ms(1_000);
    let server = Server::start();
    let (name, client) = (unique("renewed"), open_with_lease(&server, LEASE));
    let lock = client.rwlock(&name);
    let guard = lock.write().unwrap();
    for _ in 0..2 {
        lock.read().unwrap().unlock().unwrap();
    }
    let until = Instant::now() + LEASE * 5 / 2;
    while Instant::now() < until {
        assert!(guard.is_valid() && guard.lost().is_empty());
        assert_eq!(
            server.hgetall(&name),
            hash("write", &[&format!("{}:write", guard.owner())])
        );
        thread::sleep(LEASE / 20);
    }
    // The other way round: what was read below goes on without it.
    let read = lock.read().unwrap();
    guard.unlock().unwrap();
    let until = Instant::now() + LEASE * 3 / 2;
    while Instant::now() < until {
        assert!(read.is_valid() && read.lost().is_empty());
        assert!(server.exists(&hold_key(&name, read.owner())) && server.exists(&name));
        thread::sleep(LEASE / 20);
    }
    read.unlock().unwrap();
    assert!(server.keys().is_empty());
}

// RW3, W6: a released hold is not renewed, however often it was taken.
timed!(nothing_is_renewed_after_the_last_guard);
fn nothing_is_renewed_after_the_last_guard() {
    const LEASE: Duration = ms(300);
    let server = Server::start();
    let (name, client) = (unique("quiet"), open_with_lease(&server, LEASE));
    let lock = client.rwlock(&name);
    let guards: Vec<_> = (0..3).map(|_| lock.read().unwrap()).collect();
    let sharing = Actor::new(lock.clone());
    sharing.reads();
    let renewals = client.stats().renewals;
    eventually("it is renewed", || client.stats().renewals > renewals + 2);
    drop(guards);
    sharing.leaves();
    {
        let write = lock.write().unwrap();
        let _again = lock.write().unwrap();
        let _read = lock.read().unwrap();
        eventually("both are", || client.stats().renewals > renewals + 8);
        assert_eq!(client.stats().holds, 2);
        let field = format!("{}:write", write.owner());
        // A renewal brings the count, for whoever looks into Redis.
        assert_eq!(server.ask::<u32>(&["HGET", &name, &field]), 2);
    }
    let read = lock.write().unwrap().downgrade().unwrap();
    read.unlock().unwrap();
    assert_eq!(client.stats().holds, 0);
    let (sent, renewals) = (server.calls("evalsha"), client.stats().renewals);
    thread::sleep(LEASE * 5 / 2);
    assert_eq!(
        (server.calls("evalsha"), client.stats().renewals),
        (sent, renewals)
    );
    assert!(server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Downgrade
// ---------------------------------------------------------------------------------------------------------------------

// RW4: a second client asks all the time, and never gets in between.
#[test]
fn nobody_writes_between_a_write_hold_and_its_downgrade() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("between");
    let (version, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (ours_alone, theirs_alone) = (ours.rwlock(&name), theirs.rwlock(&name));
    thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            let mut grants = 0;
            for turn in 0.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                // At times it waits, so that readers let it go first.
                let wait = if turn % 4 == 0 { ms(30) } else { ms(0) };
                if let Ok(Some(guard)) = theirs_alone.try_write_for(wait) {
                    version.fetch_add(1, Ordering::SeqCst);
                    grants += 1;
                    guard.unlock().unwrap();
                }
            }
            grants
        });
        let stops = Stops(&done);
        for _ in 0..150 {
            let write = ours_alone.write().unwrap();
            let mine = version.load(Ordering::SeqCst);
            let read = write.downgrade().unwrap();
            for _ in 0..20 {
                assert_eq!(version.load(Ordering::SeqCst), mine);
                thread::yield_now();
            }
            assert_eq!(
                (ours_alone.read_hold_count(), ours_alone.write_hold_count()),
                (1, 0)
            );
            read.unlock().unwrap();
        }
        // It did ask, and it could come in.
        let mine = version.load(Ordering::SeqCst);
        eventually("the other one writes", || {
            version.load(Ordering::SeqCst) > mine
        });
        drop(stops);
        assert!(hammer.join().unwrap() > 0);
    });
    assert!(server.keys().is_empty());
}

// R10: Redisson's readers would wait for their timers.
timed!(a_downgrade_lets_all_waiting_readers_in);
fn a_downgrade_lets_all_waiting_readers_in() {
    let server = Server::start();
    let name = unique("woken");
    let clients = [(); 3].map(|()| open(&server));
    let writer = Actor::new(clients[0].rwlock(&name));
    let late = Actor::new(clients[1].rwlock(&name));
    for extra in 0..2 {
        writer.writes();
        if extra == 1 {
            writer.writes();
        }
        let readers: Vec<_> = (0..9)
            .map(|n| Actor::new(clients[n % 3].rwlock(&name)))
            .collect();
        let waiting: Vec<_> = readers
            .iter()
            .map(|reader| {
                reader.begins(|desk| {
                    desk.read();
                    Instant::now()
                })
            })
            .collect();
        eventually("all but the writer's listen", || {
            server
                .ask::<(String, u64)>(&["PUBSUB", "NUMSUB", &format!("redisson_rwlock:{{{name}}}")])
                .1
                == 2
        });
        let downgrades = |desk: &mut Desk| {
            let read = desk.writes.pop().unwrap().downgrade().unwrap();
            desk.reads.push(read);
        };
        if extra == 1 {
            // A further hold goes on writing.
            writer.does(downgrades);
            assert_eq!(writer.does(|desk| desk.counts()), (1, 1));
            assert!(late.does(|desk| desk.lock.try_read().unwrap().is_none()));
        }
        let begun = Instant::now();
        writer.does(downgrades);
        for reader in waiting {
            let took = reader.recv_timeout(LONG).unwrap() - begun;
            assert!(took < loosely(BY_MESSAGE), "{took:?}");
        }
        late.does(|desk| {
            assert!(desk.lock.try_write().unwrap().is_none());
            assert!(desk.lock.try_read().unwrap().is_some());
        });
        writer.leaves();
        readers.iter().for_each(Actor::leaves);
        late.does(|desk| drop(desk.lock.try_write().unwrap().unwrap()));
    }
    for client in &clients {
        assert_eq!(client.stats().poll_rescues, 0);
    }
    assert!(server.keys().is_empty());
}

#[test]
fn a_lost_write_hold_cannot_be_downgraded() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("lost");
    let lock = ours.rwlock(&name);
    let they = Actor::new(theirs.rwlock(&name));
    let gone = [LossReason::Forced, LossReason::TakenOver];
    // Known here already; unknown, with the key gone, read or written by others.
    for (how, reasons) in [
        ("forced", &gone[..1]),
        ("gone", &gone[..]),
        ("read", &gone[1..]),
        ("written", &gone[1..]),
    ] {
        let write = lock.write().unwrap();
        match how {
            "forced" => assert!(lock.force_unlock().unwrap()),
            "gone" => assert_eq!(server.ask::<i64>(&["DEL", &name]), 1),
            _ => {
                they.does(|desk| desk.lock.force_unlock().unwrap());
                if how == "read" {
                    they.reads();
                } else {
                    they.writes();
                }
            }
        }
        let kept = server.hgetall(&name);
        assert_lost(write.downgrade(), reasons);
        assert_eq!(
            (lock.read_hold_count(), lock.write_hold_count()),
            (0, 0),
            "{how}"
        );
        eventually("nothing is ours", || server.hgetall(&name) == kept);
        they.leaves();
        assert!(server.keys_but_requests().is_empty(), "{how}");
    }
    assert_eq!(theirs.stats().lost, 0);
}

// A downgraded hold lives on the terms of the write hold.
timed!(a_downgraded_hold_keeps_its_lease);
fn a_downgraded_hold_keeps_its_lease() {
    let server = Server::start();
    let (name, client) = (unique("terms"), open_with_lease(&server, ms(900)));
    let lock = client.rwlock(&name);
    let begun = Instant::now();
    let read = lock.clone().lease(ms(700)).write().unwrap();
    let read = read.downgrade().unwrap();
    let loss = read.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(begun.elapsed() >= ms(690) && begun.elapsed() < loosely(ms(2_000)));
    assert_lost(read.unlock(), &[LossReason::Expired]);
    let limited = lock.clone().max_hold(ms(500)).write().unwrap();
    let begun = Instant::now();
    let read = limited.downgrade().unwrap();
    assert_eq!(
        read.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::MaxHold
    );
    assert!(begun.elapsed() >= ms(490));
    drop(read);
    let read = lock.write().unwrap().downgrade().unwrap();
    assert!(read.lost().recv_timeout(ms(1_400)).is_err());
    read.unlock().unwrap();
    eventually("nothing is left", || server.keys().is_empty());
}
