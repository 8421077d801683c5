//! A cluster: a connection to each of its masters, and calls that find theirs.
//!
//! A call goes to the master that has the slot of its first key. What is wrong with that the nodes say themselves, and
//! each answer leaves a call in one place:
//!
//! ```text
//!                     MOVED: the slot is there from now on
//!                ┌────────────────────────────────────────────┐
//!                ▼                                            │
//!    slot's master ──sent──► answered                         │
//!       │     ▲   │                                           │
//!       │     │   └──ASK──► another node, behind ASKING ──────┤
//!       │     │                  │                            │
//!       │     └── TRYAGAIN, CLUSTERDOWN: after a pause ◄──────┘
//!       │
//!       └── away: the slots are asked for anew, until somebody has them or the time is up
//! ```
//!
//! **Calls that somebody waits for** follow at once, a few times in a row, and are made anew if their outcome is unknown
//! ([`route`](crate::net::route)). **Releases that nobody waits for** are handed over by the thread that reads the
//! answer. Those that no connection has acknowledged move to the new master's as soon as it is known that there is one,
//! in their order. A release is always in one place: under way on one connection, or unacknowledged at one.
//!
//! A node that was a master once keeps its number and its [`Connection`] for ever, so whoever notes where a call went
//! finds it there. One that is none any more is left unconnected once nothing has been sent there for a while.
//!
//! Mutexes: `connections`, then a connection's, then a call's, then that of the topology. None is held while doing I/O.

mod map;

mod topology;

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

pub(crate) use self::map::{Map, Redirected, is_no_cluster};
use crate::error::{is_redirection, is_transient};
use crate::net::call::{Call, CallPhase, DeferredInfo, Fault, OnReply};
use crate::net::connection::{Connection, Housekeeper};
use crate::net::pipeline::Destination;
use crate::net::route::{Retry, Route};
use crate::net::socket::{self, Meanwhile};
use crate::report::report;
use crate::stats::Counters;

/// How long a node that is away is tried before the others are asked whether it is a master still.
const TURN: Duration = Duration::from_millis(100);

/// How often in a row nodes may send a release to each other before it takes a rest.
const REDIRECTIONS: u8 = 4;

/// How the connections of a client are made.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) housekeeper: Arc<dyn Housekeeper>,
}

/// The connections for one purpose to all masters of a cluster.
pub(crate) struct Cluster {
    map: Arc<Map>,
    /// The name of the connections.
    role: &'static str,
    settings: Settings,
    on_reply: Arc<dyn OnReply>,
    /// By the number of the node.
    connections: RwLock<Vec<Arc<Connection>>>,
    /// The version of the topology by which the unacknowledged calls are where they belong.
    sorted: AtomicU64,
    closed: AtomicBool,
}

/// Takes what becomes of releases, and hands those on that belong to another node.
struct Forwarding {
    releases: Arc<dyn OnReply>,
    cluster: Weak<Cluster>,
}

impl OnReply for Forwarding {
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool) {
        self.releases.released(release, reply, replayed);
    }

    fn given_up(&self, release: &DeferredInfo, why: &RedisError) {
        self.releases.given_up(release, why);
    }

    fn redirects(&self) -> bool {
        self.cluster.strong_count() > 0
    }

    fn redirect(&self, release: &Arc<Call>, to: &RedisError) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.hand_over(release, to);
        }
    }
}

