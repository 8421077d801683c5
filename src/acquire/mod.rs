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
//!   since a release may have come before. One that yields subscribes before it asks, and need not ask again.
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
mod contest;
pub(crate) mod enter;
pub(crate) mod give_permits;
pub(crate) mod guard;
pub(crate) mod guarded;
pub(crate) mod latch;
pub(crate) mod leased_permits;
pub(crate) mod listening;
#[cfg(test)]
mod model;
pub(crate) mod multi;
pub(crate) mod observed;
pub(crate) mod permits;
pub(crate) mod plain_permits;
pub(crate) mod quorum;
#[cfg(test)]
mod schedules;
pub(crate) mod spec;
mod spinning;
pub(crate) mod turn;
pub(crate) mod wait_mode;
pub(crate) mod yielding;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::hold::Entry;
use crate::local::waiter::Signals;
use crate::net::call::{Call, Fault};
use crate::net::subscriber::POLL_CAP;
use crate::quorum::failure::Failure;
use crate::session::Session;
use crate::time::{self, Budget, Deadline};

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

/// How the loop ended.
pub(crate) enum Outcome<G> {
    Granted(G),
    /// Somebody else had it when Redis was asked.
    Busy(Busy),
    /// Time was up before there was any answer; what it may have granted is being undone.
    TooLate,
}

impl<G> Outcome<G> {
    /// That of a wait whose time is up; whether anybody had it when Redis was asked.
    fn in_vain(was_refused: bool) -> Self {
        match was_refused {
            true => Self::Busy(Busy::default()),
            false => Self::TooLate,
        }
    }

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

    /// Whether it asks once more because its time is nearly up, and not because a message may be lost.
    fn asks_last(&self) -> bool {
        false
    }

    /// What this client keeps for its name.
    fn entry(&self) -> &Arc<Entry>;

    /// What a thread of this process has handed over to this one.
    fn handed_over(&mut self) -> Result<Option<Self::Grant>> {
        Ok(None)
    }

    /// It waits no longer. What has been handed over by then is its own.
    fn withdraw(&mut self) -> Result<Option<Self::Grant>> {
        self.handed_over()
    }

    /// The release after which it has to let others go first, before it asks. Told once.
    fn yields_after(&mut self) -> Option<Arc<Call>> {
        None
    }

    /// Whether processes alternate that contend for it: one has it alone, and nothing else says who is next.
    fn alternates(&self) -> bool {
        false
    }

    /// Asks Redis once, reconnecting if necessary. A request without a reply is undone.
    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Self::Grant>, NoReply>;

    /// Where changes are announced; `None` if nobody announces them, or not to one channel.
    fn channel(&self) -> Option<Arc<str>> {
        Some(self.entry().protocol.channel())
    }

    /// The thread's waiter and its subscription.
    fn listening(&mut self) -> &mut Listening;

    /// How long to park at most: `cap` for one whose subscription promises that much.
    fn park_for(&mut self, cap: Duration) -> Duration {
        time::jittered(cap)
    }
}

/// Asks until Redis grants it, or the time to wait is over.
pub(crate) fn acquire<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
) -> Result<Outcome<S::Grant>> {
    let session = spec.session();
    let deadline = wait.deadline();
    let mut has_waited = strategy.listening().has_parked();
    let mut was_refused = false;
    let mut parks = Parks::default();
    // How many messages had come when it yielded last.
    let mut heard = None;
    // When the time for the next question began: yielding is part of it.
    let mut asks_since = None;
    loop {
        parks.woken |= strategy.listening().has_wakeup();
        if let Some(grant) = strategy.handed_over()? {
            return Ok(Outcome::Granted(grant));
        }
        let now = Instant::now();
        if spec.must_stop(wait) || has_waited && deadline.has_passed(now) {
            // One that never was the first of its process has not asked.
            let is_taken = was_refused || strategy.entry().lock().lock.is_taken();
            return end(strategy, spec, wait, Outcome::in_vain(is_taken));
        }
        let budget = wait.budget(*asks_since.get_or_insert(now), session.response_timeout);
        if yielding::yield_to_others(strategy, spec, wait, budget.until, &mut heard)? {
            has_waited = true;
            continue;
        }
        asks_since = None;
        let before = strategy.listening().signals();
        let reply = strategy.ask(budget.until);
        if matches!(reply, Err(NoReply::Unanswered(_))) {
            strategy.entry().lock().lock.was_not_refused();
        }
        if matches!(reply, Ok(Reply::Granted(_) | Reply::HandedOver)) {
            parks.count_rescue(strategy, session);
        }
        let busy = match reply {
            Ok(Reply::Granted(grant)) => return Ok(Outcome::Granted(grant)),
            Ok(Reply::Busy(busy)) => busy,
            Ok(Reply::HandedOver) => continue,
            Err(NoReply::Unanswered(failure)) if budget.was_too_short(&failure) => {
                return end(strategy, spec, wait, Outcome::in_vain(was_refused));
            }
            Err(NoReply::Unanswered(failure)) => {
                return fail(strategy, spec, failure, &budget);
            }
            Err(NoReply::Final(err)) => return Err(err),
        };
        if strategy.listening().has_wakeup() {
            has_waited = true;
            continue;
        }
        if !wait.asks_again() {
            return Ok(Outcome::Busy(busy));
        }
        if deadline.has_passed(Instant::now()) {
            return end(strategy, spec, wait, Outcome::Busy(busy));
        }
        if !std::mem::replace(&mut was_refused, true)
            && let Some(reason) = spec.has_it_otherwise()
        {
            return Err(spec.would_deadlock(reason));
        }
        has_waited = true;

        parks.park(strategy, spec, wait, busy, before)?;
    }
}

