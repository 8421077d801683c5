//! The fair lock: the order of its waiters, who is notified of a release, and the queue in Redis.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use redis::Connection;
use redlatch::Error;

use crate::support::fair::{
    Line, channel, nothing_left, queue, queue_key, queued, server_now, timeouts, timeouts_key,
};
use crate::support::{
    BY_MESSAGE, Crew, LONG, Server, eventually, hold_by_stranger, loosely, ms, open, subscribed,
    timed, unique,
};

// ---------------------------------------------------------------------------------------------------------------------
// Order
// ---------------------------------------------------------------------------------------------------------------------

// A thread that asks again goes to the end of the queue, behind all that already wait.
#[test]
fn who_comes_again_stands_at_the_end() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let name = unique("again");
    let clients = [open(&server), open(&server)];
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut crew = Crew::new();
    for i in 0..6 {
        let (lock, served) = (clients[i % 2].fair_lock(&name), Arc::clone(&served));
        crew.spawn(move || {
            for _ in 0..ROUNDS {
                let _guard = lock.lock().unwrap();
                served.lock().unwrap().push(i);
                // Long enough for the previous holder to queue again.
                thread::sleep(ms(5));
            }
        });
    }
    crew.join();
    let served = served.lock().unwrap();
    let mut last: HashMap<usize, usize> = HashMap::new();
    // On a busy machine a thread may queue again too late for its turn, which must stay rare.
    let mut laps = 0;
    for (turn, waiter) in served.iter().enumerate() {
        if let Some(last_turn) = last.insert(*waiter, turn) {
            laps += usize::from(turn - last_turn < 5);
        }
    }
    assert!(laps < served.len() / 10, "{laps}: {served:?}");
    nothing_left(&server);
}

// Waiters that are not next sleep on.
timed!(one_release_wakes_one_of_many);
fn one_release_wakes_one_of_many() {
    const WAITERS: usize = 50;
    const RELEASES: usize = 10;
    let server = Server::start();
    let name = unique("wake");
    let holder = open(&server);
    let clients = [open(&server), open(&server)];
    let mut guard = Some(holder.fair_lock(&name).lock().unwrap());
    let mut con = server.connection();
    let mut messages = con.as_pubsub();
    messages
        .psubscribe(format!("{}:*", channel(&name)))
        .unwrap();
    messages.set_read_timeout(Some(ms(50))).unwrap();

    let (go, turns) = bounded::<()>(0);
    let mut line = Line::new(&server, &name);
    for i in 0..WAITERS {
        let (lock, turns) = (clients[i % 2].fair_lock(&name), turns.clone());
        line.join(move |here| {
            let _guard = lock.lock().unwrap();
            here();
            turns.recv().unwrap_or_default();
        });
    }
    line.all_parked();
    let wakes = || -> u64 { clients.iter().map(|client| client.stats().wakes).sum() };
    let (wakes_before, asked) = (wakes(), server.calls("evalsha"));
    let begun = Instant::now();
    for number in 0..RELEASES {
        let next = queue(&server, &name).remove(0);
        match guard.take() {
            Some(guard) => drop(guard),
            None => go.send(()).unwrap(),
        }
        assert_eq!(line.received.recv_timeout(loosely(BY_MESSAGE)), Ok(number));
        let first = messages.get_message().unwrap();
        let mut received = vec![first.get_channel_name().to_owned()];
        while let Ok(message) = messages.get_message() {
            received.push(message.get_channel_name().to_owned());
        }
        let expected = format!("{}:{next}", channel(&name));
        assert!(
            received.iter().all(|channel| *channel == expected),
            "{received:?}"
        );
    }
    let woken = wakes() - wakes_before;
    let asked = server.calls("evalsha") - asked;
    let polls = WAITERS as u64 * (1 + u64::try_from(begun.elapsed().as_millis()).unwrap() / 750);
    assert!(woken <= RELEASES as u64, "{woken} woken");
    assert!(woken > RELEASES as u64 / 2, "{woken} woken, others polled");
    assert!(asked <= 2 * RELEASES as u64 + polls, "{asked} asked");
    drop(go);
    line.crew.join();
    let rest: Vec<_> = line.received.try_iter().collect();
    assert_eq!(rest, (RELEASES..WAITERS).collect::<Vec<_>>());
    nothing_left(&server);
}

