-- permit_update: let one permit end at another time, sooner or later than it would have; never create one.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  id        16 bytes
-- ARGV[2]  lease_ms  integer > 0; how long it lives from now on
--
-- Returns  1         done
--          0         it is no longer taken
--
-- Keeps    available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--          returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--          keys of another type, answered with a WRONGTYPE error;
--          run twice it is as if only the second had run
local permits, timeouts, channel = KEYS[1], KEYS[2], KEYS[3]
local id, lease_ms = ARGV[1], ARGV[2]

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

if tonumber(redis.call('zscore', timeouts, id) or 0) <= tonumber(now) then
  return 0
end
-- No id is empty: a write that needs no memory, after which none is refused for want of some.
redis.call('zrem', timeouts, '')
redis.call('zadd', timeouts, 'xx', string.format('%.0f', now + lease_ms), id)
return 1
