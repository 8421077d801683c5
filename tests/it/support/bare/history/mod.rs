//! Checks what threads saw of locks while something was broken: a history, one event a line, and what of that must not be.
//!
//! Nothing here knows the crate, or does more than read lines. A history is made by several processes on one machine, whose
//! clock they share. What a thread writes down is true when it writes it: it has what it was granted from the line that says
//! so to the line that begins the release, and not a moment longer. So the rules only find what is certain.

mod event;
mod faults;
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
pub(crate) use report::Report;
pub(crate) use setup::Setup;
pub(crate) use writes::Entry;

/// What histories are checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    /// One writer, or any number of readers; whoever was first is notified before somebody else has it.
    Exclusion,
    /// No more permits than there are, and every leased one with an id of its own.
    Permits,
    /// What is read under a lock was written under the last one.
    Numbers,
    /// A fair lock is granted in the order of asking, as far as that is known.
    Order,
    /// Fencing tokens rise with every grant.
    Tokens,
    /// No guarded write is executed after those of a later hold, although it was refused, or twice.
    LateWrite,
    /// No wait exceeds its limit, no release or guarded write the command timeout.
    Deadline,
    /// No error and no loss without a fault.
    Cause,
    /// A holder is notified before its lease can be over.
    Notice,
    /// No lock is free while it is wanted, for longer than what was broken explains.
    Idle,
    /// A latch opens when all have counted down, and not before.
    Latch,
    /// Nothing is left in Redis after the last lease.
    LeftBehind,
    /// Nobody panics.
    Panic,
    /// The history can be read, and ends what it begins.
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

/// Something that must not be.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) words: String,
    /// Those that show it.
    pub(crate) lines: Vec<usize>,
    pub(crate) time: Nanos,
}

/// All that is wrong with a history, and what happened in it. The order of the events is that of their times.
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
