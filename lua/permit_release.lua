-- permit_release: return permits of one process, and notify those who wait.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  ids       of each permit 16 bytes, one after another
--
-- Returns  n >= 0    returned, some of them at least; n processes were listening
--          -1        none of them was still taken
--
-- Keeps    available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--          returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--          keys of another type, answered with a WRONGTYPE error;
--          run twice, the second run finds none of them
local permits, timeouts, channel = KEYS[1], KEYS[2], KEYS[3]
local ids = ARGV[1]

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
end
local released = 0
for at = 1, #ids, 16 do
  local id = string.sub(ids, at, at + 15)
  -- One that has expired is not ours to return, even if nobody has done it yet.
  if over == back or tonumber(redis.call('zscore', timeouts, id) or 0) > tonumber(now) then
    released = released + redis.call('zrem', timeouts, id)
  end
end
local heard
if available and back + released > 0 then
  available = redis.call('incrby', permits, back + released)
  -- A user without rights on the channel still releases; waiters then poll.
  if available > 0 then
    heard = redis.pcall('publish', channel, string.format('%.0f', math.min(available, 2147483647)))
  end
end
if released == 0 then
  return -1
end
return type(heard) == 'number' and heard or 0
