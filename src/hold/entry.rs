//! What a client keeps for a name while threads use it: the local lock, and what only some kinds need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::Result;
use crate::local::lock::{Holding, LocalLock, Mode, Start, Wakeups};
use crate::local::preference::{Follows, Found, Reading, WriterPreference};
use crate::local::queued_thread::{FORGET, QueuedThread, YieldAfter};
use crate::local::registry::{self, Key, State, Sweep};
use crate::local::semaphore::LocalSemaphore;
use crate::local::waiter::{self, MakeError};
use crate::net::call::{Call, Deferred, DeferredInfo};
use crate::net::request::Request;
use crate::protocol::idempotency::IdempotencyKeys;
use crate::protocol::kind::{Keyspace, Kind, Protocol};
use crate::protocol::owner::Owners;

/// What a client keeps for one name. A thread that holds its mutex may take the mutex of a waiter, of the watchdog or of
/// the connection, but does no I/O.
///
/// `H` is what holds the local lock: a [`Hold`](crate::hold::Hold). A type parameter, since a hold refers to its entry.
pub(crate) type Entry<H> = registry::Entry<EntryKey, Named, EntryState<H>>;

/// Its state, while a thread holds its mutex.
pub(crate) type LockedEntry<'a, H> = registry::EntryGuard<'a, EntryKey, EntryState<H>>;

/// A thread in the queue of the local lock.
pub(crate) type Waiter<H> = waiter::Waiter<Wakeup<H>>;

/// Why a thread in the queue is woken.
#[derive(Clone)]
pub(crate) enum Wakeup<H> {
    /// The lock is yours.
    Granted(H),
    /// You are the contender: ask Redis.
    Contend(Start<Arc<Call>>),
    /// Redis is unreachable.
    Failed(MakeError),
}

/// A kind, and an id of that kind.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct EntryKey {
    kind: &'static Kind,
    id: Arc<str>,
}

impl Key for EntryKey {
    /// A thread that is about to wait goes through all sets: it may hold the name as part of one.
    fn is_separate(&self) -> bool {
        self.kind.is_set()
    }
}

/// The part of an entry that never changes.
pub(crate) struct Named {
    pub(crate) protocol: Box<dyn Protocol>,
}

pub(crate) struct EntryState<H> {
    pub(crate) lock: LocalLock<Arc<Waiter<H>>, H, Arc<Call>, Extras<H>>,
}

/// What an uncontended lock does without; made when it is first needed.
pub(crate) struct Extras<H> {
    /// The waiters of the contenders that are parked.
    contenders: Vec<Arc<Waiter<H>>>,
    /// What only semaphores need.
    semaphore: Option<Box<SemaphoreState<H>>>,
    /// What only read-write locks need.
    preference: Option<Box<WriterPreference<Arc<Call>>>>,
}

impl<H> Default for Extras<H> {
    fn default() -> Self {
        Self {
            contenders: Vec::new(),
            semaphore: None,
            preference: None,
        }
    }
}

struct SemaphoreState<H> {
    local: EntrySemaphore<H>,
    keys: IdempotencyKeys,
}

/// Queues a question, if it can be asked now; it is written later.
pub(crate) type Submit<'a> = &'a mut dyn FnMut() -> Option<Arc<Call>>;

type EntrySemaphore<H> = LocalSemaphore<Arc<QueuedThread<Wakeup<H>>>, YieldAfter>;

type EntryWakeups<H> = Wakeups<Arc<Waiter<H>>, H>;

impl<H: Holding> Entry<H> {
    /// The name as the user gave it; several names joined.
    pub(crate) fn name(&self) -> &Arc<str> {
        self.protocol.shown().unwrap_or(&self.key().id)
    }

    /// The release of one owner's hold, which is sent again until `useful_until`.
    pub(crate) fn release(
        &self,
        mode: Mode,
        owner: &str,
        useful_until: Instant,
        undo: bool,
    ) -> Deferred {
        Deferred {
            request: if undo {
                self.protocol.undo(mode, owner)
            } else {
                self.protocol.release(mode, owner)
            },
            info: DeferredInfo {
                name: Arc::clone(self.name()),
                useful_until,
                undo,
                for_good: false,
            },
        }
    }

    /// A request that gives up places in the queue that Redis keeps.
    pub(crate) fn leaving(&self, request: Request, useful_until: Instant) -> Deferred {
        Deferred {
            request,
            info: DeferredInfo {
                name: Arc::clone(self.name()),
                useful_until,
                undo: true,
                for_good: false,
            },
        }
    }

