-- lock_adopt: give the hold of one owner to another; never create one.
--
-- KEYS[1]  lock          hash: owner -> hold count
-- KEYS[2]  counter       string: the last token drawn; left out for a lock without tokens
-- ARGV[1]  from          the owner so far
-- ARGV[2]  owner         "<client uuid>:<number>", a number never used before
-- ARGV[3]  lease_ms      integer > 0; how long the hold lives from now on
-- ARGV[4]  token_ttl_ms  integer; how long the counter lives after its last use; 0: without an end
--
-- Returns  1             the owner has the hold, at first with a count of one
--          two strings   the same for a lock with tokens: the first and the last token drawn
--          0             nobody holds the lock
--          -1            somebody else holds it
--
-- Keeps    every other hold; the hold of `from`, if no token can be drawn, for example for lack of memory; nobody is notified,
--          since nothing is free
-- Twice    by one owner: the second run draws a new token, and lengthens a shorter TTL
-- Errors   WRONGTYPE for a key that holds something else
local from, owner, lease_ms, token_ttl_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- HGET fails for a key of another type. On a second run the owner has the hold already. A count of 0: the owner has meanwhile
-- detached or released the hold (lock_keep), so this late copy of the request leaves the hold alone.
local count = redis.call('hget', KEYS[1], owner)
local mine = count and count ~= '0'
if redis.call('hexists', KEYS[1], from) == 0 and not mine then
  return redis.call('exists', KEYS[1]) == 0 and 0 or no_lock('lock') or -1
end
local wrong, first, last
if KEYS[2] then
  wrong, first, last = draw(1, token_ttl_ms)
end
if wrong then
  return wrong
end
-- PEXPIRE comes first: Redis rejects writes for lack of memory only until the script's first write. The new field precedes the
-- removal of the old one, so that the hash is never empty and keeps its TTL.
-- On a second run a longer TTL stays: the owner may have locked again with a longer lease.
if not mine or redis.call('pttl', KEYS[1]) < tonumber(lease_ms) then
  redis.call('pexpire', KEYS[1], lease_ms)
end
if not mine then
  redis.call('hset', KEYS[1], owner, 1)
end
redis.call('hdel', KEYS[1], from)
return first and { first, last } or 1
