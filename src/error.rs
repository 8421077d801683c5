//! The errors, named by what the caller can do next, and their texts.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use redis::{ErrorKind, RedisError, Value};

use crate::shown::Shown;
use crate::verdict::{self, RequestKind, passes};

/// The result of most fallible calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
///
/// If the lock is taken, or a limit was too short for Redis to answer, that is no error: the `try_` methods return
/// `Ok(None)`. If acquiring fails with an error, the work has not begun, and redlatch releases whatever the attempt may have
/// acquired.
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
/// | [`Redis`](Self::Redis), [`NoQuorum`](Self::NoQuorum), [`Members`](Self::Members), if [`is_retryable`](Self::is_retryable) | call again later |
/// | these three, if [`may_have_run`](Self::may_have_run) | check whether the command has run before you repeat it |
/// | these three, from a release | nothing: the lock is free when its lease is over, or before; permits of a [`Semaphore`](crate::Semaphore) may stay taken |
/// | these three, otherwise | remove the cause that the text names, such as a missing right |
/// | [`Late`](Self::Late), [`NotReplicated`](Self::NotReplicated), [`Spawn`](Self::Spawn) | call again later (not `adopt` after `NotReplicated`: the ticket is used up) |
/// | [`Lost`](Self::Lost) | stop, or do not begin: somebody else may have worked at the same time, so check or repeat the work |
/// | [`WouldDeadlock`](Self::WouldDeadlock) | change the program: use the guard that the thread has, or drop it first |
/// | [`Cancelled`](Self::Cancelled), [`Closed`](Self::Closed) | end this thread's work, as the program has asked for |
/// | [`WrongType`](Self::WrongType) | use one kind of lock for each name; a string may be a lock by `SET NX` |
/// | [`InvalidName`](Self::InvalidName), [`InvalidCommand`](Self::InvalidCommand), [`InvalidSetting`](Self::InvalidSetting) | change the name, the command or the setting, as the text says |
///
/// The text of an error says on one line what was tried, for which lock, at which server, and why it failed. `Debug`
/// writes the same text, since `main` and `unwrap` print that.
///
/// More fields may be added to a variant, so a pattern ends with `..`: `Error::Late { name, .. }`.
#[non_exhaustive]
pub enum Error {
    /// Redis is unreachable, did not answer in time, or rejected the command. Worth a retry if [`Error::is_retryable`]
    /// returns true.
    #[non_exhaustive]
    Redis {
        /// The action that failed, such as `"acquiring the lock"`.
        doing: &'static str,
        /// Whether this followed the work that the lock protects, as a release does.
        after_work: bool,
        /// The lock's name, as given to the client; `None` if the call was about no lock, as `Client::open`.
        name: Option<String>,
        /// The server's address, where it is known: `127.0.0.1:6379`, or the path of a Unix socket.
        server: Option<String>,
        /// The error of Redis or of the connection.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The hold ended before it was released, used or adopted. Of a [`SemaphorePermit`](crate::SemaphorePermit): the
    /// semaphore no longer exists.
    #[non_exhaustive]
    Lost {
        /// The lock's name, as given to the client.
        name: String,
        /// How it was lost.
        reason: LossReason,
    },
    /// Too few of the servers of a [`RedLock`](crate::RedLock) did what was asked, such as granting the lock, because others
    /// of them failed.
    #[non_exhaustive]
    NoQuorum {
        /// The lock's name, as given.
        name: String,
        /// How many servers there are.
        nodes: usize,
        /// How many of them make a majority.
        needed: usize,
        /// How many did what was asked.
        agreed: usize,
        /// The error of each server that failed, by its position among the clients. The servers that are missing here
        /// either granted the lock, or replied that somebody else has it.
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
    /// Members of a [`MultiLock`](crate::MultiLock) could not be acquired, and the others were released; or the releases of
    /// several members failed.
    #[non_exhaustive]
    Members {
        /// The name and the error of each member that failed.
        failures: Vec<(String, Self)>,
    },
    /// The calling thread would wait for itself, since it holds the lock already.
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock's name, as given to the client.
        name: String,
        /// Why the thread would wait for itself.
        reason: DeadlockReason,
    },
    /// The [`CancelToken`](crate::CancelToken) of the handle was cancelled, before the call or during it.
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
        /// The content of the key, such as ``the key `orders` holds a list``, if the server says.
        found: Option<String>,
    },
    /// The system did not start one of the client's background threads. redlatch releases whatever the call may have
    /// acquired.
    #[non_exhaustive]
    Spawn {
        /// The name of the thread, as debuggers and `/proc` show it.
        thread: &'static str,
        /// Why it could not be started.
        source: std::io::Error,
    },
    /// A command that cannot be run as a [guarded command](crate::MutexGuard::query). Nothing was sent.
    #[non_exhaustive]
    InvalidCommand {
        /// Which rule the command breaks, and what to do about it.
        reason: String,
    },
    /// Redis was too slow to say whether anybody has the lock or the permits. Without
    /// [`late_is_error`](crate::Mutex::late_is_error) such a call returns `Ok(None)`. redlatch releases whatever the
    /// call may have acquired.
    #[non_exhaustive]
    Late {
        /// The lock's name, as given to the client.
        name: String,
    },
    /// The name cannot be the name of a lock: it is empty, longer than 64 KiB with the key prefix, or has braces that would
    /// put its keys into several slots of a [cluster](crate::guide::deployments#cluster). Nothing was sent.
    #[non_exhaustive]
    InvalidName {
        /// Which rule the name breaks.
        reason: &'static str,
    },
    /// A setting or an argument cannot work, and nothing was sent. Or the server is of another sort than the URL says, such
    /// as a node of a cluster for `redis://`. Or two clients of a [`RedLock`](crate::RedLock) have the same server. Or two
    /// members of a multi-lock turn out to lock one key of one server in different ways.
    #[non_exhaustive]
    InvalidSetting {
        /// Which setting, and why.
        reason: String,
    },
}

