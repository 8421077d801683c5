-- red_renew: make one node's part of a lock that a majority of nodes makes live longer, or take it again.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- ARGV[1]  owner     "<client uuid>:<number>"; it holds the lock on a majority of the nodes
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives from now on
-- ARGV[3]  count     integer > 0; the hold count its owner knows
--
-- Returns  1         renewed
--          2         nobody held the lock here, and now this owner does
--          -1        somebody else holds it
--
-- Keeps    a longer remaining TTL as it is; the old count, if there is no memory for a new one; the hash never
--          exists without a TTL; run twice it changes nothing more
local lock = KEYS[1]
local owner, lease_ms, count = ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('hget', lock, owner)
if not known then
  if redis.call('exists', lock) == 1 then
    return -1
  end
  redis.call('hset', lock, owner, count)
  local kept = redis.pcall('pexpire', lock, lease_ms)
  if type(kept) == 'table' then
    redis.call('hdel', lock, owner)
    return kept
  end
  return 2
end
local left_ms = redis.call('pttl', lock)
if left_ms < tonumber(lease_ms) then
  redis.call('pexpire', lock, lease_ms)
end
if known ~= count then
  -- Last, and not insisted on: without memory for it the hold lives on all the same.
  redis.pcall('hset', lock, owner, count)
end
return 1
