//! The rights that the guide gives, and every operation that needs them.

use std::time::Duration;

use redlatch::{Client, Result};

pub(crate) use crate::support::acl::*;
use crate::support::{Crew, eventually};

/// A Redisson client that no longer exists.
const READER: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321";

/// A second client waits with `wait` for what `hold` holds, and is granted it after the release.
pub(crate) fn hands_over<G, H: 'static>(
    [client, other]: [&Client; 2],
    hold: impl Fn(&Client) -> Result<G>,
    wait: impl Fn(&Client) -> Result<H> + Send + 'static,
) {
    let guard = hold(client).unwrap();
    let mut crew = Crew::new();
    let other = other.clone();
    crew.spawn(move || drop(wait(&other).unwrap()));
    crew.all_parked();
    drop(guard);
    crew.join();
}

/// Every kind of lock works for two clients with the prefix `shop:`, on names that end with `name`. `ask` sends a
/// command with full rights to the server of a key.
pub(crate) fn every_lock_works(pair: [&Client; 2], name: &str, ask: impl Fn(&str, &[&str])) {
    let [client, other] = pair;
    let of = |kind: &str| format!("{kind}:{name}");
    let n = of("lock");
    hands_over(
        pair,
        |c| c.reentrant_lock(of("lock")).lock(),
        move |c| c.mutex(&n).lock(),
    );
    let n = of("fair");
    hands_over(
        pair,
        |c| c.fair_lock(of("fair")).lock(),
        move |c| c.fair_mutex(&n).lock(),
    );
    let n = of("fenced");
    hands_over(
        pair,
        |c| c.fenced_lock(of("fenced")).lock(),
        move |c| c.fenced_lock(&n).lock(),
    );
    let n = of("spin");
    hands_over(
        pair,
        |c| c.spin_lock(of("spin")).lock(),
        move |c| c.spin_lock(&n).lock(),
    );
    let n = of("rw");
    hands_over(
        pair,
        |c| c.rw_lock(of("rw")).write(),
        move |c| c.rw_lock(&n).read(),
    );
    let n = of("rw");
    hands_over(
        pair,
        |c| c.rw_lock(of("rw")).read(),
        move |c| c.rw_lock(&n).write(),
    );

    // The reader that leaves looks for a living one among 200 dead readers.
    let key = format!("shop:{}", of("rw"));
    let mut dead = vec![
        "HSET".to_owned(),
        key.clone(),
        "mode".to_owned(),
        "read".to_owned(),
    ];
    for n in 0..200 {
        dead.extend([format!("{READER}:{n}"), "1".to_owned()]);
    }
    let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
    ask(&key, &dead);
    drop(client.rw_lock(of("rw")).read().unwrap());

    let names = [of("lock"), of("one of several")];
    let (held, wanted) = (names.clone(), of("one of several"));
    hands_over(
        pair,
        move |c| c.multi_lock(&held).lock(),
        move |c| c.reentrant_lock(&wanted).lock(),
    );
    let several = client.multi_lock(&names);
    let both = names.clone();
    hands_over(
        pair,
        |c| c.reentrant_lock(&names[1]).lock(),
        move |c| c.multi_lock(&both).lock(),
    );
    let latch = client.latch(of("latch"));
    assert!(latch.try_set_count(2).unwrap());
    let (n, waits) = (of("latch"), other.clone());
    let mut crew = Crew::new();
    crew.spawn(move || waits.latch(&n).wait().unwrap());
    crew.all_parked();
    latch.count_down().unwrap();
    latch.count_down().unwrap();
    crew.join();
    assert!(latch.try_set_count(1).unwrap() && latch.delete().unwrap());

    let n = of("gate");
    let gate = client.semaphore(of("gate"));
    assert!(gate.try_set_permits(1).unwrap());
    hands_over(
        pair,
        |c| c.semaphore(of("gate")).acquire(),
        move |c| c.semaphore(&n).acquire(),
    );
    gate.add_permits(2).unwrap();
    gate.add_permits_if_exists(1).unwrap();
    eventually("all are back", || gate.available_permits().unwrap() == 4);
    assert_eq!(gate.drain_permits().unwrap(), 4);

    let n = of("slots");
    let slots = client.expirable_semaphore(of("slots"));
    assert!(slots.try_set_permits(1).unwrap());
    hands_over(
        pair,
        |c| c.expirable_semaphore(of("slots")).acquire(),
        move |c| c.expirable_semaphore(&n).acquire(),
    );
    slots.set_permits(2).unwrap();
    slots.add_permits(-1).unwrap();
    let permit = slots
        .clone()
        .fixed_lease(Duration::from_millis(20))
        .acquire();
    // The permit with the short lease expires, so the next acquire is granted.
    let slot = slots.acquire().unwrap();
    drop(permit);
    slot.update_lease(Duration::from_secs(5)).unwrap();
    assert!(slots.remaining_lease_of(slot.id()).unwrap().is_some());
    assert!(slots.release_id(slot.id()).unwrap());
    assert_eq!(slots.permits().unwrap(), 1);

    let slot = slots.acquire().unwrap();
    let fenced = client.fenced_lock(of("fenced"));
    let fair = client.fair_lock(of("fair"));
    let rwlock = client.rw_lock(of("rw"));
    let guards = (
        fenced.lock().unwrap(),
        fair.lock().unwrap(),
        rwlock.read().unwrap(),
        several.lock().unwrap(),
    );
    let renewed = client.stats().renewals + 4;
    eventually("all are renewed", || client.stats().renewals > renewed);
    assert!(fenced.is_locked().unwrap() && rwlock.is_read_locked().unwrap());
    assert!(fenced.force_unlock().unwrap() && fair.force_unlock().unwrap());
    assert!(rwlock.force_unlock().unwrap());
    assert!(several.is_locked().unwrap() && several.remaining_lease().unwrap().is_some());
    assert!(several.force_unlock().unwrap());
    assert!(guards.0.unlock().is_err());
    slot.release().unwrap();
}

/// Asserts that no release failed and that no waiter had to poll because of missing rights.
#[track_caller]
pub(crate) fn nothing_was_refused(client: &Client) {
    let stats = client.stats();
    let wrong = (stats.releases_failed, stats.missed_messages);
    assert_eq!(wrong, (0, 0), "{stats:?}");
}
