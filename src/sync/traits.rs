//! What all exclusive locks, and all guards of locks, have in common.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::error::{Loss, Result};

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
/// redlatch::MultiLock::new(vec![Box::new(client.rwlock("a"))]);
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` is not an exclusive lock")]
pub trait Lock: sealed::Member + Send + Sync {
    /// What it returns once it is held.
    type Guard: Hold
    where
        Self: Sized;

    /// See [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    ///
    /// Those of the type's own method, as for the others.
    fn lock(&self) -> Result<Self::Guard>
    where
        Self: Sized;

    /// See [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    ///
    /// As there.
    fn try_lock(&self) -> Result<Option<Self::Guard>>
    where
        Self: Sized;

    /// See [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    ///
    /// As there.
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>>
    where
        Self: Sized;

    /// See [`Mutex::try_lock_until`](crate::Mutex::try_lock_until).
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
    /// See [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    ///
    /// # Errors
    ///
    /// As there.
    fn unlock(self) -> Result<()>
    where
        Self: Sized;

    /// See [`MutexGuard::is_valid`](crate::MutexGuard::is_valid).
    fn is_valid(&self) -> bool;

    /// See [`MutexGuard::valid_until`](crate::MutexGuard::valid_until).
    fn valid_until(&self) -> Instant;

    /// See [`MutexGuard::lost`](crate::MutexGuard::lost).
    fn lost(&self) -> &Receiver<Loss>;
}

pub(crate) mod sealed {
    use std::fmt;

    use crate::acquire::spec::LockSpec;

    /// What a member of a multi-lock consists of.
    pub struct Parts(pub(crate) Vec<LockSpec>);

    impl fmt::Debug for Parts {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let names = self.0.iter().map(|part| &part.name);
            f.debug_list().entries(names).finish()
        }
    }

    pub trait Member {
        fn parts(&self) -> Parts;
    }

    pub trait Guard {}
}

/// Implements [`Hold`] for a guard.
macro_rules! hold {
    ($guard:ident) => {
        impl $crate::sync::traits::sealed::Guard for $guard {}

        impl $crate::sync::traits::Hold for $guard {
            fn unlock(self) -> $crate::error::Result<()> {
                self.unlock()
            }

            fn is_valid(&self) -> bool {
                self.is_valid()
            }

            fn valid_until(&self) -> std::time::Instant {
                self.valid_until()
            }

            fn lost(&self) -> &crossbeam_channel::Receiver<$crate::error::Loss> {
                self.lost()
            }
        }
    };
}

/// Implements [`Lock`] for a handle.
macro_rules! lock {
    ($lock:ident, $guard:ident) => {
        impl $crate::sync::traits::sealed::Member for $lock {
            fn parts(&self) -> $crate::sync::traits::sealed::Parts {
                $crate::sync::traits::sealed::Parts(self.inner.parts())
            }
        }

        impl $crate::sync::traits::Lock for $lock {
            type Guard = $guard;

            fn lock(&self) -> $crate::error::Result<$guard> {
                self.lock()
            }

            fn try_lock(&self) -> $crate::error::Result<Option<$guard>> {
                self.try_lock()
            }

            fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> $crate::error::Result<Option<$guard>> {
                self.try_lock_for(wait)
            }

            fn try_lock_until(
                &self,
                instant: std::time::Instant,
            ) -> $crate::error::Result<Option<$guard>> {
                self.try_lock_until(instant)
            }

            fn name(&self) -> &str {
                self.name()
            }
        }
    };
}

pub(crate) use {hold, lock};
