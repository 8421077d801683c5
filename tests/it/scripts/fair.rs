//! The scripts of the fair lock by bare EVALSHA on a real server: the reply, and the fields, places, timeouts, TTLs and
//! messages left behind.

use redis::{Connection, RedisResult};

use crate::support::scripts;
use crate::support::scripts::{
    LEASE, NAMES, RENEW, REQUEST, as_redisson, assert_left, channel, forbid, forbid_channels,
    listen_to_all, messages, out_of_memory, run,
};
use crate::support::{Server, eventually, lua, timed};

const ACQUIRE: &str = lua::FAIR_ACQUIRE;
const RELEASE: &str = lua::FAIR_RELEASE;
const LEAVE: &str = lua::FAIR_LEAVE;
const FORCE: &str = lua::FAIR_FORCE;

/// How long a place lives unless refreshed.
const WAITER: i64 = 10_000;

/// How much longer than a place the keys of the queue live.
const KEEP: i64 = 3_600_000;

/// How finely a timeout remembers when it was refreshed.
const STEP: i64 = 4_000;

/// How long Redisson says that its waiters live, by default.
const REDISSON: i64 = 300_000;

const A: &str = "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b1a7c:1";
const B: &str = "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b1a7c:2";
const C: &str = "9f8e7d6c-5b4a-4321-8fed-cba987651a7c:57";
const D: &str = "9f8e7d6c-5b4a-4321-8fed-cba987651a7c:58";
const E: &str = "9f8e7d6c-5b4a-4321-8fed-cba987651a7c:59";
/// A thread of a Java process.
const JAVA: &str = "5d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5:71";
/// Another one.
const OTHER: &str = "5d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5:72";

/// How long a place lives on whose waiter does not listen, and by what its timeout is known.
const GRACE: i64 = 500;
const UNHEARD: f64 = 1.0 / 4096.0;

/// What a ticket knows of its place in the queue.
const NEW: &str = "0";
const QUEUED: &str = "1";
const LOST: &str = "2";

/// The answer to one that knows of a place and has none.
const PLACE_LOST: i64 = -3;

/// A server and one fair lock on it.
struct Fair {
    server: Server,
    con: Connection,
    name: String,
    /// None, as in a cluster, unless a test is about that: its waiters do not listen.
    grace: i64,
    /// What an acquire and a release remove besides.
    served: Vec<String>,
    /// Who was ahead when a place was taken, by the last reply.
    ahead: Option<String>,
}

impl Fair {
    fn start() -> Self {
        let server = Server::start();
        let con = server.connection();
        Self {
            server,
            con,
            name: "orders".into(),
            grace: 0,
            served: Vec::new(),
            ahead: None,
        }
    }

    /// Where it matters who listens.
    fn with_a_grace() -> Self {
        Self {
            grace: GRACE,
            ..Self::start()
        }
    }

    /// The same for a test that has much to do before the grace is over.
    fn with_a_long_grace() -> Self {
        Self {
            grace: WAITER / 2,
            ..Self::start()
        }
    }

    fn queue_key(&self) -> String {
        channel(&self.name).replacen("redisson_lock__channel", "redisson_lock_queue", 1)
    }

    fn timeouts_key(&self) -> String {
        channel(&self.name).replacen("redisson_lock__channel", "redisson_lock_timeout", 1)
    }

    fn run<T: redis::FromRedisValue>(&mut self, script: &str, args: &[&str]) -> RedisResult<T> {
        let (queue, timeouts) = (self.queue_key(), self.timeouts_key());
        let keys = [self.name.as_str(), &queue, &timeouts, &channel(&self.name)];
        run(&mut self.con, script, &keys, args)
    }

    fn acquire(
        &mut self,
        owner: &str,
        ticket: &str,
        [lease, waiter]: [i64; 2],
        queued: &str,
    ) -> RedisResult<Option<i64>> {
        let [lease, waiter, grace] = [lease, waiter, self.grace].map(|ms| ms.to_string());
        let served = self.served.clone();
        let served: Vec<_> = served.iter().map(String::as_str).collect();
        let own = [owner, &lease, ticket, &waiter, queued, &grace];
        let reply = self.run(ACQUIRE, &[&own[..], &served].concat())?;
        self.ahead = None;
        Ok(match reply {
            redis::Value::Array(_) => {
                let (left, ahead) = redis::from_redis_value(reply)?;
                self.ahead = Some(ahead);
                Some(left)
            }
            reply => redis::from_redis_value(reply)?,
        })
    }

    /// What a waiter asks again and again, and at once if it hears that its place is lost.
    #[track_caller]
    fn ask(&mut self, owner: &str, queued: &str) -> Option<i64> {
        let received = self.acquire(owner, owner, [LEASE, WAITER], queued).unwrap();
        if received == Some(PLACE_LOST) {
            assert_eq!(queued, QUEUED);
            return self.acquire(owner, owner, [LEASE, WAITER], LOST).unwrap();
        }
        received
    }

    /// Asks once, with a place in mind for no time at all.
    #[track_caller]
    fn try_once(&mut self, owner: &str) -> Option<i64> {
        self.acquire(owner, owner, [LEASE, 0], NEW).unwrap()
    }

    #[track_caller]
    fn take(&mut self, owner: &str) {
        assert_eq!(self.ask(owner, NEW), None);
    }

    /// Asks in vain for what is held for most of a lease.
    #[track_caller]
    fn wait(&mut self, owner: &str, queued: &str) {
        assert_left(self.ask(owner, queued).unwrap(), LEASE);
    }

    /// A holds the lock and these wait for it.
    #[track_caller]
    fn queued(&mut self, owners: &[&str]) {
        self.take(A);
        for owner in owners {
            self.wait(owner, NEW);
        }
    }

    /// The head takes it.
    #[track_caller]
    fn take_from(&mut self, head: &str) {
        assert_eq!(self.ask(head, QUEUED), None);
    }

    #[track_caller]
    fn release(&mut self, owner: &str) -> i64 {
        self.try_release(owner).unwrap()
    }

    fn try_release<T: redis::FromRedisValue>(&mut self, owner: &str) -> RedisResult<T> {
        let grace = self.grace.to_string();
        let served = self.served.clone();
        let served: Vec<_> = served.iter().map(String::as_str).collect();
        self.run(RELEASE, &[&[owner, &grace][..], &served].concat())
    }

    fn try_leave<T: redis::FromRedisValue>(&mut self, ticket: &str) -> RedisResult<T> {
        self.try_leave_all(&[ticket])
    }

    fn try_leave_all<T: redis::FromRedisValue>(&mut self, tickets: &[&str]) -> RedisResult<T> {
        let grace = self.grace.to_string();
        let own = [tickets[0], &grace];
        self.run(LEAVE, &[&own[..], &tickets[1..]].concat())
    }

    #[track_caller]
    fn leave(&mut self, ticket: &str) -> bool {
        self.try_leave(ticket).unwrap()
    }

    #[track_caller]
    fn force(&mut self) -> bool {
        self.try_force().unwrap()
    }

    fn try_force<T: redis::FromRedisValue>(&mut self) -> RedisResult<T> {
        let (queue, timeouts) = (self.queue_key(), self.timeouts_key());
        let channel = channel(&self.name);
        let keys = [self.name.as_str(), &queue, &timeouts, &channel, REQUEST];
        scripts::force_with(&mut self.con, FORCE, &keys, &[&self.grace.to_string()])
    }

