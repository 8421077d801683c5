//! A command, from queueing to its reply.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::error::Error;
use crate::net::request::Request;
use crate::net::socket;
use crate::net::text::Text;
use crate::time;
use crate::verdict::{RequestFacts, RequestKind};

/// Why a command has no usable reply.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Until the deadline there was no connection, or only a silent one, or the server was not ready. For a deferred call
    /// also: the reply did not come in time, though the connection may work.
    Unreachable(RedisError),
    /// The deadline passed before the reply came, although the server may be healthy (see `Connection::unreachable`).
    Late(RedisError),
    /// An error that will not pass by itself: an answer of the server, or the reason why no connection can be made, such as
    /// an invalid certificate. For a deferred call also: the call has become useless, and was given up.
    Refused(RedisError),
    /// The command may have run, and no answer says whether it has. Occurs only for commands without an undo: guarded
    /// commands, which are not sent again once they may have run, and `applied_once` requests of which no repetition
    /// succeeded in time.
    Unknown(RedisError),
    /// The caller has to stop: it was cancelled, or the client is being closed.
    Stopped,
    /// The client is closed.
    Closed,
}

impl Fault {
    /// This fault, for a command that was sent and may have run.
    pub(crate) fn into_unknown(self) -> Self {
        Self::Unknown(match self {
            Self::Unreachable(err) | Self::Late(err) | Self::Refused(err) | Self::Unknown(err) => {
                err
            }
            Self::Stopped | Self::Closed => {
                socket::timed_out("the client was closed before the reply arrived")
            }
        })
    }

    pub(crate) fn into_error(self, doing: &'static str, name: &str) -> Error {
        match self {
            Self::Refused(err) | Self::Unreachable(err) | Self::Late(err) => {
                let wrong_type = Error::wrong_type(&err, name);
                wrong_type.unwrap_or_else(|| Error::redis(doing, err).about(name))
            }
            Self::Unknown(err) => Error::outcome_unknown(doing, err).about(name),
            Self::Stopped | Self::Closed => Error::Closed,
        }
    }

    /// Whether the fault is [`Late`](Self::Late): the caller's time was perhaps merely too short.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::Late(_))
    }

    /// Whether a reply might have come with more time.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Late(_))
    }
}

/// A release or an undo that is sent again until it is answered, whether a thread waits for it or not.
pub(crate) struct Deferred {
    pub(crate) request: Request,
    pub(crate) info: DeferredInfo,
}

impl Deferred {
    /// See [`DeferredInfo::has_no_lease`].
    pub(crate) fn without_lease(mut self) -> Self {
        self.info.has_no_lease = true;
        self
    }
}

/// The length of the longest id of an owner: `<uuid>:<number>`.
pub(crate) const LONGEST_OWNER: usize = 36 + 1 + 20;

/// The facts about a deferred release that the connection needs besides the bytes.
pub(crate) struct DeferredInfo {
    /// The lock's name, for the log.
    pub(crate) name: Arc<str>,
    /// The owner of the released hold, for the log; empty if there is no hold.
    pub(crate) owner: Text<LONGEST_OWNER>,
    /// When the release is given up: the lease is over by then, or Redis may have forgotten that it has already run the
    /// release.
    pub(crate) useful_until: Instant,
    /// The end of the hold's validity; `None` if the hold was no longer valid when it was released. If the reply arrives
    /// before this moment and says that the hold was gone, the hold was lost before its release (unless the release was
    /// sent twice). A later reply proves no loss, since the lease may have ended while the release was under way.
    pub(crate) valid_until: Option<Instant>,
    /// Whether the release may find nothing: it undoes an acquire, releases a hold that is over by now, or releases one
    /// node's part of a quorum's hold. While a release with this flag has no reply, `Pipeline::backlog_end` may hold back
    /// new attempts. `Ledger::forget` counts such a release as an undo unless `has_no_lease` is set.
    pub(crate) undo: bool,
    /// Whether what is released has no lease, and so stays taken until the release arrives.
    pub(crate) has_no_lease: bool,
}

/// Makes the request that undoes an acquire of unknown outcome.
pub(crate) trait Undo: Send + Sync {
    fn undo(&self) -> Deferred;
}

