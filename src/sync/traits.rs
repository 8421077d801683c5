//! Traits of all exclusive locks, and of all guards of locks.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::error::{Loss, Result};
use crate::sync::kind::sealed;

/// An exclusive lock of any kind, so that a wrapper is written once for all of them.
///
/// Each method is that of the type itself, which says more. The trait is sealed: only the locks of this crate have it.
///
/// ```no_run
/// use std::time::{Duration, Instant};
///
/// use redlatch::{Hold, Lock, Result};
///
/// /// Takes a lock, and says how long that took.
/// fn timed<L: Lock>(lock: &L) -> Result<L::Guard> {
///     let began = Instant::now();
///     let guard = lock.lock()?;
///     println!("waited {:?} for {}", began.elapsed(), lock.name());
///     Ok(guard)
/// }
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// timed(&client.mutex("report"))?.unlock()?;
/// timed(&client.fair_lock("counter:3"))?.unlock()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// As `dyn Lock` it is a member of a [`MultiLock`](crate::MultiLock). The sides of an [`RwLock`](crate::RwLock) are none.
///
/// ```compile_fail,E0277
/// let client = redlatch::Client::open("redis://127.0.0.1/").unwrap();
/// redlatch::MultiLock::new(vec![Box::new(client.rw_lock("a"))]);
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` is not an exclusive lock")]
pub trait Lock: sealed::Member + Send + Sync {
    /// The guard that it returns once it is held.
    type Guard: Hold
    where
        Self: Sized;

    /// See [`Handle::lock`](crate::Handle::lock).
    ///
    /// # Errors
    ///
    /// As there, and so for the others.
    fn lock(&self) -> Result<Self::Guard>
    where
        Self: Sized;

    /// See [`Handle::try_lock`](crate::Handle::try_lock).
    ///
    /// # Errors
    ///
    /// As there.
    fn try_lock(&self) -> Result<Option<Self::Guard>>
    where
        Self: Sized;

    /// See [`Handle::try_lock_for`](crate::Handle::try_lock_for).
    ///
    /// # Errors
    ///
    /// As there.
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>>
    where
        Self: Sized;

    /// See [`Handle::try_lock_until`](crate::Handle::try_lock_until).
    ///
    /// # Errors
    ///
    /// As there.
    fn try_lock_until(&self, instant: Instant) -> Result<Option<Self::Guard>>
    where
        Self: Sized;

    /// The name, as given to the client.
    fn name(&self) -> &str;
}

/// A guard of any kind of lock. Sealed, as [`Lock`].
///
/// ```no_run
/// use redlatch::{Hold, Result};
///
/// /// Works piece by piece for as long as the lock is certainly held.
/// fn work_off(guard: impl Hold, mut pieces: impl Iterator<Item = fn()>) -> Result<()> {
///     while guard.is_valid() {
///         let Some(piece) = pieces.next() else { break };
///         piece();
///     }
///     guard.unlock()
/// }
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// # work_off(client.mutex("report").lock()?, std::iter::empty())?;
/// # Ok::<(), redlatch::Error>(())
/// ```
pub trait Hold: sealed::Guard {
    /// See [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Errors
    ///
    /// As there.
    fn unlock(self) -> Result<()>
    where
        Self: Sized;

    /// See [`Guard::is_valid`](crate::Guard::is_valid).
    fn is_valid(&self) -> bool;

    /// See [`Guard::valid_until`](crate::Guard::valid_until).
    fn valid_until(&self) -> Instant;

    /// See [`Guard::lost`](crate::Guard::lost).
    fn lost(&self) -> &Receiver<Loss>;
}
