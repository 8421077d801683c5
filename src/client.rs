//! The client: settings in, locks out by name; it owns both threads and ends them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;

use crate::call::{Attempt, Call, Fault};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::expirable_semaphore::{ExpirableSemaphore, LivePermits};
use crate::fair_lock::FairLock;
use crate::fair_mutex::FairMutex;
use crate::fenced_lock::FencedLock;
use crate::gate::Gates;
use crate::handle::Handle;
use crate::hold::{Hold, LossReason, Notices};
use crate::identity;
use crate::latch::Latch;
use crate::link::Link;
use crate::multi_lock::MultiLock;
use crate::mutex;
use crate::owner::{Owners, Process};
use crate::reentrant_lock::ReentrantLock;
use crate::report::{self, report};
use crate::room::Mode;
use crate::rwlock::RwLock;
use crate::script::{Request, lease_ms};
use crate::semaphore::{self, Semaphore};
use crate::spin_lock::SpinLock;
use crate::stats::{Counters, Stats};
use crate::stream::Endpoint;
use crate::subscriber::{self, Subscriber};
use crate::wait::CancelToken;
use crate::watchdog::{self, Agenda};
use crate::wire::Family;

/// See [`Engine::replay`]; twice the response timeout if that is longer.
const REPLAY: Duration = Duration::from_secs(60);

/// How long dropping the last handle may take over giving back what is held.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// Everything a client consists of but its handles. The threads know it; no lock handle can be reached from it, so
/// dropping the last one always ends it.
pub(crate) struct Engine {
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
    pub(crate) gates: Gates,
    pub(crate) permits: LivePermits,
    pub(crate) link: Link,
    pub(crate) agenda: Arc<Agenda>,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) counters: Arc<Counters>,
    notices: Notices,
    closed: AtomicBool,
    process: Process,
    /// Wakes those that wait in no room when the client is closed.
    pub(crate) closing: CancelToken,
    /// Threads that may have an acquire under way.
    contenders: AtomicUsize,
    watchdog: Thread,
    listener: Thread,
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
    fn start(&self, name: &'static str, engine: &Arc<Engine>, run: fn(Arc<Engine>)) -> Result<()> {
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut running = self.running.lock();
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        let (ends, ended) = bounded::<()>(0);
        let engine = Arc::clone(engine);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let _ends = ends;
                run(engine);
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
pub(crate) struct Contending<'a>(&'a Engine);