/// Notified of the outcome of deferred releases.
///
/// Called with the mutex of the connection held, except for useless entries of the ledger, and never with the call's mutex
/// held. After a reply, this is called before the call is settled, so a thread that sees the call settled also sees what was
/// counted. An implementation counts, logs and queues reports, and never blocks. While a thread leads, its log records are
/// held back, so that logging does not run the user's logger here.
pub(crate) trait OnReply: Send + Sync {
    /// The server has executed the release. `replayed`: an earlier sending may have been executed as well.
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool);

    /// The release will not be sent again.
    fn given_up(&self, release: &DeferredInfo, why: &RedisError);
}

/// A command to be sent once, and what undoes it if its outcome is unknown.
pub(crate) struct Attempt {
    pub(crate) request: Request,
    pub(crate) undo: Option<Arc<dyn Undo>>,
}

impl Attempt {
    pub(crate) fn without_undo(request: Request) -> Self {
        let undo = None;
        Self { request, undo }
    }
}

/// A reply, and when its command was sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Taken before the first byte of the command was written.
    pub(crate) sent_at: Instant,
    /// How many replicas have acknowledged the write, and how many had to, if the request asked for that.
    pub(crate) acknowledged: Option<(u32, u32)>,
}

/// A command and its progress.
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) deferred: Option<DeferredInfo>,
    /// Perhaps no thread reads the reply in time to react to `NOSCRIPT`. So over each connection, the first such call of
    /// each script carries the script's text.
    pub(crate) unattended: bool,
    /// Makes the undo of an acquire. The undo is sent if the caller gives up or the connection is dropped, since the
    /// server may still execute the acquire.
    undo: Option<Arc<dyn Undo>>,
    /// The node to which the call was last sent, or will be sent. Changed by the thread that queues the call on a
    /// connection or keeps it in the ledger, and after `ASK` by the thread that handles this answer. An atomic, so that a
    /// thread finds the connection of a call without locking any mutex.
    node: AtomicUsize,
    /// Only for a release: this process is subscribed to the channel of the lock, so it is one of the receivers that the
    /// reply counts.
    pub(crate) is_heard_by_us: bool,
    pub(crate) state: CallProgress,
    changed: Condvar,
}

/// The state of a call. The mutex and the condition variable are the standard library's: `parking_lot` keeps the waiting
/// threads of the whole process in one table, which every reply would use to wake a thread (bench: 64 threads on 64
/// locks).
pub(crate) struct CallProgress(Mutex<CallState>);

impl CallProgress {
    pub(crate) fn lock(&self) -> MutexGuard<'_, CallState> {
        // No code panics halfway through a change of the state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

#[derive(Clone)]
pub(crate) struct CallState {
    pub(crate) phase: CallPhase,
    /// Taken before the first byte of the latest sending was written; before the first sending, a moment in the distant
    /// past.
    pub(crate) sent_at: Instant,
    /// Whether the script is sent by its text.
    pub(crate) by_text: bool,
    pub(crate) sendings: u32,
    followers: Followers,
    /// The attempt has waited for the backlog once: see `Pipeline::backlog_end`.
    pub(crate) has_waited: bool,
    /// The position in the [ledger](crate::net::ledger); 0 until there is one.
    pub(crate) seq: u64,
    /// Sent behind `ASKING`: the slot does not belong to the node yet.
    pub(crate) asking: bool,
    /// How many replies precede the one that counts: 1 behind `ASKING`.
    pub(crate) replies_before: u8,
    /// The reply that counts, while the reply to `WAIT` is due.
    pub(crate) own_reply: Option<Value>,
    /// The reply to `WAIT`: how many replicas have the write.
    pub(crate) acknowledged: Option<u32>,
    /// How often in a row a node has redirected the call.
    pub(crate) redirected: u8,
}

/// The threads that [follow](Call::follow) a call. Threads that followed an earlier sending are not counted: a connection
/// appoints its next leader among the counted threads, and an earlier follower might never look at this connection.
#[derive(Clone, Copy, Default)]
struct Followers {
    sending: u64,
    count: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum CallPhase {
    /// On no connection; with the error if the connection was lost, or the server rejected the call for now.
    Idle(Option<RedisError>),
    Awaiting,
    Done(Value),
    Broken(RedisError),
}

impl CallState {
    /// A connection queues the call. Threads that followed an earlier sending were woken, or are about to be, by the
    /// thread that ended that sending. This connection must not appoint them, so the count begins again at 0.
    pub(crate) fn begin_sending(&mut self) {
        self.phase = CallPhase::Awaiting;
        self.sendings += 1;
        self.followers.sending += 1;
        self.followers.count = 0;
    }

