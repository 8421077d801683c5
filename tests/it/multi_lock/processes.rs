//! Multi-locks in several processes: sets that overlap, named in any order.

use std::time::{Duration, Instant};

use redis::Connection;

use crate::support::multi_lock::{left, open};
use crate::support::{
    Dice, LONG, Part, Server, connection_to, eventually, given, increment, ms, say, unique,
};

const NAMES: usize = 6;

/// The second database, which contains no locks.
fn aside(url: &str) -> Connection {
    connection_to(&format!("{url}1"))
}

fn add(con: &mut Connection, counter: &str, n: i64) -> i64 {
    redis::cmd("INCRBY").arg(counter).arg(n).query(con).unwrap()
}

#[test]
#[ignore = "part of other tests"]
fn part_that_takes_sets() {
    let Some([url, name, seed, works]) = given() else {
        return;
    };
    let works = ms(works.parse().unwrap());
    let client = open(&url);
    client
        .mutex(unique("own"))
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    let (mut con, mut dice) = (aside(&url), Dice::new(seed.parse().unwrap()));
    add(&mut con, "ready", 1);
    let all: i64 = redis::cmd("GET").arg("all").query(&mut con).unwrap();
    eventually("all are ready", || add(&mut con, "ready", 0) == all);
    let begun = Instant::now();
    let (mut rounds, mut taken, mut longest) = (0, vec![0; NAMES], Duration::ZERO);
    while begun.elapsed() < works {
        let set = dice.some_of(NAMES, 4);
        let lock = client.multi_lock(set.iter().map(|n| format!("{name}:{n}")));
        let asked = Instant::now();
        let guard = lock.try_lock_for(LONG).unwrap().expect("progress");
        longest = longest.max(asked.elapsed());
        for &n in &set {
            assert_eq!(add(&mut con, &format!("inside:{n}"), 1), 1, "two hold {n}");
            increment(&mut con, &format!("counter:{n}"));
            taken[n] += 1;
        }
        for &n in &set {
            add(&mut con, &format!("inside:{n}"), -1);
        }
        rounds += 1;
        // Every second release waits for the reply; the others are drops.
        if rounds % 2 == 0 {
            guard.unlock().unwrap();
        }
    }
    let taken: Vec<_> = taken.iter().map(i64::to_string).collect();
    let longest = longest.as_micros();
    say(&format!("sums {rounds} {longest} {}", taken.join(" ")));
}

#[test]
fn processes_with_overlapping_sets_never_deadlock() {
    const PROCESSES: usize = 8;
    const WORKS: Duration = ms(2_000);
    let server = Server::start();
    let name = unique("sets");
    let mut con = aside(&server.url());
    add(&mut con, "all", i64::try_from(PROCESSES).unwrap());
    let works = WORKS.as_millis().to_string();
    let mut processes: Vec<_> = (1..=PROCESSES)
        .map(|seed| {
            let given = [server.url(), name.clone(), seed.to_string(), works.clone()];
            Part::start(part_that_takes_sets, &given.each_ref().map(String::as_str))
        })
        .collect();
    let mut taken = vec![0; NAMES];
    for process in &mut processes {
        let said = process.says("sums");
        let sums: Vec<i64> = said.split(' ').map(|n| n.parse().unwrap()).collect();
        let [rounds, longest, counts @ ..] = &*sums else {
            panic!("{said}");
        };
        // No process is guaranteed to be next, but every process makes progress.
        assert!(*rounds > 0 && *longest < 10_000_000, "{said}");
        for (sum, n) in taken.iter_mut().zip(counts) {
            *sum += n;
        }
        process.ends();
    }
    // No two holders were ever inside at the same time.
    for (n, taken) in taken.into_iter().enumerate() {
        assert_eq!(add(&mut con, &format!("counter:{n}"), 0), taken);
        assert_eq!(add(&mut con, &format!("inside:{n}"), 0), 0);
    }
    left(&server, &[]);
}
