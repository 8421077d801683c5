-- permit_release_ids: return permits, whoever took them, and say which of them were taken.
--
-- KEYS[1]  permits   string: how many are available
-- KEYS[2]  timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- KEYS[4]  request   string that remembers the answer
-- ARGV[1]  ids       of each permit 16 bytes, one after another
-- ARGV[2]  keep_ms   integer > 0; for how long it is remembered
--
-- Returns  string    a letter for each id: '1' returned, '0' it was not out any more
--
-- Keeps    available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--          returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--          keys of another type, answered with a WRONGTYPE error;
--          run twice, the second run gives the first answer and changes nothing
local permits, timeouts, channel, request = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ids, keep_ms = ARGV[1], ARGV[2]

local answered = redis.call('get', request)
if answered then
  return answered
end
-- First, because they refuse keys of another type.
local available = redis.call('get', permits)
local time = redis.call('time')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local over = redis.call('zcount', timeouts, 0, now)
if available and available ~= '0' and (#available > 15 or not string.match(available, '^-?[1-9]%d*$')) then
  return redis.error_reply('WRONGTYPE the key holds a string that is no number of permits')
end

-- Not all at once: there may be a million.
local back = math.min(over, 1000)
if back > 0 then
  local first = redis.call('zcount', timeouts, '-inf', '(0')
  redis.call('zremrangebyrank', timeouts, first, first + back - 1)
end
local released, answer = 0, {}
for at = 1, #ids, 16 do
  local id, found = string.sub(ids, at, at + 15), 0
  -- One that has expired is nobody's to return, even if that has not been done yet.
  if over == back or tonumber(redis.call('zscore', timeouts, id) or 0) > tonumber(now) then
    found = redis.call('zrem', timeouts, id)
  end
  released = released + found
  answer[#answer + 1] = found
end
if available and back + released > 0 then
  available = redis.call('incrby', permits, back + released)
  if available > 0 then
    redis.pcall('publish', channel, string.format('%.0f', math.min(available, 2147483647)))
  end
end
answer = table.concat(answer)
if released > 0 then
  redis.call('set', request, answer, 'px', keep_ms)
end
return answer
