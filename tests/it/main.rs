//! Everything that needs a real Redis server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(all(feature = "cli", unix))]
mod cli;
mod cluster;
mod connecting;
mod contract;
mod election;
mod engine;
mod fair;
mod faults;
mod guarded;
mod histories;
mod interop;
mod latch;
mod lock;
mod multi_lock;
mod operations;
mod quorum;
mod rwlock;
mod scripts;
mod semaphore;
mod sentinel;
mod support;
#[cfg(feature = "tls")]
mod tls;
