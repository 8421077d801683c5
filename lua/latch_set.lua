-- latch_set: close an open latch until it has been counted down that often.
--
-- KEYS[1]  latch     string: what is left to count; absent while the latch is open
-- KEYS[2]  round     string: another mark whenever the latch was open meanwhile
-- KEYS[3]  channel   where waiters of this latch listen
-- KEYS[4]  request   string: what came of this request
-- KEYS[5]  answered  that of an earlier request, which cannot come again; may be left out
-- ARGV[1]  mark      never used before
-- ARGV[2]  round_ms  integer > 0; how long the mark is kept
-- ARGV[3]  keep_ms   integer > 0; how long it is known what came of this request
-- ARGV[4]  count     integer > 0
--
-- Returns  1         set
--          0         there is a count, perhaps 0
--
-- Keeps    an existing count; a string that is not an integer is answered with a WRONGTYPE error;
--          run twice, the second run answers as the first and changes nothing
local mark, round_ms, keep_ms, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local before = redis.call('get', KEYS[4])
if before then
  return tonumber(before)
end
local left = redis.call('get', KEYS[1])
if left and left ~= '0' and not (string.find(left, '^%-?[1-9]%d*$') and #left < 20) then
  return redis.error_reply('WRONGTYPE the key holds no count')
end
redis.call('set', KEYS[4], left and 0 or 1, 'px', keep_ms)
if KEYS[5] then
  redis.call('del', KEYS[5])
end
if left then
  return 0
end
-- Whoever waited before has been free to go, though nobody may have said so.
redis.call('set', KEYS[2], mark, 'px', round_ms)
redis.call('set', KEYS[1], count)
-- A user without rights on the channel still sets; nobody waits for this message.
redis.pcall('publish', KEYS[3], '1')
return 1
