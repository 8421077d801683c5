-- lock_renew: make one owner's hold live longer; never create one.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives from now on
-- ARGV[3]  count     integer > 0; the hold count its owner knows
--
-- Returns  1         renewed
--          0         nobody holds the lock
--          -1        somebody else holds it
--
-- Keeps    a longer remaining TTL as it is; the old count, if there is no memory for a new one;
--          run twice it changes nothing more
local owner, lease_ms, count = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('hget', KEYS[1], owner)
if not known then
  return redis.call('exists', KEYS[1]) == 1 and -1 or 0
end
local left_ms = redis.call('pttl', KEYS[1])
if left_ms < tonumber(lease_ms) then
  redis.call('pexpire', KEYS[1], lease_ms)
end
if known ~= count then
  -- Last, and not insisted on: without memory for it the hold lives on all the same.
  redis.pcall('hset', KEYS[1], owner, count)
end
return 1
