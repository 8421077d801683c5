//! The result of a check, as text and numbers.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::event::{Nanos, Phase};
use super::measures::Measures;
use super::turns::{Record, Turn, seconds};
use super::{Rule, Violation};

/// The requests for one kind of lock, and their outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations {
    pub(crate) asked: usize,
    pub(crate) granted: usize,
    /// Timed out, or somebody else held it.
    pub(crate) refused: usize,
    pub(crate) errors: usize,
    pub(crate) lost: usize,
}

/// The effects of one kind of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faulted {
    pub(crate) count: usize,
    /// Requests that were in progress during the fault or shortly after it.
    pub(crate) operations: usize,
    pub(crate) errors: usize,
    pub(crate) lost: usize,
    pub(crate) violations: usize,
    /// The longest time from the end of a fault to the next grant of a name.
    pub(crate) slowest_recovery: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Sorted by time.
    pub(crate) violations: Vec<Violation>,
    pub(crate) operations: BTreeMap<Arc<str>, Operations>,
    pub(crate) faults: BTreeMap<Arc<str>, Faulted>,
    /// Guarded writes that servers executed, and those that were rejected.
    pub(crate) writes: usize,
    pub(crate) refused_writes: usize,
    pub(crate) lasted: Nanos,
    pub(crate) measures: Measures,
}

/// How many violations of each rule are shown.
const SHOWN: usize = 5;

impl Report {
    pub(super) fn new(record: &Record, violations: Vec<Violation>) -> Self {
        let mut operations: BTreeMap<Arc<str>, Operations> = BTreeMap::new();
        let mut begin = record.end;
        for turn in &record.turns {
            begin = begin.min(turn.asked.time);
            let counts = operations.entry(Arc::clone(&turn.wanted.kind)).or_default();
            counts.asked += 1;
            match &turn.answer {
                Some(answer) if answer.phase == Phase::Ok => counts.granted += 1,
                Some(answer) if answer.phase == Phase::Fail => counts.refused += 1,
                Some(_) => counts.errors += 1,
                None => {}
            }
            let hold = turn.hold.as_ref();
            counts.lost += usize::from(hold.is_some_and(|hold| hold.was_notified()));
        }
        let calls = record
            .latches
            .values()
            .flat_map(|latch| latch.counts.iter().chain(&latch.waits));
        for call in calls {
            let counts = operations.entry("latch".into()).or_default();
            counts.asked += 1;
            match call.answer.as_ref().map(|answer| answer.phase) {
                Some(Phase::Ok) => counts.granted += 1,
                Some(Phase::Fail) => counts.refused += 1,
                Some(_) => counts.errors += 1,
                None => {}
            }
        }
        let holds = record.turns.iter().filter_map(|turn| turn.hold.as_ref());
        let writes = holds.flat_map(|hold| &hold.writes);
        Self {
            writes: record.written.iter().map(|log| log.entries.len()).sum(),
            refused_writes: writes.filter(|write| write.ended_as(Phase::Fail)).count(),
            faults: faulted(record, &violations),
            violations,
            operations,
            lasted: record.end - begin,
            measures: Measures::of(record),
        }
    }

    pub(crate) fn is_fine(&self) -> bool {
        self.violations.is_empty()
    }

    /// How often each rule was broken.
    pub(crate) fn broken(&self) -> BTreeMap<Rule, usize> {
        let mut broken = BTreeMap::new();
        for violation in &self.violations {
            *broken.entry(violation.rule).or_default() += 1;
        }
        broken
    }

    /// Operations by kind and faults by name, as Markdown.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        self.write_table(&mut text).unwrap_or_default();
        text
    }

    fn write_table(&self, f: &mut impl Write) -> fmt::Result {
        writeln!(f, "| kind | asked | granted | refused | errors | lost |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: |")?;
        for (kind, counts) in &self.operations {
            let Operations {
                asked,
                granted,
                refused,
                errors,
                lost,
            } = counts;
            writeln!(
                f,
                "| {kind} | {asked} | {granted} | {refused} | {errors} | {lost} |"
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "| fault | count | operations | errors | lost | violations | slowest recovery |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        for (fault, counts) in &self.faults {
            let Faulted {
                count,
                operations,
                errors,
                lost,
                violations,
                slowest_recovery,
            } = counts;
            let recovery = Duration::from_nanos(*slowest_recovery).as_secs_f64();
            writeln!(
                f,
                "| {fault} | {count} | {operations} | {errors} | {lost} | {violations} | {recovery:.2} s |"
            )?;
        }
        Ok(())
    }
}

