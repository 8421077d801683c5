//! What can go wrong, named by what the caller can do next.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use redis::{ErrorKind, RedisError, Value};

use crate::shown::Shown;
use crate::verdict::{self, RequestKind, passes};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
///
/// If somebody else has the lock, or a limit was too short for Redis to answer, that is no error: the `try_` methods
/// return `Ok(None)`. If acquiring fails with an error, the work has not begun, and redlatch releases whatever the
/// attempt may have acquired.
///
/// ```no_run
/// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// match client.mutex("report").try_lock() {
///     Ok(Some(_guard)) => println!("we have it"),
///     Ok(None) => println!("somebody else does"),
///     Err(err) if err.is_retryable() => println!("try again later: {err}"),
///     Err(err) => return Err(err),
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// | error | what to do |
/// | --- | --- |
/// | [`Redis`](Self::Redis), [`NoQuorum`](Self::NoQuorum), [`Members`](Self::Members) | call again later if [`is_retryable`](Self::is_retryable); otherwise the text says what to change |
/// | [`Late`](Self::Late), [`NotReplicated`](Self::NotReplicated), [`Spawn`](Self::Spawn) | call again later |
/// | [`Lost`](Self::Lost) | stop: somebody else may have worked at the same time, so check or repeat the work |
/// | [`WouldDeadlock`](Self::WouldDeadlock) | change the program: use the guard that the thread has, or drop it first |
/// | [`Cancelled`](Self::Cancelled), [`Closed`](Self::Closed) | end this thread's work, as the program has asked for |
/// | [`WrongType`](Self::WrongType) | use one kind of lock for each name; a string may be a lock by `SET NX` |
/// | [`InvalidName`](Self::InvalidName), [`InvalidCommand`](Self::InvalidCommand), [`Config`](Self::Config) | change the name, the command or the setting, as the text says |
///
/// The text of an error says on one line what was tried, for which lock, at which server, and why it failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Redis is unreachable, did not answer for the whole command timeout, or rejected the command. Worth a retry if
    /// [`Error::is_retryable`] returns true.
    #[non_exhaustive]
    Redis {
        /// The action that failed, such as `"acquiring the lock"`.
        doing: &'static str,
        /// Whether this followed the work that the lock protects, as a release does.
        after_work: bool,
        /// The lock's name, as given to the client; `None` if it was not about one, as in `Client::open`.
        name: Option<String>,
        /// The server's address, where it is known: `127.0.0.1:6379`, or the path of a Unix socket.
        server: Option<String>,
        /// The error of Redis or of the connection. This error's text contains it already, so
        /// [`source`](std::error::Error::source) leads to the error below it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The lock was held, and was lost before it was released.
    #[non_exhaustive]
    Lost {
        /// The lock's name, as given to the client.
        name: String,
        /// How it was lost.
        reason: LossReason,
    },
    /// Too few of the servers of a [`RedLock`](crate::RedLock) granted the lock, because others of them failed.
    #[non_exhaustive]
    NoQuorum {
        /// The lock's name, as given.
        name: String,
        /// How many servers there are.
        nodes: usize,
        /// How many of them make a majority.
        needed: usize,
        /// How many granted the lock.
        agreed: usize,
        /// The error of each server that failed, by its position among the clients. Servers that neither granted the
        /// lock nor failed said that somebody else has it.
        failures: Vec<(usize, Self)>,
    },
    /// Too few replicas acknowledged an acquire ([`Config::replica_ack`](crate::Config::replica_ack)), so the lock is
    /// being released.
    #[non_exhaustive]
    NotReplicated {
        /// How many acknowledged.
        acked: u32,
        /// How many were needed.
        needed: u32,
    },
    /// Members of a [`MultiLock`](crate::MultiLock) could not be asked; the others were released.
    #[non_exhaustive]
    Members {
        /// The name and the error of each of them.
        failures: Vec<(String, Self)>,
    },
    /// The calling thread would wait for itself, since it holds the lock already.
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock's name, as given to the client.
        name: String,
        /// What the thread holds already.
        reason: DeadlockReason,
    },
    /// The [`CancelToken`](crate::CancelToken) of the handle was cancelled while waiting.
    Cancelled,
    /// The client was closed, before the call or while the thread waited.
    Closed,
    /// The key of this name holds something that is not this kind of lock. The key was left as it was.
    ///
    /// A string may be a lock that another program took by `SET NX`. Deleting it would let two in: see
    /// [moving from `SET NX`](crate::guide::should_i_use_this#moving-from-set-nx).
    #[non_exhaustive]
    WrongType {
        /// The lock's name, as given to the client.
        name: String,
        /// What the key holds instead, such as ``the key `orders` holds a list``, if the server says.
        found: Option<String>,
    },
    /// The system did not start one of the client's background threads. Whatever the call may have acquired is being
    /// released.
    #[non_exhaustive]
    Spawn {
        /// Which thread, as debuggers and `/proc` show it.
        name: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// A command that cannot be run as a [guarded command](crate::MutexGuard::query). Nothing was sent.
    #[non_exhaustive]
    InvalidCommand {
        /// Which rule the command breaks, and what to do about it.
        why: String,
    },
    /// Redis was too slow to say whether anybody has the lock. Only with
    /// [`late_is_error`](crate::Mutex::late_is_error), otherwise that is `Ok(None)`. Whatever the call may have acquired
    /// is being released.
    #[non_exhaustive]
    Late {
        /// The lock's name, as given to the client.
        name: String,
    },
    /// The name cannot be the name of a lock: it is empty, longer than 64 KiB with the key prefix, or has odd braces
    /// that a [cluster](crate::guide::deployments#cluster) does not allow. Nothing was sent.
    #[non_exhaustive]
    InvalidName {
        /// Which rule the name breaks.
        why: &'static str,
    },
    /// A setting of the client or of a handle cannot work, and nothing was sent; or the server is of another sort than the
    /// URL says, such as a node of a cluster for `redis://`.
    #[non_exhaustive]
    Config {
        /// Which setting, and why.
        what: String,
    },
}

