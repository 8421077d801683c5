//! How long a caller is willing to wait.

use std::time::{Duration, Instant};

use crate::time::{Budget, Deadline};

/// How long a caller is willing to wait.
#[derive(Debug, Clone, Copy)]
pub enum WaitMode {
    /// A single attempt, and no wait in the queue.
    Once,
    /// A single attempt that ends with this budget, which other requests share: the attempts at the other locks of a
    /// multi-lock, or the questions of an election that precede the attempt.
    OnceWithin(Budget),
    Until(Deadline),
}

impl WaitMode {
    /// A wait without a limit.
    pub(crate) const FOREVER: Self = Self::Until(Deadline::NEVER);

    /// Waits for `wait` from now on; a single attempt if that is zero.
    pub(crate) fn span(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::Once
        } else {
            Self::Until(Deadline::after(wait))
        }
    }

    /// Waits until `instant`; a single attempt if that has passed.
    pub(crate) fn moment(instant: Instant) -> Self {
        if instant <= Instant::now() {
            Self::Once
        } else {
            Self::Until(Deadline::at(instant))
        }
    }

    /// Whether the call asks again after a refusal.
    pub(crate) fn asks_again(self) -> bool {
        matches!(self, Self::Until(_))
    }

    /// The wait mode for a further request of the same joint attempt. That request begins at `began`, and has to end when
    /// the attempt does.
    pub(crate) fn rest_from(self, began: Instant) -> Self {
        match self {
            Self::OnceWithin(budget) => Self::OnceWithin(budget.rest_from(began)),
            wait => wait,
        }
    }

    /// When the wait, or the shared budget, ends. A single attempt without such a budget has no deadline.
    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Self::Once => Deadline::NEVER,
            Self::OnceWithin(budget) => Deadline::at(budget.until),
            Self::Until(until) => until,
        }
    }

    /// How long a request sent at `began` may take.
    pub(crate) fn budget(self, began: Instant, command_timeout: Duration) -> Budget {
        match self {
            Self::OnceWithin(budget) => budget.within(began, command_timeout),
            _ => self.deadline().budget(began, command_timeout),
        }
    }
}
