//! One run: starts a deployment and workers, causes faults, and checks the history that they all wrote.

use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use serde_json::json;

use super::crew::{Arguments, Crew};
use super::deployment::{Deployed, Place, Roles};
use super::dice::Dice;
use super::journal::{Journal, merged, now};
use super::kinds::{Kind, PERMITS, epochs, name_of_log};
use super::nemesis::{Fault, Nemesis};
use super::remote::Program;
use super::support::history::{self, Report};
use super::support::ms;
use super::worker::Job;

/// Short, so that faults outlast leases.
const LEASE: Duration = ms(2_000);
const RESPONSE: Duration = ms(1_000);
const WAITER_LEASE: Duration = ms(1_500);

/// How far a time limit may be exceeded, apart from delays of the machine itself.
const SLACK: Duration = ms(300);

/// A thread that only sleeps has to be this late before the history notes a delay of the machine.
const LATE: Duration = ms(20);

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) place: Place,
    pub(crate) seed: u64,
    pub(crate) load: Duration,
    pub(crate) faults: Vec<Fault>,
    pub(crate) kinds: Vec<Kind>,
    /// No lease is renewed, and each lasts this long or up to twice as long. By default only a few leases are fixed,
    /// and longer.
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) workers: usize,
    pub(crate) threads: usize,
    /// The file that keeps the history.
    pub(crate) log: Option<PathBuf>,
    /// The arguments with which this binary becomes a worker.
    pub(crate) arguments: Arguments,
    /// The program that is the worker, if it is another one.
    pub(crate) program: Option<Program>,
}

/// The result of a run.
pub(crate) struct Outcome {
    /// Problems with the run itself, such as a worker that failed.
    pub(crate) wrong: Vec<String>,
    /// The verdict of the checks on the history.
    pub(crate) report: Report,
    /// The most memory that a worker has had, in KiB.
    pub(crate) peak_memory: u64,
}

impl Outcome {
    pub(crate) fn is_fine(&self) -> bool {
        self.wrong.is_empty() && self.report.is_fine()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)?;
        writeln!(f, "\nmemory of a worker: up to {} KiB", self.peak_memory)?;
        for wrong in &self.wrong {
            writeln!(f, "\n{wrong}")?;
        }
        Ok(())
    }
}

impl Plan {
    pub(crate) fn new(place: Place, seed: u64, load: Duration, arguments: Arguments) -> Self {
        Self {
            place,
            seed,
            load,
            faults: Fault::of(place),
            kinds: match place {
                Place::Masters => vec![Kind::Red],
                _ => Kind::of_one_server(),
            },
            fixed_lease: None,
            workers: 3,
            threads: 4,
            log: None,
            arguments,
            program: None,
        }
    }

