//! The parts of one client: connections, subscribers, watchdog and registry. Starts and joins the threads.

pub(crate) mod known_master;
mod reminders;
mod replicas;
pub(crate) mod shared;
mod unset;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::{Condvar, Mutex};

use crate::config::Config;
use crate::config::replicas::ReplicaAck;
use crate::error::{Error, LossReason, Result};
use crate::hold::entry::wake;
use crate::hold::loss::Notices;
use crate::hold::permits::LivePermits;
use crate::hold::releases::Releases;
use crate::hold::watchdog::{self, Housekeeping, Task, Watchdog};
use crate::hold::{Entry, Hold, NotRenewed, Reentry, Registry, lost_before};
use crate::local::waiter::CancelToken;
use crate::net::call::{Answer, Call, Fault};
use crate::net::connection::WorkLeft;
use crate::net::masters::Masters;
use crate::net::nodes::{self, Nodes};
use crate::net::request::Acknowledgements;
use crate::net::socket;
use crate::net::socket::{Endpoint, REPLAY};
use crate::net::subscribers::{self, Subscribers};
use crate::observer::{Observers, RenewalFailed};
use crate::process::{self, HomeProcess};
use crate::protocol::idempotency::{FORGET, IdempotencyKeys, RequestKeys};
use crate::protocol::kind::RENEWING;
use crate::protocol::owner::{OwnerId, Owners};
use crate::protocol::script::{self, Renewed, Request, lease_ms};
use crate::protocol::semaphore;
use crate::report::report;
use crate::session::known_master::KnownMaster;
use crate::session::reminders::Reminders;
use crate::session::replicas::Replicas;
use crate::session::unset::UnsetSemaphores;
use crate::stats::Counters;

/// The name of the watchdog's thread.
const WATCHDOG: &str = "redlatch-watchdog";

/// Everything a client consists of, except its handles. A session refers to no handle. The session's threads keep it alive
/// but hold no handle, so dropping the last handle still closes the client.
pub(crate) struct Session {
    pub(crate) endpoint: Endpoint,
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) log_long_waits: Duration,
    pub(crate) owners: Arc<Owners>,
    pub(crate) server: KnownMaster,
    replicas: Replicas,
    pub(crate) requests: IdempotencyKeys,
    pub(crate) registry: Registry,
    pub(crate) permits: LivePermits,
    pub(crate) unset_semaphores: UnsetSemaphores,
    masters: Arc<Masters>,
    pub(crate) connection: Arc<Nodes>,
    /// Connections for guarded commands, so that no lock waits behind the user's requests and replies. Connected when the
    /// first guarded command is sent.
    pub(crate) guarded: Arc<Nodes>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) subscriber: Arc<Subscribers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Observers,
    notices: Arc<Notices>,
    /// Whether the server answered the last health check, and since when that has been so.
    pub(crate) reached: Mutex<Option<(bool, Instant)>>,
    closed: AtomicBool,
    /// The result of closing, once it is known. Other threads that close the client wait for it.
    close_outcome: Mutex<Option<CloseOutcome>>,
    close_ended: Condvar,
    process: HomeProcess,
    /// When the client is closed, wakes all waiting threads.
    pub(crate) closing: CancelToken,
    reminders: Reminders,
    /// How many threads perhaps have an acquire under way.
    contenders: AtomicUsize,
    /// Disconnected when the watchdog's thread has ended. Set once the thread was started.
    watchdog_ended: OnceLock<Receiver<()>>,
    watchdog_thread: Mutex<Option<JoinHandle<()>>>,
}

/// The result of closing: what was not done in time, and why. `Error` cannot be cloned; this can, for every thread
/// that closes.
type CloseOutcome = std::result::Result<(), (&'static str, String)>;

/// Counts a thread that may have an acquire under way.
pub(crate) struct Contending<'a>(&'a Session);

