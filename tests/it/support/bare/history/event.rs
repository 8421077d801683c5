//! A line of a history, in Jepsen's shape: the process, the phase (begin, or the outcome), the operation and the
//! time.

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::setup::Setup;
use super::writes::Entry;

/// A moment or a span, in nanoseconds of the monotonic clock that all processes of a machine share.
pub(crate) type Nanos = u64;

/// The process that injects faults.
pub(crate) const NEMESIS: i64 = -1;

pub(crate) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}

pub(crate) fn millis(n: u64) -> Nanos {
    n.saturating_mul(1_000_000)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Invoke,
    Ok,
    /// The operation certainly did not happen.
    Fail,
    /// The outcome is unknown, or the event belongs to no request.
    Info,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    #[default]
    Exclusive,
    Read,
    Write,
    Permits,
}

impl Mode {
    pub(crate) fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }
}

/// The lock or the permits that a request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) kind: Arc<str>,
    /// More than one name for a multi-lock.
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) mode: Mode,
    pub(crate) permits: u64,
    /// The hold is not renewed and ends after this span.
    pub(crate) lease: Option<Nanos>,
}

impl Wanted {
    pub(crate) fn name(&self) -> Arc<str> {
        self.names.first().cloned().unwrap_or_default()
    }

    pub(crate) fn is_fair(&self) -> bool {
        self.kind.starts_with("fair")
    }

    /// A plain semaphore's permits never expire.
    pub(crate) fn has_lease(&self) -> bool {
        &*self.kind != "semaphore"
    }
}

/// The beginning or the end of a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) fault: Arc<str>,
    /// The number that the beginning and the end of one fault share.
    pub(crate) number: Option<u64>,
    pub(crate) is_end: bool,
    /// The only client that the fault concerns.
    pub(crate) client: Option<i64>,
    /// The only name that the fault concerns.
    pub(crate) name: Option<Arc<str>>,
    /// Which holders the fault divides; `None`: the kind of the fault decides.
    pub(crate) divides: Option<Divides>,
}

/// Which holders may have the same name at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Divides {
    Nobody,
    /// Clients that ask different servers, while there are two servers.
    Clients,
    /// A holder that the server has forgotten, until its lease ends, together with the next holder.
    All,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Setup(Box<Setup>),
    Acquire {
        wanted: Wanted,
        limit: Option<Nanos>,
        token: Option<u64>,
        id: Option<Arc<str>>,
    },
    /// The holder was notified that its hold may be over.
    Lost {
        wanted: Wanted,
        id: Option<Arc<str>>,
        valid_until: Option<Nanos>,
    },
    Release {
        wanted: Wanted,
        id: Option<Arc<str>>,
        /// The end of the hold's validity as the holder knew it when its release began.
        valid_until: Option<Nanos>,
    },
    /// A number that the lock protects was read and incremented, in two steps.
    Work {
        name: Arc<str>,
        read: u64,
        wrote: u64,
    },
    /// A write guarded by the hold of that name. `Fail` means that it was rejected.
    Write {
        name: Arc<str>,
        entry: Entry,
    },
    /// All guarded writes that the server executed, in its order.
    Written {
        name: Arc<str>,
        entries: Vec<Entry>,
    },
    ForceUnlock {
        name: Arc<str>,
    },
    /// A latch was set to its count, or a semaphore to its permits.
    Set {
        wanted: Wanted,
        count: u64,
    },
    CountDown {
        name: Arc<str>,
    },
    Await {
        name: Arc<str>,
        limit: Option<Nanos>,
    },
    Fault(Edge),
    /// A thread that only sleeps woke up this much too late.
    Late {
        span: Nanos,
    },
    /// Keys that exist although every lease is over.
    LeftBehind {
        keys: Vec<String>,
    },
    Panic,
    /// A line that no rule reads.
    Remark,
    Unreadable(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The line number, from one; zero for an event that was not read from a log.
    pub(crate) line: usize,
    pub(crate) process: i64,
    pub(crate) phase: Phase,
    pub(crate) what: What,
    pub(crate) error: Option<String>,
    pub(crate) time: Nanos,
}

impl Event {
    pub(crate) fn new(process: i64, phase: Phase, what: What, time: Nanos) -> Self {
        Self {
            line: 0,
            process,
            phase,
            what,
            error: None,
            time,
        }
    }

    /// The event as a line of a log.
    pub(crate) fn to_line(&self) -> String {
        let phase = match self.phase {
            Phase::Invoke => "invoke",
            Phase::Ok => "ok",
            Phase::Fail => "fail",
            Phase::Info => "info",
        };
        let (f, value) = self.what.to_json();
        let mut line = json!({
            "process": self.process,
            "type": phase,
            "f": f,
            "value": value,
            "time": self.time,
        });
        if let Some(error) = &self.error {
            line["error"] = json!(error);
        }
        line.to_string()
    }
}

