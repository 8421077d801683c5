//! Other clients: holds written by hand, messages received, subscriptions counted.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Connection, Value};

use crate::support::{
    Crew, Deployment, Kind, Notified, Queue, REENTRANT_LOCK, Server, delete, eventually,
    everywhere, is_redis_6, unique,
};

/// An owner outside this crate: a Redisson client and one of its threads.
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

/// Waits until `n` contenders wait: they are subscribed, or poll if the kind has no messages.
#[track_caller]
pub(crate) fn waited_for_by(kind: Kind, server: &Server, n: u64) {
    subscribed(server, n * kind.listens);
    if n > 0 && kind.listens == 0 {
        // Some kinds check the TTL before they try to acquire, so count both.
        let asks = || server.calls("evalsha") + server.calls("pttl");
        let asked = asks();
        eventually("the waiters poll", || asks() >= asked + 6);
        assert!(server.clients_named("subscriber").is_empty());
    }
}

/// Waits until `n` threads of a crew wait, in the order in which they came.
#[track_caller]
pub(crate) fn in_line(kind: Kind, server: &Server, name: &str, crew: &Crew, n: usize) {
    if kind.queue == Queue::Redis {
        eventually("all waiters are in the queue", || {
            line(server, name).len() == n
        });
    }
    crew.all_parked();
}

/// The queue that Redis keeps.
pub(crate) fn line(server: &Server, name: &str) -> Vec<String> {
    let queue = beside("redisson_lock_queue", name);
    server.ask(&["LRANGE", &queue, "0", "-1"])
}

/// The key or channel with this prefix that belongs to the lock at `key`.
pub(crate) fn beside(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
}

/// Makes a plain lock held by [`STRANGER`].
pub(crate) fn hold_by_stranger(server: &Server, name: &str, lease_ms: u64) {
    stranger_holds(REENTRANT_LOCK, server, name, lease_ms);
}

/// Makes a lock held by [`STRANGER`], whatever its keys contained.
pub(crate) fn stranger_holds(kind: Kind, server: &Server, name: &str, lease_ms: u64) {
    everywhere(kind, server, name, |server, keys| {
        let mut pipe = redis::pipe();
        pipe.atomic();
        held_by_stranger(kind, &mut pipe, keys, lease_ms);
        let () = pipe.query(&mut server.connection()).unwrap();
    });
}

/// Makes all keys expire in the same millisecond. `PEXPIRE` would count from the arrival of each command, and between
/// two expiries an acquire would find one key gone and the next still there.
fn held_by_stranger(kind: Kind, pipe: &mut redis::Pipeline, keys: &[String], lease_ms: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let expires = now.as_millis() + u128::from(lease_ms);
    for key in keys {
        pipe.del(key);
        pipe.hset_multiple(key, &kind.fields(STRANGER, 1));
        pipe.cmd("PEXPIREAT").arg(key).arg(expires.to_string());
    }
}

/// Takes a lock from its holder for a conflicting [`STRANGER`]. The lock is never free on any server, so the holder
/// notices the loss when it looks.
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

/// Releases the stranger's hold as Redisson does, including the message.
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

/// Whether the server uses sharded channels.
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

/// Receives every message that is published on a server. Sharded channels have no pattern subscriptions, so there
/// `MONITOR` shows the commands.
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

    /// The channel and payload of every message since the last call.
    pub(crate) fn published(&mut self, server: &Server) -> Vec<(String, String)> {
        // The order of messages is kept, so everything that was published earlier precedes this one.
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
        // The line has the time and the client in brackets, then each word in quotes.
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

/// Increments a counter by a read and a write, which race unless a lock protects them.
pub(crate) fn increment(con: &mut Connection, counter: &str) {
    let n: Option<u64> = redis::cmd("GET").arg(counter).query(con).unwrap();
    let () = redis::cmd("SET")
        .arg(counter)
        .arg(n.unwrap_or(0) + 1)
        .query(con)
        .unwrap();
}
