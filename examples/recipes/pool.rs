//! **At most so many at once, over all hosts**: licences, connections to a slow service,
//! parts of a machine.
//!
//! Each permit has a lease, so the permits of a process that dies come back. The first
//! process sets the number. A process that asks for another number, such as a newer version
//! of the program, changes nothing and gets `false`; `set_permits` changes the number.

use std::time::Duration;

use redlatch::{Client, ExpirableSemaphore, Result};

const CALLS: u32 = 5;

/// Returns the pool. Called once per process.
pub fn open(client: &Client) -> Result<ExpirableSemaphore> {
    let pool = client.expirable_semaphore("pool:geocoder");
    if !pool.try_set_permits(CALLS)? && pool.permits()? != i64::from(CALLS) {
        eprintln!("the pool has another number of permits than {CALLS}");
    }
    Ok(pool)
}

/// Calls the service while fewer than five others do; `None` if none has ended within a
/// second.
pub fn call_service<T>(pool: &ExpirableSemaphore, call: impl FnOnce() -> T) -> Result<Option<T>> {
    let Some(permit) = pool.try_acquire_for(Duration::from_secs(1))? else {
        return Ok(None);
    };
    let answer = call();
    permit.release()?;
    Ok(Some(answer))
}
