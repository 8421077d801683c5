//! What every exclusive lock must do, whatever its kind. A lock plugs in with one line at the foot of this file.

use std::collections::HashSet;
use std::fmt::Debug;
use std::fs;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use redis::Connection;
use redlatch::{CancelToken, Client, Config, Error, Loss, LossReason, Result};

use crate::support::{Mode, Proxy, Server, Target, eventually, ms, unique};

/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(10);

/// Well under the poll cap: what happens sooner was brought about by a message.
const BY_MESSAGE: Duration = Duration::from_millis(500);

/// Somebody who is not of this crate: a Redisson client and one of its threads.
const STRANGER: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321:57";

/// What all handles have in common.
pub(crate) trait Lock: Clone + Debug + Send + Sync + 'static {
    type Guard: Guard;

    const REENTRANT: bool;

    fn of(client: &Client, name: &str) -> Self;
    fn lease(self, lease: Duration) -> Self;
    fn max_hold(self, max_hold: Duration) -> Self;
    fn cancel_on(self, token: &CancelToken) -> Self;
    fn lock(&self) -> Result<Self::Guard>;
    fn try_lock(&self) -> Result<Option<Self::Guard>>;
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>>;
    fn try_lock_until(&self, instant: Instant) -> Result<Option<Self::Guard>>;
    fn with<T>(&self, work: impl FnOnce(&Self::Guard) -> T) -> Result<T>;
    fn is_locked(&self) -> Result<bool>;
    fn is_owned_by_current_thread(&self) -> bool;
    fn hold_count(&self) -> u32;
    fn remaining(&self) -> Result<Option<Duration>>;
    fn force_unlock(&self) -> Result<bool>;
    fn name(&self) -> &str;
}

/// What all guards have in common.
pub(crate) trait Guard: Debug {
    fn unlock(self) -> Result<()>;
    fn is_valid(&self) -> bool;
    fn valid_until(&self) -> Instant;
    fn lost(&self) -> &Receiver<Loss>;
    fn name(&self) -> &str;
    fn owner(&self) -> &str;
    fn hold_count(&self) -> u32;
}

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// Threads under a name of their own, so that they can be watched.
pub(crate) struct Crew {
    tag: String,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            tag: format!("crew-{:x}", NEXT.fetch_add(1, Ordering::Relaxed)),
            threads: Vec::new(),
        }
    }

    pub(crate) fn spawn(&mut self, work: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new()
            .name(self.tag.clone())
            .stack_size(256 * 1024)
            .spawn(work)
            .expect("a thread");
        self.threads.push(thread);
    }

    /// Waits until every thread that was spawned sleeps and goes on sleeping.
    pub(crate) fn all_parked(&self) {
        let mut looks = 0;
        eventually("all threads are parked", || {
            if self.asleep() == self.threads.len() {
                looks += 1;
            } else {
                looks = 0;
            }
            looks > 4
        });
    }

    fn asleep(&self) -> usize {
        let Ok(tasks) = fs::read_dir("/proc/self/task") else {
            return 0;
        };
        let name = format!("({}) S ", self.tag);
        tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
            .filter(|stat| stat.contains(&name))
            .count()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    pub(crate) fn join(self) {
        eventually("all threads have ended", || self.is_finished());
        for thread in self.threads {
            thread.join().expect("a thread of the crew");
        }
    }
}

pub(crate) fn open(server: &Server) -> Client {
    Client::open(server.url()).unwrap()
}

/// A client with another lease.
pub(crate) fn open_with_lease(server: &Server, lease: Duration) -> Client {
    Client::open(Config::new(server.url()).lease(lease)).unwrap()
}

/// Waits until the server has `n` subscriptions of this crate.
#[track_caller]
pub(crate) fn subscribed(server: &Server, n: u64) {
    eventually("the waiting clients are subscribed", || {
        let clients = server.clients_named("redlatch-subscriber");
        clients
            .iter()
            .map(|client| client.subscriptions)
            .sum::<u64>()
            == n
    });
}

/// A lock held by somebody else, made by hand.
pub(crate) fn hold_by_stranger(server: &Server, name: &str, lease_ms: u64) {
    server.cli(&["HSET", name, STRANGER, "1"]);
    server.cli(&["PEXPIRE", name, &lease_ms.to_string()]);
}

fn is_held_by_stranger(server: &Server, name: &str) -> bool {
    server.hgetall(name) == [(STRANGER.to_owned(), "1".to_owned())]
}

/// One more in the counter, as racy as can be.
pub(crate) fn increment(con: &mut Connection, counter: &str) {
    let n: Option<u64> = redis::cmd("GET").arg(counter).query(con).unwrap();
    let () = redis::cmd("SET")
        .arg(counter)
        .arg(n.unwrap_or(0) + 1)
        .query(con)
        .unwrap();
}

#[track_caller]
fn assert_lost<T: Debug>(result: Result<T>, name: &str, reason: LossReason) {
    match result {
        Err(Error::Lost {
            name: its,
            reason: why,
        }) => {
            assert_eq!((its.as_str(), why), (name, reason));
        }
        other => panic!("not lost: {other:?}"),
    }
}

/// Runs `work` on a thread of its own, which holds nothing.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().expect("a thread"))
}

// ---------------------------------------------------------------------------------------------------------------------
// Exclusion
// ---------------------------------------------------------------------------------------------------------------------

fn threads_and_clients_exclude_each_other<L: Lock>() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let (name, counter) = (unique("excl"), unique("counter"));
    let clients = [open(&server), open(&server), open(&server)];
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in &clients {
            for thread in 0..4 {
                let (lock, counter, inside) = (L::of(client, &name), &counter, &inside);
                let mut con = server.connection();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let guard = match (thread + round) % 3 {
                            0 => lock.lock().unwrap(),
                            1 => lock.try_lock_for(LONG).unwrap().unwrap(),
                            _ => loop {
                                if let Some(guard) = lock.try_lock().unwrap() {
                                    break guard;
                                }
                                thread::yield_now();
                            },
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                        increment(&mut con, counter);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        if round % 2 == 0 {
                            guard.unlock().unwrap();
                        }
                    }
                });
            }
        }
    });
    assert_eq!(server.get_int(&counter), 3 * 4 * 40);
    eventually("the lock is free", || !server.exists(&name));
}

