//! What is done in the background: reading replies that nobody waits for, sending releases again, replacing idle
//! connections. And closing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Connection, GLANCE, Left, Phase};
use crate::net::call::Call;
use crate::net::pipeline::{IDLE, PING_AFTER};
use crate::net::request::Request;
use crate::net::socket;

/// How old the oldest outstanding command must be before another thread than its own reads the reply.
const UNREAD: Duration = Duration::from_millis(20);

/// How many unacknowledged calls are given up in one step.
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

    /// Reads replies that nobody waits for, sends unacknowledged calls again, and has a connection replaced whose login is old:
    /// one step of it, a few milliseconds long.
    pub(crate) fn housekeep(self: &Arc<Self>) -> Left {
        let left = self.housekeep_unread_for(UNREAD);
        self.renew_login();
        left
    }

    /// The same while the client is closed, when nobody else reads.
    pub(crate) fn drain_some(self: &Arc<Self>) -> Left {
        self.housekeep_unread_for(Duration::ZERO)
    }

    fn housekeep_unread_for(self: &Arc<Self>, unread_for: Duration) -> Left {
        let gave_up = self.give_up_ended();
        let mut state = self.state.lock();
        let generation = state.generation;
        match &state.phase {
            Phase::Closed => return Left::Nothing,
            Phase::Down(_) => {
                let is_needed = state.pipeline.has_unacknowledged();
                drop(state);
                if is_needed {
                    self.want();
                }
                return gave_up.max(Left::later(is_needed));
            }
            Phase::Up(_) => {}
        }
        state.pipeline.feed(Instant::now());
        let more = state.pipeline.has_unacknowledged();
        let Some((up, in_flight)) = state.up(generation) else {
            return Left::Later;
        };
        let Some(sent_at) = in_flight.due_since() else {
            return gave_up.max(Left::later(more));
        };
        let heard_at = in_flight.last_heard;
        let now = Instant::now();
        // A reply that became due just now is read by the thread that waits for it.
        let fresh = now.saturating_duration_since(sent_at) < unread_for
            && now < heard_at + self.max_silence;
        // Nothing is written until a connection with a successor has its replies.
        let is_urgent = more || in_flight.unwritten.is_full() || up.successor.is_some();
        let reader = match fresh && !is_urgent {
            true => None,
            false => up.take_reader(),
        };
        drop(state);
        let Some(reader) = reader else {
            self.flush(true);
            // Another thread may be writing, so the state tells whether anything is left.
            let mut state = self.state.lock();
            let is_full = state
                .up(generation)
                .is_some_and(|(_, in_flight)| in_flight.unwritten.is_full());
            let more = state.pipeline.has_unacknowledged();
            return gave_up.max(match more || is_full {
                true => Left::Soon,
                false => Left::Later,
            });
        };
        self.lead(reader, generation, None, now, now + GLANCE);
        // After reading: now it is certain that nothing had come.
        if self.is_silent(generation) {
            self.fail_silent(generation);
            return Left::Later;
        }
        // Each portion waits for the replies to the one before.
        match self.state.lock().up(generation) {
            Some((_, in_flight)) if in_flight.last_heard > heard_at => Left::More,
            Some((_, in_flight)) if is_urgent || in_flight.unwritten.is_full() => Left::Soon,
            _ => gave_up.max(Left::Later),
        }
    }

    /// Gives up unacknowledged calls that are of no use any more, also without a connection. Not all at once, since an outage
    /// may leave very many.
    fn give_up_ended(&self) -> Left {
        let why = socket::timed_out("redis has not accepted it while it was of use");
        let ended = (self.state.lock().pipeline).take_ended(Instant::now(), AT_ONCE, &why);
        for deferred in ended.iter().filter_map(|call| call.deferred.as_ref()) {
            self.on_reply.given_up(deferred, &why);
        }
        match ended.len() {
            AT_ONCE => Left::More,
            _ => Left::Nothing,
        }
    }

    /// Closes the connection; waiting and later calls fail with `Closed`. Returns how many unacknowledged releases, and how
    /// many unacknowledged undos of acquires, are given up.
    pub(crate) fn close(&self) -> (u64, u64) {
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
pub(super) mod tests {
    use super::*;
    use std::sync::Arc;

    use std::sync::LazyLock;

    use redis::{RedisError, Value};

    use crate::config::server::Server;
    use crate::net::call::{Deferred, DeferredInfo, OnReply};
    use crate::net::connection::Housekeeper;
    use crate::net::masters::Masters;
    use crate::net::request::Script;
    use crate::net::socket::Endpoint;
    use crate::net::text::Text;

    static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("return 0"));

    struct Nobody;

    impl Housekeeper for Nobody {
        fn housekeep_soon(&self) {}

        fn housekeep_now(&self) {}
    }

    impl OnReply for Nobody {
        fn released(&self, _: &DeferredInfo, _: &Value, _: bool) {}

        fn given_up(&self, _: &DeferredInfo, _: &RedisError) {}
    }

    /// To a server that is away.
    pub(in crate::net::connection) fn connection() -> Connection {
        let server = Server::of("redis://127.0.0.1:1");
        let endpoint = Endpoint::new(server.expect("a good URL"));
        let timeout = Duration::from_secs(1);
        let masters = Arc::new(Masters::new(endpoint, timeout));
        let (housekeeper, on_reply) = (Arc::new(Nobody), Arc::new(Nobody));
        Connection::new(
            masters,
            timeout,
            timeout,
            Arc::default(),
            housekeeper,
            on_reply,
        )
    }

    pub(in crate::net::connection) fn undo(name: &Arc<str>, useful_until: Instant) -> Arc<Call> {
        let request = Request::script("releasing", &RELEASE, &[name], &["o:1"]);
        let info = DeferredInfo {
            name: Arc::clone(name),
            owner: Text::default(),
            useful_until,
            undo: true,
            for_good: false,
        };
        Call::deferred(Deferred { request, info })
    }

    #[test]
    fn nobody_waits_for_what_an_attempt_owes_once_another_node_has_to_answer_it() {
        let (connection, now) = (connection(), Instant::now());
        connection.state.lock().pipeline.connected(now);
        let mut last = None;
        for _ in 0..100 {
            let call = last.insert(undo(&"name".into(), now + Duration::from_secs(60)));
            assert!(connection.submit(call).is_some());
        }
        // Its node says that it belongs to another, which sends it at once.
        last.expect("one").sent_to(1);
        let waited = connection.wait_for_owed(now + Duration::from_secs(60), &|| false);
        assert!(waited.is_ok(), "{waited:?}");
    }

    #[test]
    fn other_duties_are_looked_after_while_the_releases_of_an_outage_are_given_up() {
        let (connection, now) = (Arc::new(connection()), Instant::now());
        let name: Arc<str> = "name".into();
        for _ in 0..4 * AT_ONCE {
            assert!(connection.submit(&undo(&name, now)).is_none());
        }
        for step in 0..5 {
            let is_last = connection.housekeep() == Left::Nothing;
            assert_eq!(is_last, step == 4, "step {step}");
        }
    }
}
