//! A server behind a network that a test spoils.

use std::time::Duration;

use redlatch::{Client, Config};

use crate::support::{Proxy, RESPONSE, Server, config, unique};

/// A server, a proxy in front of it, a client behind the proxy, one that is not, and a name for them to lock.
pub(crate) struct Net {
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
    pub(crate) client: Client,
    pub(crate) other: Client,
    pub(crate) name: String,
}

impl Net {
    pub(crate) fn start() -> Self {
        Self::with(RESPONSE)
    }

    /// Only the client behind the proxy waits `response` for its answers.
    pub(crate) fn with(response: Duration) -> Self {
        let behind = |url: &str| config(url).response_timeout(response);
        Self::of(Server::start(), behind, config)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn encrypted() -> Self {
        let server = Server::start_tls(&crate::support::authority().issue(&["127.0.0.1"]), &[]);
        let config = |url: &str| config(url).tls(crate::support::trusting());
        Self::of(server, config, config)
    }

    pub(crate) fn of(
        server: Server,
        behind: impl Fn(&str) -> Config,
        other: impl Fn(&str) -> Config,
    ) -> Self {
        let proxy = Proxy::start(server.client_addr());
        Self {
            client: Client::open(behind(&server.client_url_at(proxy.addr()))).unwrap(),
            other: Client::open(other(&server.client_url())).unwrap(),
            server,
            proxy,
            name: unique("net"),
        }
    }
}
