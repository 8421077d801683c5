//! A hold that changes hands: one process detaches it, another adopts it, once, and nobody has it in between.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use redis::cmd;
use redlatch::kinds::{Adopt, AnyKind, Detachable};
use redlatch::{
    Client, Config, Error, ExpirablePermit, Handle, LossReason, OwnedFairLockGuard,
    OwnedFairMutexGuard, OwnedFencedLockGuard, OwnedGuard, OwnedMutexGuard,
    OwnedReentrantLockGuard, OwnedSpinLockGuard, Ticket,
};

use crate::support::cluster::Cluster;
use crate::support::sentinel::Deployment;
use crate::support::{
    BY_MESSAGE, LONG, Mode, Net, Part, Server, Target, config, eventually, given, in_time, ms,
    open, open_with_lease, order, say, scoped, timed, unique,
};

/// How long a hold stays that nobody adopts.
const STAYS: Duration = ms(60_000);

/// Why the ticket was of no use.
#[track_caller]
fn refused<A: Adopt>(client: &Client, ticket: &Ticket) -> LossReason {
    match client.adopt::<A>(ticket) {
        Err(Error::Lost { reason, name, .. }) => {
            assert_eq!(name, ticket.name());
            reason
        }
        Err(err) => panic!("{err}"),
        Ok(_) => panic!("adopted"),
    }
}

/// Detaches a hold at one client, adopts it at the other, and looks who may do what.
fn changes_hands<K: Detachable + AnyKind>(
    lock_of: impl Fn(&Client) -> Handle<K>,
    clients: [&Client; 3],
) {
    let [lock, next, third] = clients.map(&lock_of);
    let guard = lock.lock().unwrap();
    let owner_before = guard.owner().to_owned();
    let ticket = guard.detach(STAYS).unwrap();
    // A detached hold has no owner here, and keeps the lock taken.
    assert!(!lock.is_owned_by_current_thread());
    for lock in [&lock, &next, &third] {
        assert!(lock.try_lock().unwrap().is_none());
        let lease_left = lock.remaining_lease().unwrap().unwrap();
        assert!(
            lease_left > STAYS / 2 && lease_left <= STAYS,
            "{lease_left:?}"
        );
    }
    let ticket: Ticket = ticket.to_string().parse().unwrap();
    let adopted: OwnedGuard<K> = clients[1].adopt(&ticket).unwrap();
    assert!(adopted.is_valid() && adopted.owner() != owner_before);
    assert!(adopted.owner().starts_with(clients[1].id()));
    // The adopted hold has the lease of its new client.
    assert!(lock.remaining_lease().unwrap().unwrap() < STAYS);
    for client in clients {
        assert_eq!(
            refused::<OwnedGuard<K>>(client, &ticket),
            LossReason::TakenOver
        );
    }
    assert!(third.try_lock_owned().unwrap().is_none());
    assert!(next.try_lock_owned().unwrap().is_none());
    // A second ticket, for the next thread.
    let again = adopted.detach(STAYS).unwrap();
    let adopted: OwnedGuard<K> = clients[2].adopt(&again).unwrap();
    adopted.unlock().unwrap();
    for ticket in [ticket, again] {
        assert_eq!(
            refused::<OwnedGuard<K>>(clients[0], &ticket),
            LossReason::Expired
        );
    }
    drop(lock.try_lock().unwrap().expect("it is free"));
}

timed!(a_hold_of_each_kind_changes_hands_once);
fn a_hold_of_each_kind_changes_hands_once() {
    let server = Server::start();
    let clients = [open(&server), open(&server), open(&server)];
    let clients = clients.each_ref();
    let name = unique("hands");
    changes_hands(|client| client.mutex(&name), clients);
    changes_hands(|client| client.reentrant_lock(&name), clients);
    changes_hands(|client| client.fair_lock(&name), clients);
    changes_hands(|client| client.fair_mutex(&name), clients);
    changes_hands(|client| client.fenced_lock(&name), clients);
    changes_hands(|client| client.spin_lock(&name), clients);
    let cluster = Cluster::shared();
    let clients = [cluster.open(), cluster.open(), cluster.open()];
    for master in 0..3 {
        let name = cluster.name_at(master, "hands");
        changes_hands(|client| client.fenced_lock(&name), clients.each_ref());
    }
}

