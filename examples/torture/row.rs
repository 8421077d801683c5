//! A run as a line of JSON, for tables that compare libraries.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::remote::Program;
use super::run::{Outcome, Plan};
use super::support::history::{Operations, Rule};

/// Appends the line to a file.
pub(crate) fn append(file: &Path, plan: &Plan, outcome: &Outcome) -> io::Result<()> {
    let mut line = of(plan, outcome).to_string();
    line.push('\n');
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(line.as_bytes())
}

fn of(plan: &Plan, outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let measures = &report.measures;
    let library = plan.program.as_ref().map(Program::library);
    let broken = report.broken();
    let violations = |rule: Rule| broken.get(&rule).copied().unwrap_or(0);
    let sum = |of: fn(&Operations) -> usize| -> usize { report.operations.values().map(of).sum() };
    // The first line of each is where the earlier holder asked.
    let overlaps = report.violations.iter();
    let overlaps = overlaps.filter(|violation| violation.rule == Rule::Exclusion);
    let overlapped: BTreeSet<_> = overlaps
        .filter_map(|violation| violation.lines.first())
        .collect();
    let kinds: Vec<_> = plan.kinds.iter().map(|kind| kind.name()).collect();
    let faults: serde_json::Map<_, _> = report
        .faults
        .iter()
        .map(|(name, faulted)| (name.to_string(), faulted.count.into()))
        .collect();
    let ms = |nanos: u64| nanos / 1_000_000;
    json!({
        "library": library.map_or("redlatch", |library| &*library.name),
        "version": library.map_or("", |library| &*library.version),
        "deployment": plan.place.name(),
        "kinds": kinds,
        "seed": plan.seed,
        "seconds": plan.load.as_secs_f64(),
        "faults": faults,
        "asked": sum(|counts| counts.asked),
        "granted": sum(|counts| counts.granted),
        "errors": sum(|counts| counts.errors),
        "writes": report.writes,
        "refused_writes": report.refused_writes,
        "two_holders": overlapped.len(),
        "late_writes": violations(Rule::LateWrite),
        "idle": violations(Rule::Idle),
        "unanswered": measures.unanswered,
        "dead_holders": measures.dead_holders,
        "after_dead_holder_ms": ms(measures.after_dead_holder),
        "dead_waiters": measures.dead_waiters,
        "after_dead_waiter_ms": ms(measures.after_dead_waiter),
        "told": measures.told,
        "told_by_release": measures.told_by_release,
        "told_late": violations(Rule::Notice),
        "overrun_ms": ms(measures.overrun),
        "late_answers": violations(Rule::Deadline),
        "without_cause": violations(Rule::Cause),
        "left_behind": violations(Rule::LeftBehind),
        "peak_memory_kib": outcome.peak_memory,
        "wrong": outcome.wrong,
    })
}
