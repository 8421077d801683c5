//! The entry of a name, which a client keeps while threads use that name: the local lock, and state that only some
//! kinds need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::local::lock::{Holding, LocalLock, Mode, Wakeups};
use crate::local::registry::{self, EntryContent};
use crate::local::semaphore::LocalSemaphore;
use crate::local::waiter::{self, MakeError};
use crate::net::call::{Call, Deferred, DeferredInfo};
use crate::net::request::Request;
use crate::protocol::kind::{Keyspace, Kind, Protocol};
use crate::protocol::owner::{OwnerId, OwnerNumber, Owners};

/// The entry of one name. `H` is a [`Hold`](crate::hold::Hold), a type parameter since a hold refers to its entry.
///
/// Rules on which all users of an entry rely:
///
/// 1. With the entry's mutex held no I/O is done and no code of the user runs. The mutexes of a quorum's hold, a
///    waiter, the watchdog and a connection may be taken with it held, never before it.
/// 2. A wakeup is stored with the mutex held, in the section that takes the thread off its queue or makes it the first.
///    So a thread that finds itself off the queue has a wakeup.
/// 3. The thread is notified once the mutex is released, since it would run into the mutex otherwise.
/// 4. The release of a guard is queued on the connection with the mutex held, before any other thread can become the
///    contender. So on the connection it precedes the next request of this process.
pub(crate) type Entry<H> = registry::Entry<EntryKey, FixedPart, EntryState<H>>;

/// A thread in the queue of the local lock.
pub(crate) type Waiter<H> = waiter::Waiter<Wakeup<H>>;

/// The reason for which a queued thread is woken.
#[derive(Clone)]
pub(crate) enum Wakeup<H> {
    /// The thread has the lock.
    Granted(H),
    /// The thread has its permits, which Redis granted to this process at that time.
    Given(Instant),
    /// The thread is the contender: it asks Redis, and lets others go first if this release has notified any.
    Contend(Option<Arc<Call>>),
    /// The thread is the contender, but waits until then before it asks: the threads that were just handed permits may
    /// hand them on by that time.
    ContendAt(Instant),
    /// Redis is unreachable.
    Failed(MakeError),
}

/// A kind, and an id of that kind.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct EntryKey {
    pub(crate) kind: &'static Kind,
    /// A name, or a list of them.
    pub(crate) id: Arc<str>,
}

/// The part of an entry that never changes.
pub(crate) struct FixedPart {
    pub(crate) protocol: Protocol,
}

pub(crate) struct EntryState<H> {
    pub(crate) lock: LocalLock<Arc<Waiter<H>>, H, Arc<Call>>,
    extras: Option<Box<EntryExtras<H>>>,
}

/// State that an uncontended lock does not need; made when it is first needed.
pub(crate) struct EntryExtras<H> {
    /// The waiters of contenders, with their places in the queue that Redis keeps.
    places: Vec<(Arc<Waiter<H>>, OwnerNumber)>,
    /// The watchdog has an entry on its schedule that shows signs of life for these places.
    keeps_places: bool,
    /// The queue of permits, for semaphores.
    semaphore: Option<Box<EntrySemaphore<H>>>,
}

impl<H> Default for EntryExtras<H> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            keeps_places: false,
            semaphore: None,
        }
    }
}

type EntrySemaphore<H> = LocalSemaphore<Arc<Waiter<H>>, Arc<Call>>;

type EntryWakeups<H> = Wakeups<Arc<Waiter<H>>, H>;

impl<H: Holding> Entry<H> {
    /// The name as the user gave it.
    pub(crate) fn name(&self) -> &Arc<str> {
        self.protocol.shown().unwrap_or(&self.key().id)
    }

    /// The release of one owner's hold, which is sent again until `useful_until`.
    pub(crate) fn release(
        &self,
        mode: Mode,
        owner: &OwnerId,
        useful_until: Instant,
        undo: bool,
    ) -> Deferred {
        let request = match undo {
            true => (self.protocol.kind().undo)(&self.protocol, mode, owner.as_bytes()),
            false => self.protocol.release(mode, owner.as_bytes()),
        };
        self.deferred(request, owner, useful_until, undo)
    }

