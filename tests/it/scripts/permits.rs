//! The scripts of permits with a lease each: a table, and tests of what a table cannot show.

use redis::Connection;

use crate::support::permits::{
    ACQUIRE, ADD, NEVER, RELEASE, RELEASE_IDS, RENEW, SET, STATE, TRY_SET, UPDATE, as_redisson,
    channel, id, now, out, timeouts,
};
use crate::support::scripts::{LEASE, NAMES};
use crate::support::table::{Call, Stage, Table};
use crate::support::{Server, eventually, lua, timed};

/// The last word of a call that must count once is the key of the request.
const CALLS: &[Call] = &[
    ("try_set", TRY_SET, "permits out channel $2", "$1 60s"),
    ("set", SET, "permits out channel $2", "$1 60s"),
    ("add", ADD, "permits out channel $2", "$1 60s"),
    ("acquire", ACQUIRE, "permits out channel", "$2:30s $1"),
    ("release", RELEASE, "permits out channel", "$1"),
    (
        "release_ids",
        RELEASE_IDS,
        "permits out channel $2",
        "$1 60s 0",
    ),
    (
        "release_all",
        RELEASE_IDS,
        "permits out channel $2",
        "$1 60s 1",
    ),
    ("renew", RENEW, "out", "$1 $2 $3"),
    ("update", UPDATE, "permits out channel $3 $4?", "$1 $2 60s"),
    (
        "adopt",
        lua::PERMIT_ADOPT,
        "permits out channel",
        "$1 $2 $3:30s",
    ),
    (
        "delete",
        lua::PERMIT_DELETE,
        "permits out channel $1 $2?",
        "60s",
    ),
    ("lease", lua::PERMIT_LEASE, "permits out channel", "$1"),
    ("state", STATE, "permits out channel", ""),
];

/// `p1` is the id of a permit.
fn stage<'a>(server: &'a Server, listener: &'a mut Connection, name: &str) -> Stage<'a> {
    let mut words = vec![
        ("permits".to_owned(), name.as_bytes().to_vec()),
        ("out".to_owned(), timeouts(name).into()),
        ("channel".to_owned(), channel(name).into()),
        ("never".to_owned(), NEVER.to_string().into()),
    ];
    words.extend((1..=15).map(|n| (format!("p{n}"), id(n))));
    Stage::new(server, listener, CALLS, words)
}

