//! A model of the read-write lock, with which the scripts are compared on a real server: every script in every
//! reachable state, and long random walks with a Redisson client, dying readers and deleted keys.
//!
//! Time is counted in units far longer than a test runs, so that real time never changes the number of units left. The
//! model's time passes in explicit steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use Left::{Ever, Units};
use redis::{Cmd, Connection, Pipeline, PubSub, Value};

use crate::support::rw_scripts::{
    FORCE, PASS, READ_ACQUIRE, READ_RELEASE, READ_RENEW, STATE, WRITE_ACQUIRE, WRITE_RELEASE,
    channel, hold, note, prefix,
};
use crate::support::scripts::{self, REQUEST};
use crate::support::{Server, ms};

const NAME: &str = "orders";

/// In milliseconds.
const UNIT: i64 = 1_000_000;

/// In milliseconds; longer than any time that is compared.
const FAR: &str = "1000000000000000";

/// Owners are numbers. The last is a client of Redisson, whose reader and writer are the same thread.
type Who = usize;
const OWNERS: usize = 4;
const JAVA: Who = 3;

fn reader(who: Who) -> String {
    format!("0b7e1c52-6f0a-4f3e-9b8f-{who:012x}:1")
}

/// In our client, a reader and a writer are never the same owner.
fn writer(who: Who) -> String {
    let number = if who == JAVA { 1 } else { 2 };
    format!("0b7e1c52-6f0a-4f3e-9b8f-{who:012x}:{number}:write")
}

// ---------------------------------------------------------------------------------------------------------------------
// The model
// ---------------------------------------------------------------------------------------------------------------------

/// The time left, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Left {
    Units(u32),
    Ever,
}

impl Left {
    fn raised(self, lease: u32) -> Self {
        match self {
            // Redis returns -1 for no expiry, which is less than any lease.
            Ever => Units(lease),
            Units(units_left) => Units(units_left.max(lease)),
        }
    }

    fn after(self, units: u32) -> Option<Self> {
        match self {
            Ever => Some(Ever),
            Units(units_left) if units_left > units => Some(Units(units_left - units)),
            Units(_) => None,
        }
    }

    fn from_pttl(left_ms: i64) -> Self {
        if left_ms == -1 {
            return Ever;
        }
        Units(u32::try_from((left_ms + UNIT - 1) / UNIT).unwrap())
    }
}

/// The lock's hash, whose mode is `write` while there is a writer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hash {
    writer: Option<(Who, u32)>,
    readers: BTreeMap<Who, u32>,
    time_left: Left,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    lock: Option<Hash>,
    holds: BTreeMap<(Who, u32), Left>,
    /// Whether there is a writer's note.
    claimed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read {
        who: Who,
        lease: u32,
        below: bool,
        gives_way: bool,
    },
    ReadRelease(Who),
    ReadRenew(Who, u32),
    Write(Who, u32),
    WriteRelease(Who),
    WriteRenew(Who, u32, u32),
    Force,
    State,
    /// Time passes; a writer's note appears or disappears.
    Pass(u32),
    Claim(bool),
    /// The changes that Redisson makes to the keys.
    JavaRead(u32),
    JavaReadRelease,
    JavaReadRenew(u32),
    JavaWrite(u32),
    JavaWriteRelease(u32),
    /// Changes that an administrator, an eviction or a failover may make.
    DropHold(Who, u32),
    PersistHold(Who, u32),
    DropLock,
    PersistLock,
    ShortenLock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// Whether the caller was admitted; for a reader also the time that the lock had left, or `None` if it was free.
    Asked(bool, Option<Left>),
    /// The reader is behind the writer.
    Behind,
    Is(i64),
    Left(Left),
    /// The reply does not matter.
    Any,
}

impl World {
    fn count(&self, who: Who) -> u32 {
        let lock = self.lock.as_ref();
        lock.map_or(0, |lock| lock.readers.get(&who).copied().unwrap_or(0))
    }

    /// The remaining life of a reader: that of the longest of its holds.
    fn life(&self, who: Who) -> Option<Left> {
        (1..=self.count(who))
            .filter_map(|n| self.holds.get(&(who, n)).copied())
            .max()
    }

    fn writes(&self, who: Who) -> bool {
        self.writer().is_some_and(|(writer, _)| writer == who)
    }

    fn writer(&self) -> Option<(Who, u32)> {
        self.lock.as_ref()?.writer
    }

    /// Removes dead readers. Returns the longest life of the others.
    fn bury(&mut self) -> Option<Left> {
        let readers: Vec<Who> = self.lock.as_ref()?.readers.keys().copied().collect();
        let lives: Vec<(Who, Option<Left>)> = readers
            .into_iter()
            .map(|reader| (reader, self.life(reader)))
            .collect();
        let lock = self.lock.as_mut()?;
        for (reader, life) in &lives {
            if life.is_none() {
                lock.readers.remove(reader);
            }
        }
        lives.into_iter().filter_map(|(_, life)| life).max()
    }

