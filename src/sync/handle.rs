//! The handle of a lock, the same for all kinds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::spec::LockSpec;
use crate::acquire::target::Target;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::hold::Bound;
use crate::local::waiter::CancelToken;
use crate::protocol::owner;
use crate::session::shared::SharedSession;
use crate::sync::guard::{Guard, OwnedGuard};
use crate::sync::kind::{AnyKind, Detachable, Owned, Scope};
use crate::sync::traits::{Hold, Lock, sealed};
use crate::time;

/// A lock of one kind, by its name: [`Mutex`](crate::Mutex), [`ReentrantLock`](crate::ReentrantLock),
/// [`FairLock`](crate::FairLock), [`FairMutex`](crate::FairMutex), [`FencedLock`](crate::FencedLock),
/// [`SpinLock`](crate::SpinLock), [`MultiLock`](crate::MultiLock), [`RedLock`](crate::RedLock), or one side of an
/// [`RwLock`](crate::RwLock).
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.mutex("report");
/// let guard = lock.lock()?;
/// // no other thread holds the lock, in any process
/// drop(guard);
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Most methods below are the same for all kinds; their examples use a [`Mutex`](crate::Mutex). The page of each kind says
/// what that kind promises. A handle is cheap to make and to clone, `Send` and `Sync`, and sends nothing by itself. Clones
/// are the same lock.
pub struct Handle<K: AnyKind> {
    pub(crate) target: K::Target,
}

impl<K: AnyKind> Clone for Handle<K> {
    fn clone(&self) -> Self {
        Self::of(self.target.clone())
    }
}

// The parameter is `A` and not `K`, since rustdoc sorts the methods of an alias by the text of their `impl`: so `lock` precedes
// the methods of `Handle<Fenced>`.
impl<A: AnyKind> Handle<A> {
    pub(crate) fn of(target: A::Target) -> Self {
        Self { target }
    }

    /// The lock of this kind with this name.
    pub(crate) fn named(shared: &Arc<SharedSession>, name: &str) -> Self
    where
        A: Detachable,
    {
        let mut spec = LockSpec::new(shared, name.into(), A::PROTOCOL);
        (spec.is_reentrant, spec.reported_as) = (A::IS_REENTRANT, A::REPORTED_AS);
        Self::of(spec)
    }

    /// Changes the settings of each member, or of the one lock.
    pub(crate) fn each(mut self, change: impl Fn(&mut LockSpec)) -> Self {
        self.target.parts_mut().iter_mut().for_each(change);
        self
    }

    pub(super) fn take<S: Scope>(&self, wait: WaitMode) -> Result<Option<Guard<A, S>>> {
        let held = match S::IS_OWNED {
            false => self.target.take(wait)?,
            true => {
                let of_no_thread =
                    |part: &mut LockSpec| part.as_thread = Some(owner::draw_thread());
                self.clone().each(of_no_thread).target.take(wait)?
            }
        };
        Ok(held.map(Guard::new))
    }

    /// Returns the parts, and one deadline for asking all of them in turn: the latest of the parts' own deadlines.
    fn parts_to_ask(&self) -> Result<(&[LockSpec], Instant)> {
        let parts = self.target.checked()?;
        let last = parts.iter().map(LockSpec::until).max();
        Ok((parts, last.unwrap_or_else(Instant::now)))
    }

