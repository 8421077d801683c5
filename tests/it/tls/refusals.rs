//! The error when an encrypted connection cannot be made: the reason, the address, and what to do.

use std::io::{Read, Write};
use std::time::Duration;

use rcgen::date_time_ymd;
use redlatch::{Client, Config, Error, TlsConfig};

use crate::support::{
    Authority, Identity, Server, authority, config, eventually, logs, ms, scoped, trusting, unique,
};

/// Much longer than any test, so that a test of an error that is not final would time out.
const PATIENT: Duration = Duration::from_secs(3000);

fn identity() -> Identity {
    authority().issue(&["127.0.0.1"])
}

/// Returns the text of the error, which has to be final and name the address.
#[track_caller]
fn refused(config: Config) -> String {
    let config = config.connect_timeout(PATIENT);
    match Client::open(config) {
        Err(err @ Error::Redis { .. }) => {
            assert!(!err.is_retryable(), "{err}");
            assert!(err.to_string().contains("127.0.0.1:"), "{err}");
            err.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused_over(server: &Server, tls: TlsConfig) -> String {
    refused(Config::new(server.client_url()).tls(tls))
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_certificate_by_another_ca() {
    let server = Server::start_tls(&Authority::new("others").issue(&["127.0.0.1"]), &[]);
    says(
        &refused_over(&server, trusting()),
        &[
            "cannot connect to redis at",
            "not signed by the CA",
            "`TlsConfig::ca_file`",
        ],
    );
    // The name of the CA does not matter.
    let server = Server::start_tls(&Authority::new("tests").issue(&["127.0.0.1"]), &[]);
    says(
        &refused_over(&server, trusting()),
        &["not signed by the CA"],
    );
}

#[test]
fn a_certificate_that_is_not_valid_now() {
    for (from, until, said) in [
        (2001, 2002, "certificate expired"),
        (2090, 2091, "becomes valid in"),
    ] {
        let identity = authority().issue_with(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(until, 1, 1);
        });
        let server = Server::start_tls(&identity, &[]);
        says(&refused_over(&server, trusting()), &[said, " days"]);
    }
}

#[test]
fn a_certificate_for_another_name() {
    let server = Server::start_tls(&authority().issue(&["a.example", "10.1.2.3"]), &[]);
    says(
        &refused_over(&server, trusting()),
        &[
            "is for a.example, 10.1.2.3 and not for 127.0.0.1",
            "`TlsConfig::server_name`",
        ],
    );
    says(
        &refused_over(&server, trusting().server_name("b.example")),
        &["and not for b.example"],
    );
}

#[test]
fn a_certificate_that_a_ca_made_for_itself() {
    let identity = Identity::self_made(&["127.0.0.1"]);
    let server = Server::start_tls(&identity, &[]);
    let tls = TlsConfig::new().ca_pem(identity.certificate);
    says(&refused_over(&server, tls), &["CA:TRUE"]);
}

#[test]
fn a_client_certificate_that_is_missing_or_unknown() {
    let stranger = Authority::new("others").issue(&[]);
    for version in ["TLSv1.2", "TLSv1.3"] {
        let args = ["--tls-auth-clients", "yes", "--tls-protocols", version];
        let server = Server::start_tls(&identity(), &args);
        let text = refused_over(&server, trusting());
        says(
            &text,
            &["client certificate", "`TlsConfig::client_certificate`"],
        );
        let tls = trusting().client_certificate(stranger.certificate.clone(), stranger.key.clone());
        says(
            &refused_over(&server, tls),
            &["rejected the client certificate"],
        );
    }
}

#[test]
fn a_server_that_does_not_speak_tls() {
    // A server without TLS takes the handshake for the beginning of a command.
    let server = Server::start();
    let url = format!("rediss://{}/", server.addr());
    let config = config(&url).tls(trusting()).connect_timeout(ms(200));
    let text = Client::open(config).unwrap_err().to_string();
    says(&text, &["127.0.0.1:", "does not speak TLS", "use redis://"]);
    // Other servers reply with an error in plain text.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    scoped(|scope| {
        scope.spawn(|| {
            let (mut client, _) = listener.accept().unwrap();
            client
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
            client.read_to_end(&mut Vec::new()).ok();
        });
        let config = Config::new(format!("rediss://{addr}/")).tls(trusting());
        says(&refused(config), &["does not speak TLS", "use redis://"]);
    });
}

#[test]
fn a_server_that_speaks_tls_alone() {
    let server = Server::start_tls(&identity(), &[]);
    let url = format!("redis://{}/", server.client_addr());
    let err = Client::open(url).unwrap_err();
    says(
        &err.to_string(),
        &["127.0.0.1:", "if it speaks TLS, use rediss://"],
    );
}

#[test]
fn a_server_that_is_silent() {
    let server = Server::start_tls(&identity(), &[]);
    server.freeze();
    let config = config(&server.client_url()).tls(trusting());
    let err = Client::open(config.connect_timeout(ms(200))).unwrap_err();
    server.thaw();
    assert!(err.is_retryable());
    says(&err.to_string(), &["TLS handshake in time"]);
}

#[test]
fn settings_that_cannot_work() {
    let refusal = |config| match Client::open(config) {
        Err(Error::InvalidSetting { reason: what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let reason = refusal(Config::new("redis://127.0.0.1:1/").tls(trusting()));
    says(&reason, &["tls: ", "`rediss`"]);
    let nowhere = TlsConfig::new().ca_file("/nowhere/ca.pem");
    let reason = refusal(Config::new("rediss://127.0.0.1:1/").tls(nowhere));
    says(&reason, &["tls: CA: cannot read /nowhere/ca.pem"]);
}

// The server restarts with another certificate while a client is open.
#[test]
fn a_server_that_comes_back_with_another_certificate() {
    let logs = logs();
    let mut server = Server::start_tls(&identity(), &[]);
    let config = config(&server.client_url()).tls(trusting());
    let client = Client::open(config.command_timeout(PATIENT));
    let client = client.unwrap();
    let name = unique("back");
    client.mutex(&name).lock().unwrap().unlock().unwrap();
    server.become_known_as(&authority().issue(&["other.example"]));
    server.restart();
    // The error is returned at once, not after the `command_timeout`.
    let err = client.mutex(&name).lock().unwrap_err();
    says(&err.to_string(), &["other.example and not for 127.0.0.1"]);
    assert!(!err.is_retryable());
    let address = server.client_addr().to_string();
    eventually("it is logged with the address", || {
        let about = logs.about(&address);
        about.iter().any(|(_, text)| text.contains("other.example"))
    });
    server.become_known_as(&identity());
    server.restart();
    // The error is returned until the next attempt to connect, which is due after a second.
    eventually("the client is let in", || {
        client.mutex(&name).lock().is_ok()
    });
}
