//! Whether a server is fit for locks: what it is, how it is set up, and what the user may do there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::inspect::each_of;
use super::list::escaped;
use super::text;
use super::trial::Trial;
use crate::config::replicas::ReplicaAck;
use crate::error::{Result, advice, excerpt, said};
use crate::hold::entry::EntryKey;
use crate::net::apart::Apart;
use crate::net::request::Request;
use crate::protocol::{inspect, keys, lua, reentrant};
use crate::quorum::tally::Majority;
use crate::session::Session;
use crate::session::shared::SharedSession;
use crate::sync::handle::Handle;
use crate::sync::kind::Red;
use crate::verdict::{self, Reach, RequestFacts, Verdict, verdict};

const DOING: &str = "checking a server";

/// The oldest version that has what the scripts need.
const OLDEST: (u32, u32) = (6, 2);

/// The first version of Redis with `BLESS SET key NO-EVICT`. Source: <https://redis.io/commands/bless-set>.
const BLESSES: (u32, u32) = (8, 12);

/// By how many milliseconds the clocks of masters may differ before that is a finding.
const SKEW_MS: i128 = 1000;

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Severity {
    /// As it should be, or for you to decide.
    Note,
    /// Locks work now, but may be lost or blocked one day.
    Warning,
    /// Some locks do not work.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}

/// A fact about a server that [`Client::check`](crate::Client::check) has found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// The address of the server.
    pub server: String,
    /// How much it matters.
    pub severity: Severity,
    /// The fact.
    pub what: String,
    /// The advice; empty if there is nothing to do.
    pub advice: String,
}

impl Finding {
    fn is_fit(&self) -> bool {
        self.severity < Severity::Problem
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {}: {}", self.severity, self.server, self.what)?;
        match self.advice.is_empty() {
            true => Ok(()),
            false => write!(f, "\n        {}", self.advice),
        }
    }
}

/// The findings of [`Client::check`](crate::Client::check).
///
/// ```no_run
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let report = client.check()?;
/// if !report.is_fit() {
///     eprintln!("{report}");
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[must_use = "a problem is a finding of the report, and no error"]
#[non_exhaustive]
pub struct Report {
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns whether every kind of lock works: there is no [`Severity::Problem`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// assert!(client.check()?.is_fit());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_fit(&self) -> bool {
        self.findings.iter().all(Finding::is_fit)
    }

    fn of(findings: impl IntoIterator<Item = Finding>) -> Self {
        let mut findings: Vec<_> = findings.into_iter().collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Self { findings }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, finding) in self.findings.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            finding.fmt(f)?;
        }
        Ok(())
    }
}

impl Handle<Red> {
    /// Checks all masters as [`Client::check`](crate::Client::check) does, at the same time, and whether their clocks agree.
    ///
    /// While a majority of the masters is fit, the lock works, and a problem of another master is a
    /// [`Warning`](Severity::Warning).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// # let other = client.clone();
    /// println!("{}", redlatch::RedLock::new([&client, &other], "billing")?.check());
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn check(&self) -> Report {
        let checked = each_of(self.clients(), |shared| {
            (shared.session.endpoint.to_string(), checked(shared))
        });
        let (mut findings, mut clocks) = (Vec::new(), Vec::new());
        let (mut masters, mut unfit) = (0, 0);
        for (server, outcome) in checked {
            let found = match outcome {
                Ok((found, server_clocks)) => {
                    clocks.extend(server_clocks);
                    found
                }
                Err(err) => vec![away(server, &err.to_string(), None)],
            };
            masters += 1;
            unfit += usize::from(!found.iter().all(Finding::is_fit));
            findings.extend(found);
        }
        if Majority::of(masters).has(masters - unfit) {
            for finding in &mut findings {
                finding.severity = finding.severity.min(Severity::Warning);
            }
        }
        findings.extend(skewed(&clocks));
        Report::of(findings)
    }
}

pub(crate) fn check(shared: &Arc<SharedSession>) -> Result<Report> {
    let (mut findings, clocks) = checked(shared)?;
    findings.extend(skewed(&clocks));
    Ok(Report::of(findings))
}

