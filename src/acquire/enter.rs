//! How a thread enters the local lock, before Redis is asked.
//!
//! ```text
//!   enter ─► the thread holds it ─► one more hold, renewed first if its lease is fixed
//!     │ ├──► readers share a hold ─► joins
//!     │ ├──► the thread may ask ───► contends
//!     │ └──► otherwise ────────────► waits in the queue of this process ─► handed over, or contends
//!     └────► one attempt does not wait: busy
//! ```

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::contender::Contender;
use crate::acquire::guard::{GuardInner, HoldOrigin};
use crate::acquire::listening::Listening;
use crate::acquire::spec::{HoldParams, LockSpec};
use crate::acquire::target::Target;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{Busy, Outcome};
use crate::error::{DeadlockReason, LossReason, Result};
use crate::hold::entry::wake;
use crate::hold::validity::Duty;
use crate::hold::{Entry, Hold, NotRenewed, Reentry, WaitingThread, Wakeup};
use crate::local::lock::{Entered, LeasePolicy, Mode};
use crate::local::waiter::Signals;
use crate::protocol::owner;

/// The result of entering the local lock.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be one more allocation for each uncontended lock"
)]
pub(crate) enum Pending<'a> {
    Held(GuardInner),
    /// The call does not wait, and another thread of this process is ahead. Or the time of the call is up, and somebody has
    /// the lock.
    Busy,
    /// The time of the call is up. Nobody is known to have the lock, or the renewal of the thread's own hold has no reply.
    TooLate,
    Contends(Contender<'a>),
}

impl Target for LockSpec {
    type Held = GuardInner;

    fn name(&self) -> &str {
        &self.name
    }

    fn parts(&self) -> &[Self] {
        slice::from_ref(self)
    }

    fn parts_mut(&mut self) -> &mut [Self] {
        slice::from_mut(self)
    }

    fn take(&self, wait: WaitMode) -> Result<Option<GuardInner>> {
        let acquire = || {
            let outcome = self.acquire(wait)?;
            if let Outcome::Granted(held) = &outcome {
                held.keep_for(self.min_hold);
            }
            Ok(outcome)
        };
        self.observed(acquire, |held, began| self.observe(held, began))
    }
}

impl LockSpec {
    /// Takes the lock, or one more hold of it.
    pub(crate) fn acquire(&self, wait: WaitMode) -> Result<Outcome<GuardInner>> {
        self.session().check_open()?;
        match self.enter(wait) {
            // A hold needs no `finish`, and a `Pending` is large to move.
            Ok(Pending::Held(held)) => Ok(Outcome::Granted(held)),
            pending => self.finish(pending),
        }
    }

    /// Waits for the end of an attempt that [`enter`](Self::enter) has begun.
    pub(crate) fn finish(&self, pending: Result<Pending<'_>>) -> Result<Outcome<GuardInner>> {
        let outcome = pending.and_then(|pending| match pending {
            Pending::Held(held) => Ok(Outcome::Granted(held)),
            Pending::Busy => Ok(Outcome::Busy(Busy::default())),
            Pending::TooLate => Ok(Outcome::TooLate),
            Pending::Contends(mut contender) => contender.run(),
        });
        if !matches!(outcome, Ok(Outcome::Granted(_))) {
            // The entry may be idle now, and without a release nothing else asks the watchdog to remove it.
            self.session().watchdog.housekeep_soon();
        }
        outcome
    }

    /// Starts the watchdogs that will renew the hold; returns its parameters and its entry.
    pub(super) fn start(&self, wait: WaitMode) -> Result<(HoldParams, Arc<Entry>)> {
        let (lease, ttl) = self.lease_policy()?;
        let thread = self.as_thread.unwrap_or_else(owner::this_thread);
        let params = HoldParams { lease, ttl, thread };
        let session = self.session();
        let entry = session.registry.get(&self.key)?;
        // `check_going` would also check that this process is no forked copy. The callers have done so, and each check
        // costs a system call (bench: 8 threads on one lock).
        if self.must_stop() {
            return Err(self.stopped());
        }
        match &self.quorum {
            Some(quorum) => {
                let timeout = self.until();
                let until = wait.deadline().earliest(timeout);
                quorum.check_masters(until, &|| self.must_stop())?;
                quorum.start_watchdogs()?;
            }
            None => session.start_watchdog()?,
        }
        Ok((params, entry))
    }

