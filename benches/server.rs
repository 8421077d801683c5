//! The cost of locks for the server: its processor time for each lock + drop, compared with a lock written by hand, and
//! the number per second that one core serves.
//!
//! `cargo bench --bench server -- cost` runs one part: commands, cost, core. The last one draws a plot.
//!
//! The server itself reports its processor time, so other work on the machine hardly changes these figures. Rates, in
//! contrast, are limited where the clients' core is busy.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
// Not in `rig`, because most benches draw nothing.
#[path = "rig/plot.rs"]
mod plot;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use redlatch::Client;

use crate::plot::{Curves, Scale};
use crate::rig::by_hand::ByHand;
use crate::rig::processes::{CHILD, Process};
use crate::rig::threads::{Enough, spread, together};
use crate::rig::{
    Case, End, Kind, Lock, Table, Target, busy, interleaved, is_measuring, median, scaled,
};
use crate::support::Server;

const SLICE: Duration = Duration::from_millis(200);

/// The number of client processes that fill one core of the server.
const PROCESSES: usize = 8;

fn main() {
    if let Ok(task) = std::env::var(CHILD) {
        return follow_orders(&task);
    }
    let server = rig::start();
    let mut table = Table::default();
    if rig::wants("commands") {
        commands(&server, &mut table);
    }
    if rig::wants("cost") {
        cost(&server, &mut table);
    }
    if rig::wants("core") {
        let folder = plot::folder();
        core(&server, &mut table).save(&folder, "core");
        plot::draw(&folder);
    }
    table.print();
}

fn open(url: &str) -> Client {
    Client::open(rig::config(url)).expect("the server is up")
}

// ---------------------------------------------------------------------------------------------------------------------
// Each lock
// ---------------------------------------------------------------------------------------------------------------------

/// The commands that a lock + drop sends, and those that Redis executes for it: independent of the machine.
fn commands(server: &Server, table: &mut Table) {
    let client = open(&server.url());
    let mut by_hand = ByHand::new(&server.url(), "commands:by_hand");
    let kinds = [
        (Kind::Reentrant, "reentrant lock", Target::AtMost(2.0)),
        (Kind::Fair, "fair lock", Target::AtMost(2.0)),
        (Kind::Fenced, "fenced lock", Target::AtMost(2.0)),
        (Kind::Write, "rwlock, writing", Target::AtMost(2.0)),
    ];
    println!(
        "\n{:<28} {:>12} {:>12} {:>10} {:>10}",
        "for each lock + drop", "commands", "executed", "bytes in", "bytes out"
    );
    let mut show = |what: &str, kinds: &[&str], pair: &mut dyn FnMut(), target: Target| {
        let [sent, executed, bytes_in, bytes_out] = sent(server, kinds, pair);
        println!("{what:<28} {sent:>12.2} {executed:>12.2} {bytes_in:>10.0} {bytes_out:>10.0}");
        table.row(format!("{what}: commands"), sent, target);
    };
    show(
        "by hand",
        &["set", "evalsha"],
        &mut || by_hand.pair(),
        Target::None,
    );
    for (kind, what, target) in kinds {
        let lock = Lock::new(&client, kind, &format!("commands:{kind:?}"));
        show(what, &["evalsha"], &mut || lock.pair(End::Drop), target);
    }
}

