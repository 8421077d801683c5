//! Which address serves a slot now, and when that is in doubt.
//!
//! | source | who has which slots | who is asked | when in doubt |
//! | --- | --- | --- | --- |
//! | a fixed address | all | nobody | never |
//! | Sentinels | the master of the service has all | Sentinels, one after the other | when a connection is to be made; when the Sentinel announces something, is silent, or is gone |
//! | a cluster | each master has some | any node, and the addresses of the URL | when a node is unreachable, rejects a command because the cluster is down or the node is no master, or has lost a slot |
//!
//! ```text
//!             doubt                    somebody needs it, after a pause
//!    known ──────────► in doubt ─────────────────────────────────────────► asking
//!      ▲                  ▲              a thread asks all in turn           │ │
//!      │                  └──────────────────────────────────────────────────┘ │
//!      │                              nobody has answered                      │
//!      └───────────────────────────────────────────────────────────────────────┘
//!                                     the first answer
//! ```
//!
//! At most one thread asks; others wait for it, or go on with what is known. In a cluster, the thread ends after one
//! round. With Sentinels, it stays, and [listens](sentinel) to the Sentinel that has answered, until another thread asks.
//!
//! The mutex `asking` is not held during I/O.

mod cluster;
mod sentinel;
mod table;

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use redis::{RedisError, RedisResult};

use self::sentinel::Service;
use self::table::{Table, named_by};
use crate::config::replicas::ReplicaAck;
use crate::config::server::{Address, Deployment};
use crate::error::{is_transient, lasting, reword_connection_error};
use crate::net::back_off::NextTry;
use crate::net::slot::slot_of;
use crate::net::socket::dial::{Dial, SHARE};
use crate::net::socket::{Duplex, Endpoint, SLICE, connect_to, timed_out};
use crate::report::{self, report};
use crate::verdict::Redirection;

/// The name of the thread that asks.
const THREAD: &str = "redlatch-masters";

/// The masters that a URL leads to, for all connections of a client.
pub(crate) struct Masters {
    endpoint: Endpoint,
    connect_timeout: Duration,
    /// If this is no cluster, one master has all slots.
    is_cluster: bool,
    table: RwLock<Table>,
    /// Counts the changes of the table.
    version: AtomicU64,
    on_change: Box<dyn Fn() + Send + Sync>,
    doubted: AtomicBool,
    asking: Mutex<Asking>,
    changed: Condvar,
    /// Whether channels are sharded. Decided once; Redisson also decides it once.
    sharded: OnceLock<bool>,
}

struct Asking {
    /// A thread asks, or is about to. At most one does.
    under_way: bool,
    /// The number of the last thread that was started.
    thread: u64,
    next: NextTry,
    /// The version of the table at the last round of questions.
    version: u64,
    /// How many rounds there were.
    times: u64,
    /// Why no server answered in the last round; `None` if one did.
    failure: Option<RedisError>,
    /// The index at which the next round of questions begins.
    first: usize,
    service: Service,
    is_closed: bool,
}

/// The most telling of the failures. A lasting error tells most, a passing one such as silence tells less, and a closed
/// port tells least. The result is transient if a node may answer later, because it is starting or was silent.
fn most_telling(reasons: Vec<RedisError>) -> RedisError {
    let may_pass = reasons.iter().any(may_answer_later);
    let says = |why: &RedisError| (!is_transient(why), !why.is_connection_refusal());
    match reasons.into_iter().rev().max_by_key(says) {
        Some(why) if may_pass && !is_transient(&why) => io::Error::other(why.to_string()).into(),
        Some(why) => why,
        None => timed_out("no node of the cluster answered"),
    }
}

/// Whether asking again soon may help. If the port is closed, nobody listens there, and only the election of another
/// master would help.
pub(crate) fn may_answer_later(why: &RedisError) -> bool {
    is_transient(why) && !why.is_connection_refusal()
}

