-- rw_force: take the lock away from whoever holds it, readers and writer alike, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  request   string: what came of this request
-- ARGV[1]  keep_ms   integer > 0; how long it is known what came of this request
--
-- Returns  1         it was held and is free now
--          0         nobody held it
--
-- Keeps    a key that holds no such lock: the answer is a WRONGTYPE error; the holds' own keys, which mean nothing
--          without the hash and run out by themselves;
--          run twice, the second run answers as the first and changes nothing
local keep_ms = ARGV[1]

local before = redis.call('get', KEYS[3])
if before then
  return tonumber(before)
end
local mode = redis.call('hget', KEYS[1], 'mode')
local wrong = no_lock('read-write lock', mode, true)
if wrong then
  return wrong
end
local forced = redis.call('del', KEYS[1])
-- Also if nobody held it: a copy that comes late is not to take it from whoever holds it by then. After a write that
-- needs no memory none is refused for want of some.
redis.pcall('set', KEYS[3], forced, 'px', keep_ms)
if forced == 1 then
  redis.pcall('publish', KEYS[2], mode == 'write' and '1' or '0')
end
return forced
