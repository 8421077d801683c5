//! The scripts of the fair lock, as a table: the call, its reply, the holder, the queue, and who was notified.

use redis::{Connection, PubSub, RedisResult, Value};

use crate::support::scripts::{
    LEASE, NAMES, REQUEST, as_redisson, channel, forbid, forbid_channels, listen_to_all, messages,
    out_of_memory, run,
};
use crate::support::{Server, lua, timed};

/// The waiter lease.
const WAITER: i64 = 3_000;

/// How much each place in the queue adds to the timeouts of the places behind it.
const WAIT: i64 = 300_000;

/// The names of our owners in the table, then those of Java threads.
const OURS: &str = "abcdefgh";
const JAVA: &str = "jk";

fn ticket(letter: char) -> String {
    let client = match JAVA.contains(letter) {
        true => "5d1c7a3e-0f2b-4c6d-8e9f-a0b1c2d3e4f5",
        false => "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b5c6d",
    };
    format!("{client}:{}", u32::from(letter))
}

/// The names of some owners.
fn letters(tickets: impl IntoIterator<Item = String>) -> String {
    let all = || OURS.chars().chain(JAVA.chars());
    let letter = |of: &str| all().find(|letter| *of == ticket(*letter)).unwrap_or('?');
    tickets.into_iter().map(|ticket| letter(&ticket)).collect()
}

/// A server and one fair lock on it.
struct Fair<'a> {
    server: &'a Server,
    con: Connection,
    told: PubSub<'a>,
    name: String,
}

impl<'a> Fair<'a> {
    fn new(server: &'a Server, listener: &'a mut Connection, name: &str) -> Self {
        server.cli(&["FLUSHALL"]);
        Self {
            server,
            con: server.connection(),
            told: listen_to_all(listener),
            name: name.to_owned(),
        }
    }

    /// The lock, the queue, the timeouts, the signs of life and the channel.
    fn keys(&self) -> [String; 5] {
        let beside = |kind| channel(&self.name).replacen("redisson_lock__channel", kind, 1);
        [
            self.name.clone(),
            beside("redisson_lock_queue"),
            beside("redisson_lock_timeout"),
            beside("redisson_lock_alive"),
            channel(&self.name),
        ]
    }

    fn script(&mut self, script: &str, args: &[&str]) -> RedisResult<Value> {
        let mut keys = self.keys().to_vec();
        if script == lua::FAIR_FORCE {
            keys.push(REQUEST.to_owned());
        }
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let waiter = WAITER.to_string();
        run(&mut self.con, script, &keys, &[&[&*waiter], args].concat())
    }

    fn acquire(&mut self, place: &str, of: char) -> RedisResult<Value> {
        let lease = LEASE.to_string();
        self.script(lua::FAIR_ACQUIRE, &[&ticket(of), &lease, place])
    }

    /// Lets the hold end after 25 s, less than the lease.
    fn keep(&mut self, of: char) -> i64 {
        let [lock, queue, _, _, channel] = self.keys();
        let args = [&*ticket(of), "25000", "fair"];
        run(
            &mut self.con,
            lua::LOCK_KEEP,
            &[&lock, &channel, &queue],
            &args,
        )
        .unwrap()
    }

    fn scores(&self, key: &str) -> Vec<(String, f64)> {
        self.server.ask(&["ZRANGE", key, "0", "-1", "WITHSCORES"])
    }

    fn queue(&self) -> Vec<String> {
        self.server.ask(&["LRANGE", &self.keys()[1], "0", "-1"])
    }

    fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = self.server.ask(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    /// Ages all places by so many milliseconds.
    fn pass(&self, ms: i64) {
        let [_, _, timeouts, alive, _] = self.keys();
        for key in [timeouts, alive] {
            for (ticket, at) in self.scores(&key) {
                let () = self
                    .server
                    .ask(&["ZADD", &key, &(at - ms as f64).to_string(), &ticket]);
            }
        }
    }

    // The changes that Redisson's scripts make.

    fn java_joins(&self, of: char) {
        let [lock, queue, timeouts, ..] = self.keys();
        let now = self.now();
        let last = self.queue().pop();
        let ahead = match last {
            Some(last) => self.server.ask::<i64>(&["ZSCORE", &timeouts, &last]),
            None => now + self.server.pttl(&lock),
        };
        let at = (ahead + WAIT).to_string();
        let () = self.server.ask(&["ZADD", &timeouts, &at, &ticket(of)]);
        let () = self.server.ask(&["RPUSH", &queue, &ticket(of)]);
    }

    fn java_takes(&self, of: char) {
        let [lock, queue, timeouts, ..] = self.keys();
        assert_eq!(self.queue().first(), Some(&ticket(of)));
        let () = self.server.ask(&["LPOP", &queue]);
        let () = self.server.ask(&["ZREM", &timeouts, &ticket(of)]);
        for (other, _) in self.scores(&timeouts) {
            let () = self
                .server
                .ask(&["ZINCRBY", &timeouts, &(-WAIT).to_string(), &other]);
        }
        as_redisson(self.server, &lock, &ticket(of), "1", LEASE);
    }

    /// Runs the call of a row, and returns its reply.
    fn step(&mut self, call: &str) -> String {
        let (verb, of) = call.split_once(' ').unwrap_or((call, ""));
        let first = of.chars().next().unwrap_or('?');
        let keys = self.keys();
        let reply = match verb {
            "new" | "has" | "last" | "none" => self.acquire(verb, first),
            "release" => self.script(lua::FAIR_RELEASE, &[&ticket(first)]),
            "keep" => return self.keep(first).to_string(),
            "refresh" => {
                let all: Vec<_> = of.chars().map(ticket).collect();
                let all: Vec<_> = all.iter().map(String::as_str).collect();
                let lost = self.script(lua::FAIR_REFRESH, &all).unwrap();
                return letters(redis::from_redis_value::<Vec<String>>(lost).unwrap());
            }
            "force" => {
                let forced = self.script(lua::FAIR_FORCE, &[&LEASE.to_string()]);
                self.server.cli(&["DEL", REQUEST]);
                forced
            }
            "pass" => {
                return {
                    self.pass(of.parse().unwrap());
                    String::new()
                };
            }
            "joins" => {
                return {
                    self.java_joins(first);
                    String::new()
                };
            }
            "takes" => {
                return {
                    self.java_takes(first);
                    String::new()
                };
            }
            "delete" => {
                let at = ["lock", "queue", "timeouts", "alive"]
                    .iter()
                    .position(|ticket| *ticket == of);
                self.server.cli(&["DEL", &keys[at.unwrap()]]);
                return String::new();
            }
            // The timeouts in the order of the queue: seconds from now, rounded to tens.
            "timeouts" => {
                let now = self.now() as f64;
                let at = |ticket: &String| self.server.ask::<f64>(&["ZSCORE", &keys[2], ticket]);
                let seconds = |ticket| ((at(ticket) - now) / 10_000.0).round() * 10.0;
                let all: Vec<_> = self
                    .queue()
                    .iter()
                    .map(|ticket| seconds(ticket).to_string())
                    .collect();
                return all.join(" ");
            }
            _ => panic!("{call}"),
        };
        match reply.unwrap() {
            Value::Nil => "taken".into(),
            Value::Int(-3) => "lost".into(),
            Value::Int(-2) if verb != "release" => "free".into(),
            Value::Int(ms) if ms > 9 => {
                assert!((LEASE - 10_000..=LEASE).contains(&ms), "{call}: {ms}");
                "busy".into()
            }
            reply => redis::from_redis_value::<i64>(reply).unwrap().to_string(),
        }
    }

    /// The holder, the queue, and who was notified; checks what holds in every state.
    fn state(&mut self) -> [String; 3] {
        let [lock, queue, timeouts, alive, channel] = self.keys();
        let holders = self.server.hgetall(&lock).into_iter();
        let holders = letters(holders.map(|(owner, _)| owner));
        let line = self.queue();
        let timed = self.scores(&timeouts);
        let by_timeout: Vec<_> = timed.iter().map(|(ticket, _)| ticket).collect();
        assert!(
            line.len() != timed.len() || by_timeout.iter().eq(&line.iter().collect::<Vec<_>>())
        );
        for (ticket, _) in self.scores(&alive) {
            assert!(
                ticket.is_empty() || line.is_empty() || line.contains(&ticket),
                "{ticket}"
            );
        }
        for key in [&lock, &alive] {
            assert!(
                !self.server.exists(key) || self.server.pttl(key) > 0,
                "{key}"
            );
        }
        // Only a place of ours gives the queue a TTL.
        let has_ours = line
            .iter()
            .any(|at| OURS.chars().any(|of| *at == ticket(of)));
        for key in [&queue, &timeouts] {
            let fits = match self.server.pttl(key) {
                -1 => !has_ours,
                left_ms => left_ms == -2 || line.is_empty() || has_ours && left_ms > WAITER,
            };
            assert!(fits, "{key} lives {} ms: {line:?}", self.server.pttl(key));
        }
        let told =
            messages(self.server, &mut self.told)
                .into_iter()
                .map(|(to_channel, payload)| {
                    assert_eq!(payload, "0");
                    to_channel
                        .strip_prefix(&format!("{channel}:"))
                        .unwrap()
                        .to_owned()
                });
        [holders, letters(line), letters(told)]
    }

    fn play(&mut self, title: &str, rows: &[&str]) {
        for row in rows {
            let mut cells = row.split('|').map(str::trim);
            let call = cells.next().unwrap();
            let expected: Vec<_> = cells.collect();
            let reply = self.step(call);
            let [holder, queue, told] = self.state();
            let got = [reply, holder, queue, told];
            assert_eq!(got, *expected, "{title}: {row}");
        }
    }
}

/// Each row: call | reply | holder | queue | who was notified.
const TABLE: &[(&str, &[&str])] = &[
    (
        "the next waiter learns that a hold ends earlier",
        &[
            "new a  | taken | a | |",
            "keep a | 0     | a | |",
            "keep a | 0     | a | |",
            "delete lock | | | |",
            "new a  | taken | a | |",
            "new b  | busy  | a | b |",
            "new c  | busy  | a | bc |",
            "keep a | 0     | a | bc | b",
            "keep a | 0     | a | bc |",
            "keep b | -2    | a | bc |",
        ],
    ),
    (
        "a late sign of life gives the queue of Java's threads no end",
        &[
            "new a     | taken | a | |",
            "new b     | busy  | a | b |",
            "joins j   |       | a | bj |",
            "release b | -2    | a | j |",
            "refresh b | b     | a | j |",
        ],
    ),
    (
        "they are served in the order in which they came",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "has c     | busy  | a | bc |",
            "release a | 1     |   | bc | b",
            "has c     | free  |   | bc |",
            "new d     | free  |   | bcd|",
            "has b     | taken | b | cd |",
            "release b | 1     |   | cd | c",
            "has c     | taken | c | d  |",
            "release c | 1     |   | d  | d",
            "has d     | taken | d |    |",
            "release d | 0     |   |    |",
        ],
    ),
    (
        "one attempt takes no place, and no turn",
        &[
            "none a    | taken | a |    |",
            "none b    | busy  | a |    |",
            "new c     | busy  | a | c  |",
            "release a | 1     |   | c  | c",
            "none b    | free  |   | c  |",
            "has c     | taken | c |    |",
        ],
    ),
    (
        "a request that comes twice",
        &[
            "new a     | taken | a |    |",
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new b     | busy  | a | b  |",
            "release a | 1     |   | b  | b",
            "release a | -1    |   | b  | b",
            "has b     | taken | b |    |",
            "has b     | taken | b |    |",
            "release a | -2    | b |    |",
            "release b | 0     |   |    |",
            "release b | -1    |   |    |",
        ],
    ),
    (
        "what comes late makes no place and takes nothing",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "release b | -2    | a |    |",
            "has b     | lost  | a |    |",
            "last b    | lost  | a |    |",
            "refresh b | b     | a |    |",
            "release a | 0     |   |    |",
            "has b     | lost  |   |    |",
            "has a     | lost  |   |    |",
            "refresh ab| ab    |   |    |",
        ],
    ),
    (
        "one release ends a hold and a place alike, and the next is notified",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "new d     | busy  | a | bcd|",
            "release c | -2    | a | bd |",
            "release a | 1     |   | bd | b",
            "release b | -1    |   | d  | d",
            "release d | -1    |   |    |",
        ],
    ),
    (
        "who waits for a moment only makes way for those behind, unless somebody holds the lock",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "new d     | busy  | a | bcd|",
            "last c    | busy  | a | bcd|",
            "release a | 1     |   | bcd| b",
            "last c    | lost  |   | bd | b",
            "last b    | taken | b | d  |",
            "last d    | busy  | b | d  |",
        ],
    ),
    (
        "the dead are removed wherever they are",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "new d     | busy  | a | bcd|",
            "new e     | busy  | a | bcde|",
            "pass 1000 |       | a | bcde|",
            "refresh ce|       | a | bcde|",
            "pass 1000 |       | a | bcde|",
            "refresh ce|       | a | bcde|",
            "pass 1100 |       | a | bcde|",
            "release a | 1     |   | ce | c",
            "has b     | lost  |   | ce |",
            "has d     | lost  |   | ce |",
            "has c     | taken | c | e  |",
        ],
    ),
    (
        "one that asks is alive",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "pass 1000 |       | a | bc |",
            "has c     | busy  | a | bc |",
            "pass 1000 |       | a | bc |",
            "has c     | busy  | a | bc |",
            "pass 1100 |       | a | bc |",
            "none d    | busy  | a | c  |",
        ],
    ),
    (
        "signs of life keep the queue moving",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "delete lock |     |   | bc |",
            "pass 1000 |       |   | bc |",
            "refresh c |       |   | bc | b",
            "pass 1000 |       |   | bc |",
            "refresh c |       |   | bc | b",
            "pass 1100 |       |   | bc |",
            "refresh c |       |   | c  | c",
        ],
    ),
    (
        "where all signs of life ran out together, Redis was away: nobody loses a place",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "pass 60000|       | a | bc |",
            "release a | 1     |   | bc | b",
            "pass 2900 |       |   | bc |",
            "refresh c |       |   | bc | b",
            "has b     | taken | b | c  |",
        ],
    ),
    (
        "that happens once: those who all died are removed",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "pass 60000|       | a | bc |",
            "none d    | busy  | a | bc |",
            "release a | 1     |   | bc | b",
            "pass 2000 |       |   | bc |",
            "none d    | free  |   | bc |",
            "pass 1000 |       |   | bc |",
            "none d    | taken | d |    |",
        ],
    ),
    (
        "and again once somebody has shown a sign of life",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "pass 60000|       | a | bc |",
            "refresh b |       | a | bc |",
            "pass 60000|       | a | bc |",
            "release a | 1     |   | bc | b",
            "has c     | free  |   | bc |",
        ],
    ),
    (
        "timeouts are Redisson's: what is left of the lease, and 300 s for each place",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "new d     | busy  | a | bcd|",
            "timeouts  | 330 630 930 | a | bcd |",
            "release c | -2    | a | bd |",
            "timeouts  | 330 630 | a | bd |",
            "release a | 1     |   | bd | b",
            "has b     | taken | b | d  |",
            "timeouts  | 330   | b | d  |",
        ],
    ),
    (
        "in one queue with Java",
        &[
            "new a     | taken | a |    |",
            "joins j   |       | a | j  |",
            "new b     | busy  | a | jb |",
            "joins k   |       | a | jbk|",
            "timeouts  | 330 630 930 | a | jbk |",
            "release a | 1     |   | jbk| j",
            "has b     | free  |   | jbk|",
            "takes j   |       | j | bk |",
            "timeouts  | 330 630 | j | bk |",
            "pass 2000 |       | j | bk |",
            "refresh b |       | j | bk |",
            "delete lock |     |   | bk |",
            "has b     | taken | b | k  |",
            "timeouts  | 330   | b | k  |",
            "release b | 1     |   | k  | k",
            "new c     | free  |   | kc |",
            "refresh c |       |   | kc | k",
        ],
    ),
    (
        "Java's dead are removed when their timeouts have passed, at the head",
        &[
            "new a     | taken | a |    |",
            "joins j   |       | a | j  |",
            "joins k   |       | a | jk |",
            "pass 299000 |     | a | jk |",
            "release a | 1     |   | jk | j",
            "pass 32000|       |   | jk |",
            "none b    | free  |   | k  |",
        ],
    ),
    (
        "a place of ours that waits for long is put off for Redisson, with all behind it",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "joins j   |       | a | bj |",
            "new c     | busy  | a | bjc|",
            "pass 200000 |     | a | bjc|",
            "timeouts  | 130 430 730 | a | bjc |",
            "refresh bc|       | a | bjc|",
            "timeouts  | 430 730 1030 | a | bjc |",
        ],
    ),
    (
        "a lock that is taken away is the next one's",
        &[
            "force     | 0     |   |    |",
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "force     | 1     |   | b  | b",
            "release a | -1    |   | b  | b",
            "has b     | taken | b |    |",
        ],
    ),
    (
        "a queue that was deleted is joined anew",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "delete queue |    | a |    |",
            "refresh bc| bc    | a |    |",
            "new d     | busy  | a | d  |",
            "has b     | lost  | a | d  |",
        ],
    ),
    (
        "timeouts that were deleted are made anew, and signs of life",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "new c     | busy  | a | bc |",
            "delete timeouts | | a | bc |",
            "refresh bc|       | a | bc |",
            "timeouts  | 300 600 | a | bc |",
            "delete alive |    | a | bc |",
            "refresh c |       | a | bc |",
            "has b     | busy  | a | bc |",
            "release a | 1     |   | bc | b",
            "delete queue |    |   |    |",
            "delete timeouts | |   |    |",
            "new d     | taken | d |    |",
        ],
    ),
];

