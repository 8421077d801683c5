//! How long this process has kept a lock or permits to itself, and when it yields to others.
//!
//! A *cohort* is the threads of this process that hold the lock or permits one after another. A cohort starts with a grant
//! by Redis, survives short gaps without a holder, and may last for one tenure. Without that limit, other processes could
//! wait endlessly: the next request of the process that released reaches Redis before the others have woken.
//!
//! ```text
//!   granted ─► started ──the tenure is over──► the next contender has to yield ──several were notified─► a debt
//!                 ▲  │                                                                                    │
//!                 │  └─ refused, lost, a long gap: over                                                   │
//!                 └──────────────────── granted: nobody else wanted it, or the debt is paid ◄─────────────┘
//! ```
//!
//! A *debt* is the time for which this process lets several notified processes go first ([`owe`](Cohort::owe)). It begins
//! only for a lock whose contenders have to alternate by themselves (`Strategy::alternates`).

use std::time::{Duration, Instant};

/// After a release, a gap longer than both this and the tenure ends the cohort.
pub(crate) const GAP: Duration = Duration::from_millis(5);

/// The age of a cohort. `R` is a release under way.
#[derive(Debug, Clone)]
pub(crate) struct Cohort<R> {
    /// In nanoseconds, which take fewer bytes than a `Duration`: every held lock has a cohort.
    tenure: u64,
    since: Option<Instant>,
    last_release: Option<(Instant, R)>,
    others: Others,
}

/// The knowledge about other processes that want the lock.
#[derive(Debug, Clone, Copy)]
enum Others {
    Unknown,
    /// A release of this cohort has notified nobody. `known_at`: when the grant after that release came. By then the reply
    /// to the release had been read. This knowledge is used for one tenure, counted from `known_at`. It is not counted
    /// from the release, because on a slow network the reply alone takes longer than a tenure (bench `distance`, "lock +
    /// drop of one name, again and again").
    Absent {
        known_at: Instant,
    },
    /// The release at the end of the last tenure has notified several processes, and each of them may have a tenure
    /// first.
    ///
    /// The debt counts in time: no message says whose tenure is over, since a process also releases in the middle of its
    /// tenure. All calls of this process share the debt. Otherwise calls with short time limits would each end before they
    /// had paid it.
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

    pub(crate) fn tenure(&self) -> Duration {
        Duration::from_nanos(self.tenure)
    }

    /// Redis granted something: the cohort starts unless it is running. A debt ends: the lock was free, so the others have
    /// not taken it, or have released it again. What was known of others is forgotten.
    pub(super) fn granted(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.others = Others::Unknown;
    }

    /// The reply to the last release says that the release notified nobody. This is known since the grant at `now`.
    pub(super) fn record_alone(&mut self, now: Instant) {
        self.others = Others::Absent { known_at: now };
    }

    /// The release at the end of the tenure has notified `others` other processes.
    pub(crate) fn owe(&mut self, others: u32, now: Instant) {
        // A single other process is next in any case and needs no debt. If `since` is set, the cohort has started again
        // while the caller waited for the reply to the release. Only the adoption of a hold can do that, since no other
        // thread of this process asks. The adopted hold belonged to another process after the release, so others have had
        // their turn, and no debt begins.
        if others > 1 && self.since.is_none() {
            let until = now + self.tenure().saturating_mul(others);
            self.others = Others::First { until };
        }
    }

    /// For how long a contender lets others ask first, if there is a debt: for the rest of the debt, but for no longer
    /// than a tenure. If nobody releases the lock within a tenure, the others hold it for long or do not want it.
    pub(crate) fn owes(&self, now: Instant) -> Option<Duration> {
        let Others::First { until } = self.others else {
            return None;
        };
        let debt_left = until.saturating_duration_since(now);
        (!debt_left.is_zero()).then(|| debt_left.min(self.tenure()))
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

    /// A release was queued; when Redis executes it, other processes may be notified.
    pub(crate) fn released(&mut self, release: R, now: Instant) {
        self.last_release = Some((now, release));
    }

    /// The last release, until the cohort ends.
    pub(crate) fn last_release(&self) -> Option<&R> {
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

    /// If the tenure is over: the last release. If that notified others, the thread that asks now has to yield to them.
    /// Each release is returned once. If the last release is too long ago, the cohort ends, and nothing is returned.
    ///
    /// If the thread ends its call before it has yielded, because its time is up or the call is cancelled, nobody yields
    /// for this release. The next thread asks at once, and this process may have one more tenure before it yields.
    pub(crate) fn yield_after(&mut self, now: Instant) -> Option<R> {
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
        // If it became known less than a tenure ago that an earlier release had notified nobody, probably nobody waits now
        // either. So the thread asks without waiting for the reply to the last release. If another process does wait by
        // now, it waits for one more tenure of this process. The releases of that tenure notify it, and it goes first
        // afterwards.
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
mod tests;
