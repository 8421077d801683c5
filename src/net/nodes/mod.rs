//! The masters of a client: a connection to each, and calls that find theirs. A single server counts as a cluster of one node
//! that always has every slot.
//!
//! A call goes to the master that is known to have the slot of its first key. If another node has the slot, the answer names
//! that node. The answer decides where the call goes next, whichever node gives it:
//!
//! | answer | next |
//! | --- | --- |
//! | a reply, or an error that does not pass | nowhere: the call has its answer |
//! | `MOVED` | to the node that the answer names, which has the slot from now on |
//! | `ASK` | to the node that the answer names, behind `ASKING` |
//! | `TRYAGAIN`, `CLUSTERDOWN`, or another error that passes | to the slot's master, after a pause |
//! | none: the node is unreachable | to the slot's master; while no master of the slot is reachable, the nodes are asked which it is |
//!
//! **A call for which a thread waits** follows a redirection at once, a few times in a row, and is made again if its outcome is
//! unknown ([`calls`]). **A release for which no thread waits** goes to the [ledger](super::ledger) when its answer is read.
//! The connection of the new master takes it from there; behind `ASK`, housekeeping submits it.
//!
//! A node that was a master once keeps its number and its [`Connection`] until the client is closed, so a thread that
//! knows to which node a call went finds its connection. When the table of masters has changed, the connections to nodes
//! that are no longer masters are dropped. A connection to such a node that is made later, for example to follow an `ASK`,
//! stays until the table changes again.
//!
//! Mutexes: `closed`, then a connection's, the ledger's, a call's, and those of the masters. None is held while doing I/O.

pub(crate) mod calls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{RedisError, Value};

use crate::error::named;
use crate::net::apart::Apart;
use crate::net::call::{Call, CallPhase, Deferred, Fault};
pub(crate) use crate::net::connection::Settings;
use crate::net::connection::{Connection, WorkLeft};
use crate::net::ledger::Ledger;
use crate::net::masters::{Masters, may_answer_later};
use crate::net::socket;
use crate::verdict::{self, Reach, RequestKind, Verdict, verdict};

/// How many useless entries of the ledger are settled in one step.
const USELESS: usize = 256;

/// The connections for one purpose to all masters.
pub(crate) struct Nodes {
    pub(crate) map: Arc<Masters>,
    /// The name of the connections.
    role: &'static str,
    settings: Settings,
    ledger: Arc<Ledger>,
    connections: Numbered,
    /// The version of the table of masters when connections to former masters were last retired.
    retired_at_version: AtomicU64,
    /// Whether the client is closed. The mutex is held while a connection is added, so `close` finds that connection. A
    /// connection that is added after `close` is closed from the start.
    closed: Mutex<bool>,
}

/// Connections by the numbers of their nodes. All stay where they are, so a look-up takes no mutex and clones no `Arc`. A
/// lock and its release look a connection up three times (bench: 64 threads on 64 locks).
#[derive(Default)]
struct Numbered {
    first: [OnceLock<Arc<Connection>>; 16],
    more: OnceLock<Box<Self>>,
}

impl Numbered {
    fn place(&self, node: usize) -> &OnceLock<Arc<Connection>> {
        match self.first.get(node) {
            Some(place) => place,
            None => (self.more.get_or_init(Box::default)).place(node - self.first.len()),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Connection>> {
        let parts = std::iter::successors(Some(self), |part| part.more.get().map(Box::as_ref));
        parts.flat_map(|part| part.first.iter().filter_map(OnceLock::get))
    }
}

impl Nodes {
    pub(crate) fn new(map: Arc<Masters>, role: &'static str, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            retired_at_version: AtomicU64::new(map.version()),
            ledger: Arc::new(Ledger::new(Arc::clone(&map))),
            map,
            role,
            settings,
            connections: Numbered::default(),
            closed: Mutex::default(),
        })
    }

    /// Makes the first connection to a single server, or learns from any node which master of a cluster has which slot. Waits
    /// for nodes that are starting, even if others reject the client.
    pub(crate) fn open(&self, until: Instant) -> Result<(), RedisError> {
        if self.are_one() {
            return self.first().open(until);
        }
        let mut last = None;
        loop {
            let why = match self.map.refresh(until, &|| false) {
                Ok(()) => return Ok(()),
                // An attempt that was cut short explains less than the failure before it.
                Err(why) if why.is_timeout() => last.unwrap_or(why),
                Err(why) => why,
            };
            if Instant::now() >= until || !may_answer_later(&why) {
                return Err(why);
            }
            last = Some(why);
        }
    }

    /// Separate connections to the same masters, for another purpose. Connecting takes at most `most`. The server may be
    /// silent for at most `most` as well: the limit for a silence is half the command timeout, which is at most `2 * most`.
    pub(crate) fn for_role(&self, role: &'static str, most: Duration) -> Arc<Self> {
        let settings = Settings {
            connect_timeout: self.settings.connect_timeout.min(most),
            command_timeout: self.settings.command_timeout.min(2 * most),
            // The counters are for the commands of locks alone.
            counters: Arc::default(),
            ..self.settings.clone()
        };
        Self::new(Arc::clone(&self.map), role, settings)
    }

