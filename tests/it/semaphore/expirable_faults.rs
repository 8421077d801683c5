//! Permits with a lease each under faults: lost replies, servers and processes that stop or are killed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use redlatch::{Client, Config, Error, ExpirablePermit, ExpirableSemaphore, LossReason};

use crate::support::permits::{
    ACQUIRE, ADD, RELEASE, RELEASE_IDS, RENEW, SET, STATE, TRY_SET, UPDATE, counts, ids, out,
    timeouts, with_permits,
};
use crate::support::scripts::{out_of_memory, sha};
use crate::support::{
    LEASE, LONG, Losses, Mode, Part, Proxy, RESPONSE, SLACK, Server, Target, config, eventually,
    fails, gets_nothing, given, in_time, loosely, ms, open, say, scoped, timed, unique, within,
};

/// Loads every script into the server, so that each request is executed at once.
fn load_scripts(server: &Server) {
    for script in [
        ACQUIRE,
        ADD,
        RELEASE,
        RELEASE_IDS,
        RENEW,
        SET,
        STATE,
        TRY_SET,
        UPDATE,
    ] {
        server.cli(&["SCRIPT", "LOAD", script]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Lost replies
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_lost_reply_loses_no_permit_and_makes_none);
fn a_lost_reply_loses_no_permit_and_makes_none() {
    type Verb = fn(&ExpirableSemaphore);
    type Counts = (i64, u64, i64);
    let verbs: [(&str, &str, Counts, Verb); 11] = [
        ("acquire", ACQUIRE, (4, 0, 4), |sem| {
            let permit = sem.acquire().unwrap();
            assert_eq!(counts(sem), (3, 1, 4));
            permit.release().unwrap();
        }),
        ("acquire_many", ACQUIRE, (4, 0, 4), |sem| {
            // The repeated acquire gets all four permits again, once the first is undone.
            let permits = sem.acquire_many(4).unwrap();
            assert_eq!(counts(sem), (0, 4, 4));
            drop(permits);
        }),
        ("try_acquire", ACQUIRE, (4, 0, 4), |sem| {
            drop(sem.try_acquire_many(3).unwrap().unwrap());
        }),
        ("release", RELEASE, (4, 0, 4), |sem| {
            sem.acquire().unwrap().release().unwrap();
        }),
        ("drop", RELEASE, (4, 0, 4), |sem| {
            drop(sem.acquire_many(2).unwrap());
        }),
        ("release_id", RELEASE_IDS, (4, 0, 4), |sem| {
            let permit = sem.acquire().unwrap();
            assert!(sem.release_id(permit.id()).unwrap());
        }),
        ("release_ids", RELEASE_IDS, (3, 1, 4), |sem| {
            let permits = sem.acquire_many(3).unwrap();
            let released = sem.release_ids(&[permits[2].id(), &"0".repeat(32), permits[0].id()]);
            assert_eq!(released.unwrap(), [true, false, true]);
            let kept = permits.into_iter().nth(1).unwrap();
            assert!(kept.is_valid());
            let kept = std::mem::ManuallyDrop::new(kept);
            assert_eq!(
                sem.remaining_lease_of(kept.id())
                    .unwrap()
                    .map(|lease_left| lease_left > LEASE / 2),
                Some(true)
            );
        }),
        ("update_lease", UPDATE, (4, 0, 4), |sem| {
            let permit = sem.acquire().unwrap();
            permit.update_lease(ms(60_000)).unwrap();
            assert!(permit.valid_until() > Instant::now() + ms(50_000));
            permit.release().unwrap();
        }),
        ("try_set_permits", TRY_SET, (7, 0, 7), |sem| {
            sem.set_permits(0).unwrap();
            assert!(!sem.try_set_permits(7).unwrap());
            sem.set_permits(7).unwrap();
        }),
        ("set_permits", SET, (9, 0, 9), |sem| {
            sem.set_permits(9).unwrap()
        }),
        ("add_permits", ADD, (5, 0, 5), |sem| {
            sem.add_permits(1).unwrap()
        }),
    ];
    let server = Server::start();
    load_scripts(&server);
    scoped(|scope| {
        for (verb_name, script, after, verb) in verbs {
            let server = &server;
            scope.spawn(move || {
                let proxy = Proxy::start(server.addr());
                let client = Client::open(config(&proxy.url())).unwrap();
                let sem = with_permits(&client, 4);
                sem.acquire().unwrap().release().unwrap();
                let trap = proxy.swallow_reply_to(sha(script));
                let reconnects = client.stats().reconnects;
                in_time(verb_name, RESPONSE * 2, || verb(&sem));
                eventually("it is settled", || counts(&sem) == after);
                assert!(trap.fired(), "{verb_name}");
                assert!(client.stats().reconnects > reconnects, "{verb_name}");
                assert!(!within(ms(50), || counts(&sem) != after), "{verb_name}");
                assert_eq!(client.stats().releases_failed, 0, "{verb_name}");
            });
        }
    });
}

timed!(the_first_word_about_the_number_is_said_once_and_answered_truly);
fn the_first_word_about_the_number_is_said_once_and_answered_truly() {
    let server = Server::start();
    load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let client = Client::open(config(&proxy.url())).unwrap();
    let sem = client.expirable_semaphore(unique("first"));
    let trap = proxy.swallow_reply_to(sha(TRY_SET));
    assert!(sem.try_set_permits(3).unwrap(), "it was we who did it");
    assert!(trap.fired());
    assert_eq!(counts(&sem), (3, 0, 3));
}

timed!(what_nobody_waits_for_any_more_is_given_back);
fn what_nobody_waits_for_any_more_is_given_back() {
    let server = Server::start();
    load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let client = Client::open(config(&proxy.url()).lease(ms(60_000))).unwrap();
    let sem = with_permits(&client, 4);
    // The grant arrives after the caller's time limit.
    proxy.set(Target::Link, Mode::Delay(ms(150)));
    gets_nothing("a short wait", ms(60), || {
        sem.try_acquire_many_for(3, ms(60))
    });
    proxy.pass();
    eventually("they are back long before their lease is over", || {
        counts(&sem) == (4, 0, 4)
    });
    // The frozen server executes the acquire when it thaws.
    server.freeze();
    gets_nothing("a short wait", ms(100), || {
        sem.try_acquire_many_for(3, ms(100))
    });
    server.thaw();
    eventually("they are back long before their lease is over", || {
        counts(&sem) == (4, 0, 4)
    });
    assert_eq!(client.stats().holds, 0);
}

timed!(a_grant_that_comes_too_late_is_not_one);
fn a_grant_that_comes_too_late_is_not_one() {
    let server = Server::start();
    load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let client = open_through(&proxy);
    let sem = with_permits(&client, 2).fixed_lease(ms(100));
    proxy.set(Target::Link, Mode::Delay(ms(120)));
    let late = sem.acquire_many(2).map(drop);
    let is_retryable = matches!(&late, Err(err @ Error::Redis { .. }) if err.is_retryable());
    assert!(is_retryable, "nothing was done yet: {late:?}");
    proxy.pass();
    eventually("they are back", || counts(&sem) == (2, 0, 2));
}

fn open_through(proxy: &Proxy) -> Client {
    Client::open(config(&proxy.url())).unwrap()
}

// ---------------------------------------------------------------------------------------------------------------------
// Servers
// ---------------------------------------------------------------------------------------------------------------------

timed!(with_the_server_down_or_frozen_every_verb_ends_in_time);
fn with_the_server_down_or_frozen_every_verb_ends_in_time() {
    scoped(|scope| {
        for frozen in [false, true] {
            scope.spawn(move || {
                let mut server = Server::start();
                let client = Client::open(config(&server.url())).unwrap();
                let sem = with_permits(&client, 5);
                let mut permits = sem.acquire_many(5).unwrap();
                if frozen {
                    server.freeze();
                } else {
                    server.kill();
                }
                let id = "0".repeat(32);
                let one = permits.pop().unwrap();
                let two = permits.pop().unwrap();
                let three = permits.pop().unwrap();
                let soon = Instant::now();
                let was_valid_until = two.valid_until();
                scoped(|scope| {
                    scope.spawn(|| fails("acquire", RESPONSE, || sem.acquire()));
                    scope.spawn(|| fails("try", RESPONSE, || sem.try_acquire()));
                    scope.spawn(|| fails("many", RESPONSE, || sem.try_acquire_many(2)));
                    scope.spawn(|| fails("set", RESPONSE, || sem.set_permits(2)));
                    scope.spawn(|| fails("try_set", RESPONSE, || sem.try_set_permits(2)));
                    scope.spawn(|| fails("add", RESPONSE, || sem.add_permits(2)));
                    scope.spawn(|| fails("state", RESPONSE, || sem.permits()));
                    scope.spawn(|| {
                        fails("remaining_lease_of", RESPONSE, || {
                            sem.remaining_lease_of(&id)
                        })
                    });
                    scope.spawn(|| fails("release_id", RESPONSE, || sem.release_id(&id)));
                    scope.spawn(|| fails("update", RESPONSE, || two.update_lease(ms(60_000))));
                    scope.spawn(|| fails("shorten", RESPONSE, || three.update_lease(ms(200))));
                    scope.spawn(|| fails("release", RESPONSE, || one.release()));
                });
                fails("a short wait", ms(50), || sem.try_acquire_for(ms(50)));
                // The longer lease may not have arrived, so only the shorter one counts.
                assert!(two.valid_until() <= was_valid_until);
                assert!(
                    three.valid_until() <= soon + ms(200) + loosely(SLACK) && !three.is_valid()
                );
                assert!(three.lost().recv_timeout(LONG).is_ok());
                in_time("dropping", Duration::ZERO, || drop(permits.pop()));
                let last = permits.pop().unwrap();
                let loss = last.lost().recv_timeout(LONG).unwrap();
                assert_eq!(loss.reason, LossReason::Unreachable);
                let late = Instant::now().saturating_duration_since(last.valid_until());
                assert!(late < loosely(SLACK), "{late:?}");
                assert!(two.lost().recv_timeout(LONG).is_ok());
                if frozen {
                    server.thaw();
                    drop((two, three, last));
                    eventually("all are back", || counts(&sem).1 == 0);
                }
            });
        }
    });
}

timed!(a_server_that_comes_back_empty_is_told_forced_and_set_up_anew);
fn a_server_that_comes_back_empty_is_told_forced_and_set_up_anew() {
    let mut server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(900))).unwrap();
    let sem = with_permits(&client, 1);
    let permit = sem.acquire().unwrap();
    let mut reasons = Vec::new();
    server.restart();
    assert!(sem.try_set_permits(1).unwrap());
    let next = sem.acquire().unwrap();
    reasons.push(permit.lost().recv_timeout(LONG).unwrap().reason);
    assert_eq!(reasons, [LossReason::Forced]);
    drop(permit);
    assert_eq!(counts(&sem), (0, 1, 1));
    next.release().unwrap();
}

