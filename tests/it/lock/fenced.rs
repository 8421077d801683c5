//! Fencing tokens rise whatever happens to the lock, its counter or its server, so a resource can reject the writes of
//! every earlier holder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use nix::sys::signal::Signal;
use redis::Connection;
use redlatch::{Client, Config, Error, FencedLock, FencedLockGuard, LossReason};

use crate::support::scripts::sha;
use crate::support::{
    Crew, LONG, Part, Proxy, Server, config, connection_to, eventually, given, lua, ms, open,
    order, say, scoped, short_lived, timed, unique, within,
};

/// The key of the counter, as Redisson names it.
fn counter(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// The server's clock in microseconds.
fn clock(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]);
    seconds * 1_000_000 + micros
}

fn count(server: &Server, name: &str) -> u64 {
    u64::try_from(server.get_int(&counter(name))).unwrap()
}

fn acquire_sha() -> String {
    sha(lua::FENCED_ACQUIRE)
}

/// Checks that each token is greater than all tokens before it.
#[derive(Default)]
struct Rising(u64);

impl Rising {
    #[track_caller]
    fn take(&mut self, lock: &FencedLock) -> FencedLockGuard {
        self.next(lock.try_lock_for(LONG).unwrap().expect("a free lock"))
    }

    #[track_caller]
    fn next(&mut self, guard: FencedLockGuard) -> FencedLockGuard {
        assert!(guard.token() > self.0, "{} after {}", guard.token(), self.0);
        self.0 = guard.token();
        guard
    }

    #[track_caller]
    fn draw(&mut self, lock: &FencedLock) -> u64 {
        self.take(lock).unlock().unwrap();
        self.0
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// One after another
// ---------------------------------------------------------------------------------------------------------------------

timed!(tokens_rise_however_a_hold_ends);
fn tokens_rise_however_a_hold_ends() {
    let server = Server::start();
    let (ours, theirs) = (open(&server), open(&server));
    let name = unique("ends");
    let (lock, their) = (ours.fenced_lock(&name), theirs.fenced_lock(&name));
    let mut tokens = Rising::default();
    for _ in 0..20 {
        tokens.draw(&lock);
        drop(tokens.take(&lock));
        tokens.draw(&their);
        lock.with(|guard| assert!(guard.token() > tokens.0))
            .unwrap();
    }
    let panics = catch_unwind(AssertUnwindSafe(|| {
        let _guard = tokens.take(&lock);
        panic!("on purpose");
    }));
    assert!(panics.is_err());

    let expired = tokens.next(short_lived(|lease| lock.clone().fixed_lease(lease).lock()));
    let next = tokens.take(&their);
    assert!(!expired.is_valid() && expired.token() < next.token());
    drop(expired);
    next.unlock().unwrap();

    let forced = tokens.take(&lock);
    assert!(their.force_unlock().unwrap());
    tokens.draw(&their);
    assert!(forced.unlock().is_err());

    let deleted = tokens.take(&lock);
    server.cli(&["DEL", &name]);
    tokens.draw(&their);
    drop(deleted);

    // A reentrant lock of the same key, which has no token.
    ours.reentrant_lock(&name).lock().unwrap().unlock().unwrap();
    tokens.draw(&lock);

    let kept = tokens.take(&lock);
    ours.close(LONG).unwrap();
    let next = tokens.take(&their);
    assert!(kept.token() < next.token());
}

#[test]
fn reentry_draws_no_token() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("again");
    let renewed = client.fenced_lock(&name);
    for lock in [renewed.clone(), renewed.fixed_lease(LONG)] {
        let outer = lock.lock().unwrap();
        let (token, drawn) = (outer.token(), count(&server, &name));
        assert_eq!(token, drawn);
        let inner: Vec<_> = (0..5).map(|_| lock.lock().unwrap()).collect();
        let once_more = lock.try_lock().unwrap().unwrap();
        assert_eq!(outer.hold_count(), 7);
        assert!(inner.iter().all(|guard| guard.token() == token));
        assert_eq!(once_more.token(), token);
        // The outer guard may be dropped first.
        drop(outer);
        assert_eq!((once_more.token(), count(&server, &name)), (token, drawn));
        drop(inner);
        once_more.unlock().unwrap();
        assert!(lock.lock().unwrap().token() > token);
    }
}

timed!(a_guard_keeps_its_token_when_the_lock_has_moved_on);
fn a_guard_keeps_its_token_when_the_lock_has_moved_on() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("moved");
    let lock = client.fenced_lock(&name);
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let token = outer.token();
    assert!(lock.force_unlock().unwrap());
    // Other threads of the process get the lock, some of them from each other.
    let tokens = Mutex::new(Vec::new());
    scoped(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let guard = lock.lock().unwrap();
                tokens.lock().unwrap().push(guard.token());
                thread::sleep(ms(20));
            });
        }
    });
    let tokens = tokens.into_inner().unwrap();
    assert!(
        tokens.is_sorted() && tokens[0] > token,
        "{token}, {tokens:?}"
    );
    assert_eq!((outer.token(), inner.token()), (token, token));
    assert!(!outer.is_valid());
    assert!(inner.unlock().is_err() && outer.unlock().is_err());
}

