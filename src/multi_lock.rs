//! Several locks as one.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::client::Shared;
use crate::error::{Error, Result};
use crate::handle::{Handle, Patience};
use crate::held::Held;
use crate::hold::{Loss, LossEar};
use crate::keys;
use crate::verbs::exclusive_lock;
use crate::wait::{self, CancelToken, Deadline};
use crate::wire::Family;

/// The longest pause of one who found members with somebody else, so that two do not go on taking them from each other.
const PAUSE: Duration = Duration::from_millis(5);

exclusive_lock! {
    /// Several locks as one: all of them are held, or none.
    ///
    /// Made of names by [`Client::multi_lock`](crate::Client::multi_lock), or of locks by [`MultiLock::new`].
    ///
    /// **Names of one client** are taken in one script: one round trip, however many there are. Each has the key of the
    /// [`ReentrantLock`](crate::ReentrantLock) of that name, so a multi-lock and a plain lock on one of its names, ours
    /// or Redisson's, keep each other out. It is one hold with one owner, renewed and released in one script; if one
    /// of the names is lost, all are. Where the server is a node of a cluster and the names are not of one slot, they are
    /// taken like locks of their own, below, in one pipelined round trip.
    ///
    /// **Locks of any clients** are asked for all at once, those of different servers at the same time, in an order that
    /// does not depend on how they were given. They are as many holds; if one is lost the guard is told, and the others
    /// stay held until it goes.
    ///
    /// **Waiting.** Whoever waits holds nothing meanwhile: it waits for the first member that somebody else has, and
    /// then tries all again. Sets that overlap therefore never deadlock, whoever names them in which order; and nobody
    /// has a claim to be next, so that one who wants many contended locks may wait for long.
    ///
    /// **Reentrancy.** A thread may take the same set again. A thread that holds one of the *names* otherwise would wait for
    /// itself: if it has it as a plain, fair, fenced or spin lock of this client, it is answered
    /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) (by `try_lock` `Ok(None)` may come instead); if it has it as
    /// part of another set, or wants a name of a set it has as a lock of its own, it waits until its time is up.
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let (from, to) = (7, 3);
    /// let _guard = client.multi_lock([format!("account:{from}"), format!("account:{to}")]).lock()?;
    /// // nobody else touches either account
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Settings made here ([`lease`](Self::lease), [`max_hold`](Self::max_hold), [`cancel_on`](Self::cancel_on)) are
    /// those of all members. Of several members that fail, each is told in
    /// [`Error::Members`](crate::Error::Members). A wait for one member does not notice that another one's client is
    /// closed until it is over.
    MultiLock,
    /// The holds of a [`MultiLock`], given back when dropped; see [`ReentrantLockGuard`](crate::ReentrantLockGuard).
    ///
    /// It is valid as long as each of them is, and hears of the first loss. [`owner`](Self::owner) names the owners of
    /// all holds, with a comma in between.
    MultiLockGuard,
    made by "client.multi_lock([\"a\", \"b\"]).lock()",
    through Members, holding AllHeld
}

impl MultiLock {
    /// Several locks of any clients and kinds as one. Nothing is sent.
    ///
    /// The same lock twice is one; two locks of one server that have the same key and are not the same, no members, and
    /// members on a server that another client of them uses under the same key are answered
    /// [`Error::Config`](crate::Error::Config) by the verbs.
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
        shared: &Arc<Shared>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
        names.dedup_by(|one, other| one.as_ref() == other.as_ref());
        let id = keys::list(names.iter().map(AsRef::as_ref)).into();
        Self::of(Members::new(vec![Handle::new(shared, id, Family::Several)]))
    }
}

/// A lock that can be a member of a [`MultiLock`]: any exclusive lock of one client.
///
/// A [`RedLock`](crate::RedLock) and the sides of a [`RwLock`](crate::RwLock) are none, nor is another multi-lock.
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
    use crate::handle::Handle;

    pub struct Part(pub(super) Handle);

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
    ($($lock:ident),+) => {$(
        impl sealed::Member for crate::$lock {
            fn part(&self) -> sealed::Part {
                sealed::Part(self.inner.clone())
            }
        }

        impl Lockable for crate::$lock {}
    )+};
}

lockable!(
    ReentrantLock,
    Mutex,
    FairLock,
    FairMutex,
    FencedLock,
    SpinLock
);

