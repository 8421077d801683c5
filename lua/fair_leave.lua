-- fair_leave: give up a place in the queue, and hand on the wake-up that may have come to it.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  ticket    the waiter's name in the queue
--
-- Returns  1         it stood in the queue
--          0         it did not
--
-- Keeps    the lock; others' places; run twice, the second run finds nothing of this ticket
local lock, queue, timeouts, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ticket = ARGV[1]

-- First, because it refuses a key of another type.
redis.call('llen', queue)

local left = redis.call('zrem', timeouts, ticket)
-- In different numbers where one of the two keys was evicted or deleted: Redisson never purges a place without a timeout.
if left == 1 or redis.call('zcard', timeouts) ~= redis.call('llen', queue) then
  left = math.max(left, redis.call('lrem', queue, 1, ticket))
end
if redis.call('exists', lock) == 1 then
  return left
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local head = redis.call('lindex', queue, 0)
local function is_dead(waiter)
  return waiter and tonumber(redis.call('zscore', timeouts, waiter) or 0) <= now
end
if is_dead(head) then
  local latest = redis.call('zrange', timeouts, -1, -1, 'withscores')
  local lives = tonumber(latest[2] or 0) > now
  -- Where several wait and none showed a sign of life, all may have been stopped: fair_acquire gives them time.
  -- Otherwise not all at once: there may be thousands.
  local to_purge = (lives or redis.call('llen', queue) == 1) and 500 or 0
  while to_purge > 0 and is_dead(head) do
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, head)
    head = redis.call('lindex', queue, 0)
    to_purge = to_purge - 1
  end
  -- Whoever asks purges the others, and only who lives asks.
  if lives and is_dead(head) then
    head = latest[1]
  end
end
if head then
  redis.pcall('publish', channel .. ':' .. head, '0')
end
return left
