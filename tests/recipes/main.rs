//! The recipes of the guide do what the guide says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "recipes are copied from there")]

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use redlatch::{CancelToken, Client, Config, Error, Leadership};

use crate::support::{Part, Server, eventually, given, ms, order, say, timed, unique};

#[path = "../it/support/bare/mod.rs"]
mod support;

#[path = "../../examples/recipes/cron.rs"]
mod cron;
#[path = "../it/support/dice.rs"]
#[expect(dead_code, reason = "other tests draw more")]
mod dice;
mod exporter;
#[path = "../../examples/recipes/from_async.rs"]
mod from_async;
#[path = "../../examples/recipes/from_set_nx.rs"]
mod from_set_nx;
#[path = "../../examples/recipes/hand_over.rs"]
mod hand_over;
#[path = "../../examples/recipes/health.rs"]
mod health;
#[path = "../../examples/recipes/leader.rs"]
mod leader;
#[path = "../../examples/recipes/migrations.rs"]
mod migrations;
#[path = "../../examples/recipes/pool.rs"]
mod pool;
#[path = "../../examples/recipes/sql.rs"]
mod sql;
#[path = "../../examples/recipes/stampede.rs"]
mod stampede;
#[path = "../../examples/recipes/web.rs"]
mod web;
#[path = "../../examples/recipes/without_redis.rs"]
mod without_redis;

fn open(server: &Server) -> Client {
    Client::open(settings(server)).unwrap()
}

fn settings(server: &Server) -> Config {
    Config::new(server.url()).lease(ms(3_000))
}

timed!(of_five_hosts_one_does_the_job_of_a_minute);
fn of_five_hosts_one_does_the_job_of_a_minute() {
    let server = Server::start();
    let ran = AtomicU32::new(0);
    let job = || {
        ran.fetch_add(1, Ordering::SeqCst);
    };
    let done = (0..5).filter(|_| cron::every_minute(&open(&server), job).unwrap());
    assert_eq!((done.count(), ran.load(Ordering::SeqCst)), (1, 1));
}

timed!(of_many_replicas_one_migrates_and_all_start);
fn of_many_replicas_one_migrates_and_all_start() {
    let server = Server::start();
    let (version, migrated) = (AtomicU32::new(1), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            let (client, version, migrated) = (open(&server), &version, &migrated);
            scope.spawn(move || {
                let read = || version.load(Ordering::SeqCst);
                let done = migrations::migrate(&client, 3, read, |from| {
                    assert_eq!(from, 1);
                    thread::sleep(ms(50));
                    version.store(3, Ordering::SeqCst);
                });
                migrated.fetch_add(u32::from(done.unwrap()), Ordering::SeqCst);
                assert_eq!(version.load(Ordering::SeqCst), 3, "nobody starts before");
            });
        }
    });
    assert_eq!(migrated.load(Ordering::SeqCst), 1);
}

timed!(when_the_leader_ends_another_leads);
fn when_the_leader_ends_another_leads() {
    let server = Server::start();
    let clients = [open(&server), open(&server)];
    let stops = [CancelToken::new(), CancelToken::new()];
    let leads = [AtomicBool::new(false), AtomicBool::new(false)];
    let alone = Mutex::new(());
    thread::scope(|scope| {
        for n in 0..2 {
            let (client, stop, leads, alone) = (&clients[n], &stops[n], &leads[n], &alone);
            scope.spawn(move || {
                let work = |_: &Leadership| {
                    let _alone = alone.try_lock().expect("nobody else leads");
                    leads.store(true, Ordering::SeqCst);
                    thread::sleep(ms(1));
                    true
                };
                leader::lead(client, Duration::from_secs(60), stop, work).unwrap();
            });
            if n == 0 {
                eventually("the first leads", || leads.load(Ordering::SeqCst));
            }
        }
        assert!(!leads[1].load(Ordering::SeqCst));
        stops[0].cancel();
        eventually("the second leads", || leads[1].load(Ordering::SeqCst));
        // A clean shutdown is no error for the leader.
        clients[1].close(Duration::from_secs(5)).unwrap();
    });
}

