//! The allocations of a client: bytes per held lock, and allocations of an uncontended lock and drop.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod rig;
#[path = "../tests/it/support/bare/mod.rs"]
mod support;

use std::alloc::System;

use redlatch::Client;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    let server = support::Server::start();
    let client = Client::open(rig::config(server.url())).expect("the server is up");
    lock_and_drop(&client);
    held(&client);
}

/// Counts the allocations of all threads of the process, including the client's own.
fn lock_and_drop(client: &Client) {
    let lock = client.reentrant_lock("stock:12345");
    let pairs = |n: u32| {
        for _ in 0..n {
            drop(lock.lock().expect("a grant"));
        }
    };
    pairs(rig::scaled(1_000));
    let n = rig::scaled(10_000);
    let region = Region::new(ALLOCATOR);
    pairs(n);
    let change = region.change();
    let each = |total: usize| total as f64 / f64::from(n);
    println!(
        "lock + drop: {:.2} allocations, {:.2} reallocations, {:.0} bytes",
        each(change.allocations),
        each(change.reallocations),
        each(change.bytes_allocated),
    );
}

/// Leaves out the guards and the handles, which belong to the caller.
fn held(client: &Client) {
    let n = rig::scaled(20_000);
    let mut guards = Vec::with_capacity(n as usize);
    let region = Region::new(ALLOCATOR);
    for number in 0..n {
        let lock = client.reentrant_lock(format!("stock:{number}"));
        guards.push(lock.lock().expect("a grant"));
    }
    let change = region.change();
    let bytes = change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated);
    println!(
        "held: {:.0} bytes for each of {n} locks",
        bytes as f64 / f64::from(n)
    );
    drop(guards);
}
