//! Taking permits that have an id and a lease each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::permit_queue::{self, PermitQueue};
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Busy, NoReply, Outcome, Prepared, Reply, Strategy, yielding};
use crate::error::{Error, LossReason, Result};
use crate::hold::{Entry, Hold, UNDO_FOR, Waiter};
use crate::local::lock::{LeasePolicy, Mode};
use crate::local::queued_thread::{News, Question};
use crate::net::call::{Attempt, Call, Deferred, DeferredInfo, Undo};
use crate::protocol::owner::{OwnerId, PermitId};
use crate::protocol::permits;
use crate::protocol::script::{self, PermitsAcquired};
use crate::quorum::failure::Failure;
use crate::session::Session;

const ACQUIRING: &str = "acquiring permits";

/// Takes so many permits at once, or none. Every permit is a hold of its own.
pub(crate) fn take(
    spec: &LockSpec,
    entry: &Arc<Entry>,
    count: u32,
    wait: WaitMode,
) -> Result<Option<Vec<Arc<Hold>>>> {
    let (lease, ttl) = spec.lease_policy()?;
    let session = spec.session();
    // First, so that either closing waits for this thread or it is notified.
    let _contending = session.contending();
    spec.check_going(wait)?;
    session.start_watchdog()?;
    let batch = Batch::draw(entry, count, ttl);
    let question = || batch.question(session);
    let Some(queue) = PermitQueue::enter(spec, spec.entry()?, count, wait, Some(&question)) else {
        return Ok(None);
    };
    let mut strategy = LeasedPermits {
        spec,
        wait,
        lease,
        batch,
        queue,
    };
    let taken = acquire::acquire(&mut strategy, spec, wait).map(Outcome::granted);
    if !matches!(taken, Ok(Some(_))) {
        session.watchdog.housekeep_soon();
    }
    taken
}

/// Sends the release of a permit, and for a tenure with it the question of the first thread of this process that waits:
/// threads of Java that have released ask again at once, so one that waits for the message would seldom be the first.
pub(crate) fn release(spec: &LockSpec, hold: &Hold) -> Arc<Call> {
    let session = spec.session();
    let release = Call::deferred(hold.release(false, Instant::now()));
    // Unknown if no thread of this process has waited lately.
    let entry = spec.known_entry();
    let mut state = entry.as_ref().map(|entry| entry.lock());
    session.connection.submit(&release);
    let first = entry.iter().zip(&mut state).find_map(|(entry, state)| {
        let now = Instant::now();
        let local = state.local_semaphore();
        local.released(permit_queue::yield_after(session, entry, &release), now);
        let first = local.first()?;
        if local.is_young(now) {
            first.ask_for(|question| session.connection.submit_ahead(question));
        }
        first.store(News::First);
        Some(first)
    });
    drop(state);
    session.connection.deliver(&release);
    if let Some(first) = first {
        first.waiter.wake_to_check();
    }
    session.watchdog.housekeep_soon();
    release
}

/// A thread that asks for permits, or waits until it is the first of its process.
struct LeasedPermits<'a> {
    spec: &'a LockSpec,
    wait: WaitMode,
    lease: LeasePolicy,
    /// What it asks for next.
    batch: Arc<Batch>,
    queue: PermitQueue<'a>,
}

impl LeasedPermits<'_> {
    fn granted(&mut self, batch: &Batch, sent_at: Instant, ends_at: i64) -> Result<Vec<Arc<Hold>>> {
        self.queue.was_granted();
        let session = self.spec.session();
        let hold = |id: &PermitId| {
            let hold = Hold::new(
                Arc::clone(&batch.entry),
                Mode::Exclusive,
                session.owners.draw(),
                self.lease,
                batch.ttl,
            )
            .known_as(OwnerId::of(id));
            hold.grant(sent_at);
            hold.ends_at(ends_at);
            Arc::new(hold)
        };
        let holds: Vec<_> = batch.ids.iter().map(hold).collect();
        let now = Instant::now();
        if !holds.iter().all(|hold| hold.is_valid(now)) {
            // Their leases are over already, and others may have these permits.
            session.connection.send_deferred(batch.release());
            return Err(self.spec.lost(LossReason::Expired));
        }
        for hold in &holds {
            session.watchdog.arm(hold, hold.due_after(sent_at));
        }
        if session.is_closed() {
            for hold in &holds {
                hold.end();
                session.watchdog.disarm(hold);
            }
            session.connection.send_deferred(batch.release());
            return Err(Error::Closed);
        }
        let acquired = u64::try_from(holds.len()).unwrap_or(0);
        session.counters.acquired.add(acquired);
        Ok(holds)
    }
}

