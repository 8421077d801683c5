//! Runs processes that use every kind of lock while faults hit servers, network and processes, and checks their
//! history.
//!
//! ```text
//! cargo run --release --all-features --example torture -- --minutes 10 --seed 42
//!     --seconds 20                   instead of minutes; divided among the deployments
//!     --deployment one,sentinel      of: one, sentinel, cluster, masters; all of them by default, one after another
//!     --faults kill-server,proxy-cut those only; or none
//!     --kinds fair,rwlock            those only
//!     --fixed-lease 100              no lease is renewed, and they are so many milliseconds or up to twice as many
//!     --log FILE                     keep the history, one JSON object a line
//!     --check FILE                   run nothing, and check a history that was kept
//!     --worker COMMAND               another program is the worker, of any library: see tests/peers/README.md
//!     --row FILE                     append the run as a line of JSON, to compare libraries
//! ```
//!
//! The seed determines all choices. Exits with 1 if anything was wrong, and prints the command that repeats the run.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::fs::File;
use std::io::BufReader;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use deployment::Place;
use kinds::Kind;
use nemesis::Fault;
use remote::Program;
use run::Plan;
use support::history;
use worker::Job;

mod crew;
mod deployment;
#[path = "../../tests/it/support/dice.rs"]
mod dice;
mod holds;
mod journal;
mod kinds;
mod nemesis;
mod player;
mod remote;
mod row;
mod run;
#[path = "../../tests/it/support/bare/mod.rs"]
mod support;
mod worker;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Wanted {
    seed: u64,
    load: Duration,
    places: Vec<Place>,
    faults: Option<Vec<Fault>>,
    kinds: Option<Vec<Kind>>,
    fixed_lease: Option<Duration>,
    log: Option<PathBuf>,
    /// A saved history: check this file instead of running anything.
    check: Option<PathBuf>,
    worker: Option<Program>,
    row: Option<PathBuf>,
}

impl Wanted {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let all = || Place::ALL.iter().map(|(place, ..)| *place).collect();
        let mut wanted = Self {
            seed: 42,
            load: Duration::from_secs(60),
            places: all(),
            faults: None,
            kinds: None,
            fixed_lease: None,
            log: None,
            check: None,
            worker: None,
            row: None,
        };
        while let Some(arg) = args.next() {
            let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
            match &*arg {
                "--seed" => wanted.seed = value.parse()?,
                "--minutes" => wanted.load = Duration::from_secs_f64(60.0 * value.parse::<f64>()?),
                "--seconds" => wanted.load = Duration::from_secs_f64(value.parse()?),
                "--deployment" if value == "all" => wanted.places = all(),
                "--deployment" => {
                    let places = Place::ALL.iter().map(|(place, name, _)| (*place, *name));
                    wanted.places = chosen(&value, places)?;
                }
                "--faults" if value == "none" => wanted.faults = Some(Vec::new()),
                "--faults" => wanted.faults = Some(chosen(&value, nemesis::NAMES)?),
                "--kinds" => wanted.kinds = Some(chosen(&value, kinds::NAMES)?),
                "--fixed-lease" => {
                    let shortest = value.parse::<NonZero<u64>>()?;
                    wanted.fixed_lease = Some(Duration::from_millis(shortest.get()));
                }
                "--log" => wanted.log = Some(value.into()),
                "--check" => wanted.check = Some(value.into()),
                "--worker" => wanted.worker = Some(Program::describe(&value)?),
                "--row" => wanted.row = Some(value.into()),
                _ => return Err(format!("{arg} is not known").into()),
            }
        }
        Ok(wanted)
    }
}

/// The values whose names are in `names`, separated by commas.
fn chosen<T>(
    names: &str,
    known: impl IntoIterator<Item = (T, &'static str)> + Clone,
) -> Result<Vec<T>> {
    let one = |name: &str| {
        let mut all = known.clone().into_iter();
        let entry = all.find(|(_, known)| *known == name);
        entry.map(|(entry, _)| entry).ok_or_else(|| {
            let all: Vec<_> = known.clone().into_iter().map(|(_, name)| name).collect();
            format!("{name} is none of {}", all.join(", ")).into()
        })
    };
    names.split(',').map(one).collect()
}

fn main() -> Result<ExitCode> {
    if let Some(job) = Job::given() {
        job.run();
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = Wanted::parse(std::env::args().skip(1))?;
    if let Some(log) = wanted.check {
        let report = history::check(history::read(BufReader::new(File::open(log)?)));
        println!("{report}");
        return Ok(ExitCode::from(u8::from(!report.is_fine())));
    }
    let places = wanted.places.len();
    let load = wanted.load / u32::try_from(places)?;
    let mut is_fine = true;
    for place in wanted.places {
        let mut plan = Plan::new(place, wanted.seed, load, &[]);
        if let Some(faults) = &wanted.faults {
            plan.faults.retain(|fault| faults.contains(fault));
        }
        if let Some(kinds) = &wanted.kinds {
            plan.kinds.retain(|kind| kinds.contains(kind));
        }
        if let Some(program) = &wanted.worker {
            let library = program.library();
            plan.kinds.retain(|kind| library.kinds.contains(kind));
            if !library.places.contains(&place) {
                plan.kinds.clear();
            }
            plan.program = Some(program.clone());
        }
        plan.fixed_lease = wanted.fixed_lease;
        if plan.kinds.is_empty() {
            println!("skipped: no such kinds with {}", place.name());
            continue;
        }
        plan.log = wanted
            .log
            .as_ref()
            .map(|log| log_of(log, place, places == 1));
        println!(
            "\n{}, {} s, seed {}",
            place.name(),
            load.as_secs_f64(),
            wanted.seed
        );
        let outcome = plan.run();
        println!("{outcome}");
        if let Some(file) = &wanted.row {
            row::append(file, &plan, &outcome)?;
        }
        if outcome.is_fine() {
            continue;
        }
        is_fine = false;
        let (name, seconds) = (place.name(), load.as_secs_f64());
        println!(
            "again: --seed {} --deployment {name} --seconds {seconds}",
            wanted.seed
        );
    }
    Ok(ExitCode::from(u8::from(!is_fine)))
}

/// The log file of one deployment; with several deployments, the name of each is part of its file's name.
fn log_of(log: &Path, place: Place, is_only: bool) -> PathBuf {
    if is_only {
        return log.to_owned();
    }
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{}", place.name()));
    name.into()
}
