//! The fair lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Fair, Owned};

/// A reentrant lock granted first come, first served, across all processes: Redisson's fair lock.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.fair_lock("counter:3");
/// {
///     let _guard = lock.lock()?; // nobody who asked earlier still waits
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// [`Handle`] lists all methods. Reentrancy, leases, loss and panics are as with the
/// [`ReentrantLock`](crate::ReentrantLock).
///
/// **Order.** Redis keeps the queue. Every waiting thread has its own place, also within one process. A release
/// notifies only the first place, on a channel of its own. Each hand-over costs a message and a round trip. A thread
/// that calls [`try_lock`](FairLock::try_lock) does not join the queue, and gets the lock only if the queue is empty.
///
/// **Leaving the queue.** A thread that stops waiting, because of a time limit, a
/// [`CancelToken`](crate::CancelToken), an error or a closed client, leaves the queue at once.
///
/// **Dead waiters.** While a thread waits, its client confirms the place in Redis. A place that was not confirmed for
/// [`Config::waiter_lease`](crate::Config::waiter_lease) has expired. With its default of 3 s, dead waiters delay living
/// ones by at most 4 s, however many died. A waiter that was only stopped, and whose place was removed, joins at the end.
///
/// **Outages.** If Redis itself was unreachable or stopped, no thread that still waits loses its place (calls whose time
/// is up have left the queue): each place lives for one more `waiter_lease` once Redis answers. These times are measured
/// by the clock of the Redis server. All clients of a name need the same `waiter_lease`.
///
/// **With Redisson.** Java clients wait in the same queue, by Redisson's rules: their places expire after 300 s times
/// the position, by the clocks of the clients. To Java clients, places of this crate look like Redisson's own. A Rust
/// process that dies with only Java clients behind it therefore delays them for as long as a dead Java client would.
///
/// **With a `ReentrantLock`.** Both kinds use the same key, so they exclude each other. A
/// [`ReentrantLock`](crate::ReentrantLock) ignores the queue, though, and neither kind's releases notify the waiters of the
/// other.
pub type FairLock = Handle<Fair>;

/// The [`Guard`] of a [`FairLock`]: one hold, released when it is dropped, that stays on its thread.
pub type FairLockGuard = Guard<Fair>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`FairLock`]: one hold, released when it is dropped, that may move to
/// other threads.
pub type OwnedFairLockGuard = Guard<Fair, Owned>;
