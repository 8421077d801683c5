//! The read-write lock.

use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::acquire::target::HeldTarget;
use crate::error::Result;
use crate::local::waiter::CancelToken;
use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Read, Scope, Write};
use crate::time;

/// A lock held by many readers or one writer: Redisson's `RReadWriteLock`.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let prices = client.rw_lock("prices");
/// {
///     let _guard = prices.read()?; // together with other readers
/// }
/// let guard = prices.write()?; // alone
/// let _guard = guard.downgrade()?; // others may read again, and nobody wrote in between
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// **Reentrancy.** A thread that reads may read again. A thread that writes may write again, and may read; its read
/// holds outlive the write hold. [`downgrade`](RwLockWriteGuard::downgrade) turns a write hold into a read hold. A
/// thread that reads and asks to write would wait for itself, so it gets
/// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
///
/// **Sharing.** Readers of one process share a read hold in Redis. For the tenure (5 ms,
/// [`Config::tenure`](crate::Config::tenure)) after Redis granted it, further readers of the process join the hold without
/// asking Redis, unless a thread of the process waits to write. After the tenure, readers ask Redis for a hold of their
/// own.
///
/// **Order.** Readers and writers take turns. Threads of one process get the lock in the order in which they asked. Among
/// processes, Redis remembers at most one waiting writer and one waiting reader. Readers that ask later wait behind that
/// writer, and writers that ask later wait behind that reader. All other waiters are in no order: the first to ask after a
/// release gets the lock. If the process of a remembered waiter dies or is stopped, Redis forgets that waiter after
/// [`Config::waiter_lease`](crate::Config::waiter_lease) (3 s unless set). Calls that do not wait, such as
/// [`try_write`](Self::try_write), are not remembered. A thread that has the lock locks again without waiting.
///
/// **Starvation.** Redis remembers a waiter for at most 10 s. A writer that waits for longer, for example behind a long
/// read, can from then on wait forever while reads of other processes overlap. Readers of other processes that use
/// [`readers_first`](Self::readers_first), and Redisson's readers, keep it out from the beginning.
///
/// **Panics.** A guard that is dropped by a panic releases the lock like any other; there is no poisoning.
///
/// **Other kinds.** A lock of another kind under the same name is [`Error::WrongType`](crate::Error::WrongType),
/// since the two would not exclude each other.
///
/// **Loss.** Each read hold expires by itself, even if other readers renew theirs. A reader that died keeps writers out
/// until its lease ends, if living readers have left by then; otherwise until they leave. If all readers die, the lock is
/// free when their leases end, or later if an earlier hold had a longer lease.
///
/// **Order beside Redisson.** Redisson's clients neither remember waiters in Redis nor look for them, so Redisson readers
/// overtake waiting writers of this crate. Such a writer waits for as long as Redisson readers overlap; readers of this
/// crate wait behind it for at most 10 s. Readers of this crate overtake waiting Redisson writers.
///
/// **Leases beside Redisson.** In Redisson, set `lockWatchdogTimeout` to well over 10 s, and also the lease of each
/// multi-lock that has a read lock in it. A shorter one can end the read holds of this crate too, and their guards report
/// that only at the next renewal.
#[derive(Clone)]
pub struct RwLock {
    reading: Handle<Read>,
    writing: Handle<Write>,
}

/// The [`Guard`] of a reader of an [`RwLock`]: one hold, released when it is dropped, that stays on its thread.
///
/// Threads of one process that share a read hold have the same [`owner`](Guard::owner).
pub type RwLockReadGuard = Guard<Read>;

/// The [`Guard`] of a writer of an [`RwLock`]: one hold, released when it is dropped, that stays on its thread.
///
/// [`downgrade`](RwLockWriteGuard::downgrade) turns it into an [`RwLockReadGuard`].
pub type RwLockWriteGuard = Guard<Write>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a reader of an [`RwLock`]: one hold, released when it is dropped, that
/// may move to other threads.
pub type OwnedRwLockReadGuard = Guard<Read, Owned>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a writer of an [`RwLock`]: one hold, released when it is dropped, that
/// may move to other threads.
///
/// [`downgrade`](OwnedRwLockWriteGuard::downgrade) turns it into an [`OwnedRwLockReadGuard`].
pub type OwnedRwLockWriteGuard = Guard<Write, Owned>;

impl RwLock {
    pub(crate) fn new(handle: LockSpec) -> Self {
        Self {
            reading: Handle::of(handle.clone().sharing()),
            writing: Handle::of(handle),
        }
    }

