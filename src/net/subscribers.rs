//! The subscribers of a client, behind one interface: one, or one for each master of a cluster that announces something.
//!
//! A sharded channel is known only to the master of its slot, so there is one connection for each master, and a thread
//! that reads it. Plain channels of a cluster are subscribed to at the same place: a message reaches every node.

use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::{collections::HashMap, thread};

#[cfg(feature = "cluster")]
use parking_lot::{Condvar, Mutex};

use crate::net::call::Call;
use crate::net::channels::Listener;
#[cfg(feature = "cluster")]
use crate::net::cluster::Map;
use crate::net::subscriber::{Subscriber, Subscription};
#[cfg(feature = "cluster")]
use crate::report::report;

/// Those who hear of releases for all who wait.
pub(crate) enum Subscribers {
    Single(Arc<Subscriber>),
    #[cfg(feature = "cluster")]
    Cluster(ByMaster),
}

impl Subscribers {
    /// See [`Subscriber::subscribe`].
    pub(crate) fn subscribe(
        &self,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Subscription {
        match self {
            Self::Single(subscriber) => subscriber.subscribe(channel, waiter),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.subscribe(channel, waiter),
        }
    }

    /// See [`Subscriber::take_over`].
    pub(crate) fn take_over(
        &self,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
        last: &Call,
    ) -> Option<Subscription> {
        match self {
            Self::Single(subscriber) => subscriber.take_over(channel, waiter, last),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.known(channel)?.take_over(channel, waiter, last),
        }
    }

    /// See [`Subscriber::messages`].
    pub(crate) fn messages(&self, channel: &str) -> Option<u64> {
        match self {
            Self::Single(subscriber) => subscriber.messages(channel),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.known(channel)?.messages(channel),
        }
    }

    /// See [`Subscriber::listens_to`].
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        match self {
            Self::Single(subscriber) => subscriber.listens_to(channel),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => {
                let its = by_master.known(channel);
                its.is_some_and(|its| its.listens_to(channel))
            }
        }
    }

    /// See [`Subscriber::end_lingering`].
    pub(crate) fn end_lingering(&self, channel: &str) {
        match self {
            Self::Single(subscriber) => subscriber.end_lingering(channel),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => {
                if let Some(its) = by_master.known(channel) {
                    its.end_lingering(channel);
                }
            }
        }
    }

    /// How many channels are wanted.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Single(subscriber) => subscriber.len(),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => {
                let known: Vec<_> = by_master.state.lock().known.values().cloned().collect();
                known.iter().map(|its| its.len()).sum()
            }
        }
    }

    /// What the thread runs.
    pub(crate) fn run(&self) {
        match self {
            Self::Single(subscriber) => subscriber.run(),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.run(),
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        match self {
            Self::Single(subscriber) => subscriber.stop(),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.stop(),
        }
    }
}

