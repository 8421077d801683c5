//! The inner part of all lock guards.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::FromRedisValue;

use crate::acquire::guarded::Work;
use crate::acquire::spec::LockSpec;
use crate::acquire::target::{HeldTarget, Target};
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, LossReason, Result};
use crate::hold::entry::wake;
use crate::hold::loss::{LossChannel, LossListener, LossReceiver};
use crate::hold::{Hold, Wakeup};
use crate::local::lock::{LeaveOutcome, Mode};
use crate::net::call::Call;
use crate::observer::Observed;
use crate::protocol::owner::OwnerId;
use crate::quorum::ask::Quorum;
use crate::report::report;
use crate::session::shared::SharedSession;

/// How a guard's thread came to its hold.
#[derive(PartialEq)]
pub(crate) enum HoldOrigin {
    /// Redis has granted the hold to the thread.
    Granted,
    /// A thread of this process has handed over the hold, or shares it.
    HandedOver,
    /// The thread had the lock already.
    Reentered,
}

/// A hold that is released when the guard is dropped.
pub struct GuardInner {
    shared: Arc<SharedSession>,
    hold: Arc<Hold>,
    /// The number of the thread that holds; for an owned guard, a number of its own.
    thread: u64,
    /// The token of this thread, even after the hold was handed over to another thread.
    token: u64,
    lost: LossChannel,
    released: bool,
    origin: HoldOrigin,
    /// The hold was reported to an observer, which has to hear of the end of this guard.
    is_observed: bool,
    /// The report of the end to the observer, once the guard has left the hold.
    ended: Option<Box<Observed>>,
    /// How long Redis may take to answer.
    command_timeout: Duration,
    /// The clients of all servers that keep the hold.
    _quorum: Option<Arc<Quorum>>,
}

impl HeldTarget for GuardInner {
    fn name(&self) -> &str {
        self.hold.entry().name()
    }

    fn owner(&self) -> &str {
        self.hold.owner_ref()
    }

    fn hold_count(&self) -> u32 {
        if self.is_copy() {
            return 0;
        }
        let state = self.hold.entry().lock();
        match state.lock.count(self.thread, self.hold.mode) {
            Some((hold, count)) if *hold == self.hold && self.is_valid() => count,
            _ => 0,
        }
    }

    fn is_valid(&self) -> bool {
        self.hold.is_valid(Instant::now()) && !self.is_copy()
    }

    fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    fn lost(&self) -> &LossReceiver {
        self.lost.of(|listener| self.listen(listener()))
    }

    fn unlock(self) -> Result<()> {
        let until = Instant::now() + self.command_timeout;
        let unlocking = self.queue_unlock()?;
        unlocking.send();
        unlocking.finish(until)
    }
}

impl GuardInner {
    pub(crate) fn new(lock: &LockSpec, hold: Arc<Hold>, thread: u64, origin: HoldOrigin) -> Self {
        Self {
            shared: Arc::clone(&lock.shared),
            command_timeout: lock.command_timeout,
            _quorum: lock.quorum.clone(),
            token: hold.token(),
            hold,
            thread,
            lost: LossChannel::default(),
            released: false,
            origin,
            is_observed: false,
            ended: None,
        }
    }

    /// From now on, the end of the guard is reported to an observer. Returns `Some(is_handed_over)` if the beginning has to
    /// be reported as well.
    pub(crate) fn record_observed(&mut self) -> Option<bool> {
        self.is_observed = true;
        if self.origin == HoldOrigin::Reentered {
            self.hold.observe_again(self.thread);
            return None;
        }
        Some(self.origin == HoldOrigin::HandedOver)
    }

    /// Reports to the observer how the hold ended, if this was the last guard of its thread. A loss that was noticed
    /// before is reported by the thread that noticed it.
    fn tell_end(&mut self, err: Option<&Error>) {
        match (self.ended.take(), err) {
            (None, _) => {}
            (Some(ended), Some(Error::Lost { reason, .. })) => {
                ended.lost(&self.hold.loss_for(*reason));
            }
            (Some(ended), _) => ended.released(),
        }
    }

    pub(crate) fn thread(&self) -> u64 {
        self.thread
    }

    pub(crate) fn reentered(lock: &LockSpec, hold: Arc<Hold>, thread: u64, count: u32) -> Self {
        if hold.mode == Mode::Exclusive {
            hold.count.store(count, Ordering::Relaxed);
        }
        Self::new(lock, hold, thread, HoldOrigin::Reentered)
    }

