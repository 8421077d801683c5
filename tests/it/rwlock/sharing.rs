//! The read-write lock within a process, where readers share a hold in Redis, and beside Redisson, where each thread
//! has its own.

use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, LossReason};

use crate::support::rwlock::{Actor, hash};
use crate::support::{
    BY_MESSAGE, LONG, STRANGER, Server, elsewhere, eventually, logs, loosely, ms, open,
    open_with_lease, scoped, settings, timed, unique, within,
};

// ---------------------------------------------------------------------------------------------------------------------
// Sharing
// ---------------------------------------------------------------------------------------------------------------------

// Further readers of a process send no commands.
timed!(a_further_reader_of_a_process_asks_nobody_for_a_tenure);
fn a_further_reader_of_a_process_asks_nobody_for_a_tenure() {
    const JOINS: u64 = 1_000;
    const TENURE: Duration = ms(1_000);
    let server = Server::start();
    let name = unique("shared");
    let client = Client::open(settings(&server).tenure(TENURE)).unwrap();
    let lock = client.rw_lock(&name);
    let first = Actor::new(lock.clone());
    let commands_before = server.command_total();
    let begun = Instant::now();
    let owner = first.reads();
    elsewhere(|| {
        for _ in 0..JOINS {
            let guard = lock.read().unwrap();
            assert!(guard.owner() == owner || begun.elapsed() >= TENURE);
            assert_eq!(guard.hold_count(), 1);
        }
        for _ in 0..JOINS {
            assert!(lock.try_read().unwrap().is_some());
        }
    });
    let asked = server.command_total() - commands_before;
    if begun.elapsed() < TENURE {
        assert_eq!(client.stats().shared, 2 * JOINS);
        assert!(asked < 20, "{asked} commands");
    }
    eventually("one that comes later asks", || {
        elsewhere(|| lock.read().unwrap().owner() != owner)
    });
    first.leaves();
    // The last reader releases the hold, even if it was not the first.
    let [first, second] = [(); 2].map(|()| Actor::new(lock.clone()));
    assert_eq!(first.reads(), second.reads());
    first.leaves();
    assert_eq!(server.hgetall(&name).len(), 2);
    second.leaves();
    assert!(server.keys().is_empty());
}

timed!(who_wants_other_terms_has_a_hold_of_its_own);
fn who_wants_other_terms_has_a_hold_of_its_own() {
    let server = Server::start();
    let name = unique("terms");
    let client = Client::open(settings(&server).tenure(ms(1_000))).unwrap();
    let lock = client.rw_lock(&name);
    let fixed = |n| lock.clone().fixed_lease(ms(n));
    let limited = || lock.clone().max_hold(ms(60_000));
    let crew: Vec<_> = [
        lock.clone(),
        lock.clone(),
        lock.clone().max_hold(Duration::MAX),
        fixed(60_000),
        fixed(60_000),
        fixed(61_000),
        limited(),
        limited(),
    ]
    .into_iter()
    .map(Actor::new)
    .collect();
    let owners: Vec<_> = crew.iter().map(Actor::reads).collect();
    assert_eq!(owners[0], owners[1]);
    assert_eq!(owners[0], owners[2], "no limit");

    let mut different: Vec<_> = owners.iter().map(String::as_str).collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 6, "{owners:?}");
    assert_eq!(server.hgetall(&name), hash("read", &different));
    assert_eq!(server.dbsize(), 7);
    for (readers_gone, actor) in crew.iter().enumerate() {
        assert!(
            elsewhere(|| lock.try_write().unwrap().is_none()),
            "{readers_gone}"
        );
        actor.leaves();
    }
    assert!(server.keys().is_empty());
    drop(lock.try_write().unwrap().unwrap());
}