    /// Whether a thread waits to be woken.
    pub(crate) fn is_followed(&self) -> bool {
        self.followers.count > 0
    }

    #[cfg(test)]
    pub(crate) fn followed(&self) -> (u64, u32) {
        (self.followers.sending, self.followers.count)
    }

    /// A thread follows the call. Returns which sending it follows.
    pub(crate) fn begin_following(&mut self) -> u64 {
        self.followers.count += 1;
        self.followers.sending
    }

    /// A thread no longer follows the given sending.
    pub(crate) fn end_following(&mut self, sending: u64) {
        if self.followers.sending == sending {
            self.followers.count -= 1;
        }
    }

    /// Takes one of the replies that are due. After the last, returns the reply that counts.
    pub(crate) fn take_reply(&mut self, value: Value, awaits_replicas: bool) -> Option<Value> {
        if self.replies_before > 0 {
            // This reply does not matter: if `ASKING` has failed, the command itself is rejected as well.
            self.replies_before -= 1;
            return None;
        }
        if !awaits_replicas {
            return Some(value);
        }
        if self.own_reply.is_none() {
            self.own_reply = Some(value);
            return None;
        }
        // If the server rejects `WAIT`, nothing counts as acknowledged.
        self.acknowledged = Some(redis::from_redis_value(value).unwrap_or(0));
        self.own_reply.take()
    }
}

impl Call {
    #[inline]
    fn new(
        request: Request,
        undo: Option<Arc<dyn Undo>>,
        deferred: Option<DeferredInfo>,
        unattended: bool,
        is_heard_by_us: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            request,
            deferred,
            unattended,
            undo,
            node: AtomicUsize::new(0),
            is_heard_by_us,
            state: CallProgress(Mutex::new(CallState {
                phase: CallPhase::Idle(None),
                sent_at: time::instant(0),
                by_text: false,
                sendings: 0,
                followers: Followers::default(),
                has_waited: false,
                seq: 0,
                asking: false,
                replies_before: 0,
                own_reply: None,
                acknowledged: None,
                redirected: 0,
            })),
            changed: Condvar::new(),
        })
    }

