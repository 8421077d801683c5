//! A real cluster: three masters with one replica each.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::time::Instant;
use std::{fs, io, thread};

use redis::{FromRedisValue, RedisResult, Value};
use tempfile::TempDir;

use super::server::ANNOUNCED;
use super::{GENEROUS, Proxy, Server, eventually, free_port, is_redis_6, ms, names_shards};

const MASTERS: usize = 3;

/// Number of hash slots in a cluster.
const SLOTS: usize = 16384;

/// The reply to `CLUSTER SLOTS`. Each range has its first and last slot, the port of its master and the ports of its
/// replicas.
type Ranges = Vec<(usize, usize, u16, Vec<u16>)>;

/// Three masters with one replica each, killed on drop.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
    /// The proxies in front of the nodes, if the nodes announce the ports of proxies.
    pub(crate) proxies: Vec<Proxy>,
    has_replicas: bool,
}

/// Settings that all nodes of a cluster share.
#[derive(Clone, Copy, Default)]
struct Kind<'a> {
    /// The nodes speak TLS, and their certificate has this name.
    name: Option<&'a str>,
    has_proxies: bool,
    args: &'a [&'a str],
}

/// Nodes without replicas. Without full coverage the remaining masters keep working when one dies.
const BARE: Kind<'_> = Kind {
    name: None,
    has_proxies: false,
    args: &["--cluster-require-full-coverage", "no"],
};

impl Cluster {
    /// A cluster that several tests use at the same time. A test must not break it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts a cluster and waits until all nodes agree. The node timeout is long, so that no replica takes over by
    /// itself, even on a busy machine.
    pub(crate) fn start() -> Self {
        Self::of(2 * MASTERS, Kind::default())
    }

    /// Starts a cluster with a proxy in front of each node.
    pub(crate) fn start_behind_proxies() -> Self {
        let kind = Kind {
            has_proxies: true,
            ..Kind::default()
        };
        Self::of(2 * MASTERS, kind)
    }

    /// Starts a cluster without replicas, whose other masters keep working when one dies.
    pub(crate) fn start_bare() -> Self {
        Self::of(MASTERS, BARE)
    }