fn busy_is_none<L: Lock>() {
    let server = Server::start();
    let name = unique("busy");
    let (ours, theirs) = (open(&server), open(&server));
    let guard = L::of(&ours, &name).lock().unwrap();
    assert!(L::of(&theirs, &name).try_lock().unwrap().is_none());
    // Reentrant or not: another thread is another.
    elsewhere(|| {
        assert!(L::of(&ours, &name).try_lock().unwrap().is_none());
        assert!(L::of(&ours, &name).try_lock_for(ms(30)).unwrap().is_none());
    });
    guard.unlock().unwrap();
    let theirs = L::of(&theirs, &name).try_lock().unwrap();
    assert!(theirs.is_some_and(|guard| guard.is_valid()));
    elsewhere(|| {
        // The release of the drop is under way on another connection.
        assert!(L::of(&ours, &name).try_lock_for(LONG).unwrap().is_some());
    });
}

fn a_limited_wait_takes_its_time_and_gives_none<L: Lock>() {
    const WAIT: Duration = ms(150);
    let server = Server::start();
    let name = unique("limit");
    let (holder, client) = (open(&server), open(&server));
    let _guard = L::of(&holder, &name).lock().unwrap();
    let lock = L::of(&client, &name);
    // As the one who asks Redis, and as one in line of the holder's process.
    for lock in [lock, L::of(&holder, &name)] {
        elsewhere(|| {
            let begun = Instant::now();
            assert!(lock.try_lock_for(WAIT).unwrap().is_none());
            let took = begun.elapsed();
            assert!(took >= WAIT && took < WAIT + BY_MESSAGE, "{took:?}");

            let until = Instant::now() + WAIT;
            assert!(lock.try_lock_until(until).unwrap().is_none());
            let late = Instant::now().saturating_duration_since(until);
            assert!(Instant::now() >= until && late < BY_MESSAGE, "{late:?}");
        });
    }
}

fn no_wait_is_one_attempt<L: Lock>() {
    let server = Server::start();
    let name = unique("once");
    let client = open(&server);
    drop(L::of(&client, &unique("warm")).lock().unwrap());
    hold_by_stranger(&server, &name, 60_000);
    let lock = L::of(&client, &name);
    let past = Instant::now();
    let before = server.calls("evalsha");
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(server.calls("evalsha") - before, 1);
    assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
    assert_eq!(server.calls("evalsha") - before, 2);
    assert!(lock.try_lock_until(past).unwrap().is_none());
    assert_eq!(server.calls("evalsha") - before, 3);
    assert!(
        server.clients_named("redlatch-subscriber").is_empty(),
        "nobody waited"
    );
    server.cli(&["DEL", &name]);
    assert!(lock.try_lock().unwrap().is_some());
    let zero = L::of(&client, &unique("zero"));
    assert!(zero.try_lock_for(Duration::ZERO).unwrap().is_some());
    let past_one = L::of(&client, &unique("past"));
    assert!(past_one.try_lock_until(past).unwrap().is_some());
}

fn an_endless_wait_ends_with_the_lock<L: Lock>() {
    let server = Server::start();
    let name = unique("endless");
    let (holder, client) = (open(&server), open(&server));
    let guard = L::of(&holder, &name).lock().unwrap();
    let mut crew = Crew::new();
    let lock = L::of(&client, &name);
    crew.spawn(move || {
        assert!(lock.try_lock_for(Duration::MAX).unwrap().is_some());
    });
    subscribed(&server, 1);
    crew.all_parked();
    assert!(!crew.is_finished());
    drop(guard);
    crew.join();
}

fn with_holds_the_lock_for_as_long_as_it_runs<L: Lock>() {
    let server = Server::start();
    let name = unique("with");
    let client = open(&server);
    let lock = L::of(&client, &name);
    let owner = lock.with(|guard| {
        assert!(guard.is_valid());
        assert_eq!(server.hgetall(&name)[0].0, guard.owner());
        guard.owner().to_owned()
    });
    assert!(owner.unwrap().contains(':'));
    assert!(!server.exists(&name), "with waits for the release");
    // O6
    let lost = lock.with(|_| {
        server.cli(&["DEL", &name]);
    });
    assert_lost(lost, &name, LossReason::Forced);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        lock.with(|_| panic!("on purpose")).unwrap_or(())
    }));
    assert!(panicked.is_err());
    eventually("a panic gives it back", || !server.exists(&name));
}

// ---------------------------------------------------------------------------------------------------------------------
// Waking
// ---------------------------------------------------------------------------------------------------------------------

// L1
fn a_drop_wakes_a_waiter_of_another_client_by_message<L: Lock>() {
    let server = Server::start();
    let name = unique("wake");
    let (holder, client) = (open(&server), open(&server));
    for round in 1..=3 {
        let guard = L::of(&holder, &name).lock().unwrap();
        let (tell, told) = unbounded();
        let mut crew = Crew::new();
        let lock = L::of(&client, &name);
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            tell.send(Instant::now()).unwrap();
            guard.unlock().unwrap();
        });
        subscribed(&server, 1);
        crew.all_parked();
        let dropped = Instant::now();
        drop(guard);
        let granted = told.recv_timeout(LONG).unwrap();
        assert!(granted - dropped < BY_MESSAGE, "{:?}", granted - dropped);
        crew.join();
        assert!(client.stats().wakes >= round, "{:?}", client.stats());
        subscribed(&server, 0);
    }
    assert_eq!(client.stats().poll_rescues, 0);
}