const TABLE: &[Table] = &[
    (
        "several are released together, or none of them",
        &[
            "try_set 4 q1         | 1       | permits=4 q1=1@60s | 4",
            "acquire p1+p2+p3     | now+30s | out{p1:now+30s p2:now+30s p3:now+30s} permits=1 q1=1@60s",
            "release_all p1+p9 q2 | 00",
            "release_all p9 q2    | 0",
            "release_all p1+p2 q3 | 11      | out{p3:now+30s} permits=3 q1=1@60s q3=11@60s | 3",
            "release_all p1+p2 q3 | 11",
            "ZADD out 1 p3        |         | out{p3:1} permits=3 q1=1@60s q3=11@60s",
            "release_all p3 q4    | 0       | permits=4 q1=1@60s q3=11@60s | 4",
        ],
    ),
    (
        "the number and the permits are deleted, and a request that comes twice does not delete the next",
        &[
            "delete q1     | 0       | q1=0@60s",
            "try_set 3 q2  | 1       | permits=3 q1=0@60s q2=1@60s | 3",
            "delete q1     | 0",
            "acquire p1+p2 | now+30s | out{p1:now+30s p2:now+30s} permits=1 q1=0@60s q2=1@60s",
            "delete q3 q1  | 1       | q2=1@60s q3=1@60s",
            "try_set 2 q4  | 1       | permits=2 q2=1@60s q3=1@60s q4=1@60s | 2",
            "delete q3     | 1",
            "acquire p1    | now+30s | out{p1:now+30s} permits=1 q2=1@60s q3=1@60s q4=1@60s",
            "DEL permits   |         | out{p1:now+30s} q2=1@60s q3=1@60s q4=1@60s",
            "delete q5 q4  | 1       | q2=1@60s q3=1@60s q5=1@60s",
        ],
    ),
    (
        "an update that comes twice does not undo a later one",
        &[
            "try_set 2 q1        | 1       | permits=2 q1=1@60s | 2",
            "acquire p1          | now+30s | out{p1:now+30s} permits=1 q1=1@60s",
            "update p1 10s q2 q1 | 1       | out{p1:now+10s} permits=1 q2=1@60s",
            "update p1 90s q3    | 1       | out{p1:now+90s} permits=1 q2=1@60s q3=1@60s",
            "update p1 10s q2    | 1",
            "update p2 10s q4    | 0",
            "release p1          | 1       | permits=2 q2=1@60s q3=1@60s | 2",
            "update p1 10s q2    | 0",
        ],
    ),
    (
        "the keys and messages are Redisson's",
        &[
            "try_set 3 q1      | 1       | permits=3 q1=1@60s | 3",
            "acquire p7+p9     | now+30s | out{p7:now+30s p9:now+30s} permits=1 q1=1@60s",
            "release p7        | 1       | out{p9:now+30s} permits=2 q1=1@60s | 2",
            "release_ids p9 q2 | 1       | permits=3 q1=1@60s q2=1@60s | 3",
        ],
    ),
    (
        "permits that Java took are counted, and those that are over given back, whatever is asked for",
        &[
            "SET permits 0                                    |         | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |         | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "acquire p9                                       | now+30s | out{p1:never p2:now+60s p9:now+30s} permits=2 | 3",
            "state                                            | 2 3 5",
            "lease p1                                         | -1",
            "lease p2                                         | 60s",
            "lease p3                                         | -2",
            "lease p9                                         | 30s",
            "release_ids p1+p3+p2+p1 q1                       | 1010    | out{p9:now+30s} permits=4 q1=1010@60s | 4",
            "state                                            | 4 1 5",
        ],
    ),
    (
        "by the state",
        &[
            "SET permits 0                                    |       | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |       | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "state                                            | 3 2 5 | out{p1:never p2:now+60s} permits=3 | 3",
        ],
    ),
    (
        "by a lease",
        &[
            "SET permits 0                                    |    | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |    | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "lease p3                                         | -2 | out{p1:never p2:now+60s} permits=3 | 3",
        ],
    ),
    (
        "by an update",
        &[
            "SET permits 0                                    |   | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |   | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "update p3 30s q1                                 | 0 | out{p1:never p2:now+60s} permits=3 | 3",
        ],
    ),
    (
        "by a release, which is too late",
        &[
            "SET permits 0                                    |    | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |    | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "release p3                                       | -1 | out{p1:never p2:now+60s} permits=3 | 3",
        ],
    ),
    (
        "by a release of one that is out as well",
        &[
            "SET permits 0                                    |   | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |   | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "release p2+p3                                    | 1 | out{p1:never} permits=4 | 4",
        ],
    ),
    (
        "by a release of any",
        &[
            "SET permits 0                                    |   | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |   | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "release_ids p3 q1                                | 0 | out{p1:never p2:now+60s} permits=3 | 3",
        ],
    ),
    (
        "not by a renewal",
        &[
            "SET permits 0                                    |   | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |   | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "renew p3 30s 1                                   | 0",
        ],
    ),
    (
        "by adding",
        &[
            "SET permits 0                                    |       | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |       | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "add 2 q1                                         | 1     | out{p1:never p2:now+60s} permits=5 q1=1@60s | 5",
            "state                                            | 5 2 7",
        ],
    ),
    (
        "by setting",
        &[
            "SET permits 0                                    |       | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |       | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "set 3 q1                                         | 1     | out{p1:never p2:now+60s} permits=1 q1=1@60s | 1",
            "state                                            | 1 2 3",
        ],
    ),
    (
        "not by setting what is set",
        &[
            "SET permits 0                                    |   | permits=0",
            "ZADD out never p1 now+60s p2 now+-1 p3 1 p4 0 p5 |   | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0",
            "try_set 9 q1                                     | 0 | out{p1:never p2:now+60s p3:now+0s p4:1 p5:0} permits=0 q1=0@60s",
        ],
    ),
    (
        "one who finds too few is told when enough may be over",
        &[
            "acquire p1                                                    | -2",
            "SET permits 1                                                 |     | permits=1",
            "acquire p1+p2                                                 | -1",
            // Scores below zero do not expire in the future.
            "ZADD out now+10s p11 now+20s p12 now+30s p13 never p14 -5 p15 |     | out{p11:now+10s p12:now+20s p13:now+30s p14:never p15:-5} permits=1",
            "acquire p1+p2                                                 | 10s",
            "acquire p1+p2+p3                                              | 20s",
            "acquire p1+p2+p3+p4                                           | 30s",
            "acquire p1+p2+p3+p4+p5                                        | -1",
            "SET permits -2                                                |     | out{p11:now+10s p12:now+20s p13:now+30s p14:never p15:-5} permits=-2",
            "acquire p1                                                    | 30s",
            "acquire p1+p2                                                 | -1",
        ],
    ),
    (
        "the number is set once, and none to be had is not unset",
        &[
            "try_set 0 q1 | 1     | permits=0 q1=1@60s",
            "try_set 5 q2 | 0     | permits=0 q1=1@60s q2=0@60s",
            "DEL q1 q2    |       | permits=0",
            "set 0 q3     | 1     | permits=0 q3=1@60s",
            "FLUSHALL     |       | nothing",
            "set 0 q1     | 1     | permits=0 q1=1@60s",
            "FLUSHALL     |       | nothing",
            "add 2 q1     | 1     | permits=2 q1=1@60s | 2",
            "state        | 2 0 2",
        ],
    ),
    (
        "the number is changed at will while permits are out, and keeps its TTL",
        &[
            "set 4 q1             | 1                       | permits=4 q1=1@60s | 4",
            "acquire p1+p2+p3     | now+30s                 | out{p1:now+30s p2:now+30s p3:now+30s} permits=1 q1=1@60s",
            "PEXPIRE permits 600s |                         | out{p1:now+30s p2:now+30s p3:now+30s} permits=1@600s q1=1@60s",
            "set 4 q2             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=1@600s q1=1@60s q2=1@60s",
            "set 2 q3             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=-1@600s q1=1@60s q2=1@60s q3=1@60s",
            "set 3 q4             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=0@600s q1=1@60s q2=1@60s q3=1@60s q4=1@60s",
            "DEL q1 q2 q3 q4      |                         | out{p1:now+30s p2:now+30s p3:now+30s} permits=0@600s",
            "add 2 q1             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=2@600s q1=1@60s | 2",
            "add -1 q2            | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=1@600s q1=1@60s q2=1@60s",
            "add -3 q3            | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=-2@600s q1=1@60s q2=1@60s q3=1@60s",
            "add 1 q4             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=-1@600s q1=1@60s q2=1@60s q3=1@60s q4=1@60s",
            "DEL q1 q2 q3 q4      |                         | out{p1:now+30s p2:now+30s p3:now+30s} permits=-1@600s",
            "set 9 q1             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=6@600s q1=1@60s | 6",
            "set 0 q2             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=-3@600s q1=1@60s q2=1@60s",
            // The published number is limited to what Java can read.
            "set 2147483647 q3    | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=2147483644@600s q1=1@60s q2=1@60s q3=1@60s | 2147483644",
            "add 5 q4             | 1                       | out{p1:now+30s p2:now+30s p3:now+30s} permits=2147483649@600s q1=1@60s q2=1@60s q3=1@60s q4=1@60s | 2147483647",
            "DEL q1 q2 q3 q4      |                         | out{p1:now+30s p2:now+30s p3:now+30s} permits=2147483649@600s",
            "state                | 2147483649 3 2147483652",
            "release p1           | 1                       | out{p2:now+30s p3:now+30s} permits=2147483650@600s | 2147483647",
            // Both keys get the same time to live.
            "acquire p9           | now+30s                 | out{p2:now+30s p3:now+30s p9:now+30s}@600s permits=2147483649@600s",
        ],
    ),
    (
        "permits that are out although the number was deleted belong to the new one",
        &[
            "ZADD out now+-1 p1 now+60s p2 |       | out{p1:now+0s p2:now+60s}",
            "try_set 5 q1                  | 1     | out{p2:now+60s} permits=4 q1=1@60s | 4",
            "state                         | 4 1 5",
        ],
    ),
    (
        "the same, set",
        &[
            "ZADD out now+-1 p1 now+60s p2 |       | out{p1:now+0s p2:now+60s}",
            "set 5 q1                      | 1     | out{p2:now+60s} permits=4 q1=1@60s | 4",
            "state                         | 4 1 5",
        ],
    ),
    (
        "a request that comes twice counts once",
        &[
            "try_set 2 q1               | 1       | permits=2 q1=1@60s | 2",
            "try_set 2 q1               | 1",
            "add 2 q2                   | 1       | permits=4 q1=1@60s q2=1@60s | 4",
            "add 2 q2                   | 1",
            "set 3 q3                   | 1       | permits=3 q1=1@60s q2=1@60s q3=1@60s",
            "SET permits 1              |         | permits=1 q1=1@60s q2=1@60s q3=1@60s",
            "set 3 q3                   | 1",
            "DEL q1 q2 q3               |         | permits=1",
            "acquire p1                 | now+30s | out{p1:now+30s} permits=0",
            "acquire p1                 | now+30s",
            "state                      | 0 1 1",
            "release p1                 | 1       | permits=1 | 1",
            "release p1                 | -1",
            "SET permits 3              |         | permits=3",
            "acquire p1+p2+p3           | now+30s | out{p1:now+30s p2:now+30s p3:now+30s} permits=0",
            "release_ids p1+p9+p2+p1 q1 | 1010    | out{p3:now+30s} permits=2 q1=1010@60s | 2",
            "release_ids p1+p9+p2+p1 q1 | 1010",
            "state                      | 2 1 3",
            "release_ids '' q2          | ''",
        ],
    ),
    (
        "an acquire that comes again changes nothing while one of its permits is out",
        &[
            "try_set 5 q1        | 1       | permits=5 q1=1@60s | 5",
            "acquire p1+p2+p3    | now+30s | out{p1:now+30s p2:now+30s p3:now+30s} permits=2 q1=1@60s",
            "release p1+p2       | 1       | out{p3:now+30s} permits=4 q1=1@60s | 4",
            "acquire p1+p2+p3    | now+30s",
            "state               | 4 1 5",
            "acquire p7+p8+p9    | now+30s | out{p3:now+30s p7:now+30s p8:now+30s p9:now+30s} permits=1 q1=1@60s",
            "acquire p1+p2+p3    | now+30s",
            "release p7+p8+p9+p3 | 1       | permits=5 q1=1@60s | 5",
            "acquire p1+p2+p3    | now+30s | out{p1:now+30s p2:now+30s p3:now+30s} permits=2 q1=1@60s",
            "release p1+p3       | 1       | out{p2:now+30s} permits=4 q1=1@60s | 4",
            "acquire p1+p2+p3    | now+30s",
            "release p2          | 1       | permits=5 q1=1@60s | 5",
            "acquire p1+p2+p3    | now+30s | out{p1:now+30s p2:now+30s p3:now+30s} permits=2 q1=1@60s",
            "release p2+p3       | 1       | out{p1:now+30s} permits=4 q1=1@60s | 4",
            "acquire p1+p2+p3    | now+30s",
        ],
    ),
    (
        "that the number had been set before is remembered",
        &[
            "SET permits 2 |   | permits=2",
            "try_set 5 q1  | 0 | permits=2 q1=0@60s",
            "DEL permits   |   | q1=0@60s",
            "try_set 5 q1  | 0",
        ],
    ),
    (
        "without the right to publish permits are given back all the same",
        &[
            "SET permits 1     |         | permits=1",
            "ZADD out 1 p1     |         | out{p1:1} permits=1",
            "deaf",
            "acquire p2+p3     | now+30s | out{p2:now+30s p3:now+30s} permits=0",
            "release p2        | 0       | out{p3:now+30s} permits=1",
            "release_ids p3 q1 | 1       | permits=2 q1=1@60s",
            "set 3 q2          | 1       | permits=3 q1=1@60s q2=1@60s",
            "add 3 q3          | 1       | permits=6 q1=1@60s q2=1@60s q3=1@60s",
            "state             | 6 0 6",
        ],
    ),
    (
        "a permit that cannot be counted is not taken",
        &[
            "SET permits 5 |     | permits=5",
            "forbid decrby",
            "acquire p1+p2 | refused",
        ],
    ),
    (
        "nor one that cannot be noted",
        &[
            "SET permits 5 |        | permits=5",
            "forbid zadd",
            "acquire p1+p2 | refused",
        ],
    ),
    (
        "a permit is adopted once, under another id and for its lease",
        &[
            "try_set 4 q1      | 1       | permits=4 q1=1@60s | 4",
            "acquire p1+p2     | now+30s | out{p1:now+30s p2:now+30s} permits=2 q1=1@60s",
            "adopt p1 p3 60s   | now+60s | out{p2:now+30s p3:now+60s} permits=2 q1=1@60s",
            "adopt p1 p3 90s   | now+90s | out{p2:now+30s p3:now+90s} permits=2 q1=1@60s",
            "adopt p1 p3 60s   | now+90s | out{p2:now+30s p3:now+90s} permits=2 q1=1@60s",
            "adopt p1 p4       | 0",
            "ZADD out 1 p3     |         | out{p2:now+30s p3:1} permits=2 q1=1@60s",
            "adopt p3 p5       | 0       | out{p2:now+30s} permits=3 q1=1@60s | 3",
            "full",
            "adopt p2 p4       | now+30s | out{p4:now+30s} permits=3 q1=1@60s",
            "release p2        | -1",
            "release p4        | 1       | permits=4 q1=1@60s | 4",
        ],
    ),
    (
        "out of memory nothing is taken and everything given back",
        &[
            "try_set 4 q1      | 1       | permits=4 q1=1@60s | 4",
            "acquire p1+p2+p3  | now+30s | out{p1:now+30s p2:now+30s p3:now+30s} permits=1 q1=1@60s",
            "full",
            "acquire p4        | OOM",
            "add 1 q2          | OOM",
            "set 9 q3          | OOM",
            "state             | 1 3 4",
            "release p1        | 1       | out{p2:now+30s p3:now+30s} permits=2 q1=1@60s | 2",
            "release_ids p2 q4 | 1       | out{p3:now+30s} permits=3 q1=1@60s q4=1@60s | 3",
            "state             | 3 1 4",
        ],
    ),
    (
        "out of memory nothing is set",
        &["full", "try_set 9 q1 | OOM"],
    ),
];

