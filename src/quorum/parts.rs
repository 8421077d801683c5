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
mod tests;
