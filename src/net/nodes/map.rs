//! The slots as a client knows them, and how it asks for them anew.
//!
//! ```text
//!             doubt: a node is away, refuses, has lost a slot
//!    known ──────────────────────────────────────────────────► doubted ◄─┐
//!      ▲                                                        │        │ nobody answers
//!      │  a node has answered                                   ▼        │
//!      └───────────────────────────────────────────────────── asking ────┘
//! ```
//!
//! One thread asks at a time, and not again before a pause; others wait for it, or go on with what is known. Any node may
//! be asked: masters, replicas, and the addresses of the URL for ever, since everything else may have been replaced.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::topology::{Topology, named_by, shards};
use crate::config::server::{Address, Deployment};
use crate::error::{is_transient, lasting, named};
use crate::net::back_off::NextTry;
use crate::net::connection::SLICE;
use crate::net::slot::{SLOTS, slot_of};
use crate::net::socket::dial::{Dial, SHARE};
use crate::net::socket::{self, Endpoint, LARGEST_MAP, connect_to};
use crate::report::{self, report};
use crate::verdict::Redirection;

/// The name of the connections over which nodes are asked.
const ROLE: &str = "topology";

/// Who has which slot, for all connections of a client.
pub(crate) struct Map {
    endpoint: Endpoint,
    /// Of a cluster; the only server has all slots for ever, and nobody is asked.
    seeds: Option<Vec<Address>>,
    topology: RwLock<Topology>,
    /// Counts the changes of the topology.
    version: AtomicU64,
    doubted: AtomicBool,
    asking: Mutex<Asking>,
    asked: Condvar,
    /// Which of those that can be asked is next.
    next: AtomicUsize,
    /// Whether channels are sharded; decided once, as Redisson does.
    sharded: OnceLock<bool>,
}

struct Asking {
    /// A thread asks.
    under_way: bool,
    next: NextTry,
    /// The version of the topology when they were asked last.
    version: u64,
    /// How often they were asked, and what was wrong the last time.
    times: u64,
    failure: Option<Unanswered>,
}

/// Why nobody has said who has which slot.
#[derive(Clone, Debug)]
pub(crate) struct Unanswered {
    /// Of the reasons of all that were asked, the one that says most.
    pub(crate) why: RedisError,
    /// Whether one of them may answer later: it is starting, or has not answered in time.
    pub(crate) may_pass: bool,
}

impl Unanswered {
    fn of(reasons: Vec<RedisError>) -> Self {
        let says_later = |why: &RedisError| is_transient(why) && !why.is_connection_refusal();
        let may_pass = reasons.iter().any(says_later);
        // An answer says more than silence, and that more than a closed port.
        let says = |why: &RedisError| (!is_transient(why), !why.is_connection_refusal());
        let why = reasons.into_iter().rev().max_by_key(says);
        let nobody = || socket::timed_out("no node of the cluster answered");
        Self {
            why: why.unwrap_or_else(nobody),
            may_pass,
        }
    }
}