timed!(forgotten_scripts_and_cut_connections_are_nobodys_concern);
fn forgotten_scripts_and_cut_connections_are_nobodys_concern() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(config(&proxy.url()).lease(ms(300))).unwrap();
    let sem = with_permits(&client, 3);
    let kept = sem.acquire().unwrap();
    let mut waited = Vec::new();
    for round in 0..30 {
        match round % 3 {
            0 => drop(server.cli(&["SCRIPT", "FLUSH"])),
            1 => drop(proxy.cut(Target::All)),
            _ => {}
        }
        let permits = sem.acquire_many(2).unwrap();
        waited.push(permits.len());
        drop(permits);
        thread::sleep(ms(15));
    }
    assert!(kept.is_valid());
    kept.release().unwrap();
    eventually("all are back", || counts(&sem) == (3, 0, 3));
}

// ---------------------------------------------------------------------------------------------------------------------
// Processes
// ---------------------------------------------------------------------------------------------------------------------

/// A process that acquires permits and keeps them.
struct Holder {
    part: Part,
    ids: Vec<String>,
}

impl Holder {
    fn start(server: &Server, name: &str, takes: u32, lease: Duration) -> Self {
        let (takes, lease) = (takes.to_string(), lease.as_millis().to_string());
        let mut part = Part::start(part_that_holds, &[&server.url(), name, &takes, &lease]);
        let ids = part.says("it has");
        Self {
            part,
            ids: ids.split(' ').map(str::to_owned).collect(),
        }
    }
}

