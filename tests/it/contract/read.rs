//! Where reading a read-write lock behaves like any other lock, and where it differs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use redlatch::{CancelToken, Client, Error, LossReason};

use crate::support::rwlock::hold_key;
use crate::support::{
    Crew, LONG, Losses, Mode, Proxy, READING, SLACK, STRANGER, Server, Target, WRITING, always,
    elsewhere, eventually, in_haste, increment, loosely, ms, open, open_with_lease, scoped,
    settings, settings_by, stranger_holds, subscribed, timed, unique, unless_late,
};

mod as_any_other {
    crate::contract::held_to! { crate::support::READING:
        busy_is_none,
        a_limited_wait_takes_its_time_and_gives_none,
        no_wait_is_one_attempt,
        an_endless_wait_ends_with_the_lock,
        with_holds_the_lock_for_as_long_as_it_runs,
        a_drop_wakes_a_waiter_of_another_client_by_message,
        a_release_publishes_redissons_message,
        a_strangers_lock_is_waited_for,
        a_vanished_lock_is_noticed_without_a_message,
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
}

// ---------------------------------------------------------------------------------------------------------------------
// Sharing
// ---------------------------------------------------------------------------------------------------------------------

timed!(readers_share_and_a_writer_is_alone);
fn readers_share_and_a_writer_is_alone() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let (name, counter) = (unique("share"), unique("counter"));
    let clients = [open(&server), open(&server), open(&server)];
    let (reading, writing, most) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    scoped(|scope| {
        for client in &clients {
            for thread in 0..4 {
                let (lock, counter) = (client.rw_lock(&name), &counter);
                let (reading, writing, most) = (&reading, &writing, &most);
                let mut con = server.connection();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        if (thread + round) % 4 == 0 {
                            let guard = lock.write().unwrap();
                            always(writing.fetch_add(1, Ordering::SeqCst) == 0, "two write");
                            always(reading.load(Ordering::SeqCst) == 0, "one reads");
                            increment(&mut con, counter);
                            writing.fetch_sub(1, Ordering::SeqCst);
                            drop(guard);
                        } else {
                            let guard = match round % 3 {
                                0 => lock.read().unwrap(),
                                1 => lock.try_read_for(LONG).unwrap().unwrap(),
                                _ => lock.try_read_until(Instant::now() + LONG).unwrap().unwrap(),
                            };
                            let readers = 1 + reading.fetch_add(1, Ordering::SeqCst);
                            always(writing.load(Ordering::SeqCst) == 0, "one writes");
                            most.fetch_max(readers, Ordering::SeqCst);
                            thread::sleep(Duration::from_micros(200));
                            reading.fetch_sub(1, Ordering::SeqCst);
                            guard.unlock().unwrap();
                        }
                    }
                });
            }
        }
    });
    always(server.get_int(&counter) == 3 * 40, "a turn is lost");
    assert!(most.load(Ordering::SeqCst) > 1, "nobody shared");
    server.cli(&["DEL", &counter]);
    eventually("nothing is left", || server.dbsize() == 0);
}

timed!(threads_of_a_process_share_one_hold_for_nothing);
fn threads_of_a_process_share_one_hold_for_nothing() {
    const THREADS: u64 = 8;
    let server = Server::start();
    let name = unique("bench");
    let client = Client::open(settings(&server).tenure(ms(1_000))).unwrap();
    let lock = client.rw_lock(&name);
    lock.read().unwrap().unlock().unwrap();
    let first = lock.read().unwrap();
    let (stats_before, scripts) = (client.stats(), server.calls("evalsha"));
    let (sender, received) = unbounded();
    let (go, gone) = bounded::<()>(0);
    let mut crew = Crew::new();
    for n in 0..THREADS {
        let (lock, owner) = (lock.clone(), first.owner().to_owned());
        let (sender, gone) = (sender.clone(), gone.clone());
        crew.spawn(move || {
            let guard = if n % 2 == 0 {
                lock.read().unwrap()
            } else {
                lock.try_read().unwrap().unwrap()
            };
            assert_eq!((guard.owner(), guard.hold_count()), (&*owner, 1));
            let again = lock.read().unwrap();
            assert_eq!((again.hold_count(), lock.read_hold_count()), (2, 2));
            drop(guard);
            assert_eq!((again.hold_count(), lock.read_hold_count()), (1, 1));
            sender.send(()).unwrap();
            gone.recv().unwrap();
            assert!(again.is_valid());
            again.unlock().unwrap();
            assert!(!lock.is_owned_by_current_thread());
        });
        received.recv_timeout(LONG).unwrap();
    }
    assert_eq!(server.hgetall(&name), READING.fields(first.owner(), 1));
    // Only the last reader releases the hold in Redis.
    first.unlock().unwrap();
    assert!(!lock.is_owned_by_current_thread() && lock.read_hold_count() == 0);
    for _ in 1..THREADS {
        go.send(()).unwrap();
    }
    assert!(server.exists(&name) && lock.is_read_locked().unwrap());
    let after = client.stats();
    assert_eq!(after.shared - stats_before.shared, THREADS);
    assert_eq!(after.acquired, stats_before.acquired);
    // Readers check now and then whether a writer waits.
    let scripts = server.calls("evalsha") - scripts;
    assert!(scripts <= 2, "{scripts} with that of is_read_locked");
    go.send(()).unwrap();
    crew.join();
    assert_eq!(server.dbsize(), 0);
}

