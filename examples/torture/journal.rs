//! The history of a run: one JSON object per line, with the time of the clock that all processes of a machine share.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::deployment::Deployed;

/// The current `CLOCK_MONOTONIC` time in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has it");
    let [seconds, nanos] = [time.tv_sec(), time.tv_nsec()].map(i64::cast_unsigned);
    seconds * 1_000_000_000 + nanos
}

/// The part of the history that one process writes.
///
/// Each line is written at once and by a single call, so a process that is killed leaves whole lines.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Writes an event that happens now.
    pub(crate) fn note(&self, process: i64, kind: &str, f: &str, value: Value) {
        self.note_with(process, kind, f, value, None);
    }

    /// Like [`note`](Self::note), with an error.
    pub(crate) fn note_with(
        &self,
        process: i64,
        kind: &str,
        f: &str,
        value: Value,
        error: Option<String>,
    ) {
        let mut line = json!({ "process": process, "type": kind, "f": f, "value": value });
        if let Some(error) = error {
            line["error"] = error.into();
        }
        self.note_at(now(), line);
    }

    /// An event that another process dated.
    pub(crate) fn note_at(&self, time: u64, mut event: Value) {
        event["time"] = time.into();
        let line = format!("{event}\n");
        (&self.0).write_all(line.as_bytes()).expect("a disk");
    }

    /// Writes the logs of guarded writes that the servers keep, as they are now.
    pub(crate) fn note_logs(&self, deployed: &Deployed) {
        for (name, entries) in deployed.logs() {
            let value = json!({ "name": name, "entries": entries });
            self.note(-1, "info", "written", value);
        }
    }
}

/// Merges these files into the whole history. A last line that was cut off is left out.
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
