//! How a thread acquires something, or waits until a latch is open: the loop that waits for one thing.
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
//! - *ready?* If a thread of this process hands over the thing, Redis is not asked. When the tenure of this process is
//!   over ([`yielding`]), others go first.
//! - *ask.* [`Budget`] says how long the question may take, and what it means if there is no answer.
//! - *listen.* A message is a hint and never a grant. A thread that has subscribed asks again once the subscription is
//!   confirmed, since a release may have preceded it. A thread that lets others go first subscribes before it asks. If the
//!   confirmation precedes the question, no second question is needed.
//! - *park.* The thread parks until a message arrives or the lease of the present holder ends, but, since messages can be
//!   lost, for no longer than the poll cap (`BackOff::POLL`). Where nothing is announced, the park is a pause.
//!
//! A [`Strategy`] is the part that differs between the ways of waiting. There is one more loop around this one, and one
//! below it:
//!
//! - Around it, a multi-lock waits for one member at a time; once it has that member, it asks for the others ([`multi`]).
//!   If it is refused again, it pauses for a few milliseconds before it waits for the next member.
//! - Below it, a question to several servers is repeated if too few of them have answered ([`quorum`]). For this loop the
//!   repetitions are one question, with one time limit.

mod adopt;
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
mod pacer;
pub(crate) mod permits;
pub(crate) mod plain_permits;
pub(crate) mod quorum;
#[cfg(test)]
mod schedules;
pub(crate) mod spec;
pub(crate) mod spinning;
pub(crate) mod target;
pub(crate) mod turn;
pub(crate) mod wait_mode;
pub(crate) mod yielding;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, Result};
use crate::hold::Entry;
use crate::local::waiter::Signals;
use crate::net::back_off::BackOff;
use crate::net::call::{Call, Fault};
use crate::quorum::failure::Failure;
use crate::time::{self, Budget, Deadline};

pub(crate) use crate::quorum::ask::Busy;

/// The reply to a request.
pub(crate) enum Reply<G> {
    Granted(G),
    Busy(Busy),
    /// A thread of this process handed over permits before the reply arrived. The asking thread keeps those permits; what
    /// Redis granted in addition was passed on.
    HandedOver,
}

/// Why a request has no reply.
pub(crate) enum NoReply {
    /// No usable reply: an error, unless only the caller's time was too short ([`Budget`]).
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
    /// The last reply said that somebody else has it.
    Busy(Busy),
    /// The time was up before there was any reply; a grant that Redis may have made is being undone.
    TooLate,
}

impl<G> Outcome<G> {
    /// The end of a wait whose time is up. `was_refused`: the last reply, to this thread or to another thread of the
    /// process, said that somebody has the thing.
    fn without_grant(was_refused: bool) -> Self {
        match was_refused {
            true => Self::Busy(Busy::default()),
            false => Self::TooLate,
        }
    }

    pub(crate) fn map<T>(self, change: impl FnOnce(G) -> T) -> Outcome<T> {
        match self {
            Self::Granted(grant) => Outcome::Granted(change(grant)),
            Self::Busy(busy) => Outcome::Busy(busy),
            Self::TooLate => Outcome::TooLate,
        }
    }

    /// The grant, for the caller of a lock named `name`. With `late_is_error`, a wait that ended before there was any reply
    /// is an error.
    fn settled(self, name: &str, late_is_error: bool) -> Result<Option<G>> {
        match self {
            Self::TooLate if late_is_error => Err(Error::Late { name: name.into() }),
            outcome => Ok(outcome.granted()),
        }
    }

    /// The grant, for callers that need not know why nothing was granted.
    pub(crate) fn granted(self) -> Option<G> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Busy(_) | Self::TooLate => None,
        }
    }
}

/// A way of waiting for one thing.
pub(crate) trait Strategy {
    /// The thing that is asked for.
    type Grant;

    /// How an error message names what the thread was doing, such as "acquiring the lock".
    const DOING: &'static str;

