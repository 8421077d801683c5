//! What careful readers found, each turned into a test: bugs that are gone and have to stay so.

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, LossReason};

use crate::faults::{RESPONSE, SLACK, client, config, in_time};
use crate::support::{Mode, Proxy, Server, Target, connection_to, eventually, ms, unique, within};

/// Longer than anything here is held or asked for, so that it is only gone if somebody gave it back.
const HOUR: Duration = Duration::from_secs(3600);

/// Everything on the server is let go.
#[track_caller]
fn nothing_is_left(server: &Server) {
    eventually("nothing is left", || server.keys().is_empty());
}

// ---------------------------------------------------------------------------------------------------------------------
// The link
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_link_busy_with_few_or_many_threads_does_not_capture_the_watchdog() {
    for threads in [1, 8] {
        let server = Server::start();
        let lease = ms(500);
        let client = Client::open(Config::new(server.url()).lease(lease)).unwrap();
        let guard = client.mutex(unique("kept")).lock().unwrap();
        let stop = AtomicBool::new(false);
        let pairs = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let lock = client.mutex(unique("busy"));
                    while !stop.load(Ordering::Relaxed) {
                        drop(lock.lock().unwrap()); // leaves replies that nobody comes to read
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let lost = guard.lost().recv_timeout(lease * 2);
            stop.store(true, Ordering::Relaxed);
            assert!(lost.is_err(), "{threads} threads: {lost:?}");
        });
        // Two leases are six thirds; that the link was busy is the point of it.
        let (stats, pairs) = (client.stats(), pairs.into_inner());
        assert!(stats.renewals >= 3 && pairs > 200, "{pairs}, {stats:?}");
        assert!(guard.is_valid());
        guard.unlock().unwrap();
        nothing_is_left(&server);
    }
}

#[test]
fn closing_keeps_its_deadline_with_the_server_gone() {
    let mut server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex(unique("held")).lock().unwrap();
    server.kill();
    let closed = in_time("closing", ms(100), || client.close(ms(100)));
    assert!(matches!(closed, Err(Error::Redis { .. })), "{closed:?}");
    assert!(!guard.is_valid());
    in_time("dropping", ms(0), || drop(guard));
}

#[test]
fn closing_does_not_wait_for_a_connection_that_only_a_caller_in_a_hurry_wanted() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = client(&proxy.url());
    proxy.set(Target::All, Mode::BlackHole);
    proxy.cut(Target::All);
    // A question leaves nothing behind that would have to be given back.
    let asked = client.mutex(unique("asked")).is_locked();
    assert!(matches!(asked, Err(Error::Redis { .. })), "{asked:?}");
    let begun = Instant::now();
    client.close(ms(5_000)).unwrap();
    assert!(begun.elapsed() < ms(2_500), "{:?}", begun.elapsed());
}

#[test]
fn a_connection_that_went_dead_is_replaced_although_nobody_waits_for_long() {
    // A silent loss of the flow, as by a NAT that forgot it: new connections work.
    for threads in [1, 4] {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let client = client(&proxy.url());
        drop(client.mutex(unique("first")).lock().unwrap());
        nothing_is_left(&server);
        let opened = proxy.opened(Target::Link);
        proxy.stall_present(Target::All);
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let lock = client.mutex(unique("short"));
                    let mut failed = 0;
                    let guard = loop {
                        match lock.try_lock_for(ms(100)) {
                            Ok(Some(guard)) => break guard,
                            Ok(None) | Err(Error::Redis { .. }) => failed += 1,
                            Err(err) => panic!("{err:?}"),
                        }
                        assert!(begun.elapsed() < RESPONSE * 8, "no way back");
                    };
                    let took = begun.elapsed();
                    // The first cannot have been answered, and gave up in its time.
                    assert!(failed >= 1 && took >= ms(100), "{failed}, {took:?}");
                    assert!(took <= RESPONSE + ms(100) + SLACK, "{took:?}");
                    assert!(guard.is_valid());
                    guard.unlock().unwrap();
                });
            }
        });
        assert!(proxy.opened(Target::Link) > opened);
        nothing_is_left(&server);
    }
}

