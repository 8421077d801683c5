//! Lists the locks on the servers.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

#[cfg(feature = "serde")]
use super::serialized;
use super::{apart, inspect::LockKind};
use crate::error::{Error, Result};
use crate::net::apart::Apart;
use crate::net::request::Request;
use crate::protocol::inspect;
use crate::session::shared::SharedSession;
use crate::shown::Shown;
use crate::verdict;

/// About how many keys are looked through in one step.
const STEP: &str = "500";

const DOING: &str = "listing locks";

/// A lock that [`Client::locks`](crate::Client::locks) lists: its name, its kind and how many hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockSummary {
    /// The name, without the client's prefix.
    pub name: String,
    /// The kind that it looks like.
    pub kind: LockKind,
    /// How many hold it, or how many permits are taken.
    pub held: u64,
    /// How long it is held unless it is renewed; `None` if it has no end.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_lease_ms", serialize_with = "serialized::ms")
    )]
    pub remaining_lease: Option<Duration>,
}

impl fmt::Display for LockSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {} held",
            Shown(&self.name),
            self.kind,
            self.held
        )?;
        match self.remaining_lease {
            Some(lease) => write!(f, ", {:.1} s left", lease.as_secs_f64()),
            None => f.write_str(", never expires"),
        }
    }
}

/// Which keys one pass looks at: those of locks, or those of taken permits. The latter have two forms.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Hashes,
    /// `{key}:timeout`, if the key has no brace.
    Braced,
    /// `key:timeout`, if it has one.
    Bare,
}

impl Pass {
    /// The passes that may find something.
    fn all(prefix: &str, pattern: &str) -> impl Iterator<Item = Self> {
        let has_brace = prefix.contains('{');
        let may_have_brace = has_brace || pattern.contains(['{', '*', '?', '[', '\\']);
        let passes = [
            (Self::Hashes, true),
            (Self::Braced, !has_brace),
            (Self::Bare, may_have_brace),
        ];
        let useful = passes.into_iter().filter(|(_, is_useful)| *is_useful);
        useful.map(|(pass, _)| pass)
    }

    /// The key of the lock or semaphore that a found key belongs to.
    fn key(self, found: &str) -> Option<&str> {
        match self {
            Self::Hashes => Some(found),
            Self::Braced => within_braces(found.strip_suffix(":timeout")?),
            Self::Bare => found.strip_suffix(":timeout"),
        }
    }

    /// The semaphores at the keys `a` and `{a}` both keep their taken permits at `{a}:timeout`. Given the key of one of
    /// the two, returns the key of the other. `None` if no other semaphore has its permits there.
    fn rival(self, key: &str) -> Option<String> {
        match self {
            Self::Hashes => None,
            Self::Braced => Some(format!("{{{key}}}")),
            Self::Bare => within_braces(key).map(str::to_owned),
        }
    }
}

/// The text within the only braces, if nothing is around them.
fn within_braces(text: &str) -> Option<&str> {
    let bare = text.strip_prefix('{')?.strip_suffix('}')?;
    (!bare.is_empty() && !bare.contains('{')).then_some(bare)
}

/// The locks that match a pattern: an iterator that asks Redis in steps. See [`Client::locks`](crate::Client::locks).
///
/// An error ends the iteration.
pub struct Locks {
    shared: Arc<SharedSession>,
    pattern: String,
    /// The passes that are left, the next at the end.
    passes: Vec<(usize, Pass)>,
    /// The connection to the master that is looked through now.
    at: Option<(usize, Apart)>,
    cursor: String,
    found: VecDeque<LockSummary>,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("pattern", &self.pattern)
            .finish_non_exhaustive()
    }
}

impl Locks {
    pub(crate) fn new(shared: &Arc<SharedSession>, pattern: &str) -> Self {
        let mut passes = Vec::new();
        let prefix = &shared.session.registry.prefix;
        for node in shared.session.connection.map.masters() {
            passes.extend(Pass::all(prefix, pattern).map(|pass| (node, pass)));
        }
        passes.reverse();
        Self {
            shared: Arc::clone(shared),
            pattern: pattern.into(),
            passes,
            at: None,
            cursor: "0".into(),
            found: VecDeque::new(),
        }
    }

