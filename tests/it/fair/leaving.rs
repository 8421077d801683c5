//! Leaving the queue of a fair lock: a waiter that gives up leaves no place behind, and takes no wake-up with it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Error};

use crate::support::fair::{
    AT_ONCE, Line, nothing_left, queue, queued, timeouts, timeouts_key, with_waiter_lease,
};
use crate::support::{
    BY_MESSAGE, LONG, Server, eventually, loosely, ms, open, scoped, timed, unique, within,
};

// A waiter that leaves, in any of these ways, is out of the queue long before its waiter lease expires.
timed!(who_leaves_is_out_of_the_queue_at_once);
fn who_leaves_is_out_of_the_queue_at_once() {
    let server = Server::start();
    let name = unique("leave");
    let holder = open(&server);
    type Way = fn(Client, &Server, &str) -> Box<dyn FnOnce()>;
    let cancelled: Way = |client, server, name| {
        let token = CancelToken::new();
        let lock = client.fair_lock(name).cancel_on(&token);
        // From here on only the waiting thread keeps the client alive.
        drop(client);
        let queued_before = queue(server, name).len();
        let waiting = thread::spawn(move || assert!(matches!(lock.lock(), Err(Error::Cancelled))));
        queued(server, name, queued_before + 1);
        Box::new(move || {
            token.cancel();
            waiting.join().unwrap();
        })
    };
    let timed: Way = |client, server, name| {
        let queued_before = queue(server, name).len();
        let lock = client.fair_lock(name);
        let waiting = thread::spawn(move || {
            assert!(lock.try_lock_for(ms(400)).unwrap().is_none());
        });
        queued(server, name, queued_before + 1);
        Box::new(move || waiting.join().unwrap())
    };
    let closed: Way = |client, server, name| {
        let queued_before = queue(server, name).len();
        let lock = client.fair_mutex(name);
        let waiting = thread::spawn(move || assert!(matches!(lock.lock(), Err(Error::Closed))));
        queued(server, name, queued_before + 1);
        Box::new(move || {
            client.close(LONG).unwrap();
            waiting.join().unwrap();
        })
    };
    for way in [cancelled, timed, closed] {
        for ahead in [0, 1] {
            let guard = holder.fair_lock(&name).lock().unwrap();
            let mut line = Line::new(&server, &name);
            if ahead == 1 {
                line.join_with(holder.fair_lock(&name));
            }
            let leave = way(open(&server), &server, &name);
            line.join_with(holder.fair_lock(&name));
            let mut stay = queue(&server, &name);
            let gone = stay.remove(ahead);
            leave();
            let has_left = within(AT_ONCE, || queue(&server, &name) == stay);
            assert!(has_left, "{gone} of {:?}", queue(&server, &name));
            let timed: Vec<_> = timeouts(&server, &name);
            assert!(timed.iter().all(|(ticket, _)| *ticket != gone));
            let begun = Instant::now();
            drop(guard);
            line.served_in_order();
            assert!(begun.elapsed() < loosely(LONG / 2), "{:?}", begun.elapsed());
            nothing_left(&server);
        }
    }
}

// A message to a waiter that is about to leave still wakes the next one.
timed!(who_leaves_hands_the_wake_up_on);
fn who_leaves_hands_the_wake_up_on() {
    const ROUNDS: u64 = 80;
    let server = Server::start();
    let clients = [open(&server), open(&server), open(&server)];
    let mut slow = 0;
    for round in 0..ROUNDS {
        let name = unique("handon");
        let [first, second, third] = clients.each_ref().map(|client| client.fair_lock(&name));
        let guard = first.lock().unwrap();
        let token = CancelToken::new();
        let second = second.cancel_on(&token);
        scoped(|scope| {
            scope.spawn(|| match second.lock() {
                Ok(guard) => drop(guard),
                Err(err) => assert!(matches!(err, Error::Cancelled), "{err:?}"),
            });
            queued(&server, &name, 1);
            let next = scope.spawn(|| {
                drop(third.lock().unwrap());
                Instant::now()
            });
            queued(&server, &name, 2);
            eventually("both listen", || {
                clients[1..]
                    .iter()
                    .all(|client| client.stats().subscriptions == 1)
            });
            let released = Instant::now();
            scope.spawn(move || {
                thread::sleep(Duration::from_micros(round * 5));
                token.cancel();
            });
            drop(guard);
            slow += u32::from(next.join().unwrap() - released > loosely(BY_MESSAGE));
        });
    }
    // A busy machine may cause a slow round; a lost wake-up would make most rounds slow.
    assert!(slow <= 2, "{slow} hand-overs waited for the poll cap");
    nothing_left(&server);
}