#[test]
fn a_wait_shorter_than_a_round_trip_takes_long_is_no_error() {
    let server = Server::start();
    let name = unique("hot");
    let [hurried, patient, third] = [(); 3].map(|()| client(&server.url()));
    let stop = AtomicBool::new(false);
    let (ok, none) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let lock = hurried.mutex(&name);
                while !stop.load(Ordering::Relaxed) {
                    let count = match lock.try_lock_for(ms(2)).unwrap() {
                        Some(_) => &ok,
                        None => &none,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            for client in [&patient, &third] {
                let lock = client.mutex(&name);
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = lock.lock().unwrap();
                        thread::sleep(Duration::from_micros(500));
                        drop(guard);
                    }
                });
            }
        }
        thread::sleep(ms(1_200));
        stop.store(true, Ordering::Relaxed);
    });
    let (ok, none) = (ok.into_inner(), none.into_inner());
    assert!(none > 20, "{ok}, {none}");
    nothing_is_left(&server);
}

#[test]
fn a_link_that_hangs_in_connecting_leaves_a_sound_watchdog_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let lease = ms(1500);
    let client = Client::open(Config::new(proxy.url()).lease(lease)).unwrap();
    let guard = client.mutex(unique("kept")).lock().unwrap();
    let dropped = client.mutex(unique("dropped")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    let opened = (proxy.opened(Target::Link), proxy.opened(Target::Watchdog));
    proxy.set(Target::Link, Mode::BlackHole);
    assert_eq!(server.kill_clients_named("redlatch-link"), 1);
    drop(dropped);
    eventually("it is tried", || proxy.opened(Target::Link) > opened.0);
    let renewals = client.stats().renewals;
    let lost = guard.lost().recv_timeout(lease * 2);
    assert!(lost.is_err(), "{lost:?}");
    let stats = client.stats();
    assert!(stats.renewals >= renewals + 3, "{stats:?}");
    assert_eq!(proxy.opened(Target::Watchdog), opened.1);
    proxy.pass();
    guard.unlock().unwrap();
    nothing_is_left(&server);
}

#[test]
fn after_a_failover_the_watchdog_and_late_releases_follow_the_master() {
    // The address goes over to the promoted replica. Connections made before stay with the old master.
    let old = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
    let new = Server::start();
    let () = new.ask(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    eventually("it follows", || {
        new.ask::<String>(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    let lease = ms(2_000);
    let client = Client::open(Config::new(old.url()).lease(lease)).unwrap();
    let names = ["kept", "dropped", "unlocked"].map(unique);
    let [kept, dropped, unlocked] = [0, 1, 2].map(|n| client.mutex(&names[n]).lock().unwrap());
    eventually("it is renewed", || client.stats().renewals > 0);
    eventually("all is copied", || new.dbsize() == 3);

    // Who asks `old` from now on is answered by the new master.
    let mut demoted = connection_to(&old.unix_url());
    let port = old.port().to_string();
    let () = new.ask(&["REPLICAOF", "NO", "ONE"]);
    let aside = crate::support::free_port();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "port", &aside.to_string()])
        .query(&mut demoted)
        .unwrap();
    let mut promoted = connection_to(&new.unix_url());
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "port", &port])
        .query(&mut promoted)
        .unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", &port])
        .query(&mut demoted)
        .unwrap();

    let (renewals, reconnects) = (client.stats().renewals, client.stats().reconnects);
    drop(dropped);
    eventually("the release follows", || !old.exists(&names[1]));
    assert!(client.stats().reconnects > reconnects);
    in_time("unlocking", RESPONSE, || unlocked.unlock()).unwrap();
    assert!(!old.exists(&names[2]));
    let lost = kept.lost().recv_timeout(lease + lease / 3);
    assert!(lost.is_err(), "{lost:?}");
    assert!(kept.is_valid());
    assert!(client.stats().renewals > renewals);
    let held = [(kept.owner().to_owned(), "1".to_owned())];
    assert_eq!(old.hgetall(&names[0]), held);
    let guard = in_time("locking", RESPONSE, || client.mutex(&names[1]).lock());
    guard.unwrap().unlock().unwrap();
    kept.unlock().unwrap();
    nothing_is_left(&old);
    let stats = client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{stats:?}");
}

