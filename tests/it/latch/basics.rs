//! The count-down latch: its scripts by bare EVALSHA, what Redisson's clients see of it, who is woken by what, what becomes
//! of lost requests and messages, and many rounds in a row.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, RedisResult};
use redlatch::{CancelToken, Client, Config, Error, Latch, Result};

use crate::support::scripts;
use crate::support::scripts::{
    NAMES, assert_left, forbid, forbid_channels, listen_to_all, messages, out_of_memory, sha,
};
use crate::support::{
    Crew, LONG, Mode, Proxy, Server, Target, eventually, loosely, lua, ms, open, subscribed, timed,
    unique, within,
};

const SET: &str = lua::LATCH_SET;
const COUNT_DOWN: &str = lua::LATCH_COUNT_DOWN;
const DELETE: &str = lua::LATCH_DELETE;
const STATE: &str = lua::LATCH_STATE;

/// Well under the poll cap: what happens sooner was brought about by a message.
const BY_MESSAGE: Duration = ms(600);

/// Whoever is not told asks after at most a second.
const BY_ASKING: Duration = ms(2_500);

/// More than what waking a thread takes on a busy machine.
const SLACK: Duration = ms(700);

const ROUND_MS: i64 = 24 * 3600 * 1000;
const OPEN_ROUND_MS: i64 = 60_000;
const KEEP_MS: i64 = 60_000;

/// What no count looks like.
const NO_COUNTS: [&str; 9] = [
    "",
    "abc",
    "1.5",
    "007",
    "+3",
    " 1",
    "1 ",
    "-",
    "99999999999999999999",
];

// ---------------------------------------------------------------------------------------------------------------------
// Helpers
// ---------------------------------------------------------------------------------------------------------------------

/// With braces of its own, whatever the name.
fn channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}

fn beside(name: &str, suffix: &str) -> String {
    if name.contains('{') {
        format!("{name}:{suffix}")
    } else {
        format!("{{{name}}}:{suffix}")
    }
}

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
        beside(&self.name, &format!("request:{id}"))
    }

    fn run<T: FromRedisValue>(&mut self, script: &str, id: &str, more: &[&str]) -> RedisResult<T> {
        let (round, request) = (beside(&self.name, "round"), self.request(id));
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
        let keys = [self.name.as_str(), &beside(&self.name, "round")];
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

/// What Redisson's `countDown` does, by hand.
fn java_counts_down(server: &Server, name: &str) {
    let left: i64 = server.ask(&["DECR", name]);
    if left <= 0 {
        server.cli(&["DEL", name]);
    }
    if left == 0 {
        server.cli(&["PUBLISH", &channel(name), "0"]);
    }
}

/// A client of a server that knows the scripts.
fn warm(server: &Server) -> Client {
    load_scripts(server);
    open(server)
}

fn load_scripts(server: &Server) {
    for script in [SET, COUNT_DOWN, DELETE, STATE] {
        server.cli(&["SCRIPT", "LOAD", script]);
    }
}

/// What every verb says.
fn verdicts(latch: &Latch) -> Vec<(&'static str, Result<()>)> {
    vec![
        ("try_set_count", latch.try_set_count(1).map(drop)),
        ("count_down", latch.count_down()),
        ("count", latch.count().map(drop)),
        ("wait", latch.wait()),
        ("wait_for", latch.wait_for(LONG).map(drop)),
        (
            "wait_until",
            latch.wait_until(Instant::now() + LONG).map(drop),
        ),
        ("wait_for nothing", latch.wait_for(ms(0)).map(drop)),
        ("delete", latch.delete().map(drop)),
    ]
}

/// A thread that waits, and what it is told; returns once the server knows of it and it has asked again.
struct Waiting<T> {
    thread: thread::JoinHandle<(T, Instant)>,
}

impl<T: Send + 'static> Waiting<T> {
    #[track_caller]
    fn new(server: &Server, wait: impl FnOnce() -> T + Send + 'static) -> Self {
        let asked = server.calls("get");
        let thread = thread::spawn(move || (wait(), Instant::now()));
        subscribed(server, 1);
        eventually("it has asked again", || server.calls("get") >= asked + 4);
        Self { thread }
    }

    fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// What it was told, within `limit` from `since`.
    #[track_caller]
    fn ends(self, since: Instant, limit: Duration) -> T {
        eventually("the wait ends", || self.is_over());
        let (received, at) = self.thread.join().unwrap();
        let took = at.saturating_duration_since(since);
        assert!(took < loosely(limit), "after {took:?}");
        received
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The scripts
// ---------------------------------------------------------------------------------------------------------------------

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
        let mut keys = [name.to_owned(), beside(name, "round"), latch.request("u:1")];
        keys.sort();
        assert_eq!(server.keys(), keys);
        assert_eq!(server.pttl(name), -1);
        assert_left(server.pttl(&beside(name, "round")), ROUND_MS);
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
            server.ask::<String>(&["GET", &beside(name, "round")]),
            "u:3"
        );
        assert_left(server.pttl(&beside(name, "round")), OPEN_ROUND_MS);
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
        assert!(!server.exists(&beside(name, "round")));
        server.cli(&["SET", name, "3"]);
        assert_eq!(latch.delete("u:1"), 1);
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(name), "1".to_owned())]
        );
        assert_eq!(
            server.ask::<String>(&["GET", &beside(name, "round")]),
            "u:1"
        );
        assert_left(server.pttl(&beside(name, "round")), OPEN_ROUND_MS);
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

