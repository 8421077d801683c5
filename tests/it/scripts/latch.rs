//! The scripts of the count-down latch, by bare EVALSHA: replies, and the keys, marks, TTLs and messages left.

use std::collections::HashMap;

use redis::{Connection, FromRedisValue, RedisResult};

use crate::support::latch::{COUNT_DOWN, DELETE, NO_COUNTS, SET, STATE, channel};
use crate::support::permits::suffixed;
use crate::support::scripts::{
    NAMES, assert_left, forbid, forbid_channels, listen_to_all, messages, out_of_memory,
};
use crate::support::{Server, scripts};

const ROUND_MS: i64 = 24 * 3600 * 1000;
const OPEN_ROUND_MS: i64 = 60_000;
const KEEP_MS: i64 = 60_000;

/// A latch by name, and a connection to run scripts on it.
struct Bare {
    name: String,
    con: Connection,
}

impl Bare {
    fn new(server: &Server, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            con: server.connection(),
        }
    }

    fn request(&self, id: &str) -> String {
        suffixed(&self.name, &format!("request:{id}"))
    }

    fn run<T: FromRedisValue>(&mut self, script: &str, id: &str, more: &[&str]) -> RedisResult<T> {
        let (round, request) = (suffixed(&self.name, "round"), self.request(id));
        let channel = channel(&self.name);
        let keys = [self.name.as_str(), &round, &channel, &request];
        let round_ms = if script == SET {
            ROUND_MS
        } else {
            OPEN_ROUND_MS
        };
        let (round_ms, keep_ms) = (round_ms.to_string(), KEEP_MS.to_string());
        let mut args = vec![id, &round_ms, &keep_ms];
        args.extend(more);
        scripts::run(&mut self.con, script, &keys, &args)
    }

    #[track_caller]
    fn set(&mut self, id: &str, count: &str) -> i64 {
        self.run(SET, id, &[count]).unwrap()
    }

    #[track_caller]
    fn count_down(&mut self, id: &str) -> i64 {
        self.run(COUNT_DOWN, id, &[]).unwrap()
    }

    #[track_caller]
    fn delete(&mut self, id: &str) -> i64 {
        self.run(DELETE, id, &[]).unwrap()
    }

    fn try_state(&mut self) -> RedisResult<Option<(String, String)>> {
        let keys = [self.name.as_str(), &suffixed(&self.name, "round")];
        scripts::run(&mut self.con, STATE, &keys, &[])
    }

    #[track_caller]
    fn state(&mut self) -> Option<(String, String)> {
        self.try_state().unwrap()
    }

    /// One run of each script, with what it said.
    fn run_each(&mut self) -> [(&'static str, RedisResult<()>); 4] {
        [
            ("set", self.run::<i64>(SET, "s", &["3"]).map(drop)),
            (
                "count_down",
                self.run::<i64>(COUNT_DOWN, "c", &[]).map(drop),
            ),
            ("delete", self.run::<i64>(DELETE, "d", &[]).map(drop)),
            ("state", self.try_state().map(drop)),
        ]
    }
}

fn some(count: &str, mark: &str) -> Option<(String, String)> {
    Some((count.to_owned(), mark.to_owned()))
}

#[test]
fn setting_leaves_a_count_and_a_mark_whatever_the_name() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut latch = Bare::new(&server, name);
        assert_eq!(latch.state(), None);
        assert_eq!(latch.set("u:1", "3"), 1, "{name:?}");
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(name), "1".to_owned())]
        );
        assert_eq!(latch.state(), some("3", "u:1"));
        let mut keys = [
            name.to_owned(),
            suffixed(name, "round"),
            latch.request("u:1"),
        ];
        keys.sort();
        assert_eq!(server.keys(), keys);
        assert_eq!(server.pttl(name), -1);
        assert_left(server.pttl(&suffixed(name, "round")), ROUND_MS);
        assert_left(server.pttl(&latch.request("u:1")), KEEP_MS);
        // A count that stands is left alone, by this request and by a second run of the first.
        assert_eq!(latch.set("u:2", "5"), 0);
        assert_eq!(latch.set("u:1", "3"), 1);
        assert_eq!(latch.state(), some("3", "u:1"));
        assert_eq!(messages(&server, &mut pubsub), []);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn counting_down_tells_of_zero_and_of_nothing_else() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut latch = Bare::new(&server, name);
        server.cli(&["SET", name, "3", "PX", "50000"]);
        for (id, left) in [("u:1", "2"), ("u:2", "1")] {
            // Twice is once.
            assert_eq!((latch.count_down(id), latch.count_down(id)), (1, 1));
            assert_eq!(latch.state(), some(left, ""), "{name:?}");
            assert_left(server.pttl(name), 50_000);
        }
        assert_eq!(messages(&server, &mut pubsub), []);
        assert_eq!((latch.count_down("u:3"), latch.count_down("u:3")), (1, 1));
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(name), "0".to_owned())]
        );
        assert_eq!(latch.state(), None);
        assert_eq!(
            server.ask::<String>(&["GET", &suffixed(name, "round")]),
            "u:3"
        );
        assert_left(server.pttl(&suffixed(name, "round")), OPEN_ROUND_MS);
        assert_left(server.pttl(&latch.request("u:3")), KEEP_MS);
        // An open latch is left alone.
        assert_eq!(latch.count_down("u:4"), 0);
        assert_eq!(latch.state(), None);
        assert_eq!(messages(&server, &mut pubsub), []);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn a_count_below_one_is_open_and_goes_in_silence() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut latch = Bare::new(&server, "open");
    for (n, left) in ["0", "-1", "-9223372036854775"].into_iter().enumerate() {
        server.cli(&["SET", "open", left]);
        assert_eq!(latch.state(), some(left, ""));
        assert_eq!(latch.set(&format!("s{n}"), "3"), 0);
        assert_eq!(latch.count_down(&format!("c{n}")), 0);
        assert_eq!(latch.state(), None);
    }
    assert_eq!(messages(&server, &mut pubsub), []);
    assert!(!server.exists("{open}:round"));
}

