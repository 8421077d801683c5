//! Exhaustive searches, for tests: of the schedules of a machine ([`explore`]).

use std::collections::HashSet;
use std::fmt::Debug;
use std::io::Write as _;

/// A machine and what surrounds it. It checks itself: whatever is wrong panics.
pub(crate) trait Explore: Sized {
    type Step: Copy + Debug;

    fn copy(&self) -> Self;

    /// The same in two worlds that go on alike.
    fn digest(&self) -> u64;

    /// Whether a step can be taken here, as far as that is seen at once.
    fn can(&self, _step: Self::Step) -> bool {
        true
    }

    /// Takes a step; `false` if it cannot be taken here.
    fn take(&mut self, step: Self::Step) -> bool;

    fn check(&self);

    /// From now on nothing goes wrong: everything has to come to its end.
    fn drain(self);
}

/// Takes all steps in every order; how many worlds there are. One in `drained` of them is drained.
pub(crate) fn explore<W: Explore>(start: W, steps: &[W::Step], drained: usize) -> usize {
    let mut seen = HashSet::new();
    let mut worlds = vec![(start, Vec::new())];
    while let Some((world, path)) = worlds.pop() {
        for step in steps.iter().filter(|step| world.can(**step)) {
            let mut next = world.copy();
            let path: Vec<_> = path.iter().copied().chain([*step]).collect();
            let trace = Trace(&path);
            let took = next.take(*step);
            next.check();
            if took && seen.insert(next.digest()) {
                if seen.len().is_multiple_of(drained) {
                    next.copy().drain();
                }
                drop(trace);
                worlds.push((next, path));
            }
        }
    }
    seen.len()
}

/// Says how it came to that if a check fails.
pub(crate) struct Trace<'a, S: Debug>(pub(crate) &'a [S]);

impl<S: Debug> Drop for Trace<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            writeln!(std::io::stderr(), "after {:?}", self.0).unwrap_or_default();
        }
    }
}
