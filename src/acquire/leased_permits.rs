//! Permits with an id and a lease: each permit is a hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::Outcome;
use crate::acquire::permits::{self, Grants};
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::error::{Error, LossReason, Result};
use crate::hold::entry::notify;
use crate::hold::{Entry, Hold, UNDO_FOR};
use crate::local::lock::{LeasePolicy, Mode};
use crate::net::call::{Call, Deferred, Undo};
use crate::net::request::Request;
use crate::protocol::adopt::ADOPTING;
use crate::protocol::owner::{OwnerId, PermitId};
use crate::protocol::permits as protocol;
use crate::protocol::script::{self, PermitsAcquired, Unexpected};
use crate::session::Session;

/// Takes `count` permits at once, or none.
pub(crate) fn take(
    spec: &LockSpec,
    entry: &Arc<Entry>,
    count: u32,
    wait: WaitMode,
) -> Result<Outcome<Vec<Arc<Hold>>>> {
    permits::take(spec, count, wait, Leased::of(spec, entry, count)?)
}

/// Makes the permit `from` one of this client, with an id of its own; `Lost` if nobody has it.
pub(crate) fn adopt(
    spec: &LockSpec,
    entry: &Arc<Entry>,
    from: PermitId,
    until: Instant,
) -> Result<Outcome<Vec<Arc<Hold>>>> {
    let session = spec.session();
    let _contending = session.contending();
    spec.check_going()?;
    session.start_watchdog()?;
    let leased = Leased::of(spec, entry, 1)?;
    let batch = leased.draw(session);
    let request = protocol::adopt(&entry.protocol, from, batch.ids[0], leased.ttl);
    let give_back = || session.connection.send_deferred(batch.undo());
    let answer = spec.ask_to_adopt(request, until, give_back)?;
    let replicated = session.is_replicated(&answer);
    match script::permits_acquired(answer.value) {
        Ok(PermitsAcquired::Taken { ends_at }) => {
            replicated.inspect_err(|_| give_back())?;
            let adopted = leased.granted(spec, &batch, answer.sent_at, ends_at)?;
            Ok(Outcome::Granted(adopted))
        }
        Ok(PermitsAcquired::TooFew { .. }) => Err(Error::lost(&*spec.name, LossReason::Expired)),
        Err(unexpected) => {
            give_back();
            Err(session.error(ADOPTING, &spec.name, unexpected))
        }
    }
}

/// Sends the release of a permit. The request of the first waiting thread of this process follows the release.
pub(crate) fn release(spec: &LockSpec, hold: &Hold) -> Arc<Call> {
    let (session, now) = (spec.session(), Instant::now());
    let is_heard = session
        .subscriber
        .listens_to(&hold.entry().protocol.channel());
    let release = Call::release(hold.release(false, now), is_heard);
    // The entry is unknown if no thread of this process has used it lately; then there is nobody to wake.
    let entry = spec.known_entry();
    let mut state = entry.as_ref().map(|entry| entry.lock());
    // Rule 4 at `Entry`: the release precedes the request of the thread that is called here.
    session.connection.submit(&release);
    let first = state.as_mut().and_then(|state| {
        let local = state.local_semaphore();
        local.cohort.released(Arc::clone(&release), now);
        let first = local.first();
        state.call_first(first, now)
    });
    drop(state);
    session.connection.at(&release).deliver();
    notify(first);
    session.watchdog.housekeep_soon();
    release
}

struct Leased {
    entry: Arc<Entry>,
    count: u32,
    lease: LeasePolicy,
    ttl: Duration,
}

impl Leased {
    fn of(spec: &LockSpec, entry: &Arc<Entry>, count: u32) -> Result<Self> {
        let (lease, ttl) = spec.lease_policy()?;
        Ok(Self {
            entry: Arc::clone(entry),
            count,
            lease,
            ttl,
        })
    }
}

impl Grants for Leased {
    type Grant = Vec<Arc<Hold>>;

    type Asked = Batch;

    // The holder may have given the id of its permit to somebody else, who can release the permit by that id. So a permit
    // is never handed over to another thread.
    const ARE_HANDED_OVER: bool = false;

    fn draw(&self, _: &Session) -> Arc<Batch> {
        Arc::new(Batch {
            entry: Arc::clone(&self.entry),
            ttl: self.ttl,
            ids: (0..self.count).map(|_| PermitId::draw()).collect(),
        })
    }

    fn request(&self, batch: &Batch) -> Request {
        protocol::acquire(&self.entry.protocol, &batch.ids, self.ttl)
    }

    fn read(reply: Value) -> std::result::Result<PermitsAcquired, Unexpected> {
        script::permits_acquired(reply)
    }

    fn granted(
        &self,
        spec: &LockSpec,
        batch: &Batch,
        sent_at: Instant,
        ends_at: i64,
    ) -> Result<Vec<Arc<Hold>>> {
        let session = spec.session();
        let hold = |id: &PermitId| {
            let hold = Hold::new(
                Arc::clone(&self.entry),
                Mode::Exclusive,
                session.owners.draw(),
                self.lease,
                self.ttl,
            )
            .known_as(OwnerId::of(id));
            hold.grant(sent_at);
            hold.set_ends_at(ends_at);
            Arc::new(hold)
        };
        let holds: Vec<_> = batch.ids.iter().map(hold).collect();
        let now = Instant::now();
        if !holds.iter().all(|hold| hold.is_valid(now)) {
            // The grant was so late that the leases are over, and others may have these permits.
            session.connection.send_deferred(batch.undo());
            return Err(spec.granted_too_late());
        }
        if let Err(closed) = session.arm(&holds) {
            session.connection.send_deferred(batch.undo());
            return Err(closed);
        }
        // Before the observer is told, which may take its time: a release by id has to find the hold.
        for hold in &holds {
            session.permits.insert(hold);
        }
        session.counters.acquired.add(self.count.into());
        Ok(holds)
    }

    fn handed_over(&self, _: Instant) -> Option<Vec<Arc<Hold>>> {
        None
    }
}

/// Permits that are requested together, and undone together if the outcome is unknown.
struct Batch {
    entry: Arc<Entry>,
    ttl: Duration,
    ids: Vec<PermitId>,
}

impl Undo for Batch {
    fn undo(&self) -> Deferred {
        let request = protocol::release(&self.entry.protocol, &self.ids);
        // The undo is sent again until it is answered, for `UNDO_FOR` or for the lease, whichever is longer. Until
        // `UNDO_FOR` is over, the server may still execute the acquire. Until the lease ends, permits that nobody knows of
        // would stay taken.
        let useful_until = Instant::now() + self.ttl.max(UNDO_FOR);
        self.entry
            .deferred(request, &OwnerId::default(), useful_until, true)
    }
}