#[test]
fn a_replica_is_left_for_a_new_connection_again_and_again_until_there_is_a_master() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url()).lease(ms(2_500))).unwrap();
    let name = unique("kept");
    let kept = client.mutex(&name).lock().unwrap();
    let dropped = client.mutex(unique("dropped")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    let opened = [Target::Link, Target::Watchdog].map(|target| (target, proxy.opened(target)));
    let master = Server::start(); // of which nothing is heard
    master.freeze();
    let () = server.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    drop(dropped);
    for (target, before) in opened {
        let again = within(ms(2_500), || proxy.opened(target) > before);
        assert!(again, "{target:?} stays with a replica");
    }
    let () = server.ask(&["REPLICAOF", "NO", "ONE"]);
    let renewals = client.stats().renewals;
    eventually("renewals go on", || client.stats().renewals > renewals);
    eventually("it is released", || server.keys() == [&*name]);
    assert!(kept.is_valid());
    kept.unlock().unwrap();
    nothing_is_left(&server);
    let stats = client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{stats:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Losses
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_fixed_lease_renewed_too_late_for_its_holder_leaves_nothing_behind() {
    // Redis extends it in time, and the reply comes when the hold has been told lost.
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url())).unwrap();
    let name = unique("late");
    let (short, long) = (
        client.reentrant_lock(&name).lease(ms(300)),
        client.reentrant_lock(&name).lease(HOUR),
    );
    for unlocks in [false, true] {
        let first = short.lock().unwrap();
        proxy.set(Target::Link, Mode::Delay(ms(400)));
        let begun = Instant::now();
        let again = in_time("reentering", ms(1_200), || long.try_lock_for(ms(3_000)));
        proxy.pass();
        assert!(begun.elapsed() >= ms(400));
        let loss = first.lost().try_recv().unwrap();
        assert_eq!(loss.reason, LossReason::Expired);
        assert!(!first.is_valid());
        // Not one hold more of the lost one, but another.
        let again = again.unwrap().unwrap();
        assert!(again.is_valid() && again.owner() != first.owner());
        assert_eq!(again.hold_count(), 1);
        assert_eq!(
            server.hgetall(&name),
            [(again.owner().to_owned(), "1".to_owned())]
        );
        if unlocks {
            assert!(matches!(first.unlock(), Err(Error::Lost { .. })));
            assert!(again.is_valid());
            again.unlock().unwrap();
        } else {
            drop(again);
            drop(first);
        }
        nothing_is_left(&server);
    }
}

#[test]
fn a_fixed_lease_reentered_at_its_very_end_leaves_nothing_behind() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url())).unwrap();
    let lost = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (client, lost) = (&client, &lost);
            scope.spawn(move || {
                for round in 0..60 {
                    let name = unique("end");
                    let short = client.reentrant_lock(&name).lease(ms(20));
                    let long = client.reentrant_lock(&name).lease(HOUR);
                    let Ok(first) = short.lock() else {
                        continue; // so late that it was over
                    };
                    let before = Duration::from_micros(20 + 5 * ((thread + 3 * round) % 60));
                    while first.valid_until() > Instant::now() + before {
                        thread::sleep(Duration::from_micros(5));
                    }
                    let again = in_time("reentering", ms(1_000), || long.try_lock_for(ms(3_000)));
                    let again = again.unwrap().expect("nobody else wants it");
                    assert!(again.is_valid());
                    lost.fetch_add(u64::from(!first.is_valid()), Ordering::Relaxed);
                    drop(again);
                    drop(first);
                }
            });
        }
    });
    // Else no round met the end of its lease.
    assert!(lost.into_inner() > 0, "{:?}", client.stats());
    nothing_is_left(&server);
    eventually("no hold is left", || client.stats().holds == 0);
}

#[test]
fn forcing_somebody_elses_hold_open_does_not_lose_ours_that_comes_after() {
    let server = Server::start();
    let (other, ours) = (client(&server.url()), client(&server.url()));
    for _ in 0..100 {
        let name = unique("forced");
        let theirs = other.mutex(&name).lease(HOUR).lock().unwrap();
        thread::scope(|scope| {
            let next = scope.spawn(|| {
                let guard = ours.mutex(&name).lease(HOUR).lock().unwrap();
                assert!(!within(ms(3), || !guard.is_valid()));
                guard.unlock().unwrap();
            });
            eventually("it waits", || ours.stats().subscriptions == 1);
            assert!(ours.mutex(&name).force_unlock().unwrap());
            next.join().unwrap();
        });
        drop(theirs);
    }
    assert_eq!(ours.stats().lost, 0);
    nothing_is_left(&server);
}

