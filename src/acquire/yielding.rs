//! After the tenure this process lets others go first. Otherwise it would win again and again, since its next request
//! reaches Redis before the others have woken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::hold::Waiter;
use crate::net::call::Call;
use crate::protocol::script::{self, Released};
use crate::session::Session;
use crate::time;

/// How long others go first.
///
/// Measured: on a quiet machine 100 µs are enough for another process to be woken and to ask; a busy one needs more.
pub(crate) const FOR: Duration = Duration::from_micros(300);

/// How long others go first now and then, and how long a process steps aside: a Java process takes so long from a message to
/// its request. Two processes that are faster would pass the lock to and fro.
pub(crate) const FOR_THE_SLOW: Duration = Duration::from_micros(1_500);

/// After one of how many tenures that is.
pub(crate) const LONGER_EVERY: u64 = 2;

/// Before one of how many requests a process steps aside that was notified of a release, and has had the lock before.
///
/// Rarely, since it costs time if the others have left, or step aside at the same time.
pub(crate) const ASIDE_EVERY: u64 = 4;

/// After one of how many tenures a process yields that takes permits with leases.
///
/// Threads of a Java process ask again as soon as they have released, and never yield. A process that did so after each
/// tenure had about half as many permits as one of them, and no more on a busy machine, where every hold takes a tenure.
pub(crate) const LEASED_PERMITS_EVERY: u64 = 4;

/// How long others go first where no release is announced: the shortest of their pauses.
pub(crate) const FOR_UNNOTIFIED: Duration = Duration::from_millis(1);

/// How long to wait at most for the reply to the last release, which says how many subscribers were notified.
const COUNTED_WITHIN: Duration = Duration::from_millis(250);

/// Whether there is time to let others go first, and to ask afterwards.
pub(crate) fn has_time(span: Duration, until: Instant) -> bool {
    Instant::now() + 2 * span < until
}

/// How many other processes were notified of the release, at least. Half of the time `until` then is left to the request
/// that follows.
pub(crate) fn others_notified(
    session: &Session,
    release: &Arc<Call>,
    we_listened: bool,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> u64 {
    let now = Instant::now();
    let until = now + COUNTED_WITHIN.min(until.saturating_duration_since(now) / 2);
    let Ok((value, _)) = session.connection.wait(release, until, stop) else {
        return 0;
    };
    match script::released(&value) {
        Ok(Released::Yes { .. }) if !session.connection.counts_listeners() => 1,
        Ok(Released::Yes { listeners }) => {
            u64::try_from(listeners - i64::from(we_listened)).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Whether the release is known to have notified no other process.
pub(crate) fn has_notified_nobody(session: &Session, release: &Call) -> bool {
    let ours = i64::from(release.heard_by_us().is_some());
    let nobody = |reply: &Value| matches!(script::released(reply), Ok(Released::Yes { listeners }) if listeners <= ours);
    session.connection.counts_listeners() && release.has_reply(nobody)
}

/// Whether the release is known to have been announced, to this process too, before anything was executed that was sent
/// after it.
pub(crate) fn was_announced_to_us(release: &Call) -> bool {
    let was_announced = |reply: &Value| matches!(script::released(reply), Ok(Released::Yes { listeners }) if listeners > 0);
    // In this order: what is sent again is marked before its reply comes.
    release.has_reply(was_announced) && release.heard_by_us().is_some()
}

/// Lets others go first for `span`, or until a message comes if the thread listens; not beyond `until`.
pub(crate) fn yield_to_others(
    session: &Session,
    waiter: Option<&Arc<Waiter>>,
    span: Duration,
    until: Instant,
    stop: &dyn Fn() -> bool,
) {
    session.counters.held_back.add(1);
    let until = until.min(Instant::now() + span);
    let Some(waiter) = waiter else {
        let span = until.saturating_duration_since(Instant::now());
        time::sleep_unless(span, stop);
        return;
    };
    // The confirmation of our own subscription does not end this.
    let mut seen = waiter.signals();
    loop {
        waiter.wait_for_signal(seen, until, stop);
        let now = waiter.signals();
        if now.messages > seen.messages || now.listening == seen.listening {
            return;
        }
        seen.listening = now.listening;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::net::call::{CallPhase, Deferred, DeferredInfo};
    use crate::net::request::Request;

    #[test]
    fn a_release_was_announced_to_us_if_we_listened_and_the_reply_says_so() {
        let release = |reply: Option<i64>| {
            let call = Call::deferred(Deferred {
                request: Request::command("releasing", &["PING"]),
                info: DeferredInfo {
                    name: "a".into(),
                    useful_until: Instant::now(),
                    undo: false,
                    for_good: false,
                },
            });
            call.is_heard_by_us(0);
            if let Some(reply) = reply {
                call.state.lock().phase = CallPhase::Done(Value::Int(reply));
            }
            call
        };
        let of = |reply| was_announced_to_us(&release(reply));
        assert!(of(Some(1)) && of(Some(2)));
        assert!(!of(None) && !of(Some(0)) && !of(Some(-1)) && !of(Some(-2)));
        let overtaken = release(Some(1));
        overtaken.may_be_overtaken();
        assert!(!was_announced_to_us(&overtaken));
    }
}
