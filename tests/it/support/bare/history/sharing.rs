//! Simultaneous holders: exclusion, permits, and the numbers that a lock protects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::event::{Divides, Mode, Nanos};
use super::turns::{Held, Record, seconds};
use super::{Rule, Violation};

/// A worker may be stopped between its last check of the hold and its release; the release then follows this soon after
/// the worker continues.
const AT_ONCE: Nanos = 5_000_000;

pub(crate) fn check(record: &Record, wrong: &mut Vec<Violation>) {
    for (name, holds) in record.holds() {
        let is_shared = |held: &Held<'_>| held.turn.wanted.mode == Mode::Permits;
        if holds.iter().any(is_shared) {
            ids(&name, &holds, wrong);
            permits(record, &name, &holds, wrong);
        } else {
            exclusion(record, &name, &holds, wrong);
            numbers(record, &name, &holds, wrong);
        }
    }
}

/// Whether `held` no longer counts at `at`, when another was granted: its holder was notified in time, or could not
/// run.
///
/// A hold that was known to be valid beyond `at` gets no such excuse.
///
/// If the server forgot the hold, its holder cannot know before the lease ends. A holder of permits without a lease is
/// never notified.
fn may_be_over(record: &Record, name: &str, held: &Held<'_>, at: Nanos) -> bool {
    let (turn, hold) = (held.turn, held.hold);
    let in_time = |from: Nanos| hold.until <= record.notices(turn.client(), from);
    if hold.was_notified() && hold.valid_until.is_none() && in_time(at) {
        return true;
    }
    let stops = record.faults.stops(turn.client()).iter();
    let releases_late =
        |&(begin, end): &(Nanos, Nanos)| begin <= at && hold.until <= end.saturating_add(AT_ONCE);
    if hold.releases.is_some() && stops.clone().any(releases_late) {
        return true;
    }
    record
        .may_have_forgotten(name, hold.from, hold.until)
        .filter(|fault| fault.begin <= at)
        .any(|fault| {
            let lease_ends = fault.end.saturating_add(record.lease(&turn.wanted));
            !turn.wanted.has_lease() || in_time(lease_ends)
        })
}

