//! A server behind a network that a test disturbs.

use std::time::Duration;

use redlatch::{Client, Config};

use crate::support::{Proxy, RESPONSE, Server, in_haste, settings, settings_by, unique};

/// A server with a proxy in front of it, a client behind the proxy, a client with a direct connection, and a name to
/// lock.
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

    /// [`start`](Self::start) with `response` as the command timeout of the client behind the proxy.
    pub(crate) fn with(response: Duration) -> Self {
        let behind = |config| in_haste(config).command_timeout(response);
        Self::of(Server::start(), behind, in_haste)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn encrypted() -> Self {
        let server = Server::start_tls(&crate::support::authority().issue(&["127.0.0.1"]), &[]);
        Self::of(server, in_haste, in_haste)
    }

    pub(crate) fn of(
        server: Server,
        behind: impl Fn(Config) -> Config,
        other: impl Fn(Config) -> Config,
    ) -> Self {
        let proxy = Proxy::before(&server);
        Self {
            client: Client::open(behind(settings_by(&server, proxy.addr()))).unwrap(),
            other: Client::open(other(settings(&server))).unwrap(),
            server,
            proxy,
            name: unique("net"),
        }
    }
}
