//! Every rule of the checker, with histories that keep it and others that break it.

use crate::support::history::{
    Divides, Event, NEMESIS, Phase, Rule, Violation, What, check, millis,
};
use crate::support::made_up::{Turn, asks, fault, fault_of, has, history};

fn found(turns: &[Turn], others: &[Vec<Event>]) -> Vec<Violation> {
    check(history(turns, others)).violations
}

#[track_caller]
pub(super) fn is_fine(turns: &[Turn], others: &[Vec<Event>]) {
    let found = found(turns, others);
    assert!(found.is_empty(), "{found:#?}");
}

/// Checks that the history has exactly one violation, of this rule.
#[track_caller]
pub(super) fn breaks(rule: Rule, turns: &[Turn], others: &[Vec<Event>]) {
    let found = found(turns, others);
    assert!(
        found.len() == 1 && found[0].rule == rule,
        "{found:#?} for {rule:?}"
    );
}

fn notes(process: i64, phase: Phase, what: What, at: u64) -> Vec<Event> {
    vec![Event::new(process, phase, what, millis(at))]
}

#[test]
fn holders_in_turn_are_fine() {
    is_fine(
        &[
            has(2001, "mutex", [5, 25, 30]),
            has(1001, "mutex", [0, 10, 20]),
        ],
        &[],
    );
    // Different locks may be held at the same time.
    is_fine(
        &[
            has(1001, "mutex", [0, 10, 20]),
            has(2001, "fair", [0, 10, 20]),
        ],
        &[],
    );
    // A thread may hold a lock several times.
    is_fine(
        &[
            has(1001, "mutex", [0, 10, 50]),
            has(1001, "mutex", [20, 21, 30]),
        ],
        &[],
    );
}

#[test]
fn two_at_once_are_found() {
    breaks(
        Rule::Exclusion,
        &[
            has(1001, "mutex", [0, 10, 20]),
            has(2001, "mutex", [5, 19, 30]),
        ],
        &[],
    );
    // Two threads of one process exclude each other, too.
    breaks(
        Rule::Exclusion,
        &[
            has(1001, "mutex", [0, 10, 20]),
            has(1002, "mutex", [5, 19, 30]),
        ],
        &[],
    );
    // The first hold overlaps with two others, of which one is lost.
    let turns = [
        has(1001, "mutex", [0, 10, 50]),
        has(2001, "mutex", [15, 20, 30]).lost(25),
        has(3001, "mutex", [6, 40, 60]),
    ];
    let wrong = found(&turns, &[fault("proxy-cut", [0, 100])]);
    assert_eq!(wrong.len(), 2, "{wrong:#?}");
    // Two multi-locks share a single name.
    breaks(
        Rule::Exclusion,
        &[
            has(1001, "multi-a", [0, 10, 20]).and("multi-b"),
            has(2001, "multi-b", [5, 19, 30]).and("multi-c"),
        ],
        &[],
    );
}

#[test]
fn readers_share_and_writers_do_not() {
    let read = |process, times| has(process, "rwlock", times).reads();
    is_fine(&[read(1001, [0, 10, 50]), read(2001, [5, 20, 40])], &[]);
    breaks(
        Rule::Exclusion,
        &[read(1001, [0, 10, 50]), has(2001, "rwlock", [5, 20, 40])],
        &[],
    );
    breaks(
        Rule::Exclusion,
        &[has(1001, "rwlock", [0, 10, 50]), read(2001, [5, 20, 40])],
        &[],
    );
}

#[test]
fn of_two_at_once_the_first_has_to_be_notified() {
    let cut = [fault("proxy-cut", [0, 100])];
    let (first, second) = (
        has(1001, "mutex", [0, 10, 20]),
        has(2001, "mutex", [15, 19, 30]),
    );
    is_fine(&[first.clone().release_fails(), second.clone()], &cut);
    breaks(
        Rule::Exclusion,
        &[first.clone(), second.clone().release_fails()],
        &cut,
    );
    // The second may have been granted first, so either may have lost the lock.
    let asked_before = has(2001, "mutex", [5, 19, 30]);
    is_fine(&[first, asked_before.release_fails()], &cut);
}

