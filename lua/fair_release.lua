-- fair_release: end one owner's hold, whatever its count, and notify the next waiter.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  grace_ms  integer; how long at most a place lives on whose waiter does not listen: see prelude
-- ARGV[3…n] served   tickets that need their places no longer: their process has had the lock, and served them itself
--
-- Returns  n >= 0    released; n processes were notified, 0 if nobody waits or listens
--          -1        nobody holds the lock any more
--          -2        somebody else holds it
--
-- Keeps    other owners' fields; places of waiters that live or that come within the grace; the next waiter is notified
--          whenever the lock is seen free; run twice, the second run finds nothing of this owner and removes nothing
local owner, grace_ms = ARGV[1], tonumber(ARGV[2])

-- First, because they refuse keys of another type.
local head = redis.call('lindex', KEYS[2], 0)
redis.call('zcard', KEYS[3])
if #ARGV > 2 then
  remove_places(unpack(ARGV, 3))
  head = redis.call('lindex', KEYS[2], 0)
end

local released = redis.call('hdel', KEYS[1], owner) == 1
if redis.call('exists', KEYS[1]) == 1 then
  return released and 0 or -2
end
local notified = notify_first(head, grace_ms)
return released and notified or -1