#[test]
#[ignore = "part of other tests"]
fn part_that_holds() {
    let Some([url, name, takes, lease]) = given() else {
        return;
    };
    let lease = ms(lease.parse().unwrap());
    let client = Client::open(Config::new(&*url).lease(lease)).unwrap();
    let sem = client.expirable_semaphore(&name);
    let permits = sem.acquire_many(takes.parse().unwrap()).unwrap();
    let ids: Vec<&str> = permits.iter().map(|permit| permit.id()).collect();
    say(&format!("it has {}", ids.join(" ")));
    let reason = permits[0].lost().recv().unwrap().reason;
    say(&format!("it lost {reason:?} {}", permits[0].is_valid()));
    drop(permits);
    client.close(LONG).unwrap();
    say("it closed");
    thread::sleep(LONG);
}

/// Checks in a loop that free and held permits add up to `total`, until `stop` is set; returns the number of checks.
fn watch_total(server: &Server, name: &str, total: i64, stop: &AtomicBool) -> u64 {
    let look = "return {redis.call('get', KEYS[1]), redis.call('zcard', KEYS[2])}";
    let mut con = server.connection();
    let mut looks = 0;
    while !stop.load(Ordering::SeqCst) {
        let (available, acquired): (i64, i64) = redis::cmd("EVAL")
            .arg(look)
            .arg(2)
            .arg(name)
            .arg(timeouts(name))
            .query(&mut con)
            .unwrap();
        assert!(available >= 0 && acquired >= 0, "{available} {acquired}");
        assert_eq!(available + acquired, total);
        looks += 1;
        thread::sleep(ms(1));
    }
    looks
}

