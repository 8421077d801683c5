//! The client makes locks by name, from one set of settings. Closing it ends the threads that renew and listen.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::config::Config;
use crate::error::Result;
use crate::operations::check::{Report, check};
use crate::operations::health::{Health, health};
use crate::operations::inspect::{LockInfo, inspect};
use crate::operations::list::Locks;
use crate::operations::release::unlock_owner;
use crate::protocol::kind::Kind;
use crate::protocol::{fenced, latch, permits, rw, semaphore};
use crate::session::Session;
use crate::session::shared::SharedSession;
use crate::stats::Stats;
use crate::sync::election::Election;
use crate::sync::expirable_semaphore::ExpirableSemaphore;
use crate::sync::fair_lock::FairLock;
use crate::sync::fair_mutex::FairMutex;
use crate::sync::fenced_lock::FencedLock;
use crate::sync::latch::Latch;
use crate::sync::multi_lock::MultiLock;
use crate::sync::mutex::Mutex;
use crate::sync::red_lock::RedLock;
use crate::sync::reentrant_lock::ReentrantLock;
use crate::sync::rwlock::RwLock;
use crate::sync::semaphore::Semaphore;
use crate::sync::spin_lock::SpinLock;
use crate::sync::ticket::{Adopt, Ticket};

/// The locks of one Redis, by name. A process normally has one client; two clients of a process exclude each other like
/// two processes.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let _guard = client.mutex("stock:42").lock()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A client may be shared among threads, or cloned for each: clones are the same client. The client lives as long as any
/// clone, lock or guard of it. Dropping the last of all these closes it as by [`Client::close`], and blocks for up to 2 s.
///
/// ```
/// fn may_be_shared<T: Send + Sync + 'static>() {}
/// may_be_shared::<redlatch::Client>();
/// may_be_shared::<redlatch::Error>();
/// ```
///
/// Clients, handles and guards are `UnwindSafe`, so [`catch_unwind`](std::panic::catch_unwind) accepts closures that use
/// them. A panic of such a closure leaves none of them half changed, and a guard that it drops releases its lock.
///
/// ```
/// use std::panic::{RefUnwindSafe, UnwindSafe};
///
/// fn may_unwind<T: UnwindSafe + RefUnwindSafe>() {}
///
/// fn of_any_kind<K: redlatch::kinds::AnyKind>() {
///     may_unwind::<(redlatch::Handle<K>, redlatch::Guard<K>, redlatch::OwnedGuard<K>)>();
/// }
/// may_unwind::<(redlatch::Client, redlatch::RwLock, redlatch::Latch, redlatch::Election, redlatch::Leadership)>();
/// may_unwind::<(redlatch::Semaphore, redlatch::SemaphorePermit, redlatch::CancelToken)>();
/// may_unwind::<(redlatch::ExpirableSemaphore, redlatch::ExpirablePermit, redlatch::LossReceiver)>();
/// ```
///
/// **Names.** A name is any text that is not empty and has at most 64 KiB, the [key prefix](Config::key_prefix)
/// included. In a cluster, names whose braces would put their keys into [several slots](crate::guide::deployments#cluster),
/// such as `a}b`, are rejected too. A rejected name is [`Error::InvalidName`](crate::Error::InvalidName), before anything is
/// sent.
///
/// **Connections and threads.** However many locks it holds, a client has at most two lasting threads and four
/// connections: for commands, for renewals, for messages once a lock is contended, and for [guarded
/// commands](crate::MutexGuard::query) once they are used. [Operations](crate::guide::operations#threads-and-connections)
/// lists what Sentinel, a cluster and questions such as [`inspect`](Self::inspect) add.
///
/// **After `fork()`** client, locks and guards belong to the parent. The child's copies send nothing, even when they are
/// dropped. Guards in the child are not valid, and methods that need Redis return [`Error::Closed`](crate::Error::Closed);
/// `close` does nothing and returns `Ok`. A child that needs locks opens a client of its own. Fork such a child before any
/// thread of the parent has used a client: `fork()` copies internal mutexes in their locked state, but not the threads that
/// hold them. If you fork later, a few of 10,000 children hang while they open their client.
///
/// **Threads of low priority** need a client of their own. The threads of a client share its connection, and one of
/// them reads the replies for all. If that thread gets no processor time, the others wait for it.
#[derive(Clone)]
pub struct Client {
    shared: Arc<SharedSession>,
}

