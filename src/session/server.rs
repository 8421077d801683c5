//! What a client knows of its server: which one it is, and whether it was restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::RedisError;

/// After so many replies that nobody has waited for, the server may be nearer than it was, and is waited for again.
const STALE: u32 = 64;

/// What part of the lateness of a reply counts.
const LATE: u64 = 8;

/// The server of one client.
#[derive(Default)]
pub(crate) struct Server {
    /// The number of a connection, and the `run_id` of the master that it leads to: a new connection may lead to another
    /// server, or to the same one restarted, which has a new `run_id`.
    master: Mutex<Option<(u64, Arc<str>)>>,
    pub(crate) seniority: Seniority,
    pub(crate) round_trip: RoundTrip,
}

impl Server {
    /// The `run_id` of the master that the connection of this `generation` leads to, if it is known.
    pub(crate) fn run_id(&self, generation: u64) -> Option<Arc<str>> {
        let master = self.master.lock();
        let known = master.as_ref().filter(|(known, _)| *known == generation);
        known.map(|(_, run_id)| Arc::clone(run_id))
    }

    /// The connection of this `generation` leads to the master with this `run_id`.
    pub(crate) fn is(&self, generation: u64, run_id: &Arc<str>) {
        *self.master.lock() = Some((generation, Arc::clone(run_id)));
    }
}

/// Roughly how long the server takes to answer, so that whoever asks several can wait for the nearest first.
#[derive(Default)]
pub(crate) struct RoundTrip {
    /// In nanoseconds, zero until it is known.
    typical: AtomicU64,
    /// How many replies in a row nobody has waited for.
    unseen: AtomicU32,
}

impl RoundTrip {
    /// Zero if it is not known, or was not measured for long.
    pub(crate) fn get(&self) -> Duration {
        match self.unseen.load(Ordering::Relaxed) {
            STALE.. => Duration::ZERO,
            _ => Duration::from_nanos(self.typical.load(Ordering::Relaxed)),
        }
    }

    /// A thread has waited for a reply, and it came after so long. Now and then one is late for other reasons.
    pub(crate) fn is(&self, took: Duration) {
        self.unseen.store(0, Ordering::Relaxed);
        let (took, typical) = (nanos(took), self.typical.load(Ordering::Relaxed));
        let is_late = typical != 0 && took > typical;
        let now = if is_late {
            typical + (took - typical) / LATE
        } else {
            took
        };
        self.typical.store(now, Ordering::Relaxed);
    }

    /// A reply had come by then.
    pub(crate) fn is_at_most(&self, took: Duration) {
        self.unseen.store(0, Ordering::Relaxed);
        self.typical.fetch_min(nanos(took), Ordering::Relaxed);
    }

    /// No reply had come by then.
    pub(crate) fn is_at_least(&self, took: Duration) {
        self.unseen.store(0, Ordering::Relaxed);
        self.typical.fetch_max(nanos(took), Ordering::Relaxed);
    }

    /// Its reply was not needed, so nobody knows when it came.
    pub(crate) fn is_unseen(&self) {
        self.unseen.fetch_add(1, Ordering::Relaxed);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The `run_id` of the server, and since when, if it had another before. Some locks ignore a server that was restarted.
#[derive(Default)]
pub(crate) struct Seniority(Mutex<Option<(String, Option<Instant>)>>);

impl Seniority {
    /// The `run_id` that counts: the first that was seen, or another that was seen at least `span` ago; empty for any.
    pub(crate) fn counts_as(&self, span: Duration, now: Instant) -> String {
        match &*self.0.lock() {
            None => String::new(),
            Some((_, Some(met_at))) if now.saturating_duration_since(*met_at) < span => {
                // No server has this one.
                "-".into()
            }
            Some((run_id, _)) => run_id.clone(),
        }
    }

    /// The server has this `run_id` now.
    pub(crate) fn met(&self, run_id: &str, now: Instant) {
        let mut known = self.0.lock();
        match &*known {
            None => *known = Some((run_id.into(), None)),
            Some((same, _)) if same == run_id => {}
            Some(_) => *known = Some((run_id.into(), Some(now))),
        }
    }

    /// A server has refused to take part; `true` if it has not been up, or known, for long enough. It may then have named its
    /// `run_id`.
    pub(crate) fn learn(&self, refusal: &RedisError) -> bool {
        if refusal.code() != Some("RESTARTED") {
            return false;
        }
        let named = refusal
            .detail()
            .and_then(|detail| detail.strip_prefix("as "));
        if let Some((run_id, _)) = named.and_then(|detail| detail.split_once(',')) {
            self.met(run_id, Instant::now());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_new_counts_once_it_has_been_known_for_as_long_as_somebody_wants() {
        let (known, span) = (Seniority::default(), Duration::from_secs(60));
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert_eq!(known.counts_as(span, at(0)), "");
        known.met("first", at(0));
        assert_eq!(known.counts_as(span, at(0)), "first");
        known.met("second", at(0));
        known.met("second", at(59));
        assert_eq!(known.counts_as(span, at(59)), "-");
        assert_eq!(known.counts_as(span, at(61)), "second");
        // Neither does it count at once that has been here before.
        known.met("first", at(61));
        assert_eq!(known.counts_as(span, at(61)), "-");
        assert_eq!(known.counts_as(Duration::ZERO, at(61)), "first");
        assert_eq!(known.counts_as(span, at(122)), "first");
    }

    #[test]
    fn a_late_reply_hardly_counts_and_a_server_that_nobody_needs_is_tried_again() {
        let (near, far) = (RoundTrip::default(), RoundTrip::default());
        let ms = Duration::from_millis;
        assert_eq!(far.get(), Duration::ZERO);
        near.is(ms(1));
        near.is(ms(9));
        assert_eq!(near.get(), ms(2));
        near.is_at_most(ms(1));
        far.is_at_least(ms(5));
        assert_eq!((near.get(), far.get()), (ms(1), ms(5)));
        for _ in 1..STALE {
            far.is_unseen();
            assert_eq!(far.get(), ms(5));
        }
        far.is_unseen();
        assert_eq!(far.get(), Duration::ZERO);
        far.is_at_least(ms(1));
        assert_eq!(far.get(), ms(5));
    }
}
