//! Traits of all locks, the sides of read-write locks included, and of all guards of locks.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::hold::loss::LossReceiver;

/// A lock of any kind, for code that works with all of them: as `&dyn Lock`, or in a `Box` or an `Arc`.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Hold, Lock, Result};
///
/// /// Sells one piece, if the lock is free in time.
/// fn sell(lock: &dyn Lock, left: &mut u32) -> Result<bool> {
///     let Some(guard) = lock.try_lock_for(Duration::from_secs(1))? else {
///         return Ok(false);
///     };
///     *left -= 1;
///     guard.unlock()?;
///     Ok(true)
/// }
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// sell(&client.mutex("stock:42"), &mut 3)?;
/// sell(&client.fair_lock("counter:3"), &mut 3)?;
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// The methods are those of [`Handle`](crate::Handle), whose page says more, but their guards are boxed. With the feature
/// `testing` a unit test passes a lock that needs no Redis.
///
/// **Settings**, such as a lease, are made beforehand, on the handle. To change settings for every kind of lock, or to
/// return a guard that is not boxed, take a [`Handle<K>`](crate::Handle), which all kinds share:
///
/// ```no_run
/// use redlatch::kinds::AnyKind;
/// use redlatch::{CancelToken, Handle, Lock};
///
/// fn job_lock<K: AnyKind>(lock: Handle<K>, stop: &CancelToken) -> Box<dyn Lock> {
///     Box::new(lock.late_is_error().cancel_on(stop))
/// }
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = job_lock(client.fair_mutex("report"), &CancelToken::new());
/// let _guard = lock.lock()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A `Box<dyn Lock>` is also a member of a [`MultiLock`](crate::MultiLock), unless it is a `RedLock` or a lock for tests. An
/// [`RwLock`](crate::RwLock) is two locks and does not have the trait; its [`read_side`](crate::RwLock::read_side) and
/// [`write_side`](crate::RwLock::write_side) do. The trait is sealed: only the locks of this crate have it. So this does not
/// compile:
///
/// ```compile_fail,E0277
/// let client = redlatch::Client::open("redis://127.0.0.1/").unwrap();
/// redlatch::MultiLock::new(vec![Box::new(client.rw_lock("a"))]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock; of an `RwLock`, use `read_side` or `write_side`"
)]
pub trait Lock: sealed::Member + fmt::Debug + Send + Sync {
    /// Waits until the calling thread holds the lock: see [`Handle::lock`](crate::Handle::lock).
    ///
    /// # Errors
    ///
    /// As [`Handle::lock`](crate::Handle::lock).
    fn lock(&self) -> Result<Box<dyn Hold>> {
        let held = self.take_boxed(WaitMode::FOREVER)?;
        held.ok_or(Error::Closed)
    }

    /// Tries once; `Ok(None)` if somebody else has the lock, or goes first: see
    /// [`Handle::try_lock`](crate::Handle::try_lock).
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock`](crate::Handle::try_lock).
    fn try_lock(&self) -> Result<Option<Box<dyn Hold>>> {
        self.take_boxed(WaitMode::Once)
    }

    /// Waits up to `wait` for the lock; `Ok(None)` if that was not long enough: see
    /// [`Handle::try_lock_for`](crate::Handle::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock_for`](crate::Handle::try_lock_for).
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Box<dyn Hold>>> {
        self.take_boxed(WaitMode::span(wait))
    }

    /// Waits until `instant` for the lock; `Ok(None)` if that was not long enough: see
    /// [`Handle::try_lock_until`](crate::Handle::try_lock_until).
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock_until`](crate::Handle::try_lock_until).
    fn try_lock_until(&self, instant: Instant) -> Result<Option<Box<dyn Hold>>> {
        self.take_boxed(WaitMode::moment(instant))
    }

    /// Waits for the lock; the guard may move to other threads: see [`Handle::lock_owned`](crate::Handle::lock_owned).
    ///
    /// # Errors
    ///
    /// As [`Handle::lock_owned`](crate::Handle::lock_owned).
    fn lock_owned(&self) -> Result<Box<dyn Hold + Send>> {
        let held = self.take_owned_boxed(WaitMode::FOREVER)?;
        held.ok_or(Error::Closed)
    }

    /// Tries once; the guard may move to other threads: see [`Handle::try_lock_owned`](crate::Handle::try_lock_owned).
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock_owned`](crate::Handle::try_lock_owned).
    fn try_lock_owned(&self) -> Result<Option<Box<dyn Hold + Send>>> {
        self.take_owned_boxed(WaitMode::Once)
    }

    /// Waits up to `wait` for the lock; the guard may move to other threads: see
    /// [`Handle::try_lock_owned_for`](crate::Handle::try_lock_owned_for).
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock_owned_for`](crate::Handle::try_lock_owned_for).
    fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<Box<dyn Hold + Send>>> {
        self.take_owned_boxed(WaitMode::span(wait))
    }

    /// Waits until `instant` for the lock; the guard may move to other threads: see
    /// [`Handle::try_lock_owned_until`](crate::Handle::try_lock_owned_until).
    ///
    /// # Errors
    ///
    /// As [`Handle::try_lock_owned_until`](crate::Handle::try_lock_owned_until).
    fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<Box<dyn Hold + Send>>> {
        self.take_owned_boxed(WaitMode::moment(instant))
    }

    /// The name, as given to the client.
    fn name(&self) -> &str;
}

/// A guard of any kind of lock; a [`Lock`] returns it as a `Box<dyn Hold>`. Sealed, as [`Lock`].
///
/// ```no_run
/// use redlatch::{Hold, Lock, Result};
///
/// /// Works piece by piece for as long as the lock is certainly held.
/// fn work_off(guard: impl Hold, mut pieces: impl Iterator<Item = fn()>) -> Result<()> {
///     while guard.is_valid() {
///         let Some(piece) = pieces.next() else { break };
///         piece();
///     }
///     guard.unlock()
/// }
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// work_off(client.mutex("report").lock()?, std::iter::empty())?;
/// let any: Box<dyn Lock> = Box::new(client.fair_lock("report"));
/// work_off(any.lock()?, std::iter::empty())?;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[must_use = "if unused the lock is released immediately"]
pub trait Hold: sealed::SealedGuard + fmt::Debug + Sync {
    /// Releases the hold and waits for Redis to confirm it: see [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`](crate::Guard::unlock).
    fn unlock(self) -> Result<()>
    where
        Self: Sized;

