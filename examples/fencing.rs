//! Two processes take coins from an account, one after the other, under a lock. The first process is stopped (SIGSTOP)
//! while it holds the lock, for longer than its lease, and then continues as if it still had the lock.
//!
//! 1. The account accepts every write, so the late one overwrites the other: coins that were paid out are still there.
//! 2. The account remembers the highest token that has written to it, and rejects the late write.
//!
//! ```text
//! cargo run --example fencing                            a redis-server of its own
//! REDIS_URL=redis://host/ cargo run --example fencing    keys under a new prefix, gone soon afterwards
//! ```
//!
//! Exits with 1 if a result differs.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, process};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use redis::{Commands, Connection};
use redlatch::{Client, Config, FencedLock, FencedLockGuard};

use shared::{Ours, Result, check, connect, redis_server};

mod shared;

const COINS: u64 = 100;
const FIRST: u64 = 30; // taken by the process that is stopped
const SECOND: u64 = 50; // taken by the other process in that time
const LEASE: Duration = Duration::from_secs(1); // the default, 30 s, is long to watch

/// Lua's numbers are exact only to 2^53, so tokens are padded to equal length and compared as text.
const WRITE: &str = "
    local seen = redis.call('hget', KEYS[1], 'token') or ''
    local token = string.rep('0', 20 - #ARGV[1]) .. ARGV[1]
    if token < seen then return 0 end
    redis.call('hset', KEYS[1], 'token', token, 'coins', ARGV[2])
    return 1";

/// A process's connection to the account, and the lock that guards the account.
struct Account {
    redis: Connection,
    lock: FencedLock,
    key: String,
    checks: bool,
}

impl Account {
    fn open(url: &str, key: &str, checks: bool) -> Result<Self> {
        let client = Client::open(Config::new(url).lease(LEASE).label("fencing"))?;
        Ok(Self {
            redis: connect(url)?,
            // The token counter expires soon, so that nothing stays on the user's server.
            lock: client
                .fenced_lock(format!("{key}:lock"))
                .token_ttl(Duration::from_secs(10)),
            key: key.to_owned(),
            checks,
        })
    }

    fn coins(&mut self) -> Result<u64> {
        Ok(self.redis.hget(&self.key, "coins")?)
    }

    /// Returns whether the account accepted the write.
    fn write(&mut self, guard: &FencedLockGuard, coins: u64) -> Result<bool> {
        if !self.checks {
            let () = self.redis.hset(&self.key, "coins", coins)?;
            return Ok(true);
        }
        let write = redis::Script::new(WRITE);
        let mut write = write.key(&self.key);
        Ok(write
            .arg(guard.token())
            .arg(coins)
            .invoke(&mut self.redis)?)
    }
}

/// Runs in the child process, which the parent stops between the check of the lock and the write.
fn sleeper(url: &str, key: &str, checks: bool) -> Result<()> {
    let mut account = Account::open(url, key, checks)?;
    let me = format!("process {}", process::id());
    let guard = account.lock.lock()?;
    let coins = account.coins()?;
    println!("{me} has token {}, reads {coins}", guard.token());
    if !guard.is_valid() {
        return Err("it was too slow to begin with".into());
    }
    // The worst moment: `is_valid` has just said yes. Tell the parent to stop this process here.
    println!("stop");
    io::stdin().lines().next().ok_or("nobody is there")??;

    let coins_left = coins - FIRST;
    if account.write(&guard, coins_left)? {
        println!("{me} goes on and writes {coins_left}");
        return Ok(());
    }
    println!("{me} goes on and writes {coins_left}: refused, its token is too old");
    let valid = guard.is_valid();
    match guard.unlock() {
        Err(lost) if !valid => println!("{me} is told: {lost}"),
        unlocked => return Err(format!("it should know better: {valid} {unlocked:?}").into()),
    }
    // The coins read under the lost hold are out of date, so lock and read again.
    let guard = account.lock.lock()?;
    let coins = account.coins()?;
    let coins_left = coins - FIRST;
    println!("{me} has token {}, reads {coins}", guard.token());
    if !account.write(&guard, coins_left)? {
        return Err("the newest token was refused".into());
    }
    println!("{me} writes {coins_left}");
    Ok(guard.unlock()?)
}

/// Runs one of the two cases; returns how many coins are in the account at the end.
fn act(url: &str, key: &str, checks: bool) -> Result<u64> {
    let mut account = Account::open(url, key, checks)?;
    let () = account.redis.hset(key, "coins", COINS)?;
    let command = Command::new(env::current_exe()?)
        .args([url, key, &checks.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut other = Ours(command);
    let mut says = BufReader::new(other.0.stdout.take().ok_or("no pipe")?).lines();
    let mut listens = other.0.stdin.take().ok_or("no pipe")?;
    let pid = Pid::from_raw(i32::try_from(other.0.id())?);

    for line in says.by_ref() {
        match &*line? {
            "stop" => break,
            line => println!("  {line}"),
        }
    }
    signal::kill(pid, Signal::SIGSTOP)?;
    println!("  it is stopped; its lease of {LEASE:?} runs out");

    let guard = account.lock.lock()?;
    let (coins, token) = (account.coins()?, guard.token());
    let coins_left = coins - SECOND;
    if !account.write(&guard, coins_left)? {
        return Err("the newest token was refused".into());
    }
    println!("  we have token {token}, read {coins} and write {coins_left}");
    guard.unlock()?;

    signal::kill(pid, Signal::SIGCONT)?;
    writeln!(listens, "go on")?;
    for line in says {
        println!("  {}", line?);
    }
    if !other.0.wait()?.success() {
        return Err("the other process failed".into());
    }
    account.coins()
}

fn play() -> Result<bool> {
    let (_server, url) = redis_server()?;
    let key = format!("redlatch-fencing:{}", uuid::Uuid::new_v4());
    let play = |checks| {
        let coins = act(&url, &key, checks);
        connect(&url)?.del::<_, ()>(&key)?;
        coins
    };
    println!("{COINS} coins, of which one takes {FIRST} and the other {SECOND}\n");
    println!("the account takes what it is told");
    let unchecked = play(false)?;
    println!("  {unchecked} coins are left: as if {SECOND} had not been taken\n");
    println!("the account looks at the token");
    let checked = play(true)?;
    println!("  {checked} coins are left\n");

    let right = [
        check("the late write does harm", unchecked == COINS - FIRST),
        check("tokens prevent it", checked == COINS - FIRST - SECOND),
    ];
    Ok(right.iter().all(|right| *right))
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let right = match args.as_slice() {
        [] => play()?,
        [url, key, checks] => {
            sleeper(url, key, checks == "true")?;
            true
        }
        _ => return Err("it takes no arguments".into()),
    };
    Ok(ExitCode::from(u8::from(!right)))
}
