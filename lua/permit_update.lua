-- permit_update: let one permit end at another time, sooner or later than it would have; never create one.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string: 1 once this request has changed the lease
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    id        16 bytes
-- ARGV[2]    lease_ms  integer > 0; how long the permit lives from now on
-- ARGV[3]    keep_ms   integer > 0; how long the request is remembered
--
-- Returns    1         done
--            0         the permit is no longer taken
--
-- Keeps      the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait
--            are notified; a deleted KEYS[1] is not created again
-- Twice      the second run leaves the end as it is, so that a late copy does not undo a later update; the lease counts from
--            the first run
-- Errors     WRONGTYPE for a key of another type
local id, lease_ms, keep_ms = ARGV[1], ARGV[2], ARGV[3]

if #KEYS > 4 then
  redis.pcall('del', unpack(KEYS, 5))
end
local wrong, available, now, _, back = look()
if wrong then
  return wrong
end
return_expired(available, back)

if tonumber(redis.call('zscore', KEYS[2], id) or 0) <= tonumber(now) then
  -- This result need not be remembered: no permit will ever have this id again.
  return 0
end
if redis.call('get', KEYS[4]) then
  return 1
end
-- Redis rejects writes for lack of memory only until the script's first write. This ZREM needs none and removes nothing, since
-- no id is empty; after it ZADD succeeds.
redis.call('zrem', KEYS[2], '')
redis.call('zadd', KEYS[2], 'xx', string.format('%.0f', now + lease_ms), id)
redis.call('set', KEYS[4], 1, 'px', keep_ms)
return 1
