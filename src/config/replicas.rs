//! How many replicas must acknowledge an acquire before it succeeds.

use crate::error::{Error, Result};

/// How many replicas must acknowledge an acquire before it succeeds. The client sends `WAIT` after the request that
/// acquires.
///
/// ```
/// use redlatch::{Config, ReplicaAck};
///
/// let config = Config::new("redis://127.0.0.1/").replica_ack(ReplicaAck::AtLeast(1));
/// # let _ = config;
/// ```
///
/// With acknowledgements, failovers forget a lock less often, but still may: Redis does not choose the new master by who has
/// acknowledged what. A [`RedLock`](crate::RedLock) depends on no replica. Where two holders at once do harm, let the
/// resource check a [fencing token](crate::FencedLock).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplicaAck {
    /// No acknowledgement; `WAIT` is not sent.
    #[default]
    None,
    /// At least this many replicas. If fewer are connected, every acquire fails.
    AtLeast(u32),
    /// So many replicas that they and the master are a majority of all these servers, and at least one: 1 of 1 or 2
    /// replicas, 2 of 3 or 4.
    ///
    /// Replicas count if they are connected to the master when the lock is acquired. A replica that has just connected may
    /// not count until the next acquire. [`Client::open`](crate::Client::open) rejects `Majority` for a cluster, whose
    /// masters may have different numbers of replicas: use [`AtLeast`](Self::AtLeast).
    Majority,
}

impl ReplicaAck {
    pub(crate) fn check(self, is_cluster: bool) -> Result<()> {
        if self == Self::Majority && is_cluster {
            let reason = "replica_ack Majority does not work with a cluster, whose masters may have different numbers of replicas; use AtLeast";
            return Err(Error::setting(reason.into()));
        }
        if self == Self::AtLeast(0) {
            let reason = "replica_ack AtLeast(0) waits for no replica; use ReplicaAck::None";
            return Err(Error::setting(reason.into()));
        }
        Ok(())
    }

    /// How many acknowledgements are needed, for a master with this many replicas.
    pub(crate) fn needed(self, replicas: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::AtLeast(n) => n,
            // A majority of `replicas + 1` servers, without the master, which has the hold already; at least one.
            Self::Majority => replicas.div_ceil(2).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_counts_the_master() {
        let needed = [0, 1, 2, 3, 4, 5].map(|replicas| ReplicaAck::Majority.needed(replicas));
        assert_eq!(needed, [1, 1, 1, 2, 2, 3]);
        for (replicas, needed) in (0..9).zip(needed) {
            assert!(2 * (needed + 1) > replicas + 1);
        }
        assert_eq!(ReplicaAck::AtLeast(3).needed(1), 3);
        assert_eq!(ReplicaAck::None.needed(5), 0);
    }
}
