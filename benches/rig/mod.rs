//! Shared by the benches: a server and clients on separate cores, cases measured in turn, and a table of targets.
//!
//! The speed of a machine drifts with other work and clock rates, so figures taken one after another cannot be
//! compared. A ratio here is the median over rounds, each of which runs a short slice of every case in turn.

#![allow(dead_code, reason = "each bench uses a part")]

pub(crate) mod by_hand;
pub(crate) mod processes;
pub(crate) mod threads;

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::{Connection, ConnectionLike, IntoConnectionInfo, Script, Value};
use redlatch::{Client, Config};

use crate::support::{GENEROUS, Server, lua};

/// If this variable is `0`, the kernel places the processes.
const PIN: &str = "REDLATCH_BENCH_PIN";

const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

/// Whether this run measures. `cargo test --benches` only checks that the benches work.
pub(crate) fn is_measuring() -> bool {
    env::args().any(|arg| arg == "--bench")
}

/// Whether this part of the bench runs: the command line names one part, or none for all.
pub(crate) fn wants(part: &str) -> bool {
    named().is_none_or(|named| named == part)
}

/// The part of the bench that the command line names.
pub(crate) fn named() -> Option<String> {
    env::args().skip(1).find(|arg| !arg.starts_with('-'))
}

/// `n` in a run that measures, otherwise 1.
pub(crate) fn scaled(n: u32) -> u32 {
    if is_measuring() { n } else { 1 }
}

/// The settings of clients. A run that does not measure gets long timeouts, since it may share both cores with a
/// compiler.
pub(crate) fn config(url: impl Into<String>) -> Config {
    let config = Config::new(url);
    if is_measuring() {
        config
    } else {
        config
            .connect_timeout(2 * GENEROUS)
            .command_timeout(2 * GENEROUS)
    }
}

/// Pins this process to the clients' core and starts a server on another core. Call it before starting threads.
pub(crate) fn start() -> Server {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let obstacle = if env::var(PIN).is_ok_and(|pin| pin == "0") {
        Some(format!("{PIN}=0"))
    } else if cores < 2 {
        Some(format!("{cores} core"))
    } else if !pin(CLIENT_CORE, std::process::id()) {
        Some("no taskset, or not those cores".to_owned())
    } else {
        None
    };
    let server = Server::start();
    match obstacle {
        None => {
            assert!(pin(SERVER_CORE, server.pid()), "the server can be pinned");
            println!(
                "pinned: the server to core {SERVER_CORE}, all clients to core {CLIENT_CORE}; {PIN}=0 to leave that"
            );
        }
        Some(why) => {
            println!("not pinned ({why}): the targets are for a server with a core to itself")
        }
    }
    server
}

/// Starts another server, on the core of the first if that one is pinned.
pub(crate) fn start_another() -> Server {
    beside_the_first(Server::start())
}

/// Starts a server that speaks TLS as well as plain text.
#[cfg(feature = "tls")]
pub(crate) fn start_tls() -> Server {
    let identity = crate::support::authority().issue(&["127.0.0.1"]);
    beside_the_first(Server::start_tls(&identity, &[]))
}

/// Starts a server that is a cluster by itself.
pub(crate) fn start_cluster() -> Server {
    beside_the_first(Server::start_cluster())
}

fn beside_the_first(server: Server) -> Server {
    let wanted = env::var(PIN).is_ok_and(|pin| pin == "0");
    if !wanted && std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
        // This process is pinned to a single core, so it sees only one; the servers' core is another.
        pin(SERVER_CORE, server.pid());
    }
    server
}

