//! The non-reentrant lock.

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{NonReentrant, Owned};

/// The default lock: one holder at a time among all threads of all processes, not reentrant.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let lock = client.mutex("report");
/// let _guard = lock.lock()?;
/// assert!(matches!(lock.try_lock(), Err(redlatch::Error::WouldDeadlock { .. })));
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// A thread that locks again what it holds gets [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) at once.
/// [`Handle`] lists all methods, from [`lock`](Mutex::lock) and [`try_lock_for`](Mutex::try_lock_for) to the
/// settings.
///
/// **Guards.** The lease (30 s unless set) is renewed every third of it until the guard is dropped. A panic drops the
/// guard too; there is no poisoning. The guard stays on its thread. For thread pools, actors and `spawn_blocking`
/// there is [`lock_owned`](Mutex::lock_owned), whose guard may move to any thread.
///
/// **Order.** Threads of one process get the lock in the order in which they asked, and pass it among themselves for
/// up to the tenure (5 ms, [`Config::tenure`](crate::Config::tenure)). Then other processes get their turn. Among
/// processes, the first to ask after a release gets the lock.
///
/// **Loss.** A lock can be lost while its holder works: the process was stopped or Redis was unreachable until the
/// lease expired, somebody deleted the key, or a replica without the key was promoted. The guard reports it
/// ([`is_valid`](MutexGuard::is_valid), [`lost`](MutexGuard::lost)).
///
/// The [`ReentrantLock`](crate::ReentrantLock) of the same name is the same lock. Other threads are excluded, but the thread
/// that holds the mutex gets the reentrant lock too.
pub type Mutex = Handle<NonReentrant>;

/// The [`Guard`] of a [`Mutex`]: holds the lock until it is dropped, and stays on its thread.
pub type MutexGuard = Guard<NonReentrant>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`Mutex`]: holds the lock until it is dropped, and may move to other
/// threads.
pub type OwnedMutexGuard = Guard<NonReentrant, Owned>;
