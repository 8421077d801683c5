//! Redisson itself, in a Java process that executes the commands of tests; see `tests/interop/src/Interop.java`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fmt, fs, thread};

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::time::{ClockId, clock_gettime};

use crate::support::{GENEROUS, locked, loosely, ms, skipped, unique, within};

/// The variable that selects a version of Redisson other than the one in `pom.xml`.
const VERSION: &str = "REDISSON_VERSION";

/// How long Maven may take to fetch Redisson and to build.
const BUILT_WITHIN: u64 = 180_000;

/// The monotonic clock that all processes share, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    let whole = u64::try_from(now.tv_sec()).expect("a moment");
    whole * 1_000_000_000 + u64::try_from(now.tv_nsec()).expect("a moment")
}

/// A Java process with Redisson clients, which ends with this process, or when dropped.
pub(crate) struct Java {
    child: Mutex<Child>,
    orders: Mutex<ChildStdin>,
    /// For each order without a final answer, where its lines go.
    waiting: Arc<Mutex<HashMap<u64, Sender<String>>>>,
    next: AtomicU64,
    /// The major and minor version of Redisson.
    version: (u32, u32),
}

/// The answer to an order: lines of which the last begins with `ok`, `busy` or `error`.
pub(crate) struct Answer {
    order: String,
    lines: Receiver<String>,
}

impl Java {
    /// A process that tests use at the same time. `None` without Java or Maven, which is reported once.
    pub(crate) fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Java>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// A process of its own, for a test that kills or loads it.
    pub(crate) fn start() -> Option<Self> {
        let Build { classes, libraries } = built()?;
        let mut child = Command::new("java")
            // Fast startup matters more than fast code here.
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-XX:-UsePerfData", "-cp"])
            .arg(format!("{}:{libraries}", classes.display()))
            .arg("Interop")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("Java runs, since Maven does");
        let waiting: Arc<Mutex<HashMap<u64, Sender<String>>>> = Arc::default();
        let mut says = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready = says.next().and_then(Result::ok).unwrap_or_default();
        let numbers = ready.strip_prefix("ready ").map(|version| {
            let mut numbers = version.split('.').map_while(|number| number.parse().ok());
            (numbers.next(), numbers.next())
        });
        let Some((Some(major), Some(minor))) = numbers else {
            panic!("Java says {ready:?}");
        };
        let answers = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in says.map_while(Result::ok) {
                let (id, rest) = line.split_once(' ').expect("an answer");
                let is_last = !rest.starts_with("turn ");
                let Ok(id) = id.parse::<u64>() else {
                    panic!("Java says {line:?}");
                };
                let mut waiting = locked(&answers);
                if let Some(caller) = waiting.get(&id) {
                    // The receiver may be dropped before the answer comes.
                    caller.send(rest.to_owned()).ok();
                }
                if is_last {
                    waiting.remove(&id);
                }
            }
            locked(&answers).clear();
        });
        Some(Self {
            orders: Mutex::new(child.stdin.take().expect("it is piped")),
            child: Mutex::new(child),
            waiting,
            next: AtomicU64::new(0),
            version: (major, minor),
        })
    }

    /// Sends an order to a thread of the Java process. Each thread executes its orders one after another.
    pub(crate) fn order(&self, thread: &str, order: &str) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, lines) = unbounded();
        locked(&self.waiting).insert(id, sender);
        // A process that was killed does not answer; the caller notices that.
        writeln!(locked(&self.orders), "{id} {thread} {order}").ok();
        Answer {
            order: order.to_owned(),
            lines,
        }
    }

    /// Sends an order and waits for its result.
    #[track_caller]
    pub(crate) fn does(&self, thread: &str, order: &str) -> String {
        self.order(thread, order).ok()
    }

    /// Opens a client, whose name is also the name of a thread.
    #[track_caller]
    pub(crate) fn open(&self, url: &str) -> Theirs<'_> {
        self.open_with(url, 30_000, "-")
    }

    #[track_caller]
    pub(crate) fn open_with(&self, url: &str, watchdog_ms: u64, prefix: &str) -> Theirs<'_> {
        let name = unique("java");
        self.does(&name, &format!("open {name} {url} {watchdog_ms} {prefix}"));
        Theirs { java: self, name }
    }

    /// Whether that thread waits for a message.
    pub(crate) fn is_parked(&self, thread: &str) -> bool {
        self.does(&unique("look"), &format!("parked {thread}")) == "true"
    }

    /// Whether the process runs a Redisson older than this version.
    pub(crate) fn is_before(&self, major: u32, minor: u32) -> bool {
        self.version < (major, minor)
    }

    pub(crate) fn kill(&self) {
        let mut child = locked(&self.child);
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client of the Java process, which is shut down on drop.
pub(crate) struct Theirs<'a> {
    java: &'a Java,
    name: String,
}

