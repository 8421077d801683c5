//! The read-write lock.

use std::fmt;
use std::time::{Duration, Instant};

use crate::acquire::spec::{LockSpec, WaitMode};
use crate::error::{Error, Result};
use crate::local::waiter::CancelToken;
use crate::sync::macros::guard;
use crate::time::Deadline;

/// A lock that many may hold to read, or one to write: Redisson's `RReadWriteLock`.
///
/// **Reentrancy.** A thread that reads may read again, one that writes may write again and may read; its read holds
/// then outlive the write hold, and [`RwLockWriteGuard::downgrade`] turns one into the other. A thread that reads and
/// wants to write would wait for itself: that is [`Error::WouldDeadlock`] at once.
///
/// **Sharing.** Threads of one process share a read hold: while it is valid and no thread of the process waits to
/// write, further readers join it without asking Redis. When a writer leaves, all readers that wait in a process come
/// in with one round trip, those of other processes at the same time.
///
/// **Order.** Threads of one process get the lock in the order in which they came, so that neither readers nor writers
/// starve there. Among processes, a reader lets writers go first that wait already: it finds that any are subscribed to
/// `redisson_rwlock:{name}:writers:<database>`, a channel on which nobody ever speaks. A claim lasts for as long as its writer is
/// connected, and a reader respects it for at most [`Config::waiter_lease`](crate::Config::waiter_lease) (10 s unless
/// set), so a writer that died or was stopped keeps nobody out for long. The readers of a process that have waited that
/// long in vain pass over as many writers for six times as long; others that come are let go first. Readers of a
/// process that keep joining each other look for writers as well, without waiting for the answer, and then stop joining.
/// Wakeups that do not wait, such as [`try_read`](Self::try_read), follow the same rules; the time counts from the first
/// that was changed away. What all this does not cover: a writer that is a Redisson client makes no claim, and a reader
/// that is one respects none; there a writer waits for as long as readers overlap, and with it those who stand behind
/// it in its own process. [`readers_first`](Self::readers_first) is Redisson's rule.
///
/// **Loss.** A read hold is lost and told like any other. Each has a key of its own that lives as long as its lease,
/// so a reader that died frees a writer when its own lease is over, whatever other readers renew. If more than a
/// thousand died, a writer has to ask several times before it is in; [`try_write`](Self::try_write) asks once.
///
/// **Beside Redisson.** Redis keeps all read holds of a lock in one key, and a Redisson client sets the time that key has
/// to live to what it needs itself: its watchdog to `lockWatchdogTimeout`, a multi-lock with a lease to that lease. Read
/// holds here make it longer again at every renewal, at least every 10 s, and once they have found it shortened, after a
/// third of the time it had left. What that does not cover: a client that shortens it to less than the time until then
/// and dies. The lock is then over before this hold [`is_valid`](RwLockReadGuard::is_valid) says so, and a writer may
/// be in; the next renewal tells. It cannot happen if those times are well over 10 s in every Redisson client.
///
/// **Panics.** As with the [`ReentrantLock`](crate::ReentrantLock): dropping gives back, nothing is poisoned.
///
/// A lock of another kind under the same name is [`Error::WrongType`], since the two would not exclude each other.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let prices = client.rwlock("prices");
/// {
///     let _guard = prices.read()?; // together with other readers
/// }
/// let guard = prices.write()?; // alone
/// let _guard = guard.downgrade()?; // others may read again, nobody was in between
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct RwLock {
    reading: LockSpec,
    writing: LockSpec,
}

guard! {
    /// A read hold of an [`RwLock`], given back when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    ///
    /// Threads of a process that share a hold have the same [`owner`](Self::owner).
    RwLockReadGuard,
    made by "client.rwlock(\"a\").read()",
    checked by ReadNotSend,
    holding crate::acquire::guard::GuardInner
}

guard! {
    /// A write hold of an [`RwLock`], given back when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    RwLockWriteGuard,
    made by "client.rwlock(\"a\").write()",
    checked by WriteNotSend,
    holding crate::acquire::guard::GuardInner
}

