//! The scripts of the read-write lock: tables, and the cost of many readers.

use redis::Connection;

use crate::support::rw_scripts::{channel, hold, note, prefix};
use crate::support::scripts::{LEASE, NAMES, THEM, US, assert_left, run};
use crate::support::table::{Call, Stage, Table};
use crate::support::{Server, eventually, lua, timed};

/// A reader of a Redisson client.
const JAVA: &str = "3c2b1a09-8f7e-4d6c-b5a4-938271605f4e:31";

const HOLD: &str = "lock channel prefix+$1+:rwlock_timeout:1";

/// The calls that begin with `ask` leave a note for the time in the third word, and the second word says whom they are
/// behind; `below` reads below a write hold.
const CALLS: &[Call] = &[
    ("read", lua::RW_READ_ACQUIRE, READ, "$1 '' 0 20s $2:30s ''"),
    ("below", lua::RW_READ_ACQUIRE, READ, "$1 ? 0 20s $3:30s $2"),
    (
        "ask_read",
        lua::RW_READ_ACQUIRE,
        READ,
        "$1 $2 $3:0 20s 90s ''",
    ),
    ("leave", lua::RW_READ_RELEASE, HOLD, "$1 prefix"),
    ("renew", lua::RW_READ_RENEW, HOLD, "$1 $2:30s"),
    ("write", lua::RW_WRITE_ACQUIRE, WRITE, "$1 '' 0 20s $2:30s"),
    (
        "ask_write",
        lua::RW_WRITE_ACQUIRE,
        WRITE,
        "$1 $2 $3:0 20s 90s",
    ),
    ("end", lua::RW_WRITE_RELEASE, "lock channel", "$1"),
    ("renew_write", lua::LOCK_RENEW, "lock", "$1 $2:30s $3:1"),
    ("keep_read", lua::LOCK_KEEP, HOLD, "$1 $2:30s read"),
    (
        "keep_write",
        lua::LOCK_KEEP,
        "lock channel",
        "$1 $2:30s write",
    ),
    ("force", lua::RW_FORCE, "lock channel $1", "30s"),
    (
        "undo_read",
        lua::RW_READ_RELEASE,
        "lock channel prefix+$1+:rwlock_timeout:1 readers",
        "$1 prefix",
    ),
    (
        "undo_write",
        lua::RW_WRITE_RELEASE,
        "lock channel writers",
        "$1",
    ),
    ("state", lua::RW_STATE, "lock", ""),
];

const READ: &str = "lock readers writers prefix+$1+:rwlock_timeout:1";
const WRITE: &str = "lock writers readers";

/// `a` and `b` read, `w` and `v` write, `j` reads in Java; `a.1` is the key of a hold of `a`.
fn stage<'a>(server: &'a Server, listener: &'a mut Connection, name: &str) -> Stage<'a> {
    let words = [
        ("lock", name.to_owned()),
        ("channel", channel(name)),
        ("prefix", prefix(name)),
        ("readers", note(name, "reader")),
        ("writers", note(name, "writer")),
        ("a", US.to_owned()),
        ("b", THEM.to_owned()),
        ("j", JAVA.to_owned()),
        (
            "w",
            "0b7e1c52-6f0a-4f3e-9b8f-1d2c3a4b5c6d:2:write".to_owned(),
        ),
        ("jw", format!("{JAVA}:write")),
        (
            "v",
            "9f8e7d6c-5b4a-4321-8fed-cba987654321:58:write".to_owned(),
        ),
        ("a.1", hold(name, US, 1)),
        ("b.1", hold(name, THEM, 1)),
        ("j.1", hold(name, JAVA, 1)),
        ("j.2", hold(name, JAVA, 2)),
        ("j.3", hold(name, JAVA, 3)),
        ("j.4", hold(name, JAVA, 4)),
    ];
    Stage::new(server, listener, CALLS, words)
}

