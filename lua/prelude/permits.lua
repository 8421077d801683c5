-- permits: how many permits there are, and the return of expired ones. Precedes every script whose name begins with permit_,
-- except permit_renew.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen

-- Returns an error for a key of another type. Otherwise nil, and: how many permits are available (false without the number);
-- the time in epoch ms; how many permits have expired (`over`); how many of these this run puts back (`back`). A million may
-- have expired, so one run puts back at most 1,000.
local function look()
  local available = redis.call('get', KEYS[1])
  local time = redis.call('time')
  local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  local soonest = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
  -- Ids have 16 bytes; older versions of Redisson have ids of 32 characters.
  if #soonest > 0 and #soonest[1] ~= 16 and #soonest[1] ~= 32 then
    return redis.error_reply('WRONGTYPE the key of its timeouts holds a sorted set of something else')
  end
  local over = #soonest > 0 and tonumber(soonest[2]) <= tonumber(now) and redis.call('zcount', KEYS[2], 0, now) or 0
  if available and available ~= '0' and (#available > 15 or not string.match(available, '^-?[1-9]%d*$')) then
    return redis.error_reply('WRONGTYPE the key holds a string that is no number of permits')
  end
  return nil, available, now, over, math.min(over, 1000)
end

-- A member with a score below 0 is no permit, in Redisson too, so it is skipped.
local function remove_expired(back)
  if back > 0 then
    local first = redis.call('zcount', KEYS[2], '-inf', '(0')
    redis.call('zremrangebyrank', KEYS[2], first, first + back - 1)
  end
end

-- The message is the available number, capped at the largest `int` of Java. `pcall`: a user without rights on the channel
-- still does all the rest; waiters then poll.
local function notify(available)
  return available > 0 and redis.pcall('publish', KEYS[3], string.format('%.0f', math.min(available, 2147483647)))
end

-- Makes `back` of the expired permits available again; the result is how many are available then. If KEYS[1] was deleted
-- (`available` is false), it is not created again.
local function return_expired(available, back)
  remove_expired(back)
  if back > 0 and available then
    available = redis.call('incrby', KEYS[1], back)
    notify(available)
  end
  return available
end