timed!(the_table_of_the_permits);
fn the_table_of_the_permits() {
    let server = Server::start();
    for name in NAMES {
        stage(&server, &mut server.connection(), name).play_all(TABLE);
    }
}

/// When a permit expires; 0 if it is not held.
fn ends_at(server: &Server, of: u8) -> i64 {
    let all = out(server, "x");
    all.iter()
        .find(|(known, _)| *known == id(of))
        .map_or(0, |(_, at)| *at)
}

/// Renews a permit for a client that believes in this expiry; returns the reply.
fn renew(stage: &mut Stage<'_>, of: u8, lease: i64, ends_at: i64) -> i64 {
    let reply = stage
        .call(&format!("renew p{of} {lease} {ends_at}"))
        .unwrap();
    redis::from_redis_value(reply).unwrap()
}

#[test]
fn a_lease_is_renewed_and_never_shortened_and_an_update_does_either() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    x.says("try_set 3 q1");
    x.says("acquire p1");
    let first = ends_at(&server, 1);
    let second = renew(&mut x, 1, 2 * LEASE, first);
    assert_eq!(second, ends_at(&server, 1), "it says when it ends");
    assert_eq!(x.says("lease p1"), "60s");
    assert_eq!(renew(&mut x, 1, 1, second), second);
    assert_eq!(x.says("lease p1"), "60s");
    assert_eq!(renew(&mut x, 2, LEASE, second), 0);
    assert_eq!(x.says("update p2 30s q2"), "0");
    let century = 100 * 365 * 24 * 3_600_000_i64;
    for (lease, lease_left) in [("30s", "30s"), ("90s", "90s"), (&*century.to_string(), "")] {
        assert_eq!(x.says(&format!("update p1 {lease} of{lease}")), "1");
        assert!(lease_left.is_empty() || x.says("lease p1") == lease_left);
    }
    assert!((century - 10_000..=century).contains(&(ends_at(&server, 1) - now(&server))));
    // Java clients acquire such permits, without an expiry.
    as_redisson(&server, "x", &id(8), NEVER);
    assert_eq!(renew(&mut x, 8, LEASE, 1), NEVER);
    assert_eq!(x.says("lease p8"), "-1");
    assert_eq!(x.says("update p8 30s q8"), "1");
    assert_eq!(x.says("lease p8"), "30s");
    assert_eq!(x.says("update p1 20 q3"), "1");
    eventually("it is over", || x.says("lease p1") == "-2");
    assert_eq!(x.says("state"), "3 1 4");
}