impl Error {
    /// Returns whether the same call may succeed later although the caller changes nothing.
    ///
    /// True only for errors that come before the work, so that repeating the call repeats no work.
    ///
    /// | error | of | retryable |
    /// | --- | --- | --- |
    /// | [`Redis`](Self::Redis): unreachable, loading, a replica by now, no writes now (`MISCONF`, `OOM`) | acquiring, asking | yes |
    /// | `Redis`: wrong credentials, missing rights, a certificate | any call | no |
    /// | `Redis` with `after_work` | releasing, downgrading, closing | no |
    /// | `Redis`, if [it may have run](Self::may_have_run) | a guarded command, or a request that counts | no |
    /// | [`Lost`](Self::Lost) | after the grant | no |
    /// | [`Late`](Self::Late), [`NotReplicated`](Self::NotReplicated), [`Spawn`](Self::Spawn) | acquiring | yes |
    /// | [`NoQuorum`](Self::NoQuorum) | acquiring | if the servers with a retryable error may still form a majority |
    /// | [`Members`](Self::Members) | acquiring, releasing | if the error of each member is |
    /// | all others | any call | no |
    ///
    /// ```
    /// assert!(!redlatch::Error::Closed.is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Redis { after_work, .. } => {
                // An operator may make room for writes.
                let may_pass =
                    |err: &RedisError| is_transient(err) || passes(err, RequestKind::Kept);
                !after_work && !self.may_have_run() && self.as_redis().is_none_or(may_pass)
            }
            Self::Spawn { .. } | Self::NotReplicated { .. } | Self::Late { .. } => true,
            Self::NoQuorum {
                nodes,
                needed,
                failures,
                ..
            } => {
                let lasting = failures.iter().filter(|(_, err)| !err.is_retryable());
                nodes.saturating_sub(lasting.count()) >= *needed
            }
            Self::Members { failures } => failures.iter().all(|(_, err)| err.is_retryable()),
            _ => false,
        }
    }

    /// Returns whether a reply was lost, so that nobody knows whether the command ran: a [guarded
    /// command](crate::MutexGuard::query), or one that changes a count, such as
    /// [`count_down`](crate::Latch::count_down), [`add_permits`](crate::Semaphore::add_permits) and
    /// [`force_unlock`](crate::Handle::force_unlock).
    ///
    /// Redis never runs a guarded command once the hold is over, however late the command arrives.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// use redlatch::redis;
    ///
    /// let guard = client.mutex("stock:42").lock()?;
    /// match guard.query::<i64>(redis::cmd("DECR").arg("{stock:42}:left")) {
    ///     Err(err) if err.may_have_run() => println!("look whether it did: {err}"),
    ///     left => println!("{} left", left?),
    /// }
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        matches!(self, Self::Redis { source, .. } if source.is::<OutcomeUnknown>())
    }

    /// A command was sent that is not sent again, and has no answer.
    pub(crate) fn outcome_unknown(doing: &'static str, err: RedisError) -> Self {
        Self::redis(doing, OutcomeUnknown(err))
    }

    /// An error about Redis from whatever the connection said.
    pub(crate) fn redis(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = source.into();
        if let Some(NotStarted(name, kind)) = source.downcast_ref().and_then(inner) {
            return Self::Spawn {
                name,
                source: (*kind).into(),
            };
        }
        if let Some(lasting) = source.downcast_ref().and_then(inner::<Lasting>)
            && lasting.is_wrong_url
        {
            return Self::config(format!("url: {lasting}"));
        }
        Self::Redis {
            doing,
            after_work: false,
            name: None,
            server: None,
            source,
        }
    }

    /// The same, of a call that follows the work.
    pub(crate) fn after_work(mut self) -> Self {
        self.mark_after_work();
        self
    }

    fn mark_after_work(&mut self) {
        match self {
            Self::Redis { after_work, .. } => *after_work = true,
            Self::NoQuorum { failures, .. } => {
                (failures.iter_mut()).for_each(|(_, err)| err.mark_after_work());
            }
            Self::Members { failures } => {
                (failures.iter_mut()).for_each(|(_, err)| err.mark_after_work());
            }
            _ => {}
        }
    }

    /// The same, of a downgrade. It ends the hold whatever comes of it, so there is nothing to retry.
    pub(crate) fn downgrading(mut self, lock: &str) -> Self {
        const DOWNGRADING: &str = "downgrading the lock";
        if let Self::Redis { doing, .. } = &mut self {
            *doing = DOWNGRADING;
        } else if self.is_retryable() {
            self = Self::redis(DOWNGRADING, self).about(lock);
        }
        self.after_work()
    }

    pub(crate) fn config(what: String) -> Self {
        Self::Config { what }
    }

    /// The same, if it is about Redis, naming the server.
    pub(crate) fn at(mut self, its: &dyn fmt::Display) -> Self {
        if let Self::Redis { server, .. } = &mut self {
            server.get_or_insert_with(|| its.to_string());
        }
        self
    }

    /// The same, if it is about Redis, naming the lock.
    pub(crate) fn about(mut self, its: &str) -> Self {
        if let Self::Redis { name, .. } = &mut self {
            name.get_or_insert_with(|| its.into());
        }
        self
    }

    /// A key that holds something else, if that is why the server refused.
    pub(crate) fn wrong_type(err: &RedisError, name: &str) -> Option<Self> {
        let detail = err.detail().unwrap_or_default();
        (err.code() == Some("WRONGTYPE")).then(|| Self::WrongType {
            name: name.into(),
            found: Some(detail.into()).filter(|_| !is_wrong_operation(detail)),
        })
    }

    /// What Redis or the connection said, if that is what went wrong.
    pub(crate) fn as_redis(&self) -> Option<&RedisError> {
        match self {
            Self::Redis { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }

    fn write_redis(
        &self,
        f: &mut String,
        doing: &str,
        name: Option<&str>,
        server: Option<&str>,
        source: &(dyn std::error::Error + 'static),
    ) -> fmt::Result {
        let is_connecting = doing == "connecting";
        if let (true, Some(server)) = (is_connecting, server) {
            write!(f, "cannot connect to redis at {server}")?;
        } else {
            write!(f, "{doing} failed")?;
            if let Some(name) = name {
                write!(f, " for `{name}`")?;
            }
            f.write_str(" at redis")?;
            if let Some(server) = server {
                write!(f, ", {server}")?;
            }
        }
        write!(f, ": {}", said(source))?;
        let redis = self.as_redis();
        match redis.and_then(|err| advice(err, server, doing)) {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }

    /// The text; without the lock's name below an error that has it.
    fn write(&self, f: &mut String, is_named: bool) -> fmt::Result {
        match self {
            Self::Redis {
                doing,
                name,
                server,
                source,
                ..
            } => {
                let name = name.as_deref().filter(|_| is_named);
                self.write_redis(f, doing, name, server.as_deref(), &**source)
            }
            Self::Lost { name, reason } => write_lost(f, name, *reason),
            Self::NoQuorum {
                name,
                needed,
                agreed,
                failures,
                ..
            } => {
                write!(
                    f,
                    "{agreed} servers of the {needed} needed agreed about `{name}`"
                )?;
                failures.iter().try_for_each(|(node, err)| {
                    write!(f, "; server {node}: ")?;
                    err.write(f, false)
                })
            }
            Self::NotReplicated { acked, needed } => write!(
                f,
                "{acked} replicas of the {needed} needed have acknowledged it, so it is released"
            ),
            Self::Members { failures } => {
                f.write_str("not every member of the multi-lock could be asked")?;
                failures.iter().try_for_each(|(name, err)| {
                    write!(f, "; `{name}`: ")?;
                    err.write(f, false)
                })
            }
            Self::WouldDeadlock { name, reason } => write!(
                f,
                "waiting for `{name}`, this thread would wait for itself: {reason}"
            ),
            Self::Cancelled => f.write_str("the wait was cancelled"),
            Self::Closed => {
                f.write_str("the client is closed, or was opened in another process; open another")
            }
            Self::WrongType { name, found } => write!(
                f,
                "`{name}` is not this kind of lock: {}; choose another name, or try again later if other programs lock by this key",
                found.as_deref().unwrap_or("its key holds something else")
            ),
            Self::Spawn { name, source } => {
                let said = said(source);
                write!(f, "the thread {name} could not be started: {said}")
            }
            Self::InvalidCommand { why } => write!(f, "invalid guarded command: {why}"),
            Self::Late { name } => write!(
                f,
                "redis was too slow to say whether anybody has `{name}`; allow more time, or try again"
            ),
            Self::InvalidName { why } => write!(f, "invalid lock name: {why}"),
            Self::Config { what } => write!(f, "invalid setting: {what}"),
        }
    }
}

impl fmt::Display for Error {
    /// What was tried, for which lock, at which server, why it failed, and what to do about it: all there is to know, so that
    /// the text can be printed alone. The text is one line: it shows control characters, for example of a lock's name, as
    /// escapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text, true)?;
        Shown(&text).fmt(f)
    }
}

impl std::error::Error for Error {
    /// What is below the cause that the text of this error has told already; mostly nothing.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let cause: &(dyn std::error::Error + 'static) = match self {
            Self::Redis { source, .. } => &**source,
            Self::Spawn { source, .. } => source,
            _ => return None,
        };
        match cause.is::<RedisError>() {
            // It tells what it wraps.
            true => cause.source()?.source(),
            false => cause.source(),
        }
    }
}