/// Starts `threads` readers of each client. A reader sends when it entered, and stays until it receives something.
fn readers(clients: &[Client], name: &str, threads: u64) -> (Receiver<Instant>, Sender<()>, Crew) {
    let (sender, received) = unbounded();
    let (go, gone) = bounded(0);
    let mut crew = Crew::new();
    for client in clients {
        for _ in 0..threads {
            let (lock, sender, gone) = (client.rw_lock(name), sender.clone(), gone.clone());
            crew.spawn(move || {
                let _guard = lock.read().unwrap();
                sender.send(Instant::now()).unwrap();
                gone.recv().unwrap();
            });
        }
    }
    (received, go, crew)
}

timed!(a_writer_that_leaves_lets_all_readers_in_at_once);
fn a_writer_that_leaves_lets_all_readers_in_at_once() {
    const THREADS: u64 = 6;
    let server = Server::start();
    let name = unique("crowd");
    let clients = [(); 3].map(|()| Client::open(settings(&server).tenure(ms(1_000))).unwrap());
    let writer = clients[0].rw_lock(&name).write().unwrap();
    let (received, go, crew) = readers(&clients, &name, THREADS);
    // Readers in the writer's own process are notified without a subscription.
    subscribed(&server, 2);
    crew.all_parked();
    let all_stats = clients.each_ref().map(Client::stats);
    let left_at = Instant::now();
    drop(writer);
    for _ in 0..3 * THREADS {
        // No reader leaves before all have entered.
        let came = received.recv_timeout(LONG).unwrap();
        assert!(came - left_at < loosely(ms(500)), "{:?}", came - left_at);
    }
    for (client, stats_before) in clients.iter().zip(all_stats) {
        let after = client.stats();
        assert_eq!(
            after.acquired - stats_before.acquired,
            1,
            "one asks for all"
        );
        assert_eq!(after.shared - stats_before.shared, THREADS - 1);
    }
    assert_eq!(server.hgetall(&name).len(), 1 + 3);
    for _ in 0..3 * THREADS {
        go.send(()).unwrap();
    }
    crew.join();
    eventually("nothing is left", || server.dbsize() == 0);
}

// The guard of the writer still exists, so the end of its lease alone lets the readers in.
timed!(readers_come_in_together_when_the_fixed_lease_of_a_writer_ends);
fn readers_come_in_together_when_the_fixed_lease_of_a_writer_ends() {
    const THREADS: u64 = 2;
    let server = Server::start();
    let name = unique("over");
    let clients = [open(&server), open(&server)];
    let fixed = clients[0].rw_lock(&name).fixed_lease(loosely(ms(400)));
    let writer = fixed.write().unwrap();
    let until = writer.valid_until();
    let (received, go, crew) = readers(&clients, &name, THREADS);
    for _ in 0..2 * THREADS {
        // No reader leaves before all have entered.
        let came = received.recv_timeout(LONG).unwrap();
        assert!(came >= until, "{:?} too early", until - came);
        assert!(came < until + loosely(SLACK), "{:?} late", came - until);
    }
    for _ in 0..2 * THREADS {
        go.send(()).unwrap();
    }
    crew.join();
    drop(writer);
    eventually("nothing is left", || server.dbsize() == 0);
}

