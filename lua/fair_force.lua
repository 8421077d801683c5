-- fair_force: take the lock away from whoever holds it, and notify the next waiter.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
--
-- Returns  1         it was held and is free now
--          0         nobody held it
--
-- Keeps    live waiters' places; a hash that is not a lock: its fields do not start like an owner, "<uuid>:",
--          and the answer is a WRONGTYPE error
local lock, queue, timeouts, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- First, because they refuse keys of another type.
local head = redis.call('lindex', queue, 0)
redis.call('zcard', timeouts)

local fields = redis.call('hkeys', lock)
if #fields == 0 then
  return 0
end
for _, field in ipairs(fields) do
  if not string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:') then
    return redis.error_reply('WRONGTYPE the key holds a hash that is not a lock')
  end
end
redis.call('del', lock)
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
if head then
  redis.pcall('publish', channel .. ':' .. head, '0')
end
return 1