/// Grants, renewals and releases in every state of two owners are those of `rw_model`; here is what that model does not have.
const TABLE: &[Table] = &[
    (
        "reading again restores what is missing",
        &[
            "read a       | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "DEL a.1      |          | lock{a:1 mode:read}@30s",
            "PERSIST lock |          | lock{a:1 mode:read}",
            "read a       | 1 -1 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "PERSIST a.1  |          | a.1=1 lock{a:1 mode:read}@30s",
            "read a       | 1 30s '' | a.1=1@30s lock{a:1 mode:read}@30s",
        ],
    ),
    (
        "reading tells how long the lock would have lived: others may shorten it again",
        &[
            "read a           | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "PEXPIRE lock 20s |          | a.1=1@30s lock{a:1 mode:read}@20s",
            "read b           | 1 20s '' | a.1=1@30s b.1=1@30s lock{a:1 b:1 mode:read}@30s",
            "PERSIST lock     |          | a.1=1@30s b.1=1@30s lock{a:1 b:1 mode:read}",
            "read j           | 1 -1 ''  | a.1=1@30s b.1=1@30s j.1=1@30s lock{a:1 b:1 j:1 mode:read}@30s",
        ],
    ),
    (
        "reading what somebody writes",
        &[
            "write v 60s        | 1 -2 ''  | lock{mode:write v:1}@60s",
            "read a             | 0 60s ''",
            "below a ''         | 0 60s ''",
            "below a w          | 0 60s ''",
            "below a a          | 0 60s ''",
            "below a mode:write | 0 60s ''",
            "PERSIST lock       |          | lock{mode:write v:1}",
            "read a             | 0 -1 ''",
        ],
    ),
    (
        "who waits is behind the one of the other side that was noted when it first asked",
        &[
            "read a 90s           | 1 -2 ''  | a.1=1@90s lock{a:1 mode:read}@90s",
            // A waiting writer leaves a note and asks again before the note expires; a single attempt leaves none.
            "ask_write v ?        | 0 90s ''",
            "ask_write w ? 40s    | 0 20s '' | a.1=1@90s lock{a:1 mode:read}@90s writers=w@40s",
            "ask_write w '' 40s   | 0 20s ''",
            // The reply tells another writer to ask again when that note may have expired.
            "ask_write v ? 40s    | 0 40s ''",
            // Readers that come now are behind the writer; readers that came before are not.
            "ask_read b ?         | 0 40s w",
            "ask_read b ? 40s     | 0 20s w  | a.1=1@90s lock{a:1 mode:read}@90s readers=b@40s writers=w@40s",
            "ask_read b w 40s     | 0 20s w",
            "ask_read j ''        | 1 90s '' | a.1=1@90s j.1=1@90s lock{a:1 j:1 mode:read}@90s writers=w@40s",
            "ask_read j ?         | 1 90s ''",
            // The lock is free: the noted writer enters, and its note is removed.
            "ask_read b w 40s     | 0 20s w  | a.1=1@90s j.1=1@90s lock{a:1 j:1 mode:read}@90s readers=b@40s writers=w@40s",
            "DEL lock j.1 a.1     |          | readers=b@40s writers=w@40s",
            "ask_write w '' 40s   | 1 -2 ''  | lock{mode:write w:1}@90s readers=b@40s",
            // The next writer is behind the noted reader. A waiter whose predecessor has changed is no longer behind
            // anybody.
            "DEL lock             |          | readers=b@40s",
            "ask_write v ? 40s    | 0 20s b  | readers=b@40s writers=v@40s",
            "ask_read b x 40s     | 1 -2 ''  | b.1=1@90s lock{b:1 mode:read}@90s writers=v@40s",
        ],
    ),
    (
        "a note without an end is nobody's",
        &[
            "SET writers w    |         | writers=w",
            "ask_read a ? 40s | 1 -2 '' | a.1=1@90s lock{a:1 mode:read}@90s writers=w",
        ],
    ),
    (
        "undoing an acquire removes its own note as well, and notifies those behind it",
        &[
            "SET writers w PX 40s |         | writers=w@40s",
            "undo_write v         | -1      | = | 1",
            "end w                | -1      | = | 1",
            "undo_write w         | -1      | nothing | 1 1",
            "undo_write w         | -1      | = | 1",
            "write v              | 1 -2 '' | lock{mode:write v:1}@30s",
            "ask_read a ? 40s     | 0 20s '' | lock{mode:write v:1}@30s readers=a@40s",
            "ask_write w ? 40s    | 0 20s a | lock{mode:write v:1}@30s readers=a@40s writers=w@40s",
            "undo_read b          | -2",
            "undo_read a          | -2      | lock{mode:write v:1}@30s writers=w@40s | 1",
            "undo_write w         | -2      | lock{mode:write v:1}@30s | 1",
            "undo_write v         | 1       | nothing | 1",
            "read a               | 1 -2 '' | a.1=1@30s lock{a:1 mode:read}@30s",
            "undo_read a          | 1       | nothing | 0",
        ],
    ),
    (
        "a release counts who listened",
        &[
            "listen",
            "read a  | 1 -2 '' | a.1=1@30s lock{a:1 mode:read}@30s",
            "leave a | 2       | nothing | 0",
            "write w | 1 -2 '' | lock{mode:write w:1}@30s",
            "end w   | 2       | nothing | 1",
            "listen",
            "read a  | 1 -2 '' | a.1=1@30s lock{a:1 mode:read}@30s",
            "leave a | 3       | nothing | 0",
            "write w | 1 -2 '' | lock{mode:write w:1}@30s",
            "end w   | 3       | nothing | 1",
        ],
    ),
    (
        "a reader leaves the lock the time of those who stay",
        &[
            "read a 150s      | 1 -2 ''   | a.1=1@150s lock{a:1 mode:read}@150s",
            "read b           | 1 150s '' | a.1=1@150s b.1=1@30s lock{a:1 b:1 mode:read}@150s",
            "read j 90s       | 1 150s '' | a.1=1@150s b.1=1@30s j.1=1@90s lock{a:1 b:1 j:1 mode:read}@150s",
            "leave a          | 0         | b.1=1@30s j.1=1@90s lock{b:1 j:1 mode:read}@90s",
            // The lock may also get longer: Redisson's renewal of another reader may have shortened it.
            "PEXPIRE lock 20s |           | b.1=1@30s j.1=1@90s lock{b:1 j:1 mode:read}@20s",
            "leave b          | 0         | j.1=1@90s lock{j:1 mode:read}@90s",
        ],
    ),
    (
        "releasing a hold that ran out, or whose lock did",
        &[
            "read a   | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "read b   | 1 30s '' | a.1=1@30s b.1=1@30s lock{a:1 b:1 mode:read}@30s",
            "DEL a.1  |          | b.1=1@30s lock{a:1 b:1 mode:read}@30s",
            "leave a  | 0        | b.1=1@30s lock{b:1 mode:read}@30s",
            "DEL lock |          | b.1=1@30s",
            "leave b  | -1       | nothing | 0",
        ],
    ),
    (
        "renewing never shortens: with Redisson the lock gets the lease of the last",
        &[
            "read a 60s       | 1 -2 ''  | a.1=1@60s lock{a:1 mode:read}@60s",
            "read b 150s      | 1 60s '' | a.1=1@60s b.1=1@150s lock{a:1 b:1 mode:read}@150s",
            "calls pexpire    | 2",
            "renew a          | 1",
            "renew a          | 1",
            "calls pexpire    | 2",
            "PEXPIRE lock 30s |          | a.1=1@60s b.1=1@150s lock{a:1 b:1 mode:read}@30s",
            "renew b          | 30s      | a.1=1@60s b.1=1@150s lock{a:1 b:1 mode:read}@150s",
        ],
    ),
    (
        "renewing tells when others have shortened the lock, even for no time at all",
        &[
            "read a 90s       | 1 -2 ''  | a.1=1@90s lock{a:1 mode:read}@90s",
            "renew a 1        | 1",
            "PEXPIRE lock 30s |          | a.1=1@90s lock{a:1 mode:read}@30s",
            "renew a 1        | 30s      | a.1=1@90s lock{a:1 mode:read}@90s",
            "renew a 1        | 1",
            "PEXPIRE lock 30s |          | a.1=1@90s lock{a:1 mode:read}@30s",
            "renew a 90s      | 30s      | a.1=1@90s lock{a:1 mode:read}@90s",
            // A lock that nobody shortened expires together with the hold.
            "pass 30s         |          | a.1=1@60s lock{a:1 mode:read}@60s",
            "renew a 90s      | 1        | a.1=1@90s lock{a:1 mode:read}@90s",
            // After the release of a longer hold, the lock has the time of the longest remaining one.
            "read b 270s      | 1 90s '' | a.1=1@90s b.1=1@270s lock{a:1 b:1 mode:read}@270s",
            "leave b          | 0        | a.1=1@90s lock{a:1 mode:read}@90s",
            "renew a 90s      | 1",
            "PERSIST lock     |          | a.1=1@90s lock{a:1 mode:read}",
            "renew a 90s      | 1        | a.1=1@90s lock{a:1 mode:read}@90s",
        ],
    ),
    (
        "renewing restores missing ends",
        &[
            "read a       | 1 -2 '' | a.1=1@30s lock{a:1 mode:read}@30s",
            "PERSIST lock |         | a.1=1@30s lock{a:1 mode:read}",
            "PERSIST a.1  |         | a.1=1 lock{a:1 mode:read}",
            "renew a      | 1       | a.1=1@30s lock{a:1 mode:read}@30s",
        ],
    ),
    (
        "renewing never creates",
        &[
            "renew a     | 0",
            "renew a     | 0",
            "read b      | 1 -2 '' | b.1=1@30s lock{b:1 mode:read}@30s",
            "renew a 90s | 0",
            "renew a 90s | 0",
            "leave b     | 1       | nothing | 0",
            "write v     | 1 -2 '' | lock{mode:write v:1}@30s",
            "renew a 90s | -1",
            "renew a 90s | -1",
        ],
    ),
    (
        "a hold that lost its half is lost whole: a writer of Redisson would wait for the rest",
        &[
            "read a    | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "read b    | 1 30s '' | a.1=1@30s b.1=1@30s lock{a:1 b:1 mode:read}@30s",
            "DEL a.1   |          | b.1=1@30s lock{a:1 b:1 mode:read}@30s",
            "renew a   | 0        | b.1=1@30s lock{b:1 mode:read}@30s",
            "DEL b.1   |          | lock{b:1 mode:read}@30s",
            "renew b   | 0        | nothing | 0",
            "renew b   | 0",
            // The lock expired, was forced open, or has another owner by now.
            "read a    | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "DEL lock  |          | a.1=1@30s",
            "renew a   | 0        | nothing",
            "read a    | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "DEL lock  |          | a.1=1@30s",
            "write v   | 1 -2 ''  | a.1=1@30s lock{mode:write v:1}@30s",
            "renew a   | -1       | lock{mode:write v:1}@30s",
            // Below a write hold, only the read hold is lost.
            "DEL lock  |          | nothing",
            "write w   | 1 -2 ''  | lock{mode:write w:1}@30s",
            "below a w | 1 30s '' | a.1=1@30s lock{a:1 mode:write w:1}@30s",
            "DEL a.1   |          | lock{a:1 mode:write w:1}@30s",
            "renew a   | -1       | lock{mode:write w:1}@30s",
        ],
    ),
    (
        "writing twice changes nothing more: with Redisson it would add up",
        &[
            "write w 60s         | 1 -2 '' | lock{mode:write w:1}@60s",
            "state               | 2",
            "renew_write w 30s 3 | 1       | lock{mode:write w:3}@60s",
            "write w             | 1 -2 ''",
            "write w 60s         | 1 -2 ''",
            "write w 120s        | 1 -2 '' | lock{mode:write w:3}@120s",
            "PERSIST lock        |         | lock{mode:write w:3}",
            "write w             | 1 -2 '' | lock{mode:write w:3}@30s",
        ],
    ),
    (
        "writing what somebody writes",
        &[
            "write v 60s  | 1 -2 ''  | lock{mode:write v:1}@60s",
            "below b v    | 1 60s '' | b.1=1@30s lock{b:1 mode:write v:1}@60s",
            "write w      | 0 60s ''",
            "write w      | 0 60s ''",
            "PERSIST lock |          | b.1=1@30s lock{b:1 mode:write v:1}",
            "write w      | 0 -1 ''",
        ],
    ),
    (
        "writing what others read tells how long the lock lives",
        &[
            "read a            | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "PEXPIRE lock 270s |          | a.1=1@30s lock{a:1 mode:read}@270s",
            "write w           | 0 270s ''",
            "PERSIST lock      |          | a.1=1@30s lock{a:1 mode:read}",
            "write w           | 0 -1 ''",
        ],
    ),
    (
        "one's own read hold is in the way of writing",
        &[
            "read a         | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "write a+:write | 0 30s ''",
        ],
    ),
    (
        "a hold that never ends is alive",
        &[
            "read a           | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "PERSIST a.1      |          | a.1=1 lock{a:1 mode:read}@30s",
            "PEXPIRE lock 60s |          | a.1=1 lock{a:1 mode:read}@60s",
            "write w          | 0 60s ''",
            "read b           | 1 60s '' | a.1=1 b.1=1@30s lock{a:1 b:1 mode:read}@60s",
            "leave b          | 0        | a.1=1 lock{a:1 mode:read}@60s",
            "PERSIST lock     |          | a.1=1 lock{a:1 mode:read}",
            "write w          | 0 -1 ''",
        ],
    ),
    (
        "a write hold is renewed like a lock, and a read hold below it keeps its own time",
        &[
            "renew_write w        | 0",
            "renew_write w        | 0",
            "write w 60s          | 1 -2 ''  | lock{mode:write w:1}@60s",
            "renew_write w 30s    | 1",
            "renew_write w 30s 2  | 1        | lock{mode:write w:2}@60s",
            "renew_write w 90s 2  | 1        | lock{mode:write w:2}@90s",
            "renew_write v 270s   | -1",
            "below a w            | 1 90s '' | a.1=1@30s lock{a:1 mode:write w:2}@90s",
            "renew_write w 120s 2 | 1        | a.1=1@30s lock{a:1 mode:write w:2}@120s",
            "end w                | 1        | a.1=1@30s lock{a:1 mode:read}@120s | 1",
            "renew_write w 270s   | -1",
        ],
    ),
    (
        "a kept read hold keeps writers out until it ends by itself, whichever renewals of it are still to come",
        &[
            "read a          | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "keep_read a 20s | 0        | a.1=0@20s lock{a:1 mode:read}@20s | 1",
            "renew a         | 0",
            "renew a 90s     | 0",
            "write w         | 0 20s ''",
            "read b          | 1 20s '' | a.1=0@20s b.1=1@30s lock{a:1 b:1 mode:read}@30s",
            "keep_read a 20s | 0",
            "keep_read a 90s | 0",
            "leave b         | 0        | a.1=0@20s lock{a:1 mode:read}@20s",
            "DEL a.1         |          | lock{a:1 mode:read}@20s",
            "keep_read a 90s | -2",
            "pass 20s        |          | nothing",
            "read a          | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "read b 90s      | 1 30s '' | a.1=1@30s b.1=1@90s lock{a:1 b:1 mode:read}@90s",
            "keep_read b 20s | 0        | a.1=1@30s b.1=0@20s lock{a:1 b:1 mode:read}@90s",
        ],
    ),
    (
        "a kept write hold ends by itself as well, and a read hold below it has its own time",
        &[
            "write w          | 1 -2 ''  | lock{mode:write w:1}@30s",
            "keep_write w 20s | 0        | lock{mode:write w:0}@20s | 1",
            "renew_write w    | -1",
            "read b           | 0 20s ''",
            "below a w 60s    | 1 20s '' | a.1=1@60s lock{a:1 mode:write w:0}@60s",
            "keep_write w 20s | 0",
            "renew a 90s      | 1        | a.1=1@90s lock{a:1 mode:write w:0}@90s",
        ],
    ),
    (
        "an undo leaves a hash alone that has a mode and nothing else",
        &[
            "HSET lock mode read  |    | lock{mode:read}",
            "undo_read a          | -2",
            "leave a              | -2",
            "undo_write w         | -2",
            "HSET lock mode write |    | lock{mode:write}",
            "undo_read a          | -2",
            "undo_write w         | -2",
        ],
    ),
    (
        "forcing frees it of readers and of a writer: Redisson's does of one of them",
        &[
            "state     | 0",
            "force r1  | 0        | r1=0@30s",
            "read a    | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s r1=0@30s",
            "read b    | 1 30s '' | a.1=1@30s b.1=1@30s lock{a:1 b:1 mode:read}@30s r1=0@30s",
            "state     | 1",
            "force r2  | 1        | a.1=1@30s b.1=1@30s r1=0@30s r2=1@30s | 0",
            "force r3  | 0        | a.1=1@30s b.1=1@30s r1=0@30s r2=1@30s r3=0@30s",
            // The holds' keys have no effect without the lock.
            "write w   | 1 -2 ''  | a.1=1@30s b.1=1@30s lock{mode:write w:1}@30s r1=0@30s r2=1@30s r3=0@30s",
            "renew a   | -1       | b.1=1@30s lock{mode:write w:1}@30s r1=0@30s r2=1@30s r3=0@30s",
            "leave b   | -2       | lock{mode:write w:1}@30s r1=0@30s r2=1@30s r3=0@30s",
            "state     | 2",
            "force r4  | 1        | r1=0@30s r2=1@30s r3=0@30s r4=1@30s | 1",
            "write w   | 1 -2 ''  | lock{mode:write w:1}@30s r1=0@30s r2=1@30s r3=0@30s r4=1@30s",
            "below a w | 1 30s '' | a.1=1@30s lock{a:1 mode:write w:1}@30s r1=0@30s r2=1@30s r3=0@30s r4=1@30s",
            "state     | 3",
            "force r5  | 1        | a.1=1@30s r1=0@30s r2=1@30s r3=0@30s r4=1@30s r5=1@30s | 1",
            "leave a   | -1       | r1=0@30s r2=1@30s r3=0@30s r4=1@30s r5=1@30s | 0",
            "end w     | -1       | = | 1",
        ],
    ),
    (
        "a reader of Redisson's is alive while one of its holds is",
        &[
            "HSET lock mode read j 3 |           | lock{j:3 mode:read}",
            "PEXPIRE lock 300s       |           | lock{j:3 mode:read}@300s",
            "SET j.2 1 PX 60s        |           | j.2=1@60s lock{j:3 mode:read}@300s",
            "write w                 | 0 300s ''",
            "read a                  | 1 300s '' | a.1=1@30s j.2=1@60s lock{a:1 j:3 mode:read}@300s",
            "renew a                 | 1",
            "leave a                 | 0         | j.2=1@60s lock{j:3 mode:read}@60s",
            "SET j.1 1 PX 150s       |           | j.1=1@150s j.2=1@60s lock{j:3 mode:read}@60s",
            "write w                 | 0 60s ''",
            "read a                  | 1 60s ''  | a.1=1@30s j.1=1@150s j.2=1@60s lock{a:1 j:3 mode:read}@60s",
            "leave a                 | 0         | j.1=1@150s j.2=1@60s lock{j:3 mode:read}@150s",
            "SET j.3 1 PX 30s        |           | j.1=1@150s j.2=1@60s j.3=1@30s lock{j:3 mode:read}@150s",
            "write w                 | 0 150s ''",
            "read a                  | 1 150s '' | a.1=1@30s j.1=1@150s j.2=1@60s j.3=1@30s lock{a:1 j:3 mode:read}@150s",
            "leave a                 | 0         | j.1=1@150s j.2=1@60s j.3=1@30s lock{j:3 mode:read}@150s",
            "DEL j.1 j.2             |           | j.3=1@30s lock{j:3 mode:read}@150s",
            "write w                 | 0 150s ''",
            "read a                  | 1 150s '' | a.1=1@30s j.3=1@30s lock{a:1 j:3 mode:read}@150s",
            "leave a                 | 0         | j.3=1@30s lock{j:3 mode:read}@30s",
        ],
    ),
    (
        "a reader of Redisson's is dead when all its holds are; a fourth is no hold of three",
        &[
            "HSET lock mode read j 3 |           | lock{j:3 mode:read}",
            "PEXPIRE lock 300s       |           | lock{j:3 mode:read}@300s",
            "SET j.4 1 PX 30s        |           | j.4=1@30s lock{j:3 mode:read}@300s",
            "leave a                 | -1        | j.4=1@30s lock{j:3 mode:read}@300s",
            "read a                  | 1 300s '' | a.1=1@30s j.4=1@30s lock{a:1 j:3 mode:read}@300s",
            "leave a                 | 1         | j.4=1@30s | 0",
        ],
    ),
    (
        // Redisson's multi-lock gives the hash its lease, while the key of the hold keeps the shorter one of the attempt.
        "a writer waits for a reader of Redisson's multi-lock as long as the lock lives",
        &[
            "HSET lock mode read j 1 |           | lock{j:1 mode:read}",
            "SET j.1 1 PX 20s        |           | j.1=1@20s lock{j:1 mode:read}",
            "PEXPIRE lock 120s       |           | j.1=1@20s lock{j:1 mode:read}@120s",
            "write w                 | 0 120s ''",
            "pass 30s                |           | lock{j:1 mode:read}@90s",
            "write w                 | 0 90s ''  | lock{j:1 mode:read}@90s",
            "read a 20s              | 1 90s ''  | a.1=1@20s lock{a:1 j:1 mode:read}@90s",
            "write w                 | 0 90s ''  | a.1=1@20s lock{a:1 j:1 mode:read}@90s",
            "pass 30s                |           | lock{a:1 j:1 mode:read}@60s",
            "write w                 | 0 60s ''  | lock{a:1 j:1 mode:read}@60s",
            "pass 60s                |           | nothing",
            "write w                 | 1 -2 ''   | lock{mode:write w:1}@30s",
        ],
    ),
    (
        "a reader of Redisson's that died is dropped",
        &[
            "HSET lock mode read j 3 |           | lock{j:3 mode:read}",
            "PEXPIRE lock 300s       |           | lock{j:3 mode:read}@300s",
            "read a                  | 1 300s '' | a.1=1@30s lock{a:1 j:3 mode:read}@300s",
            "write w                 | 0 300s '' | a.1=1@30s lock{a:1 j:3 mode:read}@300s",
            "leave a                 | 1         | nothing | 0",
        ],
    ),
    (
        "a writer of Redisson's is left alone",
        &[
            "HSET lock mode write jw 2 j 1 |          | lock{j:1 jw:2 mode:write}",
            "PEXPIRE lock 30s                    |          | lock{j:1 jw:2 mode:write}@30s",
            "write w 60s                         | 0 30s ''",
            "read a 60s                          | 0 30s ''",
            "renew a 60s                         | -1",
            "renew_write w 60s                   | -1",
            "leave a                             | -2",
            "end w                               | -2",
            "state                               | 3",
            "force r1                            | 1        | r1=1@30s | 1",
        ],
    ),
    (
        "a user without rights on the channel still releases",
        &[
            "deaf",
            "read a    | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "leave a   | 0        | nothing",
            "leave a   | -1",
            "write w   | 1 -2 ''  | lock{mode:write w:1}@30s",
            "below a w | 1 30s '' | a.1=1@30s lock{a:1 mode:write w:1}@30s",
            "end w     | 0        | a.1=1@30s lock{a:1 mode:read}@30s",
            "force r1  | 1        | a.1=1@30s r1=1@30s",
            "end w     | -1",
        ],
    ),
    (
        "a lock that cannot be given an end is not taken",
        &[
            "read a 9223372036854775807  | refused",
            "write w 9223372036854775807 | refused",
        ],
    ),
    (
        "out of memory holders renew and release, and nobody else comes in: readers",
        &[
            "read a      | 1 -2 ''  | a.1=1@30s lock{a:1 mode:read}@30s",
            "full",
            "read b      | OOM",
            "write v     | 0 30s ''",
            "renew a 60s | 1        | a.1=1@60s lock{a:1 mode:read}@60s",
            "state       | 1",
            "leave a     | 1        | nothing | 0",
            "write w     | OOM",
        ],
    ),
    (
        "out of memory: a writer",
        &[
            "write w             | 1 -2 ''  | lock{mode:write w:1}@30s",
            "full",
            "read a              | 0 30s ''",
            "below a w           | OOM",
            "renew_write w 60s 2 | 1        | lock{mode:write w:2}@60s",
            "state               | 2",
            "end w               | 1        | nothing | 1",
            "read a              | OOM",
        ],
    ),
    (
        "out of memory: both",
        &[
            "write w   | 1 -2 ''  | lock{mode:write w:1}@30s",
            "below a w | 1 30s '' | a.1=1@30s lock{a:1 mode:write w:1}@30s",
            "full",
            "end w     | 1        | a.1=1@30s lock{a:1 mode:read}@30s | 1",
            "state     | 1",
            "leave a   | 1        | nothing | 0",
        ],
    ),
    (
        "out of memory it can be forced open, and that counts once",
        &[
            "read a   | 1 -2 '' | a.1=1@30s lock{a:1 mode:read}@30s",
            "full",
            "force r1 | 1       | a.1=1@30s r1=1@30s | 0",
            "force r1 | 1",
            "force r2 | 0       | a.1=1@30s r1=1@30s r2=0@30s",
        ],
    ),
];

