//! The numbers by which libraries are compared.

use crate::support::history::{Event, Measures, check, millis};
use crate::support::made_up::{Turn, asks, fault, fault_of, has, history};

fn measures(turns: &[Turn], others: &[Vec<Event>]) -> Measures {
    check(history(turns, others)).measures
}

#[test]
fn the_time_after_a_dead_holder_lasts_until_the_next_grant() {
    let kill = fault_of("kill-worker", Some(1), [100, 200]);
    let turns = [
        has(1001, "mutex", [0, 10, 50]).keeps(),
        has(2001, "mutex", [50, 600, 700]),
        has(3001, "mutex", [60, 5000, 5001]),
    ];
    let alone = measures(&turns, std::slice::from_ref(&kill));
    assert_eq!(alone.dead_holders, 1);
    assert_eq!(alone.after_dead_holder, millis(500));
    assert_eq!(alone.dead_waiters, 0);
    // A gap with two faults in it is counted for neither.
    let both = measures(&turns, &[kill.clone(), fault("proxy-cut", [50, 110])]);
    assert_eq!(both.dead_holders, 0);
    let later = measures(&turns, &[kill, fault("proxy-cut", [300, 310])]);
    assert_eq!(later.dead_holders, 0);
}

#[test]
fn nobody_stands_still_who_asks_later() {
    let turns = [
        has(1001, "mutex", [0, 10, 50]).keeps(),
        has(2001, "mutex", [500, 600, 700]),
    ];
    let kill = fault_of("kill-worker", Some(1), [100, 200]);
    let measures = measures(&turns, &[kill]);
    assert_eq!(measures.after_dead_holder, millis(100));
}

#[test]
fn the_time_after_a_dead_waiter_counts_while_the_lock_is_free() {
    let turns = [
        has(2001, "mutex", [0, 10, 300]),
        asks(1001, "mutex", 15),
        has(3001, "mutex", [20, 450, 460]),
    ];
    let measures = measures(&turns, &[fault_of("kill-worker", Some(1), [100, 200])]);
    assert_eq!(measures.dead_waiters, 1);
    assert_eq!(measures.after_dead_waiter, millis(150));
    assert_eq!(measures.dead_holders, 0);
    // The worker that was killed owes no answer.
    assert_eq!(measures.unanswered, 0);
}

#[test]
fn a_limit_is_exceeded_by_what_the_worker_could_run() {
    let turns = [has(1001, "mutex", [0, 450, 460]).limit(100)];
    assert_eq!(measures(&turns, &[]).overrun, millis(350));
    let stopped = [fault_of("stop-worker", Some(1), [50, 350])];
    assert_eq!(measures(&turns, &stopped).overrun, millis(50));
}

#[test]
fn a_loss_counts_by_how_the_holder_heard_of_it() {
    let cut = [fault("proxy-cut", [0, 500])];
    let turns = [
        has(1001, "mutex", [0, 10, 20]).lost(15),
        has(2001, "fair", [0, 10, 20]).release_fails(),
        has(3001, "spin", [0, 10, 20]),
        asks(4001, "fenced", 0),
    ];
    let measures = measures(&turns, &cut);
    assert_eq!((measures.told, measures.told_by_release), (1, 1));
    assert_eq!(measures.unanswered, 1);
}