#[test]
fn a_notification_that_comes_late_is_none() {
    let cut = [fault("proxy-cut", [0, 500])];
    let second = has(2001, "mutex", [15, 50, 600]);
    let first = |until| has(1001, "mutex", [0, 10, until]);
    is_fine(&[first(400).lost(150), second.clone()], &cut);
    breaks(
        Rule::Exclusion,
        &[first(400).lost(151), second.clone()],
        &cut,
    );
    // A worker that could not run may report its loss later.
    let stop = fault_of("stop-worker", Some(1), [40, 140]);
    is_fine(&[first(400).lost(240), second.clone()], &[stop]);
    // A known end of validity counts, to the millisecond.
    is_fine(&[first(70).lost(60).valid_until(50), second.clone()], &cut);
    breaks(
        Rule::Exclusion,
        &[first(70).lost(60).valid_until(51), second],
        &cut,
    );
}

#[test]
fn one_who_was_stopped_on_its_way_to_the_release_is_excused() {
    let stop = [fault_of("stop-worker", Some(1), [20, 2_000])];
    let first = |until| has(1001, "mutex", [0, 10, until]);
    let second = has(2001, "mutex", [15, 1_100, 1_200]);
    is_fine(&[first(2_005), second.clone()], &stop);
    breaks(Rule::Exclusion, &[first(2_006), second], &stop);
}

#[test]
fn one_who_was_killed_has_it_no_longer() {
    let kill = [fault_of("kill-worker", Some(1), [1_000, 1_010])];
    let first = has(1001, "mutex", [0, 10, 0]).keeps();
    is_fine(
        &[first.clone(), has(2001, "mutex", [1_020, 2_000, 2_010])],
        &kill,
    );
    // 899 ms is before the lease of the killed worker can have expired.
    breaks(
        Rule::Exclusion,
        &[first, has(2001, "mutex", [20, 899, 910])],
        &kill,
    );
}

#[test]
fn a_server_that_forgets_divides_holders_for_a_lease() {
    let lose = |begin, end| [fault("lose-data", [begin, end])];
    let first = |until| has(1001, "mutex", [0, 10, until]);
    let second = has(2001, "mutex", [100, 200, 1_900]);
    is_fine(&[first(1_250).lost(1_250), second.clone()], &lose(150, 160));
    // A holder may release before it learns of the loss.
    is_fine(&[first(400), second.clone()], &lose(150, 160));
    breaks(
        Rule::Exclusion,
        &[first(1_261).lost(1_261), second.clone()],
        &lose(150, 160),
    );
    // Data that was lost earlier, or a server that kept its data, is no excuse.
    let after = has(2001, "mutex", [100, 300, 400]);
    breaks(
        Rule::Exclusion,
        &[has(1001, "mutex", [270, 280, 310]), after],
        &lose(150, 160),
    );
    breaks(
        Rule::Exclusion,
        &[first(400), second],
        &[fault("kill-server", [150, 160])],
    );
}

#[test]
fn clients_that_asked_different_servers_are_fine_for_so_long() {
    let two = |begin, end| {
        let mut fault = fault("failover", [begin, end]);
        for event in &mut fault {
            if let What::Fault(edge) = &mut event.what {
                edge.divides = Some(Divides::Clients);
            }
        }
        [fault]
    };
    let first = has(1001, "mutex", [0, 10, 20]).works(1);
    let second = has(2001, "mutex", [5, 15, 30]);
    is_fine(&[first.clone(), second.clone().works(1)], &two(15, 15));
    is_fine(&[first.clone(), second.clone().works(2)], &two(5, 50));
    for (begin, end) in [(5, 14), (16, 50)] {
        let turns = [first.clone(), second.clone()];
        breaks(Rule::Exclusion, &turns, &two(begin, end));
    }
    // Threads of one client ask the same server.
    let same = has(1002, "mutex", [5, 15, 30]);
    breaks(Rule::Exclusion, &[first.clone(), same], &two(5, 50));
    // A later holder has to see the earlier write.
    let later = has(2001, "mutex", [5, 20, 30]).works(1);
    breaks(Rule::Numbers, &[first, later], &two(5, 50));
}

