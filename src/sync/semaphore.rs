//! The counting semaphore.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::give_permits::give;
use crate::acquire::plain_permits;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::config;
use crate::error::{Error, Loss, Result};
use crate::hold::Entry;
use crate::local::waiter::CancelToken;
use crate::observer::Observed;
use crate::protocol::idempotency::FORGET;
use crate::protocol::semaphore;
use crate::session::shared::SharedSession;

/// A counting semaphore whose permits **stay taken if their process dies**: prefer
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore), unless you share it with Redisson's `RSemaphore`.
///
/// ```no_run
/// use std::time::Duration;
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let uploads = client.semaphore("uploads");
/// uploads.try_set_permits(5)?; // `false` if a number, perhaps another one, is set
/// {
///     let _permit = uploads.acquire()?; // one of five, among all processes
/// }
/// if let Some(permits) = uploads.try_acquire_many_for(3, Duration::from_secs(1))? {
///     permits.release()?; // or drop it; this waits for Redis
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A new semaphore has no permits: no call gets one, and a *warn* in the log says so, once. The first process that
/// calls [`try_set_permits`](Self::try_set_permits) sets the number. A thread that wants more permits than are
/// available waits until others return some.
///
/// **No owners.** Redis keeps one number: how many permits are available. Any thread of any process may return
/// permits that another has taken. Since Redis does not know who has a permit, the permits of a process that dies
/// stay taken until [`add_permits`](Self::add_permits) adds them again.
///
/// **Order.** Threads of one process are served first come, first served. Only the first asks Redis, so a request for
/// many permits is not starved by later requests for few. A permit returned within the tenure (5 ms,
/// [`Config::tenure`](crate::Config::tenure)) after Redis granted it is passed to the next waiting thread of the
/// process, without a round trip. After the tenure it is returned to Redis, and other processes get their turn. Among
/// processes, the first to ask after a release gets what is available, so a request for many may wait for as long as
/// others want few. A release notifies by message; if a message is lost, waiters notice the release by asking every 1
/// to 5 s.
///
/// **Faults.** If a reply is lost, the client sends the request again, and Redis applies it once. For this, Redis remembers
/// each request in a key such as `{mail}:request:<client id>:<number>` for a semaphore `mail`. Later requests of the client
/// delete these keys. The last few expire after two minutes or four command timeouts, whichever is longer.
///
/// If a permit is dropped while Redis is unreachable, or accepts no writes, its return is retried for a minute, or for two
/// command timeouts if that is longer. After that the permit stays taken, and
/// [`Stats::releases_failed`](crate::Stats::releases_failed) counts it.
///
/// **Time to live.** [`try_set_permits_with_ttl`](Self::try_set_permits_with_ttl) sets the time to live of the semaphore's
/// key; no other method changes it. [`add_permits`](Self::add_permits) creates a semaphore that does not exist, as in
/// Redisson. Returning a permit does not. Careful: if the semaphore was deleted or has expired and was created again, a
/// permit of the old one adds to the number of the new one when it is returned. For a limit per hour,
/// [`forget`](SemaphorePermit::forget) each permit, as in the example of `try_set_permits_with_ttl`.
#[derive(Clone)]
pub struct Semaphore {
    handle: LockSpec,
}

/// Permits of a [`Semaphore`], returned when dropped, also by a panic.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let permit = client.semaphore("uploads").acquire()?;
/// std::thread::spawn(move || drop(permit)).join().expect("it does not panic");
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Dropping sends the permits back without waiting for Redis; failures are retried, logged and counted.
/// [`release`](Self::release) waits and reports failures, and [`forget`](Self::forget) keeps the permits taken. A permit
/// belongs to no thread: any thread may return it. Closing the client returns all its permits, if Redis acknowledges that
/// [in time](crate::Client::close).
///
/// ```
/// fn check<T: Send + Sync>() {}
/// check::<redlatch::SemaphorePermit>();
/// ```
#[must_use = "if unused the permits are given back immediately; bind them, `let _permit = …`, since `let _ = …` gives them back at once"]
pub struct SemaphorePermit {
    shared: Arc<SharedSession>,
    entry: Arc<Entry>,
    permits: u32,
    /// When Redis granted the permits to this process.
    since: Instant,
    /// How long Redis may take to answer.
    command_timeout: Duration,
    /// Whether the permits have been released or forgotten.
    done: bool,
    observed: Option<Box<Observed>>,
}

impl Semaphore {
    pub(crate) fn new(handle: LockSpec) -> Self {
        Self { handle }
    }

