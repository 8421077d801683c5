//! The spin lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Spin};

/// A reentrant lock without messages: waiting threads poll.
///
/// For names so many, or held so briefly, that a subscription for each would be waste. Releasing it publishes
/// nothing, and the process needs no connection for messages.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// for user in 0..100_000 {
///     let _guard = client.spin_lock(format!("user:{user}")).lock()?;
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// **Waiting.** One thread of a process asks, with random pauses in between: 1 to 2 ms at first, then doubled up to 64 to
/// 128 ms (Redisson's exponential back-off), and short again once another holder has taken it. A pause ends early at the end
/// of the holder's lease and at the caller's deadline. The other threads of the
/// process wait behind it, and the lock is handed over among them within the tenure, like a
/// [`ReentrantLock`](crate::ReentrantLock).
///
/// **Order.** None among processes: the one that asks at the right moment gets it. A process that has had its tenure (5
/// ms unless set) leaves the lock alone for a millisecond, even if nobody else wants it. That gives others a chance
/// but no certainty; under steady load on one name, use a [`ReentrantLock`](crate::ReentrantLock) or a
/// [`FairLock`](crate::FairLock).
///
/// The spin lock uses the key of the [`ReentrantLock`](crate::ReentrantLock) of the same name, and they exclude each other;
/// but since this one publishes nothing, threads that wait for the other find out by asking.
pub type SpinLock = Handle<Spin>;

/// The [`Guard`] of a [`SpinLock`]: a hold, released when dropped, that stays on its thread.
pub type SpinLockGuard = Guard<Spin>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`SpinLock`]: a hold, released when dropped, that may move to other threads.
pub type OwnedSpinLockGuard = Guard<Spin, Owned>;
