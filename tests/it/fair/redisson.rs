//! The fair lock and Redisson's in one queue. The Java side is acted out by the changes that Redisson makes to the
//! keys.

use std::collections::HashMap;
use std::time::Duration;

use crossbeam_channel::bounded;
use redis::{Connection, Script};
use redlatch::Client;

use crate::support::fair::{
    Line, channel, nothing_left, queue, queue_key, server_now, timeouts, timeouts_key,
};
use crate::support::{
    BY_MESSAGE, LONG, Server, hold_by_stranger, loosely, ms, open, timed, unique, within,
};

/// A thread of a Java process, reduced to the steps that Redisson takes on the keys.
struct Javan {
    owner: String,
    name: String,
    wait_ms: u64,
    con: Connection,
    /// Subscribed to the waiter's channel.
    _listens: Connection,
}

impl Javan {
    /// Removes expired places from the head of the queue, by the caller's clock.
    const PURGE: &'static str = "
        local lock, queue, timeouts, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
        local owner, wait, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
        while true do
            local head = redis.call('lindex', queue, 0)
            local score = head and tonumber(redis.call('zscore', timeouts, head))
            if not score or score > now then break end
            redis.call('zrem', timeouts, head)
            redis.call('lpop', queue)
        end
        local head = redis.call('lindex', queue, 0)
    ";

    /// Takes the lock if the caller is next, and lowers all other timeouts by its wait; otherwise queues.
    const ACQUIRE: &'static str = "
        if redis.call('exists', lock) == 0 and (not head or head == owner) then
            redis.call('lpop', queue)
            redis.call('zrem', timeouts, owner)
            for _, other in ipairs(redis.call('zrange', timeouts, 0, -1)) do
                redis.call('zincrby', timeouts, -wait, other)
            end
            redis.call('hset', lock, owner, 1)
            redis.call('pexpire', lock, 30000)
            return 1
        end
        if redis.call('zscore', timeouts, owner) then return 0 end
        local tail = redis.call('lindex', queue, -1)
        local left = tail and tonumber(redis.call('zscore', timeouts, tail))
        left = left and left - now or redis.call('pttl', lock)
        redis.call('zadd', timeouts, left + wait + now, owner)
        redis.call('rpush', queue, owner)
        return 0
    ";

    const UNLOCK: &'static str = "
        redis.call('del', lock)
        if head then redis.call('publish', channel .. ':' .. head, 0) end
        return 1
    ";

    fn new(server: &Server, name: &str, thread: u32, wait: Duration) -> Self {
        let owner = format!("0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d:{thread}");
        let mut listens = server.connection();
        let () = redis::cmd("SUBSCRIBE")
            .arg(format!("{}:{owner}", channel(name)))
            .query(&mut listens)
            .unwrap();
        Self {
            owner,
            name: name.to_owned(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap(),
            con: server.connection(),
            _listens: listens,
        }
    }

    fn run(&mut self, step: &str) -> bool {
        let now = server_now(&mut self.con);
        Script::new(&format!("{}{step}", Self::PURGE))
            .key(&self.name)
            .key(queue_key(&self.name))
            .key(timeouts_key(&self.name))
            .key(channel(&self.name))
            .arg(&self.owner)
            .arg(self.wait_ms)
            .arg(now)
            .invoke(&mut self.con)
            .unwrap()
    }

    /// Makes an attempt; if another waiter is next, the caller stays in the queue.
    fn try_lock(&mut self) -> bool {
        self.run(Self::ACQUIRE)
    }

    fn unlock(&mut self) {
        assert_eq!(self.holders(), [(self.owner.clone(), "1".to_owned())]);
        self.run(Self::UNLOCK);
    }

    fn holders(&mut self) -> Vec<(String, String)> {
        redis::cmd("HGETALL")
            .arg(&self.name)
            .query(&mut self.con)
            .unwrap()
    }
}

/// Rust and Java threads queue alternately, Java's with this wait; each gets the lock at its turn and not before.
fn a_mixed_line(wait: Duration) {
    let server = Server::start();
    let name = unique("java");
    let clients = [open(&server), open(&server)];
    hold_by_stranger(&server, &name, 30_000);
    let mut first = Javan::new(&server, &name, 41, wait);
    let mut third = Javan::new(&server, &name, 43, wait);
    let (go, turns) = bounded::<()>(0);
    let mut line = Line::new(&server, &name);
    let stand = |line: &mut Line, client: &Client| {
        let (lock, turns) = (client.fair_lock(&name), turns.clone());
        line.join(move |here| {
            let guard = lock.lock().unwrap();
            here();
            turns.recv().unwrap_or_default();
            guard.unlock().unwrap();
        });
    };
    assert!(!first.try_lock());
    stand(&mut line, &clients[0]);
    assert!(!third.try_lock());
    stand(&mut line, &clients[1]);
    stand(&mut line, &clients[0]);
    line.all_parked();
    let order = queue(&server, &name);
    assert_eq!((&order[0], &order[2]), (&first.owner, &third.owner));
    let kept: HashMap<_, _> = timeouts(&server, &name).into_iter().collect();
    let until = order.iter().map(|ticket| kept[ticket]);
    let until: Vec<_> = until.collect();
    // Each of our waiters adds 300 s, as Java's do by default.
    let wait = wait.as_secs_f64() * 1000.0;
    for (pair, adds) in until
        .windows(2)
        .zip([300_000.0, wait, 300_000.0, 300_000.0])
    {
        assert!((pair[1] - pair[0] - adds).abs() < 1.0, "{until:?}");
    }
    // While a Java thread is next, no other waiter gets the lock, however long that takes.
    server.cli(&["DEL", &name]);
    assert!(!within(ms(1_500), || !line.received.is_empty()));
    assert!(!third.try_lock());
    assert_eq!(queue(&server, &name), order);

    assert!(first.try_lock());
    first.unlock();
    assert_eq!(
        line.received.recv_timeout(loosely(BY_MESSAGE)),
        Ok(0),
        "told by Java"
    );
    assert!(!third.try_lock());
    let mut con = server.connection();
    let mut messages = con.as_pubsub();
    messages
        .subscribe(format!("{}:{}", channel(&name), third.owner))
        .unwrap();
    messages.set_read_timeout(Some(LONG)).unwrap();
    go.send(()).unwrap();
    assert_eq!(messages.get_message().unwrap().get_payload_bytes(), b"0");
    assert!(third.try_lock());
    // No waiter gets the lock before its turn, and places in the queue stay.
    assert!(!within(ms(1_000), || !line.received.is_empty()));
    assert_eq!(queue(&server, &name), order[3..]);
    third.unlock();
    assert_eq!(
        line.received.recv_timeout(loosely(BY_MESSAGE)),
        Ok(1),
        "told by Java"
    );
    go.send(()).unwrap();
    assert_eq!(line.received.recv_timeout(loosely(BY_MESSAGE)), Ok(2));
    drop(go);
    line.crew.join();
    nothing_left(&server);
}

timed!(java_and_rust_stand_in_one_line);
fn java_and_rust_stand_in_one_line() {
    a_mixed_line(Duration::from_secs(300));
}

timed!(java_that_waits_a_short_time_does_not_shorten_our_places);
fn java_that_waits_a_short_time_does_not_shorten_our_places() {
    a_mixed_line(Duration::from_secs(20));
}