timed!(what_killed_processes_had_is_back_after_one_lease_and_never_more);
fn what_killed_processes_had_is_back_after_one_lease_and_never_more() {
    const PERMITS: u32 = 6;
    const HERE: Duration = ms(900);
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, PERMITS);
    let mut holders = [0; 3].map(|_| Holder::start(&server, sem.name(), 2, HERE));
    assert_eq!(counts(&sem), (0, 6, 6));
    // The watchdogs renew the permits.
    assert!(!within(HERE + ms(200), || counts(&sem).1 != 6));
    let (stop, waited) = (AtomicBool::new(false), AtomicU64::new(0));
    scoped(|scope| {
        let watcher = scope.spawn(|| watch_total(&server, sem.name(), PERMITS.into(), &stop));
        for holder in &mut holders {
            holder.part.kill();
        }
        let killed = Instant::now();
        let permits = sem.try_acquire_many_for(PERMITS, LONG).unwrap().unwrap();
        let took = killed.elapsed();
        waited.store(1, Ordering::SeqCst);
        assert!(took > HERE / 2, "{took:?}");
        assert!(took < HERE + loosely(ms(600)), "{took:?}");
        let new: HashSet<String> = ids(&server, sem.name()).into_iter().collect();
        let old = holders.iter().flat_map(|holder| &holder.ids);
        assert_eq!(old.filter(|id| new.contains(*id)).count(), 0);
        drop(permits);
        eventually("all are back", || counts(&sem) == (6, 0, 6));
        stop.store(true, Ordering::SeqCst);
        assert!(watcher.join().unwrap() > 20);
    });
}

timed!(processes_killed_at_any_moment_leave_the_number_as_it_was);
fn processes_killed_at_any_moment_leave_the_number_as_it_was() {
    const PERMITS: u32 = 5;
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, PERMITS);
    let stop = AtomicBool::new(false);
    scoped(|scope| {
        let watcher = scope.spawn(|| watch_total(&server, sem.name(), PERMITS.into(), &stop));
        for takes in [1, 3, 2] {
            let mut holder = Holder::start(&server, sem.name(), takes, ms(400));
            let other = sem.try_acquire_many_for(2, LONG).unwrap().unwrap();
            holder.part.kill();
            drop(other);
        }
        let all = sem.try_acquire_many_for(5, LONG).unwrap().unwrap();
        drop(all);
        eventually("all are back", || counts(&sem) == (5, 0, 5));
        stop.store(true, Ordering::SeqCst);
        watcher.join().unwrap();
    });
}

