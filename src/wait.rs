//! Waiting: the deadline, the token that cancels, and the one place where a thread parks.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::call::{Call, Fault};
use crate::hold::Hold;
use crate::room::Start;

static EPOCH: LazyLock<Instant> = LazyLock::new(|| {
    let now = Instant::now();
    // Some room below, for moments that were taken before anybody asked for the epoch.
    now.checked_sub(Duration::from_secs(60)).unwrap_or(now)
});

/// A moment as a number, for atomics: nanoseconds of the monotonic clock since the epoch of this process.
pub(crate) fn nanos(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX)
}

/// The moment of [`nanos`].
pub(crate) fn instant(nanos: u64) -> Instant {
    *EPOCH + Duration::from_nanos(nanos)
}

/// When a wait ends: one moment for all its parts, taken once at the public edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    /// `wait` from now on; never, if that is beyond what the clock can tell.
    pub(crate) fn after(wait: Duration) -> Self {
        Self(Instant::now().checked_add(wait))
    }

    pub(crate) fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    pub(crate) fn has_passed(self, now: Instant) -> bool {
        self.0.is_some_and(|at| now >= at)
    }

    /// The earlier of the deadline and `other`.
    pub(crate) fn or(self, other: Instant) -> Instant {
        self.0.map_or(other, |at| at.min(other))
    }

    /// The time for a question asked at `began`.
    pub(crate) fn budget(self, began: Instant, response_timeout: Duration) -> Budget {
        let ends = began + response_timeout;
        Budget {
            until: self.or(ends),
            callers: self.0.is_some_and(|at| at < ends),
        }
    }
}

/// How long one question to Redis may take: the response timeout, or less if the caller has less time.
///
/// What it means that there is no answer by then is decided here, for every wait:
///
/// | it ended with | nothing is known against the server | the server is known to be away, or refused |
/// | --- | --- | --- |
/// | the caller's time | not in time: `Ok(None)` | an error |
/// | the response timeout | an error, also for those who wait in line | the same; a refusal concerns the caller alone |
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) until: Instant,
    /// The caller's time ends it, not the response timeout.
    pub(crate) callers: bool,
}

impl Budget {
    /// The same, or less: with the response timeout of one of several servers.
    pub(crate) fn within(self, began: Instant, response_timeout: Duration) -> Self {
        let other = Deadline::NEVER.budget(began, response_timeout);
        if other.until < self.until {
            other
        } else {
            self
        }
    }

    /// Whether all there is to say is that the caller's time was up.
    pub(crate) fn was_too_short(&self, fault: &Fault) -> bool {
        self.callers && fault.is_late()
    }

    /// Whether those who wait in line need not find out again what cost the whole response timeout.
    pub(crate) fn concerns_all(&self, fault: &Fault) -> bool {
        !self.callers && fault.is_unanswered()
    }
}

/// Up to `span`, seldom less than three quarters of it, so that many who wait for the same do not come back together.
pub(crate) fn jittered(span: Duration) -> Duration {
    span - span / 4 * u32::try_from(random(256)).unwrap_or(0) / 256
}

/// A random span between two others.
pub(crate) fn between(least: Duration, most: Duration) -> Duration {
    let spread = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
    least + Duration::from_micros(random(spread.max(1)))
}

/// Sleeps for `span`, or until `stop`, which is looked at every few milliseconds.
pub(crate) fn sleep_unless(span: Duration, stop: &dyn Fn() -> bool) {
    let until = Instant::now() + span;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stop() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(5)));
    }
}

/// A number below `end`: the nanoseconds of the clock are random enough to spread threads out.
fn random(end: u64) -> u64 {
    (nanos(Instant::now()).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % end
}

/// What a thread in line is told.
#[derive(Clone)]
pub(crate) enum Called {
    /// The lock is yours.
    Granted(Arc<Hold>),
    /// You are the contender: ask Redis.
    Contend(Start<Arc<Call>>),
    /// Redis could not be asked, and not for want of time.
    Failed(Fault),
}

/// One thread that waits for a lock, and everything it can be told.
///
/// News are stored under the mutex of whoever has them (a room's, the subscriber's), and the thread is woken after
/// that mutex has been let go.
pub(crate) struct Waiter {
    signal: Mutex<Signal>,
    turned: Condvar,
}

#[derive(Default)]
struct Signal {
    called: Option<Called>,
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

impl Waiter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            signal: Mutex::new(Signal::default()),
            turned: Condvar::new(),
        })
    }

    /// Stores what the thread is told; [`Waiter::wake`] has to follow.
    pub(crate) fn store(&self, called: Called) {
        self.signal.lock().called = Some(called);
    }

    /// What the thread was told in line, if anything.
    pub(crate) fn called(&self) -> Option<Called> {
        self.signal.lock().called.take()
    }

    pub(crate) fn heard(&self) -> Heard {
        let signal = self.signal.lock();
        Heard {
            messages: signal.messages,
            listening: signal.listening,
        }
    }

    /// A message has come on the channel.
    pub(crate) fn message(&self) {
        self.signal.lock().messages += 1;
        self.turned.notify_one();
    }

    /// The subscription is confirmed or refused (`true`), or was lost (`false`).
    pub(crate) fn set_listening(&self, listening: bool) {
        self.signal.lock().listening = listening;
        self.turned.notify_one();
    }

    /// Wakes the thread, to look at its signal and at the state of the client and the token.
    pub(crate) fn wake(&self) {
        // Through the mutex, or the wake-up could fall between the thread's look and its sleep.
        drop(self.signal.lock());
        self.turned.notify_one();
    }

    /// Parks until something is told in line, `stop`, or the deadline.
    pub(crate) fn wait_in_line(
        &self,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Option<Called> {
        let mut signal = self.signal.lock();
        loop {
            if signal.called.is_some() {
                return signal.called.take();
            }
            if stop() {
                return None;
            }
            match deadline.0 {
                None => self.turned.wait(&mut signal),
                Some(at) => {
                    if Instant::now() >= at {
                        return None;
                    }
                    self.turned.wait_until(&mut signal, at);
                }
            }
        }
    }

    /// Parks the contender until something else than `seen` is heard, `stop`, or `until`.
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
            self.turned.wait_until(&mut signal, until);
        }
    }
}

