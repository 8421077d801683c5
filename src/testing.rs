//! Locks and errors for unit tests without Redis: with the feature `testing`.
//!
//! Code that takes a [`&dyn Lock`](crate::Lock) works with a lock of a client, and in a unit test with a [`FakeLock`]. The
//! [recipe](crate::guide::recipes) shows such a test.
//!
//! ```
//! use redlatch::Lock;
//! use redlatch::testing::{FakeLock, errors};
//!
//! let lock = FakeLock::new("stock:42");
//! lock.refuse_next();
//! lock.fail_next(errors::late("stock:42"));
//! assert!(lock.try_lock()?.is_none());
//! assert!(lock.try_lock().is_err_and(|err| err.is_retryable()));
//! assert!(lock.try_lock()?.is_some());
//! # Ok::<(), redlatch::Error>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Loss, LossReason, Result};
use crate::hold::loss::{LossChannel, LossListener, LossReceiver};
use crate::sync::traits::{Hold, Lock, sealed};

/// A lock for unit tests, which grants, refuses and fails as ordered, and needs no Redis.
///
/// If no order is queued, the lock grants every attempt, also while it is held: it excludes nobody. No call blocks.
/// Clones are the same lock, so that a test can keep one. A `FakeLock` has only the methods of [`Lock`], and its guards
/// those of [`Hold`]: code that needs `token`, `query` or `invoke` cannot be tested with it.
///
/// ```
/// use redlatch::testing::FakeLock;
/// use redlatch::{Hold, Lock, LossReason};
///
/// let lock = FakeLock::new("report");
/// let guard = lock.lock()?;
/// assert!(lock.is_held() && guard.is_valid());
/// lock.lose(LossReason::Expired);
/// assert!(!guard.is_valid());
/// assert!(guard.unlock().is_err());
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct FakeLock(Arc<Fake>);

struct Fake {
    name: String,
    told: Mutex<Told>,
}

/// The orders of the test, and the guards that are not dropped.
#[derive(Default)]
struct Told {
    attempts: VecDeque<FakeOutcome>,
    unlocks: VecDeque<Error>,
    held: Vec<Weak<TestHold>>,
}

/// The outcome of an attempt.
enum FakeOutcome {
    Grant,
    Refuse,
    Fail(Error),
}