impl Cluster {
    pub(crate) fn new(
        map: Arc<Map>,
        role: &'static str,
        settings: Settings,
        releases: Arc<dyn OnReply>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|cluster| Self {
            map,
            role,
            settings,
            on_reply: Arc::new(Forwarding {
                releases,
                cluster: Weak::clone(cluster),
            }),
            connections: RwLock::default(),
            sorted: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Learns who has which slot, from any node. Those that are starting up are waited for, even if others refuse.
    pub(crate) fn open(&self, until: Instant) -> Result<(), RedisError> {
        let mut why = socket::timed_out("no node of the cluster answered in time");
        loop {
            match self.map.refresh(until, &mut || true) {
                Ok(()) if !self.map.is_doubted() => return Ok(()),
                Ok(()) => {}
                Err(unanswered) if unanswered.may_pass => {
                    // What was said before tells more than an attempt that was cut short at the end.
                    if why.is_timeout() || !unanswered.why.is_timeout() {
                        why = unanswered.why;
                    }
                }
                Err(unanswered) => return Err(unanswered.why),
            }
            if Instant::now() >= until {
                return Err(why);
            }
        }
    }

    pub(crate) fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Connections of their own for another purpose, to the same masters.
    pub(crate) fn for_role(&self, role: &'static str) -> Arc<Self> {
        let settings = Settings {
            // Only commands of locks are counted.
            counters: Arc::default(),
            ..self.settings.clone()
        };
        let releases = Arc::clone(&self.on_reply);
        Self::new(Arc::clone(&self.map), role, settings, releases)
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.map.is_sharded()
    }

    /// The connection to a node, which may not stand.
    fn connection(&self, node: usize) -> Arc<Connection> {
        if let Some(known) = self.connections.read().get(node) {
            return Arc::clone(known);
        }
        let mut connections = self.connections.write();
        while connections.len() <= node {
            let connection = Connection::new(
                self.map.endpoint(connections.len()),
                self.settings.connect_timeout,
                self.settings.response_timeout,
                Arc::clone(&self.settings.counters),
                Arc::clone(&self.settings.housekeeper),
                Arc::clone(&self.on_reply),
            );
            let to = Destination {
                node: connections.len(),
                sharded: self.map.is_sharded(),
            };
            let connection = connection.leading(self.role, to);
            if self.closed.load(Ordering::SeqCst) {
                connection.close();
            }
            connections.push(Arc::new(connection));
        }
        Arc::clone(&connections[node])
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        self.connections.read().clone()
    }

    /// The connection that what has no key goes to.
    pub(crate) fn first(&self) -> Arc<Connection> {
        self.connection(self.map.master_of(None).unwrap_or(0))
    }

    /// Where a call belongs now, as far as that is known.
    pub(crate) fn destination(&self, call: &Call) -> Option<usize> {
        if call.state.lock().asking {
            return Some(call.node());
        }
        self.map.master_of(call.request.first_key())
    }

    /// A node has sent a call elsewhere.
    fn follow(&self, call: &Call, err: &RedisError) -> Redirected {
        let redirected = self.map.redirected(call.node(), err);
        let mut its = call.state.lock();
        its.asking = false;
        if let Redirected::To(node) = redirected
            && err.kind() == ErrorKind::Server(ServerErrorKind::Ask)
        {
            its.asking = true;
            call.sent_to(node);
        }
        redirected
    }

    /// Sends a release on to where a node has said that it belongs.
    fn hand_over(&self, release: &Arc<Call>, err: &RedisError) {
        let is_known = matches!(self.follow(release, err), Redirected::To(_));
        let mut its = release.state.lock();
        its.redirected = its.redirected.saturating_add(1);
        let rests = !is_known || its.redirected > REDIRECTIONS;
        if rests {
            its.redirected = 0;
            its.asking = false;
        }
        drop(its);
        self.move_to_master(release, rests);
    }

    /// Has the connection to where a release belongs take it over.
    fn move_to_master(&self, release: &Arc<Call>, rests: bool) {
        release.may_be_overtaken();
        let node = self.destination(release).unwrap_or(0);
        let to = self.connection(node);
        if to.take_over(release, rests) {
            if !rests {
                to.flush(false);
            }
            to.housekeep_soon();
        } else if let Some(info) = &release.deferred {
            // Those that a connection has are counted when it is closed.
            let why = socket::timed_out("the client is closed");
            self.on_reply.given_up(info, &why);
            release.state.lock().phase = CallPhase::Broken(why);
        }
    }

    /// Looks who has the slots, if that is in doubt, and has calls that nobody waits for follow.
    fn look_around(&self, until: Instant, meanwhile: Meanwhile<'_>) {
        if self.map.is_doubted()
            && let Err(err) = self.map.refresh(until, meanwhile)
        {
            report!(Debug, "looking for the masters of the cluster: {err}");
        }
        self.sort();
    }

    /// Moves calls that no connection has acknowledged to where they belong by now.
    fn sort(&self) {
        let version = self.map.version();
        if self.sorted.swap(version, Ordering::AcqRel) == version {
            return;
        }
        for connection in self.all() {
            self.move_strays(&connection);
        }
    }

    fn move_strays(&self, from: &Connection) {
        let strays = from.take_strays(|call| {
            let asking = std::mem::take(&mut call.state.lock().asking);
            let master = self.destination(call);
            !asking && master.is_none_or(|master| master == from.node())
        });
        for call in &strays {
            self.move_to_master(call, false);
        }
    }

    /// What goes on in the background at one connection; whether something is left.
    fn work_on(&self, connection: &Connection, work: impl FnOnce(&Connection) -> bool) -> bool {
        let left = work(connection);
        if connection.is_missed() {
            // Its node may be a master no more.
            self.map.doubt();
            self.move_strays(connection);
        }
        left
    }

    /// Queues a call for where it belongs. Memory only; see [`Connection::submit`].
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        let node = self.destination(call).unwrap_or(0);
        self.connection(node).submit(call)
    }

    /// See [`Connection::flush`].
    pub(crate) fn flush(&self, all: bool) {
        for connection in self.all() {
            connection.flush(all);
        }
    }

    /// Looks whether the connections stand that were used before. For a client that holds something.
    pub(crate) fn look_after(&self) {
        for (node, connection) in self.all().into_iter().enumerate() {
            if connection.was_used() && self.map.is_master(node) {
                connection.look_after();
            }
        }
    }

    /// See [`Connection::housekeep`].
    pub(crate) fn housekeep(&self, until: Instant, meanwhile: Meanwhile<'_>) -> bool {
        self.look_around(until, meanwhile);
        let mut left = self.retire_others();
        left |= self.housekeep_connections(until, meanwhile);
        left || self.map.is_doubted()
    }

    /// The same, with the masters as they are known.
    pub(crate) fn housekeep_connections(&self, until: Instant, meanwhile: Meanwhile<'_>) -> bool {
        let mut left = false;
        for connection in self.all() {
            left |= self.work_on(&connection, |its| its.housekeep(until, meanwhile));
        }
        left
    }

    /// Drops the connections to nodes that are no masters, once they are not used any more; whether there are any left.
    pub(crate) fn retire_others(&self) -> bool {
        let all = self.all();
        let others = all.iter().filter(|its| !self.map.is_master(its.node()));
        others.fold(false, |left, its| its.retire() | left)
    }

    /// See [`Connection::drain_some`].
    pub(crate) fn drain_some(&self, until: Instant) -> bool {
        self.look_around(until, &mut || true);
        let mut left = false;
        for connection in self.all() {
            let turn = until.min(Instant::now() + TURN);
            left |= self.work_on(&connection, |its| its.drain_some(turn));
        }
        left
    }

    /// See [`Connection::close`].
    pub(crate) fn close(&self) -> (u64, u64) {
        self.closed.store(true, Ordering::SeqCst);
        let closed = self.connections.write().clone();
        let closed = closed.iter().map(|connection| connection.close());
        closed.fold((0, 0), |sum, its| (sum.0 + its.0, sum.1 + its.1))
    }
}

impl Route for Cluster {
    type To<'a> = Arc<Connection>;

