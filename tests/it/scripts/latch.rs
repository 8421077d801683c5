//! The scripts of the count-down latch: a table, and a comparison with a model.

use std::collections::HashMap;

use redis::Connection;

use crate::support::latch::{COUNT_DOWN, DELETE, NO_COUNTS, SET, STATE, channel};
use crate::support::permits::suffixed;
use crate::support::scripts::NAMES;
use crate::support::table::{Call, Stage, Table};
use crate::support::{Server, timed};

/// Each request has an id, which is also the name of its key. The mark of a round lives for a day, or for a minute once
/// the latch is open.
const CALLS: &[Call] = &[
    ("set", SET, "latch round channel $1", "$1 86400s 60s $2:3"),
    ("count", COUNT_DOWN, "latch round channel $1", "$1 60s 60s"),
    ("delete", DELETE, "latch round channel $1", "$1 60s 60s"),
    ("state", STATE, "latch round", ""),
    // With the key of an answered request, which is deleted.
    (
        "set_forgetting",
        SET,
        "latch round channel $1 $2",
        "$1 60s 60s 3",
    ),
    (
        "count_forgetting",
        COUNT_DOWN,
        "latch round channel $1 $2",
        "$1 60s 60s",
    ),
    (
        "delete_forgetting",
        DELETE,
        "latch round channel $1 $2",
        "$1 60s 60s",
    ),
];

fn stage<'a>(server: &'a Server, listener: &'a mut Connection, name: &str) -> Stage<'a> {
    let words = [
        ("latch", name.to_owned()),
        ("round", suffixed(name, "round")),
        ("channel", channel(name)),
    ];
    Stage::new(server, listener, CALLS, words)
}

const TABLE: &[Table] = &[
    (
        "setting leaves a count and a mark; a count that stands is left alone",
        &[
            "state    | nil",
            "set u1   | 1    | latch=3 round=u1@86400s u1=1@60s | 1",
            "state    | 3 u1",
            "set u2 5 | 0    | latch=3 round=u1@86400s u1=1@60s u2=0@60s",
            "set u1   | 1",
            "state    | 3 u1",
        ],
    ),
    (
        "counting down notifies at zero and at nothing else, and a request counts once",
        &[
            "SET latch 3 PX 50s |      | latch=3@50s",
            "count c1           | 1    | c1=1@60s latch=2@50s",
            "count c1           | 1",
            "state              | 2 ''",
            "count c2           | 1    | c1=1@60s c2=1@60s latch=1@50s",
            "count c2           | 1",
            "count c3           | 1    | c1=1@60s c2=1@60s c3=1@60s round=c3@60s | 0",
            "count c3           | 1",
            "state              | nil",
            "count c4           | 0    | c1=1@60s c2=1@60s c3=1@60s c4=0@60s round=c3@60s",
            "state              | nil",
        ],
    ),
    (
        "a count below one is open and goes in silence",
        &[
            "SET latch 0                 |                      | latch=0",
            "state                       | 0 ''",
            "set s1                      | 0                    | latch=0 s1=0@60s",
            "count c1                    | 0                    | c1=0@60s s1=0@60s",
            "state                       | nil",
            "SET latch -1                |                      | c1=0@60s latch=-1 s1=0@60s",
            "state                       | -1 ''",
            "set s2                      | 0                    | c1=0@60s latch=-1 s1=0@60s s2=0@60s",
            "count c2                    | 0                    | c1=0@60s c2=0@60s s1=0@60s s2=0@60s",
            "state                       | nil",
            "SET latch -9223372036854775 |                      | c1=0@60s c2=0@60s latch=-9223372036854775 s1=0@60s s2=0@60s",
            "state                       | -9223372036854775 ''",
            "set s3                      | 0                    | c1=0@60s c2=0@60s latch=-9223372036854775 s1=0@60s s2=0@60s s3=0@60s",
            "count c3                    | 0                    | c1=0@60s c2=0@60s c3=0@60s s1=0@60s s2=0@60s s3=0@60s",
            "state                       | nil",
        ],
    ),
    (
        "deleting notifies and marks; a copy that comes late does not end the next round",
        &[
            "delete d0   | 0    | d0=0@60s",
            "SET latch 3 |      | d0=0@60s latch=3",
            "delete d1   | 1    | d0=0@60s d1=1@60s round=d1@60s | 1",
            "set u2      | 1    | d0=0@60s d1=1@60s latch=3 round=u2@86400s u2=1@60s | 1",
            "delete d0   | 0",
            "delete d1   | 1",
            "state       | 3 u2",
        ],
    ),
    (
        "copies that come late meet the next round and leave it alone",
        &[
            "count n       | 0        | n=0@60s",
            "set first 1   | 1        | first=1@60s latch=1 n=0@60s round=first@86400s | 1",
            "set refused 1 | 0        | first=1@60s latch=1 n=0@60s refused=0@60s round=first@86400s",
            "count last    | 1        | first=1@60s last=1@60s n=0@60s refused=0@60s round=last@60s | 0",
            "set first 1   | 1",
            "set refused 1 | 0",
            "state         | nil",
            "set second 2  | 1        | first=1@60s last=1@60s latch=2 n=0@60s refused=0@60s round=second@86400s second=1@60s | 1",
            "count n       | 0",
            "count last    | 1",
            "state         | 2 second",
        ],
    ),
    (
        "a request takes an answered one along",
        &[
            "SET answered 1             |   | answered=1",
            "set_forgetting u1 answered | 1 | latch=3 round=u1@60s u1=1@60s | 1",
            "count_forgetting u2 u1     | 1 | latch=2 round=u1@60s u2=1@60s",
            "delete_forgetting u3 u2    | 1 | round=u3@60s u3=1@60s | 1",
        ],
    ),
    (
        "without the right to publish counts are right still",
        &[
            "deaf",
            "set u1 1  | 1   | latch=1 round=u1@86400s u1=1@60s",
            "count u2  | 1   | round=u2@60s u1=1@60s u2=1@60s",
            "state     | nil",
            "set u3 2  | 1   | latch=2 round=u3@86400s u1=1@60s u2=1@60s u3=1@60s",
            "delete u4 | 1   | round=u4@60s u1=1@60s u2=1@60s u3=1@60s u4=1@60s",
            "state     | nil",
        ],
    ),
    (
        "without memory nothing is counted, and deleted all the same",
        &[
            "set u1 2  | 1    | latch=2 round=u1@86400s u1=1@60s | 1",
            "full",
            "count u2  | OOM",
            "state     | 2 u1",
            "delete u3 | 1    | round=u3@60s u1=1@60s | 1",
            "set u4 2  | OOM",
        ],
    ),
    (
        "a right that is missing leaves nothing half done",
        &[
            "SET latch 2 |        | latch=2",
            "forbid set",
            "set u1      | refused",
            "count u1    | refused",
        ],
    ),
];