    /// Waits until the calling thread holds the lock.
    ///
    /// Blocks without limit while others hold it, and at most for the client's command timeout (3 s unless set) while
    /// Redis does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("report").lock()?;
    /// // no other thread holds the lock, in any process
    /// drop(guard);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis did not answer within the command timeout, or rejected the command, or the grant
    ///   arrived after its lease had expired. If too few masters of a [`RedLock`](crate::RedLock) answered,
    ///   [`Error::NoQuorum`]; if members of a [`MultiLock`](crate::MultiLock) failed, [`Error::Members`].
    /// - [`Error::WrongType`]: the key holds something else, such as a read-write lock, or a lock that another program
    ///   made with `SET NX`.
    /// - [`Error::WouldDeadlock`]: the thread would wait for itself. It holds the name already, and this handle is not
    ///   reentrant; or it holds the name as another kind of lock. A mutex and a reentrant lock count as one kind here, and
    ///   so do both fair locks. If exactly one of the two kinds is a read-write lock, the error is [`Error::WrongType`]
    ///   instead. Not detected if a thread holds a name by a `RedLock` and locks it by one of its clients, or the reverse.
    /// - [`Error::Cancelled`]: the handle's token was cancelled.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::Spawn`]: the operating system could not start a thread of the client.
    /// - [`Error::NotReplicated`]: too few replicas acknowledged in time, with
    ///   [`Config::replica_ack`](crate::Config::replica_ack).
    /// - [`Error::InvalidName`] and [`Error::InvalidSetting`], before anything is acquired.
    pub fn lock(&self) -> Result<Guard<A>> {
        self.take(WaitMode::FOREVER)?.ok_or(Error::Closed)
    }

    /// Tries once; `Ok(None)` if another thread or process has the lock, or a waiting thread goes first.
    ///
    /// Waiting threads of this process go first; with a fair lock, those of all processes; with a side of an
    /// [`RwLock`](crate::RwLock), perhaps a waiter of the other side. Usually blocks for one round trip, at most for the
    /// command timeout.
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
    /// If this process already knows the answer, no round trip is needed. If this process has just had the lock for its
    /// whole tenure ([`Config::tenure`](crate::Config::tenure)), the call lets other processes go first, which takes one
    /// more round trip, a pause of 1 ms, or both.
    ///
    /// If too few masters of a [`RedLock`](crate::RedLock) reply, its request is sent once more. If a member of a
    /// [`MultiLock`](crate::MultiLock) is taken, the request may be repeated for up to 250 ms, or longer if the servers
    /// are far away.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). Where `lock` returns `WouldDeadlock` because the thread holds the name as another kind of
    /// lock, the result is `Ok(None)`.
    pub fn try_lock(&self) -> Result<Option<Guard<A>>> {
        self.take(WaitMode::Once)
    }

    /// Waits up to `wait` for the lock; `Ok(None)` if that was not long enough.
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
    /// `wait` is the whole budget, including connecting and round trips. Zero is one attempt as by
    /// [`try_lock`](Self::try_lock), and a duration beyond what the clock can represent is no limit. `Ok(None)` means that
    /// the lock was taken, or that Redis was too slow; [`late_is_error`](Self::late_is_error) tells these apart. The call
    /// does not wait for a later reply; a hold that such a reply grants is released.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); with a `wait` of zero as [`try_lock`](Self::try_lock). [`Error::Redis`] also if Redis is known
    /// to be unreachable when the time is over:
    /// there is no connection, or nothing has arrived for half the command timeout although a reply was due. Anything
    /// that the attempt may have acquired is released. [`Error::Late`] with [`late_is_error`](Self::late_is_error).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard<A>>> {
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
    pub fn try_lock_until(&self, instant: Instant) -> Result<Option<Guard<A>>> {
        self.take(WaitMode::moment(instant))
    }

    /// Runs `work` while holding the lock, and returns its value.
    ///
    /// Blocks until the lock is held, like [`lock`](Self::lock). After `work` the guard is dropped, which does not
    /// wait for Redis.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let sum = client.mutex("report").with(|_guard| 20 + 22)?;
    /// assert_eq!(sum, 42);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// If the lock is lost while `work` runs, the value is still returned. The guard that `work` receives reports the loss
    /// as soon as it is noticed ([`is_valid`](Guard::is_valid), [`lost`](Guard::lost)), and so does
    /// [`Config::on_lost`](crate::Config::on_lost). To get the loss as an error, use [`lock`](Self::lock) and then
    /// [`unlock`](Guard::unlock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). An error means that `work` did not run.
    pub fn with<T>(&self, work: impl FnOnce(&Guard<A>) -> T) -> Result<T> {
        let guard = self.lock()?;
        Ok(work(&guard))
    }

