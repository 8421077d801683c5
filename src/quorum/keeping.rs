//! What is known of one node's share of a hold: until when it is certain, and when it may have been missing. Pure.
//!
//! A node that has lost its share may have granted the lock to somebody else. Its *gap* begins at the last moment at which
//! it is known to have kept the share, and ends when it keeps it again. If the gaps of a majority may overlap, somebody
//! else may have held the lock, even if a majority keeps it for us now.

use std::cmp::Reverse;
use std::time::Instant;

use crate::quorum::tally::Majority;

/// When a node is known to have kept its share, and when it may not have.
#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
pub(crate) struct Keeping {
    /// Until when it certainly keeps it; `None` if it does not, or if that is unknown.
    until: Option<Instant>,
    /// When the last request that it has confirmed was sent.
    confirmed_at: Option<Instant>,
    /// When its last gap began, and when it ended.
    gap: Option<(Instant, Option<Instant>)>,
}

impl Keeping {
    pub(crate) fn is_certain(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    pub(crate) fn confirmed_at(&self) -> Option<Instant> {
        self.confirmed_at
    }

    /// A majority has granted the hold to a round that began at `since`, without this node.
    pub(crate) fn has_no_part_in_grant(&mut self, since: Instant) {
        self.gap = Some((since, None));
    }

    /// It has confirmed a request that was sent at `asked_at`; `true` if that ends a gap.
    pub(crate) fn confirm(&mut self, asked_at: Instant, until: Instant, now: Instant) -> bool {
        self.until = Some(until);
        self.confirmed_at = self.confirmed_at.max(Some(asked_at));
        match &mut self.gap {
            Some((_, to)) if to.is_none() => {
                *to = Some(now);
                true
            }
            _ => false,
        }
    }

    /// It no longer keeps it. Returns when the gap may have begun.
    pub(crate) fn miss(&mut self, now: Instant) -> Instant {
        let from = self.confirmed_at.unwrap_or(now);
        self.until = None;
        self.gap = Some((from, None));
        from
    }

    /// Whether it may have had a gap after `from`.
    fn has_gap_after(&self, from: Instant) -> bool {
        self.gap
            .is_some_and(|(_, to)| to.is_none_or(|to| to > from))
    }

    /// Whether it may have been without at some time between `from` and now.
    fn may_lack(&self, from: Instant, now: Instant) -> bool {
        !self.is_certain(now) || self.has_gap_after(from)
    }
}

/// How many nodes keep it for certain.
pub(crate) fn certain<'a>(nodes: impl Iterator<Item = &'a Keeping>, now: Instant) -> usize {
    nodes.filter(|node| node.is_certain(now)).count()
}

/// Until when a majority keeps it for certain; `None` if too few do even now.
pub(crate) fn certain_until<'a>(
    majority: Majority,
    nodes: impl Iterator<Item = &'a Keeping>,
    now: Instant,
) -> Option<Instant> {
    let certain = nodes.filter(|node| node.is_certain(now));
    let untils = certain.filter_map(|node| node.until).map(Reverse);
    majority.bound(untils).map(|Reverse(until)| until)
}

/// Whether somebody else may have had a majority at some time since `from`.
pub(crate) fn majority_may_have_lacked<'a>(
    majority: Majority,
    nodes: impl Iterator<Item = &'a Keeping>,
    from: Instant,
    now: Instant,
) -> bool {
    majority.has(nodes.filter(|node| node.may_lack(from, now)).count())
}

/// What was known of a node when the hold was released, and what it has answered.
#[derive(Debug, Clone, Copy)]
struct AtRelease {
    kept: Keeping,
    /// Whether it kept its share until the release, as it said.
    had_it: Option<bool>,
}

impl AtRelease {
    fn may_have_lacked(&self, from: Instant, released_at: Instant, unanswered: bool) -> bool {
        match self.had_it {
            Some(true) => self.kept.has_gap_after(from),
            Some(false) => true,
            None => unanswered || self.kept.may_lack(from, released_at),
        }
    }
}

