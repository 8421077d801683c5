//! A hundred buyers in four processes want ninety mooncakes. To sell one, the shop reads the stock, thinks, and writes.
//!
//! 1. Without a lock the shop sells mooncakes it does not have.
//! 2. With a lock it sells ninety and turns ten buyers away.
//! 3. A process is killed while it holds the lock: the others continue once its lease has expired.
//! 4. A process is stopped between reading and writing, and continues when its lease is over and others have sold:
//!    - with a plain client it writes back an old number, and mooncakes are sold twice;
//!    - through its guard the write is rejected, and the buyer starts again.
//!
//! ```text
//! cargo run --package stock                            a redis-server of its own
//! REDIS_URL=redis://host/ cargo run --package stock    keys under a new prefix, removed afterwards
//! ```
//!
//! Exits with 1 if a figure is wrong.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::io::{self, IsTerminal};
use std::process::{self, Command, ExitCode, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use redis::{Commands, Connection};
use redlatch::{Client, Config, Error, GuardedScript, ReentrantLockGuard};

use shared::{Ours, Result, check, connect, redis_server};

#[path = "../shared/mod.rs"]
mod shared;

const MOONCAKES: usize = 90;
const PROCESSES: usize = 4;
const BUYERS: usize = 25; // per process, one thread each
const THINKING: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(2); // the default, 30 s, is long to watch after a kill
const DREAMS_AT: usize = MOONCAKES - 2; // the buyer that reads this stock is killed or stopped before it writes
const MEANWHILE: usize = 20; // mooncakes that others sell before the stopped process continues

/// A sale through the guard: writes both numbers if the lock is held at that moment, and neither otherwise.
static SALE: LazyLock<GuardedScript> = LazyLock::new(|| {
    GuardedScript::new("redis.call('set', KEYS[1], ARGV[1]) redis.call('incr', KEYS[2])")
});

#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    NoLock,
    Lock,
    Killed,
    StoppedPlain,
    StoppedGuarded,
}

impl Act {
    const ALL: [(Self, &str); 5] = [
        (Self::NoLock, "without a lock"),
        (Self::Lock, "with a lock"),
        (Self::Killed, "one process killed"),
        (Self::StoppedPlain, "stopped, plain writes"),
        (Self::StoppedGuarded, "stopped, guarded writes"),
    ];

    fn title(self) -> &'static str {
        let entry = Self::ALL.iter().find(|(act, _)| *act == self);
        entry.map_or("", |(_, title)| title)
    }

    fn titled(title: &str) -> Result<Self> {
        let entry = Self::ALL.iter().find(|(_, entry)| *entry == title);
        Ok(entry.ok_or("no such act")?.0)
    }

    fn has_dreamer(self) -> bool {
        !matches!(self, Self::NoLock | Self::Lock)
    }
}

/// The shop's numbers in Redis, under one prefix.
struct Shop {
    redis: Connection,
    prefix: String,
}

impl Shop {
    const ALL: [&str; 8] = [
        "stock",
        "sold",
        "turned-away",
        "refused",
        "door",
        "keys",
        "dreaming",
        "wake",
    ];

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

    /// Reads the stock, thinks, and writes: correct only if nobody else does so at the same time. Returns false if the
    /// write was rejected.
    fn sell_one(&mut self, act: Act, guard: Option<&ReentrantLockGuard>) -> Result<bool> {
        let stock_left = self.count("stock")?;
        thread::sleep(THINKING);
        if act.has_dreamer() && stock_left == DREAMS_AT {
            self.dream()?;
        }
        if stock_left == 0 {
            self.add_one("turned-away")?;
            return Ok(true);
        }
        let (stock, sold) = (self.key("stock"), self.key("sold"));
        if let Some(guard) = guard.filter(|_| act == Act::StoppedGuarded) {
            return match guard.invoke(&SALE, &[stock, sold], stock_left - 1) {
                Err(Error::Lost { .. }) => Ok(false),
                sale => Ok(sale.map(|()| true)?),
            };
        }
        // A transaction, so that a process killed here has written both numbers or neither.
        let mut sale = redis::pipe();
        sale.atomic().set(stock, stock_left - 1).incr(sold, 1);
        let () = sale.query(&mut self.redis)?;
        Ok(true)
    }

