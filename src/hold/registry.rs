//! The entries of a client, one for each name: made when a thread needs one, dropped when idle.
//!
//! The thread that leaves an entry free adds it to a list, and a sweep checks the entries that were added first. So no
//! search among the entries in use is needed.

use std::borrow::Borrow;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Result;
use crate::hold::entry::{Common, Entry, EntryKey};
use crate::local::cohort::GAP;
use crate::protocol::kind::{Keyspace, Kind, Protocol};
use crate::protocol::owner::Owners;

/// How many shards there are.
const SHARDS: usize = 32;

/// How many entries a sweep checks at most.
const SWEEP: usize = 1024;

/// All entries of a client, by kind and id ([`EntryKey`]).
///
/// 1. Mutexes are taken in this order: a shard, an entry, the list of free entries.
/// 2. An entry is dropped only while its shard is locked and only the shard refers to it. So two threads that use one
///    key at the same time have the same entry.
/// 3. A free entry of the registry is on the list, or in the hands of a sweep that puts it back or drops it. `is_listed`
///    is true in both cases. If a sweep finds the entry in use, the sweep sets `is_listed` to false. Then the thread that
///    leaves the entry free lists the entry again.
pub(crate) struct Registry {
    /// The prefix of every key.
    pub(crate) prefix: String,
    /// Whether a script reaches only the keys of one slot.
    pub(crate) is_cluster: bool,
    tenure: Duration,
    waiter_lease: Duration,
    shards: Vec<Mutex<Shard>>,
    hashes: RandomState,
    all: Arc<Common>,
}

type Shard = HashSet<ByKey>;

/// An entry in a set, found by its key. A map would keep every key twice.
struct ByKey(Arc<Entry>);

impl ByKey {
    fn entry(&self) -> Arc<Entry> {
        Arc::clone(&self.0)
    }
}

impl Borrow<EntryKey> for ByKey {
    fn borrow(&self) -> &EntryKey {
        &self.0.key
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl Registry {
    pub(crate) fn new(
        prefix: String,
        is_cluster: bool,
        tenure: Duration,
        waiter_lease: Duration,
        owners: &Arc<Owners>,
    ) -> Self {
        let all = Common {
            free: Mutex::default(),
            owners: Arc::clone(owners),
        };
        let hashes = RandomState::new();
        let shard = || Mutex::new(HashSet::with_hasher(hashes.clone()));
        Self {
            prefix,
            is_cluster,
            tenure,
            waiter_lease,
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hashes,
            all: Arc::new(all),
        }
    }

    /// The entry of a kind and an id. It is made if there is none, and kept from now on until it is idle.
    ///
    /// # Errors
    ///
    /// The errors of [`Protocol::new`].
    pub(crate) fn get(&self, key: &EntryKey) -> Result<Arc<Entry>> {
        let mut shard = self.shard(key).lock();
        if let Some(known) = shard.get(key) {
            return Ok(known.entry());
        }
        // The shard stays locked: if two threads come for a new key, only one makes the entry.
        let entry = self.unregistered(key)?;
        let now = Instant::now();
        // The new entry is listed here, since the thread may never lock it, and then nobody would list it.
        self.all.free.lock().push_back((now, key.clone()));
        shard.insert(ByKey(Arc::clone(&entry)));
        drop(shard);
        // With each new name a few free entries are checked, so that names that are used once do not pile up between
        // two sweeps.
        self.sweep_up_to(4, now);
        Ok(entry)
    }

    /// The entry of a name for a query, which must not create state: the registered entry if there is one, else an
    /// unregistered one.
    ///
    /// # Errors
    ///
    /// The errors of [`Protocol::new`].
    pub(crate) fn look(&self, key: &EntryKey) -> Result<Arc<Entry>> {
        self.known(key).map_or_else(|| self.unregistered(key), Ok)
    }

    /// An unregistered entry of a name, for its protocol alone.
    ///
    /// # Errors
    ///
    /// The errors of [`Protocol::new`].
    pub(crate) fn unregistered(&self, key: &EntryKey) -> Result<Arc<Entry>> {
        let keyspace = Keyspace {
            prefix: &self.prefix,
            is_cluster: self.is_cluster,
            waiter_lease: self.waiter_lease,
        };
        let protocol = Protocol::new(key.kind, keyspace, &key.id)?;
        let (key, all) = (key.clone(), Arc::clone(&self.all));
        Ok(Arc::new(Entry::new(key, protocol, self.tenure, all)))
    }

    /// The entry of a name, if a thread of this client has used it lately.
    pub(crate) fn known(&self, key: &EntryKey) -> Option<Arc<Entry>> {
        let shard = self.shard(key).lock();
        shard.get(key).map(ByKey::entry)
    }

    fn shard(&self, key: &EntryKey) -> &Mutex<Shard> {
        // Byte 5, because a set places its keys by other bits of the hash. With the same bits, the keys of one shard would
        // collide.
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
        // An entry is checked once it has been free for four gaps (20 ms). With the default tenure it normally is idle by
        // then. With a longer tenure, or with a debt to other processes, `is_idle` is false for longer, and the entry is
        // checked again later.
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
    fn drop_if_idle(&self, key: &EntryKey, now: Instant) -> bool {
        let mut shard = self.shard(key).lock();
        let Some(ByKey(entry)) = shard.get(key) else {
            return false;
        };
        // If only the set refers to the entry, no other thread can get it while the shard is locked: rule 2. Otherwise
        // a thread may be about to enter it, and the entry is checked again later.
        let unused = Arc::strong_count(entry) == 1;
        let mut state = entry.state.lock();
        if !state.is_free() {
            // A thread has begun to use the entry since it was listed; the thread that leaves it free lists it again: rule
            // 3.
            state.is_listed = false;
            return false;
        }
        if !unused || !state.is_idle(now) {
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

    /// All entries of a kind.
    pub(crate) fn of(&self, kind: &'static Kind) -> Vec<Arc<Entry>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let entries = shard.iter().map(ByKey::entry);
            found.extend(entries.filter(|entry| entry.key.kind == kind));
        }
        found
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests;
