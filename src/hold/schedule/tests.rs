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
        let looks_before = looks.load(Ordering::Relaxed);
        for entry in sent {
            // Between two replies the watchdog checks whether anything is over.
            assert!(schedule.first_due().is_some_and(|(due, _)| due > 10));
            schedule.arm(Arc::clone(&entry), 2_000_000);
        }
        looks.load(Ordering::Relaxed) - looks_before
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
        self.0[from..].iter().filter(|pair| key(pair) != 0).count()
    }
}

proptest! {
    #[test]
    fn it_agrees_with_a_list_that_is_searched(steps in steps()) {
        let (due, ends) = (|pair: &(u64, u64)| pair.0, |pair: &(u64, u64)| pair.1);
        let entries: Vec<_> = (0..5).map(|number| Entry::new(number, &Arc::default())).collect();
        let place = |entry: &Arc<Entry>| entries.iter().position(|other| Arc::ptr_eq(other, entry));
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
