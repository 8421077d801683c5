//! **A cache that is filled once.** When an entry expires, a hundred requests miss it; one
//! computes it, the others wait for that one and then find it.
//!
//! A request that waits for two seconds computes the entry as well, also if Redis is
//! unreachable: a slow page is better than none. The lock has the entry's name, so
//! different entries do not wait for each other.

use std::time::Duration;

use redlatch::Client;

/// `look` reads the cache, `fill` computes the entry and stores it.
pub fn cached<T>(
    client: &Client,
    entry: &str,
    look: impl Fn() -> Option<T>,
    fill: impl FnOnce() -> T,
) -> T {
    if let Some(found) = look() {
        return found;
    }
    let lock = client.mutex(format!("cache:{entry}"));
    let guard = lock.try_lock_for(Duration::from_secs(2));
    if let Err(err) = &guard {
        eprintln!("filling `{entry}` without its lock: {err}");
    }
    if let Some(found) = look() {
        return found; // another request filled it during the wait
    }
    let made = fill();
    drop(guard); // after it was stored
    made
}