    /// One run of each script, by `owner`.
    fn run_each(&mut self, owner: &str) -> [(&'static str, RedisResult<()>); 4] {
        let asked = self.acquire(owner, owner, [LEASE, WAITER], NEW);
        [
            ("acquire", asked.map(drop)),
            ("release", self.try_release(owner)),
            ("leave", self.try_leave(owner)),
            ("force", self.try_force()),
        ]
    }

    /// The server's clock in milliseconds.
    fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = self.server.ask(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    fn queue(&self) -> Vec<String> {
        self.server.ask(&["LRANGE", &self.queue_key(), "0", "-1"])
    }

    /// Who has a timeout, sorted.
    fn timed(&self) -> Vec<String> {
        let timeouts: Vec<String> = self
            .server
            .ask(&["ZRANGE", &self.timeouts_key(), "0", "-1"]);
        sorted(timeouts)
    }

    #[track_caller]
    fn timeout(&self, ticket: &str) -> f64 {
        self.server.ask(&["ZSCORE", &self.timeouts_key(), ticket])
    }

    /// How long `ticket` will live unless refreshed.
    #[track_caller]
    fn life(&self, ticket: &str) -> f64 {
        self.timeout(ticket) - self.now() as f64
    }

    /// As if so much time had passed: all timeouts are nearer, and so is what some of them remember.
    fn age(&self, steps: i64) {
        for ticket in self.timed() {
            let timeout = self.timeout(&ticket);
            let mark = (timeout.fract() * 1024.0).floor();
            let marked = if mark > 0.0 {
                (mark - 1.0 - steps as f64).rem_euclid(1023.0) + 1.0
            } else {
                0.0
            };
            let earlier = timeout.floor() - (steps * STEP) as f64 + marked / 1024.0;
            let earlier = format!("{earlier:.10}");
            let () = self
                .server
                .ask(&["ZADD", &self.timeouts_key(), &earlier, &ticket]);
        }
    }

    /// As if the grace of all that have one were over.
    fn end_graces(&self) {
        for ticket in self.timed() {
            if self.timeout(&ticket).fract() == UNHEARD {
                let over = format!("{:.10}", self.now() as f64 - 1.0 + UNHEARD);
                let () = self
                    .server
                    .ask(&["ZADD", &self.timeouts_key(), &over, &ticket]);
            }
        }
    }

    /// These have a grace since `before`, and nobody else has one.
    #[track_caller]
    fn assert_graces(&self, graced: &[&str], before: i64) {
        for ticket in self.timed() {
            let timeout = self.timeout(&ticket);
            let expected = graced.contains(&&*ticket);
            assert_eq!(timeout.fract() == UNHEARD, expected, "{ticket}: {timeout}");
            let over = (before + self.grace) as f64..=(self.now() + self.grace) as f64;
            assert!(!expected || over.contains(&timeout.floor()), "{ticket}");
        }
    }

    fn set_timeout(&self, ticket: &str, at: i64) {
        let () = self
            .server
            .ask(&["ZADD", &self.timeouts_key(), &at.to_string(), ticket]);
    }

    fn drop_timeout(&self, ticket: &str) {
        let () = self.server.ask(&["ZREM", &self.timeouts_key(), ticket]);
    }

    /// A place at the tail that ends at that time.
    fn place(&self, ticket: &str, until: i64) {
        let () = self.server.ask(&["RPUSH", &self.queue_key(), ticket]);
        self.set_timeout(ticket, until);
    }

    /// The same for many, in one go: none of their time is over before the last has its place.
    fn places(&mut self, tickets: &[String], until: i64) {
        let (queue, timeouts) = (self.queue_key(), self.timeouts_key());
        let mut pipe = redis::pipe();
        pipe.rpush(queue, tickets).ignore();
        for ticket in tickets {
            pipe.zadd(&timeouts, ticket, until).ignore();
        }
        let () = pipe.query(&mut self.con).unwrap();
    }

    /// All there is: the holder and its count of one, the places in order, a timeout for each, and TTLs.
    #[track_caller]
    fn assert_state(&self, holder: Option<&str>, queue: &[&str]) {
        let mut keys = Vec::new();
        if let Some(holder) = holder {
            keys.push(self.name.clone());
            let fields = self.server.hgetall(&self.name);
            assert_eq!(fields, [(holder.to_owned(), "1".to_owned())]);
            assert_left(self.server.pttl(&self.name), LEASE);
        }
        if !queue.is_empty() {
            keys.extend([self.queue_key(), self.timeouts_key()]);
            assert_left(self.server.pttl(&self.queue_key()), WAITER + KEEP);
            assert_left(self.server.pttl(&self.timeouts_key()), WAITER + KEEP);
        }
        assert_eq!(self.server.keys(), sorted(keys));
        assert_eq!(self.queue(), queue);
        let tickets = queue.iter().map(|&ticket| ticket.to_owned()).collect();
        assert_eq!(self.timed(), sorted(tickets));
    }

    /// The message that wakes `ticket`.
    fn announced(&self, ticket: &str) -> (String, String) {
        (format!("{}:{ticket}", channel(&self.name)), "0".into())
    }

    // What Redisson's scripts do, for a waiter that will wait that long.

    /// Queues behind the sum of all that are ahead.
    fn redisson_joins(&self, ticket: &str, wait: i64) {
        let now = self.now() as f64;
        let left = match self.queue().last() {
            Some(tail) => self.timeout(tail) - now,
            None => self.server.pttl(&self.name) as f64,
        };
        let until = now + left + wait as f64;
        let () = self
            .server
            .ask(&["ZADD", &self.timeouts_key(), &until.to_string(), ticket]);
        let () = self.server.ask(&["RPUSH", &self.queue_key(), ticket]);
    }

    /// Takes the free lock as the head, and lowers everybody's timeout by its own wait.
    #[track_caller]
    fn redisson_takes(&self, ticket: &str, wait: i64) {
        assert!(!self.server.exists(&self.name));
        let head: String = self.server.ask(&["LPOP", &self.queue_key()]);
        assert_eq!(head, ticket);
        self.drop_timeout(ticket);
        let less = (-wait).to_string();
        for other in self.timed() {
            let () = self
                .server
                .ask(&["ZINCRBY", &self.timeouts_key(), &less, &other]);
        }
        as_redisson(&self.server, &self.name, ticket, "1", LEASE);
    }
}

fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

/// `n` waiters of a process of ours.
fn ours(n: usize) -> Vec<String> {
    let client = "3f9e1d07-55aa-4b21-8c3d-77e0c0de1a7c";
    (0..n).map(|n| format!("{client}:{}", 100 + n)).collect()
}

/// Listens to the channels of these only, and to the one by which the end of what was published is known.
fn listen_for<'a>(fair: &Fair, con: &'a mut Connection, tickets: &[&str]) -> redis::PubSub<'a> {
    let mut pubsub = con.as_pubsub();
    pubsub.subscribe("end").unwrap();
    for ticket in tickets {
        pubsub.subscribe(fair.announced(ticket).0).unwrap();
    }
    pubsub
}

/// The numbers of `n` waiters.
fn many(n: usize) -> Vec<String> {
    (0..n)
        .map(|n| A.replace(":1", &format!(":{}", 1000 + n)))
        .collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_acquire: taking
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_free_lock_without_a_queue_is_taken_whatever_the_name() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        fair.name = name.into();
        for waiter in [WAITER, 0] {
            let taken = fair.acquire(A, A, [LEASE, waiter], NEW).unwrap();
            assert_eq!(taken, None, "{name:?}");
            fair.assert_state(Some(A), &[]);
            let () = fair.server.ask(&["DEL", name]);
        }
    }
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

/// Redisson's worked numbers, with its replies and timeouts where ours differ: there each waiter's timeout comes after
/// the one ahead of it and a newcomer gets that sum; here a place is a short lease that its waiter refreshes, and
/// everybody is notified when the lock may be free.
#[test]
fn waiters_stand_in_line_and_are_told_the_holders_ttl_whatever_the_name() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        fair.name = name.into();
        fair.take(A);
        let mut line = Vec::new();
        // Redisson: B gets 30 000 and lives for 330 000, C gets 330 000 and lives for 630 000.
        for owner in [B, C] {
            let before = fair.now();
            fair.wait(owner, NEW);
            line.push(owner);
            fair.assert_state(Some(A), &line);
            assert!(fair.timeout(owner) >= (before + WAITER) as f64, "{name:?}");
            assert!(fair.life(owner) <= WAITER as f64, "{name:?}");
        }
        // Redisson: both get 30 000, and keep their timeouts.
        for owner in [C, B] {
            let before = fair.now();
            fair.wait(owner, QUEUED);
            fair.assert_state(Some(A), &[B, C]);
            assert!(fair.timeout(owner) >= (before + WAITER) as f64, "{name:?}");
        }
        assert_eq!(messages(&fair.server, &mut pubsub), []);
        let before = fair.timeout(C);
        assert_eq!(fair.release(A), 1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(B)]);
        assert_eq!(fair.ask(B, QUEUED), None);
        fair.assert_state(Some(B), &[C]);
        // Redisson: lowered by 300 000.
        assert_eq!(fair.timeout(C), before);
        assert_eq!(fair.release(B), 1);
        assert_eq!(fair.ask(C, QUEUED), None);
        fair.assert_state(Some(C), &[]);
        assert_eq!(fair.release(C), 0);
        fair.assert_state(None, &[]);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
    }
}

#[test]
fn five_waiters_are_served_in_the_order_they_came() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let waiters = many(5);
    let mut line: Vec<&str> = waiters.iter().map(String::as_str).collect();
    fair.queued(&line);
    let mut holder = A;
    while let [head, rest @ ..] = line.as_slice() {
        assert_eq!(fair.release(holder), 1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(head)]);
        // Free, and still nobody else's: the last first.
        for other in rest.iter().rev() {
            let life = fair.life(head);
            let received = fair.ask(other, QUEUED).unwrap();
            assert!(
                1 <= received && received as f64 <= life,
                "{received} of {life} ms"
            );
            assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(head)]);
        }
        assert!(fair.try_once("newcomer").is_some());
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(head)]);
        fair.assert_state(None, &line);
        assert_eq!(fair.ask(head, QUEUED), None);
        holder = head;
        line.remove(0);
        fair.assert_state(Some(holder), &line);
    }
}

#[test]
fn trying_once_never_queues() {
    let mut fair = Fair::start();
    fair.take(A);
    assert_left(fair.try_once(B).unwrap(), LEASE);
    fair.assert_state(Some(A), &[]);
    fair.wait(C, NEW);
    let before = fair.timeout(C);
    assert_left(fair.try_once(B).unwrap(), LEASE);
    // Neither does it refresh, nor lose the place.
    assert_left(fair.try_once(C).unwrap(), LEASE);
    fair.assert_state(Some(A), &[C]);
    assert_eq!(fair.timeout(C), before);
    fair.release(A);
    let received = fair.try_once(B).unwrap();
    assert!((1..=WAITER).contains(&received), "{received}");
    fair.assert_state(None, &[C]);
    assert_eq!(fair.try_once(C), None);
    fair.assert_state(Some(C), &[]);
}

#[test]
fn a_lock_that_never_expires_tells_minus_one() {
    let mut fair = Fair::start();
    let () = fair.server.ask(&["HSET", "orders", A, "1"]);
    assert_eq!(fair.ask(B, NEW), Some(-1));
    assert_eq!(fair.ask(B, QUEUED), Some(-1));
    assert_eq!(fair.try_once(C), Some(-1));
    assert_eq!(fair.queue(), [B]);
    assert_eq!(fair.server.pttl("orders"), -1);
}

#[test]
fn a_lock_that_ran_out_is_the_heads() {
    let mut fair = Fair::start();
    assert_eq!(fair.acquire(A, A, [1, WAITER], NEW).unwrap(), None);
    eventually("the lease is over", || !fair.server.exists("orders"));
    fair.place(B, fair.now() + WAITER);
    assert!(fair.ask(C, NEW).is_some());
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[C]);
}

#[test]
fn a_ticket_stands_for_an_owner_of_another_name() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.take(A);
    for ticket in ["a b", "{", "🔒", "line\r\nbreak", "%s *?[x]", "-1", "0"] {
        assert!(fair.acquire(B, ticket, [LEASE, WAITER], NEW).is_ok());
        fair.assert_state(Some(A), &[ticket]);
        fair.release(A);
        assert_eq!(
            messages(&fair.server, &mut pubsub),
            [fair.announced(ticket)]
        );
        let taken = fair.acquire(B, ticket, [LEASE, WAITER], QUEUED).unwrap();
        assert_eq!(taken, None);
        fair.assert_state(Some(B), &[]);
        fair.release(B);
        fair.take(A);
    }
}

#[test]
fn a_replay_of_a_taking_changes_nothing_but_the_ttl() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.release(A);
    for _ in 0..3 {
        assert_eq!(fair.ask(B, QUEUED), None);
        fair.assert_state(Some(B), &[C]);
    }
    // Another count, no TTL, and a place that should be gone, wherever it is.
    for queue in [[B, C], [C, B]] {
        let () = fair.server.ask(&["HSET", "orders", B, "4"]);
        let () = fair.server.ask(&["PERSIST", "orders"]);
        let () = fair.server.ask(&["DEL", &fair.queue_key()]);
        for ticket in queue {
            fair.place(ticket, fair.now() + WAITER);
        }
        let () = fair
            .server
            .ask(&["PEXPIRE", &fair.queue_key(), &(KEEP + WAITER).to_string()]);
        assert_eq!(fair.ask(B, QUEUED), None);
        fair.assert_state(Some(B), &[C]);
    }
}

#[test]
fn a_replay_of_a_queueing_keeps_the_place() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    for queued in [NEW, QUEUED, NEW] {
        fair.wait(C, queued);
        fair.assert_state(Some(A), &[B, C, D]);
    }
}

