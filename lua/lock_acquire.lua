-- lock_acquire: take the lock for one owner.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- ARGV[1]  owner     "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives unless renewed
--
-- Returns  nil       taken, with a count of one
--          n >= -1   somebody else has it; n ms until that lease runs out, -1 if it never does
--
-- Keeps    at most one owner in the hash; the hash never exists without a TTL: a lock that cannot be given one is not taken
-- Twice    by one owner: as if only the second had run
-- Errors   WRONGTYPE for a hash that is no such lock
local owner, lease_ms = ARGV[1], ARGV[2]

local left_ms = redis.call('pttl', KEYS[1])
-- HEXISTS fails for a key of another type. The owner's own hold is no obstacle, since the script may run twice.
if left_ms ~= -2 and redis.call('hexists', KEYS[1], owner) == 0 then
  return no_lock('lock') or left_ms
end
redis.call('hset', KEYS[1], owner, 1)
-- Without a TTL the lock would never be free again, so a hold that gets none is removed.
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('hdel', KEYS[1], owner)
  return kept
end
return nil
