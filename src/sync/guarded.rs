//! Commands and scripts that run only while a guard's hold is in force.

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue, ToRedisArgs};

use crate::error::Result;
use crate::net::request::{Request, Script};
use crate::protocol::guarded::{self as wrapping, Guarded, Unfit};
use crate::sync::guard::Guard;
use crate::sync::kind::{OneServer, Scope};

/// A Lua script that runs only while a lock is held: for a guard's [`invoke`](crate::Guard::invoke).
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
///
/// A line in front of the script checks that the hold is in force. Check and script are one step: nobody else gets the
/// lock while the script runs, and once the hold is over nothing is executed. A script that fails midway is not rolled
/// back. The script has its own `KEYS` and `ARGV`, and may return any type, within the limits of
/// [`query`](crate::Guard::query).
///
/// Make a script once and keep it. Redis is sent its hash, and its text only if the server does not know the hash.
#[derive(Clone)]
pub struct GuardedScript {
    script: Arc<Script>,
}

impl GuardedScript {
    /// Wraps the text of a script. Sends nothing.
    ///
    /// Redis reports a mistake in the Lua text when the script is first invoked, with the line number in your text. The
    /// error of a command that the script calls comes without a line number.
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

    pub(crate) fn work(
        &self,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> impl Fn(&Guarded<'_>) -> std::result::Result<Request, Unfit> {
        let (keys, args) = (keys.to_redis_args(), args.to_redis_args());
        move |guarded| guarded.script(&self.script, &keys, &args)
    }
}

impl fmt::Debug for GuardedScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedScript").finish_non_exhaustive()
    }
}

impl<K: OneServer, S: Scope> Guard<K, S> {
    /// Runs a Redis command only if this hold is still in force; Redis checks that in the same step.
    ///
    /// So a write sent in this way cannot come too late, however long this process was stopped or cut off. Once the
    /// lease is over, the command is not executed and the call returns [`Error::Lost`](crate::Error::Lost), even if
    /// the process has acquired the lock again since.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// use redlatch::redis; // the crate, in the version that redlatch uses
    ///
    /// let guard = client.mutex("stock:42").lock()?;
    /// let left: i64 = guard.query(redis::cmd("GET").arg("{stock:42}:left"))?;
    /// // the next line does nothing if the lease is over by now
    /// guard.query::<()>(redis::cmd("SET").arg("{stock:42}:left").arg(left - 1))?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// Blocks for one round trip, at most for the command timeout. If the reply is lost, the command is not sent
    /// again: the call returns [`Error::Redis`](crate::Error::Redis), and
    /// [`may_have_run`](crate::Error::may_have_run) is true.
    ///
    /// **Keys.** The data must be in the Redis that keeps the lock, so guards of a [`RedLock`](crate::RedLock) or a
    /// [`MultiLock`](crate::MultiLock) have neither this method nor [`invoke`](Self::invoke). Keys are sent
    /// unchanged, without the client's key prefix. In a cluster they must be in the slot of the lock's key, as
    /// `{stock:42}:left` is in that of `stock:42`. The Redis user needs the rights for the command and its keys.
    ///
    /// **Commands and replies.** A command in a variable takes two statements: `let mut set = redis::cmd("SET");`, then
    /// `set.arg("key").arg(1);`. Commands that Redis does not allow in scripts are rejected, blocking commands return
    /// at once, and integers beyond 2^53 are rounded. A reply may have up to 1 MiB, with arrays nested up to 8 levels;
    /// a larger reply is an error. A reply of more than 64 MiB also closes the connection: other guarded commands under way
    /// then fail, and may have run. Guarded commands have a connection of their own, so no lock waits for them.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`](crate::Error::Lost): the hold is over, and nothing was executed. The guard reports the loss
    ///   too.
    /// - [`Error::Redis`](crate::Error::Redis): Redis rejected the command, did not answer, or the reply does not fit
    ///   `T` or the limits. [`may_have_run`](crate::Error::may_have_run) is true if the reply was lost, and also if it
    ///   does not fit: that command has run.
    /// - [`Error::InvalidCommand`](crate::Error::InvalidCommand), before anything is sent: a key in another slot of a
    ///   cluster, no command name, more than 7,900 arguments, a `cursor_arg`, or a command about a connection, such
    ///   as `SELECT`.
    /// - [`Error::Closed`](crate::Error::Closed): the client is closed.
    pub fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.held.run(&|guarded| guarded.command(command))
    }

    /// Runs a script only if this hold is still in force; Redis checks that in the same step.
    ///
    /// Once the lease is over, nothing is executed. Limits, blocking and lost replies are as with
    /// [`query`](Self::query).
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let take = redlatch::GuardedScript::new(
    ///     "redis.call('rpush', KEYS[2], ARGV[2]) return redis.call('decrby', KEYS[1], ARGV[1])",
    /// );
    /// let guard = client.mutex("stock:42").lock()?;
    /// let keys = ["{stock:42}:left", "{stock:42}:buyers"];
    /// let left: i64 = guard.invoke(&take, &keys, (5, "Ann"))?;
    /// # let _ = left;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// `keys` and `args` may be single values, slices, arrays by reference, or tuples; for none, pass `None::<&str>`. Pass every key that
    /// the script uses in `keys`: only these are checked before the script is sent.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query). If the script fails midway, what it did before stays done.
    /// [`may_have_run`](crate::Error::may_have_run) is still false, since Redis replied with the script's error.
    pub fn invoke<T: FromRedisValue>(
        &self,
        script: &GuardedScript,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> Result<T> {
        self.held.run(&script.work(keys, args))
    }
}
