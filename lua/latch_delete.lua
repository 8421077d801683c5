-- latch_delete: open the latch, whatever is left to count, and notify those who wait.
--
-- KEYS[1]  latch     string: what is left to count; absent while the latch is open
-- KEYS[2]  round     string: another mark whenever the latch was open meanwhile
-- KEYS[3]  channel   where waiters of this latch listen
-- KEYS[4]  request   string: what came of this request
-- KEYS[5]  answered  that of an earlier request, which cannot come again; may be left out
-- ARGV[1]  mark      never used before
-- ARGV[2]  round_ms  integer > 0; how long the mark is kept
-- ARGV[3]  keep_ms   integer > 0; how long it is known what came of this request
--
-- Returns  1         deleted
--          0         there was no count
--
-- Keeps    a string that is not an integer, which is answered with a WRONGTYPE error;
--          run twice, the second run answers as the first and changes nothing
local mark, round_ms, keep_ms = ARGV[1], ARGV[2], ARGV[3]

local before = redis.call('get', KEYS[4])
if before then
  return tonumber(before)
end
local left = redis.call('get', KEYS[1])
if left and left ~= '0' and not (string.find(left, '^%-?[1-9]%d*$') and #left < 20) then
  return redis.error_reply('WRONGTYPE the key holds no count')
end
-- Also if there is nothing to delete: a copy that comes late is not to end the next round. A server that has no memory
-- left for this deletes all the same.
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
