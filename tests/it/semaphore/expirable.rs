//! The semaphore whose permits have an id and a lease each.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use redlatch::{
    Acquired, CancelToken, Client, Config, Error, ExpirablePermit, Loss, LossReason, Observer,
    Result,
};

use crate::support::permits::{
    NEVER, as_redisson, channel, counts, hex, id, ids, lost_by, now, out, timeouts, with_permits,
};
use crate::support::{
    BY_MESSAGE, Crew, LONG, Losses, Mode, Proxy, SLACK, Server, Target, config, eventually,
    increment, loosely, ms, open, open_with_lease, scoped, short_lived, subscribed, timed, within,
};

// ---------------------------------------------------------------------------------------------------------------------
// Verbs
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn permits_are_taken_and_given_back_and_redis_shows_what_redisson_would_write() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).key_prefix("app:")).unwrap();
    let sem = client.expirable_semaphore("slots");
    assert_eq!(sem.name(), "slots");
    assert_eq!(counts(&sem), (0, 0, 0));
    assert!(sem.try_acquire().unwrap().is_none(), "nobody has set it");
    assert!(sem.try_set_permits(3).unwrap());
    assert!(!sem.try_set_permits(5).unwrap());
    let one = sem.acquire().unwrap();
    assert_eq!(counts(&sem), (2, 1, 3));
    assert_eq!(server.get_int("app:slots"), 2);
    assert_eq!(ids(&server, "app:slots"), [one.id()]);
    let lease_left = out(&server, "app:slots")[0].1 - now(&server);
    assert!((29_000..=30_000).contains(&lease_left), "{lease_left}");
    let lease = sem.remaining_lease_of(one.id()).unwrap().unwrap();
    assert!(lease > ms(29_000) && lease <= ms(30_000), "{lease:?}");
    assert!(one.is_valid() && one.valid_until() > Instant::now() + ms(25_000));
    assert_eq!((one.name(), one.id().len()), ("slots", 32));
    assert!(format!("{sem:?} {one:?}").contains(one.id()));
    let two = sem.try_acquire().unwrap().unwrap();
    let three = sem.try_acquire_for(ms(100)).unwrap().unwrap();
    assert_eq!(ids(&server, "app:slots").len(), 3);
    assert!(sem.try_acquire().unwrap().is_none());
    assert!(
        !sem.try_set_permits(5).unwrap(),
        "H2: none left is not unset"
    );
    one.release().unwrap();
    assert_eq!(counts(&sem), (1, 2, 3));
    drop((two, three));
    eventually("both are back", || counts(&sem) == (3, 0, 3));
    assert_eq!(client.stats().acquired, 3);
    assert_eq!(client.stats().holds, 0);
    assert!(!server.exists(&timeouts("app:slots")));
    sem.set_permits(1).unwrap();
    sem.add_permits(4).unwrap();
    sem.add_permits(-2).unwrap();
    assert_eq!(counts(&sem), (3, 0, 3));
}

#[test]
fn many_are_taken_together_or_not_at_all() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 5);
    let four = sem.acquire_many(4).unwrap();
    let distinct: HashSet<&str> = four.iter().map(ExpirablePermit::id).collect();
    assert_eq!(distinct.len(), 4);
    assert_eq!(counts(&sem), (1, 4, 5));
    assert!(sem.try_acquire_many(2).unwrap().is_none());
    assert!(sem.try_acquire_many_for(2, ms(20)).unwrap().is_none());
    let soon = Instant::now() + ms(20);
    assert!(sem.try_acquire_many_until(2, soon).unwrap().is_none());
    assert_eq!(counts(&sem), (1, 4, 5), "none of them was taken");
    let mut four = four.into_iter();
    four.next().unwrap().release().unwrap();
    assert_eq!(counts(&sem), (2, 3, 5), "each by itself");
    let two = sem.try_acquire_many(2).unwrap().unwrap();
    assert_eq!(counts(&sem), (0, 5, 5));
    drop((two, four));
    eventually("all are back", || counts(&sem) == (5, 0, 5));
    // Setting a lower number than the permits that are held takes none of them away.
    let five = sem.acquire_many(5).unwrap();
    sem.set_permits(2).unwrap();
    assert_eq!(counts(&sem), (-3, 5, 2));
    assert!(five.iter().all(ExpirablePermit::is_valid));
    drop(five);
    eventually("two are left", || counts(&sem) == (2, 0, 2));
}

