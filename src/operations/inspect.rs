//! Shows who holds one name, and who waits for it.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::acquire::spec::LockSpec;
use crate::error::{Error, Result, said};
use crate::net::request::Request;
use crate::operations::processes::{self, Process, Processes};
#[cfg(feature = "serde")]
use crate::operations::serialized;
use crate::operations::{ask_master_of, text};
use crate::protocol::{inspect, reentrant};
use crate::session::shared::SharedSession;
use crate::shown::Shown;
use crate::sync::handle::Handle;
use crate::sync::kind::Red;

/// The kind of lock that the keys of a name look like.
///
/// Some kinds look alike in Redis: a [`ReentrantLock`](crate::ReentrantLock), a [`Mutex`](crate::Mutex), a
/// [`SpinLock`](crate::SpinLock), one node's part of a [`RedLock`](crate::RedLock) and a fair lock without a queue are all
/// [`LockKind::Lock`]. An [`Election`](crate::Election) is a [`LockKind::FencedLock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LockKind {
    /// Redis has no key of this name: the lock is free, or the latch is open.
    Free,
    /// A plain lock, held.
    Lock,
    /// A fair lock that is waited for, held or not.
    FairLock,
    /// A fenced lock: held, or held before.
    FencedLock,
    /// A read-write lock, held.
    RwLock,
    /// A semaphore with permits that expire, of which some are taken.
    ExpirableSemaphore,
    /// The key is a plain number. Redis cannot tell which of these it is:
    ///
    /// - a [`Semaphore`](crate::Semaphore);
    /// - an [`ExpirableSemaphore`](crate::ExpirableSemaphore) of which no permit is taken;
    /// - a closed [`Latch`](crate::Latch) that redlatch has not set within the last day.
    Semaphore,
    /// A closed latch that redlatch has set within the last day. An older one is a [`Semaphore`](Self::Semaphore).
    Latch,
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Lock => "lock",
            Self::FairLock => "fair lock",
            Self::FencedLock => "fenced lock",
            Self::RwLock => "read-write lock",
            Self::Semaphore => "semaphore",
            Self::ExpirableSemaphore => "expirable semaphore",
            Self::Latch => "latch",
        })
    }
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HoldMode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Read,
    /// Alone, to write.
    Write,
    /// As a permit of a semaphore.
    Permit,
}

impl fmt::Display for HoldMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "held",
            Self::Read => "read",
            Self::Write => "written",
            Self::Permit => "permit",
        })
    }
}

/// A hold of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The owner as Redis stores it. For redlatch `<client id>:<number>`: [`Client::id`](crate::Client::id), and the number
    /// of the acquisition. For Redisson the id of its client, and the number of the thread. For a permit the permit's id.
    pub owner: String,
    /// How many times the owner has locked the name without unlocking it. For an owner of redlatch, the number is as of the
    /// last renewal, and 1 for a read hold. 0 means that the name stays taken although nobody works under the lock. The
    /// holder has released it before `min_hold` was over, or has detached it and nobody has adopted it yet. A permit always
    /// counts 1.
    pub count: u64,
    /// How it is held.
    pub mode: HoldMode,
    /// How long the hold lives unless it is renewed; `None` if it never expires. A reader whose lease is over may still be
    /// listed; the value is then how long the key of the whole lock lives.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_lease_ms", serialize_with = "serialized::ms")
    )]
    pub remaining_lease: Option<Duration>,
    /// The process of the owner. `None` for an owner of Redisson, for one that is not connected, for permits, whose ids name
    /// no process, and if the user lacks the right to ask ([`LockInfo::unknown`]).
    pub process: Option<Process>,
}

/// A place in the queue of a fair lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiter {
    /// The owner, as [`Holder::owner`].
    pub owner: String,
    /// How long the waiter keeps its place unless its client confirms it.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lives_for_ms", serialize_with = "serialized::ms")
    )]
    pub lives_for: Option<Duration>,
    /// The process of the owner, as [`Holder::process`].
    pub process: Option<Process>,
}

