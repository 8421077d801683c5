//! When the watchdog has to handle each entry, and in which order to renew them. The schedule does no I/O and has no
//! clock.
//!
//! An *armed* entry is handled when it is due. If its renewal is due then, the entry is also *queued*: it stays armed
//! for the moment at which its loss has to be reported, and the entry that ends first is renewed first. So the renewals
//! under way need not be searched for holds that are over.
//!
//! ```text
//!   armed ──due──► take_due ──queue──► armed and queued ──take_renewal──► armed, its renewal under way
//!     ▲                │                                                        │
//!     └──────arm───────┴───────────────────arm: confirmed, or to be sent again──┘
//! ```
//!
//! Every step costs the logarithm of the number of entries, however many are due, queued or under way.

use std::cmp::Ordering as Order;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// An entry of a schedule: a pointer to the thing that is scheduled.
pub(crate) trait Scheduled: Clone {
    /// Unique among the entries. Of two that are due at the same moment, the one with the lower number is first.
    fn number(&self) -> u64;

    fn times(&self) -> &Times;

    /// Whether [`Schedule::len`] counts the entry.
    fn counts(&self) -> bool;
}

/// The key by which the schedule finds an entry. Only the schedule changes it, with the mutex of the schedule held, so
/// relaxed atomics are enough.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// When the entry is due; zero while it is not armed.
    due: AtomicU64,
}

/// Entries by when they are due, of `time::nanos`, and those of them that are queued for renewal.
pub(crate) struct Schedule<T> {
    due: BTreeSet<Item<T>>,
    renewals: BTreeSet<Item<T>>,
    counted: usize,
}

/// An entry and its moment; entries with the same moment are in the order of their numbers.
struct Item<T> {
    at: u64,
    entry: T,
}

impl<T: Scheduled> Ord for Item<T> {
    fn cmp(&self, other: &Self) -> Order {
        let by_number = || self.entry.number().cmp(&other.entry.number());
        self.at.cmp(&other.at).then_with(by_number)
    }
}

impl<T: Scheduled> PartialOrd for Item<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl<T: Scheduled> PartialEq for Item<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Scheduled> Eq for Item<T> {}

