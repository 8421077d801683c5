-- fenced_holder: who holds a fenced lock, and the last token drawn.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS[2]  counter  string: the last token drawn
--
-- Returns  two strings  the owner, and the token; '' if there is none
--          nil          nobody has it
--
-- Keeps    everything
-- Errors   WRONGTYPE for a key that holds no such lock
if redis.call('exists', KEYS[1]) == 0 then
  return nil
end
local wrong = no_lock('lock')
if wrong then
  return wrong
end
-- A lock has one field.
return { redis.call('hgetall', KEYS[1])[1], redis.call('get', KEYS[2]) or '' }