// A writer in the process's queue keeps further readers from joining, until it leaves the queue.
timed!(nobody_joins_while_a_thread_of_the_process_waits_to_write);
fn nobody_joins_while_a_thread_of_the_process_waits_to_write() {
    let server = Server::start();
    let (name, client) = (unique("line"), open(&server));
    let lock = client.rw_lock(&name);
    let guard = lock.read().unwrap();
    let writer = Actor::new(lock.clone());
    let given_up = writer.begins(|desk| desk.lock.try_write_for(ms(600)).unwrap().is_none());
    eventually("it waits", || {
        elsewhere(|| lock.try_read().unwrap().is_none())
    });
    let reader = Actor::new(lock.clone());
    let behind = reader.begins(|desk| {
        desk.read();
    });
    // A thread that reads already does not queue, since it would wait for itself.
    let again = lock.read().unwrap();
    assert!(behind.try_recv().is_err());
    assert!(given_up.recv_timeout(LONG).unwrap());
    behind.recv_timeout(LONG).unwrap();
    reader.leaves();
    drop((guard, again));
    eventually("nothing is left", || server.keys().is_empty());
}

// Threads share a hold or have their own. A reader that leaves does not end the renewal of those that stay.
timed!(readers_that_overlap_are_renewed_although_others_come_and_go);
fn readers_that_overlap_are_renewed_although_others_come_and_go() {
    let lease = loosely(ms(300));
    let server = Server::start();
    let (name, client) = (unique("overlap"), open_with_lease(&server, lease));
    let lock = client.rw_lock(&name);
    let begun = Instant::now();
    scoped(|scope| {
        for n in 0..8 {
            // Two come at a time, a third of a lease after those before them.
            let (lock, starts) = (&lock, begun + n / 2 * lease / 3);
            scope.spawn(move || {
                thread::sleep(starts.saturating_duration_since(Instant::now()));
                let guard = lock.read().unwrap();
                let until = Instant::now() + 3 * lease / 2;
                while Instant::now() < until {
                    assert!(guard.is_valid() && guard.lost().try_recv().is_err());
                    thread::sleep(ms(10));
                }
                guard.unlock().unwrap();
            });
        }
    });
    assert!(server.keys().is_empty());
    assert_eq!((client.stats().holds, client.stats().lost), (0, 0));
}

