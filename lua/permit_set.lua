-- permit_set: set how many permits there are, whether or not that was set before.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string: says that this request was carried out
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    total     integer >= 0; how many there are, acquired ones included
-- ARGV[2]    keep_ms   integer > 0; how long `request` is kept
--
-- Returns    1         done
--
-- Keeps      acquired permits, so that the available number may be negative; the TTL; up to 1,000 expired permits are
--            returned, the others later
-- Twice      the second run changes nothing
-- Errors     WRONGTYPE for a key of another type
local total, keep_ms = ARGV[1], ARGV[2]

if redis.call('get', KEYS[4]) then
  return 1
end
if #KEYS > 4 then
  redis.pcall('del', unpack(KEYS, 5))
end
local wrong, available, _, _, back = look()
if wrong then
  return wrong
end
-- ZCOUNT counts expired permits as taken. `back` of them are added here; later calls add the others when they return them.
local left = total - redis.call('zcount', KEYS[2], 0, '+inf') + back
local more = left - (available or 0)
if more ~= 0 or not available then
  redis.call('incrby', KEYS[1], string.format('%.0f', more))
end
redis.call('set', KEYS[4], 1, 'px', keep_ms)
remove_expired(back)
if more > 0 then
  notify(left)
end
return 1
