//! Waiting for events instead of sleeping.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything here is waited for before it counts as broken.
pub(crate) const GENEROUS: Duration = Duration::from_secs(10);

/// `n` milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Waits until `happened` says so, and panics with `what` if it has not within ten seconds.
#[track_caller]
pub(crate) fn eventually(what: &str, happened: impl FnMut() -> bool) {
    assert!(
        within(GENEROUS, happened),
        "not within {GENEROUS:?}: {what}"
    );
}

/// Whether `happened` said so before `limit` ran out.
pub(crate) fn within(limit: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    loop {
        if happened() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(ms(3));
    }
}
