-- lock_keep: let one owner's hold expire at a given time instead of releasing it, so that the name stays taken until then.
--
-- KEYS[1]  lock    hash: owner -> hold count
-- KEYS[2]  hold    of a read hold: the string that lives as long as the hold; left out for any other hold
-- ARGV[1]  field   the owner, of a write hold followed by ":write"
-- ARGV[2]  ms      integer > 0; how long the hold lives from now on
--
-- Returns  0       the hold will expire then
--          -1      nobody holds the lock any more
--          -2      somebody else holds it
--
-- Keeps    every other hold, and the TTL that the others need; nobody is notified, since nothing is free;
--          run twice, the hold lives for as long from the second run on
local field, ms = ARGV[1], tonumber(ARGV[2])

if redis.call('hexists', KEYS[1], field) == 0 then
  return redis.call('exists', KEYS[1]) == 1 and -2 or -1
end
-- Readers may share the hash. Alone, this hold decides how long the hash lives; beside others, it may only extend that.
local holds = redis.call('hlen', KEYS[1]) - redis.call('hexists', KEYS[1], 'mode')
if KEYS[2] then
  redis.call('pexpire', KEYS[2], ms)
end
if holds == 1 or redis.call('pttl', KEYS[1]) < ms then
  redis.call('pexpire', KEYS[1], ms)
end
return 0