    /// Waits for a permit.
    ///
    /// Blocks without limit while no permit is available, and at most for the client's command timeout (3 s unless
    /// set) while Redis does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let _permit = client.semaphore("uploads").acquire()?; // returned when dropped
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis did not answer within the command timeout, or rejected the command. A permit that it
    ///   may have granted is returned.
    /// - [`Error::WrongType`]: the key holds something else.
    /// - [`Error::Cancelled`]: the handle's token was cancelled.
    /// - [`Error::NotReplicated`], with [`Config::replica_ack`](crate::Config::replica_ack), and [`Error::Spawn`], if the
    ///   system starts no thread.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`], and [`Error::InvalidSetting`] for zero permits or more than `i32::MAX`, before anything is
    ///   sent.
    pub fn acquire(&self) -> Result<SemaphorePermit> {
        self.acquire_many(1)
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
    /// match client.semaphore("uploads").try_acquire()? {
    ///     Some(_permit) => println!("uploading"),
    ///     None => println!("too many uploads"),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many(1)
    }

    /// Waits up to `wait` for a permit; `Ok(None)` if that was not long enough.
    ///
    /// `wait` is the whole budget, connecting and round trips included. Zero is one attempt as by
    /// [`try_acquire`](Self::try_acquire). The call does not wait for a later reply; a permit that such a reply grants is
    /// returned.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_secs(1);
    /// let Some(_permit) = client.semaphore("uploads").try_acquire_for(wait)? else {
    ///     return Ok(()); // too many uploads
    /// };
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Redis`] also if Redis is known to be unreachable when the time is over;
    /// [`Error::Late`] with [`late_is_error`](Self::late_is_error).
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_for(1, wait)
    }

    /// Waits until `instant` for a permit; otherwise as [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let permit = client.semaphore("uploads").try_acquire_until(deadline)?;
    /// println!("in time: {}", permit.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_until(&self, instant: Instant) -> Result<Option<SemaphorePermit>> {
        self.try_acquire_many_until(1, instant)
    }

    /// Waits for this many permits, all at once; otherwise as [`acquire`](Self::acquire).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permits = client.semaphore("uploads").acquire_many(3)?;
    /// assert_eq!(permits.permits(), 3);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_many(&self, permits: u32) -> Result<SemaphorePermit> {
        self.take(permits, WaitMode::FOREVER)?.ok_or(Error::Closed)
    }

    /// Tries once to take this many permits, all or none; otherwise as [`try_acquire`](Self::try_acquire).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if client.semaphore("uploads").try_acquire_many(3)?.is_none() {
    ///     println!("fewer than three are available");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<SemaphorePermit>> {
        self.take(permits, WaitMode::Once)
    }

    /// Waits up to `wait` for this many permits, all or none; otherwise as [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let wait = std::time::Duration::from_secs(1);
    /// let permits = client.semaphore("uploads").try_acquire_many_for(3, wait)?;
    /// println!("in time: {}", permits.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<SemaphorePermit>> {
        self.take(permits, WaitMode::span(wait))
    }

    /// Waits until `instant` for this many permits, all or none; otherwise as
    /// [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(1);
    /// let permits = client.semaphore("uploads").try_acquire_many_until(3, deadline)?;
    /// println!("in time: {}", permits.is_some());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for).
    pub fn try_acquire_many_until(
        &self,
        permits: u32,
        instant: Instant,
    ) -> Result<Option<SemaphorePermit>> {
        self.take(permits, WaitMode::moment(instant))
    }

    /// Creates the semaphore with this many permits; if it exists, nothing changes, even if it has another number.
    ///
    /// Returns whether the semaphore was created. To change the number of an existing semaphore, add the difference
    /// with [`add_permits`](Self::add_permits). Zero is allowed: permits may be added later. Blocks for one round
    /// trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let uploads = client.semaphore("uploads");
    /// if !uploads.try_set_permits(5)? {
    ///     println!("the number was set before, perhaps to another one than 5");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis rejected the command, or did not answer in time; then it is unknown whether the
    ///   semaphore was created.
    /// - [`Error::WrongType`]: the key holds something else.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`], and [`Error::InvalidSetting`] for more than `i32::MAX` permits, which Redisson could not
    ///   read, before anything is sent.
    pub fn try_set_permits(&self, permits: u32) -> Result<bool> {
        self.set(permits, Duration::ZERO)
    }

    /// Creates the semaphore with this many permits, for `ttl`; if it exists, nothing changes.
    ///
    /// Returns whether the semaphore was created. After `ttl` the semaphore is gone, whatever permits are taken, and
    /// the next call of this method creates it: a limit for each hour, for example. From 10 ms to 100 years. Otherwise
    /// as [`try_set_permits`](Self::try_set_permits).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let an_hour = std::time::Duration::from_secs(3600);
    /// let mails = client.semaphore("mails:user:7");
    /// mails.try_set_permits_with_ttl(100, an_hour)?;
    /// if let Some(permit) = mails.try_acquire()? {
    ///     permit.forget(); // one of this hour's hundred
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits). [`Error::InvalidSetting`] also if `ttl` is out of range.
    ///
    /// Redisson's counterpart: `trySetPermits` with a `ttl`.
    pub fn try_set_permits_with_ttl(&self, permits: u32, ttl: Duration) -> Result<bool> {
        config::check_lease("ttl", ttl)?;
        self.set(permits, ttl)
    }

    fn set(&self, permits: u32, ttl: Duration) -> Result<bool> {
        check_range(permits.into(), 0)?;
        let set = |of: &_, keys: &_| semaphore::set(of, keys, permits, ttl);
        Ok(self.handle.count_once(FORGET, set)? == 1)
    }

    /// Adds permits, or removes some if `permits` is negative; creates the semaphore if it does not exist. Zero does
    /// nothing.
    ///
    /// Blocks for one round trip, at most for the command timeout. Removed permits may be in use: then
    /// [`available_permits`](Self::available_permits) is negative until enough permits have been returned. The key
    /// keeps its time to live, which Redisson's `addPermits` drops.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.semaphore("uploads").add_permits(-2)?; // two less from now on
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits); [`Error::InvalidSetting`] for more than `i32::MAX` in either direction.
    pub fn add_permits(&self, permits: i64) -> Result<()> {
        check_range(permits, -i64::from(i32::MAX))?;
        if permits == 0 {
            return self.handle.unregistered_entry().map(drop);
        }
        let add = |of: &_, keys: &_| semaphore::add(of, keys, permits);
        self.handle.count_once(FORGET, add).map(drop)
    }

    /// Takes all available permits for good, and returns how many.
    ///
    /// Blocks for one round trip, at most for the command timeout. The key keeps its time to live, which Redisson's
    /// `drainPermits` drops.
    ///
    /// If the number is negative (after [`add_permits`](Self::add_permits) with a negative number), there is nothing to
    /// take. The call then returns the negative number and sets it to zero, as in Redisson. That cancels the rest of the
    /// reduction: at −2, the next two returned permits would not become available; after draining they do.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let taken = client.semaphore("uploads").drain_permits()?;
    /// println!("nobody else gets any of these {taken}");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn drain_permits(&self) -> Result<i64> {
        self.handle.count_once(FORGET, semaphore::drain)
    }

    /// Returns how many permits are available; zero if the semaphore does not exist.
    ///
    /// Blocks for one round trip, at most for the command timeout. Negative if permits were removed while in use.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} available", client.semaphore("uploads").available_permits()?); // a moment ago
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`], [`Error::InvalidSetting`].
    pub fn available_permits(&self) -> Result<i64> {
        let entry = self.handle.look()?;
        let request = semaphore::available(&entry.protocol);
        let permits = self.handle.ask(request, semaphore::read_available)?;
        permits.ok_or_else(|| Error::WrongType {
            name: self.name().to_owned(),
            found: Some("its key holds a string that is no number of permits".into()),
        })
    }

    /// Adds permits like [`add_permits`](Self::add_permits), but only if the semaphore exists; otherwise `false`.
    ///
    /// Blocks for one round trip, at most for the command timeout.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let uploads = client.semaphore("uploads");
    /// uploads.acquire()?.forget();
    /// if !uploads.add_permits_if_exists(1)? {
    ///     println!("the semaphore was deleted, or has expired");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`add_permits`](Self::add_permits); [`Error::InvalidSetting`] also for zero.
    pub fn add_permits_if_exists(&self, permits: u32) -> Result<bool> {
        check(permits)?;
        let add = |of: &_, keys: &_| semaphore::release(of, keys, permits.into());
        Ok(self.handle.count_once(FORGET, add)? >= 0)
    }

    /// Deletes the semaphore, whatever permits are taken; `false` if it does not exist.
    ///
    /// Permits that are returned later do not create it again; waiting threads wait until a process does. Blocks for
    /// one round trip, at most for the command timeout. A request that the client resends after a lost reply counts once, so
    /// it deletes no semaphore that was created since.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.semaphore("uploads").delete()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits); after [`Error::Redis`] it is unknown whether the semaphore
    /// was deleted.
    pub fn delete(&self) -> Result<bool> {
        Ok(self.handle.count_once(FORGET, semaphore::delete)? == 1)
    }

    /// Returns a handle whose calls that acquire end with [`Error::Cancelled`] once `token` is cancelled.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let uploads = client.semaphore("uploads").cancel_on(&token);
    /// token.cancel(); // normally by another thread, while this one waits
    /// assert!(matches!(uploads.acquire(), Err(redlatch::Error::Cancelled)));
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.handle.cancel = Some(token.clone());
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
    /// let uploads = client.semaphore("uploads").command_timeout(a_second);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.handle.set_command_timeout(timeout);
        self
    }

    /// Returns a handle whose calls with a time limit return [`Error::Late`] if Redis was too slow to reply.
    ///
    /// By default, such a call returns `Ok(None)` in two cases: no permit was available when Redis last replied, or Redis
    /// has not replied at all. With this setting, the second case is [`Error::Late`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let uploads = client.semaphore("uploads").late_is_error();
    /// match uploads.try_acquire_for(std::time::Duration::from_millis(50)) {
    ///     Err(redlatch::Error::Late { .. }) => println!("redis is slow"),
    ///     other => println!("acquired: {}", other?.is_some()),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn late_is_error(mut self) -> Self {
        self.handle.late_is_error = true;
        self
    }

    /// Returns the name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.semaphore("uploads").name(), "uploads");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    fn take(&self, permits: u32, wait: WaitMode) -> Result<Option<SemaphorePermit>> {
        check(permits)?;
        let entry = self.handle.entry()?;
        let take = || plain_permits::take(&self.handle, &entry, permits, wait);
        let mut observed = None;
        let taken = self.handle.observed(take, |(_, handed_over), began| {
            observed = Some(self.handle.report_granted(began, *handed_over));
        })?;
        Ok(taken.map(|(since, _)| SemaphorePermit {
            shared: Arc::clone(&self.handle.shared),
            entry,
            permits,
            since,
            command_timeout: self.handle.command_timeout,
            done: false,
            observed,
        }))
    }
}

impl SemaphorePermit {
    /// Gives back the permits and waits for Redis to confirm it.
    ///
    /// Blocks for one round trip, at most for the command timeout; not at all if the permits are passed to another
    /// thread of this process. Dropping gives them back too, without waiting.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let permit = client.semaphore("uploads").acquire()?;
    /// permit.release()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis rejected the release, or did not answer in time. The release is then retried as
    ///   after a drop.
    /// - [`Error::Lost`]: the semaphore no longer exists: it was deleted, or has expired.
    /// - [`Error::Closed`]: the client is closed; [closing](crate::Client::close) gives back the permits.
    pub fn release(mut self) -> Result<()> {
        let session = &self.shared.session;
        session.check_open()?;
        self.done = true;
        let Some(release) = give(session, &self.entry, self.permits, self.since) else {
            return Ok(());
        };
        let until = Instant::now() + self.command_timeout;
        // These permits have no lease that could have expired, so `in_time` is true.
        let settled = session.await_release(self.name(), &release, true, until);
        let Some(reason) = settled.map_err(Error::after_work)? else {
            return Ok(());
        };
        if let Some(observed) = self.observed.take() {
            observed.lost(&Loss {
                name: self.name().to_owned(),
                owner: String::new(),
                reason,
            });
        }
        Err(Error::lost(self.name(), reason))
    }

    /// Keeps the permits taken for good. No I/O.
    ///
    /// [`Semaphore::add_permits`] may return them later, in this process or another.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.semaphore("uploads").acquire()?.forget(); // one less for everybody
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn forget(mut self) {
        self.done = true;
        self.observed = None;
        if self.shared.session.is_copy() {
            return;
        }
        self.entry.lock().local_semaphore().forget(self.permits);
        self.shared.session.watchdog.housekeep_soon();
    }

    /// Returns how many permits this value holds. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.semaphore("uploads").acquire_many(3)?.permits(), 3);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns the semaphore's name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.semaphore("uploads").acquire()?.name(), "uploads");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.entry.name()
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        if !self.done && !self.shared.session.is_copy() {
            drop(give(
                &self.shared.session,
                &self.entry,
                self.permits,
                self.since,
            ));
        }
        if let Some(observed) = self
            .observed
            .as_ref()
            .filter(|_| !self.shared.session.is_copy())
        {
            observed.released();
        }
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Checks that this many permits can be requested.
fn check(permits: u32) -> Result<()> {
    check_range(permits.into(), 1)
}

fn check_range(permits: i64, least: i64) -> Result<()> {
    let most = i32::MAX.into();
    if (least..=most).contains(&permits) {
        return Ok(());
    }
    Err(Error::setting(format!(
        "{permits} permits; from {least} to {most} are possible at once"
    )))
}
