//! A process whose tenure is over, and others that wait.

use std::time::{Duration, Instant};

use redlatch::{Client, Config};

use crate::support::scripts::channel;
use crate::support::{Server, ms, timed, unique};

// Without it the process would win again and again: its next request comes before the others have woken.
timed!(whoever_has_notified_others_of_its_release_pauses_before_it_asks_again);
fn whoever_has_notified_others_of_its_release_pauses_before_it_asks_again() {
    let server = Server::start();
    let name = unique("yields");
    let client = Client::open(Config::new(server.url()).tenure(Duration::ZERO)).unwrap();
    let lock = client.reentrant_lock(&name);
    let mut others = [server.connection(), server.connection()];
    let mut listening = Vec::new();
    let takes_it = || {
        lock.lock().unwrap().unlock().unwrap();
        let (begun, before) = (Instant::now(), client.stats().held_back);
        lock.lock().unwrap().unlock().unwrap();
        (client.stats().held_back - before, begun.elapsed())
    };
    assert_eq!(takes_it().0, 0, "nobody else is there");
    for other in &mut others {
        let mut pubsub = other.as_pubsub();
        pubsub.subscribe(channel(&name)).unwrap();
        listening.push(pubsub);
        let (times, took) = takes_it();
        assert_eq!(times, 1, "however many wait");
        assert!(took >= ms(1), "{took:?}");
    }
}
