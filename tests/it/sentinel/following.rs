//! Whom a client follows that works while Sentinels disagree.

use std::time::{Duration, Instant};

use redlatch::{Client, Config};

use crate::support::{SENTINEL, Server, eventually, ms, unique};

const SERVICE: &str = "followed";

/// Sentinels are asked three times, at least, while a client works for so long.
const ROUNDS: Duration = ms(3_000);

#[test]
fn a_majority_of_the_sentinels_and_the_master_itself_decide() {
    let [one, other, replica] = [(); 3].map(|()| Server::start());
    let port = one.client_addr().port().to_string();
    let () = replica.ask(&["REPLICAOF", "127.0.0.1", &port]);
    let sentinels = [(); 3].map(|()| Server::start_with(&[SENTINEL]));
    names(&sentinels, &one);
    let addresses = sentinels
        .each_ref()
        .map(|its| its.client_addr().to_string());
    let url = format!("redis+sentinel://{}/{SERVICE}", addresses.join(","));
    let client = Client::open(Config::new(url)).unwrap();
    let work = || {
        client
            .mutex(unique("work"))
            .lock()
            .unwrap()
            .unlock()
            .unwrap()
    };
    work();
    let link = |server: &Server| {
        let links = server.clients_named("redlatch-link").into_iter();
        links.map(|its| its.id).collect::<Vec<_>>()
    };
    let begun = link(&one);
    assert_eq!(begun.len(), 1);
    // One of three; then two, but of a server that is no master.
    for (by, named) in [(&sentinels[..1], &other), (&sentinels[..2], &replica)] {
        names(by, named);
        let until = Instant::now() + ROUNDS;
        while Instant::now() < until {
            work();
        }
        assert_eq!(link(&one), begun);
        assert!(link(&other).is_empty());
    }
    names(&sentinels[1..], &other);
    eventually("it follows the two", || {
        work();
        link(&one).is_empty() && link(&other).len() == 1
    });
    // A Sentinel that knows the old one alone is not believed.
    names(&sentinels[..1], &one);
    let now = link(&other);
    let until = Instant::now() + ROUNDS;
    while Instant::now() < until {
        work();
    }
    assert_eq!(link(&other), now);
    assert!(link(&one).is_empty());
}

/// These Sentinels name that server from now on.
fn names(sentinels: &[Server], server: &Server) {
    let port = server.client_addr().port().to_string();
    for sentinel in sentinels {
        // The first time it knows none.
        sentinel
            .try_ask::<()>(&["SENTINEL", "REMOVE", SERVICE])
            .ok();
        let () = sentinel.ask(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "3"]);
    }
}
