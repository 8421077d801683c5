//! A master, its replicas, and the Sentinels that watch them.

use std::cell::RefCell;
use std::time::Duration;

use super::acl::{DEPLOYMENTS, acl_line};
use super::{GENEROUS, Proxy, SENTINEL, Server, clients_named, eventually, is_redis_6, ms, within};

/// The name of the master at the Sentinels.
pub(crate) const SERVICE: &str = "lock service";

/// How long a master has to be silent before it is replaced.
pub(crate) const DOWN_AFTER: Duration = ms(700);

/// The login of clients at the Sentinels, with exactly the rights that the guide gives; the servers have another
/// password.
const SENTINEL_LOGIN: [&str; 2] = ["watcher", "s3nt/nel"];

/// The password of the servers.
pub(crate) const PASSWORD: &str = "se:cret";

/// A master, two replicas and three Sentinels, all with passwords.
pub(crate) struct Deployment {
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
}

impl Deployment {
    pub(crate) fn start() -> Self {
        Self::of(Server::start_with)
    }

    /// Starts a deployment with a proxy in front of each server; Sentinels and clients reach the servers only through
    /// the proxies.
    pub(crate) fn start_behind_proxies() -> (Self, Vec<Proxy>) {
        let proxies = RefCell::new(Vec::new());
        let deployment = Self::of(|args| {
            if args.contains(&SENTINEL) {
                return Server::start_with(args);
            }
            let (server, proxy) = Server::start_behind_proxy(args);
            proxies.borrow_mut().push(proxy);
            server
        });
        (deployment, proxies.into_inner())
    }

