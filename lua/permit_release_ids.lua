-- permit_release_ids: return permits, whoever took them, and say which of them were taken.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string that remembers the answer
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    ids       of each permit 16 bytes, one after another
-- ARGV[2]    keep_ms   integer > 0; for how long it is remembered
--
-- Returns    string    a letter for each id: '1' returned, '0' it was not out any more
--
-- Keeps      available and acquired permits together are as many as before; up to 1,000 permits that have expired are
--            returned first, and those who wait are notified; permits that come back do not create a string that is gone;
--            keys of another type, answered with a WRONGTYPE error;
--            run twice, the second run gives the first answer and changes nothing
local ids, keep_ms = ARGV[1], ARGV[2]

local answered = redis.call('get', KEYS[4])
if answered then
  return answered
end
if #KEYS > 4 then
  redis.pcall('del', unpack(KEYS, 5))
end
local wrong, available, now, over, back = look()
if wrong then
  return wrong
end
remove_expired(back)
local released, answer = 0, {}
for at = 1, #ids, 16 do
  local id, found = string.sub(ids, at, at + 15), 0
  -- One that has expired is nobody's to return, even if that has not been done yet.
  if over == back or tonumber(redis.call('zscore', KEYS[2], id) or 0) > tonumber(now) then
    found = redis.call('zrem', KEYS[2], id)
  end
  released = released + found
  answer[#answer + 1] = found
end
if available and back + released > 0 then
  notify(redis.call('incrby', KEYS[1], back + released))
end
answer = table.concat(answer)
if released > 0 then
  redis.call('set', KEYS[4], answer, 'px', keep_ms)
end
return answer