impl Masters {
    /// The masters that a URL leads to. `on_change` is called after each change, perhaps under a mutex, so it must do no
    /// more than wake a thread.
    pub(crate) fn new(
        endpoint: Endpoint,
        connect_timeout: Duration,
        on_change: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let deployment = &endpoint.server.deployment;
        Self {
            is_cluster: matches!(deployment, Deployment::Cluster { .. }),
            doubted: AtomicBool::new(!matches!(deployment, Deployment::Single(_))),
            endpoint,
            connect_timeout,
            table: RwLock::new(Table::new()),
            version: AtomicU64::new(0),
            on_change: Box::new(on_change),
            asking: Mutex::new(Asking {
                under_way: false,
                thread: 0,
                next: NextTry::at_once(),
                version: 0,
                times: 0,
                failure: None,
                first: 0,
                service: Service::default(),
                is_closed: false,
            }),
            changed: Condvar::new(),
            sharded: OnceLock::new(),
        }
    }

    /// The number of the master of a key; without a key, the number of the first slot's master.
    pub(crate) fn master_of(&self, key: Option<&[u8]>) -> Option<usize> {
        if self.is_one() {
            return Some(0);
        }
        self.owner(key.map_or(0, slot_of))
    }

    /// The master of a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        match self.is_one() {
            true => Some(0),
            false => self.table.read().owner(slot),
        }
    }

    /// All masters.
    pub(crate) fn masters(&self) -> Vec<usize> {
        match self.is_one() {
            true => vec![0],
            false => self.table.read().masters(),
        }
    }

    pub(crate) fn is_master(&self, node: usize) -> bool {
        self.is_one() || self.table.read().is_master(node)
    }

    /// Whether the last answer about the slots named this node. If so, its TLS certificate should be valid for its
    /// address, so a failed TLS check is final. A node that only a redirection has named may be known by an IP that its
    /// certificate does not contain.
    pub(crate) fn is_named(&self, node: usize) -> bool {
        self.is_one() || self.table.read().is_named(node)
    }

    /// How to connect to a node.
    pub(crate) fn endpoint(&self, node: usize) -> Endpoint {
        match self.address(node) {
            None => self.endpoint.clone(),
            Some(address) => self.endpoint.node(address),
        }
    }

    /// In a cluster, the address of a node; for an unknown node, the first address of the URL.
    fn address(&self, node: usize) -> Option<Address> {
        let Deployment::Cluster { seeds } = &self.endpoint.server.deployment else {
            return None;
        };
        let table = self.table.read();
        Some(table.address(node).unwrap_or(&seeds[0]).clone())
    }

    /// Whether one master has all slots.
    pub(crate) fn is_one(&self) -> bool {
        !self.is_cluster
    }

    /// Rises with every change of the table.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Records that the table has changed. Called after the change, so a thread that finds the new version reads the new
    /// table.
    fn record_change(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        (self.on_change)();
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded.get().copied().unwrap_or(false)
    }

    /// Records that another address may serve a slot by now. A fixed address is not affected.
    pub(crate) fn doubt(&self) {
        let is_fixed = matches!(self.endpoint.server.deployment, Deployment::Single(_));
        self.doubted.store(!is_fixed, Ordering::Release);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// Which node a redirection by the node `from` names. After `MOVED`, the table has that node as the slot's master.
    pub(crate) fn redirected(&self, from: usize, redirection: &Redirection) -> usize {
        // Outside a cluster, one server has every slot.
        let Some(asked) = self.address(from) else {
            return from;
        };
        let mut table = self.table.write();
        let node = table.called(&named_by(redirection, &asked));
        if !redirection.is_asking && table.owner(redirection.slot) != Some(node) {
            table.moved(redirection.slot, node);
            drop(table);
            self.record_change();
            self.doubt();
        }
        node
    }

    /// Makes a connection to a node. With Sentinels, the connection leads to the master that they name now.
    pub(in crate::net) fn connect(
        self: &Arc<Self>,
        node: usize,
        dial: &mut Dial,
    ) -> RedisResult<Duplex> {
        match &self.endpoint.server.deployment {
            Deployment::Sentinel { .. } => self.connect_to_named(dial),
            _ => connect_to(dial, &self.endpoint(node)),
        }
    }

    /// Like [`refresh`](Self::refresh), but only logs a failure: the caller goes on with the masters that it knows.
    pub(crate) fn look_around(self: &Arc<Self>, until: Instant, stop: &dyn Fn() -> bool) {
        if let Err(err) = self.refresh(until, stop) {
            report!(
                Debug,
                "looking for the masters of the cluster failed: {err}"
            );
        }
    }

    /// If the masters are in doubt, makes a thread ask for them and waits for the answer.
    pub(crate) fn refresh(
        self: &Arc<Self>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> RedisResult<()> {
        let mut asking = self.asking.lock();
        let begun = asking.times;
        // The thread that asks clears the doubt before its first question, so while it asks, its answer is awaited even
        // without a doubt.
        while self.is_doubted() || asking.under_way {
            let now = Instant::now();
            if now >= until || stop() || asking.is_closed {
                return Err(timed_out("no node has named the masters in time"));
            }
            let mut look_at = until.min(now + SLICE);
            if !asking.under_way {
                // The failure of a round that ended before `refresh` was called does not count.
                if let Some(failure) = asking.failure.as_ref().filter(|_| asking.times != begun) {
                    return Err(failure.clone());
                }
                let again_at = asking.next.due(true);
                if now >= again_at {
                    self.begin(&mut asking);
                    // `begin` released the mutex for a moment, so everything is checked again.
                    continue;
                }
                look_at = look_at.min(again_at);
            }
            self.changed.wait_until(&mut asking, look_at);
        }
        Ok(())
    }

    /// If the masters are in doubt, makes a thread ask for them in the background; less and less often while nothing is
    /// new.
    pub(crate) fn want(self: &Arc<Self>) {
        if self.is_doubted() {
            let mut asking = self.asking.lock();
            if !asking.under_way && !asking.is_closed && Instant::now() >= asking.next.due(false) {
                self.begin(&mut asking);
            }
        }
    }

    /// Starts a thread that asks. The one that listens to a Sentinel is not woken instead: it may be in the logger, which
    /// is user code and may itself wait for the answer. The listening thread finds its connection cut and another number
    /// in `thread`, and ends.
    fn begin(self: &Arc<Self>, asking: &mut MutexGuard<'_, Asking>) {
        asking.under_way = true;
        asking.thread += 1;
        let (this, number) = (Arc::clone(self), asking.thread);
        let thread = std::thread::Builder::new().name(THREAD.into());
        let started = thread.spawn(move || match this.is_cluster {
            true => drop(this.ask()),
            false => this.follow(number),
        });
        if let Err(err) = started {
            // Resets `under_way`, or all callers would wait for a thread that does not exist.
            self.end(asking, Instant::now(), Some(err.into()));
        }
        let sentinel = asking.service.sentinel();
        MutexGuard::unlocked(asking, || {
            sentinel.iter().for_each(|socket| socket.shut_down())
        });
    }

    /// Asks, and tells the waiting threads the outcome. Returns the Sentinel that has answered, to be listened to.
    fn ask(&self) -> Option<Duplex> {
        let began = Instant::now();
        // Log records are held back: the logger is user code, and may itself wait until this thread has asked.
        let _held_back = report::hold_back();
        // Cleared before the first question, so that a doubt that arises during the questions stays: the answer may not
        // reflect its cause yet.
        self.doubted.store(false, Ordering::Release);
        let asked = std::panic::catch_unwind(AssertUnwindSafe(|| self.ask_around()));
        let panicked = |_| Err(lasting("asking for the masters panicked".into()));
        let asked = asked.unwrap_or_else(panicked);
        let mut asking = self.asking.lock();
        self.end(&mut asking, began, asked.as_ref().err().cloned());
        // If the client was closed during the questions, `stop` could not shut this connection down. So it is dropped
        // here.
        let sentinel = asked.ok().flatten().filter(|_| !asking.is_closed);
        asking.service.sentinel = sentinel
            .as_ref()
            .map(|sentinel| Arc::downgrade(&sentinel.writer));
        sentinel
    }

    /// A round is over, or its thread could not be started: sets when the next may begin, and tells the waiting threads.
    fn end(&self, asking: &mut Asking, began: Instant, failure: Option<RedisError>) {
        let version = self.version();
        // The next round comes after a pause, even after a success. With Sentinels, any answer makes the pauses short
        // again; in a cluster, only a change of the table since the last round, by an answer or a `MOVED`.
        if asking.version != version || failure.is_none() && !self.is_cluster {
            asking.next = NextTry::at_once();
        }
        if failure.is_some() {
            self.doubt();
        }
        asking.under_way = false;
        asking.next = asking.next.after_failure(began);
        asking.version = version;
        asking.times += 1;
        asking.failure = failure;
        self.changed.notify_all();
    }

    /// Asks the Sentinels, or the nodes, in turn until one has answered.
    fn ask_around(&self) -> RedisResult<Option<Duplex>> {
        let servers = match &self.endpoint.server.deployment {
            Deployment::Sentinel { sentinels, .. } => sentinels.clone(),
            Deployment::Cluster { seeds } => self.table.read().witnesses(seeds),
            Deployment::Single(_) => return Ok(None),
        };
        // While a server does not answer, the others are not asked, so each server gets only a share of the time.
        // Connecting and asking takes four round trips, more with TLS, and a round trip to a distant server is long. So
        // the share grows with `connect_timeout`, within limits.
        let all = u32::try_from(servers.len()).unwrap_or(u32::MAX);
        let share = (self.connect_timeout / all.saturating_add(1)).clamp(SHARE, 4 * SHARE);
        let first = self.asking.lock().first;
        let mut failures = Vec::new();
        for n in 0..servers.len() {
            let at = (first + n) % servers.len();
            let failure = match self.ask_one(&servers[at], share) {
                Ok(sentinel) => {
                    // A node of a cluster may be cut off without knowing it, so the next round begins with another one.
                    self.asking.lock().first = at + usize::from(self.is_cluster);
                    return Ok(sentinel);
                }
                Err(err) => err,
            };
            report!(
                Debug,
                "asking {} for the masters failed: {failure}",
                servers[at]
            );
            failures.push(failure);
        }
        match self.asking.lock().service.begin_again() {
            true => Ok(None),
            false => Err(most_telling(failures)),
        }
    }

    fn ask_one(&self, address: &Address, share: Duration) -> RedisResult<Option<Duplex>> {
        let connect = |endpoint: &Endpoint, role| {
            let mut dial = Dial::by_itself(role, share);
            let connection = connect_to(&mut dial, endpoint)?;
            dial.set_reason(timed_out("it did not answer in time"));
            Ok::<_, RedisError>((connection, dial))
        };
        let Deployment::Sentinel { service, login, .. } = &self.endpoint.server.deployment else {
            let (connection, dial) = connect(&self.endpoint.witness(address.clone()), "topology")?;
            return self.ask_node(address, connection, &dial).map(|()| None);
        };
        let endpoint = self.endpoint.other(address.clone(), |server| {
            (server.login, server.db) = (login.clone(), 0);
            server.replica_ack = ReplicaAck::None;
        });
        let asked = connect(&endpoint, "sentinel")
            .and_then(|(connection, dial)| self.ask_sentinel(connection, service, &dial, share));
        asked.map(Some).map_err(|err| {
            let text = format!("no Sentinel has named the master of `{service}`: {address}: {err}");
            reword_connection_error(&err, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::server::Server;

    #[test]
    fn a_slot_that_has_moved_is_a_reason_to_ask() {
        let server = Server::of("redis+cluster://127.0.0.1:1/");
        let masters = Masters::new(Endpoint::new(server.expect("a good URL")), SLICE, || {});
        let redirected = |host: &str, is_asking| {
            let redirection = Redirection {
                slot: 7,
                host: host.into(),
                port: 1,
                is_asking,
            };
            masters.doubted.store(false, Ordering::Relaxed);
            let node = masters.redirected(0, &redirection);
            (node, masters.is_doubted(), masters.version())
        };
        assert_eq!(redirected("a", false), (0, true, 1));
        assert_eq!(redirected("a", false), (0, false, 1));
        assert_eq!(redirected("b", true), (1, false, 1));
    }

    #[test]
    fn of_several_reasons_the_one_that_says_most_is_kept() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused).into();
        let silent = || timed_out("silent");
        let denied = || RedisError::from((redis::ErrorKind::AuthenticationFailed, "denied"));
        type Why = fn() -> RedisError;
        for (whys, why, may_pass) in [
            (&[refused as Why, refused][..], refused(), false),
            (&[refused, silent], silent(), true),
            (&[silent, refused], silent(), true),
            (&[refused, denied], denied(), false),
            (&[denied, silent, refused], denied(), true),
        ] {
            let found = most_telling(whys.iter().map(|why| why()).collect());
            assert_eq!(found.to_string(), why.to_string());
            assert_eq!(may_answer_later(&found), may_pass, "{found}");
        }
    }
}
