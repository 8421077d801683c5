-- latch_delete: open the latch, whatever its count is, and notify the waiters of redlatch's clients.
--
-- KEYS[1]  latch     string: the remaining count; absent while the latch is open
-- KEYS[2]  round     string: a mark that changes whenever the latch opens or is set
-- KEYS[3]  channel   where waiters of this latch listen
-- KEYS[4]  request   string: the result of this request
-- KEYS[5]  answered  the result of an earlier request, which cannot come again; may be left out
-- ARGV[1]  mark      never used before
-- ARGV[2]  round_ms  integer > 0; how long the mark is kept
-- ARGV[3]  keep_ms   integer > 0; how long the result is remembered
--
-- Returns  1         deleted
--          0         there was no count
--
-- Keeps    a string that is not an integer
-- Twice    the second run answers as the first and changes nothing
-- Errors   WRONGTYPE for such a string
local mark, round_ms, keep_ms = ARGV[1], ARGV[2], ARGV[3]

local before = redis.call('get', KEYS[4])
if before then
  return tonumber(before)
end
local left = redis.call('get', KEYS[1])
if left and left ~= '0' and not (string.find(left, '^%-?[1-9]%d*$') and #left < 20) then
  return redis.error_reply('WRONGTYPE the key holds no count')
end
-- The result is remembered even if there was nothing to delete: a late copy of this request must not end the next round.
-- `pcall`: a server without memory for the result deletes the latch all the same.
redis.pcall('set', KEYS[4], left and 1 or 0, 'px', keep_ms)
if KEYS[5] then
  redis.call('del', KEYS[5])
end
if not left then
  return 0
end
redis.call('del', KEYS[1])
redis.pcall('set', KEYS[2], mark, 'px', round_ms)
-- A user without rights on the channel still deletes; waiters then poll.
redis.pcall('publish', KEYS[3], '1')
return 1
