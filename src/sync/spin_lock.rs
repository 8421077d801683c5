//! The spin lock.

use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// A reentrant lock without messages: whoever waits for it asks again and again.
    ///
    /// For names so many, or held so shortly, that a subscription for each would be waste. Nothing is published when it
    /// is released, and the process needs no connection for messages.
    ///
    /// **Waiting.** One thread of a process asks, with pauses in between: 1 ms, then each twice as long as the one
    /// before and up to as many milliseconds more as there have been pauses, at most 128 ms (Redisson's exponential
    /// back-off), each shortened by up to a quarter at random, and cut short by the holder's lease and the caller's
    /// deadline. Its other threads stand in line behind it, and get the lock passed on within the tenure like a
    /// [`ReentrantLock`](crate::ReentrantLock).
    ///
    /// **Order.** None among processes: who asks at the right moment gets it. A process that has had its tenure (5 ms
    /// unless set) leaves the lock alone for a millisecond, also if nobody else wants it, which gives others a chance but
    /// no certainty; under steady load on one name, take a [`ReentrantLock`](crate::ReentrantLock) or a
    /// [`FairLock`](crate::FairLock).
    ///
    /// It has the key of the [`ReentrantLock`](crate::ReentrantLock) of the same name, and they exclude each other; but
    /// since nothing is told here, those that wait there find out by asking.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// for user in 0..100_000 {
    ///     let _guard = client.spin_lock(format!("user:{user}")).lock()?;
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    SpinLock,
    /// The hold of a [`SpinLock`], given back when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    SpinLockGuard,
    made by "client.spin_lock(\"a\")"
}
