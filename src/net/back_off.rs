//! When what has failed is tried again.

use std::time::{Duration, Instant};

/// The pause after the first failure, doubled up to the second for each further one while somebody waits: an election takes
/// a while.
pub(crate) const BACK_OFF: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(250));

/// The longest while nobody waits: what is away may be away for good.
const BACKGROUND: Duration = Duration::from_secs(10);

/// The pause after a refusal that does not pass by itself, whoever waits.
pub(super) const REFUSED: Duration = Duration::from_secs(1);

/// Since when there is a pause, and how long it is.
#[derive(Clone)]
pub(crate) struct BackOff {
    since: Instant,
    pause: Duration,
    /// The longest for those who wait.
    most: Duration,
}

impl BackOff {
    /// Nothing has failed.
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            pause: Duration::ZERO,
            most: BACK_OFF.1,
        }
    }

    /// An attempt that began then has failed: again, or for the first time in a while.
    pub(crate) fn failed(&self, began: Instant) -> Self {
        let rested = began.saturating_duration_since(self.since);
        let is_new = rested > 4 * self.pause.max(BACK_OFF.1);
        let pause = if is_new { Duration::ZERO } else { self.pause };
        Self {
            since: Instant::now(),
            pause: (pause * 2).clamp(BACK_OFF.0, BACKGROUND),
            most: BACK_OFF.1,
        }
    }

    /// It has failed for a reason that does not pass by itself.
    pub(crate) fn failed_for_good() -> Self {
        Self {
            since: Instant::now(),
            pause: REFUSED,
            most: REFUSED,
        }
    }

    /// Whether nothing has failed since it last worked.
    pub(crate) fn is_untried(&self) -> bool {
        self.pause.is_zero()
    }

    /// When it is tried again, if somebody waits for it, or if nobody does.
    pub(crate) fn ends(&self, is_waited_for: bool) -> Instant {
        self.since
            + match is_waited_for {
                true => self.pause.min(self.most),
                false => self.pause,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_shorter_for_those_who_wait() {
        let mut back_off = BackOff::new();
        assert!(back_off.ends(false) <= Instant::now());
        let pauses = |its: &BackOff| [true, false].map(|waits| its.ends(waits) - its.since);
        for n in 0..20 {
            back_off = back_off.failed(back_off.since);
            let pause = (BACK_OFF.0 * (1 << n)).min(BACKGROUND);
            assert_eq!(pauses(&back_off), [pause.min(BACK_OFF.1), pause]);
        }
        // For the first time in a while.
        back_off = back_off.failed(back_off.since + 5 * BACKGROUND);
        assert_eq!(pauses(&back_off), [BACK_OFF.0; 2]);
        assert_eq!(pauses(&BackOff::failed_for_good()), [REFUSED; 2]);
    }
}