/// A server, and by how many ms its clock is ahead of ours: at least, and at most.
type Clock = (String, i128, i128);

fn checked(shared: &SharedSession) -> Result<(Vec<Finding>, Vec<Clock>)> {
    let session = &shared.session;
    session.check_open()?;
    let nodes = &session.connection;
    let until = Instant::now() + session.command_timeout;
    // All masters are checked at once, because a frozen one uses up the whole timeout.
    let checked = each_of(&nodes.map.masters(), |node| {
        let server = nodes.map.endpoint(*node).to_string();
        let mut one = Checked {
            session,
            server: server.clone(),
            findings: Vec::new(),
            until,
        };
        let apart = nodes.apart(*node, until);
        let clock = apart.and_then(|mut apart| one.all(&mut apart, *node));
        let clock = clock.unwrap_or_else(|err| {
            let advice = advice(&err, None, "connecting");
            one.findings.push(away(server, &said(&err), advice));
            None
        });
        (one.findings, clock)
    });
    let (findings, clocks): (Vec<_>, Vec<_>) = checked.into_iter().unzip();
    Ok((findings.concat(), clocks.into_iter().flatten().collect()))
}

fn away(server: String, why: &str, advice: Option<&str>) -> Finding {
    let advice =
        advice.unwrap_or("check that it is running, and the URL, the network and the login");
    Finding {
        server,
        severity: Severity::Problem,
        what: format!("it cannot be checked: {why}"),
        advice: advice.into(),
    }
}

/// Returns advice for a server that deletes keys when its memory is full.
fn eviction_advice(is_redis: bool, version: (u32, u32)) -> &'static str {
    match is_redis && version >= BLESSES {
        true => {
            "set maxmemory-policy to noeviction, or keep locks on a server of their own; BLESS protects no lock, since each acquire makes a new key"
        }
        false => "set maxmemory-policy to noeviction, or keep locks on a server of their own",
    }
}

/// The finding that the clocks of two masters differ by at least `SKEW_MS`, even if the time that asking took is allowed
/// for.
fn skewed(clocks: &[Clock]) -> Option<Finding> {
    let (first, ahead, _) = clocks.iter().max_by_key(|(_, least, _)| *least)?;
    let (last, _, behind) = clocks.iter().min_by_key(|(_, _, most)| *most)?;
    let apart_ms = ahead - behind;
    (apart_ms >= SKEW_MS).then(|| Finding {
        server: first.clone(),
        severity: Severity::Warning,
        what: format!("its clock is {apart_ms} ms ahead of that of {last}"),
        advice: "synchronize both with a time server: setting a clock ends leases early or late"
            .into(),
    })
}

/// A server under check, and its findings.
struct Checked<'a> {
    session: &'a Session,
    server: String,
    findings: Vec<Finding>,
    until: Instant,
}