    /// Whether the Redisson client, whose counts only grow, has at most two holds of each kind.
    fn is_small(&self) -> bool {
        let writes = self.writer().map_or(0, |(_, count)| count);
        self.count(JAVA) <= 2 && writes <= 2
    }

    /// Applies a step. Returns the reply, and the messages on the lock's channel.
    fn apply(&mut self, op: Op) -> (Reply, Vec<&'static str>) {
        let quiet = |reply| (reply, vec![]);
        match op {
            Op::Read {
                who,
                lease,
                below,
                gives_way,
            } => quiet(self.read(who, lease, below, gives_way)),
            Op::ReadRelease(who) => self.read_release(who),
            Op::ReadRenew(who, lease) => self.read_renew(who, lease),
            Op::Write(who, lease) => quiet(self.write(who, lease)),
            Op::WriteRelease(who) => self.write_release(who),
            Op::WriteRenew(who, lease, count) => {
                if !self.writes(who) {
                    let gone = self.lock.is_none();
                    return quiet(Reply::Is(if gone { 0 } else { -1 }));
                }
                let lock = self.lock.as_mut().unwrap();
                lock.writer = Some((who, count));
                lock.time_left = lock.time_left.raised(lease);
                quiet(Reply::Is(1))
            }
            Op::Force => match self.lock.take() {
                None => quiet(Reply::Is(0)),
                Some(lock) if lock.writer.is_some() => (Reply::Is(1), vec!["1"]),
                Some(_) => (Reply::Is(1), vec!["0"]),
            },
            Op::State => quiet(Reply::Is(match &self.lock {
                None => 0,
                Some(lock) if lock.writer.is_none() => 1,
                Some(lock) if lock.readers.is_empty() => 2,
                Some(_) => 3,
            })),
            _ => (Reply::Any, self.happen(op)),
        }
    }

    fn read(&mut self, who: Who, lease: u32, below: bool, gives_way: bool) -> Reply {
        let again = self.count(who) > 0;
        let found = self.lock.as_ref().map(|lock| lock.time_left);
        if !again {
            match &self.lock {
                Some(lock) if lock.writer.is_some() && !(below && self.writes(who)) => {
                    return Reply::Asked(false, found);
                }
                Some(lock) if lock.writer.is_some() => {}
                _ if gives_way && self.claimed => return Reply::Behind,
                _ => {}
            }
        }
        // A key that is older than the lock is no hold.
        let held = self.holds.get(&(who, 1)).filter(|_| again);
        let held = held.map_or(Units(lease), |hold_left| hold_left.raised(lease));
        self.holds.insert((who, 1), held);
        self.add_reader(who, 1, lease);
        Reply::Asked(true, found)
    }

    fn add_reader(&mut self, who: Who, count: u32, lease: u32) {
        let lock = self.lock.get_or_insert(Hash {
            writer: None,
            readers: BTreeMap::new(),
            time_left: Units(0),
        });
        lock.readers.insert(who, count);
        lock.time_left = lock.time_left.raised(lease);
    }

    fn read_release(&mut self, who: Who) -> (Reply, Vec<&'static str>) {
        self.holds.remove(&(who, 1));
        let Some(lock) = &mut self.lock else {
            return (Reply::Is(-1), vec!["0"]);
        };
        let released = lock.readers.remove(&who).is_some();
        if lock.writer.is_some() {
            return (Reply::Is(if released { 0 } else { -2 }), vec![]);
        }
        if !released {
            return (Reply::Is(-1), vec![]);
        }
        let Some(longest) = self.bury() else {
            self.lock = None;
            return (Reply::Is(1), vec!["0"]);
        };
        if longest != Ever {
            self.lock.as_mut().unwrap().time_left = longest;
        }
        (Reply::Is(0), vec![])
    }

    fn read_renew(&mut self, who: Who, lease: u32) -> (Reply, Vec<&'static str>) {
        let writing = self.writer().is_some();
        let field = self.count(who) > 0;
        let hold = self.holds.remove(&(who, 1));
        if let (true, Some(hold), Some(lock)) = (field, hold, &mut self.lock) {
            self.holds.insert((who, 1), hold.raised(lease));
            let Units(held) = hold.raised(lease) else {
                unreachable!()
            };
            // The lock was shortened from outside.
            let reply = match (lock.time_left, hold) {
                (Units(_), Units(_)) if lock.time_left < hold => Reply::Left(lock.time_left),
                _ => Reply::Is(1),
            };
            lock.time_left = lock.time_left.raised(held);
            return (reply, vec![]);
        }
        let mut received = vec![];
        if let Some(lock) = &mut self.lock {
            lock.readers.remove(&who);
            if field && !writing && lock.readers.is_empty() {
                self.lock = None;
                received.push("0");
            }
        }
        (Reply::Is(if writing { -1 } else { 0 }), received)
    }

