//! How a wait ends while Redis does not reply, or rejects its commands.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{CancelToken, Client, Config, Error, MultiLock, RedLock, Result};

use crate::support::{
    GENEROUS, Mode, Proxy, Server, Target, eventually, lua, ms, scoped, timed, unique,
};

/// A client releases a lock after more than a tenure and at once acquires it again, while the server is frozen.
fn yields_in_time<T: Debug>(
    set_up: impl Fn(&Client, &str),
    take: impl Fn(&Client, &str) -> Result<T> + Sync,
) {
    const TENURE: Duration = ms(60);
    let server = Server::start();
    let config = Config::new(server.url());
    let client = Client::open(config.command_timeout(ms(500)).tenure(TENURE)).unwrap();
    let (name, other) = (unique("yields"), unique("asks"));
    set_up(&client, &name);
    set_up(&client, &other);
    let held = take(&client, &name).unwrap();
    thread::sleep(TENURE + ms(1));
    server.freeze();
    // The next acquire waits for the reply to this release, which says whether other processes wait.
    drop(held);
    let fails = |name: &str| {
        let failed = take(&client, name).map(drop);
        assert!(matches!(failed, Err(Error::Redis { .. })), "{failed:?}");
        Instant::now()
    };
    scoped(|scope| {
        let first = scope.spawn(|| fails(&name));
        // The acquire may wait 250 ms for that reply before it asks Redis; half of that has passed.
        thread::sleep(ms(125));
        let second = fails(&other);
        assert!(first.join().unwrap() < second);
    });
    server.thaw();
}

timed!(yielding_to_others_is_part_of_the_command_timeout);
fn yielding_to_others_is_part_of_the_command_timeout() {
    yields_in_time(|_, _| (), |client, name| client.mutex(name).lock());
    yields_in_time(
        |client, name| assert!(client.semaphore(name).try_set_permits(1).unwrap()),
        |client, name| client.semaphore(name).acquire(),
    );
}

// The other half of the time is left for the requests, as it is for a single lock.
timed!(a_set_waits_for_the_reply_to_a_release_for_half_of_its_time);
fn a_set_waits_for_the_reply_to_a_release_for_half_of_its_time() {
    const TENURE: Duration = ms(60);
    const LIMIT: Duration = ms(600);
    let server = Server::start();
    let config = Config::new(server.url()).command_timeout(4 * LIMIT);
    let client = Client::open(config.tenure(TENURE)).unwrap();
    let member = client.mutex(unique("half"));
    let other = client.mutex(unique("other"));
    let held = member.lock().unwrap();
    thread::sleep(TENURE + ms(1));
    server.freeze();
    drop(held);
    let set = MultiLock::new(vec![Box::new(member), Box::new(other)]);
    let (began, commands_before) = (Instant::now(), client.stats().commands);
    scoped(|scope| {
        let takes = scope.spawn(|| set.try_lock_for(LIMIT).map(|held| held.is_some()));
        eventually("both members are requested", || {
            client.stats().commands >= commands_before + 2
        });
        let requested_after = began.elapsed();
        server.thaw();
        assert!(requested_after < LIMIT, "{requested_after:?}");
        assert!(takes.join().unwrap().unwrap(), "the server answers in time");
    });
}

timed!(a_server_that_freezes_under_the_work_is_no_reason_to_repeat_it);
fn a_server_that_freezes_under_the_work_is_no_reason_to_repeat_it() {
    let server = Server::start();
    let config = Config::new(server.url()).command_timeout(ms(200));
    let client = Client::open(config).unwrap();
    let worked = |lock: &dyn Fn(&mut dyn FnMut()) -> Result<()>| {
        let mut times = 0;
        lock(&mut || {
            times += 1;
            server.freeze();
        })
        .unwrap();
        server.thaw();
        assert_eq!(times, 1);
    };
    let (mutex, prices) = (client.mutex(unique("with")), client.rw_lock(unique("with")));
    worked(&|work| mutex.with(|_| work()));
    worked(&|work| prices.with_read(|_| work()));
    worked(&|work| prices.with_write(|_| work()));
    let guard = mutex.lock().unwrap();
    server.freeze();
    let err = guard.unlock().unwrap_err();
    assert!(
        matches!(err, Error::Redis { .. }) && !err.is_retryable(),
        "{err}"
    );
    server.thaw();
}

/// A way of waiting with a time limit; returns whether it succeeded.
type Wait = Box<dyn Fn(&Client, &CancelToken, Duration) -> Result<bool> + Sync>;