/// The holders and waiters of a name: see [`Client::inspect`](crate::Client::inspect).
///
/// The `Display` text is what the command `redlatch who` prints. At most 1000 holders and 1000 waiters are listed.
///
/// ```no_run
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let info = client.inspect("report")?;
/// println!("{info}");
/// if let Some(holder) = info.holders.first() {
///     println!("{} for another {:?}", holder.owner, holder.remaining_lease);
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The name that was asked for.
    pub name: String,
    /// The key: the client's prefix and the name.
    pub key: String,
    /// The kind that it looks like.
    pub kind: LockKind,
    /// The holders.
    pub holders: Vec<Holder>,
    /// How many holders there are, listed or not.
    pub held: u64,
    /// The queue of a fair lock, the next waiter first.
    pub queue: Vec<Waiter>,
    /// How many wait for a fair lock, listed or not.
    pub waiting: u64,
    /// How many processes listen for a release; `None` if the user lacks the right to ask. Processes that poll do not count,
    /// nor do the waiters of a fair lock, which have a channel each: see [`waiting`](Self::waiting).
    pub listening: Option<u64>,
    /// The last fencing token drawn.
    pub token: Option<u64>,
    /// How many permits of a semaphore are available, or the count of a latch.
    pub free: Option<i64>,
    /// How long until the key expires; `None` if it never does.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ends_in_ms", serialize_with = "serialized::ms")
    )]
    pub ends_in: Option<Duration>,
    /// The facts that are missing, each with the reason and the right to give: `processes: NOPERM …; give the user
    /// +client|list`.
    pub unknown: Vec<String>,
}

/// Reads, one by one, the texts that the script has returned.
struct Texts(std::vec::IntoIter<String>);

impl Texts {
    fn text(&mut self) -> Option<String> {
        self.0.next()
    }

    fn number<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.text()?.parse().ok()
    }

    fn span(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_millis)
    }

    /// Reads how many there are, and those that are listed.
    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<(u64, Vec<T>)> {
        let (all, listed): (u64, usize) = (self.number()?, self.number()?);
        let list: Option<Vec<T>> = (0..listed).map(|_| read(self)).collect();
        Some((all, list?))
    }
}

pub(crate) fn inspect(shared: &Arc<SharedSession>, name: &str) -> Result<LockInfo> {
    let until = Instant::now() + shared.session.command_timeout;
    let (mut info, processes) = look(shared, name, until)?;
    info.join(&processes);
    Ok(info)
}

/// Asks for the state of a name, and for the processes that are connected to its server.
pub(super) fn look(
    shared: &Arc<SharedSession>,
    name: &str,
    until: Instant,
) -> Result<(LockInfo, Processes)> {
    let spec = LockSpec::new(shared, name.into(), &reentrant::KIND);
    let entry = spec.unregistered_entry()?;
    let (session, key) = (&shared.session, entry.protocol.key());
    let channels = inspect::channels(key);
    let numsub = match session.connection.map.is_sharded() {
        true => "SHARDNUMSUB",
        false => "NUMSUB",
    };
    let mut listening = vec!["PUBSUB", numsub];
    listening.extend(channels.iter().map(String::as_str));
    let doing = "inspecting a name";
    let questions = [
        inspect::everything(key),
        Request::command(doing, &["CLIENT", "LIST"]),
        Request::command(doing, &listening),
    ];
    let answers = ask_master_of(session, name, key, &questions, until)?;
    let [everything, clients, listening] = <[Value; 3]>::try_from(answers)
        .map_err(|_| session.error(doing, name, "too few answers"))?;
    let everything = everything.extract_error();
    let everything = everything.map_err(|err| session.error(doing, name, err))?;
    let read = inspect::texts(&everything).and_then(|texts| read(name, key, texts));
    let mut info = read.ok_or_else(|| session.error(doing, name, "an unexpected reply"))??;
    let mut processes = Processes::new();
    match text(clients) {
        Ok(list) => processes = processes::of_list(&list),
        Err(err) => info.unknown.push(unknown_processes(&said(&err))),
    }
    match listening.extract_error() {
        Ok(counts) => info.listening = Some(sum(&counts)),
        Err(err) => info.unknown.push(unknown_listeners(&said(&err))),
    }
    Ok((info, processes))
}

fn unknown_processes(err: &str) -> String {
    format!("processes: {err}; give the user +client|list")
}

fn unknown_listeners(err: &str) -> String {
    format!("listening processes: {err}; give the user +pubsub")
}

/// The sum of the numbers in an answer to `PUBSUB NUMSUB`.
fn sum(counts: &Value) -> u64 {
    let Value::Array(parts) = counts else {
        return 0;
    };
    let numbers = parts.iter().filter_map(|part| match part {
        Value::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    });
    numbers.sum()
}

