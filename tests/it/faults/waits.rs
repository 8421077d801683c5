//! How a wait ends while Redis does not answer, or refuses.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Config, Error, MultiLock, Result};

use crate::support::{GENEROUS, Server, eventually, ms, timed, unique};

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

/// A way of waiting for at most so long; whether it got anything.
type Wait = Box<dyn Fn(&Client, &CancelToken, Duration) -> Result<bool> + Sync>;

/// Every way of waiting, each for something of its own that is free.
fn ways_of_waiting() -> Vec<(&'static str, Wait)> {
    fn way<T>(
        wait: impl Fn(&Client, &CancelToken, Duration) -> Result<Option<T>> + Sync + 'static,
    ) -> Wait {
        Box::new(move |client, token, limit| wait(client, token, limit).map(|got| got.is_some()))
    }
    vec![
        (
            "lock",
            way(|client, token, limit| client.mutex("m").cancel_on(token).try_lock_for(limit)),
        ),
        (
            "one more hold",
            way(|client, token, limit| {
                let lock = client.reentrant_lock("r").lease(GENEROUS);
                lock.cancel_on(token).try_lock_for(limit)
            }),
        ),
        (
            "fair lock",
            way(|client, token, limit| client.fair_lock("f").cancel_on(token).try_lock_for(limit)),
        ),
        (
            "spin lock",
            way(|client, token, limit| client.spin_lock("s").cancel_on(token).try_lock_for(limit)),
        ),
        (
            "read lock",
            way(|client, token, limit| client.rwlock("p").cancel_on(token).try_read_for(limit)),
        ),
        (
            "write lock",
            way(|client, token, limit| client.rwlock("w").cancel_on(token).try_write_for(limit)),
        ),
        (
            "several names",
            way(|client, token, limit| {
                let lock = client.multi_lock(["a", "b"]).cancel_on(token);
                lock.try_lock_for(limit)
            }),
        ),
        (
            "several locks",
            way(|client, token, limit| {
                let lock = MultiLock::new(vec![
                    Box::new(client.mutex("c")),
                    Box::new(client.fenced_lock("d")),
                ]);
                lock.cancel_on(token).try_lock_for(limit)
            }),
        ),
        (
            "permit",
            way(|client, token, limit| {
                let permits = client.semaphore("permits").cancel_on(token);
                permits.try_acquire_for(limit)
            }),
        ),
        (
            "leased permit",
            way(|client, token, limit| {
                let permits = client.expirable_semaphore("leased").cancel_on(token);
                permits.try_acquire_for(limit)
            }),
        ),
        (
            "latch",
            Box::new(|client, token, limit| client.latch("l").cancel_on(token).wait_for(limit)),
        ),
    ]
}

timed!(a_wait_that_is_cancelled_in_time_says_so_although_its_time_is_up_as_well);
fn a_wait_that_is_cancelled_in_time_says_so_although_its_time_is_up_as_well() {
    // Less than the time for which a thread that waits for an answer does not look at its token.
    const LIMIT: Duration = ms(60);
    let server = Server::start();
    for (way, wait) in ways_of_waiting() {
        let client = client_with_time(&server);
        let held = client.reentrant_lock("r").lease(GENEROUS).lock().unwrap();
        let mut tries = 0;
        loop {
            tries += 1;
            let token = CancelToken::new();
            let before = client.stats().commands;
            server.freeze();
            let began = Instant::now();
            let (cancelled_at, got) = thread::scope(|scope| {
                let cancels = scope.spawn(|| {
                    eventually("it has asked", || client.stats().commands > before);
                    token.cancel();
                    Instant::now()
                });
                let got = wait(&client, &token, LIMIT);
                (cancels.join().unwrap(), got)
            });
            server.thaw();
            if cancelled_at < began + LIMIT {
                assert!(matches!(got, Err(Error::Cancelled)), "{way}: {got:?}");
                break;
            }
            assert!(tries < 20, "{way}: never cancelled in time");
        }
        drop(held);
    }
}

/// A client whose response timeout never ends a wait here.
fn client_with_time(server: &Server) -> Client {
    Client::open(Config::new(server.url()).response_timeout(3 * GENEROUS)).unwrap()
}
