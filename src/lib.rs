//! Distributed locks on Redis for blocking Rust. A thread asks for a lock by name and gets a guard. All threads of all
//! processes agree through Redis on who holds the lock. Java programs take part if they use Redisson, a Redis client
//! with the same locks.
//!
//! # Install
//!
//! ```toml
//! [dependencies]
//! redlatch = "0.1" # features: tls, metrics, serde, testing, cli
//! ```
//!
//! Rust 1.88 or later, and Redis 6.2 or later or Valkey: one server, Sentinel or Cluster ([servers
//! tested](guide::deployments#servers-tested)). [Should I use this?](guide::should_i_use_this)
//!
//! Features:
//!
//! - `tls` encrypts connections.
//! - `metrics` adds an observer for the `metrics` crate.
//! - `serde` serializes losses, tickets, and what [`inspect`](Client::inspect), [`locks`](Client::locks),
//!   [`check`](Client::check), [`health`](Client::health), [`stats`](Client::stats) and [`leader`](Election::leader)
//!   return ([how](ops)).
//! - `testing` adds a lock for unit tests without Redis.
//! - `cli` builds [the command `redlatch`](guide::operations#the-command).
//!
//! # How do I start?
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let client = redlatch::Client::open("redis://127.0.0.1/")?; // one per process
//! let lock = client.mutex("stock:42");
//! if let Some(guard) = lock.try_lock_for(Duration::from_millis(500))? {
//!     // No other thread of any process holds `stock:42` now.
//!     guard.unlock()?; // an error if the lock was lost; a drop returns nothing
//! } else {
//!     println!("somebody else has it");
//! }
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! Redis keeps a lock for its lease (30 s unless set). The client renews the lease until the guard is dropped. A panic
//! drops the guard too. If the process dies, the lock is free when its lease is over. Waiting threads are notified of the
//! release instead of polling. A *hold* is one possession of a lock, from the grant to the release. Each guard stands for
//! one hold; the guard of a multi-lock stands for one hold of each member.
//!
//! # Which lock?
//!
//! If unsure, [`client.mutex(name)`](Mutex); to limit how many work at once,
//! [`client.expirable_semaphore(name)`](ExpirableSemaphore).
//!
//! | Take | for | do not use it if |
//! | --- | --- | --- |
//! | [`client.mutex(name)`](Mutex) | mutual exclusion; not reentrant | a thread locks again what it holds: that is `Error::WouldDeadlock` |
//! | [`client.reentrant_lock(name)`](ReentrantLock) | the same, but the thread that holds it may lock it again. Redisson's `RLock` | futures share a thread: two of them would both get it |
//! | [`client.fair_lock(name)`](FairLock) | first come, first served across all processes; reentrant (`client.fair_mutex(name)` is not) | speed matters more than order: each hand-over goes through Redis |
//! | [`client.fenced_lock(name)`](FencedLock) | a `token()`, greater at each acquisition, by which a database can reject late writes | nothing checks the token |
//! | [`client.rw_lock(name)`](RwLock) | many readers or one writer; the two sides take turns | reads are short: a `mutex` costs less |
//! | [`client.spin_lock(name)`](SpinLock) | very many short-lived names: waiters poll, so Redis keeps no subscription for each name | waiters need it right after its release |
//! | [`client.multi_lock([a, b])`](MultiLock) | several names of one client, all or none | one name suffices, or late writes do harm (no token) |
//! | [`MultiLock::new(vec![..])`](MultiLock::new) | several locks of any clients and servers, all or none | the names are of one client, or late writes do harm |
//! | [`RedLock::new([&a, &b, &c], name)`](RedLock) | a lock that survives the loss of a minority of independent masters | late writes do harm: it has no token |
//! | [`client.election(name)`](Election) | one leader of several processes | the work is short: use a `mutex` |
//! | [`client.expirable_semaphore(name)`](ExpirableSemaphore) | at most `n` holders; permits of a process that dies come back | `n` is 1: use a `mutex` |
//! | [`client.semaphore(name)`](Semaphore) | at most `n` holders, together with Redisson's `RSemaphore` | a process may die with permits: they stay taken |
//! | [`client.latch(name)`](Latch) | waiting until others have counted down to zero | nobody sets the count first: a latch without a count is open |
//!
//! *Reentrant* means that the thread that holds the lock may lock it again. All locks are reentrant, except `mutex`,
//! [`fair_mutex`](FairMutex), and a multi-lock with such a member. A reader of a read-write lock cannot write. Owned guards are
//! never reentrant.
//!
//! A guard stays on its thread. In thread pools and async programs use [`lock.lock_owned()`](Handle::lock_owned), or
//! [`read_owned`](RwLock::read_owned) and [`write_owned`](RwLock::write_owned) for a read-write lock: these guards may
//! move to other threads. A thread that keeps such a guard and locks again may wait for itself. To pass a hold to another
//! process, make a [`Ticket`] of it.
//!
//! The first column leads to the page of each type. Most locks are aliases of [`Handle`], and their guards of
//! [`Guard`], so rustdoc lists them under [type aliases](#types).
//!
//! # Defaults
//!
//! | setting | default | meaning |
//! | --- | --- | --- |
//! | [`Config::lease`] | 30 s | how long Redis keeps a hold that is not renewed; renewed every third of it |
//! | [`Config::command_timeout`] | 3 s | how long a call waits for Redis to answer, reconnecting included |
//! | [`Config::connect_timeout`] | 3 s | name resolution, TCP and handshake together |
//! | [`Config::tenure`] | 5 ms | how long threads of one process may pass a lock among themselves before other processes get their turn |
//! | [`Config::waiter_lease`] | 3 s | how long a waiter that died keeps its place in the queue of a fair lock |
//!
//! [Settings](guide::operations#settings). However many locks it holds, a client has at most two lasting threads
//! and four connections; [Sentinels and clusters need more](guide::operations#threads-and-connections). Tests run on
//! Linux; for macOS and Windows the library is only compiled.
//!
//! # `Ok(None)` and `Err`
//!
//! `Ok(None)`: the lock was taken, or another waiter was first, or Redis was too slow for the time limit (the last is
//! [`Error::Late`] with [`late_is_error`](Mutex::late_is_error)). `Err`: Redis is unreachable or rejected the command, or the
//! call cannot succeed, for example because the thread would wait for itself; [`Error`] says what to do about each. After
//! either result redlatch releases anything that the attempt may have acquired. A time limit covers everything that the call
//! does: connecting, asking and waiting. A limit of zero is one attempt, which may block for the command timeout.
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
//!   is free, and the old holder learns of the loss at its next renewal. A [`RedLock`] stays held while a majority of its
//!   masters keeps the hold.
//! - **Order among processes.** The first to ask after a release gets the lock. Only a fair lock keeps the order; readers
//!   and writers of an [`RwLock`] take turns, within the limits stated there.
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