timed!(leases_of_readers_do_not_interfere);
fn leases_of_readers_do_not_interfere() {
    let lease = loosely(ms(240));
    let server = Server::start();
    let name = unique("leases");
    let client = open_with_lease(&server, lease);
    let renewed = client.rw_lock(&name);
    let fixed = renewed.clone().fixed_lease(loosely(ms(400)));
    let long = renewed.clone().fixed_lease(Duration::from_secs(60));
    let guard = renewed.read().unwrap();
    let owner = guard.owner().to_owned();
    elsewhere(|| {
        let ends = fixed.read().unwrap();
        assert_ne!(ends.owner(), owner, "another lease is another hold");
        let stays = elsewhere(|| {
            let stays = long.read().unwrap();
            assert_ne!(stays.owner(), owner);
            let key = hold_key(&name, stays.owner());
            assert!(server.pttl(&key) > 50_000 && server.pttl(&name) > 50_000);
            stays.unlock().unwrap();
            key
        });
        assert!(!server.exists(&stays));
        assert_eq!(server.hgetall(&name).len(), 1 + 2);
        let until = ends.valid_until();
        let loss = ends.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Expired, "never renewed");
        assert!(Instant::now() >= until);
    });
    let begun = Instant::now();
    while begun.elapsed() < 3 * lease / 2 {
        assert!(guard.is_valid(), "renewed next to a fixed one");
        thread::sleep(ms(5));
    }
    assert_eq!(server.hgetall(&name), READING.fields(&owner, 1));
    guard.unlock().unwrap();
    assert_eq!(server.dbsize(), 0);
}

