//! Many waiters, many holds, many names: their cost, the order of grants, and that nothing is left behind.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Config, Error, MultiLock, RedLock, Result};

use crate::support::{
    Crew, FAIR_LOCK, Kind, LONG, Mode, Part, Proxy, REENTRANT_LOCK, Server, Target, WRITING, alone,
    alone_with, connection_to, eventually, given, hold_by_stranger, increment, loosely, ms,
    nothing_is_left_of, open, open_with_lease, rss_kib, say, scoped, subscribed, thread_count,
    threads_named, timed, unique, within,
};

/// The shortest poll cap, with its jitter.
const POLL_CAP: Duration = ms(750);

fn channels(server: &Server) -> usize {
    server
        .ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "*"])
        .len()
}

// ---------------------------------------------------------------------------------------------------------------------
// Costs
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_thousand_waiters_cost_next_to_nothing);
fn a_thousand_waiters_cost_next_to_nothing() {
    const WAITERS: u64 = 1000;
    let server = Server::start();
    let client = open(&server);
    let prefix = unique("many");
    let names: Vec<_> = (0..WAITERS).map(|i| format!("{prefix}:{i}")).collect();
    let mut con = server.connection();
    for name in &names {
        let () = redis::pipe()
            .hset(name, "9f8e7d6c-5b4a-4321-8fed-cba987654321:57", 1)
            .pexpire(name, 120_000)
            .query(&mut con)
            .unwrap();
    }
    let token = CancelToken::new();
    let mut crew = Crew::new();
    for name in &names {
        let lock = client.reentrant_lock(name).cancel_on(&token);
        crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Cancelled))));
    }
    subscribed(&server, WAITERS);
    eventually("all have asked twice", || {
        server.calls("evalsha") >= 2 * WAITERS
    });
    assert_eq!(client.stats().subscriptions, WAITERS);
    assert_eq!(server.clients_named("subscriber").len(), 1);

    let (calls_before, begun) = (server.calls("evalsha"), Instant::now());
    thread::sleep(ms(1_500));
    let asked = server.calls("evalsha") - calls_before;
    // At most one poll per waiter and poll cap, plus the one that was about to be sent.
    let most = WAITERS * (1 + u64::try_from(begun.elapsed().as_millis()).unwrap() / 750);
    assert!(asked <= most, "{asked} questions in {:?}", begun.elapsed());

    token.cancel();
    crew.join();
    eventually("no subscription is left", || channels(&server) == 0);
    assert_eq!(client.stats().subscriptions, 0);
    assert_eq!(
        server.dbsize(),
        WAITERS,
        "the strangers' holds are unchanged"
    );
}

// An idle entry is removed, even if this process never held the lock.
#[test]
fn rooms_of_those_who_came_in_vain_go_too() {
    let server = Server::start();
    let client = open(&server);
    let names: Vec<_> = (0..8).map(|_| unique("vain")).collect();
    for name in &names {
        hold_by_stranger(&server, name, 120_000);
        let lock = client.reentrant_lock(name);
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.try_lock_for(ms(20)).unwrap().is_none());
    }
    eventually("no entry is left", || client.stats().names == 0);
}

