//! How a thread comes to hold something, or to see a latch open: the loop that waits for one thing.
//!
//! ```text
//!            ┌───────────────────────────── ask again ◄──────────────────────────────┐
//!            ▼                                                                       │
//!   start ─► ready? ──yes──► ask ──busy──► listen ──confirmed before──►──────────────┤
//!            │  │ ▲           │  │            │                                      │
//!            │  └─┘ no:       │  │            └─► park ──message, confirmation, ─────┘
//!            │   yield to     │  │                       end of the lease, poll cap,
//!            │   others, or   │  │                       wakeup by another thread
//!            │   wait here    │  └─no answer─► not in time, or an error
//!            ▼                ▼
//!     handed over          granted          the deadline, a cancelled token and the closing of the client end it anywhere
//! ```
//!
//! - *ready?* A thread of this process may hand over what it has, then Redis is not asked. After the tenure others go first.
//! - *ask.* [`Budget`](crate::time::Budget) says how long the question may take and what it means that there is no answer.
//! - *listen.* A message is a hint and never a grant: a thread that has subscribed asks again once that is confirmed,
//!   since a release may have come before. One that takes over what the last holder of its process has left behind does
//!   so before it asks, and need not ask again; the message of that holder's release, if still to come, is no news.
//! - *park.* Until a message comes, the lease of the present holder ends, or the poll cap is over, since messages can be
//!   lost. Where nothing is announced it is a pause.
//!
//! What differs between the ways of waiting is a [`Strategy`]. Two other loops are around this one or below it:
//!
//! - A multi-lock of several members waits for one of them at a time, each in this loop, and asks for the others again
//!   once it has that one ([`multi`]). It waits for nothing else, but for a few milliseconds between two such rounds.
//! - A question to several servers is asked again if too few of them have answered, since their connections may just
//!   have been idle for too long ([`quorum`]). To this loop that is one question, which ends in its time.

pub(crate) mod contender;
pub(crate) mod enter;
pub(crate) mod fair;
pub(crate) mod guard;
pub(crate) mod latch;
pub(crate) mod leased_permits;
pub(crate) mod listening;
#[cfg(test)]
mod model;
pub(crate) mod multi;
pub(crate) mod permit_queue;
pub(crate) mod permits;
pub(crate) mod quorum;
#[cfg(test)]
mod schedules;
pub(crate) mod spec;
pub(crate) mod wait_mode;
pub(crate) mod way;
pub(crate) mod writer_preference;
pub(crate) mod yielding;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::hold::Waiter;
use crate::net::call::Fault;
use crate::quorum::ask::Quorum;
use crate::quorum::failure::Failure;
use crate::time;

/// The reply to a request.
pub(crate) enum Reply<G> {
    Granted(G),
    Busy(Busy),
    /// Granted, and passed on: a thread of this process has handed over what it had meanwhile.
    HandedOver,
}

/// Somebody else has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busy {
    /// When it is worth asking again although nothing was announced; `None`: nobody knows.
    pub(crate) retry_after: Option<Duration>,
    /// The index of the name to listen to, if there are several.
    pub(crate) listen_on: usize,
    /// Nobody may have it: several ask at the same time, and each may have been granted too few of several servers. They
    /// come again after a short pause, and until then nothing may be announced.
    pub(crate) is_contested: bool,
}

/// Why a request has no reply.
pub(crate) enum NoReply {
    /// Whether that is an error depends on whose time was up.
    Unanswered(Failure),
    Final(Error),
}

impl From<Fault> for NoReply {
    fn from(fault: Fault) -> Self {
        Self::Unanswered(fault.into())
    }
}

impl From<Error> for NoReply {
    fn from(err: Error) -> Self {
        Self::Final(err)
    }
}

/// What a thread has done before it asks Redis.
pub(crate) enum Prepared {
    /// Nothing, or nothing that is left to do: it asks now.
    Asks,
    /// It has yielded to other processes, and waited for Redis to do so: that time is part of the response timeout.
    Yielded,
    /// It has waited for another thread of this process, which has what it wants.
    Waited,
}

/// How the loop ended.
pub(crate) enum Outcome<G> {
    Granted(G),
    /// Somebody else had it when Redis was asked last.
    Busy(Busy),
    /// Time was up before there was an answer; what it may have granted is being undone.
    TooLate,
}

