//! The spin lock.

use crate::sync::guarded::guarded;
use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// A reentrant lock without messages: whoever waits for it polls.
    ///
    /// For names so many, or held so briefly, that a subscription for each would be waste. Releasing it publishes
    /// nothing, and the process needs no connection for messages.
    ///
    /// **Waiting.** One thread of a process asks, with pauses in between: 1 ms, then each twice as long as the one
    /// before plus up to as many milliseconds as there have been pauses, at most 128 ms (Redisson's exponential
    /// back-off), and from the beginning once another holder has taken it. Each pause is shortened by up to a quarter at
    /// random, and ends early at the end of the holder's lease and at the caller's deadline. The other threads of the
    /// process wait behind it, and the lock is handed over among them within the tenure, like a
    /// [`ReentrantLock`](crate::ReentrantLock).
    ///
    /// **Order.** None among processes: whoever asks at the right moment gets it. A process that has had its tenure (5
    /// ms unless set) leaves the lock alone for a millisecond, even if nobody else wants it. That gives others a chance
    /// but no certainty; under steady load on one name, use a [`ReentrantLock`](crate::ReentrantLock) or a
    /// [`FairLock`](crate::FairLock).
    ///
    /// It uses the key of the [`ReentrantLock`](crate::ReentrantLock) of the same name, and they exclude each other;
    /// but since this one publishes nothing, threads that wait for the other find out by asking.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// for user in 0..100_000 {
    ///     let _guard = client.spin_lock(format!("user:{user}")).lock()?;
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    SpinLock,
    /// The hold of a [`SpinLock`], released when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    SpinLockGuard,
    made by "client.spin_lock(\"a\")"
}

guarded!(SpinLockGuard, held, made by "client.spin_lock(\"a\").lock()");
