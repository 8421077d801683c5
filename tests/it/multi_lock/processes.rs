//! Multi-locks between processes: sets that overlap, named in any order.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, process, thread};

use redis::Connection;

use crate::support::multi_lock::{left, open};
use crate::support::{Dice, LONG, Server, connection_to, eventually, increment, ms, unique};

const NAMES: usize = 6;

/// A process of ours; killed when dropped, and gone with this one whatever becomes of it.
struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(server: &Server, name: &str, seed: usize, works: Duration) -> Self {
        let mut child = Command::new(env::current_exe().expect("a binary"))
            .args(["--exact", "--include-ignored", "--nocapture"])
            .arg("multi_lock::processes::part_that_takes_sets")
            .env("REDLATCH_TEST_URL", server.url())
            .env("REDLATCH_TEST_NAME", name)
            .env("REDLATCH_TEST_SEED", seed.to_string())
            .env("REDLATCH_TEST_WORKS", works.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary runs again");
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// What follows `what` in its output.
    #[track_caller]
    fn says(&mut self, what: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some((_, said)) = line.split_once(what) {
                return said.trim().to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The second database, in which nobody locks.
fn aside(url: &str) -> Connection {
    connection_to(&format!("{url}1"))
}

fn add(con: &mut Connection, counter: &str, n: i64) -> i64 {
    redis::cmd("INCRBY").arg(counter).arg(n).query(con).unwrap()
}

#[test]
#[ignore = "part of other tests"]
#[expect(clippy::print_stdout, reason = "how the parent hears of it")]
fn part_that_takes_sets() {
    let given = |what: &str| env::var(format!("REDLATCH_TEST_{what}"));
    // Nothing is given if somebody runs ignored tests by hand.
    let (Ok(url), Ok(name), Ok(seed)) = (given("URL"), given("NAME"), given("SEED")) else {
        return;
    };
    let works = ms(given("WORKS").unwrap().parse().unwrap());
    thread::spawn(|| {
        // Open for as long as the parent lives.
        io::stdin().read_to_end(&mut Vec::new()).unwrap_or_default();
        process::exit(1);
    });
    let client = open(&url);
    client.mutex(unique("own")).with(|_| ()).unwrap();
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
        // Now and then waiting for the answer.
        if rounds % 2 == 0 {
            guard.unlock().unwrap();
        }
    }
    let taken: Vec<_> = taken.iter().map(i64::to_string).collect();
    println!("sums {rounds} {} {}", longest.as_micros(), taken.join(" "));
}

// M2
#[test]
fn processes_with_overlapping_sets_never_deadlock() {
    const PROCESSES: usize = 8;
    const WORKS: Duration = ms(2_000);
    let server = Server::start();
    let name = unique("sets");
    let mut con = aside(&server.url());
    add(&mut con, "all", i64::try_from(PROCESSES).unwrap());
    let mut processes: Vec<_> = (1..=PROCESSES)
        .map(|seed| Process::start(&server, &name, seed, WORKS))
        .collect();
    let mut taken = vec![0; NAMES];
    for process in &mut processes {
        let said = process.says("sums ");
        let sums: Vec<i64> = said.split(' ').map(|n| n.parse().unwrap()).collect();
        let [rounds, longest, its @ ..] = &*sums else {
            panic!("{said}");
        };
        // Nobody has a claim to be next, but everybody gets on.
        assert!(*rounds > 0 && *longest < 10_000_000, "{said}");
        for (sum, n) in taken.iter_mut().zip(its) {
            *sum += n;
        }
        let mut status = None;
        eventually("the process ends", || {
            status = process.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success());
    }
    // Nobody was ever inside with another.
    for (n, taken) in taken.into_iter().enumerate() {
        assert_eq!(add(&mut con, &format!("counter:{n}"), 0), taken);
        assert_eq!(add(&mut con, &format!("inside:{n}"), 0), 0);
    }
    left(&server, &[]);
}