fn a_release_publishes_redissons_message<L: Lock>() {
    let server = Server::start();
    let client = open(&server);
    for (name, channel) in [
        ("plain", "redisson_lock__channel:{plain}"),
        ("tag{ged}", "redisson_lock__channel:tag{ged}"),
    ] {
        let mut con = server.connection();
        let mut pubsub = con.as_pubsub();
        pubsub.subscribe(channel).unwrap();
        for waits in [true, false] {
            let guard = L::of(&client, name).lock().unwrap();
            if waits {
                guard.unlock().unwrap();
            } else {
                drop(guard);
            }
            let message = pubsub.get_message().unwrap();
            assert_eq!(message.get_payload::<String>().unwrap(), "0");
        }
        let _guard = L::of(&client, name).lock().unwrap();
        elsewhere(|| assert!(L::of(&client, name).force_unlock().unwrap()));
        let message = pubsub.get_message().unwrap();
        assert_eq!(message.get_payload::<String>().unwrap(), "0");
    }
}

fn a_strangers_lock_is_waited_for<L: Lock>() {
    let server = Server::start();
    let name = unique("stranger");
    let client = open(&server);
    hold_by_stranger(&server, &name, 60_000);
    let lock = L::of(&client, &name);
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.is_locked().unwrap() && !lock.is_owned_by_current_thread());
    let (tell, told) = unbounded();
    let mut crew = Crew::new();
    crew.spawn(move || {
        let _guard = lock.lock().unwrap();
        tell.send(Instant::now()).unwrap();
    });
    subscribed(&server, 1);
    crew.all_parked();
    assert!(is_held_by_stranger(&server, &name), "left as it is");
    server.cli(&["DEL", &name]);
    let freed = Instant::now();
    server.cli(&[
        "PUBLISH",
        &format!("redisson_lock__channel:{{{name}}}"),
        "0",
    ]);
    let granted = told.recv_timeout(LONG).unwrap();
    assert!(granted - freed < BY_MESSAGE, "{:?}", granted - freed);
    crew.join();
}

// L2
fn a_vanished_lock_is_noticed_without_a_message<L: Lock>() {
    let server = Server::start();
    let client = open(&server);
    // Deleted by hand: the poll cap ends the wait. Expired: the lease does.
    for (lease_ms, deleted) in [(60_000, true), (400, false)] {
        let name = unique("vanish");
        hold_by_stranger(&server, &name, lease_ms);
        let begun = Instant::now();
        let (tell, told) = unbounded();
        let mut crew = Crew::new();
        let lock = L::of(&client, &name);
        crew.spawn(move || {
            let _guard = lock.lock().unwrap();
            tell.send(Instant::now()).unwrap();
        });
        subscribed(&server, 1);
        crew.all_parked();
        if deleted {
            server.cli(&["DEL", &name]);
        }
        let granted = told.recv_timeout(LONG).unwrap();
        let took = granted - begun;
        if deleted {
            assert!(took < ms(2500), "the poll cap is a second: {took:?}");
        } else {
            assert!(took < ms(400) + BY_MESSAGE, "{took:?}");
        }
        crew.join();
        subscribed(&server, 0);
    }
    assert!(client.stats().poll_rescues >= 2, "{:?}", client.stats());
}

fn passing_it_on_inside_the_process_sends_nothing<L: Lock>() {
    const THREADS: u64 = 16;
    let server = Server::start();
    let name = unique("pass");
    let client = Client::open(Config::new(server.url()).tenure(Duration::from_secs(1))).unwrap();
    drop(L::of(&client, &unique("warm")).lock().unwrap());
    eventually("Redis knows the scripts", || server.dbsize() == 0);
    let lock = L::of(&client, &name);
    let guard = lock.lock().unwrap();
    let owner = guard.owner().to_owned();
    let mut crew = Crew::new();
    for _ in 0..THREADS {
        let (lock, owner) = (lock.clone(), owner.clone());
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            assert!(guard.is_valid() && guard.hold_count() == 1);
            assert_eq!(guard.owner(), owner, "one tenure, one owner");
            guard.unlock().unwrap();
        });
    }
    crew.all_parked();
    let before = client.stats();
    let commands = server.command_total();
    guard.unlock().unwrap();
    crew.join();
    let after = client.stats();
    assert_eq!(after.passed - before.passed, THREADS);
    assert_eq!(
        after.commands - before.commands,
        1,
        "the release of the last"
    );
    assert_eq!(after.acquired, before.acquired);
    // Of the server's own counting: EVALSHA, HDEL, EXISTS, PUBLISH.
    assert_eq!(server.command_total() - commands, 4);
    assert!(!server.exists(&name));
}

fn threads_of_a_process_are_served_in_order<L: Lock>() {
    let server = Server::start();
    for tenure in [ms(0), ms(5), ms(1000)] {
        let name = unique("fifo");
        let client = Client::open(Config::new(server.url()).tenure(tenure)).unwrap();
        let lock = L::of(&client, &name);
        let guard = lock.lock().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut crew = Crew::new();
        for i in 0..8 {
            let (lock, order) = (lock.clone(), Arc::clone(&order));
            crew.spawn(move || {
                let _guard = lock.lock().unwrap();
                order.lock().unwrap().push(i);
            });
            crew.all_parked();
        }
        drop(guard);
        crew.join();
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }
}

fn one_who_leaves_the_line_does_not_hold_it_up<L: Lock>() {
    let server = Server::start();
    let name = unique("leaver");
    let client = open(&server);
    let lock = L::of(&client, &name);
    let guard = lock.lock().unwrap();
    let mut crew = Crew::new();
    for i in 0..6 {
        let lock = lock.clone();
        crew.spawn(move || {
            if i % 2 == 0 {
                assert!(lock.try_lock_for(ms(100)).unwrap().is_none());
            } else {
                lock.lock().unwrap().unlock().unwrap();
            }
        });
    }
    crew.all_parked();
    thread::sleep(ms(100)); // the span of those who leave
    eventually("the impatient have left", || crew.asleep() == 3);
    drop(guard);
    crew.join();
    eventually("the lock is free", || !server.exists(&name));
}

// ---------------------------------------------------------------------------------------------------------------------
// What stands in Redis
// ---------------------------------------------------------------------------------------------------------------------

