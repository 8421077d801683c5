//! Instants as numbers, the deadline of a wait, and pauses.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static EPOCH: LazyLock<Instant> = LazyLock::new(|| {
    let now = Instant::now();
    // Earlier than now, since an instant may have been taken before `EPOCH` was first used.
    now.checked_sub(Duration::from_secs(60)).unwrap_or(now)
});

/// An instant as a number, for atomics: nanoseconds of the monotonic clock since the epoch of this process.
pub(crate) fn nanos(at: Instant) -> u64 {
    let since = at.saturating_duration_since(*EPOCH);
    since
        .as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(since.subsec_nanos().into())
}

/// `span` as a limit; `None` (no limit) if [`nanos`] cannot express it, from 584 years on.
pub(crate) fn finite(span: Duration) -> Option<Duration> {
    (span.as_nanos() < u64::MAX.into()).then_some(span)
}

/// A rejected span, as errors about settings show it.
pub(crate) fn shown(span: Duration) -> String {
    match span {
        Duration::MAX => "Duration::MAX".into(),
        span => format!("{span:?}"),
    }
}

/// The instant with this number of [`nanos`].
pub(crate) fn instant(nanos: u64) -> Instant {
    *EPOCH + Duration::from_nanos(nanos)
}

/// When a call ends at the latest. The public method that was called computes it once; all steps of the call keep to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    /// The end of `wait`, from now on; never if the clock cannot express it.
    pub(crate) fn after(wait: Duration) -> Self {
        Self(Instant::now().checked_add(wait))
    }

    pub(crate) fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// The instant, or `None` for a deadline that never comes.
    pub(crate) fn instant(self) -> Option<Instant> {
        self.0
    }

    pub(crate) fn has_passed(self, now: Instant) -> bool {
        self.0.is_some_and(|at| now >= at)
    }

    /// The earlier of the deadline and `other`.
    pub(crate) fn earliest(self, other: Instant) -> Instant {
        self.0.map_or(other, |at| at.min(other))
    }

    /// How long a request sent at `began` may take.
    pub(crate) fn budget(self, began: Instant, command_timeout: Duration) -> Budget {
        let ends = began + command_timeout;
        Budget {
            began,
            until: self.earliest(ends),
            ends_with_caller: self.0.is_some_and(|at| at < ends),
        }
    }
}

/// How long one request to Redis may take: the command timeout, or less if the caller has less time.
///
/// What it means if a request ends without a usable reply is decided here, for every wait:
///
/// | ended by | the server may be healthy | the server is known to be unreachable, or is not ready |
/// | --- | --- | --- |
/// | the caller's time | not in time: `Ok(None)` | an error |
/// | the command timeout | an error; the threads queued behind this one get it too: see [`concerns_all`](Self::concerns_all) | the same |
///
/// If the server rejects the request for good, this thread alone gets the error.
///
/// If several of the following are true at the same moment, the first one counts:
///
/// 1. The lock or permit was granted, by Redis or by a thread of this process.
/// 2. An error is known: the thread's own, or one that another thread found for all waiting threads.
/// 3. The client is closed, or the token cancelled.
/// 4. The caller's time is up.
///
/// Rule 1 has an exception: a grant that arrives after the client was closed is given back, and the call returns
/// [`Error::Closed`](crate::Error::Closed).
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    began: Instant,
    pub(crate) until: Instant,
    /// Whether the request ends with the caller's time, before its command timeout.
    pub(crate) ends_with_caller: bool,
}

impl Budget {
    /// The budget of one request of a joint attempt: the joint budget (`self`), or the command timeout of this request's
    /// client if that ends earlier.
    pub(crate) fn within(self, began: Instant, command_timeout: Duration) -> Self {
        let other = Deadline::NEVER.budget(began, command_timeout);
        if other.until < self.until {
            other
        } else {
            self
        }
    }

    /// The rest of the budget, for a request that begins at `began`.
    pub(crate) fn rest_from(self, began: Instant) -> Self {
        Self { began, ..self }
    }

    /// How long the request may take.
    fn span(&self) -> Duration {
        self.until.saturating_duration_since(self.began)
    }

    /// The middle between `began` and the end of the budget.
    pub(crate) fn half_from(&self, began: Instant) -> Instant {
        began + self.until.saturating_duration_since(began) / 2
    }

    /// Whether the caller's time was up and nothing else went wrong. `is_late`: the server responds, and only this reply
    /// came too late.
    pub(crate) fn was_too_short(&self, is_late: bool) -> bool {
        self.ends_with_caller && is_late
    }

    /// Whether the threads queued behind this one get the error too. If they did not, each of them would wait for a
    /// command timeout of its own. `is_unanswered`: a reply might have come with more time.
    ///
    /// A request that had less than half the command timeout, such as one of the last of a multi-lock, does not show that
    /// Redis is unreachable. The error stays with the thread of that request.
    pub(crate) fn concerns_all(&self, is_unanswered: bool, command_timeout: Duration) -> bool {
        !self.ends_with_caller && is_unanswered && self.span() >= command_timeout / 2
    }
}

/// The grid of [`on_shared_tick`]. A span of at least 8 ticks ends at a multiple of 1 tick, one of at least 16 ticks at a
/// multiple of 2 ticks, and one of at least 32 ticks at a multiple of 4 ticks.
const TICK: Duration = Duration::from_millis(64);

/// The most doublings of a tick. With longer ticks, too many threads would wake at the same moment.
const DOUBLED: u32 = 2;

/// The end of `span`. The end of a long span is moved to an earlier tick, by at most an eighth of the span. All threads of
/// this process share these ticks; other processes have others.
///
/// Threads that wake at the same moment share writes to Redis and reads from it, and only the first has to wake the
/// processor. Measured with 1,000 threads that together poll 200 times a second: ticks of 64 ms halve the processor time
/// for each poll, and ticks of 256 ms halve it again.
pub(crate) fn on_shared_tick(now: Instant, span: Duration) -> Instant {
    let ends = now + span;
    let doublings = (span.as_nanos() / (TICK * 8).as_nanos()).checked_ilog2();
    let Some(doubled) = doublings.map(|most| most.min(DOUBLED)) else {
        return ends;
    };
    let tick = u64::try_from((TICK * 2_u32.pow(doubled)).as_nanos()).unwrap_or(u64::MAX);
    // Forked processes inherit the epoch; the process id gives each its own ticks.
    let phase = u64::from(std::process::id()).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let late = (nanos(ends) + phase) % tick;
    ends - Duration::from_nanos(late)
}

/// A random span from three quarters of `span` to all of it, so that threads waiting for the same thing do not all ask
/// again at once.
pub(crate) fn jittered(span: Duration) -> Duration {
    span - span / 4 * u32::try_from(random(256)).unwrap_or(0) / 256
}

/// A random duration between two others.
pub(crate) fn between(least: Duration, most: Duration) -> Duration {
    let spread = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
    least + Duration::from_micros(random(spread.max(1)))
}

/// Sleeps for `span`, or until `stop` returns true; calls `stop` every 5 ms.
pub(crate) fn sleep_unless(span: Duration, stop: &dyn Fn() -> bool) {
    let until = Instant::now() + span;
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() || stop() {
            return;
        }
        std::thread::sleep(remaining.min(Duration::from_millis(5)));
    }
}

/// A random number below `end`. The nanoseconds of the clock are random enough to spread threads out.
pub(crate) fn random(end: u64) -> u64 {
    (nanos(Instant::now()).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % end
}

#[cfg(test)]
mod tests;