timed!(the_table_of_the_latch);
fn the_table_of_the_latch() {
    let server = Server::start();
    for name in NAMES {
        stage(&server, &mut server.connection(), name).play_all(TABLE);
    }
}

#[test]
fn what_is_no_count_is_refused_and_left_as_it_was() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut latch = stage(&server, &mut listener, "odd");
    let all = ["set s", "count c", "delete d", "state"];
    for value in NO_COUNTS {
        latch.refuses(&[&["SET", "latch", value]], &all);
    }
    let kinds: [&[&str]; 3] = [
        &["HSET", "latch", "a", "1"],
        &["RPUSH", "latch", "1"],
        &["SADD", "latch", "1"],
    ];
    latch.refuses(&kinds, &all);
}

/// A model of the latch.
#[derive(Default)]
struct Model {
    count_left: Option<i64>,
    mark: String,
    answers: HashMap<String, i64>,
    received: Vec<String>,
}

impl Model {
    fn run(&mut self, verb: u64, id: &str, count: i64) -> i64 {
        if let Some(answer) = self.answers.get(id) {
            return *answer;
        }
        let answer = match (verb, self.count_left) {
            (0, None) => {
                self.count_left = Some(count);
                Some("1")
            }
            (1, Some(1)) => {
                self.count_left = None;
                Some("0")
            }
            (2, Some(_)) => {
                self.count_left = None;
                Some("1")
            }
            (1, Some(count_left)) if count_left > 1 => {
                self.count_left = Some(count_left - 1);
                Some("")
            }
            (1, _) => {
                self.count_left = None;
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
    let mut listener = server.connection();
    let mut latch = stage(&server, &mut listener, "model");
    let mut model = Model::default();
    let mut state = 20_261_121_u64;
    let mut dice = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for step in 0..4_000_u64 {
        // A third of the steps repeat one of the last twelve requests, or precede it.
        let n = if dice(3) == 0 {
            step.saturating_sub(dice(12))
        } else {
            step
        };
        // A repeated request has the verb of the first.
        let verb = match (n.wrapping_mul(0x9E37_79B9) >> 7) % 7 {
            verb @ (0 | 2) => verb,
            _ => 1,
        };
        let (id, count) = (format!("u:{n}"), 1 + (n % 4).cast_signed());
        let said = match verb {
            0 => latch.says(&format!("set {id} {count}")),
            1 => latch.says(&format!("count {id}")),
            _ => latch.says(&format!("delete {id}")),
        };
        let wanted = model.run(verb, &id, count).to_string();
        assert_eq!(said, wanted, "step {step}, {id}");
        let wanted = match (model.count_left, &*model.mark) {
            (None, _) => "nil".to_owned(),
            (Some(count_left), "") => format!("{count_left} ''"),
            (Some(count_left), mark) => format!("{count_left} {mark}"),
        };
        assert_eq!(latch.says("state"), wanted, "step {step}, {id}");
        if dice(40) == 0 {
            // Set from outside.
            let count_left = [0, -2, 3][usize::try_from(dice(3)).unwrap()];
            server.cli(&["SET", "model", &count_left.to_string()]);
            model.count_left = Some(count_left);
        }
        if step % 500 == 0 {
            assert_eq!(latch.news(), std::mem::take(&mut model.received).join(" "));
        }
    }
}
