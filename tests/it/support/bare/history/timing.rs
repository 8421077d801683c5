//! Limits of waits, errors and losses that need a cause, and locks that stay free although somebody waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::{Mode, NEMESIS, Nanos, Phase};
use super::turns::{Answer, At, Record, Turn, seconds};
use super::{Rule, Violation};

pub(crate) fn check(record: &Record, wrong: &mut Vec<Violation>) {
    for turn in &record.turns {
        is_answered(record, turn, wrong);
        has_a_cause(record, turn, wrong);
        is_notified(record, turn, wrong);
    }
    for (name, turns) in record.by_name() {
        idle(record, &name, &turns, wrong);
    }
    latches(record, wrong);
    for (at, key) in &record.left_behind {
        wrong.push(Violation {
            rule: Rule::LeftBehind,
            words: format!("`{key}` is left, although nobody has had anything for a lease"),
            lines: vec![at.line],
            time: at.time,
        });
    }
}

/// Whether a request that began at `asked` with the limit `limit` was answered in time, or its worker was killed.
fn in_time(
    record: &Record,
    client: i64,
    asked: At,
    limit: Nanos,
    answer: Option<&Answer>,
) -> Result<(), &'static str> {
    let faults = &record.faults;
    let due = faults.extend(client, asked.time, limit.saturating_add(record.setup.slack));
    let is_killed = || faults.killed_at(client).is_some();
    match answer {
        Some(answer) if answer.at.time > due => Err("was answered too late"),
        None if !is_killed() => Err("was never answered"),
        _ => Ok(()),
    }
}

/// No wait exceeds its limit, and no release or guarded write exceeds the command timeout.
fn is_answered(record: &Record, turn: &Turn, wrong: &mut Vec<Violation>) {
    let mut say = |what: &str, how: &str, time| {
        wrong.push(Violation {
            rule: Rule::Deadline,
            words: format!("{}: {what} {how}: {turn}", turn.wanted.name()),
            lines: turn.lines(),
            time,
        });
    };
    let (client, timeout) = (turn.client(), record.setup.command_timeout);
    let limit = match turn.limit {
        // Zero is a single attempt, which has the command timeout.
        Some(0) => timeout,
        limit => limit.unwrap_or(Nanos::MAX),
    };
    if let Err(how) = in_time(record, client, turn.asked, limit, turn.answer.as_ref()) {
        say("a wait", how, turn.asked.time);
    }
    let Some(hold) = &turn.hold else { return };
    for write in &hold.writes {
        if let Err(how) = in_time(record, client, write.asked, timeout, write.answer.as_ref()) {
            say("a guarded write", how, write.asked.time);
        }
    }
    match hold.releases {
        Some(releases) => {
            let released = hold.released.as_ref();
            if let Err(how) = in_time(record, client, releases, timeout, released) {
                say("a release", how, releases.time);
            }
        }
        None if turn.killed.is_none() => say("a hold", "was never released", hold.from),
        None => {}
    }
}

/// Errors and losses occur only because of a fault.
fn has_a_cause(record: &Record, turn: &Turn, wrong: &mut Vec<Violation>) {
    let explains = |from: Nanos, until: Nanos| {
        let mut names = turn.wanted.names.iter();
        names.any(|name| {
            let times = (from, until);
            let recovery = record.recovery();
            record
                .faults
                .explain(turn.client(), Some(name), times, recovery)
        })
    };
    let mut say = |what: &str, time| {
        wrong.push(Violation {
            rule: Rule::Cause,
            words: format!("{}: {what} without a fault: {turn}", turn.wanted.name()),
            lines: turn.lines(),
            time,
        });
    };
    if let Some(answer) = &turn.answer
        && answer.phase == Phase::Info
        && !explains(turn.asked.time, answer.at.time)
    {
        say("an error", answer.at.time);
    }
    let Some(hold) = &turn.hold else { return };
    // A lease that is not renewed ends without any fault.
    let is_over = |at: Nanos| {
        let lease = turn.wanted.lease;
        lease.is_some_and(|lease| at + record.setup.slack + lease / 50 >= hold.from + lease)
    };
    for write in &hold.writes {
        let answer = write
            .answer
            .as_ref()
            .filter(|answer| answer.phase != Phase::Ok);
        if let Some(Answer { at, .. }) = answer
            && !is_over(at.time)
            && !explains(hold.from, at.time)
        {
            say("a refused write", at.time);
        }
    }
    if let Some(lost) = hold.lost {
        if !is_over(lost.time) && !explains(hold.from, lost.time) {
            say("a loss", lost.time);
        }
    } else if let Some(released) = &hold.released
        && released.phase != Phase::Ok
        && !is_over(released.at.time)
        && !explains(hold.from, released.at.time)
    {
        say("a failed release", released.at.time);
    }
}

