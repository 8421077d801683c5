-- rw_force: take the lock away from its owners, readers and writer alike, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  request   string: the result of this request
-- ARGV[1]  keep_ms   integer > 0; how long the result is remembered
--
-- Returns  1         the lock was held and is free now
--          0         nobody held the lock
--
-- Keeps    a key that holds no such lock; the keys of the read holds, which mean nothing without the hash and expire by
--          themselves
-- Twice    the second run answers as the first and changes nothing
-- Errors   WRONGTYPE for a key that holds no such lock
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
-- The result is remembered even if nobody held the lock: a late copy of this request must not take it from the next owner.
-- DEL was a first write that needs no memory; after it, Redis does not reject SET for lack of memory.
redis.pcall('set', KEYS[3], forced, 'px', keep_ms)
if forced == 1 then
  redis.pcall('publish', KEYS[2], mode == 'write' and '1' or '0')
end
return forced
