//! Redisson's locks for blocking Rust: waiting threads are notified instead of polling, a watchdog renews what is held, and
//! a guard reports when its lock was lost.
//!
//! ```no_run
//! let client = redlatch::Client::open("redis://127.0.0.1/")?;
//! {
//!     let _guard = client.reentrant_lock("stock:42").lock()?;
//!     // no other thread of any process, in Rust or in Java, holds this name now
//! }
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! # Which one to take
//!
//! | for | |
//! | --- | --- |
//! | mutual exclusion | [`ReentrantLock`], or [`Mutex`], which its thread cannot lock again |
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
//! [A tour of all of them](guide), and pages about
//! [the architecture](guide::architecture), [sharing locks with Redisson](guide::with_redisson),
//! [deployments](guide::deployments): servers tested, and what a server has to offer,
//! [operations](guide::operations): what happens on a bad day, rights, settings, logs, counters,
//! [performance](guide::performance) and [testing](guide::testing).
//!
//! # Map
//!
//! Layers, from top to bottom; a file imports from its own layer or from a lower one.
//!
//! | layer | what is in it |
//! | --- | --- |
//! | `client` | opening and closing, handles by name |
//! | `sync` | what a user holds: one file for each primitive, with its handle, its guard and their documentation |
//! | `acquire` | the loop that waits: ask, be refused, subscribe, ask again, park; a strategy per way of waiting |
//! | `quorum` | several masters: asking all of them at once, and a hold that a majority keeps |
//! | `session` | what one client consists of; starts and joins the threads |
//! | `hold` | what is held: how long it is certain, when it is renewed, what is lost, the watchdog thread |
//! | `protocol` | what goes to Redis: keys, channels, requests and replies of every kind |
//! | `local` | inside the process: the local lock and queue of each name; no I/O |
//! | `net` | sockets, the pipelined connection, the subscriber thread |
//! | `config`, `error`, `stats`, `time`, `report`, `callback`, `process` | used by all |
//!
//! # Logs
//!
//! Through the `log` crate: *error* for a panic in a listener or thread, *warn* for a lost hold, a failed release,
//! a server that refuses subscriptions, a master that has forgotten a hold and a majority that has become a bare
//! one, *debug* for lost connections and retries, *trace* for what has no consequence.
//!
//! The logger runs on a thread of its own (`redlatch-log`), which exists while there is anything to log, and the
//! listener of [`Config::on_lost`] on another: either may block, panic, or use the client that it hears about.

mod acquire;
mod callback;
mod client;
mod config;
mod error;
mod hold;
mod local;
mod net;
mod process;
mod protocol;
mod quorum;
mod report;
#[cfg(test)]
mod search;
mod session;
mod stats;
mod sync;
mod time;

pub use client::Client;
pub use config::replicas::ReplicaAck;
#[cfg(feature = "tls")]
pub use config::tls::TlsConfig;
pub use config::{Config, MAX_LEASE, MIN_LEASE};
pub use error::{Error, Loss, LossReason, Result};
pub use local::waiter::CancelToken;
pub use stats::Stats;
pub use sync::expirable_semaphore::{ExpirablePermit, ExpirableSemaphore};
pub use sync::fair_lock::{FairLock, FairLockGuard};
pub use sync::fair_mutex::{FairMutex, FairMutexGuard};
pub use sync::fenced_lock::{FencedLock, FencedLockGuard};
pub use sync::latch::Latch;
pub use sync::multi_lock::{Lockable, MultiLock, MultiLockGuard};
pub use sync::mutex::{Mutex, MutexGuard};
pub use sync::red_lock::{RedLock, RedLockGuard};
pub use sync::reentrant_lock::{ReentrantLock, ReentrantLockGuard};
pub use sync::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use sync::semaphore::{Semaphore, SemaphorePermit};
pub use sync::spin_lock::{SpinLock, SpinLockGuard};

#[cfg(any(doc, doctest))]
pub mod guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