/// The part of a lease that is certain: one hundredth is deducted for clocks that run at different speeds.
fn certain(lease: Nanos) -> Nanos {
    lease - lease / 100
}

/// A holder is notified before its lease ends, and no later than the hold claimed to be valid.
fn is_notified(record: &Record, turn: &Turn, wrong: &mut Vec<Violation>) {
    let Some(hold) = turn.hold.as_ref().filter(|_| turn.wanted.has_lease()) else {
        return;
    };
    let mut say = |what: String, time| {
        wrong.push(Violation {
            rule: Rule::Notice,
            words: format!("{}: {what}: {turn}", turn.wanted.name()),
            lines: turn.lines(),
            time,
        });
    };
    let (client, lease) = (turn.client(), record.lease(&turn.wanted));
    let ends = [hold.lost, hold.releases];
    let ended = ends.iter().flatten().map(|at| at.time).min();
    if let (Some(valid_until), Some(ended)) = (hold.valid_until, ended) {
        if ended > record.notices(client, hold.looks_again(valid_until)) {
            say(
                format!("it was valid until {} and used on", seconds(valid_until)),
                ended,
            );
        }
        // The lease is counted from before the request, so it ends at most one lease after the grant or, if renewed,
        // after the last use.
        let since = if turn.wanted.lease.is_some() {
            hold.from
        } else {
            ended
        };
        if valid_until > since.saturating_add(certain(lease)) {
            say(
                format!(
                    "it was to be valid until {}, longer than its lease",
                    seconds(valid_until)
                ),
                ended,
            );
        }
    }
    // A hold that is gone from Redis cannot be renewed.
    if let Some(valid_until) = hold.valid_until {
        let names = turn.wanted.names.iter();
        let forgotten = names.flat_map(|name| record.faults.dividing(name));
        let renewed = forgotten
            .filter(|fault| fault.ends_holds(&record.setup) && hold.from < fault.begin)
            .find(|fault| valid_until > fault.end.saturating_add(lease));
        if let Some(fault) = renewed {
            let at = seconds(fault.end);
            say(
                format!("it was renewed after the {} of {at}", fault.name),
                fault.end,
            );
        }
    }
    // A server that is unreachable renews nothing.
    let ended = ended.or(turn.killed).unwrap_or(record.end);
    let faults = &record.faults;
    let during = faults.all[..faults.begun_by(ended)].iter();
    for away in during.filter(|fault| fault.is_an_outage() && hold.from < fault.begin) {
        let over = away.begin.saturating_add(lease);
        let due = record.notices(client, hold.looks_again(over));
        if record.setup.deployment == "one"
            && away.client.is_none()
            && away.end > due
            && ended > due
        {
            say(
                "it was used on although the server was away for longer than the lease".to_owned(),
                due,
            );
        }
    }
}

/// How much of a name is held, and how much is wanted.
#[derive(Default)]
struct Use {
    held: u64,
    /// The number of waiters for each amount.
    wanted: BTreeMap<u64, u64>,
}

impl Use {
    /// Whether there is enough for even the largest request.
    fn is_idle(&self, capacity: u64) -> bool {
        let most = self.wanted.keys().next_back();
        most.is_some_and(|most| self.held + most <= capacity)
    }
}

/// A change of the use of a name.
#[derive(Clone, Copy)]
enum Change {
    Takes(u64),
    Returns(u64),
    Wants(u64),
    Leaves(u64),
}

