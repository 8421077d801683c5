//! The servers of a run, one or many, and the operations on them.

use std::thread;
use std::time::Duration;

use redis::{Connection, FromRedisValue, RedisResult, Value};
use redlatch::{Client, Config, Result};
use serde_json::json;

use super::crew::Opens;
use super::kinds::{LOG, name_of_log};
use super::support::cluster::Cluster;
use super::support::sentinel;
use super::support::{Proxy, Server, eventually, ms, within};

/// The kind of deployment that keeps the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A single server, which saves every write before it replies.
    One,
    /// The master that three Sentinels name, with two replicas.
    Sentinel,
    /// A cluster of three masters with one replica each.
    Cluster,
    /// Five servers that know nothing of each other, for a `RedLock`.
    Masters,
}

impl Place {
    /// The deployments by the names that the command line and the history use.
    pub(crate) const ALL: &[(Self, &str, &str)] = &[
        (Self::One, "one", "one"),
        (Self::Sentinel, "sentinel", "sentinel"),
        (Self::Cluster, "cluster", "cluster"),
        (Self::Masters, "masters", "five masters"),
    ];

    pub(crate) fn name(self) -> &'static str {
        let entry = Self::ALL.iter().find(|(place, ..)| *place == self);
        entry.map_or("", |(_, name, _)| name)
    }

    pub(crate) fn in_history(self) -> &'static str {
        let entry = Self::ALL.iter().find(|(place, ..)| *place == self);
        entry.map_or("", |(.., name)| name)
    }

    /// Whether a killed server still has all its data afterwards.
    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Self::One | Self::Masters)
    }
}

/// How the connections of other libraries call themselves, so that proxies can tell them from those of replicas.
const CLIENT_NAME: &str = "redlatch:peer:link";

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

enum Servers {
    Apart(Vec<Server>),
    Watched(sentinel::Deployment),
    Cluster(Cluster),
}

/// A running deployment.
pub(crate) struct Deployed {
    pub(crate) place: Place,
    lease: Duration,
    servers: Servers,
    /// Indexed by worker, then by server. There is one set for all workers together where clients learn the servers'
    /// addresses from other servers.
    pub(crate) proxies: Vec<Vec<Proxy>>,
}

impl Deployed {
    /// `lease` is the longest lease in use.
    pub(crate) fn start(place: Place, workers: usize, lease: Duration) -> Self {
        let apart = |n: usize| {
            let servers = (0..n).map(|_| Server::start_with(&DURABLE));
            Servers::Apart(servers.collect())
        };
        let (servers, shared) = match place {
            Place::One => (apart(1), None),
            Place::Masters => (apart(5), None),
            Place::Sentinel => {
                let (watched, proxies) = sentinel::Deployment::start_behind_proxies();
                (Servers::Watched(watched), Some(proxies))
            }
            Place::Cluster => {
                let mut cluster = Cluster::start_behind_proxies();
                let proxies = std::mem::take(&mut cluster.proxies);
                (Servers::Cluster(cluster), Some(proxies))
            }
        };
        let mut deployed = Self {
            place,
            lease,
            servers,
            proxies: Vec::new(),
        };
        let apart = || deployed.servers().iter().map(Proxy::before).collect();
        deployed.proxies = match shared {
            Some(proxies) => vec![proxies],
            None => (0..workers).map(|_| apart()).collect(),
        };
        deployed.settle();
        deployed
    }

    /// The clients that this worker opens.
    pub(crate) fn opens(&self, worker: usize) -> Opens {
        let urls = match self.place.is_durable() {
            true => self.proxies[worker].iter().map(Proxy::url).collect(),
            false => self.direct_urls(),
        };
        let mut servers = json!({ "urls": urls, "client_name": CLIENT_NAME });
        if let Servers::Watched(watched) = &self.servers {
            let sentinels = watched.sentinels.iter();
            let addresses: Vec<_> = sentinels
                .map(|proxy| proxy.client_addr().to_string())
                .collect();
            servers["sentinel"] = json!({
                "addresses": addresses,
                "service": sentinel::SERVICE,
                "password": sentinel::PASSWORD,
            });
        }
        Opens { urls, servers }
    }

    fn direct_urls(&self) -> Vec<String> {
        match &self.servers {
            Servers::Apart(servers) => servers.iter().map(Server::url).collect(),
            Servers::Watched(watched) => vec![watched.url()],
            Servers::Cluster(cluster) => vec![cluster.url()],
        }
    }

    /// Opens a client that connects to the servers directly, past all proxies.
    pub(crate) fn client(&self) -> Result<Client> {
        Client::open(Config::new(&self.direct_urls()[0]))
    }