timed!(a_leader_that_hangs_is_replaced);
fn a_leader_that_hangs_is_replaced() {
    let server = Server::start();
    let client = || Client::open(settings(&server).lease(ms(300))).unwrap();
    let (hung, next) = (client(), client());
    let stop = CancelToken::new();
    let (leads, goes_on) = crossbeam_channel::bounded::<()>(0);
    thread::scope(|scope| {
        let stopped = &stop;
        scope.spawn(move || {
            let hangs = |_: &Leadership| {
                leads.send(()).unwrap();
                // Hangs until the test has seen another leader.
                leads.send(()).ok();
                false
            };
            leader::lead(&hung, ms(500), stopped, hangs).unwrap();
        });
        goes_on.recv().unwrap();
        let (leads, is_next) = crossbeam_channel::bounded(1);
        scope.spawn(move || {
            leader::lead(&next, ms(500), stopped, |_| leads.try_send(()).is_err()).unwrap();
        });
        let replaced = is_next.recv_timeout(Duration::from_secs(20));
        stop.cancel();
        drop(goes_on);
        replaced.expect("another leads within a term and a lease");
    });
}

timed!(a_job_is_accepted_by_one_process_and_finished_by_another_once);
fn a_job_is_accepted_by_one_process_and_finished_by_another_once() {
    let server = Server::start();
    let (web, worker) = (open(&server), open(&server));
    let ticket = hand_over::accept(&web, "order:7")
        .unwrap()
        .expect("nobody has it");
    assert_eq!(hand_over::accept(&web, "order:7").unwrap(), None);
    let done = AtomicU32::new(0);
    let job = |_| {
        assert_eq!(hand_over::accept(&web, "order:7").unwrap(), None);
        done.fetch_add(1, Ordering::SeqCst);
    };
    assert!(hand_over::finish(&worker, &ticket, job).unwrap());
    assert!(!hand_over::finish(&worker, &ticket, |_| panic!("twice")).unwrap());
    assert_eq!(done.into_inner(), 1);
    assert!(hand_over::accept(&web, "order:7").unwrap().is_some());
}

timed!(a_probe_says_whether_the_process_is_ready);
fn a_probe_says_whether_the_process_is_ready() {
    let mut server = Server::start();
    let client = open(&server);
    let (status, body) = health::probe(&client);
    assert_eq!(
        (status, body.contains("been reachable")),
        (200, true),
        "{body}"
    );
    server.kill();
    let (status, body) = health::probe(&client);
    assert_eq!(
        (status, body.contains("not answered")),
        (503, true),
        "{body}"
    );
}

timed!(no_more_than_five_call_the_service);
fn no_more_than_five_call_the_service() {
    let server = Server::start();
    let client = open(&server);
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let call = || {
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    thread::sleep(ms(20));
                    inside.fetch_sub(1, Ordering::SeqCst);
                };
                let pool = pool::open(&client).unwrap();
                pool::call_service(&pool, call).unwrap();
            });
        }
    });
    assert!((1..=5).contains(&most.load(Ordering::SeqCst)));
}

timed!(an_entry_is_computed_once);
fn an_entry_is_computed_once() {
    let server = Server::start();
    let client = open(&server);
    let (cache, filled) = (Mutex::new(None), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let fill = || {
                    filled.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(ms(20));
                    *cache.lock().unwrap() = Some(42);
                    42
                };
                let found = stampede::cached(&client, "page", || *cache.lock().unwrap(), fill);
                assert_eq!(found, 42);
            });
        }
    });
    assert_eq!(filled.load(Ordering::SeqCst), 1);
}

timed!(without_redis_a_page_is_slow_but_there);
fn without_redis_a_page_is_slow_but_there() {
    let mut server = Server::start();
    let client = open(&server);
    server.kill();
    assert_eq!(stampede::cached(&client, "page", || None, || 42), 42);
}

const ACCOUNT: i64 = 7;

/// A file with an account of this balance, which other processes open as well.
fn accounts(path: &Path, balance: i64) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute(sql::TABLE, ()).unwrap();
    let first = "INSERT INTO account (id, balance) VALUES (?1, ?2)";
    db.execute(first, (ACCOUNT, balance)).unwrap();
    db
}

