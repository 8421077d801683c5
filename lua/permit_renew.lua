-- permit_renew: make one permit live longer; never create one.
--
-- KEYS[1]  timeouts  sorted set: id -> epoch ms from which its permit is over; 922337203685477: never
-- ARGV[1]  id        16 bytes
-- ARGV[2]  lease_ms  integer > 0; how long it lives from now on
--
-- Returns  1         renewed
--          0         it is not out any more
--
-- Keeps    a later end as it is; a permit that is over, for others to give back; every other permit;
--          run twice it changes nothing more
local timeouts = KEYS[1]
local id, lease_ms = ARGV[1], ARGV[2]

local over_at = tonumber(redis.call('zscore', timeouts, id) or 0)
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if over_at <= now then
  return 0
end
if over_at < now + lease_ms then
  -- No id is empty: a write that needs no memory, after which none is refused for want of some.
  redis.call('zrem', timeouts, '')
  redis.call('zadd', timeouts, 'xx', string.format('%.0f', now + lease_ms), id)
end
return 1