    fn write(&mut self, who: Who, lease: u32) -> Reply {
        if self.writes(who) {
            let lock = self.lock.as_mut().unwrap();
            lock.time_left = lock.time_left.raised(lease);
            return Reply::Asked(true, None);
        }
        if let Some(lock) = &self.lock {
            return Reply::Asked(false, Some(lock.time_left));
        }
        self.lock = Some(Hash {
            writer: Some((who, 1)),
            readers: BTreeMap::new(),
            time_left: Units(lease),
        });
        Reply::Asked(true, None)
    }

    fn write_release(&mut self, who: Who) -> (Reply, Vec<&'static str>) {
        if !self.writes(who) {
            return match self.lock {
                Some(_) => (Reply::Is(-2), vec![]),
                None => (Reply::Is(-1), vec!["1"]),
            };
        }
        self.end_write();
        (Reply::Is(1), vec!["1"])
    }

    fn end_write(&mut self) {
        let lock = self.lock.as_mut().unwrap();
        lock.writer = None;
        if lock.readers.is_empty() {
            self.lock = None;
        }
    }

    /// Applies a step that is not one of our scripts.
    fn happen(&mut self, op: Op) -> Vec<&'static str> {
        match op {
            Op::Pass(units) => {
                self.lock = self.lock.take().and_then(|mut lock| {
                    lock.time_left = lock.time_left.after(units)?;
                    Some(lock)
                });
                self.holds = std::mem::take(&mut self.holds)
                    .into_iter()
                    .filter_map(|(hold, hold_left)| Some((hold, hold_left.after(units)?)))
                    .collect();
            }
            Op::Claim(claimed) => self.claimed = claimed,
            Op::DropHold(who, n) => {
                self.holds.remove(&(who, n));
            }
            Op::PersistHold(who, n) => {
                if let Some(hold_left) = self.holds.get_mut(&(who, n)) {
                    *hold_left = Ever;
                }
            }
            Op::DropLock => self.lock = None,
            Op::PersistLock => {
                if let Some(lock) = &mut self.lock {
                    lock.time_left = Ever;
                }
            }
            Op::ShortenLock => {
                if let Some(lock) = &mut self.lock {
                    lock.time_left = Units(1);
                }
            }
            _ => return self.java(op),
        }
        vec![]
    }

    fn java(&mut self, op: Op) -> Vec<&'static str> {
        let count = self.count(JAVA);
        match op {
            Op::JavaRead(lease) if self.writer().is_none() || self.writes(JAVA) => {
                self.holds.insert((JAVA, count + 1), Units(lease));
                self.add_reader(JAVA, count + 1, lease);
            }
            Op::JavaReadRelease => {
                let Some(lock) = &mut self.lock else {
                    return vec!["0"];
                };
                if count == 0 {
                    return vec![];
                }
                if count == 1 {
                    lock.readers.remove(&JAVA);
                } else {
                    lock.readers.insert(JAVA, count - 1);
                }
                self.holds.remove(&(JAVA, count));
                let lives = self.lock.as_ref().unwrap().readers.iter();
                let longest = lives
                    .flat_map(|(&who, &count)| (1..=count).map(move |n| (who, n)))
                    .filter_map(|hold| self.holds.get(&hold).copied())
                    .filter(|&hold_left| hold_left != Ever)
                    .max();
                if let Some(longest) = longest {
                    self.lock.as_mut().unwrap().time_left = longest;
                } else if self.writer().is_none() {
                    self.lock = None;
                    return vec!["0"];
                }
            }
            Op::JavaReadRenew(lease) if count > 0 => {
                for n in 1..=count {
                    if let Some(hold_left) = self.holds.get_mut(&(JAVA, n)) {
                        *hold_left = Units(lease);
                    }
                }
                self.lock.as_mut().unwrap().time_left = Units(lease);
            }
            Op::JavaWrite(lease) => match &mut self.lock {
                None => {
                    self.lock = Some(Hash {
                        writer: Some((JAVA, 1)),
                        readers: BTreeMap::new(),
                        time_left: Units(lease),
                    });
                }
                Some(lock) => {
                    if let Some((JAVA, count)) = lock.writer {
                        lock.writer = Some((JAVA, count + 1));
                        lock.time_left = match lock.time_left {
                            Units(units_left) => Units(units_left + lease),
                            Ever => Units(lease),
                        };
                    }
                }
            },
            Op::JavaWriteRelease(lease) => {
                if let Some((JAVA, count @ 2..)) = self.writer() {
                    let lock = self.lock.as_mut().unwrap();
                    lock.writer = Some((JAVA, count - 1));
                    lock.time_left = Units(lease);
                } else {
                    if self.writes(JAVA) {
                        self.end_write();
                    } else if self.lock.is_some() {
                        return vec![];
                    }
                    if self.lock.is_none() {
                        return vec!["1"];
                    }
                }
            }
            _ => {}
        }
        vec![]
    }

    /// The keys that the server should have.
    fn keys(&self) -> Keys {
        let mut keys = Keys::new();
        if let Some(lock) = &self.lock {
            let mode = if lock.writer.is_some() {
                "write"
            } else {
                "read"
            };
            let mut fields = BTreeSet::from([("mode".to_owned(), mode.to_owned())]);
            fields.extend(
                lock.writer
                    .map(|(who, count)| (writer(who), count.to_string())),
            );
            let readers = lock.readers.iter();
            fields.extend(readers.map(|(&who, &count)| (reader(who), count.to_string())));
            keys.insert(NAME.to_owned(), (lock.time_left, fields));
        }
        for (&(who, n), &hold_left) in &self.holds {
            keys.insert(hold(NAME, &reader(who), n), (hold_left, BTreeSet::new()));
        }
        keys
    }
}