/// Every way of waiting, each for a name of its own that is free.
fn ways_of_waiting() -> Vec<(&'static str, Wait)> {
    fn way<T>(
        wait: impl Fn(&Client, &CancelToken, Duration) -> Result<Option<T>> + Sync + 'static,
    ) -> Wait {
        Box::new(move |client, token, limit| wait(client, token, limit).map(|got| got.is_some()))
    }
    vec![
        (
            "lock",
            way(|client, token, limit| client.mutex("m").cancel_on(token).try_lock_for(limit)),
        ),
        (
            "one more hold",
            way(|client, token, limit| {
                let lock = client.reentrant_lock("r").fixed_lease(GENEROUS);
                lock.cancel_on(token).try_lock_for(limit)
            }),
        ),
        (
            "fair lock",
            way(|client, token, limit| client.fair_lock("f").cancel_on(token).try_lock_for(limit)),
        ),
        (
            "spin lock",
            way(|client, token, limit| client.spin_lock("s").cancel_on(token).try_lock_for(limit)),
        ),
        (
            "read lock",
            way(|client, token, limit| client.rw_lock("p").cancel_on(token).try_read_for(limit)),
        ),
        (
            "write lock",
            way(|client, token, limit| client.rw_lock("w").cancel_on(token).try_write_for(limit)),
        ),
        (
            "several names",
            way(|client, token, limit| {
                let lock = client.multi_lock(["a", "b"]).cancel_on(token);
                lock.try_lock_for(limit)
            }),
        ),
        (
            "several locks",
            way(|client, token, limit| {
                let lock = MultiLock::new(vec![
                    Box::new(client.mutex("c")),
                    Box::new(client.fenced_lock("d")),
                ]);
                lock.cancel_on(token).try_lock_for(limit)
            }),
        ),
        (
            "permit",
            way(|client, token, limit| {
                let permits = client.semaphore("permits").cancel_on(token);
                permits.try_acquire_for(limit)
            }),
        ),
        (
            "leased permit",
            way(|client, token, limit| {
                let permits = client.expirable_semaphore("leased").cancel_on(token);
                permits.try_acquire_for(limit)
            }),
        ),
        (
            "latch",
            Box::new(|client, token, limit| client.latch("l").cancel_on(token).wait_for(limit)),
        ),
    ]
}

timed!(a_wait_that_is_cancelled_in_time_says_so_although_its_time_is_up_as_well);
fn a_wait_that_is_cancelled_in_time_says_so_although_its_time_is_up_as_well() {
    // Shorter than the interval at which a thread that waits for a reply checks its token.
    const LIMIT: Duration = ms(60);
    let server = Server::start();
    for (way, wait) in ways_of_waiting() {
        let client = client_with_time(&server.url());
        let held = client
            .reentrant_lock("r")
            .fixed_lease(GENEROUS)
            .lock()
            .unwrap();
        let mut tries = 0;
        loop {
            tries += 1;
            let token = CancelToken::new();
            let commands_before = client.stats().commands;
            server.freeze();
            let began = Instant::now();
            let (cancelled_at, got) = scoped(|scope| {
                let cancels = scope.spawn(|| {
                    eventually("it has asked", || client.stats().commands > commands_before);
                    token.cancel();
                    Instant::now()
                });
                let got = wait(&client, &token, LIMIT);
                (cancels.join().unwrap(), got)
            });
            server.thaw();
            if cancelled_at < began + LIMIT {
                assert!(matches!(got, Err(Error::Cancelled)), "{way}: {got:?}");
                break;
            }
            assert!(tries < 20, "{way}: never cancelled in time");
        }
        drop(held);
    }
}

#[test]
fn whoever_is_cancelled_need_not_wait_for_the_thread_that_reads_for_all() {
    const OTHERS: u64 = 4;
    let server = Server::start();
    // The connection must not be abandoned during the test.
    let config = Config::new(server.url()).command_timeout(GENEROUS * 4);
    let client = Client::open(config).unwrap();
    let (token, commands_before) = (CancelToken::new(), client.stats().commands);
    server.freeze();
    scoped(|scope| {
        // Two waiting threads: one reads the replies for all, and wakes the other when they swap roles.
        let patient = [1, 2].map(|n| {
            let lock = client.mutex(format!("patient:{n}"));
            let thread = scope.spawn(move || lock.lock().map(drop));
            eventually("it has asked", || {
                client.stats().commands >= commands_before + n
            });
            thread
        });
        let others: Vec<_> = (0..OTHERS)
            .map(|n| client.mutex(format!("follows:{n}")).cancel_on(&token))
            .map(|lock| scope.spawn(move || lock.lock().map(drop)))
            .collect();
        let all = commands_before + 2 + OTHERS;
        eventually("all have asked", || client.stats().commands >= all);
        token.cancel();
        eventually("they stop", || {
            others.iter().all(|other| other.is_finished())
        });
        for other in others {
            let ended = other.join().unwrap();
            assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
        }
        assert!(patient.iter().all(|thread| !thread.is_finished()));
        server.thaw();
        for thread in patient {
            thread.join().unwrap().unwrap();
        }
    });
}

