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

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::topology::{Topology, redirection, shards};
use crate::config::server::Address;
use crate::error::{is_transient, named};
use crate::net::request::Request;
use crate::net::slot::{SLOTS, slot_of};
use crate::net::socket::{self, Duplex, Endpoint, LARGEST_MAP, Meanwhile};
use crate::report::report;

/// The pause after nodes were asked, doubled up to the second each time that brings nothing new: an election takes a
/// while, and a master without a replica may be away for good.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// How long one node may take for its answer; less if the deadline for connecting is near.
const TIME_TO_ANSWER: Duration = Duration::from_millis(500);

/// How long somebody waits for a thread that asks, without looking at what else there is.
const SLICE: Duration = Duration::from_millis(5);

/// The name of the connections over which nodes are asked.
const ROLE: &str = "topology";

/// Who has which slot, for all connections of a client.
pub(crate) struct Map {
    endpoint: Endpoint,
    seeds: Vec<Address>,
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
    under_way: bool,
    not_before: Instant,
    pause: Duration,
    /// The version of the topology when nodes were asked last.
    version: u64,
}

/// What a redirection says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirected {
    /// The node with this number is to be asked.
    To(usize),
    /// A node is to be asked that is not known, and so many are that it is not remembered: the slots are in doubt.
    Unknown,
    NotUnderstood,
}

/// Why nobody has said who has which slot.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// Of the reasons of all that were asked, the one that says most.
    pub(crate) why: RedisError,
    /// Whether one of them may answer later: it is starting, or has not answered in time.
    pub(crate) may_pass: bool,
}

impl Unanswered {
    fn of(why: RedisError) -> Self {
        Self {
            may_pass: is_transient(&why) && !why.is_connection_refusal(),
            why,
        }
    }

    /// The same, and another was asked as well.
    fn and(self, other: Self) -> Self {
        let may_pass = self.may_pass || other.may_pass;
        // An answer says more than silence, and that more than a closed port.
        let says = |why: &RedisError| (!is_transient(why), !why.is_connection_refusal());
        let why = match says(&other.why) > says(&self.why) {
            true => other.why,
            false => self.why,
        };
        Self { why, may_pass }
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

/// Has others ask again, in whatever way the thread that asked ends.
struct Turn<'a>(&'a Map);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (now, version) = (Instant::now(), self.0.version());
        let mut asking = self.0.asking.lock();
        asking.under_way = false;
        let is_new = asking.version != version || now >= asking.not_before + 4 * PAUSE.1;
        asking.version = version;
        asking.pause = match is_new {
            true => PAUSE.0,
            false => (asking.pause * 2).min(PAUSE.1),
        };
        asking.not_before = now + asking.pause;
        drop(asking);
        self.0.asked.notify_all();
    }
}

impl Map {
    pub(crate) fn new(endpoint: Endpoint, seeds: Vec<Address>) -> Self {
        Self {
            endpoint,
            seeds,
            topology: RwLock::new(Topology::new()),
            version: AtomicU64::new(0),
            doubted: AtomicBool::new(true),
            asking: Mutex::new(Asking {
                under_way: false,
                not_before: Instant::now(),
                pause: PAUSE.0,
                version: 0,
            }),
            asked: Condvar::new(),
            next: AtomicUsize::new(0),
            sharded: OnceLock::new(),
        }
    }

    /// The master of a key, by its number; that of the first slot for what has no key.
    pub(crate) fn master_of(&self, key: Option<&[u8]>) -> Option<usize> {
        self.topology.read().owner(key.map_or(0, slot_of))
    }

    pub(crate) fn is_master(&self, node: usize) -> bool {
        self.topology.read().is_master(node)
    }

    /// Whether a node is known by a redirection alone, and may be called otherwise.
    pub(crate) fn is_unconfirmed(&self, node: usize) -> bool {
        self.topology.read().is_unconfirmed(node)
    }