    /// Starts a cluster without replicas that uses TLS for clients and between nodes. The nodes announce `name`, the
    /// only name that their certificate proves; Redis 6 cannot announce a name.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(name: &str) -> Self {
        Self::of(MASTERS, tls_kind(name, &tls_args(name)))
    }

    /// Starts a node that can join a cluster of [`start_tls`](Self::start_tls).
    #[cfg(feature = "tls")]
    pub(crate) fn tls_node(name: &str) -> Server {
        start_node(tls_kind(name, &tls_args(name)))
    }

    /// Starts a node that can join a cluster of [`start_bare`](Self::start_bare).
    pub(crate) fn bare_node() -> Server {
        start_node(BARE)
    }

    /// Adds `node` to the cluster as a master without slots; returns its number.
    pub(crate) fn join(&mut self, node: Server) -> usize {
        let port = node.client_addr().port().to_string();
        let bus = bus_port(&node).to_string();
        let () = self.nodes[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        self.nodes.push(node);
        eventually("it is known", || {
            self.nodes.iter().all(|node| {
                let known: String = node.ask(&["CLUSTER", "NODES"]);
                known.lines().count() == self.nodes.len() && !known.contains("handshake")
            })
        });
        self.is_whole();
        self.nodes.len() - 1
    }

    /// Starts `nodes` nodes that read the whole topology from a `nodes.conf`, as after a restart. Forming the cluster
    /// by gossip would take long on a busy machine, and could assign the roles in a different order.
    fn of(nodes: usize, kind: Kind<'_>) -> Self {
        let mut tries = 0;
        let cluster = loop {
            match Self::try_start(nodes, kind) {
                Ok(cluster) => break cluster,
                // Another process may take a free port before the node binds to it.
                Err(err) => assert!(tries < 5, "{err}"),
            }
            tries += 1;
        };
        // `CLUSTER SLOTS` omits a replica until it has received data.
        for n in 0..nodes - MASTERS {
            let key = cluster.name_at(n, "stream");
            cluster.nodes[n].is_acknowledged_by(1, &key);
        }
        cluster.is_whole();
        cluster
    }

    fn try_start(nodes: usize, kind: Kind<'_>) -> io::Result<Self> {
        let mut places: Vec<_> = (0..nodes).map(|n| Place::new(n, kind)).collect();
        for (me, place) in places.iter().enumerate() {
            let known: String = places
                .iter()
                .map(|node| node.line(&places, node.number == me))
                .collect();
            let known = format!("{known}vars currentEpoch {MASTERS} lastVoteEpoch 0\n");
            fs::write(place.dir.path().join("nodes.conf"), known).expect("a file");
        }
        let proxies = places.iter_mut().filter_map(|place| place.proxy.take());
        let proxies = proxies.collect();
        let nodes: Vec<_> = thread::scope(|scope| {
            let starting: Vec<_> = places
                .into_iter()
                .map(|place| scope.spawn(|| place.start(kind.args)))
                .collect();
            let started = starting.into_iter().map(|node| node.join());
            started.map(|node| node.expect("no panic")).collect()
        });
        let nodes = nodes.into_iter().collect::<io::Result<Vec<_>>>()?;
        let has_replicas = nodes.len() > MASTERS;
        Ok(Self {
            nodes,
            proxies,
            has_replicas,
        })
    }

    /// From now on a replica replaces a master that is silent for one second.
    pub(crate) fn replaces_the_silent(&self) {
        for node in self.living() {
            let () = node.ask(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
        }
    }

    /// Waits until every slot has a master, every master has a replica that follows it (if the cluster has replicas),
    /// and all running nodes agree.
    pub(crate) fn is_whole(&self) {
        eventually("the cluster is whole", || {
            let mut views = Vec::new();
            let all_live = self.living().count() == self.nodes.len();
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
                let links: String = node.ask(&["CLUSTER", "NODES"]);
                if all_live && links.contains("disconnected") {
                    return false;
                }
                let mut known = ranges(node);
                if self.has_replicas && known.iter().any(|range| range.3.is_empty()) {
                    return false;
                }
                known.iter_mut().for_each(|range| range.3.sort_unstable());
                known.sort();
                views.push(known);
            }
            views.windows(2).all(|pair| pair[0] == pair[1])
                && views[0]
                    .iter()
                    .map(|range| range.1 - range.0 + 1)
                    .sum::<usize>()
                    == SLOTS
        });
    }

    /// The nodes that are running.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_alive())
    }

    /// The URL of the masters.
    pub(crate) fn url(&self) -> String {
        let nodes = self.nodes[..MASTERS].iter();
        let seeds: Vec<_> = nodes
            .map(|node| format!("127.0.0.1:{}", port_of(node)))
            .collect();
        format!("redis+cluster://{}/", seeds.join(","))
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> usize {
        self.any().ask(&["CLUSTER", "KEYSLOT", key])
    }

    fn any(&self) -> &Server {
        self.living().next().expect("a node that lives")
    }

    /// The numbers of the master of `key` and of its replica, as the first running node reports them. During a failover
    /// the reply may name no replica.
    pub(crate) fn nodes_of(&self, key: &str) -> (usize, Option<usize>) {
        let slot = self.slot(key);
        let mut owners = None;
        eventually("the slot has a master", || {
            let mut ranges = ranges(self.any()).into_iter();
            owners = ranges.find(|range| (range.0..=range.1).contains(&slot));
            owners.is_some()
        });
        let (_, _, master, replicas) = owners.expect("it has one now");
        let number = |port: &u16| {
            let mut nodes = self.nodes.iter();
            nodes.position(|node| port_of(node) == *port)
        };
        let replica = replicas.iter().find_map(number);
        (number(&master).expect("one of ours"), replica)
    }

    pub(crate) fn master_of(&self, key: &str) -> &Server {
        &self.nodes[self.nodes_of(key).0]
    }

    /// Asks the master of `key`.
    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&self, key: &str, command: &[&str]) -> T {
        self.master_of(key).ask(command)
    }

    /// The number of subscribers of `channel` at the master of `key`.
    #[track_caller]
    pub(crate) fn listeners(&self, key: &str, channel: &str) -> u64 {
        let subcommand = if is_redis_6() {
            "NUMSUB"
        } else {
            "SHARDNUMSUB"
        };
        let (_, n): (String, u64) = self.ask(key, &["PUBSUB", subcommand, channel]);
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
            thread::sleep(ms(10));
        }
    }

    /// A name that begins with `prefix` and whose keys belong to the master number `n` of the initial topology.
    pub(crate) fn name_at(&self, n: usize, prefix: &str) -> String {
        (0..)
            .map(|i| super::unique(&format!("{prefix}{i}")))
            .find(|name| self.slot(name) * MASTERS / SLOTS == n)
            .expect("there are enough")
    }

    /// Makes the replica of `key`'s master the master, with the consent of the old master.
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

    /// Moves the slot of `key` to another master, as `redis-cli --cluster reshard` does; returns the number of the new
    /// master. `meanwhile` runs once the slot is marked as migrating, before its keys move.
    pub(crate) fn migrate(&self, key: &str, meanwhile: impl FnOnce()) -> usize {
        let (from, _) = self.nodes_of(key);
        let others = ranges(self.any()).into_iter().map(|range| range.2);
        let others: Vec<_> = others
            .filter(|port| *port != port_of(&self.nodes[from]))
            .collect();
        let new_master = self
            .nodes
            .iter()
            .position(|node| port_of(node) == others[0]);
        let new_master = new_master.expect("one of ours");
        self.migrate_to(new_master, key, meanwhile);
        new_master
    }

    /// Moves the slot of `key` to the node number `new_master`; see [`migrate`](Self::migrate).
    pub(crate) fn migrate_to(&self, new_master: usize, key: &str, meanwhile: impl FnOnce()) {
        let slot = self.slot(key);
        let (from, _) = self.nodes_of(key);
        let id = |n: usize| self.nodes[n].ask::<String>(&["CLUSTER", "MYID"]);
        let (source, target) = (id(from), id(new_master));
        let number = slot.to_string();
        let set = |n: usize, slot_state: &str, node: &str| {
            let () = self.nodes[n].ask(&["CLUSTER", "SETSLOT", &number, slot_state, node]);
        };
        set(new_master, "IMPORTING", &source);
        set(from, "MIGRATING", &target);
        meanwhile();
        let port = self.nodes[new_master].client_addr().port().to_string();
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
        set(new_master, "NODE", &target);
        // A master that lost its last slot may already have become a replica of the new owner, and then rejects the
        // command.
        let done = ["CLUSTER", "SETSLOT", &number, "NODE", &target];
        if let Err(err) = self.nodes[from].try_ask::<()>(&done) {
            assert!(err.to_string().contains("masters"), "{err}");
        }
    }
}