/// A command was sent, and has no answer.
#[derive(Debug)]
struct OutcomeUnknown(RedisError);

impl fmt::Display for OutcomeUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; it may have run: look at the data before you repeat it",
            said(&self.0)
        )
    }
}

impl std::error::Error for OutcomeUnknown {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Its own text is told, and it tells what it wraps.
        std::error::Error::source(&self.0)?.source()
    }
}

/// What an error says, in the server's own words if it is one's, and without a full stop.
fn said(err: &(dyn std::error::Error + 'static)) -> String {
    let refusal = err.downcast_ref::<RedisError>().and_then(|err| {
        let code = err.code()?;
        Some(format!("{code} {}", err.detail().unwrap_or_default()))
    });
    let text = refusal.unwrap_or_else(|| err.to_string());
    // How the client crate marks texts that are not a server's.
    let text = text.replacen(" - InvalidClientConfig", "", 1);
    text.trim_end_matches(['.', ' ']).to_owned()
}

/// What the release of a lock is doing.
pub(crate) const RELEASING: &str = "releasing the lock";

/// The same of a permit.
pub(crate) const RELEASING_PERMIT: &str = "releasing a permit";

/// What a guarded command is doing: its rights are the user's own business.
pub(crate) const RUNNING: &str = "running a guarded command";

/// What to do about it, where the server does not say.
pub(crate) fn advice(err: &RedisError, server: Option<&str>, doing: &str) -> Option<&'static str> {
    use std::io::ErrorKind as Io;
    let detail = err.detail().unwrap_or_default();
    Some(match (err.code(), as_io(err).map(std::io::Error::kind)) {
        (Some("NOAUTH"), _) => {
            "it wants a password: redis://user:password@host in the URL, or Config::credentials"
        }
        (Some("WRONGPASS"), _) => {
            "check the user and the password of the URL, or what Config::credentials gives"
        }
        (Some("NOPERM"), _) if doing == RUNNING => {
            "give the user the right to run this command on all of its keys"
        }
        (Some("NOPERM"), _) => {
            "give the user the rights of the line `ACL SETUSER` in redlatch::guide::operations, `ACL rights`; for a cluster also those in redlatch::guide::deployments"
        }
        (Some("ERR"), _) if detail.starts_with("unknown command") => {
            "if it is a sentinel and no server, the URL begins with redis+sentinel://; otherwise its configuration must not rename or disable the command"
        }
        // Valkey can be built, and packaged, without the module.
        _ if detail.contains("scripting engine") => {
            "locks need Lua scripts: load Valkey's Lua module, `loadmodule libvalkeylua.so` in its configuration"
        }
        (_, Some(Io::NotFound | Io::PermissionDenied)) if server?.starts_with('/') => {
            "check the path of the URL: it has to be the `unixsocket` of a server that runs, and open to this user"
        }
        (_, Some(Io::ConnectionRefused)) => {
            "check that the server runs, and the address and the port of the URL"
        }
        (_, Some(Io::TimedOut)) if doing == "connecting" => {
            "check the address and the port of the URL, and that no firewall is in between"
        }
        _ => return verdict::advice(err),
    })
}

