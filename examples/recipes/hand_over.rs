//! **One process accepts a job, another finishes it.** The web process locks the order, so that nobody else changes it, and
//! puts the job in a queue with the ticket of the lock. The worker adopts the lock, does the job and releases it. In between
//! nobody else can have the lock, and from the adoption on the web process cannot use it.
//!
//! The time given to `detach` is for the job's way through the queue. When it is over, the lock is free, and the worker
//! learns that its ticket is too late. If the worker dies, the lock is free one lease later, and the ticket stays used.

use std::time::Duration;

use redlatch::{Client, Error, OwnedFencedLockGuard, Result, Ticket};

/// In the process that accepts the job: the text goes into the queue. `None` if somebody else changes the order.
pub fn accept(client: &Client, order: &str) -> Result<Option<String>> {
    let Some(guard) = client.fenced_lock(order).try_lock()? else {
        return Ok(None);
    };
    // what has to be done under the lock before the job is queued
    let ticket = guard.detach(Duration::from_secs(600))?;
    Ok(Some(ticket.to_string()))
}

/// In the process that finishes it; `false` if the ticket is too late or taken.
pub fn finish(client: &Client, text: &str, job: impl FnOnce(u64)) -> Result<bool> {
    let ticket: Ticket = text.parse()?;
    let guard: OwnedFencedLockGuard = match client.adopt(&ticket) {
        Err(Error::Lost { .. }) => return Ok(false),
        adopted => adopted?,
    };
    job(guard.token()); // greater than that of the process that accepted it
    guard.unlock()?;
    Ok(true)
}