/// What the answers to the releases of one hold have come to.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseTally {
    majority: Majority,
    released_at: Instant,
    nodes: Vec<AtRelease>,
}

impl ReleaseTally {
    /// `kept`: what was known of each node when the hold was released.
    pub(crate) fn new(
        majority: Majority,
        kept: impl Iterator<Item = Keeping>,
        released_at: Instant,
    ) -> Self {
        let unanswered = |kept| AtRelease { kept, had_it: None };
        Self {
            majority,
            released_at,
            nodes: kept.map(unanswered).collect(),
        }
    }

    /// How many nodes had it.
    pub(crate) fn yes(&self) -> usize {
        let had_it = self.nodes.iter().filter(|node| node.had_it == Some(true));
        had_it.count()
    }

    /// A node has answered; `false` if that shows that somebody else may have had a majority.
    pub(crate) fn answered(&mut self, node: usize, had_it: bool) -> bool {
        self.nodes[node].had_it = Some(had_it);
        let from = self.nodes[node].kept.confirmed_at;
        had_it || !from.is_some_and(|from| self.may_have_lacked(from, false))
    }

    /// Whether it depends on nodes that have not answered if somebody else may have had a majority.
    pub(crate) fn is_open(&self) -> bool {
        let unanswered = self.nodes.iter().filter(|node| node.had_it.is_none());
        unanswered
            .filter_map(|node| node.kept.confirmed_at)
            .any(|from| self.may_have_lacked(from, true))
    }

