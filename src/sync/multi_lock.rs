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
/// Made of names by [`Client::multi_lock`](crate::Client::multi_lock), or of locks by `MultiLock::new`.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let (from, to) = (7, 3);
/// let _guard = client.multi_lock([format!("account:{from}"), format!("account:{to}")]).lock()?;
/// // nobody else touches either account
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// Each member is a lock and a hold of its own: a name is the [`ReentrantLock`](crate::ReentrantLock) of that name, so
/// it and a multi-lock, ours or Redisson's, exclude each other. If one member is lost the guard is notified, and the
/// others stay held until it is dropped.
///
/// **Cost.** All are requested at once: those of one server in one write, so that free ones take one round trip
/// however many there are, and those of different servers at the same time. So are their releases. After a refusal
/// the first is requested first and then the rest, so contended sets take several round trips. In a cluster the
/// names may be in any slots.
///
/// **Order.** However they were given, members are ordered by key and then by the server's address. A thread that is
/// refused the first member releases all that it was granted. If another member was taken a moment ago, its holder may
/// have to release it: a thread that has all members before it keeps those and asks again. A single attempt does so for
/// up to a quarter of a second, or four round trips if that is longer, and not beyond the command timeout; a wait does
/// so for two round trips. So of those who try free locks at the same time one gets its whole set, if all have the same
/// lease, name the servers by the same addresses and are not stopped for longer than that.
///
/// **Waiting.** A thread that waits for longer holds nothing: it waits for the first member that somebody else has, and
/// then tries all again. Sets that overlap therefore never deadlock, whatever their order; and nobody is guaranteed to
/// be next, so a thread that wants many contended locks may wait long. Threads that want one member get their turn after
/// the tenure, as with a single lock.
///
/// **Reentrancy** is that of the members: a thread may take the same set again, or another that shares members with
/// it, unless one is a [`Mutex`](crate::Mutex). A thread that holds a name as another kind of lock would wait for
/// itself: waiting returns [`Error::WouldDeadlock`](crate::Error::WouldDeadlock), `try_lock` returns `Ok(None)`.
///
/// Settings made here ([`lease`](MultiLock::lease), [`max_hold`](MultiLock::max_hold), [`cancel_on`](MultiLock::cancel_on)) apply
/// to all members. If several members fail, [`Error::Members`](crate::Error::Members) names each. A wait for one
/// member does not notice that another one's client is closed until it is over.
pub type MultiLock = Handle<Multi>;

/// The [`Guard`] of a [`MultiLock`]: the holds of all members, released when dropped, that stay on their thread.
///
/// The guard is valid as long as each of the holds is, and reports the first loss. Its members may be on several servers,
/// so it has no [guarded commands](Guard::query).
pub type MultiLockGuard = Guard<Multi>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`MultiLock`]: the holds of all members, released when dropped, that may move to other threads.
pub type OwnedMultiLockGuard = Guard<Multi, Owned>;

impl Handle<Multi> {
    /// Returns several locks of any clients and kinds as one. Sends nothing.
    ///
    /// A lock that is given twice counts once, and another multi-lock is its members. The methods that lock return
    /// [`Error::Config`](crate::Error::Config) for no members, for a [`RedLock`](crate::RedLock), for two locks of one
    /// server that have the same key and are not the same, and for members on a server that another client of them uses
    /// under the same key. If members have the same key, the servers are asked whether their addresses are those of one
    /// server (`INFO`), before anything is taken and once for each connection. A server that does not answer this, or is
    /// down, counts as another one until it does.
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
    #[must_use]
    pub fn new(members: Vec<Box<dyn Lock>>) -> Self {
        let parts = members.iter().flat_map(|member| member.parts());
        Self::of(Members::new(parts.collect()))
    }

    pub(crate) fn of_names<N: AsRef<str>>(
        shared: &Arc<SharedSession>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let plain = |name: N| LockSpec::new(shared, name.as_ref().into(), &reentrant::KIND);
        Self::of(Members::new(names.into_iter().map(plain).collect()))
    }
}