impl FakeLock {
    /// Returns a lock that grants every attempt.
    ///
    /// ```
    /// use redlatch::Lock;
    ///
    /// let lock = redlatch::testing::FakeLock::new("report");
    /// assert_eq!(lock.name(), "report");
    /// ```
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(Fake {
            name: name.into(),
            told: Mutex::default(),
        }))
    }

    fn order(&self, order: FakeOutcome) {
        self.0.told.lock().attempts.push_back(order);
    }

    /// Queues a grant. Each attempt takes the oldest order in the queue; the attempt that takes this one succeeds.
    ///
    /// ```
    /// use redlatch::Lock;
    ///
    /// let lock = redlatch::testing::FakeLock::new("report");
    /// lock.grant_next();
    /// lock.refuse_next();
    /// assert!(lock.try_lock()?.is_some());
    /// assert!(lock.try_lock()?.is_none());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn grant_next(&self) {
        self.order(FakeOutcome::Grant);
    }

    /// Queues a refusal: the attempt that takes this order finds the lock taken.
    ///
    /// `lock` and `lock_owned` go on and take the next order. The `try_` methods return `Ok(None)` at once.
    ///
    /// ```
    /// use redlatch::Lock;
    ///
    /// let lock = redlatch::testing::FakeLock::new("report");
    /// lock.refuse_next();
    /// assert!(lock.try_lock()?.is_none());
    /// lock.refuse_next();
    /// assert!(lock.lock().is_ok());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn refuse_next(&self) {
        self.order(FakeOutcome::Refuse);
    }

    /// Queues an error: the attempt that takes this order fails with it. [`errors`] makes errors.
    ///
    /// ```
    /// use redlatch::Lock;
    /// use redlatch::testing::{FakeLock, errors};
    ///
    /// let lock = FakeLock::new("report");
    /// lock.fail_next(errors::redis("report", "connection refused"));
    /// assert!(lock.lock().is_err_and(|err| err.is_retryable()));
    /// ```
    pub fn fail_next(&self, err: Error) {
        self.order(FakeOutcome::Fail(err));
    }

    /// Queues an error for `unlock`. These errors have a queue of their own: the next `unlock` takes the oldest one and
    /// returns it. The hold ends all the same.
    ///
    /// A real `unlock` never returns a [retryable](Error::is_retryable) error, since the work is done. So an `err` that is
    /// retryable is changed into one that is not, mostly an [`Error::Redis`] with `after_work` set. The `unlock` of a lost
    /// guard returns [`Error::Lost`] and leaves the queue as it is.
    ///
    /// ```
    /// use redlatch::testing::{FakeLock, errors};
    /// use redlatch::{Hold, Lock};
    ///
    /// let lock = FakeLock::new("report");
    /// lock.fail_unlock_next(errors::redis("report", "connection reset"));
    /// let err = lock.lock()?.unlock().unwrap_err();
    /// assert!(!err.is_retryable(), "the work is done");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn fail_unlock_next(&self, err: Error) {
        self.0.told.lock().unlocks.push_back(err.after_work());
    }

    /// Makes all guards lose the lock; they report the loss as the guards of a client do.
    ///
    /// ```
    /// use redlatch::{Hold, Lock, LossReason};
    ///
    /// let lock = redlatch::testing::FakeLock::new("report");
    /// let guard = lock.lock()?;
    /// lock.lose(LossReason::Forced);
    /// assert_eq!(guard.lost().try_recv().unwrap().reason, LossReason::Forced);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn lose(&self, reason: LossReason) {
        let held = self.held();
        for held in held.iter().filter(|hold| hold.loss().is_none()) {
            *held.lost_by.lock() = Some(reason);
            let loss = loss(&self.0.name, "testing", reason);
            for listener in held.listeners.lock().drain(..) {
                listener.notify(&loss);
            }
        }
    }

    /// Returns whether there is a guard that was neither dropped nor unlocked.
    ///
    /// ```
    /// use redlatch::Lock;
    ///
    /// let lock = redlatch::testing::FakeLock::new("report");
    /// drop(lock.lock()?);
    /// assert!(!lock.is_held());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.held().is_empty()
    }

    fn held(&self) -> Vec<Arc<TestHold>> {
        let told = self.0.told.lock();
        told.held.iter().filter_map(Weak::upgrade).collect()
    }

    fn take(&self, wait: WaitMode) -> Result<Option<FakeGuard>> {
        let is_endless = matches!(wait, WaitMode::Until(end) if end.instant().is_none());
        let mut told = self.0.told.lock();
        loop {
            match told.attempts.pop_front() {
                Some(FakeOutcome::Refuse) if is_endless => {}
                Some(FakeOutcome::Refuse) => return Ok(None),
                Some(FakeOutcome::Fail(err)) => return Err(err),
                Some(FakeOutcome::Grant) | None => break,
            }
        }
        let held = Arc::<TestHold>::default();
        told.held.retain(|held| held.strong_count() > 0);
        told.held.push(Arc::downgrade(&held));
        Ok(Some(FakeGuard {
            lock: self.clone(),
            held,
            lost: LossChannel::default(),
            granted_at: Instant::now(),
        }))
    }
}

impl fmt::Debug for FakeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeLock")
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

impl sealed::Member for FakeLock {
    fn parts(&self) -> Option<Vec<LockSpec>> {
        None
    }

    fn take_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold>>> {
        Ok(self.take(wait)?.map(|held| Box::new(held) as _))
    }