impl<G> Outcome<G> {
    /// For callers that need not know why nothing was granted.
    pub(crate) fn granted(self) -> Option<G> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Busy(_) | Self::TooLate => None,
        }
    }
}

/// One way of waiting for one thing.
pub(crate) trait Strategy {
    /// What it asks for.
    type Grant;

    /// What it does, for errors.
    const DOING: &'static str;

    /// Whether a grant without a message means that the message was lost. Permits that expire send none.
    const IS_ANNOUNCED: bool = true;

    /// What a thread of this process has handed over to this one.
    fn handed_over(&mut self) -> Result<Option<Self::Grant>> {
        Ok(None)
    }

    /// It waits no longer. What has been handed over by then is its own.
    fn withdraw(&mut self) -> Result<Option<Self::Grant>> {
        self.handed_over()
    }

    /// Called until it asks. If it yields, that is over in time for a question that has to be answered by `until`.
    fn prepare(&mut self, _until: Instant) -> Result<Prepared> {
        Ok(Prepared::Asks)
    }

    /// Whether a wakeup by a thread of this process has not been read yet: then there is no reason to park.
    fn has_news(&self) -> bool {
        false
    }

    /// Asks Redis once, reconnecting if necessary. A request without a reply is undone.
    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Self::Grant>, NoReply>;

    /// Where changes are announced; `None` if nobody announces them.
    fn channel(&self, listen_on: usize) -> Option<Arc<str>>;

    /// The masters at each of which changes are announced, in place of one channel.
    fn quorum(&self) -> Option<Arc<Quorum>> {
        None
    }

    /// The thread's waiter and its subscription.
    fn listening(&mut self) -> &mut Listening;

    /// It is about to wait for the first time, unless that is bound to fail.
    fn may_wait(&mut self) -> Result<()> {
        Ok(())
    }

    /// The wait begins: the closing of the client and other threads of this process must be able to reach `waiter`.
    fn begins_to_wait(&mut self, waiter: &Arc<Waiter>);

    /// Whatever else it has subscribed to may have moved to another node of the cluster, and ended: then it subscribes
    /// there.
    #[cfg(feature = "cluster")]
    fn follow(&mut self) {}

    /// How long to park at most: `cap` for one whose subscription promises that much.
    fn park_for(&mut self, cap: Duration) -> Duration {
        time::jittered(cap)
    }

    /// Redis was unreachable for the whole response timeout: the threads queued behind this one get the error now, rather than
    /// each after a timeout of its own.
    fn dismiss(&mut self, _failure: &Failure) {}
}

