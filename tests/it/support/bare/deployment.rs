//! How clients reach the servers that tests start: `REDIS_DEPLOYMENT`.

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
    /// By its own address.
    Single,
    /// The same, encrypted.
    Tls,
    /// As the master that a Sentinel names.
    Sentinel,
    /// As the only node of a cluster.
    Cluster,
}

/// What `REDIS_DEPLOYMENT` may say, as far as it was built.
fn choices() -> Vec<(&'static str, Deployment)> {
    let all = [
        ("single", Deployment::Single, true),
        ("tls", Deployment::Tls, cfg!(feature = "tls")),
        ("sentinel", Deployment::Sentinel, true),
        ("cluster", Deployment::Cluster, true),
    ];
    let built = all.into_iter().filter(|(_, _, built)| *built);
    built.map(|(name, its, _)| (name, its)).collect()
}

thread_local! {
    /// That of the test of this thread, if it is another than that of all.
    static OF_TEST: Cell<Option<Deployment>> = const { Cell::new(None) };
}

/// How clients reach the servers that this thread starts.
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
            |(_, its)| *its,
        )
    })
}

/// Runs a test, with nothing around it.
pub(crate) fn as_it_is(test: &dyn Fn()) {
    test();
}

/// Runs a test whose clients speak TLS to the servers that it starts.
#[cfg(feature = "tls")]
pub(crate) fn over_tls(test: &dyn Fn()) {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            OF_TEST.set(None);
        }
    }
    OF_TEST.set(Some(Deployment::Tls));
    let _back = Back;
    test();
}

/// The addresses of one server that the Sentinel knows: its own, and those of proxies in front of it.
#[derive(Default)]
pub(super) struct Services(Mutex<HashSet<SocketAddr>>);

impl Services {
    /// The URL by which the Sentinel names `addr`, where `server` is reached.
    pub(super) fn url(&self, server: &Server, addr: SocketAddr) -> String {
        let (sentinel, service) = (sentinel(), service(addr));
        if locked(&self.0).insert(addr) {
            let port = addr.port().to_string();
            let ip = addr.ip().to_string();
            let () = sentinel.ask(&["SENTINEL", "MONITOR", &service, &ip, &port, "1"]);
            // Later than this it would be counted with what the test does.
            eventually("the sentinel has seen the server", || {
                let known: Vec<(String, String)> = sentinel.ask(&["SENTINEL", "MASTER", &service]);
                let is = |field: &str, value: &str| {
                    known
                        .iter()
                        .any(|its| *its == (field.to_owned(), value.to_owned()))
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

    /// The Sentinel leaves the server alone.
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

/// One for all servers of this process. It asks them nothing but at first, since tests count commands.
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