#[test]
fn ids_of_anybody_are_released_one_by_one() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let sem = with_permits(&client, 6);
    let theirs = other.expirable_semaphore(sem.name());
    let here = sem.acquire().unwrap();
    let there = theirs.acquire().unwrap();
    as_redisson(&server, sem.name(), &id(7), NEVER);
    as_redisson(&server, sem.name(), &id(8), now(&server) - 1);
    sem.add_permits(-1).unwrap();
    assert_eq!(
        sem.remaining_lease_of(hex(&id(7))).unwrap(),
        Some(Duration::MAX)
    );
    assert_eq!(sem.remaining_lease_of(hex(&id(8))).unwrap(), None);
    let unknown = hex(&id(9));
    let (java, expired) = (hex(&id(7)), hex(&id(8)));
    let all = [here.id(), "no id", &java, &expired, &unknown, here.id()].map(str::to_owned);
    let counts_before = counts(&sem);
    assert_eq!(
        sem.release_ids(&all).unwrap(),
        [true, false, true, false, false, false]
    );
    assert_eq!(
        counts(&sem),
        (counts_before.0 + 2, counts_before.1 - 2, counts_before.2)
    );
    // A holder of this client learns of the loss at once.
    assert!(!here.is_valid());
    assert_eq!(here.lost().try_recv().unwrap().reason, LossReason::Forced);
    lost_by(here.release(), LossReason::Forced);
    for unknown in [&*unknown, "no id"] {
        assert!(!sem.release_id(unknown).unwrap());
        assert!(!client.force_unlock_owner(sem.name(), unknown).unwrap());
    }
    // A holder of another client learns of the loss when it looks.
    assert!(sem.release_id(there.id()).unwrap());
    assert!(!sem.release_id(there.id().to_uppercase()).unwrap());
    lost_by(there.release(), LossReason::Forced);
    assert_eq!(sem.release_ids(&[""; 0]).unwrap(), [false; 0]);
    assert_eq!(client.stats().lost, 1);
    assert_eq!(other.stats().releases_of_lost, 1);
    eventually("nothing is kept", || {
        server
            .keys()
            .iter()
            .all(|key| key == sem.name() || key.contains(":request:"))
    });
}

#[test]
fn an_expired_id_among_several_releases_none_of_them() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 4);
    let kept = sem.acquire_many(2).unwrap();
    let expired = short_lived(|lease| sem.clone().fixed_lease(lease).acquire());
    eventually("it expires", || counts(&sem) == (2, 2, 4));
    let ids: Vec<&str> = kept.iter().map(ExpirablePermit::id).collect();
    let with_expired = [&ids[..], &[expired.id()]].concat();
    assert!(!sem.release_ids_or_none(&with_expired).unwrap());
    assert!(!sem.release_ids_or_none(&[expired.id()]).unwrap());
    assert_eq!(counts(&sem), (2, 2, 4));
    assert!(kept.iter().all(ExpirablePermit::is_valid));
    assert!(sem.release_ids_or_none(&ids).unwrap());
    assert_eq!(counts(&sem), (4, 0, 4));
    assert!(!sem.release_ids_or_none(&ids).unwrap());
    assert_eq!(counts(&sem), (4, 0, 4));
}

#[test]
fn many_ids_are_released_a_thousand_at_a_time() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 1_200);
    let mut permits = sem.acquire_many(1_000).unwrap();
    permits.extend(sem.acquire_many(200).unwrap());
    let ids: Vec<&str> = permits.iter().map(ExpirablePermit::id).collect();
    assert!(!sem.release_id("0".repeat(32)).unwrap(), "a known script");
    let asked = client.stats().commands;
    assert_eq!(sem.release_ids(&ids).unwrap(), [true; 1_200]);
    assert_eq!(client.stats().commands - asked, 2);
    assert!(!permits.iter().any(ExpirablePermit::is_valid));
    assert_eq!(counts(&sem), (1_200, 0, 1_200));
}

#[test]
fn a_semaphore_that_lost_its_number_has_all_permits_again_once_somebody_says_it() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 5);
    let mut permits = sem.acquire_many(2).unwrap();
    server.cli(&["DEL", sem.name()]);
    permits.pop().unwrap().release().unwrap();
    assert!(sem.try_acquire().unwrap().is_none(), "nobody has said it");
    assert!(permits[0].is_valid());
    assert!(sem.try_set_permits(5).unwrap());
    assert_eq!(counts(&sem), (4, 1, 5));
    permits.pop().unwrap().release().unwrap();
    assert_eq!(counts(&sem), (5, 0, 5));
}

