//! The scripts of the read-write lock, and the keys they use.

pub(crate) const READ_ACQUIRE: &str = include_str!("../../../lua/rw_read_acquire.lua");

pub(crate) const READ_RELEASE: &str = include_str!("../../../lua/rw_read_release.lua");

pub(crate) const READ_RENEW: &str = include_str!("../../../lua/rw_read_renew.lua");

pub(crate) const WRITE_ACQUIRE: &str = include_str!("../../../lua/rw_write_acquire.lua");

pub(crate) const WRITE_RELEASE: &str = include_str!("../../../lua/rw_write_release.lua");

pub(crate) const FORCE: &str = include_str!("../../../lua/rw_force.lua");

pub(crate) const STATE: &str = include_str!("../../../lua/rw_state.lua");

/// Lets time go by for every key.
pub(crate) const PASS: &str = "
for _, key in ipairs(redis.call('keys', '*')) do
  local left_ms = redis.call('pttl', key)
  if left_ms >= 0 and left_ms <= tonumber(ARGV[1]) then
    redis.call('del', key)
  elseif left_ms >= 0 then
    redis.call('pexpire', key, string.format('%.0f', left_ms - ARGV[1]))
  end
end";

/// What the hold keys of a lock have before the owner.
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

pub(crate) fn writers(name: &str) -> String {
    format!("{}:writers", channel(name))
}

pub(crate) fn hold(name: &str, owner: &str, n: u32) -> String {
    format!("{}{owner}:rwlock_timeout:{n}", prefix(name))
}
