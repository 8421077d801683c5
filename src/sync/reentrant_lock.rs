//! The reentrant lock: Redisson's `RLock`.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Reentrant};

/// A lock that its holding thread may take again, renewed for as long as its guard lives.
///
/// The key is Redisson's: a hash with one field, the owner, and a time to live. Processes of Java and Rust exclude
/// each other through it.
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
/// **Reentrancy.** A thread that holds the lock gets further guards at once, without asking Redis; the lock is free
/// when the last of them is gone, in whatever order they go. The thread counts, not the handle.
///
/// **Order.** Threads of one process get the lock in the order in which they asked, and hand it over among
/// themselves for up to the client's tenure (5 ms unless set) before other processes get their chance. Among
/// processes the first to ask after a release gets it.
///
/// **Panics.** A guard that is dropped by a panic releases the lock like any other; there is no poisoning.
///
/// **What it does not promise.** A lease can expire while its holder works: the process was stopped, Redis was
/// unreachable, a replica without the key was promoted. The guard reports it ([`ReentrantLockGuard::is_valid`],
/// [`ReentrantLockGuard::lost`]), but nothing can stop a write that is already under way.
pub type ReentrantLock = Handle<Reentrant>;

/// The [`Guard`] of a [`ReentrantLock`]: a hold, released when dropped, that stays on its thread.
pub type ReentrantLockGuard = Guard<Reentrant>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`ReentrantLock`]: a hold, released when dropped, that may move to other threads.
pub type OwnedReentrantLockGuard = Guard<Reentrant, Owned>;
