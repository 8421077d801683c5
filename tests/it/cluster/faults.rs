//! Masters are replaced and slots move under load: no waiter is stuck, and holds that Redis lost are reported.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use redlatch::{Client, LossReason};

use crate::support::cluster::Cluster;
use crate::support::load::Load;
use crate::support::{BY_MESSAGE, Losses, elsewhere, eventually, loosely, ms, scoped, timed};

/// Longer than the election of a master, so that no lease ends because of it.
const LEASE: Duration = ms(9_000);

/// A load with one thread of each of two clients for each name.
fn load(cluster: &Cluster, names: Vec<String>) -> Load {
    let open = |_| Client::open(cluster.config().lease(LEASE)).unwrap();
    Load::start(&[0, 1].map(open), names, 1)
}

/// A name at each master.
fn names(cluster: &Cluster) -> Vec<String> {
    (0..3).map(|n| cluster.name_at(n, "load")).collect()
}

timed!(a_slot_moves_with_those_who_hold_and_wait);
fn a_slot_moves_with_those_who_hold_and_wait() {
    let cluster = Cluster::start();
    let name = cluster.name_at(0, "moves");
    let tagged = |prefix: &str| format!("{prefix}:{{{name}}}");
    let lease = ms(1_500);
    let holder = Client::open(cluster.config().lease(lease)).unwrap();
    let waiter = cluster.open();
    let kept = holder.mutex(tagged("kept")).lock().unwrap();
    let waited_for = holder.mutex(tagged("waited for")).lock().unwrap();
    let semaphore = holder.semaphore(tagged("permits"));
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    let load = load(&cluster, vec![tagged("load"), cluster.name_at(1, "load")]);
    scoped(|scope| {
        let waiting = scope.spawn(|| {
            let got = waiter.mutex(tagged("waited for")).lock();
            (Instant::now(), got.and_then(|guard| guard.unlock()))
        });
        eventually("it listens", || waiter.stats().subscriptions == 1);
        // A migration breaks nothing, so no holder may be notified.
        let target = cluster.migrate(&name, || {
            // Some keys have to be asked for with ASKING, and the holds are still renewed.
            let renewals = holder.stats().renewals;
            eventually("renewals go on", || holder.stats().renewals > renewals + 3);
        });
        load.ends();
        assert_ne!(target, 0);
        eventually("all know", || {
            [tagged("kept"), name.clone()].map(|key| cluster.nodes_of(&key).0) == [target, target]
        });
        let renewals = holder.stats().renewals;
        eventually("renewals go on", || holder.stats().renewals > renewals);
        assert!(kept.is_valid() && waited_for.is_valid());
        // The waiter moves its subscription to the new master.
        let channel = format!("redisson_lock__channel:{}", tagged("waited for"));
        eventually("it listens there", || {
            cluster.listeners(&name, &channel) == 1
        });
        let wakes = waiter.stats().wakes;
        let freed = Instant::now();
        waited_for.unlock().unwrap();
        let (got, unlocked) = waiting.join().unwrap();
        unlocked.unwrap();
        let took = got.saturating_duration_since(freed);
        assert!(took < loosely(BY_MESSAGE), "{took:?}");
        assert!(waiter.stats().wakes > wakes, "{:?}", waiter.stats());
    });
    drop(permit);
    eventually("the permit is back", || {
        semaphore.available_permits().unwrap() == 1
    });
    kept.unlock().unwrap();
    for client in [&holder, &waiter] {
        let stats = client.stats();
        let wrong = (stats.lost, stats.releases_failed, stats.missed_messages);
        assert_eq!(wrong, (0, 0, 0), "{stats:?}");
    }
}