type Keys = BTreeMap<String, (Left, BTreeSet<(String, String)>)>;

// ---------------------------------------------------------------------------------------------------------------------
// The server
// ---------------------------------------------------------------------------------------------------------------------

/// Every key with its time to live, and the fields if it is a hash.
const LOOK: &str = "
local found = {}
for _, key in ipairs(redis.call('keys', '*')) do
  local fields = {}
  if redis.call('type', key).ok == 'hash' then
    fields = redis.call('hgetall', key)
  end
  found[#found + 1] = {key, redis.call('pttl', key), fields}
end
return found";

/// Redisson's changes to the keys. ARGV: the step, the owner, the lease, the prefix of the holds' keys.
const JAVA_STEPS: &str = "
local lock, channel = KEYS[1], KEYS[2]
local step, owner, lease, holds = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local write = owner .. ':write'
local mode = redis.call('hget', lock, 'mode')
local function key(field, n)
  return holds .. field .. ':rwlock_timeout:' .. n
end
if step == 'read' then
  if mode == 'write' and redis.call('hexists', lock, write) == 0 then
    return
  elseif not mode then
    redis.call('hset', lock, 'mode', 'read')
  end
  local n = redis.call('hincrby', lock, owner, 1)
  redis.call('set', key(owner, n), 1, 'px', lease)
  redis.call('pexpire', lock, math.max(redis.call('pttl', lock), lease))
elseif step == 'read release' then
  if not mode then
    return redis.call('publish', channel, '0')
  elseif redis.call('hexists', lock, owner) == 0 then
    return
  end
  local n = redis.call('hincrby', lock, owner, -1)
  if n == 0 then
    redis.call('hdel', lock, owner)
  end
  redis.call('del', key(owner, n + 1))
  local most = -2
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    for n = tonumber(fields[i + 1]) or 0, 1, -1 do
      most = math.max(most, redis.call('pttl', key(fields[i], n)))
    end
  end
  if most > 0 then
    redis.call('pexpire', lock, most)
  elseif mode == 'read' then
    redis.call('del', lock)
    redis.call('publish', channel, '0')
  end
elseif step == 'read renew' then
  local count = redis.call('hget', lock, owner)
  if count then
    for n = 1, count do
      redis.call('pexpire', key(owner, n), lease)
    end
    redis.call('pexpire', lock, lease)
  end
elseif step == 'write' then
  if not mode then
    redis.call('hset', lock, 'mode', 'write', write, 1)
    redis.call('pexpire', lock, lease)
  elseif redis.call('hexists', lock, write) == 1 then
    redis.call('hincrby', lock, write, 1)
    redis.call('pexpire', lock, redis.call('pttl', lock) + lease)
  end
elseif step == 'write release' then
  if not mode then
    return redis.call('publish', channel, '1')
  elseif redis.call('hexists', lock, write) == 0 then
    return
  end
  if redis.call('hincrby', lock, write, -1) > 0 then
    redis.call('pexpire', lock, lease)
  elseif redis.call('hdel', lock, write) == 1 and redis.call('hlen', lock) > 1 then
    redis.call('hset', lock, 'mode', 'read')
  else
    redis.call('del', lock)
    redis.call('publish', channel, '1')
  end
end";

const SCRIPTS: [&str; 11] = [
    READ_ACQUIRE,
    READ_RELEASE,
    READ_RENEW,
    WRITE_ACQUIRE,
    WRITE_RELEASE,
    scripts::RENEW,
    FORCE,
    STATE,
    PASS,
    LOOK,
    JAVA_STEPS,
];

/// The hash of each script.
static HASHES: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    let hash = |script| redis::Script::new(script).get_hash().to_owned();
    SCRIPTS.map(|script| (script, hash(script))).into()
});

fn evalsha(script: &str, keys: &[&str], args: &[&str]) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(&HASHES[script]).arg(keys.len()).arg(keys).arg(args);
    cmd
}

fn command(words: &[&str]) -> Cmd {
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd
}