    /// Fails all threads in the queue: Redis was unreachable for the whole response timeout, and each of them would only
    /// find that out again.
    pub(crate) fn dismiss(&self, error: &MakeError) {
        let mut state = self.lock();
        let waiters = state.lock.dismiss();
        for waiter in &waiters {
            waiter.store(Wakeup::Failed(Arc::clone(error)));
        }
        drop(state);
        for waiter in waiters {
            waiter.notify();
        }
    }
}

impl<H: Holding> EntryState<H> {
    fn new(kind: &Kind, tenure: Duration) -> Self {
        Self {
            lock: LocalLock::with_more(kind.order, tenure),
        }
    }

    fn extras(&mut self) -> &mut Extras<H> {
        self.lock.more_mut()
    }

    fn semaphore(&mut self) -> &mut SemaphoreState<H> {
        let tenure = self.lock.tenure();
        let semaphore = &mut self.extras().semaphore;
        semaphore.get_or_insert_with(|| {
            Box::new(SemaphoreState {
                local: LocalSemaphore::new(tenure),
                keys: IdempotencyKeys::new(FORGET),
            })
        })
    }

    fn preference(&self) -> Option<&WriterPreference<Arc<Call>>> {
        self.lock.more()?.preference.as_deref()
    }

    fn preference_mut(&mut self) -> Option<&mut WriterPreference<Arc<Call>>> {
        self.lock.more_if_any()?.preference.as_deref_mut()
    }

    pub(crate) fn local_semaphore(&mut self) -> &mut EntrySemaphore<H> {
        &mut self.semaphore().local
    }

    /// The idempotency keys of a semaphore's requests.
    pub(crate) fn idempotency_keys(&mut self) -> &mut IdempotencyKeys {
        &mut self.semaphore().keys
    }

    /// Stores a wakeup for each thread whose turn it is. [`wake`] has to follow once the mutex is released.
    ///
    /// Also called after every grant, when no thread need be woken.
    pub(crate) fn store_wakeups(&mut self, wakeups: &EntryWakeups<H>) {
        if self.lock.is_written()
            && let Some(preference) = self.preference_mut()
        {
            preference.wrote();
        }
        for (waiter, hold) in &wakeups.joined {
            waiter.store(Wakeup::Granted(hold.clone()));
        }
        if let Some(next) = &wakeups.contend {
            next.store(Wakeup::Contend(self.lock.start(Instant::now())));
        }
    }

    /// The last release of this process, if this process listened to its channel.
    pub(crate) fn last_release_heard(&self) -> Option<Arc<Call>> {
        let last = self.lock.last_release();
        last.filter(|last| last.heard_by_us().is_some()).cloned()
    }

    /// Whether a thread waits here, or asks and was refused.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiters().next().is_some()
    }

    /// All that park: those in the queue, and contenders.
    fn waiters(&self) -> impl Iterator<Item = &Arc<Waiter<H>>> {
        let extras = self.lock.more().into_iter();
        let contenders = extras.flat_map(|extras| &extras.contenders);
        self.lock.waiters().chain(contenders)
    }

    pub(crate) fn add_contender(&mut self, waiter: &Arc<Waiter<H>>) {
        self.extras().contenders.push(Arc::clone(waiter));
    }

    pub(crate) fn forget_contender(&mut self, waiter: Option<&Arc<Waiter<H>>>) {
        if let (Some(waiter), Some(extras)) = (waiter, self.lock.more_if_any()) {
            extras
                .contenders
                .retain(|other| !Arc::ptr_eq(other, waiter));
        }
    }

    /// See [`WriterPreference::kept_out_since`].
    pub(crate) fn kept_out_since(&self, now: Instant) -> Instant {
        self.preference()
            .map_or(now, |preference| preference.kept_out_since(now))
    }

    /// See [`WriterPreference::keep_out`].
    pub(crate) fn keep_out(&mut self, now: Instant, memory: Duration, writers: Option<u64>) {
        let preference = self.extras().preference.get_or_insert_default();
        preference.keep_out(now, memory, writers);
    }

    /// See [`WriterPreference::let_in`].
    pub(crate) fn let_in(&mut self, now: Instant, max_wait: Duration) {
        if let Some(preference) = self.preference_mut() {
            preference.let_in(now, max_wait);
        }
    }

    /// How many waiting writers a reader that yields ignores; `None` if it ignores all of them for now.
    pub(crate) fn ignored_writers(&self, now: Instant) -> Option<u64> {
        match self.preference() {
            Some(preference) if preference.passes(now) => None,
            Some(preference) => Some(preference.no_shows(now)),
            None => Some(0),
        }
    }

    /// See [`WriterPreference::passes`].
    pub(crate) fn passes_writers(&self, now: Instant) -> bool {
        self.preference()
            .is_some_and(|preference| preference.passes(now))
    }

    /// Whether a reader of this process need not wait for its writers: not for one that has the lock.
    pub(crate) fn passes_waiting_writers(&self, now: Instant) -> bool {
        self.passes_writers(now) && !self.lock.is_written()
    }

    /// See [`WriterPreference::look`].
    pub(crate) fn look_for_passers(&mut self, now: Instant, submit: Submit<'_>) {
        let preference = self.extras().preference.get_or_insert_default();
        preference.look(now, |call| readers_found(call), submit);
    }

    /// See [`WriterPreference::count_writers`].
    pub(crate) fn count_writers(&mut self, writers: u64) {
        if let Some(preference) = self.preference_mut() {
            preference.count_writers(writers);
        }
    }

    /// Reads the last probe, and sends another if it is time. Once a writer of another process waits, no more threads may
    /// join the shared holds of this process.
    pub(crate) fn probe_writers(&mut self, now: Instant, submit: Submit<'_>) {
        let preference = self.extras().preference.get_or_insert_default();
        let follows = preference.probe(now, |call| writers_found(call), submit);
        if follows == Follows::Close {
            self.lock.close_shared();
        }
    }
}

