//! The semaphore whose permits have an id and a lease each.

use crate::error::RELEASING_PERMIT as RELEASING;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, ToRedisArgs, Value};

use crate::acquire::guarded::Work;
use crate::acquire::leased_permits;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::config;
use crate::error::{Error, Result};
use crate::error::{Loss, LossReason};
use crate::hold::loss::LossChannel;
use crate::hold::{Entry, Hold};
use crate::local::waiter::CancelToken;
use crate::net::call::{Attempt, Call, Fault};
use crate::net::socket;
use crate::protocol::idempotency::{FORGET, RequestKeys};
use crate::protocol::kind::Protocol;
use crate::protocol::owner::PermitId;
use crate::protocol::permits::{self, Change};
use crate::protocol::script::{self, Released, Renewed, Request, Unexpected};
use crate::report::report;
use crate::session::Session;
use crate::sync::guarded::GuardedScript;
use crate::time::{self, Deadline};

/// How many permits can be taken at once, and how many ids one command names: more would keep Redis from everybody else
/// for more than a few milliseconds.
const MOST: usize = 1_000;

/// How many permits can be given back by id at once.
const MOST_IDS: usize = 10_000;

/// A number of permits for all processes together, each with an id and a lease: Redisson's
/// `RPermitExpirableSemaphore`.
///
/// **Crashes.** A permit is renewed for as long as its [`ExpirablePermit`] lives, like a lock. If its process dies,
/// is stopped, or cannot reach Redis, the permit comes back by itself one lease later, and waiting threads get it
/// then without any message. Only the server's clock decides what has expired.
///
/// **How many there are** is set once with [`try_set_permits`](Self::try_set_permits), which changes nothing if it
/// was set before. Until then there are none: acquiring waits, and a *warn* in the log says so once. Available and
/// acquired permits are counted separately: after a reduction the available number may be negative, until enough have
/// come back. If Redis loses the number (it was deleted, or evicted), it counts as not set: permits that come back do
/// not create it, and whoever sets it next has those that are out among them.
///
/// **Ids.** Each permit has an id of 32 hexadecimal digits. Whoever knows it, in any process or language, can release
/// the permit with [`release_id`](Self::release_id); its holder is then notified of the loss
/// ([`LossReason::Forced`]). Permits that Java clients took are counted, waited for and released alike.
///
/// **Order.** Threads of one process are served first come, first served, so that one who wants many is not overtaken
/// for ever, and one who does not wait ([`try_acquire`](Self::try_acquire)) lets those go first who do. Among
/// processes the first to ask gets what there is.
///
/// **Panics.** As with the [`ReentrantLock`](crate::ReentrantLock): dropping releases, nothing is poisoned. A thread
/// may take several permits, and would wait for itself if there are too few.
///
/// The plain semaphore uses the same keys and channel for its name; the two do not mix.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let slots = client.expirable_semaphore("slots");
/// slots.try_set_permits(3)?; // the first process to get here decides
/// {
///     let _permit = slots.acquire()?; // one of three, among all processes
/// }
/// let permit = slots.acquire()?;
/// slots.release_id(permit.id())?; // any other process could do this, too
/// assert!(!permit.is_valid());
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct ExpirableSemaphore {
    inner: LockSpec,
    /// An unregistered entry, for its protocol: the entry in which threads wait is dropped when idle.
    entry: OnceLock<Arc<Entry>>,
}

/// Under which number an observer hears of a permit, which belongs to no thread.
const NO_THREAD: u64 = 0;

/// One permit of an [`ExpirableSemaphore`], released when dropped.
///
/// It is renewed every third of the client's lease until then, unless the handle has a lease of its own or
/// [`update_lease`](Self::update_lease) has given it one. It may be sent to other threads, and shared among them.
#[must_use = "if unused the permit is released immediately; bind it, `let _permit = …`, since `let _ = …` releases it at once"]
pub struct ExpirablePermit {
    semaphore: LockSpec,
    hold: Arc<Hold>,
    /// The shortest lease that was requested without a reply. Locked while a thread changes the lease, round trip
    /// included, so that changes are sent one after another. Nothing else takes it, and those who wait for it have a
    /// time limit.
    updating: Mutex<Option<Duration>>,
    lost: LossChannel,
    released: bool,
}

