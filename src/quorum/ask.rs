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
//! A caller that has found the lock busy lately checks first, and asks for the lock only if a majority of nodes has it free,
//! or if a release was announced since. An attempt that takes a minority for a moment would prevent the holder from taking
//! these nodes again if it has lost them.
//!
//! Others may be refused because of what an attempt takes for a moment, and then wait for a message. So whatever is given
//! back is announced, sooner or later:
//!
//! ```text
//!          a majority                                   released, lost
//! asks ─────────────────► held ────────────────────────────────────────► announced
//!  │ ▲ │ too few, and does not ask again                                    ▲  ▲
//!  │ │ └────────────────────────────────────────────────────────────────────┘  │
//!  │ └──────────────────┐                                                      │
//!  ▼  too few           │ after a pause                                        │
//! silent ───────────────┤ gives up: cancelled, closed, out of time, an error   │
//!                       ├──────────────────────────────────────────────────────┘
//!                       └► a majority is taken: whoever took it comes to one of these ends in turn
//! ```
//!
//! Silence spares those who wait: most who were granted too few ask again within milliseconds, and one of them has the lock
//! then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::error::{Error, Result};
use crate::hold::{Entry, Hold};
use crate::local::lock::{LeasePolicy, Mode};
use crate::net::call::{Answer, Attempt, Call};
use crate::net::request::Request;
use crate::net::subscriber::POLL_CAP;
use crate::protocol::kind::Protocol;
use crate::protocol::{keys, red};
use crate::quorum::failure::Short;
use crate::quorum::hold::QuorumHold;
use crate::quorum::identity::Masters;
use crate::quorum::nodes::{Node, Nodes, PAUSE};
use crate::quorum::round::{NodeReply, Round, RoundRequest};
use crate::quorum::tally::{Goal, Majority};
use crate::session::{Session, SharedSession};
use crate::time;

/// For how long callers check first after the lock was found busy.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// After one of how many tenures a process yields if nobody listens.
const UNHEARD_EVERY: u64 = 8;

/// The servers of one lock, and their clients.
pub(crate) struct Quorum {
    nodes: Arc<Nodes>,
    clients: Vec<Arc<SharedSession>>,
    pub(crate) masters: Masters,
    /// When it was last found busy, as `time::nanos`; zero once it was granted.
    busy_at: AtomicU64,
    /// How long the last grant took, in nanoseconds.
    granted_in: AtomicU64,
}

/// The reply of a majority to an acquire.
pub(crate) enum QuorumReply {
    Granted {
        hold: Arc<Hold>,
        sent_at: Instant,
    },
    /// Others hold it.
    Busy {
        /// When a majority of nodes will be free if nobody renews.
        free_in: Option<Duration>,
        /// It was asked for, not only looked at: the others may have asked at the same time, and nobody may have a majority.
        is_contested: bool,
    },
    /// Granted, with too little of the lease left to be of use; it is being given back.
    GrantedTooLate,
    TooFew(Short),
    /// The caller has to stop, and has not asked for it.
    Stopped,
}

/// What an attempt has taken and given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivenBack {
    Nothing,
    Announced,
    /// Without a message, since the caller asks again shortly. If it does not, it has to [announce](Quorum::announce) that.
    Silently,
}

/// What a caller requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuorumRequest {
    pub(crate) lease: LeasePolicy,
    pub(crate) ttl: Duration,
    /// Servers that were started more recently do not count.
    pub(crate) up_for: Duration,
    /// Within what time the caller asks again if others hold the lock; `None` if it does not.
    pub(crate) comes_again_in: Option<Duration>,
    pub(crate) known: Known,
}

/// What a caller knows of the lock before it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Nothing,
    /// It was refused, and no release was announced since.
    Busy,
    /// A release was announced.
    Released,
}