#[test]
fn deleting_tells_and_marks() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    for name in NAMES {
        let mut latch = Bare::new(&server, name);
        assert_eq!(latch.delete("u:0"), 0);
        assert_eq!(messages(&server, &mut pubsub), []);
        assert!(!server.exists(&suffixed(name, "round")));
        server.cli(&["SET", name, "3"]);
        assert_eq!(latch.delete("u:1"), 1);
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(name), "1".to_owned())]
        );
        assert_eq!(
            server.ask::<String>(&["GET", &suffixed(name, "round")]),
            "u:1"
        );
        assert_left(server.pttl(&suffixed(name, "round")), OPEN_ROUND_MS);
        // A copy that comes late does not end the next round, nor does one that had found nothing.
        assert_eq!(latch.set("u:2", "3"), 1);
        assert_eq!((latch.delete("u:0"), latch.delete("u:1")), (0, 1));
        assert_eq!(latch.state(), some("3", "u:2"));
        assert_eq!(messages(&server, &mut pubsub).len(), 1);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn copies_that_come_late_meet_the_next_round_and_leave_it_alone() {
    let server = Server::start();
    let mut latch = Bare::new(&server, "late");
    assert_eq!(latch.count_down("nothing to count"), 0);
    assert_eq!(latch.set("first", "1"), 1);
    assert_eq!(latch.set("refused", "1"), 0);
    assert_eq!(latch.count_down("last"), 1);
    // It is open again.
    assert_eq!((latch.set("first", "1"), latch.set("refused", "1")), (1, 0));
    assert_eq!(latch.state(), None);
    assert_eq!(latch.set("second", "2"), 1);
    assert_eq!(latch.count_down("nothing to count"), 0);
    assert_eq!(latch.count_down("last"), 1);
    assert_eq!(latch.state(), some("2", "second"));
}

#[test]
fn a_request_takes_an_answered_one_along() {
    let server = Server::start();
    let mut con = server.connection();
    for (script, more) in [(SET, Some("3")), (COUNT_DOWN, None), (DELETE, None)] {
        server.cli(&["SET", "answered", "1"]);
        let keys = ["latch", "round", "channel", script, "answered"];
        let args: Vec<_> = ["mark", "1000", "1000"].into_iter().chain(more).collect();
        assert_eq!(
            scripts::run::<i64>(&mut con, script, &keys, &args).unwrap(),
            1
        );
        assert!(!server.exists("answered"));
        assert!(server.exists(script));
    }
}

#[test]
fn what_is_no_count_is_refused_and_left_as_it_was() {
    let server = Server::start();
    let mut latch = Bare::new(&server, "odd");
    let refused = |latch: &mut Bare, what: &str| {
        for (verb, said) in latch.run_each() {
            let err = said.expect_err(verb);
            assert_eq!(err.code(), Some("WRONGTYPE"), "{verb} of {what:?}: {err}");
        }
        assert_eq!(server.keys(), ["odd"], "{what:?}");
    };
    for value in NO_COUNTS {
        server.cli(&["SET", "odd", value]);
        refused(&mut latch, value);
        assert_eq!(server.ask::<String>(&["GET", "odd"]), value);
    }
    for (make, kind) in [
        (["HSET", "odd", "a", "1"].as_slice(), "hash"),
        (&["RPUSH", "odd", "1"], "list"),
        (&["SADD", "odd", "1"], "set"),
    ] {
        server.cli(&["DEL", "odd"]);
        server.cli(make);
        refused(&mut latch, kind);
        assert_eq!(server.ask::<String>(&["TYPE", "odd"]), kind);
    }
}

