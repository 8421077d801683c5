-- permit_adopt: give a taken permit another id; never create a permit.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  from      16 bytes; the id so far
-- ARGV[2]  id        16 bytes that were never used before
-- ARGV[3]  lease_ms  integer > 0; how long the permit lives from now on
--
-- Returns  {n}       the permit has the other id, and expires at n, in epoch ms by the server's clock
--          0         the permit is no longer taken
--
-- Keeps    the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait are
--          notified; a deleted KEYS[1] is not created again
-- Twice    the second run never lets the permit end earlier
-- Errors   WRONGTYPE for a key of another type
local from, id, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local wrong, available, now, _, back = look()
if wrong then
  return wrong
end
return_expired(available, back)

-- On a second run the permit has the other id already.
local adopted = redis.call('zscore', KEYS[2], id)
local over_at = adopted or redis.call('zscore', KEYS[2], from)
if tonumber(over_at or 0) <= tonumber(now) then
  return 0
end
-- Redis rejects writes for lack of memory only until the script's first write. This ZREM needs none and removes nothing, since
-- no id is empty; after it ZADD succeeds.
redis.call('zrem', KEYS[2], '')
-- A later end stays: the holder may have given the permit a longer lease since the first run.
local ends = math.max(now + lease_ms, tonumber(adopted or 0))
redis.call('zadd', KEYS[2], string.format('%.0f', ends), id)
redis.call('zrem', KEYS[2], from)
return { ends }
