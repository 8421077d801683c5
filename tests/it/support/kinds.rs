//! A common interface to all kinds of locks, for tests of any kind.
//!
//! A [`Kind`] is a value and its handles are trait objects, so that a test of all kinds is compiled once.

use std::cell::Cell;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, LossReceiver, Result, RwLock};

use crate::support::rwlock::hold_key;
use crate::support::{LONG, Server, beside, eventually, lua, ms};

/// Where the waiters of a lock queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// In each process: one of its threads asks Redis, and the threads pass the lock on among themselves.
    Process,
    /// In Redis: every thread has its own place, and no process passes the lock on.
    Redis,
}

/// Which waiters are notified of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// All waiters, on one channel: the prefix of its name, and the payload.
    All(&'static str, &'static str),
    /// The first waiter in the queue, on its own channel.
    First,
    /// No waiter.
    Nobody,
}

/// How to create handles of a kind, and how the kinds differ.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) title: &'static str,
    pub(crate) handle: fn(&Client, &str) -> AnyLock,
    /// The kind that this one conflicts with, if that is not itself: readers conflict with writers.
    pub(crate) foe: Option<&'static Self>,
    pub(crate) reentrant: bool,
    pub(crate) queue: Queue,
    /// Which waiters are notified of a release.
    pub(crate) notified: Notified,
    /// The number of channels that a contender subscribes to while it waits.
    pub(crate) listens: u64,
    /// Whether each hold has a fencing token.
    pub(crate) tokens: bool,
    /// Whether the hash in Redis counts the holds of the owner.
    pub(crate) counted: bool,
    /// The commands that the server runs for a release.
    pub(crate) release: u64,
    /// The script that acquires the lock.
    pub(crate) acquire: &'static str,
    /// The value of the field `mode` in the hash of a read-write lock.
    pub(crate) mode: Option<&'static str>,
    /// The names that are locked in Redis by the name of one lock.
    pub(crate) names: fn(&str) -> Vec<String>,
    /// Servers that keep the lock, besides the one that a test starts.
    pub(crate) others: fn() -> Option<Arc<Vec<Server>>>,
}

pub(crate) const REENTRANT_LOCK: Kind = Kind {
    title: "reentrant lock",
    handle: |client, name| client.reentrant_lock(name).into(),
    foe: None,
    reentrant: true,
    queue: Queue::Process,
    notified: Notified::All("redisson_lock__channel", "0"),
    listens: 1,
    tokens: false,
    counted: true,
    release: 4, // EVALSHA, HDEL, EXISTS, PUBLISH
    acquire: lua::LOCK_ACQUIRE,
    mode: None,
    names: |name| vec![name.to_owned()],
    others: || None,
};

pub(crate) const MUTEX: Kind = Kind {
    title: "mutex",
    handle: |client, name| client.mutex(name).into(),
    reentrant: false,
    ..REENTRANT_LOCK
};

pub(crate) const FAIR_LOCK: Kind = Kind {
    title: "fair lock",
    handle: |client, name| client.fair_lock(name).into(),
    queue: Queue::Redis,
    notified: Notified::First,
    acquire: lua::FAIR_ACQUIRE,
    ..REENTRANT_LOCK
};

pub(crate) const FAIR_MUTEX: Kind = Kind {
    title: "fair mutex",
    handle: |client, name| client.fair_mutex(name).into(),
    reentrant: false,
    ..FAIR_LOCK
};

pub(crate) const FENCED_LOCK: Kind = Kind {
    title: "fenced lock",
    handle: |client, name| client.fenced_lock(name).into(),
    tokens: true,
    acquire: lua::FENCED_ACQUIRE,
    ..REENTRANT_LOCK
};

pub(crate) const SPIN_LOCK: Kind = Kind {
    title: "spin lock",
    handle: |client, name| client.spin_lock(name).into(),
    notified: Notified::Nobody,
    listens: 0,
    release: 3, // without PUBLISH
    ..REENTRANT_LOCK
};