// ---------------------------------------------------------------------------------------------------------------------
// What users and Redisson's clients see
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn it_counts_as_redissons_does() {
    fn is_shared<T: Send + Sync + Clone>(_: &T) {}
    let server = Server::start();
    let mut pubsub_con = server.connection();
    let mut pubsub = listen_to_all(&mut pubsub_con);
    let client = Client::open(Config::new(server.url()).key_prefix("app:")).unwrap();
    for name in NAMES {
        let latch = client.latch(name);
        let key = format!("app:{name}");
        is_shared(&latch);
        assert_eq!(latch.name(), name);
        assert_eq!(
            format!("{latch:?}"),
            format!("Latch {{ name: {name:?}, .. }}")
        );
        // Nothing there: open.
        assert_eq!(latch.count().unwrap(), 0);
        latch.count_down().unwrap();
        assert!(!latch.delete().unwrap());
        latch.wait().unwrap();
        assert!(!server.exists(&key));
        assert_eq!(messages(&server, &mut pubsub), []);

        assert!(latch.try_set_count(2).unwrap());
        assert!(!latch.try_set_count(7).unwrap());
        assert_eq!(server.ask::<String>(&["GET", &key]), "2");
        assert_eq!(server.pttl(&key), -1);
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(&key), "1".into())]
        );
        assert_eq!(latch.count().unwrap(), 2);
        assert!(!latch.wait_for(ms(0)).unwrap());
        java_counts_down(&server, &key);
        assert_eq!(latch.count().unwrap(), 1);
        latch.clone().count_down().unwrap();
        assert!(!server.exists(&key));
        assert_eq!(
            messages(&server, &mut pubsub),
            [(channel(&key), "0".into())]
        );
        assert!(latch.wait_for(ms(0)).unwrap());
        for _ in 0..3 {
            latch.count_down().unwrap();
        }
        assert!(!server.exists(&key));
        assert_eq!(messages(&server, &mut pubsub), []);

        assert!(latch.try_set_count(i64::MAX.unsigned_abs()).unwrap());
        latch.count_down().unwrap();
        assert_eq!(latch.count().unwrap(), i64::MAX.unsigned_abs() - 1);
        assert!(latch.delete().unwrap());
        assert!(!server.exists(&key) && !latch.delete().unwrap());
        let received = [(channel(&key), "1".into()), (channel(&key), "1".into())];
        assert_eq!(messages(&server, &mut pubsub), received);

        // What Redisson's `trySetCount(0)` leaves: open, and no count can be set.
        server.cli(&["SET", &key, "0"]);
        assert_eq!(latch.count().unwrap(), 0);
        latch.wait().unwrap();
        assert!(!latch.try_set_count(1).unwrap());
        latch.count_down().unwrap();
        assert!(latch.try_set_count(1).unwrap());
        assert_eq!(messages(&server, &mut pubsub).len(), 1);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn bad_input_is_told_before_anything_is_sent() {
    let server = Server::start();
    let client = open(&server);
    client.latch("warm").count().unwrap();
    let before = server.command_total();
    let latch = client.latch("fine");
    for count in [0, 1 << 63, u64::MAX] {
        let said = latch.try_set_count(count);
        assert!(matches!(said, Err(Error::Config(_))), "{count}: {said:?}");
    }
    for name in [String::new(), "x".repeat(65 * 1024)] {
        for (verb, said) in verdicts(&client.latch(&name)) {
            assert!(
                matches!(said, Err(Error::InvalidName { .. })),
                "{verb}: {said:?}"
            );
        }
    }
    assert_eq!(server.command_total(), before);
    client.close(LONG).unwrap();
    for (verb, said) in verdicts(&latch) {
        assert!(matches!(said, Err(Error::Closed)), "{verb}: {said:?}");
    }
}

