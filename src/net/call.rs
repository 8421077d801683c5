//! One command on its way, and what may become of it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use redis::{RedisError, Value};

use crate::error::Error;
use crate::net::request::Request;
use crate::time::Unanswered;

/// Why a command has no reply.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The server is known to be away: there was no connection, or one that was silent for too long, or it said that it
    /// is not ready to serve; until the deadline.
    Unreachable(RedisError),
    /// The deadline came while a connection that nothing is known against owed the answer.
    Late(RedisError),
    /// The server answered with an error that will not pass by itself.
    Refused(RedisError),
    /// The caller has to stop: it was cancelled, or the client is being closed.
    Stopped,
    /// The client is closed.
    Closed,
}

impl Fault {
    pub(crate) fn into_error(self, doing: &'static str, name: &str) -> Error {
        match self {
            Self::Refused(err) if err.code() == Some("WRONGTYPE") => {
                Error::WrongType { name: name.into() }
            }
            Self::Refused(err) | Self::Unreachable(err) | Self::Late(err) => {
                Error::redis(doing, err)
            }
            Self::Stopped | Self::Closed => Error::Closed,
        }
    }
}

impl Unanswered for Fault {
    fn is_late(&self) -> bool {
        matches!(self, Self::Late(_))
    }

    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Late(_))
    }
}

/// A release that is sent and not waited for.
pub(crate) struct Deferred {
    pub(crate) request: Request,
    pub(crate) info: DeferredInfo,
}

/// What the connection has to know about a deferred release besides its bytes.
pub(crate) struct DeferredInfo {
    /// The lock's name, for the log.
    pub(crate) name: Arc<str>,
    /// After this it is pointless: by then the lease has ended the hold.
    pub(crate) useful_until: Instant,
    /// Whether it undoes an acquire of unknown outcome. Then it is normal that it finds nothing to release.
    pub(crate) undo: bool,
    /// Whether what it gives back has no lease, and is lost for good unless this arrives.
    pub(crate) for_good: bool,
}

/// Makes the release that takes back an acquire whose outcome nobody knows, if it has to be taken back.
pub(crate) trait Undo: Send + Sync {
    fn undo(&self) -> Option<Deferred>;
}

/// Learns what became of the releases that nobody waits for.
///
/// Called with the mutex of the connection held, but not with that of the call, so that what is counted here has been
/// counted by the time that anybody sees the call settled. It counts and logs, and never blocks.
pub(crate) trait OnReply: Send + Sync {
    /// The server has run it, and `replayed` says whether an earlier sending may have run as well.
    fn released(&self, release: &DeferredInfo, reply: &Value, replayed: bool);

    /// It is not sent again.
    fn given_up(&self, release: &DeferredInfo, why: &RedisError);
}

/// One sending of a command, and what takes it back if its outcome stays unknown.
pub(crate) struct Attempt {
    pub(crate) request: Request,
    pub(crate) undo: Option<Arc<dyn Undo>>,
}

/// A reply, and what its receiver may have to know about its way.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Before the first byte of the command that was answered had left.
    pub(crate) sent_at: Instant,
}

/// One command on its way.
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) deferred: Option<DeferredInfo>,
    /// Nobody may come to read that the server did not know the script.
    pub(crate) unattended: bool,
    /// Sent as the last words on a connection that is given up, behind an acquire that it may yet carry out.
    undo: Option<Arc<dyn Undo>>,
    pub(crate) state: Mutex<CallState>,
    pub(crate) changed: Condvar,
}

pub(crate) struct CallState {
    pub(crate) phase: CallPhase,
    /// Before the first byte of the latest sending left.
    pub(crate) sent_at: Instant,
    /// A script is sent with its text.
    pub(crate) by_text: bool,
    pub(crate) sendings: u32,
    /// A thread waits on `changed`, and may be made leader.
    pub(crate) following: bool,
    /// Its sequence number among the unacknowledged calls, kept across lost connections; 0 until it has one.
    pub(crate) seq: u64,
    /// Sent as one of a portion of those, of which another goes out when all are answered.
    pub(crate) in_portion: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum CallPhase {
    Idle,
    Awaiting,
    Done(Value),
    Broken(RedisError),
}

impl Call {
    fn new(
        request: Request,
        undo: Option<Arc<dyn Undo>>,
        deferred: Option<DeferredInfo>,
        unattended: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            request,
            deferred,
            unattended,
            undo,
            state: Mutex::new(CallState {
                phase: CallPhase::Idle,
                sent_at: Instant::now(),
                by_text: false,
                sendings: 0,
                following: false,
                seq: 0,
                in_portion: false,
            }),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn attempt(attempt: Attempt) -> Arc<Self> {
        Self::new(attempt.request, attempt.undo, None, false)
    }

    /// An attempt whose reply may be looked at late, or never.
    pub(crate) fn unattended(attempt: Attempt) -> Arc<Self> {
        Self::new(attempt.request, attempt.undo, None, true)
    }

    /// A question whose answer is looked at by whoever comes by.
    pub(crate) fn question(request: Request) -> Arc<Self> {
        Self::new(request, None, None, true)
    }

    /// A release that nobody waits for.
    pub(crate) fn deferred(deferred: Deferred) -> Arc<Self> {
        Self::new(deferred.request, None, Some(deferred.info), true)
    }

    /// What came of it, if that is known: the reply, which may be an error, or why there is none.
    pub(crate) fn outcome(&self) -> Option<Result<Answer, RedisError>> {
        let state = self.state.lock();
        match &state.phase {
            CallPhase::Done(value) => Some(Ok(Answer {
                value: value.clone(),
                sent_at: state.sent_at,
            })),
            CallPhase::Broken(err) => Some(Err(err.clone())),
            CallPhase::Idle | CallPhase::Awaiting => None,
        }
    }

    /// What takes it back, if it may have run and that matters.
    pub(crate) fn undo(&self) -> Option<Deferred> {
        self.undo.as_ref()?.undo()
    }

    /// Has the script sent with its text from now on; whether it was already.
    pub(crate) fn by_text_from_now(&self) -> bool {
        std::mem::replace(&mut self.state.lock().by_text, true)
    }
}
