//! Guarded commands on a bad day: one that has no answer is not sent again, and none runs after its hold.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use redis::cmd;
use redlatch::{Client, Config, Error, GuardedScript};

use super::key;
use crate::support::{
    Crew, Deployment, LONG, Net, RESPONSE, Server, Target, eventually, in_haste, in_time, loosely,
    ms, settings, timed, unique,
};

/// A network that can be read.
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
    // So that it goes by its hash.
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
    // Neither the hold nor the connection has suffered for good.
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
    thread::scope(|scope| {
        let asks = scope.spawn(|| guard.query::<i64>(cmd("INCR").arg(&count)));
        eventually("it is on its way", || trap.fired());
        net.proxy.cut(Target::All);
        let err = asks.join().unwrap().unwrap_err();
        assert!(err.may_have_run(), "{err}");
    });
    net.proxy.pass();
    assert_eq!(net.server.get_int(&count), 0);
    // The next one finds a new connection.
    assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 1);
}

timed!(what_a_frozen_server_gets_to_too_late_does_not_run);
fn what_a_frozen_server_gets_to_too_late_does_not_run() {
    let server = Server::start();
    let client = Client::open(in_haste(settings(&server))).unwrap();
    let name = unique("frozen");
    let count = key(&name, "count");
    let lease = loosely(ms(300));
    let guard = client.mutex(&name).lease(lease).lock().unwrap();
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
    // Its lease goes on by the server's clock.
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

timed!(nothing_waits_longer_than_the_response_timeout);
fn nothing_waits_longer_than_the_response_timeout() {
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
    // It came back without the lock, and runs nothing.
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
    // Everything happens within one tenure, in which threads hand a lock over.
    let patient = |config: Config| config.tenure(ms(1_000)).response_timeout(ms(200));
    let net = Net::of(Server::start_as(Deployment::Single), patient, in_haste);
    let (mutex, count) = (net.client.mutex(&net.name), key(&net.name, "count"));
    let guard = mutex.lock().unwrap();
    let owner = guard.owner().to_owned();
    guard.query::<()>(cmd("SET").arg(&count).arg(0)).unwrap();
    let (next, done) = (channel(), channel::<()>());
    let mut crew = Crew::new();
    let (theirs, sender, ends) = (mutex.clone(), next.0, done.1);
    crew.spawn(move || {
        let guard = theirs.lock().unwrap();
        sender.send(guard.owner().to_owned()).unwrap();
        ends.recv().unwrap();
    });
    crew.all_parked();
    net.proxy.stall_present_requests(Target::Link);
    let err = guard
        .query::<i64>(cmd("INCR").arg(&count))
        .expect_err("nobody answers");
    assert!(err.may_have_run(), "{err}");
    drop(guard);
    // It has the lock by a new connection, while the command is still on its way.
    let others = next.1.recv_timeout(LONG).unwrap();
    assert_ne!(others, owner, "the same hold");
    net.proxy.pass();
    // What was stalled arrives before the connection ends.
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
        // Nothing of it was written, so it is certain that it has not run.
        assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), n);
    }
}
