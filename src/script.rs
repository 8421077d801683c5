//! The Lua scripts: one typed request per file, and replies that become enums here and travel no further.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

/// A script, ready to be sent by its SHA-1 or whole.
pub(crate) struct Script {
    by_hash: Vec<u8>,
    whole: Vec<u8>,
}

impl Script {
    fn new(text: &str) -> Self {
        let mut by_hash = Vec::new();
        push_bulk(&mut by_hash, b"EVALSHA");
        push_bulk(&mut by_hash, redis::Script::new(text).get_hash().as_bytes());
        let mut whole = Vec::new();
        push_bulk(&mut whole, b"EVAL");
        push_bulk(&mut whole, text.as_bytes());
        Self { by_hash, whole }
    }
}

const ACQUIRE: &str = include_str!("../lua/lock_acquire.lua");
const RELEASE: &str = include_str!("../lua/lock_release.lua");
const RENEW: &str = include_str!("../lua/lock_renew.lua");
const FORCE: &str = include_str!("../lua/lock_force.lua");

static LOCK_ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(ACQUIRE));
static LOCK_RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE));
static LOCK_RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(RENEW));
static LOCK_FORCE: LazyLock<Script> = LazyLock::new(|| Script::new(FORCE));

/// One command, packed but for the choice between a script's hash and its text.
#[derive(Clone)]
pub(crate) struct Request {
    script: Option<&'static Script>,
    parts: usize,
    packed: Vec<u8>,
    /// What the command is for, as errors tell it.
    pub(crate) doing: &'static str,
}

impl Request {
    /// A plain command.
    pub(crate) fn command(doing: &'static str, parts: &[&str]) -> Self {
        let mut packed = Vec::with_capacity(64);
        for part in parts {
            push_bulk(&mut packed, part.as_bytes());
        }
        Self {
            script: None,
            parts: parts.len(),
            packed,
            doing,
        }
    }

    fn script(doing: &'static str, script: &'static Script, keys: &[&str], args: &[&str]) -> Self {
        let mut packed = Vec::with_capacity(192);
        // Never more than a few keys: one digit.
        packed.extend_from_slice(b"$1\r\n");
        packed.push(b"0123456789"[keys.len()]);
        packed.extend_from_slice(b"\r\n");
        for part in keys.iter().chain(args) {
            push_bulk(&mut packed, part.as_bytes());
        }
        Self {
            script: Some(script),
            parts: 3 + keys.len() + args.len(),
            packed,
            doing,
        }
    }

    /// Appends the command; `whole` sends a script's text instead of its hash, which Redis did not know.
    pub(crate) fn write(&self, out: &mut Vec<u8>, whole: bool) {
        push_head(out, b'*', self.parts);
        if let Some(script) = self.script {
            out.extend_from_slice(if whole {
                &script.whole
            } else {
                &script.by_hash
            });
        }
        out.extend_from_slice(&self.packed);
    }
}

fn push_head(out: &mut Vec<u8>, kind: u8, mut n: usize) {
    out.push(kind);
    let digits = out.len();
    loop {
        out.push(b"0123456789"[n % 10]);
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out[digits..].reverse();
    out.extend_from_slice(b"\r\n");
}

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_head(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A lease as scripts want it: whole milliseconds, never rounded down to nothing.
pub(crate) fn lease_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A reply that no version of the script gives: the key or the server is not what we think.
#[derive(Debug)]
pub(crate) struct Unexpected(pub(crate) Value);

impl std::fmt::Display for Unexpected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unexpected reply {:?}", self.0)
    }
}

impl std::error::Error for Unexpected {}

/// What became of an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    Taken,
    /// Somebody else has it; `None`: for ever, as far as the server knows.
    Busy {
        left: Option<Duration>,
    },
}

pub(crate) fn acquire(key: &str, owner: &str, lease: Duration) -> Request {
    let lease = lease_ms(lease).to_string();
    Request::script(
        "acquiring the lock",
        &LOCK_ACQUIRE,
        &[key],
        &[owner, &lease],
    )
}

pub(crate) fn acquired(reply: Value) -> Result<Acquired, Unexpected> {
    match reply {
        Value::Nil => Ok(Acquired::Taken),
        Value::Int(ms) => Ok(Acquired::Busy {
            left: u64::try_from(ms).ok().map(Duration::from_millis),
        }),
        other => Err(Unexpected(other)),
    }
}

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// It was ours; that many subscribers were told.
    Yes { listeners: i64 },
    /// Nobody holds the lock any more.
    Gone,
    /// Somebody else does.
    Taken,
}

