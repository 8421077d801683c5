//! An observer for the `metrics` crate: with the feature `metrics`.

use std::sync::Arc;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::error::Loss;
use crate::observer::{Acquired, Observer, Refused, Released};
use crate::stats::{StatKind, Stats};

/// Records the events of a client with the [`metrics`](https://docs.rs/metrics) crate, for the exporter that the
/// program has installed.
///
/// ```
/// use redlatch::{Config, Metrics};
///
/// // `order:4711` and `order:4712` count as `order`.
/// let metrics = Metrics::new("shop", |name| name.split(':').next().unwrap_or_default().to_owned());
/// let config = Config::new("redis://127.0.0.1/").observer(metrics.clone());
/// # let _ = config;
/// ```
///
/// | metric | labels besides `client` | |
/// | --- | --- | --- |
/// | `redlatch_attempts_total` | `kind`, `lock`, `outcome` | calls that acquire: `granted`, `handed_over`, `busy`, `late`, `cancelled`, `error` |
/// | `redlatch_wait_seconds` | `kind`, `lock` | histogram: how long successful acquires took |
/// | `redlatch_hold_seconds` | `kind`, `lock` | histogram: from acquire to release |
/// | `redlatch_lost_total` | `lock`, `reason` | holds lost: `expired`, `forced`, `taken_over`, `unreachable`, `max_hold`, `closed` |
/// | `redlatch_server_up` | `server` | 1 while the server can be reached, else 0 |
/// | `redlatch_held`, `redlatch_waiting`, `redlatch_renewal_lateness_seconds` | | gauges, from [`record`](Self::record) |
/// | `redlatch_commands_total`, `redlatch_reconnects_total`, … | | all other fields of [`Stats`], from `record`; instead of `acquired`, `refused` and `lost` there are `redlatch_attempts_total` and `redlatch_lost_total` |
///
/// The label `lock` is the result of your function and never the name itself: names that contain a number, such as
/// `order:4711`, would make a series each. `redlatch_lost_total` counts the calls of
/// [`Observer::lost`], which are not always those that [`Stats::lost`](crate::Stats::lost) counts.
#[derive(Clone)]
pub struct Metrics {
    client: Arc<str>,
    label: Arc<dyn Fn(&str) -> String + Send + Sync>,
}

impl Metrics {
    /// Returns an observer. The series have the labels `client` and `lock`; the function `lock` makes the latter from the
    /// lock's name.
    ///
    /// Give each client of a program a different `client`, or their gauges overwrite each other. Install the exporter
    /// first: this call also describes all metrics to it.
    ///
    /// ```
    /// let metrics = redlatch::Metrics::new("shop", |_| "all".to_owned());
    /// # let _ = metrics;
    /// ```
    pub fn new(client: &str, lock: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        describe();
        Self {
            client: client.into(),
            label: Arc::new(lock),
        }
    }

    /// Records the client's counters and gauges; call it before each scrape. No I/O.
    ///
    /// ```no_run
    /// use redlatch::{Client, Config, Metrics};
    ///
    /// let metrics = Metrics::new("shop", |_| "all".to_owned());
    /// let client = Client::open(Config::new("redis://127.0.0.1/").observer(metrics.clone()))?;
    /// metrics.record(&client.stats());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn record(&self, stats: &Stats) {
        for (name, kind, value) in stats.iter() {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            let number = value as f64;
            match Recorded::from(name, kind) {
                Recorded::Event => {}
                Recorded::Counter(metric) => {
                    counter!(metric, "client" => self.client.clone()).absolute(value);
                }
                Recorded::Seconds(metric) => {
                    gauge!(metric, "client" => self.client.clone()).set(number / 1e6);
                }
                Recorded::Gauge(metric) => {
                    gauge!(metric, "client" => self.client.clone()).set(number);
                }
            }
        }
    }

    fn count(&self, name: &str, kind: &'static str, outcome: String) {
        let labels = [
            ("client", self.client.to_string()),
            ("kind", kind.to_owned()),
            ("lock", (self.label)(name)),
            ("outcome", outcome),
        ];
        counter!("redlatch_attempts_total", &labels).increment(1);
    }

    fn time(
        &self,
        metric: &'static str,
        name: &str,
        kind: &'static str,
        time: std::time::Duration,
    ) {
        let (client, lock) = (self.client.clone(), (self.label)(name));
        histogram!(metric, "client" => client, "kind" => kind, "lock" => lock).record(time);
    }

    fn set_up(&self, server: &str, up: f64) {
        let (client, server) = (self.client.clone(), server.to_owned());
        gauge!("redlatch_server_up", "client" => client, "server" => server).set(up);
    }
}

