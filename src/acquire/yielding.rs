//! After the tenure this process lets others go first. Otherwise it would win again and again, since its next request
//! reaches Redis before the others have woken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Strategy};
use crate::error::Result;
use crate::net::call::Call;
use crate::protocol::script::{self, Released};
use crate::session::Session;
use crate::time;

/// How long others go first.
///
/// Measured: on a quiet machine 100 µs are enough for another process to be woken and to ask; a busy one needs more, and a
/// Java process about so long.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Lets others go first if this thread has to, some were notified of the release, and there is time for that and for a
/// request. `true` if it did, or has to stop.
pub(crate) fn yield_to_others<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
    until: Instant,
) -> Result<bool> {
    let Some(release) = strategy.yields_after() else {
        return Ok(false);
    };
    let session = spec.session();
    let waiter = strategy.listening().known_waiter().map(Arc::clone);
    // One that has what it wants has nothing to yield for.
    let is_served = || {
        waiter
            .as_ref()
            .is_some_and(|waiter| waiter.is_woken(|_| true))
    };
    let stop = || spec.must_stop(wait) || is_served();
    let pause = match &spec.quorum {
        Some(quorum) => quorum.yield_for(PAUSE),
        None => {
            let is_notified = spec.kind.is_notified;
            let has_to = !is_notified || has_notified_others(session, &release, until, &stop);
            has_to.then_some(PAUSE)
        }
    };
    let Some(pause) = pause else {
        return Ok(stop());
    };
    if wait.asks_again() && spec.quorum.is_none() {
        // Confirmed meanwhile: then one request is enough.
        acquire::listen(strategy, spec)?;
    }
    if Instant::now() + 2 * pause >= until {
        return Ok(false);
    }
    session.counters.held_back.add(1);
    time::sleep_unless(pause, &stop);
    Ok(true)
}

/// Whether a release has notified other processes. Waits for its reply, so that half of the time `until` then is left to
/// the request that follows.
fn has_notified_others(
    session: &Session,
    release: &Arc<Call>,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> bool {
    let now = Instant::now();
    let until = now + until.saturating_duration_since(now) / 2;
    let Ok((value, _)) = session.connection.wait(release, until, stop) else {
        return false;
    };
    match script::released(&value) {
        Ok(Released::Yes { listeners }) => {
            !session.connection.counts_listeners() || listeners > i64::from(release.is_heard_by_us)
        }
        _ => false,
    }
}

/// Whether the release is known to have notified no other process.
pub(crate) fn has_notified_nobody(session: &Session, release: &Call) -> bool {
    let ours = i64::from(release.is_heard_by_us);
    let nobody = |reply: &Value| matches!(script::released(reply), Ok(Released::Yes { listeners }) if listeners <= ours);
    session.connection.counts_listeners() && release.has_reply(nobody)
}