/// The read-write lock used by a writer.
pub(crate) const WRITING: Kind = Kind {
    title: "writing",
    handle: |client, name| Writing(client.rw_lock(name)).into(),
    notified: Notified::All("redisson_rwlock", "1"),
    release: 6, // EVALSHA, HGET, HDEL, HLEN, DEL, PUBLISH
    acquire: lua::RW_WRITE_ACQUIRE,
    mode: Some("write"),
    ..REENTRANT_LOCK
};

/// The read-write lock used by a reader.
pub(crate) const READING: Kind = Kind {
    title: "reading",
    handle: |client, name| Reading(client.rw_lock(name)).into(),
    foe: Some(&WRITING),
    notified: Notified::All("redisson_rwlock", "0"),
    counted: false, // Redis counts one hold, however many the thread has
    acquire: lua::RW_READ_ACQUIRE,
    mode: Some("read"),
    ..REENTRANT_LOCK
};

/// Each kind whose lock is one key on one server, including both sides of the read-write lock.
pub(crate) const KINDS: [Kind; 8] = [
    REENTRANT_LOCK,
    MUTEX,
    FAIR_LOCK,
    FAIR_MUTEX,
    FENCED_LOCK,
    SPIN_LOCK,
    WRITING,
    READING,
];

impl Kind {
    pub(crate) fn of(&self, client: &Client, name: &str) -> AnyLock {
        (self.handle)(client, name)
    }

    pub(crate) fn foe(self) -> Self {
        self.foe.copied().unwrap_or(self)
    }

    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        (self.names)(name)
    }

    pub(crate) fn others(&self) -> Option<Arc<Vec<Server>>> {
        (self.others)()
    }

    /// The field of the hash that represents `owner`.
    pub(crate) fn field(&self, owner: &str) -> String {
        match self.mode {
            Some("write") => format!("{owner}:write"),
            _ => owner.to_owned(),
        }
    }

    /// All fields of the hash, sorted, while `owner` alone has `count` holds.
    pub(crate) fn fields(&self, owner: &str, count: u32) -> Vec<(String, String)> {
        let mode = self.mode.map(|mode| ("mode".to_owned(), mode.to_owned()));
        let holds = (self.field(owner), count.to_string());
        [holds].into_iter().chain(mode).collect()
    }

    /// All keys, sorted, while `owner` alone holds `name` and nobody waits.
    pub(crate) fn keys(&self, name: &str, owner: &str) -> Vec<String> {
        let mut keys = self.names(name);
        if self.tokens {
            keys.push(beside("redisson_lock_token", name));
        }
        if self.mode == Some("read") {
            keys.push(hold_key(name, owner));
        }
        keys.sort();
        keys
    }

    /// Whether `key` outlives the holders of its lock and never expires.
    pub(crate) fn stays(&self, key: &str) -> bool {
        self.tokens && key.starts_with("redisson_lock_token:")
    }
}

/// A handle of any kind.
#[derive(Clone, Debug)]
pub(crate) struct AnyLock(Arc<dyn Lock>);

/// A guard of any kind.
pub(crate) type AnyGuard = Box<dyn Guard>;

impl<L: Lock + 'static> From<L> for AnyLock {
    fn from(lock: L) -> Self {
        Self(Arc::new(lock))
    }
}

impl Deref for AnyLock {
    type Target = dyn Lock;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl AnyLock {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&dyn Guard) -> T) -> Result<T> {
        let (mut work, mut result) = (Some(work), None);
        self.0
            .with(&mut |guard| result = work.take().map(|work| work(guard)))?;
        Ok(result.expect("`with` has called its closure"))
    }
}

