//! Faults of a server, one at a time: killed, frozen, paused, loading, out of memory, demoted, rights changed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, LossReason};

use crate::support::scripts::cannot_save;
use crate::support::{
    BY_MESSAGE, FAIR_LOCK, FENCED_LOCK, GENEROUS, Kind, LEASE, Losses, MUTEX, Proxy, RESPONSE,
    SLACK, SPIN_LOCK, Server, WRITING, client, config, connection_to, eventually, fails, free_port,
    gets_nothing, in_time, is_redis_6, logs, loosely, ms, nothing_is_left_of, open, scoped, timed,
    unique, within,
};

timed!(opening_fails_at_once_where_nobody_listens_and_in_time_where_nobody_answers);
fn opening_fails_at_once_where_nobody_listens_and_in_time_where_nobody_answers() {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    fails("refused", ms(0), || Client::open(config(&url)));
    let server = Server::start();
    server.freeze();
    fails("frozen", RESPONSE, || Client::open(config(&server.url())));
    server.thaw();
    drop(client(&server.url()).mutex(unique("late")).lock().unwrap());
}

timed!(a_server_killed_while_idle_is_found_again);
fn a_server_killed_while_idle_is_found_again() {
    let mut server = Server::start();
    let client = client(&server.url());
    let lock = client.reentrant_lock(unique("idle"));
    drop(lock.lock().unwrap());
    server.restart();
    for _ in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
        server.restart();
    }
    lock.try_lock().unwrap().unwrap().unlock().unwrap();
}

timed!(a_waiter_outlives_a_quick_restart_and_gets_the_lock);
fn a_waiter_outlives_a_quick_restart_and_gets_the_lock() {
    // The restart deletes the lock, so no release is ever published; the waiter must poll.
    let mut server = Server::start();
    let config = config(&server.url()).command_timeout(ms(3_000));
    let holder = Client::open(config.clone()).unwrap();
    let waiter = Client::open(config).unwrap();
    let name = unique("restart");
    let guard = holder.mutex(&name).lock().unwrap();
    scoped(|scope| {
        let waiting = scope.spawn(|| {
            let got = waiter.mutex(&name).lock().unwrap();
            (got.owner().to_owned(), got.is_valid())
        });
        eventually("it listens", || waiter.stats().subscriptions == 1);
        eventually("the server knows", || {
            server
                .clients_named("subscriber")
                .iter()
                .any(|client| client.subscriptions == 1)
        });
        let begun = Instant::now();
        server.restart();
        let (owner, valid) = waiting.join().unwrap();
        assert!(valid && owner != guard.owner());
        assert!(
            begun.elapsed() < loosely(ms(2_500)),
            "{:?}",
            begun.elapsed()
        );
    });
    let loss = guard.lost().recv_timeout(LEASE).unwrap();
    assert!(matches!(
        loss.reason,
        LossReason::Forced | LossReason::TakenOver
    ));
}

timed!(a_server_killed_while_releasing_does_not_hold_its_client_up);
fn a_server_killed_while_releasing_does_not_hold_its_client_up() {
    let mut server = Server::start();
    let client = client(&server.url());
    let lock = client.mutex(unique("releasing"));
    let stop = AtomicBool::new(false);
    scoped(|scope| {
        let worker = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                if let Ok(guard) = lock.lock() {
                    let begun = Instant::now();
                    drop(guard.unlock());
                    slowest = slowest.max(begun.elapsed());
                }
            }
            slowest
        });
        for _ in 0..8 {
            std::thread::sleep(ms(25));
            server.kill();
            std::thread::sleep(ms(25));
            server.restart();
        }
        stop.store(true, Ordering::Relaxed);
        let slowest = worker.join().unwrap();
        assert!(slowest <= RESPONSE + loosely(SLACK), "{slowest:?}");
    });
    lock.lock().unwrap().unlock().unwrap();
    eventually("nothing is left", || server.keys().is_empty());
}

timed!(a_short_freeze_costs_nothing_but_time);
fn a_short_freeze_costs_nothing_but_time() {
    let server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(1_200))).unwrap();
    let name = unique("freeze");
    let guard = client.mutex(&name).lock().unwrap();
    for _ in 0..2 {
        let renewals = client.stats().renewals;
        server.freeze();
        std::thread::sleep(ms(600));
        server.thaw();
        eventually("renewals go on", || client.stats().renewals > renewals + 1);
        assert!(guard.is_valid());
        assert_eq!(server.hgetall(&name)[0].0, guard.owner());
    }
    guard.unlock().unwrap();
}

