//! Network faults with encrypted connections. The proxy cannot read what it forwards, so a fault affects all
//! connections; where a request has to get through, only those that exist at that time.

use std::time::Duration;

use redlatch::Client;

use crate::support::{
    Crew, FAIR_LOCK, Kind, LONG, Mode, Net, Proxy, REENTRANT_LOCK, RESPONSE, SLACK, Server, Target,
    authority, eventually, gets_nothing, in_time, loosely, ms, nothing_is_left_of, settings,
    settings_by, timed, unique, waited_for_by,
};

/// Rounds in which the acquire or the release is lost, or its reply. The hold is valid while it lasts, and somebody
/// else can acquire the lock soon after.
fn lost_on_the_way(kind: Kind, rounds: u32) {
    let net = Net::encrypted();
    let name = unique("round");
    let (lock, other) = (
        kind.of(&net.client, &name),
        kind.foe().of(&net.other, &name),
    );
    for round in 0..rounds {
        // Makes sure that there is a connection, since the fault only affects existing ones.
        lock.lock().unwrap().unlock().unwrap();
        let spoil = || match round % 4 < 2 {
            true => net.proxy.swallow_present(Target::All),
            false => net.proxy.black_hole_present(Target::All),
        };
        let spoil_first = round % 2 == 0;
        if spoil_first {
            spoil();
        }
        let guard = in_time("lock", RESPONSE, || lock.lock()).unwrap();
        assert_eq!(net.server.hgetall(&name), kind.fields(guard.owner(), 1));
        if !spoil_first {
            spoil();
        }
        if round % 3 == 0 {
            in_time("unlock", RESPONSE, || guard.unlock()).unwrap();
            assert!(nothing_is_left_of(kind, &net.server));
        } else {
            in_time("drop", ms(0), || drop(guard));
        }
        let next = other.try_lock_for(RESPONSE + loosely(SLACK)).unwrap();
        let next = next.unwrap_or_else(|| panic!("held by nobody in round {round}"));
        next.unlock().unwrap();
    }
    eventually("nothing is left", || nothing_is_left_of(kind, &net.server));
    let stats = net.client.stats();
    assert_eq!((stats.lost, stats.releases_failed), (0, 0));
    assert!(stats.reconnects >= u64::from(rounds), "{stats:?}");
}

timed!(requests_and_replies_that_are_lost_are_made_up_for);
fn requests_and_replies_that_are_lost_are_made_up_for() {
    lost_on_the_way(REENTRANT_LOCK, 8);
}

timed!(the_same_of_a_fair_lock);
fn the_same_of_a_fair_lock() {
    lost_on_the_way(FAIR_LOCK, 4);
}

timed!(an_acquire_that_arrives_late_takes_nothing);
fn an_acquire_that_arrives_late_takes_nothing() {
    let net = Net::encrypted();
    let name = unique("late");
    let lock = net.client.mutex(&name);
    for round in 0..4 {
        lock.lock().unwrap().unlock().unwrap();
        net.proxy.set(Target::All, Mode::Stall);
        for _ in 0..1 + round % 3 {
            gets_nothing("try_lock_for", ms(30), || lock.try_lock_for(ms(30)));
        }
        if round == 3 {
            std::thread::sleep(RESPONSE); // until the client abandons the silent connection
        }
        net.other.mutex(&name).lock().unwrap().unlock().unwrap();
        net.proxy.pass();
        eventually("all is delivered", || net.proxy.held() == 0);
        eventually("nothing is left", || net.server.keys().is_empty());
    }
}

timed!(a_cut_is_survived_by_holders_and_waiters);
fn a_cut_is_survived_by_holders_and_waiters() {
    let net = Net::encrypted();
    let (held, wanted) = (unique("held"), unique("wanted"));
    let guard = net.client.reentrant_lock(&held).lock().unwrap();
    let busy = net.other.reentrant_lock(&wanted).lock().unwrap();
    let mut crew = Crew::new();
    let lock = net.client.reentrant_lock(&wanted);
    crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    waited_for_by(REENTRANT_LOCK, &net.server, 1);
    for _ in 0..5 {
        let stats_before = net.client.stats();
        assert!(net.proxy.cut(Target::All) > 0);
        eventually("it listens again", || {
            net.client.stats().resubscriptions > stats_before.resubscriptions
        });
        waited_for_by(REENTRANT_LOCK, &net.server, 1);
        eventually("it is renewed again", || {
            net.client.stats().renewals > stats_before.renewals
        });
        assert!(guard.is_valid());
    }
    busy.unlock().unwrap();
    crew.join();
    guard.unlock().unwrap();
    assert_eq!(net.client.stats().lost, 0);
    eventually("nothing is left", || net.server.keys().is_empty());
}

#[test]
fn a_slow_network_is_only_slow() {
    let server = Server::start_tls(&authority().issue(&["127.0.0.1"]), &[]);
    let proxy = Proxy::before(&server);
    proxy.set(Target::All, Mode::DelayBoth(ms(30)));
    let client = Client::open(settings_by(&server, proxy.addr())).unwrap();
    let name = unique("slow");
    let lock = client.fair_lock(&name);
    for _ in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let guard = lock.lock().unwrap();
    let mut crew = Crew::new();
    let waiting = lock.clone();
    crew.spawn(move || {
        waiting
            .try_lock_for(LONG)
            .unwrap()
            .unwrap()
            .unlock()
            .unwrap()
    });
    crew.all_parked();
    guard.unlock().unwrap();
    crew.join();
    assert_eq!(client.stats().reconnects, 0);
}

// The client notices that the server has closed an idle connection before it sends a command, and TLS session tickets
// do not look like that.
#[test]
fn a_connection_that_was_idle_is_known_to_stand_or_to_be_gone() {
    const IDLE: Duration = ms(120); // an idle connection is checked after this time
    let server = Server::start_tls(&authority().issue(&["127.0.0.1"]), &[]);
    let client = Client::open(settings(&server)).unwrap();
    let lock = client.mutex(unique("idle"));
    for _ in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
        std::thread::sleep(IDLE);
    }
    assert_eq!(client.stats().reconnects, 0);
    for n in 1..=3 {
        server.kill_clients_named("link");
        std::thread::sleep(IDLE);
        lock.lock().unwrap().unlock().unwrap();
        assert_eq!(client.stats().reconnects, n);
    }
}