fn redis_holds_what_redisson_would_write<L: Lock>() {
    let server = Server::start();
    let name = unique("wire");
    let client = open(&server);
    let lock = L::of(&client, &name);
    assert_eq!(server.dbsize(), 0, "a handle sends nothing");
    let guard = lock.lock().unwrap();
    assert_eq!(server.keys(), [name.as_str()], "one key and no other");
    assert_eq!(server.ask::<String>(&["TYPE", &name]), "hash");
    let fields = server.hgetall(&name);
    assert_eq!(fields, [(guard.owner().to_owned(), "1".to_owned())]);
    let (uuid, number) = guard.owner().split_once(':').unwrap();
    assert_eq!(uuid.len(), 36);
    assert!(uuid.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()));
    assert!(number.parse::<u64>().is_ok());
    let ttl = server.pttl(&name);
    assert!((25_000..=30_000).contains(&ttl), "{ttl}");
    guard.unlock().unwrap();
    assert_eq!(server.keys(), [] as [String; 0]);

    let guard = lock.clone().lease(Duration::from_secs(7)).lock().unwrap();
    let ttl = server.pttl(&name);
    assert!((2_000..=7_000).contains(&ttl), "{ttl}");
    drop(guard);
    eventually("nothing is left", || server.dbsize() == 0);
}

// I2
fn owners_never_repeat<L: Lock>() {
    let server = Server::start();
    let name = unique("owner");
    let clients = [open(&server), open(&server)];
    let mut seen = HashSet::new();
    for round in 0..200 {
        let lock = L::of(&clients[round % 2], &name);
        let guard = lock.try_lock_for(LONG).unwrap().unwrap();
        assert!(seen.insert(guard.owner().to_owned()), "{}", guard.owner());
    }
}

fn a_pair_of_lock_and_drop_is_two_commands<L: Lock>() {
    const PAIRS: u64 = 100;
    let server = Server::start();
    let name = unique("cost");
    let client = open(&server);
    let lock = L::of(&client, &name);
    drop(lock.lock().unwrap());
    eventually("the first release ran", || !server.exists(&name));
    let (before, commands) = (server.calls("evalsha"), client.stats().commands);
    let loads = server.calls("script|load");
    for _ in 0..PAIRS {
        drop(lock.lock().unwrap());
    }
    eventually("the last release ran", || !server.exists(&name));
    assert_eq!(server.calls("evalsha") - before, 2 * PAIRS);
    assert_eq!(client.stats().commands - commands, 2 * PAIRS);
    assert_eq!(server.calls("script|load"), loads);

    let guard = lock.lock().unwrap();
    let commands = server.command_total();
    if L::REENTRANT {
        for n in 2..=PAIRS {
            let again = lock.lock().unwrap();
            assert_eq!(u64::from(again.hold_count()), 2, "{n}");
        }
    } else {
        assert!(matches!(lock.lock(), Err(Error::WouldDeadlock { .. })));
    }
    assert_eq!(server.command_total(), commands);
    drop(guard);
}

// W4: renewal and release of short leases cross all the time, and nothing is revived.
fn nothing_is_renewed_after_its_release<L: Lock>() {
    let server = Server::start();
    let client = open_with_lease(&server, ms(30));
    let until = Instant::now() + ms(700);
    let mut rounds = 0_u64;
    while Instant::now() < until {
        rounds += 1;
        let lock = L::of(&client, &format!("w4:{}", rounds % 5));
        // Around a third of the lease: just when it is renewed.
        if let Ok(guard) = lock.lock() {
            let linger = ms(9) + Duration::from_micros(rounds * 137 % 2000);
            thread::sleep(linger);
            drop(guard);
        }
    }
    assert!(client.stats().renewals > 0, "{:?}", client.stats());
    eventually("all are released", || server.dbsize() == 0);
    let (renewals, calls) = (client.stats().renewals, server.calls("evalsha"));
    thread::sleep(ms(60)); // two leases
    assert_eq!(client.stats().renewals, renewals);
    assert_eq!(
        server.calls("evalsha"),
        calls,
        "no traffic without a holder"
    );
    assert_eq!((server.dbsize(), client.stats().holds), (0, 0));
}

// ---------------------------------------------------------------------------------------------------------------------
// Time
// ---------------------------------------------------------------------------------------------------------------------

fn a_hold_is_renewed_for_as_long_as_it_is_wanted<L: Lock>() {
    const LEASE: Duration = ms(300);
    let server = Server::start();
    let name = unique("renew");
    let client = open_with_lease(&server, LEASE);
    let guard = L::of(&client, &name).lock().unwrap();
    let first = guard.valid_until();
    let begun = Instant::now();
    while begun.elapsed() < 4 * LEASE {
        assert!(guard.is_valid());
        assert_eq!(server.hgetall(&name).len(), 1);
        thread::sleep(ms(10));
    }
    assert!(guard.valid_until() >= first + 2 * LEASE);
    assert!(client.stats().renewals >= 6, "{:?}", client.stats());
    assert!(guard.lost().is_empty());
    guard.unlock().unwrap();
}

fn a_fixed_lease_ends_and_its_holder_is_told<L: Lock>() {
    const LEASE: Duration = ms(300);
    let server = Server::start();
    let name = unique("fixed");
    let client = open_with_lease(&server, ms(60));
    let lock = L::of(&client, &name).lease(LEASE);
    let before = Instant::now();
    let guard = lock.lock().unwrap();
    let after = Instant::now();
    let until = guard.valid_until();
    let margin = LEASE / 100 + ms(2);
    assert!(until >= before + LEASE - margin && until < after + LEASE);
    assert!(guard.is_valid() && guard.hold_count() == 1);
    assert!(lock.is_owned_by_current_thread());

    let loss = guard.lost().recv_timeout(LONG).unwrap();
    let told = Instant::now();
    assert_eq!(loss.reason, LossReason::Expired);
    assert_eq!(
        (loss.name.as_str(), loss.owner.as_str()),
        (&*name, guard.owner())
    );
    assert!(told >= until && told < until + BY_MESSAGE);
    assert_eq!(guard.valid_until(), until, "not renewed");
    assert!(!guard.is_valid() && guard.hold_count() == 0);
    assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
    eventually("the key is gone", || !server.exists(&name));
    assert_eq!(client.stats().renewals, 0);
    assert_eq!((client.stats().lost, client.stats().holds), (1, 0));
    assert_lost(guard.unlock(), &name, LossReason::Expired);
}

