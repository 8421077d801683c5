-- fair_release: end a ticket's hold or its place in the queue, and notify the next waiter.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive      sorted set: ticket of ours -> epoch ms until which it counts as alive
-- KEYS[5]  channel    base: a waiter listens at `<this>:<ticket>`
-- ARGV[1]  waiter_ms  integer > 0; how long a place of ours outlives its last sign of life
-- ARGV[2]  ticket     "<client uuid>:<number>"
--
-- Returns  n >= 0     the ticket's hold has ended; n were notified, 0 if nobody waits or listens
--          -1         nobody holds the lock any more
--          -2         somebody else holds it
--
-- Keeps    others' holds and the places of the living; the next waiter is notified whenever the lock is seen free
-- Twice    the second run finds nothing of this ticket
local ticket = ARGV[2]

local released = redis.call('hdel', KEYS[1], ticket) == 1
if redis.call('zscore', KEYS[3], ticket) then
  remove({[ticket] = true})
end
if redis.call('exists', KEYS[1]) == 1 then
  return released and 0 or -2
end
-- The lock is free. The next waiter is notified even if this ticket had no hold: a hold may have expired without a message, or
-- the place that was removed above was the first.
local notified = notify(first())
return released and notified or -1