impl UnwindSafe for Client {}
impl RefUnwindSafe for Client {}

impl Client {
    /// Checks the settings and connects. Takes a URL, a `redis::ConnectionInfo` or a [`Config`].
    ///
    /// Blocks until Redis has answered a PING, at most for the connect timeout (3 s unless set). With [`Config::lazy`]
    /// the call neither connects nor blocks. The name is resolved on a thread of its own. If the resolver does not answer,
    /// the call fails, and that thread goes on waiting. A process has at most four such threads for one host and port.
    ///
    /// ```no_run
    /// let config = redlatch::Config::new("redis://127.0.0.1/").key_prefix("shop:");
    /// let client = redlatch::Client::open(config)?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) for a setting that cannot work, before anything is sent. Also
    /// if the URL is for a single server, and a Sentinel or a node of a cluster answers.
    /// [`Error::Redis`](crate::Error::Redis) if Redis cannot be reached, rejects the credentials, is a replica, or still
    /// loads its data when the connect timeout is over.
    pub fn open(config: impl Into<Config>) -> Result<Self> {
        let session = Session::open(config.into())?;
        Ok(Self {
            shared: SharedSession::new(session),
        })
    }

    fn handle(&self, name: &str, kind: &'static Kind) -> LockSpec {
        LockSpec::new(&self.shared, name.into(), kind)
    }

