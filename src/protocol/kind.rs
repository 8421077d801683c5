//! The kinds of locks, and the requests of one lock.
//!
//! A [`Kind`] is data: the properties of a kind, and its differences from a plain lock. Shared code tests these properties
//! and not the kind of a lock. (The only exceptions are `Session::give_back_permits` and an assertion in
//! `QuorumHold::new`.) So in this folder a new kind is a file of its own and a line in [`KINDS`](super::KINDS). The
//! guide's page on the architecture lists the other places.

pub(super) use crate::error::RELEASING;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::{LossReason, Result};
use crate::local::lock::{Mode, Order};
use crate::net::text::Digits;
use crate::protocol::keys;
use crate::protocol::owner::OwnerId;
use crate::protocol::script::{self, Renewed, Request, Unexpected, lease_ms};

/// A kind of lock or semaphore. Each kind is a static, and equal to itself only.
pub struct Kind {
    /// The name for the observer, and for `Debug`.
    pub(crate) name: &'static str,
    pub(crate) id: Id,
    /// Whether this process or the server keeps the queue.
    pub(crate) order: Order,
    /// Whether a release notifies waiters; if not, they poll.
    pub(crate) is_notified: bool,
    /// Whether the kind is the reentrant, spin, fair or fenced lock. Locks of these four kinds with the same name have the
    /// same key, so a thread that holds a name as one of these must not wait for it as another.
    pub(crate) shares_plain_key: bool,
    /// Whether each hold has a token. Tokens are drawn in advance for waiting threads of this process.
    pub(crate) has_tokens: bool,
    /// Whether waiters leave notes in Redis, by which readers and writers take turns.
    pub(crate) has_notes: bool,
    /// The channel on which releases of the lock with this key are announced.
    pub(super) channel: fn(&str) -> String,
    pub(super) acquire: fn(&Protocol, &AcquireArgs<'_>) -> Request,
    pub(super) release: MakeRelease,
    /// Undoes an acquire that is no longer needed, or whose outcome is unknown. Removes its hold, and the note that
    /// it may have left.
    pub(crate) undo: MakeRelease,
    /// Lets a hold end after a while instead of now.
    pub(crate) keep: fn(&Protocol, Mode, &[u8], Duration) -> Request,
    pub(super) renew: fn(&Protocol, &RenewalArgs<'_>) -> Request,
    /// Reads the reply to a renewal. The second argument is used for permits only: the moment at which the permit ends
    /// according to the last reply. If this reply names another end, that is stored there. `None`: somebody has changed
    /// the end, so the permit was not renewed, and the renewal must be sent again.
    pub(crate) renewed: fn(Value, &mut i64) -> ReplyToRenewal,
    /// Confirms these places in the queue, for kinds whose queue is in Redis.
    pub(crate) refresh: Option<fn(&Protocol, &[OwnerId]) -> Request>,
    /// Takes the lock from its holder. The request counts once: the first string is the key under which Redis remembers it,
    /// the second says for how many milliseconds.
    pub(crate) force: fn(&Protocol, &str, &str) -> Request,
    /// Asks whether the lock is held. `is_locked` reads the reply.
    pub(crate) state: fn(&Protocol) -> Request,
    /// Whether this reply to `state` says that the lock is held in this mode.
    pub(crate) is_locked: fn(Mode, i64) -> bool,
    pub(crate) remaining: fn(&Protocol) -> Request,
    /// Whether a lost hold must still be released, because its remains would block others.
    pub(crate) is_given_back_when_lost: fn(Mode, LossReason) -> bool,
    /// How Redis recognises that a hold is in force.
    pub(super) evidence: fn(&Protocol, Mode, &[u8]) -> Evidence,
}

/// How Redis recognises that a hold is in force: see `lua/prelude/guarded.lua`.
pub(super) struct Evidence {
    pub(super) lock: String,
    pub(super) life: Option<String>,
    pub(super) hold: Vec<u8>,
    pub(super) is_permit: bool,
}

impl Evidence {
    /// A hold that is a field of the lock's hash.
    pub(super) fn field(of: &Protocol, field: &[u8]) -> Self {
        Self {
            lock: of.key().to_owned(),
            life: None,
            hold: field.into(),
            is_permit: false,
        }
    }
}

/// The composition of a lock's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Id {
    /// The name alone.
    Name,
    /// A [`keys::list`] of the name and the ids of the clients whose servers keep the lock.
    NameAndNodes,
}

impl Kind {
    /// The defaults of all kinds: those of the reentrant lock, except `shares_plain_key`.
    pub(crate) const fn base(name: &'static str) -> Self {
        Self {
            name,
            id: Id::Name,
            order: Order::Local,
            is_notified: true,
            shares_plain_key: false,
            has_tokens: false,
            has_notes: false,
            channel: |key| keys::lock_channel(key).concat(),
            acquire,
            release,
            undo: |of, mode, owner| of.release(mode, owner),
            keep: |of, _, owner, span| keep_field(of, "lock", None, owner, span),
            renew: |of, renewal| renew_field(of.key(), renewal.owner, renewal),
            renewed: |reply, _| script::renewed(&reply).map(Some),
            refresh: None,
            force,
            state: |of| state(of, "asking for the lock"),
            is_locked: |_, left_ms| left_ms != -2,
            remaining: |of| state(of, "asking for the lease"),
            is_given_back_when_lost: |_, _| false,
            evidence: |of, _, owner| Evidence::field(of, owner),
        }
    }

