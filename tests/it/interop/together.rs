//! Java and Rust on the same lock: renewal, killed processes, forced unlocks, names, several servers, a cluster.

use std::time::{Duration, Instant};
use std::{iter, slice};

use crossbeam_channel::unbounded;
use redlatch::{Client, Config, Error, LossReason};

use super::sides::{measured, take};
use crate::support::java::{Answer, Java, Theirs};
use crate::support::{
    Crew, GENEROUS, LONG, Part, Server, eventually, given, in_time, loosely, ms, order, say,
    skipped, timed, unique, within,
};

/// Short enough for a test to outlast several of these, long enough for a busy machine to renew.
const LEASE: Duration = ms(1_500);

/// A client of Java and one of Rust, both with this lease.
fn both<'a>(server: &Server, java: &'a Java) -> (Theirs<'a>, Client) {
    let theirs = java.open_with(&server.url(), LEASE.as_millis().try_into().unwrap(), "-");
    let ours = Client::open(Config::new(server.url()).lease(LEASE)).unwrap();
    (theirs, ours)
}

timed!(both_sides_read_at_once_and_a_writer_of_either_waits_for_all);
fn both_sides_read_at_once_and_a_writer_of_either_waits_for_all() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let (theirs, ours) = both(&server, java);
    let (name, other) = (unique("read"), format!("{theirs}-writes"));
    let guard = ours.rw_lock(&name).read().unwrap();
    java.does(&theirs, &format!("take {theirs} read {name} -1 -1"));
    let (sender, got) = unbounded();
    let mut crew = Crew::new();
    let name_there = name.clone();
    // A client of its own: a writer of the same client would not ask Redis before the client's readers have left.
    let (_, another) = both(&server, java);
    crew.spawn(move || {
        let _guard = another.rw_lock(name_there).write().unwrap();
        sender.send(()).unwrap();
    });
    let writes = java.order(&other, &format!("take {theirs} write {name} -1 -1"));
    let channel = format!("redisson_rwlock:{{{name}}}");
    eventually("both wait", || {
        let (_, listeners): (String, u64) = server.ask(&["PUBSUB", "NUMSUB", &channel]);
        listeners == 2 && java.is_parked(&other)
    });
    drop(guard);
    // The watchdog of Java renews the lock while Java alone reads.
    assert!(!within(2 * LEASE, || writes.is_done() || !got.is_empty()));
    java.does(&theirs, &format!("free {theirs} read {name}"));
    writes.ok();
    java.does(&other, &format!("free {theirs} write {name}"));
    got.recv_timeout(loosely(GENEROUS)).unwrap();
    crew.join();
}

// A multi-lock with a lease takes each read lock for a shorter time first, and then extends only the lock's hash.
timed!(a_multi_lock_of_java_reads_for_its_whole_lease);
fn a_multi_lock_of_java_reads_for_its_whole_lease() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let (theirs, ours) = both(&server, java);
    let name = unique("read");
    let both = format!("{name}+{}", unique("beside"));
    java.does(
        &theirs,
        &format!("take {theirs} multi-read {both} 300 600000"),
    );
    let fields = server.hgetall(&name);
    let reader = fields.iter().map(|(field, _)| field);
    let reader = reader.clone().find(|field| **field != "mode").unwrap();
    let hold = format!("{{{name}}}:{reader}:rwlock_timeout:1");
    eventually("the key of the hold is gone", || !server.exists(&hold));
    assert!(ours.rw_lock(&name).try_write().unwrap().is_none());
    java.does(&theirs, &format!("free {theirs} multi-read {both}"));
    assert!(ours.rw_lock(&name).try_write().unwrap().is_some());
}

timed!(what_either_side_renews_outlives_three_leases);
fn what_either_side_renews_outlives_three_leases() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let (theirs, ours) = both(&server, java);
    let name = unique("renewed");
    let lock = ours.mutex(&name);
    let wait_ms = (3 * LEASE).as_millis();
    java.does(&theirs, &format!("take {theirs} lock {name} -1 -1"));
    assert!(lock.try_lock_for(3 * LEASE).unwrap().is_none());
    java.does(&theirs, &format!("free {theirs} lock {name}"));
    let guard = in_time("it is free", LEASE, || lock.lock().unwrap());
    let take = format!("take {theirs} lock {name} {wait_ms} -1");
    assert_eq!(java.order(&theirs, &take).last(), "busy");
    guard.unlock().unwrap();
    java.does(&theirs, &take);
    java.does(&theirs, &format!("free {theirs} lock {name}"));
    assert_eq!(ours.stats().lost, 0);
}

timed!(what_a_killed_java_process_held_is_free_after_its_lease);
fn what_a_killed_java_process_held_is_free_after_its_lease() {
    let Some(java) = Java::start() else {
        return;
    };
    let server = Server::start();
    let (theirs, ours) = both(&server, &java);
    let kinds = ["lock", "fair", "write", "read"];
    let names = kinds.map(unique);
    for (kind, name) in iter::zip(kinds, &names) {
        java.does(&theirs, &format!("take {theirs} {kind} {name} -1 -1"));
    }
    java.kill();
    let killed = Instant::now();
    for (kind, name) in iter::zip(kinds, &names) {
        let wanted = if kind == "read" { "write" } else { kind };
        drop(take(slice::from_ref(&ours), wanted, name).unwrap());
        let took = killed.elapsed();
        assert!(took < loosely(2 * LEASE), "{kind}: {took:?}");
    }
}