impl Error {
    /// Returns whether the same call may succeed later although the caller changes nothing.
    ///
    /// False for errors that come after the work, such as those of a release, and for a command that may have run. So a
    /// caller that repeats retryable calls repeats no work. After a retryable error of
    /// [`Client::adopt`](crate::Client::adopt), Redis may have executed the request all the same. Then the ticket is used
    /// up, and a repeated call returns `Lost`.
    ///
    /// | error | of | retryable |
    /// | --- | --- | --- |
    /// | [`Redis`](Self::Redis): unreachable, loading, now a replica, no writes now (`MISCONF`, `OOM`) | acquiring, asking | yes |
    /// | `Redis`: wrong credentials, missing rights, a certificate | any call | no |
    /// | `Redis` with `after_work` | releasing, detaching, downgrading, closing | no |
    /// | `Redis`, if [it may have run](Self::may_have_run) | a guarded command, or one that counts, such as `count_down` | no |
    /// | [`Lost`](Self::Lost) | any call | no |
    /// | [`Late`](Self::Late), [`NotReplicated`](Self::NotReplicated), [`Spawn`](Self::Spawn) | acquiring | yes |
    /// | [`NoQuorum`](Self::NoQuorum): later a majority may answer | acquiring, asking | yes |
    /// | `NoQuorum`: too many servers have errors that are not retryable | acquiring, asking | no |
    /// | `NoQuorum` | `force_unlock`, which may have freed the lock on some servers | no |
    /// | [`Members`](Self::Members) | acquiring | if the error of each member is |
    /// | `Members` | releasing | no |
    /// | all others | any call | no |
    ///
    /// ```
    /// assert!(!redlatch::Error::Closed.is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Redis { after_work, .. } => {
                // `OOM` and `MISCONF` may pass, since an operator can make room for writes.
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

