//! What a connection to one of several masters is asked besides.

use std::sync::Arc;
use std::time::Instant;

use redis::RedisError;

use super::{Connection, Phase};
use crate::error::named;
use crate::net::call::Call;
use crate::net::pipeline::{Destination, Pipeline};
use crate::net::socket;

impl Connection {
    /// The same, named by another `role`, and leading `to` a node of a cluster.
    pub(crate) fn leading(mut self, role: &'static str, to: Destination) -> Self {
        self.role = role;
        self.node = to.node;
        self.endpoint = self.masters.endpoint(to.node);
        self.state.get_mut().pipeline = Pipeline::new(to);
        self
    }

    /// Others that use it have to wait.
    #[cfg(test)]
    pub(crate) fn while_used(&self) -> impl Sized {
        self.state.lock()
    }

    /// Which node it leads to.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// Whether there ever was a connection.
    pub(crate) fn was_used(&self) -> bool {
        self.state.lock().generation > 0
    }

    /// Whether there is no connection although one is needed.
    pub(crate) fn is_missed(&self) -> bool {
        let state = self.state.lock();
        state.pipeline.has_unacknowledged() && matches!(state.phase, Phase::Down(_))
    }

    /// Its node is no master any more.
    pub(crate) fn retire(&self) {
        if let Some(generation) = self.generation() {
            self.leave(
                generation,
                &socket::timed_out("the node is no master any more"),
            );
        }
    }

    /// Takes a release over from another connection; `false` once it is closed.
    pub(crate) fn take_over(&self, release: &Arc<Call>) -> bool {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            return false;
        }
        if state.pipeline.submit(release, Instant::now()) {
            self.counters.commands.add(1);
        }
        true
    }

    /// Takes out the unacknowledged calls that do not belong here any more.
    pub(crate) fn take_strays(&self, belongs: impl Fn(&Arc<Call>) -> bool) -> Vec<Arc<Call>> {
        self.state.lock().pipeline.take_strays(belongs)
    }

    /// An error of the connection with the address of this node, which is one of several.
    pub(crate) fn named(&self, why: RedisError) -> RedisError {
        named(&self.endpoint, why)
    }
}
