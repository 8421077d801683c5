//! The count-down latch.

use std::time::{Duration, Instant};

use crate::acquire;
use crate::acquire::latch::LatchWait;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::local::waiter::CancelToken;
use crate::protocol::latch::{self, LatchChange};
use crate::protocol::script::{self, LatchState};

/// How many keys of earlier, answered requests one request deletes: see
/// [`protocol::idempotency`](crate::protocol::idempotency).
const FORGET_ONE: usize = 1;

/// A latch on which threads wait until others, in any processes, have counted down to zero: Redisson's
/// `RCountDownLatch`.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let loaded = client.latch("import:7:loaded");
/// loaded.try_set_count(3)?; // by one of those who take part, before the others start
/// // in each of three workers
/// loaded.count_down()?;
/// // in each thread that waits for the workers
/// loaded.wait()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// **A latch that was never set is open**, and waiting returns at once. So call [`try_set_count`](Self::try_set_count)
/// before any thread waits or counts down. The last [`count_down`](Self::count_down) opens the latch, and all waiting
/// threads of all processes continue. Any thread may count down, any number of times.
///
/// **Crashes.** No hold or lease is involved, so a process that dies before counting down leaves the others waiting:
/// use [`wait_for`](Self::wait_for), and [`delete`](Self::delete) to open the latch. If Redis loses its data, the
/// latch is open.
///
/// **Waking.** One message wakes every process and all its waiting threads, each of which then asks Redis once.
/// Without a message a thread asks after a second, then at growing intervals up to 5 s. So a lost message or a deleted key
/// delays it by at most 5 s. If the server does not allow subscribing, threads only ask like that.
///
/// **Rounds.** A round lasts from setting a count until the latch opens. An open latch can be set again at once. A thread
/// waits for the end of the round in which it began to wait, and of no other. So the thread continues when that round has
/// ended, even if it wakes late and the next round has begun.
///
/// Redisson does not tell rounds apart. If Redisson clients both end a round and start the next one, a thread that wakes
/// late waits until the next round ends too.
///
/// **Counting once.** If the client sends a request again because a reply or a connection was lost, Redis applies it once.
/// For this, Redis keeps the result of each request: for a latch `jobs` at `{jobs}:request:<id>`. Later requests of the
/// client about this latch delete the key. Otherwise the key expires after two minutes or four command timeouts, whichever
/// is longer. A call that the program repeats counts again.
#[derive(Clone)]
pub struct Latch {
    inner: LockSpec,
}

impl Latch {
    pub(crate) fn of(inner: LockSpec) -> Self {
        Self { inner }
    }

    /// Closes the latch until it has been counted down `count` times; if a count is set already, nothing changes.
    ///
    /// Returns whether the count was set. Blocks for one round trip, at most for the client's command timeout (3 s
    /// unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if !client.latch("import:7:loaded").try_set_count(3)? {
    ///     println!("somebody else has set it");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// A count of 0 set by a Redisson client counts as set, although the latch is open; counting down or deleting
    /// removes it.
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis rejected the command, or did not answer; then it is unknown whether the count was
    ///   set.
    /// - [`Error::WrongType`]: the key holds something else, which is left as it is.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`], and [`Error::InvalidSetting`] for 0 or more than [`i64::MAX`], before anything is sent.
    pub fn try_set_count(&self, count: u64) -> Result<bool> {
        if count == 0 {
            return Err(Error::setting("a latch of 0 would be open".into()));
        }
        if i64::try_from(count).is_err() {
            return Err(Error::setting(format!("{count} is more than Redis counts")));
        }
        self.change(LatchChange::Set(count))
    }

    /// Lowers the count by one; at zero the latch opens and all waiting threads continue.
    ///
    /// Does nothing if the latch is open already, except that it removes a count of 0 set by a Redisson client. Blocks
    /// for one round trip, at most for the client's command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").count_down()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis rejected the command, or did not answer; then it is unknown whether the call
    ///   counted.
    /// - [`Error::WrongType`]: the key holds something else, which is left as it is.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`] and [`Error::InvalidSetting`], before anything is sent.
    pub fn count_down(&self) -> Result<()> {
        self.change(LatchChange::CountDown).map(drop)
    }

