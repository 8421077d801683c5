//! An observer for the `metrics` crate: with the feature `metrics`.

use metrics::{counter, gauge, histogram};

use crate::error::Loss;
use crate::observer::{Acquired, Observer, Refused, Released};
use crate::stats::{StatKind, Stats};

/// Records what it hears with the [`metrics`](https://docs.rs/metrics) crate, for whatever exporter the program has
/// installed.
///
/// | metric | labels | |
/// | --- | --- | --- |
/// | `redlatch_wait_seconds` | `kind`, `lock` | histogram: how long acquires took that succeeded |
/// | `redlatch_hold_seconds` | `kind`, `lock` | histogram: for how long it was held |
/// | `redlatch_acquired_total` | `kind`, `lock`, `outcome` | `granted`, `handed_over`, `busy`, `late`, `error` |
/// | `redlatch_lost_total` | `lock`, `reason` | holds lost |
/// | `redlatch_server_up` | `server` | 1 while it can be reached, 0 since it cannot |
/// | `redlatch_held`, `redlatch_waiting`, `redlatch_renewal_lateness_seconds` | | gauges, from [`record`](Self::record) |
/// | `redlatch_commands_total`, `redlatch_reconnects_total`, … | | the other [`Stats`], from `record` |
///
/// The label `lock` is what a function of yours makes of a name, and never the name itself: names that hold a number, such
/// as `order:4711`, would make a series each.
///
/// ```
/// // `order:4711` and `order:4712` count as `order`.
/// let metrics = redlatch::Metrics::new(|name| name.split(':').next().unwrap_or_default().to_owned());
/// let config = redlatch::Config::new("redis://127.0.0.1/").observer(metrics);
/// # let _ = config;
/// ```
pub struct Metrics {
    label: Box<dyn Fn(&str) -> String + Send + Sync>,
}

impl Metrics {
    /// Returns an observer that labels what it hears with what `label` makes of the name.
    ///
    /// ```
    /// let metrics = redlatch::Metrics::new(|_| "all".to_owned());
    /// # let _ = metrics;
    /// ```
    pub fn new(label: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self {
            label: Box::new(label),
        }
    }

    /// Records the counters and gauges of a client, such as before each scrape. No I/O.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// redlatch::Metrics::record(&client.stats());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn record(stats: &Stats) {
        for (name, kind, value) in stats.iter() {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            let number = value as f64;
            match (name, kind) {
                // Each is counted when it happens.
                ("acquired" | "refused" | "lost", _) => {}
                (_, StatKind::Counter) if !name.ends_with("_us") => {
                    counter!(format!("redlatch_{name}_total")).absolute(value);
                }
                ("holds", _) => gauge!("redlatch_held").set(number),
                _ => match name.strip_suffix("_us") {
                    Some(name) => gauge!(format!("redlatch_{name}_seconds")).set(number / 1e6),
                    None => gauge!(format!("redlatch_{name}")).set(number),
                },
            }
        }
    }

    fn count(&self, name: &str, kind: &'static str, outcome: String) {
        let lock = (self.label)(name);
        counter!("redlatch_acquired_total", "kind" => kind, "lock" => lock, "outcome" => outcome)
            .increment(1);
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Observer for Metrics {
    fn acquired(&self, event: &Acquired<'_>) {
        let (kind, lock) = (event.kind, (self.label)(event.name));
        histogram!("redlatch_wait_seconds", "kind" => kind, "lock" => lock).record(event.waited);
        let outcome = if event.handed_over {
            "handed_over"
        } else {
            "granted"
        };
        self.count(event.name, kind, outcome.into());
    }

    fn refused(&self, event: &Refused<'_>) {
        self.count(event.name, event.kind, event.why.to_string());
    }

    fn released(&self, event: &Released<'_>) {
        let (kind, lock) = (event.kind, (self.label)(event.name));
        histogram!("redlatch_hold_seconds", "kind" => kind, "lock" => lock).record(event.held);
    }

    fn lost(&self, loss: &Loss) {
        let (lock, reason) = ((self.label)(&loss.name), format!("{:?}", loss.reason));
        counter!("redlatch_lost_total", "lock" => lock, "reason" => reason).increment(1);
    }

    fn server_gone(&self, server: &str, _why: &str) {
        gauge!("redlatch_server_up", "server" => server.to_owned()).set(0.0);
    }

    fn server_back(&self, server: &str) {
        gauge!("redlatch_server_up", "server" => server.to_owned()).set(1.0);
    }
}
