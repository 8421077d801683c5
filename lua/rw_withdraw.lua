-- rw_withdraw: remove the note of a waiter that gives up, and notify those who were behind it.
--
-- KEYS[1]  note     string: the waiter that is noted
-- KEYS[2]  channel  where waiters of this lock listen
-- ARGV[1]  waiter   "<client uuid>:<number>"
--
-- Returns  n >= 0   removed; n processes were listening
--          -1       another is noted, or nobody
--
-- Keeps    another's note; run twice it removes nothing more
if redis.call('get', KEYS[1]) ~= ARGV[1] then
  return -1
end
redis.call('del', KEYS[1])
-- A user without rights on the channel still gives up; waiters then poll.
local notified = redis.pcall('publish', KEYS[2], '1')
return type(notified) == 'number' and notified or 0