    /// Whether grants that no message announced are counted as missed messages. False for permits with a lease: one may
    /// have expired, which nothing announces, so the grant does not show that a message was lost.
    const COUNTS_MISSED: bool = true;

    /// Whether the last park was shortened for the last question before the time is up. If so, a grant does not show that
    /// a message was lost.
    fn is_last_question(&self) -> bool {
        false
    }

    /// The client's entry for the name.
    fn entry(&self) -> &Arc<Entry>;

    /// The grant that a thread of this process has handed over to this one.
    fn handed_over(&mut self) -> Result<Option<Self::Grant>> {
        Ok(None)
    }

    /// Stops waiting in the queue of this process, if the thread is in it. Returns the grant if a thread has handed one
    /// over by then.
    fn withdraw(&mut self) -> Result<Option<Self::Grant>> {
        self.handed_over()
    }

    /// The last release of a tenure that is over: before the thread asks, it lets others go first, unless that release is
    /// known to have notified nobody. Returned once.
    fn yields_after(&mut self) -> Option<Arc<Call>> {
        None
    }

    /// Whether contending processes have to alternate by themselves: the thing has one holder at a time, and its
    /// contenders leave no [notes](turn) in Redis. (Also true for a fair lock, without effect: its contenders never yield,
    /// since its queue says who is next.)
    fn alternates(&self) -> bool {
        false
    }

    /// Whether the first question was sent already, so that yielding would only delay reading the reply.
    fn has_asked_ahead(&self) -> bool {
        false
    }

    /// Asks Redis once, reconnecting if necessary. A request that may have taken something, and has no reply, is undone,
    /// except that of a contender with a place: rule 3 at [`Contender`](contender::Contender).
    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Self::Grant>, NoReply>;

    /// The channel on which changes are announced to this thread; `None` if there is none, or one at each of several
    /// servers.
    fn channel(&self) -> Option<Arc<str>> {
        Some(self.entry().protocol.channel())
    }

    /// The thread's waiter and its subscription.
    fn listening(&mut self) -> &mut Listening;

    /// How long to park at most; `cap` is the limit for a thread that waits for messages.
    fn park_for(&mut self, cap: Duration) -> Duration {
        time::jittered(cap)
    }
}

/// Asks until Redis grants the thing, or the time to wait is over.
pub(crate) fn acquire<S: Strategy>(
    strategy: &mut S,
    spec: &LockSpec,
    wait: WaitMode,
) -> Result<Outcome<S::Grant>> {
    let waiting = Waiting {
        strategy,
        spec,
        wait,
        was_refused: false,
        messages_heard: None,
        parks: 0,
        silent_since: None,
    };
    waiting.run()
}

/// A call, from its first question to its end.
struct Waiting<'a, S> {
    strategy: &'a mut S,
    spec: &'a LockSpec,
    wait: WaitMode,
    /// Redis has refused the thing at least once.
    was_refused: bool,
    /// The number of messages that `yield_to_others` has dealt with: the thread has paused after them, or had no time to
    /// pause. Only a later message makes it pause again.
    messages_heard: Option<u64>,
    /// How often the thread has parked.
    parks: u32,
    /// The signals before the last park; `None` if that park awaited no message, or a thread of this process has ended it.
    /// If the signals are the same when a grant comes, no message announced the grant.
    silent_since: Option<Signals>,
}

