//! `replica_ack`: an acquire succeeds only after enough replicas have acknowledged it.

use redlatch::{Client, Config, Error, ExpirablePermit, OwnedMutexGuard, RedLock, ReplicaAck};

use crate::support::{
    Server, eventually, in_time, ms, nothing_is_left, scoped, timed, unique, within,
};

/// A master with `n` replicas.
fn replicated(n: usize) -> (Server, Vec<Server>) {
    let master = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replicas: Vec<_> = (0..n).map(|_| follower(&master)).collect();
    are_online(&master, n);
    (master, replicas)
}

fn follower(master: &Server) -> Server {
    let replica = Server::start_with(&[]);
    let () = replica.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    replica
}

/// Waits until the master has `n` replicas that are connected and keep up.
fn are_online(master: &Server, n: usize) {
    eventually("they follow", || {
        let online = master.ask::<String>(&["INFO", "replication"]);
        online.matches("state=online").count() == n
    });
    master.is_acknowledged_by(n, "stream");
}

fn client(server: &Server, replicas: ReplicaAck) -> Client {
    let config = Config::new(server.url()).command_timeout(ms(2_000));
    Client::open(config.replica_ack(replicas)).unwrap()
}

/// Acquires and releases one of each kind, each with a new name.
fn try_all(client: &Client) -> Vec<(&'static str, redlatch::Result<()>)> {
    let wait = ms(5_000);
    let name = || unique("locked");
    let semaphore = client.semaphore(unique("permits"));
    let leased = client.expirable_semaphore(unique("permits"));
    semaphore.try_set_permits(2).unwrap();
    leased.try_set_permits(2).unwrap();
    fn taken<T>(result: redlatch::Result<Option<T>>) -> redlatch::Result<()> {
        result.map(|guard| drop(guard.expect("nobody else has it")))
    }
    vec![
        ("mutex", taken(client.mutex(name()).try_lock_for(wait))),
        ("spin", taken(client.spin_lock(name()).try_lock_for(wait))),
        ("fair", taken(client.fair_lock(name()).try_lock_for(wait))),
        ("fenced", client.fenced_lock(name()).lock().map(drop)),
        ("reentrant", client.reentrant_lock(name()).lock().map(drop)),
        ("a set", client.multi_lock([name()]).lock().map(drop)),
        ("read", client.rw_lock(name()).read().map(drop)),
        ("write", client.rw_lock(name()).write().map(drop)),
        ("permit", semaphore.acquire().map(drop)),
        ("leased", leased.acquire().map(drop)),
    ]
}

timed!(what_too_few_replicas_acknowledge_is_given_back);
fn what_too_few_replicas_acknowledge_is_given_back() {
    let (master, replicas) = replicated(2);
    let (none, one, most, three) = (
        client(&master, ReplicaAck::None),
        client(&master, ReplicaAck::AtLeast(1)),
        client(&master, ReplicaAck::Majority),
        client(&master, ReplicaAck::AtLeast(3)),
    );
    let waits = master.calls("wait");
    for (kind, taken) in try_all(&none) {
        taken.unwrap_or_else(|err| panic!("{kind}: {err}"));
    }
    assert_eq!(master.calls("wait"), waits, "nobody asked for it");
    let with = |client: &Client, expected: Option<u32>| {
        for (kind, taken) in in_time("all of them", ms(5_000), || try_all(client)) {
            match (taken, expected) {
                (Ok(()), None) => {}
                (Err(Error::NotReplicated { acked, needed, .. }), Some(expected)) => {
                    assert!(
                        acked < needed && needed == expected,
                        "{kind}: {acked} of {needed}"
                    );
                }
                (other, _) => panic!("{kind}: {other:?} instead of {expected:?}"),
            }
        }
    };
    with(&one, None);
    with(&most, None);
    with(&three, Some(3));
    replicas[0].freeze();
    with(&one, None);
    with(&most, None);
    replicas[1].freeze();
    with(&one, Some(1));
    with(&most, Some(1));
    let waiting = one.mutex(unique("later"));
    assert!(matches!(waiting.lock(), Err(Error::NotReplicated { .. })));
    replicas[1].thaw();
    let again = within(ms(10_000), || waiting.lock().is_ok());
    assert!(again, "the replica is back");
    with(&most, None);
    for client in [none, one, most, three] {
        client.close(ms(2_000)).unwrap();
    }
    let held = |key: &String| key.contains("locked") && !key.contains("token");
    eventually("nothing is held", || !master.keys().iter().any(held));
    let mut permits = master.keys();
    permits.retain(|key| {
        key.starts_with("permits") && master.ask::<String>(&["TYPE", key]) == "string"
    });
    // `try_all` ran nine times, with two semaphores each.
    assert_eq!(permits.len(), 2 * 9);
    for key in permits {
        assert_eq!(master.ask::<String>(&["GET", &key]), "2", "{key}");
    }
}

