//! Taking permits that have an id and a lease each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::listening::Listening;
use crate::acquire::permit_contender::PermitContender;
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::{self, Busy, NoReply, Outcome, Reply, Strategy};
use crate::error::{Error, LossReason, Result};
use crate::hold::{Entry, Hold, UNDO_FOR, Waiter};
use crate::local::lock::{LeasePolicy, Mode};
use crate::net::call::{Attempt, Deferred, DeferredInfo, Undo};
use crate::protocol::owner::{OwnerId, PermitId};
use crate::protocol::permits;
use crate::protocol::script::{self, PermitsAcquired};
use crate::quorum::failure::Failure;

const ACQUIRING: &str = "acquiring permits";

/// Takes so many permits at once, or none. Every permit is a hold of its own.
pub(crate) fn take(
    spec: &LockSpec,
    entry: &Arc<Entry>,
    count: usize,
    wait: WaitMode,
) -> Result<Option<Vec<Arc<Hold>>>> {
    let (lease, ttl) = spec.lease_policy()?;
    let session = spec.session();
    spec.check_going(wait)?;
    session.start_watchdog()?;
    let contender = match wait {
        WaitMode::Until(deadline) => match PermitContender::wait(spec, deadline)? {
            None => return Ok(None),
            contender => contender,
        },
        // A request for many would starve if single attempts overtook it.
        _ if PermitContender::is_waited_for(spec) => return Ok(None),
        _ => None,
    };
    let _contending = session.contending();
    let listening = contender
        .as_ref()
        .map(PermitContender::listening)
        .unwrap_or_default();
    let mut strategy = LeasedPermits {
        spec,
        wait,
        entry,
        count,
        lease,
        ttl,
        listening,
        contender,
    };
    acquire::acquire(&mut strategy, spec, wait).map(Outcome::granted)
}

/// A thread that asks for permits. Threads that wait take turns at asking; a single attempt needs no turn.
struct LeasedPermits<'a> {
    spec: &'a LockSpec,
    wait: WaitMode,
    entry: &'a Arc<Entry>,
    count: usize,
    lease: LeasePolicy,
    ttl: Duration,
    listening: Listening,
    contender: Option<PermitContender<'a>>,
}

impl LeasedPermits<'_> {
    /// Draws new ids for each request, so that undoing an earlier one does not affect its permits.
    fn batch(&self) -> Arc<Batch> {
        Arc::new(Batch {
            entry: Arc::clone(self.entry),
            ttl: self.ttl,
            ids: (0..self.count).map(|_| PermitId::draw()).collect(),
        })
    }

    fn granted(&self, batch: &Batch, sent_at: Instant, ends_at: i64) -> Result<Vec<Arc<Hold>>> {
        let session = self.spec.session();
        let hold = |id: &PermitId| {
            let hold = Hold::new(
                Arc::clone(&batch.entry),
                Mode::Exclusive,
                session.owners.draw(),
                self.lease,
                self.ttl,
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

    fn ask(&mut self, until: Instant) -> std::result::Result<Reply<Self::Grant>, NoReply> {
        let session = self.spec.session();
        let connection = &session.connection;
        let mut batch = self.batch();
        let mut is_first = true;
        let mut attempt = || {
            if !std::mem::take(&mut is_first) {
                batch = self.batch();
            }
            Attempt {
                request: session.replicated(permits::acquire(
                    &*self.entry.protocol,
                    &batch.ids,
                    self.ttl,
                )),
                undo: Some(Arc::clone(&batch) as Arc<dyn Undo>),
            }
        };
        let stop = || self.spec.must_stop(self.wait);
        let answer = connection.call(until, &stop, None, &mut attempt)?;
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
                if let Some(contender) = &self.contender {
                    contender.was_refused();
                }
                Ok(Reply::Busy(Busy {
                    // By then enough of them may have expired.
                    retry_after: left,
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
        Some(self.entry.protocol.channel())
    }

    fn listening(&mut self) -> &mut Listening {
        &mut self.listening
    }

    fn begins_to_wait(&mut self, waiter: &Arc<Waiter>) {
        self.spec.session().closing.watch(waiter);
    }

    fn dismiss(&mut self, failure: &Failure) {
        if let Some(contender) = &self.contender {
            contender.dismiss_others(ACQUIRING, failure);
        }
    }
}

impl Drop for LeasedPermits<'_> {
    fn drop(&mut self) {
        self.listening.leave();
    }
}

/// Permits that are requested together, and undone together if the outcome is unknown.
struct Batch {
    entry: Arc<Entry>,
    ttl: Duration,
    ids: Vec<PermitId>,
}

impl Batch {
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
