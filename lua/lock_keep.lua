-- lock_keep: let one owner's hold end by itself, at a time that its owner names when it has no more use for it.
--
-- KEYS[1]  lock    hash: owner -> hold count
-- KEYS[2]  hold    of a read hold: the string that lives as long as it; left out for any other
-- ARGV[1]  field   the owner, of a write hold followed by ":write"
-- ARGV[2]  ms      integer > 0; how long the hold lives from now on
--
-- Returns  0       it does
--          -1      nobody holds the lock any more
--          -2      somebody else holds it
--
-- Keeps    every other hold, and the TTL that they need; nobody is notified, since nothing is free;
--          run twice, the hold lives for as long from the second run on
local field, ms = ARGV[1], tonumber(ARGV[2])

if redis.call('hexists', KEYS[1], field) == 0 then
  return redis.call('exists', KEYS[1]) == 1 and -2 or -1
end
local holds = redis.call('hlen', KEYS[1]) - redis.call('hexists', KEYS[1], 'mode')
if KEYS[2] then
  redis.call('pexpire', KEYS[2], ms)
end
if holds == 1 or redis.call('pttl', KEYS[1]) < ms then
  redis.call('pexpire', KEYS[1], ms)
end
return 0