/// The ports and the folder of a node that is about to start.
struct Place<'a> {
    number: usize,
    dir: TempDir,
    port: u16,
    /// The port for TLS connections, and the name in the certificate.
    tls: Option<(u16, &'a str)>,
    /// The port of the cluster bus.
    bus: u16,
    /// The port that the node announces, if a proxy listens there.
    announced: Option<u16>,
    proxy: Option<Proxy>,
}

impl<'a> Place<'a> {
    fn new(number: usize, kind: Kind<'a>) -> Self {
        let (clients, bus) = ports();
        let name = kind.name;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, clients));
        let proxy = kind.has_proxies.then(|| Proxy::start(server));
        Self {
            number,
            dir: tempfile::tempdir().expect("a directory for the server"),
            port: name.map_or(clients, |_| free_port()),
            tls: name.map(|name| (clients, name)),
            bus,
            announced: proxy.as_ref().map(Proxy::port),
            proxy,
        }
    }

    fn id(&self) -> String {
        // The port makes the id unique among the nodes of all clusters.
        format!("{:020x}{:020x}", std::process::id(), self.port)
    }

    /// The line of `nodes.conf` about this node. The first three nodes are masters; each later node is a replica of one
    /// of them.
    fn line(&self, all: &[Self], is_myself: bool) -> String {
        let own_flag = if is_myself { "myself," } else { "" };
        let n = self.number;
        let (role, slots) = match n.checked_sub(MASTERS) {
            None => {
                let (first, end) = (n * SLOTS / MASTERS, (n + 1) * SLOTS / MASTERS);
                ("master -".to_owned(), format!(" {first}-{}", end - 1))
            }
            Some(master) => (format!("slave {}", all[master].id()), String::new()),
        };
        let port = self.announced.unwrap_or(self.port);
        let (port, name) = self.tls.unwrap_or((port, ""));
        // Redis 6 rejects host names and shard ids in `nodes.conf`.
        let mut more = match is_redis_6() {
            true => String::new(),
            false => format!(",{name}"),
        };
        if names_shards() {
            more.push_str(&format!(",shard-id={}", all[n % MASTERS].id()));
        }
        format!(
            "{} 127.0.0.1:{port}@{}{more} {own_flag}{role} 0 0 {} connected{slots}\n",
            self.id(),
            self.bus,
            n % MASTERS + 1,
        )
    }

    /// Starts the node at this place.
    fn start(self, more: &[&str]) -> io::Result<Server> {
        let bus = self.bus.to_string();
        let announced = self.announced.map(|port| port.to_string());
        // A replica synchronizes at once, and may become the master however old its data is. The node timeout tolerates
        // a busy machine.
        let mut args = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "4000"];
        args.extend(["--cluster-replica-validity-factor", "0"]);
        args.extend(["--repl-diskless-sync-delay", "0"]);
        if !is_redis_6() {
            args.extend(["--cluster-port", &bus]);
        }
        if let Some(port) = &announced {
            args.extend([ANNOUNCED[1], port]);
        }
        #[cfg(feature = "tls")]
        let proof = self.tls.map(|(_, name)| {
            let identity = super::authority().issue(&[name]);
            super::tls_args(self.dir.path(), &identity)
        });
        #[cfg(feature = "tls")]
        if let Some(proof) = &proof {
            args.extend(proof.iter().map(String::as_str));
            args.extend(["--tls-auth-clients", "no"]);
        }
        args.extend(more);
        let tls_port = self.tls.map(|(port, _)| port);
        Server::start_at(self.dir, self.port, tls_port, &args).map_err(|(err, _)| err)
    }
}

