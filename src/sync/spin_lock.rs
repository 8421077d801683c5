//! The spin lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Spin};

/// A reentrant lock whose waiting threads poll instead of subscribing to messages.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// for user in 0..100_000 {
///     let _guard = client.spin_lock(format!("user:{user}")).lock()?;
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Use it for names that are so many, or held so briefly, that a subscription for each would cost more than polling.
/// A release publishes nothing, and the process needs no connection for messages. [`Handle`] lists all methods.
///
/// **Waiting.** One thread of each process polls, with random pauses: 1 to 2 ms at first, then doubling up to 64 to
/// 128 ms (Redisson's exponential back-off). Pauses are short again once the holder has changed. A pause ends early
/// when the holder's lease ends, and at the caller's deadline. Other threads of the process wait behind that thread,
/// and pass the lock among themselves for up to the tenure (5 ms, [`Config::tenure`](crate::Config::tenure)).
///
/// **Order.** There is none among processes: the one that polls at the right moment gets the lock. After its tenure a
/// process leaves the lock alone for a millisecond, even if no other process wants it. That gives others a chance,
/// not a guarantee. Under steady load on one name, use a [`ReentrantLock`](crate::ReentrantLock) or a
/// [`FairLock`](crate::FairLock).
///
/// **With a `ReentrantLock`.** The [`ReentrantLock`](crate::ReentrantLock) of the same name uses the same key, so the
/// two exclude each other. Since a spin lock publishes nothing, threads that wait for the other kind notice its
/// release only when they ask again, after 1 to 5 s.
pub type SpinLock = Handle<Spin>;

/// The [`Guard`] of a [`SpinLock`]: one hold, released when it is dropped, that stays on its thread.
pub type SpinLockGuard = Guard<Spin>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`SpinLock`]: one hold, released when it is dropped, that may move to
/// other threads.
pub type OwnedSpinLockGuard = Guard<Spin, Owned>;
