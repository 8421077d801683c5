//! Rates of many threads and of two processes on one lock of every kind, and of many threads with one lock each.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use criterion::Criterion;
use redis::Value;
use redlatch::Client;

use crate::rig::processes::{CHILD, Hammer, hammer};
use crate::rig::threads::{Counts, Enough, spread, together};
use crate::rig::{Bare, Case, End, Kind, Lock, Table, Target, ask, interleaved, median, scaled};
use crate::support::{Server, lua};

const SLICE: Duration = Duration::from_millis(80);
const TENURE: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_micros(100);

fn main() {
    if let Ok(task) = std::env::var(CHILD) {
        return hammer(&task);
    }
    let server = rig::start();
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    absolute(&server, &mut criterion);
    criterion.final_summary();

    let mut table = Table::default();
    by_number_of_threads(&server);
    one_lock(&server, &mut table);
    observed(&server, &mut table);
    one_of_each_kind(&server, &mut table);
    readers(&server, &mut table);
    as_many_locks(&server, &mut table);
    two_processes(&server, &mut table);
    table.print();
}

fn open(server: &Server, tenure: Duration) -> Client {
    Client::open(rig::config(server.url()).tenure(tenure)).expect("the server is up")
}

// ---------------------------------------------------------------------------------------------------------------------
// Threads
// ---------------------------------------------------------------------------------------------------------------------

/// `threads` threads on one lock, which protects a counter.
struct Crowd {
    lock: Lock,
    threads: usize,
    work: Duration,
    protected: AtomicU64,
}

impl Crowd {
    fn new(client: &Client, name: &str, threads: usize, work: Duration) -> Self {
        Self::of(Kind::Reentrant, client, name, threads, work)
    }

    fn of(kind: Kind, client: &Client, name: &str, threads: usize, work: Duration) -> Self {
        Self {
            lock: Lock::new(client, kind, name),
            threads,
            work,
            protected: AtomicU64::new(0),
        }
    }

    fn run(&self, enough: Enough) -> Counts {
        let count_before = self.protected.load(Ordering::Relaxed);
        let operation = || {
            self.lock.around(|| {
                // Load and store are separate steps, so two holders at once would lose counts.
                let count = self.protected.load(Ordering::Relaxed);
                rig::work(self.work);
                self.protected.store(count + 1, Ordering::Relaxed);
            });
        };
        let counts = together(&mut vec![operation; self.threads], enough);
        let after = self.protected.load(Ordering::Relaxed);
        assert_eq!(
            after - count_before,
            u64::from(counts.total()),
            "one at a time"
        );
        counts
    }

    fn case(&self) -> Case<'_> {
        Box::new(|slice| self.run(Enough::After(slice)).rate())
    }
}

/// The upper bound for a fair lock: threads in a ring, each of which only wakes the next and parks.
fn ring(threads: usize, busy: Duration, span: Duration) -> f64 {
    let (turn, turns) = (AtomicUsize::new(usize::MAX), AtomicU32::new(0));
    let stop = AtomicBool::new(false);
    let ring: OnceLock<Vec<Thread>> = OnceLock::new();
    let hand_to = |place: usize| {
        turn.store(place, Ordering::Release);
        ring.get().expect("the ring is closed")[place].unpark();
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|place| {
                let (turn, turns, stop, hand_to) = (&turn, &turns, &stop, &hand_to);
                scope.spawn(move || {
                    loop {
                        while turn.load(Ordering::Acquire) != place {
                            if stop.load(Ordering::Relaxed) {
                                return;
                            }
                            thread::park();
                        }
                        rig::work(busy);
                        turns.fetch_add(1, Ordering::Relaxed);
                        hand_to((place + 1) % threads);
                    }
                })
            })
            .collect();
        let all = handles.iter().map(|handle| handle.thread().clone());
        ring.set(all.collect()).expect("closed once");
        let start = Instant::now();
        hand_to(0);
        thread::sleep(span);
        let rate = f64::from(turns.load(Ordering::Relaxed)) / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for handle in &handles {
            handle.thread().unpark();
        }
        rate
    })
}

