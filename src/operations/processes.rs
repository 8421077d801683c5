//! Finds the process of an owner by the names of connections.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

#[cfg(feature = "serde")]
use super::serialized;

/// A process that is connected to Redis, as the names of its connections say: see
/// [`Config::label`](crate::Config::label).
///
/// ```no_run
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// for holder in client.inspect("report")?.holders {
///     if let Some(process) = holder.process {
///         println!("process {} on {}", process.pid, process.host);
///     }
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Process {
    /// The name of its machine; `-` if that is unknown.
    pub host: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The address that Redis sees: `10.0.0.7:51422`.
    pub address: String,
    /// The client's [label](crate::Config::label); empty if none was set.
    pub label: String,
    /// For how long it has sent Redis nothing, in whole seconds.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "idle_s", serialize_with = "serialized::s")
    )]
    pub idle: Duration,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} on {} ({}", self.pid, self.host, self.address)?;
        if !self.label.is_empty() {
            write!(f, ", {}", self.label)?;
        }
        write!(f, ", idle {} s)", self.idle.as_secs())
    }
}

/// Processes by the ids of their clients.
pub(super) type Processes = HashMap<String, Process>;

/// Reads the reply to `CLIENT LIST`.
pub(super) fn of_list(list: &str) -> Processes {
    let mut processes = Processes::new();
    for line in list.lines() {
        let Some((id, process)) = of_line(line) else {
            continue;
        };
        let known = processes.entry(id).or_insert_with(|| process.clone());
        known.idle = known.idle.min(process.idle);
    }
    processes
}

/// `id=3 addr=127.0.0.1:51422 … name=redlatch:<id>:<host>:<pid>:<label>:<role> … idle=0 …`
fn of_line(line: &str) -> Option<(String, Process)> {
    let field = |wanted: &str| {
        let mut pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(name, value)| (name == wanted).then_some(value))
    };
    let mut parts = field("name")?.strip_prefix("redlatch:")?.splitn(4, ':');
    let (id, host, pid) = (parts.next()?, parts.next()?, parts.next()?);
    let (label, _role) = parts.next()?.rsplit_once(':')?;
    let process = Process {
        host: host.into(),
        pid: pid.parse().ok()?,
        address: field("addr")?.into(),
        label: label.into(),
        idle: Duration::from_secs(field("idle")?.parse().ok()?),
    };
    Some((id.into(), process))
}

#[cfg(test)]
mod tests;