timed!(bad_input_is_refused_before_anything_is_sent);
fn bad_input_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let client = open(&server);
    let sem = client.expirable_semaphore("x");
    let commands_before = server.command_total();
    let config = |result: Result<()>| {
        assert!(
            matches!(result, Err(Error::InvalidSetting { .. })),
            "{result:?}"
        )
    };
    config(sem.acquire_many(0).map(drop));
    config(sem.acquire_many(1_001).map(drop));
    config(sem.release_ids(&vec!["0".repeat(32); 10_001]).map(drop));
    config(sem.try_acquire_many(u32::MAX).map(drop));
    config(sem.try_set_permits(1 << 31).map(drop));
    config(sem.set_permits(u32::MAX));
    config(sem.add_permits(1 << 31));
    config(sem.add_permits(i64::MIN));
    for odd in ["", "x", &"0".repeat(31), &"0".repeat(33), &"g".repeat(32)] {
        assert!(!sem.release_id(odd).unwrap());
        assert_eq!(sem.remaining_lease_of(odd).unwrap(), None);
    }
    config(sem.clone().fixed_lease(ms(9)).try_acquire().map(drop));
    config(sem.clone().fixed_lease(Duration::MAX).acquire().map(drop));
    config(sem.clone().max_hold(Duration::ZERO).acquire().map(drop));
    config(
        sem.clone()
            .fixed_lease(LONG)
            .max_hold(LONG)
            .acquire()
            .map(drop),
    );
    let nameless = client.expirable_semaphore("");
    let named = |result: Result<()>| assert!(matches!(result, Err(Error::InvalidName { .. })));
    named(nameless.acquire().map(drop));
    named(nameless.try_acquire().map(drop));
    named(nameless.try_set_permits(1).map(drop));
    named(nameless.available_permits().map(drop));
    named(nameless.release_id("0".repeat(32)).map(drop));
    named(nameless.delete().map(drop));
    assert_eq!(server.command_total(), commands_before);
}

#[test]
fn keys_of_another_type_are_named_so_and_left_alone() {
    let server = Server::start();
    let client = open(&server);
    for (key, make) in [
        ("x", &["RPUSH", "x", "a"][..]),
        ("x", &["SET", "x", "many"]),
        ("{x}:timeout", &["SET", "{x}:timeout", "1"]),
    ] {
        server.cli(&["FLUSHALL"]);
        server.cli(make);
        let sem = client.expirable_semaphore("x");
        let wrong = |result: Result<()>| {
            assert!(
                matches!(&result, Err(Error::WrongType { name, .. }) if name == "x"),
                "{make:?}: {result:?}"
            );
        };
        wrong(sem.acquire().map(drop));
        wrong(sem.try_acquire_many_for(2, LONG).map(drop));
        wrong(sem.try_set_permits(1).map(drop));
        wrong(sem.set_permits(1));
        wrong(sem.add_permits(1));
        wrong(sem.permits().map(drop));
        wrong(sem.release_id("0".repeat(32)).map(drop));
        wrong(sem.remaining_lease_of("0".repeat(32)).map(drop));
        wrong(sem.delete().map(drop));
        assert_eq!(server.keys(), [key]);
    }
    server.cli(&["FLUSHALL"]);
    let sem = client.expirable_semaphore("x");
    sem.try_set_permits(1).unwrap();
    let permit = sem.acquire().unwrap();
    server.cli(&["SET", "{x}:timeout", "1"]);
    assert!(matches!(
        permit.update_lease(LONG),
        Err(Error::WrongType { .. })
    ));
    assert!(matches!(permit.release(), Err(Error::WrongType { .. })));
}