/// Pins all threads of a process, and those that it will start.
fn pin(core: usize, pid: u32) -> bool {
    Command::new("taskset")
        .args(["-apc", &core.to_string(), &pid.to_string()])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Numbers from a section of INFO by their names, such as `used_memory`.
pub(crate) fn info<const N: usize>(server: &Server, section: &str, names: [&str; N]) -> [f64; N] {
    let info: String = server.ask(&["INFO", section]);
    names.map(|name| {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok();
        info.lines().find_map(of).expect("the server tells it")
    })
}

/// The processor time that the server has used so far, in seconds.
pub(crate) fn busy(server: &Server) -> f64 {
    let [user, system] = info(server, "cpu", ["used_cpu_user", "used_cpu_sys"]);
    user + system
}

/// A connection without this crate: no delay, and a time limit so that nothing hangs.
pub(crate) fn connection(server: &Server) -> Connection {
    connection_to(&server.url())
}

pub(crate) fn connection_to(url: &str) -> Connection {
    let info = url
        .into_connection_info()
        .expect("a good URL")
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let connection = redis::Client::open(info)
        .and_then(|client| client.get_connection())
        .expect("the server is up");
    connection
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a socket");
    connection
}

/// Sends a packed command and waits for its reply.
pub(crate) fn ask(connection: &mut Connection, packed: &[u8]) -> Value {
    connection.req_packed_command(packed).expect("a reply")
}

/// Loads a script into the server, and returns a packed EVALSHA of it.
pub(crate) fn evalsha(
    connection: &mut Connection,
    text: &str,
    keys: &[&str],
    args: &[&str],
) -> Vec<u8> {
    let script = Script::new(text);
    script.load(connection).expect("SCRIPT LOAD");
    redis::cmd("EVALSHA")
        .arg(script.get_hash())
        .arg(keys.len())
        .arg(keys)
        .arg(args)
        .get_packed_command()
}

/// Runs this crate's scripts over a connection that waits for every reply.
pub(crate) struct Bare {
    connection: Connection,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl Bare {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        let mut connection = connection_to(url);
        let channel = channel(name);
        let acquire = evalsha(
            &mut connection,
            lua::LOCK_ACQUIRE,
            &[name],
            &[name, "30000"],
        );
        let release = evalsha(
            &mut connection,
            lua::LOCK_RELEASE,
            &[name, &channel],
            &[name],
        );
        Self {
            connection,
            acquire,
            release,
        }
    }

    pub(crate) fn acquire(&mut self) {
        assert_eq!(ask(&mut self.connection, &self.acquire), Value::Nil);
    }

    pub(crate) fn release(&mut self) {
        assert_eq!(ask(&mut self.connection, &self.release), Value::Int(0));
    }

    /// Sends an acquire without reading its reply.
    pub(crate) fn send_acquire(&mut self) {
        let sent = self.connection.send_packed_command(&self.acquire);
        sent.expect("the server is up");
    }

    /// Sends a release without reading its reply.
    pub(crate) fn send_release(&mut self) {
        let sent = self.connection.send_packed_command(&self.release);
        sent.expect("the server is up");
    }

    /// Reads one reply.
    pub(crate) fn receive(&mut self) -> Value {
        self.connection.recv_response().expect("a reply")
    }
}

/// The channel that announces releases of a lock.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The channel that announces releases of a read-write lock.
pub(crate) fn rw_channel(name: &str) -> String {
    format!("redisson_rwlock:{{{name}}}")
}

/// An owner or a ticket in this crate's format.
pub(crate) fn owner(number: usize) -> String {
    format!("01234567-89ab-cdef-0123-456789abcdef:{number}")
}

/// The kinds of locks that send different commands to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reentrant,
    Fair,
    Fenced,
    Spin,
    Write,
    Read,
}

/// How a hold ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Drop,
    Unlock,
}

/// Acquires a lock, runs the closure, and releases the lock.
type Hold = Box<dyn Fn(End, &dyn Fn()) + Send + Sync>;

/// A lock of any kind.
pub(crate) struct Lock {
    pub(crate) kind: Kind,
    hold: Hold,
}

impl Lock {
    pub(crate) fn new(client: &Client, kind: Kind, name: &str) -> Self {
        macro_rules! hold {
            ($lock:expr, $verb:ident) => {{
                let lock = $lock;
                Box::new(move |end, work| {
                    let guard = lock.$verb().expect("a grant");
                    work();
                    match end {
                        End::Drop => drop(guard),
                        End::Unlock => guard.unlock().expect("it is ours"),
                    }
                })
            }};
        }
        let hold: Hold = match kind {
            Kind::Reentrant => hold!(client.reentrant_lock(name), lock),
            Kind::Fair => hold!(client.fair_lock(name), lock),
            Kind::Fenced => hold!(client.fenced_lock(name), lock),
            Kind::Spin => hold!(client.spin_lock(name), lock),
            Kind::Write => hold!(client.rw_lock(name), write),
            Kind::Read => hold!(client.rw_lock(name), read),
        };
        Self { kind, hold }
    }

