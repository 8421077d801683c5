//! The non-reentrant lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{NonReentrant, Owned};

/// A lock that its holding thread cannot take again: a second attempt by it is
/// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.mutex("report");
/// let _guard = lock.lock()?;
/// assert!(matches!(lock.try_lock(), Err(redlatch::Error::WouldDeadlock { .. })));
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Key, order, renewal and loss are those of the [`ReentrantLock`](crate::ReentrantLock) of the same name, and the
/// two exclude each other.
///
/// The guard stays on its thread. For thread pools, actors and `spawn_blocking` there is [`lock_owned`](Mutex::lock_owned),
/// whose guard may be dropped anywhere.
pub type Mutex = Handle<NonReentrant>;

/// The [`Guard`] of a [`Mutex`]: a hold, released when dropped, that stays on its thread.
pub type MutexGuard = Guard<NonReentrant>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`Mutex`]: a hold, released when dropped, that may move to other threads.
pub type OwnedMutexGuard = Guard<NonReentrant, Owned>;
