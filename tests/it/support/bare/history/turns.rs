//! The requests of a history, each with everything that followed from it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::event::{Divides, Edge, Event, NEMESIS, Nanos, Phase, Wanted, What};
use super::faults::{Fault, Faults};
use super::setup::Setup;
use super::writes::{Write, Written};
use super::{Rule, Violation};

/// A forced release by somebody else counts as a fault.
pub(crate) const FORCED: &str = "force-unlock";

/// A moment, and the line of the log that records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) time: Nanos,
    pub(crate) line: usize,
}

/// The outcome of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) at: At,
    pub(crate) phase: Phase,
    pub(crate) error: Option<String>,
}

/// A request for a lock or for permits, as its thread saw it.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) process: i64,
    pub(crate) wanted: Wanted,
    pub(crate) asked: At,
    pub(crate) limit: Option<Nanos>,
    pub(crate) answer: Option<Answer>,
    pub(crate) hold: Option<Hold>,
    /// When the worker was killed.
    pub(crate) killed: Option<Nanos>,
}

/// A hold, from the answer to the request on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    pub(crate) from: Nanos,
    pub(crate) token: Option<u64>,
    pub(crate) id: Option<Arc<str>>,
    /// When the holder was notified that its hold may be over.
    pub(crate) lost: Option<At>,
    /// When the release began; the thread no longer relies on the hold from then on.
    pub(crate) releases: Option<At>,
    pub(crate) released: Option<Answer>,
    /// The end of the hold's validity, as the holder last knew it.
    pub(crate) valid_until: Option<Nanos>,
    /// The numbers that were read and written under the lock.
    pub(crate) work: Vec<(u64, u64)>,
    /// Guarded writes during the hold.
    pub(crate) writes: Vec<Write>,
    /// The moment until which the holder certainly relied on the hold.
    pub(crate) until: Nanos,
}

impl Hold {
    /// Whether the holder knows, at least from the result of its release, that its hold may have been over.
    pub(crate) fn was_notified(&self) -> bool {
        let not_released = |released: &Answer| released.phase != Phase::Ok;
        self.lost.is_some() || self.released.as_ref().is_some_and(not_released)
    }
}

impl Turn {
    pub(crate) fn client(&self) -> i64 {
        client(self.process)
    }

    /// When the wait ended.
    pub(crate) fn waited_until(&self) -> Nanos {
        let answer = self.answer.as_ref().map(|answer| answer.at.time);
        answer.or(self.killed).unwrap_or(Nanos::MAX)
    }

    /// The last known moment of the turn.
    pub(crate) fn ended(&self) -> Nanos {
        match &self.hold {
            Some(hold) => hold
                .released
                .as_ref()
                .map_or(hold.until, |released| released.at.time),
            None => self.waited_until(),
        }
    }

    pub(crate) fn lines(&self) -> Vec<usize> {
        let mut lines = vec![self.asked.line];
        lines.extend(self.answer.as_ref().map(|answer| answer.at.line));
        if let Some(hold) = &self.hold {
            lines.extend(hold.lost.map(|lost| lost.line));
            lines.extend(hold.releases.map(|releases| releases.line));
            lines.extend(hold.released.as_ref().map(|released| released.at.line));
        }
        lines.retain(|&line| line > 0);
        lines
    }
}

/// A moment in the unit in which a reader searches the log.
pub(crate) fn seconds(time: Nanos) -> String {
    if time == Nanos::MAX {
        return "the end".to_owned();
    }
    format!("{:.6} s", time as f64 / 1e9)
}

pub(crate) fn client(process: i64) -> i64 {
    process.div_euclid(1000)
}

/// A call of a latch.
#[derive(Clone, Debug)]
pub(crate) struct LatchCall {
    pub(crate) process: i64,
    pub(crate) asked: At,
    pub(crate) limit: Option<Nanos>,
    pub(crate) answer: Option<Answer>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Latch {
    /// The count that the latch was set to, and when that was confirmed.
    pub(crate) set: Option<(At, u64)>,
    pub(crate) counts: Vec<LatchCall>,
    pub(crate) waits: Vec<LatchCall>,
}

/// A history in the form that the rules read.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) setup: Setup,
    /// Sorted by the times of the requests.
    pub(crate) turns: Vec<Turn>,
    pub(crate) faults: Faults,
    pub(crate) latches: BTreeMap<Arc<str>, Latch>,
    /// The times at which each semaphore was given its permits.
    pub(crate) sets: BTreeMap<Arc<str>, Vec<Nanos>>,
    pub(crate) left_behind: Vec<(At, String)>,
    pub(crate) written: Vec<Written>,
    pub(crate) end: Nanos,
    /// Violations of the log's own form.
    pub(crate) wrong: Vec<Violation>,
}

