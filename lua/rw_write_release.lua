-- rw_write_release: end one owner's write hold, whatever its count, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  note      string: the noted waiter of this side; given only to undo an acquire. If this field is noted, the note is
--                    removed, and the waiters behind it are notified
-- ARGV[1]  field     "<owner>:write"
--
-- Returns  n >= 0    released; n processes were listening
--          -1        nobody holds the lock any more
--          -2        others hold it, or the key is not a read-write lock
--
-- Keeps    read holds taken below the write hold, and their TTL: the lock is then held for reading, and other readers are
--          notified that they may join
-- Twice    the second run finds nothing of this owner and removes nothing
local field = ARGV[1]

local mode = redis.call('hget', KEYS[1], 'mode')
if KEYS[3] and redis.call('get', KEYS[3]) == field then
  redis.call('del', KEYS[3])
  redis.pcall('publish', KEYS[2], '1')
end
-- Read holds below the write hold keep the lock; without any, it is free.
local released = mode == 'write' and redis.call('hdel', KEYS[1], field) == 1
if released then
  if redis.call('hlen', KEYS[1]) > 1 then
    redis.call('hset', KEYS[1], 'mode', 'read')
  else
    redis.call('del', KEYS[1])
  end
elseif redis.call('exists', KEYS[1]) == 1 then
  return -2
end
-- A user without rights on the channel still releases; waiters then poll.
local notified = redis.pcall('publish', KEYS[2], '1')
if not released then
  return -1
end
return type(notified) == 'number' and notified or 0
