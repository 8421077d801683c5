//! The spin lock: it sends no messages, and waiters poll no more often than documented.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, thread};

use redlatch::{CancelToken, Client, Config, Error};

use crate::support::{
    Crew, LONG, Server, eventually, hold_by_stranger, loosely, ms, open, open_with_lease, scoped,
    short_lived, timed, unique,
};

/// The longest pause between two polls, in milliseconds.
const LONGEST: u64 = 128;

fn warm(client: &Client) {
    drop(client.spin_lock(unique("warm")).lock().unwrap());
}

fn nobody_listens(server: &Server) -> bool {
    let channels: Vec<String> = server.ask(&["PUBSUB", "CHANNELS", "*"]);
    channels.is_empty() && server.clients_named("subscriber").is_empty()
}

timed!(nothing_is_ever_told_and_nobody_ever_listens);
fn nothing_is_ever_told_and_nobody_ever_listens() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("silent");
    let (lock, their) = (ours.spin_lock(&name), theirs.spin_lock(&name));
    let mut con = server.connection();
    let mut pubsub = con.as_pubsub();
    pubsub.psubscribe("*").unwrap();

    for unlocks in [true, false] {
        let guard = lock.lock().unwrap();
        let mut crew = Crew::new();
        for waiter in [lock.clone(), their.clone(), their.clone()] {
            crew.spawn(move || drop(waiter.lock().unwrap()));
        }
        crew.all_parked();
        assert!(their.try_lock_for(ms(30)).unwrap().is_none());
        assert!(nobody_listens(&server));
        if unlocks {
            guard.unlock().unwrap();
        } else {
            drop(guard);
        }
        crew.join();
    }
    let forced = lock.lock().unwrap();
    assert!(their.force_unlock().unwrap());
    let next = their.try_lock_for(LONG).unwrap().unwrap();
    drop(forced);
    next.unlock().unwrap();
    let expires = short_lived(|lease| lock.clone().fixed_lease(lease).lock());
    let after = their.try_lock_for(LONG).unwrap().unwrap();
    assert!(expires.unlock().is_err());
    drop(after);
    let token = CancelToken::new();
    let guard = lock.lock().unwrap();
    let mut crew = Crew::new();
    let waiter = their.clone().cancel_on(&token);
    crew.spawn(move || assert!(matches!(waiter.lock(), Err(Error::Cancelled))));
    crew.all_parked();
    token.cancel();
    crew.join();
    ours.close(LONG).unwrap();
    drop(guard);
    drop(theirs);
    assert!(their.try_lock_for(LONG).unwrap().is_some());

    assert!(nobody_listens(&server));
    assert_eq!((server.calls("publish"), server.calls("subscribe")), (0, 0));
    let stats = ours.stats();
    assert_eq!((stats.subscriptions, stats.wakes), (0, 0), "{stats:?}");
    server.cli(&["PUBLISH", "other", "first"]);
    let message = pubsub.get_message().unwrap();
    assert_eq!(message.get_payload::<String>().unwrap(), "first");
}

// ---------------------------------------------------------------------------------------------------------------------
// Polling
// ---------------------------------------------------------------------------------------------------------------------

/// The greatest number of polls within `time`, if every pause is as short as possible.
fn most_asks(time: Duration) -> u64 {
    let (mut at, mut pause, mut asks) = (0.0, 1.0, 1);
    while at <= time.as_secs_f64() * 1e3 {
        at += pause * 0.75;
        pause = f64::min(pause * 2.0, LONGEST as f64);
        asks += 1;
    }
    asks
}

/// The smallest number of polls within `time`, if every pause is as long as possible and the machine adds `late` to
/// each.
fn fewest_asks(time: Duration, late: Duration) -> u64 {
    let (mut at, mut pause, mut asks) = (0, 1, 0);
    while at <= time.as_millis() {
        at += u128::from(pause) + late.as_millis();
        asks += 1;
        pause = (pause * 2 + asks - 1).min(LONGEST);
    }
    asks
}

