//! The masters of a client, behind one interface: one server, or as many as a cluster has.
//!
//! Which of them a call goes to follows from its keys, so nobody above has to know. With one server there is nothing to
//! be looked up.

#[cfg(feature = "cluster")]
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::net::call::{Answer, Attempt, Call, Deferred, Fault};
#[cfg(feature = "cluster")]
use crate::net::cluster::Cluster;
use crate::net::connection::{Connection, WaitFault};
use crate::net::route::{self, Ahead, Route};
use crate::net::socket::Meanwhile;

/// How long [`Connections::drain`] rests between two looks.
const DRAIN_PAUSE: Duration = Duration::from_micros(200);

/// The connections to all masters.
#[cfg_attr(
    feature = "cluster",
    expect(
        clippy::large_enum_variant,
        reason = "there is one for a client, and every command goes through it"
    )
)]
pub(crate) enum Connections {
    Single(Connection),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
}

/// The same for the one connection and for those of a cluster.
macro_rules! each {
    ($connections:expr, $one:ident => $what:expr) => {
        match $connections {
            Connections::Single($one) => $what,
            #[cfg(feature = "cluster")]
            Connections::Cluster($one) => {
                let $one = $one.deref();
                $what
            }
        }
    };
}

impl Connections {
    /// Makes the first connection.
    pub(crate) fn open(&self, until: Instant) -> Result<(), RedisError> {
        each!(self, one => one.open(until))
    }

    /// See [`route::send_ahead`].
    pub(crate) fn send_ahead(&self, attempt: Attempt) -> Option<Ahead> {
        each!(self, one => route::send_ahead(one, attempt))
    }

    /// See [`route::submit_ahead`].
    pub(crate) fn submit_ahead(&self, attempt: Attempt) -> Option<Ahead> {
        each!(self, one => route::submit_ahead(one, attempt))
    }

    /// See [`route::abandon`].
    pub(crate) fn abandon(&self, ahead: &Ahead) {
        each!(self, one => route::abandon(one, ahead));
    }

    /// See [`route::call`].
    pub(crate) fn call(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
    ) -> Result<Answer, Fault> {
        self.call_and_say(until, stop, ahead, attempt, &mut false)
    }

    /// See [`route::call`].
    pub(crate) fn call_and_say(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        ahead: Option<Ahead>,
        attempt: &mut dyn FnMut() -> Attempt,
        may_have_run: &mut bool,
    ) -> Result<Answer, Fault> {
        each!(self, one => route::call(one, until, stop, ahead, attempt, may_have_run))
    }

    /// See [`route::wait`].
    pub(crate) fn wait(
        &self,
        call: &Arc<Call>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Value, Instant), WaitFault> {
        each!(self, one => route::wait(one, call, until, stop))
    }

    /// See [`route::settled`].
    pub(crate) fn settled(&self, call: &Arc<Call>, until: Instant) -> Result<(Value, bool), Fault> {
        each!(self, one => route::settled(one, call, until))
    }

    /// See [`Connection::submit`].
    pub(crate) fn submit(&self, call: &Arc<Call>) -> Option<u64> {
        each!(self, one => one.submit(call))
    }

    /// Submits and flushes a deferred call.
    pub(crate) fn send_deferred(&self, deferred: Deferred) {
        each!(self, one => Route::send_deferred(one, deferred));
    }

    /// See [`Connection::flush`].
    pub(crate) fn flush(&self, all: bool) {
        each!(self, one => one.flush(all));
    }

    /// Writes a release that was submitted; see [`Connection::deliver`].
    pub(crate) fn deliver(&self, release: &Call) {
        each!(self, one => Route::deliver(one, release));
    }

    /// Writes a query that was submitted; see [`Connection::flush`].
    pub(crate) fn flush_to(&self, call: &Call) {
        each!(self, one => Route::flush(one, call));
    }

    /// See [`Connection::look_after`].
    pub(crate) fn look_after(&self) {
        each!(self, one => one.look_after());
    }

    /// See [`Connection::housekeep`].
    pub(crate) fn housekeep(&self, until: Instant, meanwhile: Meanwhile<'_>) -> bool {
        each!(self, one => one.housekeep(until, meanwhile))
    }

    /// Waits until every deferred call is acknowledged or `until`; says whether all are.
    pub(crate) fn drain(&self, until: Instant) -> bool {
        while each!(self, one => one.drain_some(until)) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
        true
    }

    /// See [`Connection::close`].
    pub(crate) fn close(&self) -> (u64, u64) {
        each!(self, one => one.close())
    }

    /// Whether the number that a release returns counts everybody who was notified: nodes of a cluster with plain
    /// channels count their own clients alone.
    pub(crate) fn counts_listeners(&self) -> bool {
        match self {
            Self::Single(_) => true,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.is_sharded(),
        }
    }

    /// Whether there is more than one.
    pub(crate) fn are_several(&self) -> bool {
        !matches!(self, Self::Single(_))
    }
}

/// For callers that need one server: of a cluster, the one that gets the commands without a key.
impl Connections {
    fn with<T>(&self, ask: impl FnOnce(&Connection) -> T) -> T {
        match self {
            Self::Single(connection) => ask(connection),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => ask(&cluster.first()),
        }
    }

    /// See [`Connection::up`].
    pub(crate) fn up(&self, until: Instant, meanwhile: Meanwhile<'_>) -> Result<(), Fault> {
        self.with(|connection| connection.up(until, meanwhile))
    }

    /// See [`Connection::deliver`].
    pub(crate) fn deliver_queued(&self) {
        self.with(Connection::deliver);
    }

    /// See [`Connection::responds`].
    pub(crate) fn responds(&self, limit: Duration) -> bool {
        self.with(|connection| connection.responds(limit))
    }

    /// See [`Connection::no_answer`].
    pub(crate) fn no_answer(&self) -> Fault {
        self.with(Connection::no_answer)
    }

    /// See [`Connection::generation`].
    pub(crate) fn generation(&self) -> Option<u64> {
        self.with(Connection::generation)
    }

    /// See [`Connection::want`].
    pub(crate) fn want(&self) {
        self.with(Connection::want);
    }
}