#[test]
fn a_permit_may_go_to_another_thread_and_a_panic_gives_it_back() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 2);
    let permit = sem.acquire().unwrap();
    thread::spawn(move || permit.release().unwrap())
        .join()
        .unwrap();
    assert_eq!(counts(&sem), (2, 0, 2));
    let panicking = sem.clone();
    let panicked = thread::spawn(move || {
        let _permit = panicking.acquire().unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
    eventually("it is back", || counts(&sem) == (2, 0, 2));
    // A permit keeps its client alive.
    let permit = {
        let client = open(&server);
        client.expirable_semaphore(sem.name()).acquire().unwrap()
    };
    assert_eq!(counts(&sem), (1, 1, 2));
    permit.release().unwrap();
}

#[test]
fn a_pair_of_acquire_and_drop_is_two_commands() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 2);
    drop(sem.acquire().unwrap());
    eventually("both scripts are known", || counts(&sem) == (2, 0, 2));
    let commands_before = client.stats().commands;
    for _ in 0..10 {
        sem.acquire().unwrap().release().unwrap();
    }
    assert_eq!(client.stats().commands - commands_before, 20);
    eventually("no entry is left", || client.stats().names == 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Leases
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_permit_is_renewed_for_as_long_as_it_is_wanted_and_a_fixed_lease_ends);
fn a_permit_is_renewed_for_as_long_as_it_is_wanted_and_a_fixed_lease_ends() {
    let server = Server::start();
    let lease = loosely(ms(300));
    let received = Losses::default();
    let client = Client::open(
        Config::new(server.url())
            .lease(lease)
            .on_lost(received.listener()),
    )
    .unwrap();
    let sem = with_permits(&client, 4);
    let begun = Instant::now();
    let renewed = sem.acquire_many(2).unwrap();
    let fixed = sem.clone().fixed_lease(lease).acquire().unwrap();
    assert_eq!(
        fixed.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Expired
    );
    let took = begun.elapsed();
    assert!(
        took > lease * 9 / 10 && took <= lease + loosely(SLACK),
        "{took:?}"
    );
    assert!(!fixed.is_valid() && Instant::now() >= fixed.valid_until());
    assert!(!within(3 * lease, || {
        renewed.iter().any(|permit| !permit.is_valid()) || ids(&server, sem.name()).len() < 2
    }));
    assert!(client.stats().renewals >= 6);
    assert_eq!(counts(&sem), (2, 2, 4));
    lost_by(fixed.release(), LossReason::Expired);
    for permit in renewed {
        assert!(permit.lost().try_recv().is_err());
        permit.release().unwrap();
    }
    // A renewal of each may have been under way.
    let renewals = client.stats().renewals + 2;
    assert!(!within(lease, || client.stats().renewals > renewals));
    assert_eq!(counts(&sem), (4, 0, 4));
    assert_eq!(received.reasons(sem.name()), [LossReason::Expired]);
}

timed!(a_lease_can_be_changed_and_is_fixed_from_then_on);
fn a_lease_can_be_changed_and_is_fixed_from_then_on() {
    let server = Server::start();
    let client = open_with_lease(&server, ms(600));
    let sem = with_permits(&client, 3);
    let permit = sem.acquire().unwrap();
    permit.update_lease(ms(5_000)).unwrap();
    let lease = sem.remaining_lease_of(permit.id()).unwrap().unwrap();
    assert!(lease > ms(4_000) && lease <= ms(5_000), "{lease:?}");
    assert!(permit.valid_until() > Instant::now() + ms(4_000));
    let begun = Instant::now();
    permit.update_lease(ms(300)).unwrap();
    assert!(sem.remaining_lease_of(permit.id()).unwrap().unwrap() <= ms(300));
    assert!(permit.valid_until() <= Instant::now() + ms(300));
    assert_eq!(
        permit.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Expired
    );
    let took = begun.elapsed();
    assert!(
        took > ms(270) && took <= ms(300) + loosely(SLACK),
        "{took:?}"
    );
    assert_eq!(client.stats().renewals, 0);
    eventually("it is back", || counts(&sem) == (3, 0, 3));
    lost_by(permit.update_lease(ms(300)), LossReason::Expired);
    lost_by(permit.release(), LossReason::Expired);
    // The permit was deleted, which the client does not know yet.
    let permit = sem.acquire().unwrap();
    server.cli(&["DEL", &timeouts(sem.name())]);
    lost_by(permit.update_lease(ms(600)), LossReason::Forced);
    assert_eq!(permit.lost().try_recv().unwrap().reason, LossReason::Forced);
    assert!(matches!(
        permit.update_lease(ms(1)),
        Err(Error::InvalidSetting { .. })
    ));
}