/// Balance and token of the account.
fn in_it(db: &rusqlite::Connection) -> (i64, i64) {
    let read = "SELECT balance, token FROM account WHERE id = ?1";
    db.query_row(read, [ACCOUNT], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
}

timed!(a_stopped_holder_changes_no_row_once_another_has);
fn a_stopped_holder_changes_no_row_once_another_has() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("accounts");
    let db = accounts(&path, 100);
    let mut holder = Part::start(
        part_that_writes_late,
        &[&server.url(), path.to_str().unwrap()],
    );
    assert_eq!(holder.says("has read"), "100");
    holder.stop();
    // Waits until the holder's lease expires.
    let change = sql::change(&open(&server), &db, ACCOUNT, |balance| balance - 50);
    assert_eq!(change.unwrap(), sql::Change::Written);
    let (balance, token) = in_it(&db);
    assert!(balance == 50 && token > 0, "{balance}, {token}");
    holder.signal(Signal::SIGCONT);
    holder.order("go on");
    assert_eq!(holder.says("is told"), "Overtaken");
    assert_eq!(in_it(&db), (50, token), "the data of the other");
    // The holder repeats the change with the balance that the other has left.
    holder.order("again");
    assert_eq!(holder.says("is told"), "Written");
    holder.ends();
    let (balance, newer) = in_it(&db);
    assert!(balance == 20 && newer > token, "{balance}, {newer}");
}

/// Takes 30 from the account; the test stops this process after it has read the balance.
#[test]
#[ignore = "part of a_stopped_holder_changes_no_row_once_another_has"]
fn part_that_writes_late() {
    let Some([url, path]) = given() else { return };
    let client = Client::open(Config::new(url).lease(ms(1_000))).unwrap();
    let db = rusqlite::Connection::open(path).unwrap();
    let late = sql::change(&client, &db, ACCOUNT, |balance| {
        say(&format!("has read {balance}"));
        order();
        balance - 30
    });
    say(&format!("is told {:?}", late.unwrap()));
    order();
    let again = sql::change(&client, &db, ACCOUNT, |balance| balance - 30);
    say(&format!("is told {:?}", again.unwrap()));
}

timed!(a_handler_answers_what_it_is);
fn a_handler_answers_what_it_is() {
    let mut server = Server::start();
    let client = Client::open(settings(&server).command_timeout(ms(300))).unwrap();
    let (held, ran) = (open(&server), AtomicU32::new(0));
    let handle = || {
        web::change_order(&client, 4711, || {
            ran.fetch_add(1, Ordering::SeqCst);
        })
    };
    assert_eq!(handle(), 200);
    let guard = held.mutex("order:4711").lock().unwrap();
    assert_eq!(handle(), 409);
    drop(guard);
    server.kill();
    assert_eq!(handle(), 503);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

timed!(work_of_an_async_program_is_done_under_the_lock);
fn work_of_an_async_program_is_done_under_the_lock() {
    let server = Server::start();
    let client = open(&server);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let inside = std::sync::Arc::new(Mutex::new(()));
    let one = || {
        let inside = std::sync::Arc::clone(&inside);
        from_async::with_lock(&client, "async".into(), move || {
            let _alone = inside.try_lock().expect("nobody else is inside");
            thread::sleep(ms(10));
        })
    };
    let (a, b) = runtime.block_on(async { tokio::join!(one(), one()) });
    a.unwrap();
    b.unwrap();
    // Guards that live across an `await`.
    let is_inside = AtomicBool::new(false);
    let one = || async {
        let guard = from_async::lock(&client, "async".into()).await.unwrap();
        assert!(
            !is_inside.swap(true, Ordering::SeqCst),
            "somebody else is inside"
        );
        tokio::task::yield_now().await;
        is_inside.store(false, Ordering::SeqCst);
        drop(guard);
    };
    runtime.block_on(async { tokio::join!(one(), one(), one()) });
    let is_free = || !client.mutex("async").is_locked().unwrap();
    eventually("it is free", is_free);
}

/// A program that locks with SET NX, as the documentation of Redis describes.
struct ByHand<'a> {
    connection: redis::Connection,
    key: &'a str,
}

impl<'a> ByHand<'a> {
    const RELEASE: &'static str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

    fn new(server: &Server, key: &'a str) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_connection().unwrap();
        Self { connection, key }
    }

    fn try_lock(&mut self, value: &str, ttl: Duration) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(self.key).arg(value).arg("NX");
        set.arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap());
        let set: Option<String> = set.query(&mut self.connection).unwrap();
        set.is_some()
    }

    fn release(&mut self, value: &str) -> redis::RedisResult<i64> {
        let release = redis::Script::new(Self::RELEASE);
        let mut release = release.key(self.key);
        release.arg(value).invoke(&mut self.connection)
    }

    fn value(&mut self) -> Option<String> {
        let mut get = redis::cmd("GET");
        get.arg(self.key).query(&mut self.connection).unwrap()
    }
}