timed!(the_table_of_the_fair_lock);
fn the_table_of_the_fair_lock() {
    let (server, mut listener) = (Server::start(), None);
    for (title, rows) in TABLE {
        let listener = listener.insert(server.connection());
        Fair::new(&server, listener, "orders").play(title, rows);
    }
}

#[test]
fn whatever_the_name() {
    let (server, mut listener) = (Server::start(), None);
    for name in NAMES {
        let listener = listener.insert(server.connection());
        let (title, rows) = TABLE[0];
        Fair::new(&server, listener, name).play(title, rows);
    }
}

/// All waiters but the last are dead, and a single call removes them.
#[test]
fn many_dead_are_removed_at_once() {
    let (server, mut listener) = (Server::start(), None);
    let mut fair = Fair::new(&server, listener.insert(server.connection()), "orders");
    fair.play(
        "b waits",
        &["new a | taken | a | |", "new b | busy | a | b |"],
    );
    let [_, queue, timeouts, alive, _] = fair.keys();
    // Three requests: b's place lasts for a second.
    let dead: Vec<String> = (0..200).map(|n| format!("c:{n}")).collect();
    let mut push = vec!["LPUSH", &queue];
    push.extend(dead.iter().map(String::as_str));
    let () = server.ask(&push);
    for moments in [&timeouts, &alive] {
        let mut add = vec!["ZADD", moments];
        add.extend(dead.iter().flat_map(|ticket| ["1", ticket]));
        let () = server.ask(&add);
    }
    assert_eq!(fair.step("release a"), "1");
    assert_eq!(fair.step("has b"), "taken");
    assert!(fair.queue().is_empty());
}

