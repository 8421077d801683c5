//! The Lua scripts, ready to be sent, and the functions that read their replies.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use crate::error::{LossReason, excerpt};
pub(crate) use crate::net::request::{Request, Script};
use crate::protocol::lua;

/// Every script, packed when it is first sent.
macro_rules! packed {
    ($($name:ident = $file:literal $(after $($prelude:literal)+)?;)+) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(lua::$name));)+
    };
}

scripts!(packed);

/// A lease for scripts: whole milliseconds, rounded up; zero stays zero.
pub(crate) fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A reply that the script never gives: the key or the server is not what it should be.
#[derive(Debug)]
pub(crate) struct Unexpected(pub(crate) Value);

impl std::fmt::Display for Unexpected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unexpected reply {}", excerpt(&format!("{:?}", self.0)))
    }
}

impl std::error::Error for Unexpected {}

/// The reply of a fair acquire to a waiter that has lost its place in the queue, or has given it up.
pub(crate) const PLACE_LOST: Value = Value::Int(-3);

/// The outcome of an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// The caller has the lock.
    Taken {
        /// The first and the last of the tokens that were drawn, if the lock has tokens.
        tokens: Option<(u64, u64)>,
        /// For a reader: how long the lock would have lived without this grant; `None` if the lock was free or had no end.
        ttl_left: Option<Duration>,
    },
    /// The lock is taken.
    Busy {
        /// When to ask again at the latest, such as at the end of the holder's lease. `None` if Redis names no time: the
        /// hold never ends, a fair lock is free but somebody else is next, or (of a read-write lock) the time is not known.
        retry_after: Option<Duration>,
        /// Of a read-write lock: the waiter of the other side that goes first.
        behind: Option<String>,
    },
}

/// Reads the reply to an acquire. A grant must have tokens if `has_tokens`, and must have none otherwise.
pub(crate) fn acquired(reply: Value, has_tokens: bool) -> Result<AcquireReply, Unexpected> {
    let acquired = match &reply {
        &PLACE_LOST => None,
        Value::Nil if !has_tokens => Some(AcquireReply::Taken {
            tokens: None,
            ttl_left: None,
        }),
        Value::Int(ms) => Some(AcquireReply::Busy {
            retry_after: span(*ms),
            behind: None,
        }),
        Value::Array(parts) => match parts.as_slice() {
            [first, last] if has_tokens => number(first)
                .zip(number(last))
                .filter(|(first, last)| (1..=*last).contains(first))
                .map(|tokens| AcquireReply::Taken {
                    tokens: Some(tokens),
                    ttl_left: None,
                }),
            _ => None,
        },
        _ => None,
    };
    acquired.ok_or(Unexpected(reply))
}

/// A duration that a server gives in milliseconds; a negative number means that there is none.
fn span(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// Reads the reply to an acquire of a read-write lock.
pub(crate) fn acquired_in_turn(reply: Value) -> Result<AcquireReply, Unexpected> {
    if let Value::Array(parts) = &reply
        && let [Value::Int(taken @ 0..=1), Value::Int(ms), behind] = parts.as_slice()
        && let Some(behind) = text(behind)
    {
        let (tokens, time_left, behind) = (None, span(*ms), Some(behind.to_owned()));
        return Ok(match taken {
            0 => AcquireReply::Busy {
                retry_after: time_left,
                behind,
            },
            _ => AcquireReply::Taken {
                tokens,
                ttl_left: time_left,
            },
        });
    }
    Err(Unexpected(reply))
}

/// The outcome of an acquire of permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitsAcquired {
    /// The caller has the permits until `ends_at`, in milliseconds by the server's clock.
    Taken { ends_at: i64 },
    /// Too few permits are available. After `retry_after`, enough leases may have ended; `None` if too few ever end, or if
    /// no number is set.
    TooFew {
        retry_after: Option<Duration>,
        /// Whether the number of permits was set.
        is_set: bool,
    },
}

