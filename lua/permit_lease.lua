-- permit_lease: how long one permit lives if nobody renews it.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  id        16 bytes
--
-- Returns  n > 0     n ms
--          -1        for ever
--          -2        it is no longer taken
--
-- Keeps    available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--          returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--          keys of another type, answered with a WRONGTYPE error;
--          run twice it answers for the second time
local permits, timeouts, channel = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

-- First, because they refuse keys of another type.
local available = redis.call('get', permits)
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local over = redis.call('zcount', timeouts, 0, now)
if available and available ~= '0' and (#available > 15 or not string.match(available, '^-?[1-9]%d*$')) then
  return redis.error_reply('WRONGTYPE the key holds a string that is no number of permits')
end
-- Not all at once: there may be a million.
local back = math.min(over, 1000)
if back > 0 then
  local first = redis.call('zcount', timeouts, '-inf', '(0')
  redis.call('zremrangebyrank', timeouts, first, first + back - 1)
  if available then
    available = redis.call('incrby', permits, back)
    if available > 0 then
      redis.pcall('publish', channel, string.format('%.0f', math.min(available, 2147483647)))
    end
  end
end

local over_at = tonumber(redis.call('zscore', timeouts, id) or 0)
if over_at >= 922337203685477 then
  return -1
end
return over_at > tonumber(now) and over_at - now or -2
