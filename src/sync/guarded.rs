//! Commands and scripts that run only while a guard's hold is in force.

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue, ToRedisArgs};

use crate::acquire::guarded::Work;
use crate::error::Result;
use crate::net::request::Script;
use crate::protocol::guarded as wrapping;
use crate::sync::guard::Guard;
use crate::sync::kind::{OneServer, Scope};

/// A Lua script that runs only while a hold is in force: for a guard's [`invoke`](crate::Guard::invoke).
///
/// In front of its text stands one line that looks whether the hold is in force, so the script begins only if it is, and is
/// executed as one step with that. The script has its own `KEYS` and `ARGV`, and returns what it likes. Redis gets its hash,
/// and its text if the server does not know it, so make it once and keep it.
///
/// ```no_run
/// use std::sync::LazyLock;
///
/// use redlatch::{Client, GuardedScript};
///
/// static SELL: LazyLock<GuardedScript> = LazyLock::new(|| {
///     GuardedScript::new(
///         "if redis.call('decrby', KEYS[1], ARGV[1]) < 0 then
///            redis.call('incrby', KEYS[1], ARGV[1])
///            return 0
///          end
///          return 1",
///     )
/// });
///
/// let client = Client::open("redis://127.0.0.1/")?;
/// let guard = client.mutex("stock:42").lock()?;
/// let sold: bool = guard.invoke(&SELL, "{stock:42}:left", 5)?;
/// # let _ = sold;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Clone)]
pub struct GuardedScript {
    script: Arc<Script>,
}

impl GuardedScript {
    /// Wraps the text of a script. Sends nothing: what is wrong with the text, Redis says when it is first invoked, with the
    /// numbers of its lines.
    ///
    /// ```
    /// let script = redlatch::GuardedScript::new("return redis.call('get', KEYS[1])");
    /// # let _ = script;
    /// ```
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self {
            script: wrapping::wrapped(text.as_ref()),
        }
    }

    pub(crate) fn work(&self, keys: impl ToRedisArgs, args: impl ToRedisArgs) -> Work<'_> {
        Work::Script {
            script: &self.script,
            keys: keys.to_redis_args(),
            args: args.to_redis_args(),
        }
    }
}

impl fmt::Debug for GuardedScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedScript").finish_non_exhaustive()
    }
}

impl<K: OneServer, S: Scope> Guard<K, S> {
    /// Runs a command if this hold is in force, which Redis looks at in the same step; otherwise nothing is executed.
    ///
    /// So what is written like this cannot be written too late, however long this process was stopped or cut off: once
    /// the lease is over, [`Error::Lost`](crate::Error::Lost) comes instead, also if the process has taken the lock again
    /// since. The data have to be in the Redis that keeps the lock, so guards of a [`RedLock`](crate::RedLock) and of a
    /// [`MultiLock`](crate::MultiLock) have neither this method nor [`invoke`](Self::invoke).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("stock:42").lock()?;
    /// let left: i64 = guard.query(redis::cmd("GET").arg("{stock:42}:left"))?;
    /// // the next line does nothing if the lease is over by now
    /// guard.query::<()>(redis::cmd("SET").arg("{stock:42}:left").arg(left - 1))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// The keys of the command are taken as they are, without the client's key prefix. In a cluster they have to be in
    /// the slot of the lock's key, as `{stock:42}:left` is in that of `stock:42`. Commands that Redis does not allow in
    /// scripts are rejected, commands that block do not wait, and integers beyond 2^53 come back rounded. The user needs the rights
    /// for the command, and to read and write its keys.
    ///
    /// Guarded commands of all guards share a connection that locks do not use, so a lock waits for none of them. A reply
    /// may have up to 1 MiB, and arrays in it may be nested 8 levels deep; a longer or deeper one is an error. A reply of
    /// more than 64 MiB also ends the connection, and other guarded commands that were on their way may have run.
    ///
    /// Blocks for one round trip, at most for the command timeout. A lost reply is not asked for again: it is
    /// [`Error::Redis`](crate::Error::Redis), and [`may_have_run`](crate::Error::may_have_run) says so.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`](crate::Error::Lost): the hold is over, and nothing was executed. The guard is notified.
    /// - [`Error::Redis`](crate::Error::Redis): Redis rejected the command, did not answer, or the reply is no `T` or too
    ///   large. In this last case the command has run; see [`may_have_run`](crate::Error::may_have_run) about lost
    ///   replies.
    /// - [`Error::InvalidCommand`](crate::Error::InvalidCommand), before anything is sent: a key in another slot of a
    ///   cluster, no name, more than 7,900 arguments, a `cursor_arg`, or a command about a connection, such as `SELECT`.
    /// - [`Error::Closed`](crate::Error::Closed) once the client is closed.
    pub fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.held.run(&Work::Command(command))
    }

    /// Runs a script if this hold is in force; otherwise as [`query`](Self::query).
    ///
    /// All of it is executed, or nothing. `keys` and `args` may be single values, slices or tuples; `None::<&str>` is none
    /// of them. Name all keys, since only those are looked at before it is sent.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let take = redlatch::GuardedScript::new("return redis.call('decrby', KEYS[1], ARGV[1])");
    /// let guard = client.mutex("stock:42").lock()?;
    /// let left: i64 = guard.invoke(&take, "{stock:42}:left", 5)?;
    /// # let _ = left;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query). A script that fails in the middle has executed what came before.
    pub fn invoke<T: FromRedisValue>(
        &self,
        script: &GuardedScript,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> Result<T> {
        self.held.run(&script.work(keys, args))
    }
}
