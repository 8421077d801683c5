-- rw_state: who has the lock.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
--
-- Returns  0         nobody
--          1         readers
--          2         a writer
--          3         a writer, with read holds below its write hold
--
-- Keeps    everything; a hash that is not a read-write lock is answered with a WRONGTYPE error

local mode = redis.call('hget', KEYS[1], 'mode')
if mode == 'read' then
  return 1
elseif mode == 'write' then
  return redis.call('hlen', KEYS[1]) > 2 and 3 or 2
elseif redis.call('exists', KEYS[1]) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end
return 0