timed!(a_ticket_is_for_its_kind_and_a_hold_goes_once_it_is_single);
fn a_ticket_is_for_its_kind_and_a_hold_goes_once_it_is_single() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("kind");
    let lock = client.reentrant_lock(&name);
    let (one, two) = (lock.lock().unwrap(), lock.lock().unwrap());
    let err = two.detach(STAYS).unwrap_err();
    assert!(err.to_string().contains("2 times"), "{err}");
    assert_eq!(lock.hold_count(), 1);
    let ticket = one.detach(STAYS).unwrap();
    for odd in [
        client.adopt::<OwnedFairLockGuard>(&ticket).err(),
        client.adopt::<OwnedFairMutexGuard>(&ticket).err(),
        client.adopt::<OwnedSpinLockGuard>(&ticket).err(),
        client.adopt::<OwnedFencedLockGuard>(&ticket).err(),
        client.adopt::<ExpirablePermit>(&ticket).err(),
    ] {
        assert!(matches!(odd, Some(Error::InvalidSetting { .. })), "{odd:?}");
    }
    // A mutex is the same lock, and an owned guard is alone.
    client
        .adopt::<OwnedMutexGuard>(&ticket)
        .unwrap()
        .unlock()
        .unwrap();
    // Too short: nobody gets it, and it is free.
    let err = client
        .mutex(&name)
        .lock()
        .unwrap()
        .detach(ms(1))
        .unwrap_err();
    assert!(matches!(err, Error::InvalidSetting { .. }), "{err}");
    drop(lock.try_lock().unwrap().expect("it was released"));
    // Something else by now.
    let ticket = lock.lock().unwrap().detach(STAYS).unwrap();
    for strange in [&["SET", &name, "x"][..], &["HSET", &name, "a", "b"]] {
        server.cli(&["DEL", &name]);
        server.cli(strange);
        let err = client
            .adopt::<OwnedReentrantLockGuard>(&ticket)
            .unwrap_err();
        assert!(matches!(err, Error::WrongType { .. }), "{err}");
    }
    client.close(LONG).unwrap();
    let closed = client.adopt::<OwnedReentrantLockGuard>(&ticket);
    assert!(matches!(closed, Err(Error::Closed)));
}

timed!(a_detached_hold_ends_with_its_time_or_by_force);
fn a_detached_hold_ends_with_its_time_or_by_force() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let (name, forced) = (unique("time"), unique("forced"));
    let ticket = client.mutex(&name).lock().unwrap().detach(ms(50)).unwrap();
    let guard = other
        .mutex(&name)
        .try_lock_for(LONG)
        .unwrap()
        .expect("its time is over");
    assert_eq!(
        refused::<OwnedMutexGuard>(&client, &ticket),
        LossReason::TakenOver
    );
    guard.unlock().unwrap();
    assert_eq!(
        refused::<OwnedMutexGuard>(&client, &ticket),
        LossReason::Expired
    );
    let ticket = client.mutex(&forced).lock().unwrap().detach(STAYS).unwrap();
    assert!(other.mutex(&forced).force_unlock().unwrap());
    assert_eq!(
        refused::<OwnedMutexGuard>(&client, &ticket),
        LossReason::Expired
    );
    // A hold that is lost has nobody to go to.
    let guard = client.mutex(&name).lock().unwrap();
    server.cli(&["DEL", &name]);
    assert!(matches!(guard.detach(STAYS), Err(Error::Lost { .. })));
    assert!(!server.exists(&name));
    let stats = client.stats();
    assert_eq!((stats.holds, stats.releases_failed), (0, 0), "{stats:?}");
}

