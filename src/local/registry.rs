//! The names in use: an entry for each, made when a thread comes, dropped when idle.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use redis::Value;

use crate::error::Result;
use crate::hold::Hold;
use crate::local::lock::{LocalLock, Mode, Wakeups};
use crate::local::place::{FORGET, Place, YieldAfter};
use crate::local::semaphore::LocalSemaphore;
use crate::local::waiter::{MakeError, Waiter, Wakeup};
use crate::net::call::{Call, Deferred, DeferredTerms};
use crate::protocol::idempotency::IdempotencyKeys;
use crate::protocol::kind::{Keyspace, Kind, Protocol};

pub(crate) type EntryLock = LocalLock<Arc<Waiter>, Arc<Hold>, Arc<Call>>;

/// One name in this process: its keys and channels, and its local state behind a mutex.
///
/// With the mutex held a thread may take a waiter's, the watchdog's and the connection's, in memory; it does no I/O.
pub(crate) struct Entry {
    /// As the user gave it; several names joined.
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Box<dyn Protocol>,
    state: Mutex<EntryState>,
    /// None for an unregistered entry.
    registered: Option<Registered>,
}

/// The key of an entry in the registry, and where it is noted that nobody uses it.
struct Registered {
    key: EntryKey,
    free: Arc<Free>,
}

/// Entries that nobody used at some moment, each once. Its mutex is the last one to be taken.
type Free = Mutex<VecDeque<(Instant, EntryKey)>>;

pub(crate) struct EntryState {
    pub(crate) lock: EntryLock,
    /// The queue of a semaphore, which does not use the lock.
    pub(crate) local_semaphore: LocalSemaphore<Arc<Place>, YieldAfter>,
    pub(crate) idempotency_keys: IdempotencyKeys,
    /// How to reach the contenders while they park.
    pub(crate) contenders: Vec<Arc<Waiter>>,
    /// The last look for writers of other processes, while readers of this one come and go.
    probe: Option<WriterProbe>,
    /// Readers of this process that were refused, and have not read since.
    kept_out: Option<KeptOut>,
    /// Writers of other processes that were let go first, and did not come.
    no_shows: Option<NoShows>,
    /// Its entry is among those that may be idle.
    noted: bool,
}

/// The state of an entry, while its mutex is held.
pub(crate) struct EntryGuard<'a> {
    entry: &'a Entry,
    state: MutexGuard<'a, EntryState>,
}

impl Deref for EntryGuard<'_> {
    type Target = EntryState;

    fn deref(&self) -> &EntryState {
        &self.state
    }
}

impl DerefMut for EntryGuard<'_> {
    fn deref_mut(&mut self) -> &mut EntryState {
        &mut self.state
    }
}

impl Drop for EntryGuard<'_> {
    /// Whoever leaves an entry unused notes it, so that nobody has to search for it among those in use.
    fn drop(&mut self) {
        if !self.state.noted
            && self.state.is_free()
            && let Some(registered) = &self.entry.registered
        {
            self.state.noted = true;
            let key = registered.key.clone();
            registered.free.lock().push_back((Instant::now(), key));
        }
    }
}

struct KeptOut {
    since: Instant,
    forgotten_at: Instant,
    /// How many writers waited at the least, all the time; none if one was seen to write.
    writers: u64,
}

struct NoShows {
    count: u64,
    forgotten_at: Instant,
}

struct WriterProbe {
    since: Instant,
    call: Arc<Call>,
}

/// How often at most readers that join a hold of this process look whether others wait to write.
///
/// The answer is read by whoever uses the connection next, or after 100 ms by the watchdog.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// For how many times as long as they were waited for writers that did not come are passed over.
const PASSED_OVER: u32 = 6;

/// When a look of which nothing was heard is given up.
const PROBE_AGAIN: Duration = Duration::from_secs(1);

type EntryWakeups = Wakeups<Arc<Waiter>, Arc<Hold>>;

