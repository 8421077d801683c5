//! Several locks as one.

use std::sync::Arc;

use crate::acquire::multi::{Members, MultiGuardInner};
use crate::acquire::spec::LockSpec;
use crate::protocol::reentrant;
use crate::session::shared::SharedSession;
use crate::sync::macros::exclusive_lock;
use crate::sync::traits::Lock;

exclusive_lock! {
    /// Several locks as one: all of them are held, or none.
    ///
    /// Made of names by [`Client::multi_lock`](crate::Client::multi_lock), or of locks by [`MultiLock::new`].
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
    /// **Order.** However they were given, they are ordered by key and then by the server's address. A thread that is
    /// refused the first releases all that it was granted. One that has all before a member which was taken a moment
    /// ago keeps those and goes on asking for that one, since its holder may have to release it: a single attempt does
    /// so for up to a quarter of a second, or four round trips if that is longer, and not beyond the response timeout;
    /// a wait for two round trips. So of those who try free locks at the same time one gets its whole set, if all have
    /// the same lease, name the servers by the same addresses and are not stopped for longer than that.
    ///
    /// **Waiting.** Whoever waits for longer holds nothing meanwhile: it waits for the first member that somebody else
    /// has, and then tries all again. Sets that overlap therefore never deadlock, whatever their order; and nobody is
    /// guaranteed to be next, so a thread that wants many contended locks may wait long. Those who want one member get their
    /// turn after the tenure, as with a single lock.
    ///
    /// **Reentrancy** is that of the members: a thread may take the same set again, or another that shares members with
    /// it, unless one is a [`Mutex`](crate::Mutex). A thread that holds a name as another kind of lock would wait for
    /// itself: waiting returns [`Error::WouldDeadlock`](crate::Error::WouldDeadlock), `try_lock` returns `Ok(None)`.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let (from, to) = (7, 3);
    /// let _guard = client.multi_lock([format!("account:{from}"), format!("account:{to}")]).lock()?;
    /// // nobody else touches either account
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Settings made here ([`lease`](Self::lease), [`max_hold`](Self::max_hold), [`cancel_on`](Self::cancel_on)) apply
    /// to all members. If several members fail, [`Error::Members`](crate::Error::Members) names each. A wait for one
    /// member does not notice that another one's client is closed until it is over.
    MultiLock,
    /// The holds of a [`MultiLock`], released when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    ///
    /// It is valid as long as each of them is, and reports the first loss. [`owner`](Self::owner) names the owners of
    /// all holds, separated by commas.
    MultiLockGuard,
    made by "client.multi_lock([\"a\", \"b\"])",
    through Members, holding MultiGuardInner
}

impl MultiLock {
    /// Returns several locks of any clients and kinds as one. Sends nothing.
    ///
    /// The same lock twice counts once, and another multi-lock is its members. The methods that lock return
    /// [`Error::Config`](crate::Error::Config) for no members, for a [`RedLock`](crate::RedLock), for two locks of one
    /// server that have the same key and are not the same, and for members on a server that another client of them uses
    /// under the same key. Whether two addresses are those of one server is asked of the servers (`INFO`) before anything
    /// is taken, once for each connection, and only if members have the same key; a server that does not answer this, or
    /// is down, counts as another one until it does.
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
        let parts = members.iter().flat_map(|member| member.parts().0);
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