timed!(what_a_killed_process_here_held_is_free_for_java_after_its_lease);
fn what_a_killed_process_here_held_is_free_for_java_after_its_lease() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let theirs = java.open(&server.url());
    let mut part = Part::start(part_that_is_killed, &[&server.url()]);
    let waiting = ["lock", "write", "read", "fenced"].map(|kind| {
        let name = unique(kind);
        part.order(&format!("{kind} {name}"));
        part.says("it has it");
        let wanted = if kind == "read" { "write" } else { kind };
        let order = format!("take {theirs} {wanted} {name} -1 -1");
        let waiter = format!("{theirs}-{kind}");
        let waits = java.order(&waiter, &order);
        eventually("it waits", || {
            let channels = server.channels();
            channels.iter().any(|channel| channel.contains(&name))
        });
        waits
    });
    assert!(!within(LEASE, || waiting.iter().any(Answer::is_done)));
    part.kill();
    let killed = Instant::now();
    for waits in waiting {
        waits.ok();
        let took = killed.elapsed();
        assert!(took < loosely(2 * LEASE), "{took:?}");
    }
}

#[test]
#[ignore = "part of other tests"]
fn part_that_is_killed() {
    let Some([url]) = given::<1>() else {
        return;
    };
    let clients = [Client::open(Config::new(url).lease(LEASE)).unwrap()];
    let mut has = Vec::new();
    loop {
        let line = order();
        let (kind, name) = line.split_once(' ').unwrap();
        has.push(take(&clients, kind, name).unwrap());
        say("it has it");
    }
}

#[test]
fn a_lock_that_the_other_side_has_forced_is_reported_lost() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let (theirs, ours) = both(&server, java);
    for kind in ["lock", "fair", "fenced", "write"] {
        let name = unique(kind);
        let guard = ours.reentrant_lock(&name).lock().unwrap();
        if kind != "write" {
            assert_eq!(
                java.does(&theirs, &format!("force {theirs} {kind} {name}")),
                "true"
            );
            let loss = guard.lost().recv_timeout(loosely(GENEROUS)).unwrap();
            assert_eq!(loss.reason, LossReason::Forced);
            assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
        } else {
            guard.unlock().unwrap();
            let guard = ours.rw_lock(&name).write().unwrap();
            assert_eq!(
                java.does(&theirs, &format!("force {theirs} {kind} {name}")),
                "true"
            );
            let loss = guard.lost().recv_timeout(loosely(GENEROUS)).unwrap();
            assert_eq!(loss.reason, LossReason::Forced);
        }
        java.does(&theirs, &format!("take {theirs} {kind} {name} -1 -1"));
        let forced = match kind {
            "fair" => ours.fair_lock(&name).force_unlock(),
            "fenced" => ours.fenced_lock(&name).force_unlock(),
            "write" => ours.rw_lock(&name).force_unlock(),
            _ => ours.mutex(&name).force_unlock(),
        };
        assert!(forced.unwrap());
        assert_eq!(
            java.does(&theirs, &format!("held {theirs} {kind} {name}")),
            "false"
        );
        // A Java thread can acquire it again.
        java.does(&theirs, &format!("take {theirs} {kind} {name} 0 -1"));
    }
}

#[test]
fn prefixes_and_names_with_braces_are_the_same_to_both() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    for prefix in ["-", "app:"] {
        let theirs = java.open_with(&server.url(), 30_000, prefix);
        let our_config =
            Config::new(server.url()).key_prefix(if prefix == "-" { "" } else { prefix });
        let ours = [Client::open(our_config).unwrap()];
        for name in ["plain", "a{b}c", "{x}", "x{y}{z}", "a{", "a}b", "{}x"] {
            for kind in [
                "lock",
                "fair",
                "fenced",
                "read",
                "write",
                "semaphore",
                "permit",
            ] {
                if kind == "fair" && prefix != "-" && java.is_before(3, 52) {
                    // Each side has a queue of its own, since Redisson before 3.52 does not add the prefix to the
                    // queue's name.
                    let why = "Redisson before 3.52 does not map the names of its queue";
                    if name == "plain" {
                        skipped("a fair lock with a prefix", why);
                    }
                    continue;
                }
                let name = format!("{name}{kind}");
                let counts = matches!(kind, "semaphore" | "permit");
                if counts {
                    java.does(&theirs, &format!("permits {theirs} {kind} {name} 1"));
                }
                // A waiter also checks that channels and keys of queues have the same names.
                let wanted = if kind == "read" { "write" } else { kind };
                let lease = if counts { 30_000 } else { -1 };
                let case = format!("{kind} of {name:?}, prefix {prefix:?}");
                let taken = take(&ours, kind, &name).unwrap();
                let asked = server.calls("evalsha");
                let order = format!("take {theirs} {wanted} {name} -1 {lease}");
                let waits = java.order(&theirs, &order);
                eventually(&case, || {
                    server.calls("evalsha") >= asked + 2
                        && !server.channels().is_empty()
                        && (kind != "write" || java.is_parked(&theirs))
                });
                assert!(!waits.is_done(), "{case}");
                drop(taken);
                waits.ok();
                java.does(&theirs, &format!("free {theirs} {wanted} {name}"));
                eventually(&case, || server.channels().is_empty());
            }
            let name = format!("{name}latch");
            assert!(ours[0].latch(&name).try_set_count(1).unwrap());
            let waits = java.order(&theirs, &format!("await {theirs} {name}"));
            eventually("it waits", || java.is_parked(&theirs));
            assert!(!waits.is_done());
            ours[0].latch(&name).count_down().unwrap();
            waits.ok();
            eventually("it waits no longer", || server.channels().is_empty());
        }
    }
}