    /// Waits until the latch is open.
    ///
    /// Blocks for one round trip if the latch is open, otherwise without limit until it opens. While Redis does not
    /// answer, blocks at most for the client's command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").wait()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis did not answer within the command timeout, or rejected the command.
    /// - [`Error::WrongType`]: the key holds something else.
    /// - [`Error::Cancelled`]: the handle's token was cancelled.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`] and [`Error::InvalidSetting`], before anything is sent.
    pub fn wait(&self) -> Result<()> {
        if self.wait_with(WaitMode::FOREVER)? {
            Ok(())
        } else {
            Err(Error::Closed)
        }
    }

    /// Waits up to `limit` for the latch to open; `false` if it is still closed, or Redis did not reply within `limit`.
    ///
    /// `limit` is the whole budget, connecting and round trips included. With a limit of zero, the call asks once, and waits
    /// for the reply up to the command timeout. A duration beyond what the clock can represent is no limit.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if !client.latch("import:7:loaded").wait_for(std::time::Duration::from_secs(60))? {
    ///     println!("somebody is still busy");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait). A missing reply is [`Error::Redis`] and not `false` if Redis is known to be unreachable when
    /// the time is over, or has not answered for the whole command timeout.
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.wait_with(WaitMode::span(limit))
    }

    /// Waits until `limit` for the latch to open; otherwise as [`wait_for`](Self::wait_for).
    ///
    /// An instant in the past asks once.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    /// let open = client.latch("import:7:loaded").wait_until(deadline)?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_until(&self, limit: Instant) -> Result<bool> {
        self.wait_with(WaitMode::moment(limit))
    }

    /// Returns the count that is left; 0 if the latch is open.
    ///
    /// Blocks for one round trip, at most for the command timeout. Other threads may have counted down since.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} workers are still busy", client.latch("import:7:loaded").count()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], and before anything is sent [`Error::InvalidName`] and
    /// [`Error::InvalidSetting`].
    pub fn count(&self) -> Result<u64> {
        let entry = self.inner.unregistered_entry()?;
        let request = latch::state(&entry.protocol);
        Ok(match self.inner.ask(request, script::latch_state)? {
            LatchState::Closed { count, .. } => count,
            LatchState::Open => 0,
        })
    }

    /// Opens the latch, whatever its count, and returns whether a count was set.
    ///
    /// Waiting threads continue, except those of Redisson's clients, which this call does not wake. Blocks for one
    /// round trip, at most for the client's command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").delete()?; // nobody need wait any more
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis rejected the command, or did not answer; then it is unknown whether the latch was
    ///   deleted.
    /// - [`Error::WrongType`]: the key holds something else, which is left as it is.
    /// - [`Error::Closed`]: the client is closed.
    /// - [`Error::InvalidName`] and [`Error::InvalidSetting`], before anything is sent.
    pub fn delete(&self) -> Result<bool> {
        self.change(LatchChange::Delete)
    }

    /// Returns a handle whose waits end with [`Error::Cancelled`] once `token` is cancelled.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let loaded = client.latch("import:7:loaded").cancel_on(&token);
    /// std::thread::spawn(move || token.cancel());
    /// let outcome = loaded.wait(); // may be `Error::Cancelled`
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.inner.cancel = Some(token.clone());
        self
    }

    /// Returns a handle whose calls wait this long for Redis to answer, instead of the client's
    /// [`command_timeout`](crate::Config::command_timeout).
    ///
    /// From 10 ms to an hour; for any other value the calls return [`Error::InvalidSetting`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let a_second = std::time::Duration::from_secs(1);
    /// client.latch("import:7:loaded").command_timeout(a_second).count_down()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.inner.set_command_timeout(timeout);
        self
    }

    /// Returns the name, as given to the client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert_eq!(client.latch("loaded").name(), "loaded");
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Sends a request that counts once, however often it is sent.
    fn change(&self, change: LatchChange) -> Result<bool> {
        let make = |of: &_, keys: &_| latch::change(of, keys, change);
        Ok(self.inner.count_once(FORGET_ONE, make)? == 1)
    }

    /// Returns whether the latch was open before the time was over.
    fn wait_with(&self, wait: WaitMode) -> Result<bool> {
        let mut strategy = LatchWait::new(&self.inner)?;
        let outcome = acquire::acquire(&mut strategy, &self.inner, wait)?;
        Ok(outcome.granted().is_some())
    }
}
