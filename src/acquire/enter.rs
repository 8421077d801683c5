//! What a thread gets from the local lock, before Redis is asked.
//!
//! ```text
//!   enter ─► the thread holds it ─► one more hold, renewed first if its lease is fixed
//!     │ ├──► readers share a hold ─► joins
//!     │ ├──► nobody asks Redis ────► contends
//!     │ └──► otherwise ────────────► waits in the queue of this process ─► handed over, or contends
//!     └────► one attempt does not wait: busy
//! ```

use std::cell::OnceCell;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::contender::Contender;
use crate::acquire::guard::GuardInner;
use crate::acquire::spec::{HoldParams, LockSpec};
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{Busy, Outcome};
use crate::error::{LossReason, Result};
use crate::hold::entry::{Submit, wake};
use crate::hold::validity::Duty;
use crate::hold::{Counted, Entry, EntryState, Hold, NotRenewed, Waiter, Wakeup};
use crate::local::lock::{Entered, LeasePolicy, Mode};
use crate::local::preference::Prefer;
use crate::net::call::Call;
use crate::net::request::Request;
use crate::protocol::owner;
use crate::protocol::script::Renewed;
use crate::time::Deadline;

/// How long a reader waits behind a writer before it looks who reads meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// How often it looks then, while a writer of its process asks and while none does.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What a thread has got without asking Redis.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be one more allocation for each uncontended lock"
)]
pub(crate) enum Pending<'a> {
    Held(GuardInner),
    /// Another thread of this process is ahead.
    Busy,
    /// The time was up.
    TooLate,
    Contends(Contender<'a>),
}

/// The outcome of locking again where that takes a renewal.
enum Reentered {
    Yes,
    /// The first hold was lost.
    Lost,
    /// Redis had not answered when the caller's time was up.
    TooLate,
}

impl LockSpec {
    /// Takes the lock, or one more hold of it.
    pub(crate) fn acquire(&self, wait: WaitMode) -> Result<Option<GuardInner>> {
        self.session().check_open()?;
        match self.enter(wait) {
            // Nothing to finish, and a contender is large.
            Ok(Pending::Held(held)) => Ok(Some(held)),
            pending => Ok(self.finish(pending)?.granted()),
        }
    }

    /// Waits for what [`enter`](Self::enter) has begun.
    pub(crate) fn finish(&self, pending: Result<Pending<'_>>) -> Result<Outcome<GuardInner>> {
        let outcome = pending.and_then(|pending| match pending {
            Pending::Held(held) => Ok(Outcome::Granted(held)),
            Pending::Busy => Ok(Outcome::Busy(Busy::default())),
            Pending::TooLate => Ok(Outcome::TooLate),
            Pending::Contends(contender) => contender.run(),
        });
        if !matches!(outcome, Ok(Outcome::Granted(_))) {
            // The entry may be idle now, and without a release nobody else asks for a sweep.
            self.session().watchdog.housekeep_soon();
        }
        outcome
    }

    /// Takes what the local lock gives, without asking Redis.
    pub(crate) fn enter(&self, wait: WaitMode) -> Result<Pending<'_>> {
        let (lease, ttl) = self.lease_policy()?;
        let session = self.session();
        let entry = session.registry.get(self.kind, &self.id)?;
        if self.must_stop(wait) {
            return Err(self.stopped());
        }
        match &self.quorum {
            Some(quorum) => {
                let until = wait
                    .deadline()
                    .or(Instant::now() + session.response_timeout);
                quorum.masters.check(until, &|| self.must_stop(wait))?;
                quorum.start_watchdogs()?;
            }
            None => session.start_watchdog()?,
        }

