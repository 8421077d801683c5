//! What other clients do and see: holds written by hand, messages heard, subscriptions counted.

use redis::{Connection, PubSub};

use crate::support::{Crew, Line, Lock, News, Server, delete, eventually, everywhere, unique};

/// Somebody who is not of this crate: a Redisson client and one of its threads.
pub(crate) const STRANGER: &str = "9f8e7d6c-5b4a-4321-8fed-cba987654321:57";

/// Waits until the server has `n` subscriptions of this crate.
#[track_caller]
pub(crate) fn subscribed(server: &Server, n: u64) {
    eventually("the waiting clients are subscribed", || {
        let clients = server.clients_named("redlatch-subscriber");
        clients
            .iter()
            .map(|client| client.subscriptions)
            .sum::<u64>()
            == n
    });
}

/// Waits until `n` threads that ask Redis are known to wait: they listen, or ask again and again without messages.
#[track_caller]
pub(crate) fn waited_for_by<L: Lock>(server: &Server, n: u64) {
    subscribed(server, n * L::LISTENS);
    if n > 0 && L::LISTENS == 0 {
        // Some look whether it is free before they ask for it.
        let asks = || server.calls("evalsha") + server.calls("pttl");
        let asked = asks();
        eventually("they ask again and again", || asks() >= asked + 6);
        assert!(server.clients_named("redlatch-subscriber").is_empty());
    }
}

/// Waits until `n` threads of a crew, whatever their process, wait in this order.
#[track_caller]
pub(crate) fn in_line<L: Lock>(server: &Server, name: &str, crew: &Crew, n: usize) {
    if L::LINE == Line::Redis {
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
    stranger_holds::<redlatch::ReentrantLock>(server, name, lease_ms);
}

/// A lock held by somebody else, made by hand, whatever was there before.
pub(crate) fn stranger_holds<L: Lock>(server: &Server, name: &str, lease_ms: u64) {
    everywhere::<L>(server, name, |server, keys| {
        // At once, so that all its keys expire at once.
        let mut pipe = redis::pipe();
        pipe.atomic();
        for key in keys {
            pipe.del(key);
            pipe.hset_multiple(key, &L::fields(STRANGER, 1));
            pipe.cmd("PEXPIRE").arg(key).arg(lease_ms);
        }
        let () = pipe.query(&mut server.connection()).unwrap();
    });
}

/// Takes a lock from its holder by hand, for a foe: on no server is it free in between, so whoever looks finds that out.
pub(crate) fn stranger_takes<L: Lock>(server: &Server, name: &str, lease_ms: u64) {
    let taken = L::Foe::names(name);
    everywhere::<L>(server, name, |server, keys| {
        let mut pipe = redis::pipe();
        pipe.atomic().del(keys);
        for key in &taken {
            pipe.del(key);
            pipe.hset_multiple(key, &L::Foe::fields(STRANGER, 1));
            pipe.cmd("PEXPIRE").arg(key).arg(lease_ms);
        }
        let () = pipe.query(&mut server.connection()).unwrap();
    });
}

pub(crate) fn is_held_by_stranger<L: Lock>(server: &Server, name: &str) -> bool {
    let names = L::names(name);
    let theirs = |name: &String| server.hgetall(name) == L::fields(STRANGER, 1);
    names.iter().all(theirs)
}

/// Does what a Redisson client does to give a lock back.
pub(crate) fn stranger_releases<L: Lock>(server: &Server, name: &str) {
    let first = line(server, name).into_iter().next();
    delete::<L>(server, name);
    match (L::NEWS, first) {
        (News::All(prefix, payload), _) => {
            for name in L::names(name) {
                server.cli(&["PUBLISH", &beside(prefix, &name), payload]);
            }
        }
        (News::First, Some(first)) => {
            let channel = beside("redisson_lock__channel", name);
            server.cli(&["PUBLISH", &format!("{channel}:{first}"), "0"]);
        }
        (News::First, None) | (News::Nobody, _) => {}
    }
}

/// Channel and payload of everything that was published since the last look, to one who listens to everything.
pub(crate) fn published(server: &Server, pubsub: &mut PubSub<'_>) -> Vec<(String, String)> {
    // Whatever was published before this has come when this has.
    let end = unique("end");
    server.cli(&["PUBLISH", &end, ""]);
    let mut received = Vec::new();
    loop {
        let message = pubsub.get_message().unwrap();
        let channel = message.get_channel_name().to_owned();
        if channel == end {
            return received;
        }
        received.push((channel, message.get_payload().unwrap()));
    }
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
