//! Asking for a lock that a majority of independent masters keeps.
//!
//! ```text
//!            acquire: every node that responds, at once      a majority granted, in time
//!   (free) ────────────────────────────────────► asking ───────────────────────────────► held
//!      ▲                                           │ no majority to be had, or too late    │
//!      ├─── given back where it may be kept ◄──────┘                                       │
//!      └─── given back where it may be kept ◄── released, or lost ─────────────────────────┘
//! ```
//!
//! A caller that was refused and asks again looks first, without requesting anything. If a majority has answered the look
//! and no majority is known to be free, the caller requests nothing: a request that gets a minority of the nodes for a
//! moment may keep others from a majority. If fewer have answered, nothing is known, and the caller requests the lock. If
//! a release was announced since the refusal, the caller requests the lock without a look.
//!
//! An attempt that fails releases what it was granted. The nodes announce that release in two cases:
//!
//! - A majority may have kept the lock for the attempt, for example if the grant came too late.
//! - The caller does not ask again: it tries only once, it has to stop, or the time for this request may end during the
//!   caller's next pause (at most 0.8 s). Other callers may have been refused because of the minority that the attempt had
//!   for a moment, and wait for a message.
//!
//! Otherwise the release is silent, which spares the waiters useless questions: one of the callers that ask again gets the
//! lock, and announces its release later. If such a caller gives up during its pause, the waiters find the lock free when
//! they ask again by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::{Error, Result};
use crate::hold::entry::EntryKey;
use crate::hold::{Entry, Hold, Several as _};
use crate::local::lock::LeasePolicy;
use crate::net::call::Attempt;
use crate::net::request::Request;
use crate::protocol::kind::Protocol;
use crate::protocol::{keys, red};
use crate::quorum::failure::Short;
use crate::quorum::hold::QuorumHold;
use crate::quorum::identity::MastersCheck;
use crate::quorum::nodes::{Node, PAUSE, QuorumNodes};
use crate::quorum::round::{NodeReply, Round, RoundRequest};
use crate::quorum::tally::{Goal, Majority};
use crate::session::Session;
use crate::session::shared::SharedSession;

/// The servers of one lock, and their clients.
pub(crate) struct Quorum {
    nodes: Arc<QuorumNodes>,
    clients: Vec<Arc<SharedSession>>,
    masters: MastersCheck,
    /// How long the last granted round took, in nanoseconds.
    granted_in: AtomicU64,
}

/// The reply of a server, or of a majority, if somebody else has the lock, or the permits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busy {
    /// After what time it is worth asking again although nothing was announced; `None` if that is unknown.
    pub(crate) retry_after: Option<Duration>,
    /// Whether perhaps nobody has the lock: contenders that ask at the same time may each have been granted too few
    /// servers. A contender that waits asks again after a short pause, since perhaps no message announces that the grants
    /// are released.
    pub(crate) is_contested: bool,
}

/// The reply of a majority to an acquire.
pub(crate) enum QuorumReply {
    Granted(Arc<Hold>),
    Busy(Busy),
    /// Granted, but with too little of the lease left; the grant is being given back.
    GrantedTooLate,
    TooFew(Short),
    /// The caller has to stop, and nothing was requested.
    Stopped,
}

/// The request of a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuorumRequest {
    pub(crate) lease: LeasePolicy,
    pub(crate) ttl: Duration,
    /// How long a server must have been running to take part; zero for any time.
    pub(crate) up_for: Duration,
    /// The longest pause before the caller asks again after a contested round; `None` if the caller does not ask again.
    pub(crate) asks_again_in: Option<Duration>,
    /// The caller was refused, and no release was announced since, so looking is cheaper than asking.
    pub(crate) is_busy: bool,
}

impl Quorum {
    /// Checks that the clients are connected to different masters, as far as the masters answer.
    pub(crate) fn new(
        clients: Vec<Arc<SharedSession>>,
        name: &str,
    ) -> Result<(Arc<Self>, Arc<str>)> {
        if clients.len() < 2 {
            return Err(Error::setting(format!(
                "a RedLock needs at least two masters, and three to survive the loss of one; it was given {}",
                clients.len()
            )));
        }
        let sessions: Vec<_> = clients.iter().map(|client| &client.session).collect();
        if let Some(cluster) = sessions
            .iter()
            .find(|session| !session.connection.are_one())
        {
            return Err(Error::setting(format!(
                "a RedLock over {}: its nodes must be independent servers, each with a client of its own",
                cluster.endpoint
            )));
        }
        let mut ids: Vec<&str> = sessions
            .iter()
            .map(|session| session.owners.client())
            .collect();
        ids.sort_unstable();
        let id: Arc<str> = keys::list([name].into_iter().chain(ids)).into();
        let key = EntryKey {
            kind: &red::KIND,
            id: Arc::clone(&id),
        };
        let node = |session: &&Arc<Session>| {
            let entry = session.registry.unregistered(&key)?;
            let session = Arc::clone(session);
            Ok(Node { session, entry })
        };
        let list = sessions.iter().map(node).collect::<Result<Vec<_>>>()?;
        for session in &sessions {
            session.check_open()?;
        }
        let nodes = Arc::new(QuorumNodes::new(list));
        let until = Instant::now() + nodes.home().command_timeout;
        let masters = MastersCheck::of(&nodes, until)?;
        let quorum = Self {
            nodes,
            clients,
            masters,
            granted_in: AtomicU64::new(0),
        };
        Ok((Arc::new(quorum), id))
    }

