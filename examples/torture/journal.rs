//! What happened, one JSON object a line, on the clock that all processes of a machine share.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::deployment::Deployed;

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has it");
    let [seconds, nanos] = [time.tv_sec(), time.tv_nsec()].map(i64::cast_unsigned);
    seconds * 1_000_000_000 + nanos
}

/// One process's part of the history.
///
/// Each line is written at once and by a single call, so that a process that is killed leaves whole lines.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Something that happens now.
    pub(crate) fn note(&self, process: i64, kind: &str, f: &str, value: Value) {
        self.note_with(process, kind, f, value, None);
    }

    /// The same with what was said against it.
    pub(crate) fn note_with(
        &self,
        process: i64,
        kind: &str,
        f: &str,
        value: Value,
        error: Option<String>,
    ) {
        let mut line = json!({
            "process": process, "type": kind, "f": f, "value": value, "time": now(),
        });
        if let Some(error) = error {
            line["error"] = error.into();
        }
        let line = format!("{line}\n");
        (&self.0).write_all(line.as_bytes()).expect("a disk");
    }

    /// What servers have kept of guarded writes until now.
    pub(crate) fn note_logs(&self, deployed: &Deployed) {
        for (name, entries) in deployed.logs() {
            let value = json!({ "name": name, "entries": entries });
            self.note(-1, "info", "written", value);
        }
    }
}

/// The whole history: the lines of these files, without last ones that are broken off.
pub(crate) fn merged<P: AsRef<Path>>(files: &[P]) -> io::Result<String> {
    let mut all = String::new();
    for file in files {
        let text = std::fs::read(file)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n');
        let whole = &text[..whole.map_or(0, |at| at + 1)];
        all.push_str(&String::from_utf8_lossy(whole));
    }
    Ok(all)
}
