//! Subscribers of a cluster: a channel may move to another node, and the node may cease to be a master.

use std::time::Instant;

use super::{State, Subscriber, Subscription};
use crate::net::slot::slot_of;
use crate::report::report;
use crate::verdict::Redirection;

impl Subscriber {
    /// The connection was lost or could not be made: another node may have the channels by now, so the masters are asked
    /// for.
    pub(super) fn look_around(&self) {
        self.map.doubt();
        let until = Instant::now() + self.settings.connect_timeout;
        self.map.look_around(until, &|| self.state.lock().stopped);
        self.leave_moved();
    }

    /// Called when the table of the masters has changed. `Subscribers::subscribe` also calls this if the table changed
    /// after it had chosen this node. Sends away those who wait on channels that another node has. Ends the thread if no
    /// channel is left and the node is no master.
    pub(in crate::net) fn masters_changed(&self) {
        self.leave_moved();
        let mut state = self.state.lock();
        if self.retire_if_unused(&mut state) {
            self.end_thread(state);
        }
    }

    /// Sets `retired` if no channel is wanted and the node is no master any more. Returns `retired`.
    pub(super) fn retire_if_unused(&self, state: &mut State) -> bool {
        if state.channels.is_empty() && !self.map.is_master(self.node) {
            state.retired = true;
        }
        state.retired
    }

    /// Sends away those who wait on channels that another node has.
    pub(super) fn leave_moved(&self) {
        let mut state = self.state.lock();
        state.channels.keep(|channel| {
            let master = self.map.master_of(Some(channel.as_bytes()));
            master.is_none_or(|master| master == self.node)
        });
        self.flush(state);
    }

    /// The node has said that another node has the channel of the oldest unanswered command.
    pub(super) fn follow(&self, redirection: &Redirection) {
        self.map.redirected(self.node, redirection);
        let is_meant = |channel: &str| slot_of(channel.as_bytes()) == redirection.slot;
        self.state.lock().channels.moved(is_meant);
    }

    /// The node has ended a subscription. If nobody has asked for that, the slot is elsewhere.
    pub(super) fn ended(&self, channel: &[u8]) {
        let Ok(channel) = std::str::from_utf8(channel) else {
            return;
        };
        let moved = self.state.lock().channels.ended(channel);
        if moved {
            report!(Debug, "the slot of `{channel}` has moved");
            self.map.doubt();
        }
    }
}

impl Subscription {
    /// Whether the channel belongs to another node of the cluster now. Then the waiting thread has to subscribe again
    /// there.
    pub(crate) fn has_moved(&self) -> bool {
        let subscriber = &self.subscriber;
        let listens = || {
            subscriber
                .state
                .lock()
                .channels
                .has(&self.channel, self.waiter)
        };
        !subscriber.map.is_one() && !listens()
    }
}
