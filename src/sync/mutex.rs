//! The non-reentrant lock.

use crate::sync::macros::exclusive_lock;

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
    Mutex,
    /// The hold of a [`Mutex`], released when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    MutexGuard,
    made by "client.mutex(\"a\")"
}