timed!(a_long_freeze_is_told_by_the_end_of_validity_and_leaves_nothing_behind);
fn a_long_freeze_is_told_by_the_end_of_validity_and_leaves_nothing_behind() {
    let server = Server::start();
    let received = Losses::default();
    let lease = ms(1_000);
    let client = Client::open(
        config(&server.url())
            .lease(lease)
            .on_lost(received.listener()),
    )
    .unwrap();
    let (name, other) = (unique("freeze"), unique("freeze"));
    let guard = client.mutex(&name).lock().unwrap();
    server.freeze();
    let until = guard.valid_until();
    scoped(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                gets_nothing("try_lock_for", ms(50), || {
                    client.mutex(&other).try_lock_for(ms(50))
                });
            }
            // By now the last attempt's reply is overdue, so the client knows that the server is unreachable.
            fails("try_lock_for", ms(50), || {
                client.mutex(&other).try_lock_for(ms(50))
            });
        });
        let loss = guard.lost().recv_timeout(lease + loosely(SLACK)).unwrap();
        assert_eq!(loss.reason, LossReason::Unreachable);
        assert!(!guard.is_valid());
        // The watchdog may have renewed the hold between the grant and the freeze.
        let told_at = Instant::now();
        assert!(told_at <= guard.valid_until() + ms(100), "told too late");
        assert!(guard.valid_until() <= until + lease / 2);
    });
    server.thaw();
    drop(guard);
    assert!(
        within(ms(1_500), || server.keys().is_empty()),
        "left behind: {:?}",
        server.keys()
    );
    eventually("told once", || {
        received.reasons(&name) == [LossReason::Unreachable]
    });
    for name in [&name, &other] {
        client.mutex(name).lock().unwrap().unlock().unwrap();
    }
    assert!(!within(ms(300), || !server.keys().is_empty()));
}

timed!(a_server_that_is_loading_is_waited_for);
fn a_server_that_is_loading_is_waited_for() {
    let delay = ["--key-load-delay", "12000"];
    // While it loads, the server handles commands after each block of this many bytes; before Redis 7.0 always 2 MiB.
    let often = ["--loading-process-events-interval-bytes", "1024"];
    let (mut server, text) = if is_redis_6() {
        (Server::start_with(&delay), "x".repeat(250_000))
    } else {
        let args = [delay, often].concat();
        (Server::start_with(&args), "x".repeat(2_000))
    };
    let mut con = server.connection();
    for n in 0..100 {
        let () = redis::cmd("SET")
            .arg(format!("ballast:{n}"))
            .arg(&text)
            .arg("PX")
            .arg(60_000)
            .query(&mut con)
            .unwrap();
    }
    let () = server.ask(&["CONFIG", "SET", "rdbcompression", "no"]);
    let () = server.ask(&["SAVE"]);
    let quick = client(&server.url());
    let patient = Config::new(server.url());
    server.restart();
    let err = server.try_ask::<String>(&["GET", "x"]).unwrap_err();
    assert_eq!(err.code(), Some("LOADING"), "{err}");
    let lock = quick.mutex(unique("loading"));
    fails("try_lock_for", ms(200), || lock.try_lock_for(ms(200)));
    fails("lock", RESPONSE, || lock.lock());
    let err = Client::open(config(&server.url()).connect_timeout(ms(50))).unwrap_err();
    assert!(matches!(err, Error::Redis { .. }) && err.is_retryable());
    let patient = Client::open(patient).unwrap();
    drop(patient.mutex(unique("loading")).lock().unwrap());
    lock.lock().unwrap().unlock().unwrap();
}

