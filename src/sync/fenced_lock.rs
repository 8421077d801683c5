//! The lock with fencing tokens.

use std::time::Duration;

use crate::sync::guard::Guard;
use crate::sync::handle::Handle;
use crate::sync::kind::{Fenced, Owned, Scope};

/// A reentrant lock whose holds have rising numbers, so that a resource can refuse a holder that has been
/// overtaken: Redisson's `RFencedLock`.
///
/// No lock with a lease can keep a stopped process from writing when it continues
/// (<https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>). The resource can: it remembers
/// the highest token it has seen, and refuses lower ones. [`FencedLockGuard::token`] shows both sides.
///
/// ```no_run
/// let client = redlatch::Client::open("redis://127.0.0.1/")?;
/// let guard = client.fenced_lock("ledger").lock()?;
/// println!("we are number {}", guard.token());
/// # Ok::<(), redlatch::Error>(())
/// ```
///
/// **Tokens.** Every outermost hold has a greater token than all holds of the name before it, also if that one
/// expired, if the lock was handed over between threads, or if Redis was restarted. Locking again in the same
/// thread draws no other. Numbers are skipped. The next token is one more than the counter, or the server's time in
/// microseconds if that is more. So tokens keep rising even if the counter was evicted, flushed, or restored from
/// an older copy, unless the clock went back as well, as it may with a failover to another machine, or the lock is
/// taken again in the same millisecond: while threads of a process wait for the lock, tokens are up to a
/// millisecond ahead of the clock.
///
/// If the lock was taken away from a process, threads of it that still hand it over among themselves, before they
/// have heard of it, have tokens below those of the new holder, and are refused.
///
/// **The counter** is Redisson's: a string at `redisson_lock_token:{name}` without a time to live, one for each
/// name that was ever locked. [`token_ttl`](FencedLock::token_ttl) lets it expire.
///
/// **Beside Redisson.** A Redisson multi-lock with a lease gives that lease to the counters of its fenced locks
/// too. If nobody else draws a token before it is over, the next Redisson holder starts at 1 again: a resource that
/// checks refuses it, and would not refuse those who held the lock before. Keep fenced locks out of such
/// multi-locks. Holds taken here are not affected: they go by the clock, and make the counter permanent again.
///
/// Waiting, leases, loss and panics are those of the [`ReentrantLock`](crate::ReentrantLock). Both use the same
/// key, so they exclude each other, but that one draws no tokens.
pub type FencedLock = Handle<Fenced>;

/// The [`Guard`] of a [`FencedLock`]: a hold, released when dropped, that stays on its thread.
pub type FencedLockGuard = Guard<Fenced>;

/// The [`OwnedGuard`](crate::OwnedGuard) of a [`FencedLock`]: a hold, released when dropped, that may move to other threads.
pub type OwnedFencedLockGuard = Guard<Fenced, Owned>;

impl Handle<Fenced> {
    /// Returns a handle that lets the token counter expire `ttl` after the lock was last taken through it.
    ///
    /// Tokens keep rising, by the server's clock. Only for names that no Redisson client locks: one that finds no
    /// counter starts at 1. From 10 ms to 100 years, like a lease; zero keeps the counter forever, which is the
    /// default. For anything else the methods that lock return [`Error::Config`](crate::Error::Config).
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
}

impl<S: Scope> Guard<Fenced, S> {
    /// Returns the number of this hold: greater than that of every hold of the name before it. No I/O.
    ///
    /// The resource that the lock protects compares it. A Redis that does:
    ///
    /// ```no_run
    /// let client = redlatch::Client::open("redis://127.0.0.1/")?;
    /// let mut con = redis::Client::open("redis://127.0.0.1/")?.get_connection()?;
    ///
    /// // The account remembers the greatest token it has seen, and refuses what is older. Compared as text of equal
    /// // length, since numbers in Lua are exact to 2^53 only.
    /// let write = redis::Script::new(
    ///     "local seen = redis.call('hget', KEYS[1], 'token') or ''
    ///      local token = string.rep('0', 20 - #ARGV[1]) .. ARGV[1]
    ///      if token < seen then return 0 end
    ///      redis.call('hset', KEYS[1], 'token', token, 'balance', ARGV[2])
    ///      return 1",
    /// );
    /// let guard = client.fenced_lock("account:7").lock()?;
    /// let written: bool = write.key("account:7:data").arg(guard.token()).arg(100).invoke(&mut con)?;
    /// assert!(written, "somebody has had the lock since, and has written");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// In SQL a token fits a `BIGINT NOT NULL DEFAULT 0`, and an `UPDATE` that matched no row was refused. This `UPDATE`
    /// comes first in its transaction, whose others are rolled back with it
    /// ([all of it](crate::guide::recipes)):
    ///
    /// ```sql
    /// UPDATE account SET balance = :balance, token = :token WHERE id = 7 AND token <= :token;
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token()
    }
}
