//! How long a caller is willing to wait.

use std::time::{Duration, Instant};

use crate::time::{Budget, Deadline};

/// How long a caller is willing to wait.
#[derive(Debug, Clone, Copy)]
pub enum WaitMode {
    /// One attempt, and no wait in the queue.
    Once,
    /// One attempt for each of several locks, all of which end together; `waits` if they are part of a wait.
    Together {
        until: Instant,
        /// The caller's time ends it, not the command timeout.
        callers: bool,
        waits: bool,
    },
    Until(Deadline),
}

impl WaitMode {
    /// For `wait` from now on; one attempt if that is nothing.
    pub(crate) fn span(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::Once
        } else {
            Self::Until(Deadline::after(wait))
        }
    }

    /// Until `instant`; one attempt if that has passed.
    pub(crate) fn moment(instant: Instant) -> Self {
        if instant <= Instant::now() {
            Self::Once
        } else {
            Self::Until(Deadline::at(instant))
        }
    }

    /// Whether it can be cancelled.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Until(_) | Self::Together { waits: true, .. })
    }

    /// Whether it asks again when it was refused.
    pub(crate) fn asks_again(self) -> bool {
        matches!(self, Self::Until(_))
    }

    /// When it ends, if it is the caller who says so.
    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Self::Once => Deadline::NEVER,
            Self::Together { until, .. } => Deadline::at(until),
            Self::Until(until) => until,
        }
    }

    /// How long a request sent at `began` may take.
    pub(crate) fn budget(self, began: Instant, command_timeout: Duration) -> Budget {
        match self {
            Self::Together { until, callers, .. } => {
                Budget { until, callers }.within(began, command_timeout)
            }
            _ => self.deadline().budget(began, command_timeout),
        }
    }
}