timed!(neither_old_nor_new_programs_take_what_the_other_has);
fn neither_old_nor_new_programs_take_what_the_other_has() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("moving");
    let (lock, mut by_hand) = (client.mutex(&name), ByHand::new(&server, &name));
    let (long, short) = (Duration::from_secs(60), ms(100));
    // The old program holds the lock.
    assert!(by_hand.try_lock("old", long));
    let busy = from_set_nx::lock_beside_set_nx(&lock, short);
    assert!(busy.unwrap().is_none());
    assert_eq!(by_hand.value().as_deref(), Some("old"), "left as it was");
    assert_eq!(by_hand.release("old").unwrap(), 1);
    // The new program holds the lock; a late release by an old program does not end that hold.
    let guard = from_set_nx::lock_beside_set_nx(&lock, long);
    let guard = guard.unwrap().unwrap();
    assert!(!by_hand.try_lock("old", long));
    let late = by_hand.release("old").unwrap_err();
    assert_eq!(late.code(), Some("WRONGTYPE"), "{late}");
    assert!(lock.is_locked().unwrap());
    guard.unlock().unwrap();
    // Nor does a late release by the new program end a hold of an old one.
    let fixed = lock.fixed_lease(short);
    let guard = fixed.lock().unwrap();
    eventually("it ends", || by_hand.try_lock("old", long));
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert_eq!(by_hand.value().as_deref(), Some("old"), "left as it was");
}

timed!(old_and_new_programs_take_turns);
fn old_and_new_programs_take_turns() {
    const EACH: u32 = 20;
    let server = Server::start();
    let name = unique("moving");
    let (alone, counted) = (Mutex::new(()), AtomicU32::new(0));
    let work = || {
        let _alone = alone.try_lock().expect("nobody else is inside");
        counted.fetch_add(1, Ordering::SeqCst);
        thread::sleep(ms(1));
    };
    thread::scope(|scope| {
        for n in 0..2 {
            let (mut by_hand, client) = (ByHand::new(&server, &name), open(&server));
            let (work, name) = (&work, &name);
            scope.spawn(move || {
                let value = n.to_string();
                for _ in 0..EACH {
                    eventually("an old one has it", || {
                        by_hand.try_lock(&value, Duration::from_secs(60))
                    });
                    work();
                    assert_eq!(by_hand.release(&value).unwrap(), 1);
                }
            });
            scope.spawn(move || {
                let lock = client.mutex(name);
                for _ in 0..EACH {
                    let wait = Duration::from_secs(60);
                    let guard = from_set_nx::lock_beside_set_nx(&lock, wait);
                    let guard = guard.unwrap().expect("a new one has it");
                    work();
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(counted.load(Ordering::SeqCst), 4 * EACH);
}

timed!(two_futures_of_a_thread_are_one_owner);
fn two_futures_of_a_thread_are_one_owner() {
    let server = Server::start();
    let client = open(&server);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let reentrant = async || {
        let guard = client.reentrant_lock("shared").lock();
        tokio::task::yield_now().await;
        guard.map(|guard| guard.hold_count())
    };
    // Both futures hold the lock at the same time, which shows what not to do.
    let both = runtime.block_on(async { tokio::join!(reentrant(), reentrant()) });
    assert_eq!(both.0.unwrap().max(both.1.unwrap()), 2);
    let mutex = async || {
        let guard = client.mutex("single").try_lock();
        tokio::task::yield_now().await;
        guard.map(|guard| guard.is_some())
    };
    let both = runtime.block_on(async { tokio::join!(mutex(), mutex()) });
    assert!(both.0.unwrap());
    assert!(matches!(both.1, Err(Error::WouldDeadlock { .. })));
}

/// The example runs every recipe in a process of its own, and ends that by a signal.
#[test]
fn the_example_runs_every_recipe() {
    let server = Server::start();
    let test = std::env::current_exe().unwrap();
    let example = test
        .parent()
        .unwrap()
        .with_file_name("examples")
        .join("recipes");
    if !example.exists() {
        support::skipped("the example", "only this test was built");
        return;
    }
    let done = Command::new(example)
        .env("REDIS_URL", server.url())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(said.contains("cron: done true, again false"), "{said}");
    assert!(said.contains("\nsql: Written\n"), "{said}");
    assert!(
        said.ends_with("shutdown: the client is closed: true\n"),
        "{said}"
    );
}
