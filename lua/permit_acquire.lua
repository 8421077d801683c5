-- permit_acquire: take permits for a time, all that are wanted or none.
--
-- KEYS[1]  permits   string: how many are to be had
-- KEYS[2]  timeouts  sorted set: id -> epoch ms from which its permit is over; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  lease_ms  integer > 0; how long they live unless renewed
-- ARGV[2]  ids       of each permit 16 bytes that were never used before, one after another
--
-- Returns  nil       taken
--          n > 0     too few are to be had; if nobody renews, there are enough in n ms
--          -1        too few are to be had, for as long as nobody gives any back
--
-- Keeps    available and acquired permits together are as many as before; permits that are over are given back first,
--          all of them, and those who wait are told; keys of another type, answered with a WRONGTYPE error;
--          run twice it is as if only the first had run
local permits, timeouts, channel = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, ids = ARGV[1], ARGV[2]
local wanted = #ids / 16

-- First, because they refuse keys of another type.
local available = redis.call('get', permits)
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local due = redis.call('zcount', timeouts, 0, now)
if available and available ~= '0' and (#available > 15 or not string.match(available, '^-?[1-9]%d*$')) then
  return redis.error_reply('WRONGTYPE the key holds a string that is no number of permits')
end
if due > 0 then
  redis.call('zremrangebyscore', timeouts, 0, now)
  available = redis.call('incrby', permits, due)
  if available > 0 then
    redis.pcall('publish', channel, string.format('%.0f', math.min(available, 2147483647)))
  end
end
available = tonumber(available or 0)

if redis.call('zscore', timeouts, string.sub(ids, 1, 16)) then
  return nil
end
if available < wanted then
  -- That many have to come to their end.
  local nth = wanted - available - 1
  local over = redis.call('zrangebyscore', timeouts, '(' .. now, '(922337203685477', 'withscores', 'limit', nth, 1)
  return over[2] and math.max(1, over[2] - now) or -1
end

local over_at = string.format('%.0f', now + lease_ms)
for at = 1, #ids, 16 do
  redis.call('zadd', timeouts, over_at, string.sub(ids, at, at + 15))
end
local counted = redis.pcall('decrby', permits, wanted)
if type(counted) == 'table' then
  for at = 1, #ids, 16 do
    redis.call('zrem', timeouts, string.sub(ids, at, at + 15))
  end
  return counted
end
-- The two keys go together.
local left_ms = redis.call('pttl', permits)
if left_ms > 0 then
  redis.pcall('pexpire', timeouts, left_ms)
end
return nil
