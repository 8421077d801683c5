//! The handle of a lock, the same for all kinds.

use std::fmt;
use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::acquire::target::Target;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::local::waiter::CancelToken;
use crate::protocol::owner;
use crate::sync::guard::{Guard, OwnedGuard};
use crate::sync::kind::{AnyKind, Scope, sealed};
use crate::sync::traits;
use crate::time::{self, Deadline};

/// A lock of one kind, by its name: [`Mutex`](crate::Mutex), [`ReentrantLock`](crate::ReentrantLock),
/// [`FairLock`](crate::FairLock), [`FairMutex`](crate::FairMutex), [`FencedLock`](crate::FencedLock),
/// [`SpinLock`](crate::SpinLock), [`MultiLock`](crate::MultiLock) or [`RedLock`](crate::RedLock).
///
/// The page of each kind says what that kind promises. Handles have the methods below in common, whose examples use a
/// [`Mutex`](crate::Mutex).
///
/// A handle is cheap to make and to clone, and sends nothing by itself. Clones are the same lock.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.mutex("report");
/// let guard = lock.lock()?;
/// // nobody else holds the lock, in any process
/// drop(guard);
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct Handle<K: AnyKind> {
    pub(crate) target: K::Target,
}

impl<K: AnyKind> Handle<K> {
    pub(crate) fn of(target: K::Target) -> Self {
        Self { target }
    }

    /// Changes the settings of each part.
    pub(crate) fn each(mut self, change: impl Fn(&mut LockSpec)) -> Self {
        self.target.parts_mut().iter_mut().for_each(change);
        self
    }

    fn take<S: Scope>(&self, wait: WaitMode) -> Result<Option<Guard<K, S>>> {
        let held = match S::IS_OWNED {
            false => self.target.take(wait)?,
            true => {
                let of_no_thread = |part: &mut LockSpec| part.as_thread = Some(owner::no_thread());
                self.clone().each(of_no_thread).target.take(wait)?
            }
        };
        Ok(held.map(Guard::new))
    }

    /// Waits until the calling thread holds the lock.
    ///
    /// Blocks without limit while others hold it, and at most for the client's command timeout (3 s unless set) while
    /// Redis does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// // nobody else holds the lock, in any process
    /// drop(guard);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis did not answer within the command timeout, or rejected the command, or the grant arrived
    ///   when its lease was over. With several servers [`Error::NoQuorum`], with several members [`Error::Members`].
    /// - [`Error::WrongType`]: the key holds something else, such as a lock of another kind or of a program that locks
    ///   by `SET NX`.
    /// - [`Error::WouldDeadlock`]: the thread holds the lock already and it is not reentrant, or holds it as another
    ///   kind.
    /// - [`Error::Cancelled`] by the handle's token, [`Error::Closed`] once the client is closed.
    /// - [`Error::Spawn`]: the system did not start a thread of the client.
    /// - [`Error::InvalidName`] and [`Error::Config`], before anything is sent.
    pub fn lock(&self) -> Result<Guard<K>> {
        self.take(WaitMode::Until(Deadline::NEVER))?
            .ok_or(Error::Closed)
    }

    /// Tries once; `Ok(None)` if somebody has the lock, or a thread of this process is waiting for it.
    ///
    /// Blocks for one round trip, or none if this process has the lock; at most for the command timeout. If this
    /// process has just had the lock for a whole tenure ([`Config::tenure`](crate::Config::tenure)), the call first
    /// waits for the reply to the last release, which says whether other processes were notified. If so, the call lets
    /// them ask first, for 1 ms. A [`SpinLock`](crate::SpinLock), which
    /// notifies nobody, always does.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// match client.mutex("report").try_lock()? {
    ///     Some(_guard) => println!("we have it"),
    ///     None => println!("somebody else does"),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), except `Cancelled`.
    pub fn try_lock(&self) -> Result<Option<Guard<K>>> {
        self.take(WaitMode::Once)
    }

    /// Waits up to `wait` for the lock; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget, including connecting and round trips. Zero is one attempt; a span beyond what the
    /// clock can represent is no limit. `Ok(None)` means that somebody else had the lock, or that Redis was too slow: a
    /// later answer is not waited for, and what it may have granted is released.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(_guard) = client.mutex("report").try_lock_for(wait)? {
    ///     println!("we have it");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). [`Error::Redis`] also as soon as the time is over, if Redis is known to be unreachable
    /// then: there is no connection to it, or nothing has arrived for half the command timeout although an answer was
    /// due. Anything that the attempt may have acquired is released.
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard<K>>> {
        self.take(WaitMode::span(wait))
    }

