//! A waiting thread and its wake-ups; only here does a thread park. The token that cancels waits is here as well.

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

/// A waiting thread, and everything that can wake it. `W` says why it is woken in its queue.
///
/// The sender stores a wakeup, or a signal, under its own mutex (that of the lock's entry, or the subscriber's), and wakes
/// the thread once it has released that mutex. The thread holds the mutex of its state from its last check until it is
/// parked. So a sender that has stored something under that mutex needs only [`notify`](Self::notify): the thread was before
/// its check, and finds it, or parked, and is woken. A sender that has changed something else, such as a token, sends a message
/// after that.
///
/// The condition variable is that of the standard library, and with it the mutex: that of `parking_lot` keeps its waiting
/// threads in a table, and reads the clock when it notifies. Of a hand-over between two threads that was a fifth.
pub(crate) struct Waiter<W> {
    state: std::sync::Mutex<State<W>>,
    changed: Condvar,
}

struct State<W> {
    wakeup: Option<W>,
    signals: Signals,
}

/// What a thread that asks Redis waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// Of how many messages on the channel that it listens to it was notified.
    pub(crate) messages: u64,
    /// The server has confirmed the subscription, or refused it.
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
        let (wakeup, signals) = (None, Signals::default());
        Arc::new(Self {
            state: std::sync::Mutex::new(State { wakeup, signals }),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // A thread that panicked has left the state as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores why the thread is woken; [`notify`](Self::notify) has to follow.
    pub(crate) fn store(&self, wakeup: W) {
        self.lock().wakeup = Some(wakeup);
    }

    /// Why the thread was woken in its queue, if it was.
    pub(crate) fn take_wakeup(&self) -> Option<W> {
        self.lock().wakeup.take()
    }

    /// Whether it was woken in its queue, and for such a reason.
    pub(crate) fn is_woken(&self, is_such: impl FnOnce(&W) -> bool) -> bool {
        self.lock().wakeup.as_ref().is_some_and(is_such)
    }

    pub(crate) fn signals(&self) -> Signals {
        self.lock().signals
    }

    /// Wakes the thread, for which something was stored in its state.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Parks unless the thread has a wakeup, there is news since `seen`, or `stop`; until somebody notifies it, the deadline,
    /// or for no reason. Returns whether any of that is so by then.
    pub(crate) fn park(&self, seen: Signals, until: Deadline, stop: &dyn Fn() -> bool) -> bool {
        let is_over = |state: &State<W>| {
            state.wakeup.is_some() || state.signals.are_news_since(seen) || stop()
        };
        let state = self.lock();
        if is_over(&state) {
            return true;
        }
        let state = match until.instant() {
            None => (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        is_over(&state)
    }
}

impl<W: Send> Listener for Waiter<W> {
    fn message(&self) {
        self.lock().signals.messages += 1;
        self.notify();
    }

    fn set_listening(&self, listening: bool) {
        self.lock().signals.listening = listening;
        self.notify();
    }

    fn look_again(&self) {
        self.notify();
    }
}

/// Ends waits from another thread: what Redisson's `lockInterruptibly` is for.
///
/// Given to a handle with `cancel_on`. Clones are the same token. Once cancelled it stays cancelled: waits that have
/// begun end with [`Error::Cancelled`](crate::Error::Cancelled), within a few milliseconds while parked and within
/// about 0.1 s while Redis owes an answer, and later ones end at once. A lock that was granted first is returned. A wait
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
            waiter.message();
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

    /// Has all waiting threads check for themselves whether there is anything to do; `true` if there are any.
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

    /// From now on a cancel wakes `waiter`. Also drops waiters that no longer exist, so that the list stays short.
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
mod tests {
    use super::*;

    use std::time::Duration;

    #[test]
    fn a_cancelled_wait_ends_and_a_watched_waiter_is_woken() {
        let (token, waiter) = (CancelToken::new(), Waiter::<()>::new());
        token.watch(&waiter);
        let other = token.clone();
        let thread = std::thread::spawn(move || other.cancel());
        waiter.park(Signals::default(), Deadline::NEVER, &|| {
            token.is_cancelled()
        });
        assert!(token.is_cancelled() && waiter.take_wakeup().is_none());
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
        waiter.park(Signals::default(), late, &|| false);
        assert_eq!(waiter.take_wakeup(), Some(1));
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
        waiter.park(seen, Deadline::at(soon), &|| false);
        assert!(Instant::now() >= soon && !waiter.signals().are_news_since(seen));
        let other = Arc::clone(&waiter);
        let thread = std::thread::spawn(move || other.message());
        let late = Instant::now() + Duration::from_secs(60);
        waiter.park(seen, Deadline::at(late), &|| false);
        assert!(Instant::now() < late && waiter.signals().are_news_since(seen));
        thread.join().expect("thread");
        let seen = waiter.signals();
        waiter.set_listening(false);
        assert!(waiter.signals().are_news_since(seen));
    }

    /// Notes whether the list of waiters was free each time that it was notified.
    struct Notified {
        token: CancelToken,
        was_free: Mutex<Vec<bool>>,
    }

    impl Notified {
        fn note(&self) {
            let is_free = self.token.inner.waiters.try_lock().is_some();
            self.was_free.lock().push(is_free);
        }
    }

    impl Listener for Notified {
        fn message(&self) {
            self.note();
        }

        fn set_listening(&self, _: bool) {}

        fn look_again(&self) {
            self.note();
        }
    }

    #[test]
    fn waiters_are_notified_without_the_mutex_that_new_ones_need() {
        let token = CancelToken::new();
        let waiting = [(); 2].map(|()| {
            let (token, was_free) = (token.clone(), Mutex::default());
            Arc::new(Notified { token, was_free })
        });
        waiting.iter().for_each(|waiter| token.watch(waiter));
        assert!(token.look_again());
        token.cancel();
        for waiter in &waiting {
            assert_eq!(*waiter.was_free.lock(), [true, true]);
        }
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
