//! Dropping guards while Redis is frozen and the connection is lost.

use std::any::Any;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, RedLock};

use crate::support::cluster::Cluster;
use crate::support::quorum::{all_keep, masters};
use crate::support::sentinel::{self, Deployment};
use crate::support::{LONG, Server, eventually, loosely, ms, timed, unique};

/// Guards per kind. If each drop waited for 0.1 s, they would take twice [`AT_MOST`].
const GUARDS: usize = 20;

const AT_MOST: Duration = ms(1_000);

/// Longer than any test: a name that becomes free was released, not expired.
const LEASE: Duration = Duration::from_secs(600);

type Guard = Box<dyn Any>;

/// Acquires the name if it is free.
type Take = fn(&Client, &str) -> Option<Guard>;

fn boxed<G: Any>(guard: redlatch::Result<Option<G>>) -> Option<Guard> {
    guard.unwrap().map(|guard| Box::new(guard) as _)
}

const MUTEX: Take = |client, name| boxed(client.mutex(name).fixed_lease(LEASE).try_lock());

/// Title, how a name is acquired, and how it is acquired exclusively.
const KINDS: [(&str, Take, Take); 8] = [
    ("mutex", MUTEX, MUTEX),
    (
        "owned",
        |client, name| boxed(client.mutex(name).fixed_lease(LEASE).try_lock_owned()),
        MUTEX,
    ),
    ("fair", FAIR, FAIR),
    (
        "read",
        |client, name| boxed(client.rw_lock(name).fixed_lease(LEASE).try_read()),
        WRITE,
    ),
    ("write", WRITE, WRITE),
    ("permit", PERMIT, PERMIT),
    ("leased permit", LEASED, LEASED),
    ("several", SEVERAL, SEVERAL),
];

const FAIR: Take = |client, name| boxed(client.fair_lock(name).fixed_lease(LEASE).try_lock());

const WRITE: Take = |client, name| boxed(client.rw_lock(name).fixed_lease(LEASE).try_write());

const PERMIT: Take = |client, name| {
    let semaphore = client.semaphore(name);
    semaphore.try_set_permits(1).unwrap();
    boxed(semaphore.try_acquire())
};

const LEASED: Take = |client, name| {
    let semaphore = client.expirable_semaphore(name).fixed_lease(LEASE);
    semaphore.try_set_permits(1).unwrap();
    boxed(semaphore.try_acquire())
};

const SEVERAL: Take = |client, name| {
    let names = [name.to_owned(), format!("{name}:too")];
    boxed(client.multi_lock(names).fixed_lease(LEASE).try_lock())
};

/// An attempt to connect lasts longer than the test.
fn patient(config: Config) -> Config {
    config.connect_timeout(LONG).command_timeout(LONG)
}

/// Ends all connections for commands.
type Cut = fn(&Server);

const CUT: Cut = |server| assert!(server.kill_clients_named("link") > 0);

/// Drops guards while all servers are frozen and all connections for commands are cut.
fn drop_frozen(servers: &[&Server], cut: Cut, kind: &str, guards: Vec<Guard>) {
    servers.iter().copied().for_each(cut);
    for server in servers {
        server.freeze();
    }
    let begun = Instant::now();
    drop(guards);
    let took = begun.elapsed();
    for server in servers {
        server.thaw();
    }
    assert!(took < loosely(AT_MOST), "{kind}: {took:?}");
}

/// Checks guards of each kind; `tag` is part of their names, and places them on `server` if that is a node of a
/// cluster.
fn wait_for_nothing(config: &Config, server: &Server, cut: Cut, tag: &str) {
    let (client, other) = (
        Client::open(patient(config.clone())).unwrap(),
        Client::open(patient(config.clone())).unwrap(),
    );
    for (kind, take, take_alone) in KINDS {
        let names: Vec<_> = (0..GUARDS).map(|n| format!("{kind}:{n}:{tag}")).collect();
        let guards = names.iter().map(|name| take(&client, name).unwrap());
        drop_frozen(&[server], cut, kind, guards.collect());
        eventually(kind, || {
            names.iter().all(|name| take_alone(&other, name).is_some())
        });
    }
}

timed!(dropping_a_guard_waits_for_nothing_while_redis_is_frozen);
fn dropping_a_guard_waits_for_nothing_while_redis_is_frozen() {
    let server = Server::start();
    wait_for_nothing(&Config::new(server.url()), &server, CUT, &unique("drop"));
}

timed!(nor_in_a_cluster);
fn nor_in_a_cluster() {
    let cluster = Cluster::start_bare();
    let tag = format!("{{{}}}", cluster.name_at(0, "drop"));
    wait_for_nothing(&cluster.config(), &cluster.nodes[0], CUT, &tag);
}

timed!(nor_at_a_master_that_sentinels_name);
fn nor_at_a_master_that_sentinels_name() {
    let deployment = Deployment::start();
    let master = &deployment.servers[deployment.named()];
    // The master wants a password, which `Server::ask` does not send.
    let cut: Cut = |server| {
        let killed: u64 = sentinel::ask(server, &["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(killed > 0);
    };
    wait_for_nothing(&deployment.config(), master, cut, &unique("drop"));
}

timed!(nor_of_several_masters);
fn nor_of_several_masters() {
    let servers = masters(3);
    let open = |server: &Server| Client::open(patient(Config::new(server.url()))).unwrap();
    let clients: Vec<_> = servers.iter().map(open).collect();
    let (name, names) = (unique("drop"), 0..GUARDS);
    let take = |n: usize| {
        let lock = RedLock::new(&clients, format!("{name}:{n}")).unwrap();
        let guard = lock.fixed_lease(LEASE).lock().unwrap();
        all_keep(&guard, servers.len());
        Box::new(guard) as Guard
    };
    let guards = names.map(take).collect();
    drop_frozen(
        &servers.iter().collect::<Vec<_>>(),
        CUT,
        "a majority",
        guards,
    );
    eventually("all are free at all masters", || {
        servers
            .iter()
            .all(|server| server.keys_but_requests().is_empty())
    });
}

timed!(a_drop_over_a_connection_that_has_ended_is_sent_over_the_next);
fn a_drop_over_a_connection_that_has_ended_is_sent_over_the_next() {
    let server = Server::start();
    let client = Client::open(patient(Config::new(server.url()))).unwrap();
    for (kind, take, _) in KINDS {
        let guard = take(&client, kind).unwrap();
        let other = Client::open(server.url()).unwrap();
        assert!(server.kill_clients_named("link") > 0);
        drop(guard);
        eventually(kind, || take(&other, kind).is_some());
    }
}