#[test]
fn a_renewal_that_comes_late_does_not_undo_an_update() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    x.says("try_set 1 q1");
    x.says("acquire p1");
    let believed = ends_at(&server, 1);
    for lease in [LEASE / 2, LEASE + 5_000] {
        assert_eq!(x.says(&format!("update p1 {lease} of{lease}")), "1");
        let updated = ends_at(&server, 1);
        let said = renew(&mut x, 1, 2 * LEASE, believed);
        assert_eq!(said, -updated, "it says when it ends");
        assert_eq!(ends_at(&server, 1), updated);
    }
    // A client that knows the present expiry may renew, even if it is not an integer.
    x.says("ZINCRBY out 0.25 p1");
    let learnt = -renew(&mut x, 1, 2 * LEASE, believed);
    let renewed = renew(&mut x, 1, 2 * LEASE, learnt);
    assert_eq!(renewed, ends_at(&server, 1));
    assert_eq!(x.says("lease p1"), "60s");
}

#[test]
fn permits_that_come_back_do_not_make_a_number_that_is_gone() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    for (call, reply) in [
        ("release p1", "0"),
        ("release_ids p1 q9", "1"),
        ("state", "0 2 0"),
        // The semaphore does not exist, so the expiry of a permit frees nothing for a waiter.
        ("acquire p7", "-2"),
        ("update p1 30s q9", "1"),
        ("lease p1", "30s"),
    ] {
        server.cli(&["FLUSHALL"]);
        for row in [
            "try_set 5 q1",
            "acquire p1+p2",
            "DEL permits",
            "ZADD out 1 p3",
        ] {
            x.says(row);
        }
        assert_eq!(x.says(call), reply);
        assert!(!server.exists("x"), "{call}");
        assert_eq!(x.says("try_set 5 q2"), "1", "{call}");
        x.says("release p1+p2");
        assert_eq!(x.says("state"), "5 0 5", "{call}");
    }
    // The number of permits is unknown, so expired permits add nothing to it, however many there are.
    server.cli(&["FLUSHALL"]);
    fill_with_over(&server, "x", 1_500);
    as_redisson(&server, "x", &id(1), NEVER);
    assert_eq!(x.says("add 3 q1"), "1");
    assert_eq!(x.says("state"), "3 1 4");
}

