//! The entry of a name, which a client keeps while threads use that name: the local lock, and state that only some
//! kinds need.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::hold::Hold;
use crate::local::lock::{LocalLock, Mode, Wakeups};
use crate::local::semaphore::LocalSemaphore;
use crate::local::waiter::{self, MakeError};
use crate::net::call::{Call, Deferred, DeferredInfo};
use crate::net::request::Request;
use crate::protocol::kind::{Kind, Protocol};
use crate::protocol::owner::{OwnerId, OwnerNumber, Owners};

/// The entry of one name: a part that never changes, and the state, under a mutex.
///
/// Rules on which all users of an entry rely:
///
/// 1. With the entry's mutex held no I/O is done and no code of the user runs. With it held, the mutexes of the following
///    may be taken: a `QuorumHold` and its nodes, a hold, a waiter, the watchdog, the subscribers, the table of masters,
///    `Nodes::closed`, the ledger, a connection, a call, the free entries, and the request keys. With any of these held,
///    the entry's mutex may not be taken.
/// 2. A wakeup is stored with the mutex held, in the section that takes the thread off its queue or makes it the first
///    there. So a thread that finds itself off the queue has a wakeup.
/// 3. The thread of that wakeup is notified once the mutex is released, since it would run into the mutex otherwise.
/// 4. The release of a guard is queued on the connection with the mutex held, before any other thread can become the
///    contender. So on the connection it precedes the next request of this process.
pub(crate) struct Entry {
    pub(crate) key: EntryKey,
    pub(crate) protocol: Protocol,
    pub(super) state: Mutex<EntryState>,
    all: Arc<Common>,
}

/// The shared part of all entries of one registry.
pub(super) struct Common {
    /// The free entries, each once, and when each became free.
    pub(super) free: Mutex<VecDeque<(Instant, EntryKey)>>,
    pub(super) owners: Arc<Owners>,
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
    fn drop(&mut self) {
        // The entry's mutex is still held, so no other thread lists the entry as well, and none makes it busy before it
        // is listed.
        if !self.state.is_listed && self.state.is_free() {
            self.state.is_listed = true;
            let Entry { key, all, .. } = self.entry;
            all.free.lock().push_back((Instant::now(), key.clone()));
        }
    }
}

/// A thread in the queue of the local lock.
pub(crate) type WaitingThread = waiter::WaitingThread<Wakeup>;

/// The reason for which a queued thread is woken.
#[derive(Clone)]
pub(crate) enum Wakeup {
    /// The thread has the lock.
    Granted(Arc<Hold>),
    /// The thread has its permits, which Redis granted to this process at this instant.
    Given(Instant),
    /// The thread is the contender: it asks Redis. If a release is given and has notified other processes, the thread lets
    /// them go first.
    Contend(Option<Arc<Call>>),
    /// The thread is the contender, but asks only at this instant: by then the threads that were just handed permits may
    /// have handed them on.
    ContendAt(Instant),
    /// Redis is unreachable.
    Failed(MakeError),
}

/// A kind, and an id of that kind.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct EntryKey {
    pub(crate) kind: &'static Kind,
    /// The name. For a lock that a majority keeps, the id is a list of the name and the ids of the lock's clients.
    pub(crate) id: Arc<str>,
}

pub(crate) struct EntryState {
    pub(crate) lock: LocalLock<Arc<WaitingThread>, Arc<Hold>, Arc<Call>>,
    extras: Option<Box<EntryExtras>>,
    /// True if no thread may add the entry to the list of free ones: the entry is there already, a sweep has taken it out,
    /// or the registry does not have it. Rule 3 at [`Registry`](crate::hold::Registry).
    pub(super) is_listed: bool,
    /// Whether this process was subscribed to the lock's channel when its last release of the lock was queued.
    pub(crate) is_heard: bool,
}

/// State that an uncontended lock does not need; made when it is first needed.
#[derive(Default)]
pub(crate) struct EntryExtras {
    /// The waiters of contenders, with their places in the queue that Redis keeps.
    places: Vec<(Arc<WaitingThread>, OwnerNumber)>,
    /// The watchdog's schedule has a `Places` of this name, so the watchdog shows signs of life for these places.
    keeps_places: bool,
    /// The queue of permits, for semaphores.
    semaphore: Option<Box<EntrySemaphore>>,
}

type EntrySemaphore = LocalSemaphore<Arc<WaitingThread>, Arc<Call>>;

type EntryWakeups = Wakeups<Arc<WaitingThread>, Arc<Hold>>;

impl Entry {
    /// An entry outside the registry. `is_listed` is set from the start, so that no thread puts the entry onto the list of
    /// free ones. The registry does that when it takes the entry in.
    pub(super) fn new(
        key: EntryKey,
        protocol: Protocol,
        tenure: Duration,
        all: Arc<Common>,
    ) -> Self {
        let state = EntryState {
            lock: LocalLock::new(key.kind.order, tenure),
            extras: None,
            is_listed: true,
            is_heard: false,
        };
        Self {
            key,
            protocol,
            state: Mutex::new(state),
            all,
        }
    }

