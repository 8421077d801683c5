//! A real cluster: three masters and a replica of each.

use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use redis::{FromRedisValue, RedisResult, Value};
use redlatch::{Client, Config};

use crate::support::{
    GENEROUS, LONG, Server, eventually, free_port, is_redis_6, locked, ms, within,
};

const MASTERS: usize = 3;

/// How many slots there are.
const SLOTS: usize = 16384;

/// How long a node may be silent before the others elect another.
const NODE_TIMEOUT: &str = "1000";

/// `CLUSTER SLOTS`: for each range the port of its master, and those of its replicas.
type Ranges = Vec<(usize, usize, u16, Vec<u16>)>;

/// Three masters and a replica of each, killed on drop.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    /// One that tests use at the same time, and that none of them breaks.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A new one, in which all nodes agree.
    pub(crate) fn start() -> Self {
        Self::of(2 * MASTERS, || node(&[]))
    }

    /// One without replicas, where the others go on if a master dies.
    pub(crate) fn start_bare() -> Self {
        Self::of(MASTERS, Self::bare_node)
    }

    /// One without replicas that speaks TLS, also among its nodes, which announce the only name that they can prove; those
    /// of Redis 6 announce none.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(name: &str) -> Self {
        Self::of(MASTERS, || Self::tls_node(name))
    }

    /// A node for such a cluster.
    #[cfg(feature = "tls")]
    pub(crate) fn tls_node(name: &str) -> Server {
        let identity = crate::support::authority().issue(&[name]);
        let mut args = ARGS.to_vec();
        args.extend(["--tls-cluster", "yes", "--tls-replication", "yes"]);
        let bus = free_port().to_string();
        if !is_redis_6() {
            args.extend(["--cluster-announce-hostname", name]);
            args.extend(["--cluster-port", &bus]);
        }
        Server::start_tls(&identity, &args)
    }

    /// A node for a cluster without replicas.
    pub(crate) fn bare_node() -> Server {
        node(&["--cluster-require-full-coverage", "no"])
    }

    /// Has one more node join, as a master without slots; returns its number.
    pub(crate) fn join(&mut self, node: Server) -> usize {
        self.meet(&node);
        self.nodes.push(node);
        eventually("it is known", || self.know_each_other());
        self.is_whole();
        self.nodes.len() - 1
    }

    fn meet(&self, node: &Server) {
        let port = node.client_addr().port().to_string();
        let bus = bus_port(node).to_string();
        let () = self.nodes[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    }

    fn know_each_other(&self) -> bool {
        self.nodes.iter().all(|node| {
            let known: String = node.ask(&["CLUSTER", "NODES"]);
            known.lines().count() == self.nodes.len() && !known.contains("handshake")
        })
    }

    /// Nodes find each other by gossip, and a machine that is late can make them replace a master meanwhile; then it is tried
    /// with new ones. One at a time, since each takes all the processors.
    fn of(nodes: usize, node: impl Fn() -> Server + Sync) -> Self {
        static FORMING: Mutex<()> = Mutex::new(());
        let _alone = locked(&FORMING);
        let formed = (0..5).find_map(|_| Self::form(nodes, &node));
        let cluster = formed.expect("the nodes agree");
        cluster.is_whole();
        cluster
    }

    fn form(nodes: usize, node: &(impl Fn() -> Server + Sync)) -> Option<Self> {
        let nodes: Vec<Server> = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..nodes).map(|_| scope.spawn(node)).collect();
            let started = starting.into_iter().map(|its| its.join());
            started.map(|node| node.expect("a node")).collect()
        });
        let cluster = Self { nodes };
        let ids: Vec<String> = cluster
            .nodes
            .iter()
            .map(|node| node.ask(&["CLUSTER", "MYID"]))
            .collect();
        for (n, node) in cluster.nodes.iter().enumerate() {
            let () = node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        }
        for n in 0..MASTERS {
            let slots = n * SLOTS / MASTERS..(n + 1) * SLOTS / MASTERS;
            let () = redis::cmd("CLUSTER")
                .arg("ADDSLOTS")
                .arg(slots.collect::<Vec<_>>())
                .query(&mut cluster.nodes[n].connection())
                .expect("slots");
        }
        for node in &cluster.nodes[1..] {
            cluster.meet(node);
        }
        if !within(LONG, || cluster.know_each_other()) {
            return None;
        }
        let follow = cluster.nodes[MASTERS..]
            .iter()
            .zip(&ids)
            .all(|(replica, master)| {
                let replicate = ["CLUSTER", "REPLICATE", master];
                within(LONG, || replica.try_ask::<()>(&replicate).is_ok())
            });
        let are_known = cluster.nodes.len() == MASTERS
            || within(LONG, || {
                let known = |node: &Server| ranges(node).iter().all(|range| !range.3.is_empty());
                cluster.nodes.iter().all(known)
            });
        (follow && are_known).then_some(cluster)
    }

    /// Waits until every slot has a master, every master that lives a replica that follows it if there is one, and all
    /// nodes agree.
    pub(crate) fn is_whole(&self) {
        eventually("the cluster is whole", || {
            let mut views = Vec::new();
            for node in self.living() {
                let Ok(info) = node.try_ask::<String>(&["CLUSTER", "INFO"]) else {
                    return false;
                };
                let replicates: String = node.ask(&["INFO", "replication"]);
                if !info.contains("cluster_state:ok")
                    || replicates.contains("master_link_status:down")
                {
                    return false;
                }
                let mut known = ranges(node);
                known.iter_mut().for_each(|range| range.3.sort_unstable());
                known.sort();
                views.push(known);
            }
            views.windows(2).all(|pair| pair[0] == pair[1])
                && views[0].iter().map(|its| its.1 - its.0 + 1).sum::<usize>() == SLOTS
        });
    }

    /// The nodes that answer.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_alive())
    }

    /// Of the masters.
    pub(crate) fn url(&self) -> String {
        let nodes = self.nodes[..MASTERS].iter();
        let seeds: Vec<_> = nodes
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}/", seeds.join(","))
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(self.url())
    }

    pub(crate) fn open(&self) -> Client {
        Client::open(self.config()).expect("a cluster")
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> usize {
        self.any().ask(&["CLUSTER", "KEYSLOT", key])
    }

    fn any(&self) -> &Server {
        self.living().next().expect("a node that lives")
    }

    /// The numbers of the nodes that are master and replica of a key, as far as the first node that lives knows.
    pub(crate) fn nodes_of(&self, key: &str) -> (usize, Option<usize>) {
        let slot = self.slot(key);
        let ranges = ranges(self.any());
        let range = ranges.iter().find(|its| (its.0..=its.1).contains(&slot));
        let (_, _, master, replicas) = range.expect("a master");
        let number = |port: &u16| {
            let mut nodes = self.nodes.iter();
            nodes.position(|node| node.port() == *port)
        };
        let replica = replicas.iter().find_map(number);
        (number(master).expect("one of ours"), replica)
    }

    pub(crate) fn master_of(&self, key: &str) -> &Server {
        &self.nodes[self.nodes_of(key).0]
    }

    /// Asks the master of `key`.
    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&self, key: &str, command: &[&str]) -> T {
        self.master_of(key).ask(command)
    }

    /// How many listen to a channel at the master of `key`.
    #[track_caller]
    pub(crate) fn listeners(&self, key: &str, channel: &str) -> u64 {
        let what = if is_redis_6() {
            "NUMSUB"
        } else {
            "SHARDNUMSUB"
        };
        let (_, n): (String, u64) = self.ask(key, &["PUBSUB", what, channel]);
        n
    }

    pub(crate) fn exists(&self, key: &str) -> bool {
        let exists = || -> RedisResult<bool> { self.master_of(key).try_ask(&["EXISTS", key]) };
        let until = Instant::now() + GENEROUS;
        loop {
            match exists() {
                Ok(exists) => return exists,
                Err(err) => assert!(Instant::now() < until, "{key}: {err}"),
            }
            std::thread::sleep(ms(10));
        }
    }

    /// A name that begins with `prefix`, with its keys at the `n`th of the masters as they are at first.
    pub(crate) fn name_at(&self, n: usize, prefix: &str) -> String {
        (0..)
            .map(|i| crate::support::unique(&format!("{prefix}{i}")))
            .find(|name| self.slot(name) * MASTERS / SLOTS == n)
            .expect("there are enough")
    }

    /// Has the replica of `key`'s master become the master, with the master's consent.
    pub(crate) fn fail_over(&self, key: &str) {
        let (master, replica) = self.nodes_of(key);
        let replica = &self.nodes[replica.expect("a replica")];
        eventually("its replica follows", || {
            replica
                .ask::<String>(&["INFO", "replication"])
                .contains("master_link_status:up")
        });
        let () = replica.ask(&["CLUSTER", "FAILOVER"]);
        eventually("the replica is the master", || {
            self.nodes_of(key).0 != master
        });
    }

    /// Moves the slot of a key to another master while it is used, as `redis-cli --cluster reshard` does; `meanwhile` runs
    /// when the slot is on its way, before its keys go. Returns the number of the new master.
    pub(crate) fn migrate(&self, key: &str, meanwhile: impl FnOnce()) -> usize {
        let (from, _) = self.nodes_of(key);
        let others = ranges(self.any()).into_iter().map(|range| range.2);
        let others: Vec<_> = others
            .filter(|port| *port != self.nodes[from].port())
            .collect();
        let to = self.nodes.iter().position(|node| node.port() == others[0]);
        let to = to.expect("one of ours");
        self.migrate_to(to, key, meanwhile);
        to
    }

    /// The same, to this node.
    pub(crate) fn migrate_to(&self, to: usize, key: &str, meanwhile: impl FnOnce()) {
        let slot = self.slot(key);
        let (from, _) = self.nodes_of(key);
        let id = |n: usize| self.nodes[n].ask::<String>(&["CLUSTER", "MYID"]);
        let (source, target) = (id(from), id(to));
        let number = slot.to_string();
        let set = |n: usize, what: &str, node: &str| {
            let () = self.nodes[n].ask(&["CLUSTER", "SETSLOT", &number, what, node]);
        };
        set(to, "IMPORTING", &source);
        set(from, "MIGRATING", &target);
        meanwhile();
        let port = self.nodes[to].client_addr().port().to_string();
        loop {
            let get = ["CLUSTER", "GETKEYSINSLOT", &number, "100"];
            let keys: Vec<String> = self.nodes[from].ask(&get);
            if keys.is_empty() {
                break;
            }
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            command.extend(keys.iter().map(String::as_str));
            let _: Value = self.nodes[from].ask(&command);
        }
        set(to, "NODE", &target);
        // One that has no slot left may have become a replica of the other by itself.
        let done = ["CLUSTER", "SETSLOT", &number, "NODE", &target];
        if let Err(err) = self.nodes[from].try_ask::<()>(&done) {
            assert!(err.to_string().contains("masters"), "{err}");
        }
    }
}

