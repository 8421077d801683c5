//! Who goes first: writers that wait, or readers that come.
//!
//! A reader lets waiting writers of all processes go first, but only for a limited time: a writer that was stopped would
//! keep everybody out. A waiting writer subscribes to a channel, its *intent*, and Redis counts the subscribers when a
//! reader asks. Readers that join a hold of their process do not ask Redis, so a *probe* counts the subscribers for them
//! now and then. Writers for which readers have waited long enough in vain (*no-shows*) are ignored for a while.
//!
//! Readers of Redisson do not look for writers. Where they come and go all the time, writers wait for ever, and readers that
//! let them go first would too. So those that wait look who reads, and if clients like that do (*passers*), the readers of
//! this process pass all writers as well, for a while:
//!
//! ```text
//!                  a field of the hash was there, was not, and is there again, twice
//!   YIELDING ───────────────────────────────────────────────────────────────────────► PASSING
//!       ▲                                    PASS_FOR                                    │
//!       └────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A field is a thread in Redisson, which returns, and a single hold in this crate, which never does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The shortest time between two probes.
///
/// The reply is read by the next thread that uses the connection, or by the watchdog after 100 ms.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// After how long without a reply another probe is sent.
const PROBE_AGAIN: Duration = Duration::from_secs(1);

/// How long no-shows are ignored, as a multiple of the time that readers waited for them.
const PASSED_OVER: u32 = 6;

/// The shortest time between two looks at who reads.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// What was seen longer ago is no longer compared: somebody may have written meanwhile.
const LOOKS_LAST: Duration = Duration::from_secs(1);

/// How often a reader has to have come again until clients are known to pass waiting writers.
const RETURNS: usize = 2;

/// How many readers are remembered that have gone.
const GONE: usize = 128;

/// For how long readers then pass writers too.
const PASS_FOR: Duration = Duration::from_secs(2);

/// Who goes first when a reader comes while writers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    Writers,
    /// Readers, but for writers that wait in their own process.
    Readers,
    /// Readers, past writers of their own process as well.
    AllReaders,
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
    /// What readers that wait for writers see of those that read.
    looks: Option<Looks<P>>,
    /// Until then readers of this process pass all writers.
    passes_until: Option<Instant>,
}

/// Who reads, as far as those have seen it who wait for writers.
#[derive(Debug)]
struct Looks<P> {
    last: Instant,
    /// A look on its way.
    look: Option<P>,
    present: Vec<String>,
    gone: VecDeque<String>,
    returned: usize,
}

impl<P> Looks<P> {
    fn new(now: Instant) -> Self {
        Self {
            last: now,
            look: None,
            present: Vec::new(),
            gone: VecDeque::new(),
            returned: 0,
        }
    }

    /// These read now; `true` once enough of them have come again.
    fn saw(&mut self, readers: Vec<String>) -> bool {
        let returned = readers.iter().filter(|its| self.gone.contains(its));
        self.returned += returned.count();
        self.gone.retain(|its| !readers.contains(its));
        let before = std::mem::take(&mut self.present);
        let gone = before.into_iter().filter(|its| !readers.contains(its));
        self.gone.extend(gone);
        let surplus = self.gone.len().saturating_sub(GONE);
        self.gone.drain(..surplus);
        self.present = readers;
        self.returned >= RETURNS
    }
}

/// What a look at the readers has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    NothingYet,
    /// Nothing that says who came and who went: there are too many, or somebody writes.
    Unknown,
    These(Vec<String>),
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
            looks: None,
            passes_until: None,
        }
    }
}

impl<P> WriterPreference<P> {
    /// Whether readers of this process pass all writers now.
    pub(crate) fn passes(&self, now: Instant) -> bool {
        self.passes_until.is_some_and(|until| now < until)
    }