impl Deref for Theirs<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Theirs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Theirs<'_> {
    fn drop(&mut self) {
        self.java.order(&unique("end"), &format!("shut {self}"));
    }
}

impl Answer {
    /// Waits for the answer; returns its result.
    #[track_caller]
    pub(crate) fn ok(&self) -> String {
        let last = self.last();
        let result = last.strip_prefix("ok");
        result
            .unwrap_or_else(|| panic!("`{}`: {last}", self.order))
            .trim()
            .to_owned()
    }

    /// Waits for the last line of an answer that has one line.
    #[track_caller]
    pub(crate) fn last(&self) -> String {
        let limit = 2 * loosely(GENEROUS);
        let last = self.lines.recv_timeout(limit);
        last.unwrap_or_else(|_| panic!("Java does not answer `{}`", self.order))
    }

    /// Whether the order has succeeded or failed.
    pub(crate) fn is_done(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Waits for the end; returns all lines but the last. `idle` is called while no line comes.
    #[track_caller]
    pub(crate) fn lines(self, limit: Duration, idle: impl Fn()) -> Vec<String> {
        let mut lines = Vec::new();
        let until = Instant::now() + limit;
        loop {
            let Ok(line) = self.lines.recv_timeout(ms(200)) else {
                assert!(Instant::now() < until, "Java goes on: `{}`", self.order);
                idle();
                continue;
            };
            match line.split(' ').next() {
                Some("ok") => return lines,
                Some("turn") => lines.push(line),
                _ => panic!("`{}`: {line}", self.order),
            }
        }
    }
}

/// The class path of `java`.
#[derive(Clone)]
struct Build {
    classes: PathBuf,
    libraries: String,
}

/// Builds once per process, and runs Maven only if the inputs changed since the last build.
fn built() -> Option<Build> {
    static BUILT: OnceLock<Option<Build>> = OnceLock::new();
    let build = || match build() {
        Ok(build) => Some(build),
        Err(why) => {
            skipped("interop, beside Redisson", &why);
            None
        }
    };
    BUILT.get_or_init(build).clone()
}

/// Builds below Cargo's target folder, so that nothing is written beside the sources.
fn build() -> Result<Build, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let version = env::var(VERSION).ok();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("interop")
        .join(version.as_deref().unwrap_or("default"));
    let read = |path: PathBuf| fs::read_to_string(&path).map_err(|err| format!("{path:?}: {err}"));
    let inputs = read(source.join("pom.xml"))? + &read(source.join("src/Interop.java"))?;
    let stamp = out.join("built-from");
    if fs::read_to_string(&stamp).is_ok_and(|built| built == inputs) {
        let classpath = read(out.join("classpath"))?;
        // Maven's cache may have been emptied.
        if classpath.split(':').all(|jar| Path::new(jar).exists()) {
            return Ok(Build {
                classes: out.join("classes"),
                libraries: classpath,
            });
        }
    }
    let mut maven = Command::new("mvn");
    maven
        .args(["-q", "-B", "compiler:compile", "dependency:build-classpath"])
        .arg(format!("-Dout={}", out.display()))
        .current_dir(&source);
    if let Some(version) = &version {
        maven.arg(format!("-Dredisson.version={version}"));
    }
    run(&mut maven)?;
    fs::write(stamp, inputs).map_err(|err| err.to_string())?;
    Ok(Build {
        classes: out.join("classes"),
        libraries: read(out.join("classpath"))?,
    })
}

/// Runs Maven. Sources that do not compile fail the test; a missing Maven or network only skips it.
fn run(maven: &mut Command) -> Result<(), String> {
    let mut child = maven
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|err| format!("mvn: {err}"))?;
    let mut out = child.stdout.take().expect("it is piped");
    let said = thread::spawn(move || {
        let mut said = String::new();
        out.read_to_string(&mut said).ok();
        said
    });
    let mut status = None;
    within(ms(BUILT_WITHIN), || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    child.kill().ok();
    child.wait().ok();
    let said = said.join().unwrap_or_default();
    assert!(!said.contains("COMPILATION ERROR"), "{said}");
    match status {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(said.lines().next().unwrap_or("mvn has failed").to_owned()),
        None => Err("mvn has not ended in time".to_owned()),
    }
}
