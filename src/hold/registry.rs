//! The entries of a client, one for each name: made when a thread needs one, dropped when idle.
//!
//! The thread that leaves an entry free adds it to a list, and a sweep checks the entries that were added first. So no
//! search among the entries in use is needed.

use std::borrow::Borrow;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::local::cohort::GAP;

/// How many shards there are.
const SHARDS: usize = 32;

/// How many entries a sweep checks at most.
const SWEEP: usize = 1024;

/// The mutable part of an entry.
pub(crate) trait EntryContent {
    /// Data that all entries of a registry share.
    type Common;

    /// Whether no thread holds, waits or asks.
    fn is_free(&self) -> bool;

    /// Whether the entry can be dropped without forgetting anything.
    fn is_idle(&self, now: Instant) -> bool;
}

/// The entry of one key: a part that never changes, and the state, under a mutex.
pub(crate) struct Entry<K: Clone + Eq + Hash, T, S: EntryContent> {
    key: K,
    fixed: T,
    state: Mutex<Listed<S>>,
    all: Arc<Common<K, S::Common>>,
}

struct Listed<S> {
    state: S,
    /// The entry is on the list of free ones, or outside the registry: rule 3 at [`Registry`].
    is_listed: bool,
}

/// The shared part of all entries of one registry.
struct Common<K, C> {
    /// Free entries, each once, and when they became free.
    free: Mutex<VecDeque<(Instant, K)>>,
    more: C,
}

/// The state of an entry, while its mutex is held.
pub(crate) struct EntryGuard<'a, K: Clone + Eq + Hash, S: EntryContent> {
    key: &'a K,
    all: &'a Common<K, S::Common>,
    state: MutexGuard<'a, Listed<S>>,
}

impl<K: Clone + Eq + Hash, T, S: EntryContent> Entry<K, T, S> {
    pub(crate) fn key(&self) -> &K {
        &self.key
    }

    pub(crate) fn common(&self) -> &S::Common {
        &self.all.more
    }

    pub(crate) fn lock(&self) -> EntryGuard<'_, K, S> {
        EntryGuard {
            key: &self.key,
            all: &self.all,
            state: self.state.lock(),
        }
    }
}

impl<K: Clone + Eq + Hash, T, S: EntryContent> Deref for Entry<K, T, S> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fixed
    }
}

impl<K: Clone + Eq + Hash, S: EntryContent> Deref for EntryGuard<'_, K, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state.state
    }
}

impl<K: Clone + Eq + Hash, S: EntryContent> DerefMut for EntryGuard<'_, K, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state.state
    }
}

impl<K: Clone + Eq + Hash, S: EntryContent> Drop for EntryGuard<'_, K, S> {
    fn drop(&mut self) {
        // The entry's mutex is still held, so no other thread lists the entry as well, and none makes it busy before it
        // is listed.
        if !self.state.is_listed && self.state.state.is_free() {
            self.state.is_listed = true;
            let key = self.key.clone();
            self.all.free.lock().push_back((Instant::now(), key));
        }
    }
}

/// All entries, by their keys.
///
/// 1. Mutexes are taken in this order: a shard, an entry, the list of free entries.
/// 2. An entry is dropped only while its shard is locked and only the shard refers to it. So two threads that use one
///    key at the same time have the same entry.
/// 3. A free entry of the registry is on the list, or in the hands of a sweep that puts it back or drops it.
///    `is_listed` says so, and is cleared by a sweep that finds the entry in use: then the thread that leaves it free
///    lists it again.
pub(crate) struct Registry<K: Clone + Eq + Hash, T, S: EntryContent> {
    shards: Vec<Mutex<Shard<K, T, S>>>,
    hashes: RandomState,
    all: Arc<Common<K, S::Common>>,
}

type Shard<K, T, S> = HashSet<ByKey<K, T, S>>;

/// An entry in a set, found by its key. A map would keep every key twice.
struct ByKey<K: Clone + Eq + Hash, T, S: EntryContent>(Arc<Entry<K, T, S>>);

impl<K: Clone + Eq + Hash, T, S: EntryContent> ByKey<K, T, S> {
    fn entry(&self) -> Arc<Entry<K, T, S>> {
        Arc::clone(&self.0)
    }
}

