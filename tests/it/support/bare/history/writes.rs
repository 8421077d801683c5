//! Guarded writes, compared with the log of them that the server keeps in the order of execution. No fault excuses a
//! late write: a server that loses data loses the lock and the log together.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::event::{Nanos, Phase};
use super::turns::{Answer, At, Hold, Record, Turn};
use super::{Rule, Violation};

/// The name of one write in both logs: `1001-17` is the 17th write of process 1001.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) process: i64,
    pub(crate) number: u64,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.process, self.number)
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = text.split_once('-').and_then(|(process, number)| {
            Some(Self {
                process: process.parse().ok()?,
                number: number.parse().ok()?,
            })
        });
        entry.ok_or_else(|| format!("{text} is no entry"))
    }
}

/// A write that a thread began during its hold.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) entry: Entry,
    pub(crate) asked: At,
    pub(crate) answer: Option<Answer>,
}

impl Write {
    pub(crate) fn ended_as(&self, phase: Phase) -> bool {
        self.answer
            .as_ref()
            .is_some_and(|answer| answer.phase == phase)
    }
}

/// The writes of one name that a server executed, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) at: At,
    pub(crate) name: Arc<str>,
    pub(crate) entries: Vec<Entry>,
}

impl Hold {
    /// When the holder can check its hold again: at `at`, or when the write that it waits for at that moment is
    /// answered.
    pub(crate) fn looks_again(&self, at: Nanos) -> Nanos {
        let answered = |write: &Write| {
            let answer = write.answer.as_ref();
            answer.map_or(Nanos::MAX, |answer| answer.at.time)
        };
        let mut writes = self.writes.iter();
        let current = writes.find(|write| write.asked.time <= at && answered(write) > at);
        current.map_or(at, answered)
    }
}

impl Record {
    /// Records that a write during one of `holds` begins or ends. False if there is no such hold.
    pub(super) fn of_write(
        &mut self,
        holds: &[usize],
        name: &Arc<str>,
        entry: Entry,
        answer: Answer,
    ) -> bool {
        let mut holds = holds.iter().rev();
        let turn = holds.find(|&&turn| self.turns[turn].wanted.names.contains(name));
        let Some(hold) = turn.and_then(|&turn| self.turns[turn].hold.as_mut()) else {
            return false;
        };
        if answer.phase == Phase::Invoke {
            hold.writes.push(Write {
                entry,
                asked: answer.at,
                answer: None,
            });
            return true;
        }
        let last = hold.writes.last_mut().filter(|last| last.entry == entry);
        last.is_some_and(|last| last.answer.replace(answer).is_none())
    }
}

pub(crate) fn check(record: &Record, wrong: &mut Vec<Violation>) {
    let mut known: HashMap<Entry, (usize, &Turn, &Write)> = HashMap::new();
    for (number, turn) in record.turns.iter().enumerate() {
        for write in turn.hold.iter().flat_map(|hold| &hold.writes) {
            known.insert(write.entry, (number, turn, write));
        }
    }
    for log in &record.written {
        let mut reader = Reader {
            log,
            entries_seen: HashSet::new(),
            begun: HashMap::new(),
            latest: None,
            latest_exclusive: None,
            guards: record.setup.guards,
            wrong,
        };
        for entry in &log.entries {
            match known.get(entry) {
                Some(&(number, turn, write)) => reader.read(number, turn, write),
                None => reader.say(Rule::Log, format!("nobody wrote {entry}"), &[]),
            }
        }
    }
}

/// The state while one server log is read.
struct Reader<'a> {
    log: &'a Written,
    entries_seen: HashSet<Entry>,
    /// For each turn its place in the order of first entries; `None` once one of its writes was reported as late.
    begun: HashMap<usize, Option<usize>>,
    /// The turn with the most recent first entry, and the most recent one among exclusive holds.
    latest: Option<(usize, &'a Turn)>,
    latest_exclusive: Option<(usize, &'a Turn)>,
    guards: bool,
    wrong: &'a mut Vec<Violation>,
}

impl<'a> Reader<'a> {
    fn read(&mut self, number: usize, turn: &'a Turn, write: &Write) {
        let entry = write.entry;
        let is_repeated = !self.entries_seen.insert(entry);
        if is_repeated && !self.guards {
            return;
        }
        if is_repeated {
            let what = format!("{entry} was executed twice, by {turn}");
            self.say(Rule::LateWrite, what, &[turn]);
        }
        if write.ended_as(Phase::Fail) {
            let what = format!("{entry} was refused and executed, by {turn}");
            self.say(Rule::LateWrite, what, &[turn]);
        }
        let is_exclusive = turn.wanted.mode.is_exclusive();
        let other = match is_exclusive {
            true => self.latest,
            false => self.latest_exclusive,
        };
        let late_after = match self.begun.get(&number) {
            // Each turn is reported once.
            Some(None) => return,
            Some(Some(own_place)) => other.filter(|(token, _)| token > own_place),
            // A turn that asked after this one was granted was granted later.
            None => other.filter(|(_, other)| {
                let hold = turn.hold.as_ref();
                hold.is_some_and(|hold| hold.from < other.asked.time)
            }),
        };
        if let Some((_, later)) = late_after {
            self.begun.insert(number, None);
            let what = format!("{entry} was executed when {later} had begun to write, by {turn}");
            return self.say(Rule::LateWrite, what, &[turn, later]);
        }
        let place = self.begun.len();
        if self.begun.contains_key(&number) {
            return;
        }
        self.begun.insert(number, Some(place));
        self.latest = Some((place, turn));
        if is_exclusive {
            self.latest_exclusive = self.latest;
        }
    }

    fn say(&mut self, rule: Rule, what: String, turns: &[&Turn]) {
        let granted = turns.first().and_then(|turn| turn.hold.as_ref());
        self.wrong.push(Violation {
            rule,
            words: format!("{}: {what}", self.log.name),
            lines: turns
                .iter()
                .flat_map(|turn| turn.lines())
                .chain([self.log.at.line])
                .collect(),
            time: granted.map_or(self.log.at.time, |hold| hold.from),
        });
    }
}
