//! The subscribers of a client: one for each master on whose channels a thread has waited, made at the first wait.
//!
//! ```text
//!            somebody subscribes                the node is no master any more, and nobody waits
//!    none ───────────────────────► its thread ──────────────────────────────────────────────────► none
//! ```
//!
//! A message on a sharded channel reaches only the nodes of the shard that has the channel's slot. So the client has a
//! connection to the master of each shard on whose channels a thread has waited, and a thread that reads from this
//! connection. Plain channels are subscribed to at the same node, although any node would do: a message reaches all nodes.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use crate::net::channels::Listener;
use crate::net::connection::Settings;
use crate::net::masters::Masters;
use crate::net::subscriber::{Subscriber, Subscription};
use crate::report::report;

/// The name of the threads.
pub(crate) const THREAD: &str = "redlatch-subscriber";

/// The subscribers of a client, which hear of releases for all waiting threads.
pub(crate) struct Subscribers {
    map: Arc<Masters>,
    settings: Settings,
    state: Mutex<SubscribersState>,
    /// Disconnected when all threads have ended and no more are started.
    ended: Receiver<()>,
    this: Weak<Self>,
}

struct SubscribersState {
    /// By the number of the node.
    known: HashMap<usize, Arc<Subscriber>>,
    /// The version of the table of masters that the subscribers follow.
    version: u64,
    /// Each thread holds a clone until it ends; `None` once no more threads are started.
    running: Option<Sender<()>>,
}

impl Subscribers {
    pub(crate) fn new(map: Arc<Masters>, settings: Settings) -> Arc<Self> {
        let (running, ended) = bounded(0);
        Arc::new_cyclic(|this| Self {
            map,
            settings,
            state: Mutex::new(SubscribersState {
                known: HashMap::new(),
                version: 0,
                running: Some(running),
            }),
            ended,
            this: Weak::clone(this),
        })
    }

    fn node_of(&self, channel: &str) -> usize {
        self.map.master_of(Some(channel.as_bytes())).unwrap_or(0)
    }

    /// The subscriber for a channel, if there is one.
    fn known(&self, channel: &str) -> Option<Arc<Subscriber>> {
        let node = self.node_of(channel);
        self.state.lock().known.get(&node).cloned()
    }

    /// Starts the subscriber's thread for `channel`, unless it runs already.
    pub(crate) fn start(&self, channel: &str) -> io::Result<()> {
        self.at(self.node_of(channel)).map(drop)
    }

    /// See [`Subscriber::try_subscribe`].
    pub(crate) fn subscribe(
        &self,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Subscription {
        loop {
            let node = self.node_of(channel);
            let subscriber = self.at(node).unwrap_or_else(|err| {
                report!(
                    Warn,
                    "the thread for messages could not be started: {err}; waiting threads poll"
                );
                self.subscriber_of(node)
            });
            match subscriber.try_subscribe(channel, waiter) {
                Some(subscription) => {
                    // If the table changed after `node_of`, `masters_changed` may have run before this channel was there.
                    if self.node_of(channel) != node {
                        subscriber.masters_changed();
                    }
                    return subscription;
                }
                // The thread has ended, or is about to. `forget` removes only this subscriber, so a successor that another
                // waiter has started by now stays.
                None => self.forget(node, &subscriber),
            }
        }
    }

    fn subscriber_of(&self, node: usize) -> Arc<Subscriber> {
        Subscriber::new(Arc::clone(&self.map), node, self.settings.clone())
    }

    fn at(&self, node: usize) -> io::Result<Arc<Subscriber>> {
        let mut state = self.state.lock();
        if let Some(known) = state.known.get(&node) {
            return Ok(Arc::clone(known));
        }
        let subscriber = self.subscriber_of(node);
        let Some(running) = state.running.clone() else {
            // After `stop`, `join` must not wait for a new thread.
            subscriber.stop();
            return Ok(subscriber);
        };
        // The thread may end at once. `forget` waits for this mutex, and so finds the entry that is inserted below.
        let (thread_subscriber, all) = (Arc::clone(&subscriber), Weak::clone(&self.this));
        thread::Builder::new().name(THREAD.into()).spawn(move || {
            let _running = running;
            thread_subscriber.run();
            if let Some(all) = all.upgrade() {
                all.forget(node, &thread_subscriber);
            }
        })?;
        state.known.insert(node, Arc::clone(&subscriber));
        Ok(subscriber)
    }

    /// Removes a subscriber whose thread has ended, or is about to.
    fn forget(&self, node: usize, subscriber: &Arc<Subscriber>) {
        let mut state = self.state.lock();
        let known = state.known.get(&node);
        if known.is_some_and(|known| Arc::ptr_eq(known, subscriber)) {
            state.known.remove(&node);
        }
    }

    /// See [`Subscriber::listens_to`].
    pub(crate) fn listens_to(&self, channel: &str) -> bool {
        let subscriber = self.known(channel);
        subscriber.is_some_and(|subscriber| subscriber.listens_to(channel))
    }

    /// See [`Subscriber::end_lingering`].
    pub(crate) fn end_lingering(&self, channel: &str) {
        if let Some(subscriber) = self.known(channel) {
            subscriber.end_lingering(channel);
        }
    }

    /// How many channels are wanted.
    pub(crate) fn len(&self) -> usize {
        let known: Vec<_> = self.state.lock().known.values().cloned().collect();
        known.iter().map(|subscriber| subscriber.len()).sum()
    }

    /// Tells the subscribers that the table of the masters has changed, unless they know this version.
    pub(crate) fn follow_masters(&self) {
        let version = self.map.version();
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.version, version) == version {
            return;
        }
        let known: Vec<_> = state.known.values().cloned().collect();
        drop(state);
        known
            .iter()
            .for_each(|subscriber| subscriber.masters_changed());
    }

    /// Makes the threads end.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.running = None;
        // The mutex is not released between clearing `running` and listing the subscribers. So a subscriber that `at` starts
        // is in the list, or its thread is not started.
        let known: Vec<_> = state.known.values().cloned().collect();
        drop(state);
        known.iter().for_each(|subscriber| subscriber.stop());
    }

    /// Waits for the threads to end, at most until `until`. Returns whether they did.
    pub(crate) fn join(&self, until: Instant) -> bool {
        self.ended.recv_deadline(until) != Err(RecvTimeoutError::Timeout)
    }
}

#[cfg(test)]
mod tests;
