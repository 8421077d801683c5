//! Failovers under load: no call hangs, and holds that the new master does not have are reported lost.

use std::time::Duration;

use redlatch::{Client, Error, LossReason, ReplicaAck};

use crate::support::load::Load;
use crate::support::sentinel::{Deployment, ask};
use crate::support::{
    LONG, Losses, SLACK, eventually, in_time, loosely, ms, scoped, timed, unique,
};

/// How soon after the promotion all clients work again.
const BACK: Duration = ms(2_000);

timed!(after_a_planned_failover_everybody_goes_on);
fn after_a_planned_failover_everybody_goes_on() {
    everybody_goes_on(&Deployment::start());
}

#[cfg(feature = "tls")]
timed!(after_a_planned_failover_over_tls_everybody_goes_on);
#[cfg(feature = "tls")]
fn after_a_planned_failover_over_tls_everybody_goes_on() {
    everybody_goes_on(&Deployment::start_tls());
}

fn everybody_goes_on(deployment: &Deployment) {
    let old = deployment.named();
    let idle = Client::open(deployment.config()).unwrap();
    let of_idle = deployment.clients_at(old);
    assert!(!of_idle.is_empty());
    let clients = [0, 1].map(|_| Client::open(deployment.config()).unwrap());
    let received = Losses::default();
    // A lease longer than the failover, even on a busy machine.
    let config = deployment.config().lease(ms(7_500));
    let holder = Client::open(config.on_lost(received.listener())).unwrap();
    let name = unique("kept");
    let kept = holder.mutex(&name).lock().unwrap();
    let waited_for = unique("waited for");
    let first = holder.mutex(&waited_for).lock().unwrap();
    deployment.copied(&[&name, &waited_for]);
    let mut load = Load::start(&clients, vec![unique("load")], 2);
    scoped(|scope| {
        let waiter = scope.spawn(|| {
            let guard = clients[0].mutex(&waited_for).try_lock_for(LONG * 3);
            guard.unwrap().expect("it is released").unlock()
        });
        eventually("it listens", || clients[0].stats().subscriptions > 0);
        let took = load.during(|load| {
            // The old master grants locks until the last client has left it.
            load.divided(|| {
                deployment.promote();
                in_time("leaving the old master", BACK, || {
                    eventually("all have left it that work", || {
                        let mut still = deployment.clients_at(old);
                        still.retain(|id| !of_idle.contains(id));
                        still.is_empty()
                    });
                });
            });
            in_time("working again", BACK, || load.goes_on("they work again"));
        });
        assert!(took <= BACK + loosely(SLACK), "{took:?}");
        let renewals = holder.stats().renewals;
        eventually("renewals go on", || holder.stats().renewals > renewals + 2);
        assert!(
            kept.is_valid() && first.is_valid(),
            "{:?}",
            received.reasons(&name)
        );
        first.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    load.ends();
    kept.unlock().unwrap();
    in_time("an idle client", BACK, || {
        let name = unique("idle");
        let guard = idle.mutex(&name).lock().unwrap();
        let new = &deployment.servers[deployment.named()];
        assert!(ask::<bool>(new, &["EXISTS", &name]));
        guard.unlock().unwrap();
    });
    assert_eq!(holder.stats().lost, 0);
}

timed!(a_working_client_leaves_the_old_master_although_that_is_still_one);
fn a_working_client_leaves_the_old_master_although_that_is_still_one() {
    let deployment = Deployment::start();
    let client = Client::open(deployment.config()).unwrap();
    // The renewal interval is 1.5 s, longer than a client may take to reach the new master.
    let holder = Client::open(deployment.config().lease(ms(4_500))).unwrap();
    let (missing, waited_for) = (unique("missing"), unique("waited for"));
    let missing_guard = holder.mutex(&missing).lock().unwrap();
    let first = holder.mutex(&waited_for).lock().unwrap();
    deployment.copied(&[&missing, &waited_for]);
    let old = deployment.named();
    scoped(|scope| {
        let waiter = scope.spawn(|| {
            let guard = client.mutex(&waited_for).try_lock_for(LONG);
            let guard = guard.unwrap().expect("it is released");
            let new = &deployment.servers[deployment.named()];
            assert!(ask::<bool>(new, &["EXISTS", &waited_for]));
            guard.unlock().unwrap();
        });
        eventually("it listens", || client.stats().subscriptions > 0);
        let new = &deployment.servers[deployment.promote()];
        in_time("all are at the new master", BACK, || {
            let had: usize = ask(new, &["DEL", &missing]);
            assert_eq!(had, 1);
            eventually("new locks are there", || {
                let name = unique("new");
                let guard = client.mutex(&name).lock().unwrap();
                let is_there = ask(new, &["EXISTS", &name]);
                drop(guard);
                is_there
            });
            let loss = missing_guard.lost().recv_timeout(LONG).unwrap();
            assert_eq!(loss.reason, LossReason::Forced);
            first.unlock().unwrap();
            waiter.join().unwrap();
            assert!(!ask::<bool>(new, &["EXISTS", &waited_for]));
        });
        assert!(deployment.is_master(old));
    });
}

timed!(guarded_commands_go_to_the_new_master_with_their_hold);
fn guarded_commands_go_to_the_new_master_with_their_hold() {
    let deployment = Deployment::start();
    let client = Client::open(deployment.config()).unwrap();
    let name = unique("guarded");
    let (guard, key) = (client.mutex(&name).lock().unwrap(), format!("{{{name}}}:n"));
    guard.query::<i64>(redis::cmd("INCR").arg(&key)).unwrap();
    deployment.copied(&[&name]);
    let new = &deployment.servers[deployment.promote()];
    ask::<i64>(new, &["DEL", &key]);
    in_time("writing at the new master", BACK, || {
        eventually("it is there", || {
            let written = guard.query::<i64>(redis::cmd("INCR").arg(&key));
            assert!(!matches!(written, Err(Error::Lost { .. })), "{written:?}");
            ask(new, &["EXISTS", &key])
        });
    });
    guard.unlock().unwrap();
}

timed!(after_a_master_is_killed_its_successor_is_found_and_the_returning_one_is_left_alone);
fn after_a_master_is_killed_its_successor_is_found_and_the_returning_one_is_left_alone() {
    its_successor_is_found(Deployment::start());
}

#[cfg(feature = "tls")]
timed!(after_a_master_is_killed_its_successor_is_found_over_tls);
#[cfg(feature = "tls")]
fn after_a_master_is_killed_its_successor_is_found_over_tls() {
    its_successor_is_found(Deployment::start_tls());
}

fn its_successor_is_found(mut deployment: Deployment) {
    let clients = [0, 1].map(|_| Client::open(deployment.config()).unwrap());
    let idle = Client::open(deployment.config()).unwrap();
    let received = Losses::default();
    // A lease longer than the failover, during which the copy is not renewed.
    let config = deployment.config().lease(ms(8_000));
    let holder = Client::open(config.on_lost(received.listener())).unwrap();
    let (kept, missing) = (unique("kept"), unique("missing"));
    let kept_guard = holder.mutex(&kept).lock().unwrap();
    let old = deployment.named();
    deployment.copied(&[&kept]);
    deployment.stop_copying(old);
    let missing_guard = holder.mutex(&missing).lock().unwrap();
    let careful = Client::open(deployment.config().replica_ack(ReplicaAck::AtLeast(1))).unwrap();
    let refused = careful.mutex(unique("careful")).lock();
    let none = |err: &Error| {
        matches!(
            err,
            Error::NotReplicated {
                acked: 0,
                needed: 1,
                ..
            }
        )
    };
    assert!(refused.as_ref().is_err_and(none), "{refused:?}");
    let (mut new, mut second) = (old, None);
    let mut load = Load::start(&clients, vec![unique("load")], 2);
    let took = load.during(|_| {
        deployment.servers[old].kill();
        new = deployment.wait_for_successor(old);
        // The new master does not know this lock, so there are two owners until the first learns of its loss.
        second = clients[0].mutex(&missing).try_lock_for(BACK).unwrap();
    });
    assert!(took <= BACK + loosely(SLACK), "{took:?}");
    load.ends();
    let loss = missing_guard.lost().recv_timeout(ms(8_000)).unwrap();
    assert!(second.is_some());
    assert!([LossReason::TakenOver, LossReason::Forced].contains(&loss.reason));
    drop(second);
    assert!(!missing_guard.is_valid());
    let renewals = holder.stats().renewals;
    eventually("the other is renewed", || {
        holder.stats().renewals > renewals
    });
    assert!(kept_guard.is_valid(), "{:?}", received.reasons(&kept));

    // The old master believes that it is still the master until a Sentinel reconfigures it. New connections must not
    // use it.
    deployment.servers[old].restart();
    let mut load = Load::start(&clients, vec![unique("load")], 2);
    let took = load.during(|_| {
        let new = &deployment.servers[new];
        let killed: i64 = ask(new, &["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(killed > 0);
    });
    assert!(took <= BACK + loosely(SLACK), "{took:?}");
    load.ends();
    in_time("an idle client", BACK, || {
        idle.mutex(unique("idle")).lock().unwrap().unlock().unwrap();
    });
    kept_guard.unlock().unwrap();
    let stats: String = ask(&deployment.servers[old], &["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_eval"), "{stats}");
    assert_eq!(received.reasons(&missing), [loss.reason]);
    assert!(deployment.is_master(new));
}

timed!(an_idle_client_leaves_a_master_that_was_frozen_and_has_a_successor);
fn an_idle_client_leaves_a_master_that_was_frozen_and_has_a_successor() {
    let deployment = Deployment::start();
    let idle = Client::open(deployment.config()).unwrap();
    let old = deployment.named();
    deployment.servers[old].freeze();
    let new = deployment.wait_for_successor(old);
    deployment.servers[old].thaw();
    // After the thaw, the Sentinels wait for at least 8 s before they reconfigure the old master and close its
    // connections.
    eventually("it has heard of the successor", || {
        let clients: String = ask(&deployment.servers[old], &["CLIENT", "LIST"]);
        !clients.contains(":link ")
    });
    let name = unique("idle");
    let guard = in_time("an idle client", BACK, || idle.mutex(&name).lock()).unwrap();
    assert!(ask::<bool>(&deployment.servers[new], &["EXISTS", &name]));
    guard.unlock().unwrap();
    let stats: String = ask(&deployment.servers[old], &["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_eval"), "{stats}");
}