    /// The first caller blocks here, until its process is killed or the main process wakes it after the stop.
    fn dream(&mut self) -> Result<()> {
        if self.redis.set_nx(self.key("dreaming"), process::id())? {
            let woken: Option<[String; 2]> = self.redis.blpop(self.key("wake"), 60.0)?;
            woken.ok_or("nobody killed this process, or woke it")?;
        }
        Ok(())
    }
}

// --- A process: 25 buyers, one client ---------------------------------------------------------------------------------

fn buyers(prefix: &str, act: Act) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let client = Client::open(Config::new(&url).lease(LEASE).label("stock"))?;
    let lock = client.reentrant_lock(format!("{prefix}:lock"));

    let buyer = || -> Result<Duration> {
        let mut shop = Shop::find(&url, prefix)?;
        // All buyers of all processes wait at the door and are let in together: each takes one key.
        shop.add_one("door")?;
        let _: Option<[String; 2]> = shop.redis.blpop(shop.key("keys"), 20.0)?;
        let came = Instant::now();
        if act == Act::NoLock {
            shop.sell_one(act, None)?;
            return Ok(Duration::ZERO);
        }
        let mut guard = lock.lock()?;
        let waited = came.elapsed();
        while !shop.sell_one(act, Some(&guard))? {
            // The lock was lost, so the stock that was read is out of date: lock and read again.
            shop.add_one("refused")?;
            drop(guard);
            guard = lock.lock()?;
        }
        // Unlike a drop, `unlock` reports a lost lock: too late for a plain client, which has already written.
        match guard.unlock() {
            Err(Error::Lost { .. }) if act == Act::StoppedPlain => {}
            unlocked => unlocked?,
        }
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
    println!("passed {}", stats.local_handoffs);
    Ok(client.close(Duration::from_secs(2))?)
}

// --- The acts ---------------------------------------------------------------------------------------------------------

/// The result of an act. A process that was killed reports nothing, so only its sales are included.
#[derive(Default)]
struct Figures {
    sold: usize,
    stock_left: usize,
    turned_away: usize,
    refused: usize,
    took: Duration,
    stalled: Duration,
    waits_ms: Vec<u64>,
    by_redis: usize,
    passed: usize,
}

impl Figures {
    fn oversold(&self) -> usize {
        self.sold.saturating_sub(MOONCAKES)
    }

    fn print(&self, act: Act) {
        let wait = |percent| self.waits_ms[(self.waits_ms.len() - 1) * percent / 100];
        println!(
            "{:23}{:5}{:9}{:12}{:5}{:8.0}{:6} ms{:6} ms{:9}{:11}",
            act.title(),
            self.sold,
            self.oversold(),
            self.turned_away,
            self.stock_left,
            self.sold as f64 / self.took.as_secs_f64(),
            wait(50),
            wait(99),
            self.by_redis,
            self.passed,
        );
    }
}

/// Opens the shop, lets all buyers in at once, disturbs the dreamer, and counts when all have left.
fn perform(shop: &mut Shop, url: &str, act: Act) -> Result<Figures> {
    let title = act.title();
    let _: () = shop.redis.set(shop.key("stock"), MOONCAKES)?;
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let command = Command::new(env::current_exe()?)
            .args([&shop.prefix, title])
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
    if act.has_dreamer() {
        figures.stalled = disturb(shop, act, &mut processes)?;
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
        for (word, n) in said.lines().filter_map(|line| line.split_once(' ')) {
            match word {
                "waited" => figures.waits_ms.push(n.parse()?),
                "acquired" => figures.by_redis += n.parse::<usize>()?,
                _ => figures.passed += n.parse::<usize>()?,
            }
        }
    }
    figures.waits_ms.sort_unstable();
    figures.sold = shop.count("sold")?;
    figures.stock_left = shop.count("stock")?;
    figures.turned_away = shop.count("turned-away")?;
    figures.refused = shop.count("refused")?;
    progress(&format!("{title}: {} sold", figures.sold), true);
    Ok(figures)
}

