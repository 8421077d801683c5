//! **At most so many at once, over all hosts**: licences, connections to a slow service,
//! parts of a machine.
//!
//! Each permit has a lease, so those of a process that died come back. The first process
//! sets how many there are; to change that later add the difference with `add_permits`,
//! which may be negative.

use std::time::Duration;

use redlatch::{Client, Result};

/// Calls the service while fewer than five others do; `None` if none has ended within a
/// second.
pub fn call_service<T>(client: &Client, call: impl FnOnce() -> T) -> Result<Option<T>> {
    let pool = client.expirable_semaphore("pool:geocoder");
    pool.try_set_permits(5)?;
    let Some(permit) = pool.try_acquire_for(Duration::from_secs(1))? else {
        return Ok(None);
    };
    let answer = call();
    permit.release()?;
    Ok(Some(answer))
}
