//! A master is replaced while everybody works: nobody is stuck, and what the successor lacks is reported lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Error, LossReason, ReplicaAck};

use crate::support::sentinel::{Deployment, SERVICE, ask};
use crate::support::{LONG, Told, eventually, in_time, ms, timed, unique};

/// How soon after the promotion everybody works again.
const BACK: Duration = ms(2_000);

/// Threads of two clients that take one lock in turn, for as long as they are wanted.
struct Load<'a> {
    clients: &'a [Client],
    name: String,
    done: AtomicBool,
    /// How often each thread has had it.
    turns: Vec<AtomicUsize>,
    inside: AtomicUsize,
    /// How often two had it at the same time, and how often a holder learnt that it may not have been alone.
    overlaps: AtomicUsize,
    doubtful: AtomicUsize,
}

/// Ends the load also if the test fails meanwhile.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a> Load<'a> {
    fn new(clients: &'a [Client]) -> Self {
        Self {
            clients,
            name: unique("load"),
            done: AtomicBool::new(false),
            turns: (0..2 * clients.len())
                .map(|_| AtomicUsize::new(0))
                .collect(),
            inside: AtomicUsize::new(0),
            overlaps: AtomicUsize::new(0),
            doubtful: AtomicUsize::new(0),
        }
    }

    fn work(&self, client: &Client, turns: &AtomicUsize) {
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
                self.doubtful.fetch_add(1, Ordering::SeqCst);
            }
            turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until every thread has had so many turns more.
    fn goes_on(&self, what: &str, more: usize) {
        let before: Vec<_> = self
            .turns
            .iter()
            .map(|n| n.load(Ordering::SeqCst))
            .collect();
        eventually(what, || {
            let mut both = self.turns.iter().zip(&before);
            both.all(|(n, before)| n.load(Ordering::SeqCst) >= before + more)
        });
    }

    /// Works while `fault` does its worst, and until every thread has had another turn after it.
    fn during(&self, fault: impl FnOnce()) {
        thread::scope(|scope| {
            let _ends = Ends(&self.done);
            for (n, turns) in self.turns.iter().enumerate() {
                let client = &self.clients[n % self.clients.len()];
                scope.spawn(move || self.work(client, turns));
            }
            self.goes_on("they work", 3);
            fault();
            in_time("working again", BACK, || {
                self.goes_on("they work again", 3);
            });
        });
        let [overlaps, doubtful] =
            [&self.overlaps, &self.doubtful].map(|n| n.load(Ordering::SeqCst));
        // Only because Redis has lost a write, and then one of the two finds out.
        assert!(
            overlaps <= doubtful,
            "{overlaps} times two had it, and {doubtful} learnt of it"
        );
    }
}

timed!(after_a_planned_failover_everybody_goes_on);
fn after_a_planned_failover_everybody_goes_on() {
    let deployment = Deployment::start();
    let clients = [0, 1].map(|_| Client::open(deployment.config()).unwrap());
    let idle = Client::open(deployment.config()).unwrap();
    let received = Told::default();
    // Its holds have to outlive the failover, however busy the machine is.
    let config = deployment.config().lease(ms(4_500));
    let holder = Client::open(config.on_lost(received.listener())).unwrap();
    let name = unique("kept");
    let kept = holder.mutex(&name).lock().unwrap();
    let waited_for = unique("waited for");
    let first = holder.mutex(&waited_for).lock().unwrap();
    deployment.copied(&[&name, &waited_for]);
    let load = Load::new(&clients);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = clients[0].mutex(&waited_for).try_lock_for(LONG * 3);
            guard.unwrap().expect("it is released").unlock()
        });
        eventually("it listens", || clients[0].stats().subscriptions > 0);
        load.during(|| {
            let old = deployment.named();
            let () = deployment.sentinels[0].ask(&["SENTINEL", "FAILOVER", SERVICE]);
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
        waiter.join().unwrap().unwrap();
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
    deployment.copied(&[&kept]);
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
        // The successor never received it, so there are two owners until the first learns of it.
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

    // Until a Sentinel says otherwise, the old one believes that it is the master. Whoever connects is not misled.
    deployment.servers[old].restart();
    Load::new(&clients).during(|| {
        let new = &deployment.servers[new];
        let killed: i64 = ask(new, &["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(killed > 0);
    });
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
    let opened = Instant::now();
    let old = deployment.named();
    deployment.servers[old].freeze();
    let new = deployment.wait_for_successor(old);
    deployment.servers[old].thaw();
    // A connection on which nothing was heard for 5 s is not trusted. Sentinels wait for longer, at least 8 s after the
    // thaw, before they tell the old master what it is and end its connections.
    thread::sleep(ms(5_100).saturating_sub(opened.elapsed()));
    let name = unique("idle");
    let guard = in_time("an idle client", BACK, || idle.mutex(&name).lock()).unwrap();
    assert!(ask::<bool>(&deployment.servers[new], &["EXISTS", &name]));
    guard.unlock().unwrap();
    let stats: String = ask(&deployment.servers[old], &["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_eval"), "{stats}");
}