impl Quorum {
    /// Checks that the clients are connected to different masters, as far as these answer.
    pub(crate) fn new(
        clients: Vec<Arc<SharedSession>>,
        name: &str,
    ) -> Result<(Arc<Self>, Arc<str>)> {
        if clients.len() < 2 {
            return Err(Error::Config(format!(
                "a RedLock over {} masters; it takes at least two, and is of use from three on",
                clients.len()
            )));
        }
        let sessions: Vec<_> = clients.iter().map(|client| &client.session).collect();
        if let Some(cluster) = sessions.iter().find(|its| its.connection.are_several()) {
            return Err(Error::Config(format!(
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
        let node = |session: &&Arc<Session>| {
            Ok(Node {
                session: Arc::clone(session),
                entry: session.registry.unregistered(&red::KIND, &id)?,
            })
        };
        let list = sessions.iter().map(node).collect::<Result<Vec<_>>>()?;
        for session in &sessions {
            session.check_open()?;
        }
        let response_timeout = clients[0].session.response_timeout;
        let masters = Masters::new(sessions.into_iter().cloned().collect(), response_timeout)?;
        let quorum = Self {
            nodes: Arc::new(Nodes::new(list)),
            clients,
            masters,
            busy_at: AtomicU64::new(0),
            granted_in: AtomicU64::new(0),
        };
        Ok((Arc::new(quorum), id))
    }

    /// The client that keeps the lock and has the settings: the first.
    pub(crate) fn home(&self) -> &Arc<SharedSession> {
        &self.clients[0]
    }

    /// The watchdogs send what could not be sent to a node at once.
    pub(crate) fn start_watchdogs(&self) -> Result<()> {
        let mut nodes = self.nodes.list.iter();
        nodes.try_for_each(|node| node.session.start_watchdog())
    }

    /// The subscribers hear of releases.
    pub(crate) fn start_subscribers(&self) -> Result<()> {
        let mut nodes = self.nodes.list.iter();
        nodes.try_for_each(|node| node.session.start_subscriber())
    }

    pub(crate) fn majority(&self) -> Majority {
        self.nodes.majority
    }

    /// Where each node announces releases.
    pub(crate) fn channels(&self) -> impl Iterator<Item = (&Arc<Session>, Arc<str>)> {
        let nodes = self.nodes.list.iter();
        nodes.map(|node| (&node.session, node.entry.protocol.channel()))
    }

    /// Asks all nodes once, and undoes the attempt unless it succeeds.
    pub(crate) fn ask(
        &self,
        entry: &Arc<Entry>,
        request: QuorumRequest,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> (QuorumReply, GivenBack) {
        let nodes = &self.nodes;
        // So that closing one of the clients waits until the attempt is undone.
        let sessions = nodes.list.iter().map(|node| &node.session);
        let _contending: Vec<_> = sessions.map(|session| session.contending()).collect();
        let looks = match request.known {
            Known::Nothing => self.was_busy_lately(),
            Known::Busy => true,
            Known::Released => false,
        };
        if looks && let Some(busy) = self.look(request.ttl, until, stop) {
            return (busy, GivenBack::Nothing);
        }
        if stop() {
            return (QuorumReply::Stopped, GivenBack::Nothing);
        }
        let quorum_hold = QuorumHold::new(nodes, request.lease, request.ttl, request.up_for);
        let mut acquire = |node: usize| quorum_hold.acquire(node);
        let sent_at = Instant::now();
        let taken = |value: &Value| matches!(value, Value::Nil);
        let mut round = nodes.round(&mut RoundRequest {
            goal: match request.comes_again_in {
                Some(_) => Goal::MajoritySoon,
                None => Goal::Majority,
            },
            lease: request.ttl,
            until,
            stop,
            make: &mut acquire,
            counts: &taken,
        });
        let granted = round.count(&taken);
        quorum_hold.begin(std::mem::take(&mut round.calls));
        let hold = quorum_hold.hold(entry, request.lease, request.ttl);
        if nodes.majority.has(granted) {
            hold.grant(sent_at);
            let left = hold.valid_until().saturating_duration_since(Instant::now());
            // A hold that is nearly over is of no use.
            if left >= request.ttl / 10 {
                self.busy_at.store(0, Ordering::Relaxed);
                let took = u64::try_from(sent_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.granted_in.store(took, Ordering::Relaxed);
                quorum_hold.is_granted(sent_at);
                nodes.housekeep_soon();
                return (QuorumReply::Granted { hold, sent_at }, GivenBack::Nothing);
            }
        }
        let comes_again = |pause| !stop() && Instant::now() + pause < until;
        let comes_again = request.comes_again_in.is_some_and(comes_again);
        let (_, given_back) = quorum_hold.let_go(comes_again);
        nodes.flush();
        nodes.housekeep_soon();
        let busy = |value: &Value| matches!(value, Value::Int(_));
        let reply = if nodes.majority.has(granted) {
            QuorumReply::GrantedTooLate
        } else if nodes.majority.has(granted + round.count(&busy)) {
            self.busy(&round, true)
        } else {
            QuorumReply::TooFew(nodes.short(granted, round.replies))
        };
        (reply, given_back)
    }

    /// Announces that the lock may be free, at every node where nobody has it: the release of a hold that does not exist.
    pub(crate) fn announce(&self) {
        let useful_until = Instant::now() + POLL_CAP.1;
        for Node { session, entry } in &self.nodes.list {
            let owner = session.owners.id(session.owners.draw());
            let mut release = entry.release(Mode::Exclusive, &owner, useful_until, false);
            release.info.undo = true;
            session.connection.submit(&Call::deferred(release));
        }
        self.nodes.flush();
        self.nodes.housekeep_soon();
    }

    /// How long a process lets others go first after its tenure, at least `shortest`.
    ///
    /// Longer than two round trips, since others may check first and then ask. If nobody listens, those who may not
    /// subscribe may wait all the same: then it is `shortest`, and `None` after most tenures.
    pub(crate) fn yield_for(&self, shortest: Duration) -> Option<Duration> {
        if self.nodes.notified() == Some(0) {
            return time::one_in(UNHEARD_EVERY).then_some(shortest);
        }
        let round_trip = Duration::from_nanos(self.granted_in.load(Ordering::Relaxed));
        Some(round_trip.saturating_mul(4).clamp(shortest, PAUSE.1))
    }

    fn was_busy_lately(&self) -> bool {
        let found_busy = self.busy_at.load(Ordering::Relaxed);
        let since = Instant::now().saturating_duration_since(time::instant(found_busy));
        found_busy != 0 && since < BUSY_FOR
    }

    fn busy(&self, round: &Round, is_contested: bool) -> QuorumReply {
        let now = time::nanos(Instant::now()).max(1);
        self.busy_at.store(now, Ordering::Relaxed);
        let left = round.replies.iter().filter_map(|reply| match reply {
            NodeReply::Came(answer) => Some(match answer.value {
                Value::Int(-1) => i64::MAX,
                Value::Int(ms) => ms.max(0),
                _ => 0,
            }),
            _ => None,
        });
        let ms = self.nodes.majority.bound(left).filter(|ms| *ms < i64::MAX);
        let free_in = ms.and_then(|ms| u64::try_from(ms).ok());
        QuorumReply::Busy {
            // A little later, when the other nodes are free as well.
            free_in: free_in.map(|ms| Duration::from_millis(ms) + PAUSE.0),
            is_contested,
        }
    }

    /// Checks, without taking anything, whether no majority of nodes has the lock free.
    fn look(
        &self,
        lease: Duration,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Option<QuorumReply> {
        let nodes = &self.nodes;
        let mut look = |node: usize| Attempt {
            request: nodes.list[node].entry.protocol.remaining(),
            undo: None,
        };
        let free = |value: &Value| matches!(value, Value::Int(-2));
        let round = nodes.round(&mut RoundRequest {
            goal: Goal::MajoritySoon,
            lease,
            until,
            stop,
            make: &mut look,
            counts: &free,
        });
        let answered = round.count(&|value| matches!(value, Value::Int(_)));
        let free = round.count(&free);
        let is_busy = nodes.majority.has(answered) && !nodes.majority.has(free);
        is_busy.then(|| self.busy(&round, false))
    }

    /// Asks every node, and needs a number from a majority.
    fn survey(
        &self,
        until: Instant,
        question: impl Fn(&dyn Protocol) -> Request,
    ) -> std::result::Result<Vec<i64>, Short> {
        let nodes = &self.nodes;
        let mut ask = |node: usize| Attempt {
            request: question(&*nodes.list[node].entry.protocol),
            undo: None,
        };
        let home = nodes.home();
        let number = |value: &Value| matches!(value, Value::Int(_));
        let round = nodes.round_twice(&mut RoundRequest {
            goal: Goal::All,
            lease: home.lease,
            until,
            stop: &|| home.is_closed(),
            make: &mut ask,
            counts: &number,
        });
        let numbers: Vec<_> = round
            .replies
            .iter()
            .filter_map(|reply| match reply {
                NodeReply::Came(Answer {
                    value: Value::Int(n),
                    ..
                }) => Some(*n),
                _ => None,
            })
            .collect();
        if nodes.majority.has(numbers.len()) {
            return Ok(numbers);
        }
        Err(nodes.short(numbers.len(), round.replies))
    }

    /// Whether no majority of nodes has the lock free.
    pub(crate) fn is_locked(&self, until: Instant) -> std::result::Result<bool, Short> {
        let fields = self.survey(until, |protocol| protocol.state())?;
        let free = fields.iter().filter(|fields| **fields == 0).count();
        Ok(!self.nodes.majority.has(free))
    }

    /// In how many milliseconds a majority of nodes has it free if nobody renews; -1 for never, -2 for now.
    pub(crate) fn remaining(&self, until: Instant) -> std::result::Result<i64, Short> {
        let left = self.survey(until, |protocol| protocol.remaining())?;
        let never = |ms| if ms == -1 { i64::MAX } else { ms };
        let bound = self.nodes.majority.bound(left.into_iter().map(never));
        Ok(bound.filter(|ms| *ms != i64::MAX).unwrap_or(-1))
    }

    /// Removes the lock from every node; `true` if anybody had it on any. Counts once on each, however often it is sent.
    pub(crate) fn force(&self, until: Instant) -> std::result::Result<bool, Short> {
        let home = self.nodes.home();
        let (id, keep_ms) = (home.owners.id(home.owners.draw()), home.remember_ms());
        let forced = self.survey(until, |protocol| {
            protocol.force(&keys::request(protocol.key(), &id), &keep_ms)
        })?;
        Ok(forced.contains(&1))
    }
}