/// No lock is free while somebody waits for it, for longer than a message takes or a fault explains.
fn idle(record: &Record, name: &Arc<str>, turns: &[&Turn], wrong: &mut Vec<Violation>) {
    // A multi-lock acquires its names one after another and keeps some while it waits for others.
    if turns.iter().any(|turn| turn.wanted.names.len() > 1) {
        return;
    }
    let is_shared = turns.iter().any(|turn| turn.wanted.mode == Mode::Permits);
    let capacities = super::sharing::capacities(record);
    let capacity = if is_shared {
        capacities.get(name).copied().unwrap_or(0)
    } else {
        1
    };
    let mut changes: Vec<(Nanos, Change)> = Vec::new();
    let has_lease = turns.iter().all(|turn| turn.wanted.has_lease());
    // Permits without a lease that nobody returns are missing until the count is set again.
    let sets = record.sets.get(name).map_or(&[][..], |sets| sets);
    let set_after = |time: Nanos| {
        let next = sets.partition_point(|&set| set <= time);
        sets.get(next).copied().unwrap_or(Nanos::MAX)
    };
    for turn in turns {
        let many = if is_shared { turn.wanted.permits } else { 1 };
        let waited = turn.waited_until().min(record.end);
        // A stopped thread does not count as waiting.
        let mut from = turn.asked.time;
        for &(begin, end) in record.faults.stops(turn.client()) {
            if begin < waited && end > from {
                if begin > from {
                    changes.push((from, Change::Wants(many)));
                    changes.push((begin, Change::Leaves(many)));
                }
                from = end;
            }
        }
        if from < waited {
            changes.push((from, Change::Wants(many)));
            changes.push((waited, Change::Leaves(many)));
        }
        let (taken, returned) = match (&turn.hold, turn.killed) {
            (Some(hold), None) => (hold.from, turn.ended()),
            (Some(hold), Some(killed)) if has_lease => (hold.from, killed.max(hold.from)),
            (Some(hold), Some(_)) => (hold.from, set_after(hold.from)),
            // A killed worker may have been granted its permits without logging it.
            (None, Some(_)) if !has_lease => (turn.asked.time, set_after(turn.asked.time)),
            (None, _) => continue,
        };
        changes.push((taken, Change::Takes(many)));
        changes.push((returned, Change::Returns(many)));
    }
    if !has_lease {
        for fault in record.faults.dividing(name) {
            changes.push((fault.begin, Change::Takes(capacity)));
            changes.push((set_after(fault.end), Change::Returns(capacity)));
        }
    }
    changes.sort_by_key(|&(time, _)| time);
    let mut now = Use::default();
    let mut since: Option<Nanos> = None;
    let mut was_free = |from: Nanos, until: Nanos| {
        if until <= record.notices(NEMESIS, from) || until <= allowed(record, name, turns, from) {
            return;
        }
        let waits = |turn: &&&Turn| turn.asked.time <= from && turn.waited_until() >= until;
        let waits = turns.iter().find(waits);
        wrong.push(Violation {
            rule: Rule::Idle,
            words: format!(
                "{name}: free from {} to {} although wanted{}",
                seconds(from),
                seconds(until),
                waits.map_or(String::new(), |turn| format!(", for instance by {turn}"))
            ),
            lines: waits.map_or_else(Vec::new, |turn| turn.lines()),
            time: from,
        });
    };
    for (time, change) in changes {
        let mut is_granted = false;
        match change {
            Change::Takes(many) => {
                now.held = now.held.saturating_add(many);
                is_granted = true;
            }
            Change::Returns(many) => now.held = now.held.saturating_sub(many),
            Change::Wants(many) => *now.wanted.entry(many).or_default() += 1,
            Change::Leaves(many) => {
                if let Some(waiters_left) = now.wanted.get_mut(&many) {
                    *waiters_left -= 1;
                    if *waiters_left == 0 {
                        now.wanted.remove(&many);
                    }
                }
            }
        }
        let is_idle = now.is_idle(capacity);
        if let Some(from) = since
            && (!is_idle || is_granted)
        {
            was_free(from, time);
            since = None;
        }
        if is_idle {
            since.get_or_insert(time);
        }
    }
}

/// How long a lock that is free from `from` on may stay free although it is wanted.
///
/// Without a fault, a message wakes the next waiter at once. With a fault, a holder that was killed or does not know of
/// its hold may keep the lock until its lease ends, and in a fair lock's queue each dead waiter costs one waiter lease.
fn allowed(record: &Record, name: &Arc<str>, turns: &[&Turn], from: Nanos) -> Nanos {
    let slack = record.setup.slack;
    let mut until = record.faults.extend(NEMESIS, from, slack);
    for fault in &record.faults.all {
        if fault.begin > until {
            break;
        }
        if fault.lock.as_ref().is_some_and(|lock| lock != name) {
            continue;
        }
        let end = if fault.is_of_a_worker() {
            fault.begin
        } else {
            fault.end
        };
        let explained = end.saturating_add(record.recovery_of(fault));
        let queue = dead_in_queue(record, turns, fault.begin, end);
        let explained = explained.saturating_add(queue * record.setup.waiter_lease);
        if explained >= from {
            until = until.max(record.faults.extend(NEMESIS, explained, slack));
        }
    }
    until
}