fn absolute(server: &Server, criterion: &mut Criterion) {
    let client = open(server, TENURE);
    let mut group = criterion.benchmark_group("reentrant_lock");
    let timed = |n: u64, threads: u32, mut run: Box<dyn FnMut(Enough) -> Counts + '_>| {
        let each = u32::try_from(n).unwrap_or(u32::MAX).div_ceil(threads);
        let counts = run(Enough::Each(each));
        assert_eq!(counts.total(), each * threads);
        counts.taken.mul_f64(n as f64 / f64::from(counts.total()))
    };
    group.bench_function("contended_by_8", |b| {
        let crowd = Crowd::new(&client, "absolute", 8, Duration::ZERO);
        b.iter_custom(|n| timed(n, 8, Box::new(|enough| crowd.run(enough))));
    });
    group.bench_function("8_at_8_locks", |b| {
        let mut locks = spread(&client, "absolute:each", 8);
        b.iter_custom(|n| timed(n, 8, Box::new(|enough| together(&mut locks, enough))));
    });
    group.finish();
    assert_eq!(client.stats().lost, 0);
}

fn by_number_of_threads(server: &Server) {
    println!(
        "\n{:<8} {:>12} {:>10} {:>16} {:>10}",
        "threads", "one lock /s", "min/max", "as many locks /s", "min/max"
    );
    let client = open(server, TENURE);
    for threads in [1, 2, 4, 8, 16, 32, 64] {
        let crowd = Crowd::new(&client, &format!("one:{threads}"), threads, Duration::ZERO);
        let mut locks = spread(&client, &format!("many:{threads}"), threads);
        let (mut one, mut many) = (Vec::new(), Vec::new());
        for _ in 0..scaled(3) {
            let enough = Enough::After(SLICE * 2);
            one.push(crowd.run(enough));
            many.push(together(&mut locks, enough));
        }
        let of = |counts: &[Counts], figure: fn(&Counts) -> f64| {
            median(&counts.iter().map(figure).collect::<Vec<_>>())
        };
        println!(
            "{threads:<8} {:>12.0} {:>10.3} {:>16.0} {:>10.3}",
            of(&one, Counts::rate),
            of(&one, Counts::fairness),
            of(&many, Counts::rate),
            of(&many, Counts::fairness),
        );
    }
    assert_eq!(client.stats().lost, 0);
}

fn one_lock(server: &Server, table: &mut Table) {
    let (passing, asking) = (open(server, TENURE), open(server, Duration::ZERO));
    for (work, what, target) in [
        (Duration::ZERO, "empty", 40.0),
        (LONG, "100 us of work", 1.8),
    ] {
        let with = Crowd::new(&passing, &format!("tenure:{what}"), 8, work);
        let without = Crowd::new(&asking, &format!("no tenure:{what}"), 8, work);
        let [with, without, bare] = interleaved(
            9,
            SLICE,
            [
                with.case(),
                without.case(),
                Box::new(|slice| ring(8, work, slice)),
            ],
        );
        println!(
            "one lock, 8 threads, {what}: {:.0}/s with a tenure of 5 ms, {:.0}/s without; {:.0}/s bare hand-overs",
            with.median(),
            without.median(),
            bare.median()
        );
        table.row(
            format!("one lock, 8 threads, {what}: rate of no tenure"),
            with.over(&without),
            Target::AtLeast(target),
        );
        table.row(
            format!("one lock, 8 threads, {what}: rate of bare hand-overs"),
            with.over(&bare),
            Target::None,
        );
    }
    for client in [passing, asking] {
        assert_eq!(client.stats().lost, 0);
    }
}

/// The cost of an observer that counts: for one thread, and for threads that pass a lock among themselves.
fn observed(server: &Server, table: &mut Table) {
    #[derive(Default)]
    struct Counting([AtomicU64; 3]);
    impl redlatch::Observer for Counting {
        fn acquired(&self, _event: &redlatch::Acquired<'_>) {
            self.0[0].fetch_add(1, Ordering::Relaxed);
        }
        fn refused(&self, _event: &redlatch::Refused<'_>) {
            self.0[1].fetch_add(1, Ordering::Relaxed);
        }
        fn released(&self, _event: &redlatch::Released<'_>) {
            self.0[2].fetch_add(1, Ordering::Relaxed);
        }
    }
    let config = || rig::config(server.url()).tenure(TENURE);
    let open = |config| Client::open(config).expect("the server is up");
    let (plain, heard) = (open(config()), open(config().observer(Counting::default())));
    for threads in [1, 8] {
        let crowd = |client: &Client, prefix: &str| {
            Crowd::new(
                client,
                &format!("{prefix}:{threads}"),
                threads,
                Duration::ZERO,
            )
        };
        let (without, with) = (crowd(&plain, "unobserved"), crowd(&heard, "observed"));
        let [without, with] = interleaved(21, SLICE, [without.case(), with.case()]);
        table.row(
            format!("one lock, {threads} threads, an observer that counts: rate of none"),
            with.over(&without),
            Target::AtLeast(0.95),
        );
    }
}