#[test]
fn the_plain_script_renews_it() {
    let mut fair = Fair::start();
    fair.queued(&[B]);
    let args = [A, &(2 * LEASE).to_string(), "1"];
    assert_eq!(
        run::<i64>(&mut fair.con, RENEW, &["orders"], &args).unwrap(),
        1
    );
    assert_left(fair.ask(B, QUEUED).unwrap(), 2 * LEASE);
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_acquire: waiters that died
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn dead_heads_are_purged_and_nobody_behind_a_live_one() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let now = fair.now();
    for (ticket, dies_at) in [
        ("now", now),
        ("without", now + WAITER),
        ("long ago", 1),
        (C, now + WAITER),
        ("behind", now - 1),
    ] {
        fair.place(ticket, dies_at);
    }
    fair.drop_timeout("without");
    let received = fair.ask(D, NEW).unwrap();
    assert!((1..=WAITER).contains(&received), "{received}");
    fair.assert_state(None, &[C, "behind", D]);
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
    assert_eq!(fair.ask(C, QUEUED), None);
    fair.assert_state(Some(C), &["behind", D]);
    fair.wait(E, NEW);
    fair.assert_state(Some(C), &[D, E]);
}

#[test]
fn the_dead_are_purged_for_one_who_tries_once() {
    let mut fair = Fair::start();
    fair.place(B, fair.now());
    assert_eq!(fair.try_once(D), None);
    fair.assert_state(Some(D), &[]);
}

// F1
#[test]
fn two_hundred_dead_heads_are_purged_by_one_ask() {
    let mut fair = Fair::start();
    let now = fair.now();
    for ticket in many(200) {
        fair.place(&ticket, now);
    }
    fair.place(B, now + WAITER);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[]);
    assert_eq!(fair.server.calls("lpop"), 200);
}

#[test]
fn thousands_of_the_dead_are_purged_in_portions_and_the_first_who_lives_is_found() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.take(A);
    let dead = many(2_200);
    let mut places = vec!["RPUSH".to_owned(), fair.queue_key()];
    let mut timeouts = vec!["ZADD".to_owned(), fair.timeouts_key()];
    for ticket in &dead {
        places.push(ticket.clone());
        timeouts.extend(["1".to_owned(), ticket.clone()]);
    }
    for command in [places, timeouts] {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let () = fair.server.ask(&command);
    }
    fair.place(C, fair.now() + WAITER);
    // Each of them purges some, and notifies somebody who lives and will ask.
    assert_eq!(fair.release(A), 1);
    assert_eq!(fair.queue().len(), 1_701);
    fair.leave(A);
    assert_eq!(fair.queue().len(), 1_201);
    as_redisson(&fair.server, &fair.name, JAVA, "1", LEASE);
    assert!(fair.force());
    assert_eq!(fair.queue().len(), 701);
    let received = fair.announced(C);
    assert_eq!(
        messages(&fair.server, &mut pubsub),
        [received.clone(), received.clone(), received]
    );
    // Not in vain for long.
    assert_eq!(fair.ask(D, NEW), Some(1));
    assert_eq!(fair.queue().len(), 202);
    let received = fair.ask(D, QUEUED).unwrap();
    assert!((2..=WAITER).contains(&received), "{received}");
    assert_eq!(
        messages(&fair.server, &mut pubsub).last(),
        Some(&fair.announced(C))
    );
    fair.take_from(C);
    fair.assert_state(Some(C), &[D]);
}

#[test]
fn an_ask_costs_the_same_however_long_the_queue_is() {
    let mut fair = Fair::start();
    fair.take(A);
    let mut costs = Vec::new();
    let waiters = many(500);
    for (queued, next) in waiters.iter().enumerate() {
        if queued == 5 || queued == 495 {
            let before = fair.server.command_total();
            fair.wait(next, NEW);
            fair.wait(next, QUEUED);
            fair.wait(&waiters[queued / 2], QUEUED);
            fair.wait(&waiters[0], QUEUED);
            fair.try_once(B);
            fair.leave(next);
            costs.push(fair.server.command_total() - before);
        } else {
            fair.wait(next, NEW);
        }
    }
    assert_eq!(costs[0], costs[1]);
    assert_eq!(fair.server.calls("lrange"), 0);
}

#[test]
fn ones_own_late_place_is_kept_and_refreshed() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    for owner in [B, C] {
        for without in [false, true] {
            let now = fair.now();
            fair.set_timeout(owner, now - 1);
            if without && owner == B {
                fair.drop_timeout(B);
            }
            fair.wait(owner, QUEUED);
            fair.assert_state(Some(A), &[B, C]);
            assert!(fair.timeout(owner) >= (now + WAITER) as f64);
        }
    }
    fair.release(A);
    fair.set_timeout(B, 1);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[C]);
}

#[test]
fn a_head_without_a_timeout_takes_and_leaves_nothing() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.release(A);
    fair.drop_timeout(B);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[C]);
}

// F3
#[test]
fn a_purged_waiter_that_lives_goes_back_to_the_head() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.set_timeout(B, 1);
    fair.wait(D, NEW);
    fair.assert_state(Some(A), &[C, D]);
    for _ in 0..2 {
        let now = fair.now();
        fair.wait(B, QUEUED);
        fair.assert_state(Some(A), &[B, C, D]);
        assert!(fair.timeout(B) >= (now + WAITER) as f64);
        assert!(fair.life(B) <= WAITER as f64);
    }
    fair.release(A);
    assert!(fair.ask(C, QUEUED).is_some());
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[C, D]);
}

#[test]
fn a_purged_waiter_that_lives_takes_what_is_free() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.set_timeout(B, 1);
    fair.release(A);
    assert!(fair.ask(D, NEW).is_some());
    fair.assert_state(None, &[C, D]);
    assert!(fair.ask(E, NEW).is_some());
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[C, D, E]);
}

// I2: a question that was sent before its waiter left, and comes after it.
#[test]
fn a_question_that_comes_after_its_waiter_has_left_makes_no_place() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    assert!(fair.leave(C));
    for late in [C, D] {
        let received = fair.acquire(late, C, [LEASE, WAITER], QUEUED).unwrap();
        assert_eq!(received, Some(PLACE_LOST));
        fair.assert_state(Some(A), &[B]);
    }
    fair.release(A);
    let received = fair.acquire(C, C, [LEASE, WAITER], QUEUED).unwrap();
    assert_eq!(received, Some(PLACE_LOST));
    fair.assert_state(None, &[B]);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[]);
}

// F3: nobody was heard of, so it was the server that slept, or all of them.
#[test]
fn places_that_ran_out_together_keep_their_order() {
    let waiters = many(6);
    let line: Vec<&str> = waiters.iter().map(String::as_str).collect();
    for first in [5, 2, 0] {
        let mut fair = Fair::start();
        fair.queued(&line);
        for ticket in &line {
            fair.set_timeout(ticket, 1);
        }
        // In whatever order they and others come.
        match first {
            2 => assert_eq!(fair.release(A), 0),
            0 => fair.wait("newcomer", NEW),
            _ => {}
        }
        for n in [first, 4, 1, 2, 3, 5, 0] {
            let received = fair.acquire(line[n], line[n], [LEASE, WAITER], QUEUED);
            if first == 2 && n == 0 {
                assert_eq!(received, Ok(None));
            } else {
                assert!(
                    received.unwrap().is_some_and(|received| received > 0),
                    "{n}"
                );
            }
        }
        let newcomer = (first == 0).then_some("newcomer");
        let line = line.iter().copied().chain(newcomer);
        let line: Vec<_> = line.skip(usize::from(first == 2)).collect();
        assert_eq!(fair.queue(), line);
    }
}

// F1
#[test]
fn a_line_of_the_dead_is_passed_after_a_third_of_a_waiter_lease() {
    let mut fair = Fair::start();
    for ticket in many(20) {
        fair.place(&ticket, 1);
    }
    for tries in [false, true] {
        let received = if tries {
            fair.try_once(B)
        } else {
            fair.ask(B, NEW)
        };
        let received = received.unwrap();
        assert!((1..=WAITER / 3 + 1).contains(&received), "{received}");
        assert_eq!(fair.queue().len(), 21);
    }
    fair.leave(B);
    // The time they were given is over, and nobody came.
    let head = fair.queue().remove(0);
    let over = fair.timeout(&head) - fair.now() as f64 + 1.0;
    let () = fair.server.ask(&[
        "ZINCRBY",
        &fair.timeouts_key(),
        &(-over.ceil()).to_string(),
        &head,
    ]);
    assert_eq!(fair.try_once(B), None);
    fair.assert_state(Some(B), &[]);
}

#[test]
fn those_of_one_client_come_back_in_the_order_in_which_they_came() {
    let mut fair = Fair::start();
    let waiters = many(5);
    let ours: Vec<&str> = waiters.iter().map(String::as_str).collect();
    fair.queued(&[&ours[..], &[C]].concat());
    for ticket in &ours {
        fair.set_timeout(ticket, 1);
    }
    fair.wait(C, QUEUED);
    assert_eq!(fair.queue(), [C]);
    for n in [3, 0, 4, 2, 1] {
        fair.wait(ours[n], QUEUED);
    }
    fair.assert_state(Some(A), &[&ours[..], &[C]].concat());
}

#[test]
fn one_that_never_queued_is_never_put_first() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.wait(D, NEW);
    assert_eq!(fair.queue(), [B, C, D]);
    fair.release(A);
    assert!(fair.ask(E, NEW).is_some());
    fair.assert_state(None, &[B, C, D, E]);
}

#[test]
fn one_that_queued_does_not_queue_to_try_once() {
    let mut fair = Fair::start();
    fair.queued(&[B]);
    let received = fair.acquire(C, C, [LEASE, 0], QUEUED).unwrap();
    assert_left(received.unwrap(), LEASE);
    fair.assert_state(Some(A), &[B]);
}

// R8
#[test]
fn a_queue_that_lost_its_places_gets_them_back() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    let () = fair.server.ask(&["DEL", &fair.queue_key()]);
    // A newcomer is there before they notice.
    fair.wait(E, NEW);
    for owner in [C, B, D, C, B] {
        fair.wait(owner, QUEUED);
    }
    fair.assert_state(Some(A), &[E, C, B, D]);
    // A timeout without a waiter does not cost the others their places.
    fair.set_timeout("gone", fair.now() + WAITER);
    for owner in [B, D, E, C] {
        fair.wait(owner, QUEUED);
        assert_eq!(fair.queue(), [E, C, B, D]);
    }
}

#[test]
fn the_last_place_lost_comes_back() {
    let mut fair = Fair::start();
    fair.queued(&[B]);
    let () = fair.server.ask(&["DEL", &fair.queue_key()]);
    fair.wait(B, QUEUED);
    fair.assert_state(Some(A), &[B]);
    let () = fair.server.ask(&["DEL", &fair.queue_key()]);
    fair.release(A);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[]);
}

