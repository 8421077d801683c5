//! Waiting for a majority of several servers beside others.

use std::time::Duration;

use crate::acquire::pacer::Pacer;
use crate::acquire::quorum::{Known, PAUSE};

/// The other contenders for a majority of several servers, as far as one of them knows.
///
/// All who are notified of a release ask at the same time, and each of them may be granted too few of the servers. So
/// a contender that was refused looks again after a short random pause. If it then finds a majority taken, it waits for a
/// message: one of the others has the lock, or looks again in turn, and the last of them to look finds whether it is free. The
/// holder announces its release, and so does a contender that was granted too few servers and does not look again.
pub(super) struct Contest {
    /// How many messages had come before the last request, or by its reply if it was contested.
    heard: u64,
    was_refused: bool,
    /// The last round may have granted the lock to nobody.
    is_contested: bool,
    pacer: Pacer,
}

impl Default for Contest {
    fn default() -> Self {
        Self {
            heard: 0,
            was_refused: false,
            is_contested: false,
            // Longer and longer, up to 0.8 s, for as long as several ask at the same time.
            pacer: Pacer::new(PAUSE, 4),
        }
    }
}

impl Contest {
    /// The contender's knowledge before a request, when so many messages have come.
    pub(super) fn knows(&mut self, messages: u64) -> Known {
        if std::mem::replace(&mut self.heard, messages) != messages {
            self.pacer.reset();
            Known::Released
        } else if self.was_refused {
            Known::Busy
        } else {
            Known::Nothing
        }
    }

    /// The request was refused, and so many messages had come by then.
    pub(super) fn record_refusal(&mut self, is_contested: bool, messages: u64) {
        (self.was_refused, self.is_contested) = (true, is_contested);
        match is_contested {
            // Messages about a release that led to this round say nothing new.
            true => self.heard = messages,
            false => self.pacer.reset(),
        }
    }

    /// The pause before the next request, or `otherwise`.
    pub(super) fn next_pause(&mut self, otherwise: Duration) -> Duration {
        match self.is_contested {
            true => self.pacer.next_pause().min(otherwise),
            false => otherwise,
        }
    }

    /// The longest pause that may follow the next request, if nobody may have the lock then.
    pub(super) fn longest_pause(&self) -> Duration {
        self.pacer.longest()
    }
}
