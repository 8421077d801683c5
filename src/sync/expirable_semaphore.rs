//! The semaphore whose permits have an id and a lease each.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, ToRedisArgs};

use crate::acquire::Outcome;
use crate::acquire::guarded::Work;
use crate::acquire::leased_permits;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::config;
use crate::error::{Error, LossReason, Result};
use crate::hold::loss::{LossChannel, LossReceiver};
use crate::hold::{Entry, Hold};
use crate::local::waiter::CancelToken;
use crate::net::call::{Call, Fault};
use crate::net::socket;
use crate::protocol::idempotency::FORGET;
use crate::protocol::owner::PermitId;
use crate::protocol::permits::{self, PermitChange};
use crate::protocol::script;
use crate::report::report;
use crate::session::Session;
use crate::sync::guarded::GuardedScript;
use crate::sync::kind::sealed;
use crate::sync::ticket::Ticket;
use crate::time;

/// How many permits one command acquires, and how many ids one command names. More would block Redis for other
/// clients for more than a few milliseconds.
const MOST: usize = 1_000;

/// How many permits one call of `release_ids` releases.
const MOST_IDS: usize = 10_000;

/// A counting semaphore whose permits return by themselves if their process dies: Redisson's
/// `RPermitExpirableSemaphore`.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let slots = client.expirable_semaphore("slots");
/// slots.try_set_permits(3)?; // `false` if a number, perhaps another one, is set
/// {
///     let _permit = slots.acquire()?; // one of three, among all processes
/// }
/// let permit = slots.acquire()?;
/// slots.release_id(permit.id())?; // any other process could do this, too
/// assert!(!permit.is_valid());
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Use this kind unless you share the name with Redisson's plain `RSemaphore`, which is
/// [`Semaphore`](crate::Semaphore). The two kinds use the same keys and channel, and cannot be mixed under one name.
///
/// **Crashes.** Each permit has a lease (30 s unless set), which is renewed until its [`ExpirablePermit`] is dropped.
/// If its process dies, is stopped, or cannot reach Redis, others can get the permit one lease later, by the server's clock;
/// Redisson's clients go by their own clocks. A holder that was only stopped finds [`is_valid`](ExpirablePermit::is_valid)
/// false when it continues.
///
/// **The number of permits** is first set with [`try_set_permits`](Self::try_set_permits); if it was set before, that call
/// changes nothing. Until it is set, no call gets a permit, and a *warn* in the log says so, once.
/// [`set_permits`](Self::set_permits) changes the number. A reduction takes no permit away: it lowers the available number,
/// which can be negative until enough permits have returned.
///
/// The number is kept in one Redis key. If that key is deleted or evicted, no number is set: no call gets a permit, and a
/// returned permit does not bring the number back. Set the number again. If permits are still taken, this is the meaning of
/// `n`:
///
/// - [`try_set_permits(n)`](Self::try_set_permits) and [`set_permits(n)`](Self::set_permits): `n` permits in all, the taken
///   ones included.
/// - [`add_permits(n)`](Self::add_permits): `n` permits are available, besides the taken ones.
///
/// **Ids.** Each permit has an id of 32 hexadecimal digits. Any process that knows the id, in any language, can
/// release the permit with [`release_id`](Self::release_id); the holder is then notified of the loss
/// ([`LossReason::Forced`]). [`Client::inspect`](crate::Client::inspect) lists the ids of taken permits, but not who has
/// them: log [`id`](ExpirablePermit::id). Permits taken by Java clients are counted, waited for and released likewise.
///
/// **Order.** Threads of one process are served first come, first served, so a thread that wants many permits is not
/// overtaken forever. [`try_acquire`](Self::try_acquire) does not overtake waiting threads either. Among processes,
/// the first to ask gets what is available.
///
/// **Panics** drop the permit, which releases it; there is no poisoning. A thread may take several permits. If it waits for
/// more than there are in all, it waits until permits are added.
#[derive(Clone)]
pub struct ExpirableSemaphore {
    inner: LockSpec,
    /// An entry outside the registry, kept for the protocol in it. The registered entry, in which threads wait, is dropped
    /// when idle.
    entry: OnceLock<Arc<Entry>>,
}