fn read(name: &str, key: &str, texts: Vec<String>) -> Option<Result<LockInfo>> {
    let mut texts = Texts(texts.into_iter());
    let (kind, ends_in, value) = (texts.text()?, texts.span(), texts.text()?);
    let mut facts = KeyFacts {
        key_type: kind,
        number: value.parse().ok().filter(|n: &i64| n.to_string() == value),
        ..KeyFacts::default()
    };
    let (fields, mut holders) = texts.list(|texts| {
        let (field, value, lease) = (texts.text()?, texts.text()?, texts.span());
        Some(Holder {
            count: value.parse().unwrap_or(0),
            mode: HoldMode::Exclusive,
            remaining_lease: lease.or(ends_in),
            process: None,
            owner: field,
        })
    })?;
    let (waiting, queue) = texts.list(|texts| {
        Some(Waiter {
            owner: texts.text()?,
            lives_for: texts.span(),
            process: None,
        })
    })?;
    let (taken, permits) = texts.list(permit)?;
    let token = texts.number();
    (facts.waiting, facts.taken, facts.has_token) = (waiting, taken, token.is_some());
    facts.has_round = texts.text()? == "1";
    let kind = match facts.kind() {
        Ok(kind) => kind,
        Err(content) => {
            return Some(Err(Error::WrongType {
                name: name.into(),
                found: Some(format!("the key `{key}` holds a {content}")),
            }));
        }
    };
    let held = match &kind {
        LockKind::ExpirableSemaphore => taken,
        LockKind::RwLock => fields.saturating_sub(1),
        _ => fields,
    };
    holders.retain(|holder| holder.owner != "mode");
    if kind == LockKind::RwLock {
        holders.iter_mut().for_each(Holder::tell_mode);
    }
    holders.extend(permits);
    Some(Ok(LockInfo {
        name: name.into(),
        key: key.into(),
        kind,
        holders,
        held,
        queue,
        waiting,
        listening: None,
        token,
        free: facts.number,
        ends_in,
        unknown: Vec::new(),
    }))
}

fn permit(texts: &mut Texts) -> Option<Holder> {
    Some(Holder {
        owner: texts.text()?,
        count: 1,
        mode: HoldMode::Permit,
        remaining_lease: texts.span(),
        process: None,
    })
}

/// What is known of a name's keys; the kind follows from it.
#[derive(Default)]
struct KeyFacts {
    /// The type of the key; of a hash, the kind of lock that the script sees in it.
    key_type: String,
    number: Option<i64>,
    waiting: u64,
    taken: u64,
    has_token: bool,
    has_round: bool,
}

impl KeyFacts {
    /// The kind; or, as the error, what the key holds if that is no lock.
    fn kind(&self) -> std::result::Result<LockKind, &str> {
        Ok(match &*self.key_type {
            "read-write lock" => LockKind::RwLock,
            "string" if self.number.is_none() => return Err("string that is not a number"),
            "string" | "none" if self.taken > 0 => LockKind::ExpirableSemaphore,
            "string" if self.has_round => LockKind::Latch,
            "string" => LockKind::Semaphore,
            "lock" | "none" if self.waiting > 0 => LockKind::FairLock,
            "lock" | "none" if self.has_token => LockKind::FencedLock,
            "lock" => LockKind::Lock,
            "none" => LockKind::Free,
            "hash" => return Err("hash that is not a lock"),
            other => return Err(other),
        })
    }
}

impl Holder {
    /// Sets the mode of a read-write lock's holder. The field of a write hold is its owner followed by `:write`, which is
    /// cut off.
    fn tell_mode(&mut self) {
        let written = self.owner.strip_suffix(":write").map(str::to_owned);
        (self.mode, self.owner) = match written {
            Some(owner) => (HoldMode::Write, owner),
            None => (HoldMode::Read, std::mem::take(&mut self.owner)),
        };
    }
}

impl LockInfo {
    /// Adds the process of each owner that is connected.
    fn join(&mut self, processes: &Processes) {
        let find = |owner: &str| {
            let (id, _) = owner.rsplit_once(':')?;
            processes.get(id).cloned()
        };
        for holder in &mut self.holders {
            holder.process = find(&holder.owner);
        }
        for waiter in &mut self.queue {
            waiter.process = find(&waiter.owner);
        }
    }
}

/// A time in the unit that people use.
fn shown(span: Duration) -> String {
    match span.as_secs() {
        0..600 => format!("{:.1} s", span.as_secs_f64()),
        600..36_000 => format!("{} min", span.as_secs() / 60),
        _ => format!("{} h", span.as_secs() / 3600),
    }
}

impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Shown(&self.name), self.kind)?;
        match self.kind {
            LockKind::Free => {}
            LockKind::Latch => write!(f, ", {} left to count", self.free.unwrap_or(0))?,
            LockKind::Semaphore => write!(f, ", {} free", self.free.unwrap_or(0))?,
            LockKind::ExpirableSemaphore => {
                let (free, taken) = (self.free.unwrap_or(0), self.held);
                write!(f, ", {free} free, {taken} taken")?;
            }
            _ if self.holders.is_empty() => f.write_str(", free")?,
            _ => f.write_str(", held")?,
        }
        if let Some(token) = self.token {
            write!(f, ", last token {token}")?;
        }
        for Holder {
            owner,
            count,
            mode,
            remaining_lease,
            process,
        } in &self.holders
        {
            match mode {
                HoldMode::Permit => write!(f, "\n  permit {}", Shown(owner))?,
                mode => write!(f, "\n  {mode} by {}", Shown(owner))?,
            }
            match count {
                0 => f.write_str(", released but kept (min_hold or detach)")?,
                1 => {}
                count => write!(f, ", {count} times")?,
            }
            match remaining_lease {
                Some(lease) => write!(f, ", {} left", shown(*lease))?,
                None => f.write_str(", never expires")?,
            }
            where_it_is(f, process.as_ref())?;
        }
        if self.held > self.holders.len() as u64 && !self.holders.is_empty() {
            write!(f, "\n  … {} holders in all", self.held)?;
        }
        for (place, waiter) in (1..).zip(&self.queue) {
            write!(f, "\n  waiting {place}. {}", Shown(&waiter.owner))?;
            where_it_is(f, waiter.process.as_ref())?;
        }
        if self.waiting > self.queue.len() as u64 {
            write!(f, "\n  … {} waiting in all", self.waiting)?;
        }
        if let Some(listening) = self.listening.filter(|listening| *listening > 0) {
            let s = if listening == 1 {
                " listens"
            } else {
                "es listen"
            };
            write!(f, "\n  {listening} process{s} for its release")?;
        }
        for question in &self.unknown {
            write!(f, "\n  unknown: {question}")?;
        }
        Ok(())
    }
}

fn where_it_is(f: &mut fmt::Formatter<'_>, process: Option<&Process>) -> fmt::Result {
    match process {
        Some(process) => write!(f, "\n      {process}"),
        None => Ok(()),
    }
}

impl Handle<Red> {
    /// Returns what each of the masters shows of this lock, by its address, in the order of the clients.
    ///
    /// Asks all of them at the same time, over connections of their own; blocks at most for the command timeout of each
    /// client.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// # let other = client.clone();
    /// let lock = redlatch::RedLock::new([&client, &other], "billing")?;
    /// for (master, info) in lock.inspect() {
    ///     match info {
    ///         Ok(info) => println!("{master}: {info}"),
    ///         Err(err) => println!("{master}: {err}"),
    ///     }
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn inspect(&self) -> Vec<(String, Result<LockInfo>)> {
        let name = self.name();
        let mut looked = each_of(self.clients(), |shared| {
            let until = Instant::now() + shared.session.command_timeout;
            let at = shared.session.endpoint.to_string();
            (at, look(shared, name, until))
        });
        // On all masters the owner has the id of the holder's first client, which is connected to one master only. So the
        // processes that all masters report are collected first, and then each owner is looked up among all of them.
        let all = looked
            .iter_mut()
            .filter_map(|(_, looked)| looked.as_mut().ok());
        let mut processes = Processes::new();
        all.for_each(|(_, processes_there)| processes.extend(processes_there.drain()));
        let joined = |looked: Result<(LockInfo, _)>| {
            looked.map(|(mut info, _)| {
                info.join(&processes);
                info
            })
        };
        looked
            .into_iter()
            .map(|(at, connections)| (at, joined(connections)))
            .collect()
    }
}

/// Asks several servers at the same time, each on a thread of its own.
pub(super) fn each_of<S: Sync, T: Send>(servers: &[S], ask: impl Fn(&S) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let begin = |server| {
            let thread = std::thread::Builder::new();
            (server, thread.spawn_scoped(scope, move || ask(server)))
        };
        let asking: Vec<_> = servers.iter().map(begin).collect();
        let asked = asking.into_iter().map(|(server, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // No thread can be started, so this one asks.
            Err(_) => ask(server),
        });
        asked.collect()
    })
}

#[cfg(test)]
pub(crate) mod tests;