/// The methods that all handles have.
pub(crate) trait Lock: Debug + Send + Sync {
    fn lease(&self, lease: Duration) -> AnyLock;
    fn max_hold(&self, max_hold: Duration) -> AnyLock;
    fn cancel_on(&self, token: &CancelToken) -> AnyLock;
    fn lock(&self) -> Result<AnyGuard>;
    fn try_lock(&self) -> Result<Option<AnyGuard>>;
    fn try_lock_for(&self, wait: Duration) -> Result<Option<AnyGuard>>;
    fn try_lock_until(&self, instant: Instant) -> Result<Option<AnyGuard>>;
    fn with(&self, work: &mut dyn FnMut(&dyn Guard)) -> Result<()>;
    fn is_locked(&self) -> Result<bool>;
    fn is_owned_by_current_thread(&self) -> bool;
    fn hold_count(&self) -> u32;
    fn remaining_lease(&self) -> Result<Option<Duration>>;
    fn force_unlock(&self) -> Result<bool>;
    fn name(&self) -> &str;
}

/// The methods that all guards have.
pub(crate) trait Guard: Debug {
    fn unlock(self: Box<Self>) -> Result<()>;
    fn is_valid(&self) -> bool;
    fn valid_until(&self) -> Instant;
    fn lost(&self) -> &LossReceiver;
    fn name(&self) -> &str;
    fn owner(&self) -> &str;
    fn hold_count(&self) -> u32;
    /// The fencing token; zero for kinds without tokens.
    fn token(&self) -> u64 {
        0
    }
    /// Waits until every server has confirmed that it keeps the hold.
    fn settle(&self) {}
}

macro_rules! guard {
    ($guard:ty $({ $($own_items:tt)* })?) => {
        impl crate::support::Guard for $guard {
            fn unlock(self: Box<Self>) -> redlatch::Result<()> {
                <$guard>::unlock(*self)
            }
            fn is_valid(&self) -> bool {
                <$guard>::is_valid(self)
            }
            fn valid_until(&self) -> std::time::Instant {
                <$guard>::valid_until(self)
            }
            fn lost(&self) -> &redlatch::LossReceiver {
                <$guard>::lost(self)
            }
            fn name(&self) -> &str {
                <$guard>::name(self)
            }
            fn owner(&self) -> &str {
                <$guard>::owner(self)
            }
            fn hold_count(&self) -> u32 {
                <$guard>::hold_count(self)
            }
            $($($own_items)*)?
        }
    };
}

/// Implements [`Lock`] for a handle or for an adapter. An adapter names its handle, how to wrap a copy with other
/// settings, whether the current thread owns it, and its verbs.
macro_rules! lock {
    ($lock:ty) => {
        crate::support::lock! {
            $lock: |this| this, |copy| copy, this.is_owned_by_current_thread();
            lock try_lock try_lock_for try_lock_until with is_locked hold_count
        }
    };
    (
        $lock:ty: |$this:ident| $handle:expr, |$copy:ident| $adapted:expr, $is_owned:expr;
        $take:ident $try:ident $try_for:ident $try_until:ident $with:ident $is_locked:ident $hold_count:ident
    ) => {
        impl crate::support::Lock for $lock {
            fn lease(&self, lease: std::time::Duration) -> crate::support::AnyLock {
                let $this = self;
                let $copy = $handle.clone().fixed_lease(lease);
                $adapted.into()
            }
            fn max_hold(&self, max_hold: std::time::Duration) -> crate::support::AnyLock {
                let $this = self;
                let $copy = $handle.clone().max_hold(max_hold);
                $adapted.into()
            }
            fn cancel_on(&self, token: &redlatch::CancelToken) -> crate::support::AnyLock {
                let $this = self;
                let $copy = $handle.clone().cancel_on(token);
                $adapted.into()
            }
            fn lock(&self) -> redlatch::Result<crate::support::AnyGuard> {
                let $this = self;
                Ok(Box::new($handle.$take()?))
            }
            fn try_lock(&self) -> redlatch::Result<Option<crate::support::AnyGuard>> {
                let $this = self;
                Ok($handle.$try()?.map(|guard| Box::new(guard) as _))
            }
            fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> redlatch::Result<Option<crate::support::AnyGuard>> {
                let $this = self;
                Ok($handle.$try_for(wait)?.map(|guard| Box::new(guard) as _))
            }
            fn try_lock_until(
                &self,
                instant: std::time::Instant,
            ) -> redlatch::Result<Option<crate::support::AnyGuard>> {
                let $this = self;
                Ok($handle
                    .$try_until(instant)?
                    .map(|guard| Box::new(guard) as _))
            }
            fn with(
                &self,
                work: &mut dyn FnMut(&dyn crate::support::Guard),
            ) -> redlatch::Result<()> {
                let $this = self;
                $handle.$with(|guard| work(guard))
            }
            fn is_locked(&self) -> redlatch::Result<bool> {
                let $this = self;
                $handle.$is_locked()
            }
            fn is_owned_by_current_thread(&self) -> bool {
                let $this = self;
                $is_owned
            }
            fn hold_count(&self) -> u32 {
                let $this = self;
                $handle.$hold_count()
            }
            fn remaining_lease(&self) -> redlatch::Result<Option<std::time::Duration>> {
                let $this = self;
                $handle.remaining_lease()
            }
            fn force_unlock(&self) -> redlatch::Result<bool> {
                let $this = self;
                $handle.force_unlock()
            }
            fn name(&self) -> &str {
                let $this = self;
                $handle.name()
            }
        }
    };
}