/// `Hold` keeps its reports to the observer by thread number. A permit belongs to no thread, so its report has this number.
const NO_THREAD: u64 = 0;

/// A permit of an [`ExpirableSemaphore`], released when dropped, also by a panic.
///
/// The permit is renewed every third of the client's lease, unless the handle has a
/// [`fixed_lease`](ExpirableSemaphore::fixed_lease) or [`update_lease`](Self::update_lease) was called. A permit may
/// be sent to other threads, and shared among them.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let permit = client.expirable_semaphore("slots").acquire()?;
/// std::thread::spawn(move || permit.release()); // waits for Redis; dropping does not
/// # Ok::<(), redlatch::Error>(())
/// ```
#[must_use = "if unused the permit is released immediately; bind it, `let _permit = …`, since `let _ = …` releases it at once"]
pub struct ExpirablePermit {
    semaphore: LockSpec,
    hold: Arc<Hold>,
    /// The shortest lease among the requests whose replies are missing: Redis may still apply it. `update_lease` keeps this
    /// mutex locked during its round trip, so that changes are sent one after another. No other method takes the mutex, and
    /// `update_lease` waits for it with a time limit.
    unconfirmed_lease: Mutex<Option<Duration>>,
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
    /// Blocks for one round trip if a permit is available, otherwise without limit until one is released or expires.
    /// While Redis does not answer, blocks at most for the client's command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _permit = client.expirable_semaphore("slots").acquire()?; // renewed until dropped
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis did not answer within the command timeout, or rejected the command. A permit that it
    ///   may have granted is released.
    /// - [`Error::WrongType`]: the keys hold something else.
    /// - [`Error::Cancelled`]: the handle's token was cancelled.
    /// - [`Error::NotReplicated`], with [`Config::replica_ack`](crate::Config::replica_ack), and [`Error::Spawn`], if the
    ///   system starts no thread.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`] and [`Error::InvalidSetting`], before anything is sent.
    pub fn acquire(&self) -> Result<ExpirablePermit> {
        one(self.endlessly(1)?).ok_or_else(|| self.inner.stopped())
    }

