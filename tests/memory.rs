//! What a held lock keeps in memory, and what locking allocates. A process of its own, since all of it is counted.

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redlatch::Client;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[path = "it/support/bare/mod.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Keeps the other test out, whose allocations would be counted too.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fewest allocations that several runs of `work` make: now and then the client's threads make some of their own.
fn fewest_allocations(mut work: impl FnMut()) -> usize {
    let allocations = |_| {
        let region = Region::new(ALLOCATOR);
        work();
        region.change().allocations
    };
    (0..500).map(allocations).min().unwrap_or(0)
}

#[test]
fn an_uncontended_lock_allocates_little_beyond_its_commands() {
    let _turn = turn();
    let server = support::Server::start();
    let client = Client::open(server.url()).expect("the server is up");
    let lock = client.reentrant_lock("stock:12345");
    let lock_and_drop = || drop(lock.lock().expect("a grant"));
    lock_and_drop();
    // Two commands with their bytes, and what the parser makes before a reply is there.
    assert_eq!(fewest_allocations(lock_and_drop), 2 + 1);

    let _guard = lock.lock().expect("a grant");
    assert_eq!(fewest_allocations(lock_and_drop), 0, "one more hold");
}

#[test]
fn a_held_lock_takes_a_few_hundred_bytes() {
    const LOCKS: usize = 5_000;
    let _turn = turn();
    let server = support::Server::start();
    let client = Client::open(server.url()).expect("the server is up");
    let mut guards = Vec::with_capacity(LOCKS);
    let region = Region::new(ALLOCATOR);
    for number in 0..LOCKS {
        let lock = client.reentrant_lock(format!("stock:{number:05}"));
        guards.push(lock.lock().expect("a grant"));
    }
    let change = region.change();
    let bytes = change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated);
    assert!(bytes / LOCKS <= 620, "{} bytes for each", bytes / LOCKS);
}
