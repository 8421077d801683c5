//! How long a hold is certainly kept by Redis, and what the watchdog has to do at which time. Pure: no I/O, no clock.
//!
//! A hold is certain for its lease, less a margin, counted from before the last confirmed request was sent:
//!
//! ```text
//!   sent_at                        a third of the lease              until
//!     ├──────────────────────────────────┼─────────────────────────────┼─ margin ─┤ the lease ends in Redis
//!     certain ────────────────────────── renewal is due ───────────────┘ lost unless confirmed
//! ```

use std::time::{Duration, Instant};

use crate::error::LossReason;
use crate::local::lock::{LeasePolicy, Mode};
use crate::time;

/// The longest pause between renewals of a read hold. They extend the hold and also the key that all readers of the lock
/// share. Every 10 s, a Redisson reader sets that key's time to live to 30 s, even if it was longer. If that reader then
/// dies, the key ends 30 s after the reader last set its time, unless a renewal of ours comes before. With other settings
/// of Redisson the time may be shorter than 30 s; once a renewal finds that, the next renewals come sooner
/// ([`Lease::adapt_keep_lock`]).
const KEEP_LOCK: Duration = Duration::from_secs(10);

/// The value for "no such moment" and "no such limit".
const NEVER: u64 = u64::MAX;

/// The watchdog's duty towards a hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    Nothing,
    /// The watchdog waits until this moment.
    Wait(u64),
    Renew,
    Lose(LossReason),
}

/// The lease of one hold. Moments are in [`time::nanos`] and spans in nanoseconds, to keep the struct small: every hold has
/// one.
///
/// | what has happened | how `until` changes |
/// | --- | --- |
/// | `grant`, `confirm_renewal`, `prolong`: Redis has confirmed a lease | never earlier |
/// | `announce_fixed`: a lease is about to be requested that may be shorter | never later |
/// | `replace`: the announced lease is confirmed; `set_certain_until`: the parts of the hold have changed | either way |
/// | `record_request`, `set_policy`, `record_renewal_due`: requests, and what they ask for | not at all |
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    /// The hold is certain until then; zero before it is granted.
    until: u64,
    /// The lease that a renewal asks for.
    ttl: u64,
    /// The longest lease ever requested. If Redis has not executed the latest request, it may still keep a longer lease.
    longest: u64,
    max_hold: u64,
    max_until: u64,
    /// How soon the renewal of a read hold is due again, in microseconds: see [`KEEP_LOCK`].
    keep_lock_us: u32,
    is_renewed: bool,
    /// The hold has a part at each of several servers. The watchdogs of these servers' clients renew the parts, and
    /// report when one ends.
    has_parts: bool,
    /// The state of renewals since the last confirmed one.
    renewal: RenewalProgress,
}

/// The state of renewals since the last confirmed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenewalProgress {
    Nothing,
    /// A renewal is due.
    Due,
    /// A renewal has failed. The first failure was reported, unless the lease is fixed or the hold was no longer certain.
    Failed,
}

/// Until when a lease of `lease` nanoseconds, requested at `sent_at`, certainly lasts. A hundredth of the lease and 2 ms
/// are subtracted, since clocks run at different speeds.
///
/// Source: the drift allowance of the Redlock description in the Redis documentation.
fn end_of(sent_at: Instant, lease: u64) -> u64 {
    let margin = lease / 100 + 2_000_000;
    time::nanos(sent_at).saturating_add(lease.saturating_sub(margin))
}

fn span(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(NEVER)
}

fn max_hold_of(policy: LeasePolicy) -> u64 {
    match policy {
        LeasePolicy::Renewed {
            max_hold: Some(max),
        } => span(max),
        _ => NEVER,
    }
}

impl Lease {
    /// The lease of a hold that is about to be requested.
    pub(crate) fn new(policy: LeasePolicy, ttl: Duration) -> Self {
        Self {
            until: 0,
            ttl: span(ttl),
            longest: span(ttl),
            max_hold: max_hold_of(policy),
            max_until: NEVER,
            keep_lock_us: micros(KEEP_LOCK),
            is_renewed: matches!(policy, LeasePolicy::Renewed { .. }),
            has_parts: false,
            renewal: RenewalProgress::Nothing,
        }
    }

    /// The hold is kept in parts, which are renewed and lost separately.
    pub(crate) fn set_has_parts(&mut self) {
        self.has_parts = true;
    }

