//! What the watchdog renews, and whose end it reports: a hold, or the places of a client in a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use redis::{RedisError, Value};

use crate::error::LossReason;
use crate::hold::Hold;
use crate::hold::places::Places;
use crate::hold::schedule::{Scheduled, Times};
use crate::hold::validity::Duty;
use crate::net::request::Request;
use crate::protocol::script;
use crate::report::report;
use crate::time;

#[derive(Clone)]
pub(crate) enum Renewal {
    Hold(Arc<Hold>),
    Places(Arc<Places>),
}

impl From<&Arc<Hold>> for Renewal {
    fn from(hold: &Arc<Hold>) -> Self {
        Self::Hold(Arc::clone(hold))
    }
}

impl From<&Arc<Places>> for Renewal {
    fn from(places: &Arc<Places>) -> Self {
        Self::Places(Arc::clone(places))
    }
}

/// What follows from the answer to a renewal. Moments are `time::nanos`.
#[derive(Debug)]
pub(crate) enum Next {
    /// It was renewed, and is due again then.
    Renewed(u64),
    /// It is due again then.
    Look(u64),
    Lost(LossReason),
    /// It was refused for now.
    Refused(RedisError),
}

impl Scheduled for Renewal {
    fn number(&self) -> u64 {
        match self {
            Self::Hold(hold) => hold.number.0,
            Self::Places(places) => places.number,
        }
    }

    fn times(&self) -> &Times {
        match self {
            Self::Hold(hold) => &hold.times,
            Self::Places(places) => &places.times,
        }
    }

    /// A hold that several nodes keep counts once.
    fn counts(&self) -> bool {
        matches!(self, Self::Hold(hold) if !hold.is_part())
    }
}

impl Renewal {
    /// The lock's name, for the log.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hold(hold) => hold.entry().name(),
            Self::Places(places) => places.entry.name(),
        }
    }

    /// Whether it still needs the watchdog.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Hold(hold) => hold.is_held(),
            Self::Places(_) => true,
        }
    }

    /// What the watchdog has to do about it at `now`.
    pub(crate) fn attend(&self, now: Instant) -> Duty {
        match self {
            Self::Hold(hold) => hold.attend(now),
            Self::Places(places) => places.attend(),
        }
    }

    /// Whether its renewal may be sent early, together with those that are due at `now`.
    pub(crate) fn may_be_early(&self, now: Instant) -> bool {
        matches!(self, Self::Hold(hold) if hold.duty(now) == Duty::Renew)
    }

    /// When it ends unless it is renewed, of `time::nanos`. What ends first is renewed first.
    pub(crate) fn ends(&self, now: Instant) -> u64 {
        match self {
            Self::Hold(hold) => hold.look_again(u64::MAX),
            Self::Places(places) => time::nanos(now + places.waiter_lease),
        }
    }

    /// When it is due again, if no reply has come by `at`; of `time::nanos`.
    pub(crate) fn look_again(&self, at: Instant) -> u64 {
        let at = time::nanos(at);
        match self {
            Self::Hold(hold) => hold.look_again(at),
            Self::Places(_) => at,
        }
    }

    /// The request that renews it.
    pub(crate) fn request(&self) -> Request {
        match self {
            Self::Hold(hold) => hold.renew_request(),
            Self::Places(places) => places.request(),
        }
    }

    /// What the `answer` to a request sent at `sent_at` means.
    pub(crate) fn answered(&self, answer: Result<Value, RedisError>, sent_at: Instant) -> Next {
        match (self, answer) {
            (Self::Hold(hold), Ok(reply)) => hold.renewal_answered(reply, sent_at),
            (Self::Hold(_), Err(err)) if err.code() == Some("WRONGTYPE") => {
                Next::Lost(LossReason::TakenOver)
            }
            (Self::Places(places), Err(err)) if err.code() == Some("WRONGTYPE") => {
                Next::Look(places.due_after(sent_at))
            }
            (Self::Places(places), Ok(reply)) => Next::Look(places.shown(reply, sent_at)),
            (_, Err(err)) => Next::Refused(err),
        }
    }
}

impl Hold {
    fn attend(&self, now: Instant) -> Duty {
        if self
            .whole()
            .is_some_and(|(whole, _)| !whole.is_some_and(|whole| whole.is_held()))
        {
            return Duty::Nothing;
        }
        let duty = self.duty(now);
        if duty == Duty::Renew {
            // If it is not confirmed in time, the hold is lost as unreachable.
            self.lease.lock().record_renewal_due();
        }
        duty
    }

    /// When it is due again, if no reply has come by `at`.
    fn look_again(&self, at: u64) -> u64 {
        self.lease.lock().look_again(at)
    }

    /// The request that renews it.
    fn renew_request(&self) -> Request {
        let whole = self.whole().and_then(|(whole, _)| whole);
        let count = whole
            .as_deref()
            .unwrap_or(self)
            .count
            .load(Ordering::Relaxed);
        self.renew_for(self.begin_renewal(), count)
    }

    fn renewal_answered(&self, reply: Value, sent_at: Instant) -> Next {
        let shortened_to = script::shortened_to(&reply);
        let renewed = match self.renewal(reply) {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return Next::Look(time::nanos(Instant::now())),
            Err(unexpected) => {
                report!(Warn, "renewing `{}`: {unexpected}", self.entry().name());
                return Next::Lost(LossReason::TakenOver);
            }
        };
        let in_time = Instant::now() < self.valid_until();
        match renewed.loss_if(in_time) {
            None => {
                self.change(|lease| {
                    lease.confirm_renewal(sent_at);
                    lease.adapt_keep_lock(shortened_to);
                });
                if let Some((Some(whole), node)) = self.whole()
                    && let Some(several) = whole.several()
                {
                    several.part_is_kept(node);
                }
                Next::Renewed(self.due_after(sent_at))
            }
            Some(why) => Next::Lost(why),
        }
    }
}
