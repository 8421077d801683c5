//! The fair lock.

use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// A reentrant lock that is granted first come, first served, across all processes: Redisson's fair lock.
    ///
    /// **Order.** Redis keeps the queue, and a release notifies only its head, on a channel of its own. Every waiting
    /// thread has its own place, also within one process. To another process a hand-over costs a message and a round trip.
    /// If the next in the queue is a thread of the same process with the same lease, which is renewed without a `max_hold`,
    /// the lock is handed over in memory, for a [`Config::tenure`](crate::Config::tenure) at a time; such threads share an
    /// owner id. A thread that calls [`try_lock`](Self::try_lock) does not join the queue, and gets the lock only if the
    /// queue is empty.
    ///
    /// **Places.** A thread that stops waiting, by time limit, [`CancelToken`](crate::CancelToken), error or closed
    /// client, leaves the queue at once. One whose process dies keeps its place for at most
    /// [`Config::waiter_lease`](crate::Config::waiter_lease) (10 s unless set) after its last sign of life: that is how
    /// long those behind it may have to wait once it is its turn. One that was stopped for longer returns to the head
    /// of the queue, since it came first; a process that has the lock then may first hand it over for what is left of a
    /// tenure. Threads of one process return in the order in which they came; the order of
    /// several processes that were stopped while others went on is not promised. If no waiter showed a sign of life for
    /// that long, as when Redis itself was stopped, nobody is skipped for another third of it. If more than 500 died in
    /// front, those who wait ask several times before they are skipped; [`try_lock`](Self::try_lock) asks once. Times
    /// are those of the Redis server. Redisson's clients go by their own clocks, and one that is ahead of the server by
    /// more than two thirds of the waiter lease takes our waiters for dead.
    ///
    /// **With Redisson.** Java clients wait in the same queue. Each of them that gets the lock lowers the time of every
    /// waiter by 300 s (or its own wait), so behind one of them a place of ours is kept by Redisson's sum, and 300 s
    /// more for what the first of them has waited already. A process that dies there delays the queue for one waiter
    /// lease once it is its turn and one of ours waits behind it; for up to 300 s if only Java clients do. Our order is
    /// kept behind Java clients with waits of up to 300 s; behind longer ones, unless they had waited for minutes when
    /// we came.
    ///
    /// Reentrancy, leases, loss and panics are those of the [`ReentrantLock`](crate::ReentrantLock). Both use the same
    /// key, so they exclude each other, but that one ignores the queue, and its releases do not notify it.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.fair_lock("counter:3");
    /// {
    ///     let _guard = lock.lock()?; // everybody who asked before us has had it
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    FairLock,
    /// The hold of a [`FairLock`], released when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    FairLockGuard,
    made by "client.fair_lock(\"a\")"
}