pub(crate) use {guard, lock};

guard!(redlatch::ReentrantLockGuard);
guard!(redlatch::MutexGuard);
guard!(redlatch::FairLockGuard);
guard!(redlatch::FairMutexGuard);
guard!(redlatch::SpinLockGuard);
guard!(redlatch::RwLockWriteGuard);
guard!(redlatch::RwLockReadGuard);
guard!(redlatch::MultiLockGuard);
guard!(redlatch::FencedLockGuard {
    fn token(&self) -> u64 {
        redlatch::FencedLockGuard::token(self)
    }
});

lock!(redlatch::ReentrantLock);
lock!(redlatch::Mutex);
lock!(redlatch::FairLock);
lock!(redlatch::FairMutex);
lock!(redlatch::FencedLock);
lock!(redlatch::SpinLock);
lock!(redlatch::MultiLock);
lock!(redlatch::RedLock);

#[derive(Clone, Debug)]
struct Writing(RwLock);

lock! {
    Writing: |this| this.0, |copy| Writing(copy), {
        let (reads, writes) = (this.0.read_hold_count(), this.0.write_hold_count());
        assert_eq!(this.0.is_owned_by_current_thread(), reads + writes > 0);
        writes > 0
    };
    write try_write try_write_for try_write_until with_write is_write_locked write_hold_count
}

#[derive(Clone, Debug)]
struct Reading(RwLock);

lock! {
    Reading: |this| this.0, |copy| Reading(copy), this.0.read_hold_count() > 0;
    read try_read try_read_for try_read_until with_read is_read_locked read_hold_count
}

/// The result of every verb of a lock, and of every question that asks Redis.
pub(crate) fn verdicts(lock: &AnyLock) -> Vec<(&'static str, Result<()>)> {
    let token = CancelToken::new();
    vec![
        ("lock", lock.lock().map(drop)),
        ("try_lock", lock.try_lock().map(drop)),
        ("try_lock_for", lock.try_lock_for(LONG).map(drop)),
        (
            "try_lock_until",
            lock.try_lock_until(Instant::now() + LONG).map(drop),
        ),
        ("with", lock.with(|_| ())),
        ("lease", lock.lease(LONG).lock().map(drop)),
        ("max_hold", lock.max_hold(LONG).lock().map(drop)),
        ("cancel_on", lock.cancel_on(&token).lock().map(drop)),
        ("force_unlock", lock.force_unlock().map(drop)),
        ("is_locked", lock.is_locked().map(drop)),
        ("remaining_lease", lock.remaining_lease().map(drop)),
    ]
}

