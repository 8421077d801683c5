-- permit_acquire: take permits for a time, all of them or none.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  lease_ms  integer > 0; how long the permits live unless renewed
-- ARGV[2]  ids       of each permit 16 bytes that were never used before, one after another
--
-- Returns  {n}       taken; the permits expire at n, in epoch ms by the server's clock
--          n > 0     too few are available; if nobody renews, there are enough in n ms
--          -1        too few are available, for as long as nobody returns any
--          -2        there is no number of permits: it was never set, or its key is gone
--
-- Keeps    the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait are
--          notified; a deleted KEYS[1] is not created again
-- Twice    the second run takes nothing while at least one permit of the first is still taken
-- Errors   WRONGTYPE for a key of another type
local lease_ms, ids = ARGV[1], ARGV[2]
local wanted = #ids / 16

local wrong, available, now, over, back = look()
if wrong then
  return wrong
end
available = return_expired(available, back)

-- If an earlier run took the permits, the set contains their ids, except those released or expired since. So a single id
-- that is found proves that run.
for at = 1, #ids, 16 do
  local over_at = redis.call('zscore', KEYS[2], string.sub(ids, at, at + 15))
  if over_at then
    return {tonumber(over_at)}
  end
end
if not available then
  return -2
end
available = tonumber(available)
if available < wanted then
  -- This many permits have to expire, besides those that have expired and are not yet returned.
  local more = wanted - available - (over - back)
  -- Enough have expired already; the next requests return them.
  if more <= 0 then
    return 1
  end
  local nth = redis.call('zcount', KEYS[2], '-inf', now) + more - 1
  local last = redis.call('zrange', KEYS[2], nth, nth, 'withscores')
  local over_at = tonumber(last[2] or 922337203685477)
  return over_at < 922337203685477 and math.max(1, over_at - now) or -1
end

local over_at = string.format('%.0f', now + lease_ms)
for from = 1, #ids, 1600 do
  local taken = {}
  for at = from, math.min(from + 1599, #ids), 16 do
    taken[#taken + 1] = over_at
    taken[#taken + 1] = string.sub(ids, at, at + 15)
  end
  redis.call('zadd', KEYS[2], unpack(taken))
end
-- If DECRBY fails, the ids are removed again: permits listed but not subtracted would raise the total when they expire.
local counted = redis.pcall('decrby', KEYS[1], wanted)
if type(counted) == 'table' then
  for at = 1, #ids, 16 do
    redis.call('zrem', KEYS[2], string.sub(ids, at, at + 15))
  end
  return counted
end
-- Both keys expire together: a TTL of the number, if it has one, applies to the timeouts as well.
local left_ms = redis.call('pttl', KEYS[1])
if left_ms > 0 then
  redis.pcall('pexpire', KEYS[2], left_ms)
end
return {tonumber(over_at)}
