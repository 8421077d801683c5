//! The fair lock handed over in memory: to the thread of the same process that is the next in the queue, and to nobody else.

use std::thread;
use std::time::Duration;

use redlatch::{Client, Config};

use crate::support::fair::{Line, nothing_left, queued};
use crate::support::{LONG, Server, loosely, ms, open, timed, unique};

/// A client that hands over for as long as a test takes.
fn patient(server: &Server) -> Client {
    Client::open(Config::new(server.url()).tenure(Duration::from_secs(1))).unwrap()
}

#[test]
fn threads_of_one_process_are_served_in_order_by_one_release() {
    const WAITERS: u64 = 12;
    let server = Server::start();
    let name = unique("run");
    let client = patient(&server);
    let guard = open(&server).fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    for _ in 0..=WAITERS {
        line.join_with(client.fair_lock(&name));
    }
    line.all_parked();
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&server);
    let stats = client.stats();
    assert_eq!((stats.acquired, stats.passed, stats.lost), (1, WAITERS, 0));
}

// F6: whoever is ahead in the queue, of whichever process, comes first.
#[test]
fn nobody_of_another_process_is_passed_by() {
    let server = Server::start();
    let name = unique("between");
    let clients = [patient(&server), patient(&server)];
    let guard = open(&server).fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    let order = [0, 0, 0, 1, 0, 0, 1, 1, 1, 0];
    for of in order {
        line.join_with(clients[of].fair_lock(&name));
    }
    line.all_parked();
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&server);
    // Redis grants it to the first of each run.
    let [a, b] = clients.map(|client| client.stats());
    assert_eq!((a.acquired, a.passed), (3, 2 + 1));
    assert_eq!((b.acquired, b.passed), (2, 2));
}

#[test]
fn a_place_that_is_given_up_leaves_no_gap() {
    let server = Server::start();
    let name = unique("gap");
    let client = patient(&server);
    let guard = open(&server).fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    line.join_with(client.fair_lock(&name));
    thread::scope(|scope| {
        let lock = client.fair_lock(&name);
        let gives_up = scope.spawn(move || lock.try_lock_for(ms(600)).unwrap().is_none());
        queued(&server, &name, 2);
        line.join_with(client.fair_lock(&name));
        assert!(gives_up.join().unwrap());
    });
    queued(&server, &name, 2);
    line.all_parked();
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&server);
    assert_eq!(client.stats().passed, 1);
}

// What others hold with another lease, or not at all after a loss, is not handed over.
#[test]
fn a_fixed_lease_is_not_handed_over() {
    let server = Server::start();
    let name = unique("fixed");
    let client = patient(&server);
    let fixed = client.fair_lock(&name).lease(Duration::from_secs(20));
    let guard = open(&server).fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    line.join_with(fixed.clone());
    line.join_with(client.fair_lock(&name));
    line.join_with(client.fair_lock(&name));
    line.join_with(fixed);
    guard.unlock().unwrap();
    line.served_in_order();
    nothing_left(&server);
    assert_eq!(client.stats().passed, 1);
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