impl Checked<'_> {
    fn found(&mut self, severity: Severity, what: String, advice: &str) {
        self.findings.push(Finding {
            server: self.server.clone(),
            severity,
            what,
            advice: advice.into(),
        });
    }

    fn all(
        &mut self,
        server: &mut Apart,
        node: usize,
    ) -> std::result::Result<Option<Clock>, RedisError> {
        let began = now_ms();
        let questions = [
            Request::command(DOING, &["TIME"]),
            Request::command(DOING, &["INFO"]),
        ];
        let mut answers = server.ask(&questions, self.until)?;
        let (time, info) = (answers.remove(0), answers.remove(0));
        let clock = time_ms(time)
            .map(|server_ms| (self.server.clone(), server_ms - now_ms(), server_ms - began));
        match text(info) {
            Ok(info) => self.settings(&info),
            Err(err) => self.found(
                Severity::Note,
                format!(
                    "role, version, eviction, persistence and replicas are unknown: {}",
                    said(&err)
                ),
                "give the user +info",
            ),
        }
        let name: Arc<str> = self.name_at(node).into();
        if self.rights(server, &name)? {
            // If the last right was tried by a real `SUBSCRIBE`, this connection carries only messages now. So the holds
            // are always tried over another one.
            let mut another = self.session.connection.apart(node, self.until)?;
            self.holds(&mut another, &name)?;
        }
        Ok(clock)
    }

    /// A name that nobody else uses. In a cluster, its slot is one of this master's, unless the braces of the prefix put all
    /// names into one slot.
    fn name_at(&self, node: usize) -> String {
        let (session, nodes) = (self.session, &self.session.connection);
        let client = session.owners.client();
        let prefix = &session.registry.prefix;
        let name = |n| format!("{NAME}:{client}:{n}");
        let is_there = |name: &String| {
            let key = format!("{prefix}{name}");
            nodes.are_one() || nodes.master_of(&key, self.until).ok() == Some(node)
        };
        (0..1000)
            .map(name)
            .find(is_there)
            .unwrap_or_else(|| name(0))
    }

    /// Takes and releases a hold of each kind.
    fn holds(
        &mut self,
        server: &mut Apart,
        name: &Arc<str>,
    ) -> std::result::Result<(), RedisError> {
        let Ok(Trial { steps, tidy }) = Trial::new(self.session, DOING, name) else {
            return Ok(());
        };
        let (labels, questions): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let answers = server.ask(&questions, self.until)?;
        server.ask(&[tidy], self.until)?;
        self.judge_holds(labels.into_iter().zip(answers));
        Ok(())
    }

    /// Finds the kinds of which a hold could not be taken. Each answer comes with the label of its kind.
    fn judge_holds(&mut self, answers: impl IntoIterator<Item = (&'static str, Value)>) {
        let is_cluster = !self.session.connection.are_one();
        let mut failed: BTreeMap<String, (BTreeSet<&str>, Option<&str>)> = BTreeMap::new();
        let mut moved = false;
        for (label, answer) in answers {
            let asked = || RequestFacts {
                by_text: false,
                ..RequestFacts::question(is_cluster)
            };
            let err = match verdict(answer, asked) {
                // A script's first question carries its text. If the server rejected that, the first answer says why, and a
                // later `NOSCRIPT` adds nothing.
                Verdict::Answer(_) | Verdict::SendText => continue,
                // A slot on its way to another node is no fault of this one.
                Verdict::Elsewhere(_) => {
                    moved = true;
                    continue;
                }
                Verdict::Later(err) if is_cluster && verdict::reach(&err) == Reach::Keys => {
                    moved = true;
                    continue;
                }
                Verdict::Later(err) | Verdict::Never(err) => err,
            };
            let advice = match err.kind() {
                ErrorKind::InvalidClientConfig => Some("correct the URL"),
                _ => advice(&err, None, "checking"),
            };
            let entry = failed.entry(excerpt(&said(&err)).into_owned());
            entry.or_insert((BTreeSet::new(), advice)).0.insert(label);
        }
        if failed.is_empty() && !moved {
            let text = "a hold of each kind was acquired and released";
            self.found(Severity::Note, text.into(), "");
        }
        for (why, (kinds, advice)) in failed {
            let kinds: Vec<_> = kinds.into_iter().collect();
            let text = format!("cannot acquire {}: {why}", kinds.join(", "));
            let advice = advice.unwrap_or("check its log and its configuration");
            self.found(Severity::Problem, text, advice);
        }
    }

    /// Judges the version, the role and the settings by `INFO`.
    fn settings(&mut self, info: &str) {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        let info: BTreeMap<_, _> = lines.collect();
        let is = |name: &str| info.get(name).copied().unwrap_or_default();
        let version = match is("valkey_version") {
            "" => is("redis_version"),
            version => version,
        };
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let (role, replicas) = (is("role"), is("connected_slaves"));
        let text = format!("version {version}, role {role}, replicas: {replicas}");
        self.found(Severity::Note, text, "");
        if number < OLDEST {
            let what = format!("version {version} is too old");
            self.found(
                Severity::Problem,
                what,
                "redlatch needs Redis 6.2 or later, or Valkey",
            );
        }
        if role != "master" {
            self.found(
                Severity::Problem,
                format!("its role is {role}, so it accepts no writes"),
                "connect to the master, or through Sentinels or the cluster",
            );
        }
        let is_redis = is("valkey_version").is_empty();
        self.memory_and_disk(&is, eviction_advice(is_redis, number));
        let needed = match self.session.endpoint.server.replica_ack {
            ReplicaAck::None => 0,
            _ => self.session.endpoint.replicas_needed().max(1),
        };
        if replicas.parse().unwrap_or(0) < needed {
            self.found(
                Severity::Problem,
                format!("acquires wait for {needed} replicas (replica_ack); connected replicas: {replicas}"),
                "connect replicas, or lower Config::replica_ack",
            );
        }
    }

    /// Finds what makes the server forget locks, or refuse them.
    fn memory_and_disk<'a>(&mut self, is: &dyn Fn(&str) -> &'a str, on_eviction: &str) {
        let policy = is("maxmemory_policy");
        if is("maxmemory") != "0" && !["", "noeviction"].contains(&policy) {
            self.found(
                Severity::Warning,
                format!("it deletes keys when its memory is full ({policy}), even those of locks that are held"),
                on_eviction,
            );
        }
        if is("aof_enabled") != "1" {
            self.found(
                Severity::Note,
                "appendonly is off: a restart forgets the locks acquired since the last snapshot"
                    .into(),
                "turn appendonly on if two holders after a restart would do harm",
            );
        }
        if is("rdb_last_bgsave_status") == "err" || is("aof_last_write_status") == "err" {
            self.found(
                Severity::Warning,
                "it cannot write its data to disk, and may reject acquires".into(),
                "free space on its disk, and check its log",
            );
        }
    }

    /// Tries every command that a kind needs, on a key that only this check uses. A server with `ACL DRYRUN` is asked
    /// instead, and runs nothing. Returns whether all kinds have what they need.
    fn rights(
        &mut self,
        server: &mut Apart,
        name: &Arc<str>,
    ) -> std::result::Result<bool, RedisError> {
        let key = match self.session.registry.unregistered(&EntryKey {
            kind: &reentrant::KIND,
            id: Arc::clone(name),
        }) {
            Ok(entry) => entry.protocol.key().to_owned(),
            Err(_) => return Ok(false),
        };
        let user = server.ask(&[Request::command(DOING, &["ACL", "WHOAMI"])], self.until)?;
        let user = user.into_iter().next().and_then(|user| text(user).ok());
        let nodes = &self.session.connection;
        let tries = tries(&key, !nodes.are_one(), nodes.map.is_sharded());
        let (answers, is_dry_run) = self.try_all(server, user.as_deref(), &tries)?;
        Ok(self.judge_rights(user.as_deref(), &tries, answers, is_dry_run))
    }

    /// Finds the rights that the user lacks. Returns whether all kinds have what they need.
    fn judge_rights(
        &mut self,
        user: Option<&str>,
        tries: &[(&'static str, Vec<String>)],
        answers: Vec<Value>,
        is_dry_run: bool,
    ) -> bool {
        let mut lacking: BTreeMap<(bool, String), BTreeSet<&str>> = BTreeMap::new();
        for ((kind, args), answer) in tries.iter().zip(answers) {
            let lack = match is_unknown(&answer) {
                true => Some((true, args[0].to_ascii_uppercase())),
                false => lacks(args, answer, is_dry_run).map(|right| (false, right)),
            };
            if let Some(lack) = lack {
                lacking.entry(lack).or_default().insert(kind);
            }
        }
        if lacking.is_empty() {
            let how = if is_dry_run {
                ""
            } else {
                ", as far as trials show"
            };
            self.found(
                Severity::Note,
                format!("the user has every right that the locks need{how}"),
                "",
            );
        }
        let mut all = true;
        for ((is_unknown, lack), kinds) in lacking {
            let kinds: Vec<_> = kinds.into_iter().collect();
            let severity = match kinds == [INSPECTING] || kinds == [WAITING] {
                true => Severity::Warning,
                false => Severity::Problem,
            };
            all &= severity < Severity::Problem;
            let kinds = kinds.join(", ");
            match is_unknown {
                true => self.found(
                    severity,
                    format!("it does not know {lack}, needed for: {kinds}"),
                    "its configuration must not rename or disable the command",
                ),
                false => {
                    let user = user.unwrap_or("<user>");
                    let text = format!("the user lacks {lack}, needed for: {kinds}");
                    self.found(severity, text, &format!("ACL SETUSER {user} {lack}"));
                }
            }
        }
        all
    }

    /// The answers to all commands, and whether they come from `ACL DRYRUN`.
    fn try_all(
        &self,
        server: &mut Apart,
        user: Option<&str>,
        tries: &[(&str, Vec<String>)],
    ) -> std::result::Result<(Vec<Value>, bool), RedisError> {
        let questions = |front: &[&str]| {
            let question = |(_, args): &(&str, Vec<String>)| {
                let args = args.iter().map(String::as_str);
                let parts: Vec<_> = front.iter().copied().chain(args).collect();
                Request::command(DOING, &parts)
            };
            tries.iter().map(question).collect::<Vec<_>>()
        };
        if let Some(user) = user {
            let said = server.ask(&questions(&["ACL", "DRYRUN", user]), self.until)?;
            if !said
                .iter()
                .any(|reply| matches!(reply, Value::ServerError(_)))
            {
                return Ok((said, true));
            }
        }
        Ok((server.ask(&questions(&[]), self.until)?, false))
    }
}

fn now_ms() -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i128::try_from(now.as_millis()).unwrap_or(0))
}

