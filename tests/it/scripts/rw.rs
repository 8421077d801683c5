//! The scripts of the read-write lock by bare EVALSHA on a real server: the reply, and the fields, holds, TTLs and
//! messages left behind. Where they differ from what Redisson's do, the test says so.

use redis::{Connection, FromRedisValue, RedisResult};

use crate::support::rw_scripts::{
    FORCE, PASS, READ_ACQUIRE, READ_RELEASE, READ_RENEW, STATE, WRITE_ACQUIRE, WRITE_RELEASE,
    channel, hold, prefix, writers,
};
use crate::support::scripts;
use crate::support::scripts::{
    LEASE, NAMES, REQUEST, THEM, US, as_redisson, assert_left, forbid, forbid_channels,
    listen_to_all, messages, out_of_memory,
};
use crate::support::{Server, eventually};

/// Our writer is an owner of its own, beside our reader [`US`].
const OUR_WRITE: &str = "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b5c6d:2:write";
const THEIR_WRITE: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321:58:write";

/// A reader in a client of Redisson.
const JAVA: &str = "3c2b1a09-8f7e-4d6c-b5a4-938271605f4e:31";

/// A lock by name, and a connection to run scripts on it.
struct Lock {
    name: String,
    con: Connection,
}

impl Lock {
    fn new(server: &Server, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            con: server.connection(),
        }
    }

    fn run<T: FromRedisValue>(
        &mut self,
        script: &str,
        keys: &[&str],
        args: &[&str],
    ) -> RedisResult<T> {
        let mut all = vec![self.name.as_str()];
        all.extend(keys);
        scripts::run(&mut self.con, script, &all, args)
    }

    fn hold(&self, owner: &str) -> String {
        hold(&self.name, owner, 1)
    }

    /// `below` is a write field or nothing, and so is the number of writers that are passed over. The whole answer.
    fn ask_to_read(
        &mut self,
        owner: &str,
        lease: i64,
        below: &str,
        passes_over: &str,
    ) -> RedisResult<(bool, i64, i64)> {
        let (hold, writers) = (self.hold(owner), writers(&self.name));
        let args = [owner, &lease.to_string(), below, passes_over];
        self.run(READ_ACQUIRE, &[&hold, &writers], &args)
    }

    fn try_read(
        &mut self,
        owner: &str,
        lease: i64,
        below: &str,
        gives_way: bool,
    ) -> RedisResult<Option<i64>> {
        let passes_over = if gives_way { "0" } else { "" };
        let (taken, left, _) = self.ask_to_read(owner, lease, below, passes_over)?;
        Ok((!taken).then_some(left))
    }

    #[track_caller]
    fn read(&mut self, owner: &str, lease: i64) -> Option<i64> {
        self.try_read(owner, lease, "", false).unwrap()
    }

    #[track_caller]
    fn read_below(&mut self, owner: &str, field: &str) -> Option<i64> {
        self.try_read(owner, LEASE, field, true).unwrap()
    }

    #[track_caller]
    fn read_giving_way(&mut self, owner: &str) -> Option<i64> {
        self.try_read(owner, LEASE, "", true).unwrap()
    }

    fn try_read_release(&mut self, owner: &str) -> RedisResult<i64> {
        let (channel, hold) = (channel(&self.name), self.hold(owner));
        let prefix = prefix(&self.name);
        self.run(READ_RELEASE, &[&channel, &hold], &[owner, &prefix])
    }

    #[track_caller]
    fn read_release(&mut self, owner: &str) -> i64 {
        self.try_read_release(owner).unwrap()
    }

    fn try_read_renew(&mut self, owner: &str, lease: i64) -> RedisResult<i64> {
        let (channel, hold) = (channel(&self.name), self.hold(owner));
        self.run(READ_RENEW, &[&channel, &hold], &[owner, &lease.to_string()])
    }

    #[track_caller]
    fn read_renew(&mut self, owner: &str, lease: i64) -> i64 {
        self.try_read_renew(owner, lease).unwrap()
    }

    fn try_write(&mut self, field: &str, lease: i64) -> RedisResult<Option<i64>> {
        let prefix = prefix(&self.name);
        self.run(WRITE_ACQUIRE, &[], &[field, &lease.to_string(), &prefix])
    }

    #[track_caller]
    fn write(&mut self, field: &str, lease: i64) -> Option<i64> {
        self.try_write(field, lease).unwrap()
    }

    fn try_write_release(&mut self, field: &str) -> RedisResult<i64> {
        let channel = channel(&self.name);
        self.run(WRITE_RELEASE, &[&channel], &[field])
    }

    #[track_caller]
    fn write_release(&mut self, field: &str) -> i64 {
        self.try_write_release(field).unwrap()
    }

    /// A write hold is renewed like any other lock's.
    fn try_write_renew(&mut self, field: &str, lease: i64, count: u32) -> RedisResult<i64> {
        let args = [field, &lease.to_string(), &count.to_string()];
        self.run(scripts::RENEW, &[], &args)
    }

    #[track_caller]
    fn write_renew(&mut self, field: &str, lease: i64, count: u32) -> i64 {
        self.try_write_renew(field, lease, count).unwrap()
    }

    fn try_force(&mut self) -> RedisResult<i64> {
        let channel = channel(&self.name);
        scripts::force(&mut self.con, FORCE, &[&self.name, &channel, REQUEST])
    }

    #[track_caller]
    fn force(&mut self) -> i64 {
        self.try_force().unwrap()
    }

    fn try_state(&mut self) -> RedisResult<i64> {
        self.run(STATE, &[], &[])
    }

    #[track_caller]
    fn state(&mut self) -> i64 {
        self.try_state().unwrap()
    }
}

fn pass(server: &Server, ms: i64) {
    let () = server.ask(&["EVAL", PASS, "0", &ms.to_string()]);
}

/// A reader as Redisson leaves it: `count` holds, of which those in `alive` have a key.
fn redisson_reads(server: &Server, name: &str, count: u32, alive: &[(u32, i64)]) {
    let () = server.ask(&["HSET", name, "mode", "read", JAVA, &count.to_string()]);
    let () = server.ask(&["PEXPIRE", name, &(10 * LEASE).to_string()]);
    for (n, lease) in alive {
        let key = hold(name, JAVA, *n);
        let () = server.ask(&["SET", &key, "1", "PX", &lease.to_string()]);
    }
}

/// The only things on the server are this lock, with these fields, and these holds.
#[track_caller]
fn assert_lock(server: &Server, name: &str, fields: &[(&str, &str)], holds: &[(&str, u32)]) {
    let mut keys: Vec<String> = holds.iter().map(|&(who, n)| hold(name, who, n)).collect();
    if !fields.is_empty() {
        keys.push(name.to_owned());
    }
    keys.sort();
    assert_eq!(server.keys(), keys);
    for &(who, n) in holds {
        assert_eq!(server.get_int(&hold(name, who, n)), 1);
    }
    let mut wanted: Vec<(String, String)> = fields
        .iter()
        .map(|&(field, value)| (field.into(), value.into()))
        .collect();
    wanted.sort();
    assert_eq!(server.hgetall(name), wanted);
}

/// The same for a lock that is read by these, with one hold each.
#[track_caller]
fn assert_read_by(server: &Server, name: &str, readers: &[&str]) {
    let mut fields = vec![("mode", "read")];
    fields.extend(readers.iter().map(|&reader| (reader, "1")));
    let holds: Vec<(&str, u32)> = readers.iter().map(|&reader| (reader, 1)).collect();
    assert_lock(server, name, &fields, &holds);
}

/// What a release by a reader (`0`: one writer is enough) or by a writer (`1`: all readers may come) tells.
fn announced(name: &str, payload: &str) -> (String, String) {
    (channel(name), payload.into())
}

// ---------------------------------------------------------------------------------------------------------------------
// rw_read_acquire
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn reading_leaves_a_mode_a_field_a_hold_and_ttls_whatever_the_name() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        assert_eq!(lock.read(US, LEASE), None, "{name:?}");
        assert_read_by(&server, name, &[US]);
        assert_left(server.pttl(name), LEASE);
        assert_left(server.pttl(&lock.hold(US)), LEASE);
        assert_eq!(lock.state(), 1);
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn readers_share_and_the_lock_lives_as_long_as_the_longest_of_them() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    assert_eq!(lock.read(US, LEASE), None);
    assert_eq!(lock.read(THEM, 5 * LEASE), None);
    assert_eq!(lock.read(JAVA, 3 * LEASE), None);
    assert_read_by(&server, "orders", &[US, THEM, JAVA]);
    assert_left(server.pttl("orders"), 5 * LEASE);
    for (owner, lease) in [(US, LEASE), (THEM, 5 * LEASE), (JAVA, 3 * LEASE)] {
        assert_left(server.pttl(&lock.hold(owner)), lease);
    }
}