impl Map {
    /// That of what a URL leads to.
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let seeds = match &endpoint.server.deployment {
            Deployment::Cluster { seeds } => Some(seeds.clone()),
            Deployment::Single(_) | Deployment::Sentinel { .. } => None,
        };
        Self {
            endpoint,
            doubted: AtomicBool::new(seeds.is_some()),
            seeds,
            topology: RwLock::new(Topology::new()),
            version: AtomicU64::new(0),
            asking: Mutex::new(Asking {
                under_way: false,
                next: NextTry::at_once(),
                version: 0,
                times: 0,
                failure: None,
            }),
            asked: Condvar::new(),
            next: AtomicUsize::new(0),
            sharded: OnceLock::new(),
        }
    }

    /// The master of a key, by its number; that of the first slot for what has no key.
    pub(crate) fn master_of(&self, key: Option<&[u8]>) -> Option<usize> {
        if self.is_one() {
            return Some(0);
        }
        self.topology.read().owner(key.map_or(0, slot_of))
    }

    /// All masters.
    pub(crate) fn masters(&self) -> Vec<usize> {
        match self.is_one() {
            true => vec![0],
            false => self.topology.read().masters(),
        }
    }

    pub(crate) fn is_master(&self, node: usize) -> bool {
        self.is_one() || self.topology.read().is_master(node)
    }

    /// Whether a node is known by more than a redirection, and so by the name that it can prove.
    pub(crate) fn is_named(&self, node: usize) -> bool {
        self.is_one() || self.topology.read().is_named(node)
    }

    /// How to connect to a node.
    pub(crate) fn endpoint(&self, node: usize) -> Endpoint {
        match &self.seeds {
            None => self.endpoint.clone(),
            Some(seeds) => self.endpoint.node(self.address(node, seeds)),
        }
    }

    fn address(&self, node: usize, seeds: &[Address]) -> Address {
        let topology = self.topology.read();
        topology.address(node).unwrap_or(&seeds[0]).clone()
    }

    pub(crate) fn is_one(&self) -> bool {
        self.seeds.is_none()
    }

    /// Rises with every change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded.get().copied().unwrap_or(false)
    }

    /// Something indicates that slots have moved.
    pub(crate) fn doubt(&self) {
        self.doubted.store(!self.is_one(), Ordering::Release);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// Which node a redirection by the node `from` names. `MOVED` also says that the slot is there from now on.
    pub(crate) fn redirected(&self, from: usize, to: &Redirection) -> usize {
        // A single server has every slot.
        let Some(seeds) = &self.seeds else {
            return from;
        };
        let from = self.address(from, seeds);
        let mut topology = self.topology.write();
        let node = topology.called(&named_by(to, &from));
        if !to.is_asking && topology.owner(to.slot) != Some(node) {
            topology.moved(to.slot, node);
            self.version.fetch_add(1, Ordering::AcqRel);
            self.doubt();
        }
        node
    }

    /// Has the nodes asked who has which slot, if that is in doubt, and waits until they were.
    pub(crate) fn refresh(
        self: &Arc<Self>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Unanswered> {
        let mut asking = self.asking.lock();
        let begun = asking.times;
        while self.is_doubted() || asking.under_way {
            let now = Instant::now();
            if now >= until || stop() {
                return Ok(());
            }
            let mut look_at = until.min(now + SLICE);
            if !asking.under_way {
                if let Some(failure) = asking.failure.as_ref().filter(|_| asking.times != begun) {
                    return Err(failure.clone());
                }
                let again_at = asking.next.due(true);
                if now >= again_at {
                    self.begin(&mut asking);
                    continue;
                }
                look_at = look_at.min(again_at);
            }
            self.asked.wait_until(&mut asking, look_at);
        }
        Ok(())
    }

    /// The same for those who need not wait: less and less often while nothing is new.
    pub(crate) fn want(self: &Arc<Self>) {
        if self.is_doubted() {
            let mut asking = self.asking.lock();
            if !asking.under_way && Instant::now() >= asking.next.due(false) {
                self.begin(&mut asking);
            }
        }
    }

    /// Starts the thread that asks.
    fn begin(self: &Arc<Self>, asking: &mut Asking) {
        let (this, began) = (Arc::clone(self), Instant::now());
        let thread = std::thread::Builder::new().name("redlatch-topology".into());
        let started = thread.spawn(move || {
            // The others wait until this thread has asked, and so may the logger.
            let _held_back = report::hold_back();
            // Before the first question: what happens meanwhile is a reason to ask again.
            this.doubted.store(false, Ordering::Release);
            let asked = std::panic::catch_unwind(AssertUnwindSafe(|| this.ask_around()));
            let panicked = |_| Err(vec![lasting("asking for the slots panicked".into())]);
            let asked = asked.unwrap_or_else(panicked);
            if asked.is_err() {
                this.doubt();
            }
            this.ended(&mut this.asking.lock(), began, asked);
            this.asked.notify_all();
        });
        asking.under_way = true;
        if let Err(err) = started {
            self.ended(asking, began, Err(vec![err.into()]));
        }
    }

    /// The nodes were asked.
    fn ended(&self, asking: &mut Asking, began: Instant, asked: Result<(), Vec<RedisError>>) {
        let version = self.version();
        let before = match asking.version == version {
            true => asking.next.clone(),
            false => NextTry::at_once(),
        };
        *asking = Asking {
            under_way: false,
            next: before.after_failure(began),
            version,
            times: asking.times + 1,
            failure: asked.err().map(Unanswered::of),
        };
    }

    /// Asks one node after the other, beginning with another each time.
    fn ask_around(&self) -> Result<(), Vec<RedisError>> {
        let mut witnesses = self.topology.read().witnesses();
        for seed in self.seeds.iter().flatten() {
            if !witnesses.contains(seed) {
                witnesses.push(seed.clone());
            }
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed) % witnesses.len().max(1);
        witnesses.rotate_left(first);
        let mut failures = Vec::new();
        for address in &witnesses {
            let Err(err) = self.ask(address) else {
                return Ok(());
            };
            report!(Debug, "asking {address} for the slots: {err}");
            failures.push(err);
        }
        Err(failures)
    }

    fn ask(&self, address: &Address) -> RedisResult<()> {
        let endpoint = self.endpoint.witness(address.clone());
        let mut dial = Dial::by_itself(ROLE, SHARE);
        let mut connection = connect_to(&mut dial, &endpoint)?;
        connection.reader.limit(LARGEST_MAP);
        dial.waits_for(socket::timed_out("the node did not answer in time"));
        let mut ask = |question: &[&str]| {
            connection.write("asking for the slots", &[question])?;
            let reply = connection.read(&dial).and_then(Value::extract_error);
            reply.map_err(|err| named(address, err))
        };
        let reply = ask(&["CLUSTER", "SLOTS"])?;
        let wrong = |what: std::io::ErrorKind, why: &str| {
            RedisError::from(std::io::Error::new(what, format!("{address} {why}")))
        };
        let shards = shards(&reply, address, endpoint.server.is_encrypted).ok_or_else(|| {
            let why = "answers CLUSTER SLOTS with something that does not say who has which slot";
            wrong(std::io::ErrorKind::InvalidData, why)
        })?;
        if shards.is_empty() {
            let why = "knows of no slots: the cluster is not set up";
            return Err(wrong(std::io::ErrorKind::NotFound, why));
        }
        if self.sharded.get().is_none() {
            let answer = ask(&["PUBSUB", "SHARDNUMSUB", "redlatch"]);
            let sharded = knows_sharded(answer.map(drop))?;
            self.sharded.get_or_init(|| sharded);
        }
        connection.writer.shut_down();
        if self.topology.write().learn(&shards) {
            self.version.fetch_add(1, Ordering::AcqRel);
            report!(
                Debug,
                "{address} has said who has which of the {SLOTS} slots"
            );
        }
        Ok(())
    }
}

/// Whether a server has sharded channels, by its answer to `PUBSUB SHARDNUMSUB`. An error that says nothing of that is
/// returned: the answer is kept for ever, so another node is asked then.
fn knows_sharded(answer: RedisResult<()>) -> RedisResult<bool> {
    let Err(err) = answer else {
        return Ok(true);
    };
    match err.kind() {
        // It does not know the command.
        ErrorKind::Server(ServerErrorKind::ResponseError) => Ok(false),
        // This user may not ask, and the error names what the server knows: Redis 6 the command alone.
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            let text = err.detail().unwrap_or_default().to_ascii_lowercase();
            if text.contains("shardnumsub") {
                Ok(true)
            } else if text.contains("or its subcommand") {
                Ok(false)
            } else {
                Err(err)
            }
        }
        _ => Err(err),
    }
}

