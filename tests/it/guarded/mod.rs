//! Commands and scripts that run only while a hold is in force.

mod cluster;
mod faults;
mod refusals;

use std::thread;
use std::time::Duration;

use redis::cmd;
use redlatch::{Client, Error, GuardedScript, LossReason, Result};

use crate::support::{
    LONG, Mode, Net, Server, Target, eventually, in_haste, loosely, ms, open, scoped, settings,
    timed, unique,
};

/// A key in the slot of the lock with this name.
fn key(name: &str, suffix: &str) -> String {
    format!("{{{name}}}:{suffix}")
}

/// Runs a command by a guard of any kind.
type Run<'a> = &'a dyn Fn(&redis::Cmd) -> Result<i64>;

/// Acquires a lock of each kind, and calls `then` with the title, the name, and a way to run commands by the guard.
fn each(server: &Server, then: &dyn Fn(&str, &str, Run<'_>)) {
    let client = open(server);
    macro_rules! each {
        ($($kind:literal: $name:ident => $guard:expr;)+) => {$(
            let $name = unique($kind);
            let guard = $guard;
            then($kind, &$name, &|command| guard.query(command));
            drop(guard);
        )+};
    }
    each! {
        "reentrant lock": name => client.reentrant_lock(&name).lock().unwrap();
        "mutex": name => client.mutex(&name).lock().unwrap();
        "mutex, owned": name => client.mutex(&name).lock_owned().unwrap();
        "fair lock": name => client.fair_lock(&name).lock().unwrap();
        "fair mutex": name => client.fair_mutex(&name).lock().unwrap();
        "fenced lock": name => client.fenced_lock(&name).lock().unwrap();
        "spin lock": name => client.spin_lock(&name).lock().unwrap();
        "reader": name => client.rw_lock(&name).read().unwrap();
        "writer": name => client.rw_lock(&name).write().unwrap();
        "permit": name => {
            let slots = client.expirable_semaphore(&name);
            slots.try_set_permits(1).unwrap();
            slots.acquire().unwrap()
        };
    }
}

timed!(a_command_runs_while_the_hold_is_in_force_and_never_after_it);
fn a_command_runs_while_the_hold_is_in_force_and_never_after_it() {
    let server = Server::start();
    each(&server, &|kind, name, run| {
        let count = key(name, "count");
        assert_eq!(run(cmd("INCR").arg(&count)).unwrap(), 1, "{kind}");
        assert_eq!(run(cmd("INCRBY").arg(&count).arg(4)).unwrap(), 5, "{kind}");
        // Delete every key of the lock, whichever shows the hold.
        for of_lock in server
            .keys()
            .iter()
            .filter(|of| of.contains(name) && **of != count)
        {
            server.ask::<i64>(&["DEL", of_lock]);
        }
        for _ in 0..2 {
            let lost = run(cmd("INCR").arg(&count)).unwrap_err();
            let Error::Lost {
                reason, name: of, ..
            } = &lost
            else {
                panic!("{kind}: {lost}");
            };
            assert_eq!((*reason, &**of), (LossReason::Forced, name), "{kind}");
        }
        assert_eq!(server.get_int(&count), 5, "{kind}");
    });
}

timed!(one_that_somebody_else_has_taken_runs_nothing);
fn one_that_somebody_else_has_taken_runs_nothing() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("taken");
    let guard = client.mutex(&name).lock().unwrap();
    server.ask::<i64>(&["DEL", &name]);
    let theirs = other.mutex(&name).lock().unwrap();
    let write = |guard: &redlatch::MutexGuard, value: &str| {
        guard.query::<()>(cmd("SET").arg(key(&name, "data")).arg(value))
    };
    write(&theirs, "theirs").unwrap();
    let lost = write(&guard, "ours").unwrap_err();
    let Error::Lost { reason, .. } = lost else {
        panic!("{lost}");
    };
    assert_eq!(reason, LossReason::TakenOver);
    assert_eq!(
        server.ask::<String>(&["GET", &key(&name, "data")]),
        "theirs"
    );
    // The loss is reported to the guard and counted.
    assert_eq!(
        guard.lost().try_recv().unwrap().reason,
        LossReason::TakenOver
    );
    assert!(!guard.is_valid() && theirs.is_valid());
    assert_eq!(client.stats().lost, 1);
}

timed!(a_lease_that_is_over_is_over_for_commands_too);
fn a_lease_that_is_over_is_over_for_commands_too() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("over");
    let data = key(&name, "data");
    let guard = client
        .mutex(&name)
        .fixed_lease(loosely(ms(200)))
        .lock()
        .unwrap();
    guard
        .query::<()>(cmd("SET").arg(&data).arg("in time"))
        .unwrap();
    eventually("its lease is over", || !server.exists(&name));
    let lost = guard
        .query::<()>(cmd("SET").arg(&data).arg("late"))
        .unwrap_err();
    assert!(
        matches!(
            lost,
            Error::Lost {
                reason: LossReason::Expired,
                ..
            }
        ),
        "{lost}"
    );
    assert_eq!(server.ask::<String>(&["GET", &data]), "in time");
}

