//! The guard of a lock, the same for all kinds.

use std::fmt;
use std::time::Instant;

use crossbeam_channel::Receiver;

use crate::acquire::target::{Held, Target};
use crate::error::{Loss, Result};
use crate::hold::Bound;
use crate::sync::kind::{AnyKind, Owned, Scope, sealed};
use crate::sync::traits::Hold;

/// A hold of a lock, released when dropped.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.mutex("report").lock()?;
/// // nobody else holds the lock, in any process
/// guard.unlock()?; // reports a lost lock; dropping does not
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A guard owns what it needs, so it can outlive its handle and be kept in a struct. Dropping it sends the release and
/// does not wait for the reply; [`unlock`](Self::unlock) does. A guard that is leaked (`std::mem::forget`) is renewed
/// until the handle's `max_hold`, or the end of its client or process.
///
/// The guard stays on its thread, to which the hold belongs. Other threads may look at it (`Sync`), but not have it
/// (`!Send`). An [`OwnedGuard`], taken by [`lock_owned`](crate::Handle::lock_owned), may move.
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

/// A hold of a lock that may move to other threads, released when dropped, wherever that is.
///
/// Taken by [`lock_owned`](crate::Handle::lock_owned), [`read_owned`](crate::RwLock::read_owned) and
/// [`write_owned`](crate::RwLock::write_owned), for thread pools, actors and async programs.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.fenced_lock("ledger").lock_owned()?;
/// std::thread::spawn(move || println!("we are number {}", guard.token()));
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// The hold belongs to the guard and to no thread. So it is not reentrant, whatever the kind of the lock: a thread that
/// has an owned guard and waits for the lock waits like any other thread, and forever if nobody else can drop that
/// guard. A thread that wants to read below its own owned write guard waits in the same way. Everything else is as with
/// a [`Guard`] that stays on its thread, and both exclude each other.
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
    /// Dropping the guard releases it too, but does not wait. Blocks for one round trip, at most for the response
    /// timeout; not at all if the thread has further holds, or another thread of this process takes over.
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
    /// [`Error::Lost`](crate::Error::Lost) if the lock was no longer ours. [`Error::Redis`](crate::Error::Redis) if
    /// Redis did not confirm: the release is sent again until it does, and the lease limits the hold in any case.
    pub fn unlock(self) -> Result<()> {
        self.held.unlock()
    }

    /// Returns whether the lock is certainly still ours by the clock of this process. No I/O.
    ///
    /// On Linux the monotonic clock stops while the machine is suspended, and so does the aging of this answer; the first
    /// renewal afterwards finds out. Nothing keeps the answer true for longer than this call: where a late write would do
    /// harm, let the resource check a fencing token as well.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// while guard.is_valid() {
    ///     // the next piece of the work
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Returns until when the hold is certainly ours unless it is renewed. No I/O.
    ///
    /// On the monotonic clock: from before the last confirmed acquire or renewal was sent, for the lease less a hundredth
    /// of it and 2 ms, for clocks that drift apart.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// let left = guard.valid_until().saturating_duration_since(std::time::Instant::now());
    /// println!("certain for {left:?}");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.held.valid_until()
    }

    /// Returns the channel that reports the loss of this hold, no later than at [`valid_until`](Self::valid_until). No
    /// I/O.
    ///
    /// The channel receives at most one [`Loss`], and nothing when the hold is released. `crossbeam_channel::select!` takes
    /// it.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// if let Ok(loss) = guard.lost().try_recv() {
    ///     println!("{} is lost: {}", loss.name, loss.reason);
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<Loss> {
        self.held.lost()
    }

    /// Returns the name, as given to the client.
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

    /// Returns the owner in Redis, `<client uuid>:<number>`; of several locks all of them, separated by commas. Holds
    /// handed over inside a process share it, and so do threads of a process that share a read hold.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// println!("held as {}", guard.owner());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn owner(&self) -> &str {
        self.held.owner()
    }

    /// Returns how many holds the thread has, including this one; zero once they are lost. An owned guard is alone: one.
    /// No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.reentrant_lock("stock:42");
    /// let (guard, _again) = (lock.lock()?, lock.lock()?);
    /// assert_eq!(guard.hold_count(), 2);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
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

impl<K: AnyKind, S: Scope> sealed::Guard for Guard<K, S> {}

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

    fn lost(&self) -> &Receiver<Loss> {
        self.lost()
    }
}