/// The number of waiters in a fair lock's queue that left it abnormally between `begin` and `end`.
fn dead_in_queue(record: &Record, turns: &[&Turn], begin: Nanos, end: Nanos) -> u64 {
    let dead = turns.iter().filter(|turn| {
        turn.wanted.is_fair()
            && turn.asked.time <= end.saturating_add(record.setup.command_timeout)
            && turn.waited_until() >= begin
            && (turn.killed.is_some()
                || turn
                    .answer
                    .as_ref()
                    .is_none_or(|answer| answer.phase != Phase::Ok)
                || record
                    .faults
                    .stops(turn.client())
                    .iter()
                    .any(|&(stop, cont)| stop <= turn.waited_until() && cont >= turn.asked.time))
    });
    dead.count() as u64
}

/// A latch opens when all have counted down, and not earlier.
fn latches(record: &Record, wrong: &mut Vec<Violation>) {
    for (name, latch) in &record.latches {
        let forgotten = || record.faults.dividing(name).next().is_some();
        let Some((set, count)) = latch.set else {
            continue;
        };
        let mut asked: Vec<Nanos> = latch.counts.iter().map(|call| call.asked.time).collect();
        asked.sort_unstable();
        let counted = latch.counts.iter().filter_map(|call| {
            let answer = call.answer.as_ref()?;
            (answer.phase == Phase::Ok).then_some(answer.at.time)
        });
        let mut counted: Vec<Nanos> = counted.collect();
        counted.sort_unstable();
        let last = usize::try_from(count).unwrap_or(usize::MAX).wrapping_sub(1);
        let first_open = asked.get(last).copied().unwrap_or(Nanos::MAX);
        let surely_open = counted.get(last).copied().unwrap_or(Nanos::MAX);
        for call in latch.counts.iter().chain(&latch.waits) {
            let client = super::turns::client(call.process);
            let limit = call.limit.unwrap_or(record.setup.command_timeout);
            if let Err(how) = in_time(record, client, call.asked, limit, call.answer.as_ref()) {
                wrong.push(latch_call(name, call, Rule::Deadline, how));
            }
            let Some(answer) = &call.answer else { continue };
            let times = (call.asked.time, answer.at.time);
            let explained = record
                .faults
                .explain(client, Some(name), times, record.recovery());
            if answer.phase == Phase::Info && !explained {
                wrong.push(latch_call(
                    name,
                    call,
                    Rule::Cause,
                    "failed without a fault",
                ));
            }
        }
        for call in &latch.waits {
            let Some(answer) = &call.answer else { continue };
            let closed = count > 0 && set.time <= call.asked.time && answer.at.time < first_open;
            if answer.phase == Phase::Ok && closed && !forgotten() {
                let what = "saw it open before enough have counted down";
                wrong.push(latch_call(name, call, Rule::Latch, what));
            }
            let client = super::turns::client(call.process);
            let times = (call.asked.time, answer.at.time);
            let open = surely_open.max(call.asked.time);
            let due = record.faults.extend(NEMESIS, open, record.setup.slack);
            if answer.phase != Phase::Info
                && answer.at.time > due
                && !record
                    .faults
                    .explain(client, Some(name), times, record.recovery())
            {
                let what = "was not woken although it is open";
                wrong.push(latch_call(name, call, Rule::Latch, what));
            }
        }
    }
}

fn latch_call(name: &str, call: &super::turns::LatchCall, rule: Rule, what: &str) -> Violation {
    let answer = call.answer.as_ref();
    let error = answer.and_then(|answer| answer.error.as_deref());
    let lines = [Some(call.asked.line), answer.map(|answer| answer.at.line)];
    Violation {
        rule,
        words: format!(
            "{name}: process {} {what} (asked {}, answered {}{})",
            call.process,
            seconds(call.asked.time),
            answer.map_or("never".to_owned(), |answer| seconds(answer.at.time)),
            error.map_or(String::new(), |error| format!(": {error}"))
        ),
        lines: lines
            .into_iter()
            .flatten()
            .filter(|&line| line > 0)
            .collect(),
        time: call.asked.time,
    }
}