// Redisson counts up: a request that arrives twice needs two unlocks.
#[test]
fn reading_twice_changes_nothing_more() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, 2 * LEASE);
    lock.read(THEM, 3 * LEASE);
    for lease in [LEASE, 2 * LEASE] {
        assert_eq!(lock.read(US, lease), None);
        assert_read_by(&server, "orders", &[US, THEM]);
        assert_left(server.pttl(&lock.hold(US)), 2 * LEASE);
        assert_left(server.pttl("orders"), 3 * LEASE);
    }
    assert_eq!(lock.read(US, 4 * LEASE), None);
    assert_left(server.pttl(&lock.hold(US)), 4 * LEASE);
    assert_left(server.pttl("orders"), 4 * LEASE);
    assert_left(server.pttl(&lock.hold(THEM)), 3 * LEASE);
}

#[test]
fn reading_again_restores_what_is_missing() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, LEASE);
    let () = server.ask(&["DEL", &lock.hold(US)]);
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(lock.read(US, LEASE), None);
    assert_read_by(&server, "orders", &[US]);
    let () = server.ask(&["PERSIST", &lock.hold(US)]);
    assert_eq!(lock.read(US, LEASE), None);
    assert_left(server.pttl(&lock.hold(US)), LEASE);
    assert_left(server.pttl("orders"), LEASE);
}

#[test]
fn reading_what_somebody_writes_tells_their_ttl_and_changes_nothing() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.write(THEIR_WRITE, 2 * LEASE);
        for below in ["", OUR_WRITE, US, "mode:write"] {
            let left = lock.try_read(US, LEASE, below, true).unwrap().unwrap();
            assert_left(left, 2 * LEASE);
        }
        assert_lock(&server, name, &[("mode", "write"), (THEIR_WRITE, "1")], &[]);
        assert_left(server.pttl(name), 2 * LEASE);
        let () = server.ask(&["PERSIST", name]);
        assert_eq!(lock.read(US, LEASE), Some(-1));
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn reading_below_ones_own_write_hold_is_allowed() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.write(OUR_WRITE, LEASE);
        for _ in 0..2 {
            assert_eq!(
                lock.try_read(US, 2 * LEASE, OUR_WRITE, false).unwrap(),
                None
            );
            let fields = [("mode", "write"), (OUR_WRITE, "1"), (US, "1")];
            assert_lock(&server, name, &fields, &[(US, 1)]);
            assert_left(server.pttl(name), 2 * LEASE);
            assert_eq!(lock.state(), 3);
        }
        assert!(lock.read(THEM, LEASE).is_some());
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn reading_below_a_write_hold_that_is_gone_is_reading() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    assert_eq!(lock.read_below(US, OUR_WRITE), None);
    assert_read_by(&server, "orders", &[US]);
    assert_eq!(lock.read_below(THEM, THEIR_WRITE), None);
    assert_read_by(&server, "orders", &[US, THEM]);
}

#[test]
fn a_lock_whose_readers_ran_out_is_free() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, 1);
    eventually("the lease is over", || server.dbsize() == 0);
    assert_eq!(lock.read(THEM, LEASE), None);
    assert_read_by(&server, "orders", &[THEM]);
}

// Redisson has no such thing: there readers that keep coming keep writers out.
#[test]
fn readers_that_give_way_wait_while_a_writer_does() {
    let server = Server::start();
    let (mut pubsub_con, mut writer) = (server.connection(), server.connection());
    // Not a writer: it listens to everything.
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    let mut free = Lock::new(&server, "free");
    assert_eq!(lock.read_giving_way(US), None);
    let () = redis::cmd("CLIENT")
        .arg("SETNAME")
        .arg("writer")
        .query(&mut writer)
        .unwrap();
    let mut claim = writer.as_pubsub();
    claim
        .subscribe(&[writers("orders"), writers("free")])
        .unwrap();

    // A reader that gives way goes back in the queue for a moment, not for the readers' lease.
    for _ in 0..2 {
        assert_eq!(lock.read_giving_way(THEM), Some(50));
        assert_eq!(free.read_giving_way(THEM), Some(0));
    }
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(lock.read_giving_way(THEM), Some(50));
    let () = server.ask(&["PEXPIRE", "orders", "40"]);
    let left = lock.read_giving_way(THEM).unwrap();
    assert!((0..=40).contains(&left), "{left} ms");
    let () = server.ask(&["FLUSHALL"]);
    assert_eq!(lock.read(US, LEASE), None);
    assert_eq!(lock.read_giving_way(THEM), Some(50));
    assert_read_by(&server, "orders", &[US]);

    // Who has it already, who never gives way, and who writes.
    assert_eq!(lock.read_giving_way(US), None);
    assert_eq!(lock.read(THEM, LEASE), None);
    assert_eq!(free.write(OUR_WRITE, LEASE), None);
    assert_eq!(free.read_below(US, OUR_WRITE), None);
    assert_left(free.read_giving_way(THEM).unwrap(), LEASE);
    free.write_release(OUR_WRITE);
    assert_eq!(free.read_giving_way(THEM), Some(50));
    // The write hold is gone, and with it the reason to go first.
    let late = free.try_read(THEM, LEASE, OUR_WRITE, true).unwrap();
    assert_eq!(late, Some(50));

    // The wish to write dies with its connection.
    assert_eq!(server.kill_clients_named("writer"), 1);
    eventually("the readers get in", || {
        lock.read_giving_way(JAVA).is_none() && free.read_giving_way(THEM).is_none()
    });
    assert_eq!(
        messages(&server, &mut pubsub),
        [announced("free", "1")],
        "nothing is said on the writers' channel"
    );
}

// Those that were waited for and did not come.
#[test]
fn readers_may_pass_over_some_of_the_writers_that_wait() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    let mut cons = [server.connection(), server.connection()];
    let mut claims = Vec::new();
    for con in &mut cons {
        let mut claim = con.as_pubsub();
        claim.subscribe(writers("orders")).unwrap();
        claims.push(claim);
    }
    for (held, pause) in [(false, 0), (true, 50)] {
        if held {
            lock.read(JAVA, LEASE);
        }
        for passed in ["0", "1"] {
            let answer = lock.ask_to_read(US, LEASE, "", passed).unwrap();
            assert_eq!(answer, (false, pause, 2), "{held} {passed}");
        }
        for (owner, passed) in [(US, "2"), (THEM, "99999999999")] {
            let (taken, left, writers) = lock.ask_to_read(owner, LEASE, "", passed).unwrap();
            assert!(taken && writers == 2, "{held} {passed}: {left}");
            lock.read_release(owner);
        }
    }
    // Whoever passes over all does not count them.
    let (taken, left, writers) = lock.ask_to_read(US, LEASE, "", "").unwrap();
    assert!(taken && writers == -1);
    assert_left(left, LEASE);
    drop(claims);
}

// Nobody can tell of a lock that others keep for a shorter time whether they will shorten it again.
#[test]
fn reading_tells_how_long_the_lock_would_have_lived() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    let free = lock.ask_to_read(US, LEASE, "", "0").unwrap();
    assert_eq!(free, (true, -2, 0));
    let () = server.ask(&["PEXPIRE", "orders", "20000"]);
    let (taken, left, _) = lock.ask_to_read(THEM, LEASE, "", "0").unwrap();
    assert!(taken);
    assert_left(left, 20_000);
    assert_left(server.pttl("orders"), LEASE);
    let () = server.ask(&["PERSIST", "orders"]);
    let endless = lock.ask_to_read(JAVA, LEASE, "", "0").unwrap();
    assert_eq!(endless, (true, -1, 0));
}

#[test]
fn writers_of_another_lock_are_nobodys_business() {
    let server = Server::start();
    let mut writer = server.connection();
    let mut claim = writer.as_pubsub();
    claim.subscribe(writers("stock")).unwrap();
    for name in NAMES {
        assert_eq!(Lock::new(&server, name).read_giving_way(US), None);
    }
}

#[test]
fn writers_are_noticed_whatever_the_name() {
    let server = Server::start();
    let mut writer = server.connection();
    let mut claim = writer.as_pubsub();
    for name in NAMES {
        claim.subscribe(writers(name)).unwrap();
        let mut lock = Lock::new(&server, name);
        assert_eq!(lock.read_giving_way(US), Some(0), "{name:?}");
        claim.unsubscribe(writers(name)).unwrap();
        assert_eq!(lock.read_giving_way(US), None, "{name:?}");
    }
}

#[test]
fn who_may_not_ask_for_writers_gives_way_to_none() {
    let server = Server::start();
    let mut writer = server.connection();
    let mut claim = writer.as_pubsub();
    claim.subscribe(writers("orders")).unwrap();
    let mut lock = Lock::new(&server, "orders");
    forbid(&server, &mut lock.con, "pubsub");
    assert_eq!(lock.read_giving_way(US), None);
    assert_eq!(lock.read_giving_way(THEM), None);
    assert_read_by(&server, "orders", &[US, THEM]);
}

