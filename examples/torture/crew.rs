//! The workers: processes that are killed, replaced, stopped and let go on.
//!
//! A worker is this binary, which works by itself, or a program that is told what to do.

use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlatch::Client;
use serde_json::{Value, json};

use super::deployment::Deployed;
use super::journal::Journal;
use super::kinds::{COUNT, Kind, PERMITS, epoch, epochs, latches};
use super::player::Players;
use super::remote::{Line, Program, peak_memory};
use super::support::{eventually, ms, within};
use super::worker::Job;

/// The arguments with which this binary becomes a worker, together with its environment.
pub(crate) type Arguments = &'static [&'static str];

/// How long remote workers may take to open their servers: Java processes take seconds on a busy machine.
const OPENED_WITHIN: Duration = ms(60_000);

pub(crate) struct Crew {
    /// The job of the next worker.
    job: Job,
    arguments: Arguments,
    /// The program that the workers are, if not this binary.
    program: Option<Program>,
    /// How long the run takes at most, in nanoseconds.
    nanos: u64,
    members: Vec<Member>,
    journals: Vec<PathBuf>,
    /// The most memory that any worker has had, in KiB.
    pub(crate) peak_memory: u64,
}

struct Member {
    number: i64,
    opens: Opens,
    child: Child,
    /// A worker of this binary stops at the end of its input.
    input: Option<ChildStdin>,
    /// The threads of another program.
    players: Option<Players>,
}

/// The servers that a worker opens.
#[derive(Clone, Debug)]
pub(crate) struct Opens {
    pub(crate) urls: Vec<String>,
    /// These servers, for libraries that do not know such URLs.
    pub(crate) servers: Value,
}

impl Crew {
    /// `job` is that of each, but for its number and URLs.
    pub(crate) fn new(
        job: Job,
        arguments: Arguments,
        program: Option<Program>,
        nanos: u64,
    ) -> Self {
        Self {
            job,
            arguments,
            program,
            nanos,
            members: Vec::new(),
            journals: Vec::new(),
            peak_memory: 0,
        }
    }

    pub(crate) fn start(&mut self, opens: Opens) {
        let member = self.member(opens);
        self.members.push(member);
    }

    /// Waits until every worker has opened its servers, which this binary does at once.
    pub(crate) fn wait_until_open(&self) {
        let players = || {
            self.members
                .iter()
                .filter_map(|member| member.players.as_ref())
        };
        let are_open = within(OPENED_WITHIN, || players().all(Players::are_open));
        let errors: Vec<_> = players().filter_map(Players::open_error).collect();
        assert!(are_open, "a worker does not open its servers: {errors:?}");
    }

    /// Whether the workers are another program than this binary.
    pub(crate) fn is_remote(&self) -> bool {
        self.program.is_some()
    }

    fn member(&mut self, opens: Opens) -> Member {
        self.job.number += 1;
        let job = Job {
            urls: opens.urls.clone(),
            ..self.job.clone()
        };
        self.journals.push(job.journal());
        if let Some(program) = &self.program {
            let mut child = program.spawn();
            let line = Line::to(&mut child);
            let (number, library) = (job.number, program.library().clone());
            let players = Players::start(line, library, job, opens.servers.clone());
            return Member {
                number,
                opens,
                child,
                input: None,
                players: Some(players),
            };
        }
        let mut command = Command::new(env::current_exe().expect("a binary"));
        command
            .args(self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        job.give(&mut command);
        let mut child = command.spawn().expect("this binary runs again");
        Member {
            number: job.number,
            opens,
            input: child.stdin.take(),
            child,
            players: None,
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
        self.measure_memory();
        let child = &mut self.members[at].child;
        child.kill().expect("SIGKILL");
        child.wait().expect("a killed child ends");
    }

    /// Starts a new worker at the index of one that was killed.
    pub(crate) fn replace(&mut self, at: usize) {
        let opens = self.members[at].opens.clone();
        self.members[at] = self.member(opens);
    }

    fn measure_memory(&mut self) {
        let peaks = self
            .members
            .iter()
            .filter_map(|member| peak_memory(member.child.id()));
        self.peak_memory = peaks.fold(self.peak_memory, u64::max);
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
        self.measure_memory();
        for member in &mut self.members {
            member.input = None;
            if let Some(players) = &member.players {
                players.finish();
            }
        }
        let mut wrong = Vec::new();
        for member in &mut self.members {
            if let Some(players) = &member.players {
                if !within(limit, || players.have_finished()) {
                    wrong.push(format!("threads of worker {} do not end", member.number));
                }
                players.close();
            }
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