    /// How to connect to a node.
    pub(crate) fn endpoint(&self, node: usize) -> Endpoint {
        let topology = self.topology.read();
        let address = topology.nodes().get(node).map(|its| its.address.clone());
        drop(topology);
        self.endpoint
            .node(address.unwrap_or_else(|| self.seeds[0].clone()))
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
        self.doubted.store(true, Ordering::Release);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// What a redirection by the node `from` says; `MOVED` also that the node has the slot from now on.
    pub(crate) fn redirected(&self, from: usize, err: &RedisError) -> Redirected {
        let mut topology = self.topology.write();
        let from = topology.nodes().get(from).map(|its| its.address.clone());
        let from = from.unwrap_or_else(|| self.seeds[0].clone());
        let said = err.detail().and_then(|said| redirection(said, &from));
        let Some((slot, to)) = said else {
            return Redirected::NotUnderstood;
        };
        let has_moved = err.kind() == ErrorKind::Server(ServerErrorKind::Moved);
        let before = topology.owner(slot);
        let to = match has_moved {
            true => topology.moved(slot, to),
            false => topology.redirected(to),
        };
        drop(topology);
        let Some(to) = to else {
            self.doubt();
            return Redirected::Unknown;
        };
        if has_moved && before != Some(to) {
            self.version.fetch_add(1, Ordering::AcqRel);
            self.doubt();
        }
        Redirected::To(to)
    }

    /// Asks who has which slot, if that is in doubt and nobody else is asking; returns when the time has come to look
    /// again.
    pub(crate) fn refresh(
        &self,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Unanswered> {
        let mut asking = self.asking.lock();
        loop {
            let now = Instant::now();
            if !self.is_doubted() {
                return Ok(());
            }
            if !asking.under_way && now >= asking.not_before {
                break;
            }
            if now >= until {
                return Ok(());
            }
            let look_at = match asking.under_way {
                true => now + SLICE,
                false => asking.not_before.min(now + SLICE),
            };
            self.asked.wait_until(&mut asking, until.min(look_at));
            if !parking_lot::MutexGuard::unlocked(&mut asking, &mut *meanwhile) {
                return Ok(());
            }
        }
        asking.under_way = true;
        drop(asking);
        let turn = Turn(self);
        // Before the first question: what happens meanwhile is a reason to ask again.
        self.doubted.store(false, Ordering::Release);
        let asked = self.ask_around(until, meanwhile);
        if asked.is_err() {
            self.doubt();
        }
        drop(turn);
        asked
    }

    /// Asks one node after the other, beginning with another each time, and those that were masters last.
    fn ask_around(&self, until: Instant, meanwhile: Meanwhile<'_>) -> Result<(), Unanswered> {
        let (mut witnesses, mut gone) = self.topology.read().witnesses();
        for seed in &self.seeds {
            if !witnesses.contains(seed) {
                witnesses.push(seed.clone());
            }
        }
        gone.retain(|its| !self.seeds.contains(its));
        let first = self.next.fetch_add(1, Ordering::Relaxed) % witnesses.len();
        witnesses.rotate_left(first);
        witnesses.append(&mut gone);
        let mut failure: Option<Unanswered> = None;
        for address in &witnesses {
            let by = until.min(Instant::now() + TIME_TO_ANSWER);
            let Err(err) = self.ask(address, by, meanwhile) else {
                return Ok(());
            };
            report!(Debug, "asking {address} for the slots: {err}");
            let its = Unanswered::of(err);
            failure = Some(match failure {
                Some(others) => others.and(its),
                None => its,
            });
            if Instant::now() >= until || !meanwhile() {
                break;
            }
        }
        Err(failure.unwrap_or_else(|| {
            Unanswered::of(socket::timed_out("no node of the cluster answered"))
        }))
    }

    fn ask(&self, address: &Address, by: Instant, meanwhile: Meanwhile<'_>) -> RedisResult<()> {
        let endpoint = self.endpoint.witness(address.clone());
        let mut connection = socket::connect(&endpoint, ROLE, by, meanwhile)?;
        connection.reader.limit(LARGEST_MAP);
        let reply = ask_for(&mut connection, &["CLUSTER", "SLOTS"], by, meanwhile);
        let reply = reply.map_err(|err| named(address, err))?;
        let by_name = endpoint.server.is_encrypted;
        let wrong = |what: std::io::ErrorKind, why: &str| {
            RedisError::from(std::io::Error::new(what, format!("{address} {why}")))
        };
        let shards = shards(&reply, address, by_name).ok_or_else(|| {
            let why = "answers CLUSTER SLOTS with something that does not say who has which slot";
            wrong(std::io::ErrorKind::InvalidData, why)
        })?;
        if shards.is_empty() {
            let why = "knows of no slots: the cluster is not set up";
            return Err(wrong(std::io::ErrorKind::NotFound, why));
        }
        if self.sharded.get().is_none() {
            let question = &["PUBSUB", "SHARDNUMSUB", "redlatch"];
            let answer = ask_for(&mut connection, question, by, meanwhile);
            let answer = answer.map_err(|err| named(address, err));
            let sharded = knows_sharded(answer.map(drop))?;
            self.sharded.get_or_init(|| sharded);
        }
        connection.writer.shut_down();
        let changed = self.topology.write().learn(&shards).ok_or_else(|| {
            let why = "names more masters than a cluster can have";
            wrong(std::io::ErrorKind::Other, why)
        })?;
        if changed {
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

fn ask_for(
    connection: &mut Duplex,
    question: &[&str],
    by: Instant,
    meanwhile: Meanwhile<'_>,
) -> RedisResult<Value> {
    let mut bytes = Vec::new();
    Request::command("asking for the slots", question).write(&mut bytes, false);
    connection.writer.write_all(&bytes)?;
    loop {
        if let Some(reply) = connection.reader.read(SLICE)? {
            return reply.extract_error();
        }
        if Instant::now() >= by || !meanwhile() {
            return Err(socket::timed_out("the node did not answer in time"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::server::Server;

    #[test]
    fn a_redirection_that_is_one_too_many_has_the_nodes_asked() {
        let server = Server::of("redis+cluster://127.0.0.1:1/", String::new());
        let endpoint = Endpoint::new(server.expect("a good URL"));
        let map = Map::new(endpoint, vec![Address::Tcp("127.0.0.1".into(), 1)]);
        let redirected = |said: &str| {
            let said = redis::parse_redis_value(format!("-{said}\r\n").as_bytes());
            let err = said.expect("a reply").extract_error().expect_err("one");
            map.doubted.store(false, Ordering::Relaxed);
            (map.redirected(0, &err), map.is_doubted())
        };
        let mut known = 0;
        while redirected(&format!("MOVED 7 m{known}:1")) == (Redirected::To(known), true) {
            known += 1;
        }
        assert!((1000..2000).contains(&known), "{known}");
        assert_eq!(redirected("MOVED 7 other:1"), (Redirected::Unknown, true));
        assert_eq!(redirected("ASK 7 other:1"), (Redirected::Unknown, true));
        assert_eq!(redirected("ASK 7 m5:1"), (Redirected::To(5), false));
        let odd = (Redirected::NotUnderstood, false);
        assert_eq!(redirected("MOVED somewhere"), odd);
    }

    #[test]
    fn of_several_reasons_the_one_that_says_most_is_kept() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
        let silent = || socket::timed_out("silent");
        let denied = || RedisError::from((ErrorKind::AuthenticationFailed, "denied"));
        type Why = fn() -> RedisError;
        let said = |whys: &[Why]| {
            let all = whys.iter().map(|why| Unanswered::of(why()));
            let all = all.reduce(Unanswered::and).expect("one");
            (all.to_string(), all.may_pass)
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
