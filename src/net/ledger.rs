//! The ledger: calls that have to reach Redis even if no thread waits for them. Each [`Nodes`](super::nodes::Nodes) has
//! one: a client has a ledger for commands, one for guarded commands and one for renewals.
//!
//! Entries are deferred calls: releases, undos of attempts that were given up, and withdrawals from the queue of a fair
//! lock. A deferred call is in one place at any time:
//!
//! ```text
//!               a connection is up, and its socket is not full           executed, or rejected for good
//!    submitted ────────────────────────────────────────► under way ──────────────────────────────────► settled
//!        │                                                ▲    │                                          ▲
//!        │ otherwise                         taken by a   │    │ connection lost, rejected for now,       │ useless, or
//!        │                                   connection   │    ▼ to be executed by another node           │ client closed
//!        └────────────────────────────────────────────► in the ledger ────────────────────────────────────┘
//! ```
//!
//! The way of a release:
//!
//! 1. **Submitted.** [`Nodes::submit`] queues the release at the connection to the master of its slot, behind all that was
//!    submitted there before. `submit` does no I/O and is called under the mutex of the local lock, so the next acquire of this
//!    process comes behind the release. [`Connection::deliver`] then writes what the socket takes, and never waits. If bytes are
//!    left and no thread goes on to write, housekeeping is woken.
//! 2. **Answered.** The thread that leads reads the reply, and [`verdict`] says what the reply means. If the server
//!    rejects the release for now, the connection rests for a moment. While it rests, it takes only the entries that must
//!    precede a new command (step 5). If another node has to execute the release, it becomes an entry, the map of slots is
//!    corrected (not after `ASK`), and housekeeping is woken.
//! 3. **Lost.** If the connection is lost, the server may have executed the release or not. So the release becomes an entry
//!    and is sent again unchanged. If it was an entry before, it gets the position that it had then.
//! 4. **Taken.** A connection takes a batch of entries (see [`BATCH`]) when it comes up, and the next batch once this one
//!    is answered. So other commands go in between, however many entries an outage has left. An entry is taken by the
//!    connection to the node that serves its slot at that time: entries follow the slot when it moves or a master fails.
//! 5. **In order.** Before a command, the connection sends what the ledger has about its keys, up to [`AT_ONCE`] entries.
//!    Otherwise an acquire would find the lock held by a hold that its owner has ended. If a thread waits for the answer
//!    to a release that has become an entry, the thread makes the connection send the entries about the keys of that
//!    release, unless the connection rests.
//! 6. **Useless.** Housekeeping gives up entries after their `useful_until`. To send the others, it connects to their
//!    nodes.
//!
//! The ledger does no I/O and reads no clock. An outage may leave hundreds of thousands of entries, so adding, finding and
//! removing one takes logarithmic time.
//!
//! [`Nodes::submit`]: crate::net::nodes::Nodes::submit
//! [`Connection::deliver`]: crate::net::connection::Connection::deliver
//! [`verdict`]: crate::verdict::verdict

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(test)]
use std::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;

use crate::net::call::Call;
use crate::net::masters::Masters;
use crate::net::request::Request;
use crate::net::slot::slot_of;
use crate::verdict::Redirection;

/// A batch ends with the entry that reaches this many bytes: a command behind the batch waits until it is transferred,
/// which takes long on a slow network.
const BATCH: usize = if cfg!(test) { 30 } else { 16 * 1024 };

/// How many entries about the keys of a command are sent before it, at most. Also a threshold: if an undo is unanswered
/// and this many calls are in flight, a new attempt waits (`Pipeline::backlog_end`).
pub(super) const AT_ONCE: usize = if cfg!(test) { 2 } else { 64 };

pub(crate) struct Ledger {
    pub(super) map: Arc<Masters>,
    /// How many entries there are. Every command reads this without the mutex, and mostly finds zero. A release that finds
    /// no connection is in this count before another thread of this process can try to acquire the same lock: rule 4 at
    /// [`Entry`](crate::hold::Entry).
    count: AtomicUsize,
    entries: Mutex<Entries>,
}

/// An entry's slot and sequence number. A call keeps its number until it is settled, also while it is under way.
type LedgerPlace = (u16, u64);