/// Whether a command was refused for the type of a key, which the server does not tell.
pub(crate) fn is_wrong_operation(detail: &str) -> bool {
    detail.starts_with("Operation against a key")
}

/// Text of a server, for errors and logs: without control characters, with which it could write lines of its own there.
pub(crate) fn printable<'a>(text: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let text = text.into();
    if !text.contains(char::is_control) {
        return text;
    }
    let mut replacement = [0; 4];
    let replacement = char::REPLACEMENT_CHARACTER.encode_utf8(&mut replacement);
    text.replace(char::is_control, replacement).into()
}

/// How many characters of a server's text an error or a log shows.
const MOST_SHOWN: usize = 200;

/// The same, and only the beginning of a long one.
pub(crate) fn excerpt(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", printable(&text[..end])).into(),
        None => printable(text),
    }
}

/// Whether an error may pass by itself: no connection, or a server that is not ready to serve.
pub(crate) fn is_transient(err: &RedisError) -> bool {
    match err.kind() {
        ErrorKind::Io => !is_lasting(err),
        ErrorKind::Parse => true,
        _ => passes(err, RequestKind::Waited),
    }
}

/// What keeps a connection from being made until somebody changes a setting, here or at the server.
#[derive(Debug)]
struct Lasting {
    what: String,
    /// The server is of another sort than the URL says, so that only another URL helps.
    is_wrong_url: bool,
}

