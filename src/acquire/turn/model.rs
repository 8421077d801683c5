//! The turns of readers and writers, as a model: threads that read or write, each in a process of its own, and what the
//! scripts that take the lock do with the notes (`lua/prelude/notes.lua`). Searched exhaustively, see
//! [`search`](crate::search).
//!
//! Time passes in ticks, and all threads are prompt: a step that is possible at once is taken before the next tick, in
//! any order. Exceptions are threads that died or were stopped, requests of threads that gave up, and threads that come
//! or leave as they like.

use crate::search::{self, Model};

/// The lease, in ticks. A holder renews at each tick, and a waiter that is noted asks at each.
const LEASE: u8 = 2;
const WAITER_LEASE: u8 = 3;

/// The number of ticks after which a waiter has no precedence any more; counted only in scenes with threads of
/// Redisson.
const PRECEDENCE: u8 = 4;

/// The longest time for which a thread holds: more than a lease.
const LONGEST: u8 = 3;

/// How often threads of the other side may go first. A thread that is noted is overtaken by none that comes later. Of
/// two that wait on one side, the other may be overtaken once, by the next thread that is noted.
const OVERTAKEN: u8 = 2;

const THREADS: usize = 4;

/// A call of a thread. The numbers are used in turn, and there are enough that two calls are never mixed up.
type Call = (u8, u8);
const CALLS: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Doing {
    #[default]
    Nothing,
    /// The request is under way.
    Asks,
    /// A refusal is under way: in how many ticks to ask again, and behind which call.
    Refused(u8, Option<Call>),
    Granted,
    /// Parks for this many ticks.
    Parks(u8),
    /// Has held for this many ticks.
    Holds(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum ThreadHealth {
    #[default]
    Well,
    Stopped,
    Dead,
}

/// The call behind which a thread is; `None` if the thread has not asked before.
type Behind = Option<Option<Call>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Thread {
    doing: Doing,
    health: ThreadHealth,
    call: u8,
    behind: Behind,
    /// A message has arrived since the thread asked.
    news: bool,
    waited: u8,
    comes: u8,
    /// The thread has left in this tick, and comes again in the next one.
    has_left: bool,
    /// A request without a reply that is not executed yet.
    late: Option<(u8, Behind)>,
    /// The call that is being undone. A connection keeps the order, so the request is executed before its undo.
    undoes: Option<u8>,
    /// For how many ticks the thread was kept out by nothing but notes of threads that are unwell.
    kept_out: u8,
    /// How often a thread of the other side went first since this one is known to wait.
    overtaken: Option<u8>,
}

impl Thread {
    fn waits(&self) -> bool {
        matches!(
            self.doing,
            Doing::Asks | Doing::Refused(..) | Doing::Parks(_)
        )
    }

    fn is_well(&self) -> bool {
        self.health == ThreadHealth::Well
    }

    fn may_undo(&self) -> bool {
        self.undoes.is_some() && self.late.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// How long the server keeps the hold of each.
    holds: [Option<u8>; THREADS],
    /// The notes of readers and of writers: which call is noted, and for how long.
    notes: [Option<(Call, u8)>; 2],
    threads: [Thread; THREADS],
    faults: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Reads,
    Writes,
    /// A thread of Redisson, whose read holds may overlap with others without end.
    RedissonReads,
}

use Role::{Reads, RedissonReads, Writes};

/// The possible faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadFault {
    Dies,
    Stops,
    /// The thread gives up, whether or not its request has a reply.
    GivesUp,
    /// The connection is lost after the request was executed.
    LosesReply,
    /// The connection is lost before the request was executed.
    LosesRequest,
    LosesMessage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Come(usize),
    Run(usize),
    Read(usize),
    Ask(usize),
    Leave(usize),
    RunLate(usize),
    Undo(usize),
    Resume(usize),
    Suffer(usize, ThreadFault),
    Tick,
}

/// The scripts and threads as they are, or with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    AsItIs,
    /// This side leaves no notes.
    NoNote(usize),
    /// A refused thread is behind the call that is noted then.
    BehindAnybody,
    /// A number without a reply is used for the next request.
    AsksWithItAgain,
    /// A note has no end.
    NotedForGood,
    /// A noted waiter does not prolong its note.
    NotProlonged,
    /// Undoing a call leaves its note.
    NotWithdrawn,
    /// A message that arrives while a request is under way is overlooked.
    NewsOverlooked,
    /// A waiter has precedence without end.
    NoLimit,
}

struct Scene {
    roles: &'static [Role],
    /// How often each thread comes; those of Redisson come without end.
    comes: u8,
    faults: u8,
    kinds: &'static [ThreadFault],
    /// How many of the threads suffer faults: the first ones.
    suffer: usize,
    variant: Variant,
}

const EXCLUSION: &str = "whoever writes is alone";
const TURNS: &str = "nobody is overtaken again and again";
const KEPT_OUT: &str = "nobody waits longer than a waiter lease for one that is gone";
const STANDS: &str = "a free lock does not stand still";
const NOTED: &str = "the note of a waiter that is well does not end";
const REACHED: &str = "whoever waits comes to hold it";

const FOR_EVER: u8 = 9;

impl Scene {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    fn has_redisson(&self) -> bool {
        self.roles.contains(&RedissonReads)
    }

    /// The side of a thread, and the index of its side's note: readers or writers.
    fn side(&self, c: usize) -> usize {
        usize::from(self.roles[c] == Writes)
    }

    fn is_written(&self, state: &State) -> bool {
        (0..self.roles.len()).any(|c| self.roles[c] == Writes && state.holds[c].is_some())
    }

    /// The scripts. `Err`: refused, with when to ask again in ticks, and behind which call.
    fn run(
        &self,
        state: &mut State,
        c: usize,
        call: u8,
        behind: Behind,
    ) -> Result<(), (u8, Option<Call>)> {
        let (side, id) = (self.side(c), (u8::try_from(c).expect("few"), call));
        let plain = self.roles[c] == RedissonReads;
        let has_precedence = state.threads[c].waited < PRECEDENCE || self.is(Variant::NoLimit);
        let other = state.notes[1 - side];
        let noted = state.notes[side];
        let is_noted = noted.is_some_and(|(noted_call, _)| noted_call == id);
        let now_noted = other.map(|(noted_call, _)| noted_call);
        let behind = match behind {
            _ if plain || !has_precedence => None,
            _ if self.is(Variant::BehindAnybody) => now_noted,
            None => now_noted,
            Some(behind) => behind.filter(|_| behind == now_noted),
        };
        let held = |is_such: &dyn Fn(Role) -> bool| {
            let holds = (0..self.roles.len()).filter(|c| is_such(self.roles[*c]));
            holds.filter_map(|c| state.holds[c]).min()
        };
        let in_the_way = held(&|role| role == Writes)
            .or(behind.and(other).map(|(_, ticks_left)| ticks_left))
            .or(held(&|_| side == 1));
        let Some(ticks_left) = in_the_way else {
            state.holds[c] = Some(LEASE);
            if is_noted || side == 0 && !plain {
                state.notes[side] = None;
            }
            return Ok(());
        };
        let leaves = !plain && has_precedence && !self.is(Variant::NoNote(side));
        let look = match noted {
            _ if plain => ticks_left,
            Some((_, ticks_left)) if !is_noted => ticks_left,
            _ if leaves => {
                let lives = match self.variant {
                    Variant::NotedForGood => u8::MAX,
                    _ => WAITER_LEASE.min(PRECEDENCE - state.threads[c].waited.min(PRECEDENCE - 1)),
                };
                state.notes[side] = Some((id, lives));
                if self.is(Variant::NotProlonged) {
                    return Err((WAITER_LEASE + 1, behind));
                }
                1
            }
            _ => ticks_left,
        };
        Err((ticks_left.min(look), behind))
    }

    fn publish(&self, state: &mut State) {
        for thread in &mut state.threads {
            let overlooks =
                self.is(Variant::NewsOverlooked) && !matches!(thread.doing, Doing::Parks(_));
            thread.news |= thread.waits() && !overlooks;
        }
    }

    /// The hold of `c` ends, by a release.
    fn release(&self, state: &mut State, c: usize) {
        if state.holds[c].take().is_some() && state.holds.iter().all(Option::is_none) {
            self.publish(state);
        }
    }

    /// The thread holds no longer, and comes again if it has calls left.
    fn goes(&self, state: &mut State, c: usize) {
        let thread = state.threads[c];
        state.threads[c] = Thread {
            call: (thread.call + 1) % CALLS,
            comes: thread.comes,
            late: thread.late,
            undoes: thread.undoes,
            health: thread.health,
            has_left: true,
            ..Thread::default()
        };
    }

    /// The server let thread `c` in.
    fn has_overtaken(&self, state: &mut State, c: usize) {
        for other in 0..self.roles.len() {
            let side = self.side(other);
            if let Some(overtaken) = &mut state.threads[other].overtaken
                && side != self.side(c)
            {
                *overtaken += 1;
            }
        }
    }

    fn suffer(&self, state: &mut State, c: usize, fault: ThreadFault) {
        state.faults -= 1;
        let thread = &mut state.threads[c];
        match fault {
            ThreadFault::Dies => {
                thread.health = ThreadHealth::Dead;
                thread.comes = 0;
            }
            ThreadFault::Stops => thread.health = ThreadHealth::Stopped,
            ThreadFault::LosesMessage => thread.news = false,
            ThreadFault::LosesReply | ThreadFault::LosesRequest | ThreadFault::GivesUp => {
                if thread.doing == Doing::Asks {
                    thread.late = Some((thread.call, thread.behind));
                }
                thread.undoes = Some(thread.call);
                if fault == ThreadFault::GivesUp {
                    self.goes(state, c);
                } else {
                    thread.doing = Doing::Asks;
                    if !self.is(Variant::AsksWithItAgain) {
                        thread.call = (thread.call + 1) % CALLS;
                        thread.behind = None;
                    }
                }
            }
        }
    }

    /// Removes the hold and the note that a call has left.
    fn undo(&self, state: &mut State, c: usize) {
        let Some(call) = state.threads[c].undoes.take() else {
            return;
        };
        if !matches!(state.threads[c].doing, Doing::Granted | Doing::Holds(_)) {
            self.release(state, c);
        }
        let id = (u8::try_from(c).expect("few"), call);
        let note = &mut state.notes[self.side(c)];
        if note.is_some_and(|(noted_call, _)| noted_call == id) && !self.is(Variant::NotWithdrawn) {
            *note = None;
            self.publish(state);
        }
    }

    fn can_suffer(&self, state: &State, c: usize, fault: ThreadFault) -> bool {
        let thread = &state.threads[c];
        let can = match fault {
            ThreadFault::Dies | ThreadFault::Stops => thread.doing != Doing::Nothing,
            ThreadFault::GivesUp => thread.waits() || thread.doing == Doing::Granted,
            ThreadFault::LosesRequest => thread.doing == Doing::Asks,
            ThreadFault::LosesReply => matches!(thread.doing, Doing::Refused(..) | Doing::Granted),
            ThreadFault::LosesMessage => thread.news,
        };
        can && c < self.suffer && thread.is_well() && self.roles[c] != RedissonReads
    }

    fn tick(&self, state: &mut State) {
        for note in &mut state.notes {
            *note = note.and_then(|(call, ticks_left)| match ticks_left {
                u8::MAX => Some((call, ticks_left)),
                _ => (ticks_left > 1).then(|| (call, ticks_left - 1)),
            });
        }
        let written = self.is_written(state);
        for c in 0..self.roles.len() {
            let others_wait = (0..self.roles.len()).any(|other| {
                let thread = &state.threads[other];
                self.side(other) != self.side(c) && thread.waits() && thread.is_well()
            });
            let in_the_way = match self.roles[c] {
                Writes => state.holds.iter().any(Option::is_some),
                _ => written,
            };
            let thread = &mut state.threads[c];
            let well = thread.is_well();
            thread.has_left = false;
            match &mut thread.doing {
                Doing::Parks(ticks_left) => *ticks_left = ticks_left.saturating_sub(1),
                Doing::Holds(age) if well => {
                    *age = (*age + 1).min(LONGEST);
                    // The hold is renewed.
                    state.holds[c] = state.holds[c].map(|_| LEASE + 1);
                }
                _ => {}
            }
            if thread.waits() && well {
                let counts = u8::from(self.has_redisson());
                thread.waited = (thread.waited + counts).min(PRECEDENCE);
                let counts = !in_the_way && (!others_wait || self.has_redisson());
                thread.kept_out = if counts { thread.kept_out + 1 } else { 0 };
            }
            state.holds[c] = state.holds[c].and_then(|ticks| (ticks > 1).then(|| ticks - 1));
        }
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Come(c) => {
                let thread = &mut state.threads[c];
                thread.comes -= u8::from(thread.comes < FOR_EVER);
                thread.doing = Doing::Asks;
            }
            Step::Run(c) => {
                let (call, behind) = (state.threads[c].call, state.threads[c].behind);
                let answer = self.run(state, c, call, behind);
                let thread = &mut state.threads[c];
                match answer {
                    Ok(()) => {
                        (thread.doing, thread.overtaken) = (Doing::Granted, None);
                        self.has_overtaken(state, c);
                    }
                    Err((ticks, behind)) => {
                        thread.doing = Doing::Refused(ticks, behind);
                        thread.overtaken.get_or_insert(0);
                    }
                }
            }
            Step::Read(c) => {
                let thread = &mut state.threads[c];
                match thread.doing {
                    Doing::Granted => thread.doing = Doing::Holds(0),
                    Doing::Refused(ticks, behind) => {
                        thread.behind = Some(behind);
                        thread.doing = Doing::Parks(ticks);
                    }
                    _ => unreachable!("no answer"),
                }
            }
            Step::Ask(c) => {
                let thread = &mut state.threads[c];
                (thread.doing, thread.news) = (Doing::Asks, false);
            }
            Step::Leave(c) => {
                self.release(state, c);
                self.goes(state, c);
            }
            Step::RunLate(c) => {
                if let Some((call, behind)) = state.threads[c].late.take()
                    && state.holds[c].is_none()
                    && self.run(state, c, call, behind).is_ok()
                {
                    self.release(state, c);
                }
            }
            Step::Undo(c) => self.undo(state, c),
            Step::Resume(c) => {
                state.threads[c].health = ThreadHealth::Well;
                if matches!(state.threads[c].doing, Doing::Holds(_)) && state.holds[c].is_none() {
                    self.goes(state, c);
                }
            }
            Step::Suffer(c, fault) => self.suffer(state, c, fault),
            Step::Tick => self.tick(state),
        }
    }

    /// The steps that a thread takes at once, and those that it may take.
    fn steps_of(&self, state: &State, c: usize, at_once: &mut Vec<Step>, may: &mut Vec<Step>) {
        let thread = &state.threads[c];
        may.extend(thread.late.map(|_| Step::RunLate(c)));
        if thread.health == ThreadHealth::Stopped {
            may.push(Step::Resume(c));
        }
        if thread.may_undo() {
            at_once.push(Step::Undo(c));
        } else if thread.doing == Doing::Asks {
            // The request is on its way already.
            at_once.push(Step::Run(c));
        }
        if !thread.is_well() {
            return;
        }
        match thread.doing {
            Doing::Nothing if thread.comes > 0 && !thread.has_left => may.push(Step::Come(c)),
            Doing::Granted | Doing::Refused(..) => at_once.push(Step::Read(c)),
            Doing::Parks(ticks) if thread.news || ticks == 0 => at_once.push(Step::Ask(c)),
            Doing::Holds(LONGEST..) if self.roles[c] != RedissonReads => {
                at_once.push(Step::Leave(c))
            }
            Doing::Holds(_) => may.push(Step::Leave(c)),
            _ => {}
        }
        if state.faults > 0 {
            let kinds = self.kinds.iter().copied();
            let suffers = kinds.filter(|fault| self.can_suffer(state, c, *fault));
            may.extend(suffers.map(|fault| Step::Suffer(c, fault)));
        }
    }
}