#[test]
fn a_permit_of_java_can_be_returned_here() {
    let Some(java) = Java::shared() else {
        return;
    };
    let server = Server::start();
    let (theirs, ours) = both(&server, java);
    let name = unique("returned");
    let permits = ours.expirable_semaphore(&name);
    assert!(permits.try_set_permits(2).unwrap());
    java.does(&theirs, &format!("take {theirs} permit {name} -1 30000"));
    let permit = permits.acquire().unwrap();
    assert_eq!(
        (
            permits.acquired_permits().unwrap(),
            permits.available_permits().unwrap()
        ),
        (2, 0)
    );
    let ids: Vec<Vec<u8>> = server.ask(&["ZRANGE", &format!("{{{name}}}:timeout"), "0", "-1"]);
    let hex = |id: &Vec<u8>| {
        id.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let id = ids.iter().map(hex).find(|id| id != permit.id()).unwrap();
    assert!(permits.release_id(&id).unwrap());
    assert_eq!(permits.available_permits().unwrap(), 1);
    let free = format!("free {theirs} permit {name}");
    let released = java.order(&theirs, &free).last();
    assert!(released.starts_with("error "), "{released}");
    assert_eq!(permits.available_permits().unwrap(), 1);
}

timed!(a_red_lock_of_either_side_keeps_the_other_out);
fn a_red_lock_of_either_side_keeps_the_other_out() {
    let Some(java) = Java::shared() else {
        return;
    };
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| java.open(&server.url()));
    let theirs = clients.each_ref().map(|client| &**client).join("+");
    let ours = servers
        .each_ref()
        .map(|server| Client::open(server.url()).unwrap());
    for round in 0..3 {
        let name = unique("red");
        let (takes, frees) = (
            format!("take {theirs} red {name} -1 -1"),
            format!("free {theirs} red {name}"),
        );
        java.does(&theirs, &takes);
        let lock = redlatch::RedLock::new(&ours, &name).unwrap();
        assert!(lock.try_lock_for(ms(100)).unwrap().is_none(), "{round}");
        java.does(&theirs, &frees);
        let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
        let waits = java.order(&theirs, &takes);
        assert!(!within(ms(100), || waits.is_done()), "{round}");
        let freed = Instant::now();
        guard.unlock().unwrap();
        waits.ok();
        measured(&format!("Java waits for red: {:.1?}", freed.elapsed()));
        java.does(&theirs, &frees);
    }
}

timed!(a_plain_lock_of_a_cluster_is_waited_for_both_ways);
fn a_plain_lock_of_a_cluster_is_waited_for_both_ways() {
    use crate::support::cluster::Cluster;

    let Some(java) = Java::shared() else {
        return;
    };
    let cluster = Cluster::shared();
    let urls: Vec<_> = cluster.nodes[..3].iter().map(Server::url).collect();
    let theirs = java.open(&format!("cluster+{}", urls.join(",")));
    let ours = [cluster.open()];
    for n in 0..3 {
        let name = cluster.name_at(n, "interop");
        let (takes, frees) = (
            format!("take {theirs} lock {name} -1 -1"),
            format!("free {theirs} lock {name}"),
        );
        java.does(&theirs, &takes);
        let (sender, got) = unbounded();
        let (clients, name_there) = (ours.clone(), name.clone());
        let mut crew = Crew::new();
        let rescues = ours[0].stats().missed_messages;
        crew.spawn(move || {
            let taken = take(&clients, "lock", &name_there).unwrap();
            sender.send(()).unwrap();
            drop(taken);
        });
        crew.all_parked();
        assert!(got.is_empty());
        java.does(&theirs, &frees);
        got.recv_timeout(loosely(GENEROUS)).unwrap();
        crew.join();
        assert_eq!(ours[0].stats().missed_messages, rescues);
        let taken = take(&ours, "lock", &name).unwrap();
        let waits = java.order(&theirs, &takes);
        eventually("it waits", || java.is_parked(&theirs));
        assert!(!waits.is_done());
        drop(taken);
        // A Java thread that gets no message sleeps until the lease expires.
        waits.ok();
        java.does(&theirs, &frees);
    }
}