impl<T: Scheduled> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self {
            due: BTreeSet::new(),
            renewals: BTreeSet::new(),
            counted: 0,
        }
    }

    /// Schedules `entry` for `due`, and for no other moment; the entry is no longer queued.
    pub(crate) fn arm(&mut self, entry: T, due: u64) {
        // An entry may be armed already, by the thread that locks again while the watchdog renews. Each entry has one
        // moment.
        self.disarm(&entry);
        let at = due.max(1);
        entry.times().due.store(at, Ordering::Relaxed);
        self.counted += usize::from(entry.counts());
        self.due.insert(Item { at, entry });
    }

    /// Queues `entry` for renewal, and schedules the entry for its end.
    pub(crate) fn queue(&mut self, entry: &T, ends: u64) {
        self.arm(entry.clone(), ends);
        let (at, entry) = (ends.max(1), entry.clone());
        self.renewals.insert(Item { at, entry });
    }

    /// Removes `entry`, if it is armed.
    pub(crate) fn disarm(&mut self, entry: &T) {
        let at = entry.times().due.swap(0, Ordering::Relaxed);
        if at == 0 {
            return;
        }
        let entry = entry.clone();
        self.counted -= usize::from(entry.counts());
        let item = Item { at, entry };
        self.due.remove(&item);
        // A queued entry has the same moment in both sets; one whose renewal was taken is in `due` only.
        if !self.renewals.is_empty() {
            self.renewals.remove(&item);
        }
    }

    /// The entry that is due first, and when.
    pub(crate) fn first_due(&self) -> Option<(u64, &T)> {
        let Item { at, entry } = self.due.first()?;
        Some((*at, entry))
    }

    /// Removes and returns the entry that is due first.
    pub(crate) fn take_due(&mut self) -> Option<T> {
        let entry = self.first_due()?.1.clone();
        self.disarm(&entry);
        Some(entry)
    }

    /// How many entries are queued.
    pub(crate) fn queued(&self) -> usize {
        self.renewals.len()
    }

    /// Takes the queued entry that ends first, to renew it now. The entry stays armed for its end.
    pub(crate) fn take_renewal(&mut self) -> Option<T> {
        Some(self.renewals.pop_first()?.entry)
    }

    /// How many entries that count are armed.
    pub(crate) fn len(&self) -> usize {
        self.counted
    }

    /// All entries, which stay armed.
    pub(crate) fn all(&self) -> Vec<T> {
        self.due.iter().map(|item| item.entry.clone()).collect()
    }

    pub(crate) fn take_all(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.take_due()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use proptest::prelude::*;

    #[derive(Default)]
    struct Entry {
        number: u64,
        times: Times,
        looks: Arc<AtomicU64>,
    }

    impl Entry {
        fn new(number: u64, looks: &Arc<AtomicU64>) -> Arc<Self> {
            Arc::new(Self {
                number,
                looks: Arc::clone(looks),
                ..Self::default()
            })
        }
    }

    impl Scheduled for Arc<Entry> {
        fn number(&self) -> u64 {
            self.number
        }

        fn times(&self) -> &Times {
            self.looks.fetch_add(1, Ordering::Relaxed);
            &self.times
        }

        fn counts(&self) -> bool {
            self.number != 0
        }
    }

    #[test]
    fn what_ends_first_is_renewed_first() {
        let mut schedule = Schedule::new();
        // After an outage all are due together, and are queued in any order.
        for (number, ends) in [(1, 50), (2, 20), (3, 70), (4, 20), (5, 10)] {
            let entry = Entry::new(number, &Arc::default());
            schedule.arm(Arc::clone(&entry), 1);
            schedule.queue(&entry, ends);
        }
        let renewed = std::iter::from_fn(|| schedule.take_renewal()).map(|entry| entry.number);
        assert_eq!(renewed.collect::<Vec<_>>(), [5, 2, 4, 1, 3]);
    }

    #[test]
    fn a_renewal_under_way_is_due_when_its_loss_has_to_be_reported() {
        let mut schedule = Schedule::new();
        let entry = Entry::new(1, &Arc::default());
        schedule.arm(Arc::clone(&entry), 10);
        assert!(schedule.take_due().is_some() && schedule.len() == 0);
        schedule.queue(&entry, 30);
        assert!(schedule.take_renewal().is_some() && schedule.queued() == 0);
        assert_eq!(schedule.first_due().map(|(due, _)| due), Some(30));
        // The renewal is confirmed.
        schedule.arm(Arc::clone(&entry), 40);
        assert_eq!(schedule.first_due().map(|(due, _)| due), Some(40));
        assert_eq!(schedule.len(), 1);
    }

    #[test]
    fn the_work_for_a_reply_does_not_grow_with_what_waits_for_one() {
        let looks_for_a_batch = |entries: u64| {
            let (mut schedule, looks) = (Schedule::new(), Arc::default());
            for number in 1..=entries {
                let entry = Entry::new(number, &looks);
                schedule.queue(&entry, 1_000_000 - number);
            }
            let sent: Vec<_> = std::iter::from_fn(|| schedule.take_renewal())
                .take(256)
                .collect();
            let before = looks.load(Ordering::Relaxed);
            for entry in sent {
                // Between two replies the watchdog checks whether anything is over.
                assert!(schedule.first_due().is_some_and(|(due, _)| due > 10));
                schedule.arm(Arc::clone(&entry), 2_000_000);
            }
            looks.load(Ordering::Relaxed) - before
        };
        let few = looks_for_a_batch(256);
        assert!(few <= 4 * 256, "{few}");
        assert_eq!(looks_for_a_batch(50_000), few);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arm(usize, u64),
        Queue(usize, u64),
        Disarm(usize),
        TakeDue,
        TakeRenewal,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let (entry, at) = (0..5_usize, 1..8_u64);
        let step = prop_oneof![
            (entry.clone(), at.clone()).prop_map(|(entry, due)| Step::Arm(entry, due)),
            (entry.clone(), at).prop_map(|(entry, ends)| Step::Queue(entry, ends)),
            entry.prop_map(Step::Disarm),
            Just(Step::TakeDue),
            Just(Step::TakeRenewal),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// The reference for a schedule: when each entry is due, and when it ends if it is queued; zero if not. Every
    /// question searches all entries.
    #[derive(Default)]
    struct Searched([(u64, u64); 5]);

    impl Searched {
        fn first(&self, key: fn(&(u64, u64)) -> u64) -> Option<(u64, usize)> {
            let keys = self.0.iter().map(key).zip(0..);
            keys.filter(|(key, _)| *key != 0).min()
        }

        fn count(&self, from: usize, key: fn(&(u64, u64)) -> u64) -> usize {
            self.0[from..].iter().filter(|its| key(its) != 0).count()
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list_that_is_searched(steps in steps()) {
            let (due, ends) = (|its: &(u64, u64)| its.0, |its: &(u64, u64)| its.1);
            let entries: Vec<_> = (0..5).map(|number| Entry::new(number, &Arc::default())).collect();
            let place = |entry: &Arc<Entry>| entries.iter().position(|it| Arc::ptr_eq(it, entry));
            let (mut schedule, mut searched) = (Schedule::new(), Searched::default());
            for step in steps {
                match step {
                    Step::Arm(n, due) => {
                        schedule.arm(Arc::clone(&entries[n]), due);
                        searched.0[n] = (due, 0);
                    }
                    Step::Queue(n, ends) => {
                        schedule.queue(&entries[n], ends);
                        searched.0[n] = (ends, ends);
                    }
                    Step::Disarm(n) => {
                        searched.0[n] = (0, 0);
                        schedule.disarm(&entries[n]);
                    }
                    Step::TakeDue => {
                        let taken = schedule.take_due().and_then(|entry| place(&entry));
                        prop_assert_eq!(taken, searched.first(due).map(|(_, n)| n));
                        if let Some(n) = taken {
                            searched.0[n] = (0, 0);
                        }
                    }
                    Step::TakeRenewal => {
                        let taken = schedule.take_renewal().and_then(|entry| place(&entry));
                        prop_assert_eq!(taken, searched.first(ends).map(|(_, n)| n));
                        if let Some(n) = taken {
                            searched.0[n].1 = 0;
                        }
                    }
                }
                let first = schedule.first_due();
                let first = first.and_then(|(due, entry)| Some((due, place(entry)?)));
                prop_assert_eq!(first, searched.first(due));
                // The first entry does not count.
                prop_assert_eq!(schedule.len(), searched.count(1, due));
                prop_assert_eq!(schedule.queued(), searched.count(0, ends));
            }
            schedule.take_all();
            prop_assert!(schedule.len() == 0 && schedule.queued() == 0);
        }
    }
}
