-- fenced_acquire: draw fencing tokens and take the lock for one owner.
--
-- KEYS[1]  lock          hash: owner -> hold count
-- KEYS[2]  counter       string: the last token drawn
-- ARGV[1]  owner         "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms      integer > 0; how long the hold lives unless renewed
-- ARGV[3]  count         integer > 0; how many tokens to draw at most
-- ARGV[4]  token_ttl_ms  integer; how long the counter lives after its last use; 0: without an end
--
-- Returns  two strings   taken, with a count of one; the first and the last of the tokens drawn
--          n >= -1       somebody else has it; n ms until their lease runs out, -1 if it never does
--
-- Keeps    what lock_acquire keeps; tokens only increase; there is no hold without a token. A token is a number of microseconds,
--          and is at least the time by the server's clock. See the prelude
-- Twice    by one owner: as if only the second had run, except that both draw tokens
-- Errors   as lock_acquire; WRONGTYPE for a counter that is not an integer
local owner, lease_ms, count, token_ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local left_ms = redis.call('pttl', KEYS[1])
-- HEXISTS fails for a key of another type.
if left_ms ~= -2 and redis.call('hexists', KEYS[1], owner) == 0 then
  return no_lock('lock') or left_ms
end

local wrong, first, last = draw(count, token_ttl_ms)
if wrong then
  return wrong
end

-- The hold comes after the draw, so that a draw which fails leaves nothing held.
redis.call('hset', KEYS[1], owner, 1)
-- Without a TTL the lock would never be free again, so a hold that gets none is removed.
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('hdel', KEYS[1], owner)
  return kept
end
return { first, last }
