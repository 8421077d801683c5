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

/// How a thread yields while it waits: after its tenure this process lets the others that it has notified have theirs.
///
/// It counts in time, a tenure for each of them: no message says whose tenure is over, since a process also releases in the
/// middle of one, when none of its threads happens to wait. Until then others ask first after each message, for four times as
/// long as after the one before, since a question in vain costs those who have the lock. If they do not come, the lock is free
/// for three times as long as this thread has yielded so far at most (bench: cross4x4 and cross8x4, fairness).
#[derive(Debug, Default)]
pub(crate) struct Yielding {
    /// `None` unless it has notified several: of two processes the other one is next in any case.
    until: Option<Instant>,
    /// How many messages had come when it yielded last.
    heard: u64,
    pause: Duration,
}

impl Yielding {
    fn to(others: u32, tenure: Duration, now: Instant) -> Self {
        Self {
            until: (others > 1).then(|| now + tenure.saturating_mul(others)),
            heard: 0,
            pause: PAUSE,
        }
    }

    /// For how long others ask first now that so many messages have come.
    fn pause(&mut self, messages: u64, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        if messages == self.heard || left.is_zero() {
            return None;
        }
        let pause = self.pause.min(left);
        self.pause = self.pause.saturating_mul(4);
        Some(pause)
    }
}

/// Lets others go first if this thread has to, and there is time for that and for a request: after the tenure if the release
/// has notified some, and after a message as long as it is their time. `true` if it did, or has to stop.
pub(crate) fn yield_to_others<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
    until: Instant,
    yielding: &mut Yielding,
) -> Result<bool> {
    let release = strategy.yields_after();
    if release.is_none() && yielding.until.is_none() {
        return Ok(false);
    }
    let session = spec.session();
    let waiter = strategy.listening().known_waiter().map(Arc::clone);
    // One that has what it wants has nothing to yield for.
    let is_served = || {
        waiter
            .as_ref()
            .is_some_and(|waiter| waiter.is_woken(|_| true))
    };
    let stop = || spec.must_stop(wait) || is_served();
    let pause = match (release, &spec.quorum) {
        (None, _) => {
            let messages = strategy.listening().signals().messages;
            match yielding.pause(messages, Instant::now()) {
                None => return Ok(false),
                pause => pause,
            }
        }
        (Some(_), Some(quorum)) => quorum.yield_for(PAUSE),
        (Some(_), None) if !spec.key.kind.is_notified => Some(PAUSE),
        (Some(release), None) => {
            let others = notified_others(session, &release, until, &stop);
            if strategy.alternates() {
                let tenure = strategy.entry().lock().lock.tenure();
                *yielding = Yielding::to(others, tenure, Instant::now());
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
    if Instant::now() + 2 * pause >= until {
        return Ok(false);
    }
    session.counters.held_back.add(1);
    time::sleep_unless(pause, &stop);
    yielding.heard = strategy.listening().signals().messages;
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

#[cfg(test)]
mod tests {
    use super::*;

    const TENURE: Duration = Duration::from_millis(5);

    #[test]
    fn others_ask_first_after_each_message_for_longer_and_longer_but_only_for_their_tenures() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut yielding = Yielding::to(4, TENURE, begin);
        assert_eq!(yielding.pause(0, at(1)), None, "no message has come");
        for (ms, messages, pause) in [(2, 1, 1), (4, 2, 4), (9, 3, 11)] {
            let others_ask = yielding.pause(messages, at(ms));
            assert_eq!(others_ask, Some(Duration::from_millis(pause)));
            yielding.heard = messages;
            assert_eq!(yielding.pause(messages, at(ms)), None, "the same one");
        }
        assert_eq!(yielding.pause(4, at(20)), None, "they have had their time");
    }

    #[test]
    fn one_other_is_next_in_any_case() {
        let begin = Instant::now();
        assert_eq!(Yielding::to(1, TENURE, begin).pause(1, begin), None);
        assert_eq!(Yielding::default().pause(1, begin), None);
    }
}