/// Asks until Redis grants it, or the time to wait is over.
pub(crate) fn acquire<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
) -> Result<Outcome<S::Grant>> {
    let session = spec.session();
    let deadline = wait.deadline();
    let mut has_waited = strategy.listening().was_queued();
    let mut was_refused = false;
    let mut parked = 0;
    let mut woken = false;
    // The signals that ended the last park.
    let mut heard = None;
    // When the time for the next question began: yielding is part of it.
    let mut asks_since = None;
    loop {
        // By a thread of this process, which need not be announced.
        woken |= strategy.listening().has_wakeup();
        if let Some(grant) = strategy.handed_over()? {
            return Ok(Outcome::Granted(grant));
        }
        let now = Instant::now();
        if spec.must_stop(wait) || has_waited && deadline.has_passed(now) {
            return end(strategy, spec, wait, Outcome::TooLate);
        }
        let began = *asks_since.get_or_insert(now);
        let budget = wait.budget(began, session.response_timeout);
        match strategy.prepare(budget.until)? {
            Prepared::Asks => asks_since = None,
            Prepared::Yielded => {
                has_waited = true;
                // A message that came meanwhile was not lost.
                woken |= heard.is_some() && strategy.listening().known_signals() != heard;
                continue;
            }
            Prepared::Waited => {
                has_waited = true;
                asks_since = None;
                continue;
            }
        }
        let before = strategy.listening().known_signals();
        let reply = strategy.ask(budget.until);
        let has_granted = matches!(reply, Ok(Reply::Granted(_) | Reply::HandedOver));
        if has_granted
            && S::IS_ANNOUNCED
            && parked > 0
            && !(woken || strategy.listening().has_wakeup())
        {
            session.counters.poll_rescues.add(1);
        }
        let busy = match reply {
            Ok(Reply::Granted(grant)) => return Ok(Outcome::Granted(grant)),
            Ok(Reply::Busy(busy)) => busy,
            Ok(Reply::HandedOver) => continue,
            Err(NoReply::Unanswered(failure)) if budget.was_too_short(&failure) => {
                return end(strategy, spec, wait, Outcome::TooLate);
            }
            Err(NoReply::Unanswered(failure)) => {
                if budget.concerns_all(&failure) {
                    strategy.dismiss(&failure);
                }
                return match strategy.withdraw()? {
                    Some(grant) => Ok(Outcome::Granted(grant)),
                    None => Err(spec.error(S::DOING, failure)),
                };
            }
            Err(NoReply::Final(err)) => return Err(err),
        };
        if strategy.has_news() {
            (has_waited, woken) = (true, true);
            continue;
        }
        if !wait.asks_again() {
            return Ok(Outcome::Busy(busy));
        }
        if deadline.has_passed(Instant::now()) {
            return end(strategy, spec, wait, Outcome::Busy(busy));
        }
        if !std::mem::replace(&mut was_refused, true) {
            strategy.may_wait()?;
        }
        has_waited = true;

        let began_to_listen = listen(strategy, spec, busy.listen_on)?;
        let listening = strategy.listening();
        let seen = match before {
            Some(before) if !began_to_listen => before,
            _ => listening.signals(),
        };
        listening.settle_own();
        if began_to_listen && seen.listening && listening.is_notified() {
            // Confirmed already: not a park yet.
            continue;
        }
        let cap = listening.poll_cap(parked);
        // A pause is no park: nothing was to be announced.
        parked += u32::from(listening.is_subscribed() && !busy.is_contested);
        let waiter = Arc::clone(listening.waiter());
        let now = Instant::now();
        let park = strategy.park_for(cap);
        // Those who contend for it are to come back one by one.
        let mut until = match busy.is_contested {
            true => now + park,
            false => time::together(now, park),
        };
        if let Some(left) = busy.retry_after {
            // A key lives for the whole of its last millisecond.
            until = until.min(now + left + Duration::from_millis(1));
        }
        let until = deadline.or(until);
        let stop = || strategy.has_news() || spec.must_stop(wait);
        waiter.wait_for_signal(seen, until, &stop);
        let now = waiter.signals();
        // A confirmation is no message, but what it leads to is no rescue either, nor is what follows a pause.
        woken = now.are_news_since(seen) || strategy.has_news() || busy.is_contested;
        heard = Some(now);
        if now.messages > seen.messages {
            session.counters.wakes.add(1);
        }
    }
}

/// It ends with `outcome` unless something else has come first: see [`Budget`](time::Budget).
fn end<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
    outcome: Outcome<S::Grant>,
) -> Result<Outcome<S::Grant>> {
    match strategy.withdraw()? {
        Some(grant) => Ok(Outcome::Granted(grant)),
        None if spec.must_stop(wait) => Err(spec.stopped()),
        None => Ok(outcome),
    }
}

/// Begins to wait, and to listen where changes are announced; `false` if it already listens there.
pub(crate) fn listen<S: Strategy>(strategy: &mut S, spec: &LockSpec, on: usize) -> Result<bool> {
    #[cfg(feature = "cluster")]
    if strategy.listening().has_begun() {
        strategy.follow();
    }
    let session = spec.session();
    let is_on = strategy.listening().is_on(on);
    if is_on && strategy.listening().has_begun() {
        return Ok(false);
    }
    let (channel, quorum) = (strategy.channel(on), strategy.quorum());
    if !strategy.listening().has_begun() {
        if let Some(quorum) = &quorum {
            quorum.start_subscribers()?;
        } else if channel.is_some() {
            session.start_subscriber()?;
        }
        strategy.listening().begins_to_wait();
        strategy.listening().watch(spec.cancel.as_ref());
        let waiter = Arc::clone(strategy.listening().waiter());
        strategy.begins_to_wait(&waiter);
    }
    if !is_on {
        match quorum {
            Some(quorum) => strategy.listening().begin_at_each(&quorum),
            None => strategy.listening().begin(session, on, channel),
        }
    }
    Ok(!is_on)
}
