-- fair_force: take the lock away from whoever holds it, and notify the next waiter.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
-- KEYS[5]  request   string: what came of this request
-- ARGV[1]  keep_ms   integer > 0; how long it is known what came of this request
-- ARGV[2]  grace_ms  integer; how long at most a place lives on whose waiter does not listen: see prelude
--
-- Returns  1         it was held and is free now
--          0         nobody held it
--
-- Keeps    live waiters' places; a hash that is not a lock: its fields do not start like an owner, "<uuid>:",
--          and the answer is a WRONGTYPE error;
--          run twice, the second run answers as the first and changes nothing
local keep_ms, grace_ms = ARGV[1], tonumber(ARGV[2])

local before = redis.call('get', KEYS[5])
if before then
  return tonumber(before)
end
-- First, because they refuse keys of another type.
local head = redis.call('lindex', KEYS[2], 0)
redis.call('zcard', KEYS[3])

local fields = redis.call('hkeys', KEYS[1])
for _, field in ipairs(fields) do
  if not string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:') then
    return redis.error_reply('WRONGTYPE the key holds a hash that is not a lock')
  end
end
local forced = redis.call('del', KEYS[1])
-- Also if nobody held it: a copy that comes late is not to take it from whoever holds it by then. After a write that
-- needs no memory none is refused for want of some.
redis.pcall('set', KEYS[5], forced, 'px', keep_ms)
if forced == 0 then
  return 0
end
notify_first(head, grace_ms)
return 1
