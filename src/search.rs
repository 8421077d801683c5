//! Exhaustive searches, for tests: [`search`] visits the states of a protocol, [`explore`] the schedules of a
//! machine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::collections::{HashSet, VecDeque};
use std::fmt::{self, Debug, Display};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::io::Write as _;

/// A protocol with finitely many states.
pub(crate) trait Model {
    type State: Clone + Hash + Debug;
    type Step: Copy + Debug;

    fn start(&self) -> Self::State;

    /// Adds each step that is possible in `state`, and the state that it leads to.
    fn next(&self, state: &Self::State, successors: &mut Vec<(Self::Step, Self::State)>);

    /// The rule that a step breaks, if it breaks one.
    fn broken(
        &self,
        before: &Self::State,
        step: Self::Step,
        after: &Self::State,
    ) -> Option<&'static str>;

    /// The conditions that must be reachable: from every state that lacks a goal, due steps lead to a state that has
    /// it.
    fn goals(&self) -> Vec<&'static str>;

    fn lacks(&self, goal: usize, state: &Self::State) -> bool;

    /// Whether a step happens by itself, without a decision and without a fault, so that a wait for that goal may
    /// rely on it.
    fn is_due(&self, goal: usize, step: Self::Step) -> bool;

    /// The step in words.
    fn words(&self, before: &Self::State, step: Self::Step, after: &Self::State) -> String;
}

/// The size of a model that keeps all rules.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    pub(crate) states: usize,
    pub(crate) steps: usize,
}

/// A shortest sequence of steps that breaks a rule. Displays the steps in words.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) rule: &'static str,
    steps: Vec<String>,
    last: String,
}

impl Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>4}. {step}", number + 1)?;
        }
        writeln!(f, "      broken: {}", self.rule)
    }
}

impl Counterexample {
    /// The last state, to find out why.
    pub(crate) fn last(&self) -> &str {
        &self.last
    }
}

/// A short hash function. Without optimisation, the standard one takes most of the time of a search.
#[derive(Default)]
pub(crate) struct Digest(u64);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let number = chunk
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte));
            self.write_u64(number);
        }
        self.write_usize(bytes.len());
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// States are known by this alone. Two of ten million share one with a probability of 3 in a million.
pub(crate) fn digest(state: &impl Hash) -> u64 {
    let mut digest = Digest::default();
    state.hash(&mut digest);
    digest.finish()
}

/// The states that were found, in the order of their distance from the start. `from` has, for each state, the number
/// of the previous state and which of its steps led here.
#[derive(Default)]
struct Found {
    numbers: HashMap<u64, u32, BuildHasherDefault<Digest>>,
    from: Vec<(u32, u16)>,
}

impl Found {
    fn path<M: Model>(&self, model: &M, mut number: u32) -> (Vec<String>, M::State) {
        let mut choices = Vec::new();
        while number != 0 {
            let (previous, choice) = self.from[number as usize];
            choices.push(choice);
            number = previous;
        }
        let (mut state, mut steps, mut next) = (model.start(), Vec::new(), Vec::new());
        for choice in choices.into_iter().rev() {
            next.clear();
            model.next(&state, &mut next);
            let (step, after) = next.swap_remove(choice.into());
            steps.push(model.words(&state, step, &after));
            state = after;
        }
        (steps, state)
    }

    fn counterexample<M: Model>(
        &self,
        model: &M,
        rule: &'static str,
        number: u32,
        then: Option<(M::Step, &M::State)>,
    ) -> Counterexample {
        let (mut steps, state) = self.path(model, number);
        let mut last = format!("{state:?}");
        if let Some((step, after)) = then {
            steps.push(model.words(&state, step, after));
            last = format!("{after:?}");
        }
        Counterexample { rule, steps, last }
    }
}