fn time_ms(answer: Value) -> Option<i128> {
    let (seconds, micros): (i128, i128) = redis::from_redis_value(answer).ok()?;
    Some(seconds * 1000 + micros / 1000)
}

/// The beginning of the names that only this check uses.
const NAME: &str = "redlatch-check";

/// The label of commands that the methods `inspect` and `locks` of the client need.
const INSPECTING: &str = "Client::inspect and Client::locks";

/// The label of commands for notifications, without which waiting threads poll.
const WAITING: &str = "notifications";

/// The kind of lock that a script is for, by the beginning of the script's file name. A script whose name begins with none
/// of these gets the last label. If the user lacks a right that only this label needs, the finding is a warning and not a
/// problem. `guarded_call` gets the last label although guards of locks need it. No problem is hidden by that, since each
/// command in its script is also tried for some kind of lock.
const KINDS: [(&str, &str); 9] = [
    ("lock_", "locks"),
    ("fair_", "fair locks"),
    ("fenced_", "fenced locks"),
    ("rw_", "read-write locks"),
    ("red_", "RedLocks"),
    ("latch_", "latches"),
    ("semaphore_", "semaphores"),
    ("permit_", "expirable semaphores"),
    ("", INSPECTING),
];

/// Every command that each kind needs, with arguments for a key that nobody else uses.
fn tries(key: &str, is_cluster: bool, is_sharded: bool) -> Vec<(&'static str, Vec<String>)> {
    let mut tries = Vec::new();
    let mut push = |kind, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        if !tries.contains(&(kind, args.clone())) {
            tries.push((kind, args));
        }
    };
    let channel = keys::lock_channel(key).concat();
    push("locks", &["eval", "return 0", "0"]);
    push(
        "locks",
        &["evalsha", "0000000000000000000000000000000000000000", "0"],
    );
    for (file, text) in lua::ALL {
        let kind = KINDS.iter().find(|(front, _)| file.starts_with(front));
        let kind = kind.map_or(INSPECTING, |(_, kind)| *kind);
        for command in commands(text).filter(|command| *command != "publish") {
            let mut args = vec![command];
            let arguments = arguments(command).iter();
            args.extend(arguments.map(|arg| if *arg == "K" { key } else { arg }));
            push(kind, &args);
        }
    }
    for (kind, beside) in [
        ("fair locks", keys::fair_queue(key)),
        ("fair locks", keys::fair_timeouts(key)),
        ("fair locks", keys::fair_alive(key)),
        ("fenced locks", keys::fenced_token(key)),
        ("read-write locks", keys::rw_channel(key)),
        ("latches", keys::latch_round(key)),
        ("latches", keys::latch_channel(key)),
        ("semaphores", keys::semaphore_channel(key)),
        ("expirable semaphores", keys::permit_timeouts(key)),
        ("locks", channel.clone()),
    ] {
        push(kind, &["del", &beside]);
    }
    push(INSPECTING, &["client", "list"]);
    if is_cluster {
        push("locks", &["asking"]);
    }
    let [publish, subscribe, numsub] = match is_sharded {
        true => ["spublish", "ssubscribe", "shardnumsub"],
        false => ["publish", "subscribe", "numsub"],
    };
    push(INSPECTING, &["pubsub", numsub, &channel]);
    push(
        INSPECTING,
        &["scan", "0", "match", "redlatch-check", "count", "1"],
    );
    for channel in inspect::channels(key) {
        push(WAITING, &[publish, &channel, "0"]);
    }
    // `DEL` removes what the commands above have left. After `SUBSCRIBE`, the connection accepts no other command.
    let last = [("locks", ["del", key]), (WAITING, [subscribe, &channel])];
    tries.extend(last.map(|(kind, args)| (kind, args.map(str::to_owned).to_vec())));
    tries
}

