-- lock_release: end one owner's hold, whatever its count, and notify those who wait.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  channel   where waiters of this lock listen; left out for a spin lock, which notifies nobody, and for the silent undo of
--                    a part of a RedLock
-- ARGV[1]  owner     "<client uuid>:<number>"
--
-- Returns  n >= 0    released; n processes were listening, 0 without a channel
--          -1        nobody holds the lock any more
--          -2        somebody else holds it
--
-- Keeps    other owners' fields; waiters are notified whenever the lock is seen free
-- Twice    the second run finds nothing of this owner and removes nothing
local owner = ARGV[1]

local released = redis.call('hdel', KEYS[1], owner) == 1
if redis.call('exists', KEYS[1]) == 1 then
  return released and 0 or -2
end
-- The lock is free. Waiters are notified even if this owner's hold had expired or was released by an earlier copy of this
-- request: the message of that copy may have been lost, and an expired hold sends none.
-- A user without rights on the channel still releases; waiters then poll.
local notified = KEYS[2] and redis.pcall('publish', KEYS[2], '0')
if not released then
  return -1
end
return type(notified) == 'number' and notified or 0
