//! Waiting for a majority of several servers while other contenders do the same.

use std::time::Duration;

use crate::acquire::pacer::Pacer;
use crate::acquire::quorum::PAUSE;

/// The knowledge of a contender about the others that want a majority of the same servers.
///
/// All contenders that are notified of a release ask at the same time, and each may be granted too few of the servers. So
/// a contender whose request was refused pauses for a short random time. Unless a message has come since, it then looks:
/// it reads the leases without requesting anything (see `quorum::ask`). If a majority is free, or too few servers have
/// answered, the contender requests the lock. Otherwise it waits for a message, and some release will send it:
///
/// - A single holder may have a majority. The release of that holder is announced.
/// - Several contenders may have a few servers each, which they give back. Each of them looks after a pause of its own. The
///   last to look finds the lock free and takes it, and the release of that hold is announced.
///
/// A contender that was granted too few servers and does not look again announces that it gives them back.
pub(super) struct Contest {
    /// How many messages had arrived when the last round began, or, if that round was contested, when it ended.
    messages_seen: u64,
    was_refused: bool,
    /// The last round may have granted the lock to nobody.
    is_contested: bool,
    pacer: Pacer,
}

impl Default for Contest {
    fn default() -> Self {
        Self {
            messages_seen: 0,
            was_refused: false,
            is_contested: false,
            // The pauses become longer, up to 0.8 s, for as long as several contenders ask at the same time.
            pacer: Pacer::new(PAUSE, 4),
        }
    }
}

impl Contest {
    /// Called before a request, with the number of `messages` that have arrived so far. Returns whether the lock was refused
    /// and nothing was announced since.
    pub(super) fn begin_request(&mut self, messages: u64) -> bool {
        let is_news = std::mem::replace(&mut self.messages_seen, messages) != messages;
        if is_news {
            self.pacer.reset();
        }
        !is_news && self.was_refused
    }

    /// The request was refused, when `messages` had arrived.
    pub(super) fn record_refusal(&mut self, is_contested: bool, messages: u64) {
        (self.was_refused, self.is_contested) = (true, is_contested);
        match is_contested {
            // Several masters announce the same release. The messages that arrived during the round are about the
            // release that led to it, so they are no news.
            true => self.messages_seen = messages,
            false => self.pacer.reset(),
        }
    }

    /// The pause before the next request: `otherwise`, unless the last round was contested.
    pub(super) fn next_pause(&mut self, otherwise: Duration) -> Duration {
        match self.is_contested {
            true => self.pacer.next_pause().min(otherwise),
            false => otherwise,
        }
    }

    /// The longest pause that may follow the next request, if that is contested.
    pub(super) fn longest_pause(&self) -> Duration {
        self.pacer.longest()
    }
}
