//! The fair lock handed over in memory: to the thread of the same process that is the next in the queue, and to nobody else.

use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use redlatch::{Client, Config, Error};

#[cfg(feature = "cluster")]
use crate::support::Deployment;
use crate::support::fair::{Line, nothing_left, queued};
use crate::support::{
    LONG, Mode, Net, Server, Target, eventually, loosely, ms, open, timed, unique,
};

/// A client that hands over for as long as a test takes.
fn patient(server: &Server) -> Client {
    Client::open(Config::new(server.url()).tenure(Duration::from_secs(1))).unwrap()
}

/// Whoever asks in its turn, since it polls, cannot be handed the lock meanwhile, which is rare. So this is done again until
/// that did not happen twice more often than it did.
#[track_caller]
fn undisturbed_as_a_rule(attempt: impl Fn(&Server) -> bool) {
    let server = Server::start();
    let (mut undisturbed, mut disturbed) = (0, 0);
    while undisturbed < disturbed + 2 {
        match attempt(&server) {
            true => undisturbed += 1,
            false => disturbed += 1,
        }
        assert!(
            disturbed < 5,
            "disturbed {disturbed} times, and {undisturbed} not"
        );
    }
}

#[test]
fn threads_of_one_process_are_served_in_order_by_one_release() {
    const WAITERS: u64 = 12;
    undisturbed_as_a_rule(|server| {
        let name = unique("run");
        let client = patient(server);
        let guard = open(server).fair_lock(&name).lock().unwrap();
        let mut line = Line::new(server, &name);
        for _ in 0..=WAITERS {
            line.join_with(client.fair_lock(&name));
        }
        line.all_parked();
        guard.unlock().unwrap();
        line.served_in_order();
        nothing_left(server);
        let stats = client.stats();
        assert_eq!(
            (stats.acquired + stats.passed, stats.lost),
            (1 + WAITERS, 0)
        );
        stats.acquired == 1
    });
}

// F6: whoever is ahead in the queue, of whichever process, comes first.
#[test]
fn nobody_of_another_process_is_passed_by() {
    undisturbed_as_a_rule(|server| {
        let name = unique("between");
        let clients = [patient(server), patient(server)];
        let guard = open(server).fair_lock(&name).lock().unwrap();
        let mut line = Line::new(server, &name);
        let order = [0, 0, 0, 1, 0, 0, 1, 1, 1, 0];
        for of in order {
            line.join_with(clients[of].fair_lock(&name));
        }
        line.all_parked();
        guard.unlock().unwrap();
        line.served_in_order();
        nothing_left(server);
        let [a, b] = clients.map(|client| client.stats());
        assert_eq!((a.acquired + a.passed, b.acquired + b.passed), (6, 4));
        // Redis grants it to the first of each run.
        assert!(a.acquired >= 3 && b.acquired >= 2, "{a:?}, {b:?}");
        (a.acquired, b.acquired) == (3, 2)
    });
}

#[test]
fn a_place_that_is_given_up_leaves_no_gap() {
    undisturbed_as_a_rule(|server| {
        let name = unique("gap");
        let client = patient(server);
        let guard = open(server).fair_lock(&name).lock().unwrap();
        let mut line = Line::new(server, &name);
        line.join_with(client.fair_lock(&name));
        thread::scope(|scope| {
            let lock = client.fair_lock(&name);
            let gives_up = scope.spawn(move || lock.try_lock_for(ms(600)).unwrap().is_none());
            queued(server, &name, 2);
            line.join_with(client.fair_lock(&name));
            assert!(gives_up.join().unwrap());
        });
        queued(server, &name, 2);
        line.all_parked();
        guard.unlock().unwrap();
        line.served_in_order();
        nothing_left(server);
        client.stats().passed == 1
    });
}

// What others hold with another lease, or not at all after a loss, is not handed over.
#[test]
fn a_fixed_lease_is_not_handed_over() {
    undisturbed_as_a_rule(|server| {
        let name = unique("fixed");
        let client = patient(server);
        let fixed = client.fair_lock(&name).lease(Duration::from_secs(20));
        let guard = open(server).fair_lock(&name).lock().unwrap();
        let mut line = Line::new(server, &name);
        line.join_with(fixed.clone());
        line.join_with(client.fair_lock(&name));
        line.join_with(client.fair_lock(&name));
        line.join_with(fixed);
        line.all_parked();
        guard.unlock().unwrap();
        line.served_in_order();
        nothing_left(server);
        let stats = client.stats();
        // Those who had it before them woke the others, if no message did.
        assert_eq!(stats.poll_rescues, 0, "{stats:?}");
        assert!(stats.passed <= 1, "{stats:?}");
        stats.passed == 1
    });
}

#[test]
fn after_a_loss_the_next_asks_at_once_and_what_was_served_is_gone() {
    let server = Server::start();
    let name = unique("lost");
    let client = patient(&server);
    let other = open(&server);
    let lock = client.fair_lock(&name);
    let guard = other.fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    for _ in 0..4 {
        let lock = lock.clone();
        line.join(move |here| {
            let guard = lock.lock().unwrap();
            here();
            thread::sleep(ms(100));
            drop(guard);
        });
    }
    line.join_with(other.fair_lock(&name));
    guard.unlock().unwrap();
    assert_eq!(line.received.recv_timeout(LONG), Ok(0));
    assert_eq!(line.received.recv_timeout(LONG), Ok(1));
    assert!(other.fair_lock(&name).force_unlock().unwrap());
    // The next is of the same process, which does not know yet. Whoever comes then has asked Redis.
    for n in 2..5 {
        assert_eq!(line.received.recv_timeout(loosely(ms(3_000))), Ok(n));
    }
    line.crew.join();
    nothing_left(&server);
}

