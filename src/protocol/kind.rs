//! A kind of lock: its properties, and the trait for what it sends.
//!
//! Shared code asks a [`Kind`] for its properties and a [`Protocol`] for its requests, but never which kind it is. So a new
//! kind is a file of its own and a line in [`KINDS`](super::KINDS).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::{LossReason, Result};
use crate::local::lock::{Mode, Order};
use crate::protocol::keys;
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, Renewed, Request, Unexpected, lease_ms};
use crate::protocol::text::Digits;

/// The properties of one kind. Each is a static, and equal to itself only.
pub(crate) struct Kind {
    /// For debugging.
    pub(crate) name: &'static str,
    pub(crate) protocol: MakeProtocol,
    pub(crate) id: Id,
    /// Who keeps the queue of those that wait.
    pub(crate) order: Order,
    /// Whether waiters are notified of a release; without, they ask again and again.
    pub(crate) is_notified: bool,
    /// Whether it uses the keys of plain locks. A thread that holds one of these would wait for itself.
    pub(crate) has_plain_keys: bool,
    /// Whether each hold has a token. Tokens are drawn in advance for threads of this process that wait.
    pub(crate) has_tokens: bool,
}

/// Makes the protocol of the lock with this id.
type MakeProtocol = fn(Keyspace<'_>, &Arc<str>) -> Result<Box<dyn Protocol>>;

/// What an id consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Id {
    /// The name.
    Name,
    /// A [`keys::list`] of names that are locked together.
    Names,
    /// A [`keys::list`] of the name and the nodes it is locked on.
    NameAndNodes,
}

impl Kind {
    /// The properties that most kinds have.
    pub(crate) const fn plain(name: &'static str, protocol: MakeProtocol) -> Self {
        Self {
            name,
            protocol,
            id: Id::Name,
            order: Order::Local,
            is_notified: true,
            has_plain_keys: false,
            has_tokens: false,
        }
    }

    /// Whether it locks several names together.
    pub(crate) fn is_set(&self) -> bool {
        self.id == Id::Names
    }

    /// The name of a lock with this id, for errors and logs.
    pub(crate) fn shown(&self, id: &Arc<str>) -> Arc<str> {
        match self.id {
            Id::Name => Arc::clone(id),
            Id::Names => keys::names(id).join(", ").into(),
            Id::NameAndNodes => keys::names(id)
                .first()
                .map_or_else(|| Arc::clone(id), |&name| name.into()),
        }
    }

    /// The plain locks whose keys a lock with this id uses.
    pub(crate) fn plain_locks(&self, id: &Arc<str>) -> Vec<Arc<str>> {
        match self.id {
            _ if !self.has_plain_keys => Vec::new(),
            Id::Name => vec![Arc::clone(id)],
            Id::Names => keys::names(id).into_iter().map(Arc::from).collect(),
            Id::NameAndNodes => vec![self.shown(id)],
        }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Kind {}

impl Hash for Kind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Where the keys of a client are.
#[derive(Clone, Copy)]
pub(crate) struct Keyspace<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) db: i64,
    /// They are in a cluster, where a script reaches the keys of one slot only.
    pub(crate) is_cluster: bool,
}

impl Keyspace<'_> {
    /// # Errors
    ///
    /// Those of [`keys::key`], and of [`keys::in_one_slot`] in a cluster.
    pub(crate) fn key(self, name: &Arc<str>) -> Result<Arc<str>> {
        let key = keys::key(self.prefix, name)?;
        if self.is_cluster {
            keys::in_one_slot(&key)?;
        }
        Ok(key)
    }
}

/// The keys, channels and requests of one lock. The defaults are those of a plain lock.
pub(crate) trait Protocol: Send + Sync {
    fn kind(&self) -> &'static Kind;

    /// The lock's name, if that is not its id.
    fn shown(&self) -> Option<&Arc<str>> {
        None
    }

    /// The first key of all its scripts.
    fn key(&self) -> &str;

    /// Where releases are announced. Most locks are never waited for, so a plain lock does not keep it.
    fn channel(&self) -> Arc<str> {
        keys::lock_channel(self.key()).concat().into()
    }