/// Threads take turns for a while, with holds lost in every moment of their lives. Who finds his hold lost keeps the
/// guard until somebody else has the lock: nobody but the line itself brings that about.
fn turns_with_losses(
    lease: Option<Duration>,
    delay: Option<Duration>,
    trouble: impl Fn(&Client, &str),
) {
    const THREADS: usize = 6;
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url())).unwrap();
    if let Some(delay) = delay {
        proxy.set(Target::Link, Mode::Delay(delay));
    }
    let name = unique("turns");
    let until = Instant::now() + ms(800);
    let running = AtomicU64::new(THREADS as u64);
    let (grants, kept) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, name, running, grants, kept) = (&client, &name, &running, &grants, &kept);
            scope.spawn(move || {
                let lock = client.mutex(name);
                let lock = match lease {
                    Some(lease) => lock.lease(lease),
                    None => lock,
                };
                let mut round = thread as u64;
                // One after another leaves, and the last has nobody behind it.
                while Instant::now() < until {
                    let guard = match lock.try_lock_for(ms(5_000)) {
                        Ok(Some(guard)) => guard,
                        Ok(None) => panic!("the line stands still"),
                        Err(Error::Lost { .. }) => continue, // granted when its lease was over
                        Err(err) => panic!("{err:?}"),
                    };
                    let mine = grants.fetch_add(1, Ordering::SeqCst) + 1;
                    round += 1;
                    thread::sleep(Duration::from_micros(round * 37 % 700));
                    if round.is_multiple_of(4) {
                        within(ms(8), || !guard.is_valid());
                    }
                    if !guard.is_valid() {
                        kept.fetch_add(1, Ordering::Relaxed);
                        let went_on = within(ms(3_000), || {
                            grants.load(Ordering::SeqCst) > mine
                                || running.load(Ordering::SeqCst) == 1
                                || Instant::now() > until
                        });
                        assert!(went_on, "a lost hold stops the line");
                    }
                    drop(guard);
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while Instant::now() < until {
            trouble(&client, &name);
        }
    });
    let (grants, kept, stats) = (grants.into_inner(), kept.into_inner(), client.stats());
    assert!(
        grants > 5 && kept > 0 && stats.lost > 0,
        "{grants}, {kept}, {stats:?}"
    );
    nothing_is_left(&server);
    eventually("nobody is left", || {
        let stats = client.stats();
        (stats.holds, stats.rooms, stats.subscriptions) == (0, 0, 0)
    });
}

#[test]
fn a_hold_that_runs_out_as_it_is_granted_does_not_stop_the_line() {
    // Of a lease of 10 ms not quite 8 count, and the grant takes about as long.
    for delay in [ms(5), ms(7)] {
        turns_with_losses(Some(ms(10)), Some(delay), |_, _| thread::sleep(ms(5)));
    }
}

#[test]
fn a_hold_forced_open_as_it_is_granted_or_passed_does_not_stop_the_line() {
    for lease in [None, Some(HOUR)] {
        turns_with_losses(lease, None, |client, name| {
            client.mutex(name).force_unlock().unwrap();
            thread::sleep(Duration::from_micros(300));
        });
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Listening
// ---------------------------------------------------------------------------------------------------------------------

/// The url of a user who may do everything but `rules`.
fn url_without(server: &Server, rules: &[&str]) -> String {
    let user = [
        &["ACL", "SETUSER", "user", "on", ">pw", "~*", "&*", "+@all"][..],
        rules,
    ]
    .concat();
    let () = server.ask(&user);
    format!("redis://user:pw@127.0.0.1:{}/", server.port())
}

/// Somebody waits for `held`, has the lock soon after it was let go, and lets it go too.
fn is_waited_for(holder: &Client, waiter: &Client, name: &str, held: Duration) {
    let guard = holder.mutex(name).lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let got = waiter.mutex(name).lock().unwrap();
            let at = Instant::now();
            assert!(got.is_valid());
            got.unlock().unwrap();
            at
        });
        let commands = waiter.stats().commands;
        eventually("it asks", || waiter.stats().commands > commands);
        thread::sleep(held);
        assert!(!waiting.is_finished());
        let freed = Instant::now();
        guard.unlock().unwrap();
        let got = waiting.join().unwrap();
        assert!(got.saturating_duration_since(freed) < ms(800));
    });
}

#[test]
fn a_user_without_ping_hears_of_releases_also_after_silence() {
    let server = Server::start();
    let url = url_without(&server, &["-ping"]);
    let (holder, waiter) = (client(&url), client(&url));
    // The second is silent for long enough that a sign of life is asked for.
    for held in [ms(50), ms(2_700)] {
        let before = waiter.stats();
        is_waited_for(&holder, &waiter, &unique("no-ping"), held);
        let after = waiter.stats();
        assert_eq!(after.wakes, before.wakes + 1, "{before:?}, {after:?}");
        assert_eq!(after.poll_rescues, 0);
    }
    assert_eq!(waiter.stats().resubscriptions, 0);
    nothing_is_left(&server);
}

#[test]
fn a_user_without_subscribe_waits_by_asking() {
    for rules in [&["-subscribe"][..], &["-@pubsub"], &["-ping", "-subscribe"]] {
        let server = Server::start();
        let url = url_without(&server, rules);
        let (holder, waiter) = (client(&url), client(&url));
        for held in [ms(50), ms(400)] {
            is_waited_for(&holder, &waiter, &unique("deaf"), held);
        }
        let stats = waiter.stats();
        assert_eq!(stats.wakes, 0, "{rules:?}: {stats:?}");
        assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{rules:?}");
        nothing_is_left(&server);
    }
}

