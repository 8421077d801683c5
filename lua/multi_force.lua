-- multi_force: take several locks away from whoever holds them, and notify those who wait.
--
-- KEYS[1…n]     lock      hash: owner -> hold count
-- KEYS[n+1…2n]  channel   where waiters of each lock listen, in the same order
-- KEYS[2n+1]    request   string: what came of this request
-- ARGV[1]       keep_ms   integer > 0; how long it is known what came of this request
--
-- Returns       1         one of them was held; all are free now
--               0         nobody held any of them
--
-- Keeps         all of them, if one is a hash that is not a lock: its fields do not start like an owner, "<uuid>:",
--               and the answer is a WRONGTYPE error;
--               run twice, the second run answers as the first and changes nothing
local n = (#KEYS - 1) / 2
local keep_ms = ARGV[1]

local before = redis.call('get', KEYS[#KEYS])
if before then
  return tonumber(before)
end
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
-- Also if nobody held one: a copy that comes late is not to take them from whoever holds them by then. After a write that
-- needs no memory none is refused for want of some.
redis.call('del', KEYS[#KEYS])
redis.pcall('set', KEYS[#KEYS], forced, 'px', keep_ms)
return forced