/// Compares the kinds that pass within a tenure. The fair lock, whose threads each take a place in Redis, is compared
/// with a reentrant lock that passes only through Redis.
fn one_of_each_kind(server: &Server, table: &mut Table) {
    let (passing, asking) = (open(server, TENURE), open(server, Duration::ZERO));
    let crowd = |client, kind: Kind, prefix: &str| {
        Crowd::of(
            kind,
            client,
            &format!("{prefix}:{kind:?}"),
            8,
            Duration::ZERO,
        )
    };
    let crowds = [Kind::Reentrant, Kind::Fenced, Kind::Spin, Kind::Write]
        .map(|kind| crowd(&passing, kind, "passing"));
    let fair = crowd(&passing, Kind::Fair, "passing");
    let without = crowd(&asking, Kind::Reentrant, "asking");
    let [a, b, c, d] = crowds.each_ref().map(Crowd::case);
    let rates = interleaved(9, SLICE, [a, b, c, d, fair.case(), without.case()]);
    let [reentrant, fenced, spin, write, fair, without] = &rates;
    println!();
    for (what, rates) in [
        ("reentrant lock", reentrant),
        ("fenced lock", fenced),
        ("spin lock", spin),
        ("rwlock, writing", write),
        ("fair lock", fair),
        ("reentrant lock without a tenure", without),
    ] {
        println!("8 threads on one {what}, empty: {:.0}/s", rates.median());
    }
    for (what, rates) in [
        ("fenced lock", fenced),
        ("spin lock", spin),
        ("rwlock, writing", write),
    ] {
        table.row(
            format!("8 threads on one {what}, empty: rate of a reentrant lock"),
            rates.over(reentrant),
            Target::None,
        );
    }
    table.row(
        "8 threads on one fair lock, empty: rate of a reentrant lock without a tenure",
        fair.over(without),
        Target::None,
    );
    for client in [passing, asking] {
        assert_eq!(client.stats().lost, 0);
    }
}

/// Threads that share a read hold, compared with threads that each ask Redis: one round trip, without the release.
fn readers(server: &Server, table: &mut Table) {
    const NAME: &str = "readers:bare";
    let client = open(server, TENURE);
    let lock = Lock::new(&client, Kind::Read, "readers");
    let mut shared = vec![|| lock.pair(End::Drop); 8];
    let mut alone: Vec<_> = (0..8)
        .map(|n| {
            let owner = rig::owner(n);
            let mut connection = rig::connection(server);
            let acquire = rig::evalsha(
                &mut connection,
                lua::RW_READ_ACQUIRE,
                &[
                    NAME,
                    &format!("{}:reader", rig::rw_channel(NAME)),
                    &format!("{}:writer", rig::rw_channel(NAME)),
                    &format!("{{{NAME}}}:{owner}:rwlock_timeout:1"),
                ],
                &[&owner, "?", "0", "1000", "30000", ""],
            );
            move || {
                let taken = ask(&mut connection, &acquire);
                assert!(matches!(taken, Value::Array(parts) if parts[0] == Value::Int(1)));
            }
        })
        .collect();
    let [with, without] = interleaved(
        9,
        SLICE,
        [
            Box::new(|slice| together(&mut shared, Enough::After(slice)).rate()),
            Box::new(|slice| together(&mut alone, Enough::After(slice)).rate()),
        ],
    );
    println!(
        "8 threads that read: {:.0}/s; {:.0}/s with a round trip each",
        with.median(),
        without.median()
    );
    table.row(
        "8 threads that read: rate of a round trip each",
        with.over(&without),
        Target::AtLeast(10.0),
    );
    assert_eq!(client.stats().lost, 0);
}