timed!(the_table_of_the_read_write_lock);
fn the_table_of_the_read_write_lock() {
    let server = Server::start();
    for name in NAMES {
        stage(&server, &mut server.connection(), name).play_all(TABLE);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// To the millisecond
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn renewing_at_the_last_moment_of_a_lock_that_others_shortened_tells_so() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut stage = stage(&server, &mut listener, "orders");
    stage.play(
        "a reads",
        &["read a 90s | 1 -2 '' | a.1=1@90s lock{a:1 mode:read}@90s"],
    );
    let renew = format!("redis.call('pexpire', KEYS[1], 1) {}", lua::RW_READ_RENEW);
    let keys = ["orders", &channel("orders"), &hold("orders", US, 1)];
    let received: i64 = run(&mut stage.con, &renew, &keys, &[US, "90000"]).unwrap();
    assert_eq!(received, 2);
}

// A reader is alive in the millisecond in which its key has 0 ms left, and dead after that.
#[test]
fn a_reader_lives_to_the_end_of_its_last_millisecond_and_no_longer() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut stage = stage(&server, &mut listener, "orders");
    // Time stands still while a script runs.
    let wrap = |script: &str| {
        format!(
            "local function run()\n{script}\nend\n\
             local began = redis.call('time')\n\
             local lives, reply = redis.call('exists', '{}'), run()\n\
             local ended = redis.call('time')\n\
             local took = (ended[1] - began[1]) * 1000000 + ended[2] - began[2]\n\
             return {{lives, reply or 'taken', redis.call('exists', KEYS[1]), took}}",
            hold("orders", THEM, 1)
        )
    };
    let read_release = wrap(lua::RW_READ_RELEASE);
    let (channel, own_hold, prefix) = (channel("orders"), hold("orders", US, 1), prefix("orders"));
    for _ in 0..20 {
        stage.says("read b 5");
        // The second reader extends the lock beyond the first reader's key.
        stage.says("read a");
        eventually("the lock is free", || {
            let keys = ["orders", &channel, &own_hold];
            let (lives, _, held, took_us): (bool, i64, bool, i64) =
                run(&mut stage.con, &read_release, &keys, &[US, &prefix]).unwrap();
            // If the server is suspended within PEXPIRE, Redis 7.0 finds the new end in the past, and deletes the lock.
            assert!(lives == held || lives && took_us >= 500, "{took_us} µs");
            !held
        });
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Many readers
// ---------------------------------------------------------------------------------------------------------------------

/// Adds readers with a hold each. Every `every`th is alive, for `lease` ms.
fn many_read(server: &Server, readers: u32, every: u32, lease: i64) {
    const FILL: &str = "
    for n = 1, ARGV[1] do
      local owner = string.format('9f8e7d6c-5b4a-4321-8fed-%012d:%d', n, n)
      redis.call('hset', KEYS[1], owner, 1)
      if n % ARGV[2] == 0 then
        redis.call('set', '{orders}:' .. owner .. ':rwlock_timeout:1', 1, 'px', ARGV[3])
      end
    end
    redis.call('hset', KEYS[1], 'mode', 'read')
    redis.call('pexpire', KEYS[1], ARGV[3])";
    let args = [readers.to_string(), every.to_string(), lease.to_string()];
    let args = args.each_ref().map(String::as_str);
    let () = run(&mut server.connection(), FILL, &["orders"], &args).unwrap();
}

fn length(server: &Server) -> u32 {
    server.ask(&["HLEN", "orders"])
}

#[test]
fn a_hundred_readers_that_renew_keep_a_writer_out() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    let readers: Vec<String> = (1..=100).map(|n| format!("{}{n}", &US[..37])).collect();
    for reader in &readers {
        lock.says(&format!("read {reader}"));
    }
    for _ in 0..4 {
        lock.says("pass 10s");
        for reader in &readers {
            assert_eq!(lock.says(&format!("renew {reader}")), "1");
        }
        assert_eq!(lock.says("write w"), "0 30s ''");
    }
    assert_eq!((length(&server), server.dbsize()), (101, 101));
    for (reader, readers_left) in readers.iter().zip((0..100).rev()) {
        assert!(lock.says("write w").starts_with("0 "));
        let last = i64::from(readers_left == 0).to_string();
        assert_eq!(lock.says(&format!("leave {reader}")), last);
        assert_eq!(
            server.dbsize(),
            if readers_left > 0 {
                readers_left + 1
            } else {
                0
            }
        );
    }
    assert_eq!(lock.says("write w"), "1 -2 ''");
}

// A script looks up each hold of a reader, so an impossible count is not trusted.
#[test]
fn work_is_bounded_by_the_holds_that_can_be() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    let reads = |count: &str| {
        server.cli(&["HSET", "orders", "mode", "read", JAVA, count]);
        server.cli(&["PEXPIRE", "orders", "300000"]);
    };
    reads("1000");
    lock.says("read a");
    assert_eq!((lock.says("leave a"), server.dbsize()), ("1".into(), 0));
    let calls_before = server.calls("pttl");
    for count in ["1001", "4000000000", "99999999999999999999999999"] {
        reads(count);
        assert_eq!(lock.says("write w"), "0 300s ''");
        lock.says("read a");
        assert_eq!(lock.says("leave a"), "0");
        assert_eq!(server.keys(), ["orders"]);
        assert_eq!(length(&server), 2);
        assert_left(server.pttl("orders"), 300_000);
    }
    // Including the look-ups of `state`.
    assert!(server.calls("pttl") < calls_before + 50);
}

