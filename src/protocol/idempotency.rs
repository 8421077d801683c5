//! Requests that count once, however often they are sent.
//!
//! A request without a reply is sent again, and may have been carried out before. So Redis keeps the outcome of each
//! request in a key of its own, for as long as the request may be repeated. Once a request that was sent once has its
//! reply, a later request of the same client about the same object deletes that key, so that what is left does not grow
//! with the number of requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::net::call::{Call, CallPhase};
use crate::protocol::keys;
use crate::protocol::owner::{OwnerId, OwnerNumber, Owners};

/// How many requests about one object are remembered here until their keys can be deleted. The keys of others expire.
const MOST: usize = 64;

/// About how many objects requests are remembered. One more, and all are forgotten.
const OBJECTS: usize = 1024;

/// How many keys one request deletes, once there are so many: deleting them one at a time costs more.
pub(crate) const FORGET: usize = 4;

/// The requests of a client whose keys can be deleted before they expire, by the key of the object. Its mutex is taken last
/// but for those of calls.
#[derive(Default)]
pub(crate) struct IdempotencyKeys(Mutex<HashMap<String, Known>>);

/// The same about one object.
#[derive(Default)]
struct Known {
    answered: Vec<OwnerNumber>,
    /// Releases that nobody waits for.
    pending: VecDeque<(OwnerNumber, Arc<Call>)>,
}

impl IdempotencyKeys {
    /// The request was answered, and sent once.
    pub(crate) fn answered(&self, key: &str, number: OwnerNumber) {
        self.of(key, |known| known.answered(number));
    }

    /// The request is on its way, and nobody waits for it.
    pub(crate) fn pending(&self, key: &str, number: OwnerNumber, call: &Arc<Call>) {
        self.of(key, |known| {
            if known.pending.len() >= MOST {
                known.pending.pop_front();
            }
            known.pending.push_back((number, Arc::clone(call)));
        });
    }

    fn of(&self, key: &str, change: impl FnOnce(&mut Known)) {
        let mut objects = self.0.lock();
        if let Some(known) = objects.get_mut(key) {
            return change(known);
        }
        if objects.len() >= OBJECTS {
            objects.clear();
        }
        change(objects.entry(key.to_owned()).or_default());
    }

    /// The requests whose keys the next one deletes.
    fn take(&self, key: &str, batch: usize) -> Vec<OwnerNumber> {
        let mut objects = self.0.lock();
        let known = objects.get_mut(key);
        known.map_or_else(Vec::new, |known| known.take(batch))
    }
}

impl Known {
    fn answered(&mut self, number: OwnerNumber) {
        if self.answered.len() < MOST {
            self.answered.push(number);
        }
    }

    fn take(&mut self, batch: usize) -> Vec<OwnerNumber> {
        while let Some((number, call)) = self.pending.front() {
            let its = call.state.lock();
            let sent_once = match its.phase {
                CallPhase::Idle(_) | CallPhase::Awaiting => break,
                // One that was sent twice may arrive once more.
                CallPhase::Done(_) => its.sendings == 1,
                CallPhase::Broken(_) => false,
            };
            let number = *number;
            drop(its);
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
    pub(crate) number: OwnerNumber,
    /// Unique to the request.
    pub(crate) id: OwnerId,
    /// Its own first.
    keys: Vec<String>,
}

impl RequestKeys {
    /// For a request about the object at `key`, which has Redis forget a batch of those `known`, if there are so many.
    pub(crate) fn draw(owners: &Owners, key: &str, known: &IdempotencyKeys, batch: usize) -> Self {
        let mut drawn = Self::alone(owners, key);
        let forgotten = known.take(key, batch);
        drawn.keys.reserve_exact(forgotten.len());
        for number in forgotten {
            drawn.keys.push(keys::request(key, &owners.id(number)));
        }
        drawn
    }

    /// The same with nothing to delete.
    pub(crate) fn alone(owners: &Owners, key: &str) -> Self {
        let number = owners.draw();
        let id = owners.id(number);
        Self {
            number,
            keys: vec![keys::request(key, &id)],
            id,
        }
    }

    /// Its own key.
    pub(crate) fn own(&self) -> &str {
        &self.keys[0]
    }

    /// All keys for a script: `first`, then these.
    pub(super) fn after<'a>(&'a self, first: &[&'a str]) -> Vec<&'a str> {
        let own = self.keys.iter().map(String::as_str);
        first.iter().copied().chain(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_requests_are_forgotten_in_batches_and_once() {
        let (owners, known) = (Owners::new(), IdempotencyKeys::default());
        let keys = || RequestKeys::draw(&owners, "a", &known, 2);
        let first = keys();
        known.answered("a", first.number);
        let second = keys();
        assert_eq!(second.after(&["a"]).len(), 2);
        known.answered("a", second.number);
        assert_eq!(
            RequestKeys::draw(&owners, "b", &known, 1).after(&[]).len(),
            1
        );
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
