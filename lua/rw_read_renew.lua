-- rw_read_renew: make one owner's read hold live longer; never create one.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  hold      string that lives as long as this hold: "{lock}:<owner>:rwlock_timeout:1"
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives from now on
--
-- Returns  1         renewed
--          0         the hold is no more; nobody has the lock, or others read
--          -1        the hold is no more; somebody writes
--
-- Keeps    every other hold, dead ones too; a longer remaining TTL as it is; nothing of a hold that lost its half;
--          a hash that is not a read-write lock, and a hold of another type, answered with a WRONGTYPE error;
--          run twice it changes nothing more
local lock, hold = KEYS[1], KEYS[2]
local owner, lease_ms = ARGV[1], ARGV[2]

-- First, because these two refuse keys of another type.
local mode = redis.call('hget', lock, 'mode')
local lives = redis.call('get', hold)
if mode ~= 'read' and mode ~= 'write' and redis.call('exists', lock) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end

local held = mode and redis.call('hexists', lock, owner) == 1
if not held or not lives then
  redis.call('del', hold)
  if held then
    redis.call('hdel', lock, owner)
    if mode == 'read' and redis.call('hlen', lock) == 1 then
      redis.call('del', lock)
    end
  end
  return mode == 'write' and -1 or 0
end

local left_ms = redis.call('pttl', hold)
if left_ms < tonumber(lease_ms) then
  redis.call('pexpire', hold, lease_ms)
end
-- Redisson's renewal shortens the hash to its own lease, whatever others have.
local longer_ms = math.max(left_ms, tonumber(lease_ms))
if redis.call('pttl', lock) < longer_ms then
  redis.call('pexpire', lock, string.format('%.0f', longer_ms))
end
return 1