timed!(a_reader_whose_time_is_over_is_not_kept_by_another);
fn a_reader_whose_time_is_over_is_not_kept_by_another() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("readers");
    let count = key(&name, "count");
    let (over, kept) = (
        client.rw_lock(&name).read().unwrap(),
        other.rw_lock(&name).read().unwrap(),
    );
    // Both readers are fields of one hash, which lives as long as the longer lease. Each reader has a key of its own as
    // well, which lives as long as its lease.
    let its_life = |of: &&String| of.contains(over.owner());
    let lives = server.keys();
    let life = lives.iter().find(its_life).unwrap();
    server.ask::<i64>(&["DEL", life]);
    let err = over.query::<i64>(cmd("INCR").arg(&count)).unwrap_err();
    assert!(matches!(err, Error::Lost { .. }), "{err}");
    assert_eq!(kept.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 1);
}

timed!(a_permit_that_has_expired_runs_nothing);
fn a_permit_that_has_expired_runs_nothing() {
    let server = Server::start();
    let slots = open(&server).expirable_semaphore(unique("expired"));
    slots.try_set_permits(2).unwrap();
    let (over, kept) = (slots.acquire().unwrap(), slots.acquire().unwrap());
    let count = key(slots.name(), "count");
    // An expired permit stays in the set, with the time of its expiry, until somebody removes it.
    let expire = "local ids = redis.call('zrange', KEYS[1], 0, -1)
        for _, id in ipairs(ids) do
          if id == ARGV[1] then redis.call('zadd', KEYS[1], 1, id) end
        end
        return #ids";
    let all = server.keys();
    let times = all.iter().find(|of| of.contains("timeout")).unwrap();
    let id: Vec<u8> = (0..over.id().len() / 2)
        .map(|at| u8::from_str_radix(&over.id()[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let ids: i64 = redis::Script::new(expire)
        .key(times)
        .arg(id)
        .invoke(&mut server.connection())
        .unwrap();
    assert_eq!(ids, 2);
    let err = over.query::<i64>(cmd("INCR").arg(&count)).unwrap_err();
    assert!(matches!(err, Error::Lost { .. }), "{err}");
    assert_eq!(kept.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 1);
}

timed!(a_hold_that_its_client_has_given_up_runs_nothing);
fn a_hold_that_its_client_has_given_up_runs_nothing() {
    let net = Net::start();
    let guard = net.client.mutex(&net.name).lock().unwrap();
    let count = key(&net.name, "count");
    // The client cannot renew the hold and reports it lost; in Redis it still exists.
    net.proxy.set(Target::All, Mode::BlackHole);
    assert_eq!(net.server.ask::<i64>(&["PERSIST", &net.name]), 1);
    guard.lost().recv_timeout(LONG).unwrap();
    let sent = net.server.calls("evalsha");
    let err = guard.query::<i64>(cmd("INCR").arg(&count)).unwrap_err();
    assert!(matches!(err, Error::Lost { .. }), "{err}");
    assert!(!net.server.exists(&count) && net.server.exists(&net.name));
    assert_eq!(net.server.calls("evalsha"), sent);
}

timed!(a_hold_that_was_handed_over_or_is_shared_runs_commands);
fn a_hold_that_was_handed_over_or_is_shared_runs_commands() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("on");
    let (mutex, prices) = (client.mutex(&name), client.rw_lock(unique("shared")));
    let count = key(&name, "count");
    let add = |guard: &redlatch::MutexGuard| guard.query::<i64>(cmd("INCR").arg(&count)).unwrap();
    scoped(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    add(&mutex.lock().unwrap());
                }
            });
        }
    });
    assert_eq!(server.get_int(&count), 200);
    let (one, two) = (prices.read().unwrap(), prices.read().unwrap());
    assert_eq!(one.owner(), two.owner());
    drop(one);
    let price = key(prices.name(), "price");
    assert_eq!(
        two.query::<Option<i64>>(cmd("GET").arg(&price)).unwrap(),
        None
    );
    let writing = {
        drop(two);
        prices.write().unwrap()
    };
    writing.query::<()>(cmd("SET").arg(&price).arg(7)).unwrap();
    let reading = writing.downgrade().unwrap();
    assert_eq!(reading.query::<i64>(cmd("GET").arg(&price)).unwrap(), 7);
}

