//! The rights that the guide gives are sufficient in a cluster.

use redlatch::{Client, Config};

use crate::support::cluster::Cluster;
use crate::support::rights::{
    DEPLOYMENTS, OPERATIONS, acl_line, every_lock_works, nothing_was_refused,
};
use crate::support::{loosely, ms, timed, unique};

timed!(the_rights_in_the_guide_are_enough_in_a_cluster);
fn the_rights_in_the_guide_are_enough_in_a_cluster() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        node.cli(&acl_line(OPERATIONS, "locker"));
        node.cli(&acl_line(DEPLOYMENTS, "locker"));
    }
    let url = cluster.url().replace("//", "//locker:secret@");
    let config = Config::new(url).key_prefix("shop:");
    let config = config.lease(loosely(ms(300)));
    let open = || Client::open(config.clone()).unwrap();
    let [client, other] = [open(), open()];
    let both = [&client, &other];
    for n in 0..3 {
        let name = cluster.name_at(n, "rights");
        every_lock_works(both, &name, |key, command| {
            let _: redis::Value = cluster.ask(key, command);
        });
    }
    // Names of one slot are locked by one script.
    let tag = unique("tag");
    let names = ["one", "two"].map(|name| format!("{name}:{{{tag}}}"));
    drop(client.multi_lock(&names).lock().unwrap());
    // Keys of a slot that is migrating are asked for at the other node.
    let name = cluster.name_at(0, "moves");
    cluster.migrate(&format!("shop:{name}"), || {
        let guard = client.spin_lock(&name).lock().unwrap();
        guard.unlock().unwrap();
    });
    nothing_was_refused(&client);
    nothing_was_refused(&other);
    // `check` tries the commands that this cluster needs.
    let lacks = || {
        let report = client.check().unwrap().to_string();
        let lacks = report
            .lines()
            .filter(|line| line.contains("the user lacks"));
        lacks.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(lacks(), "");
    let node = &cluster.nodes[0];
    let knows: redis::Value = node.ask(&["COMMAND", "INFO", "ssubscribe"]);
    if format!("{knows:?}").contains("ssubscribe") {
        node.cli(&[
            "ACL",
            "SETUSER",
            "locker",
            "-ssubscribe",
            "-spublish",
            "-asking",
        ]);
        for right in ["+ssubscribe", "+spublish", "+asking"] {
            assert!(lacks().contains(right), "{right}: {}", lacks());
        }
    }
}