timed!(a_replica_that_lost_its_master_is_an_error_until_it_is_promoted);
fn a_replica_that_lost_its_master_is_an_error_until_it_is_promoted() {
    let server = Server::start_with(&["--replica-serve-stale-data", "no"]);
    let client = client(&server.url());
    let lock = client.mutex(unique("master-down"));
    drop(lock.lock().unwrap());
    let () = server.ask(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    fails("lock", RESPONSE, || lock.lock());
    fails("try_lock_for", ms(300), || lock.try_lock_for(ms(300)));
    fails("is_locked", RESPONSE, || lock.is_locked());
    let () = server.ask(&["REPLICAOF", "NO", "ONE"]);
    in_time("lock", RESPONSE, || lock.lock())
        .unwrap()
        .unlock()
        .unwrap();
}

timed!(without_memory_nothing_is_taken_and_what_is_held_is_kept_and_given_back);
fn without_memory_nothing_is_taken_and_what_is_held_is_kept_and_given_back() {
    let server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(900))).unwrap();
    let (name, given) = (unique("oom"), unique("oom"));
    let guard = client.reentrant_lock(&name).lock().unwrap();
    let other = client.reentrant_lock(&given).lock().unwrap();
    let () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let commands = client.stats().commands;
    let lock = client.mutex(unique("oom"));
    for _ in 0..3 {
        fails("lock", ms(0), || lock.lock());
        fails("try_lock_for", ms(0), || lock.try_lock_for(ms(2_000)));
    }
    let sent = client.stats().commands - commands;
    assert!(sent <= 12, "{sent} commands for 6 refusals");
    let twice = client.reentrant_lock(&name).lock().unwrap();
    let renewals = client.stats().renewals;
    eventually("renewals go on", || client.stats().renewals > renewals + 4);
    assert!(guard.is_valid() && twice.is_valid());
    other.unlock().unwrap();
    drop(twice);
    drop(guard);
    eventually("both are free", || server.keys().is_empty());
    let () = server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(client.stats().releases_failed, 0);
}