impl<H: Holding> State for EntryState<H> {
    /// What makes an owner's id of the number of a hold.
    type Common = Arc<Owners>;

    fn is_free(&self) -> bool {
        let extras = self.lock.more();
        let semaphore = extras.and_then(|extras| extras.semaphore.as_ref());
        self.lock.is_free() && semaphore.is_none_or(|semaphore| semaphore.local.is_free())
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.is_free()
            && self.lock.is_idle(now)
            && self
                .preference()
                .is_none_or(|preference| preference.is_idle(now))
    }
}

/// How many subscribers `PUBSUB NUMSUB` has counted.
fn writers_found(probe: &Call) -> Found {
    let Some(outcome) = probe.outcome() else {
        return Found::NothingYet;
    };
    let writers = match outcome {
        Ok(reply) => match reply.value {
            Value::Array(parts) => match parts.as_slice() {
                [_, Value::Int(n)] => u64::try_from(*n).ok(),
                _ => None,
            },
            _ => None,
        },
        Err(_) => None,
    };
    writers.map_or(Found::Failed, Found::Writers)
}

/// Who reads, by the fields that `HSCAN` has found.
fn readers_found(look: &Call) -> Reading {
    let Some(outcome) = look.outcome() else {
        return Reading::NothingYet;
    };
    let Ok(reply) = outcome else {
        return Reading::Unknown;
    };
    match redis::from_redis_value::<(String, Vec<(String, String)>)>(reply.value) {
        Ok((cursor, fields)) if cursor == "0" => {
            let is_mode = |(field, _): &&(String, String)| field == "mode";
            if fields
                .iter()
                .find(is_mode)
                .is_some_and(|(_, mode)| mode != "read")
            {
                return Reading::Unknown;
            }
            if fields.is_empty() {
                // A writer could have had it.
                return Reading::Unknown;
            }
            let readers = fields.into_iter().map(|(field, _)| field);
            Reading::These(readers.filter(|field| field != "mode").collect())
        }
        _ => Reading::Unknown,
    }
}

/// Wakes the threads for which a wakeup was stored. Call it with no mutex held.
pub(crate) fn wake<H>(wakeups: EntryWakeups<H>) {
    for (waiter, _) in wakeups.joined {
        waiter.notify();
    }
    if let Some(waiter) = wakeups.contend {
        waiter.notify();
    }
}

/// All entries of a client, by kind and id: the name, or a list of them.
pub(crate) struct Registry<H: Holding> {
    prefix: String,
    db: i64,
    is_cluster: bool,
    tenure: Duration,
    entries: registry::Registry<EntryKey, Named, EntryState<H>>,
}

impl<H: Holding> Registry<H> {
    pub(crate) fn new(
        prefix: String,
        db: i64,
        is_cluster: bool,
        tenure: Duration,
        owners: &Arc<Owners>,
    ) -> Self {
        Self {
            prefix,
            db,
            is_cluster,
            tenure,
            entries: registry::Registry::new(Arc::clone(owners)),
        }
    }

