//! Guarded commands under faults: a command without a reply is not sent again, and no command runs after its hold.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::unbounded;
use redis::cmd;
use redlatch::{Client, Config, Error, GuardedScript};

use super::key;
use crate::support::{
    Crew, Deployment, LONG, Net, RESPONSE, Server, Target, eventually, in_haste, in_time, loosely,
    ms, scoped, settings, timed, unique,
};

/// A network without TLS, so that the proxy can recognise commands.
fn plain() -> Net {
    Net::of(Server::start_as(Deployment::Single), in_haste, in_haste)
}

timed!(a_lost_reply_is_not_sent_again);
fn a_lost_reply_is_not_sent_again() {
    let net = plain();
    let (count, script) = (
        key(&net.name, "count"),
        GuardedScript::new("return redis.call('incr', KEYS[1])"),
    );
    let guard = net.client.mutex(&net.name).lock().unwrap();
    // From now on both go by their hashes.
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    guard.invoke::<i64>(&script, &count, None::<&str>).unwrap();
    for (round, users) in [(2, false), (3, true), (4, false), (5, true)] {
        let trap = net.proxy.swallow_reply_to(&count);
        let lost = in_time("query", RESPONSE, || match users {
            false => guard.query::<i64>(cmd("INCR").arg(&count)),
            true => guard.invoke::<i64>(&script, &count, None::<&str>),
        });
        let err = lost.unwrap_err();
        assert!(trap.fired(), "{err}");
        assert!(err.may_have_run() && !err.is_retryable(), "{err}");
        assert!(err.to_string().contains("may have run"), "{err}");
        assert_eq!(net.server.get_int(&count), round, "once");
        net.proxy.pass();
    }
    // The hold and the connection still work.
    assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 6);
    guard.unlock().unwrap();
}

timed!(a_connection_that_is_cut_is_an_unknown_outcome_once);
fn a_connection_that_is_cut_is_an_unknown_outcome_once() {
    let net = plain();
    let count = key(&net.name, "count");
    let guard = net.client.mutex(&net.name).lock().unwrap();
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    let trap = net.proxy.black_hole_request(&count);
    scoped(|scope| {
        let asks = scope.spawn(|| guard.query::<i64>(cmd("INCR").arg(&count)));
        eventually("it is on its way", || trap.fired());
        net.proxy.cut(Target::All);
        let err = asks.join().unwrap().unwrap_err();
        assert!(err.may_have_run(), "{err}");
    });
    net.proxy.pass();
    assert_eq!(net.server.get_int(&count), 0);
    // The next command opens a new connection.
    assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 1);
}

timed!(what_a_frozen_server_gets_to_too_late_does_not_run);
fn what_a_frozen_server_gets_to_too_late_does_not_run() {
    let server = Server::start();
    let client = Client::open(in_haste(settings(&server))).unwrap();
    let name = unique("frozen");
    let count = key(&name, "count");
    let lease = loosely(ms(300));
    let guard = client.mutex(&name).fixed_lease(lease).lock().unwrap();
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    server.freeze();
    let err = in_time("query", RESPONSE, || {
        guard.query::<i64>(cmd("INCR").arg(&count))
    })
    .unwrap_err();
    assert!(
        err.may_have_run() || matches!(err, Error::Lost { .. }),
        "{err}"
    );
    // The frozen server's clock runs on, and so does the lease.
    eventually("the lease is over", || {
        guard.valid_until() + lease / 50 + ms(10) < std::time::Instant::now()
    });
    server.thaw();
    let other = Client::open(settings(&server)).unwrap();
    drop(
        other
            .mutex(&name)
            .try_lock_for(ms(10_000))
            .unwrap()
            .unwrap(),
    );
    assert_eq!(server.get_int(&count), 0, "it ran after the lease");
}

timed!(nothing_waits_longer_than_the_command_timeout);
fn nothing_waits_longer_than_the_command_timeout() {
    let mut server = Server::start();
    let client = Client::open(in_haste(settings(&server))).unwrap();
    let name = unique("away");
    let guard = client.mutex(&name).lock().unwrap();
    server.kill();
    let err = in_time("query", RESPONSE, || {
        guard.query::<i64>(cmd("INCR").arg(key(&name, "count")))
    });
    let err = err.unwrap_err();
    assert!(matches!(err, Error::Redis { .. }), "{err}");
    server.restart();
    // The server restarted without the lock, so it must reject the command.
    eventually("it knows", || {
        match guard.query::<i64>(cmd("INCR").arg(key(&name, "count"))) {
            Err(Error::Lost { .. }) => true,
            Err(Error::Redis { .. }) => false,
            other => panic!("{other:?}"),
        }
    });
    assert!(!server.exists(&key(&name, "count")));
}