/// Adds `n` expired permits, with ids of 16 bytes.
fn fill_with_over(server: &Server, name: &str, n: i64) {
    let fill = "
for i = 1, ARGV[1] do
  redis.call('zadd', KEYS[1], i, string.format('%016d', i))
end";
    server.cli(&["EVAL", fill, "1", &timeouts(name), &n.to_string()]);
}

/// The ids of [`fill_with_over`].
fn over_ids(of: impl IntoIterator<Item = i64>) -> String {
    of.into_iter().map(|n| format!("{n:016}")).collect()
}

/// Calls with their replies, and the counts after them.
type Case<'a> = (&'a [(&'a str, &'a str)], [i64; 3]);

/// The three numbers of the state.
fn counts(x: &mut Stage<'_>) -> [i64; 3] {
    redis::from_redis_value(x.call("state").unwrap()).unwrap()
}

#[test]
fn no_call_gives_back_more_than_a_thousand_and_all_count_as_if_it_did() {
    const OVER: i64 = 5_000;
    let last = over_ids([OVER]);
    let many: Vec<_> = (0..200).map(|n| over_ids([OVER + 1 + n])).collect();
    let very_many = over_ids((1..=2_000).map(|n| -n));
    let cases: &[Case<'_>] = &[
        // `says` prints numbers as times.
        (&[("state", "10s 1 10s")], [OVER, 1, OVER + 1]),
        (
            &[(&format!("acquire {}", many.concat()), "now+30s")],
            [OVER - 200, 201, OVER + 1],
        ),
        // Enough permits have expired, but they are not all returned yet.
        (
            &[(&format!("acquire {very_many}"), "1")],
            [OVER, 1, OVER + 1],
        ),
        (
            &[
                (&format!("release p7+{last}"), "1"),
                // The permit had expired.
                (&format!("release {last}"), "-1"),
            ],
            [OVER + 1, 0, OVER + 1],
        ),
        (
            &[(&format!("release_ids {last}+p7 q1"), "01")],
            [OVER + 1, 0, OVER + 1],
        ),
        (
            &[(&format!("update {last} 60s q1"), "0")],
            [OVER, 1, OVER + 1],
        ),
        (&[(&format!("lease {last}"), "-2")], [OVER, 1, OVER + 1]),
        (&[("set 9 q1", "1")], [8, 1, 9]),
        (&[("add 2 q1", "1")], [OVER + 2, 1, OVER + 3]),
    ];
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    let listed = || server.ask::<i64>(&["ZCOUNT", &timeouts("x"), "0", "1e9"]);
    for (calls, after) in cases {
        server.cli(&["FLUSHALL"]);
        server.cli(&["SET", "x", "0"]);
        fill_with_over(&server, "x", OVER);
        as_redisson(&server, "x", &id(7), NEVER);
        for (n, (call, reply)) in (1..).zip(*calls) {
            let call_is = call.get(..30).unwrap_or(call);
            let said = x.call(call);
            assert_eq!(listed(), OVER - 1_000 * n, "{call_is}");
            assert_eq!(x.reply(said), *reply, "{call_is}");
        }
        let score: Option<f64> = server.ask(&["ZSCORE", &timeouts("x"), &last]);
        assert_eq!(score, Some(5_000.0), "left for later");
        eventually("all are given back", || {
            assert_eq!(counts(&mut x), *after);
            listed() == 0
        });
        assert_eq!(server.get_int("x"), after[0]);
    }
    // Setting the number for the first time is limited in the same way.
    server.cli(&["FLUSHALL"]);
    fill_with_over(&server, "x", OVER);
    as_redisson(&server, "x", &id(7), NEVER);
    assert_eq!(x.says("try_set 9 q1"), "1");
    assert_eq!(listed(), OVER - 1_000);
    assert_eq!(x.says("state"), "8 1 9");
}

