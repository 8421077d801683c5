//! The cost of counting a latch down and of reading its state, and the time until the last waiter has returned.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;

use crate::rig::{Case, Table, Target, interleaved, median, scaled, significant, typical};
use crate::support::{Server, lua};

/// Time for all threads to park.
const SETTLE: Duration = Duration::from_millis(5);

const STATE: &str = lua::LATCH_STATE;

/// Redisson's script, which counts twice if a request is sent again.
const REDISSON: &str = "local v = redis.call('decr', KEYS[1])
if v <= 0 then redis.call('del', KEYS[1]) end
if v == 0 then redis.call('publish', KEYS[2], ARGV[1]) end";

/// More than all count-downs of this bench.
const MANY: u64 = 1 << 40;

fn main() {
    let server = rig::start();
    let mut table = Table::default();
    let trip = verbs(&server, &mut table);
    println!(
        "\n{:<44} {:>9} {:>9}",
        "until the last one is woken", "us, p50", "us, p99"
    );
    let show = |what: &str, (p50, p99): (f64, f64)| {
        println!("{what:<44} {:>9} {:>9}", significant(p50), significant(p99));
    };
    for (clients, threads) in [(1, 1), (1, 24), (3, 24), (4, 100)] {
        let woken = woken(&server, clients, threads);
        let floor = messages(&server, clients, threads);
        let what = format!("{threads} threads of {clients} clients");
        show(&what, woken);
        show(&format!("{what}: bare messages"), floor);
        table.row(format!("{what}, bare PINGs"), woken.0 / trip, Target::None);
        let ratio = woken.1 / floor.1;
        table.row(format!("{what}, p99 of bare messages"), ratio, Target::None);
    }
    table.print();
}

fn open(server: &Server) -> Client {
    Client::open(rig::config(server.url())).expect("the server is up")
}

/// Measures each verb, in turn with bare commands; returns the time of a PING in microseconds.
fn verbs(server: &Server, table: &mut Table) -> f64 {
    let client = open(server);
    let (counted, closed) = (client.latch("counted"), client.latch("closed"));
    let (open, turns) = (client.latch("open"), client.latch("turns"));
    for latch in [&counted, &closed, &client.latch("redisson")] {
        assert!(latch.try_set_count(MANY).expect("a reply"));
    }
    let ping = redis::cmd("PING").get_packed_command();
    let mut bare = rig::connection(server);
    let state = rig::evalsha(&mut bare, STATE, &["closed", "{closed}:round"], &[]);
    let redisson = rig::evalsha(&mut bare, REDISSON, &["redisson", "channel"], &["0"]);
    let mut bare = [(); 3].map(|()| rig::connection(server));
    let [first, second, third] = &mut bare;
    let cases: [Case<'_>; 7] = [
        typical(move || drop(rig::ask(first, &ping))),
        typical(move || drop(rig::ask(second, &state))),
        typical(move || drop(rig::ask(third, &redisson))),
        typical(|| counted.count_down().expect("a reply")),
        typical(|| assert!(!closed.wait_for(Duration::ZERO).expect("a reply"))),
        typical(|| open.wait().expect("a reply")),
        typical(|| {
            assert!(turns.try_set_count(1).expect("a reply"));
            turns.count_down().expect("a reply");
        }),
    ];
    let rates = interleaved(41, Duration::from_millis(25), cases);
    println!("\n{:<44} {:>9}", "one thread, in turn", "us each");
    let us = |of: &rig::Rates| 1e6 / of.median();
    let [trip, state, redisson, counted, closed, open, turns] = &rates;
    for (what, rates) in [
        ("bare PING", trip),
        ("bare question", state),
        ("bare count down, as Redisson", redisson),
        ("count_down", counted),
        ("question about a closed latch", closed),
        ("wait for an open latch", open),
        ("try_set_count and count_down", turns),
    ] {
        println!("{what:<44} {:>9}", significant(us(rates)));
    }
    for (what, rates, of, target) in [
        ("question, a bare one", closed, state, Target::AtMost(1.15)),
        (
            "count_down, Redisson's bare",
            counted,
            redisson,
            Target::None,
        ),
        ("count_down, bare PINGs", counted, trip, Target::None),
        ("question, bare PINGs", closed, trip, Target::None),
        (
            "wait for an open latch, bare PINGs",
            open,
            trip,
            Target::None,
        ),
        ("set and count down, bare PINGs", turns, trip, Target::None),
    ] {
        table.row(what, of.over(rates), target);
    }
    assert_eq!(client.stats().reconnects, 0);
    us(trip)
}