    fn at(&self, call: &Call) -> Arc<Connection> {
        self.connection(call.node())
    }

    fn is_at(&self, call: &Call, to: &Connection) -> bool {
        call.node() == to.node()
    }

    fn up(
        &self,
        call: &Call,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Arc<Connection>, Fault> {
        loop {
            let why = match self.destination(call) {
                None => socket::timed_out("no master is known for the key's slot"),
                Some(node) => {
                    let to = self.connection(node);
                    let turn = until.min(Instant::now() + TURN);
                    let mut stopped = false;
                    let stood = to.up(turn, &mut || {
                        stopped = !meanwhile();
                        !stopped && self.destination(call) == Some(node)
                    });
                    match stood {
                        Ok(()) => return Ok(to),
                        // The slot is elsewhere by now.
                        Err(Fault::Stopped) if !stopped => continue,
                        Err(Fault::Unreachable(why)) => to.named(why),
                        // Its certificate may be made out to a name that the others know.
                        Err(Fault::Refused(why)) if self.map.is_unconfirmed(node) => to.named(why),
                        Err(fault) => return Err(fault),
                    }
                }
            };
            if Instant::now() >= until {
                return Err(Fault::Unreachable(why));
            }
            // Where it was sent to is away.
            call.state.lock().asking = false;
            self.map.doubt();
            let mut stopped = false;
            self.look_around(until, &mut || {
                stopped = !meanwhile();
                !stopped
            });
            if stopped {
                return Err(Fault::Stopped);
            }
        }
    }

    fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        self.submit(call)
    }

