//! A client whose address becomes that of another server, or whose server becomes a replica.

use redlatch::{Client, Config};

use crate::support::{
    Proxy, RESPONSE, Server, Target, connection_to, eventually, in_time, ms, nothing_is_left,
    timed, unique, within,
};

timed!(after_a_failover_the_watchdog_and_late_releases_follow_the_master);
fn after_a_failover_the_watchdog_and_late_releases_follow_the_master() {
    // The old master and its replica swap ports, so a new connection to the address reaches the promoted replica.
    // Connections made before stay with the old master.
    let old = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
    let new = Server::start();
    let () = new.ask(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    eventually("it follows", || {
        new.ask::<String>(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    let lease = ms(2_000);
    let client = Client::open(Config::new(old.url()).lease(lease)).unwrap();
    let names = ["kept", "dropped", "unlocked"].map(unique);
    let [kept, dropped, unlocked] = [0, 1, 2].map(|n| client.mutex(&names[n]).lock().unwrap());
    eventually("it is renewed", || client.stats().renewals > 0);
    eventually("all is copied", || new.dbsize() == 3);

    // From here on, `old` stands for the port: its methods connect to the new master.
    let mut demoted = connection_to(&old.unix_url());
    let port = old.port().to_string();
    let () = new.ask(&["REPLICAOF", "NO", "ONE"]);
    let aside = crate::support::free_port();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "port", &aside.to_string()])
        .query(&mut demoted)
        .unwrap();
    let mut promoted = connection_to(&new.unix_url());
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "port", &port])
        .query(&mut promoted)
        .unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", &port])
        .query(&mut demoted)
        .unwrap();

    let (renewals, reconnects) = (client.stats().renewals, client.stats().reconnects);
    drop(dropped);
    eventually("the release follows", || !old.exists(&names[1]));
    assert!(client.stats().reconnects > reconnects);
    in_time("unlocking", RESPONSE, || unlocked.unlock()).unwrap();
    assert!(!old.exists(&names[2]));
    let lost = kept.lost().recv_timeout(lease + lease / 3);
    assert!(lost.is_err(), "{lost:?}");
    assert!(kept.is_valid());
    assert!(client.stats().renewals > renewals);
    let held = [(kept.owner().to_owned(), "1".to_owned())];
    assert_eq!(old.hgetall(&names[0]), held);
    let guard = in_time("locking", RESPONSE, || client.mutex(&names[1]).lock());
    guard.unwrap().unlock().unwrap();
    kept.unlock().unwrap();
    nothing_is_left(&old);
    let stats = client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{stats:?}");
}

timed!(a_replica_is_left_for_a_new_connection_again_and_again_until_there_is_a_master);
fn a_replica_is_left_for_a_new_connection_again_and_again_until_there_is_a_master() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url()).lease(ms(2_500))).unwrap();
    let name = unique("kept");
    let kept = client.mutex(&name).lock().unwrap();
    let dropped = client.mutex(unique("dropped")).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    let opened = [Target::Link, Target::Watchdog].map(|target| (target, proxy.opened(target)));
    let master = Server::start(); // its frozen master never answers the replica
    master.freeze();
    let () = server.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    drop(dropped);
    for (target, opened_before) in opened {
        let again = within(ms(2_500), || proxy.opened(target) > opened_before);
        assert!(again, "{target:?} stays with a replica");
    }
    let () = server.ask(&["REPLICAOF", "NO", "ONE"]);
    let renewals = client.stats().renewals;
    eventually("renewals go on", || client.stats().renewals > renewals);
    eventually("it is released", || server.keys() == [&*name]);
    assert!(kept.is_valid());
    kept.unlock().unwrap();
    nothing_is_left(&server);
    let stats = client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0), "{stats:?}");
}