    /// The clients of all masters.
    pub(crate) fn clients(&self) -> &[Arc<SharedSession>] {
        &self.clients
    }

    /// The first client, whose registry has the local lock and whose settings apply.
    pub(crate) fn home(&self) -> &Arc<SharedSession> {
        &self.clients[0]
    }

    /// See [`MastersCheck::check`].
    pub(crate) fn check_masters(&self, until: Instant, stop: &dyn Fn() -> bool) -> Result<()> {
        self.masters.check(&self.nodes, until, stop)
    }

    /// Starts the watchdogs of all nodes, which renew the parts and send whatever could not be sent at once.
    pub(crate) fn start_watchdogs(&self) -> Result<()> {
        let mut nodes = self.nodes.list.iter();
        nodes.try_for_each(|node| node.session.start_watchdog())
    }

    pub(crate) fn majority(&self) -> Majority {
        self.nodes.majority
    }

    /// The channel on which each node announces releases.
    pub(crate) fn channels(&self) -> impl Iterator<Item = (&Arc<Session>, Arc<str>)> {
        let nodes = self.nodes.list.iter();
        nodes.map(|node| (&node.session, node.entry.protocol.channel()))
    }

    /// Asks all nodes once, and undoes the attempt if it fails. With `is_busy`, looks first, and asks only if the look
    /// does not find the lock taken.
    pub(crate) fn ask(
        &self,
        entry: &Arc<Entry>,
        request: QuorumRequest,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> QuorumReply {
        let nodes = &self.nodes;
        // Closing one of the clients waits until this attempt is undone, or its hold is armed.
        let sessions = nodes.list.iter().map(|node| &node.session);
        let _contending: Vec<_> = sessions.map(|session| session.contending()).collect();
        if request.is_busy
            && let Some(busy) = self.look(request.ttl, until, stop)
        {
            return busy;
        }
        if stop() {
            return QuorumReply::Stopped;
        }
        let QuorumRequest {
            lease, ttl, up_for, ..
        } = request;
        // A new number for each round: rule 1 at `QuorumHold`.
        let (quorum_hold, hold) = QuorumHold::new(nodes, entry, lease, ttl, up_for);
        let sent_at = Instant::now();
        let taken = |_, value: &Value| matches!(value, Value::Nil);
        let mut round = nodes.round(&RoundRequest {
            goal: match request.asks_again_in {
                Some(_) => Goal::MajoritySoon,
                None => Goal::Majority,
            },
            lease: ttl,
            until,
            stop,
            make: Some(&|node| quorum_hold.acquire(node)),
            may_repeat: false,
            counts: &taken,
        });
        let granted = round.count(&taken);
        let calls = std::mem::take(&mut round.calls);
        // The hold takes over the calls, and reads the answers that arrive later.
        if quorum_hold.decide(&hold, calls, sent_at) {
            let nanos = u64::try_from(sent_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.granted_in.store(nanos, Ordering::Relaxed);
            nodes.housekeep_soon();
            return QuorumReply::Granted(hold);
        }
        let goes_on_after = |pause| !stop() && Instant::now() + pause < until;
        let asks_again = request.asks_again_in.is_some_and(goes_on_after);
        // Nodes whose answer is still due get a release as well. It follows the acquire on the same connection, so it is
        // executed later.
        drop(quorum_hold.let_go(asks_again));
        quorum_hold.send();
        let busy = |_, value: &Value| matches!(value, Value::Int(_));
        // A majority granted the lock, so the only cause can be that too little of the lease was left.
        if nodes.majority.has(granted) {
            QuorumReply::GrantedTooLate
        } else if nodes.majority.has(granted + round.count(&busy)) {
            self.busy(&round, true)
        } else {
            QuorumReply::TooFew(nodes.short(granted, round.replies))
        }
    }

    /// How long this process lets others go first after its [tenure](crate::config::Config::tenure): from `shortest` to 50
    /// ms; `None` if nobody listens.
    ///
    /// Within these limits the pause is four times as long as the last granted round. Another contender may need two
    /// rounds, to look and then to ask; the rest is time to spare.
    pub(crate) fn yield_for(&self, shortest: Duration) -> Option<Duration> {
        if self.nodes.notified() == Some(0) {
            return None;
        }
        let round_trip = Duration::from_nanos(self.granted_in.load(Ordering::Relaxed));
        Some(round_trip.saturating_mul(4).clamp(shortest, PAUSE.1))
    }

    fn busy(&self, round: &Round, is_contested: bool) -> QuorumReply {
        let values = round.replies.iter().filter_map(NodeReply::value);
        let ttls = values.map(|value| match value {
            Value::Int(-1) => i64::MAX,
            Value::Int(ms) => (*ms).max(0),
            _ => 0,
        });
        let ms = self.nodes.majority.bound(ttls).filter(|ms| *ms < i64::MAX);
        let free_in = ms.and_then(|ms| u64::try_from(ms).ok());
        QuorumReply::Busy(Busy {
            // A little longer, since not all nodes become free at the same moment.
            retry_after: free_in.map(|ms| Duration::from_millis(ms) + PAUSE.0),
            is_contested,
        })
    }

    /// Checks, without requesting the lock, whether a majority has answered and no majority is known to be free.
    fn look(
        &self,
        lease: Duration,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Option<QuorumReply> {
        let nodes = &self.nodes;
        // The previous acquire has checked the type of the key, so the time to live is all that matters.
        let look = |node: usize| {
            let key = nodes.list[node].entry.protocol.key();
            Attempt::without_undo(Request::command("asking for the lease", &["PTTL", key]))
        };
        let free = |_, value: &Value| matches!(value, Value::Int(-2));
        let round = nodes.round(&RoundRequest {
            goal: Goal::MajoritySoon,
            lease,
            until,
            stop,
            make: Some(&look),
            may_repeat: false,
            counts: &free,
        });
        let answered = round.count(&|_, value| matches!(value, Value::Int(_)));
        let free = round.count(&free);
        let is_busy = nodes.majority.has(answered) && !nodes.majority.has(free);
        is_busy.then(|| self.busy(&round, false))
    }

    /// Asks every node, and needs a number from a majority.
    fn survey(
        &self,
        until: Instant,
        question: impl Fn(&Protocol) -> Request,
    ) -> std::result::Result<Vec<i64>, Short> {
        let nodes = &self.nodes;
        let ask = |node: usize| Attempt::without_undo(question(&nodes.list[node].entry.protocol));
        let home = nodes.home();
        let number = |_, value: &Value| matches!(value, Value::Int(_));
        let round = nodes.round(&RoundRequest {
            goal: Goal::All,
            lease: home.lease,
            until,
            stop: &|| home.is_closed(),
            make: Some(&ask),
            may_repeat: true,
            counts: &number,
        });
        let values = round.replies.iter().filter_map(NodeReply::value);
        let numbers = values.filter_map(|value| match value {
            Value::Int(n) => Some(*n),
            _ => None,
        });
        let numbers: Vec<_> = numbers.collect();
        if nodes.majority.has(numbers.len()) {
            return Ok(numbers);
        }
        Err(nodes.short(numbers.len(), round.replies))
    }

    /// Whether no majority of the nodes is known to be free. Fails if fewer than a majority have answered.
    pub(crate) fn is_locked(&self, until: Instant) -> std::result::Result<bool, Short> {
        let ttls = self.survey(until, |protocol| (protocol.kind().remaining)(protocol))?;
        let free = ttls.iter().filter(|ms| **ms == -2).count();
        Ok(!self.nodes.majority.has(free))
    }

    /// In how many milliseconds the lock is free on a majority of the nodes, if nobody renews; -1 for never, -2 for now.
    pub(crate) fn remaining(&self, until: Instant) -> std::result::Result<i64, Short> {
        let ttls = self.survey(until, |protocol| (protocol.kind().remaining)(protocol))?;
        let never = |ms| if ms == -1 { i64::MAX } else { ms };
        let bound = self.nodes.majority.bound(ttls.into_iter().map(never));
        Ok(bound.filter(|ms| *ms != i64::MAX).unwrap_or(-1))
    }

    /// Removes the lock from every node; `true` if anybody had it on any node. Takes effect at most once on each node,
    /// however often it is sent.
    pub(crate) fn force(&self, until: Instant) -> std::result::Result<bool, Short> {
        let home = self.nodes.home();
        let timeout = until.saturating_duration_since(Instant::now());
        let (id, keep_ms) = (
            home.owners.id(home.owners.draw()),
            home.remember_ms(timeout),
        );
        let forced = self.survey(until, |protocol| {
            (protocol.kind().force)(protocol, &keys::request(protocol.key(), &id), &keep_ms)
        })?;
        Ok(forced.contains(&1))
    }
}
