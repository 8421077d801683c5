//! The worker processes, which are started, killed, replaced, stopped and continued here.

use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlatch::Client;
use serde_json::json;

use crate::deployment::Deployed;
use crate::journal::Journal;
use crate::kinds::{COUNT, Kind, PERMITS, epoch, epochs, latches};
use crate::support::{eventually, ms, within};
use crate::worker::Job;

/// The arguments with which this binary becomes a worker, together with its environment.
pub(crate) type Arguments = &'static [&'static str];

pub(crate) struct Crew {
    /// The job of the next worker.
    job: Job,
    arguments: Arguments,
    /// The longest time that the run may take, in nanoseconds.
    nanos: u64,
    members: Vec<Member>,
    journals: Vec<PathBuf>,
}

struct Member {
    number: i64,
    urls: Vec<String>,
    child: Child,
    /// The worker's standard input. Closing it tells the worker to end.
    input: Option<ChildStdin>,
}

impl Crew {
    /// `job` is the template of every worker's job; its number and URLs are replaced.
    pub(crate) fn new(job: Job, arguments: Arguments, nanos: u64) -> Self {
        Self {
            job,
            arguments,
            nanos,
            members: Vec::new(),
            journals: Vec::new(),
        }
    }

    pub(crate) fn start(&mut self, urls: Vec<String>) {
        let member = self.member(urls);
        self.members.push(member);
    }

    fn member(&mut self, urls: Vec<String>) -> Member {
        self.job.number += 1;
        let job = Job {
            urls: urls.clone(),
            ..self.job.clone()
        };
        let mut command = Command::new(env::current_exe().expect("a binary"));
        command
            .args(self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        job.give(&mut command);
        let mut child = command.spawn().expect("this binary runs again");
        self.journals.push(job.journal());
        Member {
            number: job.number,
            urls,
            input: child.stdin.take(),
            child,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.job.kinds
    }

    /// The number of the worker at this index in the history.
    pub(crate) fn number(&self, at: usize) -> i64 {
        self.members[at].number
    }

    pub(crate) fn kill(&mut self, at: usize) {
        let child = &mut self.members[at].child;
        child.kill().expect("SIGKILL");
        child.wait().expect("a killed child ends");
    }

    /// Starts a new worker at the index of one that was killed.
    pub(crate) fn replace(&mut self, at: usize) {
        let urls = self.members[at].urls.clone();
        self.members[at] = self.member(urls);
    }

    pub(crate) fn stop(&self, at: usize) {
        self.signal(at, Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.members[at].child.id());
        eventually("the worker is stopped", || {
            fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
        });
    }

    pub(crate) fn cont(&self, at: usize) {
        self.signal(at, Signal::SIGCONT);
    }

    fn signal(&self, at: usize, signal: Signal) {
        let pid = i32::try_from(self.members[at].child.id()).expect("a pid is an i32");
        kill(Pid::from_raw(pid), signal).expect("our child takes our signals");
    }

    /// Creates the semaphores and latches that the workers expect, and notes them in the history.
    pub(crate) fn prepare(&self, deployed: &Deployed, journal: &Journal) {
        let client = deployed.client().expect("the servers are up");
        if self.kinds().contains(&Kind::Latch) {
            for name in latches(self.nanos) {
                client
                    .latch(&name)
                    .try_set_count(COUNT)
                    .expect("the servers are up");
                let value = json!({ "kind": "latch", "name": name, "count": COUNT });
                journal.note(-1, "ok", "set", value);
            }
        }
        self.set_permits(&client, 0).expect("the servers are up");
    }

    /// Creates again the semaphores that a server has lost, from the next epoch on: workers may still hold permits of
    /// the current one.
    pub(crate) fn restore(&self, deployed: &Deployed) {
        let next = epoch(self.job.began) + 1;
        let done = within(ms(5_000), || {
            deployed
                .client()
                .and_then(|client| self.set_permits(&client, next))
                .is_ok()
        });
        assert!(done, "the servers are up again");
    }

    fn set_permits(&self, client: &Client, first: u64) -> redlatch::Result<()> {
        if self.kinds().contains(&Kind::Semaphore) {
            for n in first..epochs(self.nanos) {
                client
                    .semaphore(Kind::Semaphore.name_of(n))
                    .try_set_permits(PERMITS)?;
            }
        }
        if self.kinds().contains(&Kind::ExpirableSemaphore) {
            let name = Kind::ExpirableSemaphore.name_of(0);
            client.expirable_semaphore(name).try_set_permits(PERMITS)?;
        }
        Ok(())
    }

    /// Tells all workers to end and waits for them; returns what went wrong.
    pub(crate) fn end(&mut self, limit: Duration) -> Vec<String> {
        for member in &mut self.members {
            member.input = None;
        }
        let mut wrong = Vec::new();
        for member in &mut self.members {
            let mut status = None;
            within(limit, || {
                status = member.child.try_wait().expect("our child");
                status.is_some()
            });
            match status {
                Some(status) if status.success() => {}
                Some(status) => wrong.push(format!("worker {} ended by {status}", member.number)),
                None => wrong.push(format!("worker {} does not end", member.number)),
            }
        }
        wrong
    }

    pub(crate) fn journals(&self) -> &[PathBuf] {
        &self.journals
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.child.kill().ok();
            member.child.wait().ok();
        }
    }
}
