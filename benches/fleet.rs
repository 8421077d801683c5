//! Ten processes on one server: a million names held and renewed, and ten thousand threads that wait for one name.
//!
//! `cargo bench --bench fleet -- held` runs one part: held, waiters. The first takes about a gigabyte.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::io::{Lines, StdinLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use redlatch::{Client, Stats};

use crate::rig::processes::{CHILD, Process};
use crate::rig::{Table, Target, busy, is_measuring, scaled};
use crate::support::{Server, rss_kib};

/// The number of processes.
const PROCESSES: u32 = 10;

/// Threads per process that acquire locks, several because a guard stays on its thread.
const HOLDERS: u32 = 4;

/// The lease of a held name: the default, but explicit since the figures depend on it.
const LEASE: Duration = Duration::from_secs(30);

fn main() {
    if let Ok(task) = std::env::var(CHILD) {
        let [role, url, number] = task.split(' ').collect::<Vec<_>>()[..] else {
            panic!("not a task: {task}");
        };
        let number = number.parse().expect("a number");
        return match role {
            "hold" => hold(url, number),
            _ => wait(url, Duration::from_millis(number)),
        };
    }
    let server = rig::start();
    let mut table = Table::default();
    if rig::wants("held") {
        held(&server, &mut table);
    }
    if rig::wants("waiters") {
        for tenure in [Duration::from_millis(5), Duration::ZERO] {
            waiters(&server, tenure, &mut table);
        }
    }
    table.print();
}

fn open(url: &str, tenure: Duration) -> Client {
    let config = rig::config(url).lease(LEASE).tenure(tenure);
    Client::open(config).expect("the server is up")
}

/// The next order from the parent process.
fn order(orders: &mut Lines<StdinLock<'static>>) -> Option<String> {
    orders.next().map(|line| line.expect("a line"))
}

/// The numbers in a process's reply.
fn numbers(process: &mut Process) -> Vec<f64> {
    let reply = process.reply();
    let numbers = reply.split_whitespace().map(|number| number.parse());
    numbers.collect::<Result<_, _>>().expect("numbers")
}

/// Sends an order to all processes, and adds up the numbers in their replies.
fn ask_all<const N: usize>(processes: &mut [Process], order: &str) -> [f64; N] {
    for process in &mut *processes {
        process.order(order);
    }
    let mut sums = [0.0; N];
    for process in processes {
        for (sum, number) in sums.iter_mut().zip(numbers(process)) {
            *sum += number;
        }
    }
    sums
}

/// The processor time of this process, in seconds.
fn own_time() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every machine has it");
    Duration::from(time).as_secs_f64()
}

// ---------------------------------------------------------------------------------------------------------------------
// Names that are held
// ---------------------------------------------------------------------------------------------------------------------

/// The number of names that each process holds.
fn names_each() -> u32 {
    if is_measuring() { 100_000 } else { 100 }
}

