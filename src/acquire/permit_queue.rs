//! A thread that wants permits, in the queue of its process: first come, first served.
//!
//! Only the first thread asks Redis, and listens for all, so that a request for many permits is not starved by requests
//! for few. Once it has its permits the next one asks. After a whole tenure of grants it lets other processes go first.

use std::sync::Arc;
use std::time::Instant;

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{Prepared, yielding};
use crate::hold::{Entry, Waiter, Wakeup};
use crate::local::queued_thread::{News, Question, QueuedThread, YieldAfter};
use crate::local::semaphore::Granted;
use crate::net::call::{Attempt, Call};
use crate::quorum::failure::Failure;
use crate::session::Session;
use crate::time::{self, Deadline};

/// A thread in the queue, or one that does not wait. When dropped it leaves the queue.
pub(super) struct PermitQueue<'a> {
    spec: &'a LockSpec,
    wait: WaitMode,
    /// Of the client's registry, so that all threads have the same.
    pub(super) entry: Arc<Entry>,
    /// None for one that does not wait.
    pub(super) queued: Option<Arc<QueuedThread<Wakeup>>>,
    /// `None` once it has left the queue.
    pub(super) ticket: Option<u64>,
    pub(super) listening: Listening,
    is_watched: bool,
    has_yielded: bool,
}

impl<'a> PermitQueue<'a> {
    /// Gets into the queue and waits there until it is the first, or its time is up. `None` for one that does not wait if
    /// others do: it must not overtake those in the queue, or a request for many could starve.
    ///
    /// `question` makes its first question, if whoever releases may send it.
    pub(super) fn enter(
        spec: &'a LockSpec,
        entry: Arc<Entry>,
        permits: u32,
        wait: WaitMode,
        question: Option<&dyn Fn() -> Attempt>,
    ) -> Option<Self> {
        let mut one = Self {
            spec,
            wait,
            entry,
            queued: None,
            ticket: None,
            listening: Listening::default(),
            is_watched: false,
            has_yielded: false,
        };
        let mut state = one.entry.lock();
        let local = state.local_semaphore();
        if !wait.asks_again() {
            let is_before_others = !local.has_waiters();
            drop(state);
            return is_before_others.then_some(one);
        }
        let queued = QueuedThread::new();
        let (ticket, is_first) = local.enter(permits, Arc::clone(&queued));
        drop(state);
        one.listening = Listening::of(Arc::clone(&queued.waiter));
        (one.queued, one.ticket) = (Some(queued), Some(ticket));
        if !is_first {
            if let (Some(queued), Some(question)) = (&one.queued, question) {
                queued.has_ready(question());
            }
            one.wait_for_news(None);
            one.listening.has_queued();
        }
        Some(one)
    }

    /// Parks until there is news, or `until`, or it has to stop.
    pub(super) fn wait_for_news(&mut self, until: Option<Instant>) {
        let Some(queued) = self.queued.clone() else {
            return;
        };
        self.watch(&queued.waiter);
        self.listening.watch(self.spec.cancel.as_ref());
        let stop = || queued.has_news() || self.spec.must_stop(self.wait);
        let deadline = self.wait.deadline();
        let ends = until.map_or(deadline, |until| Deadline::at(deadline.or(until)));
        queued.waiter.wait_in_queue(None, ends, &stop);
    }

    /// Has the closing of the client wake it.
    pub(super) fn watch(&mut self, waiter: &Arc<Waiter>) {
        if !std::mem::replace(&mut self.is_watched, true) {
            self.spec.session().closing.watch(waiter);
        }
    }

    pub(super) fn take_news(&self) -> Option<News> {
        self.queued.as_ref().and_then(|queued| queued.take_news())
    }

    pub(super) fn has_news(&self) -> bool {
        self.queued.as_ref().is_some_and(|queued| queued.has_news())
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.queued.as_ref().is_some_and(|queued| queued.is_given())
    }

    /// Whether another thread of this process has handed permits over to it, or asked for it: it has nothing to yield for.
    fn is_served(&self) -> bool {
        let queued = self.queued.as_ref();
        queued.is_some_and(|queued| queued.is_given() || queued.is_asked_for())
    }