    /// A reader waits for writers: reads what the last look at the readers has `found`, and sends another from time to time.
    /// Returns whether one was sent.
    ///
    /// Nobody waits for the reply: the next look sees it.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        found: impl FnOnce(&P) -> Reading,
        send: impl FnOnce() -> Option<P>,
    ) -> bool {
        let recent = self
            .looks
            .take()
            .filter(|looks| now.saturating_duration_since(looks.last) < LOOKS_LAST);
        let is_new = recent.is_none();
        let mut looks = recent.unwrap_or_else(|| Looks::new(now));
        match looks.look.as_ref().map(found) {
            None => {}
            Some(Reading::NothingYet) => {
                self.looks = Some(looks);
                return false;
            }
            Some(Reading::Unknown) => {
                looks = Looks {
                    last: looks.last,
                    ..Looks::new(now)
                };
            }
            Some(Reading::These(readers)) => {
                looks.look = None;
                if looks.saw(readers) {
                    self.passes_until = Some(now + PASS_FOR);
                    return false;
                }
            }
        }
        let sends = is_new || now.saturating_duration_since(looks.last) >= LOOK_EVERY;
        if sends {
            (looks.last, looks.look) = (now, send());
        }
        let sent = sends && looks.look.is_some();
        self.looks = Some(looks);
        sent
    }

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
        if writers.is_none() {
            // Nobody passes a writer that has it.
            self.looks = None;
        }
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

    /// A thread of this process writes: it has passed all readers, and those that come again are no sign of any that pass it.
    pub(crate) fn wrote(&mut self) {
        self.looks = None;
    }

    /// A reader was granted the lock. If readers yielded to writers for `max_wait`, these writers are ignored from now on:
    /// a stopped one would delay every reader by as much.
    pub(crate) fn let_in(&mut self, now: Instant, max_wait: Duration) {
        self.looks = None;
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
        kept_out.is_none_or(|kept_out| now >= kept_out.forgotten_at)
            && self.no_shows(now) == 0
            && !self.passes(now)
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
        if self.passes(now) {
            return Follows::Join { sent: false };
        }
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

    /// Looks again and again at these, one letter each, until readers pass; returns how many looks that took.
    fn looks(
        preference: &mut WriterPreference<&'static str>,
        begin: Instant,
        every: Duration,
        looks: &[&'static str],
    ) -> Option<usize> {
        let mut now = begin;
        for (count, look) in looks.iter().enumerate() {
            let found = |readers: &&str| match *readers {
                "?" => Reading::Unknown,
                readers => Reading::These(readers.chars().map(String::from).collect()),
            };
            preference.look(now, found, || Some(look));
            if preference.passes(now) {
                return Some(count);
            }
            now += every;
        }
        None
    }

    #[test]
    fn readers_pass_writers_once_others_have_come_again_twice() {
        let begin = Instant::now();
        let passes = |every, seen: &[&'static str]| {
            looks(&mut WriterPreference::default(), begin, every, seen)
        };
        // What one look has found is known at the next.
        let (every, end) = (LOOK_EVERY, "");
        assert_eq!(passes(every, &["ab", "c", "ab", end]), Some(3));
        assert_eq!(passes(every, &["a", "b", "a", "b", end]), Some(4));
        assert_eq!(passes(every, &["a", "b", "a", end, end]), None);
        // Readers that stay, and those of this crate, who never come again.
        assert_eq!(
            passes(every, &["ab", "ab", "b", "bc", "cd", "de", end]),
            None
        );
        // Somebody may have written meanwhile.
        assert_eq!(passes(every, &["ab", "c", "?", "ab", end]), None);
        assert_eq!(passes(LOOKS_LAST, &["ab", "c", "ab", end]), None);
        assert_eq!(
            passes(LOOKS_LAST - LOOK_EVERY, &["ab", "c", "ab", end]),
            Some(3)
        );
    }

    #[test]
    fn who_comes_again_after_a_writer_passes_nobody() {
        type Event = fn(&mut WriterPreference<&'static str>, Instant);
        let events: [(Event, bool); 4] = [
            (|_, _| {}, true),
            (|preference, _| preference.wrote(), false),
            (|preference, now| preference.let_in(now, MAX_WAIT), false),
            (
                |preference, now| preference.keep_out(now, MAX_WAIT, None),
                false,
            ),
        ];
        for (n, (event, passes)) in events.into_iter().enumerate() {
            let (mut preference, begin) = (WriterPreference::default(), Instant::now());
            let every = LOOK_EVERY;
            assert_eq!(looks(&mut preference, begin, every, &["ab", "c", ""]), None);
            let later = begin + 3 * every;
            event(&mut preference, later);
            let found = looks(&mut preference, later, every, &["ab", "", ""]);
            assert_eq!(found.is_some(), passes, "{n}");
        }
    }

    #[test]
    fn readers_pass_for_a_while_and_then_yield_again() {
        let (mut preference, begin) = (WriterPreference::default(), Instant::now());
        let every = LOOK_EVERY;
        assert_eq!(
            looks(&mut preference, begin, every, &["ab", "c", "ab", ""]),
            Some(3)
        );
        let since = begin + 3 * every;
        let joins = Follows::Join { sent: false };
        assert_eq!(
            preference.probe(since, |_| Found::Writers(9), || None),
            joins
        );
        assert!(!preference.is_idle(since));
        let until = since + PASS_FOR;
        assert!(preference.passes(until - Duration::from_nanos(1)));
        assert!(!preference.passes(until) && preference.is_idle(until));
        // It takes as much again.
        assert_eq!(
            looks(&mut preference, until, every, &["c", "ab", "", ""]),
            None
        );
    }

    #[test]
    fn looks_are_sent_now_and_then_and_one_at_a_time() {
        let (mut preference, begin) = (WriterPreference::default(), Instant::now());
        let mut look = |after, found| preference.look(begin + after, |()| found, || Some(()));
        let none = || Reading::These(Vec::new());
        assert!(look(Duration::ZERO, none()));
        assert!(!look(LOOK_EVERY / 2, none()));
        assert!(look(LOOK_EVERY, none()));
        assert!(!look(2 * LOOK_EVERY, Reading::NothingYet));
        assert!(look(3 * LOOK_EVERY, none()));
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
