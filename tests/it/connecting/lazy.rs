//! Clients that are opened while their server is unreachable.

use redlatch::{Client, Config, Error, RedLock};

use crate::support::quorum::{LEASE, masters, open_with, red, take, take_from_all};
use crate::support::{
    Crew, LONG, RESPONSE, Server, config, eventually, fails, free_port, in_time, loosely, ms,
    timed, unique,
};

timed!(a_client_may_be_opened_before_its_server_is_there);
fn a_client_may_be_opened_before_its_server_is_there() {
    let mut server = Server::start_with(&[]);
    let open = || Client::open(config(&server.url()).lazy()).unwrap();
    let idle = open();
    assert!(server.clients_named("").is_empty());
    let name = unique("lazy");
    // The first call connects.
    idle.mutex(&name).lock().unwrap().unlock().unwrap();
    assert_eq!(server.clients_named("link").len(), 1);
    assert_eq!(idle.stats().reconnects, 0);

    server.kill();
    let url = server.url();
    let client = in_time("opening", ms(0), || Client::open(config(&url).lazy())).unwrap();
    fails("locking", RESPONSE, || client.mutex(&name).lock());
    let err = client.mutex(&name).is_locked().unwrap_err();
    assert!(err.is_retryable() && err.to_string().contains(&server.addr().to_string()));
    let patient = Client::open(Config::new(&url).command_timeout(LONG).lazy()).unwrap();
    let mut crew = Crew::new();
    let lock = patient.mutex(&name);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    crew.all_parked();
    server.restart();
    crew.join();
    let guard = client.mutex(&name).lock().unwrap();
    eventually("it is renewed", || client.stats().renewals > 0);
    guard.unlock().unwrap();
    // A client that was never used can be closed.
    Client::open(config(&url).lazy())
        .unwrap()
        .close(ms(100))
        .unwrap();
}

#[test]
fn what_open_would_have_said_the_first_call_says() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let url = server.url().replace("redis://", "redis://:wrong@");
    let client = Client::open(config(&url).lazy()).unwrap();
    let err = client.mutex("m").lock().unwrap_err();
    assert!(
        err.to_string().contains("WRONGPASS") && !err.is_retryable(),
        "{err}"
    );
    let bad = Client::open(config("redis://127.0.0.1/").lease(ms(1)).lazy());
    assert!(matches!(bad, Err(Error::InvalidSetting { .. })));
    assert!(Client::open(Config::new(format!("redis://127.0.0.1:{}", free_port()))).is_err());
}

timed!(a_quorum_needs_no_more_than_a_majority_at_the_start);
fn a_quorum_needs_no_more_than_a_majority_at_the_start() {
    let mut servers = masters(5);
    servers[3].kill();
    let clients = open_with(&servers, |config| config.lease(LEASE).lazy());
    let name = unique("lazy");
    let lock: RedLock = red(&clients, &name);
    let guard = take(&lock);
    assert!((3..=4).contains(&guard.nodes_held()));
    servers[3].restart();
    // The restarted server takes part in the next grant.
    guard.unlock().unwrap();
    let guard = take_from_all(&lock, 5);
    let until = guard.valid_until();
    eventually("it is renewed", || guard.valid_until() > until);
    guard.unlock().unwrap();
    let again = lock.try_lock_for(loosely(ms(2_000))).unwrap().unwrap();
    assert!(again.is_valid());
}