impl<S: Strategy> Waiting<'_, S> {
    fn run(mut self) -> Result<Outcome<S::Grant>> {
        loop {
            let budget = match self.get_ready()? {
                ControlFlow::Continue(budget) => budget,
                ControlFlow::Break(outcome) => return Ok(outcome),
            };
            // Read before the request, so that the message of a release which follows this question counts as news, even if
            // the message arrives before the reply.
            let signals_before = self.strategy.listening().signals();
            let busy = match self.strategy.ask(budget.until) {
                Ok(Reply::Granted(grant)) => {
                    self.count_rescue();
                    return Ok(Outcome::Granted(grant));
                }
                Ok(Reply::HandedOver) => {
                    // Redis has granted it, too: that grant was passed on.
                    self.count_rescue();
                    continue;
                }
                Ok(Reply::Busy(busy)) => busy,
                Err(NoReply::Unanswered(failure)) => return self.end_unanswered(failure, &budget),
                Err(NoReply::Final(err)) => return Err(err),
            };
            let is_first_refusal = !std::mem::replace(&mut self.was_refused, true);
            // While Redis was asked, a thread of this process has handed over the thing, or woken this thread to ask.
            if self.strategy.listening().has_wakeup() {
                continue;
            }
            if !self.wait.asks_again() {
                return Ok(Outcome::Busy(busy));
            }
            if self.wait.deadline().has_passed(Instant::now()) {
                return self.end(Outcome::Busy(busy));
            }
            // Checked before the first park only: while it waits, this thread takes and releases nothing.
            if is_first_refusal && let Some(reason) = self.spec.has_it_otherwise() {
                return Err(self.spec.would_deadlock(reason));
            }
            self.park(busy, signals_before)?;
        }
    }

    /// Waits until the thread has to ask. Returns the time for the question, or the outcome that ends the wait.
    fn get_ready(&mut self) -> Result<ControlFlow<Outcome<S::Grant>, Budget>> {
        // A call that has neither asked nor waited asks once, however little time it has. A call has waited if it has parked
        // for a thread of its process, or has let other processes go first. Once a call has asked or waited, it ends when
        // its time is up.
        let mut has_waited = self.was_refused || self.strategy.listening().has_parked();
        // The time for the question includes yielding, but not waiting for other threads of this process.
        let mut began = None;
        loop {
            if self.strategy.listening().has_wakeup() {
                // A thread of this process has woken this one, so a grant does not mean that a message was lost.
                self.silent_since = None;
            }
            if let Some(grant) = self.strategy.handed_over()? {
                return Ok(ControlFlow::Break(Outcome::Granted(grant)));
            }
            let now = Instant::now();
            let is_late = has_waited && self.wait.deadline().has_passed(now);
            if is_late || self.spec.must_stop() {
                // A thread that has not asked Redis itself goes by the last reply to another thread of this process.
                let is_taken = self.was_refused || self.strategy.entry().lock().lock.is_taken();
                let ended = self.end(Outcome::without_grant(is_taken))?;
                return Ok(ControlFlow::Break(ended));
            }
            let (spec, wait, heard) = (self.spec, self.wait, &mut self.messages_heard);
            let began = *began.get_or_insert(now);
            let budget = wait.budget(began, spec.command_timeout);
            let asks_by = budget.half_from(began);
            if self.strategy.has_asked_ahead()
                || !yielding::yield_to_others(self.strategy, spec, wait, asks_by, heard)?
            {
                return Ok(ControlFlow::Continue(budget));
            }
            has_waited = true;
        }
    }

    /// Subscribes unless the thread has done so, and parks. If the thread has just subscribed, and the subscription is
    /// confirmed already because this process was listening there, it does not park but asks once more. A contested reply
    /// ([`Busy::is_contested`]) is always followed by a pause. `signals_before`: the signals before the request.
    fn park(&mut self, busy: Busy, signals_before: Signals) -> Result<()> {
        let began_to_listen = listen(self.strategy, self.spec)?;
        let listening = self.strategy.listening();
        // The park ends at once if there was news since before the request, except in two cases. A thread that has just
        // begun to listen has no earlier news. After a contested round the thread asks again in any case, once its pause
        // is over: messages that arrived during the round, such as those of other masters about the same release, must not
        // cut the pause short.
        let mut known_signals = match began_to_listen || busy.is_contested {
            true => listening.signals(),
            false => signals_before,
        };
        if began_to_listen
            && known_signals.is_answered
            && listening.is_notified()
            && !busy.is_contested
        {
            // A release may have preceded the subscription: ask once more before parking.
            return Ok(());
        }
        // The limit is 1 s for the first two parks, then doubles up to 5 s.
        let cap = BackOff::POLL.after(self.parks.max(1));
        // The pause after a contested round is not counted as a park: no message was expected.
        let is_park = listening.is_subscribed() && !busy.is_contested;
        self.parks += u32::from(is_park);
        // A confirmation during the park counts as news, so `count_rescue` does not count a grant that follows one.
        self.silent_since = is_park.then_some(known_signals);
        let now = Instant::now();
        let park = self.strategy.park_for(cap);
        // No shared tick after a contested round: contenders that ask at the same moment may each be granted too few
        // servers again.
        let mut until = match busy.is_contested {
            true => now + park,
            false => time::on_shared_tick(now, park),
        };
        let free_at = busy.retry_after.map(|retry_after| now + retry_after);
        if let Some(free_at) = free_at {
            // A key lives through its last millisecond, so the thread asks 1 ms later.
            until = until.min(free_at + Duration::from_millis(1));
        }
        let (spec, wait) = (self.spec, self.wait);
        let until = Deadline::at(wait.deadline().earliest(until));
        // For read-write locks `retry_after` may be shorter than what is left of the lease, so the log does not show it.
        let lease_ends = free_at.filter(|_| !spec.key.kind.has_notes);
        let lease_left = |now| Some(lease_ends?.saturating_duration_since(now));
        let stop = || spec.must_stop();
        let listening = self.strategy.listening();
        loop {
            listening.park(spec, known_signals, until, lease_left, &stop);
            let signals = listening.signals();
            // A confirmation of the subscription does not end the pause after a contested round. All contenders get their
            // confirmations at about the same moment, so they would also ask at the same moment, and collide again.
            let goes_on = busy.is_contested
                && signals.messages == known_signals.messages
                && signals.is_answered != known_signals.is_answered;
            if !goes_on {
                break;
            }
            known_signals = signals;
        }
        // Cancelling and closing count as messages, too; `!stop()` leaves them out.
        let is_message = listening.signals().messages > known_signals.messages && !stop();
        spec.session().counters.wakes.add(is_message.into());
        Ok(())
    }

    /// Counts a grant that no message announced: the message was lost, or none was sent, as when a lease expires.
    fn count_rescue(&mut self) {
        let signals = self.strategy.listening().signals();
        let is_silent = |known_signals| !signals.are_news_since(known_signals);
        let is_rescue = S::COUNTS_MISSED
            && !self.strategy.is_last_question()
            && self.silent_since.is_some_and(is_silent);
        let counters = &self.spec.session().counters;
        counters.missed_messages.add(is_rescue.into());
    }

    /// Ends the wait without a reply: with an error, unless the caller's time was too short.
    fn end_unanswered(&mut self, failure: Failure, budget: &Budget) -> Result<Outcome<S::Grant>> {
        self.strategy.entry().lock().lock.forget_refusal();
        if budget.was_too_short(failure.is_late()) {
            return self.end(Outcome::without_grant(self.was_refused));
        }
        let timeout = self.spec.command_timeout;
        if budget.concerns_all(failure.is_unanswered(), timeout) {
            // The threads queued behind this one get the error now, instead of each after a timeout of its own. A thread
            // whose handle has a longer timeout goes on.
            let error = self.spec.make_error(S::DOING, failure.clone());
            self.strategy.entry().dismiss(&error, timeout);
        }
        // Until this thread is off the queue, another may hand over the thing; then the grant is returned and not the
        // error.
        match self.strategy.withdraw()? {
            Some(grant) => Ok(Outcome::Granted(grant)),
            None => Err(self.spec.error(S::DOING, failure)),
        }
    }

    /// Ends the wait with `outcome`, unless there is a grant or a reason to stop: see [`Budget`].
    fn end(&mut self, outcome: Outcome<S::Grant>) -> Result<Outcome<S::Grant>> {
        match self.strategy.withdraw()? {
            Some(grant) => Ok(Outcome::Granted(grant)),
            None => self.spec.check_going().map(|()| outcome),
        }
    }
}

/// Begins to listen where changes are announced, if anywhere; `false` if the thread had begun already.
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
