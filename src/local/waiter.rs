//! One waiting thread and what wakes it; only here does a thread park. And the token that cancels waits.

use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Instant;

use parking_lot::Mutex;

use crate::error::Error;
use crate::net::channels::Listener;
use crate::time::Deadline;

/// Makes the same error for each of several waiting threads.
pub(crate) type MakeError = Arc<dyn Fn() -> Error + Send + Sync>;

/// One waiting thread, and everything that can wake it. `W` says why it is woken in its queue.
///
/// The sender stores a wakeup, or a signal, under its own mutex (that of the lock's entry, or the subscriber's), and wakes
/// the thread once it has released that mutex. The thread holds the mutex of its state from its last check until it is
/// parked. So whoever has stored something under that mutex needs only [`notify`](Self::notify): the thread was before its
/// check, and finds it, or parked, and is woken. Whoever has changed something else, such as the token, has to take the
/// mutex after that: [`wake_to_check`](Self::wake_to_check).
///
/// The condition variable is that of the standard library, and with it the mutex: that of `parking_lot` keeps its waiting
/// threads in a table, and reads the clock when it notifies. Of a hand-over between two threads that was a fifth.
pub(crate) struct Waiter<W> {
    state: std::sync::Mutex<State<W>>,
    changed: Condvar,
}

struct State<W> {
    wakeup: Option<W>,
    /// Of how many messages on the channel that it listens to it was notified.
    messages: u64,
    /// The server has confirmed the subscription, or refused it.
    listening: bool,
}

/// What a contender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signals {
    pub(crate) messages: u64,
    pub(crate) listening: bool,
}

impl Signals {
    /// Whether a message, a confirmation or the loss of a subscription has come since `seen`.
    pub(crate) fn are_news_since(self, seen: Self) -> bool {
        self.messages > seen.messages || self.listening != seen.listening
    }
}