fn of_wanted(wanted: &Wanted, id: Option<&Arc<str>>) -> Value {
    let mode = match wanted.mode {
        Mode::Exclusive => "exclusive",
        Mode::Read => "read",
        Mode::Write => "write",
        Mode::Permits => "permits",
    };
    let mut value = json!({ "kind": &*wanted.kind, "mode": mode, "permits": wanted.permits });
    match &wanted.names[..] {
        [name] => value["name"] = json!(&**name),
        names => value["names"] = names.iter().map(|name| &**name).collect(),
    }
    if let Some(lease) = wanted.lease {
        value["lease_ms"] = json!(to_ms(lease));
    }
    if let Some(id) = id {
        value["id"] = json!(&**id);
    }
    value
}

/// Logs give spans in whole milliseconds.
pub(super) fn to_ms(span: Nanos) -> u64 {
    span / 1_000_000
}

impl What {
    fn to_json(&self) -> (&str, Value) {
        match self {
            Self::Setup(setup) => ("setup", setup.to_json()),
            Self::Acquire {
                wanted,
                limit,
                token,
                id,
            } => {
                let mut value = of_wanted(wanted, id.as_ref());
                if let Some(limit) = limit {
                    value["limit_ms"] = json!(to_ms(*limit));
                }
                if let Some(token) = token {
                    value["token"] = json!(token);
                }
                ("acquire", value)
            }
            Self::Lost {
                wanted,
                id,
                valid_until,
            }
            | Self::Release {
                wanted,
                id,
                valid_until,
            } => {
                let mut value = of_wanted(wanted, id.as_ref());
                if let Some(valid_until) = valid_until {
                    value["valid_until"] = json!(valid_until);
                }
                let is_loss = matches!(self, Self::Lost { .. });
                (if is_loss { "lost" } else { "release" }, value)
            }
            Self::Work { name, read, wrote } => (
                "work",
                json!({ "name": &**name, "read": read, "wrote": wrote }),
            ),
            Self::Write { name, entry } => {
                let entry = entry.to_string();
                ("write", json!({ "name": &**name, "entry": entry }))
            }
            Self::Written { name, entries } => {
                let entries: Vec<_> = entries.iter().map(Entry::to_string).collect();
                ("written", json!({ "name": &**name, "entries": entries }))
            }
            Self::ForceUnlock { name } => ("force-unlock", json!({ "name": &**name })),
            Self::Set { wanted, count } => {
                let mut value = of_wanted(wanted, None);
                value["count"] = json!(count);
                ("set", value)
            }
            Self::CountDown { name } => ("count-down", json!({ "kind": "latch", "name": &**name })),
            Self::Await { name, limit } => {
                let mut value = json!({ "kind": "latch", "name": &**name });
                if let Some(limit) = limit {
                    value["limit_ms"] = json!(to_ms(*limit));
                }
                ("await", value)
            }
            Self::Fault(edge) => {
                let mut value = json!({ "until": if edge.is_end { "end" } else { "begin" } });
                if let Some(number) = edge.number {
                    value["fault"] = json!(number);
                }
                if let Some(client) = edge.client {
                    value["client"] = json!(client);
                }
                if let Some(name) = &edge.name {
                    value["name"] = json!(&**name);
                }
                if let Some(divides) = edge.divides {
                    value["divides"] = match divides {
                        Divides::Nobody => json!(false),
                        Divides::Clients => json!("clients"),
                        Divides::All => json!(true),
                    };
                }
                (&edge.fault, value)
            }
            Self::Late { span } => ("late", json!({ "ms": to_ms(*span) })),
            Self::LeftBehind { keys } => ("left-behind", json!({ "keys": keys })),
            Self::Panic => ("panic", Value::Null),
            Self::Remark | Self::Unreadable(_) => ("remark", Value::Null),
        }
    }
}

/// The events of a log. An unreadable line becomes an event that every history is rejected for.
pub(crate) fn read(lines: impl BufRead) -> Vec<Event> {
    let mut reader = Reader::default();
    let lines = lines.lines().enumerate();
    let read = lines.filter_map(|(at, line)| {
        let text = match line {
            Ok(text) if text.trim().is_empty() => return None,
            Ok(text) => text,
            Err(err) => err.to_string(),
        };
        let unreadable = |why| Event::new(NEMESIS, Phase::Info, What::Unreadable(why), 0);
        let mut event = reader.event(&text).unwrap_or_else(unreadable);
        event.line = at + 1;
        Some(event)
    });
    read.collect()
}

/// Interns names, so that a long history keeps one copy of each.
#[derive(Default)]
struct Reader {
    texts: HashSet<Arc<str>>,
}

type Parsed<T> = Result<T, String>;

pub(super) fn number(value: &Value, field: &str) -> Option<u64> {
    value[field].as_u64()
}

pub(super) fn span_of(value: &Value, field: &str, default: Nanos) -> Nanos {
    number(value, field).map_or(default, millis)
}

impl Reader {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    fn optional(&mut self, value: &Value, field: &str) -> Option<Arc<str>> {
        value[field].as_str().map(|text| self.text(text))
    }