    /// Returns whether the command may have run although the call failed, so that repeating it may repeat its effect.
    ///
    /// True if one of these was sent and no reply arrived: a [guarded command](crate::MutexGuard::query), or a call that
    /// would take effect again if the program repeated it, such as [`count_down`](crate::Latch::count_down),
    /// [`add_permits`](crate::Semaphore::add_permits), or [`force_unlock`](crate::Handle::force_unlock). Also true if the
    /// reply to a guarded command arrived and could not be read: that command has run. False if Redis replied with an
    /// error, even if a script had written something before it failed. False also for the `NoQuorum` of a `RedLock`'s
    /// `force_unlock`, although some servers may have freed the lock.
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
        matches!(self, Self::Redis { source, .. } if source.is::<MayHaveRun>())
    }

    /// The error of a command that was sent, got no answer, and is not sent again.
    pub(crate) fn outcome_unknown(doing: &'static str, err: RedisError) -> Self {
        let outcome = "may have run";
        Self::redis(doing, MayHaveRun { err, outcome })
    }

    /// The error of a command that has run, but whose reply cannot be read.
    pub(crate) fn unread(doing: &'static str, err: RedisError) -> Self {
        let outcome = "has run";
        Self::redis(doing, MayHaveRun { err, outcome })
    }

    /// Makes the error of a call from `source`, such as an error of the connection.
    pub(crate) fn redis(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = source.into();
        if let Some(NotStarted(thread, kind)) = source.downcast_ref().and_then(inner) {
            return Self::Spawn {
                thread,
                source: (*kind).into(),
            };
        }
        if let Some(lasting) = source.downcast_ref().and_then(inner::<Lasting>)
            && lasting.is_wrong_url
        {
            return Self::setting(format!("url: {lasting}"));
        }
        Self::Redis {
            doing,
            after_work: false,
            name: None,
            server: None,
            source,
        }
    }

    /// Marks the error as that of a call after the work, such as a release.
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
        // Some errors are still retryable, such as `Spawn`, or a `NoQuorum` whose servers might agree later. Only the
        // variant `Redis` has the field `after_work`, so such an error becomes the source of a `Redis` error.
        if self.is_retryable() {
            let err = std::mem::replace(self, Self::Closed);
            *self = Self::redis("releasing", err);
            self.mark_after_work();
        }
    }

    /// Turns this into a downgrade's error. Even a failed downgrade ends the hold, so there is nothing to retry.
    pub(crate) fn downgrading(mut self, lock: &str) -> Self {
        const DOWNGRADING: &str = "downgrading the lock";
        if let Self::Redis { doing, .. } = &mut self {
            *doing = DOWNGRADING;
        } else if self.is_retryable() {
            self = Self::redis(DOWNGRADING, self).about(lock);
        }
        self.after_work()
    }

    pub(crate) fn lost(name: impl Into<String>, reason: LossReason) -> Self {
        let name = name.into();
        Self::Lost { name, reason }
    }

    pub(crate) fn setting(reason: String) -> Self {
        Self::InvalidSetting { reason }
    }

    /// Adds the server to an error about Redis, unless one is named.
    pub(crate) fn at(mut self, address: &dyn fmt::Display) -> Self {
        if let Self::Redis { server, .. } = &mut self {
            server.get_or_insert_with(|| address.to_string());
        }
        self
    }

    /// Adds the lock's name to an error about Redis, unless one is named.
    pub(crate) fn about(mut self, lock_name: &str) -> Self {
        if let Self::Redis { name, .. } = &mut self {
            name.get_or_insert_with(|| lock_name.into());
        }
        self
    }

    /// `WrongType`, if the server rejected the command for the type of the key.
    pub(crate) fn wrong_type(err: &RedisError, name: &str) -> Option<Self> {
        let detail = err.detail().unwrap_or_default();
        (err.code() == Some("WRONGTYPE")).then(|| Self::WrongType {
            name: name.into(),
            found: Some(detail.into()).filter(|_| !is_wrong_operation(detail)),
        })
    }

    /// The error of Redis or of the connection, if that is the cause.
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

    /// Writes the text; without the lock's name if `is_named` is false.
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
                    "{agreed} of {needed} required servers agreed about `{name}`"
                )?;
                failures.iter().try_for_each(|(node, err)| {
                    write!(f, "; server {node}: ")?;
                    err.write(f, false)
                })
            }
            Self::NotReplicated { acked, needed } => write!(
                f,
                "{acked} of {needed} required replicas acknowledged the acquire, so it is undone; check the replicas, or lower Config::replica_ack"
            ),
            Self::Members { failures } => {
                f.write_str("members of the multi-lock failed")?;
                failures.iter().try_for_each(|(name, err)| {
                    write!(f, "; `{name}`: ")?;
                    err.write(f, false)
                })
            }
            Self::WouldDeadlock { name, reason } => write!(
                f,
                "waiting for `{name}`, this thread would wait for itself: {reason}"
            ),
            Self::Cancelled => f.write_str("the call was cancelled by its token"),
            Self::Closed => {
                f.write_str("the client is closed, or is the copy of a client in a forked process; open a new client")
            }
            Self::WrongType { name, found } => write!(
                f,
                "`{name}` is not this kind of lock: {}; choose another name, or try again later if other programs use the key as a lock",
                found.as_deref().unwrap_or("its key holds something else")
            ),
            Self::Spawn { thread, source } => {
                let said = said(source);
                write!(f, "the thread {thread} could not be started: {said}; check the limits on threads and memory")
            }
            Self::InvalidCommand { reason } => write!(f, "invalid guarded command: {reason}"),
            Self::Late { name } => write!(
                f,
                "redis was too slow to say whether `{name}` is free; allow more time, or try again"
            ),
            Self::InvalidName { reason } => write!(f, "invalid lock name: {reason}"),
            Self::InvalidSetting { reason } => write!(f, "invalid setting: {reason}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    /// Writes what was tried, for which lock, at which server, why it failed, and what to do about it, so the text can be
    /// printed alone. The text is one line: control characters, for example of a lock's name, are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text, true)?;
        Shown(&text).fmt(f)
    }
}

