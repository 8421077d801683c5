//! Who asked for which lock when, who had it, and what of that must not be. Memory only; moments are counted from the
//! beginning of the history.

use std::time::Duration;

use crate::support::ms;

/// How long a release waits for its answer at most: the default response timeout.
const ANSWER: Duration = ms(3_000);

/// One request for a lock, as the thread that made it saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) thread: usize,
    pub(crate) client: usize,
    pub(crate) lock: usize,
    pub(crate) asked: Duration,
    /// How long it was to wait.
    pub(crate) limit: Duration,
    /// When it had an answer, whichever; a hold begins then.
    pub(crate) answered: Option<Duration>,
    pub(crate) error: Option<String>,
    pub(crate) hold: Option<Hold>,
}

/// What a thread did with the lock: it incremented a number that the lock protects, in two steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    /// Until when it counted on the lock: it began to release it, or was told of its loss.
    pub(crate) until: Duration,
    /// The answer to the release.
    pub(crate) released: Option<Duration>,
    /// What it was told, at the latest in answer to the release: that it may not have been alone.
    pub(crate) told: Option<String>,
}

/// What happened to some locks, one number each.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) turns: Vec<Turn>,
    /// The numbers at the end.
    pub(crate) counted: Vec<u64>,
    /// From when until when something was broken. Otherwise there is no reason for an error or a loss.
    pub(crate) broken: Vec<(Duration, Duration)>,
    /// From when until when there were two servers that grant locks, and different clients may have asked different ones.
    pub(crate) divided: Vec<(Duration, Duration)>,
    /// By how much limits of time may be exceeded.
    pub(crate) slack: Duration,
}

/// A turn that has got the lock.
#[derive(Clone, Copy)]
struct Had<'a> {
    turn: &'a Turn,
    hold: &'a Hold,
    from: Duration,
}

impl Had<'_> {
    fn overlaps(&self, other: Had<'_>) -> bool {
        self.turn.lock == other.turn.lock
            && self.from < other.hold.until
            && other.from < self.hold.until
    }

    /// Since when both had it.
    fn together_since(&self, other: Had<'_>) -> Duration {
        self.from.max(other.from)
    }

    fn was_told(&self) -> bool {
        self.hold.told.is_some()
    }
}

impl History {
    /// All that must not be, in words; nothing if all is well.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let answers = self.turns.iter().flat_map(|turn| self.is_answered(turn));
        let mut wrong: Vec<String> = answers.collect();
        for turn in &self.turns {
            let told = turn.hold.as_ref().and_then(|hold| hold.told.as_ref());
            if let Some(what) = turn.error.as_ref().or(told)
                && !self.is_broken(turn)
            {
                wrong.push(format!("nothing was broken, but `{what}`: {turn:?}"));
            }
        }
        wrong.extend(self.together());
        wrong.extend(self.lost_increments());
        wrong
    }

    fn had(&self) -> Vec<Had<'_>> {
        let turns = self.turns.iter();
        let had = turns.filter_map(|turn| {
            Some(Had {
                turn,
                hold: turn.hold.as_ref()?,
                from: turn.answered?,
            })
        });
        let mut had: Vec<_> = had.collect();
        had.sort_by_key(|had| (had.turn.lock, had.from));
        had
    }

    fn is_answered(&self, turn: &Turn) -> Vec<String> {
        let mut wrong = Vec::new();
        match turn.answered {
            None => wrong.push(format!("it waits still: {turn:?}")),
            Some(answered) if answered > turn.asked + turn.limit + self.slack => {
                wrong.push(format!("it waited for too long: {turn:?}"));
            }
            Some(_) => {}
        }
        if let Some(hold) = &turn.hold {
            match hold.released {
                None => wrong.push(format!("its release has no answer: {turn:?}")),
                Some(released) if released > hold.until + ANSWER + self.slack => {
                    wrong.push(format!("its release took too long: {turn:?}"));
                }
                Some(_) => {}
            }
        }
        wrong
    }

    fn is_broken(&self, turn: &Turn) -> bool {
        let end = turn.hold.as_ref().and_then(|hold| hold.released);
        let end = end.or(turn.answered).unwrap_or(Duration::MAX);
        let mut broken = self.broken.iter();
        broken.any(|&(from, until)| turn.asked <= until && end >= from)
    }

    /// Whether two had a lock at the same time since each asked another server. Threads of one client ask the same one.
    fn were_divided(&self, one: Had<'_>, other: Had<'_>) -> bool {
        let since = one.together_since(other);
        let mut divided = self.divided.iter();
        one.turn.client != other.turn.client
            && divided.any(|&(from, until)| (from..=until).contains(&since))
    }

    /// Two that had a lock at the same time, and neither of those that may have been first was told.
    fn together(&self) -> Vec<String> {
        let had = self.had();
        let mut wrong = Vec::new();
        for (at, one) in had.iter().enumerate() {
            let later = had[at + 1..].iter();
            for other in later
                .take_while(|other| other.turn.lock == one.turn.lock && other.from < one.hold.until)
            {
                if !one.overlaps(*other) || one.was_told() || self.were_divided(*one, *other) {
                    continue;
                }
                // A thread that had to wait for a processor may note a grant late.
                if other.was_told() && other.turn.asked < one.from {
                    continue;
                }
                let [one, other] = [one.turn, other.turn];
                let threads = (one.thread, other.thread);
                wrong.push(format!("two had it, {threads:?}: {one:?} and {other:?}"));
            }
        }
        wrong
    }

    /// Whoever was told, or asked another server, may have undone what those did who had the lock at the same time, but
    /// nothing else.
    fn lost_increments(&self) -> Vec<String> {
        let had = self.had();
        let of = |lock: usize| had.iter().filter(move |its| its.turn.lock == lock);
        let mut wrong = Vec::new();
        for (lock, &counted) in self.counted.iter().enumerate() {
            let all = of(lock).count();
            let undone = |one: &Had<'_>, other: &Had<'_>| {
                one.overlaps(*other) && (other.was_told() || self.were_divided(*one, *other))
            };
            let alone = of(lock)
                .filter(|one| !one.was_told() && !of(lock).any(|other| undone(one, other)))
                .count();
            if !(alone as u64..=all as u64).contains(&counted) {
                wrong.push(format!(
                    "of {all} increments under lock {lock}, {alone} by holders that were alone, {counted} were counted"
                ));
            }
        }
        wrong
    }
}
