//! How clients reach the servers that tests start: the variable `REDIS_DEPLOYMENT`.

use std::cell::Cell;
use std::collections::HashSet;
use std::env;
use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock};

use super::process::locked;
use super::server::{SENTINEL, Server, is_redis_6};
use super::wait::eventually;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// The client connects to the address of the server.
    Single,
    /// The client connects to the address of the server, over TLS.
    Tls,
    /// A Sentinel names the server as the master.
    Sentinel,
    /// The server is the only node of a cluster.
    Cluster,
}

/// Each deployment without TLS that this server can have. A Sentinel that sends no commands of its own is one of Redis 7.
pub(crate) fn deployments() -> impl Iterator<Item = Deployment> {
    use Deployment::{Cluster, Sentinel, Single};
    let all = [Single, Sentinel, Cluster].into_iter();
    all.filter(|deployment| *deployment != Sentinel || !is_redis_6())
}

/// The values that `REDIS_DEPLOYMENT` may have, given the features of this build.
fn choices() -> Vec<(&'static str, Deployment)> {
    let all = [
        ("single", Deployment::Single, true),
        ("tls", Deployment::Tls, cfg!(feature = "tls")),
        ("sentinel", Deployment::Sentinel, true),
        ("cluster", Deployment::Cluster, true),
    ];
    let built = all.into_iter().filter(|(_, _, built)| *built);
    built
        .map(|(name, deployment, _)| (name, deployment))
        .collect()
}

thread_local! {
    /// The deployment of the test that runs on this thread, if the test chooses its own.
    static OF_TEST: Cell<Option<Deployment>> = const { Cell::new(None) };
}

/// The deployment of the servers that this thread starts.
pub(crate) fn deployment() -> Deployment {
    OF_TEST.get().unwrap_or_else(|| {
        let wanted = env::var("REDIS_DEPLOYMENT").unwrap_or_else(|_| "single".to_owned());
        let choices = choices();
        let known = choices.iter().find(|(name, _)| *name == wanted);
        let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        known.map_or_else(
            || {
                panic!(
                    "REDIS_DEPLOYMENT={wanted} is none of {}",
                    names().join(", ")
                )
            },
            |(_, deployment)| *deployment,
        )
    })
}

/// Runs a test without changes, beside [`over_tls`].
pub(crate) fn as_it_is(test: &dyn Fn()) {
    test();
}

/// Runs a test whose clients speak TLS to the servers that it starts.
#[cfg(feature = "tls")]
pub(crate) fn over_tls(test: &dyn Fn()) {
    deployed_as(Deployment::Tls, test);
}

/// Does `work` with servers that are deployed in this way, whatever `REDIS_DEPLOYMENT` is.
pub(crate) fn deployed_as<T>(deployment: Deployment, work: impl FnOnce() -> T) -> T {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            OF_TEST.set(None);
        }
    }
    OF_TEST.set(Some(deployment));
    let _back = Back;
    work()
}

/// The addresses under which the Sentinel monitors one server: its own and those of its proxies.
#[derive(Default)]
pub(super) struct Services(Mutex<HashSet<SocketAddr>>);

impl Services {
    /// The Sentinel's URL for `addr`, an address of `server`.
    pub(super) fn url(&self, server: &Server, addr: SocketAddr) -> String {
        let (sentinel, service) = (sentinel(), service(addr));
        if locked(&self.0).insert(addr) {
            let port = addr.port().to_string();
            let ip = addr.ip().to_string();
            let () = sentinel.ask(&["SENTINEL", "MONITOR", &service, &ip, &port, "1"]);
            // Wait for the Sentinel's first commands: later they would be counted among those of the test.
            eventually("the sentinel has seen the server", || {
                let known: Vec<(String, String)> = sentinel.ask(&["SENTINEL", "MASTER", &service]);
                let is = |field: &str, value: &str| {
                    known
                        .iter()
                        .any(|pair| *pair == (field.to_owned(), value.to_owned()))
                };
                let (_, listens): (String, u64) =
                    server.ask(&["PUBSUB", "NUMSUB", "__sentinel__:hello"]);
                is("flags", "master")
                    && is("link-pending-commands", "0")
                    && !is("runid", "")
                    && listens > 0
            });
        }
        format!("redis+sentinel://{}/{service}", sentinel.addr())
    }

    /// Ends the monitoring of the server.
    pub(super) fn forget(&self) {
        for addr in locked(&self.0).drain() {
            sentinel()
                .try_ask::<()>(&["SENTINEL", "REMOVE", &service(addr)])
                .ok();
        }
    }
}

fn service(addr: SocketAddr) -> String {
    format!("at-{}", addr.port())
}

/// The Sentinel for all servers of this process. After the first contact it sends them no commands, because tests count
/// commands.
fn sentinel() -> &'static Server {
    static ONE: OnceLock<Server> = OnceLock::new();
    ONE.get_or_init(|| {
        assert!(!is_redis_6(), "a Sentinel that is quiet is one of Redis 7");
        let sentinel = Server::start_with(&[SENTINEL]);
        for period in ["PING-PERIOD", "INFO-PERIOD", "PUBLISH-PERIOD"] {
            let () = sentinel.ask(&["SENTINEL", "DEBUG", period, "86400000"]);
        }
        sentinel
    })
}
