-- fenced_holder: who holds a fenced lock, and the last token drawn.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS[2]  counter  string: the last token drawn
--
-- Returns  three strings  the owner; the token, '' if there is none; and the hold count, 0 for a hold that was let go and
--                         only keeps the name taken, because of a ticket or `min_hold`
--          nil            nobody has it
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
-- The hash of a fenced lock has one field.
local held = redis.call('hgetall', KEYS[1])
return { held[1], redis.call('get', KEYS[2]) or '', held[2] }