    /// The name of a lock with this id, for errors and logs.
    pub(crate) fn shown(&self, id: &Arc<str>) -> Arc<str> {
        match self.id {
            Id::Name => Arc::clone(id),
            Id::NameAndNodes => {
                keys::first_name(id).map_or_else(|| Arc::clone(id), |name| name.into())
            }
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

/// How names become keys for one client.
#[derive(Clone, Copy)]
pub(crate) struct Keyspace<'a> {
    pub(crate) prefix: &'a str,
    /// Whether the keys are in a cluster, where a script reaches the keys of one slot only.
    pub(crate) is_cluster: bool,
    /// How long a place in a queue lasts after it was last confirmed.
    pub(crate) waiter_lease: Duration,
}

impl Keyspace<'_> {
    /// The key of this name.
    ///
    /// # Errors
    ///
    /// The errors of [`keys::key`], and of [`keys::in_one_slot`] in a cluster.
    pub(crate) fn key(self, name: &Arc<str>) -> Result<Arc<str>> {
        let key = keys::key(self.prefix, name)?;
        if self.is_cluster {
            keys::in_one_slot(&key)?;
        }
        Ok(key)
    }
}

/// The keys, channels and requests of one lock. Small, since there is one for each lock that is held.
pub(crate) struct Protocol {
    kind: &'static Kind,
    /// The lock's own key; its other keys and its channel are derived from it.
    key: Arc<str>,
    more: Option<Box<More>>,
}

/// The fields that plain locks do not need.
struct More {
    /// The lock's name, if that is not its id.
    name: Option<Arc<str>>,
    /// See [`Keyspace::waiter_lease`].
    waiter_lease: Duration,
}

impl Protocol {
    /// The protocol of the lock with this id.
    ///
    /// # Errors
    ///
    /// The errors of [`Keyspace::key`].
    pub(crate) fn new(kind: &'static Kind, keyspace: Keyspace<'_>, id: &Arc<str>) -> Result<Self> {
        let name = kind.shown(id);
        let key = keyspace.key(&name)?;
        if keyspace.is_cluster {
            keys::of_one_slot(&key, &(kind.channel)(&key))?;
        }
        let is_named = kind.id != Id::Name;
        let has_more = is_named || kind.has_notes || kind.order == Order::Server;
        let more = || More {
            name: is_named.then_some(name),
            waiter_lease: keyspace.waiter_lease,
        };
        Ok(Self {
            kind,
            key,
            more: has_more.then(|| Box::new(more())),
        })
    }