#[test]
fn attempts_out_of_time_leave_no_more_to_be_sent_however_many_they_are() {
    const THREADS: usize = 96;
    const TRIES: usize = 20;
    let server = Server::start();
    let client = client_with_time(&server.url());
    for n in (0..THREADS).filter(|n| n % 8 >= 6) {
        let name = format!("l{n}");
        client.semaphore(&name).try_set_permits(1).unwrap();
        let leased = client.expirable_semaphore(name + "e");
        leased.try_set_permits(1).unwrap();
    }
    let attempt = |n: usize, limit| {
        let name = format!("l{n}");
        let got = match n % 8 {
            0 => client.fair_lock(name).try_lock_for(limit).map(is_some),
            1 => client.spin_lock(name).try_lock_for(limit).map(is_some),
            2 => client.rw_lock(name).try_read_for(limit).map(is_some),
            3 => client.rw_lock(name).try_write_for(limit).map(is_some),
            4 => client
                .multi_lock([name.clone() + "a", name + "b"])
                .try_lock_for(limit)
                .map(is_some),
            5 => client.mutex(name).try_lock_for(limit).map(is_some),
            6 => client.semaphore(name).try_acquire_for(limit).map(is_some),
            _ => client
                .expirable_semaphore(name + "e")
                .try_acquire_for(limit)
                .map(is_some),
        };
        got.unwrap()
    };
    let each = |work: &(dyn Fn(usize) + Sync)| {
        scoped(|scope| {
            for n in 0..THREADS {
                scope.spawn(move || work(n));
            }
        });
    };
    server.freeze();
    let commands_before = client.stats().commands;
    each(&|n| {
        for _ in 0..TRIES {
            assert!(!attempt(n, ms(1)), "the server is frozen");
        }
    });
    let sent = client.stats().commands - commands_before;
    server.thaw();
    assert!(sent <= 4 * THREADS as u64, "{sent} commands");
    each(&|n| assert!(attempt(n, GENEROUS), "{n} is free"));
}

fn is_some<T>(got: Option<T>) -> bool {
    got.is_some()
}

/// A delay of replies with which the second reply comes too late.
const LATE: Duration = ms(200);

/// A time limit that suffices for one reply, not for two.
const FOR_ONE: Duration = ms(300);

/// Why the server rejects commands: writes without replicas, or even reads on a replica without its master.
#[derive(Clone, Copy)]
enum Refusal {
    NoReplicas,
    MasterDown,
}

impl Refusal {
    /// A refusal that affects the script of this way of waiting.
    fn of(way: &str) -> (Self, &'static str) {
        if ["latch", "one more hold"].contains(&way) {
            (Self::MasterDown, "MASTER is down")
        } else {
            (Self::NoReplicas, "NOREPLICAS")
        }
    }

    fn begin(self, server: &Server) {
        match self {
            Self::NoReplicas => server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
            Self::MasterDown => {
                server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
                server.cli(&["REPLICAOF", "127.0.0.1", "1"])
            }
        };
    }

    fn end(self, server: &Server) {
        match self {
            Self::NoReplicas => server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
            Self::MasterDown => server.cli(&["REPLICAOF", "NO", "ONE"]),
        };
    }
}

fn says(way: &str, got: Result<bool>, why: &str) {
    let said = got.as_ref().map_err(Error::to_string).err();
    assert!(
        said.is_some_and(|said| said.contains(why)),
        "{way}: {got:?}"
    );
}

timed!(who_was_refused_and_then_heard_nothing_in_time_says_why);
fn who_was_refused_and_then_heard_nothing_in_time_says_why() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let set_up = client_with_time(&server.url());
    set_up.semaphore("permits").try_set_permits(1).unwrap();
    let leased = set_up.expirable_semaphore("leased");
    leased.try_set_permits(1).unwrap();
    for (way, wait) in ways_of_waiting() {
        let client = client_with_time(&proxy.url());
        let (refusal, why) = Refusal::of(way);
        let got = with_time_for_one(|late, limit| {
            let held = client
                .reentrant_lock("r")
                .fixed_lease(GENEROUS)
                .lock()
                .unwrap();
            // The first acquire teaches the server the script; otherwise its first error would be NOSCRIPT.
            let got = wait(&client, &CancelToken::new(), GENEROUS);
            assert!(got.unwrap(), "{way}");
            // The reply to `is_locked` follows the release on the same connection. A release sent later would be
            // rejected and leave the name held.
            client.mutex("m").is_locked().unwrap();
            proxy.set(Target::Link, Mode::Delay(late));
            refusal.begin(&server);
            let got = wait(&client, &CancelToken::new(), limit);
            refusal.end(&server);
            proxy.pass();
            drop(held);
            got
        });
        says(way, got, why);
    }
}