// ---------------------------------------------------------------------------------------------------------------------
// The counter
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_counter_that_vanishes_or_comes_back_old_lowers_no_token() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("old");
    let (lock, counter) = (client.fenced_lock(&name), counter(&name));
    let mut tokens = Rising::default();
    tokens.draw(&lock);
    let mut con = server.connection();
    let old: Vec<u8> = redis::cmd("DUMP").arg(&counter).query(&mut con).unwrap();
    tokens.draw(&lock);

    let () = redis::cmd("RESTORE")
        .arg(&counter)
        .arg(0)
        .arg(old)
        .arg("REPLACE")
        .query(&mut con)
        .unwrap();
    assert!(count(&server, &name) < tokens.0);
    tokens.draw(&lock);

    server.cli(&["DEL", &counter]);
    tokens.draw(&lock);
    server.cli(&["FLUSHALL"]);
    tokens.draw(&lock);
    // A small counter was written by Redisson; the lock continues from it.
    for small in ["0", "1", "5", "-7"] {
        server.cli(&["SET", &counter, small]);
        let token = tokens.draw(&lock);
        assert_eq!(count(&server, &name), token);
        tokens.0 = server.ask(&["INCR", &counter]);
        assert_eq!(tokens.0, token + 1);
    }

    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    eventually("the counter is evicted", || !server.exists(&counter));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    tokens.draw(&lock);
}

timed!(tokens_beyond_what_lua_can_count_are_exact);
fn tokens_beyond_what_lua_can_count_are_exact() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("large");
    let (lock, counter) = (client.fenced_lock(&name), counter(&name));
    let mut account = Account::new(server.connection(), unique("account"));
    for from in [(1 << 53) - 2, 1 << 53, (1 << 60) + 1, (1 << 63) - 6_u64] {
        server.cli(&["SET", &counter, &from.to_string()]);
        for more in 1..=3 {
            let token = lock.lock().unwrap().token();
            assert_eq!(token, from + more);
            assert!(account.write_checked(token, 1) && !account.write_checked(token - 1, 2));
        }
    }
    // The counter is so far ahead that tokens would fall if it expired and continued from the clock, so it gets no TTL.
    server.cli(&["PEXPIRE", &counter, "60000"]);
    let token = lock.clone().token_ttl(ms(50)).lock().unwrap().token();
    assert_eq!((token, server.pttl(&counter)), ((1 << 63) - 2, -1));
    // The greatest possible token has been drawn.
    server.cli(&["SET", &counter, &i64::MAX.to_string()]);
    assert!(matches!(lock.try_lock(), Err(Error::Redis { .. })));
    assert!(!server.exists(&name), "no hold without a token");
    assert_eq!(client.stats().holds, 0);
}