    /// See [`Keyspace::waiter_lease`].
    pub(super) fn waiter_lease(&self) -> Duration {
        let more = self.more.as_ref();
        more.map_or(Duration::ZERO, |more| more.waiter_lease)
    }

    pub(crate) fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The lock's name, if that is not its id.
    pub(crate) fn shown(&self) -> Option<&Arc<str>> {
        self.more.as_ref()?.name.as_ref()
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The channel on which releases are announced. Computed on each call, since most locks are never waited for.
    pub(crate) fn channel(&self) -> Arc<str> {
        (self.kind.channel)(&self.key).into()
    }

    /// The channel of one waiter, for kinds whose waiters have one each.
    pub(crate) fn channel_of(&self, ticket: &str) -> Arc<str> {
        format!("{}:{ticket}", self.channel()).into()
    }

    pub(crate) fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        (self.kind.acquire)(self, args)
    }

    pub(crate) fn release(&self, mode: Mode, owner: &[u8]) -> Request {
        (self.kind.release)(self, mode, owner)
    }

    pub(crate) fn renew(&self, renewal: &RenewalArgs<'_>) -> Request {
        (self.kind.renew)(self, renewal)
    }
}

type MakeRelease = fn(&Protocol, Mode, &[u8]) -> Request;

type ReplyToRenewal = std::result::Result<Option<Renewed>, Unexpected>;

pub(crate) const ACQUIRING: &str = "acquiring the lock";
pub(crate) const RENEWING: &str = "renewing the lock";
pub(crate) const FORCING: &str = "forcing the lock open";

fn acquire(of: &Protocol, args: &AcquireArgs<'_>) -> Request {
    let (script, lease) = (&script::LOCK_ACQUIRE, Digits::from(lease_ms(args.lease)));
    let args = [args.owner, lease.as_bytes()];
    Request::script(ACQUIRING, script, &[of.key()], &args)
}

fn release(of: &Protocol, _mode: Mode, owner: &[u8]) -> Request {
    let keys: [&[&str]; 2] = [&[of.key()], &keys::lock_channel(of.key())];
    Request::script_of_parts(RELEASING, &script::LOCK_RELEASE, &keys, &[owner])
}

fn force(of: &Protocol, request: &str, keep_ms: &str) -> Request {
    let channel = keys::lock_channel(of.key());
    let keys: [&[&str]; 3] = [&[of.key()], &[request], &channel];
    Request::script_of_parts(FORCING, &script::LOCK_FORCE, &keys, &[keep_ms])
}

/// Asks when the lock's lease ends. Uses a script, so that a foreign hash is not taken for a lock.
fn state(of: &Protocol, doing: &'static str) -> Request {
    Request::script::<&str>(doing, &script::LOCK_STATE, &[of.key()], &[])
}

/// Lets a hold, which is a field of the lock's hash, end after `span`. `kind` is the kind's name for the script. `other` is
/// the key of a read hold's string, or of a fair lock's queue; other kinds have none.
pub(super) fn keep_field(
    of: &Protocol,
    kind: &str,
    other: Option<&str>,
    field: &[u8],
    span: Duration,
) -> Request {
    let channel = of.kind.is_notified.then(|| of.channel());
    let keys = [Some(of.key()), channel.as_deref(), other];
    let keys: Vec<_> = keys.into_iter().flatten().collect();
    let span = Digits::from(lease_ms(span));
    let args = [field, span.as_bytes(), kind.as_bytes()];
    Request::script(RELEASING, &script::LOCK_KEEP, &keys, &args)
}

/// Renews a hold that is a field of the lock's hash.
pub(super) fn renew_field(key: &str, field: &[u8], renewal: &RenewalArgs<'_>) -> Request {
    let [lease, count] = [lease_ms(renewal.lease), renewal.count.into()].map(Digits::from);
    let args = [field, lease.as_bytes(), count.as_bytes()];
    Request::script(RENEWING, &script::LOCK_RENEW, &[key], &args)
}

/// The arguments of a renewal.
pub(crate) struct RenewalArgs<'a> {
    pub(crate) mode: Mode,
    pub(crate) owner: &'a [u8],
    pub(crate) lease: Duration,
    /// How often the holder has the lock now: the hold's new count in Redis.
    pub(crate) count: u32,
    /// When the permit ends, in milliseconds by the server's clock. A permit that ends at another time is not
    /// renewed. Zero for locks.
    pub(crate) ends_at: i64,
}

/// The arguments of an acquire. Each kind sends those that its script takes.
pub(crate) struct AcquireArgs<'a> {
    pub(crate) owner: &'a [u8],
    pub(crate) lease: Duration,
    pub(crate) mode: Mode,
    /// The owner of this thread's write hold, if the thread asks for a read hold as well.
    pub(crate) under: Option<&'a str>,
    pub(crate) note: Note<'a>,
    pub(crate) place: Place,
    /// How many tokens to draw.
    pub(crate) tokens: u64,
    /// How long the token counter is kept after its last use; zero for forever.
    pub(crate) token_ttl: Duration,
    /// How long a node must have been up to take part.
    pub(crate) up_for: Duration,
    /// The `run_id` that a node must have to take part; empty for any.
    pub(crate) run_id: &'a str,
}

