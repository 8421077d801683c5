//! Who goes first: writers that wait, or readers that come.
//!
//! A reader lets waiting writers of all processes go first, but only for a limited time: a writer that was stopped would
//! keep everybody out. A waiting writer subscribes to a channel, its *intent*, and Redis counts the subscribers when a
//! reader asks. Readers that join a hold of their process do not ask Redis, so a *probe* counts the subscribers for them
//! now and then. Writers for which readers have waited long enough in vain (*no-shows*) are ignored for a while.

use std::time::{Duration, Instant};

/// The shortest time between two probes.
///
/// The reply is read by the next thread that uses the connection, or by the watchdog after 100 ms.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// After how long without a reply another probe is sent.
const PROBE_AGAIN: Duration = Duration::from_secs(1);

/// How long no-shows are ignored, as a multiple of the time that readers waited for them.
const PASSED_OVER: u32 = 6;

/// Who goes first when a reader comes while writers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    Writers,
    Readers,
}

/// What is remembered of the writers of one lock. `P` is a probe on its way.
#[derive(Debug)]
pub(crate) struct WriterPreference<P> {
    /// The last probe, while readers of this process come and go.
    probe: Option<Probe<P>>,
    /// Readers of this process that were refused, and have not read since.
    kept_out: Option<KeptOut>,
    /// Writers of other processes that were let go first, and did not come.
    no_shows: Option<NoShows>,
}

#[derive(Debug)]
struct KeptOut {
    since: Instant,
    forgotten_at: Instant,
    /// The lowest number of waiting writers seen since then; zero once one was seen to write.
    writers: u64,
}

#[derive(Debug)]
struct NoShows {
    count: u64,
    forgotten_at: Instant,
}

#[derive(Debug)]
struct Probe<P> {
    since: Instant,
    probe: P,
}

/// What a probe has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    NothingYet,
    Failed,
    Writers(u64),
}

/// What follows for readers that join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follows {
    /// They go on joining; `sent` if a probe was made.
    Join { sent: bool },
    /// No more of them may join: writers wait.
    Close,
}

impl<P> Default for WriterPreference<P> {
    fn default() -> Self {
        Self {
            probe: None,
            kept_out: None,
            no_shows: None,
        }
    }
}

impl<P> WriterPreference<P> {
    /// Since when readers of this process have been refused. A reader that tries again and again counts as one that waits,
    /// so that it yields to writers for no longer.
    pub(crate) fn kept_out_since(&self, now: Instant) -> Instant {
        match &self.kept_out {
            Some(kept_out) if now < kept_out.forgotten_at => kept_out.since,
            _ => now,
        }
    }

    /// A reader was refused, because so many `writers` wait or because somebody writes. A reader that comes within
    /// `memory` counts as refused since then.
    pub(crate) fn keep_out(&mut self, now: Instant, memory: Duration, writers: Option<u64>) {
        let before = self.kept_out.as_ref();
        let least = before
            .filter(|kept_out| now < kept_out.forgotten_at)
            .map_or(u64::MAX, |kept_out| kept_out.writers);
        self.kept_out = Some(KeptOut {
            since: self.kept_out_since(now),
            forgotten_at: now + memory,
            writers: least.min(writers.unwrap_or(0)),
        });
    }

    /// A reader was granted the lock. If readers yielded to writers for `max_wait`, these writers are ignored from now on:
    /// a stopped one would delay every reader by as much.
    pub(crate) fn let_in(&mut self, now: Instant, max_wait: Duration) {
        if let Some(kept_out) = self.kept_out.take()
            && kept_out.writers > 0
            && now >= kept_out.since + max_wait
        {
            self.no_shows = Some(NoShows {
                count: kept_out.writers,
                forgotten_at: now + max_wait * PASSED_OVER,
            });
            // Its reply may be older than that.
            self.probe = None;
        }
    }

    /// How many of the waiting writers of other processes to ignore.
    pub(crate) fn no_shows(&self, now: Instant) -> u64 {
        self.no_shows
            .as_ref()
            .filter(|no_shows| now < no_shows.forgotten_at)
            .map_or(0, |no_shows| no_shows.count)
    }