impl Entry {
    pub(crate) fn lock(&self) -> EntryGuard<'_> {
        EntryGuard {
            entry: self,
            state: self.state.lock(),
        }
    }

    /// The release of one owner's hold, to be sent until `useful_until`.
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
            terms: DeferredTerms {
                name: Arc::clone(&self.name),
                useful_until,
                undo,
                for_good: false,
            },
        }
    }

    /// Redis was unreachable for the whole response timeout: nobody in the queue needs to find that out again.
    pub(crate) fn dismiss(&self, error: &MakeError) {
        let mut state = self.lock();
        let waiters = state.lock.dismiss();
        for waiter in &waiters {
            waiter.store(Wakeup::Failed(Arc::clone(error)));
        }
        drop(state);
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Removes a lost hold, so that others of this process may ask Redis.
    pub(crate) fn lost(&self, hold: &Arc<Hold>) {
        let mut state = self.lock();
        let next = state.lock.lost(hold, Instant::now());
        state.tell(&next);
        drop(state);
        wake(next);
    }
}

impl EntryState {
    /// Stores the wakeups of those whose turn it is; they have to be woken after the mutex was released.
    pub(crate) fn tell(&mut self, calls: &EntryWakeups) {
        for (waiter, hold) in &calls.joined {
            waiter.store(Wakeup::Granted(Arc::clone(hold)));
        }
        if let Some(next) = &calls.contend {
            next.store(Wakeup::Contend(self.lock.start(Instant::now())));
        }
    }

    /// Whether a thread waits here, or asks and was refused.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.contenders.is_empty() || self.lock.waiters().next().is_some()
    }

    pub(crate) fn forget_contender(&mut self, waiter: Option<&Arc<Waiter>>) {
        if let Some(waiter) = waiter {
            self.contenders.retain(|other| !Arc::ptr_eq(other, waiter));
        }
    }

    /// Since when readers of this process have been refused. Asking once, again and again, is a wait like any other, so
    /// a writer is let go first for no longer than by a reader that waits.
    pub(crate) fn kept_out_since(&self, now: Instant) -> Instant {
        match &self.kept_out {
            Some(kept_out) if now < kept_out.forgotten_at => kept_out.since,
            _ => now,
        }
    }

    /// A reader was refused, because that many `writers` wait or because somebody writes; one that comes within
    /// `memory` counts as refused since then.
    pub(crate) fn keep_out(&mut self, now: Instant, memory: Duration, writers: Option<u64>) {
        let before = self.kept_out.as_ref();
        let least = before
            .filter(|kept_out| now < kept_out.forgotten_at)
            .map_or(u64::MAX, |kept_out| kept_out.writers);
        self.kept_out = Some(KeptOut {
            since: self.kept_out_since(now),
            forgotten_at: now + memory,
            writers: least.min(writers.unwrap_or(0)),
        });
    }

    /// A reader was granted the lock. If writers were let go first for as long as they may be, `patience`, they are
    /// ignored from now on: one that was stopped would cost every reader that long.
    pub(crate) fn let_in(&mut self, now: Instant, patience: Duration) {
        if let Some(kept_out) = self.kept_out.take()
            && kept_out.writers > 0
            && now >= kept_out.since + patience
        {
            self.no_shows = Some(NoShows {
                count: kept_out.writers,
                forgotten_at: now + patience * PASSED_OVER,
            });
            // It may be of a time before they came.
            self.probe = None;
        }
    }

    /// How many of the writers that wait in other processes are not let go first.
    pub(crate) fn no_shows(&self, now: Instant) -> u64 {
        self.no_shows
            .as_ref()
            .filter(|no_shows| now < no_shows.forgotten_at)
            .map_or(0, |no_shows| no_shows.count)
    }

    /// That many writers wait. The next to come is not among those that did not.
    pub(crate) fn count_writers(&mut self, writers: u64) {
        if let Some(no_shows) = &mut self.no_shows {
            no_shows.count = no_shows.count.min(writers);
        }
    }

    /// Whether no thread uses it: none holds, waits or asks.
    fn is_free(&self) -> bool {
        self.lock.is_free() && self.local_semaphore.is_free()
    }

    /// Whether dropping it would forget nothing.
    fn is_idle(&self, now: Instant) -> bool {
        let kept_out = self.kept_out.as_ref();
        self.is_free()
            && self.lock.is_idle(now)
            && kept_out.is_none_or(|kept_out| now >= kept_out.forgotten_at)
            && self.no_shows(now) == 0
    }

    /// Closes the shared holds of this process to further threads once a writer of another process is seen to wait.
    ///
    /// Nobody waits for the answer: it is looked at by whoever comes next. `submit` sends the question, in memory only;
    /// `true` if it has to be flushed.
    pub(crate) fn probe_writers(
        &mut self,
        now: Instant,
        submit: impl FnOnce() -> Option<Arc<Call>>,
    ) -> bool {
        if let Some(probe) = &self.probe {
            let age = now.saturating_duration_since(probe.since);
            let outcome = probe.call.outcome();
            if let Some(Ok(reply)) = &outcome
                && let Some(writers) = writers_found(&reply.value)
            {
                if writers > self.no_shows(now) {
                    self.probe = None;
                    self.lock.close_shared();
                    return false;
                }
                self.count_writers(writers);
            }
            match outcome {
                Some(_) if age < PROBE_EVERY => return false,
                None if age < PROBE_AGAIN => return false,
                _ => {}
            }
        }
        self.probe = submit().map(|call| WriterProbe { since: now, call });
        self.probe.is_some()
    }
}

