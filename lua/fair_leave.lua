-- fair_leave: give up a place in the queue, and hand on the wake-up that may have come to it.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  ticket    the waiter's name in the queue
-- ARGV[2]  grace_ms  integer; how long at most a place lives on whose waiter does not listen: see prelude
--
-- Returns  1         it was in the queue
--          0         it did not
--
-- Keeps    the lock; others' places; run twice, the second run finds nothing of this ticket
local ticket, grace_ms = ARGV[1], tonumber(ARGV[2])

-- First, because it refuses a key of another type.
redis.call('llen', KEYS[2])

local left = redis.call('zrem', KEYS[3], ticket)
-- In different numbers where one of the two keys was evicted or deleted: Redisson never purges a place without a timeout.
if left == 1 or redis.call('zcard', KEYS[3]) ~= redis.call('llen', KEYS[2]) then
  left = math.max(left, redis.call('lrem', KEYS[2], 1, ticket))
end
if redis.call('exists', KEYS[1]) == 1 then
  return left
end
notify_first(redis.call('lindex', KEYS[2], 0), grace_ms, true)
return left
