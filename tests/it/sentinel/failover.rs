//! A master is replaced while everybody works: nobody is stuck, and what the successor lacks is told lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::{Client, Error, LossReason, ReplicaAck};

use crate::support::sentinel::{Deployment, ask};
use crate::support::{Told, eventually, in_time, ms, timed, unique};

/// How soon after the promotion everybody works again.
const BACK: Duration = ms(2_000);

/// Threads of two clients that take one lock in turn, for as long as they are wanted.
struct Load<'a> {
    clients: &'a [Client],
    name: String,
    done: AtomicBool,
    turns: AtomicUsize,
    inside: AtomicUsize,
    /// How often two had it at the same time, and how often a holder found that it was lost.
    overlaps: AtomicUsize,
    lost: AtomicUsize,
}

impl<'a> Load<'a> {
    fn new(clients: &'a [Client]) -> Self {
        Self {
            clients,
            name: unique("load"),
            done: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            overlaps: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        }
    }

    fn work(&self, client: &Client) {
        let lock = client.mutex(&self.name);
        while !self.done.load(Ordering::SeqCst) {
            let Ok(Some(guard)) = lock.try_lock_for(ms(5_000)) else {
                continue;
            };
            if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
                self.overlaps.fetch_add(1, Ordering::SeqCst);
            }
            thread::sleep(ms(1));
            self.inside.fetch_sub(1, Ordering::SeqCst);
            let valid = guard.is_valid();
            if guard.unlock().is_err() || !valid {
                self.lost.fetch_add(1, Ordering::SeqCst);
            }
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Works while `fault` does its worst, and until every thread has had another turn after it.
    fn during(&self, fault: impl FnOnce()) {
        thread::scope(|scope| {
            for client in self.clients {
                for _ in 0..2 {
                    scope.spawn(|| self.work(client));
                }
            }
            eventually("they work", || self.turns.load(Ordering::SeqCst) > 20);
            fault();
            let before = self.turns.load(Ordering::SeqCst);
            in_time("working again", BACK, || {
                eventually("they work again", || {
                    self.turns.load(Ordering::SeqCst) > before + 20
                });
            });
            self.done.store(true, Ordering::SeqCst);
        });
        let [overlaps, lost] = [&self.overlaps, &self.lost].map(|n| n.load(Ordering::SeqCst));
        // What Redis itself lost is the only reason, and the one who lost it finds out.
        assert!(
            overlaps <= lost,
            "{overlaps} times two had it, {lost} were told"
        );
    }
}

timed!(after_a_planned_failover_everybody_goes_on);
fn after_a_planned_failover_everybody_goes_on() {
    let deployment = Deployment::start();
    let clients = [0, 1].map(|_| Client::open(deployment.config()).unwrap());
    let idle = Client::open(deployment.config()).unwrap();
    let received = Told::default();
    let holder = Client::open(deployment.config().on_lost(received.listener())).unwrap();
    let name = unique("kept");
    let kept = holder.mutex(&name).lock().unwrap();
    let waited_for = unique("waited for");
    let first = holder.mutex(&waited_for).lock().unwrap();
    let load = Load::new(&clients);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            clients[0]
                .mutex(&waited_for)
                .lock()
                .map(|guard| guard.unlock())
        });
        eventually("it listens", || clients[0].stats().subscriptions > 0);
        load.during(|| {
            let old = deployment.named();
            let () = deployment.sentinels[0].ask(&[
                "SENTINEL",
                "FAILOVER",
                crate::support::sentinel::SERVICE,
            ]);
            deployment.wait_for_successor(old);
        });
        let renewals = holder.stats().renewals;
        eventually("renewals go on", || holder.stats().renewals > renewals + 2);
        assert!(
            kept.is_valid() && first.is_valid(),
            "{:?}",
            received.reasons(&name)
        );
        first.unlock().unwrap();
        waiter.join().unwrap().unwrap().unwrap();
    });
    kept.unlock().unwrap();
    in_time("an idle client", BACK, || {
        idle.mutex(unique("idle")).lock().unwrap().unlock().unwrap();
    });
    assert_eq!(holder.stats().lost, 0);
}

timed!(after_a_master_is_killed_its_successor_is_found_and_the_returning_one_is_left_alone);
fn after_a_master_is_killed_its_successor_is_found_and_the_returning_one_is_left_alone() {
    let mut deployment = Deployment::start();
    let clients = [0, 1].map(|_| Client::open(deployment.config()).unwrap());
    let idle = Client::open(deployment.config()).unwrap();
    let received = Told::default();
    // Its copy has to outlive the failover without being renewed.
    let config = deployment.config().lease(ms(8_000));
    let holder = Client::open(config.on_lost(received.listener())).unwrap();
    let (kept, missing) = (unique("kept"), unique("missing"));
    let kept_guard = holder.mutex(&kept).lock().unwrap();
    let old = deployment.named();
    eventually("it is copied", || {
        deployment
            .servers
            .iter()
            .all(|server| ask(server, &["EXISTS", &kept]))
    });
    deployment.stop_copying(old);
    let missing_guard = holder.mutex(&missing).lock().unwrap();
    let careful = Client::open(deployment.config().replica_ack(ReplicaAck::AtLeast(1))).unwrap();
    let refused = careful.mutex(unique("careful")).lock();
    let none = Error::NotReplicated {
        acked: 0,
        needed: 1,
    };
    assert!(
        matches!(&refused, Err(err) if err.to_string() == none.to_string()),
        "{refused:?}"
    );
    let (mut new, mut second) = (old, None);
    let load = Load::new(&clients);
    load.during(|| {
        deployment.servers[old].kill();
        new = deployment.wait_for_successor(old);
        // The successor has never heard of it, so there are two owners until the first is told.
        second = clients[0].mutex(&missing).try_lock_for(BACK).unwrap();
    });
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

    deployment.servers[old].restart();
    Load::new(&clients).during(|| {});
    in_time("an idle client", BACK, || {
        idle.mutex(unique("idle")).lock().unwrap().unlock().unwrap();
    });
    kept_guard.unlock().unwrap();
    let stats: String = ask(&deployment.servers[old], &["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_eval"), "{stats}");
    assert_eq!(received.reasons(&missing), [loss.reason]);
    assert!(deployment.is_master(new));
}
