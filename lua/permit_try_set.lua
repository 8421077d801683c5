-- permit_try_set: set how many permits there are, if nobody has yet.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- KEYS[4]  request   string that remembers the answer
-- ARGV[1]  total     integer >= 0; how many there are, including those that are taken
-- ARGV[2]  keep_ms   integer > 0; for how long it is remembered
--
-- Returns  1         done
--          0         it was set before; nothing was changed
--
-- Keeps    permits that are taken although the string is gone, as a part of the total; keys of another type, answered
--          with a WRONGTYPE error; run twice, the second run gives the first answer and changes nothing
local permits, timeouts, channel, request = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local total, keep_ms = ARGV[1], ARGV[2]

local answered = redis.call('get', request)
if answered then
  return tonumber(answered)
end
-- First, because they refuse keys of another type.
local available = redis.call('get', permits)
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local over = redis.call('zcount', timeouts, 0, now)
if available and available ~= '0' and (#available > 15 or not string.match(available, '^-?[1-9]%d*$')) then
  return redis.error_reply('WRONGTYPE the key holds a string that is no number of permits')
end

if available then
  -- Or a second run, when the string is gone, would give another answer and set it.
  redis.call('set', request, 0, 'px', keep_ms)
  return 0
end
-- Not all at once: there may be a million.
local back = math.min(over, 1000)
-- Those that have expired and are left for later are added when they are returned.
local left = total - redis.call('zcount', timeouts, 0, '+inf') + back
redis.call('set', permits, string.format('%.0f', left))
redis.call('set', request, 1, 'px', keep_ms)
if back > 0 then
  local first = redis.call('zcount', timeouts, '-inf', '(0')
  redis.call('zremrangebyrank', timeouts, first, first + back - 1)
end
if left > 0 then
  redis.pcall('publish', channel, string.format('%.0f', left))
end
return 1
