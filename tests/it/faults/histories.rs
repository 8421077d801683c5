//! What nobody may do under load is found in histories where it was done.

use std::time::Duration;

use crate::support::history::{History, Hold, Turn};
use crate::support::ms;

/// A turn of one millisecond or more under lock 0; released at once.
fn had(thread: usize, asked: u64, granted: u64, until: u64) -> Turn {
    Turn {
        thread,
        asked: ms(asked),
        limit: ms(1_000),
        answered: Some(ms(granted)),
        hold: Some(Hold {
            until: ms(until),
            released: Some(ms(until)),
            told: None,
        }),
        ..Turn::default()
    }
}

fn and_was_told(mut turn: Turn) -> Turn {
    turn.hold.as_mut().unwrap().told = Some("lost".to_owned());
    turn
}

/// With a fault all the time, and as many increments as there were holds, less `missing`.
fn history(turns: Vec<Turn>, missing: u64) -> History {
    let holds = turns.iter().filter(|turn| turn.hold.is_some()).count();
    History {
        turns,
        counted: vec![holds as u64 - missing],
        broken: vec![(Duration::ZERO, Duration::MAX)],
        divided: Vec::new(),
        slack: ms(100),
    }
}

#[track_caller]
fn says(history: &History, what: &str) {
    let wrong = history.wrong();
    assert!(
        wrong.len() == 1 && wrong[0].starts_with(what),
        "{wrong:#?} for {what}"
    );
}

#[track_caller]
fn is_fine(history: &History) {
    let wrong = history.wrong();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn holders_in_turn_are_fine() {
    is_fine(&history(vec![had(2, 5, 25, 30), had(1, 0, 10, 20)], 0));
    // Of different locks also at once.
    let mut other = had(2, 0, 10, 20);
    other.lock = 1;
    let mut both = history(vec![had(1, 0, 10, 20), other], 0);
    both.counted = vec![1, 1];
    is_fine(&both);
}

#[test]
fn two_at_once_are_found() {
    says(
        &history(vec![had(1, 0, 10, 20), had(2, 5, 19, 30)], 0),
        "two had it",
    );
    // Also with somebody between them.
    let turns = vec![
        had(1, 0, 10, 50),
        and_was_told(had(2, 15, 20, 30)),
        had(3, 6, 40, 60),
    ];
    let wrong = history(turns, 0).wrong();
    assert_eq!(wrong.len(), 2, "{wrong:#?}");
}

#[test]
fn of_two_at_once_the_first_has_to_be_told() {
    let (first, second) = (had(1, 0, 10, 20), had(2, 15, 19, 30));
    is_fine(&history(
        vec![and_was_told(first.clone()), second.clone()],
        0,
    ));
    says(
        &history(vec![first.clone(), and_was_told(second.clone())], 0),
        "two had it",
    );
    // It is not known who was first.
    let asked_before = had(2, 5, 19, 30);
    is_fine(&history(vec![first, and_was_told(asked_before)], 0));
}

#[test]
fn clients_that_asked_different_servers_are_fine_for_so_long() {
    let of = |client, turn| Turn { client, ..turn };
    let [first, second] = [of(0, had(1, 0, 10, 20)), of(1, had(2, 5, 15, 30))];
    let divided = |turns: [&Turn; 2], missing, from, until| History {
        divided: vec![(ms(from), ms(until))],
        ..history(turns.map(Clone::clone).to_vec(), missing)
    };
    is_fine(&divided([&first, &second], 1, 15, 15));
    is_fine(&divided([&first, &second], 0, 5, 50));
    for (from, until) in [(5, 14), (16, 50)] {
        says(&divided([&first, &second], 0, from, until), "two had it");
    }
    // Threads of one client ask the same server.
    let same = of(0, second.clone());
    says(&divided([&first, &same], 0, 5, 50), "two had it");
    // Nobody undoes what was done before.
    let later = of(1, had(2, 5, 20, 30));
    says(&divided([&first, &later], 1, 5, 50), "of 2 increments");
}

#[test]
fn a_lost_increment_is_found() {
    says(
        &history(vec![had(1, 0, 10, 20), had(2, 15, 21, 30)], 1),
        "of 2 increments",
    );
    // One who was told may have undone another's, but only of one who was there with it.
    let told = and_was_told(had(1, 0, 10, 20));
    is_fine(&history(vec![told.clone(), had(2, 15, 19, 30)], 1));
    says(
        &history(vec![told.clone(), had(2, 15, 21, 30)], 2),
        "of 2 increments",
    );
    // And nobody counts twice.
    let mut twice = history(vec![told, had(2, 15, 21, 30)], 0);
    twice.counted = vec![3];
    says(&twice, "of 2 increments");
}

#[test]
fn one_who_is_stuck_is_found() {
    let mut waits = had(1, 0, 10, 20);
    (waits.answered, waits.hold) = (None, None);
    says(&history(vec![waits], 0), "it waits still");
    let mut releases = had(1, 0, 10, 20);
    releases.hold.as_mut().unwrap().released = None;
    says(&history(vec![releases], 0), "its release has no answer");
}

#[test]
fn a_wait_past_its_limit_is_found() {
    is_fine(&history(vec![had(1, 0, 1_100, 1_110)], 0));
    says(
        &history(vec![had(1, 0, 1_101, 1_110)], 0),
        "it waited for too long",
    );
    let mut slow = had(1, 0, 10, 20);
    slow.hold.as_mut().unwrap().released = Some(ms(3_121));
    says(&history(vec![slow], 0), "its release took too long");
}

#[test]
fn an_error_or_a_loss_without_a_cause_is_found() {
    let mut failed = had(1, 50, 60, 70);
    failed.hold = None;
    failed.error = Some("away".to_owned());
    for turn in [failed, and_was_told(had(1, 50, 60, 70))] {
        let mut history = history(vec![turn], 0);
        is_fine(&history);
        for (broken, is_cause) in [((80, 90), false), ((30, 49), false), ((30, 50), true)] {
            history.broken = vec![(ms(broken.0), ms(broken.1))];
            if is_cause {
                is_fine(&history);
            } else {
                says(&history, "nothing was broken");
            }
        }
    }
}