timed!(many_threads_changing_one_lease_never_believe_more_than_redis);
fn many_threads_changing_one_lease_never_believe_more_than_redis() {
    let server = Server::start();
    let client = open_with_lease(&server, ms(900));
    let sem = with_permits(&client, 1);
    let permit = Arc::new(sem.acquire().unwrap());
    scoped(|scope| {
        for i in 0..4_u64 {
            let permit = &permit;
            scope.spawn(move || {
                for j in 0..15 {
                    permit
                        .update_lease(ms(2_000 + (i * 7 + j * 5) % 11 * 1_000))
                        .unwrap();
                }
            });
        }
    });
    let lease_left = sem.remaining_lease_of(permit.id()).unwrap().unwrap();
    assert!(permit.valid_until() <= Instant::now() + lease_left);
}

timed!(max_hold_ends_renewal_and_returns_the_permit);
fn max_hold_ends_renewal_and_returns_the_permit() {
    let server = Server::start();
    let client = open_with_lease(&server, loosely(ms(300)));
    let sem = with_permits(&client, 1);
    let (begun, max) = (Instant::now(), loosely(ms(500)));
    let permit = sem.clone().max_hold(max).acquire().unwrap();
    assert_eq!(
        permit.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::MaxHold
    );
    assert!(begun.elapsed() >= max && !permit.is_valid());
    // Another thread gets it although the guard still exists.
    let other = sem.try_acquire_for(LONG).unwrap().expect("it is available");
    other.release().unwrap();
    lost_by(permit.release(), LossReason::MaxHold);
}

#[test]
fn deleting_ends_the_permits_and_wakes_nobody() {
    let server = Server::start();
    let (client, other) = (open(&server), open_with_lease(&server, ms(900)));
    let sem = client.expirable_semaphore("slots");
    assert!(!sem.delete().unwrap(), "nothing is set");
    assert!(sem.try_set_permits(2).unwrap());
    let here = sem.acquire().unwrap();
    let there = other.expirable_semaphore("slots").acquire().unwrap();
    let waiting = sem.clone();
    let mut crew = Crew::new();
    crew.spawn(move || drop(waiting.acquire().unwrap()));
    crew.all_parked();
    assert!(sem.delete().unwrap());
    // The holder that uses this client is notified at once, the other at its next renewal.
    assert_eq!(here.lost().try_recv().unwrap().reason, LossReason::Forced);
    let lost = there.lost().recv_timeout(LONG).unwrap();
    assert_eq!(lost.reason, LossReason::Forced);
    lost_by(here.release(), LossReason::Forced);
    drop(there);
    assert!(server.keys_but_requests().is_empty());
    assert!(!sem.delete().unwrap() && !crew.is_finished());
    assert!(sem.try_set_permits(1).unwrap());
    crew.join();
    // A permit of another semaphore is not lost.
    let kept = with_permits(&client, 1).acquire().unwrap();
    assert!(sem.delete().unwrap() && kept.is_valid());
}

/// Deletes the semaphore as soon as it hears of a permit.
#[derive(Clone, Default)]
struct Deletes(Arc<OnceLock<Client>>);

impl Observer for Deletes {
    fn acquired(&self, event: &Acquired<'_>) {
        let client = self.0.get().expect("the client is open");
        assert!(client.expirable_semaphore(event.name).delete().unwrap());
    }
}

#[test]
fn a_permit_that_ends_before_its_guard_exists_is_lost() {
    let server = Server::start();
    let observer = Deletes::default();
    let client = Client::open(config(&server.url()).observer(observer.clone())).unwrap();
    observer.0.set(client.clone()).expect("it was unset");
    let permit = with_permits(&client, 1).acquire().unwrap();
    assert!(!permit.is_valid());
    assert_eq!(permit.lost().try_recv().unwrap().reason, LossReason::Forced);
}

/// Has another thread change the lease of a permit as soon as it hears of the loss, and waits for that thread.
#[derive(Clone, Default)]
struct Changes {
    permit: Arc<OnceLock<Weak<ExpirablePermit>>>,
    outcome: Arc<Mutex<Option<Result<()>>>>,
}

impl Observer for Changes {
    fn lost(&self, _loss: &Loss) {
        let permit = self.permit.get().and_then(Weak::upgrade);
        let permit = permit.expect("the permit is held");
        let change = thread::spawn(move || permit.update_lease(LONG));
        *self.outcome.lock().unwrap() = Some(change.join().unwrap());
    }
}

