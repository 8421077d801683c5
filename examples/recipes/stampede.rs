//! **A cache that is filled once.** When an entry expires, a hundred requests miss it; one computes it, the others wait for
//! that one and then find it.
//!
//! Whoever waits for too long computes it as well: a slow page is better than none. The lock has the entry's name, so
//! different entries do not wait for each other.

use std::time::Duration;

use redlatch::{Client, Result};

/// `look` reads the cache, `fill` computes the entry and stores it.
pub fn cached<T>(
    client: &Client,
    entry: &str,
    look: impl Fn() -> Option<T>,
    fill: impl FnOnce() -> T,
) -> Result<T> {
    if let Some(found) = look() {
        return Ok(found);
    }
    let lock = client.mutex(format!("cache:{entry}"));
    let guard = lock.try_lock_for(Duration::from_secs(2))?;
    if let Some(found) = look() {
        return Ok(found); // somebody has filled it meanwhile
    }
    let made = fill();
    drop(guard); // after it was stored
    Ok(made)
}