/// How often a thread has parked, and what has ended the last time.
#[derive(Default)]
struct Parks {
    count: u32,
    /// A thread of this process has woken it since.
    woken: bool,
    /// The signals before it.
    heard: Signals,
}

impl Parks {
    /// Listens and parks, unless the subscription is confirmed at once. `before`: the signals before the request.
    fn park<S: Strategy>(
        &mut self,
        strategy: &mut S,
        spec: &LockSpec,
        wait: WaitMode,
        busy: Busy,
        before: Signals,
    ) -> Result<()> {
        let began_to_listen = listen(strategy, spec)?;
        let listening = strategy.listening();
        let seen = match began_to_listen {
            true => listening.signals(),
            false => before,
        };
        if began_to_listen && seen.listening && listening.is_notified() {
            // Not a park yet.
            return Ok(());
        }
        let cap = (POLL_CAP.0 * (1 << self.count.saturating_sub(1).min(3))).min(POLL_CAP.1);
        // A pause is no park: nothing was to be announced.
        self.count += u32::from(listening.is_subscribed() && !busy.is_contested);
        let now = Instant::now();
        let park = strategy.park_for(cap);
        // Those who contend for it are to come back one by one.
        let mut until = match busy.is_contested {
            true => now + park,
            false => time::together(now, park),
        };
        let free_at = busy.retry_after.map(|left| now + left);
        if let Some(free_at) = free_at {
            // A key lives for the whole of its last millisecond.
            until = until.min(free_at + Duration::from_millis(1));
        }
        let until = Deadline::at(wait.deadline().or(until));
        let left = |now| Some(free_at?.saturating_duration_since(now));
        let stop = || spec.must_stop(wait);
        let listening = strategy.listening();
        listening.park(spec, seen, until, left, &stop);
        // A confirmation is no message, but what it leads to is no rescue either, nor is what follows a pause.
        (self.woken, self.heard) = (busy.is_contested, seen);
        let is_message = listening.signals().messages > seen.messages && !stop();
        spec.session().counters.wakes.add(is_message.into());
        Ok(())
    }

    /// It was granted what it asked for, perhaps without having heard that it can be had.
    fn count_rescue<S: Strategy>(&self, strategy: &mut S, session: &Session) {
        let news = strategy.listening().signals().are_news_since(self.heard);
        let is_rescue =
            self.count > 0 && S::IS_ANNOUNCED && !self.woken && !news && !strategy.asks_last();
        session.counters.poll_rescues.add(is_rescue.into());
    }
}

/// There is no answer, and not for want of the caller's time.
fn fail<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    failure: Failure,
    budget: &Budget,
) -> Result<Outcome<S::Grant>> {
    if budget.concerns_all(&failure) {
        // They get the error now, rather than each after a timeout of its own.
        let error = spec.make_error(S::DOING, failure.clone());
        strategy.entry().dismiss(&error);
    }
    match strategy.withdraw()? {
        Some(grant) => Ok(Outcome::Granted(grant)),
        None => Err(spec.error(S::DOING, failure)),
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
fn listen<S: Strategy>(strategy: &mut S, spec: &LockSpec) -> Result<bool> {
    if strategy.listening().has_begun() {
        return Ok(false);
    }
    let channel = strategy.channel();
    let listening = strategy.listening();
    match &spec.quorum {
        Some(quorum) => listening.begin_at_each(quorum),
        None => {
            if let Some(channel) = &channel {
                spec.session().start_subscriber(channel)?;
            }
            listening.begin(spec.session(), channel);
        }
    }
    Ok(true)
}
