//! Which server a client is connected to, and whether it was restarted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::RedisError;

/// Stored instead of a connection's generation if it is not known which connection led to the server. No connection has
/// this generation.
const OTHER: u64 = 0;

/// The server of one client, once it is known.
#[derive(Default)]
pub(crate) struct KnownMaster(Mutex<Option<Master>>);

struct Master {
    /// Unique to a run of the server: it changes with a restart.
    run_id: Arc<str>,
    /// The number of the connection that leads to this server. A new connection may lead to another server.
    generation: u64,
    /// When the server was first seen, if it replaced another one.
    since: Option<Instant>,
}

impl KnownMaster {
    /// The `run_id` of the master that the connection of this `generation` leads to, if known.
    pub(crate) fn run_id(&self, generation: u64) -> Option<Arc<str>> {
        let master = self.0.lock();
        let known = master
            .as_ref()
            .filter(|master| master.generation == generation);
        known.map(|master| Arc::clone(&master.run_id))
    }

    /// The `run_id` of the last master that any connection led to.
    pub(crate) fn last_run_id(&self) -> Option<Arc<str>> {
        self.0
            .lock()
            .as_ref()
            .map(|master| Arc::clone(&master.run_id))
    }

    /// The `run_id` that a node must have to take part: that of the current server. If this server replaced another one less
    /// than `span` ago, the result is `-`, which no server has. Without a known server the result is empty, and any server
    /// may take part.
    pub(crate) fn required_run_id(&self, span: Duration, now: Instant) -> Arc<str> {
        match &*self.0.lock() {
            None => "".into(),
            Some(Master {
                since: Some(since), ..
            }) if now.saturating_duration_since(*since) < span => "-".into(),
            Some(master) => Arc::clone(&master.run_id),
        }
    }

    /// Records that the connection of this `generation` leads to the master with this `run_id`.
    pub(crate) fn record(&self, run_id: &str, generation: u64, now: Instant) {
        let mut master = self.0.lock();
        match &mut *master {
            Some(same) if *same.run_id == *run_id => same.generation = generation,
            other => {
                let since = other.as_ref().map(|_| now);
                let run_id = run_id.into();
                *other = Some(Master {
                    run_id,
                    generation,
                    since,
                });
            }
        }
    }

    /// If a server that declined to take part named its `run_id`, records it.
    pub(crate) fn learn(&self, refusal: &RedisError) {
        let named = (refusal.code() == Some("RESTARTED"))
            .then(|| refusal.detail()?.strip_prefix("as "))
            .flatten();
        if let Some((run_id, _)) = named.and_then(|detail| detail.split_once(',')) {
            self.record(run_id, OTHER, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_new_counts_once_it_has_been_known_for_as_long_as_somebody_wants() {
        let (known, span) = (KnownMaster::default(), Duration::from_secs(60));
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert_eq!(&*known.required_run_id(span, at(0)), "");
        known.record("first", 1, at(0));
        assert_eq!(&*known.required_run_id(span, at(0)), "first");
        known.record("second", 1, at(0));
        known.record("second", 1, at(59));
        assert_eq!(&*known.required_run_id(span, at(59)), "-");
        assert_eq!(&*known.required_run_id(span, at(61)), "second");
        // A server that returns after another one does not count at once either.
        known.record("first", 1, at(61));
        assert_eq!(&*known.required_run_id(span, at(61)), "-");
        assert_eq!(&*known.required_run_id(Duration::ZERO, at(61)), "first");
        assert_eq!(&*known.required_run_id(span, at(122)), "first");
    }
}