// Many short waits leave nothing in Redis, and timeouts in the queue do not drift into the future.
timed!(short_tries_leave_nothing_and_timeouts_do_not_drift);
fn short_tries_leave_nothing_and_timeouts_do_not_drift() {
    let server = Server::start();
    let name = unique("short");
    let waiter_lease = ms(4_000);
    let clients = [(); 3].map(|()| with_waiter_lease(&server.url(), waiter_lease));
    let done = AtomicBool::new(false);
    let (granted, refused) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let mut samples = 0;
    scoped(|scope| {
        for (i, client) in clients.iter().enumerate() {
            for j in 0..3 {
                let lock = client.fair_lock(&name);
                let (done, granted, refused) = (&done, &granted, &refused);
                scope.spawn(move || {
                    let mut next = i as u64 * 700 + j * 300;
                    while !done.load(Ordering::Relaxed) {
                        next = (next * 7 + 331) % 6_000;
                        // On a busy machine no short wait succeeds, so one in 16 has a longer limit.
                        let wait = if next.is_multiple_of(16) {
                            400_000
                        } else {
                            next
                        };
                        match lock.try_lock_for(Duration::from_micros(wait)).unwrap() {
                            Some(guard) => {
                                granted.lock().unwrap().push(Instant::now());
                                thread::sleep(ms(3));
                                drop(guard);
                            }
                            None => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        }
        let mut con = server.connection();
        let begun = Instant::now();
        let few = || granted.lock().unwrap().len() <= 5 || refused.load(Ordering::Relaxed) <= 50;
        while begun.elapsed() < ms(2_500) || begun.elapsed() < LONG && few() {
            let (last, (s, us)): (Vec<(String, f64)>, (f64, f64)) = redis::pipe()
                .atomic()
                .cmd("ZRANGE")
                .arg(timeouts_key(&name))
                .arg(&["-1", "-1", "WITHSCORES"])
                .cmd("TIME")
                .query(&mut con)
                .unwrap();
            if let Some((_, timeout)) = last.first() {
                let ahead = timeout - (s * 1000.0 + (us / 1000.0).floor());
                // 300 s for each of nine waiters, and the lease.
                assert!(ahead <= 9.0 * 300_000.0 + 30_000.0, "{ahead} ms");
                samples += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let (granted, refused) = (granted.into_inner().unwrap(), refused.into_inner());
    assert!(granted.len() > 5 && refused > 50, "{granted:?}, {refused}");
    // The lock is never idle for long, as it would be behind the place of a waiter that left without a release.
    let longest = granted.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(longest.unwrap() < loosely(waiter_lease / 2), "{longest:?}");
    assert!(samples > 50, "{samples} samples");
    nothing_left(&server);
}

timed!(a_holder_that_is_closed_tells_the_one_who_is_next);
fn a_holder_that_is_closed_tells_the_one_who_is_next() {
    let server = Server::start();
    let name = unique("holder");
    let (holder, other) = (open(&server), open(&server));
    let guard = holder.fair_lock(&name).lock().unwrap();
    let mut line = Line::new(&server, &name);
    line.join_with(other.fair_lock(&name));
    line.join_with(other.fair_lock(&name));
    line.all_parked();
    let begun = Instant::now();
    holder.close(LONG).unwrap();
    assert_eq!(line.received.recv_timeout(LONG), Ok(0));
    assert!(
        begun.elapsed() < loosely(BY_MESSAGE),
        "{:?}",
        begun.elapsed()
    );
    assert!(!guard.is_valid());
    drop(guard);
    assert_eq!(line.received.recv_timeout(LONG), Ok(1));
    line.crew.join();
    nothing_left(&server);
}
