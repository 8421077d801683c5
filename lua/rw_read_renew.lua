-- rw_read_renew: make one owner's read hold live longer; never create one. If the lock is free because this hold had
-- expired, those who wait are notified.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  hold      string that lives as long as this hold: "{lock}:<owner>:rwlock_timeout:1"; 0 once it is kept (lock_keep)
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives from now on
--
-- Returns  1         renewed
--          n > 1     renewed; the lock would have ended in n ms, before this hold: another client has shortened the lock's TTL
--          0         the hold is kept (lock_keep); or it is lost, and nobody writes
--          -1        the hold is lost; somebody writes
--
-- Keeps    every other hold, dead ones too; a longer remaining TTL as it is; nothing of a hold that has only its field or only
--          its string left
-- Twice    changes nothing more
-- Errors   WRONGTYPE for a hash that is not a read-write lock, and for a hold of another type
local owner, lease_ms = ARGV[1], ARGV[2]

-- These two come first because they fail, before anything is written, if a key holds another type.
local mode = redis.call('hget', KEYS[1], 'mode')
local lives = redis.call('get', KEYS[3])
if mode ~= 'read' and mode ~= 'write' and redis.call('exists', KEYS[1]) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end
if lives == '0' then
  return 0
end

local held = mode and redis.call('hexists', KEYS[1], owner) == 1
if not held or not lives then
  redis.call('del', KEYS[3])
  if held then
    redis.call('hdel', KEYS[1], owner)
    if mode == 'read' and redis.call('hlen', KEYS[1]) == 1 then
      redis.call('del', KEYS[1])
      -- If the user has no rights on the channel, nobody is notified, and waiters poll.
      redis.pcall('publish', KEYS[2], '0')
    end
  end
  return mode == 'write' and -1 or 0
end

-- The lock's TTL is read before the hold's: time passes in between, and in the other order a hold could seem to outlive its
-- lock.
local found_ms = redis.call('pttl', KEYS[1])
local left_ms = redis.call('pttl', KEYS[3])
if left_ms < tonumber(lease_ms) then
  redis.call('pexpire', KEYS[3], lease_ms)
end
-- The hash gets the TTL that this hold needs: Redisson's renewal may have shortened it to Redisson's own lease.
local longer_ms = math.max(left_ms, tonumber(lease_ms))
if found_ms < longer_ms then
  redis.call('pexpire', KEYS[1], string.format('%.0f', longer_ms))
end
-- Every script of ours leaves the lock a TTL as long as each hold's, so a much shorter one was set by another client. A
-- difference below a tenth may be rounding.
if found_ms >= 0 and found_ms < left_ms * 0.9 then
  return math.max(found_ms, 2)
end
return 1
