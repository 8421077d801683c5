//! Which reports of Sentinels a client follows while it works: of a later failover than the last, and only to a master.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::{Client, Config};

use crate::support::sentinel::Deployment;
use crate::support::{
    Adversary, LONG, Mode, Proxy, Server, Target, after_the_greeting, eventually, in_time, loosely,
    ms, once, timed, unique,
};

/// Within this time, a working client asks a Sentinel without subscriptions at least twice.
const ROUNDS: Duration = ms(3_000);

/// The reply of a Sentinel: the port of the master, and the epoch of the failover that made it one.
type Says = Arc<Mutex<(u16, u64)>>;

fn sentinel(says: &Says) -> Adversary {
    let says = Arc::clone(says);
    Adversary::start(after_the_greeting(move |command| {
        let (port, epoch) = *says.lock().unwrap();
        let pair = |one: &str, other: &str| {
            let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
            format!("*2\r\n{}{}", bulk(one), bulk(other))
        };
        once(match command[1].as_str() {
            "MASTER" => pair("config-epoch", &epoch.to_string()),
            "GET-MASTER-ADDR-BY-NAME" => pair("127.0.0.1", &port.to_string()),
            _ => "-NOPERM no permissions\r\n".into(),
        })
    }))
}

#[test]
fn the_latest_failover_counts_and_the_master_itself_decides() {
    let [one, other, replica] = [(); 3].map(|()| Server::start());
    let port = one.client_addr().port();
    let () = replica.ask(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
    let said: [Says; 2] = [(); 2].map(|()| Arc::new(Mutex::new((port, 3))));
    let sentinels = said.each_ref().map(sentinel);
    let says = |by: usize, server: &Server, epoch| {
        *said[by].lock().unwrap() = (server.client_addr().port(), epoch);
    };
    let [first, second] = sentinels.each_ref().map(Adversary::port);
    let url = format!("redis+sentinel://127.0.0.1:{first},127.0.0.1:{second}/locks");
    let client = Client::open(Config::new(url)).unwrap();
    let work = || {
        client
            .mutex(unique("work"))
            .lock()
            .unwrap()
            .unlock()
            .unwrap()
    };
    let link = |server: &Server| {
        let links = server.clients_named("link").into_iter();
        links.map(|link| link.id).collect::<Vec<_>>()
    };
    let stays = |at: &Server| {
        let begun = link(at);
        assert_eq!(begun.len(), 1);
        let until = Instant::now() + ROUNDS;
        while Instant::now() < until {
            work();
            // Without a pause the thread would take a core from other tests for as long.
            std::thread::sleep(ms(10));
        }
        assert_eq!(link(at), begun);
    };
    work();
    // Follow neither a report of a server that is no master, nor one of an epoch that is known already.
    says(0, &replica, 5);
    stays(&one);
    says(0, &other, 3);
    stays(&one);
    for by in [0, 1] {
        says(by, &other, 4);
    }
    eventually("it follows", || {
        work();
        link(&one).is_empty() && link(&other).len() == 1
    });
    // Ignore a Sentinel that still reports an earlier epoch, also for new connections.
    says(0, &one, 3);
    stays(&other);
    assert!(other.kill_clients_named("link") > 0);
    work();
    stays(&other);
    // If all Sentinels report an earlier epoch, they were set up again.
    says(1, &one, 0);
    other.kill_clients_named("link");
    eventually("it follows", || {
        work();
        link(&one).len() == 1 && link(&other).is_empty()
    });
}

// Each question takes 600 ms here; connecting, the greeting and the questions take several.
timed!(a_master_far_away_is_followed_and_connected_to);
fn a_master_far_away_is_followed_and_connected_to() {
    let far = Mode::DelayBoth(ms(300));
    let [one, other, another] = [(); 3].map(|()| Server::start());
    let [second, third] = [&other, &another].map(Proxy::before);
    for proxy in [&second, &third] {
        proxy.set(Target::All, far);
    }
    let says: Says = Arc::new(Mutex::new((one.port(), 3)));
    let sentinel = sentinel(&says);
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", sentinel.port());
    let client = Client::open(Config::new(url)).unwrap();
    let name = unique("far");
    let lock = client.mutex(&name);
    drop(lock.lock().unwrap());
    // The connection to the first master works, so the new one is checked before that is cut.
    *says.lock().unwrap() = (second.port(), 4);
    eventually("it follows", || {
        let _guard = lock.lock().ok();
        other.exists(&name)
    });
    // The connections are gone, so nothing has to be checked.
    drop(other);
    *says.lock().unwrap() = (third.port(), 5);
    eventually("it follows again", || {
        let _guard = lock.lock().ok();
        another.exists(&name)
    });
}

#[test]
fn a_sentinel_far_away_is_asked() {
    let one = Server::start();
    let says: Says = Arc::new(Mutex::new((one.port(), 3)));
    let sentinel = sentinel(&says);
    let proxy = Proxy::start(([127, 0, 0, 1], sentinel.port()).into());
    proxy.set(Target::All, Mode::DelayBoth(ms(150)));
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", proxy.port());
    // The limit must not fail the test on a busy machine.
    let config = Config::new(url).connect_timeout(LONG);
    let client = Client::open(config).unwrap();
    drop(client.mutex(unique("far")).lock().unwrap());
}

timed!(another_sentinel_is_listened_to_when_one_is_silent_or_gone);
fn another_sentinel_is_listened_to_when_one_is_silent_or_gone() {
    let mut deployment = Deployment::start();
    let ports = [2, 1, 0].map(|n| deployment.sentinels[n].port());
    // A long lease, so that no renewal opens another connection.
    let config = Config::new(Deployment::url_of(&ports)).lease(Duration::from_secs(3_600));
    let client = Client::open(config).unwrap();
    let work = || drop(client.mutex(unique("work")).lock().unwrap());
    work();
    eventually("it listens", || {
        let clients: String = deployment.sentinels[2].ask(&["CLIENT", "LIST"]);
        let mut clients = clients.lines();
        clients.any(|line| line.contains(" sub=2 ") && line.contains(" user=watcher "))
    });
    deployment.sentinels[2].freeze();
    deployment.sentinels[1].kill();
    let old = deployment.named();
    in_time("leaving the old master", loosely(ms(4_000)), || {
        deployment.promote();
        eventually("it is at the new one", || {
            work();
            deployment.clients_at(old).is_empty()
        });
    });
    assert!(deployment.is_master(old));
}

timed!(no_sentinel_is_listened_to_for_a_client_that_is_closed_or_could_not_be_opened);
fn no_sentinel_is_listened_to_for_a_client_that_is_closed_or_could_not_be_opened() {
    let deployment = Deployment::start();
    let listening = || {
        let of = |sentinel: &Server| {
            let clients: String = sentinel.ask(&["CLIENT", "LIST"]);
            clients.matches(" user=watcher ").count()
        };
        deployment.sentinels.iter().map(of).sum::<usize>()
    };
    let client = Client::open(deployment.config()).unwrap();
    drop(client.mutex(unique("work")).lock().unwrap());
    eventually("it listens", || listening() == 1);
    client.close(LONG).unwrap();
    eventually("it listens no more", || listening() == 0);
    // The Sentinels name the master, which rejects the password.
    let refused = Config::new(deployment.url().replace("se:cret", "wrong"));
    assert!(Client::open(refused).is_err());
    eventually("it does not listen", || listening() == 0);
}
