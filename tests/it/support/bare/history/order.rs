//! The order of grants: the queue of fair locks, and fencing tokens. When a request reached Redis is known only within
//! the span of the request, so only certain orders are judged.

use std::collections::HashMap;

use super::event::{Nanos, Phase};
use super::turns::{Held, Record, Turn, seconds};
use super::{Rule, Violation};

pub(crate) fn check(record: &Record, wrong: &mut Vec<Violation>) {
    for (name, turns) in record.by_name() {
        if turns.iter().any(|turn| turn.wanted.is_fair()) {
            fair_order(record, &name, &turns, wrong);
        }
    }
    for (name, holds) in record.holds() {
        tokens(record, &name, &holds, wrong);
    }
}

/// The moment until which the request was certainly in the queue.
fn queued_until(record: &Record, turn: &Turn) -> Nanos {
    let waited = turn.waited_until();
    if turn.hold.is_some() {
        return waited;
    }
    // A waiter that gives up leaves the queue some time before it logs that.
    let limit = turn.limit.unwrap_or(Nanos::MAX);
    let gives_up = turn.asked.time.saturating_add(limit);
    waited.min(gives_up).saturating_sub(record.setup.slack)
}

/// Whether no fault disturbed the queue between the request and `until`.
fn is_quiet(record: &Record, turn: &Turn, until: Nanos) -> bool {
    let faults = &record.faults;
    let recovery = record.recovery() + record.setup.waiter_lease;
    let during = faults.all[..faults.begun_by(until)].iter();
    let mut during = during.filter(|fault| {
        &*fault.name != "script-flush" && fault.end.saturating_add(recovery) >= turn.asked.time
    });
    during.next().is_none()
}

/// No request is granted a fair lock while another waits that was certainly in the queue before it began.
fn fair_order(record: &Record, name: &str, turns: &[&Turn], wrong: &mut Vec<Violation>) {
    // Grants by their times, to be compared with the requests that are still waiting then.
    let mut grants: Vec<&Turn> = turns
        .iter()
        .filter(|turn| turn.hold.is_some())
        .copied()
        .collect();
    grants.sort_by_key(|turn| turn.waited_until());
    let mut next = turns.iter().peekable();
    let mut waiting: Vec<&Turn> = Vec::new();
    for grant in grants {
        let now = grant.waited_until();
        while let Some(turn) = next.next_if(|turn| turn.asked.time < now) {
            waiting.push(turn);
        }
        waiting.retain(|turn| queued_until(record, turn) > now);
        let overtaken = waiting.iter().filter(|turn| {
            turn.process != grant.process
                && record.notices(turn.client(), turn.asked.time) < grant.asked.time
                && is_quiet(record, turn, now)
        });
        if let Some(first) = overtaken.min_by_key(|turn| turn.asked.time) {
            wrong.push(Violation {
                rule: Rule::Order,
                words: format!(
                    "{name}: overtaken in the queue at {}: {first} by {grant}",
                    seconds(now)
                ),
                lines: [first.lines(), grant.lines()].concat(),
                time: now,
            });
        }
    }
}

/// Each token of a name is greater than every token that was certainly granted before its request.
fn tokens(record: &Record, name: &str, holds: &[Held<'_>], wrong: &mut Vec<Violation>) {
    let granted: Vec<(u64, &Held<'_>)> = holds
        .iter()
        .filter_map(|held| Some((held.hold.token?, held)))
        .collect();
    for held in holds {
        let (turn, hold) = (held.turn, held.hold);
        if &*turn.wanted.kind == "fenced" && hold.token.is_none() {
            wrong.push(Violation {
                rule: Rule::Tokens,
                words: format!("{name}: a grant without a token: {turn}"),
                lines: turn.lines(),
                time: hold.from,
            });
        }
    }
    let mut say = |what: &str, one: &Held<'_>, other: &Held<'_>| {
        wrong.push(Violation {
            rule: Rule::Tokens,
            words: format!("{name}: {what}: {} and then {}", one.turn, other.turn),
            lines: [one.turn.lines(), other.turn.lines()].concat(),
            time: other.hold.from,
        });
    };
    // A dividing fault can reset the counter, or leave two counters, so tokens are compared only within one era.
    let dividing: Vec<_> = record.faults.dividing(name).collect();
    let era = |time: Nanos| dividing.partition_point(|fault| fault.begin <= time);
    let is_certain = |time: Nanos| {
        let settled = |end: Nanos| end.saturating_add(record.setup.slack);
        !dividing
            .iter()
            .any(|fault| fault.begin <= time && time <= settled(fault.end))
    };
    let mut known: HashMap<(usize, u64), &Held<'_>> = HashMap::new();
    for (token, held) in &granted {
        if !is_certain(held.hold.from) {
            continue;
        }
        if let Some(other) = known.insert((era(held.hold.from), *token), held) {
            say("one token was granted twice", other, held);
        }
    }
    // In the order of the requests, each compared with the greatest token that was granted before it.
    let mut asked = granted.clone();
    asked.sort_by_key(|(_, held)| held.turn.asked.time);
    let mut earlier_grants = granted.iter().peekable();
    let mut greatest: Option<(u64, &Held<'_>)> = None;
    let mut its_era = 0;
    for (token, held) in asked {
        let asked = held.turn.asked.time;
        while let Some((token, granted)) =
            earlier_grants.next_if(|(_, held)| held.hold.from <= asked)
        {
            if !is_certain(granted.hold.from) {
                continue;
            }
            if era(granted.hold.from) != its_era {
                (greatest, its_era) = (None, era(granted.hold.from));
            }
            if greatest.is_none_or(|(most, _)| *token > most) {
                greatest = Some((*token, granted));
            }
        }
        if let Some((most, earlier)) = greatest
            && is_certain(held.hold.from)
            && era(held.hold.from) == its_era
            && token < most
        {
            say("a token is less than an earlier one", earlier, held);
        }
    }
    // Two holds that were both released successfully cannot have overlapped, so the order of their grants is certain.
    let released = |held: &Held<'_>| {
        let answer = held.hold.released.as_ref();
        held.hold.lost.is_none() && answer.is_some_and(|answer| answer.phase == Phase::Ok)
    };
    for two in granted.windows(2) {
        let [(one, earlier), (other, later)] = [two[0], two[1]];
        if released(earlier)
            && released(later)
            && other < one
            && earlier.hold.from > later.turn.asked.time
            && era(earlier.hold.from) == era(later.hold.from)
            && is_certain(earlier.hold.from)
            && is_certain(later.hold.from)
        {
            say("a token is less than the one before", earlier, later);
        }
    }
}