    pub(crate) fn run(&self) -> Outcome {
        let folder = tempfile::tempdir().expect("a folder");
        let mut deployed = Deployed::start(self.place, self.workers, LEASE);
        let began = now();
        let job = Job {
            number: 0,
            seed: self.seed,
            threads: self.threads,
            urls: Vec::new(),
            kinds: self.kinds.clone(),
            fixed_lease: self.fixed_lease,
            lease: LEASE,
            command_timeout: RESPONSE,
            waiter_lease: WAITER_LEASE,
            began,
            folder: folder.path().to_owned(),
        };
        // The run continues for a while after its last fault.
        let nanos = u64::try_from((self.load + ms(60_000)).as_nanos()).expect("not centuries");
        let path = folder.path().join("nemesis.jsonl");
        let journal = Journal::open(&path).expect("a file");
        journal.note(-1, "info", "setup", self.setup(&job, nanos));
        let mut crew = Crew::new(job, self.arguments, self.program.clone(), nanos);
        crew.prepare(&deployed, &journal);
        for worker in 0..self.workers {
            crew.start(deployed.opens(worker));
        }
        crew.wait_until_open();
        let mut wrong = Vec::new();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for processor in 0..thread::available_parallelism().map_or(1, NonZero::get) {
                let (journal, done) = (&journal, &done);
                scope.spawn(move || note_lateness(journal, done, processor));
            }
            if let Some(roles) = deployed.watched() {
                let (journal, done) = (&journal, &done);
                scope.spawn(move || note_promotions(journal, done, roles));
            }
            let went = panic::catch_unwind(AssertUnwindSafe(|| {
                wrong = self.play(&mut deployed, &mut crew, &journal);
            }));
            done.store(true, Ordering::SeqCst);
            if let Err(panic) = went {
                let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                wrong.push(format!("the run itself failed: {message}"));
            }
        });
        let mut files = vec![path];
        files.extend(crew.journals().iter().cloned());
        let peak_memory = crew.peak_memory;
        drop(crew);
        files.retain(|file| file.exists());
        let text = merged(&files).expect("the files of this run");
        if let Some(log) = &self.log {
            fs::write(log, &text).expect("a file for the history");
        }
        let report = history::check(history::read(text.as_bytes()));
        Outcome {
            wrong,
            report,
            peak_memory,
        }
    }

    fn setup(&self, job: &Job, nanos: u64) -> serde_json::Value {
        let kinds: Vec<_> = job.kinds.iter().map(|kind| kind.name()).collect();
        let mut permits = serde_json::Map::new();
        let semaphores = (0..epochs(nanos)).map(|n| Kind::Semaphore.name_of(n));
        for name in semaphores.chain([Kind::ExpirableSemaphore.name_of(0)]) {
            permits.insert(name, PERMITS.into());
        }
        let millis = |span: Duration| u64::try_from(span.as_millis()).expect("a short time");
        json!({
            "seed": self.seed,
            "lease_ms": millis(LEASE),
            "command_timeout_ms": millis(RESPONSE),
            "waiter_lease_ms": millis(WAITER_LEASE),
            "slack_ms": millis(SLACK),
            "kinds": kinds,
            "permits": permits,
            "deployment": self.place.in_history(),
            "durable": self.place.is_durable(),
            "guards": self.program.as_ref().is_none_or(|program| program.library().guards),
        })
    }

    /// Causes faults, leaves the workers undisturbed for a while, and ends them; returns what went wrong.
    fn play(&self, deployed: &mut Deployed, crew: &mut Crew, journal: &Journal) -> Vec<String> {
        // Let the workers lock undisturbed before the first fault.
        thread::sleep(ms(500));
        let peace = LEASE + RESPONSE;
        let until = Instant::now() + self.load.saturating_sub(peace + ms(500));
        Nemesis {
            deployed,
            crew,
            journal,
            dice: Dice::new(self.seed),
            faults: self.faults.clone(),
            lease: LEASE,
            count: 0,
        }
        .run(until);
        deployed.heal();
        journal.note(-1, "info", "heal", json!({ "until": "end" }));
        // The effects of the last fault end within this time.
        thread::sleep(peace);
        let wrong = crew.end(ms(10_000));
        journal.note(-1, "info", "ended", json!({}));
        // Give the leases of holds that were never released time to expire.
        thread::sleep(LEASE + SLACK);
        journal.note_logs(deployed);
        let keys_left: Vec<_> = deployed
            .keys()
            .into_iter()
            .filter(|key| !stays(key))
            .collect();
        journal.note(-1, "info", "left-behind", json!({ "keys": keys_left }));
        wrong
    }
}

/// Whether a key is meant to stay: token counters, semaphores, latches that nobody opened, logs, and keys that remember
/// a request for a while.
fn stays(key: &str) -> bool {
    let prefixes = [
        "redisson_lock_token:",
        "sem-",
        "latch-",
        "{latch-",
        "permits-",
    ];
    prefixes.iter().any(|prefix| key.starts_with(prefix))
        || key.contains(":request:")
        || name_of_log(key).is_some()
}

/// Notes as a fault when a server becomes a master, until there is one master again. Sentinels also replace a master that
/// is only slow, and may do so twice after one fault.
fn note_promotions(journal: &Journal, done: &AtomicBool, mut roles: Roles) {
    const TICK: Duration = ms(50);
    let mut looked = now();
    let mut known = roles.masters();
    while known.len() != 1 && !done.load(Ordering::SeqCst) {
        looked = now();
        known = roles.masters();
    }
    let mut begun = false;
    while !done.load(Ordering::SeqCst) {
        thread::sleep(TICK);
        let looks = now();
        let masters = roles.masters();
        let edge = |time, until: &str| {
            let value = json!({ "what": format!("{masters:?}"), "until": until, "divides": true });
            let edge = json!({ "process": -1, "type": "info", "f": "promotion", "value": value });
            journal.note_at(time, edge);
        };
        if !begun && masters.iter().any(|n| !known.contains(n)) {
            edge(looked, "begin");
            begun = true;
        }
        if begun && masters.len() == 1 {
            edge(now(), "end");
            begun = false;
            known = masters;
        }
        looked = looks;
    }
}

/// Notes how late a thread is that only sleeps, on one of the processors.
fn note_lateness(journal: &Journal, done: &AtomicBool, processor: usize) {
    const TICK: Duration = ms(5);
    // One processor of a virtual machine may stand still for a second while the others run, so bind the thread to its
    // processor.
    #[cfg(target_os = "linux")]
    {
        let mut only = nix::sched::CpuSet::new();
        let this_thread = nix::unistd::Pid::from_raw(0);
        only.set(processor)
            .and_then(|()| nix::sched::sched_setaffinity(this_thread, &only))
            .ok();
    }
    while !done.load(Ordering::SeqCst) {
        let due = Instant::now() + TICK;
        thread::sleep(TICK);
        let late = due.elapsed();
        if late > LATE {
            let late = u64::try_from(late.as_millis()).expect("not centuries");
            let value = json!({ "ms": late, "processor": processor });
            journal.note(-1, "info", "late", value);
        }
    }
}