/// Runs `test` for all cases at the same time, and panics with the titles of those that fail.
#[track_caller]
pub(crate) fn for_each<'a, T: Copy + Send>(
    cases: impl IntoIterator<Item = (&'a str, T)>,
    test: impl Fn(T) + Sync,
) {
    let test = &test;
    let failed: Vec<_> = thread::scope(|scope| {
        let run = |(title, case): (&'a str, T)| {
            let thread = thread::Builder::new().name(title.to_owned());
            (
                title,
                thread.spawn_scoped(scope, move || test(case)).unwrap(),
            )
        };
        let running: Vec<_> = cases.into_iter().map(run).collect();
        let ended = running.into_iter();
        let failed = ended.filter_map(|(title, thread)| thread.join().err().map(|_| title));
        failed.collect()
    });
    assert!(failed.is_empty(), "of {}", failed.join(", "));
}

/// Runs `test` for each of these kinds at the same time.
#[track_caller]
pub(crate) fn for_each_kind(kinds: &[Kind], test: impl Fn(Kind) + Sync) {
    for_each(kinds.iter().map(|kind| (kind.title, *kind)), test);
}

/// Whether a lock of this kind has left no keys except those that stay.
pub(crate) fn nothing_is_left_of(kind: Kind, server: &Server) -> bool {
    let keys = server.keys_but_requests();
    keys.iter().all(|key| kind.stays(key))
}

/// The name that a lock of this kind reports for `name`.
pub(crate) fn shown(kind: Kind, name: &str) -> String {
    kind.names(name).join(", ")
}

/// Calls `what` for each server of a lock, with all keys of the lock.
pub(crate) fn everywhere(
    kind: Kind,
    server: &Server,
    name: &str,
    what: impl Fn(&Server, &[String]),
) {
    let (names, others) = (kind.names(name), kind.others());
    what(server, &names);
    for server in others.iter().flat_map(|servers| servers.iter()) {
        what(server, &names);
    }
}

/// Whether no server has a key of the lock.
pub(crate) fn is_gone(kind: Kind, server: &Server, name: &str) -> bool {
    let gone = Cell::new(true);
    everywhere(kind, server, name, |server, keys| {
        gone.set(gone.get() && !keys.iter().any(|key| server.exists(key)));
    });
    gone.get()
}

/// Deletes a lock without publishing anything.
pub(crate) fn delete(kind: Kind, server: &Server, name: &str) {
    everywhere(kind, server, name, |server, keys| {
        let () = redis::cmd("DEL")
            .arg(keys)
            .query(&mut server.connection())
            .unwrap();
    });
}

/// Acquires a hold with a short lease. On a late machine the lease may end before the grant, so retry with a longer
/// one.
#[track_caller]
pub(crate) fn short_lived<G: Debug>(lock: impl Fn(Duration) -> Result<G>) -> G {
    let mut lease = ms(50);
    loop {
        match lock(lease) {
            Err(err) if err.is_retryable() => lease *= 2,
            granted => return granted.unwrap(),
        }
    }
}

/// Deletes a lock while it is held. A hold of several names is lost with one of them; a hold on several servers is not.
pub(crate) fn lose(kind: Kind, server: &Server, name: &str) {
    let (names, others) = (kind.names(name), kind.others());
    let others = others.iter().flat_map(|servers| servers.iter());
    let connections: Vec<_> = std::iter::once(server)
        .chain(others)
        .map(Server::connection)
        .collect();
    // Delete in quick succession from prepared connections, so that the next holder is not granted the lock on some
    // servers and then deleted on the others.
    for mut connection in connections {
        let () = redis::cmd("DEL")
            .arg(&names[0])
            .query(&mut connection)
            .unwrap();
    }
}

/// Asserts that `happened`. For a lock on several servers, waits for the last server, since an operation only waits for
/// a majority.
#[track_caller]
pub(crate) fn by_now(kind: Kind, what: &str, mut happened: impl FnMut() -> bool) {
    if kind.others().is_some() {
        eventually(what, happened);
    } else {
        assert!(happened(), "{what}");
    }
}
