//! The masters of a client: a connection to each, and how a call gets to the master that has its slot. A single server
//! counts as a cluster of one node that always has every slot.
//!
//! A call goes to the master that is known to have the slot of its first key. If another node has the slot, the answer names
//! that node. The answer decides where the call goes next, whichever node gives it:
//!
//! | answer | next |
//! | --- | --- |
//! | a reply, or an error that does not go away by itself | nowhere: the call has its answer |
//! | `MOVED` | to the node that the answer names, which has the slot from now on |
//! | `ASK` | to the node that the answer names, behind `ASKING` |
//! | `TRYAGAIN`, `CLUSTERDOWN`, or another error that passes | to the slot's master, after a pause (but the first time at once, if a thread waits for the call) |
//! | no answer: the node is unreachable | to the slot's master; while that is unreachable, the nodes are asked who the master is now |
//!
//! **A release or an undo**, whether a thread waits for it or not, goes to the [ledger](super::ledger) if its answer is a
//! redirection or a rejection for now. The connection to the slot's master takes it from there. After `ASK`, housekeeping,
//! or the next command to the named node, sends it to that node.
//!
//! **Any other call** as a rule has a thread that waits for it. That thread follows a redirection at once, a few times in
//! a row. If the connection is lost before the reply, [`calls`] undoes a call that has an undo, and sends a new one. It
//! sends a call without an undo again, except a guarded command that may have run: its caller gets an error.
//!
//! A node that was a master once keeps its number and its [`Connection`] object until the client is closed, so the number
//! of the node to which a call went leads to the `Connection`. When the table of masters has changed, the sockets to nodes
//! that are no longer masters are dropped, once no reply is due. A connection to such a node that is made later, for
//! example to follow an `ASK`, stays until the table changes again.
//!
//! Mutexes are locked in this order: `closed`, a connection's, the ledger's, a call's, those of the masters. None is held
//! while doing I/O.

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

/// The connections to all masters, for one purpose.
pub(crate) struct Nodes {
    pub(crate) map: Arc<Masters>,
    /// The name of the connections in `CLIENT LIST`.
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

/// Connections by the numbers of their nodes. A connection is never moved or removed, so a look-up takes no mutex and
/// clones no `Arc`. That matters (bench: 64 threads on 64 locks): acquiring and releasing a lock takes three look-ups.
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

    /// Separate connections to the same masters, for another purpose. Connecting takes at most `most`. A connection is
    /// given up after a silence of `most` at the latest. The limit for silence is half of `command_timeout`, so
    /// `command_timeout` is reduced to `2 * most` here if it is longer than that.
    pub(crate) fn for_role(&self, role: &'static str, most: Duration) -> Arc<Self> {
        let settings = Settings {
            connect_timeout: self.settings.connect_timeout.min(most),
            command_timeout: self.settings.command_timeout.min(2 * most),
            // Only the commands of locks are counted, so the commands of this role go to counters of their own.
            counters: Arc::default(),
            ..self.settings.clone()
        };
        Self::new(Arc::clone(&self.map), role, settings)
    }

    /// Starts connecting to each master to which `others` were ever connected, unless there is a connection here.
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

    /// Whether the reply to a release counts all listeners that were notified. In a cluster with plain channels, it counts
    /// only those connected to the node that replies.
    pub(crate) fn counts_listeners(&self) -> bool {
        self.are_one() || self.map.is_sharded()
    }