// The list of those to be notified of a loss drops the readers that have left.
timed!(listeners_of_a_long_lived_hold_do_not_pile_up);
fn listeners_of_a_long_lived_hold_do_not_pile_up() {
    let server = Server::start();
    let (name, client) = (unique("listeners"), open(&server));
    let lock = client.rw_lock(&name);
    let first = lock.read().unwrap();
    let mut received = Vec::new();
    let begun = Instant::now();
    elsewhere(|| {
        for _ in 0..1_000 {
            let guard = lock.read().unwrap();
            assert_eq!(guard.lost().try_recv(), Err(TryRecvError::Empty));
            // A second look is the same one.
            assert!(std::ptr::eq(guard.lost(), guard.lost()));
            received.push(guard.lost().clone());
        }
    });
    assert!(begun.elapsed() < loosely(LONG), "{:?}", begun.elapsed());
    // Although the shared hold goes on, nobody waits for the loss of a guard that is gone.
    assert!(received.iter().all(|lost| lost.recv().is_err()));
    assert!(lock.force_unlock().unwrap());
    assert_eq!(
        first.lost().recv_timeout(LONG).unwrap().reason,
        LossReason::Forced
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Late, stopped, cancelled
// ---------------------------------------------------------------------------------------------------------------------

// A loss is logged once per hold, even if several guards are dropped later.
#[test]
fn dropping_lost_guards_is_quiet() {
    let logs = logs();
    let server = Server::start();
    let (name, client) = (unique("silent"), open(&server));
    let lock = client.rw_lock(&name);
    let guards = (lock.write().unwrap(), lock.read().unwrap());
    assert!(lock.force_unlock().unwrap());
    drop(guards);
    eventually("it is said for each hold", || {
        logs.count(log::Level::Warn, &name) == 2
    });
    assert_eq!(client.stats().lost, 2);
    // Dropping the client and the lock ends all threads that could still log.
    drop((client, lock));
    assert_eq!(logs.count(log::Level::Warn, &name), 2, "one for each hold");
    assert_eq!(logs.count(log::Level::Error, &name), 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Beside Redisson
// ---------------------------------------------------------------------------------------------------------------------

/// A Redisson client, reduced to the changes that its scripts make to the lock `name`.
struct Redisson<'a> {
    server: &'a Server,
    name: &'a str,
}

impl Redisson<'_> {
    fn hold(&self, n: u32) -> String {
        format!("{{{}}}:{STRANGER}:rwlock_timeout:{n}", self.name)
    }

    /// Adds a read hold.
    fn read(&self, lease: &str) {
        let server = self.server;
        server.cli(&["HSETNX", self.name, "mode", "read"]);
        let n: u32 = server.ask(&["HINCRBY", self.name, STRANGER, "1"]);
        server.cli(&["SET", &self.hold(n), "1", "PX", lease]);
        let ttl_left = server.pttl(self.name).max(lease.parse().unwrap());
        server.cli(&["PEXPIRE", self.name, &ttl_left.to_string()]);
    }

    /// Removes a read hold, as Redisson's script for it does.
    fn leave(&self) {
        let server = self.server;
        let n: u32 = server.ask(&["HINCRBY", self.name, STRANGER, "-1"]);
        if n == 0 {
            server.cli(&["HDEL", self.name, STRANGER]);
        }
        server.cli(&["DEL", &self.hold(n + 1)]);
        let mut longest = 0;
        for (field, count) in server.hgetall(self.name) {
            for i in 1..=count.parse::<u32>().unwrap_or(0) {
                let key = format!("{{{}}}:{field}:rwlock_timeout:{i}", self.name);
                longest = longest.max(server.pttl(&key));
            }
        }
        if longest > 0 {
            server.cli(&["PEXPIRE", self.name, &longest.to_string()]);
        } else {
            server.cli(&["DEL", self.name]);
            self.say("0");
        }
    }

    fn say(&self, payload: &str) {
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        self.server.cli(&["PUBLISH", &channel, payload]);
    }
}

timed!(a_redisson_reader_and_ours_leave_each_other_alone);
fn a_redisson_reader_and_ours_leave_each_other_alone() {
    let server = Server::start();
    let (name, client) = (unique("redisson"), open(&server));
    let lock = client.rw_lock(&name);
    let they = Redisson {
        server: &server,
        name: &name,
    };
    let theirs = |n: &str| (STRANGER.to_owned(), n.to_owned());
    // Redisson reads first, with two holds; ours begins and ends.
    they.read("60000");
    they.read("60000");
    let ours = lock.read().unwrap();
    assert!(server.hgetall(&name).contains(&theirs("2")));
    assert!(lock.is_read_locked().unwrap());
    ours.unlock().unwrap();
    assert_eq!(server.hgetall(&name).len(), 2);
    assert!(server.hgetall(&name).contains(&theirs("2")));
    assert!(server.exists(&they.hold(1)) && server.exists(&they.hold(2)));
    assert!(server.pttl(&name) > 50_000);
    assert!(lock.try_write().unwrap().is_none());
    // A single living hold of Redisson keeps writers out.
    server.cli(&["DEL", &they.hold(1)]);
    lock.read().unwrap().unlock().unwrap();
    assert!(server.hgetall(&name).contains(&theirs("2")));
    assert!(lock.try_write().unwrap().is_none());
    // Redisson's holds end, ours stays.
    let ours = Actor::new(lock.clone());
    let owner = ours.reads();
    they.leave();
    they.leave();
    assert_eq!(server.hgetall(&name), hash("read", &[&owner]));
    let ttl_left = server.pttl(&name);
    assert!((25_000..=30_000).contains(&ttl_left), "{ttl_left}");
    ours.does(|desk| assert!(desk.reads[0].is_valid()));
    assert!(lock.try_write().unwrap().is_none());
    ours.leaves();
    assert!(server.keys().is_empty());
    // Redisson leaves last, and its message wakes our waiting writer.
    they.read("60000");
    let waiting = ours.begins(|desk| {
        desk.write();
        Instant::now()
    });
    eventually("it waits", || client.stats().subscriptions == 1);
    let asked = server.calls("evalsha");
    eventually("it has asked again", || {
        server.calls("evalsha") > asked || ours_is_parked(&server, asked)
    });
    let begun = Instant::now();
    they.leave();
    let took = waiting.recv_timeout(LONG).unwrap() - begun;
    assert!(took < loosely(BY_MESSAGE), "{took:?}");
    ours.leaves();
    assert!(server.keys().is_empty());
}

// A Redisson client may shorten the lock's time to live, by a watchdog with a shorter timeout or a lease of its
// multi-lock, and then be killed.
timed!(a_lock_that_a_redisson_client_shortens_outlives_that_client);
fn a_lock_that_a_redisson_client_shortens_outlives_that_client() {
    const THEIRS: &str = "3000";
    let server = Server::start();
    let client = open(&server);
    let names = [unique("renewed"), unique("fixed")];
    let [renewed, fixed] = names.each_ref().map(|name| client.rw_lock(name));
    let locks = [renewed, fixed.fixed_lease(ms(60_000))];
    for name in &names {
        let they = Redisson {
            server: &server,
            name,
        };
        they.read(THEIRS);
    }
    let readers = locks.map(Actor::new);
    for reader in &readers {
        reader.reads();
    }
    // The first round is covered by what our acquire found, the second by what our renewals find.
    for round in 1..=2 {
        for name in &names {
            server.cli(&["PEXPIRE", name, THEIRS]);
        }
        for name in &names {
            eventually("it is made longer again", || {
                let ttl_left = server.pttl(name);
                assert!(ttl_left > 0, "round {round}: {name} is over");
                ttl_left > 20_000
            });
        }
    }
    for reader in &readers {
        reader.does(|desk| {
            assert!(desk.reads[0].is_valid() && desk.reads[0].lost().try_recv().is_err())
        });
        reader.leaves();
    }
}

/// Whether a contender has finished asking: no request comes for 100 ms.
fn ours_is_parked(server: &Server, asked: u64) -> bool {
    !within(ms(100), || server.calls("evalsha") > asked)
}

timed!(a_redisson_writer_keeps_ours_out_and_lets_all_readers_in);
fn a_redisson_writer_keeps_ours_out_and_lets_all_readers_in() {
    let server = Server::start();
    let name = unique("redisson");
    let clients = [(); 2].map(|()| open(&server));
    let they = Redisson {
        server: &server,
        name: &name,
    };
    let field = format!("{STRANGER}:write");
    server.cli(&["HSET", &name, "mode", "write", &field, "2"]);
    server.cli(&["PEXPIRE", &name, "60000"]);
    let lock = clients[0].rw_lock(&name);
    assert!(lock.try_read().unwrap().is_none() && lock.try_write().unwrap().is_none());
    assert!(lock.is_write_locked().unwrap() && !lock.is_read_locked().unwrap());
    let readers: Vec<_> = (0..8)
        .map(|n| Actor::new(clients[n % 2].rw_lock(&name)))
        .collect();
    let waiting: Vec<_> = readers
        .iter()
        .map(|reader| {
            reader.begins(|desk| {
                desk.read();
                Instant::now()
            })
        })
        .collect();
    eventually("both listen and are parked", || {
        clients
            .iter()
            .all(|client| client.stats().subscriptions == 1)
            && ours_is_parked(&server, server.calls("evalsha"))
    });
    assert!(waiting.iter().all(|reader| reader.try_recv().is_err()));
    let begun = Instant::now();
    server.cli(&["DEL", &name]);
    they.say("1");
    for reader in waiting {
        let took = reader.recv_timeout(LONG).unwrap() - begun;
        assert!(took < loosely(BY_MESSAGE), "{took:?}");
    }
    // Redisson's script for a writer checks this field.
    assert_eq!(server.ask::<String>(&["HGET", &name, "mode"]), "read");
    readers.iter().for_each(Actor::leaves);
    // A forced unlock removes Redisson's hold.
    server.cli(&["HSET", &name, "mode", "write", &field, "1"]);
    assert!(lock.force_unlock().unwrap());
    drop(lock.try_write().unwrap().unwrap());
    eventually("nothing is left", || server.keys_but_requests().is_empty());
}
