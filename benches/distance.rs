//! The cost of a plain lock and of a `RedLock` whose servers are far away, in round trips. Proxies delay everything.
//!
//! `cargo bench --bench distance -- 5ms` runs one part: plain, 1ms, 5ms, 10ms, uneven.
//!
//! Two clients of each master stand for two processes. Everything runs in this process, the proxies too, so the delays
//! are long compared with the time that a busy machine needs.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::any::Any;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, RedLock};

use crate::rig::{End, Kind, Lock, Table, Target, ask, connection_to, scaled};
use crate::support::Target as On;
use crate::support::{Mode, Proxy, Server, ms};

const MASTERS: usize = 5;

/// Delays of a `RedLock`'s requests and replies, in milliseconds each way.
const DELAYS: [u64; 3] = [1, 5, 10];

/// Round trips to the server of a plain lock, in milliseconds.
const ROUND_TRIPS: [u64; 2] = [1, 5];

/// The time before each release: the waiter asks, subscribes and asks again within it.
const SETTLES: Duration = ms(60);

/// How often the lock is passed on.
const PASSED: u32 = 31;

fn main() {
    let mut table = Table::default();
    println!("{:<56} {:>9}", "", "ms");
    if rig::wants("plain") {
        plain(&mut table);
    }
    for delay in DELAYS.map(ms) {
        if !rig::wants(&format!("{delay:?}")) {
            continue;
        }
        let far = Far::start(&[delay; MASTERS]);
        let round_trip = far.round_trip(0);
        show(&format!("{delay:?} each way: PING"), round_trip);
        let pairs = |end| far.pairs(end);
        let [dropped, unlocked] = [pairs(End::Drop), pairs(End::Unlock)];
        let passed = far.passed_on();
        for (what, took, target) in [
            ("lock + drop", dropped, 1.1),
            ("lock + unlock", unlocked, 2.4),
            ("from a release to the next holder", passed, 3.0),
        ] {
            show(&format!("{delay:?} each way: {what}"), took);
            let ratio = took.as_secs_f64() / round_trip.as_secs_f64();
            table.row(
                format!("{delay:?} each way: {what}, round trips"),
                ratio,
                Target::AtMost(target),
            );
        }
        for (how, mut worse) in [("killed", far.clone_of()), ("frozen", far.clone_of())] {
            for server in &mut worse.servers[MASTERS / 2 + 1..] {
                match how {
                    "killed" => server.kill(),
                    _ => server.freeze(),
                }
            }
            worse.warm_up();
            for (what, took, whole) in [
                ("lock + drop", worse.pairs(End::Drop), dropped),
                ("lock + unlock", worse.pairs(End::Unlock), unlocked),
                (
                    "from a release to the next holder",
                    worse.passed_on(),
                    passed,
                ),
            ] {
                show(&format!("{delay:?} each way, two {how}: {what}"), took);
                table.row(
                    format!("{delay:?} each way, two {how}: {what}, over five alive"),
                    took.as_secs_f64() / whole.as_secs_f64(),
                    Target::AtMost(1.1),
                );
            }
            for server in &worse.servers[MASTERS / 2 + 1..] {
                if how == "frozen" {
                    server.thaw();
                }
            }
        }
    }
    if rig::wants("uneven") {
        uneven(&mut table);
    }
    table.print();
}

/// The lock of one server, at two distances. All that does not depend on the distance, such as the work of proxy and
/// threads, is part of both figures, so their difference consists of round trips alone.
fn plain(table: &mut Table) {
    const WHAT: [(&str, f64); 3] = [
        ("lock + drop, a name each", 1.05),
        ("lock + unlock", 2.1),
        ("from a release to the next holder", 2.1),
    ];
    let [near, distant] = ROUND_TRIPS.map(|length| {
        let far = Far::start(&[ms(length) / 2]);
        let round_trip = far.round_trip(0);
        let mut say = |what: &str, took: Duration, target: Target| {
            let what = format!("a round trip of {length} ms: {what}");
            show(&what, took);
            let ratio = took.as_secs_f64() / round_trip.as_secs_f64();
            table.row(format!("{what}, round trips"), ratio, target);
        };
        let lock = |name: &str| Lock::new(&far.ours[0], Kind::Reentrant, name);
        let mut number = 0;
        let names = median(101, || {
            number += 1;
            lock(&format!("names:{number}")).pair(End::Drop);
        });
        let one = lock("one");
        let unlocked = median(101, || one.pair(End::Unlock));
        let times = [names, unlocked, far.passed_on()];
        for ((what, _), took) in WHAT.into_iter().zip(times) {
            say(what, took, Target::None);
        }
        // After a tenure an acquire may wait for the reply to the last release, so measure two pairs in a row as one.
        let twice = median(51, || {
            one.pair(End::Drop);
            one.pair(End::Drop);
        });
        say(
            "lock + drop of one name, again and again",
            twice / 2,
            Target::AtMost(1.1),
        );
        (round_trip, times)
    });
    let farther = |near: Duration, distant: Duration| distant.as_secs_f64() - near.as_secs_f64();
    let round_trip = farther(near.0, distant.0);
    for ((what, target), (near, distant)) in WHAT.into_iter().zip(near.1.into_iter().zip(distant.1))
    {
        table.row(
            format!("{what}: round trips by the difference"),
            farther(near, distant) / round_trip,
            Target::AtMost(target),
        );
    }
}

