//! Majority arithmetic. Pure: no I/O, no clock.
//!
//! Two majorities of the same nodes have a node in common, and a node has one holder. So at most one client has a
//! majority, and that client holds the lock.

/// More than half of `nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Majority {
    nodes: usize,
}

impl Majority {
    pub(crate) fn of(nodes: usize) -> Self {
        Self { nodes }
    }

    pub(crate) fn nodes(self) -> usize {
        self.nodes
    }

    pub(crate) fn needed(self) -> usize {
        self.nodes / 2 + 1
    }

    /// Whether `yes` nodes are a majority.
    pub(crate) fn has(self, yes: usize) -> bool {
        yes >= self.needed()
    }

    /// The fewest nodes whose refusal leaves no majority: the others are too few.
    pub(crate) fn blocking(self) -> usize {
        self.nodes + 1 - self.needed()
    }

    /// The `needed`-th lowest value, so the values of a majority of the nodes are not above it. `None` if there are fewer
    /// than `needed` values.
    pub(crate) fn bound<T: Ord>(self, values: impl IntoIterator<Item = T>) -> Option<T> {
        let mut values: Vec<T> = values.into_iter().collect();
        values.sort_unstable();
        values.into_iter().nth(self.needed() - 1)
    }
}

/// The number of answers that a round of requests wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    Majority,
    /// A majority, for a caller that asks again. After the first refusal the round connects to no further nodes, so that
    /// the nodes that granted the request are soon free again.
    MajoritySoon,
    All,
}

/// How far a round has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundProgress {
    /// Nodes that gave the answer that counts.
    pub(crate) yes: usize,
    /// Nodes that gave any answer.
    pub(crate) answered: usize,
    /// Nodes that were asked and still have time to answer.
    pub(crate) pending: usize,
    /// Nodes that could be asked once there is a connection.
    pub(crate) unsent: usize,
}

/// The next step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoundStep {
    Finish,
    Wait,
    /// The nodes that were asked cannot reach the goal: connect to the others.
    Connect,
}

impl Goal {
    /// The number of `yes` answers with which the goal is reached.
    pub(crate) fn wanted(self, majority: Majority) -> usize {
        match self {
            Self::Majority | Self::MajoritySoon => majority.needed(),
            Self::All => majority.nodes(),
        }
    }

    /// A round ends when it has reached its goal. If the goal (other than `All`) is out of reach, the round goes on until
    /// a majority has answered: until then it is unknown whether others hold the lock or the nodes are unreachable. A
    /// round also ends if there is no node left to wait for.
    pub(crate) fn next(self, majority: Majority, progress: RoundProgress) -> RoundStep {
        let wanted = self.wanted(majority);
        let unsent = match self {
            Self::MajoritySoon if progress.answered > progress.yes => 0,
            _ => progress.unsent,
        };
        let hopeless = self != Self::All && progress.yes + progress.pending + unsent < wanted;
        if progress.yes >= wanted || hopeless && majority.has(progress.answered) {
            RoundStep::Finish
        } else if progress.yes + progress.pending < wanted && unsent > 0 {
            RoundStep::Connect
        } else if progress.pending > 0 {
            RoundStep::Wait
        } else {
            RoundStep::Finish
        }
    }
}

#[cfg(test)]
mod tests;
