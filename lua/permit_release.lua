-- permit_release: return permits of one process, and notify those who wait.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- ARGV[1]  ids       of each permit 16 bytes, one after another
--
-- Returns  n >= 0    at least one permit was returned; n processes were listening
--          -1        none of the permits was still taken
--
-- Keeps    the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait are
--          notified; a deleted KEYS[1] is not created again
-- Twice    the second run finds none of the permits
-- Errors   WRONGTYPE for a key of another type
local ids = ARGV[1]

local wrong, available, now, over, back = look()
if wrong then
  return wrong
end
remove_expired(back)
local released = 0
for at = 1, #ids, 16 do
  local id = string.sub(ids, at, at + 15)
  -- An expired permit is not the owner's to return, even if it is still in the set: a later script returns it. If this
  -- call has returned all expired ones, those left in the set are alive.
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
