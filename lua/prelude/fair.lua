-- fair: who of the queue is next. In front of each script of the fair lock.
--
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead

-- How many of the dead one call removes: there may be thousands.
local MOST = 500

local function now_ms()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- One without a timeout is dead: nothing else would ever end it.
local function dies_at(waiter)
  return tonumber(redis.call('zscore', KEYS[3], waiter) or 0)
end

-- Removes the head, and returns the next.
local function remove(head)
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], head)
  return redis.call('lindex', KEYS[2], 0)
end

-- Whom to notify that the lock is free: the head, unless it is dead. Removes the dead in front.
local function first_living(head)
  local now = now_ms()
  local function is_dead(waiter)
    return waiter and dies_at(waiter) <= now
  end
  if is_dead(head) then
    local latest = redis.call('zrange', KEYS[3], -1, -1, 'withscores')
    local lives = tonumber(latest[2] or 0) > now
    -- Where several wait and none showed a sign of life, all may have been stopped: fair_acquire gives them time.
    local to_purge = (lives or redis.call('llen', KEYS[2]) == 1) and MOST or 0
    while to_purge > 0 and is_dead(head) do
      head = remove(head)
      to_purge = to_purge - 1
    end
    -- Whoever asks purges the others, and only who lives asks.
    if lives and is_dead(head) then
      head = latest[1]
    end
  end
  return head
end