timed!(a_process_that_was_stopped_for_too_long_has_lost_its_permits_and_harms_nobody);
fn a_process_that_was_stopped_for_too_long_has_lost_its_permits_and_harms_nobody() {
    const HERE: Duration = ms(600);
    let server = Server::start();
    let client = open(&server);
    let sem = with_permits(&client, 2);
    let mut sleeper = Holder::start(&server, sem.name(), 2, HERE);
    sleeper.part.stop();
    let stopped = Instant::now();
    let permits = sem.try_acquire_many_for(2, LONG).unwrap().unwrap();
    let took = stopped.elapsed();
    assert!(
        took > HERE / 2 && took < HERE + loosely(ms(600)),
        "{took:?}"
    );
    sleeper.part.signal(Signal::SIGCONT);
    let received = sleeper.part.says("it lost");
    assert!(
        ["Expired false", "Unreachable false"].contains(&received.as_str()),
        "{received}"
    );
    sleeper.part.says("it closed");
    // Our permits are not affected.
    assert_eq!(counts(&sem), (0, 2, 2));
    assert!(permits.iter().all(|permit| permit.is_valid()));
    for permit in permits {
        permit.release().unwrap();
    }
    assert_eq!(counts(&sem), (2, 0, 2));
    assert!(out(&server, sem.name()).is_empty());
}

timed!(a_holder_elsewhere_hears_of_a_release_by_id);
fn a_holder_elsewhere_hears_of_a_release_by_id() {
    let server = Server::start();
    let received = Losses::default();
    let client = Client::open(config(&server.url()).on_lost(received.listener())).unwrap();
    let sem = with_permits(&client, 2);
    let mut holder = Holder::start(&server, sem.name(), 1, ms(450));
    let begun = Instant::now();
    assert!(sem.release_id(&holder.ids[0]).unwrap());
    assert_eq!(holder.part.says("it lost"), "Forced false");
    assert!(begun.elapsed() < ms(450) + loosely(SLACK));
    assert!(received.reasons(sem.name()).is_empty());
    let all = sem.acquire_many(2).unwrap();
    assert!(matches!(
        sem.clone().fixed_lease(ms(1)).acquire(),
        Err(Error::InvalidSetting { .. })
    ));
    drop(all);
}

timed!(a_server_without_memory_renews_permits_and_takes_them_back);
fn a_server_without_memory_renews_permits_and_takes_them_back() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).lease(LEASE)).unwrap();
    let slots = with_permits(&client, 2);
    let (kept, given_back) = (slots.acquire().unwrap(), slots.acquire().unwrap());
    out_of_memory(&server);
    let until = kept.valid_until();
    eventually("it is renewed", || kept.valid_until() > until + LEASE / 2);
    given_back.release().unwrap();
    assert_eq!(counts(&slots), (1, 1, 2));
    kept.update_lease(LONG).unwrap();
    assert!(kept.is_valid() && kept.valid_until() > Instant::now() + LONG / 2);
    kept.release().unwrap();
    assert_eq!(counts(&slots), (2, 0, 2));
}

timed!(an_update_that_may_yet_come_limits_those_after_it);
fn an_update_that_may_yet_come_limits_those_after_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let config = Config::new(proxy.url()).command_timeout(ms(1000));
    let client = Client::open(config).unwrap();
    let permit = with_permits(&client, 1).acquire().unwrap();
    proxy.set(Target::Link, Mode::BlackHole);
    assert!(permit.update_lease(2 * LONG).is_err());
    proxy.pass();
    eventually("it is changed", || permit.update_lease(6 * LONG).is_ok());
    let time_left = permit.valid_until() - Instant::now();
    assert!(time_left > LONG && time_left <= 2 * LONG, "{time_left:?}");
    assert!(permit.is_valid());
    permit.release().unwrap();
}

timed!(an_update_that_is_sent_twice_counts_from_the_first_sending);
fn an_update_that_is_sent_twice_counts_from_the_first_sending() {
    let server = Server::start();
    load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url())).unwrap();
    let sem = with_permits(&client, 1);
    let permit = sem.acquire().unwrap();
    let trap = proxy.swallow_reply_to(sha(UPDATE));
    permit.update_lease(LONG).unwrap();
    assert!(trap.fired());
    let asked = Instant::now();
    let lease_left = sem.remaining_lease_of(permit.id()).unwrap().unwrap();
    // Redis keeps the permit for longer than its holder counts on.
    assert!(
        permit.valid_until() <= asked + lease_left + ms(1),
        "{lease_left:?}"
    );
    permit.release().unwrap();
}