// W10
fn max_hold_ends_renewal_and_frees_the_lock<L: Lock>() {
    const LEASE: Duration = ms(300);
    const MAX: Duration = ms(500);
    let server = Server::start();
    let name = unique("wedged");
    let (client, other) = (open_with_lease(&server, LEASE), open(&server));
    let guard = L::of(&client, &name).max_hold(MAX).lock().unwrap();
    let granted = Instant::now();
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    let told = Instant::now();
    assert_eq!(loss.reason, LossReason::MaxHold);
    assert!(
        told + ms(1) >= granted + MAX && told < granted + MAX + BY_MESSAGE,
        "{:?}",
        told - granted
    );
    assert!(!guard.is_valid());
    elsewhere(|| {
        let theirs = L::of(&other, &name).try_lock_for(LONG).unwrap();
        assert!(theirs.is_some());
    });
    assert!(granted.elapsed() < MAX + LEASE + BY_MESSAGE);
    assert_lost(guard.unlock(), &name, LossReason::MaxHold);
}

// D6, W5
fn a_forgotten_guard_with_max_hold_frees_the_lock<L: Lock>() {
    let server = Server::start();
    let name = unique("forgot");
    let (client, other) = (open_with_lease(&server, ms(200)), open(&server));
    let guard = L::of(&client, &name).max_hold(ms(300)).lock().unwrap();
    let _leaked = ManuallyDrop::new(guard);
    assert!(L::of(&other, &name).try_lock().unwrap().is_none());
    let theirs = L::of(&other, &name).try_lock_for(LONG).unwrap();
    assert!(theirs.is_some());
    assert_eq!(client.stats().holds, 0);
}

// W8
fn leases_do_not_interfere<L: Lock>() {
    const LEASE: Duration = ms(240);
    let server = Server::start();
    let name = unique("leases");
    let client = open_with_lease(&server, LEASE);
    let renewed = L::of(&client, &name);
    let fixed = renewed.clone().lease(ms(400));

    let guard = renewed.lock().unwrap();
    let mut crew = Crew::new();
    let (tell, told) = unbounded();
    crew.spawn({
        let fixed = fixed.clone();
        move || {
            let guard = fixed.lock().unwrap();
            tell.send(
                guard
                    .valid_until()
                    .saturating_duration_since(Instant::now()),
            )
            .unwrap();
            let loss = guard.lost().recv_timeout(LONG).unwrap();
            assert_eq!(loss.reason, LossReason::Expired, "never renewed");
        }
    });
    crew.all_parked();
    let begun = Instant::now();
    while begun.elapsed() < 3 * LEASE {
        assert!(guard.is_valid(), "renewed though a fixed one is in line");
        thread::sleep(ms(5));
    }
    drop(guard);
    let left = told.recv_timeout(LONG).unwrap();
    assert!(left > ms(300) && left <= ms(400), "its own lease: {left:?}");
    crew.join();

    let guard = renewed.lock().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 3 * LEASE {
        assert!(guard.is_valid(), "renewed after a fixed one");
        thread::sleep(ms(5));
    }
    guard.unlock().unwrap();
}

// K2
fn a_grant_that_comes_too_late_is_not_one<L: Lock>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let name = unique("late");
    let client = Client::open(proxy.url()).unwrap();
    let lock = L::of(&client, &name);
    lock.lock().unwrap().unlock().unwrap();
    proxy.set(Target::Link, Mode::Delay(ms(400)));
    let late = lock.clone().lease(ms(200)).lock();
    assert_lost(late, &name, LossReason::Expired);
    proxy.pass();
    assert_eq!(client.stats().holds, 0);
    assert!(lock.try_lock().unwrap().is_some(), "no trace is left");
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancelling
// ---------------------------------------------------------------------------------------------------------------------

fn cancelling_ends_waits_and_the_line_goes_on<L: Lock>() {
    let server = Server::start();
    let name = unique("cancel");
    let (holder, client) = (open(&server), open(&server));
    let guard = L::of(&holder, &name).lock().unwrap();
    let token = CancelToken::new();
    let lock = L::of(&client, &name);
    let mut cancelled = Crew::new();
    let mut patient = Crew::new();
    // The first asks Redis, the others stand in line.
    for place in 0..4 {
        let lock = lock.clone();
        if place == 2 {
            patient.spawn(move || lock.lock().unwrap().unlock().unwrap());
            patient.all_parked();
        } else {
            let lock = lock.cancel_on(&token);
            cancelled.spawn(move || {
                assert!(matches!(lock.lock(), Err(Error::Cancelled)));
            });
            cancelled.all_parked();
        }
    }
    let begun = Instant::now();
    token.cancel();
    cancelled.join();
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(!patient.is_finished());
    drop(guard);
    patient.join();

    let lock = lock.cancel_on(&token);
    for verdict in [lock.lock().map(Some), lock.try_lock_for(LONG)] {
        assert!(matches!(verdict, Err(Error::Cancelled)), "{verdict:?}");
    }
    eventually("nobody has it", || !server.exists(&name));
    // An attempt is no wait.
    assert!(lock.try_lock().unwrap().is_some());
}

