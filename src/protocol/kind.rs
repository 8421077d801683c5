//! What each kind of locks says to Redis: which script, with which keys and channels.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::local::lock::{Mode, Order};
use crate::protocol::keys;
use crate::protocol::owner::PermitId;
use crate::protocol::script::{self, Request, lease_ms};

/// Locks that share rooms, keys and scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The reentrant lock and the mutex.
    Lock,
    /// The same without messages: waiting is asking again and again.
    Spin,
    /// Redis keeps the line.
    Fair,
    /// Each hold has a token.
    Fenced,
    ReadWrite,
    /// Several plain locks as one.
    Several,
    /// One node's part of a plain lock that a majority of nodes makes.
    Quorum,
    /// Permits without owners.
    Semaphore,
    /// Permits with an id and a lease each.
    Permits,
    Latch,
}

/// How many names can be taken as one.
const MOST_NAMES: usize = 256;

impl Kind {
    /// Those of which a lock has the same key.
    pub(crate) const OF_ONE_KEY: [Self; 4] = [Self::Lock, Self::Spin, Self::Fair, Self::Fenced];

    pub(crate) fn order(self) -> Order {
        match self {
            Self::Fair => Order::Server,
            _ => Order::Local,
        }
    }

    /// Whether waiters are told of a release; without, they ask again and again.
    pub(crate) fn is_told(self) -> bool {
        !matches!(self, Self::Spin | Self::Quorum)
    }

    /// What a lock with this id is called: the id itself, unless it is a list.
    pub(crate) fn shown(self, id: &Arc<str>) -> Arc<str> {
        match self {
            Self::Several => keys::names(id).join(", ").into(),
            Self::Quorum => keys::names(id)
                .first()
                .map_or_else(|| Arc::clone(id), |&name| name.into()),
            _ => Arc::clone(id),
        }
    }
}

/// The keys and channels of one lock.
pub(crate) struct Protocol {
    pub(crate) kind: Kind,
    pub(crate) key: String,
    /// Where releases are told. A waiter of a fair lock listens to a channel of its own below this one.
    pub(crate) channel: Arc<str>,
    more: More,
}

/// What a kind has besides.
enum More {
    Nothing,
    Line {
        queue: String,
        timeouts: String,
    },
    Token(String),
    Holds {
        /// What precedes the owner in the key of a read hold.
        prefix: String,
        /// Nobody speaks on this channel: whoever waits to write listens to it, and is seen.
        writers: Arc<str>,
    },
    Several(Vec<Member>),
    /// Redis is asked whether it has been up for long enough.
    Part,
    /// Which permits are out, and until when.
    Permits(String),
}

/// One of several locks.
struct Member {
    key: String,
    channel: Arc<str>,
}

/// All that an acquire can say.
pub(crate) struct AcquireArgs<'a> {
    pub(crate) owner: &'a str,
    pub(crate) lease: Duration,
    pub(crate) mode: Mode,
    /// The owner of the exclusive hold below which a shared one is taken.
    pub(crate) under: Option<&'a str>,
    /// A reader lets writers go first that wait already, if there are more of them than this.
    pub(crate) yields: Option<u64>,
    pub(crate) place: Place<'a>,
    /// How many tokens to draw, and how long their counter is kept; for ever if that is zero.
    pub(crate) tokens: u64,
    pub(crate) token_ttl: Duration,
    /// How long a node must have been up to take part, and under which `run_id`; empty for any.
    pub(crate) up_for: Duration,
    pub(crate) run_id: &'a str,
}

/// A place in the line that Redis keeps.
pub(crate) struct Place<'a> {
    pub(crate) ticket: &'a str,
    /// How long it is kept unless asked again; zero if no place is wanted.
    pub(crate) keep: Duration,
    pub(crate) stood: PlaceState,
}

/// What is known of a place in the line that Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceState {
    /// No question that asks for it was answered yet.
    Never,
    /// The last answer was that the lock is somebody else's, and the place kept.
    Stands,
    /// The last answer was that the place is lost.
    Lost,
}