timed!(nobody_is_handed_a_hold_under_which_a_command_may_still_run);
fn nobody_is_handed_a_hold_under_which_a_command_may_still_run() {
    // A tenure so long that threads of one client would hand the lock over without asking Redis.
    let patient = |config: Config| config.tenure(ms(1_000)).command_timeout(ms(200));
    let net = Net::of(Server::start_as(Deployment::Single), patient, in_haste);
    let (mutex, count) = (net.client.mutex(&net.name), key(&net.name, "count"));
    let guard = mutex.lock().unwrap();
    let owner = guard.owner().to_owned();
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    let (next, done) = (unbounded(), unbounded::<()>());
    let mut crew = Crew::new();
    let (theirs, sender, ends) = (mutex.clone(), next.0, done.1);
    crew.spawn(move || {
        let guard = theirs.lock().unwrap();
        sender.send(guard.owner().to_owned()).unwrap();
        ends.recv().unwrap();
    });
    crew.all_parked();
    net.proxy.stall_present_requests(Target::Guarded);
    let err = guard
        .query::<i64>(cmd("INCR").arg(&count))
        .expect_err("nobody answers");
    assert!(err.may_have_run(), "{err}");
    drop(guard);
    // The next thread acquires the lock over a new connection while the command is still on its way.
    let others = next.1.recv_timeout(LONG).unwrap();
    assert_ne!(others, owner, "the same hold");
    net.proxy.pass();
    // The stalled command arrives before its connection is closed.
    eventually("it has arrived", || net.proxy.held() == 0);
    done.0.send(()).unwrap();
    crew.join();
    net.client
        .mutex(&net.name)
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    assert_eq!(net.server.get_int(&count), 0, "it ran under the next hold");
}

/// Runs threads that lock and write by guards of their own, until `until` returns.
fn while_others_work(server: &Server, client: &Client, until: impl FnOnce(&AtomicU64)) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let link = || server.clients_named("link").first().map(|link| link.id);
    let link_before = link();
    let done: Vec<u64> = scoped(|scope| {
        let works = |_| {
            scope.spawn(|| {
                let mutex = client.mutex(unique("others"));
                let (mut done, count) = (0, key(mutex.name(), "count"));
                while !stop.load(Ordering::Relaxed) {
                    let guard = mutex.lock().unwrap();
                    done += 1;
                    assert_eq!(guard.query::<u64>(cmd("INCR").arg(&count)).unwrap(), done);
                    guard.unlock().unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                done
            })
        };
        let others: Vec<_> = (0..4).map(works).collect();
        // Stop the threads even if `until` panics.
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| until(&rounds)));
        stop.store(true, Ordering::Relaxed);
        let done = others.into_iter().map(|other| other.join().unwrap());
        let done = done.collect();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done
    });
    assert!(done.iter().all(|done| *done > 0), "{done:?}");
    assert_eq!(link_before, link(), "the connection of the locks was lost");
}

timed!(a_reply_that_is_too_large_or_too_deep_is_an_error_of_its_caller_alone);
fn a_reply_that_is_too_large_or_too_deep_is_an_error_of_its_caller_alone() {
    let server = Server::start();
    let client = Client::open(settings(&server)).unwrap();
    let guard = client.mutex(unique("large")).lock().unwrap();
    assert_eq!(server.clients_named("guarded").len(), 0);
    let long = key(guard.name(), "long");
    guard
        .query::<()>(cmd("SETRANGE").arg(&long).arg(3 << 20).arg("x"))
        .unwrap();
    let script = GuardedScript::new(
        "local t, n = {}, tonumber(ARGV[1])
         for i = 1, n do t[i] = i end
         for i = 1, ARGV[2] do t = {t} end
         return t",
    );
    let fails = |result: redlatch::Result<redis::Value>| {
        let err = result.expect_err("it is too much");
        assert!(err.to_string().contains("the most that is read"), "{err}");
        assert!(
            err.to_string().contains("the command has run: check"),
            "{err}"
        );
        assert!(err.may_have_run() && !err.is_retryable(), "{err}");
    };
    while_others_work(&server, &client, |rounds| {
        for _ in 0..5 {
            fails(guard.query(cmd("GET").arg(&long)));
            fails(guard.invoke(&script, None::<&str>, (200_000, 0)));
            fails(guard.invoke(&script, None::<&str>, (1, 8)));
            let rounds_before = rounds.load(Ordering::Relaxed);
            eventually("others go on", || {
                rounds.load(Ordering::Relaxed) > rounds_before + 4
            });
        }
        // The limit counts bytes of the reply, not memory.
        let many: Vec<i64> = guard.invoke(&script, None::<&str>, (100_000, 0)).unwrap();
        assert_eq!(many.last(), Some(&100_000));
        guard
            .invoke::<redis::Value>(&script, None::<&str>, (1, 7))
            .unwrap();
    });
    assert_eq!(client.stats().reconnects, 0);
    assert_eq!(server.clients_named("guarded").len(), 1);
    guard.unlock().unwrap();
    drop(client);
    eventually("it is closed", || server.clients_named("").is_empty());
}