#[test]
fn a_queue_that_lost_its_timeouts_keeps_its_order() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    let () = fair.server.ask(&["DEL", &fair.timeouts_key()]);
    for owner in [C, B, D, C] {
        fair.wait(owner, QUEUED);
    }
    fair.assert_state(Some(A), &[B, C, D]);
}

// R8: nor does one of ours that nobody hears of any more keep Redisson out for ever.
#[test]
fn places_that_lost_their_timeouts_get_new_ones_from_whoever_asks() {
    let mut fair = Fair::start();
    let waiters = many(1_200);
    fair.take(A);
    let () = fair.server.ask(&["RPUSH", &fair.queue_key(), JAVA]);
    for ticket in &waiters {
        fair.wait(ticket, NEW);
    }
    let line = fair.queue();
    let () = fair.server.ask(&["DEL", &fair.timeouts_key()]);
    fair.wait(&waiters[7], QUEUED);
    assert!(fair.queue() == line && fair.timed() == sorted(line.clone()));
    for ticket in &line[1..] {
        let life = fair.life(ticket);
        assert!(life > 0.0 && life <= (WAITER + REDISSON + STEP) as f64);
    }
}

#[test]
fn one_whose_timeout_was_lost_does_not_come_before_its_turn() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    fair.release(A);
    let () = fair.server.ask(&["DEL", &fair.timeouts_key()]);
    fair.set_timeout(B, fair.now() + WAITER);
    for owner in [C, D] {
        assert!(fair.ask(owner, QUEUED).is_some());
    }
    fair.assert_state(None, &[B, C, D]);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[C, D]);
}

#[test]
fn a_queue_that_lost_everything_serves_everybody_once() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    let () = fair
        .server
        .ask(&["DEL", &fair.queue_key(), &fair.timeouts_key()]);
    for owner in [D, C, B] {
        fair.wait(owner, QUEUED);
    }
    fair.assert_state(Some(A), &[B, C, D]);
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_acquire: how long a place lives
// ---------------------------------------------------------------------------------------------------------------------

// F2
#[test]
fn short_tries_do_not_add_up() {
    let mut fair = Fair::start();
    fair.take(A);
    let mut holder = A;
    for round in 0..300 {
        for owner in [B, C, D] {
            if owner == holder {
                continue;
            }
            if fair.ask(owner, NEW).is_none() {
                holder = owner;
                continue;
            }
            let life = fair.life(owner);
            assert!(life <= WAITER as f64, "round {round}: {life}");
        }
        if round % 7 == 0 {
            fair.leave([B, C, D][round % 3]);
        }
        if round % 5 == 0 {
            fair.release(holder);
        }
    }
    for ticket in fair.timed() {
        assert!(fair.life(&ticket) <= WAITER as f64);
    }
}

#[test]
fn a_refresh_never_lowers() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    for owner in [B, C] {
        let before = fair.timeout(owner);
        for waiter in [1, 10, WAITER / 2] {
            assert!(fair.acquire(owner, owner, [LEASE, waiter], QUEUED).is_ok());
            assert_eq!(fair.timeout(owner), before);
        }
    }
}

#[test]
fn places_of_more_than_a_minute_do_not_add_up() {
    const LONG: i64 = 120_000;
    let mut fair = Fair::start();
    fair.take(A);
    for ticket in many(10) {
        assert!(fair.acquire(&ticket, &ticket, [LEASE, LONG], NEW).is_ok());
        assert!(fair.life(&ticket) <= LONG as f64);
    }
    // Nor do they with shorter ones among them.
    for (n, waiter) in [WAITER, LONG].repeat(10).into_iter().enumerate() {
        let ticket = format!("{B}{n}");
        assert!(fair.acquire(&ticket, &ticket, [LEASE, waiter], NEW).is_ok());
        assert!(fair.life(&ticket) <= (LONG + WAITER + REDISSON + STEP + 1) as f64);
    }
}

// F5
#[test]
fn the_queues_keys_are_given_a_ttl_by_every_ask() {
    let mut fair = Fair::start();
    fair.queued(&[B]);
    for (owner, queued, waiter) in [
        (B, QUEUED, WAITER),
        (C, NEW, WAITER),
        (C, QUEUED, 3 * WAITER),
    ] {
        for key in [fair.queue_key(), fair.timeouts_key()] {
            let () = fair.server.ask(&["PERSIST", &key]);
        }
        assert!(fair.acquire(owner, owner, [LEASE, waiter], queued).is_ok());
        for key in [fair.queue_key(), fair.timeouts_key()] {
            assert_left(fair.server.pttl(&key), waiter + KEEP);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_acquire: next to Redisson
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_place_behind_redissons_outlives_its_taking() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    // It joined with the whole lease ahead of it, or just before the end.
    for left in [LEASE, 0] {
        fair.take(A);
        fair.place(JAVA, fair.now() + left + REDISSON);
        let sum = fair.timeout(JAVA);
        fair.wait(B, NEW);
        fair.wait(B, QUEUED);
        fair.assert_state(Some(A), &[JAVA, B]);
        assert_eq!(fair.timeout(JAVA), sum);
        // It may have been about to be given up when we came.
        assert!(fair.timeout(B) >= sum + (WAITER + REDISSON) as f64);
        assert!(fair.timeout(B) <= sum + (WAITER + REDISSON + STEP + 1) as f64);
        assert_eq!(fair.release(A), 1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(JAVA)]);
        let received = fair.ask(B, QUEUED).unwrap();
        assert_left(received, left + REDISSON);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(JAVA)]);
        fair.redisson_takes(JAVA, REDISSON);
        fair.wait(C, NEW);
        fair.assert_state(Some(JAVA), &[B, C]);
        assert_eq!(fair.release(JAVA), 1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(B)]);
        assert_eq!(fair.ask(B, QUEUED), None);
        fair.assert_state(Some(B), &[C]);
        fair.release(B);
        fair.leave(C);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
        fair.assert_state(None, &[]);
    }
}

// F6: each of them lowers all who wait behind it, and perhaps several do so before we ask again.
timed!(whatever_redisson_lowers_none_of_ours_is_passed_that_asks_again_and_again);
fn whatever_redisson_lowers_none_of_ours_is_passed_that_asks_again_and_again() {
    const JAVANS: [&str; 4] = [
        "5d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5:71",
        "5d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5:72",
        "6d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5:71",
        "6d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5:72",
    ];
    let [j, k, l, m] = JAVANS;
    let ours = ours(4);
    let [b, c, d, e] = [0, 1, 2, 3].map(|n| ours[n].as_str());
    let line = [j, b, k, l, c, d, m, e];
    // Where it does not matter who listens, and where only these do.
    let listeners: [Option<&[&str]>; 3] = [None, Some(&[]), Some(&[c, l])];
    for (wait, listeners) in [REDISSON, 20_000]
        .into_iter()
        .flat_map(|wait| listeners.map(|listeners| (wait, listeners)))
    {
        // All that a Java client may wait for before it is given up itself, but a step or two; before we come, before
        // the queue moves, and while it does.
        let steps = (LEASE + wait) / STEP - 3;
        for (come, held, turn) in [
            (0, 0, 0),
            (0, steps, steps),
            (steps, 0, 1),
            (steps / 2, steps / 2, 0),
        ] {
            let mut fair = Fair::start();
            fair.grace = listeners.map_or(0, |_| GRACE);
            let mut pubsub_con = fair.server.connection();
            let _pubsub = listen_for(&fair, &mut pubsub_con, listeners.unwrap_or(&[]));
            fair.take(A);
            let pass = |fair: &mut Fair, steps: i64| {
                for _ in 0..steps / 4 {
                    let times = fair.timed();
                    let mut javans = times.iter().filter(|it| JAVANS.contains(&it.as_str()));
                    if javans.any(|javan| fair.life(javan) < 6.0 * STEP as f64) {
                        break;
                    }
                    fair.age(4);
                    let () = fair.server.ask(&["PEXPIRE", "orders", &LEASE.to_string()]);
                    for ticket in fair.queue() {
                        if !JAVANS.contains(&ticket.as_str()) {
                            fair.wait(&ticket, QUEUED);
                        }
                    }
                }
            };
            for (n, ticket) in line.into_iter().enumerate() {
                if JAVANS.contains(&ticket) {
                    fair.redisson_joins(ticket, wait);
                } else {
                    fair.wait(ticket, NEW);
                }
                if n == 0 {
                    pass(&mut fair, come);
                }
            }
            pass(&mut fair, held);
            assert_eq!(fair.queue(), line);
            let mut holder = A;
            for (n, next) in line.into_iter().enumerate() {
                fair.release(holder);
                assert_eq!(fair.queue(), line[n..], "{wait} {come} {held} {turn}");
                if JAVANS.contains(&next) {
                    fair.redisson_takes(next, wait);
                } else {
                    // None of them has asked since the holder before the last.
                    assert_eq!(fair.acquire(next, next, [LEASE, WAITER], QUEUED), Ok(None));
                }
                holder = next;
                for other in &line[n + 1..] {
                    // It asks within its grace.
                    if fair.timeout(other).fract() == UNHEARD {
                        assert!(!JAVANS.contains(other));
                        fair.wait(other, QUEUED);
                    }
                    let life = fair.life(other);
                    assert!(
                        JAVANS.contains(other) || life > WAITER as f64 * 0.5,
                        "{wait} {come} {held} {turn}: {life} ms after {n}"
                    );
                }
                if next == j {
                    pass(&mut fair, turn);
                }
            }
        }
    }
}

#[test]
fn who_dies_behind_redisson_holds_the_queue_up_for_one_waiter_lease() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.take(A);
    fair.redisson_joins(JAVA, REDISSON);
    fair.wait(B, NEW);
    fair.wait(C, NEW);
    fair.release(A);
    fair.redisson_takes(JAVA, REDISSON);
    // While somebody has the lock there is no hurry.
    fair.wait(C, QUEUED);
    assert!(fair.life(B) > WAITER as f64);
    fair.release(JAVA);
    messages(&fair.server, &mut pubsub);
    let received = fair.ask(C, QUEUED).unwrap();
    assert!((1..=WAITER).contains(&received), "{received}");
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(B)]);
    assert!(fair.life(B) <= WAITER as f64);
    // Of its own accord it has no more than that either.
    fair.take_from(B);
    fair.wait(C, QUEUED);
    assert!(fair.life(C) <= WAITER as f64);
}

