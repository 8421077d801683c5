//! The servers of one lock. Known without a request: how long to wait for each, which is nearest, and how many processes
//! the latest release has notified.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;

use crate::hold::Entry;
use crate::net::call::{Call, Fault};
use crate::protocol::script;
use crate::quorum::tally::Majority;
use crate::session::Session;
use crate::time;

/// How long to wait for one node: the lease divided by the first value, but between the second and the third; never more
/// than a quarter of the lease.
///
/// Source: the Redlock description in the Redis documentation asks for a time that is small beside the lease: 5 to 50 ms
/// for a lease of 10 s. The limits here are longer, since a busy machine answers late, and since no thread waits for a
/// node that is not needed.
const NODE_TIMEOUT: (u32, Duration, Duration) =
    (20, Duration::from_millis(50), Duration::from_millis(500));

/// The range of a random pause before a majority is requested again. While the lock stays contested, `Contest` doubles
/// both ends. The lower end is also the longest time for which a waiting thread blocks on one connection before it reads
/// the others.
pub(crate) const PAUSE: (Duration, Duration) =
    (Duration::from_millis(5), Duration::from_millis(50));

/// A random pause, so that callers that each got some of the nodes do not collide again.
pub(crate) fn pause() -> Duration {
    time::between(PAUSE.0, PAUSE.1)
}

pub(crate) fn node_timeout(lease: Duration) -> Duration {
    (lease / NODE_TIMEOUT.0)
        .clamp(NODE_TIMEOUT.1, NODE_TIMEOUT.2)
        .min(lease / 4)
}

/// A server: its client, and the lock's names there.
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) entry: Arc<Entry>,
}

pub(crate) struct QuorumNodes {
    pub(crate) list: Vec<Node>,
    pub(crate) majority: Majority,
    /// The calls of the latest release and of the one before; their replies say how many processes were notified.
    released: Mutex<[Vec<Arc<Call>>; 2]>,
}

impl QuorumNodes {
    pub(crate) fn new(list: Vec<Node>) -> Self {
        Self {
            majority: Majority::of(list.len()),
            list,
            released: Mutex::default(),
        }
    }

    /// The nodes, nearest first, each with the time that an answer should take: as long as the greeting on the node's
    /// connection took (bench: `distance -- uneven`).
    pub(crate) fn by_distance(&self) -> Vec<(Duration, usize)> {
        let greeted_in = |node: &Node| node.session.connection.first().greeted_in();
        let mut nodes: Vec<_> = self.list.iter().map(greeted_in).zip(0..).collect();
        nodes.sort_unstable();
        nodes
    }

    /// Stores the calls that release a hold. Sends nothing.
    pub(crate) fn record_release(&self, calls: impl Iterator<Item = Arc<Call>>) {
        let mut released = self.released.lock();
        released.swap(0, 1);
        released[0].clear();
        released[0].extend(calls);
    }

    /// Returns how many processes the latest release has notified, according to the replies so far. If none of these says
    /// how many, returns the number of the release before it.
    pub(crate) fn notified(&self) -> Option<i64> {
        let released = self.released.lock();
        let mut latest = released.iter().map(|calls| {
            let replies = calls.iter().filter_map(|call| call.outcome()?.ok());
            most_notified(replies.map(|answer| answer.value))
        });
        latest.find_map(|most| most)
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.list.iter().map(|node| &node.session)
    }

    /// The client whose registry has the local lock and whose settings apply.
    pub(crate) fn home(&self) -> &Arc<Session> {
        &self.list[0].session
    }

    /// Why a node has not answered in time.
    pub(crate) fn unanswered(&self, node: usize) -> Fault {
        self.list[node].session.connection.first().no_answer()
    }

    /// Makes each watchdog send what is queued, and read replies for which no thread waits.
    pub(crate) fn housekeep_soon(&self) {
        for node in &self.list {
            node.session.watchdog.housekeep_soon();
        }
    }
}

/// The highest number of processes that a node has notified of a release. A node that no longer had the lock has
/// notified nobody and does not count.
fn most_notified(replies: impl Iterator<Item = Value>) -> Option<i64> {
    let notified = replies.filter_map(|reply| script::released(&reply).ok()?.ok());
    notified.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_had_the_lock_says_whether_anybody_listens() {
        let most = |replies: &[i64]| most_notified(replies.iter().copied().map(Value::Int));
        assert_eq!(most(&[0, 2, 1]), Some(2));
        assert_eq!(most(&[-1, 0, -2]), Some(0));
        assert_eq!(most(&[-1, -2, -1]), None);
        assert_eq!(most(&[]), None);
    }
}