pub(crate) fn permits_acquired(reply: Value) -> Result<PermitsAcquired, Unexpected> {
    match &reply {
        Value::Int(ms) => Ok(PermitsAcquired::TooFew {
            retry_after: span(*ms),
            is_set: *ms != -2,
        }),
        Value::Array(taken) if matches!(taken.as_slice(), [Value::Int(_)]) => {
            integer(taken[0].clone()).map(|ends_at| PermitsAcquired::Taken { ends_at })
        }
        _ => Err(Unexpected(reply)),
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// How many subscribers a release notified; or why the hold did not exist. Forced: the lock was free. Taken over: another
/// owner had the lock, or the key holds something else. For a read hold: forced if only others read, taken over if
/// somebody writes.
pub(crate) type Released = Result<i64, LossReason>;

pub(crate) fn released(reply: &Value) -> Result<Released, Unexpected> {
    match reply {
        Value::Int(-1) => Ok(Err(LossReason::Forced)),
        Value::Int(-2) => Ok(Err(LossReason::TakenOver)),
        Value::Int(n) if *n >= 0 => Ok(Ok(*n)),
        other => Err(Unexpected(other.clone())),
    }
}

/// Whether a renewal found the hold, or why not: see [`Released`].
pub(crate) type Renewed = Result<(), LossReason>;

pub(crate) fn renewed(reply: &Value) -> Result<Renewed, Unexpected> {
    match reply {
        Value::Int(1..) => Ok(Ok(())),
        Value::Int(0) => Ok(Err(LossReason::Forced)),
        Value::Int(-1) => Ok(Err(LossReason::TakenOver)),
        other => Err(Unexpected(other.clone())),
    }
}

/// How long the lock's key had left when a read hold was renewed, if another client had shortened that to less than the
/// hold needs. Meaningless for a permit: there the reply is the moment at which the permit ends.
pub(crate) fn shortened_to(reply: &Value) -> Option<Duration> {
    match reply {
        Value::Int(ms @ 2..) => span(*ms),
        _ => None,
    }
}

/// The tokens of an adopted hold, if the lock has tokens; or why the hold was not adopted.
pub(crate) type Adopted = Result<Option<(u64, u64)>, LossReason>;

pub(crate) fn adopted(reply: Value, has_tokens: bool) -> Result<Adopted, Unexpected> {
    match reply {
        Value::Int(1) if !has_tokens => Ok(Ok(None)),
        // Why the lock is free is unknown. `Expired` is the likeliest: the ticket came too late.
        Value::Int(0) => Ok(Err(LossReason::Expired)),
        Value::Int(-1) => Ok(Err(LossReason::TakenOver)),
        Value::Array(_) => match acquired(reply, has_tokens)? {
            AcquireReply::Taken { tokens, .. } => Ok(Ok(tokens)),
            AcquireReply::Busy { .. } => unreachable!("that reply is an integer"),
        },
        other => Err(Unexpected(other)),
    }
}

/// The last token drawn; `None` without a counter.
pub(crate) fn last_token(reply: Value) -> Result<Option<u64>, Unexpected> {
    match number(&reply) {
        None if reply != Value::Nil => Err(Unexpected(reply)),
        token => Ok(token),
    }
}

/// The holder of a fenced lock.
pub(crate) struct FencedHolder {
    pub(crate) owner: String,
    /// The last token that was drawn.
    pub(crate) token: u64,
    /// Whether a thread has the lock. A hold that was detached, or that `min_hold` keeps, belongs to no thread.
    pub(crate) is_in_use: bool,
}

/// Reads the holder of a fenced lock; `None` if the lock is free.
pub(crate) fn holder(reply: Value) -> Result<Option<FencedHolder>, Unexpected> {
    if let Value::Array(parts) = &reply
        && let [owner, token, count] = parts.as_slice()
        && let (Some(owner), Some(token), Some(count)) = (text(owner), text(token), text(count))
    {
        return Ok(Some(FencedHolder {
            owner: owner.to_owned(),
            token: token.parse().unwrap_or(0),
            is_in_use: count != "0",
        }));
    }
    match reply {
        Value::Nil => Ok(None),
        other => Err(Unexpected(other)),
    }
}

/// The state of a latch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LatchState {
    Open,
    /// This many are left to count, in the round with this mark. An empty mark tells nothing about the round.
    Closed {
        count: u64,
        round: Vec<u8>,
    },
}

pub(crate) fn latch_state(reply: Value) -> Result<LatchState, Unexpected> {
    if reply == Value::Nil {
        return Ok(LatchState::Open);
    }
    if let Value::Array(parts) = &reply
        && let [count, Value::BulkString(round)] = parts.as_slice()
        && let Some(count) = text(count).and_then(|count| count.parse::<i128>().ok())
        && let Ok(count) = u64::try_from(count.max(0))
    {
        let round = round.clone();
        return Ok(match count {
            0 => LatchState::Open,
            count => LatchState::Closed { count, round },
        });
    }
    Err(Unexpected(reply))
}

pub(crate) fn integer(reply: Value) -> Result<i64, Unexpected> {
    match reply {
        Value::Int(n) => Ok(n),
        other => Err(Unexpected(other)),
    }
}

#[cfg(test)]
mod tests;