/// Whether the server says that it is no node of a cluster.
pub(crate) fn is_no_cluster(err: &RedisError) -> bool {
    let detail = err.detail().unwrap_or_default();
    detail.contains("cluster support disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::server::Server;

    #[test]
    fn a_slot_that_has_moved_is_a_reason_to_ask() {
        let server = Server::of("redis+cluster://127.0.0.1:1/");
        let map = Map::new(Endpoint::new(server.expect("a good URL")));
        let redirected = |host: &str, is_asking| {
            let to = Redirection {
                slot: 7,
                host: host.into(),
                port: 1,
                is_asking,
            };
            map.doubted.store(false, Ordering::Relaxed);
            (map.redirected(0, &to), map.is_doubted(), map.version())
        };
        assert_eq!(redirected("a", false), (0, true, 1));
        assert_eq!(redirected("a", false), (0, false, 1));
        assert_eq!(redirected("b", true), (1, false, 1));
    }

    #[test]
    fn of_several_reasons_the_one_that_says_most_is_kept() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
        let silent = || socket::timed_out("silent");
        let denied = || RedisError::from((ErrorKind::AuthenticationFailed, "denied"));
        type Why = fn() -> RedisError;
        let said = |whys: &[Why]| {
            let all = Unanswered::of(whys.iter().map(|why| why()).collect());
            (all.why.to_string(), all.may_pass)
        };
        for (whys, why, may_pass) in [
            (&[refused as Why, refused][..], refused(), false),
            (&[refused, silent], silent(), true),
            (&[silent, refused], silent(), true),
            (&[refused, denied], denied(), false),
            (&[denied, silent, refused], denied(), true),
        ] {
            assert_eq!(said(whys), (why.to_string(), may_pass));
        }
    }

    #[test]
    fn only_who_does_not_know_the_command_has_no_sharded_channels() {
        for (answer, expected) in [
            ("*0\r\n", Some(true)),
            (
                "-ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'. Try PUBSUB HELP.\r\n",
                Some(false),
            ),
            ("-ERR unknown command 'PUBSUB'\r\n", Some(false)),
            (
                "-NOPERM User u has no permissions to run the 'pubsub|shardnumsub' command\r\n",
                Some(true),
            ),
            (
                "-NOPERM this user has no permissions to run the 'pubsub' command or its subcommand\r\n",
                Some(false),
            ),
            ("-NOPERM this user may do nothing\r\n", None),
            ("-BUSY Redis is busy running a script.\r\n", None),
            ("-MASTERDOWN Link with MASTER is down\r\n", None),
            ("-TRYAGAIN later\r\n", None),
            ("-LOADING Redis is loading the dataset in memory\r\n", None),
            ("-CLUSTERDOWN The cluster is down\r\n", None),
            ("-ODD whatever it is\r\n", None),
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).expect("a reply");
            let found = knows_sharded(value.extract_error().map(drop));
            assert_eq!(found.ok(), expected, "{answer}");
        }
    }
}