    fn take_owned_boxed(&self, wait: WaitMode) -> Result<Option<Box<dyn Hold + Send>>> {
        Ok(self.take(wait)?.map(|held| Box::new(held) as _))
    }
}

impl Lock for FakeLock {
    fn name(&self) -> &str {
        &self.0.name
    }
}

/// The hold of one guard.
#[derive(Default)]
struct TestHold {
    lost_by: Mutex<Option<LossReason>>,
    listeners: Mutex<Vec<LossListener>>,
}

impl TestHold {
    fn loss(&self) -> Option<LossReason> {
        *self.lost_by.lock()
    }
}

struct FakeGuard {
    lock: FakeLock,
    held: Arc<TestHold>,
    lost: LossChannel,
    granted_at: Instant,
}

impl fmt::Debug for FakeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeGuard")
            .field("name", &self.name())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl sealed::SealedGuard for FakeGuard {
    fn unlock_boxed(self: Box<Self>) -> Result<()> {
        (*self).unlock()
    }
}

impl Hold for FakeGuard {
    fn unlock(self) -> Result<()> {
        let name = &self.lock.0.name;
        if let Some(reason) = self.held.loss() {
            return Err(errors::lost(name, reason));
        }
        match self.lock.0.told.lock().unlocks.pop_front() {
            Some(err) => Err(err),
            None => Ok(()),
        }
    }

    fn is_valid(&self) -> bool {
        self.held.loss().is_none()
    }

    fn valid_until(&self) -> Instant {
        match self.is_valid() {
            // The default lease, as if it were just renewed.
            true => Instant::now() + Duration::from_secs(30),
            false => self.granted_at,
        }
    }

    fn lost(&self) -> &LossReceiver {
        self.lost.of(|listener| {
            let (listener, mut listeners) = (listener(), self.held.listeners.lock());
            match self.held.loss() {
                Some(reason) => listener.notify(&loss(self.name(), "testing", reason)),
                None => listeners.push(listener),
            }
        })
    }

    fn name(&self) -> &str {
        &self.lock.0.name
    }
}

/// Makes the loss that [`Config::on_lost`](crate::Config::on_lost) and [`Observer::lost`](crate::Observer::lost) hear of.
///
/// ```
/// let loss = redlatch::testing::loss("report", "owner", redlatch::LossReason::Expired);
/// assert_eq!(loss.name, "report");
/// ```
#[must_use]
pub fn loss(name: impl Into<String>, owner: impl Into<String>, reason: LossReason) -> Loss {
    Loss {
        name: name.into(),
        owner: owner.into(),
        reason,
    }
}

/// Errors: functions for each variant of [`Error`] that has fields.
///
/// ```
/// use redlatch::testing::errors;
///
/// assert!(errors::redis("report", "connection refused").is_retryable());
/// assert!(errors::may_have_run("stock:42").may_have_run());
/// ```
pub mod errors {
    use crate::error::{DeadlockReason, Error, LossReason, RUNNING};

    /// Makes a retryable [`Error::Redis`] of an attempt to acquire.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(errors::redis("report", "connection refused").is_retryable());
    /// ```
    #[must_use]
    pub fn redis(name: &str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::redis("acquiring the lock", why).about(name)
    }

    /// Makes an [`Error::Redis`] of a guarded command without a reply: see [`Error::may_have_run`].
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(errors::may_have_run("stock:42").may_have_run());
    /// ```
    #[must_use]
    pub fn may_have_run(name: &str) -> Error {
        let why = std::io::Error::new(std::io::ErrorKind::TimedOut, "redis did not answer in time");
        Error::outcome_unknown(RUNNING, why.into()).about(name)
    }

    /// Makes the [`Error::Lost`] of an `unlock` or a guarded command after the hold ended.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(!errors::lost("report", redlatch::LossReason::Expired).is_retryable());
    /// ```
    #[must_use]
    pub fn lost(name: impl Into<String>, reason: LossReason) -> Error {
        Error::lost(name, reason)
    }