timed!(the_counter_lives_for_ever_unless_told_otherwise);
fn the_counter_lives_for_ever_unless_told_otherwise() {
    const TTL: Duration = ms(250);
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).key_prefix("app:")).unwrap();
    let name = unique("ttl");
    let (lock, counter) = (client.fenced_lock(&name), counter(&format!("app:{name}")));
    let short = lock.clone().token_ttl(TTL);
    let mut tokens = Rising::default();
    tokens.draw(&lock);
    assert_eq!(server.pttl(&counter), -1);

    for _ in 0..3 {
        tokens.draw(&short);
        // The counter may already have expired.
        let ttl_left = server.pttl(&counter);
        assert!(
            ttl_left == -2 || (0..=250).contains(&ttl_left),
            "{ttl_left} ms"
        );
        eventually("it expires", || !server.exists(&counter));
    }
    // The time counts from the last acquire.
    let guard = tokens.take(&short);
    eventually("it expires under a hold", || !server.exists(&counter));
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    tokens.draw(&short);
    tokens.draw(&lock);
    assert_eq!(server.pttl(&counter), -1, "the last setting counts");
    tokens.draw(&short);
    tokens.draw(&short.clone().token_ttl(Duration::ZERO));
    assert_eq!(server.pttl(&counter), -1, "zero means no TTL");

    for odd in [Duration::from_micros(9_999), Duration::MAX] {
        let refused = lock.clone().token_ttl(odd).try_lock();
        assert!(
            matches!(refused, Err(Error::InvalidSetting { .. })),
            "{refused:?}"
        );
    }
}

timed!(ten_thousand_names_leave_no_counter_behind);
fn ten_thousand_names_leave_no_counter_behind() {
    const NAMES: u64 = 10_000;
    let server = Server::start();
    let client = open(&server);
    let next = AtomicU64::new(0);
    let highest = AtomicU64::new(0);
    let counters = AtomicU64::new(0);
    scoped(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= NAMES {
                        return;
                    }
                    let lock = client.fenced_lock(format!("name:{n}"));
                    let guard = lock.token_ttl(ms(300)).lock().unwrap();
                    highest.fetch_max(guard.token(), Ordering::Relaxed);
                    if n.is_multiple_of(1000) {
                        counters.fetch_max(server.dbsize(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_ne!(counters.into_inner(), 0);
    eventually("no key is left", || server.dbsize() == 0);
    eventually("no entry is left", || client.stats().names == 0);
    let highest = highest.into_inner();
    for n in [0, NAMES / 2, NAMES - 1] {
        let guard = client.fenced_lock(format!("name:{n}")).lock().unwrap();
        assert!(guard.token() > highest);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Many at once
// ---------------------------------------------------------------------------------------------------------------------

/// The view of a holder: its owner in Redis, its token, and the counter at that time.
struct Seen {
    owner: String,
    token: u64,
    counter: u64,
}

/// `views` is in the order of the holds. Each token is greater than every token that other owners had drawn before,
/// used or not.
#[track_caller]
fn check(views: &[Seen]) {
    for pair in views.windows(2) {
        let [one, next] = pair else { unreachable!() };
        if one.owner == next.owner {
            assert_eq!(next.token, one.token + 1, "passed on");
        } else {
            assert!(
                next.token > one.counter,
                "{} drawn with the counter at {}",
                next.token,
                one.counter
            );
        }
        assert!(next.token <= next.counter, "drawn is what is counted");
    }
}

/// Each of `threads` threads of each client acquires the lock `holds` times.
fn hold(server: &Server, name: &str, clients: &[Client], threads: usize, holds: usize) {
    let views: Mutex<Vec<Seen>> = Mutex::default();
    scoped(|scope| {
        for client in clients {
            for _ in 0..threads {
                let (lock, views) = (client.fenced_lock(name), &views);
                let mut con = server.connection();
                scope.spawn(move || {
                    for _ in 0..holds {
                        let guard = lock.lock().unwrap();
                        let mut views = views.lock().unwrap();
                        let (owner, token) = (guard.owner().to_owned(), guard.token());
                        let counter = match views.last() {
                            Some(last) if last.owner == owner => last.counter,
                            _ => {
                                let mut get = redis::cmd("GET");
                                get.arg(counter(name)).query(&mut con).unwrap()
                            }
                        };
                        views.push(Seen {
                            owner,
                            token,
                            counter,
                        });
                        drop(views);
                        drop(guard);
                    }
                });
            }
        }
    });
    let views = views.into_inner().unwrap();
    assert_eq!(views.len(), clients.len() * threads * holds);
    check(&views);
}

#[test]
fn each_of_eight_thousand_holds_of_one_process_has_its_own_token() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).tenure(ms(1_000))).unwrap();
    hold(
        &server,
        &unique("own"),
        std::slice::from_ref(&client),
        8,
        1000,
    );
    let stats = client.stats();
    assert_eq!(stats.acquired + stats.local_handoffs, 8000, "{stats:?}");
    assert!(stats.local_handoffs > stats.acquired, "{stats:?}");
}

#[test]
fn tokens_rise_from_client_to_client() {
    let server = Server::start();
    for tenure in [1_000, 0] {
        let clients = [(); 3].map(|()| {
            let config = Config::new(server.url()).tenure(ms(tenure));
            Client::open(config).unwrap()
        });
        hold(&server, &unique("clients"), &clients, 3, 150);
        let passed = clients.iter().map(|client| client.stats().local_handoffs);
        assert_eq!(passed.sum::<u64>() > 0, tenure > 0);
    }
}

#[test]
fn tokens_rise_from_process_to_process() {
    let server = Server::start();
    let (name, list) = (unique("processes"), unique("list"));
    let mut parts: Vec<_> = (0..3)
        .map(|_| {
            let given = [&*server.url(), &name, &list];
            Part::start(part_that_writes_tokens_down, &given)
        })
        .collect();
    for part in &mut parts {
        part.says("done");
    }
    let lines: Vec<String> = server.ask(&["LRANGE", &list, "0", "-1"]);
    let views: Vec<_> = lines
        .iter()
        .map(|line| {
            let mut words = line.split(' ');
            let mut number = || words.next_back().unwrap().parse().unwrap();
            let (counter, token) = (number(), number());
            Seen {
                owner: words.next_back().unwrap().to_owned(),
                token,
                counter,
            }
        })
        .collect();
    assert_eq!(views.len(), 3 * 3 * 100);
    check(&views);
}

#[test]
#[ignore = "part of tokens_rise_from_process_to_process"]
fn part_that_writes_tokens_down() {
    let Some([url, name, list]) = &given() else {
        return;
    };
    let client = Client::open(url).unwrap();
    let note = redis::Script::new(
        "return redis.call('rpush', KEYS[2], ARGV[1] .. ' ' .. redis.call('get', KEYS[1]))",
    );
    scoped(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let lock = client.fenced_lock(name);
                let mut con = connection_to(url);
                for _ in 0..100 {
                    let guard = lock.lock().unwrap();
                    let () = note
                        .key(counter(name))
                        .key(list)
                        .arg(format!("{} {}", guard.owner(), guard.token()))
                        .invoke(&mut con)
                        .unwrap();
                }
            });
        }
    });
    say("done");
}