#[test]
fn one_whom_redisson_lowered_into_the_past_goes_back_to_the_head() {
    let mut fair = Fair::start();
    fair.queued(&[B]);
    let () = fair.server.ask(&["LPUSH", &fair.queue_key(), JAVA]);
    fair.set_timeout(JAVA, fair.now() + LEASE + REDISSON);
    fair.release(A);
    fair.redisson_takes(JAVA, REDISSON);
    assert!(fair.life(B) < 0.0);
    fair.wait(C, NEW);
    fair.assert_state(Some(JAVA), &[C]);
    fair.wait(B, QUEUED);
    fair.assert_state(Some(JAVA), &[B, C]);
}

#[test]
fn one_who_goes_back_to_the_head_does_not_follow_redissons_behind() {
    let mut fair = Fair::start();
    fair.queued(&[B]);
    fair.redisson_joins(JAVA, REDISSON);
    fair.set_timeout(B, 1);
    assert_left(fair.try_once(C).unwrap(), LEASE);
    fair.wait(B, QUEUED);
    fair.assert_state(Some(A), &[B, JAVA]);
    assert!(fair.life(B) <= WAITER as f64);
}

#[test]
fn a_place_of_redissons_behind_ours_is_left_as_it_is() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B]);
    fair.redisson_joins(JAVA, REDISSON);
    let sum = fair.timeout(JAVA);
    assert!(sum >= fair.timeout(B) + REDISSON as f64);
    fair.release(A);
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[JAVA]);
    assert_eq!(fair.timeout(JAVA), sum);
    messages(&fair.server, &mut pubsub);
    assert_eq!(fair.release(B), 1);
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(JAVA)]);
    fair.redisson_takes(JAVA, REDISSON);
    fair.assert_state(Some(JAVA), &[]);
}

#[test]
fn our_places_behind_redissons_do_not_add_up() {
    let mut fair = Fair::start();
    fair.take(A);
    // What the first of them may have waited for already is added once.
    let still = LEASE + WAITER + REDISSON + STEP + 1;
    let mut most = still;
    let mut holder = A.to_owned();
    let waiters = many(200);
    for (n, next) in waiters.iter().enumerate() {
        // Twice one of Redisson's comes along.
        if n == 0 || n == 100 {
            fair.redisson_joins(JAVA, REDISSON);
            most += REDISSON;
        }
        if let Some(received) = fair.ask(next, NEW) {
            assert!(received >= 0);
        }
        assert!(fair.life(next) <= most as f64, "{n}: {}", fair.life(next));
        // Five queue all the time.
        if n >= 5 {
            fair.release(&holder);
            holder = fair.queue().remove(0);
            if holder == JAVA {
                fair.redisson_takes(JAVA, REDISSON);
                most -= REDISSON;
            } else {
                assert_eq!(fair.ask(&holder, QUEUED), None);
            }
        }
    }
    assert_eq!(most, still);
    for ticket in fair.timed() {
        assert!(fair.life(&ticket) <= most as f64);
    }
}

#[test]
fn a_hold_of_redissons_blocks_and_is_left_alone() {
    let mut fair = Fair::start();
    as_redisson(&fair.server, "orders", JAVA, "1", LEASE);
    fair.wait(B, NEW);
    fair.assert_state(Some(JAVA), &[B]);
    assert_eq!(fair.release(B), -2);
    fair.assert_state(Some(JAVA), &[B]);
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_release
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn releasing_without_waiters_tells_nobody_whatever_the_name() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        fair.name = name.into();
        fair.take(A);
        assert_eq!(fair.release(A), 0, "{name:?}");
        assert_eq!(fair.release(A), -1, "{name:?}");
        fair.assert_state(None, &[]);
    }
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

#[test]
fn releasing_counts_who_heard() {
    let mut fair = Fair::start();
    let mut cons = [fair.server.connection(), fair.server.connection()];
    let mut open = Vec::new();
    let (for_b, for_c) = (fair.announced(B).0, fair.announced(C).0);
    fair.queued(&[B, C]);
    assert_eq!(fair.release(A), 0);
    for (pubsub_con, listeners) in cons.iter_mut().zip(1..) {
        let mut pubsub = pubsub_con.as_pubsub();
        pubsub.subscribe(&for_b).unwrap();
        pubsub.subscribe(&for_c).unwrap();
        open.push(pubsub);
        as_redisson(&fair.server, "orders", A, "1", LEASE);
        assert_eq!(fair.release(A), listeners);
    }
}

#[test]
fn releasing_ends_every_level_of_a_hold() {
    let mut fair = Fair::start();
    as_redisson(&fair.server, "orders", A, "3", LEASE);
    assert_eq!(fair.release(A), 0);
    fair.assert_state(None, &[]);
}

#[test]
fn releasing_twice_finds_nothing_and_tells_the_head_again() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C]);
    for reply in [1, -1, -1] {
        assert_eq!(fair.release(A), reply);
        fair.assert_state(None, &[B, C]);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(B)]);
    }
}

#[test]
fn releasing_what_somebody_else_holds_changes_and_tells_nothing() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C]);
    fair.set_timeout(B, 1);
    for owner in [D, C, B] {
        assert_eq!(fair.release(owner), -2);
        fair.assert_state(Some(A), &[B, C]);
    }
    as_redisson(&fair.server, "orders", E, "1", LEASE);
    assert_eq!(fair.release(E), 0);
    fair.assert_state(Some(A), &[B, C]);
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

#[test]
fn releasing_purges_the_dead_and_tells_the_first_who_lives() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C, D, E]);
    fair.set_timeout(B, 1);
    fair.drop_timeout(C);
    fair.set_timeout(E, 1);
    assert_eq!(fair.release(A), 1);
    fair.assert_state(None, &[D, E]);
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(D)]);
    // The last one is over too, and nobody could be behind it.
    fair.leave(E);
    messages(&fair.server, &mut pubsub);
    fair.set_timeout(D, 1);
    assert_eq!(fair.release(A), -1);
    fair.assert_state(None, &[]);
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_leave
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn leaving_gives_up_one_place_whatever_the_name() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        fair.name = name.into();
        fair.queued(&[B, C, D, E]);
        for (ticket, left) in [
            (C, [B, D, E].as_slice()),
            (E, &[B, D]),
            (B, &[D]),
            (D, &[]),
            (A, &[]),
        ] {
            assert_eq!(fair.leave(ticket), ticket != A, "{name:?}");
            fair.assert_state(Some(A), left);
            assert!(!fair.leave(ticket), "{name:?}");
            fair.assert_state(Some(A), left);
        }
        assert_eq!(messages(&fair.server, &mut pubsub), []);
        let () = fair.server.ask(&["DEL", name]);
    }
}

#[test]
fn leaving_a_free_lock_hands_the_wake_up_on() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C, D, E]);
    fair.release(A);
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(B)]);
    assert!(fair.leave(B));
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
    // Who is not there publishes as well: its first run's message may be lost.
    assert!(!fair.leave(B));
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
    assert!(fair.leave(D));
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
    fair.assert_state(None, &[C, E]);
    fair.set_timeout(C, 1);
    assert!(!fair.leave(D));
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(E)]);
    fair.assert_state(None, &[E]);
    assert!(fair.leave(E));
    fair.assert_state(None, &[]);
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

#[test]
fn leaving_purges_nobody_while_the_lock_is_held() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    fair.set_timeout(B, 1);
    fair.drop_timeout(D);
    assert!(fair.leave(C));
    assert_eq!(fair.queue(), [B, D]);
    // Late, but still there.
    assert!(fair.leave(B));
    assert_eq!(fair.queue(), [D]);
}

// R8: Redisson, which never purges a place without a timeout, would wait behind it for ever.
#[test]
fn leaving_takes_a_place_along_that_has_lost_its_timeout() {
    let mut fair = Fair::start();
    fair.queued(&[B, C, D]);
    let () = fair.server.ask(&["DEL", &fair.timeouts_key()]);
    for (ticket, left) in [(C, [B, D].as_slice()), (B, &[D]), (D, &[])] {
        assert!(fair.leave(ticket));
        assert_eq!(fair.queue(), left);
        assert!(!fair.leave(ticket));
        assert_eq!(fair.queue(), left);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// fair_force
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn forcing_frees_the_lock_and_tells_the_head_whatever_the_name() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        fair.name = name.into();
        fair.queued(&[B, C, D]);
        fair.set_timeout(B, 1);
        assert!(fair.force(), "{name:?}");
        fair.assert_state(None, &[C, D]);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
        assert!(!fair.force(), "{name:?}");
        fair.assert_state(None, &[C, D]);
        assert_eq!(messages(&fair.server, &mut pubsub), []);
        let () = fair
            .server
            .ask(&["DEL", &fair.queue_key(), &fair.timeouts_key()]);
    }
}

#[test]
fn forcing_frees_a_lock_of_several_owners_and_without_a_ttl() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let () = fair.server.ask(&["HSET", "orders", A, "2", JAVA, "1"]);
    assert!(fair.force());
    fair.assert_state(None, &[]);
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

#[test]
fn forcing_refuses_a_hash_that_is_not_a_lock() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for field in ["price", "1", "", ":1", "mode", "0b7e1c52:6f0a:1"] {
        fair.queued(&[B, C]);
        fair.set_timeout(B, 1);
        let () = fair.server.ask(&["HSET", "orders", field, "1"]);
        let before = fair.server.hgetall("orders");
        let err = fair.try_force::<i64>().unwrap_err();
        assert_eq!(err.code(), Some("WRONGTYPE"), "{field:?}: {err}");
        assert_eq!(fair.server.hgetall("orders"), before);
        assert_eq!(fair.queue(), [B, C]);
        let () = fair.server.ask(&["FLUSHALL"]);
    }
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiters that do not listen when they are notified
// ---------------------------------------------------------------------------------------------------------------------

// F1
timed!(a_hundred_that_do_not_listen_get_one_grace_and_the_first_that_does_hears);
fn a_hundred_that_do_not_listen_get_one_grace_and_the_first_that_does_hears() {
    type Notify = fn(&mut Fair);
    let ways: [(&str, Notify); 5] = [
        ("release", |fair| assert_eq!(fair.release(A), 1)),
        ("force", |fair| assert!(fair.force())),
        ("leave", |fair| {
            let () = fair.server.ask(&["DEL", "orders"]);
            fair.leave(E);
        }),
        ("ask", |fair| {
            let () = fair.server.ask(&["DEL", "orders"]);
            let received = fair.ask(D, QUEUED).unwrap();
            assert!((1..=fair.grace).contains(&received), "{received}");
        }),
        ("try once", |fair| {
            let () = fair.server.ask(&["DEL", "orders"]);
            let received = fair.try_once(E).unwrap();
            assert!((1..=fair.grace).contains(&received), "{received}");
        }),
    ];
    let dead = ours(100);
    let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
    for (way, notify) in ways {
        let mut fair = Fair::with_a_long_grace();
        let mut pubsub_con = fair.server.connection();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
        fair.queued(&[&dead[..], &[C, D]].concat());
        let kept = [C, D].map(|ticket| fair.timeout(ticket));
        let before = fair.now();
        notify(&mut fair);
        fair.assert_graces(&dead, before);
        assert_eq!(fair.queue().len(), 102, "{way}");
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
        assert_eq!(fair.timeout(C), kept[0], "{way}");
        assert!(fair.timeout(D) >= kept[1], "{way}");
        // It asks at once, and comes back once and for all when the grace is over.
        let received = fair.ask(C, QUEUED).unwrap();
        assert!((1..=fair.grace).contains(&received), "{way}: {received}");
        fair.end_graces();
        fair.take_from(C);
        fair.assert_state(Some(C), &[D]);
    }
}

