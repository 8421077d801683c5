-- red_acquire: take one node's part of a lock that a majority of nodes makes.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- ARGV[1]  owner     "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives unless renewed
-- ARGV[3]  up_s      integer >= 0; a server that has been up for fewer seconds takes no part
--
-- Returns  nil       taken, with a count of one
--          n >= -1   somebody else has it; n ms until their lease runs out, -1 if it never does
--
-- Keeps    at most one owner in the hash; the hash never exists without a TTL: a lock that cannot be
--          given one is not taken; run twice by one owner it is as if only the second had run;
--          a read-write lock, a hash with the field "mode": the answer is a WRONGTYPE error;
--          a server that was restarted too lately: the answer is a RESTARTED error
local lock = KEYS[1]
local owner, lease_ms, up_s = ARGV[1], ARGV[2], ARGV[3]

-- First, because it is the one that refuses a key of another type.
local mine = redis.call('hexists', lock, owner) == 1
if not mine and redis.call('exists', lock) == 1 then
  if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
  return redis.call('pttl', lock)
end
if up_s ~= '0' then
  local up = string.match(redis.call('info', 'server'), 'uptime_in_seconds:(%d+)')
  if tonumber(up) < tonumber(up_s) then
    return redis.error_reply('RESTARTED ' .. up .. ' s ago, and takes no part until it has been up for ' .. up_s .. ' s')
  end
end
redis.call('hset', lock, owner, 1)
local kept = redis.pcall('pexpire', lock, lease_ms)
if type(kept) == 'table' then
  redis.call('hdel', lock, owner)
  return kept
end
return nil
