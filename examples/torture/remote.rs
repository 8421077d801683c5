//! A worker that is a program around any lock library: it answers one JSON line for each command, as `tests/peers/README.md`
//! describes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use crossbeam_channel::{Sender, bounded};
use serde_json::{Value, json};

use super::deployment::Place;
use super::kinds::Kind;
use super::support::locked;

/// How long a program may take to start and to describe its library: a Java process takes seconds on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// A library as its answer to `describe` has it.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) places: Vec<Place>,
    /// Whether the library renews the lease of a hold.
    pub(crate) renews: bool,
    /// Whether the library rejects a write of a holder that has lost the lock.
    pub(crate) guards: bool,
}

/// The command that starts a worker, and its library.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    command: String,
    library: Library,
}

impl Program {
    /// Starts the command once to have its library described.
    pub(crate) fn describe(command: &str) -> Result<Self, String> {
        let mut child = spawn(command).map_err(|err| err.to_string())?;
        let line = Line::to(&mut child);
        let described = line.ask_within(json!({ "op": "describe" }), STARTED_WITHIN);
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(|err| err.to_string())?;
        let described = described.ok_or_else(|| format!("`{command}` does not describe itself"))?;
        let library = Library::of(&described).map_err(|err| format!("{err} in {described}"))?;
        Ok(Self {
            command: command.to_owned(),
            library,
        })
    }

    pub(crate) fn library(&self) -> &Library {
        &self.library
    }

    pub(crate) fn spawn(&self) -> Child {
        spawn(&self.command).expect("the worker has started before")
    }
}

/// `exec`, so that a signal to the child reaches the program itself.
fn spawn(command: &str) -> std::io::Result<Child> {
    Command::new("sh")
        .args(["-c", &format!("exec {command}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

impl Library {
    fn of(described: &Value) -> Result<Self, String> {
        let text = |field: &str| -> Result<String, String> {
            let text = described[field].as_str().map(str::to_owned);
            text.ok_or_else(|| format!("no {field}"))
        };
        let names = |field: &str| -> Result<Vec<&str>, String> {
            let names = described[field].as_array();
            let names = names.ok_or_else(|| format!("no {field}"))?;
            Ok(names.iter().filter_map(Value::as_str).collect())
        };
        // Kinds and places of a later version of the driver are ignored.
        let place = |name: &&str| {
            let mut all = Place::ALL.iter();
            all.find(|(_, known, _)| known == name).map(|entry| entry.0)
        };
        Ok(Self {
            name: text("library")?,
            version: text("version")?,
            kinds: names("kinds")?
                .into_iter()
                .filter_map(Kind::named)
                // The protocol has neither permits nor latches.
                .filter(|kind| kind.can_be_forced())
                .collect(),
            places: names("deployments")?.iter().filter_map(place).collect(),
            renews: described["renews"] == true,
            guards: described["guards"] == true,
        })
    }
}

/// The largest memory that a process has had so far, in KiB.
pub(crate) fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The commands to one program, and its answers.
///
/// Invariant: `waiting` is `None` once the program has closed its output, so that no later command waits for an answer.
pub(crate) struct Line {
    input: Mutex<Option<ChildStdin>>,
    waiting: Mutex<Option<HashMap<u64, Sender<Value>>>>,
    last_id: AtomicU64,
}

impl Line {
    /// Takes the standard input and output of `child`.
    pub(crate) fn to(child: &mut Child) -> Arc<Self> {
        let output = child.stdout.take().expect("a pipe");
        let line = Arc::new(Self {
            input: Mutex::new(child.stdin.take()),
            waiting: Mutex::new(Some(HashMap::new())),
            last_id: AtomicU64::new(0),
        });
        let reading = Arc::clone(&line);
        thread::spawn(move || reading.read(output));
        line
    }

    fn read(&self, output: ChildStdout) {
        for text in BufReader::new(output)
            .lines()
            .map_while(std::io::Result::ok)
        {
            // A killed program may leave half a line.
            let Ok(answer) = serde_json::from_str::<Value>(&text) else {
                continue;
            };
            let Some(id) = answer["id"].as_u64() else {
                continue;
            };
            let caller = locked(&self.waiting)
                .as_mut()
                .and_then(|all| all.remove(&id));
            if let Some(caller) = caller {
                // The send fails only if the caller has a time limit and has left.
                caller.send(answer).ok();
            }
        }
        locked(&self.waiting).take();
    }

    /// Sends a command and waits for its answer; `None` once the program has ended.
    pub(crate) fn ask(&self, command: Value) -> Option<Value> {
        self.ask_within(command, Duration::MAX)
    }

    fn ask_within(&self, mut command: Value, limit: Duration) -> Option<Value> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        command["id"] = id.into();
        let (sender, answer) = bounded(1);
        locked(&self.waiting).as_mut()?.insert(id, sender);
        {
            let mut input = locked(&self.input);
            // Each thread has one command under way, so the pipe of a stopped program never fills up.
            let text = format!("{command}\n");
            input.as_mut()?.write_all(text.as_bytes()).ok()?;
        }
        if limit == Duration::MAX {
            return answer.recv().ok();
        }
        answer.recv_timeout(limit).ok()
    }

    /// The end of its input tells the program to end.
    pub(crate) fn close(&self) {
        locked(&self.input).take();
    }
}