impl ExpirableSemaphore {
    pub(crate) fn of(handle: LockSpec) -> Self {
        Self {
            inner: handle,
            entry: OnceLock::new(),
        }
    }

    /// Waits for a permit.
    ///
    /// Blocks for one round trip if one is available, otherwise without limit until one is released or expires, and at
    /// most for the client's command timeout (3 s unless set) while Redis does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _permit = client.expirable_semaphore("slots").acquire()?; // renewed until dropped
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis did not answer within the command timeout, at first or while waiting;
    /// [`Error::Cancelled`], [`Error::Closed`]; [`Error::WrongType`] for keys that hold something else;
    /// [`Error::InvalidName`], [`Error::Config`].
    pub fn acquire(&self) -> Result<ExpirablePermit> {
        one(self.endlessly(1)?).ok_or_else(|| self.inner.stopped())
    }

    /// Tries once; `Ok(None)` if there is no permit, or a thread of this process is waiting, which is not overtaken.
    ///
    /// Blocks for one round trip or none, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// match client.expirable_semaphore("slots").try_acquire()? {
    ///     Some(permit) => println!("we have {}", permit.id()),
    ///     None => println!("all are taken"),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), except `Cancelled`.
    pub fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::Once)?.and_then(one))
    }

    /// Waits up to `wait` for a permit; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget, round trips included; zero is one attempt. An answer that comes later is not waited
    /// for, and what it may have granted is released.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_secs(1);
    /// let Some(_permit) = client.expirable_semaphore("slots").try_acquire_for(wait)? else {
    ///     return Ok(()); // all are taken
    /// };
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Redis`] also if Redis is known to be unreachable by then.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::span(wait))?.and_then(one))
    }

    /// Waits until `instant` for a permit; otherwise as [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// An instant in the past is one attempt.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let permit = client.expirable_semaphore("slots").try_acquire_until(deadline)?;
    /// println!("in time: {}", permit.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_until(&self, instant: Instant) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::moment(instant))?.and_then(one))
    }

    /// Waits for `n` permits at once: all of them are taken, or none. At most 1,000.
    ///
    /// Each is a permit of its own, with its own id and its own end. If `n` is more than there are in all, it waits
    /// until somebody adds some.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permits = client.expirable_semaphore("slots").acquire_many(2)?;
    /// assert_eq!(permits.len(), 2);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Config`] if `n` is zero or too large.
    pub fn acquire_many(&self, n: u32) -> Result<Vec<ExpirablePermit>> {
        self.endlessly(n)
    }

    /// Tries once to take `n` permits, all or none; `Ok(None)` if there are fewer, or a thread of this process is
    /// waiting.
    ///
    /// Blocks for one round trip or none, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.expirable_semaphore("slots").try_acquire_many(2)?.is_none() {
    ///     println!("fewer than two are available");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), except `Cancelled`.
    pub fn try_acquire_many(&self, n: u32) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::Once)
    }

    /// Waits up to `wait` for `n` permits at once; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget, round trips included; zero is one attempt.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_secs(1);
    /// let permits = client.expirable_semaphore("slots").try_acquire_many_for(2, wait)?;
    /// println!("in time: {}", permits.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), and as [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_many_for(
        &self,
        n: u32,
        wait: Duration,
    ) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::span(wait))
    }

    /// Waits until `instant` for `n` permits at once; `Ok(None)` if that was not long enough.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let permits = client.expirable_semaphore("slots").try_acquire_many_until(2, deadline)?;
    /// println!("in time: {}", permits.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many_for`](Self::try_acquire_many_for).
    pub fn try_acquire_many_until(
        &self,
        n: u32,
        instant: Instant,
    ) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::moment(instant))
    }

    /// Sets how many permits there are; `false` if that was set before, and then nothing changes.
    ///
    /// To change the number afterwards, call [`set_permits`](Self::set_permits): a program that starts with another
    /// number here keeps the old one. Blocks for one round trip, at most the command timeout. Permits that are out
    /// although the number was deleted are among the `n`. Sent again after a lost answer it counts once and returns
    /// the first answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// slots.try_set_permits(3)?; // by every process; the first one counts
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if `n` is more than [`i32::MAX`], which is all that Java clients can read; [`Error::Redis`]
    /// if Redis did not answer within the command timeout: then it may have been done, or may yet be;
    /// [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn try_set_permits(&self, n: u32) -> Result<bool> {
        readable(n)?;
        let done = self.change(Change::TrySet(n))?;
        Ok(done == 1)
    }

    /// Sets how many permits there are, whatever was set before.
    ///
    /// Blocks for one round trip, at most the command timeout. Nobody loses a permit: if more are out than `n`, the
    /// available number is negative until enough have come back.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.expirable_semaphore("slots").set_permits(5)?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn set_permits(&self, n: u32) -> Result<()> {
        readable(n)?;
        self.change(Change::Set(n))?;
        Ok(())
    }

    /// Adds `more` permits, or removes some if it is negative.
    ///
    /// Blocks for one round trip, at most the command timeout. Sent again after a lost answer it counts once.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.expirable_semaphore("slots").add_permits(-1)?; // one less from now on
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn add_permits(&self, more: i64) -> Result<()> {
        if i32::try_from(more).is_err() {
            return Err(Error::config(format!("{more} permits at once")));
        }
        self.change(Change::Add(more))?;
        Ok(())
    }

    /// Returns how many permits are available; negative after a reduction. One round trip, at most the response
    /// timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} available", client.expirable_semaphore("slots").available_permits()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn available_permits(&self) -> Result<i64> {
        Ok(self.state()?[0])
    }

    /// Returns how many permits are taken, in all processes. One round trip, at most the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} taken", client.expirable_semaphore("slots").acquired_permits()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    pub fn acquired_permits(&self) -> Result<u64> {
        Ok(u64::try_from(self.state()?[1]).unwrap_or(0))
    }

    /// Returns how many permits there are in all, available or taken; zero if that was never set. One round trip, at
    /// most the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} in all", client.expirable_semaphore("slots").permits()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    pub fn permits(&self) -> Result<i64> {
        Ok(self.state()?[2])
    }

    /// Releases the permit with this id, whoever took it; `false` if it was no longer taken.
    ///
    /// Blocks for one round trip, at most the command timeout. A holder in this client is notified of its loss at once
    /// ([`LossReason::Forced`]), one elsewhere at its next renewal. Sent again after a lost answer it returns the first
    /// answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let permit = slots.acquire()?;
    /// assert!(slots.release_id(permit.id())?); // perhaps in another process
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an id that is not 32 hexadecimal digits; [`Error::Redis`], [`Error::WrongType`],
    /// [`Error::Closed`], [`Error::InvalidName`].
    pub fn release_id(&self, id: impl AsRef<str>) -> Result<bool> {
        let released = self.release_ids(&[id])?;
        Ok(released.first().copied().unwrap_or_default())
    }

    /// Releases the permits with these ids, whoever took them, and returns of each whether it was taken.
    ///
    /// Those that were no longer taken do not keep the others from being released. At most 10,000; blocks for one round
    /// trip per 1,000, each at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let permits = slots.acquire_many(2)?;
    /// let ids: Vec<&str> = permits.iter().map(|permit| permit.id()).collect();
    /// assert_eq!(slots.release_ids(&ids)?, [true, true]);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id); with a malformed id among them nothing is sent. After other errors some of
    /// them may have been released.
    ///
    /// Source: Redisson releases all or none, and fails if one had expired.
    pub fn release_ids(&self, ids: &[impl AsRef<str>]) -> Result<Vec<bool>> {
        let ids = ids
            .iter()
            .map(|id| parsed(id.as_ref()))
            .collect::<Result<Vec<_>>>()?;
        if ids.len() > MOST_IDS {
            return Err(Error::config(format!(
                "{} ids; {MOST_IDS} are possible",
                ids.len()
            )));
        }
        let (session, entry) = (self.inner.session(), self.entry()?);
        session.check_open()?;
        let mut released = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MOST) {
            let done = self.release_some(entry, ids)?;
            for (id, _) in std::iter::zip(ids, &done).filter(|(_, done)| **done) {
                if let Some(hold) = session.permits.get(*id)
                    && hold.entry().protocol.key() == entry.protocol.key()
                {
                    session.lose(&hold, LossReason::Forced);
                }
            }
            released.extend(done);
        }
        Ok(released)
    }

    fn release_some(&self, entry: &Entry, ids: &[PermitId]) -> Result<Vec<bool>> {
        let make = |of: &Protocol, keys: &RequestKeys, keep_ms: &str| {
            permits::release_ids(of, keys, keep_ms, ids)
        };
        let (reply, doing) = self.inner.ask_once(&entry.protocol, FORGET, make)?;
        match &reply {
            Value::BulkString(letters) if letters.len() == ids.len() => {
                Ok(letters.iter().map(|letter| *letter == b'1').collect())
            }
            _ => Err(self
                .inner
                .session()
                .error(doing, &self.inner.name, Unexpected(reply))),
        }
    }

    /// Returns how long Redis keeps the permit with this id if nobody renews it; `None` if it is not taken.
    ///
    /// Blocks for one round trip, at most the command timeout. [`Duration::MAX`] for one without an end, which only
    /// Java clients take.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let permit = slots.acquire()?;
    /// println!("ends in {:?}", slots.lease_of(permit.id())?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id).
    pub fn lease_of(&self, id: impl AsRef<str>) -> Result<Option<Duration>> {
        let id = parsed(id.as_ref())?;
        let request = |protocol: &Protocol| permits::lease_of(protocol, id);
        let (reply, doing) = self.ask_for(request)?;
        let ms = self.inner.integer(reply, doing)?;
        Ok(match ms {
            -1 => Some(Duration::MAX),
            ms => u64::try_from(ms).ok().map(Duration::from_millis),
        })
    }

    /// Returns a handle whose permits have this lease and are not renewed: Redisson's `leaseTime`.
    ///
    /// When the lease is over, the permit is lost ([`LossReason::Expired`]) and available to others. From 10 ms to a
    /// hundred years; for anything else the methods that acquire return [`Error::Config`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots").lease(std::time::Duration::from_secs(60));
    /// let _permit = slots.acquire()?; // for a minute at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.inner.lease = Some(lease);
        self
    }

    /// Returns a handle whose waits end with [`Error::Cancelled`] when `token` is cancelled.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let slots = client.expirable_semaphore("slots").cancel_on(&token);
    /// token.cancel(); // normally by another thread, while this one waits
    /// assert!(matches!(slots.acquire(), Err(redlatch::Error::Cancelled)));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.inner.cancel = Some(token.clone());
        self
    }

    /// Returns a handle whose waits with a limit tell *late* from *busy*: see
    /// [`ReentrantLock::late_is_error`](crate::ReentrantLock::late_is_error).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots").late_is_error();
    /// match slots.try_acquire_for(std::time::Duration::from_millis(50)) {
    ///     Err(redlatch::Error::Late { .. }) => println!("redis is slow"),
    ///     other => println!("acquired: {}", other?.is_some()),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn late_is_error(mut self) -> Self {
        self.inner.late_is_error = true;
        self
    }

    /// Returns the name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.expirable_semaphore("slots").name(), "slots");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    fn entry(&self) -> Result<&Arc<Entry>> {
        if let Some(entry) = self.entry.get() {
            return Ok(entry);
        }
        let entry = self.inner.unregistered_entry()?;
        Ok(self.entry.get_or_init(|| entry))
    }

    /// Sends a query; all it changes is that expired permits become available.
    fn ask_for(&self, request: impl FnOnce(&Protocol) -> Request) -> Result<(Value, &'static str)> {
        self.inner.ask(request(&self.entry()?.protocol))
    }

    /// Changes how many permits there are; however often it is sent, it counts once.
    fn change(&self, change: Change) -> Result<i64> {
        self.inner.count_once(FORGET, |protocol, keys, keep_ms| {
            permits::change(protocol, keys, keep_ms, change)
        })
    }

    /// Available, acquired, and both together.
    fn state(&self) -> Result<[i64; 3]> {
        let (reply, doing) = self.ask_for(permits::state)?;
        match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [
                    Value::Int(available),
                    Value::Int(acquired),
                    Value::Int(both),
                ] => Some([*available, *acquired, *both]),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| {
            self.inner
                .session()
                .error(doing, &self.inner.name, Unexpected(reply))
        })
    }

    fn endlessly(&self, n: u32) -> Result<Vec<ExpirablePermit>> {
        let taken = self.take(n, WaitMode::Until(Deadline::NEVER))?;
        // A wait without a limit ends with permits or an error.
        taken.ok_or_else(|| self.inner.stopped())
    }

    fn take(&self, n: u32, wait: WaitMode) -> Result<Option<Vec<ExpirablePermit>>> {
        if !(1..=MOST).contains(&usize::try_from(n).unwrap_or(usize::MAX)) {
            return Err(Error::config(format!(
                "{n} permits at once; from 1 to {MOST} are possible"
            )));
        }
        let entry = self.entry()?;
        let take = || leased_permits::take(&self.inner, entry, n, wait);
        let observe = |holds: &mut Vec<Arc<Hold>>, began| {
            for hold in holds {
                hold.observe(NO_THREAD, self.inner.was_granted(began, false));
            }
        };
        let Some(holds) = self.inner.observed(take, observe)? else {
            return Ok(None);
        };
        let permit = |hold| {
            self.inner.session().permits.insert(&hold);
            ExpirablePermit {
                semaphore: self.inner.clone(),
                hold,
                updating: Mutex::new(None),
                lost: LossChannel::default(),
                released: false,
            }
        };
        Ok(Some(holds.into_iter().map(permit).collect()))
    }
}

