//! Which servers the clients of one lock talk to: two addresses may belong to one server, and a server may be down when
//! it is asked.

use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, Lock, MultiLock, RedLock};

use crate::support::multi_lock::{left, open};
use crate::support::quorum::{masters, nothing_is_left, open as open_all, take, take_from_all};
use crate::support::{
    LONG, Mode, Proxy, Server, Target, eventually, hold_by_stranger, loosely, ms, timed, unique,
};

const RESPONSE: Duration = ms(800);

fn quick(url: &str) -> Client {
    let config = Config::new(url).lease(LONG).command_timeout(RESPONSE);
    Client::open(config.connect_timeout(RESPONSE)).unwrap()
}

#[track_caller]
fn is_config<T: std::fmt::Debug>(verdict: &redlatch::Result<T>) {
    assert!(
        matches!(verdict, Err(Error::InvalidSetting { .. })),
        "{verdict:?}"
    );
}

/// A client that has lost the connection to its server.
fn cut_off(proxy: &Proxy) -> Client {
    let client = quick(&proxy.url());
    proxy.set(Target::All, Mode::Refuse);
    proxy.cut(Target::All);
    client
}

// ---------------------------------------------------------------------------------------------------------------------
// RedLock
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_red_lock_is_made_while_some_masters_are_down);
fn a_red_lock_is_made_while_some_masters_are_down() {
    let mut servers = masters(5);
    let clients: Vec<_> = servers.iter().map(|server| quick(&server.url())).collect();
    servers[4].kill();
    let lock = RedLock::new(&clients, unique("down")).unwrap();
    drop(take(&lock));
    // Several unreachable masters cost no more time than one.
    servers[3].kill();
    servers[2].freeze();
    let name = unique("down");
    let begun = Instant::now();
    let lock = RedLock::new(&clients, &name).unwrap();
    assert!(
        begun.elapsed() < loosely(2 * RESPONSE),
        "{:?}",
        begun.elapsed()
    );
    assert!(matches!(lock.try_lock(), Err(Error::NoQuorum { .. })));
    servers[2].thaw();
    let guard = take(&lock);
    servers[3].restart();
    servers[4].restart();
    guard.unlock().unwrap();
    let guard = take_from_all(&lock, 5);
    guard.unlock().unwrap();
    nothing_is_left(&servers);
    // The settings are checked even while masters are down.
    is_config(&RedLock::new(
        [&clients[0], &clients[1], &clients[0]],
        &name,
    ));
}

timed!(a_master_that_turns_out_to_be_another_one_is_told_at_the_next_lock);
fn a_master_that_turns_out_to_be_another_one_is_told_at_the_next_lock() {
    let servers = masters(3);
    let clients = open_all(&servers);
    let proxy = Proxy::start(servers[1].addr());
    let twin = cut_off(&proxy);
    let lock = RedLock::new(clients.iter().chain([&twin]), unique("twin")).unwrap();
    drop(take(&lock));
    proxy.pass();
    eventually(
        "the duplicate is detected",
        || matches!(lock.try_lock(), Err(Error::InvalidSetting { reason: what, .. }) if what.contains("clients 1 and 3")),
    );
    is_config(&lock.lock());
    is_config(&lock.try_lock_for(LONG));
    is_config(&RedLock::new(clients.iter().chain([&twin]), "twin"));
    nothing_is_left(&servers);
}

timed!(a_master_that_turns_out_to_be_a_replica_takes_no_part);
fn a_master_that_turns_out_to_be_a_replica_takes_no_part() {
    let servers = masters(4);
    let clients = open_all(&servers[..3]);
    let proxy = Proxy::start(servers[3].addr());
    let fourth = cut_off(&proxy);
    let lock = RedLock::new(clients.iter().chain([&fourth]), unique("replica")).unwrap();
    servers[3].cli(&["REPLICAOF", "127.0.0.1", &servers[0].port().to_string()]);
    proxy.pass();
    eventually("the fourth client is connected", || {
        drop(take(&lock));
        proxy.connections(Target::Link) > 0
    });
    for _ in 0..3 {
        let guard = take(&lock);
        assert_eq!(guard.nodes_held(), 3);
        guard.unlock().unwrap();
    }
    let fourth = Client::open(Config::new(servers[3].url()).lazy()).unwrap();
    is_config(&RedLock::new(clients.iter().chain([&fourth]), "replica"));
    // As a master again, the fourth server takes part.
    servers[3].cli(&["REPLICAOF", "NO", "ONE"]);
    let guard = take_from_all(&lock, 4);
    drop(guard);
    nothing_is_left(&servers);
}