/// One subscriber for each master on whose channels anybody waits.
///
/// ```text
///            somebody subscribes                the node is no master any more, and nobody waits
///    none ───────────────────────► its thread ──────────────────────────────────────────────────► none
/// ```
#[cfg(feature = "cluster")]
pub(crate) struct ByMaster {
    map: Arc<Map>,
    make: Box<dyn Fn(usize) -> Arc<Subscriber> + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

#[cfg(feature = "cluster")]
#[derive(Default)]
struct State {
    /// By the number of the node.
    known: HashMap<usize, Arc<Subscriber>>,
    /// Those without a thread yet.
    new: Vec<(usize, Arc<Subscriber>)>,
    stopped: bool,
}

#[cfg(feature = "cluster")]
impl ByMaster {
    /// `make` makes the subscriber of a node.
    pub(crate) fn new(
        map: Arc<Map>,
        make: impl Fn(usize) -> Arc<Subscriber> + Send + Sync + 'static,
    ) -> Self {
        Self {
            map,
            make: Box::new(make),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn node_of(&self, channel: &str) -> usize {
        self.map.master_of(Some(channel.as_bytes())).unwrap_or(0)
    }

    /// The subscriber for a channel, if there is one.
    fn known(&self, channel: &str) -> Option<Arc<Subscriber>> {
        let node = self.node_of(channel);
        self.state.lock().known.get(&node).cloned()
    }

    fn subscribe(&self, channel: &Arc<str>, waiter: &Arc<impl Listener + 'static>) -> Subscription {
        loop {
            let node = self.node_of(channel);
            let subscriber = self.at(node);
            match subscriber.try_subscribe(channel, waiter) {
                Some(subscription) => return subscription,
                None => self.forget(node, &subscriber),
            }
        }
    }

    fn at(&self, node: usize) -> Arc<Subscriber> {
        let mut state = self.state.lock();
        if let Some(known) = state.known.get(&node) {
            return Arc::clone(known);
        }
        let subscriber = (self.make)(node);
        if state.stopped {
            subscriber.stop();
        }
        state.known.insert(node, Arc::clone(&subscriber));
        state.new.push((node, Arc::clone(&subscriber)));
        drop(state);
        self.changed.notify_all();
        subscriber
    }

    /// Its thread has ended, or is about to.
    fn forget(&self, node: usize, subscriber: &Arc<Subscriber>) {
        let mut state = self.state.lock();
        let known = state.known.get(&node);
        if known.is_some_and(|its| Arc::ptr_eq(its, subscriber)) {
            state.known.remove(&node);
        }
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        for subscriber in state.known.values() {
            subscriber.stop();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Starts a thread for every subscriber, and waits for them.
    fn run(&self) {
        thread::scope(|scope| {
            let mut state = self.state.lock();
            while !state.stopped {
                let Some((node, subscriber)) = state.new.pop() else {
                    self.changed.wait(&mut state);
                    continue;
                };
                let thread = thread::Builder::new().name("redlatch-subscriber".into());
                let run = move || {
                    subscriber.run();
                    self.forget(node, &subscriber);
                };
                if let Err(err) = thread.spawn_scoped(scope, run) {
                    report!(
                        Warn,
                        "a thread for messages could not be started ({err}); threads that wait ask again and again"
                    );
                }
            }
        });
    }
}

#[cfg(all(test, feature = "cluster"))]
mod tests {
    use super::*;

    use std::time::{Duration, Instant};

    use crate::config::server::{Address, Server};
    use crate::net::cluster::Redirected;
    use crate::net::slot::slot_of;
    use crate::net::socket::Endpoint;
    use crate::net::subscriber::Place;

    struct Deaf;

    impl Listener for Deaf {
        fn message(&self) {}

        fn set_listening(&self, _: bool) {}
    }

    /// A cluster whose nodes are away.
    fn map() -> Arc<Map> {
        let server = Server::of("redis+cluster://127.0.0.1:1/", String::new());
        let endpoint = Endpoint::new(server.expect("a good URL"));
        Arc::new(Map::new(
            endpoint,
            vec![Address::Tcp("127.0.0.1".into(), 1)],
        ))
    }

    /// The slot of the channel moves to the node with this port.
    fn moves(map: &Map, channel: &str, port: u16) {
        let slot = slot_of(channel.as_bytes());
        let moved = format!("-MOVED {slot} 127.0.0.1:{port}\r\n");
        let moved = redis::parse_redis_value(moved.as_bytes()).expect("a reply");
        let moved = moved.extract_error().expect_err("an error");
        let to = map.redirected(0, &moved);
        assert!(matches!(to, Redirected::To(_)), "{to:?}");
    }

    #[test]
    fn there_is_a_thread_for_each_master_at_which_somebody_waits_and_no_other() {
        let map = map();
        let its = Arc::clone(&map);
        let timeout = Duration::from_secs(1);
        let subscribers = ByMaster::new(Arc::clone(&map), move |node| {
            let map = Arc::clone(&its);
            Subscriber::of_node(Place { map, node }, timeout, timeout, Arc::default())
        });
        let channels: [Arc<str>; 3] = ["a", "b", "c"].map(Arc::from);
        for (port, channel) in (2..).zip(&channels) {
            moves(&map, channel, port);
        }
        let known = || {
            let mut known: Vec<_> = subscribers.state.lock().known.keys().copied().collect();
            known.sort_unstable();
            known
        };
        assert!(subscribers.known(&channels[2]).is_none());
        thread::scope(|scope| {
            scope.spawn(|| subscribers.run());
            let waiter = Arc::new(Deaf);
            let [_, b, c] = &channels;
            let first = subscribers.subscribe(c, &waiter);
            assert_eq!(known(), [2]);
            let second = subscribers.subscribe(b, &waiter);
            assert_eq!(known(), [1, 2]);
            assert!(!first.has_moved() && !second.has_moved());
            // Whoever waits there is sent away, and then there is nothing left to be done.
            moves(&map, c, 3);
            let until = Instant::now() + Duration::from_secs(60);
            while known() != [1] {
                assert!(Instant::now() < until, "{:?}", known());
                thread::yield_now();
            }
            assert!(first.has_moved() && !second.has_moved());
            drop(first);
            let again = subscribers.subscribe(c, &waiter);
            assert!(!again.has_moved());
            // The master may be one again.
            moves(&map, c, 4);
            let third = subscribers.subscribe(c, &waiter);
            assert_eq!(known(), [1, 2]);
            // One that is stopped before it has a thread is never forgotten.
            while !subscribers.state.lock().new.is_empty() {
                thread::yield_now();
            }
            subscribers.stop();
            drop((second, third, again));
        });
        assert!(known().is_empty());
    }
}
