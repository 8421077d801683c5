-- permit_update: let one permit end at another time, sooner or later than it would have; never create one.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  id        16 bytes
-- ARGV[2]  lease_ms  integer > 0; how long the permit lives from now on
--
-- Returns  1         done
--          0         the permit is no longer taken
--
-- Keeps    the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait are
--          notified; returning permits does not create a deleted string
-- Twice    as if only the second had run
-- Errors   WRONGTYPE for a key of another type
local id, lease_ms = ARGV[1], ARGV[2]

local wrong, available, now, _, back = look()
if wrong then
  return wrong
end
return_expired(available, back)

if tonumber(redis.call('zscore', KEYS[2], id) or 0) <= tonumber(now) then
  return 0
end
-- Redis rejects writes for lack of memory only until the script's first write. This ZREM needs none and removes nothing, since
-- no id is empty; after it ZADD succeeds.
redis.call('zrem', KEYS[2], '')
redis.call('zadd', KEYS[2], 'xx', string.format('%.0f', now + lease_ms), id)
return 1
