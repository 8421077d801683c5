//! Elections: who leads is one process at a time, each in a term of its own, and a leader that was deposed writes nothing.

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;
use nix::sys::signal::Signal;
use redis::cmd;
use redlatch::{
    CancelToken, Client, Config, Election, Error, GuardedScript, Leadership, LossReason,
    OwnedFencedLockGuard, Ticket,
};

use crate::support::cluster::Cluster;
use crate::support::sentinel::{Deployment, ask};
use crate::support::{
    BY_MESSAGE, LONG, Part, Server, eventually, given, in_time, loosely, ms, open, open_with_lease,
    order, say, scoped, settings, timed, unique,
};

/// How long a leader here leads whose process was killed or stopped.
const LEASE: std::time::Duration = ms(1_200);

/// Where the leader of an election writes who it is.
fn data(name: &str) -> String {
    format!("{{{name}}}:data")
}

/// Writes the term, if the leader still is one.
fn write(leadership: &Leadership, name: &str) -> redlatch::Result<()> {
    leadership.query(cmd("SET").arg(data(name)).arg(leadership.term()))
}

// ---------------------------------------------------------------------------------------------------------------------
// Processes
// ---------------------------------------------------------------------------------------------------------------------

/// A process that leads, and what its term is.
fn leading(server: &Server, name: &str, lease: std::time::Duration) -> (Part, u64) {
    let (url, lease) = (server.url(), lease.as_millis().to_string());
    let mut part = Part::start(part_that_leads, &[&url, name, &lease]);
    let term = part.says("leads").parse().unwrap();
    (part, term)
}

#[test]
#[ignore = "part of other tests"]
fn part_that_leads() {
    let Some([url, name, lease]) = given() else {
        return;
    };
    let config = Config::new(&*url)
        .lease(ms(lease.parse().unwrap()))
        .label("part");
    let client = Client::open(config).unwrap();
    let leadership = client.election(&name).campaign().unwrap();
    say(&format!("leads {}", leadership.term()));
    loop {
        let _write = order();
        match write(&leadership, &name) {
            Ok(()) => say("wrote"),
            Err(Error::Lost { reason, .. }) => {
                assert!(!leadership.is_leader());
                assert_eq!(leadership.lost().recv().unwrap().reason, reason);
                say("refused");
            }
            Err(err) => panic!("{err}"),
        }
    }
}

timed!(a_leader_that_is_killed_is_followed);
fn a_leader_that_is_killed_is_followed() {
    let server = Server::start();
    let [left_name, restarted] = ["left", "restarted"].map(unique);
    scoped(|scope| {
        // By a process that waits: when the lease is over.
        scope.spawn(|| {
            let (mut part, term) = leading(&server, &left_name, LEASE);
            let (client, (leads, led)) = (open(&server), bounded(1));
            let election = client.election(&left_name);
            scoped(|scope| {
                scope.spawn(|| leads.send(election.campaign()).unwrap());
                eventually("it waits", || client.stats().waiting == 1);
                let killed = Instant::now();
                part.kill();
                let next = led.recv_timeout(LONG).unwrap().unwrap();
                assert!(killed.elapsed() > LEASE / 2, "{:?}", killed.elapsed());
                assert!(next.term() > term && next.is_leader());
                write(&next, &left_name).unwrap();
            });
        });
        // By a process of the same machine that campaigns later: at once, whatever the lease.
        scope.spawn(|| {
            let (mut part, term) = leading(&server, &restarted, ms(60_000));
            let client = open(&server);
            let election = client.election(&restarted);
            assert!(election.try_campaign().unwrap().is_none());
            part.kill();
            let next = in_time("taking over", BY_MESSAGE, || election.campaign().unwrap());
            assert!(next.term() > term && next.is_leader());
            write(&next, &restarted).unwrap();
            // The new leadership is renewed, and nobody takes it over.
            let leader = election.leader().unwrap().unwrap();
            assert_eq!(leader.term, next.term());
            assert_eq!(leader.process.unwrap().pid, std::process::id());
            let others = open(&server).election(&restarted);
            assert!(others.try_campaign().unwrap().is_none());
            next.resign().unwrap();
            assert!(others.try_campaign().unwrap().is_some());
        });
    });
}