/// The pauses of one who asks again and again: 1 ms, then each twice as long as the one before and up to as many
/// milliseconds more as there have been pauses, at most 128 ms.
///
/// Source: the exponential back-off of Redisson's spin lock.
pub(crate) struct BackOff {
    pause: Duration,
    pauses: u32,
}

impl BackOff {
    const LONGEST: Duration = Duration::from_millis(128);

    pub(crate) fn new() -> Self {
        Self {
            pause: Duration::ZERO,
            pauses: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.pause = if self.pauses == 0 {
            Duration::from_millis(1)
        } else {
            let more = random(u64::from(self.pauses));
            (self.pause * 2 + Duration::from_millis(more)).min(Self::LONGEST)
        };
        self.pauses = self.pauses.saturating_add(1);
        self.pause
    }
}

/// Ends waits from another thread: what Redisson's `lockInterruptibly` is for.
///
/// Given to a handle with `cancel_on`. Clones are the same token. Once cancelled it stays so: waits with it that have
/// begun end with [`Error::Cancelled`](crate::Error::Cancelled), within a few milliseconds while parked and within
/// about 64 ms while Redis owes an answer, and later ones at once. A lock that was granted first is returned.
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
    waiters: Mutex<Vec<Weak<Waiter>>>,
}

impl CancelToken {
    /// A token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every wait that uses this token. Does not block.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let waiters = std::mem::take(&mut *self.inner.waiters.lock());
        for waiter in waiters.iter().filter_map(Weak::upgrade) {
            waiter.wake();
        }
    }

    /// Whether [`CancelToken::cancel`] has been called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    /// From now on `waiter` is woken by a cancel. Those that are gone make room.
    pub(crate) fn watch(&self, waiter: &Arc<Waiter>) {
        let mut waiters = self.inner.waiters.lock();
        if waiters.len() == waiters.capacity() {
            waiters.retain(|waiter| waiter.strong_count() > 0);
        }
        waiters.push(Arc::downgrade(waiter));
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
    fn an_endless_wait_has_no_deadline() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::NEVER);
        let far = Instant::now() + Duration::from_secs(5);
        assert_eq!(Deadline::NEVER.or(far), far);
        assert!(!Deadline::NEVER.has_passed(far));
        assert!(Deadline::after(Duration::ZERO).has_passed(Instant::now()));
    }

    #[test]
    fn only_the_callers_time_can_have_been_too_short() {
        let (now, timeout) = (Instant::now(), Duration::from_secs(3));
        let err = || redis::RedisError::from(std::io::Error::other("nobody there"));
        let (late, away, refused) = (
            Fault::Late(err()),
            Fault::Unreachable(err()),
            Fault::Refused(err()),
        );
        let short = Deadline::at(now + timeout / 2).budget(now, timeout);
        let whole = Deadline::at(now + timeout).budget(now, timeout);
        assert!(short.was_too_short(&late) && !short.was_too_short(&away));
        assert!(!whole.was_too_short(&late) && !whole.was_too_short(&away));
        assert!(whole.concerns_all(&late) && whole.concerns_all(&away));
        assert!(!short.concerns_all(&late) && !short.concerns_all(&away));
        assert!(!short.was_too_short(&refused) && !whole.concerns_all(&refused));
        // A client among several that has less patience than the others ends it for itself.
        assert!(!short.within(now, timeout / 4).was_too_short(&late));
        assert!(short.within(now, timeout).was_too_short(&late));
        assert_eq!(Deadline::NEVER.budget(now, timeout).until, now + timeout);
    }

    #[test]
    fn jitter_stays_below_its_span() {
        let span = Duration::from_secs(1);
        for _ in 0..1000 {
            let jittered = jittered(span);
            assert!(jittered <= span && jittered >= span / 4 * 3, "{jittered:?}");
        }
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_back_off_doubles_and_stops_at_its_longest() {
        let mut back_off = BackOff::new();
        let mut last = back_off.next();
        assert_eq!(last, Duration::from_millis(1));
        for pauses in 1..40 {
            let pause = back_off.next();
            let most = last * 2 + Duration::from_millis(pauses);
            assert!(
                pause >= (last * 2).min(BackOff::LONGEST) && pause <= most.min(BackOff::LONGEST)
            );
            last = pause;
        }
        assert_eq!(last, BackOff::LONGEST);
    }

    #[test]
    fn moments_survive_being_numbers() {
        let now = Instant::now();
        assert_eq!(instant(nanos(now)), now);
    }

    #[test]
    fn a_cancelled_wait_ends_and_a_watched_waiter_is_woken() {
        let (token, waiter) = (CancelToken::new(), Waiter::new());
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
            token.watch(&Waiter::new());
        }
        assert!(token.inner.waiters.lock().capacity() < 64);
    }
}