timed!(a_waiter_asks_as_often_as_its_pauses_allow);
fn a_waiter_asks_as_often_as_its_pauses_allow() {
    const WAIT: Duration = ms(1500);
    let server = Server::start();
    let client = open(&server);
    warm(&client);
    let name = unique("asks");
    hold_by_stranger(&server, &name, 120_000);
    let (calls_before, begun) = (server.calls("evalsha"), Instant::now());
    assert!(
        client
            .spin_lock(&name)
            .try_lock_for(WAIT)
            .unwrap()
            .is_none()
    );
    let asked = server.calls("evalsha") - calls_before;
    let (fewest, most) = (
        fewest_asks(WAIT, loosely(ms(15))),
        most_asks(begun.elapsed()),
    );
    assert!(
        (fewest..=most).contains(&asked),
        "{asked} asks, not {fewest} to {most}"
    );
}

// However many threads of a process wait, a single one polls.
timed!(of_many_waiters_one_asks);
fn of_many_waiters_one_asks() {
    let server = Server::start();
    let client = open(&server);
    warm(&client);
    let name = unique("one");
    hold_by_stranger(&server, &name, 120_000);
    let token = CancelToken::new();
    let (calls_before, begun) = (server.calls("evalsha"), Instant::now());
    let mut crew = Crew::new();
    for _ in 0..100 {
        let lock = client.spin_lock(&name).cancel_on(&token);
        crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Cancelled))));
    }
    thread::sleep(ms(1000));
    // Single attempts send no request while another thread polls.
    for _ in 0..10 {
        assert!(client.spin_lock(&name).try_lock().unwrap().is_none());
    }
    let asked = server.calls("evalsha") - calls_before;
    let (fewest, most) = (
        fewest_asks(ms(1000), loosely(ms(15))),
        most_asks(begun.elapsed()),
    );
    assert!(
        (fewest..=most).contains(&asked),
        "{asked} asks, not {fewest} to {most}"
    );
    token.cancel();
    crew.join();
    assert_eq!(server.dbsize(), 1, "the stranger keeps it");
}

#[test]
fn whoever_is_called_from_the_queue_pauses_shortly_again() {
    let server = Server::start();
    let client = open(&server);
    warm(&client);
    let name = unique("called");
    hold_by_stranger(&server, &name, 120_000);
    let token = CancelToken::new();
    let mut crew = Crew::new();
    let first = client.spin_lock(&name).cancel_on(&token);
    crew.spawn(move || assert!(matches!(first.lock(), Err(Error::Cancelled))));
    crew.all_parked();
    let second = client.spin_lock(&name);
    crew.spawn(move || drop(second.lock().unwrap()));
    crew.all_parked();
    // The pauses of the first waiter have grown by now; those of its successor start short.
    let calls_before = server.calls("evalsha");
    eventually("it has asked often", || {
        server.calls("evalsha") >= calls_before + 8
    });
    let calls_before = server.calls("evalsha");
    token.cancel();
    eventually("the next asks", || {
        server.calls("evalsha") >= calls_before + 5
    });
    server.cli(&["DEL", &name]);
    crew.join();
}

// ---------------------------------------------------------------------------------------------------------------------
// Ends of pauses
// ---------------------------------------------------------------------------------------------------------------------

fn median(mut of: Vec<Duration>) -> Duration {
    of.sort_unstable();
    of[of.len() / 2]
}

/// How late a wait would end if its pauses of 1, 2, 4 … 128 ms were never shortened.
fn uncut(wait: Duration) -> Duration {
    let (mut slept, mut pause) = (Duration::ZERO, ms(1));
    while slept < wait {
        slept += pause;
        pause = (pause * 2).min(ms(LONGEST));
    }
    slept - wait
}

/// At least one of a few rounds must be faster than `limit`, since a busy machine only makes rounds slower.
#[track_caller]
fn soon(limit: Duration, mut round: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    while times.len() < 4 {
        times.push(round());
        if times.last() < Some(&limit) {
            return;
        }
    }
    panic!("{times:?}, not {limit:?}");
}

