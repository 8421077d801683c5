//! Runs the user's listener on a thread of its own.
//!
//! A listener may block, panic, or use this crate. So it runs neither on the threads of this crate nor on threads
//! that call into it. Items are queued, which takes no time and is safe under any mutex.

use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use parking_lot::Mutex;

/// Calls a listener with one item after another, on a thread that exists while there are items.
pub(crate) struct Callback<T> {
    thread: &'static str,
    call: Box<dyn Fn(&T) + Send + Sync>,
    panicked: fn(&T),
    state: Mutex<CallbackState<T>>,
}

struct CallbackState<T> {
    queue: VecDeque<T>,
    running: bool,
}

impl<T: Send + 'static> Callback<T> {
    /// `panicked` is called with an item on which `call` panicked.
    pub(crate) fn new(
        thread: &'static str,
        call: impl Fn(&T) + Send + Sync + 'static,
        panicked: fn(&T),
    ) -> Arc<Self> {
        Arc::new(Self {
            thread,
            call: Box::new(call),
            panicked,
            state: Mutex::new(CallbackState {
                queue: VecDeque::new(),
                running: false,
            }),
        })
    }

    /// Queues an item. If no thread can be started, the item stays queued, and the next call tries again.
    pub(crate) fn give(self: &Arc<Self>, item: T) -> io::Result<()> {
        let mut state = self.state.lock();
        state.queue.push_back(item);
        if std::mem::replace(&mut state.running, true) {
            return Ok(());
        }
        drop(state);
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name(self.thread.into());
        let spawned = thread.spawn(move || this.run());
        if spawned.is_err() {
            self.state.lock().running = false;
        }
        spawned.map(drop)
    }

    fn run(&self) {
        while let Some(item) = self.next() {
            let called = std::panic::catch_unwind(AssertUnwindSafe(|| (self.call)(&item)));
            if called.is_err() {
                (self.panicked)(&item);
            }
        }
    }

    fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        let item = state.queue.pop_front();
        if item.is_none() {
            state.queue = VecDeque::new();
            state.running = false;
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crossbeam_channel::{Receiver, bounded, unbounded};

    const LONG: Duration = Duration::from_secs(20);

    /// Sends every item except `panics` to the receiver; panics on that one.
    fn callback(panics: u32) -> (Arc<Callback<u32>>, Receiver<u32>) {
        let (sender, received) = unbounded();
        let call = move |n: &u32| {
            assert_ne!(*n, panics, "on purpose");
            sender.send(*n).unwrap_or_default();
        };
        (Callback::new("redlatch-test", call, |_| {}), received)
    }

    #[track_caller]
    fn assert_received(received: &Receiver<u32>, items: impl IntoIterator<Item = u32>) {
        for item in items {
            assert_eq!(received.recv_timeout(LONG), Ok(item));
        }
    }

    #[test]
    fn items_are_handed_over_in_order() {
        let (callback, received) = callback(u32::MAX);
        for n in 0..1000 {
            callback.give(n).expect("a thread");
        }
        assert_received(&received, 0..1000);
    }

    #[test]
    fn a_panic_over_one_item_does_not_keep_the_next_from_being_handed_over() {
        let (callback, received) = callback(1);
        for n in 0..3 {
            callback.give(n).expect("a thread");
        }
        assert_received(&received, [0, 2]);
    }

    #[test]
    fn whoever_gives_an_item_does_not_wait_for_the_one_before() {
        let (release, released) = bounded::<()>(0);
        let (sender, received) = unbounded();
        let call = move |n: &u32| {
            released.recv_timeout(LONG).unwrap_or_default();
            sender.send(*n).unwrap_or_default();
        };
        let callback = Callback::new("redlatch-test", call, |_| {});
        for n in 0..3 {
            callback.give(n).expect("a thread");
        }
        assert!(received.is_empty());
        drop(release);
        assert_received(&received, 0..3);
    }

    #[test]
    fn a_callback_may_give_more() {
        let (sender, received) = unbounded();
        let own: Arc<std::sync::OnceLock<Arc<Callback<u32>>>> = Arc::default();
        let its_own = Arc::clone(&own);
        let call = move |n: &u32| {
            sender.send(*n).unwrap_or_default();
            let own = its_own.get().expect("set before the first item");
            if *n > 0 {
                own.give(n - 1).expect("the thread runs");
            }
        };
        let callback = own.get_or_init(|| Callback::new("redlatch-test", call, |_| {}));
        callback.give(3).expect("a thread");
        assert_received(&received, (0..=3).rev());
    }
}