#[test]
fn an_observer_may_wait_for_a_thread_that_changes_the_lost_permit() {
    let server = Server::start();
    let observer = Changes::default();
    let client = Client::open(config(&server.url()).observer(observer.clone())).unwrap();
    let sem = with_permits(&client, 1);
    let permit = Arc::new(sem.acquire().unwrap());
    observer.permit.set(Arc::downgrade(&permit)).unwrap();
    server.cli(&["DEL", &timeouts(sem.name())]);
    lost_by(permit.update_lease(LONG), LossReason::Forced);
    // The thread did not time out while it waited for the call that has found the loss.
    let outcome = observer.outcome.lock().unwrap().take();
    lost_by(outcome.unwrap(), LossReason::Forced);
}

timed!(a_deleted_permit_is_told_forced);
fn a_deleted_permit_is_told_forced() {
    let server = Server::start();
    let client = open_with_lease(&server, ms(1_500));
    let sem = with_permits(&client, 3);
    let (one, two) = (sem.acquire().unwrap(), sem.acquire().unwrap());
    let begun = Instant::now();
    redis::cmd("ZREM")
        .arg(timeouts(sem.name()))
        .arg(
            out(&server, sem.name())
                .into_iter()
                .find(|(raw, _)| hex(raw) == one.id())
                .unwrap()
                .0,
        )
        .exec(&mut server.connection())
        .unwrap();
    assert_eq!(
        one.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Forced
    );
    assert!(begun.elapsed() < loosely(ms(1_500)));
    assert!(two.is_valid() && two.lost().try_recv().is_err());
    drop(one);
    two.release().unwrap();
    eventually("it is counted", || client.stats().lost == 1);
}

timed!(a_permit_that_cannot_be_renewed_is_told_lost_before_it_can_be_gone);
fn a_permit_that_cannot_be_renewed_is_told_lost_before_it_can_be_gone() {
    let server = Server::start();
    scoped(|scope| {
        for mode in [Mode::BlackHole, Mode::Stall, Mode::Refuse] {
            let server = &server;
            scope.spawn(move || {
                let proxy = Proxy::start(server.addr());
                let lease = ms(900);
                let client = Client::open(config(&proxy.url()).lease(lease)).unwrap();
                let sem = with_permits(&client, 1);
                let permit = sem.acquire().unwrap();
                eventually("it is renewed", || client.stats().renewals > 0);
                proxy.set(Target::All, mode);
                if mode == Mode::Refuse {
                    proxy.cut(Target::All);
                }
                let loss = permit.lost().recv_timeout(LONG).unwrap();
                let late = Instant::now().saturating_duration_since(permit.valid_until());
                assert_eq!(loss.reason, LossReason::Unreachable, "{mode:?}");
                assert_eq!(
                    (loss.name.as_str(), loss.owner.as_str()),
                    (sem.name(), permit.id())
                );
                assert!(late < loosely(2 * SLACK), "{mode:?}: {late:?}");
                assert!(!permit.is_valid());
                proxy.pass();
                // The permit goes to another client once it has expired in Redis; the old guard does not release that
                // hold.
                // hold.
                let next = sem.try_acquire_for(LONG).unwrap().unwrap();
                drop(permit);
                assert_eq!(counts(&sem), (0, 1, 1), "{mode:?}");
                next.release().unwrap();
            });
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting
// ---------------------------------------------------------------------------------------------------------------------

timed!(another_process_gets_its_turn_while_threads_take_one_permit_after_another);
fn another_process_gets_its_turn_while_threads_take_one_permit_after_another() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let sem = with_permits(&client, 2);
    let stop = AtomicBool::new(false);
    scoped(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(sem.acquire().unwrap());
                }
            });
        }
        let other = other.expirable_semaphore(sem.name());
        let mut longest = Duration::ZERO;
        // Turns may come by chance, so wait until the client has yielded at least once.
        let is_offered = || client.stats().yields > 0;
        for turn in 0..1000 {
            if turn >= 10 && is_offered() {
                break;
            }
            let began = Instant::now();
            let permit = other.try_acquire_for(LONG).unwrap();
            permit
                .expect("starved by another process")
                .release()
                .unwrap();
            longest = longest.max(began.elapsed());
        }
        stop.store(true, Ordering::SeqCst);
        assert!(longest < loosely(ms(900)), "{longest:?}");
        assert!(is_offered(), "nobody was let go first");
    });
    eventually("all are back", || counts(&sem) == (2, 0, 2));
}