#[test]
fn values_of_another_type_are_refused_and_kept() {
    let (server, mut listener) = (Server::start(), None);
    let mut fair = Fair::new(&server, listener.insert(server.connection()), "orders");
    let calls: [(&str, &[&str]); 4] = [
        (lua::FAIR_ACQUIRE, &["u:1", "1000", "new"]),
        (lua::FAIR_RELEASE, &["u:1"]),
        (lua::FAIR_REFRESH, &["u:1"]),
        (lua::FAIR_FORCE, &["1000"]),
    ];
    for (n, key) in fair.keys().iter().take(4).enumerate() {
        for (script, args) in calls {
            server.cli(&["FLUSHALL"]);
            server.cli(&["SET", key, "theirs"]);
            // A refresh does not read the lock.
            if n > 0 || script != lua::FAIR_REFRESH {
                let refused = fair.script(script, args).unwrap_err();
                assert_eq!(refused.code(), Some("WRONGTYPE"), "{key}: {refused:?}");
            }
            assert_eq!(server.keys(), std::slice::from_ref(key));
            assert_eq!(server.ask::<String>(&["GET", key]), "theirs");
        }
    }
    server.cli(&["FLUSHALL"]);
    // A read-write lock without a reader.
    server.cli(&["HSET", "orders", "mode", "read"]);
    for (script, args) in [calls[0], calls[3]] {
        let refused = fair.script(script, args).unwrap_err();
        assert_eq!(refused.code(), Some("WRONGTYPE"));
    }
    assert_eq!(server.keys(), ["orders"]);
}