    /// Starts connecting to each master that `others` are connected to, if there is no connection.
    pub(crate) fn keep_up_with(&self, others: &Self) {
        for other in others.connections.all() {
            if other.was_used() && self.map.is_master(other.node) {
                self.connection(other.node).want();
            }
        }
    }

    /// Whether there is one server, which always has every slot.
    pub(crate) fn are_one(&self) -> bool {
        self.map.is_one()
    }

    /// Whether the number that a release returns counts everybody who was notified: nodes of a cluster with plain
    /// channels count their own clients alone.
    pub(crate) fn counts_listeners(&self) -> bool {
        self.are_one() || self.map.is_sharded()
    }

    /// The connection to a node; it may be down.
    fn connection(&self, node: usize) -> &Arc<Connection> {
        let place = self.connections.place(node);
        place.get().unwrap_or_else(|| {
            // Held until the connection is in its place: `close` finds it there, or it is closed from the start.
            let closed = self.closed.lock();
            place.get_or_init(|| Arc::new(self.new_connection(node, *closed)))
        })
    }

    fn new_connection(&self, node: usize, closed: bool) -> Connection {
        let (settings, ledger) = (self.settings.clone(), Arc::clone(&self.ledger));
        let connection = Connection::new(self.role, node, settings, ledger);
        if closed {
            connection.close();
        }
        connection
    }

    /// The connection to the only server; of a cluster, that which gets the commands without a key.
    pub(crate) fn first(&self) -> &Arc<Connection> {
        self.connection(self.map.master_of(None).unwrap_or(0))
    }

    /// Where a call belongs now, as far as that is known.
    pub(crate) fn destination(&self, call: &Call) -> Option<usize> {
        if self.are_one() {
            return Some(0);
        }
        if call.state.lock().asking {
            return Some(call.node());
        }
        self.map.master_of(call.request.first_key())
    }

    /// Does the background work at each connection, and in the ledger.
    fn work(&self, work: impl Fn(&Arc<Connection>) -> WorkLeft) -> WorkLeft {
        self.map.want();
        let mut work_left = self.give_up_useless();
        for call in self.ledger.take_asked() {
            // Without a connection to that node, `submit` puts the call back into the ledger. Then the master of the slot gets
            // it and answers `ASK` again; by that time the connection made here may be up.
            self.at(&call).want();
            self.submit(&call);
        }
        // The rest is taken by the connections below. This creates those that are missing, and their housekeeping dials.
        for node in self.ledger.nodes() {
            work_left = work_left.max(WorkLeft::Later);
            match node {
                Some(node) => _ = self.connection(node),
                None => self.map.doubt(),
            }
        }
        let version = self.map.version();
        let has_changed = self.retired_at_version.swap(version, Ordering::AcqRel) != version;
        for connection in self.connections.all() {
            if has_changed && !self.map.is_master(connection.node) {
                connection.retire();
            }
            work_left = work_left.max(work(connection));
            if !self.are_one() && connection.is_missed() {
                // The node may not be a master any more.
                self.map.doubt();
            }
        }
        work_left
    }

    /// Settles entries of the ledger that are useless. Not all at once, since an outage may leave very many.
    fn give_up_useless(&self) -> WorkLeft {
        let why = socket::timed_out("redis did not execute it in time");
        let useless = self.ledger.take_useless(Instant::now(), USELESS);
        for call in &useless {
            // The call is neither in the ledger nor on a connection, so no other thread settles it.
            call.state.lock().phase = CallPhase::Broken(why.clone());
            if let Some(info) = &call.deferred {
                self.settings.on_reply.given_up(info, &why);
            }
        }
        match useless.len() {
            USELESS => WorkLeft::More,
            _ => WorkLeft::Nothing,
        }
    }

    /// Queues a call for where it belongs. Memory only; see [`Connection::submit`].
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        let node = self.destination(call).unwrap_or(0);
        self.connection(node).submit(call)
    }

    /// Submits and writes a deferred call.
    pub(crate) fn send_deferred(&self, deferred: Deferred) {
        let call = Call::deferred(deferred);
        self.submit(&call);
        let at = self.at(&call);
        // No connection is made here: a caller that goes on makes one, and reports a failure.
        at.flush(false);
        at.housekeep_soon();
    }

    /// See [`Connection::flush`].
    pub(crate) fn flush(&self, all: bool) {
        for connection in self.connections.all() {
            connection.flush(all);
        }
    }

    /// Checks the connections that were used before. Called for a client that holds something.
    pub(crate) fn look_after(&self) {
        for connection in self.connections.all() {
            if connection.was_used() && self.map.is_master(connection.node) {
                connection.look_after();
            }
        }
    }

    /// See [`Connection::housekeep`].
    pub(crate) fn housekeep(&self) -> WorkLeft {
        self.work(Connection::housekeep)
    }

    /// Waits until every deferred call is acknowledged, or `until`. Returns whether all are.
    pub(crate) fn drain(&self, until: Instant) -> bool {
        loop {
            match self.work(Connection::drain_some) {
                WorkLeft::Nothing => return true,
                _ if Instant::now() >= until => return false,
                WorkLeft::Later | WorkLeft::Soon => std::thread::sleep(socket::GLANCE),
                WorkLeft::More => {}
            }
        }
    }

    /// Closes all connections; waiting and later calls fail with `Closed`. Returns how many entries of the ledger are given
    /// up: the releases, and the entries that may find nothing. See [`Ledger::forget`].
    pub(crate) fn close(&self) -> (u64, u64) {
        *self.closed.lock() = true;
        for connection in self.connections.all() {
            connection.close();
        }
        let (releases, undos) = self.ledger.forget();
        self.settings.counters.releases_failed.add(releases);
        (releases, undos)
    }
}

