-- permit_release_ids: return the permits with these ids, of any owner, and say which of them it returned.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string: the reply to this request
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    ids       of each permit 16 bytes, one after another
-- ARGV[2]    keep_ms   integer > 0; how long the reply is remembered
-- ARGV[3]    all       "1" to return none of them if one is no longer taken
--
-- Returns    string    a digit for each id: '1' returned; '0' not, since it, or with `all` another one, was no longer taken
--
-- Keeps      the sum of available and acquired permits; up to 1,000 expired permits are returned first, and those who wait
--            are notified; a deleted KEYS[1] is not created again
-- Twice      the second run gives the first reply and changes nothing
-- Errors     WRONGTYPE for a key of another type
local ids, keep_ms, all = ARGV[1], ARGV[2], ARGV[3]

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
local are_taken = true
if all == '1' then
  for at = 1, #ids, 16 do
    local ends_at = redis.call('zscore', KEYS[2], string.sub(ids, at, at + 15))
    are_taken = are_taken and tonumber(ends_at or 0) > tonumber(now)
  end
end
local released, answer = 0, {}
for at = 1, #ids, 16 do
  local id, found = string.sub(ids, at, at + 15), 0
  -- An expired permit is not returned by its id, even if it is still in the set: a later script returns it. If this call
  -- has returned all expired ones, those left in the set are alive.
  if are_taken and (over == back or tonumber(redis.call('zscore', KEYS[2], id) or 0) > tonumber(now)) then
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