// D1
fn an_acquire_whose_caller_was_cancelled_is_undone<L: Lock>() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let name = unique("undo");
    let client = Client::open(proxy.url()).unwrap();
    drop(L::of(&client, &unique("warm")).lock().unwrap());
    eventually("warm", || server.dbsize() == 0);
    for mode in [Mode::Stall, Mode::Delay(ms(300))] {
        proxy.set(Target::Link, mode);
        let token = CancelToken::new();
        let lock = L::of(&client, &name).cancel_on(&token);
        let mut crew = Crew::new();
        crew.spawn(move || assert!(matches!(lock.lock(), Err(Error::Cancelled))));
        eventually("the acquire is under way", || proxy.held() > 0);
        let begun = Instant::now();
        token.cancel();
        crew.join();
        assert!(begun.elapsed() < Duration::from_secs(1));
        proxy.pass();
        eventually("what was taken is given back", || !server.exists(&name));
        assert_eq!(client.stats().holds, 0);
        assert!(L::of(&client, &name).try_lock_for(LONG).unwrap().is_some());
        eventually("free", || !server.exists(&name));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Loss
// ---------------------------------------------------------------------------------------------------------------------

// O7
fn force_unlock_tells_everybody_concerned<L: Lock>() {
    let server = Server::start();
    let name = unique("force");
    let client = open(&server);
    let lock = L::of(&client, &name);
    assert!(!lock.force_unlock().unwrap(), "nobody has it");

    // A holder of this client, at once.
    let guard = lock.lock().unwrap();
    elsewhere(|| assert!(lock.force_unlock().unwrap()));
    let loss = guard.lost().recv_timeout(BY_MESSAGE).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    assert!(!guard.is_valid() && !server.exists(&name));
    assert_lost(guard.unlock(), &name, LossReason::Forced);

    // One of another client at its next renewal; one who waits at once.
    let holder = open_with_lease(&server, ms(600));
    let guard = L::of(&holder, &name).lock().unwrap();
    let other = open(&server);
    let mut crew = Crew::new();
    let (tell, told) = unbounded();
    let waiting = L::of(&other, &name);
    crew.spawn(move || {
        let _guard = waiting.lock().unwrap();
        tell.send(Instant::now()).unwrap();
    });
    subscribed(&server, 1);
    crew.all_parked();
    let forced = Instant::now();
    assert!(lock.force_unlock().unwrap());
    let granted = told.recv_timeout(LONG).unwrap();
    assert!(granted - forced < BY_MESSAGE);
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert!(
        matches!(loss.reason, LossReason::Forced | LossReason::TakenOver),
        "{loss:?}"
    );
    crew.join();
}

// A hold that was granted after the key had been deleted is not the one that was forced.
fn forcing_does_not_mistake_a_later_hold<L: Lock>() {
    let server = Server::start();
    let name = unique("mistake");
    let client = open(&server);
    let lock = L::of(&client, &name);
    let done = AtomicBool::new(false);
    let mut con = server.connection();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                lock.force_unlock().unwrap();
            }
        });
        let until = Instant::now() + ms(700);
        let mut mistaken = 0;
        while Instant::now() < until {
            // Let go at once, so that a release, a grant and the answer to the force come together.
            drop(lock.lock().unwrap());
            let guard = lock.lock().unwrap();
            let lost = guard
                .lost()
                .recv_timeout(Duration::from_micros(300))
                .is_ok();
            if lost {
                let still: bool = redis::cmd("HEXISTS")
                    .arg(&name)
                    .arg(guard.owner())
                    .query(&mut con)
                    .unwrap();
                mistaken += u32::from(still);
            }
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(mistaken, 0, "told lost, and held in Redis");
    });
}

// O2, O3
fn unlock_says_how_it_was_lost<L: Lock>() {
    let server = Server::start();
    let client = open(&server);

    let name = unique("deleted");
    let guard = L::of(&client, &name).lock().unwrap();
    server.cli(&["DEL", &name]);
    assert_lost(guard.unlock(), &name, LossReason::Forced);

    // O4
    let name = unique("taken");
    let guard = L::of(&client, &name).lock().unwrap();
    server.cli(&["DEL", &name]);
    hold_by_stranger(&server, &name, 60_000);
    assert_lost(guard.unlock(), &name, LossReason::TakenOver);
    assert!(is_held_by_stranger(&server, &name) && server.pttl(&name) > 30_000);

    let name = unique("expired");
    let guard = L::of(&client, &name).lease(ms(60)).lock().unwrap();
    eventually("it expires", || !guard.is_valid() && !server.exists(&name));
    hold_by_stranger(&server, &name, 60_000);
    assert_lost(guard.unlock(), &name, LossReason::Expired);
    assert!(is_held_by_stranger(&server, &name));

    // I11: not a lock at all any more.
    let name = unique("string");
    let guard = L::of(&client, &name).lock().unwrap();
    server.cli(&["SET", &name, "precious"]);
    let err = guard.unlock().unwrap_err();
    assert!(
        !err.is_retryable() || matches!(err, Error::Lost { .. }),
        "{err:?}"
    );
    assert_eq!(server.ask::<String>(&["GET", &name]), "precious");
}

// O4, L8
fn dropping_a_lost_guard_harms_nobody<L: Lock>() {
    let server = Server::start();
    let name = unique("stale");
    let (client, other) = (open(&server), open(&server));
    let lock = L::of(&client, &name);

    // Unaware: the release finds a stranger.
    let guard = lock.lock().unwrap();
    server.cli(&["DEL", &name]);
    hold_by_stranger(&server, &name, 60_000);
    drop(guard);
    eventually("the release was answered", || {
        client.stats().releases_of_lost == 1
    });
    assert!(is_held_by_stranger(&server, &name));
    server.cli(&["DEL", &name]);

    // Aware: an old guard of this thread next to a new one.
    let old = lock.clone().lease(ms(50)).lock().unwrap();
    assert_eq!(
        old.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Expired
    );
    let new = lock.try_lock_for(LONG).unwrap().unwrap();
    assert_ne!(old.owner(), new.owner());
    assert_eq!((new.hold_count(), lock.hold_count()), (1, 1));
    assert_eq!(old.hold_count(), 0, "zero once it is lost");
    assert!(!old.is_valid() && new.is_valid());
    drop(old);
    assert!(new.is_valid() && lock.is_owned_by_current_thread());
    assert_eq!(server.hgetall(&name)[0].0, new.owner());
    assert!(L::of(&other, &name).try_lock().unwrap().is_none());
    new.unlock().unwrap();

    // The next owner is another client.
    let old = lock.clone().lease(ms(50)).lock().unwrap();
    let new = L::of(&other, &name).try_lock_for(LONG).unwrap().unwrap();
    drop(old);
    assert!(client.stats().lost >= 2);
    assert_eq!(server.hgetall(&name)[0].0, new.owner());
    new.unlock().unwrap();
}