timed!(a_server_that_cannot_save_refuses_acquires_at_once_and_gets_releases_until_it_takes_them);
fn a_server_that_cannot_save_refuses_acquires_at_once_and_gets_releases_until_it_takes_them() {
    // The server rejects all writes with MISCONF while snapshots fail.
    let server = Server::start_with(&["--dbfilename", "no-such-name.rdb"]);
    let config = config(&server.url());
    let [renews, hammers] = [(); 2].map(|()| Client::open(config.clone()).unwrap());
    let client = Client::open(config.lease(10 * GENEROUS)).unwrap();
    let renewed = renews.mutex(unique("renewed")).lock().unwrap();
    let unlocked = client.mutex(unique("unlocked")).lock().unwrap();
    let (spun, written) = (
        client.spin_lock(unique("spun")).lock().unwrap(),
        client.rw_lock(unique("written")).write().unwrap(),
    );
    let (read, queued, fenced) = (
        client.rw_lock(unique("read")).read().unwrap(),
        client.fair_lock(unique("queued")).lock().unwrap(),
        client.fenced_lock(unique("fenced")).lock().unwrap(),
    );
    cannot_save(&server);
    for _ in 0..3 {
        let err = in_time("lock", ms(0), || client.mutex(unique("free")).lock()).unwrap_err();
        assert!(
            err.is_retryable() && err.to_string().contains("MISCONF"),
            "{err}"
        );
        fails("fair", ms(0), || hammers.fair_lock(unique("free")).lock());
    }
    // A rejected acquire has not run, so no release is queued.
    hammers.close(ms(100)).unwrap();
    drop((spun, written, read, queued, fenced));
    let err = in_time("unlock", RESPONSE, || unlocked.unlock()).unwrap_err();
    // The server's reason, unless the deadline passed during a repeated attempt.
    let said = err.to_string();
    let why = said.contains("MISCONF") || said.contains("in time");
    assert!(!err.is_retryable() && why, "it follows the work: {said}");
    let asked = server.calls("evalsha");
    let renewals = renews.stats().renewals;
    eventually("they are sent again", || {
        server.calls("evalsha") > asked + 20
    });
    let () = server.ask(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    eventually("it is renewed", || renews.stats().renewals > renewals);
    renewed.unlock().unwrap();
    let held = |key: &String| !key.contains("token") && key != "dirty";
    eventually("all are free", || !server.keys().iter().any(held));
    assert_eq!(client.stats().releases_failed, 0);
}

timed!(a_password_set_meanwhile_is_an_error_until_it_is_removed);
fn a_password_set_meanwhile_is_an_error_until_it_is_removed() {
    let server = Server::start();
    let client = client(&server.url());
    let (name, lock) = (unique("auth"), client.mutex(unique("auth")));
    let guard = client.mutex(&name).lock().unwrap();
    let mut con = server.connection();
    let set = |con: &mut redis::Connection, password: &str| {
        redis::cmd("CONFIG")
            .arg(&["SET", "requirepass", password])
            .query::<()>(con)
            .unwrap();
    };
    set(&mut con, "secret");
    let () = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query(&mut con)
        .unwrap();
    for _ in 0..3 {
        let err = in_time("lock", RESPONSE, || lock.lock()).unwrap_err();
        assert!(matches!(err, Error::Redis { .. }) && !err.is_retryable());
        assert!(!format!("{err:?}").contains("secret"));
        fails("try_lock_for", RESPONSE, || lock.try_lock_for(ms(2_000)));
    }
    set(&mut con, "");
    // The client tries to log in once a second.
    in_time("recovering", ms(1_000), || {
        eventually("it lets the client in", || lock.lock().is_ok());
    });
    let renewals = client.stats().renewals;
    eventually("renewals go on", || client.stats().renewals > renewals);
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    assert!(server.keys().is_empty());
}

timed!(a_pause_shorter_than_the_command_timeout_is_waited_for);
fn a_pause_shorter_than_the_command_timeout_is_waited_for() {
    let server = Server::start();
    let client = Client::open(config(&server.url()).command_timeout(ms(2_000))).unwrap();
    let lock = client.mutex(unique("pause"));
    let begun = Instant::now();
    let () = server.ask(&["CLIENT", "PAUSE", "500", "ALL"]);
    lock.lock().unwrap().unlock().unwrap();
    assert!(begun.elapsed() >= ms(490), "{:?}", begun.elapsed());
    assert_eq!(client.stats().reconnects, 0);
    let () = server.ask(&["CLIENT", "PAUSE", "500", "ALL"]);
    let late = in_time("try_lock_for", ms(100), || lock.try_lock_for(ms(100)));
    assert!(matches!(late, Ok(None)), "{late:?}");
    eventually("it is undone", || server.keys().is_empty());
    lock.lock().unwrap().unlock().unwrap();
}

timed!(connections_closed_for_idleness_are_not_noticed);
fn connections_closed_for_idleness_are_not_noticed() {
    let server = Server::start();
    let name = unique("idle");
    let clients = [(); 5].map(|()| client(&server.url()));
    let guard = clients[4].mutex(&name).lock().unwrap();
    let all_closed = || {
        eventually("the links are closed", || {
            server.clients_named("link").is_empty()
        });
    };
    let () = server.ask(&["CONFIG", "SET", "timeout", "1"]);
    all_closed();
    for (verb, client) in clients.iter().take(4).enumerate() {
        let lock = client.mutex(unique("idle"));
        match verb {
            0 => lock.lock().unwrap().unlock().unwrap(),
            1 => drop(lock.try_lock().unwrap().unwrap()),
            2 => assert!(lock.try_lock_for(RESPONSE).unwrap().is_some()),
            _ => assert!(client.mutex(&name).is_locked().unwrap()),
        }
    }
    // The second time over a connection that replaced an earlier one.
    all_closed();
    clients[0]
        .mutex(unique("idle"))
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    eventually("nothing is left", || server.keys().is_empty());
}

/// Threads of two clients increment a counter under one lock while `trouble` is called every 15 ms. Returns the longest
/// wait.
fn counts_exactly_through(kind: Kind, trouble: impl Fn(&Server) + Sync) -> Duration {
    let server = Server::start();
    let clients: Vec<_> = (0..2)
        .map(|_| Client::open(config(&server.url()).command_timeout(ms(3_000))).unwrap())
        .collect();
    let name = unique("counter");
    let key = format!("{name}:value");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let slowest = scoped(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|n| {
                let (lock, server) = (kind.of(&clients[n % 2], &name), &server);
                let (stop, done, key) = (&stop, &done, &key);
                scope.spawn(move || {
                    let mut con = connection_to(&server.url());
                    let mut slowest = Duration::ZERO;
                    while !stop.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        let guard = lock.lock().unwrap();
                        slowest = slowest.max(begun.elapsed());
                        let value: Option<u64> =
                            redis::cmd("GET").arg(key).query(&mut con).unwrap();
                        let () = redis::cmd("SET")
                            .arg(key)
                            .arg(value.unwrap_or(0) + 1)
                            .query(&mut con)
                            .unwrap();
                        done.fetch_add(1, Ordering::Relaxed);
                        if n % 2 == 0 {
                            guard.unlock().unwrap();
                        }
                    }
                    slowest
                })
            })
            .collect();
        let until = Instant::now() + ms(1_500);
        while Instant::now() < until {
            trouble(&server);
            std::thread::sleep(ms(15));
        }
        let done_before = done.load(Ordering::Relaxed);
        eventually("work goes on", || {
            done.load(Ordering::Relaxed) > done_before + 20
        });
        stop.store(true, Ordering::Relaxed);
        let slowest = workers.into_iter().map(|worker| worker.join().unwrap());
        slowest.max().unwrap()
    });
    let value: u64 = server.ask(&["GET", &key]);
    assert_eq!(value, done.load(Ordering::Relaxed));
    server.cli(&["DEL", &key]);
    eventually("the lock is free", || nothing_is_left_of(kind, &server));
    for client in &clients {
        let stats = client.stats();
        assert_eq!((stats.lost, stats.releases_failed), (0, 0));
        assert_eq!(stats.releases_of_lost, 0);
    }
    slowest
}

