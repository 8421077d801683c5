//! What all kinds of locks have in common, for tests of any of them.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use redlatch::{CancelToken, Client, Error, Loss, LossReason, Result, RwLock, RwLockReadGuard};

use crate::support::rwlock::hold_key;
use crate::support::{LONG, Server, beside, eventually, lua, ms};

/// Who keeps the queue of those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Each process its own: one of its threads asks Redis, and the lock is passed on among them.
    Process,
    /// Redis, for all of them: every thread has its own place, and nobody passes anything on.
    Redis,
}

/// Who is notified of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// Everybody who waits, on one channel: how its name begins, and what is said.
    All(&'static str, &'static str),
    /// The first in the queue, on a channel of its own.
    First,
    /// Nobody.
    Nobody,
}

/// What all handles have in common, and where kinds differ.
pub(crate) trait Lock: Clone + Debug + Send + Sync + 'static {
    type Guard: Guard;

    /// What keeps this one waiting, and is kept waiting by it: the kind itself, unless it can be shared.
    type Foe: Lock;

    const REENTRANT: bool;
    const QUEUE: Queue = Queue::Process;
    /// Who is notified of its release.
    const NOTIFIED: Notified = Notified::All("redisson_lock__channel", "0");
    /// Channels that one who asks Redis listens to while it waits.
    const LISTENS: u64 = 1;
    /// Whether each hold has a token.
    const TOKENS: bool = false;
    /// Whether Redis knows how many holds the holding thread has.
    const COUNTED: bool = true;
    /// Commands that the server runs for a release: EVALSHA, HDEL, EXISTS, PUBLISH.
    const RELEASE: u64 = 4;
    /// What an acquire runs.
    const ACQUIRE: &str = lua::LOCK_ACQUIRE;

    /// What is locked in Redis by the name of one lock.
    fn names(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }
    /// Further servers that keep it, besides the one that a test starts.
    fn others() -> Option<Arc<Vec<Server>>> {
        None
    }
    /// The field of the hash that stands for an owner.
    fn field(owner: &str) -> String {
        owner.to_owned()
    }
    /// The whole hash, sorted, while `owner` alone has so many holds.
    fn fields(owner: &str, count: u32) -> Vec<(String, String)> {
        vec![(Self::field(owner), count.to_string())]
    }
    /// Every key, while `owner` alone holds `name` and nobody waits.
    fn keys(name: &str, _owner: &str) -> Vec<String> {
        Self::names(name)
    }
    /// Whether a key of this kind outlives its holders, and has no limit.
    fn stays(_key: &str) -> bool {
        false
    }

    fn of(client: &Client, name: &str) -> Self;
    fn lease(self, lease: Duration) -> Self;
    fn max_hold(self, max_hold: Duration) -> Self;
    fn cancel_on(self, token: &CancelToken) -> Self;
    fn lock(&self) -> Result<Self::Guard>;
    fn try_lock(&self) -> Result<Option<Self::Guard>>;
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>>;
    fn try_lock_until(&self, instant: Instant) -> Result<Option<Self::Guard>>;
    fn with<T>(&self, work: impl FnOnce(&Self::Guard) -> T) -> Result<T>;
    fn is_locked(&self) -> Result<bool>;
    fn is_owned_by_current_thread(&self) -> bool;
    fn hold_count(&self) -> u32;
    fn remaining(&self) -> Result<Option<Duration>>;
    fn force_unlock(&self) -> Result<bool>;
    fn name(&self) -> &str;
}

/// What all guards have in common.
pub(crate) trait Guard: Debug {
    fn unlock(self) -> Result<()>;
    fn is_valid(&self) -> bool;
    fn valid_until(&self) -> Instant;
    fn lost(&self) -> &Receiver<Loss>;
    fn name(&self) -> &str;
    fn owner(&self) -> &str;
    fn hold_count(&self) -> u32;
    /// Zero without tokens.
    fn token(&self) -> u64 {
        0
    }
    /// Waits until every server has answered that it keeps the hold.
    fn settle(&self) {}
}

/// Every key, sorted, while `owner` alone holds `name` and nobody waits.
pub(crate) fn keys_of<L: Lock>(name: &str, owner: &str) -> Vec<String> {
    let mut keys = L::keys(name, owner);
    keys.sort();
    keys
}

/// Whether a lock of this kind has left nothing but what stays.
pub(crate) fn nothing_is_left_of<L: Lock>(server: &Server) -> bool {
    let keys = server.keys_but_requests();
    keys.iter().all(|key| L::stays(key))
}