/// The metric under which a number of [`Stats`] is recorded.
enum Recorded {
    /// No metric, since an event counts it.
    Event,
    Counter(String),
    /// A gauge in seconds, from microseconds.
    Seconds(String),
    Gauge(String),
}

impl Recorded {
    fn from(name: &str, kind: StatKind) -> Self {
        match (name, kind, name.strip_suffix("_us")) {
            ("acquired" | "refused" | "lost", ..) => Self::Event,
            ("holds", ..) => Self::Gauge("redlatch_held".into()),
            (.., Some(name)) => Self::Seconds(format!("redlatch_{name}_seconds")),
            (_, StatKind::Counter, None) => Self::Counter(format!("redlatch_{name}_total")),
            (_, StatKind::Gauge, None) => Self::Gauge(format!("redlatch_{name}")),
        }
    }
}

/// Describes all metrics to the exporter.
fn describe() {
    describe_counter!(
        "redlatch_attempts_total",
        Unit::Count,
        "Calls that acquire, by outcome."
    );
    describe_histogram!(
        "redlatch_wait_seconds",
        Unit::Seconds,
        "How long successful acquires took."
    );
    describe_histogram!(
        "redlatch_hold_seconds",
        Unit::Seconds,
        "From acquire to release."
    );
    describe_counter!("redlatch_lost_total", Unit::Count, "Holds lost, by reason.");
    describe_gauge!(
        "redlatch_server_up",
        Unit::Count,
        "1 while the server can be reached, else 0."
    );
    for (name, kind, _) in Stats::default().iter() {
        let help = Stats::HELP.iter().find(|(described, _)| *described == name);
        let help = help.map_or("", |(_, help)| help.trim());
        match Recorded::from(name, kind) {
            Recorded::Event => {}
            Recorded::Counter(metric) => describe_counter!(metric, Unit::Count, help),
            Recorded::Seconds(metric) => {
                describe_gauge!(
                    metric,
                    Unit::Seconds,
                    help.replace("microseconds", "seconds")
                );
            }
            Recorded::Gauge(metric) => describe_gauge!(metric, Unit::Count, help),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl Observer for Metrics {
    fn acquired(&self, event: &Acquired<'_>) {
        self.time(
            "redlatch_wait_seconds",
            event.name,
            event.kind,
            event.waited,
        );
        let outcome = if event.handed_over {
            "handed_over"
        } else {
            "granted"
        };
        self.count(event.name, event.kind, outcome.into());
    }

    fn refused(&self, event: &Refused<'_>) {
        self.count(event.name, event.kind, event.reason.to_string());
    }

    fn released(&self, event: &Released<'_>) {
        self.time("redlatch_hold_seconds", event.name, event.kind, event.held);
    }

    fn lost(&self, loss: &Loss) {
        let labels = [
            ("client", self.client.to_string()),
            ("lock", (self.label)(&loss.name)),
            ("reason", loss.reason.word().to_owned()),
        ];
        counter!("redlatch_lost_total", &labels).increment(1);
    }

    fn server_down(&self, server: &str, _why: &str) {
        self.set_up(server, 0.0);
    }

    fn server_up(&self, server: &str) {
        self.set_up(server, 1.0);
    }
}