impl Strategy for LeasedPermits<'_> {
    type Grant = Vec<Arc<Hold>>;

    const DOING: &'static str = ACQUIRING;

    const IS_ANNOUNCED: bool = false;

    fn handed_over(&mut self) -> Result<Option<Self::Grant>> {
        match self.queue.take_news() {
            Some(News::Failed(error)) => Err(error()),
            // Nobody hands over a permit: whoever knows its id may release it.
            Some(News::First | News::Given { .. }) | None => Ok(None),
        }
    }

    fn withdraw(&mut self) -> Result<Option<Self::Grant>> {
        self.queue.leave();
        self.handed_over()
    }

    fn has_news(&self) -> bool {
        self.queue.has_news()
    }

    fn prepare(&mut self, until: Instant) -> Result<Prepared> {
        let every = yielding::LEASED_PERMITS_EVERY;
        Ok(self.queue.yield_to_others(every, until))
    }

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Self::Grant>, NoReply> {
        let session = self.spec.session();
        let connection = &session.connection;
        let ahead = match self.queue.take_question() {
            Some(Question::Sent(ahead)) => Some(ahead),
            Some(Question::Ready(_)) | None => None,
        };
        let was_asked_for = ahead.is_some();
        let mut batch = Arc::clone(&self.batch);
        let mut is_sent = was_asked_for;
        let mut attempt = || {
            if std::mem::replace(&mut is_sent, true) {
                batch = batch.draw_again();
            }
            batch.question(session)
        };
        let stop = || self.spec.must_stop(self.wait);
        let answer = connection.call(until, &stop, ahead, &mut attempt)?;
        let replicated = session.is_replicated(&answer);
        match script::permits_acquired(answer.value) {
            Ok(PermitsAcquired::Taken { ends_at }) => {
                if let Err(err) = replicated {
                    connection.send_deferred(batch.release());
                    return Err(err.into());
                }
                let holds = self.granted(&batch, answer.sent_at, ends_at)?;
                Ok(Reply::Granted(holds))
            }
            Ok(PermitsAcquired::TooFew { left }) => {
                self.batch = batch.draw_again();
                self.queue
                    .was_refused(&|| self.batch.question(session), was_asked_for);
                Ok(Reply::Busy(Busy {
                    // By then enough of them may have expired.
                    retry_after: left,
                    is_contested: false,
                    listen_on: 0,
                }))
            }
            Err(unexpected) => {
                connection.send_deferred(batch.release());
                Err(self.spec.session().error(ACQUIRING, unexpected).into())
            }
        }
    }

    fn channel(&self, _listen_on: usize) -> Option<Arc<str>> {
        Some(self.batch.entry.protocol.channel())
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

/// Permits that are requested together, and undone together if the outcome is unknown.
struct Batch {
    entry: Arc<Entry>,
    ttl: Duration,
    ids: Vec<PermitId>,
}

impl Batch {
    /// Draws new ids, so that undoing an earlier request does not affect its permits.
    fn draw(entry: &Arc<Entry>, count: u32, ttl: Duration) -> Arc<Self> {
        Arc::new(Self {
            entry: Arc::clone(entry),
            ttl,
            ids: (0..count).map(|_| PermitId::draw()).collect(),
        })
    }

    /// As many others.
    fn draw_again(&self) -> Arc<Self> {
        let ids = self.ids.iter().map(|_| PermitId::draw()).collect();
        Arc::new(Self {
            entry: Arc::clone(&self.entry),
            ttl: self.ttl,
            ids,
        })
    }

    fn question(self: &Arc<Self>, session: &Session) -> Attempt {
        let mut request = permits::acquire(&*self.entry.protocol, &self.ids, self.ttl);
        session.replicate(&mut request);
        Attempt {
            request,
            undo: Some(Arc::clone(self) as Arc<dyn Undo>),
        }
    }

    fn release(&self) -> Deferred {
        Deferred {
            request: permits::release(&*self.entry.protocol, &self.ids),
            info: DeferredInfo {
                name: Arc::clone(self.entry.name()),
                // A frozen server executes the acquire when it resumes, and the lease begins only then.
                useful_until: Instant::now() + self.ttl.max(UNDO_FOR),
                undo: true,
                for_good: false,
            },
        }
    }
}

impl Undo for Batch {
    fn undo(&self) -> Option<Deferred> {
        Some(self.release())
    }
}
