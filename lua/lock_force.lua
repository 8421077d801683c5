-- lock_force: take the lock away from whoever holds it, and notify those who wait.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  channel   where waiters of this lock listen; left out for a spin lock, which notifies nobody
--
-- Returns  1         it was held and is free now
--          0         nobody held it
--
-- Keeps    a hash that is not a lock: its fields do not start like an owner, "<uuid>:",
--          and the answer is a WRONGTYPE error

local fields = redis.call('hkeys', KEYS[1])
if #fields == 0 then
  return 0
end
for _, field in ipairs(fields) do
  if not string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:') then
    return redis.error_reply('WRONGTYPE the key holds a hash that is not a lock')
  end
end
redis.call('del', KEYS[1])
if KEYS[2] then
  redis.pcall('publish', KEYS[2], '0')
end
return 1
