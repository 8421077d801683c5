//! Distributed locks on Redis for blocking Rust, compatible with Redisson. A thread asks for a lock by name and gets
//! a guard. All threads of all processes, in Rust or in Java, agree through Redis on who holds the lock.
//!
//! # Install
//!
//! ```toml
//! [dependencies]
//! redlatch = "0.1" # features: tls, metrics, serde, cli
//! ```
//!
//! Rust 1.88 or later, and Redis 6.2 or later or Valkey: one server, Sentinel or Cluster ([servers
//! tested](guide::deployments#servers-tested)). [Should I use this?](guide::should_i_use_this)
//!
//! Features:
//!
//! - `tls` encrypts connections.
//! - `metrics` adds an observer for the crate of that name.
//! - `serde` serializes the results of [`inspect`](Client::inspect), [`locks`](Client::locks),
//!   [`check`](Client::check) and [`stats`](Client::stats).
//! - `cli` builds [the command](guide::operations#the-command).
//!
//! # Ten lines
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let client = redlatch::Client::open("redis://127.0.0.1/")?; // one per process
//! let lock = client.mutex("stock:42");
//! if let Some(guard) = lock.try_lock_for(Duration::from_millis(500))? {
//!     // No other thread of any process holds `stock:42` now.
//!     guard.unlock()?; // reports a lost lock; dropping does not
//! } else {
//!     println!("somebody else has it");
//! }
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! Waiting threads are notified of the release instead of polling. Each hold has a lease (30 s unless set), which is
//! renewed until the guard is dropped, also by a panic. If the process dies, the lock is free when its lease is over.
//!
//! # Which one to take
//!
//! If unsure, [`client.mutex(name)`](Mutex).
//!
//! | Take | for | do not use it if |
//! | --- | --- | --- |
//! | [`client.mutex(name)`](Mutex) | mutual exclusion | its thread locks it again: that is `Error::WouldDeadlock` |
//! | [`lock.lock_owned()`](Handle::lock_owned) | any lock in thread pools and async programs: the guard may move to other threads | a thread waits for it while it has the guard: that never ends |
//! | [`client.reentrant_lock(name)`](ReentrantLock) | the same key, and its thread may lock again. Redisson's `RLock` | futures share a thread: two of them would both get it |
//! | [`client.fair_lock(name)`](FairLock) | first come, first served across all processes; `fair_mutex` is not reentrant | speed matters more than order: each hand-over goes through Redis |
//! | [`client.fenced_lock(name)`](FencedLock) | a `token()` that grows with each hold: a database can reject older ones | nothing checks the token |
//! | [`client.rw_lock(name)`](RwLock) | many readers or one writer, who take turns | reads are short: a `mutex` costs less |
//! | [`client.spin_lock(name)`](SpinLock) | names too many or too short-lived to subscribe to each | waiters need it right after its release: they poll |
//! | [`client.multi_lock([a, b])`](MultiLock) | several names of one client, all or none | one name can stand for them |
//! | [`MultiLock::new(vec![..])`](MultiLock::new) | several locks of any clients and servers, all or none | the names are of one client |
//! | [`RedLock::new([&a, &b, &c], name)`](RedLock) | surviving the loss of a minority of independent masters | late writes do harm: it cannot reject them |
//! | [`client.expirable_semaphore(name)`](ExpirableSemaphore) | at most `n` holders; permits of a process that dies come back | `n` is 1: use a `mutex` |
//! | [`client.semaphore(name)`](Semaphore) | at most `n` holders, permits without a lease. Redisson's `RSemaphore` | a process may die with permits: they stay taken |
//! | [`client.latch(name)`](Latch) | waiting until others have counted down to zero | nobody sets the count first: a latch that was never set is open |
//!
//! The first column leads to the page of each type. Locks are aliases of [`Handle`], and their guards of [`Guard`],
//! so rustdoc lists them under [type aliases](#types). Each page has all methods; [`RwLock`], the semaphores and the
//! latch are types of their own. [`FairMutex`] is the fair lock that is not reentrant.
//!
//! A holder that was stopped may write too late. If it writes to the same Redis, the methods
//! [`query`](MutexGuard::query) and [`invoke`](MutexGuard::invoke) of its guard prevent that.
//!
//! # Defaults
//!
//! | setting | default | meaning |
//! | --- | --- | --- |
//! | [`Config::lease`] | 30 s | how long Redis keeps a hold that is not renewed; renewed every third of it |
//! | [`Config::command_timeout`] | 3 s | how long a call waits for Redis to answer, reconnecting included |
//! | [`Config::connect_timeout`] | 3 s | name resolution, TCP and handshake together |
//! | [`Config::tenure`] | 5 ms | how long threads of one process may pass a lock among themselves |
//! | [`Config::waiter_lease`] | 3 s | how long a silent waiter keeps its place in the queue |
//!
//! [All settings](guide::operations#all-settings). However many locks it holds, a client has two lasting threads and
//! up to three connections, or four with guarded commands. In a cluster it has these connections, and a thread for
//! messages, for each master that it needs. With Sentinels it has one connection and one thread more, which notice
//! failovers.
//!
//! # `Ok(None)` and `Err`
//!
//! `Ok(None)`: somebody else had the lock, or the time was up; [`late_is_error`](Mutex::late_is_error) tells these
//! apart. `Err`: Redis is unreachable or rejected the command. In both cases redlatch releases anything that the
//! attempt may have acquired. A time limit covers everything that the call does: connecting, asking and waiting.
//!
//! # What is not promised
//!
//! - **That you still hold it.** A lease can end while you work: the process was stopped, Redis was unreachable, the
//!   key was deleted, or a replica without the key was promoted. [`is_valid`](ReentrantLockGuard::is_valid) and
//!   [`lost`](ReentrantLockGuard::lost) report that without asking Redis, but nothing recalls a write that is already
//!   under way. Where a late write does harm, let the resource check each write. In the same Redis,
//!   [`query`](MutexGuard::query) runs a command only if the hold is still in force. In a database, use a version, a
//!   condition, or the token of a [`FencedLock`].
//! - **That a lock survives its server.** A lock lives in one Redis. If the server returns without its data, the lock
//!   is free, and the old holder learns of the loss at its next renewal. A [`RedLock`] survives the loss of a
//!   minority of its masters, over the whole life of a hold.
//! - **Order among processes**, unless the lock is fair: the first to ask after a release gets it.
//!
//! # The guide
//!
//! [A tour](guide) shows each lock once. Further pages:
//!
//! - [whether to use this](guide::should_i_use_this), and [common mistakes](guide::common_mistakes);
//! - [recipes](guide::recipes);
//! - [operations](guide::operations): a bad day, who holds a lock, the command, rights, settings, logs and metrics;
//! - [deployments](guide::deployments): servers tested, TLS, Sentinel and Cluster;
//! - [sharing locks with Redisson](guide::with_redisson);
//! - for contributors, [architecture](guide::architecture), [performance](guide::performance) and
//!   [testing](guide::testing).
//!
//! # Logs
//!
//! Records go through the `log` crate:
//!
//! - *error*: a panic in a listener, or in a thread of the crate;
//! - *warn*: what an operator should know, such as a lost hold, a failed release, or an unreachable server;
//! - *info*: a server that is reachable again, and [long waits](Config::log_long_waits);
//! - *debug*: lost connections and retries;
//! - *trace*: events without consequence.
//!
//! [Details](guide::operations#logs).