// ---------------------------------------------------------------------------------------------------------------------
// rw_read_release
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_last_reader_frees_the_lock_and_tells_one_waiter_whatever_the_name() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.read(US, LEASE);
        lock.read(THEM, 2 * LEASE);
        assert_eq!(lock.read_release(US), 0, "{name:?}");
        assert_read_by(&server, name, &[THEM]);
        assert_eq!(messages(&server, &mut pubsub), []);
        assert_eq!(lock.read_release(THEM), 1, "{name:?}");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), [announced(name, "0")]);
    }
}

#[test]
fn releasing_counts_who_listened() {
    let server = Server::start();
    let mut cons = [server.connection(), server.connection()];
    let mut lock = Lock::new(&server, "orders");
    let mut open = Vec::new();
    let both = |lock: &mut Lock| {
        lock.read(US, LEASE);
        let read = lock.read_release(US);
        lock.write(OUR_WRITE, LEASE);
        (read, lock.write_release(OUR_WRITE))
    };
    assert_eq!(both(&mut lock), (0, 0));
    for (con, listeners) in cons.iter_mut().zip(1..) {
        let mut pubsub = con.as_pubsub();
        pubsub.subscribe(channel("orders")).unwrap();
        open.push(pubsub);
        assert_eq!(both(&mut lock), (listeners, listeners));
    }
}

#[test]
fn a_reader_leaves_the_lock_the_time_of_those_who_stay() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, 5 * LEASE);
    lock.read(THEM, LEASE);
    lock.read(JAVA, 3 * LEASE);
    assert_eq!(lock.read_release(US), 0);
    assert_left(server.pttl("orders"), 3 * LEASE);
    assert_left(server.pttl(&lock.hold(THEM)), LEASE);
    // Not only downwards: Redisson's renewal of another reader may have shortened it.
    let () = server.ask(&["PEXPIRE", "orders", "20000"]);
    assert_eq!(lock.read_release(THEM), 0);
    assert_left(server.pttl("orders"), 3 * LEASE);
}

// Redisson answers "not the owner", and its retry of that very call "released".
#[test]
fn releasing_a_read_hold_twice_finds_nothing_and_tells_again() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, LEASE);
    assert_eq!(lock.read_release(US), 1);
    for _ in 0..2 {
        assert_eq!(lock.read_release(US), -1);
        assert_eq!(server.dbsize(), 0);
    }
    let zero = announced("orders", "0");
    assert_eq!(
        messages(&server, &mut pubsub),
        [zero.clone(), zero.clone(), zero.clone()]
    );

    lock.read(US, LEASE);
    lock.read(THEM, LEASE);
    assert_eq!(lock.read_release(US), 0);
    for _ in 0..2 {
        assert_eq!(lock.read_release(US), -1);
        assert_read_by(&server, "orders", &[THEM]);
        assert_left(server.pttl("orders"), LEASE);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

#[test]
fn releasing_a_read_hold_of_a_lock_that_somebody_writes_changes_and_tells_nothing() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.write(THEIR_WRITE, LEASE);
        for _ in 0..2 {
            assert_eq!(lock.read_release(US), -2);
        }
        assert_lock(&server, name, &[("mode", "write"), (THEIR_WRITE, "1")], &[]);
        assert_left(server.pttl(name), LEASE);
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["FLUSHALL"]);
    }
}

// Redisson drops the whole lock when no hold has a key; a reader that died beside live ones stays for as long as they
// renew.
#[test]
fn a_reader_that_leaves_drops_those_that_died() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    for owner in [US, THEM, JAVA] {
        lock.read(owner, LEASE);
    }
    let () = server.ask(&["DEL", &lock.hold(THEM)]);
    assert_eq!(lock.read_release(US), 0);
    assert_read_by(&server, "orders", &[JAVA]);
    assert_eq!(messages(&server, &mut pubsub), []);

    lock.read(US, LEASE);
    let () = server.ask(&["DEL", &lock.hold(JAVA)]);
    assert_eq!(lock.read_release(US), 1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(messages(&server, &mut pubsub), [announced("orders", "0")]);

    // Also by one that had nothing to release.
    lock.read(THEM, LEASE);
    let () = server.ask(&["DEL", &lock.hold(THEM)]);
    assert_eq!(lock.read_release(US), -1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(messages(&server, &mut pubsub), [announced("orders", "0")]);
}

#[test]
fn releasing_a_hold_that_ran_out_is_a_release_all_the_same() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, LEASE);
    lock.read(THEM, LEASE);
    let () = server.ask(&["DEL", &lock.hold(US)]);
    assert_eq!(lock.read_release(US), 0);
    assert_read_by(&server, "orders", &[THEM]);
    // And a hold whose lock ran out leaves no key behind.
    let () = server.ask(&["DEL", "orders"]);
    assert_eq!(lock.read_release(THEM), -1);
    assert_eq!(server.dbsize(), 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// rw_read_renew
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn renewing_a_read_hold_extends_it_and_the_lock_whatever_the_name() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.read(US, LEASE);
        lock.read(THEM, LEASE);
        for _ in 0..2 {
            assert_eq!(lock.read_renew(US, 3 * LEASE), 1, "{name:?}");
            assert_read_by(&server, name, &[US, THEM]);
            assert_left(server.pttl(name), 3 * LEASE);
            assert_left(server.pttl(&lock.hold(US)), 3 * LEASE);
            assert_left(server.pttl(&lock.hold(THEM)), LEASE);
        }
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["FLUSHALL"]);
    }
}

// Redisson sets the hash to its own lease, whatever others asked for.
#[test]
fn renewing_a_read_hold_never_shortens() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, 2 * LEASE);
    lock.read(THEM, 5 * LEASE);
    for _ in 0..2 {
        assert_eq!(lock.read_renew(US, LEASE), 1);
        assert_left(server.pttl("orders"), 5 * LEASE);
        assert_left(server.pttl(&lock.hold(US)), 2 * LEASE);
    }
    // One PEXPIRE each of the two acquires: holds are born with their time.
    assert_eq!(server.calls("pexpire"), 2);
    // What Redisson took from the lock comes back, up to what the hold has.
    let () = server.ask(&["PEXPIRE", "orders", &LEASE.to_string()]);
    assert_left(lock.read_renew(THEM, LEASE), LEASE);
    assert_left(server.pttl("orders"), 5 * LEASE);
}

// Redisson's renewal, and the end of its multi-lock, set the TTL of the hash to a time of their own.
#[test]
fn renewing_a_read_hold_tells_when_others_have_shortened_the_lock() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.read(US, 3 * LEASE);
        // A fixed lease is renewed for no time at all.
        for lease in [1, 3 * LEASE] {
            assert_eq!(lock.read_renew(US, lease), 1, "{name:?}");
            let () = server.ask(&["PEXPIRE", name, &LEASE.to_string()]);
            assert_left(lock.read_renew(US, lease), LEASE);
            assert_left(server.pttl(name), 3 * LEASE);
            assert_eq!(lock.read_renew(US, lease), 1);
        }
        // A lock that nobody shortened ran down together with the hold.
        pass(&server, LEASE);
        assert_eq!(lock.read_renew(US, 3 * LEASE), 1);
        // One that another's end left to the longest-lived is as long as that.
        lock.read(THEM, 9 * LEASE);
        lock.read_release(THEM);
        assert_eq!(lock.read_renew(US, 3 * LEASE), 1);
        // At the last moment, and without any end.
        let lives = "redis.call('pexpire', KEYS[1], 1) ";
        let keys = [channel(name), lock.hold(US)];
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let renew = format!("{lives}{READ_RENEW}");
        let received: i64 = lock.run(&renew, &keys, &[US, "90000"]).unwrap();
        assert_eq!(received, 2);
        let () = server.ask(&["PERSIST", name]);
        assert_eq!(lock.read_renew(US, 3 * LEASE), 1);
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn renewing_a_read_hold_restores_missing_ttls() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, LEASE);
    let () = server.ask(&["PERSIST", "orders"]);
    let () = server.ask(&["PERSIST", &lock.hold(US)]);
    assert_eq!(lock.read_renew(US, LEASE), 1);
    assert_left(server.pttl("orders"), LEASE);
    assert_left(server.pttl(&lock.hold(US)), LEASE);
}

#[test]
fn renewing_never_creates_a_read_hold() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        for _ in 0..2 {
            assert_eq!(lock.read_renew(US, LEASE), 0);
            assert_eq!(server.dbsize(), 0);
        }
        lock.read(THEM, LEASE);
        for _ in 0..2 {
            assert_eq!(lock.read_renew(US, 3 * LEASE), 0);
            assert_read_by(&server, name, &[THEM]);
            assert_left(server.pttl(name), LEASE);
        }
        lock.read_release(THEM);
        lock.write(THEIR_WRITE, LEASE);
        for _ in 0..2 {
            assert_eq!(lock.read_renew(US, 3 * LEASE), -1);
        }
        assert_lock(&server, name, &[("mode", "write"), (THEIR_WRITE, "1")], &[]);
        assert_left(server.pttl(name), LEASE);
        let () = server.ask(&["FLUSHALL"]);
    }
}