timed!(a_majority_is_one_of_the_replicas_that_are_there);
fn a_majority_is_one_of_the_replicas_that_are_there() {
    let (master, mut replicas) = replicated(4);
    let client = client(&master, ReplicaAck::Majority);
    let lock = client.mutex(unique("majority"));
    drop(lock.lock().unwrap());
    replicas.truncate(1);
    are_online(&master, 1);
    for _ in 0..2 {
        drop(lock.lock().unwrap());
    }
    replicas.extend((0..2).map(|_| follower(&master)));
    are_online(&master, 3);
    drop(lock.lock().unwrap());
    drop(lock.lock().unwrap());
    replicas[0].freeze();
    replicas[1].freeze();
    let refused = lock.lock();
    assert!(
        matches!(
            refused,
            Err(Error::NotReplicated {
                acked: 1,
                needed: 2,
                ..
            })
        ),
        "{refused:?}"
    );
}

timed!(a_server_that_cannot_wait_for_replicas_is_refused);
fn a_server_that_cannot_wait_for_replicas_is_refused() {
    let without = Server::start_with(&["--rename-command", "WAIT", ""]);
    let open = |url: String| {
        Client::open(Config::new(url).replica_ack(ReplicaAck::AtLeast(1))).map(|_| ())
    };
    let said = open(without.url()).unwrap_err().to_string();
    assert!(said.contains("replica_ack needs WAIT"), "{said}");
    let rights = Server::start_with(&[]);
    let () = rights.ask(&[
        "ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-wait",
    ]);
    let said = open(format!("redis://u:p@127.0.0.1:{}/", rights.port()))
        .unwrap_err()
        .to_string();
    assert!(said.contains("replica_ack needs WAIT"), "{said}");
    let others = [
        client(&rights, ReplicaAck::None),
        client(&rights, ReplicaAck::Majority),
    ];
    let refused = RedLock::new(&others, unique("red"))
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, Error::InvalidSetting { .. }), "{refused}");
    nothing_is_left(&rights);
}

timed!(with_replicas_away_many_at_once_are_told_so_and_releases_go_on);
fn with_replicas_away_many_at_once_are_told_so_and_releases_go_on() {
    let (master, replicas) = replicated(1);
    let client = client(&master, ReplicaAck::AtLeast(1));
    let held = client.mutex(unique("held")).lock().unwrap();
    replicas[0].freeze();
    scoped(|scope| {
        let contend = || {
            let refused = client.mutex(unique("refused")).lock();
            assert!(
                matches!(refused, Err(Error::NotReplicated { .. })),
                "{refused:?}"
            );
        };
        for _ in 0..8 {
            scope.spawn(contend);
        }
        held.unlock().unwrap();
    });
    nothing_is_left(&master);
}

#[test]
fn what_was_lost_before_its_adoption_is_reported_as_lost_although_replicas_are_missing() {
    let server = Server::start();
    let [from, target] = [ReplicaAck::None, ReplicaAck::AtLeast(1)].map(|ack| client(&server, ack));
    let slots = from.expirable_semaphore(unique("slots"));
    assert!(slots.try_set_permits(1).unwrap());
    let permit = slots.acquire().unwrap().detach(ms(60_000)).unwrap();
    let lock = from.mutex(unique("lock"));
    let hold = lock.lock_owned().unwrap().detach(ms(60_000)).unwrap();
    slots.delete().unwrap();
    assert!(lock.force_unlock().unwrap());
    for adopted in [
        target.adopt::<ExpirablePermit>(&permit).map(drop),
        target.adopt::<OwnedMutexGuard>(&hold).map(drop),
    ] {
        assert!(matches!(adopted, Err(Error::Lost { .. })), "{adopted:?}");
    }
}
