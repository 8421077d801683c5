//! The parts of one client: connection, subscriber, watchdog and registry. Starts and joins the threads.

mod replicas;
pub(crate) mod server;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::{Condvar, Mutex};
use redis::RedisError;

use crate::config::Config;
use crate::config::replicas::ReplicaAck;
#[cfg(feature = "cluster")]
use crate::config::server::Deployment;
use crate::error::LossReason;
use crate::error::{Error, Result};
use crate::hold::entry::wake;
use crate::hold::loss::Notices;
use crate::hold::permits::LivePermits;
use crate::hold::releases::Releases;
use crate::hold::watchdog::{self, Housekeeping, Over, Task, Watchdog};
use crate::hold::{Backing, Entry, Hold, LossSink, NotRenewed, Registry, UNDO_FOR};
use crate::local::lock::{LeasePolicy, Served};
use crate::local::waiter::CancelToken;
use crate::net::call::{Answer, Attempt, Call, Fault};
#[cfg(feature = "cluster")]
use crate::net::cluster::{self, Cluster, Map};
use crate::net::connection::Connection;
use crate::net::connections::Connections;
use crate::net::request::Acknowledgements;
#[cfg(feature = "cluster")]
use crate::net::socket;
use crate::net::socket::{Endpoint, Meanwhile};
#[cfg(feature = "cluster")]
use crate::net::subscriber::Place;
use crate::net::subscriber::Subscriber;
#[cfg(feature = "cluster")]
use crate::net::subscribers::ByMaster;
use crate::net::subscribers::Subscribers;
use crate::process::Process;
use crate::protocol::owner::{OwnerNumber, Owners};
use crate::protocol::script::{self, Released, Renewed, Request, lease_ms};
use crate::report::{self, report};
use crate::session::replicas::Replicas;
use crate::session::server::Server;
use crate::stats::Counters;

/// See [`Session::replay`]; twice the response timeout if that is longer.
const REPLAY: Duration = Duration::from_secs(60);

/// How long replicas may take to acknowledge an acquire, or a quarter of the response timeout if that is shorter.
const REPLICAS_ANSWER: Duration = Duration::from_secs(1);

/// How long dropping the last handle may take for releasing what is held.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// For how many locks places are removed before the watchdog does its other work.
const AT_ONCE: usize = 32;

/// Everything a client consists of, except its handles. It refers to no handle, so dropping the last one always ends it,
/// although the threads refer to it.
pub(crate) struct Session {
    pub(crate) endpoint: Endpoint,
    pub(crate) lease: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) owners: Arc<Owners>,
    pub(crate) server: Server,
    replicas: Replicas,
    pub(crate) registry: Registry,
    pub(crate) permits: LivePermits,
    pub(crate) connection: Connections,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) subscriber: Subscribers,
    pub(crate) counters: Arc<Counters>,
    notices: Notices,
    /// Those where threads were served in memory lately, whose places may be in the queue of Redis.
    have_served: Mutex<Vec<Arc<Entry>>>,
    give_back_on_close: &'static [GiveBack],
    closed: AtomicBool,
    /// What came of closing, once that is known, and who waits for it.
    close_outcome: Mutex<Option<CloseOutcome>>,
    close_ended: Condvar,
    process: Process,
    /// Wakes the threads that wait outside the local locks when the client is closed.
    pub(crate) closing: CancelToken,
    /// Threads that may have an acquire under way.
    contenders: AtomicUsize,
    watchdog_thread: Thread,
    subscriber_thread: Thread,
}

