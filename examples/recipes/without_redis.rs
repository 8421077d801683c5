//! **Unit tests without Redis.** Let the code take a `&dyn Lock`. The program passes a lock of
//! its client, a test a `FakeLock`, which grants, refuses and fails as told (feature `testing`).
//!
//! A real server is worth a test as well: it starts in 10 ms, on a free port.

use std::time::Duration;

use redlatch::{Hold as _, Lock, Result};

/// Sells one piece, if the lock is free in time.
pub fn sell(lock: &dyn Lock, left: &mut u32) -> Result<bool> {
    let Some(guard) = lock.try_lock_for(Duration::from_secs(1))? else {
        return Ok(false);
    };
    *left -= 1;
    guard.unlock()?;
    Ok(true)
}

#[test]
fn nothing_is_sold_without_the_lock() {
    use redlatch::testing::{FakeLock, errors};
    let (lock, mut left) = (FakeLock::new("stock:42"), 3);
    assert!(sell(&lock, &mut left).unwrap());
    lock.refuse_next();
    assert!(!sell(&lock, &mut left).unwrap());
    lock.fail_next(errors::late("stock:42"));
    assert!(sell(&lock, &mut left).unwrap_err().is_retryable());
    assert_eq!(left, 2);
    lock.fail_unlock_next(errors::redis("stock:42", "connection reset"));
    assert!(!sell(&lock, &mut left).unwrap_err().is_retryable());
    assert_eq!(left, 1, "it is sold, and must not be sold again");
    assert!(!lock.is_held());
}
