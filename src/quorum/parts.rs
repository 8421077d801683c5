//! The parts of one hold, and how long a majority of them is certain. Pure: no I/O, no clock.
//!
//! ```text
//!   one part   granted                              the hold   a majority granted      certain for as long as a
//!   asked ──────────────► kept ◄──┐ renewed         asked ──────────────────────► held  majority of its parts is
//!     │                    │ └────┘                                                │
//!     └──► out ◄───────────┘                                              lost ◄───┘ fewer than a majority
//!   refused, cut off         its time is over, forgotten, somebody else's
//! ```
//!
//! A part that is out never counts again, and a hold that is lost has no parts any more: somebody else may have had the
//! lock since. These are rules 2 and 4 at `QuorumHold`.

use std::cmp::Reverse;
use std::time::Instant;

use crate::quorum::tally::Majority;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// The node was asked, and its answer may still arrive.
    Asked,
    /// The node certainly keeps the part until this moment.
    Kept(Instant),
    Out,
}

/// The parts of one hold, by node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Parts {
    majority: Majority,
    parts: Vec<Part>,
    /// A majority has granted the hold.
    is_granted: bool,
}

impl Parts {
    /// The parts when all nodes are about to be asked.
    pub(crate) fn new(majority: Majority) -> Self {
        Self {
            majority,
            parts: vec![Part::Asked; majority.nodes()],
            is_granted: false,
        }
    }

    pub(crate) fn part(&self, node: usize) -> Part {
        self.parts[node]
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.is_granted
    }

    pub(crate) fn is_kept(&self, node: usize) -> bool {
        matches!(self.parts[node], Part::Kept(_))
    }

    /// A node has confirmed that it keeps its part until `until`; returns `false` if the part does not count.
    pub(crate) fn keep(&mut self, node: usize, until: Instant, now: Instant) -> bool {
        // Expires first, so that a part whose time is over, or any part of a lost hold, is out and stays out.
        self.expire(now);
        if self.parts[node] != Part::Out {
            self.parts[node] = Part::Kept(until);
            // The confirmation itself may arrive after the time that it confirms.
            self.expire(now);
        }
        self.is_kept(node)
    }

    /// Makes a part count no longer.
    pub(crate) fn lose(&mut self, node: usize) {
        self.parts[node] = Part::Out;
    }

    /// Ends the round. Returns until when the hold is certain, if a majority has granted it.
    pub(crate) fn grant(&mut self, now: Instant) -> Option<Instant> {
        let until = self.certain_until(now);
        self.is_granted = until.is_some();
        until
    }

    /// How many nodes certainly keep their parts.
    pub(crate) fn certain(&mut self, now: Instant) -> usize {
        self.expire(now);
        self.untils().count()
    }

    /// The moment until which a majority certainly keeps its parts; `None` if there is no majority.
    pub(crate) fn certain_until(&mut self, now: Instant) -> Option<Instant> {
        self.expire(now);
        let until = self.majority.bound(self.untils().map(Reverse));
        until.map(|Reverse(until)| until)
    }

    fn untils(&self) -> impl Iterator<Item = Instant> {
        self.parts.iter().filter_map(|part| match part {
            Part::Kept(until) => Some(*until),
            _ => None,
        })
    }

    fn expire(&mut self, now: Instant) {
        for part in &mut self.parts {
            if matches!(part, Part::Kept(until) if *until <= now) {
                *part = Part::Out;
            }
        }
        // Rule 4. Once there was no majority, another holder may have had the lock, so a late grant or renewal must not
        // revive the hold.
        if self.is_granted && !self.majority.has(self.untils().count()) {
            self.parts.fill(Part::Out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    /// Three of five have granted it: two until 100 ms, one until 80 ms.
    fn granted(begin: Instant) -> Parts {
        let mut parts = Parts::new(Majority::of(5));
        for (node, until) in [100, 100, 80].into_iter().enumerate() {
            assert!(parts.keep(node, at(begin, until), at(begin, 1)));
        }
        assert_eq!(parts.grant(at(begin, 2)), Some(at(begin, 80)));
        parts
    }

    #[test]
    fn each_part_counts_for_its_own_time_and_a_late_grant_as_well() {
        let begin = Instant::now();
        let mut parts = granted(begin);
        assert!(parts.keep(3, at(begin, 90), at(begin, 70)));
        assert_eq!(parts.certain_until(at(begin, 71)), Some(at(begin, 90)));
        assert!(parts.keep(0, at(begin, 200), at(begin, 75)));
        // The time of the third part is over, and its renewal arrives too late.
        assert_eq!(parts.certain(at(begin, 80)), 3);
        assert!(!parts.keep(2, at(begin, 200), at(begin, 81)));
        assert_eq!(parts.certain_until(at(begin, 82)), Some(at(begin, 90)));
        assert_eq!((parts.part(2), parts.part(4)), (Part::Out, Part::Asked));
        // The time of a grant is over when it arrives.
        assert!(!parts.keep(4, at(begin, 85), at(begin, 86)));
        assert_eq!(parts.part(4), Part::Out);
    }

    #[test]
    fn with_fewer_than_a_majority_it_is_lost_for_good() {
        let begin = Instant::now();
        for late in [false, true] {
            let mut parts = granted(begin);
            let now = match late {
                false => {
                    parts.lose(1);
                    at(begin, 10)
                }
                true => at(begin, 80),
            };
            // No late grant and no renewal makes the hold count again.
            assert!(!parts.keep(3, at(begin, 300), now));
            assert!(!parts.keep(0, at(begin, 300), now));
            assert_eq!((parts.certain(now), parts.certain_until(now)), (0, None));
        }
    }

    #[test]
    fn a_round_without_a_majority_grants_nothing() {
        let begin = Instant::now();
        let mut parts = Parts::new(Majority::of(3));
        parts.keep(0, at(begin, 100), begin);
        parts.keep(1, at(begin, 50), begin);
        parts.lose(2);
        assert_eq!(parts.grant(at(begin, 50)), None);
        assert!(!parts.is_granted());
    }
}