impl<'a> AcquireArgs<'a> {
    /// The arguments for a plain lock.
    pub(crate) fn plain(owner: &'a (impl AsRef<[u8]> + ?Sized), lease: Duration) -> Self {
        Self {
            owner: owner.as_ref(),
            lease,
            mode: Mode::Exclusive,
            under: None,
            note: Note::NONE,
            place: Place::None,
            tokens: 1,
            token_ttl: Duration::ZERO,
            up_for: Duration::ZERO,
            run_id: "",
        }
    }
}

/// A note by which readers and writers take turns: see `lua/prelude/notes.lua`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note<'a> {
    /// The waiter of the other side that goes first; empty if none does. With [`FIRST`](Self::FIRST) the script itself
    /// looks for a noted waiter of the other side. A waiter sends `FIRST` in its first request, and in a request that
    /// follows one without a reply. It sends an empty text instead if it is `readers_first`, or has waited for 10 s
    /// (`PRECEDENCE`).
    pub(crate) behind: &'a str,
    /// How long the note lives; zero for no note.
    pub(crate) lives: Duration,
}

impl Note<'_> {
    pub(crate) const FIRST: &'static str = "?";

    /// No note, for locks that have none.
    pub(crate) const NONE: Self = Self {
        behind: "",
        lives: Duration::ZERO,
    };
}

/// Whether a request has a place in the queue that Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The request has no place and does not want one.
    None,
    /// The request joins the queue unless it gets the lock.
    New,
    /// The request's owner has a place.
    Has,
    /// The request's owner has a place, and gives it up if the lock is free and another waiter is first.
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{KINDS, permits};

    #[test]
    fn no_script_is_given_an_empty_key() {
        let permit = b"0123456789abcdef0123456789abcdef";
        for kind in KINDS {
            let id: Arc<str> = match kind.id {
                Id::Name => "a".into(),
                Id::NameAndNodes => keys::list(["a", "b"]).into(),
            };
            assert!(!kind.shown(&id).is_empty(), "{kind:?}");
            let keyspace = Keyspace {
                prefix: "p:",
                is_cluster: false,
                waiter_lease: Duration::from_secs(3),
            };
            let protocol = Protocol::new(kind, keyspace, &id).expect("a name");
            let force = (kind.force)(&protocol, "request", "1000");
            let mut requests = vec![force, permits::state(&protocol)];
            requests.extend(kind.refresh.map(|refresh| refresh(&protocol, &[])));
            for mode in [Mode::Exclusive, Mode::Shared] {
                requests.push(protocol.release(mode, permit));
                requests.push(protocol.renew(&RenewalArgs {
                    mode,
                    owner: permit,
                    lease: Duration::from_secs(1),
                    count: 1,
                    ends_at: 0,
                }));
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
}
