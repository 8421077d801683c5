//! The metrics that the observer for the `metrics` crate records.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use redlatch::{Client, Metrics};

use crate::dice::Dice;
use crate::support::{Server, timed, unique};
use crate::{open, settings};

/// The exporter of this process.
static PROMETHEUS: LazyLock<PrometheusHandle> = LazyLock::new(|| {
    let builder = PrometheusBuilder::new();
    builder.install_recorder().unwrap()
});

fn client(server: &Server, name: &str) -> (Client, Metrics) {
    LazyLock::force(&PROMETHEUS);
    let label = |name: &str| name.split(':').next().unwrap().to_owned();
    let metrics = Metrics::new(name, label);
    let config = settings(server).observer(metrics.clone());
    (Client::open(config).unwrap(), metrics)
}

/// The rendered series of a client, without the label `client`.
fn series(client: &str) -> BTreeMap<String, String> {
    let label = format!("client=\"{client}\"");
    let text = PROMETHEUS.render();
    (text.lines())
        .filter(|line| !line.starts_with('#') && line.contains(&label))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, value)| {
            (
                series.replace(&label, "").replace("{,", "{"),
                value.to_owned(),
            )
        })
        .collect()
}

timed!(what_happens_is_recorded_under_labels_that_the_user_gives);
fn what_happens_is_recorded_under_labels_that_the_user_gives() {
    let server = Server::start();
    let label = unique("one");
    let (client, metrics) = client(&server, &label);
    let name = unique("stock:42");
    client.mutex(&name).lock().unwrap().unlock().unwrap();
    metrics.record(&client.stats());
    let (series, up) = (
        series(&label),
        format!("redlatch_server_up{{server=\"{}\"}}", server.addr()),
    );
    for (key, value) in [
        (
            "redlatch_wait_seconds_count{kind=\"mutex\",lock=\"stock\"}",
            "1",
        ),
        (
            "redlatch_hold_seconds_count{kind=\"mutex\",lock=\"stock\"}",
            "1",
        ),
        ("redlatch_held{}", "0"),
        ("redlatch_waiting{}", "0"),
        ("redlatch_renewal_lateness_seconds{}", "0"),
        (&up, "1"),
    ] {
        let found = series
            .get(key)
            .or_else(|| series.get(key.trim_end_matches("{}")));
        assert_eq!(found.map(String::as_str), Some(value), "{key}: {series:?}");
    }
    assert!(!series.keys().any(|key| key.contains(&name)), "{series:?}");
    let text = PROMETHEUS.render();
    for help in [
        "# HELP redlatch_attempts_total Calls that acquire, by outcome.",
        "# HELP redlatch_reconnects_total Times a connection for commands, or for guarded commands, was lost and replaced.",
        "# HELP redlatch_renewal_lateness_seconds The longest delay of a renewal within the last 30 to 60 s, in seconds.",
    ] {
        assert!(
            text.lines().any(|line| line == help),
            "{help} is missing: {text}"
        );
    }
}

timed!(two_clients_are_counted_apart_and_as_often_as_it_happened);
fn two_clients_are_counted_apart_and_as_often_as_it_happened() {
    let server = Server::start();
    let (names, other) = (["left", "right"].map(unique), open(&server));
    let clients = names.each_ref().map(|name| client(&server, name));
    let locks = [unique("a:1"), unique("b:2")];
    let mut dice = Dice::new(7);
    let mut truth = [(), ()].map(|()| BTreeMap::<String, u64>::new());
    for _ in 0..200 {
        let (which, lock) = (dice.draw(2), &locks[dice.draw(2)]);
        let label = lock.split(':').next().unwrap();
        let mut count = |metric: &str, more: &str| {
            let key = format!("redlatch_{metric}{{{}}}", more.replace("LOCK", label));
            *truth[which].entry(key).or_default() += 1;
        };
        let mutex = clients[which].0.mutex(lock);
        match dice.draw(3) {
            // Acquired, then dropped or unlocked.
            0 => {
                let guard = mutex.lock().unwrap();
                if dice.draw(2) == 0 {
                    drop(guard);
                } else {
                    guard.unlock().unwrap();
                }
                count(
                    "attempts_total",
                    "kind=\"mutex\",lock=\"LOCK\",outcome=\"granted\"",
                );
                count("hold_seconds_count", "kind=\"mutex\",lock=\"LOCK\"");
                count("wait_seconds_count", "kind=\"mutex\",lock=\"LOCK\"");
            }
            // Refused, because another client holds the lock.
            1 => {
                let guard = other.mutex(lock).lock().unwrap();
                assert!(mutex.try_lock().unwrap().is_none());
                guard.unlock().unwrap();
                count(
                    "attempts_total",
                    "kind=\"mutex\",lock=\"LOCK\",outcome=\"busy\"",
                );
            }
            // Lost, because another client forces the lock open.
            _ => {
                let guard = mutex.lock().unwrap();
                assert!(other.mutex(lock).force_unlock().unwrap());
                guard.unlock().unwrap_err();
                count(
                    "attempts_total",
                    "kind=\"mutex\",lock=\"LOCK\",outcome=\"granted\"",
                );
                count("wait_seconds_count", "kind=\"mutex\",lock=\"LOCK\"");
                count("lost_total", "lock=\"LOCK\",reason=\"forced\"");
            }
        }
    }
    for (which, name) in names.iter().enumerate() {
        let (client, metrics) = &clients[which];
        metrics.record(&client.stats());
        let (series, wanted) = (series(name), &truth[which]);
        let is_event = |key: &String| {
            let events = [
                "redlatch_attempts_total{",
                "redlatch_hold_seconds_count{",
                "redlatch_wait_seconds_count{",
                "redlatch_lost_total{",
            ];
            events.iter().any(|event| key.starts_with(event))
        };
        let event_counts: BTreeMap<_, _> = (series.iter())
            .filter(|(key, _)| is_event(key))
            .map(|(key, value)| (key.clone(), value.parse::<u64>().unwrap()))
            .collect();
        assert_eq!(&event_counts, wanted);
        let commands = series
            .iter()
            .find(|(key, _)| key.starts_with("redlatch_commands_total"));
        let sent = client.stats().commands.to_string();
        assert_eq!(commands.map(|(_, value)| value), Some(&sent));
    }
}