    /// Until when the hold is certain.
    pub(crate) fn until(&self) -> u64 {
        self.until
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl)
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest)
    }

    /// Changes the lease that a renewal asks for, and records the request.
    fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = span(ttl);
        self.record_request(ttl);
    }

    /// The policy with which the hold was last locked.
    pub(crate) fn policy(&self) -> LeasePolicy {
        if self.is_renewed {
            LeasePolicy::Renewed {
                max_hold: self
                    .is_limited()
                    .then(|| Duration::from_nanos(self.max_hold)),
            }
        } else {
            LeasePolicy::Fixed(self.ttl())
        }
    }

    /// The lease that a renewal requests. A read hold with a fixed lease is renewed only so that the lock's shared key
    /// lives as long as the hold. A renewal never shortens a hold. So this renewal requests the shortest lease, 1 ms: the
    /// hold keeps its end, and the key gets at least the time that the hold has left.
    pub(crate) fn renewal_ttl(&self) -> Duration {
        if self.is_renewed {
            self.ttl()
        } else {
            Duration::from_millis(1)
        }
    }

    /// Redis has granted the hold to an acquire whose first byte was sent after `sent_at`.
    pub(crate) fn grant(&mut self, sent_at: Instant, now: Instant) {
        self.limit(now);
        self.confirm(sent_at, self.ttl);
    }

    /// Whether the hold has a `max_hold`.
    pub(crate) fn is_limited(&self) -> bool {
        self.max_hold != NEVER
    }

    /// The hold ends `max_hold` from now, if it has one.
    fn limit(&mut self, now: Instant) {
        self.max_until = match self.max_hold {
            NEVER => NEVER,
            max => time::nanos(now).saturating_add(max),
        };
    }

    /// Redis has confirmed the hold for `ttl` from `sent_at` on. The validity never becomes shorter.
    pub(crate) fn prolong(&mut self, sent_at: Instant, ttl: Duration) {
        self.confirm(sent_at, span(ttl));
    }

    fn confirm(&mut self, sent_at: Instant, ttl: u64) {
        self.set_until(end_of(sent_at, ttl).max(self.until));
    }

    /// Redis has confirmed a renewal that requested `ttl` and was sent at `sent_at`. Since the renewal was built, another
    /// request may have changed the lease. Redis may have executed the renewal or that other request last, so the shorter
    /// of the two leases counts.
    pub(crate) fn confirm_renewal(&mut self, sent_at: Instant, ttl: Duration) {
        if self.is_renewed {
            self.confirm(sent_at, span(ttl).min(self.ttl));
            // The end stays if an earlier, longer lease ends later; the renewal is confirmed nevertheless.
            self.renewal = RenewalProgress::Nothing;
        }
    }

    fn set_until(&mut self, until: u64) {
        if until > self.until {
            self.renewal = RenewalProgress::Nothing;
        }
        self.until = until;
    }

    /// A majority of servers certainly keeps the hold until `until`, which may be earlier than the end known so far.
    pub(crate) fn set_certain_until(&mut self, until: Instant) {
        self.set_until(time::nanos(until));
    }

    /// From now on the hold has another lease, and is renewed with it or ends with it.
    pub(crate) fn set_policy(&mut self, policy: LeasePolicy, ttl: Duration, now: Instant) {
        self.set_ttl(ttl);
        self.is_renewed = matches!(policy, LeasePolicy::Renewed { .. });
        self.max_hold = max_hold_of(policy);
        self.limit(now);
    }

    /// A request with this lease is about to be sent, and Redis may execute it even if no reply comes.
    pub(crate) fn record_request(&mut self, ttl: Duration) {
        self.longest = self.longest.max(span(ttl));
    }

    /// A fixed lease is about to be requested instead of the present one. From now on the hold is not renewed. Redis
    /// may execute the request or not, so the hold is certain until the earlier of both ends.
    pub(crate) fn announce_fixed(&mut self, asked_at: Instant, ttl: Duration) {
        self.set_ttl(ttl);
        self.is_renewed = false;
        (self.max_hold, self.max_until) = (NEVER, NEVER);
        self.until = self.until.min(end_of(asked_at, self.ttl));
    }

    /// Redis has confirmed a lease requested at `sent_at`. `ttl` is that lease, or a shorter one that a request without an
    /// answer may still set.
    pub(crate) fn replace(&mut self, sent_at: Instant, ttl: Duration) {
        self.set_until(end_of(sent_at, span(ttl)));
    }

    /// A renewal is due. Unless a renewal is confirmed in time, the hold is lost as unreachable.
    pub(crate) fn record_renewal_due(&mut self) {
        if self.renewal == RenewalProgress::Nothing {
            self.renewal = RenewalProgress::Due;
        }
    }

    /// A renewal failed. Returns for how long the hold is still certain, for the first failure since a confirmed renewal;
    /// `None` after an earlier failure, for a fixed lease, and if the hold is no longer certain.
    pub(crate) fn record_renewal_failed(&mut self, now: Instant) -> Option<Duration> {
        let nanos_left = self.until.saturating_sub(time::nanos(now));
        let is_first = self.is_renewed && self.renewal != RenewalProgress::Failed && nanos_left > 0;
        self.renewal = RenewalProgress::Failed;
        is_first.then(|| Duration::from_nanos(nanos_left))
    }

    /// How long ago the last confirmed request was sent, if a renewal is due. The moment of that request is not stored.
    /// But `until` is that moment plus a span that depends only on the lease, and `end_of(now, ttl)` is `now` plus the
    /// same span. So their difference is the time since the request. (After a change of the lease this is only about
    /// right.)
    pub(crate) fn unconfirmed_for(&self, now: Instant) -> Option<Duration> {
        let is_due = self.is_renewed && self.renewal != RenewalProgress::Nothing && !self.has_parts;
        let ago = end_of(now, self.ttl).saturating_sub(self.until);
        is_due.then(|| Duration::from_nanos(ago))
    }

    /// Adapts the pause between renewals. `found`: the time that the read lock's key had left at the acquire or renewal;
    /// at a renewal only if another client had shortened it.
    pub(crate) fn adapt_keep_lock(&mut self, found: Option<Duration>) {
        self.keep_lock_us = micros(keep_lock_again(self.keep_lock(), found));
    }

    fn keep_lock(&self) -> Duration {
        Duration::from_micros(self.keep_lock_us.into())
    }

    /// When the hold is due for the watchdog, after a grant or renewal sent at `sent_at`.
    pub(crate) fn due_after(&self, sent_at: Instant, mode: Mode) -> u64 {
        if self.has_parts {
            return self.max_until;
        }
        let mut soon = NEVER;
        if self.is_renewed {
            soon = self.ttl / 3;
        }
        if mode == Mode::Shared {
            soon = soon.min(u64::from(self.keep_lock_us) * 1000);
        }
        // Never later than the end: the loss has to be reported then, even while a renewal is on its way.
        let due = time::nanos(sent_at).saturating_add(soon);
        due.min(self.until).min(self.max_until)
    }

    /// `at`, or the hold's end if that is earlier.
    pub(crate) fn look_again(&self, at: u64) -> u64 {
        // As in `due_after`: each part has an end of its own, so `until` does not count for the whole.
        let until = if self.has_parts { NEVER } else { self.until };
        at.min(until).min(self.max_until)
    }

    pub(crate) fn duty(&self, now: Instant, mode: Mode) -> Duty {
        let at = time::nanos(now);
        if at >= self.until && !self.has_parts {
            let unreachable = self.is_renewed && self.renewal != RenewalProgress::Nothing;
            return Duty::Lose(if unreachable {
                LossReason::Unreachable
            } else {
                LossReason::Expired
            });
        }
        if at >= self.max_until {
            // The loss is reported, but most kinds do not release such a hold (`Kind::is_given_back_when_lost`). The
            // holder may not have noticed the loss yet, so others stay out until the holder releases the lock or the lease
            // ends in Redis.
            return Duty::Lose(LossReason::MaxHold);
        }
        if self.has_parts {
            // The parts end by themselves, and the quorum reports the loss when too few are left.
            Duty::Wait(self.max_until)
        } else if self.is_renewed || mode == Mode::Shared {
            Duty::Renew
        } else {
            Duty::Wait(self.until)
        }
    }
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

/// How soon to renew a read hold again. `last`: the pause until now; `found`: as for [`Lease::adapt_keep_lock`].
///
/// If a time was found, the pause is a third of it, as with a lease. If not, the client that shortened the key before may
/// be gone or just renew less often, so the pause doubles, up to [`KEEP_LOCK`].
fn keep_lock_again(last: Duration, found: Option<Duration>) -> Duration {
    found
        .map_or(last * 2, |found| found / 3)
        .clamp(KEEP_LOCK / 2000, KEEP_LOCK)
}

#[cfg(test)]
mod tests;
