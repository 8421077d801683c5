//! How a wait ends while Redis does not answer, or refuses.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Error, Result};

use crate::support::{Server, ms, timed, unique};

/// One who released a moment ago, after more than a tenure, and asks again while the server is frozen.
fn yields_in_time<T: Debug>(
    set_up: impl Fn(&Client, &str),
    take: impl Fn(&Client, &str) -> Result<T> + Sync,
) {
    const TENURE: Duration = ms(60);
    let server = Server::start();
    let config = Config::new(server.url());
    let client = Client::open(config.response_timeout(ms(500)).tenure(TENURE)).unwrap();
    let (name, other) = (unique("yields"), unique("asks"));
    set_up(&client, &name);
    set_up(&client, &other);
    let held = take(&client, &name).unwrap();
    thread::sleep(TENURE + ms(1));
    server.freeze();
    // Whether others have heard of it is what the next to ask waits for.
    drop(held);
    let fails = |name: &str| {
        let failed = take(&client, name).map(drop);
        assert!(matches!(failed, Err(Error::Redis { .. })), "{failed:?}");
        Instant::now()
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| fails(&name));
        // Half of the 250 ms for which it may wait before it asks.
        thread::sleep(ms(125));
        let second = fails(&other);
        assert!(first.join().unwrap() < second);
    });
    server.thaw();
}

timed!(yielding_to_others_is_part_of_the_response_timeout);
fn yielding_to_others_is_part_of_the_response_timeout() {
    yields_in_time(|_, _| (), |client, name| client.mutex(name).lock());
    yields_in_time(
        |client, name| assert!(client.semaphore(name).try_set_permits(1).unwrap()),
        |client, name| client.semaphore(name).acquire(),
    );
}
