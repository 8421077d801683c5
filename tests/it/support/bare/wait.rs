//! Waiting for events instead of sleeping.

use std::thread;
use std::time::{Duration, Instant};

use super::loosely;

/// How long anything here is waited for before it counts as broken, on a machine that is not late.
///
/// It is less than a lease or a place in a queue lives by default: what nobody gave back must not pass for given back because
/// it expired.
pub(crate) const GENEROUS: Duration = Duration::from_secs(10);

/// `n` milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Waits until `happened` says so, and panics with `what` if it has not within ten seconds, or longer on a machine that is late.
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

/// Whether `happened` said so before `limit` ran out.
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