timed!(masters_are_replaced_by_consent_and_by_death);
fn masters_are_replaced_by_consent_and_by_death() {
    let mut cluster = Cluster::start();
    let told = Losses::default();
    let config = cluster.config().lease(LEASE).on_lost(told.listener());
    let (holder, waiter, idle) = (
        Client::open(config).unwrap(),
        cluster.open(),
        cluster.open(),
    );
    let kept: Vec<_> = (0..3)
        .map(|n| {
            let name = cluster.name_at(n, "kept");
            holder.mutex(&name).lock().unwrap()
        })
        .collect();
    let waited_for = cluster.name_at(0, "waited for");
    let first = holder.mutex(&waited_for).lock().unwrap();
    let free = cluster.name_at(2, "free");

    let unharmed = load(&cluster, names(&cluster));
    scoped(|scope| {
        let waiting = scope.spawn(|| waiter.mutex(&waited_for).lock()?.unlock());
        eventually("it listens", || waiter.stats().subscriptions == 1);
        // A failover with consent loses nothing.
        cluster.fail_over(&waited_for);
        unharmed.ends();
        first.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    let renewals = holder.stats().renewals;
    eventually("renewals go on", || holder.stats().renewals > renewals);
    assert_eq!(holder.stats().lost, 0);
    cluster.is_whole();

    let dies = cluster.nodes_of(&free).0;
    let mut load = load(&cluster, names(&cluster));
    let dropped = holder.mutex(&free).lock().unwrap();
    let kept_names: Vec<_> = kept.iter().map(|guard| guard.name().to_owned()).collect();
    cluster.replaces_the_silent();
    load.during(|_| {
        cluster.nodes[dies].kill();
        // The dropped guard's release is not waited for, and reaches the new master.
        drop(dropped);
    });
    load.ends();
    eventually("the release has followed", || !cluster.exists(&free));
    // A client that was idle during the failover works as well.
    idle.mutex(&free).lock().unwrap().unlock().unwrap();
    let renewals = holder.stats().renewals;
    eventually("renewals go on", || holder.stats().renewals > renewals);
    for (guard, name) in kept.into_iter().zip(&kept_names) {
        let lost = told.reasons(name);
        let expected = match guard.is_valid() {
            true => vec![],
            // The replica had not received this hold when its master died.
            false => vec![LossReason::Forced],
        };
        assert_eq!(lost, expected, "{name}");
    }
    let stats = holder.stats();
    assert_eq!(stats.releases_failed, 0, "{stats:?}");
}

timed!(each_release_of_a_failover_reaches_the_new_master);
fn each_release_of_a_failover_reaches_the_new_master() {
    const EACH: usize = 8;
    let mut cluster = Cluster::start();
    let config = cluster.config().lease(LEASE);
    let (client, other) = (Client::open(config).unwrap(), cluster.open());
    let name = cluster.name_at(0, "released");
    let (dies, replica) = cluster.nodes_of(&name);
    let [all_hold, it_is_dead] = [0, 1].map(|_| Barrier::new(EACH + 1));
    scoped(|scope| {
        for n in 0..EACH {
            let (client, name) = (&client, &name);
            let (all_hold, it_is_dead) = (&all_hold, &it_is_dead);
            scope.spawn(move || {
                let hold = |n| client.mutex(format!("{n}:{{{name}}}")).lock().unwrap();
                let (unlocked, dropped) = (hold(n), hold(n + EACH));
                all_hold.wait();
                it_is_dead.wait();
                // The release of the dropped guard is not waited for, that of the unlocked one is. Both reach the new
                // master.
                drop(dropped);
                unlocked.unlock().unwrap();
            });
        }
        all_hold.wait();
        let keys = |n: usize| cluster.nodes[n].ask::<usize>(&["DBSIZE"]);
        eventually("its replica has all keys", || {
            keys(dies) >= 2 * EACH && keys(replica.unwrap()) == keys(dies)
        });
        cluster.replaces_the_silent();
        cluster.nodes[dies].kill();
        it_is_dead.wait();
        // This request looks for the new master at the same time.
        let next = client.mutex(format!("next:{{{name}}}")).lock();
        next.unwrap().unlock().unwrap();
    });
    let is_free = |n| !other.mutex(format!("{n}:{{{name}}}")).is_locked().unwrap();
    eventually("all are released", || (0..2 * EACH).all(is_free));
    let stats = client.stats();
    let wrong = (stats.lost, stats.releases_failed, stats.releases_of_lost);
    assert_eq!(wrong, (0, 0, 0), "{stats:?}");
}

timed!(a_master_that_says_nothing_is_replaced);
fn a_master_that_says_nothing_is_replaced() {
    let cluster = Cluster::start();
    let told = Losses::default();
    let config = cluster.config().lease(LEASE).on_lost(told.listener());
    let (holder, waiter) = (Client::open(config).unwrap(), cluster.open());
    let name = cluster.name_at(0, "kept");
    let kept = holder.mutex(&name).lock().unwrap();
    let mut load = load(&cluster, names(&cluster));
    cluster.replaces_the_silent();
    scoped(|scope| {
        let waiting = scope.spawn(|| waiter.mutex(&name).lock()?.unlock());
        eventually("it listens", || waiter.stats().subscriptions == 1);
        // The frozen master's connections stay open, and the kernel accepts new ones.
        load.during(|_| cluster.nodes[0].freeze());
        let renewals = holder.stats().renewals;
        eventually("renewals go on", || holder.stats().renewals > renewals);
        assert!(kept.is_valid(), "{:?}", told.reasons(&name));
        kept.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    // The old master comes back as a replica, and requests that it received before have no effect.
    load.during(|_| {
        cluster.nodes[0].thaw();
        cluster.is_whole();
    });
    load.ends();
}

timed!(holds_at_a_master_that_is_gone_take_no_time_from_the_others);
fn holds_at_a_master_that_is_gone_take_no_time_from_the_others() {
    const AT_THE_DEAD: usize = 2_000;
    const ELSEWHERE: usize = 20;
    let mut cluster = Cluster::start_bare();
    let client = Client::open(cluster.config().lease(ms(3_000))).unwrap();
    let (dies, lives) = (cluster.name_at(0, "dies"), cluster.name_at(1, "lives"));
    let hold = |name: &str, n: usize| client.mutex(format!("{n}:{{{name}}}")).lock().unwrap();
    // Acquire the holds of the living master in the middle, so that their leases end neither first nor last.
    let mut gone: Vec<_> = (0..AT_THE_DEAD / 2).map(|n| hold(&dies, n)).collect();
    let kept: Vec<_> = (0..ELSEWHERE).map(|n| hold(&lives, n)).collect();
    gone.extend((AT_THE_DEAD / 2..AT_THE_DEAD).map(|n| hold(&dies, n)));
    cluster.nodes[0].kill();
    let lost = || client.stats().lost;
    eventually("they are lost", || lost() >= AT_THE_DEAD as u64);
    assert!(kept.iter().all(|guard| guard.is_valid()));
    assert_eq!(lost(), AT_THE_DEAD as u64);
    for guard in kept {
        guard.unlock().unwrap();
    }
}

timed!(a_waiting_writer_keeps_readers_out_at_the_new_master_too);
fn a_waiting_writer_keeps_readers_out_at_the_new_master_too() {
    let cluster = Cluster::start();
    let [reader, writer] = [cluster.open(), cluster.open()];
    let name = cluster.name_at(0, "noted");
    let reads = reader.rw_lock(&name).read().unwrap();
    let others = reader.rw_lock(&name);
    let is_kept_out = || elsewhere(|| others.try_read().is_ok_and(|guard| guard.is_none()));
    scoped(|scope| {
        let writing = scope.spawn(|| writer.rw_lock(&name).write()?.unlock());
        eventually("the writer is noted", is_kept_out);
        cluster.fail_over(&name);
        eventually("the writer is noted at the new master", is_kept_out);
        reads.unlock().unwrap();
        writing.join().unwrap().unwrap();
    });
}