fn held(server: &Server, table: &mut Table) {
    let [memory] = rig::info(server, "memory", ["used_memory"]);
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|n| {
            Process::new(format!(
                "hold {} {}",
                server.url(),
                u64::from(n * names_each())
            ))
        })
        .collect();
    let names = f64::from(PROCESSES * names_each());
    let begun = Instant::now();
    let [kib] = ask_all(&mut processes, "take");
    println!(
        "{names} names taken in {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let [memory_held] = rig::info(server, "memory", ["used_memory"]);

    // Each hold is renewed once in a third of the lease.
    let state = |processes: &mut [Process]| -> ([f64; 4], f64, Instant) {
        (ask_all(processes, "state"), busy(server), Instant::now())
    };
    let rest = if is_measuring() {
        LEASE / 3
    } else {
        Duration::ZERO
    };
    thread::sleep(rest);
    let (stats_before, server_before, since) = state(&mut processes);
    thread::sleep(rest);
    let (after, server_after, until) = state(&mut processes);
    let seconds = (until - since).as_secs_f64();
    let [renewals, used] = [0, 1].map(|n| after[n] - stats_before[n]);
    let [_, _, lost, late_us] = after;
    let clients = used / seconds * 100.0;
    let redis = (server_after - server_before) / seconds * 100.0;
    println!(
        "renewals: {:.0} a second; processor time: {redis:.0} % of a core in the server, {clients:.0} % in all clients",
        renewals / seconds
    );
    println!(
        "the latest renewal of a process, on average: {:.0} ms late",
        late_us / f64::from(PROCESSES) / 1e3
    );
    assert!(lost == 0.0, "{lost} holds were lost");
    let [bytes, server_bytes] = [kib * 1024.0 / names, (memory_held - memory) / names];
    let begun = Instant::now();
    ask_all::<0>(&mut processes, "release");
    println!("released in {:.1} s", begun.elapsed().as_secs_f64());
    drop(processes);
    table.row(
        "held: bytes of a client for each",
        bytes,
        Target::AtMost(700.0),
    );
    table.row(
        "held: bytes of Redis for each",
        server_bytes,
        Target::AtMost(300.0),
    );
    let third = LEASE.as_secs_f64() / 3.0;
    if is_measuring() {
        table.row(
            "held: renewals of each within a third of the lease",
            renewals / names * third / seconds,
            Target::AtMost(1.05),
        );
        table.row("held: % of a core, the server", redis, Target::AtMost(60.0));
        table.row(
            "held: % of a core, all clients",
            clients,
            Target::AtMost(60.0),
        );
    }
}

/// A child process that acquires names when told to, and holds them.
fn hold(url: &str, first: u64) {
    let client = open(url, Duration::from_millis(5));
    let (taken, end) = (
        Barrier::new(1 + HOLDERS as usize),
        Barrier::new(1 + HOLDERS as usize),
    );
    let mut orders = std::io::stdin().lines();
    assert_eq!(order(&mut orders).as_deref(), Some("take"));
    let rss_before = rss_kib();
    thread::scope(|scope| {
        for part in 0..HOLDERS {
            let (client, taken, end) = (&client, &taken, &end);
            scope.spawn(move || {
                let each = names_each() / HOLDERS;
                let names = (0..each).map(|n| first + u64::from(part * each + n));
                let take = |n| {
                    let lock = client.reentrant_lock(format!("held:{n:07}"));
                    lock.lock().expect("a grant")
                };
                let guards: Vec<_> = names.map(take).collect();
                taken.wait();
                end.wait();
                drop(guards);
            });
        }
        taken.wait();
        println!("{}", rss_kib() - rss_before);
        while order(&mut orders).is_some_and(|order| order == "state") {
            let Stats {
                renewals,
                lost,
                renewal_lateness_max_us: late,
                ..
            } = client.stats();
            println!("{renewals} {} {lost} {late}", own_time());
        }
        end.wait();
    });
    client
        .close(Duration::from_secs(60))
        .expect("all is released");
    println!();
}

// ---------------------------------------------------------------------------------------------------------------------
// Threads that wait
// ---------------------------------------------------------------------------------------------------------------------

/// The name that all threads wait for.
const NAME: &str = "waited";