timed!(another_kind_of_key_is_told_and_left_as_it_was);
fn another_kind_of_key_is_told_and_left_as_it_was() {
    let server = Server::start();
    let client = open(&server);
    let says_so = |name: &str| {
        for (verb, said) in verdicts(&client.latch(name)) {
            match said {
                Err(Error::WrongType { name: its }) => assert_eq!(its, name),
                said => panic!("{verb}: {said:?}"),
            }
        }
    };
    let guard = client.reentrant_lock("lock").lock().unwrap();
    says_so("lock");
    guard.unlock().unwrap();
    for value in NO_COUNTS {
        server.cli(&["SET", "text", value]);
        says_so("text");
        assert_eq!(server.ask::<String>(&["GET", "text"]), value);
    }
    // Also if the key changes while it is waited for.
    let latch = client.latch("turns");
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, move || latch.wait());
    server.cli(&["SET", "turns", "abc"]);
    server.cli(&["PUBLISH", &channel("turns"), "0"]);
    let said = waiting.ends(Instant::now(), BY_MESSAGE);
    assert!(matches!(said, Err(Error::WrongType { .. })), "{said:?}");
}

#[test]
fn verbs_are_one_command_each_and_leave_little() {
    let server = Server::start();
    let client = warm(&server);
    let latch = client.latch("cheap");
    assert!(latch.try_set_count(1_000).unwrap());
    latch.count_down().unwrap();
    let before = client.stats().commands;
    for _ in 0..100 {
        latch.count_down().unwrap();
    }
    assert_eq!(latch.count().unwrap(), 899);
    assert_eq!(client.stats().commands, before + 101);
    // The count, the mark, and what came of the last request.
    assert_eq!(server.dbsize(), 3);
    let crew: Vec<_> = (0..4)
        .map(|_| {
            let latch = latch.clone();
            thread::spawn(move || (0..50).for_each(|_| latch.count_down().unwrap()))
        })
        .collect();
    crew.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(latch.count().unwrap(), 699);
    let keys = server.dbsize();
    assert!(keys <= 2 + 4, "{keys} keys");
    assert!(latch.delete().unwrap());
    for key in server.keys() {
        let left = server.pttl(&key);
        assert!((1..=120_000).contains(&left), "{key}: {left}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn an_open_latch_is_passed_with_one_question() {
    let server = Server::start();
    let client = warm(&server);
    let latch = client.latch(unique("open"));
    let before = client.stats().commands;
    latch.wait().unwrap();
    assert!(latch.wait_for(LONG).unwrap());
    assert!(latch.wait_until(Instant::now() + LONG).unwrap());
    assert_eq!(client.stats().commands, before + 3);
    assert!(server.clients_named("redlatch-subscriber").is_empty());
    assert_eq!(server.dbsize(), 0);
}

timed!(a_limited_wait_takes_its_time);
fn a_limited_wait_takes_its_time() {
    let server = Server::start();
    let latch = open(&server).latch(unique("limit"));
    assert!(latch.try_set_count(1).unwrap());
    for limit in [ms(150), ms(400)] {
        let began = Instant::now();
        assert!(!latch.wait_for(limit).unwrap());
        let took = began.elapsed();
        assert!(took >= limit && took < limit + loosely(SLACK), "{took:?}");
        let began = Instant::now();
        assert!(!latch.wait_until(began + limit).unwrap());
        let took = began.elapsed();
        assert!(took >= limit && took < limit + loosely(SLACK), "{took:?}");
    }
    for said in [
        latch.wait_for(ms(0)),
        latch.wait_until(Instant::now()),
        latch.wait_until(Instant::now().checked_sub(ms(5)).unwrap()),
    ] {
        assert!(!said.unwrap());
    }
    latch.count_down().unwrap();
    assert!(latch.wait_for(Duration::MAX).unwrap());
    eventually("nobody listens", || {
        let clients = server.clients_named("redlatch-subscriber");
        clients.iter().all(|client| client.subscriptions == 0)
    });
}

timed!(the_last_count_down_wakes_whoever_waits_by_message);
fn the_last_count_down_wakes_whoever_waits_by_message() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let counts_down: [&dyn Fn(&str); 2] =
        [&|name| other.latch(name).count_down().unwrap(), &|name| {
            java_counts_down(&server, name);
        }];
    for count_down in counts_down {
        // Another latch each time: whoever listened to the first still hears that the next count is set.
        let name = unique("woken");
        let latch = client.latch(&name);
        assert!(latch.try_set_count(2).unwrap());
        let waiting = Waiting::new(&server, move || latch.wait_for(LONG));
        count_down(&name);
        assert!(!within(ms(30), || waiting.is_over()));
        let since = Instant::now();
        count_down(&name);
        assert!(waiting.ends(since, BY_MESSAGE).unwrap());
    }
    assert_eq!(client.stats().poll_rescues, 0);
    assert_eq!(client.stats().wakes, 2);
}

timed!(deleting_wakes_whoever_waits);
fn deleting_wakes_whoever_waits() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("deleted"));
    assert!(latch.try_set_count(9).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    let since = Instant::now();
    assert!(latch.delete().unwrap());
    waiting.ends(since, BY_MESSAGE).unwrap();
    assert_eq!(client.stats().poll_rescues, 0);
}