// As in a test of Redisson: no holder releases, so no message is sent, and each waiter gets the lock when a lease
// expires.
timed!(leases_that_run_out_serve_the_queue_in_order);
fn leases_that_run_out_serve_the_queue_in_order() {
    const LEASE: Duration = ms(200);
    let server = Server::start();
    let name = unique("leases");
    let clients = [open(&server), open(&server)];
    let guard = clients[0]
        .fair_lock(&name)
        .fixed_lease(LEASE)
        .lock()
        .unwrap();
    let (done, end) = bounded::<()>(0);
    let turns = Arc::new(Mutex::new(Vec::new()));
    let mut line = Line::new(&server, &name);
    for i in 0..10 {
        let lock = clients[i % 2].fair_lock(&name).fixed_lease(LEASE);
        let (end, turns) = (end.clone(), Arc::clone(&turns));
        let wait = move |here: &dyn Fn()| {
            let guard = lock.lock().unwrap();
            turns.lock().unwrap().push(Instant::now());
            here();
            end.recv().unwrap_or_default();
            drop(guard);
        };
        if i == 0 {
            // The lease may expire before the first waiter is seen in the queue.
            line.join(wait);
        } else {
            let (number, sender) = (i, line.sender.clone());
            let held = server.ask::<usize>(&["LLEN", &queue_key(&name)]) + line.received.len();
            line.crew
                .spawn(move || wait(&|| sender.send(number).unwrap()));
            eventually("it stands in line or has been served", || {
                server.ask::<usize>(&["LLEN", &queue_key(&name)]) + line.received.len() > held
            });
            line.joined += 1;
        }
    }
    eventually("all are served", || line.received.len() == 10);
    drop(done);
    drop(guard);
    line.served_in_order();
    let turns = turns.lock().unwrap();
    for pair in turns.windows(2) {
        let gap = pair[1] - pair[0];
        // Each grant is noticed a little late, so a gap may be a little shorter than the lease.
        assert!(
            gap >= LEASE - ms(60) && gap < LEASE + loosely(BY_MESSAGE),
            "{gap:?}"
        );
    }
    assert!(turns[9] - turns[0] >= LEASE * 9 - ms(60));
    nothing_left(&server);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reentry, and other kinds of locks
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn reentry_does_not_stand_in_line() {
    let server = Server::start();
    let name = unique("reentry");
    let (ours, theirs) = (open(&server), open(&server));
    let lock = ours.fair_lock(&name);
    let guard = lock.lock().unwrap();
    let mut line = Line::new(&server, &name);
    line.join_with(theirs.fair_lock(&name));
    line.join_with(ours.fair_lock(&name));
    line.all_parked();
    let stood = queue(&server, &name);
    let published = server.calls("publish");
    for wait in [None, Some(Duration::ZERO), Some(ms(50))] {
        let again = match wait {
            None => lock.lock().unwrap(),
            Some(wait) => lock.try_lock_for(wait).unwrap().expect("it is ours"),
        };
        assert_eq!((again.hold_count(), again.owner()), (2, guard.owner()));
        again.unlock().unwrap();
    }
    assert_eq!(queue(&server, &name), stood);
    assert_eq!(server.calls("publish"), published, "nobody is told");
    assert!(line.received.is_empty() && guard.is_valid());
    guard.unlock().unwrap();
    line.served_in_order();

    // With a fixed lease each reentry asks Redis; it takes no place in the queue either.
    let lock = ours.fair_lock(&name).fixed_lease(LONG);
    let guard = lock.lock().unwrap();
    let mut line = Line::new(&server, &name);
    line.join_with(theirs.fair_lock(&name));
    let again = lock.lock().unwrap();
    assert_eq!(again.hold_count(), 2);
    assert_eq!(queue(&server, &name).len(), 1);
    drop(again);
    assert!(line.received.is_empty());
    drop(guard);
    line.served_in_order();
    nothing_left(&server);
}

#[test]
fn the_lock_and_the_mutex_stand_in_one_line() {
    let server = Server::start();
    let name = unique("kinds");
    let client = open(&server);
    let other = open(&server);
    let mutex = client.fair_mutex(&name);
    let guard = mutex.lock().unwrap();
    let mut line = Line::new(&server, &name);
    line.join_with(other.fair_lock(&name));
    let theirs = other.fair_mutex(&name);
    line.join(move |here| theirs.with(|_| here()).unwrap());
    line.join_with(client.fair_lock(&name));
    for again in [
        mutex.lock(),
        mutex.try_lock_for(LONG).map(|guard| guard.unwrap()),
    ] {
        assert!(matches!(again, Err(Error::WouldDeadlock { .. })));
    }
    // The thread that holds the mutex may acquire the lock of that name again as a `FairLock`.
    let again = client.fair_lock(&name).lock().unwrap();
    assert_eq!(again.owner(), guard.owner());
    drop(again);
    assert_eq!(queue(&server, &name).len(), 3);
    drop(guard);
    line.served_in_order();
    nothing_left(&server);
}

// Waiters survive when an operator deletes the lock or its queue.
#[test]
fn a_deleted_lock_and_a_deleted_line_are_survived() {
    let server = Server::start();
    let name = unique("deleted");
    let clients = [open(&server), open(&server)].map(|client| client.fair_lock(&name));
    for keys in [
        vec![name.clone()],
        vec![queue_key(&name), timeouts_key(&name)],
        vec![queue_key(&name)],
        vec![timeouts_key(&name)],
        vec![name.clone(), queue_key(&name), timeouts_key(&name)],
    ] {
        let holder = open(&server);
        let guard = holder.fair_lock(&name).lock().unwrap();
        let mut line = Line::new(&server, &name);
        for i in 0..4 {
            line.join_with(clients[i % 2].clone());
        }
        line.all_parked();
        for key in &keys {
            server.cli(&["DEL", key]);
        }
        if !keys.contains(&name) {
            // The waiters' own polls restore the queue.
            queued(&server, &name, 4);
            eventually("each has a timeout", || timeouts(&server, &name).len() == 4);
            assert!(line.received.is_empty());
        }
        drop(guard);
        line.crew.join();
        let mut served: Vec<_> = line.received.try_iter().collect();
        if keys == [name.clone()] {
            assert_eq!(served, [0, 1, 2, 3]);
        }
        served.sort_unstable();
        assert_eq!(served, [0, 1, 2, 3]);
        nothing_left(&server);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Costs
// ---------------------------------------------------------------------------------------------------------------------

/// The cost of a script on the server since the last `CONFIG RESETSTAT`, in microseconds per call.
fn cost(server: &Server) -> f64 {
    let stats: String = server.ask(&["INFO", "commandstats"]);
    stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_eval"))
        .and_then(|line| line.split_once("usec_per_call=")?.1.split(',').next())
        .and_then(|each| each.parse().ok())
        .unwrap_or_else(|| panic!("no script in {stats}"))
}

// The length of the queue does not change the cost of a release.
#[test]
fn a_release_costs_the_same_however_long_the_queue() {
    const ROUNDS: usize = 100;
    const CROWD: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321";
    let server = Server::start();
    let client = open(&server);
    let name = unique("cost");
    let lock = client.fair_lock(&name);
    // The first call sends the script itself, the later ones its hash.
    lock.lock().unwrap().unlock().unwrap();
    let mut con = server.connection();
    let mut listener = server.connection();
    let mut head = listener.as_pubsub();
    head.subscribe(format!("{}:{CROWD}:0", channel(&name)))
        .unwrap();
    let cost_with = |con: &mut Connection, waiters: usize| -> f64 {
        let (queue, timeouts) = (queue_key(&name), timeouts_key(&name));
        let far = server_now(con) + 600_000.0;
        let mut fill = redis::pipe();
        for i in 0..waiters {
            let ticket = format!("{CROWD}:{i}");
            fill.rpush("aside:queue", &ticket).ignore();
            fill.zadd("aside:timeouts", &ticket, far + i as f64)
                .ignore();
        }
        let () = fill.query(con).unwrap();
        let mut costs = Vec::new();
        for _ in 0..ROUNDS {
            let guard = lock.lock().unwrap();
            // Put the queue there for the release only.
            let () = redis::pipe()
                .rename("aside:queue", &queue)
                .rename("aside:timeouts", &timeouts)
                .cmd("CONFIG")
                .arg("RESETSTAT")
                .query(con)
                .unwrap();
            guard.unlock().unwrap();
            costs.push(cost(&server));
            let calls = (server.calls("evalsha"), server.calls("publish"));
            assert_eq!(calls, (1, 1));
            let () = redis::pipe()
                .rename(&queue, "aside:queue")
                .rename(&timeouts, "aside:timeouts")
                .query(con)
                .unwrap();
        }
        let () = redis::cmd("DEL")
            .arg(&["aside:queue", "aside:timeouts"])
            .query(con)
            .unwrap();
        // The median, since a busy machine suspends the server now and then.
        costs.sort_by(f64::total_cmp);
        costs[costs.len() / 2]
    };
    let warm = cost_with(&mut con, 10);
    let (short, long) = (cost_with(&mut con, 10), cost_with(&mut con, 1_000));
    eprintln!("a release: {short:.1} us with 10 in line, {long:.1} us with 1000 ({warm:.1} cold)");
    assert!(long / short < 3.0, "{short} us, {long} us");
}

timed!(the_last_question_of_a_wait_is_no_rescue);
fn the_last_question_of_a_wait_is_no_rescue() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("last");
    // On an idle machine the first attempt succeeds.
    eventually("the last question finds it free", || {
        // Delete the lock without a message, after the waiter has parked and long before it polls.
        hold_by_stranger(&server, &name, 60_000);
        let waits = client.fair_lock(&name);
        let waiting = thread::spawn(move || waits.try_lock_for(ms(800)).unwrap().is_some());
        subscribed(&server, 1);
        server.cli(&["DEL", &name]);
        waiting.join().unwrap()
    });
    assert_eq!(client.stats().missed_messages, 0, "{:?}", client.stats());
}