    fn required(&mut self, value: &Value, field: &str) -> Parsed<Arc<str>> {
        self.optional(value, field)
            .ok_or_else(|| format!("no {field} in {value}"))
    }

    fn wanted(&mut self, value: &Value) -> Parsed<Wanted> {
        let names = match &value["names"] {
            Value::Array(names) => names
                .iter()
                .filter_map(Value::as_str)
                .map(|name| self.text(name))
                .collect(),
            _ => vec![self.required(value, "name")?],
        };
        let mode = match value["mode"].as_str() {
            None | Some("exclusive") => Mode::Exclusive,
            Some("read") => Mode::Read,
            Some("write") => Mode::Write,
            Some("permits") => Mode::Permits,
            Some(other) => return Err(format!("no mode {other}")),
        };
        Ok(Wanted {
            kind: self.required(value, "kind")?,
            names,
            mode,
            permits: number(value, "permits").unwrap_or(1),
            lease: number(value, "lease_ms").map(millis),
        })
    }

    fn event(&mut self, line: &str) -> Parsed<Event> {
        let line: Value =
            serde_json::from_str(line).map_err(|err| format!("{err} in the line {line}"))?;
        let missing = |field: &str| format!("no {field} in {line}");
        let phase = match line["type"].as_str() {
            Some("invoke") => Phase::Invoke,
            Some("ok") => Phase::Ok,
            Some("fail") => Phase::Fail,
            Some("info") => Phase::Info,
            _ => return Err(missing("type")),
        };
        let f = line["f"].as_str().ok_or_else(|| missing("f"))?;
        let nemesis = || (f == "left-behind").then_some(NEMESIS);
        let process = line["process"].as_i64().or_else(nemesis);
        Ok(Event {
            line: 0,
            process: process.ok_or_else(|| missing("process"))?,
            phase,
            what: self.what(f, &line["value"])?,
            error: line["error"].as_str().map(str::to_owned),
            time: number(&line, "time").ok_or_else(|| missing("time"))?,
        })
    }

    fn what(&mut self, f: &str, value: &Value) -> Parsed<What> {
        Ok(match f {
            "setup" => What::Setup(Box::new(Setup::of_json(value))),
            "acquire" => What::Acquire {
                wanted: self.wanted(value)?,
                limit: number(value, "limit_ms").map(millis),
                token: number(value, "token"),
                // Ids are not interned, because each one occurs only a few times.
                id: value["id"].as_str().map(Arc::from),
            },
            "lost" => What::Lost {
                wanted: self.wanted(value)?,
                id: value["id"].as_str().map(Arc::from),
                valid_until: number(value, "valid_until"),
            },
            "release" => What::Release {
                wanted: self.wanted(value)?,
                id: value["id"].as_str().map(Arc::from),
                valid_until: number(value, "valid_until"),
            },
            "work" => What::Work {
                name: self.required(value, "name")?,
                read: number(value, "read").ok_or("nothing read")?,
                wrote: number(value, "wrote").ok_or("nothing wrote")?,
            },
            "write" => What::Write {
                name: self.required(value, "name")?,
                entry: value["entry"].as_str().ok_or("no entry")?.parse()?,
            },
            "written" => What::Written {
                name: self.required(value, "name")?,
                entries: value["entries"]
                    .as_array()
                    .ok_or("no entries")?
                    .iter()
                    .map(|entry| entry.as_str().ok_or("no entry")?.parse())
                    .collect::<Parsed<_>>()?,
            },
            "force-unlock" => What::ForceUnlock {
                name: self.required(value, "name")?,
            },
            "set" => What::Set {
                count: number(value, "count")
                    .or_else(|| number(value, "permits"))
                    .unwrap_or(0),
                wanted: self.wanted(value)?,
            },
            "count-down" => What::CountDown {
                name: self.required(value, "name")?,
            },
            "await" => What::Await {
                name: self.required(value, "name")?,
                limit: number(value, "limit_ms").map(millis),
            },
            "late" => What::Late {
                span: span_of(value, "ms", 0),
            },
            "left-behind" => What::LeftBehind {
                keys: value["keys"]
                    .as_array()
                    .ok_or("no keys")?
                    .iter()
                    .map(|key| key.as_str().map_or_else(|| key.to_string(), str::to_owned))
                    .collect(),
            },
            "panic" => What::Panic,
            fault => match value["until"].as_str() {
                // Lines without `until` are remarks, for instance that a fault was repaired.
                None => What::Remark,
                Some(edge @ ("begin" | "end")) => What::Fault(Edge {
                    fault: self.text(fault),
                    number: number(value, "fault"),
                    is_end: edge == "end",
                    client: value["client"].as_i64(),
                    name: self.optional(value, "name"),
                    divides: match &value["divides"] {
                        Value::Bool(true) => Some(Divides::All),
                        Value::Bool(false) => Some(Divides::Nobody),
                        Value::String(whom) if whom == "clients" => Some(Divides::Clients),
                        _ => None,
                    },
                }),
                Some(other) => return Err(format!("{fault} until {other}")),
            },
        })
    }
}