// Redisson renews what has a field, and a hold without its key stays lost to everybody who asks for keys.
#[test]
fn a_read_hold_that_lost_its_half_is_lost_whole() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    // Its key, beside another reader, and alone: the lock is free, and a writer in a Redisson client would wait for the
    // lease if nobody said so.
    lock.read(US, LEASE);
    lock.read(THEM, LEASE);
    let () = server.ask(&["DEL", &lock.hold(US)]);
    assert_eq!(lock.read_renew(US, LEASE), 0);
    assert_read_by(&server, "orders", &[THEM]);
    assert_eq!(messages(&server, &mut pubsub), []);
    let () = server.ask(&["DEL", &lock.hold(THEM)]);
    for _ in 0..2 {
        assert_eq!(lock.read_renew(THEM, LEASE), 0);
        assert_eq!(server.dbsize(), 0);
    }
    assert_eq!(
        messages(&server, &mut pubsub),
        [announced("orders", "0")],
        "once"
    );
    // Its field: the lock ran out, was forced, or is somebody else's by now.
    lock.read(US, LEASE);
    let () = server.ask(&["DEL", "orders"]);
    assert_eq!(lock.read_renew(US, LEASE), 0);
    assert_eq!(server.dbsize(), 0);
    lock.read(US, LEASE);
    let () = server.ask(&["DEL", "orders"]);
    lock.write(THEIR_WRITE, LEASE);
    assert_eq!(lock.read_renew(US, LEASE), -1);
    let fields = [("mode", "write"), (THEIR_WRITE, "1")];
    assert_lock(&server, "orders", &fields, &[]);
    // Below a write hold the write hold stays.
    let () = server.ask(&["DEL", "orders"]);
    lock.write(OUR_WRITE, LEASE);
    lock.read_below(US, OUR_WRITE);
    let () = server.ask(&["DEL", &lock.hold(US)]);
    assert_eq!(lock.read_renew(US, LEASE), -1);
    let fields = [("mode", "write"), (OUR_WRITE, "1")];
    assert_lock(&server, "orders", &fields, &[]);
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// rw_write_acquire
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn writing_leaves_a_mode_a_field_and_a_ttl_whatever_the_name() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        assert_eq!(lock.write(OUR_WRITE, LEASE), None, "{name:?}");
        assert_lock(&server, name, &[("mode", "write"), (OUR_WRITE, "1")], &[]);
        assert_left(server.pttl(name), LEASE);
        assert_eq!(lock.state(), 2);
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["DEL", name]);
    }
}

// Redisson counts up and adds the lease to what is left: 30 s, 60 s, 90 s.
#[test]
fn writing_twice_changes_nothing_more() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.write(OUR_WRITE, 2 * LEASE);
    assert_eq!(lock.write_renew(OUR_WRITE, LEASE, 3), 1);
    for (lease, left) in [
        (LEASE, 2 * LEASE),
        (2 * LEASE, 2 * LEASE),
        (4 * LEASE, 4 * LEASE),
    ] {
        assert_eq!(lock.write(OUR_WRITE, lease), None);
        let fields = [("mode", "write"), (OUR_WRITE, "3")];
        assert_lock(&server, "orders", &fields, &[]);
        assert_left(server.pttl("orders"), left);
    }
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(lock.write(OUR_WRITE, LEASE), None);
    assert_left(server.pttl("orders"), LEASE);
}

#[test]
fn writing_what_somebody_writes_tells_their_ttl_and_changes_nothing() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.write(THEIR_WRITE, 2 * LEASE);
        lock.read_below(THEM, THEIR_WRITE);
        for _ in 0..2 {
            assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), 2 * LEASE);
        }
        let fields = [("mode", "write"), (THEIR_WRITE, "1"), (THEM, "1")];
        assert_lock(&server, name, &fields, &[(THEM, 1)]);
        assert_left(server.pttl(name), 2 * LEASE);
        let () = server.ask(&["PERSIST", name]);
        assert_eq!(lock.write(OUR_WRITE, LEASE), Some(-1));
        let () = server.ask(&["FLUSHALL"]);
    }
}

// Redisson tells the TTL of the hash; here a writer learns when the first reader's lease runs out, since one that died
// notifies nobody.
#[test]
fn writing_what_others_read_tells_how_long_the_first_of_them_lives() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.read(US, LEASE);
        lock.read(THEM, 3 * LEASE);
        let () = server.ask(&["PEXPIRE", name, &(9 * LEASE).to_string()]);
        for _ in 0..2 {
            assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), LEASE);
        }
        assert_read_by(&server, name, &[US, THEM]);
        assert_left(server.pttl(name), 9 * LEASE);
        // No reader outlives the hash.
        let () = server.ask(&["PEXPIRE", name, &(LEASE / 2).to_string()]);
        assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), LEASE / 2);
        let () = server.ask(&["PERSIST", name]);
        assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), LEASE);
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn ones_own_read_hold_is_in_the_way_of_writing() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, LEASE);
    let own_write = format!("{US}:write");
    assert_left(lock.write(&own_write, LEASE).unwrap(), LEASE);
    assert_read_by(&server, "orders", &[US]);
}

#[test]
fn a_hold_that_never_ends_is_alive() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(US, LEASE);
    let () = server.ask(&["PERSIST", &lock.hold(US)]);
    let () = server.ask(&["PEXPIRE", "orders", &(2 * LEASE).to_string()]);
    assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), 2 * LEASE);
    // Released beside it, the lock's time is left alone.
    lock.read(THEM, LEASE);
    assert_eq!(lock.read_release(THEM), 0);
    assert_read_by(&server, "orders", &[US]);
    assert_left(server.pttl("orders"), 2 * LEASE);
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(lock.write(OUR_WRITE, LEASE), Some(-1));
    assert_read_by(&server, "orders", &[US]);
}

// R24, RW2. With Redisson the dead reader counts for as long as others renew the hash.
#[test]
fn a_dead_reader_is_in_nobodys_way_once_its_lease_is_over() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.read(THEM, LEASE);
    lock.read(US, LEASE);
    for _ in 0..6 {
        // They died; we live on.
        pass(&server, LEASE / 3);
        assert_eq!(lock.read_renew(US, LEASE), 1);
    }
    assert!(lock.write(OUR_WRITE, LEASE).is_some());
    assert_read_by(&server, "orders", &[US]);
    assert_eq!(lock.read_release(US), 0);
    assert_eq!(server.dbsize(), 0);

    // The hash outlives the last reader: nothing of any of them stays.
    for owner in [US, THEM, JAVA] {
        lock.read(owner, LEASE);
    }
    let () = server.ask(&["PEXPIRE", "orders", &(9 * LEASE).to_string()]);
    pass(&server, LEASE);
    assert_eq!(lock.write(OUR_WRITE, 2 * LEASE), None);
    let fields = [("mode", "write"), (OUR_WRITE, "1")];
    assert_lock(&server, "orders", &fields, &[]);
    assert_left(server.pttl("orders"), 2 * LEASE);
    // And who wakes from the dead finds out.
    assert_eq!(lock.read_renew(US, LEASE), -1);
    assert_eq!(lock.read_release(THEM), -2);
    assert_lock(&server, "orders", &fields, &[]);
}

// RW2 on the clock, and no earlier: in the millisecond in which a key has 0 left it is still there.
#[test]
fn a_reader_lives_to_the_end_of_its_last_millisecond_and_no_longer() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    // Time stands still in a script.
    let wrap = |script: &str| {
        format!(
            "local function run()\n{script}\nend\n\
             local lives, reply = redis.call('exists', '{}'), run()\n\
             return {{lives, reply or 'taken', redis.call('exists', KEYS[1])}}",
            lock.hold(THEM)
        )
    };
    let (write, read_release) = (wrap(WRITE_ACQUIRE), wrap(READ_RELEASE));
    let (channel, hold, prefix) = (channel("orders"), lock.hold(US), prefix("orders"));
    for _ in 0..20 {
        lock.read(THEM, 5);
        // Without us the lock would end together with them.
        lock.read(US, LEASE);
        let () = server.ask(&["DEL", &hold]);
        eventually("the writer is in", || {
            let args = [OUR_WRITE, &LEASE.to_string(), &prefix];
            let (lives, reply, _): (bool, String, bool) = lock.run(&write, &[], &args).unwrap();
            match reply.parse::<i64>() {
                Ok(left) => assert!(lives && (0..=5).contains(&left), "{left} ms left"),
                Err(_) => assert!(!lives, "{THEM} reads still"),
            }
            reply == "taken"
        });
        lock.write_release(OUR_WRITE);

        lock.read(THEM, 5);
        lock.read(US, LEASE);
        eventually("the lock is free", || {
            let keys = [channel.as_str(), &hold];
            let (lives, _, held): (bool, i64, bool) =
                lock.run(&read_release, &keys, &[US, &prefix]).unwrap();
            assert_eq!(lives, held);
            !held
        });
    }
}

