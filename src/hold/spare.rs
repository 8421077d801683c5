//! The memory of one hold that is over, and of one waiter, which each thread keeps for its next one.
//!
//! A guard is dropped by the thread that has acquired it, so a thread that locks again and again needs no new memory for
//! its holds. The watchdog, a request under way or another guard may refer to a hold after that: then its memory is not
//! kept. Likewise a thread that is handed lock after lock by others of its process needs one waiter.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use crate::hold::{Hold, Waiter};

std::thread_local! {
    static SPARE: Cell<Option<Arc<Hold>>> = const { Cell::new(None) };
    static SPARE_WAITER: Cell<Option<Arc<Waiter>>> = const { Cell::new(None) };
}

impl Hold {
    /// This hold, in the memory of the spare one if there is one.
    pub(crate) fn placed(self) -> Arc<Self> {
        if let Ok(Some(mut spare)) = SPARE.try_with(Cell::take)
            && let Some(place) = Arc::get_mut(&mut spare)
        {
            *place = self;
            return spare;
        }
        Arc::new(self)
    }

    /// Makes a hold that is over the spare one of this thread, if nobody else refers to it.
    pub(crate) fn recycle(hold: &mut Arc<Self>) {
        // Cheaper than to find that out by trying, for one that goes on in another thread.
        if Arc::strong_count(hold) > 1 {
            return;
        }
        let Some(its) = Arc::get_mut(hold) else {
            return;
        };
        // A thread that locks nothing more must not keep the name in the registry, nor the channels of listeners open.
        its.entry = None;
        its.extras = OnceLock::new();
        let spare = Some(Arc::clone(hold));
        // Not if the thread is about to end.
        SPARE.try_with(|place| place.set(spare)).unwrap_or_default();
    }
}

impl Waiter {
    /// A waiter of the calling thread, in the memory of its spare one if there is one.
    pub(crate) fn placed() -> Arc<Self> {
        let spare = SPARE_WAITER.try_with(Cell::take).unwrap_or_default();
        spare.unwrap_or_default()
    }

    /// Makes a waiter of the calling thread its spare one, if nobody else refers to it.
    pub(crate) fn recycle(mut waiter: Arc<Self>) {
        if let Some(its) = Arc::get_mut(&mut waiter) {
            its.clear();
            SPARE_WAITER
                .try_with(|place| place.set(Some(waiter)))
                .unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crate::hold::{Entry, Registry, Wakeup};
    use crate::local::lock::{LeasePolicy, Mode, Start};
    use crate::net::channels::Listener;
    use crate::protocol::owner::{OwnerNumber, Owners};
    use crate::protocol::reentrant;

    fn entry() -> Arc<Entry> {
        let owners = Arc::new(Owners::of("me"));
        let registry = Registry::new(String::new(), 0, false, Duration::ZERO, &owners);
        let entry = registry.unregistered(&reentrant::KIND, &"a".into());
        entry.expect("a name")
    }

    fn hold(entry: &Arc<Entry>, number: u64) -> Hold {
        let (entry, number) = (Arc::clone(entry), OwnerNumber(number));
        let lease = LeasePolicy::Renewed { max_hold: None };
        let ttl = Duration::from_secs(30);
        Hold::new(entry, Mode::Exclusive, number, lease, ttl)
    }

    #[test]
    fn the_memory_of_a_hold_is_used_again_once_nobody_refers_to_it() {
        let entry = entry();
        let mut first = hold(&entry, 1).placed();
        let (place, other) = (Arc::as_ptr(&first), Arc::clone(&first));
        Hold::recycle(&mut first);
        let second = hold(&entry, 2).placed();
        assert!(Arc::as_ptr(&second) != place && &*other.owner() == "me:1");
        drop(other);

        let weak = Arc::downgrade(&first);
        Hold::recycle(&mut first);
        assert_eq!(weak.upgrade().map(|it| it.number), Some(OwnerNumber(1)));
        assert_eq!(Arc::strong_count(&entry), 3);
        drop(weak);

        first.end();
        first.has_tokens(1, 2);
        Hold::recycle(&mut first);
        assert_eq!(Arc::strong_count(&entry), 2, "it keeps the entry");
        assert!(first.extras.get().is_none(), "it keeps listeners");
        drop(first);
        let third = hold(&entry, 3).placed();
        assert!(Arc::as_ptr(&third) == place && third.is_held());
        assert_eq!((&*third.owner(), &**third.entry().name()), ("me:3", "a"));
        let fourth = hold(&entry, 4).placed();
        assert!(Arc::as_ptr(&fourth) != place, "two in one place");
    }

    #[test]
    fn the_memory_of_a_waiter_is_used_again_once_nobody_refers_to_it() {
        let first = Waiter::placed();
        let (place, other) = (Arc::as_ptr(&first), Arc::clone(&first));
        Waiter::recycle(first);
        assert!(
            Arc::as_ptr(&Waiter::placed()) != place,
            "somebody may wake it"
        );

        other.store(Wakeup::Contend(Start::Ask));
        other.set_listening(true);
        let seen = other.signals();
        Waiter::recycle(other);
        let second = Waiter::placed();
        assert_eq!(Arc::as_ptr(&second), place);
        assert!(second.take_wakeup().is_none() && second.signals().are_news_since(seen));
        assert!(Arc::as_ptr(&Waiter::placed()) != place, "two in one place");
    }
}