    /// Waits until `instant` for the lock; otherwise as [`try_lock_for`](Self::try_lock_for).
    ///
    /// An instant in the past is one attempt.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let Some(_guard) = client.mutex("report").try_lock_until(deadline)? else {
    ///     return Ok(()); // no time left
    /// };
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, instant: Instant) -> Result<Option<Guard<K>>> {
        self.take(WaitMode::moment(instant))
    }

    /// Runs `work` while holding the lock, and returns its value.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let sum = client.mutex("report").with(|_guard| 20 + 22)?;
    /// assert_eq!(sum, 42);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Blocks until the lock is held. The guard is dropped after `work`, which does not wait for Redis.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). An error means that `work` did not run. If the lock was lost while `work` ran, its value is
    /// returned all the same: ask the guard ([`is_valid`](Guard::is_valid), [`lost`](Guard::lost)), or call
    /// [`lock`](Self::lock) and then [`unlock`](Guard::unlock). [`Config::on_lost`](crate::Config::on_lost) and the log
    /// report the loss too.
    pub fn with<T>(&self, work: impl FnOnce(&Guard<K>) -> T) -> Result<T> {
        let guard = self.lock()?;
        Ok(work(&guard))
    }

    /// Waits until the lock is held, by a guard that may move to other threads; otherwise as [`lock`](Self::lock).
    ///
    /// The hold belongs to no thread, so it is not reentrant: a thread that has such a guard waits for the lock like any
    /// other, whatever the kind. See [`OwnedGuard`](crate::OwnedGuard).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock_owned()?;
    /// std::thread::spawn(move || {
    ///     // the report is written here
    ///     drop(guard);
    /// });
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). [`Error::WouldDeadlock`] if the thread holds the name by a guard that stays on it, even
    /// if the lock is reentrant.
    pub fn lock_owned(&self) -> Result<OwnedGuard<K>> {
        self.take(WaitMode::Until(Deadline::NEVER))?
            .ok_or(Error::Closed)
    }

    /// Tries once, for a guard that may move to other threads; otherwise as [`try_lock`](Self::try_lock). `Ok(None)`
    /// also if the calling thread has the lock.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report");
    /// let _guard = lock.lock_owned()?;
    /// assert!(lock.try_lock_owned()?.is_none());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), except `WouldDeadlock`.
    pub fn try_lock_owned(&self) -> Result<Option<OwnedGuard<K>>> {
        self.take(WaitMode::Once)
    }

    /// Waits up to `wait`, for a guard that may move to other threads; otherwise as
    /// [`try_lock_for`](Self::try_lock_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(500);
    /// if let Some(guard) = client.mutex("report").try_lock_owned_for(wait)? {
    ///     std::thread::spawn(move || println!("{} is held here", guard.name()));
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for) and [`lock_owned`](Self::lock_owned).
    pub fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard<K>>> {
        self.take(WaitMode::span(wait))
    }

    /// Waits until `instant`; otherwise as [`try_lock_owned_for`](Self::try_lock_owned_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let guard = client.mutex("report").try_lock_owned_until(deadline)?;
    /// println!("in time: {}", guard.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock_owned_for`](Self::try_lock_owned_for).
    pub fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<OwnedGuard<K>>> {
        self.take(WaitMode::moment(instant))
    }

    /// Returns a handle that takes the lock for a fixed time instead of renewing it: Redisson's `leaseTime`.
    ///
    /// A hold ends `lease` after it was granted, whether it was released or not, and its guard is notified. Locking
    /// again in the same thread renews the lease and costs a round trip. A hold handed over by another thread of this
    /// process may have less left: at most a tenth of the lease, and at most the client's tenure. From 10 ms
    /// ([`MIN_LEASE`](crate::MIN_LEASE)) to 100 years ([`MAX_LEASE`](crate::MAX_LEASE)); for anything else the methods
    /// that lock return [`Error::Config`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report").lease(std::time::Duration::from_secs(5));
    /// let _guard = lock.lock()?; // for five seconds at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.each(|part| part.lease = Some(lease))
    }

    /// Returns a handle whose holds are renewed for at most `max_hold` after they were granted.
    ///
    /// Against a job that hangs and a guard that is leaked: renewal stops, the guard is notified with
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold), and the lock becomes free within one lease of the client.
    /// `Duration::MAX` means no limit. For zero, and together with a fixed lease, the methods that lock return
    /// [`Error::Config`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report").max_hold(std::time::Duration::from_secs(3600));
    /// let _guard = lock.lock()?; // renewed for an hour at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.each(|part| part.max_hold = time::finite(max_hold))
    }

    /// Returns a handle whose holds keep the name for at least `span` after they were granted, even if they are released
    /// before.
    ///
    /// So "once per minute, on whichever host" is `try_lock` with 55 s and a job that ends sooner: hosts whose clocks
    /// differ by less than what is left of the minute find it taken. Releasing sets what is left as the key's time to
    /// live and notifies nobody: a waiting thread looks after at most 5 s. A kept hold is not handed over to threads of
    /// this process. If the process dies, its lease ends the hold as usual.
    ///
    /// From 10 ms to 100 years; for anything else, and for more than a fixed lease or `max_hold`, the methods that lock
    /// return [`Error::Config`]. `ShedLock` calls this `lockAtLeastFor`.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report").at_least(std::time::Duration::from_secs(55));
    /// if let Some(_guard) = lock.try_lock()? {
    ///     println!("this host writes the report");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn at_least(self, span: Duration) -> Self {
        self.each(|part| part.at_least = Some(span))
    }

    /// Returns a handle whose waits end with [`Error::Cancelled`] when `token` is cancelled.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let lock = client.mutex("report").cancel_on(&token);
    /// token.cancel(); // normally by another thread, while this one waits
    /// assert!(matches!(lock.lock(), Err(redlatch::Error::Cancelled)));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_on(self, token: &CancelToken) -> Self {
        self.each(|part| part.cancel = Some(token.clone()))
    }

    /// Returns a handle whose waits with a limit tell *late* from *busy*: [`Error::Late`] if Redis was too slow to say
    /// whether anybody has the lock, `Ok(None)` only if somebody had it.
    ///
    /// By default both are `Ok(None)`, since most callers do the same in both cases.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_millis(50);
    /// match client.mutex("report").late_is_error().try_lock_for(wait) {
    ///     Ok(Some(_guard)) => println!("we have it"),
    ///     Ok(None) => println!("somebody else has it"),
    ///     Err(redlatch::Error::Late { .. }) => println!("redis is slow"),
    ///     Err(err) => return Err(err),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn late_is_error(self) -> Self {
        self.each(|part| part.late_is_error = true)
    }

    /// Returns whether anybody holds the lock, in any process. Blocks for one round trip, at most the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("locked: {}", client.mutex("report").is_locked()?); // a moment ago
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn is_locked(&self) -> Result<bool> {
        for part in self.target.checked()? {
            if part.is_locked()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether the calling thread holds the lock and its hold is valid. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report");
    /// let _guard = lock.lock()?;
    /// assert!(lock.is_owned_by_current_thread());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_owned_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many holds the calling thread has; zero if they are no longer valid. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report");
    /// assert_eq!(lock.hold_count(), 0);
    /// let _guard = lock.lock()?;
    /// assert_eq!(lock.hold_count(), 1);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let counts = self.target.parts().iter().map(LockSpec::hold_count);
        counts.min().unwrap_or(0)
    }

    /// Returns how long Redis keeps the lock if nobody renews it; `None` if nobody holds it. Blocks for one round trip, at
    /// most the command timeout.
    ///
    /// `Duration::MAX` for a key without a time to live, which this crate never leaves behind.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if let Some(left) = client.mutex("report").remaining_lease()? {
    ///     println!("free in {left:?}, unless it is renewed");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        let mut longest = None;
        for part in self.target.checked()? {
            longest = longest.max(part.remaining()?);
        }
        Ok(longest)
    }

    /// Takes the lock away from its holder; `false` if there was none. Blocks for one round trip, at most the response
    /// timeout.
    ///
    /// Waiting threads are notified as by a release: everywhere for most locks, only the first in the queue of a fair
    /// lock, nobody for a spin lock. A holder in this process is notified of its loss at once
    /// ([`LossReason::Forced`](crate::LossReason::Forced)), a holder in another process at its next renewal. A request
    /// that is sent again after a lost reply counts once, and takes nothing from the next holder.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.mutex("report").force_unlock()? {
    ///     println!("somebody held it, and no longer does");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::Closed`], [`Error::InvalidName`], and [`Error::WrongType`] for a key that holds
    /// something else, which is left as it is.
    pub fn force_unlock(&self) -> Result<bool> {
        let mut forced = false;
        for part in self.target.checked()? {
            forced |= part.force_unlock()?;
        }
        Ok(forced)
    }

    /// Returns the name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.mutex("report").name(), "report");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.target.name()
    }
}

impl<K: AnyKind> fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::NAME)
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl<K: AnyKind> sealed::Member for Handle<K> {
    fn parts(&self) -> Vec<LockSpec> {
        self.target.parts().to_vec()
    }
}

impl<K: AnyKind> traits::Lock for Handle<K> {
    type Guard = Guard<K>;

    fn lock(&self) -> Result<Guard<K>> {
        self.lock()
    }

    fn try_lock(&self) -> Result<Option<Guard<K>>> {
        self.try_lock()
    }

    fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard<K>>> {
        self.try_lock_for(wait)
    }

    fn try_lock_until(&self, instant: Instant) -> Result<Option<Guard<K>>> {
        self.try_lock_until(instant)
    }

    fn name(&self) -> &str {
        self.name()
    }
}
