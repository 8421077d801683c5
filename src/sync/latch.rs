//! The count-down latch.

use std::fmt;
use std::time::{Duration, Instant};

use crate::acquire;
use crate::acquire::latch::LatchWait;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::local::waiter::CancelToken;
use crate::protocol::latch::{self, Change};
use crate::time::Deadline;

/// How many keys of answered requests one request has Redis forget.
const FORGET: usize = 1;

/// A count that threads of any number of processes wait to see at zero: Redisson's `RCountDownLatch`.
///
/// The latch is open, and nobody waits, until [`try_set_count`](Self::try_set_count) closes it; so that has to come
/// before anybody waits. The last [`count_down`](Self::count_down) opens it, all waiting threads of all processes
/// continue, and it can be set again. Anybody may count down, any number of times.
///
/// Nothing is held and nothing expires, so a process that dies without having counted down leaves the others waiting:
/// [`wait_for`](Self::wait_for) and [`delete`](Self::delete) are for that. A Redis that returns without its data
/// returns with the latch open.
///
/// **Waking.** One message wakes every process, and in it every waiting thread, each of which then asks once. A thread
/// also asks without a message, first after a second, later every five (at once and every tenth of a second if the
/// server does not let us subscribe), so a lost message or a deleted key delays nobody for longer.
///
/// **Rounds.** A latch may be set again at once. Whoever waits for the first count is free when that round ends,
/// even if it is late and finds the second; whoever came for the second is not released by the end of the first. For
/// that a mark is kept beside the count, at `{name}:round`, which changes whenever this crate sets, opens or deletes
/// the latch. Redisson's clients do not change it: if one of them ends a round and one of them starts the next, a late
/// waiter waits for the end of that next round, as it does with Redisson.
///
/// **Counting once.** A request that was sent twice, because a reply or a connection was lost, counts once: Redis keeps
/// its result at `{name}:request:<id>` for two minutes (four command timeouts if that is longer), or until the next
/// request of the same client about this latch.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let loaded = client.latch("import:7:loaded");
/// loaded.try_set_count(3)?; // by one of those who take part, before the others start
/// // in each of three workers
/// loaded.count_down()?;
/// // wherever their end is waited for
/// loaded.wait()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct Latch {
    inner: LockSpec,
}

impl Latch {
    pub(crate) fn of(inner: LockSpec) -> Self {
        Self { inner }
    }

    /// Closes the latch until it has been counted down `count` times; `false`, and nothing changes, if a count is set.
    ///
    /// Blocks for one round trip, at most for the client's command timeout (3 s unless set). A count of 0 set by a
    /// Redisson client counts as set, although the latch is open; counting down or deleting removes it.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// if !client.latch("import:7:loaded").try_set_count(3)? {
    ///     println!("somebody else has set it");
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] before anything is sent, if `count` is 0 or more than [`i64::MAX`], and likewise
    /// [`Error::InvalidName`]; [`Error::Redis`] if Redis refused, or did not answer: then it is unknown whether the
    /// count was set; [`Error::WrongType`] for a key that holds something else, which is left as it is;
    /// [`Error::Closed`] once the client is closed.
    pub fn try_set_count(&self, count: u64) -> Result<bool> {
        if count == 0 {
            return Err(Error::config("a latch of 0 would be open".into()));
        }
        if i64::try_from(count).is_err() {
            return Err(Error::config(format!("{count} is more than Redis counts")));
        }
        self.change(Change::Set(count))
    }

    /// Lowers the count by one. The last one opens the latch and notifies everybody who waits.
    ///
    /// Does nothing if the latch is open already, as in Redisson. Blocks for one round trip, at most for the client's
    /// command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").count_down()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis refused, or did not answer: then it is unknown whether it was counted;
    /// [`Error::WrongType`] for a key that holds something else, which is left as it is; [`Error::Closed`] once the
    /// client is closed; [`Error::InvalidName`] before anything is sent.
    pub fn count_down(&self) -> Result<()> {
        self.change(Change::CountDown)?;
        Ok(())
    }

    /// Waits until the latch is open.
    ///
    /// One round trip if it is open. Otherwise it blocks without limit while there is something left to count, and at
    /// most for the client's command timeout (3 s unless set) while Redis does not answer.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").wait()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis could not be asked, at first or while waiting; [`Error::WrongType`] for a key that
    /// holds something else; [`Error::Cancelled`] by the handle's token; [`Error::Closed`] once the client is closed;
    /// [`Error::InvalidName`] before anything is sent.
    pub fn wait(&self) -> Result<()> {
        if self.wait_with(WaitMode::Until(Deadline::NEVER))? {
            Ok(())
        } else {
            Err(Error::Closed)
        }
    }

    /// Waits up to `limit` for the latch to open, and returns whether it did.
    ///
    /// `limit` is the whole budget, connecting and round trips included. Zero is one question; a span beyond what the
    /// clock can represent is no limit.
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
    /// As [`wait`](Self::wait), if Redis is known to be unreachable once the time is over, or has not answered for the
    /// command timeout. An answer that is merely late is `false`. A limit of zero cannot be cancelled.
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.wait_with(WaitMode::span(limit))
    }

    /// Waits until `limit` for the latch to open; otherwise as [`wait_for`](Self::wait_for).
    ///
    /// An instant in the past is one question.
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

    /// Returns how many are left to count; 0 if the latch is open.
    ///
    /// Blocks for one round trip, at most for the command timeout. Others may have counted since.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("{} workers are still busy", client.latch("import:7:loaded").count()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis could not be asked; [`Error::WrongType`] for a key that holds something else;
    /// [`Error::Closed`] once the client is closed; [`Error::InvalidName`] before anything is sent.
    pub fn count(&self) -> Result<u64> {
        LatchWait::new(&self.inner, WaitMode::Once)?.count()
    }

    /// Opens the latch, whatever is left to count, and returns whether there was a count.
    ///
    /// Waiting threads continue, except those of Redisson's clients, which this does not wake. Blocks for one round
    /// trip, at most for the client's command timeout (3 s unless set).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// client.latch("import:7:loaded").delete()?; // nobody need wait any more
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis refused, or did not answer: then it is unknown whether it was deleted;
    /// [`Error::WrongType`] for a key that holds something else, which is left as it is; [`Error::Closed`] once the
    /// client is closed; [`Error::InvalidName`] before anything is sent.
    pub fn delete(&self) -> Result<bool> {
        self.change(Change::Delete)
    }

    /// Returns a handle whose waits end with [`Error::Cancelled`] when `token` is cancelled.
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

    /// One request that counts once, however often it has to be sent.
    fn change(&self, change: Change) -> Result<bool> {
        let done = self.inner.count_once(FORGET, |protocol, keys, keep_ms| {
            latch::change(protocol, keys, keep_ms, change)
        })?;
        Ok(done == 1)
    }

    /// Whether the latch was seen to have been open in time.
    fn wait_with(&self, wait: WaitMode) -> Result<bool> {
        let mut strategy = LatchWait::new(&self.inner, wait)?;
        let outcome = acquire::acquire(&mut strategy, &self.inner, wait)?;
        Ok(outcome.granted().is_some())
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