timed!(a_hold_without_a_token_to_spare_is_released_and_the_next_has_some);
fn a_hold_without_a_token_to_spare_is_released_and_the_next_has_some() {
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).tenure(ms(1000))).unwrap();
    let name = unique("spare");
    let lock = client.fenced_lock(&name);
    // Without waiters this hold draws a single token.
    let guard = lock.lock().unwrap();
    assert_eq!(count(&server, &name), guard.token());
    let mut crew = Crew::new();
    let tokens = Arc::new(Mutex::new(vec![guard.token()]));
    for _ in 0..3 {
        let (lock, tokens) = (lock.clone(), Arc::clone(&tokens));
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            tokens.lock().unwrap().push(guard.token());
        });
    }
    crew.all_parked();
    drop(guard);
    crew.join();
    let tokens = tokens.lock().unwrap().clone();
    let stats = client.stats();
    assert_eq!((stats.acquired, stats.local_handoffs), (2, 2), "{tokens:?}");
    assert!(tokens[1] > tokens[0] && tokens[2] == tokens[1] + 1 && tokens[3] == tokens[1] + 2);
    // Tokens that were drawn and not used are skipped.
    assert!(count(&server, &name) > tokens[3]);
    assert!(lock.lock().unwrap().token() > tokens[3]);
}

/// Threads acquire and release as often as possible while `meanwhile` runs.
fn contend(clients: &[Client], name: &str, threads: usize, meanwhile: impl FnOnce()) {
    let done = AtomicBool::new(false);
    scoped(|scope| {
        for client in clients {
            for _ in 0..threads {
                let (lock, done) = (client.fenced_lock(name), &done);
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        drop(lock.lock().unwrap());
                    }
                });
            }
        }
        meanwhile();
        done.store(true, Ordering::SeqCst);
    });
}

