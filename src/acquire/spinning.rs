//! Waiting where nothing is announced.

use std::time::{Duration, Instant};

use crate::time;

/// The longest pause.
const LONGEST: Duration = Duration::from_millis(128);

/// By how much a lease has to end later than the last time to be another one, or renewed: replies can be late.
const LATER: Duration = Duration::from_millis(20);

/// The pauses between the attempts of a spin lock: 1 ms, then each twice as long as the one before and up to as many
/// milliseconds more as there have been pauses. They grow for as long as the same holder keeps the lock without renewing it.
///
/// They start again once somebody else has taken it: where each thread of a client asks for itself, as in Redisson, one of
/// them soon has short pauses, and a process of which one thread asks would have the lock less and less often.
///
/// Source: the exponential back-off of Redisson's spin lock.
#[derive(Default)]
pub(super) struct Spin {
    pause: Duration,
    pauses: u32,
    /// When the holder's lease ends, by the answer to a request; the earliest since the pauses started.
    ends_at: Option<Instant>,
}

impl Spin {
    /// Somebody has the lock until `ends_at`.
    pub(super) fn was_refused(&mut self, ends_at: Instant) {
        let before = self.ends_at.unwrap_or(ends_at);
        if ends_at > before + LATER {
            (self.pauses, self.ends_at) = (0, Some(ends_at));
        } else {
            // Short leases that follow one another add up.
            self.ends_at = Some(before.min(ends_at));
        }
    }

    pub(super) fn next_pause(&mut self) -> Duration {
        self.pause = match self.pauses {
            0 => Duration::from_millis(1),
            pauses => {
                let more = time::random(pauses.into());
                (self.pause * 2 + Duration::from_millis(more)).min(LONGEST)
            }
        };
        self.pauses = self.pauses.saturating_add(1);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_start_again_when_somebody_else_takes_the_lock() {
        let (mut spin, end) = (Spin::default(), Instant::now() + Duration::from_secs(30));
        let mut pauses = |ends_at: Instant| {
            spin.was_refused(ends_at);
            spin.next_pause()
        };
        let first = pauses(end);
        assert!(pauses(end) > first && pauses(end + LATER) > first);
        let another = end + 2 * LATER + Duration::from_nanos(1);
        assert_eq!(pauses(another), first);
        assert!(pauses(another) > first);
        // Also in small steps.
        let half = LATER * 3 / 4;
        assert!(pauses(another + half) > first);
        assert_eq!(pauses(another + 2 * half), first);
    }

    #[test]
    fn a_pause_doubles_and_stops_at_its_longest() {
        let mut spin = Spin::default();
        let mut last = spin.next_pause();
        assert_eq!(last, Duration::from_millis(1));
        for pauses in 1..40 {
            let pause = spin.next_pause();
            let most = last * 2 + Duration::from_millis(pauses);
            assert!(pause >= (last * 2).min(LONGEST) && pause <= most.min(LONGEST));
            last = pause;
        }
        assert_eq!(last, LONGEST);
    }
}