timed!(a_grace_never_makes_a_place_last_longer_and_is_not_renewed);
fn a_grace_never_makes_a_place_last_longer_and_is_not_renewed() {
    let mut fair = Fair::with_a_grace();
    let line = ours(3);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    fair.queued(&line);
    let soon = fair.now() + GRACE / 2;
    fair.set_timeout(line[1], soon);
    assert_eq!(fair.release(A), 0);
    let first = fair.timeout(line[0]);
    for _ in 0..3 {
        assert_eq!(fair.release(A), -1);
        assert!(fair.ask(line[2], QUEUED).is_some());
        assert_eq!(fair.timeout(line[0]), first);
        assert_eq!(fair.timeout(line[1]), soon as f64);
    }
}

timed!(one_that_asks_within_the_grace_keeps_its_place_for_as_long_as_before);
fn one_that_asks_within_the_grace_keeps_its_place_for_as_long_as_before() {
    let mut fair = Fair::with_a_grace();
    let line = ours(4);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    fair.queued(&line);
    let before = fair.now();
    assert_eq!(fair.release(A), 0);
    fair.assert_graces(&line[..3], before);
    // Not its turn: it may just be that the first is about to subscribe as well.
    assert!(fair.ask(line[1], QUEUED).is_some());
    assert!(fair.timeout(line[1]) >= (before + WAITER) as f64);
    fair.take_from(line[0]);
    fair.end_graces();
    // While somebody has the lock nobody is in the way.
    fair.wait(line[3], QUEUED);
    fair.assert_state(Some(line[0]), &line[1..]);
    fair.release(line[0]);
    fair.take_from(line[1]);
    fair.assert_state(Some(line[1]), &line[2..]);
}

// F3
timed!(one_that_comes_after_its_grace_is_the_next_again);
fn one_that_comes_after_its_grace_is_the_next_again() {
    let mut fair = Fair::with_a_grace();
    let line = ours(2);
    fair.queued(&[&line[0], &line[1], C]);
    fair.release(A);
    fair.end_graces();
    fair.take_from(C);
    fair.wait(D, NEW);
    for ticket in [&line[1], &line[0]] {
        fair.wait(ticket, QUEUED);
    }
    fair.assert_state(Some(C), &[&line[0], &line[1], D]);
}

// As a Java client that is connected again: it does not ask, and its place cannot be refreshed.
timed!(one_that_listens_again_when_its_grace_is_over_has_time_to_ask);
fn one_that_listens_again_when_its_grace_is_over_has_time_to_ask() {
    for way in ["release", "ask"] {
        let mut fair = Fair::with_a_grace();
        let mut pubsub_con = fair.server.connection();
        fair.queued(&[JAVA, D]);
        let before = fair.now();
        assert_eq!(fair.release(A), 0);
        fair.assert_graces(&[JAVA], before);
        fair.end_graces();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, &[JAVA]);
        let before = fair.now();
        match way {
            "release" => assert_eq!(fair.release(A), -1),
            _ => assert!(fair.ask(D, QUEUED).is_some_and(|n| n <= GRACE)),
        }
        fair.assert_state(None, &[JAVA, D]);
        assert!(messages(&fair.server, &mut pubsub).contains(&fair.announced(JAVA)));
        fair.assert_graces(&[], before);
        assert!(fair.timeout(JAVA) >= (before + GRACE) as f64);
        assert!(fair.life(JAVA) <= GRACE as f64);
        // Once. It may be a process that was stopped.
        fair.set_timeout(JAVA, fair.now());
        fair.take_from(D);
        fair.assert_state(Some(D), &[]);
    }
}

// Redisson refreshes no place, and lowers those behind by the wait of the one that takes the lock.
timed!(from_redissons_first_place_on_only_the_head_gets_a_grace);
fn from_redissons_first_place_on_only_the_head_gets_a_grace() {
    let ours = ours(1).remove(0);
    for comes in [true, false] {
        let mut fair = Fair::with_a_grace();
        let mut pubsub_con = fair.server.connection();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
        fair.take(A);
        fair.redisson_joins(JAVA, REDISSON);
        fair.redisson_joins(OTHER, REDISSON);
        fair.wait(&ours, NEW);
        fair.wait(C, NEW);
        let sums = [OTHER, &ours, C].map(|ticket| fair.timeout(ticket));
        let before = fair.now();
        assert_eq!(fair.release(A), 1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
        fair.assert_graces(&[JAVA], before);
        let received = fair.ask(C, QUEUED).unwrap();
        assert!((1..=GRACE).contains(&received), "{received}");
        assert_eq!(fair.timeout(OTHER), sums[0]);
        assert_eq!(fair.timeout(&ours), sums[1]);
        assert!(fair.timeout(C) >= sums[2]);
        assert_eq!(fair.queue(), [JAVA, OTHER, &ours, C]);
        if comes {
            // Nobody loses anything by that.
            fair.redisson_takes(JAVA, REDISSON);
            assert!(fair.life(OTHER) > (REDISSON - WAITER) as f64);
            assert!(fair.life(&ours) > (REDISSON - WAITER) as f64);
            fair.wait(&ours, QUEUED);
            fair.wait(C, QUEUED);
            assert_eq!(fair.queue()[0], OTHER);
        } else {
            // Nor do the others come: each takes another grace.
            for next in [OTHER, &ours] {
                fair.end_graces();
                let before = fair.now();
                let received = fair.ask(C, QUEUED).unwrap();
                assert!((1..=GRACE).contains(&received), "{received}");
                assert_eq!(fair.queue()[0], next);
                fair.assert_graces(&[next], before);
            }
            fair.end_graces();
            fair.take_from(C);
            fair.assert_state(Some(C), &[]);
        }
    }
}

// F6: it and the one of Redisson's in front of it were about to subscribe.
timed!(who_asks_in_time_behind_redisson_is_not_passed_when_that_takes_the_lock);
fn who_asks_in_time_behind_redisson_is_not_passed_when_that_takes_the_lock() {
    let ours = ours(1).remove(0);
    for asks_first in [true, false] {
        let mut fair = Fair::with_a_grace();
        let mut pubsub_con = fair.server.connection();
        let _pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
        fair.take(A);
        fair.redisson_joins(JAVA, REDISSON);
        fair.wait(&ours, NEW);
        fair.wait(C, NEW);
        assert_eq!(fair.release(A), 1);
        if asks_first {
            assert!(fair.ask(&ours, QUEUED).is_some());
        }
        fair.redisson_takes(JAVA, REDISSON);
        assert!(fair.life(&ours) > 0.5 * WAITER as f64);
        fair.wait(C, QUEUED);
        assert_eq!(fair.queue(), [&*ours, C]);
    }
}

// It asks without a pause until the lock is its own, and so do its neighbours.
timed!(redissons_waiters_are_woken_out_of_turn_only_if_nobody_else_listens);
fn redissons_waiters_are_woken_out_of_turn_only_if_nobody_else_listens() {
    let ours = ours(2);
    for (line, listeners, woken) in [
        (&[JAVA, OTHER, C][..], &[OTHER, C][..], C),
        (&[JAVA, OTHER, &ours[0]], &[OTHER], OTHER),
        (&[&ours[0], JAVA, C], &[JAVA, C], C),
        (&[&ours[0], JAVA, OTHER, &ours[1]], &[JAVA, OTHER], JAVA),
    ] {
        let mut fair = Fair::with_a_grace();
        let mut pubsub_con = fair.server.connection();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, listeners);
        fair.take(A);
        for ticket in line {
            if [JAVA, OTHER].contains(ticket) {
                fair.redisson_joins(ticket, REDISSON);
            } else {
                fair.wait(ticket, NEW);
            }
        }
        let before = fair.now();
        assert_eq!(fair.release(A), 1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(woken)]);
        fair.assert_graces(&line[..1], before);
    }
    let mut fair = Fair::with_a_grace();
    fair.take(A);
    for n in 0..50 {
        fair.redisson_joins(&JAVA.replace(":71", &format!(":{}", 1000 + n)), REDISSON);
    }
    assert_eq!(fair.release(A), 0);
    assert_eq!(fair.server.calls("publish"), 2);
}

// Where one of ours has come back to the head of the queue, and may hold the lock for long.
timed!(redissons_grace_ends_when_somebody_takes_the_lock);
fn redissons_grace_ends_when_somebody_takes_the_lock() {
    let mut fair = Fair::with_a_grace();
    let mut pubsub_con = fair.server.connection();
    let _pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
    fair.queued(&[B]);
    fair.redisson_joins(JAVA, REDISSON);
    fair.wait(C, NEW);
    fair.set_timeout(B, 1);
    let before = fair.now();
    fair.release(A);
    fair.assert_graces(&[JAVA], before);
    fair.take_from(B);
    fair.assert_graces(&[], before);
    assert!(fair.life(JAVA) > LEASE as f64);
    assert_eq!(fair.queue(), [JAVA, C]);
}

timed!(who_joins_behind_redissons_last_place_finds_no_grace_in_it);
fn who_joins_behind_redissons_last_place_finds_no_grace_in_it() {
    let mut fair = Fair::with_a_grace();
    let mut pubsub_con = fair.server.connection();
    let _pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
    fair.take(A);
    fair.redisson_joins(JAVA, REDISSON);
    fair.wait(C, NEW);
    let before = fair.now();
    fair.release(A);
    fair.assert_graces(&[JAVA], before);
    assert!(fair.leave(C));
    fair.redisson_joins(OTHER, REDISSON);
    fair.redisson_takes(JAVA, REDISSON);
    assert!(fair.life(OTHER) > LEASE as f64);
}

// Each of them would notify all that are in front of it.
timed!(those_who_ask_during_a_grace_notify_only_the_head);
fn those_who_ask_during_a_grace_notify_only_the_head() {
    let mut fair = Fair::with_a_long_grace();
    let line = ours(500);
    let far = fair.now() + WAITER;
    fair.places(&line, far);
    assert_eq!(fair.release(A), -1);
    let before = fair.server.calls("publish");
    for ticket in &line[450..] {
        let received = fair.ask(ticket, QUEUED).unwrap();
        assert!((1..=fair.grace).contains(&received), "{received}");
    }
    assert_eq!(fair.server.calls("publish") - before, 50);
}

