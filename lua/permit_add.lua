-- permit_add: add permits, or remove some.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- KEYS[4]  request   string that remembers that this was done
-- ARGV[1]  more      integer; fewer, if negative
-- ARGV[2]  keep_ms   integer > 0; for how long it is remembered
--
-- Returns  1         done
--
-- Keeps    permits that are taken, so that the available number may be negative; the TTL; up to 1,000 permits that have
--          expired are returned, but count for nothing if the string was gone; keys of another type, answered with a
--          WRONGTYPE error;
--          run twice, the second run changes nothing
local permits, timeouts, channel, request = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local more, keep_ms = ARGV[1], ARGV[2]

if redis.call('get', request) then
  return 1
end
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
-- Without a number those that have expired belonged to none, nor do those that are returned later.
local gained = more + back - (available and 0 or over)
local left = redis.call('incrby', permits, string.format('%.0f', gained))
redis.call('set', request, 1, 'px', keep_ms)
if back > 0 then
  local first = redis.call('zcount', timeouts, '-inf', '(0')
  redis.call('zremrangebyrank', timeouts, first, first + back - 1)
end
if gained > 0 and left > 0 then
  redis.pcall('publish', channel, string.format('%.0f', math.min(left, 2147483647)))
end
return 1
