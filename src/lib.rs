//! Redisson's distributed locks for blocking Rust: a thread asks for a lock by name and gets a guard, and all threads of
//! all processes, in Rust or in Java, agree through Redis on who holds it.
//!
//! # Install
//!
//! ```toml
//! [dependencies]
//! redlatch = "0.1" # features: tls, metrics, cli
//! ```
//!
//! Rust 1.88 or later, and Redis 6.2 or later or Valkey: one server, Sentinel or Cluster
//! ([servers tested](guide::deployments#servers-tested)).
//!
//! # Ten lines
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let client = redlatch::Client::open("redis://127.0.0.1/")?; // one per process
//! let lock = client.mutex("stock:42");
//! if let Some(guard) = lock.try_lock_for(Duration::from_millis(500))? {
//!     // no other thread of any process holds `stock:42` now
//!     guard.unlock()?; // or drop it; `unlock` waits for Redis and reports a lock that was lost meanwhile
//! } else {
//!     println!("somebody else has it");
//! }
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! Waiting threads are notified of the release instead of polling. What is held is renewed until the guard is dropped; a
//! panic drops it too. If the process dies, the lock is free when its lease is over.
//!
//! # Defaults
//!
//! | setting | default | meaning |
//! | --- | --- | --- |
//! | [`Config::lease`] | 30 s | how long Redis keeps a hold that is not renewed; renewed every third of it |
//! | [`Config::response_timeout`] | 3 s | how long a call waits for Redis to answer, reconnecting included |
//! | [`Config::connect_timeout`] | 3 s | name resolution, TCP and handshake together |
//! | [`Config::tenure`] | 5 ms | how long the threads of one process may pass a lock among themselves |
//! | [`Config::waiter_lease`] | 3 s | how long a waiter without a sign of life keeps its place |
//!
//! [All settings](guide::operations#all-settings). However many locks it holds, a client has two lasting threads and up
//! to three connections; in a cluster it has these connections, and a thread for messages, for each master that it needs;
//! with Sentinels, one of each to hear of failovers.
//!
//! # `Ok(None)` and `Err`
//!
//! `Ok(None)`: somebody else had it, or the time was up; [`late_is_error`](Mutex::late_is_error) tells these apart. `Err`:
//! Redis is away, or refused. Either way, what may have been taken is released again. A limit of time is for all that the
//! call does: connecting, asking and waiting.
//!
//! # What is not promised
//!
//! - **That you still hold it.** A lease can end while you work: the process was stopped, Redis was unreachable, the key
//!   was deleted, or a replica without the key was promoted. [`is_valid`](ReentrantLockGuard::is_valid) and
//!   [`lost`](ReentrantLockGuard::lost) say so without asking Redis, but nothing recalls a write that is already under
//!   way. Where a late write does harm: [`query`](MutexGuard::query) of the guard runs a command only if the hold is still
//!   in force, which Redis looks at in the same step; elsewhere let the resource check it, by a version, a condition, or the
//!   token of a [`FencedLock`].
//! - **That a lock survives its server.** It lives in one Redis. If that returns without its data, the lock is free, and
//!   the old holder learns of it at its next renewal. A [`RedLock`] survives the loss of a minority of its masters, over
//!   the whole life of a hold.
//! - **Order among processes**, unless the lock is fair: the first to ask after a release gets it.
//!
//! # Which one to take
//!
//! | for | |
//! | --- | --- |
//! | mutual exclusion | [`Mutex`], or [`ReentrantLock`], which its thread may lock again |
//! | the same in thread pools and `spawn_blocking` | [`Mutex::lock_owned`], whose guard may move |
//! | a holder that was stopped, and writes to the same Redis | [`query`](MutexGuard::query) and [`invoke`](MutexGuard::invoke) of any guard |
//! | first come, first served across processes | [`FairLock`], [`FairMutex`] |
//! | a resource that refuses late writes | [`FencedLock`] |
//! | very many names, held briefly | [`SpinLock`] |
//! | many readers or one writer | [`RwLock`] |
//! | several names or servers at once | [`MultiLock`] |
//! | surviving the loss of a minority of servers | [`RedLock`] |
//! | at most `n` at once | [`ExpirableSemaphore`], or [`Semaphore`], whose permits do not expire |
//! | waiting until others are done | [`Latch`] |
//!
//! # The guide
//!
//! [A tour](guide) shows each of them once. Then there are pages about [sharing locks with
//! Redisson](guide::with_redisson), [deployments](guide::deployments): servers tested, TLS, Sentinel, Cluster,
//! [operations](guide::operations): what happens on a bad day, who holds a lock, the command, rights, settings, logs,
//! metrics, and [recipes](guide::recipes). For contributors:
//! [architecture](guide::architecture), [performance](guide::performance), [testing](guide::testing).
//!
//! # Logs
//!
//! Through the `log` crate. *error*: a panic in a listener or in a thread of the crate; *warn*: what an operator should
//! know, such as a lost hold, a failed release, or a server that is away; *info*: a server that is back, and
//! [long waits](Config::warn_waiting); *debug*: lost connections and retries; *trace*: what has no consequence.
//! [In detail](guide::operations#logs).

mod acquire;
mod callback;
mod client;
mod config;
mod error;
mod hold;
mod local;
#[cfg(feature = "metrics")]
mod metrics;
mod net;
mod observer;
mod operations;
mod process;
mod protocol;
mod quorum;
mod report;
#[cfg(test)]
mod search;
mod session;
mod shown;
mod stats;
mod sync;
mod time;

pub use client::Client;
pub use config::replicas::ReplicaAck;
#[cfg(feature = "tls")]
pub use config::tls::TlsConfig;
pub use config::{Config, MAX_LEASE, MIN_LEASE};
pub use error::{DeadlockReason, Error, Loss, LossReason, Result};
pub use local::waiter::CancelToken;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use observer::{Acquired, Observer, Refusal, Refused, Released};
pub use operations::check::{Finding, Report, Severity};
pub use operations::inspect::{HoldMode, Holder, LockInfo, LockKind, Waiter};
pub use operations::list::{LockSummary, Locks};
pub use operations::processes::Process;
pub use stats::{StatKind, Stats};
pub use sync::expirable_semaphore::{ExpirablePermit, ExpirableSemaphore};
pub use sync::fair_lock::{FairLock, FairLockGuard};
pub use sync::fair_mutex::{FairMutex, FairMutexGuard};
pub use sync::fenced_lock::{FencedLock, FencedLockGuard};
pub use sync::guarded::GuardedScript;
pub use sync::latch::Latch;
pub use sync::multi_lock::{MultiLock, MultiLockGuard};
pub use sync::mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use sync::red_lock::{RedLock, RedLockGuard};
pub use sync::reentrant_lock::{ReentrantLock, ReentrantLockGuard};
pub use sync::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use sync::semaphore::{Semaphore, SemaphorePermit};
pub use sync::spin_lock::{SpinLock, SpinLockGuard};
pub use sync::traits::{Hold, Lock};

pub use crossbeam_channel::Receiver;
/// The crate whose types commands and replies have, in the version that this one uses.
pub use redis;

#[cfg(any(doc, doctest))]
pub mod guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
