//! One thread that waits: what wakes it, and the only place where a thread parks. And the token that cancels.

use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::net::subscriber::Listener;
use crate::time::Deadline;

/// What one thread met makes an error for each of those that wait.
pub(crate) type MakeError = Arc<dyn Fn() -> Error + Send + Sync>;

/// One thread that waits for a lock, and everything that can wake it. `W` says why it is woken in its queue.
///
/// A wakeup is stored under the mutex of whoever sends it (a lock's, the subscriber's), and the thread is woken after
/// that mutex was released.
pub(crate) struct Waiter<W> {
    signal: Mutex<Signal<W>>,
    changed: Condvar,
}

struct Signal<W> {
    called: Option<W>,
    /// How many messages of the lock's channel have come.
    messages: u64,
    /// The server has confirmed the subscription, or there will be none.
    listening: bool,
}

/// The parts of a signal that the contender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) messages: u64,
    pub(crate) listening: bool,
}

impl<W> Waiter<W> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            signal: Mutex::new(Signal {
                called: None,
                messages: 0,
                listening: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Stores why the thread is woken; [`Waiter::wake`] has to follow.
    pub(crate) fn store(&self, called: W) {
        self.signal.lock().called = Some(called);
    }

    /// Why the thread was woken in the queue, if it was.
    pub(crate) fn called(&self) -> Option<W> {
        self.signal.lock().called.take()
    }

    pub(crate) fn heard(&self) -> Heard {
        let signal = self.signal.lock();
        Heard {
            messages: signal.messages,
            listening: signal.listening,
        }
    }

    /// Wakes the thread, to look at its signal and at the state of the client and the token.
    pub(crate) fn wake(&self) {
        // Through the mutex, or the wake-up could fall between the thread's look and its sleep.
        drop(self.signal.lock());
        self.changed.notify_one();
    }

    /// Parks until a wakeup, `stop`, or the deadline.
    pub(crate) fn wait_in_line(&self, deadline: Deadline, stop: &dyn Fn() -> bool) -> Option<W> {
        let mut signal = self.signal.lock();
        loop {
            if signal.called.is_some() {
                return signal.called.take();
            }
            if stop() {
                return None;
            }
            match deadline.instant() {
                None => self.changed.wait(&mut signal),
                Some(at) => {
                    if Instant::now() >= at {
                        return None;
                    }
                    self.changed.wait_until(&mut signal, at);
                }
            }
        }
    }

    /// Parks the contender until anything newer than `seen`, `stop`, or `until`.
    pub(crate) fn wait_to_hear(&self, seen: Heard, until: Instant, stop: &dyn Fn() -> bool) {
        let mut signal = self.signal.lock();
        loop {
            let heard = Heard {
                messages: signal.messages,
                listening: signal.listening,
            };
            if heard != seen || stop() || Instant::now() >= until {
                return;
            }
            self.changed.wait_until(&mut signal, until);
        }
    }
}

/// What a [`CancelToken`] wakes, whatever else it may be woken with.
pub(crate) trait Wake: Send + Sync {
    /// See [`Waiter::wake`].
    fn wake(&self);
}

impl<W: Send> Wake for Waiter<W> {
    fn wake(&self) {
        self.wake();
    }
}

impl<W: Send> Listener for Waiter<W> {
    fn message(&self) {
        self.signal.lock().messages += 1;
        self.changed.notify_one();
    }

    fn set_listening(&self, listening: bool) {
        self.signal.lock().listening = listening;
        self.changed.notify_one();
    }
}

/// Ends waits from another thread: what Redisson's `lockInterruptibly` is for.
///
/// Given to a handle with `cancel_on`. Clones are the same token. Once cancelled it stays cancelled: waits that have
/// begun end with [`Error::Cancelled`](crate::Error::Cancelled), within a few milliseconds while parked and within
/// about 64 ms while Redis owes an answer, and later ones end at once. A lock that was granted first is returned.
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

    /// From now on a cancel wakes `waiter`. Waiters that no longer exist make room for it.
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

    #[test]
    fn a_cancelled_wait_ends_and_a_watched_waiter_is_woken() {
        let (token, waiter) = (CancelToken::new(), Waiter::<()>::new());
        token.watch(&waiter);
        let other = token.clone();
        let thread = std::thread::spawn(move || other.cancel());
        let called = waiter.wait_in_line(Deadline::NEVER, &|| token.is_cancelled());
        assert!(called.is_none());
        thread.join().expect("thread");
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