/// Where calls go.
impl Nodes {
    /// The connection over which a call was sent last.
    pub(crate) fn at(&self, call: &Call) -> &Arc<Connection> {
        self.connection(call.node())
    }

    /// The connection over which a call has to be sent now, once it is up.
    pub(crate) fn up(
        &self,
        call: &Call,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<&Arc<Connection>, Fault> {
        loop {
            let why = match self.destination(call) {
                None => socket::timed_out("no master is known for the key's slot"),
                Some(node) => {
                    let connection = self.connection(node);
                    // In a cluster, another node may get the slot while this one is unreachable.
                    let turn = match self.are_one() {
                        true => until,
                        false => until.min(Instant::now() + socket::SLICE),
                    };
                    let stood =
                        connection.up(turn, &|| stop() || self.destination(call) != Some(node));
                    match stood {
                        Ok(()) => return Ok(connection),
                        // The condition passed to `up` ended the wait, and not because of `stop`: another node has the
                        // slot now.
                        Err(Fault::Stopped) if !stop() => continue,
                        Err(Fault::Unreachable(why)) => self.named(node, why),
                        // This node's turn is over, and not the time of the call.
                        Err(Fault::Late(why)) if Instant::now() < until => self.named(node, why),
                        // The node's certificate may be for a host that only the answer about the slots names.
                        Err(Fault::Refused(why)) if !self.map.is_named(node) => {
                            self.named(node, why)
                        }
                        Err(fault) => return Err(fault),
                    }
                }
            };
            // If the call was to go behind `ASKING`, the node is unreachable, so the slot's master is asked next.
            call.state.lock().asking = false;
            self.map.doubt();
            if Instant::now() >= until {
                self.map.want();
                return Err(Fault::Unreachable(why));
            }
            self.map.look_around(until, stop);
            if stop() {
                return Err(Fault::Stopped);
            }
        }
    }

    /// Returns the meaning of a reply that the connection of this `generation` has brought. Notes what the reply says of the
    /// masters, and prepares the call for its next sending.
    pub(crate) fn verdict(
        &self,
        reply: Value,
        call: &Call,
        kind: RequestKind,
        connection: &Connection,
        generation: u64,
    ) -> Verdict {
        let verdict = verdict(reply, || call.asked(kind, !self.are_one()));
        if !matches!(verdict, Verdict::Answer(_) | Verdict::Never(_)) {
            call.record_not_run();
        }
        match &verdict {
            Verdict::Answer(_) => {}
            Verdict::SendText => call.send_text(),
            Verdict::Elsewhere(redirection) => {
                let node = self.map.redirected(call.node(), redirection);
                call.redirect(redirection.is_asking.then_some(node));
            }
            Verdict::Later(err) | Verdict::Never(err) => {
                call.reset_redirections();
                match verdict::reach(err) {
                    Reach::Slots => self.map.doubt(),
                    Reach::Master => {
                        self.map.doubt();
                        connection.leave_when_answered(generation, err);
                    }
                    Reach::Request | Reach::Keys | Reach::Data | Reach::Everything => {}
                }
            }
        }
        verdict
    }

    /// The master of a key, once one is known.
    pub(crate) fn master_of(&self, key: &str, until: Instant) -> Result<usize, RedisError> {
        if self.map.is_doubted() {
            self.map.look_around(until, &|| false);
        }
        let master = self.map.master_of(Some(key.as_bytes()));
        master.ok_or_else(|| socket::timed_out("no master is known for the key's slot"))
    }

    /// A connection to a master, for questions.
    pub(crate) fn apart(&self, node: usize, until: Instant) -> Result<Apart, RedisError> {
        let timeout = self.settings.connect_timeout;
        let connected = Apart::connect(&self.map, node, timeout, until);
        connected.map_err(|err| self.named(node, err))
    }

    /// An error of a connection to this node, with its address if it is one of several.
    fn named(&self, node: usize, why: RedisError) -> RedisError {
        match self.are_one() {
            true => why,
            false => named(&self.map.endpoint(node), why),
        }
    }
}

#[cfg(test)]
mod tests;