impl Op {
    fn gives_way(self) -> bool {
        matches!(
            self,
            Self::Read {
                gives_way: true,
                ..
            }
        )
    }

    /// The command that performs the step on the server.
    fn command(self) -> Cmd {
        let (channel, prefix) = (channel(NAME), prefix(NAME));
        let time = |units: u32| (i64::from(units) * UNIT).to_string();
        let key = |who, n| hold(NAME, &reader(who), n);
        let java = |step: &str, lease| {
            let args = [step, &reader(JAVA), &time(lease), &prefix];
            evalsha(JAVA_STEPS, &[NAME, &channel], &args)
        };
        match self {
            Self::Read {
                who,
                lease,
                below,
                gives_way,
            } => {
                let below = if below { writer(who) } else { String::new() };
                let behind = if gives_way { "?" } else { "" };
                let [note, other] = ["reader", "writer"].map(|side| note(NAME, side));
                let (owner, lease) = (&reader(who), &time(lease));
                evalsha(
                    READ_ACQUIRE,
                    &[NAME, &note, &other, &key(who, 1)],
                    &[owner, behind, "0", "1", lease, &below],
                )
            }
            Self::ReadRelease(who) => evalsha(
                READ_RELEASE,
                &[NAME, &channel, &key(who, 1)],
                &[&reader(who), &prefix],
            ),
            Self::ReadRenew(who, lease) => evalsha(
                READ_RENEW,
                &[NAME, &channel, &key(who, 1)],
                &[&reader(who), &time(lease)],
            ),
            Self::Write(who, lease) => {
                let [note, other] = ["writer", "reader"].map(|side| note(NAME, side));
                let (field, lease) = (&writer(who), &time(lease));
                evalsha(
                    WRITE_ACQUIRE,
                    &[NAME, &note, &other],
                    &[field, "?", "0", "1", lease, &prefix],
                )
            }
            Self::WriteRelease(who) => evalsha(WRITE_RELEASE, &[NAME, &channel], &[&writer(who)]),
            Self::WriteRenew(who, lease, count) => evalsha(
                scripts::RENEW,
                &[NAME],
                &[&writer(who), &time(lease), &count.to_string()],
            ),
            Self::Force => {
                // Each request has a number of its own.
                static REQUESTS: AtomicU64 = AtomicU64::new(0);
                let n = REQUESTS.fetch_add(1, Ordering::Relaxed);
                let request = format!("{REQUEST}{n}");
                evalsha(FORCE, &[NAME, &channel, &request], &[&time(1)])
            }
            Self::State => evalsha(STATE, &[NAME], &[]),
            Self::Pass(units) => evalsha(PASS, &[], &[&time(units)]),
            Self::Claim(true) => command(&["SET", &note(NAME, "writer"), "w", "PX", FAR]),
            Self::Claim(false) => command(&["DEL", &note(NAME, "writer")]),
            Self::JavaRead(lease) => java("read", lease),
            Self::JavaReadRelease => java("read release", 0),
            Self::JavaReadRenew(lease) => java("read renew", lease),
            Self::JavaWrite(lease) => java("write", lease),
            Self::JavaWriteRelease(lease) => java("write release", lease),
            Self::DropHold(who, n) => command(&["DEL", &key(who, n)]),
            Self::PersistHold(who, n) => command(&["PERSIST", &key(who, n)]),
            Self::DropLock => command(&["DEL", NAME]),
            Self::PersistLock => command(&["PERSIST", NAME]),
            Self::ShortenLock => command(&["PEXPIRE", NAME, &time(1)]),
        }
    }
}

/// A server on which steps run in batches; the state after each step is recorded.
struct Stage<'a> {
    con: &'a mut Connection,
    pubsub: PubSub<'a>,
}

impl<'a> Stage<'a> {
    fn new(cons: &'a mut [Connection; 2]) -> Self {
        let [con, pubsub] = cons;
        for script in SCRIPTS {
            let () = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(script)
                .query(con)
                .unwrap();
        }
        pubsub.set_read_timeout(Some(ms(10_000))).unwrap();
        let mut pubsub = pubsub.as_pubsub();
        pubsub
            .subscribe(&[channel(NAME), "end".to_owned()])
            .unwrap();
        Self { con, pubsub }
    }

    /// Runs each step, in the given state or in the state that the step before has left, and reads the state after it.
    fn play(&mut self, steps: &[(Option<&World>, Op)]) -> Vec<(Value, Keys, Vec<String>)> {
        let mut pipe = Pipeline::new();
        for &(world, op) in steps {
            if let Some(world) = world {
                set_up(&mut pipe, world);
            }
            pipe.add_command(op.command());
            pipe.add_command(evalsha(LOOK, &[], &[]));
            pipe.add_command(command(&["PUBLISH", "end", ""])).ignore();
        }
        let replies: Vec<Value> = pipe.query(self.con).unwrap();
        assert_eq!(replies.len(), 2 * steps.len());
        replies
            .chunks(2)
            .map(|pair| {
                let [reply, found] = pair else { unreachable!() };
                let mut received = Vec::new();
                loop {
                    let message = self.pubsub.get_message().unwrap();
                    if message.get_channel_name() == "end" {
                        break;
                    }
                    received.push(message.get_payload().unwrap());
                }
                (reply.clone(), looked(found), received)
            })
            .collect()
    }
}