    pub(crate) fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::Apart(servers) => servers,
            Servers::Watched(watched) => &watched.servers,
            Servers::Cluster(cluster) => &cluster.nodes,
        }
    }

    pub(crate) fn servers_mut(&mut self) -> &mut [Server] {
        match &mut self.servers {
            Servers::Apart(servers) => servers,
            Servers::Watched(watched) => &mut watched.servers,
            Servers::Cluster(cluster) => &mut cluster.nodes,
        }
    }

    /// Promotes a replica in place of the master of `name`, although that master works.
    pub(crate) fn fail_over(&self, name: &str) {
        match &self.servers {
            Servers::Apart(_) => panic!("nobody takes over {name}"),
            Servers::Watched(watched) => watched.fail_over(),
            Servers::Cluster(cluster) => cluster.fail_over(name),
        }
    }

    /// Moves the slot of `name` to another master.
    pub(crate) fn migrate(&self, name: &str) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.migrate(name, || thread::sleep(ms(100)));
            return;
        }
        panic!("{name} has no slot");
    }

    /// Waits for the expected number of masters, even if some servers are down, and returns the masters.
    pub(crate) fn has_masters(&self) -> Vec<usize> {
        let needed = match self.place {
            Place::Masters => 5,
            _ if self.place.name() == "cluster" => 3,
            _ => 1,
        };
        let mut masters = Vec::new();
        eventually("there are masters", || {
            masters = self.masters();
            masters.len() >= needed
        });
        masters
    }

    /// The servers that answer as masters.
    fn masters(&self) -> Vec<usize> {
        let says = |n: &usize| {
            let says = self.ask::<String>(*n, &["INFO", "replication"]);
            says.is_ok_and(|says| says.contains("role:master"))
        };
        (0..self.servers().len()).filter(says).collect()
    }

    /// The servers that Sentinels watch, for a thread that looks at their roles.
    pub(crate) fn watched(&self) -> Option<Roles> {
        let Servers::Watched(watched) = &self.servers else {
            return None;
        };
        let urls = watched.servers.iter().map(sentinel::url_of_server);
        Some(Roles(urls.map(|url| (url, None)).collect()))
    }

    /// Sends a command to one server, over a new connection.
    pub(crate) fn ask<T: FromRedisValue>(&self, server: usize, command: &[&str]) -> RedisResult<T> {
        match &self.servers {
            Servers::Watched(watched) => sentinel::try_ask(&watched.servers[server], command),
            _ => self.servers()[server].try_ask(command),
        }
    }

    /// The server's uptime in whole seconds.
    fn uptime(&self, server: usize) -> u64 {
        let info = self
            .ask::<String>(server, &["INFO", "server"])
            .unwrap_or_default();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        line.and_then(|seconds| seconds.trim().parse().ok())
            .unwrap_or(0)
    }

    /// All keys of all masters.
    pub(crate) fn keys(&self) -> Vec<String> {
        let of = |n: usize| {
            self.ask::<Vec<String>>(n, &["KEYS", "*"])
                .unwrap_or_default()
        };
        let mut keys: Vec<_> = self.has_masters().into_iter().flat_map(of).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// For each lock name, the entries that holders have written, in the order of the server.
    pub(crate) fn logs(&self) -> Vec<(String, Vec<String>)> {
        let mut logs = Vec::new();
        for n in self.has_masters() {
            let ask = |command: &[&str]| self.ask::<Vec<String>>(n, command).unwrap_or_default();
            for key in ask(&["KEYS", &format!("*{LOG}")]) {
                let name = name_of_log(&key).unwrap_or_default().to_owned();
                logs.push((name, ask(&["LRANGE", &key, "0", "-1"])));
            }
        }
        logs
    }

    /// Ends all faults: every server runs and has its role, and the proxies pass everything.
    pub(crate) fn heal(&mut self) {
        for proxy in self.proxies.iter().flatten() {
            proxy.pass();
        }
        for server in self.servers_mut() {
            if server.is_alive() {
                server.thaw();
            } else {
                server.restart();
            }
        }
        for n in 0..self.servers().len() {
            let is_up = within(ms(10_000), || self.ask::<Value>(n, &["PING"]).is_ok());
            assert!(is_up, "{:?}", self.servers()[n]);
            self.ask::<()>(n, &["CLIENT", "UNPAUSE"]).ok();
        }
        self.settle();
    }

    /// Waits until the servers agree on the role of each, even if some have not yet noticed that one was down.
    pub(crate) fn settle(&self) {
        const NOTICED: Duration = ms(1_500);
        if !self.place.is_durable() {
            thread::sleep(NOTICED);
        }
        match &self.servers {
            Servers::Apart(_) if self.place == Place::Masters => {
                eventually("every master counts", || {
                    (0..self.servers().len()).all(|n| self.uptime(n) > self.lease.as_secs())
                });
            }
            Servers::Apart(_) => {}
            Servers::Watched(watched) => watched.agree(),
            Servers::Cluster(cluster) => {
                cluster.replaces_the_silent();
                cluster.is_whole();
            }
        }
    }
}

/// The roles of several servers: the URL of each, and the connection to it if there is one.
pub(crate) struct Roles(Vec<(String, Option<Connection>)>);

impl Roles {
    /// The servers that answer at once, and as masters.
    pub(crate) fn masters(&mut self) -> Vec<usize> {
        let mut masters = Vec::new();
        for (n, (url, connection)) in self.0.iter_mut().enumerate() {
            let role = role_of(url, connection);
            match role {
                Ok(role) if role.contains("role:master") => masters.push(n),
                Ok(_) => {}
                Err(_) => *connection = None,
            }
        }
        masters
    }
}

fn role_of(url: &str, connection: &mut Option<Connection>) -> RedisResult<String> {
    const AT_ONCE: Duration = ms(100);
    let open = match connection {
        Some(open) => open,
        None => {
            let open = redis::Client::open(url)?.get_connection_with_timeout(AT_ONCE)?;
            open.set_read_timeout(Some(AT_ONCE))?;
            connection.insert(open)
        }
    };
    redis::cmd("INFO").arg("replication").query(open)
}
