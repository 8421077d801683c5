//! The rights that the guide names are enough in a cluster.

use redlatch::Client;

use crate::support::cluster::Cluster;
use crate::support::rights::{DEPLOYMENTS, OPERATIONS, acl_line, hands_over};
use crate::support::{Crew, timed};

timed!(the_rights_in_the_guide_are_enough_in_a_cluster);
fn the_rights_in_the_guide_are_enough_in_a_cluster() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        node.cli(&acl_line(OPERATIONS, "locker"));
        node.cli(&acl_line(DEPLOYMENTS, "locker"));
    }
    let url = cluster.url().replace("//", "//locker:secret@");
    let open = || Client::open(redlatch::Config::new(&url).key_prefix("shop:")).unwrap();
    let [client, other] = [open(), open()];
    let both = [&client, &other];
    for n in 0..3 {
        let name = cluster.name_at(n, "rights");
        let of = |kind: &str| format!("{kind}:{name}");
        let n = of("lock");
        hands_over(
            both,
            |c| c.reentrant_lock(of("lock")).lock(),
            move |c| c.mutex(&n).lock(),
        );
        let n = of("fair");
        hands_over(
            both,
            |c| c.fair_lock(of("fair")).lock(),
            move |c| c.fair_lock(&n).lock(),
        );
        let n = of("fenced");
        hands_over(
            both,
            |c| c.fenced_lock(of("fenced")).lock(),
            move |c| c.fenced_lock(&n).lock(),
        );
        let n = of("rw");
        hands_over(
            both,
            |c| c.rwlock(of("rw")).read(),
            move |c| c.rwlock(&n).write(),
        );
        let n = of("gate");
        assert!(client.semaphore(&n).try_set_permits(1).unwrap());
        hands_over(
            both,
            |c| c.semaphore(of("gate")).acquire(),
            move |c| c.semaphore(&n).acquire(),
        );
        let n = of("slots");
        assert!(client.expirable_semaphore(&n).try_set_permits(1).unwrap());
        hands_over(
            both,
            |c| c.expirable_semaphore(of("slots")).acquire(),
            move |c| c.expirable_semaphore(&n).acquire(),
        );
        let latch = client.latch(of("latch"));
        assert!(latch.try_set_count(1).unwrap());
        let (n, waits) = (of("latch"), other.clone());
        let mut crew = Crew::new();
        crew.spawn(move || waits.latch(&n).wait().unwrap());
        crew.all_parked();
        latch.count_down().unwrap();
        crew.join();
        let names = [of("one"), of("two")];
        drop(client.multi_lock(&names).lock().unwrap());
    }
    // A slot on its way to another node is asked for there.
    let name = cluster.name_at(0, "moves");
    cluster.migrate(&format!("shop:{name}"), || {
        let guard = client.spin_lock(&name).lock().unwrap();
        guard.unlock().unwrap();
    });
    for client in both {
        let stats = client.stats();
        let wrong = (stats.releases_failed, stats.poll_rescues);
        assert_eq!(wrong, (0, 0), "{stats:?}");
    }
}