// L8
fn a_lost_lock_is_free_for_threads_of_the_same_process<L: Lock>() {
    let server = Server::start();
    let name = unique("again");
    let client = open_with_lease(&server, ms(300));
    let lock = L::of(&client, &name);
    let guard = lock.lock().unwrap();
    let mut crew = Crew::new();
    for _ in 0..3 {
        let lock = lock.clone();
        crew.spawn(move || lock.lock().unwrap().unlock().unwrap());
    }
    crew.all_parked();
    server.cli(&["DEL", &name]);
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Forced);
    crew.join();
    drop(guard);
    assert!(lock.try_lock().unwrap().is_some());
}

// ---------------------------------------------------------------------------------------------------------------------
// Guards and questions
// ---------------------------------------------------------------------------------------------------------------------

// A7
fn questions_are_answered_truly<L: Lock>() {
    let server = Server::start();
    let name = unique("ask");
    let (client, other) = (open(&server), open(&server));
    let (lock, theirs) = (L::of(&client, &name), L::of(&other, &name));
    for lock in [&lock, &theirs] {
        assert_eq!(lock.name(), name);
        assert!(!lock.is_locked().unwrap() && lock.remaining().unwrap().is_none());
        assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
    }
    let guard = lock.lock().unwrap();
    assert_eq!((guard.name(), guard.hold_count()), (&*name, 1));
    for lock in [&lock, &theirs] {
        assert!(lock.is_locked().unwrap());
        let left = lock.remaining().unwrap().unwrap();
        assert!(left > ms(25_000) && left <= ms(30_000), "{left:?}");
    }
    assert!(lock.is_owned_by_current_thread() && lock.hold_count() == 1);
    assert!(L::of(&client, &name).is_owned_by_current_thread());
    assert!(!theirs.is_owned_by_current_thread() && theirs.hold_count() == 0);
    elsewhere(|| {
        assert!(!lock.is_owned_by_current_thread() && lock.hold_count() == 0);
        assert!(lock.is_locked().unwrap());
    });
    assert!(format!("{guard:?}{lock:?}").contains(&name));
    guard.unlock().unwrap();
    assert!(!lock.is_locked().unwrap() && !lock.is_owned_by_current_thread());

    server.cli(&["HSET", &name, STRANGER, "1"]);
    assert_eq!(lock.remaining().unwrap(), Some(Duration::MAX));
}

// O5
fn reentry_is_for_the_holding_thread<L: Lock>() {
    let server = Server::start();
    let name = unique("reenter");
    let client = open_with_lease(&server, ms(300));
    let lock = L::of(&client, &name);
    let first = lock.lock().unwrap();
    elsewhere(|| assert!(lock.try_lock().unwrap().is_none()));
    if !L::REENTRANT {
        for verdict in [
            lock.lock().map(Some),
            lock.try_lock(),
            lock.try_lock_for(LONG),
            lock.try_lock_until(Instant::now() + LONG),
            lock.with(|_| ()).map(|()| None),
        ] {
            assert!(
                matches!(&verdict, Err(Error::WouldDeadlock { name: its }) if *its == name),
                "{verdict:?}"
            );
        }
        assert!(first.is_valid() && first.hold_count() == 1);
        first.unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        return;
    }
    drop(first);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        // Through another handle, by each verb.
        let again = L::of(&client, &name);
        let mut guards = [
            Some(lock.lock().unwrap()),
            again.try_lock().unwrap(),
            again.try_lock_for(ms(1)).unwrap(),
        ];
        for (left, place) in [3, 2, 1].into_iter().zip(order) {
            assert_eq!(lock.hold_count(), left);
            let guard = guards[place].take().unwrap();
            assert_eq!(guard.hold_count(), left);
            assert!(server.exists(&name));
            elsewhere(|| assert!(lock.try_lock().unwrap().is_none()));
            guard.unlock().unwrap();
        }
        assert!(!server.exists(&name) && lock.hold_count() == 0);
    }
    // The count is Redisson's too, at the next renewal at the latest, and falls again.
    let one = lock.lock().unwrap();
    let two = lock.lock().unwrap();
    let told = |n: &str| server.hgetall(&name) == [(one.owner().to_owned(), n.to_owned())];
    eventually("Redis knows of two holds", || told("2"));
    drop(two);
    eventually("Redis knows of one hold", || told("1"));
    drop(one);
    eventually("W6: nothing is renewed", || client.stats().holds == 0);
}

// A fixed lease counts anew for every hold, and never less than before.
fn reentry_renews_a_fixed_lease<L: Lock>() {
    if !L::REENTRANT {
        return;
    }
    let server = Server::start();
    let name = unique("refix");
    let client = open(&server);
    let lock = L::of(&client, &name);
    let one = lock.clone().lease(ms(300)).lock().unwrap();
    let first = one.valid_until();
    let two = lock.clone().lease(Duration::from_secs(20)).lock().unwrap();
    assert!(one.valid_until() > first && one.valid_until() == two.valid_until());
    assert!(server.pttl(&name) > 10_000);
    let three = lock.clone().lease(ms(50)).lock().unwrap();
    assert!(server.pttl(&name) > 10_000, "never shortened");
    assert_eq!(three.hold_count(), 3);
    drop((one, two));
    assert!(server.exists(&name));
    three.unlock().unwrap();
    assert!(!server.exists(&name));
}

// D6
fn a_panic_gives_the_lock_back<L: Lock>() {
    let server = Server::start();
    let name = unique("panic");
    let (client, other) = (open(&server), open(&server));
    let lock = L::of(&client, &name);
    let panicked = thread::spawn({
        let lock = lock.clone();
        move || {
            let _guard = lock.lock().unwrap();
            assert!(lock.name().is_empty(), "on purpose");
        }
    });
    assert!(panicked.join().is_err());
    let theirs = L::of(&other, &name).try_lock_for(LONG).unwrap();
    assert!(theirs.is_some());
    drop(theirs);
    assert!(lock.try_lock_for(LONG).unwrap().is_some());
    assert_eq!(client.stats().lost, 0);
}

