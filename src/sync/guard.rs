//! The guard of a lock, the same for all kinds.

use std::fmt;
use std::time::Instant;

use crate::acquire::target::{HeldTarget, Target};
use crate::error::{Error, Result};
use crate::hold::Bound;
use crate::hold::loss::LossReceiver;
use crate::sync::kind::{AnyKind, Owned, Scope};
use crate::sync::traits::{Hold, sealed};

/// A held lock. Dropping the guard releases it.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.mutex("report").lock()?;
/// // no other thread holds the lock, in any process
/// guard.unlock()?; // reports a lost lock; dropping does not
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// **Releasing.** Dropping the guard sends as much of the release as the socket takes, without waiting; the client sends the
/// rest. [`unlock`](Self::unlock) waits for the reply. A drop blocks only if it also [closes the client](crate::Client). A guard
/// that is leaked (`std::mem::forget`) is renewed until the handle's [`max_hold`](crate::Handle::max_hold), or until its
/// client is closed or its process ends.
///
/// **Threads.** A guard stays on its thread, which owns the hold: other threads may use a reference (`Sync`), but the
/// guard cannot move to them (it is not `Send`). An [`OwnedGuard`], returned by
/// [`lock_owned`](crate::Handle::lock_owned), may move. A guard keeps its client alive and borrows nothing, so it can
/// outlive its handle and live in a struct.
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// send(client.mutex("report").lock()?);
/// # Ok::<(), redlatch::Error>(())
/// ```
#[must_use = "if unused the lock is released immediately; bind it, `let _guard = …`, since `let _ = …` releases it at once"]
pub struct Guard<K: AnyKind, S: Scope = Bound> {
    pub(crate) held: <K::Target as Target>::Held,
    _scope: S,
}

/// A held lock whose guard may move to other threads. Dropping the guard, on any thread, releases it.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.fenced_lock("ledger").lock_owned()?;
/// std::thread::spawn(move || println!("our token is {}", guard.token()));
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Use owned guards in thread pools, actors and async programs. [`lock_owned`](crate::Handle::lock_owned),
/// [`read_owned`](crate::RwLock::read_owned) and [`write_owned`](crate::RwLock::write_owned) return them. They have the
/// methods of every guard.
///
/// The hold belongs to the guard and to no thread, so it is not reentrant, whatever the kind of lock. A thread that
/// has an owned guard and locks again waits like any other thread, and forever if no other thread can drop that
/// guard. A thread that reads while it has an owned write guard also waits for itself.
///
/// ```
/// fn may_move<T: Send + Sync + 'static>() {}
///
/// fn of_any_kind<K: redlatch::kinds::AnyKind>() {
///     may_move::<redlatch::OwnedGuard<K>>();
/// }
/// ```
pub type OwnedGuard<K> = Guard<K, Owned>;

impl<K: AnyKind, S: Scope> Guard<K, S> {
    pub(crate) fn new(held: <K::Target as Target>::Held) -> Self {
        Self {
            held,
            _scope: S::enter(),
        }
    }

    /// Releases the hold and waits for Redis to confirm it.
    ///
    /// Blocks for one round trip, at most for the command timeout; not at all if the thread has further holds of the
    /// lock, or another thread of this process takes the hold over. Dropping the guard releases too, without waiting or an
    /// error.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// if let Err(redlatch::Error::Lost { reason, .. }) = guard.unlock() {
    ///     println!("the work was not protected until its end: {reason}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold ended earlier. Without a round trip (see above), the call reports only a loss that was
    /// noticed before. [`Error::Redis`] if Redis did not confirm. Then it is unknown whether the hold was lost, and the
    /// client resends the release until Redis confirms it or the lease ends. [`Error::Members`] if several members of a
    /// multi-lock failed, [`Error::NoQuorum`] if too few servers of a `RedLock` answered.
    pub fn unlock(self) -> Result<()> {
        self.held.unlock().map_err(Error::after_work)
    }

    /// Returns whether the lease is not over by the clock of this process, and no loss is known. No I/O.
    ///
    /// A deleted key, a failover or a release forced by another client is noticed at the next renewal.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// while guard.is_valid() {
    ///     // the next piece of the work
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The answer can be outdated as soon as it is returned. Where a late write does harm, let the resource check a
    /// [fencing token](crate::FencedLock) as well. On Linux the monotonic clock stops while the machine is suspended,
    /// so this method can return `true` after the lease has expired, until the first renewal afterwards.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Returns when the hold may end unless it is renewed. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());
    /// println!("certain for {left:?}");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The instant is one lease after the moment at which the last confirmed acquire or renewal was sent, less a
    /// hundredth of the lease and 2 ms, for clocks that drift apart. The clock is the monotonic one of this process.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.held.valid_until()
    }

    /// Returns the channel that reports the loss of this hold, at [`valid_until`](Self::valid_until) or earlier. No I/O.
    ///
    /// The channel receives at most one [`Loss`](crate::Loss), and nothing when the hold is released. [`LossReceiver`] says
    /// how to wait for it on another thread, or together with other messages.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// if let Ok(loss) = guard.lost().try_recv() {
    ///     println!("{loss}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &LossReceiver {
        self.held.lost()
    }

    /// Returns the name, as given to the client. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// println!("holding {}", guard.name());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.held.name()
    }

    /// Returns the owner of the hold as Redis stores it: `<client id>:<number>`, with the [id](crate::Client::id) of the
    /// client. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// println!("held as {}", guard.owner());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The guard of a multi-lock returns the owners of all members, separated by commas. Several guards of one process may
    /// have the same owner, for example if a thread locked again or passed the lock to another.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.held.owner()
    }

    /// Returns how many holds the thread has of the lock, including this one; zero once they are lost. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.reentrant_lock("stock:42");
    /// let (guard, _again) = (lock.lock()?, lock.lock()?);
    /// assert_eq!(guard.hold_count(), 2);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// An owned guard is not reentrant, so its count is one.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.held.hold_count()
    }
}

impl<K: AnyKind, S: Scope> fmt::Debug for Guard<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned = if S::IS_OWNED { "Owned" } else { "" };
        f.debug_struct(&format!("{owned}{}Guard", K::NAME))
            .field("name", &self.name())
            .field("owner", &self.owner())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl<K: AnyKind, S: Scope> sealed::SealedGuard for Guard<K, S> {
    fn unlock_boxed(self: Box<Self>) -> Result<()> {
        (*self).unlock()
    }
}

impl<K: AnyKind, S: Scope> Hold for Guard<K, S> {
    fn unlock(self) -> Result<()> {
        self.unlock()
    }

    fn is_valid(&self) -> bool {
        self.is_valid()
    }

    fn valid_until(&self) -> Instant {
        self.valid_until()
    }

    fn lost(&self) -> &LossReceiver {
        self.lost()
    }

    fn name(&self) -> &str {
        self.name()
    }
}
