//! The ways in which a thread waits for a lock, and all that differs between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::fair::Queued;
use crate::acquire::listening::Presence;
use crate::acquire::quorum::{self, Known};
use crate::acquire::spec::LockSpec;
use crate::acquire::wait_mode::WaitMode;
use crate::acquire::writer_preference::Reader;
use crate::hold::{Entry, Waiter};
use crate::local::lock::{Mode, Order};
use crate::local::run::Ahead;
use crate::net::subscriber::Subscription;
use crate::protocol::kind::{Place, PlaceState, Protocol};
use crate::protocol::owner::{OwnerId, OwnerNumber, Owners};
use crate::protocol::script::{self, Acquired, Request, Seen, Unexpected};
use crate::session::Session;
use crate::time::{self, BackOff};

/// How a contender waits.
pub(crate) enum Way {
    /// For the announcement of a release.
    Notified,
    /// In the queue that Redis keeps.
    Queued(Queued),
    /// Notified. Readers of other processes see that it waits by this subscription.
    Writer(Option<Subscription>),
    /// Notified, and yielding to writers.
    Reader(Reader),
    /// With pauses that grow.
    Spin(Spin),
    /// For the announcement of a release by a majority of several servers.
    Quorum(Contest),
}

/// By how much a lease has to end later than the last time to be another one, or renewed: replies can be late.
const LATER: Duration = Duration::from_millis(20);

/// Pauses that grow for as long as the same holder keeps the lock without renewing it.
///
/// They start again once somebody else has taken it: where each thread of a client asks for itself, as in Redisson, one of
/// them soon has short pauses, and a process of which one thread asks would have the lock less and less often.
pub(crate) struct Spin {
    back_off: BackOff,
    /// When the holder's lease ends, by the answer to a request; the earliest since the pauses started.
    ends_at: Option<Instant>,
}

/// What a contender for a majority of several servers knows of the others.
///
/// Those who are notified of a release ask at the same time, and each of them may be granted too few of the servers. So
/// whoever was refused looks again after a short random pause. Whoever then finds a majority taken need not: one of the
/// others has the lock, or looks again in turn, and the last of them to look finds whether it is free. Whoever has it
/// announces its release, and so does whoever was granted too few servers and does not look again.
#[derive(Default)]
pub(crate) struct Contest {
    /// How many releases were announced before the last request.
    releases: u64,
    was_refused: bool,
    /// How many times in a row nobody may have had the lock. The pauses grow with the number of those who ask.
    contested: u32,
}

/// How many short pauses there are before they grow.
const SHORT_PAUSES: u32 = 4;

/// How long they become.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Contest {
    /// What is known before a request, by the releases that were announced so far.
    fn knows(&mut self, releases: u64) -> Known {
        if std::mem::replace(&mut self.releases, releases) != releases {
            self.contested = 0;
            Known::Released
        } else if self.was_refused {
            Known::Busy
        } else {
            Known::Nothing
        }
    }

    fn is_refused(&mut self, is_contested: bool) {
        self.was_refused = true;
        self.contested = if is_contested { self.contested + 1 } else { 0 };
    }

    fn pause(&self, cap: Duration) -> Duration {
        match self.contested {
            0 => cap,
            n => Self::grown(quorum::pause(), n).min(cap),
        }
    }

    fn grown(pause: Duration, contested: u32) -> Duration {
        let times = 1 << contested.saturating_sub(SHORT_PAUSES).min(10);
        pause.saturating_mul(times).min(LONGEST_PAUSE)
    }
}

impl Spin {
    fn new() -> Self {
        Self {
            back_off: BackOff::new(),
            ends_at: None,
        }
    }

    /// Somebody has the lock until `ends_at`.
    fn was_refused(&mut self, ends_at: Instant) {
        let before = self.ends_at.unwrap_or(ends_at);
        if ends_at > before + LATER {
            self.back_off = BackOff::new();
            self.ends_at = Some(ends_at);
        } else {
            // Short leases that follow one another add up.
            self.ends_at = Some(before.min(ends_at));
        }
    }
}

impl Way {
    pub(crate) fn of(lock: &LockSpec, entry: &Entry, wait: WaitMode) -> Self {
        let kind = entry.protocol.kind();
        let session = lock.session();
        if lock.quorum.is_some() {
            Self::Quorum(Contest::default())
        } else if !kind.is_notified {
            Self::Spin(Spin::new())
        } else if kind.order == Order::Server && wait.asks_again() {
            Self::Queued(Queued::new(session))
        } else if lock.mode == Mode::Shared {
            Self::Reader(Reader::new(entry, session.waiter_lease, lock.prefer))
        } else if entry.protocol.writers().is_some() {
            Self::Writer(None)
        } else {
            Self::Notified
        }
    }

