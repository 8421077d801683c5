//! What one client consists of: its connection, subscriber, watchdog and registry; it starts and ends the threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;

use crate::config::Config;
use crate::error::LossReason;
use crate::error::{Error, Result};
use crate::hold::releases::Releases;
use crate::hold::watchdog::{self, Watchdog};
use crate::hold::{Hold, Notices};
use crate::local::registry::Registry;
use crate::local::waiter::CancelToken;
use crate::net::call::{Attempt, Call, Fault};
use crate::net::connection::Connection;
use crate::net::socket::Endpoint;
use crate::net::subscriber::Subscriber;
use crate::process::Process;
use crate::protocol::owner::Owners;
use crate::protocol::script::{Request, lease_ms};
use crate::quorum::identity;
use crate::report::{self, report};
use crate::stats::Counters;
use crate::sync::expirable_semaphore::LivePermits;
use crate::sync::semaphore;

/// See [`Session::replay`]; twice the response timeout if that is longer.
const REPLAY: Duration = Duration::from_secs(60);

/// How long dropping the last handle may take over giving back what is held.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// Everything a client consists of but its handles. The threads know it; no lock handle can be reached from it, so
/// dropping the last one always ends it.
pub(crate) struct Session {
    pub(crate) endpoint: Endpoint,
    pub(crate) lease: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) owners: Owners,
    /// Which server the connection leads to.
    pub(crate) known: identity::Known,
    /// Since when that is the same.
    pub(crate) seniority: identity::Seniority,
    pub(crate) registry: Registry,
    pub(crate) permits: LivePermits,
    pub(crate) connection: Connection,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) counters: Arc<Counters>,
    notices: Notices,
    closed: AtomicBool,
    process: Process,
    /// Wakes those that wait in no lock when the client is closed.
    pub(crate) closing: CancelToken,
    /// Threads that may have an acquire under way.
    contenders: AtomicUsize,
    watchdog_thread: Thread,
    subscriber_thread: Thread,
}

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
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
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
        // From now on nobody starts it any more.
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
    /// Checks the settings and connects.
    pub(crate) fn open(config: Config) -> Result<Arc<Self>> {
        let endpoint = Endpoint::new(config.check()?);
        let db = endpoint.server.db;
        let counters = Arc::new(Counters::default());
        let watchdog = Watchdog::new();
        let connection = Connection::new(
            endpoint.clone(),
            config.connect_timeout,
            config.response_timeout,
            Arc::clone(&counters),
            Arc::clone(&watchdog) as _,
            Box::new(Releases::new(Arc::clone(&counters))),
        );
        connection
            .open(Instant::now() + config.connect_timeout)
            .map_err(|err| Error::redis("connecting", err))?;
        let subscriber = Subscriber::new(
            endpoint.clone(),
            config.connect_timeout,
            config.response_timeout,
            Arc::clone(&counters),
        );
        Ok(Arc::new(Self {
            endpoint,
            lease: config.lease,
            response_timeout: config.response_timeout,
            connect_timeout: config.connect_timeout,
            waiter_lease: config.waiter_lease,
            owners: Owners::new(),
            known: identity::Known::default(),
            seniority: identity::Seniority::default(),
            registry: Registry::new(config.key_prefix, db, config.tenure),
            permits: LivePermits::default(),
            connection,
            watchdog,
            subscriber,
            counters,
            notices: Notices::new(config.on_lost),
            closed: AtomicBool::new(false),
            process: Process::this(),
            closing: CancelToken::new(),
            contenders: AtomicUsize::new(0),
            watchdog_thread: Thread::default(),
            subscriber_thread: Thread::default(),
        }))
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
            .start("redlatch-watchdog", self, watchdog::run)
    }

    pub(crate) fn start_subscriber(self: &Arc<Self>) -> Result<()> {
        self.subscriber_thread
            .start("redlatch-subscriber", self, |session| {
                session.subscriber.run();
            })
    }

    /// A hold is lost: its guard, its lock and the client's listener hear of it, once.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        let Some(loss) = hold.lose(reason) else {
            return;
        };
        self.watchdog.disarm(hold);
        self.counters.lost.add(1);
        hold.entry.lost(hold);
        // Before anything that may take time.
        self.notices.notify(loss);
        drop(hold.take_subscription());
        if hold
            .entry
            .protocol
            .is_given_back_when_lost(hold.mode, reason)
        {
            self.submit_release(hold);
            match hold.quorum_hold() {
                Some(quorum_hold) => quorum_hold.tend(),
                None => self.watchdog.housekeep_soon(),
            }
        }
        if reason != LossReason::Closed {
            report!(Warn, "the lock `{}` is lost: {reason}", hold.entry.name);
        }
    }

    /// Takes back what Redis may still keep of a hold that is over. In memory only; to be flushed.
    fn submit_release(&self, hold: &Hold) {
        match hold.quorum_hold() {
            Some(quorum_hold) => drop(quorum_hold.let_go()),
            None => drop(self.connection.submit(&Call::deferred(hold.release(true)))),
        }
    }

    /// Takes back what Redis may still keep of a hold that is over.
    pub(crate) fn give_back(&self, hold: &Hold) {
        self.submit_release(hold);
        match hold.quorum_hold() {
            Some(quorum_hold) => quorum_hold.flush(),
            None => {
                self.connection.deliver();
                self.watchdog.housekeep_soon();
            }
        }
    }

    /// For how long after its first sending a request that has to count once may be sent again.
    pub(crate) fn replay(&self) -> Duration {
        REPLAY.max(2 * self.response_timeout)
    }

    /// For how long Redis remembers such a request, in milliseconds: twice as long, since the last sending may lie in the
    /// buffer of a server that is frozen.
    pub(crate) fn remember_ms(&self) -> String {
        lease_ms(2 * self.replay()).to_string()
    }

    /// Sends one command that may be repeated, and waits for its answer for at most the response timeout.
    pub(crate) fn ask(&self, request: Request) -> std::result::Result<redis::Value, Fault> {
        let until = Instant::now() + self.response_timeout;
        let mut attempt = || Attempt {
            request: request.clone(),
            undo: None,
        };
        self.connection
            .call(until, &|| self.is_closed(), None, &mut attempt)
            .map(|answer| answer.value)
    }

    /// The process may be about to end: waits a little for what was logged to reach the logger.
    pub(crate) fn flush_reports(&self) {
        if !self.is_copy() {
            report::flush();
        }
    }

    pub(crate) fn close(&self, until: Instant) -> Result<()> {
        if self.is_copy() || self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.registry.wake_all();
        self.closing.cancel();
        // A contender that is asking finds out within a slice, and takes back what it may have been granted.
        while self.contenders.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.watchdog.stop();
        self.subscriber.stop();
        // They end within milliseconds, and what they have in hand is needed below.
        let until = until.max(Instant::now() + Duration::from_millis(50));
        let mut joined = self.watchdog_thread.join(until);
        joined &= self.subscriber_thread.join(until);
        for hold in self.watchdog.take_all() {
            if let Some((whole, node)) = hold.as_part() {
                // Others keep the rest of it.
                if let Some(quorum_hold) = whole {
                    quorum_hold.leave_out(node);
                }
            } else if hold.is_held() {
                self.lose(&hold, LossReason::Closed);
                // Written together below; what goes to other servers, at once.
                self.submit_release(&hold);
                if let Some(quorum_hold) = hold.quorum_hold() {
                    quorum_hold.flush();
                }
            }
        }
        semaphore::close(self);
        self.connection.flush(true);
        let released = self.connection.drain(until);
        let (releases, undos) = self.connection.close();
        let in_time = |what: &'static str, why: String| {
            let late = io::Error::new(io::ErrorKind::TimedOut, why);
            Err(Error::redis(what, late))
        };
        if !released || releases > 0 {
            let why = format!(
                "redis has not acknowledged {releases} releases and {undos} undone attempts; the leases end them"
            );
            if releases > 0 {
                report!(Warn, "closing a client: {why}");
            }
            return in_time("giving locks back while closing", why);
        }
        if !joined {
            return in_time(
                "ending the background threads while closing",
                "they did not end in time".into(),
            );
        }
        Ok(())
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
        if let Err(err) = self.session.close(Instant::now() + DROP_DEADLINE) {
            report!(
                Warn,
                "dropping a client: {err}; what it held frees itself when the leases run out"
            );
        }
        self.session.flush_reports();
    }
}
