//! A master, its replicas, and the Sentinels that watch them.

use std::cell::RefCell;
use std::time::Duration;

use super::acl::{DEPLOYMENTS, acl_line};
use super::{GENEROUS, Proxy, SENTINEL, Server, clients_named, eventually, is_redis_6, ms, within};

/// What the Sentinels call them.
pub(crate) const SERVICE: &str = "lock service";

/// How long a master has to be silent before it is replaced.
pub(crate) const DOWN_AFTER: Duration = ms(700);

/// Who the clients are at the Sentinels, with no more rights than the guide gives; the servers have another password.
const SENTINEL_LOGIN: [&str; 2] = ["watcher", "s3nt/nel"];
const PASSWORD: &str = "se:cret";

/// One master at first, two replicas, and three Sentinels. All of them want passwords.
pub(crate) struct Deployment {
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
}

impl Deployment {
    pub(crate) fn start() -> Self {
        Self::of(Server::start_with)
    }

    /// The same, but everybody finds the servers by way of proxies, one in front of each.
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

    /// All of them speak TLS, also among themselves.
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
        eventually("they follow", || {
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
        let knows = |sentinel: &Server, what: &str, n: usize| {
            let list: Vec<redis::Value> = sentinel.ask(&["SENTINEL", what, SERVICE]);
            list.len() == n
        };
        for sentinel in &sentinels {
            // One that has asked a server too early asks it again after 10 s.
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

    /// The URL that names these Sentinels, in this order.
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

    /// The same with all of them.
    pub(crate) fn url(&self) -> String {
        let sentinels = self.sentinels.iter();
        let ports: Vec<_> = sentinels.map(|its| its.client_addr().port()).collect();
        Self::url_of(&ports)
    }

    /// The Sentinels replace the master by another, although it is well, and soon have it follow that. Returns when clients
    /// that ask find the other.
    pub(crate) fn fail_over(&self) {
        self.promote();
        for sentinel in &self.sentinels {
            // They wait for four of the first before they contradict the old master, and until they look at it again.
            for (period, ms) in [("PUBLISH-PERIOD", "400"), ("INFO-PERIOD", "500")] {
                let set = sentinel.try_ask::<()>(&["SENTINEL", "DEBUG", period, ms]);
                assert!(set.is_ok() || is_redis_6());
            }
        }
    }

    /// The Sentinels replace the master by another and leave it a master for about 10 s. Returns when clients that ask find
    /// the other: which that is.
    pub(crate) fn promote(&self) -> usize {
        let old = self.named();
        let () = self.sentinels[0].ask(&["SENTINEL", "FAILOVER", SERVICE]);
        self.wait_for_successor(old)
    }

    /// Waits until all others follow the one that is named the master.
    pub(crate) fn agree(&self) {
        let has_its_role = |at: usize| {
            // A Sentinel may be the last one to know.
            let its = match self.named() == at {
                true => "role:master",
                false => "role:slave",
            };
            let says = try_ask::<String>(&self.servers[at], &["INFO", "replication"]);
            says.is_ok_and(|says| says.contains(its))
        };
        let agree = within(3 * GENEROUS, || (0..self.servers.len()).all(has_its_role));
        assert!(agree, "all follow {:?}", self.servers[self.named()]);
    }

    /// Waits until every server has these keys.
    pub(crate) fn copied(&self, keys: &[&str]) {
        let exists = [&["EXISTS"], keys].concat();
        eventually("they are copied", || {
            let mut servers = self.servers.iter();
            servers.all(|server| ask::<usize>(server, &exists) == keys.len())
        });
    }

    /// Which of the servers the Sentinels call the master.
    pub(crate) fn named(&self) -> usize {
        let (_, port): (String, u16) =
            self.sentinels[0].ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let is_it = |server: &Server| port_of(server) == port;
        self.servers.iter().position(is_it).expect("one of ours")
    }

    /// Waits until another server than `old` is a master and is named so; returns which.
    pub(crate) fn wait_for_successor(&self, old: usize) -> usize {
        let mut new = old;
        eventually("another is master", || {
            new = self.named();
            new != old && self.is_master(new)
        });
        new
    }

    /// Has the replicas of `master` follow it no longer, without anybody replacing it.
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
        eventually("nobody follows", || {
            ask::<String>(&self.servers[master], &["INFO", "replication"])
                .contains("connected_slaves:0")
        });
    }

    /// The library's connections to one of the servers.
    pub(crate) fn clients_at(&self, server: usize) -> Vec<u64> {
        let list: String = ask(&self.servers[server], &["CLIENT", "LIST"]);
        clients_named(&list, "").map(|client| client.id).collect()
    }

    /// Whether it says so; a Sentinel that has it follow another ends all of its connections.
    pub(crate) fn is_master(&self, server: usize) -> bool {
        let says = try_ask::<String>(&self.servers[server], &["INFO", "replication"]);
        says.is_ok_and(|says| says.contains("role:master"))
    }
}

/// By which the Sentinels know it.
fn port_of(server: &Server) -> u16 {
    let own = server.client_addr().port();
    server.announced_port().unwrap_or(own)
}

/// Asks one of the servers, over a connection of its own.
#[track_caller]
pub(crate) fn ask<T: redis::FromRedisValue>(server: &Server, command: &[&str]) -> T {
    try_ask(server, command).unwrap_or_else(|err| panic!("{command:?}: {err}"))
}

/// The same, with the refusal as an error.
pub(crate) fn try_ask<T: redis::FromRedisValue>(
    server: &Server,
    command: &[&str],
) -> redis::RedisResult<T> {
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}/", server.port());
    let mut connection = super::try_connection_to(&url)?;
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]).query(&mut connection)
}