#[test]
#[ignore = "part of other tests"]
fn part_that_keeps_names() {
    let Some([url, detached, kept]) = given() else {
        return;
    };
    let client = Client::open(&*url).unwrap();
    let guard = client.fenced_lock(&detached).lock().unwrap();
    let ticket = guard.detach(6 * LONG).unwrap();
    let kept = client.fenced_lock(&kept).min_hold(6 * LONG);
    kept.lock().unwrap().unlock().unwrap();
    say(&format!("ticket {ticket}"));
}

timed!(a_campaign_leaves_the_hold_that_a_dead_process_has_detached_or_keeps);
fn a_campaign_leaves_the_hold_that_a_dead_process_has_detached_or_keeps() {
    let server = Server::start();
    let [detached, kept] = ["detached", "kept"].map(unique);
    let mut part = Part::start(part_that_keeps_names, &[&server.url(), &detached, &kept]);
    let ticket: Ticket = part.says("ticket").parse().unwrap();
    part.ends();
    let client = open(&server);
    for name in [&detached, &kept] {
        let election = client.election(name);
        assert!(election.try_campaign().unwrap().is_none(), "{name}");
    }
    assert!(client.adopt::<OwnedFencedLockGuard>(&ticket).is_ok());
}

timed!(a_leader_that_is_connected_is_not_followed_although_its_process_cannot_be_seen);
fn a_leader_that_is_connected_is_not_followed_although_its_process_cannot_be_seen() {
    let server = Server::start();
    let name = unique("connected");
    let (mut part, _) = leading(&server, &name, ms(60_000));
    let election = open(&server).election(&name);
    let leader = election.leader().unwrap().unwrap();
    let (id, _) = leader.owner.split_once(':').unwrap();
    // A connection of the leader that stays, as on another machine that looks like this one.
    let mut connected = server.connection();
    let its_name = format!("redlatch:{id}:twin:7:part:link");
    cmd("CLIENT")
        .arg("SETNAME")
        .arg(its_name)
        .exec(&mut connected)
        .unwrap();
    part.kill();
    assert!(election.try_campaign().unwrap().is_none());
    drop(connected);
    eventually("it is taken over", || {
        election.try_campaign().unwrap().is_some()
    });
}

timed!(a_leader_that_was_stopped_is_deposed_and_its_writes_are_refused);
fn a_leader_that_was_stopped_is_deposed_and_its_writes_are_refused() {
    let server = Server::start();
    let name = unique("stopped");
    let (mut part, term) = leading(&server, &name, LEASE);
    let client = open(&server);
    let election = client.election(&name);
    part.order("write");
    part.says("wrote");
    part.stop();
    // The process is still there, so its leadership is not taken over before its time.
    assert!(election.try_campaign().unwrap().is_none());
    let leader = election.leader().unwrap().expect("it leads still");
    let process = leader.process.expect("its connections are open");
    assert_eq!((leader.term, &*process.label), (term, "part"));
    let next = election
        .try_campaign_for(LONG)
        .unwrap()
        .expect("the lease ends");
    assert!(next.term() > term);
    write(&next, &name).unwrap();
    part.signal(Signal::SIGCONT);
    part.order("write");
    part.says("refused");
    let written: u64 = server.ask(&["GET", &data(&name)]);
    assert_eq!(written, next.term());
    assert!(next.is_leader());
}

// ---------------------------------------------------------------------------------------------------------------------
// Terms
// ---------------------------------------------------------------------------------------------------------------------