timed!(scripts_forgotten_over_and_over_are_sent_again);
fn scripts_forgotten_over_and_over_are_sent_again() {
    let slowest = counts_exactly_through(MUTEX, |server| {
        let () = server.ask(&["SCRIPT", "FLUSH"]);
    });
    assert!(slowest < loosely(ms(1_500)), "{slowest:?}");
}

timed!(a_link_killed_over_and_over_is_not_noticed);
fn a_link_killed_over_and_over_is_not_noticed() {
    let slowest = counts_exactly_through(MUTEX, |server| {
        server.kill_clients_named("link");
    });
    assert!(slowest < loosely(ms(2_500)), "{slowest:?}");
}

timed!(a_subscriber_killed_over_and_over_slows_nobody_down_much);
fn a_subscriber_killed_over_and_over_slows_nobody_down_much() {
    let slowest = counts_exactly_through(MUTEX, |server| {
        server.kill_clients_named("subscriber");
    });
    assert!(slowest < loosely(ms(2_500)), "{slowest:?}");
}

/// In turns: scripts flushed, links killed, subscribers killed.
fn counts_exactly_through_everything(kind: Kind) {
    let turn = AtomicU64::new(0);
    let slowest = counts_exactly_through(kind, |server| {
        match turn.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => {
                let () = server.ask(&["SCRIPT", "FLUSH"]);
            }
            1 => {
                server.kill_clients_named("link");
            }
            _ => {
                server.kill_clients_named("subscriber");
            }
        }
    });
    assert!(slowest < loosely(ms(3_500)), "{slowest:?}");
}

timed!(a_fair_lock_counts_exactly_through_everything);
fn a_fair_lock_counts_exactly_through_everything() {
    counts_exactly_through_everything(FAIR_LOCK);
}

timed!(a_fenced_lock_counts_exactly_through_everything);
fn a_fenced_lock_counts_exactly_through_everything() {
    counts_exactly_through_everything(FENCED_LOCK);
}

timed!(a_spin_lock_counts_exactly_through_everything);
fn a_spin_lock_counts_exactly_through_everything() {
    counts_exactly_through_everything(SPIN_LOCK);
}

timed!(a_write_lock_counts_exactly_through_everything);
fn a_write_lock_counts_exactly_through_everything() {
    counts_exactly_through_everything(WRITING);
}

timed!(a_watchdog_killed_over_and_over_goes_on_renewing);
fn a_watchdog_killed_over_and_over_goes_on_renewing() {
    let server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(900))).unwrap();
    let guards: Vec<_> = (0..50)
        .map(|_| client.mutex(unique("killed")).lock().unwrap())
        .collect();
    let mut killed = 0;
    for _ in 0..6 {
        // Kill connections in the middle of a greeting and of a batch, but stop after 100 ms so that renewals get
        // through.
        let until = Instant::now() + ms(100);
        while Instant::now() < until {
            killed += server.kill_clients_named("watchdog");
        }
        let renewals = client.stats().renewals;
        eventually("renewals get through", || {
            client.stats().renewals >= renewals + 50
        });
        assert_eq!(server.dbsize(), 50);
    }
    assert!(killed > 3, "{killed} kills");
    assert!(guards.iter().all(|guard| guard.is_valid()));
    let renewals = client.stats().renewals;
    eventually("all are renewed", || {
        client.stats().renewals >= renewals + 100
    });
    for guard in guards {
        guard.unlock().unwrap();
    }
    assert_eq!(client.stats().lost, 0);
}

