//! Several locks as one.

use std::sync::Arc;

use crate::acquire::multi::{Members, MultiGuardInner};
use crate::acquire::spec::LockSpec;
use crate::protocol::keys;
use crate::protocol::multi;
use crate::session::SharedSession;
use crate::sync::macros::exclusive_lock;

exclusive_lock! {
    /// Several locks as one: all of them are held, or none.
    ///
    /// Made of names by [`Client::multi_lock`](crate::Client::multi_lock), or of locks by [`MultiLock::new`].
    ///
    /// **Names of one client** are taken in one script: one round trip, however many there are. Each has the key of the
    /// [`ReentrantLock`](crate::ReentrantLock) of that name, so a multi-lock and a plain lock on one of its names, ours
    /// or Redisson's, exclude each other. It is one hold with one owner, renewed and released in one script; if one of
    /// the names is lost, all are. If the server is a node of a cluster and the names are not of one slot, they are
    /// taken like locks of their own, below, in one pipelined round trip.
    ///
    /// **Locks of any clients** are requested all at once, those of different servers at the same time; after a refusal
    /// first the first of them and then the rest. They are as many holds; if one is lost the guard is notified, and the
    /// others stay held until it is dropped.
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
    /// **Reentrancy.** A thread may take the same set again. A thread that holds one of the locks otherwise, as another
    /// kind or as part of another set of the same client, would wait for itself: waiting returns
    /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock), `try_lock` returns `Ok(None)`.
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
    /// The same lock twice counts once. The methods that lock return [`Error::Config`](crate::Error::Config) for no
    /// members, for two locks of one server that have the same key and are not the same, and for members on a server
    /// that another client of them uses under the same key. Whether two addresses are those of one server is asked of
    /// the servers (`INFO`) before anything is taken, once for each connection, and only if members have
    /// the same key; a server that does not answer this, or is down, counts as another one until it does.
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
    pub fn new(members: Vec<Box<dyn Lockable>>) -> Self {
        Self::of(Members::new(
            members.iter().map(|member| member.part().0).collect(),
        ))
    }

    pub(crate) fn of_names<N: AsRef<str>>(
        shared: &Arc<SharedSession>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
        names.dedup_by(|one, other| one.as_ref() == other.as_ref());
        let id = keys::list(names.iter().map(AsRef::as_ref)).into();
        Self::of(Members::new(vec![LockSpec::new(shared, id, &multi::KIND)]))
    }
}

/// A lock that can be a member of a [`MultiLock`]: any exclusive lock of one client.
///
/// Not a [`RedLock`](crate::RedLock), not one side of an [`RwLock`](crate::RwLock), and not another multi-lock.
///
/// ```compile_fail,E0277
/// let client = redlatch::Client::open("redis://127.0.0.1/").unwrap();
/// redlatch::MultiLock::new(vec![Box::new(client.rwlock("a"))]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a member of a `MultiLock`",
    label = "not an exclusive lock of one client"
)]
pub trait Lockable: sealed::Member + Send + Sync {}

mod sealed {
    use crate::acquire::spec::LockSpec;

    pub struct Part(pub(super) LockSpec);

    impl std::fmt::Debug for Part {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(&self.0.name)
        }
    }

    pub trait Member {
        fn part(&self) -> Part;
    }
}

macro_rules! lockable {
    ($($lock:path),+) => {$(
        impl sealed::Member for $lock {
            fn part(&self) -> sealed::Part {
                sealed::Part(self.inner.clone())
            }
        }

        impl Lockable for $lock {}
    )+};
}

lockable!(
    super::reentrant_lock::ReentrantLock,
    super::mutex::Mutex,
    super::fair_lock::FairLock,
    super::fair_mutex::FairMutex,
    super::fenced_lock::FencedLock,
    super::spin_lock::SpinLock
);
