//! The client: settings in, locks out by name; it owns both threads and ends them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::config::Config;
use crate::error::Result;
use crate::protocol::kind::Kind;
use crate::session::{Session, SharedSession};
use crate::stats::Stats;
use crate::sync::expirable_semaphore::ExpirableSemaphore;
use crate::sync::fair_lock::FairLock;
use crate::sync::fair_mutex::FairMutex;
use crate::sync::fenced_lock::FencedLock;
use crate::sync::latch::Latch;
use crate::sync::multi_lock::MultiLock;
use crate::sync::mutex;
use crate::sync::reentrant_lock::ReentrantLock;
use crate::sync::rwlock::RwLock;
use crate::sync::semaphore::Semaphore;
use crate::sync::spin_lock::SpinLock;

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
    shared: Arc<SharedSession>,
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
        let session = Session::open(config.into())?;
        Ok(Self {
            shared: SharedSession::new(session),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<SharedSession> {
        &self.shared
    }

    fn handle(&self, name: &str, kind: Kind) -> LockSpec {
        LockSpec::new(&self.shared, name.into(), kind)
    }

    /// The reentrant lock of this name: Redisson's `RLock`. Nothing is sent.
    #[must_use]
    pub fn reentrant_lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock::of(self.handle(name.as_ref(), Kind::Lock))
    }

    /// The non-reentrant lock of this name. Nothing is sent.
    ///
    /// It has the same key as the reentrant lock of the name, so that they exclude each other.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> mutex::Mutex {
        mutex::Mutex::of(self.handle(name.as_ref(), Kind::Lock).non_reentrant())
    }

    /// The fair lock of this name: first come, first served among all processes. Nothing is sent.
    #[must_use]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::of(self.handle(name.as_ref(), Kind::Fair))
    }

    /// The fair, non-reentrant lock of this name. Nothing is sent.
    ///
    /// It has the same keys as the fair lock of the name, and waits in the same line.
    #[must_use]
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> FairMutex {
        FairMutex::of(self.handle(name.as_ref(), Kind::Fair).non_reentrant())
    }

    /// The lock of this name whose holds have tokens: Redisson's `RFencedLock`. Nothing is sent.
    #[must_use]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::of(self.handle(name.as_ref(), Kind::Fenced))
    }

    /// The lock of this name that is waited for without messages: Redisson's spin lock. Nothing is sent.
    #[must_use]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        SpinLock::of(self.handle(name.as_ref(), Kind::Spin))
    }

    /// The read-write lock of this name: Redisson's `RReadWriteLock`. Nothing is sent.
    #[must_use]
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.handle(name.as_ref(), Kind::ReadWrite))
    }

    /// The semaphore of this name whose permits have an id and a lease each: Redisson's `RPermitExpirableSemaphore`.
    /// Nothing is sent.
    #[must_use]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::of(self.handle(name.as_ref(), Kind::Permits))
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
        Latch::of(self.handle(name.as_ref(), Kind::Latch))
    }

    /// The semaphore of this name: Redisson's `RSemaphore`. Nothing is sent.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref(), Kind::Semaphore))
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
        let session = &self.shared.session;
        let closed = session.close(now + deadline.min(a_year));
        session.flush_reports();
        closed
    }

    /// What this client has done, and has in hand. Does not block.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let session = &self.shared.session;
        if session.is_copy() {
            return session.counters.read();
        }
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        Stats {
            holds: count(session.watchdog.len()),
            names: count(session.registry.len()),
            subscriptions: count(session.subscriber.len()),
            ..session.counters.read()
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = &self.shared.session;
        f.debug_struct("Client")
            .field("redis", &session.endpoint)
            .field("closed", &session.is_closed())
            .finish_non_exhaustive()
    }
}