// RW1
#[test]
fn a_hundred_readers_that_renew_keep_a_writer_out() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    let readers: Vec<String> = (1..=100).map(|n| format!("{}{n}", &US[..37])).collect();
    for reader in &readers {
        assert_eq!(lock.read(reader, LEASE), None);
    }
    for _ in 0..11 {
        pass(&server, LEASE / 3);
        for reader in &readers {
            assert_eq!(lock.read_renew(reader, LEASE), 1);
        }
        assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), LEASE);
    }
    assert_eq!(server.ask::<u32>(&["HLEN", "orders"]), 101);
    assert_eq!(server.dbsize(), 101);
    for (reader, left) in readers.iter().zip((0..100).rev()) {
        assert!(lock.write(OUR_WRITE, LEASE).is_some());
        assert_eq!(lock.read_release(reader), 0);
        assert_eq!(server.dbsize(), if left > 0 { left + 1 } else { 0 });
    }
    assert_eq!(lock.write(OUR_WRITE, LEASE), None);
}

// ---------------------------------------------------------------------------------------------------------------------
// rw_write_release
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_writer_frees_the_lock_and_tells_all_waiters_whatever_the_name() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.write(OUR_WRITE, LEASE);
        lock.write_renew(OUR_WRITE, LEASE, 4);
        assert_eq!(lock.write_release(OUR_WRITE), 1, "{name:?}");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), [announced(name, "1")]);
        for _ in 0..2 {
            assert_eq!(lock.write_release(OUR_WRITE), -1, "{name:?}");
            assert_eq!(server.dbsize(), 0);
            assert_eq!(messages(&server, &mut pubsub), [announced(name, "1")]);
        }
    }
}

// RW4, R1, R10. Redisson notifies nobody, so that readers sleep until their timers say so, one of them a process.
#[test]
fn a_writer_that_goes_on_reading_tells_all_readers() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    lock.write(OUR_WRITE, 2 * LEASE);
    lock.read_below(US, OUR_WRITE);
    assert!(lock.read(THEM, LEASE).is_some());
    assert_eq!(lock.write_release(OUR_WRITE), 1);
    assert_eq!(messages(&server, &mut pubsub), [announced("orders", "1")]);
    assert_read_by(&server, "orders", &[US]);
    assert_left(server.pttl("orders"), 2 * LEASE);
    assert_left(server.pttl(&lock.hold(US)), LEASE);
    assert_eq!(lock.state(), 1);
    for _ in 0..2 {
        assert_eq!(lock.write_release(OUR_WRITE), -2);
        assert_read_by(&server, "orders", &[US]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
    // Readers share with us now, a writer does not.
    assert_eq!(lock.read(THEM, LEASE), None);
    assert_eq!(lock.read_release(THEM), 0);
    assert_left(lock.write(THEIR_WRITE, LEASE).unwrap(), LEASE);
    assert_eq!(lock.read_renew(US, LEASE), 1);
    assert_eq!(lock.read_release(US), 1);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(messages(&server, &mut pubsub), [announced("orders", "0")]);
}

// RW4 the other way round, and R2: with Redisson the end of the read hold ends the renewal of the write hold.
#[test]
fn a_writer_that_read_for_a_while_is_still_the_writer() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    lock.write(OUR_WRITE, 2 * LEASE);
    lock.read_below(US, OUR_WRITE);
    assert_eq!(lock.read_renew(US, LEASE), 1);
    assert_eq!(lock.read_release(US), 0);
    let fields = [("mode", "write"), (OUR_WRITE, "1")];
    assert_lock(&server, "orders", &fields, &[]);
    assert_left(server.pttl("orders"), 2 * LEASE);
    assert_eq!(lock.read_release(US), -2);
    assert_lock(&server, "orders", &fields, &[]);
    assert!(lock.read(THEM, LEASE).is_some());
    assert!(lock.write(THEIR_WRITE, LEASE).is_some());
    assert_eq!(lock.write_renew(OUR_WRITE, 3 * LEASE, 1), 1);
    assert_left(server.pttl("orders"), 3 * LEASE);
    assert_eq!(messages(&server, &mut pubsub), []);
    assert_eq!(lock.write_release(OUR_WRITE), 1);
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn a_read_hold_that_died_below_a_write_hold_is_dropped_by_the_next_writer() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    lock.write(OUR_WRITE, 2 * LEASE);
    lock.read_below(US, OUR_WRITE);
    pass(&server, LEASE);
    assert_eq!(lock.write_release(OUR_WRITE), 0);
    assert_lock(&server, "orders", &[("mode", "read"), (US, "1")], &[]);
    assert_eq!(lock.write(THEIR_WRITE, LEASE), None);
    let fields = [("mode", "write"), (THEIR_WRITE, "1")];
    assert_lock(&server, "orders", &fields, &[]);
}

#[test]
fn releasing_a_write_hold_when_others_have_the_lock_changes_and_tells_nothing() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        lock.write(THEIR_WRITE, LEASE);
        for _ in 0..2 {
            assert_eq!(lock.write_release(OUR_WRITE), -2);
        }
        assert_lock(&server, name, &[("mode", "write"), (THEIR_WRITE, "1")], &[]);
        let () = server.ask(&["DEL", name]);
        lock.read(THEM, LEASE);
        for _ in 0..2 {
            assert_eq!(lock.write_release(OUR_WRITE), -2);
        }
        assert_read_by(&server, name, &[THEM]);
        assert_left(server.pttl(name), LEASE);
        assert_eq!(messages(&server, &mut pubsub), []);
        let () = server.ask(&["FLUSHALL"]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// lock_renew, of a write hold
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_write_hold_is_renewed_like_a_lock() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    for _ in 0..2 {
        assert_eq!(lock.write_renew(OUR_WRITE, LEASE, 1), 0);
        assert_eq!(server.dbsize(), 0);
    }
    lock.write(OUR_WRITE, 2 * LEASE);
    for (lease, count, left) in [
        (LEASE, 1, 2 * LEASE),
        (LEASE, 2, 2 * LEASE),
        (3 * LEASE, 2, 3 * LEASE),
    ] {
        assert_eq!(lock.write_renew(OUR_WRITE, lease, count), 1);
        let count = count.to_string();
        let fields = [("mode", "write"), (OUR_WRITE, count.as_str())];
        assert_lock(&server, "orders", &fields, &[]);
        assert_left(server.pttl("orders"), left);
        assert_eq!(lock.write_renew(THEIR_WRITE, 9 * LEASE, 1), -1);
    }
    // Read holds below it keep their own time, and outlast it as such.
    lock.read_below(US, OUR_WRITE);
    assert_eq!(lock.write_renew(OUR_WRITE, 4 * LEASE, 2), 1);
    assert_left(server.pttl(&lock.hold(US)), LEASE);
    lock.write_release(OUR_WRITE);
    assert_eq!(lock.write_renew(OUR_WRITE, 9 * LEASE, 1), -1);
    assert_read_by(&server, "orders", &[US]);
    assert_left(server.pttl("orders"), 4 * LEASE);
}

// ---------------------------------------------------------------------------------------------------------------------
// rw_force, rw_state
// ---------------------------------------------------------------------------------------------------------------------

// Redisson's is two: that of a read lock does nothing to a writer, and the other way round.
#[test]
fn forcing_frees_the_lock_of_readers_and_of_a_writer() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        assert_eq!((lock.state(), lock.force()), (0, 0), "{name:?}");
        lock.read(US, LEASE);
        lock.read(THEM, LEASE);
        assert_eq!((lock.state(), lock.force()), (1, 1), "{name:?}");
        assert_lock(&server, name, &[], &[(US, 1), (THEM, 1)]);
        assert_eq!(messages(&server, &mut pubsub), [announced(name, "0")]);
        assert_eq!(lock.force(), 0);
        // The holds' keys mean nothing without it.
        assert_eq!(lock.write(OUR_WRITE, LEASE), None);
        assert_eq!(lock.read_renew(US, LEASE), -1);
        assert_eq!(lock.read_release(THEM), -2);
        assert_lock(&server, name, &[("mode", "write"), (OUR_WRITE, "1")], &[]);
        assert_eq!((lock.state(), lock.force()), (2, 1), "{name:?}");
        assert_eq!(messages(&server, &mut pubsub), [announced(name, "1")]);
        lock.write(OUR_WRITE, LEASE);
        lock.read_below(US, OUR_WRITE);
        assert_eq!((lock.state(), lock.force()), (3, 1), "{name:?}");
        assert_eq!(lock.read_release(US), -1);
        assert_eq!(lock.write_release(OUR_WRITE), -1);
        assert_eq!(server.dbsize(), 0);
        assert_eq!(
            messages(&server, &mut pubsub),
            [
                announced(name, "1"),
                announced(name, "0"),
                announced(name, "1")
            ]
        );
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Redisson beside us
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_reader_of_redisson_is_alive_while_one_of_its_holds_is() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        for (alive, left) in [
            ([(1, 2 * LEASE)].as_slice(), 2 * LEASE),
            (&[(2, 2 * LEASE)], 2 * LEASE),
            (&[(3, 2 * LEASE)], 2 * LEASE),
            (&[(1, 5 * LEASE), (3, 2 * LEASE)], 5 * LEASE),
            (&[(1, 2 * LEASE), (2, 3 * LEASE), (3, LEASE)], 3 * LEASE),
        ] {
            redisson_reads(&server, name, 3, alive);
            let holds: Vec<(&str, u32)> = alive.iter().map(|&(n, _)| (JAVA, n)).collect();
            assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), left);
            // We read beside it and leave; it stays as it was, for as long as it lives.
            assert_eq!(lock.read(US, LEASE), None);
            assert_eq!(lock.read_renew(US, LEASE), 1);
            assert_eq!(lock.read_release(US), 0);
            assert_lock(&server, name, &[("mode", "read"), (JAVA, "3")], &holds);
            assert_left(server.pttl(name), left);
            let () = server.ask(&["FLUSHALL"]);
        }
    }
}