    /// So many writers wait now. If that is fewer than were ignored, some have left, and a new one must not be ignored.
    pub(crate) fn count_writers(&mut self, writers: u64) {
        if let Some(no_shows) = &mut self.no_shows {
            no_shows.count = no_shows.count.min(writers);
        }
    }

    /// Whether dropping it would forget nothing.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        let kept_out = self.kept_out.as_ref();
        kept_out.is_none_or(|kept_out| now >= kept_out.forgotten_at) && self.no_shows(now) == 0
    }

    /// A reader joins a hold of this process: reads what the last probe has `found`, and sends another from time to time.
    ///
    /// Nobody waits for the reply: the next reader sees it.
    pub(crate) fn probe(
        &mut self,
        now: Instant,
        found: impl FnOnce(&P) -> Found,
        send: impl FnOnce() -> Option<P>,
    ) -> Follows {
        if let Some(Probe { since, probe }) = &self.probe {
            let age = now.saturating_duration_since(*since);
            let found = found(probe);
            if let Found::Writers(writers) = found {
                if writers > self.no_shows(now) {
                    self.probe = None;
                    return Follows::Close;
                }
                self.count_writers(writers);
            }
            let again = match found {
                Found::NothingYet => PROBE_AGAIN,
                Found::Failed | Found::Writers(_) => PROBE_EVERY,
            };
            if age < again {
                return Follows::Join { sent: false };
            }
        }
        self.probe = send().map(|probe| Probe { since: now, probe });
        Follows::Join {
            sent: self.probe.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(1);

    #[test]
    fn writers_that_do_not_come_are_passed_over_for_a_while() {
        let (mut preference, begin) = (WriterPreference::<()>::default(), Instant::now());
        for (after, writers) in [(0, 3), (400, 2), (800, 4)] {
            let now = begin + Duration::from_millis(after);
            preference.keep_out(now, MAX_WAIT, Some(writers));
            assert_eq!(preference.kept_out_since(now), begin);
        }
        let now = begin + MAX_WAIT;
        preference.let_in(now, MAX_WAIT);
        assert_eq!(preference.no_shows(now), 2);
        assert!(!preference.is_idle(now));
        preference.count_writers(1);
        assert_eq!(preference.no_shows(now), 1);
        let later = now + MAX_WAIT * PASSED_OVER;
        assert_eq!(preference.no_shows(later), 0);
        assert!(preference.is_idle(later));
    }

    #[test]
    fn nobody_is_passed_over_who_wrote_or_was_not_waited_for() {
        let begin = Instant::now();
        let no_shows = |writers, waited| {
            let mut preference = WriterPreference::<()>::default();
            preference.keep_out(begin, MAX_WAIT, writers);
            preference.let_in(begin + waited, MAX_WAIT);
            preference.no_shows(begin + waited)
        };
        assert_eq!(no_shows(Some(1), MAX_WAIT), 1);
        assert_eq!(no_shows(Some(1), MAX_WAIT - Duration::from_millis(1)), 0);
        assert_eq!(no_shows(None, MAX_WAIT), 0);
    }

    #[test]
    fn a_probe_is_sent_now_and_then_and_closes_what_readers_join() {
        let (mut preference, begin) = (WriterPreference::default(), Instant::now());
        let mut probe = |after: Duration, found| {
            let sent = Follows::Join { sent: true };
            let follows = preference.probe(begin + after, |()| found, || Some(()));
            (follows == Follows::Close, follows == sent)
        };
        assert_eq!(probe(Duration::ZERO, Found::Failed), (false, true));
        assert_eq!(probe(PROBE_EVERY, Found::NothingYet), (false, false));
        assert_eq!(probe(PROBE_EVERY / 2, Found::Writers(0)), (false, false));
        assert_eq!(probe(PROBE_EVERY, Found::Writers(0)), (false, true));
        let again = PROBE_EVERY + PROBE_AGAIN;
        assert_eq!(probe(again, Found::NothingYet), (false, true));
        assert_eq!(probe(again, Found::Writers(1)), (true, false));
        assert_eq!(probe(again, Found::Failed), (false, true));
    }
}