timed!(two_leaders_never_have_the_same_term);
fn two_leaders_never_have_the_same_term() {
    const ROUNDS: usize = 10;
    let server = Server::start();
    let name = unique("terms");
    let clients = [open(&server), open(&server)];
    let (alone, terms) = (Mutex::new(0), Mutex::new(Vec::new()));
    scoped(|scope| {
        for thread in 0..4 {
            let (name, client, alone, terms) = (&name, &clients[thread % 2], &alone, &terms);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let leadership = client.election(name).campaign().unwrap();
                    let mut last = alone.try_lock().expect("nobody else leads");
                    assert!(leadership.term() > *last);
                    *last = leadership.term();
                    // The term that others see is that of the leader, although threads of its process wait.
                    let leader = client.election(name).leader().unwrap().unwrap();
                    assert_eq!(leader.term, leadership.term());
                    terms.lock().unwrap().push(leadership.term());
                    drop(last);
                    if round % 2 == 0 {
                        leadership.resign().unwrap();
                    }
                }
            });
        }
    });
    let terms = terms.into_inner().unwrap();
    assert_eq!(terms.iter().collect::<HashSet<_>>().len(), 4 * ROUNDS);
    assert_eq!(clients[0].stats().lost + clients[1].stats().lost, 0);
    assert_eq!(clients[0].election(&name).leader().unwrap(), None);
}

timed!(an_election_ends_with_its_term_its_token_and_its_client);
fn an_election_ends_with_its_term_its_token_and_its_client() {
    let server = Server::start();
    let (client, other) = (open_with_lease(&server, ms(300)), open(&server));
    let election = client.election(unique("ends"));
    let leadership = election.clone().max_term(ms(100)).campaign().unwrap();
    let loss = leadership.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::MaxHold);
    assert!(leadership.resign().is_err());
    // An election and a fenced lock of one name are one lock.
    let held = other
        .fenced_lock(election.name())
        .try_lock_for(LONG)
        .unwrap();
    let held = held.expect("the lease ends");
    assert!(election.try_campaign().unwrap().is_none());
    let soon = Instant::now() + ms(10);
    assert!(election.try_campaign_until(soon).unwrap().is_none());
    let stop = CancelToken::new();
    scoped(|scope| {
        let waits = scope.spawn(|| election.clone().cancel_on(&stop).campaign());
        eventually("it waits", || client.stats().waiting == 1);
        stop.cancel();
        assert!(matches!(waits.join().unwrap(), Err(Error::Cancelled)));
        let waits = scope.spawn(|| election.campaign());
        eventually("it waits", || client.stats().waiting == 1);
        client.close(LONG).unwrap();
        assert!(matches!(waits.join().unwrap(), Err(Error::Closed)));
    });
    drop(held);
}

timed!(a_campaign_on_a_frozen_server_takes_one_timeout_and_can_be_cancelled);
fn a_campaign_on_a_frozen_server_takes_one_timeout_and_can_be_cancelled() {
    let server = Server::start();
    let [client, other] = [(); 2].map(|()| {
        let client = open(&server);
        let election = client.election("frozen");
        election.campaign().unwrap().resign().unwrap();
        client
    });
    server.freeze();
    let patient = other.election("frozen").command_timeout(LONG);
    let (stop, asked) = (CancelToken::new(), other.stats().commands);
    scoped(|scope| {
        let waits = scope.spawn(|| patient.clone().cancel_on(&stop).campaign());
        eventually("it asks", || other.stats().commands > asked);
        stop.cancel();
        let ended = in_time("a cancelled campaign", BY_MESSAGE, || waits.join().unwrap());
        assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    });
    assert!(patient.try_campaign_for(ms(100)).unwrap().is_none());
    let election = client.election("frozen").command_timeout(ms(200));
    for campaign in [Election::try_campaign, |election: &Election| {
        election.campaign().map(Some)
    }] {
        // The first question ends the campaign.
        let err = campaign(&election).unwrap_err();
        assert!(err.to_string().contains("asking who leads"), "{err}");
    }
    server.thaw();
}