impl Lasting {
    fn error(what: String, is_wrong_url: bool) -> RedisError {
        std::io::Error::other(Self { what, is_wrong_url }).into()
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Lasting {}

/// An error of a connection to a server of another sort than the URL says.
pub(crate) fn wrong_url(what: String) -> RedisError {
    Lasting::error(what, true)
}

/// An error of a connection that is no reason to try again.
pub(crate) fn lasting(what: String) -> RedisError {
    Lasting::error(what, false)
}

/// An error of a connection that says more, and is a reason to try again if the first is.
pub(crate) fn retold(err: &RedisError, text: String) -> RedisError {
    match inner::<Lasting>(err) {
        Some(known) => Lasting::error(text, known.is_wrong_url),
        None if is_transient(err) => std::io::Error::other(text).into(),
        None => lasting(text),
    }
}

/// The same error, if it is about a connection, with the name of the server: one of several.
pub(crate) fn named(server: &dyn fmt::Display, err: RedisError) -> RedisError {
    let what = || format!("{server}: {err}");
    match err.kind() {
        ErrorKind::Io | ErrorKind::Parse if err.is_timeout() => {
            std::io::Error::new(std::io::ErrorKind::TimedOut, what()).into()
        }
        ErrorKind::Io | ErrorKind::Parse => retold(&err, what()),
        _ => err,
    }
}

/// The system did not start this thread, and nothing is known of the server.
#[derive(Debug)]
struct NotStarted(&'static str, std::io::ErrorKind);

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the thread {} could not be started: {}", self.0, self.1)
    }
}

impl std::error::Error for NotStarted {}

/// A thread that was to make a connection could not be started.
pub(crate) fn not_started(thread: &'static str, err: &std::io::Error) -> RedisError {
    std::io::Error::other(NotStarted(thread, err.kind())).into()
}

fn is_lasting(err: &RedisError) -> bool {
    inner::<Lasting>(err).is_some()
}

/// The error of this library that an error of a connection was made of.
fn inner<E: std::error::Error + 'static>(err: &RedisError) -> Option<&E> {
    as_io(err)?.get_ref()?.downcast_ref()
}

fn as_io(err: &RedisError) -> Option<&std::io::Error> {
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(err)?.downcast_ref::<Shared>()?;
    source.downcast_ref()
}

