//! Sentinels and masters that speak TLS: the certificates of both are checked.

use redlatch::{Client, Config, Error};

use crate::support::{Identity, SENTINEL, Server, authority, is_waited_for, ms, trusting, unique};

/// A master and a Sentinel that both speak TLS, and the URL.
fn deployment(master: &Identity) -> (Server, Server, String) {
    let server = Server::start_tls(master, &[]);
    let identity = authority().issue(&["127.0.0.1"]);
    let sentinel = Server::start_tls(&identity, &[SENTINEL]);
    let port = server.client_addr().port().to_string();
    let () = sentinel.ask(&["SENTINEL", "MONITOR", "locks", "127.0.0.1", &port, "2"]);
    let url = format!("rediss+sentinel://{}/locks", sentinel.client_addr());
    (server, sentinel, url)
}

#[test]
fn the_master_is_found_and_used_over_tls() {
    let (server, _sentinel, url) = deployment(&authority().issue(&["127.0.0.1"]));
    let open = || Client::open(Config::new(&url).tls(trusting())).unwrap();
    is_waited_for(&open(), &open(), &unique("service"), ms(30));
    let port = format!("laddr={}", server.client_addr());
    let client = open();
    drop(client.mutex(unique("name")).lock().unwrap());
    let our_clients = server.clients_named("");
    assert!(!our_clients.is_empty());
    assert!(
        our_clients.iter().all(|client| client.line.contains(&port)),
        "{our_clients:?}"
    );
}

#[test]
fn a_master_that_cannot_prove_who_it_is_is_refused_for_good() {
    let (server, _sentinel, url) = deployment(&authority().issue(&["other.example"]));
    let err = Client::open(Config::new(&url).tls(trusting())).unwrap_err();
    assert!(matches!(err, Error::Redis { .. }) && !err.is_retryable());
    let said = err.to_string();
    assert!(
        said.contains("other.example and not for 127.0.0.1"),
        "{said}"
    );
    assert!(said.contains(&server.client_addr().to_string()), "{said}");
}
