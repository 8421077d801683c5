-- rw_state: who has the lock, or until when.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- ARGV[1]  asked     "who" or "left"
--
-- Returns  0         nobody
--          1         readers
--          2         a writer
--          3         a writer that has read holds as well
--          n         if asked for what is left: as lock_state
--
-- Keeps    everything
-- Errors   WRONGTYPE for a key that holds no such lock
local mode = redis.call('hget', KEYS[1], 'mode')
local wrong = no_lock('read-write lock', mode)
if wrong then
  return wrong
end
if ARGV[1] == 'left' then
  return redis.call('pttl', KEYS[1])
end
if mode == 'write' then
  return redis.call('hlen', KEYS[1]) > 2 and 3 or 2
end
return mode and 1 or 0
