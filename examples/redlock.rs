//! Five masters, two of which are killed while a `RedLock` is held.
//!
//! The lock stays held for several leases, and no other client gets it. When the two masters are back, empty, they do
//! not take part in that hold, but in the next one.
//!
//! ```text
//! cargo run --release --example redlock    five redis-servers of its own
//! ```
//!
//! Exits with 1 if anything else happens.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, RedLock, RedLockGuard};

use shared::{Result, Server, check};

mod shared;

const LEASE: Duration = Duration::from_secs(1); // the default, 30 s, is long to watch

/// Opens one client per master, as a process of its own would, and a lock over all of them.
fn lock(servers: &[Server]) -> Result<RedLock> {
    let open = |server: &Server| Client::open(Config::new(server.url()).lease(LEASE));
    let clients = servers
        .iter()
        .map(open)
        .collect::<redlatch::Result<Vec<_>>>()?;
    Ok(RedLock::new(&clients, "billing")?)
}

/// Waits until exactly `nodes` masters are known to keep the hold.
fn kept_by(guard: &RedLockGuard, nodes: usize) -> bool {
    let until = Instant::now() + 10 * LEASE;
    while guard.nodes_held() != nodes && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    println!(
        "  {} of 5 masters keep it, valid: {}",
        guard.nodes_held(),
        guard.is_valid()
    );
    guard.nodes_held() == nodes && guard.is_valid()
}

/// Like `kept_by`, but without a retry: the replies that arrive after a majority's take a moment.
fn kept_by_now(guard: &RedLockGuard, nodes: usize) -> bool {
    thread::sleep(LEASE / 10);
    guard.nodes_held() == nodes
}

fn play() -> Result<bool> {
    let mut servers = (0..5)
        .map(|_| Server::start())
        .collect::<Result<Vec<_>>>()?;
    let (ours, theirs) = (lock(&servers)?, lock(&servers)?);
    let mut right = Vec::new();

    println!("we take the lock, renewed every third of {LEASE:?}");
    let guard = ours.lock()?;
    right.push(check("all five keep it", kept_by(&guard, 5)));
    let refused = |claim| -> Result<bool> {
        let none = theirs.try_lock()?.is_none();
        println!(
            "  somebody else tries: {}",
            if none { "refused" } else { "granted" }
        );
        Ok(check(claim, none))
    };
    right.push(refused("they are refused")?);

    println!("two masters are killed");
    for server in &mut servers[..2] {
        server.kill();
    }
    right.push(check("three keep it", kept_by(&guard, 3)));
    right.push(refused("a majority refuses them")?);

    println!("three leases later");
    thread::sleep(3 * LEASE);
    right.push(check("three keep it still", kept_by(&guard, 3)));
    right.push(refused("a majority refuses them still")?);

    println!("the two start again, empty");
    for server in &mut servers[..2] {
        server.start_again()?;
    }
    right.push(check("three keep it as before", kept_by(&guard, 3)));
    right.push(refused("they are refused in the end")?);

    println!("we give it back, and take it anew");
    guard.unlock()?;
    let until = Instant::now() + 10 * LEASE;
    let guard = loop {
        let guard = ours.lock()?;
        // A master takes no part while a connection to it is still being made, so retry until all five do.
        if kept_by_now(&guard, 5) || Instant::now() >= until {
            break guard;
        }
        guard.unlock()?;
    };
    right.push(check("all five keep it again", kept_by(&guard, 5)));
    guard.unlock()?;
    let theirs = theirs.try_lock_for(10 * LEASE)?;
    println!(
        "  somebody else tries: {}",
        if theirs.is_some() {
            "granted"
        } else {
            "refused"
        }
    );
    right.push(check("they are granted it", theirs.is_some()));
    Ok(right.iter().all(|right| *right))
}

fn main() -> Result<ExitCode> {
    Ok(ExitCode::from(u8::from(!play()?)))
}
