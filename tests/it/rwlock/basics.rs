//! The read-write lock as its users see it: who may enter, what Redis stores, and who is notified.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, LossReason, RwLockReadGuard, RwLockWriteGuard};

use crate::support::rwlock::{Actor, Desk, assert_lost, hash, hold_key};
use crate::support::{
    BY_MESSAGE, Crew, LONG, Server, Stops, eventually, loosely, ms, open, open_with_lease, scoped,
    timed, unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// One thread, many holds
// ---------------------------------------------------------------------------------------------------------------------

// Other clients stay excluded by the remaining guards, in whichever order the guards are released.
#[test]
fn nested_guards_may_go_in_any_order() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("nested");
    let lock = ours.rw_lock(&name);
    let they = Actor::new(theirs.rw_lock(&name));
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

#[test]
fn a_hold_is_two_commands_and_a_downgrade_two_more() {
    let server = Server::start();
    let (name, client) = (unique("cost"), open(&server));
    let lock = client.rw_lock(&name);
    let cost = |what: &str, most: u64, verbs: &dyn Fn()| {
        verbs();
        let commands_before = client.stats().commands;
        (0..50).for_each(|_| verbs());
        let sent = client.stats().commands - commands_before;
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
    assert_eq!(server.clients_named("subscriber").len(), 0);
}

// Releasing a read hold does not end the renewal of the write hold of the same thread.
timed!(a_write_hold_is_renewed_whatever_was_read_below_it);
fn a_write_hold_is_renewed_whatever_was_read_below_it() {
    const LEASE: Duration = ms(1_000);
    let server = Server::start();
    let (name, client) = (unique("renewed"), open_with_lease(&server, LEASE));
    let lock = client.rw_lock(&name);
    let guard = lock.write().unwrap();
    for _ in 0..2 {
        lock.read().unwrap().unlock().unwrap();
    }
    let until = Instant::now() + LEASE * 5 / 2;
    while Instant::now() < until {
        assert!(guard.is_valid() && guard.lost().try_recv().is_err());
        assert_eq!(
            server.hgetall(&name),
            hash("write", &[&format!("{}:write", guard.owner())])
        );
        thread::sleep(LEASE / 20);
    }
    // Conversely, a read hold is renewed after the write hold was released.
    let read = lock.read().unwrap();
    guard.unlock().unwrap();
    let until = Instant::now() + LEASE * 3 / 2;
    while Instant::now() < until {
        assert!(read.is_valid() && read.lost().try_recv().is_err());
        assert!(server.exists(&hold_key(&name, read.owner())) && server.exists(&name));
        thread::sleep(LEASE / 20);
    }
    read.unlock().unwrap();
    assert!(server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// Downgrade
// ---------------------------------------------------------------------------------------------------------------------

// A second client tries to write all the time, and never succeeds between the write hold and its downgrade.
#[test]
fn nobody_writes_between_a_write_hold_and_its_downgrade() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("between");
    let (version, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (ours_alone, theirs_alone) = (ours.rw_lock(&name), theirs.rw_lock(&name));
    scoped(|scope| {
        let hammer = scope.spawn(|| {
            let mut grants = 0;
            for turn in 0.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                // In every fourth turn the writer waits, so that readers let it go first.
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
            let my_version = version.load(Ordering::SeqCst);
            let read = write.downgrade().unwrap();
            for _ in 0..20 {
                assert_eq!(version.load(Ordering::SeqCst), my_version);
                thread::yield_now();
            }
            assert_eq!(
                (ours_alone.read_hold_count(), ours_alone.write_hold_count()),
                (1, 0)
            );
            read.unlock().unwrap();
        }
        // The hammer asked all along, and may enter now.
        let my_version = version.load(Ordering::SeqCst);
        eventually("the other one writes", || {
            version.load(Ordering::SeqCst) > my_version
        });
        drop(stops);
        assert!(hammer.join().unwrap() > 0);
    });
    assert!(server.keys().is_empty());
}

// Redisson's readers would only wake by their timers.
timed!(a_downgrade_lets_all_waiting_readers_in);
fn a_downgrade_lets_all_waiting_readers_in() {
    let server = Server::start();
    let name = unique("woken");
    let clients = [(); 3].map(|()| open(&server));
    let writer = Actor::new(clients[0].rw_lock(&name));
    let late = Actor::new(clients[1].rw_lock(&name));
    for extra in 0..2 {
        writer.writes();
        if extra == 1 {
            writer.writes();
        }
        let readers: Vec<_> = (0..9)
            .map(|n| Actor::new(clients[n % 3].rw_lock(&name)))
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
            // The thread still has a second write hold.
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
        assert_eq!(client.stats().missed_messages, 0);
    }
    assert!(server.keys().is_empty());
}

#[test]
fn a_lost_write_hold_cannot_be_downgraded() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("lost");
    let lock = ours.rw_lock(&name);
    let they = Actor::new(theirs.rw_lock(&name));
    let gone = [LossReason::Forced, LossReason::TakenOver];
    // The loss is already known here; or unknown, and in Redis the key is gone, read by others, or written by others.
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

// A downgraded hold keeps the lease and the `max_hold` of the write hold.
timed!(a_downgraded_hold_keeps_its_lease);
fn a_downgraded_hold_keeps_its_lease() {
    let server = Server::start();
    let (name, client) = (unique("terms"), open_with_lease(&server, ms(900)));
    let lock = client.rw_lock(&name);
    let begun = Instant::now();
    let read = lock.clone().fixed_lease(ms(700)).write().unwrap();
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

// ---------------------------------------------------------------------------------------------------------------------
// An outage
// ---------------------------------------------------------------------------------------------------------------------

// The waiting threads need its release, and Redis may be back by then.
timed!(a_holder_whose_question_fails_does_not_fail_those_who_wait_for_it);
fn a_holder_whose_question_fails_does_not_fail_those_who_wait_for_it() {
    let server = Server::start();
    let config = Config::new(server.url()).command_timeout(loosely(ms(1_000)));
    let client = Client::open(config).unwrap();
    let lock = client
        .rw_lock(unique("own question"))
        .fixed_lease(ms(60_000));
    let writing = lock.write().unwrap();
    let mut crew = Crew::new();
    for _ in 0..2 {
        let lock = lock.clone();
        crew.spawn(move || drop(lock.read().unwrap()));
    }
    crew.all_parked();
    server.freeze();
    assert!(lock.read().is_err());
    server.thaw();
    drop(writing);
    crew.join();
}