#[test]
fn without_the_right_to_publish_counts_are_right_still() {
    let server = Server::start();
    let mut latch = Bare::new(&server, "deaf");
    forbid_channels(&server, &mut latch.con);
    assert_eq!(latch.set("u:1", "1"), 1);
    assert_eq!(latch.count_down("u:2"), 1);
    assert_eq!(latch.state(), None);
    assert_eq!(latch.set("u:3", "2"), 1);
    assert_eq!(latch.delete("u:4"), 1);
    assert_eq!(latch.state(), None);
}

#[test]
fn a_server_without_memory_counts_nothing_and_deletes() {
    let server = Server::start();
    let mut latch = Bare::new(&server, "full");
    assert_eq!(latch.set("u:1", "2"), 1);
    out_of_memory(&server);
    let said = latch.run::<i64>(COUNT_DOWN, "u:2", &[]).unwrap_err();
    assert_eq!(said.code(), Some("OOM"));
    assert_eq!(latch.state(), some("2", "u:1"));
    assert_eq!(latch.delete("u:3"), 1);
    assert_eq!(latch.state(), None);
    let said = latch.run::<i64>(SET, "u:4", &["2"]).unwrap_err();
    assert_eq!(said.code(), Some("OOM"));
    assert_eq!(latch.state(), None);
}

#[test]
fn a_right_that_is_missing_leaves_nothing_half_done() {
    let server = Server::start();
    let mut latch = Bare::new(&server, "hasty");
    server.cli(&["SET", "hasty", "2"]);
    forbid(&server, &mut latch.con, "set");
    for (script, more) in [(SET, &["3"][..]), (COUNT_DOWN, &[])] {
        assert!(latch.run::<i64>(script, "u:1", more).is_err());
        assert_eq!(server.get_int("hasty"), 2);
        assert_eq!(server.keys(), ["hasty"]);
    }
}

/// What a latch should be, told in a few lines.
#[derive(Default)]
struct Model {
    left: Option<i64>,
    mark: String,
    answers: HashMap<String, i64>,
    received: Vec<String>,
}

impl Model {
    fn run(&mut self, verb: u64, id: &str, count: i64) -> i64 {
        if let Some(answer) = self.answers.get(id) {
            return *answer;
        }
        let answer = match (verb, self.left) {
            (0, None) => {
                self.left = Some(count);
                Some("1")
            }
            (1, Some(1)) => {
                self.left = None;
                Some("0")
            }
            (2, Some(_)) => {
                self.left = None;
                Some("1")
            }
            (1, Some(left)) if left > 1 => {
                self.left = Some(left - 1);
                Some("")
            }
            (1, _) => {
                self.left = None;
                None
            }
            _ => None,
        };
        if let Some(received) = answer.filter(|received| !received.is_empty()) {
            self.mark = id.to_owned();
            self.received.push(received.to_owned());
        }
        let answer = i64::from(answer.is_some());
        self.answers.insert(id.to_owned(), answer);
        answer
    }
}

#[test]
fn whatever_is_run_in_whatever_order_it_counts_like_the_model() {
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let mut latch = Bare::new(&server, "model");
    let mut model = Model::default();
    let mut state = 20_261_121_u64;
    let mut dice = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for step in 0..4_000_u64 {
        // One in three is a copy of a request of the last few, perhaps of none yet.
        let n = if dice(3) == 0 {
            step.saturating_sub(dice(12))
        } else {
            step
        };
        // The verb belongs to the request.
        let verb = match (n.wrapping_mul(0x9E37_79B9) >> 7) % 7 {
            verb @ (0 | 2) => verb,
            _ => 1,
        };
        let (id, count) = (format!("u:{n}"), 1 + (n % 4).cast_signed());
        let said = match verb {
            0 => latch.set(&id, &count.to_string()),
            1 => latch.count_down(&id),
            _ => latch.delete(&id),
        };
        assert_eq!(said, model.run(verb, &id, count), "step {step}, {id}");
        let wanted = model
            .left
            .map(|left| (left.to_string(), model.mark.clone()));
        assert_eq!(latch.state(), wanted, "step {step}, {id}");
        if dice(40) == 0 {
            // By Redisson, or by hand.
            let left = [0, -2, 3][usize::try_from(dice(3)).unwrap()];
            server.cli(&["SET", "model", &left.to_string()]);
            model.left = Some(left);
        }
        if step % 500 == 0 {
            let heard = messages(&server, &mut pubsub);
            let received: Vec<_> = heard.into_iter().map(|(_, received)| received).collect();
            assert_eq!(received, std::mem::take(&mut model.received));
        }
    }
}