timed!(places_without_any_timeouts_are_no_error);
fn places_without_any_timeouts_are_no_error() {
    let mut fair = Fair::with_a_grace();
    for ticket in ours(200) {
        let () = fair.server.ask(&["RPUSH", &fair.queue_key(), &ticket]);
    }
    assert_eq!(fair.release(A), -1);
    assert!(!fair.leave(A));
    assert_eq!(fair.queue().len(), 200);
}

// Nobody waits for it, and if it is Redisson's the next one of Redisson's builds on it.
timed!(the_last_place_gets_no_grace_but_for_those_who_try_once);
fn the_last_place_gets_no_grace_but_for_those_who_try_once() {
    let ours = ours(1).remove(0);
    for (ticket, graced) in [(ours.as_str(), true), (JAVA, false)] {
        let mut fair = Fair::with_a_grace();
        fair.queued(&[ticket]);
        let kept = fair.timeout(ticket);
        assert_eq!(fair.release(A), 0);
        assert!(!fair.leave(A));
        as_redisson(&fair.server, "orders", A, "1", LEASE);
        assert!(fair.force());
        assert_eq!(fair.timeout(ticket), kept);
        let received = fair.try_once(B).unwrap();
        assert_eq!(received <= GRACE, graced, "{received}");
        assert_eq!(fair.timeout(ticket) < kept, graced);
        fair.end_graces();
        assert_eq!(fair.try_once(B).is_none(), graced);
    }
}

timed!(nobody_gets_a_grace_where_it_is_not_known_who_listens);
fn nobody_gets_a_grace_where_it_is_not_known_who_listens() {
    let line = ours(3);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    for mute in [false, true] {
        let mut fair = Fair::start();
        if mute {
            fair.grace = GRACE;
            forbid_channels(&fair.server, &mut fair.con);
        }
        fair.queued(&line);
        let kept: Vec<_> = line.iter().map(|ticket| fair.timeout(ticket)).collect();
        assert_eq!(fair.release(A), 0);
        fair.leave(A);
        assert!(fair.ask(D, NEW).is_some_and(|left| left > WAITER / 2));
        assert!(fair.try_once(E).is_some_and(|left| left > WAITER / 2));
        as_redisson(&fair.server, "orders", A, "1", LEASE);
        assert!(fair.force());
        let now: Vec<_> = line.iter().map(|ticket| fair.timeout(ticket)).collect();
        assert_eq!(now, kept);
    }
}

// F3: where nobody showed a sign of life, they get the time that they always got.
timed!(places_that_ran_out_together_are_not_ended_sooner);
fn places_that_ran_out_together_are_not_ended_sooner() {
    let mut fair = Fair::with_a_grace();
    let line = ours(4);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    fair.queued(&line);
    for ticket in &line {
        fair.set_timeout(ticket, 1);
    }
    assert_eq!(fair.release(A), 0);
    for n in [2, 3, 1, 2] {
        let received = fair.ask(line[n], QUEUED).unwrap();
        assert!(received > WAITER / 4, "{received}");
        assert_eq!(fair.queue(), line);
    }
    fair.take_from(line[0]);
}

timed!(hundreds_that_do_not_listen_get_their_grace_in_portions);
fn hundreds_that_do_not_listen_get_their_grace_in_portions() {
    let mut fair = Fair::with_a_long_grace();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
    let dead = ours(300);
    let far = fair.now() + WAITER;
    fair.places(&dead, far);
    fair.place(C, far + 1);
    for left in [301, 173, 45] {
        assert_eq!(fair.release(A), -1);
        assert_eq!(fair.queue().len(), left);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
        let received = fair.ask(C, QUEUED).unwrap();
        assert!((1..=fair.grace).contains(&received), "{received}");
        // It would wake itself again and again.
        assert_eq!(messages(&fair.server, &mut pubsub), []);
        let () = fair
            .server
            .ask(&["ZADD", &fair.timeouts_key(), &(far + 1).to_string(), C]);
        fair.end_graces();
    }
    fair.take_from(C);
    assert_eq!(fair.queue().len(), 0);
}

/// The argument of a connection that was made so many tenths of a second ago, and is young.
fn young(tenths: i64) -> i64 {
    -1 - tenths
}

// One whose connection is older may give a grace.
timed!(a_young_connection_gives_no_grace_and_notifies_the_first_that_listens);
fn a_young_connection_gives_no_grace_and_notifies_the_first_that_listens() {
    type Notify = fn(&mut Fair);
    let ways: [(&str, Notify, &str); 3] = [
        ("release", |fair| assert_eq!(fair.release(A), 1), C),
        ("force", |fair| assert!(fair.force()), C),
        // It passes no more than a few.
        (
            "leave",
            |fair| {
                let () = fair.server.ask(&["DEL", "orders"]);
                fair.leave(E);
            },
            D,
        ),
    ];
    let dead = ours(100);
    let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
    for (way, notify, woken) in ways {
        let mut fair = Fair::start();
        fair.grace = young(0);
        let mut pubsub_con = fair.server.connection();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, &[C, D]);
        fair.queued(&[&dead[..], &[C, D]].concat());
        let before = fair.now();
        notify(&mut fair);
        assert_eq!(
            messages(&fair.server, &mut pubsub),
            [fair.announced(woken)],
            "{way}"
        );
        for asker in [C, D] {
            let received = fair.ask(asker, QUEUED).unwrap();
            assert!(received > WAITER / 2, "{way}: {received}");
            assert_eq!(messages(&fair.server, &mut pubsub), []);
        }
        fair.assert_graces(&[], before);
        assert_eq!(fair.queue().len(), 102, "{way}");
        fair.grace = GRACE;
        let before = fair.now();
        assert!(fair.ask(C, QUEUED).is_some_and(|left| left <= GRACE));
        fair.assert_graces(&dead, before);
    }
}

// F3: after an outage nobody listens, and some are connected sooner than others.
timed!(a_young_connection_ends_no_grace_that_began_before_it_was_made);
fn a_young_connection_ends_no_grace_that_began_before_it_was_made() {
    let line = ours(2);
    let line = [line[0].as_str(), line[1].as_str(), C];
    for (made, over, keeps) in [
        (young(0), 1, true),
        // Some of the grace was before, none of it, and all has been over for as long as a place lives.
        (young(4), 1, true),
        (young(7), 1, false),
        (young(0), WAITER - 2_000, true),
        (young(0), WAITER + 1, false),
    ] {
        for way in ["ask", "release"] {
            let mut fair = Fair::with_a_grace();
            let mut pubsub_con = fair.server.connection();
            let mut pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
            fair.queued(&line);
            let before = fair.now();
            assert_eq!(fair.release(A), 1);
            fair.assert_graces(&line[..2], before);
            for dead in &line[..2] {
                let at = format!("{:.10}", (fair.now() - over) as f64 + UNHEARD);
                let () = fair.server.ask(&["ZADD", &fair.timeouts_key(), &at, dead]);
            }
            messages(&fair.server, &mut pubsub);
            fair.grace = made;
            if way == "release" {
                assert_eq!(fair.release(A), -1);
                assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
                assert_eq!(
                    fair.queue().len(),
                    if keeps { 3 } else { 1 },
                    "{made} {over}"
                );
            }
            let received = fair.ask(C, QUEUED);
            assert_eq!(received, keeps.then_some(GRACE), "{made} {over}");
            if keeps {
                assert_eq!(fair.queue(), line);
                fair.take_from(line[0]);
            }
        }
    }
}

// Each of them would notify all that do not listen.
timed!(those_who_leave_during_a_grace_notify_a_few_and_the_latest);
fn those_who_leave_during_a_grace_notify_a_few_and_the_latest() {
    for grace in [WAITER / 2, young(0)] {
        let mut fair = Fair::start();
        fair.grace = grace;
        let mut pubsub_con = fair.server.connection();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, &[C]);
        let line = ours(300);
        let far = fair.now() + WAITER;
        fair.places(&line, far);
        fair.place(C, far + 1);
        assert_eq!(fair.release(A), -1);
        let before = fair.server.calls("publish");
        for ticket in &line[250..] {
            messages(&fair.server, &mut pubsub);
            assert!(fair.leave(ticket));
            assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
        }
        // One of each that is counted says that all is published.
        let published = fair.server.calls("publish") - before - 2 * 50;
        assert!(published <= 20 * 50, "{published}");
    }
}

timed!(of_many_the_latest_is_notified_and_one_of_redissons_if_nobody_else_listens);
fn of_many_the_latest_is_notified_and_one_of_redissons_if_nobody_else_listens() {
    let ours = ours(200);
    for (listeners, woken) in [(&[JAVA, C][..], C), (&[JAVA], JAVA)] {
        let mut fair = Fair::with_a_grace();
        let mut pubsub_con = fair.server.connection();
        let mut pubsub = listen_for(&fair, &mut pubsub_con, listeners);
        let far = fair.now() + WAITER;
        fair.place(D, far);
        fair.place(JAVA, far);
        for ticket in &ours {
            fair.place(ticket, far);
        }
        fair.place(C, far + 1);
        assert_eq!(fair.release(A), -1);
        assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(woken)]);
    }
}