    /// Waits until the lock is held, by a guard that may move to other threads; otherwise as [`lock`](Self::lock).
    ///
    /// The hold belongs to the guard and to no thread, so it is not reentrant, whatever the kind: a thread that has
    /// such a guard and locks again waits like any other. See [`OwnedGuard`].
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
    /// As [`lock`](Self::lock). [`Error::WouldDeadlock`] if the thread holds the name by a guard that is not owned, even if
    /// the lock is reentrant; for a side of an [`RwLock`](crate::RwLock), see [`read_owned`](crate::RwLock::read_owned) and
    /// [`write_owned`](crate::RwLock::write_owned).
    pub fn lock_owned(&self) -> Result<OwnedGuard<A>> {
        self.take(WaitMode::FOREVER)?.ok_or(Error::Closed)
    }

    /// Tries once, for a guard that may move to other threads; otherwise as [`try_lock`](Self::try_lock).
    ///
    /// `Ok(None)` also if the calling thread itself has the lock.
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
    pub fn try_lock_owned(&self) -> Result<Option<OwnedGuard<A>>> {
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
    /// As [`try_lock_for`](Self::try_lock_for) and [`lock_owned`](Self::lock_owned); with a `wait` of zero as
    /// [`try_lock_owned`](Self::try_lock_owned).
    pub fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard<A>>> {
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
    pub fn try_lock_owned_until(&self, instant: Instant) -> Result<Option<OwnedGuard<A>>> {
        self.take(WaitMode::moment(instant))
    }

    /// Returns a handle that acquires the lock for a fixed lease instead of renewing it: Redisson's `leaseTime`.
    ///
    /// A hold that is not released earlier ends `lease` after it was granted, and its guard reports that. From 10 ms
    /// ([`MIN_LEASE`](crate::MIN_LEASE)) to 100 years ([`MAX_LEASE`](crate::MAX_LEASE)); for any other value the
    /// methods that lock return [`Error::InvalidSetting`]. Default: the hold is renewed until the guard is dropped.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report").fixed_lease(std::time::Duration::from_secs(5));
    /// let _guard = lock.lock()?; // for five seconds at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// If a thread locks a reentrant lock again, all its holds share one lease. It ends with the last of the fixed leases;
    /// if any of the handles has no fixed lease, it is renewed until the last guard is dropped.
    ///
    /// If another thread of this process passes the lock on, the lease may be shorter by up to a tenth.
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.each(|part| part.lease = Some(lease))
    }

    /// Returns a handle whose holds are renewed for at most `max_hold` after they were granted.
    ///
    /// This limits jobs that hang and guards that are leaked. After `max_hold`, renewal stops, the guard reports
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold), and the lock becomes free once the guard is dropped, or within
    /// one lease of the client; a write hold of an [`RwLock`](crate::RwLock) is released at once. If a thread whose hold is
    /// renewed locks again, the limit stays as it is. `Duration::MAX` means no limit, which is the default. For zero, and
    /// together with a fixed lease, the methods that lock return [`Error::InvalidSetting`].
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

