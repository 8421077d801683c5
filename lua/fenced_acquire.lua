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
-- Keeps    what lock_acquire keeps; a counter that is not an integer: the reply is a WRONGTYPE error; tokens
--          only increase, and are ahead of the clock by less than `count` microseconds, unless the clock is set back; no
--          hold without a token; run twice by one owner it draws new tokens, and is otherwise as if only the second had run
local owner, lease_ms, count, token_ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local left_ms = redis.call('pttl', KEYS[1])
-- HEXISTS fails for a key of another type.
if left_ms ~= -2 and redis.call('hexists', KEYS[1], owner) == 0 then
  return no_lock('lock') or left_ms
end

local token = redis.call('get', KEYS[2]) or '0'
if token ~= '0' and not string.find(token, '^%-?[1-9]%d*$') then
  return redis.error_reply('WRONGTYPE the token counter is not an integer')
end
local first
local last = tonumber(token)
if last + count < 2 ^ 53 then
  -- Tokens are not below the server's clock in microseconds, so a counter that expired, was evicted or came back from an old
  -- copy still goes forward. However fast tokens are drawn, their lead over the clock is short, since a lost counter loses it.
  local time = redis.call('time')
  local now = time[1] * 1000000 + time[2]
  first = math.max(last + 1, now)
  last = math.max(first, now + count - 1)
  first, token = string.format('%.0f', first), string.format('%.0f', last)
  if token_ttl_ms > 0 then
    -- The counter must outlive its lead over the clock. A TTL counts from the millisecond that has begun, hence + 1.
    local keep_ms = math.max(token_ttl_ms, math.ceil((last - now) / 1000) + 1)
    redis.call('set', KEYS[2], token, 'px', string.format('%.0f', keep_ms))
  else
    redis.call('set', KEYS[2], token)
  end
else
  -- Lua would round a number this large, so Redis adds. The clock never reaches it, so the counter must not expire.
  redis.call('incrby', KEYS[2], 1)
  redis.call('persist', KEYS[2])
  token = redis.call('get', KEYS[2])
  first = token
end

-- The hold comes after the draw, so that a draw which fails leaves nothing held.
redis.call('hset', KEYS[1], owner, 1)
-- Without a TTL the lock would never be free again, so a hold that gets none is removed.
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('hdel', KEYS[1], owner)
  return kept
end
return { first, token }