#![cfg_attr(docsrs, feature(doc_cfg))]

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
mod verdict;

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
pub use sync::fair_lock::{FairLock, FairLockGuard, OwnedFairLockGuard};
pub use sync::fair_mutex::{FairMutex, FairMutexGuard, OwnedFairMutexGuard};
pub use sync::fenced_lock::{FencedLock, FencedLockGuard, OwnedFencedLockGuard};
pub use sync::guard::{Guard, OwnedGuard};
pub use sync::guarded::GuardedScript;
pub use sync::handle::Handle;
pub use sync::latch::Latch;
pub use sync::multi_lock::{MultiLock, MultiLockGuard, OwnedMultiLockGuard};
pub use sync::mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use sync::red_lock::{OwnedRedLockGuard, RedLock, RedLockGuard};
pub use sync::reentrant_lock::{OwnedReentrantLockGuard, ReentrantLock, ReentrantLockGuard};
pub use sync::rwlock::{
    OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub use sync::semaphore::{Semaphore, SemaphorePermit};
pub use sync::spin_lock::{OwnedSpinLockGuard, SpinLock, SpinLockGuard};
pub use sync::traits::{Hold, Lock};

/// The kinds of locks, as [`Handle`] and [`Guard`] name them: a [`Mutex`] is a `Handle<NonReentrant>`.
pub mod kinds {
    pub use crate::hold::Bound;
    pub use crate::sync::kind::{
        AnyKind, Fair, FairNonReentrant, Fenced, Multi, NonReentrant, OneServer, Owned, Read, Red,
        Reentrant, Spin, Write,
    };
}

pub use crossbeam_channel::Receiver;
/// The crate whose types commands and replies have, in the version that this one uses.
pub use redis;

#[cfg(any(doc, doctest))]
pub mod guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