impl RwLock {
    pub(crate) fn new(handle: LockSpec) -> Self {
        Self {
            reading: handle.clone().sharing(),
            writing: handle,
        }
    }

    fn both(self, change: impl Fn(LockSpec) -> LockSpec) -> Self {
        Self {
            reading: change(self.reading),
            writing: change(self.writing),
        }
    }

    /// A handle that takes the lock for a fixed time instead of renewing it: Redisson's `leaseTime`.
    ///
    /// Such read holds are not shared; otherwise as [`ReentrantLock::lease`](crate::ReentrantLock::lease).
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.both(|handle| handle.lease(lease))
    }

    /// A handle whose holds are renewed for at most `max_hold` after they were granted; see
    /// [`ReentrantLock::max_hold`](crate::ReentrantLock::max_hold). Such read holds are not shared.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.both(|handle| handle.max_hold(max_hold))
    }

    /// A handle whose waits end with [`Error::Cancelled`] when `token` is cancelled.
    #[must_use]
    pub fn cancel_on(self, token: &CancelToken) -> Self {
        self.both(|handle| handle.cancel_on(token))
    }

    /// A handle that reads whenever nobody writes, also if somebody in another process waits to: Redisson's rule, under
    /// which readers that overlap keep writers out for as long as they like.
    #[must_use]
    pub fn readers_first(mut self) -> Self {
        self.reading.yields = false;
        self
    }

    fn read_with(&self, patience: WaitMode) -> Result<Option<RwLockReadGuard>> {
        Ok(self.reading.acquire(patience)?.map(RwLockReadGuard::new))
    }

    fn write_with(&self, patience: WaitMode) -> Result<Option<RwLockWriteGuard>> {
        Ok(self.writing.acquire(patience)?.map(RwLockWriteGuard::new))
    }

    /// Waits until the lock is held for reading.
    ///
    /// Blocks without limit while somebody writes, or is let go first; at most for the client's response timeout (3 s
    /// unless set) while Redis does not answer; not at all if another thread of this process reads and none of it waits
    /// to write.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis could not be asked; [`Error::WrongType`] if the key is no read-write lock;
    /// [`Error::Cancelled`] by the handle's token; [`Error::Closed`] once the client is closed; [`Error::Lost`] if the
    /// lease was over before its grant arrived; [`Error::InvalidName`] and [`Error::Config`] before anything is sent.
    pub fn read(&self) -> Result<RwLockReadGuard> {
        self.read_with(WaitMode::Until(Deadline::NEVER))?
            .ok_or(Error::Closed)
    }

    /// Tries once to read; `Ok(None)` if somebody writes, or waits to write before us.
    ///
    /// Blocks for a round trip or none, at most for the response timeout.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), without `Cancelled`.
    pub fn try_read(&self) -> Result<Option<RwLockReadGuard>> {
        self.read_with(WaitMode::Once)
    }

    /// Waits up to `wait` to read; `Ok(None)` if that was not in time.
    ///
    /// `wait` is the whole budget; zero is one attempt.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and as
    /// [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for) if Redis is known to be away by then.
    pub fn try_read_for(&self, wait: Duration) -> Result<Option<RwLockReadGuard>> {
        self.read_with(WaitMode::span(wait))
    }

    /// Waits until `instant` to read; otherwise as [`try_read_for`](Self::try_read_for).
    ///
    /// # Errors
    ///
    /// As [`try_read_for`](Self::try_read_for).
    pub fn try_read_until(&self, instant: Instant) -> Result<Option<RwLockReadGuard>> {
        self.read_with(WaitMode::moment(instant))
    }

    /// Waits until the lock is held for writing.
    ///
    /// Blocks without limit while others read or write, and at most for the client's response timeout (3 s unless set)
    /// while Redis does not answer.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`Error::WouldDeadlock`] if the thread reads and does not write.
    pub fn write(&self) -> Result<RwLockWriteGuard> {
        self.write_with(WaitMode::Until(Deadline::NEVER))?
            .ok_or(Error::Closed)
    }

    /// Tries once to write; `Ok(None)` if somebody else reads or writes, or a thread of this process waits for either.
    ///
    /// Blocks for a round trip or none, at most for the response timeout; after a tenure others go first, as
    /// [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock) says.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), without `Cancelled`.
    pub fn try_write(&self) -> Result<Option<RwLockWriteGuard>> {
        self.write_with(WaitMode::Once)
    }

    /// Waits up to `wait` to write; `Ok(None)` if that was not in time.
    ///
    /// `wait` is the whole budget; zero is one attempt.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and as
    /// [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for) if Redis is known to be away by then.
    pub fn try_write_for(&self, wait: Duration) -> Result<Option<RwLockWriteGuard>> {
        self.write_with(WaitMode::span(wait))
    }

    /// Waits until `instant` to write; otherwise as [`try_write_for`](Self::try_write_for).
    ///
    /// # Errors
    ///
    /// As [`try_write_for`](Self::try_write_for).
    pub fn try_write_until(&self, instant: Instant) -> Result<Option<RwLockWriteGuard>> {
        self.write_with(WaitMode::moment(instant))
    }

    /// Whether anybody reads, here or elsewhere. Asks Redis: one round trip.
    ///
    /// A reader that died is counted until its lease is over and somebody has come by: another reader that leaves, or a
    /// writer.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn is_read_locked(&self) -> Result<bool> {
        self.reading.is_locked()
    }

    /// Whether anybody writes, here or elsewhere. Asks Redis: one round trip.
    ///
    /// # Errors
    ///
    /// As [`is_read_locked`](Self::is_read_locked).
    pub fn is_write_locked(&self) -> Result<bool> {
        self.writing.is_locked()
    }

    /// How many read holds the calling thread has, zero if they are not valid any more. Does not ask Redis.
    #[must_use]
    pub fn read_hold_count(&self) -> u32 {
        self.reading.hold_count()
    }

    /// How many write holds the calling thread has, zero if they are not valid any more. Does not ask Redis.
    #[must_use]
    pub fn write_hold_count(&self) -> u32 {
        self.writing.hold_count()
    }

    /// Whether the calling thread reads or writes, and its hold is valid. Does not ask Redis.
    #[must_use]
    pub fn is_owned_by_current_thread(&self) -> bool {
        self.read_hold_count() > 0 || self.write_hold_count() > 0
    }

    /// How long Redis keeps the lock if nobody renews it; `None` if nobody holds it. One round trip.
    ///
    /// With several readers it is the longest of their leases.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn remaining(&self) -> Result<Option<Duration>> {
        self.writing.remaining()
    }

    /// Takes the lock away from whoever reads or writes; `false` if nobody did. One round trip.
    ///
    /// Holders in this process hear at once that they lost it ([`LossReason::Forced`](crate::LossReason::Forced)), others at their next renewal.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::Closed`], [`Error::InvalidName`], and [`Error::WrongType`] for a key that is no
    /// read-write lock, which is left as it is.
    pub fn force_unlock(&self) -> Result<bool> {
        self.writing.force_unlock()
    }

    /// The name, as given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.writing.name
    }
}

impl RwLockWriteGuard {
    /// Turns the write hold into a read hold, with nobody writing in between: others may read from now on.
    ///
    /// The read hold has the lease settings of the write hold. If the thread has further write holds it goes on
    /// writing until they are gone. Blocks for two round trips, at most for twice the response timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was no longer ours, [`Error::Redis`] if Redis did not say, [`Error::Closed`] once the
    /// client is closed. Both holds are given back then.
    pub fn downgrade(self) -> Result<RwLockReadGuard> {
        match self.held.below()? {
            Some(read) => {
                self.held.unlock()?;
                Ok(RwLockReadGuard::new(read))
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