#[test]
fn without_rights_on_the_channel_only_messages_are_missing() {
    let (server, mut listener) = (Server::start(), None);
    let mut fair = Fair::new(&server, listener.insert(server.connection()), "orders");
    forbid_channels(&server, &mut fair.con);
    fair.play(
        "deaf",
        &[
            "new a     | taken | a |    |",
            "new b     | busy  | a | b  |",
            "release a | 0     |   | b  |",
            "refresh b |       |   | b  |",
            "has b     | taken | b |    |",
        ],
    );
}

#[test]
fn a_lock_that_cannot_be_given_a_ttl_is_not_taken_and_the_place_is_kept() {
    let (server, mut listener) = (Server::start(), None);
    let mut fair = Fair::new(&server, listener.insert(server.connection()), "orders");
    fair.play(
        "b waits",
        &[
            "new a | taken | a | |",
            "new b | busy | a | b |",
            "release a | 1 | | b | b",
        ],
    );
    forbid(&server, &mut fair.con, "pexpire");
    assert!(fair.acquire("has", 'b').is_err());
    assert_eq!(fair.state(), ["", "b", ""]);
}

#[test]
fn out_of_memory_nobody_joins_and_everybody_can_leave() {
    let (server, mut listener) = (Server::start(), None);
    for away in ["pass 0", "pass 60000"] {
        let listener = listener.insert(server.connection());
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        let mut fair = Fair::new(&server, listener, "orders");
        fair.play(
            "two wait",
            &[
                "new a | taken | a | |",
                "new b | busy | a | b |",
                "new c | busy | a | bc |",
            ],
        );
        fair.step(away);
        out_of_memory(&server);
        assert!(fair.acquire("new", 'd').is_err() || away != "pass 0");
        let end: &[&str] = match away {
            "pass 0" => &["release b | -2 | a | c |", "release a | 1 | | c | c"],
            _ => &["release a | 1 | | bc | b"],
        };
        if away != "pass 0" {
            fair.step("release d");
        }
        fair.play(away, end);
    }
}

