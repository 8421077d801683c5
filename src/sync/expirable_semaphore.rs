//! The semaphore whose permits have an id and a lease each.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use redis::Value;

use crate::acquire::notified::Watch;
use crate::acquire::spec::{LockSpec, WaitMode};
use crate::acquire::turn::Turn;
use crate::config;
use crate::error::{Error, Result};
use crate::error::{Loss, LossReason};
use crate::hold::{Hold, LossChannel, UNDO_FOR};
use crate::local::lock::{LeasePolicy, Mode};
use crate::local::registry::Entry;
use crate::local::waiter::CancelToken;
use crate::net::call::{Attempt, Call, Deferred, DeferredTerms, Fault, Undo};
use crate::net::socket;
use crate::protocol::keys;
use crate::protocol::owner::PermitId;
use crate::protocol::script::{
    self, PermitsAcquired, Released, Renewed, Script, Unexpected, lease_ms,
};
use crate::report::report;
use crate::session::Session;
use crate::time::Deadline;

/// How many permits can be taken at once, and how many ids one command names: more would keep Redis from everybody else
/// for more than a few milliseconds.
const MOST: usize = 1_000;

/// How many permits can be given back by id at once.
const MOST_IDS: usize = 10_000;

const ACQUIRING: &str = "acquiring permits";
const RELEASING: &str = "releasing a permit";

/// A number of permits for all processes together, each with an id and a lease: Redisson's `RPermitExpirableSemaphore`.
///
/// **Crashes.** A permit is renewed for as long as its [`ExpirablePermit`] lives, like a lock. When its process dies, is
/// stopped, or loses Redis from sight, the permit comes back by itself one lease later, and those who wait get it then
/// without any message. What is over is judged by the server's clock alone.
///
/// **How many there are** is said once with [`try_set_permits`](Self::try_set_permits), which changes nothing where it has
/// been said before. Until then there are none, and acquiring waits. Available and acquired permits are kept apart:
/// after a reduction fewer than none may be available, until enough have come back. If Redis loses the number (it was
/// deleted, or evicted) nobody has said it any more: permits that come back do not make it anew, and whoever says it next
/// has those that are out among them.
///
/// **Ids.** Each permit has an id of 32 hexadecimal digits. Whoever knows it, in whatever process or language, can give
/// the permit back with [`release_id`](Self::release_id); its holder then hears that it was lost
/// ([`LossReason::Forced`]). Permits that Java clients took are counted, waited for and released alike.
///
/// **Order.** Threads of one process get permits in the order in which they came, so that one who wants many is not
/// overtaken for ever, and one who does not wait ([`try_acquire`](Self::try_acquire)) gives way to those who do. Among
/// processes the first to ask gets what there is.
///
/// **Panics.** As with the [`ReentrantLock`](crate::ReentrantLock): dropping gives back, nothing is poisoned. A thread may
/// take several permits, and would wait for itself if there are too few.
///
/// The plain semaphore has the same keys and channel for its name; the two do not mix.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let slots = client.expirable_semaphore("slots");
/// slots.try_set_permits(3)?; // the first process says so
/// {
///     let _permit = slots.acquire()?; // one of three, among all processes
/// }
/// let permit = slots.acquire()?;
/// slots.release_id(permit.id())?; // what any other process could do, too
/// assert!(!permit.is_valid());
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct ExpirableSemaphore {
    inner: LockSpec,
    /// For the protocol alone: the entry in which threads wait for their turn comes and goes.
    entry: OnceLock<Arc<Entry>>,
}

/// One permit of an [`ExpirableSemaphore`], given back when dropped.
///
/// It is renewed every third of the client's lease until then, unless the handle has a lease of its own or
/// [`update_lease`](Self::update_lease) has given it one. It can be sent to other threads, and shared among them.
#[must_use = "if unused the permit is released immediately"]
pub struct ExpirablePermit {
    semaphore: LockSpec,
    hold: Arc<Hold>,
    /// One thread after another tells Redis another lease. The shortest that was asked for without an answer.
    updating: Mutex<Option<Duration>>,
    lost: LossChannel,
    released: bool,
}