timed!(of_many_adopters_one_has_the_hold);
fn of_many_adopters_one_has_the_hold() {
    let server = Server::start();
    let clients = [open(&server), open(&server)];
    let name = unique("race");
    let lock = clients[0].fenced_lock(&name);
    for _ in 0..10 {
        let guard = lock.lock().unwrap();
        let token = guard.token();
        let ticket = guard.detach(STAYS).unwrap();
        let (adopted, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
        scoped(|scope| {
            for n in 0..4 {
                let (client, ticket) = (&clients[n % 2], &ticket);
                let (adopted, inside) = (&adopted, &inside);
                // Threads of both processes wait for the lock while the ticket changes hands.
                scope.spawn(move || {
                    let guard = client.fenced_lock(ticket.name()).lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(guard.token() > token);
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
                scope.spawn(move || match client.adopt::<OwnedFencedLockGuard>(ticket) {
                    Ok(guard) => {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(guard.token() > token);
                        adopted.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.unlock().unwrap();
                    }
                    Err(Error::Lost { .. }) => {}
                    Err(err) => panic!("{err}"),
                });
            }
        });
        assert_eq!(adopted.into_inner(), 1);
    }
    for client in &clients {
        let stats = client.stats();
        assert_eq!(
            (stats.lost, stats.holds, stats.waiting),
            (0, 0, 0),
            "{stats:?}"
        );
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Processes
// ---------------------------------------------------------------------------------------------------------------------

/// The lease of the processes.
const LEASE: Duration = ms(900);

#[test]
#[ignore = "part of other tests"]
fn part_that_accepts() {
    let Some([url, name]) = given() else {
        return;
    };
    let client = Client::open(config(&url).lease(LEASE)).unwrap();
    let guard = client.fenced_lock(&name).lock().unwrap();
    let owner = guard.owner().to_owned();
    let data = format!("{{{name}}}:data");
    guard
        .query::<()>(cmd("SET").arg(&data).arg("accepted"))
        .unwrap();
    let ticket = guard.detach(STAYS).unwrap();
    say(&format!("ticket {ticket}"));
    say(&format!("owner {owner}"));
    order();
}

#[test]
#[ignore = "part of other tests"]
fn part_that_works() {
    let Some([url, ticket]) = given() else {
        return;
    };
    let client = Client::open(config(&url).lease(LEASE)).unwrap();
    let ticket: Ticket = ticket.parse().unwrap();
    let guard: OwnedFencedLockGuard = client.adopt(&ticket).unwrap();
    say(&format!("adopted {}", guard.token()));
    order();
    let data = format!("{{{}}}:data", ticket.name());
    match guard.query::<()>(cmd("SET").arg(data).arg("done")) {
        Ok(()) => guard.unlock().unwrap(),
        Err(Error::Lost { .. }) => return say("refused"),
        Err(err) => panic!("{err}"),
    }
    say("done");
}

/// A process that has accepted a job, and its ticket.
fn accepted(server: &Server, name: &str) -> (Part, String) {
    let mut part = Part::start(part_that_accepts, &[&server.url(), name]);
    let ticket = part.says("ticket");
    (part, ticket)
}

fn working(server: &Server, ticket: &str) -> Part {
    Part::start(part_that_works, &[&server.url(), ticket])
}

timed!(one_process_accepts_a_job_and_another_finishes_it);
fn one_process_accepts_a_job_and_another_finishes_it() {
    let server = Server::start();
    let data = |name: &str| -> String { server.ask(&["GET", &format!("{{{name}}}:data")]) };
    scoped(|scope| {
        // The process that accepted it is killed: the hold waits for the worker all the same.
        scope.spawn(|| {
            let name = unique("accepter killed");
            let (mut accepter, ticket) = accepted(&server, &name);
            accepter.kill();
            let client = open(&server);
            let waits = client.mutex(&name).try_lock_for(LEASE + ms(300)).unwrap();
            assert!(waits.is_none(), "nobody has it, and it is taken");
            let mut worker = working(&server, &ticket);
            worker.says("adopted");
            worker.order("finish");
            worker.says("done");
            assert_eq!(data(&name), "done");
            drop(
                client
                    .mutex(&name)
                    .try_lock_for(BY_MESSAGE)
                    .unwrap()
                    .expect("it is free"),
            );
        });
        // The worker is killed: the lock comes free a lease later, and the ticket is used up.
        scope.spawn(|| {
            let name = unique("worker killed");
            let (mut accepter, ticket) = accepted(&server, &name);
            let mut worker = working(&server, &ticket);
            worker.says("adopted");
            worker.kill();
            let client = open(&server);
            let parsed: Ticket = ticket.parse().unwrap();
            assert_eq!(
                refused::<OwnedFencedLockGuard>(&client, &parsed),
                LossReason::TakenOver
            );
            let guard = client.fenced_lock(&name).try_lock_for(LONG).unwrap();
            assert_eq!(data(&name), "accepted");
            drop(guard.expect("the lease of the worker ends"));
            accepter.order("end");
            accepter.ends();
        });
        // The worker is stopped for longer than its lease: it finishes nothing.
        scope.spawn(|| {
            let name = unique("worker stopped");
            let (accepter, ticket) = accepted(&server, &name);
            let mut worker = working(&server, &ticket);
            let token: u64 = worker.says("adopted").parse().unwrap();
            worker.stop();
            let client = open(&server);
            let guard = client.fenced_lock(&name).try_lock_for(LONG).unwrap();
            assert!(guard.expect("its lease ends").token() > token);
            worker.signal(Signal::SIGCONT);
            worker.order("finish");
            worker.says("refused");
            assert_eq!(data(&name), "accepted");
            drop(accepter);
        });
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Faults
// ---------------------------------------------------------------------------------------------------------------------

/// A ticket, and who had its hold.
fn detached(client: &Client, name: &str) -> (Ticket, String) {
    let guard = client
        .mutex(name)
        .try_lock_for(LONG)
        .unwrap()
        .expect("it is free");
    let owner = guard.owner().to_owned();
    (guard.detach(STAYS).unwrap(), owner)
}

timed!(an_adopter_that_lost_its_connection_asks_again_and_has_the_hold);
fn an_adopter_that_lost_its_connection_asks_again_and_has_the_hold() {
    let net = Net::with(LONG);
    let (ticket, owner_before) = detached(&net.other, &net.name);
    let trap = net.proxy.swallow_reply_to(&owner_before);
    scoped(|scope| {
        let adopts = scope.spawn(|| net.client.adopt::<OwnedMutexGuard>(&ticket));
        eventually("it is adopted", || {
            let fields = net.server.hgetall(&net.name);
            fields
                .iter()
                .any(|(owner, _)| owner.starts_with(net.client.id()))
        });
        assert!(trap.fired());
        net.proxy.pass();
        net.proxy.cut(Target::All);
        let guard = adopts.join().unwrap().unwrap();
        assert!(guard.is_valid());
        guard.unlock().unwrap();
    });
    assert!(!net.server.exists(&net.name));
}

timed!(without_a_reply_nothing_stays_adopted_or_detached);
fn without_a_reply_nothing_stays_adopted_or_detached() {
    // No lease ends during the test.
    let patient = |config: Config| config.command_timeout(ms(400)).lease(STAYS);
    let net = Net::of(Server::start(), patient, patient);
    let is_free = || eventually("it is free", || !net.server.exists(&net.name));
    // From now on the scripts are called by their hashes.
    let (ticket, _) = detached(&net.other, &net.name);
    drop(net.client.adopt::<OwnedMutexGuard>(&ticket).unwrap());
    // The adoption succeeds, and its reply is lost.
    let (ticket, _) = detached(&net.other, &net.name);
    net.proxy.set(Target::All, Mode::SwallowReplies);
    let adopted = net.client.adopt::<OwnedMutexGuard>(&ticket);
    assert!(matches!(adopted, Err(Error::Redis { .. })), "{adopted:?}");
    let fields = net.server.hgetall(&net.name);
    assert!(fields[0].0.starts_with(net.client.id()), "{fields:?}");
    net.proxy.pass();
    is_free();
    // The request is lost, so another client may adopt the hold.
    let (ticket, owner_before) = detached(&net.other, &net.name);
    net.proxy.set(Target::All, Mode::BlackHole);
    let adopted = net.client.adopt::<OwnedMutexGuard>(&ticket);
    assert!(matches!(adopted, Err(Error::Redis { .. })), "{adopted:?}");
    assert_eq!(
        net.server.hgetall(&net.name),
        [(owner_before, "0".to_owned())]
    );
    net.proxy.pass();
    let guard: OwnedMutexGuard = net.other.adopt(&ticket).unwrap();
    guard.unlock().unwrap();
    // The client does not learn whether Redis detached the hold, and no process has a ticket.
    for mode in [Mode::SwallowReplies, Mode::BlackHole] {
        let guard = net.client.mutex(&net.name).try_lock_for(LONG).unwrap();
        let guard = guard.expect("it is free");
        net.proxy.set(Target::All, mode);
        let detached = guard.detach(STAYS);
        let Err(err @ Error::Redis { .. }) = detached else {
            panic!("{detached:?}");
        };
        assert!(!err.is_retryable(), "the work is done: {err}");
        let [(_, count)] = &net.server.hgetall(&net.name)[..] else {
            panic!("nobody holds it");
        };
        assert_eq!(count == "0", mode == Mode::SwallowReplies);
        net.proxy.pass();
        is_free();
    }
}

timed!(a_ticket_is_good_at_the_new_master);
fn a_ticket_is_good_at_the_new_master() {
    let deployment = Deployment::start();
    let open = || Client::open(deployment.config()).unwrap();
    let (client, other) = (open(), open());
    let name = unique("moved");
    let guard = client.fenced_lock(&name).lock().unwrap();
    let token = guard.token();
    let ticket = guard.detach(STAYS).unwrap();
    deployment.copied(&[&name]);
    deployment.promote();
    let adopted = in_time("adopting", LONG, || {
        other.adopt::<OwnedFencedLockGuard>(&ticket)
    });
    let adopted = adopted.unwrap();
    assert!(adopted.token() > token && adopted.is_valid());
    assert_eq!(
        refused::<OwnedFencedLockGuard>(&client, &ticket),
        LossReason::TakenOver
    );
    adopted.unlock().unwrap();
}

// ---------------------------------------------------------------------------------------------------------------------
// Permits
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_permit_changes_hands_once);
fn a_permit_changes_hands_once() {
    let server = Server::start();
    let (client, other) = (
        open_with_lease(&server, LEASE),
        open_with_lease(&server, LEASE),
    );
    let name = unique("permits");
    let [slots, others] = [&client, &other].map(|client| client.expirable_semaphore(&name));
    assert!(slots.try_set_permits(1).unwrap());
    let permit = slots.acquire().unwrap();
    let id = permit.id().to_owned();
    let ticket: Ticket = permit.detach(STAYS).unwrap().to_string().parse().unwrap();
    assert!(slots.try_acquire().unwrap().is_none());
    assert!(slots.remaining_lease_of(&id).unwrap().unwrap() > STAYS / 2);
    let adopted: ExpirablePermit = other.adopt(&ticket).unwrap();
    assert_ne!(adopted.id(), id);
    assert_eq!(
        refused::<ExpirablePermit>(&client, &ticket),
        LossReason::Expired
    );
    assert!(!others.release_id(&id).unwrap(), "it has that id no longer");
    // The adopted permit is renewed.
    let ends = Instant::now() + LEASE * 3 / 2;
    eventually("its first lease is over", || Instant::now() > ends);
    assert!(adopted.is_valid() && others.acquired_permits().unwrap() == 1);
    let ticket = adopted.detach(ms(50)).unwrap();
    let next = slots
        .try_acquire_for(LONG)
        .unwrap()
        .expect("its time is over");
    assert_eq!(
        refused::<ExpirablePermit>(&other, &ticket),
        LossReason::Expired
    );
    next.release().unwrap();
    assert_eq!(slots.available_permits().unwrap(), 1);
    let stats = other.stats();
    assert_eq!((stats.lost, stats.holds), (0, 0), "{stats:?}");
}
