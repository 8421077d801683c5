//! How readers of a read-write lock let waiting writers go first.
//!
//! A writer that waits subscribes to a channel on which nothing is ever sent, and Redis counts the subscribers when a
//! reader asks. A writer that is stopped would keep readers out for ever, so they yield for a limited time.

use std::time::{Duration, Instant};

use crate::hold::Entry;
use crate::local::preference::Prefer;
use crate::protocol::script::{Acquired, Seen};

/// How often a reader leaves a free lock to a writer that does not take it.
const MAX_YIELDS: u32 = 8;

/// A reader that yields to writers.
pub(crate) struct Reader {
    /// It yields until then, and at most `left` times more.
    until: Instant,
    left: u32,
    was_refused: bool,
}

impl Reader {
    /// Counts from the first refusal: a reader that tries again and again yields for no longer than one that waits.
    pub(crate) fn new(entry: &Entry, waiter_lease: Duration, prefer: Prefer) -> Self {
        let kept_out_since = entry.lock().kept_out_since(Instant::now());
        Self {
            until: kept_out_since + waiter_lease,
            left: match prefer {
                Prefer::Writers => MAX_YIELDS,
                Prefer::Readers | Prefer::AllReaders => 0,
            },
            was_refused: false,
        }
    }

    pub(crate) fn yields(&self) -> bool {
        self.left > 0 && Instant::now() < self.until
    }

    /// If it yields: how many of the waiting writers to ignore.
    pub(crate) fn ignored_writers(&self, entry: &Entry) -> Option<u64> {
        if !self.yields() {
            return None;
        }
        entry.lock().ignored_writers(Instant::now())
    }

    /// Redis has answered a request; `yielded` says whether that let writers go first.
    pub(crate) fn was_answered(
        &mut self,
        entry: &Entry,
        acquired: Acquired,
        seen: Seen,
        yielded: bool,
        waiter_lease: Duration,
    ) {
        let mut state = entry.lock();
        match (acquired, seen.writers) {
            (Acquired::Busy { left, .. }, writers) => {
                let now = Instant::now();
                state.keep_out(now, waiter_lease, writers);
                if !std::mem::replace(&mut self.was_refused, true) {
                    // Not from when it began to ask: let in sooner than a waiter lease after the refusal, it would
                    // not record the writers as absent, and the next reader would wait for them again.
                    self.until = state.kept_out_since(now) + waiter_lease;
                }
                if yielded && left == Some(Duration::ZERO) {
                    self.left -= 1;
                }
            }
            (_, Some(writers)) => state.count_writers(writers),
            _ => {}
        }
    }
}