    /// The connection to a node; it may be down.
    fn connection(&self, node: usize) -> &Arc<Connection> {
        let place = self.connections.place(node);
        place.get().unwrap_or_else(|| {
            // Held until the connection is in its place: see `closed`.
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

    /// The connection to the only server; in a cluster, to the master that gets the commands without a key.
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

    /// Does `work` at each connection, and what is due in the ledger and the table of masters.
    fn work(&self, work: impl Fn(&Arc<Connection>) -> WorkLeft) -> WorkLeft {
        self.map.want();
        let mut work_left = self.give_up_useless();
        for call in self.ledger.take_asked() {
            // Without a connection to that node, `submit` makes the call an ordinary entry of the ledger. Then the slot's
            // master gets the call and answers `ASK` again; by that time the connection begun here may be up.
            self.at(&call).want();
            self.submit(&call);
        }
        // The connections take the other entries, in `work(connection)` below. This loop creates the `Connection`s that
        // are missing; their housekeeping connects.
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

    /// Settles entries of the ledger that are useless. At most `USELESS` in one step, since an outage may leave very many.
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

    /// Queues a call on the connection to its destination. Memory only; see [`Connection::submit`].
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        let node = self.destination(call).unwrap_or(0);
        self.connection(node).submit(call)
    }

    /// Submits and writes a deferred call.
    pub(crate) fn send_deferred(&self, deferred: Deferred) {
        let call = Call::deferred(deferred);
        self.submit(&call);
        let at = self.at(&call);
        // No connection is made here. A caller that sends its command again makes one, and reports if that fails.
        at.flush(false);
        at.housekeep_soon();
    }

    /// See [`Connection::flush`].
    pub(crate) fn flush(&self, all: bool) {
        for connection in self.connections.all() {
            connection.flush(all);
        }
    }

    /// Checks the connections to masters, as far as they were ever up. Called when the watchdog renews something.
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

    /// Waits until no deferred call is open any more, at most until `until`. Returns whether none is open.
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

    /// Closes all connections; waiting and later calls fail with `Closed`. Returns how many entries of the ledger are
    /// given up: first those that would release something, then those that may find nothing. See [`Ledger::forget`].
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

    /// Waits until the connection over which a call has to be sent now is up, and returns it.
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
                    // In a cluster, another node may get the slot while this one is unreachable, so the wait for each node
                    // is short.
                    let turn = match self.are_one() {
                        true => until,
                        false => until.min(Instant::now() + socket::SLICE),
                    };
                    let stood =
                        connection.up(turn, &|| stop() || self.destination(call) != Some(node));
                    match stood {
                        Ok(()) => return Ok(connection),
                        // The call's destination has changed, which ended the wait.
                        Err(Fault::Stopped) if !stop() => continue,
                        Err(Fault::Unreachable(why)) => self.named(node, why),
                        // This node's turn is over, but the call has time left.
                        Err(Fault::Late(why)) if Instant::now() < until => self.named(node, why),
                        // The last answer about the slots does not name this node, so perhaps only a redirection has named
                        // it, by its IP. The certificate of the node may be for a host name, which the next answer will
                        // give. So this refusal is not final.
                        Err(Fault::Refused(why)) if !self.map.is_named(node) => {
                            self.named(node, why)
                        }
                        Err(fault) => return Err(fault),
                    }
                }
            };
            // A call that was to go behind `ASKING` goes to the slot's master now, since the other node is unreachable.
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

    /// Returns the meaning of a reply that the connection of this `generation` has brought. Also records what the reply
    /// says about the masters, and prepares the call for its next sending.
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

    /// The master of a key. If the masters are in doubt, asks for them first.
    pub(crate) fn master_of(&self, key: &str, until: Instant) -> Result<usize, RedisError> {
        if self.map.is_doubted() {
            self.map.look_around(until, &|| false);
        }
        let master = self.map.master_of(Some(key.as_bytes()));
        master.ok_or_else(|| socket::timed_out("no master is known for the key's slot"))
    }

    /// Makes a separate connection to a master: see [`Apart`].
    pub(crate) fn apart(&self, node: usize, until: Instant) -> Result<Apart, RedisError> {
        let timeout = self.settings.connect_timeout;
        let connected = Apart::connect(&self.map, node, timeout, until);
        connected.map_err(|err| self.named(node, err))
    }

    /// The error of a connection to this node, with the node's address unless there is only one node.
    fn named(&self, node: usize, why: RedisError) -> RedisError {
        match self.are_one() {
            true => why,
            false => named(&self.map.endpoint(node), why),
        }
    }
}

#[cfg(test)]
mod tests;
