//! When to try again after a failure.

use std::time::{Duration, Instant};

/// How pauses grow while the same thing fails again and again: each is twice as long as the one before, up to the longest.
///
/// The constants below are the rules for most pauses before a connection is made again or a call is repeated. Other pauses
/// are, for example, `REST` of the pipeline, `PAUSE` of a quorum, `SLACK` of the watchdog, and `2 * SHARE` before the
/// Sentinels are asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackOff {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl BackOff {
    /// A server that a thread waits for. The pauses grow, since electing a master takes a while, but stay short.
    pub(crate) const SERVER: Self = Self::of_millis(10, 250);

    /// A server that no thread waits for. The pauses grow long, since it may be gone for good.
    pub(crate) const BACKGROUND: Self = Self::of_millis(10, 10_000);

    /// A refusal that does not pass by itself, such as a wrong password, whether a thread waits or not. Also a SUBSCRIBE
    /// that the server cannot execute now.
    pub(crate) const REFUSED: Self = Self::of_millis(1_000, 1_000);

    /// A thread that waits for a message, and asks again if none has come.
    pub(crate) const POLL: Self = Self::of_millis(1_000, 5_000);

    const fn of_millis(first: u64, longest: u64) -> Self {
        Self {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
        }
    }

    /// The pause after `failures` failures in a row; zero if nothing has failed.
    pub(crate) fn after(self, failures: u32) -> Duration {
        match failures.checked_sub(1) {
            Some(doublings) => {
                let grown = self.first.saturating_mul(1 << doublings.min(16));
                grown.min(self.longest)
            }
            None => Duration::ZERO,
        }
    }
}

/// When something is tried again, by how often it has failed in a row.
#[derive(Clone)]
pub(crate) struct NextTry {
    since: Instant,
    failures: u32,
    is_refused: bool,
}

impl NextTry {
    /// Nothing has failed.
    pub(crate) fn at_once() -> Self {
        Self {
            since: Instant::now(),
            failures: 0,
            is_refused: false,
        }
    }

    /// An attempt that began at `began` has ended: it failed, or it succeeded but a pause has to follow. Returns when the
    /// next try is due. If the last failure is long ago, this attempt counts as the first failure.
    pub(crate) fn after_failure(&self, began: Instant) -> Self {
        let rested = began.saturating_duration_since(self.since);
        let pause = BackOff::BACKGROUND.after(self.failures);
        let is_new = rested > 4 * pause.max(BackOff::SERVER.longest);
        Self {
            failures: if is_new { 1 } else { self.failures + 1 },
            ..Self::at_once()
        }
    }

    /// An attempt was refused for a reason that does not pass by itself.
    pub(crate) fn after_refusal() -> Self {
        Self {
            failures: 1,
            is_refused: true,
            ..Self::at_once()
        }
    }

    /// Whether an attempt has failed since one last succeeded.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// When the next try is due. `is_waited_for`: a thread waits for it.
    pub(crate) fn due(&self, is_waited_for: bool) -> Instant {
        let rule = match (self.is_refused, is_waited_for) {
            (true, _) => BackOff::REFUSED,
            (false, true) => BackOff::SERVER,
            (false, false) => BackOff::BACKGROUND,
        };
        self.since + rule.after(self.failures)
    }
}

#[cfg(test)]
mod tests;