#[test]
fn a_thousand_are_taken_and_given_back_at_once() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    assert_eq!(x.says("try_set 1500 q1"), "1");
    let of = |from: i64| over_ids(from..from + 1_000);
    for _ in 0..2 {
        assert_eq!(x.says(&format!("acquire {}", of(0))), "now+30s");
    }
    assert_eq!(server.get_int("x"), 500);
    assert_eq!(out(&server, "x").len(), 1_000);
    assert_eq!(x.says(&format!("acquire {}", of(5_000))), "30s");
    assert_eq!(
        x.says(&format!("release_ids {} q2", of(0))),
        "1".repeat(1_000)
    );
    assert_eq!((server.get_int("x"), out(&server, "x").len()), (1_500, 0));
}

// The clock of the server decides, whatever the clients' clocks show.
#[test]
fn a_permit_ends_by_the_servers_clock() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    x.says("try_set 1 q1");
    x.says("acquire p1 150");
    let over_at = ends_at(&server, 1);
    let mut asked = 0;
    while x.says("acquire p2") != "now+30s" {
        assert!(now(&server) <= over_at + 5_000);
        asked += 1;
    }
    assert!(now(&server) >= over_at && asked > 0);
    assert_eq!(renew(&mut x, 1, LEASE, over_at), 0);
    assert_eq!(x.says("release p1"), "-1");
    assert_eq!(x.says("state"), "0 1 1");
}