timed!(a_message_is_only_a_hint);
fn a_message_is_only_a_hint() {
    let server = Server::start();
    let latch = open(&server).latch(unique("hint"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    for lie in ["0", "1", "", "nonsense", "0"] {
        let asked = server.calls("get");
        server.cli(&["PUBLISH", &channel(latch.name()), lie]);
        eventually("it asks again", || server.calls("get") > asked);
    }
    assert!(!within(ms(50), || waiting.is_over()));
    latch.count_down().unwrap();
    waiting.ends(Instant::now(), BY_MESSAGE).unwrap();
}

timed!(one_wake_is_one_question_for_each_thread);
fn one_wake_is_one_question_for_each_thread() {
    const THREADS: u64 = 20;
    let server = Server::start();
    let (client, other) = (warm(&server), open(&server));
    let name = unique("herd");
    assert!(other.latch(&name).try_set_count(1).unwrap());
    let before = client.stats().commands;
    let mut crew = Crew::new();
    for _ in 0..THREADS {
        let latch = client.latch(&name);
        crew.spawn(move || latch.wait().unwrap());
    }
    eventually("all have asked twice", || {
        client.stats().commands >= before + 2 * THREADS
    });
    crew.all_parked();
    let parked = client.stats();
    assert_eq!(
        (parked.commands, parked.subscriptions),
        (before + 2 * THREADS, 1)
    );
    other.latch(&name).count_down().unwrap();
    crew.join();
    let after = client.stats();
    assert_eq!(after.commands, parked.commands + THREADS);
    assert_eq!((after.wakes, after.poll_rescues), (THREADS, 0));
    eventually("nobody listens", || client.stats().subscriptions == 0);
}

timed!(a_cancelled_wait_ends);
fn a_cancelled_wait_ends() {
    let server = Server::start();
    let client = open(&server);
    let name = unique("cancel");
    let token = CancelToken::new();
    let latch = client.latch(&name).cancel_on(&token);
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || (latch.wait_for(LONG), latch.wait())
    });
    assert!(!within(ms(30), || waiting.is_over()));
    let since = Instant::now();
    token.cancel();
    let said = waiting.ends(since, BY_MESSAGE);
    assert!(
        matches!(said, (Err(Error::Cancelled), Err(Error::Cancelled))),
        "{said:?}"
    );
    // One question is no wait, nor is anything else.
    assert!(!latch.wait_for(ms(0)).unwrap());
    assert_eq!(latch.count().unwrap(), 1);
    latch.count_down().unwrap();
    assert!(matches!(latch.wait(), Err(Error::Cancelled)));
    client.latch(&name).wait().unwrap();
}