impl Protocol {
    /// The protocol of a name; for several names, or a name and the nodes it is locked on, of a [`keys::list`] of them.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], and [`Error::Config`] for no names or too many.
    pub(crate) fn new(kind: Kind, prefix: &str, db: i64, id: &str) -> Result<Self> {
        let names = match kind {
            Kind::Several => keys::names(id),
            Kind::Quorum => keys::names(id).into_iter().take(1).collect(),
            _ => vec![id],
        };
        if names.len() > MOST_NAMES {
            return Err(Error::Config(format!(
                "a multi-lock of {} names; {MOST_NAMES} are possible",
                names.len()
            )));
        }
        let Some(first) = names.first() else {
            return Err(Error::Config("a multi-lock of no names".into()));
        };
        let key = keys::key(prefix, first)?;
        let (channel, more) = match kind {
            Kind::Lock | Kind::Spin => (keys::lock_channel(&key), More::Nothing),
            Kind::Several => {
                let member = |name: &&str| {
                    let key = keys::key(prefix, name)?;
                    let channel = keys::lock_channel(&key).into();
                    Ok(Member { key, channel })
                };
                let members = names.iter().map(member).collect::<Result<_>>()?;
                (keys::lock_channel(&key), More::Several(members))
            }
            Kind::Quorum => (keys::lock_channel(&key), More::Part),
            Kind::Latch => (keys::latch_channel(&key), More::Nothing),
            Kind::Semaphore => (keys::semaphore_channel(&key), More::Nothing),
            Kind::Permits => {
                let timeouts = keys::permit_timeouts(&key);
                (keys::semaphore_channel(&key), More::Permits(timeouts))
            }
            Kind::Fair => {
                let queue = keys::fair_queue(&key);
                let timeouts = keys::fair_timeouts(&key);
                (keys::lock_channel(&key), More::Line { queue, timeouts })
            }
            Kind::Fenced => {
                let token = keys::fenced_token(&key);
                (keys::lock_channel(&key), More::Token(token))
            }
            Kind::ReadWrite => {
                let channel = keys::rw_channel(&key);
                let more = More::Holds {
                    prefix: keys::rw_holds(&key),
                    // Channels, unlike keys, are those of all databases.
                    writers: format!("{channel}:writers:{db}").into(),
                };
                (channel, more)
            }
        };
        Ok(Self {
            kind,
            key,
            channel: channel.into(),
            more,
        })
    }

