//! A waiting thread and its wake-ups, and the token that cancels waits. Threads that wait for others park only in
//! [`WaitingThread::park`].

use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Error;
use crate::net::channels::Listener;
use crate::time::Deadline;

/// Makes the same error for each of several waiting threads.
pub(crate) type MakeError = Arc<dyn Fn() -> Error + Send + Sync>;

/// A waiting thread, and everything that can wake it. `W` is the reason for which a queue (of the local lock or semaphore)
/// wakes the thread.
///
/// Rules that make every wake-up arrive:
///
/// 1. From its last check before it parks, the thread holds the mutex of its state until it is queued at the condition
///    variable.
/// 2. A sender changes that state under the same mutex and calls [`notify`](Self::notify) afterwards. By rule 1 the
///    thread either finds the change in its check, or is parked and is woken.
/// 3. A sender that changes something outside that state, such as a token's flag, calls [`message`](Listener::message)
///    afterwards, which changes the state as well. Otherwise the change could fall between the thread's check and its
///    park.
///
/// The condition variable and its mutex are those of the standard library: `parking_lot` keeps waiting threads in a table
/// and reads the clock when it notifies. Together that took a fifth of the time of a hand-over between two threads.
pub(crate) struct WaitingThread<W> {
    /// How long Redis may take to answer the waiting thread.
    pub(crate) command_timeout: Duration,
    state: std::sync::Mutex<WaiterState<W>>,
    changed: Condvar,
}

struct WaiterState<W> {
    wakeup: Option<W>,
    signals: Signals,
}

/// The events that a thread awaits once Redis has refused its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// How often [`Listener::message`] was called: for example for a message on the thread's channel, a cancelled token, a
    /// closed client, or a lost place in a fair queue.
    pub(crate) messages: u64,
    /// The server has confirmed the subscription, or rejected it; false again once the subscription is lost.
    pub(crate) is_answered: bool,
}

impl Signals {
    /// Whether a message has arrived, or `is_answered` has changed, since `earlier`.
    pub(crate) fn are_news_since(self, earlier: Self) -> bool {
        self.messages > earlier.messages || self.is_answered != earlier.is_answered
    }
}

