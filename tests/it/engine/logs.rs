//! Log records that the caller would not notice otherwise: an unreachable server, a long wait, and losses with their
//! owners.

use std::time::{Duration, Instant};

use log::Level;
use redlatch::Client;

use crate::support::{STRANGER, Server, config, eventually, logs, ms, scoped, timed, unique};

/// A plain lock that somebody else holds with a lease of 99 s.
fn held_by_a_stranger(server: &Server) -> String {
    let name = unique("logged");
    server.cli(&["HSET", &name, STRANGER, "1"]);
    server.cli(&["PEXPIRE", &name, "99000"]);
    name
}

timed!(a_server_that_goes_is_logged_once_and_so_is_its_return);
fn a_server_that_goes_is_logged_once_and_so_is_its_return() {
    let logs = logs();
    let mut server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(900))).unwrap();
    let (gone, back) = (
        format!("redis, {}, is unreachable: ", server.addr()),
        format!("redis, {}, is reachable again", server.addr()),
    );
    let logged = || {
        (
            logs.count(Level::Warn, &gone),
            logs.count(Level::Info, &back),
        )
    };
    // Opens one connection each for commands, renewals and messages.
    let uses_all = |server: &Server| {
        let (waited_for, kept) = (held_by_a_stranger(server), client.mutex(unique("kept")));
        let kept = kept.lock().unwrap();
        scoped(|scope| {
            scope.spawn(|| drop(client.mutex(&waited_for).lock().unwrap()));
            eventually("there are three connections", || {
                let mut named = server.clients_named("");
                named.sort_by(|one, other| one.name.cmp(&other.name));
                named.dedup_by(|one, other| one.name == other.name);
                named.len() == 3
            });
            server.cli(&["DEL", &waited_for]);
            server.cli(&[
                "PUBLISH",
                &format!("redisson_lock__channel:{{{waited_for}}}"),
                "0",
            ]);
        });
        kept
    };
    let kept = uses_all(&server);
    assert_eq!(logged(), (0, 0));
    for n in 1..=2 {
        if n == 1 {
            server.kill();
        } else {
            server.freeze();
        }
        let other = client.mutex(unique("other"));
        eventually("the outage is logged", || {
            assert!(other.lock().is_err());
            logged() == (n, n - 1)
        });
        assert!(other.lock().is_err());
        if n == 1 {
            server.restart();
        } else {
            server.thaw();
        }
        eventually("the server is reachable", || other.lock().is_ok());
        drop(uses_all(&server));
        assert_eq!(
            logged(),
            (n, n),
            "{:?}",
            logs.about(&server.addr().to_string())
        );
    }
    let why = logs.about(&gone);
    assert!(why[0].1.contains("refused"), "{why:?}");
    drop(kept);
}

#[test]
fn a_wait_that_takes_long_is_logged_after_pauses_that_double() {
    let logs = logs();
    let server = Server::start();
    let name = held_by_a_stranger(&server);
    let said = format!("waiting for `{name}`");
    let with = |after| Client::open(config(&server.url()).log_long_waits(after)).unwrap();
    let (says, silent) = (with(ms(200)), with(Duration::ZERO));
    let (sender, at) = crossbeam_channel::unbounded();
    logs.hook(&said, move |_, _| {
        sender.send(Instant::now()).unwrap();
    });
    let began = Instant::now();
    assert!(says.mutex(&name).try_lock_for(ms(1_000)).unwrap().is_none());
    logs.unhook(&said);
    let at: Vec<_> = at.iter().collect();
    assert!((1..=3).contains(&at.len()), "{at:?}");
    for (at, doubled) in at.iter().zip([1, 2, 4]) {
        assert!(*at - began >= ms(200) * doubled);
    }
    let about = logs.about(&said);
    for (level, text) in &about {
        assert_eq!(*level, Level::Info, "{text}");
        assert!(text.contains("(reentrant)"), "{text}");
        assert!(text.contains("its holder lasts another 9"), "{text}");
    }
    assert!(silent.mutex(&name).try_lock_for(ms(600)).unwrap().is_none());
    assert_eq!(logs.about(&said).len(), about.len());
}