    /// Returns a handle whose holds keep the name for at least `min_hold` after they were granted, even if released
    /// earlier.
    ///
    /// For a job that runs once per minute on one of several hosts, set 55 s and call [`try_lock`](Self::try_lock). If the job
    /// ends sooner, the other hosts still find the lock taken, even if their clocks are late by up to 55 s.
    /// `ShedLock` calls this `lockAtLeastFor`.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.mutex("report").min_hold(std::time::Duration::from_secs(55));
    /// if let Some(_guard) = lock.try_lock()? {
    ///     println!("this host writes the report");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// An early release sets the rest of `min_hold` as the key's time to live. After a failed job,
    /// [`force_unlock`](Self::force_unlock) frees the name at once.
    /// Threads of this process do not pass such a hold on. Locking again starts `min_hold` again. If the process dies, the
    /// lease ends the hold as usual.
    ///
    /// From 10 ms to 100 years. For any other value, and for more than a fixed lease or `max_hold`, the methods that
    /// lock return [`Error::InvalidSetting`].
    #[must_use]
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.each(|part| part.min_hold = Some(min_hold))
    }

    /// Returns a handle that gives up with [`Error::Cancelled`] once `token` is cancelled: `lock` and the other methods that
    /// lock then return that error.
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

    /// Returns a handle whose calls, like those of its guards, wait this long for Redis to answer, instead of the
    /// client's [`command_timeout`](crate::Config::command_timeout).
    ///
    /// From 10 ms to an hour; for any other value the calls return [`Error::InvalidSetting`]. Renewals keep the client's timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let a_second = std::time::Duration::from_secs(1);
    /// let _guard = client.mutex("report").command_timeout(a_second).lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// While another thread of this process asks Redis for the same lock, a call waits for that request, however long that
    /// thread's handle allows. The call's time limit and token still end the wait.
    #[must_use]
    pub fn command_timeout(self, timeout: Duration) -> Self {
        self.each(|part| part.set_command_timeout(timeout))
    }

    /// Returns a handle whose calls with a time limit return [`Error::Late`] if Redis was too slow to reply.
    ///
    /// By default, such a call returns `Ok(None)` in two cases: the lock was taken or another waiter was first when Redis
    /// last replied, or Redis has not replied at all. With this setting, the second case is [`Error::Late`].
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

    /// Returns whether the lock is held, by any thread of any process; of a multi-lock, whether any member is.
    ///
    /// Blocks for one round trip, with a multi-lock for up to one for each member; at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("locked: {}", client.mutex("report").is_locked()?); // a moment ago
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`], [`Error::InvalidSetting`]; of a
    /// `RedLock` [`Error::NoQuorum`].
    pub fn is_locked(&self) -> Result<bool> {
        let (parts, until) = self.parts_to_ask()?;
        for part in parts {
            if part.is_locked(until)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether the calling thread has a valid hold: whether [`hold_count`](Self::hold_count) is above zero. No I/O.
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

    /// Returns how many holds the calling thread has, owned guards excluded; zero once they are lost. No I/O. For a
    /// multi-lock, returns the lowest number among its members.
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

    /// Returns how long Redis keeps the lock if it is not renewed; `None` if it is free. Of the members of a
    /// multi-lock, the longest counts.
    ///
    /// Blocks for one round trip, with a multi-lock for one for each member; at most for the command timeout.
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
    /// As [`is_locked`](Self::is_locked).
    pub fn remaining_lease(&self) -> Result<Option<Duration>> {
        let (parts, until) = self.parts_to_ask()?;
        let mut longest = None;
        for part in parts {
            longest = longest.max(part.remaining(until)?);
        }
        Ok(longest)
    }

    /// Takes the lock away from its holder; `false` if it was free.
    ///
    /// Blocks for one round trip, with a multi-lock for one for each member; at most for the command timeout. A holder
    /// that uses this client is notified of the loss at once ([`LossReason::Forced`](crate::LossReason::Forced)). Any
    /// other holder learns of it at the next renewal. With a fixed lease, which is not renewed, such a reader learns of it
    /// within 10 s, and any other such holder at the release or when the lease ends.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.mutex("report").force_unlock()? {
    ///     println!("it was held, and is free now");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Waiting threads are notified as by a release: all of them for most locks, only the first in the queue of a
    /// fair lock, none for a spin lock. If the client resends the request after a lost reply, it counts once; no later
    /// holder loses the lock.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked). A key that holds something else ([`Error::WrongType`]) is left as it is.
    pub fn force_unlock(&self) -> Result<bool> {
        let (parts, until) = self.parts_to_ask()?;
        let mut forced = false;
        for part in parts {
            // If other members are freed already, a caller that repeated the call would take them from their next holders.
            // So the error is not retryable then.
            let error = |err: Error| if forced { err.after_work() } else { err };
            forced |= part.force_unlock(until).map_err(error)?;
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
    fn parts(&self) -> Option<Vec<LockSpec>> {
        Some(self.target.parts().to_vec())
    }

    fn take_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold>>> {
        let held = self.take::<Bound>(wait)?;
        Ok(held.map(|held| Box::new(held) as _))
    }

    fn take_owned_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold + Send>>> {
        let held = self.take::<Owned>(wait)?;
        Ok(held.map(|held| Box::new(held) as _))
    }
}

impl<K: AnyKind> Lock for Handle<K> {
    fn name(&self) -> &str {
        self.name()
    }
}
