-- permit_state: how many permits there are.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
--
-- Returns  {a, b, c}  a are available, negative after a reduction; b are taken; c is their sum, 0 without the string
--
-- Keeps    available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--          returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--          keys of another type, answered with a WRONGTYPE error;
--          run twice it answers for the second time

local wrong, available, now, over, back = look()
if wrong then
  return wrong
end
available = return_expired(available, back)

-- Those that have expired are available to whoever asks.
local acquired = redis.call('zcount', KEYS[2], '(' .. now, '+inf')
if not available then
  return {0, acquired, 0}
end
available = available + over - back
return {available, acquired, available + acquired}