#[test]
fn whatever_a_thread_waits_for_is_logged() {
    let logs = logs();
    let server = Server::start();
    let client = Client::open(config(&server.url()).log_long_waits(ms(200))).unwrap();
    let client = &client;
    let (span, name) = (ms(600), unique("all"));
    let named = |kind: &str| format!("{name}:{kind}");
    let (here, writing) = (client.mutex(named("here")), client.rw_lock(named("rw")));
    let (latch, semaphore) = (client.latch(named("latch")), client.semaphore(named("sem")));
    let (fair, there) = (
        client.fair_lock(named("fair")),
        client.mutex(named("after")),
    );
    assert!(latch.try_set_count(1).unwrap() && semaphore.try_set_permits(1).unwrap());
    let permits = client.expirable_semaphore(named("permits"));
    assert!(permits.try_set_permits(1).unwrap());
    let holds = (
        here.lock().unwrap(),
        writing.write().unwrap(),
        fair.lock().unwrap(),
        semaphore.acquire().unwrap(),
        permits.acquire().unwrap(),
    );
    let elsewhere = Client::open(server.url()).unwrap();
    let (noted, reading) = (
        elsewhere.rw_lock(named("noted")),
        client.rw_lock(named("noted")),
    );
    let noted = noted.write().unwrap();
    // The second waiter first waits for its turn in this process, then for the stranger.
    let first = there.lock().unwrap();
    scoped(|scope| {
        scope.spawn(|| assert!(here.try_lock_for(span).unwrap().is_none()));
        scope.spawn(|| assert!(writing.try_read_for(span).unwrap().is_none()));
        scope.spawn(|| assert!(reading.try_read_for(span).unwrap().is_none()));
        scope.spawn(|| assert!(fair.try_lock_for(span).unwrap().is_none()));
        for _ in 0..2 {
            scope.spawn(|| assert!(semaphore.try_acquire_for(span).unwrap().is_none()));
            scope.spawn(|| assert!(permits.try_acquire_for(span).unwrap().is_none()));
        }
        scope.spawn(|| assert!(!latch.wait_for(span).unwrap()));
        scope.spawn(|| assert!(there.try_lock_for(2 * span).unwrap().is_none()));
        eventually("the wait in the queue is logged", || {
            logs.count(Level::Info, &named("after")) == 1
        });
        server.cli(&["DEL", &named("after")]);
        server.cli(&["HSET", &named("after"), STRANGER, "1"]);
        drop(first);
    });
    drop((holds, noted));
    for (kind, waiters) in [
        ("here` (reentrant)", 1),
        ("rw` (read-write)", 1),
        ("noted` (read-write)", 1),
        ("fair` (fair)", 1),
        ("sem` (semaphore)", 2),
        ("permits` (permits)", 2),
        ("latch` (latch)", 1),
        ("after` (reentrant)", 1),
    ] {
        // On a slow machine a wait may end so late that it is logged again.
        let logged = logs.count(Level::Info, &named(kind));
        assert!(
            (waiters..=3 * waiters).contains(&logged),
            "{kind}: {logged}"
        );
    }
    let here = logs.about(&named("here` (reentrant)"));
    assert!(
        here[0].1.contains("of its holder lasts another"),
        "{here:?}"
    );
    // The reply of a read-write lock says when to ask again, not how long the holder's lease lasts.
    let noted = logs.about(&named("noted` (read-write)"));
    assert!(!noted[0].1.contains("holder"), "{noted:?}");
}

#[test]
fn a_loss_and_a_release_in_vain_are_logged_with_the_owner() {
    let logs = logs();
    let server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(900))).unwrap();
    let said = |owner: &str, fragment: &str| {
        let about = logs.about(owner);
        about
            .iter()
            .any(|(level, text)| *level == Level::Warn && text.contains(fragment))
    };
    let (lost, released) = (unique("lost"), unique("released"));
    let guard = client.mutex(&lost).lock().unwrap();
    server.cli(&["DEL", &lost]);
    eventually("the loss is logged", || {
        said(guard.owner(), "is no longer held")
    });
    // The client cannot tell why the key is gone, since anybody may have removed the key.
    assert!(said(guard.owner(), "its key is gone"));
    let guard = client.mutex(&released).lock().unwrap();
    let owner = guard.owner().to_owned();
    server.cli(&["DEL", &released]);
    drop(guard);
    client
        .mutex(unique("behind"))
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    eventually("the release is logged", || said(&owner, "came too late"));
}

#[test]
fn a_name_in_a_log_stays_on_its_line() {
    let logs = logs();
    let server = Server::start();
    let client = Client::open(config(&server.url()).lease(ms(900))).unwrap();
    let name = format!("{}\nERROR all is lost\x1b[2J", unique("forged"));
    let guard = client.mutex(&name).lock().unwrap();
    let owner = guard.owner().to_owned();
    server.cli(&["DEL", &name]);
    eventually("the loss is logged", || !logs.about(&owner).is_empty());
    for (_, text) in logs.about(&owner) {
        assert!(text.contains(r"\nERROR all is lost\u{1b}[2J"), "{text:?}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}