    /// Returns the mutex of this name: the default lock, not reentrant. Sends nothing.
    ///
    /// The reentrant lock of the name is the same lock: a thread that holds the mutex gets the reentrant lock too.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.mutex("report").lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::named(&self.shared, name.as_ref())
    }

    /// Returns the reentrant lock of this name: Redisson's `RLock`. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.reentrant_lock("stock:42").lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn reentrant_lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock::named(&self.shared, name.as_ref())
    }

    /// Returns the fair lock of this name: first come, first served across all processes. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.fair_lock("counter:3").lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock::named(&self.shared, name.as_ref())
    }

    /// Returns the fair, non-reentrant lock of this name. Sends nothing.
    ///
    /// The fair lock of the name is the same lock: a thread that holds the mutex gets the fair lock too.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.fair_mutex("counter:3").lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> FairMutex {
        FairMutex::named(&self.shared, name.as_ref())
    }

    /// Returns the lock of this name whose holds have tokens: Redisson's `RFencedLock`. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.fenced_lock("ledger").lock()?;
    /// println!("token {}", guard.token());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        FencedLock::named(&self.shared, name.as_ref())
    }

    /// Returns the election of this name: one process of many leads. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let leadership = client.election("scheduler").campaign()?;
    /// println!("leading in term {}", leadership.term());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::of(self.handle(name.as_ref(), &fenced::KIND))
    }

    /// Returns the lock of this name whose waiting threads poll: Redisson's spin lock. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.spin_lock("user:7").lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn spin_lock(&self, name: impl AsRef<str>) -> SpinLock {
        SpinLock::named(&self.shared, name.as_ref())
    }

    /// Returns the read-write lock of this name: Redisson's `RReadWriteLock`. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices");
    /// let _guard = prices.read()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.handle(name.as_ref(), &rw::KIND))
    }

    /// Returns the semaphore of this name whose permits have an id and a lease each: Redisson's
    /// `RPermitExpirableSemaphore`. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// slots.try_set_permits(3)?;
    /// let _permit = slots.acquire()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::of(self.handle(name.as_ref(), &permits::KIND))
    }

    /// Returns several names as one lock: all are held, or none. Sends nothing.
    ///
    /// The order of the names does not matter, and naming one twice is naming it once. If there are no names, `lock` and the
    /// other methods that lock return [`Error::InvalidSetting`](crate::Error::InvalidSetting).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.multi_lock(["account:7", "account:3"]).lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn multi_lock<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::of_names(&self.shared, names)
    }

    /// Returns the count-down latch of this name: Redisson's `RCountDownLatch`. Sends nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").wait()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch::of(self.handle(name.as_ref(), &latch::KIND))
    }

    /// Returns the semaphore of this name, whose permits stay taken if their process dies: prefer
    /// [`expirable_semaphore`](Self::expirable_semaphore), unless you share it with Redisson's `RSemaphore`. Sends
    /// nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let uploads = client.semaphore("uploads");
    /// uploads.try_set_permits(5)?;
    /// let _permit = uploads.acquire()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(self.handle(name.as_ref(), &semaphore::KIND))
    }

    /// Takes over a hold that another client has detached, in one step: see [`Ticket`].
    ///
    /// Blocks for one round trip, at most for the command timeout. This client renews the hold with its own lease, and
    /// needs the same [key prefix](Config::key_prefix) as the client that detached. The hold gets a new
    /// [owner](crate::Guard::owner), a permit a new id, and the hold of a fenced lock also a greater token. So commands
    /// that the former holder still sends are rejected.
    ///
    /// ```no_run
    /// use redlatch::{LossReason, OwnedMutexGuard, Ticket};
    ///
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let text = std::env::args().nth(1).unwrap_or_default();
    /// let ticket: Ticket = text.parse()?;
    /// match client.adopt::<OwnedMutexGuard>(&ticket) {
    ///     Ok(guard) => println!("ours is now {}", guard.name()),
    ///     Err(redlatch::Error::Lost { reason, .. }) => println!("too late or taken: {reason}"),
    ///     Err(err) => return Err(err),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The type of the guard has to fit the ticket. For any other type nothing is sent, and the ticket can still be
    /// adopted.
    ///
    /// | the ticket is from | adopt it as |
    /// | --- | --- |
    /// | a `mutex` or a `reentrant_lock` | [`OwnedMutexGuard`](crate::OwnedMutexGuard) or [`OwnedReentrantLockGuard`](crate::OwnedReentrantLockGuard) |
    /// | a `fair_lock` or a `fair_mutex` | [`OwnedFairLockGuard`](crate::OwnedFairLockGuard) or [`OwnedFairMutexGuard`](crate::OwnedFairMutexGuard) |
    /// | a `fenced_lock` | [`OwnedFencedLockGuard`](crate::OwnedFencedLockGuard) |
    /// | a `spin_lock` | [`OwnedSpinLockGuard`](crate::OwnedSpinLockGuard) |
    /// | an `expirable_semaphore` | [`ExpirablePermit`](crate::ExpirablePermit) |
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`](crate::Error::Lost): [`LossReason::Expired`](crate::LossReason::Expired) if Redis has no
    ///   holder of that name: the time is over, the ticket was adopted and the hold released, or this client has another key
    ///   prefix. [`LossReason::TakenOver`](crate::LossReason::TakenOver) if it has another holder, such as another adopter. For
    ///   a permit the reason is always `Expired`.
    /// - [`Error::Redis`](crate::Error::Redis) if Redis did not answer. If the hold was adopted all the same, it is
    ///   released, and the ticket is used up.
    /// - [`Error::InvalidSetting`](crate::Error::InvalidSetting) for a ticket of another kind. `WrongType`, `Closed` and
    ///   `Spawn` as for [`lock`](crate::Handle::lock). `NotReplicated`; the hold is then released, and the ticket is used
    ///   up.
    pub fn adopt<A: Adopt>(&self, ticket: &Ticket) -> Result<A> {
        ticket.adopt(&self.shared)
    }

    /// Closes the client: waiting threads get [`Error::Closed`](crate::Error::Closed), everything held is released, its
    /// lasting threads are joined.
    ///
    /// Call `close` before `std::process::exit`, which may end the process before the releases of dropped guards are
    /// sent. The locks then stay taken until their leases are over, and permits of a [`Semaphore`] for good.
    ///
    /// Blocks until Redis has acknowledged the releases, at most for `timeout`. Ending the threads, and their last log
    /// records, take up to 150 ms more. Guards that still exist report [`LossReason::Closed`](crate::LossReason::Closed);
    /// dropping them later does nothing, and their [`unlock`](crate::Guard::unlock) or `detach` returns
    /// [`Error::Lost`](crate::Error::Lost), as do those methods of an [`ExpirablePermit`](crate::ExpirablePermit) that
    /// change its lease or release it. Other calls that need Redis return [`Error::Closed`](crate::Error::Closed);
    /// [`stats`](Self::stats) still works. A second call of `close` waits for the first and returns its result, or
    /// [`Error::Redis`](crate::Error::Redis) if its own `timeout` ends before.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.close(std::time::Duration::from_secs(5))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`](crate::Error::Redis) if not everything was done in time; its text says how many releases
    /// Redis has not acknowledged. These locks are free when their leases are over; permits of a [`Semaphore`] may stay
    /// taken.
    pub fn close(&self, timeout: Duration) -> Result<()> {
        let now = Instant::now();
        let a_year = Duration::from_secs(365 * 24 * 3600);
        let session = &self.shared.session;
        session.close(now + timeout.min(a_year))
    }

    /// Returns the id of this client, a UUID that is new for every client. No I/O.
    ///
    /// In Redis, the owner of each lock that this client holds begins with this id (ids of permits do not), and the
    /// names of its connections contain it.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// assert!(guard.owner().starts_with(client.id()));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        self.shared.session.owners.client()
    }

    /// Returns who holds a name, who waits for it, and in which processes they are. The name may be of any kind of lock.
    ///
    /// Changes nothing. Asks over a connection of its own, so that no lock waits for the answer. Blocks at most for the
    /// command timeout, connecting included. The user of Redis needs [some more
    /// rights](crate::guide::operations#acl-rights) to see processes; without them the answer
    /// [says so](LockInfo::unknown).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{}", client.inspect("report")?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
    /// [`Error::InvalidName`](crate::Error::InvalidName), and [`Error::WrongType`](crate::Error::WrongType) for a key
    /// that this crate would not make.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        inspect(&self.shared, name.as_ref())
    }

    /// Lists the locks that are held, and expirable semaphores with permits taken, whose names match a pattern (`*`, `?`
    /// and `[a-z]` as in Redis' `SCAN`).
    ///
    /// Plain semaphores ([`Semaphore`]) and latches are left out: in Redis they are plain numbers, like those of any other program. The
    /// iterator goes through the keyspace in steps (`SCAN`, never `KEYS`), one master after the other, over a connection
    /// of its own. Each step blocks at most for the command timeout. A lock that is acquired or released during the
    /// scan may be missing; a name may come twice while Redis resizes its tables.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// for lock in client.locks("stock:*") {
    ///     println!("{}", lock?);
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An item is [`Error::Redis`](crate::Error::Redis) if a master does not answer or rejects a step, and
    /// [`Error::Closed`](crate::Error::Closed) if the client is closed. It is the last item.
    #[must_use]
    pub fn locks(&self, pattern: impl AsRef<str>) -> Locks {
        Locks::new(&self.shared, pattern.as_ref())
    }

    /// Takes a lock or permit away from one owner; `false` if that owner does not hold it.
    ///
    /// Meant for an owner that is stuck: pass the [`owner`](crate::ops::Holder::owner) that [`inspect`](Self::inspect)
    /// shows. All holds of that owner end, however often its thread has locked. If only others hold the lock by now,
    /// nothing changes. In a read-write lock, a Redisson thread that writes and reads is one owner, and both holds end.
    /// Read and write holds of this crate have an owner each, so only one ends. Waiting threads are notified, except those
    /// of a spin lock. If a name has more than 1,000 holders, only those that `inspect` lists can be found.
    ///
    /// The holder learns of the loss at its next renewal, even if it uses this client. With a fixed lease, a reader learns of it
    /// within 10 s, and any other holder at the release or when the lease ends. A permit's holder that uses this client learns
    /// of it at once.
    ///
    /// Blocks as `inspect` does. If the owner is found, it also blocks for one round trip, or for two if a Redisson thread
    /// both writes and reads. `inspect` and each round trip take at most the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let stuck = "5f0c2b1e-0000-8000-8000-000000000000:17";
    /// if !client.force_unlock_owner("report", stuck)? {
    ///     println!("it is no longer theirs");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    pub fn force_unlock_owner(
        &self,
        name: impl AsRef<str>,
        owner: impl AsRef<str>,
    ) -> Result<bool> {
        unlock_owner(&self.shared, name.as_ref(), owner.as_ref())
    }

    /// Checks whether the servers are fit for locks: role, version, eviction, persistence, replicas, clocks, the rights of
    /// the user for each kind of lock, and whether a hold of each kind can be taken.
    ///
    /// Each finding says what to do. The check uses connections of its own. It tries the commands, and takes a hold of each
    /// kind, on a key of its own, and deletes that key at the end. Blocks at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let report = client.check()?;
    /// println!("{report}"); // a line for each finding, and one for its advice
    /// if !report.is_fit() {
    ///     std::process::exit(1); // some locks do not work
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Closed`](crate::Error::Closed). A server that is unreachable, or rejects the login, is a finding.
    pub fn check(&self) -> Result<Report> {
        check(&self.shared)
    }

    /// Returns what a readiness probe needs: whether the server answers, and whether the holds are renewed in time.
    ///
    /// Asks the server once (`PING`), over the connection that locks use; in a cluster one of the masters. Blocks for
    /// one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let health = client.health();
    /// println!("{}: {health}", if health.is_ready() { 200 } else { 503 });
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        health(&self.shared.session)
    }

    /// Returns numbers about this client: what has happened since it was opened, and what it has now. Does not block.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} holds lost so far", client.stats().lost);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
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

// This `impl` is here and not in `sync`, since clients are a layer above locks. It names the alias `RedLock`, so that
// rustdoc lists these methods first on the alias's page.
impl RedLock {
    /// Returns the lock of this name over the masters of these clients.
    ///
    /// Give all clients the same settings. Where they differ, the lock as a whole goes by the `lease`, `command_timeout`,
    /// `tenure`, `on_lost`, `observer` and `log_long_waits` of the first client, whose [`stats`](Client::stats) count its
    /// grants and losses. Four masters survive the loss of only one, as three do: a majority of four is three.
    ///
    /// Always use the same clients for a name, in the same order. Then all its locks in this process are one lock
    /// (reentrancy, order of threads). With other clients, or in another order, they may be two, as if in two processes: a
    /// thread that holds one and locks the other waits for itself. Locks with different masters or key prefixes may not
    /// exclude each other.
    ///
    /// Asks each server for its identity (`INFO`), all at the same time, and blocks at most for the command timeout of the
    /// first client. A server that does not answer is asked again by the calls that lock. If it turns out that two clients
    /// lead to the same server, these calls return [`Error::InvalidSetting`](crate::Error::InvalidSetting). A server that
    /// has become a replica takes no part while it is one.
    ///
    /// ```no_run
    /// use redlatch::{Client, RedLock};
    /// let open = |port: u16| Client::open(format!("redis://127.0.0.1:{port}/"));
    /// let (a, b, c) = (open(7001)?, open(7002)?, open(7003)?);
    /// let lock = RedLock::new([&a, &b, &c], "billing")?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) for fewer than two clients, for a client of a cluster, for
    /// two clients of one server (the same `run_id`, whatever the address), for a server that answers that it is a replica,
    /// and for a client that waits for replicas ([`Config::replica_ack`](crate::Config::replica_ack));
    /// [`Error::InvalidName`](crate::Error::InvalidName); [`Error::Closed`](crate::Error::Closed) if one of the clients is.
    pub fn new<'a>(
        clients: impl IntoIterator<Item = &'a Client>,
        name: impl AsRef<str>,
    ) -> Result<Self> {
        let sessions = clients.into_iter().map(|client| Arc::clone(&client.shared));
        Self::over(sessions.collect(), name.as_ref())
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
