//! Several locks as one.

use std::sync::Arc;

use crate::acquire::multi::Members;
use crate::acquire::spec::LockSpec;
use crate::protocol::reentrant;
use crate::session::shared::SharedSession;
use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Multi, Owned};
use crate::sync::traits::Lock;

/// Several locks as one: all of them are held, or none.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let (from, to) = (7, 3);
/// let _guard = client.multi_lock([format!("account:{from}"), format!("account:{to}")]).lock()?;
/// // no other thread or process touches either account
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// [`Client::multi_lock`](crate::Client::multi_lock) combines names, [`MultiLock::new`](MultiLock::new) locks of any
/// clients. [`Handle`] lists all methods. Sets that overlap never deadlock, in whatever order their names are given.
///
/// **Late writes.** A multi-lock has neither a token nor guarded commands. Where a late write does harm, protect all the
/// data by one [`FencedLock`](crate::FencedLock) instead. If that is too coarse, take a `FencedLock` for each name, in
/// sorted order, since single locks in different orders can deadlock. Let the resource store the tokens of all names
/// before you read the data, and check them at each write: it then rejects late writes of all earlier holders.
///
/// **Members.** Each member is a lock of its own, with a hold of its own. A name stands for the
/// [`ReentrantLock`](crate::ReentrantLock) of that name, which excludes other threads and Redisson's multi-locks; a thread
/// that holds it, or its [`Mutex`](crate::Mutex), gets the member too. If a member is lost, the guard reports it, and the
/// others stay held until the guard is dropped.
///
/// **Reentrancy** is that of the members. A thread may lock the same set again, or another set that shares members with
/// it, unless a shared member is a `Mutex` or a [`FairMutex`](crate::FairMutex). A thread that holds a name as another kind
/// of lock would wait for itself: waiting returns [`Error::WouldDeadlock`](crate::Error::WouldDeadlock), and `try_lock`
/// returns `Ok(None)`. If that other kind is a read-write lock, the member fails with
/// [`Error::WrongType`](crate::Error::WrongType).
///
/// **Settings** of the multi-lock, such as [`fixed_lease`](MultiLock::fixed_lease), replace those of all members.
///
/// **Errors.** If members fail while the set is acquired, the granted members are released, and
/// [`Error::Members`](crate::Error::Members) names each that failed. `Cancelled`, `Closed` and `WouldDeadlock` are returned
/// as they are, and so is any error if there is only one member. [`unlock`](MultiLockGuard::unlock) returns `Members` if
/// several releases fail, and the error itself if only one fails.
///
/// **Cost.** All members are requested at once, those of one server in one write and those of different servers at the
/// same time. So a free set usually takes one round trip, however many members it has, and a contended set several.
/// Releases work in the same way. In a cluster the names may be in any slots.
///
/// **Waiting.** A thread that finds a member taken releases the members that it was granted, waits for the taken one,
/// and then requests all of them again. No thread is guaranteed to be next, so a thread that wants many contended locks
/// may wait long. Threads of other processes that lock only one of the names get their turn after the tenure (5 ms,
/// [`Config::tenure`](crate::Config::tenure)), as with a single lock. A thread that waits for a taken member does not notice
/// that the client of another member was closed.
///
/// **Collisions.** If several threads try at the same time for overlapping sets that nobody holds yet, one of them gets
/// its whole set. For this, all of them need the same lease, the same server addresses and similar round trips, and none
/// may be stopped meanwhile.
pub type MultiLock = Handle<Multi>;

/// The [`Guard`] of a [`MultiLock`]: one hold of each member, released when it is dropped, that stays on its thread.
///
/// The guard is valid as long as every member's hold is valid, and reports the first loss. The members may be on
/// several servers, so the guard has no [guarded commands](Guard::query).
pub type MultiLockGuard = Guard<Multi>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`MultiLock`]: one hold of each member, released when it is dropped, that may
/// move to other threads.
pub type OwnedMultiLockGuard = Guard<Multi, Owned>;

impl MultiLock {
    /// Combines several locks, of any clients and kinds but [`RedLock`](crate::RedLock), into one. Sends nothing.
    ///
    /// ```no_run
    /// use redlatch::{Client, MultiLock};
    ///
    /// let (here, there) = (Client::open("redis://here/")?, Client::open("redis://there/")?);
    /// let both = MultiLock::new(vec![
    ///     Box::new(here.reentrant_lock("stock:42")),
    ///     Box::new(there.fair_lock("stock:42")),
    /// ]);
    /// let _guard = both.lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// A lock that is given twice counts once. A multi-lock among the members is replaced by its own members.
    ///
    /// The methods that lock return [`Error::InvalidSetting`](crate::Error::InvalidSetting) if
    ///
    /// - there are no members,
    /// - a member is a [`RedLock`](crate::RedLock) or a lock for tests, or
    /// - two members lock the same key of one server as different kinds, through different clients, or with different
    ///   settings.
    ///
    /// If members have the same key, the servers are asked whether their addresses lead to one server (`INFO`),
    /// before anything is acquired and once for each connection. A server that does not answer this counts as a
    /// different one until it does.
    #[must_use]
    pub fn new(members: Vec<Box<dyn Lock>>) -> Self {
        let parts: Option<Vec<_>> = members.iter().map(|member| member.parts()).collect();
        Self::of(match parts {
            Some(parts) => Members::new(parts.concat()),
            None => Members::impossible("a lock for tests cannot be a member of a multi-lock"),
        })
    }

    pub(crate) fn of_names<N: AsRef<str>>(
        shared: &Arc<SharedSession>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let plain = |name: N| LockSpec::new(shared, name.as_ref().into(), &reentrant::KIND);
        Self::of(Members::new(names.into_iter().map(plain).collect()))
    }
}