    /// Holds the lock while `work` runs.
    pub(crate) fn around(&self, work: impl Fn()) {
        (self.hold)(End::Drop, &work);
    }

    /// Acquires and releases the lock.
    pub(crate) fn pair(&self, end: End) {
        (self.hold)(end, &|| {});
    }
}

/// Keeps the core busy for `span`.
pub(crate) fn work(span: Duration) {
    if span.is_zero() {
        return;
    }
    let until = Instant::now() + span;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// A case to measure: runs for about the given time and returns its rate per second.
pub(crate) type Case<'a> = Box<dyn FnMut(Duration) -> f64 + 'a>;

/// A case of one thread that reads the clock only once per `batch` operations.
pub(crate) fn repeated<'a>(batch: u32, mut operation: impl FnMut() + 'a) -> Case<'a> {
    Box::new(move |slice| {
        let start = Instant::now();
        let mut done = 0_u32;
        loop {
            for _ in 0..batch {
                operation();
            }
            done += batch;
            let taken = start.elapsed();
            if taken >= slice {
                return f64::from(done) / taken.as_secs_f64();
            }
        }
    })
}

/// A case of one thread whose rate is that of its median operation, for ratios near one: the few operations that other
/// work on the machine makes many times longer do not count.
pub(crate) fn typical<'a>(mut operation: impl FnMut() + 'a) -> Case<'a> {
    Box::new(move |slice| {
        let start = Instant::now();
        let mut began = start;
        let mut times = Vec::new();
        while began - start < slice {
            operation();
            let ended = Instant::now();
            times.push((ended - began).as_secs_f64());
            began = ended;
        }
        1.0 / median(&times)
    })
}

/// The rates of one case, one per round.
#[derive(Clone)]
pub(crate) struct Rates(Vec<f64>);

impl Rates {
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The median of the rounds' ratios.
    pub(crate) fn over(&self, other: &Self) -> f64 {
        let ratios: Vec<f64> = self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect();
        median(&ratios)
    }
}

/// Runs a slice of every case in turn, `rounds` times, after one round that is not counted.
pub(crate) fn interleaved<const N: usize>(
    rounds: u32,
    slice: Duration,
    mut cases: [Case<'_>; N],
) -> [Rates; N] {
    for case in &mut cases {
        case(slice / 4);
    }
    let mut rates: [Rates; N] = std::array::from_fn(|_| Rates(Vec::new()));
    for _ in 0..scaled(rounds) {
        for (case, rates) in cases.iter_mut().zip(&mut rates) {
            rates.0.push(case(slice));
        }
    }
    rates
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The target of a ratio.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// No target: the ratio is printed for comparison.
    None,
}

/// The table that a bench prints at its end.
#[derive(Default)]
pub(crate) struct Table(Vec<(String, f64, Target)>);

impl Table {
    pub(crate) fn row(&mut self, what: impl Into<String>, ratio: f64, target: Target) {
        self.0.push((what.into(), ratio, target));
    }

    pub(crate) fn print(&self) {
        let width = self.0.iter().map(|(what, ..)| what.len()).max();
        let width = width.unwrap_or(0);
        println!("\n{:<width$} {:>9} {:>11}", "ratio", "measured", "target");
        for (what, ratio, target) in &self.0 {
            let (bound, verdict) = match *target {
                Target::AtMost(most) => (format!("<= {most}"), *ratio <= most),
                Target::AtLeast(least) => (format!(">= {least}"), *ratio >= least),
                Target::None => {
                    println!("{what:<width$} {:>9}", significant(*ratio));
                    continue;
                }
            };
            let verdict = if verdict { "met" } else { "missed" };
            println!(
                "{what:<width$} {:>9} {bound:>11}  {verdict}",
                significant(*ratio)
            );
        }
    }
}

/// Formats three significant digits.
pub(crate) fn significant(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.09995 => 3,
        _ => 5,
    };
    format!("{value:.digits$}")
}
