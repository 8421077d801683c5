-- permit_renew: make one permit live longer; never create one.
--
-- KEYS[1]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- ARGV[1]  id        16 bytes
-- ARGV[2]  lease_ms  integer > 0; how long the permit lives from now on
-- ARGV[3]  ends_at   epoch ms at which it expires, by the last reply of Redis
--
-- Returns  n > 0     the permit lives for at least `lease_ms`; it expires at n, in epoch ms by the server's clock
--          0         the permit is no longer taken
--          n < 0     the permit expires at -n, which is not `ends_at`: nothing was changed
--
-- Keeps    a later end as it is, and an end that was changed since the last reply, so that a late renewal does not undo an
--          update; an expired permit, for others to return; every other permit
-- Twice    the second run changes nothing
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
-- Redis cuts off the fraction of a number that a script returns, so `ends_at` has none.
over_at = math.floor(over_at)
if over_at ~= tonumber(ends_at) then
  return -over_at
end
-- Redis rejects writes for lack of memory only until the script's first write. This ZREM needs none and removes nothing, since
-- no id is empty; after it ZADD succeeds, and no permit is lost because memory is short.
redis.call('zrem', KEYS[1], '')
over_at = now + lease_ms
redis.call('zadd', KEYS[1], 'xx', string.format('%.0f', over_at), id)
return over_at