timed!(deadlines_are_met_and_never_anticipated);
fn deadlines_are_met_and_never_anticipated() {
    const TRIES: u64 = 300;
    let server = Server::start();
    let client = open(&server);
    warm(&client);
    let waits: Vec<_> = (0..TRIES)
        .map(|n| Duration::from_micros(1000 + n * 7919 % TRIES * 130))
        .collect();
    let uncut = median(waits.iter().copied().map(uncut).collect());
    assert!(uncut > ms(5));
    soon(uncut / 2, || {
        let late: Vec<Vec<_>> = scoped(|scope| {
            let threads: Vec<_> = waits
                .chunks(100)
                .map(|waits| {
                    let lock = client.spin_lock(unique("deadline"));
                    hold_by_stranger(&server, lock.name(), 120_000);
                    scope.spawn(move || {
                        let late = waits.iter().map(|wait| {
                            let begun = Instant::now();
                            let result = lock.try_lock_for(*wait);
                            let took = begun.elapsed();
                            assert!(took >= *wait, "{took:?} of {wait:?}");
                            assert!(matches!(result, Ok(None)), "{result:?}");
                            took - *wait
                        });
                        late.collect()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let late = late.concat();
        let most = late.iter().max().copied().unwrap();
        assert!(most < loosely(ms(2000)), "{most:?}");
        let late = median(late);
        if env::var_os("REDLATCH_TEST_NUMBERS").is_some() {
            eprintln!("late by {late:?}, {most:?} at most; uncut {uncut:?}");
        }
        late
    });
}

/// Creates this many names that somebody else holds with this lease.
fn held_names(server: &Server, names: usize, lease_ms: u64) -> Vec<String> {
    let names: Vec<_> = (0..names).map(|_| unique("held")).collect();
    for name in &names {
        hold_by_stranger(server, name, lease_ms);
    }
    names
}

timed!(the_holders_lease_cuts_a_pause_short);
fn the_holders_lease_cuts_a_pause_short() {
    const LEASE: Duration = ms(500);
    let server = Server::start();
    let client = open(&server);
    warm(&client);
    // Without shortened pauses the grants would come 56 ms late on average.
    soon(ms(20), || {
        let late = scoped(|scope| {
            let waits: Vec<_> = (0..20)
                .map(|_| {
                    scope.spawn(|| {
                        let name = unique("expires");
                        let started_at = Instant::now();
                        hold_by_stranger(&server, &name, 500);
                        let set = Instant::now();
                        let guard = client.spin_lock(&name).try_lock_for(LONG).unwrap();
                        assert!(guard.is_some());
                        assert!(started_at.elapsed() >= LEASE, "{:?}", started_at.elapsed());
                        set.elapsed().saturating_sub(LEASE)
                    })
                })
                .collect();
            waits.into_iter().map(|wait| wait.join().unwrap()).collect()
        });
        median(late)
    });
}

/// Waiters for twenty locks, whose pauses have grown to the longest.
fn pausing(
    server: &Server,
    client: &Client,
    token: &CancelToken,
) -> (Crew, Arc<Mutex<Vec<Error>>>) {
    let names = held_names(server, 20, 120_000);
    let errors = Arc::new(Mutex::new(Vec::new()));
    let mut crew = Crew::new();
    let calls_before = server.calls("evalsha");
    for name in &names {
        let lock = client.spin_lock(name).cancel_on(token);
        let errors = Arc::clone(&errors);
        crew.spawn(move || {
            let err = lock.lock().unwrap_err();
            errors.lock().unwrap().push(err);
        });
    }
    eventually("pauses are long", || {
        server.calls("evalsha") >= calls_before + 20 * 9
    });
    (crew, errors)
}

/// Less than the rest of the longest of twenty pauses of 96 to 128 ms, in nearly every case.
const AT_ONCE: Duration = ms(50);

timed!(a_cancel_ends_a_pause_at_once);
fn a_cancel_ends_a_pause_at_once() {
    let server = Server::start();
    let client = open(&server);
    warm(&client);
    soon(AT_ONCE, || {
        let token = CancelToken::new();
        let (crew, errors) = pausing(&server, &client, &token);
        let received = Instant::now();
        token.cancel();
        crew.join();
        let took = received.elapsed();
        let errors = errors.lock().unwrap();
        assert!(errors.iter().all(|err| matches!(err, Error::Cancelled)));
        took
    });
}

timed!(closing_ends_a_pause_at_once);
fn closing_ends_a_pause_at_once() {
    let server = Server::start();
    soon(AT_ONCE, || {
        let client = open(&server);
        warm(&client);
        let (crew, errors) = pausing(&server, &client, &CancelToken::new());
        let received = Instant::now();
        client.close(LONG).unwrap();
        crew.join();
        let took = received.elapsed();
        let errors = errors.lock().unwrap();
        assert!(errors.iter().all(|err| matches!(err, Error::Closed)));
        took
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Many names, many threads
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn five_thousand_names_at_once_need_no_subscription() {
    const NAMES: usize = 5000;
    let server = Server::start();
    let (client, other) = (open_with_lease(&server, LONG * 6), open(&server));
    let name = |n: usize| format!("many:{n}");
    let guards: Vec<_> = (0..NAMES)
        .map(|n| client.spin_lock(name(n)).lock().unwrap())
        .collect();
    let mut crew = Crew::new();
    for n in 0..50 {
        let (ours, theirs) = (client.spin_lock(name(n)), other.spin_lock(name(n)));
        crew.spawn(move || drop(ours.lock().unwrap()));
        crew.spawn(move || drop(theirs.lock().unwrap()));
    }
    crew.all_parked();
    assert_eq!((client.stats().holds, server.dbsize()), (5000, 5000));
    assert_eq!(
        client.stats().subscriptions + other.stats().subscriptions,
        0
    );
    assert!(nobody_listens(&server));
    // Each client has a connection for commands and one for renewals.
    assert!(server.clients_named("").len() <= 4);
    drop(guards);
    crew.join();
    eventually("all are free", || server.dbsize() == 0);
    eventually("no entry is left", || client.stats().names == 0);
    assert_eq!(client.stats().lost, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Turns
// ---------------------------------------------------------------------------------------------------------------------

timed!(whoever_has_had_its_tenure_leaves_the_lock_alone_for_a_millisecond);
fn whoever_has_had_its_tenure_leaves_the_lock_alone_for_a_millisecond() {
    let server = Server::start();
    let client = open(&server);
    let lock = client.spin_lock(unique("leaves"));
    let held_back = || client.stats().yields;
    let begun = Instant::now();
    while held_back() < 20 {
        let (yields_before, asked) = (held_back(), Instant::now());
        // Half of the calls are single attempts, which pause as well.
        let guard = if yields_before < 10 {
            lock.try_lock().unwrap().unwrap()
        } else {
            lock.lock().unwrap()
        };
        let took = asked.elapsed();
        assert!(held_back() == yields_before || took >= ms(1), "{took:?}");
        drop(guard);
        assert!(begun.elapsed() < loosely(LONG), "{yields_before} times");
    }
    let tenures = begun.elapsed().as_millis() / 5;
    assert!(u128::from(held_back()) <= 1 + tenures, "{}", held_back());
}

/// The times that another process waits, turn by turn, for a lock that threads of one process want all the time.
fn turns(threads: usize, inside: Duration, turns: usize) -> Vec<Duration> {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("turns");
    let done = AtomicBool::new(false);
    scoped(|scope| {
        for _ in 0..threads {
            let (lock, done) = (client.spin_lock(&name), &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let _guard = lock.lock().unwrap();
                    if !inside.is_zero() {
                        thread::sleep(inside);
                    }
                }
            });
        }
        let lock = other.spin_lock(&name);
        let waits = (0..turns)
            .map_while(|_| {
                let begun = Instant::now();
                let guard = lock.try_lock_for(LONG * 3).unwrap()?;
                let took = begun.elapsed();
                drop(guard);
                thread::sleep(ms(10));
                Some(took)
            })
            .collect();
        done.store(true, Ordering::SeqCst);
        assert_ne!(client.stats().yields, 0);
        waits
    })
}

timed!(another_process_has_its_turn_under_steady_load);
fn another_process_has_its_turn_under_steady_load() {
    for threads in [1, 4] {
        let waits = turns(threads, Duration::ZERO, 10);
        assert_eq!(waits.len(), 10, "{threads} threads: {waits:?}");
    }
}

timed!(nobody_who_waits_without_listening_is_taken_for_absent);
fn nobody_who_waits_without_listening_is_taken_for_absent() {
    let server = Server::start();
    let config = Config::new(server.url()).tenure(ms(60));
    let client = Client::open(config).unwrap();
    let (lock, begun) = (client.spin_lock(unique("absent")), Instant::now());
    // A suspension of this thread may end a tenure as well; then more tenures pass.
    while client.stats().yields < 5 {
        drop(lock.lock().unwrap());
        assert!(begun.elapsed() < loosely(LONG), "{:?}", client.stats());
    }
    let tenures = begun.elapsed().as_millis() / 60;
    assert!(tenures >= 5, "{tenures}");
}