/// Threads of several processes acquire and release one lock all the time.
fn waiters(server: &Server, tenure: Duration, table: &mut Table) {
    let what = format!("tenure {} ms", tenure.as_millis());
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::new(format!("wait {} {}", server.url(), tenure.as_millis())))
        .collect();
    let holder = open(&server.url(), tenure);
    let guard = holder.reentrant_lock(NAME).lock().expect("a grant");
    let [waiting] = ask_all(&mut processes, "wait");
    println!("\n{what}: {waiting} threads of {PROCESSES} processes wait for one name");
    // Wait until the requests with which the waiters queued are over.
    thread::sleep(Duration::from_millis(u64::from(scaled(500))));
    let calls = || {
        let info: String = server.ask(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            line.strip_prefix("cmdstat_evalsha:calls=")?
                .split(',')
                .next()?
                .parse::<f64>()
                .ok()
        };
        info.lines().find_map(calls).unwrap_or(0.0)
    };
    let counts_before: [f64; 4] = ask_all(&mut processes, "count");
    let (calls_before, busy_before, since) = (calls(), busy(server), Instant::now());
    drop(guard);
    let span = Duration::from_millis(u64::from(scaled(4_000)));
    thread::sleep(span);
    let after: [f64; 4] = ask_all(&mut processes, "count");
    let (asked, used) = (calls() - calls_before, busy(server) - busy_before);
    let seconds = since.elapsed().as_secs_f64();
    for process in &mut processes {
        process.order("end");
    }
    let ends: Vec<_> = processes.iter_mut().map(numbers).collect();
    drop(processes);

    let [grants, passed, sent, held_back] = [0, 1, 2, 3].map(|n| after[n] - counts_before[n]);
    let longest = ends.iter().map(|end| end[0]).fold(0.0, f64::max);
    let without = ends.iter().map(|end| end[1]).sum::<f64>();
    // A grant by Redis takes an acquire and a release; all other commands are requests without success.
    let again = (sent - 2.0 * grants) / grants;
    println!(
        "{what}: {grants:.0} releases in Redis and {passed:.0} hand-overs within a process, in {seconds:.1} s; yielded {held_back:.0} times",
    );
    println!(
        "{what}: {sent:.0} commands ({asked:.0} that Redis counted), server {:.0} % of a core; the longest wait {longest:.0} ms, {without:.0} threads never had it",
        used / seconds * 100.0
    );
    table.row(
        format!("{what}: commands for each release in Redis"),
        sent / grants,
        Target::AtMost(3.0),
    );
    table.row(
        format!("{what}: requests refused, for each release in Redis"),
        again,
        Target::AtMost(1.0),
    );
    table.row(
        format!("{what}: commands for each hold"),
        sent / (grants + passed),
        Target::None,
    );
}

/// A child process whose threads start to wait for the name when told to, and then acquire it again and again.
fn wait(url: &str, tenure: Duration) {
    let threads = if is_measuring() { 1_000 } else { 5 };
    let client = open(url, tenure);
    let mut orders = std::io::stdin().lines();
    assert_eq!(order(&mut orders).as_deref(), Some("wait"));
    let (stop, longest, without) = (
        AtomicBool::new(false),
        Mutex::new(Duration::ZERO),
        AtomicU64::new(0),
    );
    let begun = OnceLock::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (client, stop, begun) = (&client, &stop, &begun);
            let (longest, without) = (&longest, &without);
            let thread = thread::Builder::new().stack_size(128 * 1024);
            let take = move || {
                let lock = client.reentrant_lock(NAME);
                let (mut held, mut worst) = (0_u32, Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    drop(lock.lock().expect("a grant"));
                    // The first wait began before all threads were there, so count it from `begun`.
                    let asked = begun
                        .get()
                        .map_or_else(Instant::now, |begun| asked.max(*begun));
                    worst = worst.max(asked.elapsed());
                    held += 1;
                }
                without.fetch_add(u64::from(held <= 1), Ordering::Relaxed);
                let mut longest = longest.lock().expect("nobody panics");
                *longest = longest.max(worst);
            };
            thread.spawn_scoped(scope, take).expect("a thread");
        }
        support::eventually("all wait", || client.stats().waiting == threads);
        println!("{threads}");
        while order(&mut orders).is_some_and(|order| order == "count") {
            begun.get_or_init(Instant::now);
            let Stats {
                acquired,
                local_handoffs: passed,
                commands,
                yields: held_back,
                ..
            } = client.stats();
            println!("{acquired} {passed} {commands} {held_back}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(client.stats().lost, 0);
    let longest = longest.into_inner().expect("nobody panics");
    println!("{} {}", longest.as_millis(), without.into_inner());
}
