//! Waiting for a lock whose releases are not announced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::pacer::{PAUSE, Pacer};
use crate::config::TIMEOUTS;

/// By how much the end of a lease has to move to count as another lease or a renewal: replies can be late.
const LATER: Duration = Duration::from_millis(20);

/// The pauses between the attempts of a spin lock, which grow up to 128 ms for as long as the same holder keeps the lock
/// without renewing it.
///
/// Source: the exponential back-off of Redisson's spin lock.
///
/// Pauses are short again once somebody else has taken the lock. In Redisson each thread has pauses of its own, and a thread
/// that has just begun asks often. Here one thread asks for its whole process. Without the reset, the process would ask less
/// and less often, and hardly ever get the lock.
pub(super) struct Spin {
    pacer: Pacer,
    /// The pauses of the handle, which replace the usual ones.
    back_off: Option<BackOff>,
    /// How many attempts the present holder has outlasted.
    attempts: u32,
    /// The earliest end of the holder's lease that a reply has given since `pacer` was last reset.
    ends_at: Option<Instant>,
}

/// The pause after this many attempts.
pub(crate) type BackOff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

impl Spin {
    pub(super) fn new(back_off: Option<BackOff>) -> Self {
        Self {
            pacer: Pacer::new((PAUSE, 2 * PAUSE), 6),
            back_off,
            attempts: 0,
            ends_at: None,
        }
    }

    /// The lease of the present holder ends at `ends_at`.
    pub(super) fn record_refusal(&mut self, ends_at: Instant) {
        let earliest_end = self.ends_at.unwrap_or(ends_at);
        if ends_at > earliest_end + LATER {
            self.pacer.reset();
            self.attempts = 0;
            self.ends_at = Some(ends_at);
        } else {
            // The earliest end is kept. If the end moves several times by less than `LATER`, the moves are added up, and
            // count as another lease once their sum exceeds `LATER`.
            self.ends_at = Some(earliest_end.min(ends_at));
        }
    }

    pub(super) fn next_pause(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        match &self.back_off {
            Some(back_off) => back_off(self.attempts).clamp(PAUSE, *TIMEOUTS.end()),
            None => self.pacer.next_pause(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_start_again_when_somebody_else_takes_the_lock() {
        let (mut spin, end) = (Spin::new(None), Instant::now() + Duration::from_secs(30));
        let mut starts_again = |ends_at: Instant| {
            spin.record_refusal(ends_at);
            let is_short = spin.pacer.longest() == 2 * PAUSE;
            spin.next_pause();
            is_short
        };
        assert!(starts_again(end));
        assert!(!starts_again(end) && !starts_again(end + LATER));
        let another = end + 2 * LATER + Duration::from_nanos(1);
        assert!(starts_again(another));
        assert!(!starts_again(another));
        // Several small steps count as well.
        let half = LATER * 3 / 4;
        assert!(!starts_again(another + half));
        assert!(starts_again(another + 2 * half));
    }
}
