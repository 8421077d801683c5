//! The time from a release to the next grant: in one process, across several, along the queue that Redis keeps, and to
//! all readers at once; and the cost of a release for the server when that queue is long.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use redis::{Connection, ConnectionLike, Script, Value};
use redlatch::Client;

use crate::rig::processes::CHILD;
use crate::rig::{Bare, Case, Rates, Table, Target, ask, interleaved, scaled};
use crate::support::{Server, lua};

/// Time for a thread to park.
const SETTLE: Duration = Duration::from_millis(1);

/// Longer than a tenure lasts without a holder, so that the next holder neither hands over nor yields.
const NEW_TENURE: Duration = Duration::from_millis(6);

/// How long each holder keeps the fair lock while others queue.
const HELD: Duration = Duration::from_millis(1);

/// Reading threads per process.
const READERS: usize = 8;

const LOCK: &str = "handoff";
const FAIR: &str = "handoff:fair";
const SHARED: &str = "handoff:shared";

fn main() {
    if let Ok(task) = std::env::var(CHILD) {
        let (url, channel) = task.split_once(' ').expect("a server and a channel");
        return follow_orders(url, channel);
    }
    let server = rig::start();
    let mut table = Table::default();
    println!(
        "\n{:<44} {:>7} {:>7} {:>7} {:>7} {:>6}",
        "us", "p50", "p90", "p99", "max", "n"
    );
    within_one_process(&server);
    across_two(&server, &mut table);
    along_the_queue(&server, &mut table);
    to_all_readers(&server, &mut table);
    with_a_long_queue(&server, &mut table);
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

/// Two threads of one process: the first holds for `held` while the second queues, then releases.
fn within_one_process(server: &Server) {
    for (held, times, what, asks) in [
        (
            SETTLE,
            300,
            "in process, within the tenure: handed over",
            false,
        ),
        (
            SETTLE * 6,
            200,
            "in process, tenure over: through Redis",
            true,
        ),
    ] {
        let client = Client::open(rig::config(server.url())).expect("the server is up");
        let lock = client.reentrant_lock(LOCK);
        let mut wakes = histogram();
        let times = scaled(times);
        thread::scope(|scope| {
            let (go, rounds) = channel::<()>();
            let (got, heard) = channel();
            let waiting = client.reentrant_lock(LOCK);
            scope.spawn(move || {
                for () in rounds {
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
                let passed = client.stats().local_handoffs;
                let released = now();
                drop(guard);
                let got = heard.recv().expect("it got the lock");
                // On a busy machine a thread may be late, so that the lock was passed in the other way: leave that turn
                // out.
                if (client.stats().local_handoffs > passed) != asks {
                    wakes.record(got - released).expect("any time fits");
                }
                thread::sleep(NEW_TENURE);
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

/// The child process: each line on its input tells it to acquire a lock or wait for a message; it replies with times.
fn follow_orders(url: &str, channel: &str) {
    let client = Client::open(rig::config(url)).expect("the server is up");
    let lock = client.reentrant_lock(LOCK);
    let fair = client.fair_lock(FAIR);
    let mut listening = rig::connection_to(url);
    let mut listening = listening.as_pubsub();
    listening.subscribe(channel).expect("a subscription");
    let mut bare = Bare::new(url, channel);
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "lock" => {
                let guard = lock.lock().expect("a grant");
                let at = now();
                guard.unlock().expect("it is ours");
                println!("{at} {at}");
            }
            "message" => {
                listening.get_message().expect("a message");
                let woken = now();
                bare.acquire();
                let at = now();
                bare.release();
                println!("{woken} {at}");
            }
            "fair" => {
                let guard = fair.lock().expect("a grant");
                let got = now();
                thread::sleep(HELD);
                let released = now();
                drop(guard);
                // The parent reads the reply at once, which would disturb the next in the queue, so reply a little
                // later.
                thread::sleep(HELD);
                println!("{got} {released}");
            }
            "read" => {
                let (first, last) = read_together(&client);
                println!("{first} {last}");
            }
            turns => {
                let turns = turns.parse().expect("a number of turns");
                let mut times = String::new();
                for _ in 0..turns {
                    let guard = fair.lock().expect("a grant");
                    let got = now();
                    thread::sleep(HELD);
                    times += &format!("{got} {} ", now());
                    drop(guard);
                }
                println!("{times}");
            }
        }
    }
    assert_eq!(client.stats().lost, 0);
}

/// Acquires a read lock in several threads and holds all at once; returns the times of the first and the last grant.
fn read_together(client: &Client) -> (u64, u64) {
    let all_in = Barrier::new(READERS);
    let times: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let guard = client.rw_lock(SHARED).read().expect("a grant");
                    let at = now();
                    all_in.wait();
                    drop(guard);
                    at
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no reader panics"))
            .collect()
    });
    let of = |at: Option<&u64>| *at.expect("somebody reads");
    (of(times.iter().min()), of(times.iter().max()))
}

struct Process(rig::processes::Process);

impl Process {
    fn new(server: &Server, channel: &str) -> Self {
        let task = format!("{} {channel}", server.url());
        Self(rig::processes::Process::new(task))
    }

    fn order(&mut self, turn: &str) {
        self.0.order(turn);
    }

    fn times(&mut self) -> (u64, u64) {
        self.pairs()[0]
    }

    fn pairs(&mut self) -> Vec<(u64, u64)> {
        let nanos: Vec<u64> = self
            .0
            .reply()
            .split_whitespace()
            .map(|text| text.parse().expect("nanoseconds"))
            .collect();
        nanos.chunks(2).map(|pair| (pair[0], pair[1])).collect()
    }
}

/// Waits until `ready` returns true, and then until all waiters have had time to park.
fn settled(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..40_000 {
        if ready() {
            thread::sleep(SETTLE);
            return;
        }
        thread::sleep(SETTLE / 4);
    }
    panic!("not within ten seconds: {what}");
}

/// Waits until `channel` has this many subscribers, and then until they have had time to park.
fn until_heard(connection: &mut Connection, channel: &str, listeners: u32) {
    settled(channel, || {
        let (_, heard): (String, u32) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel)
            .query(connection)
            .expect("PUBSUB NUMSUB");
        heard == listeners
    });
}

/// The lower bound of a hand-over: a bare message to a process, which then acquires a lock by a bare request.
struct Message {
    name: &'static str,
    looking: Connection,
    publishing: Connection,
    publish: Vec<u8>,
    woken: Histogram<u64>,
    held: Histogram<u64>,
}

impl Message {
    fn new(server: &Server, name: &'static str) -> Self {
        Self {
            name,
            looking: rig::connection(server),
            publishing: rig::connection(server),
            publish: redis::cmd("PUBLISH")
                .arg(name)
                .arg("0")
                .get_packed_command(),
            woken: histogram(),
            held: histogram(),
        }
    }

    fn send(&mut self, other: &mut Process, counts: bool) {
        other.order("message");
        until_heard(&mut self.looking, self.name, 1);
        let sent = now();
        self.publishing
            .send_packed_command(&self.publish)
            .expect("a socket");
        let (woken, held) = other.times();
        let listeners = self.publishing.recv_response().expect("a reply");
        assert_eq!(listeners, Value::Int(1));
        if counts {
            self.woken.record(woken - sent).expect("any time fits");
            self.held.record(held - sent).expect("any time fits");
        }
    }
}

/// Whether a turn counts: connections and threads are still new in the first ones.
fn counts(turn: u32) -> bool {
    turn >= 10 || !rig::is_measuring()
}

/// This process releases a lock for which the other one waits. In turn with the lower bound: a bare message and a bare
/// acquire.
fn across_two(server: &Server, table: &mut Table) {
    const NAME: &str = "message:two";
    let client = Client::open(rig::config(server.url())).expect("the server is up");
    let lock = client.reentrant_lock(LOCK);
    let channel = rig::channel(LOCK);
    let mut looking = rig::connection(server);
    let mut other = Process::new(server, NAME);
    let mut message = Message::new(server, NAME);

    let mut held = histogram();
    for turn in 0..scaled(1500) {
        let guard = lock.lock().expect("a grant");
        other.order("lock");
        until_heard(&mut looking, &channel, 1);
        let released = now();
        drop(guard);
        let (_, got) = other.times();
        if counts(turn) {
            held.record(got - released).expect("any time fits");
        }
        message.send(&mut other, counts(turn));
    }
    drop(other);
    assert_eq!(client.stats().lost, 0);
    show("bare: PUBLISH to the blocked reader", &message.woken);
    show(
        "bare: that, and the acquire by one round trip",
        &message.held,
    );
    show("across processes: release to held", &held);
    table.row(
        "across processes, p50: of a bare message and acquire",
        p50(&held) / p50(&message.held),
        Target::AtMost(1.15),
    );
    table.row(
        "across processes, p99: of a bare message and acquire",
        held.value_at_quantile(0.99) as f64 / message.held.value_at_quantile(0.99) as f64,
        Target::None,
    );
}

/// Four processes queue for a fair lock. First each acquires it once; then all acquire it again and again, so that each
/// queues again while the next one is being woken.
fn along_the_queue(server: &Server, table: &mut Table) {
    const NAME: &str = "message:queue:0";
    const TURNS: usize = 20;
    let client = Client::open(rig::config(server.url())).expect("the server is up");
    let lock = client.fair_lock(FAIR);
    let mut looking = rig::connection(server);
    let channels = format!("{}:*", rig::channel(FAIR));
    let mut queued = || -> usize {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg(&channels)
            .query(&mut looking)
            .expect("PUBSUB CHANNELS");
        channels.len()
    };
    let mut others: Vec<_> = (0..4)
        .map(|n| Process::new(server, &format!("message:queue:{n}")))
        .collect();
    let mut message = Message::new(server, NAME);

    let (mut once, mut again) = (histogram(), histogram());
    for turn in 0..scaled(400) {
        let guard = lock.lock().expect("a grant");
        for (queued_before, other) in others[1..].iter_mut().enumerate() {
            other.order("fair");
            settled("one more in the queue", || queued() == queued_before + 1);
        }
        let mut released = now();
        drop(guard);
        for other in &mut others[1..] {
            let (got, its_release) = other.times();
            assert!(got > released, "first come, first served");
            if counts(turn) {
                once.record(got - released).expect("any time fits");
            }
            released = its_release;
        }
        message.send(&mut others[0], counts(turn));
        if turn % 20 == 0 {
            for other in &mut others {
                other.order(&TURNS.to_string());
            }
            let mut times: Vec<_> = others.iter_mut().flat_map(Process::pairs).collect();
            assert_eq!(times.len(), TURNS * others.len());
            times.sort_unstable();
            // At both ends some processes are not in the queue.
            let steady = &times[2 * others.len()..times.len() - others.len()];
            for pair in steady.windows(2) {
                let [(_, released), (got, _)] = *pair else {
                    unreachable!("windows of two");
                };
                assert!(got > released, "one at a time");
                again.record(got - released).expect("any time fits");
            }
        }
    }
    drop(others);
    assert_eq!(client.stats().lost, 0);
    show("bare: message and acquire", &message.held);
    show("along the queue of a fair lock, once", &once);
    show("along the queue of a fair lock, again", &again);
    for (what, of) in [("once", &once), ("again and again", &again)] {
        table.row(
            format!("fair, 4 processes, {what}, p50: of a bare message and acquire"),
            p50(of) / p50(&message.held),
            Target::AtMost(2.0),
        );
    }
}

/// A writer releases while threads of three processes wait to read.
fn to_all_readers(server: &Server, table: &mut Table) {
    let client = Client::open(rig::config(server.url())).expect("the server is up");
    let lock = client.rw_lock(SHARED);
    let channel = rig::rw_channel(SHARED);
    let mut looking = rig::connection(server);
    let ping = redis::cmd("PING").get_packed_command();
    let mut others = [0, 1, 2].map(|n| Process::new(server, &format!("message:readers:{n}")));

    let (mut trip, mut first, mut all) = (histogram(), histogram(), histogram());
    for turn in 0..scaled(300) {
        let guard = lock.write().expect("a grant");
        for other in &mut others {
            other.order("read");
        }
        until_heard(&mut looking, &channel, 3);
        // One thread per process subscribes; give the others time to queue behind it.
        thread::sleep(SETTLE * 2);
        let asked = now();
        ask(&mut looking, &ping);
        let answered = now();
        thread::sleep(SETTLE);
        let released = now();
        drop(guard);
        let times = others.each_mut().map(Process::times);
        thread::sleep(NEW_TENURE);
        if counts(turn) {
            let (firsts, lasts) = (times.map(|(first, _)| first), times.map(|(_, last)| last));
            let since = |at: Option<&u64>| at.expect("three") - released;
            trip.record(answered - asked).expect("any time fits");
            first
                .record(since(firsts.iter().min()))
                .expect("any time fits");
            all.record(since(lasts.iter().max()))
                .expect("any time fits");
        }
    }
    drop(others);
    assert_eq!(client.stats().lost, 0);
    let readers = 3 * READERS;
    show("bare: one round trip", &trip);
    show("rwlock: write release to the first reader", &first);
    show(
        &format!("rwlock: write release to the last of {readers} readers"),
        &all,
    );
    for (what, of) in [
        ("the first".to_owned(), &first),
        (format!("all {readers}"), &all),
    ] {
        table.row(
            format!("rwlock, a writer releases, {what} of 3 processes read, p50: in round trips"),
            p50(of) / p50(&trip),
            Target::None,
        );
    }
}

/// The script of a turn at the head of a queue that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Release,
    Acquire,
}

/// A fair lock with a queue of waiters that never ask. Each turn puts one more at its head, which acquires and
/// releases.
struct Queue {
    connection: Connection,
    turn: Vec<u8>,
}

impl Queue {
    const COMMANDS: usize = 4;

    /// The script of `part` runs by EVALSHA and the other by EVAL, so that the server counts them separately.
    fn new(server: &Server, waiters: usize, part: Part) -> Self {
        let mut connection = rig::connection(server);
        let name = match part {
            Part::Release => format!("release:{waiters}"),
            Part::Acquire => format!("acquire:{waiters}"),
        };
        let queue = format!("redisson_lock_queue:{{{name}}}");
        let timeouts = format!("redisson_lock_timeout:{{{name}}}");
        let alive = format!("redisson_lock_alive:{{{name}}}");
        // A time in the year 2255: the waiters never expire.
        const FAR: u64 = 9_000_000_000_000;
        let mut fill = redis::pipe();
        for n in 1..=waiters {
            fill.rpush(&queue, rig::owner(n)).ignore();
            fill.zadd(&timeouts, rig::owner(n), FAR).ignore();
            fill.zadd(&alive, rig::owner(n), FAR).ignore();
        }
        fill.exec(&mut connection).expect("a queue");

        let channel = rig::channel(&name);
        let keys = [&*name, &queue, &timeouts, &alive, &channel];
        let ticket = rig::owner(0);
        let mut script = |counts: bool, text: &str, args: &[&str]| {
            let mut command = if counts {
                let script = Script::new(text);
                script.load(&mut connection).expect("SCRIPT LOAD");
                redis::cmd("EVALSHA").arg(script.get_hash()).take()
            } else {
                redis::cmd("EVAL").arg(text).take()
            };
            command.arg(keys.len()).arg(&keys).arg(args).take()
        };
        let acquire = script(
            part == Part::Acquire,
            lua::FAIR_ACQUIRE,
            &["3000", &ticket, "30000", "has"],
        );
        let release = script(part == Part::Release, lua::FAIR_RELEASE, &["3000", &ticket]);
        let turn = redis::pipe()
            .lpush(&queue, &ticket)
            .zadd(&timeouts, &ticket, FAR)
            .add_command(acquire)
            .add_command(release)
            .get_packed_pipeline();
        Self { connection, turn }
    }

    /// The rate at which the server could run the measured script if it did nothing else.
    fn case(&mut self) -> Case<'_> {
        Box::new(|slice| {
            redis::cmd("CONFIG")
                .arg("RESETSTAT")
                .exec(&mut self.connection)
                .expect("CONFIG RESETSTAT");
            let start = Instant::now();
            while start.elapsed() < slice {
                let replies = self
                    .connection
                    .req_packed_commands(&self.turn, 0, Self::COMMANDS)
                    .expect("replies");
                assert_eq!(replies[1..], [Value::Int(1), Value::Nil, Value::Int(0)]);
            }
            let stats: String = redis::cmd("INFO")
                .arg("commandstats")
                .query(&mut self.connection)
                .expect("INFO");
            let of = |prefix: &str| -> f64 {
                let counted = stats
                    .lines()
                    .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))
                    .expect("it has been called");
                counted
                    .split(',')
                    .find_map(|part| part.strip_prefix(prefix))
                    .and_then(|number| number.parse().ok())
                    .expect("a number")
            };
            of("calls=") / of("usec=") * 1e6
        })
    }
}

/// Measured by the server's own time, since a round trip takes many times as long.
fn with_a_long_queue(server: &Server, table: &mut Table) {
    const SHORT: usize = 10;
    const LONG: usize = 1000;
    let mut queues = [
        Queue::new(server, SHORT, Part::Release),
        Queue::new(server, LONG, Part::Release),
        Queue::new(server, SHORT, Part::Acquire),
        Queue::new(server, LONG, Part::Acquire),
    ];
    let rates = interleaved(
        31,
        Duration::from_millis(15),
        queues.each_mut().map(Queue::case),
    );
    println!();
    let [release, long_release, acquire, long_acquire] = &rates;
    let us = |rates: &Rates| rig::significant(1e6 / rates.median());
    for (what, short, long, target) in [
        ("release", release, long_release, Target::AtMost(1.5)),
        ("acquire at the head", acquire, long_acquire, Target::None),
    ] {
        println!(
            "fair {what}: {} us of the server with {SHORT} waiters, {} us with {LONG}",
            us(short),
            us(long)
        );
        table.row(
            format!("fair {what}, {LONG} waiters: the server's time with {SHORT}"),
            short.over(long),
            target,
        );
    }
}