    fn each(self, change: impl Fn(&mut LockSpec)) -> Self {
        Self {
            reading: self.reading.each(&change),
            writing: self.writing.each(&change),
        }
    }

    /// Waits until the calling thread holds the lock for reading.
    ///
    /// Blocks without limit while another thread or process writes, or waits to write and goes first. A thread that
    /// joins a read hold of its process does not block. While Redis does not answer, the call blocks at most for the
    /// client's command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices");
    /// let _guard = prices.read()?; // together with other readers
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`](crate::Error::Redis): Redis did not answer within the command timeout, or rejected the
    ///   command.
    /// - [`Error::WrongType`](crate::Error::WrongType): the key holds something else.
    /// - [`Error::Cancelled`](crate::Error::Cancelled): the handle's token was cancelled.
    /// - [`Error::Closed`](crate::Error::Closed): the client is closed.
    /// - [`Error::Spawn`](crate::Error::Spawn): the operating system could not start a thread of the client.
    /// - [`Error::NotReplicated`](crate::Error::NotReplicated): too few replicas acknowledged in time, with
    ///   [`Config::replica_ack`](crate::Config::replica_ack).
    /// - [`Error::InvalidName`](crate::Error::InvalidName) and [`Error::InvalidSetting`](crate::Error::InvalidSetting), before
    ///   anything is sent.
    pub fn read(&self) -> Result<RwLockReadGuard> {
        self.reading.lock()
    }

    /// Tries once to read; `Ok(None)` if another thread or process writes, or waits to write and goes first.
    ///
    /// Blocks for one round trip or none, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.rw_lock("prices").try_read()?.is_none() {
    ///     println!("somebody writes");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn try_read(&self) -> Result<Option<RwLockReadGuard>> {
        self.reading.try_lock()
    }

    /// Waits up to `wait` to read; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget, connecting and round trips included; zero is one attempt.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(_guard) = client.rw_lock("prices").try_read_for(wait)? {
    ///     println!("reading");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); [`Error::Redis`](crate::Error::Redis) also if Redis is known to be unreachable when
    /// the time is over; [`Error::Late`](crate::Error::Late) with [`late_is_error`](Self::late_is_error).
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<RwLockReadGuard>> {
        self.reading.try_lock_for(wait)
    }

    /// Waits until `instant` to read; otherwise as [`try_read_for`](Self::try_read_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let guard = client.rw_lock("prices").try_read_until(deadline)?;
    /// println!("in time: {}", guard.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_read_for`](Self::try_read_for).
    pub fn try_read_until(&self, instant: Instant) -> Result<Option<RwLockReadGuard>> {
        self.reading.try_lock_until(instant)
    }

    /// Runs `work` while reading, and returns its value.
    ///
    /// Blocks until the lock is held, like [`read`](Self::read). A loss is reported as by [`Handle::with`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let sum = client.rw_lock("prices").with_read(|_guard| 20 + 22)?;
    /// assert_eq!(sum, 42);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). An error means that `work` did not run.
    pub fn with_read<T>(&self, work: impl FnOnce(&RwLockReadGuard) -> T) -> Result<T> {
        self.reading.with(work)
    }

    /// Waits until the lock is held for reading, by a guard that may move to other threads; otherwise as
    /// [`read`](Self::read).
    ///
    /// The hold belongs to the guard and to no thread: a thread that has such a guard and asks to write waits for
    /// itself, without an error.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.rw_lock("prices").read_owned()?;
    /// std::thread::spawn(move || drop(guard));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the call would have to wait
    /// and the thread holds the lock by a guard that stays on its thread.
    pub fn read_owned(&self) -> Result<OwnedRwLockReadGuard> {
        self.reading.lock_owned()
    }

    /// Tries once to read, for a guard that may move to other threads; otherwise as [`try_read`](Self::try_read).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if let Some(guard) = client.rw_lock("prices").try_read_owned()? {
    ///     std::thread::spawn(move || drop(guard));
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read).
    pub fn try_read_owned(&self) -> Result<Option<OwnedRwLockReadGuard>> {
        self.reading.try_lock_owned()
    }

    /// Waits up to `wait` to read, for a guard that may move to other threads; otherwise as
    /// [`try_read_for`](Self::try_read_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(guard) = client.rw_lock("prices").try_read_owned_for(wait)? {
    ///     std::thread::spawn(move || drop(guard));
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_read_for`](Self::try_read_for) and [`read_owned`](Self::read_owned).
    pub fn try_read_owned_for(&self, wait: Duration) -> Result<Option<OwnedRwLockReadGuard>> {
        self.reading.try_lock_owned_for(wait)
    }

    /// Waits until `instant` to read; otherwise as [`try_read_owned_for`](Self::try_read_owned_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let guard = client.rw_lock("prices").try_read_owned_until(deadline)?;
    /// println!("in time: {}", guard.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_read_owned_for`](Self::try_read_owned_for).
    pub fn try_read_owned_until(&self, instant: Instant) -> Result<Option<OwnedRwLockReadGuard>> {
        self.reading.try_lock_owned_until(instant)
    }

    /// Waits until the calling thread holds the lock for writing.
    ///
    /// Blocks without limit while others read or write, or wait to read and go first, and at most for the client's command
    /// timeout (3 s unless set) while Redis does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices");
    /// let _guard = prices.write()?; // alone
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the thread reads and
    /// does not write.
    pub fn write(&self) -> Result<RwLockWriteGuard> {
        self.writing.lock()
    }

    /// Tries once to write; `Ok(None)` if another thread or process reads or writes, or a waiting thread goes first.
    ///
    /// Blocks for one round trip or none, at most for the command timeout. If this process has just had the lock for its
    /// whole tenure, the call lets other processes go first, which takes longer (see [`Handle::try_lock`]).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.rw_lock("prices").try_write()?.is_none() {
    ///     println!("somebody reads or writes");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn try_write(&self) -> Result<Option<RwLockWriteGuard>> {
        self.writing.try_lock()
    }

    /// Waits up to `wait` to write; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget; zero is one attempt.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(_guard) = client.rw_lock("prices").try_write_for(wait)? {
    ///     println!("writing");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); [`Error::Redis`](crate::Error::Redis) also if Redis is known to be unreachable when
    /// the time is over; [`Error::Late`](crate::Error::Late) with [`late_is_error`](Self::late_is_error).
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<RwLockWriteGuard>> {
        self.writing.try_lock_for(wait)
    }

    /// Waits until `instant` to write; otherwise as [`try_write_for`](Self::try_write_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let guard = client.rw_lock("prices").try_write_until(deadline)?;
    /// println!("in time: {}", guard.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_write_for`](Self::try_write_for).
    pub fn try_write_until(&self, instant: Instant) -> Result<Option<RwLockWriteGuard>> {
        self.writing.try_lock_until(instant)
    }

    /// Runs `work` while writing, and returns its value.
    ///
    /// Blocks until the lock is held, like [`write`](Self::write). A loss is reported as by [`Handle::with`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.rw_lock("prices").with_write(|_guard| println!("alone"))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write). An error means that `work` did not run.
    pub fn with_write<T>(&self, work: impl FnOnce(&RwLockWriteGuard) -> T) -> Result<T> {
        self.writing.with(work)
    }

    /// Waits until the lock is held for writing, by a guard that may move to other threads; otherwise as
    /// [`write`](Self::write).
    ///
    /// The hold belongs to the guard and to no thread: a thread that has such a guard and reads, or writes again, waits
    /// for itself, without an error. To read after writing, use [`downgrade`](OwnedRwLockWriteGuard::downgrade).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.rw_lock("prices").write_owned()?;
    /// std::thread::spawn(move || drop(guard));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write). [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the call would have to
    /// wait and the thread holds the lock by a guard that stays on its thread.
    pub fn write_owned(&self) -> Result<OwnedRwLockWriteGuard> {
        self.writing.lock_owned()
    }

    /// Tries once to write, for a guard that may move to other threads; otherwise as [`try_write`](Self::try_write).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if let Some(guard) = client.rw_lock("prices").try_write_owned()? {
    ///     std::thread::spawn(move || drop(guard));
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_write`](Self::try_write), except `WouldDeadlock`.
    pub fn try_write_owned(&self) -> Result<Option<OwnedRwLockWriteGuard>> {
        self.writing.try_lock_owned()
    }

    /// Waits up to `wait` to write, for a guard that may move to other threads; otherwise as
    /// [`try_write_for`](Self::try_write_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(guard) = client.rw_lock("prices").try_write_owned_for(wait)? {
    ///     std::thread::spawn(move || drop(guard));
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_write_for`](Self::try_write_for) and [`write_owned`](Self::write_owned).
    pub fn try_write_owned_for(&self, wait: Duration) -> Result<Option<OwnedRwLockWriteGuard>> {
        self.writing.try_lock_owned_for(wait)
    }

    /// Waits until `instant` to write; otherwise as [`try_write_owned_for`](Self::try_write_owned_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let guard = client.rw_lock("prices").try_write_owned_until(deadline)?;
    /// println!("in time: {}", guard.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_write_owned_for`](Self::try_write_owned_for).
    pub fn try_write_owned_until(&self, instant: Instant) -> Result<Option<OwnedRwLockWriteGuard>> {
        self.writing.try_lock_owned_until(instant)
    }

    /// Returns a handle that acquires the lock for a fixed lease instead of renewing it: Redisson's `leaseTime`.
    ///
    /// Read holds with a fixed lease are not shared among threads. [`Handle::fixed_lease`] describes this setting in full.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").fixed_lease(std::time::Duration::from_secs(5));
    /// let _guard = prices.read()?; // for five seconds at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.each(|side| side.lease = Some(lease))
    }

    /// Returns a handle whose holds are renewed for at most `max_hold` after they were granted.
    ///
    /// Read holds with this limit are not shared among threads; a write hold is released when the limit is over.
    /// [`Handle::max_hold`] describes this setting in full.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").max_hold(std::time::Duration::from_secs(3600));
    /// let _guard = prices.write()?; // renewed for an hour at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.each(|side| side.max_hold = time::finite(max_hold))
    }

    /// Returns a handle whose holds keep the name for at least `min_hold` after they were granted, even if released
    /// earlier.
    ///
    /// [`Handle::min_hold`] describes this setting in full.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").min_hold(std::time::Duration::from_secs(55));
    /// let _guard = prices.write()?; // nobody reads or writes within 55 s
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.each(|side| side.min_hold = Some(min_hold))
    }

    /// Returns a handle that gives up with [`Error::Cancelled`](crate::Error::Cancelled) once `token` is cancelled: `read`,
    /// `write` and the other methods that lock then return that error.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let prices = client.rw_lock("prices").cancel_on(&token);
    /// token.cancel(); // normally by another thread, while this one waits
    /// assert!(matches!(prices.read(), Err(redlatch::Error::Cancelled)));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_on(self, token: &CancelToken) -> Self {
        self.each(|side| side.cancel = Some(token.clone()))
    }

    /// Returns a handle whose calls, like those of its guards, wait this long for Redis to answer, instead of the
    /// client's [`command_timeout`](crate::Config::command_timeout).
    ///
    /// From 10 ms to an hour; for any other value the calls return
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting). Renewals keep the client's timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let a_second = std::time::Duration::from_secs(1);
    /// let prices = client.rw_lock("prices").command_timeout(a_second);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn command_timeout(self, timeout: Duration) -> Self {
        self.each(|side| side.set_command_timeout(timeout))
    }

    /// Returns a handle whose calls with a time limit return [`Error::Late`](crate::Error::Late) if Redis was too slow to
    /// reply.
    ///
    /// By default, such a call returns `Ok(None)` in two cases: the lock was taken or another waiter was first when Redis
    /// last replied, or Redis has not replied at all. With this setting, the second case is
    /// [`Error::Late`](crate::Error::Late).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").late_is_error();
    /// match prices.try_read_for(std::time::Duration::from_millis(50)) {
    ///     Err(redlatch::Error::Late { .. }) => println!("redis is slow"),
    ///     other => println!("reading: {}", other?.is_some()),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn late_is_error(self) -> Self {
        self.each(|side| side.late_is_error = true)
    }

    /// Returns a handle that reads whenever no one writes, even if another process waits to write.
    ///
    /// Redisson has the same rule: readers that overlap can keep writers waiting forever. Default: readers and writers
    /// take turns.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").readers_first();
    /// let _guard = prices.read()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn readers_first(mut self) -> Self {
        self.reading.target.readers_first = true;
        self
    }

    /// Returns the read side as a lock of its own, such as for a [`MultiLock`](crate::MultiLock). No I/O.
    ///
    /// ```no_run
    /// use redlatch::MultiLock;
    ///
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let (prices, order) = (client.rw_lock("prices"), client.mutex("order:7"));
    /// let both = MultiLock::new(vec![Box::new(prices.read_side()), Box::new(order)]);
    /// let _guard = both.lock()?; // others may read the prices too
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The `lock` of the returned handle does what [`read`](Self::read) does, its `try_lock` what
    /// [`try_read`](Self::try_read) does, and so on. The handle's `is_locked` is about readers only; `force_unlock` and
    /// `remaining_lease` are about readers and writers.
    #[must_use]
    pub fn read_side(&self) -> Handle<Read> {
        self.reading.clone()
    }

    /// Returns the write side as a lock of its own: see [`read_side`](Self::read_side). No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _guard = client.rw_lock("prices").write_side().lock()?; // alone
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn write_side(&self) -> Handle<Write> {
        self.writing.clone()
    }

    /// Returns whether any thread of any process reads.
    ///
    /// Blocks for one round trip, at most for the command timeout. A reader that died counts for as long as it keeps
    /// writers out (see [`RwLock`], *Loss*).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("read: {}", client.rw_lock("prices").is_read_locked()?); // a moment ago
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`](crate::Error::Redis), [`Error::WrongType`](crate::Error::WrongType),
    /// [`Error::Closed`](crate::Error::Closed), [`Error::InvalidName`](crate::Error::InvalidName),
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting).
    pub fn is_read_locked(&self) -> Result<bool> {
        self.reading.is_locked()
    }

    /// Returns whether any thread of any process writes.
    ///
    /// Blocks for one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("written: {}", client.rw_lock("prices").is_write_locked()?); // a moment ago
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`is_read_locked`](Self::is_read_locked).
    pub fn is_write_locked(&self) -> Result<bool> {
        self.writing.is_locked()
    }

    /// Returns how many read holds the calling thread has; zero if they are no longer valid. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices");
    /// let _guard = prices.read()?;
    /// assert_eq!(prices.read_hold_count(), 1);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn read_hold_count(&self) -> u32 {
        self.reading.hold_count()
    }

    /// Returns how many write holds the calling thread has; zero if they are no longer valid. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices");
    /// let _guard = prices.write()?;
    /// assert_eq!(prices.write_hold_count(), 1);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn write_hold_count(&self) -> u32 {
        self.writing.hold_count()
    }

    /// Returns whether the calling thread reads or writes and its hold is valid. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices");
    /// let _guard = prices.read()?;
    /// assert!(prices.is_owned_by_current_thread());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_owned_by_current_thread(&self) -> bool {
        self.read_hold_count() > 0 || self.write_hold_count() > 0
    }

    /// Returns how long Redis keeps the lock if it is not renewed; `None` if it is free.
    ///
    /// Blocks for one round trip, at most for the command timeout. With several readers, the longest of their leases
    /// counts.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if let Some(left) = client.rw_lock("prices").remaining_lease()? {
    ///     println!("free in {left:?}, unless it is renewed");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`is_read_locked`](Self::is_read_locked).
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        self.writing.remaining_lease()
    }

    /// Takes the lock away from all readers, or from the writer; `false` if it was free.
    ///
    /// Blocks for one round trip, at most for the command timeout. Holders that use this client are notified of the loss
    /// at once ([`LossReason::Forced`](crate::LossReason::Forced)). Any other holder learns of it at the next renewal.
    /// With a fixed lease, such a reader learns of it within 10 s, and such a writer at the release or when the lease
    /// ends.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.rw_lock("prices").force_unlock()? {
    ///     println!("it was held, and is free now");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// If the client resends the request after a lost reply, it counts once; no later holder loses the lock. Redisson has
    /// one call for readers and another for the writer.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
    /// [`Error::InvalidName`](crate::Error::InvalidName), [`Error::InvalidSetting`](crate::Error::InvalidSetting), and
    /// [`Error::WrongType`](crate::Error::WrongType) for a key that holds something else, which is left as it is.
    pub fn force_unlock(&self) -> Result<bool> {
        self.writing.force_unlock()
    }

    /// Returns the name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.rw_lock("prices").name(), "prices");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.writing.name()
    }
}

impl<S: Scope> Guard<Write, S> {
    /// Turns the write hold into a read hold without a gap: no other writer gets the lock in between.
    ///
    /// Other threads may read from then on, unless this thread has further write holds. Blocks for two round trips,
    /// each at most for the command timeout. The read hold has the lease settings of the write hold, and the rest of
    /// its [`min_hold`](RwLock::min_hold).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let writing = client.rw_lock("prices").write()?;
    /// let _reading = writing.downgrade()?; // nobody wrote in between
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the write hold ended earlier, [`Error::Redis`](crate::Error::Redis) if
    /// Redis did not answer, [`Error::Closed`](crate::Error::Closed) once the client is closed. After an error neither hold
    /// remains.
    pub fn downgrade(self) -> Result<Guard<Read, S>> {
        let name = self.name().to_owned();
        match self.held.below().map_err(|err| err.downgrading(&name))? {
            Some(read) => {
                self.held.hand_on_keeping(&read);
                (self.held.unlock()).map_err(|err| err.downgrading(&name))?;
                Ok(Guard::new(read))
            }
            None => Err(self.held.lost_error()),
        }
    }
}
