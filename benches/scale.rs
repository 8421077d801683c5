//! How the library scales: rates, processor time and memory by the number of threads, processes, locks, waiters and
//! names, and rates over a network.
//!
//! Each part writes its curves as CSV; at the end all plots are drawn from the CSV files in the folder.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
// Not in `rig`, because most benches draw nothing.
#[path = "rig/plot.rs"]
mod plot;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use redlatch::{Client, Error, ReentrantLockGuard};

use crate::plot::{Curves, Scale};
use crate::rig::processes::{CHILD, Hammer, hammer};
use crate::rig::threads::{Enough, spread, together};
use crate::rig::{Case, interleaved, is_measuring, median, scaled};
use crate::support::{GENEROUS, Mode, Proxy, Server, Target, rss_kib};

const TENURE: Duration = Duration::from_millis(5);

/// The round trip of the network that a part simulates.
const ROUND_TRIP: Duration = Duration::from_millis(1);

/// The results of a part: file names, each with its curves.
type Measured = Vec<(&'static str, Curves)>;

type Part = fn(&Server) -> Measured;

fn main() {
    if let Ok(task) = std::env::var(CHILD) {
        return hammer(&task);
    }
    if rig::named().as_deref() == Some("draw") {
        return plot::draw(&plot::folder());
    }
    let folder = plot::folder();
    let server = rig::start();
    let parts: [(&str, Part); 6] = [
        // First, before other parts have allocated memory in the server.
        ("names", names),
        ("threads", threads),
        ("processes", processes),
        ("held", held),
        ("waiters", waiters),
        ("network", network),
    ];
    for (part, measure) in parts {
        if !rig::wants(part) {
            continue;
        }
        let begun = Instant::now();
        for (name, curves) in measure(&server) {
            curves.save(&folder, name);
        }
        println!("{part}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    plot::draw(&folder);
}

/// These numbers, or only the first two in a run that does not measure.
fn few(numbers: &[u32]) -> &[u32] {
    if is_measuring() {
        numbers
    } else {
        &numbers[..2]
    }
}

/// This long, or very short in a run that does not measure.
fn span(measuring: Duration) -> Duration {
    if is_measuring() {
        measuring
    } else {
        measuring / 50
    }
}

/// The processor time that server and client have used up to a moment.
struct Used {
    at: Instant,
    server: f64,
    client: f64,
}

impl Used {
    fn by(server: &Server) -> Self {
        let client =
            clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every machine has it");
        Self {
            at: Instant::now(),
            server: rig::busy(server),
            client: Duration::from(client).as_secs_f64(),
        }
    }

    /// The processor time of server and client since `earlier`, in percent of one core.
    fn percent_since(&self, earlier: &Self) -> [f64; 2] {
        let span = (self.at - earlier.at).as_secs_f64() / 100.0;
        [
            (self.server - earlier.server) / span,
            (self.client - earlier.client) / span,
        ]
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rates
// ---------------------------------------------------------------------------------------------------------------------

fn threads(server: &Server) -> Measured {
    let client = Client::open(rig::config(server.url()).tenure(TENURE)).expect("the server is up");
    vec![("threads", by_threads(&client, "Threads of one process"))]
}

fn network(server: &Server) -> Measured {
    let proxy = Proxy::before(server);
    proxy.set(Target::All, Mode::Delay(ROUND_TRIP));
    let client = Client::open(rig::config(proxy.url()).tenure(TENURE)).expect("the server is up");
    let title = "Threads of one process, Redis 1 ms away";
    vec![("network", by_threads(&client, title))]
}

fn by_threads(client: &Client, title: &str) -> Curves {
    let mut curves = Curves::new(
        title,
        ["threads", "lock + drop, per second"],
        Scale::Log,
        &["threads", "one lock", "a lock each"],
    );
    for &threads in few(&[1, 2, 4, 8, 16, 32, 64]) {
        let lock = client.reentrant_lock(format!("one:{threads}"));
        let mut one = vec![|| drop(lock.lock().expect("a grant")); threads as usize];
        let mut each = spread(client, &format!("each:{threads}"), threads as usize);
        let [one, each] = interleaved(
            7,
            span(Duration::from_millis(100)),
            [case(&mut one), case(&mut each)],
        );
        curves.add(threads, [one.median(), each.median()]);
    }
    assert_eq!(client.stats().lost, 0);
    curves
}

fn case<O: FnMut() + Send>(operations: &mut [O]) -> Case<'_> {
    Box::new(|slice| together(operations, Enough::After(slice)).rate())
}

fn processes(server: &Server) -> Measured {
    let span = span(Duration::from_millis(700));
    let mut curves = Curves::new(
        "Processes of one thread each, one lock",
        ["processes", "lock + drop, per second"],
        Scale::Log,
        &["processes", "one lock"],
    );
    let mut hammers: Vec<Hammer> = Vec::new();
    for &count in few(&[1, 2, 4, 8, 16]) {
        let new = || Hammer::new(server, "processes", TENURE, Duration::ZERO);
        hammers.resize_with(count as usize, new);
        let mut round = |span: Duration| {
            for hammer in &mut hammers {
                hammer.begin(span);
            }
            let holds: u32 = hammers.iter_mut().map(|hammer| hammer.end().0).sum();
            f64::from(holds) / span.as_secs_f64()
        };
        // This round is not counted, since the processes are still starting.
        round(span / 4);
        let rates: Vec<_> = (0..scaled(7)).map(|_| round(span)).collect();
        curves.add(count, [median(&rates)]);
    }
    vec![("processes", curves)]
}

// ---------------------------------------------------------------------------------------------------------------------
// Many locks
// ---------------------------------------------------------------------------------------------------------------------

/// Locks that are held, so that the watchdog renews them.
fn held(server: &Server) -> Measured {
    let lease = if is_measuring() {
        Duration::from_secs(6)
    } else {
        Duration::from_millis(600)
    };
    let mut cpu = Curves::new(
        format!("Renewing held locks with a lease of {} s", lease.as_secs()),
        ["locks held", "processor time, % of a core"],
        Scale::Log,
        &["held", "server", "client"],
    );
    let mut lateness = Curves::new(
        format!("Renewals of locks with a lease of {} s", lease.as_secs()),
        ["locks held", "lateness, p99, ms"],
        Scale::Log,
        &["held", "p99"],
    );
    let client = Client::open(rig::config(server.url()).lease(lease)).expect("the server is up");
    let mut guards = Vec::new();
    for &count in few(&[1, 10, 100, 1_000, 10_000, 100_000]) {
        for number in guards.len()..count as usize {
            let lock = client.reentrant_lock(format!("held:{number}"));
            guards.push(lock.lock().expect("a grant"));
        }
        let used_before = Used::by(server);
        let late = lateness_of(&guards, lease);
        cpu.add(count, Used::by(server).percent_since(&used_before));
        lateness.add(count, [late.value_at_quantile(0.99) as f64 / 1e3]);
    }
    // In a run that does not measure, the lease is so short that a hold may be lost on a busy machine.
    assert!(client.stats().lost == 0 || !is_measuring());
    vec![("held_cpu", cpu), ("held_lateness", lateness)]
}

/// How late renewals are sent, in microseconds: each is due a third of the lease after the previous one.
///
/// Seen from `valid_until`, which a renewal moves by the time since the previous one was sent.
fn lateness_of(guards: &[ReentrantLockGuard], lease: Duration) -> Histogram<u64> {
    const SAMPLE: usize = 1_000;
    let mut late = Histogram::new(3).expect("three digits");
    let sample = guards.iter().step_by(guards.len().div_ceil(SAMPLE));
    let mut sample: Vec<_> = sample.map(|guard| (guard, guard.valid_until())).collect();
    let start = Instant::now();
    // Long enough for two renewals of each hold, unless the machine is too busy.
    while start.elapsed() < lease * 7 / 10 || late.is_empty() && start.elapsed() < GENEROUS {
        thread::sleep(lease / 30);
        for (guard, until) in &mut sample {
            let renewed = guard.valid_until();
            if renewed != *until {
                let by = (renewed - *until).saturating_sub(lease / 3);
                let by = u64::try_from(by.as_micros()).expect("five centuries are enough");
                late.record(by).expect("any time fits");
                *until = renewed;
            }
        }
    }
    assert!(!late.is_empty(), "renewals were seen");
    late
}

/// Threads that wait for one name each, which another client holds all the time.
fn waiters(server: &Server) -> Measured {
    let mut commands = Curves::new(
        "Waiting for as many names, which others hold",
        ["waiters", "commands per second"],
        Scale::Log,
        &["waiters", "commands"],
    );
    let mut cpu = Curves::new(
        "Waiting for as many names, which others hold",
        ["waiters", "processor time, % of a core"],
        Scale::Log,
        &["waiters", "server", "client"],
    );
    let mut bare = rig::connection(server);
    for &count in few(&[1, 10, 100, 1_000]) {
        let mut others = redis::pipe();
        for number in 0..count {
            let name = format!("waited:{number}");
            others.hset(&name, rig::owner(0), 1).ignore();
            others.pexpire(&name, 600_000).ignore();
        }
        others.exec(&mut bare).expect("holds of others");
        let client = Client::open(rig::config(server.url())).expect("the server is up");
        thread::scope(|scope| {
            for number in 0..count {
                let lock = client.reentrant_lock(format!("waited:{number}"));
                let wait = move || {
                    let ended = lock.lock();
                    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
                };
                let thread = thread::Builder::new().stack_size(256 * 1024);
                thread.spawn_scoped(scope, wait).expect("a thread");
            }
            support::eventually("all wait", || {
                client.stats().subscriptions == u64::from(count)
            });
            // A waiter asks again after 1, 2 and 4 s, then every 5 s, in case a message was lost. Wait until that pace
            // is reached.
            thread::sleep(span(Duration::from_millis(3_500)));
            let (asked, used) = (client.stats().commands, Used::by(server));
            thread::sleep(span(Duration::from_secs(5)));
            let (now_asked, now_used) = (client.stats().commands, Used::by(server));
            let seconds = (now_used.at - used.at).as_secs_f64();
            commands.add(count, [(now_asked - asked) as f64 / seconds]);
            cpu.add(count, now_used.percent_since(&used));
            client
                .close(Duration::from_secs(5))
                .expect("all is released");
        });
    }
    vec![("waiters_commands", commands), ("waiters_cpu", cpu)]
}

/// Names that are each used once.
fn names(server: &Server) -> Measured {
    const THREADS: u32 = 8;
    const POINTS: u32 = 20;
    let each = if is_measuring() {
        1_000_000 / THREADS
    } else {
        250
    };
    let mut rate = Curves::new(
        "Names used once, by 8 threads",
        ["names so far", "lock + drop, per second"],
        Scale::Linear,
        &["names", "rate"],
    );
    let mut memory = Curves::new(
        "Names used once, by 8 threads",
        ["names so far", "memory, MiB"],
        Scale::Linear,
        &["names", "server", "client"],
    );
    let client = Client::open(rig::config(server.url())).expect("the server is up");
    let used = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, used) = (&client, &used);
            scope.spawn(move || {
                for number in 0..each {
                    let lock = client.reentrant_lock(format!("once:{thread}:{number}"));
                    drop(lock.lock().expect("a grant"));
                    used.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (mut since, mut counted) = (Instant::now(), 0);
        for point in 1..=POINTS {
            let due = THREADS * each / POINTS * point;
            while used.load(Ordering::Relaxed) < due {
                thread::sleep(span(Duration::from_millis(5)));
            }
            let (now, count) = (Instant::now(), used.load(Ordering::Relaxed));
            rate.add(
                count,
                [f64::from(count - counted) / (now - since).as_secs_f64()],
            );
            memory.add(count, [memory_of(server), rss_kib() as f64 / 1024.0]);
            (since, counted) = (now, count);
        }
    });
    assert_eq!(client.stats().lost, 0);
    vec![("names_rate", rate), ("names_memory", memory)]
}

/// The memory that the server uses, in MiB.
fn memory_of(server: &Server) -> f64 {
    let [bytes] = rig::info(server, "memory", ["used_memory"]);
    bytes / f64::from(1 << 20)
}