#[test]
fn a_reader_of_redisson_is_dead_when_all_its_holds_are() {
    let server = Server::start();
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        // The fourth is no hold of three.
        redisson_reads(&server, name, 3, &[(4, LEASE)]);
        assert_eq!(lock.write(OUR_WRITE, LEASE), None);
        let fields = [("mode", "write"), (OUR_WRITE, "1")];
        assert_lock(&server, name, &fields, &[(JAVA, 4)]);
        let () = server.ask(&["FLUSHALL"]);
        redisson_reads(&server, name, 3, &[]);
        lock.read(US, LEASE);
        assert!(lock.write(OUR_WRITE, LEASE).is_some());
        assert_read_by(&server, name, &[US]);
        let () = server.ask(&["FLUSHALL"]);
        redisson_reads(&server, name, 3, &[]);
        lock.read(US, LEASE);
        assert_eq!(lock.read_release(US), 0);
        assert_eq!(server.dbsize(), 0);
    }
}

#[test]
fn a_writer_of_redisson_is_left_alone() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    let field = format!("{JAVA}:write");
    let fields = [("mode", "write"), (field.as_str(), "2"), (JAVA, "1")];
    let () = server.ask(&["HSET", "orders", "mode", "write", &field, "2", JAVA, "1"]);
    let () = server.ask(&["PEXPIRE", "orders", &LEASE.to_string()]);
    assert_left(lock.write(OUR_WRITE, 2 * LEASE).unwrap(), LEASE);
    assert_left(lock.read(US, 2 * LEASE).unwrap(), LEASE);
    assert_eq!(lock.read_renew(US, 2 * LEASE), -1);
    assert_eq!(lock.write_renew(OUR_WRITE, 2 * LEASE, 1), -1);
    assert_eq!(lock.read_release(US), -2);
    assert_eq!(lock.write_release(OUR_WRITE), -2);
    assert_lock(&server, "orders", &fields, &[]);
    assert_left(server.pttl("orders"), LEASE);
    assert_eq!(lock.state(), 3);
    assert_eq!(lock.force(), 1);
}

// R17: the format costs one look-up a hold; a count that cannot be is not believed.
#[test]
fn work_is_bounded_by_the_holds_that_can_be() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    redisson_reads(&server, "orders", 1000, &[]);
    assert_eq!(lock.write(OUR_WRITE, LEASE), None);
    lock.write_release(OUR_WRITE);
    let before = server.calls("pttl");
    redisson_reads(&server, "orders", 0, &[]);
    for count in ["1001", "4000000000", "99999999999999999999999999"] {
        let () = server.ask(&["HSET", "orders", JAVA, count]);
        assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), 10 * LEASE);
        lock.read(US, LEASE);
        assert_eq!(lock.read_release(US), 0);
        let fields = [("mode", "read"), (JAVA, count)];
        assert_lock(&server, "orders", &fields, &[]);
        assert_left(server.pttl("orders"), 10 * LEASE);
    }
    assert!(server.calls("pttl") < before + 50);
}

/// Makes readers with a hold each, of which every `every`th is alive, for `lease`.
fn many_read(server: &Server, name: &str, readers: u32, every: u32, lease: i64) {
    const FILL: &str = "
    for n = 1, ARGV[1] do
      local owner = string.format('9f8e7d6c-5b4a-4321-8fed-%012d:%d', n, n)
      redis.call('hset', KEYS[1], owner, 1)
      if n % ARGV[2] == 0 then
        redis.call('set', ARGV[4] .. owner .. ':rwlock_timeout:1', 1, 'px', ARGV[3])
      end
    end
    redis.call('hset', KEYS[1], 'mode', 'read')
    redis.call('pexpire', KEYS[1], ARGV[3])";
    let prefix = prefix(name);
    let numbers = [readers.to_string(), every.to_string(), lease.to_string()];
    let args = [&numbers[0], &numbers[1], &numbers[2], &*prefix];
    let () = scripts::run(&mut server.connection(), FILL, &[name], &args).unwrap();
}

// R17: Redisson's goes through all holds of all readers.
#[test]
fn a_call_looks_at_few_of_many_readers() {
    const READERS: u32 = 10_000;
    let server = Server::start();
    let looks = || server.calls("pttl");
    let mut lock = Lock::new(&server, "orders");
    many_read(&server, "orders", READERS, 1, 100 * LEASE);
    lock.read(JAVA, 900 * LEASE);
    for round in 0..3 {
        let before = looks();
        assert!(lock.write(OUR_WRITE, LEASE).unwrap() > 0);
        let asked = looks() - before;
        assert!(asked < 200, "{asked} for a writer");
        lock.read(US, LEASE);
        let before = looks();
        assert_eq!(lock.read_release(US), 0);
        let asked = looks() - before;
        assert!(asked < 200, "{asked} for a reader that leaves");
        assert_eq!(lock.read_release(THEM), -1, "round {round}");
    }
    assert_eq!(server.ask::<u32>(&["HLEN", "orders"]), READERS + 2);
    // One that was not seen may need all of its time.
    assert!(server.pttl("orders") > 800 * LEASE);
    assert_eq!(server.calls("hgetall"), 0);
    let before = looks();
    assert_eq!((lock.state(), lock.force()), (1, 1));
    assert!(looks() == before && server.calls("hkeys") == 0);
}

#[test]
fn many_readers_that_died_are_dropped_bit_by_bit_by_those_who_come() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    let length = || server.ask::<u32>(&["HLEN", "orders"]);
    // By writers, until none is left but one that lives.
    many_read(&server, "orders", 3_000, 3_000, 100 * LEASE);
    for attempt in 1..1_000 {
        let (before, count) = (server.calls("pttl"), length());
        // The number decides where a call begins to look, so each attempt has its own, as an acquire has.
        let field = format!("{}{attempt}:write", &US[..37]);
        let left = lock.write(&field, LEASE).expect("one reads");
        let looked = server.calls("pttl") - before;
        assert!(looked <= 1_001, "{looked}");
        if left > 0 && count == 2 {
            break;
        }
        assert!(length() < count || left > 0, "{count} are left");
    }
    assert_eq!(length(), 2);
    pass(&server, 100 * LEASE);
    // And a last one that died long ago.
    many_read(&server, "orders", 1, 2, 100 * LEASE);
    assert_eq!(lock.write(OUR_WRITE, LEASE), None);
    let fields = [("mode", "write"), (OUR_WRITE, "1")];
    assert_lock(&server, "orders", &fields, &[]);
    // Some are alive: those stay, and the rest goes, a few with each reader that leaves.
    let () = server.ask(&["FLUSHALL"]);
    many_read(&server, "orders", 1_000, 10, 100 * LEASE);
    let mut leaves = 0_u32;
    while length() > 101 {
        let owner = format!("{}{leaves}", &US[..37]);
        lock.read(&owner, LEASE);
        assert_eq!(lock.read_release(&owner), 0);
        leaves += 1;
        assert!(leaves < 1_000, "{} are left", length());
    }
    assert_eq!(length(), 101);
    assert!(lock.write(OUR_WRITE, LEASE).is_some());
    // When few are left the lock gets their time again, and goes with the last of them.
    let () = server.ask(&["PEXPIRE", "orders", &(900 * LEASE).to_string()]);
    assert_eq!(lock.read_release(US), -1);
    assert!(server.pttl("orders") <= 100 * LEASE);
    pass(&server, 100 * LEASE);
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn a_reader_that_leaves_costs_the_same_whatever_the_number_of_readers() {
    /// Those that a script may spend on what it finds.
    const COUNTED: [&str; 6] = ["pttl", "hget", "hdel", "hgetall", "hscan", "hrandfield"];
    let server = Server::start();
    let calls = || COUNTED.map(|command| server.calls(command));
    let mut lock = Lock::new(&server, "orders");
    for readers in [20, 120, 400, 5_000] {
        many_read(&server, "orders", readers, 1, 100 * LEASE);
        lock.read(US, 100 * LEASE);
        let before = calls();
        assert_eq!(lock.read_release(US), 0);
        let asked: Vec<_> = std::iter::zip(calls(), before)
            .map(|(after, before)| after - before)
            .collect();
        // A few readers, the lock, and the one that leaves.
        assert!(asked[0] <= 10, "{asked:?} with {readers} readers");
        assert_eq!(asked[1..], [1, 1, 0, 0, 1], "with {readers} readers");
        assert_eq!(server.ask::<u32>(&["HLEN", "orders"]), readers + 1);
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn the_last_reader_that_lives_frees_the_lock_of_all_that_died() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for dead in [5, 100, 600, 990] {
        let mut lock = Lock::new(&server, "orders");
        many_read(&server, "orders", dead, dead + 1, 100 * LEASE);
        for owner in [US, THEM] {
            lock.read(owner, LEASE);
        }
        assert_eq!(lock.read_release(THEM), 0);
        assert_eq!(messages(&server, &mut pubsub), []);
        assert_eq!(lock.read_release(US), 1, "{dead} died");
        assert_eq!(server.dbsize(), 0);
        assert_eq!(messages(&server, &mut pubsub), [announced("orders", "0")]);
    }
}

#[test]
fn of_many_readers_one_that_leaves_shortens_the_lock_if_it_had_by_far_the_longest_lease() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    many_read(&server, "orders", 60, 1, LEASE);
    lock.read(JAVA, 7 * LEASE);
    for (who, lease, left) in [
        // Somebody who was not seen may need all of it.
        (US, LEASE, 7 * LEASE),
        (US, 6 * LEASE, 7 * LEASE),
        (THEM, 40 * LEASE, 7 * LEASE),
    ] {
        lock.read(who, lease);
        assert_eq!(lock.read_release(who), 0);
        assert_left(server.pttl("orders"), left);
    }
    assert_eq!(lock.read_release(JAVA), 0);
    assert_left(server.pttl("orders"), LEASE);
    // Others may have shortened it, or taken its end away.
    lock.read(US, LEASE);
    let () = server.ask(&["PEXPIRE", "orders", "1000"]);
    assert_eq!(lock.read_release(US), 0);
    assert_left(server.pttl("orders"), LEASE);
    lock.read(US, LEASE);
    let () = server.ask(&["PERSIST", "orders"]);
    assert_eq!(lock.read_release(US), 0);
    assert_left(server.pttl("orders"), LEASE);
}

