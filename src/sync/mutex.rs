//! The non-reentrant lock, whose guard may also be one that moves.

use std::time::{Duration, Instant};

use crate::acquire::guard::GuardInner;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::sync::guarded::guarded;
use crate::sync::macros::{exclusive_lock, guard};
use crate::time::Deadline;

exclusive_lock! {
    /// A lock that its holding thread cannot take again: a second attempt by it is
    /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
    ///
    /// Key, order, renewal and loss are those of the [`ReentrantLock`](crate::ReentrantLock) of the same name, and the
    /// two exclude each other.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report");
    /// let _guard = lock.lock()?;
    /// assert!(matches!(lock.try_lock(), Err(redlatch::Error::WouldDeadlock { .. })));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Its guard stays on its thread. For thread pools, actors and `spawn_blocking` there is [`lock_owned`](Self::lock_owned),
    /// whose guard may be dropped anywhere.
    Mutex,
    /// The hold of a [`Mutex`], released when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    MutexGuard,
    made by "client.mutex(\"a\")"
}

guarded!(MutexGuard, held, made by "client.mutex(\"a\").lock()");

guard! {
    /// The hold of a [`Mutex`] that may move to other threads, released when dropped, wherever that is.
    ///
    /// Taken by [`Mutex::lock_owned`]. It belongs to whoever has it and to no thread, so a thread that has one and waits for
    /// the mutex waits like any other, for ever if nobody else can drop it. Everything else is as with the [`MutexGuard`],
    /// and both exclude each other.
    ///
    /// ```
    /// fn may_move<T: Send + Sync + 'static>() {}
    /// may_move::<redlatch::OwnedMutexGuard>();
    /// ```
    OwnedMutexGuard,
    made by "client.mutex(\"a\").lock_owned()",
    holding GuardInner, ()
}

guarded!(OwnedMutexGuard, held, made by "client.mutex(\"a\").lock_owned()");

impl Mutex {
    fn acquire_owned(&self, wait: WaitMode) -> Result<Option<OwnedMutexGuard>> {
        let held = self.inner.moving().take(wait)?;
        Ok(held.map(OwnedMutexGuard::new))
    }

    /// Waits until the mutex is held, by a guard that may move to other threads: as [`lock`](Self::lock), but a thread that
    /// has such a guard already waits too.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock_owned()?;
    /// std::thread::spawn(move || {
    ///     // the report is written here
    ///     drop(guard);
    /// });
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). [`Error::WouldDeadlock`] if the thread holds the name by a guard that stays on it.
    pub fn lock_owned(&self) -> Result<OwnedMutexGuard> {
        let forever = WaitMode::Until(Deadline::NEVER);
        self.acquire_owned(forever)?.ok_or(Error::Closed)
    }

    /// Tries once: as [`try_lock`](Self::try_lock), for a guard that may move to other threads. `Ok(None)` also if the calling
    /// thread has it.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let mutex = client.mutex("report");
    /// let _guard = mutex.lock_owned()?;
    /// assert!(mutex.try_lock_owned()?.is_none());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), except `WouldDeadlock`.
    pub fn try_lock_owned(&self) -> Result<Option<OwnedMutexGuard>> {
        self.acquire_owned(WaitMode::Once)
    }

    /// Waits up to `wait`: as [`try_lock_for`](Self::try_lock_for), for a guard that may move to other threads.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(guard) = client.mutex("report").try_lock_owned_for(wait)? {
    ///     std::thread::spawn(move || println!("{} is held here", guard.name()));
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for) and [`lock_owned`](Self::lock_owned).
    pub fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedMutexGuard>> {
        self.acquire_owned(WaitMode::span(wait))
    }

    /// Waits until `instant`; otherwise as [`try_lock_owned_for`](Self::try_lock_owned_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let guard = client.mutex("report").try_lock_owned_until(deadline)?;
    /// println!("in time: {}", guard.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock_owned_for`](Self::try_lock_owned_for).
    pub fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<OwnedMutexGuard>> {
        self.acquire_owned(WaitMode::moment(instant))
    }
}