impl std::error::Error for Error {
    /// Skips the direct cause, since the text of this error contains it already, and returns what caused that one. Mostly
    /// `None`.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let cause: &(dyn std::error::Error + 'static) = match self {
            Self::Redis { source, .. } => &**source,
            Self::Spawn { source, .. } => source,
            _ => return None,
        };
        match cause.is::<RedisError>() {
            // The text of a `RedisError` contains that of the error in it.
            true => cause.source()?.source(),
            false => cause.source(),
        }
    }
}

/// A command was sent, and its caller has no reply that it can read.
#[derive(Debug)]
struct MayHaveRun {
    err: RedisError,
    /// The command "may have run", or "has run".
    outcome: &'static str,
}

impl fmt::Display for MayHaveRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (said, outcome) = (said(&self.err), self.outcome);
        write!(
            f,
            "{said}; the command {outcome}: check the data before you repeat it"
        )
    }
}

impl std::error::Error for MayHaveRun {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text above contains that of the `RedisError` and of the error in it.
        std::error::Error::source(&self.err)?.source()
    }
}

/// The text of an error, without a full stop at the end. For an error that the server sent, the text is its code and its
/// message.
pub(crate) fn said(err: &(dyn std::error::Error + 'static)) -> String {
    let refusal = err.downcast_ref::<RedisError>().and_then(|err| {
        let code = err.code()?;
        Some(format!("{code} {}", err.detail().unwrap_or_default()))
    });
    let text = refusal.unwrap_or_else(|| err.to_string());
    // Removes the mark that the crate `redis` puts on texts that are not a server's.
    let text = text.replacen(" - InvalidClientConfig", "", 1);
    // The arguments of an unknown command are left out: hashes and keys help nobody.
    let text = text
        .split(", with args beginning with")
        .next()
        .unwrap_or_default();
    text.trim_end_matches(['.', ' ']).to_owned()
}

/// The action of a release, as [`Error::Redis`] names it.
pub(crate) const RELEASING: &str = "releasing the lock";

/// The action of the release of a permit.
pub(crate) const RELEASING_PERMIT: &str = "releasing a permit";

/// The action of a guarded command. Only its caller knows which rights it needs, so `advice` refers to no list of rights.
pub(crate) const RUNNING: &str = "running a guarded command";

/// Advice on an error, where the server's text has none.
pub(crate) fn advice(err: &RedisError, server: Option<&str>, doing: &str) -> Option<&'static str> {
    use std::io::ErrorKind as Io;
    let detail = err.detail().unwrap_or_default();
    Some(match (err.code(), as_io(err).map(std::io::Error::kind)) {
        (Some("NOAUTH"), _) => {
            "the server requires a password: use redis://user:password@host, or Config::credentials"
        }
        (Some("WRONGPASS"), _) => {
            "check the user and the password in the URL, or those that Config::credentials returns"
        }
        (Some("NOPERM"), _) if doing == RUNNING => {
            "give the user the right to run this command on all of its keys"
        }
        (Some("NOPERM"), _) => {
            "give the user the rights listed under `ACL rights` in redlatch::guide::operations, and for a cluster those in redlatch::guide::deployments"
        }
        (Some("ERR"), _) if detail.starts_with("unknown command") => {
            "if this is a Sentinel, use redis+sentinel://; otherwise its configuration must not rename or disable the command"
        }
        // Valkey can be built, and packaged, without its Lua module.
        _ if detail.contains("scripting engine") => {
            "locks need Lua scripts: load Valkey's Lua module, with `loadmodule libvalkeylua.so` in the server's configuration"
        }
        (_, Some(Io::NotFound | Io::PermissionDenied)) if server?.starts_with('/') => {
            "check the path in the URL: it has to be the `unixsocket` of a running server, to which this user has access"
        }
        (_, Some(Io::ConnectionRefused)) => {
            "check that the server is running, and the address and port in the URL"
        }
        (_, Some(Io::TimedOut)) if doing == "connecting" => {
            "check the address and port in the URL, and that no firewall is in between"
        }
        _ => return verdict::advice(err),
    })
}