// If the counter is lost, tokens continue from the clock, so the counter must never be ahead of it.
timed!(contention_does_not_drive_tokens_ahead_of_the_clock);
fn contention_does_not_drive_tokens_ahead_of_the_clock() {
    for (clients, threads, tenure) in [(1, 2, 5), (1, 3, 5), (2, 3, 5), (1, 3, 0)] {
        let mut server = Server::start();
        let name = unique("clock");
        let opened: Vec<_> = (0..clients)
            .map(|_| Client::open(Config::new(server.url()).tenure(ms(tenure))).unwrap())
            .collect();
        let (mut ahead, mut highest) = (0, 0);
        contend(&opened, &name, threads, || {
            for _ in 0..20 {
                thread::sleep(ms(20));
                // Read the counter first: tokens drawn between the two reads make the test only more tolerant.
                let drawn = count(&server, &name);
                ahead = drawn.saturating_sub(clock(&server)).max(ahead);
                highest = drawn;
            }
        });
        assert!(ahead <= 1100, "{ahead} us, {clients} clients");
        highest = count(&server, &name).max(highest);
        server.restart();
        let token = opened[0].fenced_lock(&name).lock().unwrap().token();
        assert!(token > highest, "{token} after {highest}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Servers and networks
// ---------------------------------------------------------------------------------------------------------------------

timed!(tokens_rise_over_a_crash_of_a_server_that_keeps_its_data);
fn tokens_rise_over_a_crash_of_a_server_that_keeps_its_data() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let client = Client::open(config(&server.url()).command_timeout(LONG)).unwrap();
    let name = unique("kept");
    let lock = client.fenced_lock(&name);
    let mut tokens = Rising::default();
    tokens.draw(&lock);
    // The counter is ahead of the clock, so a token from the clock would be noticed.
    let ahead = clock(&server) + 3_600_000_000;
    server.cli(&["SET", &counter(&name), &ahead.to_string()]);
    for round in 1..=3 {
        let guard = tokens.take(&lock);
        server.restart();
        eventually("it is loaded", || {
            server.try_ask::<u64>(&["GET", &counter(&name)]).is_ok()
        });
        assert_eq!(count(&server, &name), ahead + round);
        assert_eq!(guard.token(), ahead + round);
        guard.unlock().unwrap();
    }
    assert_eq!(tokens.draw(&lock), ahead + 4);
}

timed!(tokens_rise_over_a_crash_of_a_server_that_loses_its_data);
fn tokens_rise_over_a_crash_of_a_server_that_loses_its_data() {
    let mut server = Server::start();
    let client = Client::open(config(&server.url()).command_timeout(LONG)).unwrap();
    let lock = client.fenced_lock(unique("empty"));
    let mut tokens = Rising::default();
    for _ in 0..3 {
        tokens.draw(&lock);
        let overtaken = tokens.take(&lock);
        server.restart();
        // A hold of another client is just as good, because the server has lost the first hold.
        let other = open(&server);
        tokens.draw(&other.fenced_lock(lock.name()));
        drop(overtaken);
    }
}

timed!(an_unknown_outcome_skips_tokens_and_repeats_none);
fn an_unknown_outcome_skips_tokens_and_repeats_none() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    // A lost reply costs half of the command timeout.
    let client = Client::open(config(&proxy.url()).command_timeout(ms(2000))).unwrap();
    let other = open(&server);
    let name = unique("unknown");
    let (lock, their) = (client.fenced_lock(&name), other.fenced_lock(&name));
    let mut tokens = Rising::default();
    tokens.draw(&lock);
    for (swallowed, leaves) in [(true, false), (false, false), (true, true), (false, true)] {
        let count_before = count(&server, &name);
        let trap = if swallowed {
            proxy.swallow_reply_to(acquire_sha())
        } else {
            proxy.black_hole_request(acquire_sha())
        };
        if leaves {
            let outcome = lock.try_lock_for(ms(60));
            assert!(!matches!(outcome, Ok(Some(_))), "{outcome:?}");
        } else {
            // The request is sent again.
            let guard = tokens.take(&lock);
            assert_eq!(count(&server, &name), guard.token());
            guard.unlock().unwrap();
        }
        eventually("the first was lost", || trap.fired());
        if swallowed && leaves {
            // The token was drawn, but no hold has it.
            eventually("it was executed", || count(&server, &name) > count_before);
            tokens.0 = count(&server, &name);
            eventually("it is undone", || !server.exists(&name));
        }
        tokens.draw(&their);
        tokens.draw(&lock);
    }
    assert_eq!(client.stats().lost, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Writes that are checked
// ---------------------------------------------------------------------------------------------------------------------

/// The script in the example of the documentation, so that the example itself is tested.
fn documented_check() -> String {
    let source = include_str!("../../../src/sync/fenced_lock.rs").lines();
    let docs: Vec<_> = source
        .filter_map(|line| line.trim_start().strip_prefix("///"))
        .collect();
    let docs = docs.join("\n");
    let from = docs.find("redis::Script::new(").expect("a script");
    let text = docs[from..].split('"').nth(1).expect("in quotes");
    assert!(text.contains("ARGV[2]") && text.trim_end().ends_with("return 1"));
    text.to_owned()
}

/// The data that a lock protects: a balance, and the highest token of its writers.
struct Account {
    con: Connection,
    key: String,
}

impl Account {
    fn new(con: Connection, key: String) -> Self {
        Self { con, key }
    }

    fn balance(&mut self) -> i64 {
        let mut get = redis::cmd("HGET");
        get.arg(&self.key)
            .arg("balance")
            .query(&mut self.con)
            .unwrap()
    }

    fn write(&mut self, balance: i64) {
        let mut set = redis::cmd("HSET");
        set.arg(&self.key).arg("balance").arg(balance);
        let () = set.query(&mut self.con).unwrap();
    }

    /// Writes as the documentation says; returns whether the write was accepted.
    fn write_checked(&mut self, token: u64, balance: i64) -> bool {
        let check = redis::Script::new(&documented_check());
        let mut write = check.key(&self.key);
        write.arg(token).arg(balance).invoke(&mut self.con).unwrap()
    }
}

#[test]
fn the_documented_check_refuses_every_older_token_and_no_other() {
    let server = Server::start();
    let name = unique("account");
    let mut account = Account::new(server.connection(), format!("{name}:data"));
    // A holder may write repeatedly. Tokens are compared as numbers, not by their digits.
    for (token, accepted) in [
        (1, true),
        (1, true),
        (9, true),
        (10, true),
        (9, false),
        (100, true),
        (99, false),
        (1_799_999_999_999_999, true),
        (999_999_999_999_999, false),
        ((1 << 53) + 1, true),
        (1 << 53, false),
        ((1 << 53) + 1, true),
        ((1 << 63) - 1, true),
        ((1 << 63) - 2, false),
        (0, false),
    ] {
        let fields_before = server.hgetall(&account.key);
        assert_eq!(account.write_checked(token, 7), accepted, "{token}");
        assert!(accepted || server.hgetall(&account.key) == fields_before);
    }
    // Now with tokens of a lock; the first of them meets an account without a token.
    server.cli(&["DEL", &account.key]);
    account.write(100);
    let (one, other) = (open(&server), open(&server));
    let (lock, their) = (one.fenced_lock(&name), other.fenced_lock(&name));
    let overtaken = lock.lock().unwrap();
    assert!(account.write_checked(overtaken.token(), 90));
    assert!(their.force_unlock().unwrap());
    let guard = their.lock().unwrap();
    // The account has seen no later token, so it accepts the write.
    assert!(account.write_checked(overtaken.token(), 80));
    assert!(account.write_checked(guard.token(), 70));
    assert!(account.write_checked(guard.token(), 60));
    assert!(!account.write_checked(overtaken.token(), 0));
    assert_eq!(account.balance(), 60);
}

timed!(threads_that_pass_on_a_lock_that_was_taken_away_are_refused);
fn threads_that_pass_on_a_lock_that_was_taken_away_are_refused() {
    const THREADS: usize = 4;
    let server = Server::start();
    let name = unique("taken");
    let client = Client::open(Config::new(server.url()).tenure(ms(1000))).unwrap();
    let other = open(&server);
    let lock = client.fenced_lock(&name);
    let begin = lock.lock().unwrap();
    let go = Arc::new(AtomicBool::new(false));
    let (sender, received) = unbounded();
    let account = || Account::new(server.connection(), format!("{name}:data"));
    let mut crew = Crew::new();
    for _ in 0..THREADS {
        let (lock, go, sender) = (lock.clone(), Arc::clone(&go), sender.clone());
        let mut account = account();
        crew.spawn(move || {
            let guard = lock.lock().unwrap();
            sender.send((guard.token(), true)).unwrap();
            assert!(within(LONG, || go.load(Ordering::SeqCst)));
            let written = account.write_checked(guard.token(), 1);
            sender.send((guard.token(), written)).unwrap();
        });
    }
    crew.all_parked();
    drop(begin);
    let (first, _) = received.recv_timeout(LONG).unwrap();
    let their = other.fenced_lock(&name);
    assert!(their.force_unlock().unwrap());
    let guard = their.lock().unwrap();
    assert!(guard.token() > first && account().write_checked(guard.token(), 2));
    // The threads do not know of their loss, and pass on a lock that they do not hold any more.
    go.store(true, Ordering::SeqCst);
    crew.join();
    assert_eq!(client.stats().local_handoffs, 3);
    let after: Vec<_> = received.try_iter().collect();
    assert_eq!(after.len(), 2 * THREADS - 1);
    assert!(after.iter().all(|(token, _)| *token < guard.token()));
    assert_eq!(
        after.iter().filter(|(_, written)| !written).count(),
        THREADS
    );
    assert_eq!(account().balance(), 2);
    guard.unlock().unwrap();
}

timed!(a_late_write_of_a_stopped_process_is_refused);
fn a_late_write_of_a_stopped_process_is_refused() {
    let server = Server::start();
    late_write(&server, true);
    late_write(&server, false);
}

/// A process is stopped between its check of the lock and its write, for longer than its lease.
fn late_write(server: &Server, checks: bool) {
    let client = open(server);
    let name = unique("stopped");
    let mut account = Account::new(server.connection(), format!("{name}:data"));
    account.write(100);
    let given = [&*server.url(), &name, &checks.to_string()];
    let mut part = Part::start(part_that_is_stopped, &given);
    let stale: u64 = part.says("holds").parse().unwrap();
    part.stop();

    let guard = client
        .fenced_lock(&name)
        .try_lock_for(LONG)
        .unwrap()
        .unwrap();
    assert!(guard.token() > stale);
    let balance = account.balance() - 50;
    if checks {
        assert!(account.write_checked(guard.token(), balance));
    } else {
        account.write(balance);
    }
    part.order("go on");
    part.signal(Signal::SIGCONT);
    assert_eq!(part.says("written"), (!checks).to_string());
    assert_eq!(part.says("valid"), "false");
    let reason = part.says("lost");
    assert!(["Expired", "TakenOver"].contains(&&*reason), "{reason}");
    let unlocked = part.says("unlocked");
    assert!(unlocked.contains("is no longer held"), "{unlocked}");
    // Without the check, a withdrawal of fifty is overwritten.
    assert_eq!(account.balance(), if checks { 50 } else { 70 });
    let held = server.hgetall(&name);
    assert_eq!(held, [(guard.owner().to_owned(), "1".to_owned())]);
    guard.unlock().unwrap();
}

#[test]
#[ignore = "part of a_late_write_of_a_stopped_process_is_refused"]
fn part_that_is_stopped() {
    let Some([url, name, checks]) = &given() else {
        return;
    };
    let client = Client::open(url).unwrap();
    let mut account = Account::new(connection_to(url), format!("{name}:data"));
    let lock = client.fenced_lock(name).fixed_lease(ms(500));
    let guard = lock.lock().unwrap();
    let balance = account.balance() - 30;
    assert!(guard.is_valid());
    say(&format!("holds {}", guard.token()));
    order();
    let valid = guard.is_valid();
    // The process does not check the lock again, or checks too early; only a token prevents its write.
    let written = if checks == "true" {
        account.write_checked(guard.token(), balance)
    } else {
        account.write(balance);
        true
    };
    say(&format!("written {written}"));
    say(&format!("valid {}", valid || guard.is_valid()));
    let loss = guard.lost().recv_timeout(LONG).unwrap();
    say(&format!("lost {:?}", loss.reason));
    assert_ne!(loss.reason, LossReason::Closed);
    say(&format!("unlocked {:?}", guard.unlock()));
}
