//! How long a caller is willing to wait.

use std::time::{Duration, Instant};

use crate::time::{Budget, Deadline};

/// How long a caller is willing to wait.
#[derive(Debug, Clone, Copy)]
pub enum WaitMode {
    /// A single attempt, and no wait in the queue.
    Once,
    /// An attempt for each of several locks; all attempts end together.
    Together(Budget),
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

    /// A further request of a joint attempt, which begins at `began`.
    pub(crate) fn rest_from(self, began: Instant) -> Self {
        match self {
            Self::Together(budget) => Self::Together(budget.rest_from(began)),
            wait => wait,
        }
    }

    /// When the wait, or the joint attempt, ends. A single attempt has no deadline.
    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Self::Once => Deadline::NEVER,
            Self::Together(budget) => Deadline::at(budget.until),
            Self::Until(until) => until,
        }
    }

    /// How long a request sent at `began` may take.
    pub(crate) fn budget(self, began: Instant, command_timeout: Duration) -> Budget {
        match self {
            Self::Together(budget) => budget.within(began, command_timeout),
            _ => self.deadline().budget(began, command_timeout),
        }
    }
}