// Redisson's writers wait for the end of it: the longest lease was that of one who left while another had a long one too.
#[test]
fn of_many_readers_some_that_leave_shorten_the_lock_if_it_has_far_too_much() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    many_read(&server, "orders", 60, 1, LEASE);
    let () = server.ask(&["PEXPIRE", "orders", &(20 * LEASE).to_string()]);
    let mut leaves = 0;
    while server.pttl("orders") > LEASE {
        lock.read(US, LEASE);
        assert_eq!(lock.read_release(US), 0);
        leaves += 1;
        assert!(leaves < 10_000);
    }
    // But not below what one of them needs.
    lock.read(JAVA, 7 * LEASE);
    let mut looked = 0;
    while looked < 3 {
        let before = server.calls("hgetall");
        lock.read(US, LEASE);
        assert_eq!(lock.read_release(US), 0);
        looked += server.calls("hgetall") - before;
        assert_left(server.pttl("orders"), 7 * LEASE);
    }
}

#[test]
fn a_user_who_may_not_ask_for_random_readers_still_releases() {
    let server = Server::start();
    let mut lock = Lock::new(&server, "orders");
    forbid(&server, &mut lock.con, "hrandfield");
    // In one piece and in many, and all alive or all dead.
    for readers in [60, 900] {
        for every in [1, readers + 1] {
            many_read(&server, "orders", readers, every, LEASE);
            for owner in [THEM, US] {
                lock.read(owner, LEASE);
            }
            assert_eq!(lock.read_release(THEM), 0);
            assert_eq!(lock.read_release(US), 0);
            if every == 1 {
                assert_eq!(server.ask::<u32>(&["HLEN", "orders"]), readers + 1);
                assert_left(server.pttl("orders"), LEASE);
            } else {
                assert_eq!(server.dbsize(), 0);
            }
            let () = server.ask(&["FLUSHALL"]);
        }
    }
}

