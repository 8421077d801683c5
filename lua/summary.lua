-- summary: whether a key holds a lock or a set of acquired permits, and a summary of it.
--
-- KEYS[1]  lock      or any hash, or a sorted set
-- KEYS[2]  queue     the queue of the lock if it is a fair lock
-- KEYS[3]  token     the token counter of the lock if it is a fenced lock
--
-- Returns  {k, n, t}  k: 1 a lock, 2 fair, 3 fenced, 4 read-write, 5 permits; n are held; t ms are left, -1 without an end
--          nil        the key is neither
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
if no_lock('lock') then
  if no_lock('read-write lock') then
    return nil
  end
  held, kind = held - 1, 4
elseif redis.call('exists', KEYS[2]) == 1 then
  kind = 2
elseif redis.call('exists', KEYS[3]) == 1 then
  kind = 3
end
return {kind, held, redis.call('pttl', KEYS[1])}
