//! How long this process has kept a lock or permits to itself, and when it yields to others.
//!
//! A *cohort* is the threads of this process that hold one after the other. A cohort starts with a grant by Redis,
//! survives short gaps without a holder, and may last for one tenure. Without that limit, other processes could wait
//! endlessly: the next request of the process that released reaches Redis before the others have woken.
//!
//! ```text
//!   granted ─► started ──the tenure is over──► the next contender has to yield ──others were notified──► a debt
//!                 ▲  │                                                                                    │
//!                 │  └─ refused, lost, a long gap: over                                                   │
//!                 └──────────────────── granted: nobody else wanted it, or the debt is paid ◄─────────────┘
//! ```

use std::time::{Duration, Instant};

/// A gap after a release that is longer than this, and than the tenure, ends the cohort.
pub(super) const GAP: Duration = Duration::from_millis(5);

/// The age of a cohort. `R` is a release under way.
#[derive(Debug, Clone)]
pub(super) struct Cohort<R> {
    /// In nanoseconds, which take fewer bytes than a `Duration`: every held lock has a cohort.
    tenure: u64,
    since: Option<Instant>,
    last_release: Option<(Instant, R)>,
    others: Others,
}

/// What is known of other processes that want the lock.
#[derive(Debug, Clone, Copy)]
enum Others {
    Unknown,
    /// By `known_at` the reply to a release of this cohort had arrived: the release has notified nobody.
    Absent {
        known_at: Instant,
    },
    /// The release at the end of the last tenure has notified several processes, and each of them may have a tenure
    /// first.
    ///
    /// The debt counts in time: no message says whose tenure is over, since a process also releases in the middle of
    /// one. All calls of this process share the debt, since a call with a short time limit ends before the debt does.
    First {
        until: Instant,
    },
}

impl<R> Cohort<R> {
    pub(super) fn new(tenure: Duration) -> Self {
        Self {
            tenure: u64::try_from(tenure.as_nanos()).unwrap_or(u64::MAX),
            since: None,
            last_release: None,
            others: Others::Unknown,
        }
    }

    pub(super) fn tenure(&self) -> Duration {
        Duration::from_nanos(self.tenure)
    }

    /// Redis granted something: the cohort starts unless it is running. A debt ends, since the processes to which it
    /// was owed have not taken the lock.
    pub(super) fn granted(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.others = Others::Unknown;
    }

    /// By `now` the reply to the last release has arrived, and the release has notified nobody.
    pub(super) fn record_alone(&mut self, now: Instant) {
        self.others = Others::Absent { known_at: now };
    }

    /// The release at the end of the tenure has notified `others` other processes.
    pub(super) fn owe(&mut self, others: u32, now: Instant) {
        // A single other process is next in any case, so it needs no debt. If the cohort has started again, Redis has
        // granted the lock to another thread of this process while the reply was on its way, so the notified processes
        // have had their turn to ask.
        if others > 1 && self.since.is_none() {
            let until = now + self.tenure().saturating_mul(others);
            self.others = Others::First { until };
        }
    }

    /// For how long a contender lets others ask first, if there is a debt: for the rest of the debt, but for no longer
    /// than a tenure. If nobody releases the lock within a tenure, the others hold it for long or do not want it.
    pub(super) fn owes(&self, now: Instant) -> Option<Duration> {
        let Others::First { until } = self.others else {
            return None;
        };
        let left = until.saturating_duration_since(now);
        (!left.is_zero()).then(|| left.min(self.tenure()))
    }

    pub(super) fn has_started(&self) -> bool {
        self.since.is_some()
    }

