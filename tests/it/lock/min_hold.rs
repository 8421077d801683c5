//! Holds that keep their name for a minimum time, even when they are released earlier.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, RedLock};

use crate::support::{
    Deployment, Mode, Proxy, Server, Target, deployment, eventually, loosely, ms, open, scoped,
    settings, timed, unique,
};

/// The minimum time for which names are kept.
const KEPT: Duration = ms(1_500);

/// Asserts that nobody else gets what `take` takes before [`KEPT`] is over, and that a waiter gets it then.
#[track_caller]
fn is_kept<G: 'static>(
    what: &str,
    take: impl FnOnce() -> G,
    release: impl FnOnce(G),
    others: impl Fn(Duration) -> bool + Send + 'static,
) {
    let begun = Instant::now();
    let guard = take();
    let granted = Instant::now();
    release(guard);
    if begun.elapsed() < KEPT / 2 {
        assert!(!others(Duration::ZERO), "{what} is free at once");
    }
    let waits = thread::spawn(move || others(Duration::from_secs(20)).then(Instant::now));
    let taken = waits.join().unwrap().expect(what);
    assert!(
        taken >= begun + KEPT,
        "{what}: {:?} too early",
        begun + KEPT - taken
    );
    // The end of the minimum time sends no message, and the longest pause between two polls is 5 s.
    assert!(
        taken < granted + loosely(KEPT + ms(6_000)),
        "{what}: {:?}",
        taken - granted
    );
}

timed!(a_name_is_kept_whatever_kind_it_is);
fn a_name_is_kept_whatever_kind_it_is() {
    let server = Server::start();
    let [client, other] = [open(&server), open(&server)];
    macro_rules! each {
        ($($kind:ident: $lock:ident, $release:expr;)+) => {$(
            let name = unique(stringify!($kind));
            let (lock, theirs) = (client.$lock(&name).min_hold(KEPT), other.$lock(&name));
            is_kept(
                stringify!($kind),
                || lock.lock().unwrap(),
                $release,
                move |wait| theirs.try_lock_for(wait).unwrap().is_some(),
            );
        )+};
    }
    scoped(|scope| {
        scope.spawn(|| {
            each! {
                dropped: mutex, drop;
                unlocked: mutex, |guard| guard.unlock().unwrap();
                fair: fair_lock, drop;
            }
        });
        scope.spawn(|| {
            each! {
                fenced: fenced_lock, |guard| guard.unlock().unwrap();
                spin: spin_lock, drop;
                reentrant: reentrant_lock, drop;
            }
        });
        scope.spawn(|| {
            let name = unique("written");
            let (ours, theirs) = (client.rw_lock(&name).min_hold(KEPT), other.rw_lock(&name));
            let waits = move |wait| theirs.try_read_for(wait).unwrap().is_some();
            is_kept("written", || ours.write().unwrap(), drop, waits);
            let name = unique("read");
            let (ours, theirs) = (client.rw_lock(&name).min_hold(KEPT), other.rw_lock(&name));
            let waits = move |wait| theirs.try_write_for(wait).unwrap().is_some();
            is_kept(
                "read",
                || ours.read().unwrap(),
                |guard| guard.unlock().unwrap(),
                waits,
            );
            let names = [unique("one"), unique("two")];
            let (ours, theirs) = (
                client.multi_lock(&names).min_hold(KEPT),
                other.mutex(&names[1]),
            );
            let waits = move |wait| theirs.try_lock_for(wait).unwrap().is_some();
            is_kept("several", || ours.lock().unwrap(), drop, waits);
        });
    });
    eventually("nothing is left", || {
        server.keys().iter().all(|key| key.contains("token"))
    });
}

timed!(a_name_is_kept_at_a_majority);
fn a_name_is_kept_at_a_majority() {
    if deployment() != Deployment::Single {
        return;
    }
    let servers = [(); 3].map(|()| Server::start());
    let clients = || servers.each_ref().map(open);
    let (ours, others) = (clients(), clients());
    let name = unique("red");
    let lock = RedLock::new(&ours, &name).unwrap().min_hold(KEPT);
    let theirs = RedLock::new(&others, &name).unwrap();
    let waits = move |wait| theirs.try_lock_for(wait).unwrap().is_some();
    is_kept(
        "red",
        || lock.lock().unwrap(),
        |guard| guard.unlock().unwrap(),
        waits,
    );
}

timed!(of_many_hosts_with_a_job_at_about_the_same_time_one_runs_it);
fn of_many_hosts_with_a_job_at_about_the_same_time_one_runs_it() {
    let server = Server::start();
    let (name, ran) = (unique("report"), AtomicU32::new(0));
    scoped(|scope| {
        for n in 0..5 {
            let (client, name, ran) = (open(&server), &name, &ran);
            scope.spawn(move || {
                thread::sleep(ms(80) * n);
                let lock = client.mutex(name).min_hold(Duration::from_secs(20));
                if let Some(guard) = lock.try_lock().unwrap() {
                    ran.fetch_add(1, Ordering::SeqCst);
                    drop(guard);
                }
                // A host whose job is done may close its client.
                client.close(ms(2_000)).unwrap();
            });
        }
    });
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

timed!(after_that_time_it_is_released_as_any_other);
fn after_that_time_it_is_released_as_any_other() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("short");
    let guard = client.mutex(&name).min_hold(ms(50)).lock().unwrap();
    thread::sleep(ms(60));
    guard.unlock().unwrap();
    assert!(!server.exists(&name));
    // A hold that was lost reports the loss, and the key of the new holder is left alone.
    let guard = client.mutex(&name).min_hold(KEPT).lock().unwrap();
    server.cli(&["DEL", &name]);
    server.cli(&[
        "HSET",
        &name,
        "a7b6e3c2-1111-4222-8333-444455556666:37",
        "1",
    ]);
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert_eq!(server.pttl(&name), -1);
}