timed!(closing_the_client_ends_every_wait);
fn closing_the_client_ends_every_wait() {
    const THREADS: u64 = 30;
    let server = Server::start();
    let (client, other) = (warm(&server), open(&server));
    let name = unique("closing");
    assert!(other.latch(&name).try_set_count(1).unwrap());
    let mut crew = Crew::new();
    for n in 0..THREADS {
        let latch = client.latch(&name);
        crew.spawn(move || {
            let said = if n % 2 == 0 {
                latch.wait()
            } else {
                latch.wait_for(LONG).map(drop)
            };
            assert!(matches!(said, Err(Error::Closed)), "{said:?}");
            let said = latch.count_down();
            assert!(matches!(said, Err(Error::Closed)), "{said:?}");
        });
    }
    eventually("all have asked twice", || {
        client.stats().commands >= 2 * THREADS
    });
    crew.all_parked();
    let since = Instant::now();
    client.close(LONG).unwrap();
    crew.join();
    let took = since.elapsed();
    assert!(took < loosely(SLACK), "{took:?}");
    assert_eq!(other.latch(&name).count().unwrap(), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad days
// ---------------------------------------------------------------------------------------------------------------------

timed!(a_key_that_vanishes_in_silence_keeps_nobody);
fn a_key_that_vanishes_in_silence_keeps_nobody() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("vanished"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    let since = Instant::now();
    server.cli(&["DEL", latch.name()]);
    waiting.ends(since, BY_ASKING).unwrap();
    assert_eq!(client.stats().poll_rescues, 1);
}

timed!(a_lost_subscription_keeps_nobody);
fn a_lost_subscription_keeps_nobody() {
    let server = Server::start();
    let (client, other) = (open(&server), open(&server));
    let name = unique("unheard");
    for _ in 0..3 {
        assert!(other.latch(&name).try_set_count(1).unwrap());
        let waiting = Waiting::new(&server, {
            let latch = client.latch(&name);
            move || latch.wait()
        });
        let since = Instant::now();
        let mut con = server.connection();
        // In one go: nobody is there to hear it.
        let () = redis::pipe()
            .cmd("CLIENT")
            .arg(&["KILL", "TYPE", "pubsub"])
            .ignore()
            .cmd("DEL")
            .arg(&name)
            .ignore()
            .cmd("PUBLISH")
            .arg(channel(&name))
            .arg("0")
            .ignore()
            .query(&mut con)
            .unwrap();
        waiting.ends(since, BY_ASKING).unwrap();
    }
}

timed!(who_may_not_listen_asks_again_and_again);
fn who_may_not_listen_asks_again_and_again() {
    let server = Server::start();
    let rule = ["on", ">pw", "~*", "+@all", "resetchannels"];
    server.cli(&[&["ACL", "SETUSER", "deaf"], &rule[..]].concat());
    let url = server.url().replace("redis://", "redis://deaf:pw@");
    let (client, other) = (Client::open(url).unwrap(), open(&server));
    let latch = client.latch(unique("deaf"));
    assert!(latch.try_set_count(1).unwrap());
    let name = latch.name().to_owned();
    let asked = server.calls("get");
    let thread = thread::spawn(move || latch.wait().map(|()| Instant::now()));
    eventually("it asks", || server.calls("get") > asked + 10);
    let since = Instant::now();
    other.latch(&name).count_down().unwrap();
    let took = thread.join().unwrap().unwrap() - since;
    assert!(took < loosely(BY_MESSAGE), "{took:?}");
}

timed!(a_frozen_server_does_not_lengthen_a_limited_wait);
fn a_frozen_server_does_not_lengthen_a_limited_wait() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("frozen"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait_for(ms(600))
    });
    server.freeze();
    let since = Instant::now();
    // Known to be closed, and not asked for in time.
    assert!(!waiting.ends(since, ms(600) + SLACK).unwrap());
    let since = Instant::now();
    let said = latch.wait_for(ms(200));
    let took = since.elapsed();
    // Nor is there anything known against the server so soon.
    assert!(matches!(said, Ok(false)), "{said:?}");
    assert!(
        took >= ms(200) && took < ms(200) + loosely(SLACK),
        "{took:?}"
    );
    server.thaw();
    assert!(!latch.wait_for(ms(100)).unwrap());
}

