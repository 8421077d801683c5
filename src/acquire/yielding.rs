//! When its tenure is over, this process lets others go first. Without that it would win again and again, since its
//! next request reaches Redis before the others have woken.
//!
//! ```text
//!    the tenure is over ─► its last release is answered: it has notified n others
//!                            ├─ n = 0: ask
//!                            ├─ n = 1: pause for 1 ms ─► ask
//!                            └─ n > 1: a debt of n tenures begins; pause for 1 ms ─► ask ─► granted: the debt ends
//!                                                                                     │ refused
//!                                                                                     ▼
//!                                      until the debt is over: after each message, pause for up to a tenure ─► ask
//! ```
//!
//! A debt begins only for a lock whose contenders have to alternate by themselves ([`Strategy::alternates`]): never for
//! read-write locks and semaphores. For spin locks and `RedLock`s there is no debt either: the thread pauses once and asks. A
//! `RedLock` skips the pause if its release is known to have notified nobody.
//!
//! Example with a tenure of 5 ms: the last release of the tenure has notified 3 others (n = 3). The thread pauses for
//! 1 ms and asks.
//!
//! - The reply to that release begins a debt of 3 tenures, which is over 15 ms later. Until then a message means that
//!   another process has released the lock, and the next process may ask first. So after each message, also one that comes
//!   during the pause of 1 ms, the thread pauses for 5 ms, or for what is left of the 15 ms, before it asks. Once the 15
//!   ms are over, the thread asks right after each message.
//! - A grant ends the debt: the others have not taken the lock, or have released it again.
//!
//! The debt (`local/cohort.rs`) belongs to the process: each call checks it before its first question and after
//! each message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::pacer::PAUSE;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Strategy};
use crate::error::Result;
use crate::net::call::Call;
use crate::protocol::script;
use crate::session::Session;
use crate::time;

/// Lets other processes ask first if the tenure is over or a debt is left. `true` if the caller has to check again whether
/// to ask: the thread has paused, was woken by another thread of this process, or has to stop. `messages_heard`: the number
/// of messages that were dealt with here. Only a later message makes the thread pause again.
///
/// All pauses before a question, and the wait for the reply to the last release, end at `asks_by`, after half of the
/// question's time. So a call with a short time limit yields as others do and still asks (bench: 4 and 8 processes of 4
/// threads on one lock, shares of each process). A single attempt pauses for [`PAUSE`] at most.
pub(crate) fn yield_to_others<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
    asks_by: Instant,
    messages_heard: &mut Option<u64>,
) -> Result<bool> {
    let release = strategy.yields_after();
    let messages = strategy.listening().signals().messages;
    // Without a new message nobody has released the lock since the last pause, so another pause would gain nothing.
    let is_debt_due =
        release.is_none() && strategy.alternates() && *messages_heard != Some(messages);
    let debt = match is_debt_due {
        true => strategy.entry().lock().lock.cohort.owes(Instant::now()),
        false => None,
    };
    if release.is_none() && debt.is_none() {
        return Ok(false);
    }
    let waiter = strategy.listening().known_waiter().map(Arc::clone);
    // During the pause another thread of this process may hand over permits to this one, or wake it for another reason.
    // Then the pause ends.
    let is_served = || waiter.iter().any(|waiter| waiter.is_woken(|_| true));
    let stop = || spec.must_stop() || is_served();
    let pause = match &release {
        Some(release) => pause_after(strategy, spec, release, asks_by, &stop),
        None => debt,
    };
    if stop() {
        return Ok(true);
    }
    let Some(pause) = pause else {
        return Ok(false);
    };
    if wait.asks_again() && spec.quorum.is_none() {
        // Subscribed before the question: if the subscription is confirmed during the pause, no second question is
        // needed.
        acquire::listen(strategy, spec)?;
    }
    let time_left = asks_by.saturating_duration_since(Instant::now());
    let most = match wait.asks_again() {
        true => time_left,
        false => time_left.min(PAUSE),
    };
    spec.session().counters.yields.add(1);
    time::sleep_unless(pause.min(most), &stop);
    // After a full pause, only the messages from before it count as heard: a message during the pause calls for another
    // pause. After a shortened pause no other pause follows, so all messages count as heard.
    *messages_heard = Some(match pause <= most {
        true => messages,
        false => strategy.listening().signals().messages,
    });
    Ok(true)
}

/// How long others go first after the release that has ended the tenure; `None` if the release has notified nobody.
fn pause_after<S: Strategy>(
    strategy: &S,
    spec: &LockSpec,
    release: &Arc<Call>,
    asks_by: Instant,
    stop: &dyn Fn() -> bool,
) -> Option<Duration> {
    if let Some(quorum) = &spec.quorum {
        return quorum.yield_for(PAUSE);
    }
    if !spec.key.kind.is_notified {
        return Some(PAUSE);
    }
    // Waits for the reply to the release, once in a tenure: for a round trip as a rule, and until `asks_by` at most.
    let others = notified_others(spec.session(), release, asks_by, stop);
    if strategy.alternates() {
        (strategy.entry().lock().lock.cohort).owe(others, Instant::now());
    }
    (others > 0).then_some(PAUSE)
}

/// How many other processes a release has notified. Waits for the reply. Without a reply, one may have been notified; a
/// reply that nothing was released, or an odd reply, counts as none.
fn notified_others(
    session: &Session,
    release: &Arc<Call>,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> u32 {
    match session.connection.at(release).wait(release, until, stop) {
        Ok((value, _)) => others(session, release, &value).unwrap_or(0),
        // The server may have executed the release, although its reply is late or lost.
        Err(_) => 1,
    }
}

/// Whether the release is known to have notified no other process.
pub(crate) fn has_notified_nobody(session: &Session, release: &Call) -> bool {
    release.has_reply(|reply| others(session, release, reply) == Some(0))
}

/// How many other processes a release has notified, by its reply: one if the server does not count them, `None` if
/// nothing was released or the reply is odd.
fn others(session: &Session, release: &Call, reply: &Value) -> Option<u32> {
    match script::released(reply) {
        Ok(Ok(_)) if !session.connection.counts_listeners() => Some(1),
        Ok(Ok(listeners)) => {
            let others = (listeners - i64::from(release.is_heard_by_us)).max(0);
            Some(u32::try_from(others).unwrap_or(u32::MAX))
        }
        _ => None,
    }
}
