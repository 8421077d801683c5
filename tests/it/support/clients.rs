//! Clients with settings for tests, and the losses reported to them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Loss, LossReason};

use crate::support::{Server, ms};

/// The command and connect timeouts of these clients.
pub(crate) const RESPONSE: Duration = ms(400);

/// The lease of these clients, long enough to survive one [`bad_day`](super::bad_day).
pub(crate) const LEASE: Duration = ms(3_000);

/// The waiter lease of these clients.
pub(crate) const WAITER_LEASE: Duration = ms(1_000);

pub(crate) fn config(url: &str) -> Config {
    in_haste(Config::new(url))
}

/// Short timeouts and leases, so that a client soon notices failed commands and lost holds.
pub(crate) fn in_haste(config: Config) -> Config {
    config
        .command_timeout(RESPONSE)
        .connect_timeout(RESPONSE)
        .lease(LEASE)
        .waiter_lease(WAITER_LEASE)
}

/// The settings for a client of `server`, with everything else at its default.
pub(crate) fn settings(server: &Server) -> Config {
    settings_by(server, server.client_addr())
}

/// The settings for a client that reaches `server` at `addr`, for instance through a proxy.
pub(crate) fn settings_by(server: &Server, addr: SocketAddr) -> Config {
    with_url(server, server.client_url_at(addr))
}

/// The settings for a client that logs in with `login` (`user:password@`); `more` is appended to the URL.
pub(crate) fn settings_as(server: &Server, login: &str, more: &str) -> Config {
    let url = server.client_url();
    let (scheme, rest) = url.split_once("//").expect("a URL");
    with_url(server, format!("{scheme}//{login}{rest}{more}"))
}

fn with_url(server: &Server, url: String) -> Config {
    let config = Config::new(url);
    match server.is_tls() {
        #[cfg(feature = "tls")]
        true => config.tls(trusting()),
        _ => config,
    }
}

impl super::sentinel::Deployment {
    pub(crate) fn config(&self) -> Config {
        let url = self.url();
        #[cfg(feature = "tls")]
        if self.servers[0].is_tls() {
            let config = Config::new(url.replacen("redis", "rediss", 1));
            return config.tls(trusting()).lease(ms(1_500));
        }
        Config::new(url).lease(ms(1_500))
    }
}

impl super::cluster::Cluster {
    pub(crate) fn config(&self) -> Config {
        Config::new(self.url())
    }

    pub(crate) fn open(&self) -> Client {
        Client::open(self.config()).expect("a cluster")
    }
}

/// Trusts the CA of the tests.
#[cfg(feature = "tls")]
pub(crate) fn trusting() -> redlatch::TlsConfig {
    redlatch::TlsConfig::new().ca_pem(crate::support::authority().pem())
}

pub(crate) fn client(url: &str) -> Client {
    Client::open(config(url)).unwrap()
}

/// The losses that were reported to a client, and when.
#[derive(Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<Vec<(Instant, Loss)>>>);

impl Losses {
    pub(crate) fn listener(&self) -> impl Fn(&Loss) + Send + Sync + 'static {
        let received = self.clone();
        move |loss| {
            received
                .0
                .lock()
                .unwrap()
                .push((Instant::now(), loss.clone()))
        }
    }

    pub(crate) fn of(&self, name: &str) -> Vec<(Instant, LossReason)> {
        let received = self.0.lock().unwrap();
        received
            .iter()
            .filter(|(_, loss)| loss.name == name)
            .map(|(at, loss)| (*at, loss.reason))
            .collect()
    }

    pub(crate) fn reasons(&self, name: &str) -> Vec<LossReason> {
        self.of(name)
            .into_iter()
            .map(|(_, reason)| reason)
            .collect()
    }
}

pub(crate) fn open(server: &Server) -> Client {
    Client::open(settings(server)).unwrap()
}

/// A client with this lease.
pub(crate) fn open_with_lease(server: &Server, lease: Duration) -> Client {
    Client::open(settings(server).lease(lease)).unwrap()
}