#[test]
fn more_permits_than_there_are_are_found() {
    let has = |process, times| has(process, "sem", times);
    let three = [
        has(1001, [0, 10, 50]),
        has(1002, [0, 10, 60]),
        has(2001, [0, 10, 70]),
    ];
    is_fine(&[&three[..], &[has(3001, [5, 50, 80])]].concat(), &[]);
    breaks(
        Rule::Permits,
        &[&three[..], &[has(3001, [5, 49, 80])]].concat(),
        &[],
    );
    let two = |process, times| has(process, times).permits(2);
    breaks(
        Rule::Permits,
        &[two(1001, [0, 10, 50]), two(2001, [0, 20, 50])],
        &[],
    );
    // Holders of a plain semaphore never learn that the server forgot it.
    let lose = [fault("lose-data", [20, 30])];
    is_fine(&[two(1001, [0, 10, 5_000]), two(2001, [0, 40, 50])], &lose);
    breaks(
        Rule::Permits,
        &[two(1001, [131, 140, 500]), two(2001, [131, 150, 180])],
        &lose,
    );
    // A permit that is released after the loss adds one too many for good, so the rule allows more grants from then on.
    let back = two(1001, [0, 10, 50]);
    let later = [
        two(1001, [1_000, 1_010, 1_500]),
        two(2001, [1_000, 1_020, 1_030]),
    ];
    is_fine(&[&[back][..], &later].concat(), &lose);
}

#[test]
fn leased_permits_that_were_lost_do_not_count() {
    let two = |process, id: &str, times| has(process, "permits", times).permits(2).id(id);
    let cut = [fault("proxy-cut", [0, 100])];
    let lost = two(1001, "a", [0, 10, 500]).lost(300);
    is_fine(&[lost.clone(), two(2001, "b", [0, 300, 400])], &cut);
    is_fine(&[lost.clone(), two(2001, "b", [0, 200, 400])], &cut);
    breaks(Rule::Permits, &[lost, two(2001, "b", [0, 199, 400])], &cut);
}

#[test]
fn a_permit_that_is_granted_twice_is_found() {
    let permit = |process, times, id: &str| has(process, "permits", times).id(id);
    is_fine(
        &[
            permit(1001, [0, 10, 50], "a"),
            permit(2001, [0, 10, 50], "b"),
        ],
        &[],
    );
    breaks(
        Rule::Permits,
        &[
            permit(1001, [0, 10, 50], "a"),
            permit(2001, [60, 70, 80], "a"),
        ],
        &[],
    );
    breaks(Rule::Permits, &[has(1001, "permits", [0, 10, 50])], &[]);
    // A thread may hold several permits, and release them in any order.
    is_fine(
        &[
            permit(1001, [0, 10, 50], "a"),
            permit(1001, [20, 30, 70], "b"),
            permit(1002, [20, 50, 60], "c").permits(2),
        ],
        &[],
    );
}

