-- lock_force: take the lock away from whoever holds it, and notify those who wait.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  request   string: what came of this request
-- KEYS[3]  channel   where waiters of this lock listen; left out for a spin lock, which notifies nobody
-- ARGV[1]  keep_ms   integer > 0; how long it is known what came of this request
--
-- Returns  1         it was held and is free now
--          0         nobody held it
--
-- Keeps    a key that holds no such lock: the answer is a WRONGTYPE error;
--          run twice, the second run answers as the first and changes nothing
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
-- Also if nobody held it: a copy that comes late is not to take it from whoever holds it by then. After a write that
-- needs no memory none is refused for want of some.
redis.pcall('set', KEYS[2], forced, 'px', keep_ms)
if forced == 1 and KEYS[3] then
  redis.pcall('publish', KEYS[3], '0')
end
return forced
