//! What a subscriber has to do with a cluster: a channel may move to another node, and the node may cease to be a master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use redis::RedisError;

use super::{State, Subscriber, Subscription};
use crate::net::channels::{Channels, Listener};
use crate::net::cluster::{Map, Redirected};
use crate::net::slot::slot_of;
use crate::process::Process;
use crate::report::report;
use crate::stats::Counters;

/// One node of a cluster, which has the channels of its slots.
pub(crate) struct Place {
    pub(crate) map: Arc<Map>,
    pub(crate) node: usize,
}

impl Place {
    fn has(&self, channel: &str) -> bool {
        let master = self.map.master_of(Some(channel.as_bytes()));
        master.is_none_or(|master| master == self.node)
    }
}

impl Subscriber {
    /// The subscriber of one node of a cluster.
    pub(crate) fn of_node(
        place: Place,
        connect_timeout: Duration,
        response_timeout: Duration,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let state = State {
            channels: Channels::new(place.map.is_sharded()),
            ..State::default()
        };
        Arc::new(Self {
            endpoint: place.map.endpoint(place.node),
            place: Some(place),
            connect_timeout,
            response_timeout,
            counters,
            state: Mutex::new(state),
            changed: Condvar::new(),
            process: Process::this(),
        })
    }

    /// Subscribes to `channel`, unless its thread has ended since its node is no master any more.
    pub(crate) fn try_subscribe(
        self: &Arc<Self>,
        channel: &Arc<str>,
        waiter: &Arc<impl Listener + 'static>,
    ) -> Option<Subscription> {
        let state = self.state.lock();
        (!state.retired).then(|| self.subscribe_in(state, channel, waiter))
    }

    /// The connection is lost, or there is none: somebody else may have the channels by now.
    pub(super) fn look_around(&self, place: &Place) {
        place.map.doubt();
        let until = Instant::now() + self.connect_timeout;
        let asked = place.map.refresh(until, &mut || !self.state.lock().stopped);
        if let Err(err) = asked {
            report!(Debug, "looking for the masters of the cluster: {err}");
        }
        self.leave_moved(place);
    }

    /// Whether the thread has nothing to do any more.
    pub(super) fn retires(place: &Place, state: &mut State) -> bool {
        if state.channels.is_empty() && !place.map.is_master(place.node) {
            state.retired = true;
        }
        state.retired
    }

    /// Sends away those who wait on channels that another node has.
    pub(super) fn leave_moved(&self, place: &Place) {
        let mut state = self.state.lock();
        state.channels.keep(|channel| place.has(channel));
        self.flush(state);
    }

    /// The node has said that another one has the channel of the oldest command; whether that was understood.
    pub(super) fn follow(&self, err: &RedisError) -> bool {
        let Some(place) = &self.place else {
            return false;
        };
        if !matches!(place.map.redirected(place.node, err), Redirected::To(_)) {
            return false;
        }
        let Some((_, moved)) = err.redirect_node() else {
            return false;
        };
        let mut state = self.state.lock();
        let is_meant = |channel: &str| slot_of(channel.as_bytes()) == moved;
        state.channels.moved(is_meant);
        drop(state);
        true
    }

    /// The node has ended a subscription. If nobody has asked for that, the slot is elsewhere.
    pub(super) fn ended(&self, channel: &[u8]) {
        let Ok(channel) = std::str::from_utf8(channel) else {
            return;
        };
        let moved = self.state.lock().channels.ended(channel);
        if let (true, Some(place)) = (moved, &self.place) {
            report!(Debug, "the slot of `{channel}` has moved");
            place.map.doubt();
        }
    }
}

impl Subscription {
    /// Whether its channel belongs to another node of the cluster now, where its thread has to subscribe anew.
    pub(crate) fn has_moved(&self) -> bool {
        let subscriber = &self.subscriber;
        let listens = || {
            subscriber
                .state
                .lock()
                .channels
                .has(&self.channel, self.waiter)
        };
        subscriber.place.is_some() && !listens()
    }
}