/// What came of closing: what was not done in time, and why. An error can be had only once, this several times.
type CloseOutcome = std::result::Result<(), (&'static str, String)>;

/// Queues the releases of what is held without a lease, when the client is closed.
pub(crate) type GiveBack = fn(&Session);

/// A background thread: started when first needed, joined once.
#[derive(Default)]
struct Thread {
    started: AtomicBool,
    running: Mutex<Option<Running>>,
}

struct Running {
    thread: JoinHandle<()>,
    /// Hangs up when the thread has ended.
    ended: Receiver<()>,
}

impl Thread {
    fn start(
        &self,
        name: &'static str,
        session: &Arc<Session>,
        run: fn(Arc<Session>),
    ) -> Result<()> {
        match self.started.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.start_now(name, session, run),
        }
    }

    #[cold]
    fn start_now(
        &self,
        name: &'static str,
        session: &Arc<Session>,
        run: fn(Arc<Session>),
    ) -> Result<()> {
        let mut running = self.running.lock();
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        let (ends, ended) = bounded::<()>(0);
        let session = Arc::clone(session);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let _ends = ends;
                run(session);
            })
            .map_err(|source| Error::Thread { name, source })?;
        *running = Some(Running { thread, ended });
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for the thread to end, and says whether it did.
    fn join(&self, until: Instant) -> bool {
        // It must not be started again.
        let mut running = self.running.lock();
        self.started.store(true, Ordering::Release);
        let Some(Running { thread, ended }) = running.take() else {
            return true;
        };
        drop(running);
        if thread.thread().id() == std::thread::current().id() {
            return true;
        }
        if ended.recv_deadline(until) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        if thread.join().is_err() {
            report!(Error, "a background thread panicked");
        }
        true
    }
}

/// Counts a thread that may have an acquire under way.
pub(crate) struct Contending<'a>(&'a Session);

