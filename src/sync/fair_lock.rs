//! The fair lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Fair, Owned};

/// A reentrant lock that is granted first come, first served, across all processes: Redisson's fair lock.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.fair_lock("counter:3");
/// {
///     let _guard = lock.lock()?; // everybody who asked before us has had it
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// **Order.** Redis keeps the queue, and a release notifies only its head, on a channel of its own. Every waiting
/// thread has its own place, also within one process, and every hand-over goes through Redis: a message and a round
/// trip. A thread that calls [`try_lock`](FairLock::try_lock) does not join the queue, and gets the lock only if the
/// queue is empty.
///
/// **Places.** A thread that stops waiting, by time limit, [`CancelToken`](crate::CancelToken), error or closed
/// client, leaves the queue at once. A waiter that shows no sign of life for
/// [`Config::waiter_lease`](crate::Config::waiter_lease) (3 s unless set) loses its place, wherever that is; if it
/// comes back, it joins at the end. Each client shows signs of life for all of its places every third of that, so
/// dead waiters delay those behind them by at most 4 s, however many have died; if all have died, by 3 s more. If Redis
/// itself was away or stopped for that long, nobody loses a place: all have another 3 s once it is back. Times are
/// those of the Redis server, and all clients of a name need the same `waiter_lease`.
///
/// **With Redisson.** Java clients wait in the same queue, by Redisson's rules: a place of theirs ends after 300 s for
/// each position, by the clocks of the clients. For them our places count as Redisson's own. So a process that dies
/// with only Java clients behind it delays those as long as a dead Java client would.
///
/// Reentrancy, leases, loss and panics are those of the [`ReentrantLock`](crate::ReentrantLock). Both use the same
/// key, so they exclude each other, but that one ignores the queue, and its releases do not notify it.
pub type FairLock = Handle<Fair>;

/// The [`Guard`] of a [`FairLock`]: a hold, released when dropped, that stays on its thread.
pub type FairLockGuard = Guard<Fair>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`FairLock`]: a hold, released when dropped, that may move to other threads.
pub type OwnedFairLockGuard = Guard<Fair, Owned>;
