//! The things that the watchdog renews: a hold, or the places of a client in a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use crate::error::LossReason;
use crate::hold::Hold;
use crate::hold::places::Places;
use crate::hold::schedule::{Scheduled, Times};
use crate::hold::validity::{Duty, Lease};
use crate::net::request::Request;
use crate::protocol::script;
use crate::report::report;
use crate::time;

#[derive(Clone)]
pub(crate) enum Renewable {
    Hold(Arc<Hold>),
    Places(Arc<Places>),
}

impl From<&Arc<Hold>> for Renewable {
    fn from(hold: &Arc<Hold>) -> Self {
        Self::Hold(Arc::clone(hold))
    }
}

impl From<&Arc<Places>> for Renewable {
    fn from(places: &Arc<Places>) -> Self {
        Self::Places(Arc::clone(places))
    }
}

/// The consequence of the answer to a renewal. Moments are in [`time::nanos`].
#[derive(Debug)]
pub(crate) enum Next {
    /// The hold was renewed, and is due again at this moment.
    Renewed(u64),
    /// Nothing counts as renewed, and the entry is due again at this moment. The entry is a permit whose end was changed
    /// elsewhere, or the places of a client.
    DueAgain(u64),
    Lost(LossReason),
    /// The server has rejected the renewal for now.
    Refused(RedisError),
}

impl Scheduled for Renewable {
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

    /// Parts do not count: a hold that several nodes keep counts once.
    fn counts(&self) -> bool {
        matches!(self, Self::Hold(hold) if !hold.is_part())
    }
}

impl Renewable {
    /// The lock's name, for the log.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hold(hold) => hold.entry().name(),
            Self::Places(places) => places.entry.name(),
        }
    }

    /// Whether the schedule may take this. Always true for places: `attend` finds out whether there still are any.
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Hold(hold) => hold.is_held(),
            Self::Places(_) => true,
        }
    }

    /// The duty of the watchdog at `now`.
    pub(crate) fn attend(&self, now: Instant) -> Duty {
        match self {
            Self::Hold(hold) => hold.attend(now),
            Self::Places(places) => places.attend(),
        }
    }

    /// Whether the renewal may be sent early, together with those that are due at `now`.
    pub(crate) fn may_be_early(&self, now: Instant) -> bool {
        matches!(self, Self::Hold(hold) if hold.duty(now) == Duty::Renew)
    }

    /// When this ends unless it is renewed, in [`time::nanos`]. Of several renewals, the one that ends first is sent
    /// first.
    pub(crate) fn ends(&self, now: Instant) -> u64 {
        match self {
            Self::Hold(hold) => hold.with_lease(|lease| lease.look_again(u64::MAX)),
            Self::Places(places) => time::nanos(now + places.waiter_lease),
        }
    }

    /// The earlier of two moments: `at`, and the end of the hold if it is not renewed. Both are in [`time::nanos`].
    pub(crate) fn look_again(&self, at: u64) -> u64 {
        match self {
            Self::Hold(hold) => hold.with_lease(|lease| lease.look_again(at)),
            Self::Places(_) => at,
        }
    }

    /// The request that renews the hold or the places, and the lease that it asks for (zero for places).
    pub(crate) fn request(&self) -> (Request, Duration) {
        match self {
            Self::Hold(hold) => hold.renew_request(),
            Self::Places(places) => (places.request(), Duration::ZERO),
        }
    }

    /// A renewal failed; returns the hold, and for how long it is still valid, if that has to be reported.
    pub(crate) fn record_failed(&self, now: Instant) -> Option<(&Hold, Duration)> {
        match self {
            Self::Hold(hold) if !hold.is_part() => {
                let valid_for = hold.with_lease(|lease| lease.record_renewal_failed(now));
                valid_for.map(|valid_for| (&**hold, valid_for))
            }
            _ => None,
        }
    }

    /// The meaning of the `answer` to a request for `ttl` that was sent at `sent_at`.
    pub(crate) fn answered(
        &self,
        answer: Result<Value, RedisError>,
        sent_at: Instant,
        ttl: Duration,
    ) -> Next {
        match (self, answer) {
            (Self::Hold(hold), Ok(reply)) => hold.renewal_answered(reply, sent_at, ttl),
            // The lock's key was replaced by something else, so no lock of this name is held.
            (Self::Hold(_), Err(err)) if err.code() == Some("WRONGTYPE") => {
                Next::Lost(LossReason::TakenOver)
            }
            // The key was replaced: the waiting threads find that out themselves when they ask.
            (Self::Places(places), Err(err)) if err.code() == Some("WRONGTYPE") => {
                Next::DueAgain(places.due_after(sent_at))
            }
            (Self::Places(places), Ok(reply)) => {
                Next::DueAgain(places.record_shown(reply, sent_at))
            }
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
            // The whole hold is over, so its parts are not renewed any more. The guard releases them.
            return Duty::Nothing;
        }
        let duty = self.duty(now);
        if duty == Duty::Renew {
            // Recorded so that the loss counts as unreachable, not as expired, if no renewal is confirmed in time.
            self.with_lease(Lease::record_renewal_due);
        }
        duty
    }

    /// The request that renews the hold, and the lease that it requests.
    fn renew_request(&self) -> (Request, Duration) {
        // The count of a part is that of the whole, which the thread holds.
        let whole = self.whole().and_then(|(whole, _)| whole);
        let count = whole
            .as_deref()
            .unwrap_or(self)
            .count
            .load(Ordering::Relaxed);
        let ttl = self.with_lease(|lease| lease.renewal_ttl());
        (self.renew_for(ttl, count), ttl)
    }

    fn renewal_answered(&self, reply: Value, sent_at: Instant, ttl: Duration) -> Next {
        // Has an effect for read holds only: see `Lease::due_after`.
        let shortened_to = script::shortened_to(&reply);
        // Each reply is about the hold's own number (rule 1 at `Hold`), so a late one says nothing about another hold.
        let renewed = match self.renewal(reply) {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return Next::DueAgain(time::nanos(Instant::now())),
            Err(unexpected) => {
                report!(
                    Warn,
                    "renewing `{}` failed: {unexpected}",
                    self.entry().name()
                );
                return Next::Lost(LossReason::TakenOver);
            }
        };
        // A hold that Redis no longer has although it is still valid here was forced open or taken over. After its
        // validity, it may simply have expired.
        let in_time = Instant::now() < self.valid_until();
        match renewed {
            Ok(()) => {
                self.change(|lease| {
                    lease.confirm_renewal(sent_at, ttl);
                    lease.adapt_keep_lock(shortened_to);
                });
                if let Some((Some(whole), node)) = self.whole()
                    && let Some(several) = whole.several()
                {
                    several.part_is_kept(node);
                }
                Next::Renewed(self.due_after(sent_at))
            }
            // If the holder has released the hold since the request was sent, `lose` does nothing: rule 2 at `Hold`.
            Err(why) => Next::Lost(why.or_expired(in_time)),
        }
    }
}