/// Per run of `operation`: commands of these kinds, all commands that Redis executed, including those in scripts, and
/// bytes in both directions.
fn sent(server: &Server, kinds: &[&str], operation: &mut dyn FnMut()) -> [f64; 4] {
    const OF_ALL: [&str; 3] = [
        "total_commands_processed",
        "total_net_input_bytes",
        "total_net_output_bytes",
    ];
    let counted = |operation: &mut dyn FnMut(), times: u32| {
        let counters = || {
            let stats: String = server.ask(&["INFO", "commandstats"]);
            let calls = |line: &str| {
                let (kind, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let is_wanted = kinds.contains(&kind);
                is_wanted.then(|| counts.split(',').next()?.parse::<f64>().ok())?
            };
            let sent = stats.lines().filter_map(calls).sum::<f64>();
            let [executed, bytes_in, bytes_out] = rig::info(server, "stats", OF_ALL);
            [sent, executed, bytes_in, bytes_out]
        };
        let counters_before = counters();
        for _ in 0..times {
            operation();
        }
        // No one waits for the reply to the last release.
        std::thread::sleep(Duration::from_millis(20));
        let after = counters();
        std::array::from_fn(|n| after[n] - counters_before[n])
    };
    // The first run makes connections and loads scripts, so it is not counted.
    operation();
    let times = scaled(5_000);
    let [asking, all]: [[f64; 4]; 2] = [0, times].map(|times| counted(operation, times));
    std::array::from_fn(|n| (all[n] - asking[n]) / f64::from(times))
}

/// A case whose rate is per second of the server's processor time.
fn served<'a>(server: &'a Server, mut run: impl FnMut(Duration) -> u32 + 'a) -> Case<'a> {
    Box::new(move |slice| {
        let busy_before = busy(server);
        let done = run(slice);
        f64::from(done) / (busy(server) - busy_before)
    })
}

/// Threads of one process with one lock each.
fn threads<'a, O: FnMut() + Send>(server: &'a Server, operations: &'a mut [O]) -> Case<'a> {
    served(server, |slice| {
        together(operations, Enough::After(slice)).total()
    })
}

fn by_hand(url: &str, names: &str, threads: usize) -> Vec<impl FnMut() + Send + use<>> {
    (0..threads)
        .map(|n| {
            let mut lock = ByHand::new(url, &format!("{names}:by_hand:{n}"));
            move || lock.pair()
        })
        .collect()
}

fn cost(server: &Server, table: &mut Table) {
    println!("\n{:<44} {:>16}", "the server's processor time", "us each");
    let client = open(&server.url());
    for count in [1, 8, 64] {
        let mut hand = by_hand(&server.url(), &format!("cost:{count}"), count);
        let mut ours = spread(&client, &format!("cost:{count}"), count);
        let cases = [threads(server, &mut hand), threads(server, &mut ours)];
        let [hand, ours] = interleaved(15, SLICE, cases);
        for (what, rates) in [("by hand", &hand), ("lock + drop", &ours)] {
            let what = format!("{count} threads with a lock each: {what}");
            println!("{what:<44} {:>16}", rig::significant(1e6 / rates.median()));
        }
        table.row(
            format!("{count} threads: the server's time of a lock by hand"),
            hand.over(&ours),
            Target::AtMost(1.0),
        );
    }
    one_after_the_other(server, &client, table);
    assert_eq!(client.stats().lost, 0);
}

/// One thread, which waits for every reply, so that no release travels with the next request.
fn one_after_the_other(server: &Server, client: &Client, table: &mut Table) {
    let mut hand = ByHand::new(&server.url(), "each:by_hand");
    let mut cases = vec![served(server, alone(move || hand.pair()))];
    let kinds = [Kind::Reentrant, Kind::Fair, Kind::Fenced, Kind::Write];
    cases.extend(kinds.map(|kind| {
        let lock = Lock::new(client, kind, &format!("each:{kind:?}"));
        served(server, alone(move || lock.pair(End::Unlock)))
    }));
    let Ok(cases) = <[Case<'_>; 5]>::try_from(cases) else {
        unreachable!("that many");
    };
    let [hand, ours @ ..] = interleaved(15, SLICE, cases);
    for (kind, rates) in kinds.iter().zip(&ours) {
        let what = format!("one thread, lock + unlock: {kind:?}");
        println!("{what:<44} {:>16}", rig::significant(1e6 / rates.median()));
        let target = match kind {
            Kind::Reentrant => Target::AtMost(1.25),
            _ => Target::None,
        };
        table.row(
            format!("{kind:?}, lock + unlock: the server's time of a lock by hand"),
            hand.over(rates),
            target,
        );
    }
}

/// Repeats an operation on one thread for a slice of time.
fn alone<'a>(mut operation: impl FnMut() + 'a) -> impl FnMut(Duration) -> u32 + 'a {
    move |slice| {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < slice {
            operation();
            done += 1;
        }
        done
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// As many as one core serves
// ---------------------------------------------------------------------------------------------------------------------

/// The implementations of the lock that the processes use.
const WAYS: [&str; 2] = ["redlatch", "by_hand"];

/// Locks per second of the server's processor time, for more and more threads in several processes.
fn core(server: &Server, table: &mut Table) -> Curves {
    let mut curves = Curves::new(
        "Threads of 8 processes, with a lock each",
        ["threads", "lock + drop, per second of Redis' core"],
        Scale::Log,
        &["threads", "redlatch", "by hand"],
    );
    println!(
        "\n{:<10} {:<10} {:>12} {:>10} {:>16}",
        "threads", "", "a second", "server", "served by a core"
    );
    let counts: &[u32] = match is_measuring() {
        true => &[8, 16, 32, 64, 128, 256, 512],
        false => &[8],
    };
    for &count in counts {
        let mut fleets = WAYS.map(|way| Fleet::new(server, way, count as usize / PROCESSES));
        for _ in 0..scaled(5) {
            for fleet in &mut fleets {
                fleet.run(server);
            }
        }
        let [ours, hand] = &fleets;
        let [ours_served, hand_served] = [ours, hand].map(|fleet| median(&fleet.served));
        for (way, fleet) in WAYS.iter().zip(&fleets) {
            println!(
                "{count:<10} {way:<10} {:>12.0} {:>9.0}% {:>16.0}",
                median(&fleet.rates),
                median(&fleet.loads) * 100.0,
                median(&fleet.served)
            );
        }
        curves.add(count, [ours_served, hand_served]);
        if matches!(count, 64 | 512) {
            table.row(
                format!("{count} threads of 8 processes: served by a core, of locks by hand"),
                ours_served / hand_served,
                Target::AtLeast(1.0),
            );
        }
    }
    curves
}

/// Processes that all use one implementation.
struct Fleet {
    processes: Vec<Process>,
    rates: Vec<f64>,
    loads: Vec<f64>,
    served: Vec<f64>,
}

impl Fleet {
    fn new(server: &Server, way: &str, threads: usize) -> Self {
        let new = |n| {
            Process::new(format!(
                "{way} {} core:{threads}:{n} {threads}",
                server.url()
            ))
        };
        let mut fleet = Self {
            processes: (0..PROCESSES).map(new).collect(),
            rates: Vec::new(),
            loads: Vec::new(),
            served: Vec::new(),
        };
        // This run is not counted, since the processes are still starting.
        fleet.run(server);
        (fleet.rates, fleet.loads, fleet.served) = Default::default();
        fleet
    }

    fn run(&mut self, server: &Server) {
        let slice = Duration::from_millis(u64::from(scaled(400)));
        let (start, busy_before) = (Instant::now(), busy(server));
        for process in &mut self.processes {
            process.order(slice.as_millis());
        }
        let done = self.processes.iter_mut().map(|process| {
            let done: u32 = process.reply().trim().parse().expect("a number");
            f64::from(done)
        });
        let done: f64 = done.sum();
        let (taken, used) = (start.elapsed().as_secs_f64(), busy(server) - busy_before);
        self.rates.push(done / taken);
        self.loads.push(used / taken);
        self.served.push(done / used);
    }
}

/// A child process of the fleet. Each line on its input is a number of milliseconds, for which its threads lock; its
/// reply is how often they did.
fn follow_orders(task: &str) {
    let [way, url, names, threads] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("not a task: {task}");
    };
    let threads = threads.parse().expect("a number");
    if way == "redlatch" {
        let client = open(url);
        obey(&mut spread(&client, names, threads));
        assert_eq!(client.stats().lost, 0);
    } else {
        obey(&mut by_hand(url, names, threads));
    }
}

fn obey<O: FnMut() + Send>(operations: &mut [O]) {
    for line in std::io::stdin().lines() {
        let span = line.expect("a line").parse().expect("milliseconds");
        let counts = together(operations, Enough::After(Duration::from_millis(span)));
        println!("{}", counts.total());
    }
}