        let thread = owner::this_thread();
        let params = HoldParams { lease, ttl, thread };
        loop {
            let now = Instant::now();
            let waiter = OnceCell::new();
            let queue = || Arc::clone(waiter.get_or_init(Waiter::placed));
            let may_queue: Option<&dyn Fn() -> Arc<Waiter>> = match wait {
                WaitMode::Once | WaitMode::Together { .. } => None,
                WaitMode::Until(_) => Some(&queue),
            };
            let mut state = entry.lock();
            let prefer = if self.mode == Mode::Shared && state.passes_writers(now) {
                Prefer::AllReaders
            } else {
                self.prefer
            };
            let entered = state
                .lock
                .enter(thread, self.mode, lease, now, may_queue, prefer);
            match entered {
                Entered::Busy => return Ok(Pending::Busy),
                Entered::Deadlock(hold) => {
                    drop(state);
                    if self.is_still_ours(&hold) {
                        return Err(self.would_deadlock());
                    }
                }
                Entered::Contend { start, under } => {
                    let last = state.last_release_heard();
                    let served = match wait.asks_again() {
                        true => state.lock.begin_removal(),
                        false => Vec::new(),
                    };
                    let releases = state.lock.releases();
                    drop(state);
                    let mut contender =
                        Contender::new(self, entry, params, wait, None, under, start);
                    contender.comes_after(last);
                    contender.begins_in_turn(served, releases);
                    return Ok(Pending::Contends(contender));
                }
                Entered::Joined(hold) => {
                    if self.prefer == Prefer::Writers {
                        let request = || entry.protocol.probe_writers_request();
                        self.ask_in_passing(state, now, request, EntryState::probe_writers);
                    } else {
                        drop(state);
                    }
                    if self.is_still_ours(&hold) {
                        session.counters.shared.add(1);
                        return Ok(Pending::Held(GuardInner::new(self, hold, thread)));
                    }
                }
                Entered::Queued(ticket) => {
                    drop(state);
                    let (Some(waiter), WaitMode::Until(deadline)) = (waiter.into_inner(), wait)
                    else {
                        return Ok(Pending::Busy);
                    };
                    self.watch(&waiter);
                    let mut now = Some(now);
                    if self.waits_for_writers(&entry) {
                        now = None;
                        let passes = self.wait_behind_writers(&entry, &waiter, deadline);
                        let mut state = entry.lock();
                        if passes
                            && state.passes_waiting_writers(Instant::now())
                            && let Some(next) = state.lock.withdraw(ticket, Instant::now())
                        {
                            state.store_wakeups(&next);
                            drop(state);
                            wake(next);
                            continue;
                        }
                    }
                    match self.wait_in_queue(&entry, ticket, &waiter, now, deadline)? {
                        None => return Ok(Pending::TooLate),
                        Some(Wakeup::Granted(hold)) => {
                            Waiter::recycle(waiter);
                            if self.is_still_ours(&hold) {
                                match self.mode {
                                    Mode::Exclusive => session.counters.passed.add(1),
                                    Mode::Shared => session.counters.shared.add(1),
                                }
                                return Ok(Pending::Held(GuardInner::new(self, hold, thread)));
                            }
                        }
                        Some(Wakeup::Contend(start)) => {
                            let last = entry.lock().last_release_heard();
                            let waiter = Some(waiter);
                            let mut contender =
                                Contender::new(self, entry, params, wait, waiter, None, start);
                            contender.comes_after(last);
                            return Ok(Pending::Contends(contender));
                        }
                        Some(Wakeup::Failed(error)) => return Err(error()),
                    }
                }
                Entered::Mine {
                    hold,
                    count,
                    lease: its,
                } => {
                    if !hold.is_valid(now) {
                        drop(state);
                        self.give_up_lost(&hold);
                        continue;
                    }
                    if !self.is_reentrant {
                        return Err(self.would_deadlock());
                    }
                    // What the watchdog renews needs no request; a fixed lease has to start anew.
                    let is_renewed = matches!(its, LeasePolicy::Renewed { .. });
                    if is_renewed {
                        state.lock.reenter(thread, &hold, its);
                    }
                    drop(state);
                    let count = count + 1;
                    if !is_renewed {
                        match self.renew_to_reenter(&entry, &hold, params, count, wait)? {
                            Reentered::Yes => {}
                            Reentered::TooLate => return Ok(Pending::TooLate),
                            Reentered::Lost => continue,
                        }
                    }
                    session.counters.reentered.add(1);
                    let guard = GuardInner::reentered(self, hold, thread, count);
                    return Ok(Pending::Held(guard));
                }
            }
        }
    }

    /// Whether a hold that was handed over to or shared with this thread is still valid.
    pub(super) fn is_still_ours(&self, hold: &Arc<Hold>) -> bool {
        if !hold.is_valid(Instant::now()) {
            self.give_up_lost(hold);
        }
        hold.is_held()
    }

    /// Reports the loss of a hold whose time is over, if nobody has yet.
    fn give_up_lost(&self, hold: &Arc<Hold>) {
        let reason = match hold.duty(Instant::now()) {
            Duty::Lose(reason) => reason,
            _ => LossReason::Expired,
        };
        self.session().lose(hold, reason);
        // It is still held if a renewal was confirmed just before.
        if !hold.is_held() {
            self.session().remove_lost(hold);
        }
    }

    /// Locks again with a fixed lease: the lease starts anew, but the hold never becomes shorter.
    fn renew_to_reenter(
        &self,
        entry: &Entry,
        hold: &Arc<Hold>,
        params: HoldParams,
        count: u32,
        wait: WaitMode,
    ) -> Result<Reentered> {
        let session = self.session();
        let budget = wait.budget(Instant::now(), session.response_timeout);
        let until = budget.until;
        let stop = || self.must_stop(wait);
        let asked =
            session
                .backing(hold)
                .renew(hold, params.lease, params.ttl, count, until, &stop);
        let (renewed, sent_at) = match asked {
            Ok(answer) => answer,
            Err(NotRenewed::Stopped) => return Err(self.stopped()),
            Err(NotRenewed::Late(_)) if budget.callers && stop() => return Err(self.stopped()),
            Err(NotRenewed::Late(_)) if budget.callers => return Ok(Reentered::TooLate),
            Err(NotRenewed::Late(err) | NotRenewed::Failed(err)) => return Err(err),
        };
        let in_time = hold.is_valid(Instant::now());
        let reason = match renewed {
            Renewed::Yes => {
                if entry.lock().lock.reenter(params.thread, hold, params.lease) {
                    session.watchdog.arm(hold, hold.due_after(sent_at));
                    if hold.is_held() {
                        return Ok(Reentered::Yes);
                    }
                    session.remove_lost(hold);
                }
                // Lost during the renewal, so Redis would keep it for another whole lease.
                session.give_back(hold);
                return Ok(Reentered::Lost);
            }
            _ if !in_time => LossReason::Expired,
            Renewed::Gone => LossReason::Forced,
            Renewed::Taken => LossReason::TakenOver,
        };
        session.lose(hold, reason);
        Ok(Reentered::Lost)
    }

    /// From now on the handle's token wakes it.
    pub(crate) fn watch(&self, waiter: &Arc<Waiter>) {
        if let Some(token) = &self.cancel {
            token.watch(waiter);
        }
    }

    /// Whether it is a reader that lets writers go first.
    fn waits_for_writers(&self, entry: &Entry) -> bool {
        self.mode == Mode::Shared
            && self.prefer == Prefer::Writers
            && entry.protocol.writers().is_some()
    }

    /// Parks a reader in the queue, and looks from time to time whether readers of other clients pass the writer that it
    /// waits for. Returns `true` when they do, and `false` when it has to find out why else it was woken, or has to end.
    fn wait_behind_writers(&self, entry: &Entry, waiter: &Arc<Waiter>, deadline: Deadline) -> bool {
        let wait = WaitMode::Until(deadline);
        let deadlocked = self.has_it_otherwise(&*entry.protocol);
        let stop = || deadlocked || self.must_stop(wait);
        let mut pause = LOOK_AFTER;
        loop {
            let until = Instant::now() + pause;
            if waiter.wait_for_wakeup(deadline.or(until), &stop)
                || stop()
                || deadline.has_passed(Instant::now())
            {
                return false;
            }
            let state = entry.lock();
            let (asks, passes) = (
                state.lock.writer_asks(),
                state.passes_waiting_writers(Instant::now()),
            );
            drop(state);
            if passes {
                return true;
            }
            pause = match asks {
                true => LOOK_AGAIN.0,
                false => (2 * pause).min(LOOK_AGAIN.1),
            };
            if asks {
                self.look_for_passers(entry);
            }
        }
    }

    /// See [`WriterPreference::look`](crate::local::preference::WriterPreference::look).
    pub(crate) fn look_for_passers(&self, entry: &Entry) {
        let (state, now) = (entry.lock(), Instant::now());
        let request = || entry.protocol.look_for_readers_request();
        self.ask_in_passing(state, now, request, EntryState::look_for_passers);
    }

    /// Sends a question for whose answer nobody waits, if `ask` finds that it is time: queued under the entry's mutex, so
    /// that whoever comes next finds it there, and written after that. The answer is read by the next thread that uses the
    /// connection, or by the watchdog.
    fn ask_in_passing(
        &self,
        mut state: impl DerefMut<Target = EntryState>,
        now: Instant,
        request: impl Fn() -> Option<Request>,
        ask: fn(&mut EntryState, Instant, Submit<'_>),
    ) {
        let session = self.session();
        let mut asked = None;
        ask(&mut state, now, &mut || {
            let call = Call::question(request()?);
            session.connection.submit(&call)?;
            asked = Some(Arc::clone(&call));
            Some(call)
        });
        drop(state);
        if let Some(call) = asked {
            session.connection.flush_to(&call);
            session.watchdog.housekeep_soon();
        }
    }

    pub(crate) fn wait_in_queue(
        &self,
        entry: &Entry,
        ticket: u64,
        waiter: &Arc<Waiter>,
        now: Option<Instant>,
        deadline: Deadline,
    ) -> Result<Option<Wakeup>> {
        let wait = WaitMode::Until(deadline);
        let deadlocked = self.has_it_otherwise(&*entry.protocol);
        let stop = || deadlocked || self.must_stop(wait);
        // Looking whether the thread has it otherwise may take a while.
        let now = now.filter(|_| !Counted::has_some());
        if let Some(wakeup) = waiter.wait_in_queue(now, deadline, &stop) {
            return Ok(Some(wakeup));
        }
        let mut state = entry.lock();
        let left = state.lock.withdraw(ticket, Instant::now());
        if let Some(next) = &left {
            state.store_wakeups(next);
        }
        drop(state);
        if let Some(next) = left {
            wake(next);
        }
        match waiter.take_wakeup() {
            // Woken at the last moment: it is off the queue, so it has to use the wakeup.
            Some(wakeup) => Ok(Some(wakeup)),
            None => {
                if self.must_stop(wait) {
                    Err(self.stopped())
                } else if deadlocked {
                    Err(self.would_deadlock())
                } else {
                    Ok(None)
                }
            }
        }
    }
}
