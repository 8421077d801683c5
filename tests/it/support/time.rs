//! Durations in tests, and assertions about them.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use redlatch::Error;

use crate::support::{loosely, ms};

/// Longer than any wait in a test.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Well under the poll cap: a wake-up within this time was caused by a message.
pub(crate) const BY_MESSAGE: Duration = ms(500);

/// How much a busy machine may exceed a deadline.
pub(crate) const SLACK: Duration = ms(300);

/// Runs `work` and fails if it takes longer than `limit` plus [`SLACK`], or somewhat more if the machine is late.
#[track_caller]
pub(crate) fn in_time<T>(what: &str, limit: Duration, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    is_in_time(what, limit, begun);
    done
}

#[track_caller]
fn is_in_time(what: &str, limit: Duration, begun: Instant) {
    let took = begun.elapsed();
    assert!(
        took <= limit + loosely(SLACK),
        "{what} took {took:?} instead of {limit:?}"
    );
}

/// Runs `work` and asserts that it returns [`Error::Redis`] within `limit`.
#[track_caller]
pub(crate) fn fails<T: Debug>(
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> redlatch::Result<T>,
) {
    let result = in_time(what, limit, work);
    assert!(
        matches!(result, Err(Error::Redis { .. })),
        "{what}: {result:?}"
    );
}

/// Runs `work`, whose own limit is `limit`, and asserts that it gets nothing within that time: `None`, or
/// [`Error::Redis`] if the outage is known.
#[track_caller]
pub(crate) fn gets_nothing<T: Debug>(
    what: &str,
    limit: Duration,
    work: impl FnOnce() -> redlatch::Result<Option<T>>,
) {
    let result = in_time(what, limit, work);
    assert!(
        matches!(result, Ok(None) | Err(Error::Redis { .. })),
        "{what}: {result:?}"
    );
}