// Redisson's scripts look at all holds of all readers.
#[test]
fn a_call_looks_at_few_of_many_readers() {
    const READERS: u32 = 10_000;
    let server = Server::start();
    let looks = || server.calls("pttl");
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    many_read(&server, READERS, 1, 100 * LEASE);
    lock.says("read j 27000s");
    for round in 0..3 {
        let looks_before = looks();
        assert!(lock.says("write w").starts_with("0 "));
        let asked = looks() - looks_before;
        assert!(asked < 200, "{asked} for a writer");
        lock.says("read a");
        let looks_before = looks();
        assert_eq!(lock.says("leave a"), "0");
        let asked = looks() - looks_before;
        assert!(asked < 200, "{asked} for a reader that leaves");
        assert_eq!(lock.says("leave b"), "-1", "round {round}");
    }
    assert_eq!(length(&server), READERS + 2);
    // The lock keeps its time, since a reader that was not looked at may need it.
    assert!(server.pttl("orders") > 800 * LEASE);
    assert_eq!(server.calls("hgetall"), 0);
    let looks_before = looks();
    assert_eq!(
        (lock.says("state"), lock.says("force r1")),
        ("1".into(), "1".into())
    );
    assert!(looks() == looks_before && server.calls("hkeys") == 0);
}

#[test]
fn many_readers_that_died_are_dropped_bit_by_bit_by_those_who_leave() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    // A tenth of the readers are alive and stay. Each reader that leaves removes a few of the others.
    many_read(&server, 1_000, 10, 100 * LEASE);
    let mut leaves = 0_u32;
    while length(&server) > 101 {
        let owner = format!("{}{leaves}", &US[..37]);
        lock.says(&format!("read {owner}"));
        assert_eq!(lock.says(&format!("leave {owner}")), "0");
        leaves += 1;
        assert!(leaves < 1_000, "{} are left", length(&server));
    }
    assert_eq!(length(&server), 101);
    assert!(lock.says("write w").starts_with("0 "));
    // Once few readers are left, the lock gets their longest time, and expires with the last of them.
    lock.says("read a 27000s");
    assert_eq!(lock.says("leave a"), "0");
    assert!(server.pttl("orders") <= 100 * LEASE);
    lock.says("pass 3000s");
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn a_reader_that_leaves_costs_the_same_whatever_the_number_of_readers() {
    /// Commands that a script may use per reader.
    const COUNTED: [&str; 6] = ["pttl", "hget", "hdel", "hgetall", "hscan", "hrandfield"];
    let server = Server::start();
    let calls = || COUNTED.map(|command| server.calls(command));
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    for readers in [20, 120, 400, 5_000] {
        many_read(&server, readers, 1, 100 * LEASE);
        lock.says("read a 3000s");
        let calls_before = calls();
        assert_eq!(lock.says("leave a"), "0");
        let asked =
            std::iter::zip(calls(), calls_before).map(|(after, count_before)| after - count_before);
        let asked: Vec<_> = asked.collect();
        // A few readers, the lock, and the reader that leaves.
        assert!(asked[0] <= 10, "{asked:?} with {readers} readers");
        assert_eq!(asked[1..], [1, 1, 0, 0, 1], "with {readers} readers");
        assert_eq!(length(&server), readers + 1);
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn the_last_reader_that_lives_frees_the_lock_of_all_that_died() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    for dead in [5, 100, 600, 990] {
        many_read(&server, dead, dead + 1, 100 * LEASE);
        lock.says("read a");
        lock.says("read b");
        assert_eq!(
            (lock.says("leave b"), lock.news()),
            ("0".into(), String::new())
        );
        assert_eq!(
            (lock.says("leave a"), lock.news()),
            ("1".into(), "0".into()),
            "{dead} died"
        );
        assert_eq!(server.dbsize(), 0);
    }
}

#[test]
fn of_many_readers_one_that_leaves_shortens_the_lock_if_it_had_by_far_the_longest_lease() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    many_read(&server, 60, 1, LEASE);
    lock.says("read j 210s");
    // A reader that was not looked at may need the whole time.
    for (reader, lease) in [("a", "30s"), ("a", "180s"), ("b", "1200s")] {
        lock.says(&format!("read {reader} {lease}"));
        assert_eq!(lock.says(&format!("leave {reader}")), "0");
        assert_left(server.pttl("orders"), 7 * LEASE);
    }
    assert_eq!(lock.says("leave j"), "0");
    assert_left(server.pttl("orders"), LEASE);
    // The lock was shortened, or has no expiry.
    for change in ["PEXPIRE lock 1000", "PERSIST lock"] {
        lock.says("read a");
        lock.says(change);
        assert_eq!(lock.says("leave a"), "0");
        assert_left(server.pttl("orders"), LEASE);
    }
}