#[test]
fn a_lost_increment_is_found() {
    let (one, other) = (
        has(1001, "mutex", [0, 10, 20]),
        has(2001, "mutex", [15, 21, 30]),
    );
    is_fine(&[one.clone().works(7), other.clone().works(8)], &[]);
    for read in [7, 9] {
        breaks(
            Rule::Numbers,
            &[one.clone().works(7), other.clone().works(read)],
            &[],
        );
    }
    // A holder that lost the lock may overwrite another's increment, but only that of a hold that overlaps its own.
    let cut = [fault("proxy-cut", [0, 100])];
    let lost = has(3001, "mutex", [0, 12, 22]).lost(19);
    is_fine(
        &[
            one.clone().release_fails().works(7),
            lost.clone().works(7),
            other.clone().works(7),
        ],
        &cut,
    );
    let later = has(1001, "mutex", [500, 510, 520]);
    breaks(
        Rule::Numbers,
        &[
            lost,
            has(2001, "mutex", [400, 410, 420]).works(8),
            later.works(8),
        ],
        &cut,
    );
    // A killed worker may have written without logging that.
    let kill = [fault_of("kill-worker", Some(3), [15, 16])];
    let killed = asks(3001, "mutex", 12);
    is_fine(&[one.works(7), killed, other.works(9)], &kill);
}

#[test]
fn one_who_overtakes_in_a_fair_queue_is_found() {
    let first = |asked, at| has(1001, "fair", [asked, at, at + 10]);
    let held = has(3001, "fair", [0, 1, 300]);
    let second = has(2001, "fair", [150, 310, 320]);
    is_fine(
        &[
            held.clone(),
            first(40, 305),
            has(2001, "fair", [150, 330, 340]),
        ],
        &[],
    );
    breaks(
        Rule::Order,
        &[held.clone(), first(40, 330), second.clone()],
        &[],
    );
    // The first may have asked second: the order of requests within the slack is unknown.
    is_fine(&[held.clone(), first(50, 330), second.clone()], &[]);
    // A mutex promises no order.
    let unfair = [
        (3001, [0, 1, 300]),
        (1001, [40, 330, 340]),
        (2001, [150, 310, 320]),
    ];
    is_fine(
        &unfair.map(|(process, times)| has(process, "mutex", times)),
        &[],
    );
    // A fault may cost a waiter its place.
    let cut = [fault("proxy-cut", [200, 210])];
    is_fine(&[held.clone(), first(40, 330), second.clone()], &cut);
    // A waiter that gave up counts as overtaken only if it was still waiting at the grant, and longer than the slack.
    let gives_up = asks(1001, "fair", 40);
    for (limit, overtaken) in [(300, false), (370, false), (371, true)] {
        let waits = gives_up.clone().limit(limit).refused(40 + limit);
        let turns = [held.clone(), waits, second.clone()];
        if overtaken {
            breaks(Rule::Order, &turns, &[]);
        } else {
            is_fine(&turns, &[]);
        }
    }
}

#[test]
fn tokens_that_do_not_rise_are_found() {
    let has = |process, times, token| has(process, "fenced", times).token(token);
    is_fine(&[has(1001, [0, 10, 20], 7), has(2001, [0, 21, 30], 9)], &[]);
    for token in [6, 7] {
        let turns = [has(1001, [0, 10, 20], 7), has(2001, [25, 26, 30], token)];
        breaks(Rule::Tokens, &turns, &[]);
        // The order of the grants counts, not that of the requests.
        let turns = [has(1001, [0, 10, 20], 7), has(2001, [0, 21, 30], token)];
        breaks(Rule::Tokens, &turns, &[]);
    }
    // A token is compared with all earlier ones, not only with the last.
    breaks(
        Rule::Tokens,
        &[
            has(1001, [0, 10, 20], 9),
            has(2001, [21, 22, 30], 11),
            has(3001, [31, 32, 40], 10),
        ],
        &[],
    );
    // The holds overlap, so the order of the grants is unknown.
    let cut = [fault("proxy-cut", [0, 100])];
    is_fine(
        &[
            has(1001, [0, 10, 20], 7).lost(15),
            has(2001, [0, 16, 30], 6),
        ],
        &cut,
    );
    // A server that has lost its data counts tokens from 1 again.
    let lose = [fault("lose-data", [21, 24])];
    is_fine(
        &[has(1001, [0, 10, 20], 7), has(2001, [130, 140, 150], 1)],
        &lose,
    );
    breaks(
        Rule::Tokens,
        &[has(2001, [130, 140, 150], 1), has(1001, [160, 170, 180], 1)],
        &lose,
    );
    breaks(Rule::Tokens, &[super::rules::has_none("fenced")], &[]);
}