/// The same refusal by a server, with another text of one line.
pub(crate) fn reworded(err: &RedisError, text: &str) -> RedisError {
    let line = format!("-{} {text}\r\n", err.code().unwrap_or("ERR"));
    // Only the parser makes errors of servers.
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(Value::ServerError(reworded)) => reworded.into(),
        _ => err.clone(),
    }
}

/// What a thread has that would make it wait for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadlockReason {
    /// The same lock, which is not reentrant, or from which an owned guard is asked for.
    NotReentrant,
    /// The name, as a lock of another kind.
    OtherKind,
    /// A read guard, and the thread asks to write.
    Reading,
}

impl fmt::Display for DeadlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReentrant => {
                "it holds it, and neither a mutex nor an owned guard is reentrant; use the guard that it has, or a reentrant lock"
            }
            Self::OtherKind => "it holds the name as a lock of another kind; use one kind for it",
            Self::Reading => "it reads, and wants to write; drop the read guard first",
        })
    }
}

/// How a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease expired: a fixed one as intended, a renewed one because this process could not renew it, for example
    /// while it was stopped.
    Expired,
    /// The key vanished while the lease had time left: `force_unlock`, a delete, a flush, an eviction, or a server that
    /// came back without its data. Redis does not say which.
    Forced,
    /// Somebody else holds the lock although the lease had time left.
    TakenOver,
    /// Redis could not be reached for so long that the lease may have ended.
    Unreachable,
    /// The handle's `max_hold` is over: renewal has stopped, and the lock becomes free when its lease expires.
    MaxHold,
    /// The client was closed and released the lock.
    Closed,
}

impl LossReason {
    pub(crate) const ALL: [Self; 6] = [
        Self::Expired,
        Self::Forced,
        Self::TakenOver,
        Self::Unreachable,
        Self::MaxHold,
        Self::Closed,
    ];

    /// Whether Redis may still keep the hold, so that releasing it is worth a command.
    pub(crate) fn may_still_be_held(self) -> bool {
        matches!(self, Self::Unreachable | Self::MaxHold | Self::Expired)
    }

    /// The reason in one word, as a label of a metric.
    #[cfg(feature = "metrics")]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::TakenOver => "taken_over",
            Self::Unreachable => "unreachable",
            Self::MaxHold => "max_hold",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Forced => "its key was removed: forced open, deleted or evicted",
            Self::TakenOver => "somebody else holds it",
            Self::Unreachable => "redis was out of reach for too long",
            Self::MaxHold => "it was held for as long as it may be",
            Self::Closed => "the client was closed",
        })
    }
}

/// A hold that was lost, and how. Its text is one line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The lock's name, as given to the client.
    pub name: String,
    /// The owner in Redis: `<client uuid>:<number>`; of a permit its id.
    pub owner: String,
    /// How it was lost.
    pub reason: LossReason,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lost(f, &self.name, self.reason)
    }
}