// A guard outlives its handle and its client's handle, and keeps both alive.
fn a_guard_owns_what_it_needs<L: Lock>() {
    let server = Server::start();
    let name = unique("owns");
    let guard = L::of(&open_with_lease(&server, ms(150)), &name)
        .lock()
        .unwrap();
    let begun = Instant::now();
    while begun.elapsed() < ms(500) {
        assert!(guard.is_valid(), "renewed though only the guard is left");
        thread::sleep(ms(5));
    }
    assert_eq!(server.hgetall(&name)[0].0, guard.owner());
    guard.unlock().unwrap();
    assert!(!server.exists(&name));
}

macro_rules! contract {
    ($maker:ident: $lock:ident, $guard:ident, reentrant) => {
        contract!(@ $maker, $lock, $guard, true);
    };
    ($maker:ident: $lock:ident, $guard:ident, not reentrant) => {
        contract!(@ $maker, $lock, $guard, false);
    };
    (@ $maker:ident, $lock:ident, $guard:ident, $reentrant:literal) => {
        impl Lock for redlatch::$lock {
            type Guard = redlatch::$guard;

            const REENTRANT: bool = $reentrant;

            fn of(client: &Client, name: &str) -> Self {
                client.$maker(name)
            }
            fn lease(self, lease: Duration) -> Self {
                redlatch::$lock::lease(self, lease)
            }
            fn max_hold(self, max_hold: Duration) -> Self {
                redlatch::$lock::max_hold(self, max_hold)
            }
            fn cancel_on(self, token: &CancelToken) -> Self {
                redlatch::$lock::cancel_on(self, token)
            }
            fn lock(&self) -> Result<Self::Guard> {
                redlatch::$lock::lock(self)
            }
            fn try_lock(&self) -> Result<Option<Self::Guard>> {
                redlatch::$lock::try_lock(self)
            }
            fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>> {
                redlatch::$lock::try_lock_for(self, wait)
            }
            fn try_lock_until(&self, instant: Instant) -> Result<Option<Self::Guard>> {
                redlatch::$lock::try_lock_until(self, instant)
            }
            fn with<T>(&self, work: impl FnOnce(&Self::Guard) -> T) -> Result<T> {
                redlatch::$lock::with(self, work)
            }
            fn is_locked(&self) -> Result<bool> {
                redlatch::$lock::is_locked(self)
            }
            fn is_owned_by_current_thread(&self) -> bool {
                redlatch::$lock::is_owned_by_current_thread(self)
            }
            fn hold_count(&self) -> u32 {
                redlatch::$lock::hold_count(self)
            }
            fn remaining(&self) -> Result<Option<Duration>> {
                redlatch::$lock::remaining(self)
            }
            fn force_unlock(&self) -> Result<bool> {
                redlatch::$lock::force_unlock(self)
            }
            fn name(&self) -> &str {
                redlatch::$lock::name(self)
            }
        }

        impl Guard for redlatch::$guard {
            fn unlock(self) -> Result<()> {
                redlatch::$guard::unlock(self)
            }
            fn is_valid(&self) -> bool {
                redlatch::$guard::is_valid(self)
            }
            fn valid_until(&self) -> Instant {
                redlatch::$guard::valid_until(self)
            }
            fn lost(&self) -> &Receiver<Loss> {
                redlatch::$guard::lost(self)
            }
            fn name(&self) -> &str {
                redlatch::$guard::name(self)
            }
            fn owner(&self) -> &str {
                redlatch::$guard::owner(self)
            }
            fn hold_count(&self) -> u32 {
                redlatch::$guard::hold_count(self)
            }
        }

        mod $maker {
            contract! { @tests redlatch::$lock,
                threads_and_clients_exclude_each_other,
                busy_is_none,
                a_limited_wait_takes_its_time_and_gives_none,
                no_wait_is_one_attempt,
                an_endless_wait_ends_with_the_lock,
                with_holds_the_lock_for_as_long_as_it_runs,
                a_drop_wakes_a_waiter_of_another_client_by_message,
                a_release_publishes_redissons_message,
                a_strangers_lock_is_waited_for,
                a_vanished_lock_is_noticed_without_a_message,
                passing_it_on_inside_the_process_sends_nothing,
                threads_of_a_process_are_served_in_order,
                one_who_leaves_the_line_does_not_hold_it_up,
                redis_holds_what_redisson_would_write,
                owners_never_repeat,
                a_pair_of_lock_and_drop_is_two_commands,
                nothing_is_renewed_after_its_release,
                a_hold_is_renewed_for_as_long_as_it_is_wanted,
                a_fixed_lease_ends_and_its_holder_is_told,
                max_hold_ends_renewal_and_frees_the_lock,
                a_forgotten_guard_with_max_hold_frees_the_lock,
                leases_do_not_interfere,
                a_grant_that_comes_too_late_is_not_one,
                cancelling_ends_waits_and_the_line_goes_on,
                an_acquire_whose_caller_was_cancelled_is_undone,
                force_unlock_tells_everybody_concerned,
                forcing_does_not_mistake_a_later_hold,
                unlock_says_how_it_was_lost,
                dropping_a_lost_guard_harms_nobody,
                a_lost_lock_is_free_for_threads_of_the_same_process,
                questions_are_answered_truly,
                reentry_is_for_the_holding_thread,
                reentry_renews_a_fixed_lease,
                a_panic_gives_the_lock_back,
                a_guard_owns_what_it_needs,
            }
        }
    };
    (@tests $lock:ty, $($test:ident,)+) => {
        $(
            #[test]
            fn $test() {
                super::$test::<$lock>();
            }
        )+
    };
}

contract!(reentrant_lock: ReentrantLock, ReentrantLockGuard, reentrant);
contract!(mutex: Mutex, MutexGuard, not reentrant);