    /// Parks until another thread [wakes](Self::wake) the followers, for at most `most`; may return early for no reason. A wait
    /// without a limit costs the system less (bench: 64 threads on 64 locks).
    ///
    /// The call's mutex stays locked from when this thread is counted as a follower until it is parked. So a thread that
    /// changes the call under that mutex either finds the follower, or the follower finds the change.
    pub(crate) fn follow<'a>(
        &self,
        mut state: MutexGuard<'a, CallState>,
        most: Option<Duration>,
    ) -> MutexGuard<'a, CallState> {
        let sending = state.begin_following();
        let mut state = match most {
            None => (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.changed.wait_timeout(state, most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.end_following(sending);
        state
    }

    /// Wakes the threads that follow the call. If the caller has changed the call, it did so under the call's mutex.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// The node to which the call was last sent, or will be sent.
    pub(crate) fn node(&self) -> usize {
        self.node.load(Ordering::Acquire)
    }

    pub(crate) fn set_node(&self, node: usize) {
        self.node.store(node, Ordering::Release);
    }

    #[inline]
    pub(crate) fn attempt(attempt: Attempt) -> Arc<Self> {
        Self::new(attempt.request, attempt.undo, None, false, false)
    }

    /// An attempt whose reply may be read late, or never.
    pub(crate) fn unattended(attempt: Attempt) -> Arc<Self> {
        Self::new(attempt.request, attempt.undo, None, true, false)
    }

    /// A query, which leaves nothing to be undone.
    pub(crate) fn question(request: Request) -> Arc<Self> {
        Self::new(request, None, None, false, false)
    }

    /// A release or an undo that nobody has to wait for.
    #[inline]
    pub(crate) fn deferred(deferred: Deferred) -> Arc<Self> {
        Self::release(deferred, false)
    }

    /// A release that nobody has to wait for, and that announces that a lock is free.
    #[inline]
    pub(crate) fn release(deferred: Deferred, is_heard_by_us: bool) -> Arc<Self> {
        let info = Some(deferred.info);
        Self::new(deferred.request, None, info, true, is_heard_by_us)
    }

    /// How many replicas have acknowledged the write, and how many had to, if the request asked for that.
    pub(crate) fn acknowledged(&self) -> Option<(u32, u32)> {
        self.request.acknowledgements?;
        self.acknowledged_to(&self.state.lock())
    }

    fn acknowledged_to(&self, state: &CallState) -> Option<(u32, u32)> {
        let wanted = self.request.acknowledgements?;
        Some((state.acknowledged.unwrap_or(0), wanted.needed))
    }

    /// The outcome of the call, once known: the reply, which may be an error, or why there is none.
    pub(crate) fn outcome(&self) -> Option<Result<Answer, RedisError>> {
        let state = self.state.lock();
        match &state.phase {
            CallPhase::Done(value) => Some(Ok(Answer {
                value: value.clone(),
                sent_at: state.sent_at,
                acknowledged: self.acknowledged_to(&state),
            })),
            CallPhase::Broken(err) => Some(Err(err.clone())),
            CallPhase::Idle(_) | CallPhase::Awaiting => None,
        }
    }

    /// Whether the reply has come and `is_like_that` holds for it.
    pub(crate) fn has_reply(&self, is_like_that: impl FnOnce(&Value) -> bool) -> bool {
        match &self.state.lock().phase {
            CallPhase::Done(reply) => is_like_that(reply),
            _ => false,
        }
    }

    /// Whether the call is an attempt that may have to be undone, and has not waited for the backlog of others.
    pub(crate) fn has_to_wait(&self) -> bool {
        self.undo.is_some() && !self.state.lock().has_waited
    }

    /// The attempt has waited for the backlog. From now on it is sent, however long the backlog is.
    pub(crate) fn record_waited(&self) {
        self.state.lock().has_waited = true;
    }

    /// The undo of the call; `None` if the call is not undone, even if it was executed.
    pub(crate) fn undo(&self) -> Option<Deferred> {
        Some(self.undo.as_ref()?.undo())
    }

    /// Whether a server may have executed the call, or may still do so.
    pub(crate) fn was_sent(&self) -> bool {
        self.state.lock().sendings > 0
    }

    /// The facts on which the meaning of an error reply depends.
    pub(crate) fn asked(&self, kind: RequestKind, is_clustered: bool) -> RequestFacts {
        let state = self.state.lock();
        RequestFacts {
            kind,
            by_text: state.by_text,
            redirected: state.redirected,
            is_clustered,
        }
    }

    /// The server has rejected the call before it ran, so the last sending does not count.
    pub(crate) fn record_not_run(&self) {
        self.state.lock().sendings -= 1;
    }

    /// As [`record_not_run`](Self::record_not_run), and the call is on no connection any more.
    pub(crate) fn discount_sending(&self, why: Option<RedisError>) {
        self.record_not_run();
        self.state.lock().phase = CallPhase::Idle(why);
    }

    /// Sends the script by its text from now on.
    pub(crate) fn send_text(&self) {
        self.state.lock().by_text = true;
    }

    /// A node has redirected the call: to the node `asking`, behind `ASKING`, or with `None` to the master of its slot.
    pub(crate) fn redirect(&self, asking: Option<usize>) {
        let mut state = self.state.lock();
        state.redirected += 1;
        state.asking = asking.is_some();
        if let Some(node) = asking {
            self.set_node(node);
        }
    }

    /// The call pauses before it is sent again, to the master of its slot.
    pub(crate) fn reset_redirections(&self) {
        let mut state = self.state.lock();
        (state.redirected, state.asking) = (0, false);
    }
}
