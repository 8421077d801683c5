-- permit_try_set: set how many permits there are, unless that was set before.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string: the reply to this request
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    total     integer >= 0; how many there are, acquired ones included
-- ARGV[2]    keep_ms   integer > 0; how long the reply is remembered
--
-- Returns    1         done
--            0         it was set before; nothing was changed
--
-- Keeps      permits that are still acquired after the string was deleted; they are a part of the total
-- Twice      the second run gives the first reply and changes nothing
-- Errors     WRONGTYPE for a key of another type
local total, keep_ms = ARGV[1], ARGV[2]

local answered = redis.call('get', KEYS[4])
if answered then
  return tonumber(answered)
end
if #KEYS > 4 then
  redis.pcall('del', unpack(KEYS, 5))
end
local wrong, available, _, _, back = look()
if wrong then
  return wrong
end
if available then
  -- The reply is remembered, since a second run after the string was deleted would reply 1 and set the number.
  redis.call('set', KEYS[4], 0, 'px', keep_ms)
  return 0
end
-- ZCOUNT counts expired permits as taken. `back` of them are added here; later calls add the others when they return them.
local left = total - redis.call('zcount', KEYS[2], 0, '+inf') + back
redis.call('set', KEYS[1], string.format('%.0f', left))
redis.call('set', KEYS[4], 1, 'px', keep_ms)
remove_expired(back)
notify(left)
return 1
