-- lock_force: take the lock away from its owner, and notify those who wait.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  request   string: the result of this request
-- KEYS[3]  channel   where waiters of this lock listen; left out for a spin lock, which notifies nobody
-- ARGV[1]  keep_ms   integer > 0; how long the result is remembered
--
-- Returns  1         the lock was held and is free now
--          0         nobody held the lock
--
-- Keeps    a key that holds no such lock
-- Twice    the second run answers as the first and changes nothing
-- Errors   WRONGTYPE for such a key
local keep_ms = ARGV[1]

local before = redis.call('get', KEYS[2])
if before then
  return tonumber(before)
end
local wrong = no_lock('lock', nil, true)
if wrong then
  return wrong
end
local forced = redis.call('del', KEYS[1])
-- The result is remembered even if nobody held the lock: a late copy of this request must not take it from the next owner.
-- DEL was a first write that needs no memory; after it, Redis does not reject SET for lack of memory.
redis.pcall('set', KEYS[2], forced, 'px', keep_ms)
if forced == 1 and KEYS[3] then
  redis.pcall('publish', KEYS[3], '0')
end
return forced