/// How many `PUBSUB NUMSUB` has found.
fn writers_found(reply: &Value) -> Option<u64> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [_, Value::Int(n)] => u64::try_from(*n).ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Wakes the threads that a wakeup was stored for, with no mutex held.
pub(crate) fn wake(calls: EntryWakeups) {
    for (waiter, _) in calls.joined {
        waiter.wake();
    }
    if let Some(waiter) = calls.contend {
        waiter.wake();
    }
}

/// Entries of several names are in one more shard, to be found quickly.
const SHARDS: usize = 32;

/// How long an idle lock is kept: past any gap over which its tenure's age counts.
const LINGER: Duration = Duration::from_millis(20);

/// How many entries one sweep looks at, and how many of them may turn out to be still needed before it ends.
const SWEEP: (usize, usize) = (4096, 512);

/// All entries of a client, by kind and id: the name, or a list of them.
pub(crate) struct Registry {
    prefix: String,
    db: i64,
    tenure: Duration,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    free: Arc<Free>,
}

type EntryKey = (&'static Kind, Arc<str>);

type Shard = HashMap<EntryKey, Arc<Entry>>;

/// What a sweep has come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// How many entries were looked at.
    looks: usize,
    /// How many of them stay for now, although nobody uses them.
    stay: usize,
    /// There are entries to come back for.
    pub(crate) left: bool,
}

impl Registry {
    pub(crate) fn new(prefix: String, db: i64, tenure: Duration) -> Self {
        Self {
            prefix,
            db,
            tenure,
            hasher: RandomState::new(),
            shards: (0..=SHARDS).map(|_| Mutex::default()).collect(),
            free: Arc::default(),
        }
    }