    /// Whether what began at `since` is younger than a tenure.
    ///
    /// A permit counts from its own grant, a lock from the start of the cohort: see [`is_young`](Self::is_young).
    pub(super) fn is_within_tenure(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) < self.tenure()
    }

    /// Whether the cohort has started and is younger than a tenure.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        self.since
            .is_some_and(|since| self.is_within_tenure(since, now))
    }

    /// A release was queued for Redis, which may notify other processes.
    pub(super) fn released(&mut self, release: R, now: Instant) {
        self.last_release = Some((now, release));
    }

    /// The last release, until the cohort ends.
    pub(super) fn last_release(&self) -> Option<&R> {
        self.last_release.as_ref().map(|(_, release)| release)
    }

    /// The cohort is over: another process has the lock, or it was lost. A debt stays.
    pub(super) fn end(&mut self) {
        self.since = None;
        self.last_release = None;
        if matches!(self.others, Others::Absent { .. }) {
            self.others = Others::Unknown;
        }
    }

    /// The release after which the thread that asks now has to yield, if others were notified of it. Returned once,
    /// since the cohort is over then. A gap that was too long ends the cohort as well.
    pub(super) fn yield_after(&mut self, now: Instant) -> Option<R> {
        // Without a release nobody was notified, so no other process can be next.
        let (released_at, _) = self.last_release.as_ref()?;
        if self.is_too_long_ago(*released_at, now) {
            self.end();
            return None;
        }
        if self.is_young(now) {
            return None;
        }
        // The tenure is over. `take` makes sure that only one of several threads that ask now yields for this release.
        let (others, last_release) = (self.others, self.last_release.take());
        self.end();
        // Within the last tenure a release was found to have notified nobody, so the thread does not yield: waiting for
        // the reply to the last release would cost a round trip, and a process that has begun to wait since is notified
        // by a release of the next tenure. The tenure counts from when the reply arrived, since a reply may take longer
        // than a tenure (bench: distance, one name again and again).
        match others {
            Others::Absent { known_at } if self.is_within_tenure(known_at, now) => None,
            _ => last_release.map(|(_, release)| release),
        }
    }

    /// Whether the last release is too long ago to matter, and there is no debt.
    pub(super) fn is_forgettable(&self, now: Instant) -> bool {
        let is_old = |(released_at, _): &(Instant, R)| self.is_too_long_ago(*released_at, now);
        self.last_release.as_ref().is_none_or(is_old) && self.owes(now).is_none()
    }

    fn is_too_long_ago(&self, released_at: Instant, now: Instant) -> bool {
        now.saturating_duration_since(released_at) > self.tenure().max(GAP)
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (Option<Instant>, Option<(Instant, R)>)
    where
        R: Copy,
    {
        (self.since, self.last_release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENURE: Duration = Duration::from_millis(8);
    const TICK: Duration = Duration::from_nanos(1);

    fn started(tenure: Duration, now: Instant) -> Cohort<u8> {
        let mut cohort = Cohort::new(tenure);
        cohort.granted(now);
        cohort
    }

    #[test]
    fn the_tenure_counts_from_the_first_grant() {
        let now = Instant::now();
        let mut cohort: Cohort<u8> = Cohort::new(TENURE);
        assert!(!cohort.is_young(now) && !cohort.has_started());
        cohort.granted(now);
        cohort.granted(now + TENURE - TICK);
        assert!(cohort.is_young(now + TENURE - TICK));
        assert!(!cohort.is_young(now + TENURE));
        assert!(cohort.has_started());
    }

    #[test]
    fn it_yields_once_after_a_whole_tenure() {
        let now = Instant::now();
        let mut cohort = started(TENURE, now);
        cohort.released(1, now + TENURE - TICK);
        assert_eq!(cohort.yield_after(now + TENURE - TICK), None);
        assert_eq!(cohort.yield_after(now + TENURE), Some(1));
        assert_eq!(cohort.yield_after(now + TENURE), None);
        assert!(!cohort.has_started());
    }

    #[test]
    fn a_gap_longer_than_the_tenure_and_the_limit_ends_it() {
        for tenure in [Duration::ZERO, GAP / 2, TENURE] {
            let now = Instant::now();
            let longest = tenure.max(GAP);
            let mut cohort = started(tenure, now);
            cohort.released(1, now);
            assert!(!cohort.is_forgettable(now + longest));
            assert_eq!(cohort.clone().yield_after(now + longest), Some(1));
            assert!(cohort.is_forgettable(now + longest + TICK));
            assert_eq!(cohort.yield_after(now + longest + TICK), None);
            assert!(!cohort.has_started());
        }
    }

    #[test]
    fn it_does_not_yield_if_nobody_was_notified_within_the_last_tenure() {
        let now = Instant::now();
        let ends = now + TENURE;
        let mut cohort = started(TENURE, now);
        cohort.record_alone(now);
        cohort.released(1, now + TICK);
        assert_eq!(
            cohort.clone().yield_after(ends),
            Some(1),
            "nothing is known"
        );
        // The reply arrives a whole tenure after its release was sent.
        cohort.granted(now + TENURE + TICK);
        cohort.record_alone(now + TENURE + TICK);
        let ends = ends + TENURE;
        cohort.released(2, ends);
        assert_eq!(
            cohort.clone().yield_after(ends + TICK),
            Some(2),
            "too long ago"
        );
        let mut notified = cohort.clone();
        notified.granted(ends);
        assert_eq!(notified.yield_after(ends), Some(2));
        let mut alone = cohort.clone();
        assert_eq!(alone.yield_after(ends), None);
        // The next tenure begins with the next grant; replies to releases of this one do not count for it.
        assert!(!alone.has_started());
        alone.granted(ends);
        alone.released(3, ends + TENURE);
        assert_eq!(alone.yield_after(ends + TENURE), Some(3));
    }

    #[test]
    fn without_a_tenure_it_yields_after_each_release() {
        let now = Instant::now();
        let mut cohort = started(Duration::ZERO, now);
        cohort.released(1, now);
        cohort.record_alone(now);
        cohort.released(2, now);
        assert_eq!(cohort.yield_after(now), Some(2));
    }

    #[test]
    fn others_ask_first_for_a_tenure_at_a_time_until_each_may_have_had_one() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut cohort: Cohort<u8> = Cohort::new(TENURE);
        assert_eq!(cohort.owes(now), None);
        for others in [4, 200] {
            let ends = u64::from(others) * 8;
            cohort.owe(others, now);
            for ms in 0..ends - 8 {
                // The lock is held by another process, or the call is over.
                cohort.end();
                assert_eq!(cohort.owes(at(ms)), Some(TENURE), "{others} {ms}");
            }
            assert!(!cohort.is_forgettable(at(ends - 1)));
            let last = Some(Duration::from_millis(1));
            assert_eq!(cohort.owes(at(ends - 1)), last, "the debt ends");
            assert_eq!(cohort.owes(at(ends)), None);
            assert!(cohort.is_forgettable(at(ends)));
        }
    }

    #[test]
    fn nothing_is_owed_to_one_other_nor_after_a_grant() {
        let now = Instant::now();
        let mut cohort: Cohort<u8> = Cohort::new(TENURE);
        cohort.owe(1, now);
        assert_eq!(cohort.owes(now), None);
        cohort.owe(2, now);
        assert_eq!(cohort.owes(now), Some(TENURE));
        cohort.granted(now);
        assert_eq!(cohort.owes(now), None);
        cohort.owe(2, now);
        assert_eq!(
            cohort.owes(now),
            None,
            "it was granted before the reply came"
        );
    }

    #[test]
    fn without_a_release_a_question_ends_nothing() {
        let now = Instant::now();
        let mut cohort = started(TENURE, now);
        assert_eq!(cohort.yield_after(now + 9 * TENURE), None);
        assert!(cohort.has_started());
    }
}