fn has_none(name: &str) -> Turn {
    has(1001, name, [0, 10, 20])
}

#[test]
fn a_wait_past_its_limit_is_found() {
    let waits = |at: u64| has(1001, "mutex", [0, at, at + 10]).limit(1_000);
    let held_until = |until| has(2001, "mutex", [0, 1, until]);
    let held = held_until(1_050);
    is_fine(&[held.clone(), waits(1_100)], &[]);
    breaks(Rule::Deadline, &[held.clone(), waits(1_101)], &[]);
    // The limit applies to a refusal as well.
    let refused = asks(1001, "mutex", 0).limit(1_000);
    is_fine(&[held.clone(), refused.clone().refused(1_099)], &[]);
    breaks(
        Rule::Deadline,
        &[has(2001, "mutex", [0, 1, 1_200]), refused.refused(1_101)],
        &[],
    );
    // A single attempt may take as long as one reply.
    let once = |at| asks(1001, "mutex", 0).limit(0).refused(at);
    let busy = has(2001, "mutex", [0, 1, 700]);
    is_fine(&[busy.clone(), once(600)], &[]);
    breaks(Rule::Deadline, &[busy, once(601)], &[]);
    // Workers that could not run get more time.
    let stop = fault_of("stop-worker", Some(1), [900, 1_400]);
    is_fine(
        &[held_until(1_550), waits(1_600)],
        std::slice::from_ref(&stop),
    );
    breaks(Rule::Deadline, &[held_until(1_550), waits(1_601)], &[stop]);
    let span = millis(200);
    let late = notes(NEMESIS, Phase::Info, What::Late { span }, 800);
    is_fine(
        &[held_until(1_250), waits(1_300)],
        std::slice::from_ref(&late),
    );
    breaks(Rule::Deadline, &[held_until(1_250), waits(1_301)], &[late]);
}

#[test]
fn one_who_is_stuck_is_found() {
    let last = has(2001, "fair", [9_000, 9_010, 9_020]);
    let waits = asks(1001, "mutex", 9_015);
    breaks(Rule::Deadline, &[waits.clone(), last.clone()], &[]);
    breaks(
        Rule::Deadline,
        &[has(1001, "mutex", [0, 10, 0]).keeps(), last.clone()],
        &[],
    );
    let mut releases = has(1001, "mutex", [0, 10, 20]);
    releases.had.as_mut().unwrap().released = None;
    breaks(Rule::Deadline, &[releases.clone(), last.clone()], &[]);
    // A killed worker ends nothing.
    let kill = [fault_of("kill-worker", Some(1), [9_016, 9_017])];
    is_fine(&[waits, last.clone()], &kill);
    is_fine(&[releases, last], &kill);
}

#[test]
fn a_release_past_the_command_timeout_is_found() {
    let slow = |at| has(1001, "mutex", [0, 10, 20]).released_at(at);
    is_fine(&[slow(620)], &[]);
    breaks(Rule::Deadline, &[slow(621)], &[]);
}

#[test]
fn an_error_or_a_loss_without_a_cause_is_found() {
    let failed = asks(1001, "mutex", 4_950).failed(4_960);
    let lost = has(1001, "mutex", [4_940, 4_950, 4_960]).lost(4_960);
    let not_released = has(1001, "mutex", [4_940, 4_950, 4_960]).release_fails();
    // A fault explains errors for a lease, a `command_timeout` and the slack after its end.
    let faults = [
        ([4_970, 4_980], false),
        ([3_000, 3_349], false),
        ([3_000, 3_350], true),
        ([4_955, 5_000], true),
    ];
    for turn in [failed, lost, not_released] {
        let turns = [turn];
        breaks(Rule::Cause, &turns, &[]);
        for (times, is_cause) in faults {
            let faults = [fault("proxy-cut", times)];
            if is_cause {
                is_fine(&turns, &faults);
            } else {
                breaks(Rule::Cause, &turns, &faults);
            }
        }
        // A fault of one worker explains no error of another.
        is_fine(&turns, &[fault_of("proxy-cut", Some(1), [4_955, 5_000])]);
        breaks(
            Rule::Cause,
            &turns,
            &[fault_of("proxy-cut", Some(2), [4_955, 5_000])],
        );
    }
}