fn one(permits: Vec<ExpirablePermit>) -> Option<ExpirablePermit> {
    permits.into_iter().next()
}

/// Checks that Redisson can read that many permits.
fn readable(n: u32) -> Result<()> {
    i32::try_from(n)
        .map(drop)
        .map_err(|_| Error::config(format!("{n} permits; {} are possible", i32::MAX)))
}

fn parsed(id: &str) -> Result<PermitId> {
    PermitId::parse(id).ok_or_else(|| {
        Error::config(format!(
            "{id:?} is no permit's id, which has 32 hexadecimal digits"
        ))
    })
}

impl ExpirablePermit {
    fn session(&self) -> &Arc<Session> {
        self.semaphore.session()
    }

    /// Releases the permit and waits for Redis to confirm it.
    ///
    /// Dropping it releases it too, but does not wait. Blocks for one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// permit.release()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it was no longer ours; [`Error::Redis`] if Redis did not confirm: the release is sent again
    /// until it does, and the lease ends the permit at the latest.
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        if self.session().is_copy() {
            return Err(Error::Closed);
        }
        let until = Instant::now() + self.session().command_timeout;
        let in_time = self.hold.valid_until() > Instant::now();
        let call = self.let_go()?;
        let (value, replayed) = match self.session().connection.settled(&call, until) {
            Ok(settled) => settled,
            Err(fault) => return Err(self.semaphore.error(RELEASING, fault)),
        };
        let released = script::released(&value).map_err(|unexpected| {
            self.session()
                .error(RELEASING, &self.semaphore.name, unexpected)
        })?;
        let reason = match released {
            Released::Yes { .. } => return Ok(()),
            // It was sent twice, and the first time has released it.
            _ if replayed && in_time => return Ok(()),
            _ if in_time => LossReason::Forced,
            _ => LossReason::Expired,
        };
        if let Some(observed) = self.hold.unobserve(NO_THREAD) {
            observed.lost(&self.hold.loss_for(reason));
        }
        Err(self.semaphore.lost(reason))
    }

    /// Returns whether the permit is certainly still ours by the clock of this process. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// while permit.is_valid() {
    ///     // the next piece of the work
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid(Instant::now()) && !self.session().is_copy()
    }

    /// Returns until when the permit is certainly ours unless it is renewed. No I/O.
    ///
    /// On the monotonic clock: from before the last confirmed acquire, renewal or change of the lease was sent, for the
    /// lease less a hundredth of it and 2 ms, for clocks that drift apart.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// let left = permit.valid_until().saturating_duration_since(std::time::Instant::now());
    /// println!("certain for {left:?}");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    /// Returns the channel that reports the loss of this permit, at the latest at [`valid_until`](Self::valid_until).
    /// No I/O.
    ///
    /// It receives at most one [`Loss`], and nothing when the permit is released. It can be used in
    /// `crossbeam_channel::select!`.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// if let Ok(loss) = permit.lost().try_recv() {
    ///     println!("lost: {}", loss.reason);
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<Loss> {
        self.lost.of(|listener| {
            if !self.session().is_copy() {
                self.hold.listen(listener());
            }
        })
    }

    /// Runs a command if this permit is in force, which Redis looks at in the same step; otherwise nothing is executed.
    ///
    /// So what is written like this cannot be written too late, however long this process was stopped or cut off: once
    /// the lease is over, [`Error::Lost`] comes instead. The data have to be in the Redis that keeps the permit. In a
    /// cluster the keys have to be in the slot of the semaphore's key, as `{slots}:done` is in that of `slots`.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// // does nothing if the lease is over by now
    /// permit.query::<()>(redis::cmd("INCR").arg("{slots}:done"))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Which commands, keys and replies are possible, how long it blocks, and what a lost reply means is the same for
    /// permits and for the guards of locks: see [`Guard::query`](crate::Guard::query).
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the permit is over, and nothing was executed. It is notified.
    /// - [`Error::Redis`]: Redis rejected the command, did not answer, or the reply is no `T` or too large; see
    ///   [`may_have_run`](Error::may_have_run).
    /// - [`Error::InvalidCommand`], before anything is sent.
    /// - [`Error::Closed`] once the client is closed.
    pub fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.session().run(&self.hold, &Work::Command(command))
    }

    /// Runs a script if this permit is in force; otherwise as [`query`](Self::query).
    ///
    /// All of it is executed, or nothing. `keys` and `args` may be single values, slices or tuples; `None::<&str>` is
    /// none of them. Name all keys, since only those are looked at before it is sent.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let done = redlatch::GuardedScript::new("return redis.call('incrby', KEYS[1], ARGV[1])");
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// let in_all: i64 = permit.invoke(&done, "{slots}:done", 5)?;
    /// # let _ = in_all;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query). A script that fails in the middle has executed what came before.
    pub fn invoke<T: FromRedisValue>(
        &self,
        script: &GuardedScript,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> Result<T> {
        self.session().run(&self.hold, &script.work(keys, args))
    }

    /// Lets the permit end `lease` from now, sooner or later than it would have. It is no longer renewed.
    ///
    /// From 10 ms to a hundred years. Blocks for one round trip, at most for the command timeout; longer by as much if
    /// another thread is doing the same.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// permit.update_lease(std::time::Duration::from_secs(300))?; // ends in five minutes
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the permit was no longer ours. [`Error::Redis`] if Redis did not answer: it may have been
    /// done, or may yet be, so the permit counts as ours for no longer than the shorter of both leases, and is not
    /// renewed; later updates do not extend that. [`Error::Config`] for a lease out of range; [`Error::Closed`].
    pub fn update_lease(&self, lease: Duration) -> Result<()> {
        let doing = "changing the lease of a permit";
        config::check_lease("lease", lease)?;
        let (session, hold) = (self.session(), &self.hold);
        if session.is_copy() {
            return Err(Error::Closed);
        }
        let until = Instant::now() + session.command_timeout;
        let Some(mut doubtful) = self.updating.try_lock_until(until) else {
            let err = socket::timed_out("another thread is changing it, and redis does not answer");
            return Err(self.session().error(doing, &self.semaphore.name, err));
        };
        if let Some(reason) = hold.loss() {
            return Err(self.semaphore.lost(reason));
        }
        session.check_open()?;
        let (now, was_valid_until) = (Instant::now(), hold.valid_until());
        hold.change(|its| its.announce_fixed(now, lease));
        session.watchdog.arm(hold, time::nanos(hold.valid_until()));
        let Some(id) = PermitId::parse(&hold.owner()) else {
            return Err(Error::config("a permit without an id".into()));
        };
        let protocol = &hold.entry().protocol;
        let mut attempt = || Attempt {
            request: permits::update(protocol, id, lease),
            undo: None,
        };
        let stop = || session.is_closed();
        let until = now + session.command_timeout;
        let answer = session.connection.call(until, &stop, None, &mut attempt);
        if !matches!(answer, Ok(_) | Err(Fault::Refused(_))) {
            // Redis may still execute it, even after later updates with longer leases.
            *doubtful = Some(doubtful.map_or(lease, |other| other.min(lease)));
        }
        let answer = answer.map_err(|fault| self.semaphore.error(doing, fault))?;
        let renewed = script::renewed(answer.value).map_err(|unexpected| {
            self.session()
                .error(doing, &self.semaphore.name, unexpected)
        })?;
        if renewed == Renewed::Yes {
            let certain = doubtful.map_or(lease, |other| other.min(lease));
            hold.change(|its| its.replace(answer.sent_at, certain));
            session.watchdog.arm(hold, time::nanos(hold.valid_until()));
        } else {
            // After its time it is gone because it expired, not because somebody removed it.
            let reason = if Instant::now() < was_valid_until {
                LossReason::Forced
            } else {
                LossReason::Expired
            };
            session.lose(hold, reason);
        }
        let Some(reason) = hold.loss() else {
            return Ok(());
        };
        if hold.may_still_be_held() {
            // Lost while Redis was extending its lease.
            session.give_back(hold);
        }
        Err(self.semaphore.lost(reason))
    }

    /// Returns its id: 32 hexadecimal digits, for [`ExpirableSemaphore::release_id`] in any process and for Java
    /// clients.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// println!("taken: {}", permit.id());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        self.hold.owner_ref()
    }

    /// Returns the semaphore's name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.expirable_semaphore("slots").acquire()?.name(), "slots");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.semaphore.name
    }

    /// Ends the permit and sends its release.
    fn let_go(&self) -> Result<Arc<Call>> {
        let (session, hold) = (self.session(), &self.hold);
        let ended = hold.end();
        session.watchdog.disarm(hold);
        if !ended {
            if hold.may_still_be_held() {
                session.give_back(hold);
            }
            let reason = hold.loss().unwrap_or(LossReason::Expired);
            return Err(self.semaphore.lost(reason));
        }
        Ok(leased_permits::release(&self.semaphore, hold))
    }
}

impl Drop for ExpirablePermit {
    fn drop(&mut self) {
        if self.session().is_copy() {
            return;
        }
        self.session().permits.remove(&self.hold);
        if !self.released
            && let Err(err) = self.let_go()
        {
            // Not a warning: `lost` has reported it, and it does no harm to those who wait.
            report!(Debug, "dropping a permit: {err}");
        }
        if let Some(observed) = self.hold.unobserve(NO_THREAD) {
            observed.released();
        }
    }
}

impl fmt::Debug for ExpirableSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirableSemaphore")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExpirablePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirablePermit")
            .field("name", &self.name())
            .field("id", &self.id())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// ```
/// fn shared<T: Send + Sync + 'static>() {}
/// shared::<redlatch::ExpirableSemaphore>();
/// shared::<redlatch::ExpirablePermit>();
/// ```
#[cfg(doctest)]
struct SendAndSync;
