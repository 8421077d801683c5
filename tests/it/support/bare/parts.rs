//! Parts of tests that run in a process of their own: this binary again, for one test that is ignored otherwise.

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

/// The name by which the harness knows `test`.
pub(crate) fn name_of<T: Fn()>(_: T) -> &'static str {
    let (_binary, name) = type_name::<T>().split_once("::").expect("a path");
    name
}

/// This binary again, for `test` alone, which finds out by [`given`] what it is given.
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

/// Runs the rest of `test` in a process in which nothing else goes on.
pub(crate) fn alone(test: impl Fn(), body: impl FnOnce()) {
    alone_with(test, &[], body);
}

/// The same with more in its environment.
pub(crate) fn alone_with(test: impl Fn(), more: &[(&str, &str)], body: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return body();
    }
    // Not `--exact`: the harness has a longer name for a timed one.
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

/// A part that runs; killed when dropped.
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

    /// The next that it says, which has to be `what` and perhaps more; returns what follows.
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

    /// Gives it the line that [`order`] waits for.
    pub(crate) fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").expect("the part reads");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid is an i32");
        kill(Pid::from_raw(pid), signal).expect("our child takes our signals");
    }

    /// SIGSTOP; returns once it has come.
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

    /// Waits until it has ended by itself, without an error. It may have much to do first, on a machine that has as well.
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
        // Also if it is stopped.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Inside
// ---------------------------------------------------------------------------------------------------------------------

/// Before what a part says: the harness writes to the same stream.
const PREFIX: &str = "part: ";

/// What this part was given; `None` if somebody runs ignored tests by hand. From here on it ends with the thread that
/// started it.
pub(crate) fn given<const N: usize>() -> Option<[String; N]> {
    let given = env::var(GIVEN).ok()?;
    // The end of its input would not do: it may be stopped, and does not read then.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("a signal that exists");
    let given: Vec<_> = given.split('\n').map(str::to_owned).collect();
    Some(given.try_into().expect("as many as were given"))
}

/// Says it to the test that has started this part.
pub(crate) fn say(what: &str) {
    let mut out = stdout().lock();
    writeln!(out, "\n{PREFIX}{what}").expect("the test listens");
    out.flush().expect("the test listens");
}

/// Waits for the next line that the test gives to this part.
pub(crate) fn order() -> String {
    let line = stdin().lines().next();
    line.expect("the test goes on").expect("text")
}
