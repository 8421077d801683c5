//! Requests that count once, however often they are sent.
//!
//! A request without a reply is sent again, and may have been carried out before. So Redis keeps the outcome of each
//! request in a key of its own, for as long as the request may be repeated. Once a request that was sent once has its
//! reply, the next request about the same object deletes that key, so that keys do not pile up.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::net::call::{Call, CallPhase};
use crate::protocol::keys;
use crate::protocol::owner::{OwnerId, OwnerNumber, Owners};

/// How many requests are remembered here until their keys can be deleted. The keys of others expire.
const MOST: usize = 64;

/// The requests about one object whose keys can be deleted before they expire.
pub(crate) struct IdempotencyKeys {
    /// How many keys one request deletes, once there are so many.
    batch: usize,
    answered: Vec<OwnerNumber>,
    /// Releases that nobody waits for.
    pending: VecDeque<(OwnerNumber, Arc<Call>)>,
}

impl IdempotencyKeys {
    pub(crate) const fn new(batch: usize) -> Self {
        Self {
            batch,
            answered: Vec::new(),
            pending: VecDeque::new(),
        }
    }

    /// The request was answered, and sent once.
    pub(crate) fn answered(&mut self, number: OwnerNumber) {
        if self.answered.len() < MOST {
            self.answered.push(number);
        }
    }

    /// The request is on its way, and nobody waits for it.
    pub(crate) fn pending(&mut self, number: OwnerNumber, call: &Arc<Call>) {
        if self.pending.len() >= MOST {
            self.pending.pop_front();
        }
        self.pending.push_back((number, Arc::clone(call)));
    }

    /// The requests whose keys the next request deletes.
    fn take(&mut self) -> Vec<OwnerNumber> {
        while let Some((number, call)) = self.pending.front() {
            let its = call.state.lock();
            let sent_once = match its.phase {
                CallPhase::Idle | CallPhase::Awaiting => break,
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
        if self.answered.len() < self.batch {
            return Vec::new();
        }
        self.answered.drain(..self.batch).collect()
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
    /// For a request about the object at `key`.
    pub(crate) fn draw(owners: &Owners, key: &str, known: &mut IdempotencyKeys) -> Self {
        let mut drawn = Self::alone(owners, key);
        let forgotten = known.take();
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
        let owners = Owners::new();
        let mut known = IdempotencyKeys::new(2);
        let keys = |known: &mut IdempotencyKeys| RequestKeys::draw(&owners, "a", known);
        let first = keys(&mut known);
        known.answered(first.number);
        let second = keys(&mut known);
        assert_eq!(second.after(&["a"]).len(), 2);
        known.answered(second.number);
        let third = keys(&mut known);
        assert_eq!(
            third.after(&["a"]),
            ["a", third.own(), first.own(), second.own()]
        );
        assert_eq!(keys(&mut known).after(&[]).len(), 1);
    }

    #[test]
    fn only_so_many_are_kept_in_mind() {
        let mut known = IdempotencyKeys::new(usize::MAX);
        for number in 0..1_000 {
            known.answered(OwnerNumber(number));
        }
        assert_eq!(known.answered.len(), MOST);
    }
}