impl<W> Waiter<W> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // Whoever panicked has left it as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it as good as new, for another wait of the same thread.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Stores why the thread is woken; [`notify`](Self::notify) has to follow.
    pub(crate) fn store(&self, wakeup: W) {
        self.lock().wakeup = Some(wakeup);
    }

    /// The same, unless another thread has the mutex of its state.
    pub(crate) fn try_store(&self, wakeup: W) -> Result<(), W> {
        match self.state.try_lock() {
            Ok(mut state) => {
                state.wakeup = Some(wakeup);
                Ok(())
            }
            Err(_) => Err(wakeup),
        }
    }

    /// Why the thread was woken in its queue, if it was.
    pub(crate) fn take_wakeup(&self) -> Option<W> {
        self.lock().wakeup.take()
    }

    pub(crate) fn has_wakeup(&self) -> bool {
        self.lock().wakeup.is_some()
    }

    pub(crate) fn signals(&self) -> Signals {
        self.lock().signals()
    }

    /// Wakes the thread, for which something was stored in its state.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Wakes the thread, which then checks whether it has to stop, and what else its caller has stored.
    pub(crate) fn wake_to_check(&self) {
        // Under the mutex, or the notification could fall between the thread's check and its sleep, and be lost.
        drop(self.lock());
        self.notify();
    }

    /// Parks a queued thread until it has a wakeup, `stop`, or the deadline. `now` was a moment ago.
    pub(crate) fn wait_in_queue(
        &self,
        mut now: Option<Instant>,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Option<W> {
        let mut state = self.lock();
        loop {
            if state.wakeup.is_some() {
                return state.wakeup.take();
            }
            if stop() {
                return None;
            }
            state = self.park(state, now.take(), deadline)?;
        }
    }

    /// Parks a queued thread until it has a wakeup, which it has yet to take, `stop`, or `until`; whether it has one.
    pub(crate) fn wait_for_wakeup(&self, until: Instant, stop: &dyn Fn() -> bool) -> bool {
        let mut state = self.lock();
        while state.wakeup.is_none() {
            if stop() {
                return false;
            }
            state = match self.park(state, None, Deadline::at(until)) {
                Some(state) => state,
                None => return false,
            };
        }
        true
    }

    /// Parks a contender until it has a wakeup, there is news since `seen`, `stop`, or `until`.
    pub(crate) fn wait_for_signal(&self, seen: Signals, until: Instant, stop: &dyn Fn() -> bool) {
        let mut state = self.lock();
        while state.wakeup.is_none() && !state.signals().are_news_since(seen) && !stop() {
            state = match self.park(state, None, Deadline::at(until)) {
                Some(state) => state,
                None => return,
            };
        }
    }

    /// Parks until somebody wakes the thread, or for no reason; `None` at once if the deadline has passed. Reads the clock
    /// for that, unless `now` says what it showed a moment ago.
    fn park<'a>(
        &'a self,
        state: MutexGuard<'a, State<W>>,
        now: Option<Instant>,
        deadline: Deadline,
    ) -> Option<MutexGuard<'a, State<W>>> {
        let Some(at) = deadline.instant() else {
            let woken = self.changed.wait(state);
            return Some(woken.unwrap_or_else(PoisonError::into_inner));
        };
        let left = at.saturating_duration_since(now.unwrap_or_else(Instant::now));
        if left.is_zero() {
            return None;
        }
        let woken = self.changed.wait_timeout(state, left);
        Some(woken.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl<W> Default for Waiter<W> {
    fn default() -> Self {
        Self {
            state: std::sync::Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl<W> Default for State<W> {
    fn default() -> Self {
        Self {
            wakeup: None,
            messages: 0,
            listening: false,
        }
    }
}

impl<W> State<W> {
    fn signals(&self) -> Signals {
        Signals {
            messages: self.messages,
            listening: self.listening,
        }
    }
}

/// What a [`CancelToken`] wakes: a [`Waiter`] of any kind.
pub(crate) trait Wake: Send + Sync {
    /// See [`Waiter::wake_to_check`].
    fn wake(&self);
}

impl<W: Send> Wake for Waiter<W> {
    fn wake(&self) {
        self.wake_to_check();
    }
}

impl<W: Send> Listener for Waiter<W> {
    fn message(&self) {
        self.lock().messages += 1;
        self.notify();
    }

    fn set_listening(&self, listening: bool) {
        self.lock().listening = listening;
        self.notify();
    }
}

/// Ends waits from another thread: what Redisson's `lockInterruptibly` is for.
///
/// Given to a handle with `cancel_on`. Clones are the same token. Once cancelled it stays cancelled: waits that have
/// begun end with [`Error::Cancelled`](crate::Error::Cancelled), within a few milliseconds while parked and within
/// about 64 ms while Redis owes an answer, and later ones end at once. A lock that was granted first is returned. A wait
/// whose time is up as well by then ends with `Cancelled`, not with `Ok(None)`.
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
    waiters: Mutex<Vec<Weak<dyn Wake>>>,
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

    /// Ends every wait that uses this token, now and later. Does not block.
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
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let waiters = std::mem::take(&mut *self.inner.waiters.lock());
        for waiter in waiters.iter().filter_map(Weak::upgrade) {
            waiter.wake();
        }
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

    /// How many waiters a cancel would wake, or try to.
    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        self.inner.waiters.lock().len()
    }

    /// From now on a cancel wakes `waiter`. Also drops waiters that no longer exist, so that the list stays short.
    pub(crate) fn watch<W: Wake + 'static>(&self, waiter: &Arc<W>) {
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
mod tests {
    use super::*;

    use std::time::Duration;

    #[test]
    fn a_cancelled_wait_ends_and_a_watched_waiter_is_woken() {
        let (token, waiter) = (CancelToken::new(), Waiter::<()>::new());
        token.watch(&waiter);
        let other = token.clone();
        let thread = std::thread::spawn(move || other.cancel());
        let wakeup = waiter.wait_in_queue(None, Deadline::NEVER, &|| token.is_cancelled());
        assert!(wakeup.is_none());
        thread.join().expect("thread");
    }

    #[test]
    fn a_parked_thread_is_notified_of_what_was_stored() {
        let waiter = Waiter::new();
        let other = Arc::clone(&waiter);
        let thread = std::thread::spawn(move || {
            // As a rule the other thread is parked by then.
            std::thread::sleep(Duration::from_millis(20));
            other.store(1);
            other.notify();
        });
        let late = Deadline::at(Instant::now() + Duration::from_secs(60));
        assert_eq!(waiter.wait_in_queue(None, late, &|| false), Some(1));
        assert!(!late.has_passed(Instant::now()), "not by the deadline");
        thread.join().expect("thread");
    }

    #[test]
    fn a_message_is_news_and_so_is_the_loss_of_the_subscription() {
        let (waiter, soon) = (
            Waiter::<()>::new(),
            Instant::now() + Duration::from_millis(20),
        );
        waiter.set_listening(true);
        let seen = waiter.signals();
        waiter.wait_for_signal(seen, soon, &|| false);
        assert!(Instant::now() >= soon && !waiter.signals().are_news_since(seen));
        let other = Arc::clone(&waiter);
        let thread = std::thread::spawn(move || other.message());
        let late = Instant::now() + Duration::from_secs(60);
        waiter.wait_for_signal(seen, late, &|| false);
        assert!(Instant::now() < late && waiter.signals().are_news_since(seen));
        thread.join().expect("thread");
        let seen = waiter.signals();
        waiter.set_listening(false);
        assert!(waiter.signals().are_news_since(seen));
    }

    #[test]
    fn a_token_forgets_waiters_that_are_gone() {
        let token = CancelToken::new();
        for _ in 0..100_000 {
            token.watch(&Waiter::<()>::new());
        }
        assert!(token.inner.waiters.lock().capacity() < 64);
    }
}
