//! The lock that a majority of independent masters keeps.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::spec::LockSpec;
use crate::error::{Error, Result};
use crate::quorum::ask::Quorum;
use crate::session::shared::SharedSession;
use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Owned, Red, Scope};

/// A lock over several independent masters: held while a majority of them keeps it.
///
/// ```no_run
/// use redlatch::{Client, RedLock};
///
/// let open = |port: u16| Client::open(format!("redis://127.0.0.1:{port}/"));
/// let (a, b, c) = (open(7001)?, open(7002)?, open(7003)?);
/// let lock = RedLock::new([&a, &b, &c], "billing")?;
/// let guard = lock.lock()?;
/// println!("{} of 3 masters keep it", guard.nodes_held());
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// The lock survives the loss of any minority: of five masters two may be down, frozen or unreachable, and it is taken,
/// kept and released as before. Source: the Redlock algorithm of the Redis documentation,
/// <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>; Redisson's `RedissonRedLock` is a
/// different one (it does not count time).
///
/// **Taking it.** All masters are asked at the same time; each may take a twentieth of the lease, at least 50 ms
/// and at most 500 ms, but never more than a quarter of the lease. The lock is held once a majority has granted it
/// and at least a tenth of the lease is left: the lease less the time since before the first byte was sent, less a
/// hundredth and 2 ms for clocks that drift. Otherwise it is released wherever it was requested, also where no
/// answer came, and, unless the grant came too late, requested again after 5
/// to 50 ms at random. A master that is down or owes an answer is not asked as long as the others are enough; it is
/// connected again in the background.
///
/// **Keeping it.** Each client renews the part of its master. A part that is lost never counts again for this hold:
/// its master has forgotten it, was unreachable until it ran out, or its client was closed. Nor does a master get a part
/// later that was away when the lock was taken. So a hold survives the loss of a minority over its whole life, not of
/// one minority after the other: [`nodes_held`](RedLockGuard::nodes_held) says how many masters still keep it, and
/// a job that takes long should release the lock now and then and take it again.
///
/// **Losing it.** Each part counts for its own time. Once fewer than a majority are certain, the hold is lost, at once
/// and for good, and [`lost()`](RedLockGuard::lost) says so. A master that has forgotten its part is noticed when that
/// is renewed, after at most a third of the lease; with a fixed lease only by [`unlock`](RedLockGuard::unlock),
/// which fails if fewer than a majority still had it.
///
/// **What it does not promise.** The lock relies on clocks that run at about the same speed and on pauses that end in
/// time: a process that was stopped, or a write that is under way, can outlive the lease as with any other lock. A
/// master that restarts without its data has forgotten what it granted, and if the majority was a bare one another
/// client may be granted the lock some milliseconds before the holder is notified;
/// [`min_uptime`](RedLock::min_uptime) prevents that. Where a late write does harm, let the resource
/// check a number that rises with each holder: that is a [`FencedLock`](crate::FencedLock), whose counter lives in
/// one Redis; this lock has none.
///
/// **Waiting.** On each master the lock uses the key of the [`ReentrantLock`](crate::ReentrantLock) of its name, whose
/// holder counts as somebody else. The owner there is that of the guard. Threads of one process wait in order and hand it over among themselves. One thread of each
/// process subscribes on every master, and requests the lock when a release is announced; a message of one master
/// is enough, and any two of three masters, or three of five, announce every release. If several processes then get
/// a part each and none a majority, they come again after 5 to 50 ms at random. Without a message a thread looks
/// whether a majority of masters is free (`PTTL`) once a second, later every 5 s, or when the holder's leases end,
/// and only then requests it. A process that has had it for its
/// tenure while others listened lets them go first: as long as four grants take, at least 1 ms and at most 50 ms.
pub type RedLock = Handle<Red>;

/// The [`Guard`] of a [`RedLock`]: a hold, released when dropped, that stays on its thread.
///
/// Several servers keep the hold, so the guard has no [guarded commands](Guard::query).
pub type RedLockGuard = Guard<Red>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`RedLock`]: a hold, released when dropped, that may move to other threads.
pub type OwnedRedLockGuard = Guard<Red, Owned>;

impl Handle<Red> {
    /// See `RedLock::new`, which is where clients are known: in `client.rs`.
    pub(crate) fn over(sessions: Vec<Arc<SharedSession>>, name: &str) -> Result<Self> {
        if sessions.iter().any(|shared| shared.session.asks_replicas()) {
            let what = "replica_ack is not for the clients of a RedLock, which counts masters";
            return Err(Error::config(what.into()));
        }
        let (quorum, id) = Quorum::new(sessions, name)?;
        Ok(Self::of(LockSpec::of_quorum(quorum, id)))
    }

    /// The clients of its masters.
    pub(crate) fn clients(&self) -> &[Arc<SharedSession>] {
        self.target
            .quorum
            .as_ref()
            .map_or(&[], |quorum| quorum.clients())
    }

    /// Returns a handle for which a master counts only once it has been up for `longest_lease`.
    ///
    /// A master that restarts without its data has forgotten the holds it granted; once the longest lease that anybody
    /// uses for this name is over, none of them can be valid any more. Source: the crash recovery rule of the Redlock
    /// description.
    ///
    /// The server's uptime is read in the acquire itself; since it counts whole seconds, a master counts up to two
    /// seconds later than it could. A server that is not the one its client knew (by its `run_id`: restarted, or
    /// another behind the same address, like a replica that was promoted) counts once its client has known it for
    /// `longest_lease`, from the first acquire that met it; a client that is opened after such a change cannot know,
    /// and goes by the uptime alone. The setting relies on the wall clock of the masters, which should not be set forward.
    ///
    /// A hold handed over by another thread of this process was asked for by that thread's handle.
    ///
    /// From 10 ms to 100 years; for anything else the methods that lock return [`Error::Config`](crate::Error::Config).
    /// Default: a master counts at once.
    ///
    /// ```no_run
    /// # let a = redlatch::Client::open("redis://127.0.0.1:7001/")?;
    /// # let b = redlatch::Client::open("redis://127.0.0.1:7002/")?;
    /// # let c = redlatch::Client::open("redis://127.0.0.1:7003/")?;
    /// let longest_lease = std::time::Duration::from_secs(30);
    /// let lock = redlatch::RedLock::new([&a, &b, &c], "billing")?.min_uptime(longest_lease);
    /// let _guard = lock.lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn min_uptime(mut self, longest_lease: Duration) -> Self {
        self.target.up_for = longest_lease;
        self
    }
}

impl<S: Scope> Guard<Red, S> {
    /// Returns how many masters certainly keep the hold, as far as this process knows. No I/O.
    ///
    /// Right after the grant it may be a bare majority: the other answers are counted when they arrive, each from when its
    /// master was asked. From then on it only falls: see the type's "Keeping it".
    ///
    /// ```no_run
    /// # let a = redlatch::Client::open("redis://127.0.0.1:7001/")?;
    /// # let b = redlatch::Client::open("redis://127.0.0.1:7002/")?;
    /// # let c = redlatch::Client::open("redis://127.0.0.1:7003/")?;
    /// let guard = redlatch::RedLock::new([&a, &b, &c], "billing")?.lock()?;
    /// println!("{} of 3 masters keep it", guard.nodes_held());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn nodes_held(&self) -> usize {
        self.held.nodes_held()
    }
}