/// Operations of one process that have begun and not ended.
#[derive(Default)]
struct Open {
    asks: Option<usize>,
    /// The most recent hold is last.
    holds: Vec<usize>,
    releases: Vec<usize>,
    forces: Option<(Nanos, Arc<str>)>,
    latch: Option<(Arc<str>, bool, usize)>,
}

impl Record {
    pub(crate) fn of(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.time);
        let mut record = Self {
            end: events.last().map_or(0, |event| event.time),
            ..Self::default()
        };
        let mut open: HashMap<i64, Open> = HashMap::new();
        let (mut edges, mut late) = (Vec::new(), Vec::new());
        for event in events {
            let at = At {
                time: event.time,
                line: event.line,
            };
            match event.what {
                What::Setup(setup) => record.setup = *setup,
                What::Fault(edge) => edges.push((event.time, edge)),
                What::Late { span } => late.push((event.time, span)),
                What::LeftBehind { keys } => record
                    .left_behind
                    .extend(keys.into_iter().map(|key| (at, key))),
                What::Written { name, entries } => {
                    record.written.push(Written { at, name, entries });
                }
                What::Remark => {}
                What::Unreadable(why) => {
                    record.wrong.push(Violation {
                        rule: Rule::Log,
                        words: format!("a line cannot be read: {why}"),
                        lines: vec![event.line],
                        time: 0,
                    });
                }
                What::Set { wanted, count } => {
                    if event.phase == Phase::Ok {
                        record.was_set(&wanted, count, at);
                    }
                }
                _ if event.process == NEMESIS => record.is_out_of_place(at, NEMESIS),
                _ => {
                    let process_open = open.entry(event.process).or_default();
                    record.of_process(process_open, event, at, &mut edges);
                }
            }
        }
        edges.sort_by_key(|&(time, _)| time);
        record.faults = Faults::new(&edges, &late, &record.setup);
        record.count_holds();
        record
    }

    fn is_out_of_place(&mut self, at: At, process: i64) {
        self.wrong.push(Violation {
            rule: Rule::Log,
            words: format!(
                "process {process} ends at {} what it has not begun, or begins it twice",
                seconds(at.time)
            ),
            lines: vec![at.line],
            time: at.time,
        });
    }

    fn was_set(&mut self, wanted: &Wanted, count: u64, at: At) {
        if &*wanted.kind == "latch" {
            let latch = self.latches.entry(wanted.name()).or_default();
            latch.set.get_or_insert((at, count));
        } else {
            let sets = self.sets.entry(wanted.name()).or_default();
            sets.push(at.time);
        }
    }

    fn of_process(
        &mut self,
        process_open: &mut Open,
        event: Event,
        at: At,
        edges: &mut Vec<(Nanos, Edge)>,
    ) {
        let process = event.process;
        let answer = Answer {
            at,
            phase: event.phase,
            error: event.error,
        };
        let in_place = match event.what {
            What::Acquire {
                wanted,
                limit,
                token,
                id,
            } => match event.phase {
                Phase::Invoke => {
                    let turn = Turn {
                        process,
                        wanted,
                        asked: at,
                        limit,
                        answer: None,
                        hold: None,
                        killed: None,
                    };
                    self.turns.push(turn);
                    process_open.asks.replace(self.turns.len() - 1).is_none()
                }
                phase => match process_open.asks.take() {
                    None => false,
                    Some(turn) => {
                        self.turns[turn].answer = Some(answer);
                        if phase == Phase::Ok {
                            self.turns[turn].hold = Some(Hold {
                                from: at.time,
                                token,
                                id,
                                ..Hold::default()
                            });
                            process_open.holds.push(turn);
                        }
                        true
                    }
                },
            },
            What::Lost {
                wanted,
                id,
                valid_until,
            } => match self.find(&process_open.holds, &wanted, id.as_ref()) {
                Some(open) => {
                    let hold = self.turns[process_open.holds[open]].hold.as_mut();
                    hold.is_some_and(|hold| {
                        hold.lost.get_or_insert(at);
                        hold.valid_until = valid_until;
                        true
                    })
                }
                // A loss may be reported after the hold was released.
                None => true,
            },
            What::Release {
                wanted,
                id,
                valid_until,
            } => match event.phase {
                Phase::Invoke => match self.find(&process_open.holds, &wanted, id.as_ref()) {
                    None => false,
                    Some(open) => {
                        let turn = process_open.holds.remove(open);
                        process_open.releases.push(turn);
                        let hold = self.turns[turn].hold.as_mut();
                        hold.is_some_and(|hold| {
                            hold.valid_until = hold.valid_until.or(valid_until);
                            hold.releases.replace(at).is_none()
                        })
                    }
                },
                _ => match self.find(&process_open.releases, &wanted, id.as_ref()) {
                    None => false,
                    Some(open) => {
                        let turn = process_open.releases.remove(open);
                        let hold = self.turns[turn].hold.as_mut();
                        hold.is_some_and(|hold| hold.released.replace(answer).is_none())
                    }
                },
            },
            What::Work { name, read, wrote } => {
                let mut holds = process_open.holds.iter().rev();
                let turn = holds.find(|&&turn| self.turns[turn].wanted.names.contains(&name));
                let hold = turn.and_then(|&turn| self.turns[turn].hold.as_mut());
                hold.is_some_and(|hold| {
                    hold.work.push((read, wrote));
                    true
                })
            }
            What::Write { name, entry } => self.of_write(&process_open.holds, &name, entry, answer),
            What::ForceUnlock { name } => match (event.phase, process_open.forces.take()) {
                (Phase::Invoke, None) => {
                    process_open.forces = Some((event.time, name));
                    true
                }
                (Phase::Invoke, Some(_)) | (_, None) => false,
                (_, Some((begin, name))) => {
                    let edge = |is_end| Edge {
                        fault: match event.phase {
                            Phase::Ok => FORCED.into(),
                            _ => "failed force-unlock".into(),
                        },
                        number: Some(event.line as u64),
                        is_end,
                        client: None,
                        name: Some(Arc::clone(&name)),
                        divides: Some(Divides::All),
                    };
                    edges.extend([(begin, edge(false)), (event.time, edge(true))]);
                    true
                }
            },
            What::Panic => {
                self.wrong.push(Violation {
                    rule: Rule::Panic,
                    words: format!(
                        "process {process} panicked at {}: {}",
                        seconds(at.time),
                        answer.error.unwrap_or_default()
                    ),
                    lines: vec![at.line],
                    time: at.time,
                });
                true
            }
            What::CountDown { name } => {
                self.of_latch(process_open, process, name, true, None, answer)
            }
            What::Await { name, limit } => {
                self.of_latch(process_open, process, name, false, limit, answer)
            }
            _ => false,
        };
        if !in_place {
            self.is_out_of_place(at, process);
        }
    }

    fn of_latch(
        &mut self,
        process_open: &mut Open,
        process: i64,
        name: Arc<str>,
        counts: bool,
        limit: Option<Nanos>,
        answer: Answer,
    ) -> bool {
        let latch = self.latches.entry(Arc::clone(&name)).or_default();
        let calls = if counts {
            &mut latch.counts
        } else {
            &mut latch.waits
        };
        if answer.phase == Phase::Invoke {
            calls.push(LatchCall {
                process,
                asked: answer.at,
                limit,
                answer: None,
            });
            return process_open
                .latch
                .replace((name, counts, calls.len() - 1))
                .is_none();
        }
        match process_open.latch.take() {
            Some((begun, same, call)) if begun == name && same == counts => {
                calls[call].answer = Some(answer);
                true
            }
            _ => false,
        }
    }

    /// The position in `turns` of the turn that this event is about: the one with that id, or else the most recent.
    fn find(&self, turns: &[usize], wanted: &Wanted, id: Option<&Arc<str>>) -> Option<usize> {
        turns.iter().rposition(|&turn| {
            let turn = &self.turns[turn];
            let held_id = turn.hold.as_ref().and_then(|hold| hold.id.as_ref());
            turn.wanted.names == wanted.names
                && turn.wanted.mode == wanted.mode
                && (id.is_none() || held_id == id)
        })
    }

    /// Sets the end of each hold, now that it is known which workers were killed.
    fn count_holds(&mut self) {
        let slack = self.setup.slack;
        for turn in &mut self.turns {
            let client = client(turn.process);
            let killed = self.faults.killed_at(client);
            let Some(hold) = &mut turn.hold else {
                turn.killed = killed.filter(|_| turn.answer.is_none());
                continue;
            };
            let ends = [hold.lost, hold.releases];
            let ended = ends.iter().flatten().map(|at| at.time).min();
            turn.killed = killed.filter(|_| hold.released.is_none());
            hold.until = match (ended, killed) {
                (None, Some(killed)) => {
                    // The worker may have been about to notice the end of its lease, so only the time up to its last
                    // check counts.
                    let mut stops = self.faults.stops(client).iter();
                    let stopped = stops.find(|&&(begin, end)| begin <= killed && killed <= end);
                    let ran = stopped.map_or(killed, |&(begin, _)| begin);
                    let looked = match hold.writes.last() {
                        Some(write) if write.answer.is_none() => ran.min(write.asked.time),
                        _ => ran,
                    };
                    looked.saturating_sub(slack).max(hold.from)
                }
                (ended, _) => ended.unwrap_or(Nanos::MAX),
            };
            if let Some(valid_until) = hold.valid_until {
                hold.until = hold.until.min(valid_until).max(hold.from);
            }
        }
    }

    /// The turns that held each name, sorted by their grants.
    pub(crate) fn holds(&self) -> BTreeMap<Arc<str>, Vec<Held<'_>>> {
        let mut by_name: BTreeMap<_, Vec<Held<'_>>> = BTreeMap::new();
        for (number, turn) in self.turns.iter().enumerate() {
            let Some(hold) = &turn.hold else { continue };
            for name in &turn.wanted.names {
                let held = Held { number, turn, hold };
                by_name.entry(Arc::clone(name)).or_default().push(held);
            }
        }
        for holds in by_name.values_mut() {
            holds.sort_by_key(|held| held.hold.from);
        }
        by_name
    }

    /// All turns for each name.
    pub(crate) fn by_name(&self) -> BTreeMap<Arc<str>, Vec<&Turn>> {
        let mut by_name: BTreeMap<_, Vec<&Turn>> = BTreeMap::new();
        for turn in &self.turns {
            for name in &turn.wanted.names {
                by_name.entry(Arc::clone(name)).or_default().push(turn);
            }
        }
        by_name
    }

    /// How long a hold lives that is not renewed.
    pub(crate) fn lease(&self, wanted: &Wanted) -> Nanos {
        wanted.lease.unwrap_or(self.setup.lease)
    }

    /// How long after its end a fault may have consequences: an abandoned hold lives for a lease, and a retry takes up
    /// to a command timeout.
    pub(crate) fn recovery(&self) -> Nanos {
        let usual = self.setup.lease + self.setup.command_timeout + self.setup.slack;
        self.setup.recovery.unwrap_or(usual)
    }

    /// How long after `fault` a lock may stay free. If all workers and servers survive the fault, no lease has to end
    /// first.
    pub(crate) fn recovery_of(&self, fault: &Fault) -> Nanos {
        if fault.lets_everybody_live() {
            let usual = self.setup.command_timeout + 2 * self.setup.slack;
            usual.min(self.recovery())
        } else {
            self.recovery()
        }
    }

    /// When a thread of `client` must have noticed what happened at `from`.
    pub(crate) fn notices(&self, client: i64, from: Nanos) -> Nanos {
        self.faults.extend(client, from, self.setup.slack)
    }

    /// The faults that may have made a server forget a hold that was granted by `from` and relied on until `until`.
    pub(crate) fn may_have_forgotten<'a>(
        &'a self,
        lock: &'a str,
        from: Nanos,
        until: Nanos,
    ) -> impl Iterator<Item = &'a Fault> {
        let granted = from.saturating_sub(self.setup.slack);
        let dividing = self.faults.dividing(lock);
        let forgets = |fault: &&Fault| fault.divides == Divides::All;
        dividing
            .filter(forgets)
            .filter(move |fault| granted <= fault.end && until >= fault.begin)
    }
}

/// A turn that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) number: usize,
    pub(crate) turn: &'a Turn,
    pub(crate) hold: &'a Hold,
}