timed!(after_an_outage_longer_than_that_time_it_is_still_released);
fn after_an_outage_longer_than_that_time_it_is_still_released() {
    const AT_LEAST: Duration = ms(300);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    // Within the limits of this test, only a release frees the name.
    let config = Config::new(proxy.url()).lease(Duration::from_secs(3600));
    let client = Client::open(config).unwrap();
    let name = unique("outage");
    let guard = client.mutex(&name).min_hold(AT_LEAST).lock().unwrap();
    proxy.set(Target::All, Mode::Refuse);
    proxy.cut(Target::All);
    drop(guard);
    thread::sleep(2 * AT_LEAST);
    assert!(server.exists(&name));
    proxy.pass();
    eventually("it is released", || !server.exists(&name));
}

timed!(members_that_were_taken_in_vain_are_not_kept);
fn members_that_were_taken_in_vain_are_not_kept() {
    let server = Server::start();
    let [client, other] = [open(&server), open(&server)];
    let mut names = [unique("some"), unique("some")];
    names.sort();
    let lock = client.multi_lock(&names).min_hold(KEPT * 10);
    // Both names are acquired together, and somebody else holds the second one.
    let held = other.mutex(&names[1]).lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    let began = Instant::now();
    let first = other.mutex(&names[0]);
    assert!(first.try_lock_for(KEPT * 5).unwrap().is_some());
    assert!(began.elapsed() < KEPT * 5);
    drop(held);
    drop(lock.lock().unwrap());
    assert!(other.mutex(&names[0]).try_lock().unwrap().is_none());
}

timed!(threads_of_the_process_wait_as_well);
fn threads_of_the_process_wait_as_well() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("threads");
    let lock = client.mutex(&name);
    let granted = Instant::now();
    let guard = lock.clone().min_hold(KEPT).lock().unwrap();
    let waits = thread::spawn(move || {
        drop(lock.lock().unwrap());
        Instant::now()
    });
    eventually("it waits", || client.stats().names > 0);
    drop(guard);
    assert!(waits.join().unwrap() >= granted + KEPT);
}

timed!(what_cannot_be_kept_is_refused);
fn what_cannot_be_kept_is_refused() {
    let server = Server::start();
    let client = Client::open(settings(&server)).unwrap();
    let second = Duration::from_secs(1);
    for lock in [
        client.mutex("a").min_hold(Duration::ZERO),
        client.mutex("a").min_hold(ms(9)),
        client.mutex("a").min_hold(Duration::MAX),
        client.mutex("a").fixed_lease(second).min_hold(2 * second),
        client.mutex("a").max_hold(second).min_hold(2 * second),
    ] {
        assert!(matches!(lock.try_lock(), Err(Error::InvalidSetting { .. })));
    }
    let lock = client
        .mutex("a")
        .fixed_lease(20 * second)
        .min_hold(10 * second);
    assert!(lock.try_lock().unwrap().is_some());
    eventually("the released name is kept", || {
        let name = client.inspect("a").unwrap().to_string();
        name.contains("released but kept")
    });
}

timed!(one_that_is_downgraded_keeps_writers_out_and_no_readers);
fn one_that_is_downgraded_keeps_writers_out_and_no_readers() {
    let server = Server::start();
    let [client, other] = [open(&server), open(&server)];
    let name = unique("downgraded");
    let (lock, theirs) = (client.rw_lock(&name).min_hold(KEPT), other.rw_lock(&name));
    let begun = Instant::now();
    let reading = lock.write().unwrap().downgrade().unwrap();
    assert!(theirs.try_read().unwrap().is_some());
    assert!(theirs.try_write().unwrap().is_none());
    reading.unlock().unwrap();
    if begun.elapsed() < KEPT / 2 {
        assert!(theirs.try_read().unwrap().is_some());
        assert!(theirs.try_write().unwrap().is_none());
    }
    drop(
        theirs
            .try_write_for(Duration::from_secs(20))
            .unwrap()
            .expect("kept no longer"),
    );
    assert!(begun.elapsed() >= KEPT);
}

timed!(one_that_is_released_above_a_read_hold_keeps_writers_out_and_no_readers);
fn one_that_is_released_above_a_read_hold_keeps_writers_out_and_no_readers() {
    let server = Server::start();
    let [client, other] = [open(&server), open(&server)];
    let name = unique("above");
    let (lock, theirs) = (client.rw_lock(&name).min_hold(KEPT), other.rw_lock(&name));
    let begun = Instant::now();
    let writing = lock.write().unwrap();
    let reading = client.rw_lock(&name).read().unwrap();
    drop(writing);
    let read = theirs.try_read_for(ms(10_000)).unwrap();
    assert!(read.is_some(), "no reader joins");
    drop((read, reading));
    let written = theirs.try_write_for(ms(20_000)).unwrap();
    assert!(written.is_some() && begun.elapsed() >= KEPT);
}
