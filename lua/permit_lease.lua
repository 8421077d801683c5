-- permit_lease: how long one permit lives if nobody renews it.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  id        16 bytes
--
-- Returns  n > 0     n ms
--          -1        without an end
--          -2        the permit is no longer taken
--
-- Keeps    the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait are
--          notified; a deleted KEYS[1] is not created again
-- Twice    the second run replies with what it finds
-- Errors   WRONGTYPE for a key of another type
local id = ARGV[1]

local wrong, available, now, _, back = look()
if wrong then
  return wrong
end
return_expired(available, back)

local over_at = tonumber(redis.call('zscore', KEYS[2], id) or 0)
if over_at >= 922337203685477 then
  return -1
end
return over_at > tonumber(now) and over_at - now or -2
