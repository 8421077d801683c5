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

/// Lets others go first if this process owes them that: after the tenure if the release has notified some, and then, for a
/// tenure of each of them, before the first question of a call and after each message. `heard`: how many messages had come
/// when the thread yielded last. `true` if it did, or has to stop.
///
/// The pause takes at most half of the time that is left, so that a call with a short time limit yields as others do and still
/// asks (bench: cross4x4 and cross8x4, fairness). A call that asks once only makes the shortest.
pub(crate) fn yield_to_others<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
    until: Instant,
    heard: &mut Option<u64>,
) -> Result<bool> {
    let release = strategy.yields_after();
    let session = spec.session();
    let messages = strategy.listening().signals().messages;
    let owed = match strategy.alternates() && *heard != Some(messages) {
        true => strategy.entry().lock().lock.owes(Instant::now()),
        false => None,
    };
    if release.is_none() && owed.is_none() {
        return Ok(false);
    }
    let waiter = strategy.listening().known_waiter().map(Arc::clone);
    // A thread that was handed the lock has nothing to yield for.
    let is_served = || {
        waiter
            .as_ref()
            .is_some_and(|waiter| waiter.is_woken(|_| true))
    };
    let stop = || spec.must_stop(wait) || is_served();
    let pause = match (release, &spec.quorum) {
        (None, _) => owed,
        (Some(_), Some(quorum)) => quorum.yield_for(PAUSE),
        (Some(_), None) if !spec.key.kind.is_notified => Some(PAUSE),
        (Some(release), None) => {
            let others = notified_others(session, &release, until, &stop);
            if strategy.alternates() {
                (strategy.entry().lock().lock).owe(others, PAUSE, Instant::now());
            }
            (others > 0).then_some(PAUSE)
        }
    };
    let Some(pause) = pause else {
        return Ok(stop());
    };
    if wait.asks_again() && spec.quorum.is_none() {
        // Confirmed meanwhile: then one request is enough.
        acquire::listen(strategy, spec)?;
    }
    let left = until.saturating_duration_since(Instant::now());
    let most = if wait.asks_again() { left / 2 } else { PAUSE };
    let pause = pause.min(most);
    session.counters.held_back.add(1);
    time::sleep_unless(pause, &stop);
    if owed.is_some() && wait.asks_again() {
        (strategy.entry().lock().lock).yielded(pause.max(PAUSE));
    }
    *heard = Some(strategy.listening().signals().messages);
    Ok(true)
}

/// How many other processes a release has notified; one if nobody knows. Waits for its reply, so that half of the time
/// `until` then is left to the request that follows.
fn notified_others(
    session: &Session,
    release: &Arc<Call>,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> u32 {
    let now = Instant::now();
    let until = now + until.saturating_duration_since(now) / 2;
    let Ok((value, _)) = session.connection.wait(release, until, stop) else {
        return 0;
    };
    others(session, release, &value).unwrap_or(0)
}

/// Whether the release is known to have notified no other process.
pub(crate) fn has_notified_nobody(session: &Session, release: &Call) -> bool {
    release.has_reply(|reply| others(session, release, reply) == Some(0))
}

/// How many other processes a release has notified by its reply, one if they are not counted; `None` if it released nothing.
fn others(session: &Session, release: &Call, reply: &Value) -> Option<u32> {
    match script::released(reply) {
        Ok(Released::Yes { .. }) if !session.connection.counts_listeners() => Some(1),
        Ok(Released::Yes { listeners }) => {
            let others = (listeners - i64::from(release.is_heard_by_us)).max(0);
            Some(u32::try_from(others).unwrap_or(u32::MAX))
        }
        _ => None,
    }
}