/// If two hold a lock at the same time and at least one of them writes, the earlier one must have been notified.
fn exclusion(record: &Record, name: &str, holds: &[Held<'_>], wrong: &mut Vec<Violation>) {
    let mut active: Vec<Held<'_>> = Vec::new();
    for later in holds {
        let from = later.hold.from;
        active.retain(|held| held.hold.until > from);
        for earlier in &active {
            let modes = [earlier, later].map(|held| held.turn.wanted.mode);
            // The lock is reentrant, so its own thread may acquire it again.
            if earlier.turn.process == later.turn.process
                || !modes.iter().any(|mode| mode.is_exclusive())
                || later.hold.until <= from
            {
                continue;
            }
            // A thread that waits for a processor logs its grant late, so the later line may be the earlier grant.
            let may_be_first = later.turn.asked.time < earlier.hold.from;
            let is_excused = may_be_over(record, name, earlier, from)
                || may_be_first && may_be_over(record, name, later, from)
                || earlier.turn.client() != later.turn.client()
                    && record.faults.divide_clients(name, from);
            if !is_excused {
                let lines = [earlier.turn.lines(), later.turn.lines()].concat();
                wrong.push(Violation {
                    rule: Rule::Exclusion,
                    words: format!(
                        "{name}: two had it at {}, and the earlier one was not notified in time: {} and {}",
                        seconds(from),
                        earlier.turn,
                        later.turn
                    ),
                    lines,
                    time: from,
                });
            }
        }
        active.push(*later);
    }
}

/// No more permits are out than exist, not counting those whose holders were notified of a loss.
fn permits(record: &Record, name: &str, holds: &[Held<'_>], wrong: &mut Vec<Violation>) {
    let known = record.setup.permits.iter();
    let Some((_, capacity)) = known.clone().find(|(known, _)| &**known == name) else {
        wrong.push(Violation {
            rule: Rule::Log,
            words: format!("{name}: nobody knows how many permits there are"),
            lines: Vec::new(),
            time: 0,
        });
        return;
    };
    let first = holds.iter().map(|held| held.turn.asked.time).min();
    // A server that forgot a permit without a lease counts one too many from then on, once the permit is returned.
    let is_miscounted = |at: Nanos| {
        record.faults.dividing(name).any(|fault| {
            let settled = fault.end.saturating_add(record.setup.slack);
            fault.begin <= at && first.is_some_and(|first| first <= settled)
        })
    };
    let mut active: Vec<Held<'_>> = Vec::new();
    for later in holds {
        let from = later.hold.from;
        active.retain(|held| held.hold.until > from);
        active.push(*later);
        if !later.turn.wanted.has_lease() && is_miscounted(from) {
            continue;
        }
        let all: u64 = active.iter().map(|held| held.turn.wanted.permits).sum();
        if all <= *capacity {
            continue;
        }
        let counted: Vec<_> = active
            .iter()
            .filter(|held| !may_be_over(record, name, held, from))
            .collect();
        let many: u64 = counted.iter().map(|held| held.turn.wanted.permits).sum();
        if many > *capacity {
            let words: Vec<_> = counted.iter().map(|held| held.turn.to_string()).collect();
            wrong.push(Violation {
                rule: Rule::Permits,
                words: format!(
                    "{name}: {many} of {capacity} permits were out at {}: {}",
                    seconds(from),
                    words.join(", ")
                ),
                lines: counted.iter().flat_map(|held| held.turn.lines()).collect(),
                time: from,
            });
        }
    }
}

/// Every leased permit has its own id.
fn ids(name: &str, holds: &[Held<'_>], wrong: &mut Vec<Violation>) {
    let mut known: HashMap<&Arc<str>, &Held<'_>> = HashMap::new();
    for held in holds {
        let Some(id) = &held.hold.id else {
            if &*held.turn.wanted.kind == "expirable_semaphore" {
                wrong.push(Violation {
                    rule: Rule::Permits,
                    words: format!("{name}: a permit without an id: {}", held.turn),
                    lines: held.turn.lines(),
                    time: held.hold.from,
                });
            }
            continue;
        };
        if let Some(other) = known.insert(id, held) {
            wrong.push(Violation {
                rule: Rule::Permits,
                words: format!(
                    "{name}: one permit was granted twice: {} and {}",
                    other.turn, held.turn
                ),
                lines: [other.turn.lines(), held.turn.lines()].concat(),
                time: held.hold.from,
            });
        }
    }
}

/// A holder reads the number that the previous holder wrote.
fn numbers(record: &Record, name: &str, holds: &[Held<'_>], wrong: &mut Vec<Violation>) {
    // A holder that was notified, killed or forgotten may have written at any time between its request and its last
    // line, and may have written without logging it.
    let mut disturbed: Vec<(Nanos, Nanos)> = Vec::new();
    for turn in record.turns.iter().filter(|turn| {
        turn.wanted.mode.is_exclusive() && turn.wanted.names.iter().any(|wanted| &**wanted == name)
    }) {
        let until = match (&turn.hold, turn.killed) {
            (_, Some(killed)) => killed,
            (Some(hold), None) if hold.was_notified() => turn.ended(),
            _ => continue,
        };
        disturbed.push((turn.asked.time, record.notices(turn.client(), until)));
    }
    for fault in record.faults.dividing(name) {
        if fault.divides == Divides::All {
            let lease_ends = fault.end.saturating_add(record.setup.lease);
            disturbed.push((fault.begin, lease_ends.saturating_add(record.setup.slack)));
        }
    }
    // Holders that overlapped because their clients asked different servers.
    let mut latest = 0;
    for held in holds {
        let (from, until) = (held.hold.from, held.hold.until);
        if from < latest && record.faults.divide_clients(name, from) {
            disturbed.push((from, until.max(latest)));
        }
        latest = until.max(latest);
    }
    disturbed.sort_unstable();
    // For each beginning, the latest end of all spans that begin no later.
    let mut latest = 0;
    let ends: Vec<Nanos> = disturbed
        .iter()
        .map(|&(_, end)| {
            latest = end.max(latest);
            latest
        })
        .collect();
    let is_disturbed = |from: Nanos, until: Nanos| {
        let begun = disturbed.partition_point(|&(begin, _)| begin <= until);
        begun > 0 && ends[begun - 1] >= from
    };
    let mut last: Option<(&Held<'_>, u64)> = None;
    for held in holds {
        let Some((&(read, _), &(_, wrote))) = held.hold.work.first().zip(held.hold.work.last())
        else {
            continue;
        };
        if held
            .hold
            .work
            .iter()
            .any(|&(read, wrote)| wrote != read + 1)
            || held.hold.work.windows(2).any(|two| two[0].1 != two[1].0)
                && !is_disturbed(held.hold.from, held.hold.until)
        {
            wrong.push(odd_number(name, held, None, read));
        }
        if let Some((held_before, written)) = last
            && read != written
            && !is_disturbed(held_before.hold.from, held.turn.ended())
        {
            wrong.push(odd_number(name, held, Some((held_before, written)), read));
        }
        last = Some((held, wrote));
    }
}

fn odd_number(
    name: &str,
    held: &Held<'_>,
    last_write: Option<(&Held<'_>, u64)>,
    read: u64,
) -> Violation {
    let (after, lines) = match last_write {
        Some((held_before, written)) => (
            format!(" after {written} was written by {}", held_before.turn),
            [held_before.turn.lines(), held.turn.lines()].concat(),
        ),
        None => (" and something else later on".to_owned(), held.turn.lines()),
    };
    Violation {
        rule: Rule::Numbers,
        words: format!("{name}: {read} was read by {}{after}", held.turn),
        lines,
        time: held.hold.from,
    }
}

/// The permits of each semaphore, for callers that look them up often.
pub(crate) fn capacities(record: &Record) -> BTreeMap<Arc<str>, u64> {
    record.setup.permits.iter().cloned().collect()
}
