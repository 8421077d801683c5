//! The scripts of the read-write lock, and the keys they use.

use crate::support::lua;

pub(crate) const READ_ACQUIRE: &str = lua::RW_READ_ACQUIRE;

pub(crate) const READ_RELEASE: &str = lua::RW_READ_RELEASE;

pub(crate) const READ_RENEW: &str = lua::RW_READ_RENEW;

pub(crate) const WRITE_ACQUIRE: &str = lua::RW_WRITE_ACQUIRE;

pub(crate) const WRITE_RELEASE: &str = lua::RW_WRITE_RELEASE;

pub(crate) const FORCE: &str = lua::RW_FORCE;

pub(crate) const STATE: &str = lua::RW_STATE;

/// Lets time pass for every key, by shortening its TTL.
pub(crate) const PASS: &str = "
for _, key in ipairs(redis.call('keys', '*')) do
  local left_ms = redis.call('pttl', key)
  if left_ms >= 0 and left_ms <= tonumber(ARGV[1]) then
    redis.call('del', key)
  elseif left_ms >= 0 then
    redis.call('pexpire', key, string.format('%.0f', left_ms - ARGV[1]))
  end
end";

/// The prefix of a lock's hold keys, which the owner follows.
pub(crate) fn prefix(name: &str) -> String {
    if name.contains('{') {
        format!("{name}:")
    } else {
        format!("{{{name}}}:")
    }
}

pub(crate) fn channel(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_rwlock:{name}")
    } else {
        format!("redisson_rwlock:{{{name}}}")
    }
}

/// The key that notes a waiter of this side, `reader` or `writer`.
pub(crate) fn note(name: &str, side: &str) -> String {
    format!("{}:{side}", channel(name))
}

pub(crate) fn hold(name: &str, owner: &str, n: u32) -> String {
    format!("{}{owner}:rwlock_timeout:{n}", prefix(name))
}