#[test]
fn a_late_request_of_a_waiter_leaves_a_kept_hold_as_it_is() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = Fair::new(&server, &mut listener, "orders");
    assert_eq!(lock.acquire("new", 'a'), Ok(Value::Nil));
    assert_eq!(lock.keep('a'), 0);
    for late in ["has", "last"] {
        assert_eq!(lock.acquire(late, 'a'), Ok(Value::Int(-3)), "{late}");
        assert!(server.pttl("orders") <= 25_000);
    }
}

// The connection of the first copy was given up, and delivered it when the owner had locked again with a longer lease.
#[test]
fn a_late_request_of_a_holder_does_not_shorten_its_lease() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = Fair::new(&server, &mut listener, "orders");
    for place in ["new", "has", "last", "none"] {
        assert_eq!(lock.acquire("new", 'a'), Ok(Value::Nil));
        server.cli(&["HSET", "orders", &ticket('a'), "2"]);
        server.cli(&["PEXPIRE", "orders", "600000"]);
        assert_eq!(lock.acquire(place, 'a'), Ok(Value::Nil), "{place}");
        assert!(server.pttl("orders") > 500_000, "{place}");
        let held: u64 = server.ask(&["HGET", "orders", &ticket('a')]);
        assert_eq!(held, 2, "{place}");
        server.cli(&["DEL", "orders"]);
    }
}
