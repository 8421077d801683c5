//! How a thread acquires permits: first come, first served in its process.
//!
//! Of the threads that wait, only the first asks Redis and listens, so that requests for few permits do not starve one for
//! many. Once the first has its permits, the next thread asks. A call that does not wait asks once, unless threads wait.
//! When grants have gone on for a whole tenure, the thread that asks lets other processes go first.
//!
//! There are two kinds of [`Grants`]. [Plain](crate::acquire::plain_permits) permits have no owner. A waiting thread may
//! be handed them even while a request of its own is under way. Permits with a [lease](crate::acquire::leased_permits) are
//! a hold each.

use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use crate::acquire::give_permits;
use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Busy, NoReply, Outcome, Reply, Strategy};
use crate::error::{Error, Result};
use crate::hold::entry::notify;
use crate::hold::{Entry, Wakeup};
use crate::local::semaphore::Granted;
use crate::net::call::{Attempt, Call, Undo};
use crate::net::request::Request;
use crate::protocol::script::{PermitsAcquired, Unexpected};
use crate::report::report;
use crate::session::Session;
use crate::time::Deadline;

const ACQUIRING: &str = "acquiring permits";

/// A kind of permits: how they are requested, and what a grant is.
pub(super) trait Grants {
    type Grant;

    /// The identity of a request, by which it is undone if its outcome is unknown.
    type Asked: Undo + 'static;

    /// Whether threads of this process may hand permits to each other. If not, the permits have a lease, and nothing
    /// announces their expiry. Then a grant without a message does not show that a message was missed (`COUNTS_MISSED`).
    const ARE_HANDED_OVER: bool;

    /// The next request; no two are the same, so that undoing one does not affect another.
    fn draw(&self, session: &Session) -> Arc<Self::Asked>;

    fn request(&self, asked: &Self::Asked) -> Request;

    fn read(reply: Value) -> std::result::Result<PermitsAcquired, Unexpected>;

    /// Makes the grant of permits that Redis has given.
    fn granted(
        &self,
        spec: &LockSpec,
        asked: &Self::Asked,
        sent_at: Instant,
        ends_at: i64,
    ) -> Result<Self::Grant>;

    /// The permits were handed over by another thread of this process, to which Redis had granted them at `since`.
    fn handed_over(&self, since: Instant) -> Option<Self::Grant>;
}

/// Takes `permits` permits at once, or none.
pub(super) fn take<G: Grants>(
    spec: &LockSpec,
    permits: u32,
    wait: WaitMode,
    kind: G,
) -> Result<Outcome<G::Grant>> {
    let session = spec.session();
    // Before the check: either closing waits for this thread, or the check finds the client closed.
    let _contending = session.contending();
    spec.check_going()?;
    session.start_watchdog()?;
    let mut contender = Permits {
        spec,
        wait,
        permits,
        kind,
        entry: spec.entry()?,
        ticket: None,
        yields_after: None,
        listening: Listening::new(spec.command_timeout),
    };
    let taken = match contender.enter() {
        true => acquire::acquire(&mut contender, spec, wait),
        false => Ok(Outcome::Busy(Busy::default())),
    };
    drop(contender);
    if !matches!(taken, Ok(Outcome::Granted(_))) {
        session.watchdog.housekeep_soon();
    }
    taken
}

/// A thread that asks for permits, or waits until it is the first of its process. When dropped it leaves the queue.
struct Permits<'a, G: Grants> {
    spec: &'a LockSpec,
    wait: WaitMode,
    permits: u32,
    kind: G,
    /// The entry in the client's registry, so that all threads have the same.
    entry: Arc<Entry>,
    /// `None` for a thread that does not wait, and once the thread has left the queue.
    ticket: Option<u64>,
    /// The release after which the thread yields before it asks.
    yields_after: Option<Arc<Call>>,
    listening: Listening,
}