    /// Starts a deployment in which every connection uses TLS, including replication.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls() -> Self {
        let identity = super::authority().issue(&["127.0.0.1"]);
        Self::of(|args| {
            Server::start_tls(&identity, &[args, &["--tls-replication", "yes"]].concat())
        })
    }

    fn of(start: impl Fn(&[&str]) -> Server) -> Self {
        let common = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
        let servers: Vec<_> = (0..3)
            .map(|_| start(&[&common[..], &["--repl-diskless-sync-delay", "0"]].concat()))
            .collect();
        let port = port_of(&servers[0]).to_string();
        for replica in &servers[1..] {
            let () = ask(replica, &["REPLICAOF", "127.0.0.1", &port]);
        }
        eventually("the replicas follow the master", || {
            servers[1..].iter().all(|replica| {
                ask::<String>(replica, &["INFO", "replication"]).contains("master_link_status:up")
            })
        });
        let sentinels: Vec<_> = (0..3).map(|_| start(&[SENTINEL])).collect();
        for sentinel in &sentinels {
            let set = |option: &str, value: &str| {
                let () = sentinel.ask(&["SENTINEL", "SET", SERVICE, option, value]);
            };
            let () = sentinel.ask(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "2"]);
            set("auth-pass", PASSWORD);
            set(
                "down-after-milliseconds",
                &DOWN_AFTER.as_millis().to_string(),
            );
            set("failover-timeout", "3000");
        }
        let knows = |sentinel: &Server, subcommand: &str, n: usize| {
            let list: Vec<redis::Value> = sentinel.ask(&["SENTINEL", subcommand, SERVICE]);
            list.len() == n
        };
        for sentinel in &sentinels {
            // A Sentinel that asked a server too early asks again only after 10 s, so allow more than that.
            let know_each_other = within(3 * GENEROUS, || {
                knows(sentinel, "REPLICAS", 2) && knows(sentinel, "SENTINELS", 2)
            });
            assert!(know_each_other, "{}", sentinel.log());
        }
        for sentinel in &sentinels {
            let [user, password] = SENTINEL_LOGIN;
            let () = sentinel.ask(&acl_line(DEPLOYMENTS, user));
            let password = format!(">{password}");
            let () = sentinel.ask(&["ACL", "SETUSER", user, "resetpass", &password]);
        }
        Self { servers, sentinels }
    }

    /// The URL that lists the Sentinels with these ports, in this order.
    pub(crate) fn url_of(sentinels: &[u16]) -> String {
        let addresses: Vec<_> = sentinels
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let [user, password] = SENTINEL_LOGIN;
        format!(
            "redis+sentinel://:{PASSWORD}@{}/{}?sentinel_user={user}&sentinel_password={}",
            addresses.join(","),
            SERVICE.replace(' ', "%20"),
            password.replace('/', "%2F"),
        )
    }

    /// The URL that lists all Sentinels.
    pub(crate) fn url(&self) -> String {
        let sentinels = self.sentinels.iter();
        let ports: Vec<_> = sentinels.map(|proxy| proxy.client_addr().port()).collect();
        Self::url_of(&ports)
    }

    /// Makes the Sentinels replace the healthy master and soon turn it into a replica. Returns once the Sentinels name
    /// the successor.
    pub(crate) fn fail_over(&self) {
        self.promote();
        for sentinel in &self.sentinels {
            // A Sentinel demotes the old master after four publish periods and its next `INFO` of it, so shorten both.
            for (period, ms) in [("PUBLISH-PERIOD", "400"), ("INFO-PERIOD", "500")] {
                let set = sentinel.try_ask::<()>(&["SENTINEL", "DEBUG", period, ms]);
                assert!(set.is_ok() || is_redis_6());
            }
        }
    }

    /// Makes the Sentinels replace the healthy master, which stays a master for about 10 s. Returns the number of the
    /// successor, once the Sentinels name it.
    pub(crate) fn promote(&self) -> usize {
        let mut old = 0;
        // The Sentinels may be replacing the master already, since a busy machine makes it look dead.
        eventually("a failover begins", || {
            old = self.named();
            let begun = self.sentinels[0].try_ask::<()>(&["SENTINEL", "FAILOVER", SERVICE]);
            begun.is_ok()
        });
        self.wait_for_successor(old)
    }

    /// Waits until the server that the Sentinels name is a master and all others are replicas.
    pub(crate) fn agree(&self) {
        let has_its_role = |at: usize| {
            // Ask for the name each time, since the Sentinel itself may change its mind last.
            let expected = match self.named() == at {
                true => "role:master",
                false => "role:slave",
            };
            let says = try_ask::<String>(&self.servers[at], &["INFO", "replication"]);
            says.is_ok_and(|says| says.contains(expected))
        };
        let agree = within(3 * GENEROUS, || (0..self.servers.len()).all(has_its_role));
        assert!(agree, "all follow {:?}", self.servers[self.named()]);
    }

    /// Waits until every server has these keys.
    pub(crate) fn copied(&self, keys: &[&str]) {
        let exists = [&["EXISTS"], keys].concat();
        eventually("the keys are copied", || {
            let mut servers = self.servers.iter();
            servers.all(|server| ask::<usize>(server, &exists) == keys.len())
        });
    }

    /// The number of the server that the Sentinels name as the master.
    pub(crate) fn named(&self) -> usize {
        let (_, port): (String, u16) =
            self.sentinels[0].ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let is_it = |server: &Server| port_of(server) == port;
        self.servers.iter().position(is_it).expect("one of ours")
    }

    /// Waits until a server other than `old` is the master and the Sentinels name it; returns its number.
    pub(crate) fn wait_for_successor(&self, old: usize) -> usize {
        let mut new = old;
        eventually("another server is the master", || {
            new = self.named();
            new != old && self.is_master(new)
        });
        new
    }

    /// Ends the replication from `master` without making any replica a master.
    pub(crate) fn stop_copying(&self, master: usize) {
        for (at, server) in self.servers.iter().enumerate() {
            if at != master {
                let () = ask(server, &["CONFIG", "SET", "masterauth", "none"]);
            }
        }
        let _: i64 = ask(
            &self.servers[master],
            &["CLIENT", "KILL", "TYPE", "replica"],
        );
        eventually("no replica follows", || {
            ask::<String>(&self.servers[master], &["INFO", "replication"])
                .contains("connected_slaves:0")
        });
    }

    /// The library's connections to one of the servers.
    pub(crate) fn clients_at(&self, server: usize) -> Vec<u64> {
        let list: String = ask(&self.servers[server], &["CLIENT", "LIST"]);
        clients_named(&list, "").map(|client| client.id).collect()
    }

    /// Whether the server reports to be a master. A failed request counts as no, because a demotion ends all
    /// connections.
    pub(crate) fn is_master(&self, server: usize) -> bool {
        let says = try_ask::<String>(&self.servers[server], &["INFO", "replication"]);
        says.is_ok_and(|says| says.contains("role:master"))
    }
}

/// The port under which the Sentinels know `server`.
fn port_of(server: &Server) -> u16 {
    let own_port = server.client_addr().port();
    server.announced_port().unwrap_or(own_port)
}

/// The URL of one of the servers, past its proxy.
pub(crate) fn url_of_server(server: &Server) -> String {
    format!("redis://:{PASSWORD}@127.0.0.1:{}/", server.port())
}

/// Sends a command to one of the servers on a new connection.
#[track_caller]
pub(crate) fn ask<T: redis::FromRedisValue>(server: &Server, command: &[&str]) -> T {
    try_ask(server, command).unwrap_or_else(|err| panic!("{command:?}: {err}"))
}

/// [`ask`] that returns a rejection as an error.
pub(crate) fn try_ask<T: redis::FromRedisValue>(
    server: &Server,
    command: &[&str],
) -> redis::RedisResult<T> {
    let mut connection = super::try_connection_to(&url_of_server(server))?;
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]).query(&mut connection)
}
