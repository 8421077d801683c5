//! How long things may take, and whether they did.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use redlatch::Error;

use crate::support::{loosely, ms};

/// Longer than anything in a test may take.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Well under the poll cap: what happens sooner was brought about by a message.
pub(crate) const BY_MESSAGE: Duration = ms(500);

/// What a busy machine may add to a deadline.
pub(crate) const SLACK: Duration = ms(300);

/// Runs `work` and fails if it took longer than `limit` and [`SLACK`], or more on a machine that is late.
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

/// Runs `work` and expects to hear, within `limit`, that Redis could not do it.
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

/// Runs `work`, which has a limit of its own, and expects to hear within it that there was nothing to be had: the time was
/// too short or, as soon as that is known, Redis is away.
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
