//! **A leader that is followed.** One process of several does something all the time. If
//! that process dies, another leads within a lease.
//!
//! A leader that hangs still renews its lease, so `max_hold` ends each term: another leads
//! within a `term` and a lease. Choose a term that is long against a piece of work.
//!
//! The leader asks `is_valid` before each piece of work, which costs nothing. A piece must
//! be short against the lease, and must not do harm if it ends a little late: for data that
//! would be harmed use a fenced lock.

use std::time::Duration;

use redlatch::{CancelToken, Client, Error, Result};

/// Leads whenever nobody else does, until `stop` is cancelled or the client is closed.
/// `work` returns `false` to give up the lead.
pub fn lead(
    client: &Client,
    term: Duration,
    stop: &CancelToken,
    mut work: impl FnMut() -> bool,
) -> Result<()> {
    let office = client.mutex("leader").max_hold(term).cancel_on(stop);
    while !stop.is_cancelled() {
        let guard = match office.lock() {
            Ok(guard) => guard,
            Err(Error::Cancelled | Error::Closed) => break, // a clean shutdown
            Err(err) if err.is_retryable() => {
                std::thread::sleep(Duration::from_millis(500)); // Redis is unreachable
                continue;
            }
            Err(err) => return Err(err),
        };
        while guard.is_valid() && !stop.is_cancelled() && work() {}
        drop(guard); // the next one leads at once
    }
    Ok(())
}