/// The members of a multi-lock, each once, in the one order.
#[derive(Clone)]
pub(crate) struct Members {
    pub(crate) name: Arc<str>,
    parts: Vec<Handle>,
    /// The names one by one, once a node of a cluster has said that no script of its own can have them all.
    apart: Arc<OnceLock<Self>>,
    /// Why they cannot be taken together.
    fault: Option<Arc<str>>,
}

impl Members {
    fn new(mut parts: Vec<Handle>) -> Self {
        let mut fault = None;
        parts.sort_by_cached_key(Handle::place);
        parts.dedup_by(|other, one| {
            let same_place = other.place() == one.place();
            if same_place && !one.is_same(other) {
                fault = Some(Arc::from(format!(
                    "two members of a multi-lock are locks of one key, `{}`, and not the same",
                    one.name
                )));
            }
            same_place
        });
        if parts.is_empty() {
            fault = Some("a multi-lock without members".into());
        }
        let names: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
        Self {
            name: names.join(", ").into(),
            parts,
            apart: Arc::default(),
            fault,
        }
    }

    fn each(mut self, change: impl Fn(Handle) -> Handle) -> Self {
        self.parts = self.parts.into_iter().map(change).collect();
        self.apart = Arc::default();
        self
    }

    pub(crate) fn lease(self, lease: Duration) -> Self {
        self.each(|part| part.lease(lease))
    }

    pub(crate) fn max_hold(self, max_hold: Duration) -> Self {
        self.each(|part| part.max_hold(max_hold))
    }

    pub(crate) fn cancel_on(self, token: &CancelToken) -> Self {
        self.each(|part| part.cancel_on(token))
    }

    fn check(&self) -> Result<()> {
        match &self.fault {
            Some(fault) => Err(Error::Config(fault.to_string())),
            None => Ok(()),
        }
    }

    /// Asks all in one, or one by one where that is impossible: see [`crosses_slots`].
    fn ask<T>(&self, ask: impl Fn(&Self) -> Result<T>) -> Result<T> {
        self.check()?;
        if let Some(apart) = self.apart.get() {
            return ask(apart);
        }
        match (ask(self), &*self.parts) {
            (Err(err), [alone]) if crosses_slots(&err) => {
                ask(self.apart.get_or_init(|| Self::new(alone.apart())))
            }
            (answer, _) => answer,
        }
    }

    pub(crate) fn acquire(&self, patience: Patience) -> Result<Option<AllHeld>> {
        self.ask(|members| members.acquire_all(patience))
    }

