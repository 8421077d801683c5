//! Guarded commands in a cluster: their keys have to be in the lock's slot.

use redis::{Cmd, Value, cmd};
use redlatch::{Error, GuardedScript};

use super::key;
use crate::support::cluster::Cluster;
use crate::support::timed;

/// Commands with keys at various positions; each `k` stands for a key.
const COMMANDS: &[&str] = &[
    "GET k",
    "SET k v",
    "MGET k k",
    "MSET k v k v",
    "DEL k k",
    "SINTERSTORE k k k",
    "RENAME k k",
    "LMOVE k k left right",
    "BLPOP k k 0",
    "BITOP and k k k",
    "OBJECT encoding k",
    "ZUNIONSTORE k 2 k k",
    "ZUNION 2 k k",
    "LMPOP 2 k k left",
    "BLMPOP 0 2 k k left",
    "SORT k by nosort store k",
    "GEORADIUS k 0 0 1 m store k",
    "XREAD count 1 streams k k 0 0",
    "XGROUP create k g $ mkstream",
    "EXPIRE k 100",
    "HSET k f v",
    "COPY k k replace",
    "ZRANGESTORE k k 0 -1",
    "SMOVE k k m",
    "GEOSEARCHSTORE k k fromlonlat 0 0 byradius 1 m",
    "SINTERCARD 2 k k",
    "XREADGROUP group g c streams k >",
    "LCS k k",
];

/// The command with `key` for each `k`, except that the `n`th is `other`; and the number of keys.
fn with(command: &str, key: &str, other: Option<(usize, &str)>) -> (Cmd, usize) {
    let (mut cmd, mut keys) = (Cmd::new(), 0);
    for word in command.split(' ') {
        if word != "k" {
            cmd.arg(word);
            continue;
        }
        match other {
            Some((n, other)) if n == keys => cmd.arg(other),
            _ => cmd.arg(key),
        };
        keys += 1;
    }
    (cmd, keys)
}

/// How many scripts the nodes have received.
fn cluster_commands(cluster: &Cluster) -> u64 {
    let scripts = |node: &crate::support::Server| node.calls("evalsha") + node.calls("eval");
    cluster.living().map(scripts).sum()
}

timed!(keys_of_another_slot_are_refused_before_anything_is_sent);
fn keys_of_another_slot_are_refused_before_anything_is_sent() {
    let cluster = Cluster::start();
    let client = cluster.open();
    for master in 0..3 {
        let name = cluster.name_at(master, "here");
        let guard = client.mutex(&name).lock().unwrap();
        let (here, away) = (
            key(&name, "data"),
            cluster.name_at((master + 1) % 3, "away"),
        );
        for command in COMMANDS {
            // An older server does not know every command; its error does not matter here.
            let (own_command, keys) = with(command, &here, None);
            let answer = guard.query::<Value>(&own_command);
            assert!(
                matches!(answer, Ok(_) | Err(Error::Redis { .. })),
                "{command}: {answer:?}"
            );
            assert!(guard.is_valid());
            let commands_before = cluster_commands(&cluster);
            for n in 0..keys {
                let (other, _) = with(command, &here, Some((n, &away)));
                let err = guard.query::<Value>(&other).unwrap_err();
                let Error::InvalidCommand { reason: why, .. } = &err else {
                    panic!("{command}, key {n}: {err}");
                };
                assert!(why.contains(&away) && why.contains(&name), "{why}");
            }
            assert_eq!(cluster_commands(&cluster), commands_before, "{command}");
        }
        let script = GuardedScript::new("return redis.call('incr', KEYS[1])");
        assert_eq!(
            guard
                .invoke::<i64>(&script, key(&name, "n"), None::<&str>)
                .unwrap(),
            1
        );
        // In a cluster redlatch's own scripts may be rewritten to publish on sharded channels; the user's scripts must
        // not be.
        let text = GuardedScript::new("return [[redis.call('publish')]]");
        let said: String = guard.invoke(&text, None::<&str>, None::<&str>).unwrap();
        assert_eq!(said, "redis.call('publish')");
        let err = guard
            .invoke::<i64>(&script, &[&here, &away], None::<&str>)
            .unwrap_err();
        assert!(matches!(err, Error::InvalidCommand { .. }), "{err}");
        guard.unlock().unwrap();
    }
}

timed!(they_follow_a_slot_that_moves);
fn they_follow_a_slot_that_moves() {
    let cluster = Cluster::start();
    let client = cluster.open();
    let name = cluster.name_at(0, "moves");
    let guard = client.mutex(&name).lock().unwrap();
    let count = key(&name, "count");
    assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 1);
    let fresh = key(&name, "fresh");
    cluster.migrate(&name, || {
        // The lock is still on this node and the other key on neither, so the node answers that the call has to be
        // retried.
        let script = GuardedScript::new("return redis.call('incr', KEYS[1])");
        let both = guard.invoke::<i64>(&script, &fresh, None::<&str>);
        assert!(both.is_err_and(|err| !matches!(err, Error::Lost { .. })));
        assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 2);
    });
    assert_eq!(guard.query::<i64>(cmd("INCR").arg(&count)).unwrap(), 3);
    guard.unlock().unwrap();
}

timed!(a_reply_that_is_too_large_harms_nobody_in_a_cluster);
fn a_reply_that_is_too_large_harms_nobody_in_a_cluster() {
    let cluster = Cluster::start();
    let client = cluster.open();
    let guards = [0, 1].map(|master| {
        let name = cluster.name_at(master, "large");
        client.mutex(name).lock().unwrap()
    });
    let long = guards.each_ref().map(|guard| key(guard.name(), "long"));
    for (guard, long) in guards.iter().zip(&long) {
        guard
            .query::<()>(cmd("SETRANGE").arg(long).arg(3 << 20).arg("x"))
            .unwrap();
        let err = guard.query::<Value>(cmd("GET").arg(long)).unwrap_err();
        assert!(err.to_string().contains("the most that is read"), "{err}");
    }
    let moved = cluster.migrate(guards[0].name(), || {});
    for (guard, long) in guards.iter().zip(&long) {
        let len: i64 = guard.query(cmd("STRLEN").arg(long)).unwrap();
        assert_eq!(len, (3 << 20) + 1);
    }
    assert_eq!(client.stats().reconnects, 0);
    assert_eq!(cluster.nodes[moved].clients_named("guarded").len(), 1);
    for guard in guards {
        guard.unlock().unwrap();
    }
}

timed!(a_redirection_that_a_script_returns_is_not_followed);
fn a_redirection_that_a_script_returns_is_not_followed() {
    let cluster = Cluster::start();
    let client = cluster.open();
    let name = cluster.name_at(1, "mine");
    let guard = client.mutex(&name).lock().unwrap();
    let count = key(&name, "count");
    let script = GuardedScript::new(
        "redis.call('incr', KEYS[1]) return redis.error_reply(ARGV[1] .. ' 1 127.0.0.1:1')",
    );
    assert_ne!(cluster.slot(&name), 1);
    for (n, says) in (1..).zip(["MOVED", "ASK", "MOVED"]) {
        let err = guard.invoke::<()>(&script, &count, says).unwrap_err();
        assert!(err.to_string().contains(says), "{err}");
        let counted: i64 = guard.query(cmd("GET").arg(&count)).unwrap();
        assert_eq!(counted, n, "{says}");
    }
}
