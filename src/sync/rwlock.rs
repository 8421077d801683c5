//! The read-write lock.

use std::fmt;
use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::acquire::target::Held;
use crate::error::Result;
use crate::local::waiter::CancelToken;
use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Read, Scope, Write};
use crate::time;

/// A lock that many may hold to read, or one to write: Redisson's `RReadWriteLock`.
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
/// **Reentrancy.** A thread that reads may read again; one that writes may write again, and may read. These read holds
/// then outlive the write hold, and [`RwLockWriteGuard::downgrade`] turns one into the other. A thread that reads and
/// wants to write would wait for itself: that is [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
///
/// **Sharing.** Threads of one process share a read hold: for the client's tenure
/// ([`Config::tenure`](crate::Config::tenure), 5 ms) after its grant further readers join it without asking Redis,
/// unless a thread of the process waits to write. When a writer leaves, all readers that wait in a process get the
/// lock with one round trip, and those of other processes at the same time.
///
/// **Order.** Readers and writers take turns, so neither side starves. Within a process threads get the lock in the
/// order in which they asked. Among processes Redis keeps a note of one waiting writer and of one waiting reader, and a
/// thread that comes is behind the one of the other side that was noted when it first asked, and behind nobody else. A
/// noted waiter that has not asked for [`Config::waiter_lease`](crate::Config::waiter_lease) (3 s), because it died or
/// was stopped, counts as gone. A thread that has the lock already is behind nobody. Calls that do not wait, such as
/// [`try_read`](Self::try_read), respect the notes and leave none. With [`readers_first`](Self::readers_first) readers
/// pass writers of other processes.
///
/// **Order beside Redisson.** Redisson's clients neither leave such notes nor read them: its readers pass those
/// who wait to write. So a writer waits for as long as readers of Redisson overlap. Readers here do not wait behind it
/// for that long: a note has no precedence once its owner has waited for 10 s, which then waits as Redisson's clients
/// do. So does a writer among readers each of which holds the lock for longer than that.
///
/// **Loss.** A read hold can be lost, and reports it, like any other. Each has a key of its own that lives as long as
/// its lease, so a reader that died makes way for a writer when its own lease is over, whatever other readers renew. If
/// more than a thousand died, a writer has to ask several times before it gets the lock; [`try_write`](Self::try_write)
/// asks once.
///
/// **Leases beside Redisson.** Redis keeps all read holds of a lock in one key, and a Redisson client sets that key's
/// time to live to its own: `lockWatchdogTimeout`, or the lease of a multi-lock. Read holds here extend it again at
/// every renewal, at least every 10 s, and once they have found it shortened, after a third of the time it had left.
/// Not covered: a client that sets it below the time until then, and dies. The lock then ends before this hold's
/// [`is_valid`](RwLockReadGuard::is_valid) says so, and a writer may get it; the next renewal finds out. It cannot
/// happen if those times are well over 10 s in every Redisson client.
///
/// **Panics.** As with the [`ReentrantLock`](crate::ReentrantLock): dropping releases, nothing is poisoned.
///
/// A lock of another kind under the same name is [`Error::WrongType`](crate::Error::WrongType), since the two would not
/// exclude each other.
#[derive(Clone)]
pub struct RwLock {
    reading: Handle<Read>,
    writing: Handle<Write>,
}

/// The [`Guard`] of an [`RwLock`] that reads: a hold, released when dropped, that stays on its thread.
///
/// Threads of a process that share a hold have the same [`owner`](Guard::owner).
pub type RwLockReadGuard = Guard<Read>;

/// The [`Guard`] of an [`RwLock`] that writes: a hold, released when dropped, that stays on its thread.
pub type RwLockWriteGuard = Guard<Write>;

/// The [`OwnedGuard`](crate::OwnedGuard) of an [`RwLock`] that reads: a hold, released when dropped, that may move to
/// other threads.
pub type OwnedRwLockReadGuard = Guard<Read, Owned>;

