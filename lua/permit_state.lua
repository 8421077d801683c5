-- permit_state: how many permits there are.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
--
-- Returns  {a, b, c}  a are available, negative after a reduction; b are taken; c is their sum, 0 without the string
--
-- Keeps    the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait are
--          notified; a deleted KEYS[1] is not created again
-- Twice    the second run replies with what it finds
-- Errors   WRONGTYPE for a key of another type

local wrong, available, now, over, back = look()
if wrong then
  return wrong
end
available = return_expired(available, back)

-- Expired permits count as available, also those that this call did not return: an acquire returns them first.
local acquired = redis.call('zcount', KEYS[2], '(' .. now, '+inf')
if not available then
  return {0, acquired, 0}
end
available = available + over - back
return {available, acquired, available + acquired}
