//! What is done in the background: reading replies that nobody waits for, sending releases again, replacing idle
//! connections. And closing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Connection, GLANCE, Phase, TURN};
use crate::net::call::Call;
use crate::net::pipeline::{IDLE, PING_AFTER};
use crate::net::request::Request;
use crate::net::socket::{self, Meanwhile};

/// How old the oldest outstanding command must be before another thread than its own reads the reply.
const UNREAD: Duration = Duration::from_millis(20);

/// How many unacknowledged calls are given up before the mutex is released for a moment.
const AT_ONCE: usize = 256;

impl Connection {
    /// Tests an idle connection, and has another made if it is lost. For a client that holds something, so
    /// that there is a connection for the release.
    pub(crate) fn look_after(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let generation = state.generation;
        if let Some((_, in_flight)) = state.up(generation) {
            let now = Instant::now();
            let idle_for = now.saturating_duration_since(in_flight.last_heard);
            if in_flight.due() > 0 || idle_for < IDLE {
                return;
            }
            if idle_for >= PING_AFTER {
                let ping = Request::command("looking around", &["PING"]);
                in_flight.enqueue(&Call::question(ping), now);
                drop(state);
                self.write_out(false);
                self.housekeeper.housekeep_soon();
            } else {
                drop(self.has_ended(state, generation));
                // Other threads may have left bytes for this one to write.
                self.write_out(true);
            }
        } else {
            drop(state);
        }
        self.want();
    }

    /// Reads replies that nobody waits for, sends unacknowledged calls again, and logs in again when that is due.
    ///
    /// Returns `true` if something is left to do; then the [`Housekeeper`] calls it again soon.
    pub(crate) fn housekeep(self: &Arc<Self>, until: Instant, meanwhile: Meanwhile<'_>) -> bool {
        let left = self.housekeep_unread_for(UNREAD, until, meanwhile);
        self.stay_logged_in();
        left
    }

    pub(super) fn housekeep_unread_for(
        self: &Arc<Self>,
        unread_for: Duration,
        until: Instant,
        meanwhile: Meanwhile<'_>,
    ) -> bool {
        self.give_up_ended(meanwhile);
        let mut state = self.state.lock();
        let generation = state.generation;
        match &state.phase {
            Phase::Closed => return false,
            Phase::Connecting(..) | Phase::Down(_) => {
                let is_needed = state.pipeline.has_unacknowledged();
                drop(state);
                if is_needed {
                    self.want();
                }
                return is_needed;
            }
            Phase::Up(_) => {}
        }
        let turn_ends = until.min(Instant::now() + TURN);
        loop {
            state.pipeline.feed(Instant::now());
            let more = state.pipeline.has_unacknowledged();
            let Some((up, in_flight)) = state.up(generation) else {
                return true;
            };
            let Some(sent_at) = in_flight.due_since() else {
                return more;
            };
            let heard_at = in_flight.last_heard;
            let now = Instant::now();
            // A reply that became due just now is read by the thread that waits for it.
            let fresh = now.saturating_duration_since(sent_at) < unread_for
                && now < heard_at + self.max_silence;
            let reader = up.reader.take_if(|_| !fresh || more);
            drop(state);
            let Some(reader) = reader else {
                self.flush(true);
                return true;
            };
            self.lead(reader, generation, None, now, now + GLANCE);
            // After reading: now it is certain that nothing had come.
            if self.is_silent(generation) {
                self.fail_silent(generation);
                return true;
            }
            // Goes on for a while, since each portion has to wait for the replies to the one before.
            if Instant::now() >= turn_ends || !meanwhile() {
                return true;
            }
            state = self.state.lock();
            match state.up(generation) {
                Some((_, in_flight)) if more || in_flight.last_heard > heard_at => {}
                _ => return true,
            }
        }
    }

    /// Gives up unacknowledged calls that are of no use any more, also without a connection. Calls `meanwhile` in between,
    /// since an outage may leave very many.
    pub(super) fn give_up_ended(&self, meanwhile: Meanwhile<'_>) {
        let why = socket::timed_out("redis has not accepted it while it was of use");
        loop {
            let mut state = self.state.lock();
            let ended = state.pipeline.take_ended(Instant::now(), AT_ONCE, &why);
            drop(state);
            if ended.is_empty() {
                return;
            }
            for deferred in ended.iter().filter_map(|call| call.deferred.as_ref()) {
                self.on_reply.given_up(deferred, &why);
            }
            if !meanwhile() {
                return;
            }
        }
    }

    /// Works on what is not acknowledged, while the client is closed; whether anything is left.
    pub(crate) fn drain_some(self: &Arc<Self>, until: Instant) -> bool {
        self.housekeep_unread_for(Duration::ZERO, until, &mut || true)
    }

    /// Closes the connection; waiting and later calls fail with `Closed`. Returns how many unacknowledged releases, and how
    /// many unacknowledged undos of acquires, are given up.
    pub(crate) fn close(&self) -> (u64, u64) {
        self.endpoint.stop_following();
        self.take_down(
            self.state.lock(),
            Phase::Closed,
            &socket::timed_out("the client is closed"),
            true,
        );
        self.changed.notify_all();
        let (releases, undos) = self.state.lock().pipeline.forget();
        self.counters.releases_failed.add(releases);
        (releases, undos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use std::sync::LazyLock;

    use redis::{RedisError, Value};

    use crate::config::server::Server;
    use crate::net::call::{Deferred, DeferredInfo, OnReply};
    use crate::net::connection::Housekeeper;
    use crate::net::request::Script;
    use crate::net::socket::Endpoint;
    use crate::net::text::Text;

    static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

    struct Nobody;

    impl Housekeeper for Nobody {
        fn housekeep_soon(&self) {}
    }

    impl OnReply for Nobody {
        fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

        fn given_up(&self, _: &DeferredInfo, _: &RedisError) {}
    }

    /// To a server that is away.
    fn connection() -> Connection {
        let server = Server::of("redis://127.0.0.1:1", String::new());
        let endpoint = Endpoint::new(server.expect("a good URL"));
        let timeout = Duration::from_secs(1);
        let (housekeeper, on_reply) = (Arc::new(Nobody), Arc::new(Nobody));
        Connection::new(
            endpoint,
            timeout,
            timeout,
            Arc::default(),
            housekeeper,
            on_reply,
        )
    }

    #[test]
    fn other_duties_are_looked_after_while_the_releases_of_an_outage_are_given_up() {
        let (connection, now) = (Arc::new(connection()), Instant::now());
        let name: Arc<str> = "name".into();
        for _ in 0..4 * AT_ONCE {
            let request = Request::script("releasing", &RELEASE, &[&name], &["o:1"]);
            let info = DeferredInfo {
                name: Arc::clone(&name),
                owner: Text::default(),
                useful_until: now,
                undo: true,
                for_good: false,
            };
            assert!(
                connection
                    .submit(&Call::deferred(Deferred { request, info }))
                    .is_none()
            );
        }
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            true
        };
        assert!(
            !connection.housekeep(now, &mut look),
            "nothing is left to be sent"
        );
        assert!(looks >= 4, "{looks}");
    }
}
