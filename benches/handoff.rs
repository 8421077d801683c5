//! How long it takes from a release to the next holder, in one process and across two.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support.rs"]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use redis::{Connection, Value};
use redlatch::Client;

use crate::rig::{Bare, CHILD, Table, Target, scaled};
use crate::support::Server;

/// Long enough for a thread that was about to park to be parked.
const SETTLE: Duration = Duration::from_millis(1);

const LOCK: &str = "handoff";
const BELL: &str = "bell";

fn main() {
    if let Ok(url) = std::env::var(CHILD) {
        return wait_when_told(&url);
    }
    let server = rig::start();
    let mut table = Table::default();
    println!(
        "\n{:<44} {:>7} {:>7} {:>7} {:>7} {:>6}",
        "us", "p50", "p90", "p99", "max", "n"
    );
    within_one_process(&server);
    across_two(&server, &mut table);
    table.print();
}

/// Nanoseconds on the clock that all processes of a machine share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every machine has it");
    u64::try_from(Duration::from(now).as_nanos()).expect("five centuries are enough")
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits")
}

fn p50(of: &Histogram<u64>) -> f64 {
    of.value_at_quantile(0.5) as f64
}

fn show(what: &str, of: &Histogram<u64>) {
    let us = |nanos: u64| nanos as f64 / 1e3;
    println!(
        "{what:<44} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>6}",
        us(of.value_at_quantile(0.5)),
        us(of.value_at_quantile(0.9)),
        us(of.value_at_quantile(0.99)),
        us(of.max()),
        of.len(),
    );
}

/// Two threads: one holds for `held` while the other stands in line, then lets go.
fn within_one_process(server: &Server) {
    for (held, times, what, asks) in [
        (SETTLE, 300, "in process, tenure young: passed on", false),
        (
            SETTLE * 6,
            200,
            "in process, tenure over: through redis",
            true,
        ),
    ] {
        let client = Client::open(server.url()).expect("the server is up");
        let lock = client.reentrant_lock(LOCK);
        let mut wakes = histogram();
        let times = scaled(times);
        thread::scope(|scope| {
            let (go, told) = channel::<()>();
            let (got, heard) = channel();
            let waiting = client.reentrant_lock(LOCK);
            scope.spawn(move || {
                for () in told {
                    let guard = waiting.lock().expect("a grant");
                    let at = now();
                    guard.unlock().expect("it is ours");
                    got.send(at).expect("somebody wants to know");
                }
            });
            for _ in 0..times {
                let guard = lock.lock().expect("a grant");
                go.send(()).expect("it listens");
                thread::sleep(held);
                let passed = client.stats().passed;
                let let_go = now();
                drop(guard);
                let got = heard.recv().expect("it got the lock");
                // On a busy machine the other thread may have come too late, or we.
                if (client.stats().passed > passed) != asks {
                    wakes.record(got - let_go).expect("any time fits");
                }
                // Longer than a tenure survives without a holder, so that each turn begins one.
                thread::sleep(Duration::from_millis(6));
            }
        });
        assert!(
            wakes.len() > u64::from(times / 2),
            "most turns went as planned"
        );
        assert_eq!(client.stats().lost, 0);
        show(what, &wakes);
    }
}

/// The other process: takes the lock, or waits for the bell, whenever a line says so, and answers with the time.
fn wait_when_told(url: &str) {
    let client = Client::open(url).expect("the server is up");
    let lock = client.reentrant_lock(LOCK);
    let mut listening = rig::connection_to(url);
    let mut listening = listening.as_pubsub();
    listening.subscribe(BELL).expect("a subscription");
    let mut bare = Bare::new(url, BELL);
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "lock" => {
                let guard = lock.lock().expect("a grant");
                let at = now();
                guard.unlock().expect("it is ours");
                println!("{at} {at}");
            }
            "bell" => {
                listening.get_message().expect("a message");
                let woken = now();
                bare.acquire();
                let at = now();
                bare.release();
                println!("{woken} {at}");
            }
            other => panic!("no such turn: {other}"),
        }
    }
    assert_eq!(client.stats().lost, 0);
}

struct Process {
    child: Child,
    replies: BufReader<ChildStdout>,
}

impl Process {
    fn new(server: &Server) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .env(CHILD, server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let replies = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, replies }
    }

    fn tell(&mut self, turn: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{turn}").expect("it listens");
    }

    fn times(&mut self) -> (u64, u64) {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("it answers");
        let (first, second) = line.trim().split_once(' ').expect("two numbers");
        let nanos = |text: &str| text.parse().expect("nanoseconds");
        (nanos(first), nanos(second))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait().expect("it is ours");
        assert!(ended.success() || thread::panicking(), "{ended}");
    }
}

/// Returns when somebody listens to `channel`, and has had time to park.
fn until_heard(connection: &mut Connection, channel: &str) {
    for _ in 0..40_000 {
        let (_, listeners): (String, u32) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel)
            .query(connection)
            .expect("PUBSUB NUMSUB");
        if listeners == 1 {
            thread::sleep(SETTLE);
            return;
        }
        thread::sleep(SETTLE / 4);
    }
    panic!("nobody listens to {channel}");
}

/// The other process waits, here is let go; in turn with a bare message and a bare acquire,
/// which is the least it can take: a message has to come, and the question has to go.
fn across_two(server: &Server, table: &mut Table) {
    let client = Client::open(server.url()).expect("the server is up");
    let lock = client.reentrant_lock(LOCK);
    let channel = rig::channel(LOCK);
    let mut looking = rig::connection(server);
    let mut publishing = rig::connection(server);
    let publish = redis::cmd("PUBLISH")
        .arg(BELL)
        .arg("0")
        .get_packed_command();
    let mut other = Process::new(server);

    let (mut held, mut woken, mut floor) = (histogram(), histogram(), histogram());
    for turn in 0..scaled(1500) {
        let guard = lock.lock().expect("a grant");
        other.tell("lock");
        until_heard(&mut looking, &channel);
        let let_go = now();
        drop(guard);
        let (_, got) = other.times();

        other.tell("bell");
        until_heard(&mut looking, BELL);
        let rung = now();
        publishing.send_packed_command(&publish).expect("a socket");
        let (heard, answered) = other.times();
        let listeners = publishing.recv_response().expect("a reply");
        assert_eq!(listeners, Value::Int(1));

        // The first turns begin threads and connections.
        if turn < 10 && rig::is_measuring() {
            continue;
        }
        held.record(got - let_go).expect("any time fits");
        woken.record(heard - rung).expect("any time fits");
        floor.record(answered - rung).expect("any time fits");
    }
    drop(other);
    assert_eq!(client.stats().lost, 0);
    show("bare: PUBLISH to the blocked reader", &woken);
    show("bare: that, and the acquire by one round trip", &floor);
    show("across processes: release to held", &held);
    table.row(
        "across processes, p50: of a bare message and acquire",
        p50(&held) / p50(&floor),
        Target::AtMost(1.15),
    );
    table.row(
        "across processes, p99: of a bare message and acquire",
        held.value_at_quantile(0.99) as f64 / floor.value_at_quantile(0.99) as f64,
        Target::None,
    );
}
