//! The cost of holding several locks at once: several names of one server, and a majority of five masters.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::time::Duration;

use criterion::Criterion;
use redis::Value;
use redlatch::{Client, RedLock};

use crate::rig::{Bare, Case, End, Rates, Table, Target, interleaved, typical};
use crate::support::Server;

/// The number of names that are locked as one.
const NAMES: usize = 10;

/// The number of masters.
const MASTERS: usize = 5;

fn main() {
    let first = rig::start();
    let mut servers = vec![first];
    servers.extend((1..MASTERS).map(|_| rig::start_another()));
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    absolute(&servers, &mut criterion);
    criterion.final_summary();
    let mut table = Table::default();
    names(&servers[0], &mut table);
    masters(&mut servers, &mut table);
    table.print();
}

fn open(server: &Server) -> Client {
    Client::open(rig::config(server.url())).expect("the server is up")
}

fn members(prefix: &str) -> Vec<String> {
    (0..NAMES).map(|n| format!("{prefix}:{n}")).collect()
}

/// Acquires and releases a lock of any type that has these methods.
macro_rules! pair {
    ($lock:expr, $end:expr) => {{
        let (lock, end) = ($lock, $end);
        move || {
            let guard = lock.lock().expect("a grant");
            match end {
                End::Drop => drop(guard),
                End::Unlock => guard.unlock().expect("it is ours"),
            }
        }
    }};
}

fn absolute(servers: &[Server], criterion: &mut Criterion) {
    let clients: Vec<_> = servers.iter().map(open).collect();
    let red = || RedLock::new(&clients, "absolute").expect("five masters");
    for (end, function) in [
        (End::Drop, "uncontended"),
        (End::Unlock, "uncontended_unlock"),
    ] {
        let mut group = criterion.benchmark_group("multi_lock");
        let several = clients[0].multi_lock(members("absolute"));
        group.bench_function(function, |b| b.iter(pair!(&several, end)));
        group.finish();
        let mut group = criterion.benchmark_group("red_lock");
        group.bench_function(function, |b| b.iter(pair!(red(), end)));
        group.finish();
    }
}

/// Compares ten names of one server with one name.
fn names(server: &Server, table: &mut Table) {
    let client = open(server);
    println!("\n{:<44} {:>9}", "one server, in turn", "us each");
    for (end, verb) in [(End::Drop, "drop"), (End::Unlock, "unlock")] {
        let cases: [Case<'_>; 3] = [
            typical(pair!(client.reentrant_lock(format!("one:{verb}")), end)),
            typical(pair!(client.multi_lock(members(verb)), end)),
            typical(one_by_one(&client, verb, end)),
        ];
        let rates = interleaved(41, Duration::from_millis(25), cases);
        let [one, named, in_turn] = &rates;
        show(&format!("one name + {verb}"), one);
        show(&format!("{NAMES} names + {verb}"), named);
        show(
            &format!("{NAMES} locks one after another + {verb}"),
            in_turn,
        );
        let target = Target::AtMost(2.5);
        for (what, rates, target) in [
            ("multi-lock of names", named, target),
            ("locks one after another", in_turn, Target::None),
        ] {
            table.row(
                format!("{NAMES} as {what} + {verb}, time of one"),
                one.over(rates),
                target,
            );
        }
    }
    assert_eq!(client.stats().lost, 0);
}

/// The alternative without a multi-lock: one lock after another.
fn one_by_one(client: &Client, verb: &str, end: End) -> impl FnMut() + use<> {
    let locks: Vec<_> = members(verb)
        .into_iter()
        .map(|name| client.reentrant_lock(format!("turn:{name}")))
        .collect();
    move || {
        let guards: Vec<_> = locks
            .iter()
            .map(|lock| lock.lock().expect("a grant"))
            .collect();
        for guard in guards {
            match end {
                End::Drop => drop(guard),
                End::Unlock => guard.unlock().expect("it is ours"),
            }
        }
    }
}

/// Compares a majority of five masters with one master, and with asking the masters one after another, as Redisson's
/// `RedissonRedLock` and redlock-rs do.
fn masters(servers: &mut [Server], table: &mut Table) {
    let clients: Vec<_> = servers.iter().map(open).collect();
    let one = |verb: &str| clients[0].reentrant_lock(format!("one:{verb}"));
    let red = |verb: &str| RedLock::new(&clients, format!("red:{verb}")).expect("five masters");
    println!("\n{:<44} {:>9}", "five masters, in turn", "us each");
    for (end, verb) in [(End::Drop, "drop"), (End::Unlock, "unlock")] {
        let mut bare: Vec<_> = servers
            .iter()
            .map(|server| Bare::new(&server.url(), &format!("bare:{verb}")))
            .collect();
        let mut at_once: Vec<_> = servers
            .iter()
            .map(|server| Bare::new(&server.url(), &format!("at_once:{verb}")))
            .collect();
        let mut owed = false;
        let cases: [Case<'_>; 4] = [
            typical(pair!(one(verb), end)),
            typical(pair!(red(verb), end)),
            // The lower bound: one thread with five sockets, which reads every reply. After a drop, the reply to the
            // release is read with the reply to the next acquire.
            typical(move || {
                at_once.iter_mut().for_each(Bare::send_acquire);
                for node in &mut at_once {
                    if owed {
                        assert_eq!(node.receive(), Value::Int(0));
                    }
                    assert_eq!(node.receive(), Value::Nil);
                }
                at_once.iter_mut().for_each(Bare::send_release);
                owed = end == End::Drop;
                if !owed {
                    for node in &mut at_once {
                        assert_eq!(node.receive(), Value::Int(0));
                    }
                }
            }),
            typical(move || {
                for node in &mut bare {
                    node.acquire();
                }
                for node in &mut bare {
                    node.release();
                }
            }),
        ];
        let [one, red, at_once, in_turn] = interleaved(41, Duration::from_millis(25), cases);
        show(&format!("one master + {verb}"), &one);
        show(&format!("RedLock over {MASTERS} + {verb}"), &red);
        show("bare, all masters at once", &at_once);
        show("bare, one master after another", &in_turn);
        table.row(
            format!("RedLock + {verb}, time of one master"),
            one.over(&red),
            Target::AtMost(1.6),
        );
        table.row(
            format!("RedLock + {verb}, time of bare commands to all at once"),
            at_once.over(&red),
            Target::None,
        );
        table.row(
            format!("RedLock + {verb}, time of one master after another"),
            in_turn.over(&red),
            Target::None,
        );
    }

    for server in &mut servers[MASTERS / 2 + 1..] {
        server.kill();
    }
    let (one, red) = (one("three"), red("three"));
    let cases: [Case<'_>; 2] = [
        typical(pair!(&one, End::Drop)),
        typical(pair!(&red, End::Drop)),
    ];
    let [alone, with_two_down] = interleaved(41, Duration::from_millis(25), cases);
    show("RedLock + drop, two masters down", &with_two_down);
    table.row(
        "RedLock + drop with two masters down, time of one master",
        alone.over(&with_two_down),
        Target::AtMost(1.6),
    );
    assert!(clients.iter().all(|client| client.stats().lost == 0));
}

fn show(what: &str, rates: &Rates) {
    println!("{what:<44} {:>9}", rig::significant(1e6 / rates.median()));
}