// Redisson's writers wait until the lock expires. The lock may have the time of a reader that left while another reader also
// had a long lease.
#[test]
fn of_many_readers_some_that_leave_shorten_the_lock_if_it_has_far_too_much() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    many_read(&server, 60, 1, LEASE);
    lock.says("PEXPIRE lock 600s");
    let mut leaves = 0;
    while server.pttl("orders") > LEASE {
        lock.says("read a");
        assert_eq!(lock.says("leave a"), "0");
        leaves += 1;
        assert!(leaves < 10_000);
    }
    // The lock is not shortened below what a reader needs.
    lock.says("read j 210s");
    let mut looked = 0;
    while looked < 3 {
        let calls_before = server.calls("hgetall");
        lock.says("read a");
        assert_eq!(lock.says("leave a"), "0");
        looked += server.calls("hgetall") - calls_before;
        assert_left(server.pttl("orders"), 7 * LEASE);
    }
}

#[test]
fn a_user_who_may_not_ask_for_random_readers_still_releases() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    lock.says("forbid hrandfield");
    // All readers fit in one step, or need many; all are alive, or all are dead.
    for readers in [60, 900] {
        for every in [1, readers + 1] {
            many_read(&server, readers, every, LEASE);
            lock.says("read b");
            lock.says("read a");
            assert_eq!(lock.says("leave b"), "0");
            let last = if every == 1 { "0" } else { "1" };
            assert_eq!(lock.says("leave a"), last);
            if every == 1 {
                assert_eq!(length(&server), readers + 1);
                assert_left(server.pttl("orders"), LEASE);
            } else {
                assert_eq!(server.dbsize(), 0);
            }
            server.cli(&["FLUSHALL"]);
        }
    }
}