#[derive(Default)]
struct Entries {
    /// Calls that another node executes only behind `ASKING`. The next step of housekeeping submits them to that node. If
    /// a command to that node comes first, they are queued before it, whatever its keys.
    asked: Vec<Arc<Call>>,
    /// By slot and sequence number.
    slots: BTreeMap<u16, BTreeMap<u64, Arc<Call>>>,
    /// Each entry by the moment at which it becomes useless.
    ends: BTreeSet<(Instant, LedgerPlace)>,
    /// Each entry under the hash of each of its keys. If two keys have the same hash, a command may be preceded by an entry
    /// about another key, which does no harm.
    keys: BTreeSet<(u64, LedgerPlace)>,
    last_seq: u64,
}

fn hashes(request: &Request) -> impl Iterator<Item = u64> {
    request.keys().map(|key| {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish()
    })
}

impl Ledger {
    pub(crate) fn new(map: Arc<Masters>) -> Self {
        Self {
            map,
            count: AtomicUsize::new(0),
            entries: Mutex::default(),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries) -> T) -> T {
        let mut entries = self.entries.lock();
        let changed = change(&mut entries);
        let count = entries.ends.len() + entries.asked.len();
        self.count.store(count, Ordering::Release);
        changed
    }

    pub(super) fn is_clustered(&self) -> bool {
        !self.map.is_one()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Adds deferred calls. A call that was an entry before gets the position that it had.
    pub(super) fn keep<'a>(&self, calls: impl IntoIterator<Item = &'a Arc<Call>>) {
        let slot = |call: &Call| match self.map.is_one() {
            true => 0,
            false => call.request.first_key().map_or(0, slot_of),
        };
        self.change(|entries| {
            for call in calls {
                entries.insert(slot(call), call);
            }
        });
    }

    /// The node `from` has rejected a call and named the node to which it belongs. The call is on no connection now.
    pub(super) fn redirect(&self, call: &Arc<Call>, from: usize, redirection: &Redirection) {
        let node = self.map.redirected(from, redirection);
        call.redirect(redirection.is_asking.then_some(node));
        match redirection.is_asking {
            true => self.change(|entries| entries.asked.push(Arc::clone(call))),
            false => self.keep([call]),
        }
    }

    /// Removes the calls that have to be sent behind `ASKING`.
    pub(super) fn take_asked(&self) -> Vec<Arc<Call>> {
        self.change(|entries| std::mem::take(&mut entries.asked))
    }

    /// Removes a batch of the entries that `node` serves: slot after slot, and the oldest of each slot first. The order matters
    /// only within a slot, since no request has keys of several slots.
    pub(super) fn take(&self, node: usize) -> Vec<Arc<Call>> {
        let serves = |slot: u16| self.map.owner(slot) == Some(node);
        self.change(|entries| {
            let slots = entries.slots.iter().filter(|(slot, _)| serves(**slot));
            let calls = slots.flat_map(|(slot, calls)| calls.iter().map(|call| (*slot, call)));
            let mut bytes = 0;
            let places = calls.map_while(|(slot, (seq, call))| {
                let has_space = bytes < BATCH;
                bytes += call.request.joined_len();
                has_space.then_some((slot, *seq))
            });
            let places: Vec<_> = places.collect();
            entries.remove_all(places)
        })
    }

    /// Removes up to [`AT_ONCE`] of the entries that have a key of `request`, the oldest first. Then removes all calls
    /// that `node` executes only behind `ASKING`, and returns them after the entries.
    pub(super) fn take_about(&self, request: &Request, node: usize) -> Vec<Arc<Call>> {
        self.change(|entries| {
            let mut places = BTreeSet::new();
            for hash in hashes(request) {
                let about = entries.keys.range((hash, FIRST)..=(hash, LAST));
                places.extend(about.take(AT_ONCE).map(|(_, place)| *place));
            }
            let mut calls = entries.remove_all(places.into_iter().take(AT_ONCE));
            calls.extend(entries.asked.extract_if(.., |call| call.node() == node));
            calls
        })
    }

    /// Removes up to `most` entries whose `useful_until` has come.
    pub(super) fn take_useless(&self, now: Instant, most: usize) -> Vec<Arc<Call>> {
        self.change(|entries| {
            let useless = entries.ends.range(..=(now, LAST)).take(most);
            let places: Vec<_> = useless.map(|(_, place)| *place).collect();
            entries.remove_all(places)
        })
    }