impl Drop for Contending<'_> {
    fn drop(&mut self) {
        self.0.contenders.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session {
    /// Checks the settings and connects, unless that is left to the first call. On close `give_back_on_close` releases what the watchdog does not know of.
    pub(crate) fn open(
        config: Config,
        give_back_on_close: &'static [GiveBack],
    ) -> Result<Arc<Self>> {
        let endpoint = Endpoint::new(config.check()?);
        let db = endpoint.server.db;
        let counters = Arc::new(Counters::default());
        let watchdog = Watchdog::new(endpoint.log_in_period());
        let connection = Self::connections(&endpoint, &config, &counters, &watchdog);
        if !config.lazy {
            connection
                .open(Instant::now() + config.connect_timeout)
                .map_err(|err| Self::not_opened(&endpoint, err))?;
        }
        let subscriber = Self::subscribers(&connection, &endpoint, &config, &counters);
        let owners = Arc::new(Owners::new());
        Ok(Arc::new(Self {
            endpoint,
            lease: config.lease,
            response_timeout: config.response_timeout,
            connect_timeout: config.connect_timeout,
            waiter_lease: config.waiter_lease,
            server: Server::default(),
            replicas: Replicas::default(),
            registry: Registry::new(
                config.key_prefix,
                db,
                connection.are_several(),
                config.tenure,
                &owners,
            ),
            owners,
            permits: LivePermits::default(),
            connection,
            watchdog,
            subscriber,
            counters,
            notices: Notices::new(config.on_lost),
            have_served: Mutex::default(),
            give_back_on_close,
            closed: AtomicBool::new(false),
            close_outcome: Mutex::new(None),
            close_ended: Condvar::new(),
            process: Process::this(),
            closing: CancelToken::new(),
            contenders: AtomicUsize::new(0),
            watchdog_thread: Thread::default(),
            subscriber_thread: Thread::default(),
        }))
    }

    fn not_opened(endpoint: &Endpoint, err: RedisError) -> Error {
        #[cfg(feature = "cluster")]
        if cluster::is_no_cluster(&err) {
            return Error::Config(format!(
                "url: redis+cluster:// leads to a server that is not a node of a cluster, {endpoint}: {err}; use redis:// for a single server"
            ));
        }
        Error::redis("connecting", err).at(endpoint)
    }

    /// The connections for commands, none of which stands yet.
    fn connections(
        endpoint: &Endpoint,
        config: &Config,
        counters: &Arc<Counters>,
        watchdog: &Arc<Watchdog>,
    ) -> Connections {
        let releases = Arc::new(Releases::new(Arc::clone(counters)));
        #[cfg(feature = "cluster")]
        if let Deployment::Cluster { seeds } = &endpoint.server.deployment {
            let map = Map::new(endpoint.clone(), seeds.clone());
            let settings = cluster::Settings {
                connect_timeout: config.connect_timeout,
                response_timeout: config.response_timeout,
                counters: Arc::clone(counters),
                housekeeper: Arc::clone(watchdog) as _,
            };
            return Connections::Cluster(Cluster::new(
                Arc::new(map),
                socket::COMMANDS,
                settings,
                releases,
            ));
        }
        Connections::Single(Connection::new(
            endpoint.clone(),
            config.connect_timeout,
            config.response_timeout,
            Arc::clone(counters),
            Arc::clone(watchdog) as _,
            releases,
        ))
    }

    /// Those who listen for it, over connections that are made when they are needed.
    fn subscribers(
        connections: &Connections,
        endpoint: &Endpoint,
        config: &Config,
        counters: &Arc<Counters>,
    ) -> Subscribers {
        let (connect_timeout, response_timeout) = (config.connect_timeout, config.response_timeout);
        let counters = Arc::clone(counters);
        match connections {
            Connections::Single(_) => Subscribers::Single(Subscriber::new(
                endpoint.clone(),
                connect_timeout,
                response_timeout,
                counters,
            )),
            #[cfg(feature = "cluster")]
            Connections::Cluster(cluster) => {
                let map = Arc::clone(cluster.map());
                let its = Arc::clone(&map);
                Subscribers::Cluster(ByMaster::new(its, move |node| {
                    let map = Arc::clone(&map);
                    let counters = Arc::clone(&counters);
                    let place = Place { map, node };
                    Subscriber::of_node(place, connect_timeout, response_timeout, counters)
                }))
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// See [`Process::is_copy`].
    pub(crate) fn is_copy(&self) -> bool {
        self.process.is_copy()
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_copy() || self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn contending(&self) -> Contending<'_> {
        self.contenders.fetch_add(1, Ordering::SeqCst);
        Contending(self)
    }

    pub(crate) fn start_watchdog(self: &Arc<Self>) -> Result<()> {
        self.watchdog_thread
            .start("redlatch-watchdog", self, |session| {
                watchdog::run(Task {
                    watchdog: Arc::clone(&session.watchdog),
                    counters: Arc::clone(&session.counters),
                    over: match &session.connection {
                        Connections::Single(_) => Over::Server(session.endpoint.clone()),
                        #[cfg(feature = "cluster")]
                        Connections::Cluster(cluster) => {
                            Over::Cluster(cluster.for_role("watchdog"))
                        }
                    },
                    lease: session.lease,
                    connect_timeout: session.connect_timeout,
                    response_timeout: session.response_timeout,
                    client: session,
                });
            })
    }

    pub(crate) fn start_subscriber(self: &Arc<Self>) -> Result<()> {
        self.subscriber_thread
            .start("redlatch-subscriber", self, |session| {
                session.subscriber.run();
            })
    }

    /// A hold is lost: notifies its guard, its local lock and the client's listener, once.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        let Some(loss) = hold.lose(reason) else {
            return;
        };
        self.watchdog.disarm(hold);
        self.counters.lost.add(1);
        self.remove_lost(hold);
        // Before anything that may take time.
        self.notices.notify(loss);
        self.end_lingering(hold);
        let protocol = &hold.entry().protocol;
        if protocol.is_given_back_when_lost(hold.mode, reason) {
            let backing = self.backing(hold);
            drop(backing.release(hold, true, Instant::now()));
            backing.housekeep_soon();
        }
        if reason != LossReason::Closed {
            report!(Warn, "the lock `{}` is lost: {reason}", hold.entry().name());
        }
    }

    /// Removes a lost hold from its local lock, so that other threads of this process may ask Redis. The places of those that
    /// it served are given up, and that is queued before anybody asks.
    ///
    /// Nothing is released: Redis may keep the hold for as long as its last thread takes to notice.
    pub(crate) fn remove_lost(&self, hold: &Arc<Hold>) {
        let entry = hold.entry();
        let mut state = entry.lock();
        let (next, served) = state.lock.lost(hold, Instant::now());
        let left = self.leave_served(entry, &served);
        state.store_wakeups(&next);
        drop(state);
        self.write(left);
        wake(next);
    }

    /// Queues the request that gives up these places, before anybody of this process can ask again.
    fn leave_served(&self, entry: &Entry, served: &Served) -> Option<Arc<Call>> {
        let id = |place: &u64| self.owners.id(OwnerNumber(*place));
        let places: Vec<_> = served.places.iter().map(id).collect();
        let request = entry.protocol.leave_served(&places, served.next_asks)?;
        let call = Call::deferred(entry.leaving(request, Instant::now() + UNDO_FOR));
        self.connection.submit(&call);
        Some(call)
    }

    /// Writes such a request once no mutex is held.
    fn write(&self, left: Option<Arc<Call>>) {
        if let Some(left) = left {
            self.connection.flush_to(&left);
            self.watchdog.housekeep_soon();
        }
    }

    /// Has the housekeeping remove the places of those who were served in memory, unless that is done by then.
    pub(crate) fn clear_served_soon(&self, entry: &Arc<Entry>) {
        self.have_served.lock().push(Arc::clone(entry));
        self.watchdog.housekeep_soon();
    }

    fn clear_served(&self, meanwhile: Meanwhile<'_>) {
        let mut entries = std::mem::take(&mut *self.have_served.lock());
        let mut cleared = 0;
        while let Some(entry) = entries.pop() {
            if cleared % AT_ONCE == 0 && cleared > 0 && !meanwhile() {
                entries.push(entry);
                self.have_served.lock().append(&mut entries);
                return;
            }
            cleared += 1;
            let mut state = entry.lock();
            let served = state.lock.clear_served();
            let left = self.leave_served(&entry, &served);
            drop(state);
            self.write(left);
        }
    }

    /// Ends the subscription that the contender of a hold has left behind, if it lingers.
    pub(crate) fn end_lingering(&self, hold: &Hold) {
        if let Some(channel) = hold.listened_to() {
            self.subscriber.end_lingering(&channel);
        }
    }

    /// Releases what Redis may still keep of a hold that is over.
    pub(crate) fn give_back(&self, hold: &Hold) {
        self.backing(hold).give_back(hold);
    }

    /// The servers that keep a hold: this client's own, unless it has several.
    pub(crate) fn backing<'a>(&'a self, hold: &'a Hold) -> &'a dyn Backing {
        hold.backing().unwrap_or(self)
    }

    /// An error about Redis, with the server's address.
    pub(crate) fn error(
        &self,
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::redis(doing, source).at(&self.endpoint)
    }

    /// Whether acquires wait for replicas.
    pub(crate) fn asks_replicas(&self) -> bool {
        self.endpoint.server.replica_ack != ReplicaAck::None
    }

    /// Has an acquire wait for as many replicas as the settings want.
    pub(crate) fn replicate(&self, request: &mut Request) {
        let needed = self.endpoint.replicas_needed();
        if needed > 0 {
            let full = REPLICAS_ANSWER.min(self.response_timeout / 4);
            let timeout = self.replicas.timeout(full, Instant::now());
            request.acknowledgements = Some(Acknowledgements {
                needed,
                // For ever would be 0.
                timeout: u32::try_from(timeout.as_millis()).map_or(u32::MAX, |ms| ms.max(1)),
            });
        }
    }

    /// Whether as many replicas have acknowledged it as have to.
    pub(crate) fn is_replicated(&self, answer: &Answer) -> Result<()> {
        let Some((acked, needed)) = answer.acknowledged else {
            return Ok(());
        };
        self.replicas.answered(acked >= needed);
        if acked < needed {
            return Err(Error::NotReplicated { acked, needed });
        }
        Ok(())
    }

    /// For how long a request that counts once may be sent again after the first time.
    pub(crate) fn replay(&self) -> Duration {
        REPLAY.max(2 * self.response_timeout)
    }

    /// How long Redis remembers such a request, in milliseconds: twice as long, since a frozen server may execute the last
    /// repetition late.
    pub(crate) fn remember_ms(&self) -> String {
        lease_ms(2 * self.replay()).to_string()
    }

    /// The process may be about to end: waits a little for what was logged to reach the logger.
    pub(crate) fn flush_reports(&self) {
        if !self.is_copy() {
            report::flush();
        }
    }

    /// Closes the client, or waits until the thread that is doing so has. All of them get the same answer, since each may
    /// go on to end the process.
    pub(crate) fn close(&self, until: Instant) -> Result<()> {
        if self.is_copy() {
            return Ok(());
        }
        let outcome = if self.closed.swap(true, Ordering::SeqCst) {
            self.closed_by_another(until)
        } else {
            let outcome = self.end(until);
            *self.close_outcome.lock() = Some(outcome.clone());
            self.close_ended.notify_all();
            outcome
        };
        outcome
            .map_err(|(doing, why)| self.error(doing, io::Error::new(io::ErrorKind::TimedOut, why)))
    }

    /// Waits for what comes of closing in another thread.
    fn closed_by_another(&self, until: Instant) -> CloseOutcome {
        let mut outcome = self.close_outcome.lock();
        while outcome.is_none() {
            if self.close_ended.wait_until(&mut outcome, until).timed_out() {
                break;
            }
        }
        outcome.clone().unwrap_or_else(|| {
            Err((
                "closing",
                "another thread is closing the client, and has not finished in time".into(),
            ))
        })
    }

    /// Ends all waits, releases what is held and joins the threads.
    fn end(&self, until: Instant) -> CloseOutcome {
        self.registry.wake_all();
        self.closing.cancel();
        // A contender that is asking notices within a slice, and undoes what it may have been granted.
        while self.contenders.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.watchdog.stop();
        self.subscriber.stop();
        // They end within milliseconds, and the holds they are handling are needed below.
        let until = until.max(Instant::now() + Duration::from_millis(50));
        let mut joined = self.watchdog_thread.join(until);
        joined &= self.subscriber_thread.join(until);
        for hold in self.watchdog.take_all() {
            hold.close(self);
        }
        for give_back in self.give_back_on_close {
            give_back(self);
        }
        self.connection.flush(true);
        let released = self.connection.drain(until);
        let (releases, undos) = self.connection.close();
        if !released || releases > 0 {
            let why = format!(
                "redis has not acknowledged {releases} releases and {undos} undone attempts; the leases end them"
            );
            if releases > 0 {
                report!(Warn, "closing a client: {why}");
            }
            return Err(("giving locks back while closing", why));
        }
        if !joined {
            return Err((
                "ending the background threads while closing",
                "they did not end in time".into(),
            ));
        }
        Ok(())
    }
}

impl LossSink for Session {
    fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        self.lose(hold, reason);
    }

    fn give_up(&self, hold: &Arc<Hold>) {
        self.lose(hold, LossReason::Closed);
        match hold.backing() {
            Some(others) => others.give_back(hold),
            // Written together with the other releases, once all are queued.
            None => drop(self.release(hold, true, Instant::now())),
        }
    }
}

impl Housekeeping for Session {
    fn look_after_connection(&self) {
        self.connection.look_after();
    }

    fn housekeep(&self, meanwhile: Meanwhile<'_>) -> bool {
        self.clear_served(meanwhile);
        let until = Instant::now() + self.connect_timeout.min(self.lease / 10);
        let unread = self.connection.housekeep(until, meanwhile);
        let idle = self.registry.sweep(Instant::now()).left;
        unread || idle
    }
}

/// The server of this client.
impl Backing for Session {
    fn release(&self, hold: &Hold, undo: bool, now: Instant) -> Arc<Call> {
        let call = Call::deferred(hold.release(undo, now));
        // What its contender has left behind may still be there.
        if let Some(channel) = hold.listened_to()
            && let Some(messages) = self.subscriber.messages(&channel)
        {
            call.is_heard_by_us(messages);
        }
        self.connection.submit(&call);
        call
    }

    fn deliver(&self, release: &Call) {
        self.connection.deliver(release);
    }

    fn give_back(&self, hold: &Hold) {
        let release = self.release(hold, true, Instant::now());
        self.connection.deliver(&release);
        self.watchdog.housekeep_soon();
    }

    fn housekeep_soon(&self) {
        self.watchdog.housekeep_soon();
    }

    fn released(
        &self,
        _hold: &Hold,
        release: &Arc<Call>,
        in_time: bool,
        until: Instant,
    ) -> Result<Option<LossReason>> {
        let doing = "releasing the lock";
        let (value, replayed) = match self.connection.settled(release, until) {
            Ok(settled) => settled,
            Err(Fault::Refused(err) | Fault::Unreachable(err)) => {
                return Err(self.error(doing, err));
            }
            Err(_) => return Err(Error::Closed),
        };
        let released =
            script::released(&value).map_err(|unexpected| self.error(doing, unexpected))?;
        Ok(match released {
            Released::Yes { .. } => None,
            // It was sent twice, and the first time has released it.
            Released::Gone | Released::Taken if replayed && in_time => None,
            _ if !in_time => Some(LossReason::Expired),
            Released::Gone => Some(LossReason::Forced),
            Released::Taken => Some(LossReason::TakenOver),
        })
    }

    fn renew(
        &self,
        hold: &Hold,
        lease: LeasePolicy,
        ttl: Duration,
        count: u32,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<(Renewed, Instant), NotRenewed> {
        let doing = "renewing the lock";
        hold.may_last(ttl);
        let mut attempt = || Attempt {
            request: hold
                .entry()
                .protocol
                .renew(hold.mode, &hold.owner(), ttl, count),
            undo: None,
        };
        let answer = self.connection.call(until, stop, None, &mut attempt);
        let failed = |fault: Fault| {
            fault
                .into_error(doing, hold.entry().name())
                .at(&self.endpoint)
        };
        let answer = answer.map_err(|fault| match fault {
            Fault::Stopped => NotRenewed::Stopped,
            Fault::Late(_) => NotRenewed::Late(failed(fault)),
            _ => NotRenewed::Failed(failed(fault)),
        })?;
        let renewed = script::renewed(answer.value)
            .map_err(|unexpected| NotRenewed::Failed(self.error(doing, unexpected)))?;
        if renewed == Renewed::Yes {
            hold.change_lease(lease, ttl);
            hold.extend(answer.sent_at, ttl);
        }
        Ok((renewed, answer.sent_at))
    }
}

/// What all handles of a client share; dropping the last one closes the client.
pub(crate) struct SharedSession {
    pub(crate) session: Arc<Session>,
}

impl SharedSession {
    pub(crate) fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self { session })
    }
}

impl Drop for SharedSession {
    fn drop(&mut self) {
        // A client that was closed has said what came of that.
        if !self.session.is_closed()
            && let Err(err) = self.session.close(Instant::now() + DROP_DEADLINE)
        {
            report!(
                Warn,
                "dropping a client: {err}; what it held frees itself when the leases run out"
            );
        }
        self.session.flush_reports();
    }
}
