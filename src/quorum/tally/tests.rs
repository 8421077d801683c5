use std::cmp::Reverse;

use super::*;

const SIZES: [usize; 5] = [2, 3, 4, 5, 7];

/// Every vote of `n` nodes, each of which says one of three things.
fn votes(n: usize) -> impl Iterator<Item = Vec<u8>> {
    let all = 3_usize.pow(u32::try_from(n).unwrap_or(0));
    (0..all).map(move |mut code| {
        let vote = |_| {
            let vote = u8::try_from(code % 3).unwrap_or(0);
            code /= 3;
            vote
        };
        (0..n).map(vote).collect()
    })
}

fn count(votes: &[u8], wanted_vote: u8) -> usize {
    votes.iter().filter(|vote| **vote == wanted_vote).count()
}

#[test]
fn two_majorities_share_a_node_and_the_nodes_can_be_one() {
    for n in SIZES {
        let majority = Majority::of(n);
        assert!(2 * majority.needed() > n, "{n}");
        assert!(majority.needed() <= n && 2 * (majority.needed() - 1) <= n);
    }
}

/// With 0 for yes, 1 for no and 2 for a node that has not voted, every way in which the vote can end is tried.
#[test]
fn a_vote_is_decided_as_soon_as_every_way_to_finish_it_ends_the_same() {
    for n in SIZES {
        let majority = Majority::of(n);
        for votes in votes(n) {
            let [yes, no, open] = [0, 1, 2].map(|vote| count(&votes, vote));
            let wins = |more: usize| 2 * (yes + more) > n;
            assert_eq!(no >= majority.blocking(), !wins(open), "{votes:?}");
            assert_eq!(majority.has(yes), wins(0), "{votes:?}");
        }
    }
}

/// With 0 and 1 for values and 2 for a node that has none.
#[test]
fn a_majority_is_within_the_bound_and_within_no_lower_one() {
    for n in SIZES {
        let majority = Majority::of(n);
        for votes in votes(n) {
            let values = || votes.iter().copied().filter(|vote| *vote < 2);
            let within = |bound: u8| values().filter(|value| *value <= bound).count();
            let expected = (0..2).find(|bound| majority.has(within(*bound)));
            assert_eq!(majority.bound(values()), expected, "{votes:?}");
            let beyond = |bound: u8| values().filter(|value| *value >= bound).count();
            let expected = (0..2).rev().find(|bound| majority.has(beyond(*bound)));
            let bound = majority.bound(values().map(Reverse));
            assert_eq!(bound.map(|Reverse(value)| value), expected, "{votes:?}");
        }
    }
}

/// All rounds over up to seven nodes, however far they have come.
#[test]
fn a_round_goes_on_as_long_as_it_may_reach_its_goal_or_learn_why_not() {
    let goals = [Goal::Majority, Goal::MajoritySoon, Goal::All];
    let mut steps = [0; 3];
    for (goal, n) in goals.into_iter().flat_map(|goal| SIZES.map(|n| (goal, n))) {
        let (majority, at_most) = (Majority::of(n), 0..=n);
        let wanted = goal.wanted(majority);
        assert_eq!(wanted == n, goal == Goal::All || n == 2);
        let all = at_most
            .clone()
            .flat_map(|yes| (yes..=n).map(move |to| (yes, to)));
        let all = all.flat_map(|(yes, to)| (0..=n - to).map(move |pending| (yes, to, pending)));
        let all = all.flat_map(|(yes, answered, pending)| {
            (0..=n - answered - pending).map(move |unsent| RoundProgress {
                yes,
                answered,
                pending,
                unsent,
            })
        });
        for progress in all {
            let step = goal.next(majority, progress);
            let hasty = goal == Goal::MajoritySoon && progress.answered > progress.yes;
            let votes_left = progress.pending + if hasty { 0 } else { progress.unsent };
            let within_reach = progress.yes < wanted && progress.yes + votes_left >= wanted;
            match step {
                RoundStep::Finish => {
                    let why_not = majority.has(progress.answered) && goal != Goal::All;
                    let done =
                        progress.yes >= wanted || votes_left == 0 || why_not && !within_reach;
                    assert!(done, "{goal:?} {progress:?}");
                }
                RoundStep::Wait => {
                    assert!(
                        progress.pending > 0 && progress.yes < wanted,
                        "{goal:?} {progress:?}"
                    );
                    let enough = progress.yes + progress.pending >= wanted;
                    assert!(
                        enough || votes_left == progress.pending,
                        "{goal:?} {progress:?}"
                    );
                }
                RoundStep::Connect => {
                    assert!(progress.unsent > 0 && !hasty, "{goal:?} {progress:?}");
                    assert!(
                        progress.yes + progress.pending < wanted,
                        "{goal:?} {progress:?}"
                    );
                }
            }
            steps[step as usize] += 1;
        }
    }
    assert!(steps.iter().all(|times| *times > 100), "{steps:?}");
}