/// The commands that a script calls.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.split("call('").skip(1);
    calls.filter_map(|rest| rest.split('\'').next())
}

/// Arguments that a command accepts; `K` stands for the key, whose value does not matter.
fn arguments(command: &str) -> &'static [&'static str] {
    match command {
        "time" => &[],
        "info" => &["server"],
        "set" => &["K", "1", "px", "1000"],
        "hget" | "hexists" | "hdel" | "zscore" | "zrem" | "lindex" | "incrby" | "decrby"
        | "hscan" | "pexpire" | "pexpireat" | "lpush" | "rpush" | "incrbyfloat" => &["K", "1"],
        "hset" | "hincrby" | "zadd" | "lrange" | "lrem" | "zrange" | "zcount"
        | "zremrangebyrank" | "zremrangebyscore" | "zrangebyscore" => &["K", "1", "1"],
        _ => &["K"],
    }
}

/// Whether the server does not know the command: it is too old, or its configuration disables the command.
fn is_unknown(answer: &Value) -> bool {
    let err = answer.clone().extract_error().err();
    err.is_some_and(|err| {
        err.detail()
            .unwrap_or_default()
            .starts_with("unknown command")
    })
}

/// A pattern for this key, and for those of other names with the same prefix.
fn pattern(key: &str) -> String {
    match key.rsplit_once(NAME) {
        Some((front, _)) => format!("{}*", escaped(front)),
        None => key.to_owned(),
    }
}

