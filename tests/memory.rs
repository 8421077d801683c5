//! The memory that a held lock takes, the allocations of locking, and how often a waiting process wakes. These tests
//! are a process of their own, since they count all of its allocations.

use std::alloc::System;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlatch::{CancelToken, Client, Config, Error};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[path = "it/support/bare/mod.rs"]
mod support;

use support::{Adversary, Deployment, Sent, after_the_greeting, endlessly, once};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Keeps other tests of this process from running, whose allocations would be counted.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fewest allocations among several runs of `work`, since the client's threads sometimes add their own.
fn fewest_allocations(mut work: impl FnMut()) -> usize {
    let allocations = |_| {
        let region = Region::new(ALLOCATOR);
        work();
        region.change().allocations
    };
    (0..500).map(allocations).min().unwrap_or(0)
}

#[test]
fn an_uncontended_lock_allocates_little_beyond_its_commands() {
    let _turn = turn();
    let server = support::Server::start();
    let client = Client::open(server.url()).expect("the server is up");
    let lock = client.reentrant_lock("stock:12345");
    let lock_and_drop = || drop(lock.lock().expect("a grant"));
    lock_and_drop();
    // Two commands with their bytes, and the hold.
    assert_eq!(fewest_allocations(lock_and_drop), 5);

    let _guard = lock.lock().expect("a grant");
    assert_eq!(fewest_allocations(lock_and_drop), 0, "one more hold");
}

#[test]
fn a_hand_over_within_a_tenure_allocates_a_place_in_the_queue() {
    let _turn = turn();
    let server = support::Server::start();
    let config = Config::new(server.url()).tenure(Duration::from_secs(1));
    let client = Client::open(config).expect("the server is up");
    let lock = client.reentrant_lock("stock:12345");
    let (done, lock_and_drop) = (AtomicBool::new(false), || {
        drop(lock.lock().expect("a grant"))
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                lock_and_drop();
            }
        });
        let fewest = (0..20).map(|_| {
            std::thread::sleep(Duration::from_millis(3));
            fewest_allocations(lock_and_drop)
        });
        let fewest = fewest.min().unwrap_or(usize::MAX);
        done.store(true, Ordering::Relaxed);
        // A place in the queue for this thread, and for the other.
        assert!(fewest <= 2 && client.stats().local_handoffs > 0, "{fewest}");
    });
}

#[test]
fn a_held_lock_takes_a_few_hundred_bytes() {
    const LOCKS: usize = 5_000;
    let _turn = turn();
    let server = support::Server::start();
    let client = Client::open(server.url()).expect("the server is up");
    let mut guards = Vec::with_capacity(LOCKS);
    let region = Region::new(ALLOCATOR);
    for number in 0..LOCKS {
        let lock = client.reentrant_lock(format!("stock:{number:05}"));
        guards.push(lock.lock().expect("a grant"));
    }
    let change = region.change();
    let bytes = change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated);
    assert!(bytes / LOCKS <= 550, "{} bytes for each", bytes / LOCKS);
}

/// How often the library's threads, and threads with this name, have gone to sleep so far.
fn sleeps(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let slept = tasks.flatten().filter_map(|task| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        let comm = read("comm")?;
        let counts = comm.starts_with("redlatch") || comm.trim() == name;
        let status = read("status").filter(|_| counts)?;
        let switches = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        switches.trim().parse::<u64>().ok()
    });
    slept.sum()
}

/// A thread that waits for a lock which another client holds.
struct Waits {
    server: support::Server,
    token: CancelToken,
    thread: std::thread::JoinHandle<redlatch::Result<()>>,
}

impl Waits {
    const THREAD: &'static str = "waits";

