//! The subscribers of a client, behind one interface: one, or one for each master of a cluster that announces something.
//!
//! A sharded channel is known only to the master of its slot, so there is one connection for each master, and a thread
//! that reads it. Plain channels of a cluster are subscribed to at the same place: a message reaches every node.

use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::thread;

#[cfg(feature = "cluster")]
use parking_lot::{Condvar, Mutex};

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
            Self::Cluster(by_master) => by_master.of(channel).subscribe(channel, waiter),
        }
    }

    /// See [`Subscriber::listens_to`].
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        match self {
            Self::Single(subscriber) => subscriber.listens_to(channel),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.of(channel).listens_to(channel),
        }
    }

    /// See [`Subscriber::end_lingering`].
    pub(crate) fn end_lingering(&self, channel: &str) {
        match self {
            Self::Single(subscriber) => subscriber.end_lingering(channel),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => by_master.of(channel).end_lingering(channel),
        }
    }

    /// How many channels are wanted.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Single(subscriber) => subscriber.len(),
            #[cfg(feature = "cluster")]
            Self::Cluster(by_master) => {
                let known = by_master.state.lock().known.clone();
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

/// One subscriber for each master; each has a thread from its first channel on.
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
    known: Vec<Arc<Subscriber>>,
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

    fn of(&self, channel: &str) -> Arc<Subscriber> {
        let node = self.map.master_of(Some(channel.as_bytes())).unwrap_or(0);
        let mut state = self.state.lock();
        while state.known.len() <= node {
            let subscriber = (self.make)(state.known.len());
            if state.stopped {
                subscriber.stop();
            }
            state.known.push(subscriber);
        }
        let subscriber = Arc::clone(&state.known[node]);
        drop(state);
        self.changed.notify_all();
        subscriber
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        for subscriber in &state.known {
            subscriber.stop();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Starts a thread for every subscriber, and waits for them.
    fn run(&self) {
        thread::scope(|scope| {
            let mut running = 0;
            let mut state = self.state.lock();
            while !state.stopped {
                let Some(subscriber) = state.known.get(running).cloned() else {
                    self.changed.wait(&mut state);
                    continue;
                };
                running += 1;
                let thread = thread::Builder::new().name("redlatch-subscriber".into());
                if let Err(err) = thread.spawn_scoped(scope, move || subscriber.run()) {
                    report!(
                        Warn,
                        "a thread for messages could not be started ({err}); threads that wait ask again and again"
                    );
                }
            }
        });
    }
}