impl<G: Grants> Permits<'_, G> {
    /// Joins the queue and waits there until the thread is the first, or its time is up. `false` if others wait and this
    /// call does not: it must not overtake the queue, or a request for many permits could starve.
    fn enter(&mut self) -> bool {
        let mut state = self.entry.lock();
        let local = state.local_semaphore();
        if !self.wait.asks_again() {
            let may_ask = !local.has_waiters();
            if may_ask {
                self.yields_after = local.cohort.yield_after(Instant::now());
            }
            return may_ask;
        }
        let waiter = Arc::clone(self.listening.waiter());
        let (ticket, is_first) = local.enter(self.permits, waiter);
        self.ticket = Some(ticket);
        if is_first {
            self.yields_after = local.cohort.yield_after(Instant::now());
            return true;
        }
        drop(state);
        self.park(self.wait.deadline());
        true
    }

    /// Parks until another thread of this process wakes it.
    fn park(&mut self, until: Deadline) {
        let (spec, signals) = (self.spec, self.listening.signals());
        let stop = || spec.must_stop();
        self.listening.park(spec, signals, until, |_| None, &stop);
    }

    fn is_handed_over(&self) -> bool {
        let is_given = |wakeup: &Wakeup| matches!(wakeup, Wakeup::Given(_));
        self.listening.is_woken(is_given)
    }

    /// Redis has granted the request; `None` if another thread of this process has handed the thread permits while the
    /// request was on its way.
    fn granted(
        &mut self,
        asked: &G::Asked,
        sent_at: Instant,
        ends_at: i64,
    ) -> Result<Option<G::Grant>> {
        let session = self.spec.session();
        session.unset_semaphores.record_set(&self.entry.key);
        let now = Instant::now();
        let counted = if G::ARE_HANDED_OVER { self.permits } else { 0 };
        let mut state = self.entry.lock();
        state.lock.forget_refusal();
        // Closing sets the flag and later gives back all permits that are counted as out. With the mutex held, this grant
        // is either undone here, or counted before closing gives the permits back.
        let granted = match session.is_closed() {
            true => Granted::Closed,
            false => state.local_semaphore().granted(self.ticket, counted, now),
        };
        let first = match granted {
            Granted::Kept { first } => first,
            Granted::Surplus => None,
            Granted::Closed => {
                drop(state);
                self.give_back(asked);
                return Err(Error::Closed);
            }
        };
        let first = state.call_first(first, now);
        drop(state);
        notify(first);
        let grant = self.kind.granted(self.spec, asked, sent_at, ends_at)?;
        if self.is_handed_over() {
            // The thread was handed permits before its grant arrived, and needs only one of the two grants. The permits
            // from Redis go to the next thread or back to Redis; the wakeup stays, and the loop takes it.
            self.give_away(now);
            return Ok(None);
        }
        // If this thread was dismissed while it asked, an error is stored for it. It keeps its grant all the same, since a
        // grant takes precedence over an error (see `Budget`).
        self.ticket = None;
        Ok(Some(grant))
    }

    /// Undoes a request that was granted, or whose reply is useless.
    fn give_back(&self, asked: &G::Asked) {
        let session = self.spec.session();
        session.connection.send_deferred(asked.undo());
    }

    /// Records that Redis had too few permits.
    fn record_refusal(&mut self, is_set: bool) {
        if let Some(ticket) = self.ticket {
            let mut state = self.entry.lock();
            state.lock.record_refusal();
            let local = state.local_semaphore();
            local.record_refusal(ticket, G::ARE_HANDED_OVER);
        }
        let unset = &self.spec.session().unset_semaphores;
        if is_set {
            unset.record_set(&self.entry.key);
        } else if unset.record_unset(&self.entry.key) {
            let name = self.entry.name();
            report!(
                Warn,
                "the semaphore `{name}` has no permits: their number was never set, or its key is gone; call `try_set_permits`"
            );
        }
    }

    /// Leaves the queue, unless another thread has taken this one off it.
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let mut state = self.entry.lock();
        let first = state.local_semaphore().withdraw(ticket).flatten();
        let first = state.call_first(first, Instant::now());
        drop(state);
        notify(first);
    }

    /// Passes on permits that the thread has and does not need: to the next thread, or back to Redis.
    fn give_away(&self, since: Instant) {
        let session = self.spec.session();
        drop(give_permits::give(
            session,
            &self.entry,
            self.permits,
            since,
        ));
    }
}