#[test]
fn a_single_permit_keeps_threads_of_several_clients_apart() {
    const ROUNDS: i64 = 20;
    let server = Server::start();
    let clients = [(); 3].map(|()| open(&server));
    let sem = with_permits(&clients[0], 1);
    scoped(|scope| {
        for client in &clients {
            for _ in 0..3 {
                let sem = client.expirable_semaphore(sem.name());
                let mut con = server.connection();
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let permit = sem.acquire().unwrap();
                        increment(&mut con, "counter");
                        drop(permit);
                    }
                });
            }
        }
    });
    assert_eq!(server.get_int("counter"), 3 * 3 * ROUNDS);
}

timed!(a_released_permit_wakes_one_who_waits_by_message);
fn a_released_permit_wakes_one_who_waits_by_message() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let sem = with_permits(&client, 2);
    let held = sem.acquire_many(2).unwrap();
    as_redisson(&server, sem.name(), &id(1), NEVER);
    let (received, woken) = unbounded();
    let mut crew = Crew::new();
    for _ in 0..3 {
        let (sem, received) = (other.expirable_semaphore(sem.name()), received.clone());
        crew.spawn(move || {
            let permit = sem.acquire().unwrap();
            received.send((Instant::now(), permit)).unwrap();
        });
    }
    subscribed(&server, 1);
    crew.all_parked();
    let begun = Instant::now();
    drop(held);
    let mut kept = Vec::new();
    for _ in 0..2 {
        let (at, permit) = woken.recv_timeout(LONG).unwrap();
        assert!(at - begun < loosely(BY_MESSAGE), "{:?}", at - begun);
        kept.push(permit);
    }
    assert!(woken.is_empty());
    // The commands with which a Java client releases a permit.
    let begun = Instant::now();
    let () = redis::pipe()
        .cmd("ZREM")
        .arg(timeouts(sem.name()))
        .arg(id(1))
        .ignore()
        .cmd("INCRBY")
        .arg(sem.name())
        .arg(1)
        .ignore()
        .cmd("PUBLISH")
        .arg(channel(sem.name()))
        .arg(1)
        .ignore()
        .query(&mut server.connection())
        .unwrap();
    let (at, _permit) = woken.recv_timeout(LONG).unwrap();
    assert!(at - begun < loosely(BY_MESSAGE), "{:?}", at - begun);
    crew.join();
    subscribed(&server, 0);
    // Adding permits notifies waiters as well.
    let mut crew = Crew::new();
    let (waiting, received) = (sem.clone(), received.clone());
    crew.spawn(move || {
        let permits = waiting.acquire_many(2).unwrap();
        received
            .send((Instant::now(), permits.into_iter().next().unwrap()))
            .unwrap();
    });
    subscribed(&server, 1);
    crew.all_parked();
    let begun = Instant::now();
    other
        .expirable_semaphore(sem.name())
        .add_permits(3)
        .unwrap();
    let (at, _permit) = woken.recv_timeout(LONG).unwrap();
    assert!(at - begun < loosely(BY_MESSAGE), "{:?}", at - begun);
    crew.join();
}

timed!(what_a_vanished_holder_had_is_back_a_lease_later_without_any_message);
fn what_a_vanished_holder_had_is_back_a_lease_later_without_any_message() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 0);
    let begun = now(&server);
    for (n, span) in [(1, 200), (2, 450), (3, 700), (4, 60_000)] {
        as_redisson(&server, sem.name(), &id(n), begun + span);
    }
    let asked = server.calls("evalsha");
    // The waiter for two permits gets those that expire after 200 and 450 ms; the first of them alone is not enough.
    let pair = sem.acquire_many(2).unwrap();
    let took = now(&server) - begun;
    let late = i64::try_from(loosely(SLACK).as_millis()).unwrap();
    assert!((450..450 + late).contains(&took), "{took}");
    assert!(
        server.calls("evalsha") - asked < 12,
        "it asked again and again"
    );
    let one = sem.try_acquire_for(LONG).unwrap().unwrap();
    let took = now(&server) - begun;
    assert!((700..700 + late).contains(&took), "{took}");
    assert_eq!(counts(&sem), (0, 4, 4));
    drop((pair, one));
}