    fn may_have_lacked(&self, from: Instant, unanswered: bool) -> bool {
        let lack = |node: &&AtRelease| node.may_have_lacked(from, self.released_at, unanswered);
        self.majority.has(self.nodes.iter().filter(lack).count())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quorum::tally::Tally;

    /// A number below `end`.
    fn random(seed: &mut u64, end: usize) -> usize {
        *seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        usize::try_from(*seed >> 33).unwrap_or(0) % end
    }

    /// Nodes that forget, are asked and take their parts again in any order. If a majority was without at one time, the
    /// hold is found to be lost by the time at which all have been heard of once more.
    #[test]
    fn that_a_majority_was_without_at_one_time_is_found_out_in_any_order() {
        const N: usize = 5;
        let majority = Majority::of(N);
        let begin = Instant::now();
        let at = |tick: usize| begin + Duration::from_millis(u64::try_from(tick).unwrap_or(0));
        let (mut found, mut kept) = (0, 0);
        for seed in 0..20_000 {
            let mut seed = seed;
            let lease = Duration::from_millis(if random(&mut seed, 2) == 0 { 9 } else { 900 });
            // Whether the node has it in truth, and what is known of it.
            let mut nodes = [(true, Keeping::default()); N];
            let (mut without, mut lost) = (false, false);
            for (node, (has, keeping)) in nodes.iter_mut().enumerate() {
                if node < majority.needed() {
                    keeping.confirm(at(0), at(0) + lease, at(1));
                } else {
                    *has = false;
                    keeping.has_no_part_in_grant(at(0));
                }
            }
            let turns = 2 + random(&mut seed, 30);
            for tick in 2..2 + turns + N {
                let now = at(3 * tick);
                let last = tick >= 2 + turns;
                let node = if last {
                    tick - 2 - turns
                } else {
                    random(&mut seed, N)
                };
                let what = random(&mut seed, 3);
                let (has, keeping) = &mut nodes[node];
                if what == 0 && !last {
                    *has = false;
                } else if what == 1 && !last && !*has {
                    // Out of reach.
                } else if *has {
                    keeping.confirm(at(3 * tick - 1), at(3 * tick - 1) + lease, now);
                } else if keeping.until.is_some() {
                    let from = keeping.miss(now);
                    let nodes = nodes.iter().map(|its| &its.1);
                    lost |= majority_may_have_lacked(majority, nodes, from, now);
                } else {
                    *has = true;
                    keeping.confirm(at(3 * tick - 1), at(3 * tick - 1) + lease, now);
                }
                without |= majority.has(nodes.iter().filter(|its| !its.0).count());
            }
            assert!(lost || !without, "{nodes:?}");
            found += usize::from(lost);
            kept += usize::from(!lost);
        }
        assert!(found > 1000 && kept > 1000, "{found} {kept}");
    }

    /// A node in truth, and what is known of it.
    #[derive(Debug, Clone, Copy)]
    struct Node {
        /// It keeps the share until then, unless it forgets it.
        has_until: Option<Instant>,
        keeping: Keeping,
    }

    impl Node {
        fn has(&self, now: Instant) -> bool {
            self.has_until.is_some_and(|until| until > now)
        }
    }

    /// Everything that can happen to a hold of `N` nodes in a few steps of one tick each.
    struct Model<const N: usize> {
        begin: Instant,
        lease: Duration,
        majority: Majority,
        /// What was seen: histories, those with a true overlap, those found to be lost, and those released as held.
        histories: usize,
        overlaps: usize,
        lost: usize,
        held: usize,
    }

    #[derive(Clone, Copy)]
    struct History<const N: usize> {
        nodes: [Node; N],
        /// A majority was without at one time, so somebody else may have had the lock.
        overlap: bool,
        lost: bool,
        forgot: bool,
    }

    const TICK: Duration = Duration::from_millis(10);

    impl<const N: usize> Model<N> {
        fn run(lease: u32, steps: usize) -> Self {
            let mut model = Self {
                begin: Instant::now(),
                lease: TICK * lease,
                majority: Majority::of(N),
                histories: 0,
                overlaps: 0,
                lost: 0,
                held: 0,
            };
            let fresh = Node {
                has_until: None,
                keeping: Keeping::default(),
            };
            let mut history = History {
                nodes: [fresh; N],
                overlap: false,
                lost: false,
                forgot: false,
            };
            for (node, its) in history.nodes.iter_mut().enumerate() {
                if node < model.majority.needed() {
                    model.confirm(its, 0, 1);
                } else {
                    its.keeping.has_no_part_in_grant(model.at(0));
                }
            }
            model.go_on(history, 2, steps);
            model
        }

        fn at(&self, tick: usize) -> Instant {
            self.begin + TICK * u32::try_from(tick).unwrap_or(0)
        }

        /// Asked at one tick, carried out half a tick ago, heard now.
        fn confirm(&self, node: &mut Node, asked: usize, tick: usize) {
            let (now, asked_at) = (self.at(tick), self.at(asked));
            node.has_until = Some(now - TICK / 2 + self.lease);
            node.keeping.confirm(asked_at, asked_at + self.lease, now);
        }

        /// A node is asked and heard.
        fn hear(&self, history: &mut History<N>, node: usize, asked: usize, tick: usize) {
            let now = self.at(tick);
            let its = &mut history.nodes[node];
            let missing = !its.has(self.at(tick) - TICK / 2) && its.keeping.until.is_some();
            if missing {
                let from = its.keeping.miss(now);
                let nodes = history.nodes.iter().map(|its| &its.keeping);
                history.lost |= majority_may_have_lacked(self.majority, nodes.clone(), from, now);
                assert!(!history.nodes[node].keeping.is_certain(now));
                let uncertain = N - certain(nodes, now);
                assert!(history.lost || !self.majority.has(uncertain));
            } else {
                self.confirm(its, asked, tick);
            }
        }

        fn look(&self, history: &mut History<N>, tick: usize) {
            let now = self.at(tick);
            let has = history.nodes.iter().filter(|its| its.has(now)).count();
            history.overlap |= self.majority.has(N - has);
            let keepings = || history.nodes.iter().map(|its| &its.keeping);
            let until = certain_until(self.majority, keepings(), now);
            assert_eq!(until.is_some(), self.majority.has(certain(keepings(), now)));
            if !history.forgot {
                assert!(certain(keepings(), now) <= has, "{:?}", history.nodes);
                let last = until.map(|until| {
                    let has = history
                        .nodes
                        .iter()
                        .filter(|its| its.has_until > Some(until));
                    has.count()
                });
                assert!(last.is_none_or(|has| self.majority.has(has)));
            }
        }

        fn go_on(&mut self, history: History<N>, tick: usize, steps: usize) {
            let mut history = history;
            self.look(&mut history, tick);
            if steps == 0 {
                self.histories += 1;
                self.overlaps += usize::from(history.overlap);
                self.release(&history, tick, &mut Vec::new());
                return self.hear_all(history, tick + 1, &mut [false; N]);
            }
            for node in 0..N {
                let mut forgets = history;
                forgets.forgot = true;
                if forgets.nodes[node].has_until.take().is_some() {
                    self.go_on(forgets, tick + 1, steps - 1);
                }
                // An answer takes one tick, or so long that others are asked and answer meanwhile.
                for asked in [tick, tick.saturating_sub(2)] {
                    let mut history = history;
                    self.hear(&mut history, node, asked, tick + 1);
                    self.go_on(history, tick + 1, steps - 1);
                }
            }
            // Nobody answers.
            self.go_on(history, tick + 1, steps - 1);
        }

        /// All nodes are heard once more, in every order.
        fn hear_all(&mut self, history: History<N>, tick: usize, heard: &mut [bool; N]) {
            if heard.iter().all(|heard| *heard) {
                assert!(history.lost || !history.overlap, "{:?}", history.nodes);
                self.lost += usize::from(history.lost);
                return;
            }
            for node in 0..N {
                if !heard[node] {
                    let mut history = history;
                    self.hear(&mut history, node, tick - 1, tick);
                    self.look(&mut history, tick);
                    heard[node] = true;
                    self.hear_all(history, tick + 1, heard);
                    heard[node] = false;
                }
            }
        }

        /// It is released, and the nodes answer in every order, until what they say is enough.
        fn release(&mut self, history: &History<N>, tick: usize, order: &mut Vec<usize>) {
            let released_at = self.at(tick);
            let kept = history.nodes.iter().map(|its| its.keeping);
            let mut tally = ReleaseTally::new(self.majority, kept, released_at);
            let mut lost = history.lost;
            for node in order.iter() {
                let had_it = history.nodes[*node].has(released_at);
                lost |= !tally.answered(*node, had_it);
            }
            let no = order.len() - tally.yes();
            match self.majority.tally(tally.yes(), no) {
                _ if lost => return,
                Tally::Lost => return,
                Tally::Won if !tally.is_open() => {
                    assert!(!history.overlap, "{order:?} {:?}", history.nodes);
                    self.held += 1;
                    return;
                }
                _ => assert!(order.len() < N, "{:?}", history.nodes),
            }
            for node in 0..N {
                if !order.contains(&node) {
                    order.push(node);
                    self.release(history, tick, order);
                    order.pop();
                }
            }
        }

        /// With leases that run out early, late and never.
        fn check(steps: usize) {
            let runs = [2, 4, 100].map(|lease| Self::run(lease, steps));
            let of = |count: fn(&Self) -> usize| runs.iter().map(count).sum::<usize>();
            let seen = [
                of(|run| run.histories - run.overlaps),
                of(|run| run.overlaps),
                of(|run| run.lost),
                of(|run| run.held),
            ];
            assert!(seen.iter().all(|times| *times > 50), "{seen:?}");
        }
    }

    #[test]
    fn in_every_history_of_a_few_steps_an_overlap_is_found_out() {
        Model::<2>::check(5);
        Model::<3>::check(4);
        Model::<4>::check(2);
        Model::<5>::check(2);
    }
}
