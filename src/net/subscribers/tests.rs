use super::*;

use std::time::{Duration, Instant};

use crate::config::server::Server;
use crate::net::slot::slot_of;
use crate::net::socket::Endpoint;
use crate::net::tests::Nobody;
use crate::verdict::Redirection;

struct Deaf;

impl Listener for Deaf {
    fn message(&self) {}

    fn set_answered(&self, _: bool) {}
}

/// A cluster whose nodes are away.
fn map() -> Arc<Masters> {
    let server = Server::of("redis+cluster://127.0.0.1:1/");
    let endpoint = Endpoint::new(server.expect("a good URL"));
    Arc::new(Masters::new(endpoint, Duration::from_secs(1), || {}))
}

/// The slot of the channel moves to the node with this port.
fn moves(map: &Masters, channel: &str, port: u16) {
    let slot = slot_of(channel.as_bytes());
    let redirection = Redirection {
        slot,
        host: "127.0.0.1".into(),
        port,
        is_asking: false,
    };
    map.redirected(0, &redirection);
}

#[test]
fn there_is_a_thread_for_each_master_at_which_somebody_waits_and_no_other() {
    let map = map();
    let timeout = Duration::from_secs(1);
    let settings = Settings {
        connect_timeout: timeout,
        command_timeout: timeout,
        counters: Arc::default(),
        housekeeper: Arc::new(Nobody),
        on_reply: Arc::new(Nobody),
    };
    let subscribers = Subscribers::new(Arc::clone(&map), settings);
    let channels: [Arc<str>; 3] = ["a", "b", "c"].map(Arc::from);
    for (port, channel) in (2..).zip(&channels) {
        moves(&map, channel, port);
    }
    let known = || {
        let mut known: Vec<_> = subscribers.state.lock().known.keys().copied().collect();
        known.sort_unstable();
        known
    };
    assert!(subscribers.known(&channels[2]).is_none());
    let waiter = Arc::new(Deaf);
    let [_, b, c] = &channels;
    let first = subscribers.subscribe(c, &waiter);
    assert_eq!(known(), [2]);
    let second = subscribers.subscribe(b, &waiter);
    assert_eq!(known(), [1, 2]);
    assert!(!first.has_moved() && !second.has_moved());
    // The waiter is told to leave, and then nothing is left to be done.
    moves(&map, c, 3);
    subscribers.follow_masters();
    let until = Instant::now() + Duration::from_secs(60);
    while known() != [1] {
        assert!(Instant::now() < until, "{:?}", known());
        thread::yield_now();
    }
    assert!(first.has_moved() && !second.has_moved());
    drop(first);
    let again = subscribers.subscribe(c, &waiter);
    assert!(!again.has_moved());
    // A node whose thread has ended may be a master again.
    moves(&map, c, 4);
    let third = subscribers.subscribe(c, &waiter);
    assert_eq!(known(), [1, 2]);
    subscribers.stop();
    drop((second, third, again));
    assert!(subscribers.join(until));
    // No thread listens any more, and none is started.
    drop(subscribers.subscribe(&channels[0], &waiter));
    assert!(known().is_empty());
}
