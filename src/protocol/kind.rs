//! A kind of lock, and what one lock of it sends.
//!
//! A [`Kind`] is data: its properties, and how it differs from a plain lock. Shared code asks a [`Protocol`], but never which
//! kind it is. So a new kind is a file of its own and a line in [`KINDS`](super::KINDS).

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

/// One kind. Each is a static, and equal to itself only.
pub(crate) struct Kind {
    /// For debugging.
    pub(crate) name: &'static str,
    pub(crate) id: Id,
    /// Who keeps the queue of those that wait.
    pub(crate) order: Order,
    /// Whether waiters are notified of a release; without, they ask again and again.
    pub(crate) is_notified: bool,
    /// Whether it uses the keys of plain locks. A thread that holds one of these would wait for itself.
    pub(crate) has_plain_keys: bool,
    /// Whether each hold has a token. Tokens are drawn in advance for threads of this process that wait.
    pub(crate) has_tokens: bool,
    /// Whether waiters leave notes, by which two sides take turns.
    pub(crate) has_notes: bool,
    /// The channel on which releases of the lock with this key are announced.
    pub(super) channel: fn(&str) -> String,
    pub(super) acquire: fn(&Protocol, &AcquireArgs<'_>) -> Request,
    pub(super) release: MakeRelease,
    /// `None`: an acquire is undone by a release.
    pub(super) undo: Option<MakeRelease>,
    pub(super) keep: fn(&Protocol, Mode, &[u8], Duration) -> Request,
    pub(super) renew: fn(&Protocol, &Renewal<'_>) -> Request,
    pub(super) renewed: fn(Value, &mut i64) -> ReplyToRenewal,
    pub(super) refresh: Option<fn(&Protocol, &[OwnerId]) -> Request>,
    pub(super) force: fn(&Protocol, &str, &str) -> Request,
    pub(super) state: fn(&Protocol) -> Request,
    pub(super) is_locked: fn(Mode, i64) -> bool,
    pub(super) remaining: fn(&Protocol) -> Request,
    pub(super) is_given_back_when_lost: fn(Mode, LossReason) -> bool,
    /// Where a hold is seen.
    pub(super) evidence: fn(&Protocol, Mode, &[u8]) -> Evidence,
}

/// What shows that a hold is in force: see `lua/prelude/guarded.lua`.
pub(super) struct Evidence {
    pub(super) lock: String,
    pub(super) life: Option<String>,
    pub(super) hold: Vec<u8>,
    pub(super) is_permit: bool,
}

impl Evidence {
    /// A field of the lock's hash.
    pub(super) fn field(of: &Protocol, field: &[u8]) -> Self {
        Self {
            lock: of.key().to_owned(),
            life: None,
            hold: field.into(),
            is_permit: false,
        }
    }
}

/// What an id consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Id {
    /// The name.
    Name,
    /// A [`keys::list`] of the name and the nodes it is locked on.
    NameAndNodes,
}

impl Kind {
    /// What most kinds are.
    pub(crate) const fn plain(name: &'static str) -> Self {
        Self {
            name,
            id: Id::Name,
            order: Order::Local,
            is_notified: true,
            has_plain_keys: false,
            has_tokens: false,
            has_notes: false,
            channel: |key| keys::lock_channel(key).concat(),
            acquire,
            release,
            undo: None,
            keep: |of, _, owner, span| keep_field(of.key(), None, owner, span),
            renew: |of, renewal| renew_field(of.key(), renewal.owner, renewal),
            renewed: |reply, _| script::renewed(reply).map(Some),
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
            Id::NameAndNodes => keys::names(id)
                .first()
                .map_or_else(|| Arc::clone(id), |&name| name.into()),
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
    /// They are in a cluster, where a script reaches the keys of one slot only.
    pub(crate) is_cluster: bool,
    /// How long a place in a queue outlives the last sign of life of its waiter.
    pub(crate) waiter_lease: Duration,
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

/// The keys, channels and requests of one lock. Small, since there is one for each lock that is held.
pub(crate) struct Protocol {
    kind: &'static Kind,
    /// The first key of all its scripts.
    key: Arc<str>,
    more: Option<Box<More>>,
}

/// What a plain lock does without.
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
    /// Those of [`Keyspace::key`].
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

    /// Where releases are announced. Most locks are never waited for, so it is not kept.
    pub(crate) fn channel(&self) -> Arc<str> {
        (self.kind.channel)(&self.key).into()
    }

    /// The channel of one waiter, where each has its own.
    pub(crate) fn channel_of(&self, ticket: &str) -> Arc<str> {
        format!("{}:{ticket}", self.channel()).into()
    }

    pub(crate) fn acquire(&self, args: &AcquireArgs<'_>) -> Request {
        (self.kind.acquire)(self, args)
    }

    pub(crate) fn release(&self, mode: Mode, owner: &[u8]) -> Request {
        (self.kind.release)(self, mode, owner)
    }

    /// Undoes an acquire that is of no use, or whose outcome is unknown: its hold, and its note if it may have left one.
    pub(crate) fn undo(&self, mode: Mode, owner: &[u8]) -> Request {
        match self.kind.undo {
            Some(undo) => undo(self, mode, owner),
            None => self.release(mode, owner),
        }
    }

    /// Lets go of a hold that lasts for `span` all the same.
    pub(crate) fn keep(&self, mode: Mode, owner: &[u8], span: Duration) -> Request {
        (self.kind.keep)(self, mode, owner, span)
    }

    pub(crate) fn renew(&self, renewal: &Renewal<'_>) -> Request {
        (self.kind.renew)(self, renewal)
    }

    /// What the reply to a renewal means. `None`: somebody has changed when the permit ends, now `ends_at`, so it was not
    /// renewed and has to be requested again.
    pub(crate) fn renewed(&self, reply: Value, ends_at: &mut i64) -> ReplyToRenewal {
        (self.kind.renewed)(reply, ends_at)
    }

    /// Shows a sign of life for these places, if Redis keeps the queue.
    pub(crate) fn refresh(&self, tickets: &[OwnerId]) -> Option<Request> {
        self.kind.refresh.map(|refresh| refresh(self, tickets))
    }

    /// Takes the lock from whoever holds it. Counts once: `request` is the key that remembers it, for `keep_ms`.
    pub(crate) fn force(&self, request: &str, keep_ms: &str) -> Request {
        (self.kind.force)(self, request, keep_ms)
    }

    /// Asks who holds; [`is_locked`](Self::is_locked) says what the answer means.
    pub(crate) fn state(&self) -> Request {
        (self.kind.state)(self)
    }

    /// Whether the answer to [`state`](Self::state) is that somebody holds in this mode.
    pub(crate) fn is_locked(&self, mode: Mode, state: i64) -> bool {
        (self.kind.is_locked)(mode, state)
    }

    pub(crate) fn remaining(&self) -> Request {
        (self.kind.remaining)(self)
    }

    pub(super) fn evidence(&self, mode: Mode, owner: &[u8]) -> Evidence {
        (self.kind.evidence)(self, mode, owner)
    }

    /// Whether a lost hold has to be released all the same, because what is left of it would block others.
    pub(crate) fn is_given_back_when_lost(&self, mode: Mode, reason: LossReason) -> bool {
        (self.kind.is_given_back_when_lost)(mode, reason)
    }
}

type MakeRelease = fn(&Protocol, Mode, &[u8]) -> Request;

type ReplyToRenewal = std::result::Result<Option<Renewed>, Unexpected>;

pub(super) const ACQUIRING: &str = "acquiring the lock";
pub(super) const RENEWING: &str = "renewing the lock";
pub(super) const FORCING: &str = "forcing the lock open";

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

/// Asks until when the lock is held. A script, so that a stranger's hash is never called a lock.
fn state(of: &Protocol, doing: &'static str) -> Request {
    Request::script::<&str>(doing, &script::LOCK_STATE, &[of.key()], &[])
}

/// Has the hold that a field of the lock's hash is end after `span`; of a read hold also the `hold` beside it.
pub(super) fn keep_field(key: &str, hold: Option<&str>, field: &[u8], span: Duration) -> Request {
    let keys: Vec<_> = [key].into_iter().chain(hold).collect();
    let span = Digits::from(lease_ms(span));
    Request::script(
        RELEASING,
        &script::LOCK_KEEP,
        &keys,
        &[field, span.as_bytes()],
    )
}

/// Renews the hold that a field of the lock's hash is.
pub(super) fn renew_field(key: &str, field: &[u8], renewal: &Renewal<'_>) -> Request {
    let [lease, count] = [lease_ms(renewal.lease), renewal.count.into()].map(Digits::from);
    let args = [field, lease.as_bytes(), count.as_bytes()];
    Request::script(RENEWING, &script::LOCK_RENEW, &[key], &args)
}

/// The arguments of a renewal.
pub(crate) struct Renewal<'a> {
    pub(crate) mode: Mode,
    pub(crate) owner: &'a [u8],
    pub(crate) lease: Duration,
    /// How often its holder has it.
    pub(crate) count: u32,
    /// When the permit ends, in milliseconds by the server's clock: one that ends at another time is left as it is. Zero for
    /// holds that are no permits.
    pub(crate) ends_at: i64,
}

/// The arguments of an acquire. Each kind sends those that its script has.
pub(crate) struct AcquireArgs<'a> {
    pub(crate) owner: &'a [u8],
    pub(crate) lease: Duration,
    pub(crate) mode: Mode,
    /// The owner of the exclusive hold below which a shared one is taken.
    pub(crate) under: Option<&'a str>,
    pub(crate) note: Note<'a>,
    pub(crate) place: Place,
    /// How many tokens to draw, and how long their counter is kept; for ever if that is zero.
    pub(crate) tokens: u64,
    pub(crate) token_ttl: Duration,
    /// How long a node must have been up to take part, and under which `run_id`; empty for any.
    pub(crate) up_for: Duration,
    pub(crate) run_id: &'a str,
}

impl<'a> AcquireArgs<'a> {
    /// Those of a plain lock.
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

/// What readers and writers tell each other: see `lua/prelude/notes.lua`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note<'a> {
    /// Who of the other side goes first; [`FIRST`](Self::FIRST) if it has not asked before.
    pub(crate) behind: &'a str,
    /// How long the note lives; not at all if that is zero.
    pub(crate) lives: Duration,
}

impl Note<'_> {
    pub(crate) const FIRST: &'static str = "?";

    /// That of a lock without notes.
    pub(crate) const NONE: Self = Self {
        behind: "",
        lives: Duration::ZERO,
    };
}

/// Whether a request has a place in the queue that Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nor does it want one.
    None,
    /// It joins the queue unless it takes the lock.
    New,
    /// That of its owner.
    Has,
    /// The same, and it gives that up if the lock is free and not its own.
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
            let force = protocol.force("request", "1000");
            let mut requests = vec![force, permits::state(&protocol)];
            requests.extend(protocol.refresh(&[]));
            for mode in [Mode::Exclusive, Mode::Shared] {
                requests.push(protocol.release(mode, permit));
                requests.push(protocol.renew(&Renewal {
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