    fn refused(&self, to: &Connection, generation: u64, call: &Call, err: &RedisError) -> Retry {
        if is_redirection(err) {
            return match self.follow(call, err) {
                Redirected::To(_) => Retry::Elsewhere,
                Redirected::Unknown => {
                    to.housekeep_soon();
                    Retry::Later
                }
                Redirected::NotUnderstood => Retry::Never,
            };
        }
        call.state.lock().asking = false;
        if !is_transient(err) {
            return Retry::Never;
        }
        match err.kind() {
            ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                self.map.doubt();
                to.leave(generation, err);
            }
            ErrorKind::Server(ServerErrorKind::ClusterDown) => self.map.doubt(),
            _ => {}
        }
        Retry::Later
    }

    fn lost(&self, _: &Call) {
        self.map.doubt();
    }

    fn bring(&self, call: &Arc<Call>) {
        let at = self.at(call);
        if self.destination(call).is_some_and(|to| to != at.node()) {
            self.move_strays(&at);
        }
        self.at(call).bring(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::LazyLock;
    use std::sync::atomic::AtomicUsize;

    use crate::config::server::{Address, Server};
    use crate::net::call::Deferred;
    use crate::net::request::{Request, Script};
    use crate::net::slot::slot_of;
    use crate::net::socket::Endpoint;

    static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

    #[derive(Default)]
    struct Releases {
        given_up: AtomicUsize,
    }

    impl OnReply for Releases {
        fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

        fn given_up(&self, _: &DeferredInfo, _: &RedisError) {
            self.given_up.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Nobody;

    impl Housekeeper for Nobody {
        fn housekeep_soon(&self) {}
    }

    /// One whose nodes are away.
    fn cluster(releases: &Arc<Releases>) -> Arc<Cluster> {
        let server = Server::of("redis+cluster://127.0.0.1:1/", String::new());
        let endpoint = Endpoint::new(server.expect("a good URL"));
        let map = Map::new(endpoint, vec![Address::Tcp("127.0.0.1".into(), 1)]);
        let timeout = Duration::from_secs(1);
        let settings = Settings {
            connect_timeout: timeout,
            response_timeout: timeout,
            counters: Arc::default(),
            housekeeper: Arc::new(Nobody),
        };
        let releases = Arc::clone(releases) as _;
        Cluster::new(Arc::new(map), socket::COMMANDS, settings, releases)
    }

    fn says(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        value.expect("a reply").extract_error().expect_err("one")
    }

    /// The master of a key is that with this port.
    fn has_moved(cluster: &Cluster, key: &str, port: u16) -> RedisError {
        let slot = slot_of(key.as_bytes());
        let moved = says(&format!("MOVED {slot} 127.0.0.1:{port}"));
        let to = cluster.map.redirected(0, &moved);
        assert!(matches!(to, Redirected::To(_)), "{to:?}");
        moved
    }

    fn release(key: &str) -> Arc<Call> {
        Call::deferred(Deferred {
            request: Request::script("releasing", &RELEASE, &[key], &["o:1"]),
            info: DeferredInfo {
                name: key.into(),
                useful_until: Instant::now() + Duration::from_secs(60),
                undo: false,
                for_good: false,
            },
        })
    }

    #[test]
    fn a_release_that_is_redirected_while_the_client_is_closed_counts_as_given_up() {
        let releases = Arc::new(Releases::default());
        let cluster = cluster(&releases);
        let moved = has_moved(&cluster, "a", 1);
        assert_eq!(cluster.submit(&release("a")), None, "it is kept");
        cluster.hand_over(&release("a"), &moved);
        cluster.hand_over(&release("a"), &says("MOVED somewhere"));
        assert_eq!(cluster.close(), (3, 0));
        let given_up = || releases.given_up.load(Ordering::SeqCst);
        assert_eq!(given_up(), 0);
        for to in [moved, says("MOVED somewhere")] {
            let late = release("a");
            cluster.hand_over(&late, &to);
            assert!(matches!(late.outcome(), Some(Err(_))), "it is over");
        }
        assert_eq!(given_up(), 2);
        assert_eq!(cluster.close(), (0, 0));
    }

    #[test]
    fn a_release_is_delivered_without_a_look_at_other_connections() {
        let cluster = cluster(&Arc::default());
        let [a, b] = ["a", "b"].map(release);
        for (port, key) in [(1, "a"), (2, "b")] {
            has_moved(&cluster, key, port);
        }
        for call in [&a, &b] {
            assert_eq!(cluster.submit(call), None, "it is kept");
        }
        let other = cluster.at(&b);
        assert_ne!(other.node(), cluster.at(&a).node());
        let (done, is_done) = crossbeam_channel::bounded(1);
        let used = other.while_used();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cluster.deliver(&a);
                done.send(()).expect("somebody waits");
            });
            let done = is_done.recv_timeout(Duration::from_secs(60));
            drop(used);
            assert!(done.is_ok(), "it waits for the other");
        });
    }

    #[test]
    fn a_redirection_that_is_one_too_many_is_followed_once_the_nodes_were_asked() {
        let cluster = cluster(&Arc::default());
        let call = release("a");
        let to = cluster.at(&call);
        let mut seen = Vec::new();
        for node in 0..2000 {
            let moved = says(&format!("MOVED 1 m{node}:1"));
            seen.push(cluster.refused(&to, 1, &call, &moved));
        }
        seen.dedup();
        assert!(seen == [Retry::Elsewhere, Retry::Later]);
        assert!(cluster.map.is_doubted());
    }

    #[test]
    fn a_redirection_that_is_not_understood_is_shown_as_it_is() {
        let cluster = cluster(&Arc::default());
        let call = release("a");
        let odd = says("MOVED somewhere");
        let to = cluster.at(&call);
        assert!(cluster.refused(&to, 1, &call, &odd) == Retry::Never);
        let said = |fault: Fault| fault.into_error("testing", "a").to_string();
        let shown = said(cluster.refusal(odd.clone()));
        assert!(
            shown.contains("somewhere") && !shown.contains("redis+cluster"),
            "{shown}"
        );
        let shown = said(Route::refusal(&*to, odd));
        assert!(shown.contains("redis+cluster"), "{shown}");
    }
}