fn write_lost(f: &mut impl fmt::Write, name: &str, reason: LossReason) -> fmt::Result {
    write!(f, "the lock `{name}` is no longer held: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Asked, Verdict, verdict};
    use redis::ServerErrorKind;
    use std::error::Error as _;

    #[test]
    fn a_loss_has_the_text_of_its_error() {
        let (name, reason) = (String::from("a"), LossReason::Closed);
        let (owner, lost) = (
            String::new(),
            Error::Lost {
                name: name.clone(),
                reason,
            },
        );
        let loss = Loss {
            name,
            owner,
            reason,
        };
        let text = "the lock `a` is no longer held: the client was closed";
        assert_eq!((&*loss.to_string(), &*lost.to_string()), (text, text));
    }

    #[test]
    fn the_text_says_what_was_tried_and_where_and_why() {
        let refused = || RedisError::from(std::io::Error::other("connection refused"));
        let err = Error::redis("connecting", refused()).at(&"127.0.0.1:6379");
        assert_eq!(
            err.to_string(),
            "cannot connect to redis at 127.0.0.1:6379: connection refused"
        );
        let err = Error::redis("acquiring the lock", refused());
        let err = err.at(&"10.0.0.1:7000").at(&"elsewhere");
        assert_eq!(
            err.to_string(),
            "acquiring the lock failed at redis, 10.0.0.1:7000: connection refused"
        );
        assert!(err.as_redis().is_some() && err.is_retryable());
        assert_eq!(
            err.about("orders").to_string(),
            "acquiring the lock failed for `orders` at redis, 10.0.0.1:7000: connection refused"
        );
        assert_eq!(
            Error::Closed.at(&"7").to_string(),
            Error::Closed.to_string()
        );
    }

    #[test]
    fn a_name_in_a_text_stays_on_its_line_and_commands_no_terminal() {
        let name = || "a\x1b[2J\nb".to_owned();
        let failure = || Error::redis("acquiring the lock", std::io::Error::other(name()));
        let reason = LossReason::Expired;
        for err in [
            failure().about(&name()),
            Error::Lost {
                name: name(),
                reason,
            },
            Error::Members {
                failures: vec![(name(), failure())],
            },
            Error::WrongType {
                name: name(),
                found: Some(name()),
            },
        ] {
            let text = err.to_string();
            assert!(text.contains(r"a\u{1b}[2J\nb"), "{text}");
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn the_text_of_a_server_is_one_line_and_not_a_long_one() {
        assert!(matches!(excerpt("noeviction"), Cow::Borrowed("noeviction")));
        assert_eq!(
            excerpt("a\x1b[2J\nb\u{9b}c"),
            "a\u{fffd}[2J\u{fffd}b\u{fffd}c"
        );
        let long = "é".repeat(MOST_SHOWN);
        assert_eq!(excerpt(&long), long);
        assert_eq!(excerpt(&format!("{long}x")), format!("{long}…"));
    }

    /// What a user's function fails with.
    #[derive(Debug)]
    struct Outer(std::num::ParseIntError);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the vault is sealed")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_server_without_lua_is_told_what_it_lacks() {
        let line = b"-ERR Could not find scripting engine 'lua'\r\n";
        let reply = redis::parse_redis_value(line).expect("a reply");
        let err = reply.extract_error().expect_err("an error");
        let text = Error::redis("acquiring the lock", err).to_string();
        assert!(text.contains("load Valkey's Lua module"), "{text}");
    }

    #[test]
    fn no_text_is_told_twice_on_the_way_to_the_source() {
        let refused = |line: &str| {
            let reply = redis::parse_redis_value(line.as_bytes()).expect("a reply");
            Error::redis("acquiring the lock", reply.extract_error().expect_err(line)).about("a")
        };
        let io = |kind| RedisError::from(std::io::Error::from(kind));
        let sealed = || std::io::Error::other(Outer("x".parse::<u8>().expect_err("no number")));
        let name = || "orders".to_owned();
        let moved = redis::parse_redis_value(b"-MOVED 7 h:1\r\n").expect("a reply");
        let Verdict::Never(misconfigured) = verdict(moved, || Asked::question(false)) else {
            panic!("a single server redirects");
        };
        let mut all = vec![
            refused("-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
            refused("-ERR unknown command 'EVALSHA'\r\n"),
            refused("-ERR Could not find scripting engine 'lua'\r\n"),
            refused("-READONLY You can't write against a read only replica.\r\n"),
            refused("-OOM\r\n"),
            Error::redis("connecting", io(std::io::ErrorKind::ConnectionRefused)).at(&"h:1"),
            Error::redis("connecting", io(std::io::ErrorKind::NotFound)).at(&"/s.sock"),
            Error::redis("connecting", lasting("no TLS there".into())),
            Error::redis("connecting", RedisError::from(sealed())),
            Error::redis("closing", sealed()),
            Error::redis("acquiring the lock", misconfigured),
            Error::Cancelled,
            Error::Closed,
            Error::config("tenure is zero".into()),
        ];
        all.extend(LossReason::ALL.map(|reason| Error::Lost {
            name: name(),
            reason,
        }));
        use DeadlockReason::{NotReentrant, OtherKind, Reading};
        let deadlock = |reason| Error::WouldDeadlock {
            name: name(),
            reason,
        };
        all.extend([NotReentrant, OtherKind, Reading].map(deadlock));
        let found = ["the key `orders` holds a list".to_owned()];
        all.extend(
            [None, found.into_iter().next()].map(|found| Error::WrongType {
                name: name(),
                found,
            }),
        );
        let failures = || vec![(0, refused("-OOM no memory\r\n")), (1, Error::Closed)];
        let members = failures()
            .into_iter()
            .map(|(_, err)| (name(), err))
            .collect();
        all.extend([
            Error::Members { failures: members },
            Error::NoQuorum {
                name: name(),
                nodes: 3,
                needed: 2,
                agreed: 1,
                failures: failures(),
            },
            Error::NotReplicated {
                acked: 0,
                needed: 1,
            },
            Error::InvalidName { why: "it is empty" },
            Error::Spawn {
                name: "redlatch-watchdog",
                source: sealed(),
            },
        ]);
        let mut depths = 0;
        for err in &all {
            let mut told: Vec<String> = vec![err.to_string()];
            let mut next = err.source();
            while let Some(err) = next {
                told.push(err.to_string());
                next = err.source();
            }
            for (at, text) in told.iter().enumerate() {
                let plain = text.replace(['"', ':'], "");
                let others = told.iter().enumerate().filter(|(other, _)| *other != at);
                let mut others = others.map(|(_, other)| other.replace(['"', ':'], ""));
                assert!(!others.any(|other| other.contains(&plain)), "{told:?}");
            }
            assert!(
                !told[0].ends_with('.') && !told[0].ends_with(' '),
                "{told:?}"
            );
            assert!(told[0].starts_with(|c: char| !c.is_uppercase()), "{told:?}");
            depths += told.len() - 1;
            // The name once, however deep it is.
            if matches!(err, Error::Members { .. } | Error::NoQuorum { .. }) {
                assert!(!told[0].contains("for `a`"), "{told:?}");
            }
        }
        assert_eq!(depths, 3, "what is below a failed function");
    }

    #[test]
    fn what_follows_the_work_is_no_reason_to_repeat_it() {
        for reason in LossReason::ALL {
            let lost = Error::Lost {
                name: String::new(),
                reason,
            };
            assert!(!lost.is_retryable());
        }
        let away = || Error::redis("asking a node", std::io::Error::other("unreachable"));
        let no_quorum = || Error::NoQuorum {
            name: String::new(),
            nodes: 3,
            needed: 2,
            agreed: 1,
            failures: vec![(0, away()), (2, away())],
        };
        let members = || Error::Members {
            failures: vec![("a".into(), away())],
        };
        for err in [away(), no_quorum(), members()] {
            assert!(err.is_retryable() && !err.after_work().is_retryable());
        }
    }

    #[test]
    fn wrong_credentials_are_no_reason_to_try_again_wherever_they_were_refused() {
        let denied = RedisError::from((ErrorKind::Server(ServerErrorKind::ExecAbort), "WRONGPASS"));
        assert!(
            !Error::redis("connecting", denied)
                .at(&"127.0.0.1:6379")
                .is_retryable()
        );
    }

    #[test]
    #[cfg(feature = "tls")]
    fn what_only_a_setting_can_change_is_no_reason_to_try_again() {
        let err = lasting("wrong name".into());
        assert_eq!(err.to_string(), "wrong name");
        assert!(!Error::redis("connecting", err).is_retryable());
        let other = std::io::Error::other("something");
        assert!(Error::redis("connecting", RedisError::from(other)).is_retryable());
    }

    #[test]
    fn an_error_of_a_connection_names_its_server_and_stays_what_it_is() {
        let timeout = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let broken = RedisError::from((ErrorKind::Parse, "odd"));
        let other = RedisError::from(std::io::Error::other("reset"));
        for err in [timeout, broken, other, lasting("no".into())] {
            let its = named(&"10.0.0.1:1", err.clone());
            assert_eq!(its.to_string(), format!("10.0.0.1:1: {err}"));
            assert_eq!(is_transient(&its), is_transient(&err), "{err}");
            assert_eq!(its.is_timeout(), err.is_timeout(), "{err}");
        }
        let said = RedisError::from((ErrorKind::Server(ServerErrorKind::NoPerm), "no"));
        assert_eq!(named(&"10.0.0.1:1", said.clone()).kind(), said.kind());
    }

    #[test]
    fn a_majority_that_cannot_agree_is_not_worth_a_retry() {
        let dead = || {
            Error::redis(
                "asking a node",
                redis::RedisError::from(std::io::Error::other("")),
            )
        };
        let short = |nodes: usize, lasting: usize, passing: usize| Error::NoQuorum {
            name: "orders".into(),
            nodes,
            needed: nodes / 2 + 1,
            agreed: 0,
            failures: (0..lasting)
                .map(|node| (node, Error::Closed))
                .chain((lasting..lasting + passing).map(|node| (node, dead())))
                .collect(),
        };
        for nodes in 2..=7 {
            let most = nodes - (nodes / 2 + 1);
            for lasting in 0..=nodes {
                for passing in 0..=nodes - lasting {
                    let retryable = short(nodes, lasting, passing).is_retryable();
                    assert_eq!(retryable, lasting <= most, "{lasting} of {nodes}");
                }
            }
        }
    }
}
