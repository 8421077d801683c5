-- permit_renew: make one permit live longer; never create one.
--
-- KEYS[1]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- ARGV[1]  id        16 bytes
-- ARGV[2]  lease_ms  integer > 0; how long it lives from now on
-- ARGV[3]  ends_at   epoch ms at which it expires, as Redis said last
--
-- Returns  n > 0     it lives for as long; it expires at n, in epoch ms by the server's clock
--          0         it is no longer taken
--          n < 0     it expires at -n and not when it was expected to: nothing was changed
--
-- Keeps    a later end as it is, and one that was changed since: a renewal that comes late does not undo an update; a
--          permit that has expired, for others to return; every other permit; run twice, the second run changes nothing
local id, lease_ms, ends_at = ARGV[1], ARGV[2], ARGV[3]

local over_at = tonumber(redis.call('zscore', KEYS[1], id) or 0)
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if over_at <= now then
  return 0
end
if over_at >= now + lease_ms then
  return math.min(over_at, 922337203685477)
end
-- Without its fraction, like a reply.
over_at = math.floor(over_at)
if over_at ~= tonumber(ends_at) then
  return -over_at
end
-- No id is empty: a write that needs no memory, after which none is refused for want of some.
redis.call('zrem', KEYS[1], '')
over_at = now + lease_ms
redis.call('zadd', KEYS[1], 'xx', string.format('%.0f', over_at), id)
return over_at