    /// Where the release of the lock with index `at` is announced, if there are several.
    fn channel_at(&self, _at: usize) -> Arc<str> {
        self.channel()
    }

    /// The channel of one waiter, where each has its own.
    fn channel_of(&self, ticket: &str) -> Arc<str> {
        format!("{}:{ticket}", self.channel()).into()
    }

    /// All keys in which holders are recorded.
    fn locks(&self) -> Vec<&str> {
        vec![self.key()]
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        Request::script(
            ACQUIRING,
            &script::LOCK_ACQUIRE,
            &[self.key()],
            &[args.owner, &Digits::of_number(lease_ms(args.lease))],
        )
    }

    fn release(&self, _mode: Mode, owner: &str) -> Request {
        let key = self.key();
        Request::script_of_parts(
            RELEASING,
            &script::LOCK_RELEASE,
            &[&[key], &keys::lock_channel(key)],
            &[owner],
        )
    }

    /// The release where Redis keeps the queue: it removes the places of those who were `served` in memory. `next_asks`: the next is
    /// of this process too, and asks without being notified.
    fn release_in_turn(&self, owner: &str, _served: &[OwnerId], _next_asks: bool) -> Request {
        self.release(Mode::Exclusive, owner)
    }

    /// Undoes an acquire that is of no use, or whose outcome is unknown.
    fn undo(&self, mode: Mode, owner: &str) -> Request {
        self.release(mode, owner)
    }

    fn renew(&self, _mode: Mode, owner: &str, lease: Duration, count: u32) -> Request {
        renew_plain(self.key(), owner, lease, count)
    }

    /// What the reply to a renewal means. `None`: somebody has changed when the permit ends, now `ends_at`, so it was not
    /// renewed and has to be requested again.
    fn renewed(
        &self,
        reply: Value,
        _ends_at: &mut i64,
    ) -> std::result::Result<Option<Renewed>, Unexpected> {
        script::renewed(reply).map(Some)
    }

    /// Renews a permit that ends at `ends_at`, in milliseconds by the server's clock; one that ends at another time is
    /// left as it is. `None` for holds that are no permits.
    fn renew_permit(&self, _id: &str, _lease: Duration, _ends_at: i64) -> Option<Request> {
        None
    }

    /// Gives up a place in the queue, if Redis keeps one.
    fn leave(&self, _ticket: &str) -> Option<Request> {
        None
    }

    /// Gives up the places of those who were `served` in memory, if there are any; see [`release_in_turn`](Self::release_in_turn).
    fn leave_served(&self, _served: &[OwnerId], _next_asks: bool) -> Option<Request> {
        None
    }

    /// Takes the lock from whoever holds it. Counts once: `request` is the key that remembers it, for `keep_ms`.
    fn force(&self, request: &str, keep_ms: &str) -> Request {
        let key = self.key();
        Request::script_of_parts(
            FORCING,
            &script::LOCK_FORCE,
            &[&[key], &[request], &keys::lock_channel(key)],
            &[keep_ms],
        )
    }

    /// Asks who holds; [`is_locked`](Self::is_locked) says what the answer means.
    fn state(&self) -> Request {
        // Refused for a key of another type, so that a stranger's key is never called a lock.
        Request::command("asking for the lock", &["HLEN", self.key()])
    }

    /// Whether the answer to [`state`](Self::state) is that somebody holds in this mode.
    fn is_locked(&self, _mode: Mode, state: i64) -> bool {
        state > 0
    }

    fn remaining(&self) -> Request {
        Request::command("asking for the lease", &["PTTL", self.key()])
    }

    /// The channel that waiting writers subscribe to, so that readers can count them. Nothing is ever sent there.
    fn writers(&self) -> Option<&Arc<str>> {
        None
    }

    /// Whether a lost hold has to be released all the same, because what is left of it would block others.
    fn is_given_back_when_lost(&self, _mode: Mode, _reason: LossReason) -> bool {
        false
    }
}

