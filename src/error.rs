//! What can go wrong, named by what the caller can do next.

use std::borrow::Cow;
use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call could not do what was asked.
///
/// It is not an error that somebody else has the lock, or that a limit was too short for Redis to answer: the `try_`
/// methods return `Ok(None)`. An error means that the server is known to be unreachable, that it refused, or that it
/// did not answer for the whole response timeout. In all of these cases, whatever may have been taken is released.
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
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Redis is unreachable, did not answer for the whole response timeout, or refused. Worth a retry if
    /// [`Error::is_retryable`] returns true.
    Redis {
        /// What was being done, such as `"acquiring the lock"`.
        doing: &'static str,
        /// The server's address, where it is known: `127.0.0.1:6379`, or the path of a Unix socket.
        server: Option<String>,
        /// What Redis or the connection said; part of this error's text too.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// We held the lock and no longer do, or its lease was over before the grant arrived.
    Lost {
        /// The lock's name, as given to the client.
        name: String,
        /// How it was lost.
        reason: LossReason,
    },
    /// Too few of the servers of a [`RedLock`](crate::RedLock) agreed, and not because others have the lock.
    NoQuorum {
        /// The lock's name, as given.
        name: String,
        /// How many servers there are.
        nodes: usize,
        /// How many of them make a majority.
        needed: usize,
        /// How many agreed.
        agreed: usize,
        /// What each of the others said, by its position among the clients. Those missing here and among those that agreed
        /// said that somebody else has the lock.
        failures: Vec<(usize, Self)>,
    },
    /// Too few replicas have acknowledged an acquire ([`Config::replica_ack`](crate::Config::replica_ack)), so it is
    /// being released.
    NotReplicated {
        /// How many have.
        acked: u32,
        /// How many had to.
        needed: u32,
    },
    /// Members of a [`MultiLock`](crate::MultiLock) could not be asked; the others were released.
    Members {
        /// What each of them said, by its name.
        failures: Vec<(String, Self)>,
    },
    /// The calling thread would wait for itself: it holds the lock and that is not reentrant, it holds it as a lock of
    /// another kind or as one of several of the same client, or it reads and wants to write.
    WouldDeadlock {
        /// The lock's name, as given to the client.
        name: String,
    },
    /// The [`CancelToken`](crate::CancelToken) of the handle was cancelled while waiting.
    Cancelled,
    /// The client was closed while we waited, or before.
    Closed,
    /// The key of this name holds something that is not this kind of lock. It was left as it was.
    WrongType {
        /// The lock's name, as given to the client.
        name: String,
    },
    /// The system did not start one of the client's background threads. Nothing was taken, or it is being released.
    Thread {
        /// Which, as debuggers and `/proc` show it.
        name: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The name cannot be the name of a lock; nothing was sent.
    InvalidName {
        /// Which rule it breaks.
        why: &'static str,
    },
    /// A setting of the client or of a handle cannot work; says which and why. Nothing was sent.
    Config(String),
}

impl Error {
    /// Returns whether the same call may well succeed later, with nothing changed by the caller.
    ///
    /// True for a server that could not be reached, is still loading or has become a replica, and for several servers
    /// if a majority may yet agree; also for [`Error::Lost`], [`Error::NotReplicated`] and [`Error::Thread`]. False for wrong credentials,
    /// missing rights, and every other error that is not about Redis.
    ///
    /// ```
    /// assert!(!redlatch::Error::Closed.is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Redis { .. } => self.as_redis().is_none_or(is_transient),
            Self::Lost { .. } | Self::Thread { .. } | Self::NotReplicated { .. } => true,
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

    /// An error about Redis from whatever the connection said.
    pub(crate) fn redis(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Redis {
            doing,
            server: None,
            source: source.into(),
        }
    }

    /// The same, if it is about Redis, naming the server.
    pub(crate) fn at(self, server: &dyn fmt::Display) -> Self {
        match self {
            Self::Redis {
                doing,
                server: None,
                source,
            } => Self::Redis {
                doing,
                server: Some(server.to_string()),
                source,
            },
            other => other,
        }
    }

    /// What Redis or the connection said, if that is what went wrong.
    pub(crate) fn as_redis(&self) -> Option<&RedisError> {
        std::error::Error::source(self)?.downcast_ref()
    }
}

impl fmt::Display for Error {
    /// What was tried, at which server, and why it failed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis {
                doing,
                server,
                source,
            } => {
                match (*doing, server) {
                    ("connecting", Some(server)) => {
                        write!(f, "cannot connect to redis at {server}")
                    }
                    (_, Some(server)) => write!(f, "{doing} failed at redis, {server}"),
                    (_, None) => write!(f, "{doing} failed at redis"),
                }?;
                write!(f, ": {source}")
            }
            Self::Lost { name, reason } => {
                write!(f, "the lock `{name}` is no longer held: {reason}")
            }
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
                for (node, err) in failures {
                    write!(f, "; server {node}: {err}")?;
                }
                Ok(())
            }
            Self::NotReplicated { acked, needed } => write!(
                f,
                "{acked} replicas of the {needed} needed have acknowledged it, so it is released"
            ),
            Self::Members { failures } => {
                f.write_str("not every member of the multi-lock could be asked")?;
                for (name, err) in failures {
                    write!(f, "; `{name}`: {err}")?;
                }
                Ok(())
            }
            Self::WouldDeadlock { name } => {
                write!(
                    f,
                    "this thread holds `{name}` already and would wait for itself"
                )
            }
            Self::Cancelled => f.write_str("the wait was cancelled"),
            Self::Closed => f.write_str("the client is closed"),
            Self::WrongType { name } => write!(
                f,
                "the key of `{name}` holds something that is not this kind of lock"
            ),
            Self::Thread { name, source } => {
                write!(f, "the thread {name} could not be started: {source}")
            }
            Self::InvalidName { why } => write!(f, "invalid lock name: {why}"),
            Self::Config(what) => write!(f, "invalid setting: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Redis { source, .. } => Some(&**source),
            Self::Thread { source, .. } => Some(source),
            _ => None,
        }
    }
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
        ErrorKind::Server(kind) => {
            is_crowded(err)
                || matches!(
                    kind,
                    ServerErrorKind::BusyLoading
                        | ServerErrorKind::ReadOnly
                        | ServerErrorKind::MasterDown
                        | ServerErrorKind::ClusterDown
                        | ServerErrorKind::TryAgain
                )
        }
        ErrorKind::Extension => matches!(err.code(), Some("BUSY" | "NOREPLICAS" | "RESTARTED")),
        _ => false,
    }
}

