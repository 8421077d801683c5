//! The cost of a semaphore's permits: for one thread, beside the reentrant lock, and for many threads of one process.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::Criterion;
use redlatch::{Client, Semaphore};

use crate::rig::{Case, End, Kind, Lock, Rates, Table, Target, interleaved, typical};
use crate::support::Server;

/// The number of threads and the number of permits.
const CROWD: (usize, u32) = (64, 8);

fn main() {
    let server = rig::start();
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let client = Client::open(rig::config(server.url())).expect("the server is up");
    let mut group = criterion.benchmark_group("semaphore");
    let one = semaphore(&client, "absolute", 1);
    group.bench_function("uncontended", |b| b.iter(|| pair(&one, End::Drop)));
    group.bench_function("uncontended_release", |b| {
        b.iter(|| pair(&one, End::Unlock));
    });
    group.finish();
    criterion.final_summary();
    let mut table = Table::default();
    alone(&client, &mut table);
    crowd(&server, &mut table);
    table.print();
}

fn semaphore(client: &Client, name: &str, permits: u32) -> Semaphore {
    let semaphore = client.semaphore(name);
    assert!(semaphore.try_set_permits(permits).expect("an answer"));
    semaphore
}

fn pair(semaphore: &Semaphore, end: End) {
    let permit = semaphore.acquire().expect("a permit");
    match end {
        End::Drop => drop(permit),
        End::Unlock => permit.release().expect("it is ours"),
    }
}

/// One thread: acquire and release, beside lock and unlock of the reentrant lock.
fn alone(client: &Client, table: &mut Table) {
    println!("\n{:<44} {:>9}", "one thread, in turn", "us each");
    for (end, verb) in [(End::Drop, "drop"), (End::Unlock, "release")] {
        let lock = Lock::new(client, Kind::Reentrant, &format!("lock:{verb}"));
        let permits = semaphore(client, &format!("permits:{verb}"), 1);
        let slots = client.expirable_semaphore(format!("slots:{verb}"));
        assert!(slots.try_set_permits(1).expect("an answer"));
        let cases: [Case<'_>; 3] = [
            typical(|| lock.pair(end)),
            typical(|| pair(&permits, end)),
            typical(|| {
                let permit = slots.acquire().expect("a permit");
                match end {
                    End::Drop => drop(permit),
                    End::Unlock => permit.release().expect("it is ours"),
                }
            }),
        ];
        let [lock, permits, slots] = interleaved(41, Duration::from_millis(25), cases);
        show(&format!("reentrant lock + {verb}"), &lock);
        show(&format!("semaphore + {verb}"), &permits);
        show(&format!("expirable semaphore + {verb}"), &slots);
        table.row(
            format!("expirable acquire + {verb}, time of the reentrant lock's pair"),
            lock.over(&slots),
            Target::None,
        );
        table.row(
            format!("acquire + {verb}, time of the reentrant lock's pair"),
            lock.over(&permits),
            Target::AtMost(1.1),
        );
    }
}

/// Many threads, with a tenure and without.
fn crowd(server: &Server, table: &mut Table) {
    let (threads, permits) = CROWD;
    println!(
        "\n{:<44} {:>9}",
        format!("{threads} threads, {permits} permits"),
        "us each"
    );
    let clients = [Duration::from_millis(5), Duration::ZERO].map(|tenure| {
        Client::open(rig::config(server.url()).tenure(tenure)).expect("the server is up")
    });
    let [with, without] = ["with", "without"].map(|what| format!("crowd:{what}"));
    let (with, without) = (
        semaphore(&clients[0], &with, permits),
        semaphore(&clients[1], &without, permits),
    );
    // Redis cannot tell clients of one process from clients of several, so four clients stand for four processes.
    let others: Vec<_> = (0..4)
        .map(|_| Client::open(rig::config(server.url())).expect("the server is up"))
        .collect();
    let across = semaphore(&others[0], "crowd:across", permits);
    let across: Vec<_> = others
        .iter()
        .map(|client| client.semaphore(across.name()))
        .collect();
    let cases: [Case<'_>; 3] = [
        together(std::slice::from_ref(&with), threads),
        together(std::slice::from_ref(&without), threads),
        together(&across, threads),
    ];
    let [with, without, across] = interleaved(11, Duration::from_millis(200), cases);
    show("of 4 clients", &across);
    table.row(
        format!("{threads} threads of 4 clients, rate of one client"),
        across.over(&with),
        Target::None,
    );
    show("within tenures of 5 ms", &with);
    show("without a tenure", &without);
    table.row(
        format!("{threads} threads on {permits} permits, rate of no tenure"),
        with.over(&without),
        Target::None,
    );
    let stats = clients[0].stats();
    println!(
        "{} permits by Redis, {} in process",
        stats.acquired, stats.local_handoffs
    );
}

fn together(semaphores: &[Semaphore], threads: usize) -> Case<'_> {
    Box::new(move |slice| {
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let began = Instant::now();
        thread::scope(|scope| {
            for semaphore in semaphores.iter().cycle().take(threads) {
                let (done, stop) = (&done, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        pair(semaphore, End::Drop);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            thread::sleep(slice);
            stop.store(true, Ordering::Relaxed);
        });
        let done = u32::try_from(done.load(Ordering::Relaxed)).expect("fewer");
        f64::from(done) / began.elapsed().as_secs_f64()
    })
}

fn show(what: &str, rates: &Rates) {
    println!("{what:<44} {:>9}", rig::significant(1e6 / rates.median()));
}
