//! Releases that no connection has acknowledged, until the next one can take them or they are of no use any more.
//!
//! Memory only, with no clock. Every operation costs the logarithm of how many there are, since an outage may leave
//! hundreds of thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use crate::net::call::Call;
use crate::net::request::Request;

#[derive(Default)]
pub(crate) struct Outbox {
    /// By place, so that the oldest goes first, however often it was sent.
    calls: BTreeMap<u64, Arc<Call>>,
    /// By the moment from which on it is of no use, and place.
    ends: BTreeSet<(Instant, u64)>,
    /// By the hash of each of its keys, and place. Two keys with one hash do no harm.
    keys: BTreeSet<(u64, u64)>,
    last_place: u64,
}

fn hashes(request: &Request) -> impl Iterator<Item = u64> {
    request.keys().map(|key| {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish()
    })
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Keeps a deferred call. One that was here before goes back to its place.
    pub(crate) fn keep(&mut self, call: &Arc<Call>) {
        let Some(info) = &call.deferred else {
            return;
        };
        let mut its = call.state.lock();
        if its.place == 0 {
            self.last_place += 1;
            its.place = self.last_place;
        }
        let place = its.place;
        drop(its);
        self.ends.insert((info.useful_until, place));
        self.keys
            .extend(hashes(&call.request).map(|hash| (hash, place)));
        self.calls.insert(place, Arc::clone(call));
    }

    /// Takes a call out; whether it was here.
    pub(crate) fn remove(&mut self, call: &Call) -> bool {
        let place = call.state.lock().place;
        self.take(place).is_some()
    }

    /// Takes the oldest out.
    pub(crate) fn take_first(&mut self) -> Option<Arc<Call>> {
        let place = *self.calls.first_key_value()?.0;
        self.take(place)
    }

    /// Takes those out that are about a key of `request`, the oldest first and not more than `most`.
    pub(crate) fn take_about(&mut self, request: &Request, most: usize) -> Vec<Arc<Call>> {
        let mut places = BTreeSet::new();
        for hash in hashes(request) {
            let about = self.keys.range((hash, 0)..=(hash, u64::MAX));
            places.extend(about.take(most).map(|(_, place)| *place));
        }
        let places = places.into_iter().take(most);
        places.filter_map(|place| self.take(place)).collect()
    }

    /// Takes one out that is of no use any more.
    pub(crate) fn take_ended(&mut self, now: Instant) -> Option<Arc<Call>> {
        let (end, place) = *self.ends.first()?;
        if now < end {
            return None;
        }
        self.take(place)
    }

    fn take(&mut self, place: u64) -> Option<Arc<Call>> {
        let call = self.calls.remove(&place)?;
        if let Some(info) = &call.deferred {
            self.ends.remove(&(info.useful_until, place));
        }
        for hash in hashes(&call.request) {
            self.keys.remove(&(hash, place));
        }
        Some(call)
    }

    /// The same calls, or what stands for each.
    #[cfg(test)]
    pub(super) fn copy(&self, of: impl Fn(&Arc<Call>) -> Arc<Call>) -> Self {
        let calls = self.calls.iter();
        Self {
            calls: calls.map(|(place, call)| (*place, of(call))).collect(),
            ends: self.ends.clone(),
            keys: self.keys.clone(),
            last_place: self.last_place,
        }
    }

    #[cfg(test)]
    pub(super) fn calls(&self) -> impl Iterator<Item = &Arc<Call>> {
        self.calls.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::call::{Deferred, DeferredInfo};
    use crate::net::request::Script;
    use std::sync::LazyLock;
    use std::time::Duration;

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

    fn release(keys: &[&str], useful_until: Instant) -> Arc<Call> {
        Call::deferred(Deferred {
            request: Request::script("releasing", &SCRIPT, keys, &["o:1"]),
            info: DeferredInfo {
                name: keys[0].into(),
                useful_until,
                undo: false,
                for_good: false,
            },
        })
    }

    fn names(calls: &[Arc<Call>]) -> Vec<&str> {
        let info = calls.iter().filter_map(|call| call.deferred.as_ref());
        info.map(|info| &*info.name).collect()
    }

    #[test]
    fn the_oldest_goes_first_and_back_to_its_place() {
        let later = Instant::now() + Duration::from_secs(1);
        let (a, b) = (release(&["a"], later), release(&["b"], later));
        let mut outbox = Outbox::default();
        outbox.keep(&a);
        outbox.keep(&b);
        let first = outbox.take_first().expect("two are there");
        assert!(Arc::ptr_eq(&first, &a));
        outbox.keep(&first);
        let all: Vec<_> = std::iter::from_fn(|| outbox.take_first()).collect();
        assert_eq!(names(&all), ["a", "b"]);
        assert!(outbox.is_empty() && outbox.ends.is_empty() && outbox.keys.is_empty());
    }

    #[test]
    fn what_is_about_a_key_is_found_by_each_of_its_keys() {
        let later = Instant::now() + Duration::from_secs(1);
        let mut outbox = Outbox::default();
        for keys in [&["a", "b"][..], &["c"], &["b"], &["b", "c"]] {
            outbox.keep(&release(keys, later));
        }
        let fresh = Request::script("acquiring", &SCRIPT, &["b"], &["o:2", "1"]);
        assert_eq!(names(&outbox.take_about(&fresh, 2)), ["a", "b"]);
        assert_eq!(names(&outbox.take_about(&fresh, 2)), ["b"]);
        assert!(outbox.take_about(&fresh, 2).is_empty());
        assert_eq!(outbox.calls.len(), 1);
    }

    #[test]
    fn what_is_of_no_use_any_more_is_found_without_looking_at_the_rest() {
        let now = Instant::now();
        let after = |n| now + Duration::from_secs(n);
        let mut outbox = Outbox::default();
        for (name, end) in [("late", 9), ("soon", 1), ("next", 2)] {
            outbox.keep(&release(&[name], after(end)));
        }
        assert!(outbox.take_ended(now).is_none());
        let ended: Vec<_> = std::iter::from_fn(|| outbox.take_ended(after(2))).collect();
        assert_eq!(names(&ended), ["soon", "next"]);
        assert!(!outbox.is_empty());
    }
}
