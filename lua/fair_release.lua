-- fair_release: end one owner's hold, whatever its count, and notify the next waiter.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  owner     "<client uuid>:<number>"
--
-- Returns  n >= 0    released; n processes heard of it, 0 if nobody waits
--          -1        nobody holds the lock any more
--          -2        somebody else holds it
--
-- Keeps    other owners' fields; live waiters' places; the next waiter is notified whenever the lock is seen free;
--          run twice, the second run finds nothing of this owner and removes nothing
local lock, queue, timeouts, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner = ARGV[1]

-- First, because they refuse keys of another type.
local head = redis.call('lindex', queue, 0)
redis.call('zcard', timeouts)

local released = redis.call('hdel', lock, owner) == 1
if redis.call('exists', lock) == 1 then
  return released and 0 or -2
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
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
-- A user without rights on the channel still releases; waiters then poll.
local heard = head and redis.pcall('publish', channel .. ':' .. head, '0')
if not released then
  return -1
end
return type(heard) == 'number' and heard or 0