/// The right that the user lacks, if the command was rejected for that. With `is_dry_run` the command was not executed, and the
/// answer is a sentence about the user.
fn lacks(args: &[String], answer: Value, is_dry_run: bool) -> Option<String> {
    let said = match answer.extract_error() {
        Ok(Value::BulkString(bytes)) if is_dry_run => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Value::SimpleString(text)) if is_dry_run => text,
        Ok(_) => return None,
        Err(err) if err.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => err.to_string(),
        Err(_) => return None,
    };
    let said = said.to_ascii_lowercase();
    let command = match args {
        [command, sub, ..] if ["client", "pubsub"].contains(&&**command) => {
            format!("+{command}|{sub}")
        }
        [command, ..] => format!("+{command}"),
        [] => return None,
    };
    let arg = |at: usize| args.get(at).map(String::as_str).unwrap_or_default();
    // Names of users, keys and channels precede the last quotation mark: "… to access the 'k' key". So a name that
    // contains `key` or `channel` is not searched.
    let subject = said.rsplit('\'').next().unwrap_or_default();
    if subject.contains("channel") {
        Some(format!("&{}", pattern(arg(1))))
    } else if subject.contains("key") {
        Some(format!("~{}", pattern(arg(1))))
    } else if said.contains("no permissions to run")
        || said.contains("can't run this command")
        || said.contains("no permissions to execute")
    {
        Some(command)
    } else if said.contains("permission") {
        Some(format!("~{}", pattern(arg(1))))
    } else {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