pub(crate) fn release(key: &str, channel: &str, owner: &str) -> Request {
    Request::script(
        "releasing the lock",
        &LOCK_RELEASE,
        &[key, channel],
        &[owner],
    )
}

pub(crate) fn released(reply: &Value) -> Result<Released, Unexpected> {
    match reply {
        Value::Int(-1) => Ok(Released::Gone),
        Value::Int(-2) => Ok(Released::Taken),
        Value::Int(n) if *n >= 0 => Ok(Released::Yes { listeners: *n }),
        other => Err(Unexpected(other.clone())),
    }
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    Yes,
    /// Nobody holds the lock any more.
    Gone,
    /// Somebody else does.
    Taken,
}

pub(crate) fn renew(key: &str, owner: &str, lease: Duration, count: u32) -> Request {
    let (lease, count) = (lease_ms(lease).to_string(), count.to_string());
    Request::script(
        "renewing the lock",
        &LOCK_RENEW,
        &[key],
        &[owner, &lease, &count],
    )
}

pub(crate) fn renewed(reply: Value) -> Result<Renewed, Unexpected> {
    match reply {
        Value::Int(1) => Ok(Renewed::Yes),
        Value::Int(0) => Ok(Renewed::Gone),
        Value::Int(-1) => Ok(Renewed::Taken),
        other => Err(Unexpected(other)),
    }
}

pub(crate) fn force(key: &str, channel: &str) -> Request {
    Request::script("forcing the lock open", &LOCK_FORCE, &[key, channel], &[])
}

/// A command that is refused for a key of another type, so that a stranger's key is never called a lock.
pub(crate) fn is_locked(key: &str) -> Request {
    Request::command("asking for the lock", &["HLEN", key])
}

pub(crate) fn remaining(key: &str) -> Request {
    Request::command("asking for the lease", &["PTTL", key])
}

pub(crate) fn integer(reply: Value) -> Result<i64, Unexpected> {
    match reply {
        Value::Int(n) => Ok(n),
        other => Err(Unexpected(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_packed_like_the_redis_crate_packs_it() {
        let request = acquire("k e\ny", "o:1", Duration::from_millis(1500));
        let mut ours = Vec::new();
        request.write(&mut ours, true);
        let text = ACQUIRE;
        let theirs = redis::cmd("EVAL")
            .arg(text)
            .arg(1)
            .arg("k e\ny")
            .arg("o:1")
            .arg(1500)
            .get_packed_command();
        assert_eq!(ours, theirs);
        ours.clear();
        request.write(&mut ours, false);
        let hash = redis::Script::new(text);
        let theirs = redis::cmd("EVALSHA")
            .arg(hash.get_hash())
            .arg(1)
            .arg("k e\ny")
            .arg("o:1")
            .arg(1500)
            .get_packed_command();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn replies_become_enums() {
        assert_eq!(acquired(Value::Nil).ok(), Some(Acquired::Taken));
        let left = Some(Duration::from_millis(7));
        assert_eq!(acquired(Value::Int(7)).ok(), Some(Acquired::Busy { left }));
        assert_eq!(
            acquired(Value::Int(-1)).ok(),
            Some(Acquired::Busy { left: None })
        );
        assert!(acquired(Value::Okay).is_err());
        assert_eq!(
            released(&Value::Int(2)).ok(),
            Some(Released::Yes { listeners: 2 })
        );
        assert_eq!(released(&Value::Int(-1)).ok(), Some(Released::Gone));
        assert_eq!(released(&Value::Int(-2)).ok(), Some(Released::Taken));
        assert!(released(&Value::Int(-3)).is_err());
        assert_eq!(renewed(Value::Int(0)).ok(), Some(Renewed::Gone));
        assert_eq!(renewed(Value::Int(-1)).ok(), Some(Renewed::Taken));
    }

    #[test]
    fn a_lease_is_rounded_up_to_milliseconds() {
        assert_eq!(lease_ms(Duration::from_micros(10_001)), 11);
        assert_eq!(lease_ms(Duration::from_millis(10)), 10);
    }
}