    fn start(how: Deployment) -> Self {
        let (server, url) = support::deployed_as(how, || {
            let server = support::Server::start();
            let url = server.client_url();
            (server, url)
        });
        let client = Client::open(url).expect("the server is up");
        let mut con = server.connection();
        let stranger = "a7b6e3c2-1111-4222-8333-444455556666:37";
        let () = redis::pipe()
            .hset("stock:12345", stranger, 1)
            .pexpire("stock:12345", 600_000)
            .query(&mut con)
            .expect("it is held");
        let token = CancelToken::new();
        let lock = client.mutex("stock:12345").cancel_on(&token);
        let thread = std::thread::Builder::new().name(Self::THREAD.into());
        let thread = thread
            .spawn(move || lock.lock().map(drop))
            .expect("a thread");
        support::eventually("it waits", || client.stats().waiting == 1);
        Self {
            server,
            token,
            thread,
        }
    }

    fn end(self) {
        self.token.cancel();
        let ended = self.thread.join().expect("no panic");
        assert!(matches!(ended, Err(Error::Cancelled)));
        drop(self.server);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn waiting_threads_sleep_while_nothing_happens() {
    const SECONDS: u64 = 6;
    let _turn = turn();
    let mut all = vec![Deployment::Single, Deployment::Cluster];
    if !support::is_redis_6() {
        all.push(Deployment::Sentinel);
    }
    let waiting: Vec<_> = all.into_iter().map(Waits::start).collect();
    let count = waiting.len() as u64;
    let sleeps_before = sleeps(Waits::THREAD);
    std::thread::sleep(Duration::from_secs(SECONDS));
    let slept = sleeps(Waits::THREAD) - sleeps_before;
    waiting.into_iter().for_each(Waits::end);
    assert!(slept > 0, "the threads were not found");
    // Each polls after 1 and 3 s, which takes a few sleeps, and a Sentinel is sent a PING a second. On a busy machine there
    // are more.
    let most = 3 * SECONDS * count;
    assert!(
        slept < most,
        "{slept} times in {SECONDS} s, {count} clients"
    );
}

/// The bytes in use.
fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    stats
        .bytes_allocated
        .saturating_sub(stats.bytes_deallocated)
}

#[test]
fn no_server_makes_a_client_take_memory_without_end() {
    /// Several times the largest reply, for a connection or two and for the adversary itself.
    const MOST: usize = 12 * 1024 * 1024;
    const HASTY: Duration = Duration::from_millis(150);
    let _turn = turn();
    let piece = |of: &str| of.repeat(64 * 1024 / of.len());
    for (begin, then) in [
        ("+", piece("a")),
        ("-", piece("a")),
        ("$900000\r\n", piece("a")),
        ("$999999999999\r\n", piece("a")),
        ("*18000\r\n", piece("+\r\n")),
        ("*999999999999\r\n", piece("+\r\n")),
        ("", piece("*18000\r\n")),
        ("", piece("*1\r\n")),
        ("*2\r\n", piece("$100000\r\n")),
        ("", piece(":1\r\n")),
    ] {
        for greets in [true, false] {
            let (first, rest) = (begin.to_owned(), then.clone());
            let sent =
                move || -> Sent { Box::new(once(first.clone()).chain(endlessly(rest.clone()))) };
            let adversary = match greets {
                true => Adversary::start(after_the_greeting(move |_| sent())),
                false => Adversary::start(move |_| sent()),
            };
            let used_before = in_use();
            let url = adversary.url();
            let asking = std::thread::spawn(move || {
                let config = Config::new(url)
                    .command_timeout(HASTY)
                    .connect_timeout(HASTY);
                if let Ok(client) = Client::open(config) {
                    // The bytes may begin with a valid reply.
                    drop(client.mutex("stock").try_lock());
                    client.close(Duration::ZERO).unwrap_or_default();
                }
            });
            let mut most = 0;
            while !asking.is_finished() {
                most = most.max(in_use().saturating_sub(used_before));
                std::thread::sleep(Duration::from_micros(200));
            }
            let case = format!("{begin:?}, then {:?}", &then[..then.len().min(20)]);
            asking.join().expect("no panic");
            assert!(most <= MOST, "{most} bytes: {case}");
        }
    }
}