#[test]
fn a_lease_that_nobody_renews_ends_without_a_fault() {
    let fixed = |lost| has(1001, "mutex", [0, 10, 520]).lease(500).lost(lost);
    is_fine(&[fixed(500)], &[]);
    breaks(Rule::Cause, &[fixed(300)], &[]);
}

#[test]
fn a_forced_release_is_a_cause_for_the_losses_of_its_name() {
    let force = |name: &str| {
        let what = || What::ForceUnlock { name: name.into() };
        let mut events = notes(9001, Phase::Invoke, what(), 100);
        events.extend(notes(9001, Phase::Ok, what(), 110));
        events
    };
    let turns = [
        has(1001, "mutex", [0, 10, 150]).lost(130),
        has(2001, "mutex", [0, 105, 160]),
    ];
    is_fine(&turns, &[force("mutex")]);
    let wrong = found(&turns, &[force("fair")]);
    let rules: Vec<_> = wrong.iter().map(|wrong| wrong.rule).collect();
    assert_eq!(rules, [Rule::Cause], "{wrong:#?}");
}

#[test]
fn a_holder_that_is_not_notified_in_time_is_found() {
    let cut = [fault("proxy-cut", [0, 100])];
    let had = |until: u64| has(1001, "mutex", [0, 10, until]);
    is_fine(&[had(700).valid_until(600)], &cut);
    breaks(Rule::Notice, &[had(701).valid_until(600)], &cut);
    is_fine(&[had(800).lost(700).valid_until(600)], &cut);
    breaks(Rule::Notice, &[had(800).lost(701).valid_until(600)], &cut);
    // A worker that could not run may report its loss later.
    let stop = [fault_of("stop-worker", Some(1), [500, 900])];
    is_fine(&[had(1_000).lost(999).valid_until(600)], &stop);
}

#[test]
fn a_hold_that_is_to_be_valid_for_longer_than_its_lease_is_found() {
    let had = has(1001, "mutex", [0, 10, 20]);
    is_fine(&[had.clone().valid_until(1_010)], &[]);
    breaks(Rule::Notice, &[had.valid_until(1_011)], &[]);
    // Without renewal, the lease begins at the grant.
    let had = has(1001, "mutex", [0, 10, 50]).lease(500);
    is_fine(&[had.clone().valid_until(505)], &[]);
    breaks(Rule::Notice, &[had.valid_until(506)], &[]);
}

#[test]
fn a_hold_that_is_renewed_after_it_was_forgotten_is_found() {
    let had = |from: u64, valid_until| {
        has(1001, "mutex", [from - 1, from, 1_500]).valid_until(valid_until)
    };
    let lose = [fault("lose-data", [600, 700])];
    is_fine(&[had(10, 1_700)], &lose);
    breaks(Rule::Notice, &[had(10, 1_701)], &lose);
    // The lock may have been granted by the empty server.
    is_fine(&[had(601, 1_701)], &lose);
    is_fine(&[had(10, 1_701)], &[fault("kill-server", [600, 700])]);
}

#[test]
fn a_hold_that_outlives_an_outage_is_found() {
    let had = |until: u64| has(1001, "mutex", [0, 10, until]);
    let outage = [fault("stop-server", [100, 3_000])];
    is_fine(&[had(1_200).lost(1_200)], &outage);
    breaks(Rule::Notice, &[had(1_201).lost(1_201)], &outage);
    breaks(Rule::Notice, &[had(1_500)], &outage);
    // A hold may outlive a short outage.
    is_fine(&[had(1_500)], &[fault("stop-server", [100, 900])]);
}