timed!(threads_of_a_process_are_served_in_order_and_one_who_wants_many_is_not_starved);
fn threads_of_a_process_are_served_in_order_and_one_who_wants_many_is_not_starved() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 3);
    let held = sem.acquire_many(2).unwrap();
    let (received, served) = unbounded();
    let mut crew = Crew::new();
    for (waiter, n) in [3, 2, 2, 3].into_iter().enumerate() {
        let (sem, received) = (sem.clone(), received.clone());
        crew.spawn(move || {
            let permits = sem.acquire_many(n).unwrap();
            received.send(waiter).unwrap();
            drop(permits);
        });
        crew.all_parked();
    }
    // A permit is free all the time, but goes to no thread that comes later, whether that waits or only tries.
    assert!(served.is_empty());
    assert!(sem.try_acquire().unwrap().is_none());
    assert!(sem.try_acquire_for(ms(30)).unwrap().is_none());
    // Another process does not know this process's queue.
    let other = open(&server).expirable_semaphore(sem.name());
    other.try_acquire().unwrap().unwrap().release().unwrap();
    drop(held);
    crew.join();
    assert_eq!(served.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    eventually("all are back", || counts(&sem) == (3, 0, 3));
}

#[test]
fn those_who_do_not_wait_are_not_in_each_others_way() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 64);
    let refused = AtomicU64::new(0);
    scoped(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let permits: Vec<_> = (0..8).map(|_| sem.try_acquire().unwrap()).collect();
                refused.fetch_add(
                    permits.iter().filter(|permit| permit.is_none()).count() as u64,
                    Ordering::Relaxed,
                );
            });
        }
    });
    assert_eq!(refused.into_inner(), 0);
}

timed!(waits_end_when_they_should);
fn waits_end_when_they_should() {
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 1);
    let _held = sem.acquire().unwrap();
    let begun = Instant::now();
    assert!(sem.try_acquire_for(ms(150)).unwrap().is_none());
    let took = begun.elapsed();
    assert!(
        took >= ms(150) && took < ms(150) + loosely(SLACK),
        "{took:?}"
    );
    let until = Instant::now() + ms(100);
    assert!(sem.try_acquire_until(until).unwrap().is_none());
    assert!(Instant::now() >= until);
    let asked = client.stats().commands;
    assert!(sem.try_acquire_for(Duration::ZERO).unwrap().is_none());
    assert!(sem.try_acquire_until(until).unwrap().is_none());
    assert_eq!(client.stats().commands - asked, 2);

    let token = CancelToken::new();
    let cancellable = sem.clone().cancel_on(&token);
    let mut crew = Crew::new();
    for _ in 0..2 {
        let sem = cancellable.clone();
        crew.spawn(move || assert!(matches!(sem.acquire(), Err(Error::Cancelled))));
    }
    subscribed(&server, 1);
    crew.all_parked();
    let begun = Instant::now();
    token.cancel();
    crew.join();
    assert!(begun.elapsed() < loosely(BY_MESSAGE));
    assert!(matches!(cancellable.acquire(), Err(Error::Cancelled)));
    assert!(matches!(cancellable.try_acquire(), Err(Error::Cancelled)));

    let mut crew = Crew::new();
    for n in 1..3 {
        let sem = sem.clone();
        crew.spawn(move || assert!(matches!(sem.acquire_many(n), Err(Error::Closed))));
    }
    subscribed(&server, 1);
    crew.all_parked();
    let begun = Instant::now();
    client.close(LONG).unwrap();
    crew.join();
    assert!(begun.elapsed() < loosely(ms(1_000)));
    assert!(matches!(sem.acquire(), Err(Error::Closed)));
    assert!(matches!(sem.try_acquire(), Err(Error::Closed)));
    assert!(matches!(sem.permits(), Err(Error::Closed)));
    assert!(matches!(sem.set_permits(2), Err(Error::Closed)));
    assert!(matches!(sem.release_id("0".repeat(32)), Err(Error::Closed)));
}

#[test]
fn closing_gives_permits_back_and_tells_their_holders() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let sem = with_permits(&client, 3);
    let permits = sem.acquire_many(2).unwrap();
    let fixed = sem.clone().fixed_lease(LONG).acquire().unwrap();
    client.close(LONG).unwrap();
    assert_eq!(counts(&other.expirable_semaphore(sem.name())), (3, 0, 3));
    for permit in permits {
        assert_eq!(permit.lost().try_recv().unwrap().reason, LossReason::Closed);
        lost_by(permit.release(), LossReason::Closed);
    }
    lost_by(fixed.update_lease(LONG), LossReason::Closed);
}