    /// The entry of a name, or a list of names, kept from now on until it is idle.
    ///
    /// # Errors
    ///
    /// Those of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn get(&self, kind: &'static Kind, id: &Arc<str>) -> Result<Arc<Entry<H>>> {
        let make = || self.make(kind, id);
        self.entries.get(key(kind, id), make)
    }

    /// The entry of a name; an unregistered one for a query, which must not create state.
    ///
    /// # Errors
    ///
    /// Those of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn look(&self, kind: &'static Kind, id: &Arc<str>) -> Result<Arc<Entry<H>>> {
        let known = self.known(kind, id);
        known.map_or_else(|| self.unregistered(kind, id), Ok)
    }

    /// An unregistered entry of a name, for its protocol alone.
    ///
    /// # Errors
    ///
    /// Those of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn unregistered(&self, kind: &'static Kind, id: &Arc<str>) -> Result<Arc<Entry<H>>> {
        let (named, state) = self.make(kind, id)?;
        Ok(self.entries.unregistered(key(kind, id), named, state))
    }

    /// The entry of a name, if a thread of this client has used it lately.
    pub(crate) fn known(&self, kind: &'static Kind, id: &Arc<str>) -> Option<Arc<Entry<H>>> {
        self.entries.known(&key(kind, id))
    }

    fn make(&self, kind: &'static Kind, id: &Arc<str>) -> Result<(Named, EntryState<H>)> {
        let keyspace = Keyspace {
            prefix: &self.prefix,
            db: self.db,
            is_cluster: self.is_cluster,
        };
        let named = Named {
            protocol: (kind.protocol)(keyspace, id)?,
        };
        Ok((named, EntryState::new(kind, self.tenure)))
    }

    /// The entries of sets, of which there are few.
    pub(crate) fn sets(&self) -> Vec<Arc<Entry<H>>> {
        self.entries.separate()
    }

    /// Drops entries that have been idle for a while. The work is bounded, and independent of how many are in use.
    pub(crate) fn sweep(&self, now: Instant) -> Sweep {
        self.entries.sweep(now)
    }

    /// All entries of a kind.
    pub(crate) fn of(&self, kind: &'static Kind) -> Vec<Arc<Entry<H>>> {
        let mut entries = self.entries.all();
        entries.retain(|entry| entry.protocol.kind() == kind);
        entries
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Wakes all threads that wait for any lock, so that they see that the client is closed.
    pub(crate) fn wake_all(&self) {
        for entry in self.entries.all() {
            let state = entry.lock();
            let waiters: Vec<_> = state.waiters().cloned().collect();
            drop(state);
            for waiter in waiters {
                waiter.wake_to_check();
            }
        }
    }
}

fn key(kind: &'static Kind, id: &Arc<str>) -> EntryKey {
    let id = Arc::clone(id);
    EntryKey { kind, id }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::hold::Entry;
    use crate::local::lock::{Entered, LeasePolicy, Validity};
    use crate::local::preference::Prefer;
    use crate::protocol::rw;

    #[derive(Clone, PartialEq)]
    struct Held(Instant);

    impl Holding for Held {
        fn validity(&self) -> Validity {
            Validity {
                until: self.0.into(),
                lease: Duration::from_secs(30),
                complete: true,
            }
        }
    }

    #[test]
    fn once_a_thread_of_this_process_writes_what_was_seen_of_readers_counts_no_longer() {
        let now = Instant::now();
        let mut state = EntryState::<Held>::new(&rw::KIND, Duration::from_secs(1));
        let looks = |state: &mut EntryState<Held>| {
            let mut sent = false;
            state.look_for_passers(now, &mut || {
                sent = true;
                let request = Request::command("looking", &["PING"]);
                Some(Call::question(request))
            });
            sent
        };
        assert!(looks(&mut state) && !looks(&mut state), "one is on its way");
        let lease = LeasePolicy::Renewed { max_hold: None };
        let entered = state
            .lock
            .enter(1, Mode::Exclusive, lease, now, None, Prefer::Writers);
        assert!(matches!(entered, Entered::Contend { .. }));
        let next = state
            .lock
            .granted(1, Mode::Exclusive, Held(now), lease, now);
        state.store_wakeups(&next);
        assert!(looks(&mut state), "another begins");
    }

    #[test]
    fn an_entry_is_small() {
        // There is one for each lock that is held.
        assert!(size_of::<Entry>() <= 200, "{}", size_of::<Entry>());
    }
}