    /// Whether there is a lock that both of them take.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let keys = |protocol: &Self| match &protocol.more {
            More::Several(members) => locks(members).into_iter().map(str::to_owned).collect(),
            _ => HashSet::from([protocol.key.clone()]),
        };
        !keys(self).is_disjoint(&keys(other))
    }

    /// Where a waiting writer is seen.
    pub(crate) fn writers(&self) -> Option<&Arc<str>> {
        match &self.more {
            More::Holds { writers, .. } => Some(writers),
            _ => None,
        }
    }

    /// The channel of one waiter of a fair lock.
    pub(crate) fn channel_of(&self, ticket: &str) -> Arc<str> {
        format!("{}:{ticket}", self.channel).into()
    }

    /// Where the release of one of several locks is told.
    pub(crate) fn channel_at(&self, place: usize) -> &Arc<str> {
        match &self.more {
            More::Several(members) => members.get(place).map_or(&self.channel, |at| &at.channel),
            _ => &self.channel,
        }
    }

    pub(crate) fn acquire(&self, ask: &AcquireArgs<'_>) -> Request {
        let doing = "acquiring the lock";
        let lease = lease_ms(ask.lease).to_string();
        match (&self.more, ask.mode) {
            // Permits are taken several at once, and not by this.
            (More::Nothing | More::Permits(_), _) => Request::script(
                doing,
                &script::LOCK_ACQUIRE,
                &[&self.key],
                &[ask.owner, &lease],
            ),
            (More::Several(members), _) => Request::script(
                doing,
                &script::MULTI_ACQUIRE,
                &locks(members),
                &[ask.owner, &lease],
            ),
            (More::Part, _) => Request::script(
                doing,
                &script::RED_ACQUIRE,
                &[&self.key],
                &[
                    ask.owner,
                    &lease,
                    &seconds(ask.up_for).to_string(),
                    ask.run_id,
                ],
            ),
            (More::Line { queue, timeouts }, _) => Request::script(
                doing,
                &script::FAIR_ACQUIRE,
                &[&self.key, queue, timeouts, &self.channel],
                &[
                    ask.owner,
                    &lease,
                    ask.place.ticket,
                    &lease_ms(ask.place.keep).to_string(),
                    match ask.place.stood {
                        PlaceState::Never => "0",
                        PlaceState::Stands => "1",
                        PlaceState::Lost => "2",
                    },
                ],
            ),
            (More::Token(token), _) => Request::script(
                doing,
                &script::FENCED_ACQUIRE,
                &[&self.key, token],
                &[
                    ask.owner,
                    &lease,
                    &ask.tokens.to_string(),
                    &lease_ms(ask.token_ttl).to_string(),
                ],
            ),
            (More::Holds { prefix, .. }, Mode::Exclusive) => Request::script(
                doing,
                &script::RW_WRITE_ACQUIRE,
                &[&self.key],
                &[&write_field(ask.owner), &lease, prefix],
            ),
            (More::Holds { prefix, writers }, Mode::Shared) => Request::script(
                doing,
                &script::RW_READ_ACQUIRE,
                &[&self.key, &hold_key(prefix, ask.owner), writers],
                &[
                    ask.owner,
                    &lease,
                    &ask.under.map(write_field).unwrap_or_default(),
                    &ask.yields
                        .map(|passed| passed.to_string())
                        .unwrap_or_default(),
                ],
            ),
        }
    }

    pub(crate) fn release(&self, mode: Mode, owner: &str) -> Request {
        let doing = "releasing the lock";
        match (&self.more, mode) {
            (More::Permits(_), _) => self.permits(
                "releasing a permit",
                &script::PERMIT_RELEASE,
                None,
                &[&permit(owner)],
            ),
            (More::Nothing, _) if self.kind == Kind::Spin => {
                Request::script(doing, &script::LOCK_RELEASE, &[&self.key], &[owner])
            }
            (More::Nothing | More::Token(_) | More::Part, _) => Request::script(
                doing,
                &script::LOCK_RELEASE,
                &[&self.key, &self.channel],
                &[owner],
            ),
            (More::Several(members), _) => Request::script(
                doing,
                &script::MULTI_RELEASE,
                &locks_and_channels(members),
                &[owner],
            ),
            (More::Line { queue, timeouts }, _) => Request::script(
                doing,
                &script::FAIR_RELEASE,
                &[&self.key, queue, timeouts, &self.channel],
                &[owner],
            ),
            (More::Holds { .. }, Mode::Exclusive) => Request::script(
                doing,
                &script::RW_WRITE_RELEASE,
                &[&self.key, &self.channel],
                &[&write_field(owner)],
            ),
            (More::Holds { prefix, .. }, Mode::Shared) => Request::script(
                doing,
                &script::RW_READ_RELEASE,
                &[&self.key, &self.channel, &hold_key(prefix, owner)],
                &[owner, prefix],
            ),
        }
    }

    /// Takes back an acquire that came to nothing, or of which nobody knows what came of it.
    pub(crate) fn undo(&self, mode: Mode, owner: &str) -> Request {
        match &self.more {
            // Nobody has seen it held, and those who wait for a majority are not told anyway.
            More::Part => Request::script(
                "undoing an acquire",
                &script::LOCK_RELEASE,
                &[&self.key],
                &[owner],
            ),
            _ => self.release(mode, owner),
        }
    }

    pub(crate) fn renew(&self, mode: Mode, owner: &str, lease: Duration, count: u32) -> Request {
        let doing = "renewing the lock";
        let (lease, count) = (lease_ms(lease).to_string(), count.to_string());
        let renew = |field: &str| {
            Request::script(
                doing,
                &script::LOCK_RENEW,
                &[&self.key],
                &[field, &lease, &count],
            )
        };
        match (&self.more, mode) {
            (More::Holds { .. }, Mode::Exclusive) => renew(&write_field(owner)),
            (More::Holds { prefix, .. }, Mode::Shared) => Request::script(
                doing,
                &script::RW_READ_RENEW,
                &[&self.key, &self.channel, &hold_key(prefix, owner)],
                &[owner, &lease],
            ),
            (More::Several(members), _) => Request::script(
                doing,
                &script::MULTI_RENEW,
                &locks(members),
                &[owner, &lease, &count],
            ),
            _ => renew(owner),
        }
    }

    /// Renews a permit that ends at `ends_at`, in milliseconds by the server's clock; one that ends at another time is
    /// left as it is. `None` if this is no semaphore's.
    pub(crate) fn renew_permit(&self, id: &str, lease: Duration, ends_at: i64) -> Option<Request> {
        let More::Permits(timeouts) = &self.more else {
            return None;
        };
        let (lease, ends_at) = (lease_ms(lease).to_string(), ends_at.to_string());
        Some(Request::script_of_bytes(
            "renewing a permit",
            &script::PERMIT_RENEW,
            &[timeouts],
            &[&permit(id), lease.as_bytes(), ends_at.as_bytes()],
        ))
    }

    /// Gives up a place in the line that Redis keeps.
    pub(crate) fn leave(&self, ticket: &str) -> Option<Request> {
        let More::Line { queue, timeouts } = &self.more else {
            return None;
        };
        Some(Request::script(
            "leaving the line",
            &script::FAIR_LEAVE,
            &[&self.key, queue, timeouts, &self.channel],
            &[ticket],
        ))
    }

    pub(crate) fn force(&self) -> Request {
        let doing = "forcing the lock open";
        let (key, channel) = (&*self.key, &*self.channel);
        match &self.more {
            More::Nothing if self.kind == Kind::Spin => {
                Request::script(doing, &script::LOCK_FORCE, &[key], &[])
            }
            More::Nothing | More::Token(_) | More::Part | More::Permits(_) => {
                Request::script(doing, &script::LOCK_FORCE, &[key, channel], &[])
            }
            More::Several(members) => Request::script(
                doing,
                &script::MULTI_FORCE,
                &locks_and_channels(members),
                &[],
            ),
            More::Line { queue, timeouts } => Request::script(
                doing,
                &script::FAIR_FORCE,
                &[key, queue, timeouts, channel],
                &[],
            ),
            More::Holds { .. } => Request::script(doing, &script::RW_FORCE, &[key, channel], &[]),
        }
    }

    /// Asks who holds; see [`Protocol::is_locked`] for what the answer means.
    pub(crate) fn state(&self) -> Request {
        let doing = "asking for the lock";
        match &self.more {
            More::Holds { .. } => Request::script(doing, &script::RW_STATE, &[&self.key], &[]),
            More::Several(members) => {
                Request::script(doing, &script::MULTI_STATE, &locks(members), &[])
            }
            // Refused for a key of another type, so that a stranger's key is never called a lock.
            _ => Request::command(doing, &["HLEN", &self.key]),
        }
    }

    /// Whether the answer to [`Protocol::state`] is that somebody holds in this mode.
    pub(crate) fn is_locked(&self, mode: Mode, state: i64) -> bool {
        match (&self.more, mode) {
            (More::Holds { .. }, Mode::Shared) => state == 1 || state == 3,
            (More::Holds { .. }, Mode::Exclusive) => state >= 2,
            (More::Several(_), _) => state != -2,
            _ => state > 0,
        }
    }

    pub(crate) fn remaining(&self) -> Request {
        let doing = "asking for the lease";
        match &self.more {
            More::Several(members) => {
                Request::script(doing, &script::MULTI_STATE, &locks(members), &[])
            }
            _ => Request::command(doing, &["PTTL", &self.key]),
        }
    }

    /// A script about permits with a lease each; `request` is the key that remembers that it was carried out.
    pub(crate) fn permits(
        &self,
        doing: &'static str,
        script: &'static script::Script,
        request: Option<&str>,
        args: &[&[u8]],
    ) -> Request {
        let timeouts = keys::permit_timeouts(&self.key);
        let keys: Vec<&str> = [&*self.key, &timeouts, &self.channel]
            .into_iter()
            .chain(request)
            .collect();
        Request::script_of_bytes(doing, script, &keys, args)
    }

    /// Asks whether anybody waits to write.
    pub(crate) fn probe_writers_request(&self) -> Option<Request> {
        let writers = self.writers()?;
        Some(Request::command(
            "looking for writers",
            &["PUBSUB", "NUMSUB", writers],
        ))
    }
}

