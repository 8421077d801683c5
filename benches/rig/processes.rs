//! Child processes that run the bench's own binary.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;

use crate::support::Server;

/// The environment variable that tells a child process its task.
pub(crate) const CHILD: &str = "REDLATCH_BENCH_CHILD";

/// A child process that reads orders and writes replies, one line each.
pub(crate) struct Process {
    child: Child,
    replies: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn new(task: impl Display) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            // The arguments say whether this run measures.
            .args(std::env::args().skip(1))
            .env(CHILD, task.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let replies = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, replies }
    }

    pub(crate) fn order(&mut self, what: impl Display) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{what}").expect("it listens");
    }

    pub(crate) fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("it answers");
        line
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait().expect("it is ours");
        assert!(ended.success() || thread::panicking(), "{ended}");
    }
}

/// A process in which one thread acquires and releases a lock again and again.
pub(crate) struct Hammer(Process);

impl Hammer {
    pub(crate) fn new(server: &Server, name: &str, tenure: Duration, work: Duration) -> Self {
        let (tenure, work) = (tenure.as_micros(), work.as_micros());
        Self(Process::new(format!(
            "{} {name} {tenure} {work}",
            server.url()
        )))
    }

    pub(crate) fn begin(&mut self, span: Duration) {
        self.0.order(span.as_millis());
    }

    /// Returns the number of holds and the longest wait.
    pub(crate) fn end(&mut self) -> (u32, Duration) {
        let line = self.0.reply();
        let (holds, nanos) = line.trim().split_once(' ').expect("two numbers");
        let nanos = nanos.parse().expect("nanoseconds");
        (holds.parse().expect("holds"), Duration::from_nanos(nanos))
    }
}

/// Runs in the process of a [`Hammer`].
///
/// Each line on its input is a number of milliseconds, for which it locks. The reply is the number of holds and the
/// longest wait in nanoseconds.
pub(crate) fn hammer(task: &str) {
    let [url, name, tenure, work] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("not a task: {task}");
    };
    let micros = |text: &str| Duration::from_micros(text.parse().expect("microseconds"));
    let (tenure, work) = (micros(tenure), micros(work));
    let client = Client::open(super::config(url).tenure(tenure)).expect("the server is up");
    let lock = client.reentrant_lock(name);
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let span = Duration::from_millis(line.parse().expect("milliseconds"));
        let (mut holds, mut longest) = (0_u32, Duration::ZERO);
        let start = Instant::now();
        let mut asked = start;
        while asked.duration_since(start) < span {
            let guard = lock.lock().expect("a grant");
            longest = longest.max(asked.elapsed());
            super::work(work);
            drop(guard);
            holds += 1;
            asked = Instant::now();
        }
        assert_eq!(client.stats().lost, 0);
        println!("{holds} {}", longest.as_nanos());
    }
}