/// Permits that are asked for together, and given back together if nobody knows what became of that.
struct Batch {
    entry: Arc<Entry>,
    lease: Duration,
    ids: Vec<PermitId>,
}

impl Batch {
    fn packed(&self) -> Vec<u8> {
        packed(&self.ids)
    }

    fn release(&self) -> Deferred {
        let args: [&[u8]; 1] = [&self.packed()];
        Deferred {
            request: self
                .entry
                .protocol
                .permits(RELEASING, &script::PERMIT_RELEASE, None, &args),
            terms: DeferredTerms {
                name: Arc::clone(&self.entry.name),
                // A frozen server carries the acquire out when it thaws, and the lease begins only then.
                useful_until: Instant::now() + self.lease.max(UNDO_FOR),
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

/// The permits of a client whose guards are alive, so that a release by id finds its holder.
#[derive(Default)]
pub(crate) struct LivePermits(Mutex<HashMap<PermitId, Arc<Hold>>>);

impl LivePermits {
    fn insert(&self, hold: &Arc<Hold>) {
        if let Some(id) = PermitId::parse(&hold.owner) {
            self.0.lock().insert(id, Arc::clone(hold));
        }
    }

    fn get(&self, id: PermitId) -> Option<Arc<Hold>> {
        self.0.lock().get(&id).cloned()
    }

    fn remove(&self, hold: &Hold) {
        let Some(id) = PermitId::parse(&hold.owner) else {
            return;
        };
        let mut live = self.0.lock();
        live.remove(&id);
        if live.is_empty() && live.capacity() > 1024 {
            *live = HashMap::new();
        }
    }
}

/// Ids as scripts want them: one after another.
fn packed(ids: &[PermitId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0).collect()
}

/// What is wanted, and on which terms.
#[derive(Clone, Copy)]
struct Wanted {
    permits: usize,
    lease: LeasePolicy,
    ttl: Duration,
}

/// What became of one question to Redis.
enum Asked {
    Taken(Vec<ExpirablePermit>),
    /// There are too few; enough of them may be over after `left`.
    TooFew {
        left: Option<Duration>,
    },
    /// The caller's time was up before the answer had come; what it may have brought is being given back.
    TooLate,
}

impl ExpirableSemaphore {
    pub(crate) fn of(handle: LockSpec) -> Self {
        Self {
            inner: handle,
            entry: OnceLock::new(),
        }
    }

    /// A handle whose permits have this lease and are not renewed: Redisson's `leaseTime`.
    ///
    /// From 10 ms to a hundred years; [`Error::Config`] from the verbs that acquire otherwise. When the lease is over the
    /// permit is lost ([`LossReason::Expired`]) and somebody else's to take.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            inner: self.inner.lease(lease),
            ..self
        }
    }

    /// A handle whose waits end with [`Error::Cancelled`] when `token` is cancelled.
    #[must_use]
    pub fn cancel_on(self, token: &CancelToken) -> Self {
        Self {
            inner: self.inner.cancel_on(token),
            ..self
        }
    }

    /// The name, as given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Waits for a permit, however long it takes.
    ///
    /// Blocks for a round trip if there is one, else until one is released or comes to its end.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`] if Redis did not answer within the response timeout, then or when the wait began;
    /// [`Error::Cancelled`], [`Error::Closed`]; [`Error::WrongType`] for keys that hold something else; [`Error::Lost`]
    /// if the grant came when its lease was over; [`Error::InvalidName`], [`Error::Config`].
    pub fn acquire(&self) -> Result<ExpirablePermit> {
        one(self.endlessly(1)?).ok_or_else(|| self.inner.stopped())
    }

    /// Takes a permit if there is one; `Ok(None)` if there is none, or a thread of this process waits: who tries does not
    /// overtake it. One round trip or none.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), without being cancelled.
    pub fn try_acquire(&self) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::Once)?.and_then(one))
    }

    /// Waits up to `wait` for a permit; `Ok(None)` if it had none then.
    ///
    /// `wait` is the whole budget, round trips included; zero is one attempt. An answer that comes later is `Ok(None)` too,
    /// and what it may have brought is given back.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Redis`] also if Redis is known to be away by then.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::span(wait))?.and_then(one))
    }

    /// Waits until `instant` for a permit; `Ok(None)` if there was none then. A moment that has passed is one attempt.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire_until(&self, instant: Instant) -> Result<Option<ExpirablePermit>> {
        Ok(self.take(1, WaitMode::moment(instant))?.and_then(one))
    }

    /// Waits for `n` permits at once: all of them are taken, or none. At most 1,000.
    ///
    /// Each is a permit of its own, with its own id and its own end. More than there are in all are waited for until
    /// somebody adds some.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Config`] if `n` is zero or too large.
    pub fn acquire_many(&self, n: u32) -> Result<Vec<ExpirablePermit>> {
        self.endlessly(n)
    }

    /// Takes `n` permits if there are as many; `Ok(None)` if not, or a thread of this process waits, and then none is taken.
    /// One round trip or none.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), without being cancelled.
    pub fn try_acquire_many(&self, n: u32) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::Once)
    }

    /// Waits up to `wait` for `n` permits at once; `Ok(None)` if there were too few then.
    ///
    /// `wait` is the whole budget, round trips included; zero is one attempt.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many_for(
        &self,
        n: u32,
        wait: Duration,
    ) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::span(wait))
    }

    /// Waits until `instant` for `n` permits at once; `Ok(None)` if there were too few then.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many_until(
        &self,
        n: u32,
        instant: Instant,
    ) -> Result<Option<Vec<ExpirablePermit>>> {
        self.take(n, WaitMode::moment(instant))
    }

    /// Says how many permits there are; `false` if that had been said before, and then nothing is changed. One round trip.
    ///
    /// Permits that are out although the number was deleted are among the `n`. Sent again after a lost answer it
    /// counts once, and the answer is that of the first time.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if `n` is more than [`i32::MAX`], all that Java clients can read; [`Error::Redis`] if Redis did
    /// not answer within the response timeout: then it may have been done, or may yet be;
    /// [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn try_set_permits(&self, n: u32) -> Result<bool> {
        let doing = "setting the number of permits";
        let done = self.change(doing, &script::PERMIT_TRY_SET, number(n)?)?;
        Ok(done == 1)
    }

    /// Says how many permits there are, whatever was said before. One round trip.
    ///
    /// None is taken away from anybody: where more are out than that, fewer than none are available until enough have
    /// come back.
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn set_permits(&self, n: u32) -> Result<()> {
        let doing = "setting the number of permits";
        self.change(doing, &script::PERMIT_SET, number(n)?)?;
        Ok(())
    }

    /// Has `more` permits more than before; fewer, if it is negative. One round trip.
    ///
    /// Sent again after a lost answer it counts once.
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn add_permits(&self, more: i64) -> Result<()> {
        if i32::try_from(more).is_err() {
            return Err(Error::Config(format!("{more} permits at once")));
        }
        let doing = "adding permits";
        self.change(doing, &script::PERMIT_ADD, more)?;
        Ok(())
    }

    /// How many permits are to be had; fewer than none after a reduction. One round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::WrongType`], [`Error::Closed`], [`Error::InvalidName`].
    pub fn available_permits(&self) -> Result<i64> {
        Ok(self.state()?[0])
    }

    /// How many permits are out, here and elsewhere. One round trip.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    pub fn acquired_permits(&self) -> Result<u64> {
        Ok(u64::try_from(self.state()?[1]).unwrap_or(0))
    }

    /// How many permits there are in all, to be had or out; zero if nobody has said. One round trip.
    ///
    /// # Errors
    ///
    /// As [`available_permits`](Self::available_permits).
    pub fn permits(&self) -> Result<i64> {
        Ok(self.state()?[2])
    }

    /// Gives the permit with this id back, whoever took it; `false` if it was not out any more. One round trip.
    ///
    /// A holder in this client hears at once that it lost the permit ([`LossReason::Forced`]), one elsewhere at its next
    /// renewal. Sent again after a lost answer it gives the first answer.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an id that is not of 32 hexadecimal digits; [`Error::Redis`], [`Error::WrongType`],
    /// [`Error::Closed`], [`Error::InvalidName`].
    pub fn release_id(&self, id: impl AsRef<str>) -> Result<bool> {
        let released = self.release_ids(&[id])?;
        Ok(released.first().copied().unwrap_or_default())
    }

    /// Gives the permits with these ids back, whoever took them, and says of each whether it was out. One round trip for
    /// every 1,000.
    ///
    /// Those that were not out any more do not keep the others from being given back. At most 10,000.
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id); with a bad id among them nothing is sent. After other errors some of them may
    /// have been given back.
    ///
    /// Source: Redisson releases all or none, and fails where one had expired.
    pub fn release_ids(&self, ids: &[impl AsRef<str>]) -> Result<Vec<bool>> {
        let ids = ids
            .iter()
            .map(|id| parsed(id.as_ref()))
            .collect::<Result<Vec<_>>>()?;
        if ids.len() > MOST_IDS {
            return Err(Error::Config(format!(
                "{} ids; {MOST_IDS} are possible",
                ids.len()
            )));
        }
        let (session, entry) = (self.inner.session(), self.entry()?);
        session.check_open()?;
        let mut released = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MOST) {
            let done = self.release_some(entry, ids)?;
            for (id, _) in std::iter::zip(ids, &done).filter(|(_, done)| **done) {
                if let Some(hold) = session.permits.get(*id)
                    && hold.entry.protocol.key == entry.protocol.key
                {
                    session.lose(&hold, LossReason::Forced);
                }
            }
            released.extend(done);
        }
        Ok(released)
    }

    fn release_some(&self, entry: &Entry, ids: &[PermitId]) -> Result<Vec<bool>> {
        let (session, doing) = (self.inner.session(), RELEASING);
        let request_key = self.request_key(entry);
        let (packed, keep_ms) = (packed(ids), session.remember_ms());
        let args: [&[u8]; 2] = [&packed, keep_ms.as_bytes()];
        let script = &script::PERMIT_RELEASE_IDS;
        let request = entry
            .protocol
            .permits(doing, script, Some(&request_key), &args);
        let reply = session
            .ask(request)
            .map_err(|fault| self.inner.error(doing, fault))?;
        match &reply {
            Value::BulkString(letters) if letters.len() == ids.len() => {
                Ok(letters.iter().map(|letter| *letter == b'1').collect())
            }
            _ => Err(Error::redis(doing, Unexpected(reply))),
        }
    }

    /// How long Redis keeps the permit with this id if nobody renews it; `None` if it is not out. One round trip.
    ///
    /// [`Duration::MAX`] for one without an end, which only Java clients take.
    ///
    /// # Errors
    ///
    /// As [`release_id`](Self::release_id).
    pub fn lease_of(&self, id: impl AsRef<str>) -> Result<Option<Duration>> {
        let doing = "asking for the lease of a permit";
        let id = parsed(id.as_ref())?;
        let reply = self.ask_for(doing, &script::PERMIT_LEASE, &[&id.0])?;
        let ms = script::integer(reply).map_err(|unexpected| Error::redis(doing, unexpected))?;
        Ok(match ms {
            -1 => Some(Duration::MAX),
            ms => u64::try_from(ms).ok().map(Duration::from_millis),
        })
    }

    fn entry(&self) -> Result<&Arc<Entry>> {
        if let Some(entry) = self.entry.get() {
            return Ok(entry);
        }
        let entry = self.inner.unregistered_entry()?;
        Ok(self.entry.get_or_init(|| entry))
    }

    /// Asks something that changes nothing, but for what is over.
    fn ask_for(
        &self,
        doing: &'static str,
        script: &'static Script,
        args: &[&[u8]],
    ) -> Result<Value> {
        let (session, entry) = (self.inner.session(), self.entry()?);
        session.check_open()?;
        session
            .ask(entry.protocol.permits(doing, script, None, args))
            .map_err(|fault| self.inner.error(doing, fault))
    }

    /// Changes how many permits there are; however often it is sent, it counts once.
    fn change(&self, doing: &'static str, script: &'static Script, by: i64) -> Result<i64> {
        let (session, entry) = (self.inner.session(), self.entry()?);
        session.check_open()?;
        let request_key = self.request_key(entry);
        let (by, keep_ms) = (by.to_string(), session.remember_ms());
        let args = [by.as_bytes(), keep_ms.as_bytes()];
        let reply = session
            .ask(
                entry
                    .protocol
                    .permits(doing, script, Some(&request_key), &args),
            )
            .map_err(|fault| self.inner.error(doing, fault))?;
        script::integer(reply).map_err(|unexpected| Error::redis(doing, unexpected))
    }

    /// What remembers one request of ours.
    fn request_key(&self, entry: &Entry) -> String {
        let owners = &self.inner.session().owners;
        keys::request(&entry.protocol.key, &owners.id(owners.draw()))
    }

    /// Available, acquired, and both together.
    fn state(&self) -> Result<[i64; 3]> {
        let doing = "asking for permits";
        let reply = self.ask_for(doing, &script::PERMIT_STATE, &[])?;
        match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [
                    Value::Int(available),
                    Value::Int(acquired),
                    Value::Int(both),
                ] => Some([*available, *acquired, *both]),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| Error::redis(doing, Unexpected(reply)))
    }

    fn endlessly(&self, n: u32) -> Result<Vec<ExpirablePermit>> {
        let taken = self.take(n, WaitMode::Until(Deadline::NEVER))?;
        // A wait without a limit ends with permits or an error.
        taken.ok_or_else(|| self.inner.stopped())
    }

    fn take(&self, n: u32, patience: WaitMode) -> Result<Option<Vec<ExpirablePermit>>> {
        let permits = usize::try_from(n).unwrap_or(usize::MAX);
        if !(1..=MOST).contains(&permits) {
            return Err(Error::Config(format!(
                "{n} permits at once; from 1 to {MOST} are possible"
            )));
        }
        let (lease, ttl) = self.inner.terms()?;
        let wanted = Wanted {
            permits,
            lease,
            ttl,
        };
        let (session, entry) = (self.inner.session(), self.entry()?);
        self.inner.check_going(patience)?;
        session.start_watchdog()?;

        let stop = || self.inner.must_stop(patience);
        let WaitMode::Until(deadline) = patience else {
            // Who wants many would wait for ever if those who try passed by.
            if Turn::is_waited_for(&self.inner) {
                return Ok(None);
            }
            let _contending = session.contending();
            return match self.ask(entry, wanted, Deadline::NEVER, &stop, None)? {
                Asked::Taken(permits) => Ok(Some(permits)),
                Asked::TooFew { .. } | Asked::TooLate => Ok(None),
            };
        };
        let Some(turn) = Turn::wait(&self.inner, deadline)? else {
            return Ok(None);
        };
        let mut watch = Watch::new(session, &entry.protocol.channel, Arc::clone(&turn.waiter));
        loop {
            if stop() {
                return Err(self.inner.stopped());
            }
            let before = watch.heard();
            let line = Some(turn.entry());
            let left = match self.ask(entry, wanted, deadline, &stop, line)? {
                Asked::Taken(permits) => return Ok(Some(permits)),
                Asked::TooFew { left } => left,
                Asked::TooLate => return Ok(None),
            };
            turn.was_refused();
            if deadline.has_passed(Instant::now()) {
                return Ok(None);
            }
            let cancel = self.inner.cancel.as_ref();
            watch.park(before, left, deadline, cancel, &stop)?;
            if deadline.has_passed(Instant::now()) {
                return if stop() {
                    Err(self.inner.stopped())
                } else {
                    Ok(None)
                };
            }
        }
    }

    /// Asks Redis once, reconnecting as need be. Every sending has ids of its own.
    fn ask(
        &self,
        entry: &Arc<Entry>,
        wanted: Wanted,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
        line: Option<&Arc<Entry>>,
    ) -> Result<Asked> {
        let session = self.inner.session();
        let budget = deadline.budget(Instant::now(), session.response_timeout);
        let mut asked = None;
        let mut attempt = || {
            let batch = Arc::new(Batch {
                entry: Arc::clone(entry),
                lease: wanted.ttl,
                ids: (0..wanted.permits).map(|_| PermitId::draw()).collect(),
            });
            asked = Some(Arc::clone(&batch));
            let lease_ms = lease_ms(wanted.ttl).to_string();
            let args = [lease_ms.as_bytes(), &batch.packed()];
            Attempt {
                request: entry
                    .protocol
                    .permits(ACQUIRING, &script::PERMIT_ACQUIRE, None, &args),
                undo: Some(batch as Arc<dyn Undo>),
            }
        };
        let answer = match session
            .connection
            .call(budget.until, stop, None, &mut attempt)
        {
            Ok(answer) => answer,
            Err(fault) if budget.was_too_short(&fault) => return Ok(Asked::TooLate),
            Err(fault) => {
                if budget.concerns_all(&fault)
                    && let Some(entry) = line
                {
                    self.inner.dismiss(entry, ACQUIRING, fault.clone().into());
                }
                return Err(self.inner.error(ACQUIRING, fault));
            }
        };
        let Some(batch) = asked else {
            return Err(Error::Closed);
        };
        match script::permits_acquired(answer.value) {
            Ok(PermitsAcquired::Taken { ends_at }) => self
                .granted(&batch, wanted, answer.sent_at, ends_at)
                .map(Asked::Taken),
            Ok(PermitsAcquired::TooFew { left }) => Ok(Asked::TooFew { left }),
            Err(unexpected) => {
                session.connection.send_deferred(batch.release());
                Err(Error::redis(ACQUIRING, unexpected))
            }
        }
    }

    fn granted(
        &self,
        batch: &Batch,
        wanted: Wanted,
        sent_at: Instant,
        ends_at: i64,
    ) -> Result<Vec<ExpirablePermit>> {
        let session = self.inner.session();
        let hold = |id: &PermitId| {
            let hold = Hold::new(
                Arc::clone(&batch.entry),
                Mode::Exclusive,
                session.owners.draw(),
                id.to_string(),
                wanted.lease,
                wanted.ttl,
            );
            hold.grant(sent_at);
            hold.ends_at(ends_at);
            Arc::new(hold)
        };
        let holds: Vec<_> = batch.ids.iter().map(hold).collect();
        let now = Instant::now();
        if !holds.iter().all(|hold| hold.is_valid(now)) {
            // Too late to be of use, and perhaps somebody else's by now.
            session.connection.send_deferred(batch.release());
            return Err(self.inner.lost(LossReason::Expired));
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
        session
            .counters
            .acquired
            .add(u64::try_from(holds.len()).unwrap_or(0));
        let permit = |hold| {
            session.permits.insert(&hold);
            ExpirablePermit {
                semaphore: self.inner.clone(),
                hold,
                updating: Mutex::new(None),
                lost: LossChannel::default(),
                released: false,
            }
        };
        Ok(holds.into_iter().map(permit).collect())
    }
}

