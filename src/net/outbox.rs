//! Releases that the server has not acknowledged, kept to be sent again until they are of no use any more.
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
    /// By sequence number, so that the oldest is sent first, however often it was sent before.
    calls: BTreeMap<u64, Arc<Call>>,
    /// When each is of no use any more, and its sequence number.
    ends: BTreeSet<(Instant, u64)>,
    /// The hashes of the keys of each, and its sequence number. Keys with the same hash do no harm.
    keys: BTreeSet<(u64, u64)>,
    last_seq: u64,
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

    /// Adds a deferred call. One that was here before gets the position that it had; one that comes from another outbox has
    /// to come without its number there.
    pub(crate) fn keep(&mut self, call: &Arc<Call>) {
        let Some(info) = &call.deferred else {
            return;
        };
        let mut its = call.state.lock();
        if its.seq == 0 {
            self.last_seq += 1;
            its.seq = self.last_seq;
        }
        let seq = its.seq;
        drop(its);
        self.ends.insert((info.useful_until, seq));
        self.keys
            .extend(hashes(&call.request).map(|hash| (hash, seq)));
        let before = self.calls.insert(seq, Arc::clone(call));
        debug_assert!(before.is_none(), "two calls with the number {seq}");
    }

    /// Removes a call; `true` if it was here.
    pub(crate) fn remove(&mut self, call: &Arc<Call>) -> bool {
        let seq = call.state.lock().seq;
        // It may be in another outbox, which has numbers of its own.
        let is_here = self.calls.get(&seq);
        is_here.is_some_and(|its| Arc::ptr_eq(its, call)) && self.take(seq).is_some()
    }

    /// Removes the oldest.
    pub(crate) fn take_first(&mut self) -> Option<Arc<Call>> {
        let seq = *self.calls.first_key_value()?.0;
        self.take(seq)
    }

    /// Removes the oldest calls that concern a key of `request`, at most `most`.
    pub(crate) fn take_about(&mut self, request: &Request, most: usize) -> Vec<Arc<Call>> {
        let mut seqs = BTreeSet::new();
        for hash in hashes(request) {
            let about = self.keys.range((hash, 0)..=(hash, u64::MAX));
            seqs.extend(about.take(most).map(|(_, seq)| *seq));
        }
        let seqs = seqs.into_iter().take(most);
        seqs.filter_map(|seq| self.take(seq)).collect()
    }

    /// Removes one that is of no use any more.
    pub(crate) fn take_ended(&mut self, now: Instant) -> Option<Arc<Call>> {
        let (end, seq) = *self.ends.first()?;
        if now < end {
            return None;
        }
        self.take(seq)
    }

    /// Takes those out that do not belong here any more, the oldest first.
    pub(crate) fn take_strays(&mut self, belongs: impl Fn(&Arc<Call>) -> bool) -> Vec<Arc<Call>> {
        let strays = self.calls.iter().filter(|(_, call)| !belongs(call));
        let seqs: Vec<_> = strays.map(|(seq, _)| *seq).collect();
        let strays = seqs.into_iter().filter_map(|seq| self.take(seq));
        strays.inspect(|call| call.state.lock().seq = 0).collect()
    }

    fn take(&mut self, seq: u64) -> Option<Arc<Call>> {
        let call = self.calls.remove(&seq)?;
        if let Some(info) = &call.deferred {
            self.ends.remove(&(info.useful_until, seq));
        }
        for hash in hashes(&call.request) {
            self.keys.remove(&(hash, seq));
        }
        Some(call)
    }

    /// A copy, with each call replaced.
    #[cfg(test)]
    pub(super) fn copy(&self, of: impl Fn(&Arc<Call>) -> Arc<Call>) -> Self {
        let calls = self.calls.iter();
        Self {
            calls: calls.map(|(seq, call)| (*seq, of(call))).collect(),
            ends: self.ends.clone(),
            keys: self.keys.clone(),
            last_seq: self.last_seq,
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
    use crate::net::text::Text;
    use std::sync::LazyLock;
    use std::time::Duration;

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

    fn release(keys: &[&str], useful_until: Instant) -> Arc<Call> {
        Call::deferred(Deferred {
            request: Request::script("releasing", &SCRIPT, keys, &["o:1"]),
            info: DeferredInfo {
                name: keys[0].into(),
                owner: Text::default(),
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
    fn the_oldest_goes_first_and_back_to_its_position() {
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
    fn a_call_of_another_outbox_is_not_removed_here() {
        let later = Instant::now() + Duration::from_secs(1);
        let (a, b) = (release(&["a"], later), release(&["b"], later));
        let (mut here, mut there) = (Outbox::default(), Outbox::default());
        here.keep(&a);
        there.keep(&b);
        assert!(!there.remove(&a) && !here.remove(&b));
        assert!(here.remove(&a) && there.remove(&b));
        assert!(!here.remove(&a) && here.is_empty() && there.is_empty());
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
