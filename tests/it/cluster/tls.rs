//! A cluster whose certificates prove the announced names of its nodes, and no addresses.

use redlatch::{Client, Config};

use crate::support::cluster::Cluster;
use crate::support::{eventually, is_redis_6, is_waited_for, ms, scoped, skipped, timed, trusting};

timed!(nodes_are_reached_over_tls_by_the_name_that_they_announce);
fn nodes_are_reached_over_tls_by_the_name_that_they_announce() {
    let [known_as, nobody] = if is_redis_6() {
        skipped(
            "names that nodes announce",
            "only addresses are known before 7.0",
        );
        ["127.0.0.1", "localhost"]
    } else {
        ["localhost", "127.0.0.1"]
    };
    let cluster = Cluster::start_tls(known_as);
    let seed = cluster.nodes[0].client_addr().port();
    let open = |host: &str| {
        Client::open(Config::new(format!("rediss+cluster://{host}:{seed}/")).tls(trusting()))
    };
    let [client, other] = [0, 1].map(|_| open(known_as).unwrap());
    for master in 0..3 {
        let name = cluster.name_at(master, "tls");
        is_waited_for(&client, &other, &name, ms(30));
        eventually("it is free", || !cluster.exists(&name));
    }
    for node in &cluster.nodes {
        let our_connections = node.clients_named("");
        let port = format!("laddr={}", node.client_addr());
        assert!(!our_connections.is_empty());
        assert!(
            our_connections
                .iter()
                .all(|client| client.line.contains(&port)),
            "{our_connections:?}"
        );
    }
    // Redirections name a node by its address.
    let name = cluster.name_at(0, "moves");
    let held = client.mutex(&name).lock().unwrap();
    cluster.migrate(&name, || {});
    assert!(other.mutex(&name).try_lock().unwrap().is_none());
    held.unlock().unwrap();
    other.mutex(&name).lock().unwrap().unlock().unwrap();
    let err = open(nobody).unwrap_err();
    let mismatch = format!("for {known_as} and not for {nobody}");
    assert!(err.to_string().contains(&mismatch), "{err}");
}

timed!(a_new_node_is_reached_by_its_name_although_redirections_give_its_address);
fn a_new_node_is_reached_by_its_name_although_redirections_give_its_address() {
    if is_redis_6() {
        return skipped("a node with a name", "only addresses are known before 7.0");
    }
    let mut cluster = Cluster::start_tls("localhost");
    let new = cluster.join(Cluster::tls_node("localhost"));
    let seed = cluster.nodes[0].client_addr().port();
    let url = format!("rediss+cluster://localhost:{seed}/");
    let open = || Client::open(Config::new(&url).tls(trusting())).unwrap();
    let [client, other] = [open(), open()];
    let name = cluster.name_at(0, "moves");
    client.mutex(&name).lock().unwrap().unlock().unwrap();
    let held = other.mutex(&name).lock().unwrap();
    scoped(|scope| {
        let mut asked = None;
        cluster.migrate_to(new, &name, || {
            // The key is not at the old node, and a redirection gives the other node's address without its name.
            let commands = client.stats().commands;
            let client = &client;
            let tagged = format!("new:{{{name}}}");
            asked = Some(scope.spawn(move || client.mutex(tagged).lock()?.unlock()));
            eventually("it asks", || client.stats().commands > commands);
        });
        asked.unwrap().join().unwrap().unwrap();
    });
    assert!(client.mutex(&name).try_lock().unwrap().is_none());
    held.unlock().unwrap();
    is_waited_for(&client, &other, &name, ms(30));
    assert!(!cluster.nodes[new].clients_named("").is_empty());
}
