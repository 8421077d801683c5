//! The scripts that force a lock open: a request counts once, in each of them.

use crate::support::scripts::{
    LEASE, REQUEST, THEM, US, assert_left, channel, listen_to_all, messages, out_of_memory, run,
};
use crate::support::{Server, lua, rw_scripts};

/// The scripts with their keys.
fn scripts(name: &str) -> [(&'static str, Vec<String>); 4] {
    let (channel, rw_channel) = (channel(name), rw_scripts::channel(name));
    let keys = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
    [
        (lua::LOCK_FORCE, keys(&[name, REQUEST, &channel])),
        (lua::LOCK_FORCE, keys(&[name, REQUEST])),
        (
            lua::FAIR_FORCE,
            keys(&[name, "queue", "timeouts", "alive", &channel, REQUEST]),
        ),
        (lua::RW_FORCE, keys(&[name, &rw_channel, REQUEST])),
    ]
}

/// Writes a write hold, which is also a plain hold except for its mode.
fn take(server: &Server, script: &str, owner: &str) {
    if script == lua::RW_FORCE {
        server.cli(&["HSET", "orders", "mode", "write"]);
    }
    server.cli(&["HSET", "orders", owner, "1"]);
}

#[test]
fn a_request_that_comes_twice_counts_once() {
    let server = Server::start();
    let (mut con, mut pubsub_con) = (server.connection(), server.connection());
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for (script, keys) in scripts("orders") {
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let keep_ms = LEASE.to_string();
        for held in [1, 0] {
            if held == 1 {
                take(&server, script, THEM);
            }
            let mut force = || run::<i64>(&mut con, script, &keys, &[&keep_ms, &keep_ms]).unwrap();
            assert_eq!(force(), held);
            assert_eq!(server.keys(), [REQUEST], "{keys:?}");
            assert_left(server.pttl(REQUEST), LEASE);
            messages(&server, &mut pubsub);
            take(&server, script, US);
            let fields_before = server.hgetall("orders");
            assert_eq!(force(), held, "the answer of the first");
            assert_eq!(server.hgetall("orders"), fields_before, "{keys:?}");
            assert_eq!(messages(&server, &mut pubsub), []);
            // A new request counts again.
            server.cli(&["DEL", REQUEST]);
            assert_eq!(force(), 1);
            server.cli(&["FLUSHALL"]);
            messages(&server, &mut pubsub);
        }
    }
}

#[test]
fn out_of_memory_a_request_still_counts_once() {
    let server = Server::start();
    let mut con = server.connection();
    for (script, keys) in scripts("orders") {
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        server.cli(&["FLUSHALL"]);
        take(&server, script, THEM);
        out_of_memory(&server);
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        for held in [1, 0] {
            for _ in 0..2 {
                let forced = run::<i64>(
                    &mut con,
                    script,
                    &keys,
                    &[&LEASE.to_string(), &LEASE.to_string()],
                );
                assert_eq!(forced.unwrap(), held);
                assert_eq!(server.keys(), [REQUEST], "{keys:?}");
            }
            server.cli(&["DEL", REQUEST]);
        }
    }
}
