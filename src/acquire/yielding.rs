//! After the tenure another process goes first, or the one that released would win again and again: its next question is
//! at Redis before the others have woken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hold::Waiter;
use crate::net::call::Call;
use crate::protocol::script::{self, Released};
use crate::session::Session;
use crate::time::{self, Deadline};

/// How long others go first.
///
/// Measured: on a quiet machine 100 µs are enough for another process to be woken and to ask; a busy one needs more.
pub(crate) const FOR: Duration = Duration::from_micros(300);

/// How long others go first where no release is announced: the shortest of their pauses.
pub(crate) const FOR_UNNOTIFIED: Duration = Duration::from_millis(1);

/// How long to wait for the number of those who heard the last release of this process.
const HEARD_WITHIN: Duration = Duration::from_millis(250);

/// Whether other processes heard the release.
pub(crate) fn was_heard(
    session: &Session,
    release: &Arc<Call>,
    we_listened: bool,
    deadline: Deadline,
    stop: &dyn Fn() -> bool,
) -> bool {
    let until = deadline.or(Instant::now() + HEARD_WITHIN);
    let Ok((value, _)) = session.connection.wait(release, until, stop) else {
        return false;
    };
    let own = i64::from(we_listened);
    matches!(script::released(&value), Ok(Released::Yes { listeners }) if listeners > own)
}

/// Lets others go first for `span`; until a message comes, for one that listens.
pub(crate) fn yield_to_others(
    session: &Session,
    waiter: Option<&Arc<Waiter>>,
    span: Duration,
    deadline: Deadline,
    stop: &dyn Fn() -> bool,
) {
    session.counters.held_back.add(1);
    let until = deadline.or(Instant::now() + span);
    let Some(waiter) = waiter else {
        let span = until.saturating_duration_since(Instant::now());
        time::sleep_unless(span, stop);
        return;
    };
    // The confirmation of our own subscription is not what we wait for.
    let mut seen = waiter.heard();
    loop {
        waiter.wait_to_hear(seen, until, stop);
        let heard = waiter.heard();
        if heard.messages != seen.messages || heard == seen {
            return;
        }
        seen = heard;
    }
}
