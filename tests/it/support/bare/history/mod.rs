//! Checks a history (one event a line) of what threads saw of locks while faults were injected, and reports what must
//! not happen.
//!
//! Nothing here depends on the crate; the input is text. Several processes on one machine, which share its monotonic
//! clock, write a history. A thread logs a grant after it has it and a release before it begins, so the lock is held at
//! least between these two lines. The rules rely only on such certain spans, and so never report a false violation.

mod event;
mod faults;
mod measures;
mod order;
mod report;
mod setup;
mod sharing;
mod timing;
mod turns;
mod writes;

pub(crate) use event::{
    Divides, Edge, Event, Mode, NEMESIS, Nanos, Phase, Wanted, What, millis, nanos, read,
};
pub(crate) use measures::Measures;
pub(crate) use report::{Operations, Report};
pub(crate) use setup::Setup;
pub(crate) use writes::Entry;

/// The rules that every history has to satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    /// A lock has one writer or any number of readers; a holder that loses the lock is notified before the next one
    /// gets it.
    Exclusion,
    /// No more permits are out than exist, and every leased permit has its own id.
    Permits,
    /// A number that is read under a lock is the one that the previous holder wrote.
    Numbers,
    /// A fair lock is granted in the order of the requests, as far as that order is certain.
    Order,
    /// Each fencing token is greater than those of earlier grants.
    Tokens,
    /// No guarded write is executed after those of a later hold, twice, or although it was rejected.
    LateWrite,
    /// No wait exceeds its limit; no release or guarded write exceeds the command timeout.
    Deadline,
    /// Every error and every loss has a fault as its cause.
    Cause,
    /// A holder is notified before its lease can end.
    Notice,
    /// A lock that somebody waits for is not free for longer than a fault explains.
    Idle,
    /// A latch opens when all have counted down, and not earlier.
    Latch,
    /// No key remains in Redis after the last lease.
    LeftBehind,
    /// No thread panics.
    Panic,
    /// The history is readable, and every operation that ends has begun.
    Log,
}

impl Rule {
    pub(crate) const ALL: [Self; 14] = [
        Self::Exclusion,
        Self::Permits,
        Self::Numbers,
        Self::Order,
        Self::Tokens,
        Self::LateWrite,
        Self::Deadline,
        Self::Cause,
        Self::Notice,
        Self::Idle,
        Self::Latch,
        Self::LeftBehind,
        Self::Panic,
        Self::Log,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::Permits => "permits",
            Self::Numbers => "numbers",
            Self::Order => "order",
            Self::Tokens => "tokens",
            Self::LateWrite => "late write",
            Self::Deadline => "deadline",
            Self::Cause => "cause",
            Self::Notice => "notice",
            Self::Idle => "idle",
            Self::Latch => "latch",
            Self::LeftBehind => "left behind",
            Self::Panic => "panic",
            Self::Log => "log",
        }
    }
}

/// A broken rule, and what broke it.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) words: String,
    /// The lines of the log that show it.
    pub(crate) lines: Vec<usize>,
    pub(crate) time: Nanos,
}

/// Checks a history against all rules. `events` are sorted by their times.
pub(crate) fn check(events: Vec<Event>) -> Report {
    let mut record = turns::Record::of(events);
    let mut violations = std::mem::take(&mut record.wrong);
    sharing::check(&record, &mut violations);
    order::check(&record, &mut violations);
    timing::check(&record, &mut violations);
    writes::check(&record, &mut violations);
    violations.sort_by_key(|violation| violation.time);
    Report::new(&record, violations)
}
