//! The fair lock.

use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// A reentrant lock that is granted in the order in which threads came, whatever their process: Redisson's fair
    /// lock.
    ///
    /// **Order.** Redis keeps the line, and only its head is told when the lock is free, on a channel of its own. Every
    /// waiting thread has its own place, also within one process, and nothing is passed on past the line; so a
    /// hand-over always costs a round trip and a message. A thread that calls [`try_lock`](Self::try_lock) does not
    /// join the line, and gets the lock only if nobody is in it.
    ///
    /// **Places.** A thread that stops waiting, by time, [`CancelToken`](crate::CancelToken), error or a closed client,
    /// leaves the line at once. One whose process dies keeps its place for at most
    /// [`Config::waiter_lease`](crate::Config::waiter_lease) (10 s unless set) after it was last heard of: so long those
    /// behind it may have to wait once it is their turn. One that was stopped for longer goes back to the head of the
    /// line, since it came first. Threads of one process come back in the order in which they came; that of several
    /// processes that were stopped while others went on is not promised. If nobody in the line was heard of for that
    /// long, as when Redis itself was stopped, nobody is skipped for another third of it. If more than 500 died in front,
    /// those who wait ask several times before they are skipped; [`try_lock`](Self::try_lock) asks once. Times are those of
    /// the Redis server; Redisson's clients go by their own clocks, and one that is ahead of the server by more than two
    /// thirds of the waiter lease takes our waiters for dead.
    ///
    /// **With Redisson.** Java clients stand in the same line. Each of them that gets the lock lowers the time of every
    /// waiter by 300 s (or its own wait), so behind one of them a place of ours is kept by Redisson's sum, and 300 s more
    /// for what the first of them has waited already. A process that dies there holds up the line for a waiter lease once it
    /// is its turn and one of ours waits behind it; for up to 300 s if only Java clients do. Our order is kept behind Java
    /// clients with waits of up to 300 s; behind longer ones, unless they had waited for minutes when we came.
    ///
    /// Reentrancy, leases, loss and panics are those of the [`ReentrantLock`](crate::ReentrantLock). Both have the same
    /// key, so they exclude each other, but that one does not respect the line, and its releases are not told to it.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.fair_lock("counter:3");
    /// {
    ///     let _guard = lock.lock()?; // everybody who came before us has had it
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    FairLock,
    /// The hold of a [`FairLock`], given back when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    FairLockGuard,
    made by "client.fair_lock(\"a\")"
}