    pub(crate) fn is_copy(&self) -> bool {
        self.shared.session.is_copy()
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Notifies `listener` of the loss, unless the hold belongs to the parent of this process.
    pub(crate) fn listen(&self, listener: LossListener) {
        if !self.is_copy() {
            self.hold.listen(listener);
        }
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// How many servers certainly keep the hold; zero without a quorum.
    pub(crate) fn nodes_held(&self) -> usize {
        if !self.hold.is_held() || self.is_copy() {
            return 0;
        }
        self.hold.several().map_or(0, |several| several.held())
    }

    /// Runs `work` if the hold is in force.
    pub(crate) fn run<T: FromRedisValue>(&self, work: &Work<'_>) -> Result<T> {
        let until = Instant::now() + self.command_timeout;
        self.shared.session.run(&self.hold, work, until)
    }

    /// Takes a shared hold for the same thread, with the same lease; `None` if another process prevents it.
    pub(crate) fn below(&self) -> Result<Option<Self>> {
        let mut reading = LockSpec::like(&self.shared, &self.hold).sharing();
        reading.as_thread = Some(self.thread);
        reading.command_timeout = self.command_timeout;
        reading.take(WaitMode::Once)
    }

    /// Makes the name stay taken for `min_hold` from now on, even if the guard is dropped before. To be called after the
    /// whole acquire has succeeded: a multi-lock that is not granted all members releases those that it was granted.
    pub(crate) fn keep_for(&self, min_hold: Option<Duration>) {
        if let Some(span) = min_hold {
            self.hold.keep_until(Instant::now() + span);
        }
    }

    /// Passes the rest of `min_hold` on to another guard of the thread: the name stays taken after the release of that
    /// guard instead of this one's.
    pub(crate) fn hand_on_keeping(&self, other: &Self) {
        if let Some(until) = self.hold.take_kept_until() {
            other.hold.keep_until(until);
        }
    }

    /// The error for a hold that was lost.
    pub(crate) fn lost_error(&self) -> Error {
        let in_time = self.is_valid();
        self.hold.lost_or(LossReason::TakenOver.or_expired(in_time))
    }

    /// Leaves the hold in Redis for `lease`, without renewing it, and returns its owner, by which another client may adopt it.
    pub(crate) fn detach(self, lease: Duration) -> Result<OwnerId> {
        if self.is_copy() {
            return Err(Error::Closed);
        }
        let levels = self.hold_count();
        if levels > 1 {
            return Err(Error::setting(format!(
                "`{}` is held {levels} times by its thread; only a single hold can be detached",
                self.name()
            )));
        }
        let (session, hold) = (Arc::clone(&self.shared.session), Arc::clone(&self.hold));
        hold.keep_until(Instant::now() + lease);
        if let Err(err) = self.unlock() {
            // The request may be executed all the same, and nobody would have the ticket.
            hold.take_kept_until();
            session.give_back(&hold);
            return Err(err.after_work());
        }
        Ok(hold.owner())
    }

    /// Queues the release. Other releases may be queued behind it before it is [sent](Unlocking::send).
    /// [`Unlocking::finish`] waits for the reply.
    pub(crate) fn queue_unlock(mut self) -> Result<Unlocking> {
        self.released = true;
        if self.is_copy() {
            return Err(Error::Closed);
        }
        let now = Instant::now();
        // If the reply says that Redis no longer had the hold, `in_time` decides the reason: somebody ended the hold before its
        // time, or it had expired.
        let in_time = self.hold.valid_until() > now;
        let release = match self.let_go(now, false) {
            Ok(release) => release,
            Err(err) => {
                self.tell_end(Some(&err));
                return Err(err);
            }
        };
        Ok(Unlocking {
            held: self,
            in_time,
            release,
        })
    }

    fn send(&self, release: Option<&Arc<Call>>) {
        if let Some(release) = release {
            self.shared.session.deliver(&self.hold, release);
        }
    }

    /// Ends the guard's hold. If that was the last of the thread, hands the lock over to another thread of this
    /// process, or queues the release and, with `at_once`, sends it.
    fn let_go(&mut self, now: Instant, at_once: bool) -> Result<Option<Arc<Call>>> {
        let (session, hold) = (&self.shared.session, &self.hold);
        let mut state = hold.entry().lock();
        // `below`: the read hold that the writer keeps, if any. If the write hold is released now, `below` keeps the name
        // taken for the rest of `min_hold`. Other readers may join `below` then, although the `min_hold` was a writer's.
        let below = match hold.mode {
            Mode::Exclusive => state.lock.shared_by(self.thread).cloned(),
            Mode::Shared => None,
        };
        // Does no I/O: the release is only queued. The local lock calls this closure before it names the next contender:
        // rule 4 at `Entry`.
        let submit_release = || {
            if let Some(below) = &below
                && let Some(until) = hold.take_kept_until()
            {
                below.keep_until(until);
            }
            // A loss that was found a moment ago is reported by the thread that found it, so the release reports none.
            let was_lost = !session.watchdog.end(hold);
            session.release(hold, was_lost, now)
        };
        let call = OnceCell::new();
        let outcome = state.lock.leave(self.thread, hold, now, &|| {
            Arc::clone(call.get_or_init(submit_release))
        });
        // This guard is taken off the hold's list of observed guards while the mutex is still held. Afterwards another
        // thread may have the hold, and if that hold is lost, this guard must not be reported as lost.
        if std::mem::take(&mut self.is_observed) {
            self.ended = hold.unobserve(self.thread);
        }
        // Read before the hold changes threads, for the same reason.
        let not_lost = hold.check_not_lost();
        match outcome {
            LeaveOutcome::Nested { count } => {
                if hold.mode == Mode::Exclusive {
                    hold.count.store(count, Ordering::Relaxed);
                }
                not_lost.map(|()| None)
            }
            LeaveOutcome::Shared => not_lost.map(|()| None),
            LeaveOutcome::Passed { waiter } => {
                // The next thread cannot run before the wakeup is stored, so it never sees this thread's count and listeners.
                // If the watchdog loses the hold at this moment, the next thread finds that when it takes the wakeup.
                hold.change_threads();
                waiter.store(Wakeup::Granted(Arc::clone(hold)));
                drop(state);
                waiter.notify();
                not_lost.map(|()| None)
            }
            // `submit_release` was called: the release has to be delivered.
            LeaveOutcome::Release { next } => {
                state.is_heard = call.get().is_some_and(|call| call.is_heard_by_us);
                state.store_wakeups(&next);
                drop(state);
                // `queue_unlock` leaves the writing to its caller; by rule 4 at `Entry` the release precedes the next
                // contender's request all the same. The release of a lost hold is not returned, so it is written here.
                if at_once || not_lost.is_err() {
                    self.send(call.get());
                }
                wake(next);
                not_lost.map(|()| call.into_inner())
            }
            LeaveOutcome::Gone => {
                drop(state);
                session.watchdog.housekeep_soon();
                // The local lock no longer has the hold: it was lost, or a later grant has just replaced it in
                // `Contender::accept`. In the second case it may not be marked as lost yet, so `lose` does that here as
                // well, and notifies the other guards of the hold.
                let taken = hold.is_held();
                if taken {
                    session.lose(hold, LossReason::TakenOver);
                }
                // A hold whose time was over here may still exist in Redis, so it is released. No other hold has its
                // number (rule 1 at `Hold`).
                if taken || hold.may_still_be_held() {
                    session.give_back(hold);
                }
                Err(hold.lost_or(LossReason::Expired))
            }
        }
    }
}

impl fmt::Debug for GuardInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A hold that is being released, and the release whose reply is due.
pub(crate) struct Unlocking {
    held: GuardInner,
    in_time: bool,
    /// `None` if nothing had to be sent.
    release: Option<Arc<Call>>,
}

impl Unlocking {
    pub(crate) fn send(&self) {
        self.held.send(self.release.as_ref());
    }

    pub(crate) fn finish(mut self, until: Instant) -> Result<()> {
        let (session, hold) = (&self.held.shared.session, &self.held.hold);
        let lost_by = match &self.release {
            Some(call) => session.released(hold, call, self.in_time, until),
            None => Ok(None),
        };
        let unlocked = lost_by.and_then(|reason| match reason {
            Some(reason) => Err(hold.lost_error(reason)),
            None => Ok(()),
        });
        self.held.tell_end(unlocked.as_ref().err());
        unlocked
    }
}

impl Drop for GuardInner {
    fn drop(&mut self) {
        let mut lost = None;
        if !self.released && !self.is_copy() {
            lost = self.let_go(Instant::now(), true).err();
        }
        if let Some(err) = &lost {
            // Debug and not a warning: the loss was reported, and a hold that is gone delays nobody.
            report!(Debug, "dropping a guard: {err}");
        }
        self.tell_end(lost.as_ref());
    }
}
