//! A hundred buyers in four processes, ninety mooncakes, and a shop that reads, thinks and writes.
//!
//! 1. Without a lock the shop sells mooncakes it does not have.
//! 2. With a lock it sells ninety and turns ten buyers away.
//! 3. A process is killed while it holds the lock: the others go on once its lease has run out.
//!
//! ```text
//! cargo run --release --example stock                            a redis-server of its own
//! REDIS_URL=redis://host/ cargo run --release --example stock    keys under a new prefix, removed afterwards
//! ```
//!
//! Exits with 1 if a figure is wrong.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::io::{self, IsTerminal};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use redis::{Commands, Connection};
use redlatch::{Client, Config};

use shared::{Ours, Result, check, connect, redis_server};

mod shared;

const MOONCAKES: usize = 90;
const PROCESSES: usize = 4;
const BUYERS: usize = 25; // of each process, a thread each
const THINKING: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(2); // the default, 30 s, is long to watch after a kill

/// The stock and the till: numbers in Redis.
struct Shop {
    redis: Connection,
    prefix: String,
}

impl Shop {
    const ALL: [&str; 6] = ["stock", "sold", "turned-away", "door", "keys", "dreaming"];

    fn find(url: &str, prefix: &str) -> Result<Self> {
        Ok(Self {
            redis: connect(url)?,
            prefix: prefix.to_owned(),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    fn count(&mut self, name: &str) -> Result<usize> {
        let count: Option<usize> = self.redis.get(self.key(name))?;
        Ok(count.unwrap_or(0))
    }

    fn add_one(&mut self, name: &str) -> Result<()> {
        Ok(self.redis.incr(self.key(name), 1)?)
    }

    /// Read, think, write: right only if nobody else does the same meanwhile.
    fn sell_one(&mut self) -> Result<()> {
        let left = self.count("stock")?;
        thread::sleep(THINKING);
        if left == 0 {
            return self.add_one("turned-away");
        }
        // One transaction: a process killed here has written both or neither.
        let (stock, sold) = (self.key("stock"), self.key("sold"));
        let mut sale = redis::pipe();
        sale.atomic().set(stock, left - 1).incr(sold, 1);
        Ok(sale.query(&mut self.redis)?)
    }
}

// --- A process: 25 buyers, one client ---------------------------------------------------------------------------------

fn buyers(prefix: &str, locked: bool, doomed: bool) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let client = Client::open(Config::new(&url).lease(LEASE).label("stock"))?;
    let lock = client.reentrant_lock(format!("{prefix}:lock"));
    let inside = AtomicUsize::new(0);

    let buyer = || -> Result<Duration> {
        let mut shop = Shop::find(&url, prefix)?;
        // All buyers of all processes wait at the door and are let in together: each takes one key.
        shop.add_one("door")?;
        let _: Option<[String; 2]> = shop.redis.blpop(shop.key("keys"), 20.0)?;
        let came = Instant::now();
        if !locked {
            shop.sell_one()?;
            return Ok(Duration::ZERO);
        }
        let guard = lock.lock()?;
        let waited = came.elapsed();
        if doomed && inside.fetch_add(1, Ordering::Relaxed) == 2 {
            shop.add_one("dreaming")?;
            thread::sleep(Duration::from_secs(20)); // holding the lock; the process is killed now
            return Err("nobody killed this process".into());
        }
        shop.sell_one()?;
        guard.unlock()?; // dropping it would do, but this tells if the lock was lost
        Ok(waited)
    };
    let waits: Vec<_> = thread::scope(|scope| {
        let threads = [(); BUYERS].map(|()| scope.spawn(buyer));
        threads.into_iter().map(|thread| thread.join()).collect()
    });

    for waited in waits {
        let waited = waited.map_err(|_| "a buyer panicked")??;
        println!("waited {}", waited.as_millis());
    }
    let stats = client.stats();
    println!("acquired {}", stats.acquired);
    println!("passed {}", stats.passed);
    Ok(client.close(Duration::from_secs(2))?)
}

// --- The acts ---------------------------------------------------------------------------------------------------------

/// What an act came to. Of a process that was killed only what it had sold.
#[derive(Default)]
struct Figures {
    sold: usize,
    left: usize,
    turned_away: usize,
    took: Duration,
    stalled: Duration,
    waits_ms: Vec<u64>,
    by_redis: usize,
    passed: usize,
}

impl Figures {
    fn print(&self, title: &str) {
        let wait = |percent| self.waits_ms[(self.waits_ms.len() - 1) * percent / 100];
        println!(
            "{title:20}{:5}{:9}{:12}{:5}{:8.0}{:6} ms{:6} ms{:9}{:11}",
            self.sold,
            self.sold.saturating_sub(MOONCAKES),
            self.turned_away,
            self.left,
            self.sold as f64 / self.took.as_secs_f64(),
            wait(50),
            wait(99),
            self.by_redis,
            self.passed,
        );
    }
}

/// Opens the shop, lets everybody in at once, kills the first process when it dreams, counts when all have gone.
fn act(shop: &mut Shop, url: &str, title: &str, locked: bool, doomed: bool) -> Result<Figures> {
    let _: () = shop.redis.set(shop.key("stock"), MOONCAKES)?;
    let mut processes = Vec::new();
    for n in 0..PROCESSES {
        let command = Command::new(env::current_exe()?)
            .args([&shop.prefix, &locked.to_string()])
            .arg((doomed && n == 0).to_string())
            .env("REDIS_URL", url)
            .stdout(Stdio::piped())
            .spawn()?;
        processes.push(Ours(command));
    }
    await_count(shop, "door", PROCESSES * BUYERS)?;
    let _: () = shop
        .redis
        .rpush(shop.key("keys"), [1; PROCESSES * BUYERS].as_slice())?;
    let opened = Instant::now();

    let mut figures = Figures::default();
    if doomed {
        await_count(shop, "dreaming", 1)?;
        processes.remove(0); // which kills it
        let (killed, sold) = (Instant::now(), shop.count("sold")?);
        progress(&format!("{title}: killed one that holds the lock"), false);
        await_count(shop, "sold", sold + 1)?;
        figures.stalled = killed.elapsed();
    }
    for mut process in processes {
        while process.0.try_wait()?.is_none() {
            progress(&format!("{title}: {} sold", shop.count("sold")?), false);
            thread::sleep(Duration::from_millis(2));
        }
        if !process.0.wait()?.success() {
            return Err("a process of buyers failed".into());
        }
        figures.took = opened.elapsed();
        let said = io::read_to_string(process.0.stdout.take().ok_or("no pipe")?)?;
        for (what, n) in said.lines().filter_map(|line| line.split_once(' ')) {
            match what {
                "waited" => figures.waits_ms.push(n.parse()?),
                "acquired" => figures.by_redis += n.parse::<usize>()?,
                _ => figures.passed += n.parse::<usize>()?,
            }
        }
    }
    figures.waits_ms.sort_unstable();
    figures.sold = shop.count("sold")?;
    figures.left = shop.count("stock")?;
    figures.turned_away = shop.count("turned-away")?;
    progress(&format!("{title}: {} sold", figures.sold), true);
    Ok(figures)
}

fn play() -> Result<bool> {
    let (_server, url) = redis_server()?;
    let mut shop = Shop::find(&url, &format!("redlatch-stock:{}", uuid::Uuid::new_v4()))?;
    let mut play = |title, locked, doomed| {
        let figures = act(&mut shop, &url, title, locked, doomed);
        let keys = Shop::ALL.map(|name| shop.key(name));
        shop.redis.del::<_, ()>(keys.as_slice())?;
        figures
    };
    let bare = play("without a lock", false, false)?;
    let lock = play("with a lock", true, false)?;
    let kill = play("one process killed", true, true)?;

    println!(
        "\n                     sold oversold turned away left  sold/s wait p50 wait p99 by Redis in process"
    );
    bare.print("without a lock");
    lock.print("with a lock");
    kill.print("one process killed");
    let stalled = kill.stalled.as_secs_f64();
    println!(
        "\nKilling the holder stopped the others for {stalled:.2} s; its lease was {} s.\n",
        LEASE.as_secs()
    );

    let (all, survivors) = (PROCESSES * BUYERS, (PROCESSES - 1) * BUYERS);
    let right = [
        check("without a lock it oversells", bare.sold > MOONCAKES),
        check("with a lock all are sold", lock.sold == MOONCAKES),
        check("and none is left", lock.left == 0),
        check(
            "the rest is turned away",
            lock.turned_away == all - lock.sold,
        ),
        check("each had the lock once", lock.by_redis + lock.passed == all),
        check("survivors are served", kill.waits_ms.len() == survivors),
        check("nothing vanished", kill.sold + kill.left == MOONCAKES),
        check("the lease ended it", kill.stalled < LEASE * 2),
    ];
    Ok(right.iter().all(|right| *right))
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let right = match args.as_slice() {
        [] => play()?,
        [prefix, locked, doomed] => {
            buyers(prefix, locked == "true", doomed == "true")?;
            true
        }
        _ => return Err("it takes no arguments".into()),
    };
    Ok(ExitCode::from(u8::from(!right)))
}

// --- Stage hands ------------------------------------------------------------------------------------------------------

fn await_count(shop: &mut Shop, name: &str, count: usize) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    while shop.count(name)? < count {
        if Instant::now() > until {
            return Err(format!("`{name}` did not come to {count}").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// One line a step: on a terminal written over until it is final, elsewhere the final ones only.
fn progress(line: &str, is_final: bool) {
    if io::stderr().is_terminal() {
        eprint!("\r{line}\x1b[K{}", if is_final { "\n" } else { "" });
    } else if is_final {
        eprintln!("{line}");
    }
}