    /// The entry of a name, or a list of names, kept from now on until its lock is idle.
    ///
    /// # Errors
    ///
    /// Those of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn get(&self, kind: &'static Kind, id: &Arc<str>) -> Result<Arc<Entry>> {
        let key = (kind, Arc::clone(id));
        let mut shard = self.shard(&key).lock();
        if let Some(entry) = shard.get(&key) {
            return Ok(Arc::clone(entry));
        }
        let registered = Registered {
            key: key.clone(),
            free: Arc::clone(&self.free),
        };
        let entry = Arc::new(self.make(kind, id, Some(registered))?);
        let now = Instant::now();
        self.free.lock().push_back((now, key.clone()));
        shard.insert(key, Arc::clone(&entry));
        drop(shard);
        // Names that are used once make room for each other.
        self.sweep_few(now, 4, &mut Sweep::default());
        Ok(entry)
    }

    /// The entry of a name, or an unregistered one, for queries that must not create state.
    ///
    /// # Errors
    ///
    /// Those of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn look(&self, kind: &'static Kind, id: &Arc<str>) -> Result<Arc<Entry>> {
        let known = self.known(kind, id);
        known.map_or_else(|| self.apart(kind, id), Ok)
    }

    /// An unregistered entry, for its protocol alone.
    ///
    /// # Errors
    ///
    /// Those of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn apart(&self, kind: &'static Kind, id: &Arc<str>) -> Result<Arc<Entry>> {
        self.make(kind, id, None).map(Arc::new)
    }

    /// The entry of a name, if a thread of this client has come to it lately.
    pub(crate) fn known(&self, kind: &'static Kind, id: &Arc<str>) -> Option<Arc<Entry>> {
        let key = (kind, Arc::clone(id));
        self.shard(&key).lock().get(&key).cloned()
    }

    fn make(
        &self,
        kind: &'static Kind,
        id: &Arc<str>,
        registered: Option<Registered>,
    ) -> Result<Entry> {
        let keyspace = Keyspace {
            prefix: &self.prefix,
            db: self.db,
        };
        Ok(Entry {
            name: kind.shown(id),
            protocol: (kind.protocol)(keyspace, id)?,
            state: Mutex::new(EntryState {
                lock: LocalLock::new(kind.order, self.tenure),
                local_semaphore: LocalSemaphore::new(self.tenure),
                idempotency_keys: IdempotencyKeys::new(FORGET),
                contenders: Vec::new(),
                probe: None,
                kept_out: None,
                no_shows: None,
                noted: registered.is_some(),
            }),
            registered,
        })
    }

    fn shard(&self, key: &EntryKey) -> &Mutex<Shard> {
        let place = if key.0.is_set() {
            SHARDS
        } else {
            usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0)
        };
        &self.shards[place]
    }

    /// The entries of several names each, of which there are few.
    pub(crate) fn sets(&self) -> Vec<Arc<Entry>> {
        self.shards[SHARDS].lock().values().cloned().collect()
    }

    /// Drops entries that have been idle for a while. The work is bounded, and does not grow with the entries in use.
    pub(crate) fn sweep(&self, now: Instant) -> Sweep {
        let mut sweep = Sweep::default();
        while sweep.looks < SWEEP.0 && sweep.stay < SWEEP.1 {
            let looks = sweep.looks;
            self.sweep_few(now, 64, &mut sweep);
            if sweep.looks == looks {
                break;
            }
        }
        let mut free = self.free.lock();
        sweep.left = !free.is_empty();
        if free.is_empty() && free.capacity() > 64 {
            *free = VecDeque::new();
        }
        sweep
    }

    /// Looks at up to `most` of the entries that have been noted for longest.
    fn sweep_few(&self, now: Instant, most: usize, sweep: &mut Sweep) {
        let is_due = |since: Instant| now.saturating_duration_since(since) >= LINGER;
        let mut free = self.free.lock();
        let due = free.iter().take(most);
        let due = due.take_while(|(since, _)| is_due(*since)).count();
        if due == 0 {
            return;
        }
        let due: Vec<_> = free.drain(..due).collect();
        drop(free);
        sweep.looks += due.len();
        for (_, key) in due {
            if self.drop_if_idle(&key, now) {
                sweep.stay += 1;
                self.free.lock().push_back((now, key));
            }
        }
    }

    /// Looks at an entry that is noted; `true` if it has to be looked at again.
    fn drop_if_idle(&self, key: &EntryKey, now: Instant) -> bool {
        let mut shard = self.shard(key).lock();
        let Some(entry) = shard.get(key) else {
            return false;
        };
        // Only the map knows it, and nobody can come to know it while this shard is locked.
        let unused = Arc::strong_count(entry) == 1;
        let mut state = entry.state.lock();
        if !state.is_free() {
            state.noted = false;
            return false;
        }
        if !unused || !state.is_idle(now) {
            return true;
        }
        drop(state);
        let entry = shard.remove(key);
        if shard.is_empty() && shard.capacity() > 64 {
            *shard = HashMap::new();
        }
        drop(shard);
        drop(entry);
        false
    }

    /// All entries of a kind.
    pub(crate) fn of(&self, kind: &'static Kind) -> Vec<Arc<Entry>> {
        let mut registry = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let its = shard.values();
            registry.extend(its.filter(|entry| entry.protocol.kind() == kind).cloned());
        }
        registry
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Wakes every waiting thread, to look at the client's state.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            let registry: Vec<_> = shard.lock().values().cloned().collect();
            for entry in registry {
                let state = entry.lock();
                let waiters: Vec<_> = state
                    .lock
                    .waiters()
                    .chain(&state.contenders)
                    .cloned()
                    .collect();
                drop(state);
                for waiter in waiters {
                    waiter.wake();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::local::lock::{Entered, LeasePolicy};
    use crate::protocol::reentrant;

    const LATER: Duration = Duration::from_millis(100);

    fn registry() -> Registry {
        Registry::new(String::new(), 0, Duration::from_millis(5))
    }

    fn names(registry: &Registry, n: usize) -> Vec<Arc<Entry>> {
        let name = |n| Arc::from(format!("name:{n}"));
        let get = |n| registry.get(&reentrant::KIND, &name(n)).expect("a name");
        (0..n).map(get).collect()
    }

    fn enter(entry: &Entry) {
        let mode = Mode::Exclusive;
        let mut state = entry.lock();
        let lease = LeasePolicy::Fixed(LATER);
        let entered = state
            .lock
            .enter(1, mode, lease, Instant::now(), None, false);
        assert!(matches!(entered, Entered::Contend { .. }));
    }

    fn leave(entry: &Entry) {
        let mut state = entry.lock();
        let next = state
            .lock
            .withdraw_contender(Mode::Exclusive, Instant::now());
        assert!(next.contend.is_none());
    }

    /// Sweeps until there is nothing left to come back for, but no more than `most` times.
    fn sweeps(registry: &Registry, most: usize) -> usize {
        let mut now = Instant::now();
        let sweep = |n: &usize| {
            now += LATER;
            assert!(*n < most, "{most} sweeps are not enough");
            registry.sweep(now).left
        };
        (0..).take_while(sweep).count() + 1
    }

    #[test]
    fn rooms_in_use_are_not_looked_at_again() {
        let registry = registry();
        let mut known = names(&registry, 1_000);
        known.iter().for_each(|entry| enter(entry));
        let now = Instant::now();
        // Once, since nobody was there when they were made.
        let sweep = registry.sweep(now + LATER);
        assert_eq!((sweep.looks, sweep.left), (1_000, false));
        assert_eq!(registry.sweep(now + 2 * LATER), Sweep::default());
        // One of them becomes free, and that is the one.
        leave(&known.pop().expect("a thousand"));
        let sweep = registry.sweep(now + 3 * LATER);
        assert_eq!((sweep.looks, sweep.stay, sweep.left), (1, 0, false));
        assert_eq!(registry.len(), 999);
        known.iter().for_each(|entry| leave(entry));
        drop(known);
        assert_eq!(sweeps(&registry, 2), 1);
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn a_room_that_threads_come_to_and_leave_is_noted_once() {
        let registry = registry();
        let entry = names(&registry, 1).remove(0);
        for _ in 0..100 {
            enter(&entry);
            leave(&entry);
        }
        assert_eq!(registry.free.lock().len(), 1);
        enter(&entry);
        assert_eq!(sweeps(&registry, 1), 1);
        assert_eq!(registry.free.lock().len(), 0);
        leave(&entry);
        for _ in 0..100 {
            enter(&entry);
            leave(&entry);
        }
        assert_eq!(registry.free.lock().len(), 1);
        drop(entry);
        assert_eq!(sweeps(&registry, 1), 1);
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn rooms_that_threads_are_about_to_enter_stay_and_cost_little() {
        let registry = registry();
        let known = names(&registry, 5_000);
        let mut now = Instant::now();
        for _ in 0..20 {
            now += LATER;
            let sweep = registry.sweep(now);
            assert!(sweep.left && sweep.looks < 2 * SWEEP.1, "{sweep:?}");
        }
        assert_eq!(registry.len(), 5_000);
        drop(known);
        assert!(sweeps(&registry, 30) >= 2, "bounded work in one sweep");
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn a_gate_that_nobody_else_knows_is_not_noted() {
        let registry = registry();
        let entry = registry
            .apart(&reentrant::KIND, &"name".into())
            .expect("a name");
        enter(&entry);
        leave(&entry);
        assert_eq!(registry.sweep(Instant::now() + LATER), Sweep::default());
    }
}