    /// Makes the [`Error::NoQuorum`] of a `RedLock` over `nodes` masters, of which `agreed` granted the lock, with the
    /// errors of others.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// let frozen = errors::redis("billing", "timed out");
    /// let dead = errors::redis("billing", "connection refused");
    /// assert!(errors::no_quorum("billing", 3, 1, vec![(1, frozen), (2, dead)]).is_retryable());
    /// ```
    #[must_use]
    pub fn no_quorum(
        name: impl Into<String>,
        nodes: usize,
        agreed: usize,
        failures: Vec<(usize, Error)>,
    ) -> Error {
        Error::NoQuorum {
            name: name.into(),
            nodes,
            needed: nodes / 2 + 1,
            agreed,
            failures,
        }
    }

    /// Makes the [`Error::NotReplicated`] of an acquire with `acked` of `needed` acknowledgements.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(errors::not_replicated(0, 1).is_retryable());
    /// ```
    #[must_use]
    pub fn not_replicated(acked: u32, needed: u32) -> Error {
        Error::NotReplicated { acked, needed }
    }

    /// Makes the [`Error::Members`] of a multi-lock, with the name and the error of each member that failed.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// let dead = errors::redis("a", "connection refused");
    /// assert!(errors::members(vec![("a".into(), dead)]).is_retryable());
    /// ```
    #[must_use]
    pub fn members(failures: Vec<(String, Error)>) -> Error {
        Error::Members { failures }
    }

    /// Makes the [`Error::WouldDeadlock`] of a thread that would wait for itself.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// let reason = redlatch::DeadlockReason::NotReentrant;
    /// assert!(!errors::would_deadlock("report", reason).is_retryable());
    /// ```
    #[must_use]
    pub fn would_deadlock(name: impl Into<String>, reason: DeadlockReason) -> Error {
        let name = name.into();
        Error::WouldDeadlock { name, reason }
    }

    /// Makes the [`Error::WrongType`] of a key that holds something else, such as `a string`.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(!errors::wrong_type("report", None).is_retryable());
    /// ```
    #[must_use]
    pub fn wrong_type(name: impl Into<String>, found: Option<String>) -> Error {
        let name = name.into();
        Error::WrongType { name, found }
    }

    /// Makes the [`Error::Spawn`] of a thread of the client that cannot be started.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// let why = std::io::Error::other("no more threads");
    /// assert!(errors::spawn("redlatch-watchdog", why).is_retryable());
    /// ```
    #[must_use]
    pub fn spawn(thread: &'static str, source: std::io::Error) -> Error {
        Error::Spawn { thread, source }
    }

    /// Makes the [`Error::InvalidCommand`] of a guarded command that is not sent.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(!errors::invalid_command("a key in another slot").is_retryable());
    /// ```
    #[must_use]
    pub fn invalid_command(reason: impl Into<String>) -> Error {
        let reason = reason.into();
        Error::InvalidCommand { reason }
    }

    /// Makes the [`Error::Late`] of a time limit that Redis was too slow for.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(errors::late("report").is_retryable());
    /// ```
    #[must_use]
    pub fn late(name: impl Into<String>) -> Error {
        let name = name.into();
        Error::Late { name }
    }

    /// Makes the [`Error::InvalidName`] of a name that no lock can have.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(!errors::invalid_name("it is empty").is_retryable());
    /// ```
    #[must_use]
    pub fn invalid_name(reason: &'static str) -> Error {
        Error::InvalidName { reason }
    }

    /// Makes the [`Error::InvalidSetting`] of a setting that cannot work.
    ///
    /// ```
    /// use redlatch::testing::errors;
    ///
    /// assert!(!errors::invalid_setting("lease is zero").is_retryable());
    /// ```
    #[must_use]
    pub fn invalid_setting(reason: impl Into<String>) -> Error {
        let reason = reason.into();
        Error::InvalidSetting { reason }
    }
}

#[cfg(test)]
mod tests;