timed!(of_many_waiters_for_one_lock_one_asks);
fn of_many_waiters_for_one_lock_one_asks() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("one");
    hold_by_stranger(&server, &name, 120_000);
    let mut crew = Crew::new();
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..200 {
        let (lock, done) = (client.reentrant_lock(&name), Arc::clone(&done));
        crew.spawn(move || {
            let _guard = lock.lock().unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    subscribed(&server, 1);
    crew.all_parked();
    let (calls_before, begun) = (server.calls("evalsha"), Instant::now());
    thread::sleep(ms(1000));
    let asked = server.calls("evalsha") - calls_before;
    let most = 1 + u64::try_from(begun.elapsed().as_millis()).unwrap() / 750;
    assert!(asked <= most, "{asked} questions");
    server.cli(&["DEL", &name]);
    crew.join();
    assert_eq!(done.load(Ordering::SeqCst), 200);
    eventually("no subscription is left", || channels(&server) == 0);
}

// Two threads renew any number of holds, and none expires.
timed!(ten_thousand_holds_are_renewed_by_one_thread);
fn ten_thousand_holds_are_renewed_by_one_thread() {
    alone(ten_thousand_holds_are_renewed_by_one_thread, || {
        const HOLDS: usize = 10_000;
        // Acquiring this many holds makes the machine busy, so the lease is measured generously.
        let lease = 3 * loosely(ms(1000));
        let server = Server::start();
        let client = open_with_lease(&server, lease);
        drop(client.reentrant_lock("warm").lock().unwrap());
        let threads = thread_count();
        let guards: Vec<_> = (0..HOLDS)
            .map(|i| client.reentrant_lock(format!("hold:{i}")).lock().unwrap())
            .collect();
        // Holds that are being renewed at this moment are not counted.
        eventually("all holds are registered", || {
            client.stats().holds == HOLDS as u64
        });
        assert_eq!(thread_count(), threads);
        assert!(threads_named("redlatch") <= 2);

        let begun = Instant::now();
        let renewed = client.stats().renewals;
        while begun.elapsed() < lease + ms(500) {
            assert!(guards.iter().all(redlatch::ReentrantLockGuard::is_valid));
            thread::sleep(ms(50));
        }
        let mut con = server.connection();
        let mut pipe = redis::pipe();
        for guard in &guards {
            pipe.pttl(guard.name());
        }
        let ttls: Vec<i64> = pipe.query(&mut con).unwrap();
        let lowest = ttls.iter().min().copied().unwrap();
        let third = i64::try_from(lease.as_millis()).unwrap() / 3;
        assert!(lowest > third, "{lowest} ms left of {lease:?}");
        let stats = client.stats();
        assert!(stats.renewals - renewed >= 2 * HOLDS as u64, "{stats:?}");
        assert_eq!((stats.lost, thread_count()), (0, threads));
        assert_eq!(server.clients_named("").len(), 2);
        drop(guards);
        eventually("all are released", || server.dbsize() == 0);
        assert_eq!(client.stats().holds, 0);
        eventually("no entry is left", || client.stats().names == 0);
    });
}

/// Locks and releases each of `names` names once, in two threads, and measures the memory.
fn use_names_once(names: u64) {
    let server = Server::start();
    let client = open(&server);
    let next = AtomicU64::new(0);
    let run = |until: u64| {
        scoped(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= until {
                            return;
                        }
                        drop(client.reentrant_lock(format!("name:{n}")).lock().unwrap());
                    }
                });
            }
        });
        next.store(until, Ordering::Relaxed);
    };
    run(names / 4);
    let (rss_before, mut most) = (rss_kib(), 0);
    for quarter in 2..=4 {
        run(names / 4 * quarter);
        most = most.max(client.stats().names);
    }
    let grown = rss_kib().saturating_sub(rss_before);
    // Keeping the memory that a name needs while it is in use would exceed twice this limit.
    assert!(grown < 4 * 1024, "{grown} KiB more, {most} names");
    assert!(most < names / 4, "entries go while others come: {most}");
    eventually("no entry is left", || client.stats().names == 0);
    let stats = client.stats();
    assert_eq!((stats.holds, stats.subscriptions), (0, 0));
    assert_eq!(stats.acquired, names / 4 * 4);
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn names_leave_no_memory_behind() {
    alone(names_leave_no_memory_behind, || use_names_once(40_000));
}

#[test]
#[ignore = "takes minutes"]
fn a_million_names_leave_no_memory_behind() {
    alone(a_million_names_leave_no_memory_behind, || {
        use_names_once(1_000_000);
    });
}