// The keys of other readers' holds are not passed to the script, so they must be in the lock's slot.
#[test]
fn in_a_cluster_others_holds_are_found() {
    let server = Server::start_cluster();
    for name in [
        "orders",
        "stock:{42}",
        "two words",
        "line\r\nbreak",
        "{a}{b}",
    ] {
        let mut listener = server.connection();
        let mut lock = stage(&server, &mut listener, name);
        for row in [
            "HSET lock mode read j 3",
            "PEXPIRE lock 300s",
            "SET j.2 1 PX 30s",
        ] {
            lock.says(row);
        }
        assert_eq!(lock.says("below a w"), "1 300s ''", "{name:?}");
        assert_eq!(lock.says("write w"), "0 300s ''");
        assert_eq!(lock.says("leave a"), "0");
        assert_eq!(lock.state(), "j.2=1@30s lock{j:3 mode:read}@30s");
        server.cli(&["FLUSHALL"]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Foreign keys, and what the server rejects
// ---------------------------------------------------------------------------------------------------------------------

const TAKES: [&str; 5] = ["read a", "below a ''", "below a w", "write w", "force r1"];

const VALUES: [&[&str]; 5] = [
    &["SET", "lock", "v"],
    &["RPUSH", "lock", "v"],
    &["SADD", "lock", "v"],
    &["ZADD", "lock", "1", "v"],
    &["XADD", "lock", "1-1", "f", "v"],
];

#[test]
fn a_value_of_another_type_is_refused_and_kept() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    let calls = ["renew a", "state", "leave a", "end w", "renew_write w"];
    lock.refuses(&VALUES, &[&TAKES[..], &calls].concat());
    // A hold's key has another type, while the lock is held or free.
    for value in [
        ["HSET", "a.1", "f", "v"].as_slice(),
        &["RPUSH", "a.1", "v"],
        &["SADD", "a.1", "v"],
        &["ZADD", "a.1", "1", "v"],
    ] {
        lock.refuses(&[value], &["read a", "renew a", "leave a"]);
        lock.says("HSET lock mode read a 1");
        lock.says("PEXPIRE lock 30s");
        let state_before = lock.state();
        for call in ["read a", "renew a", "leave a"] {
            assert_eq!(lock.says(call), "WRONGTYPE", "{call} of {value:?}");
            assert_eq!(lock.state(), state_before);
        }
    }
}

// In Redisson a reader enters although a plain lock of that name is held.
#[test]
fn a_plain_lock_and_a_strangers_hash_are_refused_and_kept() {
    let server = Server::start();
    for name in NAMES {
        let mut listener = server.connection();
        let mut lock = stage(&server, &mut listener, name);
        lock.refuses(
            &[&["HSET", "lock", "b", "1"]],
            &[
                "read a",
                "below a ''",
                "below a w",
                "write w",
                "renew a",
                "state",
                "force r1",
            ],
        );
    }
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    for fields in [
        ["price", "10"].as_slice(),
        &["mode", "fast"],
        &["mode", "''"],
        &["mode", "READ", "b", "1"],
        &["Mode", "read", "b", "1"],
        // A field of ours does not make it a lock of ours.
        &["a", "1"],
        &["mode", "1", "a", "1"],
    ] {
        let value = [&["HSET", "lock"], fields].concat();
        lock.refuses(&[&value], &[&TAKES[..], &["renew a", "state"]].concat());
        // Releases only report that another owner has the lock.
        let state_before = lock.state();
        for (call, reply) in [("leave a", "-2"), ("end w", "-2"), ("renew_write w", "-1")] {
            assert_eq!(
                (lock.says(call), lock.state()),
                (reply.into(), state_before.clone()),
                "{fields:?}"
            );
        }
    }
    assert_eq!(lock.news(), "");
}

// A hash of another application may well have a field `mode` with these values; it has no expiry.
#[test]
fn a_strangers_hash_with_a_mode_like_ours_is_kept() {
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    for field in ["path", "1", "''", ":1", "0b7e1c52:6f0a:1", "a-b-c-d-e"] {
        lock.refuses(&[&["HSET", "lock", "mode", "read", field, "1"]], &TAKES);
        lock.refuses(
            &[&["HSET", "lock", "mode", "write", field, "1"]],
            &["force r1"],
        );
        for mode in ["read", "write"] {
            lock.says(&format!("HSET lock mode {mode}"));
            let state_before = lock.state();
            let reads = mode == "read";
            let rows = [
                ("state", "WRONGTYPE"),
                ("renew a", if reads { "0" } else { "-1" }),
                ("leave a", if reads { "-1" } else { "-2" }),
                ("end w", "-2"),
                ("read a", "WRONGTYPE"),
                ("write w", "WRONGTYPE"),
            ];
            for (call, reply) in rows {
                assert_eq!(
                    (lock.says(call), lock.state()),
                    (reply.into(), state_before.clone()),
                    "{field}"
                );
            }
        }
    }
    // A field with an invalid count is no reader, and its hash is not taken over.
    for count in ["''", "x", "-1", "1.5", "0x10", "inf"] {
        lock.refuses(
            &[&["HSET", "lock", "mode", "read", "b", count]],
            &["write w"],
        );
        let state_before = lock.state();
        assert_eq!(
            (lock.says("leave a"), lock.state()),
            ("-1".into(), state_before)
        );
    }
    assert_eq!(lock.news(), "");
}

#[test]
fn a_lock_that_cannot_be_given_a_ttl_is_not_taken() {
    /// The commands that prepare the state, and the calls that are rejected in it.
    const CASES: &[(&[&str], &[&str])] = &[
        (&[], &["read a", "write w"]),
        (
            &[
                "HSET lock mode read b 1",
                "SET b.1 1 PX 30s",
                "PEXPIRE lock 30s",
            ],
            &["read a 60s"],
        ),
        (
            &["HSET lock mode write w 1", "PEXPIRE lock 30s"],
            &["below a w 60s"],
        ),
    ];
    let server = Server::start();
    let mut listener = server.connection();
    let mut lock = stage(&server, &mut listener, "orders");
    for missing in ["pexpire", "hset", "set"] {
        lock.says(&format!("forbid {missing}"));
        for (there, refused) in CASES {
            for row in *there {
                lock.says(row);
            }
            let state_before = lock.state();
            // A writer sets no string.
            for call in refused
                .iter()
                .filter(|call| missing != "set" || !call.starts_with("write"))
            {
                assert_eq!(lock.says(call), "refused", "{call} without {missing}");
                assert_eq!(lock.state(), state_before, "{call} without {missing}");
            }
            server.cli(&["FLUSHALL"]);
        }
        // A reader that acquires again keeps the hold that it had.
        for row in [
            "HSET lock mode read a 1",
            "SET a.1 1 PX 30s",
            "PEXPIRE lock 30s",
        ] {
            lock.says(row);
        }
        assert_eq!(lock.says("read a 60s"), "refused");
        assert!(
            lock.state().contains("lock{a:1 mode:read}@30s"),
            "{}",
            lock.state()
        );
        server.cli(&["FLUSHALL"]);
    }
}
