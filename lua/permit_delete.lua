-- permit_delete: delete the number of permits, and the permits that are acquired.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string: the result of this request
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    keep_ms   integer > 0; how long `request` is kept
--
-- Returns    1         deleted, now or when this request ran first
--            0          neither existed
--
-- Keeps      waiters asleep, since no permits are available
-- Twice      the second run changes nothing
-- Errors     WRONGTYPE for a key of another type
local keep_ms = ARGV[1]

local before = redis.call('get', KEYS[4])
if before then
  return tonumber(before)
end
local wrong = look()
if wrong then
  return wrong
end
local deleted = math.min(redis.call('del', KEYS[1], KEYS[2]), 1)
-- The result is remembered even if there was nothing: a late copy of this request must not delete the next semaphore.
redis.call('set', KEYS[4], deleted, 'px', keep_ms)
if #KEYS > 4 then
  redis.call('del', unpack(KEYS, 5))
end
return deleted
