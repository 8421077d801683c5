//! Parts of a test that need a process of their own: this binary runs again, for one test that is normally ignored.

use std::any::type_name;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::lateness::{KNOWN, lateness};
use super::wait::{GENEROUS, eventually, within};

const GIVEN: &str = "REDLATCH_TEST_GIVEN";
const ALONE: &str = "REDLATCH_TEST_ALONE";

/// The name of `test` in the test harness.
pub(crate) fn name_of<T: Fn()>(_: T) -> &'static str {
    let (_binary, name) = type_name::<T>().split_once("::").expect("a path");
    name
}

/// A command that runs this binary again for `test` alone, which reads its arguments by [`given`].
pub(crate) fn rerun(test: impl Fn(), given: &[&str]) -> Command {
    let mut command = this_binary();
    command
        .args([name_of(test), "--exact"])
        .env(GIVEN, given.join("\n"));
    command
}

fn this_binary() -> Command {
    let mut command = Command::new(env::current_exe().expect("a binary"));
    command
        .args(["--include-ignored", "--nocapture"])
        .stdin(Stdio::null());
    command
}

/// Runs `body`, the rest of `test`, in a process that runs no other test.
pub(crate) fn alone(test: impl Fn(), body: impl FnOnce()) {
    alone_with(test, &[], body);
}

/// [`alone`] with additional environment variables.
pub(crate) fn alone_with(test: impl Fn(), more: &[(&str, &str)], body: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return body();
    }
    // Not `--exact`: a `timed!` test has a longer name in the harness.
    let run = this_binary()
        .arg(name_of(test))
        .env(ALONE, "1")
        .env(KNOWN, lateness().as_millis().to_string())
        .envs(more.iter().copied())
        .output()
        .expect("this binary runs again");
    let [out, err] = [&run.stdout, &run.stderr].map(|said| String::from_utf8_lossy(said));
    let passed = run.status.success() && out.contains(" 1 passed");
    assert!(passed, "{out}\n{err}");
}

/// A part in its process, which is killed on drop.
pub(crate) struct Part {
    child: Child,
    says: BufReader<ChildStdout>,
    orders: ChildStdin,
}

impl Part {
    pub(crate) fn start(test: impl Fn(), given: &[&str]) -> Self {
        let mut child = rerun(test, given)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary runs again");
        Self {
            says: BufReader::new(child.stdout.take().expect("it is piped")),
            orders: child.stdin.take().expect("it is piped"),
            child,
        }
    }

    /// Waits for the part's next message, which must begin with `what`; returns the rest of it.
    #[track_caller]
    pub(crate) fn says(&mut self, what: &str) -> String {
        let mut lines = (&mut self.says).lines().map(|line| line.expect("text"));
        let said = lines.find_map(|line| Some(line.strip_prefix(PREFIX)?.to_owned()));
        let said = said.unwrap_or_else(|| panic!("it ended before it said {what:?}"));
        let rest = said.strip_prefix(what);
        rest.unwrap_or_else(|| panic!("{said:?} instead of {what:?}"))
            .trim()
            .to_owned()
    }

    /// Sends the line that [`order`] waits for.
    pub(crate) fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("the part reads");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid is an i32");
        kill(Pid::from_raw(pid), signal).expect("our child takes our signals");
    }

    /// Sends SIGSTOP and waits until the process is stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        if Path::new(&stat).exists() {
            eventually("the process is stopped", || {
                fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
            });
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our child can be killed");
        self.child.wait().expect("it is our child");
    }

    /// Waits until the part has exited successfully. The generous limit allows for a busy machine.
    #[track_caller]
    pub(crate) fn ends(&mut self) {
        let mut status = None;
        let ended = within(6 * GENEROUS, || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        assert!(ended, "the process does not end");
        assert!(status.is_some_and(|status| status.success()));
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Unlike SIGTERM, SIGKILL also ends a stopped process.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Inside
// ---------------------------------------------------------------------------------------------------------------------

/// Marks the messages of a part: the harness writes to the same stream.
const PREFIX: &str = "part: ";

/// The arguments of this part; `None` if somebody runs the ignored test by hand. From here on the process ends together
/// with the thread that started it.
pub(crate) fn given<const N: usize>() -> Option<[String; N]> {
    let given = env::var(GIVEN).ok()?;
    // Waiting for the end of stdin would not do, because a stopped process does not read.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("a signal that exists");
    let given: Vec<_> = given.split('\n').map(str::to_owned).collect();
    Some(given.try_into().expect("as many as were given"))
}

/// Sends a message to the test that started this part.
pub(crate) fn say(what: &str) {
    let mut out = stdout().lock();
    writeln!(out, "\n{PREFIX}{what}").expect("the test listens");
    out.flush().expect("the test listens");
}

/// Waits for the next line from the test.
pub(crate) fn order() -> String {
    let line = stdin().lines().next();
    line.expect("the test goes on").expect("text")
}