    /// Whether one server is asked, so that the first request can be sent before its reply is waited for.
    pub(crate) fn can_ask_ahead(&self) -> bool {
        !matches!(self, Self::Quorum(_))
    }

    /// Whether nobody waits if a release has notified nobody. One of a reader notifies nobody while others read, and those
    /// who wait for a spin lock or a `RedLock` may not listen, or not to this server.
    pub(crate) fn notifies_whoever_waits(&self) -> bool {
        matches!(self, Self::Notified)
    }

    /// The number in the owner id of the next request.
    pub(crate) fn next_number(&mut self, session: &Session) -> OwnerNumber {
        match self {
            Self::Queued(queued) => queued.next_number(session),
            _ => session.owners.draw(),
        }
    }

    /// The place in Redis's queue that a request of `owner` takes or keeps.
    pub(crate) fn place<'a>(
        &'a self,
        owner: &'a str,
        waiter_lease: Duration,
        served: &'a [OwnerId],
    ) -> Place<'a> {
        match self {
            Self::Queued(queued) => queued.place(waiter_lease, served),
            _ => Place {
                ticket: owner,
                keep: Duration::ZERO,
                state: PlaceState::Unknown,
                served: &[],
            },
        }
    }

    /// The places of others that a request removes.
    pub(crate) fn served(&self, owners: &Owners) -> Vec<OwnerId> {
        let served: &[u64] = match self {
            Self::Queued(queued) => &queued.served,
            _ => &[],
        };
        let id = |place: &u64| owners.id(OwnerNumber(*place));
        served.iter().map(id).collect()
    }

    /// See [`Reader::yields`].
    pub(crate) fn yields(&self) -> bool {
        matches!(self, Self::Reader(reader) if reader.yields())
    }

    /// See [`Reader::ignored_writers`].
    pub(crate) fn ignored_writers(&self, entry: &Entry) -> Option<u64> {
        match self {
            Self::Reader(reader) => reader.ignored_writers(entry),
            _ => None,
        }
    }

    /// The last request has no reply; whether it may have been executed, or still may.
    pub(crate) fn is_unanswered(&mut self, may_have_run: bool) {
        if let Self::Queued(queued) = self {
            queued.is_unanswered(may_have_run);
        }
    }

    /// Whether the reply is that the place in Redis's queue is lost: then it asks for another at once.
    pub(crate) fn has_lost_its_place(&mut self, reply: &Value) -> bool {
        match self {
            Self::Queued(queued) if queued.can_lose_its_place() && *reply == script::PLACE_LOST => {
                queued.is_answered(PlaceState::Lost);
                true
            }
            _ => false,
        }
    }

    /// Takes out of a reply who is directly ahead in Redis's queue, if it says so.
    pub(crate) fn split_ahead(&self, session: &Session, reply: &mut Value) -> Option<Ahead> {
        match self {
            Self::Queued(_) => Queued::split(session, reply),
            _ => None,
        }
    }

    /// What a reply means; of a read hold also what it says besides.
    pub(crate) fn read_reply(
        &self,
        reply: Value,
        has_tokens: bool,
    ) -> std::result::Result<(Acquired, Option<Seen>), Unexpected> {
        match self {
            Self::Reader(_) => {
                script::acquired_to_read(reply).map(|(acquired, seen)| (acquired, Some(seen)))
            }
            _ => script::acquired(reply, has_tokens).map(|acquired| (acquired, None)),
        }
    }

    /// The last request was answered; `yielded` says whether it let writers go first.
    pub(crate) fn is_answered(
        &mut self,
        entry: &Entry,
        acquired: Acquired,
        seen: Option<Seen>,
        yielded: bool,
        waiter_lease: Duration,
        sent_at: Instant,
    ) {
        match (self, seen) {
            (Self::Reader(reader), Some(seen)) => {
                reader.was_answered(entry, acquired, seen, yielded, waiter_lease);
            }
            (Self::Queued(queued), _) => {
                if let Acquired::Busy { left, .. } = acquired {
                    queued.is_refused(left);
                }
            }
            (Self::Spin(spin), _) => {
                if let Acquired::Busy {
                    left: Some(left), ..
                } = acquired
                {
                    spin.was_refused(sent_at + left);
                }
            }
            _ => {}
        }
    }

    /// Gives up the place in Redis's queue, unless the grant has certainly removed it.
    pub(crate) fn leave(&self, protocol: &dyn Protocol, is_granted: bool) -> Option<Request> {
        match self {
            Self::Queued(queued) if queued.may_have_place(is_granted) => {
                protocol.leave(&queued.ticket)
            }
            _ => None,
        }
    }

    /// Has readers see that the thread of `waiter` waits, if it is to write.
    pub(crate) fn declare_intent(
        &mut self,
        protocol: &dyn Protocol,
        session: &Session,
        waiter: &Arc<Waiter>,
    ) {
        if let Self::Writer(intent) = self {
            let presence = Arc::new(Presence::of(waiter));
            let subscribe = |writers| session.subscriber.subscribe(writers, &presence);
            *intent = protocol.writers().map(subscribe);
        }
    }

    /// Whether readers look for it at another node of the cluster by now.
    #[cfg(feature = "cluster")]
    pub(crate) fn intent_has_moved(&self) -> bool {
        matches!(self, Self::Writer(Some(intent)) if intent.has_moved())
    }

    /// Readers need not yield to it any more.
    pub(crate) fn withdraw_intent(&mut self) {
        if let Self::Writer(intent) = self {
            drop(intent.take());
        }
    }

    /// Where releases are announced to it, of the lock with the index `listen_on` if there are several.
    pub(crate) fn channel(&self, protocol: &dyn Protocol, listen_on: usize) -> Option<Arc<str>> {
        match self {
            Self::Notified | Self::Writer(_) | Self::Reader(_) => {
                Some(protocol.channel_at(listen_on))
            }
            Self::Queued(queued) => Some(protocol.channel_of(&queued.ticket)),
            Self::Spin(_) | Self::Quorum(_) => None,
        }
    }

    /// The same, if it does nothing but wait there.
    pub(crate) fn common_channel(&self, protocol: &dyn Protocol) -> Option<Arc<str>> {
        let waits = matches!(self, Self::Notified | Self::Writer(_));
        waits.then(|| self.channel(protocol, 0)).flatten()
    }

    /// Whether its channel is also that of others, whom a release counts. Nobody counts those of several servers.
    pub(crate) fn shares_its_channel(&self) -> bool {
        !matches!(self, Self::Queued(_) | Self::Quorum(_))
    }

    /// What a contender for a majority knows before a request, by the releases that were announced so far.
    pub(crate) fn knows(&mut self, releases: u64) -> Known {
        match self {
            Self::Quorum(contest) => contest.knows(releases),
            _ => Known::Nothing,
        }
    }

    /// Somebody else has it; see [`Busy::is_contested`](crate::acquire::Busy::is_contested).
    pub(crate) fn is_refused(&mut self, is_contested: bool) {
        if let Self::Quorum(contest) = self {
            contest.is_refused(is_contested);
        }
    }

    /// The longest pause that may follow the next request, if nobody may have the lock then.
    pub(crate) fn longest_pause(&self) -> Duration {
        match self {
            Self::Quorum(contest) => Contest::grown(quorum::PAUSE.1, contest.contested + 1),
            _ => LONGEST_PAUSE,
        }
    }

    /// How long to park: `cap` at most where releases are announced, less if nobody may have it. `listens`: its subscription is confirmed.
    pub(crate) fn pause(
        &mut self,
        cap: Duration,
        waiter_lease: Duration,
        listens: bool,
    ) -> Duration {
        match self {
            Self::Notified | Self::Writer(_) | Self::Reader(_) => time::jittered(cap),
            Self::Queued(queued) => time::jittered(queued.pause(cap, waiter_lease, listens)),
            Self::Spin(spin) => time::jittered(spin.back_off.next()),
            Self::Quorum(contest) => contest.pause(time::jittered(cap)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_start_again_when_somebody_else_takes_the_lock() {
        let (mut spin, end) = (Spin::new(), Instant::now() + Duration::from_secs(30));
        let mut pauses = |ends_at: Instant| {
            spin.was_refused(ends_at);
            spin.back_off.next()
        };
        let first = pauses(end);
        assert!(pauses(end) > first && pauses(end + LATER) > first);
        let another = end + 2 * LATER + Duration::from_nanos(1);
        assert_eq!(pauses(another), first);
        assert!(pauses(another) > first);
        // Also in small steps.
        let half = LATER * 3 / 4;
        assert!(pauses(another + half) > first);
        assert_eq!(pauses(another + 2 * half), first);
    }
}