// It cannot refresh its place, as one of ours can.
#[test]
fn redissons_head_has_its_own_time_also_behind_ours() {
    let ours = ours(1).remove(0);
    let mut fair = Fair::start();
    fair.take(A);
    fair.redisson_joins(JAVA, REDISSON);
    fair.wait(&ours, NEW);
    fair.redisson_joins(OTHER, REDISSON);
    assert!(fair.timeout(OTHER).fract() >= 1.0 / 1024.0);
    fair.wait(C, NEW);
    fair.release(A);
    fair.redisson_takes(JAVA, REDISSON);
    fair.release(JAVA);
    fair.take_from(&ours);
    fair.release(&ours);
    for _ in 0..2 {
        let received = fair.ask(C, QUEUED).unwrap();
        assert!(received > REDISSON - WAITER / 2, "{received}");
        assert!(fair.life(OTHER) <= REDISSON as f64);
    }
    fair.redisson_takes(OTHER, REDISSON);
    fair.wait(C, QUEUED);
    fair.assert_state(Some(OTHER), &[C]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Served by their process
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn whoever_takes_a_place_hears_who_is_directly_ahead() {
    let mut fair = Fair::start();
    fair.take(A);
    assert_eq!(fair.ahead, None);
    let mut last = "";
    for next in [B, C, "{", D] {
        fair.wait(next, NEW);
        assert_eq!(fair.ahead.as_deref(), Some(last));
        // Only then.
        fair.wait(next, QUEUED);
        assert_eq!(fair.ahead, None);
        fair.wait(next, NEW);
        assert_eq!(fair.ahead, None);
        last = next;
    }
    fair.try_once(E);
    assert_eq!(fair.ahead, None);
    // Nor one that comes back: it is not at the end.
    fair.leave(B);
    fair.wait(B, QUEUED);
    assert_eq!(fair.ahead, None);
    fair.release(A);
    assert!(fair.ask(E, NEW).is_some());
    assert_eq!(fair.ahead.as_deref(), Some(D));
}

#[test]
fn served_places_are_removed_before_anything_else() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    // By one that takes a place, and is the first then.
    fair.queued(&[B, C]);
    fair.served = vec![B.into(), C.into()];
    fair.wait(D, NEW);
    assert_eq!(fair.ahead.as_deref(), Some(""));
    fair.assert_state(Some(A), &[D]);
    // By one that asks again, and those that are gone already are no harm, nor are any in the middle.
    fair.served = vec![];
    fair.wait(B, NEW);
    fair.wait(E, NEW);
    fair.served = vec![C.into(), B.into(), "nobody".into()];
    fair.wait(E, QUEUED);
    fair.assert_state(Some(A), &[D, E]);
    // By the release, which notifies who is the first then.
    fair.served = vec![D.into()];
    assert_eq!(fair.release(A), 1);
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(E)]);
    fair.assert_state(None, &[E]);
    // By the grant.
    fair.served = vec![];
    assert!(fair.ask(B, NEW).is_some());
    fair.served = vec![E.into()];
    assert_eq!(fair.ask(B, QUEUED), None);
    fair.assert_state(Some(B), &[]);
    // By a release that comes twice or late.
    fair.served = vec![];
    fair.wait(C, NEW);
    fair.served = vec![C.into()];
    assert_eq!(fair.release(D), -2);
    fair.assert_state(Some(B), &[]);
    assert_eq!(fair.release(B), 0);
    assert_eq!(fair.release(B), -1);
    fair.assert_state(None, &[]);
}

#[test]
fn several_places_are_given_up_at_once_and_the_next_is_notified() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C, D, E]);
    // While the lock is held nobody is notified.
    assert_eq!(fair.try_leave_all::<i64>(&[C, "nobody", B]), Ok(2));
    fair.assert_state(Some(A), &[D, E]);
    let () = fair.server.ask(&["DEL", &fair.name]);
    assert_eq!(fair.try_leave_all::<i64>(&[D]), Ok(1));
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(E)]);
    // The second time nothing is removed, and the next is notified again.
    assert_eq!(fair.try_leave_all::<i64>(&[D, B]), Ok(0));
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(E)]);
    fair.assert_state(None, &[E]);
}

// Redisson never purges such a place, and nobody of this library asks for it again.
#[test]
fn a_served_place_without_a_timeout_is_removed_as_well() {
    for by in ["acquire", "release", "leave"] {
        let mut fair = Fair::start();
        fair.queued(&[B, C]);
        fair.drop_timeout(B);
        fair.served = vec![B.into()];
        match by {
            "acquire" => fair.wait(D, NEW),
            "release" => assert_eq!(fair.release(A), 0),
            _ => assert!(fair.leave(B)),
        }
        assert!(!fair.queue().contains(&B.to_owned()), "{by}");
    }
}

#[test]
fn a_waiter_whose_place_was_removed_as_served_asks_in_vain() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.served = vec![B.into()];
    fair.release(A);
    fair.served = vec![];
    let late = fair.acquire(B, B, [LEASE, WAITER], QUEUED).unwrap();
    assert_eq!(late, Some(PLACE_LOST));
    fair.take_from(C);
    fair.assert_state(Some(C), &[]);
}

// Redisson's timeouts are sums, and none of ours is one of their terms.
#[test]
fn removing_served_places_leaves_the_timeouts_of_others_as_they_are() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.redisson_joins(JAVA, REDISSON);
    fair.wait(D, NEW);
    let kept = [JAVA, D].map(|ticket| fair.timeout(ticket));
    fair.served = vec![B.into(), C.into()];
    assert_eq!(fair.release(A), 0);
    assert_eq!([JAVA, D].map(|ticket| fair.timeout(ticket)), kept);
    fair.served = vec![];
    fair.redisson_takes(JAVA, REDISSON);
    assert!(fair.life(D) > 0.5 * WAITER as f64);
    fair.assert_state(Some(JAVA), &[D]);
}

// ---------------------------------------------------------------------------------------------------------------------
// All of them
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn values_of_another_type_are_refused_and_everything_is_kept() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let keys = ["orders".to_owned(), fair.queue_key(), fair.timeouts_key()];
    let dumps = |fair: &Fair| -> Vec<Option<Vec<u8>>> {
        let dump = |key: &String| fair.server.ask(&["DUMP", key]);
        keys.iter().map(dump).collect()
    };
    for bad in &keys {
        for make in [
            ["SET", bad, "v"].as_slice(),
            &["SADD", bad, A],
            &["XADD", bad, "1-1", A, "1"],
            &["RPUSH", bad, B],
            &["ZADD", bad, "1", B],
            &["HSET", bad, A, "1"],
        ] {
            let own = ["HSET", "RPUSH", "ZADD"];
            if keys.iter().zip(own).any(|own| own == (bad, make[0])) {
                continue;
            }
            // A head that any of them would purge, were it not for that.
            fair.queued(&[B, C]);
            fair.set_timeout(B, 1);
            let () = fair.server.ask(&["DEL", bad]);
            fair.server.cli(make);
            let before = dumps(&fair);
            for owner in [A, D, B, C] {
                // Who leaves only asks whether there is a lock, and here neither A nor D stands in the queue.
                let lenient = bad == "orders";
                if lenient && (owner == B || owner == C) {
                    continue;
                }
                for (script, outcome) in fair.run_each(owner) {
                    if lenient && script == "leave" {
                        outcome.unwrap();
                        continue;
                    }
                    let err = outcome.unwrap_err();
                    assert_eq!(err.code(), Some("WRONGTYPE"), "{script} on {make:?}: {err}");
                }
                assert_eq!(dumps(&fair), before, "{make:?}");
            }
            let () = fair.server.ask(&["FLUSHALL"]);
        }
    }
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

#[test]
fn a_read_write_lock_is_refused_and_kept() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let () = fair.server.ask(&["HSET", "orders", "mode", "read", A, "1"]);
    fair.place(B, 1);
    let before = fair.server.hgetall("orders");
    for (owner, queued) in [(B, NEW), (B, QUEUED), (C, NEW), (C, QUEUED)] {
        for waiter in [WAITER, 0] {
            let asked = fair.acquire(owner, owner, [LEASE, waiter], queued);
            let err = asked.unwrap_err();
            assert_eq!(err.code(), Some("WRONGTYPE"), "{err}");
        }
    }
    assert_eq!(fair.release(C), -2);
    assert_eq!(fair.server.hgetall("orders"), before);
    assert_eq!(fair.queue(), [B]);
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

#[test]
fn a_user_without_rights_on_the_channel_gets_everything_but_messages() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    forbid_channels(&fair.server, &mut fair.con);
    fair.queued(&[B, C, D]);
    assert_eq!(fair.release(A), 0);
    assert_eq!(fair.release(A), -1);
    assert!(fair.ask(C, QUEUED).is_some());
    assert!(fair.leave(D));
    fair.assert_state(None, &[B, C]);
    assert_eq!(fair.ask(B, QUEUED), None);
    assert!(fair.force());
    fair.assert_state(None, &[C]);
    assert_eq!(messages(&fair.server, &mut pubsub), []);
}

// L6
#[test]
fn a_lock_that_cannot_be_given_a_ttl_is_not_taken_and_the_place_kept() {
    let mut fair = Fair::start();
    fair.queued(&[B, C]);
    fair.release(A);
    assert!(fair.acquire(B, B, [i64::MAX, WAITER], QUEUED).is_err());
    fair.assert_state(None, &[B, C]);
    forbid(&fair.server, &mut fair.con, "pexpire");
    assert!(fair.acquire(B, B, [LEASE, WAITER], QUEUED).is_err());
    fair.assert_state(None, &[B, C]);
}

#[test]
fn a_place_that_cannot_be_given_a_timeout_is_purged() {
    let mut fair = Fair::start();
    fair.take(A);
    assert!(fair.acquire(B, B, [LEASE, i64::MAX], NEW).is_err());
    fair.wait(C, NEW);
    fair.assert_state(Some(A), &[C]);
    fair.leave(C);
    let mut willing = fair.server.connection();
    forbid(&fair.server, &mut fair.con, "zadd");
    assert!(fair.acquire(B, B, [LEASE, WAITER], NEW).is_err());
    std::mem::swap(&mut fair.con, &mut willing);
    fair.wait(C, NEW);
    fair.assert_state(Some(A), &[C]);
}

#[test]
fn out_of_memory_nobody_takes_or_queues_and_waiters_keep_their_places() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C]);
    out_of_memory(&fair.server);
    let refused = |outcome: RedisResult<Option<i64>>| {
        let err = outcome.unwrap_err();
        assert_eq!(err.code(), Some("OOM"), "{err}");
    };
    refused(fair.acquire(D, D, [LEASE, WAITER], NEW));
    fair.assert_state(Some(A), &[B, C]);
    let before = fair.now();
    fair.wait(C, QUEUED);
    assert!(fair.timeout(C) >= (before + WAITER) as f64);
    fair.assert_state(Some(A), &[B, C]);
    assert_left(fair.try_once(D).unwrap(), LEASE);
    assert_eq!(fair.release(A), 1);
    refused(fair.acquire(B, B, [LEASE, WAITER], QUEUED));
    fair.assert_state(None, &[B, C]);
    assert!(fair.leave(B));
    fair.assert_state(None, &[C]);
    assert!(fair.leave(C));
    refused(fair.acquire(D, D, [LEASE, WAITER], NEW));
    fair.assert_state(None, &[]);
    assert_eq!(
        messages(&fair.server, &mut pubsub),
        [fair.announced(B), fair.announced(C)]
    );
}

#[test]
fn out_of_memory_the_head_hears_of_a_lock_that_is_forced() {
    let mut fair = Fair::start();
    let mut pubsub_con = fair.server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    fair.queued(&[B, C]);
    fair.set_timeout(B, 1);
    out_of_memory(&fair.server);
    assert!(fair.force());
    fair.assert_state(None, &[C]);
    assert_eq!(messages(&fair.server, &mut pubsub), [fair.announced(C)]);
}