/// Visits every state, in the order of their distance from the start. A depth-first search found no fault sooner.
pub(crate) fn search<M: Model>(model: &M) -> Result<Size, Box<Counterexample>> {
    let goals = model.goals();
    let mut found = Found::default();
    let mut steps = 0;
    // By goal: the states that lack it, and the states that have it.
    let mut lacking = vec![Vec::new(); goals.len()];
    let mut reached = vec![Vec::new(); goals.len()];
    let mut edges = Vec::new();
    let mut note = |number: u32, state: &M::State| {
        for goal in 0..goals.len() {
            if model.lacks(goal, state) {
                lacking[goal].push(number);
            } else {
                reached[goal].push(number);
            }
        }
    };
    let start = model.start();
    found.numbers.insert(digest(&start), 0);
    found.from.push((0, 0));
    note(0, &start);
    let (mut known, mut next) = (VecDeque::from([(0_u32, start)]), Vec::new());
    while let Some((number, state)) = known.pop_front() {
        next.clear();
        model.next(&state, &mut next);
        for (choice, (step, after)) in next.drain(..).enumerate() {
            steps += 1;
            if let Some(rule) = model.broken(&state, step, &after) {
                let then = Some((step, &after));
                return Err(Box::new(found.counterexample(model, rule, number, then)));
            }
            let fresh = u32::try_from(found.from.len()).expect("few enough states");
            let to = match found.numbers.entry(digest(&after)) {
                Entry::Occupied(number) => *number.get(),
                Entry::Vacant(place) => {
                    place.insert(fresh);
                    let choice = u16::try_from(choice).expect("few enough steps");
                    found.from.push((number, choice));
                    note(fresh, &after);
                    known.push_back((fresh, after));
                    fresh
                }
            };
            // At most eight goals fit.
            let due = (0..goals.len()).map(|goal| model.is_due(goal, step));
            let due = due.fold(0, |due, is_due| due << 1 | u8::from(is_due));
            if due != 0 && to != number {
                edges.push(Edge {
                    from: number,
                    to,
                    due,
                });
            }
        }
    }
    let states = found.from.len();
    let edges = Edges::new(states, edges);
    for (at, rule) in goals.iter().enumerate() {
        let due = 1 << (goals.len() - 1 - at);
        let can = edges.backwards(due, &reached[at]);
        let is_stuck = |number: &&u32| !can[**number as usize];
        let stuck = || lacking[at].iter().filter(is_stuck);
        // Prefer a state without any due step.
        let goes_on = edges.go_on(due);
        let ends = stuck().find(|number| !goes_on[**number as usize]);
        if let Some(number) = ends.or_else(|| stuck().next()) {
            let counterexample = found.counterexample(model, rule, *number, None);
            return Err(Box::new(counterexample));
        }
    }
    Ok(Size { states, steps })
}

/// A step from one state to another, and the goals for which it is due.
#[derive(Clone, Copy)]
struct Edge {
    from: u32,
    to: u32,
    due: u8,
}

/// All steps, sorted by the state that they lead to. The steps into a state start at its index of `first`.
struct Edges {
    sorted: Vec<Edge>,
    first: Vec<u32>,
}

impl Edges {
    fn new(states: usize, edges: Vec<Edge>) -> Self {
        let mut first = vec![0_u32; states + 1];
        for edge in &edges {
            first[edge.to as usize + 1] += 1;
        }
        for at in 0..states {
            first[at + 1] += first[at];
        }
        let mut place = first.clone();
        let mut sorted = edges.clone();
        for edge in edges {
            let place = &mut place[edge.to as usize];
            sorted[*place as usize] = edge;
            *place += 1;
        }
        Self { sorted, first }
    }

    /// The states from which one of `goals` can be reached.
    fn backwards(&self, due: u8, goals: &[u32]) -> Vec<bool> {
        let mut can = vec![false; self.first.len()];
        let mut todo = goals.to_vec();
        for goal in goals {
            can[*goal as usize] = true;
        }
        while let Some(to) = todo.pop() {
            let (first, end) = (self.first[to as usize], self.first[to as usize + 1]);
            for edge in &self.sorted[first as usize..end as usize] {
                if edge.due & due != 0 && !can[edge.from as usize] {
                    can[edge.from as usize] = true;
                    todo.push(edge.from);
                }
            }
        }
        can
    }

