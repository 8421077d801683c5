//! How many replicas have to have a lock before it counts as taken.

use crate::error::{Error, Result};

/// How many replicas have to acknowledge an acquire before it succeeds: Redis's `WAIT` behind the script.
///
/// It makes a failover that forgets a lock rarer and does not exclude it: which replica becomes the master is not decided
/// by who has acknowledged what. What must never happen is prevented by a fencing token, or by a
/// [`RedLock`](crate::RedLock).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplicaAck {
    /// None; nothing is sent.
    #[default]
    None,
    /// At least so many.
    AtLeast(u32),
    /// So many that they are a majority together with the master, and at least one. What counts are the replicas that are
    /// connected to the master when the lock is acquired; one that has just joined may count from the next acquire on.
    /// [`AtLeast`](Self::AtLeast) does not depend on who is connected. Not for a cluster, whose masters differ.
    Majority,
}

impl ReplicaAck {
    pub(crate) fn check(self, is_cluster: bool) -> Result<()> {
        if self == Self::Majority && is_cluster {
            let what = "replica_ack Majority is not for a cluster, whose masters may have different numbers of replicas; use AtLeast";
            return Err(Error::config(what.into()));
        }
        if self == Self::AtLeast(0) {
            let what = "replica_ack AtLeast(0) asks for nothing; that is ReplicaAck::None";
            return Err(Error::config(what.into()));
        }
        Ok(())
    }

    /// How many, with a master that has so many.
    pub(crate) fn needed(self, replicas: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::AtLeast(n) => n,
            // Of `replicas + 1` servers one has it already.
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
