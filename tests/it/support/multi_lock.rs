//! Locks over several names.

use std::time::{Duration, Instant};

use redlatch::{Client, Config, MultiLock, Result};

use crate::support::{Server, eventually, ms};

/// A lease that is longer than any test, so that nothing expires during it.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

pub(crate) fn open(url: &str) -> Client {
    Client::open(Config::new(url).lease(LEASE)).unwrap()
}

/// Waits until exactly these keys exist, far less than a lease.
#[track_caller]
pub(crate) fn left(server: &Server, keys: &[&String]) {
    let mut wanted: Vec<String> = keys.iter().map(|key| (*key).clone()).collect();
    wanted.sort();
    eventually("all other keys are released", || {
        server.keys_but_requests() == wanted
    });
}

/// The result of every verb and every question of a lock, each without its value.
pub(crate) fn verdicts(lock: &MultiLock) -> Vec<Result<()>> {
    vec![
        lock.lock().map(drop),
        lock.try_lock().map(drop),
        lock.try_lock_for(ms(50)).map(drop),
        lock.try_lock_until(Instant::now() + ms(50)).map(drop),
        lock.with(|_| ()),
        lock.is_locked().map(drop),
        lock.remaining_lease().map(drop),
        lock.force_unlock().map(drop),
    ]
}