impl Model for Scene {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        let mut threads = [Thread::default(); THREADS];
        for (thread, role) in threads.iter_mut().zip(self.roles) {
            thread.comes = match role {
                RedissonReads => FOR_EVER,
                _ => self.comes,
            };
        }
        State {
            holds: [None; THREADS],
            notes: [None; 2],
            threads,
            faults: self.faults,
        }
    }

    fn next(&self, state: &State, successors: &mut Vec<(Step, State)>) {
        let (mut steps, mut may) = (Vec::new(), Vec::new());
        for c in 0..self.roles.len() {
            self.steps_of(state, c, &mut steps, &mut may);
        }
        if steps.is_empty() {
            steps.push(Step::Tick);
        }
        for step in steps.into_iter().chain(may) {
            let mut after = *state;
            self.take(&mut after, step);
            successors.push((step, after));
        }
    }

    fn broken(&self, before: &State, step: Step, after: &State) -> Option<&'static str> {
        let held = after.holds.iter().flatten().count();
        if self.is_written(after) && held > 1 {
            return Some(EXCLUSION);
        }
        let is_clean = self.faults == 0;
        let limit = if self.has_redisson() {
            PRECEDENCE + WAITER_LEASE
        } else {
            WAITER_LEASE
        };
        for (c, thread) in after.threads.iter().enumerate().take(self.roles.len()) {
            if thread.kept_out > limit && self.roles[c] != RedissonReads {
                return Some(KEPT_OUT);
            }
            if thread.overtaken > Some(OVERTAKEN) && is_clean && !self.has_redisson() {
                return Some(TURNS);
            }
        }
        // A request that is stuck delays its undo.
        let is_prompt = |thread: &Thread| thread.is_well() && thread.late.is_none();
        let are_prompt = before.threads.iter().all(is_prompt);
        if step != Step::Tick || self.has_redisson() {
            return None;
        }
        let waits = |thread: &Thread| thread.waits() && thread.is_well();
        let nobody_failed = is_clean
            || matches!(
                self.kinds,
                [ThreadFault::LosesReply | ThreadFault::LosesRequest | ThreadFault::GivesUp]
            );
        if nobody_failed
            && are_prompt
            && before.holds.iter().all(Option::is_none)
            && before.threads.iter().any(waits)
        {
            return Some(STANDS);
        }
        let may_stop = self.kinds.contains(&ThreadFault::Stops);
        for (note, now) in before.notes.iter().zip(&after.notes).filter(|_| !may_stop) {
            let is_noted = |(call, _): &(Call, u8)| {
                let thread = &before.threads[usize::from(call.0)];
                waits(thread) && thread.call == call.1 && thread.waited + 1 < PRECEDENCE
            };
            if note.as_ref().is_some_and(is_noted) && now.is_none() {
                return Some(NOTED);
            }
        }
        None
    }

    fn goals(&self) -> Vec<&'static str> {
        vec![REACHED; self.roles.len()]
    }

    fn lacks(&self, goal: usize, state: &State) -> bool {
        state.threads[goal].waits() && state.threads[goal].is_well()
    }

    fn is_due(&self, _: usize, step: Step) -> bool {
        !matches!(
            step,
            Step::Come(_) | Step::Resume(_) | Step::RunLate(_) | Step::Suffer(..)
        )
    }

    fn words(&self, before: &State, step: Step, after: &State) -> String {
        let of = |c: usize| format!("{}{c}", ["R", "W"][self.side(c)]);
        match step {
            Step::Come(c) => format!("{} comes", of(c)),
            Step::Run(c) => {
                let notes = after
                    .notes
                    .map(|note| note.map(|((c, _), ticks_left)| (of(c.into()), ticks_left)));
                format!(
                    "{} is answered {:?}; noted: {notes:?}",
                    of(c),
                    after.threads[c].doing
                )
            }
            Step::Read(c) => format!("{} reads that", of(c)),
            Step::Ask(c) => format!("{} asks again", of(c)),
            Step::Leave(c) => format!("{} leaves", of(c)),
            Step::RunLate(c) => format!("a late request of {} is executed", of(c)),
            Step::Undo(c) => format!("a request of {} is undone", of(c)),
            Step::Resume(c) => format!("{} goes on", of(c)),
            Step::Suffer(c, fault) => format!("{} {fault:?}", of(c)),
            Step::Tick => format!("a tick; {:?} held", before.holds),
        }
    }
}