impl Drop for Contending<'_> {
    fn drop(&mut self) {
        self.0.contenders.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session {
    /// Checks the settings and connects, unless the settings leave that to the first call.
    pub(crate) fn open(config: Config) -> Result<Arc<Self>> {
        let owners = Arc::new(Owners::new());
        let endpoint = Self::endpoint_of(&config, owners.client())?;
        let counters = Arc::new(Counters::default());
        let watchdog = Watchdog::new(endpoint.log_in_period());
        let connect = config.connect_timeout;
        let housekeeper = Arc::clone(&watchdog);
        let on_change = move || housekeeper.housekeep_soon();
        let masters = Arc::new(Masters::new(endpoint.clone(), connect, on_change));
        let notices = Notices::new(Arc::clone(&counters), config.on_lost);
        let on_reply = Arc::new(Releases {
            counters: Arc::clone(&counters),
            notices: Arc::clone(&notices),
        });
        let settings = nodes::Settings {
            connect_timeout: connect,
            command_timeout: config.command_timeout,
            counters: Arc::clone(&counters),
            housekeeper: Arc::clone(&watchdog) as _,
            on_reply,
        };
        let to_masters = |role| Nodes::new(Arc::clone(&masters), role, settings.clone());
        let connection = to_masters(socket::COMMANDS);
        let guarded = to_masters(socket::GUARDED);
        if !config.lazy {
            connection.open(Instant::now() + connect).map_err(|err| {
                masters.stop();
                Error::redis("connecting", err).at(&endpoint)
            })?;
        }
        let subscriber = Subscribers::new(Arc::clone(&masters), settings);
        Ok(Arc::new(Self {
            endpoint,
            lease: config.lease,
            command_timeout: config.command_timeout,
            waiter_lease: config.waiter_lease,
            log_long_waits: config.log_long_waits,
            server: KnownMaster::default(),
            replicas: Replicas::default(),
            requests: IdempotencyKeys::default(),
            registry: Registry::new(
                config.key_prefix,
                !connection.are_one(),
                config.tenure,
                config.waiter_lease,
                &owners,
            ),
            owners,
            permits: LivePermits::default(),
            unset_semaphores: UnsetSemaphores::default(),
            masters,
            connection,
            guarded,
            watchdog,
            subscriber,
            counters,
            observer: config.observer,
            notices,
            reached: Mutex::default(),
            closed: AtomicBool::new(false),
            close_outcome: Mutex::new(None),
            close_ended: Condvar::new(),
            process: HomeProcess::this(),
            closing: CancelToken::new(),
            reminders: Reminders::new(config.log_long_waits),
            contenders: AtomicUsize::new(0),
            watchdog_ended: OnceLock::new(),
            watchdog_thread: Mutex::default(),
        }))
    }

    /// The endpoint of a client with this id.
    fn endpoint_of(config: &Config, id: &str) -> Result<Endpoint> {
        let mut server = config.check()?;
        server.names = process::names(id, &config.label);
        let endpoint = Endpoint::new(server).observed_by(&config.observer);
        // Connecting in `open` checks that the URL names a single master. A lazy client skips that check: with a wrong URL
        // its calls fail when the server rejects them.
        Ok(match config.lazy {
            true => endpoint,
            false => endpoint.named_by_url(),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// See [`HomeProcess::is_copy`].
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

    /// Starts the thread that renews holds, unless it runs.
    pub(crate) fn start_watchdog(self: &Arc<Self>) -> Result<()> {
        match self.watchdog_ended.get() {
            Some(_) => Ok(()),
            None => self.start_watchdog_now(),
        }
    }

    #[cold]
    fn start_watchdog_now(self: &Arc<Self>) -> Result<()> {
        let mut started = self.watchdog_thread.lock();
        if self.watchdog_ended.get().is_some() {
            return Ok(());
        }
        let (name, (running, ended), session) = (WATCHDOG, bounded(0), Arc::clone(self));
        let thread = std::thread::Builder::new().name(name.into());
        let spawned = thread.spawn(move || {
            let _running: Sender<()> = running;
            watchdog::run(Task {
                watchdog: Arc::clone(&session.watchdog),
                counters: Arc::clone(&session.counters),
                // If a connection is silent, a renewal gives it up early enough to be repeated over another before the
                // lease ends.
                nodes: session.connection.for_role("watchdog", session.lease / 4),
                commands: Arc::clone(&session.connection),
                lease: session.lease,
                client: session,
            });
        });
        *started = Some(spawned.map_err(|source| Error::Spawn {
            thread: name,
            source,
        })?);
        self.watchdog_ended.get_or_init(|| ended);
        Ok(())
    }

    /// Waits until the watchdog's thread has ended, and returns whether it has. A watchdog started after this call ends at
    /// once, since it was stopped, and is not joined.
    fn watchdog_has_ended(&self, until: Instant) -> bool {
        let ended = self.watchdog_ended.get();
        if ended.is_some_and(|ended| ended.recv_deadline(until) == Err(RecvTimeoutError::Timeout)) {
            return false;
        }
        if let Some(thread) = self.watchdog_thread.lock().take() {
            thread.join().ok();
        }
        true
    }

    /// Starts the watchdog and the thread that listens to `channel`, unless they run. The watchdog's housekeeping tells
    /// that thread when the masters change.
    pub(crate) fn start_subscriber(self: &Arc<Self>, channel: &str) -> Result<()> {
        self.start_watchdog()?;
        let started = self.subscriber.start(channel);
        started.map_err(|source| Error::Spawn {
            thread: subscribers::THREAD,
            source,
        })
    }

    /// Schedules holds that were granted. If the client is closed by then, ends them and returns an error; the caller
    /// gives them back.
    ///
    /// Closing sets the flag, waits for all that [contend](Contending), and then takes all holds that are armed. So
    /// either the flag is seen here, or closing finds the holds.
    pub(crate) fn arm(&self, holds: &[Arc<Hold>]) -> Result<()> {
        for hold in holds {
            self.watchdog.arm(hold, hold.due_after(hold.asked_at()));
        }
        if !self.is_closed() {
            return Ok(());
        }
        for hold in holds {
            self.watchdog.end(hold);
        }
        Err(Error::Closed)
    }

    /// Marks a hold as lost: notifies its guard, its local lock and the client's listener, once.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        if let Some((whole, node)) = hold.whole() {
            if let Some(several) = whole.as_ref().and_then(|whole| whole.several()) {
                several.part_is_lost(node, reason);
            }
            return;
        }
        let Some(loss) = hold.lose(reason) else {
            return;
        };
        self.watchdog.disarm(hold);
        self.remove_lost(hold);
        let observed = hold.take_observed();
        let told = (!observed.is_empty()).then(|| loss.clone());
        // The listener is notified first: the steps below may take time.
        self.notices.notify(loss);
        self.end_lingering(hold);
        let protocol = &hold.entry().protocol;
        if (protocol.kind().is_given_back_when_lost)(hold.mode, reason) {
            self.give_back(hold);
        }
        if reason != LossReason::Closed {
            let (name, owner) = (hold.entry().name(), &*hold.owner());
            report!(Warn, "`{name}` is no longer held by {owner}: {reason}");
        }
        if let Some(loss) = told {
            observed
                .iter()
                .for_each(|watched| watched.observed.lost(&loss));
        }
    }

    /// Removes a lost hold from its local lock, so that other threads of this process may ask Redis.
    ///
    /// This does not release the hold in Redis, which may keep it until the thread that holds it notices the loss. If
    /// [`is_given_back_when_lost`](crate::protocol::kind::Kind::is_given_back_when_lost) says so, [`lose`](Self::lose)
    /// releases it.
    pub(crate) fn remove_lost(&self, hold: &Arc<Hold>) {
        let entry = hold.entry();
        let mut state = entry.lock();
        let next = state.lock.lost(hold, Instant::now());
        state.store_wakeups(&next);
        drop(state);
        wake(next);
    }

    /// Registers a thread that begins to wait without a deadline: see [`reminders`].
    pub(crate) fn ask_for_reminders(&self) {
        if self.reminders.begin() {
            self.watchdog.housekeep_soon();
        }
    }

    /// Ends the lingering subscription to this hold's channel, if the hold's contender or an earlier one may have left
    /// one.
    pub(crate) fn end_lingering(&self, hold: &Hold) {
        if let Some(channel) = hold.listened_to() {
            self.subscriber.end_lingering(&channel);
        }
    }

    /// An error about Redis, with the server's address and the lock's name.
    pub(crate) fn error(
        &self,
        doing: &'static str,
        name: &str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::redis(doing, source).at(&self.endpoint).about(name)
    }

    /// Whether acquires wait for replicas.
    pub(crate) fn asks_replicas(&self) -> bool {
        self.endpoint.server.replica_ack != ReplicaAck::None
    }

    /// Makes an acquire wait for the replicas that the settings require. For a majority, also asks the server how many
    /// replicas there are; later acquires use the answer. The reply to `WAIT` must arrive within `timeout`, the time of
    /// the whole call.
    pub(crate) fn replicate(&self, request: &mut Request, timeout: Duration) {
        if self.endpoint.server.replica_ack == ReplicaAck::Majority {
            self.replicas.ask(&self.endpoint, || {
                let role = Call::question(Request::command("asking for replicas", &["ROLE"]));
                self.connection.submit(&role).map(|_| role)
            });
        }
        let needed = self.endpoint.replicas_needed();
        if needed > 0 {
            let full = self.command_timeout.min(timeout) / 4;
            let timeout = self.replicas.timeout(full, Instant::now());
            request.acknowledgements = Some(Acknowledgements {
                needed,
                // `WAIT` treats 0 as "no timeout".
                timeout: u32::try_from(timeout.as_millis()).map_or(u32::MAX, |ms| ms.max(1)),
            });
        }
    }

    /// Checks that enough replicas have acknowledged the acquire.
    pub(crate) fn is_replicated(&self, answer: &Answer) -> Result<()> {
        let Some((acked, needed)) = answer.acknowledged else {
            return Ok(());
        };
        // The server may have fewer replicas by now than when the acquire was sent.
        self.replicas.learn(&self.endpoint);
        let needed = needed.min(self.endpoint.replicas_needed());
        self.replicas.answered(acked >= needed);
        if acked < needed {
            return Err(Error::NotReplicated { acked, needed });
        }
        Ok(())
    }

    /// For how long after its first sending a request with an idempotency key may be sent again. However often it is sent,
    /// Redis applies it only once.
    pub(crate) fn replay(&self) -> Duration {
        REPLAY.max(2 * self.command_timeout)
    }

    /// The idempotency keys of a new request, by which Redis recognises it when it is sent again. The request is about the
    /// object at `key` and is sent by a call with this `timeout`. Once `forget` or more earlier requests have been
    /// answered, the request also deletes `forget` of their keys.
    pub(crate) fn request_keys(&self, key: &str, forget: usize, timeout: Duration) -> RequestKeys {
        let forgotten = self.requests.take(key, forget);
        RequestKeys::new(&self.owners, key, self.remember_ms(timeout), &forgotten)
    }

    /// How long, in milliseconds, Redis remembers a request that it applies once: twice [`replay`](Self::replay), or four
    /// times the call's `timeout` if that is longer. A frozen server may execute the last copy late, and a connection that
    /// was given up may still deliver the first: see [`REPLAY`].
    pub(crate) fn remember_ms(&self, timeout: Duration) -> String {
        lease_ms(2 * self.replay().max(2 * timeout)).to_string()
    }

    /// Queues the release of permits. Redis adds them only if the semaphore exists when the release is executed. The
    /// caller has to flush the connection.
    pub(crate) fn release_permits(&self, entry: &Entry, permits: u64) -> Arc<Call> {
        let (protocol, key) = (&entry.protocol, entry.protocol.key());
        let keys = self.request_keys(key, FORGET, self.command_timeout);
        let request = semaphore::release(protocol, &keys, permits);
        let is_heard = self.subscriber.listens_to(&protocol.channel());
        let useful_until = Instant::now() + self.replay();
        let deferred = entry.deferred(request, &OwnerId::default(), useful_until, false);
        let call = Call::release(deferred.without_lease(), is_heard);
        self.connection.submit(&call);
        self.requests.pending(key, keys.number, &call);
        call
    }

    /// Queues the release of all plain permits of this process when the client is closed. The caller flushes the queue.
    fn give_back_permits(&self) {
        for entry in self.registry.of(&semaphore::KIND) {
            let mut state = entry.lock();
            let out = state.local_semaphore().close();
            if out > 0 {
                self.release_permits(&entry, out);
            }
        }
    }

    /// Closes the client, or waits until another thread has closed it. A thread that calls this later waits too, since it
    /// may end the process once the call returns. It gets the same result, or an error if its own time ends first.
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
        outcome.map_err(|(doing, why)| {
            let why = io::Error::new(io::ErrorKind::TimedOut, why);
            Error::redis(doing, why).at(&self.endpoint).after_work()
        })
    }

    /// Waits for the result of closing in another thread.
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

    /// Ends a hold because the client is being closed: the hold is lost, and released in Redis.
    fn give_up(&self, hold: &Arc<Hold>) {
        self.lose(hold, LossReason::Closed);
        // The release of a hold on this server alone is queued, and written with others later. If several servers keep the
        // hold, its releases are sent now.
        drop(self.release(hold, true, Instant::now()));
        if let Some(several) = hold.several() {
            several.send();
        }
    }

    /// Ends all waits, releases all holds and joins the threads.
    fn end(&self, until: Instant) -> CloseOutcome {
        self.closing.cancel();
        // A contender whose request is under way notices the cancellation soon, and undoes what Redis may have
        // granted it.
        while self.contenders.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.watchdog.stop();
        self.subscriber.stop();
        // The threads of the watchdog and the subscribers end within milliseconds, so they get 50 ms even if the time is
        // up. Joining them comes first, because they may still be handling holds that are released below.
        let until = until.max(Instant::now() + Duration::from_millis(50));
        let mut joined = self.watchdog_has_ended(until);
        joined &= self.subscriber.join(until);
        // If the watchdog's thread has not ended, a hold that it has in hand is not found here, and ends with its lease.
        for hold in self.watchdog.take_all() {
            if hold.is_held() {
                self.give_up(&hold);
            }
        }
        self.give_back_permits();
        self.connection.flush(true);
        let released = self.connection.drain(until);
        self.guarded.close();
        let (releases, undos) = self.connection.close();
        self.masters.stop();
        if !released || releases > 0 {
            let why = format!(
                "redis has not acknowledged {releases} releases and {undos} undos; locks expire with their leases, permits of a `Semaphore` stay taken"
            );
            if releases > 0 {
                report!(Warn, "closing a client failed: {why}");
            }
            return Err(("releasing locks while closing", why));
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

impl Housekeeping for Session {
    fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        Self::lose(self, hold, reason);
    }

    fn renewal_failed(&self, hold: &Hold, valid_for: Duration) {
        self.counters.renewals_failed.add(1);
        let (name, owner) = (hold.entry().name(), &*hold.owner());
        let event = RenewalFailed {
            name,
            owner,
            remaining_lease: valid_for,
        };
        self.observer
            .tell(|observer| observer.renewal_failed(&event));
    }

    fn look_after_connection(&self) {
        self.connection.look_after();
        self.guarded.look_after();
    }

    fn housekeep(&self) -> WorkLeft {
        let now = Instant::now();
        self.subscriber.follow_masters();
        let idle = WorkLeft::later(self.registry.sweep(now));
        if let Some(at) = self.reminders.remind(&self.closing, now) {
            self.watchdog.housekeep_by(at);
        }
        let written = self.connection.housekeep().max(self.guarded.housekeep());
        written.max(idle)
    }
}

/// Releasing and renewing a hold: at this client's server, or at several servers if these keep the hold.
impl Session {
    /// Queues the release; [`deliver`](Self::deliver) sends it. `undo`: Redis may never have had the hold, or may no
    /// longer have it. Then the release reports no loss.
    pub(crate) fn release(&self, hold: &Hold, undo: bool, now: Instant) -> Arc<Call> {
        if let Some(several) = hold.several() {
            return several.release();
        }
        // If a subscription of this process to the channel is still open, this process is one of the receivers that the
        // reply counts.
        let channel = hold.listened_to();
        let is_heard = channel.is_some_and(|channel| self.subscriber.listens_to(&channel));
        let call = Call::release(hold.release(undo, now), is_heard);
        self.connection.submit(&call);
        call
    }

    /// Sends a queued release without waiting, and arranges for its reply to be read.
    pub(crate) fn deliver(&self, hold: &Hold, release: &Call) {
        match hold.several() {
            Some(several) => several.send(),
            None => {
                self.connection.at(release).deliver();
                self.watchdog.housekeep_soon();
            }
        }
    }

    /// Releases a hold that is over but may still exist in Redis.
    pub(crate) fn give_back(&self, hold: &Hold) {
        let release = self.release(hold, true, Instant::now());
        self.deliver(hold, &release);
    }

    /// Waits for the reply to a release, and returns why the hold was lost before it: see [`lost_before`].
    pub(crate) fn released(
        &self,
        hold: &Hold,
        release: &Arc<Call>,
        in_time: bool,
        until: Instant,
    ) -> Result<Option<LossReason>> {
        if let Some(several) = hold.several() {
            let lost = several.released(in_time, until)?;
            // The replies to the releases of single parts report no loss: see `Releases`.
            if let Some(reason) = lost {
                self.notices.notify(hold.loss_for(reason));
            }
            return Ok(lost);
        }
        self.await_release(hold.entry().name(), release, in_time, until)
    }

    /// Waits for the reply to a release that one server executes; see [`lost_before`].
    pub(crate) fn await_release(
        &self,
        name: &str,
        release: &Arc<Call>,
        in_time: bool,
        until: Instant,
    ) -> Result<Option<LossReason>> {
        let doing = release.request.doing;
        let failed = |fault: Fault| fault.into_error(doing, name).at(&self.endpoint);
        let (value, replayed) = self.connection.settled(release, until).map_err(failed)?;
        let released = script::released(&value);
        let released = released.map_err(|unexpected| self.error(doing, name, unexpected))?;
        Ok(lost_before(released, replayed, in_time))
    }

    /// Renews the hold because its holder locks it again. Redis also stores the new count.
    pub(crate) fn renew(
        &self,
        hold: &Hold,
        again: &Reentry<'_>,
    ) -> std::result::Result<(Renewed, Instant), NotRenewed> {
        if let Some(several) = hold.several() {
            return several.renew(again);
        }
        let Reentry { ttl, count, .. } = *again;
        hold.change(|lease| lease.record_request(ttl));
        let request = hold.renew_for(ttl, count);
        let answer = self.connection.ask(&request, again.until, again.stop);
        let failed = |fault: Fault| {
            fault
                .into_error(RENEWING, hold.entry().name())
                .at(&self.endpoint)
        };
        let answer = answer.map_err(|fault| match fault {
            Fault::Stopped => NotRenewed::Stopped,
            Fault::Late(_) => NotRenewed::Late(failed(fault)),
            _ => NotRenewed::Failed(failed(fault)),
        })?;
        let renewed = script::renewed(&answer.value).map_err(|unexpected| {
            NotRenewed::Failed(self.error(RENEWING, hold.entry().name(), unexpected))
        })?;
        if renewed.is_ok() {
            hold.change(|lease| {
                lease.set_policy(again.lease, ttl, Instant::now());
                lease.prolong(answer.sent_at, ttl);
            });
        }
        Ok((renewed, answer.sent_at))
    }
}
