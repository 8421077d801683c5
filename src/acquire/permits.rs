//! Taking permits that have no owner, and releasing them.
//!
//! Threads of one process wait in the queue of its local semaphore, and the first asks Redis. It may be handed permits
//! that another thread of the process releases, even while its request is under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::permit_queue::{self, PermitQueue};
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Busy, NoReply, Outcome, Prepared, Reply, Strategy};
use crate::error::{Error, Result};
use crate::hold::{Entry, EntryState, Waiter};
use crate::local::queued_thread::{News, QueuedThread};
use crate::local::semaphore::{Given, Granted};
use crate::net::call::{Attempt, Call, Deferred, DeferredInfo, Undo};
use crate::protocol::idempotency::RequestKeys;
use crate::protocol::script;
use crate::protocol::semaphore;
use crate::quorum::failure::Failure;
use crate::session::Session;

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
    let taken = match PermitQueue::enter(spec, Arc::clone(entry), permits, wait, None) {
        Some(queue) => {
            let mut strategy = Permits {
                spec,
                wait,
                permits,
                queue,
                has_asked: false,
            };
            acquire::acquire(&mut strategy, spec, wait).map(Outcome::granted)
        }
        None => Ok(None),
    };
    if !matches!(taken, Ok(Some(_))) {
        session.watchdog.housekeep_soon();
    }
    taken
}

/// A thread that asks for permits, or waits until it is the first of its process.
struct Permits<'a> {
    spec: &'a LockSpec,
    wait: WaitMode,
    permits: u32,
    queue: PermitQueue<'a>,
    has_asked: bool,
}

impl Permits<'_> {
    /// Redis has granted them; `None` if others of this process have given the thread permits meanwhile.
    fn granted(&mut self, question: &PermitRequest) -> Result<Option<Instant>> {
        let session = self.spec.session();
        let now = Instant::now();
        let mut state = self.queue.entry.lock();
        let granted = if session.is_closed() {
            Granted::Closed
        } else {
            let local = state.local_semaphore();
            local.granted(self.queue.ticket, self.permits, now)
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
            first.waiter.wake_to_check();
        }
        session.counters.acquired.add(1);
        if self.queue.is_handed_over() {
            // It has permits already, so these go to whoever is next.
            drop(give(session, &self.queue.entry, self.permits, now));
            return Ok(None);
        }
        self.queue.ticket = None;
        Ok(Some(now))
    }
}

impl Strategy for Permits<'_> {
    type Grant = Instant;

    const DOING: &'static str = ACQUIRING;

    fn handed_over(&mut self) -> Result<Option<Instant>> {
        match self.queue.take_news() {
            Some(News::Given { since }) => {
                self.queue.ticket = None;
                let session = self.spec.session();
                session.counters.passed.add(1);
                if session.is_closed() {
                    // Unless closing has given them back already.
                    drop(give(session, &self.queue.entry, self.permits, since));
                    return Err(Error::Closed);
                }
                Ok(Some(since))
            }
            Some(News::Failed(error)) => {
                self.queue.ticket = None;
                Err(error())
            }
            Some(News::First) | None => Ok(None),
        }
    }

    fn withdraw(&mut self) -> Result<Option<Instant>> {
        self.queue.leave();
        self.handed_over()
    }

    fn has_news(&self) -> bool {
        self.queue.has_news()
    }

    fn prepare(&mut self, until: Instant) -> Result<Prepared> {
        // Once it has asked, it is notified of what changes.
        if self.queue.queued.is_some() && !self.has_asked {
            let mut state = self.queue.entry.lock();
            let local = state.local_semaphore();
            let until = local.exhausted_until(self.permits, Instant::now());
            drop(state);
            if until.is_some() {
                self.queue.wait_for_news(until);
                return Ok(Prepared::Waited);
            }
        }
        let prepared = self.queue.yield_to_others(1, until);
        self.has_asked |= matches!(prepared, Prepared::Asks);
        Ok(prepared)
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Instant>, NoReply> {
        let (spec, entry) = (self.spec, &self.queue.entry);
        let session = spec.session();
        let queued = self.queue.queued.as_deref();
        let stop = || queued.is_some_and(QueuedThread::is_given) || spec.must_stop(self.wait);
        let (permits, keep_ms) = (self.permits, session.remember_ms());
        let mut asked = None;
        let mut attempt = || {
            let keys = request_keys(session, entry, &mut entry.lock());
            let mut request = semaphore::acquire(&*entry.protocol, &keys, &keep_ms, permits);
            session.replicate(&mut request);
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
        Some(self.queue.entry.protocol.channel())
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.queue.listening
    }

    fn begins_to_wait(&mut self, waiter: &Arc<Waiter>) {
        self.queue.watch(waiter);
    }

    fn dismiss(&mut self, failure: &Failure) {
        self.queue.dismiss(ACQUIRING, failure);
    }
}

impl Drop for Permits<'_> {
    fn drop(&mut self) {
        self.queue.leave();
        if let Some(News::Given { since }) = self.queue.take_news() {
            // It came too late to be taken.
            let session = self.spec.session();
            drop(give(session, &self.queue.entry, self.permits, since));
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
        let after = permit_queue::yield_after(session, entry, &release);
        state.local_semaphore().released(after, now);
        release
    });
    drop(state);
    // They have their permits. Delivering may take time, if it has to connect first.
    for queued in to {
        queued.waiter.wake_to_check();
    }
    if let Some(release) = &release {
        session.connection.deliver(release);
    }
    // It asks Redis, behind the release.
    if let Some(first) = first {
        first.waiter.wake_to_check();
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