impl<G: Grants> Strategy for Permits<'_, G> {
    type Grant = G::Grant;

    const DOING: &'static str = ACQUIRING;

    const COUNTS_MISSED: bool = G::ARE_HANDED_OVER;

    fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    fn handed_over(&mut self) -> Result<Option<G::Grant>> {
        match self.listening.take_wakeup() {
            Some(Wakeup::Given(since)) => {
                self.ticket = None;
                let session = self.spec.session();
                session.counters.local_handoffs.add(1);
                if session.is_closed() {
                    // Closing gives back all permits that are counted as out. If it has done so, `give` does nothing.
                    self.give_away(since);
                    return Err(Error::Closed);
                }
                Ok(self.kind.handed_over(since))
            }
            Some(Wakeup::Failed(error)) => {
                self.ticket = None;
                Err(error())
            }
            Some(Wakeup::Contend(yields_after)) => {
                self.yields_after = yields_after;
                Ok(None)
            }
            // The threads that were just handed the permits may hand them on until `at`; after that this thread asks.
            Some(Wakeup::ContendAt(at)) if self.ticket.is_some() => {
                self.park(Deadline::at(self.wait.deadline().earliest(at)));
                self.handed_over()
            }
            Some(Wakeup::ContendAt(_)) | None => Ok(None),
            Some(Wakeup::Granted(_)) => unreachable!("a semaphore is no lock"),
        }
    }

    fn withdraw(&mut self) -> Result<Option<G::Grant>> {
        self.leave();
        self.handed_over()
    }

    fn yields_after(&mut self) -> Option<Arc<Call>> {
        self.yields_after.take()
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<G::Grant>, NoReply> {
        let (spec, session) = (self.spec, self.spec.session());
        let mut asked = None;
        let mut attempt = || {
            let drawn = asked.insert(self.kind.draw(session));
            let mut request = self.kind.request(drawn);
            session.replicate(&mut request, spec.command_timeout);
            let undo = Some(Arc::clone(drawn) as Arc<dyn Undo>);
            Attempt { request, undo }
        };
        // If the thread is handed permits, it stops waiting for the reply, and the request is undone if it was sent.
        let stop = || self.is_handed_over() || spec.must_stop();
        let answer = session.connection.call(until, &stop, None, &mut attempt)?;
        let replicated = session.is_replicated(&answer);
        let Some(asked) = asked else {
            unreachable!("nothing was sent");
        };
        match G::read(answer.value) {
            Ok(PermitsAcquired::Taken { ends_at }) if replicated.is_ok() => {
                Ok(match self.granted(&asked, answer.sent_at, ends_at)? {
                    Some(grant) => Reply::Granted(grant),
                    None => Reply::HandedOver,
                })
            }
            Ok(PermitsAcquired::TooFew {
                retry_after,
                is_set,
            }) => {
                self.record_refusal(is_set);
                Ok(Reply::Busy(Busy {
                    // By then enough permits may have expired.
                    retry_after,
                    ..Busy::default()
                }))
            }
            other => {
                self.give_back(&asked);
                replicated?;
                Err(match other {
                    Err(unexpected) => session.error(ACQUIRING, &spec.name, unexpected).into(),
                    Ok(_) => unreachable!("granted and replicated"),
                })
            }
        }
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }
}

impl<G: Grants> Drop for Permits<'_, G> {
    fn drop(&mut self) {
        self.leave();
        if let Some(Wakeup::Given(since)) = self.listening.take_wakeup() {
            // The permits were handed over after this thread had given up, and must not be lost.
            self.give_away(since);
        }
        self.listening.leave();
    }
}