fn one(permits: Vec<ExpirablePermit>) -> Option<ExpirablePermit> {
    permits.into_iter().next()
}

/// A number of permits that Redisson can read.
fn number(n: u32) -> Result<i64> {
    i32::try_from(n)
        .map(i64::from)
        .map_err(|_| Error::Config(format!("{n} permits; {} are possible", i32::MAX)))
}

fn parsed(id: &str) -> Result<PermitId> {
    PermitId::parse(id).ok_or_else(|| {
        Error::Config(format!(
            "{id:?} is no permit's id, which has 32 hexadecimal digits"
        ))
    })
}

impl ExpirablePermit {
    fn session(&self) -> &Arc<Session> {
        self.semaphore.session()
    }

    /// Its id: 32 hexadecimal digits, for [`ExpirableSemaphore::release_id`] in any process and for Java clients.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.hold.owner
    }

    /// The semaphore's name, as given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.semaphore.name
    }

    /// Whether the permit is certainly still ours, as far as this process's clock tells. No I/O.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid(Instant::now()) && !self.session().is_copy()
    }

    /// Until when the permit is certainly ours unless it is renewed. No I/O.
    ///
    /// Counted on the monotonic clock from before the last successful acquire, renewal or change of the lease was sent,
    /// less a hundredth of the lease and 2 ms for clocks that drift apart.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.hold.valid_until()
    }

    /// Where the loss of this permit is told, at the latest when [`valid_until`](Self::valid_until) has come.
    ///
    /// At most one [`Loss`] comes; usable in `crossbeam_channel::select!`. Nothing comes when the permit is given back.
    #[must_use]
    pub fn lost(&self) -> &Receiver<Loss> {
        let hold = [&*self.hold];
        self.lost
            .of(hold.into_iter().filter(|_| !self.session().is_copy()))
    }

    /// Has the permit end `lease` from now, sooner or later than it would have. It is not renewed any more.
    ///
    /// From 10 ms to a hundred years. Blocks for a round trip, at most for the response timeout; longer by as much if
    /// another thread is doing the same.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the permit was not ours any more. [`Error::Redis`] if Redis did not say: it may have been done,
    /// or may yet be, so the permit counts as ours for no longer than the shorter of both leases, and is not renewed;
    /// later updates make it count for no longer than that either.
    /// [`Error::Config`] for a lease that cannot be; [`Error::Closed`].
    pub fn update_lease(&self, lease: Duration) -> Result<()> {
        let doing = "changing the lease of a permit";
        config::check_lease("lease", lease)?;
        let (session, hold) = (self.session(), &self.hold);
        if session.is_copy() {
            return Err(Error::Closed);
        }
        let until = Instant::now() + session.response_timeout;
        let Some(mut doubtful) = self.updating.try_lock_until(until) else {
            let err = socket::timed_out("another thread is changing it, and redis does not answer");
            return Err(Error::redis(doing, err));
        };
        if let Some(reason) = hold.loss() {
            return Err(self.semaphore.lost(reason));
        }
        session.check_open()?;
        let (now, was_valid_until) = (Instant::now(), hold.valid_until());
        hold.ask_for_lease(now, lease);
        session.watchdog.arm(hold, hold.valid_until());
        let Some(id) = PermitId::parse(&hold.owner) else {
            return Err(Error::Config("a permit without an id".into()));
        };
        let lease_ms = lease_ms(lease).to_string();
        let args: [&[u8]; 2] = [&id.0, lease_ms.as_bytes()];
        let protocol = &hold.entry.protocol;
        let mut attempt = || Attempt {
            request: protocol.permits(doing, &script::PERMIT_UPDATE, None, &args),
            undo: None,
        };
        let stop = || session.is_closed();
        let until = now + session.response_timeout;
        let answer = session.connection.call(until, &stop, None, &mut attempt);
        if !matches!(answer, Ok(_) | Err(Fault::Refused(_))) {
            // It may come yet, also behind later ones that ask for more.
            *doubtful = Some(doubtful.map_or(lease, |other| other.min(lease)));
        }
        let answer = answer.map_err(|fault| self.semaphore.error(doing, fault))?;
        let renewed =
            script::renewed(answer.value).map_err(|unexpected| Error::redis(doing, unexpected))?;
        if renewed == Renewed::Yes {
            let certain = doubtful.map_or(lease, |other| other.min(lease));
            hold.lease_was_set(answer.sent_at, certain);
            session.watchdog.arm(hold, hold.valid_until());
        } else {
            // Past its time it may well be gone: nobody took it away.
            let reason = if Instant::now() < was_valid_until {
                LossReason::Forced
            } else {
                LossReason::Expired
            };
            session.lose(hold, reason);
        }
        let Some(reason) = hold.loss() else {
            return Ok(());
        };
        if hold.may_still_be_held() {
            // Outcome lost while Redis was giving it more time.
            session.give_back(hold);
        }
        Err(self.semaphore.lost(reason))
    }

    /// Gives the permit back and waits for Redis to say so.
    ///
    /// Dropping it gives it back too, without waiting for the answer. Blocks for a round trip, at most for the response
    /// timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it was not ours any more; [`Error::Redis`] if Redis did not say: the release is sent again until
    /// it does, and the lease ends the permit at the latest.
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        if self.session().is_copy() {
            return Err(Error::Closed);
        }
        let until = Instant::now() + self.session().response_timeout;
        let in_time = self.hold.valid_until() > Instant::now();
        let call = self.let_go()?;
        let (value, replayed) = match self.session().connection.settled(&call, until) {
            Ok(settled) => settled,
            Err(fault) => return Err(self.semaphore.error(RELEASING, fault)),
        };
        let released =
            script::released(&value).map_err(|unexpected| Error::redis(RELEASING, unexpected))?;
        match released {
            Released::Yes { .. } => Ok(()),
            // An earlier sending has done it.
            _ if replayed && in_time => Ok(()),
            _ if in_time => Err(self.semaphore.lost(LossReason::Forced)),
            _ => Err(self.semaphore.lost(LossReason::Expired)),
        }
    }

    /// Ends it here and now; the release is on its way.
    fn let_go(&self) -> Result<Arc<Call>> {
        let (session, hold) = (self.session(), &self.hold);
        let ended = hold.end();
        session.watchdog.disarm(hold);
        if !ended {
            if hold.may_still_be_held() {
                session.give_back(hold);
            }
            let reason = hold.loss().unwrap_or(LossReason::Expired);
            return Err(self.semaphore.lost(reason));
        }
        let call = Call::deferred(hold.release(false));
        session.connection.submit(&call);
        session.connection.deliver();
        session.watchdog.housekeep_soon();
        Ok(call)
    }
}

impl Drop for ExpirablePermit {
    fn drop(&mut self) {
        if self.session().is_copy() {
            return;
        }
        self.session().permits.remove(&self.hold);
        if !self.released
            && let Err(err) = self.let_go()
        {
            // The holder could have known; whoever waits for a permit is not harmed.
            report!(Debug, "dropping a permit: {err}");
        }
    }
}

impl fmt::Debug for ExpirableSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirableSemaphore")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExpirablePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirablePermit")
            .field("name", &self.name())
            .field("id", &self.id())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// ```
/// fn shared<T: Send + Sync + 'static>() {}
/// shared::<redlatch::ExpirableSemaphore>();
/// shared::<redlatch::ExpirablePermit>();
/// ```
#[cfg(doctest)]
struct SendAndSync;