/// Starts a node that knows no other node.
fn start_node(kind: Kind<'_>) -> Server {
    let tries = (0..5).find_map(|_| Place::new(0, kind).start(kind.args).ok());
    tries.expect("free ports")
}

#[cfg(feature = "tls")]
fn tls_kind<'a>(name: &'a str, args: &'a [&'a str]) -> Kind<'a> {
    Kind {
        name: Some(name),
        has_proxies: false,
        args,
    }
}

/// The arguments for TLS between nodes, and for announcing `name`.
#[cfg(feature = "tls")]
fn tls_args(name: &str) -> Vec<&str> {
    let mut args = vec!["--tls-cluster", "yes", "--tls-replication", "yes"];
    if !is_redis_6() {
        args.extend(["--cluster-announce-hostname", name]);
    }
    args
}

/// A port for clients and a port for the cluster bus.
fn ports() -> (u16, u16) {
    const APART: u16 = 10_000;
    if !is_redis_6() {
        return (free_port(), free_port());
    }
    // Redis 6 derives the bus port by adding 10,000. The range above the free ports belongs to the kernel, which may
    // hand it out to any connection, so reserve the bus port and derive the client port from it.
    loop {
        let bus = free_port();
        if bus >= 2 * APART {
            return (bus - APART, bus);
        }
    }
}

/// The port under which clients and other nodes know `node`.
fn port_of(node: &Server) -> u16 {
    node.announced_port().unwrap_or(node.port())
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
