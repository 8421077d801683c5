//! The fair, non-reentrant lock.

use crate::sync::guarded::guarded;
use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// A fair lock that its holding thread cannot take again: a second attempt by it is
    /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
    ///
    /// Everything else is as with the [`FairLock`](crate::FairLock) of the same name: they share keys and queue.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.fair_mutex("counter:3");
    /// let _guard = lock.lock()?;
    /// assert!(matches!(lock.try_lock(), Err(redlatch::Error::WouldDeadlock { .. })));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    FairMutex,
    /// The hold of a [`FairMutex`], released when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    FairMutexGuard,
    made by "client.fair_mutex(\"a\")"
}

guarded!(FairMutexGuard, held, made by "client.fair_mutex(\"a\").lock()");