#[test]
fn replies_of_all_types_come_as_they_are() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("types");
    let guard = client.mutex(&name).lock().unwrap();
    let k = |suffix: &str| key(&name, suffix);
    let ok: String = guard
        .query(cmd("SET").arg(k("s")).arg(b"\x00\xff\r\n"))
        .unwrap();
    assert_eq!(ok, "OK");
    let bytes: Vec<u8> = guard.query(cmd("GET").arg(k("s"))).unwrap();
    assert_eq!(bytes, b"\x00\xff\r\n");
    let nothing: Option<String> = guard.query(cmd("GET").arg(k("none"))).unwrap();
    assert_eq!(nothing, None);
    guard
        .query::<()>(cmd("HSET").arg(k("h")).arg(&[("a", 1), ("b", 2)]))
        .unwrap();
    let hash: std::collections::BTreeMap<String, i64> =
        guard.query(cmd("HGETALL").arg(k("h"))).unwrap();
    assert_eq!(
        hash.into_iter().collect::<Vec<_>>(),
        [("a".into(), 1), ("b".into(), 2)]
    );
    let some: Vec<Option<i64>> = guard
        .query(cmd("HMGET").arg(k("h")).arg(&["b", "x", "a"]))
        .unwrap();
    assert_eq!(some, [Some(2), None, Some(1)]);
    let float: f64 = guard
        .query(cmd("INCRBYFLOAT").arg(k("f")).arg("0.1"))
        .unwrap();
    assert!((float - 0.1).abs() < 1e-9);
    let pong: String = guard.query(&cmd("PING")).unwrap();
    assert_eq!(pong, "PONG");
    let large: String = guard.query(cmd("ECHO").arg("x".repeat(700_000))).unwrap();
    assert_eq!(large.len(), 700_000);
}

const TAKE: &str = "local left = tonumber(redis.call('get', KEYS[1]) or 10) - ARGV[1]
if left < 0 then
  return {err = 'NONE left'}
end
redis.call('set', KEYS[1], left)
redis.call('rpush', KEYS[2], ARGV[2])
return {left, #KEYS, #ARGV}";

timed!(a_script_has_its_own_keys_and_arguments);
fn a_script_has_its_own_keys_and_arguments() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("script");
    let take = GuardedScript::new(TAKE);
    for reader in [false, true] {
        let (mutex, prices) = (client.mutex(&name), client.rw_lock(unique("read")));
        let (guard, reading) = (mutex.lock().unwrap(), prices.read().unwrap());
        let of = if reader { prices.name() } else { &name };
        let keys = [key(of, "left"), key(of, "log")];
        let run = |n: i64| match reader {
            false => guard.invoke::<[i64; 3]>(&take, &keys, (n, "who")),
            true => reading.invoke::<[i64; 3]>(&take, &keys, (n, "who")),
        };
        assert_eq!(run(4).unwrap(), [6, 2, 2]);
        assert_eq!(run(6).unwrap(), [0, 2, 2]);
        let none = run(1).unwrap_err();
        assert!(none.to_string().contains("NONE left"), "{none}");
        assert_eq!(server.ask::<i64>(&["LLEN", &keys[1]]), 2);
        drop((guard, reading));
    }
    let nothing = GuardedScript::new("return {#KEYS, #ARGV}");
    let guard = client.mutex(&name).lock().unwrap();
    let counted: [i64; 2] = guard.invoke(&nothing, None::<&str>, None::<&str>).unwrap();
    assert_eq!(counted, [0, 0]);
    // The server no longer knows the script's hash, so the first call sends the script.
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    let calls_before = server.calls("eval");
    for _ in 0..3 {
        let counted: [i64; 2] = guard.invoke(&nothing, None::<&str>, None::<&str>).unwrap();
        assert_eq!(counted, [0, 0]);
    }
    assert_eq!(server.calls("eval") - calls_before, 1);
}

#[test]
fn what_is_wrong_in_a_script_has_the_number_of_its_line() {
    let server = Server::start();
    let client = open(&server);
    let guard = client.mutex(unique("lines")).lock().unwrap();
    let fails = |text: &str| {
        let script = GuardedScript::new(text);
        let err = guard
            .invoke::<i64>(&script, None::<&str>, None::<&str>)
            .unwrap_err();
        assert!(guard.is_valid() && !err.may_have_run(), "{err}");
        err.to_string()
    };
    let third = fails("-- a comment first\nlocal a = 1\nreturn a .. nil");
    assert!(third.contains("user_script:3:"), "{third}");
    let second = fails("local a = 1\nretrun a");
    assert!(
        second.contains("user_script:2:") && second.contains("ompiling"),
        "{second}"
    );
    if !crate::support::is_redis_6() {
        let flagged = fails("#!lua flags=no-writes\nlocal a = 1\nreturn redis.call('set', 'k', 1)");
        assert!(
            flagged.contains("rite commands are not allowed"),
            "{flagged}"
        );
    }
}

timed!(an_owned_guard_runs_commands_wherever_it_is);
fn an_owned_guard_runs_commands_wherever_it_is() {
    let server = Server::start();
    let client: Client = Client::open(in_haste(settings(&server))).unwrap();
    let name = unique("elsewhere");
    let guard = client.mutex(&name).lock_owned().unwrap();
    let count = key(&name, "count");
    let moved = thread::spawn(move || {
        let n: i64 = guard.query(cmd("INCR").arg(&count)).unwrap();
        guard.unlock().unwrap();
        n
    });
    assert_eq!(moved.join().unwrap(), 1);
    assert!(
        client
            .mutex(&name)
            .try_lock_for(Duration::from_secs(10))
            .unwrap()
            .is_some()
    );
}
