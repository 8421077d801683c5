//! Histories of correct locks, made by a small simulation: the checker finds nothing in them, and finds each change
//! that makes one incorrect.

use proptest::prelude::*;

use crate::support::history::{Event, Mode, NEMESIS, Phase, Rule, What, check, millis};
use crate::support::made_up::{PERMITS, SLACK, Turn, asks, fault, has, history, written};

/// The random numbers of a history; zeros once they are used up, so that fewer numbers make a simpler history.
struct Choices(std::vec::IntoIter<u16>);

impl Choices {
    fn below(&mut self, end: u64) -> u64 {
        u64::from(self.0.next().unwrap_or(0)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

const NAMES: [&str; 6] = ["mutex", "fair", "fenced", "rwlock", "sem", "permits"];

/// How many threads use each name.
const THREADS: usize = 4;

#[derive(Debug)]
struct Made {
    turns: Vec<Turn>,
    others: Vec<Vec<Event>>,
    broken: Option<[u64; 2]>,
    /// A guarded write that the log shows after the one that followed it.
    late: Option<(i64, u64)>,
}

impl Made {
    fn check(&self) -> crate::support::history::Report {
        let logs = NAMES.iter().map(|name| written(name, &self.log(name)));
        check(history(
            &self.turns,
            &[&self.others[..], &logs.collect::<Vec<_>>()].concat(),
        ))
    }

    /// The holders' writes, in the order in which the server ran them.
    fn log(&self, name: &str) -> Vec<(i64, u64)> {
        let turns = self.granted(name).into_iter().map(|at| &self.turns[at]);
        let entries = turns.flat_map(|turn| {
            let writes = turn.had.iter().flat_map(|had| &had.writes);
            writes.map(|&(number, ..)| (turn.process, number))
        });
        let mut log: Vec<_> = entries.collect();
        if let Some(at) = log.iter().position(|entry| self.late == Some(*entry)) {
            log.swap(at, at + 1);
        }
        log
    }

    /// The end of the last turn.
    fn end(&self) -> u64 {
        let ends = self.turns.iter().map(|turn| {
            let had = turn.had.as_ref().and_then(|had| had.released);
            had.or(turn.ended).map_or(0, |(at, _)| at)
        });
        ends.max().unwrap_or(0)
    }

    /// The granted turns for a name, in the order of the grants.
    fn granted(&self, name: &str) -> Vec<usize> {
        let turns = self.turns.iter().enumerate();
        let granted = turns.filter(|(_, turn)| &*turn.wanted.name() == name && turn.had.is_some());
        let mut granted: Vec<_> = granted.map(|(at, _)| at).collect();
        granted.sort_by_key(|&at| self.turns[at].had.as_ref().map(|had| had.at));
        granted
    }
}

fn made(choices: Vec<u16>) -> Made {
    let mut choices = Choices(choices.into_iter());
    let broken = choices.one_in(2).then(|| {
        let begin = choices.below(500);
        [begin, begin + 1 + choices.below(300)]
    });
    let mut turns = Vec::new();
    // The number that each lock protects.
    let mut counts = [0; NAMES.len()];
    while !choices.is_empty() {
        for (number, name) in NAMES.iter().enumerate() {
            let from = turns
                .iter()
                .map(|turn: &Turn| turn.had.as_ref().map_or(turn.asked, |had| had.at) + 3_000)
                .max()
                .unwrap_or(0);
            let many = 1 + usize::try_from(choices.below(20)).unwrap();
            let count = &mut counts[number];
            let mut more = uses(&mut choices, (number, name, count), from, many, broken);
            turns.append(&mut more);
        }
    }
    Made {
        turns,
        others: broken
            .map(|times| fault("proxy-cut", times))
            .into_iter()
            .collect(),
        broken,
        late: None,
    }
}

/// Simulates some threads that use one name.
fn uses(
    choices: &mut Choices,
    (number, name, count): (usize, &str, &mut u64),
    from: u64,
    many: usize,
    broken: Option<[u64; 2]>,
) -> Vec<Turn> {
    let capacity = match name {
        "rwlock" => 100,
        "sem" | "permits" => PERMITS,
        _ => 1,
    };
    let is_broken = |at: u64| broken.is_some_and(|[begin, end]| (begin..=end).contains(&at));
    let (mut token, mut permit) = (from, 0);
    let mut turns: Vec<Turn> = Vec::new();
    // When each thread asks next; `None` while it waits or holds.
    let mut asks_at: Vec<Option<u64>> = (0..THREADS)
        .map(|_| Some(from + choices.below(50)))
        .collect();
    // Turn, thread, and share of the capacity.
    let mut waiting: Vec<(usize, usize, u64)> = Vec::new();
    let mut holders: Vec<(usize, usize, u64)> = Vec::new();
    let released = |turns: &[Turn], turn: usize| {
        turns[turn]
            .had
            .as_ref()
            .and_then(|had| had.releases)
            .unwrap()
    };
    loop {
        let asks_next = asks_at.iter().flatten().min().copied();
        let asks_next = asks_next.filter(|_| turns.len() < many);
        let releases_next = holders
            .iter()
            .map(|&(turn, ..)| released(&turns, turn))
            .min();
        let gives_up_next = waiting
            .iter()
            .map(|&(turn, ..)| turns[turn].asked + turns[turn].limit)
            .min();
        let Some(now) = [asks_next, releases_next, gives_up_next]
            .into_iter()
            .flatten()
            .min()
        else {
            return turns;
        };
        if releases_next == Some(now) {
            let at = holders
                .iter()
                .position(|&(turn, ..)| released(&turns, turn) == now);
            let (_, thread, _) = holders.remove(at.unwrap());
            asks_at[thread] = Some(now + 2 + choices.below(30));
        } else if asks_next == Some(now) {
            let thread = asks_at.iter().position(|asks| *asks == Some(now)).unwrap();
            asks_at[thread] = None;
            let process = [1_000, 2_000][thread % 2] + i64::try_from(10 * number + thread).unwrap();
            let mut turn = asks(process, name, now)
                .limit([0, 40, 300][usize::try_from(choices.below(3)).unwrap()]);
            let share = match name {
                "rwlock" if choices.one_in(2) => {
                    turn = turn.reads();
                    1
                }
                "rwlock" => capacity,
                "sem" => 1 + choices.below(PERMITS),
                _ => 1,
            };
            if turn.wanted.mode == Mode::Permits {
                turn = turn.permits(share);
            }
            waiting.push((turns.len(), thread, share));
            turns.push(turn);
        } else {
            let at = waiting
                .iter()
                .position(|&(turn, ..)| turns[turn].asked + turns[turn].limit == now);
            let (turn, thread, _) = waiting.remove(at.unwrap());
            let with_error = is_broken(now) && choices.one_in(2);
            let ended = turns[turn].clone();
            turns[turn] = if with_error {
                ended.failed(now + 1)
            } else {
                ended.refused(now + 1)
            };
            asks_at[thread] = Some(now + 2 + choices.below(30));
        }
        // Grant to waiters for as long as there is capacity.
        loop {
            let used: u64 = holders.iter().map(|&(.., share)| share).sum();
            let mut fit: Vec<_> = (0..waiting.len())
                .filter(|&at| used + waiting[at].2 <= capacity)
                .collect();
            if name == "fair" {
                fit.truncate(1);
            }
            if fit.is_empty() {
                break;
            }
            let at = fit[usize::try_from(choices.below(fit.len() as u64)).unwrap()];
            let (turn, thread, share) = waiting.remove(at);
            let (asked, until) = (turns[turn].asked, now + 2 + choices.below(40));
            let granted =
                has(turns[turn].process, name, [asked, now + 1, until]).released_at(until + 1);
            let mut granted = Turn {
                wanted: turns[turn].wanted.clone(),
                limit: turns[turn].limit,
                ..granted
            };
            if choices.one_in(3) {
                granted = granted.valid_until(until + choices.below(500));
            }
            if is_broken(until) && choices.one_in(3) {
                granted = granted.lost(until);
            } else if granted.wanted.mode.is_exclusive() {
                granted = granted.works(*count);
                *count += 1;
            }
            if capacity == 1 {
                let number = 2 * turn as u64 + from;
                let writes = |turn: Turn, number| turn.writes(number, Phase::Ok, now + 1);
                granted = writes(writes(granted, number), number + 1);
            }
            if name == "fenced" {
                token += 1 + choices.below(3);
                granted = granted.token(token);
            }
            if name == "permits" {
                permit += 1;
                granted = granted.id(&format!("{from}-{permit}"));
            }
            turns[turn] = granted;
            holders.push((turn, thread, share));
        }
    }
}

/// Makes a history incorrect. Returns the rule that must find it, or `None` if the history has nothing to change.
type Spoil = fn(&mut Made, &mut Choices) -> Option<Rule>;

/// Two grants of a name that follow each other, apart from faults and losses.
fn two_in_turn(made: &Made, name: &str, choices: &mut Choices) -> Option<[usize; 2]> {
    let granted = made.granted(name);
    let ended = |at: usize| made.turns[at].had.as_ref().and_then(|had| had.releases);
    let two: Vec<_> = granted
        .windows(2)
        .filter(|two| {
            let lost = |at: usize| {
                made.turns[at]
                    .had
                    .as_ref()
                    .is_some_and(|had| had.lost.is_some())
            };
            let near = made
                .broken
                .is_some_and(|[_, end]| ended(two[0]) <= Some(end + 500));
            !near && !lost(two[0]) && !lost(two[1])
        })
        .collect();
    let at = usize::try_from(choices.below(two.len().max(1) as u64)).unwrap();
    two.get(at).map(|two| [two[0], two[1]])
}

fn kind(choices: &mut Choices, kinds: &[&'static str]) -> &'static str {
    kinds[usize::try_from(choices.below(kinds.len() as u64)).unwrap()]
}

const SPOILS: [(&str, Spoil); 17] = [
    ("a grant comes before the release", |made, choices| {
        let name = kind(choices, &["mutex", "fair", "fenced"]);
        let [first, second] = two_in_turn(made, name, choices)?;
        let until = made.turns[first].had.as_ref()?.releases?;
        let from = made.turns[first].had.as_ref()?.at;
        let turn = &mut made.turns[second];
        turn.had.as_mut()?.at = until - 1;
        turn.asked = turn.asked.min(from);
        // A process number of its own, so that the thread's other turns do not matter.
        turn.process = 9_001;
        Some(Rule::Exclusion)
    }),
    ("a reader is admitted during a write", |made, choices| {
        let writers: Vec<_> = made
            .granted("rwlock")
            .into_iter()
            .filter(|&at| made.turns[at].wanted.mode == Mode::Write)
            .collect();
        let at = usize::try_from(choices.below(writers.len().max(1) as u64)).unwrap();
        let from = made.turns[*writers.get(at)?].had.as_ref()?.at;
        let until = made.turns[writers[at]].had.as_ref()?.releases?;
        let reader = has(9_001, "rwlock", [from, from, until]).reads();
        made.turns.push(reader);
        // A hold without duration overlaps with no other.
        (until > from).then_some(Rule::Exclusion)
    }),
    ("one permit too many is granted", |made, choices| {
        let granted = made.granted("sem");
        let at = usize::try_from(choices.below(granted.len().max(1) as u64)).unwrap();
        let from = made.turns[*granted.get(at)?].had.as_ref()?.at;
        let used = made.turns[granted[at]].wanted.permits;
        let turn = has(9_001, "sem", [from, from, from + 1]).permits(PERMITS + 1 - used);
        made.turns.push(turn);
        Some(Rule::Permits)
    }),
    ("one permit is granted twice", |made, choices| {
        let [first, second] = two_in_turn(made, "permits", choices)?;
        let id = made.turns[first].had.as_ref()?.id.clone();
        made.turns[second].had.as_mut()?.id = id;
        Some(Rule::Permits)
    }),
    ("a token does not rise", |made, choices| {
        let [first, second] = two_in_turn(made, "fenced", choices)?;
        let token = made.turns[first].had.as_ref()?.token?;
        made.turns[second].had.as_mut()?.token = Some(token - choices.below(2));
        Some(Rule::Tokens)
    }),
    ("an increment is lost", |made, choices| {
        let name = kind(choices, &["mutex", "fair", "fenced"]);
        let [first, second] = two_in_turn(made, name, choices)?;
        let work = made.turns[first].had.as_ref()?.work?;
        made.turns[second].had.as_mut()?.work.replace(work)?;
        Some(Rule::Numbers)
    }),
    ("a write comes late", |made, choices| {
        let name = kind(choices, &["mutex", "fair", "fenced"]);
        let [first, _] = two_in_turn(made, name, choices)?;
        let turn = &made.turns[first];
        let &(number, ..) = turn.had.as_ref()?.writes.last()?;
        made.late = Some((turn.process, number));
        Some(Rule::LateWrite)
    }),
    ("somebody is overtaken", |made, choices| {
        let granted = made.granted("fair");
        let at = usize::try_from(choices.below(granted.len().max(1) as u64)).unwrap();
        let turn = &made.turns[*granted.get(at)?];
        // Consequences of a fault last for some seconds.
        if made.broken.is_some_and(|[_, end]| turn.asked < end + 5_000) || turn.asked < SLACK + 1 {
            return None;
        }
        let asked = turn.asked - SLACK - 1;
        let until = turn.had.as_ref()?.at + SLACK + 1;
        let waits = asks(9_001, "fair", asked)
            .limit(until - asked)
            .refused(until);
        made.turns.push(waits);
        Some(Rule::Order)
    }),
    ("a wait exceeds its limit", |made, choices| {
        let asked = choices.below(made.end() + 1);
        let name = kind(choices, &NAMES);
        made.turns.push(
            asks(9_001, name, asked)
                .limit(50)
                .refused(asked + 51 + SLACK),
        );
        Some(Rule::Deadline)
    }),
    ("a wait never ends", |made, _| {
        let turn = made.turns.iter_mut().find(|turn| turn.ended.is_some())?;
        turn.ended = None;
        // A thread of its own, so that the wait is its last event.
        turn.process = 9_001;
        Some(Rule::Deadline)
    }),
    ("a release takes too long", |made, choices| {
        let name = kind(choices, &NAMES);
        let last = *made.granted(name).last()?;
        let had = made.turns[last].had.as_mut()?;
        had.released = Some((had.releases? + 601, None));
        made.turns[last].process = 9_001;
        Some(Rule::Deadline)
    }),
    ("an error has no cause", |made, choices| {
        let at = made.end() + 5_000 + choices.below(1_000);
        let name = kind(choices, &NAMES);
        made.turns.push(asks(9_001, name, at).failed(at + 1));
        Some(Rule::Cause)
    }),
    ("a loss has no cause", |made, choices| {
        let at = made.end() + 5_000 + choices.below(1_000);
        let name = kind(choices, &["mutex", "fair", "rwlock"]);
        made.turns
            .push(has(9_001, name, [at, at + 1, at + 20]).lost(at + 10));
        Some(Rule::Cause)
    }),
    ("a holder is notified late", |made, choices| {
        let name = kind(choices, &["mutex", "fair", "fenced", "rwlock", "permits"]);
        let granted = made.granted(name);
        let at = usize::try_from(choices.below(granted.len().max(1) as u64)).unwrap();
        let had = made.turns[*granted.get(at)?].had.as_mut()?;
        had.valid_until = Some(had.releases?.checked_sub(SLACK + 1)?);
        Some(Rule::Notice)
    }),
    ("a lock stays free", |made, choices| {
        let name = kind(choices, &NAMES);
        let at = made.end() + 5_000 + choices.below(1_000);
        made.turns.push(
            asks(9_001, name, at)
                .limit(SLACK + 1)
                .refused(at + SLACK + 1),
        );
        Some(Rule::Idle)
    }),
    ("a key is left behind", |made, _| {
        let what = What::LeftBehind {
            keys: vec!["mutex".to_owned()],
        };
        let left_behind = Event::new(NEMESIS, Phase::Info, what, millis(made.end()));
        made.others.push(vec![left_behind]);
        Some(Rule::LeftBehind)
    }),
    (
        "a thread releases what it does not have",
        |made, choices| {
            let name = kind(choices, &NAMES);
            let at = choices.below(made.end() + 1);
            let release = has(9_001, name, [at, at, at]).events().split_off(2);
            made.others.push(release);
            Some(Rule::Log)
        },
    ),
];

fn choices() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(any::<u16>(), 20..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_found_where_nothing_is_wrong(choices in choices()) {
        let made = made(choices);
        let report = made.check();
        prop_assert!(report.is_fine(), "{report}");
    }

    #[test]
    fn whatever_is_spoiled_is_found(
        choices in choices(),
        spoil in 0..SPOILS.len(),
        how in proptest::collection::vec(any::<u16>(), 4),
    ) {
        let mut made = made(choices);
        let (defect, spoil) = SPOILS[spoil];
        let rule = spoil(&mut made, &mut Choices(how.into_iter()));
        prop_assume!(rule.is_some());
        let report = made.check();
        let broken = report.broken();
        prop_assert!(rule.is_some_and(|rule| broken.contains_key(&rule)), "{defect}: {report}");
    }
}

/// Each way to make a history incorrect applies to a long one.
#[test]
fn every_way_is_taken() {
    let long = (0..3_000_u16).map(|n| n.wrapping_mul(40_503).rotate_left(7));
    let long: Vec<u16> = long.collect();
    for (defect, spoil) in SPOILS {
        let mut made = made(long.clone());
        assert!(made.check().is_fine(), "{}", made.check());
        let how = vec![1, 2, 3, 4].into_iter();
        let rule = spoil(&mut made, &mut Choices(how));
        let report = made.check();
        let broken = report.broken();
        assert!(
            rule.is_some_and(|rule| broken.contains_key(&rule)),
            "{defect}: {report}"
        );
    }
}
