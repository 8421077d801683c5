//! Taking permits that have no owner, and releasing them.
//!
//! Threads of one process wait in the queue of its local semaphore, and the first asks Redis. It may be handed permits
//! that another thread of the process releases, even while its request is under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::yielding;
use crate::acquire::{self, Busy, NoReply, Outcome, Prepared, Reply, Strategy};
use crate::error::{Error, Result};
use crate::hold::{Entry, EntryState, Waiter, Wakeup};
use crate::local::queued_thread::{News, QueuedThread, YieldAfter};
use crate::local::semaphore::{Given, Granted};
use crate::net::call::{Attempt, Call, Deferred, DeferredInfo, Undo};
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::script;
use crate::protocol::semaphore;
use crate::quorum::failure::Failure;
use crate::session::Session;
use crate::time::Deadline;

const ACQUIRING: &str = "acquiring permits";

/// Takes so many permits at once, or none; returns when Redis granted them to this process.
pub(crate) fn take(
    spec: &LockSpec,
    entry: &Arc<Entry>,
    permits: u32,
    wait: WaitMode,
) -> Result<Option<Instant>> {
    let session = spec.session();
    // First, so that either closing waits for this thread or it is notified.
    let _contending = session.contending();
    spec.check_going(wait)?;
    session.start_watchdog()?;
    let taken = match Permits::enter(spec, entry, permits, wait) {
        Some(mut strategy) => acquire::acquire(&mut strategy, spec, wait).map(Outcome::granted),
        None => Ok(None),
    };
    if !matches!(taken, Ok(Some(_))) {
        session.watchdog.housekeep_soon();
    }
    taken
}

/// A thread that asks for permits, or waits until it is the first of its process. When it goes without permits, so does
/// its place in the queue.
struct Permits<'a> {
    spec: &'a LockSpec,
    wait: WaitMode,
    entry: &'a Arc<Entry>,
    permits: u32,
    /// None for one that does not wait.
    queued: Option<Arc<QueuedThread<Wakeup>>>,
    /// `None` once it has left the queue.
    ticket: Option<u64>,
    listening: Listening,
    is_watched: bool,
    has_asked: bool,
    has_yielded: bool,
}

impl<'a> Permits<'a> {
    /// Gets into the queue and waits there until it is the first, or its time is up. `None` for one that does not wait if
    /// others do: it must not overtake those in the queue, or a request for many could starve.
    fn enter(
        spec: &'a LockSpec,
        entry: &'a Arc<Entry>,
        permits: u32,
        wait: WaitMode,
    ) -> Option<Self> {
        let mut one = Self {
            spec,
            wait,
            entry,
            permits,
            queued: None,
            ticket: None,
            listening: Listening::default(),
            is_watched: false,
            has_asked: false,
            has_yielded: false,
        };
        let mut state = entry.lock();
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
            one.wait_for_news(None);
            one.listening.has_queued();
        }
        Some(one)
    }

    /// Parks until there is news, or `until`, or it has to stop.
    fn wait_for_news(&mut self, until: Option<Instant>) {
        let Some(queued) = self.queued.clone() else {
            return;
        };
        self.watch(&queued.waiter);
        self.listening.watch(self.spec.cancel.as_ref());
        let stop = || queued.has_news() || self.spec.must_stop(self.wait);
        let deadline = self.wait.deadline();
        let ends = until.map_or(deadline, |until| Deadline::at(deadline.or(until)));
        queued.waiter.wait_in_queue(ends, &stop);
    }

    /// Leaves the queue, unless others have called it out of there.
    fn leave_queue(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let mut state = self.entry.lock();
        let first = state.local_semaphore().withdraw(ticket).flatten();
        if let Some(first) = &first {
            first.store(News::First);
        }
        drop(state);
        if let Some(first) = first {
            first.waiter.wake();
        }
    }

    fn is_handed_over(&self) -> bool {
        self.queued.as_ref().is_some_and(|queued| queued.is_given())
    }

    /// Has the closing of the client wake it.
    fn watch(&mut self, waiter: &Arc<Waiter>) {
        if !std::mem::replace(&mut self.is_watched, true) {
            self.spec.session().closing.watch(waiter);
        }
    }

    /// Redis has granted them; `None` if others of this process have given the thread permits meanwhile.
    fn granted(&mut self, question: &PermitRequest) -> Result<Option<Instant>> {
        let session = self.spec.session();
        let now = Instant::now();
        let mut state = self.entry.lock();
        let granted = if session.is_closed() {
            Granted::Closed
        } else {
            let local = state.local_semaphore();
            local.granted(self.ticket, self.permits, now)
        };
        let first = match granted {
            Granted::Kept { first } => first,
            Granted::Surplus => None,
            Granted::Closed => {
                drop(state);
                if let Some(undo) = question.undo() {
                    session.connection.send_deferred(undo);
                }
                return Err(Error::Closed);
            }
        };
        state.idempotency_keys().answered(question.keys.number);
        if let Some(first) = &first {
            first.store(News::First);
        }
        drop(state);
        if let Some(first) = first {
            first.waiter.wake();
        }
        session.counters.acquired.add(1);
        if self.is_handed_over() {
            // It has permits already, so these go to whoever is next.
            drop(give(session, self.entry, self.permits, now));
            return Ok(None);
        }
        self.ticket = None;
        Ok(Some(now))
    }
}

