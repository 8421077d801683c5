//! The spin lock.

use std::sync::Arc;
use std::time::Duration;

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
/// **Waiting.** One thread of each process polls, with random pauses: 1 to 2 ms at first, then doubling up to 64 to 128
/// ms (Redisson's exponential back-off). Pauses are short again once the lock has changed hands or was renewed. A pause
/// ends early when the holder's lease ends, and at the caller's deadline. Other threads of the process wait behind that
/// thread, and pass the lock among themselves for up to the tenure (5 ms, [`Config::tenure`](crate::Config::tenure)).
///
/// **Order.** There is none among processes: the one that polls at the right moment gets the lock. After its tenure a
/// process leaves the lock alone for a millisecond, even if no other process wants it. That gives others a chance,
/// not a guarantee. Under steady load on one name, use a [`ReentrantLock`](crate::ReentrantLock) or a
/// [`FairLock`](crate::FairLock).
///
/// **With a `ReentrantLock`.** The [`ReentrantLock`](crate::ReentrantLock) of the same name uses the same key, so the
/// two exclude each other. A spin lock publishes nothing. So threads that wait for the `ReentrantLock` notice the release of
/// the spin lock only when they ask again, after 1 to 5 s.
pub type SpinLock = Handle<Spin>;

impl Handle<Spin> {
    /// Returns a handle that pauses for as long as `back_off` returns, instead of for the usual 1 to 128 ms.
    ///
    /// `back_off` receives the number of attempts that have failed since the lock changed hands or was renewed, counted
    /// from one. A pause counts as 1 ms at least and as an hour at most. A pause ends early when the holder's lease ends,
    /// and at the caller's deadline. A pause of half a second or more may also be shorter by up to an eighth.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// // Redisson's constant back-off
    /// let constant = client.spin_lock("user:7").back_off(|_| Duration::from_millis(64));
    /// let linear = client.spin_lock("user:7").back_off(|n| Duration::from_millis(5) * n.min(20));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn back_off(mut self, back_off: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.target.back_off = Some(Arc::new(back_off));
        self
    }
}

/// The [`Guard`] of a [`SpinLock`]: one hold, released when it is dropped, that stays on its thread.
pub type SpinLockGuard = Guard<Spin>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`SpinLock`]: one hold, released when it is dropped, that may move to
/// other threads.
pub type OwnedSpinLockGuard = Guard<Spin, Owned>;