timed!(observers_see_who_leads_and_that_nobody_does);
fn observers_see_who_leads_and_that_nobody_does() {
    let server = Server::start();
    let name = unique("observed");
    let client = Client::open(settings(&server).label("first")).unwrap();
    let watching = open(&server);
    let mut changes = watching.election(&name).observe();
    assert!(changes.next().unwrap().unwrap().is_none());
    let first = client.election(&name).campaign().unwrap();
    let seen_leader = changes.next().unwrap().unwrap().expect("somebody leads");
    assert_eq!(seen_leader.term, first.term());
    assert!(seen_leader.owner.starts_with(client.id()));
    assert_eq!(seen_leader.process.as_ref().unwrap().label, "first");
    assert!(seen_leader.to_string().contains("first"), "{seen_leader}");
    scoped(|scope| {
        let next = scope.spawn(|| changes.next().unwrap().unwrap());
        thread::sleep(ms(20));
        first.resign().unwrap();
        assert!(next.join().unwrap().is_none());
    });
    let second = client.election(&name).campaign().unwrap();
    assert_eq!(
        changes.next().unwrap().unwrap().unwrap().term,
        second.term()
    );
    // Errors do not end it, closing does.
    server.cli(&["SET", &name, "x"]);
    assert!(matches!(changes.next(), Some(Err(Error::WrongType { .. }))));
    server.cli(&["DEL", &name]);
    assert!(changes.next().unwrap().unwrap().is_none());
    watching.close(LONG).unwrap();
    assert!(matches!(changes.next(), Some(Err(Error::Closed))));
    assert!(changes.next().is_none());
    drop(second);
}

// ---------------------------------------------------------------------------------------------------------------------
// Deployments
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_leader_goes_on_at_the_new_master_unless_that_has_another);
fn a_leader_goes_on_at_the_new_master_unless_that_has_another() {
    let mut deployment = Deployment::start();
    let lease = loosely(ms(8_000));
    let open = || Client::open(deployment.config().lease(lease)).unwrap();
    let (client, other) = (open(), open());
    let [kept, missing] = ["kept", "missing"].map(unique);
    let old = deployment.named();
    let leader = client.election(&kept).campaign().unwrap();
    deployment.copied(&[&kept]);
    deployment.stop_copying(old);
    let deposed = client.election(&missing).campaign().unwrap();
    deployment.servers[old].kill();
    let new = deployment.wait_for_successor(old);
    // The successor knows nothing of the second leader, and elects another, whose term is higher all the same.
    let next = other.election(&missing).try_campaign_for(LONG).unwrap();
    let next = next.expect("nobody leads there");
    assert!(next.term() > deposed.term());
    write(&next, &missing).unwrap();
    eventually("the deposed one is refused", || {
        match write(&deposed, &missing) {
            Err(Error::Lost { .. }) => true,
            Err(Error::Redis { .. }) => false,
            wrote => panic!("{wrote:?}"),
        }
    });
    assert!(!deposed.is_leader());
    let written: u64 = ask(&deployment.servers[new], &["GET", &data(&missing)]);
    assert_eq!(written, next.term());
    write(&leader, &kept).unwrap();
    assert!(leader.is_leader() && other.election(&kept).try_campaign().unwrap().is_none());
}

timed!(each_slot_of_a_cluster_has_its_elections);
fn each_slot_of_a_cluster_has_its_elections() {
    let cluster = Cluster::shared();
    let clients = [cluster.open(), cluster.open()];
    let next = GuardedScript::new("return redis.call('incr', KEYS[1])");
    for master in 0..3 {
        let name = cluster.name_at(master, "led");
        let elections = clients.each_ref().map(|client| client.election(&name));
        let mut last = 0;
        for turn in 0..4 {
            let leadership = elections[turn % 2].campaign().unwrap();
            assert!(leadership.term() > last);
            last = leadership.term();
            assert!(elections[(turn + 1) % 2].try_campaign().unwrap().is_none());
            let leader = elections[0].leader().unwrap().unwrap();
            assert!(leader.owner.starts_with(clients[turn % 2].id()));
            assert_eq!(leader.term, last);
            assert_eq!(leader.process.unwrap().pid, std::process::id());
            let count: usize = leadership
                .invoke(&next, format!("{{{name}}}:count"), None::<&str>)
                .unwrap();
            assert_eq!(count, turn + 1);
            leadership.resign().unwrap();
        }
        assert_eq!(elections[0].leader().unwrap(), None);
    }
}
