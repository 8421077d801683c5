//! The scripts of the plain semaphore: each request counts once, and an undo returns what was acquired.

use redis::Connection;

use crate::support::scripts::NAMES;
use crate::support::semaphore::{ACQUIRE, DRAIN, RELEASE, SET, UNDO};
use crate::support::table::{Call, Stage, Table};
use crate::support::{Server, beside, lua, timed};

/// Each request has a key of its own, and deletes the keys of answered requests.
const CALLS: &[Call] = &[
    ("acquire", ACQUIRE, "s $2 $3? $4?", "$1 120s"),
    ("undo", UNDO, "s channel $1", "120s"),
    ("set", SET, "s channel $2", "$1 120s $3:0"),
    ("delete", lua::SEMAPHORE_DELETE, "s $1 $2?", "120s"),
    ("release", RELEASE, "s channel $2 $3?", "$1 120s 1"),
    ("release_if_there", RELEASE, "s channel $2", "$1 120s 0"),
    ("drain", DRAIN, "s $1 $2?", "120s"),
];

fn stage<'a>(server: &'a Server, listener: &'a mut Connection, name: &str) -> Stage<'a> {
    let words = [
        ("s", name.to_owned()),
        ("channel", beside("redisson_sc", name)),
    ];
    Stage::new(server, listener, CALLS, words)
}

const TABLE: &[Table] = &[
    (
        "an acquire takes all or nothing, and its undo gives back once",
        &[
            "acquire 1 q1       | -1",
            "SET s 3 PX 60s     |    | s=3@60s",
            "acquire 4 q1       | 0",
            "acquire 2 q1       | 1  | q1=2@120s s=1@60s",
            // A late or repeated acquire has no effect: its number is used up.
            "acquire 1 q1       | 0",
            "undo q1            | 1  | q1=void@120s s=3@60s | 3",
            "undo q1            | 0",
            // The undo precedes its acquire.
            "undo q2            | 0  | q1=void@120s q2=void@120s s=3@60s",
            "acquire 1 q2       | 0",
            "acquire 3 q3 q1 q2 | 1  | q3=3@120s s=0@60s",
            // The undo does not create the semaphore again.
            "DEL s              |    | q3=3@120s",
            "undo q3            | 0  | q3=void@120s",
        ],
    ),
    (
        "it lives as long as it was set for, and is deleted once",
        &[
            "delete q1       | 0 | q1=0@120s",
            "set 3 q2 60s    | 1 | q1=0@120s q2=1@120s s=3@60s | 3",
            "delete q1       | 0",
            "delete q3 q1    | 1 | q2=1@120s q3=1@120s",
            "set 5 q4        | 1 | q2=1@120s q3=1@120s q4=1@120s s=5 | 5",
            // Late copies of both.
            "set 3 q2 60s    | 1",
            "delete q3       | 1",
        ],
    ),
    (
        "whoever sets it again hears the same",
        &[
            "set 3 q1 | 1 | q1=1@120s s=3 | 3",
            "set 3 q1 | 1",
            "set 9 q2 | 0 | q1=1@120s q2=0@120s s=3",
            "DEL s    |   | q1=1@120s q2=0@120s",
            "set 9 q2 | 0",
        ],
    ),
    (
        "a release and a drain count once, and keep the TTL",
        &[
            "SET s 3 PX 60s | | s=3@60s",
            "release 2 q3   | 1  | q3=done@120s s=5@60s | 5",
            "release 2 q3   | 0",
            "drain q4 q3    | 5  | q4=5@120s s=0@60s",
            "drain q4 q3    | 5",
            // A message is only sent if a permit is free.
            "release -4 q5  | 0  | q4=5@120s q5=done@120s s=-4@60s",
            "release -4 q5  | 0",
            "drain q6 q4    | -4 | q5=done@120s q6=-4@120s s=0@60s",
            "drain q7 q6    | 0  | q5=done@120s q7=0@120s s=0@60s",
            "DEL s q5 q7    |    | nothing",
            "drain q4       | 0  | q4=0@120s",
            // A late copy of a request takes nothing from the next semaphore, and adds nothing to it.
            "release_if_there 1 q8 | -1 | q4=0@120s q8=none@120s",
            "SET s 3        |    | q4=0@120s q8=none@120s s=3",
            "drain q4       | 0",
            "release_if_there 1 q8 | -1",
            "DEL s          |    | q4=0@120s q8=none@120s",
            "release 1 q9   | 1  | q4=0@120s q8=none@120s q9=done@120s s=1 | 1",
        ],
    ),
    (
        "out of memory a release counts, and counts once",
        &[
            "SET s 3        |    | s=3",
            "release_if_there 1 q1 | 1 | q1=done@120s s=4 | 4",
            "full",
            "release_if_there 1 q1 | 0",
            "release_if_there 1 q2 | 1 | q1=done@120s q2=done@120s s=5 | 5",
            "release_if_there 1 q2 | 0",
            "DEL s          |    | q1=done@120s q2=done@120s",
            "release_if_there 1 q3 | -1 | q1=done@120s q2=done@120s q3=none@120s",
            "release_if_there 1 q3 | -1",
        ],
    ),
];

timed!(the_table_of_the_semaphore);
fn the_table_of_the_semaphore() {
    let server = Server::start();
    for name in NAMES {
        stage(&server, &mut server.connection(), name).play_all(TABLE);
    }
}

#[test]
fn what_is_no_number_of_permits_is_refused_and_kept() {
    let server = Server::start();
    let mut listener = server.connection();
    let values: [&[&str]; 6] = [
        &["HSET", "s", "a", "1"],
        &["RPUSH", "s", "1"],
        &["SET", "s", "ten"],
        &["SET", "s", "1e3"],
        &["SET", "s", " 5"],
        &["SET", "s", "5.0"],
    ];
    let calls = [
        "acquire 1 q",
        "release 1 q",
        "release_if_there 1 q",
        "drain q",
        "set 1 q",
    ];
    stage(&server, &mut listener, "s").refuses(&values, &calls);
}
