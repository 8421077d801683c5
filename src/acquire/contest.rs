//! Waiting for a majority of several servers beside others.

use std::time::Duration;

use crate::acquire::quorum::{self, Known};
use crate::net::subscriber::POLL_CAP;

/// What a contender for a majority of several servers knows of the others.
///
/// Those who are notified of a release ask at the same time, and each of them may be granted too few of the servers. So
/// whoever was refused looks again after a short random pause. Whoever then finds a majority taken need not: one of the
/// others has the lock, or looks again in turn, and the last of them to look finds whether it is free. Whoever has it
/// announces its release, and so does whoever was granted too few servers and does not look again.
#[derive(Default)]
pub(super) struct Contest {
    /// How many releases were announced before the last request.
    releases: u64,
    was_refused: bool,
    /// How many times in a row nobody may have had the lock. The pauses grow with the number of those who ask.
    contested: u32,
}

/// How many short pauses there are before they grow.
const SHORT_PAUSES: u32 = 4;

impl Contest {
    /// What is known before a request, by the releases that were announced so far.
    pub(super) fn knows(&mut self, releases: u64) -> Known {
        if std::mem::replace(&mut self.releases, releases) != releases {
            self.contested = 0;
            Known::Released
        } else if self.was_refused {
            Known::Busy
        } else {
            Known::Nothing
        }
    }

    pub(super) fn is_refused(&mut self, is_contested: bool) {
        self.was_refused = true;
        self.contested = if is_contested { self.contested + 1 } else { 0 };
    }

    pub(super) fn pause(&self, cap: Duration) -> Duration {
        match self.contested {
            0 => cap,
            n => Self::grown(quorum::pause(), n).min(cap),
        }
    }

    /// The longest pause that may follow the next request, if nobody may have the lock then.
    pub(super) fn longest_pause(&self) -> Duration {
        Self::grown(quorum::PAUSE.1, self.contested + 1)
    }

    fn grown(pause: Duration, contested: u32) -> Duration {
        let times = 1 << contested.saturating_sub(SHORT_PAUSES).min(10);
        pause.saturating_mul(times).min(POLL_CAP.0)
    }
}