    /// Looks through some more keys; `false` at the end.
    fn step(&mut self) -> Result<bool> {
        let Some(&(node, pass)) = self.passes.last() else {
            return Ok(false);
        };
        let session = &self.shared.session;
        // In a forked process, a copy of this iterator must not use the connection, which is the parent's.
        session.check_open()?;
        let until = Instant::now() + session.command_timeout;
        let mut connection = match self.at.take() {
            Some((at, connection)) if at == node => connection,
            _ => apart(session, DOING, node, until)?,
        };
        let prefix = &session.registry.prefix;
        let (cursor, keys) = scan(
            &mut connection,
            &self.cursor,
            pass,
            prefix,
            &self.pattern,
            until,
        )
        .map_err(|err| Error::redis(DOING, err).at(&session.endpoint))?;
        let found: Vec<_> = keys
            .iter()
            .filter_map(|found| Some((found, pass.key(found)?)))
            .collect();
        let mut questions: Vec<_> = found.iter().map(|(at, _)| inspect::summary(at)).collect();
        // `EXISTS` gets the key twice: the reply is 2 if the semaphore exists, plus 1 if its rival does.
        questions.extend(found.iter().filter_map(|(_, key)| {
            let rival = pass.rival(key)?;
            Some(Request::command(DOING, &["EXISTS", key, key, &rival]))
        }));
        let answers = connection.ask(&questions, until);
        let answers = answers.map_err(|err| Error::redis(DOING, err).at(&session.endpoint))?;
        if let Some(refusal) = answers.iter().find_map(refusal) {
            return Err(Error::redis(DOING, refusal).at(&session.endpoint));
        }
        let (summaries, exist) = answers.split_at(found.len());
        let mut exist = exist.iter();
        for ((_, key), answer) in found.iter().zip(summaries) {
            let exist = pass.rival(key).and_then(|_| exist.next());
            let is_its_own = match (pass, exist) {
                (Pass::Bare, Some(Value::Int(n))) => *n >= 2,
                // The pass `Braced` lists the permits as those of `a`, unless only `{a}` exists. It also lists them if
                // neither exists: permits may be taken although the semaphore's own key was deleted. The pass `Bare` lists
                // them as those of `{a}` if `{a}` exists.
                (_, Some(Value::Int(n))) => *n != 1,
                _ => true,
            };
            self.found
                .extend(summary(key, prefix, answer).filter(|_| is_its_own));
        }
        self.at = Some((node, connection));
        if cursor == "0" {
            self.passes.pop();
        }
        self.cursor = cursor;
        Ok(true)
    }
}

/// Some keys, each once, and where the next step begins.
fn scan(
    connection: &mut Apart,
    cursor: &str,
    pass: Pass,
    prefix: &str,
    pattern: &str,
    until: Instant,
) -> std::result::Result<(String, Vec<String>), redis::RedisError> {
    let prefix = escaped(prefix);
    let (kind, pattern) = match pass {
        Pass::Hashes => ("hash", format!("{prefix}{pattern}")),
        Pass::Bare => ("zset", format!("{prefix}{pattern}:timeout")),
        Pass::Braced => ("zset", format!("{{{prefix}{pattern}}}:timeout")),
    };
    let args = [
        "SCAN", cursor, "MATCH", &pattern, "COUNT", STEP, "TYPE", kind,
    ];
    let mut answers = connection.ask(&[Request::command(DOING, &args)], until)?;
    let answer = answers.remove(0).extract_error()?;
    let (cursor, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer)?;
    // The keys of this crate are UTF-8, so others are skipped.
    let keys: HashSet<_> = keys
        .into_iter()
        .filter_map(|key| String::from_utf8(key).ok())
        .collect();
    Ok((cursor, keys.into_iter().collect()))
}

/// Returns a glob pattern that matches the prefix itself and no other text. (`check` uses it for ACL rights, `scan` for
/// `SCAN`.)
pub(super) fn escaped(prefix: &str) -> String {
    let mut escaped = String::new();
    for c in prefix.chars() {
        if "*?[]^\\".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The error of an answer. `None` also for an error about this key alone: then the list omits the key.
fn refusal(answer: &Value) -> Option<redis::RedisError> {
    let err = answer.clone().extract_error().err()?;
    (!verdict::is_about_the_key(&err)).then_some(err)
}

fn summary(key: &str, prefix: &str, answer: &Value) -> Option<LockSummary> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let [Value::Int(kind), Value::Int(held), Value::Int(ttl)] = parts.as_slice() else {
        return None;
    };
    let kind = match kind {
        1 => LockKind::Lock,
        2 => LockKind::FairLock,
        3 => LockKind::FencedLock,
        4 => LockKind::RwLock,
        5 => LockKind::ExpirableSemaphore,
        _ => return None,
    };
    Some(LockSummary {
        name: key.strip_prefix(prefix)?.into(),
        kind,
        held: u64::try_from(*held).ok()?,
        remaining_lease: u64::try_from(*ttl).ok().map(Duration::from_millis),
    })
}

impl Iterator for Locks {
    type Item = Result<LockSummary>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Some(Ok(found));
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(err) => {
                    self.passes.clear();
                    return Some(Err(err));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