impl dyn Protocol + '_ {
    /// Whether both of them take the same lock.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let others = other.locks();
        self.locks().iter().any(|lock| others.contains(lock))
    }

    /// Asks how many writers wait.
    pub(crate) fn probe_writers_request(&self) -> Option<Request> {
        let writers = self.writers()?;
        Some(Request::listeners("looking for writers", writers))
    }

    /// Asks who reads, where readers let writers go first. Of many it finds only some.
    pub(crate) fn look_for_readers_request(&self) -> Option<Request> {
        const MANY: &str = "128";
        self.writers()?;
        let parts = ["HSCAN", self.key(), "0", "COUNT", MANY];
        Some(Request::command("looking for readers", &parts))
    }
}

pub(super) const ACQUIRING: &str = "acquiring the lock";
pub(super) const RELEASING: &str = "releasing the lock";
pub(super) const RENEWING: &str = "renewing the lock";
pub(super) const FORCING: &str = "forcing the lock open";

/// Renews the hold that a field of the lock's hash is.
pub(super) fn renew_plain(key: &str, field: &str, lease: Duration, count: u32) -> Request {
    Request::script(
        RENEWING,
        &script::LOCK_RENEW,
        &[key],
        &[
            field,
            &Digits::of_number(lease_ms(lease)),
            &Digits::of(count),
        ],
    )
}

/// The arguments of an acquire. Each kind sends those that its script has.
pub(crate) struct AcquireArgs<'a> {
    pub(crate) owner: &'a str,
    pub(crate) lease: Duration,
    pub(crate) mode: Mode,
    /// The owner of the exclusive hold below which a shared one is taken.
    pub(crate) under: Option<&'a str>,
    /// For a reader that lets waiting writers go first: how many of them to ignore.
    pub(crate) ignored_writers: Option<u64>,
    pub(crate) place: Place<'a>,
    /// How many tokens to draw, and how long their counter is kept; for ever if that is zero.
    pub(crate) tokens: u64,
    pub(crate) token_ttl: Duration,
    /// How long a node must have been up to take part, and under which `run_id`; empty for any.
    pub(crate) up_for: Duration,
    pub(crate) run_id: &'a str,
}

/// A place in the queue that Redis keeps.
pub(crate) struct Place<'a> {
    pub(crate) ticket: &'a str,
    /// For how long the server keeps it after each request; zero if no place is wanted.
    pub(crate) keep: Duration,
    pub(crate) state: PlaceState,
    /// Those that were served in memory, whose places are to be removed.
    pub(crate) served: &'a [OwnerId],
}

/// What is known of a place in the queue that Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceState {
    /// Nothing: no request for it has been answered yet.
    Unknown,
    /// The last answer was that the lock is busy, and the place is kept.
    Kept,
    /// The last answer was that the place is lost.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{KINDS, permits};

    #[test]
    fn no_script_is_given_an_empty_key() {
        let permit = "0123456789abcdef0123456789abcdef";
        for kind in KINDS {
            let id: Arc<str> = match kind.id {
                Id::Name => "a".into(),
                Id::Names | Id::NameAndNodes => keys::list(["a", "b"]).into(),
            };
            assert!(!kind.shown(&id).is_empty(), "{kind:?}");
            let keyspace = Keyspace {
                prefix: "p:",
                db: 0,
                is_cluster: false,
            };
            let protocol = (kind.protocol)(keyspace, &id).expect("a name");
            let force = protocol.force("request", "1000");
            let mut requests = vec![force, permits::state(&*protocol)];
            requests.extend(protocol.leave("ticket"));
            for mode in [Mode::Exclusive, Mode::Shared] {
                requests.push(protocol.release(mode, permit));
                requests.push(protocol.renew(mode, permit, Duration::from_secs(1), 1));
            }
            for request in requests {
                let keys: Vec<_> = request.keys().collect();
                assert!(
                    !keys.is_empty() && keys.iter().all(|key| !key.is_empty()),
                    "{kind:?}: {keys:?}"
                );
            }
        }
    }

    #[test]
    fn sets_that_share_a_name_overlap() {
        let set = |names: &[&str]| {
            let keyspace = Keyspace {
                prefix: "",
                db: 0,
                is_cluster: false,
            };
            let id = keys::list(names.iter().copied()).into();
            (crate::protocol::multi::KIND.protocol)(keyspace, &id).expect("names")
        };
        assert!(set(&["a", "b"]).overlaps(&*set(&["c", "b"])));
        assert!(!set(&["a", "b"]).overlaps(&*set(&["c", "d"])));
    }
}