const CLEAN: Scene = Scene {
    roles: &[Reads, Reads, Writes],
    comes: FOR_EVER,
    faults: 0,
    kinds: &[],
    suffer: THREADS,
    variant: Variant::AsItIs,
};

const WRITERS: Scene = Scene {
    roles: &[Reads, Writes, Writes],
    ..CLEAN
};

const TWO_AND_TWO: &[Role] = &[Reads, Reads, Writes, Writes];

const fn faulty(kinds: &'static [ThreadFault]) -> Scene {
    Scene {
        comes: 1,
        faults: 1,
        kinds,
        ..CLEAN
    }
}

/// Four threads: with three, none is noted between the request without a reply and the next one.
const LOST_AMONG_FOUR: Scene = Scene {
    roles: TWO_AND_TWO,
    suffer: 1,
    ..faulty(&[ThreadFault::LosesReply])
};

const REDISSON: Scene = Scene {
    roles: &[Reads, Writes, RedissonReads],
    comes: 1,
    ..CLEAN
};

fn keeps(name: &str, scene: &Scene) -> usize {
    search::keeps(name, scene).states
}

#[test]
fn readers_and_writers_take_turns() {
    let mut states = keeps("readers without a pause, a writer", &CLEAN);
    states += keeps("writers without a pause, a reader", &WRITERS);
    if search::asked_for("deep") {
        let (roles, comes) = (TWO_AND_TWO, 2);
        states += keeps(
            "two and two",
            &Scene {
                roles,
                comes,
                ..CLEAN
            },
        );
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn nobody_waits_for_long_for_one_that_died_was_stopped_or_gave_up() {
    let each: [&[ThreadFault]; 6] = [
        &[ThreadFault::Dies],
        &[ThreadFault::Stops],
        &[ThreadFault::GivesUp],
        &[ThreadFault::LosesReply],
        &[ThreadFault::LosesRequest],
        &[ThreadFault::LosesMessage],
    ];
    let mut states = 0;
    for kinds in each {
        for roles in [CLEAN.roles, WRITERS.roles] {
            let scene = Scene {
                roles,
                ..faulty(kinds)
            };
            states += keeps(&format!("{kinds:?} {roles:?}"), &scene);
        }
    }
    if search::asked_for("deep") {
        keeps("a lost reply among four", &LOST_AMONG_FOUR);
        for kinds in each {
            let scene = Scene {
                roles: TWO_AND_TWO,
                ..faulty(kinds)
            };
            states += keeps(&format!("{kinds:?} {TWO_AND_TWO:?}"), &scene);
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn beside_readers_of_redisson_that_overlap_for_ever_readers_wait_for_a_time_only() {
    let states = keeps("Redisson", &REDISSON);
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_fault_of_the_turns_is_found() {
    let faults = [
        (Variant::NoNote(0), WRITERS, TURNS),
        (Variant::NoNote(1), CLEAN, TURNS),
        (Variant::BehindAnybody, CLEAN, STANDS),
        (Variant::AsksWithItAgain, LOST_AMONG_FOUR, STANDS),
        (
            Variant::NotWithdrawn,
            faulty(&[ThreadFault::LosesReply]),
            STANDS,
        ),
        (
            Variant::NotedForGood,
            faulty(&[ThreadFault::Dies]),
            KEPT_OUT,
        ),
        (Variant::NotProlonged, CLEAN, NOTED),
        (
            Variant::NotWithdrawn,
            faulty(&[ThreadFault::GivesUp]),
            STANDS,
        ),
        (Variant::NewsOverlooked, CLEAN, STANDS),
        (Variant::NoLimit, REDISSON, KEPT_OUT),
    ];
    for (variant, scene, rule) in faults {
        let scene = Scene { variant, ..scene };
        search::breaks(&format!("{variant:?}"), &scene, rule);
    }
}
