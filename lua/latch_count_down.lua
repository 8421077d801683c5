-- latch_count_down: lower the count by one; at zero the latch opens, and those who wait are notified.
--
-- KEYS[1]  latch     string: the remaining count; absent while the latch is open
-- KEYS[2]  round     string: a mark that changes whenever the latch opens or is set
-- KEYS[3]  channel   where waiters of this latch listen
-- KEYS[4]  request   string: the result of this request
-- KEYS[5]  answered  the result of an earlier request, which is answered and cannot come again; may be left out
-- ARGV[1]  mark      never used before
-- ARGV[2]  round_ms  integer > 0; how long the mark is kept
-- ARGV[3]  keep_ms   integer > 0; how long the result is remembered
--
-- Returns  1         counted
--          0         the latch was open; nothing was counted, and a count below 1 is deleted
--
-- Keeps    the TTL of a count, if it has one
-- Twice    the second run answers as the first and changes nothing
-- Errors   WRONGTYPE for a string that is not an integer
local mark, round_ms, keep_ms = ARGV[1], ARGV[2], ARGV[3]

local before = redis.call('get', KEYS[4])
if before then
  return tonumber(before)
end
local left = redis.call('get', KEYS[1])
if left and left ~= '0' and not (string.find(left, '^%-?[1-9]%d*$') and #left < 20) then
  return redis.error_reply('WRONGTYPE the key holds no count')
end
local counts = left and tonumber(left) > 0
-- The result is remembered even if there was nothing to count: a late copy of this request must not count in the next round.
redis.call('set', KEYS[4], counts and 1 or 0, 'px', keep_ms)
if KEYS[5] then
  redis.call('del', KEYS[5])
end
-- A count of 0 or less, of Redisson or of a user, means that the latch is open: its key is deleted.
if not counts then
  redis.call('del', KEYS[1])
  return 0
end
if redis.call('incrby', KEYS[1], -1) <= 0 then
  redis.call('del', KEYS[1])
  redis.call('set', KEYS[2], mark, 'px', round_ms)
  -- A user without rights on the channel still counts; waiters then poll.
  redis.pcall('publish', KEYS[3], '0')
end
return 1
