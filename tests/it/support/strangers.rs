//! What other clients do and see: holds written by hand, messages heard, subscriptions counted.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Connection, Value};

use crate::support::{
    Crew, Deployment, Kind, Notified, Queue, REENTRANT_LOCK, Server, delete, eventually,
    everywhere, is_redis_6, unique,
};

/// Somebody who is not of this crate: a Redisson client and one of its threads.
pub(crate) const STRANGER: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321:57";

/// Waits until the server has `n` subscriptions of this crate.
#[track_caller]
pub(crate) fn subscribed(server: &Server, n: u64) {
    eventually("the waiting clients are subscribed", || {
        let clients = server.clients_named("subscriber");
        clients
            .iter()
            .map(|client| client.subscriptions)
            .sum::<u64>()
            == n
    });
}

/// Waits until `n` threads that ask Redis are known to wait: they listen, or ask again and again without messages.
#[track_caller]
pub(crate) fn waited_for_by(kind: Kind, server: &Server, n: u64) {
    subscribed(server, n * kind.listens);
    if n > 0 && kind.listens == 0 {
        // Some look whether it is free before they ask for it.
        let asks = || server.calls("evalsha") + server.calls("pttl");
        let asked = asks();
        eventually("they ask again and again", || asks() >= asked + 6);
        assert!(server.clients_named("subscriber").is_empty());
    }
}

/// Waits until `n` threads of a crew, whatever their process, wait in this order.
#[track_caller]
pub(crate) fn in_line(kind: Kind, server: &Server, name: &str, crew: &Crew, n: usize) {
    if kind.queue == Queue::Redis {
        eventually("everybody stands in line", || line(server, name).len() == n);
    }
    crew.all_parked();
}

/// The queue that Redis keeps.
pub(crate) fn line(server: &Server, name: &str) -> Vec<String> {
    let queue = beside("redisson_lock_queue", name);
    server.ask(&["LRANGE", &queue, "0", "-1"])
}

/// The key or channel `prefix` of the lock at `key`.
pub(crate) fn beside(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
}

/// A plain lock held by somebody else, made by hand.
pub(crate) fn hold_by_stranger(server: &Server, name: &str, lease_ms: u64) {
    stranger_holds(REENTRANT_LOCK, server, name, lease_ms);
}

/// A lock held by somebody else, made by hand, whatever was there before.
pub(crate) fn stranger_holds(kind: Kind, server: &Server, name: &str, lease_ms: u64) {
    everywhere(kind, server, name, |server, keys| {
        let mut pipe = redis::pipe();
        pipe.atomic();
        held_by_stranger(kind, &mut pipe, keys, lease_ms);
        let () = pipe.query(&mut server.connection()).unwrap();
    });
}

/// All its keys expire in the same millisecond. `PEXPIRE` would count from when it reached each of them: whoever asks in
/// between finds one key gone and the next still there.
fn held_by_stranger(kind: Kind, pipe: &mut redis::Pipeline, keys: &[String], lease_ms: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let expires = now.as_millis() + u128::from(lease_ms);
    for key in keys {
        pipe.del(key);
        pipe.hset_multiple(key, &kind.fields(STRANGER, 1));
        pipe.cmd("PEXPIREAT").arg(key).arg(expires.to_string());
    }
}

/// Takes a lock from its holder by hand, for a foe: on no server is it free in between, so whoever looks finds that out.
pub(crate) fn stranger_takes(kind: Kind, server: &Server, name: &str, lease_ms: u64) {
    let taken = kind.foe().names(name);
    everywhere(kind, server, name, |server, keys| {
        let mut pipe = redis::pipe();
        pipe.atomic().del(keys);
        held_by_stranger(kind.foe(), &mut pipe, &taken, lease_ms);
        let () = pipe.query(&mut server.connection()).unwrap();
    });
}

pub(crate) fn is_held_by_stranger(kind: Kind, server: &Server, name: &str) -> bool {
    let names = kind.names(name);
    let theirs = |name: &String| server.hgetall(name) == kind.fields(STRANGER, 1);
    names.iter().all(theirs)
}

/// Does what a Redisson client does to give a lock back.
pub(crate) fn stranger_releases(kind: Kind, server: &Server, name: &str) {
    let first = line(server, name).into_iter().next();
    delete(kind, server, name);
    match (kind.notified, first) {
        (Notified::All(prefix, payload), _) => {
            for name in kind.names(name) {
                publish(server, &beside(prefix, &name), payload);
            }
        }
        (Notified::First, Some(first)) => {
            let channel = beside("redisson_lock__channel", name);
            publish(server, &format!("{channel}:{first}"), "0");
        }
        (Notified::First, None) | (Notified::Nobody, _) => {}
    }
}

/// Whether channels are sharded at a server.
fn is_sharded(server: &Server) -> bool {
    server.deployment() == Deployment::Cluster && !is_redis_6()
}

fn publish(server: &Server, channel: &str, payload: &str) {
    let command = if is_sharded(server) {
        "SPUBLISH"
    } else {
        "PUBLISH"
    };
    server.cli(&[command, channel, payload]);
}

/// One who listens to everything that is published on a server. Where channels are sharded nobody can, so it watches the
/// commands there.
pub(crate) struct Messages {
    con: Connection,
    watches: bool,
}

impl Messages {
    pub(crate) fn of(server: &Server) -> Self {
        let watches = is_sharded(server);
        let mut con = server.connection();
        let listen = match watches {
            true => redis::cmd("MONITOR"),
            false => redis::cmd("PSUBSCRIBE").arg("*").clone(),
        };
        con.send_packed_command(&listen.get_packed_command())
            .unwrap();
        con.recv_response().unwrap();
        Self { con, watches }
    }

    /// Channel and payload of everything that was published since the last look.
    pub(crate) fn published(&mut self, server: &Server) -> Vec<(String, String)> {
        // Whatever was published before this has come when this has.
        let end = unique("end");
        publish(server, &end, "");
        let mut received = Vec::new();
        loop {
            let Some((channel, payload)) = self.next() else {
                continue;
            };
            if channel == end {
                return received;
            }
            received.push((channel, payload));
        }
    }

    fn next(&mut self) -> Option<(String, String)> {
        let came = self.con.recv_response().unwrap();
        if !self.watches {
            let (_, _, channel, payload): (String, String, String, String) =
                redis::from_redis_value(came).unwrap();
            return Some((channel, payload));
        }
        let Value::SimpleString(line) = came else {
            panic!("{came:?}");
        };
        // A time and who asks, and then each word quoted.
        let words = quoted(line.split_once("] ").unwrap().1);
        match &*words {
            [command, channel, payload] if command.eq_ignore_ascii_case("spublish") => {
                Some((channel.clone(), payload.clone()))
            }
            _ => None,
        }
    }
}

/// The words of a line of `MONITOR`.
fn quoted(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (byte, &mut word) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (b'\\', Some(word)) => word.push(match bytes.next().unwrap() {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                b'x' => {
                    let mut digit = || char::from(bytes.next().unwrap()).to_digit(16).unwrap();
                    u8::try_from(16 * digit() + digit()).unwrap()
                }
                other => other,
            }),
            (byte, Some(word)) => word.push(byte),
            (_, None) => {}
        }
    }
    let words = words.into_iter().map(String::from_utf8);
    words.map(|word| word.unwrap_or_default()).collect()
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