#[test]
fn keys_of_another_type_are_refused_and_left_alone() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut x = stage(&server, &mut listener, "x");
    let all = [
        "try_set 3 q1",
        "set 3 q1",
        "add 3 q1",
        "acquire p1",
        "update p1 30s q1",
        "lease p1",
        "adopt p1 p2",
        "state",
        "release p1",
        "release_ids p1 q1",
    ];
    // An expired permit, which a call would return if it were not rejected.
    let over = [";", "ZADD", "out", "1", "p1"];
    for make in [
        ["HSET", "permits", "a", "1"].as_slice(),
        &["RPUSH", "permits", "a"],
        &["ZADD", "permits", "1", "a"],
    ] {
        x.refuses(&[&[make, &over].concat()], &all);
    }
    for value in [
        "many",
        "''",
        "1.5",
        "1e3",
        "0x10",
        " 7",
        "007",
        "-0",
        "7\n",
        "9223372036854775807",
    ] {
        x.refuses(&[&[&["SET", "permits", value][..], &over].concat()], &all);
    }
    let others: [&[&str]; 2] = [
        &["SET", "out", "7", ";", "SET", "permits", "1"],
        &["HSET", "out", "a", "1", ";", "SET", "permits", "1"],
    ];
    x.refuses(&others, &[&all[..], &["renew p1 30s 1"]].concat());
}
