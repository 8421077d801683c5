//! **A leader that is followed.** One process of several does something all the time; if it ends or hangs, another takes
//! over within a lease.
//!
//! The leader asks `is_valid` before each piece of work, which costs nothing. A piece must be short against the lease, and
//! must not do harm if it ends a little late: for data that would be harmed use a fenced lock.

use std::time::Duration;

use redlatch::{CancelToken, Client, Error, Result};

/// Leads whenever nobody else does, until `stop` is cancelled. `work` returns `false` to give up the lead.
pub fn lead(client: &Client, stop: &CancelToken, mut work: impl FnMut() -> bool) -> Result<()> {
    let office = client.mutex("leader").cancel_on(stop);
    while !stop.is_cancelled() {
        let guard = match office.lock() {
            Ok(guard) => guard,
            Err(Error::Cancelled) => break,
            Err(err) if err.is_retryable() => {
                std::thread::sleep(Duration::from_millis(500)); // Redis is away
                continue;
            }
            Err(err) => return Err(err),
        };
        while guard.is_valid() && !stop.is_cancelled() && work() {}
        drop(guard); // the next one leads at once
    }
    Ok(())
}
