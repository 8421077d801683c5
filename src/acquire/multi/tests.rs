use super::asks_again;

use std::collections::HashMap;

const TRIES: usize = 3;
const MEMBERS: usize = 3;

/// The command on its way between a thread and a member; each member has a server of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MemberRequest {
    Quiet,
    Asking,
    Granted,
    Refused,
    GivingBack,
    /// Behind a release.
    AskingAgain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Doing {
    /// The thread waits for the answers of all members that it does not hold, or of one.
    Asks,
    AsksFor(usize),
    Has,
    GaveUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    owner: [Option<usize>; MEMBERS],
    requests: [[MemberRequest; MEMBERS]; TRIES],
    held: [[bool; MEMBERS]; TRIES],
    doing: [Doing; TRIES],
}

/// Whether a thread asks again for the member with this index, of so many.
type Rule = fn(usize, usize) -> bool;

impl World {
    /// Each thread asks for its whole set at once, or for the first member alone.
    fn start(sets: [&[usize]; TRIES], in_order: [bool; TRIES]) -> Self {
        let mut world = Self {
            owner: [None; MEMBERS],
            requests: [[MemberRequest::Quiet; MEMBERS]; TRIES],
            held: [[false; MEMBERS]; TRIES],
            doing: [Doing::GaveUp; TRIES],
        };
        for (thread, set) in sets.iter().enumerate() {
            if !set.is_empty() {
                world.ask(thread, set, in_order[thread].then_some(0));
            }
        }
        world
    }

    fn ask(&mut self, thread: usize, set: &[usize], only: Option<usize>) {
        self.doing[thread] = only.map_or(Doing::Asks, Doing::AsksFor);
        for (index, member) in set.iter().enumerate() {
            if !self.held[thread][*member] && only.is_none_or(|only| only == index) {
                let request = &mut self.requests[thread][*member];
                *request = match request {
                    MemberRequest::GivingBack => MemberRequest::AskingAgain,
                    _ => MemberRequest::Asking,
                };
            }
        }
    }

    /// The server of `member` carries out what `thread` has sent first.
    fn serve(mut self, thread: usize, member: usize) -> Option<Self> {
        let (request, owner) = (&mut self.requests[thread][member], &mut self.owner[member]);
        *request = match request {
            MemberRequest::Asking if owner.is_none() => {
                *owner = Some(thread);
                MemberRequest::Granted
            }
            MemberRequest::Asking => MemberRequest::Refused,
            MemberRequest::GivingBack => {
                *owner = None;
                MemberRequest::Quiet
            }
            MemberRequest::AskingAgain => {
                *owner = None;
                MemberRequest::Asking
            }
            _ => return None,
        };
        Some(self)
    }

    /// The next step of a thread that has all answers.
    fn go_on(mut self, thread: usize, set: &[usize], rule: Rule) -> Option<Self> {
        let waits = |request: &MemberRequest| {
            matches!(request, MemberRequest::Asking | MemberRequest::AskingAgain)
        };
        if matches!(self.doing[thread], Doing::Has | Doing::GaveUp)
            || self.requests[thread].iter().any(waits)
        {
            return None;
        }
        let mut refused = false;
        for member in set {
            let request = &mut self.requests[thread][*member];
            self.held[thread][*member] |= *request == MemberRequest::Granted;
            refused |= *request == MemberRequest::Refused;
            if matches!(request, MemberRequest::Granted | MemberRequest::Refused) {
                *request = MemberRequest::Quiet;
            }
        }
        let Some(first) = set.iter().position(|member| !self.held[thread][*member]) else {
            self.doing[thread] = Doing::Has;
            return Some(self);
        };
        if !refused {
            self.ask(thread, set, None);
            return Some(self);
        }
        let again = rule(first, set.len());
        let kept = if again { first } else { 0 };
        for member in &set[kept..] {
            if std::mem::take(&mut self.held[thread][*member]) {
                self.requests[thread][*member] = MemberRequest::GivingBack;
            }
        }
        match again {
            true => self.ask(thread, set, Some(first)),
            false => self.doing[thread] = Doing::GaveUp,
        }
        Some(self)
    }

    fn next(self, sets: [&[usize]; TRIES], rule: Rule) -> Vec<Self> {
        let mut next = Vec::new();
        for (thread, set) in sets.iter().enumerate() {
            next.extend((0..MEMBERS).filter_map(|member| self.serve(thread, member)));
            next.extend(self.go_on(thread, set, rule));
        }
        next
    }

    fn is_won(&self) -> bool {
        self.doing.contains(&Doing::Has)
    }
}

/// Whether, from every state, some thread can still get its whole set; and how many states there are.
fn somebody_always_can(
    sets: [&[usize]; TRIES],
    in_order: [bool; TRIES],
    rule: Rule,
) -> (bool, usize) {
    let start = World::start(sets, in_order);
    let mut numbers = HashMap::from([(start, 0)]);
    let (mut worlds, mut came_from) = (vec![start], vec![Vec::new()]);
    let mut at = 0;
    while at < worlds.len() {
        let world = worlds[at];
        if !world.is_won() {
            for next in world.next(sets, rule) {
                let number = *numbers.entry(next).or_insert_with(|| {
                    worlds.push(next);
                    came_from.push(Vec::new());
                    worlds.len() - 1
                });
                came_from[number].push(at);
            }
        }
        at += 1;
    }
    let mut open: Vec<usize> = (0..worlds.len())
        .filter(|at| worlds[*at].is_won())
        .collect();
    let mut can: Vec<bool> = worlds.iter().map(World::is_won).collect();
    while let Some(at) = open.pop() {
        for from in &came_from[at] {
            if !std::mem::replace(&mut can[*from], true) {
                open.push(*from);
            }
        }
    }
    (can.into_iter().all(|can| can), worlds.len())
}

const SETS: [[&[usize]; TRIES]; 8] = [
    [&[0, 1, 2], &[0, 1, 2], &[]],
    [&[0, 1], &[0, 1], &[0, 1]],
    [&[0, 1], &[1, 2], &[0, 2]],
    [&[0, 1, 2], &[1, 2], &[]],
    [&[0, 1, 2], &[1, 2], &[2]],
    [&[0, 1], &[1], &[0, 1]],
    [&[0, 2], &[1, 2], &[0, 1]],
    [&[0, 1, 2], &[0, 2], &[1]],
];

#[test]
fn of_those_who_try_free_locks_somebody_has_them_in_the_end() {
    for sets in SETS {
        for in_order in [[false; TRIES], [true, false, false], [false, true, true]] {
            let (can, states) =
                somebody_always_can(sets, in_order, |refused, _| asks_again(refused));
            assert!(can, "{sets:?} {in_order:?}, {states} states");
            assert!(states > 50, "{sets:?}: {states}");
        }
    }
}

#[test]
fn with_any_other_rule_all_may_go_away_with_nothing() {
    // A thread that is refused any member gives up.
    let give_up: Rule = |_, _| false;
    assert!(!somebody_always_can(SETS[0], [false; TRIES], give_up).0);
    // A thread that is refused its last member gives up.
    let give_up: Rule = |refused, all| asks_again(refused) && refused + 1 < all;
    assert!(!somebody_always_can(SETS[0], [false; TRIES], give_up).0);
}