impl Strategy for Permits<'_> {
    type Grant = Instant;

    const DOING: &'static str = ACQUIRING;

    fn handed_over(&mut self) -> Result<Option<Instant>> {
        let news = self.queued.as_ref().and_then(|queued| queued.take_news());
        match news {
            Some(News::Given { since }) => {
                self.ticket = None;
                let session = self.spec.session();
                session.counters.passed.add(1);
                if session.is_closed() {
                    // Unless closing has given them back already.
                    drop(give(session, self.entry, self.permits, since));
                    return Err(Error::Closed);
                }
                Ok(Some(since))
            }
            Some(News::Failed(error)) => {
                self.ticket = None;
                Err(error())
            }
            Some(News::First) | None => Ok(None),
        }
    }

    fn withdraw(&mut self) -> Result<Option<Instant>> {
        self.leave_queue();
        self.handed_over()
    }

    fn has_news(&self) -> bool {
        self.queued.as_ref().is_some_and(|queued| queued.has_news())
    }

    fn prepare(&mut self, until: Instant) -> Result<Prepared> {
        let now = Instant::now();
        let mut state = self.entry.lock();
        let local = state.local_semaphore();
        if self.queued.is_some() && !self.has_asked {
            // Once it has asked, it is notified of what changes.
            if let Some(until) = local.exhausted_until(self.permits, now) {
                drop(state);
                self.wait_for_news(Some(until));
                return Ok(Prepared::Waited);
            }
        }
        // Once for each question, which would never be asked in time otherwise.
        let may_yield = !self.has_yielded;
        let release = may_yield.then(|| local.yield_after(now)).flatten();
        drop(state);
        let Some(YieldAfter { call, we_listened }) = release else {
            self.has_asked = true;
            self.has_yielded = false;
            return Ok(Prepared::Asks);
        };
        let stop = || self.is_handed_over() || self.spec.must_stop(self.wait);
        let session = self.spec.session();
        let yields = yielding::others_notified(session, &call, we_listened, until, &stop) > 0
            && yielding::has_time(yielding::FOR, until);
        if yields {
            let waiter = self.queued.as_ref().map(|queued| &queued.waiter);
            yielding::yield_to_others(session, waiter, yielding::FOR, until, &stop);
        } else if !stop() {
            self.has_asked = true;
            return Ok(Prepared::Asks);
        }
        // There may be no time left, or no need.
        self.has_yielded = true;
        Ok(Prepared::Yielded)
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Instant>, NoReply> {
        let (spec, entry) = (self.spec, self.entry);
        let session = spec.session();
        let queued = self.queued.as_deref();
        let stop = || queued.is_some_and(QueuedThread::is_given) || spec.must_stop(self.wait);
        let (permits, keep_ms) = (self.permits, session.remember_ms());
        let mut asked = None;
        let mut attempt = || {
            let keys = request_keys(session, entry, &mut entry.lock());
            let request = semaphore::acquire(&*entry.protocol, &keys, &keep_ms, permits);
            let request = session.replicated(request);
            let question = Arc::new(PermitRequest {
                entry: Arc::clone(entry),
                keys,
                keep_ms: keep_ms.clone(),
                replay: session.replay(),
            });
            asked = Some(Arc::clone(&question));
            Attempt {
                request,
                undo: Some(question),
            }
        };
        let answer = session.connection.call(until, &stop, None, &mut attempt)?;
        let replicated = session.is_replicated(&answer);
        match (script::integer(answer.value), asked) {
            (Ok(1), Some(question)) if replicated.is_ok() => Ok(match self.granted(&question)? {
                Some(since) => Reply::Granted(since),
                None => Reply::HandedOver,
            }),
            (Ok(0), _) => {
                if queued.is_some() {
                    let mut state = entry.lock();
                    let local = state.local_semaphore();
                    local.refused(self.permits, answer.sent_at);
                }
                Ok(Reply::Busy(Busy::default()))
            }
            (other, question) => {
                if let Some(undo) = question.and_then(|question| question.undo()) {
                    session.connection.send_deferred(undo);
                }
                replicated?;
                let strange = match other {
                    Ok(n) => script::Unexpected(redis::Value::Int(n)),
                    Err(unexpected) => unexpected,
                };
                Err(self.spec.session().error(ACQUIRING, strange).into())
            }
        }
    }

    fn channel(&self, _listen_on: usize) -> Option<Arc<str>> {
        Some(self.entry.protocol.channel())
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }

    fn begins_to_wait(&mut self, waiter: &Arc<Waiter>) {
        self.watch(waiter);
    }

    fn dismiss(&mut self, failure: &Failure) {
        let error = self.spec.make_error(ACQUIRING, failure.clone());
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
            queued.waiter.wake();
        }
    }
}

