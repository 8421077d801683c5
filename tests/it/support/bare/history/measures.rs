//! Numbers by which libraries are compared: how long a lock stands still after a death, which losses a holder was told of, and by
//! how much limits of time are exceeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::{Nanos, Phase};
use super::faults::Fault;
use super::turns::{Held, Record, Turn};

/// How long after a death a lock is watched.
const WATCHED: Nanos = 15_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measures {
    /// Kills of a worker that held a lock which others wanted, without another fault before the next grant.
    pub(crate) dead_holders: usize,
    /// The longest time from such a death to the next grant.
    pub(crate) after_dead_holder: Nanos,
    /// Kills of a worker that waited for a lock which another worker held or wanted.
    pub(crate) dead_waiters: usize,
    /// The longest time after such a death for which the lock was free although wanted.
    pub(crate) after_dead_waiter: Nanos,
    /// Holders that were told of a loss before they released.
    pub(crate) told: usize,
    /// Holders that heard of a loss only by the release.
    pub(crate) told_by_release: usize,
    /// The longest time by which a wait with a limit exceeded it.
    pub(crate) overrun: Nanos,
    /// Requests of living workers that were never answered.
    pub(crate) unanswered: usize,
}

impl Measures {
    pub(super) fn of(record: &Record) -> Self {
        let mut measures = Self::default();
        for turn in &record.turns {
            measures.count(record, turn);
        }
        let by_name = record.by_name();
        let holds = record.holds();
        let kills = record.faults.all.iter();
        for kill in kills.filter(|fault| &*fault.name == "kill-worker") {
            let Some(client) = kill.client else { continue };
            for (name, turns) in &by_name {
                measures.after(record, kill, client, turns, holds_of(&holds, name));
            }
        }
        measures
    }

    fn count(&mut self, record: &Record, turn: &Turn) {
        let (faults, client) = (&record.faults, turn.client());
        if turn.answer.is_none() && faults.killed_at(client).is_none() {
            self.unanswered += 1;
        }
        if let (Some(answer), Some(limit)) = (&turn.answer, turn.limit)
            && limit > 0
        {
            let due = faults.extend(client, turn.asked.time, limit);
            self.overrun = self.overrun.max(answer.at.time.saturating_sub(due));
        }
        let Some(hold) = &turn.hold else { return };
        let was_refused = |phase| phase == Phase::Fail;
        if hold.lost.is_some() {
            self.told += 1;
        } else if hold
            .released
            .as_ref()
            .is_some_and(|answer| was_refused(answer.phase))
        {
            self.told_by_release += 1;
        }
    }

    /// Counts what one kill did to one lock.
    fn after(
        &mut self,
        record: &Record,
        kill: &Fault,
        client: i64,
        turns: &[&Turn],
        holds: &[Held<'_>],
    ) {
        let died = kill.begin;
        let others = || turns.iter().filter(|turn| turn.client() != client);
        // From when on some living worker wants what is granted then.
        let wanted_since = |granted: Nanos| {
            let wants = others()
                .filter(|turn| turn.asked.time <= granted && turn.waited_until() >= granted);
            wants.map(|turn| turn.asked.time.max(died)).min()
        };
        let until = quiet_until(record, kill);
        let next = holds
            .iter()
            .filter(|held| held.turn.client() != client && held.hold.from > died)
            .take_while(|held| held.hold.from <= until);
        let held = holds.iter().any(|held| {
            held.turn.client() == client && held.turn.killed.is_some() && held.hold.from <= died
        });
        if held {
            let granted = next.map(|held| held.hold.from).next();
            if let Some((granted, since)) =
                granted.and_then(|turn| Some((turn, wanted_since(turn)?)))
            {
                self.dead_holders += 1;
                self.after_dead_holder = self.after_dead_holder.max(granted - since);
            }
            return;
        }
        let waited = turns.iter().any(|turn| {
            turn.client() == client && turn.asked.time <= died && turn.killed.is_some()
        });
        if !waited {
            return;
        }
        let mut counted = false;
        for held in next {
            let granted = held.hold.from;
            let holds_before = holds.iter().filter(|held| held.hold.from < granted);
            let freed = holds_before
                .map(|held| held.turn.ended())
                .filter(|&end| end <= granted)
                .max();
            if let Some(since) = wanted_since(granted) {
                counted = true;
                let free = granted - since.max(freed.unwrap_or(died));
                self.after_dead_waiter = self.after_dead_waiter.max(free);
            }
        }
        self.dead_waiters += usize::from(counted);
    }
}

fn holds_of<'a, 'b>(
    holds: &'b BTreeMap<Arc<str>, Vec<Held<'a>>>,
    name: &Arc<str>,
) -> &'b [Held<'a>] {
    holds.get(name).map_or(&[], |holds| holds)
}

/// Until when nothing but that kill is broken; the kill itself if something was broken shortly before.
fn quiet_until(record: &Record, kill: &Fault) -> Nanos {
    let others = record
        .faults
        .all
        .iter()
        .filter(|fault| fault.begin != kill.begin);
    let mut until = kill.begin.saturating_add(WATCHED);
    for other in others {
        // A worker that was killed has no part in what follows its replacement.
        let is_over = if other.is_of_a_worker() {
            other.begin.saturating_add(record.setup.lease)
        } else {
            other.end.saturating_add(record.recovery())
        };
        if other.begin > kill.begin {
            until = until.min(other.begin);
        } else if is_over > kill.begin {
            return kill.begin;
        }
    }
    until
}
