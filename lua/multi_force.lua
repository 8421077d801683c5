-- multi_force: take several locks away from whoever holds them, and notify those who wait.
--
-- KEYS[1…n]     lock      hash: owner -> hold count
-- KEYS[n+1…2n]  channel   where waiters of each lock listen, in the same order
--
-- Returns       1         one of them was held; all are free now
--               0         nobody held any of them
--
-- Keeps         all of them, if one is a hash that is not a lock: its fields do not start like an owner, "<uuid>:",
--               and the answer is a WRONGTYPE error
local n = #KEYS / 2

local held = {}
for i = 1, n do
  for _, field in ipairs(redis.call('hkeys', KEYS[i])) do
    if not string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:') then
      return redis.error_reply('WRONGTYPE the key holds a hash that is not a lock')
    end
    held[i] = true
  end
end
local forced = 0
for i = 1, n do
  if held[i] then
    redis.call('del', KEYS[i])
    redis.pcall('publish', KEYS[n + i], '0')
    forced = 1
  end
end
return forced