    /// Tries once; `Ok(None)` if no permit is available, or another thread of this process is waiting.
    ///
    /// Blocks for one round trip, or not at all if another thread of this process is waiting. If this process has just had
    /// permits, one after the other, for a whole tenure ([`Config::tenure`](crate::Config::tenure), 5 ms unless set), the
    /// call lets other processes go first. That takes longer (see [`Handle::try_lock`](crate::Handle::try_lock)). Blocks
    /// at most for the command timeout.
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
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::Once)?.and_then(one))
    }

    /// Waits up to `wait` for a permit; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget, connecting and round trips included. Zero is one attempt as by
    /// [`try_acquire`](Self::try_acquire). The call does not wait for a later reply; a permit that such a reply grants is
    /// released.
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
    /// As [`acquire`](Self::acquire); [`Error::Redis`] also if Redis is known to be unreachable when the time is over;
    /// [`Error::Late`] with [`late_is_error`](Self::late_is_error).
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
    /// Each is a permit of its own, with its own id and lease. If `n` is more than the semaphore has in all, the call
    /// waits until permits are added.
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
    /// As [`acquire`](Self::acquire), and [`Error::InvalidSetting`] if `n` is zero or more than 1,000.
    pub fn acquire_many(&self, n: u32) -> Result<Vec<ExpirablePermit>> {
        self.endlessly(n)
    }

    /// Tries once to take `n` permits, all or none; otherwise as [`try_acquire`](Self::try_acquire).
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
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, n: u32) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::Once)
    }

    /// Waits up to `wait` for `n` permits at once; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget. Zero is one attempt as by [`try_acquire_many`](Self::try_acquire_many).
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

    /// Sets how many permits there are, once; if a number is set already, even another one, nothing changes.
    ///
    /// Returns whether the number was set. To change the number later, call [`set_permits`](Self::set_permits).
    /// Blocks for one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// if !slots.try_set_permits(3)? && slots.permits()? != 3 {
    ///     println!("another process has set a different number");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// If the number was deleted while permits were taken, these are among the `n`. A request that the client resends after
    /// a lost reply counts once, and returns the first answer.
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis did not answer within the command timeout; then it is unknown whether the number was
    ///   set.
    /// - [`Error::InvalidSetting`]: `n` is more than [`i32::MAX`], which is all that Java clients can read.
    /// - [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn try_set_permits(&self, n: u32) -> Result<bool> {
        readable(n)?;
        self.change(PermitChange::TrySet(n))
    }

    /// Sets how many permits there are, whatever was set before.
    ///
    /// Blocks for one round trip, at most for the command timeout. No holder loses its permit: if more than `n` are
    /// taken, the available number is negative until enough have returned.
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
        self.change(PermitChange::Set(n)).map(drop)
    }

    /// Adds `n` available permits, or removes some if `n` is negative. If no number is set, `n` permits become available.
    /// Permits that are still taken do not count towards `n`.
    ///
    /// Blocks for one round trip, at most for the command timeout. If the client resends the request after a lost reply, it
    /// counts once.
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
    pub fn add_permits(&self, n: i64) -> Result<()> {
        if i32::try_from(n).is_err() {
            return Err(Error::setting(format!(
                "{n} permits are too many; from -2147483648 to 2147483647 are possible"
            )));
        }
        self.change(PermitChange::Add(n)).map(drop)
    }

    /// Deletes the semaphore with the permits that are taken; `false` if there is none.
    ///
    /// Holders learn of the loss as after [`release_id`](Self::release_id). All threads that want a permit wait until a
    /// number is set again. Blocks for one round trip, at most for the command timeout. A request that the client resends
    /// after a lost reply counts once, so it deletes no semaphore that was created since.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.expirable_semaphore("slots").delete()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id); after [`Error::Redis`] it is unknown whether the semaphore was deleted.
    pub fn delete(&self) -> Result<bool> {
        let session = self.inner.session();
        // The list is read before the request is sent: a permit granted after the delete is not lost, and must not be in
        // the list.
        let taken = session.permits.of(self.entry()?.protocol.key());
        let is_deleted = self.change(PermitChange::Delete)?;
        for hold in taken.iter().filter(|_| is_deleted) {
            session.lose(hold, LossReason::Forced);
        }
        Ok(is_deleted)
    }

    /// Returns how many permits are available; negative after a reduction, zero if no number is set.
    ///
    /// Blocks for one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} available", client.expirable_semaphore("slots").available_permits()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`], [`Error::InvalidSetting`].
    pub fn available_permits(&self) -> Result<i64> {
        Ok(self.state()?[0])
    }

    /// Returns how many permits are taken, in all processes.
    ///
    /// Blocks for one round trip, at most for the command timeout.
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

    /// Returns how many permits there are in all, available or taken; zero if no number is set, even if permits are taken.
    ///
    /// Blocks for one round trip, at most for the command timeout.
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

    /// Releases the permit with this id, whichever client acquired it; `false` if no permit with this id is taken.
    ///
    /// Blocks for one round trip, at most for the command timeout. A request that the client resends after a lost reply
    /// returns the first answer.
    ///
    /// The holder learns of the loss ([`LossReason::Forced`]):
    ///
    /// - at once, if the permit was acquired through this client;
    /// - otherwise at the next renewal;
    /// - if the permit is not renewed, at its release, or as [`LossReason::Expired`] when the lease ends.
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
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`], [`Error::InvalidSetting`].
    pub fn release_id(&self, id: impl AsRef<str>) -> Result<bool> {
        let released = self.release_ids(&[id])?;
        Ok(released.first().copied().unwrap_or_default())
    }

    /// Releases the permits with these ids, whichever clients acquired them; returns for each whether it was taken.
    ///
    /// Ids that are not taken do not keep the others from being released. At most 10,000. Blocks for one round trip
    /// per 1,000 ids, each at most for the command timeout.
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
    /// As [`release_id`](Self::release_id); [`Error::InvalidSetting`] also for more than 10,000 ids, before anything is
    /// sent. After other errors some permits may have been released.
    ///
    /// Redisson instead releases all or none, and fails if one had expired.
    pub fn release_ids(&self, ids: &[impl AsRef<str>]) -> Result<Vec<bool>> {
        let possible = self.parse(ids, MOST_IDS)?;
        let sent: Vec<PermitId> = possible.iter().copied().flatten().collect();
        let mut released = Vec::with_capacity(sent.len());
        for ids in sent.chunks(MOST) {
            released.extend(self.release_some(ids, false)?);
        }
        let mut released = released.into_iter();
        let was_released = |id: &Option<PermitId>| id.is_some() && released.next() == Some(true);
        Ok(possible.iter().map(was_released).collect())
    }

    /// Releases the permits with these ids, whichever clients acquired them; if any is not taken, none is released: `false`.
    ///
    /// At most 1,000. Holders are notified as by [`release_id`](Self::release_id). Blocks for one round trip, at most
    /// for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let permits = slots.acquire_many(2)?;
    /// let ids: Vec<&str> = permits.iter().map(|permit| permit.id()).collect();
    /// assert!(slots.release_ids_or_none(&ids)?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id); [`Error::InvalidSetting`] also for more than 1,000 ids, before anything is sent.
    ///
    /// Redisson's counterpart: `release` and `tryRelease` with several ids.
    pub fn release_ids_or_none(&self, ids: &[impl AsRef<str>]) -> Result<bool> {
        let possible: Option<Vec<PermitId>> = self.parse(ids, MOST)?.into_iter().collect();
        Ok(match possible {
            Some(ids) if ids.is_empty() => true,
            Some(ids) => self.release_some(&ids, true)?.contains(&true),
            None => false,
        })
    }

    /// `None` for a malformed id, which no permit has.
    fn parse(&self, ids: &[impl AsRef<str>], most: usize) -> Result<Vec<Option<PermitId>>> {
        let count = ids.len();
        if count > most {
            return Err(Error::setting(format!(
                "{count} ids; at most {most} are possible at once"
            )));
        }
        self.entry()?;
        self.inner.session().check_open()?;
        Ok(ids.iter().map(|id| PermitId::parse(id.as_ref())).collect())
    }

    fn release_some(&self, ids: &[PermitId], all_or_none: bool) -> Result<Vec<bool>> {
        let (session, protocol) = (self.inner.session(), &self.entry()?.protocol);
        let make = |of: &_, keys: &_| permits::release_ids(of, keys, ids, all_or_none);
        let read = |reply| permits::read_released(reply, ids.len());
        let released = self.inner.ask_once(protocol, FORGET, make, read)?;
        for (id, _) in std::iter::zip(ids, &released).filter(|(_, done)| **done) {
            if let Some(hold) = session.permits.get(*id)
                && hold.entry().protocol.key() == protocol.key()
            {
                session.lose(&hold, LossReason::Forced);
            }
        }
        Ok(released)
    }

    /// Returns how long Redis keeps the permit with this id unless it is renewed; `None` if it is not taken.
    ///
    /// Blocks for one round trip, at most for the command timeout. [`Duration::MAX`] for a permit that never expires,
    /// which only Java clients take.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let permit = slots.acquire()?;
    /// println!("ends in {:?}", slots.remaining_lease_of(permit.id())?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id).
    pub fn remaining_lease_of(&self, id: impl AsRef<str>) -> Result<Option<Duration>> {
        let [Some(id)] = self.parse(&[id], 1)?[..] else {
            return Ok(None);
        };
        let request = permits::lease_of(&self.entry()?.protocol, id);
        Ok(match self.inner.ask(request, script::integer)? {
            -1 => Some(Duration::MAX),
            ms => u64::try_from(ms).ok().map(Duration::from_millis),
        })
    }

    /// Moves the end of the permit with this id to `lease` from now, even if that is sooner; `false` if it is not
    /// taken.
    ///
    /// From 10 ms to 100 years. Blocks for one round trip, at most for the command timeout. Use this for permits that no
    /// process renews, such as those of [`detach_as_id`](ExpirablePermit::detach_as_id). If a process has the
    /// [`ExpirablePermit`], call its [`update_lease`](ExpirablePermit::update_lease) there instead, since the holder does
    /// not learn of a change made here:
    ///
    /// - The holder's `is_valid` still goes by the old end.
    /// - A later end stays, even beyond [`max_hold`](Self::max_hold): the permit is taken until then, or until it is
    ///   released.
    /// - A sooner end lasts only until the next renewal, which sets the end to one lease from then. If the sooner end
    ///   comes first, or the permit is not renewed, others can get it while the holder's `is_valid` is still true.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let id = slots.acquire()?.detach_as_id(std::time::Duration::from_secs(60))?;
    /// slots.update_lease_of(&id, std::time::Duration::from_secs(300))?; // perhaps in another process
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id); [`Error::InvalidSetting`] also if the lease is out of range.
    pub fn update_lease_of(&self, id: impl AsRef<str>, lease: Duration) -> Result<bool> {
        config::check_lease("lease", lease)?;
        let [Some(id)] = self.parse(&[id], 1)?[..] else {
            return Ok(false);
        };
        let make = |of: &_, keys: &_| permits::update(of, keys, id, lease);
        let protocol = &self.entry()?.protocol;
        let updated = self
            .inner
            .ask_once(protocol, FORGET, make, script::integer)?;
        Ok(updated == 1)
    }

    /// Returns a handle whose permits have this lease and are not renewed: Redisson's `leaseTime`.
    ///
    /// When the lease is over, the permit is lost ([`LossReason::Expired`]) and available to others. From 10 ms to
    /// 100 years; for any other value the methods that acquire return [`Error::InvalidSetting`]. Default: permits are renewed
    /// until they are dropped.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots").fixed_lease(std::time::Duration::from_secs(60));
    /// let _permit = slots.acquire()?; // for a minute at most
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.inner.lease = Some(lease);
        self
    }

    /// Returns a handle whose permits are renewed for at most `max_hold` after they were granted.
    ///
    /// This limits jobs that hang and permits that are leaked. After `max_hold`, renewal stops, the permit is lost
    /// ([`LossReason::MaxHold`]), and others can get it once it is dropped, or within one lease of the client
    /// ([`update_lease_of`](Self::update_lease_of) may have set a later end). `Duration::MAX` means no limit, which is the
    /// default. For zero, and together with a fixed lease, the methods that acquire return [`Error::InvalidSetting`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let an_hour = std::time::Duration::from_secs(3600);
    /// let _permit = client.expirable_semaphore("slots").max_hold(an_hour).acquire()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.inner.max_hold = time::finite(max_hold);
        self
    }

    /// Returns a handle whose calls that acquire end with [`Error::Cancelled`] once `token` is cancelled.
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

    /// Returns a handle whose calls, like those of its permits, wait this long for Redis to answer, instead of the
    /// client's [`command_timeout`](crate::Config::command_timeout).
    ///
    /// From 10 ms to an hour; for any other value the calls return [`Error::InvalidSetting`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let a_second = std::time::Duration::from_secs(1);
    /// let slots = client.expirable_semaphore("slots").command_timeout(a_second);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.inner.set_command_timeout(timeout);
        self
    }

    /// Returns a handle whose calls with a time limit return [`Error::Late`] if Redis was too slow to reply.
    ///
    /// By default, such a call returns `Ok(None)` in two cases: no permit was available when Redis last replied, or Redis
    /// has not replied at all. With this setting, the second case is [`Error::Late`].
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

    /// Changes how many permits there are. However often the request is sent, it counts once.
    fn change(&self, change: PermitChange) -> Result<bool> {
        let make = |of: &_, keys: &_| permits::change(of, keys, change);
        Ok(self.inner.count_once(FORGET, make)? == 1)
    }

    /// Available, acquired, and both together.
    fn state(&self) -> Result<[i64; 3]> {
        let request = permits::state(&self.entry()?.protocol);
        self.inner.ask(request, permits::read_state)
    }

    fn endlessly(&self, n: u32) -> Result<Vec<ExpirablePermit>> {
        let taken = self.take(n, WaitMode::FOREVER)?;
        // A wait without a limit ends with permits or an error.
        taken.ok_or_else(|| self.inner.stopped())
    }

    fn take(&self, n: u32, wait: WaitMode) -> Result<Option<Vec<ExpirablePermit>>> {
        if !(1..=MOST).contains(&usize::try_from(n).unwrap_or(usize::MAX)) {
            return Err(Error::setting(format!(
                "{n} permits at once are not possible; from 1 to {MOST} are"
            )));
        }
        let entry = self.entry()?;
        self.granted(|| leased_permits::take(&self.inner, entry, n, wait))
    }

    /// Takes over a permit that another client has detached.
    pub(super) fn adopt(&self, id: &str, until: Instant) -> Result<ExpirablePermit> {
        let id = PermitId::parse(id).ok_or_else(|| {
            Error::setting(format!(
                "the ticket's id {id:?} has no 32 hexadecimal digits"
            ))
        })?;
        let entry = self.entry()?;
        let adopted = self.granted(|| leased_permits::adopt(&self.inner, entry, id, until))?;
        adopted.and_then(one).ok_or(Error::Closed)
    }

    /// Acquires permits, tells the observer, and makes guards of what was granted.
    fn granted(
        &self,
        acquire: impl FnOnce() -> Result<Outcome<Vec<Arc<Hold>>>>,
    ) -> Result<Option<Vec<ExpirablePermit>>> {
        let observe = |holds: &mut Vec<Arc<Hold>>, began| {
            for hold in holds {
                hold.observe(NO_THREAD, self.inner.report_granted(began, false));
            }
        };
        let Some(holds) = self.inner.observed(acquire, observe)? else {
            return Ok(None);
        };
        let permit = |hold| ExpirablePermit {
            semaphore: self.inner.clone(),
            hold,
            unconfirmed_lease: Mutex::new(None),
            lost: LossChannel::default(),
            released: false,
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
        .map_err(|_| Error::setting(format!("{n} permits; {} are possible", i32::MAX)))
}

impl ExpirablePermit {
    fn session(&self) -> &Arc<Session> {
        self.semaphore.session()
    }

    fn run<T: FromRedisValue>(&self, work: &Work<'_>) -> Result<T> {
        let until = self.semaphore.until();
        self.session().run(&self.hold, work, until)
    }

    /// Releases the permit and waits for Redis to confirm it.
    ///
    /// Blocks for one round trip, at most for the command timeout. Dropping releases the permit too, without waiting.
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
    /// [`Error::Lost`] if the permit ended earlier, by [`Client::close`](crate::Client::close) too. [`Error::Redis`] if
    /// Redis did not confirm: the release is sent again until Redis confirms it, and the lease ends the permit in any case.
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        if self.session().is_copy() {
            return Err(Error::Closed);
        }
        let until = self.semaphore.until();
        let in_time = self.hold.valid_until() > Instant::now();
        let call = self.let_go()?;
        let settled = (self.session()).await_release(self.name(), &call, in_time, until);
        let Some(reason) = settled.map_err(Error::after_work)? else {
            return Ok(());
        };
        if let Some(observed) = self.hold.unobserve(NO_THREAD) {
            observed.lost(&self.hold.loss_for(reason));
        }
        Err(self.hold.lost_error(reason))
    }

    /// Returns whether the lease of the permit runs and no loss is known, by the clock of this process. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// while permit.is_valid() {
    ///     // the next piece of the work
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The answer can be outdated as soon as it is returned; where a late write does harm, use [`query`](Self::query). For
    /// suspended machines see [`Guard::is_valid`](crate::Guard::is_valid).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid(Instant::now()) && !self.session().is_copy()
    }

    /// Returns when the permit may end unless it is renewed. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// let left = permit.valid_until().saturating_duration_since(std::time::Instant::now());
    /// println!("certain for {left:?}");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// As [`Guard::valid_until`](crate::Guard::valid_until); a confirmed change of the lease counts like a renewal.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    /// Returns the channel that reports the loss of this permit, at [`valid_until`](Self::valid_until) or earlier. No I/O.
    ///
    /// The channel receives at most one [`Loss`](crate::Loss), and nothing when the permit is released. [`LossReceiver`]
    /// says how to wait for it on another thread, or together with other messages.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// if let Ok(loss) = permit.lost().try_recv() {
    ///     println!("{loss}");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &LossReceiver {
        self.lost.of(|listener| {
            if !self.session().is_copy() {
                self.hold.listen(listener());
            }
        })
    }

    /// Runs a Redis command only if this permit is still in force; Redis checks that in the same step.
    ///
    /// So a write sent in this way cannot come too late, however long this process was stopped or cut off. Once the
    /// lease is over, the command is not executed and the call returns [`Error::Lost`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// use redlatch::redis;
    ///
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// // does nothing if the lease is over by now
    /// permit.query::<()>(redis::cmd("INCR").arg("{slots}:done"))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Blocks for one round trip, at most for the command timeout. If the reply is lost, the command is not sent
    /// again: the call returns [`Error::Redis`], and [`may_have_run`](Error::may_have_run) is true.
    ///
    /// Rights, keys, commands and replies are as with the [`query`](crate::Guard::query) of a lock. In a cluster the
    /// keys must be in the slot of the semaphore's key, as `{slots}:done` is in that of `slots`.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the permit is over, and nothing was executed. The permit reports the loss too.
    /// - [`Error::Redis`]: Redis rejected the command, did not answer, or the reply does not fit `T` or the limits.
    ///   [`may_have_run`](Error::may_have_run) is true if the reply was lost, and also if it does not fit: that command
    ///   has run.
    /// - [`Error::InvalidCommand`], before anything is sent: a key in another slot of a cluster, no command name,
    ///   more than 7,900 arguments, a `cursor_arg`, or a command about a connection, such as `SELECT`.
    /// - [`Error::Closed`]: the client is closed.
    pub fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.run(&|guarded| guarded.command(command))
    }

    /// Runs a script only if this permit is still in force; Redis checks that in the same step.
    ///
    /// Once the lease is over, nothing is executed. Limits, blocking and lost replies are as with
    /// [`query`](Self::query).
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
    /// `keys` and `args` may be single values, slices, arrays by reference, or tuples; pass `None::<&str>` for none. Pass
    /// every key that the script uses in `keys`: only these are checked before the script is sent.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query). If the script fails midway, what it did before stays done.
    /// [`may_have_run`](Error::may_have_run) is still false, since Redis replied with the script's error.
    pub fn invoke<T: FromRedisValue>(
        &self,
        script: &GuardedScript,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> Result<T> {
        self.run(&script.work(keys, args))
    }

    /// Moves the permit's end to `lease` from now, even if that is sooner. The permit is no longer renewed, and
    /// [`max_hold`](ExpirableSemaphore::max_hold) no longer limits it.
    ///
    /// From 10 ms to 100 years. Blocks for one round trip, at most for the command timeout; up to twice as long if
    /// another thread is changing the lease too.
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
    /// - [`Error::Lost`]: the permit ended earlier.
    /// - [`Error::Redis`]: Redis rejected the request or did not answer. Renewal stops all the same. The permit counts as
    ///   valid until the earlier of two ends: the previous one and the one that was asked for.
    /// - [`Error::InvalidSetting`]: the lease is out of range.
    /// - [`Error::Closed`]: the client is closed.
    ///
    /// Redis may still execute an unanswered request later, even after a later call. So if a later call of this method
    /// asks for a longer lease, the permit counts as valid only for the lease of the unanswered request, counted from the
    /// later call.
    pub fn update_lease(&self, lease: Duration) -> Result<()> {
        let doing = "changing the lease of a permit";
        config::check_lease("lease", lease)?;
        let (session, hold) = (self.session(), &self.hold);
        if session.is_copy() {
            return Err(Error::Closed);
        }
        let timeout = self.semaphore.command_timeout;
        let until = Instant::now() + timeout;
        let Some(mut unconfirmed) = self.unconfirmed_lease.try_lock_until(until) else {
            let err = socket::timed_out("another thread is changing it, and redis does not answer");
            return Err(self.session().error(doing, &self.semaphore.name, err));
        };
        hold.check_not_lost()?;
        session.check_open()?;
        let (now, was_valid_until) = (Instant::now(), hold.valid_until());
        hold.change(|validity| validity.announce_fixed(now, lease));
        session.watchdog.arm(hold, time::nanos(hold.valid_until()));
        let Some(id) = PermitId::parse(&hold.owner()) else {
            return Err(Error::setting("a permit without an id".into()));
        };
        let protocol = &hold.entry().protocol;
        let keys = session.request_keys(protocol.key(), FORGET, timeout);
        let request = permits::update(protocol, &keys, id, lease);
        let spec = &self.semaphore;
        let answer = spec.send_once(protocol.key(), &keys, &request, now + timeout);
        if !matches!(answer, Ok(_) | Err(Fault::Refused(_))) {
            // Redis may still execute it, even after later updates with longer leases.
            *unconfirmed = Some(unconfirmed.map_or(lease, |other| other.min(lease)));
        }
        let answer = answer.map_err(|fault| self.semaphore.error(doing, fault))?;
        let renewed = script::renewed(&answer.value).map_err(|unexpected| {
            self.session()
                .error(doing, &self.semaphore.name, unexpected)
        })?;
        let outcome = renewed.map(|()| {
            let certain = unconfirmed.map_or(lease, |other| other.min(lease));
            // The lease counts from `now`, before the request was first sent: Redis applies the request once, so a repetition
            // does not start the lease again.
            hold.change(|validity| validity.replace(now, certain));
            session.watchdog.arm(hold, time::nanos(hold.valid_until()));
        });
        // `lose` calls the observer, which may wait for another thread that changes this lease. So the mutex is unlocked
        // first.
        drop(unconfirmed);
        if let Err(why) = outcome {
            session.lose(hold, why.or_expired(Instant::now() < was_valid_until));
        }
        hold.check_not_lost().inspect_err(|_| {
            if hold.may_still_be_held() {
                // The permit was lost while Redis extended its lease, so Redis may still keep it.
                session.give_back(hold);
            }
        })
    }

    /// Leaves the permit in Redis for `lease`, for another client to adopt: see [`Ticket`].
    ///
    /// The permit is no longer renewed, and comes back when the lease is over unless it is adopted before. Blocks for
    /// one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.expirable_semaphore("slots").acquire()?;
    /// let ticket = permit.detach(std::time::Duration::from_secs(60))?;
    /// // in another process
    /// let permit: redlatch::ExpirablePermit = client.adopt(&ticket)?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`update_lease`](Self::update_lease). After an error the permit is released.
    pub fn detach(self, lease: Duration) -> Result<Ticket> {
        let name = self.name().to_owned();
        let id = self.detach_as_id(lease)?;
        Ok(Ticket::new(
            <Self as sealed::SealedAdopt>::TICKET,
            &id,
            &name,
        ))
    }

    /// Leaves the permit in Redis for `lease` and returns its id, which outlives this process. If another process is to go
    /// on with the permit, use [`detach`](Self::detach).
    ///
    /// The permit is no longer renewed, and comes back when the lease is over. Before that, any process that has the id
    /// can [release](ExpirableSemaphore::release_id) the permit or [change its
    /// lease](ExpirableSemaphore::update_lease_of), in Java too. Blocks for one round trip, at most for the command
    /// timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let slots = client.expirable_semaphore("slots");
    /// let id = slots.acquire()?.detach_as_id(std::time::Duration::from_secs(3600))?;
    /// slots.release_id(&id)?; // within an hour, perhaps in another process
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`detach`](Self::detach).
    #[must_use = "without the id nobody can release the permit before its lease is over"]
    pub fn detach_as_id(mut self, lease: Duration) -> Result<String> {
        self.update_lease(lease).map_err(Error::after_work)?;
        if !self.session().watchdog.end(&self.hold) {
            return Err(self.hold.lost_or(LossReason::Expired));
        }
        self.released = true;
        Ok(self.id().to_owned())
    }

    /// Returns the permit's id, 32 hexadecimal digits: for [`ExpirableSemaphore::release_id`] in any process, and for
    /// Java clients. No I/O.
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
        if !session.watchdog.end(hold) {
            if hold.may_still_be_held() {
                session.give_back(hold);
            }
            return Err(hold.lost_or(LossReason::Expired));
        }
        Ok(leased_permits::release(&self.semaphore, hold))
    }
}

impl sealed::SealedAdopt for ExpirablePermit {
    const TICKET: &'static str = "permits";

    fn adopt(spec: LockSpec, from: &str) -> Result<Self> {
        let until = spec.until();
        ExpirableSemaphore::of(spec).adopt(from, until)
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
            // Debug and not a warning: the loss was reported when it was found, and a permit that is gone delays nobody.
            report!(Debug, "dropping a permit: {err}");
        }
        if let Some(observed) = self.hold.unobserve(NO_THREAD) {
            observed.released();
        }
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