/// Makes the server's state equal to `world`.
fn set_up(pipe: &mut Pipeline, world: &World) {
    pipe.add_command(command(&["FLUSHDB"])).ignore();
    pipe.add_command(Op::Claim(world.claimed).command())
        .ignore();
    for (key, (time_left, fields)) in world.keys() {
        if key == NAME {
            let mut hset = redis::cmd("HSET");
            hset.arg(&key);
            for field in &fields {
                hset.arg(field);
            }
            pipe.add_command(hset).ignore();
        } else {
            pipe.add_command(command(&["SET", &key, "1"])).ignore();
        }
        if let Units(units_left) = time_left {
            let left_ms = (i64::from(units_left) * UNIT).to_string();
            pipe.add_command(command(&["PEXPIRE", &key, &left_ms]))
                .ignore();
        }
    }
}

fn looked(found: &Value) -> Keys {
    let found: Vec<(String, i64, Vec<String>)> = redis::from_redis_value_ref(found).unwrap();
    found
        .into_iter()
        .filter(|(key, ..)| !key.starts_with(REQUEST) && *key != note(NAME, "writer"))
        .map(|(key, left_ms, fields)| {
            let fields = fields.chunks(2).map(|pair| {
                let [field, value] = pair else { unreachable!() };
                (field.clone(), value.clone())
            });
            (key, (Left::from_pttl(left_ms), fields.collect()))
        })
        .collect()
}