timed!(a_reply_that_is_too_long_to_be_skipped_ends_its_connection_and_says_so);
fn a_reply_that_is_too_long_to_be_skipped_ends_its_connection_and_says_so() {
    let server = Server::start();
    // Copying such a reply in a script takes a while.
    let config = settings(&server).command_timeout(LONG);
    let client = Client::open(config).unwrap();
    let [large, small] = ["large", "small"].map(|name| client.mutex(unique(name)).lock().unwrap());
    let (long, count) = (key(large.name(), "long"), key(small.name(), "count"));
    large
        .query::<()>(cmd("SETRANGE").arg(&long).arg(80 << 20).arg("x"))
        .unwrap();
    let link = server.clients_named("link")[0].id;
    let client = &client;
    let said = |err: &Error| err.to_string().contains("its connection was closed");
    scoped(|scope| {
        server.freeze();
        let sent = client.stats().commands;
        let gets = scope.spawn(|| large.query::<redis::Value>(cmd("GET").arg(&long)));
        eventually("it is sent", || client.stats().commands > sent);
        let behind = scope.spawn(|| small.query::<i64>(cmd("INCR").arg(&count)));
        eventually("it is sent", || client.stats().commands > sent + 1);
        server.thaw();
        let err = gets.join().unwrap().unwrap_err();
        assert!(err.may_have_run() && said(&err), "{err}");
        // The reply to INCR was lost with the connection, unless INCR was not written yet and was sent again.
        match behind.join().unwrap() {
            Ok(counted) => assert_eq!(counted, 1),
            Err(err) => assert!(err.may_have_run() && said(&err), "{err}"),
        }
    });
    let counted = server.get_int(&count);
    assert_eq!(
        small.query::<i64>(cmd("INCR").arg(&count)).unwrap(),
        counted + 1
    );
    assert_eq!(server.clients_named("link")[0].id, link);
}

timed!(a_guarded_connection_that_is_killed_costs_no_lock_anything);
fn a_guarded_connection_that_is_killed_costs_no_lock_anything() {
    let server = Server::start();
    let client = Client::open(settings(&server)).unwrap();
    let (locks, guard) = (
        client.mutex(unique("locks")),
        client.mutex(unique("killed")).lock().unwrap(),
    );
    let count = key(guard.name(), "count");
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    let link = server.clients_named("link")[0].id;
    let (stop, mut done, mut unknown) = (AtomicBool::new(false), 0, 0);
    scoped(|scope| {
        let kills = scope.spawn(|| {
            let mut killed = 0;
            while killed < 20 {
                killed += server.kill_clients_named("guarded");
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            match guard.query::<i64>(cmd("INCR").arg(&count)) {
                Ok(_) => done += 1,
                Err(err) if err.may_have_run() => unknown += 1,
                Err(err) => panic!("{err}"),
            }
            locks.lock().unwrap().unlock().unwrap();
        }
        kills.join().unwrap();
    });
    let counted = server.get_int(&count);
    assert!(
        (done..=done + unknown).contains(&counted),
        "{counted} of {done} and {unknown}"
    );
    assert_eq!(server.clients_named("link")[0].id, link);
    guard.unlock().unwrap();
}

timed!(a_command_that_is_late_finds_its_hold_released_and_does_nothing);
fn a_command_that_is_late_finds_its_hold_released_and_does_nothing() {
    let net = plain();
    let mutex = net.client.mutex(&net.name);
    let count = key(&net.name, "count");
    let guard = mutex.lock().unwrap();
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    net.proxy.stall_present_requests(Target::Guarded);
    let err = guard.query::<i64>(cmd("INCR").arg(&count)).unwrap_err();
    assert!(err.may_have_run(), "{err}");
    // The release goes over another connection, and overtakes the command.
    guard.unlock().unwrap();
    let theirs = net.other.mutex(&net.name).lock().unwrap();
    net.proxy.pass();
    eventually("it has arrived", || net.proxy.held() == 0);
    theirs.query::<i64>(cmd("INCR").arg(&count)).unwrap();
    assert_eq!(net.server.get_int(&count), 1, "it ran after its hold");
}

timed!(a_connection_that_was_closed_while_idle_loses_no_command);
fn a_connection_that_was_closed_while_idle_loses_no_command() {
    let server = Server::start();
    let client = Client::open(settings(&server)).unwrap();
    let name = unique("idle");
    let (guard, count) = (client.mutex(&name).lock().unwrap(), key(&name, "count"));
    for n in 1..=3 {
        let idle = Instant::now();
        eventually("it was idle", || idle.elapsed() > ms(150));
        server.ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // The closed connection took no byte of the command, so it is certain that the command has not run.
        assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), n);
    }
}
