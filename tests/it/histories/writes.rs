//! Guarded writes, compared with the log that the server keeps of them.

use super::rules::{breaks, is_fine};
use crate::support::history::{Event, Phase, Rule, Setup, What, check};
use crate::support::made_up::{Turn, fault, fault_of, has, history, setup, written};

/// Two holds in turn; the second begins after the first holder was stopped. Each writes twice.
fn in_turn(name: &str) -> [Turn; 2] {
    let stopped = has(1001, name, [0, 10, 3_000])
        .writes(1, Phase::Ok, 11)
        .writes(2, Phase::Ok, 3_000)
        .valid_until(1_000)
        .lost(3_000);
    let other = has(2001, name, [5, 1_500, 1_600])
        .writes(1, Phase::Ok, 1_510)
        .writes(2, Phase::Ok, 1_520);
    [stopped, other]
}

fn stop() -> Vec<Event> {
    fault_of("stop-worker", Some(1), [20, 2_990])
}

const FIRST: [(i64, u64); 2] = [(1001, 1), (1001, 2)];
const SECOND: [(i64, u64); 2] = [(2001, 1), (2001, 2)];

#[test]
fn writes_of_one_hold_after_the_other_are_fine() {
    let all = [FIRST, SECOND].concat();
    is_fine(&in_turn("mutex"), &[stop(), written("mutex", &all)]);
    // The server may have lost any of the writes, and then begins a new log.
    is_fine(
        &in_turn("mutex"),
        &[
            stop(),
            written("mutex", &all[..1]),
            written("mutex", &all[2..]),
        ],
    );
}

#[test]
fn a_write_among_those_of_a_later_hold_is_found() {
    let [[one, two], [three, four]] = [FIRST, SECOND];
    for log in [
        [one, three, two, four],
        [one, three, four, two],
        [three, one, four, two],
    ] {
        breaks(
            Rule::LateWrite,
            &in_turn("mutex"),
            &[stop(), written("mutex", &log)],
        );
    }
    // A fault is no excuse.
    let lost = fault("lose-data", [100, 200]);
    breaks(
        Rule::LateWrite,
        &in_turn("mutex"),
        &[stop(), lost, written("mutex", &[one, three, two])],
    );
}

#[test]
fn who_asked_later_writes_later() {
    let turns = [
        has(1001, "mutex", [0, 10, 20]).writes(1, Phase::Ok, 20),
        has(2001, "mutex", [30, 40, 50]).writes(1, Phase::Ok, 50),
    ];
    is_fine(&turns, &[written("mutex", &[FIRST[0], SECOND[0]])]);
    breaks(
        Rule::LateWrite,
        &turns,
        &[written("mutex", &[SECOND[0], FIRST[0]])],
    );
}

#[test]
fn readers_write_among_readers_and_not_among_writers() {
    let [[one, two], [three, four]] = [FIRST, SECOND];
    let log = [one, three, two, four];
    let [reader, writer] = in_turn("rwlock");
    let other = in_turn("rwlock")[1].clone().reads();
    let late = [stop(), written("rwlock", &log)];
    is_fine(&[reader.clone().reads(), other.clone()], &late);
    breaks(Rule::LateWrite, &[reader.clone(), other], &late);
    breaks(Rule::LateWrite, &[reader.reads(), writer], &late);
    // Several processes may hold permits at the same time.
    is_fine(
        &in_turn("permits").map(id),
        &[stop(), written("permits", &log)],
    );
}

fn id(turn: Turn) -> Turn {
    let process = turn.process.to_string();
    turn.id(&process)
}

#[test]
fn what_was_refused_is_not_executed() {
    let turn = |phase| has(1001, "mutex", [0, 10, 20]).writes(1, phase, 15);
    let (cut, log) = (fault("proxy-cut", [0, 20]), written("mutex", &FIRST[..1]));
    breaks(
        Rule::LateWrite,
        &[turn(Phase::Fail)],
        &[cut.clone(), log.clone()],
    );
    // A write without a reply may have run or not.
    is_fine(&[turn(Phase::Info)], &[cut.clone(), log]);
    is_fine(&[turn(Phase::Info)], &[cut]);
}

#[test]
fn what_was_written_once_is_executed_once_and_nothing_else_is() {
    let turn = [has(1001, "mutex", [0, 10, 20]).writes(1, Phase::Ok, 15)];
    breaks(
        Rule::LateWrite,
        &turn,
        &[written("mutex", &[FIRST[0], FIRST[0]])],
    );
    breaks(Rule::Log, &turn, &[written("mutex", &FIRST)]);
}

#[test]
fn a_write_is_answered_in_time_and_refused_for_a_reason() {
    let turn = |phase, at| [has(1001, "mutex", [0, 10, 700]).writes(1, phase, at)];
    is_fine(&turn(Phase::Ok, 609), &[]);
    breaks(Rule::Deadline, &turn(Phase::Ok, 611), &[]);
    for phase in [Phase::Fail, Phase::Info] {
        breaks(Rule::Cause, &turn(phase, 15), &[]);
        is_fine(&turn(phase, 15), &[fault("proxy-cut", [0, 20])]);
    }
    // A lease without renewal is a reason in itself.
    let [turn] = turn(Phase::Fail, 400);
    is_fine(&[turn.lease(450)], &[]);
}

#[test]
fn who_waits_for_the_answer_to_a_write_notices_nothing_meanwhile() {
    let turn = |answered| {
        has(1001, "mutex", [0, 10, 590])
            .writes(1, Phase::Ok, answered)
            .valid_until(450)
            .lost(590)
            .lease(450)
    };
    is_fine(&[turn(585)], &[]);
    breaks(Rule::Notice, &[turn(440)], &[]);
    // A worker that is killed while it waits for the reply may not have noticed the end of its hold.
    let kill = [fault_of("kill-worker", Some(1), [590, 600])];
    let killed = has(1001, "mutex", [0, 10, 590]).keeps();
    let other = has(2001, "mutex", [5, 470, 480]);
    let waits = killed.clone().writes(1, Phase::Invoke, 0);
    is_fine(&[waits, other.clone()], &kill);
    breaks(Rule::Exclusion, &[killed, other], &kill);
}

/// A client without guarded writes may send one again, which says nothing about its lock.
#[test]
fn a_repeated_write_counts_only_where_writes_are_guarded() {
    let turn = has(1001, "mutex", [0, 10, 30]).writes(1, Phase::Ok, 20);
    let log = written("mutex", &[(1001, 1), (1001, 1)]);
    breaks(
        Rule::LateWrite,
        std::slice::from_ref(&turn),
        std::slice::from_ref(&log),
    );
    let mut events = history(&[turn], &[log]);
    let unguarded = Setup {
        guards: false,
        ..setup()
    };
    events[0].what = What::Setup(Box::new(unguarded));
    assert!(check(events).is_fine());
}