    /// After one of `every` so many whole tenures, lets other processes go first if any were notified of the last release
    /// and there is time. Once for each question, which would never be asked in time otherwise.
    pub(super) fn yield_to_others(&mut self, every: u64, until: Instant) -> Prepared {
        let may_yield = !std::mem::take(&mut self.has_yielded) && !self.is_served();
        let after = || {
            let mut state = self.entry.lock();
            state.local_semaphore().yield_after(Instant::now())
        };
        let after = may_yield.then(after).flatten();
        let Some(YieldAfter { call, we_listened }) = after.filter(|_| time::one_in(every)) else {
            return Prepared::Asks;
        };
        let stop = || self.is_served() || self.spec.must_stop(self.wait);
        let session = self.spec.session();
        let yields = yielding::others_notified(session, &call, we_listened, until, &stop) > 0
            && yielding::has_time(yielding::FOR, until);
        if yields {
            let waiter = self.queued.as_ref().map(|queued| &queued.waiter);
            yielding::yield_to_others(session, waiter, yielding::FOR, until, &stop);
        } else if !stop() {
            return Prepared::Asks;
        }
        // There may be no time left, or no need.
        self.has_yielded = true;
        Prepared::Yielded
    }

    /// Redis has granted permits that are not handed over later: the next thread may ask.
    pub(super) fn was_granted(&mut self) {
        let mut state = self.entry.lock();
        let local = state.local_semaphore();
        let granted = local.granted(self.ticket.take(), 0, Instant::now());
        let Granted::Kept { first: Some(first) } = granted else {
            return;
        };
        first.store(News::First);
        drop(state);
        first.waiter.wake_to_check();
    }

    /// Redis had too few. Whoever releases may send the `next` question.
    ///
    /// If somebody did so with the last one, messages of further releases may have come before this thread read its reply.
    /// Then it asks once more, since nobody would notify it of them.
    pub(super) fn was_refused(&self, next: &dyn Fn() -> Attempt, was_asked_for: bool) {
        if let Some(queued) = &self.queued {
            queued.has_ready(next());
            let mut state = self.entry.lock();
            state.local_semaphore().refuse_first();
            if was_asked_for && !queued.has_news() {
                queued.store(News::First);
            }
        }
    }

    /// The question that was ready.
    pub(super) fn take_question(&self) -> Option<Question> {
        self.queued
            .as_ref()
            .and_then(|queued| queued.take_question())
    }

    /// Leaves the queue, unless others have called it out of there. What was asked for it is undone.
    pub(super) fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let mut state = self.entry.lock();
        let first = state.local_semaphore().withdraw(ticket).flatten();
        if let Some(first) = &first {
            first.store(News::First);
        }
        drop(state);
        // Nobody asks for it any more.
        if let Some(Question::Sent(ahead)) = self.take_question() {
            self.spec.session().connection.abandon(&ahead);
        }
        if let Some(first) = first {
            first.waiter.wake_to_check();
        }
    }

    /// Redis is unreachable: the queued threads get the error now.
    pub(super) fn dismiss(&self, doing: &'static str, failure: &Failure) {
        let error = self.spec.make_error(doing, failure.clone());
        let mut state = self.entry.lock();
        let mut dismissed = state.local_semaphore().dismiss();
        if let Some(own) = &self.queued {
            dismissed.retain(|queued| !Arc::ptr_eq(queued, own));
        }
        for queued in &dismissed {
            queued.store(News::Failed(Arc::clone(&error)));
        }
        drop(state);
        for queued in dismissed {
            queued.waiter.wake_to_check();
        }
    }
}

impl Drop for PermitQueue<'_> {
    fn drop(&mut self) {
        self.listening.leave();
        self.leave();
    }
}

/// A release on its way, after which this process may have to yield.
pub(super) fn yield_after(session: &Session, entry: &Entry, release: &Arc<Call>) -> YieldAfter {
    YieldAfter {
        call: Arc::clone(release),
        we_listened: session.subscriber.listens_to(&entry.protocol.channel()),
    }
}