timed!(an_endless_wait_tells_of_a_frozen_server);
fn an_endless_wait_tells_of_a_frozen_server() {
    let response = ms(400);
    let server = Server::start();
    let client = Client::open(Config::new(server.url()).response_timeout(response)).unwrap();
    let latch = client.latch(unique("frozen"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    server.freeze();
    let since = Instant::now();
    let said = waiting.ends(since, ms(1_000) + response + SLACK);
    assert!(matches!(said, Err(Error::Redis { .. })), "{said:?}");
    for (verb, said) in [
        ("count_down", latch.count_down()),
        ("try_set_count", latch.try_set_count(1).map(drop)),
        ("delete", latch.delete().map(drop)),
    ] {
        assert!(matches!(said, Err(Error::Redis { .. })), "{verb}: {said:?}");
    }
}

/// The response timeout of a client behind a proxy: half of it is what a lost reply costs, the other half may be needed.
const RESPONSE: Duration = ms(1_600);

fn behind_a_proxy(server: &Server) -> (Proxy, Client) {
    load_scripts(server);
    let proxy = Proxy::start(server.addr());
    let client = Client::open(Config::new(proxy.url()).response_timeout(RESPONSE)).unwrap();
    (proxy, client)
}

timed!(requests_whose_replies_are_lost_count_once);
fn requests_whose_replies_are_lost_count_once() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let latch = client.latch("lost");
    let trap = proxy.swallow_reply_to(sha(SET));
    assert!(latch.try_set_count(5).unwrap());
    assert!(trap.fired());
    for left in [4, 3] {
        let trap = proxy.swallow_reply_to(sha(COUNT_DOWN));
        latch.count_down().unwrap();
        assert!(trap.fired());
        assert_eq!(latch.count().unwrap(), left);
    }
    let trap = proxy.swallow_reply_to(sha(DELETE));
    assert!(latch.delete().unwrap());
    assert!(trap.fired());
    assert_eq!(latch.count().unwrap(), 0);
    // Whose copy might come later is not forgotten before its time.
    let requests = |key: &String| key.starts_with("{lost}:request:");
    let kept = server.keys().into_iter().filter(requests);
    assert_eq!(kept.count(), 4);
}

timed!(the_last_count_down_wakes_though_its_reply_is_lost);
fn the_last_count_down_wakes_though_its_reply_is_lost() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let latch = client.latch("last");
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = open(&server).latch("last");
        move || latch.wait()
    });
    let trap = proxy.swallow_reply_to(sha(COUNT_DOWN));
    let since = Instant::now();
    latch.count_down().unwrap();
    assert!(trap.fired());
    waiting.ends(since, BY_MESSAGE).unwrap();
}

timed!(copies_that_were_held_up_count_once);
fn copies_that_were_held_up_count_once() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let (latch, other) = (client.latch("held"), open(&server).latch("held"));
    type Verb = (&'static str, fn(&Latch) -> Result<bool>);
    let verbs: [Verb; 3] = [
        ("set", |latch| latch.try_set_count(5)),
        ("count_down", |latch| latch.count_down().map(|()| true)),
        ("delete", Latch::delete),
    ];
    for (what, verb) in verbs {
        other.delete().unwrap();
        if what != "set" {
            assert!(other.try_set_count(5).unwrap());
        }
        latch.count().unwrap();
        proxy.stall_present(Target::Link);
        // Sent again over another connection.
        assert!(verb(&latch).unwrap(), "{what}");
        other.delete().unwrap();
        if what != "set" {
            assert!(other.try_set_count(7).unwrap());
        }
        let ran = server.calls("evalsha");
        proxy.pass();
        eventually("the copy has come", || server.calls("evalsha") > ran);
        let left = if what == "set" { 0 } else { 7 };
        assert_eq!(other.count().unwrap(), left, "{what}");
    }
}