/// The 50th and the 99th percentile.
fn percentiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (median(&times), times[(times.len() - 1) * 99 / 100])
}

/// The lower bound of `woken`, in microseconds: one reader per client, which gets a message and wakes its threads.
fn messages(server: &Server, clients: usize, threads: usize) -> (f64, f64) {
    let channel_name = format!("floor:{clients}:{threads}");
    let (back, came) = channel();
    let mut times = Vec::new();
    let mut publisher = rig::connection(server);
    let publish = redis::cmd("PUBLISH")
        .arg(&channel_name)
        .arg("0")
        .get_packed_command();
    thread::scope(|scope| {
        for client in 0..clients {
            let mine = (client..threads).step_by(clients);
            let wake: Vec<_> = mine
                .map(|_| {
                    let (start, rounds) = channel::<()>();
                    let back = back.clone();
                    scope.spawn(move || {
                        for () in rounds {
                            back.send(Instant::now()).expect("somebody wants to know");
                        }
                    });
                    start
                })
                .collect();
            let mut connection = rig::connection(server);
            let name = channel_name.clone();
            let rounds = scaled(200);
            scope.spawn(move || {
                let mut pubsub = connection.as_pubsub();
                pubsub.subscribe(name).expect("it may listen");
                for _ in 0..rounds {
                    pubsub.get_message().expect("a message");
                    for start in &wake {
                        start.send(()).expect("it listens");
                    }
                }
            });
        }
        let expected = redis::Value::Int(i64::try_from(clients).expect("few"));
        let numsub = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(&channel_name)
            .get_packed_command();
        loop {
            let redis::Value::Array(parts) = rig::ask(&mut publisher, &numsub) else {
                continue;
            };
            if parts.last() == Some(&expected) {
                break;
            }
        }
        for _ in 0..scaled(200) {
            thread::sleep(SETTLE);
            let since = Instant::now();
            rig::ask(&mut publisher, &publish);
            let last = (0..threads).map(|_| came.recv().expect("all listen")).max();
            let took = last.map_or(Duration::ZERO, |last| last - since);
            times.push(took.as_secs_f64() * 1e6);
        }
    });
    percentiles(times)
}

/// Microseconds from the last count-down until the last of `threads` threads has returned.
fn woken(server: &Server, clients: usize, threads: usize) -> (f64, f64) {
    let name = format!("woken:{clients}:{threads}");
    let clients: Vec<_> = (0..clients).map(|_| open(server)).collect();
    let latch = open(server).latch(&name);
    let (back, came) = channel();
    let mut times = Vec::new();
    thread::scope(|scope| {
        let wake: Vec<_> = clients
            .iter()
            .cycle()
            .take(threads)
            .map(|client| {
                let (start, rounds) = channel::<()>();
                let (latch, back) = (client.latch(&name), back.clone());
                scope.spawn(move || {
                    for () in rounds {
                        latch.wait().expect("it opens");
                        back.send(Instant::now()).expect("somebody wants to know");
                    }
                });
                start
            })
            .collect();
        for _ in 0..scaled(200) {
            assert!(latch.try_set_count(1).expect("a reply"));
            for start in &wake {
                start.send(()).expect("it listens");
            }
            let parked = || {
                let asked: u64 = clients
                    .iter()
                    .map(|client| client.stats().subscriptions)
                    .sum();
                asked == clients.len() as u64
            };
            while !parked() {
                thread::yield_now();
            }
            thread::sleep(SETTLE);
            let since = Instant::now();
            latch.count_down().expect("a reply");
            let last = (0..threads).map(|_| came.recv().expect("all wait")).max();
            let took = last.map_or(Duration::ZERO, |last| last - since);
            times.push(took.as_secs_f64() * 1e6);
        }
        drop(wake);
    });
    percentiles(times)
}