/// How a hold is lost after it was handed over.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// By this client.
    ForceUnlock,
    /// By another one, long before this one renews anything.
    ForcedElsewhere,
    /// The key is gone, and the next renewal finds that out.
    Deleted,
    /// Nothing is renewed for longer than the lease, while the server waits for its place in the queue to end.
    Cut,
}

// The connections are young, and whoever is notified and does not listen keeps its place for a waiter lease.
timed!(places_of_those_who_were_served_do_not_outlive_a_lost_hold);
fn places_of_those_who_were_served_do_not_outlive_a_lost_hold() {
    thread::scope(|scope| {
        for loss in [
            Loss::ForceUnlock,
            Loss::ForcedElsewhere,
            Loss::Deleted,
            Loss::Cut,
        ] {
            scope.spawn(move || {
                let handed_over = (0..10).any(|_| after(loss, Server::start()));
                assert!(handed_over, "{loss:?}: disturbed each time");
            });
        }
    });
}

// Nobody ever gets a grace there.
#[cfg(feature = "cluster")]
timed!(in_a_cluster_the_places_of_the_served_do_not_outlive_a_hold_that_others_end);
#[cfg(feature = "cluster")]
fn in_a_cluster_the_places_of_the_served_do_not_outlive_a_hold_that_others_end() {
    let server = || Server::start_as(Deployment::Cluster);
    let handed_over = (0..10).any(|_| after(Loss::ForcedElsewhere, server()));
    assert!(handed_over, "disturbed each time");
}

/// `false` if the lock was not handed over.
fn after(loss: Loss, server: Server) -> bool {
    const WAITER_LEASE: Duration = ms(30_000);
    let lease = match loss {
        Loss::ForcedElsewhere => ms(60_000),
        _ => ms(900),
    };
    let net = Net::of(
        server,
        |config| {
            let config = config.tenure(Duration::from_secs(1)).lease(lease);
            config.waiter_lease(WAITER_LEASE)
        },
        |config| config,
    );
    let lock = net.client.fair_lock(&net.name);
    let guard = net.other.fair_lock(&net.name).lock().unwrap();
    let mut line = Line::new(&net.server, &net.name);
    let (go, may_go) = bounded::<bool>(0);
    line.join_with(lock.clone());
    line.join({
        let lock = lock.clone();
        move |here| {
            let guard = lock.lock().unwrap();
            here();
            let is_lost = may_go.recv().unwrap();
            match guard.unlock() {
                Err(Error::Lost { .. }) if is_lost => {}
                Ok(()) if !is_lost => {}
                other => panic!("{loss:?}: {other:?}"),
            }
        }
    });
    line.join_with(net.other.fair_lock(&net.name));
    line.all_parked();
    guard.unlock().unwrap();
    for n in [0, 1] {
        assert_eq!(line.received.recv_timeout(LONG), Ok(n), "{loss:?}");
    }
    if net.client.stats().passed == 0 {
        go.send(false).unwrap();
        line.crew.join();
        return false;
    }
    match loss {
        Loss::ForceUnlock => assert!(lock.force_unlock().unwrap()),
        Loss::ForcedElsewhere => {
            let other = net.other.fair_lock(&net.name);
            assert!(other.force_unlock().unwrap());
        }
        Loss::Deleted => {
            let () = net.server.ask(&["DEL", &net.name]);
        }
        Loss::Cut => {
            net.proxy.set(Target::All, Mode::Refuse);
            net.proxy.cut(Target::All);
            eventually("it is lost", || net.client.stats().lost == 1);
            net.proxy.pass();
        }
    }
    let next = line.received.recv_timeout(loosely(ms(5_000)));
    assert_eq!(next, Ok(2), "{loss:?}");
    if loss != Loss::ForcedElsewhere {
        eventually("it is noticed", || net.client.stats().lost > 0);
    }
    go.send(true).unwrap();
    line.crew.join();
    nothing_left(&net.server);
    if loss != Loss::ForcedElsewhere {
        assert_eq!(net.client.stats().lost, 1, "{loss:?}");
    }
    true
}

/// How many scripts and subscriptions a hand-over takes among threads that lock again and again.
fn cost_of_a_turn(tenure: Duration) -> f64 {
    const THREADS: u64 = 8;
    const TURNS: u64 = 300;
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).tenure(tenure)).unwrap();
    let lock = client.fair_lock(unique("again"));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TURNS {
                    lock.lock().unwrap().unlock().unwrap();
                }
            });
        }
    });
    let stats = client.stats();
    assert_eq!(stats.acquired + stats.passed, THREADS * TURNS);
    assert_eq!(stats.lost, 0);
    let calls = ["evalsha", "subscribe", "unsubscribe"].map(|call| server.calls(call));
    calls.iter().sum::<u64>() as f64 / (THREADS * TURNS) as f64
}

// The request that takes a place, and now and then a release and another request.
timed!(a_hand_over_in_one_process_costs_little_more_than_one_command);
fn a_hand_over_in_one_process_costs_little_more_than_one_command() {
    let cost = (0..3).map(|_| cost_of_a_turn(Duration::from_millis(5)));
    let cost = cost.fold(f64::MAX, f64::min);
    assert!(cost < 1.6, "{cost}");
    // Through Redis.
    let cost = cost_of_a_turn(Duration::ZERO);
    assert!(cost > 3.0, "{cost}");
}