/// What a lock of that name calls itself.
pub(crate) fn shown<L: Lock>(name: &str) -> String {
    L::names(name).join(", ")
}

/// Does something on each server of a lock, to all its keys at once.
pub(crate) fn everywhere<L: Lock>(server: &Server, name: &str, what: impl Fn(&Server, &[String])) {
    let (names, others) = (L::names(name), L::others());
    what(server, &names);
    for server in others.iter().flat_map(|servers| servers.iter()) {
        what(server, &names);
    }
}

/// Whether no server keeps anything of it.
pub(crate) fn is_gone<L: Lock>(server: &Server, name: &str) -> bool {
    let gone = Cell::new(true);
    everywhere::<L>(server, name, |server, keys| {
        gone.set(gone.get() && !keys.iter().any(|key| server.exists(key)));
    });
    gone.get()
}

/// Does away with a lock, without a word.
pub(crate) fn delete<L: Lock>(server: &Server, name: &str) {
    everywhere::<L>(server, name, |server, keys| {
        let () = redis::cmd("DEL")
            .arg(keys)
            .query(&mut server.connection())
            .unwrap();
    });
}

/// A hold with a lease of its own that ends soon. On a late machine the first one may be over before it is granted.
#[track_caller]
pub(crate) fn short_lived<L: Lock>(lock: &L) -> L::Guard {
    let mut lease = ms(50);
    loop {
        match lock.clone().lease(lease).lock() {
            Err(Error::Lost {
                reason: LossReason::Expired,
                ..
            }) => lease *= 2,
            granted => return granted.unwrap(),
        }
    }
}

/// Takes a lock from its holder by hand: one of several names is enough, one of several servers is not.
pub(crate) fn lose<L: Lock>(server: &Server, name: &str) {
    let (names, others) = (L::names(name), L::others());
    let others = others.iter().flat_map(|servers| servers.iter());
    let connections: Vec<_> = std::iter::once(server)
        .chain(others)
        .map(Server::connection)
        .collect();
    // One right after the other: whoever is granted it once most are gone would lose it by the rest.
    for mut connection in connections {
        let () = redis::cmd("DEL")
            .arg(&names[0])
            .query(&mut connection)
            .unwrap();
    }
}

/// By now; or as soon as the last of several servers has done what the majority, which is waited for, has done.
#[track_caller]
pub(crate) fn by_now<L: Lock>(what: &str, mut happened: impl FnMut() -> bool) {
    if L::others().is_some() {
        eventually(what, happened);
    } else {
        assert!(happened(), "{what}");
    }
}

