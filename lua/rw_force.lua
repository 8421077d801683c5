-- rw_force: take the lock away from whoever holds it, readers and writer alike, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
--
-- Returns  1         it was held and is free now
--          0         nobody held it
--
-- Keeps    a hash that is not a read-write lock: it has no mode of one, or a field that does not start like an
--          owner, "<uuid>:", and the answer is a WRONGTYPE error; the holds' own keys, which mean nothing without
--          the hash and run out by themselves

local mode = redis.call('hget', KEYS[1], 'mode')
if redis.call('exists', KEYS[1]) == 0 then
  return 0
end
local ours = mode == 'read' or mode == 'write'
-- Of a large hash looking at some fields is enough.
local fields = redis.call('hscan', KEYS[1], '0', 'count', 128)[2]
for i = 1, #fields, 2 do
  ours = ours and (fields[i] == 'mode' or string.find(fields[i], '^%x+%-%x+%-%x+%-%x+%-%x+:'))
end
if not ours then
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end
redis.call('del', KEYS[1])
redis.pcall('publish', KEYS[2], mode == 'write' and '1' or '0')
return 1
