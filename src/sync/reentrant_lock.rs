//! The reentrant lock: Redisson's `RLock`.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Reentrant};

/// A lock that the thread holding it may lock again: Redisson's `RLock`.
///
/// ```no_run
/// use std::time::Duration;
///
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.reentrant_lock("stock:42");
/// if let Some(guard) = lock.try_lock_for(Duration::from_millis(200))? {
///     let _again = lock.lock()?; // the same thread: no round trip
///     assert_eq!(guard.hold_count(), 2);
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// [`Handle`] lists all methods, from [`lock`](ReentrantLock::lock) and [`try_lock_for`](ReentrantLock::try_lock_for)
/// to the settings.
///
/// **Reentrancy.** A thread that holds the lock gets further guards at once, without asking Redis. While its hold has a
/// [fixed lease](ReentrantLock::fixed_lease), a further guard takes one round trip. The lock is free once all guards of the
/// thread are dropped, in any order. All handles of this kind and name are one lock, together with the
/// [`Mutex`](crate::Mutex) of the name.
///
/// **Leases.** All holds that a thread has of the lock share one lease (30 s unless set). It is renewed every third of this
/// time until the last of their guards is dropped. If the process dies, the lock is free once the lease is over.
///
/// **Order.** Threads of one process get the lock in the order in which they asked, and pass it among themselves for
/// up to the tenure (5 ms, [`Config::tenure`](crate::Config::tenure)). Then other processes get their turn. Among
/// processes, the first to ask after a release gets the lock.
///
/// **Panics.** A guard that is dropped by a panic releases the lock like any other; there is no poisoning.
///
/// **Loss.** A lock can be lost while its holder works: the process was stopped or Redis was unreachable until the
/// lease expired, somebody deleted the key, or a replica without the key was promoted. The guard reports it
/// ([`is_valid`](ReentrantLockGuard::is_valid), [`lost`](ReentrantLockGuard::lost)), but cannot stop a write that is
/// already under way.
///
/// **In Redis** the lock is Redisson's: a hash with the owner as its field, and a time to live. Java and Rust
/// processes exclude each other through it.
pub type ReentrantLock = Handle<Reentrant>;

/// The [`Guard`] of a [`ReentrantLock`]: one hold, released when it is dropped, that stays on its thread.
pub type ReentrantLockGuard = Guard<Reentrant>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`ReentrantLock`]: one hold, released when it is dropped, that may move
/// to other threads.
pub type OwnedReentrantLockGuard = Guard<Reentrant, Owned>;
