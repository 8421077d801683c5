//! The fair, non-reentrant lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{FairNonReentrant, Owned};

/// A lock granted first come, first served, across all processes, not reentrant.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.fair_mutex("counter:3");
/// let _guard = lock.lock()?;
/// assert!(matches!(lock.try_lock(), Err(redlatch::Error::WouldDeadlock { .. })));
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A thread that locks again what it holds gets [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
/// [`Handle`] lists all methods.
///
/// The queue, the leases and what happens to waiters that die are those of the [`FairLock`](crate::FairLock), the
/// reentrant kind. Both kinds are one lock if the name is the same: a thread that holds the mutex gets the `FairLock` too.
pub type FairMutex = Handle<FairNonReentrant>;

/// The [`Guard`] of a [`FairMutex`]: holds the lock until it is dropped, and stays on its thread.
pub type FairMutexGuard = Guard<FairNonReentrant>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`FairMutex`]: holds the lock until it is dropped, and may move to other
/// threads.
pub type OwnedFairMutexGuard = Guard<FairNonReentrant, Owned>;
