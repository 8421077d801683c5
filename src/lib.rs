//! Redisson's locks for blocking Rust: push wake-up, a watchdog that renews what is held, and truth about what was
//! lost.
//!
//! ```no_run
//! let client = redlatch::Client::open("redis://127.0.0.1/")?;
//! {
//!     let _guard = client.reentrant_lock("stock:42").lock()?;
//!     // alone among all threads of all processes, in Rust and in Java, that lock this name
//! }
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! # Map
//!
//! A handle takes a thread into the *room* of its lock, in memory. One thread of a room, the contender, runs a script
//! on the shared *link*; the others stand in line, or, where Redis keeps the line, contend as well. What a kind of lock
//! says to Redis is in *wire*. The *subscriber* wakes contenders when somebody releases, the *watchdog* renews what is
//! held and tells of what is lost. A lock over several servers is a *quorum* of such links, with a part of the hold on
//! each client's watchdog. Which server a client talks to, whatever its address, is its *identity*.
//!
//! Where several may hold there is no seat to pass on: threads that want permits of a semaphore stand in line at its *desk*,
//! which passes permits on, those that want expirable ones take *turns* at asking, and each waiter of a latch asks for
//! itself. *watch* is how they wait.
//!
//! # Logs
//!
//! Through the `log` crate: *error* for a panic in a listener or thread, *warn* for a lost hold, a release that failed,
//! a server that does not let us subscribe, a master that had forgotten a hold and a majority that has become a bare
//! one, *debug* for lost connections and retries, *trace* for what is of no consequence.
//!
//! The logger is called on a thread of its own (`redlatch-log`), which lives while there is anything to log, and the
//! listener of [`Config::on_lost`] on another: either may block, panic, or use the client that it hears of.

// What a user holds: a handle, its guard and the guard's drop.
mod expirable_semaphore;
mod fair_lock;
mod fair_mutex;
mod fenced_lock;
mod latch;
mod multi_lock;
mod mutex;
mod red_lock;
mod reentrant_lock;
mod rwlock;
mod semaphore;
mod spin_lock;

// What they share.
mod callback;
mod client;
mod config;
mod contender;
mod desk;
mod error;
mod gate;
mod grip;
mod handle;
mod held;
mod hold;
mod identity;
mod quorum;
mod report;
mod room;
mod schedule;
mod stats;
mod subscriber;
mod turn;
mod verbs;
mod wait;
mod watch;
mod watchdog;

// The edge to Redis.
mod backlog;
mod call;
mod keys;
mod link;
mod owner;
mod script;
mod stream;
mod wire;

pub use client::Client;
pub use config::{Config, MAX_LEASE, MIN_LEASE};
pub use error::{Error, Result};
pub use expirable_semaphore::{ExpirablePermit, ExpirableSemaphore};
pub use fair_lock::{FairLock, FairLockGuard};
pub use fair_mutex::{FairMutex, FairMutexGuard};
pub use fenced_lock::{FencedLock, FencedLockGuard};
pub use hold::{Loss, LossReason};
pub use latch::Latch;
pub use multi_lock::{Lockable, MultiLock, MultiLockGuard};
pub use mutex::{Mutex, MutexGuard};
pub use red_lock::{RedLock, RedLockGuard};
pub use reentrant_lock::{ReentrantLock, ReentrantLockGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Semaphore, SemaphorePermit};
pub use spin_lock::{SpinLock, SpinLockGuard};
pub use stats::Stats;
pub use wait::CancelToken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