#[test]
fn a_confirmation_is_no_message_although_there_was_another_connection_before() {
    const ROUNDS: u64 = 10;
    let server = Server::start();
    let (holder, waiter) = (client(&server.url()), client(&server.url()));
    let subscribed = || {
        server
            .clients_named("redlatch-subscriber")
            .iter()
            .any(|client| client.subscriptions == 1)
    };
    let hand_over = |disturb: &dyn Fn()| {
        let name = unique("confirmed");
        let commands = waiter.stats().commands;
        let guard = holder.mutex(&name).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.mutex(&name).lock().unwrap().unlock().unwrap());
            eventually("it listens", subscribed);
            disturb();
            eventually("it has asked again", || {
                waiter.stats().commands >= commands + 2
            });
            thread::sleep(ms(10)); // for what a confirmation must not do
            guard.unlock().unwrap();
            waiting.join().unwrap();
        });
        eventually("it listens no more", || !subscribed());
    };
    hand_over(&|| {
        assert_eq!(server.kill_clients_named("redlatch-subscriber"), 1);
        eventually("it listens again", || {
            waiter.stats().resubscriptions == 1 && subscribed()
        });
    });
    let before = waiter.stats();
    for _ in 0..ROUNDS {
        hand_over(&|| {});
    }
    let after = waiter.stats();
    assert_eq!(after.resubscriptions, 1);
    let wakes = after.wakes - before.wakes;
    assert!(
        wakes > ROUNDS / 2 && wakes <= ROUNDS + ROUNDS / 5,
        "{wakes} of {ROUNDS}: {after:?}"
    );
    // A grant, a busy answer, one more after the confirmation, and the release.
    let commands = after.commands - before.commands;
    assert!(commands <= ROUNDS * 5, "{commands}: {after:?}");
    nothing_is_left(&server);
}

// ---------------------------------------------------------------------------------------------------------------------
// Host names
// ---------------------------------------------------------------------------------------------------------------------

/// Commands, renewals and messages all work over this url.
fn works_over(server: &Server, url: &str) {
    let (holder, waiter) = (
        Client::open(config(url).lease(ms(600))).unwrap(),
        client(url),
    );
    let name = unique("host");
    let guard = holder.mutex(&name).lock().unwrap();
    eventually("it is renewed", || holder.stats().renewals > 0);
    guard.unlock().unwrap();
    is_waited_for(&holder, &waiter, &name, ms(100));
    for role in ["link", "watchdog", "subscriber"] {
        let connected = server.clients_named(&format!("redlatch-{role}"));
        assert!(!connected.is_empty(), "{role}");
    }
    nothing_is_left(server);
}

#[test]
fn a_host_name_will_do() {
    let server = Server::start();
    works_over(&server, &format!("redis://localhost:{}/", server.port()));
}

#[test]
fn a_host_name_whose_first_address_refuses_will_do() {
    const PART: &str = "regressions::part_with_a_host_of_two_addresses";
    // In a namespace of its own a process has its own hosts; some systems do not let it.
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "::1 localhost\n127.0.0.1 localhost\n").unwrap();
    let script =
        r#"mount --bind "$1" /etc/hosts || exit 77; exec "$2" --exact "$3" --ignored --nocapture"#;
    let run = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(hosts.path())
        .arg(std::env::current_exe().unwrap())
        .arg(PART)
        .output();
    match run {
        Ok(run)
            if run.status.code() != Some(77)
                && String::from_utf8_lossy(&run.stdout).contains("running 1 test") =>
        {
            assert!(
                run.status.success(),
                "{}\n{}",
                String::from_utf8_lossy(&run.stdout),
                String::from_utf8_lossy(&run.stderr)
            );
        }
        _ => eprintln!("not tried: no namespace of its own for a process here"),
    }
}

#[test]
#[ignore = "run by another test, in a namespace of its own"]
fn part_with_a_host_of_two_addresses() {
    let server = Server::start(); // on 127.0.0.1 alone
    let addrs: Vec<_> = ("localhost", server.port())
        .to_socket_addrs()
        .unwrap()
        .map(|addr| addr.ip())
        .collect();
    assert_eq!(
        addrs.first(),
        Some(&IpAddr::V6(Ipv6Addr::LOCALHOST)),
        "{addrs:?}"
    );
    works_over(&server, &format!("redis://localhost:{}/", server.port()));
}