impl<W> WaitingThread<W> {
    pub(crate) fn new(command_timeout: Duration) -> Arc<Self> {
        let (wakeup, signals) = (None, Signals::default());
        Arc::new(Self {
            command_timeout,
            state: std::sync::Mutex::new(WaiterState { wakeup, signals }),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, WaiterState<W>> {
        // Every change under this mutex is one assignment, so a panic leaves no state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores why the thread is woken; [`notify`](Self::notify) has to follow.
    pub(crate) fn store(&self, wakeup: W) {
        self.lock().wakeup = Some(wakeup);
    }

    /// Takes the stored wakeup, if there is one.
    pub(crate) fn take_wakeup(&self) -> Option<W> {
        self.lock().wakeup.take()
    }

    /// Whether a wakeup is stored that `is_such` accepts.
    pub(crate) fn is_woken(&self, is_such: impl FnOnce(&W) -> bool) -> bool {
        self.lock().wakeup.as_ref().is_some_and(is_such)
    }

    pub(crate) fn signals(&self) -> Signals {
        self.lock().signals
    }

    /// Wakes the thread after its state was changed: rule 2.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Parks until the thread has a wakeup, there is news since `known_signals`, `stop` returns true, or the deadline has
    /// passed; may also return early for no reason. Returns whether one of the first three is the case.
    pub(crate) fn park(
        &self,
        known_signals: Signals,
        until: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> bool {
        let is_over = |state: &WaiterState<W>| {
            state.wakeup.is_some() || state.signals.are_news_since(known_signals) || stop()
        };
        // Held until the condition variable has queued this thread: rule 1.
        let state = self.lock();
        if is_over(&state) {
            return true;
        }
        let state = match until.instant() {
            // No loop is needed here: the caller checks its conditions and parks again after a spurious wake-up too.
            None => (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let time_left = at.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout(state, time_left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        is_over(&state)
    }
}

impl<W: Send> Listener for WaitingThread<W> {
    fn message(&self) {
        self.lock().signals.messages += 1;
        self.notify();
    }

    fn set_answered(&self, is_answered: bool) {
        self.lock().signals.is_answered = is_answered;
        self.notify();
    }

    fn look_again(&self) {
        // Nothing is stored, so a thread that is about to park misses this call. That does no harm: only reminders make
        // it, and they are repeated.
        self.notify();
    }
}

/// A token with which one thread ends the waiting calls of others: what Redisson's `lockInterruptibly` is for.
///
/// Pass it to a handle with `cancel_on`. Clones are the same token, and a cancelled token stays cancelled. A cancelled
/// call returns [`Error::Cancelled`]; this applies to calls that acquire and to calls that wait for a latch. A parked call
/// ends within a few milliseconds, a call that still awaits a reply of Redis within about 0.1 s. A call that begins after
/// the cancellation ends at once, even if it would not wait. If the lock was granted before the call noticed the
/// cancellation, the call succeeds. If a call's time is up and its token is cancelled, the call ends with `Cancelled`, not
/// with `Ok(None)`. Releases and queries ignore the token, except [`Election::observe`](crate::Election::observe).
///
/// ```
/// let token = redlatch::CancelToken::new();
/// let other = token.clone();
/// other.cancel();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct CancelToken {
    inner: Arc<TokenInner>,
}

#[derive(Default)]
struct TokenInner {
    cancelled: AtomicBool,
    waiters: Mutex<Vec<Weak<dyn Listener>>>,
}

impl CancelToken {
    /// Returns a token that is not cancelled.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let lock = client.mutex("report").cancel_on(&token);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the token: calls that acquire or wait with it end, now and later, as described [above](Self). Does not
    /// block.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let token = redlatch::CancelToken::new();
    /// let lock = client.mutex("report").cancel_on(&token);
    /// std::thread::spawn(move || token.cancel());
    /// let outcome = lock.lock(); // may be `Error::Cancelled`
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn cancel(&self) {
        // The flag is set before the list is taken. So a thread that adds its waiter after that sees the flag when it
        // checks before it parks.
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let waiters = std::mem::take(&mut *self.inner.waiters.lock());
        // `message` is called, not only `notify`: the flag is no part of a waiter's state (rule 3 at `WaitingThread`).
        for waiter in waiters.iter().filter_map(Weak::upgrade) {
            waiter.message();
        }
    }

    /// An address that all clones of a token share, and no other existing token has.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Returns whether [`CancelToken::cancel`] has been called. Does not block.
    ///
    /// ```
    /// let token = redlatch::CancelToken::new();
    /// assert!(!token.is_cancelled());
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    /// Wakes all waiting threads so that each checks whether it has anything to do; `true` if there are any.
    pub(crate) fn look_again(&self) -> bool {
        // The list is copied: a thread that begins to wait must not be held up while the others are notified.
        let waiting: Vec<_> = {
            let mut waiters = self.inner.waiters.lock();
            waiters.retain(|waiter| waiter.strong_count() > 0);
            waiters.iter().filter_map(Weak::upgrade).collect()
        };
        waiting.iter().for_each(|waiter| waiter.look_again());
        !waiting.is_empty()
    }

    /// From now on [`cancel`](Self::cancel) wakes `waiter`. Also drops waiters that no longer exist, so that the list
    /// stays short.
    pub(crate) fn watch(&self, waiter: &Arc<impl Listener + 'static>) {
        let waiter = Arc::downgrade(waiter);
        let mut waiters = self.inner.waiters.lock();
        if waiters.len() == waiters.capacity() {
            waiters.retain(|waiter| waiter.strong_count() > 0);
        }
        waiters.push(waiter);
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("cancelled", &self.is_cancelled())
            .finish()
    }
}

#[cfg(test)]
mod tests;
