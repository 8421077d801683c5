//! The settings of a run, which the first line of a history records.

use std::sync::Arc;

use serde_json::{Value, json};

use super::event::{Nanos, millis, number, span_of, to_ms};

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) lease: Nanos,
    pub(crate) command_timeout: Nanos,
    pub(crate) waiter_lease: Nanos,
    /// How much every time limit may be exceeded.
    pub(crate) slack: Nanos,
    /// How long after its end a fault may have consequences, if not for a lease and a command timeout.
    pub(crate) recovery: Option<Nanos>,
    /// The number of permits of each semaphore.
    pub(crate) permits: Vec<(Arc<str>, u64)>,
    pub(crate) deployment: String,
    /// Whether a server that is killed keeps all its data.
    pub(crate) is_durable: bool,
    /// Whether writes are guarded by their holds. A client without that may send a write again that was executed.
    pub(crate) guards: bool,
}

impl Default for Setup {
    /// The crate's default settings, and one server that keeps its data.
    fn default() -> Self {
        Self {
            seed: 0,
            lease: millis(30_000),
            command_timeout: millis(3_000),
            waiter_lease: millis(10_000),
            slack: millis(300),
            recovery: None,
            permits: Vec::new(),
            deployment: "one".to_owned(),
            is_durable: true,
            guards: true,
        }
    }
}

impl Setup {
    pub(super) fn to_json(&self) -> Value {
        let permits = self.permits.iter();
        let permits: serde_json::Map<_, _> = permits
            .map(|(name, many)| (name.to_string(), json!(many)))
            .collect();
        let mut value = json!({
            "seed": self.seed,
            "lease_ms": to_ms(self.lease),
            "command_timeout_ms": to_ms(self.command_timeout),
            "waiter_lease_ms": to_ms(self.waiter_lease),
            "slack_ms": to_ms(self.slack),
            "permits": permits,
            "deployment": self.deployment,
            "durable": self.is_durable,
            "guards": self.guards,
        });
        if let Some(recovery) = self.recovery {
            value["recovery_ms"] = json!(to_ms(recovery));
        }
        value
    }

    /// Fields that are missing keep their defaults.
    pub(super) fn of_json(value: &Value) -> Self {
        let default = Self::default();
        let permits = value["permits"].as_object().into_iter().flatten();
        Self {
            seed: number(value, "seed").unwrap_or(0),
            lease: span_of(value, "lease_ms", default.lease),
            command_timeout: span_of(value, "command_timeout_ms", default.command_timeout),
            waiter_lease: span_of(value, "waiter_lease_ms", default.waiter_lease),
            slack: span_of(value, "slack_ms", default.slack),
            recovery: number(value, "recovery_ms").map(millis),
            permits: permits
                .filter_map(|(name, many)| Some((name.as_str().into(), many.as_u64()?)))
                .collect(),
            deployment: value["deployment"]
                .as_str()
                .unwrap_or(&default.deployment)
                .to_owned(),
            is_durable: value["durable"].as_bool().unwrap_or(default.is_durable),
            guards: value["guards"].as_bool().unwrap_or(default.guards),
        }
    }
}
