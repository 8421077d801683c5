//! What one node keeps of a hold.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::LossReason;
use crate::hold::schedule::{Scheduled, Times};
use crate::hold::validity::Duty;
use crate::hold::{Armed, Hold, LossSink, Next, Renewable};
use crate::net::call::{Deferred, Undo};
use crate::net::request::Request;
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, Renewed};
use crate::report::report;

/// What one node keeps of a hold, or is asked to keep, under one owner id.
pub(super) struct NodeHold {
    hold: Hold,
    pub(super) owner: OwnerId,
    keeper: Weak<dyn Keeper>,
    node: usize,
}

/// The hold of which this is one node's part.
pub(super) trait Keeper: Send + Sync {
    fn is_held(&self) -> bool;

    /// How many times its thread has locked it.
    fn count(&self) -> u32;

    fn renewal_has_failed(&self);

    /// Does what is due for this node; `true` if `node_hold` has to be renewed now.
    fn attend(&self, node: usize, node_hold: &Arc<NodeHold>) -> bool;

    /// The node has answered a renewal that was sent at `sent_at`.
    fn settle(&self, node: usize, node_hold: &Arc<NodeHold>, renewed: Renewed, sent_at: Instant);

    /// The client of this node is being closed.
    fn node_closes(&self, node: usize);
}

impl NodeHold {
    pub(super) fn new(
        hold: Hold,
        owner: OwnerId,
        keeper: Weak<dyn Keeper>,
        node: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            hold,
            owner,
            keeper,
            node,
        })
    }

    /// The request that releases it.
    pub(super) fn release(&self, undo: bool) -> Deferred {
        self.hold.release_of(&self.owner, undo, Instant::now())
    }

    /// The request that undoes an acquire of unknown outcome. `announces`: those who wait are notified if nobody has it then.
    pub(super) fn undoing(&self, announces: bool) -> Deferred {
        let mut undoing = self.release(true);
        if announces {
            let protocol = &self.hold.entry().protocol;
            undoing.request = protocol.release(self.hold.mode, &self.owner);
        }
        undoing
    }

    /// The hold that it belongs to, unless either is over.
    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        let keeper = self.keeper.upgrade();
        keeper.filter(|keeper| keeper.is_held() && self.hold.is_held())
    }
}

impl Deref for NodeHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Undo for NodeHold {
    fn undo(&self) -> Option<Deferred> {
        Some(self.release(true))
    }
}

impl Scheduled for NodeHold {
    fn number(&self) -> u64 {
        self.hold.number()
    }

    fn times(&self) -> &Times {
        self.hold.times()
    }
}

impl Renewable for NodeHold {
    fn name(&self) -> &str {
        self.hold.entry().name()
    }

    fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    fn armed(self: Arc<Self>) -> Armed {
        Armed::Node(self)
    }

    fn attend(self: Arc<Self>, _now: Instant) -> Duty {
        match self.keeper() {
            Some(keeper) if keeper.attend(self.node, &self) => Duty::Renew,
            _ => Duty::Nothing,
        }
    }

    /// What is due is not always a renewal.
    fn may_be_early(&self, _now: Instant) -> bool {
        false
    }

    fn ends(&self) -> Instant {
        self.hold.valid_until()
    }

    fn lease(&self) -> Duration {
        self.hold.lease()
    }

    fn look_again(&self, at: Instant) -> Instant {
        let until = self.hold.valid_until();
        if until > Instant::now() {
            // When it runs out, the other nodes may be a bare majority.
            at.min(until)
        } else {
            at
        }
    }

    fn request(&self) -> Request {
        let count = self.keeper().map_or(1, |keeper| keeper.count());
        let protocol = &self.hold.entry().protocol;
        protocol.renew(
            self.hold.mode,
            &self.owner,
            self.hold.renewal_lease(),
            count,
        )
    }

    fn complete(self: Arc<Self>, reply: Value, sent_at: Instant) -> Next {
        let renewed = script::renewed(reply).unwrap_or_else(|unexpected| {
            report!(
                Warn,
                "renewing `{}`: {unexpected}",
                self.hold.entry().name()
            );
            Renewed::Taken
        });
        if let Some(keeper) = self.keeper() {
            keeper.settle(self.node, &self, renewed, sent_at);
        }
        Next::Nothing
    }

    fn was_overwritten(self: Arc<Self>, sent_at: Instant) -> Next {
        if let Some(keeper) = self.keeper() {
            keeper.settle(self.node, &self, Renewed::Taken, sent_at);
        }
        Next::Nothing
    }

    fn could_not_be_renewed(&self) {
        if let Some(keeper) = self.keeper() {
            keeper.renewal_has_failed();
        }
    }

    /// Nothing: whether the hold is lost depends on the majority.
    fn lose(self: Arc<Self>, _sink: &dyn LossSink, _reason: LossReason) -> Option<Instant> {
        None
    }

    /// The other nodes may still keep the hold.
    fn close(self: Arc<Self>, _sink: &dyn LossSink) {
        if let Some(keeper) = self.keeper() {
            keeper.node_closes(self.node);
        }
    }
}