// Other readers' holds are not among the keys that are handed in, so a cluster has to find them in the lock's slot.
#[test]
fn in_a_cluster_others_holds_are_found() {
    let server = Server::start_cluster();
    for name in [
        "orders",
        "stock:{42}",
        "two words",
        "line\r\nbreak",
        "{a}{b}",
    ] {
        let mut lock = Lock::new(&server, name);
        redisson_reads(&server, name, 3, &[(2, LEASE)]);
        assert_eq!(lock.read_giving_way(US), None, "{name:?}");
        assert_left(lock.write(OUR_WRITE, LEASE).unwrap(), LEASE);
        assert_eq!(lock.read_release(US), 0);
        assert_lock(
            &server,
            name,
            &[("mode", "read"), (JAVA, "3")],
            &[(JAVA, 2)],
        );
        let () = server.ask(&["FLUSHALL"]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Strangers
// ---------------------------------------------------------------------------------------------------------------------

const VALUES: [&[&str]; 5] = [
    &["SET", "key", "v"],
    &["RPUSH", "key", "v"],
    &["SADD", "key", "v"],
    &["ZADD", "key", "1", "v"],
    &["XADD", "key", "1-1", "f", "v"],
];

/// Puts a value of some type at `key`.
fn make(server: &Server, value: &[&str], key: &str) {
    let command: Vec<&str> = value
        .iter()
        .map(|&part| if part == "key" { key } else { part })
        .collect();
    server.cli(&command);
}

/// One run of each script; `rw_read_acquire` in all its ways.
fn run_each(lock: &mut Lock) -> Vec<(&'static str, RedisResult<Option<i64>>)> {
    vec![
        ("read", lock.try_read(US, LEASE, "", false)),
        ("read giving way", lock.try_read(US, LEASE, "", true)),
        ("read below", lock.try_read(US, LEASE, OUR_WRITE, true)),
        ("read renew", lock.try_read_renew(US, LEASE).map(Some)),
        ("write", lock.try_write(OUR_WRITE, LEASE)),
        ("force", lock.try_force().map(Some)),
        ("state", lock.try_state().map(Some)),
        ("read release", lock.try_read_release(US).map(Some)),
        ("write release", lock.try_write_release(OUR_WRITE).map(Some)),
    ]
}

#[test]
fn a_value_of_another_type_is_refused_and_kept() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    for value in VALUES {
        make(&server, value, "orders");
        let before: Vec<u8> = server.ask(&["DUMP", "orders"]);
        for (script, outcome) in run_each(&mut lock) {
            let err = outcome.unwrap_err();
            assert_eq!(
                err.code(),
                Some("WRONGTYPE"),
                "{script} on {value:?}: {err}"
            );
        }
        let renewed = lock.try_write_renew(OUR_WRITE, LEASE, 1);
        assert_eq!(renewed.unwrap_err().code(), Some("WRONGTYPE"));
        assert_eq!(server.ask::<Vec<u8>>(&["DUMP", "orders"]), before);
        assert_eq!(server.pttl("orders"), -1);
        assert_eq!(server.keys(), ["orders"]);
        let () = server.ask(&["DEL", "orders"]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

#[test]
fn a_hold_of_another_type_is_refused_and_kept() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    let hash = ["HSET", "key", "f", "v"].as_slice();
    for value in [hash].iter().chain(&VALUES[1..]) {
        for taken in [false, true] {
            if taken {
                lock.read(US, LEASE);
            }
            let hold = lock.hold(US);
            let () = server.ask(&["DEL", &hold]);
            make(&server, value, &hold);
            let before: Vec<u8> = server.ask(&["DUMP", &hold]);
            for outcome in [
                lock.try_read(US, LEASE, "", false).map(drop),
                lock.try_read_renew(US, LEASE).map(drop),
                lock.try_read_release(US).map(drop),
            ] {
                let err = outcome.unwrap_err();
                assert_eq!(err.code(), Some("WRONGTYPE"), "{value:?}: {err}");
            }
            assert_eq!(server.ask::<Vec<u8>>(&["DUMP", &hold]), before);
            assert_eq!(server.pttl(&hold), -1);
            assert_eq!(server.exists("orders"), taken);
            let () = server.ask(&["FLUSHALL"]);
        }
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

/// All but the releases refuse; those say that somebody else has it.
#[track_caller]
fn assert_not_ours(server: &Server, lock: &mut Lock) {
    let before = (server.keys(), server.hgetall(&lock.name));
    let left = server.pttl(&lock.name);
    for (script, outcome) in run_each(lock) {
        if script.ends_with("release") {
            assert_eq!(outcome.unwrap(), Some(-2), "{script} on {before:?}");
        } else {
            let err = outcome.unwrap_err();
            assert_eq!(
                err.code(),
                Some("WRONGTYPE"),
                "{script} on {before:?}: {err}"
            );
        }
    }
    assert_eq!(lock.write_renew(OUR_WRITE, LEASE, 1), -1);
    assert_eq!((server.keys(), server.hgetall(&lock.name)), before);
    if left == -1 {
        assert_eq!(server.pttl(&lock.name), -1);
    } else {
        assert_left(server.pttl(&lock.name), left);
    }
}

// With Redisson a reader enters beside the holder of a plain lock: two owners.
#[test]
fn a_plain_lock_and_a_strangers_hash_are_refused_and_kept() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut lock = Lock::new(&server, name);
        as_redisson(&server, name, THEM, "1", LEASE);
        assert_not_ours(&server, &mut lock);
        let () = server.ask(&["DEL", name]);
    }
    let mut lock = Lock::new(&server, "orders");
    for fields in [
        ["price", "10"].as_slice(),
        &["mode", "fast"],
        &["mode", ""],
        &["mode", "READ", THEM, "1"],
        &["Mode", "read", THEM, "1"],
        // Not even what has a field of ours.
        &[US, "1"],
        &["mode", "1", US, "1"],
    ] {
        let mut hset = vec!["HSET", "orders"];
        hset.extend(fields);
        server.cli(&hset);
        assert_not_ours(&server, &mut lock);
        let () = server.ask(&["DEL", "orders"]);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// The word is a common one: settings may well have a mode that is read or write, and they have no TTL.
#[test]
fn a_strangers_hash_with_a_mode_like_ours_is_kept() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    for mode in ["read", "write"] {
        for field in ["path", "1", "", ":1", "0b7e1c52:6f0a:1", "a-b-c-d-e"] {
            let () = server.ask(&["HSET", "orders", "mode", mode, field, "1"]);
            let before = server.hgetall("orders");
            for (script, outcome) in run_each(&mut lock) {
                let refused = outcome
                    .as_ref()
                    .is_err_and(|err| err.code() == Some("WRONGTYPE"));
                match (script, mode) {
                    ("force", _) | (_, "read") if refused => {}
                    ("read" | "read giving way" | "read below" | "write", "write") => {
                        assert_eq!(outcome.unwrap(), Some(-1), "{script} on {before:?}");
                    }
                    ("state", _) => {}
                    ("read renew", _) => assert!(outcome.unwrap().unwrap() < 1),
                    ("read release" | "write release", _) => {
                        assert!(outcome.unwrap().unwrap() < 0);
                    }
                    _ => panic!("{script} on {before:?}: {outcome:?}"),
                }
                assert_eq!(server.hgetall("orders"), before, "{script}");
                assert_eq!(server.pttl("orders"), -1, "{script}");
                assert_eq!(server.keys(), ["orders"], "{script}");
            }
            let () = server.ask(&["DEL", "orders"]);
        }
    }
    // A count that is none is no reader's either, and its lock is not taken over.
    for count in ["", "x", "-1", "1.5", "0x10", "inf"] {
        let () = server.ask(&["HSET", "orders", "mode", "read", THEM, count]);
        let () = server.ask(&["PEXPIRE", "orders", &LEASE.to_string()]);
        let err = lock.try_write(OUR_WRITE, LEASE).unwrap_err();
        assert_eq!(err.code(), Some("WRONGTYPE"), "{count:?}: {err}");
        assert_eq!(lock.read_release(US), -1);
        assert_lock(&server, "orders", &[("mode", "read"), (THEM, count)], &[]);
        assert_left(server.pttl("orders"), LEASE);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the server refuses
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_user_without_rights_on_the_channel_still_releases() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut lock = Lock::new(&server, "orders");
    forbid_channels(&server, &mut lock.con);
    assert_eq!(lock.read_giving_way(US), None);
    assert_eq!(lock.read_release(US), 0);
    assert_eq!(server.dbsize(), 0);
    assert_eq!(lock.read_release(US), -1);
    lock.write(OUR_WRITE, LEASE);
    lock.read_below(US, OUR_WRITE);
    assert_eq!(lock.write_release(OUR_WRITE), 0);
    assert_read_by(&server, "orders", &[US]);
    assert_eq!(lock.force(), 1);
    assert_eq!(lock.write_release(OUR_WRITE), -1);
    assert_eq!(messages(&server, &mut pubsub), []);
}

#[test]
fn a_lock_that_cannot_be_given_a_ttl_is_not_taken() {
    let server = Server::start();
    let mut other = Lock::new(&server, "orders");
    let mut lock = Lock::new(&server, "orders");
    assert!(lock.try_read(US, i64::MAX, "", false).is_err());
    assert!(lock.try_write(OUR_WRITE, i64::MAX).is_err());
    assert_eq!(server.dbsize(), 0);
    for missing in ["pexpire", "hset", "set"] {
        forbid(&server, &mut lock.con, missing);
        assert!(lock.try_read(US, LEASE, "", false).is_err(), "{missing}");
        assert_eq!(server.dbsize(), 0, "{missing}");
        if missing != "set" {
            assert!(lock.try_write(OUR_WRITE, LEASE).is_err(), "{missing}");
            assert_eq!(server.dbsize(), 0, "{missing}");
        }

        // Beside another reader, and below a write hold.
        other.read(THEM, LEASE);
        assert!(
            lock.try_read(US, 2 * LEASE, "", false).is_err(),
            "{missing}"
        );
        assert_read_by(&server, "orders", &[THEM]);
        assert_left(server.pttl("orders"), LEASE);
        other.force();
        let () = server.ask(&["FLUSHALL"]);
        other.write(OUR_WRITE, LEASE);
        let below = lock.try_read(US, 2 * LEASE, OUR_WRITE, false);
        assert!(below.is_err(), "{missing}");
        let fields = [("mode", "write"), (OUR_WRITE, "1")];
        assert_lock(&server, "orders", &fields, &[]);
        let () = server.ask(&["FLUSHALL"]);

        // Once more what one has.
        other.read(US, LEASE);
        let again = lock.try_read(US, 2 * LEASE, "", false);
        assert!(again.is_err(), "{missing}");
        assert_read_by(&server, "orders", &[US]);
        assert!(server.pttl("orders") > 0);
        let () = server.ask(&["FLUSHALL"]);

        // In place of dead readers.
        other.read(THEM, LEASE);
        let () = server.ask(&["DEL", &lock.hold(THEM)]);
        if missing != "set" {
            assert!(lock.try_write(OUR_WRITE, LEASE).is_err(), "{missing}");
            assert_eq!(server.dbsize(), 0);
        }
        let () = server.ask(&["FLUSHALL"]);
    }
}

#[test]
fn out_of_memory_nobody_acquires_and_holders_renew_and_release() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let [mut reads, mut writes, mut both, mut dead, mut forced] =
        ["reads", "writes", "both", "dead", "forced"].map(|name| Lock::new(&server, name));
    reads.read(US, LEASE);
    writes.write(OUR_WRITE, LEASE);
    both.write(OUR_WRITE, LEASE);
    both.read_below(US, OUR_WRITE);
    dead.read(THEM, LEASE);
    let () = server.ask(&["DEL", &dead.hold(THEM)]);
    forced.read(US, LEASE);
    out_of_memory(&server);

    let before = server.keys();
    let mut free = Lock::new(&server, "free");
    for refused in [
        free.try_read(US, LEASE, "", false),
        free.try_write(OUR_WRITE, LEASE),
        reads.try_read(THEM, LEASE, "", false),
        writes.try_read(US, LEASE, OUR_WRITE, false),
    ] {
        let err = refused.unwrap_err();
        assert_eq!(err.code(), Some("OOM"), "{err}");
    }
    assert_eq!(server.keys(), before);
    assert_eq!(reads.state(), 1);
    assert_eq!(writes.state(), 2);

    assert!(reads.write(THEIR_WRITE, LEASE).is_some());
    assert!(writes.read(US, LEASE).is_some());
    assert_eq!(reads.read_renew(US, 2 * LEASE), 1);
    assert_left(server.pttl("reads"), 2 * LEASE);
    assert_eq!(writes.write_renew(OUR_WRITE, 2 * LEASE, 2), 1);
    assert_left(server.pttl("writes"), 2 * LEASE);
    // Dead readers make room for a writer.
    assert_eq!(dead.write(OUR_WRITE, LEASE), None);
    assert_left(server.pttl("dead"), LEASE);

    assert_eq!(reads.read_release(US), 1);
    assert_eq!(writes.write_release(OUR_WRITE), 1);
    assert_eq!(both.write_release(OUR_WRITE), 1);
    assert_eq!(both.state(), 1);
    assert_eq!(both.read_release(US), 1);
    assert_eq!(dead.write_release(OUR_WRITE), 1);
    assert_eq!(forced.force(), 1);
    assert_eq!(server.keys(), [forced.hold(US)]);
    let received = [
        announced("reads", "0"),
        announced("writes", "1"),
        announced("both", "1"),
        announced("both", "0"),
        announced("dead", "1"),
        announced("forced", "0"),
    ];
    assert_eq!(messages(&server, &mut pubsub), received);
}