// A further hold of one thread must not extend the hold of another thread beyond the lease that it asked for.
timed!(a_fixed_lease_ends_for_each_reader_as_it_asked);
fn a_fixed_lease_ends_for_each_reader_as_it_asked() {
    let server = Server::start();
    let name = unique("refix");
    let client = open(&server);
    let renewed = client.rw_lock(&name);
    let fixed = renewed.clone().fixed_lease(loosely(ms(600)));
    let own_guard = fixed.read().unwrap();
    let (sender, received) = unbounded();
    let (go, gone) = bounded::<()>(0);
    let mut crew = Crew::new();
    let theirs = fixed.clone();
    crew.spawn(move || {
        let guard = theirs.read().unwrap();
        sender.send(()).unwrap();
        gone.recv().unwrap();
        let loss = guard.lost().recv_timeout(LONG).map(|loss| loss.reason);
        assert_eq!(loss, Ok(LossReason::Expired));
    });
    received.recv_timeout(LONG).unwrap();
    let again = renewed.read().unwrap();
    assert!(again.is_valid() && own_guard.is_valid() && again.hold_count() == 2);
    go.send(()).unwrap();
    crew.join();
    assert!(
        again.is_valid() && own_guard.is_valid(),
        "the renewed read extends the thread's own hold"
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// One thread
// ---------------------------------------------------------------------------------------------------------------------

timed!(who_reads_and_wants_to_write_would_wait_for_itself);
fn who_reads_and_wants_to_write_would_wait_for_itself() {
    let server = Server::start();
    let name = unique("upgrade");
    let (client, other) = (open(&server), open(&server));
    let lock = client.rw_lock(&name);
    let read = lock.read().unwrap();
    let again = client.rw_lock(&name).fixed_lease(LONG);
    let commands = server.command_total();
    let begun = Instant::now();
    for verdict in [
        lock.write().map(Some),
        lock.try_write(),
        lock.try_write_for(LONG),
        lock.try_write_until(Instant::now() + LONG),
        again.write().map(Some),
        again.cancel_on(&CancelToken::new()).try_write_for(LONG),
    ] {
        assert!(
            matches!(&verdict, Err(Error::WouldDeadlock { name: named, .. }) if *named == name),
            "{verdict:?}"
        );
    }
    assert!(begun.elapsed() < loosely(ms(500)));
    assert_eq!(server.command_total(), commands, "no command was sent");
    assert!(read.is_valid() && read.hold_count() == 1);
    // Other threads do not hold the lock, so they only fail to get it.
    elsewhere(|| {
        assert!(lock.try_write().unwrap().is_none());
        assert!(lock.try_write_for(ms(30)).unwrap().is_none());
        // A thread that shares the hold would wait for itself as well.
        let shared = lock.read().unwrap();
        let verdict = lock.try_write();
        assert!(matches!(verdict, Err(Error::WouldDeadlock { .. })));
        drop(shared);
    });
    assert!(other.rw_lock(&name).try_write().unwrap().is_none());
    read.unlock().unwrap();
    lock.write().unwrap().unlock().unwrap();
    assert_eq!(server.dbsize(), 0);
}

timed!(who_writes_may_read_and_each_hold_is_counted_for_itself);
fn who_writes_may_read_and_each_hold_is_counted_for_itself() {
    let server = Server::start();
    let name = unique("below");
    let lease = loosely(ms(600));
    let (client, other) = (open_with_lease(&server, lease), open(&server));
    let (lock, theirs) = (client.rw_lock(&name), other.rw_lock(&name));
    let counts = || (lock.read_hold_count(), lock.write_hold_count());
    let state = || {
        (
            theirs.is_read_locked().unwrap(),
            theirs.is_write_locked().unwrap(),
        )
    };
    assert_eq!((counts(), state()), ((0, 0), (false, false)));
    for write_first in [false, true] {
        let write = lock.write().unwrap();
        assert_eq!((counts(), state()), ((0, 1), (false, true)));
        let read = lock.read().unwrap();
        assert_ne!(read.owner(), write.owner());
        let again = lock.try_read().unwrap().unwrap();
        let alone = lock.write().unwrap();
        assert_eq!((counts(), state()), ((2, 2), (true, true)));
        assert_eq!((read.hold_count(), write.hold_count()), (2, 2));
        assert!(lock.is_owned_by_current_thread());
        elsewhere(|| {
            assert!(!lock.is_owned_by_current_thread() && counts() == (0, 0));
            assert!(lock.try_read().unwrap().is_none());
        });
        assert!(theirs.try_read().unwrap().is_none());
        // Both holds are renewed.
        let begun = Instant::now();
        while begun.elapsed() < 3 * lease / 2 {
            assert!(read.is_valid() && write.is_valid());
            assert!(server.exists(&hold_key(&name, read.owner())));
            thread::sleep(ms(10));
        }
        drop((again, alone));
        assert_eq!(counts(), (1, 1));
        if write_first {
            write.unlock().unwrap();
            assert_eq!((counts(), state()), ((1, 0), (true, false)));
            assert!(lock.is_owned_by_current_thread());
            assert_eq!(server.hgetall(&name), READING.fields(read.owner(), 1));
            // Now other clients may read, but not write.
            theirs.try_read().unwrap().unwrap().unlock().unwrap();
            assert!(theirs.try_write().unwrap().is_none());
            assert!(matches!(lock.try_write(), Err(Error::WouldDeadlock { .. })));
            read.unlock().unwrap();
        } else {
            read.unlock().unwrap();
            assert_eq!((counts(), state()), ((0, 1), (false, true)));
            assert!(theirs.try_read().unwrap().is_none());
            write.unlock().unwrap();
        }
        assert_eq!((counts(), state()), ((0, 0), (false, false)));
        assert_eq!(server.dbsize(), 0);
    }
    assert_eq!(client.stats().holds, 0);
}

// The read hold of the same thread keeps the hash alive, but must not keep the expired write hold alive.
timed!(a_write_hold_that_is_over_is_over_although_a_read_hold_is_below);
fn a_write_hold_that_is_over_is_over_although_a_read_hold_is_below() {
    let server = Server::start();
    let name = unique("over");
    let (lease, limit) = (loosely(ms(900)), loosely(ms(500)));
    let (client, other) = (open_with_lease(&server, lease), open(&server));
    let lock = client.rw_lock(&name);
    for (limited, reason) in [
        (lock.clone().fixed_lease(limit), LossReason::Expired),
        (lock.clone().max_hold(limit), LossReason::MaxHold),
    ] {
        let write = limited.write().unwrap();
        let read = lock.read().unwrap();
        let begun = Instant::now();
        assert!(other.rw_lock(&name).try_read().unwrap().is_none());
        assert_eq!(write.lost().recv_timeout(LONG).unwrap().reason, reason);
        // The write hold ends even though its guard still exists, as that of a stuck thread would.
        let theirs = other.rw_lock(&name).try_read_for(LONG).unwrap().unwrap();
        assert!(begun.elapsed() < limit + lease + loosely(SLACK));
        assert!(read.is_valid() && lock.write_hold_count() == 0);
        theirs.unlock().unwrap();
        assert!(other.rw_lock(&name).try_write().unwrap().is_none());
        drop(write);
        eventually("only the read hold is left", || {
            server.hgetall(&name) == READING.fields(read.owner(), 1)
        });
        read.unlock().unwrap();
        assert_eq!(server.dbsize(), 0);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Loss
// ---------------------------------------------------------------------------------------------------------------------

/// Two threads share a hold. After `robbed` both are notified of `reason` exactly once, and the hold does not come
/// back.
fn both_are_told(reason: LossReason, robbed: impl Fn(&Server, &str, &str) + Send + Sync) {
    unless_late(&|| both_are_told_once(reason, &robbed));
}

fn both_are_told_once(reason: LossReason, robbed: &(impl Fn(&Server, &str, &str) + Send + Sync)) {
    let server = Server::start();
    let received = Losses::default();
    let lease = loosely(ms(900));
    let config = in_haste(settings(&server))
        .lease(lease)
        .tenure(ms(1_000))
        .on_lost(received.listener());
    let client = Client::open(config).unwrap();
    let name = unique("robbed");
    let lock = client.rw_lock(&name);
    let guard = lock.read().unwrap();
    let owner = guard.owner().to_owned();
    elsewhere(|| {
        let shared = lock.read().unwrap();
        assert_eq!(shared.owner(), owner);
        robbed(&server, &name, &owner);
        for guard in [&guard, &shared] {
            let loss = guard.lost().recv_timeout(lease).unwrap();
            assert_eq!((loss.reason, &loss.name), (reason, &name));
            assert_eq!(loss.owner, owner);
            assert!(!guard.is_valid() && guard.hold_count() == 0);
        }
        let holds_left = server.hgetall(&name);
        let unlocked = shared.unlock();
        assert!(
            matches!(unlocked, Err(Error::Lost { reason: found, .. }) if found == reason),
            "{unlocked:?}"
        );
        assert_eq!(
            server.hgetall(&name),
            holds_left,
            "the other holds are unchanged"
        );
    });
    assert!(!lock.is_owned_by_current_thread() && lock.read_hold_count() == 0);
    let renewals = client.stats().renewals;
    drop(guard);
    assert!(
        !server.exists(&hold_key(&name, &owner)),
        "the hold does not come back"
    );
    eventually("the loss is reported once", || {
        received.reasons(&name) == [reason]
    });
    assert_eq!(client.stats().renewals, renewals);
}

timed!(a_read_hold_whose_hash_vanishes_is_forced);
fn a_read_hold_whose_hash_vanishes_is_forced() {
    both_are_told(LossReason::Forced, |server, name, _| {
        server.cli(&["DEL", name]);
    });
}

// Other readers keep their holds.
timed!(a_read_hold_that_loses_its_half_is_forced_and_others_are_not);
fn a_read_hold_that_loses_its_half_is_forced_and_others_are_not() {
    for half in ["field", "key"] {
        both_are_told(LossReason::Forced, |server, name, owner| {
            let theirs = "{name}:9f8e7d6c-5b4a-4321-8fed-cba987654321:57:rwlock_timeout:1";
            server.cli(&["HSET", name, STRANGER, "1"]);
            let theirs = theirs.replace("name", name);
            server.cli(&["SET", &theirs, "1", "PX", "60000"]);
            match half {
                "field" => server.cli(&["HDEL", name, owner]),
                _ => server.cli(&["DEL", &hold_key(name, owner)]),
            };
            eventually("the other half is removed", || {
                server.hgetall(name) == READING.fields(STRANGER, 1)
                    && server.keys() == READING.keys(name, STRANGER)
            });
        });
    }
}

timed!(a_read_hold_where_somebody_writes_is_taken_over);
fn a_read_hold_where_somebody_writes_is_taken_over() {
    both_are_told(LossReason::TakenOver, |server, name, _| {
        server.cli(&["DEL", name]);
        stranger_holds(WRITING, server, name, 60_000);
    });
}

timed!(a_read_hold_that_is_forced_open_is_told_to_all_threads_at_once);
fn a_read_hold_that_is_forced_open_is_told_to_all_threads_at_once() {
    both_are_told(LossReason::Forced, |server, name, owner| {
        let other = open(server);
        assert!(other.rw_lock(name).force_unlock().unwrap());
        // The hold's own key is left to expire.
        assert!(!server.exists(name) && server.pttl(&hold_key(name, owner)) > 0);
    });
}

// The reader is notified before a writer can acquire the lock.
timed!(a_lease_and_a_half_without_renewal_is_told_before_a_writer_can_be_in);
fn a_lease_and_a_half_without_renewal_is_told_before_a_writer_can_be_in() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    let received = Losses::default();
    let span = loosely(ms(1_500));
    let config = in_haste(settings_by(&server, proxy.addr()))
        .lease(span)
        .on_lost(received.listener());
    let client = Client::open(config).unwrap();
    let (name, other) = (unique("gone"), open(&server));
    let guard = client.rw_lock(&name).read().unwrap();
    let renewals = client.stats().renewals;
    eventually("the hold is renewed", || client.stats().renewals > renewals);
    let begun = Instant::now();
    proxy.set(Target::All, Mode::BlackHole);
    // The writer finds that the reader is dead, without any release.
    let write = other.rw_lock(&name).try_write_for(LONG).unwrap().unwrap();
    let took = begun.elapsed();
    assert!(!guard.is_valid(), "valid next to a writer");
    assert!(took >= span / 2 && took < span + loosely(SLACK), "{took:?}");
    let loss = guard.lost().recv_timeout(loosely(SLACK)).unwrap();
    assert_eq!(loss.reason, LossReason::Unreachable);
    proxy.pass();
    drop(guard);
    eventually("the loss is reported once", || {
        received.reasons(&name) == [LossReason::Unreachable]
    });
    assert!(write.is_valid());
    assert_eq!(server.hgetall(&name), WRITING.fields(write.owner(), 1));
    write.unlock().unwrap();
    eventually("nothing is left", || server.dbsize() == 0);
}

timed!(closing_wakes_those_who_wait_to_read_and_gives_back_what_is_read);
fn closing_wakes_those_who_wait_to_read_and_gives_back_what_is_read() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let (busy, held) = (unique("busy"), unique("held"));
    let theirs = other.rw_lock(&busy).write().unwrap();
    let guard = client.rw_lock(&held).read().unwrap();
    let (sender, received) = unbounded();
    let (go, gone) = bounded::<()>(0);
    let mut crew = Crew::new();
    // The first thread asks Redis, the others queue behind it, and one more shares the read hold.
    for n in 0..4 {
        let (lock, sender) = (client.rw_lock(&busy), sender.clone());
        crew.spawn(move || {
            let outcome = match n % 2 {
                0 => lock.read().map(drop),
                _ => lock.try_read_for(LONG * 6).map(drop),
            };
            sender.send(outcome).unwrap();
        });
    }
    let lock = client.rw_lock(&held);
    crew.spawn(move || {
        let shared = lock.read().unwrap();
        let loss = shared.lost().recv_timeout(LONG).unwrap();
        assert_eq!(loss.reason, LossReason::Closed);
        gone.recv().unwrap();
        assert!(matches!(shared.unlock(), Err(Error::Lost { .. })));
    });
    subscribed(&server, 1);
    crew.all_parked();
    assert!(received.is_empty());
    let begun = Instant::now();
    client.close(Duration::from_secs(5)).unwrap();
    assert!(
        begun.elapsed() < loosely(ms(1_000)),
        "{:?}",
        begun.elapsed()
    );
    for _ in 0..4 {
        let outcome = received.recv_timeout(LONG).unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    assert_eq!(
        server.keys(),
        [busy.as_str()],
        "every hold of the closed client is released"
    );
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Closed);
    go.send(()).unwrap();
    crew.join();
    let lock = client.rw_lock(&held);
    assert!(matches!(lock.read(), Err(Error::Closed)));
    assert!(matches!(lock.try_read(), Err(Error::Closed)));
    assert!(matches!(lock.try_write(), Err(Error::Closed)));
    assert!(matches!(lock.is_read_locked(), Err(Error::Closed)));
    assert!(!lock.is_owned_by_current_thread() && lock.read_hold_count() == 0);
    let again = other.rw_lock(&held).write().unwrap();
    drop(guard);
    assert_eq!(server.hgetall(&held), WRITING.fields(again.owner(), 1));
    again.unlock().unwrap();
    theirs.unlock().unwrap();
    assert_eq!(server.dbsize(), 0);
}