timed!(an_update_that_comes_twice_does_not_undo_a_later_one);
fn an_update_that_comes_twice_does_not_undo_a_later_one() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(config(&proxy.url())).unwrap();
    let sem = with_permits(&client, 1);
    let permit = sem.acquire().unwrap();
    // The first copy waits in front of the server, and the second goes over another connection.
    proxy.stall_present_requests(Target::Link);
    permit.update_lease(LONG).unwrap();
    permit.update_lease(6 * LONG).unwrap();
    let calls = server.calls("evalsha");
    proxy.pass();
    eventually("the first copy has run", || server.calls("evalsha") > calls);
    let lease_left = sem.remaining_lease_of(permit.id()).unwrap().unwrap();
    assert!(lease_left > 5 * LONG, "{lease_left:?}");
    permit.release().unwrap();
}

// ---------------------------------------------------------------------------------------------------------------------
// Renewals that are under way
// ---------------------------------------------------------------------------------------------------------------------

/// Returns a client whose watchdog has sent a renewal that the proxy holds back, with its semaphore and permit.
fn with_a_renewal_under_way(proxy: &Proxy) -> (Client, ExpirableSemaphore, ExpirablePermit) {
    let client = Client::open(Config::new(proxy.url()).lease(ms(2_400))).unwrap();
    let sem = with_permits(&client, 1);
    let permit = sem.acquire().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    proxy.set(Target::Watchdog, Mode::Stall);
    let held_before = proxy.held();
    eventually("it is renewed again", || proxy.held() > held_before);
    (client, sem, permit)
}

timed!(a_release_by_id_is_told_at_once_to_a_holder_whose_renewal_is_under_way);
fn a_release_by_id_is_told_at_once_to_a_holder_whose_renewal_is_under_way() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, sem, permit) = with_a_renewal_under_way(&proxy);
    assert!(permit.is_valid());
    assert!(sem.release_id(permit.id()).unwrap());
    assert!(!permit.is_valid());
    assert_eq!(permit.lost().try_recv().unwrap().reason, LossReason::Forced);
    proxy.pass();
    assert_eq!(counts(&sem), (1, 0, 1));
    assert_eq!(client.stats().lost, 1);
}

timed!(a_renewal_under_way_does_not_outlive_a_shorter_lease);
fn a_renewal_under_way_does_not_outlive_a_shorter_lease() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (_client, sem, permit) = with_a_renewal_under_way(&proxy);
    let shorter = ms(1_200);
    permit.update_lease(shorter).unwrap();
    let asked = server.calls("evalsha");
    proxy.pass();
    eventually("the renewal has come", || server.calls("evalsha") > asked);
    let lease_left = sem.remaining_lease_of(permit.id()).unwrap();
    assert!(
        lease_left.is_none_or(|lease_left| lease_left <= shorter),
        "{lease_left:?}"
    );
    assert!(permit.valid_until() <= Instant::now() + shorter);
}

timed!(a_permit_whose_lease_somebody_else_changed_is_renewed_all_the_same);
fn a_permit_whose_lease_somebody_else_changed_is_renewed_all_the_same() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).lease(ms(1_500))).unwrap();
    let sem = with_permits(&client, 1);
    let permit = sem.acquire().unwrap();
    let (id, ends_at) = out(&server, sem.name()).swap_remove(0);
    redis::cmd("ZADD")
        .arg(timeouts(sem.name()))
        .arg(ends_at - 1)
        .arg(&id)
        .exec(&mut server.connection())
        .unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    assert!(permit.is_valid());
    assert!(out(&server, sem.name())[0].1 > ends_at);
    permit.release().unwrap();
}

timed!(a_permit_that_is_dropped_after_an_update_without_an_answer_comes_back_all_the_same);
fn a_permit_that_is_dropped_after_an_update_without_an_answer_comes_back_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let config = Config::new(proxy.url()).command_timeout(ms(200));
    let client = Client::open(config).unwrap();
    let sem = with_permits(&client, 1);
    let permit = sem.clone().fixed_lease(60 * LONG).acquire().unwrap();
    proxy.set(Target::All, Mode::BlackHole);
    let shorter = ms(400);
    assert!(permit.update_lease(shorter).is_err());
    drop(permit);
    // After three times the shorter lease, only the longer lease can explain that the permit is still held.
    thread::sleep(3 * shorter);
    proxy.pass();
    eventually("it is back", || {
        sem.available_permits()
            .is_ok_and(|available| available == 1)
    });
    assert_eq!(client.stats().releases_failed, 0);
}
