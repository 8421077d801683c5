-- summary: whether a key is that of a lock, or of the permits that are taken, and what there is to say in a line.
--
-- KEYS[1]  key       a hash, or a sorted set
-- KEYS[2]  queue     of the fair lock that a hash may be
-- KEYS[3]  token     of the fenced lock that a hash may be
--
-- Returns  {k, n, t}  k: 1 a lock, 2 fair, 3 fenced, 4 read-write, 5 permits; n are held; t ms are left, -1 without an end
--          nil        it is nothing of the kind
--
-- Keeps    everything
local type = redis.call('type', KEYS[1]).ok

if type == 'zset' then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local last = redis.call('zrange', KEYS[1], -1, -1, 'withscores')
  if #last[1] ~= 16 or tonumber(last[2]) <= now then
    return nil
  end
  local left = tonumber(last[2]) < 922337203685477 and last[2] - now or -1
  return {5, redis.call('zcount', KEYS[1], '(' .. now, '+inf'), left}
end
if type ~= 'hash' then
  return nil
end

local held, kind = redis.call('hlen', KEYS[1]), 1
-- Of a stranger's hash, which may be very large, looking at some fields is enough.
local fields = redis.call('hscan', KEYS[1], '0', 'count', 16)[2]
for i = 1, #fields, 2 do
  if fields[i] == 'mode' and (fields[i + 1] == 'read' or fields[i + 1] == 'write') then
    kind = 4
  elseif not string.find(fields[i], '^%x+%-%x+%-%x+%-%x+%-%x+:%d+') then
    return nil
  end
end
if kind == 4 then
  held = held - 1
elseif redis.call('exists', KEYS[2]) == 1 then
  kind = 2
elseif redis.call('exists', KEYS[3]) == 1 then
  kind = 3
end
return {kind, held, redis.call('pttl', KEYS[1])}