    /// A request for whose reply no thread has to wait; `owner` is empty if it is about no hold. The connection sends the
    /// request again until `useful_until`.
    pub(crate) fn deferred(
        &self,
        request: Request,
        owner: &OwnerId,
        useful_until: Instant,
        undo: bool,
    ) -> Deferred {
        Deferred {
            request,
            info: DeferredInfo {
                name: Arc::clone(self.name()),
                owner: owner.clone(),
                useful_until,
                undo,
                for_good: false,
            },
        }
    }

    /// Fails the threads in the queue whose command timeout is not longer: Redis was unreachable for all of `timeout`, and each
    /// of them would only find that out again. The caller, who asked for the lock, gives up afterwards, which wakes the next
    /// thread that stays.
    pub(crate) fn dismiss(&self, error: &MakeError, timeout: Duration) {
        let concerns = |waiter: &Arc<Waiter<H>>| waiter.command_timeout <= timeout;
        let mut state = self.lock();
        let mut waiters = state.lock.dismiss(concerns);
        let mut first = None;
        if let Some(semaphore) = state.known_semaphore() {
            waiters.extend(semaphore.dismiss(concerns));
            first = semaphore.first();
        }
        // A thread that gives up at the same time finds itself off the queue and takes this wakeup: rule 2.
        for waiter in &waiters {
            waiter.store(Wakeup::Failed(Arc::clone(error)));
        }
        // The first in the queue of a semaphore may be among the dismissed, which wake nobody. So the new first is called here.
        waiters.extend(state.call_first(first, Instant::now()));
        drop(state);
        notify(waiters);
    }
}

impl<H: Holding> EntryState<H> {
    fn new(kind: &Kind, tenure: Duration) -> Self {
        Self {
            lock: LocalLock::new(kind.order, tenure),
            extras: None,
        }
    }

    fn extras(&mut self) -> &mut EntryExtras<H> {
        self.extras.get_or_insert_default()
    }

    pub(crate) fn local_semaphore(&mut self) -> &mut EntrySemaphore<H> {
        let tenure = self.lock.tenure();
        let semaphore = &mut self.extras().semaphore;
        semaphore.get_or_insert_with(|| Box::new(LocalSemaphore::new(tenure)))
    }

    /// Makes the first in the queue of a semaphore ask Redis, if there is one. [`notify`] has to follow.
    pub(crate) fn call_first(
        &mut self,
        first: Option<Arc<Waiter<H>>>,
        now: Instant,
    ) -> Option<Arc<Waiter<H>>> {
        let first = first?;
        first.store(Wakeup::Contend(self.local_semaphore().yields_after(now)));
        Some(first)
    }

    fn known_semaphore(&mut self) -> Option<&mut EntrySemaphore<H>> {
        self.extras.as_mut()?.semaphore.as_deref_mut()
    }

    /// Stores a wakeup for each thread whose turn it is. [`wake`] has to follow once the mutex is released.
    pub(crate) fn store_wakeups(&mut self, wakeups: &EntryWakeups<H>) {
        for (waiter, hold) in &wakeups.joined {
            waiter.store(Wakeup::Granted(hold.clone()));
        }
        if let Some(next) = &wakeups.contend {
            // `yields_after` is called under the mutex, since it ends the tenure: one thread yields, and no other may ask in
            // between.
            next.store(Wakeup::Contend(self.lock.yields_after(Instant::now())));
        }
    }

    /// Whether a thread waits in the queue.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock.waiters().next().is_some()
    }

    /// A contender has a place, or another place than before. Returns whether the watchdog has to keep places from now
    /// on.
    pub(crate) fn add_place(&mut self, waiter: &Arc<Waiter<H>>, place: OwnerNumber) -> bool {
        self.forget_place(Some(waiter));
        let extras = self.extras();
        extras.places.push((Arc::clone(waiter), place));
        !std::mem::replace(&mut extras.keeps_places, true)
    }

    /// Whether there still are places to be kept. If not, the next [`add_place`](Self::add_place) tells the watchdog
    /// again: the mutex makes these one step, so no place is left without signs of life.
    pub(crate) fn update_keeps_places(&mut self) -> bool {
        let are_some = self.places().next().is_some();
        self.extras().keeps_places = are_some;
        are_some
    }

    /// The places of this process in the queue that Redis keeps, with the waiter of each.
    pub(crate) fn places(&self) -> impl Iterator<Item = &(Arc<Waiter<H>>, OwnerNumber)> {
        self.extras.iter().flat_map(|extras| &extras.places)
    }

    pub(crate) fn forget_place(&mut self, waiter: Option<&Arc<Waiter<H>>>) {
        if let (Some(waiter), Some(extras)) = (waiter, &mut self.extras) {
            extras
                .places
                .retain(|(other, _)| !Arc::ptr_eq(other, waiter));
        }
    }
}

