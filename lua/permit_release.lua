-- permit_release: return permits of one process, and notify those who wait.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  ids       of each permit 16 bytes, one after another
--
-- Returns  n >= 0    returned, some of them at least; n processes were listening
--          -1        none of them was still taken
--
-- Keeps    available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--          returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--          keys of another type, answered with a WRONGTYPE error;
--          run twice, the second run finds none of them
local ids = ARGV[1]

local wrong, available, now, over, back = look()
if wrong then
  return wrong
end
remove_expired(back)
local released = 0
for at = 1, #ids, 16 do
  local id = string.sub(ids, at, at + 15)
  -- One that has expired is not ours to return, even if nobody has done it yet.
  if over == back or tonumber(redis.call('zscore', KEYS[2], id) or 0) > tonumber(now) then
    released = released + redis.call('zrem', KEYS[2], id)
  end
end
local notified
if available and back + released > 0 then
  available = redis.call('incrby', KEYS[1], back + released)
  notified = notify(available)
end
if released == 0 then
  return -1
end
return type(notified) == 'number' and notified or 0