timed!(a_dead_network_is_told_in_time_and_counts_at_most_once);
fn a_dead_network_is_told_in_time_and_counts_at_most_once() {
    let server = Server::start();
    let (proxy, client) = behind_a_proxy(&server);
    let latch = client.latch("dead");
    assert!(latch.try_set_count(5).unwrap());
    for mode in [Mode::SwallowReplies, Mode::BlackHole] {
        let before = server.get_int("dead");
        proxy.set(Target::Link, mode);
        let since = Instant::now();
        let said = latch.count_down();
        assert!(matches!(said, Err(Error::Redis { .. })), "{said:?}");
        let took = since.elapsed();
        assert!(took < RESPONSE + loosely(SLACK), "{took:?}");
        proxy.pass();
        latch.count_down().unwrap();
        let counted = before - server.get_int("dead");
        let wanted = if mode == Mode::BlackHole { 1 } else { 2 };
        assert_eq!(counted, wanted, "{mode:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rounds
// ---------------------------------------------------------------------------------------------------------------------

timed!(who_is_late_is_released_though_the_next_count_stands);
fn who_is_late_is_released_though_the_next_count_stands() {
    let server = Server::start();
    load_scripts(&server);
    let client = open(&server);
    let name = unique("next");
    let latch = client.latch(&name);
    let (key, round, channel) = (name.as_str(), beside(&name, "round"), channel(&name));
    let script = |script: &str, id: &str| {
        let mut run = redis::cmd("EVALSHA");
        let request = beside(&name, &format!("request:{id}"));
        run.arg(sha(script)).arg(4).arg(key).arg(&round);
        run.arg(&channel).arg(request).arg(id).arg(60_000);
        run.arg(60_000).arg(1).clone()
    };
    let command = |parts: &[&str]| redis::cmd(parts[0]).arg(&parts[1..]).clone();
    // One end of a round and the beginning of the next, with nobody looking in between.
    let we_count_down = script(COUNT_DOWN, "c");
    let we_set = script(SET, "s");
    let java_sets = command(&["SET", key, "1"]);
    let java_tells = command(&["PUBLISH", &channel, "1"]);
    for (what, commands) in [
        ("we and we", vec![&we_count_down, &we_set]),
        ("we delete and set", vec![&script(DELETE, "d"), &we_set]),
        ("we and they", vec![&we_count_down, &java_sets, &java_tells]),
        ("they and we", vec![&command(&["DEL", key]), &we_set]),
    ] {
        assert!(latch.try_set_count(1).unwrap());
        let waiting = Waiting::new(&server, {
            let latch = latch.clone();
            move || latch.wait()
        });
        let since = Instant::now();
        let mut pipe = redis::pipe();
        pipe.atomic();
        for command in commands {
            pipe.add_command(command.clone());
        }
        let () = pipe.query(&mut server.connection()).unwrap();
        waiting.ends(since, BY_MESSAGE).unwrap();
        assert_eq!(latch.count().unwrap(), 1, "{what}");
        server.cli(&["FLUSHALL"]);
    }
    assert_eq!(client.stats().poll_rescues, 0);
}

timed!(java_clients_alone_do_not_tell_their_rounds_apart);
fn java_clients_alone_do_not_tell_their_rounds_apart() {
    let server = Server::start();
    let client = open(&server);
    let latch = client.latch(unique("java"));
    server.cli(&["SET", latch.name(), "1"]);
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    // As with Redisson: who looks too late waits for the end of the next round.
    let asked = server.calls("get");
    let () = redis::pipe()
        .atomic()
        .cmd("DEL")
        .arg(latch.name())
        .cmd("SET")
        .arg(latch.name())
        .arg("1")
        .cmd("PUBLISH")
        .arg(channel(latch.name()))
        .arg("0")
        .ignore()
        .query::<((), ())>(&mut server.connection())
        .map(drop)
        .unwrap();
    eventually("it asks again", || server.calls("get") > asked);
    assert!(!within(ms(50), || waiting.is_over()));
    java_counts_down(&server, latch.name());
    waiting.ends(Instant::now(), BY_MESSAGE).unwrap();
}

timed!(a_mark_that_is_lost_releases_nobody);
fn a_mark_that_is_lost_releases_nobody() {
    let server = Server::start();
    let latch = open(&server).latch(unique("mark"));
    assert!(latch.try_set_count(1).unwrap());
    let waiting = Waiting::new(&server, {
        let latch = latch.clone();
        move || latch.wait()
    });
    server.cli(&["DEL", &beside(latch.name(), "round")]);
    let asked = server.calls("get");
    server.cli(&["PUBLISH", &channel(latch.name()), "0"]);
    eventually("it asks again", || server.calls("get") > asked);
    assert!(!within(ms(50), || waiting.is_over()));
    latch.count_down().unwrap();
    assert!(latch.try_set_count(1).unwrap());
    waiting.ends(Instant::now(), BY_MESSAGE).unwrap();
}

/// What the threads of a test with many rounds know of each other.
#[derive(Default)]
struct Board {
    /// Of how many rounds the count has been set; raised afterwards.
    set: AtomicU64,
    /// Of how many rounds the last count down has been sent; raised before.
    ended: AtomicU64,
    /// How many waits have ended.
    out: AtomicU64,
    turn: Mutex<u64>,
    turned: Condvar,
}

impl Board {
    fn call(&self, turn: u64) {
        *self.turn.lock().unwrap() = turn;
        self.turned.notify_all();
    }

    fn come(&self, turn: u64) {
        let now = self.turn.lock().unwrap();
        drop(self.turned.wait_while(now, |now| *now < turn).unwrap());
    }

    #[track_caller]
    fn all_out(&self, waits: u64) {
        eventually("nobody is left behind", || {
            self.out.load(Ordering::SeqCst) >= waits
        });
    }
}

/// Threads of several clients wait once a round. Most rounds follow each other as fast as they can be counted down, with
/// waits beginning at any moment; after some, nothing is set before all are out; in some, all are known to wait and the
/// next count is set before they can look.
fn rounds(clients: usize, threads: u64, rounds: u64) {
    let server = Server::start();
    let name = unique("rounds");
    let clients: Vec<_> = (0..clients).map(|_| open(&server)).collect();
    let (setter, counter) = (open(&server), open(&server));
    let (setter, counter) = (setter.latch(&name), counter.latch(&name));
    let board = Arc::new(Board::default());
    let mut crew = Crew::new();
    for (client, _) in clients.iter().cycle().zip(0..threads) {
        let (latch, board) = (client.latch(&name), Arc::clone(&board));
        crew.spawn(move || {
            for turn in 1..=rounds {
                board.come(turn);
                let set = board.set.load(Ordering::SeqCst);
                latch.wait().unwrap();
                let ended = board.ended.load(Ordering::SeqCst);
                assert!(ended >= set, "released in round {set}, after {ended}");
                board.out.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let commands = || -> u64 { clients.iter().map(|client| client.stats().commands).sum() };
    let mut con = server.connection();
    let mut listeners = || -> u64 {
        let (_, n): (String, u64) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel(&name))
            .query(&mut con)
            .unwrap();
        n
    };
    let (mut is_set, mut all_known) = (false, 0);
    for round in 1..=rounds {
        let to_be_known = round % 20 == 0;
        if to_be_known {
            // Nothing told of before reaches those who come now: each asks twice, and then parks for most of a second.
            board.all_out(threads * (round - 1));
            eventually("nobody listens", || listeners() == 0);
        }
        let asked = commands();
        if !is_set {
            assert!(setter.try_set_count(3).unwrap());
        }
        board.set.store(round, Ordering::SeqCst);
        let since = Instant::now();
        board.call(round);
        if to_be_known {
            eventually("all have asked", || commands() >= asked + 2 * threads);
        }
        let known = to_be_known && since.elapsed() < ms(700);
        setter.count_down().unwrap();
        counter.count_down().unwrap();
        board.ended.store(round, Ordering::SeqCst);
        counter.count_down().unwrap();
        is_set = known;
        if known {
            assert!(setter.try_set_count(3).unwrap());
            all_known += 1;
        }
        if known || round % 4 == 0 {
            board.all_out(threads * round);
        }
    }
    setter.delete().unwrap();
    crew.join();
    assert!(all_known > 0 || rounds < 20, "too slow a machine");
    let stats: Vec<_> = clients.iter().map(Client::stats).collect();
    let sum = |of: fn(&redlatch::Stats) -> u64| stats.iter().map(of).sum::<u64>();
    let (wakes, rescues) = (sum(|its| its.wakes), sum(|its| its.poll_rescues));
    eprintln!("{wakes} wakes, {rescues} rescues, {all_known} known");
    // A machine that stands still for a second may wake them the other way.
    assert!(rescues * 1_000 <= threads * rounds, "{rescues} not told");
    assert!(wakes > threads * rounds / 10, "only {wakes} told");
    eventually("nobody listens", || {
        clients
            .iter()
            .all(|client| client.stats().subscriptions == 0)
    });
}

timed!(nobody_is_left_behind_or_released_early_in_many_rounds);
fn nobody_is_left_behind_or_released_early_in_many_rounds() {
    rounds(3, 100, 600); // H8
}

#[test]
#[ignore = "takes a minute"]
fn nobody_is_left_behind_or_released_early_in_very_many_rounds() {
    rounds(4, 100, 2_000);
    rounds(2, 8, 10_000);
}
