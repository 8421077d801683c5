//! The lock with fencing tokens.

use std::time::Duration;

use redis::Value;

use crate::error::{Error, Result};
use crate::protocol::fenced;
use crate::protocol::script::{self, Unexpected};
use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Fenced, Owned, Scope};

/// A reentrant lock with a fencing token, a number that is greater each time a thread acquires the lock: Redisson's
/// `RFencedLock`.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.fenced_lock("ledger").lock()?;
/// println!("our token is {}", guard.token());
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// No lock with a lease can keep a stopped process from writing when it continues
/// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>). The resource can: it remembers the
/// highest token it has seen and rejects lower ones. [`FencedLockGuard::token`] shows how the holder sends its token and how
/// the resource checks it. [`Handle`] lists the other methods.
///
/// **Tokens.** A thread that acquires the lock gets a token greater than those of all earlier holders, apart from the
/// cases below. This is so even if an earlier hold expired, threads passed the lock among themselves, or Redis was
/// restarted. A thread that locks again what it holds keeps its token. Tokens skip numbers: the next token is the counter
/// plus one, or the server's time in microseconds if that is greater. So, with the exceptions below, tokens keep growing
/// even if the counter was evicted, flushed, or restored from an older copy.
///
/// **Exceptions.** If the counter is lost, or falls back to an older value as on a promoted replica, tokens go on from the
/// server's clock. If that clock was set back as well, for example by a failover to another machine, tokens can repeat or
/// fall. Even if the clock was not set back, they can do so for a millisecond: a process may draw tokens for its waiting
/// threads up to a millisecond ahead of the clock, and a lost counter no longer knows them.
///
/// **Unnoticed loss.** If a process has lost the lock and has not noticed yet, its threads may still pass the lock among
/// themselves. The tokens of these threads are lower than the new holder's, so the resource rejects them once it has seen
/// that one.
///
/// **The counter** is Redisson's: a string without a time to live, one for each name that was ever locked. For a lock
/// `stock` it is at `redisson_lock_token:{stock}`. [`token_ttl`](FencedLock::token_ttl) lets it expire.
///
/// **Beside Redisson.** A Redisson multi-lock with a lease applies that lease to the counters of its fenced locks
/// too. If the counter expires before the next token is drawn, the next Redisson holder starts at 1 again. The
/// resource then rejects that holder and still accepts earlier ones. Keep fenced locks out of such multi-locks. Holds
/// of this crate are not affected: they follow the clock, and make the counter permanent again (or give it its
/// [`token_ttl`](FencedLock::token_ttl)).
///
/// Waiting, leases, loss and panics are as with the [`ReentrantLock`](crate::ReentrantLock). Both kinds use the same
/// key, so they exclude each other, but a `ReentrantLock` draws no tokens.
pub type FencedLock = Handle<Fenced>;

/// The [`Guard`] of a [`FencedLock`]: one hold with its [`token`](FencedLockGuard::token), released when dropped,
/// that stays on its thread.
pub type FencedLockGuard = Guard<Fenced>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`FencedLock`]: one hold with its [`token`](FencedLockGuard::token),
/// released when dropped, that may move to other threads.
pub type OwnedFencedLockGuard = Guard<Fenced, Owned>;

impl Handle<Fenced> {
    /// Returns a handle that lets the token counter expire `ttl` after the lock was last acquired through it.
    ///
    /// Without a counter, the next token is the server's time in microseconds. So tokens keep growing, with the exceptions
    /// that [`FencedLock`] lists. Use this only for names that no Redisson client locks: a Redisson client that finds no
    /// counter starts at 1. From 10 ms to 100 years; zero keeps the counter forever, which is the default. For any other
    /// value the methods that lock return [`Error::InvalidSetting`].
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let a_day = std::time::Duration::from_secs(24 * 3600);
    /// let guard = client.fenced_lock("import:7").token_ttl(a_day).lock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    #[must_use]
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.target.token_ttl = ttl;
        self
    }

    /// Returns the last token that any process has drawn, without holding the lock; `None` if there is no counter.
    ///
    /// Blocks for one round trip, at most for the command timeout. A process draws tokens for its waiting threads in
    /// advance, so the token of the present holder may be lower.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// println!("the last token is {:?}", client.fenced_lock("ledger").last_token()?);
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Redis`], [`Error::Closed`], [`Error::InvalidName`], and [`Error::WrongType`] if the key of the counter
    /// holds something else.
    ///
    /// Redisson's counterpart: `getToken`, which returns 0 without a counter.
    pub fn last_token(&self) -> Result<Option<u64>> {
        let spec = &self.target;
        // `None`: the key holds a string that is no token. `Some(None)`: there is no counter.
        let read = |reply| match script::last_token(reply) {
            Err(Unexpected(Value::BulkString(_))) => Ok(None),
            token => token.map(Some),
        };
        let token = spec.ask(fenced::last_token(&spec.look()?.protocol), read)?;
        token.ok_or_else(|| Error::WrongType {
            name: self.name().to_owned(),
            found: Some("the key of its tokens holds a string that is no token".into()),
        })
    }
}

impl<S: Scope> Guard<Fenced, S> {
    /// Returns the fencing token of this hold: greater than that of every earlier hold of the name, with the exceptions that
    /// [`FencedLock`] lists. Holds of a thread that locks again have the same token. No I/O.
    ///
    /// Send the token with each write, and let the resource reject tokens lower than the highest it has seen. In
    /// Redis:
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let mut con = redis::Client::open("redis://127.0.0.1/")?.get_connection()?;
    ///
    /// // The account remembers the highest token and rejects lower ones. Tokens are compared as text
    /// // of equal length, since numbers in Lua are exact to 2^53 only.
    /// let write = redis::Script::new(
    ///     "local seen = redis.call('hget', KEYS[1], 'token') or ''
    ///      local token = string.rep('0', 20 - #ARGV[1]) .. ARGV[1]
    ///      if token < seen then return 0 end
    ///      redis.call('hset', KEYS[1], 'token', token, 'balance', ARGV[2])
    ///      return 1",
    /// );
    /// let guard = client.fenced_lock("account:7").lock()?;
    /// let written: bool = write.key("account:7:data").arg(guard.token()).arg(100).invoke(&mut con)?;
    /// assert!(written, "a later holder has already written");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// In SQL, a token fits a `BIGINT NOT NULL DEFAULT 0`. An `UPDATE` that matches no row was rejected. Execute this
    /// `UPDATE` first in its transaction, and roll the transaction back if it was rejected ([complete
    /// example](crate::guide::recipes#a-database-that-rejects-late-writers)):
    ///
    /// ```sql
    /// UPDATE account SET balance = :balance, token = :token WHERE id = 7 AND token <= :token;
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token()
    }
}
