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

/// A lock kept by several independent Redis masters, and held while a majority of them keeps it.
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
/// Of five masters, two may be down, frozen or unreachable, and locking, renewing and unlocking still work. The lock is
/// reentrant: the thread that holds it may lock it again. [`Handle`] lists all methods. Source: the [Redlock
/// algorithm](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) of the Redis documentation.
/// Redisson's `RedissonRedLock` is a different algorithm, which ignores how long the masters took.
///
/// **What it does not promise.** The lock relies on clocks that run at about the same speed, and on pauses that end
/// in time. A process that was stopped, or a write that is under way, can outlive the lease, as with any other lock.
/// A master that restarts without its data has forgotten what it granted. If only a bare majority had granted the
/// lock, another client may then get it before the holder is notified; [`min_uptime`](RedLock::min_uptime) prevents that,
/// with the limits stated there. Where a late write does harm, use a [`FencedLock`](crate::FencedLock) and let the resource
/// check its token. A `RedLock` has no tokens: their counter would live in one Redis.
///
/// **Acquiring.** All masters are asked at the same time. The lock is held once a majority has granted it and at least a
/// tenth of the lease is left. The lease counts from before the first byte was sent, less a hundredth and 2 ms for clocks that
/// drift. If less is left by then, for example because this process was stopped, the grants are undone, and the call returns
/// [`Error::Redis`].
///
/// A master has a twentieth of the lease to reply, but at least 50 ms and at most 500 ms; with a lease below 200 ms, a
/// quarter of the lease. Once a majority has granted the lock, the call waits for no other master; later grants count too.
/// The client of a master that is down reconnects in the background. If too few masters reply, the request is undone on
/// every master, also where no reply arrived. After a pause of at most 50 ms it is sent again: by `try_lock` once, by
/// other calls until their time limit or the command timeout is over.
///
/// **Not acquired.** If a majority of the masters answers and no majority grants, the lock counts as taken, and `try_lock`
/// returns `Ok(None)`. Perhaps nobody has it then: several processes may have got some masters each. If no majority
/// answers in time, the call returns [`Error::NoQuorum`], or `Ok(None)` if only its time limit was too short. A master
/// that rejects the request counts as one that does not answer; if too many do so because their keys hold something else,
/// the error is [`Error::WrongType`].
///
/// **Asking.** For `is_locked` and `remaining_lease`, the lock is free once a majority says so. `force_unlock` returns `true`
/// if any master had a holder.
///
/// **Renewing.** Each client renews the part of the hold that its master keeps. A part that is lost never counts
/// again for this hold. Parts are lost when the master has lost its data, was unreachable until the part expired, or
/// its client was closed. A master that was unreachable when the lock was acquired does not join the hold later. So
/// failures add up while the lock is held, even if the masters return: of five that all granted it, the third to fail ends
/// the hold. [`nodes_held`](RedLockGuard::nodes_held) returns how many masters still keep the hold. A long job should
/// release the lock now and then and acquire it again.
///
/// **Losing it.** Each part expires on its own. Once fewer than a majority of parts are certain, the hold is lost, at
/// once and for good, and [`lost()`](RedLockGuard::lost) reports it. A master that lost its data is noticed at the next
/// renewal, after at most a third of the lease. A hold with a fixed lease is not renewed. Before the lease ends, only
/// locking again and [`unlock`](RedLockGuard::unlock) notice such a loss; `unlock` fails if fewer than a majority still had
/// the hold.
///
/// **Waiting.** Threads of one process wait in order and pass the lock among themselves. The first of them requests the
/// lock when a master announces a release, when the holder's lease ends, and in any case after a second, then at growing
/// intervals up to 5 s. If several processes get some masters each and none a majority, each tries again after a random
/// pause: of 5 to 50 ms at first, doubling up to 80 to 800 ms.
///
/// **In Redis** the lock uses, on each master, the key of the [`ReentrantLock`](crate::ReentrantLock) of its name, and
/// the two exclude each other on that master. Use one kind for a name, since a `ReentrantLock` on one master leaves a
/// majority free. The owner in each key is the guard's [`owner`](RedLockGuard::owner).
pub type RedLock = Handle<Red>;

/// The [`Guard`] of a [`RedLock`]: one hold, released when it is dropped, that stays on its thread.
///
/// Several servers keep the hold, so the guard has no [guarded commands](Guard::query).
pub type RedLockGuard = Guard<Red>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`RedLock`]: one hold, released when it is dropped, that may move to
/// other threads.
pub type OwnedRedLockGuard = Guard<Red, Owned>;

impl Handle<Red> {
    /// Makes the lock of these sessions. The public constructor is `RedLock::new`, in `client.rs`.
    pub(crate) fn over(sessions: Vec<Arc<SharedSession>>, name: &str) -> Result<Self> {
        if sessions.iter().any(|shared| shared.session.asks_replicas()) {
            let reason = "replica_ack is not for the clients of a RedLock, which counts masters";
            return Err(Error::setting(reason.into()));
        }
        let (quorum, id) = Quorum::new(sessions, name)?;
        Ok(Self::of(LockSpec::of_quorum(quorum, id)))
    }

    /// The sessions of the masters.
    pub(crate) fn clients(&self) -> &[Arc<SharedSession>] {
        self.target
            .quorum
            .as_ref()
            .map_or(&[], |quorum| quorum.clients())
    }

    /// Returns a handle for which a master counts only once it has been up for `longest_lease`.
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
    ///
    /// Pass the longest lease that any process uses for this name. A master that restarts without its data has
    /// forgotten the holds it granted; after the longest lease none of these holds can be valid any more. Source: the
    /// crash recovery rule of the Redlock description. From 10 ms to 100 years; for any other value except zero the methods
    /// that lock return [`Error::InvalidSetting`]. Default: zero, a master counts at once.
    ///
    /// Each acquire also reads the server's uptime. Redis reports whole seconds, so a master counts up to two seconds
    /// later than it could. If the `run_id` of a master changes (Redis draws one at each start), the master has restarted,
    /// or is another server, such as a promoted replica, whose uptime does not tell whether it knows the holds. So it
    /// counts only once `longest_lease` has passed since an acquire first saw that `run_id`.
    ///
    /// Limits: a client that is opened after such a change does not see it, and goes by the uptime. The clocks of the
    /// masters must not be set forward.
    ///
    /// A hold passed on by another thread of this process was granted under that thread's setting, so use one setting for a
    /// name.
    #[must_use]
    pub fn min_uptime(mut self, longest_lease: Duration) -> Self {
        self.target.up_for = longest_lease;
        self
    }
}

impl<S: Scope> Guard<Red, S> {
    /// Returns how many masters certainly keep the hold, as far as this process knows. No I/O.
    ///
    /// Right after the grant this may be a bare majority; the other masters count when their replies arrive. After that
    /// the number only falls: a master that has lost the hold never counts again.
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