fn locks(members: &[Member]) -> Vec<&str> {
    members.iter().map(|member| &*member.key).collect()
}

fn locks_and_channels(members: &[Member]) -> Vec<&str> {
    let channels = members.iter().map(|member| &*member.channel);
    members
        .iter()
        .map(|member| &*member.key)
        .chain(channels)
        .collect()
}

/// Whole seconds, never rounded down.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// The id of a permit as scripts want it.
fn permit(owner: &str) -> Vec<u8> {
    PermitId::parse(owner).map_or_else(Vec::new, |id| id.0.to_vec())
}

/// The hash field of a write hold.
fn write_field(owner: &str) -> String {
    format!("{owner}:write")
}

/// The key that lives for as long as a read hold. Each owner of ours has one read hold.
fn hold_key(prefix: &str, owner: &str) -> String {
    format!("{prefix}{owner}:rwlock_timeout:1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of a script's request.
    fn keys_of(request: &Request) -> Vec<String> {
        let mut packed = Vec::new();
        request.write(&mut packed, false);
        let text = String::from_utf8_lossy(&packed);
        // Every other line is the length of the next: EVALSHA, the hash, the number of keys, the keys.
        let mut parts = text.split("\r\n").skip(1).skip(1).step_by(2).skip(2);
        let count = parts.next().and_then(|count| count.parse().ok());
        let keys = parts.take(count.expect("a number"));
        keys.map(str::to_owned).collect()
    }

    #[test]
    fn no_script_is_given_an_empty_key() {
        let permit = "0123456789abcdef0123456789abcdef";
        for kind in [
            Kind::Lock,
            Kind::Spin,
            Kind::Fair,
            Kind::Fenced,
            Kind::ReadWrite,
            Kind::Several,
            Kind::Quorum,
            Kind::Semaphore,
            Kind::Permits,
            Kind::Latch,
        ] {
            let id = match kind {
                Kind::Several | Kind::Quorum => keys::list(["a", "b"]),
                _ => "a".to_owned(),
            };
            assert!(!kind.shown(&id.as_str().into()).is_empty(), "{kind:?}");
            let protocol = Protocol::new(kind, "p:", 0, &id).expect("a name");
            let mut requests = vec![
                protocol.force(),
                protocol.permits("asking", &script::PERMIT_STATE, None, &[]),
            ];
            requests.extend(protocol.leave("ticket"));
            for mode in [Mode::Exclusive, Mode::Shared] {
                requests.push(protocol.release(mode, permit));
                requests.push(protocol.renew(mode, permit, Duration::from_secs(1), 1));
            }
            for request in requests {
                let keys = keys_of(&request);
                assert!(
                    !keys.is_empty() && !keys.contains(&String::new()),
                    "{kind:?}: {keys:?}"
                );
            }
        }
    }
}
