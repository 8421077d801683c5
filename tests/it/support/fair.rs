//! The queue of a fair lock in Redis, and threads that wait in it.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use redis::Connection;
use redlatch::{Client, Config, FairLock};

use crate::support::{Crew, Server, eventually, ms, within};

/// A limit for leaving the queue at once, far shorter than any waiter lease.
pub(crate) const AT_ONCE: Duration = ms(2_000);

pub(crate) fn queue_key(name: &str) -> String {
    format!("redisson_lock_queue:{{{name}}}")
}

pub(crate) fn timeouts_key(name: &str) -> String {
    format!("redisson_lock_timeout:{{{name}}}")
}

/// The prefix of every waiter's channel.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The waiters in the queue, first to last.
#[track_caller]
pub(crate) fn queue(server: &Server, name: &str) -> Vec<String> {
    server.ask(&["LRANGE", &queue_key(name), "0", "-1"])
}

/// The waiters and the ends of their waiter leases, soonest first.
#[track_caller]
pub(crate) fn timeouts(server: &Server, name: &str) -> Vec<(String, f64)> {
    server.ask(&["ZRANGE", &timeouts_key(name), "0", "-1", "WITHSCORES"])
}

/// Waits until the queue has `n` waiters.
#[track_caller]
pub(crate) fn queued(server: &Server, name: &str, n: usize) {
    let mut con = server.connection();
    eventually("the waiters are in the queue", || {
        length(&mut con, name) == n
    });
}

pub(crate) fn length(con: &mut Connection, name: &str) -> usize {
    redis::cmd("LLEN").arg(queue_key(name)).query(con).unwrap()
}

/// The server's clock in milliseconds.
pub(crate) fn server_now(con: &mut Connection) -> f64 {
    let (s, us): (f64, f64) = redis::cmd("TIME").query(con).unwrap();
    s * 1000.0 + (us / 1000.0).floor()
}

/// A client whose silent waiters keep their places in the queue for `lease`.
pub(crate) fn with_waiter_lease(url: &str, lease: Duration) -> Client {
    Client::open(Config::new(url).waiter_lease(lease)).unwrap()
}

/// Threads that queue one behind the other and send their numbers when they are granted the lock.
pub(crate) struct Line {
    con: Connection,
    name: String,
    pub(crate) crew: Crew,
    pub(crate) joined: usize,
    pub(crate) sender: Sender<usize>,
    pub(crate) received: Receiver<usize>,
}

impl Line {
    pub(crate) fn new(server: &Server, name: &str) -> Self {
        let (sender, received) = unbounded();
        Self {
            con: server.connection(),
            name: name.to_owned(),
            crew: Crew::new(),
            joined: 0,
            sender,
            received,
        }
    }

    /// Adds a thread and waits until it is in the queue. `wait` acquires the lock and calls its argument while it holds
    /// it.
    pub(crate) fn join(&mut self, wait: impl FnOnce(&dyn Fn()) + Send + 'static) {
        let length_before = length(&mut self.con, &self.name);
        let (number, sender) = (self.joined, self.sender.clone());
        self.crew
            .spawn(move || wait(&|| sender.send(number).unwrap()));
        eventually("the new waiter is in the queue", || {
            length(&mut self.con, &self.name) == length_before + 1
        });
        self.joined += 1;
    }

    /// Adds a thread that releases the lock as soon as it is granted.
    pub(crate) fn join_with(&mut self, lock: FairLock) {
        self.join(move |here| {
            let guard = lock.lock().unwrap();
            here();
            guard.unlock().unwrap();
        });
    }

    /// Joins all threads and asserts that they were granted the lock in the order in which they joined the queue.
    #[track_caller]
    pub(crate) fn served_in_order(self) {
        let all: Vec<_> = (0..self.joined).collect();
        self.crew.join();
        let served: Vec<_> = self.received.try_iter().collect();
        assert_eq!(served, all);
    }

    pub(crate) fn all_parked(&self) {
        self.crew.all_parked();
    }
}

/// Asserts that the lock soon leaves no keys in Redis.
#[track_caller]
pub(crate) fn nothing_left(server: &Server) {
    let mut keys = Vec::new();
    let gone = within(AT_ONCE, || {
        keys = server.keys_but_requests();
        keys.is_empty()
    });
    assert!(gone, "{keys:?}");
}