impl Drop for Permits<'_> {
    fn drop(&mut self) {
        self.listening.leave();
        self.leave_queue();
        let news = self.queued.as_ref().and_then(|queued| queued.take_news());
        if let Some(News::Given { since }) = news {
            // It came too late to be taken.
            let session = self.spec.session();
            drop(give(session, self.entry, self.permits, since));
        }
    }
}

/// One request for permits, which may have to be undone.
struct PermitRequest {
    entry: Arc<Entry>,
    keys: RequestKeys,
    /// How long Redis keeps those keys, in milliseconds, and for how long the undo may be sent again.
    keep_ms: String,
    replay: Duration,
}

impl Undo for PermitRequest {
    fn undo(&self) -> Option<Deferred> {
        Some(Deferred {
            request: semaphore::undo(&*self.entry.protocol, &self.keys, &self.keep_ms),
            info: DeferredInfo {
                name: Arc::clone(self.entry.name()),
                useful_until: Instant::now() + self.replay,
                undo: true,
                for_good: true,
            },
        })
    }
}

/// Releases permits: to other threads of this process, or to Redis. Returns the release if one was sent.
pub(crate) fn give(
    session: &Session,
    entry: &Arc<Entry>,
    permits: u32,
    since: Instant,
) -> Option<Arc<Call>> {
    let now = Instant::now();
    let mut state = entry.lock();
    let Given { to, first, back } = state.local_semaphore().give(permits, since, now);
    for queued in &to {
        queued.store(News::Given { since });
    }
    if let Some(first) = &first {
        first.store(News::First);
    }
    let release = (back > 0).then(|| {
        let release = submit_release(session, entry, &mut state, back.into());
        let after = YieldAfter {
            call: Arc::clone(&release),
            we_listened: session.subscriber.listens_to(&entry.protocol.channel()),
        };
        state.local_semaphore().released(after, now);
        release
    });
    drop(state);
    // They have their permits. Delivering may take time, if it has to connect first.
    for queued in to {
        queued.waiter.wake();
    }
    if let Some(release) = &release {
        session.connection.deliver(release);
    }
    // It asks Redis, behind the release.
    if let Some(first) = first {
        first.waiter.wake();
    }
    session.watchdog.housekeep_soon();
    release
}

/// Queues the release of permits; they go back to the semaphore only if it still exists. To be flushed.
pub(crate) fn submit_release(
    session: &Session,
    entry: &Entry,
    state: &mut EntryState,
    permits: u64,
) -> Arc<Call> {
    let keys = request_keys(session, entry, state);
    let keep_ms = session.remember_ms();
    let request = semaphore::release(&*entry.protocol, &keys, &keep_ms, permits);
    let call = Call::deferred(Deferred {
        request,
        info: DeferredInfo {
            name: Arc::clone(entry.name()),
            useful_until: Instant::now() + session.replay(),
            undo: false,
            for_good: true,
        },
    });
    session.connection.submit(&call);
    state.idempotency_keys().pending(keys.number, &call);
    call
}

/// The keys of the next request.
pub(crate) fn request_keys(
    session: &Session,
    entry: &Entry,
    state: &mut EntryState,
) -> RequestKeys {
    let known = state.idempotency_keys();
    RequestKeys::draw(&session.owners, entry.protocol.key(), known)
}
