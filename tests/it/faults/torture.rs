//! A short form of the torture test. The long form is `cargo run --example torture`.

use std::time::Duration;

use crate::support::{self, dice};
use deployment::Place;
use run::Plan;
use worker::Job;

#[path = "../../../examples/torture/crew.rs"]
mod crew;
#[path = "../../../examples/torture/deployment.rs"]
mod deployment;
#[path = "../../../examples/torture/holds.rs"]
mod holds;
#[path = "../../../examples/torture/journal.rs"]
mod journal;
#[path = "../../../examples/torture/kinds.rs"]
mod kinds;
#[path = "../../../examples/torture/nemesis.rs"]
mod nemesis;
#[path = "../../../examples/torture/player.rs"]
mod player;
#[expect(dead_code, reason = "only the example runs other programs")]
#[path = "../../../examples/torture/remote.rs"]
mod remote;
#[path = "../../../examples/torture/run.rs"]
mod run;
#[path = "../../../examples/torture/worker.rs"]
mod worker;

/// Arguments that make this binary a worker.
const WORKER: &[&str] = &[
    "faults::torture::part_that_works",
    "--exact",
    "--ignored",
    "--nocapture",
];

#[test]
#[ignore = "part of other tests"]
fn part_that_works() {
    if let Some(job) = Job::given() {
        job.run();
    }
}

/// Runs with a fixed seed, so that the nemesis makes the same choices each time.
fn nothing_is_wrong(place: Place) {
    // Replacing masters takes longer to recover from.
    let load = if place.is_durable() { 16 } else { 12 };
    let mut plan = Plan::new(place, 42, Duration::from_secs(load), WORKER);
    plan.workers = 2;
    plan.threads = 3;
    let outcome = plan.run();
    assert!(outcome.is_fine(), "{outcome}");
    // A hold of several masters cannot guard commands.
    assert_eq!(
        outcome.report.writes > 0,
        place != Place::Masters,
        "{outcome}"
    );
}

#[test]
fn nothing_is_wrong_with_one_server() {
    nothing_is_wrong(Place::One);
}

#[test]
fn nothing_is_wrong_with_five_masters() {
    nothing_is_wrong(Place::Masters);
}

#[test]
fn nothing_is_wrong_with_sentinels() {
    nothing_is_wrong(Place::Sentinel);
}

#[test]
fn nothing_is_wrong_in_a_cluster() {
    nothing_is_wrong(Place::Cluster);
}