impl Drop for Contending<'_> {
    fn drop(&mut self) {
        self.0.contenders.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
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
        self.watchdog
            .start("redlatch-watchdog", self, watchdog::run)
    }

    pub(crate) fn start_subscriber(self: &Arc<Self>) -> Result<()> {
        self.listener
            .start("redlatch-subscriber", self, subscriber::run)
    }

    /// A hold is lost: its guard, its room and the client's listener hear of it, once.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        let Some(loss) = hold.lose(reason) else {
            return;
        };
        self.agenda.disarm(hold);
        self.counters.lost.add(1);
        hold.gate.lost(hold);
        // Before anything that may take time.
        self.notices.notify(loss);
        drop(hold.take_subscription());
        let rest_is_of_no_use = match hold.gate.wire.family {
            // A read hold below it may keep what both are kept in, and would keep the lost one with it.
            Family::ReadWrite => hold.mode == Mode::Exclusive && hold.may_be_held_still(),
            // What others have not taken yet.
            Family::Several | Family::Quorum => {
                matches!(reason, LossReason::Forced | LossReason::TakenOver)
            }
            _ => false,
        };
        if rest_is_of_no_use {
            self.submit_release(hold);
            match hold.grip() {
                Some(grip) => grip.tend(),
                None => self.agenda.tend_soon(),
            }
        }
        if reason != LossReason::Closed {
            report!(Warn, "the lock `{}` is lost: {reason}", hold.gate.name);
        }
    }

    /// Takes back what Redis may still keep of a hold that is over. In memory only; to be flushed.
    fn submit_release(&self, hold: &Hold) {
        match hold.grip() {
            Some(grip) => drop(grip.let_go()),
            None => drop(self.link.submit(&Call::deferred(hold.release(true)))),
        }
    }

    /// Takes back what Redis may still keep of a hold that is over.
    pub(crate) fn give_back(&self, hold: &Hold) {
        self.submit_release(hold);
        match hold.grip() {
            Some(grip) => grip.flush(),
            None => {
                self.link.deliver();
                self.agenda.tend_soon();
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
        self.link
            .call(until, &|| self.is_closed(), None, &mut attempt)
            .map(|answer| answer.value)
    }

    /// The process may be about to end: waits a little for what was logged to reach the logger.
    fn flush_reports(&self) {
        if !self.is_copy() {
            report::flush();
        }
    }

    fn close(&self, until: Instant) -> Result<()> {
        if self.is_copy() || self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.gates.wake_all();
        self.closing.cancel();
        // A contender that is asking finds out within a slice, and takes back what it may have been granted.
        while self.contenders.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.agenda.stop();
        self.subscriber.stop();
        // They end within milliseconds, and what they have in hand is needed below.
        let until = until.max(Instant::now() + Duration::from_millis(50));
        let mut joined = self.watchdog.join(until);
        joined &= self.listener.join(until);
        for hold in self.agenda.take_all() {
            if let Some((whole, node)) = hold.as_part() {
                // Others keep the rest of it.
                if let Some(grip) = whole {
                    grip.leave_out(node);
                }
            } else if hold.is_held() {
                self.lose(&hold, LossReason::Closed);
                // Written together below; what goes to other servers, at once.
                self.submit_release(&hold);
                if let Some(grip) = hold.grip() {
                    grip.flush();
                }
            }
        }
        semaphore::close(self);
        self.link.flush(true);
        let released = self.link.drain(until);
        let (releases, undos) = self.link.close();
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
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(err) = self.engine.close(Instant::now() + DROP_DEADLINE) {
            report!(
                Warn,
                "dropping a client: {err}; what it held frees itself when the leases run out"
            );
        }
        self.engine.flush_reports();
    }
}

/// A connection to one Redis, and the locks in it.
///
/// Clones are the same client. A process normally has one; it holds one socket for commands, one for renewals and, once
/// a lock is contended, one for messages, and at most two threads, however many locks it holds. Dropping the last
/// handle — clones, locks and guards all count — closes it as [`Client::close`] does, within two seconds.
///
/// After `fork()` client, locks and guards are the parent's alone. The child's copies send nothing, also when they are
/// dropped: their verbs are answered [`Error::Closed`] and their guards are not valid. A child that is to lock something
/// opens a client of its own, and is made before any thread of the parent has used one: `fork()` copies what `parking_lot`
/// knows of waiting threads, but not the threads.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let _guard = client.reentrant_lock("stock:42").lock()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// Checks the settings and connects. A URL will do, or a [`Config`].
    ///
    /// Blocks until Redis has answered a PING, at most for the connect timeout (3 s unless set). No thread is started.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting that cannot work, before anything is sent; [`Error::Redis`] if Redis cannot be
    /// reached, refuses the credentials, or is still loading its data when the connect timeout is over.
    pub fn open(config: impl Into<Config>) -> Result<Self> {
        let config = config.into();
        let endpoint = config.check()?;
        let db = endpoint.db;
        let counters = Arc::new(Counters::default());
        let agenda = Agenda::new();
        let link = Link::new(
            endpoint.clone(),
            config.connect_timeout,
            config.response_timeout,
            Arc::clone(&counters),
            Arc::clone(&agenda),
        );
        link.open(Instant::now() + config.connect_timeout)
            .map_err(|err| Error::redis("connecting", err))?;
        Ok(Self {
            shared: Arc::new(Shared {
                engine: Arc::new(Engine {
                    endpoint,
                    lease: config.lease,
                    response_timeout: config.response_timeout,
                    connect_timeout: config.connect_timeout,
                    waiter_lease: config.waiter_lease,
                    owners: Owners::new(),
                    known: identity::Known::default(),
                    seniority: identity::Seniority::default(),
                    gates: Gates::new(config.key_prefix, db, config.tenure),
                    permits: LivePermits::default(),
                    link,
                    agenda,
                    subscriber: Subscriber::new(),
                    counters,
                    notices: Notices::new(config.on_lost),
                    closed: AtomicBool::new(false),
                    process: Process::this(),
                    closing: CancelToken::new(),
                    contenders: AtomicUsize::new(0),
                    watchdog: Thread::default(),
                    listener: Thread::default(),
                }),
            }),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn handle(&self, name: &str, family: Family) -> Handle {
        Handle::new(&self.shared, name.into(), family)
    }

    /// The reentrant lock of this name: Redisson's `RLock`. Nothing is sent.
    #[must_use]
    pub fn reentrant_lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock::of(self.handle(name.as_ref(), Family::Lock))
    }

    /// The non-reentrant lock of this name. Nothing is sent.
    ///
    /// It has the same key as the reentrant lock of the name, so that they exclude each other.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> mutex::Mutex {
        mutex::Mutex::of(self.handle(name.as_ref(), Family::Lock).non_reentrant())
    }

    /// The fair lock of this name: first come, first served among all processes. Nothing is sent.
    #[must_use]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::of(self.handle(name.as_ref(), Family::Fair))
    }

    /// The fair, non-reentrant lock of this name. Nothing is sent.
    ///
    /// It has the same keys as the fair lock of the name, and waits in the same line.
    #[must_use]
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> FairMutex {
        FairMutex::of(self.handle(name.as_ref(), Family::Fair).non_reentrant())
    }

    /// The lock of this name whose holds have tokens: Redisson's `RFencedLock`. Nothing is sent.
    #[must_use]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::of(self.handle(name.as_ref(), Family::Fenced))
    }

    /// The lock of this name that is waited for without messages: Redisson's spin lock. Nothing is sent.
    #[must_use]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        SpinLock::of(self.handle(name.as_ref(), Family::Spin))
    }

    /// The read-write lock of this name: Redisson's `RReadWriteLock`. Nothing is sent.
    #[must_use]
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.handle(name.as_ref(), Family::ReadWrite))
    }

    /// The semaphore of this name whose permits have an id and a lease each: Redisson's `RPermitExpirableSemaphore`.
    /// Nothing is sent.
    #[must_use]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::of(self.handle(name.as_ref(), Family::Permits))
    }

    /// Several names as one lock: all are held, or none. Nothing is sent.
    ///
    /// The order of the names does not matter, and naming one twice is naming it once. No names, or more than 256, are
    /// answered [`Error::Config`] by the verbs.
    #[must_use]
    pub fn multi_lock<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::of_names(&self.shared, names)
    }

    /// The count-down latch of this name: Redisson's `RCountDownLatch`. Nothing is sent.
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch::of(self.handle(name.as_ref(), Family::Latch))
    }

    /// The semaphore of this name: Redisson's `RSemaphore`. Nothing is sent.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref(), Family::Semaphore))
    }

    /// Ends the client: waiting threads get [`Error::Closed`], what is held is given back, both threads are joined.
    ///
    /// Guards that are still alive learn of it as [`LossReason::Closed`]; dropping them later does nothing. Every
    /// later verb is answered [`Error::Closed`]. Blocks at most for `deadline`. Closing twice is fine.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if not everything was done in time; its source says how many releases Redis has not acknowledged,
    /// which then free themselves when their leases run out.
    pub fn close(&self, deadline: Duration) -> Result<()> {
        let now = Instant::now();
        let a_year = Duration::from_secs(365 * 24 * 3600);
        let engine = &self.shared.engine;
        let closed = engine.close(now + deadline.min(a_year));
        engine.flush_reports();
        closed
    }

    /// What this client has done, and has in hand. Does not block.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let engine = &self.shared.engine;
        if engine.is_copy() {
            return engine.counters.read();
        }
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        Stats {
            holds: count(engine.agenda.len()),
            rooms: count(engine.gates.len()),
            subscriptions: count(engine.subscriber.len()),
            ..engine.counters.read()
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = &self.shared.engine;
        f.debug_struct("Client")
            .field("redis", &engine.endpoint)
            .field("closed", &engine.is_closed())
            .finish_non_exhaustive()
    }
}