    fn acquire_all(&self, patience: Patience) -> Result<Option<AllHeld>> {
        if let [alone] = &*self.parts {
            let held = alone.acquire(patience)?;
            return Ok(held.map(|held| self.all(vec![held])));
        }
        for part in &self.parts {
            part.check(patience)?;
        }
        let mut busy: Option<usize> = None;
        loop {
            // Whoever was in the way is waited for with nothing held.
            let waited_for = match busy {
                None => None,
                Some(place) => match self.parts[place].acquire(patience) {
                    Ok(Some(held)) => Some((place, held)),
                    Ok(None) => return Ok(None),
                    Err(err) => return Err(self.failed(vec![(place, err)])),
                },
            };
            let round = self.round(patience);
            let begun: Vec<_> = self
                .parts
                .iter()
                .enumerate()
                .filter(|(place, _)| waited_for.as_ref().is_none_or(|(had, _)| had != place))
                .map(|(place, part)| (place, part.begin(round)))
                .collect();
            let mut held: Vec<_> = waited_for.into_iter().collect();
            let mut failures = Vec::new();
            busy = None;
            for (place, came) in begun {
                match self.parts[place].finish(came) {
                    Ok(Some(one)) => held.push((place, one)),
                    Ok(None) => busy = busy.or(Some(place)),
                    Err(err) => failures.push((place, err)),
                }
            }
            if !failures.is_empty() {
                drop(held);
                return Err(self.failed(failures));
            }
            if busy.is_none() {
                if let Some((_, late)) = held.iter().find(|(_, held)| !held.is_valid()) {
                    return Err(late.lost_error());
                }
                held.sort_unstable_by_key(|(place, _)| *place);
                return Ok(Some(
                    self.all(held.into_iter().map(|(_, held)| held).collect()),
                ));
            }
            drop(held);
            let Patience::Until(deadline) = patience else {
                return Ok(None);
            };
            let stop = || self.parts.iter().any(|part| part.must_stop(patience));
            let until = deadline.or(Instant::now() + wait::between(Duration::ZERO, PAUSE));
            wait::sleep_unless(until.saturating_duration_since(Instant::now()), &stop);
            if let Some(stopped) = self.parts.iter().find(|part| part.must_stop(patience)) {
                return Err(stopped.stopped());
            }
            if deadline.has_passed(Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// One attempt at every member, all of which end together.
    fn round(&self, patience: Patience) -> Patience {
        let (deadline, waits) = match patience {
            Patience::Until(deadline) => (deadline, true),
            _ => (Deadline::NEVER, false),
        };
        let budget = deadline.budget(Instant::now(), self.response_timeout());
        Patience::Together {
            until: budget.until,
            callers: budget.callers,
            waits,
        }
    }

    /// That of the most patient client.
    fn response_timeout(&self) -> Duration {
        let timeouts = self.parts.iter().map(|part| part.engine().response_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// What went wrong with members, each by its name; what concerns the whole call is told as it is.
    fn failed(&self, failures: Vec<(usize, Error)>) -> Error {
        let mut told = Vec::new();
        for (place, err) in failures {
            match err {
                Error::Cancelled | Error::Closed | Error::WouldDeadlock { .. } => return err,
                err => told.push((self.parts[place].name.to_string(), err)),
            }
        }
        Error::Members { failures: told }
    }

    fn all(&self, held: Vec<Held>) -> AllHeld {
        let owners: Vec<&str> = held.iter().map(Held::owner).collect();
        AllHeld {
            name: Arc::clone(&self.name),
            owner: owners.join(", "),
            held,
            lost: LossEar::default(),
            response_timeout: self.response_timeout(),
        }
    }

    pub(crate) fn is_locked(&self) -> Result<bool> {
        self.ask(|members| {
            for part in &members.parts {
                if part.is_locked()? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    pub(crate) fn remaining(&self) -> Result<Option<Duration>> {
        self.ask(|members| {
            let mut longest = None;
            for part in &members.parts {
                longest = longest.max(part.remaining()?);
            }
            Ok(longest)
        })
    }

    pub(crate) fn force_unlock(&self) -> Result<bool> {
        self.ask(|members| {
            let mut forced = false;
            for part in &members.parts {
                forced |= part.force_unlock()?;
            }
            Ok(forced)
        })
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let members = self.apart.get().unwrap_or(self);
        let counts = members.parts.iter().map(Handle::hold_count);
        counts.min().unwrap_or(0)
    }
}

/// Whether it is the answer of a cluster's node to a script with keys of several slots.
fn crosses_slots(err: &Error) -> bool {
    let Error::Redis { source, .. } = err else {
        return false;
    };
    source
        .downcast_ref::<RedisError>()
        .is_some_and(|err| err.kind() == ErrorKind::Server(ServerErrorKind::CrossSlot))
}

/// All holds of one guard.
pub(crate) struct AllHeld {
    name: Arc<str>,
    owner: String,
    held: Vec<Held>,
    lost: LossEar,
    response_timeout: Duration,
}

impl AllHeld {
    pub(crate) fn unlock(self) -> Result<()> {
        let mut failures = Vec::new();
        let until = Instant::now() + self.response_timeout;
        // All are on their way before one is waited for.
        let unlocking: Vec<_> = self
            .held
            .into_iter()
            .map(|held| (held.name().to_owned(), held.begin_unlock()))
            .collect();
        for (name, unlocking) in unlocking {
            if let Err(err) = unlocking.and_then(|unlocking| unlocking.finish(until)) {
                failures.push((name, err));
            }
        }
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0).1),
            _ => Err(Error::Members { failures }),
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.held.iter().all(Held::is_valid)
    }

    pub(crate) fn valid_until(&self) -> Instant {
        let untils = self.held.iter().map(Held::valid_until);
        untils.min().unwrap_or_else(Instant::now)
    }

    pub(crate) fn lost(&self) -> &Receiver<Loss> {
        let held = self.held.iter().filter(|held| !held.is_copy());
        self.lost.of(held.map(Held::hold))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let counts = self.held.iter().map(Held::hold_count);
        counts.min().unwrap_or(0)
    }
}
