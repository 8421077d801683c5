//! **A leader that is followed.** One process of several does something all the time. If that process dies, another leads
//! within a lease; if it is restarted on the same machine, it leads again at once.
//!
//! A leader that hangs still renews its lease, so `max_term` ends each term. A piece of work must be short against the
//! lease; what a deposed leader must not write goes through `leadership.query`, or carries `leadership.term()`.

use std::time::Duration;

use redlatch::{CancelToken, Client, Error, Leadership, Result};

/// Leads whenever nobody else does, until `stop` is cancelled or the client is closed. `work` returns `false` to resign.
pub fn lead(
    client: &Client,
    term: Duration,
    stop: &CancelToken,
    mut work: impl FnMut(&Leadership) -> bool,
) -> Result<()> {
    let election = client.election("leader").max_term(term).cancel_on(stop);
    loop {
        match election.campaign() {
            Ok(leads) => while leads.is_leader() && !stop.is_cancelled() && work(&leads) {},
            Err(Error::Cancelled | Error::Closed) => return Ok(()), // a clean shutdown
            Err(err) if err.is_retryable() => std::thread::sleep(Duration::from_millis(500)),
            Err(err) => return Err(err),
        }
    }
}