timed!(a_user_who_may_not_listen_waits_by_asking);
fn a_user_who_may_not_listen_waits_by_asking() {
    let logs = logs();
    let server = Server::start();
    let () = server.ask(&[
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        ">pw",
        "~*",
        "resetchannels",
        "+@all",
    ]);
    let url = format!("redis://deaf:pw@127.0.0.1:{}/", server.port());
    let proxy = Proxy::start(server.addr());
    let (holder, waiter) = (
        client(&url),
        client(&url.replace(&server.port().to_string(), &proxy.port().to_string())),
    );
    let name = unique("deaf");
    let said = format!("does not let this user subscribe to `redisson_lock__channel:{{{name}}}`");
    for _ in 0..3 {
        let guard = holder.mutex(&name).lock().unwrap();
        scoped(|scope| {
            let waiting = scope.spawn(|| {
                let got = waiter.mutex(&name).lock().unwrap();
                let at = Instant::now();
                got.unlock().unwrap();
                at
            });
            let commands = waiter.stats().commands;
            eventually("it asks again", || waiter.stats().commands > commands + 2);
            let freed = Instant::now();
            guard.unlock().unwrap();
            let got = waiting.join().unwrap();
            // The longest pause between polls is 5 s.
            assert!(got.saturating_duration_since(freed) < loosely(ms(5_000) + SLACK));
        });
    }
    eventually("it is said once", || {
        logs.count(log::Level::Warn, &said) == 1
    });
    assert_eq!(waiter.stats().subscriptions, 0);
    // Once the user may subscribe again, the release is notified by a message.
    let () = server.ask(&["ACL", "SETUSER", "deaf", "allchannels"]);
    let guard = holder.mutex(&name).lock().unwrap();
    scoped(|scope| {
        let asked = server.calls("evalsha");
        let waiting = scope.spawn(|| drop(waiter.mutex(&name).lock().unwrap()));
        eventually("it listens", || {
            server
                .clients_named("subscriber")
                .iter()
                .any(|client| client.subscriptions > 0)
        });
        eventually("it has asked once more, and waits for a message", || {
            server.calls("evalsha") >= asked + 2
        });
        let wakes = waiter.stats().wakes;
        guard.unlock().unwrap();
        waiting.join().unwrap();
        assert!(waiter.stats().wakes > wakes);
    });
}

/// Closes the client if the test panics, so that its waiting threads end.
struct EndsWaits<'a>(&'a Client);

impl Drop for EndsWaits<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close(ms(1_000)).ok();
        }
    }
}

timed!(one_channel_that_is_refused_says_nothing_about_the_others);
fn one_channel_that_is_refused_says_nothing_about_the_others() {
    let logs = logs();
    let server = Server::start();
    let (good, bad) = (unique("good"), unique("bad"));
    server.cli(&[
        "ACL",
        "SETUSER",
        "picky",
        "on",
        ">pw",
        "~*",
        "+@all",
        "resetchannels",
        "&redisson_lock__channel:*",
    ]);
    let holder = open(&server);
    let client = Client::open(server.url().replace("redis://", "redis://picky:pw@")).unwrap();
    let latch = holder.latch(&bad);
    assert!(latch.try_set_count(1).unwrap());
    let subscriptions = || -> u64 {
        let clients = server.clients_named("subscriber");
        clients.iter().map(|client| client.subscriptions).sum()
    };
    for rights_come_first in [false, true] {
        let guard = holder.mutex(&good).lock().unwrap();
        scoped(|scope| {
            let _ends = EndsWaits(&client);
            let refused = scope.spawn(|| client.latch(&bad).wait().unwrap());
            eventually("it is refused", || client.stats().commands > 3);
            let received = scope.spawn(|| drop(client.mutex(&good).lock().unwrap()));
            eventually("the other one listens", || subscriptions() == 1);
            let freed = Instant::now();
            guard.unlock().unwrap();
            received.join().unwrap();
            assert!(freed.elapsed() < loosely(BY_MESSAGE));
            if rights_come_first {
                let () = server.ask(&["ACL", "SETUSER", "picky", "allchannels"]);
                eventually("it listens, too", || {
                    let heard = server.ask::<(String, u64)>(&[
                        "PUBSUB",
                        "NUMSUB",
                        &format!("redisson_countdownlatch__channel__{{{bad}}}"),
                    ]);
                    heard.1 == 1
                });
            }
            latch.count_down().unwrap();
            refused.join().unwrap();
        });
        latch.try_set_count(1).unwrap();
    }
    let said = || logs.count(log::Level::Warn, &bad);
    eventually("it is said", || said() > 0);
    assert_eq!(said(), 1);
    eventually("nobody listens", || subscriptions() == 0);
}