/// Calls `wait` with a delay of replies and a limit that suffices for one reply; doubles both while a busy machine does
/// not manage even one.
fn with_time_for_one(wait: impl Fn(Duration, Duration) -> Result<bool>) -> Result<bool> {
    let mut late = LATE;
    loop {
        let got = wait(late, late * 3 / 2);
        late *= 2;
        if !matches!(got, Ok(false)) || late > GENEROUS / 2 {
            return got;
        }
    }
}

timed!(who_was_refused_and_then_only_heard_nothing_in_time_is_late);
fn who_was_refused_and_then_only_heard_nothing_in_time_is_late() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut wait = FOR_ONE;
    loop {
        let client = client_with_time(&proxy.url());
        let lock = client.mutex("m");
        drop(lock.lock().unwrap());
        let sent = client.stats().commands;
        let by_text = proxy.swallow_reply_to(lua::LOCK_ACQUIRE);
        Refusal::NoReplicas.begin(&server);
        let got = scoped(|scope| {
            let waiting = scope.spawn(|| lock.try_lock_for(wait).map(|got| got.is_some()));
            eventually("it was refused", || client.stats().commands >= sent + 2);
            // The server now asks for the script's text, and the reply to that is lost.
            server.cli(&["SCRIPT", "FLUSH"]);
            waiting.join().unwrap()
        });
        Refusal::NoReplicas.end(&server);
        if by_text.fired() {
            assert!(matches!(got, Ok(false)), "{got:?}");
            break;
        }
        assert!(wait < GENEROUS, "it is never asked for the script in time");
        wait *= 2;
    }
}

timed!(a_busy_server_is_an_error_however_short_the_wait);
fn a_busy_server_is_an_error_however_short_the_wait() {
    let server = Server::start_with(&["--lua-time-limit", "10"]);
    let client = client_with_time(&server.url());
    let lock = client.mutex("m");
    let got = while_a_script_runs(&server, || lock.try_lock_for(FOR_ONE));
    says("lock", got.map(|got| got.is_some()), "BUSY");
    drop(lock.lock().unwrap());
}

timed!(a_majority_that_refused_and_was_then_not_heard_in_time_is_an_error);
fn a_majority_that_refused_and_was_then_not_heard_in_time_is_an_error() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = servers.each_ref().map(|server| Proxy::start(server.addr()));
    let clients = proxies
        .each_ref()
        .map(|proxy| client_with_time(&proxy.url()));
    let lock = RedLock::new(&clients, "red").unwrap();
    drop(lock.lock().unwrap());
    for server in &servers {
        eventually("it is free", || server.keys().is_empty());
    }
    // A red lock never waits longer for one node, so a longer limit would not help a busy machine.
    let attempt = || {
        for (server, proxy) in servers.iter().zip(&proxies) {
            proxy.set(Target::Link, Mode::Delay(LATE));
            Refusal::NoReplicas.begin(server);
        }
        let got = lock.try_lock_for(FOR_ONE);
        for (server, proxy) in servers.iter().zip(&proxies) {
            Refusal::NoReplicas.end(server);
            proxy.pass();
        }
        got.map(|got| got.is_some())
    };
    let mut got = attempt();
    for _ in 0..10 {
        if !matches!(got, Ok(false)) {
            break;
        }
        got = attempt();
    }
    let Err(Error::NoQuorum { failures, .. }) = got else {
        panic!("{got:?}");
    };
    assert_eq!(failures.len(), 3, "{failures:?}");
    for (_, failure) in failures {
        assert!(failure.to_string().contains("NOREPLICAS"), "{failure}");
    }
}

/// Runs `work` while the server rejects every command with BUSY, because an endless script runs.
fn while_a_script_runs<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let mut runs = server.connection();
    let mut asks = server.connection();
    runs.set_read_timeout(None).unwrap();
    scoped(|scope| {
        let script = scope.spawn(move || {
            let mut script = redis::cmd("EVAL");
            script.arg("while true do end").arg(0);
            script.query::<redis::Value>(&mut runs)
        });
        eventually("it is busy", || {
            let pong = redis::cmd("PING").query::<String>(&mut asks);
            pong.is_err_and(|err| err.code() == Some("BUSY"))
        });
        let done = work();
        let kill = redis::cmd("SCRIPT").arg("KILL").query::<()>(&mut asks);
        kill.unwrap();
        assert!(script.join().unwrap().is_err());
        done
    })
}

/// A client whose `command_timeout` is longer than every wait in these tests.
fn client_with_time(url: &str) -> Client {
    Client::open(Config::new(url).command_timeout(3 * GENEROUS)).unwrap()
}
