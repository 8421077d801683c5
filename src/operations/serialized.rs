//! How what people ask for is written by `serde`: spans in whole milliseconds or seconds, kinds by the words that they are
//! displayed as.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::operations::check::Severity;
use crate::operations::inspect::{HoldMode, LockKind};

pub(super) fn ms<S: Serializer>(
    span: &Option<Duration>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    let ms = span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    ms.serialize(to)
}

pub(super) fn s<S: Serializer>(span: &Duration, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_u64(span.as_secs())
}

macro_rules! displayed {
    ($($kind:ident),+) => {
        $(impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        })+
    };
}

displayed!(LockKind, HoldMode, Severity);

#[cfg(test)]
mod tests {
    use super::*;

    use crate::operations::check::Finding;
    use crate::operations::processes::Process;

    #[test]
    fn spans_are_numbers_and_kinds_are_words() {
        let finding = Finding {
            server: "h:1".into(),
            severity: Severity::Warning,
            what: "it evicts keys".into(),
            advice: String::new(),
        };
        let process = Process {
            host: "web-3".into(),
            pid: 7,
            address: "10.0.0.7:1".into(),
            label: String::new(),
            idle: Duration::from_millis(2_500),
        };
        let written = serde_json::to_value((finding, process, LockKind::RwLock)).expect("JSON");
        let expected = serde_json::json!([
            {"server": "h:1", "severity": "warning", "what": "it evicts keys", "advice": ""},
            {"host": "web-3", "pid": 7, "address": "10.0.0.7:1", "label": "", "idle_s": 2},
            "read-write lock",
        ]);
        assert_eq!(written, expected);
    }
}