/// Three of five masters are near; the cost must be that of near masters, whichever three they are.
fn uneven(table: &mut Table) {
    let near = Far::start(&[ms(1); MASTERS]);
    let alone = near.pairs(End::Drop);
    for far_ones in [[1, 1, 1, 5, 5], [5, 5, 1, 1, 1], [5, 1, 5, 1, 1]] {
        let some = Far::start(&far_ones.map(ms));
        some.warm_up();
        let took = some.pairs(End::Drop);
        show(&format!("{far_ones:?} ms each way: lock + drop"), took);
        table.row(
            format!("{far_ones:?} ms each way: lock + drop, over 1 ms each"),
            took.as_secs_f64() / alone.as_secs_f64(),
            Target::AtMost(1.2),
        );
    }
}

/// Servers, each behind a proxy that delays. A single server is locked with a plain lock, several with a `RedLock`.
struct Far {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
    delays: Vec<Duration>,
    ours: Vec<Client>,
    theirs: Vec<Client>,
}

impl Far {
    fn start(delays: &[Duration]) -> Self {
        let servers: Vec<_> = delays.iter().map(|_| Server::start()).collect();
        let proxies: Vec<_> = servers.iter().map(Proxy::before).collect();
        let open = || -> Vec<_> {
            let open =
                |proxy: &Proxy| Client::open(rig::config(proxy.url())).expect("the server is up");
            proxies.iter().map(open).collect()
        };
        let (ours, theirs) = (open(), open());
        for (proxy, delay) in proxies.iter().zip(delays) {
            proxy.set(On::All, Mode::DelayBoth(*delay));
        }
        Self {
            servers,
            proxies,
            delays: delays.to_vec(),
            ours,
            theirs,
        }
    }

    /// Starts new servers with the same delays.
    fn clone_of(&self) -> Self {
        Self::start(&self.delays)
    }

    /// The median time of a PING.
    fn round_trip(&self, node: usize) -> Duration {
        let mut connection = connection_to(&self.proxies[node].url());
        let ping = redis::cmd("PING").get_packed_command();
        median(51, || {
            ask(&mut connection, &ping);
        })
    }

    fn lock(&self, name: &str) -> RedLock {
        RedLock::new(&self.ours, name).expect("five masters")
    }

    /// Locks for a while, so that the client learns which masters reply, and how fast.
    fn warm_up(&self) {
        let lock = self.lock("warm");
        let until = Instant::now() + Duration::from_secs(u64::from(scaled(3)));
        while Instant::now() < until {
            drop(lock.lock().expect("a majority"));
        }
    }

    fn pairs(&self, end: End) -> Duration {
        let lock = self.lock("pairs");
        median(101, || {
            let guard = lock.lock().expect("a majority");
            match end {
                End::Drop => drop(guard),
                End::Unlock => guard.unlock().expect("it is ours"),
            }
        })
    }

    /// The time from a release to the next grant, which another client gets.
    fn passed_on(&self) -> Duration {
        let locks = [&self.ours, &self.theirs].map(|clients| taking(clients, "passed"));
        let settles = SETTLES + 6 * self.delays[0];
        let mut times = Vec::new();
        for turn in 0..scaled(PASSED) {
            let [holds, waits] = match turn % 2 {
                0 => [&locks[0], &locks[1]],
                _ => [&locks[1], &locks[0]],
            };
            let guard = holds();
            let took = thread::scope(|scope| {
                let (has_it, got) = channel();
                scope.spawn(move || {
                    let guard = waits();
                    has_it.send(Instant::now()).ok();
                    drop(guard);
                });
                thread::sleep(settles);
                let released = Instant::now();
                drop(guard);
                got.recv().expect("it is passed on") - released
            });
            times.push(took);
            thread::sleep(settles);
        }
        times.sort_unstable();
        times[times.len() / 2]
    }
}

/// Returns a function that acquires a lock of these servers and returns the guard.
fn taking(clients: &[Client], name: &str) -> Box<dyn Fn() -> Box<dyn Any> + Sync> {
    if let [one] = clients {
        let lock = one.reentrant_lock(name);
        return Box::new(move || Box::new(lock.lock().expect("a grant")));
    }
    let lock = RedLock::new(clients, name).expect("five masters");
    Box::new(move || Box::new(lock.lock().expect("a majority")))
}

fn median(times: u32, mut operation: impl FnMut()) -> Duration {
    operation();
    let mut times: Vec<_> = (0..scaled(times))
        .map(|_| {
            let began = Instant::now();
            operation();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn show(what: &str, took: Duration) {
    let ms = took.as_secs_f64() * 1e3;
    println!("{what:<56} {:>9}", rig::significant(ms));
}