#[test]
fn a_client_without_contention_listens_to_nobody() {
    alone(a_client_without_contention_listens_to_nobody, || {
        let server = Server::start();
        let threads_before = thread_count();
        let client = open(&server);
        eventually("opening the client leaves no thread", || {
            thread_count() == threads_before
        });
        assert_eq!(server.clients_named("").len(), 1);
        let lock = client.reentrant_lock("calm");
        for _ in 0..50 {
            let guard = lock.lock().unwrap();
            assert!(lock.try_lock().unwrap().is_some());
            guard.unlock().unwrap();
        }
        assert!(thread_count() <= threads_before + 1);
        assert!(threads_named("redlatch") <= 1);
        assert!(server.clients_named("subscriber").is_empty());
        assert_eq!(server.calls("subscribe"), 0);
        // Passing the lock on inside the process needs no subscription either.
        let guard = lock.lock().unwrap();
        let mut crew = Crew::new();
        for _ in 0..4 {
            let lock = lock.clone();
            crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
        }
        crew.all_parked();
        drop(guard);
        crew.join();
        assert!(server.clients_named("subscriber").is_empty());
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// The order of grants
// ---------------------------------------------------------------------------------------------------------------------

/// Pseudo-random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % sides
    }
}

timed!(waiters_that_give_up_take_no_wake_up_with_them);
fn waiters_that_give_up_take_no_wake_up_with_them() {
    give_up_and_take_no_wake_up(REENTRANT_LOCK, 60, 20_000);
}

timed!(waiters_of_a_fair_lock_that_give_up_take_no_wake_up_with_them);
fn waiters_of_a_fair_lock_that_give_up_take_no_wake_up_with_them() {
    // Every waiter of a fair lock asks Redis itself, so fewer threads are enough.
    give_up_and_take_no_wake_up(FAIR_LOCK, 15, 30_000);
}

/// `threads` threads of three processes repeatedly wait for at most `patience` microseconds. The wait is longer on a
/// machine that is late, so that some waits succeed, but limited, so that others still time out.
fn give_up_and_take_no_wake_up(kind: Kind, threads: u64, patience: u64) {
    let longer = loosely(Duration::from_micros(patience)).as_micros();
    let patience = u64::try_from(longer).unwrap().min(3 * patience);
    let server = Server::start();
    let clients = [open(&server), open(&server), open(&server)];
    let name = unique("giveup");
    let grants = Arc::new(Mutex::new(vec![Instant::now()]));
    let done = Arc::new(AtomicBool::new(false));
    let (timed_out, cancelled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crew = Crew::new();
    for i in 0..threads {
        let lock = kind.of(&clients[usize::try_from(i % 3).unwrap()], &name);
        let (grants, done) = (Arc::clone(&grants), Arc::clone(&done));
        let (timed_out, cancelled) = (Arc::clone(&timed_out), Arc::clone(&cancelled));
        let mut dice = Dice(i + 1);
        dice.roll(1);
        crew.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let token = CancelToken::new();
                let wait = Duration::from_micros(dice.roll(patience));
                let begun = Instant::now();
                // Some waits end by a cancellation from another thread.
                let lock = lock.clone().cancel_on(&token);
                let outcome = if dice.roll(4) == 0 {
                    scoped(|scope| {
                        scope.spawn(|| {
                            thread::sleep(wait);
                            token.cancel();
                        });
                        lock.lock().map(|guard| {
                            hold_briefly(&grants, &mut dice);
                            drop(guard);
                        })
                    })
                } else {
                    lock.try_lock_for(wait).map(|guard| match guard {
                        Some(_guard) => hold_briefly(&grants, &mut dice),
                        None => {
                            assert!(begun.elapsed() >= wait);
                            timed_out.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                };
                match outcome {
                    Ok(()) => {}
                    Err(Error::Cancelled) => {
                        cancelled.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(err) => panic!("{err:?}"),
                }
            }
        });
    }
    thread::sleep(ms(800));
    // A slow machine needs longer to produce enough of each outcome.
    within(LONG, || {
        grants.lock().unwrap().len() > 100
            && timed_out.load(Ordering::Relaxed) > 50
            && cancelled.load(Ordering::Relaxed) > 10
    });
    done.store(true, Ordering::SeqCst);
    crew.join();
    let mut grants = grants.lock().unwrap().clone();
    assert!(grants.len() > 100, "{} grants", grants.len());
    assert!(timed_out.load(Ordering::Relaxed) > 50);
    assert!(cancelled.load(Ordering::Relaxed) > 10);
    grants.sort();
    let gap = grants.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(
        gap.unwrap() < loosely(ms(1500)),
        "the lock was free for {gap:?}"
    );
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
    eventually("no subscription is left", || channels(&server) == 0);
    for client in &clients {
        let guard = kind.of(client, &name).try_lock_for(LONG).unwrap();
        assert!(guard.is_some_and(|guard| guard.is_valid()));
        assert_eq!(client.stats().lost, 0);
    }
}

fn hold_briefly(grants: &Mutex<Vec<Instant>>, dice: &mut Dice) {
    grants.lock().unwrap().push(Instant::now());
    thread::sleep(Duration::from_micros(dice.roll(3000)));
}

// Two clients take turns, and no hand-over has to wait for a poll.
timed!(a_thousand_hand_overs_lose_no_message);
fn a_thousand_hand_overs_lose_no_message() {
    hand_over(REENTRANT_LOCK, 1000);
}

timed!(hand_overs_of_a_fair_lock_lose_no_message);
fn hand_overs_of_a_fair_lock_lose_no_message() {
    hand_over(FAIR_LOCK, 500);
}

timed!(hand_overs_between_writers_lose_no_message);
fn hand_overs_between_writers_lose_no_message() {
    hand_over(WRITING, 500);
}

fn hand_over(kind: Kind, rounds: u64) {
    let server = Server::start();
    let name = unique("handover");
    let clients = [(); 2].map(|()| {
        let config = Config::new(server.url()).tenure(Duration::ZERO);
        Client::open(config).unwrap()
    });
    let turn = AtomicU64::new(0);
    let slowest = Mutex::new(Duration::ZERO);
    let dropped = Mutex::new(Instant::now());
    scoped(|scope| {
        for (me, client) in clients.iter().enumerate() {
            let (turn, slowest, dropped) = (&turn, &slowest, &dropped);
            let lock = kind.of(client, &name);
            scope.spawn(move || {
                let me = me as u64;
                let mut last = u64::MAX;
                loop {
                    let guard = lock.try_lock_for(LONG).unwrap().expect("a hand-over");
                    let round = turn.load(Ordering::SeqCst);
                    if round >= rounds {
                        return;
                    }
                    if round % 2 == me && last != round {
                        // This round belongs to this thread; the other one noted the time just before its release.
                        let took = dropped.lock().unwrap().elapsed();
                        let mut slowest = slowest.lock().unwrap();
                        *slowest = took.max(*slowest);
                        last = round;
                        turn.store(round + 1, Ordering::SeqCst);
                        *dropped.lock().unwrap() = Instant::now();
                    }
                    drop(guard);
                }
            });
        }
    });
    let slowest = *slowest.lock().unwrap();
    assert!(slowest < loosely(POLL_CAP), "{slowest:?}");
    for client in &clients {
        assert_eq!(client.stats().lost, 0);
    }
    eventually("the lock is free", || nothing_is_left_of(kind, &server));
}

// Two processes that always want the lock share it: none keeps the other out.
timed!(a_process_that_hammers_gets_no_more_than_its_share);
fn a_process_that_hammers_gets_no_more_than_its_share() {
    const CHANGES: u64 = 100;
    let server = Server::start();
    let name = unique("share");
    let clients = [open(&server), open(&server)];
    let grants = [AtomicU64::new(0), AtomicU64::new(0)];
    // The current holder and since when, the number of changes, and the longest time between two changes.
    let turns = Mutex::new((usize::MAX, Instant::now(), 0_u64, Duration::ZERO));
    let until = Instant::now() + LONG;
    scoped(|scope| {
        for (me, client) in clients.iter().enumerate() {
            let (lock, grants, turns) = (client.reentrant_lock(&name), &grants, &turns);
            // The first process has many threads, the second a single one.
            for _ in 0..if me == 0 { 6 } else { 1 } {
                let lock = lock.clone();
                scope.spawn(move || {
                    while Instant::now() < until {
                        let _guard = lock.lock().unwrap();
                        grants[me].fetch_add(1, Ordering::SeqCst);
                        let mut turn = turns.lock().unwrap();
                        if turn.0 == me {
                            turn.3 = turn.1.elapsed().max(turn.3);
                        } else {
                            (turn.0, turn.1) = (me, Instant::now());
                            turn.2 += 1;
                        }
                        if turn.2 > CHANGES {
                            break;
                        }
                    }
                });
            }
        }
    });
    let (_, _, changes, longest) = *turns.lock().unwrap();
    assert!(changes > CHANGES, "{changes} changes, {grants:?}");
    assert!(
        longest < loosely(ms(750)),
        "one process had the lock for {longest:?}, {changes} changes"
    );
}

timed!(two_alike_processes_share_evenly);
fn two_alike_processes_share_evenly() {
    const GRANTS: u64 = 4_000;
    let server = Server::start();
    let name = unique("even");
    let clients = [open(&server), open(&server)];
    let (grants, total) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicU64::new(0));
    scoped(|scope| {
        for (client, grants) in clients.iter().zip(&grants) {
            let (lock, total) = (client.reentrant_lock(&name), &total);
            scope.spawn(move || {
                while total.fetch_add(1, Ordering::SeqCst) < GRANTS {
                    let _guard = lock.lock().unwrap();
                    grants.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let [one, other] = grants.map(AtomicU64::into_inner);
    let share = one.min(other) * 100 / (one + other);
    assert!(share > 20, "{one} to {other}");
}

/// A single attempt of a client whose tenure is over fails while another client waits, to let it go first. Without
/// waiters the attempt is not affected.
fn lets_go_first<T>(
    kind: &str,
    attempt: impl Fn(&Client, &str) -> Result<Option<T>>,
    wait: impl Fn(&Client, &str) + Sync,
) {
    const TENURE: Duration = ms(60);
    let server = Server::start();
    let name = unique(kind);
    let theirs = open(&server);
    let ours = Client::open(Config::new(server.url()).tenure(TENURE)).unwrap();
    if kind == "permit" {
        assert!(ours.semaphore(&name).try_set_permits(1).unwrap());
    }
    let attempt = || attempt(&ours, &name).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 2 * TENURE {
        assert!(attempt().is_some());
    }
    assert_eq!(ours.stats().yields, 0, "no other client waits");
    let lets_go_first = (0..5).any(|_| {
        let mut held = None;
        eventually("the lock is free", || {
            held = attempt();
            held.is_some()
        });
        let yields_before = ours.stats().yields;
        scoped(|scope| {
            scope.spawn(|| wait(&theirs, &name));
            eventually("the other client waits", || channels(&server) > 0);
            thread::sleep(TENURE);
            drop(held);
            // If this thread is suspended for a whole tenure, the attempt may miss its moment; then another round
            // decides.
            drop(attempt());
        });
        ours.stats().yields > yields_before
    });
    assert!(lets_go_first, "{kind}");
}

timed!(one_attempt_lets_others_go_first_once_its_process_had_its_tenure);
fn one_attempt_lets_others_go_first_once_its_process_had_its_tenure() {
    lets_go_first(
        "lock",
        |client, name| client.mutex(name).try_lock(),
        |client, name| drop(client.mutex(name).lock().unwrap()),
    );
    lets_go_first(
        "write",
        |client, name| client.rw_lock(name).try_write(),
        |client, name| drop(client.rw_lock(name).write().unwrap()),
    );
    lets_go_first(
        "permit",
        |client, name| client.semaphore(name).try_acquire(),
        |client, name| drop(client.semaphore(name).acquire().unwrap()),
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Waits that end
// ---------------------------------------------------------------------------------------------------------------------

/// An object that can be waited for.
struct Wanted {
    title: &'static str,
    /// Waits for at most the given time; returns whether the wait succeeded.
    wants: Box<dyn Fn(Duration) -> Result<bool>>,
    is_free: Box<dyn Fn() -> bool>,
}

/// An object of each kind. `clients` wait, and `there` are direct clients of the same servers that show the state.
fn kinds(there: &[Client; 3], clients: &[Client; 3]) -> Vec<Wanted> {
    macro_rules! lock {
        ($title:literal, $lock:expr) => {{
            let (ours, theirs) = ($lock(clients), $lock(there));
            Wanted {
                title: $title,
                wants: Box::new(move |wait| Ok(ours.try_lock_for(wait)?.is_some())),
                is_free: Box::new(move || !theirs.is_locked().unwrap()),
            }
        }};
    }
    let semaphores = (
        there[0].semaphore("permits"),
        clients[0].semaphore("permits"),
    );
    assert!(semaphores.0.try_set_permits(2).unwrap());
    let leased = (
        there[0].expirable_semaphore("leased"),
        clients[0].expirable_semaphore("leased"),
    );
    assert!(leased.0.try_set_permits(2).unwrap());
    assert!(there[0].latch("latch").try_set_count(1).unwrap());
    let latch = clients[0].latch("latch");
    let (reads, writes) = (clients[0].rw_lock("reads"), clients[0].rw_lock("writes"));
    let (read, written) = (there[0].rw_lock("reads"), there[0].rw_lock("writes"));
    vec![
        lock!("reentrant", |of: &[Client; 3]| of[0].reentrant_lock("a")),
        lock!("mutex", |of: &[Client; 3]| of[0].mutex("b")),
        lock!("fair", |of: &[Client; 3]| of[0].fair_lock("c")),
        lock!("fenced", |of: &[Client; 3]| of[0].fenced_lock("d")),
        lock!("spin", |of: &[Client; 3]| of[0].spin_lock("e")),
        lock!("names", |of: &[Client; 3]| of[0].multi_lock(["f", "g"])),
        lock!("members", |of: &[Client; 3]| MultiLock::new(
            of.iter()
                .map(|client| Box::new(client.mutex("h")) as Box<dyn redlatch::Lock>)
                .collect()
        )),
        lock!("majority", |of: &[Client; 3]| RedLock::new(of, "i")
            .unwrap()),
        Wanted {
            title: "read",
            wants: Box::new(move |wait| Ok(reads.try_read_for(wait)?.is_some())),
            is_free: Box::new(move || !read.is_read_locked().unwrap()),
        },
        Wanted {
            title: "write",
            wants: Box::new(move |wait| Ok(writes.try_write_for(wait)?.is_some())),
            is_free: Box::new(move || !written.is_write_locked().unwrap()),
        },
        Wanted {
            title: "semaphore",
            wants: Box::new(move |wait| Ok(semaphores.1.try_acquire_for(wait)?.is_some())),
            is_free: Box::new(move || semaphores.0.available_permits().unwrap() == 2),
        },
        Wanted {
            title: "expirable semaphore",
            wants: Box::new(move |wait| Ok(leased.1.try_acquire_for(wait)?.is_some())),
            is_free: Box::new(move || leased.0.available_permits().unwrap() == 2),
        },
        Wanted {
            title: "latch",
            wants: Box::new(move |wait| latch.wait_for(wait)),
            is_free: Box::new(|| true),
        },
    ]
}

timed!(a_limit_that_is_too_short_for_a_slow_answer_is_no_error_and_leaves_nothing);
fn a_limit_that_is_too_short_for_a_slow_answer_is_no_error_and_leaves_nothing() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n: usize| Proxy::start(servers[n].addr()));
    let direct = [0, 1, 2].map(|n: usize| open(&servers[n]));
    let clients = [0, 1, 2].map(|n: usize| {
        let config = Config::new(proxies[n].url()).command_timeout(LONG);
        Client::open(config).unwrap()
    });
    let kinds = kinds(&direct, &clients);
    for proxy in &proxies {
        proxy.set(Target::Link, Mode::Delay(ms(1000)));
    }
    for kind in &kinds {
        for _ in 0..20 {
            let begun = Instant::now();
            let got = (kind.wants)(ms(2));
            assert!(begun.elapsed() >= ms(2), "{}", kind.title);
            assert!(matches!(got, Ok(false)), "{}: {got:?}", kind.title);
        }
    }
    for proxy in &proxies {
        proxy.pass();
    }
    for kind in &kinds {
        eventually(kind.title, || (kind.is_free)());
        // The connections still work.
        let got = (kind.wants)(if kind.title == "latch" { ms(1) } else { LONG });
        assert_eq!(got.unwrap(), kind.title != "latch", "{}", kind.title);
    }
    for client in clients {
        // A connection that was idle for a while may have been replaced, but no attempt costs a connection.
        assert!(client.stats().reconnects <= 1);
    }
}

timed!(one_more_hold_whose_renewal_is_answered_late_is_not_had_and_costs_nothing);
fn one_more_hold_whose_renewal_is_answered_late_is_not_had_and_costs_nothing() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n: usize| Proxy::start(servers[n].addr()));
    let clients = [0, 1, 2].map(|n: usize| {
        let config = Config::new(proxies[n].url()).command_timeout(LONG);
        Client::open(config).unwrap()
    });
    // A renewed lease would cover the second hold without any request.
    let lease = Duration::from_secs(60);
    let one = clients[0].reentrant_lock("one").fixed_lease(lease);
    let majority = RedLock::new(&clients, "majority")
        .unwrap()
        .fixed_lease(lease);
    let (held, kept) = (one.lock().unwrap(), majority.lock().unwrap());
    for proxy in &proxies {
        proxy.set(Target::Link, Mode::Delay(ms(1000)));
    }
    assert!(one.try_lock_for(ms(5)).unwrap().is_none());
    assert!(majority.try_lock_for(ms(5)).unwrap().is_none());
    assert!(held.is_valid() && kept.is_valid());
    assert_eq!((held.hold_count(), kept.hold_count()), (1, 1));
    for proxy in &proxies {
        proxy.pass();
    }
    held.unlock().unwrap();
    kept.unlock().unwrap();
    for server in &servers {
        eventually("nothing is left", || server.dbsize() == 0);
    }
}

timed!(one_more_hold_that_had_no_answer_is_given_back_however_long_redis_keeps_it);
fn one_more_hold_that_had_no_answer_is_given_back_however_long_redis_keeps_it() {
    let response = loosely(ms(200));
    let servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n: usize| Proxy::start(servers[n].addr()));
    let clients = [0, 1, 2].map(|n: usize| {
        let config = Config::new(proxies[n].url()).command_timeout(response);
        Client::open(config).unwrap()
    });
    let one = |lease| clients[0].reentrant_lock("one").fixed_lease(lease);
    let majority = |lease| {
        RedLock::new(&clients, "majority")
            .unwrap()
            .fixed_lease(lease)
    };
    let (shorter, longer) = (4 * response, 60 * LONG);
    let held = (
        one(shorter).lock().unwrap(),
        majority(shorter).lock().unwrap(),
    );
    // Load the scripts now: without replies the client could not learn that a script is missing.
    drop((
        one(shorter).lock().unwrap(),
        majority(shorter).lock().unwrap(),
    ));
    for proxy in &proxies {
        proxy.set(Target::All, Mode::SwallowReplies);
    }
    assert!(one(longer).lock().is_err() && majority(longer).lock().is_err());
    for proxy in &proxies {
        proxy.set(Target::All, Mode::BlackHole);
    }
    drop(held);
    // Wait until the shorter lease cannot explain a key that is gone.
    thread::sleep(2 * shorter);
    for proxy in &proxies {
        proxy.pass();
    }
    for (server, client) in servers.iter().zip(&clients) {
        eventually("nothing is left", || server.dbsize() == 0);
        assert_eq!(client.stats().releases_failed, 0);
    }
}

#[test]
fn a_server_that_is_away_is_an_error_however_short_the_limit() {
    let mut servers = [(); 3].map(|()| Server::start());
    let clients = [0, 1, 2].map(|n: usize| open(&servers[n]));
    let kinds = kinds(&clients, &clients);
    for server in &mut servers {
        server.kill();
    }
    for kind in &kinds {
        for _ in 0..3 {
            let err = (kind.wants)(ms(2)).expect_err(kind.title);
            assert!(err.is_retryable(), "{}: {err}", kind.title);
            match (kind.title, &err) {
                ("names", Error::Members { failures, .. }) => assert_eq!(failures.len(), 2),
                ("members", Error::Members { failures, .. }) => assert_eq!(failures.len(), 3),
                ("majority", Error::NoQuorum { failures, .. }) => assert!(failures.len() >= 2),
                (_, Error::Redis { .. }) => {}
                _ => panic!("{}: {err:?}", kind.title),
            }
        }
    }
    close_at_once(&clients);
}

/// Closes without waiting for the undo of acquires on unreachable servers.
fn close_at_once(clients: &[Client]) {
    for client in clients {
        client.close(Duration::ZERO).ok();
    }
}

timed!(a_minority_that_is_away_is_no_error_while_the_others_are_slow);
fn a_minority_that_is_away_is_no_error_while_the_others_are_slow() {
    let mut servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n: usize| Proxy::start(servers[n].addr()));
    let clients = [0, 1, 2].map(|n: usize| {
        let config = Config::new(proxies[n].url()).command_timeout(LONG);
        Client::open(config).unwrap()
    });
    let lock = RedLock::new(&clients, "slow").unwrap();
    for proxy in &proxies {
        proxy.set(Target::Link, Mode::Delay(ms(1000)));
    }
    let away = |n: usize, servers: &mut [Server; 3]| {
        servers[n].kill();
        proxies[n].set(Target::All, Mode::Refuse);
        proxies[n].cut(Target::All);
    };
    away(1, &mut servers);
    for _ in 0..10 {
        assert!(lock.try_lock_for(ms(2)).unwrap().is_none());
    }
    away(2, &mut servers);
    match lock.try_lock_for(ms(2)) {
        Err(err @ Error::NoQuorum { .. }) => assert!(err.is_retryable()),
        other => panic!("{other:?}"),
    }
    close_at_once(&clients);
}

timed!(silence_is_no_error_at_first_and_one_in_the_long_run);
fn silence_is_no_error_at_first_and_one_in_the_long_run() {
    const RESPONSE: Duration = ms(1000);
    let servers = [(); 3].map(|()| Server::start());
    let clients = [0, 1, 2].map(|n: usize| {
        let config = Config::new(servers[n].url()).command_timeout(RESPONSE);
        Client::open(config).unwrap()
    });
    let kinds = kinds(&clients, &clients);
    for server in &servers {
        server.freeze();
    }
    let begun = Instant::now();
    let mut patient = 0;
    for kind in &kinds {
        eventually(kind.title, || match (kind.wants)(ms(10)) {
            Ok(got) => {
                assert!(!got, "{}", kind.title);
                patient += 1;
                false
            }
            // No reply has arrived for half the command timeout.
            Err(err) => {
                assert!(begun.elapsed() >= RESPONSE / 2, "{}: {err}", kind.title);
                assert!(err.is_retryable(), "{}: {err}", kind.title);
                true
            }
        });
    }
    assert!(patient > 0);
    close_at_once(&clients);
}

#[test]
fn a_thread_that_cannot_be_started_is_not_put_down_to_redis() {
    // With this stack size no thread of the process can be started.
    let stacks = [("RUST_MIN_STACK", "140737488355328")];
    let this = a_thread_that_cannot_be_started_is_not_put_down_to_redis;
    alone_with(this, &stacks, || {
        let server = Server::start();
        let err = Client::open(server.client_url()).unwrap_err();
        let Error::Spawn { thread, source, .. } = &err else {
            panic!("{err:?}");
        };
        assert_eq!(*thread, "redlatch-connect");
        assert!(err.is_retryable(), "{source}");
        assert!(err.to_string().contains(&source.to_string()), "{err}");
        assert_eq!(server.dbsize(), 0);
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Processes
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_wait_leaves_its_subscription_to_the_next);
fn a_wait_leaves_its_subscription_to_the_next() {
    const WAITS: u64 = 20;
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch("latch");
    assert!(latch.try_set_count(1).unwrap());
    let (plain, expirable) = (client.semaphore("sem"), client.expirable_semaphore("xsem"));
    let subscriptions = || (server.calls("subscribe"), server.calls("unsubscribe"));
    let waits: [(&str, &dyn Fn() -> bool); 3] = [
        ("latch", &|| latch.wait_for(ms(10)).unwrap()),
        ("semaphore", &|| {
            plain.try_acquire_for(ms(10)).unwrap().is_some()
        }),
        ("expirable semaphore", &|| {
            expirable.try_acquire_for(ms(10)).unwrap().is_some()
        }),
    ];
    for (kind, wait) in waits {
        let calls_before = subscriptions();
        for _ in 0..WAITS {
            assert!(!wait(), "{kind}");
        }
        let subscribed = subscriptions().0 - calls_before.0;
        assert!(subscribed < WAITS / 2, "{kind}: {subscribed}");
        eventually("no subscription is left", || {
            let (subscribed, unsubscribed) = subscriptions();
            client.stats().subscriptions == 0 && subscribed == unsubscribed
        });
    }
    // The subscription that an earlier wait left open delivers the message to the next wait.
    let calls_before = server.calls("subscribe");
    scoped(|scope| {
        let waiting = scope.spawn(|| latch.wait().unwrap());
        eventually("the waiter is subscribed", || {
            client.stats().subscriptions == 1
        });
        let rescues = client.stats().missed_messages;
        open(&server).latch("latch").count_down().unwrap();
        waiting.join().unwrap();
        assert_eq!(client.stats().missed_messages, rescues);
    });
    assert!(server.calls("subscribe") <= calls_before + 1);
}

#[test]
fn processes_exclude_each_other() {
    let server = Server::start();
    let name = unique("procs");
    let parts: Vec<_> = (0..3)
        .map(|_| Part::start(part_that_counts, &[&server.url(), &name]))
        .collect();
    for mut part in parts {
        part.ends();
    }
    assert_eq!(server.get_int("counter"), 3 * 2 * 150);
    assert!(!server.exists(&name));
}

#[test]
#[ignore = "part of processes_exclude_each_other"]
fn part_that_counts() {
    let Some([url, name]) = given() else {
        return;
    };
    let client = Client::open(&*url).unwrap();
    scoped(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let lock = client.reentrant_lock(&name);
                let mut con = connection_to(&url);
                for _ in 0..150 {
                    lock.with(|_| increment(&mut con, "counter")).unwrap();
                }
            });
        }
    });
}

timed!(the_lock_of_a_killed_process_is_free_when_its_lease_is_over);
fn the_lock_of_a_killed_process_is_free_when_its_lease_is_over() {
    let lease = loosely(ms(1000));
    let server = Server::start();
    let name = unique("killed");
    let lease_ms = lease.as_millis().to_string();
    let mut holder = Part::start(part_that_holds, &[&server.url(), &name, &lease_ms]);
    holder.says("holds");
    let client = open(&server);
    let lock = client.reentrant_lock(&name);
    // The holder renews its lease for longer than one lease.
    assert!(lock.try_lock_for(lease + ms(300)).unwrap().is_none());
    let mut crew = Crew::new();
    let granted = Arc::new(Mutex::new(None));
    crew.spawn({
        let granted = Arc::clone(&granted);
        move || {
            let _guard = lock.lock().unwrap();
            *granted.lock().unwrap() = Some(Instant::now());
        }
    });
    subscribed(&server, 1);
    let killed = Instant::now();
    holder.kill();
    crew.join();
    let took = granted.lock().unwrap().unwrap() - killed;
    // The last renewal was at most a third of the lease ago.
    assert!(took > lease / 2, "{took:?}");
    assert!(took < lease + loosely(ms(1000)), "{took:?}");
}

#[test]
#[ignore = "part of the_lock_of_a_killed_process_is_free_when_its_lease_is_over"]
fn part_that_holds() {
    let Some([url, name, lease]) = given() else {
        return;
    };
    let lease = lease.parse().unwrap();
    let client = Client::open(Config::new(url).lease(ms(lease))).unwrap();
    let guard = client.reentrant_lock(name).lock().unwrap();
    say("holds");
    // The part is killed, or ends together with its parent.
    let gone = within(Duration::from_secs(30), || !guard.is_valid());
    assert!(gone);
}