// First, so that rustdoc lists the methods of all handles before those that other modules add.
mod sync;

mod acquire;
mod client;
mod config;
mod error;
mod hold;
mod local;
#[cfg(test)]
mod messages {
    mod tests;
}
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
mod time;
mod verdict;

pub use client::Client;
pub use config::replicas::ReplicaAck;
#[cfg(feature = "tls")]
pub use config::tls::TlsConfig;
pub use config::{Config, MAX_LEASE, MIN_LEASE};
pub use error::{DeadlockReason, Error, Loss, LossReason, Result};
pub use hold::loss::LossReceiver;
pub use local::waiter::CancelToken;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use observer::{Acquired, Observer, RefusalReason, Refused, Released, RenewalFailed};
pub use operations::health::{Health, UnconfirmedRenewal};
pub use operations::leader::{Leader, Leaders};
pub use stats::{StatKind, Stats};
pub use sync::election::{Election, Leadership};
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
pub use sync::ticket::Ticket;
pub use sync::traits::{Hold, Lock};

/// The kinds of locks and the scopes of guards, which are the type parameters of [`Handle`] and [`Guard`], and the
/// traits that bound them.
///
/// A [`Mutex`] is a `Handle<NonReentrant>`, and its guard a `Guard<NonReentrant, Bound>`.
pub mod kinds {
    pub use crate::hold::Bound;
    pub use crate::sync::kind::{
        AnyKind, Detachable, Fair, FairNonReentrant, Fenced, Multi, NonReentrant, OneServer, Owned,
        Read, Red, Reentrant, Scope, Spin, Write,
    };
    pub use crate::sync::ticket::Adopt;
}

/// Facts for operators about locks and servers: the types that [`Client::inspect`], [`Client::locks`] and
/// [`Client::check`] return.
///
/// `LockInfo`, `LockSummary` and `Report` have a `Display` for people.
///
/// With the feature `serde` all of them are serialized, except the iterator `Locks`, whose items are. So are
/// [`Health`], [`Leader`] and [`Stats`]. Fields keep their names, except spans of time: these are whole numbers, and
/// their names contain the unit.
///
/// | field | serialized as | unit |
/// | --- | --- | --- |
/// | `remaining_lease`, `ends_in`, `lives_for` | `remaining_lease_ms`, `ends_in_ms`, `lives_for_ms` | milliseconds; null if without end |
/// | `Process::idle` | `idle_s` | seconds, as Redis reports |
/// | `Health::since` | `since_ms` | milliseconds |
/// | `UnconfirmedRenewal::lease`, `confirmed_ago` | `lease_ms`, `confirmed_ago_ms` | milliseconds |
///
/// A `LockKind`, `HoldMode`, `Severity` or [`LossReason`] is the name of its variant in snake case, as `fenced_lock`,
/// `exclusive` or `taken_over`. A [`Loss`] has its three fields.
///
/// ```no_run
/// use redlatch::ops::LockKind;
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let report = client.inspect("report")?;
/// if report.kind != LockKind::Free {
///     println!("{report}"); // who holds it, who waits for it, and in which processes
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
pub mod ops {
    pub use crate::operations::check::{Finding, Report, Severity};
    pub use crate::operations::inspect::{HoldMode, Holder, LockInfo, LockKind, Waiter};
    pub use crate::operations::list::{LockSummary, Locks};
    pub use crate::operations::processes::Process;
}

/// The `redis` crate, re-exported in the version that redlatch uses. Build commands and read replies with its types.
pub use redis;

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(any(doc, doctest))]
pub mod guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