    /// Removes all entries. Returns how many of them were releases, and how many were undos. An entry counts as an undo if
    /// its `undo` is set and its `has_no_lease` is not; every other entry counts as a release.
    pub(super) fn forget(&self) -> (u64, u64) {
        let all = self.change(std::mem::take);
        let calls = all.slots.values().flat_map(BTreeMap::values);
        let infos = calls
            .chain(&all.asked)
            .filter_map(|call| call.deferred.as_ref());
        let (undos, releases) = infos.fold((0, 0), |(undos, releases), info| {
            match info.undo && !info.has_no_lease {
                true => (undos + 1, releases),
                false => (undos, releases + 1),
            }
        });
        (releases, undos)
    }

    /// The nodes that serve the entries, without the calls in `asked`. The set contains `None` if no node is known to
    /// serve one of the entries.
    pub(super) fn nodes(&self) -> BTreeSet<Option<usize>> {
        let entries = self.entries.lock();
        let slots = entries.slots.keys();
        slots.map(|slot| self.map.owner(*slot)).collect()
    }

    /// Whether `node` serves an entry.
    pub(super) fn owes(&self, node: usize) -> bool {
        !self.is_empty() && self.nodes().contains(&Some(node))
    }
}

const FIRST: LedgerPlace = (0, 0);
const LAST: LedgerPlace = (u16::MAX, u64::MAX);

impl Entries {
    fn insert(&mut self, slot: u16, call: &Arc<Call>) {
        let Some(info) = &call.deferred else {
            return;
        };
        let mut state = call.state.lock();
        // An entry goes to the master of its slot. `ASKING` was for one node, and for one sending.
        state.asking = false;
        if state.seq == 0 {
            self.last_seq += 1;
            state.seq = self.last_seq;
        }
        let place = (slot, state.seq);
        drop(state);
        self.ends.insert((info.useful_until, place));
        self.keys
            .extend(hashes(&call.request).map(|hash| (hash, place)));
        let calls = self.slots.entry(slot).or_default();
        let known = calls.insert(place.1, Arc::clone(call));
        debug_assert!(known.is_none(), "two entries at {place:?}");
    }

    fn remove_all(&mut self, places: impl IntoIterator<Item = LedgerPlace>) -> Vec<Arc<Call>> {
        let places = places.into_iter();
        places.filter_map(|place| self.remove(place)).collect()
    }

    fn remove(&mut self, place: LedgerPlace) -> Option<Arc<Call>> {
        let calls = self.slots.get_mut(&place.0)?;
        let call = calls.remove(&place.1)?;
        if calls.is_empty() {
            self.slots.remove(&place.0);
        }
        if let Some(info) = &call.deferred {
            self.ends.remove(&(info.useful_until, place));
        }
        for hash in hashes(&call.request) {
            self.keys.remove(&(hash, place));
        }
        Some(call)
    }
}

#[cfg(test)]
impl Ledger {
    /// The ledger of a client of a single server.
    pub(crate) fn of_one() -> Self {
        Self::at("redis://127.0.0.1:1/")
    }

    pub(crate) fn at(url: &str) -> Self {
        let server = crate::config::server::Server::of(url).expect("a good URL");
        let endpoint = crate::net::socket::Endpoint::new(server);
        Self::new(Arc::new(Masters::new(
            endpoint,
            Duration::from_secs(1),
            || {},
        )))
    }

    /// A copy, with each call replaced.
    pub(super) fn copy(&self, of: impl Fn(&Arc<Call>) -> Arc<Call>) -> Self {
        let entries = self.entries.lock();
        let slots = entries.slots.iter().map(|(slot, calls)| {
            let calls = calls.iter().map(|(seq, call)| (*seq, of(call)));
            (*slot, calls.collect())
        });
        Self {
            map: Arc::clone(&self.map),
            count: AtomicUsize::new(entries.ends.len()),
            entries: Mutex::new(Entries {
                asked: entries.asked.iter().map(&of).collect(),
                slots: slots.collect(),
                ends: entries.ends.clone(),
                keys: entries.keys.clone(),
                last_seq: entries.last_seq,
            }),
        }
    }

    pub(super) fn learn(&self, redirection: &Redirection) -> usize {
        self.map.redirected(0, redirection)
    }

    pub(super) fn master(&self, slot: u16) -> usize {
        self.map.owner(slot).expect("a master")
    }

    pub(super) fn calls(&self) -> Vec<Arc<Call>> {
        let entries = self.entries.lock();
        let calls = entries.slots.values().flat_map(BTreeMap::values);
        calls.cloned().collect()
    }
}

#[cfg(test)]
mod tests;