    /// The states that have any due step.
    fn go_on(&self, due: u8) -> Vec<bool> {
        let mut goes_on = vec![false; self.first.len()];
        for edge in self.sorted.iter().filter(|edge| edge.due & due != 0) {
            goes_on[edge.from as usize] = true;
        }
        goes_on
    }
}

/// A machine and its environment. Panics if it finds itself in a wrong state.
pub(crate) trait Explore: Sized {
    type Step: Copy + Debug;

    fn copy(&self) -> Self;

    /// A number that is equal for two worlds with the same future.
    fn digest(&self) -> u64;

    /// Whether a step is possible here, as far as that is known without taking it.
    fn can(&self, _step: Self::Step) -> bool {
        true
    }

    /// Takes a step; `false` if the step is not possible here.
    fn take(&mut self, step: Self::Step) -> bool;

    fn check(&self);

    /// Lets everything end, with no further fault.
    fn drain(self);
}

/// Takes all steps in every order, and returns how many worlds there are. Every `drained`-th world is drained.
pub(crate) fn explore<W: Explore>(start: W, steps: &[W::Step], drained: usize) -> usize {
    let mut digests = HashSet::<u64, BuildHasherDefault<Digest>>::default();
    let mut worlds = vec![(start, Vec::new())];
    while let Some((world, mut path)) = worlds.pop() {
        for step in steps.iter().filter(|step| world.can(**step)) {
            let mut next = world.copy();
            path.push(*step);
            let trace = Trace(&path);
            let was_taken = next.take(*step);
            next.check();
            if was_taken && digests.insert(next.digest()) {
                if digests.len().is_multiple_of(drained) {
                    next.copy().drain();
                }
                drop(trace);
                worlds.push((next, path.clone()));
            } else {
                drop(trace);
            }
            path.pop();
        }
    }
    digests.len()
}

/// Prints the steps that led to a failed check.
pub(crate) struct Trace<'a, S: Debug>(pub(crate) &'a [S]);

impl<S: Debug> Drop for Trace<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            writeln!(std::io::stderr(), "after {:?}", self.0).unwrap_or_default();
        }
    }
}

/// Whether the tests were started with this word in `REDLATCH_MODEL`: `deep` to search further, `three` to do so with three
/// clients of one server, `words` to print counterexamples.
pub(crate) fn asked_for(word: &str) -> bool {
    std::env::var("REDLATCH_MODEL").is_ok_and(|words| words.split(',').any(|chosen| chosen == word))
}

/// Checks that the model keeps all rules. Prints its size if `words` are asked for.
#[track_caller]
pub(crate) fn keeps<M: Model>(name: &str, model: &M) -> Size {
    let began = std::time::Instant::now();
    match search(model) {
        Ok(size) => {
            if asked_for("words") {
                let (states, steps) = (size.states, size.steps);
                let elapsed = began.elapsed();
                writeln!(
                    std::io::stderr(),
                    "{name}: {states} states, {steps} steps, {elapsed:.1?}"
                )
                .unwrap_or_default();
            }
            size
        }
        Err(counterexample) => {
            panic!("{name}:\n{counterexample}{}", counterexample.last())
        }
    }
}

/// Checks that the model breaks this rule. Prints how if `words` are asked for.
#[track_caller]
pub(crate) fn breaks<M: Model>(name: &str, model: &M, rule: &str) {
    match search(model) {
        Ok(size) => panic!("{name} keeps all rules, in {size:?}"),
        Err(counterexample) => {
            let last = counterexample.last();
            assert_eq!(counterexample.rule, rule, "{name}:\n{counterexample}{last}");
            if asked_for("words") {
                writeln!(std::io::stderr(), "{name}:\n{counterexample}").unwrap_or_default();
            }
        }
    }
}