/// The [`OwnedGuard`](crate::OwnedGuard) of an [`RwLock`] that writes: a hold, released when dropped, that may move to
/// other threads.
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
    /// Blocks without limit while somebody writes, or waits to and goes first; at most for the client's response
    /// timeout (3 s unless set) while Redis does not answer; not at all if it joins a read hold of its process.
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
    /// [`Error::Redis`](crate::Error::Redis) if Redis could not be asked;
    /// [`Error::WrongType`](crate::Error::WrongType) if the key holds something else;
    /// [`Error::Cancelled`](crate::Error::Cancelled) by the handle's token; [`Error::Closed`](crate::Error::Closed)
    /// once the client is closed; [`Error::InvalidName`](crate::Error::InvalidName) and
    /// [`Error::Config`](crate::Error::Config) before anything is sent.
    pub fn read(&self) -> Result<RwLockReadGuard> {
        self.reading.lock()
    }

    /// Tries once to read; `Ok(None)` if somebody writes, or waits to and goes first.
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
    /// As [`read`](Self::read), except `Cancelled`.
    pub fn try_read(&self) -> Result<Option<RwLockReadGuard>> {
        self.reading.try_lock()
    }

    /// Waits up to `wait` to read; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget; zero is one attempt.
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
    /// As [`read`](Self::read), and as [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for) if Redis is
    /// known to be unreachable by then.
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
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let sum = client.rw_lock("prices").with_read(|_guard| 20 + 22)?;
    /// assert_eq!(sum, 42);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). An error means that `work` did not run; a loss while it ran is reported as by
    /// [`Mutex::with`](crate::Mutex::with).
    pub fn with_read<T>(&self, work: impl FnOnce(&RwLockReadGuard) -> T) -> Result<T> {
        self.reading.with(work)
    }

    /// Waits until the lock is held for reading, by a guard that may move to other threads; otherwise as
    /// [`read`](Self::read).
    ///
    /// The hold belongs to no thread: a thread that has such a guard and waits to write waits for itself, unnoticed.
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
    /// As [`read`](Self::read). [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if it would have to wait and the
    /// thread holds the lock by a guard that stays on it.
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
    /// As [`try_read`](Self::try_read), except `WouldDeadlock`.
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
    /// Blocks without limit while others read or write, and at most for the client's command timeout (3 s unless set)
    /// while Redis does not answer.
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
    /// As [`read`](Self::read), and [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the thread reads and does
    /// not write.
    pub fn write(&self) -> Result<RwLockWriteGuard> {
        self.writing.lock()
    }

    /// Tries once to write; `Ok(None)` if somebody else reads or writes, or a thread of this process waits for either.
    ///
    /// Blocks for one round trip or none, at most for the command timeout. After a tenure others go first, as
    /// [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock) says.
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
    /// As [`write`](Self::write), except `Cancelled`.
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
    /// As [`write`](Self::write), and as [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for) if Redis
    /// is known to be unreachable by then.
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
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.rw_lock("prices").with_write(|_guard| println!("alone"))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write). An error means that `work` did not run; a loss while it ran is reported as by
    /// [`Mutex::with`](crate::Mutex::with).
    pub fn with_write<T>(&self, work: impl FnOnce(&RwLockWriteGuard) -> T) -> Result<T> {
        self.writing.with(work)
    }

    /// Waits until the lock is held for writing, by a guard that may move to other threads; otherwise as
    /// [`write`](Self::write).
    ///
    /// The hold belongs to no thread: a thread that has such a guard and reads, or writes again, waits for itself,
    /// unnoticed. Reading below it begins with [`downgrade`](OwnedRwLockWriteGuard::downgrade).
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
    /// As [`write`](Self::write). [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if it would have to wait and
    /// the thread holds the lock by a guard that stays on it.
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

    /// Returns a handle that takes the lock for a fixed time instead of renewing it: Redisson's `leaseTime`.
    ///
    /// Read holds with a fixed lease are not shared, and reading again in the same thread renews the whole hold.
    /// Otherwise as [`ReentrantLock::lease`](crate::ReentrantLock::lease).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").lease(std::time::Duration::from_secs(5));
    /// let _guard = prices.read()?; // for five seconds at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.each(|side| side.lease = Some(lease))
    }

    /// Returns a handle whose holds are renewed for at most `max_hold` after they were granted.
    ///
    /// Read holds with this limit are not shared. Otherwise as
    /// [`ReentrantLock::max_hold`](crate::ReentrantLock::max_hold).
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

    /// Returns a handle whose holds keep the name for at least `span` after they were granted: see
    /// [`ReentrantLock::at_least`](crate::ReentrantLock::at_least).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let prices = client.rw_lock("prices").at_least(std::time::Duration::from_secs(55));
    /// let _guard = prices.write()?; // nobody reads or writes within 55 s
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn at_least(self, span: Duration) -> Self {
        self.each(|side| side.at_least = Some(span))
    }

    /// Returns a handle whose waits end with [`Error::Cancelled`](crate::Error::Cancelled) when `token` is cancelled.
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

    /// Returns a handle whose waits with a limit tell *late* from *busy*: see
    /// [`ReentrantLock::late_is_error`](crate::ReentrantLock::late_is_error).
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

    /// Returns a handle that reads whenever nobody writes, even if somebody in another process waits to.
    ///
    /// This is Redisson's rule: readers that overlap can keep writers waiting forever. Default: both take turns.
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

    /// Returns whether anybody reads, in any process. Blocks for one round trip, at most the command timeout.
    ///
    /// A reader that died is counted until its lease is over and another reader releases, or a writer asks.
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
    /// [`Error::Closed`](crate::Error::Closed), [`Error::InvalidName`](crate::Error::InvalidName).
    pub fn is_read_locked(&self) -> Result<bool> {
        self.reading.is_locked()
    }

    /// Returns whether anybody writes, in any process. Blocks for one round trip, at most the command timeout.
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

    /// Returns how long Redis keeps the lock if nobody renews it; `None` if nobody holds it. Blocks for one round trip,
    /// at most the command timeout.
    ///
    /// With several readers it is the longest of their leases.
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
    /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
    /// [`Error::InvalidName`](crate::Error::InvalidName).
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        self.writing.remaining_lease()
    }

    /// Takes the lock away from all who read or write; `false` if nobody did. Blocks for one round trip, at most the
    /// command timeout.
    ///
    /// Holders in this process are notified of their loss at once ([`LossReason::Forced`](crate::LossReason::Forced)),
    /// others at their next renewal. A request that is sent again after a lost reply counts once, and takes nothing
    /// from later holders. Redisson has a call of its own for readers and for the writer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.rw_lock("prices").force_unlock()? {
    ///     println!("somebody held it, and no longer does");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`](crate::Error::Redis), [`Error::Closed`](crate::Error::Closed),
    /// [`Error::InvalidName`](crate::Error::InvalidName), and [`Error::WrongType`](crate::Error::WrongType) for a key
    /// that holds something else, which is left as it is.
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
    /// Turns the write hold into a read hold, with nobody writing in between; from then on others may read.
    ///
    /// The read hold has the lease settings of the write hold, and what is left of its [`at_least`](RwLock::at_least).
    /// If the thread has further write holds, it goes on writing until they are released. Blocks for two round trips,
    /// at most for twice the command timeout.
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
    /// [`Error::Lost`](crate::Error::Lost) if the lock was no longer ours, [`Error::Redis`](crate::Error::Redis) if
    /// Redis did not answer, [`Error::Closed`](crate::Error::Closed) once the client is closed. Both holds are released
    /// then.
    pub fn downgrade(self) -> Result<Guard<Read, S>> {
        match self.held.below()? {
            Some(read) => {
                self.held.hand_on_keeping(&read);
                self.held.unlock()?;
                Ok(Guard::new(read))
            }
            None => Err(self.held.lost_error()),
        }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
