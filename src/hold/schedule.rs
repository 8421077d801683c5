//! When the watchdog has to handle each entry, and in which order to renew them. The schedule does no I/O and has no
//! clock.
//!
//! An *armed* entry is handled when it is due. If a renewal is due then, the entry is *queued*, and armed again for the
//! moment at which it ends. If no renewal is confirmed by that moment, the loss of the entry is reported. Of the queued
//! entries, the one that ends first is renewed first.
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

/// The key by which the schedule finds an entry. Only methods with `&mut Schedule` change this key, so relaxed atomics are
/// enough.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// When the entry is due; zero while it is not armed.
    due: AtomicU64,
}

/// The entries by when they are due, in [`time::nanos`](crate::time::nanos), and the entries that are queued for
/// renewal.
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
        // The entry may be armed already: by a thread that locked again while the watchdog renewed. Each entry has one
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
        // A queued entry has the same moment in both sets, so one item removes both. Other entries are in `due` only.
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
mod tests;
