//! Requests that count once, however often they are sent.
//!
//! A request without a reply is sent again, although Redis may have executed it. So a key in Redis holds the result of the
//! request, for at least as long as the request may be repeated. (`permit_release_ids` and `permit_update` store no result
//! if they have changed nothing. The key of `semaphore_acquire` is there for its undo: an acquire that may have run is
//! undone and not sent again.) Once a request has its reply and was sent only once, a later request of the same client
//! about the same object deletes that key. Therefore the number of keys does not grow with the number of requests. (The
//! keys of forced unlocks are not deleted: they expire.)

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::net::call::{Call, CallPhase};
use crate::protocol::keys;
use crate::protocol::owner::{OwnerId, OwnerNumber, Owners};

/// How many answered requests about one object, and how many pending ones, are remembered until their keys can be deleted.
/// Beyond that, answered requests are not added, and the earliest pending ones are dropped. Their keys expire.
const MOST: usize = 64;

/// The number of objects with remembered requests. Before one more is added, all are forgotten, and the keys of their
/// requests expire.
const OBJECTS: usize = 1024;

/// A request about a semaphore deletes this many keys of earlier requests at once. While fewer can be deleted it deletes
/// none, since deleting them one at a time costs more.
pub(crate) const FORGET: usize = 4;

/// A client's requests whose keys can be deleted before they expire; the map's keys are those of the objects. While this
/// mutex is held, only the mutex of a call may be locked.
#[derive(Default)]
pub(crate) struct IdempotencyKeys(Mutex<HashMap<String, ObjectRequests>>);

/// The remembered requests about one object.
#[derive(Default)]
struct ObjectRequests {
    answered: Vec<OwnerNumber>,
    /// Releases under way. A thread waits for the reply to only some of them.
    pending: VecDeque<(OwnerNumber, Arc<Call>)>,
}

impl IdempotencyKeys {
    /// Records a request that was answered, and was sent once.
    pub(crate) fn answered(&self, key: &str, number: OwnerNumber) {
        self.of(key, |known| known.answered(number));
    }

    /// Records a release under way, for whose reply perhaps no thread waits.
    pub(crate) fn pending(&self, key: &str, number: OwnerNumber, call: &Arc<Call>) {
        self.of(key, |known| {
            if known.pending.len() >= MOST {
                known.pending.pop_front();
            }
            known.pending.push_back((number, Arc::clone(call)));
        });
    }

    fn of(&self, key: &str, change: impl FnOnce(&mut ObjectRequests)) {
        let mut objects = self.0.lock();
        if let Some(known) = objects.get_mut(key) {
            return change(known);
        }
        if objects.len() >= OBJECTS {
            objects.clear();
        }
        change(objects.entry(key.to_owned()).or_default());
    }

    /// Removes and returns `batch` requests, whose keys the next request deletes; none while there are fewer.
    pub(crate) fn take(&self, key: &str, batch: usize) -> Vec<OwnerNumber> {
        let mut objects = self.0.lock();
        let known = objects.get_mut(key);
        known.map_or_else(Vec::new, |known| known.take(batch))
    }
}

impl ObjectRequests {
    fn answered(&mut self, number: OwnerNumber) {
        if self.answered.len() < MOST {
            self.answered.push(number);
        }
    }

    fn take(&mut self, batch: usize) -> Vec<OwnerNumber> {
        while let Some((number, call)) = self.pending.front() {
            let state = call.state.lock();
            let sent_once = match state.phase {
                CallPhase::Idle(_) | CallPhase::Awaiting => break,
                // A request that was sent twice may still arrive a second time.
                CallPhase::Done(_) => state.sendings == 1,
                CallPhase::Broken(_) => false,
            };
            let number = *number;
            drop(state);
            if sent_once {
                self.answered(number);
            }
            self.pending.pop_front();
        }
        if self.answered.len() < batch {
            return Vec::new();
        }
        self.answered.drain(..batch).collect()
    }
}

/// The keys of one request: its own, and those that it deletes.
pub(crate) struct RequestKeys {
    /// The number drawn for the request.
    pub(crate) number: OwnerNumber,
    /// The number with the client's id, unique to the request.
    pub(crate) id: OwnerId,
    /// How long Redis keeps the request's own key, in milliseconds.
    pub(crate) keep_ms: String,
    /// The request's own key first.
    keys: Vec<String>,
}

impl RequestKeys {
    /// The keys of a new request about the object at `key`, which also deletes the keys of the requests in `forgotten`.
    pub(crate) fn new(
        owners: &Owners,
        key: &str,
        keep_ms: String,
        forgotten: &[OwnerNumber],
    ) -> Self {
        let number = owners.draw();
        let id = owners.id(number);
        let mut keys = Vec::with_capacity(1 + forgotten.len());
        keys.push(keys::request(key, &id));
        let others = forgotten.iter().map(|number| owners.id(*number));
        keys.extend(others.map(|id| keys::request(key, &id)));
        Self {
            number,
            id,
            keep_ms,
            keys,
        }
    }

    /// The request's own key.
    pub(crate) fn own(&self) -> &str {
        &self.keys[0]
    }

    /// All keys for a script: `first`, then those of the request.
    pub(super) fn after<'a>(&'a self, first: &[&'a str]) -> Vec<&'a str> {
        let own_keys = self.keys.iter().map(String::as_str);
        first.iter().copied().chain(own_keys).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_requests_are_forgotten_in_batches_and_once() {
        let (owners, known) = (Owners::new(), IdempotencyKeys::default());
        let draw = |key, batch| {
            let forgotten = known.take(key, batch);
            RequestKeys::new(&owners, key, String::new(), &forgotten)
        };
        let keys = || draw("a", 2);
        let first = keys();
        known.answered("a", first.number);
        let second = keys();
        assert_eq!(second.after(&["a"]).len(), 2);
        known.answered("a", second.number);
        assert_eq!(draw("b", 1).after(&[]).len(), 1);
        let third = keys();
        assert_eq!(
            third.after(&["a"]),
            ["a", third.own(), first.own(), second.own()]
        );
        assert_eq!(keys().after(&[]).len(), 1);
    }

    #[test]
    fn only_so_many_are_kept_in_mind() {
        let known = IdempotencyKeys::default();
        for number in 0..1_000 {
            known.answered("a", OwnerNumber(number));
        }
        assert_eq!(known.0.lock()["a"].answered.len(), MOST);
        for object in 0..10 * OBJECTS {
            known.answered(&object.to_string(), OwnerNumber(0));
            assert!(known.0.lock().len() <= OBJECTS);
        }
    }
}
