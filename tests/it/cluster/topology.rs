//! How a client learns which node owns which slot, while nodes join and leave.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::{Client, Config};

use crate::support::cluster::Cluster;
use crate::support::{
    LONG, Mode, Proxy, Server, Stops, Target, eventually, is_waited_for, ms, scoped, timed,
};

fn url(ports: &[u16]) -> String {
    let seeds: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    format!("redis+cluster://{}/", seeds.join(","))
}

timed!(a_server_that_is_no_node_of_a_cluster_does_not_keep_the_others_from_answering);
fn a_server_that_is_no_node_of_a_cluster_does_not_keep_the_others_from_answering() {
    let cluster = Cluster::shared();
    let stranger = Server::start();
    let client = Client::open(url(&[stranger.port(), cluster.nodes[1].port()])).unwrap();
    let name = cluster.name_at(2, "beside");
    client.mutex(&name).lock().unwrap().unlock().unwrap();
}

timed!(a_node_that_answers_late_is_waited_for_although_others_refuse);
fn a_node_that_answers_late_is_waited_for_although_others_refuse() {
    let node = Server::start_cluster();
    let denies = Server::start_with(&[]);
    let () = denies.ask(&["ACL", "SETUSER", "default", "-cluster"]);
    let stranger = Server::start();
    let was_denied = || !denies.ask::<Vec<redis::Value>>(&["ACL", "LOG"]).is_empty();
    let said_no = || stranger.calls("cluster") + stranger.calls("cluster|slots") > 0;
    let cases: [(u16, &dyn Fn() -> bool); 2] =
        [(denies.port(), &was_denied), (stranger.port(), &said_no)];
    for (refuses, has_refused) in cases {
        node.freeze();
        scoped(|scope| {
            let url = url(&[node.port(), refuses]);
            let opening = scope.spawn(move || {
                let config = Config::new(url).connect_timeout(LONG);
                Client::open(config).map(drop)
            });
            eventually("the other has answered", || {
                has_refused() || opening.is_finished()
            });
            node.thaw();
            opening.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_node_far_away_is_asked() {
    let node = Server::start_cluster();
    let proxy = Proxy::before(&node);
    proxy.set(Target::All, Mode::DelayBoth(ms(100)));
    // The limit must not fail the test on a busy machine.
    let config = Config::new(url(&[proxy.port()])).connect_timeout(LONG);
    let client = Client::open(config).unwrap();
    drop(client.mutex("far").lock().unwrap());
}

timed!(a_node_to_which_a_slot_moves_keeps_its_connection_meanwhile);
fn a_node_to_which_a_slot_moves_keeps_its_connection_meanwhile() {
    let mut cluster = Cluster::start_bare();
    let new = cluster.join(Cluster::bare_node());
    let client = Client::open(cluster.config().lease(ms(600))).unwrap();
    let (moves, stays) = (cluster.name_at(0, "moves"), cluster.name_at(1, "stays"));
    let kept = client.mutex(&stays).lock().unwrap();
    let our_links = || cluster.nodes[new].clients_named("link");
    cluster.migrate_to(new, &moves, || {
        let mut ids = Vec::new();
        for n in 0..5 {
            let lock = client.spin_lock(format!("{n}:{{{moves}}}"));
            lock.lock().unwrap().unlock().unwrap();
            ids.extend(our_links().iter().map(|client| client.id));
            // Housekeeping, which would close an unused connection, runs before the next renewals.
            let renewals = client.stats().renewals;
            eventually("renewals go on", || client.stats().renewals > renewals + 1);
        }
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
    });
    kept.unlock().unwrap();
}

timed!(a_node_that_has_left_is_forgotten);
fn a_node_that_has_left_is_forgotten() {
    let mut cluster = Cluster::start_bare();
    let leaves = cluster.join(Cluster::bare_node());
    let [client, other] = [0, 1].map(|_| Client::open(cluster.config().lease(ms(1_800))).unwrap());
    let (moves, stays) = (cluster.name_at(0, "moves"), cluster.name_at(1, "stays"));
    let held = client.mutex(&moves).lock().unwrap();
    cluster.migrate_to(leaves, &moves, || {});
    let renewals = client.stats().renewals;
    eventually("it is renewed there", || {
        client.stats().renewals > renewals + 1
    });
    let connection_count = |role: &str| cluster.nodes[leaves].clients_named(role).len();
    eventually("it is renewed there", || connection_count("watchdog") == 1);
    scoped(|scope| {
        let waiting = scope.spawn(|| other.mutex(&moves).lock()?.unlock());
        eventually("it listens there", || connection_count("subscriber") == 1);
        held.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(connection_count("link"), 2);
    let works = || {
        for client in [&client, &other] {
            for name in [&moves, &stays] {
                client.mutex(name).lock().unwrap().unlock().unwrap();
            }
        }
    };
    cluster.migrate_to(0, &moves, || {});
    works();
    let id: String = cluster.nodes[leaves].ask(&["CLUSTER", "MYID"]);
    for node in &cluster.nodes[..leaves] {
        let () = node.ask(&["CLUSTER", "FORGET", &id]);
    }
    let () = cluster.nodes[leaves].ask(&["CLUSTER", "RESET"]);
    eventually("no connection is left", || {
        works();
        cluster.nodes[leaves].clients_named("").is_empty()
    });
    is_waited_for(&client, &other, &moves, ms(30));
    for client in [&client, &other] {
        let stats = client.stats();
        assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{stats:?}");
    }
}

timed!(holds_at_a_master_that_is_slow_take_no_time_from_the_others);
fn holds_at_a_master_that_is_slow_take_no_time_from_the_others() {
    const AT_THE_SLOW: usize = 4_000;
    const ELSEWHERE: usize = 20;
    const LEASE: Duration = ms(4_000);
    let cluster = Cluster::start_bare();
    let client = Client::open(cluster.config().lease(LEASE)).unwrap();
    let (slow, quick) = (cluster.name_at(0, "slow"), cluster.name_at(1, "quick"));
    let hold = |name: &str, n: usize| client.mutex(format!("{n}:{{{name}}}")).lock().unwrap();
    // Acquire the holds of the quick master in the middle, so that their leases end neither first nor last.
    let mut waits: Vec<_> = (0..AT_THE_SLOW / 2).map(|n| hold(&slow, n)).collect();
    let kept: Vec<_> = (0..ELSEWHERE).map(|n| hold(&quick, n)).collect();
    waits.extend((AT_THE_SLOW / 2..AT_THE_SLOW).map(|n| hold(&slow, n)));
    let ends = || kept.iter().map(|guard| guard.valid_until());
    let done = AtomicBool::new(false);
    scoped(|scope| {
        let _stops = Stops(&done);
        scope.spawn(|| {
            // The node answers within the command timeout, but executes writes only between two pauses.
            let mut node = cluster.nodes[0].connection();
            let mut pauses = |words: &[&str]| {
                let mut command = redis::cmd("CLIENT");
                command.arg(words).query::<()>(&mut node).unwrap();
            };
            while !done.load(Ordering::SeqCst) {
                pauses(&["PAUSE", "60000", "WRITE"]);
                thread::sleep(LEASE / 5);
                pauses(&["UNPAUSE"]);
            }
        });
        let last_end = ends().max().unwrap();
        eventually("they are renewed repeatedly", || {
            let valid = kept.iter().all(|guard| guard.is_valid());
            assert!(valid, "{:?}", client.stats());
            ends().min().unwrap() > last_end + LEASE * 2
        });
    });
    drop(waits);
    for guard in kept {
        guard.unlock().unwrap();
    }
}
