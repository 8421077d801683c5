-- fair_leave: give up places in the queue, and hand on the wake-up that may have come to one of them.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  ticket    the waiter's name in the queue
-- ARGV[2]  grace_ms  integer; how long at most a place lives on whose waiter does not listen: see prelude
-- ARGV[3…n] more     other tickets of the same process
--
-- Returns  n >= 0    so many of them were in the queue
--
-- Keeps    the lock; others' places; run twice, the second run finds nothing of these tickets
local ticket, grace_ms = ARGV[1], tonumber(ARGV[2])

-- Refuses keys of another type before it removes anything.
local left = remove_places(ticket, unpack(ARGV, 3))
if redis.call('exists', KEYS[1]) == 1 then
  return left
end
notify_first(redis.call('lindex', KEYS[2], 0), grace_ms, true)
return left
