-- fair_force: take the lock away from its owner, and notify the next waiter.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive      sorted set: ticket of ours -> epoch ms until which it counts as alive
-- KEYS[5]  channel    base: a waiter listens at `<this>:<ticket>`
-- KEYS[6]  request    string: the result of this request
-- ARGV[1]  waiter_ms  integer > 0; how long a place of ours outlives its last sign of life
-- ARGV[2]  keep_ms    integer > 0; how long the result is remembered
--
-- Returns  1          the lock was held and is free now
--          0          nobody held the lock
--
-- Keeps    the places of the living
-- Twice    the second run answers as the first
-- Errors   WRONGTYPE for a key that holds no such lock
local before = redis.call('get', KEYS[6])
if before then
  return tonumber(before)
end
local wrong = no_lock('lock', nil, true)
if wrong then
  return wrong
end
local forced = redis.call('del', KEYS[1])
-- The result is remembered even if nobody held the lock: a late copy of this request must not take the lock from its next owner.
-- DEL needs no memory, and after a script's first write Redis does not reject SET for lack of memory.
redis.pcall('set', KEYS[6], forced, 'px', ARGV[2])
if forced == 1 then
  notify(first())
end
return forced
