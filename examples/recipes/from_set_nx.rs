//! **Moving from `SET NX`.** While old programs still lock by `SET key value NX PX ms`, new
//! ones treat `WrongType` as *busy*: the key holds the string of an old program.

use std::time::{Duration, Instant};

use redlatch::kinds::AnyKind;
use redlatch::{Error, Guard, Handle, Result};

/// Waits for a lock that old programs take by `SET NX`; `Ok(None)` if one of them, or
/// anybody else, had it all the time.
pub fn lock_beside_set_nx<K: AnyKind>(
    lock: &Handle<K>,
    wait: Duration,
) -> Result<Option<Guard<K>>> {
    let deadline = Instant::now() + wait;
    loop {
        match lock.try_lock_until(deadline) {
            Err(Error::WrongType { .. }) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                // An old program publishes no message when it releases, so ask again.
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
            other => return other,
        }
    }
}
