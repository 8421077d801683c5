-- permit_release_ids: give permits back, whoever took them, and say which of them were out.
--
-- KEYS[1]  permits   string: how many are to be had
-- KEYS[2]  timeouts  sorted set: id -> epoch ms from which its permit is over; 922337203685477: never
-- KEYS[3]  channel   where those who wait listen
-- KEYS[4]  request   string that remembers the answer
-- ARGV[1]  ids       of each permit 16 bytes, one after another
-- ARGV[2]  keep_ms   integer > 0; for how long it is remembered
--
-- Returns  string    a letter for each id: '1' given back, '0' it was not out any more
--
-- Keeps    available and acquired permits together are as many as before; permits that are over are given back first,
--          all of them, and those who wait are told; keys of another type, answered with a WRONGTYPE error;
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
local due = redis.call('zcount', timeouts, 0, now)
if available and available ~= '0' and (#available > 15 or not string.match(available, '^-?[1-9]%d*$')) then
  return redis.error_reply('WRONGTYPE the key holds a string that is no number of permits')
end

if due > 0 then
  redis.call('zremrangebyscore', timeouts, 0, now)
end
local released, answer = 0, {}
for at = 1, #ids, 16 do
  local found = redis.call('zrem', timeouts, string.sub(ids, at, at + 15))
  released = released + found
  answer[#answer + 1] = found
end
if due + released > 0 then
  available = redis.call('incrby', permits, due + released)
  if available > 0 then
    redis.pcall('publish', channel, string.format('%.0f', math.min(available, 2147483647)))
  end
end
answer = table.concat(answer)
if released > 0 then
  redis.call('set', request, answer, 'px', keep_ms)
end
return answer
