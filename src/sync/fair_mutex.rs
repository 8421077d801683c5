//! The fair, non-reentrant lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{FairNonReentrant, Owned};

/// A fair lock that its holding thread cannot take again: a second attempt by it is
/// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.fair_mutex("counter:3");
/// let _guard = lock.lock()?;
/// assert!(matches!(lock.try_lock(), Err(redlatch::Error::WouldDeadlock { .. })));
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Everything else is as with the [`FairLock`](crate::FairLock) of the same name: they share keys and queue.
pub type FairMutex = Handle<FairNonReentrant>;

/// The [`Guard`] of a [`FairMutex`]: a hold, released when dropped, that stays on its thread.
pub type FairMutexGuard = Guard<FairNonReentrant>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`FairMutex`]: a hold, released when dropped, that may move to other threads.
pub type OwnedFairMutexGuard = Guard<FairNonReentrant, Owned>;
