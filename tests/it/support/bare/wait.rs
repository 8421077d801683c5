//! Waits for events, in place of sleeps.

use std::thread;
use std::time::{Duration, Instant};

use super::loosely;

/// How long any event is waited for before the test fails, on a machine that is not late.
///
/// The limit is shorter than the default lease and waiter lease, so that an expired key cannot pass for a released one.
pub(crate) const GENEROUS: Duration = Duration::from_secs(10);

/// `n` milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Waits until `happened` returns true; panics with `what` after ten seconds, or later if the machine is late.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    happens(what, &mut happened);
}

#[track_caller]
fn happens(what: &str, happened: &mut dyn FnMut() -> bool) {
    let in_time =
        happens_within(GENEROUS, happened) || happens_within(loosely(Duration::ZERO), happened);
    assert!(in_time, "not within {GENEROUS:?}: {what}");
}

/// Whether `happened` returned true within `limit`.
pub(crate) fn within(limit: Duration, mut happened: impl FnMut() -> bool) -> bool {
    happens_within(limit, &mut happened)
}

fn happens_within(limit: Duration, happened: &mut dyn FnMut() -> bool) -> bool {
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
