//! The reentrant lock: Redisson's `RLock`.

use crate::sync::guarded::guarded;
use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// A lock that its holding thread may take again, renewed for as long as its guard lives.
    ///
    /// The key is Redisson's: a hash with one field, the owner, and a time to live. Processes of Java and Rust exclude
    /// each other through it.
    ///
    /// **Reentrancy.** A thread that holds the lock gets further guards at once, without asking Redis; the lock is free
    /// when the last of them is gone, in whatever order they go. What counts is the thread, not the handle.
    ///
    /// **Order.** Threads of one process get the lock in the order in which they asked, and hand it over among
    /// themselves for up to the client's tenure (5 ms unless set) before other processes get their chance. Among
    /// processes the first to ask after a release gets it.
    ///
    /// **Panics.** A guard that is dropped by a panic releases the lock like any other; there is no poisoning.
    ///
    /// **What it does not promise.** A lease can expire while its holder works: the process was stopped, Redis was
    /// unreachable, a replica without the key was promoted. The guard reports it ([`ReentrantLockGuard::is_valid`],
    /// [`ReentrantLockGuard::lost`]), but nothing can stop a write that is already under way.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.reentrant_lock("stock:42");
    /// if let Some(guard) = lock.try_lock_for(Duration::from_millis(200))? {
    ///     let _again = lock.lock()?; // the same thread: no round trip
    ///     assert_eq!(guard.hold_count(), 2);
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ReentrantLock,
    /// One hold of a [`ReentrantLock`], released when dropped.
    ///
    /// It owns what it needs, so it can outlive its handle and be kept in a struct, but it stays on its thread.
    /// Dropping it sends the release and does not wait for the reply; [`unlock`](Self::unlock) does. A guard that is
    /// leaked (`std::mem::forget`) is renewed until the handle's `max_hold`, or the end of its client or process.
    ReentrantLockGuard,
    made by "client.reentrant_lock(\"a\")"
}

guarded!(ReentrantLockGuard, held, made by "client.reentrant_lock(\"a\").lock()");
