//! A semaphore as a gate for the jobs of many processes: at most eight run at once, however many want to.
//!
//! Six processes with twenty threads each enter the gate; some jobs need three places. Each job counts itself in Redis
//! while it runs, so that the example knows how many ran at once at most.
//!
//! ```text
//! cargo run --release --example rate_gate                            a redis-server of its own
//! REDIS_URL=redis://host/ cargo run --release --example rate_gate    keys under a new prefix, removed afterwards
//! ```
//!
//! Exits with 1 if more than eight ran at once, if a job did not run, or if places were lost.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use redis::Connection;
use redlatch::Client;

use shared::{Ours, Result, check, connect, redis_server};

mod shared;

const PLACES: u32 = 8;
const PROCESSES: usize = 6;
const THREADS: u32 = 20; // of each process
const JOBS: u32 = 5; // of each thread
const JOB: Duration = Duration::from_millis(2);

/// Adds a job to those inside, keeps the maximum of that number, and counts the job.
const COME_IN: &str = "
local inside = redis.call('hincrby', KEYS[1], 'inside', ARGV[1])
if inside > tonumber(redis.call('hget', KEYS[1], 'most') or 0) then
  redis.call('hset', KEYS[1], 'most', inside)
end
return redis.call('hincrby', KEYS[1], 'ran', 1)";

fn figure(redis: &mut Connection, book: &str, name: &str) -> Result<u32> {
    let mut read = redis::cmd("HGET");
    Ok(read
        .arg(book)
        .arg(name)
        .query::<Option<u32>>(redis)?
        .unwrap_or(0))
}

/// How many places the jobs of a thread need.
fn size(thread: u32) -> u32 {
    if thread.is_multiple_of(10) { 3 } else { 1 }
}

// --- A process ----------------------------------------------------------------------------------------------------------

fn workers(prefix: &str) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let client = Client::open(url.as_str())?;
    let gate = client.semaphore(format!("{prefix}:gate"));
    gate.try_set_permits(PLACES)?; // the first process sets it; all pass the same number
    let book = format!("{prefix}:book");

    let worker = |thread: u32| -> Result<Duration> {
        let mut redis = connect(&url)?;
        let mut longest = Duration::ZERO;
        for _ in 0..JOBS {
            let came = Instant::now();
            let _places = gate.acquire_many(size(thread))?;
            longest = longest.max(came.elapsed());
            let mut come_in = redis::cmd("EVAL");
            let come_in = come_in.arg(COME_IN).arg(1).arg(&book).arg(size(thread));
            let _: i64 = come_in.query(&mut redis)?;
            thread::sleep(JOB);
            let mut go = redis::cmd("HINCRBY");
            let go = go.arg(&book).arg("inside").arg(-i64::from(size(thread)));
            let _: i64 = go.query(&mut redis)?;
        }
        Ok(longest)
    };
    let waits: Vec<_> = thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> = (0..THREADS)
            .map(|n| scope.spawn(move || worker(n)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for longest in waits {
        let longest = longest.map_err(|_| "a worker panicked")??;
        println!("waited {}", longest.as_millis());
    }
    let stats = client.stats();
    println!("acquired {}", stats.acquired);
    println!("passed {}", stats.local_handoffs);
    Ok(client.close(Duration::from_secs(2))?)
}

// --- The whole ----------------------------------------------------------------------------------------------------------

fn play() -> Result<bool> {
    let (_server, url) = redis_server()?;
    let mut redis = connect(&url)?;
    let prefix = format!("redlatch-gate:{}", uuid::Uuid::new_v4());
    let (gate, book) = (format!("{prefix}:gate"), format!("{prefix}:book"));

    let began = Instant::now();
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let process = Command::new(env::current_exe()?)
            .arg(&prefix)
            .env("REDIS_URL", &url)
            .stdout(Stdio::piped())
            .spawn()?;
        processes.push(Ours(process));
    }
    let (mut longest, mut by_redis, mut passed) = (0, 0, 0);
    for mut process in processes {
        let said = io::read_to_string(process.0.stdout.take().ok_or("no pipe")?)?;
        if !process.0.wait()?.success() {
            return Err("a process of workers failed".into());
        }
        for (word, n) in said.lines().filter_map(|line| line.split_once(' ')) {
            let n: u64 = n.parse()?;
            match word {
                "waited" => longest = longest.max(n),
                "acquired" => by_redis += n,
                _ => passed += n,
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    let (ran, most) = (
        figure(&mut redis, &book, "ran")?,
        figure(&mut redis, &book, "most")?,
    );
    let places_left: i64 = redis::cmd("GET").arg(&gate).query(&mut redis)?;
    let _: i64 = redis::cmd("DEL").arg(&gate).arg(&book).query(&mut redis)?;

    let jobs = u32::try_from(PROCESSES)? * THREADS * JOBS;
    println!("{ran} of {jobs} jobs of {PROCESSES} processes in {took:.2} s");
    println!("at most {most} of {PLACES} places were taken at once; {places_left} are free now");
    println!("{by_redis} grants by Redis, {passed} in process; the longest wait was {longest} ms");
    let right = [
        check("no more ran at once than there are places", most <= PLACES),
        check("every job ran", ran == jobs),
        check(
            "every place is free again",
            places_left == i64::from(PLACES),
        ),
        check(
            "every job had its grant",
            by_redis + passed >= u64::from(jobs),
        ),
    ];
    Ok(right.iter().all(|right| *right))
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let right = match args.as_slice() {
        [] => play()?,
        [prefix] => {
            workers(prefix)?;
            true
        }
        _ => return Err("it takes no arguments".into()),
    };
    Ok(ExitCode::from(u8::from(!right)))
}