#[test]
fn a_lock_that_is_free_although_wanted_is_found() {
    let first_turn = has(1001, "mutex", [0, 10, 20]);
    is_fine(
        &[first_turn.clone(), has(2001, "mutex", [15, 120, 130])],
        &[],
    );
    breaks(
        Rule::Idle,
        &[first_turn.clone(), has(2001, "mutex", [15, 121, 130])],
        &[],
    );
    // A lock that stays free although a waiter never gets it.
    breaks(
        Rule::Idle,
        &[first_turn, asks(2001, "mutex", 15).limit(200).refused(215)],
        &[],
    );
    // A fault explains an idle lock for a lease, a `command_timeout` and the slack, and not for longer.
    let first_turn = has(1001, "mutex", [0, 10, 20]);
    let after = |at: u64| [first_turn.clone(), has(2001, "mutex", [15, at, at + 10])];
    let stop = [fault("stop-server", [10, 30])];
    is_fine(&after(1_730), &stop);
    breaks(Rule::Idle, &after(1_731), &stop);
    // While all clients are connected they undo acquires that are not wanted, so no lease has to expire.
    let cut = [fault("proxy-cut", [10, 30])];
    is_fine(&after(830), &cut);
    breaks(Rule::Idle, &after(831), &cut);
}

#[test]
fn one_who_is_dead_is_waited_for_until_its_lease_is_over() {
    let kill = [fault_of("kill-worker", Some(1), [100, 101])];
    let killed = has(1001, "mutex", [0, 10, 0]).keeps();
    is_fine(
        &[killed.clone(), has(2001, "mutex", [15, 1_800, 1_810])],
        &kill,
    );
    breaks(
        Rule::Idle,
        &[killed, has(2001, "mutex", [15, 1_801, 1_810])],
        &kill,
    );
    // Places in a fair queue have a lease as well.
    let queue = |at| {
        [
            has(2001, "fair", [0, 10, 50]),
            asks(1001, "fair", 15),
            has(3001, "fair", [20, at, at + 10]),
        ]
    };
    is_fine(&queue(3_800), &kill);
    breaks(Rule::Idle, &queue(3_801), &kill);
}

#[test]
fn a_stopped_worker_does_not_hold_others_up_for_longer_than_its_lease() {
    let stop = [fault_of("stop-worker", Some(1), [15, 4_000])];
    let stopped = has(1001, "mutex", [0, 10, 4_010]).lost(4_009);
    let next = |at| has(2001, "mutex", [20, at, at + 10]);
    is_fine(&[stopped.clone().valid_until(900), next(1_000)], &stop);
    // A stopped worker does not count as a waiter.
    let wants = asks(1001, "mutex", 10).failed(4_010);
    is_fine(&[wants], &stop);
}

#[test]
fn permits_that_are_free_although_wanted_are_found() {
    let two = |process, times| has(process, "sem", times).permits(2);
    let one = has(3001, "sem", [0, 5, 500]);
    is_fine(
        &[
            one.clone(),
            two(1001, [0, 10, 20]),
            two(2001, [0, 120, 500]),
        ],
        &[],
    );
    breaks(
        Rule::Idle,
        &[
            one.clone(),
            two(1001, [0, 10, 20]),
            two(2001, [0, 121, 500]),
        ],
        &[],
    );
    // Permits of a killed worker never come back.
    let kill = [fault_of("kill-worker", Some(1), [15, 16])];
    let never = asks(2001, "sem", 11).permits(2).refused(5_011);
    is_fine(&[one, two(1001, [0, 10, 0]).keeps(), never], &kill);
    // A forgotten semaphore has no permits.
    let lose = [fault("lose-data", [15, 16])];
    is_fine(
        &[two(1001, [0, 10, 20]), asks(2001, "sem", 30).refused(5_030)],
        &lose,
    );
}