/// What keeps a connection from being made until somebody changes a setting, here or at the server.
#[derive(Debug)]
struct Lasting(String);

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lasting {}

/// An error of a connection that is no reason to try again.
pub(crate) fn lasting(what: String) -> RedisError {
    std::io::Error::other(Lasting(what)).into()
}

/// The same error, if it is about a connection, with the name of the server: one of several.
#[cfg(feature = "cluster")]
pub(crate) fn named(server: &dyn fmt::Display, err: RedisError) -> RedisError {
    let what = || format!("{server}: {err}");
    match err.kind() {
        ErrorKind::Io | ErrorKind::Parse if err.is_timeout() => {
            std::io::Error::new(std::io::ErrorKind::TimedOut, what()).into()
        }
        ErrorKind::Io | ErrorKind::Parse if is_transient(&err) => {
            std::io::Error::other(what()).into()
        }
        ErrorKind::Io => lasting(what()),
        _ => err,
    }
}

fn is_lasting(err: &RedisError) -> bool {
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(err).and_then(|err| err.downcast_ref::<Shared>());
    source
        .and_then(|err| err.downcast_ref::<std::io::Error>()?.get_ref())
        .is_some_and(|err| err.is::<Lasting>())
}

/// Whether the server is at its limit of clients; it closes the connection.
pub(crate) fn is_crowded(err: &RedisError) -> bool {
    let detail = err.detail().unwrap_or_default();
    detail.starts_with("max number of clients")
}

/// Whether the server does not know the script by its hash, and needs its text.
pub(crate) fn is_unknown_script(err: &RedisError) -> bool {
    err.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether another node of a cluster has to be asked.
pub(crate) fn is_redirection(err: &RedisError) -> bool {
    matches!(
        err.kind(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
    )
}

/// A redirection that nothing follows, with what to do about it.
pub(crate) fn not_followed(redirection: &RedisError) -> RedisError {
    RedisError::from((
        ErrorKind::InvalidClientConfig,
        "the server is a node of a cluster, so the URL has to begin with redis+cluster://",
        redirection.to_string(),
    ))
}

/// How a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease expired: a fixed one as intended, a renewed one because this process could not renew it, for example
    /// while it was stopped.
    Expired,
    /// The key vanished while the lease had time left: `force_unlock`, a delete, a flush, an eviction, or a server that
    /// came back without its data.
    Forced,
    /// Somebody else holds the lock although our lease had time left.
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
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Forced => "it was forced open",
            Self::TakenOver => "somebody else holds it",
            Self::Unreachable => "redis was out of reach for too long",
            Self::MaxHold => "it was held for as long as it may be",
            Self::Closed => "the client was closed",
        })
    }
}

/// A hold that was lost, and how.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

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
        let source = err.source().expect("why");
        assert!(source.is::<RedisError>() && err.is_retryable());
        assert_eq!(source.to_string(), "connection refused");
        assert_eq!(
            Error::Closed.at(&"7").to_string(),
            Error::Closed.to_string()
        );
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
    #[cfg(feature = "cluster")]
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