/// Whether a command was rejected for the type of a key, without a word on what the key holds.
pub(crate) fn is_wrong_operation(detail: &str) -> bool {
    detail.starts_with("Operation against a key")
}

/// Text of a server, for errors and logs: without control characters, which could forge lines there.
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

/// Text as of [`printable`], cut off after [`MOST_SHOWN`] characters.
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

/// A fault that keeps a connection from being made until a setting is changed, here or at the server.
#[derive(Debug)]
struct Lasting {
    text: String,
    /// The server is of another sort than the URL says, so that only another URL helps.
    is_wrong_url: bool,
}

impl Lasting {
    fn error(text: String, is_wrong_url: bool) -> RedisError {
        std::io::Error::other(Self { text, is_wrong_url }).into()
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Lasting {}

/// An error of a connection to a server of another sort than the URL says.
pub(crate) fn wrong_url(text: String) -> RedisError {
    Lasting::error(text, true)
}

/// An error of a connection that does not pass by itself.
pub(crate) fn lasting(text: String) -> RedisError {
    Lasting::error(text, false)
}

/// Replaces the text of a connection's error. The result is transient if `err` is.
pub(crate) fn reword_connection_error(err: &RedisError, text: String) -> RedisError {
    match inner::<Lasting>(err) {
        Some(known) => Lasting::error(text, known.is_wrong_url),
        None if is_transient(err) => std::io::Error::other(text).into(),
        None => lasting(text),
    }
}

/// Puts the name of one of several servers in front of an error of its connection.
pub(crate) fn named(server: &dyn fmt::Display, err: RedisError) -> RedisError {
    let text = || format!("{server}: {err}");
    match err.kind() {
        ErrorKind::Io | ErrorKind::Parse if err.is_timeout() => {
            std::io::Error::new(std::io::ErrorKind::TimedOut, text()).into()
        }
        ErrorKind::Io | ErrorKind::Parse => reword_connection_error(&err, text()),
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

/// The error type of this library that an error of a connection wraps, if it wraps one.
fn inner<E: std::error::Error + 'static>(err: &RedisError) -> Option<&E> {
    as_io(err)?.get_ref()?.downcast_ref()
}

fn as_io(err: &RedisError) -> Option<&std::io::Error> {
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(err)?.downcast_ref::<Shared>()?;
    source.downcast_ref()
}

/// Gives a server's error another text, which must be a single line. The error code stays.
pub(crate) fn reword_server_error(err: &RedisError, text: &str) -> RedisError {
    let line = format!("-{} {text}\r\n", err.code().unwrap_or("ERR"));
    // The crate `redis` makes a server's error only by parsing a reply.
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(Value::ServerError(reworded)) => reworded.into(),
        _ => err.clone(),
    }
}

/// Why a thread would wait for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadlockReason {
    /// The thread holds the lock already, and either the lock is not reentrant, or the thread asks for an owned guard.
    NotReentrant,
    /// The thread holds the name as a lock of another kind. If exactly one of the two kinds is a read-write lock, the
    /// error is [`Error::WrongType`] instead.
    OtherKind,
    /// The thread has a read guard and asks to write.
    Reading,
}

impl fmt::Display for DeadlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReentrant => {
                "it holds the lock, and neither a mutex nor an owned guard is reentrant; use the guard that it has, or a reentrant lock"
            }
            Self::OtherKind => "it holds the name as a lock of another kind; use one kind for each name",
            Self::Reading => "it has a read guard, and asks to write; drop the read guard first",
        })
    }
}