const ARGS: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    NODE_TIMEOUT,
    "--cluster-replica-validity-factor",
    "0",
    "--repl-diskless-sync-delay",
    "0",
];

fn node(more: &[&str]) -> Server {
    let bus = free_port().to_string();
    let mut args = [&ARGS, more].concat();
    if !is_redis_6() {
        args.extend(["--cluster-port", &bus]);
    }
    Server::start_with(&args)
}

fn bus_port(node: &Server) -> u16 {
    let known: String = node.ask(&["CLUSTER", "NODES"]);
    let at = known.find('@').expect("a bus port");
    let digits = known[at + 1..].split([',', ' ']).next();
    digits.and_then(|port| port.parse().ok()).expect("a number")
}

fn ranges(node: &Server) -> Ranges {
    let slots: Vec<Vec<Value>> = node.try_ask(&["CLUSTER", "SLOTS"]).unwrap_or_default();
    let port = |value: &Value| -> u16 {
        let parts: Vec<Value> = redis::from_redis_value(value.clone()).expect("a node");
        redis::from_redis_value(parts[1].clone()).expect("a port")
    };
    let number = |value: &Value| redis::from_redis_value(value.clone()).expect("a slot");
    slots
        .iter()
        .map(|range| {
            let replicas = range[3..].iter().map(port).collect();
            (
                number(&range[0]),
                number(&range[1]),
                port(&range[2]),
                replicas,
            )
        })
        .collect()
}
