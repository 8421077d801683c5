//! **A web handler that does not wait.** `409 Conflict`: somebody else changes the order
//! now. `503 Service Unavailable`: Redis cannot say, so the client should try again later.
//!
//! A handler that is run in a pool of threads may wait a little, as here: half a second is
//! less than people notice, and most locks are held for less.

use std::time::Duration;

use redlatch::{Client, Error};

/// The status of the answer to a request that changes an order.
pub fn change_order(client: &Client, order: u64, change: impl FnOnce()) -> u16 {
    let lock = client.mutex(format!("order:{order}"));
    match lock.try_lock_for(Duration::from_millis(500)) {
        Ok(Some(guard)) => {
            change();
            match guard.unlock() {
                Ok(()) => 200,
                // The change was not protected until its end; the next request sees the outcome.
                Err(Error::Lost { .. }) => 409,
                Err(_) => 200, // the release is sent again in the background
            }
        }
        Ok(None) => 409,
        Err(err) if err.is_retryable() => 503, // with `Retry-After: 1`
        Err(_) => 500,                         // a setting is wrong: nothing that a client can do
    }
}