/// Kills the process that dreams while it holds the lock, or stops it for a while. Returns how long the others could
/// not sell.
fn disturb(shop: &mut Shop, act: Act, processes: &mut Vec<Ours>) -> Result<Duration> {
    await_count(shop, "dreaming", 1)?;
    let (dreamer, sold) = (shop.count("dreaming")?, shop.count("sold")?);
    let pid = Pid::from_raw(i32::try_from(dreamer)?);
    let is_its = |process: &Ours| usize::try_from(process.0.id()).is_ok_and(|id| id == dreamer);
    let at = processes.iter().position(is_its).ok_or("who dreams?")?;
    let disturbed = Instant::now();
    let verb = if act == Act::Killed {
        processes.remove(at); // dropping it kills it
        "killed"
    } else {
        signal::kill(pid, Signal::SIGSTOP)?;
        "stopped"
    };
    let line = format!("{}: {verb} one that holds the lock", act.title());
    progress(&line, false);
    await_count(shop, "sold", sold + 1)?;
    let stalled = disturbed.elapsed();
    if act != Act::Killed {
        await_count(shop, "sold", sold + MEANWHILE)?;
        let _: () = shop.redis.rpush(shop.key("wake"), 1)?;
        signal::kill(pid, Signal::SIGCONT)?;
    }
    Ok(stalled)
}

fn play() -> Result<bool> {
    let (_server, url) = redis_server()?;
    let mut shop = Shop::find(&url, &format!("redlatch-stock:{}", uuid::Uuid::new_v4()))?;
    let mut play = |act| {
        let figures = perform(&mut shop, &url, act);
        let keys = Shop::ALL.map(|name| shop.key(name));
        shop.redis.del::<_, ()>(keys.as_slice())?;
        figures
    };
    let bare = play(Act::NoLock)?;
    let lock = play(Act::Lock)?;
    let kill = play(Act::Killed)?;
    let plain = play(Act::StoppedPlain)?;
    let guarded = play(Act::StoppedGuarded)?;

    println!(
        "\n                        sold oversold turned away left  sold/s wait p50 wait p99 by Redis in process"
    );
    for ((act, _), figures) in Act::ALL.iter().zip([&bare, &lock, &kill, &plain, &guarded]) {
        figures.print(*act);
    }
    let (stalled, lease) = (kill.stalled.as_secs_f64(), LEASE.as_secs());
    let (oversold, refused) = (plain.oversold(), guarded.refused);
    println!(
        "\nKilling the holder stopped the others for {stalled:.2} s; its lease was {lease} s."
    );
    println!(
        "Stopped for longer than that, a holder went on to write an old number. Oversold: {oversold}."
    );
    println!(
        "The same through its guard. Writes refused: {refused}; oversold: {}.\n",
        guarded.oversold()
    );

    let (all, survivors) = (PROCESSES * BUYERS, (PROCESSES - 1) * BUYERS);
    let right = [
        check("without a lock it oversells", bare.sold > MOONCAKES),
        check("with a lock all are sold", lock.sold == MOONCAKES),
        check("and none is left", lock.stock_left == 0),
        check(
            "the rest is turned away",
            lock.turned_away == all - lock.sold,
        ),
        check("each had the lock once", lock.by_redis + lock.passed == all),
        check("survivors are served", kill.waits_ms.len() == survivors),
        check("nothing vanished", kill.sold + kill.stock_left == MOONCAKES),
        check("the lease ended it", kill.stalled < LEASE * 2),
        check("an old number oversells", plain.sold > MOONCAKES),
        check("through the guard it is refused", refused == 1),
        check("then all are sold", guarded.sold == MOONCAKES),
        check("and none of them twice", guarded.stock_left == 0),
        check(
            "and the rest is turned away then",
            guarded.turned_away == all - guarded.sold,
        ),
    ];
    Ok(right.iter().all(|right| *right))
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let right = match args.as_slice() {
        [] => play()?,
        [prefix, title] => {
            buyers(prefix, Act::titled(title)?)?;
            true
        }
        _ => return Err("it takes no arguments".into()),
    };
    Ok(ExitCode::from(u8::from(!right)))
}

// --- Helpers --------------------------------------------------------------------------------------------------------

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

/// Shows a line that is overwritten on a terminal until the final one; elsewhere prints only final lines.
fn progress(line: &str, is_final: bool) {
    if io::stderr().is_terminal() {
        eprint!("\r{line}\x1b[K{}", if is_final { "\n" } else { "" });
    } else if is_final {
        eprintln!("{line}");
    }
}