    pub(crate) fn lock(&self) -> EntryGuard<'_> {
        EntryGuard {
            entry: self,
            state: self.state.lock(),
        }
    }

    /// The client's [`Owners`], which make the id of an owner from the number of a hold.
    pub(crate) fn owners(&self) -> &Owners {
        &self.all.owners
    }

    /// The name as the user gave it.
    pub(crate) fn name(&self) -> &Arc<str> {
        self.protocol.shown().unwrap_or(&self.key.id)
    }

    /// The release of one owner's hold, or its undo. Without a reply it is sent again, until `useful_until`.
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

    /// A request for whose reply no thread has to wait; `owner` is empty if it is about no hold. Without a reply the
    /// connection sends the request again, until `useful_until`.
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
                valid_until: None,
                undo,
                has_no_lease: false,
            },
        }
    }

    /// Fails the threads in the queue whose command timeout is not longer than that of the caller: Redis did not reply to
    /// the caller, and each of these threads would only find that out again. The caller gives up afterwards, which wakes
    /// the first of the threads that are still queued.
    pub(crate) fn dismiss(&self, error: &MakeError, timeout: Duration) {
        let concerns = |waiter: &Arc<WaitingThread>| waiter.command_timeout <= timeout;
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
        // The first in the queue of a semaphore may be among the dismissed threads, which do not wake their successor. So
        // the new first is called here. If it is the same as before, it asks once more, which does no harm.
        waiters.extend(state.call_first(first, Instant::now()));
        drop(state);
        notify(waiters);
    }
}

impl EntryState {
    fn extras(&mut self) -> &mut EntryExtras {
        self.extras.get_or_insert_default()
    }

    pub(crate) fn local_semaphore(&mut self) -> &mut EntrySemaphore {
        let tenure = self.lock.cohort.tenure();
        let semaphore = &mut self.extras().semaphore;
        semaphore.get_or_insert_with(|| Box::new(LocalSemaphore::new(tenure)))
    }

    /// Makes the first in the queue of a semaphore ask Redis, if there is one. [`notify`] has to follow.
    pub(crate) fn call_first(
        &mut self,
        first: Option<Arc<WaitingThread>>,
        now: Instant,
    ) -> Option<Arc<WaitingThread>> {
        let first = first?;
        let release = self.local_semaphore().cohort.yield_after(now);
        first.store(Wakeup::Contend(release));
        Some(first)
    }

    fn known_semaphore(&mut self) -> Option<&mut EntrySemaphore> {
        self.extras.as_mut()?.semaphore.as_deref_mut()
    }

    /// Stores a wakeup for each thread whose turn it is. [`wake`] has to follow once the mutex is released.
    pub(crate) fn store_wakeups(&mut self, wakeups: &EntryWakeups) {
        for (waiter, hold) in &wakeups.joined {
            waiter.store(Wakeup::Granted(hold.clone()));
        }
        if let Some(next) = &wakeups.contend {
            // `yield_after` may end the cohort, and returns the release only once. The mutex stays locked until that
            // release is stored for `next`. So no thread that enters in between can ask Redis before `next` knows that it
            // has to yield.
            let release = self.lock.cohort.yield_after(Instant::now());
            next.store(Wakeup::Contend(release));
        }
    }

    /// Whether a thread waits in the queue.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock.waiters().next().is_some()
    }

    /// A contender has a place, or another place than before. Returns whether the watchdog has to keep places from now
    /// on.
    pub(crate) fn add_place(&mut self, waiter: &Arc<WaitingThread>, place: OwnerNumber) -> bool {
        self.forget_place(Some(waiter));
        let extras = self.extras();
        extras.places.push((Arc::clone(waiter), place));
        !std::mem::replace(&mut extras.keeps_places, true)
    }

    /// Whether there still are places to be kept. If not, the next [`add_place`](Self::add_place) returns true again.
    /// Check and change are under one mutex, so no place is left out.
    pub(crate) fn update_keeps_places(&mut self) -> bool {
        let are_some = self.places().next().is_some();
        self.extras().keeps_places = are_some;
        are_some
    }

    /// The places of this process in the queue that Redis keeps, with the waiter of each.
    pub(crate) fn places(&self) -> impl Iterator<Item = &(Arc<WaitingThread>, OwnerNumber)> {
        self.extras.iter().flat_map(|extras| &extras.places)
    }

    pub(crate) fn forget_place(&mut self, waiter: Option<&Arc<WaitingThread>>) {
        if let (Some(waiter), Some(extras)) = (waiter, &mut self.extras) {
            extras
                .places
                .retain(|(other, _)| !Arc::ptr_eq(other, waiter));
        }
    }

    fn semaphore(&self) -> Option<&EntrySemaphore> {
        self.extras.as_ref()?.semaphore.as_deref()
    }

    /// Whether no thread holds, waits or asks.
    pub(super) fn is_free(&self) -> bool {
        self.lock.is_free() && self.semaphore().is_none_or(LocalSemaphore::is_free)
    }

    /// Whether the entry can be dropped without forgetting anything.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let is_idle = |semaphore: &EntrySemaphore| semaphore.is_idle(now);
        self.lock.is_idle(now) && self.semaphore().is_none_or(is_idle)
    }
}

/// Wakes the threads for which wakeups were stored. Call it with no mutex held: rule 3.
pub(crate) fn wake(wakeups: EntryWakeups) {
    let joined = wakeups.joined.into_iter().map(|(waiter, _)| waiter);
    notify(joined.chain(wakeups.contend));
}

/// Wakes these threads, for each of which a wakeup was stored. Call it with no mutex held: rule 3.
pub(crate) fn notify(waiters: impl IntoIterator<Item = Arc<WaitingThread>>) {
    for waiter in waiters {
        waiter.notify();
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
