//! Locks over several names.

use std::time::{Duration, Instant};

use redlatch::{Client, Config, MultiLock, Result};

use crate::support::{Server, eventually, ms};

/// What is left behind lives for longer than anybody looks for it.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

pub(crate) fn open(url: &str) -> Client {
    Client::open(Config::new(url).lease(LEASE)).unwrap()
}

/// All that is on the server, well before a lease ends.
#[track_caller]
pub(crate) fn left(server: &Server, keys: &[&String]) {
    let mut wanted: Vec<String> = keys.iter().map(|key| (*key).clone()).collect();
    wanted.sort();
    eventually("the rest is given back", || {
        server.keys_but_requests() == wanted
    });
}

/// What every verb and question of a lock says, each answer made comparable.
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