/// How a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LossReason {
    /// The lease expired: a fixed one as intended, a renewed one because this process was stopped or too slow to renew it.
    /// From [`adopt`](crate::Client::adopt): nobody has the hold of the ticket any more.
    Expired,
    /// The key vanished while the lease had time left: `force_unlock`, a delete, a flush, an eviction, or a server that
    /// came back without its data. Redis does not say which.
    Forced,
    /// The lock has another holder although the lease had time left. From [`adopt`](crate::Client::adopt): somebody else has
    /// the lock, even if the ticket's time was over.
    TakenOver,
    /// Redis could not be reached for so long that the lease may have ended.
    Unreachable,
    /// The handle's `max_hold` is over: renewal has stopped, and the lock becomes free when the guard is dropped or the
    /// lease expires. A write hold of an `RwLock` is released at once.
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

    /// Whether Redis may still keep the hold, so that releasing it is worth a command. Redis may also keep an expired
    /// hold, since its lease ends in Redis a margin later than for this client.
    pub(crate) fn may_still_be_held(self) -> bool {
        matches!(self, Self::Unreachable | Self::MaxHold | Self::Expired)
    }

    /// Corrects the reason of a hold that the server did not find: if the hold was no longer valid (`in_time` is false), it
    /// expired.
    pub(crate) fn or_expired(self, in_time: bool) -> Self {
        if in_time { self } else { Self::Expired }
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
            Self::Expired => "its lease expired",
            Self::Forced => "its key is gone: force_unlock, a delete, an eviction, or a server that lost its data",
            Self::TakenOver => "another owner holds it",
            Self::Unreachable => "redis was unreachable for too long",
            Self::MaxHold => "its max_hold elapsed",
            Self::Closed => "the client was closed",
        })
    }
}

/// A hold that was lost, and how. `Display` writes one line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Loss {
    /// The lock's name, as given to the client.
    pub name: String,
    /// The owner in Redis: `<client id>:<number>`; of an [`ExpirablePermit`](crate::ExpirablePermit) its id. Empty for a
    /// [`SemaphorePermit`](crate::SemaphorePermit), which has no owner; only an [`Observer`](crate::Observer) receives such
    /// a loss.
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
    write!(f, "`{name}` is no longer held: {reason}")
}

#[cfg(test)]
mod tests;