    /// Returns whether the lease of the lock runs and no loss is known, by the clock of this process: see
    /// [`Guard::is_valid`](crate::Guard::is_valid).
    fn is_valid(&self) -> bool;

    /// Returns when the hold may end unless it is renewed: see [`Guard::valid_until`](crate::Guard::valid_until).
    fn valid_until(&self) -> Instant;

    /// Returns the channel that reports the loss of this hold: see [`Guard::lost`](crate::Guard::lost).
    fn lost(&self) -> &LossReceiver;

    /// Returns the name, as given to the client: see [`Guard::name`](crate::Guard::name).
    fn name(&self) -> &str;
}

/// Implements the traits for `Box<dyn Lock>` and `Arc<dyn Lock>`. Pointers to one kind, such as `Arc<Mutex>`, do not get them:
/// the trait's methods would hide those of the [`Handle`](crate::Handle), and the guards would lose their type.
macro_rules! pointers {
    ($($pointer:ident),+) => {$(
        impl sealed::Member for $pointer<dyn Lock> {
            fn parts(&self) -> Option<Vec<LockSpec>> {
                (**self).parts()
            }

            fn take_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold>>> {
                (**self).take_boxed(wait)
            }

            fn take_owned_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold + Send>>> {
                (**self).take_owned_boxed(wait)
            }
        }

        impl Lock for $pointer<dyn Lock> {
            fn name(&self) -> &str {
                (**self).name()
            }
        }
    )+};
}

pointers!(Box, Arc);

impl<H: Hold + ?Sized> sealed::SealedGuard for Box<H> {
    fn unlock_boxed(self: Box<Self>) -> Result<()> {
        H::unlock_boxed(*self)
    }
}

impl<H: Hold + ?Sized> Hold for Box<H> {
    fn unlock(self) -> Result<()> {
        H::unlock_boxed(self)
    }

    fn is_valid(&self) -> bool {
        (**self).is_valid()
    }

    fn valid_until(&self) -> Instant {
        (**self).valid_until()
    }

    fn lost(&self) -> &LossReceiver {
        (**self).lost()
    }

    fn name(&self) -> &str {
        (**self).name()
    }
}

pub(crate) mod sealed {
    use super::Hold;
    use crate::acquire::spec::LockSpec;
    use crate::acquire::wait_mode::WaitMode;
    use crate::error::Result;

    /// A lock of any kind, which can be a member of a multi-lock.
    pub trait Member {
        /// The locks of which it consists; `None` for the fake lock of the feature `testing`, which is not in Redis.
        fn parts(&self) -> Option<Vec<LockSpec>>;

        fn take_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold>>>;

        /// Takes the lock by a guard that may move to other threads.
        fn take_owned_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold + Send>>>;
    }

    pub trait SealedGuard {
        fn unlock_boxed(self: Box<Self>) -> Result<()>;
    }
}
