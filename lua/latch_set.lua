-- latch_set: close an open latch until it has been counted down `count` times.
--
-- KEYS[1]  latch     string: the remaining count; absent while the latch is open
-- KEYS[2]  round     string: a mark that changes whenever the latch opens or is set
-- KEYS[3]  channel   where waiters of this latch listen
-- KEYS[4]  request   string: the result of this request
-- KEYS[5]  answered  the result of an earlier request, which cannot come again; may be left out
-- ARGV[1]  mark      never used before
-- ARGV[2]  round_ms  integer > 0; how long the mark is kept
-- ARGV[3]  keep_ms   integer > 0; how long the result is remembered
-- ARGV[4]  count     integer > 0
--
-- Returns  1         set
--          0         the latch has a count already, even if that is 0 or less
--
-- Keeps    an existing count
-- Twice    the second run answers as the first and changes nothing
-- Errors   WRONGTYPE for a string that is not an integer
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
-- The latch was open until now, perhaps without a message (its key expired or was deleted). The new mark tells waiters of the
-- earlier round that their round is over.
redis.call('set', KEYS[2], mark, 'px', round_ms)
redis.call('set', KEYS[1], count)
-- The message closes the latch for Redisson's clients. A user without rights on the channel still sets the count.
redis.pcall('publish', KEYS[3], '1')
return 1