fn as_many_locks(server: &Server, table: &mut Table) {
    let client = open(server, TENURE);
    for (threads, target) in [
        (4, Target::None),
        (8, Target::AtLeast(1.8)),
        (32, Target::AtLeast(2.2)),
        (64, Target::AtLeast(2.4)),
    ] {
        let mut locks = spread(&client, &format!("each:{threads}"), threads);
        let mut bare: Vec<_> = (0..threads)
            .map(|n| {
                let mut bare = Bare::new(&server.url(), &format!("bare:{threads}:{n}"));
                move || {
                    bare.acquire();
                    bare.release();
                }
            })
            .collect();
        let [ours, theirs] = interleaved(
            9,
            SLICE,
            [
                Box::new(|slice| together(&mut locks, Enough::After(slice)).rate()),
                Box::new(|slice| together(&mut bare, Enough::After(slice)).rate()),
            ],
        );
        println!(
            "{threads} threads on as many locks: {:.0}/s; {:.0}/s with a connection each",
            ours.median(),
            theirs.median()
        );
        table.row(
            format!("{threads} locks: rate of a connection each, release waited for"),
            ours.over(&theirs),
            target,
        );
    }
    assert_eq!(client.stats().lost, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Processes
// ---------------------------------------------------------------------------------------------------------------------

/// Two processes with one thread each on one lock.
struct Pair {
    processes: [Hammer; 2],
    rates: Vec<f64>,
    balances: Vec<f64>,
    waits: Vec<f64>,
}

impl Pair {
    fn new(server: &Server, name: &str, tenure: Duration, work: Duration) -> Self {
        let process = || Hammer::new(server, name, tenure, work);
        Self {
            processes: [process(), process()],
            rates: Vec::new(),
            balances: Vec::new(),
            waits: Vec::new(),
        }
    }

    fn run(&mut self, span: Duration) {
        for process in &mut self.processes {
            process.begin(span);
        }
        let ended = self.processes.each_mut().map(Hammer::end);
        let [(a, a_waited), (b, b_waited)] = ended;
        assert!(a > 0 && b > 0, "both get it");
        let (least, most) = (f64::from(a.min(b)), f64::from(a.max(b)));
        self.rates.push((least + most) / span.as_secs_f64());
        self.balances.push(least / most);
        self.waits.push(a_waited.max(b_waited).as_secs_f64() * 1e3);
    }
}

fn two_processes(server: &Server, table: &mut Table) {
    const SPAN: Duration = Duration::from_millis(700);
    println!(
        "\n{:<36} {:>8} {:>8}  longest wait of each round, ms",
        "two processes, one lock", "a second", "min/max"
    );
    for (work, what) in [(Duration::ZERO, "empty"), (LONG, "100 us of work")] {
        let mut with = Pair::new(server, &format!("pair:{}", work.as_micros()), TENURE, work);
        let mut without = Pair::new(
            server,
            &format!("no_tenure:{}", work.as_micros()),
            Duration::ZERO,
            work,
        );
        for pair in [&mut with, &mut without] {
            pair.run(Duration::from_millis(50));
            (pair.rates, pair.balances, pair.waits) = Default::default();
        }
        for _ in 0..scaled(5) {
            with.run(SPAN);
            without.run(SPAN / 2);
        }
        for (pair, tenure) in [(&with, "5 ms"), (&without, "0")] {
            let waits: Vec<_> = pair.waits.iter().map(|ms| format!("{ms:.1}")).collect();
            println!(
                "{:<36} {:>8.0} {:>8.3}  {}",
                format!("{what}, tenure {tenure}"),
                median(&pair.rates),
                median(&pair.balances),
                waits.join(" "),
            );
        }
        table.row(
            format!("two processes, {what}: longest wait in tenures"),
            median(&with.waits) / (TENURE.as_secs_f64() * 1e3),
            Target::AtMost(2.0),
        );
        let ratios: Vec<_> = with
            .rates
            .iter()
            .zip(&without.rates)
            .map(|(a, b)| a / b)
            .collect();
        table.row(
            format!("two processes, {what}: rate of no tenure"),
            median(&ratios),
            Target::None,
        );
    }
}