macro_rules! guard {
    ($guard:ty $({ $($own:tt)* })?) => {
        impl crate::support::Guard for $guard {
            fn unlock(self) -> redlatch::Result<()> {
                <$guard>::unlock(self)
            }
            fn is_valid(&self) -> bool {
                <$guard>::is_valid(self)
            }
            fn valid_until(&self) -> std::time::Instant {
                <$guard>::valid_until(self)
            }
            fn lost(&self) -> &crossbeam_channel::Receiver<redlatch::Loss> {
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
            $($($own)*)?
        }
    };
}

/// What an adapter leaves to its first field, a lock.
macro_rules! delegated {
    () => {
        fn lease(mut self, lease: std::time::Duration) -> Self {
            self.0 = self.0.lease(lease);
            self
        }
        fn max_hold(mut self, max_hold: std::time::Duration) -> Self {
            self.0 = self.0.max_hold(max_hold);
            self
        }
        fn cancel_on(mut self, token: &redlatch::CancelToken) -> Self {
            self.0 = self.0.cancel_on(token);
            self
        }
        fn lock(&self) -> redlatch::Result<Self::Guard> {
            self.0.lock()
        }
        fn try_lock(&self) -> redlatch::Result<Option<Self::Guard>> {
            self.0.try_lock()
        }
        fn try_lock_for(&self, wait: std::time::Duration) -> redlatch::Result<Option<Self::Guard>> {
            self.0.try_lock_for(wait)
        }
        fn try_lock_until(
            &self,
            instant: std::time::Instant,
        ) -> redlatch::Result<Option<Self::Guard>> {
            self.0.try_lock_until(instant)
        }
        fn with<T>(&self, work: impl FnOnce(&Self::Guard) -> T) -> redlatch::Result<T> {
            self.0.with(work)
        }
        fn is_locked(&self) -> redlatch::Result<bool> {
            self.0.is_locked()
        }
        fn is_owned_by_current_thread(&self) -> bool {
            self.0.is_owned_by_current_thread()
        }
        fn hold_count(&self) -> u32 {
            self.0.hold_count()
        }
        fn remaining(&self) -> redlatch::Result<Option<std::time::Duration>> {
            self.0.remaining()
        }
        fn force_unlock(&self) -> redlatch::Result<bool> {
            self.0.force_unlock()
        }
        fn name(&self) -> &str {
            self.0.name()
        }
    };
}

/// A kind whose handle is the adapter.
macro_rules! kind {
    ($maker:ident: $lock:ident, $guard:ty, $reentrant:literal { $($own:tt)* }) => {
        impl Lock for redlatch::$lock {
            type Guard = $guard;
            type Foe = Self;

            const REENTRANT: bool = $reentrant;
            $($own)*

            fn of(client: &Client, name: &str) -> Self {
                client.$maker(name)
            }
            fn lease(self, lease: Duration) -> Self {
                redlatch::$lock::lease(self, lease)
            }
            fn max_hold(self, max_hold: Duration) -> Self {
                redlatch::$lock::max_hold(self, max_hold)
            }
            fn cancel_on(self, token: &CancelToken) -> Self {
                redlatch::$lock::cancel_on(self, token)
            }
            fn lock(&self) -> Result<Self::Guard> {
                redlatch::$lock::lock(self)
            }
            fn try_lock(&self) -> Result<Option<Self::Guard>> {
                redlatch::$lock::try_lock(self)
            }
            fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>> {
                redlatch::$lock::try_lock_for(self, wait)
            }
            fn try_lock_until(&self, instant: Instant) -> Result<Option<Self::Guard>> {
                redlatch::$lock::try_lock_until(self, instant)
            }
            fn with<T>(&self, work: impl FnOnce(&Self::Guard) -> T) -> Result<T> {
                redlatch::$lock::with(self, work)
            }
            fn is_locked(&self) -> Result<bool> {
                redlatch::$lock::is_locked(self)
            }
            fn is_owned_by_current_thread(&self) -> bool {
                redlatch::$lock::is_owned_by_current_thread(self)
            }
            fn hold_count(&self) -> u32 {
                redlatch::$lock::hold_count(self)
            }
            fn remaining(&self) -> Result<Option<Duration>> {
                redlatch::$lock::remaining(self)
            }
            fn force_unlock(&self) -> Result<bool> {
                redlatch::$lock::force_unlock(self)
            }
            fn name(&self) -> &str {
                redlatch::$lock::name(self)
            }
        }
    };
}

guard!(redlatch::ReentrantLockGuard);

guard!(redlatch::MutexGuard);

guard!(redlatch::FairLockGuard);

guard!(redlatch::FairMutexGuard);

guard!(redlatch::SpinLockGuard);

guard!(redlatch::RwLockWriteGuard);

guard!(redlatch::MultiLockGuard);

guard!(redlatch::FencedLockGuard {
    fn token(&self) -> u64 {
        redlatch::FencedLockGuard::token(self)
    }
});

kind!(reentrant_lock: ReentrantLock, redlatch::ReentrantLockGuard, true {});

kind!(mutex: Mutex, redlatch::MutexGuard, false {});

kind!(fair_lock: FairLock, redlatch::FairLockGuard, true {
    const QUEUE: Queue = Queue::Redis;
    const NOTIFIED: Notified = Notified::First;
    const ACQUIRE: &str = lua::FAIR_ACQUIRE;
});

kind!(fair_mutex: FairMutex, redlatch::FairMutexGuard, false {
    const QUEUE: Queue = Queue::Redis;
    const NOTIFIED: Notified = Notified::First;
    const ACQUIRE: &str = lua::FAIR_ACQUIRE;
});

kind!(fenced_lock: FencedLock, redlatch::FencedLockGuard, true {
    const TOKENS: bool = true;
    const ACQUIRE: &str = lua::FENCED_ACQUIRE;

    fn keys(name: &str, _: &str) -> Vec<String> {
        vec![name.to_owned(), beside("redisson_lock_token", name)]
    }
    fn stays(key: &str) -> bool {
        key.starts_with("redisson_lock_token:")
    }
});

kind!(spin_lock: SpinLock, redlatch::SpinLockGuard, true {
    const NOTIFIED: Notified = Notified::Nobody;
    const LISTENS: u64 = 0;
    const RELEASE: u64 = 3; // no PUBLISH
});

/// What the two sides of a read-write lock do alike, each by its own verbs.
macro_rules! by_verbs {
    ($lock:ident, $try:ident, $try_for:ident, $try_until:ident, $with:ident, $is_locked:ident, $hold_count:ident) => {
        fn of(client: &Client, name: &str) -> Self {
            Self(client.rwlock(name))
        }
        fn lease(self, lease: Duration) -> Self {
            Self(self.0.lease(lease))
        }
        fn max_hold(self, max_hold: Duration) -> Self {
            Self(self.0.max_hold(max_hold))
        }
        fn cancel_on(self, token: &CancelToken) -> Self {
            Self(self.0.cancel_on(token))
        }
        fn lock(&self) -> Result<Self::Guard> {
            self.0.$lock()
        }
        fn try_lock(&self) -> Result<Option<Self::Guard>> {
            self.0.$try()
        }
        fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>> {
            self.0.$try_for(wait)
        }
        fn try_lock_until(&self, instant: Instant) -> Result<Option<Self::Guard>> {
            self.0.$try_until(instant)
        }
        fn with<T>(&self, work: impl FnOnce(&Self::Guard) -> T) -> Result<T> {
            self.0.$with(work)
        }
        fn is_locked(&self) -> Result<bool> {
            self.0.$is_locked()
        }
        fn hold_count(&self) -> u32 {
            self.0.$hold_count()
        }
        fn remaining(&self) -> Result<Option<Duration>> {
            self.0.remaining()
        }
        fn force_unlock(&self) -> Result<bool> {
            self.0.force_unlock()
        }
        fn name(&self) -> &str {
            self.0.name()
        }
    };
}

/// The read-write lock, as one that writes sees it.
#[derive(Clone, Debug)]
pub(crate) struct Writing(redlatch::RwLock);

impl Lock for Writing {
    type Guard = redlatch::RwLockWriteGuard;
    type Foe = Self;

    const REENTRANT: bool = true;
    const NOTIFIED: Notified = Notified::All("redisson_rwlock", "1");
    const RELEASE: u64 = 6; // EVALSHA, HGET, HDEL, HLEN, DEL, PUBLISH
    const ACQUIRE: &str = lua::RW_WRITE_ACQUIRE;

    fn field(owner: &str) -> String {
        format!("{owner}:write")
    }
    fn fields(owner: &str, count: u32) -> Vec<(String, String)> {
        vec![
            (Self::field(owner), count.to_string()),
            ("mode".to_owned(), "write".to_owned()),
        ]
    }
    by_verbs!(
        write,
        try_write,
        try_write_for,
        try_write_until,
        with_write,
        is_write_locked,
        write_hold_count
    );
    fn is_owned_by_current_thread(&self) -> bool {
        assert_eq!(
            self.0.is_owned_by_current_thread(),
            self.0.write_hold_count() + self.0.read_hold_count() > 0
        );
        self.0.write_hold_count() > 0
    }
}

/// What every verb of a lock says.
pub(crate) fn verdicts<L: Lock>(lock: &L) -> Vec<(&'static str, Result<()>)> {
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
        ("lease", lock.clone().lease(LONG).lock().map(drop)),
        ("max_hold", lock.clone().max_hold(LONG).lock().map(drop)),
        ("cancel_on", lock.clone().cancel_on(&token).lock().map(drop)),
        ("force_unlock", lock.force_unlock().map(drop)),
    ]
}

/// The read-write lock, as one that reads sees it.
#[derive(Clone, Debug)]
pub(crate) struct Reading(RwLock);

guard!(RwLockReadGuard);

impl Lock for Reading {
    type Guard = RwLockReadGuard;
    type Foe = Writing;

    const REENTRANT: bool = true;
    const NOTIFIED: Notified = Notified::All("redisson_rwlock", "0");
    const COUNTED: bool = false; // one hold in Redis, whatever the thread has
    const ACQUIRE: &str = lua::RW_READ_ACQUIRE;

    fn fields(owner: &str, count: u32) -> Vec<(String, String)> {
        vec![
            (owner.to_owned(), count.to_string()),
            ("mode".to_owned(), "read".to_owned()),
        ]
    }
    fn keys(name: &str, owner: &str) -> Vec<String> {
        vec![name.to_owned(), hold_key(name, owner)]
    }
    by_verbs!(
        read,
        try_read,
        try_read_for,
        try_read_until,
        with_read,
        is_read_locked,
        read_hold_count
    );
    fn is_owned_by_current_thread(&self) -> bool {
        self.0.read_hold_count() > 0
    }
}

pub(crate) use {delegated, guard};