impl<H: Holding> EntryContent for EntryState<H> {
    /// Makes the id of an owner from the number of a hold.
    type Common = Arc<Owners>;

    fn is_free(&self) -> bool {
        let extras = self.extras.as_ref();
        let semaphore = extras.and_then(|extras| extras.semaphore.as_ref());
        self.lock.is_free() && semaphore.is_none_or(|semaphore| semaphore.is_free())
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.is_free() && self.lock.is_idle(now)
    }
}

/// Wakes the threads for which wakeups were stored. Call it with no mutex held: rule 3.
pub(crate) fn wake<H>(wakeups: EntryWakeups<H>) {
    let joined = wakeups.joined.into_iter().map(|(waiter, _)| waiter);
    notify(joined.chain(wakeups.contend));
}

/// Wakes these threads, for each of which a wakeup was stored. Call it with no mutex held: rule 3.
pub(crate) fn notify<H>(waiters: impl IntoIterator<Item = Arc<Waiter<H>>>) {
    for waiter in waiters {
        waiter.notify();
    }
}

/// All entries of a client, by kind and id: the name, or a list of them.
pub(crate) struct Registry<H: Holding> {
    prefix: String,
    is_cluster: bool,
    tenure: Duration,
    waiter_lease: Duration,
    entries: registry::Registry<EntryKey, FixedPart, EntryState<H>>,
}

impl<H: Holding> Registry<H> {
    pub(crate) fn new(
        prefix: String,
        is_cluster: bool,
        tenure: Duration,
        waiter_lease: Duration,
        owners: &Arc<Owners>,
    ) -> Self {
        Self {
            prefix,
            is_cluster,
            tenure,
            waiter_lease,
            entries: registry::Registry::new(Arc::clone(owners)),
        }
    }

    /// The prefix of every key.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The entry of a name, or a list of names, kept from now on until it is idle.
    ///
    /// # Errors
    ///
    /// The errors of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn get(&self, key: &EntryKey) -> Result<Arc<Entry<H>>> {
        self.entries.get(key, || self.make(key))
    }

    /// The entry of a name; an unregistered one for a query, which must not create state.
    ///
    /// # Errors
    ///
    /// The errors of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn look(&self, key: &EntryKey) -> Result<Arc<Entry<H>>> {
        self.known(key).map_or_else(|| self.unregistered(key), Ok)
    }

    /// An unregistered entry of a name, for its protocol alone.
    ///
    /// # Errors
    ///
    /// The errors of the kind's [`protocol`](Kind::protocol).
    pub(crate) fn unregistered(&self, key: &EntryKey) -> Result<Arc<Entry<H>>> {
        let (named, state) = self.make(key)?;
        Ok(self.entries.unregistered(key.clone(), named, state))
    }

    /// The entry of a name, if a thread of this client has used it lately.
    pub(crate) fn known(&self, key: &EntryKey) -> Option<Arc<Entry<H>>> {
        self.entries.known(key)
    }

    fn make(&self, EntryKey { kind, id }: &EntryKey) -> Result<(FixedPart, EntryState<H>)> {
        let keyspace = Keyspace {
            prefix: &self.prefix,
            is_cluster: self.is_cluster,
            waiter_lease: self.waiter_lease,
        };
        let named = FixedPart {
            protocol: Protocol::new(kind, keyspace, id)?,
        };
        Ok((named, EntryState::new(kind, self.tenure)))
    }

    /// Whether a script reaches only the keys of one slot.
    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// See [`registry::Registry::sweep`].
    pub(crate) fn sweep(&self, now: Instant) -> bool {
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
}

#[cfg(test)]
mod tests {
    use crate::hold::Entry;

    #[test]
    fn an_entry_is_small() {
        // Each lock that is held has an entry.
        assert!(size_of::<Entry>() <= 288, "{}", size_of::<Entry>());
    }
}
