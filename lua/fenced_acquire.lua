-- fenced_acquire: draw fencing tokens and take the lock for one owner.
--
-- KEYS[1]  lock          hash: owner -> hold count
-- KEYS[2]  counter       string: the last token drawn
-- ARGV[1]  owner         "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms      integer > 0; how long the hold lives unless renewed
-- ARGV[3]  count         integer > 0; how many tokens to draw at most
-- ARGV[4]  token_ttl_ms  integer; how long the counter lives after its last use; 0: for ever
--
-- Returns  two strings   taken, with a count of one; the first and the last of the tokens drawn
--          n >= -1       somebody else has it; n ms until their lease runs out, -1 if it never does
--
-- Keeps    what lock_acquire keeps; a counter that is not an integer: the answer is a WRONGTYPE error; tokens
--          only ever increase, and are ahead of the clock by less than count us, unless it is set back; no hold
--          without a token; run twice by one owner it draws anew and is otherwise as if only the second had run
local owner, lease_ms, count, token_ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local left_ms = redis.call('pttl', KEYS[1])
-- A key of another type is refused by the first of these.
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
  -- Not below the clock, so that a counter that expired, was evicted or came back old does not go back; nor ever further
  -- ahead of it, however fast they are drawn, since what is ahead is what would be lost with the counter.
  local time = redis.call('time')
  local now = time[1] * 1000000 + time[2]
  first = math.max(last + 1, now)
  last = math.max(first, now + count - 1)
  first, token = string.format('%.0f', first), string.format('%.0f', last)
  if token_ttl_ms > 0 then
    -- It has to outlive its lead over the clock; TTLs count from a whole millisecond, one that has begun.
    local keep_ms = math.max(token_ttl_ms, math.ceil((last - now) / 1000) + 1)
    redis.call('set', KEYS[2], token, 'px', string.format('%.0f', keep_ms))
  else
    redis.call('set', KEYS[2], token)
  end
else
  -- Lua would round it. The clock will not come to it, so it may not expire.
  redis.call('incrby', KEYS[2], 1)
  redis.call('persist', KEYS[2])
  token = redis.call('get', KEYS[2])
  first = token
end

-- After the draw, whose refusal so leaves nothing held.
redis.call('hset', KEYS[1], owner, 1)
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('hdel', KEYS[1], owner)
  return kept
end
return { first, token }