    /// Takes a hold that the local lock can give, if necessary after a wait in the queue of this process, or becomes a
    /// contender. Redis is asked only to renew a fixed lease. (The masters of a quorum are also asked which servers they
    /// are, for as long as that is unknown.)
    pub(crate) fn enter(&self, wait: WaitMode) -> Result<Pending<'_>> {
        let (params, entry) = self.start(wait)?;
        let HoldParams { lease, thread, .. } = params;
        let mut listening = Listening::new(self.command_timeout);
        loop {
            let now = Instant::now();
            let queue = || Arc::clone(listening.waiter());
            let queues = wait.asks_again();
            let may_queue = queues.then_some(&queue as &dyn Fn() -> Arc<WaitingThread>);
            let (mode, readers_first) = (self.mode, self.readers_first);
            let mut state = entry.lock();
            let entered = (state.lock).enter(thread, mode, lease, now, may_queue, readers_first);
            let pending = match entered {
                Entered::Busy => Some(Pending::Busy),
                Entered::Deadlock(hold) => {
                    // A hold that is lost blocks nobody: it is removed, and the thread enters again.
                    drop(state);
                    if self.is_still_ours(&hold) {
                        return Err(self.would_deadlock(DeadlockReason::Reading));
                    }
                    None
                }
                Entered::Contend {
                    yields_after: after,
                    under,
                } => {
                    drop(state);
                    let contender =
                        Contender::new(self, entry, params, wait, listening, under, after);
                    return Ok(Pending::Contends(contender));
                }
                Entered::Joined(hold) => {
                    drop(state);
                    self.handed(hold, thread)
                }
                Entered::Queued(ticket) => {
                    drop(state);
                    self.queue(&entry, params, ticket, &mut listening, wait)?
                }
                // This hold is over, even if its guard has not noticed: it is removed, and the thread enters again.
                Entered::Mine { hold, .. } if !hold.is_valid(now) => {
                    drop(state);
                    self.give_up_lost(&hold);
                    None
                }
                Entered::Mine { .. } if !self.is_reentrant => {
                    return Err(self.would_deadlock(DeadlockReason::NotReentrant));
                }
                // If the thread's hold is renewed, it keeps its lease, and the lease that this call asks for is ignored.
                // If the hold has a fixed lease, it gets the lease that this call asks for.
                Entered::Mine {
                    hold,
                    count,
                    lease: held_lease,
                } => match held_lease {
                    // The watchdog renews the hold, so one more count needs no request. The mutex has been held since
                    // `enter` found the hold, so the local lock still has it. If the hold is lost at this moment, the new
                    // guard reports the loss.
                    LeasePolicy::Renewed { .. } => {
                        state.lock.reenter(thread, &hold, held_lease);
                        drop(state);
                        Some(self.reentered(hold, thread, count + 1))
                    }
                    // The request is sent without the mutex; `reenter` checks afterwards whether the hold is still
                    // there.
                    LeasePolicy::Fixed(_) => {
                        drop(state);
                        self.renew_to_reenter(&entry, hold, params, count + 1, wait)?
                    }
                },
            };
            if let Some(pending) = pending {
                return Ok(pending);
            }
        }
    }

    /// Makes the guard of a thread that has the lock `count` times now.
    fn reentered(&self, hold: Arc<Hold>, thread: u64, count: u32) -> Pending<'_> {
        self.session().counters.reentered.add(1);
        Pending::Held(GuardInner::reentered(self, hold, thread, count))
    }

    /// Makes the guard for a hold that another thread has handed over, or shares; `None` if the hold is lost by now.
    fn handed(&self, hold: Arc<Hold>, thread: u64) -> Option<Pending<'_>> {
        let counters = &self.session().counters;
        self.is_still_ours(&hold).then(|| {
            match self.mode {
                Mode::Exclusive => counters.local_handoffs.add(1),
                Mode::Shared => counters.shared.add(1),
            }
            Pending::Held(GuardInner::new(self, hold, thread, HoldOrigin::HandedOver))
        })
    }

    /// Waits in the queue of this process; `None` if the thread was handed a hold that is lost by now.
    fn queue(
        &self,
        entry: &Arc<Entry>,
        params: HoldParams,
        ticket: u64,
        listening: &mut Listening,
        wait: WaitMode,
    ) -> Result<Option<Pending<'_>>> {
        Ok(match self.wait_in_queue(entry, ticket, listening, wait)? {
            None if entry.lock().lock.is_taken() => Some(Pending::Busy),
            // The lock is not known to be taken: the contender of this process has no reply from Redis either.
            None => Some(Pending::TooLate),
            Some(Wakeup::Granted(hold)) => self.handed(hold, params.thread),
            Some(Wakeup::Contend(after)) => {
                let (entry, listening) = (Arc::clone(entry), std::mem::take(listening));
                let contender = Contender::new(self, entry, params, wait, listening, None, after);
                Some(Pending::Contends(contender))
            }
            Some(Wakeup::Failed(error)) => return Err(error()),
            Some(Wakeup::Given(_) | Wakeup::ContendAt(_)) => {
                unreachable!("a lock is no semaphore")
            }
        })
    }

    /// Whether a hold that was handed over to or shared with this thread is still valid.
    pub(super) fn is_still_ours(&self, hold: &Arc<Hold>) -> bool {
        if !hold.is_valid(Instant::now()) {
            self.give_up_lost(hold);
        }
        hold.is_held()
    }

    /// Reports the loss of a hold whose time is over, unless that was reported before.
    fn give_up_lost(&self, hold: &Arc<Hold>) {
        let reason = match hold.duty(Instant::now()) {
            Duty::Lose(reason) => reason,
            _ => LossReason::Expired,
        };
        self.session().lose(hold, reason);
        // If a renewal was confirmed a moment ago, `lose` does nothing and the hold stays in the local lock. If another
        // thread reports the loss at the same time, it may not have removed the hold yet; removing a hold twice does no
        // harm.
        if !hold.is_held() {
            self.session().remove_lost(hold);
        }
    }

    /// Locks a hold of fixed lease again: its lease starts again, and never becomes shorter. `None` if the hold was lost.
    fn renew_to_reenter(
        &self,
        entry: &Entry,
        hold: Arc<Hold>,
        params: HoldParams,
        count: u32,
        wait: WaitMode,
    ) -> Result<Option<Pending<'_>>> {
        let session = self.session();
        let budget = wait.budget(Instant::now(), self.command_timeout);
        let stop = || self.must_stop();
        let again = Reentry {
            lease: params.lease,
            ttl: params.ttl,
            count,
            until: budget.until,
            stop: &stop,
        };
        let (renewed, sent_at) = match session.renew(&hold, &again) {
            Ok(answer) => answer,
            Err(NotRenewed::Stopped) => return Err(self.stopped()),
            Err(NotRenewed::Late(_)) if budget.ends_with_caller && stop() => {
                return Err(self.stopped());
            }
            Err(NotRenewed::Late(_)) if budget.ends_with_caller => {
                return Ok(Some(Pending::TooLate));
            }
            Err(NotRenewed::Late(err) | NotRenewed::Failed(err)) => return Err(err),
        };
        let in_time = hold.is_valid(Instant::now());
        if let Err(why) = renewed {
            session.lose(&hold, why.or_expired(in_time));
            return Ok(None);
        }
        // The hold may have been lost while Redis was asked; then the local lock no longer has it.
        if entry
            .lock()
            .lock
            .reenter(params.thread, &hold, params.lease)
        {
            session.watchdog.arm(&hold, hold.due_after(sent_at));
            if hold.is_held() {
                return Ok(Some(self.reentered(hold, params.thread, count)));
            }
            session.remove_lost(&hold);
        }
        // The hold was lost during the renewal, which has made Redis keep it for another lease: release it.
        session.give_back(&hold);
        Ok(None)
    }

    /// Waits until another thread of this process wakes this one; `None` if the time is up.
    fn wait_in_queue(
        &self,
        entry: &Entry,
        ticket: u64,
        listening: &mut Listening,
        wait: WaitMode,
    ) -> Result<Option<Wakeup>> {
        // Whether the thread would wait for itself is checked here before it waits for threads of its process, and in
        // `Waiting::run` before it waits for others.
        let deadlocked = self.has_it_otherwise();
        let stop = || deadlocked.is_some() || self.must_stop();
        let time_left = |now| lease_left(entry, now);
        listening.park(self, Signals::default(), wait.deadline(), time_left, &stop);
        if let Some(wakeup) = listening.take_wakeup() {
            return Ok(Some(wakeup));
        }
        let mut state = entry.lock();
        let wakeups = state.lock.withdraw(ticket, Instant::now());
        if let Some(next) = &wakeups {
            state.store_wakeups(next);
        }
        drop(state);
        if let Some(next) = wakeups {
            wake(next);
        }
        match listening.take_wakeup() {
            // Another thread took this one off the queue just before this one gave up: rule 2 at `Entry`. This one has to
            // use the wakeup, or the hold would have no guard, or the lock no contender.
            Some(wakeup) => Ok(Some(wakeup)),
            None if self.must_stop() => Err(self.stopped()),
            None => match deadlocked {
                Some(reason) => Err(self.would_deadlock(reason)),
                None => Ok(None),
            },
        }
    }
}

/// How long the lease of the hold of this process still lasts, if it has one.
fn lease_left(entry: &Entry, now: Instant) -> Option<Duration> {
    let state = entry.lock();
    let hold = state.lock.holds().next()?;
    Some(hold.valid_until().saturating_duration_since(now))
}