fn faulted(record: &Record, violations: &[Violation]) -> BTreeMap<Arc<str>, Faulted> {
    let by_name = record.by_name();
    // The spans in which each name was held, sorted by grant.
    let mut holds: BTreeMap<&Arc<str>, Vec<(Nanos, Nanos)>> = BTreeMap::new();
    for (name, turns) in &by_name {
        let granted = turns.iter().filter_map(|turn| turn.hold.as_ref());
        let mut times: Vec<_> = granted.map(|hold| (hold.from, hold.until)).collect();
        times.sort_unstable();
        holds.insert(name, times);
    }
    // Sorted by their ends. A request that ended more than `longest` after a fault cannot have been in progress during
    // it.
    let mut ended: Vec<_> = record
        .turns
        .iter()
        .map(|turn| (turn.ended(), turn))
        .collect();
    ended.sort_by_key(|&(time, _)| time);
    // A worker may still write its last line after the driver has noted the time of its death.
    let lasted = ended
        .iter()
        .map(|(time, turn)| time.saturating_sub(turn.asked.time));
    let longest = lasted.filter(|&span| span < record.end).max().unwrap_or(0);
    let mut faulted: BTreeMap<Arc<str>, Faulted> = BTreeMap::new();
    for fault in &record.faults.all {
        let counts = faulted.entry(Arc::clone(&fault.name)).or_default();
        counts.count += 1;
        let until = fault.end.saturating_add(record.setup.slack);
        let first = ended.partition_point(|&(time, _)| time < fault.begin);
        let latest = until.saturating_add(longest);
        let during = ended[first..].iter();
        let during = during.take_while(|&&(time, _)| time <= latest);
        for (_, turn) in during.filter(|(_, turn)| turn.asked.time <= until) {
            let lock = turn.wanted.names.first().map(|name| &**name);
            if !fault.concerns(turn.client(), lock) {
                continue;
            }
            counts.operations += 1;
            let failed = |phase: Phase| phase == Phase::Info;
            counts.errors += usize::from(
                turn.answer
                    .as_ref()
                    .is_some_and(|answer| failed(answer.phase)),
            );
            counts.lost += usize::from(turn.hold.as_ref().is_some_and(|hold| hold.was_notified()));
        }
        let consequences = fault.end.saturating_add(record.recovery());
        let violations = violations
            .iter()
            .filter(|violation| (fault.begin..=consequences).contains(&violation.time));
        counts.violations += violations.count();
        for (name, times) in &holds {
            let next = times.partition_point(|&(from, _)| from < fault.end);
            let Some(&(granted, _)) = times.get(next) else {
                continue;
            };
            let turns = by_name.get(*name).map_or(&[][..], |turns| turns);
            let early = fault.end.saturating_sub(longest);
            let first = turns.partition_point(|turn| turn.asked.time < early);
            let mut waiting = turns[first..]
                .iter()
                .take_while(|turn| turn.asked.time <= fault.end);
            // A multi-lock waits for several names at once, and permits without a lease may never return; neither
            // measures a recovery.
            let waits = waiting.any(|turn| {
                let wanted = &turn.wanted;
                wanted.names.len() == 1 && wanted.has_lease() && turn.waited_until() >= granted
            });
            if waits {
                // Time during which somebody holds the lock is not part of the recovery.
                let held_until = times[..next].iter().map(|&(_, until)| until).max();
                let since = fault.end.max(held_until.unwrap_or(0));
                let recovery = granted.saturating_sub(since);
                counts.slowest_recovery = counts.slowest_recovery.max(recovery);
            }
        }
    }
    faulted
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked: usize = self.operations.values().map(|counts| counts.asked).sum();
        let faults: usize = self.faults.values().map(|counts| counts.count).sum();
        writeln!(
            f,
            "{asked} operations, {} guarded writes ({} refused) and {faults} faults in {}: {} violations",
            self.writes,
            self.refused_writes,
            seconds(self.lasted),
            self.violations.len()
        )?;
        writeln!(f)?;
        self.write_table(f)?;
        for (rule, many) in self.broken() {
            writeln!(f, "\n{}: {many}", rule.name())?;
            let of_rule = self
                .violations
                .iter()
                .filter(|violation| violation.rule == rule);
            for violation in of_rule.take(SHOWN) {
                let lines: Vec<_> = violation.lines.iter().map(usize::to_string).collect();
                let lines = lines.join(", ");
                writeln!(f, "- {} [lines {lines}]", violation.words)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "process {} (asked {}",
            self.process,
            seconds(self.asked.time)
        )?;
        if let Some(limit) = self.limit {
            write!(f, " for up to {}", seconds(limit))?;
        }
        match (&self.hold, &self.answer) {
            (Some(hold), _) => {
                write!(f, ", held from {}", seconds(hold.from))?;
                if let Some(token) = hold.token {
                    write!(f, " with token {token}")?;
                }
                if let Some(id) = &hold.id {
                    write!(f, " as {id}")?;
                }
                if let Some(lost) = &hold.lost {
                    write!(f, ", notified of its loss {}", seconds(lost.time))?;
                }
                if let Some(releases) = &hold.releases {
                    write!(f, ", released from {}", seconds(releases.time))?;
                }
                match &hold.released {
                    Some(released) => {
                        write!(f, " to {}", seconds(released.at.time))?;
                        if let Some(error) = &released.error {
                            write!(f, ": {error}")?;
                        }
                    }
                    None => write!(f, ", without an answer to a release")?,
                }
            }
            (None, Some(answer)) => {
                write!(f, ", nothing granted at {}", seconds(answer.at.time))?;
                if let Some(error) = &answer.error {
                    write!(f, ": {error}")?;
                }
            }
            (None, None) => write!(f, ", not answered")?,
        }
        if let Some(killed) = self.killed {
            write!(f, "; killed {}", seconds(killed))?;
        }
        f.write_str(")")
    }
}
