-- latch_state: the remaining count, and the mark of its round.
--
-- KEYS[1]  latch   string: the remaining count; absent while the latch is open
-- KEYS[2]  round   string: a mark that changes whenever the latch opens or is set
--
-- Returns  nil          open
--          two strings  the remaining count, which means open if it is 0 or less; the mark, empty without one
--
-- Keeps    everything
-- Errors   WRONGTYPE for a string that is not an integer

local left = redis.call('get', KEYS[1])
if not left then
  return nil
end
if left ~= '0' and not (string.find(left, '^%-?[1-9]%d*$') and #left < 20) then
  return redis.error_reply('WRONGTYPE the key holds no count')
end
return { left, redis.call('get', KEYS[2]) or '' }