#[test]
fn a_latch_that_opens_too_early_or_not_at_all_is_found() {
    let set = Event::new(
        NEMESIS,
        Phase::Ok,
        What::Set {
            wanted: asks(0, "latch", 0).wanted,
            count: 2,
        },
        millis(1),
    );
    let call = |process, what: What, asked, answered, phase| {
        let mut events = notes(process, Phase::Invoke, what.clone(), asked);
        events.extend(notes(process, phase, what, answered));
        events
    };
    let counts = |process, asked| {
        let name = "latch".into();
        call(
            process,
            What::CountDown { name },
            asked,
            asked + 5,
            Phase::Ok,
        )
    };
    let waits = |answered, phase| {
        let (name, limit) = ("latch".into(), Some(millis(1_000)));
        call(3001, What::Await { name, limit }, 10, answered, phase)
    };
    let with = |wait: Vec<Event>| [vec![set.clone()], counts(1001, 20), counts(2001, 50), wait];
    is_fine(&[], &with(waits(50, Phase::Ok)));
    breaks(Rule::Latch, &[], &with(waits(49, Phase::Ok)));
    // The latch opened at 55 ms.
    is_fine(&[], &with(waits(155, Phase::Ok)));
    breaks(Rule::Latch, &[], &with(waits(156, Phase::Fail)));
    let one = |wait: Vec<Event>| [vec![set.clone()], counts(1001, 20), wait];
    is_fine(&[], &one(waits(1_010, Phase::Fail)));
    breaks(Rule::Deadline, &[], &one(waits(1_111, Phase::Fail)));
    breaks(Rule::Cause, &[], &one(waits(30, Phase::Info)));
    // A server that has lost its data has no closed latch.
    let mut lost = one(waits(49, Phase::Ok)).to_vec();
    lost.push(fault("lose-data", [30, 40]));
    is_fine(&[], &lost);
}

#[test]
fn a_key_that_is_left_behind_is_found() {
    let left_behind = |keys: &[&str]| {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        notes(NEMESIS, Phase::Info, What::LeftBehind { keys }, 9_000)
    };
    is_fine(&[has(1001, "mutex", [0, 10, 20])], &[left_behind(&[])]);
    breaks(
        Rule::LeftBehind,
        &[has(1001, "mutex", [0, 10, 20])],
        &[left_behind(&["mutex"])],
    );
}

#[test]
fn a_panic_is_found() {
    breaks(
        Rule::Panic,
        &[],
        &[notes(1001, Phase::Info, What::Panic, 10)],
    );
}

#[test]
fn what_ends_without_a_beginning_is_found() {
    let events = has(1001, "mutex", [0, 10, 20]).events();
    breaks(Rule::Log, &[], &[events[3..].to_vec()]);
    breaks(Rule::Log, &[], &[events.clone(), events[1..2].to_vec()]);
}

#[test]
fn what_happened_is_counted() {
    let turns = [
        has(1001, "mutex", [0, 10, 20]),
        has(2001, "mutex", [15, 60, 70]).lost(65),
        asks(1001, "mutex", 30).failed(50),
        asks(2001, "fair", 80).limit(0).refused(81),
    ];
    let report = check(history(&turns, &[fault("proxy-cut", [25, 40])]));
    assert!(report.is_fine(), "{report}");
    let of = &report.operations["mutex"];
    assert_eq!((of.asked, of.granted, of.refused), (3, 2, 0), "{report}");
    assert_eq!((of.errors, of.lost), (1, 1), "{report}");
    assert_eq!(report.operations["fair"].refused, 1, "{report}");
    let cut = &report.faults["proxy-cut"];
    assert_eq!((cut.count, cut.operations), (1, 3), "{report}");
    assert_eq!(cut.slowest_recovery, millis(20), "{report}");
}
