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

    /// The next try after an attempt that began at `began`, and that failed or is to be followed by a pause anyway. If the
    /// last failure is long ago, this one counts as the first.
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
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = |rule: BackOff| {
            let pauses = (0..8).map(|failures| rule.after(failures).as_millis());
            pauses.collect::<Vec<_>>()
        };
        assert_eq!(pauses(BackOff::SERVER), [0, 10, 20, 40, 80, 160, 250, 250]);
        assert_eq!(
            pauses(BackOff::POLL),
            [0, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000]
        );
        for rule in [BackOff::SERVER, BackOff::BACKGROUND, BackOff::POLL] {
            assert_eq!(rule.after(u32::MAX), rule.longest);
        }
        assert_eq!(pauses(BackOff::REFUSED)[1..], [1_000; 7]);
    }

    #[test]
    fn an_attempt_is_due_sooner_while_a_thread_waits_for_it() {
        let mut next = NextTry::at_once();
        assert!(next.due(false) <= Instant::now() && !next.has_failed());
        let pauses = |next: &NextTry| [true, false].map(|waits| next.due(waits) - next.since);
        for failures in 1..20 {
            next = next.after_failure(next.since);
            let expected = [BackOff::SERVER, BackOff::BACKGROUND];
            assert_eq!(pauses(&next), expected.map(|rule| rule.after(failures)));
        }
        // The first failure in a while.
        next = next.after_failure(next.since + 5 * BackOff::BACKGROUND.longest);
        assert_eq!(pauses(&next), [BackOff::SERVER.first; 2]);
        assert!(next.has_failed());
        let refused = NextTry::after_refusal();
        assert_eq!(pauses(&refused), [BackOff::REFUSED.first; 2]);
    }
}