// ---------------------------------------------------------------------------------------------------------------------
// MultiLock
// ---------------------------------------------------------------------------------------------------------------------

/// The number of commands that these clients have sent.
fn sent(clients: &[&Client]) -> u64 {
    clients.iter().map(|client| client.stats().commands).sum()
}

fn both(one: &Client, other: &Client, name: &str) -> MultiLock {
    let member = |client: &Client| Box::new(client.mutex(name)) as Box<dyn Lock>;
    MultiLock::new(vec![member(one), member(other)])
}

#[test]
fn a_lock_and_the_same_by_another_address_are_no_two_members() {
    let mut server = Server::start();
    let (tcp, unix) = (open(&server.url()), open(&server.unix_url()));
    let name = unique("alias");
    for lock in [both(&tcp, &unix, &name), both(&unix, &tcp, &name)] {
        is_config(&lock.try_lock());
        is_config(&lock.try_lock_for(ms(50)));
        is_config(&lock.lock());
    }
    left(&server, &[]);
    assert_eq!(server.calls("evalsha"), 0);
    // Other databases and other names are other locks.
    let second = open(&format!("{}1", server.url()));
    drop(both(&second, &unix, &name).lock().unwrap());
    let names = ["a", "b"].map(unique);
    let apart = MultiLock::new(vec![
        Box::new(tcp.mutex(&names[0])),
        Box::new(unix.mutex(&names[1])),
    ]);
    let sent_before = sent(&[&tcp, &unix]);
    let guard = apart.lock().unwrap();
    // Different names need no question about the servers.
    assert_eq!(sent(&[&tcp, &unix]), sent_before + 2);
    drop(guard);
    // The restarted server has a new id. A client that connected before the restart must learn it, so that both
    // addresses count as one server.
    server.restart();
    let later = open(&server.url());
    let lock = both(&unix, &later, &name);
    eventually("the client is connected again", || match lock.try_lock() {
        Err(Error::InvalidSetting { .. }) => true,
        Err(err) => {
            assert!(err.is_retryable(), "{err}");
            false
        }
        Ok(guard) => guard.is_some(),
    });
    is_config(&lock.try_lock());
    left(&server, &[]);
}

#[test]
fn different_servers_are_asked_once_who_they_are() {
    let servers = masters(2);
    let clients = open_all(&servers);
    let (name, both_of) = (unique("asked"), [&clients[0], &clients[1]]);
    // Load the scripts first, so that only the question about the servers is counted.
    for client in both_of {
        drop(client.mutex(&name).lock().unwrap());
    }
    let rounds = [(); 3].map(|()| {
        let sent_before = sent(&both_of);
        let guard = both(&clients[0], &clients[1], &name).lock().unwrap();
        let after = sent(&both_of);
        guard.unlock().unwrap();
        after - sent_before
    });
    assert_eq!(rounds, [4, 2, 2]);
    nothing_is_left(&servers);
}

timed!(whether_two_members_are_one_is_found_out_when_the_address_answers);
fn whether_two_members_are_one_is_found_out_when_the_address_answers() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (direct, indirect) = (quick(&server.url()), cut_off(&proxy));
    let name = unique("later");
    let lock = both(&direct, &indirect, &name);
    let away = lock.try_lock();
    assert!(matches!(away, Err(Error::Members { .. })), "{away:?}");
    // A stranger holds the lock, so the call has to wait and can detect the duplicate meanwhile.
    hold_by_stranger(&server, &name, 60_000);
    proxy.pass();
    let begun = Instant::now();
    let found = lock.try_lock_for(LONG);
    assert!(
        matches!(found, Err(Error::InvalidSetting { .. })),
        "{found:?}"
    );
    assert!(begun.elapsed() < loosely(LONG));
    left(&server, &[&name]);
}