fn is_expected(reply: &Value, expected: Reply) -> bool {
    match (reply, expected) {
        (_, Reply::Any) => true,
        (Value::Int(n), Reply::Is(expected)) => *n == expected,
        (Value::Int(n), Reply::Left(expected)) => *n >= -1 && Left::from_pttl(*n) == expected,
        (Value::Array(parts), expected) => {
            let [
                Value::Int(taken),
                Value::Int(ttl_left),
                Value::BulkString(behind),
            ] = parts.as_slice()
            else {
                return false;
            };
            match expected {
                Reply::Behind => *taken == 0 && *ttl_left > UNIT && behind == b"w",
                // The caller then asks again when the note may have expired.
                Reply::Asked(false, Some(Ever)) if *ttl_left > UNIT => *taken == 0,
                Reply::Asked(expected, found) => {
                    let time_left = (*ttl_left != -2).then(|| Left::from_pttl(*ttl_left));
                    *taken == i64::from(expected) && time_left == found
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Compares what the server did with the model.
#[track_caller]
fn check(
    world_before: &World,
    op: Op,
    did: &(Value, Keys, Vec<String>),
    story: &dyn Fn() -> String,
) {
    let mut after = world_before.clone();
    let (expected, received) = after.apply(op);
    let (reply, keys, heard) = did;
    let same = is_expected(reply, expected) && *keys == after.keys() && *heard == received;
    assert!(
        same,
        "{op:?} in {world_before:#?}\nanswered {reply:?}, received {heard:?}, left {keys:#?}\n\
         should have answered {expected:?}, received {received:?}, left {:#?}\n{}",
        after.keys(),
        story()
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// The beliefs of holders
// ---------------------------------------------------------------------------------------------------------------------

/// How long each of our owners may believe that it reads or writes, judging only by its own grants and renewals.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Beliefs {
    reads: BTreeMap<Who, u32>,
    writes: BTreeMap<Who, u32>,
}

impl Beliefs {
    /// Updates the beliefs after a step; panics if a valid hold was lost.
    fn learn(&mut self, op: Op, reply: Reply) {
        let granted = |beliefs: &mut BTreeMap<Who, u32>, who: Who, lease: u32| {
            let units_left = beliefs.entry(who).or_insert(lease);
            *units_left = lease.max(*units_left);
        };
        match (op, reply) {
            (Op::Read { who, lease, .. }, Reply::Asked(true, ..)) => {
                granted(&mut self.reads, who, lease);
            }
            (Op::Write(who, lease), Reply::Asked(true, _)) => granted(&mut self.writes, who, lease),
            (Op::ReadRenew(who, lease), Reply::Is(1) | Reply::Left(_)) => {
                granted(&mut self.reads, who, lease);
            }
            (Op::WriteRenew(who, lease, _), Reply::Is(1)) => granted(&mut self.writes, who, lease),
            (Op::ReadRenew(who, _), _) => {
                assert_eq!(self.reads.remove(&who), None, "a valid hold was lost");
            }
            (Op::WriteRenew(who, ..), _) => {
                assert_eq!(self.writes.remove(&who), None, "a valid hold was lost");
            }
            (Op::ReadRelease(who), Reply::Is(n)) => {
                let held = self.reads.remove(&who).is_some();
                assert!(!held || n >= 0, "a valid hold was not there");
            }
            (Op::WriteRelease(who), Reply::Is(n)) => {
                let held = self.writes.remove(&who).is_some();
                assert!(!held || n >= 0, "a valid hold was not there");
            }
            (Op::Force, _) => *self = Self::default(),
            (Op::Pass(units), _) => {
                for beliefs in [&mut self.reads, &mut self.writes] {
                    beliefs.retain(|_, units_left| {
                        *units_left = units_left.saturating_sub(units);
                        *units_left > 0
                    });
                }
            }
            _ => {}
        }
    }

    /// Checks exclusion: one writer, who may also read, or many readers. The Redisson client holds what the server
    /// says.
    fn check(&self, world: &World) {
        let mut writers: BTreeSet<Who> = self.writes.keys().copied().collect();
        let mut readers: BTreeSet<Who> = self.reads.keys().copied().collect();
        if world.writes(JAVA) {
            writers.insert(JAVA);
        }
        if world.life(JAVA).is_some() {
            readers.insert(JAVA);
        }
        assert!(writers.len() <= 1, "two write: {self:?} in {world:?}");
        if let Some(writer) = writers.first() {
            readers.remove(writer);
            assert!(
                readers.is_empty(),
                "others read below {writer}: {self:?} in {world:?}"
            );
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Every state
// ---------------------------------------------------------------------------------------------------------------------

/// Every call of a script, for the first `owners` of our owners and for leases of one and two units.
fn scripts_of(owners: usize) -> Vec<Op> {
    let mut ops = vec![Op::Force, Op::State];
    for who in 0..owners {
        for lease in [1, 2] {
            for (below, gives_way) in [(false, false), (true, false), (false, true), (true, true)] {
                ops.push(Op::Read {
                    who,
                    lease,
                    below,
                    gives_way,
                });
            }
            ops.push(Op::ReadRenew(who, lease));
            ops.push(Op::Write(who, lease));
            ops.push(Op::WriteRenew(who, lease, 1));
        }
        ops.push(Op::WriteRenew(who, 1, 2));
        ops.push(Op::ReadRelease(who));
        ops.push(Op::WriteRelease(who));
    }
    ops
}

/// The steps of a Redisson client.
fn redisson() -> Vec<Op> {
    let mut ops = vec![Op::JavaReadRelease, Op::JavaWriteRelease(1)];
    for lease in [1, 2] {
        ops.extend([Op::JavaRead(lease), Op::JavaWrite(lease)]);
    }
    ops
}

/// Every state that these steps can reach.
fn reachable(ops: &[Op]) -> BTreeSet<World> {
    let mut known = BTreeSet::from([World::default()]);
    let mut edge = vec![World::default()];
    while let Some(world) = edge.pop() {
        for &op in ops {
            let mut after = world.clone();
            after.apply(op);
            if after.is_small() && known.insert(after.clone()) {
                edge.push(after);
            }
        }
    }
    known
}

/// Runs every script in every state that these scripts and steps can reach.
fn compare_all(scripts: &[Op], steps: &[Op]) {
    let mut all = scripts.to_vec();
    all.extend(steps);
    let worlds = reachable(&all);
    let server = Server::start();
    let mut cons = [(); 2].map(|()| server.connection());
    let mut stage = Stage::new(&mut cons);
    let mut done = 0;
    let pairs: Vec<(&World, Op)> = worlds
        .iter()
        .flat_map(|world| scripts.iter().map(move |&op| (world, op)))
        // The writer's note only affects readers that give way.
        .filter(|(world, op)| op.gives_way() == world.claimed)
        .collect();
    for batch in pairs.chunks(100) {
        let steps: Vec<_> = batch.iter().map(|&(world, op)| (Some(world), op)).collect();
        let did = stage.play(&steps);
        for (&(world, op), did) in batch.iter().zip(&did) {
            check(world, op, did, &String::new);
        }
        done += did.len();
    }
    assert!(done > 5000, "only {done} steps");
}

// Holds may be deleted early, so that states with half a hold are included.
#[test]
fn in_every_state_of_two_owners_every_script_does_as_the_model_says() {
    let mut steps = vec![Op::Pass(1), Op::Claim(true), Op::Claim(false)];
    steps.extend([Op::DropHold(0, 1), Op::DropHold(1, 1)]);
    compare_all(&scripts_of(2), &steps);
}

#[test]
fn in_every_state_of_an_owner_and_redisson_every_script_does_as_the_model_says() {
    let mut steps = vec![Op::Pass(1), Op::Claim(true), Op::Claim(false)];
    steps.extend(redisson());
    compare_all(&scripts_of(1), &steps);
}

/// Checks the beliefs of all holders in every state that these steps can reach; returns the number of states.
fn believe_all(ops: &[Op]) -> usize {
    let start = (World::default(), Beliefs::default());
    let mut known = BTreeSet::from([start.clone()]);
    let mut edge = vec![start];
    while let Some((world, beliefs)) = edge.pop() {
        for &op in ops {
            let (mut world_after, mut beliefs_after) = (world.clone(), beliefs.clone());
            let (reply, _) = world_after.apply(op);
            beliefs_after.learn(op, reply);
            beliefs_after.check(&world_after);
            let after = (world_after, beliefs_after);
            if after.0.is_small() && known.insert(after.clone()) {
                edge.push(after);
            }
        }
    }
    known.len()
}

#[test]
fn in_the_model_nobody_writes_while_others_hold_and_nobody_loses_a_valid_hold() {
    // Giving way only adds refusals.
    let ops = |owners| {
        let mut ops = scripts_of(owners);
        ops.retain(|op| !op.gives_way());
        ops.push(Op::Pass(1));
        ops
    };
    let our_states = believe_all(&ops(3));
    let mut beside_redisson = ops(2);
    beside_redisson.extend(redisson());
    let mixed = believe_all(&beside_redisson);
    assert!(
        our_states > 1000 && mixed > 3000,
        "only {our_states} and {mixed} states"
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Long walks
// ---------------------------------------------------------------------------------------------------------------------

struct XorShift(u64);

impl XorShift {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    fn lease(&mut self) -> u32 {
        u32::try_from(1 + self.below(4)).unwrap()
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// In a kind world, leases end only by time.
    fn op(&mut self, kind: bool) -> Op {
        let who = self.below(JAVA);
        let any = self.below(OWNERS);
        let lease = self.lease();
        let n = u32::try_from(1 + self.below(3)).unwrap();
        match self.below(if kind { 88 } else { 100 }) {
            0..18 => Op::Read {
                who,
                lease,
                below: self.coin(),
                gives_way: self.coin(),
            },
            18..30 => Op::ReadRelease(who),
            30..38 => Op::ReadRenew(who, lease),
            38..47 => Op::Write(who, lease),
            47..54 => Op::WriteRelease(who),
            54..58 => Op::WriteRenew(who, lease, n),
            58 => Op::Force,
            59..61 => Op::State,
            61..70 => Op::Pass(u32::try_from(1 + self.below(2)).unwrap()),
            70..73 => Op::Claim(self.coin()),
            73..79 => Op::JavaRead(lease),
            79..83 => Op::JavaReadRelease,
            83..85 => Op::JavaWrite(lease),
            85..88 => Op::JavaWriteRelease(lease),
            88..90 => Op::JavaReadRenew(lease),
            90..95 => Op::DropHold(any, n),
            95 => Op::PersistHold(any, n),
            96 => Op::DropLock,
            97 => Op::PersistLock,
            _ => Op::ShortenLock,
        }
    }
}

/// A random walk, with its steps so far.
struct Walk<'a> {
    stage: Stage<'a>,
    world: World,
    beliefs: Option<Beliefs>,
    seed: u64,
    ops: Vec<Op>,
    received: usize,
}

impl Walk<'_> {
    fn go(&mut self, ops: &[Op]) {
        let steps: Vec<(Option<&World>, Op)> = ops.iter().map(|&op| (None, op)).collect();
        for (&op, did) in ops.iter().zip(self.stage.play(&steps)) {
            self.ops.push(op);
            let story = || {
                let last = &self.ops[self.ops.len().saturating_sub(30)..];
                format!("walk {:#x}, step {}: {last:?}", self.seed, self.ops.len())
            };
            check(&self.world, op, &did, &story);

            let (reply, received) = self.world.apply(op);
            self.received += received.len();
            if let Some(beliefs) = &mut self.beliefs {
                beliefs.learn(op, reply);
                beliefs.check(&self.world);
            }
        }
    }
}

/// Compares so many random steps with the model, and in a kind world also checks the beliefs of holders.
fn walk(seed: u64, count: usize, kind: bool) {
    let server = Server::start();
    let mut cons = [(); 2].map(|()| server.connection());
    let mut walk = Walk {
        stage: Stage::new(&mut cons),
        world: World::default(),
        beliefs: kind.then(Beliefs::default),
        seed,
        ops: Vec::new(),
        received: 0,
    };
    let mut random = XorShift(seed);
    while walk.ops.len() < count {
        let ops: Vec<Op> = (0..50).map(|_| random.op(kind)).collect();
        walk.go(&ops);
    }
    let received = walk.received;
    assert!(
        received > count / 50,
        "only {received} messages in {count} steps"
    );
}

#[test]
fn on_long_walks_every_step_is_the_models_and_every_belief_is_justified() {
    walk(0x5eed_0001, 5000, true);
}

#[test]
fn on_long_walks_through_an_unkind_world_every_step_is_the_models() {
    walk(0x5eed_0002, 5000, false);
}