impl<K: Clone + Eq + Hash, T, S: EntryContent> Borrow<K> for ByKey<K, T, S> {
    fn borrow(&self) -> &K {
        &self.0.key
    }
}

impl<K: Clone + Eq + Hash, T, S: EntryContent> Hash for ByKey<K, T, S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl<K: Clone + Eq + Hash, T, S: EntryContent> PartialEq for ByKey<K, T, S> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl<K: Clone + Eq + Hash, T, S: EntryContent> Eq for ByKey<K, T, S> {}

impl<K: Clone + Eq + Hash, T, S: EntryContent> Registry<K, T, S> {
    pub(crate) fn new(common: S::Common) -> Self {
        let all = Common {
            free: Mutex::default(),
            more: common,
        };
        let hashes = RandomState::new();
        let shard = || Mutex::new(HashSet::with_hasher(hashes.clone()));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hashes,
            all: Arc::new(all),
        }
    }

    /// An entry outside the registry, for a query that must not create state.
    pub(crate) fn unregistered(&self, key: K, fixed: T, state: S) -> Arc<Entry<K, T, S>> {
        let is_listed = true;
        Arc::new(Entry {
            key,
            fixed,
            state: Mutex::new(Listed { state, is_listed }),
            all: Arc::clone(&self.all),
        })
    }

    /// The entry with this key, made if there is none, and kept from now on until it is idle.
    pub(crate) fn get<E>(
        &self,
        key: &K,
        make: impl FnOnce() -> Result<(T, S), E>,
    ) -> Result<Arc<Entry<K, T, S>>, E> {
        let mut shard = self.shard(key).lock();
        if let Some(known) = shard.get(key) {
            return Ok(known.entry());
        }
        // The shard stays locked, so that of two threads that come for a new key only one makes its entry.
        let (fixed, state) = make()?;
        let now = Instant::now();
        // Listed at once: if the thread never enters the entry, nobody would leave it free later.
        self.all.free.lock().push_back((now, key.clone()));
        let entry = self.unregistered(key.clone(), fixed, state);
        shard.insert(ByKey(Arc::clone(&entry)));
        drop(shard);
        // With each new name a few free entries are checked, so that names that are used once do not pile up between
        // two sweeps.
        self.sweep_up_to(4, now);
        Ok(entry)
    }

    /// The entry with this key, if there is one.
    pub(crate) fn known(&self, key: &K) -> Option<Arc<Entry<K, T, S>>> {
        let shard = self.shard(key).lock();
        shard.get(key).map(ByKey::entry)
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, T, S>> {
        // A set places its keys by other bits of the hash. With the same bits, the keys of one shard would collide.
        let bits = self.hashes.hash_one(key).to_le_bytes()[5];
        &self.shards[usize::from(bits) % SHARDS]
    }

    /// Drops entries that have been idle for a while; `true` if there may be more to drop. The work is bounded, however
    /// many entries are in use.
    pub(crate) fn sweep(&self, now: Instant) -> bool {
        self.sweep_up_to(SWEEP, now);
        let mut free = self.all.free.lock();
        if free.is_empty() && free.capacity() > 64 {
            *free = VecDeque::new();
        }
        !free.is_empty()
    }

    /// Checks up to `most` entries, starting with those that became free first.
    fn sweep_up_to(&self, most: usize, now: Instant) {
        // After this time a tenure of the default length has ended; an entry with a longer tenure is kept by `is_idle`.
        let is_due = |since: Instant| now.saturating_duration_since(since) >= 4 * GAP;
        let mut free = self.all.free.lock();
        let due = free.iter().take(most);
        let due = due.take_while(|(since, _)| is_due(*since)).count();
        let due: Vec<_> = free.drain(..due).collect();
        // Rule 1: a shard must not be locked while the list is. The sweep alone has these keys now.
        drop(free);
        for (_, key) in due {
            if self.drop_if_idle(&key, now) {
                self.all.free.lock().push_back((now, key));
            }
        }
    }

    /// Drops a free entry if it is idle; `true` if the entry has to be checked again.
    fn drop_if_idle(&self, key: &K, now: Instant) -> bool {
        let mut shard = self.shard(key).lock();
        let Some(ByKey(entry)) = shard.get(key) else {
            return false;
        };
        // If only the set refers to the entry, no other thread can get it while the shard is locked: rule 2. Otherwise
        // a thread may be about to enter it, and the entry is checked again later.
        let unused = Arc::strong_count(entry) == 1;
        let mut state = entry.state.lock();
        if !state.state.is_free() {
            // A thread has begun to use the entry since it was listed, and lists it again when it leaves it free: rule
            // 3.
            state.is_listed = false;
            return false;
        }
        if !unused || !state.state.is_idle(now) {
            return true;
        }
        drop(state);
        let entry = shard.take(key);
        if shard.is_empty() && shard.capacity() > 64 {
            *shard = HashSet::with_hasher(self.hashes.clone());
        }
        // Freed once the shard is unlocked, so that other names of the shard need not wait for that.
        drop(shard);
        drop(entry);
        false
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry<K, T, S>>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(ByKey::entry));
        }
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    const LATER: Duration = Duration::from_millis(100);

    /// How many threads are here.
    impl EntryContent for usize {
        type Common = ();

        fn is_free(&self) -> bool {
            *self == 0
        }

        fn is_idle(&self, _now: Instant) -> bool {
            self.is_free()
        }
    }

    type TestEntry = Entry<usize, (), usize>;
    type TestRegistry = Registry<usize, (), usize>;

    fn names(registry: &TestRegistry, n: usize) -> Vec<Arc<TestEntry>> {
        let make = || Ok::<_, ()>(((), 0));
        let get = |key| registry.get(&key, make).expect("made");
        (0..n).map(get).collect()
    }

    fn enter(entry: &TestEntry) {
        *entry.lock() += 1;
    }

    fn leave(entry: &TestEntry) {
        *entry.lock() -= 1;
    }

    /// Sweeps until there is nothing left to come back for, but no more than `most` times.
    fn sweeps(registry: &TestRegistry, most: usize) -> usize {
        let mut now = Instant::now();
        let sweep = |n: &usize| {
            now += LATER;
            assert!(*n < most, "{most} sweeps are not enough");
            registry.sweep(now)
        };
        (0..).take_while(sweep).count() + 1
    }

    #[test]
    fn entries_in_use_are_not_looked_at_again() {
        let registry = TestRegistry::new(());
        let mut known = names(&registry, 1_000);
        known.iter().for_each(|entry| enter(entry));
        let now = Instant::now();
        // Every entry is checked once, since it was listed when it was made.
        assert!(!registry.sweep(now + LATER));
        // Of the thousand entries one becomes free, and only that one is listed.
        leave(&known.pop().expect("a thousand"));
        assert_eq!(registry.all.free.lock().len(), 1);
        assert!(!registry.sweep(now + 3 * LATER));
        assert_eq!(registry.len(), 999);
        known.iter().for_each(|entry| leave(entry));
        drop(known);
        assert_eq!(sweeps(&registry, 2), 1);
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn an_entry_that_threads_come_to_and_leave_is_listed_once() {
        let registry = TestRegistry::new(());
        let entry = names(&registry, 1).remove(0);
        for _ in 0..100 {
            enter(&entry);
            leave(&entry);
        }
        assert_eq!(registry.all.free.lock().len(), 1);
        enter(&entry);
        assert_eq!(sweeps(&registry, 1), 1);
        assert_eq!(registry.all.free.lock().len(), 0);
        leave(&entry);
        for _ in 0..100 {
            enter(&entry);
            leave(&entry);
        }
        assert_eq!(registry.all.free.lock().len(), 1);
        drop(entry);
        assert_eq!(sweeps(&registry, 1), 1);
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn entries_that_threads_are_about_to_use_stay() {
        let registry = TestRegistry::new(());
        let known = names(&registry, 5_000);
        let mut now = Instant::now();
        for _ in 0..20 {
            now += LATER;
            assert!(registry.sweep(now));
        }
        assert_eq!(registry.len(), 5_000);
        drop(known);
        assert!(sweeps(&registry, 30) >= 2, "bounded work in one sweep");
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn an_unregistered_entry_is_not_listed() {
        let registry = TestRegistry::new(());
        let entry = registry.unregistered(0, (), 0);
        enter(&entry);
        leave(&entry);
        assert!(!registry.sweep(Instant::now() + LATER));
    }
}
