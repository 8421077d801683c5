//! Operations that a cluster does not support, and their errors.

use redlatch::{Client, Config, Error, RedLock, Result};

use crate::support::cluster::Cluster;
use crate::support::{Server, timed, unique};

fn is_invalid<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::InvalidName { .. }))
}

timed!(names_whose_channels_leave_the_slot_are_refused);
fn names_whose_channels_leave_the_slot_are_refused() {
    let cluster = Cluster::shared();
    let client = cluster.open();
    for name in ["foo{", "a}b", "{}x"].map(unique) {
        let commands_before = client.stats().commands;
        assert!(is_invalid(client.reentrant_lock(&name).lock()), "{name}");
        assert!(is_invalid(client.fair_lock(&name).try_lock()), "{name}");
        assert!(is_invalid(client.fenced_lock(&name).is_locked()), "{name}");
        assert!(is_invalid(client.spin_lock(&name).lock()), "{name}");
        assert!(is_invalid(client.rw_lock(&name).read()), "{name}");
        assert!(is_invalid(client.semaphore(&name).acquire()), "{name}");
        assert!(
            is_invalid(client.expirable_semaphore(&name).acquire()),
            "{name}"
        );
        assert!(is_invalid(client.latch(&name).count()), "{name}");
        assert!(is_invalid(client.multi_lock([&name]).lock()), "{name}");
        assert_eq!(
            client.stats().commands,
            commands_before,
            "something was sent"
        );
    }
    let tagged = format!("foo{{{}}}", unique("tag"));
    client
        .reentrant_lock(&tagged)
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    assert!(
        is_invalid(client.latch(&tagged).count()),
        "its channel adds braces"
    );
    // A single server has no slots.
    let single = Server::start();
    let client = Client::open(single.url()).unwrap();
    client
        .reentrant_lock("foo{")
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
}

timed!(a_majority_of_one_cluster_is_none);
fn a_majority_of_one_cluster_is_none() {
    let cluster = Cluster::shared();
    let server = Server::start();
    let (one, two) = (cluster.open(), Client::open(server.url()).unwrap());
    match RedLock::new([&one, &two], "a") {
        Err(Error::InvalidSetting { reason: what, .. }) => {
            assert!(what.contains("the cluster of"), "{what}")
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn says(err: &Error, parts: &[&str]) {
    let mut said = err.to_string();
    let mut source = std::error::Error::source(err);
    while let Some(err) = source {
        said = format!("{said}: {err}");
        source = err.source();
    }
    for part in parts {
        assert!(said.contains(part), "{said}");
    }
}

timed!(what_is_wrong_with_the_url_is_said);
fn what_is_wrong_with_the_url_is_said() {
    let cluster = Cluster::shared();
    let server = Server::start();
    let at = format!("127.0.0.1:{}", server.port());
    let err = Client::open(format!("redis+cluster://{at}/")).unwrap_err();
    assert!(matches!(err, Error::InvalidSetting { .. }), "{err}");
    says(&err, &["not a node of a cluster", &at, "redis://"]);

    let err = Client::open(format!("{}3", cluster.url())).unwrap_err();
    // Only Valkey 9 supports more than one database in a cluster, and the servers' texts differ.
    assert!(
        matches!(err, Error::Redis { .. }) && !err.is_retryable(),
        "{err}"
    );

    // A node that is used like a single server by a client that did not connect at first.
    let node = Client::open(Config::new(cluster.nodes[0].url()).lazy()).unwrap();
    let name = cluster.name_at(1, "elsewhere");
    let err = node.mutex(&name).lock().unwrap_err();
    says(&err, &["MOVED", "redis+cluster://"]);
    assert!(!err.is_retryable());

    let nobody = format!("redis+cluster://127.0.0.1:{}/", crate::support::free_port());
    let err = Client::open(nobody).unwrap_err();
    assert!(
        matches!(err, Error::Redis { .. }) && err.is_retryable(),
        "{err}"
    );
}
