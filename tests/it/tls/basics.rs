//! Locking over TLS, and the settings for that.

use redis::ConnectionAddr;
use redlatch::{Client, Config, Error, TlsConfig};

use crate::support::{
    Crew, LONG, Mode, Proxy, Server, Target, authority, eventually, given, loosely, ms, rerun, say,
    scoped, settings, settings_by, subscribed, trusting, unique,
};

/// Checks that this crate has so many connections, all of them encrypted.
#[track_caller]
fn all_are_encrypted(server: &Server, connections: usize) {
    let clients = server.clients_named("");
    let port = format!("laddr={}", server.client_addr());
    assert_eq!(clients.len(), connections, "{clients:?}");
    assert!(
        clients.iter().all(|client| client.line.contains(&port)),
        "{clients:?}"
    );
}

/// A client waits for the lock of another, which renews it, so that all kinds of connections are used.
fn waits_and_renews(server: &Server, open: impl Fn() -> Client) {
    let (holder, client) = (open(), open());
    let name = unique("tls");
    let guard = holder.reentrant_lock(&name).lock().unwrap();
    let mut crew = Crew::new();
    let lock = client.reentrant_lock(&name);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    subscribed(server, 1);
    eventually("it is renewed", || holder.stats().renewals >= 2);
    assert!(guard.is_valid());
    // Two connections for commands, one for renewals, one for messages.
    all_are_encrypted(server, 4);
    guard.unlock().unwrap();
    crew.join();
    assert_eq!(client.stats().missed_messages, 0);
    assert_eq!(
        (client.stats().reconnects, holder.stats().reconnects),
        (0, 0)
    );
    eventually("nothing is left", || server.keys().is_empty());
}

#[test]
fn both_versions_of_tls_are_spoken() {
    let identity = authority().issue(&["127.0.0.1"]);
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = Server::start_tls(&identity, &["--tls-protocols", version]);
        waits_and_renews(&server, || {
            Client::open(settings(&server).lease(loosely(ms(600)))).unwrap()
        });
    }
}

#[test]
fn a_ca_and_a_client_certificate_are_read_from_files() {
    let identity = authority().issue(&["127.0.0.1"]);
    let server = Server::start_tls(&identity, &["--tls-auth-clients", "yes"]);
    let dir = tempfile::tempdir().unwrap();
    let client = authority().issue(&[]);
    let files = client.write_to(dir.path(), &authority().pem());
    waits_and_renews(&server, || {
        let tls = TlsConfig::new()
            .ca_file(&files.ca)
            .client_certificate_files(&files.certificate, &files.key);
        let config = Config::new(server.client_url()).tls(tls);
        Client::open(config.lease(loosely(ms(600)))).unwrap()
    });
    let tls = trusting().client_certificate(client.certificate, client.key);
    let config = Config::new(server.client_url()).tls(tls);
    assert!(Client::open(config).is_ok());
}

#[test]
fn the_server_may_have_another_name_than_the_host() {
    let server = Server::start_tls(&authority().issue(&["redis.internal"]), &[]);
    let open = |name| {
        let tls = trusting().server_name(name);
        Client::open(Config::new(server.client_url()).tls(tls))
    };
    let client = open("redis.internal").unwrap();
    drop(client.mutex(unique("named")).lock().unwrap());
    assert!(open("other.internal").is_err());
    // A host name is resolved, and the certificate is checked for it.
    let server = Server::start_tls(&authority().issue(&["localhost"]), &[]);
    let url = format!("rediss://localhost:{}/", server.client_addr().port());
    assert!(Client::open(Config::new(url).tls(trusting())).is_ok());
}

// The address says whether to use TLS; which certificates to trust is set by `Config::tls`.
#[test]
fn an_address_of_the_redis_crate_may_be_encrypted() {
    let server = Server::start_tls(&authority().issue(&["127.0.0.1"]), &[]);
    let addr = |insecure| ConnectionAddr::TcpTls {
        host: "127.0.0.1".into(),
        port: server.client_addr().port(),
        insecure,
        tls_params: None,
    };
    let config = |insecure| Config::from_connection_info(addr(insecure)).unwrap();
    waits_and_renews(&server, || {
        let config = config(false).tls(trusting());
        Client::open(config.lease(loosely(ms(600)))).unwrap()
    });
    // By default the system's CAs are trusted, which do not include the test's.
    assert!(Client::open(config(false)).is_err());
    for config in [config(true), config(true).tls(trusting())] {
        let err = Client::open(config).unwrap_err();
        assert!(matches!(err, Error::InvalidSetting { .. }), "{err:?}");
        assert!(err.to_string().contains("Config::tls"), "{err}");
    }
}

/// Opens a client in a process whose environment names these roots as the system's, and returns what that prints.
fn with_system_roots(url: &str, roots: &str) -> String {
    let output = rerun(part_that_trusts_the_system, &[url])
        .env("SSL_CERT_FILE", roots)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "part of other tests"]
fn part_that_trusts_the_system() {
    let Some([url]) = given() else { return };
    match Client::open(url) {
        Ok(client) => say(&format!("opened: {}", client.mutex("m").lock().is_ok())),
        Err(err) => say(&format!("refused: {err}")),
    }
}

#[test]
fn without_settings_the_cas_of_the_system_are_trusted() {
    let server = Server::start_tls(&authority().issue(&["127.0.0.1"]), &[]);
    let dir = tempfile::tempdir().unwrap();
    let our_files = authority()
        .issue(&[])
        .write_to(dir.path(), &authority().pem());
    let says = with_system_roots(&server.client_url(), our_files.ca.to_str().unwrap());
    assert!(says.contains("opened: true"), "{says}");
    let says = with_system_roots(&server.client_url(), "/nowhere/at/all.pem");
    assert!(
        says.contains("refused: invalid setting: tls: this system has no root"),
        "{says}"
    );
    assert!(says.contains("`TlsConfig::ca_file`"), "{says}");
}

// The names exceed the socket buffers, so that TLS records are written in pieces.
#[test]
fn commands_larger_than_the_buffers_of_the_sockets_arrive_whole() {
    let server = Server::start_tls(&authority().issue(&["127.0.0.1"]), &[]);
    let proxy = Proxy::before(&server);
    let config = settings_by(&server, proxy.addr())
        .command_timeout(LONG)
        .lease(LONG);
    let client = &Client::open(config).unwrap();
    proxy.set(Target::All, Mode::Slow(ms(2)));
    let long = "x".repeat(16_000);
    let name = unique("large");
    scoped(|scope| {
        for n in 0..4 {
            let (name, long) = (&name, &long);
            scope.spawn(move || {
                let names: Vec<_> = (0..200).map(|m| format!("{name}:{n}:{m}:{long}")).collect();
                let guard = client.multi_lock(&names).lock().unwrap();
                guard.unlock().unwrap();
            });
        }
    });
    assert_eq!(client.stats().reconnects, 0);
    proxy.pass();
    eventually("nothing is left", || server.keys().is_empty());
}
